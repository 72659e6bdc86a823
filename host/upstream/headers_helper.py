"""The helper of a server at a URL: a program that prints the headers for one connection, for instance a fresh token.

It runs as the servers do, below the keeper, and prints one JSON object of texts. Its output reaches no log.
"""

from __future__ import annotations

import json

import trio

from config import HttpServer, Secret
from host.wire.link import LinkLost
from host.wire.process import Child, Keeper, SpawnError, child_environment

TIMEOUT = 10.0
MAX_OUTPUT = 64 * 1024
_GRACE = 0.5


class HeadersHelperFailed(LinkLost):
    """The helper printed no headers. The text quotes nothing of its output."""


async def run_headers_helper(spec: HttpServer, keeper: Keeper) -> dict[str, Secret]:
    """The headers that the helper of the server prints.

    Raises:
        HeadersHelperFailed: it cannot be started, takes too long, fails, or prints anything else.
    """
    assert spec.headers_helper is not None
    argv = [word.reveal() for word in spec.headers_helper]
    output = bytearray()
    try:
        with trio.fail_after(TIMEOUT):
            async with keeper.open_child(argv, env=child_environment({}), cwd=str(spec.folder), grace=_GRACE) as child:
                child.close_stdin()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_discard, child)
                    await _collect(child, output)
                    nursery.cancel_scope.cancel("its output has ended, or is too long")
                # A helper that prints too much blocks until its block ends.
                status = 0 if len(output) > MAX_OUTPUT else await child.wait()
    except SpawnError as problem:
        raise HeadersHelperFailed(f"its headers_helper could not be started: {problem}") from problem
    except trio.TooSlowError:
        raise HeadersHelperFailed(f"its headers_helper took longer than {TIMEOUT:.0f} s") from None
    if len(output) > MAX_OUTPUT:
        raise HeadersHelperFailed(f"its headers_helper printed more than {MAX_OUTPUT // 1024} KiB")
    if status != 0:
        how = f"exited with status {status}" if status > 0 else f"was ended by signal {-status}"
        raise HeadersHelperFailed(f"its headers_helper {how}")
    return _headers(bytes(output))


async def _collect(child: Child, output: bytearray) -> None:
    while len(output) <= MAX_OUTPUT and (data := await child.stdout.receive_some()):
        output += data


async def _discard(child: Child) -> None:
    while await child.stderr.receive_some():
        pass


def _headers(output: bytes) -> dict[str, Secret]:
    try:
        values = json.loads(output)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise HeadersHelperFailed("its headers_helper printed no JSON object of texts")
    return {name: Secret(value) for name, value in values.items()}
