"""Parts common to all ways of answering a request: decoding of params, and translation of errors to responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from host.errors import INTERNAL_ERROR_MESSAGE, ColonnadeError, InvalidRequest
from host.journal import InternalError, Journal
from host.jsonrpc.messages import INTERNAL_ERROR, ErrorBody, Failure, Request, Success
from host.jsonrpc.twins import refuse_twins
from host.protocol.known_params import KNOWN_PARAMS, UNSET


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
    for name, missing in UNSET.get(request.method, {}).items():
        if params.get(name) in missing:
            del params[name]
    return params


def error_body(error: ColonnadeError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.data)


async def errors_as_answers(
    request: Request,
    work: Callable[[Request], Awaitable[Raw]],
    journal: Journal,
    client_name: str,
    body_of: Callable[[ColonnadeError], ErrorBody] = error_body,
) -> Success | Failure:
    """The response to the request: the result of `work`, or its error. `client_name` is for the log."""
    try:
        return Success(request.id, await work(request))
    except ColonnadeError as error:
        return Failure(body_of(error), request.id)
    except Exception as problem:  # noqa: BLE001 - an error in one request must not affect any other.
        journal.note(InternalError(f"{request.method[:80]} for {client_name}", problem))
        return Failure(ErrorBody(INTERNAL_ERROR, INTERNAL_ERROR_MESSAGE), request.id)
