"""Sessions of a process that is gone go on at another one, and at one only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio

from config import Auth, Capacity, Consent, KindConsent, Listen, Rule, Secret
from host.fleet.members import OWN_LEASE
from tests.host.fleet.test_forwarding import CALL, call, saying
from tests.kit.fleet import FleetFiles, FleetSite, open_site
from tests.kit.world import ScriptedServer

pytestmark = pytest.mark.slow

A, B, C = "a" * 16, "b" * 16, "c" * 16
LISTEN = {"accept": "text/event-stream"}


class Three(NamedTuple):
    """Three members, the first of which can leave before the others."""

    files: FleetFiles
    a: FleetSite
    of_a: AsyncExitStack
    b: FleetSite
    c: FleetSite


@asynccontextmanager
async def open_three(folder: Path, **more: Any) -> AsyncIterator[Three]:
    files = FleetFiles(folder)

    def server(which: str) -> ScriptedServer:
        return ScriptedServer("s", tools=["x"], answers={"tools/call": saying(which)})

    async with (
        open_site(files, B, server("b"), **more) as b,
        open_site(files, C, server("c"), **more) as c,
        AsyncExitStack() as of_a,
    ):
        a = await of_a.enter_async_context(open_site(files, A, server("a")))
        await b.members.wait_list()
        await c.members.wait_list()
        yield Three(files, a, of_a, b, c)


async def leave(three: Three) -> None:
    """The first member ends in order, and the others know it."""
    await three.a.wait_stored()
    await three.of_a.aclose()
    await three.b.members.wait_list()
    await three.c.members.wait_list()


async def test_the_stream_of_an_adopted_session_takes_one_place(tmp_path: Path) -> None:
    async with open_three(tmp_path, capacity=Capacity(streams=2)) as three:  # one of a kind
        await three.a.client.open()
        session = three.a.client.session
        await leave(three)
        stream = three.b.client.another(session).send("GET", headers=LISTEN)
        with trio.fail_after(5):
            await stream.started.wait()
        assert stream.status == 200


async def test_a_session_of_a_process_that_is_gone_is_adopted_by_one_of_the_others(tmp_path: Path) -> None:
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        assert await call(three.b, session) == "a"
        await leave(three)
        answers: set[str] = set()

        async def ask(site: FleetSite) -> None:
            answers.add(await call(site, session))

        async with trio.open_nursery() as nursery:
            for site in (three.b, three.c) * 3:
                nursery.start_soon(ask, site)
        assert answers in ({"b"}, {"c"}), "one of them has it, whoever was asked"
        assert [await call(site, session) for site in (three.b, three.c)] == [*answers, *answers]
        assert three.b.unknown == three.c.unknown == []


async def test_its_client_hears_of_lists_that_may_have_changed_meanwhile(tmp_path: Path) -> None:
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        await leave(three)
        assert await call(three.b, three.a.client.session) == "b"
        standing = three.c.client.another(three.a.client.session).send("GET", headers=LISTEN)
        notice, *_ = await standing.wait_messages(1)
        assert notice["method"] == "notifications/tools/list_changed"


async def test_a_session_that_was_ended_is_adopted_by_nobody(tmp_path: Path) -> None:
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        assert (await three.b.client.another(session).get("DELETE")).status == 204
        await leave(three)
        assert [await call(site, session) for site in (three.b, three.c)] == ["404", "404"]


async def test_an_adopted_session_is_adopted_again(tmp_path: Path) -> None:
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        await leave(three)
        first = await call(three.b, session)
        assert first == "b"
        assert await call(three.c, session) == "b"
        await three.b.wait_stored()
        three.b.scope.cancel()
        await three.files.directory.leave(B)
        three.files.directory.shut_out.add(B)
        await three.c.members.wait_list()
        assert await call(three.c, session) == "c"


async def test_a_process_that_was_cut_off_drops_what_others_have_adopted(tmp_path: Path) -> None:
    """It comes back with the session in its memory; its client is served by one process only from then on."""
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        await three.a.wait_stored()
        three.files.directory.shut_out.add(A)
        await trio.sleep(OWN_LEASE + 1)
        assert await call(three.b, session) == "b"
        assert await call(three.a, session) == "a", "it goes on while it knows nothing"
        three.files.directory.shut_out.clear()
        await three.a.wait_gone(session)
        for site in (three.a, three.b, three.c):
            assert await call(site, session) == "b"


async def test_a_process_that_was_cut_off_drops_what_was_ended_elsewhere_meanwhile(tmp_path: Path) -> None:
    """Its client has said there that the session is over: nobody goes on with it."""
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        await three.a.wait_stored()
        directory = three.files.directory
        directory.shut_out.add(A)
        await trio.sleep(OWN_LEASE + 1)
        assert await call(three.b, session) == "b"
        (key,) = directory.adopted
        assert (await three.b.client.another(session).get("DELETE")).status == 204
        directory.adopted.clear()
        directory.ended.add(key)
        directory.shut_out.clear()
        await three.a.wait_gone(session)
        assert await call(three.a, session) == "404"


async def test_while_the_directory_is_away_nothing_is_adopted(tmp_path: Path) -> None:
    async with open_three(tmp_path) as three:
        await three.a.client.open()
        session = three.a.client.session
        await leave(three)
        three.files.directory.away = True
        assert await call(three.b, session) == "503"
        three.files.directory.away = False
        await three.b.members.wait_list()
        assert await call(three.b, session) == "b"


def call_of(tool: str) -> dict[str, Any]:
    return {**CALL, "params": {"name": f"s__{tool}", "arguments": {}}}


async def test_a_process_with_other_rules_lets_through_what_its_own_rules_allow(tmp_path: Path) -> None:
    """It denies a tool, and does not know one of the tokens with which sessions were opened. While their home is there,
    they are that one's; once they are adopted, nothing of what it allowed is left."""
    files = FleetFiles(tmp_path)
    desk, laptop = ({"authorization": f"Bearer a-token-of-the-{who}"} for who in ("desk", "laptop"))
    both = Auth({who: Secret(f"a-token-of-the-{who}") for who in ("desk", "laptop")})
    denies = Consent(tools=KindConsent((Rule("x"),), deny=(Rule("y"),)))
    lax = ScriptedServer("s", tools=["x", "y"], answers={"tools/call": saying("lax")})
    strict = ScriptedServer("s", tools=["x", "y"], answers={"tools/call": saying("strict")}, consent=denies)
    listen = Listen(auth=Auth({"desk": both.tokens["desk"]}))
    async with open_site(files, B, strict, listen=listen) as b, AsyncExitStack() as of_a:
        a = await of_a.enter_async_context(open_site(files, A, lax, listen=Listen(auth=both)))
        await b.members.wait_list()
        sessions = []
        for token in (desk, laptop):
            a.client.headers = token
            client = a.client.another()
            await client.open()
            sessions.append(client.session)

        async def answer(token: dict[str, str], session: str | None, tool: str) -> str:
            b.client.headers = token
            came = await b.client.another(session).get("POST", body=call_of(tool))
            return json.dumps(came.messages()) if came.status == 200 else str(came.status)

        assert "lax" in await answer(desk, sessions[0], "y")
        await a.wait_stored()
        await of_a.aclose()
        await b.members.wait_list()
        assert "strict" in await answer(desk, sessions[0], "x")
        assert "-32602" in await answer(desk, sessions[0], "y"), "as if it did not exist"
        assert await answer(laptop, sessions[1], "x") == "401"
        assert await answer(desk, sessions[1], "x") == "404", "it is another one's"
