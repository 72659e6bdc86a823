"""Multi round-trip requests (MRTR): reading and writing `input_required` results and the retries that answer them.

In 2026-07-28 a server requests nothing while a request is open. It ends the request with a result that has the input
requests, and the client sends the request again with the responses. The input requests themselves are in
`server_requests.py`. Source: 2026-07-28, "Multi Round-Trip Requests".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Raw, Struct, field

from host.errors import InvalidParams
from host.jsonrpc.raw import encode, encode_object, is_object, members, string
from host.jsonrpc.twins import describe_twin
from host.protocol.known_members import INPUT_REQUESTS, twin_in
from host.protocol.meta import unknown_members
from host.protocol.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from host.protocol.server_requests import LIST_ROOTS
from host.protocol.stateless import INPUT_REQUIRED, RESULT_TYPE, SCOPE, TTL, USUAL

RETRIABLE_METHODS = frozenset({TOOLS_CALL.name, RESOURCES_READ.name, PROMPTS_GET.name})
"""The methods whose results may be `input_required` (2026-07-28, "Supported Requests")."""

MAX_KEYS = 32
"""Input requests that one result may have."""

REQUESTS, RESPONSES, STATE = "inputRequests", "inputResponses", "requestState"
# With those of a complete result, which a client could take this for: its content was not made fit for the client.
_KNOWN = (REQUESTS, RESPONSES, STATE, TTL, SCOPE, *USUAL)


class InputRequests(Struct, frozen=True):
    """The `input_required` result of a server."""

    requests: Mapping[str, tuple[str, Raw | None]]
    """Method and params of each input request, by the key under which its response is sent."""
    state: str | None
    """The `requestState`, to be sent back unchanged; None if the retry must not have one."""
    has_requests: bool
    """Whether the result has the member `inputRequests`. If so, the retry has `inputResponses`, even if both are empty.
    """
    unknown: Mapping[str, Raw] = field(default_factory=dict)
    """The other members that are passed on; see `unknown_members`."""


class Retry(Struct, frozen=True):
    """Input responses and state that a request brings from the previous round. Both are None in a first request."""

    answers: Mapping[str, Raw] | None
    state: str | None


FIRST_REQUEST = Retry(None, None)


def read_input_required(result: Raw) -> InputRequests:
    """Read a server's result of type `input_required`.

    Raises:
        ValueError: the result has neither input requests nor a state, more than MAX_KEYS input requests, or members of
            the wrong type.
    """
    found = members(result)
    if REQUESTS not in found and STATE not in found:
        raise ValueError(f"the result is {INPUT_REQUIRED} but has neither {REQUESTS} nor {STATE}")
    requests = _requests(found[REQUESTS]) if REQUESTS in found else {}
    return InputRequests(requests, _state(found), REQUESTS in found, unknown_members(found, _KNOWN))


def input_required(
    requests: Mapping[str, tuple[str, Mapping[str, Raw]]],
    state: str | None,
    unknown: Mapping[str, Raw] = MappingProxyType({}),
) -> Raw:
    """An `input_required` result for a client.

    Args:
        requests: method and params of each input request, by key; may be empty if there is a state.
        unknown: the members of the server's result that are passed on.
    """
    made = {RESULT_TYPE: encode(INPUT_REQUIRED)}
    if requests:
        made[REQUESTS] = encode_object({key: _request(*each) for key, each in requests.items()})
    if state is not None:
        made[STATE] = encode(state)
    return encode_object({**made, **unknown})


def retry_of(params: Mapping[str, Raw]) -> Retry:
    """Read the input responses and the state of a client's request.

    Raises:
        InvalidParams: the input responses are not an object of objects, or the state is not a string.
    """
    if RESPONSES not in params and STATE not in params:
        return FIRST_REQUEST
    answers = None
    if RESPONSES in params:
        try:
            answers = members(params[RESPONSES])
        except ValueError:
            raise InvalidParams(f"the member {RESPONSES!r} is not an object") from None
        if not all(map(is_object, answers.values())):
            raise InvalidParams(f"the member {RESPONSES!r} has a response that is not an object")
    try:
        return Retry(answers, _state(params))
    except ValueError:
        raise InvalidParams(f"the member {STATE!r} is not a string") from None


def with_retry(params: Mapping[str, Raw], answers: Mapping[str, Raw] | None, state: str | None) -> dict[str, Raw]:
    """The params with these input responses and this state instead of those of an earlier round; None leaves the member
    out."""
    made = dict(params)
    made.pop(RESPONSES, None)
    made.pop(STATE, None)
    if answers is not None:
        made[RESPONSES] = encode_object(answers)
    if state is not None:
        made[STATE] = encode(state)
    return made


def elicitation_cancelled() -> Raw:
    """The response to an elicitation whose user is gone. Sampling and roots have no such response: a client that does
    not answer them does not retry (2026-07-28, "Multi Round-Trip Requests")."""
    return encode({"action": "cancel"})


def _requests(raw: Raw) -> dict[str, tuple[str, Raw | None]]:
    if (twin := twin_in(raw, INPUT_REQUESTS)) is not None:
        raise ValueError(f"among the input requests, {describe_twin(twin)}")
    try:
        found = {key: members(each) for key, each in members(raw).items()}
        requests = {key: (string(each["method"]), each.get("params")) for key, each in found.items()}
    except (ValueError, KeyError):
        raise ValueError("the input requests are not an object of requests") from None
    if len(requests) > MAX_KEYS:
        raise ValueError(f"the result has more than {MAX_KEYS} input requests")
    return requests


def _request(method: str, params: Mapping[str, Raw]) -> Raw:
    if method == LIST_ROOTS and not params:
        return encode({"method": method})
    return encode_object({"method": encode(method), "params": encode_object(params)})


def _state(found: Mapping[str, Raw]) -> str | None:
    try:
        return string(found[STATE]) if STATE in found else None
    except ValueError:
        raise ValueError("the request state is not a string") from None
