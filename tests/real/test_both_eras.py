"""One endpoint with four servers, each of one transport and one era, each asking its client in the middle of a call:
the official SDK's client must get through to all of them, whichever era it speaks itself.

The same with the official TypeScript client and the Inspector is `make eras`, since npm has to fetch them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters

from .clients import SDK_LEAKS, Guest, eventually, over_stdio, text_of
from .running import SERVERS, START, Running, listening, serving, write_config

pytestmark = SDK_LEAKS

PROGRAM = [sys.executable, str(SERVERS / "one_era.py")]
VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
"""What is spoken in the end by clients that begin so, with somebody who speaks everything."""
SAME_ERA = {"handshake": "legacy", "stateless": "auto"}
OTHER_ERA = {
    "handshake": (VERSIONS["auto"], "Unsupported protocol version|Invalid request parameters"),
    "stateless": ("legacy", "Only requests that name their protocol version are served"),
}
"""How a client begins that a server of the era does not serve, and what it is told."""
FOUR = {
    "old-pipe": "Old, over stdio",
    "old-web": "Old, over HTTP",
    "new-pipe": "New, over stdio",
    "new-web": "New, over HTTP",
}
"""The four servers and their titles."""

each_server = pytest.mark.parametrize("server", FOUR)
each_mode = pytest.mark.parametrize("mode", VERSIONS)
each_era = pytest.mark.parametrize("era", SAME_ERA)


@dataclass
class Setting:
    host: Running
    file: Path


@contextmanager
def at_urls(folder: Path) -> Iterator[dict[str, str]]:
    """The two servers over HTTP: where each is, by its era."""
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        for era in SAME_ERA:
            own = folder / era
            own.mkdir()
            _, urls[era] = stack.enter_context(listening(*PROGRAM, era, "--http", "0", folder=own))
        yield urls


@contextmanager
def serving_four(folder: Path, urls: dict[str, str]) -> Iterator[Setting]:
    """The four servers behind one host."""
    ways: dict[str, dict[str, Any]] = {
        "old-pipe": {"command": [*PROGRAM, "handshake"]},
        "old-web": {"url": urls["handshake"]},
        "new-pipe": {"command": [*PROGRAM, "stateless"]},
        "new-web": {"url": urls["stateless"]},
    }
    file = write_config(folder, {id: {**way, "title": FOUR[id]} for id, way in ways.items()})
    with serving(file, *FOUR) as host:
        yield Setting(host, file)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with at_urls(tmp_path_factory.mktemp("urls")) as urls:
        yield urls


@pytest.fixture(scope="module")
def here(urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with serving_four(tmp_path_factory.mktemp("eras"), urls) as setting:
        yield setting


def direct(era: str, transport: str, urls: dict[str, str]) -> str | StdioServerParameters:
    """A server itself, as the SDK's client is told of it."""
    if transport == "http":
        return urls[era]
    return StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], era])


def questions(day: str, guests: int, title: str | None = None) -> list[str]:
    """What a guest is asked; behind a host, by whom."""
    who = f"[{title}] " if title else ""
    return [f"{who}How many will come on {day}?", f"{who}In whose name, for {guests} on {day}?"]


@asynccontextmanager
async def connected(guest: Guest, server: str | StdioServerParameters, mode: str) -> AsyncIterator[Client]:
    """The guest's client, after it has come to speak what clients that begin so should."""
    async with guest.at(server, mode) as client:
        assert client.protocol_version == VERSIONS[mode]
        yield client


async def are_offered(client: Client, names: list[str]) -> None:
    """Wait for the tools: a host that was started just now may still be connecting."""

    async def listed() -> bool:
        return set(names) <= {tool.name for tool in (await client.list_tools()).tools}

    await eventually(listed, START)


@each_era
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_without_a_host_only_a_client_of_the_same_era_gets_through(
    urls: dict[str, str], era: str, transport: str
) -> None:
    """So that what the other tests see is the host's doing."""
    guest = Guest()
    async with connected(guest, direct(era, transport, urls), SAME_ERA[era]) as client:
        assert text_of(await client.call_tool("book_table", {"day": "Monday"})) == "Monday: a table for 4, Ada"
    assert guest.asked == questions("Monday", 4)
    other, message = OTHER_ERA[era]
    with pytest.RaisesGroup(pytest.RaisesExc(MCPError, match=message), flatten_subgroups=True, allow_unwrapped=True):
        async with guest.at(direct(era, transport, urls), other) as client:
            await client.list_tools()


@each_server
@each_mode
async def test_every_server_asks_a_client_of_either_era_over_http(here: Setting, mode: str, server: str) -> None:
    """Two questions one after the other, the second made of the first one's answer, and each says which server asks
    (rule 71, rule 73, rule 79, rule 80)."""
    guest = Guest(guests=7)
    async with connected(guest, here.host.url, mode) as client:
        result = await client.call_tool(f"{server}__book_table", {"day": "Friday"})
        assert text_of(result) == "Friday: a table for 7, Ada"
        assert text_of(await client.call_tool(f"{server}__add", {"a": 2, "b": 3})) == "5"
    assert guest.asked == questions("Friday", 7, FOUR[server])


@each_mode
async def test_every_server_asks_a_client_of_either_era_over_stdio(here: Setting, mode: str) -> None:
    """The same over standard input and output (rule 71, rule 73, rule 79, rule 80)."""
    guest = Guest(guests=3)
    async with connected(guest, over_stdio(here.file), mode) as client:
        await are_offered(client, [f"{server}__book_table" for server in FOUR])
        for server in FOUR:
            guest.asked.clear()
            result = await client.call_tool(f"{server}__book_table", {"day": "Sunday"})
            assert text_of(result) == "Sunday: a table for 3, Ada"
            assert guest.asked == questions("Sunday", 3, FOUR[server])


@each_server
@each_mode
async def test_a_question_that_is_declined_comes_back_as_declined(here: Setting, mode: str, server: str) -> None:
    """The first is answered, the second is not: the call still ends as the server wants it to."""
    guest = Guest(guests=2, declines="name")
    async with connected(guest, here.host.url, mode) as client:
        result = await client.call_tool(f"{server}__book_table", {"day": "Tuesday"})
        assert text_of(result) == "Tuesday: no table (decline)"
    assert guest.asked == questions("Tuesday", 2, FOUR[server])


@pytest.mark.parametrize("server", [server for server in FOUR if server != "old-pipe"])
@pytest.mark.parametrize("thinks", VERSIONS)
async def test_while_one_client_thinks_another_one_is_asked(here: Setting, thinks: str, server: str) -> None:
    """Of two eras, at the same server: each hears its own questions, and its own answers count (rule 71). Over one pipe
    with a handshake nobody could tell whose a question is, so that server is left out."""
    slow, quick = Guest(guests=5), Guest(guests=6, name="Bob")
    slow.may_answer = trio.Event()
    booked: list[str] = []

    async def book(client: Client) -> None:
        booked.append(text_of(await client.call_tool(f"{server}__book_table", {"day": "Saturday"})))

    async def was_asked() -> bool:
        await trio.lowlevel.checkpoint()
        return bool(slow.asked)

    other = next(mode for mode in VERSIONS if mode != thinks)
    async with connected(slow, here.host.url, thinks) as client, connected(quick, here.host.url, other) as meanwhile:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(book, client)
            await eventually(was_asked, START)
            await book(meanwhile)
            slow.may_answer.set()
    assert booked == ["Saturday: a table for 6, Bob", "Saturday: a table for 5, Ada"]
    assert slow.asked == questions("Saturday", 5, FOUR[server])
    assert quick.asked == questions("Saturday", 6, FOUR[server])
