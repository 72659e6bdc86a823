"""Requests are counted, and no label is a word of a peer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock

from config import Consent, Secret, StdioServer
from host.attempts import Attempt, Reason
from host.journal import (
    AttemptRefused,
    AttemptsUnnamed,
    ConfigReloaded,
    DecisionMade,
    InternalError,
    Journal,
    LoggedIn,
    LoginFailed,
    MessageDropped,
    RequestCompleted,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerStopped,
    TokenNotRefreshed,
)
from host.jsonrpc.messages import ErrorBody, Request, Success
from host.peer.outstanding import PeerError
from host.peer.peer import open_peer
from host.protocol.methods import Kind
from host.telemetry import counts, names
from host.telemetry.counts import LONGEST_READ, Durations, HostCounts, cumulative
from host.wire.link import LinkLost
from tests.kit.asgi import open_http_app
from tests.kit.cost import counted_calls
from tests.kit.gates import kind
from tests.kit.memory import NullHandler, memory_links
from tests.kit.tasks import begins, extension_server, handshake_server, says_result, says_status
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world


def counting(journal: Journal, *, tools: bool = False) -> HostCounts:
    found = journal.observer = HostCounts(journal, tools=tools, now=trio.current_time)
    return found


def numbers(durations: Durations) -> dict[tuple[str, ...], int]:
    return {labels: int(cumulative(row)[-1]) for labels, row in durations.rows.items()}


def of_calls(durations: Durations) -> dict[tuple[str, ...], int]:
    return {labels: n for labels, n in numbers(durations).items() if "tools/call" in labels}


HOP = "2025-11-25", "tcp"
"""To the client of these tests, which is no program."""


def scripted(*tools: str, **more: Any) -> ScriptedServer:
    async def answer(params: dict[str, Any]) -> object:
        if params["name"] == "breaks":
            raise PeerError(ErrorBody(-31337, "a code of its own"))
        if params["name"] == "waits":
            await trio.sleep(2.5)
        said = {"content": [{"type": "text", "text": '"isError"'}]}
        return {**said, "isError": True} if params["name"] == "fails" else said

    return ScriptedServer("a", tools=tools, answers={"tools/call": answer}, **more)


async def restarted(world: World) -> None:
    """Connections are watched that are opened after the observer is there."""
    world.configures(*world.servers.values(), restart=world.servers)
    await world.settled()


async def test_requests_are_counted_by_how_they_end(autojump_clock: MockClock) -> None:
    server = scripted("x", "fails", "breaks", "waits", consent=Consent(tools=kind(deny=["secret"])))
    async with open_client(server) as (world, client, nursery):
        found = counting(world.journal)
        await restarted(world)
        await client.call("a__x")
        await client.call("a__waits")
        assert (await client.call("a__fails"))["isError"]
        for name in ("a__breaks", "a__secret", "a__made_up"):
            with pytest.raises(Refusal):
                await client.call(name)
        with pytest.raises(Refusal):
            await client.request("made/up")
        called_off = later(nursery, client.request, "tools/call", {"name": "a__waits"}, id=77)
        await trio.sleep(1)
        client.notifies("notifications/cancelled", {"requestId": 77})
        assert await called_off.comes() is None
    assert numbers(found.server_operations) == {
        ("tools/call", "", *HOP): 2,
        ("tools/call", "tool_error", *HOP): 1,
        ("tools/call", "_OTHER", *HOP): 1,
        ("tools/call", "-32602", *HOP): 2,
        ("tools/call", "cancelled", *HOP): 1,
        ("_OTHER", "-32601", *HOP): 1,
    }
    assert of_calls(found.client_operations) == {
        ("a", "tools/call", "", "2025-11-25"): 2,
        ("a", "tools/call", "tool_error", "2025-11-25"): 1,
        ("a", "tools/call", "_OTHER", "2025-11-25"): 1,
        ("a", "tools/call", "cancelled", "2025-11-25"): 1,
    }
    assert found.server_operations.rows["tools/call", "", *HOP][0] == pytest.approx(2.5)
    calls = found.counts[names.CALLS]
    assert calls == {
        ("a", "tools/call", "tool", "allow", "answered"): 3,
        ("a", "tools/call", "tool", "allow", "error"): 1,
        ("a", "tools/call", "tool", "allow", "called off"): 1,
    }
    assert found.counts[names.RESULT_BYTES]["a", "tool"] > 100
    assert found.counts[names.ARGUMENT_BYTES]["a", "tool"] == 5 * len("{}")


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        *((each, each) for each in ("answered", "handed on", "told", "called off", "failed")),
        ("error 502", "error"),
        ("made up", "error"),
    ],
)
def test_requests_of_servers_are_counted_by_their_outcome(outcome: str, counted: str) -> None:
    journal = Journal()
    found = HostCounts(journal)
    journal.note(RequestCompleted("a", "roots", "roots", "ann", "ask", outcome, 0.1))
    assert found.counts[names.CALLS] == {("a", "roots/list", "roots", "ask", counted): 1}


async def test_nothing_is_kept_of_a_server_that_is_not_there_any_more(autojump_clock: MockClock) -> None:
    async with open_client(scripted("x"), ScriptedServer("b", tools=["x"])) as (world, client, _):
        found = counting(world.journal, tools=True)
        await restarted(world)
        for name in ("a__x", "b__x"):
            await client.call(name)
        world.journal.note(MessageDropped("b", "list", "too long"))
        world.journal.note(ServerFailed("b", "it ended", 1.0))
        world.journal.note(ServerReady("b", "b", "", 0.1))

        def of(server: str) -> list[object]:
            rows = [*found.client_operations.rows, *found.client_sessions.rows]
            for counter in found.counts.values():
                rows += counter
            ids = [*found._peers, *found._ready_since, *found.transports, *dict(found._tools)]
            return [*(each for each in rows if each[:1] == (server,)), *(each for each in ids if each == server)]

        before, others = of("a"), len(numbers(found.server_operations))
        assert len(of("b")) > 10
        found.keep_only({"a", "c"})
        assert (of("a"), of("b"), len(numbers(found.server_operations))) == (before, [], others)
    assert found.counts[names.INTERNAL_ERRORS] == {(): 0}


def test_bytes_are_added_by_server_and_kind_and_begin_at_0_if_the_server_comes_back() -> None:
    journal = Journal()
    found = HostCounts(journal)
    of_bytes = names.ARGUMENT_BYTES, names.RESULT_BYTES
    for verdicts, sent, size in ((("allow", "ask"), 6, 10), (("allow",), 3, 5)):
        for verdict in verdicts:
            event = RequestCompleted("a", "tool", "x", "ann", verdict, "answered", 0.1, 5, method="tools/call", sent=3)
            journal.note(event)
        counted = found.counts
        assert counted[names.CALLS] == {("a", "tools/call", "tool", each, "answered"): 1 for each in verdicts}
        assert [counted[each] for each in of_bytes] == [{("a", "tool"): sent}, {("a", "tool"): size}]
        found.keep_only([])


async def test_tools_are_named_only_if_the_file_says_so_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MAX_TOOLS", 1)
    async with open_client(scripted("x", "y", "z" * 129)) as (world, client, _):
        found = counting(world.journal, tools=True)
        await restarted(world)
        outward = {entry.ref.name: entry.outward for entry in world.catalog.entries_of("a", Kind.TOOL)}
        for name in ("z" * 129, "x", "y", "x"):
            await client.call(outward[name])
    assert of_calls(found.client_operations) == {
        ("a", "tools/call", "", "2025-11-25", "x"): 2,
        ("a", "tools/call", "", "2025-11-25", "_OTHER"): 2,
    }
    assert ("a", "tools/list", "", "2025-11-25", "") in numbers(found.client_operations)


async def test_a_link_that_breaks_is_an_error_without_a_code() -> None:
    found = HostCounts(Journal())
    ours, theirs = memory_links()
    async with open_peer(ours, NullHandler()) as peer:
        found.sending(StdioServer(id="a", command=(Secret("x"),)), peer, peer.request)
        theirs.close()
        with pytest.raises(LinkLost):
            await peer.request("ping")
        await peer.ended.wait()
        with pytest.raises(LinkLost):
            await peer.request("ping")  # it is not sent
    assert numbers(found.client_operations) == {("a", "ping", "_OTHER", ""): 1}


@pytest.mark.parametrize("length", [10, 10 * LONGEST_READ])
async def test_a_long_result_fails_if_its_server_said_so(length: int) -> None:
    """Its client gets another text than its server wrote, which is not read again."""
    text = "x" * length

    async def answer(params: dict[str, Any]) -> object:
        result = {"content": [{"type": "text", "text": text}], "isError": params["name"] == "fails"}
        if params["name"] == "refuses":
            raise PeerError(ErrorBody(-32000, text))
        return result

    server = ScriptedServer("a", tools=["x", "fails", "refuses"], answers={"tools/call": answer})
    async with open_client(server) as (world, client, _):
        found = counting(world.journal)
        await restarted(world)
        for name in ("x", "fails", "x"):
            await client.call(f"a__{name}")
        with pytest.raises(Refusal):
            await client.call("a__refuses")
    for durations in (found.server_operations, found.client_operations):
        errors = Counter[str]()
        for labels, count in of_calls(durations).items():
            errors[labels[2 if labels[0] == "a" else 1]] += count
        assert errors == {"": 2, "tool_error": 1, "-32000": 1}


def test_a_result_is_not_kept_with_its_request_once_that_is_answered() -> None:
    """Requests are kept as long as what they have a client watch."""
    counted = HostCounts(Journal()).answering(Request(1, "resources/subscribe"))
    counted.result = Raw(b"{}")
    counted.end(Success(1, Raw(b"{}")))
    assert counted.result is None


@pytest.mark.parametrize("length", [10, 2 * LONGEST_READ])
@pytest.mark.parametrize("server_of", [handshake_server, extension_server])
async def test_a_task_fails_if_its_result_says_so(
    server_of: Callable[[], ScriptedServer], length: int, autojump_clock: MockClock
) -> None:
    """The requests about the task, of which the last one brings the result, are none of them the call."""
    said = {"content": [{"type": "text", "text": "x" * length}]}
    server = server_of()
    async with open_client(server) as (world, client, nursery):
        found = counting(world.journal)
        await restarted(world)
        for result in (said, {**said, "isError": True}):
            call = later(nursery, client.call, "a__x")
            await begins(server)
            of_status: dict[str, Any] = {"result": result} if server.stateless else {}
            await says_status(server, "completed", **of_status)
            if not server.stateless:
                await says_result(server, result)
            assert await call.comes() == result
    assert of_calls(found.server_operations) == {("tools/call", error, *HOP): 1 for error in ("", "tool_error")}


async def test_a_task_has_not_failed_that_is_polled_as_its_result_comes(autojump_clock: MockClock) -> None:
    """The poll is called off, which says nothing of the call."""
    result = {"content": [{"type": "text", "text": "x" * 2 * LONGEST_READ}]}
    server = handshake_server()
    async with open_client(server) as (world, client, nursery):
        found = counting(world.journal)
        await restarted(world)
        call = later(nursery, client.call, "a__x")
        await begins(server)
        await says_status(server, "input_required")
        wanted = await server.hears("tasks/result")
        await server.hears("tasks/get")
        server.says(wanted["id"], result)
        assert await call.comes() == result
    assert of_calls(found.server_operations) == {("tools/call", "", *HOP): 1}


async def test_buckets_are_cumulative() -> None:
    durations = Durations()
    for seconds in (0.001, 0.01, 0.011, 1000):
        durations.observe(("a",), seconds)
    ((labels, row),) = durations.rows.items()
    assert labels == ("a",)
    assert row[0] == pytest.approx(1000.022)
    assert cumulative(row)[:3] == [2, 3, 3]
    assert cumulative(row)[-2:] == [3, 4]


async def test_events_are_counted(autojump_clock: MockClock) -> None:
    journal = Journal()
    found = HostCounts(journal, now=trio.current_time)
    attempt = Attempt(Reason.MISSING, "tool", "x", "", "", "")
    journal.note(ServerReady("a", "", "", 0.1))
    await trio.sleep(7)
    for event in (
        AttemptRefused("a", attempt),
        AttemptRefused("a", attempt, 5),  # the first of them among these
        AttemptsUnnamed(3),
        DecisionMade("a", "x", "once", "console"),
        ServerFailed("a", "it ended", 1.0),
        ServerFailed("a", "it ended", 1.0),
        ServerReady("a", "", "", 0.1),
        ServerStopped("a", 5.0),
        MessageDropped("a", "unknown id", "7"),
        LoggedIn("a", "i", "console"),
        LoginFailed("a", "x"),
        TokenNotRefreshed("a", "x"),
        ConfigReloaded("x", accepted=True),
        ConfigReloaded("x", accepted=True, waiting=("a",)),
        ConfigReloaded("x", accepted=False),
        InternalError("x", ValueError()),
    ):
        journal.note(event)
    assert {metric.name: dict(each) for metric, each in found.counts.items() if each} == {
        "colonnade_refused_attempts": {("missing",): 5, ("unnamed",): 3},
        "colonnade_confirmations": {("a", "once"): 1},
        "colonnade_server_starts": {("a",): 2},
        "colonnade_server_failures": {("a",): 2},
        "colonnade_dropped_messages": {("a", "unknown id"): 1},
        "colonnade_logins": {("a", "done"): 1, ("a", "failed"): 1, ("a", "not refreshed"): 1},
        "colonnade_config_reloads": {("taken over",): 1, ("waits",): 1, ("rejected",): 1},
        "colonnade_internal_errors": {(): 1},
    }
    assert {labels: row[0] for labels, row in found.client_sessions.rows.items()} == {
        ("a", "_OTHER", ""): 7,
        ("a", "", ""): 0,
    }


async def test_a_connection_to_a_server_is_told_however_it_ends(autojump_clock: MockClock) -> None:
    journal = Journal()
    found = HostCounts(journal, now=trio.current_time)
    disabled = StdioServer(id="a", command=(Secret("x"),), disabled=True)

    def totals() -> dict[str, float]:
        """The seconds of those that have ended, by what their server is said to have done."""
        return {error: row[0] for (_, error, _), row in found.client_sessions.rows.items()}

    for end, expected in (
        (partial(journal.note, ServerNeedsLogin("a", "its token is over")), {"_OTHER": 1}),
        (partial(journal.note, ServerReady("a", "", "", 0.1)), {"_OTHER": 1, "": 2}),  # a restart
        (partial(journal.note, ServerHeld("a", "x", confined=False)), {"_OTHER": 1, "": 6}),
        (partial(found.follow, {"a": disabled}), {"_OTHER": 1, "": 14}),
    ):
        journal.note(ServerReady("a", "", "", 0.1))
        await trio.sleep(sum(expected.values()) - sum(totals().values()))
        end()
        assert totals() == expected


async def test_a_call_that_nobody_watches_takes_no_step_more() -> None:
    """Counted over HTTP, in functions of ours and of all others: the fewest of some calls."""
    async with open_http_app(scripted("x")) as (world, client):
        await client.open()

        async def steps() -> tuple[int, Counter[str]]:
            least: list[str] = []
            for _ in range(5):
                with counted_calls() as called:
                    await client.request("tools/call", {"name": "a__x"})
                least = min(least or called, called, key=len)
            return len(least), Counter(least)

        await steps()
        _, before = await steps()
        found = counting(world.journal)
        await restarted(world)
        await client.request("tools/call", {"name": "a__x"})
        _, watched = await steps()
        assert sum(of_calls(found.client_operations).values()) > 3
    own = {name for name in watched - before if name.startswith(("HostCounts", "_CountedAnswer", "Durations"))}
    assert own
    assert [name for name in before if name in own] == []
    # Whether the tool failed is looked at once, for the audit, the metrics of its server and those of the client.
    assert (before["is_error"], watched["is_error"]) == (1, 1)


async def test_a_journal_for_our_own_requests_tells_the_same_readers_and_is_not_observed() -> None:
    async with open_world(scripted("x")) as world:
        found = counting(world.journal)
        quiet = world.journal.unobserved()
        quiet.note(InternalError("x", ValueError()))
        assert found.counts[names.INTERNAL_ERRORS][()] == 1
        assert (quiet.observer, world.journal.observer) == (None, found)


async def test_sessions_of_clients_are_told_by_the_kind_of_their_transport() -> None:
    found = HostCounts(Journal())
    for transport, seconds in (("http", 1.0), ("sse", 2.0), ("relay", 4.0), ("stdio", 8.0)):
        found.on_client_left(transport, "2025-06-18", seconds)  # type: ignore[arg-type]  # a Literal, in a loop
    found.on_client_left("http", "my own", 16.0)
    totals = {labels: row[0] for labels, row in found.server_sessions.rows.items()}
    assert totals == {("2025-06-18", "tcp"): 3, ("2025-06-18", "pipe"): 12, ("_OTHER", "tcp"): 16}
