"""What a host lists, says and sends while its servers start, over random histories of earlier starts.

Each history is a few lives of a host over one state directory: configurations, owners of credentials, programs,
definitions, approvals, servers that are slow, fail, or never come. Beside each life runs an account of its own, written
from the description alone and sharing no code with the host: what each server ever listed for this owner, and what
people think of it. Every answer is held against it when it comes, and every call when it reaches a server.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import (
    AskSpec,
    Channel,
    Consent,
    Eras,
    HttpServer,
    Isolation,
    KindConsent,
    Rule,
    Secret,
    Start,
    Trust,
    Verdict,
)
from config.model import Limits
from host.downstream.listen_streams import AGREEMENT_TIMEOUT, Subscription, requested_filter
from host.downstream.stateless import StatelessClient
from host.journal import InternalError
from host.jsonrpc.messages import ErrorBody, Failure, Notification, Request
from host.jsonrpc.raw import encode, members
from host.peer.outstanding import PeerError
from host.policy.pin_rules import PinStatus
from host.protocol.abilities import NO_ABILITIES
from host.protocol.stateless import take_stated
from host.source import SHARED, Endpoint
from tests.kit.asgi import IO, open_stateless
from tests.kit.awaited import awaited
from tests.kit.folders import folder
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, open_world

STARTS = int(os.environ.get("COLONNADE_STARTS", "24"))
"""Starts of a host that the SHARDS play together; more of them for a run that has the time."""
SHARDS = 2
FIRST = int(os.environ.get("COLONNADE_FIRST_START", "0"))
"""The number of the first history, to play a single one again."""
CALL_KEY = "test.example/call"
STATELESS = "2026-07-28"
GRACES = (0.0, 1.0, 4.0, 20.0)
MOST_WAITING = 100
"""Requests of one caller that may wait for servers that start."""
MISSING = "colonnade/missingServers"
SETTLING = 0.05
"""Seconds that a list waits for the reading that follows when a stateless server is first heard: its lists may have
changed since they were read, and no client gets a list that is older than what was announced."""
EPSILON = 0.01
LATEST_NOTICE = 0.6
"""Seconds after the end of the wait for servers that were never seen, within which changes are announced."""

LISTS = {"tool": "tools", "prompt": "prompts", "resource": "resources", "template": "resourceTemplates"}
METHODS = {
    "tool": "tools/list",
    "prompt": "prompts/list",
    "resource": "resources/list",
    "template": "resources/templates/list",
}
NAME = {"tool": "name", "prompt": "name", "resource": "uri", "template": "uriTemplate"}
ANNOUNCED = {
    "tool": "notifications/tools/list_changed",
    "prompt": "notifications/prompts/list_changed",
    "resource": "notifications/resources/list_changed",
    "template": "notifications/resources/list_changed",
}
ENTRIES = [("tool", "x"), ("tool", "y"), ("prompt", "p"), ("resource", "r:1"), ("template", "r:{n}")]
CALLS = {"tool": "tools/call", "prompt": "prompts/get", "resource": "resources/read"}

Entry = tuple[str, str]
"""Kind and name."""
Listed = dict[str, dict[str, int]]
"""Versions of entries by kind and name."""


# The rules, as the host has them and as they are meant

RULES: dict[str, tuple[KindConsent, Callable[[str], str | None]]] = {
    "by trust": (KindConsent(), lambda name: None),
    "deny x": (KindConsent(deny=(Rule("x"), Rule("r:1"))), lambda name: "deny" if name in ("x", "r:1") else None),
    "only y": (KindConsent(allow=(Rule("y"),)), lambda name: "allow" if name == "y" else "deny"),
    "deny all": (KindConsent(default=Verdict.DENY), lambda name: "deny"),
    "ask": (KindConsent(default=Verdict.ASK), lambda name: "ask"),
    "allow": (KindConsent(default=Verdict.ALLOW), lambda name: "allow"),
}
SHOWS_NOTHING = "deny all"


def verdict(rules: str, trust: str, name: str) -> str:
    return RULES[rules][1](name) or ("ask" if trust == "untrusted" else "allow")


# What is known of a server, over all lives


@dataclass
class Approval:
    """What people think of one definition. `version` is the approved one."""

    version: int | None = None
    by_person: bool = False
    closed: bool = False


@dataclass
class ServerAccount:
    """One server: how it is configured, what it offers, and what is known of both.

    `fate`: whether it comes up, and what becomes of it.
    """

    id: str
    trust: str
    at_url: bool
    offers: dict[Entry, int] = field(default_factory=lambda: dict.fromkeys(ENTRIES, 1))
    instructions: int = 1
    rules: str = "by trust"
    era: str = "2025-11-25"
    """Stays as it is: each era has approvals of its own, which test_changing_eras.py has for its subject."""
    isolation: str = "shared"
    owner: str = "ann"
    address: str = "one"
    program: str = "one"
    configured: bool = True
    disabled: bool = False
    lazy: bool = False
    delay: float = 0.0
    instance_delay: float = 0.0
    fate: str = "up"
    timeout: float = 30.0
    concurrent: int | None = None

    @property
    def patience(self) -> float:
        """Seconds in which a call has been sent or refused. The start of an instance of its own has its own limit."""
        own = self.instance_delay if self.fate == "up" else self.delay
        return self.timeout + (own if self.isolation != "shared" else 0.0)

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.owner, self.address, self.program


@dataclass
class Launch:
    """The program that may be started for an address."""

    address: str
    program: str


class Store:
    """What lasts from one life of the host to the next: by configuration file and server."""

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str, tuple[str, str, str]], Listed] = {}
        self.instructions: dict[tuple[str, str, tuple[str, str, str]], int] = {}
        self.last_instructions: dict[tuple[str, str], int] = {}
        """Those that each server told last, to any owner: if they are held, no others are shown in their place."""
        self.approvals: dict[tuple[str, str, str, str], Approval] = {}
        self.launches: dict[tuple[str, str], Launch] = {}


@dataclass(eq=False)
class Asked:
    """One call of a client."""

    number: int
    server: str
    entry: Entry
    at: float
    cancelled: float | None = None
    reached: int = 0
    ended: float | None = None
    outcome: str = ""
    """Empty if it was cancelled."""
    must_succeed: bool = False

    def takes(self, result: dict[str, Any] | None) -> None:
        """The answer has come; None if the request was called off."""
        if result is not None:
            self.outcome = f"refused: {result['content'][0]['text']}" if result.get("isError") else "success"


class Player(ScriptedServer):
    """A server of a script. Its first connection is the one that the host reads its lists over."""

    def __init__(self, life: Life, account: ServerAccount, spec: Any) -> None:
        self.life, self.account = life, account
        answers: dict[str, Any] = {
            "tools/call": self._carry_out,
            "prompts/get": self._carry_out,
            "resources/read": self._carry_out,
        }
        answers["server/discover" if account.era == STATELESS else "initialize"] = self._begin
        offered = {name: {"listChanged": True} for name in ("tools", "prompts", "resources")}
        super().__init__(account.id, answers=answers, revision=account.era, capabilities=offered)
        self.spec = spec
        self.ttl_ms, self.scope = 60_000, "public"
        self.up: dict[MemoryLink, trio.Event] = {}
        """Each connection that there was, and whether its process has come up."""
        self.beginning = 0
        self.working = 0
        for kind, member in LISTS.items():
            self.lists[member] = [
                self._definition(kind, name, version) for (of, name), version in account.offers.items() if of == kind
            ]

    @staticmethod
    def _definition(kind: str, name: str, version: int) -> dict[str, Any]:
        entry: dict[str, Any] = {NAME[kind]: name, "description": f"v{version}"}
        if kind == "tool":
            entry["inputSchema"] = {"type": "object"}
        elif kind != "prompt":
            entry["name"] = name
        return entry

    async def _reply(self, link: MemoryLink, request: Request) -> None:
        await self._comes_up(link)
        await super()._reply(link, request)

    async def _comes_up(self, link: MemoryLink) -> None:
        """Wait until the process of this connection reads what it is sent."""
        account = self.account
        up = self.up.get(link)
        if up is not None:
            await up.wait()
            return
        up = self.up[link] = trio.Event()
        is_instance = len(self.up) > 1 and account.fate == "up"
        self.beginning += 1
        try:
            await trio.sleep(account.instance_delay if is_instance else account.delay)
        finally:
            self.beginning -= 1
        if account.fate == "never":
            await trio.sleep_forever()
        if account.fate == "fails":
            link.close()
            await trio.sleep_forever()
        up.set()

    async def _begin(self, params: dict[str, Any]) -> object:
        self.life.introduces(self.account)
        said = f"how to {self.id} v{self.account.instructions}"
        if self.stateless:
            self.instructions = said
            return self._discovery()
        return {
            "protocolVersion": self.revision,
            "capabilities": self.capabilities,
            "serverInfo": {"name": self.id, "version": "1"},
            "instructions": said,
        }

    def _builtin(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        found = super()._builtin(method, params)
        for kind, path in METHODS.items():
            if method == path:
                if self.account.fate == "keeps its tools" and kind == "tool":
                    raise PeerError(ErrorBody(-32603, "not now"))
                self.life.lists_now(self.account, kind)
                if self.account.fate == "dies" and self.life.has_listed(self.account):
                    self.life.nursery.start_soon(self._die)
        return found

    async def _die(self) -> None:
        await wait_all_tasks_blocked()
        if self.link is not None:
            self.dies()

    async def _carry_out(self, params: dict[str, Any]) -> object:
        self.life.reached(self.account, params["_meta"][CALL_KEY])
        self.working += 1
        try:
            await trio.sleep(0.5)
        finally:
            self.working -= 1
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.stateless else {}
        return {"content": [], "messages": [], "contents": [], **more}


# One life of a host


@dataclass(eq=False)
class Viewer:
    """A client, with the lists that it saw last."""

    told: list[str]
    """The methods of the notifications that it got."""
    endpoint: str | None = None
    is_early: bool = False
    """Whether it opened its session while servers were waited for that were never seen."""
    seen: dict[str, Any] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    """How many notifications it had got when it saw the list."""

    def sees(self, kind: str, found: object) -> None:
        self.seen[kind], self.heard[kind] = found, len(self.told)


class Life:
    """One start of a host and what happens until it stops."""

    def __init__(self, history: History, random: Random) -> None:
        self.history = history
        self.random = random
        self.store = history.store
        self.config = history.config
        self.problems = history.problems
        self.tally = history.tally
        self.accounts = {each.id: each for each in history.accounts if each.configured}
        self.grace = random.choice(GRACES)
        self.person = random.random() < 0.5
        self.started = 0.0
        self.listed: dict[str, Listed] = {}
        """What each server lists or is remembered to have listed, as the host may know it now."""
        self.introduced: dict[str, int] = {}
        self.served: dict[str, set[str]] = {}
        """Kinds that each server has listed in this life, for its present owner."""
        self.renewed: dict[str, float] = {}
        """Servers that were started again in this life, and when."""
        self.disturbed: set[str] = set()
        """Servers about which something was decided or configured in this life."""
        self.calls: list[Asked] = []
        self.viewers: list[Viewer] = []

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(f"life {self.history.lives} at {self.now():.2f}: {otherwise}")

    def now(self) -> float:
        return trio.current_time() - self.started

    # The account

    def approval(self, server: str, kind: str, name: str) -> Approval:
        return self.store.approvals.setdefault((self.config, server, kind, name), Approval())

    def starts(self, account: ServerAccount) -> None:
        """The host takes up the server: with what is remembered for its present owner."""
        key = (self.config, account.id)
        self.listed.pop(account.id, None)
        self.introduced.pop(account.id, None)
        self.served.pop(account.id, None)
        if account.disabled:  # its program is not looked at
            return
        launch = self.store.launches.setdefault(key, Launch(account.address, account.program))
        if launch.address != account.address:  # a person configured it otherwise
            launch.address, launch.program = account.address, account.program
        if self.is_held(account):
            return
        of_owner = (*key, account.identity)
        if of_owner in self.store.lists:
            self.listed[account.id] = {kind: dict(names) for kind, names in self.store.lists[of_owner].items()}
            self.introduced[account.id] = self.store.instructions[of_owner]

    def is_held(self, account: ServerAccount) -> bool:
        """Whether its command leads to another program than the approved one."""
        launch = self.store.launches.get((self.config, account.id))
        return launch is not None and account.trust != "trusted" and launch.program != account.program

    def introduces(self, account: ServerAccount) -> None:
        """The server tells its instructions."""
        self.introduced[account.id] = account.instructions
        self.store.last_instructions[self.config, account.id] = account.instructions
        self._first_sight(account, "instructions", "", account.instructions)

    def lists_now(self, account: ServerAccount, kind: str) -> None:
        """The server lists what it has of a kind."""
        names = {name: version for (of, name), version in account.offers.items() if of == kind}
        self.listed.setdefault(account.id, {})[kind] = names
        self.served.setdefault(account.id, set()).add(kind)
        of_owner = (self.config, account.id, account.identity)
        self.store.lists.setdefault(of_owner, {})[kind] = dict(names)
        self.store.instructions[of_owner] = account.instructions
        for name, version in names.items():
            self._first_sight(account, kind, name, version)

    def has_listed(self, account: ServerAccount) -> bool:
        return len(self.served.get(account.id, ())) == len(LISTS)

    def _first_sight(self, account: ServerAccount, kind: str, name: str, version: int) -> None:
        approval = self.approval(account.id, kind, name)
        if not approval.closed and (
            account.trust == "trusted" or (account.trust == "standard" and approval.version is None)
        ):
            approval.version = version

    def is_approved(self, account: ServerAccount, kind: str, name: str, version: int) -> bool:
        approval = self.approval(account.id, kind, name)
        if account.trust == "trusted":
            return True
        return approval.version == version and (account.trust == "standard" or approval.by_person)

    def rule(self, account: ServerAccount, kind: str, name: str) -> str:
        return verdict(account.rules if kind != "prompt" else "by trust", account.trust, name)

    def accounts_at(self, endpoint: str | None) -> list[ServerAccount]:
        """The servers of an endpoint: all, or the one that has it for itself."""
        return [each for each in self.accounts.values() if endpoint in (None, each.id)]

    def shown(self, kind: str, endpoint: str | None = None) -> dict[tuple[str, str], int]:
        """The list of a kind, by server and name: what was ever listed for this owner, and may be shown."""
        return {
            (account.id, name): version
            for account in self.accounts_at(endpoint)
            for name, version in self.listed.get(account.id, {}).get(kind, {}).items()
            if not account.disabled
            and not self.is_held(account)
            and self.rule(account, kind, name) != "deny"
            and self.is_approved(account, kind, name, version)
        }

    def missing(self, kind: str, endpoint: str | None) -> set[str]:
        """The servers whose entries are not known, as far as clients could see something of them."""
        return {
            account.id
            for account in self.accounts_at(endpoint)
            if kind not in self.listed.get(account.id, {})
            and not account.disabled
            and not self.is_held(account)
            and (kind == "prompt" or account.rules != SHOWS_NOTHING)
            and (account.trust != "untrusted" or self._approved_something(account, kind))
        }

    def _approved_something(self, account: ServerAccount, kind: str) -> bool:
        return any(
            approval.version is not None and approval.by_person and self.rule(account, kind, name) != "deny"
            for (config, server, of, name), approval in self.store.approvals.items()
            if (config, server, of) == (self.config, account.id, kind)
        )

    def may_wait(self, endpoint: str | None) -> float:
        """Seconds for which a list may wait now."""
        unseen = [each for each in self.accounts_at(endpoint) if each.id not in self.listed and not each.disabled]
        begun = [self.renewed.get(each.id, 0.0) for each in unseen if not self.is_held(each)]
        return max([0.0, *(at + self.grace - self.now() for at in begun)])

    # What reaches servers

    def reached(self, account: ServerAccount, number: int) -> None:
        """A call has reached a server."""
        call, now = self.calls[number], self.now()
        kind, name = call.entry
        what = f"call {number} of {call.entry} of {call.server}"
        self.tally["reached"] += 1
        call.reached += 1
        self.must(call.reached == 1, f"{what} was sent twice")
        self.must(call.server == account.id, f"{what} was sent to {account.id}")
        self.must(call.ended is None, f"{what} was sent though it was over")
        self.must(call.cancelled is None or call.cancelled >= now, f"{what} was sent though it was cancelled")
        self.must(now <= call.at + account.patience + EPSILON, f"{what} was sent after its deadline")
        self.must(kind in self.served.get(account.id, ()), f"{what} was sent before the definitions were read")
        version = account.offers.get(call.entry)
        allowed = self.rule(account, kind, name)
        if kind != "resource" or version is not None:
            self.must(version is not None, f"{what} was sent though there is no such entry")
            self.must(version is None or self.is_approved(account, kind, name, version), f"{what} was sent unapproved")
        self.must(allowed != "deny", f"{what} was sent though it is denied")
        self.must(allowed == "allow" or self.person, f"{what} was sent though nobody confirmed it")
        self.must(not self.is_held(account), f"{what} was sent though its program is held")

    # Clients

    def came_in_time(self, what: str, began: float, most: float, more: float = 0.0) -> None:
        """An answer that waits as lists do, and `more` seconds, has come after as many seconds at most."""
        took = self.now() - began
        if any(began <= at <= self.now() for at in self.renewed.values()):
            most = self.grace  # for the server that was put in the place of another one meanwhile
        self.must(took <= most + more + EPSILON, f"{what} took {took:.2f} s, not {most + more:.2f}")

    async def lists(self, viewer: Viewer, kind: str, request: Callable[[str], Any], *, stateless: bool) -> None:
        """A client lists: the answer comes in time, and is what the account says at that moment."""
        most, began = self.may_wait(viewer.endpoint), self.now()
        answer = await request(METHODS[kind])
        hears = any(each.era == STATELESS for each in self.accounts_at(viewer.endpoint))
        self.came_in_time(f"{kind}s", began, most, SETTLING if hears else 0.0)
        found = {}
        for each in answer[LISTS[kind]]:
            server, name = (
                split(kind, each[NAME[kind]]) if viewer.endpoint is None else (viewer.endpoint, each[NAME[kind]])
            )
            found[server, name] = int(each["description"][1:])
        expected, missing = self.shown(kind, viewer.endpoint), self.missing(kind, viewer.endpoint)
        self.must(found == expected, f"{kind}s are {found}, not {expected}")
        named = set(answer.get("_meta", {}).get(MISSING, ()))
        self.must(named == missing, f"missing of {kind}s are {named}, not {missing}")
        if stateless and missing:
            self.must(answer["ttlMs"] == 0, f"an incomplete list of {kind}s is fresh for {answer['ttlMs']} ms")
        self.tally["lists"] += 1
        self.tally["incomplete lists"] += bool(missing)
        self.tally["listed before it was up"] += any(server not in self.served for server, _ in found)
        viewer.sees(kind, found)

    async def comes(self) -> None:
        """A client with a session: it opens it, lists everything, and hears of changes."""
        began, endpoint = self.now(), self.somewhere()
        client = await self.world.client(endpoint, early=True)
        self.must(self.now() == began, "initialize waited")
        self.check_instructions(client.opened.get("instructions", ""), endpoint)  # type: ignore[attr-defined]
        viewer = Viewer(ToldBy(client), endpoint, is_early=self.may_wait(endpoint) > 0)
        for kind in LISTS:
            viewer.sees(kind, self.shown(kind, endpoint))
        self.viewers.append(viewer)
        self.nursery.start_soon(client.listen_changes)
        for kind in self.random.sample(list(LISTS), 2):
            await self.lists(viewer, kind, client.request, stateless=False)
        if endpoint is None:
            self.clients.append(client)

    def somewhere(self) -> str | None:
        """An endpoint: mostly that of all servers."""
        return self.random.choice([None, None, None, *self.accounts])

    def check_instructions(self, said: str, endpoint: str | None) -> None:
        for account in self.accounts.values():
            version = self.introduced.get(account.id)
            expected = (
                version is not None
                and endpoint in (None, account.id)
                and not account.disabled
                and self.is_approved(account, "instructions", "", version)
                and (account.trust == "trusted" or self.store.last_instructions[self.config, account.id] == version)
            )
            found = f"how to {account.id} v{version}" in said
            self.must(found == expected, f"instructions of {account.id} v{version}: {found}, not {expected}")
            for other in range(9):
                self.must(other == version or f"how to {account.id} v{other}" not in said, "former instructions")

    async def looks(self) -> None:
        """A client without a session discovers and lists."""
        began, endpoint = self.now(), self.somewhere()
        found = await self.request("server/discover", endpoint=endpoint)
        self.must(self.now() == began, "server/discover waited")
        self.check_instructions(found.get("instructions", ""), endpoint)
        kind = self.random.choice(list(LISTS))
        await self.lists(Viewer([], endpoint), kind, partial(self.request, endpoint=endpoint), stateless=True)

    async def request(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        identity: str | None = None,
        endpoint: str | None = None,
    ) -> Any:
        """The result of a stateless request; raises Refusal."""
        meta = {f"{IO}protocolVersion": STATELESS, f"{IO}clientCapabilities": {}}
        given = members(encode({**(params or {}), "_meta": {**(params or {}).get("_meta", {}), **meta}}))
        client = StatelessClient("test", Endpoint(endpoint), identity, None, object())
        request = Request(1, method, encode(given))
        stated = take_stated(given).checked
        caller = client.caller(stated.abilities)
        answer = await self.stateless.answer(request, given, stated, caller, lambda notice: True)
        if isinstance(answer, Failure):
            raise Refusal(answer.error)
        return json.loads(bytes(answer.result))

    async def listens(self) -> None:
        """A client without a session opens a stream of changes, and one that waits for a resource."""
        lists = {f"{each}ListChanged": True for each in ("tools", "prompts", "resources")}
        account = self.random.choice(list(self.accounts.values()))
        uri = f"{account.id}+r:1"
        wanted = {"notifications": {**lists, "resourceSubscriptions": [uri]}}
        told: list[str] = []
        viewer = Viewer(told)
        for kind in LISTS:
            viewer.sees(kind, self.shown(kind))
        client = StatelessClient("test", SHARED, None, None, object())
        began, most = self.now(), self.may_wait(None)

        def hear(notice: Notification) -> bool:
            if not told:  # the acknowledgement, which waits as lists do; from then on it hears of changes
                self.came_in_time("the acknowledgement", began, most, AGREEMENT_TIMEOUT)
                self.viewers.append(viewer)
            told.append(notice.method)
            return True

        subscription = Subscription(
            self.stateless,
            1,
            requested_filter(members(encode(wanted)), NO_ABILITIES),
            client,
            NO_ABILITIES,
            hear,
        )
        await subscription.serve(trio.Event())

    async def asks(self) -> None:
        """A client calls something; sometimes it gives up."""
        random = self.random
        server = random.choice([*self.accounts])
        kind, name = random.choice([each for each in ENTRIES if each[0] in CALLS])
        call = Asked(len(self.calls), server, (kind, name), self.now())
        self.calls.append(call)
        call.must_succeed = self.must_succeed(call)
        patience = random.choice([None, None, None, 0.7, 3.3])
        client = self.clients[-1] if self.clients and random.random() < 0.6 else None
        params: dict[str, Any] = {"_meta": {CALL_KEY: call.number}}
        params |= {"uri": f"{server}+{name}"} if kind == "resource" else {"name": f"{server}__{name}"}
        if kind == "tool":
            params["arguments"] = {}
        try:
            if client is None:
                with trio.move_on_after(math.inf if patience is None else patience):
                    call.takes(await self.request(CALLS[kind], params))
            else:
                id = 1000 + call.number
                if patience is not None:
                    self.nursery.start_soon(call_off, client, id, patience)
                call.takes(await client.request(CALLS[kind], params, id=id))
        except Refusal as refusal:
            call.outcome = f"refused: {refusal.code} {refusal.message}"
        call.ended = self.now()
        if not call.outcome:
            call.cancelled = call.at + (patience or 0.0)
        self.tally[call.outcome.partition(":")[0] or "cancelled"] += 1

    def must_succeed(self, call: Asked) -> bool:
        """Whether this call has to be carried out, unless something happens to its server or it is cancelled."""
        account = self.accounts[call.server]
        kind, name = call.entry
        version = account.offers.get(call.entry)
        ready = (self.renewed.get(account.id, 0.0) + account.delay) if not account.lazy else self.now() + account.delay
        due = max(ready - self.now(), 0.0)
        return (
            version is not None
            and account.fate == "up"
            and not account.disabled
            and not self.is_held(account)
            and account.id not in self.disturbed
            and self.rule(account, kind, name) in (("allow", "ask") if self.person else ("allow",))
            and (account.trust == "trusted" or self.is_approved_by(account, kind, name, version))
            and due + 0.1 < account.timeout
        )

    def is_approved_by(self, account: ServerAccount, kind: str, name: str, version: int) -> bool:
        """Whether it will be approved once the server has listed it."""
        approval = self.approval(account.id, kind, name)
        if account.trust == "standard" and approval.version is None and not approval.closed:
            return True
        return self.is_approved(account, kind, name, version)

    async def floods(self) -> None:
        """One caller sends more calls to a server that starts than may wait; another one is not kept from it."""
        starting = [
            each
            for each in self.accounts.values()
            if (each.fate == "never" or each.delay > 2) and not each.disabled and not self.is_held(each)
        ]
        if not starting:
            return
        account = starting[0]
        refused = Counter[str]()
        params = {"name": f"{account.id}__y", "arguments": {}}

        async def send(identity: str) -> None:
            try:
                answer = await self.request("tools/call", params, identity)
            except Refusal as refusal:
                refused[str(refusal.code)] += 1
            else:
                refused[str(answer)] += 1

        async with trio.open_nursery() as nursery:
            for _ in range(MOST_WAITING + 20):
                nursery.start_soon(send, f"flood {self.history.number}")
            await wait_all_tasks_blocked()
            at_once = sum(refused.values())
            self.must(at_once == 20, f"{at_once} of {MOST_WAITING + 20} calls were refused at once: {refused}")
            nursery.start_soon(send, "another")
            await wait_all_tasks_blocked()
            self.must(sum(refused.values()) == at_once, "one caller keeps others from waiting")
            self.tally["floods"] += 1
            nursery.cancel_scope.cancel()

    # People and configurations

    async def decides(self) -> None:
        """A person approves or rejects something that is held."""
        definitions = self.world.gate.definitions
        held = [each for each in awaited(definitions.held()) if each.item.server in self.accounts]
        if not held:
            return
        each = self.random.choice(held)
        account = self.accounts[each.item.server]
        rejects = self.random.random() < 0.3 and each.item.kind != "launch"
        self.disturbed.add(account.id)
        if each.item.kind == "launch":
            awaited(definitions.approve(each.item, each.fingerprint, "console"))
            self.store.launches[self.config, account.id].program = account.program
            self.renewed[account.id] = self.now()
            self.tally["programs approved"] += 1
            return
        said = json.loads(each.offered)
        version = int((said if isinstance(said, str) else said["description"]).rpartition("v")[2])
        approval = self.approval(each.item.server, each.item.kind, each.item.name)
        self.tally["rejected" if rejects else "approved"] += 1
        if rejects:
            awaited(definitions.reject(each.item, each.fingerprint, "console"))
            approval.closed = True
            if approval.version == version:
                approval.version = None
        else:
            awaited(definitions.approve(each.item, each.fingerprint, "console"))
            approval.version, approval.by_person, approval.closed = version, True, False

    async def reconfigures(self) -> None:
        """The configuration is read again: with another owner of a server's credentials, with other rules, with a
        server that is off, or with one that is to begin anew."""
        account = self.random.choice(list(self.accounts.values()))
        change = self.random.choice(["owner", "rules", "off", "anew"])
        self.disturbed.add(account.id)
        if change == "owner":
            account.owner = "bob" if account.owner == "ann" else "ann"
        elif change == "rules":
            account.rules = self.random.choice(list(RULES))
        elif change == "off":
            account.disabled = not account.disabled
        self.tally[f"configured: {change}"] += 1
        if change == "rules":
            player = self.world.servers[account.id]
            player.spec = self.spec(account)
            self.world.configures(*self.world.servers.values())
            return
        players = {**self.world.servers, account.id: Player(self, account, self.spec(account))}
        self.world.configures(*players.values(), restart={account.id})
        if change == "anew":
            self.renews(account)
        else:
            self.starts(account)
        self.renewed[account.id] = self.now()

    def renews(self, account: ServerAccount) -> None:
        """A server begins anew as it is: what it listed stays listed."""
        known, introduced = self.listed.get(account.id), self.introduced.get(account.id)
        served = self.served.get(account.id)
        self.starts(account)
        if served is not None:
            self.served[account.id] = served
        if known is not None and not account.disabled:
            self.listed[account.id] = known
        if introduced is not None:
            self.introduced[account.id] = introduced

    def spec(self, account: ServerAccount) -> Any:
        kind = RULES[account.rules][0]
        consent = Consent(tools=kind, resources=kind)
        common: dict[str, Any] = {
            "id": account.id,
            "consent": consent,
            "trust": Trust(account.trust),
            "isolation": Isolation(account.isolation),
            "disabled": account.disabled,
            "timeout": account.timeout,
            "start_timeout": 300.0,
            "start": Start.LAZY if account.lazy else Start.EAGER,
            "limits": Limits(concurrent=account.concurrent),
        }
        if account.at_url:
            url = Secret(f"http://{account.id}.example/{account.address}")
            # One connection, as the account has it: sessions beside it are the subject of test_changing_eras.py.
            headers = {"Authorization": Secret(account.owner)}
            return HttpServer(url=url, headers=headers, eras=Eras.ONE, **common)
        link = self.history.folder / account.id
        link.unlink(missing_ok=True)
        link.symlink_to(self.history.folder / f"program-{account.program}")
        return replace(
            ScriptedServer(account.id).spec,
            command=(Secret(str(link)), Secret(account.address)),
            env={"TOKEN": Secret(account.owner)},
            **common,
        )

    # The life

    async def live(self) -> None:
        random = self.random
        players = [Player(self, each, self.spec(each)) for each in self.accounts.values()]
        ask = AskSpec((Channel.CONSOLE,), 5.0)
        source = Path(f"/nowhere/{self.config}.yaml")
        self.started = trio.current_time()
        for each in self.accounts.values():
            self.starts(each)
        async with (
            open_world(
                *players, start_grace=self.grace, ask=ask, state=self.history.folder / "state", source=source
            ) as self.world,
            open_stateless(self.world) as self.stateless,
            trio.open_nursery() as self.nursery,
        ):
            self.clients: list[ScriptedClient] = []
            with Person(self.world, self.person):
                await self._events(random)
                await wait_all_tasks_blocked()
                self.check_at_rest()
                await trio.sleep(2 - LATEST_NOTICE)
                waiting = [each for each in self.viewers if each.is_early and self.may_wait(each.endpoint) > 0]
                await trio.sleep(LATEST_NOTICE)
                await wait_all_tasks_blocked()
                self.check_at_end(waiting)
            self.must(not any(isinstance(each, InternalError) for each in self.world.events), "something crashed")
            self.nursery.cancel_scope.cancel()

    async def _events(self, random: Random) -> None:
        await wait_all_tasks_blocked()
        acts: list[tuple[float, Callable[..., Any]]] = [(0.05, self.looks), (0.07, self.comes)]
        for _ in range(random.randint(3, 10)):
            at = random.choice([0.0, 0.0, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 24.0, 31.0]) + random.randint(10, 90) / 1000
            acts.append((at, random.choice([self.comes, self.looks, self.listens, *[self.asks] * 5])))
        if random.random() < 0.4:
            acts.append((random.choice([0.5, 7.5, 26.5]) + 0.001, self.decides))
        if random.random() < 0.3:
            acts.append((random.choice([0.6, 7.6, 26.6]) + 0.002, self.reconfigures))
        if random.random() < 0.3:
            acts.append((0.3, self.floods))
        for at, act in sorted(acts, key=lambda each: each[0]):
            await trio.sleep_until(self.started + at)
            await wait_all_tasks_blocked()
            if act in (self.decides, self.reconfigures):
                await act()
            else:
                self.nursery.start_soon(act)
            await wait_all_tasks_blocked()
            self.check_at_rest()
        longest = max(random.choice([1.0, 8.0, 40.0]), acts[-1][0])
        await trio.sleep_until(self.started + longest + 0.5)

    def check_at_rest(self) -> None:
        """Check what holds whenever nothing happens."""
        for account in self.accounts.values():
            player = self.world.servers[account.id]
            assert isinstance(player, Player)
            running = self.world.gate.policies.meter(account.id)._used.running
            if account.id not in self.renewed and not self.served.get(account.id):
                self.must(running == player.working, f"{running} slots of {account.id} are taken by {player.working}")
            held = {
                (each.item.kind, each.item.name): each
                for each in awaited(self.world.gate.definitions.held())
                if each.item.server == account.id
            }
            for kind in self.served.get(account.id, ()):
                for name, version in self.listed[account.id][kind].items():
                    hidden = not self.is_approved(account, kind, name, version)
                    if account.disabled or self.rule(account, kind, name) == "deny":
                        continue
                    self.must(
                        ((kind, name) in held) == hidden, f"{kind} {name} v{version} of {account.id}: held {not hidden}"
                    )
                    approved = self.approval(account.id, kind, name).version
                    if hidden and approved is not None and (account.trust == "standard"):
                        self.must(held[kind, name].status is PinStatus.CHANGED, f"{name} is not shown as changed")
        for call in self.calls:
            account = self.accounts[call.server]
            if call.ended is None and not call.reached:
                late = self.now() - call.at
                self.must(late <= account.patience + EPSILON, f"call {call.number} waits since {late:.2f} s")

    def check_at_end(self, waiting: Collection[Viewer]) -> None:
        """`waiting` are clients whose lists were waited for until just now: no change is announced to them before."""
        for call in self.calls:
            if call.ended is None or call.cancelled is not None or call.server in self.disturbed:
                continue
            if call.must_succeed:
                what = f"call {call.number} of {call.entry} of {call.server} at {call.at:.2f}"
                self.must(call.outcome == "success", f"{what} was not carried out: {call.outcome}")
                self.must(call.reached == 1, f"{what} did not reach its server")
                self.tally["had to succeed"] += 1
        for viewer in self.viewers:
            for kind, seen in viewer.seen.items():
                if seen != self.shown(kind, viewer.endpoint):
                    told = ANNOUNCED[kind] in viewer.told[viewer.heard[kind] :]
                    told = told or any(each is viewer for each in waiting)
                    self.must(told, f"nobody told a client that its {kind}s changed: {seen}, not {kind}s of now")
                    self.tally["announced changes"] += 1


class ToldBy(list[str]):
    """The methods of the notifications of a scripted client, as they come."""

    def __init__(self, client: ScriptedClient) -> None:
        super().__init__()
        self._client = client

    def __len__(self) -> int:
        return len(self._client.notifications)

    def __getitem__(self, index: Any) -> Any:
        return [method for method, _ in self._client.notifications][index]


class Person:
    """A person who confirms all that is asked, for the block, or nobody."""

    def __init__(self, world: World, there: bool) -> None:
        self._person = world.auto_answering() if there else None

    def __enter__(self) -> None:
        if self._person is not None:
            self._person.__enter__()

    def __exit__(self, *problem: Any) -> None:
        if self._person is not None:
            self._person.__exit__(*problem)


async def call_off(client: ScriptedClient, id: int, after: float) -> None:
    """A client calls its request off after so many seconds, which may be over by then."""
    await trio.sleep(after)
    client.notifies("notifications/cancelled", {"requestId": id})


def split(kind: str, outward: str) -> tuple[str, str]:
    server, _, name = outward.partition("__" if kind in ("tool", "prompt") else "+")
    return server, name


# Histories


class History:
    """A few lives of hosts over one state directory. Between them, servers and configurations change."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = folder
        self.random = Random(number)
        self.problems: list[str] = []
        self.tally: Counter[str] = Counter()
        self.store = Store()
        self.config = "one"
        self.lives = 0
        self.accounts = [
            ServerAccount(id, self.random.choice(["trusted", "standard", "standard", "untrusted"]), id == "c")
            for id in ("a", "b", "c")
        ]
        for name in ("one", "two"):
            program = folder / f"program-{name}"
            program.write_text("")
            program.chmod(0o755)
        for each in self.accounts:
            each.era = self.random.choice(["2025-11-25", STATELESS])
            each.isolation = self.random.choice(["shared", "shared", "per-client", "per-call"])
            each.rules = self.random.choice(["by trust", *RULES])
            each.concurrent = self.random.choice([None, 2])

    def play(self, lives: int) -> None:
        for _ in range(lives):
            if self.lives:
                self.changes()
            for at, each in enumerate(self.accounts):
                each.delay = self.random.choice([0.0, 0.0, 0.9, 2.9, 9.9, 24.9]) + at / 100 + 0.001 * bool(at)
                each.fate = self.random.choice(["up"] * 6 + ["never", "fails", "dies", "keeps its tools"])
                each.instance_delay = self.random.choice([0.0, 2.0])
                each.timeout = self.random.choice([5.0, 30.0])
                each.lazy = self.random.random() < 0.2
            self.lives += 1
            life = Life(self, self.random)
            trio.run(life.live, clock=MockClock(autojump_threshold=0))
            self.tally["starts"] += 1
            if self.problems:
                return

    def changes(self) -> None:
        """What happens between two starts."""
        random = self.random
        self.config = random.choice(["one", "one", "one", "two"])
        for each in self.accounts:
            each.configured = random.random() < 0.9
            each.disabled = random.random() < 0.05
            if random.random() < 0.35:
                entry = random.choice(ENTRIES)
                each.offers[entry] = random.randint(1, 3)
            if random.random() < 0.15:
                each.offers.pop(random.choice(ENTRIES), None)
            if random.random() < 0.15:
                each.instructions = random.randint(1, 3)
            if random.random() < 0.15:
                each.owner = random.choice(["ann", "bob"])
            if random.random() < 0.1:
                each.address = random.choice(["one", "two"])
            if random.random() < 0.1 and not each.at_url:
                each.program = random.choice(["one", "two"])
            if random.random() < 0.15:
                each.rules = random.choice(list(RULES))
            if random.random() < 0.1:
                each.isolation = random.choice(["shared", "per-client", "per-call"])
        if not any(each.configured for each in self.accounts):
            self.accounts[0].configured = True


LIVES = 4
"""Starts in one history."""


@pytest.mark.few(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_start_lists_what_was_ever_listed_and_sends_what_is_approved(shard: int) -> None:
    tally: Counter[str] = Counter()
    for number in range(FIRST + shard, FIRST + max(STARTS // LIVES, SHARDS), SHARDS):
        with folder() as made:
            history = History(number, made)
            history.play(LIVES)
        tally += history.tally
        assert not history.problems, f"COLONNADE_FIRST_START={number}:\n" + "\n".join(history.problems[:10])
    print(dict(sorted(tally.items())))
    assert all(tally[each] for each in ("listed before it was up", "reached", "had to succeed")), tally
