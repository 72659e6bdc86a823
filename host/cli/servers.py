"""The commands about the servers of a running host: `logs`, `restart`, `enable`, `disable`, and `reload`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, config_option, is_confirmed, pass_selection, state_option
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.names import SERVER
from host.cli.signals import allow_interrupts
from host.cli.terminal import Terminal

if TYPE_CHECKING:
    from host.cli.targets import RunningTarget

FOLLOW_INTERVAL = 0.5
"""Seconds between two looks at the lines of a server that is followed."""


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until interrupted.")
@config_option
@state_option
@pass_selection
def logs(selection: Selection, server: str, follow: bool) -> int:
    """Show what a server wrote to its standard error.

    Lines with `stdout:` were written to its standard output, but are no messages. The running host keeps the last 200
    lines of each server. Secrets of the configuration are replaced by ***.
    """
    targets = _targets(selection, server)
    allow_interrupts()
    last = dict.fromkeys(range(len(targets)), 0)
    while True:
        for n, target in enumerate(targets):
            lines = target.post("servers/log", server=server, after=last[n])["lines"]
            if len(targets) > 1 and (lines or not follow):
                print(f"Process {target.pid}:", flush=follow)
            for each in lines:
                told = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each["t"]))
                print(f"{told} {'stdout: ' if each['stream'] == 'stdout' else ''}{each['line']}", flush=follow)
                last[n] = each["n"]
            if not follow and not lines:
                print(f"{server} wrote nothing to its standard error.", file=sys.stderr)
        if not follow:
            return DONE
        time.sleep(FOLLOW_INTERVAL)  # noqa: TID251 - no event loop runs here


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@config_option
@state_option
@pass_selection
def restart(selection: Selection, server: str) -> int:
    """Restart a server of the running host.

    Calls in progress have some seconds to end. A server that failed is tried again at once.
    """
    return _control(selection, server, "restart")


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@config_option
@state_option
@pass_selection
def enable(selection: Selection, server: str) -> int:
    """Take a disabled server in again.

    This holds until the host reads its configuration again; then the file decides. The file is not changed.
    """
    return _control(selection, server, "enable")


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@config_option
@state_option
@pass_selection
def disable(selection: Selection, server: str) -> int:
    """Stop a server and leave it out.

    This holds until `colonnade enable`, `colonnade reload`, SIGHUP or a restart of the host. Saving the file does not
    take the server in. The file is not changed.
    """
    return _control(selection, server, "disable")


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Apply changes that wait for a person without asking.")
@config_option
@state_option
@pass_selection
def reload(selection: Selection, yes: bool) -> int:
    """Have the running hosts read their configuration again.

    All changes are applied, also those that permit more. On a terminal, those are shown first, with their differences,
    and only what was shown is applied. An invalid file changes nothing; its first mistake is printed.
    """
    targets = selection.scope().running()
    allow_interrupts()
    code = DONE
    for target in targets:
        try:
            shown = None
            if not yes and sys.stdin.isatty():
                target.post("configuration/reload", apply=False)
                if changes := target.state()["configuration"]:
                    if not _confirmed(target.config, changes):
                        code = FAILED
                        continue
                    shown = changes[0]["id"]
            done = target.post("configuration/reload", shown=shown)["done"]
            print(f"{target.config}: {done}")
        except CommandFailed as problem:
            print(f"colonnade: {target.config}: {problem}", file=sys.stderr)
            code = FAILED
    return code


def _confirmed(config: str, changes: Sequence[Mapping[str, Any]]) -> bool:
    print(f"{config}: these changes permit more:")
    for change in changes:
        name = f"{change['server']}: " if change["server"] else ""
        print(f"\n  {name}{'; '.join(change['widens'])}")
        for line in Terminal(sys.stdout).difference(change["diff"]):
            print(f"      {line}")
    print()
    return is_confirmed("Apply them?")


def _control(selection: Selection, server: str, action: str) -> int:
    targets = _targets(selection, server)
    allow_interrupts()
    for target in targets:
        print(target.post("servers/control", server=server, action=action)["done"])
    return DONE


def _targets(selection: Selection, server: str) -> list[RunningTarget]:
    """The only running host, or those with this server: each desktop host starts one of the same configuration.

    Raises:
        CommandFailed: none runs, or hosts of several configurations have the server.
    """
    targets = selection.scope().running()
    if len(targets) == 1:
        return targets
    having = [target for target in targets if server in target.servers()] or targets
    if len({target.config for target in having}) == 1:
        return having
    known = "; ".join(dict.fromkeys(target.config for target in having))
    raise CommandFailed(f"several hosts run; say which one with --config FILE: {known}")
