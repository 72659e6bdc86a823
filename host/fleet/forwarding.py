"""Forwarding: a request whose token names another process of the fleet is handed to that process, and the answer to
the client, as it comes.

    the client's request ── this process ──(mutual TLS, streams)──► the inner listener of its home

The bytes of the message are the client's own. Nothing is decided here but where they go: the home examines the client's
access token, the endpoint and the session as if the client had come to it. What was forwarded once is not forwarded
again, but for a request about a task, which the home of its session forwards to that of the task.

Most requests and answers are short, and a client repeats the head of its requests. For such there is neither an app nor
a wait of the task nor a parser: the listener has the request sent, with a head that was made for the client's before,
and waits for its client; whoever reads the answer writes it to the client as the home wrote it (`_Way`).

A request is sent at most once. As long as nothing of it was sent, a home that cannot be reached is tried again until
its lease is over, and so is one that says that it has not taken the request's end; then the session is adopted: by this
process, or by the one that was faster, to which the request goes then. What has no stored session is unknown from then
on. Once a byte was sent, a connection that breaks means that nobody here knows what was carried out, and the client is
told so.
"""

from __future__ import annotations

import logging
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qs

import trio

from host.downstream.charge import RequestCharge, answer_too_large
from host.downstream.drain import Drain, Stage
from host.downstream.http.open_streams import OpenStreams, StreamKind
from host.downstream.http.request import (
    JSON,
    HttpRequest,
    Rejected,
    not_charged,
    refuse,
    whole_body,
    with_body,
)
from host.downstream.http.security import SESSION, Refusal
from host.downstream.sessions import Sessions
from host.downstream.stored_sessions import StoredSessions
from host.downstream.tasks import IN_HANDSHAKE
from host.errors import Interrupted, InvalidParams, Unavailable
from host.fleet.adoption import Adoption
from host.fleet.channel import MemberChannel
from host.fleet.handover import HandOver
from host.fleet.inner import CLIENT, HOP, MISDIRECTED, OWN_HEADERS
from host.fleet.members import DirectoryAway, FleetMember, Membership
from host.fleet.streams import MemberStream, Streams
from host.fleet.tokens import Homes
from host.jsonrpc.messages import ErrorBody, Failure, Id, Request, receive_at_once, write
from host.jsonrpc.raw import string
from host.memory import OverBudget
from host.protocol.mrtr import RETRIABLE_METHODS
from host.protocol.subscriptions import LISTEN, filter_of
from host.protocol.tasks import TASKS_CANCEL, TASKS_GET, TASKS_LIST, TASKS_UPDATE, task_id_of
from host.url import Url
from host.wire.asgi import ClientGone, Immediate, send_body, start_response, until_disconnect
from host.wire.buffered_tls import BufferedTls
from host.wire.certificate import STREAMS, Certificate
from host.wire.http_connection import MAX_READ, ByteChannel, HttpConnection
from host.wire.http_errors import Broken, Unreachable
from host.wire.http_pool import SOCKET_OPTIONS, Pool, PooledResponse, render_head, with_length
from host.wire.link import LinkLost
from host.wire.response import whole_head
from host.wire.sse import format_event
from host.wire.turns import Turns

_log = logging.getLogger("colonnade.fleet")

HOLD = 8.0
"""Seconds for which a request waits for a home that cannot be reached and is not gone. Clients wait longer for an
answer; after a crash a lease is over in LEASE seconds (members.py)."""
RETRY_INTERVAL = 0.1
"""Seconds between two attempts to reach a home."""
SHORT = 32 * 1024
"""Bytes of a message that is sent without a wait."""
CONNECT_TIMEOUT = 2.0
"""Seconds for a connection to another process, with its handshake of TLS: they are near each other."""

UNREACHED = "the process that has this session cannot be reached; nothing was carried out, try again"
OUTCOME_UNKNOWN = (
    "the process that served this request ended while it was in progress, so its outcome is unknown: look whether it "
    "was carried out before you send it again"
)

MESSAGES, SSE_SESSION = "/message", "session_id"
"""The path of messages of HTTP+SSE, and the member of its query that names the session (host/downstream/http/sse.py).
"""
_DROPPED = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "expect", "te", "trailer", "upgrade"}
)
"""Headers of a request that are for one connection (RFC 9110, 7.6.1), or that the next one has of its own."""
_MISDIRECTED = b"HTTP/1.1 %d " % MISDIRECTED
_OF_CONNECTION = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive", "date", "trailer"})
"""Those of a response."""
_TOKENS = dict.fromkeys(RETRIABLE_METHODS, "requestState") | dict.fromkeys(
    (TASKS_GET, TASKS_UPDATE, TASKS_CANCEL), "taskId"
)
"""The member of the params of a stateless request that may belong to a process, by method. Cursors belong to none."""

_ABOUT_TASK = IN_HANDSHAKE - {TASKS_LIST}

Serve: TypeAlias = Callable[[HttpRequest], Awaitable[None]]
Resolve: TypeAlias = Callable[[set[str]], Awaitable[FleetMember | None]]
"""Finds the process for a request, but for those that have refused it; None if that is this one."""


class Forwarding:
    """The way to the other processes. `run` must run beside it.

    Args:
        certificate: that of this process, with the authority of the fleet.
        on_unknown: called with each forwarded request whose outcome is unknown, and the id of its home.
    """

    def __init__(
        self,
        homes: Homes,
        members: Membership,
        certificate: Certificate,
        path: str,
        on_unknown: Callable[[HttpRequest, str], None],
    ) -> None:
        self._homes = homes
        self._members = members
        self._certificate = certificate
        self._path = path
        self._on_unknown = on_unknown
        self.epoch = object()
        """See `forget`."""
        self._turns = Turns()
        self.pools: dict[str, tuple[Pool, trio.CancelScope]] = {}
        self.connections: dict[str, Streams] = {}
        """The last connection to each process."""
        self._unreached: dict[str, float] = {}
        """The time of the last attempt to reach each process that cannot be reached."""
        self.handover = HandOver(homes.boot, members)
        self.adoption = Adoption(homes, members, self.handover)
        self._nursery: trio.Nursery | None = None
        self._passing: set[_Reading] = set()
        """The standing streams that are passed on."""

    async def run(self) -> None:
        """Keep the connections to the other processes, until cancelled. What waits at one that is gone is given up:
        a machine that vanished closes nothing."""
        try:
            async with trio.open_nursery() as self._nursery:
                while True:
                    try:
                        await self._members.wait_list()
                    except DirectoryAway:
                        continue
                    self._close([boot for boot in self.pools if not self._members.has(boot)])
                    for member in self._members.present:
                        if member.status == Stage.DRAINING and member.boot in self.pools:
                            self.pools[member.boot][0].close_unused()  # none is to be used as it closes them
                    await self.adoption.drop_adopted()
        finally:
            self._close(list(self.pools))

    async def hand_over(self, sessions: Sessions, stored: StoredSessions, drain: Drain) -> None:
        """Hand over these sessions at a drain, if there is a process that goes on; until cancelled."""
        await drain.noticed.wait()
        if self.handover.others():
            for reading in self._passing:  # its client comes back by another process
                reading.end()
            await self.handover.run(sessions, stored, drain)

    def _close(self, boots: Iterable[str]) -> None:
        for boot in boots:
            pool, closing = self.pools.pop(boot)
            closing.cancel()
            pool.abort()
            self._unreached.pop(boot, None)
            if (streams := self.connections.pop(boot, None)) is not None:
                streams.finish()

    def new_id(self) -> str:
        """An id of 192 random bits for a session of this process."""
        return self._homes.name(secrets.token_urlsafe(24))

    # Requests that are forwarded

    def doors(self, doors: Mapping[str, Serve], streams: OpenStreams) -> dict[str, Serve]:
        """The functions that serve these paths here, for the sessions of all processes: in place of those of
        `listen.path` and of the messages of HTTP+SSE.

        Args:
            streams: those of this process, which have a place for each stream that is passed on.
        """
        found: dict[str, Serve] = {self._path: partial(self._serve_session, doors[self._path], streams)}
        if MESSAGES in doors:
            found[MESSAGES] = partial(self._serve_message, doors[MESSAGES])
        return found

    async def _serve_session(self, serve: Serve, streams: OpenStreams, http_request: HttpRequest) -> None:
        id, method = http_request.head.session, http_request.method
        if id is None or method not in ("POST", "GET", "DELETE"):
            await serve(http_request)
            return
        if self.adoption.has(id):
            is_here = True
            if self.handover.is_begun:
                http_request, is_here = await self.handover.wait_turn(id, http_request)
            if is_here:
                await serve(http_request)
                return
            if http_request.is_forwarded:
                await http_request.respond(MISDIRECTED, {HOP: self._homes.boot})
                return
        if (found := self._homes.read(id)) is None:
            await serve(http_request)
            return
        resolve = partial(self.adoption.home_of, id, found.home, http_request.is_forwarded)
        if http_request.is_forwarded:
            if method == "POST":
                body = await whole_body(http_request)
                http_request, request = with_body(http_request, body), receive_at_once(body)
                if request is not None and self.is_visit(http_request, request.message):
                    await serve(http_request)
                    return
            if await resolve(set()) is None:
                await serve(http_request)
            else:
                await http_request.respond(MISDIRECTED, {HOP: self._homes.boot})
        elif method == "GET":
            await self._forward_stream(http_request, resolve, serve, streams, StreamKind.STREAMABLE)
        elif not self._begin(http_request, id, found.home, resolve, serve):
            await self._forward(http_request, resolve, self._path, serve)

    def _begin(self, http_request: HttpRequest, id: str, home: str, resolve: Resolve, serve: Serve) -> bool:
        """Begin a request of a session, and have those that repeat its head begun without the app. False if it is to be
        forwarded in its task."""
        member, at_once = self.adoption.known_home(id, home), http_request.at_once
        # The path of one server leads elsewhere, or nowhere, once the servers change.
        if (
            member is None
            or at_once is None
            or http_request.method != "POST"
            or http_request.endpoint.server is not None
        ):
            return False
        way = _Way(self, http_request, id, home, member, resolve, serve)
        return at_once.repeat(way.begin)

    def forget(self) -> None:
        """Have the app look at the next request with each head: it may be answered in another way from now on."""
        self.epoch = object()

    async def _serve_message(self, serve: Serve, http_request: HttpRequest) -> None:
        named = parse_qs(http_request.query).get(SSE_SESSION, [])
        home = self._elsewhere(named[0]) if len(named) == 1 and not http_request.is_forwarded else None
        if home is None or http_request.method != "POST":
            await serve(http_request)
        else:
            await self._forward(http_request, partial(self.adoption.find, home), MESSAGES, serve)

    async def _forward_stream(
        self,
        http_request: HttpRequest,
        resolve: Resolve,
        serve: Serve,
        streams: OpenStreams,
        kind: StreamKind,
        message: bytes | None = None,
        id: Id | None = None,
    ) -> None:
        """`_forward` for a request whose response is a stream that stays open."""
        reading = _Reading()
        place = streams.slot(kind, http_request.endpoint, http_request.identity, reading.end, id=id)

        def serve_here(http_request: HttpRequest) -> Awaitable[None]:
            streams.remove(place)  # the stream takes one of its own
            return serve(http_request)

        with place:
            self._passing.add(reading)
            try:
                await self._forward(http_request, resolve, self._path, serve_here, message, id, reading)
            finally:
                self._passing.remove(reading)

    def of_request(
        self, http_request: HttpRequest, request: Request, serve: Serve, streams: OpenStreams
    ) -> Awaitable[None] | None:
        """The work of a stateless request that belongs to another process; None if it can be served here.

        Args:
            serve: serves it here, if the other process is gone.
            streams: as of `doors`.
        """
        if http_request.is_forwarded:
            return None
        if request.method == LISTEN:
            return self._of_listener(http_request, request, serve, streams)
        member = _TOKENS.get(request.method)
        params = request.params_members if member is not None else None
        if member is None or params is None or member not in params:
            return self.of_newcomer(http_request, request, serve)
        try:
            home = self._elsewhere(string(params[member]))
        except ValueError:
            return None
        if home is None:
            return None
        resolve = partial(self.adoption.find, home)
        return self._forward(http_request, resolve, self._path, serve, write(request), request.id)

    def _of_listener(
        self, http_request: HttpRequest, request: Request, serve: Serve, streams: OpenStreams
    ) -> Awaitable[None] | None:
        """The same for a `subscriptions/listen`: it belongs to the process that has the most of its tasks, and is
        granted those, and all that any process grants."""
        try:
            tasks = filter_of(request.params_members or {}).tasks
        except InvalidParams:  # it is told where it is served
            return None
        homes = Counter(found.home for each in tasks if (found := self._homes.read(each)) is not None).most_common(1)
        if not homes or homes[0][0] == self._homes.boot:
            return None
        resolve, message = partial(self.adoption.find, homes[0][0]), write(request)
        return self._forward_stream(http_request, resolve, serve, streams, StreamKind.LISTEN, message, request.id)

    def of_task(self, http_request: HttpRequest, request: Request, serve: Serve) -> Awaitable[None] | None:
        """The work of a request of a session of this process about a task of another one; None if it can be served
        here. There it is a visit (`is_visit`), which goes no further."""
        home = self._home_of_task(request)
        if home is None or home == self._homes.boot or not self._members.has(home):
            return None
        return self._forward(
            http_request, partial(self.adoption.find, home), self._path, serve, write(request), request.id
        )

    def is_visit(self, http_request: HttpRequest, message: object) -> bool:
        """Whether a message of a session of another process is about a task of this one."""
        return (
            http_request.is_forwarded
            and isinstance(message, Request)
            and self._home_of_task(message) == self._homes.boot
            and not self.adoption.has(http_request.head.session or "")
        )

    def _home_of_task(self, request: Request) -> str | None:
        """The process that has the task that a request of the handshake era is about."""
        params = request.params_members if request.method in _ABOUT_TASK else None
        try:
            found = None if params is None else self._homes.read(task_id_of(params))
        except InvalidParams:
            return None
        return None if found is None else found.home

    def of_newcomer(self, http_request: HttpRequest, request: Request, serve: Serve) -> Awaitable[None] | None:
        """The work of a request that belongs to no process, but begins something, as `of_request`: while this process
        drains, another one serves it. A stream that would end soon may as well begin here."""
        if not self.handover.is_begun or http_request.is_forwarded or request.method == LISTEN:
            return None
        choose = self.handover.choose
        return self._forward(http_request, choose, self._path, serve, write(request), request.id)

    def _elsewhere(self, token: str) -> str | None:
        """The other process that a token names; None if it names none, or this one."""
        found = self._homes.read(token)
        return None if found is None or found.home == self._homes.boot else found.home

    # Forwarding

    async def _forward(
        self,
        http_request: HttpRequest,
        resolve: Resolve,
        base: str,
        serve: Serve,
        message: bytes | None = None,
        id: Id | None = None,
        reading: _Reading | None = None,
        sent: _Sent | None = None,
    ) -> None:
        """Forward a request to where `resolve` says, or serve it here.

        Args:
            base: the path of its transport.
            message: the body, if it was read already, and the id of its request.
            reading: of a stream that can be ended.
            sent: it was sent already.

        Raises:
            Rejected: nothing was sent, and the home is not known to be gone; or its outcome is unknown.
            ClientGone: the client left before its message was read.
        """
        deadline = trio.current_time() + HOLD
        body, refused = message if sent is None else sent.body, set[str]()
        while (member := await resolve(refused) if sent is None else sent.way.member) is not None:
            if body is None and http_request.method == "POST":
                body = await whole_body(http_request)
            forwarded = _forwarded(http_request, member, base)
            to_home = http_request, forwarded, member, body, id, reading or _Reading(), deadline
            outcome = await self._attempt(*to_home, None if sent is None else sent.connection)
            sent = None
            if outcome is _Outcome.DONE:
                return
            if outcome is _Outcome.UNKNOWN:
                await self._tell_unknown(http_request, member.boot, body, id)
                return
            if outcome is _Outcome.REFUSED and member.boot not in refused:
                refused.add(member.boot)
                continue
            if trio.current_time() > deadline:
                raise Rejected(Refusal(503, UNREACHED, {"retry-after": "1"}), Unavailable.code, id)
            if self._members.has(member.boot):
                await self._members.wait_gone(member.boot, RETRY_INTERVAL)
        if message is None and body is not None:
            http_request = with_body(http_request, body)
        await serve(http_request)

    async def _wait_turn(self, boot: str, deadline: float) -> bool:
        """Wait until a request may try to reach a process. Of all that wait for one that cannot be reached, one tries
        each RETRY_INTERVAL: hundreds may wait, and this machine has to take over the sessions of the process next.
        False if the process is gone before, or at the deadline."""
        while (before := self._unreached.get(boot)) is not None and trio.current_time() < before + RETRY_INTERVAL:
            if not self._members.has(boot) or trio.current_time() > deadline:
                return False
            await self._members.wait_gone(boot, RETRY_INTERVAL)
        if before is not None:
            self._unreached[boot] = trio.current_time()
        return True

    async def _attempt(
        self,
        http_request: HttpRequest,
        forwarded: _Forwarded,
        member: FleetMember,
        body: bytes | None,
        id: Id | None,
        reading: _Reading,
        deadline: float,
        connection: HttpConnection | None,
    ) -> _Outcome:
        """Hand a request over, and pass the answer on. When the client leaves, the connection to the home is closed,
        and the home does what it does when its own client leaves.

        Args:
            deadline: of the wait for a home that cannot be reached.
            connection: over which it was sent already; see `_forward`.
        """
        outcome, charge, pool = _Outcome.DONE, http_request.charge, self.pool_of(member)
        with charge.droppable() as dropping:
            async with until_disconnect(http_request.receive):
                outcome = _Outcome.UNKNOWN  # from here on, until the client has a part of the answer
                if connection is None and not await self._wait_turn(member.boot, deadline):
                    return _Outcome.NOTHING_DONE
                try:
                    if connection is None:
                        response = await pool.request(http_request.method, forwarded.url, forwarded.headers, body)
                    else:
                        response = await pool.read(connection)
                except LinkLost as problem:
                    if isinstance(problem, Unreachable):
                        self._unreached[member.boot] = trio.current_time()
                        return _Outcome.NOTHING_DONE
                    # To open a stream once more carries out nothing.
                    is_unsent = http_request.method == "GET" or (isinstance(problem, Broken) and problem.unwritten)
                    return _Outcome.NOTHING_DONE if is_unsent else _Outcome.UNKNOWN
                self._unreached.pop(member.boot, None)
                try:
                    if response.status == MISDIRECTED and response.header(HOP) is not None:
                        return _Outcome.REFUSED
                    outcome = _Outcome.DONE
                    await self._pass_on(http_request, response, member.boot, body, id, reading)
                finally:
                    response.close()
        if dropping.cancelled_caught and outcome is _Outcome.UNKNOWN:  # its memory is needed elsewhere
            return outcome
        return _Outcome.DONE

    async def _pass_on(
        self,
        http_request: HttpRequest,
        response: PooledResponse,
        home: str,
        body: bytes | None,
        id: Id | None,
        reading: _Reading,
    ) -> None:
        """Pass an answer on as it comes. One that breaks off breaks off here too, but for the event stream of a
        request, which can end with a sentence."""
        headers = {name: value for name, value in response.headers.items() if name not in _OF_CONNECTION}
        data = response.take_whole()
        try:
            http_request.charge.set_answer_size(MAX_READ)
        except OverBudget:
            data = write(answer_too_large(_id_of(body, id), MAX_READ))
            await http_request.respond(200, JSON, data)
            return
        if data is not None:
            if response.status == 204:
                await http_request.respond(response.status, headers)
            elif (rest := http_request.begin_response(response.status, headers, data)) is not None:
                await rest
            return
        send, moves = http_request.send, http_request.charge.touch
        await start_response(send, response.status, {**http_request.cors_headers, **headers})
        tail = b"\n\n"
        try:
            while piece := await reading.read(response):
                await send_body(send, piece, more=True, moves=moves)
                tail = piece[-2:] if len(piece) > 1 else tail[-1:] + piece
        except Broken:
            if http_request.method != "GET":
                self._on_unknown(http_request, home)
            if (event := self._last_event(response, tail, body, id)) is None:
                return  # the listener cuts off what has no end
            await send_body(send, event, more=True)
        await send_body(send, b"", more=False)

    @staticmethod
    def _last_event(response: PooledResponse, tail: bytes, body: bytes | None, id: Id | None) -> bytes | None:
        """The event that ends a stream whose home broke off: the answer of its request. None if it can have none."""
        if tail != b"\n\n" or not (response.header("content-type") or "").startswith("text/event-stream"):
            return None
        found = _id_of(body, id)
        return None if found is None else format_event(write(_unknown_answer(found)))

    async def _tell_unknown(self, http_request: HttpRequest, home: str, body: bytes | None, id: Id | None) -> None:
        """Tell a client that nobody knows what became of its request, which may have been carried out."""
        charge = http_request.charge
        if http_request.method == "GET":
            raise not_charged(charge)
        self._on_unknown(http_request, home)
        found = _id_of(body, id)
        if found is None:
            raise Rejected(Refusal(502, OUTCOME_UNKNOWN), Interrupted.code)
        named = {} if http_request.head.session is None else {SESSION: http_request.head.session}
        answer = charge.cancelled(found) if charge.dropped else _unknown_answer(found)
        await http_request.respond(200, {**JSON, **named}, write(answer))

    def go_on(self, http_request: HttpRequest, resolve: Resolve, serve: Serve, sent: _Sent) -> Awaitable[None]:
        """`_forward` for a request that was sent already."""
        return self._forward(http_request, resolve, self._path, serve, sent=sent)

    def head_to(self, http_request: HttpRequest, member: FleetMember) -> _Forwarded:
        return _forwarded(http_request, member, self._path)

    # Connections

    def pool_of(self, member: FleetMember) -> Pool:
        kept = self.pools.get(member.boot)
        if kept is None:
            assert self._nursery is not None, "`run` runs"
            connect = partial(self._connect, member.boot)
            kept = self.pools[member.boot] = Pool(self._turns, connect), trio.CancelScope()
            self._nursery.start_soon(_within, kept[1], kept[0].close_idle)
        return kept[0]

    async def _connect(self, boot: str, url: Url) -> ByteChannel:
        """A connection to another process of the fleet, after each has shown the other that it is one; raises what
        `Pool` takes for a connection that could not be made."""
        if (streams := self.connections.get(boot)) is not None and streams.is_usable:
            self._unreached.pop(boot, None)
            return streams.open()
        context, accepts = self._certificate.outgoing, self._certificate.accepts
        assert context is not None, "the certificate of a fleet has its authority"
        assert accepts is not None, "as above"
        with trio.fail_after(CONNECT_TIMEOUT):
            stream = await trio.open_tcp_stream(url.host, url.connect_port)
            try:
                for option in SOCKET_OPTIONS:
                    stream.socket.setsockopt(*option)
                tls = BufferedTls(context, accepts, member=boot)
                channel = MemberChannel(socket.socket(fileno=stream.socket.detach()), tls)
            except BaseException:
                stream.socket.close()
                raise
            try:
                spoken = await channel.shake_hands()
                self._unreached.pop(boot, None)  # not only at an answer: a call may take long
                if spoken != STREAMS:  # an earlier version
                    return channel
            except BaseException:
                channel.close()
                raise
        if (made := self.connections.get(boot)) is not None and made.is_usable:  # for another request, meanwhile
            channel.close()
            return made.open()
        if boot not in self.pools:  # it is gone by now
            channel.close()
            raise trio.ClosedResourceError
        self.connections[boot] = streams = Streams(channel.send, channel.receive)
        assert self._nursery is not None, "`run` runs"
        self._nursery.start_soon(_serve_streams, streams, channel)
        return streams.open()


class _Reading:
    """The reading of a response, which can be ended before the response has: its client sees the end of a stream."""

    def __init__(self) -> None:
        self._is_over = False
        self._scope: trio.CancelScope | None = None

    def end(self) -> None:
        self._is_over = True
        if self._scope is not None:
            self._scope.cancel("its place is needed, or this process ends")

    async def read(self, response: PooledResponse) -> bytes:
        if self._is_over:
            return b""
        with trio.CancelScope() as self._scope:
            return await response.read()
        return b""


class _Way:
    """The way of the requests with one head of a client's connection to the home of their session, while nothing has
    changed that the app has looked at. Their client owns the slot of the connection already."""

    def __init__(
        self,
        forwarding: Forwarding,
        http_request: HttpRequest,
        id: str,
        home: str,
        member: FleetMember,
        resolve: Resolve,
        serve: Serve,
    ) -> None:
        self.forwarding = forwarding
        self.member = member
        self._id, self._home = id, home
        self._resolve, self._serve = resolve, serve
        self._epoch = forwarding.epoch
        self._charge = http_request.charge
        self._head = forwarding.head_to(http_request, member).head
        # Not the request itself: it refers to its connection, which keeps this.
        self._known = http_request.endpoint, http_request.suffix, http_request.query, http_request.head
        self._client = http_request.identity, http_request.address

    def begin(self, at_once: Immediate, body: bytes) -> _Sent | None:
        """Implements `asgi.Begin`."""
        forwarding = self.forwarding
        if self._epoch is not forwarding.epoch or len(body) > SHORT:
            return None
        member = forwarding.adoption.known_home(self._id, self._home)
        if member is not self.member:  # each list has new ones
            if member is None or (member.boot, member.address) != (self.member.boot, self.member.address):
                return None
            self.member = member
        if (kept := forwarding.pools.get(self.member.boot)) is None:
            return None
        pool = kept[0]
        request, _ = with_length(self._head, body)
        if (connection := pool.take()) is None:
            return None
        stream, charge = connection.channel, self._charge.another()
        try:
            charge.begin_processing(len(body))
            if isinstance(stream, MemberStream) and stream.send_whole(request):
                return _Sent(self, at_once, body, charge, pool, connection, stream)
        except OverBudget:
            pass
        charge.release()
        pool.release(connection)
        return None

    async def go_on(self, sent: _Sent, at_once: Immediate, charge: RequestCharge) -> None:
        """Forward in the task of the client's connection what was sent already."""
        identity, address = self._client
        events = at_once.receive, at_once.send
        http_request = HttpRequest("POST", *self._known, identity, *events, charge, at_once, address)
        try:
            await self.forwarding.go_on(http_request, self._resolve, self._serve, sent)
        except Rejected as rejected:
            await refuse(http_request.send, http_request.cors_headers, rejected)
        except ClientGone:
            return


class _Sent:
    """A request that was sent to its home. Implements `asgi.Begun`: an answer that comes whole is passed on by whoever
    reads it, and for all else the task of the client's connection goes on."""

    __slots__ = ("_at_once", "_charge", "_pool", "_rest", "_stream", "body", "connection", "way")

    def __init__(
        self,
        way: _Way,
        at_once: Immediate,
        body: bytes,
        charge: RequestCharge,
        pool: Pool,
        connection: HttpConnection,
        stream: MemberStream,
    ) -> None:
        self.way, self.connection = way, connection
        self._at_once, self.body, self._charge = at_once, body, charge
        self._pool, self._stream = pool, stream
        self._rest: Awaitable[None] | None = None
        stream.on_data = self._pass_on
        charge.cancel_on_drop(self)

    def _pass_on(self, received: bytes) -> bool:
        """Pass an answer on. False if it is left to the task."""
        stream, at_once, charge = self._stream, self._at_once, self._charge
        stream.on_data = None
        size = whole_head(received)
        if size is None or received.startswith(_MISDIRECTED) or not self._may_hold(len(received)):
            at_once.end_begun(in_task=True)
            return False
        self._pool.release(self.connection)
        self._rest = at_once.pass_on(received, size)
        if self._rest is None:
            charge.release()
        at_once.end_begun(in_task=self._rest is not None)
        return True

    def _may_hold(self, size: int) -> bool:
        """Charge an answer of this size. False if there is no memory for it."""
        try:
            self._charge.set_answer_size(size)
        except OverBudget:
            return False
        return True

    def cancel(self, reason: str | None = None) -> None:
        """Called when the memory is needed elsewhere; the task tells the client, even if an answer comes first."""
        self._stream.on_data = None
        self._at_once.end_begun(in_task=True)

    async def go_on(self) -> None:
        self._stream.on_data = None
        with self._charge:
            if self._rest is None:
                await self.way.go_on(self, self._at_once, self._charge)
            else:
                with self._charge.droppable():
                    await self._rest

    def give_up(self) -> None:
        self._stream.on_data = None
        self._pool.close(self.connection)
        self._charge.release()


class _Outcome(Enum):
    """The end of an attempt to forward a request."""

    NOTHING_DONE = auto()
    REFUSED = auto()
    """Nothing was done, since another process is at that address, or has the session by now."""
    UNKNOWN = auto()
    """It was sent, at least in part, and no answer has come."""
    DONE = auto()
    """The client has its answer, or has left."""


async def _serve_streams(streams: Streams, channel: MemberChannel) -> None:
    try:
        await streams.run()
    except Exception:  # noqa: BLE001 - one connection's failure is not the process's
        _log.exception("a connection to another process failed")
    finally:
        channel.close()


async def _within(scope: trio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()


class _Forwarded(NamedTuple):
    """The head that is sent for all requests with one head, but for its length: kept with that head."""

    at: tuple[str, str, str]
    """The id and the address of the home, and the address of the client."""
    url: Url
    headers: list[tuple[bytes, bytes]]
    head: bytes


def _forwarded(http_request: HttpRequest, member: FleetMember, base: str) -> _Forwarded:
    """The head of a request as its home gets it: what a client says of members is not passed on."""
    kept, at = http_request.head.forwarded, (member.boot, member.address, http_request.address)
    if isinstance(kept, _Forwarded) and kept.at == at:
        return kept
    host, _, port = member.address.rpartition(":")
    path = f"{base}/{http_request.suffix}" if http_request.suffix else base
    url = Url("https", "", host.strip("[]"), int(port), path, http_request.query or None)
    headers = [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in http_request.headers
        if name not in _DROPPED and not name.startswith(OWN_HEADERS)
    ]
    headers += (HOP.encode(), member.boot.encode()), (CLIENT.encode(), http_request.address.encode())
    made = _Forwarded(at, url, headers, render_head(http_request.method, url, headers))
    http_request.head.forwarded = made
    return made


def _id_of(body: bytes | None, id: Id | None) -> Id | None:
    """The id of a request; None if the body is another message, or takes long to read."""
    if id is not None or body is None:
        return id
    found = receive_at_once(body)
    return found.message.id if found is not None and isinstance(found.message, Request) else None


def _unknown_answer(id: Id) -> Failure:
    return Failure(ErrorBody(Interrupted.code, OUTCOME_UNKNOWN), id)
