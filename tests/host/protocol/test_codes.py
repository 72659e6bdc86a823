"""Error codes of servers: which of them mean a missing resource, and which must not reach clients."""

from __future__ import annotations

import pytest
from msgspec import Raw

from host.errors import (
    ColonnadeError,
    HeaderMismatch,
    InvalidParams,
    MethodNotFound,
    MissingAbility,
    ResourceNotFound,
    ServerErrorResponse,
    TooManyRequests,
    Unavailable,
    UnknownEntry,
    UnsupportedVersion,
)
from host.protocol.codes import as_relayed, as_stateless_error, means_not_found, uri_in

URI = "memo:one"


def refusal(code: int, message: str = "no", data: bytes | None = None) -> ServerErrorResponse:
    return ServerErrorResponse("a", code, message, None if data is None else Raw(data))


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32002, "no", None),
        (-32002, "", b"5"),
        (-32602, "Resource memo:one not found", None),
        (-32602, "no", b'{"uri":"memo:one"}'),
        (-32602, "no", b'{"uri":"memo:\\u006fne","more":[1]}'),
        (0, "Unknown resource: memo:one", None),
        (0, "RESOURCE NOT FOUND", None),
        (-32603, "No such file or directory", None),
        (-32603, "the memo does not exist", None),
    ],
)
def test_every_way_to_say_that_there_is_no_such_resource(code: int, message: str, data: bytes | None) -> None:
    """The code of the specification and those of common libraries (rule 68)."""
    assert means_not_found(refusal(code, message, data), URI)


@pytest.mark.parametrize(
    ("code", "message", "data"),
    [
        (-32602, "not found", None),
        (-32602, "the argument is not a URI", b'{"uri":"memo:other"}'),
        (-32602, "no", b'{"uri":["memo:one"]}'),
        (-32602, "no", b"memo:one"),
        (0, "busy with memo:one", None),
        (0, "", b'{"uri":"memo:one"}'),
        (-32603, "the disk is full", b'{"uri":"memo:one"}'),
        (-32603, "unfound", None),
        (-32601, "Method not found", None),
        (-32600, "not found", None),
        (-32042, "not found", None),
        (404, "not found", None),
        (1, "not found: memo:one", b'{"uri":"memo:one"}'),
    ],
)
def test_what_says_something_else_is_something_else(code: int, message: str, data: bytes | None) -> None:
    assert not means_not_found(refusal(code, message, data), URI)


@pytest.mark.parametrize("code", range(-32029, -32019))
def test_what_a_server_says_of_its_hop_is_an_internal_error_to_the_client(code: int) -> None:
    """Message and data are kept."""
    before = refusal(code, "the header is missing", b'{"n":1.50}')
    after = as_relayed(before)
    assert (after.server, after.code, after.message) == ("a", -32603, "the header is missing")
    assert after.data is not None
    assert bytes(after.data) == b'{"n":1.50}'


def test_a_client_of_a_session_still_learns_which_capability_a_server_missed() -> None:
    after = as_relayed(refusal(-32021, "no sampling", b'{"requiredCapabilities":{"sampling":{}}}'))
    assert (after.code, bytes(after.data or b"")) == (-32603, b'{"requiredCapabilities":{"sampling":{}}}')


@pytest.mark.parametrize("code", [0, 1, -1, 404, 2**40, -32000, -32019, -32030, -32042, -32099, -32601, -32603, -32700])
def test_every_other_refusal_is_the_servers_own(code: int) -> None:
    before = refusal(code)
    assert as_relayed(before) is before
    assert before.code == code


@pytest.mark.parametrize(
    ("data", "uri"),
    [
        (b'{"uri":"memo:one"}', "memo:one"),
        (b'{ "n": {"uri":"x"} , "uri" : "" }', ""),
        (b'{"uri":5}', None),
        (b'{"uri":null}', None),
        (b'{"uri":"\\ud83d"}', None),
        (b'{"uris":["memo:one"]}', None),
        (b'["memo:one"]', None),
        (b"null", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_uri_that_an_error_names(data: bytes | None, uri: str | None) -> None:
    """(rule 65)"""
    assert uri_in(None if data is None else Raw(data)) == uri


# For clients of the stateless revision


def body(error: ColonnadeError) -> tuple[int, str, bytes | None]:
    found = as_stateless_error(error)
    return found.code, found.message, None if found.data is None else bytes(found.data)


def test_a_missing_resource_is_a_wrong_parameter() -> None:
    """The error has the URI that the client sent (rule 68)."""
    missing = ResourceNotFound("Resource not found", data=Raw(b'{"uri":"gh+a:1"}'))
    assert body(missing) == (-32602, "Resource not found", b'{"uri":"gh+a:1"}')


@pytest.mark.parametrize("code", [-32002, -32042, -32020, -32022, -32023, -32030, -32041, -32043, -32099])
@pytest.mark.parametrize(
    ("data", "expected"),
    [(None, b'{"upstreamCode":%d}'), (b'{"n": 1.00}', b'{"upstreamCode":%d,"upstream":{"n": 1.00}}')],
)
def test_codes_that_are_not_ours_to_say_become_an_internal_error(
    code: int, data: bytes | None, expected: bytes
) -> None:
    """The data of the error has the server's code."""
    assert body(refusal(code, "so it is", data)) == (-32603, "so it is", expected % code)


def test_a_server_without_a_method_does_not_take_it_from_us() -> None:
    """A client that reads -32601 would take the method itself for one that is not served."""
    found = body(refusal(-32601, "Method not found", b'"x"'))
    assert found == (-32603, "not supported by a: Method not found", b'{"upstreamCode":-32601,"upstream":"x"}')


@pytest.mark.parametrize(
    "code", [0, 1, -1, 404, 2**40, -32000, -32001, -32003, -32019, -32100, -32600, -32602, -32603, -32700]
)
def test_every_other_refusal_reaches_a_stateless_client_as_it_is(code: int) -> None:
    assert body(refusal(code, "so it is", b'{"n": 1.00}')) == (code, "so it is", b'{"n": 1.00}')


def test_what_capability_a_server_misses_is_the_clients_to_declare() -> None:
    """An error without the capability is not passed on: it would be invalid."""
    which = b'{"requiredCapabilities": {"roots": {}}}'
    assert body(refusal(-32021, "so it is", which)) == (-32021, "so it is", which)
    found = body(refusal(-32021, "so it is", b'{"n": 1}'))
    assert found == (-32603, "so it is", b'{"upstreamCode":-32021,"upstream":{"n": 1}}')


@pytest.mark.parametrize(
    "error",
    [
        MethodNotFound("no such method"),
        InvalidParams("a bad cursor"),
        UnknownEntry("Unknown tool: x"),
        HeaderMismatch("the header Mcp-Name is missing"),
        MissingAbility("it takes sampling", data=Raw(b'{"requiredCapabilities":{"sampling":{}}}')),
        UnsupportedVersion("not served", data=Raw(b'{"supported":[],"requested":"x"}')),
        TooManyRequests("too much at once"),
        Unavailable("a", "not connected"),
    ],
)
def test_our_own_errors_are_what_they_are(error: ColonnadeError) -> None:
    assert body(error) == (error.code, error.message, None if error.data is None else bytes(error.data))
