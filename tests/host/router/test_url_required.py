"""Web pages that a server wants visited first: who is shown them, in which form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from config import Trust
from host.errors import (
    Forbidden,
    MissingAbility,
    ProtocolViolation,
    Unconfirmed,
)
from host.exchange import Answered, InputRequired, MrtrRound
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.protocol.mrtr import MAX_KEYS
from host.upstream.mrtr import MAX_STATE
from tests.host.router.shared import COMPLETION, REACHING, refusing, told
from tests.kit.world import Refusal, open_world

PAGES: dict[str, list[dict[str, object]]] = {
    "elicitations": [
        {"mode": "url", "elicitationId": "e1", "url": "https://x/1", "message": "Log in", "more": 1.5},
        {"mode": "url", "elicitationId": "e2", "url": "https://x/2", "message": "Pay"},
    ]
}
TARGET_KINDS = {"tools/call": "tool", "prompts/get": "prompt", "resources/read": "resource"}


@pytest.mark.few(14)
@pytest.mark.parametrize("trust", list(Trust))
@pytest.mark.parametrize("elicitation", [None, {}, {"url": {}}])
@pytest.mark.parametrize(("method", "params"), REACHING)
async def test_pages_are_shown_to_clients_that_can_if_the_server_may_want_that(
    trust: Trust, elicitation: dict[str, object] | None, method: str, params: object
) -> None:
    """To those who cannot it is said in words, and so it is for a subscription, which may be several clients'. For a
    server that is not trusted a person is asked first, where anybody may be asked; for an untrusted one it is not even
    said (rules 74, 76)."""
    async with open_world(refusing(-32042, "go there", PAGES, trust=trust)) as world:
        await world.settled()
        client = await world.client(capabilities={} if elicitation is None else {"elicitation": elicitation})
        world.approves()
        alone = "" if trust is Trust.TRUSTED else await told(client, method, params)
        if alone:
            assert "https:" not in alone
            if trust is Trust.UNTRUSTED:
                assert method == COMPLETION or "needs a person's consent" in alone
            elif method in ("resources/subscribe", COMPLETION):
                assert alone.startswith("403 a wants a web page")
            else:
                assert alone.startswith(
                    ("isError a's request to have a page visited", "408 a's request to have a page visit")
                )
        with world.auto_answering() as asked:
            said = await told(client, method, params)
        kinds = [pending.access.subject.item.kind for pending in asked]
        if trust is Trust.UNTRUSTED:
            assert "https:" not in said
            if method == "resources/subscribe":
                assert "needs a person's consent" in said
            else:
                assert (
                    said == "[]" if method == COMPLETION else said.startswith(("isError a wants a web page", "403 a"))
                )
            assert kinds == [] if method in ("resources/subscribe", COMPLETION) else [TARGET_KINDS[method]]
            return
        if trust is Trust.STANDARD and method in ("resources/subscribe", COMPLETION):
            assert (said, kinds) == (alone, [])
            return
        assert kinds == ([] if trust is Trust.TRUSTED else ["url", "url"])
        if elicitation == {"url": {}} and method != "resources/subscribe":
            with world.auto_answering(), pytest.raises(Refusal) as refused:
                await client.request(method, params)
            assert (refused.value.code, refused.value.message) == (-32042, "go there")
            pages = refused.value.data["elicitations"]
            assert [{**page, "elicitationId": ""} for page in pages] == [
                {**page, "elicitationId": "", "message": f"[a] {page['message']}"} for page in PAGES["elicitations"]
            ]
            assert not {page["elicitationId"] for page in pages} & {"e1", "e2"}
        else:
            assert said.startswith(("isError a wants this to be visited first", "403 a wants this to be visited first"))
            assert all(f"{page['message']} {page['url']}" in said for page in PAGES["elicitations"])


UNJUDGED: list[dict[str, Any]] = [
    {"elicitations": [{"url": "https://x", "elicitationId": "e"}]},
    {"elicitations": [{"url": "https://x", "elicitationId": "e", "message": "m", "URL": "https://y"}]},
    {"elicitations": [{"url": "https://x", "elicitationId": "e", "message": "m"}], "Elicitations": []},
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "data", [None, {}, {"elicitations": 5}, {"elicitations": [{"url": "https://x"}]}, *UNJUDGED, "https://x"]
)
async def test_pages_that_cannot_be_read_are_shown_to_nobody(data: object) -> None:
    """An id that is missing cannot be renamed (rule 76), and pages that nobody can read alike cannot be judged."""
    async with open_world(refusing(-32042, "go there", data, trust=Trust.TRUSTED)) as world:
        elicitations: list[dict[str, object]] = [{}, {"url": {}}]
        for elicitation in elicitations:
            client = await world.client(capabilities={"elicitation": elicitation})
            said = await told(client, "tools/call", {"name": "a__x"})
            assert "https:" not in said
            assert "go there" in said


@pytest.mark.parametrize("pages", [MAX_KEYS, MAX_KEYS + 1, 1])
async def test_a_client_that_asks_again_is_given_no_more_pages_than_it_can_carry(pages: int) -> None:
    """Neither too many nor too long ones (rule 5)."""
    long = "x" * MAX_STATE if pages == 1 else ""
    wanted = [{**PAGES["elicitations"][0], "url": f"https://x/{at}", "message": f"m{long}"} for at in range(pages)]
    async with open_world(refusing(-32042, "go there", {"elicitations": wanted}, trust=Trust.TRUSTED)) as world:
        came = await world.mrtr_round("tools/call", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})
        if pages == MAX_KEYS:
            assert isinstance(came, InputRequired)
            assert (came.server, len(came.requests), came.state, came.restarts) == ("a", MAX_KEYS, None, True)
        else:
            assert isinstance(came, Answered)
            assert b"too many pages" in bytes(came.result)


@pytest.mark.parametrize(("method", "params"), REACHING[:3])
async def test_pages_become_questions_for_whoever_repeats_its_request(method: str, params: dict[str, Any]) -> None:
    """Signed, without ids, and without a state: the request is to be sent again as it was (rules 73, 76)."""
    server = refusing(-32042, "go there", PAGES, trust=Trust.TRUSTED)
    async with open_world(server) as world:
        await world.settled()
        found = await world.mrtr_round(method, params, capabilities={"elicitation": {"url": {}}})
        assert isinstance(found, InputRequired)
        assert (found.server, found.state) == ("a", None)
        asked = [
            (how, {key: json.loads(bytes(each)) for key, each in page.items()}) for how, page in found.requests.values()
        ]
        assert asked == [
            ("elicitation/create", {"mode": "url", "url": "https://x/1", "message": "[a] Log in", "more": 1.5}),
            ("elicitation/create", {"mode": "url", "url": "https://x/2", "message": "[a] Pay"}),
        ]

        async def done(params: dict[str, Any]) -> object:
            assert "inputResponses" not in params
            return {"content": [], "contents": [], "messages": []}

        server.answers[method] = done
        answers = dict.fromkeys(found.requests, Raw(b'{"action":"accept"}'))
        again = await world.mrtr_round(
            method, params, MrtrRound("a", answers, None), capabilities={"elicitation": {"url": {}}}
        )
        assert isinstance(again, Answered)


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}, {"elicitation": {"form": {}}}])
async def test_whoever_cannot_visit_pages_is_told_what_it_would_have_to_declare(capabilities: dict[str, Any]) -> None:
    """(rules 74, 76)"""
    async with open_world(refusing(-32042, "go there", PAGES, trust=Trust.TRUSTED)) as world:
        await world.settled()
        with pytest.raises(MissingAbility) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        assert json.loads(bytes(refused.value.data or b"")) == {"requiredCapabilities": {"elicitation": {"url": {}}}}
        with pytest.raises(MissingAbility):
            await world.mrtr_round("tools/call", {"name": "a__x"}, capabilities=capabilities)


async def test_a_server_that_may_not_want_pages_visited_gets_nobody_there() -> None:
    """Its address is not even told (rules 74, 76)."""
    async with open_world(refusing(-32042, "go there", PAGES, trust=Trust.UNTRUSTED)) as world:
        await world.settled()
        world.approves()
        with world.auto_answering() as asked, pytest.raises(Forbidden) as refused:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})
        assert "https:" not in refused.value.message
        assert refused.value.data is None
        assert [pending.access.subject.item.kind for pending in asked] == ["prompt"]


async def test_a_person_is_asked_about_every_page_that_a_server_wants_visited() -> None:
    """With nobody there, or a person who says no, its address is not even told (rules 74, 76)."""
    capabilities: dict[str, Any] = {"elicitation": {"url": {}}}
    async with open_world(refusing(-32042, "go there", PAGES)) as world:
        await world.settled()
        with pytest.raises(Unconfirmed) as alone:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        with world.auto_answering(Answering.DENY), pytest.raises(Forbidden) as denied:
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        for refused in (alone.value, denied.value):
            assert "https:" not in refused.message
            assert refused.data is None
        with world.auto_answering() as asked:
            found = await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities=capabilities)
        assert isinstance(found, InputRequired)
        assert [(pending.access.subject.item.kind, pending.access.subject.item.name) for pending in asked] == [
            ("url", page["url"]) for page in PAGES["elicitations"]
        ]


@pytest.mark.parametrize(
    "data", [None, {}, {"elicitations": []}, {"elicitations": [{"mode": "form", "elicitationId": "e"}]}]
)
async def test_pages_that_are_none_are_a_broken_server(data: object) -> None:
    async with open_world(refusing(-32042, "go there", data, trust=Trust.TRUSTED)) as world:
        await world.settled()
        with pytest.raises(ProtocolViolation):
            await world.mrtr_round("prompts/get", {"name": "a__x"}, capabilities={"elicitation": {"url": {}}})
