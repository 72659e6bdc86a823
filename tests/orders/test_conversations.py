"""The whole host under any order of events: scripts of calls, questions, answers, cancels, retries, disconnects, deaths
and expiries, played to clients and servers of both eras at once.

What must hold of every script: each request ends once; each call reaches its server once; each question is answered
once, by the client that it is for; what is refused reaches nobody; and in the end nothing is left of any of it. A
script is a list of small tuples, so that a failing one shrinks to a few lines.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Isolation, Listen, Secret, Trust
from host.addresses import Addresses
from host.downstream.call_store import CallStore, open_call_store
from host.downstream.connected_clients import ConnectedClients
from host.downstream.detached import GATHER_DELAY, PARKED_LIFETIME, REPLAY_LIFETIME
from host.downstream.http.app import open_http_endpoint
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.tasks import Tasks
from host.journal import InternalError
from host.jsonrpc.messages import ErrorBody, Failure, Message, Notification, Request, Success, write
from host.peer.outstanding import ABANDONED_SECONDS
from host.router.lists import PAGE_SIZE
from host.upstream import connection
from host.wire.asgi import ASGIApp
from host.wire.link import Deliver, LinkLost, ReceivedMessage
from tests.kit.asgi import LATEST, Connection, Response, drain_of, open_http_app
from tests.kit.examples import examples
from tests.kit.memory import MemoryLink
from tests.kit.scripts import Step, scripts
from tests.kit.world import Refusal, ScriptedServer, World, open_world

T = TypeVar("T")

SCRIPTS_PLAYED = int(os.environ.get("COLONNADE_SCRIPTS", "200"))
"""More of them for a run that has the time."""
INVALID = -32602
TAG = re.compile(r"<<([^<>]*)>>")
EVERYTHING: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
ABILITIES: list[dict[str, Any]] = [EVERYTHING, EVERYTHING, EVERYTHING, {"elicitation": {}}, {}]
SERVERS = ["shared", "own", "free"]
IDLE = 300.0
REST = 2600.0
"""Seconds after which whatever was begun has ended by itself: patience, questions, parking and replays together."""


def tags(value: object) -> list[list[str]]:
    """The parts of every tag in it: whose it is, of which call, and which one."""
    return [found.split("|") for found in TAG.findall(json.dumps(value))]


# The servers' side


@dataclass(eq=False)
class Work:
    """One call as a server sees it."""

    server: Player
    link: MemoryLink
    request: Request
    params: dict[str, Any]
    number: int
    answered: bool = False
    seen: bool = False
    """Whether the host had time to see the answer."""
    cancelled_at: float | None = None
    lost: bool = False
    asked: dict[str, list[str]] = field(default_factory=dict)
    """The server requests in an unfinished answer: the tag of each."""

    @property
    def call(self) -> int:
        return int(self.params["arguments"]["call"])

    @property
    def owner(self) -> str:
        return str(self.params["arguments"]["owner"])

    @property
    def goes_on(self) -> bool:
        return not self.answered and not self.lost and self.cancelled_at is None

    @property
    def token(self) -> object:
        return self.params.get("_meta", {}).get("progressToken")

    def tag(self, what: object) -> str:
        return f"<<{self.owner}|{self.call}|{what}>>"


@dataclass(eq=False)
class Asked:
    """One question of a server that asks in the middle of its work."""

    work: Work
    id: str
    tag: list[str]
    exact: bool
    """Whether the transport says to which call it belongs."""
    withdrawn: bool = False
    gone: bool = False
    """Whether the host had time to see that it was withdrawn."""
    answers: list[Success | Failure] = field(default_factory=list)


class Tapped(MemoryLink):
    """The server's end of a link; what `takes` takes is heard by nobody else."""

    def __init__(self, link: MemoryLink, takes: Callable[[MemoryLink, Message], bool]) -> None:
        super().__init__(link._outgoing, link._incoming)
        self._takes = takes

    async def run(self, deliver: Deliver) -> None:
        def tapped(arrival: ReceivedMessage) -> None:
            message = arrival.message
            if not isinstance(message, Request | Notification | Success | Failure) or not self._takes(self, message):
                deliver(arrival)

        await super().run(tapped)


class Player(ScriptedServer):
    """A server whose calls wait for the script. It answers its handshake and lists by itself."""

    def __init__(self, id: str, machine: Machine, **more: Any) -> None:
        resources = ["x://r"]
        offered = {
            "tools": {"listChanged": True},
            "prompts": {},
            "resources": {"subscribe": True, "listChanged": True},
        }
        super().__init__(
            id,
            tools=["work", f"{id}__work"],
            prompts=["work"],
            resources=resources,
            capabilities=offered,
            trust=Trust.TRUSTED,
            **more,
        )
        self._machine = machine
        self._sent: dict[MemoryLink, dict[object, Work]] = {}

    async def _listen(self, link: MemoryLink, nursery: trio.Nursery) -> None:
        tapped = Tapped(link, self._takes)
        self._sent[tapped] = {}
        try:
            await super()._listen(tapped, nursery)
        finally:
            for work in self._sent.pop(tapped).values():
                work.lost = True

    def _takes(self, link: MemoryLink, message: Message) -> bool:
        if isinstance(message, Request):
            if message.method == "prompts/get":
                self._machine.problems.append("a retry with a call's state has reached a prompt")
            if message.method != "tools/call":
                return False
            work = self._machine.dispatched(self, link, message)
            assert message.id not in self._sent[link], "an id was used twice"
            self._sent[link][message.id] = work
            return True
        if isinstance(message, Notification):
            if message.method == "notifications/cancelled":
                named = json.loads(bytes(message.params or b"{}"))["requestId"]
                if (found := self._sent[link].get(named)) is not None:
                    self._machine.called_off(found)
                    return True
            return message.method == "notifications/cancelled" and not self.stateless
        if message.id in self._machine.asks:
            self._machine.asks[str(message.id)].answers.append(message)
            return True
        return False


# The clients' side


@dataclass(eq=False)
class Call:
    """One call of a tool that a client wants, over as many requests as it takes."""

    number: int
    client: str
    server: str
    abilities: dict[str, Any]
    seen: list[dict[str, Any]] = field(default_factory=list)
    """Every result so far that asked something."""
    fetched: dict[str, tuple[object, float]] = field(default_factory=dict)
    """The result that came for each state, and when, at the earliest."""
    dispatched: list[Work] = field(default_factory=list)

    @property
    def owner(self) -> str:
        """Who may be asked about it. Of clients without a name each request is one of its own."""
        return f"nobody-{self.number}" if self.client == "nobody" else self.client


@dataclass(eq=False)
class Sent:
    """One HTTP request of a client's."""

    number: int
    call: Call
    connection: Connection
    answer: Response
    refused: bool = False
    """Whether it can only be refused."""
    hopeful: bool = False
    """Whether it must not be refused."""
    state: str | None = None
    again: object = None
    """The answer that it must get, since the same request was answered so not long ago."""
    left: bool = False
    cancelled: bool = False
    read: int = 0


class Machine:
    """Plays a script against one host."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.calls: list[Call] = []
        self.sent: list[Sent] = []
        self.works: list[Work] = []
        self.asks: dict[str, Asked] = {}
        self.stands: list[tuple[str, Response, Connection]] = []
        self.questions: list[tuple[object, dict[str, Any]]] = []
        """Those that the session's client was asked: under which id, and what."""
        self.servers = {
            "shared": Player("shared", self),
            "own": Player("own", self, isolation=Isolation.PER_CLIENT, max_instances=64, idle_timeout=IDLE),
            "free": Player("free", self, revision=LATEST),
        }
        self.tally: Counter[str] = Counter()
        self._progress = 0
        self._settled_at = 0.0
        self._shown_at: dict[int, float] = {}
        """When each call gave its newest questions out, at the earliest."""

    async def play(self, script: Sequence[Step]) -> None:
        async with self._open():
            for name, one, two in script:
                getattr(self, name)(one, two)
                if name == "tick":
                    await trio.sleep(GATHER_DELAY * one / 4)
                elif name == "wait":
                    await trio.sleep((1.0, 12.0, PARKED_LIFETIME / 2 + 1, PARKED_LIFETIME + REPLAY_LIFETIME)[one % 4])
                    self._touch()
                elif two % 4:  # otherwise the next step comes before anybody has moved
                    await self._settle()
            await self._rest()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        async with open_world(*self.servers.values()) as world, AsyncExitStack() as stack:
            self.world: World = world
            await world.settled()
            stop = trio.Event()

            def crashed(problem: Exception) -> None:
                world.journal.note(InternalError("test", problem))

            self.call_store: CallStore = await stack.enter_async_context(open_call_store(crashed, world.memory))
            stateless = Stateless(
                world.router,
                world.journal,
                self.call_store,
                Tasks(world.router, self.call_store, world.seal),
                world.seal,
            )

            async def face(listen: Listen) -> ASGIApp:
                app = await stack.enter_async_context(
                    open_http_endpoint(
                        listen,
                        Addresses(),
                        world.router,
                        stateless,
                        world.journal,
                        lambda endpoint: b"{}",
                        stop,
                        memory=world.memory,
                        drain=drain_of(world, stateless),
                        clients=ConnectedClients(),
                        record_attempt=world.gate.decision_log.record_attempt,
                        is_recorded=world.gate.decision_log.is_recorded,
                    )
                )
                return app.serve

            # Both serve the same calls: what belongs to a name is nothing to those who have none.
            guarded, public = (
                await face(Listen(auth=Auth({"ada": Secret("ada-0123456789abcdef")}))),
                await face(Listen()),
            )
            streamable = attrgetter("__self__._doors")(guarded)["/mcp"].__self__
            self._open_sessions: dict[str, Session] = streamable.sessions._open
            async with trio.open_nursery() as self._requests:
                ada = Connection(guarded, self._requests)
                ada.headers["authorization"] = "Bearer ada-0123456789abcdef"
                nobody = Connection(public, self._requests)
                session = ada.another()
                await session.open(capabilities=EVERYTHING)
                self.clients = {"ada": ada, "nobody": nobody, "session": session}
                yield
                self._requests.cancel_scope.cancel()

    async def _settle(self) -> None:
        await wait_all_tasks_blocked()
        for work in self.works:
            work.seen = work.answered
        for asked in self.asks.values():
            over = asked.exact and not asked.work.goes_on and not asked.work.lost
            self._must(bool(asked.answers) or asked.withdrawn or not over, "a question outlives its call")
        for sent in self.sent:
            if sent.call.server != "free" and not sent.left and not sent.answer.complete.is_set():
                goes_on = all(work.goes_on for work in sent.call.dispatched)
                self._must(goes_on, "a request waits for a call that is over")
        self._look()
        for asked in self.asks.values():
            asked.gone = asked.withdrawn
        self._settled_at = trio.current_time()

    def _look(self) -> None:
        """Messages that the clients received meanwhile."""
        for sent in self.sent:
            if sent.left or not (sent.answer.streams or sent.answer.complete.is_set()):
                continue
            messages = sent.answer.messages()
            for message in messages[sent.read :]:
                self._hear(sent, message)
            sent.read = len(messages)

    def _hear(self, sent: Sent, message: dict[str, Any]) -> None:
        call = sent.call
        for owner, of, _ in tags(message):
            self._must(owner == call.owner, f"{call.owner} was told what is {owner}'s")
            # A question may go by another call of the same client, where its server does not say to which it belongs.
            self._must(int(of) == call.number or "id" in message, "what is of one call was told in another")
        if "method" in message:
            if "id" in message:
                self._must(call.client == "session", "a stateless client was asked outright")
                self.questions.append((message["id"], message))
                self.tally["asked outright"] += 1
            elif message["method"] == "notifications/progress":
                self._must(message["params"]["progressToken"] == sent.number, "progress under a foreign token")
                self.tally["progress"] += 1
            return
        if "error" in message:
            error = message["error"]
            overtaken = sent.number < max(each.number for each in self.sent if each.call is call and not each.refused)
            good = sent.hopeful and not overtaken
            self._must(not good or error["code"] != INVALID, f"a good retry was refused: {error}")
            self._must(sent.again is None, f"a repeated request was refused: {error}")
            self._must(not sent.refused or error["code"] == INVALID, f"refused with another error: {error}")
            self.tally["refused as it must be" if sent.refused else "error"] += 1
            return
        self._must(not sent.refused, "what can only be refused was answered")
        result = message["result"]
        if result.get("resultType") == "input_required":
            self._must(call.client != "session", "a session was asked by a result")
            call.seen.append(result)
            shown = [self.asks[what] for _, _, what in tags(result) if what in self.asks]
            self._must(not any(asked.gone for asked in shown), "asked what was withdrawn")
            self._shown_at[call.number] = self._settled_at
            self.tally["asked by a result"] += 1
        else:
            for _, of, _ in tags(result):
                self._must(int(of) == call.number, "the result of another call")
            self._must(sent.again in (None, result), "a repeated request was answered otherwise")
            if sent.state is not None:
                call.fetched.setdefault(sent.state, (result, self._settled_at))
            self.tally["result" if sent.again is None else "the same result again"] += 1
            return
        self._must(sent.again is None, "a repeated request was asked again")

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    # What servers hear

    def dispatched(self, server: Player, link: MemoryLink, request: Request) -> Work:
        params = json.loads(bytes(request.params or b"{}"))
        work = Work(server, link, request, params, len(self.works))
        call = self.calls[work.call]
        self._must(call.server == server.id, "a call at another server")
        self._must(call.owner == work.owner, "a call of another client")
        sent, state = self.sent[_number(work)], params.get("requestState")
        self._must(sent.call is call, "a request of another call")
        self._must(not sent.refused, "a refused request has reached a server")
        self._must(not any(_same(work, former) for former in call.dispatched), "a request was carried out twice")
        if server.id == "own":
            mine = all(former.owner == work.owner for former in self.works if former.link is link)
            self._must(mine, "an instance serves two clients")
        if not server.stateless:
            self._must(not call.dispatched, "a call was carried out twice")
            self._must(state is None and "inputResponses" not in params, "a round with a server that knows none")
        elif state is not None or "inputResponses" in params:
            self._returned(work, call, sent, state)
        call.dispatched.append(work)
        self.works.append(work)
        self.tally["dispatched"] += 1
        return work

    def _returned(self, work: Work, call: Call, sent: Sent, state: str | None) -> None:
        """A stateless server is asked again, with its own state and the answers to its own questions."""
        former = self.works[int(str(state))]
        self._must(former in call.dispatched, "the state of another call")
        for key, answer in work.params.get("inputResponses", {}).items():
            self._must(key in former.asked, "an answer to what was not asked")
            for owner, of, rest in tags(answer):
                what, _, by = rest.partition("#")
                self._must([owner, of, what] == former.asked.get(key), "the answer to another question")
                self._must(by in (str(sent.number), "session"), "the answer of another request")
        self.tally["asked again"] += 1

    def called_off(self, work: Work) -> None:
        self._must(work.cancelled_at is None, "a call was called off twice")
        self._must(not work.seen, "an answered call was called off")
        work.cancelled_at = trio.current_time()
        self.tally["called off"] += 1

    # Steps: clients

    def call(self, one: int, two: int) -> None:
        client = ("ada", "nobody", "session")[one % 3]
        call = Call(len(self.calls), client, SERVERS[one // 3 % 3], EVERYTHING if two < 6 else ABILITIES[one % 5])
        self.calls.append(call)
        self._send(call, {})

    def retry(self, one: int, two: int) -> None:
        """With the newest questions of a call, answering all of them or some."""
        for call in _some([call for call in self.calls if call.seen], one):
            asked = call.seen[-1]
            kept = {key: asked for at, (key, asked) in enumerate(asked.get("inputRequests", {}).items()) if two != at}
            self._send(call, self._brought(asked, kept), hopeful=self._waits(call))

    def repeat(self, one: int, two: int) -> None:
        """With any questions that were ever seen: a duplicate, or an old one."""
        for call in _some([call for call in self.calls if call.seen], one):
            asked = call.seen[two % len(call.seen)]
            self._send(call, self._brought(asked, asked.get("inputRequests", {})))

    def forge(self, one: int, two: int) -> None:
        """Requests that can only be refused: another state, client, endpoint, method, or other arguments."""
        for call in _some([call for call in self.calls if call.seen], one):
            asked = call.seen[-1]
            brought = self._brought(asked, asked.get("inputRequests", {}))
            kind = two % 5
            if kind == 0:
                brought["requestState"] = _flipped(brought["requestState"], one * 31 + len(self.sent) * 7)
                self._send(call, brought, refused=True)
            elif kind == 1:
                foreign = "nobody" if call.client == "ada" else "ada"
                self._send(call, brought, refused=True, client=foreign)
            elif kind == 2:
                self._send(call, brought, refused=True, path=f"/mcp/{call.server}")
            elif kind == 3:
                arguments = {"call": call.number, "owner": call.owner, "more": 1}
                self._send(call, {**brought, "arguments": arguments}, refused=True)
            else:
                self._send(call, brought, refused=True, method="prompts/get")

    def leave(self, one: int, two: int) -> None:
        for sent in _some([sent for sent in self.sent if not sent.left and not sent.answer.complete.is_set()], one):
            sent.left = True
            sent.connection.leaves.set()

    def cancel(self, one: int, two: int) -> None:
        """By a session; a stateless request is called off by leaving."""
        mine = [sent for sent in self.sent if sent.call.client == "session" and not sent.answer.complete.is_set()]
        for sent in _some(mine, one):
            sent.cancelled = True
            self._post({"method": "notifications/cancelled", "params": {"requestId": sent.number, "reason": "no"}})

    def reply(self, one: int, two: int) -> None:
        """Of the session, to any question that it ever got; sometimes with an error, or with nonsense."""
        for id, question in _some(self.questions, one):
            if two == 6:
                self._post({"id": id, "error": {"code": -1, "message": "no"}})
            elif two == 5:
                self._post({"id": id, "result": 5})
            else:
                self._post({"id": id, "result": _answer(question["method"], question.get("params"), "session")})

    def listen(self, one: int, two: int) -> None:
        client = ("ada", "nobody", "session")[one % 3]
        if two % 3 == 0:
            for _, _, stands in _some([each for each in self.stands if not each[2].leaves.is_set()], one):
                stands.leaves.set()
            return
        uri = f"{SERVERS[two % 3]}+x://r"
        stands = self.clients[client].another(self.clients[client].session)
        if client == "session":
            answer = stands.send("GET", headers={"content-type": None})
            method = "resources/subscribe" if two % 2 else "resources/unsubscribe"
            self._post({"id": f"watch-{len(self.stands)}", "method": method, "params": {"uri": uri}})
        else:
            wanted = {"resourceSubscriptions": [uri], "toolsListChanged": True}
            answer = stands.start("subscriptions/listen", {"notifications": wanted})
        self.stands.append((client, answer, stands))

    # Steps: servers

    def ask(self, one: int, two: int) -> None:
        """In the middle of its work; a stateless server by ending its round."""
        for work in self._worked_on(one):
            if work.server.stateless:
                self._ask_by_result(work, two % 4)
            else:
                for _ in range(two % 3 + 1):
                    self._ask_outright(work, one + two + len(self.asks), exact=two > 3)

    def haunt(self, one: int, two: int) -> None:
        """Ask for a call that was called off not long ago: the server may not have heard yet."""
        since = trio.current_time() - ABANDONED_SECONDS
        dead = [work for work in self.works if not work.lost and not work.answered and not work.server.stateless]
        for work in _some([work for work in dead if work.cancelled_at is not None and work.cancelled_at > since], one):
            self._ask_outright(work, two, exact=two > 5)

    def progress(self, one: int, two: int) -> None:
        for work in self._worked_on(one):
            if work.token is not None:
                self._progress += 1
                said = {"progressToken": work.token, "progress": self._progress, "message": work.tag("progress")}
                self._say(work, Notification("notifications/progress", Raw(json.dumps(said).encode())))

    def answer(self, one: int, two: int) -> None:
        """Now and then what is answered or called off already."""
        result: dict[str, Any] = {}
        works = self._worked_on(one) if two else _some(self.works, one)
        for work in works:
            result = {"content": [{"type": "text", "text": work.tag("result")}]}
            if work.server.stateless:
                result["resultType"] = "complete"
            self._say(work, Success(work.request.id, Raw(json.dumps(result).encode())))

    def fail(self, one: int, two: int) -> None:
        for work in self._worked_on(one):
            self._say(work, Failure(ErrorBody(-32000, work.tag("failure")), work.request.id))

    def withdraw(self, one: int, two: int) -> None:
        """A server takes a question back."""
        open_ones = [asked for asked in self.asks.values() if not asked.answers and not asked.withdrawn]
        for asked in _some([asked for asked in open_ones if not asked.work.lost], one):
            asked.withdrawn = True
            named = Raw(json.dumps({"requestId": asked.id}).encode())
            self._put(asked.work, Notification("notifications/cancelled", named))

    def die(self, one: int, two: int) -> None:
        for work in self._worked_on(one):
            work.link.close()

    def update(self, one: int, two: int) -> None:
        server = self.servers[SERVERS[one % 3]]
        for link in list(server._sent):
            changed = {"uri": "x://r"}
            if not server.stateless:
                with suppress(LinkLost):
                    link.write_bytes(
                        write(Notification("notifications/resources/updated", Raw(json.dumps(changed).encode())))
                    )

    # Steps: time

    def tick(self, one: int, two: int) -> None:
        """The clock is `play`'s."""

    wait = tick

    # What they do

    def _send(
        self,
        call: Call,
        brought: dict[str, Any],
        *,
        refused: bool = False,
        hopeful: bool = False,
        client: str | None = None,
        path: str = "/mcp",
        method: str = "tools/call",
    ) -> None:
        number = len(self.sent)
        origin = self.clients[client or call.client]
        connection = origin.another(origin.session)
        arguments = {"call": call.number, "owner": call.owner}
        params = {"name": f"{call.server}__work", "arguments": arguments, **brought}
        meta = {"test/request": number, "progressToken": number}
        if call.client == "session":
            body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
            answer = connection.send("POST", path, body)
        else:
            answer = connection.start(method, params, path=path, capabilities=call.abilities, meta=meta)
        sent = Sent(number, call, connection, answer, refused, hopeful, brought.get("requestState"))
        fetched, at = call.fetched.get(sent.state or "", (None, 0.0))
        if not refused and call.server != "free" and trio.current_time() < at + REPLAY_LIFETIME:
            sent.again = fetched
        self.sent.append(sent)

    def _brought(self, asked: Mapping[str, Any], questions: Mapping[str, Any]) -> dict[str, Any]:
        by = str(len(self.sent))
        answers = {key: _answer(each["method"], each.get("params"), by) for key, each in questions.items()}
        brought: dict[str, Any] = {"requestState": asked["requestState"]}
        return {**brought, "inputResponses": answers} if answers else brought

    def _waits(self, call: Call) -> bool:
        """Whether the call certainly waits for its client to come back with its newest questions, and nothing else."""
        if any(sent.call is call and sent.read == 0 for sent in self.sent) or call.server == "free":
            return False
        (work,) = call.dispatched
        # What is open has stopped the server's clock; what was asked since may have given out other tickets.
        shown = {tuple(tag) for each in call.seen[-1].get("inputRequests", {}).values() for tag in tags(each)}
        asks = [asked for asked in self.asks.values() if asked.work.owner == work.owner and not asked.answers]
        mine = [asked for asked in asks if tuple(asked.tag) in shown and asked.work is work and not asked.withdrawn]
        return work.goes_on and bool(mine) and trio.current_time() < self._shown_at[call.number] + PARKED_LIFETIME

    def _post(self, message: Mapping[str, Any]) -> None:
        session = self.clients["session"]
        session.another(session.session).send("POST", body={"jsonrpc": "2.0", **message})

    def _touch(self) -> None:
        self._post({"id": "touch", "method": "ping"})

    def _worked_on(self, index: int) -> list[Work]:
        return _some([work for work in self.works if work.goes_on], index)

    def _ask_by_result(self, work: Work, count: int) -> None:
        requests: dict[str, Any] = {}
        for at in range(count):
            method, params = _question(at + work.number, work.tag(f"{work.number}.{at}"))
            work.asked[f"k{at}"] = tags(params)[0]
            requests[f"k{at}"] = {"method": method, "params": params}
        result = {"resultType": "input_required", "requestState": str(work.number)}
        if requests:
            result["inputRequests"] = requests  # type: ignore[assignment]
        self._say(work, Success(work.request.id, Raw(json.dumps(result).encode())))

    def _ask_outright(self, work: Work, which: int, *, exact: bool) -> None:
        id = f"{work.server.id}-{len(self.asks)}"
        method, params = _question(which, work.tag(id))
        self.asks[id] = Asked(work, id, tags(params)[0], exact)
        self._put(work, Request(id, method, Raw(json.dumps(params).encode())), exact=exact)

    def _say(self, work: Work, message: Message) -> None:
        """Everything that belongs to the call; an answer ends it."""
        if isinstance(message, Success | Failure):
            work.answered = True
        self._put(work, message)

    def _put(self, work: Work, message: Message, *, exact: bool = True) -> None:
        with suppress(LinkLost):
            work.link.write_bytes(write(message), work.request.id if exact and not work.server.stateless else None)

    # The end

    async def _rest(self) -> None:
        """Wait while no client or server acts: everything ends by itself."""
        await self._settle()
        for _ in range(4):
            await trio.sleep(REST / 4)
            self._touch()
        await self._settle()
        self.judge()
        for session in self._open_sessions.values():
            self._must(not session.serving.count and not len(session.asking), "a session still waits for something")
        for _, _, stands in self.stands:
            stands.leaves.set()
        assert (await self.clients["session"].get("DELETE", headers={"content-type": None})).status == 204
        await trio.sleep(IDLE + ABANDONED_SECONDS)
        await self._settle()
        self.judge_what_is_left()
        assert self.problems == []

    def judge(self) -> None:
        for sent in self.sent:
            if sent.call.client != "session" and sent.answer.complete.is_set():
                with suppress(Refusal):
                    sent.answer.outcome("tools/call")  # holds all of it against the schema
            finals = [each for each in sent.answer.messages() if "method" not in each]
            if sent.left or sent.cancelled:
                self._must(len(finals) <= 1, f"{len(finals)} answers")
            else:
                self._must(len(finals) == 1, f"{len(finals)} answers")
                self._must(sent.answer.complete.is_set(), "an answer without an end")
        for work in self.works:
            self._must(not work.goes_on, "a call that nobody waits for was never called off")
        for asked in self.asks.values():
            once = not asked.withdrawn and not asked.work.lost
            self._must(len(asked.answers) == 1 if once else len(asked.answers) <= 1, "a question without one answer")
            for answer in asked.answers:
                if isinstance(answer, Success):
                    self._judge_answer(asked, json.loads(bytes(answer.result)))

    def _judge_answer(self, asked: Asked, result: dict[str, Any]) -> None:
        for owner, of, rest in tags(result):
            what, _, by = rest.partition("#")
            self._must([owner, of, what] == asked.tag, "the answer to another question")
            if by != "session":
                sent = self.sent[int(by)]
                self._must(not sent.refused, "an answer that was refused has reached a server")
                self._must(sent.call.owner == owner, "the answer of another client")
        self.tally["answered with a result"] += 1

    def judge_what_is_left(self) -> None:
        kept = attrgetter("_parking", "_parked", "_replays", "_working", "_tasks", "_kept")(self.call_store)
        self._must(not any(kept), "a detached call is left")
        self._must(not self._requests.child_tasks, "a request is still served")
        self._must(not self._open_sessions, "a session is left")
        upstreams = self.world.upstreams
        for id, upstream in upstreams.by_id.items():
            self._must(not len(upstream.main.watches), f"somebody still watches {id}")
            if (state := getattr(upstream.main.state, "client", None)) is not None:
                self._must(
                    state.peer.outstanding_count == (1 if id == "free" else 0), f"a request is in flight at {id}"
                )
                self._must(not state.peer._incoming.count, f"a question of {id}'s is open")
            self._must(not upstream.instances, f"an instance of {id} is left")
        self.problems += [
            f"crashed: {event.problem!r}" for event in self.world.events if isinstance(event, InternalError)
        ]


def _same(work: Work, other: Work) -> bool:
    """Whether it is the same round of the same request."""
    return (_number(work), work.params.get("requestState")) == (_number(other), other.params.get("requestState"))


def _number(work: Work) -> int:
    return int(work.params["_meta"]["test/request"])


def _some(things: list[T], index: int) -> list[T]:
    """One of them, if there is any."""
    return [things[index % len(things)]] if things else []


def _question(which: int, tag: str) -> tuple[str, dict[str, Any]]:
    if which % 3 == 0:
        content = {"role": "user", "content": {"type": "text", "text": tag}}
        return "sampling/createMessage", {"messages": [content], "maxTokens": 5}
    if which % 3 == 1:
        return "roots/list", {"_meta": {"test/tag": tag}}
    return "elicitation/create", {"message": tag, "requestedSchema": {"type": "object", "properties": {}}}


def _answer(method: str, params: object, by: str) -> dict[str, Any]:
    """It says to which question it is the answer, and who gave it."""
    (found,) = tags(params)
    tag = f"<<{'|'.join(found)}#{by}>>"
    if method == "sampling/createMessage":
        return {"role": "assistant", "content": {"type": "text", "text": tag}, "model": "m"}
    if method == "roots/list":
        return {"roots": [{"uri": "file:///x", "name": tag}]}
    return {"action": "accept", "content": {"tag": tag}}


def _flipped(text: str, bit: int) -> str:
    data = bytearray(text.encode())
    data[bit // 7 % len(data)] ^= 1 << bit % 7
    return data.decode()


STEPS = {
    "call": 9,
    "ask": 14,
    "answer": 6,
    "fail": 1,
    "progress": 4,
    "haunt": 2,
    "withdraw": 2,
    "retry": 12,
    "repeat": 4,
    "forge": 4,
    "reply": 8,
    "leave": 3,
    "cancel": 2,
    "listen": 3,
    "update": 1,
    "die": 2,
    "tick": 10,
    "wait": 3,
}


@pytest.mark.slow
@pytest.mark.timeout(60 + SCRIPTS_PLAYED)
@settings(max_examples=SCRIPTS_PLAYED, suppress_health_check=[HealthCheck.data_too_large])
@given(scripts(STEPS, first=8, max_size=60))
def test_whatever_happens_everything_ends_once_and_nothing_is_left(script: list[Step]) -> None:
    """(rules 24, 38, 45, 47, 71, 80, 108)"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "PING_INTERVAL", PARKED_LIFETIME)  # most of the time would go into them
        trio.run(Machine().play, script, clock=MockClock(autojump_threshold=0))


# What is sealed


PAGES = PAGE_SIZE + 1
"""Tools enough for a list of several pages."""


def _each_flip(text: str) -> list[str]:
    """The text with any one bit of it flipped, and the bytes that it stands for with any one bit of them flipped."""
    written = text.encode()
    flips = [
        written[:at] + bytes([written[at] ^ 1 << bit]) + written[at + 1 :]
        for at in range(len(written))
        for bit in range(7)
    ]
    head, _, sealed = text.partition(".")
    data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
    for at in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        flips.append(head.encode() + b"." + base64.urlsafe_b64encode(flipped).rstrip(b"="))
    assert len(set(flips)) > 8 * len(data)
    return [each.decode() for each in flips]


class Sealed:
    """A host that has given out one state of each kind, and a cursor."""

    def __init__(self, connection: Connection, servers: Sequence[ScriptedServer]) -> None:
        self._connection = connection
        self._servers = servers
        self.given: dict[str, tuple[str, dict[str, Any], str]] = {}
        """By its kind, the method and the params that it goes with, and the sealed text."""

    def brought(self, kind: str, text: str) -> tuple[str, dict[str, Any]]:
        method, params, _ = self.given[kind]
        return method, {**params, "cursor" if kind == "cursor" else "requestState": text}

    async def takes(self, kind: str, text: str) -> None:
        method, params = self.brought(kind, text)
        assert await self._connection.another().result(method, params, capabilities=EVERYTHING)

    async def refuses(self, kind: str, text: str) -> None:
        method, params = self.brought(kind, text)
        before = [list(server.asked) for server in self._servers]
        with pytest.raises(Refusal) as refusal:
            await self._connection.another().result(method, params, capabilities=EVERYTHING)
        assert refusal.value.code == INVALID
        assert [server.asked for server in self._servers] == before


@asynccontextmanager
async def sealed() -> AsyncIterator[Sealed]:
    legacy = ScriptedServer("a", tools=[f"t{number}" for number in range(PAGES)])
    modern = ScriptedServer("b", tools=["x"], revision=LATEST)
    async with trio.open_nursery() as nursery, open_http_app(legacy, modern) as (_, connection):
        found = Sealed(connection, [legacy, modern])
        listed = await connection.result("tools/list")
        found.given["cursor"] = "tools/list", {}, listed["nextCursor"]
        for kind, server in (("parked", legacy), ("asked", modern)):
            params = {"name": "a__t1" if server is legacy else "b__x", "arguments": {"k": 1}}
            call = connection.another().start("tools/call", params, capabilities=EVERYTHING)
            heard = await server.hears("tools/call")
            method, question = _question(2, "<<o|0|q>>")
            if server is legacy:
                nursery.start_soon(server.asks, method, question)
            else:
                requests = {"k": {"method": method, "params": question}}
                server.says(
                    heard["id"], {"resultType": "input_required", "inputRequests": requests, "requestState": "s"}
                )
            await call.complete.wait()
            found.given[kind] = "tools/call", params, call.outcome("tools/call")["requestState"]
        yield found
        for server in (legacy, modern):
            server.hears_nothing_more()
        assert legacy.answered == []
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cursor", "parked", "asked"])
async def test_with_any_bit_flipped_nothing_sealed_is_good(kind: str, autojump_clock: MockClock) -> None:
    """It is refused, and no server hears of it (rule 80)."""
    async with sealed() as given:
        *_, text = given.given[kind]
        for flipped in _each_flip(text):
            await given.refuses(kind, flipped)
        if kind != "asked":  # which its server would have to answer
            await given.takes(kind, text)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(st.sampled_from(["cursor", "parked", "asked"]), st.text(), st.integers(0, 200), st.integers(0, 200))
def test_of_nothing_sealed_a_part_is_good_or_more_than_all(kind: str, extra: str, start: int, end: int) -> None:
    """Nor one in the place of another."""

    async def main() -> None:
        async with sealed() as given:
            texts = {each: text for each, (_, _, text) in given.given.items()}
            text = texts.pop(kind)
            for wrong in (text[start:end], text[:end] + extra + text[end:], text[:start] + text[end:], *texts.values()):
                if wrong != text and (wrong or kind != "cursor"):  # an empty cursor is none
                    await given.refuses(kind, wrong)

    trio.run(main, clock=MockClock(autojump_threshold=0))
