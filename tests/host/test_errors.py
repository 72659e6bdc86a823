"""The tree of errors: its page is true, and each error keeps what it was given."""

from __future__ import annotations

import inspect
import re

import pytest
from msgspec import Raw

from host import errors
from host.errors import (
    ColonnadeError,
    InvalidParams,
    MethodNotFound,
    ProtocolViolation,
    ServerErrorResponse,
    TimedOut,
    Unavailable,
    UnknownState,
    UpstreamError,
    first_exception,
)


def drawn() -> dict[str, tuple[str, int | None]]:
    """The page's tree: the class, its parent by indentation, and its code where one is given."""
    found: dict[str, tuple[str, int | None]] = {}
    path: list[str] = []
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"( {4}[│ ├└─]*)([A-Z]\w+)( +(-?\d+)?.*)?", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 - 1
        del path[depth:]
        found[match[2]] = (path[-1] if path else "Exception", int(match[4]) if match[4] else None)
        path.append(match[2])
    return found


def written() -> dict[str, type[ColonnadeError]]:
    return {
        name: each for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, ColonnadeError)
    }


def test_the_page_names_every_error_and_its_parent() -> None:
    tree = {name: parent for name, (parent, _) in drawn().items()}
    assert tree == {name: each.__bases__[0].__name__ for name, each in written().items()}


def test_the_page_gives_the_code_of_every_error_that_has_its_own() -> None:
    codes = {name: code for name, (_, code) in drawn().items() if code is not None}
    assert codes == {name: written()[name].code for name in codes}
    leaves = {name for name, each in written().items() if not each.__subclasses__()}
    assert leaves - set(codes) == {"ServerErrorResponse"}  # its code is the server's


def test_our_own_codes_stand_outside_the_reserved_range() -> None:
    for each in (Unavailable, ProtocolViolation, TimedOut):
        assert each.code > 0


def test_an_error_keeps_what_it_was_given() -> None:
    error = InvalidParams("the cursor is bad", data=Raw(b"1"))
    assert (str(error), error.message, bytes(error.data or b"")) == ("the cursor is bad", "the cursor is bad", b"1")
    assert InvalidParams("the cursor is bad").data is None


def test_refusals_have_the_form_of_the_official_sdks() -> None:
    unknown = MethodNotFound.of_method("vendor/thing")
    assert (unknown.message, bytes(unknown.data or b"")) == ("Method not found", b'"vendor/thing"')
    assert bytes(MethodNotFound.of_method("x" * 1000).data or b"") == b'"' + b"x" * 80 + b'"'
    state = UnknownState()
    assert state.message.startswith("Invalid or expired requestState")
    assert bytes(state.data or b"") == b'{"reason":"invalid_request_state"}'


@pytest.mark.parametrize("kind", [Unavailable, ProtocolViolation, TimedOut])
def test_an_upstream_error_names_its_server(kind: type[UpstreamError]) -> None:
    error = kind("gh", "gh is away", data=Raw(b"{}"))
    assert (error.server, error.message, bytes(error.data or b"")) == ("gh", "gh is away", b"{}")


def test_a_refusal_is_the_servers_own_error() -> None:
    error = ServerErrorResponse("gh", -32602, "no such user", Raw(b'{"a":1}'))
    assert (error.server, error.code, error.message, bytes(error.data or b"")) == (
        "gh",
        -32602,
        "no such user",
        b'{"a":1}',
    )


def test_a_group_is_about_its_first_plain_exception() -> None:
    inner = ValueError("x")
    assert first_exception(ExceptionGroup("", [ExceptionGroup("", [inner, KeyError()]), OSError()])) is inner
    assert first_exception(inner) is inner
