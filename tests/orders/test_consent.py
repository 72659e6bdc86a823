"""Consent under any order of events: scripts of calls, answers, changes, decisions, cancels, disconnects, reloads,
crashes and failing audits, played to a whole host between scripted clients and servers.

Beside the host runs a second, much simpler account of what people said, kept here: which definitions stand, what the
rules of the moment say, and which answers are good for what. Whatever leaves the host for a server, or for a client on
a server's behalf, is held against it at the very moment at which it leaves.
"""

from __future__ import annotations

import hashlib
import itertools
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
from msgspec import Raw, structs
from trio.testing import MockClock, wait_all_tasks_blocked

from config import (
    AskSpec,
    CallerSpec,
    Channel,
    Check,
    Condition,
    Config,
    Consent,
    Eras,
    KindConsent,
    Listen,
    Rule,
    ToolClaim,
    Trust,
    Verdict,
    load,
)
from config.diff import difference
from config.model import Limits
from host.admin import state as admin_state
from host.admin.host_admin import HostAdmin
from host.admin.schema import AdminError
from host.audit.verify import Integrity
from host.audit.writer import _File
from host.errors import ColonnadeError
from host.exchange import Answered, InputRequired, MrtrRound
from host.journal import InternalError
from host.jsonrpc.messages import Notification, Request, read, write
from host.jsonrpc.raw import encode, members
from host.policy.fingerprint import Launch, launch_of
from host.policy.grants import AccessRequest
from host.policy.pins import Pins, StaleDecision
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Endpoint, EntryRef, Source
from host.storage.store import StateError
from host.subject import Item
from host.upstream.state import Ready
from host.wire.link import Link, LinkLost
from tests.host.audit.kit import verify
from tests.kit.awaited import awaited
from tests.kit.control import FakeControl
from tests.kit.gates import store_opener
from tests.kit.memory import MemoryLink
from tests.kit.scripts import Step, scripts
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, open_world
from tests.reference import UNTOLD, opinion

PLAYED = int(os.environ.get("COLONNADE_CONSENT_SCRIPTS", "60"))
"""Scripts that each of the SHARDS plays; more of them for a run that has the time. Each takes about 0.1 s of the
processor, and all of them must end within the timeout of a test on a busy machine."""
SHARDS = 2
STATELESS = "2026-07-28"
CALL_KEY = "test.example/call"
SOURCE = Path("/nowhere/colonnade.yaml")
OVERTIME = 400.0
"""Seconds after which whatever was begun has ended by itself."""

Key = tuple[str, str, str]
"""Server, kind and name."""
Offered = tuple[str, str, str, str]
"""The same, as it is listed in one era."""
ERAS = {"plain": ("session",), "shady": ("session",), "free": ("stateless",), "wary": ("session", "stateless")}
WORDS = {"session": "with a session", "stateless": "without a session"}

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
    ("wary", "tool", "look"),
    ("wary", "tool", "edit"),
    ("wary", "tool", "look"),
    ("wary", "tool", "edit"),
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

READ_ONLY, DESTRUCTIVE, CLOSED, OPEN = (
    (ToolClaim.READ_ONLY,),
    (ToolClaim.DESTRUCTIVE,),
    (ToolClaim.CLOSED_WORLD, ToolClaim.READ_ONLY),
    (ToolClaim.OPEN_WORLD,),
)
ANNOTATIONS: dict[int, dict[str, Any]] = {
    1: {"readOnlyHint": True},
    2: {"readOnlyHint": "true", "destructiveHint": True},
    3: {"readOnlyHint": True, "destructiveHint": True, "openWorldHint": False},
    4: {"destructiveHint": False},
}
"""The annotations of a tool of the wary server, by its version. They may be a lie, and contradict itself."""


def word(of: str) -> Consent:
    """As a file has it."""
    text = f"servers: {{wary: {{command: [x], consent: {of}}}}}"
    return load(SOURCE, {}, data=text.encode()).servers["wary"].consent


def tools(
    allow: tuple[Rule, ...] | None = None,
    ask: tuple[Rule, ...] = (),
    deny: tuple[Rule, ...] = (),
    default: Verdict | None = None,
) -> Consent:
    return Consent(tools=KindConsent(allow, ask, deny, default))


READERS = tools((Rule("*", claims=READ_ONLY),), default=Verdict.ASK)
MIXED = tools(
    (Rule("*", claims=CLOSED), Rule("edit", among("eq", 2), claims=READ_ONLY)),
    (Rule("look", claims=READ_ONLY),),
    (Rule("*", claims=DESTRUCTIVE),),
    default=Verdict.ASK,
)
ANNS = tools((Rule("look", callers=("ann",)), Rule("edit", among("eq", 2), claims=READ_ONLY, callers=("ann", "ben"))))
SHARED = tools(
    (Rule("*", claims=READ_ONLY, callers=("ann",)),),
    (Rule("edit", callers=("ben",)),),
    (Rule("look", among("eq", 7), callers=("ann", "ben")), Rule("edit", claims=DESTRUCTIVE, callers=("ann",))),
    default=Verdict.ASK,
)
WARY: list[tuple[Consent, Consent, Trust]] = [
    (word("read-only"), READERS, Trust.STANDARD),
    (word("read-only"), READERS, Trust.UNTRUSTED),
    (MIXED, MIXED, Trust.STANDARD),
    (word("careful"), tools(default=Verdict.ASK), Trust.STANDARD),
    (word("read-only"), READERS, Trust.TRUSTED),
    (tools(None, (Rule("*", claims=OPEN),)),) * 2 + (Trust.STANDARD,),
    (tools((Rule("*", claims=READ_ONLY),), (Rule("edit", claims=DESTRUCTIVE),)),) * 2 + (Trust.STANDARD,),
    (word("closed"), tools(default=Verdict.DENY), Trust.UNTRUSTED),
    (ANNS,) * 2 + (Trust.STANDARD,),
    (SHARED,) * 2 + (Trust.STANDARD,),
    (tools(None, (Rule("look", callers=("ben",)),), (Rule("edit", callers=("ann",)),)),) * 2 + (Trust.UNTRUSTED,),
]
"""The rules of the wary server, as the host has them, as they are meant, and the trust in it."""


ALICE, BOB = CallerSpec("alice"), CallerSpec("bob")
NAMED: list[dict[str, CallerSpec]] = [{"ann": ALICE, "ben": BOB}, {"ann": ALICE}, {"ann": BOB, "ben": ALICE}, {}]
"""The callers by their names in rules."""
CALLERS = ("", "ann", "ben")


def judged(rules: int, name: str, n: int, told: object, caller: str) -> tuple[str, frozenset[str]]:
    """The verdict on a call of a tool of the wary server, and names for the rules that could decide. `told`: its
    annotations, or UNTOLD; `caller`: its name in rules, or empty."""
    _, consent, trust = WARY[rules]
    found = opinion(consent, trust, "tools", name, {"n": n}, told, caller)
    return found.verdict, frozenset(map(repr, found.rules)) or frozenset([found.said])


def consents(variant: int, rules: int = 0) -> dict[str, tuple[Consent, Trust]]:
    write = Rule("wri*" if variant == 1 else "write")
    ask = [Rule("pay", among("range", (3, None))), Rule("read", callers=("ann",))]
    ask += [write] if variant not in (2, 3) else []
    deny = [Rule("wipe"), Rule("read", among("eq", 7)), Rule("write", callers=("ben",))]
    deny += [write] if variant == 3 else []
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
        "wary": (WARY[rules][0], WARY[rules][2]),
    }


def meant(variant: int, key: Key, n: int, caller: str) -> tuple[str, str]:
    """The verdict on a call, and a name for the rule that asks. `caller`: its name in rules, or empty."""
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
        return (
            ("deny", "")
            if caller == "ben"
            else {2: ("allow", ""), 3: ("deny", ""), 1: ("ask", "wri*")}.get(variant, ("ask", "write"))
        )
    if name == "pay":
        return ("ask", "pay") if n >= 3 else ("allow", "")
    if name == "read":
        return ("deny", "") if n == 7 else ("ask", "read by ann") if caller == "ann" else ("allow", "")
    return ("allow", "") if name == "hold" else ("deny", "")


def asking(variant: int, rules: int, server: str) -> set[str]:
    """The rules of a server by which a person may be asked."""
    if server == "wary":
        cases = itertools.product(("look", "edit"), NUMBERS, (UNTOLD, *ANNOTATIONS.values()), CALLERS)
        asked = [judged(rules, *case) for case in cases]
        return {rule for verdict, named in asked if verdict == "ask" for rule in named}
    keys = {key for key in TARGETS if key[0] == server} | ({(server, "sampling", "sampling")} - {("shady",) * 3})
    found = [meant(variant, *case) for case in itertools.product(keys, NUMBERS, CALLERS)]
    return {rule for verdict, rule in found if verdict == "ask"}


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
    versions: set[int | None]
    program: str
    rules: set[str]
    expires: float | None
    tick: int
    spent: bool = False
    void: bool = False


@dataclass(eq=False)
class Definition:
    """One entry as its server lists it in one era, and what people think of it."""

    version: int | None = 1
    """None while it is not listed."""
    known: set[int | None] = field(default_factory=set)
    """What the host may take it for: it is told a moment later."""
    served: int | None = None
    last: int | None = None
    """The last one of those that were ever served."""
    approved: int | None = None
    by_person: bool = False
    """It was a person who approved, and not the trust in the server."""
    closed: bool = False
    """A person took it back or rejected it: nothing is approved by itself any more."""
    former: tuple[int | None, bool] | None = None
    """The approval, and whether it was a person's, before another process decided: the host looks a moment later."""

    def stands(self, trust: Trust) -> bool:
        """Whether what was offered last may be used."""
        if trust is Trust.TRUSTED:
            return True
        return self.approved is not None and self.approved == self.last and (self.by_person or trust is Trust.STANDARD)

    def approves(self, trust: Trust) -> Iterator[tuple[int, bool]]:
        """The versions that may be used, and whether their claims count."""
        known = (self.known or {self.served}) - {None}
        for approved, by_person in filter(None, ((self.approved, self.by_person), self.former)):
            for version in known:
                holds = version == approved and (by_person or trust is Trust.STANDARD)
                if version is not None and (trust is Trust.TRUSTED or holds):
                    yield version, by_person or trust is Trust.TRUSTED

    def approve(self, version: int) -> None:
        self.approved, self.by_person, self.closed = version, True, False


class Tapped(MemoryLink):
    """The host's end of a link, with an ear at it."""

    def __init__(self, link: MemoryLink, player: Player) -> None:
        super().__init__(link._outgoing, link._incoming)
        self._player = player
        self._era = "stateless"

    def write_bytes(self, data: bytes, about: int | str | None = None) -> None:
        message = read(data)
        if isinstance(message, Request) and message.method == "initialize":
            self._era = "session"
        if isinstance(message, Request) and message.method in KINDS:
            self._player.machine.leaves(self._player.id, message, self._era)
        super().write_bytes(data, about)


class Player(ScriptedServer):
    def __init__(self, id: str, machine: Machine, **more: Any) -> None:
        self.machine = machine
        offers = {LISTS[kind]: {"listChanged": True} for server, kind, _ in TARGETS if server == id}
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
        n, stateless = params["arguments"]["n"], self._answers_statelessly
        if params["name"] == "hold":
            released = trio.Event()
            self.held.append((n, released))
            await released.wait()
        more = {"resultType": "complete"} if stateless else {}
        if stateless and n != 7 and "requestState" not in params:
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
            if method == f"{member}/list" and found is not None:
                era = "stateless" if self._answers_statelessly else "session"
                self.machine.serves(self.id, kind, found[member], era)
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
        self.definitions: dict[Offered, Definition] = {
            (*key, era): Definition() for key in TARGETS for era in ERAS[key[0]]
        }
        self.definitions["wary", "tool", "edit", "stateless"].version = 2  # another one from the beginning
        self.variant = self.rules = self.named = 0
        self.programs = dict.fromkeys(ERAS, "/bin/one")
        self.approved_programs = dict(self.programs)
        self.moved: set[str] = set()
        """The servers whose program was another one at some time."""
        self.swapped: set[Key] = set()
        """Entries that list in each era what was approved in the other one."""
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
            "wary": Player("wary", self, revision=STATELESS, session_revision="2025-11-25", eras=Eras.BOTH),
        }
        self.players["wary"].session_lists = {member: [] for member in self.players["wary"].lists}
        for key in self.definitions:
            self._list(key)

    def _list(self, key: Offered) -> None:
        server, kind, name, era = key
        player = self.players[server]
        entries = (player.session_lists if era == "session" else player.lists)[LISTS[kind]]
        entries[:] = [each for each in entries if each[NAMES[kind]] != name]
        version = self.definitions[key].version
        if version is not None:
            entry: dict[str, Any] = {NAMES[kind]: name, "description": f"v{version}"}
            if kind == "tool":
                entry["inputSchema"] = {"type": "object"}
            if server == "wary":
                entry["annotations"] = ANNOTATIONS[version]
            if kind == "resource":
                entry["name"] = name
            entries.append(entry)

    # The account

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)

    def serves(self, server: str, kind: str, entries: list[dict[str, Any]], era: str) -> None:
        """The host is told what a server lists."""
        versions = {each[NAMES[kind]]: int(each["description"][1:]) for each in entries}
        for key, definition in self.definitions.items():
            if (key[0], key[1], key[3]) == (server, kind, era):
                definition.served = versions.get(key[2])
                definition.known.add(definition.served)
                if definition.served is not None:
                    definition.last = definition.served
                    self._seen(key, definition.served)

    def _seen(self, key: Offered, version: int) -> None:
        """Approve what needs no person, or was approved in the other era."""
        definition, trust = self.definitions[key], self.trust(key[0])
        others = [each for of, each in self.definitions.items() if of[:3] == key[:3] and of != key]
        if definition.approved == version or definition.closed:
            return
        for other in others:
            if other.approved == version:
                if other.version not in (other.served, None) and other.version == definition.approved:
                    # The eras swap what they list, at one moment: the approval goes to whichever is taken up first.
                    definition.former = (definition.approved, definition.by_person)
                    other.former = (definition.approved, definition.by_person)
                    self.swapped.add(key[:3])
                definition.approved, definition.by_person = version, other.by_person
                return
        first = trust is Trust.STANDARD and definition.approved is None
        if trust is Trust.TRUSTED or (first and not any(other.closed or other.by_person for other in others)):
            definition.approved, definition.by_person = version, False

    def trust(self, server: str) -> Trust:
        return consents(self.variant, self.rules)[server][1]

    def may_run(self, server: str) -> bool:
        return self.trust(server) is Trust.TRUSTED or self.programs[server] == self.approved_programs[server]

    def eras_of(self, key: Key) -> list[Definition]:
        """An entry, as it is listed in each era."""
        return [each for of, each in self.definitions.items() if of[:3] == key]

    def name_of(self, identity: str | None) -> str:
        """The name by which rules know a caller now."""
        return next((name for name, caller in NAMED[self.named].items() if caller.token == identity), "")

    def meant(self, key: Key, n: int, identity: str | None, era: str | None = None) -> tuple[set[str], set[str]]:
        """The verdicts that are right for a call now, and the rules by which a person may be asked; more than one while
        the host may not know yet what has changed. Without an era, of both."""
        if key[0] != "wary":
            verdict, rule = meant(self.variant, key, n, self.name_of(identity))
            return {verdict}, {rule}
        told = [each for of in ((era,) if era else ERAS["wary"]) for each in self._told((*key, of))]
        found = [judged(self.rules, key[2], n, each, self.name_of(identity)) for each in told or [UNTOLD]]
        return {verdict for verdict, _ in found}, {rule for verdict, of in found if verdict == "ask" for rule in of}

    def _told(self, key: Offered) -> list[object]:
        """The annotations that a tool of the wary server may have by definitions that may be used now; UNTOLD if they
        do not count."""
        approved = self.definitions[key].approves(self.trust(key[0]))
        return [ANNOTATIONS[version] if counts else UNTOLD for version, counts in approved]

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
            versions={each.served for each in self.eras_of(key)},
            program=self.programs[key[0]],
            rules=self.meant(key, n, identity)[1],
            expires=expires,
            tick=self.tick,
        )
        self.tally[f"granted {answer}"] += 1

    def leaves(self, server: str, request: Request, era: str) -> None:
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
        definition = self.definitions[(*key, era)]
        known = (definition.known or {definition.served}) - {None}
        self.must(
            not known or any(definition.approves(self.trust(server))),
            f"{what} left with a definition that is not approved: {known}",
        )
        self.must(self.may_run(server), f"{what} left though its program is another one")
        sent = bytes(members(request.params or b"{}").get("arguments", Raw(b"{}")))
        self._consented(call, key, call.n, what, f"sha256:{hashlib.sha256(sent).hexdigest()}", era)

    def _consented(
        self, call: Call, key: Key, n: int, what: str, digest: str | None = None, era: str | None = None
    ) -> None:
        """`digest` is of the arguments that leave: of several decisions that were written down, theirs."""
        verdicts, rules = self.meant(key, n, call.identity, era)
        self.must(verdicts != {"deny"}, f"{what} left though it is denied")
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
        if "allow" in verdicts and (record["verdict"] == "allow" or not rules):
            self.tally["dispatched by claims"] += key[0] == "wary"
            return
        self.tally["dispatched by a grant"] += 1
        self.tally["asked about one caller"] += "read by ann" in rules
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
        self.must(bool(given.rules & rules), f"{what} left by a grant for the rules {given.rules}, not {rules}")
        self.must(given.expires is None or self.now() < given.expires, f"{what} left by a grant that is over")
        if era is not None:
            known = self.definitions[(*key, era)].known or {self.definitions[(*key, era)].served}
            self.must(bool(given.versions & known), f"{what} left by a grant for versions {given.versions}")
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
            definition.known, definition.former = set(), None
        self.forms, self.samplings, self.unfinished, self.said = [], [], [], {}
        self.said_by_client, self.asked_at, self.decisions = [], {}, []

    async def _live(self, steps: Iterator[Step]) -> bool:
        """One life of the host; whether it crashed."""
        self._respecify()
        answers = (Channel.CONSOLE, Channel.CLIENT) if self.client_answers else (Channel.CONSOLE,)
        async with (
            open_world(
                *self.players.values(), ask=AskSpec(answers, 50.0), state=self.folder, callers=NAMED[self.named]
            ) as world,
            trio.open_nursery() as nursery,
        ):
            self.world, self.nursery = world, nursery
            world.gate.authorizer.grants._wall, world.gate.authorizer.grants._monotonic = self.now, self.now
            self.config = self._config()
            self.control = FakeControl(self.config)
            self.admin = HostAdmin(self.control, world.runtime, world.upstreams, world.router, stdio=False)
            world.gate.decision_log.record_configuration("config", SOURCE)
            file = world.gate.decision_log._audit._file
            assert isinstance(file, _File)
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
        for id, (consent, trust) in consents(self.variant, self.rules).items():
            player = self.players[id]
            player.spec = replace(player.spec, consent=consent, trust=trust)

    def _config(self) -> Config:
        return Config(
            source=SOURCE,
            listen=Listen(),
            start_grace=3.0,
            servers={id: player.spec for id, player in self.players.items()},
            callers=NAMED[self.named],
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
        self.said_by_client = []  # what came too late, or was not written down
        self._look_swapped()
        self._look_elsewhere()
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
            era = None if access.ref is None else "session" if access.ref.source.era is Era.SESSION else "stateless"
            version = None if era is None else self.definitions[(*key, era)].served
            now = (version, self.programs[access.subject.item.server])
            if self.asked_at.setdefault(pending.id, now) != now:
                self.must(now[0] is None, f"a question about {key} is not void though that has changed")
            if not pending.refused:
                self.must(pending.waiters != [], "a question waits for nobody")
                if era is None or version is not None:  # what rules say of an entry's claims ends with the entry
                    asks = self.meant(key, _number(pending), access.subject.caller, era)[0]
                    self.must(asks == {"ask"}, f"asked about what is not to be asked: {key} {asks}")

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
            always = ERAS[key[0]][-1] == key[3]  # there is a session with the wary server only while it is used
            if always and isinstance(self.world.upstreams.by_id[key[0]].main.state, Ready):
                self.must(definition.served == definition.version, f"{key} was never listed anew")

        await self._lists()

    async def _lists(self) -> None:
        """Callers of each era see of the wary server what the rules show them, as it was approved."""
        lists: dict[tuple[str, str], list[str]] = {}
        for caller in ("", *NAMED[self.named]):
            answer = await self.world.mrtr_round("tools/list", {}, endpoint=Endpoint(caller=caller))
            assert isinstance(answer, Answered)
            lists["stateless", caller] = [each["name"] for each in json.loads(bytes(answer.result))["tools"]]
        player = self.players["wary"]
        if player.session in player.open_links:  # a list would open it
            lists["session", ""] = await self.clients[0].names()
        _, consent, trust = WARY[self.rules]
        for (era, caller), names in lists.items():
            for name in ("look", "edit"):
                told = self._told(("wary", "tool", name, era))
                shown = [opinion(consent, trust, "tools", name, None, each, caller).shown for each in told]
                listed = f"wary__{name}" in names
                self.must(
                    listed == (shown == [True]) or ("wary" in self.moved and not listed),
                    f"{name} is listed: {listed}; {era}, {caller}, {shown}",
                )
                self.tally["hidden by claims"] += shown == [False]

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
        answer = ("once", "session", "once", "deny", "always", "", "cancel", "decline")[two % 8]
        if calls and answer in ("once", "session"):
            self.said_by_client.append((calls[0], answer))
        self.tally[f"form: {answer or 'no choice'}{'' if calls else ', late'}"] += 1
        content = {"answer": answer} if answer else {}
        client.replies(request.id, {"action": answer} if two % 8 > 5 else {"action": "accept", "content": content})

    def both(self, one: int, two: int) -> None:
        """A client and a person answer at the same moment, in either order."""
        for each in (self.form, self.answer) if one % 2 else (self.answer, self.form):
            each(one // 2, two)

    def probe(self, one: int, two: int) -> None:
        """A denied entry gets the same answer as one that does not exist, also one that is denied by what it claims."""
        at, (server, denied) = one % SESSIONS, (("plain", "wipe"), ("wary", "edit"), ("plain", "write"))[two % 3]
        caller, identity = self.clients[at], IDENTITIES[at]

        async def compare() -> None:
            found: list[bytes] = []
            for _ in range(2):  # something else may happen between the two
                is_denied = self.hides(server, denied, identity)
                found = [await answer(name) for name in (denied, denied[:3] + "z")]
                if b"" in found or found[0] == found[1] or not (is_denied and self.hides(server, denied, identity)):
                    return
                await wait_all_tasks_blocked()
            self.must(False, f"what is denied can be told from what is not there: {found}")

        async def answer(name: str) -> bytes:
            # As any call: other rules, which come in between, may let it leave, and it is accounted for then.
            call = Call(len(self.calls), at, (server, "tool", name), 2, caller.session.mark, caller, begun=True)
            self.calls.append(call)
            params = {"_meta": {CALL_KEY: call.number}, "name": f"{server}__{name}", "arguments": {"n": call.n}}
            try:
                answered = await caller.answer(Request(1000 + call.number, "tools/call", encode(params)))
            finally:
                call.done = True
            if answered is None:
                is_over = call.cancelled is not None or caller.session.ended.is_set()
                self.must(is_over, "a call that nobody called off gets no answer")
                return b""
            return write(structs.replace(answered, id=0)).replace(name.encode(), b"NAME")

        if self.hides(server, denied, identity):
            self.tally[f"probes of {server}"] += 1
            self.nursery.start_soon(compare)

    def hides(self, server: str, name: str, identity: str | None) -> bool:
        """Whether the client may not know the tool, whatever is under way."""
        caller = self.name_of(identity)
        if server != "wary":
            return name == "wipe" or caller == "ben" or self.variant == 3
        _, consent, trust = WARY[self.rules]
        told = self._told((server, "tool", name, "session")) or [UNTOLD]
        return not any(opinion(consent, trust, "tools", name, None, each, caller).shown for each in told)

    # Steps: servers

    def change(self, one: int, two: int) -> None:
        key = TARGETS[one % len(TARGETS)]
        player = self.players[key[0]]
        version = {0: 1, 1: 2, 2: None, 3: 3}[two % 4]
        if key[0] == "wary" and two == 15:
            version = 4
        eras = ERAS[key[0]] if two < 8 else ERAS[key[0]][two // 4 % 2 :][:1] or ERAS[key[0]]
        method = f"notifications/{LISTS[key[1]]}/list_changed"

        async def tells(era: str) -> None:
            with suppress(LinkLost):
                if era == "stateless":
                    await player.tells(method)
                else:
                    await player.notifies(method, link=player.session or player.link)

        for era in eras:
            self.definitions[(*key, era)].version = version
            self._list((*key, era))
            if (player.link if era != "session" or not player.stateless else player.session) is not None:
                self.nursery.start_soon(tells, era)
        self.tally["changes"] += 1

    def program(self, one: int, two: int) -> None:
        """What the command of a server stands for is another program, or the former one."""
        server = tuple(ERAS)[one % 4]
        self.moved.add(server)
        self._start(server, ("/bin/one", "/bin/two")[two % 2])

    def _start(self, server: str, program: str) -> None:
        self.programs[server] = program
        if self.trust(server) is Trust.TRUSTED:
            self.approved_programs[server] = program
        declared = launch_of(self.players[server].spec).declared
        awaited(self.world.gate.definitions.observe_launch(server, Launch(declared, program)))

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
        questions = awaited(self.admin.reader.sections(["confirmations"]))["confirmations"]
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
            awaited(self.admin.answer(question["id"], answer, seconds, told, Channel.CONSOLE))
            self.read_audit()
            self.tally["answered"] += 1
        self.said.pop(question["id"], None)

    def deny_all(self, one: int, two: int) -> None:
        """A person denies all that they see of one server, while more may come."""
        questions = awaited(self.admin.reader.sections(["confirmations"]))["confirmations"]
        if not questions:
            return
        server = questions[one % len(questions)]["server"]
        shown = [each["id"] for each in questions if each["server"] == server][: 1 + two % 5]
        known = {each.id: each for each in self.world.gate.authorizer.confirmations.list_all()}
        before = {id: list(each.waiters) for id, each in known.items()}
        with suppress(AdminError):
            awaited(self.admin.deny_all(server, shown, Channel.CONSOLE))
            self.tally["denied all"] += 1
        after = {each.id for each in self.world.gate.authorizer.confirmations.list_all()}
        # A refused one of another session, for which no call waits, is denied with the one that equals it.
        equal = {
            id
            for id, each in known.items()
            if each.refused and not before[id] and any(_is_same(each.access, known[one].access) for one in shown)
        }
        self.must(
            set(shown) <= set(before) - after <= {*shown, *equal},
            "not exactly the confirmations that were shown are denied",
        )
        self.must(
            all(waiter.refusal is not None for id in shown for waiter in before[id]), "a call waits though it is denied"
        )
        self.must(
            all(waiter.refusal is None for id in after for waiter in before[id] if not waiter.settled.is_set()),
            "a call is denied that was not shown",
        )

    def decide(self, one: int, two: int) -> None:
        held = sorted(
            awaited(self.admin.reader.sections(["held"]))["held"], key=lambda each: (each["kind"], each["name"])
        )
        if not held or two % 4 == 3:
            self._take_back(one)
            return
        found = held[one % len(held)]
        decision = ("approve", "reject", "approve")[two % 3]
        key = (found["server"], found["kind"], found["name"])
        with suppress(AdminError):
            awaited(self.admin.decide(Item(*key), found["fingerprint"], decision, Channel.CONSOLE))
            self.tally[f"decided {decision}"] += 1
            self._decided(key, found["text"], decision)

    def _decided(self, key: Key, text: str, decision: str) -> None:
        """A person has decided about what was shown to them."""
        shown = json.loads(text)
        if key[1] == "launch":
            if decision == "approve":
                self.approved_programs[key[0]] = shown["program"]
            return
        trust = self.trust(key[0])
        eras = {of[3]: each for of, each in self.definitions.items() if of[:3] == key}
        versions = {era: shown[WORDS[era]] for era in eras if WORDS[era] in shown}
        if not versions:
            of = {era: each for era, each in eras.items() if each.last == int(shown["description"][1:])}
            versions = dict.fromkeys([era for era, each in of.items() if not each.stands(trust)] or of, shown)
        for era, definition in versions.items():
            version = int(definition["description"][1:])
            if decision == "approve":
                eras[era].approve(version)
                continue
            eras[era].closed = True
            if eras[era].approved == version:  # by trust, in a time of more trust
                eras[era].approved = None

    def _take_back(self, one: int) -> None:
        key = TARGETS[one % len(TARGETS)]
        with suppress(AdminError):
            awaited(self.admin.decide(Item(*key), "", "revoke", Channel.CONSOLE))
            self._taken_back(key)
            self.tally["approvals taken back"] += 1

    def _taken_back(self, key: Key) -> None:
        for definition in self.eras_of(key):
            if definition.approved is not None:
                definition.approved, definition.by_person, definition.closed = None, False, True

    def approve_list(self, one: int, two: int) -> None:
        """A person approves what they are shown of a server, or some of it, also where nothing waits."""
        server = ("wary", "wary", "plain", "shady")[one % 4]
        rows = awaited(self.admin.definitions(server))["definitions"]
        chosen = [row for at, row in enumerate(rows) if not row["counts"] and (two % 2 or at % 2 == 0)]
        with suppress(AdminError):
            awaited(self.admin.decide_all(server, [row["fingerprint"] for row in chosen], "approve", Channel.CONSOLE))
            for row in chosen:
                self._decided((server, row["kind"], row["name"]), row["text"], "approve")
            self.tally["lists approved"] += 1

    def elsewhere(self, one: int, two: int) -> None:
        """Another process decides, and the host looks at once or a little later."""
        trusts = {server: self.trust(server) for server in ERAS}
        for definition in self.definitions.values():
            definition.former = definition.former or (definition.approved, definition.by_person)
        with store_opener(self.folder) as opened, suppress(StaleDecision, StateError):
            pins = Pins(opened(), trusts)
            held = sorted(pins.held(), key=lambda each: (each.item.server, each.item.kind, each.item.name))
            held = [each for each in held if each.item.kind != "launch"]
            key = TARGETS[one % len(TARGETS)]
            if held and two % 4 < 2:
                found = held[one % len(held)]
                if two % 4 == 0:
                    awaited(pins.approve(found.item, found.fingerprint, "terminal"))
                else:
                    awaited(pins.reject(found.item, found.fingerprint))
                key = (found.item.server, found.item.kind, found.item.name)
                self._decided(key, found.offered.decode(), "reject" if two % 4 else "approve")
            elif trusts[key[0]] is not Trust.TRUSTED:
                awaited(pins.revoke(Item(*key)))
                self._taken_back(key)
            self.tally["decided elsewhere"] += 1
        if two % 2:
            self._look_elsewhere()

    def _look_swapped(self) -> None:
        """Which era has the approval is the host's word, one of two; that it is one of them is checked."""
        pins = self.world.gate.definitions.pins
        for server, kind, name in self.swapped:
            for era in ERAS[server]:
                one = self.definitions[server, kind, name, era]
                source = Source(server, Era.STATELESS if era == "stateless" else Era.SESSION)
                text = pins.approved_definition(EntryRef(source, Kind(kind), name))
                found = None if text is None else int(json.loads(text)["description"][1:])
                both = {(one.approved, one.by_person), one.former}
                right = next((each for each in both if each is not None and each[0] == found), None)
                self.must(right is not None, f"{name} is approved as {found} in {era}, {both}")
                if right is not None:
                    one.approved, one.by_person = right
                    one.former = None
            self.tally["swapped"] += 1
        self.swapped.clear()

    def _look_elsewhere(self) -> None:
        if any(definition.former is not None for definition in self.definitions.values()):
            definitions = self.world.gate.definitions
            definitions.invalidate(awaited(definitions.pins.reread()))
            for definition in self.definitions.values():
                definition.former = None

    def revoke(self, one: int, two: int) -> None:
        grants = awaited(self.admin.reader.sections(["grants"]))["grants"]
        if grants:
            id = grants[one % len(grants)]["id"]
            with suppress(AdminError):
                awaited(self.admin.revoke(id, Channel.CONSOLE))
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

    def tell(self, one: int, two: int) -> None:
        """People who are not there can be told what waits, or cannot any more."""
        queue = self.world.gate.authorizer.confirmations
        queue.can_notify = lambda: two % 3 != 0
        queue.refuse_unattended()
        self.must(
            queue.can_be_answered() or all(each.refused or self.forms for each in queue.list_all()),
            "a question waits for people who cannot be told, and for no client",
        )
        self.tally["told" if two % 3 else "not told"] += 1

    def reload(self, one: int, two: int) -> None:
        self.variant = (0, 1, 2, 3, 4, 0, 0, 0)[one % 8]
        self.rules, self.named = two % len(WARY), one // 8 % len(NAMED)
        if self.trust("wary") is Trust.TRUSTED:
            self.approved_programs["wary"] = self.programs["wary"]
        self._respecify()
        former, self.config = self.config, self._config()
        self.control.config = self.config
        views = self.world.gate.policies.views
        views.replace(self.config)
        self.world.catalog.set_views(views, views.audiences())
        self.world.gate.replace(self.config.servers, self.config.callers)
        awaited(self.world.gate.authorizer.grants.store_revocations())
        self.world.upstreams.apply(self.config.servers, difference(former, self.config).restart)
        for each in self.given.values():
            each.void = each.void or not each.rules & asking(self.variant, self.rules, each.key[0])
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
    "approve_list": 3,
    "elsewhere": 1,
    "cancel": 2,
    "leave": 1,
    "reload": 2,
    "crash": 1,
    "again": 3,
    "form": 2,
    "both": 2,
    "program": 1,
    "ask": 4,
    "finish": 1,
    "probe": 1,
    "revoke": 1,
    "go": 1,
    "tell": 1,
    "come": 3,
    "fail": 1,
    "mend": 4,
    "time": 2,
    "rest": 2,
}


def _is_same(access: AccessRequest, other: AccessRequest) -> bool:
    """Whether two requests are the same but for their sessions."""
    ours, theirs = access.subject, other.subject
    return access.retry == other.retry and all(
        getattr(ours, name) == getattr(theirs, name) for name in ours.__struct_fields__ if name != "session"
    )


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
