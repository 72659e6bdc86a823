"""The command `migrate`: makes the database of a fleet ready, and takes over what a state directory holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.common import FILE, counted, find_config, load_config, open_state, show_path
from host.cli.exit_codes import DONE, WRONG, CommandFailed

if TYPE_CHECKING:
    from config import Config, Fleet, Secret
    from host.storage.directory import State
    from host.storage.store import CredentialKey, StoredCredential
    from host.upstream.vault import Vault


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option(
    "--from",
    "former",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Take over the approvals, grants and logins that this state directory has of FILE. The fleet must be new.",
)
def migrate(file: str | None, former: Path | None) -> int:
    """Make the database of a fleet ready for this version.

    Makes what its tables lack, and the fleet of FILE if it is new; hosts of this version start after that, and running
    ones go on. The URL of a role that may change the schema is read from the environment variable
    COLONNADE_MIGRATE_STORE, a value as in the configuration; without it, that of fleet.store is used.
    """
    config = load_config(file or find_config())
    fleet = config.fleet
    if fleet is None:
        raise CommandFailed(f"{config.source} has no fleet, whose database this command makes ready", WRONG)
    from host.cli.targets import as_command_failures

    with as_command_failures():
        _migrate(fleet)
        if former is not None:
            _take_over(config, fleet, former)
        if len(fleet.keys) > 1:
            _sign_anew(fleet)
    return DONE


def _migrate(fleet: Fleet) -> None:
    from host.storage.choice import import_postgres

    import_postgres()
    from host.storage.migrate import migrate

    done = migrate(fleet, _owner())
    had = "which it had" if done.before == done.after else f"it had {done.before or 'none'}"
    print(
        f"The database has schema {done.after} ({had}). The fleet {fleet.name} is {'new' if done.is_new else 'known'}."
    )


def _owner() -> Secret | None:
    """The URL of a role that may change the schema."""
    from config.fleet import checked_store
    from config.references import CannotExpandError, Expander
    from config.types import InvalidValue
    from host.storage.migrate import OWNER_VARIABLE

    written = os.environ.get(OWNER_VARIABLE)
    if written is None:
        return None
    try:
        return checked_store(Expander(os.environ, Path.cwd()).expand(written))
    except (CannotExpandError, InvalidValue) as problem:
        raise CommandFailed(f"{OWNER_VARIABLE}: {problem}", WRONG) from None


def _take_over(config: Config, fleet: Fleet, folder: Path) -> None:
    import trio

    from host.storage.migrate import take_over
    from host.storage.postgres import open_postgres
    from host.storage.sqlite import open_store
    from host.upstream.vault import open_vault

    if not (folder / "colonnade.db").exists():
        raise CommandFailed(f"{show_path(folder)} is no state directory: it has no colonnade.db", WRONG)
    state = open_state(folder)
    source = _source_in(state, config)
    unread: list[str] = []
    with open_store(state, source) as former, open_postgres(fleet) as store:
        vaults = open_vault(state, os.environ), open_vault(state, os.environ, fleet)
        reseal = partial(_resealed, *vaults, unread.append)
        done = trio.run(take_over, store, former, reseal)
    taken = f"{counted(done.approvals, 'approval')}, {counted(done.grants, 'grant')}, {counted(done.logins, 'login')}"
    print(f"Taken over what {show_path(folder)} has of {show_path(source)}: {taken}.")
    for server in unread:
        print(f"The login at {server} cannot be read with the key that it has there: colonnade login {server}")


def _sign_anew(fleet: Fleet) -> None:
    """Sign with the first key of the fleet what a former one has signed, so that the former can be taken out."""
    import trio

    from host.seal import fleet_keys
    from host.storage.postgres import open_postgres
    from host.upstream.vault import Vault

    first, *former = fleet_keys(b"logins", fleet)
    reseal = partial(_resealed, Vault(former[0], former[1:]), Vault(first), lambda server: None)
    with open_postgres(fleet) as store:
        count = trio.run(store.sign_anew, reseal)
    print(f"Signed anew with the first key of the fleet: {counted(count, 'row')}.")


def _source_in(state: State, config: Config) -> Path:
    """The configuration file whose decisions are taken over: this one, or the only one that the directory knows."""
    known = state.sources()
    here = Path(os.path.realpath(config.source))
    if here in known:
        return here
    if len(known) == 1:
        return known[0]
    names = ", ".join(map(show_path, known)) or "no configuration"
    raise CommandFailed(
        f"{show_path(state.path)} has decisions of {names}, and not of {show_path(here)}; put the file where it was",
        WRONG,
    )


def _resealed(
    former: Vault, present: Vault, on_unread: Callable[[str], object], key: CredentialKey, stored: StoredCredential
) -> StoredCredential | None:
    """The login for the key of the fleet; None if it cannot be read."""
    from host.oauth.problem import OAuthProblem

    try:
        return present.close(key, former.open(key, stored))
    except OAuthProblem:
        on_unread(key.server)
        return None
