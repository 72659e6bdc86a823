"""Which requests of servers may be put to a client, and in what form."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from config import (
    CallerSpec,
    Channel,
    Consent,
    Elicitation,
    KindConsent,
    Trust,
    UriRule,
    Verdict,
)
from host.client_process import ClientProcess
from host.errors import Forbidden, InvalidParams, ProtocolViolation, StaleApproval, Unconfirmed
from host.jsonrpc.raw import encode, members
from host.policy.confirmations import ConfirmationAnswer
from host.policy.server_requests import MAX_ROOTS, holds_roots
from host.protocol.abilities import NO_ABILITIES, SHARED_ABILITIES
from host.protocol.server_requests import ServerRequest, ServerRequestRejected
from tests.kit.awaited import awaited
from tests.kit.gates import auto_answering, kind

from .servers import DESK, SERVERS, gate, spec, with_server


@pytest.mark.parametrize("question", list(ServerRequest))
async def test_an_untrusted_server_may_ask_nothing_and_any_other_perhaps(question: ServerRequest) -> None:
    with gate() as opened:
        for server in ("open", "strict", "trusted"):
            assert opened.server_requests.allows(server, question, None)
        for server in ("untrusted", "stranger"):  # nor may one that nobody configured
            assert not opened.server_requests.allows(server, question, None)
            params = {"url": Raw(b'"https://x/1"')}
            with auto_answering(opened) as asked, pytest.raises(Forbidden):
                await opened.server_requests.admit(server, question, params, DESK)
            assert asked == []


@pytest.mark.parametrize("question", list(ServerRequest))
async def test_consent_says_what_a_server_may_ask_whatever_its_trust(question: ServerRequest) -> None:
    closed = Consent(
        sampling=Verdict.DENY,
        elicitation=Elicitation(form=Verdict.DENY, url=kind(default="deny")),
        roots=kind(default="deny"),
    )
    opening = Consent(
        sampling=Verdict.ASK,
        elicitation=Elicitation(form=Verdict.ASK, url=kind(ask=["**"])),
        roots=kind(allow=["file:///x"]),
    )
    servers = {"a": spec("a", closed, Trust.TRUSTED), "b": spec("b", opening, Trust.UNTRUSTED)}
    with gate(servers) as opened:
        assert (
            opened.server_requests.allows("a", question, None),
            opened.server_requests.allows("b", question, None),
        ) == (
            False,
            True,
        )


SAMPLE = {"messages": Raw(b"[]"), "maxTokens": Raw(b"5")}
PAGE = {"message": Raw(b'"m"'), "url": Raw(b'"https://x/1"')}


@pytest.mark.parametrize(
    ("question", "params", "free"),
    [(ServerRequest.SAMPLING, SAMPLE, False), (ServerRequest.URL, PAGE, False), (ServerRequest.FORM, {}, True)],
)
async def test_what_costs_something_a_person_must_have_agreed_to_before_it_is_put(
    question: ServerRequest, params: dict[str, Raw], free: bool
) -> None:
    with gate() as opened:
        for server in ("open", "trusted"):
            with (
                auto_answering(opened) as asked,
                opened.server_requests.dispatch(await opened.server_requests.admit(server, question, params, DESK)),
            ):
                pass
            assert [pending.access.subject.item.kind for pending in asked] == (
                [question.value] if server == "open" and not free else []
            )
        if not free:
            with pytest.raises(Unconfirmed):
                await opened.server_requests.admit("open", question, params, DESK)
            with auto_answering(opened):
                permit = await opened.server_requests.admit("open", question, params, DESK)
            opened.replace(
                with_server(
                    "open", consent=Consent(sampling=Verdict.DENY, elicitation=Elicitation(url=kind(default="deny")))
                ),
                {},
            )
            with pytest.raises(StaleApproval), opened.server_requests.dispatch(permit):
                pytest.fail("it was put")


async def test_a_person_who_is_asked_is_shown_the_program_of_the_client() -> None:
    claude = ClientProcess("claude", 7, "/work")
    with gate() as opened, auto_answering(opened) as asked:
        caller = replace(DESK, process=claude)
        await opened.server_requests.admit("open", ServerRequest.SAMPLING, SAMPLE, caller)
    assert [each.context.process for each in asked] == [claude]


async def test_pages_are_evaluated_by_their_address() -> None:
    consent = Consent(elicitation=Elicitation(url=kind(allow=["https://good/**"], default="deny")))
    with gate({"s": spec("s", consent)}) as opened:
        assert opened.server_requests.allows("s", ServerRequest.URL, None)
        good = {**PAGE, "url": Raw(b'"https://good/in"')}
        with opened.server_requests.dispatch(await opened.server_requests.admit("s", ServerRequest.URL, good, DESK)):
            pass
        for url in (b'"https://evil/in"', b'"https://good/../evil"', b'"https://good.evil/in"'):
            with pytest.raises(Forbidden):
                await opened.server_requests.admit("s", ServerRequest.URL, {**PAGE, "url": Raw(url)}, DESK)


async def test_what_a_server_may_send_to_some_callers_it_sends_to_no_other() -> None:
    """It may ask at all if it may ask anybody, and each request is judged by who gets it."""
    desk = ("desk",)
    consent = Consent(
        elicitation=Elicitation(url=KindConsent(allow=(UriRule("https://good/**", callers=desk),))),
        roots=KindConsent(allow=(UriRule("file:///a"), UriRule("file:///b", callers=desk))),
    )
    good, other = {**PAGE, "url": Raw(b'"https://good/in"')}, replace(DESK, identity="other")
    answer = encode({"roots": [{"uri": f"file:///{each}"} for each in "abc"]})
    with gate({"s": spec("s", consent)}, callers={"desk": CallerSpec("token")}) as opened:
        requests = opened.server_requests
        assert [requests.allows("s", ServerRequest.URL, each) for each in (None, DESK, other)] == [True, True, False]
        abilities = replace(NO_ABILITIES, url=True)
        assert [requests.usable_abilities("s", abilities, each).url for each in (None, other)] == [True, False]
        await requests.admit("s", ServerRequest.URL, good, DESK)
        with pytest.raises(Forbidden):
            await requests.admit("s", ServerRequest.URL, good, other)
        for caller, told in ((DESK, "ab"), (other, "a")):
            roots = json.loads(bytes(await requests.filter_roots("s", answer, caller)))["roots"]
            assert [each["uri"] for each in roots] == [f"file:///{each}" for each in told]


async def test_of_a_clients_roots_a_server_is_told_those_that_it_may_know() -> None:
    consent = Consent(roots=kind(allow=["file:///home/me/project"], ask=["file:///home/me/more"]))
    roots = [{"uri": f"file:///home/me/{each}", "name": each} for each in ("project", "more", "other")]
    answer = encode({"roots": roots, "_meta": {"x": 1}})
    with gate({**SERVERS, "s": spec("s", consent)}) as opened:
        assert await opened.server_requests.filter_roots("open", answer, DESK) is answer
        alone = json.loads(bytes(await opened.server_requests.filter_roots("s", answer, DESK)))
        assert alone == {"roots": roots[:1], "_meta": {"x": 1}}
        with auto_answering(opened) as asked:
            both = json.loads(bytes(await opened.server_requests.filter_roots("s", answer, DESK)))
        assert both["roots"] == roots[:2]
        assert [json.loads(pending.context.raw_arguments) for pending in asked] == [roots[1:2]]
        with auto_answering(opened, ConfirmationAnswer.DENY):
            denied = json.loads(bytes(await opened.server_requests.filter_roots("s", answer, DESK)))
        assert denied["roots"] == roots[:1]
        most = encode({"roots": roots[:1] * MAX_ROOTS})
        assert await opened.server_requests.filter_roots("s", most, DESK) is most
        with pytest.raises(ProtocolViolation, match="more than 1000 roots"):
            await opened.server_requests.filter_roots("s", encode({"roots": roots[:1] * (MAX_ROOTS + 1)}), DESK)
        for broken in (b"{}", b'{"roots":5}', b'{"roots":[{}]}', b'{"roots":[{"uri":5}]}'):
            with pytest.raises(ProtocolViolation):
                await opened.server_requests.filter_roots("s", Raw(broken), DESK)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"roots":[],"Roots":[{"uri":"file:///x"}]}',
        b'{"ROOT\\u017f":[]}',
        b'{"roots":[],"a":1,"A":2}',
        b'{"roots":[{"uri":"file:///x","URI":"file:///y"}]}',
        b'{"roots":[{"uri":"file:///x","uri\\u0000":"file:///y"}]}',
    ],
)
async def test_roots_that_some_readers_find_elsewhere_are_refused(answer: bytes) -> None:
    consent = Consent(roots=kind(allow=["file:///x"]))
    assert holds_roots(members(answer))
    with gate({**SERVERS, "s": spec("s", consent)}) as opened:
        with pytest.raises(InvalidParams, match="some readers take the member"):
            await opened.server_requests.filter_roots("s", Raw(answer), DESK)
        assert await opened.server_requests.filter_roots("open", Raw(answer), DESK) == Raw(answer)


async def test_of_a_clients_abilities_a_server_may_use_what_it_may_perhaps_ask_for() -> None:
    """Nothing is added to what the client can, and what belongs to no question stays as it is. A model with tools is
    for trusted servers."""
    every = replace(SHARED_ABILITIES, sampling_tools=True)
    with gate() as opened:
        assert opened.server_requests.usable_abilities("trusted", every, None) == every
        assert opened.server_requests.usable_abilities("open", every, None) == replace(every, sampling_tools=False)
        nothing = replace(every, roots=False, sampling=False, sampling_tools=False, form=False, url=False, apps=False)
        assert opened.server_requests.usable_abilities("untrusted", every, None) == nothing
        for server in ("open", "trusted", "untrusted"):
            assert opened.server_requests.usable_abilities(server, NO_ABILITIES, None) == NO_ABILITIES


async def test_an_untrusted_servers_question_is_passed_on_without_what_nobody_sees() -> None:
    params = {"message": Raw(b'"a\\u202eb"'), "requestedSchema": Raw(b"{}")}
    with gate() as opened:
        assert opened.server_requests.check("open", ServerRequest.FORM, params) == params
        assert (
            json.loads(bytes(opened.server_requests.check("untrusted", ServerRequest.FORM, params)["message"])) == "ab"
        )
        with pytest.raises(ServerRequestRejected):
            opened.server_requests.check("open", ServerRequest.SAMPLING, {**SAMPLE, "tools": Raw(b"[]")})


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b71692033{}-01"
SAME: list[dict[str, object]] = [
    {"elicitationId": "one"},
    {"elicitationId": "two"},
    {"_meta": {"traceparent": TRACE.format(10), "tracestate": "a=1", "baggage": "b=1"}},
    {"_meta": {"traceparent": TRACE.format(11), "tracestate": "a=2", "baggage": "b=2"}},
    {"_meta": {"progressToken": 7}},
    {"_meta": {"traceparent": TRACE.format(12), "io.modelcontextprotocol/related-task": {"taskId": "t"}}},
]
OTHER: list[dict[str, object]] = [
    {"_meta": {"traceparent": TRACE.format(10), "vendor": 1}},
    {"_meta": {"traceparent": {"not": "a trace"}}},
    {"_meta": {"traceparent": TRACE.format(10), "baggage": {"not": "a text"}}},
    {"message": "pay twice"},
]


async def test_what_is_new_each_time_is_not_part_of_what_is_agreed_to() -> None:
    """The id that we give a page, and how a server numbers and traces its request. All else is, in `_meta` too."""
    servers = {"a": spec("a", Consent(elicitation=Elicitation(url=kind(ask=["https://ok.test/**"]))))}
    with gate(servers) as opened:

        def page(more: dict[str, object]) -> dict[str, Raw]:
            return members(encode({"url": "https://ok.test/pay", "message": "pay", **more}))

        async def ask(more: dict[str, object]) -> set[str]:
            """The new questions to which it leads."""
            before = {each.id for each in opened.authorizer.confirmations.list_all()}
            with pytest.raises(Unconfirmed):
                await opened.server_requests.admit("a", ServerRequest.URL, page(more), DESK)
            return {each.id for each in opened.authorizer.confirmations.list_all()} - before

        (first,) = await ask(SAME[0])
        assert [await ask(each) for each in SAME] == [set()] * len(SAME)
        assert [len(await ask(each)) for each in OTHER] == [1] * len(OTHER)
        awaited(opened.authorizer.confirmations.answer(first, ConfirmationAnswer.ONCE, Channel.CONSOLE))
        with opened.server_requests.dispatch(
            await opened.server_requests.admit("a", ServerRequest.URL, page(SAME[-1]), DESK)
        ):
            pass
