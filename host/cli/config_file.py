"""The commands about a configuration file, which start nothing: `check`, `schema`."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import click

from host.cli.common import FILE, count_servers, find_config, load_config
from host.cli.exit_codes import DONE

if TYPE_CHECKING:
    from config import StdioServer


@click.command()
@click.argument("file", type=FILE, required=False)
def check(file: str | None) -> int:
    """Validate a configuration file and start nothing.

    Without FILE: ./colonnade.yaml, or else ~/.config/colonnade/colonnade.yaml.
    """
    file = file or find_config()
    config = load_config(file)
    from config import StdioServer
    from host.admin.warnings import warnings_of

    for spec in config.servers.values():
        print(f"{spec.id}: {spec.describe()}" + (" (disabled)" if spec.disabled else ""))
        if isinstance(spec, StdioServer) and not spec.disabled:
            _check_program(spec)
            for warning in warnings_of(spec):
                print(f"{spec.id}: notice: {warning}", file=sys.stderr)
    print(f"{file}: ok, {count_servers(config)}")
    return DONE


def _check_program(spec: StdioServer) -> None:
    """Print notices only: the file may be for another machine."""
    if shutil.which(spec.program.reveal(), path=spec.env["PATH"].reveal() if "PATH" in spec.env else None) is None:
        print(f"{spec.id}: notice: the program {spec.program} is not found here", file=sys.stderr)
    if not spec.cwd.is_dir():
        print(f"{spec.id}: notice: its folder (cwd) is not found here", file=sys.stderr)


@click.command()
def schema() -> int:
    """Print the JSON Schema of the configuration, for editors."""
    from config import schema as config_schema

    print(json.dumps(config_schema(), indent=2))
    return DONE
