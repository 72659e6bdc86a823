"""Memory charged for one request of a client: its body while it arrives, its copies while it is processed, its response
until the client has taken it.

When the memory is needed elsewhere, the block that runs at that moment is cancelled (`droppable`, `cancel_on_drop`),
and the request gets an error that says how far it came.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from host.errors import TooLarge, Unavailable
from host.jsonrpc.messages import ErrorBody, Failure, Id
from host.memory import Budget, Owner, Use

COPIES = 3
"""Copies of a request that exist while a server works on it (measured): as received, as sent on, and in the transport
to the server."""

SMALL = 4096
"""Bytes by which the copies of a request may be more than its short answer: less is not worth to be given back before
the end."""
_REQUESTS = Use.REQUESTS  # for speed; see RESOURCE in protocol/methods.py
NEEDED_ELSEWHERE = "its memory is needed elsewhere"
NO_MEMORY_MESSAGE = "the memory for requests is used up (memory); nothing was carried out, try again later"
CANCELLED_MESSAGE = (
    "the request was called off since its memory was needed elsewhere (memory); its server may have carried it out"
)
TOKEN_WITHDRAWN = "its access token was withdrawn (listen.auth)"
VIEW_CHANGED = "its address has another view now, or none (views)"
REVOKED_MESSAGE = "the request was called off since {why}; its server may have carried it out"
ANSWER_TOO_LARGE_MESSAGE = "the request was carried out, but there is no memory for its answer of {size} bytes (memory)"


def answer_too_large(id: Id | None, size: int) -> Failure:
    """The error in place of a response that needs too much memory."""
    return Failure(ErrorBody(TooLarge.code, ANSWER_TOO_LARGE_MESSAGE.format(size=size)), id)


class Cancellable(Protocol):
    def cancel(self, reason: str | None = None) -> None: ...


class RequestCharge:
    """The charge of one request. As a context manager it is released at the end. `of`: see `Budget.hold`."""

    def __init__(self, budget: Budget, owner: Owner, of: Hashable = None) -> None:
        self._scope: Cancellable | None = None
        self._body = 0
        self._budget = budget
        self._owner = owner
        self._of = of
        self._held = budget.hold(owner, _REQUESTS, drop=self._drop, of=of)

    @property
    def dropped(self) -> bool:
        """Whether the charge was dropped because the memory was needed elsewhere, or its owner is no longer served."""
        return self._held.dropped

    @property
    def revoked(self) -> str:
        """Why the request is no longer served: TOKEN_WITHDRAWN or VIEW_CHANGED; empty if it is."""
        return self._held.revoked

    def cancelled(self, id: Id | None) -> Failure:
        """The error for the request, which was cancelled since its charge was dropped."""
        text = REVOKED_MESSAGE.format(why=self.revoked) if self.revoked else CANCELLED_MESSAGE
        return Failure(ErrorBody(Unavailable.code, text), id)

    def another(self) -> RequestCharge:
        """The charge of another request of the same client."""
        return RequestCharge(self._budget, self._owner, self._of)

    def add_request_bytes(self, size: int) -> None:
        """Charge `size` further bytes of the request.

        Raises:
            OverBudget: they do not fit.
        """
        self._held.grow(size)
        self._body += size

    def begin_processing(self, size: int = 0) -> None:
        """Charge the copies of a complete request that is about to be processed. `size` bytes of it came last.

        Raises:
            OverBudget: its copies do not fit.
        """
        self._body += size
        self._held.grow(COPIES * self._body - self._held.size)

    def begin_again(self) -> None:
        """Charge nothing of the request, which is about to be read once more."""
        if self._body:
            self._held.grow(-self._held.size)
            self._body = 0

    def set_answer_size(self, size: int) -> None:
        """Charge a response of `size` bytes instead, or a little more. A dropped charge is charged anew: an error needs
        little.

        Raises:
            OverBudget: it does not fit.
        """
        if self._held.dropped:
            self._held = self._budget.hold(self._owner, _REQUESTS, drop=self._drop, of=self._of)
        more = self._body + size - self._held.size
        if more > 0 or more < -SMALL:
            self._held.grow(more)

    def touch(self) -> None:
        """Record that the client has taken a part of the response."""
        self._held.touch()

    @contextmanager
    def droppable(self) -> Iterator[trio.CancelScope]:
        """Context manager whose block is cancelled when the memory is needed elsewhere. Its value is the block's cancel
        scope. For work that waits for the client."""
        before = self._scope
        with trio.CancelScope() as scope:
            self.cancel_on_drop(scope)
            try:
                yield scope
            finally:
                self._scope = before

    def cancel_on_drop(self, scope: Cancellable) -> None:
        """Have a cancel scope that the request has anyway cancelled when the memory is needed elsewhere, in place of a
        `droppable` block, which costs more; `dropped` tells whether it was."""
        self._scope = scope
        if self._held.dropped:
            scope.cancel(self._why_dropped)

    @property
    def _why_dropped(self) -> str:
        return self.revoked or NEEDED_ELSEWHERE

    def _drop(self) -> None:
        self._held.release()
        if self._scope is not None:
            self._scope.cancel(self._why_dropped)

    def release(self) -> None:
        """Release the charge."""
        self._held.release()
        self._scope = None  # which may refer to this

    def __enter__(self) -> RequestCharge:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
