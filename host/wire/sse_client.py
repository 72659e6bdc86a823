"""The HTTP+SSE link to a server, as its client (2024-11-05, "Transports / HTTP with SSE").

One GET stream carries all messages of the server. Its first event names the endpoint for our messages; the response to
a POST has no content, and JSON-RPC responses come on the stream. The stream is the session: when it ends, the link
ends, and nothing can be resumed.

The server chooses the endpoint, and our messages and credentials are sent there. It must therefore be within the
server's own origin. The rules of `http_transport` hold here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import trio

from host.jsonrpc.messages import Id, Malformed, Notification, write
from host.protocol.versions import Revision
from host.url import Url
from host.wire.http_errors import CONNECT_TIMEOUT, PATH_REMEDY, HttpRefused
from host.wire.http_pool import Headers
from host.wire.http_transport import (
    CLOSING_TIMEOUT,
    EVENT_STREAM,
    JSON,
    HttpExchanges,
    HttpResponse,
    Origin,
    messages_of_event,
)
from host.wire.link import ConnectStage, Deliver, LinkLost, Parcel, ReceivedMessage
from host.wire.refusal_text import MAX_SAID
from host.wire.session_check import speaks_of_session
from host.wire.sse import MAX_EVENT, EventParser, SseEvent

PUBLIC_PATH = "tell the server, or the proxy before it, the URL at which it is reached from here"
ONE_INSTANCE = "have all requests of one client reach the same instance of it"
MAX_NOT_FOUND = 2
"""Messages in a row whose address is not there any more, after which the session is over."""
ENDPOINT_TIMEOUT = 10.0
"""Seconds from the head of the stream to the event that names the endpoint."""


class SseLink:
    """A `Link` over HTTP+SSE. Nothing is sent until `run` opens the stream; the session ends with the connections of
    `origin`.

    Args:
        on_dropped: called for each event that is ignored, as (what, detail). Must not wait.
    """

    hears_unasked = True

    def __init__(self, origin: Origin, on_dropped: Callable[[str, str], None]) -> None:
        self._origin = origin
        self._on_dropped = on_dropped
        self._exchanges = HttpExchanges(self._abort)
        self._endpoint: Url | None = None
        self._endpoint_said = ""
        self._may_be_misled = True
        """No message has been accepted at the endpoint yet."""
        self._not_found_count = 0
        self._endpoint_known = trio.Event()
        self._batches = False
        self._set_headers(None)

    async def run(self, deliver: Deliver) -> None:
        """Open the stream and carry messages until it ends; see `Link`.

        Raises:
            AuthNeeded, HttpRefused: the server did not open the stream.
            LinkLost: the server cannot be reached, named no usable endpoint, or the stream ended.
        """
        lost = LinkLost("the connection was closed")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._origin.pool.close_idle)
                try:
                    await self._read_stream(deliver)
                    lost = LinkLost("its event stream ended, and the session with it")
                except LinkLost as problem:
                    lost = problem
                nursery.cancel_scope.cancel()
        finally:
            self._exchanges.connection_lost(lost)  # also if this is cancelled
        assert self._exchanges.lost is not None
        raise self._exchanges.lost

    async def send(self, parcel: Parcel) -> None:
        """POST one message, once the endpoint is known. Returns when the server has accepted it.

        Raises:
            AuthNeeded, HttpRefused: the server did not accept the message.
            LinkLost: the link has ended, or this exchange broke.
        """
        with self._exchanges:
            await self._endpoint_known.wait()
            answer = await self._origin.request("POST", self._post_headers, write(parcel.message), self._endpoint)
            if not answer.is_success:
                refusal = await self._refusal(answer)
                if self._may_be_misled:
                    self._explain_endpoint(refusal)
                elif self._ends_session(refusal):
                    ended = LinkLost(f"the server does not know the session any more (HTTP {refusal.status})")
                    ended.ended_session = True
                    self._exchanges.connection_lost(ended)
                raise refusal
            self._may_be_misled, self._not_found_count = False, 0
            await answer.discard()

    def _abort(self) -> None:
        self._origin.pool.abort()
        self._endpoint_known.set()  # what waits for it finds the connections closed

    def settle(self, revision: Revision) -> None:
        """Set the negotiated revision. From now on POSTs name it, if it has a header for that."""
        self._set_headers(revision.name if revision.names_itself_in_http else None)
        self._batches = revision.has_batches

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        with trio.move_on_after(CLOSING_TIMEOUT), suppress(LinkLost):
            await self.send(Parcel(notice, id))

    def _set_headers(self, revision: str | None) -> None:
        ours = [("Accept", "*/*"), ("Content-Type", JSON)]  # the body of the response does not matter
        if revision is not None:
            ours.append(("MCP-Protocol-Version", revision))
        self._post_headers: Headers = self._origin.headers(ours)

    async def _read_stream(self, deliver: Deliver) -> None:
        with trio.move_on_after(CONNECT_TIMEOUT + ENDPOINT_TIMEOUT) as timeout:
            answer = await self._open_stream()
            timeout.deadline = trio.current_time() + ENDPOINT_TIMEOUT

            events = EventParser(self._origin.max_message or MAX_EVENT)

            def take(event: SseEvent | Malformed) -> Iterator[bool]:
                for received in self._messages_in(event, events):
                    deliver(received)
                    yield self._exchanges.lost is not None
                if self._endpoint is not None:
                    timeout.deadline = float("inf")
                yield self._exchanges.lost is not None

            await answer.read_events(events, take)
        if timeout.cancelled_caught:
            silent = LinkLost(f"it named no endpoint for messages within {ENDPOINT_TIMEOUT:.0f} s")
            silent.reached = ConnectStage.REFUSED  # so do servers of Streamable HTTP, whose stream has no such event
            raise silent

    async def _open_stream(self) -> HttpResponse:
        answer = await self._origin.request("GET", self._origin.headers([("Accept", EVENT_STREAM)]))
        if answer.is_success and answer.media_type == EVENT_STREAM:
            return answer
        if answer.is_success:
            await answer.discard()
            absent = HttpRefused(answer.status, "the server has no event stream there", PATH_REMEDY)
            absent.reached = ConnectStage.NOTHING
            raise answer.unreadable or absent
        raise await self._refusal(answer)

    async def _refusal(self, answer: HttpResponse) -> HttpRefused:
        refusal = self._origin.refusal(answer)
        self._origin.explain(answer, refusal, await answer.said())
        return refusal

    def _ends_session(self, refusal: HttpRefused) -> bool:
        """Whether the server has forgotten the session of the stream, which a proxy may hold open: it says so, or its
        endpoint is not there any more. A single message that is not found may be about that message."""
        self._not_found_count = self._not_found_count + 1 if refusal.status in (404, 410) else 0
        says_so = refusal.status in (400, 404, 410) and speaks_of_session(refusal.said)
        return says_so or self._not_found_count >= MAX_NOT_FOUND

    def _explain_endpoint(self, refusal: HttpRefused) -> None:
        """Say that the address of the first message is wrong, which the server chose and not our configuration. One
        that speaks of a session may be right, and lead to another instance of the server."""
        self._may_be_misled = False
        if refusal.status not in (404, 405, 410, 421, 501):
            return
        if speaks_of_session(refusal.said):
            refusal.restate("the server does not know the session that it has just opened", ONE_INSTANCE)
        else:
            refusal.restate("nothing takes messages at the address that its endpoint event names", PUBLIC_PATH)
        address = self._endpoint_said
        refusal.said = f"{address}: {refusal.said}" if refusal.said else address

    def _messages_in(self, event: SseEvent | Malformed, events: EventParser) -> Iterator[ReceivedMessage]:
        """The messages of an event; none of another event than `message`, which is handled at once."""
        if self._exchanges.lost is not None:
            return
        if isinstance(event, Malformed) or event.event == "message":
            yield from messages_of_event(event, self._batches, None)
        elif event.event == "endpoint" and self._endpoint is None:
            self._set_endpoint(event.data)
        else:
            events.useless_count += 1
            if event.event != "ping":  # many servers send `ping` events to keep the connection alive
                self._on_dropped("unexpected event", f"{event.event[:80]!r:.80}")

    def _set_endpoint(self, data: bytes) -> None:
        """Set the endpoint from its event, or end the link if the endpoint is not within the origin."""
        # Without its query, which mostly holds the session.
        self._endpoint_said = data[:MAX_SAID].decode(errors="replace").partition("?")[0]
        try:
            self._endpoint = self._origin.locate(data.decode())
        except UnicodeDecodeError:
            self._endpoint = None
        if self._endpoint is None:
            elsewhere = LinkLost("its endpoint for messages is refused, because it is not within its own origin")
            elsewhere.said, elsewhere.remedy, elsewhere.lasting = self._endpoint_said, PUBLIC_PATH, True
            self._exchanges.connection_lost(elsewhere)
        else:
            self._origin.has_served = True
            self._endpoint_known.set()
