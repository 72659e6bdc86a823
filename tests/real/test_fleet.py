"""Three processes of a fleet on one PostgreSQL, behind haproxy without affinity: clients notice nothing of it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from mcp import Client

from host.cli.admin_client import RunningHost, find_hosts
from tests.kit.balancer import needs_haproxy
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.replicas import fleet_keys, serving_replicas

from .clients import PATIENCE, SDK_LEAKS, Guest, HandClient, by_hand, eventually, sdk, text_of
from .running import SERVERS, Running, colonnade, heard_method, listening, recorder, until, write_config

# On a busy machine three processes take half a minute to start, which is the fixture's time and not the first test's.
pytestmark = [SDK_LEAKS, needs_postgres, needs_haproxy, pytest.mark.timeout(60, func_only=True)]

REPLICAS = 3
ONE_ERA = [sys.executable, str(SERVERS / "one_era.py")]


@dataclass
class Setting:
    """The processes, and where haproxy serves them. Each has servers of its own."""

    replicas: list[Running]
    folders: list[Path]
    url: str

    def calls(self) -> list[list[object]]:
        """The arguments of the calls that the server `a` of each process got."""
        return [
            [call["params"]["arguments"] for call in heard_method(folder / "a.log", "tools/call")]
            for folder in self.folders
        ]


@contextmanager
def serving_fleet(folder: Path, postgres: PostgresServer, **urls: str) -> Iterator[Setting]:
    """The processes and haproxy, for the block: each has its own server `a`, and those at these URLs."""
    with postgres.database() as database:
        # The same words in each file: another program would have to be approved.
        servers = {"a": recorder(Path("a.log"))} | {id: {"url": url} for id, url in urls.items()}
        servers["few"] = recorder(Path("few.log")) | {"limits": {"calls": "12/h", "concurrent": 3}}
        servers["asks"] = recorder(Path("asks.log")) | {"consent": {"tools": {"ask": ["echo"]}}}
        files = []
        for n, fleet in enumerate(fleet_keys(folder, postgres.url(database), REPLICAS)):
            own = folder / f"r{n}"
            own.mkdir()
            files.append(write_config(own, servers, fleet=fleet))
        with serving_replicas(folder, files, *servers) as (replicas, base):
            yield Setting(replicas, [each.parent for each in files], f"{base}/mcp")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        listening(*ONE_ERA, "handshake", "--http", "0", folder=folder) as (_, old),
        listening(*ONE_ERA, "stateless", "--http", "0", folder=folder) as (_, new),
        serving_fleet(folder, postgres, old=old, new=new) as setting,
    ):
        yield setting


async def test_sessions_and_calls_reach_their_home_through_any_process(here: Setting) -> None:
    """Each call is carried out once, by the server of the process that has the session."""
    before = here.calls()
    async with by_hand(here.url) as client:
        for n in range(12):
            answer = await client.ask("tools/call", {"name": "a__echo", "arguments": {"n": n}}, n)
            assert "result" in answer
    made = [after[len(former) :] for after, former in zip(here.calls(), before, strict=True)]
    assert sorted(len(each) for each in made) == [0, 0, 12]
    assert max(made, key=len) == [{"n": n} for n in range(12)]


def test_status_shows_all_processes_and_that_they_have_equal_rules(here: Setting) -> None:
    """Their files differ in the addresses."""
    for folder in here.folders:
        (host,) = find_hosts(folder / "state")

        def serve(host: RunningHost = host) -> bool:
            return {each["status"] for each in host.get("status")["fleet"]["members"]} == {"serving"}

        until(serve, "all have the lists of their servers")
        told = host.get("status")
        fleet = told["fleet"]
        assert (fleet["name"], fleet["is_current"], len(fleet["members"])) == ("acme", True, REPLICAS)
        assert fleet["boot"] in {each["boot"] for each in fleet["members"]}
        assert {(each["status"], each["equal_rules"]) for each in fleet["members"]} == {("serving", True)}
        assert told["problems"] == []
        shown = colonnade("status", COLONNADE_STATE=str(folder / "state")).stdout
        assert f"fleet:          acme, {REPLICAS} members" in shown
        assert shown.count("this host") == 1


async def test_a_confirmation_is_answered_at_another_process_and_used_at_a_third(here: Setting) -> None:
    """Nobody was there for the call, so that the answer is for the next one, and for one alone. A grant that lasts
    holds at each, until it is revoked at one."""
    call = {"name": "asks__echo", "arguments": {"n": 1}}
    first, second, third = here.replicas
    at_second = str(here.folders[1] / "state")
    hosts = [host for folder in here.folders for host in find_hosts(folder / "state")]

    async def at_each(section: str, *, some: bool) -> None:
        """Wait until each process shows some of these, or none."""

        async def is_so() -> bool:
            await trio.lowlevel.checkpoint()
            return all(bool(host.get(f"state/{section}")[section]) is some for host in hosts)

        await eventually(is_so, PATIENCE)

    async def calls(replica: Running) -> bool:
        async with by_hand(replica.url) as client:
            return not (await client.ask("tools/call", call))["result"].get("isError", False)

    async def answers(answer: str) -> None:
        """At the second process."""
        await at_each("confirmations", some=True)
        asked, *_ = hosts[1].get("state/confirmations")["confirmations"]
        done = colonnade("ask", asked["id"], answer, COLONNADE_STATE=at_second)
        assert done.returncode == 0, done.stderr

    assert not await calls(first)
    await answers("once")
    await at_each("confirmations", some=False)
    await at_each("grants", some=True)
    (grant,) = hosts[0].get("state/grants")["grants"]
    assert (grant["scope"], grant["live"], grant["why"]) == ("once", True, "")
    done = colonnade("grants", "revoke", grant["id"], COLONNADE_STATE=at_second)
    assert "revoked everywhere" in done.stdout
    assert not await calls(third)
    await answers("once")
    await at_each("grants", some=True)
    assert [await calls(each) for each in (third, first, second)] == [True, False, False]
    await answers("always")
    await at_each("grants", some=True)
    assert [await calls(each) for each in here.replicas] == [True, True, True]
    (grant,) = hosts[1].get("state/grants")["grants"]
    done = colonnade("grants", "revoke", grant["id"], COLONNADE_STATE=at_second)
    assert "revoked everywhere" in done.stdout
    assert [await calls(each) for each in here.replicas] == [False, False, False]


async def test_what_is_held_back_at_one_process_is_used_at_none_once_it_says_everywhere(here: Setting) -> None:
    (host,) = find_hosts(here.folders[1] / "state")
    item = {"server": "asks", "kind": "tool", "name": "steps"}

    async def listed(replica: Running) -> bool:
        async with by_hand(replica.url) as client:
            tools = (await client.ask("tools/list"))["result"]["tools"]
            return any(each["name"] == "asks__steps" for each in tools)

    assert [await listed(each) for each in here.replicas] == [True, True, True]
    offered = host.post("definitions/list", server="asks")["definitions"]
    (shown,) = [each["fingerprint"] for each in offered if each["name"] == "steps"]
    done = host.post("definitions/decide", **item, fingerprint=shown, decision="revoke")["done"]
    assert done == "The tool steps of asks: held back until it is approved again. This holds everywhere."
    assert [await listed(each) for each in here.replicas] == [False, False, False]


async def test_what_is_held_back_while_a_process_is_stopped_passes_at_its_first_pass_no_more(here: Setting) -> None:
    """The calls are there before it goes on, and so before it can have asked for what was decided meanwhile."""
    (host,) = find_hosts(here.folders[1] / "state")
    offered = host.post("definitions/list", server="asks")["definitions"]
    (shown,) = [each["fingerprint"] for each in offered if each["name"] == "odd"]
    item = {"server": "asks", "kind": "tool", "name": "odd", "fingerprint": shown, "decision": "revoke"}
    stopped, said = here.replicas[2].process, list[Any]()

    async def call(client: HandClient, n: int) -> None:
        said.append(await client.ask("tools/call", {"name": "asks__odd", "arguments": {}}, n))

    async with by_hand(here.replicas[2].url) as client:
        await call(client, 0)
        assert "isError" not in said.pop()["result"]
        stopped.send_signal(signal.SIGSTOP)
        try:
            done = await trio.to_thread.run_sync(lambda: host.post("definitions/decide", **item)["done"])
            assert "held back until it is approved again. This holds" in done
            async with trio.open_nursery() as nursery:
                for n in range(1, 20):
                    nursery.start_soon(call, client, n)
                await trio.sleep(0.5)
                stopped.send_signal(signal.SIGCONT)
        finally:
            stopped.send_signal(signal.SIGCONT)
    assert [each for each in said if not each.get("result", {"isError": True}).get("isError")] == []
    assert len(said) == 19


async def test_a_rate_is_that_of_all_processes_together(here: Setting) -> None:
    """Each has a part ahead, and gets more while it is used; no process refuses its first call."""
    passed = []
    for _ in range(6):
        for replica in here.replicas:
            async with by_hand(replica.url) as client:
                answer = await client.ask("tools/call", {"name": "few__echo", "arguments": {}})
                passed.append("result" in answer)
        await trio.sleep(0.3)
    assert passed[:REPLICAS] == [True] * REPLICAS
    assert 9 <= passed.count(True) <= 12


async def test_the_official_client_lists_calls_hears_progress_and_changes(here: Setting) -> None:
    """In the handshake era, with a standing stream."""
    async with sdk(here.url) as client:
        assert {"a__echo", "old__add", "new__add"} <= set(await client.names())
        steps: list[float] = []

        async def note(progress: float, total: float | None, message: str | None) -> None:
            await trio.lowlevel.checkpoint()
            steps.append(progress)

        arguments = {"count": 5, "note": "x"}
        await client.client.call_tool("a__steps", arguments, progress_callback=note)

        async def has_all() -> bool:  # the SDK hands them over in tasks of their own
            await trio.lowlevel.checkpoint()
            return sorted(steps) == [1, 2, 3, 4, 5]

        await eventually(has_all, PATIENCE)
        await client.client.call_tool("a__grow", {"name": "newer"})
        await client.hears("notifications/tools/list_changed", PATIENCE)
        assert "a__newer" in await client.names()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("server", ["old", "new"])
async def test_a_server_asks_in_the_middle_of_a_call_whoever_gets_the_answer(
    here: Setting, mode: str, server: str
) -> None:
    """Both eras on both sides: a session whose answers come in elsewhere, and calls that are repeated elsewhere."""
    guest = Guest()
    async with guest.at(here.url, mode) as client:
        for _ in range(3):
            booked = await client.call_tool(f"{server}__book_table", {"day": "Friday"})
            assert not booked.is_error, text_of(booked)
    assert len(guest.asked) == 6


async def test_many_clients_of_both_eras_at_once(here: Setting) -> None:
    async def use(mode: str, n: int) -> None:
        async with Client(here.url, mode=mode, cache=None, read_timeout_seconds=PATIENCE) as client:
            for step in range(5):
                said = f"{mode} {n} {step}"
                answer = await client.call_tool("a__echo", {"said": said})
                assert json.loads(text_of(answer))["params"]["arguments"] == {"said": said}
                assert len((await client.list_tools()).tools) > 5

    async with trio.open_nursery() as nursery:
        for n in range(6):
            nursery.start_soon(use, "legacy" if n % 2 else "auto", n)
    said = [each["said"] for of_one in here.calls() for each in of_one if isinstance(each, dict) and "said" in each]
    assert len(said) == len(set(said)) == 30, "none was carried out twice"


async def test_a_cancelled_call_ends_at_its_server(here: Setting) -> None:
    """By a notification that comes in at another process than the call; and by a client that leaves."""
    async with by_hand(here.url) as client, trio.open_nursery() as nursery:
        hang = {"name": "a__hang", "arguments": {}, "_meta": {"progressToken": "p"}}
        nursery.start_soon(client.ask, "tools/call", hang, "hanging")

        async def has_begun() -> bool:
            await trio.lowlevel.checkpoint()
            called = [each for folder in here.folders for each in heard_method(folder / "a.log", "tools/call")]
            return any(each["params"]["name"] == "hang" for each in called)

        await eventually(has_begun, PATIENCE)
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "hanging"}}
        await client.post(json.dumps(said).encode())

        async def is_cancelled() -> bool:
            await trio.lowlevel.checkpoint()
            return any(heard_method(folder / "a.log", "notifications/cancelled") for folder in here.folders)

        await eventually(is_cancelled, PATIENCE)
        nursery.cancel_scope.cancel()


async def test_a_foreign_and_an_ended_session_are_unknown_everywhere(here: Setting) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        for _ in range(REPLICAS):
            answer = await http.post(
                here.url,
                json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
                headers={"mcp-session-id": "f1.AAAA.x", "accept": "application/json, text/event-stream"},
            )
            assert answer.status_code == 404


class Caller:
    """A client of the handshake era that calls on and on, whatever becomes of its calls."""

    def __init__(self, name: str, http: httpx.AsyncClient, url: str) -> None:
        self.name = name
        self.right: list[tuple[float, int]] = []
        """The time and the number of each call that was answered as it should be."""
        self.lost: list[str] = []
        """What was said instead."""
        self.is_stopping = False
        self.client = HandClient(http, url, "2025-11-25")

    async def run(self) -> None:
        client, number = self.client, 0
        while not self.is_stopping:
            number += 1
            params = {"name": "a__echo", "arguments": {"of": self.name, "n": number}}
            said = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            try:
                answer = await client.http.post(client.url, json=said, headers=client.headers, timeout=15)
            except httpx.HTTPError as problem:
                self.lost.append(repr(problem))
                continue
            result = answer.json().get("result") if answer.status_code == 200 else None
            if result is None:
                self.lost.append(f"{answer.status_code} {answer.text[:200]}")
            else:
                echoed = json.loads(result["content"][0]["text"])["params"]["arguments"]
                assert echoed == params["arguments"], "somebody else's answer"
                self.right.append((trio.current_time(), number))
            await trio.sleep(0.05)


ADOPTED_WITHIN = 8.0
"""Seconds after a kill in which each session must have answered again: the lease, and a busy machine."""


async def test_a_killed_process_loses_what_was_in_flight_and_nothing_else(here: Setting) -> None:
    """No session is opened anew, none gets 404, and no call is carried out twice. The last test: one process is left
    after it."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(trust_env=False, limits=limits) as http, trio.open_nursery() as nursery:
        callers = [Caller(f"c{n}", http, here.url) for n in range(12)]
        for each in callers:
            await each.client.open()
            nursery.start_soon(each.run)
        await trio.sleep(2)
        for victim in here.replicas[:2]:
            victim.process.kill()
            killed_at = trio.current_time()

            async def all_go_on(since: float = killed_at) -> bool:
                await trio.lowlevel.checkpoint()
                return all(each.right and each.right[-1][0] > since + 0.5 for each in callers)

            await eventually(all_go_on, ADOPTED_WITHIN)
            await trio.sleep(1)
        for each in callers:  # a request that is cancelled leaves its socket to the garbage collector
            each.is_stopping = True
    lost = [said for each in callers for said in each.lost]
    assert not [said for said in lost if said.startswith("404")]
    assert len(lost) <= 2 * len(callers), lost
    made = [json.dumps(each) for of_one in here.calls() for each in of_one if isinstance(each, dict) and "of" in each]
    assert len(made) == len(set(made)), "a call was carried out twice"
