"""What calls that outlive their requests have in common: questions that stand open, owners that may have so many, and
outcomes that are kept until somebody fetches them.

This file knows no rounds, no tasks and no deadlines: whoever uses it says what happens when something ends.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

import trio
from msgspec import Raw

from host.errors import ColonnadeError, TooLarge, copy_of
from host.jsonrpc.raw import is_object
from host.wire.link import LinkLost

T = TypeVar("T", bound=Hashable)
E = TypeVar("E", bound=Exception)

MethodAndParams: TypeAlias = tuple[str, dict[str, Raw]]
"""The method and the params of a question."""


class OpenServerRequest:
    """One of `OpenServerRequests`.

    Args:
        key: what its answer comes under.
    """

    __slots__ = ("_end", "_ended", "asked", "key", "since")

    def __init__(self, key: str, asked: MethodAndParams) -> None:
        self.key = key
        self.asked = asked
        self.since = trio.current_time()
        self._ended = trio.Event()
        self._end: Raw | Exception | None = None

    async def answer(self) -> Raw:
        """Wait for the answer, as the client sent it: a JSON object.

        Raises:
            LinkLost: the question ended without one.
            Exception: what it was refused with.
        """
        await self._ended.wait()
        if self._end is None:
            raise LinkLost("what this belongs to ended before the client answered")
        if isinstance(self._end, Exception):
            raise copy_of(self._end)  # it would hold its own stack, which holds this
        return self._end

    def end(self, end: Raw | Exception | None) -> None:
        self._end = end
        self._ended.set()


class OpenServerRequests:
    """The questions of one call that have not ended. A key is never used twice."""

    def __init__(self) -> None:
        self._open: dict[str, OpenServerRequest] = {}
        self._last_key = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenServerRequest]:
        """Oldest first."""
        return iter(self._open.values())

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def get(self, key: str) -> OpenServerRequest | None:
        return self._open.get(key)

    def by_key(self) -> dict[str, MethodAndParams]:
        """What is asked now, by key, oldest first."""
        return {key: question.asked for key, question in self._open.items()}

    def add(self, method: str, params: dict[str, Raw]) -> OpenServerRequest:
        """Open one more. Whoever adds it ends it, too."""
        self._last_key += 1
        question = OpenServerRequest(f"q{self._last_key}", (method, params))
        self._open[question.key] = question
        return question

    def answer(self, key: str, answer: Raw) -> bool:
        """End the question with its answer. False if none of that key is open, or the answer is no object; then the
        question stays."""
        return is_object(answer) and self.end(key, answer)

    def end(self, key: str, end: Raw | Exception | None = None) -> bool:
        """End the question. False if none of that key is open.

        Args:
            end: what whoever waits for the answer gets, or has raised; None if there will be no answer.
        """
        question = self._open.pop(key, None)
        if question is not None:
            question.end(end)
        return question is not None

    def end_all(self) -> None:
        """There will be no answers."""
        for key in list(self._open):
            self.end(key)


class ByOwner(Generic[T]):
    """Things, counted by whose they are."""

    def __init__(self) -> None:
        self._owners: dict[T, Hashable] = {}
        self._counts: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def has_room(self, owner: Hashable, *, max_total: int, max_per_owner: int) -> bool:
        """Whether this owner may have one more, where all have `max_total` together and each has `max_per_owner` at
        most."""
        return len(self._owners) < max_total and self._counts.get(owner, 0) < max_per_owner

    def add(self, thing: T, owner: Hashable) -> None:
        self._owners[thing] = owner
        self._counts[owner] = self._counts.get(owner, 0) + 1

    def drop(self, thing: T) -> None:
        """Count it no more; nothing happens if it is not counted."""
        if thing not in self._owners:
            return
        owner = self._owners.pop(thing)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


class KeptResults(Generic[T]):
    """Things that hold memory until they are dropped."""

    def __init__(self) -> None:
        self._sizes: dict[T, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, thing: T, size: int, *, max_bytes: int, max_count: float = math.inf) -> list[T]:
        """Keep one more.

        Args:
            size: what it holds, in bytes.

        Returns:
            Those that were dropped for it, oldest first. The newest is kept whatever its size: nobody could ever have
            it otherwise.
        """
        self._sizes[thing] = size
        self._bytes += size
        dropped: list[T] = []
        while len(self._sizes) > 1 and (len(self._sizes) > max_count or self._bytes > max_bytes):
            oldest = next(iter(self._sizes))
            self.drop(oldest)
            dropped.append(oldest)
        return dropped

    def drop(self, thing: T) -> None:
        """Keep it no more; nothing happens if it is not kept."""
        self._bytes -= self._sizes.pop(thing, 0)


class AnswerTooLarge(ColonnadeError):
    """There is no memory to keep the answer until its client fetches it."""

    code = TooLarge.code

    def __init__(self) -> None:
        super().__init__("the request was carried out, but there is no memory to keep its answer (memory)")


def fit_to_keep(error: E) -> E:
    """The same error, without the stack that it was raised in and the buffer that its data lies in. Whoever raises it
    more than once raises it `again`."""
    fit = copy_of(error)
    if isinstance(fit, ColonnadeError) and fit.data is not None:
        fit.data = fit.data.copy()
    return fit


def size_of(outcome: Raw | Exception | None) -> int:
    """The bytes that an outcome holds: a result, or the data of an error."""
    if isinstance(outcome, Exception):
        outcome = outcome.data if isinstance(outcome, ColonnadeError) else None
    return 0 if outcome is None else memoryview(outcome).nbytes
