"""Servers that run once per folder of a client: where they start, who shares them, and what a client may choose."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw, structs
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation, Secret, Start, StdioServer, Trust
from host.client_process import ClientProcess
from host.errors import Unavailable
from host.exchange import Caller, NoClient, ProgressCallback
from host.journal import Journal
from host.jsonrpc.messages import ErrorBody, Notification
from host.peer.outstanding import PeerError
from host.policy.fingerprint import launch_of
from host.protocol.abilities import NO_ABILITIES
from host.protocol.versions import Era
from host.source import SHARED
from host.upstream.client_folder import ROOTS_WAIT, ClientFolders, in_folder, is_folder, may_have_folder, no_folder
from host.upstream.connect import open_link
from host.upstream.state import Failed, NeedsFolder, Ready
from host.wire.link import Link, LinkLost
from host.wire.process import open_keeper
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, later, open_client, open_world

SERVER = Path(__file__).parents[2] / "kit" / "servers" / "folder.py"
WORD = Path("${client:folder}")
NO_FOLDER = "a runs in the folder of its client, and this client has none that is known"


# The choices of a client


class Roots:
    """The handle of a client that answers with these roots, and counts how often it is asked."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked = 0

    def notify(self, notice: Notification) -> None:
        raise AssertionError(notice)

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        assert (method, params) == ("roots/list", {})
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await trio.sleep_forever()
        return Raw(json.dumps(self.answer).encode())


def at(folder: str) -> ClientProcess:
    """A program of this machine that works in this folder."""
    return ClientProcess("test", 1, folder)


def caller(folder: str, roots: Roots | None = None, era: Era = Era.SESSION) -> Caller:
    abilities = structs.replace(NO_ABILITIES, roots=roots is not None)
    client = NoClient() if roots is None else roots
    return Caller("test", SHARED, None, abilities, None, client, session=object(), era=era, process=at(folder))


def listed(*uris: object) -> dict[str, object]:
    return {"roots": [{"uri": uri} for uri in uris]}


async def test_the_folder_of_a_client_without_roots_is_that_of_its_program(tmp_path: Path) -> None:
    folders, here = ClientFolders(), caller(str(tmp_path))
    assert folders.known(here) == await folders.settle("a", here) == str(tmp_path)
    assert may_have_folder(here)


@pytest.mark.parametrize("process", [None, ClientProcess(), ClientProcess("x", 1, "/no/such folder (deleted)")])
async def test_a_client_without_a_folder_is_refused(process: ClientProcess | None) -> None:
    nobody = Caller("test", SHARED, process=process, session=object())
    with pytest.raises(Unavailable) as refused:
        await ClientFolders().settle("a", nobody)
    assert refused.value.message == no_folder("a").message
    assert "colonnade serve --stdio" in refused.value.message
    assert not may_have_folder(nobody)


async def test_a_root_counts_if_it_lies_in_the_folder_and_the_first_such_one_does(tmp_path: Path) -> None:
    work, other = tmp_path / "work", tmp_path / "work 2"
    below, second = work / "a b", work / "c"
    for each in (other, below, second):
        each.mkdir(parents=True)
    (work / "out").symlink_to(other)
    (tmp_path / "in").symlink_to(below)
    (work / "file").touch()

    async def folder(answer: object) -> str:
        roots = Roots(answer)
        folders, here = ClientFolders(), caller(str(work), roots)
        assert folders.known(here) is None
        found = await folders.settle("a", here)
        assert (folders.known(here), await folders.settle("b", here), roots.asked) == (found, found, 1)
        return found

    assert await folder(listed(below.as_uri(), second.as_uri())) == str(below)
    assert await folder(listed(work.as_uri())) == str(work)
    assert await folder(listed(f"file://localhost{below.as_uri()[7:]}/")) == str(below)
    assert await folder(listed((tmp_path / "in").as_uri())) == str(below)  # where it leads counts
    for outside in (tmp_path, other, work / "out", work / "file", work / "missing", Path("/")):
        assert await folder(listed(outside.as_uri(), second.as_uri())) == str(second)
    for none in ("https://example.com/", f"file://host{below}", "file://[", f"{below.as_uri()}?x", "file:c", "", "%"):
        assert await folder(listed(none)) == str(work)
    answer: object
    for answer in ({}, {"roots": 3}, {"roots": [{}]}, listed(4), listed(below.as_uri() + "%00"), LinkLost("gone")):
        assert await folder(answer) == str(work)


async def test_a_client_that_does_not_name_its_roots_in_time_counts_by_its_folder(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    folders, silent = ClientFolders(), caller(str(tmp_path), Roots(None))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(folders.settle, "a", silent)
    assert (trio.current_time() - began, silent.client.asked) == (ROOTS_WAIT, 1)  # type: ignore[attr-defined]
    assert folders.known(silent) == str(tmp_path)


async def test_a_request_that_is_cancelled_while_roots_are_asked_for_leaves_the_question_to_the_next(
    tmp_path: Path,
) -> None:
    folders, roots = ClientFolders(), Roots(None)
    here = caller(str(tmp_path), roots)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(folders.settle, "a", here)
            await wait_all_tasks_blocked()
            scope.cancel("the client called it off")
    roots.answer = listed()
    assert (await folders.settle("a", here), roots.asked) == (str(tmp_path), 2)


async def test_a_stateless_client_is_not_asked(tmp_path: Path) -> None:
    roots = Roots(None)
    assert ClientFolders().known(caller(str(tmp_path), roots, Era.STATELESS)) == str(tmp_path)
    assert roots.asked == 0


def test_a_program_starts_in_a_folder_by_its_real_path_only(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert is_folder(str(tmp_path))
    assert not any(map(is_folder, [str(tmp_path / "link"), str(tmp_path / "file"), str(tmp_path / "no"), "", "."]))


def test_no_folder_decides_which_program_is_started(tmp_path: Path) -> None:
    """The launch that a person approves is the same in all folders, also where PATH has relative ones."""
    (tmp_path / "sh").write_text("#!/bin/sh\n")
    (tmp_path / "sh").chmod(0o755)
    spec = StdioServer(id="a", command=(Secret("sh"),), cwd=WORD, env={"PATH": Secret(f".::{tmp_path.name}:/bin")})
    launched = in_folder(spec, str(tmp_path))
    assert (launched.cwd, launched.env["PATH"].reveal()) == (tmp_path, "/bin")
    assert launch_of(spec).program == launch_of(launched).program == os.path.realpath("/bin/sh")
    assert "PATH" not in in_folder(replace(spec, env={}), str(tmp_path)).env
    nothing = in_folder(replace(spec, env={"PATH": Secret(".")}), str(tmp_path))
    assert nothing.env["PATH"].reveal() == os.defpath


# Where it starts, and who shares it


class PerFolder(ScriptedServer):
    """`x` says over which connection it was called, by number; one in a folder of `broken` ends at once."""

    def __init__(self, id: str = "a", isolation: Isolation = Isolation.SHARED, **more: Any) -> None:
        super().__init__(id, tools=["x", "slow"], resources=["file:///r"], isolation=isolation, cwd=WORD, **more)
        self.capabilities = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}
        self.links: list[MemoryLink] = []
        self.broken: set[str] = set()
        self.answers["tools/call"] = self._call

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        if self.started_in[-1] in self.broken:
            raise LinkLost("it does not run here")
        async with super().open_link() as host_end:
            assert self.link is not None
            self.links.append(self.link)
            yield host_end

    async def _call(self, params: dict[str, Any]) -> object:
        assert self._answering is not None
        number = self.links.index(self._answering)
        if params["name"] == "slow":
            await trio.sleep_forever()
        return {"content": [{"type": "text", "text": str(number)}]}

    @property
    def folders(self) -> list[str]:
        """The folders in which it runs now."""
        started = [folder for folder in self.started_in if folder not in self.broken]
        return sorted(folder for folder, link in zip(started, self.links, strict=True) if link in self.open_links)


async def number(client: ScriptedClient, name: str = "a__x") -> int:
    result = await client.call(name)
    assert "isError" not in result, result
    return int(result["content"][0]["text"])


async def failure(client: ScriptedClient) -> str:
    result = await client.call("a__x")
    assert result["isError"] is True
    return str(result["content"][0]["text"])


@pytest.fixture
def one(tmp_path: Path) -> str:
    (tmp_path / "one").mkdir()
    return str(tmp_path / "one")


@pytest.fixture
def two(tmp_path: Path) -> str:
    (tmp_path / "two").mkdir()
    return str(tmp_path / "two")


async def test_one_process_in_each_folder_is_shared_by_all_clients_there(one: str, two: str) -> None:
    server = PerFolder()
    async with open_world(server) as world:
        first, second, third = (
            await world.client(process=at(one)),
            await world.client(process=at(two)),
            await world.client(process=at(one)),
        )
        assert [await number(each) for each in (first, second, third, first, second)] == [0, 1, 0, 0, 1]
        assert server.folders == [one, two]
        assert await number(await world.client(process=at(two))) == 1
        assert len(world.instances("a")) == 1


async def test_eleven_servers_of_which_two_take_the_folder_are_thirteen_processes_for_clients_in_two_folders(
    one: str, two: str
) -> None:
    servers = [ScriptedServer(f"s{n}", tools=["x"]) for n in range(9)] + [PerFolder("a"), PerFolder("b")]
    async with open_world(*servers) as world:
        clients = [await world.client(process=at(folder)) for folder in (one, two, one, two, two)]
        for client in clients:
            await client.names()
            await number(client, "a__x")
            await number(client, "b__x")
        await world.settled()
        assert sum(server.live for server in servers) == 13


@pytest.mark.slow
async def test_real_processes_start_in_the_folders_of_their_clients(one: str, two: str) -> None:
    class Real(ScriptedServer):
        @asynccontextmanager
        async def open_link(self) -> AsyncIterator[Link]:
            spec = replace(self.launches[-1], command=(Secret(sys.executable), Secret(str(SERVER))))
            async with open_link(spec, http_sse=False, keeper=keeper, journal=Journal()) as link:
                yield link

    async with open_keeper() as keeper, open_world(Real("a", cwd=WORD)) as world:
        answers = []
        for folder in (one, two, one, two):
            result = await (await world.client(process=at(folder))).call("a__x")
            answers.append(json.loads(result["content"][0]["text"]))
        assert [folder for folder, _ in answers] == [one, two, one, two]
        assert answers[:2] == answers[2:]


async def test_nothing_is_started_before_a_client_with_a_folder_comes(one: str) -> None:
    server = PerFolder()
    async with open_world(server) as world:
        await world.settled()
        remote = await world.client()
        assert await remote.names() == []
        state = world.upstreams["a"].main.state
        assert isinstance(state, NeedsFolder)
        assert server.connections == 0
        local = await world.client(process=at(one))
        assert await local.names() == ["a__x", "a__slow"]  # a list starts it too, and waits for it
        assert (server.started_in, isinstance(world.upstreams["a"].main.state, Ready)) == ([one], True)


async def test_its_remembered_lists_are_served_meanwhile_and_a_lazy_server_is_started_by_a_call_only(
    one: str, tmp_path: Path
) -> None:
    async with open_world(PerFolder(), state=tmp_path) as world:
        await (await world.client(process=at(one))).names()
        await wait_all_tasks_blocked()
    for start, connections in ((Start.LAZY, 0), (Start.EAGER, 1)):
        server = PerFolder(start=start)
        async with open_world(server, state=tmp_path) as world:
            assert await (await world.client()).names() == ["a__x", "a__slow"]
            assert server.connections == 0
            client = await world.client(process=at(one))
            assert await client.names() == ["a__x", "a__slow"]
            await wait_all_tasks_blocked()
            assert server.connections == connections
            assert (await number(client), server.started_in) == (0, [one])


async def test_a_client_without_a_folder_gets_an_error_in_both_eras(one: str) -> None:
    server = PerFolder()
    async with open_world(server) as world:
        remote = await world.client()
        for _ in range(2):
            assert NO_FOLDER in await failure(remote) if server.connections else True
            with pytest.raises(Refusal, match=NO_FOLDER):
                await remote.request("resources/read", {"uri": "a+file:///r"})
            await number(await world.client(process=at(one)))
        assert NO_FOLDER in await failure(remote)
        answer = await world.mrtr_round("tools/call", {"name": "a__x"})
        assert NO_FOLDER.encode() in bytes(answer.result)  # type: ignore[union-attr]
        with pytest.raises(Unavailable, match=NO_FOLDER):
            await world.mrtr_round("resources/read", {"uri": "a+file:///r"})
        answer = await world.mrtr_round("tools/call", {"name": "a__x"}, process=at(one))
        assert b'"0"' in bytes(answer.result)  # type: ignore[union-attr]
        assert server.connections == 1


async def test_a_root_of_the_client_is_the_folder_and_the_client_is_asked_once(one: str, two: str) -> None:
    below = Path(one) / "below"
    below.mkdir()
    server, other = PerFolder(), PerFolder("b")
    async with open_client(server, other, process=at(one), capabilities={"roots": {}}) as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        await wait_all_tasks_blocked()
        call = later(nursery, number, client)
        question = await client.is_asked("roots/list")
        client.replies(question["id"], listed(Path(two).as_uri(), below.as_uri()))
        assert await call.comes() == 0
        assert await number(client, "b__x") == 0
        assert (server.started_in, other.started_in) == ([str(below)], [str(below)])
        assert len(client.server_requests) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.virtual_time
async def test_lists_of_several_clients_wait_for_the_first_one_that_is_asked_for_its_roots(one: str, two: str) -> None:
    server = PerFolder()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        first, second = [await world.client(process=at(one), capabilities={"roots": {}}) for _ in range(2)]
        nursery.start_soon(first.listen_changes)
        await wait_all_tasks_blocked()
        lists = [later(nursery, first.names)]
        question = await first.is_asked("roots/list")
        third = await world.client(process=at(two))
        lists += [later(nursery, client.names) for client in (second, third, first)]
        await wait_all_tasks_blocked()
        first.replies(question["id"], listed())
        for each in lists:
            assert await each.comes() == ["a__x", "a__slow"]
        assert server.started_in == [one]
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_while_it_is_asked_leaves_the_folder_to_the_next(one: str, two: str) -> None:
    server = PerFolder()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        first, second = (
            await world.client(process=at(one), capabilities={"roots": {}}),
            await world.client(process=at(two)),
        )
        nursery.start_soon(first.listen_changes)
        await wait_all_tasks_blocked()
        nursery.start_soon(first.request, "tools/list")
        await first.is_asked("roots/list")
        names = later(nursery, second.names)
        await wait_all_tasks_blocked()
        os.rmdir(one)
        first.session.end()
        assert await names.comes() == ["a__x", "a__slow"]
        assert server.started_in == [two]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_called", [True, False])
async def test_a_server_that_is_replaced_while_a_client_is_asked_leaves_the_folder_to_its_successor(
    one: str, is_called: bool
) -> None:
    server = PerFolder()
    async with open_client(server, process=at(one), capabilities={"roots": {}}) as (world, client, nursery):
        nursery.start_soon(client.listen_changes)
        await wait_all_tasks_blocked()
        request = later(nursery, number, client) if is_called else later(nursery, client.names)
        question = await client.is_asked("roots/list")
        former = world.upstreams["a"]
        world.configures(server, restart={"a"})
        await former.stopped.wait()
        client.replies(question["id"], listed())
        await request.comes()
        assert await number(client) == 0
        assert (server.started_in, isinstance(former.main.state, NeedsFolder)) == ([one], True)
        nursery.cancel_scope.cancel()


async def test_with_per_client_each_client_has_an_instance_in_its_folder(one: str, two: str) -> None:
    server = PerFolder(isolation=Isolation.PER_CLIENT)
    async with open_world(server) as world:
        clients = [await world.client(process=at(folder)) for folder in (one, one, two)]
        assert [await number(each) for each in (*clients, clients[0])] == [1, 2, 3, 1]
        assert server.started_in == [one, one, one, two]
        assert NO_FOLDER in await failure(await world.client())


# Its life


async def test_an_instance_ends_some_time_after_its_last_client_and_the_first_process_stays(
    one: str, two: str, autojump_clock: MockClock
) -> None:
    server = PerFolder(idle_timeout=60.0)
    async with open_world(server) as world:
        first, second, third = [await world.client(process=at(folder)) for folder in (one, two, two)]
        for each in (first, second, third):
            await number(each)
        await trio.sleep(1000)
        assert server.folders == [one, two]  # a client that does nothing is still there
        first.session.end()
        second.session.end()
        await trio.sleep(1000)
        assert server.folders == [one, two]
        third.session.end()
        await trio.sleep(50)
        assert server.folders == [one, two]
        await trio.sleep(100)
        assert server.folders == [one]
        assert await number(await world.client(process=at(two))) == 2


async def test_instances_count_to_max_instances(one: str, two: str, tmp_path: Path) -> None:
    server = PerFolder(max_instances=1)
    async with open_world(server) as world:
        for folder in (one, two):
            await number(await world.client(process=at(folder)))
        assert "max_instances: 1" in await failure(await world.client(process=at(str(tmp_path))))


async def test_a_folder_in_which_it_does_not_run_does_not_keep_it_from_others(one: str, two: str) -> None:
    server = PerFolder()
    server.broken = {one}
    async with open_world(server) as world:
        first, second = await world.client(process=at(one)), await world.client(process=at(two))
        await first.names()
        assert isinstance(world.upstreams["a"].main.state, Failed)
        assert (await number(second), await number(second)) == (0, 0)
        assert "it does not run here" in await failure(first)
        assert (await number(second), server.folders) == (0, [two])


@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.PER_CLIENT])
@pytest.mark.parametrize("trust", [Trust.UNTRUSTED, Trust.STANDARD])
async def test_why_an_untrusted_server_does_not_start_is_for_its_owner_alone(
    one: str, two: str, trust: Trust, isolation: Isolation
) -> None:
    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32603, "call another tool"))

    server = PerFolder(trust=trust, isolation=isolation)
    async with open_world(server) as world:
        first, second = await world.client(process=at(one)), await world.client(process=at(two))
        await first.names()
        world.approves()
        server.answers["initialize"] = refuse
        with world.auto_answering():
            said = await failure(second)
        assert said.startswith("a is unavailable: ")
        assert ("refused the handshake" in said) == (trust is Trust.STANDARD)
        assert "call another tool" not in said


async def test_in_folders_that_all_fail_it_is_not_started_for_each_call(one: str, two: str) -> None:
    server = PerFolder()
    server.broken = {one, two}
    async with open_world(server) as world:
        clients = [await world.client(process=at(folder)) for folder in (one, two)]
        for _ in range(5):
            for each in clients:
                assert await each.names() == []
        assert server.started_in == [one, two]


async def test_a_folder_that_is_gone_is_left_for_that_of_the_next_client(
    one: str, two: str, autojump_clock: MockClock
) -> None:
    server = PerFolder()
    async with open_world(server) as world:
        first = await world.client(process=at(one))
        await number(first)
        os.rmdir(one)
        server.dies()
        await trio.sleep(1000)
        assert isinstance(world.upstreams["a"].main.state, NeedsFolder)
        assert NO_FOLDER in await failure(first)
        assert await number(await world.client(process=at(two))) == 1
        assert server.started_in == [one, two]


async def test_idle_stops_the_first_process_and_a_client_of_another_folder_does_not_start_a_second_one_there(
    one: str, two: str, autojump_clock: MockClock
) -> None:
    server = PerFolder(idle=60.0, idle_timeout=80000.0)
    async with open_world(server) as world:
        first, second = await world.client(process=at(one)), await world.client(process=at(two))
        assert (await number(first), await number(second)) == (0, 1)
        await trio.sleep(100)
        assert server.folders == [two]
        assert (await number(second), server.folders) == (1, [two])
        assert (await number(first), server.folders) == (2, [one, two])


async def test_a_restart_keeps_the_folder(one: str, two: str) -> None:
    server = PerFolder()
    async with open_client(server, process=at(one)) as (world, client, _):
        await number(client)
        world.configures(server, restart={"a"})
        assert await number(client) == 1
        assert server.started_in == [one, one]


# Messages


@asynccontextmanager
async def shared(server: PerFolder, one: str, two: str) -> AsyncIterator[tuple[World, list[ScriptedClient]]]:
    """A first client, and two that share the instance in another folder, over whose connection `server.link` is."""
    server.answers.pop("tools/call")
    async with open_world(server) as world, trio.open_nursery() as nursery:
        clients = [
            await world.client(process=at(folder), capabilities={"elicitation": {}, "sampling": {}})
            for folder in (one, two, two)
        ]
        for client in clients:
            nursery.start_soon(client.listen_changes)
        await clients[0].names()
        yield world, clients
        nursery.cancel_scope.cancel()


ELICIT = ("elicitation/create", {"message": "m", "requestedSchema": {"type": "object", "properties": {}}})


async def test_requests_of_a_shared_instance_go_to_the_client_of_the_call(one: str, two: str) -> None:
    server = PerFolder()
    async with shared(server, one, two) as (_, (first, second, third)), trio.open_nursery() as nursery:
        call = later(nursery, third.call, "a__x")
        heard = await server.hears("tools/call")
        question = later(nursery, server.asks, *ELICIT)
        asked = await third.is_asked("elicitation/create")
        third.replies(asked["id"], {"action": "decline"})
        assert await question.comes() == {"action": "decline"}
        await server.notifies("notifications/message", {"level": "error", "data": "for third"})
        server.says(heard["id"], {"content": []})
        await call.comes()
        assert (first.server_requests, second.server_requests) == ([], [])
        # Outside a call no client is certain, although one was alone to use the instance so far.
        with pytest.raises(Refusal, match="no client's request is in flight"):
            await server.asks(*ELICIT)
        assert (await server.asks("roots/list"))["roots"] == []
        both = [later(nursery, client.call, "a__x") for client in (second, third)]
        ids = [(await server.hears("tools/call"))["id"] for _ in both]
        with pytest.raises(Refusal, match="it is not certain which client is meant"):
            await server.asks(*ELICIT)
        for id in ids:
            server.says(id, {"content": []})
        for each in both:
            await each.comes()
        assert [each.notifications_of("notifications/message") for each in (first, second)] == [[], []]


async def test_progress_and_cancellation_in_a_shared_instance_are_of_the_call(one: str, two: str) -> None:
    server = PerFolder()
    async with shared(server, one, two) as (_, (_, second, third)), trio.open_nursery() as nursery:
        calls = [
            later(nursery, client.call, "a__x", {"of": name}, _meta={"progressToken": "p"})
            for client, name in ((second, "second"), (third, "third"))
        ]
        heard = {each["arguments"]["of"]: each for each in [await server.hears("tools/call") for _ in calls]}
        token = heard["third"]["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        await wait_all_tasks_blocked()
        assert second.notifications_of("notifications/progress") == []
        assert third.notifications_of("notifications/progress") == [{"progressToken": "p", "progress": 1}]
        second.notifies("notifications/cancelled", {"requestId": 1})
        assert (await server.hears("notifications/cancelled"))["requestId"] == heard["second"]["id"]
        server.says(heard["third"]["id"], {"content": []})
        assert await calls[1].comes() == {"content": []}


async def test_log_messages_outside_calls_go_to_the_clients_in_the_folder(one: str, two: str) -> None:
    server = PerFolder()
    async with shared(server, one, two) as (_, clients), trio.open_nursery() as nursery:
        for client in clients:
            await client.request("logging/setLevel", {"level": "info"})
        call = later(nursery, clients[1].call, "a__x")
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await call.comes()

        def told() -> list[list[object]]:
            return [[each["data"] for each in client.notifications_of("notifications/message")] for client in clients]

        main, instance = server.links
        await server.notifies("notifications/message", {"level": "error", "data": "in one"}, link=main)
        await server.notifies("notifications/message", {"level": "error", "data": "in two"}, link=instance)
        await wait_all_tasks_blocked()
        assert told() == [["in one"], ["in two"], ["in two"]]


async def test_subscriptions_are_those_of_the_folder(one: str, two: str) -> None:
    server = PerFolder(idle_timeout=60.0)
    async with shared(server, one, two) as (_, (first, second, third)):
        for client in (first, second):
            await client.request("resources/subscribe", {"uri": "a+file:///r"})
        main, instance = server.links

        async def updates(link: MemoryLink) -> list[int]:
            await server.notifies("notifications/resources/updated", {"uri": "file:///r"}, link=link)
            await wait_all_tasks_blocked()
            return [len(each.notifications_of("notifications/resources/updated")) for each in (first, second, third)]

        assert await updates(main) == [1, 0, 0]
        assert await updates(instance) == [1, 1, 0]
        await second.request("resources/unsubscribe", {"uri": "a+file:///r"})
        assert await updates(instance) == [1, 1, 0]
