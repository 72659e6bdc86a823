"""A host whose servers and clients are played by the test: no process, no socket, and a clock that may jump.

async with open_world(ScriptedServer("gh", tools=["slow"])) as world:
    client = await world.client()
    call = world.start(client.call("gh__slow"))
    request = await world.servers["gh"].hears("tools/call")
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
import trio
from msgspec import Raw

from config import AskSpec, CallerSpec, Config, Consent, ServerSpec, StdioServer, ViewSpec
from config.references import Secret
from host import slices
from host.catalog import Catalog
from host.client_process import ClientProcess
from host.downstream.list_changes import Announcements
from host.downstream.sessions import Session
from host.exchange import Answer, Caller, Exchange, MrtrRound, NoClient
from host.journal import EntryOmitted, Event, Journal, Observer
from host.jsonrpc.glance import LongMessage
from host.jsonrpc.messages import ErrorBody, Failure, Id, Malformed, Message, Notification, Request, Success, write
from host.jsonrpc.raw import encode, encode_object, members
from host.memory import Budget
from host.peer.outstanding import PeerError
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.policy.confirmations import PendingConfirmation
from host.protocol.abilities import abilities_of
from host.protocol.versions import LATEST, LEGACY, Era
from host.router.router import Router
from host.seal import KEY_BYTES, Seal
from host.slices import _Turns
from host.source import Endpoint
from host.upstream.credentials import Credentials
from host.upstream.instances import Instances
from host.upstream.open_logins import OpenLogins
from host.upstream.remembered import RememberedServers
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams, open_upstreams
from host.wire.link import Link, LinkLost, ReceivedMessage
from tests.kit.awaited import awaited
from tests.kit.gates import SOURCE, approve_all, auto_answering, open_gate
from tests.kit.memory import MemoryLink, memory_links
from tests.kit.worker import run_workers_inline

Reply = Callable[[dict[str, Any]], Awaitable[object]]
"""Takes the params of a request and gives the result; a `Raw` goes out as it is."""


T = TypeVar("T")


class CountedTurns(_Turns):
    """Has `host.slices.charged` count pauses, so that the cost of a list does not depend on the machine.

    Attributes:
        step: processor seconds that are said to pass until a pause.
        charged: processor seconds that were charged.
    """

    def __init__(self) -> None:
        self._end = -inf
        self.step = 20e-6
        self.charged = 0.0
        self._passed = 0.0
        self._charging_since: float | None = None
        super().__init__()

    @property
    def end(self) -> float:
        self._passed += self.step
        return self._end

    @end.setter
    def end(self, end: float) -> None:
        self._end = end

    def thread_time(self) -> float:
        """In turns when work goes on, and when it waits or ends."""
        if self._charging_since is None:
            self._charging_since = self._passed
        else:
            self.charged += self._passed - self._charging_since
            self._charging_since = None
        return self._passed


@contextmanager
def counted_turns() -> Iterator[CountedTurns]:
    turns = CountedTurns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "_turns", turns)
        patch.setattr(slices, "thread_time", turns.thread_time)
        yield turns


def says_revision(params: Mapping[str, Any]) -> bool:
    """Whether the request came over a stateless connection."""
    return "io.modelcontextprotocol/protocolVersion" in params.get("_meta", {})


class ScriptedServer:
    """A server that answers the handshake and its lists, and does with everything else what the test says.

    Requests that no `answers` function takes wait in `hears` until the test calls `says`.
    """

    def __init__(
        self,
        id: str,
        *,
        tools: Sequence[str | dict[str, Any]] = (),
        resources: Sequence[str | dict[str, Any]] = (),
        templates: Sequence[str] = (),
        prompts: Sequence[str] = (),
        answers: Mapping[str, Reply] | None = None,
        revision: str = "2025-11-25",
        session_revision: str | None = None,
        instructions: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        consent: Consent | None = None,
        **spec: Any,
    ) -> None:
        spec.setdefault("cwd", Path("/"))
        self.spec = StdioServer(id=id, command=(Secret("scripted"),), env={}, consent=consent or Consent(), **spec)
        self.launches: list[StdioServer] = []
        """The configurations with which connections were opened."""
        self.id = id
        self.lists: dict[str, list[dict[str, Any]]] = {
            "tools": [each if isinstance(each, dict) else tool(each) for each in tools],
            "resources": [each if isinstance(each, dict) else {"uri": each, "name": each} for each in resources],
            "resourceTemplates": [{"uriTemplate": each, "name": each} for each in templates],
            "prompts": [{"name": each} for each in prompts],
        }
        self.answers = dict(answers or {})
        self.revision = revision
        self.stateless = revision not in LEGACY
        self.session_revision = session_revision
        """The handshake revision of a stateless server that speaks both."""
        self.session_lists = self.lists
        """The lists of such a server over a session."""
        self._sessions: list[MemoryLink | None] = []
        self.session: MemoryLink | None = None
        """The latest connection that began with a handshake at such a server."""
        self.asked_in: list[tuple[str, str]] = []
        """Era and method of each request but discovery."""
        self.listens: list[dict[str, Any]] = []
        """The params of every request to listen, with its `id` and whether it has `ended`."""
        self.acknowledgement_for: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda wanted: wanted
        """The notifications with which a request to listen is acknowledged; with None it is not acknowledged."""
        self._listen_ends: dict[Id, trio.Event] = {}
        self._listen_links: dict[Id, MemoryLink | None] = {}
        self.instructions = instructions
        self.capabilities = capabilities
        self.link: MemoryLink | None = None
        """The latest connection's."""
        self._answering: MemoryLink | None = None
        """The connection of the request whose answer begins now."""
        self.sent_headers: list[tuple[str, dict[str, str]]] = []
        """Method and headers of every request that the latest connection brought with such."""
        self.connections = 0
        self.open_links: list[MemoryLink] = []
        """Connections that are open now."""
        self.initialize_params: list[dict[str, Any]] = []
        """The params of every initialize."""
        self._last_question = 0
        self._discovered: Id | None = None
        self.ttl_ms, self.scope = 0, "private"
        self._asking: dict[Id, trio.Event] = {}
        self.asked: list[str] = []
        self.answered: list[Success | Failure] = []
        self._heard, self._hearing = trio.open_memory_channel[Request | Notification](1000)
        self._replies: dict[Id, trio.Event] = {}
        self._said: dict[Id, Raw | PeerError] = {}

    @property
    def started_in(self) -> list[str]:
        """The folder of every connection."""
        return [str(spec.cwd) for spec in self.launches]

    @property
    def live(self) -> int:
        """How many connections are open now."""
        return len(self.open_links)

    # What the test does

    async def hears(self, method: str) -> dict[str, Any]:
        """The params of the next message the host sent, which must be of this method; `id` is put beside them."""
        with trio.fail_after(5):
            message = await self._hearing.receive()
        assert message.method == method, f"{self.id} heard {message.method}, not {method}"
        params: dict[str, Any] = json.loads(bytes(message.params)) if message.params is not None else {}
        return {**params, "id": message.id} if isinstance(message, Request) else params

    async def hears_undecoded(self, method: str) -> Request | Notification:
        """The same as `hears`, undecoded."""
        with trio.fail_after(5):
            message = await self._hearing.receive()
        assert message.method == method, f"{self.id} heard {message.method}, not {method}"
        return message

    def hears_nothing_more(self) -> None:
        try:
            more = self._hearing.receive_nowait()
        except trio.WouldBlock:
            return
        raise AssertionError(f"{self.id} heard {more}")

    def says(self, id: Id, result: object) -> None:
        """Answer a request that `hears` gave."""
        self._said[id] = Raw(json.dumps(result).encode())
        self._replies[id].set()

    def refuses(self, id: Id, code: int, message: str, data: object = None) -> None:
        raw = None if data is None else Raw(json.dumps(data).encode())
        self._said[id] = PeerError(ErrorBody(code, message, raw))
        self._replies[id].set()

    async def notifies(self, method: str, params: object = None, *, link: MemoryLink | None = None) -> None:
        self.sends(Notification(method, None if params is None else Raw(json.dumps(params).encode())), link=link)
        await trio.lowlevel.checkpoint()

    def sends(self, message: Message, *, link: MemoryLink | None = None, about: Id | None = None) -> None:
        """Say anything at all; over the latest connection, and as belonging to nothing, unless told otherwise."""
        link = link or self.link
        assert link is not None
        link.write_bytes(write(message), about)

    async def asks(
        self,
        method: str,
        params: object = None,
        *,
        link: MemoryLink | None = None,
        about: Id | None = None,
        id: Id | None = None,
    ) -> Any:
        """Ask the host something: its result; raises Refusal for an error."""
        self._last_question += 1
        id = f"q{self._last_question}" if id is None else id
        self._asking[id] = trio.Event()
        raw = None if params is None else Raw(json.dumps(params).encode())
        self.sends(Request(id, method, raw), link=link, about=about)
        await self._asking[id].wait()
        return _outcome(next(answer for answer in reversed(self.answered) if answer.id == id))

    def dies(self) -> None:
        assert self.link is not None
        self.link.close()

    # What the host sees

    def open_link_over(self, *, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        """A link over the transport that the host wants. Here there is only one."""
        return self.open_link()

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        self.connections += 1
        host_end, link = memory_links()
        self.link = link
        self.open_links.append(link)
        self.sent_headers = host_end.sent_headers
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, self.link, nursery)
            try:
                yield host_end
            finally:
                self.open_links.remove(link)
                host_end.close()
                nursery.cancel_scope.cancel()

    async def _listen(self, link: MemoryLink, nursery: trio.Nursery) -> None:
        def deliver(received: ReceivedMessage) -> None:
            message = received.message.read() if isinstance(received.message, LongMessage) else received.message
            if isinstance(message, Request):
                nursery.start_soon(self._reply, link, message)
            elif isinstance(message, Notification):
                if message.method == "notifications/cancelled" and self._ends_listening(link, message):
                    return
                if message.method != "notifications/initialized":
                    self._heard.send_nowait(message)
            elif isinstance(message, Malformed):
                raise AssertionError(f"the host sent {message}")
            else:
                self.answered.append(message)
                if message.id in self._asking:
                    self._asking[message.id].set()

        with suppress(LinkLost):
            await link.run(deliver)

    async def _reply(self, link: MemoryLink, request: Request) -> None:
        self._answering = link
        try:
            answer: Success | Failure = Success(request.id, await self._answer(request))
        except PeerError as refusal:
            answer = Failure(refusal.error, request.id)
        with suppress(LinkLost):
            link.write_bytes(write(answer))

    def _ends_listening(self, link: MemoryLink, notice: Notification) -> bool:
        named = json.loads(bytes(notice.params or b"{}")).get("requestId")
        # A session with the same server has ids of its own, which may be equal.
        is_ours = self._listen_links.get(named) is link
        ended = next((each for each in reversed(self.listens) if is_ours and each["id"] == named), None)
        if ended is not None:
            ended["ended"] = True
        return ended is not None or named == self._discovered

    @property
    def _answers_statelessly(self) -> bool:
        """Whether the request whose answer begins now came without a session."""
        return self.stateless and self._answering not in self._sessions

    async def _answer(self, request: Request) -> Raw:
        params = json.loads(bytes(request.params)) if request.params is not None else {}
        if request.method == "server/discover" and request.method not in self.answers:
            self._discovered = request.id
            return self._discovery()
        if request.method == "initialize" and self.session_revision is not None:
            self.session = self._answering
            self._sessions.append(self.session)
        self.asked.append(request.method)
        self.asked_in.append(("stateless" if self._answers_statelessly else "handshake", request.method))
        if request.method == "subscriptions/listen" and request.method not in self.answers:
            return await self._listened(request.id, params)
        if request.method in self.answers:
            answer = await self.answers[request.method](params)
            return answer if isinstance(answer, Raw) else Raw(json.dumps(answer).encode())
        builtin = self._builtin(request.method, params)
        if builtin is not None:
            if self._answers_statelessly:
                builtin = {"resultType": "complete", "ttlMs": self.ttl_ms, "cacheScope": self.scope, **builtin}
            return Raw(json.dumps(builtin).encode())
        answered = self._replies[request.id] = trio.Event()
        self._heard.send_nowait(request)
        await answered.wait()
        said = self._said.pop(request.id)
        if isinstance(said, PeerError):
            raise said
        return said

    def _discovery(self) -> Raw:
        if not self.stateless:
            raise PeerError(ErrorBody(-32601, "Method not found"))
        found = {
            "resultType": "complete",
            "supportedVersions": [self.revision],
            "capabilities": self.capabilities if self.capabilities is not None else self._capabilities(),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": self.id, "version": "1"}},
        }
        return Raw(json.dumps({**found, "instructions": self.instructions} if self.instructions else found).encode())

    async def _listened(self, id: Id, params: dict[str, Any]) -> Raw:
        """The request stands open until the test ends it, or the connection."""
        listens: dict[str, Any] = {**params, "id": id, "ended": False}
        self.listens.append(listens)
        link = self._listen_links[id] = self._answering
        ends = self._listen_ends[id] = trio.Event()
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        granted = self.acknowledgement_for(params["notifications"])
        try:
            if granted is not None:
                said = {"_meta": meta, "notifications": granted}
                await self.notifies("notifications/subscriptions/acknowledged", said, link=link)
            await ends.wait()
        finally:
            listens["ended"] = True
        return Raw(json.dumps({"resultType": "complete", "_meta": meta}).encode())

    def ends_listen(self, id: Id) -> None:
        """End a request that listens, in good order."""
        self._listen_ends[id].set()

    async def tells(self, method: str, params: dict[str, Any] | None = None) -> None:
        """A notification by every request that listens."""
        for each in self.listens:
            if not each["ended"]:
                meta = {"io.modelcontextprotocol/subscriptionId": each["id"]}
                await self.notifies(method, {**(params or {}), "_meta": meta}, link=self._listen_links[each["id"]])

    def _builtin(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize" and self._answers_statelessly:
            data = encode({"supported": [self.revision], "requested": params.get("protocolVersion")})
            raise PeerError(ErrorBody(-32022, "Unsupported protocol version", data))
        if method == "initialize":
            self.initialize_params.append(params)
            answer = {
                "protocolVersion": self.session_revision or self.revision,
                "capabilities": self.capabilities if self.capabilities is not None else self._capabilities(),
                "serverInfo": {"name": self.id, "version": "1"},
            }
            return {**answer, "instructions": self.instructions} if self.instructions else answer
        if method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            return {}
        for member, path in (
            ("tools", "tools/list"),
            ("resources", "resources/list"),
            ("resourceTemplates", "resources/templates/list"),
            ("prompts", "prompts/list"),
        ):
            if method == path:
                in_session = self.session is not None and not self._answers_statelessly
                return {member: (self.session_lists if in_session else self.lists)[member]}
        return None

    def _capabilities(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.lists["tools"]:
            found["tools"] = {"listChanged": True}
        if self.lists["resources"] or self.lists["resourceTemplates"]:
            found["resources"] = {"listChanged": True}
        if self.lists["prompts"]:
            found["prompts"] = {"listChanged": True}
            found["completions"] = {}
        return found


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def endpoint_of(endpoint: Endpoint | str | None) -> Endpoint:
    """The own endpoint of the server of this id, or (None) that of all servers."""
    return endpoint if isinstance(endpoint, Endpoint) else Endpoint(endpoint)


class ScriptedClient:
    """A client of one endpoint. `notifications` holds the notifications it got, `server_requests` the questions that
    wait for `replies`; results come from `request`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.notifications: list[tuple[str, dict[str, Any]]] = []
        self.server_requests: list[Request] = []
        self._last = 0
        self._asked = trio.Event()

    async def request(self, method: str, params: object = None, id: Id | None = None) -> Any:
        """The result; raises Refusal for an error, and gives None for a request that was called off."""
        self._last += 1
        raw = None if params is None else Raw(json.dumps(params).encode())
        asked = Request(self._last if id is None else id, method, raw)
        answer = await self.session.answer(asked, self.session.begin(asked), self._hear)
        return _outcome(answer)

    async def answer(self, request: Request) -> Success | Failure | None:
        """The answer to a request as it is, undecoded."""
        return await self.session.answer(request, self.session.begin(request), self._hear)

    async def call(self, name: str, arguments: object = None, **more: Any) -> Any:
        return await self.request("tools/call", {"name": name, "arguments": arguments or {}, **more})

    async def names(self, method: str = "tools/list", key: str = "name") -> list[str]:
        (entries,) = (
            found for member, found in (await self.request(method)).items() if member not in ("nextCursor", "_meta")
        )
        return [entry[key] for entry in entries]

    def notifies(self, method: str, params: object = None) -> None:
        self.session.on_notification(Notification(method, None if params is None else Raw(json.dumps(params).encode())))

    async def is_asked(self, method: str, nth: int = 0) -> dict[str, Any]:
        """The params of the nth question it got, which must be of this method; `id` is put beside them."""
        with trio.fail_after(5):
            while len(self.server_requests) <= nth:
                await self._asked.wait()
        question = self.server_requests[nth]
        assert question.method == method
        params: dict[str, Any] = json.loads(bytes(question.params)) if question.params is not None else {}
        return {**params, "id": question.id}

    def replies(self, id: Id, result: object) -> None:
        self.session.on_response(Success(id, Raw(json.dumps(result).encode())))

    def declines(self, id: Id, code: int, message: str) -> None:
        self.session.on_response(Failure(ErrorBody(code, message), id))

    def notifications_of(self, method: str) -> list[dict[str, Any]]:
        """The params of every notification of this method."""
        return [params for told, params in self.notifications if told == method]

    def _hear(self, message: Notification | Request) -> bool:
        if isinstance(message, Request):
            self.server_requests.append(message)
            self._asked.set()
            self._asked = trio.Event()
        else:
            self.notifications.append(
                (message.method, json.loads(bytes(message.params)) if message.params is not None else {})
            )
        return True

    async def listen_changes(self) -> None:
        """Listen on the standing stream, until cancelled."""
        async with announcing(self.session._router) as announcements:
            with self.session.listening(announcements, self._hear):
                await trio.sleep_forever()


@asynccontextmanager
async def announcing(router: Router) -> AsyncIterator[Announcements]:
    """Announcements that run for the block; a problem with one client fails the test."""
    announcements = Announcements(router, _unexpected)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announcements.run)
        yield announcements
        nursery.cancel_scope.cancel()


def _unexpected(problem: Exception) -> None:
    raise problem


class Refusal(Exception):
    def __init__(self, error: ErrorBody) -> None:
        super().__init__(f"{error.code} {error.message}")
        self.code = error.code
        self.message = error.message
        self.data: Any = None if error.data is None else json.loads(bytes(error.data))


def _outcome(answer: Success | Failure | None) -> Any:
    if answer is None:
        return None
    if isinstance(answer, Failure):
        raise Refusal(answer.error)
    return json.loads(bytes(answer.result))


class Later:
    """The outcome of something that runs beside the test: see `later`."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.result: Any = None
        self.refusal: Refusal | None = None

    @property
    def done(self) -> bool:
        return self.ended.is_set()

    async def comes(self) -> Any:
        """The result; raises Refusal for an error."""
        with trio.fail_after(5):
            await self.ended.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.result


def later(nursery: trio.Nursery, work: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Later:
    """Begin `work`, a request of a scripted client or a question of a scripted server, in the background."""
    begun = Later()

    async def run() -> None:
        try:
            begun.result = await work(*args, **more)
        except Refusal as refusal:
            begun.refusal = refusal
        begun.ended.set()

    nursery.start_soon(run)
    return begun


class World:
    def __init__(
        self,
        servers: dict[str, ScriptedServer],
        upstreams: Upstreams,
        runtime: Runtime,
        router: Router,
        seal: Seal,
        work: CountedTurns,
    ) -> None:
        self.servers = servers
        self.work = work
        self.upstreams = upstreams
        self.runtime = runtime
        self.catalog, self.gate, self.journal = runtime.catalog, runtime.gate, runtime.journal
        self.router = router
        self.seal = seal
        self.memory = runtime.catalog.memory
        self.events: list[Event] = []
        runtime.journal.subscribe(self.events.append)

    async def client(
        self,
        endpoint: Endpoint | str | None = None,
        revision: str = "2025-11-25",
        capabilities: Mapping[str, Any] | None = None,
        identity: str | None = None,
        process: ClientProcess | None = None,
        *,
        early: bool = False,
        info: Mapping[str, str] | None = None,
    ) -> ScriptedClient:
        """A client that has shaken hands: if it is not `early`, when the first lists are known, after 2 s at most. A
        text as `endpoint` is the own endpoint of that server."""
        at = endpoint_of(endpoint)
        if not early:
            with trio.move_on_after(2.0):
                await self.upstreams.wait_listed(Caller("test", at, process=process))
        session = Session("test", at, self.router, self.journal, identity, memory=self.memory, process=process)
        params = {
            "protocolVersion": revision,
            "capabilities": capabilities or {},
            "clientInfo": info or {"name": "test", "version": "1"},
        }
        client = ScriptedClient(session)
        client.opened = _outcome(  # type: ignore[attr-defined]  # for the few tests that look at it
            await session.open(Request(0, "initialize", Raw(json.dumps(params).encode())))
        )
        client.notifies("notifications/initialized")
        return client

    async def mrtr_round(
        self,
        method: str,
        params: Mapping[str, Any],
        at: MrtrRound | None = None,
        *,
        capabilities: Mapping[str, Any] | None = None,
        endpoint: Endpoint | str | None = None,
        identity: str | None = None,
        level: str | None = None,
        process: ClientProcess | None = None,
    ) -> Answer:
        """The answer to a request whose caller repeats requests, at the beginning or `at` a later round. Raises what
        the router raises."""
        abilities = abilities_of(LATEST, encode(dict(capabilities or {})))
        caller = Caller("test", endpoint_of(endpoint), identity, abilities, era=Era.STATELESS, process=process)
        found = members(encode(dict(params)))
        return await self.router.answer(
            Exchange(Request(1, method, encode_object(found)), found, caller, NoClient(), level, at or MrtrRound())
        )

    def configures(
        self,
        *servers: ScriptedServer,
        restart: Collection[str] = (),
        views: Mapping[str, ViewSpec] = MappingProxyType({}),
        callers: Mapping[str, CallerSpec] = MappingProxyType({}),
    ) -> None:
        """The configuration has these servers, views and callers from now on; the servers in `restart` otherwise than
        before. Everything happens as in `LiveConfig`."""
        self.servers.clear()
        self.servers.update({server.id: server for server in servers})
        specs = {server.id: server.spec for server in servers}
        found = self.gate.policies.views
        found.replace(Config(servers=specs, views=views, callers=callers))
        self.catalog.set_servers([id for id, spec in specs.items() if not spec.disabled])
        self.catalog.set_views(found, found.audiences())
        self.gate.replace(specs, callers)
        awaited(self.gate.authorizer.grants.store_revocations())
        self.upstreams.apply(specs, restart)

    def approves(self) -> None:
        """A person approves of all that is held back now."""
        approve_all(self.gate)

    def auto_answering(self, answer: Answering = Answering.ONCE) -> AbstractContextManager[list[PendingConfirmation]]:
        """For the block a person is there who gives every question this answer at once; the questions so far."""
        return auto_answering(self.gate, answer)

    def instances(self, server: str) -> Instances:
        """The dedicated instances of a server that is not shared."""
        found = self.upstreams.by_id[server].instances
        assert found is not None
        return found

    async def settled(self) -> None:
        for upstream in self.upstreams.by_id.values():
            await upstream.main.life.settled.wait()


@asynccontextmanager
async def open_world(
    *servers: ScriptedServer,
    start_grace: float = 20.0,
    single_client: bool = False,
    ask: AskSpec | None = None,
    state: Path | None = None,
    source: Path = SOURCE,
    key: bytes | None = None,
    credentials: Credentials | None = None,
    logins: OpenLogins | None = None,
    views: Mapping[str, ViewSpec] = MappingProxyType({}),
    callers: Mapping[str, CallerSpec] = MappingProxyType({}),
    observer: Observer | None = None,
) -> AsyncIterator[World]:
    """`ask` says who confirms calls; `state` is where decisions are kept and servers remembered, for the configuration
    `source`, and `key` what seals states, for a world after this one; `credentials` are the logins of servers, `logins`
    those that are open."""
    run_workers_inline()
    journal = Journal()
    journal.observer = observer
    by_id = {server.id: server for server in servers}
    specs = {server.id: server.spec for server in servers}

    def open_link(spec: ServerSpec, *, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        if isinstance(spec, StdioServer):
            by_id[spec.id].launches.append(spec)
        return by_id[spec.id].open_link_over(http_sse=http_sse)

    with (
        counted_turns() as work,
        open_gate(specs, journal, ask=ask, state=state, source=source, callers=callers) as gate,
    ):
        memory = Budget(now=trio.current_time)
        found = gate.policies.views
        found.replace(Config(servers=specs, views=views, callers=callers))
        catalog = Catalog(
            list(by_id),
            gate.definitions.is_visible_cached,
            lambda entry, view: journal.note(EntryOmitted(entry.ref.server, entry.left_out or entry.outward)),
            memory,
            views=found,
            audiences=found.audiences(),
        )
        remembered = None
        if state is not None:
            pins = gate.definitions.pins
            login_of = credentials.name_of if credentials is not None else lambda spec: ""
            remembered = RememberedServers(pins._db, bytes(32), catalog, pins, login_of)
        shared = catalog, gate, journal, open_link, remembered, credentials, logins
        runtime = Runtime(*shared, single_client=single_client)
        async with open_upstreams(specs, start_grace, runtime) as upstreams:
            seal = Seal(key or os.urandom(KEY_BYTES), trio.current_time)
            yield World(by_id, upstreams, runtime, Router(runtime, upstreams, seal), seal, work)


@asynccontextmanager
async def open_client(
    *servers: ScriptedServer,
    endpoint: Endpoint | str | None = None,
    revision: str = "2025-11-25",
    capabilities: Mapping[str, Any] | None = None,
    identity: str | None = None,
    process: ClientProcess | None = None,
    early: bool = False,
    **world: Any,
) -> AsyncIterator[tuple[World, ScriptedClient, trio.Nursery]]:
    """A world with a client, see `World.client`, and what runs beside the test; for `world`, see `open_world`."""
    async with open_world(*servers, **world) as made, trio.open_nursery() as nursery:
        yield made, await made.client(endpoint, revision, capabilities, identity, process, early=early), nursery
