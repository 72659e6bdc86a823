"""The life of a connection as states: what ends it, and how it comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import Eras, HttpServer, Secret
from host.errors import Unavailable
from host.journal import (
    InternalError,
    MessageDropped,
    ServerFailed,
    ServerNeedsLogin,
    ServerReady,
    SessionAbsent,
    SessionFailed,
)
from host.oauth.challenge import Challenge
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.storage.store import CredentialKey
from host.upstream.connection import PING_INTERVAL, PING_TIMEOUT
from host.upstream.credentials import Credential
from host.upstream.state import (
    Failed,
    NeedsLogin,
    Ready,
    State,
    Stopped,
    describe_for_people,
    describe_session,
    describe_state,
)
from host.wire.http_errors import AuthNeeded
from host.wire.link import Link
from tests.kit.awaited import awaited
from tests.kit.issuer import Issuer
from tests.kit.logins import NOTES, VAULT, Process, login, processes, put
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal, ScriptedServer, World, open_client, open_world, says_revision, tool

pytestmark = pytest.mark.virtual_time


def failures(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, ServerFailed)]


async def test_a_server_that_comes_up_is_ready_and_says_so() -> None:
    async with open_world(ScriptedServer("a", tools=["x", "y"], prompts=["p"])) as world:
        await world.settled()
        assert isinstance(world.upstreams.by_id["a"].main.state, Ready)
        (ready,) = (event for event in world.events if isinstance(event, ServerReady))
        assert (ready.said, ready.counts) == ("a 1", "2 tools, 1 prompt")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            {"protocolVersion": "1999-01-01", "capabilities": {}},
            "no protocol revision in common: it selected 1999-01-01",
        ),
        ({"protocolVersion": 5, "capabilities": {}}, "its response to the handshake is invalid"),
        ({"capabilities": {}}, "no protocolVersion"),
        ([], "its response to the handshake is invalid"),
        ("text", "its response to the handshake is invalid"),
    ],
)
async def test_a_handshake_that_is_none_is_a_failure_with_a_reason(answer: object, why: str) -> None:
    async def initialize(params: dict[str, Any]) -> object:
        return answer

    async with open_world(ScriptedServer("a", answers={"initialize": initialize})) as world:
        await world.settled()
        assert why in failures(world)[0]
        with pytest.raises(Unavailable, match=r"a is unavailable: .*; next attempt in (0\.|15)"):
            world.upstreams["a"].main.ready_client()


async def test_a_server_that_hangs_in_the_handshake_fails_after_its_start_timeout() -> None:
    async def hang(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    server = ScriptedServer("a", answers={"initialize": hang}, start_timeout=7.0)
    async with open_world(server, ScriptedServer("b", tools=["x"])) as world:
        began = trio.current_time()
        await world.upstreams.by_id["b"].main.life.settled.wait()
        assert trio.current_time() == began
        await world.upstreams.by_id["a"].main.life.settled.wait()
        assert trio.current_time() - began == pytest.approx(7, abs=0.1)
        assert failures(world) == ["it did not finish its start within 7 s: if it needs longer, raise start_timeout"]


@pytest.mark.parametrize(
    ("text", "why", "said"),
    [
        (
            '{"jsonrpc":"2.0","id":"r-1","result":{}}',
            "an id that no request has",
            "the last: an answer to 'r-1', which",
        ),
        (
            '{"jsonrpc":"2.0","id":1.5,"result":{"a":"b\\u001b[31m\\u202e"}}',
            "the id is neither a string nor an integer",
            """the server says: "{'jsonrpc':'2.0','id':1.5,'result':{'a':'b""",
        ),
        ('{"jsonrpc":"2.0","id":null,"result":{}}', "the id is neither a string nor an integer", "the server says:"),
        ('{"result":{}}', 'expected "jsonrpc": "2.0"', "the server says:"),
    ],
)
async def test_a_start_that_hangs_because_answers_were_dropped_says_so(text: str, why: str, said: str) -> None:
    """In words of ours for clients, and with the answer for people."""

    async def hang(params: dict[str, Any]) -> object:
        for _ in range(3):
            assert server.link is not None
            server.link.write_bytes(text.encode())
        await trio.sleep_forever()

    server = ScriptedServer("a", answers={"initialize": hang}, start_timeout=7.0)
    async with open_world(server) as world:
        main = world.upstreams.by_id["a"].main
        await main.life.settled.wait()
        fails = (
            f"it did not finish its start within 7 s: it answered 3 times with what is no answer to a request: {why}"
        )
        assert fails in describe_state(main.state)
        assert "says" not in describe_state(main.state)
        assert f"; {said}" in describe_for_people(main.state)
        assert describe_for_people(main.state).isprintable()
        del server.answers["initialize"]
        await trio.sleep(5)
        assert isinstance(main.state, Ready)


async def test_text_that_is_no_message_is_named_to_people_without_secrets() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        assert server.link is not None
        server.link.write_bytes(b"Listening on \x1b[31mport\n 3000" + b"!" * 5000)
        await wait_all_tasks_blocked()
        (dropped,) = (event for event in world.events if isinstance(event, MessageDropped))
        assert dropped.detail.startswith('not JSON: the server says: "Listening on port 3000!!!')
        assert len(dropped.detail) < 250


async def test_attempts_come_ever_later_and_begin_anew_after_a_healthy_time() -> None:
    async def broken(params: dict[str, Any]) -> object:
        return {}

    server = ScriptedServer("a", answers={"initialize": broken})
    async with open_world(server) as world:
        await trio.sleep(40)
        assert server.connections == 5
        await trio.sleep(3600)
        assert server.connections < 90
        del server.answers["initialize"]
        await trio.sleep(80)
        world.upstreams["a"].main.ready_client()
        await trio.sleep(30)
        server.dies()
        await wait_all_tasks_blocked()
        state = world.upstreams.by_id["a"].main.state
        assert isinstance(state, Failed)
        assert state.next_attempt - trio.current_time() < 0.5


class Crashing(ScriptedServer):
    """It ends so many seconds after it was connected; `starts` has the times."""

    def __init__(self, life: float, **more: Any) -> None:
        super().__init__("a", tools=["x"], **more)
        self.life = life
        self.starts: list[float] = []

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        self.starts.append(trio.current_time())
        async with trio.open_nursery() as nursery, super().open_link() as link:
            nursery.start_soon(self._die)
            yield link
            nursery.cancel_scope.cancel()

    async def _die(self) -> None:
        await trio.sleep(self.life)
        self.dies()

    def most_in_a_minute(self) -> int:
        return max(sum(start <= other < start + 60 for other in self.starts) for start in self.starts)


@pytest.mark.few(2)
@pytest.mark.parametrize("life", [0.0, 0.001, 2.0, 9.9, 10.1, 14.0], ids=lambda life: f"{life} s")
async def test_a_crash_loop_is_tried_five_times_a_minute_at_the_most(life: float) -> None:
    """Whether it crashes in the handshake, after it, or after it counts as healthy."""
    server = Crashing(life)
    async with open_world(server) as world:
        await trio.sleep(1800)
        assert server.most_in_a_minute() <= 5
        assert len(server.starts) >= 25  # half an hour at one a minute, less jitter
        if life < 10:
            assert len(server.starts) <= 5 + 1800 / 48
        assert any(isinstance(event, ServerFailed) for event in world.events)


async def test_a_crash_loop_in_calls_is_one_too() -> None:
    server = Crashing(1e9)

    async def crash(params: dict[str, Any]) -> object:
        server.dies()
        return {}

    server.answers["tools/call"] = crash
    async with open_world(server) as world:
        client, waits = await world.client(), 0
        for _ in range(600):
            with suppress(Refusal):
                await client.call("a__x")
            await trio.sleep(0.5)
            waits += "next attempt in" in describe_state(world.upstreams.by_id["a"].main.state)
        assert server.most_in_a_minute() <= 5
        assert waits >= 540, "between two starts, which take no time here, it waits"


async def test_a_program_that_ends_at_the_first_question_is_not_started_more_often() -> None:
    """Each way of speaking to it is a start."""
    server = Crashing(1e9)

    async def ends(params: dict[str, Any]) -> object:
        server.dies()
        return {}

    server.answers |= {"server/discover": ends, "initialize": ends}
    async with open_world(server):
        await trio.sleep(600)
        assert 5 <= server.most_in_a_minute() <= 5


class Fickle(Crashing):
    """It lists other prompts each time. `announces`: it says so again as soon as it was read; `hangs`: it ends while
    its tools are read."""

    def __init__(self, life: float = 1e9, *, announces: bool = False, hangs: bool = False, **more: Any) -> None:
        super().__init__(life, prompts=["p"], **more)
        self.answers |= {"prompts/list": self._prompts, "tools/list": self._tools, "tools/call": done}
        self.announces, self.hangs = announces, hangs
        self.now: str | None = None
        """The only prompt, if it is steady."""

    async def _prompts(self, params: dict[str, Any]) -> object:
        if self.announces:
            await self.notifies("notifications/prompts/list_changed")
        return {"prompts": [{"name": self.now or f"p{len(self.asked)}"}]}

    async def _tools(self, params: dict[str, Any]) -> object:
        if self.hangs:
            await trio.sleep(1)
            self.dies()
        return {"tools": self.lists["tools"]}

    def readings(self) -> int:
        return self.asked.count("prompts/list")

    async def starts_again(self, world: World) -> None:
        """It ends, and is connected again. Three times a minute it may be."""
        self.dies()
        await trio.sleep(20)
        world.upstreams["a"].main.ready_client()


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        lambda: Fickle(10.5),
        lambda: Fickle(10.5, announces=True),
        lambda: Fickle(5.0, announces=True),
        lambda: Fickle(hangs=True),
    ],
    ids=["healthy", "announcing", "crashing", "ending while it is read"],
)
async def test_a_server_that_lists_something_else_after_each_start_costs_no_more_than_one_that_flaps(
    server: Callable[[], Fickle],
) -> None:
    made = server()
    async with open_world(made) as world:
        world.work.step = 0.01
        await trio.sleep(3600)
        assert world.work.charged <= 0.05 * 3600
        assert made.readings() >= 10


@pytest.mark.slow
async def test_a_server_that_was_restarted_now_and_then_is_listed_at_once() -> None:
    """Also where its list differs each time, and however often it was restarted with the same one."""
    server = Fickle()
    async with open_client(server) as (world, client, _):
        for turn in range(60):
            server.now = f"p{turn // 20}"
            await server.starts_again(world)
            assert await client.names("prompts/list") == [f"a__{server.now}"]
        for turn in range(8):
            await trio.sleep(600)
            server.now = f"now{turn}"
            server.dies()
            await trio.sleep(1)
            assert await client.names("prompts/list") == [f"a__{server.now}"]


async def _costly(server: Fickle, world: World) -> None:
    """Its lists, of which `known` is the present one, cost so much that a minute passes until they are read again."""
    await server.starts_again(world)
    server.now, world.work.step = "known", 0.1
    await server.starts_again(world)


async def test_while_a_list_waits_for_its_turn_the_former_one_stays() -> None:
    """What the server offers no more is taken away when it comes."""
    server = Fickle()
    async with open_client(server) as (world, client, _):
        await _costly(server, world)
        server.now, readings = "other", server.readings()
        await server.starts_again(world)
        server.capabilities = {"tools": {}}
        await server.starts_again(world)
        assert await client.names("prompts/list") == ["a__known"]
        assert server.readings() == readings
        await trio.sleep(600)
        assert await client.names("prompts/list") == []
        assert await client.names() == ["a__x"]


async def test_a_call_is_not_evaluated_by_the_list_of_a_former_connection() -> None:
    """The list waits for its turn, and is read sooner for whoever calls."""
    server = Fickle()
    async with open_client(server) as (world, client, _):
        await _costly(server, world)
        server.lists["tools"], readings = [tool("x", description="another")], server.readings()
        await server.starts_again(world)
        assert server.readings() == readings
        before = trio.current_time()
        result = await client.call("a__x")
        assert "changed" in result["content"][0]["text"]
        assert trio.current_time() - before < 1
        assert "tools/call" not in server.asked


async def test_one_servers_trouble_is_not_the_others() -> None:
    """Not even a mistake of our own about one server (rules 57, 101)."""
    bad, good = ScriptedServer("bad", tools=["x"]), ScriptedServer("good", tools=["x"])
    bad.open_link = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    async with open_world(bad, good) as world:
        await world.settled()
        await trio.sleep(100)
        world.upstreams["good"].main.ready_client()
        assert any(isinstance(event, InternalError) for event in world.events)
        assert failures(world)[0] == "of an internal error"


async def test_a_silent_server_is_asked_for_a_sign_of_life_and_let_go_without_one() -> None:
    """(rule 16)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        await trio.sleep(3 * PING_INTERVAL + 1)
        assert server.asked.count("ping") in (2, 3)
        assert failures(world) == []

        async def hang(params: dict[str, Any]) -> object:
            await trio.sleep_forever()

        server.answers["ping"] = hang
        await trio.sleep(2 * PING_INTERVAL + PING_TIMEOUT)
        assert failures(world)[0] == "it did not respond to a ping within 10 s"


async def test_a_server_that_works_is_not_asked_for_a_sign_of_life() -> None:
    server = ScriptedServer("a", tools=["x"], timeout=500.0)
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        await trio.sleep(400)
        assert "ping" not in server.asked
        server.says(asked["id"], {"content": []})


@pytest.mark.parametrize(
    ("revision", "header"),
    [("2024-11-05", None), ("2025-03-26", None), ("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25")],
)
async def test_the_revision_is_named_over_http_only_where_it_has_a_header(revision: str, header: str | None) -> None:
    """(rule 34)"""
    async with open_world(ScriptedServer("a", tools=["x"], revision=revision)) as world:
        await world.settled()
        link = world.upstreams["a"].main.ready_client().peer._link
        assert isinstance(link, MemoryLink)
        assert link.protocol_header == header


async def test_dropped_messages_are_counted_and_fatal_to_nobody() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (world, client, _):
        assert server.link is not None
        for junk in (
            b"banner",
            b'{"jsonrpc":"2.0","id":99,"result":{}}',
            b'{"jsonrpc":"2.0","method":"notifications/odd"}',
        ):
            server.link.write_bytes(junk)
        await wait_all_tasks_blocked()
        assert world.journal.dropped["a"] == {"invalid message": 1, "unknown id": 1, "unexpected notification": 1}
        assert await client.names() == ["a__x"]


async def test_a_servers_own_questions_are_answered_with_a_pong_no_roots_or_a_refusal() -> None:
    """A ping is answered here and goes no further, and while there is no client there are no roots (rules 16, 72)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        assert await server.asks("ping", id=1) == {}
        assert await server.asks("roots/list", id=2) == {"roots": []}
        for method in ("sampling/createMessage", "elicitation/create", "tasks/list", "tools/list", "", "vendor/x"):
            with pytest.raises(Refusal, match=r"-3260[12]"):
                await server.asks(method, {"message": "m", "requestedSchema": {}, "messages": [], "maxTokens": 1})
        assert {type(answer.id) for answer in server.answered} == {int, str}


# Logins


BEARER = Challenge()


async def done(params: dict[str, Any]) -> object:
    return {"resultType": "complete", "content": []} if says_revision(params) else {"content": []}


class Protected(ScriptedServer):
    """A server that takes no connection without a login."""

    def __init__(self, credential: Credential) -> None:
        super().__init__("notes", tools=["x"])
        self.spec = HttpServer(id="notes", url=Secret(str(credential.server)))  # type: ignore[assignment]
        self._credential = credential
        self.opens = trio.Event()
        self.opens.set()
        self.refuses_for = 0.0

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        await self.opens.wait()
        if not self._credential.login_id:
            self.connections += 1
            await trio.sleep(self.refuses_for)
            raise AuthNeeded(401, "the server wants a login", self._credential.remedy, BEARER, needs_login=True)
        async with super().open_link() as link:
            yield link


class OneSided(Protected):
    """A server of both eras that wants a login for a session only."""

    def __init__(self, credential: Credential) -> None:
        super().__init__(credential)
        self.spec = replace(self.spec, eras=Eras.BOTH)
        self.revision, self.stateless, self.session_revision = LATEST.name, True, LATEST_LEGACY.name
        self.answers["tools/call"] = done

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        if self.link is None:
            async with ScriptedServer.open_link(self) as link:
                yield link
        raise AuthNeeded(401, "the server wants a login", self._credential.remedy, BEARER, needs_login=True)


def needs(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, ServerNeedsLogin)]


AT = Issuer("https://mcp.example")


def state(world: World) -> State:
    return world.upstreams.by_id["notes"].main.state


async def test_a_server_that_wants_a_login_waits_for_a_person() -> None:
    """Another attempt would be refused as well: there is none, however long it takes."""
    async with processes() as (process,):
        server = Protected(process.of(AT))
        async with open_world(server, credentials=process.credentials) as world:
            await world.settled()
            why = "the server wants a login (HTTP 401): colonnade login notes"
            assert isinstance(state(world), NeedsLogin)
            assert describe_state(state(world)) == why
            await trio.sleep(86400)
            assert (needs(world), failures(world), server.connections) == ([why], [], 1)
            with pytest.raises(Unavailable, match=r"notes is unavailable: the server .*: colonnade login"):
                world.upstreams.by_id["notes"].main.ready_client()
            put(process.store, login(AT))
            await process.credentials.reload()
            await trio.sleep(1)
            assert isinstance(state(world), Ready)
            assert server.connections == 2


async def test_a_connection_ends_with_its_login() -> None:
    """Its lists and sessions may be those of another account."""
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        async with open_world(server, credentials=process.credentials) as world:
            await world.settled()
            put(process.store, login(AT, access_token="refreshed"))
            await process.credentials.reload()
            await trio.sleep(1)
            assert server.connections == 1, "a refreshed token is no other login"
            put(process.store, login(AT, id="login-2"))
            await process.credentials.reload()
            await trio.sleep(1)
            assert (server.connections, failures(world)) == (2, [])
            assert isinstance(state(world), Ready)
            put(process.store, login(AT).over("the issuer said no"))
            await process.credentials.reload()
            await trio.sleep(60)
            assert isinstance(state(world), NeedsLogin)
            why = "the login is over, because the issuer said no: colonnade login notes"
            assert (server.connections, needs(world), failures(world)) == (3, [why], [])
            assert describe_state(state(world)) == why


async def is_stored(process: Process, name: str, **changes: Any) -> None:
    """A person logs in, or out with `access_token=None, refresh_token=None`; a second passes."""
    put(process.store, login(AT, id=name, **changes))
    await process.credentials.reload()
    await trio.sleep(1)


OVER = {"access_token": None, "refresh_token": None}


async def test_logins_and_logouts_are_no_restarts() -> None:
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        async with open_world(server, credentials=process.credentials) as world:
            await world.settled()
            for number in range(10):
                await is_stored(process, f"out-{number}", **OVER)
                assert isinstance(state(world), NeedsLogin)
                await is_stored(process, f"in-{number}")
                assert isinstance(state(world), Ready)
            assert failures(world) == []
            server.dies()
            await trio.sleep(1)
            assert isinstance(state(world), Ready), "its restarts are still there"


async def test_a_server_with_a_login_that_flaps_is_limited_all_the_same() -> None:
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        async with open_world(server, credentials=process.credentials) as world:
            await world.settled()
            for _ in range(600):
                server.dies()
                await trio.sleep(0.1)
            assert server.connections <= 5
            await is_stored(process, "login-2")
            assert isinstance(state(world), Ready)
            before = server.connections
            for _ in range(300):
                server.dies()
                await trio.sleep(0.1)
            assert server.connections <= before + 1


async def test_a_session_without_a_login_is_stopped_until_it_is_needed_after_one() -> None:
    """It is not told of a server that is ready again that its session failed."""
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        server.spec = replace(server.spec, eras=Eras.BOTH)
        server.revision, server.stateless, server.session_revision = LATEST.name, True, LATEST_LEGACY.name
        server.answers["tools/call"] = done
        async with open_client(server, credentials=process.credentials) as (world, client, _):
            assert await client.call("notes__x") == {"content": []}
            main = world.upstreams.by_id["notes"]
            assert main.session is not None

            def states() -> list[type[State]]:
                return [type(each.state) for each in main.connections]

            for number in range(3):
                assert states() == [Ready, Ready]
                await is_stored(process, f"out-{number}", **OVER)
                assert states() == [NeedsLogin, Stopped]
                await is_stored(process, f"in-{number}")
                assert states() == [Ready, Stopped]
                assert describe_session(main.session.state) is None
                assert await client.call("notes__x") == {"content": []}
            assert not [event for event in world.events if isinstance(event, SessionFailed | SessionAbsent)]


async def test_a_session_that_alone_wants_a_login_is_absent() -> None:
    async with processes() as (process,):
        server = OneSided(process.of(AT))
        async with open_client(server, credentials=process.credentials) as (world, client, _):
            assert await client.call("notes__x") == {"content": []}
            session = world.upstreams.by_id["notes"].session
            assert session is not None
            assert describe_session(session.state) == (
                "handshake clients use the stateless connection, because its session failed: the server wants a login "
                "(HTTP 401): colonnade login notes"
            )


class Scanty(Protected):
    """A server for whose first login a scope is missing."""

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        if self._credential.login_id == "login-1":
            lacks = Challenge(error="insufficient_scope")
            raise AuthNeeded(403, "the login lacks a scope", self._credential.remedy, lacks, needs_login=True)
        async with super().open_link() as link:
            yield link


async def test_a_failed_server_is_tried_again_when_a_person_has_logged_in() -> None:
    async with processes(stored=login(AT)) as (process,):
        async with open_world(Scanty(process.of(AT)), credentials=process.credentials) as world:
            await trio.sleep(100)
            (why, *_) = failures(world)
            assert why == "the login lacks a scope (HTTP 403): colonnade login notes"
            assert "next attempt in" in describe_state(state(world))
            await is_stored(process, "login-2")
            assert isinstance(state(world), Ready)


async def test_a_stored_login_that_cannot_be_read_is_told() -> None:
    async with processes() as (process,):
        sealed = VAULT.close(CredentialKey("other"), login(AT))
        awaited(process.store.write(lambda transaction: transaction.put_credential(NOTES, sealed)))
        await process.credentials.reload()
        async with open_world(Protected(process.of(AT)), credentials=process.credentials) as world:
            await world.settled()
            assert "cannot be read with the present key" in needs(world)[0]


async def test_a_login_while_a_connection_is_refused_is_not_missed() -> None:
    """The person logs in between the refusal and its end, which may take seconds."""
    async with processes() as (process,):
        server = Protected(process.of(AT))
        server.refuses_for = 2.0
        async with open_world(server, credentials=process.credentials) as world:
            await trio.sleep(1)
            put(process.store, login(AT))
            await process.credentials.reload()
            await trio.sleep(5)
            assert isinstance(state(world), Ready)
            assert (server.connections, needs(world)) == (2, [])


async def test_a_login_while_a_connection_begins_is_that_of_the_next_one() -> None:
    async with processes(stored=login(AT)) as (process,):
        server = Protected(process.of(AT))
        server.opens = trio.Event()
        async with open_world(server, credentials=process.credentials) as world:
            await trio.sleep(1)
            put(process.store, login(AT, id="login-2"))
            await process.credentials.reload()
            server.opens.set()
            await trio.sleep(5)
            assert isinstance(state(world), Ready)
            assert server.connections == 2


async def test_lists_are_remembered_for_one_login(tmp_path: Path) -> None:
    """Another account may be shown other tools; a refreshed token changes nothing."""

    async def listed(name: str, token: str = "t") -> bool:
        async with processes(stored=login(AT, id=name, access_token=token)) as (process,):
            server = Protected(process.of(AT))
            server.opens = trio.Event()
            async with open_world(server, credentials=process.credentials, state=tmp_path) as world:
                await trio.sleep(1)
                known = world.upstreams.by_id["notes"].main.life.listed.is_set()
                server.opens.set()
                await trio.sleep(20)
                return known

    assert not await listed("one")
    assert await listed("one", "refreshed")
    assert not await listed("other")
    assert await listed("one")
