"""The commands `login`, `logout` and `credentials`: logins at servers that want OAuth."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from host.cli.common import Selection, find_config, load_config, selection_options
from host.cli.exit_codes import DONE, CommandFailed
from host.cli.names import SERVER
from host.cli.signals import end_loading

if TYPE_CHECKING:
    from config import Config


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@click.option("-y", "--yes", is_flag=True, help="Accept another issuer than that of the last login without asking.")
@selection_options
def login(selection: Selection, server: str, yes: bool) -> int:
    """Log in at a server that wants OAuth.

    Prints a link to open in a browser on this machine, and another one for a browser elsewhere: the address at which
    that one ends is pasted here. Running hosts use the login at once, and refresh it. Nothing is opened by itself.
    """
    from host.cli.logins import Logins

    end_loading()
    with Logins.open(selection.open_state(), _config(selection, server)) as logins:
        logins.log_in(server, accept_other_issuer=yes)
    return DONE


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@selection_options
def logout(selection: Selection, server: str) -> int:
    """Forget the login at a server, and have the issuer revoke it."""
    from host.cli.logins import Logins

    end_loading()
    with Logins.open(selection.open_state(), _config(selection, server)) as logins:
        logins.log_out(server)
    return DONE


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with an object for each login.")
@selection_options
def credentials(selection: Selection, as_json: bool) -> int:
    """Show the logins at servers, without their tokens."""
    from host.cli.logins import Logins

    with Logins.open(selection.open_state(), _config(selection)) as logins:
        rows = logins.rows()
    if as_json:
        print(json.dumps(rows, indent=2))
        return DONE
    if not rows:
        print("There are no logins. colonnade login SERVER makes one.")
    for row in rows:
        print(f"{row['server']}: {row['state']}")
        for name in ("issuer", "resource", "scopes", "expires", "login"):
            if text := row[name]:
                print(f"  {name + ':':<10} {' '.join(text) if isinstance(text, list) else text}")
    return DONE


def _config(selection: Selection, server: str | None = None) -> Config:
    """The configuration that is selected; else the one that is used where none is named; else, or if that one does not
    have the server, that of the running host, or the only one that is known, as for commands about decisions.

    Raises:
        CommandFailed: there is none, or there are several.
    """
    from host.cli.targets import only
    from host.sanitize import visible

    if selection.config is not None:
        return load_config(str(selection.config))
    try:
        file = find_config("name it with --config")
    except CommandFailed:
        if not (targets := selection.scope().all()):
            raise
    else:
        config = load_config(file)
        if server is None or server in config.servers:
            return config
        targets = [each for each in selection.scope().all() if server in each.servers()]
        if not targets:
            return config
    file = only(targets).config
    print(f"colonnade: the configuration is {visible(file)}", file=sys.stderr)
    return load_config(file)
