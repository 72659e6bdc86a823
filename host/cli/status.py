"""The command `status`: the health of the running hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from host.cli.common import Selection, counted, selection_options
from host.cli.exit_codes import DONE
from host.cli.terminal import Terminal, printable


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list with an object for each host.")
@selection_options
def status(selection: Selection, as_json: bool) -> int:
    """Show the health of the running host.

    Its address, its servers, what waits for a person, and its memory. With --config FILE the host of this
    configuration, otherwise all that run. The exit code is 3 if none runs.
    """
    from host.relay import log_path

    scope = selection.scope()
    targets = scope.running()
    hosts = [target.host.get("status") for target in targets]
    if as_json:
        print(json.dumps(hosts, indent=2))
        return DONE
    terminal = Terminal(sys.stdout)
    for number, (target, host) in enumerate(zip(targets, hosts, strict=True)):
        if number:
            print()
        log = log_path(str(scope.state.path), target.config) if target.host.is_in_background else ""
        _show(terminal, host, target.starter, log)
    return DONE


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
    if host["confirmations"]:
        lines["confirmations"] = f"{host['confirmations']} waiting (colonnade ask)"
    if host["held"]:
        lines["definitions"] = f"{host['held']} held (colonnade definitions)"
    if host["waiting_changes"]:
        lines["changes"] = f"{counted(len(host['waiting_changes']), 'change')} of the file waiting (colonnade reload)"
    for label, text in lines.items():
        print(f"  {label + ':':<15} {text}")
    for change in host["waiting_changes"]:
        print(f"  {'':<15} {printable(change)}")
    for problem in host["problems"]:
        print(f"  problem:        {printable(problem)}")
    for server in servers:
        print(f"  {server['id']:<20} {terminal.state(server['state'])} {'; '.join(describe_connection(server))}")


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
