"""The questions in an unfinished answer of a stateless server, and the rounds until it is finished.

A caller that repeats requests itself gets the questions and comes back with the answers; nothing is kept here for it.
Any other caller is asked over its client handle, all questions at once, and the request is sent again on its behalf
(2026-07-28, "Multi Round-Trip Requests").
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw

from host.errors import Forbidden, ProtocolViolation, ServerErrorResponse
from host.exchange import InputRequired
from host.jsonrpc.raw import encode
from host.peer.outstanding import PeerError
from host.protocol.mrtr import InputRequests, elicitation_cancelled, read_input_required
from host.protocol.server_requests import ELICIT, ServerRequest, ServerRequestRejected, server_request_of
from host.protocol.stateless import INPUT_REQUIRED, result_type_of
from host.upstream.call import UpstreamCall
from host.upstream.server_requests import ServerMessages

MAX_ROUNDS = 10
"""As common clients allow; a server that asks for more goes round in circles."""
INITIAL_PAUSE = 0.05
MAX_PAUSE = 2.0
"""Seconds before a request is repeated that brings nothing new: at first, and at the most."""
MAX_STATE = 256 * 1024
"""Bytes of a state that a caller is given to carry: it has to bring all of it back with its next request."""
MAX_POLLS = 300
"""Times that a request is repeated while the server waits for something that happens elsewhere."""

SendRetry = Callable[[Mapping[str, Raw] | None, str | None], Awaitable[Raw]]
"""Sends the request again, with these answers and this state; gives the result."""
_KnownAnswers = dict[tuple[str, bytes], Raw]
"""Answers that hold for as long as the same is asked again: the visits to pages."""


class MrtrDriver:
    """Those of one request."""

    def __init__(self, server: str, server_messages: ServerMessages, call: UpstreamCall) -> None:
        self._server = server
        self._server_messages = server_messages
        self._call = call

    async def relay(self, result: Raw) -> InputRequired:
        """The unfinished answer, for a caller that goes on with it itself.

        Raises:
            ProtocolViolation, Forbidden: it asks what it may not, or gives a state of more than MAX_STATE.
            Unconfirmed, TooManyRequests, StaleApproval: a person had to be asked whether it may.
        """
        input_requests = self._read(result)
        if input_requests.state is not None and len(input_requests.state.encode()) > MAX_STATE:
            why = f"{self._server} sent a requestState of more than {MAX_STATE} bytes"
            raise ProtocolViolation(self._server, why)
        parsed = {key: self._parse_request(*each) for key, each in input_requests.requests.items()}
        adapted = {key: self._adapt(*each) for key, each in input_requests.requests.items()}
        for key, (server_request, _) in parsed.items():
            await self._server_messages.admit(server_request, adapted[key][1], self._call.exchange.caller)
        return InputRequired(self._server, adapted, input_requests.state)

    async def drive(self, result: Raw, send: SendRetry) -> Raw:
        """The finished answer that follows this one, once all questions on the way have been answered.

        Raises:
            ProtocolViolation, Forbidden: the server asks what it may not, or without end.
            ServerErrorResponse: the client refused to answer what cannot be declined.
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
                if input_requests.requests:  # it waits for what the user does elsewhere, which may take a while
                    polls += 1
                else:  # it only wants to be asked again
                    rounds += 1
                await trio.sleep(pause * random.uniform(0.8, 1.2))
                pause = min(2 * pause, MAX_PAUSE)
            if rounds > MAX_ROUNDS or polls > MAX_POLLS:
                raise ProtocolViolation(self._server, f"{self._server} asks without end")
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
            why = f"{self._server} sent an unfinished answer that is none: {problem}"
            raise ProtocolViolation(self._server, why) from None

    def _adapt(self, method: str, params: Raw | None) -> tuple[str, dict[str, Raw]]:
        try:
            return method, self._server_messages.adapt_request(
                self._parse_request(method, params), self._call.exchange.caller
            )
        except ServerRequestRejected as refusal:
            raise Forbidden(self._server, f"{self._server} asks for what it may not: {refusal.why}") from None

    def _parse_request(self, method: str, params: Raw | None) -> tuple[ServerRequest, dict[str, Raw]]:
        parsed = server_request_of(method, params, identified=False)
        if parsed is None:
            raise ProtocolViolation(
                self._server, f"{self._server} asks with a method that no server request has: {method[:80]}"
            )
        return parsed

    async def collect_answers(self, requests: Mapping[str, tuple[str, Raw | None]]) -> dict[str, Raw]:
        """The client's answers to all of these, by their keys.

        Raises:
            ProtocolViolation, Forbidden: one of them may not be asked. Then none is.
            ServerErrorResponse: the client refused to answer what cannot be declined.
        """
        parsed = {key: self._parse_request(*each)[0] for key, each in requests.items()}
        adapted = {key: self._adapt(*each) for key, each in requests.items()}
        answers: dict[str, Raw] = {}
        refusals: list[PeerError] = []

        async def forward(key: str) -> None:
            try:
                answers[key] = await self._server_messages.forward(self._call, parsed[key], *adapted[key])
            except PeerError as refusal:
                if adapted[key][0] == ELICIT:
                    answers[key] = elicitation_cancelled()
                else:  # the server cannot be told that somebody does not want to
                    refusals.append(refusal)
                    nursery.cancel_scope.cancel("one of them was refused")

        async with trio.open_nursery() as nursery:
            for key in adapted:
                nursery.start_soon(forward, key)
        if refusals:
            error = refusals[0].error
            raise ServerErrorResponse(self._server, error.code, error.message, error.data)
        return answers


def _is_url_elicitation(request: tuple[str, Raw | None]) -> bool:
    parsed = server_request_of(*request, identified=False)
    return parsed is not None and parsed[0] is ServerRequest.URL


def _answer_key(request: tuple[str, Raw | None]) -> tuple[str, bytes]:
    method, params = request
    return method, bytes(params if params is not None else encode(None))
