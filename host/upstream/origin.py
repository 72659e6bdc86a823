"""What a server works for: an exchange in flight there, with the clock that runs for it and the questions it caused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from host.asking import CALL_OFF_GRACE
from host.exchange import Caller, ClientHandle, Exchange, NoClient
from host.jsonrpc.messages import Request

CEILING = 600.0
"""Seconds after which a call ends even while it reports progress; what a question waits for a person is not counted."""

_HOST = Caller("colonnade", None)


class Patience:
    """The deadline of one call: put off by progress, up to a ceiling, and standing still while a person is asked."""

    def __init__(self, seconds: float) -> None:
        now = trio.current_time()
        self.scope = trio.CancelScope(deadline=now + seconds)
        self._seconds = seconds
        self._ceiling = now + CEILING
        self._waiting = 0
        self._stopped_at = self._left = 0.0

    def progressed(self, pause: float = 0.0) -> None:
        """There was a sign of life; for `pause` seconds from now on none is expected."""
        if not self._waiting and self._ceiling != float("inf"):
            self.scope.deadline = min(trio.current_time() + pause + self._seconds, self._ceiling)

    def as_long_as_it_takes(self) -> None:
        """There is no deadline any more: the call has become a task, which has a life of its own."""
        self._seconds = self._ceiling = self._left = float("inf")
        self.scope.deadline = float("inf")

    def stop(self) -> None:
        """A person is asked. Each `stop` is followed by one `go_on`."""
        if not self._waiting:
            self._stopped_at = trio.current_time()
            self._left = self.scope.deadline - self._stopped_at
            self.scope.deadline = float("inf")
        self._waiting += 1

    def go_on(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            now = trio.current_time()
            self._ceiling += now - self._stopped_at
            self.scope.deadline = now + self._left


class Hold:
    """What keeps a question open: the origins it may belong to. When the last of them is over, it is withdrawn. A
    question that belongs to none goes to `standing`."""

    def __init__(self, origins: list[Origin], standing: ClientHandle) -> None:
        self._standing = standing
        self.scope = trio.CancelScope()
        self._origins = list(origins)
        self._stopped: list[Origin] = []
        self._asked: trio.Event | None = None
        """Set once the client has answered, or has been told that no answer is wanted any more."""
        for origin in self._origins:
            origin.questions.add(self)

    @property
    def outlet(self) -> ClientHandle:
        """Where the question goes now: the stream of the newest request that it may belong to and that is not over."""
        return self._origins[-1].exchange.client if self._origins else self._standing

    @contextmanager
    def asked(self) -> Iterator[None]:
        """The client is asked for the block, which is cancelled when the question is withdrawn."""
        self._asked = trio.Event()
        try:
            with self.scope:
                yield
        finally:
            self._asked.set()

    async def called_off(self) -> None:
        """Until the client has been told, if it was asked and the question was withdrawn meanwhile."""
        if self._asked is not None and self.scope.cancel_called:
            await self._asked.wait()

    def over(self, origin: Origin) -> None:
        self._origins.remove(origin)
        if not self._origins:
            self.scope.cancel("the request that this belongs to is over")

    def stop_clocks(self) -> None:
        self._stopped = list(self._origins)
        for origin in self._stopped:
            origin.patience.stop()

    def release(self) -> None:
        for origin in self._stopped:
            origin.patience.go_on()
        for origin in self._origins:
            origin.questions.discard(self)


@dataclass(eq=False)
class Origin:
    """An exchange that a server works for, from before it is sent to its end."""

    exchange: Exchange
    patience: Patience
    questions: set[Hold] = field(default_factory=set)
    lacks: Mapping[str, object] | None = None
    """The capabilities for want of which the server was refused a question."""
    listens: bool = False
    """Whether it only listens to what changes: nothing is worked on for it."""

    @property
    def is_ours(self) -> bool:
        """Whether it is for no client in particular."""
        return self.exchange.caller is _HOST

    def end(self) -> None:
        """It is over: nobody is left who would answer for it."""
        held, self.questions = self.questions, set()
        for hold in held:
            hold.over(self)

    async def close(self) -> None:
        """End it, and return once its client has been told of each question that ended with it: the answer, which
        comes after this, closes the stream for that."""
        held = self.questions
        self.end()
        if held:
            with trio.move_on_after(CALL_OFF_GRACE, shield=True):
                for hold in held:
                    await hold.called_off()


def our_own(*, listens: bool = False) -> Origin:
    """The origin of a request that is sent for no client in particular. It is somebody's: what the server asks
    meanwhile may belong to it, and then nobody is asked."""
    return Origin(Exchange(Request(0, ""), {}, _HOST, NoClient()), Patience(float("inf")), listens=listens)
