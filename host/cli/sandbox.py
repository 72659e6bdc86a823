"""The command `sandbox`: what confines a server's program, and the choice about one that ran before without."""

from __future__ import annotations

import click

from host.cli.common import Selection, selection_options
from host.cli.exit_codes import DONE
from host.cli.names import SERVER


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@click.argument("choice", metavar="[strict|off]", required=False, type=click.Choice(["strict", "off"]))
@selection_options
def sandbox(selection: Selection, server: str, choice: str | None) -> int:
    """Show what confines the program of a server, or choose.

    There is something to choose about a program with `trust: untrusted` that ran before such programs were confined,
    and has no `sandbox` in the file: strict confines it from now on, off lets it run as before until its command is
    another one. About all others the file says it.
    """
    from host.cli.targets import only

    targets = selection.scope().all()
    target = only(targets, server)
    if choice is not None:
        print(target.post("servers/sandbox", server=server, sandbox=choice)["done"])
        return DONE
    print(f"{server}: {target.post('definitions/list', server=server)['sandbox'] or 'it is no program'}")
    return DONE
