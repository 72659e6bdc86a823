"""The command `grants`: lasting answers to confirmations, and their end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from host.cli.common import Selection, selection_options
from host.cli.exit_codes import DONE, FAILED
from host.cli.names import GRANT

if TYPE_CHECKING:
    from host.cli.targets import DecisionTarget


@click.group(invoke_without_command=True)
@selection_options
@click.pass_context
def grants(context: click.Context, selection: Selection) -> int:
    """List or revoke grants.

    A grant allows calls for longer than once. Without a command: list them.
    """
    if context.invoked_subcommand is not None:
        return DONE
    rows = [grant for target in selection.scope().all() for grant in target.state()["grants"]]
    for grant in rows:
        until = "" if grant["expires"] is None else f" until {time.ctime(grant['expires'])}"
        unusable = "" if grant["live"] else f"; not usable: {grant['why']}"
        print(
            f"{grant['id']}  {grant['server']}: {grant['kind']} {grant['name']} for {grant['caller']}: "
            f"{grant['scope']}{until}, arguments {grant['arguments']} (by {grant['by']}{unusable})"
        )
    if not rows:
        print("There are no grants.")
    return DONE


@grants.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=GRANT)
@selection_options
def revoke(selection: Selection, ids: tuple[str, ...]) -> int:
    """Revoke grants."""
    scope = selection.scope()
    from host.sanitize import visible

    code = DONE
    for id in ids:
        if not any(_revoke(target, id) for target in scope.all()):
            print(f"colonnade: there is no grant {visible(id)}", file=sys.stderr)
            code = FAILED
    return code


def _revoke(target: DecisionTarget, id: str) -> bool:
    """Whether the grant was there."""
    if all(grant["id"] != id for grant in target.state()["grants"]):
        return False
    print(f"{id}: {target.post('grants/revoke', id=id)['done']}")
    return True
