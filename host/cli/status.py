"""The command `status`: the health of the running hosts."""

from __future__ import annotations

import io
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, counted, selection_options
from host.cli.exit_codes import DONE, CommandFailed
from host.cli.terminal import Terminal, columns, printable

if TYPE_CHECKING:
    from host.cli.admin_client import RunningHost


WATCH_INTERVAL = 2.0
"""Seconds between two looks of --watch."""
_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a list with an object for each host; with --watch, in a line."
)
@click.option(
    "--watch",
    is_flag=False,
    flag_value=WATCH_INTERVAL,
    type=click.FloatRange(min=0.1),
    metavar="[SECONDS]",
    help="Look again every so many seconds (2), until interrupted.",
)
@selection_options
def status(selection: Selection, as_json: bool, watch: float | None) -> int:
    """Show the health of the running host.

    Its address, its servers, what waits for a person, and its memory. With --config FILE the host of this
    configuration, otherwise all that run. The exit code is 3 if none runs.

    Percentiles of the durations of calls (p50, p95) are those of the last hour, and at most a fifth too high.
    """
    scope = selection.scope()
    terminal = Terminal(sys.stdout)
    while True:
        targets = scope.running() if watch is None else scope.find()
        told = [(target, host) for target in targets if (host := _ask(target, is_repeated=watch is not None))]
        if as_json:
            print(json.dumps([host for _, host in told], indent=2 if watch is None else None), flush=True)
        else:
            out = io.StringIO()
            with redirect_stdout(out):
                _show_all(terminal, told, str(scope.state.path))
            _print(out.getvalue(), terminal, is_repeated=watch is not None)
        if watch is None:
            return DONE
        time.sleep(watch)  # noqa: TID251 - no event loop runs here


def _ask(target: RunningHost, *, is_repeated: bool) -> Mapping[str, Any] | None:
    """The status of a host. None if it cannot be asked and will be looked for again, which is said."""
    try:
        status: Mapping[str, Any] = target.get("status")
    except CommandFailed as problem:
        if not is_repeated:
            raise
        print(f"colonnade: the host of process {target.pid}: {problem}", file=sys.stderr)
        return None
    return status


def _print(text: str, terminal: Terminal, *, is_repeated: bool) -> None:
    """Once; or on a terminal in place of the former text, as much as fits."""
    if is_repeated and terminal.width is not None:
        size = shutil.get_terminal_size()  # it may have changed
        text = _CLEAR + _fitting(text, size.columns, size.lines - 1)
    print(text, end="" if not is_repeated or terminal.width is not None else "\n", flush=True)


def _fitting(text: str, width: int, height: int) -> str:
    """The first lines, which take `height` rows of a terminal at most; the last row says how many do not fit."""
    lines = text.splitlines(keepends=True)
    taken = list(accumulate(max(1, -(-columns(click.unstyle(line.rstrip("\n"))) // width)) for line in lines))
    if taken[-1] <= height:
        return text
    shown = sum(rows < height for rows in taken)
    return "".join(lines[:shown]) + f"… {counted(len(lines) - shown, 'more line')}\n"


def _show_all(terminal: Terminal, told: Sequence[tuple[RunningHost, Mapping[str, Any]]], state: str) -> None:
    from host.relay import log_path

    if not told:
        print("No host of yours runs.")
    for number, (target, host) in enumerate(told):
        if number:
            print()
        log = log_path(state, target.config) if target.is_in_background else ""
        _show(terminal, host, target.starter, log)


def _show(terminal: Terminal, host: Mapping[str, Any], starter: str = "", log: str = "") -> None:
    if host["stdio"]:
        where = "over standard input and output"
    else:
        where = f"at {host['endpoint']}" if host["endpoint"] else "relays, in the background"
    print(f"Colonnade {host['colonnade']} serves {where}")
    process = [f"process {host['pid']}", f"up {_duration(host['uptime'])}"]
    if (memory := host["process"]["memory"]) is not None:
        process.append(f"{_mebibytes(memory)} of memory, at most {_mebibytes(host['process']['memory_peak'])} so far")
    servers = host["servers"]
    ready = sum(server["state"] == "ready" for server in servers)
    calls = sum(server["in_flight"] for server in servers)
    lines = {
        "configuration": printable(host["config"]),
        "host": ", ".join(process),
        "servers": f"{ready} of {len(servers)} ready, {counted(calls, 'call')} in progress",
    }
    if host["stdio"] and starter:
        lines["started by"] = starter
    if not host["stdio"] and not host["endpoint"]:
        lines |= {"clients": str(host["clients"]), "ends": _end(host)}
    if log:
        lines["log"] = printable(log)
    if host.get("draining"):
        lines["drains"] = f"ends with what is under way, within {_duration(host['drain'])}"
    fleet = host.get("fleet") or {"members": ()}  # hosts of former versions do not say it
    if fleet["members"]:
        away = "" if fleet["is_current"] else ", as of the last answer of its database"
        lines["fleet"] = f"{printable(fleet['name'])}, {counted(len(fleet['members']), 'member')}{away}"
    if host.get("audit") == "stdout":
        lines["audit"] = "on its standard output"
    if host["confirmations"]:
        lines["confirmations"] = f"{host['confirmations']} waiting (colonnade ask)"
    if host["held"]:
        lines["definitions"] = f"{host['held']} held (colonnade definitions)"
    if host["waiting_changes"]:
        lines["changes"] = f"{counted(len(host['waiting_changes']), 'change')} of the file waiting (colonnade reload)"
    below = {
        "fleet": [_member(member, is_host=member["boot"] == fleet["boot"]) for member in fleet["members"]],
        "changes": [printable(change) for change in host["waiting_changes"]],
    }
    for label, text in lines.items():
        print(f"  {label + ':':<15} {text}")
        for line in below.get(label, ()):
            print(f"  {'':<15} {line}")
    for problem in host["problems"]:
        print(f"  problem:        {printable(problem)}")
    for server in servers:
        said = "; ".join([*describe_connection(server), *_traffic(server)])
        print(f"  {server['id']:<20} {terminal.state(server['state'])} {said}")


def _traffic(server: Mapping[str, Any]) -> list[str]:
    """The calls and restarts of a server since its host started, and the percentiles of the durations of its calls in
    the last hour."""
    said = []
    if server["calls"]:
        failed = f", {server['failed']} failed" if server["failed"] else ""
        if server.get("tool_errors"):  # hosts of former versions do not say it, nor what follows
            failed += f", {counted(server['tool_errors'], 'tool error')}"
        said.append(f"{counted(server['calls'], 'call')}{failed}")
    if server.get("p50_ms") is not None:
        said.append(f"p50 {server['p50_ms']:.1f} ms, p95 {server['p95_ms']:.1f} ms")
    if server.get("restarts"):
        said.append(counted(server["restarts"], "restart"))
    return said


def _member(member: Mapping[str, Any], *, is_host: bool) -> str:
    """A process of the fleet, and what is special about it."""
    said = [
        f"{member['boot']} at {member['address']}",
        member["status"],
        f"Colonnade {member['version']}",
        "this host" if is_host else f"a lease of {member['lease']:.1f} s",
        "" if member["equal_rules"] else "other servers, rules or views",
        "has decisions to take over" if member["behind"] else "",
    ]
    return printable(", ".join(text for text in said if text))


def _end(host: Mapping[str, Any]) -> str:
    """When a host in the background ends."""
    if host["ends_in"] is not None:
        return f"in {_duration(host['ends_in'])} unless a client comes, or by colonnade stop"
    if host["ends_after"] is None:
        return "by colonnade stop"
    after = f"{_duration(host['ends_after'])} after" if host["ends_after"] else "when"
    return f"{after} its last client has left, or by colonnade stop"


def describe_connection(server: Mapping[str, Any]) -> list[str]:
    """The protocol revision of a server that is ready, or why it is not; then how it serves handshake clients, if that
    is to be said."""
    said = [server["revision"] if server["state"] == "ready" else server["detail"], server.get("session")]
    return [printable(text) for text in said if text]


def _duration(seconds: float) -> str:
    """A time in its two largest units."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    units = [f"{count} {unit}" for count, unit in ((days, "d"), (hour, "h"), (minute, "min"), (second, "s")) if count]
    return " ".join(units[:2]) or "0 s"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"
