"""MRTR rounds of a call to a stateless server (2026-07-28, "Multi Round-Trip Requests").

A stateless client gets the input requests and sends the retry itself; nothing is kept here for it. A handshake client
gets all input requests as server requests over its client handle, and Colonnade sends the retry with its responses.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw

from host.errors import Forbidden, ProtocolViolation, ServerErrorResponse
from host.exchange import InputRequired
from host.jsonrpc.raw import encode_object, members
from host.peer.outstanding import PeerError
from host.protocol.meta import META
from host.protocol.mrtr import InputRequests, elicitation_cancelled, read_input_required
from host.protocol.server_requests import ELICIT, ServerRequest, ServerRequestRejected, server_request_of
from host.protocol.stateless import INPUT_REQUIRED, result_type_of
from host.upstream.call import UpstreamCall
from host.upstream.server_requests import ServerMessages

MAX_ROUNDS = 10
"""Rounds of one call: the limit of the common SDKs (Python, TypeScript, C#, Go)."""
INITIAL_PAUSE = 0.05
MAX_PAUSE = 2.0
"""First and longest pause, in seconds, before a retry without new responses."""
MAX_STATE = 256 * 1024
"""Bytes of a `requestState` that is given to a client, which has to send all of it back."""
MAX_POLLS = 300
"""Retries while the server waits for the completion of an elicitation in mode url."""

SendRetry = Callable[[Mapping[str, Raw] | None, str | None], Awaitable[Raw]]
"""Sends the request again with these input responses and this state, and returns the result."""
_KnownAnswers = dict[tuple[str, bytes], Raw]
"""Responses that are used again for the same input request: those of elicitations in mode url."""


class MrtrDriver:
    """The rounds of one call."""

    def __init__(self, server: str, server_messages: ServerMessages, call: UpstreamCall) -> None:
        self._server = server
        self._server_messages = server_messages
        self._call = call

    async def relay(self, result: Raw) -> InputRequired:
        """Adapt an `input_required` result for a stateless client, which sends the retry itself.

        Raises:
            ProtocolViolation, Forbidden: an input request is invalid or not permitted, or the state is over MAX_STATE.
            Unconfirmed, TooManyRequests, StaleApproval: a person did not confirm an input request.
        """
        input_requests = self._read(result)
        if input_requests.state is not None and len(input_requests.state.encode()) > MAX_STATE:
            why = f"{self._server} sent a requestState of more than {MAX_STATE} bytes"
            raise ProtocolViolation(self._server, why)
        admitted: dict[str, tuple[str, dict[str, Raw]]] = {}
        for key, (server_request, method, params) in self._adapted(input_requests.requests).items():
            admitted[key] = method, await self._server_messages.admit(server_request, method, params, self._call)
        return InputRequired(self._server, admitted, input_requests.state, unknown=input_requests.unknown)

    async def drive(self, result: Raw, send: SendRetry) -> Raw:
        """Send the input requests of `result` to the client and retry with its responses, until the result is complete.

        Raises:
            ProtocolViolation, Forbidden: an input request is invalid or not permitted, or there are too many rounds.
            ServerErrorResponse: the client refused sampling or roots, which MRTR cannot express.
        """
        known: _KnownAnswers = {}
        rounds = polls = 0
        pause = INITIAL_PAUSE
        while result_type_of(result) == INPUT_REQUIRED:
            input_requests = self._read(result)
            unanswered = {key: each for key, each in input_requests.requests.items() if _answer_key(each) not in known}
            if unanswered:
                rounds, pause = rounds + 1, INITIAL_PAUSE
            else:
                if input_requests.requests:  # the server waits until the user has completed a page
                    polls += 1
                else:  # a state alone: the server only requests a retry
                    rounds += 1
                await trio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, MAX_PAUSE)
            if rounds > MAX_ROUNDS or polls > MAX_POLLS:
                why = f"{self._server} requests input without end"
                if unanswered:  # an answer is discarded by servers that make another question in each round
                    why += " (if its question has another text each time, 'protocol: legacy' for this server asks once)"
                raise ProtocolViolation(self._server, why)
            answers = await self.collect_answers(unanswered)
            self._call.deadline.extend()  # each round is a sign of life
            known |= {
                _answer_key(each): answers[key]
                for key, each in unanswered.items()
                if _is_url_elicitation(each) and key in answers
            }
            answers |= {
                key: known[_answer_key(each)] for key, each in input_requests.requests.items() if key not in answers
            }
            result = await send(answers if input_requests.has_requests else None, input_requests.state)
        return result

    def _read(self, result: Raw) -> InputRequests:
        try:
            return read_input_required(result)
        except ValueError as problem:
            why = f"{self._server} sent an invalid {INPUT_REQUIRED} result: {problem}"
            raise ProtocolViolation(self._server, why) from None

    def _adapted(
        self, requests: Mapping[str, tuple[str, Raw | None]]
    ) -> dict[str, tuple[ServerRequest, str, dict[str, Raw]]]:
        """The input requests as the client of the call gets them.

        Raises:
            ProtocolViolation, Forbidden: one of them is invalid or not permitted.
        """
        try:
            parsed = {key: self._parse_request(*each) for key, each in requests.items()}
            adapt = self._server_messages.adapt_request
            return {key: (each[0], requests[key][0], adapt(each, self._call)) for key, each in parsed.items()}
        except ServerRequestRejected as refusal:
            raise Forbidden(self._server, f"{self._server} asks for what it may not: {refusal.why}") from None

    def _parse_request(self, method: str, params: Raw | None) -> tuple[ServerRequest, dict[str, Raw]]:
        parsed = server_request_of(method, params, identified=False)
        if parsed is None:
            raise ProtocolViolation(
                self._server, f"{self._server} sent an input request with an unknown method: {method[:80]}"
            )
        return parsed

    async def collect_answers(self, requests: Mapping[str, tuple[str, Raw | None]]) -> dict[str, Raw]:
        """Send input requests to the client, and return its responses by key.

        Raises:
            ProtocolViolation, Forbidden: one of them is invalid or not permitted; then none is sent.
            ServerErrorResponse: the client refused sampling or roots, which MRTR cannot express.
        """
        adapted = self._adapted(requests)
        answers: dict[str, Raw] = {}
        refusals: list[PeerError] = []

        async def forward(key: str, server_request: ServerRequest, method: str, params: dict[str, Raw]) -> None:
            try:
                answers[key] = await self._server_messages.forward(self._call, server_request, method, params)
            except PeerError as refusal:
                if method == ELICIT:
                    answers[key] = elicitation_cancelled()
                else:  # a retry has no form for refused sampling or roots
                    refusals.append(refusal)
                    nursery.cancel_scope.cancel("one of them was refused")

        async with trio.open_nursery() as nursery:
            for key, each in adapted.items():
                nursery.start_soon(forward, key, *each)
        if refusals:
            error = refusals[0].error
            raise ServerErrorResponse(self._server, error.code, error.message, error.data)
        return answers


def _is_url_elicitation(request: tuple[str, Raw | None]) -> bool:
    parsed = server_request_of(*request, identified=False)
    return parsed is not None and parsed[0] is ServerRequest.URL


def _answer_key(request: tuple[str, Raw | None]) -> tuple[str, bytes]:
    """The contents of an input request by which equal ones are known. Its `_meta` is none of them: it may say a trace,
    which goes on with each round."""
    method, params = request
    try:
        found = members(params or b"")
    except ValueError:  # it has none, or is refused once it is read
        return method, bytes(params or b"")
    return method, bytes(encode_object({name: each for name, each in found.items() if name != META}))
