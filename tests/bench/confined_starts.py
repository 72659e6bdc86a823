"""The processor time of a start in a sandbox, beside one without: of everything below the keeper, from its order to the
end of the program, which has answered once. The work of the host that makes the plan is counted, too."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from config.sandbox import Sandbox
from host.wire.process import open_keeper
from tests.bench.build import made
from tests.bench.contenders import STDIO, Upstream
from tests.bench.figures import Figure
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.host.sandbox.kit import planned
from tests.kit.kernel import has_namespaces
from tests.real.clients import initialize
from tests.real.running import BIN

MOST = 1.5
"""How many times the processor time of a start without a sandbox one may take."""
NODE = """
require("node:readline").createInterface({input: process.stdin}).on("line", (line) => {
  const {id, params} = JSON.parse(line);
  const result = {protocolVersion: params.protocolVersion, capabilities: {}, serverInfo: {name: "n", version: "1"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id, result}));
});
"""


def confined_starts(count: int) -> list[Figure]:
    """So many pairs for each program; none where namespaces are refused. The compiled one does nothing else, so what it
    takes is what a sandbox costs."""
    if not has_namespaces():
        return []
    python, unit = str(BIN / "mcp-server-time"), "times one without a sandbox"
    figures = [Figure("start of mcp-server-time in a sandbox", unit, MOST, _ratios(count, [python], 1))]
    if node := shutil.which("node"):
        figures.append(
            Figure("start of a bare Node.js in a sandbox", unit, MOST, _ratios(count, [node, "-e", NODE], 5))
        )
    bare = [*made("upstream"), *Upstream(STDIO).arguments]
    more = [(confined - plain) * 1000 for plain, confined in _pairs(count, bare, 10)]
    scale = REFERENCE / yardstick()
    return [*figures, Figure("what a sandbox adds to a start", "ms of processor time", None, [x * scale for x in more])]


def _ratios(count: int, words: Sequence[str], starts: int) -> list[float]:
    return [confined / plain for plain, confined in _pairs(count, words, starts)]


def _pairs(count: int, words: Sequence[str], starts: int) -> list[tuple[float, float]]:
    """The seconds of a start without a sandbox and in one, so many times; each is the mean of some starts."""
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as name:
        empty = _seconds(Path(name), words, 0, confined=False)

        def seconds(*, confined: bool) -> float:
            return (_seconds(Path(name), words, starts, confined=confined) - empty) / starts

        return [(seconds(confined=False), seconds(confined=True)) for _ in range(count)]


def _seconds(folder: Path, words: Sequence[str], starts: int, *, confined: bool) -> float:
    """The time of a keeper with so many starts, one after another, and of the host for them."""
    before = _spent()
    trio.run(_start_all, folder, words, starts, confined)
    return _spent() - before


def _spent() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def _start_all(folder: Path, words: Sequence[str], starts: int, confined: bool) -> None:
    # Without a sandbox it gets the same variables: some cost a program more than all else.
    env, sandbox = await planned(folder, tuple(words), Sandbox())
    async with open_keeper() as keeper:
        for _ in range(starts):
            if confined:
                env, sandbox = await planned(folder, tuple(words), Sandbox())
            plan = sandbox if confined else None
            async with keeper.open_child(words, env=env, cwd=str(folder), grace=5.0, sandbox=plan) as child:
                assert bool(child.means) is confined
                os.write(child.stdin_fd, initialize("2025-11-25") + b"\n")
                answer = b""
                while b"\n" not in answer:
                    piece = await child.stdout.receive_some()
                    assert piece, "it ended before it answered"
                    answer += piece
                child.close_stdin()
                await child.wait()
