"""Parts common to all ways of answering a request: decoding of params, and translation of errors to responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from host.errors import INTERNAL_ERROR_MESSAGE, ColonnadeError, InvalidRequest
from host.journal import OBSERVED, UNKNOWN_HOP, Hop, InternalError, Journal, trace_id_of
from host.jsonrpc.messages import INTERNAL_ERROR, ErrorBody, Failure, Request, Success
from host.jsonrpc.twins import refuse_twins
from host.protocol.known_params import KNOWN_PARAMS, UNSET
from host.protocol.versions import SERVED


def params_of(request: Request) -> dict[str, Raw]:
    """The members of a request's params, without optional ones whose value counts as missing.

    Raises:
        InvalidRequest: they are no object.
        AmbiguousMembers: some readers take one of them for another of them, or for one that the method has.
    """
    found = request.params_members
    if found is None:
        raise InvalidRequest("params is not an object")
    known = KNOWN_PARAMS.get(request.method)
    if known is not None:
        refuse_twins(known, found)
    params = dict(found)
    unset = UNSET.get(request.method)
    if unset is not None and not unset.keys().isdisjoint(params):
        for name, missing in unset.items():
            if params.get(name) in missing:
                del params[name]
    return params


HOPS = {(name, pipe): Hop(name, "pipe" if pipe else "tcp") for name in (*SERVED, "") for pipe in (False, True)}
"""The hops to clients, by the name of their revision and whether they are programs of this machine."""


def error_body(error: ColonnadeError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.data)


async def errors_as_answers(
    request: Request,
    work: Callable[[Request], Awaitable[Raw]],
    journal: Journal,
    client_name: str,
    body_of: Callable[[ColonnadeError], ErrorBody] = error_body,
    hop: Hop = UNKNOWN_HOP,
) -> Success | Failure:
    """The response to the request: the result of `work`, or its error. `client_name` is for the log; `hop`: to the
    client, for whoever observes the request."""
    observed = None
    if journal.observer is not None:
        observed = request.__dict__[OBSERVED] = journal.observer.answering(request, hop)
    answer: Success | Failure | None = None
    try:
        answer = Success(request.id, await work(request))
    except ColonnadeError as error:
        answer = Failure(body_of(error), request.id)
    except Exception as problem:  # noqa: BLE001 - an error in one request must not affect any other.
        where = f"{request.method[:80]} for {client_name}"
        journal.note(InternalError(where, problem, client_name, trace_id_of(observed)))
        answer = Failure(ErrorBody(INTERNAL_ERROR, INTERNAL_ERROR_MESSAGE), request.id)
    finally:
        if observed is not None:
            observed.end(answer)
    return answer
