"""Memory charged for one request of a client: its body while it arrives, its copies while it is carried out, its answer
until it is taken.

When the memory is needed elsewhere, the block that runs at that moment is cancelled (`droppable`), and the request is
answered with an error that says how far it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from host.errors import TooLarge, Unavailable
from host.jsonrpc.messages import ErrorBody, Failure, Id
from host.memory import Budget, Holding, Owner, Use

COPIES = 3
"""Copies of a request that exist while a server works on it (measured): as the client sent it, as it is sent on, and as
the transport to the server holds it."""


NO_MEMORY_MESSAGE = "the memory for requests is used up (memory); nothing was carried out, try again later"
CANCELLED_MESSAGE = (
    "the request was called off since its memory was needed elsewhere (memory); its server may have carried it out"
)
ANSWER_TOO_LARGE_MESSAGE = "the request was carried out, but there is no memory for its answer of {size} bytes (memory)"


def answer_too_large(id: Id | None, size: int) -> Failure:
    """The answer in place of one that takes too much memory."""
    return Failure(ErrorBody(TooLarge.code, ANSWER_TOO_LARGE_MESSAGE.format(size=size)), id)


def memory_cancelled(id: Id | None) -> Failure:
    """The answer to a request that was called off for its memory."""
    return Failure(ErrorBody(Unavailable.code, CANCELLED_MESSAGE), id)


class RequestCharge:
    """The charge of one request. As a context manager it is released at the end."""

    def __init__(self, budget: Budget, owner: Owner) -> None:
        self._scope: trio.CancelScope | None = None
        self._body = 0
        self._budget = budget
        self._owner = owner
        self._held = self._hold()

    @property
    def dropped(self) -> bool:
        """The memory was needed elsewhere."""
        return self._held.dropped

    def add_request_bytes(self, size: int) -> None:
        """So many bytes more of the request have come.

        Raises:
            OverBudget: they do not fit.
        """
        self._held.grow(size)
        self._body += size

    def begin_processing(self) -> None:
        """The request is whole, and is about to be carried out.

        Raises:
            OverBudget: its copies do not fit.
        """
        self._held.resize(COPIES * self._body)

    def set_answer_size(self, size: int) -> None:
        """There is an answer of so many bytes. What was dropped before is charged anew: an error needs little.

        Raises:
            OverBudget: it does not fit.
        """
        if self.dropped:
            self._held = self._hold()
        self._held.resize(self._body + size)

    def touch(self) -> None:
        """A part of the answer was taken."""
        self._held.touch()

    @contextmanager
    def droppable(self) -> Iterator[trio.CancelScope]:
        """The block is cancelled when the memory is needed elsewhere."""
        with trio.CancelScope() as scope:
            if self.dropped:
                scope.cancel()
            before, self._scope = self._scope, scope
            try:
                yield scope
            finally:
                self._scope = before

    def _hold(self) -> Holding:
        return self._budget.hold(self._owner, Use.REQUESTS, drop=self._drop)

    def _drop(self) -> None:
        self._held.release()
        if self._scope is not None:
            self._scope.cancel("its memory is needed elsewhere")

    def release(self) -> None:
        """Release the charge."""
        self._held.release()

    def __enter__(self) -> RequestCharge:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
