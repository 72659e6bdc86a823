"""Runs desktop hosts from npm with real servers behind Colonnade, and prints what came of each start: `make hosts`.

    .venv/bin/python -m tests.real.hosts [claude-code codex ...] [--starts 20]

For each host: its file with three servers, `import` with the answers of a person who takes what is recommended,
`connect --move`, then its headless runs, in each of which a model calls a tool of the next server that only reads: the
very first, and as many beside two busy loops as without; of both, every third with no host of Colonnade left to run. In
one more run it calls a tool that changes something, which a person allows in `colonnade ask`. Then `disconnect`. Exits
with 1 if a result did not reach the model, a person was asked about another call or not about that one, the host's file
is not as it was, or a process is left. A host that npm cannot install is left out and named; if that is all of them,
that fails too.

Real clock: the patience of the hosts is what is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .desk import MEMORY, Desk, DeskError, Start
from .desktop import DESKTOP_HOSTS, DesktopHost
from .model import model
from .packages import install

BY_NAME = {host.name: host for host in DESKTOP_HOSTS}


def kinds(starts: int) -> list[str]:
    """The kinds of so many starts, in their order. About half of them are beside busy loops."""
    quiet, busy = (starts - 1) // 2, starts // 2
    return [
        "first",
        *("cold" if number % 3 == 2 else "running" for number in range(quiet)),
        *("cold, busy" if number % 3 == 2 else "running, busy" for number in range(busy)),
    ]


@dataclass
class Row:
    """The outcome of one host."""

    host: DesktopHost
    starts: Sequence[Start] = ()
    file: str = "-"
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        through = sum(not start.problem for start in self.starts)
        joined = sum(start.hosts > 0 for start in self.starts)
        return (
            f"| {self.host.name} | {self.host.package.rpartition('@')[2]} | {len(self.starts)} | {joined} | {through} "
            f"| {self.file} | {'; '.join(' '.join(each.split())[:300] for each in self.problems)} |"
        )


HEAD = (
    "| host | version | starts | with a running host | calls that went through | its file | misses |\n"
    "|---|---|---|---|---|---|---|"
)


def run(host: DesktopHost, starts: int) -> Row:
    """All that is to be done with one host."""
    row = Row(host)
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, model() as endpoint:
        desk = Desk(host, Path(folder), endpoint)
        row.starts = desk.starts
        try:
            desk.set_up()
            for number, kind in enumerate([*kinds(starts), "asked"], 1):
                start = desk.start_asked() if kind == "asked" else desk.start(kind)
                if start.problem:
                    row.problems.append(f"{number} ({kind}): {start.problem}")
                print(f"{host.name} {number} {kind}: {start.problem or 'ok'}, {start.seconds:.1f} s", flush=True)
            row.file = desk.give_back()
        except (DeskError, AssertionError) as problem:
            row.problems.append(str(problem))
        finally:
            desk.end_hosts()
            row.problems += [f"left behind: {command}" for command in desk.left_behind()]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="Run desktop hosts with real servers behind Colonnade.")
    parser.add_argument("hosts", nargs="*", help=f"those to run of {', '.join(BY_NAME)}; else all")
    parser.add_argument("--starts", type=int, default=20, help="of each host")
    options = parser.parse_args()
    if unknown := set(options.hosts) - BY_NAME.keys():
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(BY_NAME)}")
    wanted = [BY_NAME[name] for name in options.hosts or BY_NAME]
    missing = install([MEMORY, *(host.package for host in wanted)])
    for package, problem in missing.items():
        print(f"left out: {package}: {problem}")
    if MEMORY in missing:
        return 1
    rows = [run(host, options.starts) for host in wanted if host.package not in missing]
    print("", HEAD, *rows, sep="\n")
    return int(not rows or any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
