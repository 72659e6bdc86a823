"""Consent under any order of events: scripts of calls, answers, changes, decisions, cancels, disconnects, reloads,
crashes and failing audits, played to a whole host between scripted clients and servers.

Beside the host runs a second, much simpler account of what people said, kept here: which definitions stand, what the
rules of the moment say, and which answers are good for what. Whatever leaves the host for a server, or for a client on
a server's behalf, is held against it at the very moment at which it leaves.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Check, Condition, Config, Consent, KindConsent, Listen, Rule, Trust, Verdict
from config.diff import difference
from config.model import Limits
from host.admin import state as admin_state
from host.admin.schema import AdminError
from host.admin.state import HostAdmin
from host.audit.verify import Integrity
from host.errors import ColonnadeError
from host.exchange import InputRequired, MrtrRound
from host.journal import InternalError
from host.jsonrpc.messages import Notification, Request, read, write
from host.jsonrpc.raw import encode, members
from host.policy.fingerprint import Launch, launch_of
from host.slices import run_inline
from host.subject import Item
from host.upstream.state import Ready
from host.wire.link import Link, LinkLost
from tests.host.audit.kit import verify
from tests.kit.control import FakeControl
from tests.kit.memory import MemoryLink
from tests.kit.scripts import Step, scripts
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, open_world

PLAYED = int(os.environ.get("COLONNADE_CONSENT_SCRIPTS", "200"))
"""Scripts that each of the SHARDS plays; more of them for a run that has the time."""
SHARDS = 2
STATELESS = "2026-07-28"
CALL_KEY = "test.example/call"
SOURCE = Path("/nowhere/colonnade.yaml")
OVERTIME = 400.0
"""Seconds after which whatever was begun has ended by itself."""

Key = tuple[str, str, str]
"""Server, kind and name."""

TARGETS: list[Key] = [
    ("plain", "tool", "write"),
    ("shady", "tool", "read"),
    ("plain", "tool", "pay"),
    ("free", "tool", "write"),
    ("plain", "tool", "hold"),
    ("plain", "prompt", "greet"),
    ("plain", "resource", "x://a"),
    ("plain", "tool", "hold"),
    ("shady", "tool", "send"),
    ("plain", "tool", "read"),
    ("plain", "tool", "wipe"),
    ("free", "tool", "write"),
]
NUMBERS = (2, 3, 2, 7)
METHODS = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}
KINDS = {method: kind for kind, method in METHODS.items()}
LISTS = {"tool": "tools", "prompt": "prompts", "resource": "resources"}
NAMES = {"tool": "name", "prompt": "name", "resource": "uri"}
IDENTITIES = (None, None, "alice", "bob", None, "alice")
"""The number of callers with a session; the others have none."""
SESSIONS = 4
ABILITIES: tuple[dict[str, Any], ...] = ({"elicitation": {}, "sampling": {}}, {"sampling": {}}, {"elicitation": {}}, {})


def among(op: str, value: Any) -> tuple[Condition, ...]:
    return (Condition("/n", (Check(op, value),)),)


# The rules, as the host has them and as they are meant


def consents(variant: int) -> dict[str, tuple[Consent, Trust]]:
    write = Rule("wri*" if variant == 1 else "write")
    ask = [Rule("pay", among("range", (3, None)))] + ([write] if variant not in (2, 3) else [])
    deny = [Rule("wipe"), Rule("read", among("eq", 7))] + ([write] if variant == 3 else [])
    allow = [Rule("read"), Rule("pay"), Rule("hold")] + ([write] if variant == 2 else [])
    tools = KindConsent(tuple(allow), tuple(ask), tuple(deny))
    prompts = KindConsent(default=Verdict.DENY if variant == 2 else Verdict.ASK)
    plain = Consent(
        tools=tools,
        prompts=prompts,
        resources=KindConsent(ask=(Rule("x://a"),)),
        sampling=Verdict.ALLOW if variant == 3 else None,
    )
    shady = Consent(tools=KindConsent((Rule("read"),), default=Verdict.ASK)) if variant == 2 else Consent()
    free = Consent(tools=KindConsent(default=Verdict.ALLOW if variant == 1 else Verdict.ASK))
    return {
        "plain": (plain, Trust.STANDARD),
        "shady": (shady, Trust.STANDARD if variant == 4 else Trust.UNTRUSTED),
        "free": (free, Trust.STANDARD),
    }


def meant(variant: int, key: Key, n: int) -> tuple[str, str]:
    """The verdict on a call, and a name for the rule that asks."""
    server, kind, name = key
    if kind == "sampling":
        return ("allow", "") if variant == 3 else ("ask", "sampling by trust")
    if server == "free":
        return ("allow", "") if variant == 1 else ("ask", "free default")
    if server == "shady":
        if variant == 4 or (variant == 2 and name == "read"):
            return "allow", ""
        return "ask", "shady default" if variant == 2 else "shady by trust"
    if kind == "prompt":
        return ("deny", "") if variant == 2 else ("ask", "prompts default")
    if kind == "resource":
        return "ask", "x://a"
    if name == "write":
        return {2: ("allow", ""), 3: ("deny", ""), 1: ("ask", "wri*")}.get(variant, ("ask", "write"))
    if name == "pay":
        return ("ask", "pay") if n >= 3 else ("allow", "")
    if name == "read":
        return ("deny", "") if n == 7 else ("allow", "")
    return ("allow", "") if name == "hold" else ("deny", "")


def asking(variant: int, server: str) -> set[str]:
    """The rules of a server by which a person may be asked."""
    keys = {key for key in TARGETS if key[0] == server} | ({(server, "sampling", "sampling")} - {("shady",) * 3})
    return {rule for key in keys for n in NUMBERS for verdict, rule in [meant(variant, key, n)] if verdict == "ask"}


# What happened, as it is known here


@dataclass(eq=False)
class Call:
    """One request of a client."""

    number: int
    caller: int
    key: Key
    n: int
    session: object | None
    client: ScriptedClient | None
    went_on: bool = False
    done: bool = False
    answer: Any = None
    cancelled: int | None = None
    """At which tick it was called off."""
    begun: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    sent: int = 0
    lost: bool = False
    """With the host that had it."""

    @property
    def identity(self) -> str | None:
        return IDENTITIES[self.caller]


@dataclass(eq=False)
class Given:
    """An answer of a person that lets something through."""

    scope: str
    key: Key
    identity: str | None
    session: object | None
    numbers: frozenset[int] | None
    """None: any."""
    version: int | None
    program: str
    rule: str
    expires: float | None
    tick: int
    spent: bool = False
    void: bool = False


@dataclass(eq=False)
class Definition:
    """One entry as its server lists it, and what people think of it."""

    version: int | None = 1
    """None while it is not listed."""
    known: set[int | None] = field(default_factory=set)
    """What the host may take it for: it is told a moment later."""
    served: int | None = None
    approved: int | None = None
    closed: bool = False
    """A person took it back or rejected it: nothing is approved by itself any more."""


class Tapped(MemoryLink):
    """The host's end of a link, with an ear at it."""

    def __init__(self, link: MemoryLink, player: Player) -> None:
        super().__init__(link._outgoing, link._incoming)
        self._player = player

    def write_bytes(self, data: bytes, about: int | str | None = None) -> None:
        message = read(data)
        if isinstance(message, Request) and message.method in KINDS:
            self._player.machine.leaves(self._player.id, message)
        super().write_bytes(data, about)


class Player(ScriptedServer):
    def __init__(self, id: str, machine: Machine, **more: Any) -> None:
        self.machine = machine
        offers = {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True},
        }
        answers = {"tools/call": self.call, "prompts/get": self.get, "resources/read": self.read_one}
        super().__init__(id, answers=answers, capabilities=offers, **more)
        self.held: list[tuple[int, trio.Event]] = []

    @asynccontextmanager
    async def open_link(self) -> AsyncIterator[Link]:
        self.held = []
        async with super().open_link() as link:
            assert isinstance(link, MemoryLink)
            yield Tapped(link, self)

    async def call(self, params: dict[str, Any]) -> object:
        n = params["arguments"]["n"]
        if params["name"] == "hold":
            released = trio.Event()
            self.held.append((n, released))
            await released.wait()
        more = {"resultType": "complete"} if self.stateless else {}
        if self.stateless and n != 7 and "requestState" not in params:
            form = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
            questions = {"k": {"method": "elicitation/create", "params": form}}
            return {"resultType": "input_required", "inputRequests": questions, "requestState": f"state {n}"}
        return {"content": [], **more}

    async def get(self, params: dict[str, Any]) -> object:
        return {"messages": []}

    async def read_one(self, params: dict[str, Any]) -> object:
        return {"contents": []}

    def _builtin(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        found = super()._builtin(method, params)
        for kind, member in LISTS.items():
            if method == f"{member}/list":
                self.machine.serves(self.id, kind, [dict(each) for each in self.lists[member]])
        return found


class Listener(ScriptedClient):
    """A client that tells the machine of every question when it comes."""

    machine: Machine

    def _hear(self, message: Notification | Request) -> bool:
        if isinstance(message, Request):
            self.machine.client_is_asked(self, message)
        return super()._hear(message)


class Machine:
    def __init__(self, folder: Path, clock: MockClock, client_answers: bool) -> None:
        self.folder = folder
        self.clock = clock
        self.client_answers = client_answers
        self.problems: list[str] = []
        self.tally: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.given: dict[str, Given] = {}
        self.definitions: dict[Key, Definition] = {key: Definition() for key in TARGETS}
        self.variant = 0
        self.programs = dict.fromkeys(("plain", "shady", "free"), "/bin/one")
        self.approved_programs = dict(self.programs)
        self.closed_programs: set[str] = set()
        self.tick = 0
        self.decisions: list[dict[str, Any]] = []
        """Those that nothing was sent for yet."""
        self.said: dict[str, tuple[str, object, Any, float | None, bool]] = {}
        """Answers to confirmations: the answer, the arguments that it is for, the confirmation, when it ends, and
        whether nothing waits."""
        self.said_by_client: list[tuple[Call, str]] = []
        self.forms: list[tuple[Listener, Request]] = []
        self.samplings: list[tuple[Listener, Request]] = []
        self.unfinished: list[tuple[Call, InputRequired]] = []
        self.goes_on: Counter[tuple[Key, str | None, int]] = Counter()
        self.asked_at: dict[str, tuple[int | None, str]] = {}
        self.attached = True
        self.crashes = False
        self.players = {
            "plain": Player("plain", self, limits=Limits(concurrent=2)),
            "shady": Player("shady", self),
            "free": Player("free", self, revision=STATELESS),
        }
        for key in self.definitions:
            self._list(key)

    def _list(self, key: Key) -> None:
        server, kind, name = key
        entries = self.players[server].lists[LISTS[kind]]
        entries[:] = [each for each in entries if each[NAMES[kind]] != name]
        version = self.definitions[key].version
        if version is not None:
            entry: dict[str, Any] = {NAMES[kind]: name, "description": f"v{version}"}
            if kind == "tool":
                entry["inputSchema"] = {"type": "object"}
            if kind == "resource":
                entry["name"] = name
            entries.append(entry)

    # The account

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    def serves(self, server: str, kind: str, entries: list[dict[str, Any]]) -> None:
        """The host is told what a server lists."""
        versions = {each[NAMES[kind]]: int(each["description"][1:]) for each in entries}
        for key, definition in self.definitions.items():
            if key[:2] == (server, kind):
                definition.served = versions.get(key[2])
                definition.known.add(definition.served)
                self._seen_first(server, definition)

    def _seen_first(self, server: str, definition: Definition) -> None:
        if (
            consents(self.variant)[server][1] is Trust.STANDARD
            and definition.approved is None
            and not definition.closed
        ):
            definition.approved = definition.served

    def read_audit(self) -> None:
        """Take up what the host wrote down since this was done last."""
        while line := self._audit.readline():
            self.written(json.loads(line))

    def written(self, record: dict[str, Any]) -> None:
        """The host has written this down."""
        if record["kind"] == "decision" and record["verdict"] != "deny":
            self.decisions.append(record)
        elif record["kind"] == "answer" and "grant" in record:
            self._take_grant(record)

    def _take_grant(self, record: Mapping[str, Any]) -> None:
        key = (record["server"], record["prim"], record["item"])
        numbers: frozenset[int] | None
        if record["by"] == "client":
            fits = (
                pair
                for pair in self.said_by_client
                if pair[0].key == key
                and pair[1] == record["answer"]
                and (pair[0].identity or "") == record["principal"]
                and (pair[0].key[1] != "tool" or record["args"]["canonical"] == _canonical_digest(pair[0].n))
            )
            found = next(fits, None)
            if found is None:
                self.must(False, f"an answer that no client gave: {record}")
                return
            self.said_by_client.remove(found)
            call, answer = found
            numbers, identity, session, expires = frozenset([call.n]), call.identity, call.session, None
        else:
            said = self.said.pop(record["question"], None)
            if said is None or said[0] != record["answer"]:
                self.must(False, f"an answer that nobody gave: {record}")
                return
            answer, arguments, pending, expires, refused = said
            identity, session = pending.access.subject.caller, pending.access.subject.session
            n = _number(pending)
            wide: dict[object, frozenset[int] | None] = {"any": None, "some": frozenset([2, 3])}
            numbers = frozenset([n])
            if answer != "once":
                numbers = wide.get(arguments, numbers)
            if answer in ("time", "always") or (answer == "once" and refused):
                session = None
        n = next(iter(numbers)) if numbers is not None and len(numbers) == 1 else 3
        self.given[record["grant"]] = Given(
            scope=answer,
            key=key,
            identity=identity,
            session=session,
            numbers=numbers,
            version=self._version(key),
            program=self.programs[key[0]],
            rule=meant(self.variant, key, n)[1],
            expires=expires,
            tick=self.tick,
        )
        self.tally[f"granted {answer}"] += 1

    def _version(self, key: Key) -> int | None:
        return self.definitions[key].served if key in self.definitions else None

    def leaves(self, server: str, request: Request) -> None:
        """A request is leaving for a server."""
        self.read_audit()
        params = json.loads(bytes(request.params or b"{}"))
        kind = KINDS[request.method]
        key = (server, kind, params[NAMES[kind]])
        call = self.calls[params["_meta"][CALL_KEY]]
        what = f"call {call.number} of {key} with {call.n}"
        self.tally["dispatched"] += 1
        self.must(call.key == key, f"{what} left as {key}")
        self.must(kind != "tool" or params["arguments"] == {"n": call.n}, f"{what} left with other arguments")
        self.must(not call.done and not call.lost, f"{what} left though it was over")
        if "requestState" in params and not call.went_on:
            self.tally["driven rounds"] += 1  # the host goes through the rounds for its caller, in one dispatch
            self.must(call.sent > 0, f"{what} began with a round")
            return
        call.sent += 1
        self.must(call.sent == 1, f"{what} left twice")
        definition = self.definitions[key]
        known = definition.known if definition.known else {definition.served}
        known = known - {None}
        self.must(
            not known or definition.approved in known, f"{what} left with a definition that is not approved: {known}"
        )
        self.must(
            self.approved_programs[server] == self.programs[server], f"{what} left though its program is another one"
        )
        sent = bytes(members(request.params or b"{}").get("arguments", Raw(b"{}")))
        self._consented(call, key, call.n, what, f"sha256:{hashlib.sha256(sent).hexdigest()}")

    def _consented(self, call: Call, key: Key, n: int, what: str, digest: str | None = None) -> None:
        """`digest` is of the arguments that leave: of several decisions that were written down, theirs."""
        verdict, rule = meant(self.variant, key, n)
        self.must(verdict != "deny", f"{what} left though it is denied")
        identity = call.identity or ""
        fits = [
            each
            for each in self.decisions
            if (each["server"], each["prim"], each["item"] or each["prim"]) == key and each["principal"] == identity
            if digest in (None, each["args"]["digest"])
        ]
        if not fits:
            self.must(False, f"{what} left before it was written down")
            return
        record = fits[-1]
        self.decisions.remove(record)
        if verdict != "ask":
            return
        self.tally["dispatched by a grant"] += 1
        given = self.given.get(record["grant"])
        if given is None:  # a person agreed to this very call already: it goes on
            left = self.goes_on[key, call.identity, n]
            self.must(call.went_on and left > 0, f"{what} left without a grant: {record['grant']!r}")
            self.goes_on[key, call.identity, n] -= 1
            self.tally["went on"] += 1
            return
        self.must(not given.void, f"{what} left by a grant that is void")
        self.must(not given.spent, f"{what} left by a grant that was spent")
        self.must(given.key == key, f"{what} left by a grant for {given.key}")
        self.must(given.identity == call.identity, f"{what} left by a grant of {given.identity}")
        self.must(given.session in (None, call.session), f"{what} left by a grant of another session")
        self.must(given.numbers is None or n in given.numbers, f"{what} left by a grant for {given.numbers}")
        self.must(given.program == self.programs[key[0]], f"{what} left by a grant for another program")
        self.must(given.rule == rule, f"{what} left by a grant for the rule {given.rule}, not {rule}")
        self.must(given.expires is None or self.now() < given.expires, f"{what} left by a grant that is over")
        if key in self.definitions:
            known = self.definitions[key].known or {self.definitions[key].served}
            self.must(given.version in known, f"{what} left by a grant for version {given.version}")
        called_off = key == call.key and call.cancelled is not None and call.cancelled <= given.tick
        self.must(not called_off, f"{what} left by an answer that came after it was called off")
        given.spent = given.scope == "once"

    def client_is_asked(self, client: Listener, request: Request) -> None:
        """A question has come to a client."""
        self.read_audit()
        params = json.loads(bytes(request.params or b"{}"))
        if request.method == "sampling/createMessage":
            n = int(params["messages"][0]["content"]["text"])
            mine = [each for each in self.calls if each.client is client and each.key[2] == "hold" and not each.done]
            call = next((each for each in sorted(mine, key=lambda each: each.cancelled is not None)), None)
            if call is None:
                self.must(False, "a client was asked whose call is over")
                return
            self.tally["sampled"] += 1
            self._consented(call, ("plain", "sampling", "sampling"), n, f"sampling with {n}")
            self.samplings.append((client, request))
        elif "Colonnade asks" in params["message"]:
            self.must(self.client_answers, "a client was asked for consent")
            self.tally["asked the client"] += 1
            self.forms.append((client, request))
        else:
            self.samplings.append((client, request))

    def now(self) -> float:
        return 1_800_000_000.0 + self.clock.current_time()

    # The host

    async def play(self, script: list[Step]) -> None:
        steps = iter([*script, ("end", 0, 0)])
        while await self._live(steps):
            self._crashed()

    def _crashed(self) -> None:
        self.tally["crashes"] += 1
        for call in self.calls:
            call.lost = call.lost or not call.done
        for each in self.given.values():
            each.void = each.void or each.scope in ("once", "session")
        for definition in self.definitions.values():
            definition.known = set()
        self.forms, self.samplings, self.unfinished, self.said = [], [], [], {}
        self.said_by_client, self.asked_at, self.decisions = [], {}, []

    async def _live(self, steps: Iterator[Step]) -> bool:
        """One life of the host; whether it crashed."""
        self._respecify()
        answers = (Channel.CONSOLE, Channel.CLIENT) if self.client_answers else (Channel.CONSOLE,)
        async with (
            open_world(*self.players.values(), ask=AskSpec(answers, 50.0), state=self.folder) as world,
            trio.open_nursery() as nursery,
        ):
            self.world, self.nursery = world, nursery
            world.gate.authorizer.grants._wall, world.gate.authorizer.grants._monotonic = self.now, self.now
            self.config = self._config()
            self.control = FakeControl(self.config)
            self.admin = HostAdmin(self.control, world.runtime, world.upstreams, stdio=False)
            world.gate.decision_log.record_configuration("config", SOURCE)
            file = world.gate.decision_log._audit._file
            assert file is not None
            path, self._audit, self.descriptor, self.broken = file.path, file.path.open(), file.descriptor, False
            await world.settled()
            for server, program in self.programs.items():
                self._start(server, program)
            self.clients = [await self._client(at) for at in range(SESSIONS)]
            await self._settle()
            self.attached = False
            self.come(0, 0)
            crashed = await self._steps(steps)
            self.must(not any(isinstance(each, InternalError) for each in world.events), "something crashed")
            nursery.cancel_scope.cancel()
        self._audit.close()
        self.must(verify(path).integrity is Integrity.OK, "the audit is broken")
        path.unlink()
        return crashed

    async def _steps(self, steps: Iterator[Step]) -> bool:
        for name, one, two in steps:
            if name in ("crash", "end"):
                if name == "end":
                    await self._end()
                self.mend(0, 0)
                self.go(0, 0)
                return name == "crash"
            self.tick += 1
            getattr(self, name)(one, two)
            self.read_audit()
            if self.settles(one, two):
                await self._settle()
        raise AssertionError("a script ends with its end")

    def settles(self, one: int, two: int) -> bool:
        """Whether all comes to rest after a step with these numbers, before the next one."""
        return (one + two) % 3 != 0

    def _respecify(self) -> None:
        for id, (consent, trust) in consents(self.variant).items():
            player = self.players[id]
            player.spec = replace(player.spec, consent=consent, trust=trust)

    def _config(self) -> Config:
        return Config(
            source=SOURCE,
            listen=Listen(),
            start_grace=3.0,
            servers={id: player.spec for id, player in self.players.items()},
        )

    async def _client(self, at: int) -> Listener:
        made = await self.world.client(identity=IDENTITIES[at], capabilities=ABILITIES[at])
        client = Listener(made.session)
        client.machine = self
        return client

    async def _settle(self) -> None:
        await wait_all_tasks_blocked()
        for client, request in self.samplings:
            answer = {"action": "accept", "content": {"a": "x"}}
            sampled = {"role": "assistant", "content": {"type": "text", "text": "x"}, "model": "m"}
            client.replies(request.id, sampled if request.method == "sampling/createMessage" else answer)
        if self.samplings:
            self.samplings = []
            await wait_all_tasks_blocked()
        self.read_audit()
        self.decisions = []  # what was written down and could not be sent
        for definition in self.definitions.values():
            definition.known = {definition.served}
        if not self.broken:
            self._look()
        self.tick += 1

    def _look(self) -> None:
        """Check what must hold whenever nothing is under way."""
        for call in self.calls:
            if call.cancelled is not None:
                self.must(call.done or call.lost, f"call {call.number} goes on though it was called off")
        marks = {client.session.mark for client in self.clients}
        for grant in self.world.gate.authorizer.grants.all():
            told = self.given.get(grant.id)
            self.must(told is None or not (told.void or told.spent), "a grant is there that is void or spent")
            if grant.subject.session is not None:
                self.must(grant.subject.session in marks, "a grant has outlived its session")
        for pending in self.world.gate.authorizer.confirmations.list_all():
            access = pending.access
            key = (access.subject.item.server, access.subject.item.kind, access.subject.item.name)
            now = (self._version(key), self.programs[access.subject.item.server])
            if self.asked_at.setdefault(pending.id, now) != now:
                self.must(now[0] is None, f"a question about {key} is not void though that has changed")
            if not pending.refused:
                self.must(pending.waiters != [], "a question waits for nobody")
                self.must(meant(self.variant, key, _number(pending))[0] == "ask", "asked about what is not to be asked")

    async def _end(self) -> None:
        """Nothing waits for ever, and what is listed is what is approved."""
        self.mend(0, 0)
        for _ in range(4):
            for server in self.players.values():
                for _, released in server.held:
                    released.set()
            await self._settle()
            self.clock.jump(OVERTIME / 4)
        await self._settle()
        for call in self.calls:
            self.must(call.done or call.lost, f"call {call.number} of {call.key} waits for ever")
        self.must(
            not any(not each.refused for each in self.world.gate.authorizer.confirmations.list_all()),
            "a question waits for ever",
        )
        self.must(self.world.gate.decision_log.in_flight.total() == 0, "something is in flight")
        for key, definition in self.definitions.items():
            if isinstance(self.world.upstreams.by_id[key[0]].main.state, Ready):
                self.must(definition.served == definition.version, f"{key} was never listed anew")

    # Steps: clients

    def call(self, one: int, two: int) -> None:
        caller, n = one % len(IDENTITIES), NUMBERS[one // 8 % 4]
        self._begin(caller, TARGETS[two % len(TARGETS)], n, None, None)

    def again(self, one: int, two: int) -> None:
        """A caller without a session goes on with what its server has not finished."""
        if self.unfinished:
            former, asked = self.unfinished[one % len(self.unfinished)]
            answers = {key: encode({"action": "accept", "content": {"a": "x"}}) for key in asked.requests}
            self._begin(former.caller, former.key, former.n, MrtrRound(asked.server, answers, asked.state), former)

    def _begin(self, caller: int, key: Key, n: int, at: MrtrRound | None, former: Call | None) -> None:
        client = self.clients[caller] if caller < SESSIONS else None
        session = None if client is None else client.session.mark
        n = n if key[1] == "tool" else 0
        call = Call(len(self.calls), caller, key, n, session, client, went_on=former is not None)
        self.calls.append(call)
        self.tally["calls"] += 1
        self.nursery.start_soon(self._run, call, at)

    async def _run(self, call: Call, at: MrtrRound | None) -> None:
        call.begun = True
        server, kind, name = call.key
        params: dict[str, Any] = {"_meta": {CALL_KEY: call.number}}
        if kind == "resource":
            params["uri"] = f"{server}+{name}"
        else:
            params |= {"name": f"{server}__{name}"}
        if kind == "tool":
            params["arguments"] = {"n": call.n}
        try:
            with call.scope:
                if call.client is not None:
                    call.answer = await call.client.request(METHODS[kind], params, id=1000 + call.number)
                else:
                    identity = call.identity
                    abilities: dict[str, Any] = {"elicitation": {"form": {}}}
                    call.answer = await self.world.mrtr_round(
                        METHODS[kind], params, at, identity=identity, capabilities=abilities
                    )
                    if isinstance(call.answer, InputRequired):
                        self.unfinished.append((call, call.answer))
                        self.goes_on[call.key, identity, call.n] += 1
        except (Refusal, ColonnadeError) as refusal:
            call.answer = refusal
            self.tally[f"refused {refusal.code}"] += 1
        finally:
            call.done = True

    def cancel(self, one: int, two: int) -> None:
        waiting = [call for call in self.calls if call.begun and not call.done and not call.lost]
        if waiting:
            call = waiting[one % len(waiting)]
            call.cancelled = self.tick
            if call.client is not None:
                call.client.notifies("notifications/cancelled", {"requestId": 1000 + call.number})
            else:
                call.scope.cancel()
            self.tally["called off"] += 1

    def leave(self, one: int, two: int) -> None:
        """A client ends its session, and comes back with another one."""
        at = one % SESSIONS
        former = self.clients[at]
        former.session.end()
        for call in self.calls:
            if call.client is former and not call.done and call.cancelled is None:
                call.cancelled = self.tick
        for each in self.given.values():
            each.void = each.void or (each.session is not None and each.session is former.session.mark)

        async def come() -> None:
            self.clients[at] = await self._client(at)

        self.tally["sessions ended"] += 1
        self.forms = [form for form in self.forms if form[0] is not former]
        self.samplings = [each for each in self.samplings if each[0] is not former]
        self.nursery.start_soon(come)

    def form(self, one: int, two: int) -> None:
        """A client answers for itself."""
        if not self.forms:
            return
        client, request = self.forms.pop(one % len(self.forms))
        message = json.loads(bytes(request.params or b"{}"))["message"]
        calls = [
            call
            for call in self.calls
            if call.client is client
            and not call.done
            and f"The {call.key[1]} {call.key[2]} of {call.key[0]} " in message
            and (call.key[1] != "tool" or f'"n": {call.n}' in message or f'"n":{call.n}' in message)
        ]
        answer = ("once", "session", "once", "deny")[two % 4]
        if calls and answer != "deny":
            self.said_by_client.append((calls[0], answer))
        client.replies(request.id, {"action": "accept", "content": {"answer": answer}})

    def probe(self, one: int, two: int) -> None:
        """A denied entry gets the same answer as one that does not exist."""
        caller = self.clients[one % SESSIONS]

        async def compare() -> None:
            found: list[bytes] = []
            for _ in range(2):  # something else may happen between the two
                found = [await answer(name) for name in ("wipe", "wips")]
                if found[0] == found[1]:
                    return
                await wait_all_tasks_blocked()
            self.must(False, f"what is denied can be told from what is not there: {found}")

        async def answer(name: str) -> bytes:
            request = Request(f"probe {two}", "tools/call", encode({"name": f"plain__{name}", "arguments": {"n": 2}}))
            answered = await caller.answer(request)
            return b"" if answered is None else write(answered).replace(name.encode(), b"NAME")

        self.tally["probes"] += 1
        self.nursery.start_soon(compare)

    # Steps: servers

    def change(self, one: int, two: int) -> None:
        key = TARGETS[one % len(TARGETS)]
        definition = self.definitions[key]
        definition.version = {0: 1, 1: 2, 2: None, 3: 3}[two % 4]
        self._list(key)
        player = self.players[key[0]]
        method = f"notifications/{LISTS[key[1]]}/list_changed"

        async def tells() -> None:
            with suppress(LinkLost):
                await (player.tells if player.stateless else player.notifies)(method)

        if player.link is not None:
            self.nursery.start_soon(tells)
        self.tally["changes"] += 1

    def program(self, one: int, two: int) -> None:
        """What the command of a server stands for is another program, or the former one."""
        server = ("plain", "shady", "free")[one % 3]
        self._start(server, ("/bin/one", "/bin/two")[two % 2])

    def _start(self, server: str, program: str) -> None:
        self.programs[server] = program
        declared = launch_of(self.players[server].spec).declared
        run_inline(self.world.gate.definitions.observe_launch(server, Launch(declared, program)))

    def ask(self, one: int, two: int) -> None:
        """A server wants the client's model for a call that it works on."""
        player = self.players["plain"]
        if player.held and player.link is not None:
            text = {"type": "text", "text": str(NUMBERS[two % 4])}
            params = {"messages": [{"role": "user", "content": text}], "maxTokens": 5}

            async def asks() -> None:
                with suppress(Refusal, LinkLost):
                    await player.asks("sampling/createMessage", params)

            self.nursery.start_soon(asks)

    def finish(self, one: int, two: int) -> None:
        held = self.players["plain"].held
        if held:
            held.pop(one % len(held))[1].set()

    # Steps: people

    def answer(self, one: int, two: int) -> None:
        questions = run_inline(self.admin.sections_in_steps(["confirmations"]))["confirmations"]
        if not questions:
            return
        question = questions[one % len(questions)]
        answer = ("once", "once", "session", "time", "always", "deny", "once", "always")[two % 8]
        arguments = ("exact", "any", "some")[one // 8 % 3]
        pending = next(
            each for each in self.world.gate.authorizer.confirmations.list_all() if each.id == question["id"]
        )
        seconds = 100 if answer == "time" else None
        expires = self.now() + 100 if answer == "time" else self.now() + 600 if answer == "once" else None
        self.said[question["id"]] = (answer, arguments, pending, expires, question["state"] == "refused")
        with suppress(AdminError):
            told: Any = {"n": {"in": [2, 3]}} if arguments == "some" else arguments
            run_inline(self.admin.answer(question["id"], answer, seconds, told, Channel.CONSOLE))
            self.read_audit()
            self.tally["answered"] += 1
        self.said.pop(question["id"], None)

    def deny_all(self, one: int, two: int) -> None:
        """A person denies all that they see of one server, while more may come."""
        questions = run_inline(self.admin.sections_in_steps(["confirmations"]))["confirmations"]
        if not questions:
            return
        server = questions[one % len(questions)]["server"]
        shown = [each["id"] for each in questions if each["server"] == server][: 1 + two % 5]
        before = {each.id: list(each.waiters) for each in self.world.gate.authorizer.confirmations.list_all()}
        with suppress(AdminError):
            run_inline(self.admin.deny_all(server, shown, Channel.CONSOLE))
            self.tally["denied all"] += 1
        after = {each.id for each in self.world.gate.authorizer.confirmations.list_all()}
        self.must(set(before) - after == set(shown), "not exactly the confirmations that were shown are denied")
        self.must(
            all(waiter.refusal is not None for id in shown for waiter in before[id]), "a call waits though it is denied"
        )
        self.must(
            all(waiter.refusal is None for id in after for waiter in before[id] if not waiter.settled.is_set()),
            "a call is denied that was not shown",
        )

    def decide(self, one: int, two: int) -> None:
        held = sorted(
            run_inline(self.admin.sections_in_steps(["held"]))["held"], key=lambda each: (each["kind"], each["name"])
        )
        if not held or two % 4 == 3:
            self._take_back(one)
            return
        found = held[one % len(held)]
        decision = ("approve", "reject", "approve")[two % 3]
        key = (found["server"], found["kind"], found["name"])
        with suppress(AdminError):
            run_inline(self.admin.decide(Item(*key), found["fingerprint"], decision, Channel.CONSOLE))
            self.tally[f"decided {decision}"] += 1
            if found["kind"] == "launch":
                program = json.loads(found["text"])["program"]
                if decision == "approve":
                    self.approved_programs[found["server"]] = program
                return
            version = int(json.loads(found["text"])["description"][1:])
            if decision == "approve":
                self.definitions[key].approved = version
            self.definitions[key].closed = decision != "approve"

    def _take_back(self, one: int) -> None:
        key = TARGETS[one % len(TARGETS)]
        with suppress(AdminError):
            run_inline(self.admin.decide(Item(*key), "", "revoke", Channel.CONSOLE))
            self.definitions[key].approved, self.definitions[key].closed = None, True
            self.tally["approvals taken back"] += 1

    def revoke(self, one: int, two: int) -> None:
        grants = run_inline(self.admin.sections_in_steps(["grants"]))["grants"]
        if grants:
            id = grants[one % len(grants)]["id"]
            with suppress(AdminError):
                run_inline(self.admin.revoke(id, Channel.CONSOLE))
                if id in self.given:
                    self.given[id].void = True
                self.tally["grants revoked"] += 1

    def come(self, one: int, two: int) -> None:
        """Somebody is there who can answer."""
        if not self.attached:
            self._present = self.admin.attach(Channel.CONSOLE)
            self._present.__enter__()
            self.attached = True

    def go(self, one: int, two: int) -> None:
        if self.attached:
            self._present.__exit__(None, None, None)
            self.attached = False

    def reload(self, one: int, two: int) -> None:
        self.variant = (0, 1, 2, 3, 4, 0, 0, 0)[one % 8]
        self._respecify()
        former, self.config = self.config, self._config()
        self.control.config = self.config
        self.world.gate.replace(self.config.servers)
        run_inline(self.world.gate.authorizer.grants.store_revocations())
        self.world.upstreams.apply(self.config.servers, difference(former, self.config).restart)
        for each in self.given.values():
            each.void = each.void or each.rule not in asking(self.variant, each.key[0])
        self.tally["reloads"] += 1

    # Steps: the machine

    def fail(self, one: int, two: int) -> None:
        """The audit cannot be written any more."""
        if not self.broken:
            self._good = os.dup(self.descriptor)
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, self.descriptor)
            os.close(full)
            self.broken = True
            self.tally["audit fails"] += 1

    def mend(self, one: int, two: int) -> None:
        if self.broken:
            os.dup2(self._good, self.descriptor)
            os.close(self._good)
            self.broken = False

    def time(self, one: int, two: int) -> None:
        self.clock.jump((1, 20, 60, 30, 5, 110, 700, 4000)[two % 8])

    def rest(self, one: int, two: int) -> None:
        """Nothing; sometimes long enough for all to see what happened."""


STEPS = {
    "call": 14,
    "answer": 10,
    "deny_all": 2,
    "change": 3,
    "decide": 3,
    "cancel": 2,
    "leave": 1,
    "reload": 2,
    "crash": 1,
    "again": 3,
    "form": 2,
    "program": 1,
    "ask": 4,
    "finish": 1,
    "probe": 1,
    "revoke": 1,
    "go": 1,
    "come": 3,
    "fail": 1,
    "mend": 4,
    "time": 2,
    "rest": 2,
}


def _number(pending: Any) -> int:
    given = json.loads(pending.context.raw_arguments)
    if "messages" in given:
        return int(given["messages"][0]["content"]["text"])
    found: int = given.get("n", 0)
    return found


def _canonical_digest(n: int) -> str:
    """Of the arguments of a call of a tool with `n`: two calls may be answered at once and recorded in any order."""
    return f"sha256:{hashlib.sha256(encode({'n': n})).hexdigest()}"


@contextmanager
def clock_of(clock: MockClock) -> Iterator[None]:
    """The wall clock goes with the clock of the script for the block, and no work is cut short by the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: 1_800_000_000.0 + clock.current_time())
        patch.setattr(admin_state, "COMPARE_BUDGET", math.inf)
        yield


def play(script: list[Step], client_answers: bool) -> Machine:
    clock = MockClock()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, clock_of(clock):
        machine = Machine(Path(folder) / "state", clock, client_answers)
        trio.run(machine.play, script, clock=clock)
    assert machine.problems == [], "\n".join(machine.problems)
    return machine


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_is_dispatched_without_a_live_matching_grant(shard: int) -> None:
    """And nothing waits for ever, and what is denied cannot be told from what is not there."""
    tally: Counter[str] = Counter()

    @settings(max_examples=PLAYED, database=None, suppress_health_check=list(HealthCheck))
    @given(script=scripts(STEPS, first=31, second=15, min_size=15, max_size=60))
    def holds(script: list[Step]) -> None:
        tally.update(play(script, client_answers=shard % 2 == 1).tally)
        tally["interleavings"] += 1

    holds()
    print(f"{tally['interleavings']} interleavings without fault, in which:")
    print(", ".join(f"{what}: {count}" for what, count in tally.most_common()))
    assert tally["interleavings"] >= PLAYED
    assert tally["dispatched by a grant"] >= PLAYED / 10  # it is not only refusals that were tried
