"""The command `stop`: the end of running hosts."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from host.cli.common import Selection, counted, is_confirmed, selection_options
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.terminal import announced

if TYPE_CHECKING:
    from host.cli.admin_client import RunningHost
    from host.storage.directory import State

STOP_TIMEOUT = 20.0
"""Seconds in which a host must end, its servers included, once what was under way has had its time."""
_POLL_INTERVAL = 0.05
"""Seconds between two looks whether it has."""


@click.command()
@click.option("-y", "--yes", is_flag=True, help="End also a host that no relay has started, without asking.")
@selection_options
def stop(selection: Selection, yes: bool) -> int:
    """End the host in the background.

    Its servers end with it. Relays that are connected start another one at once. A host that no relay has started
    (`serve FILE`, `serve --stdio --own`) is ended only if you confirm it, or with --yes. Without --config, there must
    be one configuration only that a host in the background serves.
    """
    scope = selection.scope()
    targets = scope.running()
    if not yes and any(each.is_in_background for each in targets):
        targets = [each for each in targets if each.is_in_background]
    if len(configs := {each.config: None for each in targets}) > 1:
        raise CommandFailed(f"several hosts run; say which one with --config FILE: {'; '.join(configs)}")
    ended = [_stop(each, scope.state, yes=yes) for each in targets]
    return DONE if all(ended) else FAILED


def _stop(target: RunningHost, state: State, *, yes: bool) -> bool:
    """Whether the host has ended."""
    if not (yes or target.is_in_background):
        text = f"{target.config}: no relay started this host ({target.process})"
        if not (sys.stdin.isatty() and is_confirmed(f"{text}. End it?")):
            print(f"colonnade: {text}; --yes ends it", file=sys.stderr)
            return False
    status = target.get("status")
    clients = status["clients"]
    os.kill(target.pid, signal.SIGTERM)
    deadline = time.monotonic() + status.get("drain", 0.0) + STOP_TIMEOUT
    with announced(f"for process {target.pid} to end"):
        while _is_running(target, state):
            if time.monotonic() > deadline:
                print(f"colonnade: {target.config}: process {target.pid} has not ended", file=sys.stderr)
                return False
            time.sleep(_POLL_INTERVAL)  # noqa: TID251 - no event loop runs here
    said = f"{target.config}: process {target.pid} has ended"
    if clients and target.is_in_background:
        said += f"; the relays of {counted(clients, 'client')} start another one"
    print(said)
    return True


def _is_running(target: RunningHost, state: State) -> bool:
    """Whether the host holds its record, which it does until its servers have ended."""
    from host.wire.descent import running_hosts

    return any(each.pid == target.pid for each in running_hosts(state.hosts))
