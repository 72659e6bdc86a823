#!/usr/bin/env bash
# Closing a router of jeepney under trio raises RuntimeError if two tasks wait for signals, and sometimes if one does.
#
# Packages: PyPI jeepney 0.9.0, trio 0.35.0. Needs Python 3.11 with venv. No bus: the peer is a silent socket.
#
# Expected: `async with connection.router()` may be left while tasks wait in `router.filter(...)`: the router closes
# their channels, each task gets trio.EndOfChannel, and leaves its filter. If the bus closes the connection, the
# router's task ends with trio.EndOfChannel, as it does without filters.
#
# Seen on 2026-11-28: the router closes the channels in a loop over its dictionary of filters, and lets other tasks run
# after each. A task that leaves its filter then takes it out of the dictionary, and the loop raises "RuntimeError:
# dictionary changed size during iteration" in the nursery. trio runs the tasks of a step in random order: with one
# filter it is seen in about half of all runs, with two or more in each. The error cancels the nursery, so tasks behind
# the first are cancelled instead of told. When the bus is lost, it takes the place of the error that says so.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jeepney==0.9.0 trio==0.35.0 2>/dev/null

cat >check.py <<'PY'
import socket
from collections import Counter

import trio
import trio.testing
from jeepney import MatchRule
from jeepney.io.trio import DBusConnection, DBusRouter


def leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [f"{type(error).__name__}: {error}"]


async def wait(router: DBusRouter) -> None:
    async with router.filter(MatchRule(type="signal")) as signals:
        try:
            await signals.receive()
        except trio.EndOfChannel:
            pass


async def play(filters: int, lost: bool) -> str:
    ours, theirs = socket.socketpair()
    connection = DBusConnection(trio.socket.from_stdlib_socket(ours))
    try:
        async with connection, trio.open_nursery() as nursery:
            async with connection.router() as router:
                for _ in range(filters):
                    nursery.start_soon(wait, router)
                await trio.testing.wait_all_tasks_blocked()
                if lost:
                    theirs.close()
                    await trio.testing.wait_all_tasks_blocked()
    except BaseExceptionGroup as error:
        return ", ".join(leaves(error))
    finally:
        theirs.close()
    return "no error"


for lost in (False, True):
    for filters in (0, 1, 2, 5):
        seen = Counter(trio.run(play, filters, lost) for _ in range(100))
        for text, times in sorted(seen.items()):
            share = "always" if times == 100 else "sometimes"
            print(f"{'bus lost' if lost else 'closed'}, filters: {filters}, {share}: {text}")
PY
broken='RuntimeError: dictionary changed size during iteration'
seen=$(venv/bin/python check.py)
echo "$seen"
lost='EndOfChannel: Socket closed at the other end'
[ "$seen" = "closed, filters: 0, always: no error
closed, filters: 1, sometimes: $broken
closed, filters: 1, sometimes: no error
closed, filters: 2, always: $broken
closed, filters: 5, always: $broken
bus lost, filters: 0, always: $lost
bus lost, filters: 1, sometimes: $lost
bus lost, filters: 1, sometimes: $broken
bus lost, filters: 2, always: $broken
bus lost, filters: 5, always: $broken" ]
