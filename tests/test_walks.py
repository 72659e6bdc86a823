"""The walks in docs/architecture.md name functions that exist, in the order in which a message enters them."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.addresses import Addresses
from host.client_process import ClientProcess
from host.downstream.relays import RelayClient, Relays, open_relay_claim
from host.downstream.sessions import Session
from host.downstream.stateless_stdio import StatelessStdio
from host.relay import Options, Relay, _End, _Side
from host.relay_start import FirstAnswers
from host.source import Endpoint
from host.storage.directory import open_state
from host.version import VERSION
from host.wire.descent import Trail
from tests.kit.asgi import open_http_app, open_stateless
from tests.kit.world import ScriptedServer, open_world, tool

ROOT = Path(__file__).parent.parent
HOST = ROOT / "host"
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "design.md"]
REFERENCE = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
CALL = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "a__x"}}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}

NOT_ENTERED = {
    # of real sockets and processes
    "ClientConnection._answer",
    "StdioLink.send",
    "main",
    "run",
    "start_host",
    "_serve_relays",
    "serve_relays",
    # of persons and limits
    "ConfirmationQueue.confirm",
}
"""Functions of the walks that a call between scripted peers does not enter."""


def references(heading: str) -> list[tuple[str, str]]:
    """The functions that the numbered list under a heading names, in order, with their files."""
    section = PAGES[0].read_text("utf-8").split(f"### {heading}\n")[1].split("\n#")[0]
    steps = re.findall(r"^(?:\d+\. |   ).*$", section, re.MULTILINE)
    return REFERENCE.findall("\n".join(steps))


@cache
def functions(file: str) -> frozenset[str]:
    """The functions of a file, by their qualified names."""

    def walk(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if not isinstance(child, ast.ClassDef):
                    yield prefix + child.name
                yield from walk(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.If | ast.With | ast.Try):
                yield from walk(child, prefix)

    return frozenset(walk(ast.parse((HOST / file).read_text("utf-8")), ""))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_function_that_is_named_exists(page: Path) -> None:
    named = REFERENCE.findall(page.read_text("utf-8"))
    assert len(named) > 10
    assert [(file, name) for file, name in named if name not in functions(file)] == []


@contextmanager
def entered() -> Iterator[dict[tuple[str, str], int]]:
    """Functions of the host in the order in which they are first entered."""
    order: dict[tuple[str, str], int] = {}
    own = str(HOST) + "/"

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(own):
            order.setdefault((code.co_filename.removeprefix(own), code.co_qualname), len(order))

    former = sys.getprofile()
    sys.setprofile(note)
    try:
        yield order
    finally:
        sys.setprofile(former)


def check(heading: str, order: dict[tuple[str, str], int]) -> None:
    walk = [each for each in references(heading) if each[1] not in NOT_ENTERED]
    assert len(walk) > 5
    assert [each for each in walk if each not in order] == [], "never entered"
    assert walk == sorted(walk, key=order.__getitem__)


async def test_a_tool_call_walks_as_written() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        await connection.open()
        with trio.fail_after(5), entered() as order:
            call = connection.send("POST", body=CALL)
            server.says((await server.hears("tools/call"))["id"], {"content": []})
            await call.complete.wait()
        check("A tool call", order)


async def test_a_server_request_walks_as_written() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection), trio.open_nursery() as nursery:
        await connection.open(capabilities={"elicitation": {}})
        call = connection.send("POST", body=CALL)
        asked = await server.hears("tools/call")
        with trio.fail_after(5), entered() as order:
            nursery.start_soon(partial(server.asks, "elicitation/create", FORM, about=asked["id"]))
            request = (await call.wait_messages(1))[0]
            await connection.get("POST", body={"jsonrpc": "2.0", "id": request["id"], "result": {"action": "decline"}})
            await wait_all_tasks_blocked()
        server.says(asked["id"], {"content": []})
        await call.complete.wait()
        check("A server request", order)


async def test_a_change_of_a_list_walks_as_written() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_http_app(server) as (_, connection):
        await connection.open()
        standing = connection.send("GET")
        await wait_all_tasks_blocked()
        server.lists["tools"] = [tool("y")]
        with trio.fail_after(5), entered() as order:
            await server.notifies("notifications/tools/list_changed")
            await standing.wait_messages(1)
        check("A change of a list", order)


async def test_the_start_of_a_desktop_host_walks_as_written(tmp_path: Path) -> None:
    state, source = open_state(tmp_path / "state"), tmp_path / "colonnade.yaml"
    has_answered, token = trio.Event(), trio.lowlevel.current_trio_token()
    client_input, to_relay = os.pipe()
    from_relay, client_output = os.pipe()
    starting, started = os.pipe()
    profiler = None

    class Answers(FirstAnswers):
        def answer(self, message: dict[str, Any], opened: dict[str, Any] | None) -> str | None:
            found = super().answer(message, opened)
            trio.from_thread.run_sync(has_answered.set, trio_token=token)
            return found

    def run_relay() -> None:
        hello = json.dumps({"colonnade": VERSION, "config": str(source)}).encode() + b"\n"
        options = Options(str(source), str(state.path), "")
        side = _Side(client_input, client_output)
        relay = Relay(options, hello, side, lambda: starting, lambda: Answers(options.state, options.file))
        sys.setprofile(profiler)
        try:
            relay.run()
        except _End:
            relay._drop_host()
        finally:
            sys.setprofile(None)

    async with open_world(ScriptedServer("a")) as world, open_stateless(world) as stateless:

        @asynccontextmanager
        async def open_client(name: str, endpoint: Endpoint, process: ClientProcess) -> AsyncIterator[RelayClient]:
            session = Session(name, endpoint, world.router, world.journal, memory=world.memory, process=process)
            yield RelayClient(session, StatelessStdio(stateless, session, trio.Event()))

        relays = Relays(source, state.hosts, Trail(source, {}), open_client, Addresses().own, lambda peer, why: None)
        with trio.fail_after(20), entered() as order:
            profiler = sys.getprofile()
            async with trio.open_nursery() as host:
                async with trio.open_nursery() as client:
                    client.start_soon(trio.to_thread.run_sync, run_relay)
                    os.write(to_relay, json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode() + b"\n")
                    await has_answered.wait()
                    with open_relay_claim(state, source) as claim:
                        assert claim is not None
                        await host.start(relays.serve, claim)
                        os.close(started)
                        assert json.loads(await trio.to_thread.run_sync(os.read, from_relay, 4096))["id"] == 1
                    os.close(to_relay)
                host.cancel_scope.cancel()
        for each in (client_input, client_output, from_relay):
            os.close(each)
        check("A desktop host's start", order)


def test_the_table_of_additions_names_what_exists() -> None:
    """Every file is there, and every other name is a name in one of the files of its row."""
    table = PAGES[0].read_text("utf-8").split("## Where to add what\n")[1]
    rows = re.findall(r"^\| (?!to add|---)(.*) \|$", table, re.MULTILINE)
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/.]+)`", row)
        places = [each for each in named if each.endswith(".py")]
        roots = {each: next((root for root in (HOST, ROOT) if (root / each).is_file()), None) for each in places}
        assert None not in roots.values(), row
        text = "".join((roots[each] or ROOT).joinpath(each).read_text("utf-8") for each in places)
        for name in named:
            if name.endswith("/"):
                assert any((root / name).is_dir() for root in (HOST, ROOT)), name
            elif name not in places and places:
                for part in name.split("."):
                    assert re.search(rf"\b{part}\b", text), f"{name} is in no file of: {row}"
