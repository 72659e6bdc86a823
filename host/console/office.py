"""The office of a running host: all that a person can see of it and decide, in plain data. The web console and the
control socket show it and carry decisions to it; nothing of MCP leads here.

What servers wrote is made visible before it is shown, character for character. Sections have a number each that grows
with every change, so that whoever watches fetches only what is new.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from msgspec import Raw

from config import Channel, Config, HttpServer, StdioServer, Trust, Verdict
from config.when import WhenError, read_when
from host.catalog import Catalog, Entry
from host.console.decisions import Decisions
from host.console.requests import OfficeError
from host.errors import ColonnadeError
from host.hygiene import visible
from host.journal import (
    AuditFailed,
    ConfigReloaded,
    ConfirmationRequested,
    DecisionMade,
    DefinitionChanged,
    Event,
    InternalError,
    Journal,
    MessageDropped,
    RequestCompleted,
    RuleUnused,
    ServerReady,
    StderrLine,
)
from host.jsonrpc.raw import members, value
from host.policy.desk import ConfirmationAnswer, ConfirmationQueue, PendingConfirmation, describe_access
from host.policy.explain import grant_as_data, held_as_data, unmatched_rules
from host.policy.fingerprint import pretty
from host.policy.gate import Gate
from host.policy.pins import PinStatus
from host.policy.predicates import conditions_hold
from host.protocol.methods import LISTINGS, Kind
from host.slices import Steps, map_in_steps
from host.state import StateError
from host.upstream.roster import Roster
from host.upstream.supervisor import Connecting, Disabled, Failed, Ready, Upstream, describe
from host.upstream.supervisor import Held as NotStarted
from host.version import VERSION

SECTIONS = ("servers", "catalog", "questions", "held", "grants", "activity", "problems")
MAX_ACTIVITY = 200
COMPARE = 0.2
"""Seconds that comparing definitions may take at a time: nothing else is done meanwhile."""
MOST_HELD = 500
"""Definitions that are shown at once; the others when some of these are decided."""
MOST_LEFT_OUT = 20
"""Definitions of one server that clients could not read and that are named."""
LOOK_EVERY = 1.0
"""Seconds between two looks at what other processes of the user have decided."""

_QUIET = (StderrLine, MessageDropped)


@dataclass(slots=True)
class _Traffic:
    calls: int = 0
    failed: int = 0
    size: int = 0
    latency: float | None = None

    def add(self, event: RequestCompleted) -> None:
        self.calls += 1
        self.size += event.size
        self.failed += event.outcome not in ("answered", "called off")
        if event.outcome == "answered":  # a moving average over some ten calls
            self.latency = event.seconds if self.latency is None else 0.9 * self.latency + 0.1 * event.seconds


class HostOffice(Decisions):
    """Implements `host.console.requests.Office`.

    Args:
        config: the configuration that holds now.
        stdio: the host serves one client on its standard input and output.

    `new_link` makes an address that opens the web console once; None if there is no web console.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        roster: Roster,
        catalog: Catalog,
        gate: Gate,
        journal: Journal,
        *,
        stdio: bool,
    ) -> None:
        self.new_link: Callable[[], str] | None = None
        self.endpoint = ""
        """The URL of the endpoint; empty over stdio."""
        super().__init__(gate)
        self._config = config
        self._roster = roster
        self._catalog = catalog
        self._desk: ConfirmationQueue = gate.confirmations
        self._stdio = stdio
        self._versions: Counter[str] = Counter(dict.fromkeys(SECTIONS, 1))
        self._news = trio.lowlevel.ParkingLot()
        self._activity: deque[dict[str, Any]] = deque(maxlen=MAX_ACTIVITY)
        self._traffic: dict[str, _Traffic] = {}
        self._journal = journal
        self._told_problems: list[str] = []
        self._compares = False
        """Whether some of what is held back is still to be compared."""
        self._became_ready: dict[str, None] = {}
        """Servers whose rules are to be held against what they list, in the order in which they became ready."""
        journal.subscribe(self._heard)
        self._desk.on_change = lambda: self.moved("questions", "grants", "servers")

    async def run(self) -> None:
        """Hear of what changes without an event (lists, and what other processes of the user decide), until
        cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_catalog)
            nursery.start_soon(self._follow_others)
            nursery.start_soon(self._tell_unmatched)

    async def _follow_catalog(self) -> None:
        seen = self._catalog.version
        while True:
            seen = await self._catalog.wait_for_change(seen)
            self.moved("catalog", "held", "servers")

    async def _tell_unmatched(self) -> None:
        while True:
            while not self._became_ready:
                await self._news.park()
            server = next(iter(self._became_ready))
            del self._became_ready[server]
            for rule in await self._catalog.slices.run(unmatched_rules(self._gate, self._catalog, server)):
                self._journal.note(RuleUnused(server, rule))

    async def _follow_others(self) -> None:
        while True:
            await trio.sleep(LOOK_EVERY)
            try:
                await self.look()
            except Exception as problem:  # noqa: BLE001 - what is wrong with the files of others ends no host
                self._journal.note(InternalError("looking at what other hosts decided", problem))

    async def look(self) -> None:
        """Take up what other processes of the user have decided meanwhile."""
        moved = await self._catalog.slices.run(self._gate.pins.reread_in_steps())
        if moved:
            self._gate.on_decided(moved)
            self.moved("held", "catalog", "servers")
        if self._gate.grants.reread():
            self._desk.release_covered()
            self.moved("grants")
        if self._compares:
            self.moved("held")
        if self._problems() != self._told_problems:
            self._told_problems = self._problems()
            self.moved("problems")

    # What can be seen

    def hello(self) -> dict[str, Any]:
        return {
            "colonnade": VERSION,
            "config": os.path.realpath(self._config().source),
            "pid": os.getpid(),
            "stdio": self._stdio,
            "endpoint": self.endpoint,
        }

    async def state(self, sections: Collection[str] | None = None) -> dict[str, Any]:
        return await self._catalog.slices.run(self.telling(SECTIONS if sections is None else sections))

    def telling(self, sections: Collection[str]) -> Steps[dict[str, Any]]:
        """The same in steps."""
        show: dict[str, Callable[[], Steps[list[Any]]]] = {
            "servers": self._servers,
            "catalog": self._entries,
            "questions": lambda: map_in_steps(self._question, self._desk.list_all()),
            "held": self._held,
            "grants": lambda: map_in_steps(partial(grant_as_data, self._gate), self._gate.grants.all()),
            "activity": lambda: map_in_steps(dict, self._activity),
            "problems": lambda: map_in_steps(str, self._problems()),
        }
        told = self.hello()
        for section in sections:
            told[section] = yield from show[section]()
        return told

    def _entries(self) -> Steps[list[dict[str, Any]]]:
        found: list[dict[str, Any]] = []
        for entry in [entry for kind in Kind for entry in self._all(kind)]:
            yield None
            if self._gate.has_server(entry.server):  # a reload may have removed it since the step before
                found.append(self._entry(entry))
        return found

    def _held(self) -> Steps[list[dict[str, Any]]]:
        """What was compared before is there at once; of the rest, as much as a moment allows, and the others soon."""
        until = time.monotonic() + COMPARE
        waiting = (yield from self._gate.held_in_steps())[:MOST_HELD]
        found = yield from map_in_steps(lambda held: held_as_data(self._gate, held, until), waiting)
        self._compares = not all(each["ready"] for each in found)
        return found

    def _servers(self) -> Steps[list[dict[str, Any]]]:
        waiting = Counter(held.server for held in (yield from self._gate.held_in_steps()) if not held.rejected)
        found = []
        for server in list(self._roster.upstreams):
            left = yield from self._unmatched(server)
            if server in self._roster:  # a reload may have removed it since the step before
                found.append(self._server(self._roster.upstreams[server], waiting[server], left))
        return found

    def version(self) -> dict[str, int]:
        return dict(self._versions)

    async def changed(self, since: Mapping[str, int]) -> dict[str, int]:
        while all(self._versions[section] <= since.get(section, 0) for section in SECTIONS):
            await self._news.park()
        return self.version()

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        return self._desk.attach(channel)

    def link(self) -> str:
        if self.new_link is None:
            raise OfficeError("this host has no web console (console: off)")
        return self.new_link()

    # What can be decided

    def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> dict[str, Any]:
        if channel not in self._desk.spec.answers:
            raise OfficeError(f"the configuration does not let the {channel.value} answer (ask.answers)")
        found = next((matter for matter in self._desk.list_all() if matter.id == id), None)
        if found is None:
            raise OfficeError("this question is not there any more: it was answered, called off, or is void")
        said = ConfirmationAnswer(answer)
        if said is ConfirmationAnswer.SESSION and found.access.session is None:
            raise OfficeError("whoever called has no session, so nothing can be allowed for one")
        try:
            when = read_when(arguments) if isinstance(arguments, dict) else ()
        except WhenError as problem:
            raise OfficeError(f"these conditions cannot be read: {problem}") from None
        if when and conditions_hold(when, found.access.arguments) is not True:
            raise OfficeError("these conditions do not hold for the arguments of this very call")
        try:
            matter = self._desk.answer(id, said, channel, seconds=seconds, when=when, exact=arguments == "exact")
        except ColonnadeError as problem:
            raise OfficeError(problem.message) from None
        except StateError as problem:
            raise OfficeError(f"it cannot be written down: {problem}") from None
        if matter is None:
            raise OfficeError("this question is not there any more")
        if said is ConfirmationAnswer.DENY:
            return {"done": f"{describe_access(matter.access)}: denied."}
        waits = "it goes on now" if not matter.refused else "nothing waits any more; the next call like it passes"
        return {"done": f"{describe_access(matter.access)}: allowed ({answer}); {waits}."}

    # Within

    def moved(self, *sections: str) -> None:
        for section in sections:
            self._versions[section] += 1
        self._news.unpark_all()

    def _heard(self, event: Event) -> None:
        sections = ["activity", "servers"]
        if isinstance(event, RequestCompleted):
            self._traffic.setdefault(event.server, _Traffic()).add(event)
        elif isinstance(event, DefinitionChanged):
            sections += ["held", "catalog"]
        elif isinstance(event, DecisionMade | ConfirmationRequested):
            sections += ["questions", "grants"]
        elif isinstance(event, ServerReady):
            sections += ["catalog", "held", "grants", "problems"]
            self._became_ready[event.server] = None
        elif isinstance(event, ConfigReloaded):
            sections += ["catalog", "held", "grants", "problems"]
        elif isinstance(event, AuditFailed):
            sections.append("problems")
        if not isinstance(event, _QUIET):
            told = {
                "t": time.time(),
                "kind": type(event).__name__,
                "server": getattr(event, "server", ""),
                "text": visible(str(event)),
                "level": event.severity.name.lower(),
            }
            self._activity.append(told)
        self.moved(*sections)

    def _all(self, kind: Kind) -> list[Entry]:
        by_server = self._catalog.snapshot(kind).by_server
        return [entry for server in self._roster.upstreams for entry in by_server.get(server, ())]

    def _server(self, upstream: Upstream, held: int, unmatched: list[str]) -> dict[str, Any]:
        spec, state = upstream.spec, upstream.state
        traffic = self._traffic.get(spec.id, _Traffic())
        word = {Ready: "ready", Failed: "failed", Connecting: "starting", Disabled: "disabled", NotStarted: "held"}
        return {
            "id": spec.id,
            "title": visible(spec.title or ""),
            "transport": "http" if isinstance(spec, HttpServer) else "stdio",
            "state": word[type(state)],
            "detail": visible(describe(state)),
            "trust": spec.trust.value,
            "isolation": spec.isolation.value,
            "revision": state.client.offer.revision.name if isinstance(state, Ready) else "",
            "entries": {
                LISTINGS[kind].member: len(self._catalog.snapshot(kind).by_server.get(spec.id, ())) for kind in Kind
            },
            "latency_ms": None if traffic.latency is None else round(traffic.latency * 1000, 1),
            "calls": traffic.calls,
            "failed": traffic.failed,
            "bytes_in": traffic.size,
            "in_flight": self._gate.decision_log.in_flight[spec.id],
            "held": held,
            "unmatched": unmatched,
            "left_out": [visible(each) for each in upstream.left_out[:MOST_LEFT_OUT]],
            "warnings": warnings_of(spec),
        }

    def _unmatched(self, server: str) -> Steps[list[str]]:
        """The rules that match nothing of what a ready server offers."""
        upstream = self._roster.upstreams.get(server)
        if upstream is None or not isinstance(upstream.state, Ready):
            return []
        return (yield from unmatched_rules(self._gate, self._catalog, server))

    def _entry(self, entry: Entry) -> dict[str, Any]:
        judgement = self._gate.rules(entry.server).evaluate(entry.kind, entry.inward)
        standing = self._gate.pin_status(entry.server, entry.kind, entry.inward)
        found = members(entry.definition)
        shown = self._gate.is_visible_cached(entry.server, entry.kind, entry.inward)
        hidden = judgement.verdict is Verdict.ALLOW and not shown and standing is PinStatus.APPROVED
        return {
            "server": entry.server,
            "kind": entry.kind.value,
            "name": visible(entry.inward),
            "outward": visible(entry.outward),
            "title": _text(found.get("title")),
            "description": _text(found.get("description")),
            "verdict": Verdict.DENY.value if hidden else judgement.verdict.value,
            "rule": visible(judgement.rule),
            "standing": standing.value,
            "shown": shown,
            "fingerprint": self._gate.pins.fingerprint(entry.server, entry.kind.value, entry.inward) or "",
        }

    def _question(self, matter: PendingConfirmation) -> dict[str, Any]:
        wish, about = matter.access, matter.context
        answers = ["deny", "once", "session", "time", "always"]
        if wish.session is None:
            answers.remove("session")
        return {
            "id": matter.id,
            "state": "refused" if matter.refused else "waiting",
            "server": wish.server,
            "trust": about.trust.value,
            "kind": wish.kind,
            "name": visible(wish.name),
            "summary": describe_access(wish),
            "arguments": pretty(about.raw_arguments),
            "caller": visible(wish.caller or "a client without a name"),
            "session": wish.session is not None,
            "rule": visible(wish.rule),
            "asked": matter.created_at,
            "until": None if matter.refused else matter.expires_at,
            "waiting": len(matter.waiters),
            "why": matter.refused,
            "answers": answers,
            "claims": [visible(claim) for claim in about.claims],
        }

    def _problems(self) -> list[str]:
        found = [self._gate.pins.problem, self._gate.grants.problem, self._gate.decision_log.problem]
        return [visible(problem) for problem in found if problem]


def warnings_of(spec: StdioServer | HttpServer) -> list[str]:
    """What whoever runs the host should know of how a server is run."""
    if spec.trust is Trust.UNTRUSTED and isinstance(spec, StdioServer):
        return [
            "it is not trusted, yet its program runs as you, unconfined: Colonnade stands between its messages and the "
            "client, not between its process and your files (docs/consent.md)"
        ]
    return []


def _text(raw: Raw | None) -> str:
    try:
        said = "" if raw is None else value(raw)
    except ValueError:
        said = ""
    return visible(said)[:500] if isinstance(said, str) else ""
