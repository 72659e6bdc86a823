"""The commands about the servers of a running host: `logs`, `restart`, `enable`, `disable`, `install`, and `reload`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, is_confirmed, selection_options
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.names import SERVER
from host.cli.terminal import Terminal, printable

if TYPE_CHECKING:
    from host.cli.admin_client import RunningHost
    from host.storage.directory import State

INSTALL_TIMEOUT = 1200.0
"""Seconds that a host may take to install the packages of a server."""
FOLLOW_INTERVAL = 0.5
"""Seconds between two looks at the lines of a server that is followed."""


@click.command()
@click.argument("server", metavar="[SERVER]", required=False, type=SERVER)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until interrupted.")
@selection_options
def logs(selection: Selection, server: str | None, follow: bool) -> int:
    """Show what servers wrote to their standard error.

    Without SERVER that of all servers, each line with the name of its server. Lines with `stdout:` were written to its
    standard output, but are no messages. Lines with neither `stderr:` nor `stdout:` are Colonnade's own, on what the
    sandbox of a server refused. The running host keeps the last 200 lines of each server. Secrets of the configuration
    are replaced by ***.
    """
    targets = selection.scope().running() if server is None else _targets(selection, server)
    last: Counter[tuple[int, str]] = Counter()
    while True:
        for target in targets:
            lines = [
                (each["t"], each["n"], id, each)
                for id in (target.servers() if server is None else [server])
                for each in target.post("servers/log", server=id, after=last[target.pid, id])["lines"]
            ]
            if len(targets) > 1 and (lines or not follow):
                print(f"Process {target.pid}:", flush=follow)
            for t, number, id, each in sorted(lines, key=itemgetter(0, 2, 1)):
                told = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t)) + (f" {id}:" if server is None else "")
                # A program may write what looks like a line of ours, and have a person permit what it wants.
                mark = "" if each["stream"] == "sandbox" else f"{each['stream']}: "
                print(f"{told} {mark}{each['line']}", flush=follow)
                last[target.pid, id] = number
            if not follow and not lines:
                said = "No server wrote anything" if server is None else f"{server} wrote nothing"
                print(f"{said} to its standard error.", file=sys.stderr)
        if not follow:
            return DONE
        time.sleep(FOLLOW_INTERVAL)  # noqa: TID251 - no event loop runs here


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@selection_options
def restart(selection: Selection, server: str) -> int:
    """Restart a server of the running host.

    Calls in progress have some seconds to end. A server that failed is tried again at once.
    """
    return _control(selection, server, "restart")


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@selection_options
def enable(selection: Selection, server: str) -> int:
    """Take a disabled server in again.

    This holds until the host reads its configuration again; then the file decides. The file is not changed.
    """
    return _control(selection, server, "enable")


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@selection_options
def disable(selection: Selection, server: str) -> int:
    """Stop a server and leave it out.

    This holds until `colonnade enable`, `colonnade reload`, SIGHUP or a restart of the host. Saving the file does not
    take the server in. The file is not changed.
    """
    return _control(selection, server, "disable")


@click.command()
@click.argument("server", metavar="SERVER", type=SERVER)
@selection_options
def install(selection: Selection, server: str) -> int:
    """Install again what a confined server runs by npx or uvx.

    So it gets the newest version that its command permits. If that is another one than before, or other files, the
    server is held until you approve it. Without a network, what is installed stays.
    """
    targets = [replace(each, timeout=INSTALL_TIMEOUT) for each in _targets(selection, server)]
    for target in targets[:1]:  # hosts of one configuration share what is installed
        print(target.post("servers/control", server=server, action="install")["done"])
    for target in targets[1:]:
        print(target.post("servers/control", server=server, action="restart")["done"])
    return DONE


@click.command()
@click.option("-y", "--yes", is_flag=True, help="Apply changes that wait for a person without asking.")
@selection_options
def reload(selection: Selection, yes: bool) -> int:
    """Have the running hosts read their configuration again.

    All changes are applied, also those that wait for a person. On a terminal, those are shown first, with their
    differences, and only what was shown is applied. An invalid file changes nothing; its first mistake is printed.
    """
    targets = selection.scope().running()
    code = DONE
    for target in targets:
        try:
            shown = None
            if not yes and sys.stdin.isatty() and (changes := _waiting(target)):
                if not _confirmed(target.config, changes):
                    code = FAILED
                    continue
                shown = changes[0]["id"]
            _reload(target, shown)
        except CommandFailed as problem:
            print(f"colonnade: {target.config}: {problem}", file=sys.stderr)
            code = FAILED
    return code


@dataclass(frozen=True)
class Served:
    """Whether hosts that run serve a file, and its servers with changes that wait for a reload there. `problem`: why
    that is not known of all these hosts."""

    runs: bool = False
    waiting: frozenset[str] = frozenset()
    problem: str = ""


def offer_reload(state: State, file: Path, new: Collection[str] = (), *, asks: bool) -> Served:
    """Have the hosts that serve a file put into effect what waits there, if the person at the terminal says yes. What
    comes of it.

    Args:
        new: the servers that the person has seen just now, so they are not shown again.
    """
    from host.cli.targets import DecisionScope

    targets = DecisionScope(state, file).find()
    waiting: set[str] = set()
    last = ""
    for target in targets:
        try:
            if not (changes := _waiting(target)):
                continue
            ids = {change["server"] for change in changes}
            question = f"A Colonnade runs with this file. Have it serve {', '.join(sorted(ids))} now?"
            if asks and (is_confirmed(question) if ids.issubset(new) else _confirmed(target.config, changes)):
                _reload(target, changes[0]["id"])
            else:
                waiting |= ids
        except CommandFailed as problem:
            last = str(problem)
    return Served(bool(targets), frozenset(waiting - {""}), last)


def _waiting(target: RunningHost) -> Sequence[Mapping[str, Any]]:
    """The changes in the file of a running host that wait for a person, as it is by now."""
    target.post("configuration/reload", apply=False)
    changes: Sequence[Mapping[str, Any]] = target.state()["configuration"]
    return changes


def _reload(target: RunningHost, shown: str | None) -> None:
    print(f"{target.config}: {target.post('configuration/reload', shown=shown)['done']}")
    for row in target.state()["servers"]:
        for rule in row["unmatched"]:
            print(f"  {row['id']}: the rule {printable(rule)} matches nothing that it offers")


def _confirmed(config: str, changes: Sequence[Mapping[str, Any]]) -> bool:
    print(f"{config}: these changes permit more, or change what is started, given to a program or reached:")
    for change in changes:
        name = f"{change['server']}: " if change["server"] else ""
        print(f"\n  {name}{'; '.join(change['widens'])}")
        for line in Terminal(sys.stdout).difference(change["diff"]):
            print(f"      {line}")
    print()
    return is_confirmed("Apply them?")


def _control(selection: Selection, server: str, action: str) -> int:
    targets = _targets(selection, server)
    for target in targets:
        print(target.post("servers/control", server=server, action=action)["done"])
    return DONE


def _targets(selection: Selection, server: str) -> list[RunningHost]:
    """The only running host, or those with this server: several can serve the same configuration.

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
