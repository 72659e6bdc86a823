"""The processor time of `colonnade serve --stdio` until its client has the lists, beside that of an empty Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from host.relay import SUFFIX
from tests.bench.build import made
from tests.bench.contenders import STDIO, Target, Upstream
from tests.bench.figures import Figure
from tests.bench.lanes import COLONNADE
from tests.bench.processes import pause, serving, spent
from tests.bench.rounds import SETTLE
from tests.real.clients import initialize
from tests.real.running import COLONNADE as PROGRAM
from tests.real.running import until

MOST = 4.0
"""How many times the processor time of `python -c pass` a relay may take, with its share of the host."""
UPSTREAM = Upstream(STDIO, servers=10, tools=10)
_ASKED = (
    initialize("2025-11-25"),
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
    b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}',
)


UNIT = "times python -c pass"


def relay_starts(count: int) -> list[Figure]:
    """Until `tools/list` is answered: relays before a running host that knows the lists of its servers, and hosts of
    their own that know them too. Each start is followed by one of Python. There are four times as many relays, of which
    each takes less."""
    command = [*made("upstream"), *UPSTREAM.arguments]
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as name:
        folder = Path(name)
        start = COLONNADE.start(Target(UPSTREAM, command), folder)
        environment = {**os.environ, **start.environment}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        relay = [PROGRAM, "serve", "--stdio", start.command[-1]]
        with serving(start.command, folder, environment=start.environment) as host:
            # Before, a relay would start another host.
            until(lambda: list(folder.glob(f"state/run/*{SUFFIX}")), "the host serves relays")
            while _client(relay, environment)[1] != UPSTREAM.servers * UPSTREAM.tools:
                pause(0.1)  # until the host has read all lists

            def beside_host() -> float:
                before = spent(host.pid, command[0])
                seconds = _known(relay, environment)
                pause(SETTLE)
                return seconds + spent(host.pid, command[0]).since(before)

            relays = [_ratio(beside_host, environment) for _ in range(4 * count)]
        own = [_ratio(lambda: _known([*relay, "--own"], environment), environment) for _ in range(count)]
    return [
        Figure("serve --stdio before 10 known servers", UNIT, MOST, relays),
        Figure("serve --stdio --own before 10 known servers", UNIT, None, own),
    ]


def _ratio(measure: Callable[[], float], environment: Mapping[str, str]) -> float:
    seconds = measure()
    empty = subprocess.Popen([sys.executable, "-c", "pass"], env=environment, stdin=subprocess.DEVNULL)
    return seconds / _waited(empty)


def _known(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """As `_client`, for servers whose lists are all known."""
    seconds, tools = _client(command, environment)
    assert tools == UPSTREAM.servers * UPSTREAM.tools, f"{command}: {tools} tools"
    return seconds


def _client(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, int]:
    """Start a program, open a session, list the tools and leave: the seconds of processor time of the program, and how
    many tools there are."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        tools = 0
        for line in _ASKED:
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            while b'"id"' in line and "id" not in (answer := json.loads(process.stdout.readline())):
                pass  # a notification
            tools = len(answer["result"].get("tools", ()))
    return _waited(process), tools


def _waited(process: subprocess.Popen[bytes]) -> float:
    """The seconds of processor time of a program that ends."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
