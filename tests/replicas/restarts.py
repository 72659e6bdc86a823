"""One process that is killed and told to end, in turns, and started again, while clients use it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import trio

from .book import Book, Ending, Outage
from .clients import PATIENCE, HttpClient, Load, SdkClient, SessionClient, StatelessClient
from .process import Served, judge, ledger, person, until

RESTARTS = 100
UP = 1.5
"""Seconds of load between two restarts, at least."""
HEARS = 10.0
"""Seconds in which each client must hear of an update after a restart."""


async def restarts(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is RESTARTS restarts."""
    book, draw = Book(), random.Random(seed)
    with ledger(folder) as server:
        host = Served(folder, {"book": server}, drain="20s", console="off", ask={"timeout": "5s"})
        load = Load(host.url, book, draw)
        host.start()
        try:
            await host.wait_listening()
            with person(host.state, book):
                async with clients_at_work(load, 12, 8, 4):
                    for number in range(max(2, round(RESTARTS * size))):
                        how = list(Ending)[number % 2]
                        await trio.sleep(UP + draw.random())
                        await _restart(host, load, how)
                        await all_hear(load, server["url"])
                        if number % 10 == 9:
                            print(f"  {number + 1} restarts, {len(book.attempts)} calls", flush=True)
        finally:
            host.close()
    judge(book, folder)
    return book


async def _restart(host: Served, load: Load, how: Ending) -> None:
    outage = await end_amid_load(host, load, how)
    host.start()
    await host.wait_listening()
    outage.back = trio.current_time() + 1
    load.quiet = False


async def end_amid_load(process: Served, load: Load, how: Ending) -> Outage:
    """End a process. The caller says when the outage is over (`back`), and that the load need not be quiet any more."""
    load.quiet = how is Ending.KILLED
    await until(lambda: not load.quiet or not any(each.is_busy for each in load.sdks), "no call of the SDK's", HEARS)
    outage = Outage(how, trio.current_time(), float("inf"))
    load.book.outages.append(outage)
    status = await process.end(how)
    if how is Ending.TOLD and status:
        load.book.blame(f"a process ended with {status}: {process.errors[-500:]}")
    return outage


async def all_hear(load: Load, server: str) -> None:
    """Have each client hear of an update, once all streams are open again."""

    def deaf() -> list[str]:
        return [name for name in sorted(load.members) if load.heard.get(name, 0) == before.get(name, 0)]

    before = dict(load.heard)
    async with httpx.AsyncClient() as http:
        with trio.move_on_after(HEARS):
            # Each update goes to all clients: one at each look would keep them busy while they come back.
            await until(lambda: load.listening >= load.members, "all listen", 2 * HEARS)
            while deaf():
                await http.post(server.replace("/mcp", "/touch"))
                await trio.sleep(1)
            load.book.count["restarts after which all heard of an update"] += 1
            return
    load.book.count["deaf after a restart"] += len(deaf())
    now = trio.current_time()
    load.book.doubt(f"heard of no update within {HEARS:g} s after a restart: {deaf()}", now - HEARS, now)


@asynccontextmanager
async def clients_at_work(
    load: Load,
    sessions: int,
    stateless: int,
    sdks: int,
    others: Mapping[str, type[SdkClient] | type[HttpClient]] | None = None,
) -> AsyncIterator[None]:
    """The clients, calling, for the block; each has opened its session, those of the SDK one alone until the end.

    Args:
        others: more of them, which are those of the SDK in turns of both eras.
    """
    trusted = httpx.create_ssl_context()
    load.sdks = made = [SdkClient(f"sdk{n}", load, "legacy" if n % 2 else "auto") for n in range(sdks)]
    working = set[str]()

    async def work(client: HttpClient) -> None:
        await client.run()
        working.remove(client.name)

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        kinds: dict[str, type[HttpClient]] = {f"session{n}": SessionClient for n in range(sessions)}
        kinds |= {f"stateless{n}": StatelessClient for n in range(stateless)}
        for name, kind in (others or {}).items():
            if issubclass(kind, SdkClient):
                made.append(kind(name, load, "legacy" if len(made) % 2 else "auto"))
            else:
                kinds[name] = kind
        ours = []
        for name, its in kinds.items():
            # Each has its own connections: a common pool looks through those of all at each request.
            http = httpx.AsyncClient(verify=trusted, trust_env=False, timeout=60)
            ours.append(its(name, load, await stack.enter_async_context(http)))
        for client in ours:
            await client.open()
            nursery.start_soon(client.listen)
            working.add(client.name)
            nursery.start_soon(work, client)
        for sdk in made:
            opened = trio.Event()
            nursery.start_soon(sdk.run, opened.set)
            await opened.wait()
        load.members = {client.name for client in ours}
        await until(lambda: load.listening >= load.members, "all listen", HEARS)
        yield
        load.stopping = True
        await until(lambda: not working, "all calls have ended", PATIENCE)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    for sdk in made:
        if sdk.mode == "legacy" and sdk.opened != 1:
            load.book.blame(f"{sdk.name} opened {sdk.opened} sessions")
        load.book.count["calls of the SDK's clients"] += sdk.calls
