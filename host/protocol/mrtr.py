"""Requests that need more input: results that ask for it, and the retries that bring it.

In the stateless revision nothing is asked while a request runs: the request ends with its questions, and is sent once
more with their answers. Here that is data, for both sides. Who answers, how often is retried and what a state means are
other files' business; so is what a question may be (`server_requests.py`). Source: 2026-07-28, "Multi Round-Trip
Requests".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.raw import encode, encode_object, is_object, members, string
from host.protocol.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL
from host.protocol.server_requests import LIST_ROOTS
from host.protocol.stateless import INPUT_REQUIRED, RESULT_TYPE

RETRIABLE_METHODS = frozenset({TOOLS_CALL.name, RESOURCES_READ.name, PROMPTS_GET.name})
"""The methods whose results may ask for more input."""

MAX_KEYS = 32
"""How many questions one result may hold."""

_REQUESTS, _RESPONSES, _STATE = "inputRequests", "inputResponses", "requestState"


@dataclass(frozen=True, slots=True)
class InputRequests:
    """What a server wants before it goes on."""

    requests: Mapping[str, tuple[str, Raw | None]]
    """Method and params of each question, by the key that its answer goes under."""
    state: str | None
    """To be sent back as it is; None if there is nothing to be sent back."""
    has_requests: bool
    """Whether answers are wanted at all: even none of them are then sent back."""


@dataclass(frozen=True, slots=True)
class Retry:
    """What a request brings from the round before. Both are None for a request that begins."""

    answers: Mapping[str, Raw] | None
    state: str | None


def read_input_required(result: Raw) -> InputRequests:
    """What a server's result of type input_required asks for.

    Raises:
        ValueError: it asks for nothing, for more than MAX_KEYS things, or in a shape that cannot be read.
    """
    found = members(result)
    if _REQUESTS not in found and _STATE not in found:
        raise ValueError("the result wants more input and does not say which")
    requests = _requests(found[_REQUESTS]) if _REQUESTS in found else {}
    return InputRequests(requests, _state(found), _REQUESTS in found)


def input_required(requests: Mapping[str, tuple[str, Mapping[str, Raw]]], state: str | None) -> Raw:
    """The result that asks our client for more: method and params by key. There are requests, or a state, or both."""
    made = {RESULT_TYPE: encode(INPUT_REQUIRED)}
    if requests:
        made[_REQUESTS] = encode_object({key: _request(*each) for key, each in requests.items()})
    if state is not None:
        made[_STATE] = encode(state)
    return encode_object(made)


def retry_of(params: Mapping[str, Raw]) -> Retry:
    """What a request of our client brings along.

    Raises:
        InvalidParams: the answers are no object of objects, or the state is no string.
    """
    answers = None
    if _RESPONSES in params:
        try:
            answers = members(params[_RESPONSES])
        except ValueError:
            raise InvalidParams(f"the member {_RESPONSES!r} is not an object") from None
        if not all(map(is_object, answers.values())):
            raise InvalidParams(f"the member {_RESPONSES!r} holds an answer that is not an object")
    try:
        return Retry(answers, _state(params))
    except ValueError:
        raise InvalidParams(f"the member {_STATE!r} is not a string") from None


def with_retry(params: dict[str, Raw], answers: Mapping[str, Raw] | None, state: str | None) -> dict[str, Raw]:
    """The same params with exactly these answers and this state, and none of another round; None leaves one out."""
    made = {name: each for name, each in params.items() if name not in (_RESPONSES, _STATE)}
    if answers is not None:
        made[_RESPONSES] = encode_object(answers)
    if state is not None:
        made[_STATE] = encode(state)
    return made


def elicitation_cancelled() -> Raw:
    """The answer of a user who went away. Other questions have no such answer: they are just not answered."""
    return encode({"action": "cancel"})


def _requests(raw: Raw) -> dict[str, tuple[str, Raw | None]]:
    try:
        found = {key: members(each) for key, each in members(raw).items()}
        requests = {key: (string(each["method"]), each.get("params")) for key, each in found.items()}
    except (ValueError, KeyError):
        raise ValueError("the input requests are no object of requests") from None
    if len(requests) > MAX_KEYS:
        raise ValueError(f"the result holds more than {MAX_KEYS} input requests")
    return requests


def _request(method: str, params: Mapping[str, Raw]) -> Raw:
    if method == LIST_ROOTS and not params:
        return encode({"method": method})
    return encode_object({"method": encode(method), "params": encode_object(params)})


def _state(found: Mapping[str, Raw]) -> str | None:
    try:
        return string(found[_STATE]) if _STATE in found else None
    except ValueError:
        raise ValueError("the request state is not a string") from None
