"""Calls in flight at a server: an exchange with its deadline and the server requests that belong to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

import trio
from msgspec import Raw, Struct, field

from host.exchange import Caller, ClientHandle, Exchange, NoClient
from host.jsonrpc.messages import Request
from host.peer.outstanding import CANCEL_SEND_GRACE
from host.protocol.meta import increased_progress
from host.protocol.methods import TOOLS_CALL
from host.protocol.server_requests import ServerRequestRejected
from host.source import SHARED
from host.upstream.results import is_error
from host.wire.deadlines import CallScope

_INTERNAL_CALLER = Caller("colonnade", SHARED)


class CallDeadline:
    """The deadline of one call: extended by progress, up to `total` seconds, and paused while a server request waits
    for its client, which counts for neither. As a context manager it ends its block.

    Args:
        began: the time of its begin, for a caller that has read the clock already.
        scope: that of the request, which is entered already; None for one of its own.
    """

    def __init__(
        self,
        seconds: float,
        total: float = float("inf"),
        began: float | None = None,
        scope: CallScope | None = None,
    ) -> None:
        self.began = began = trio.current_time() if began is None else began
        self._is_alone, self._is_over = scope is None, False
        self.scope = CallScope() if scope is None else scope
        self.scope.deadline = began + seconds
        self._seconds = seconds
        self._ceiling = began + total
        self._last_progress = float("-inf")
        self._pauses = 0
        self._paused_at = self._remaining = 0.0

    def __enter__(self) -> None:
        if self._is_alone:
            self.scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._is_over = True
        return self.scope.__exit__(kind, problem, trace) if self._is_alone else self.scope.end_wait(problem)

    def _move(self, deadline: float) -> None:
        if not self._is_over:  # otherwise the scope is that of another call by now; a server request may end later
            self.scope.deadline = deadline

    def extend(self, quiet_seconds: float = 0.0) -> None:
        """Extend the deadline after a sign of life of the server. For `quiet_seconds` from now on none is expected."""
        if not self._pauses and self._ceiling != float("inf"):
            self._move(min(trio.current_time() + quiet_seconds + self._seconds, self._ceiling))

    def take_report(self, params: Mapping[str, Raw]) -> bool:
        """Extend the deadline after a report of progress. Returns whether it counts; see `increased_progress`."""
        progress = increased_progress(params, self._last_progress)
        if progress is None:
            return False
        self._last_progress = progress
        self.extend()
        return True

    def remove(self) -> None:
        """Remove the deadline, because the call has become a task, which may take any time."""
        self._seconds = self._ceiling = self._remaining = float("inf")
        self._move(float("inf"))

    def pause(self) -> None:
        """Stop the clock. Each `pause` must be followed by one `resume`."""
        if not self._pauses:
            self._paused_at = trio.current_time()
            self._remaining = self.scope.deadline - self._paused_at
            self._move(float("inf"))
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            now = trio.current_time()
            self._ceiling += now - self._paused_at
            self._move(now + self._remaining)


class PendingServerRequest:
    """A server request that waits for its client, with the calls that it may belong to. It is withdrawn when the last
    of them ends. One that belongs to no call goes to `fallback_client`."""

    def __init__(self, calls: list[UpstreamCall], fallback_client: ClientHandle) -> None:
        self._fallback_client = fallback_client
        self.scope = trio.CancelScope()
        self._calls = list(calls)
        self._paused_calls: list[UpstreamCall] = []
        self._client_done: trio.Event | None = None
        """Set when the client has responded, or has been told that the request is withdrawn."""
        for call in self._calls:
            call.server_requests.add(self)

    @property
    def client(self) -> ClientHandle:
        """The client handle to send to: that of the newest call that the server request may belong to."""
        return self._calls[-1].exchange.client if self._calls else self._fallback_client

    @contextmanager
    def asking_client(self) -> Iterator[None]:
        """Ask the client in this block, which is cancelled when the server request is withdrawn."""
        self._client_done = trio.Event()
        try:
            with self.scope:
                yield
        finally:
            self._client_done.set()

    async def wait_withdrawn(self) -> None:
        """Wait until the client has been told that the server request is withdrawn, if it has to be told."""
        if self._client_done is not None and self.scope.cancel_called:
            await self._client_done.wait()

    def on_call_ended(self, call: UpstreamCall) -> None:
        self._calls.remove(call)
        if not self._calls:
            self.scope.cancel("the request that this belongs to has ended")

    def pause_deadlines(self) -> None:
        self._paused_calls = list(self._calls)
        for call in self._paused_calls:
            call.deadline.pause()

    def release(self) -> None:
        for call in self._paused_calls:
            call.deadline.resume()
        for call in self._calls:
            call.server_requests.discard(self)


class UpstreamCall(Struct, eq=False):
    """An exchange at its server, from before it is sent until it ends."""

    exchange: Exchange
    deadline: CallDeadline
    server_requests: set[PendingServerRequest] = field(default_factory=set)
    """If there are any, `close` must be called at the end."""
    lacked: list[ServerRequestRejected] = field(default_factory=list)
    """The refusals of server requests that need capabilities which its request does not declare, one for each."""
    has_begun: bool = False
    """The server has answered a request of it, so it must not be sent again as a whole."""
    listens: bool = False
    """It is a `subscriptions/listen`: the server does no work for it."""
    outlined: tuple[Raw, Raw] | None = None
    """The result that came last, and its outline."""
    tool_error: bool | None = None
    """Whether the result that came last says that the call of the tool failed, if that was looked at."""

    def keep_outline(self, result: Raw, outline: Raw) -> None:
        self.outlined = result, outline

    def look_at(self, result: Raw) -> tuple[Raw | None, bool]:
        """The outline of the result of the call, if this very result came last; and whether it is that of a tool which
        says that the call failed."""
        outlined = self.outlined[1] if self.outlined is not None and self.outlined[0] is result else None
        if self.exchange.request.method != TOOLS_CALL.name:
            return outlined, False
        tool_error = self.tool_error
        return outlined, is_error(result if outlined is None else outlined) if tool_error is None else tool_error

    @property
    def is_internal(self) -> bool:
        """Whether it is a request of Colonnade's own, for no client in particular."""
        return self.exchange.caller is _INTERNAL_CALLER

    def note_lacked(self, refusal: ServerRequestRejected) -> None:
        """Note that a server request was refused because its request does not declare a capability."""
        if all(each.missing_capability != refusal.missing_capability for each in self.lacked):
            self.lacked.append(refusal)

    def end(self) -> None:
        """Withdraw the server requests that belong to no other call."""
        pending, self.server_requests = self.server_requests, set()
        for request in pending:
            request.on_call_ended(self)

    async def close(self) -> None:
        """End the call, and return when its client has been told of each withdrawn server request: the response, which
        follows, closes the stream on which the client is told."""
        pending = self.server_requests
        self.end()
        if pending:
            with trio.move_on_after(CANCEL_SEND_GRACE, shield=True):
                for request in pending:
                    await request.wait_withdrawn()


def internal_call(*, listens: bool = False) -> UpstreamCall:
    """The call of a request of Colonnade's own. Such requests are calls too, because a server request that comes
    meanwhile may belong to one of them, and is then refused."""
    return UpstreamCall(
        Exchange(Request(0, ""), {}, _INTERNAL_CALLER, NoClient()), CallDeadline(float("inf")), listens=listens
    )
