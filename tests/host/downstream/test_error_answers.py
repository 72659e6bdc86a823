"""How params are opened, and how every failure becomes an answer."""

from __future__ import annotations

import pytest
import trio
from msgspec import Raw

from host.downstream.error_answers import error_body, errors_as_answers, params_of
from host.errors import InvalidParams, InvalidRequest, ResourceNotFound, Unavailable
from host.journal import Event, InternalError, Journal
from host.jsonrpc.messages import ErrorBody, Failure, Request, Success
from host.jsonrpc.raw import encode, members
from host.protocol.codes import as_stateless_error

REQUEST = Request("id", "tools/call", Raw(b'{"name":"x"}'))


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def journal(events: list[Event]) -> Journal:
    found = Journal()
    found.subscribe(events.append)
    return found


def test_params_are_the_members_or_none() -> None:
    assert params_of(REQUEST) == {"name": Raw(b'"x"')}
    assert params_of(Request(1, "ping")) == {}


@pytest.mark.parametrize("params", [b"[]", b"null", b"1", b'"x"'])
def test_params_that_are_no_object_are_refused(params: bytes) -> None:
    with pytest.raises(InvalidRequest):
        params_of(Request(1, "ping", Raw(params)))


@pytest.mark.parametrize("twin", [b"Name", b"NAME", b"name\\u0000", b"name\\u0000x", "ｎame".encode(), b"Ta\\u017fk"])
def test_params_with_a_member_that_some_readers_take_for_a_known_one_are_refused(twin: bytes) -> None:
    with pytest.raises(InvalidParams, match="some readers take the member"):
        params_of(Request(1, "tools/call", Raw(b'{"name":"x","' + twin + b'":"y"}')))


def test_other_members_stay() -> None:
    assert len(params_of(Request(1, "tools/call", Raw(b'{"name":"x","names":1,"uri":2}')))) == 3
    assert len(params_of(Request(1, "ping", Raw(b'{"a":1,"A":2}')))) == 2


@pytest.mark.parametrize(
    ("method", "params", "kept"),
    [
        ("tools/list", b'{"cursor":null}', b"{}"),
        ("resources/templates/list", b'{"cursor":"","a":null}', b'{"a":null}'),
        ("tasks/list", b'{"cursor":""}', b"{}"),
        ("tools/call", b'{"name":"x","task":null,"inputResponses":null,"requestState":null}', b'{"name":"x"}'),
        ("resources/read", b'{"uri":"x","inputResponses":null,"requestState":null}', b'{"uri":"x"}'),
        ("prompts/get", b'{"name":"x","requestState":null}', b'{"name":"x"}'),
    ],
)
def test_an_optional_member_that_is_null_is_missing_and_so_is_an_empty_cursor(
    method: str, params: bytes, kept: bytes
) -> None:
    assert params_of(Request(1, method, Raw(params))) == members(kept)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/list", b'{"cursor":0}'),
        ("tools/call", b'{"name":null,"arguments":null,"cursor":null}'),
        ("tools/call", b'{"task":"","inputResponses":"","requestState":""}'),
        ("completion/complete", b'{"ref":null,"context":null}'),
        ("logging/setLevel", b'{"level":null}'),
        ("ping", b'{"cursor":null}'),
    ],
)
def test_all_else_stays_as_it_is(method: str, params: bytes) -> None:
    assert params_of(Request(1, method, Raw(params))) == members(params)


async def test_the_answer_is_what_the_work_gives(journal: Journal) -> None:
    async def work(request: Request) -> Raw:
        assert request is REQUEST
        return Raw(b'{"a":1}')

    assert await errors_as_answers(REQUEST, work, journal, "me") == Success("id", Raw(b'{"a":1}'))


async def test_an_error_is_said_as_it_is_or_as_the_revision_has_it(journal: Journal, events: list[Event]) -> None:
    async def missing(request: Request) -> Raw:
        raise ResourceNotFound("none", data=encode({"uri": "x"}))

    async def away(request: Request) -> Raw:
        raise Unavailable("a", "a is away")

    data = Raw(b'{"uri":"x"}')
    assert await errors_as_answers(REQUEST, missing, journal, "me") == Failure(ErrorBody(-32002, "none", data), "id")
    answer = await errors_as_answers(REQUEST, missing, journal, "me", as_stateless_error)
    assert answer == Failure(ErrorBody(-32602, "none", data), "id")
    for body_of in (error_body, as_stateless_error):
        assert await errors_as_answers(REQUEST, away, journal, "me", body_of) == Failure(
            ErrorBody(503, "a is away"), "id"
        )
    assert events == []


async def test_our_own_mistakes_are_for_the_log_alone(journal: Journal, events: list[Event]) -> None:
    async def crash(request: Request) -> Raw:
        raise RuntimeError("a secret")

    answer = await errors_as_answers(Request(7, "x" * 500), crash, journal, "me")
    assert isinstance(answer, Failure)
    assert (answer.error.code, answer.id, "secret" in answer.error.message) == (-32603, 7, False)
    (event,) = events
    assert isinstance(event, InternalError)
    assert len(event.where) < 100
    assert (event.caller, event.trace_id) == ("me", "")


async def test_a_cancel_is_no_answer(journal: Journal, events: list[Event]) -> None:
    async def work(request: Request) -> Raw:
        await trio.sleep_forever()
        raise AssertionError

    with trio.CancelScope() as scope:
        scope.cancel()
        await errors_as_answers(REQUEST, work, journal, "me")
        pytest.fail("a request that was called off was answered")
    assert events == []
