"""Parts that every way of answering a request shares: how params are decoded, and how an error becomes the
answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from host.errors import INTERNAL_ERROR_MESSAGE, ColonnadeError, InvalidParams
from host.journal import InternalError, Journal
from host.jsonrpc.messages import INTERNAL_ERROR, ErrorBody, Failure, Request, Success


def params_of(request: Request) -> dict[str, Raw]:
    """The members of its params.

    Raises:
        InvalidParams: they are no object.
    """
    if request.params_members is None:
        raise InvalidParams("params is not an object")
    return dict(request.params_members)


def error_body(error: ColonnadeError) -> ErrorBody:
    return ErrorBody(error.code, error.message, error.data)


async def errors_as_answers(
    request: Request,
    work: Callable[[Request], Awaitable[Raw]],
    journal: Journal,
    client_name: str,
    body_of: Callable[[ColonnadeError], ErrorBody] = error_body,
) -> Success | Failure:
    """The answer to the request: what `work` gives, or why it gives nothing. `client_name` is who asked, for the
    log."""
    try:
        return Success(request.id, await work(request))
    except ColonnadeError as error:
        return Failure(body_of(error), request.id)
    except Exception as problem:  # noqa: BLE001 - one request's trouble must not reach any other
        journal.note(InternalError(f"{request.method[:80]} for {client_name}", problem))
        return Failure(ErrorBody(INTERNAL_ERROR, INTERNAL_ERROR_MESSAGE), request.id)
