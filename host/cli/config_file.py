"""The commands about a configuration file, which start nothing: `check`, `schema`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

import click

from host.cli.common import FILE, count_servers, find_config, load_config
from host.cli.endpoint_certificate import check_inner, read_certificate
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed

if TYPE_CHECKING:
    from config import Config, StdioServer


_ABOUT_TRUST = (
    "it is not trusted, so its program is confined (sandbox: strict); to start it unconfined, write sandbox: off; "
    "if an older version ran it unconfined, that goes on until you choose: colonnade sandbox {id} says what is in "
    "force (docs/sandbox.md)"
)
_NO_FOLDERS = "; it runs in folders of clients, where it cannot be confined, so it is not started without sandbox: off"


@click.command()
@click.argument("file", type=FILE, required=False)
def check(file: str | None) -> int:
    """Validate a configuration file and start nothing.

    A server of a desktop host's file that cannot be used is named with the reason, and the exit code is 1.

    Without FILE: ./colonnade.yaml, or else ~/.config/colonnade/colonnade.yaml.
    """
    file = file or find_config()
    config = load_config(file)
    from config import StdioServer
    from host.admin.warnings import warnings_of
    from host.sanitize import visible

    read_certificate(config)
    check_inner(config)
    _check_packages(config)
    unusable = 0
    for spec in config.servers.values():
        what = f"cannot be used: {visible(spec.problem)}" if spec.problem else spec.describe()
        print(f"{spec.id}: {what}" + (" (disabled)" if spec.disabled else ""))
        if spec.problem:
            unusable += not spec.disabled
        elif not spec.disabled:
            if isinstance(spec, StdioServer):
                _check_program(spec)
                if spec.confined_by_trust:
                    folders = _NO_FOLDERS if spec.takes_client_folder else ""
                    print(f"{spec.id}: notice: {_ABOUT_TRUST.format(id=spec.id)}{folders}", file=sys.stderr)
            for warning in warnings_of(spec, source=config.source):
                print(f"{spec.id}: notice: {warning}", file=sys.stderr)
    for name in config.views:
        print(f"@{name}: {_describe_view(config, name)}")
    if unusable:
        print(f"{file}: {count_servers(config)}; {unusable} cannot be used")
        return FAILED
    print(f"{file}: ok, {count_servers(config)}")
    return DONE


def _check_packages(config: Config) -> None:
    """The extras that the file needs."""
    from host.storage.choice import import_postgres
    from host.storage.store import StateError
    from host.telemetry.entrance import require_packages

    try:
        if config.fleet is not None:
            import_postgres()
        require_packages(config)
    except StateError as problem:
        raise CommandFailed(str(problem), WRONG) from None


def _describe_view(config: Config, name: str) -> str:
    """The servers of a view, and its callers."""
    from config.model import ENTRY_RULES
    from config.views import ALL

    view = config.views[name]
    parts = (
        id if part == ALL else f"{id} ({', '.join(kind for kind in ENTRY_RULES if getattr(part, kind)) or 'nothing'})"
        for id, part in (view.servers or {}).items()
    )
    what = "everything" if view.servers is None else ", ".join(parts) or "nothing"
    whose = [*view.callers, *(["all that no view names"] if name == config.default_view else [])]
    return f"{what}; for {', '.join(whose) or 'whoever asks for it'}"


def _check_program(spec: StdioServer) -> None:
    """Print notices only: the file may be for another machine."""
    from host.upstream.connect import CannotStart
    from host.upstream.server_secrets import ServerSecrets

    path = spec.env["PATH"].reveal() if "PATH" in spec.env else None
    problems = [] if spec.takes_client_folder or spec.cwd.is_dir() else ["bad cwd"]
    if shutil.which(spec.started_words[0], path=path) is None:
        exists = shutil.which(spec.started_words[0], os.F_OK, path)
        problems.append("not executable" if exists else "not found")
    for problem in problems:
        print(f"{spec.id}: notice: {ServerSecrets(spec).redact(str(CannotStart(spec, problem)))}", file=sys.stderr)


@click.command()
def schema() -> int:
    """Print the JSON Schema of the configuration, for editors."""
    from config import schema as config_schema

    print(json.dumps(config_schema(), indent=2))
    return DONE
