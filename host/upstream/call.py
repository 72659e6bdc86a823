"""What a server works for: an exchange in flight there, with the clock that runs for it and the questions it caused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from host.exchange import Caller, ClientHandle, Exchange, NoClient
from host.jsonrpc.messages import Request
from host.peer.outstanding import CANCEL_SEND_GRACE

MAX_CALL_SECONDS = 600.0
"""Seconds after which a call ends even while it reports progress; what a question waits for a person is not counted."""

_INTERNAL_CALLER = Caller("colonnade", None)


class CallDeadline:
    """The deadline of one call: put off by progress, up to a ceiling, and standing still while a person is asked."""

    def __init__(self, seconds: float) -> None:
        now = trio.current_time()
        self.scope = trio.CancelScope(deadline=now + seconds)
        self._seconds = seconds
        self._ceiling = now + MAX_CALL_SECONDS
        self._pauses = 0
        self._paused_at = self._remaining = 0.0

    def extend(self, quiet_seconds: float = 0.0) -> None:
        """There was a sign of life; for `quiet_seconds` seconds from now on none is expected."""
        if not self._pauses and self._ceiling != float("inf"):
            self.scope.deadline = min(trio.current_time() + quiet_seconds + self._seconds, self._ceiling)

    def remove(self) -> None:
        """There is no deadline any more: the call has become a task, which has a life of its own."""
        self._seconds = self._ceiling = self._remaining = float("inf")
        self.scope.deadline = float("inf")

    def pause(self) -> None:
        """A person is asked. Each `pause` is followed by one `resume`."""
        if not self._pauses:
            self._paused_at = trio.current_time()
            self._remaining = self.scope.deadline - self._paused_at
            self.scope.deadline = float("inf")
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            now = trio.current_time()
            self._ceiling += now - self._paused_at
            self.scope.deadline = now + self._remaining


class PendingServerRequest:
    """What keeps a question open: the origins it may belong to. When the last of them is over, it is withdrawn. A
    question that belongs to none goes to `fallback_client`."""

    def __init__(self, calls: list[UpstreamCall], fallback_client: ClientHandle) -> None:
        self._fallback_client = fallback_client
        self.scope = trio.CancelScope()
        self._calls = list(calls)
        self._paused_calls: list[UpstreamCall] = []
        self._client_done: trio.Event | None = None
        """Set once the client has answered, or has been told that no answer is wanted any more."""
        for call in self._calls:
            call.server_requests.add(self)

    @property
    def client(self) -> ClientHandle:
        """Where the question goes now: the stream of the newest request that it may belong to and that is not over."""
        return self._calls[-1].exchange.client if self._calls else self._fallback_client

    @contextmanager
    def asking_client(self) -> Iterator[None]:
        """The client is asked for the block, which is cancelled when the question is withdrawn."""
        self._client_done = trio.Event()
        try:
            with self.scope:
                yield
        finally:
            self._client_done.set()

    async def wait_withdrawn(self) -> None:
        """Until the client has been told, if it was asked and the question was withdrawn meanwhile."""
        if self._client_done is not None and self.scope.cancel_called:
            await self._client_done.wait()

    def on_call_ended(self, call: UpstreamCall) -> None:
        self._calls.remove(call)
        if not self._calls:
            self.scope.cancel("the request that this belongs to is over")

    def pause_deadlines(self) -> None:
        self._paused_calls = list(self._calls)
        for call in self._paused_calls:
            call.deadline.pause()

    def release(self) -> None:
        for call in self._paused_calls:
            call.deadline.resume()
        for call in self._calls:
            call.server_requests.discard(self)


@dataclass(eq=False)
class UpstreamCall:
    """An exchange that a server works for, from before it is sent to its end."""

    exchange: Exchange
    deadline: CallDeadline
    server_requests: set[PendingServerRequest] = field(default_factory=set)
    missing_capabilities: Mapping[str, object] | None = None
    """The capabilities for want of which the server was refused a question."""
    listens: bool = False
    """Whether it only listens to what changes: nothing is worked on for it."""

    @property
    def is_internal(self) -> bool:
        """Whether it is for no client in particular."""
        return self.exchange.caller is _INTERNAL_CALLER

    def end(self) -> None:
        """It is over: nobody is left who would answer for it."""
        pending, self.server_requests = self.server_requests, set()
        for request in pending:
            request.on_call_ended(self)

    async def close(self) -> None:
        """End it, and return once its client has been told of each question that ended with it: the answer, which
        comes after this, closes the stream for that."""
        pending = self.server_requests
        self.end()
        if pending:
            with trio.move_on_after(CANCEL_SEND_GRACE, shield=True):
                for request in pending:
                    await request.wait_withdrawn()


def internal_call(*, listens: bool = False) -> UpstreamCall:
    """The call of a request that is sent for no client in particular. It is somebody's: what the server asks
    meanwhile may belong to it, and then nobody is asked."""
    return UpstreamCall(
        Exchange(Request(0, ""), {}, _INTERNAL_CALLER, NoClient()), CallDeadline(float("inf")), listens=listens
    )
