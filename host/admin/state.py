"""The state of a running host, in plain data: the part of the admin API that a person only reads. Nothing of MCP leads
here.

Texts of servers are made visible before they are shown, character for character. Each section of the state has a number
that grows with every change, so that a reader fetches only what is new.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, NamedTuple, cast

import trio

from config import Unconfined, Verdict
from host.admin.caller_views import CallerViews, excerpt_of
from host.admin.schema import (
    SECTIONS,
    ActivityRow,
    AdminState,
    ClientList,
    ConfirmationRow,
    EntryRow,
    FleetStatus,
    HostControl,
    HostInfo,
    HostStatus,
    ServerRow,
    ServerTraffic,
    StateSections,
)
from host.admin.status import server_status, usage
from host.admin.traffic import Traffic
from host.admin.warnings import warnings_of
from host.catalog import Entry
from host.client_process import ClientRow
from host.history.entrance import HostHistory
from host.journal import (
    AuditFailed,
    ConfigReloaded,
    ConfirmationRequested,
    DecisionMade,
    DefinitionChanged,
    Event,
    InstanceFailed,
    InternalError,
    MessageDropped,
    OutputLine,
    RequestCompleted,
    RuleUnused,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerStopped,
)
from host.jsonrpc.raw import members
from host.policy.argument_texts import outlined
from host.policy.confirmations import (
    ConfirmationAnswer,
    ConfirmationQueue,
    PendingConfirmation,
    describe_access,
    entry_answer,
)
from host.policy.explain import (
    count_uncounted,
    definition_as_text,
    description_in,
    grant_as_data,
    held_as_data,
    order_remark,
    rule_origin,
    unmatched_rules,
)
from host.policy.fingerprint import pretty
from host.policy.pin_rules import PinStatus
from host.policy.pins import HeldItem
from host.policy.rows import HeldRow
from host.protocol.definitions import model_tokens
from host.protocol.methods import Kind
from host.sanitize import visible
from host.slices import map_in_slices, pause
from host.storage.store import StateError
from host.upstream.runtime import Runtime
from host.upstream.state import Ready
from host.upstream.supervisor import UpstreamServer
from host.upstream.upstreams import Upstreams
from host.version import VERSION

MAX_ACTIVITY = 200
"""Events that are shown; the oldest are dropped."""
COMPARE_BUDGET = 0.2
"""Seconds that comparing definitions may take at a time: nothing else is done meanwhile."""
MAX_HELD = 500
"""Definitions that are shown at once; the others when some of these are decided."""
MAX_LEFT_OUT = 20
"""Definitions of one server that clients could not read and that are named."""
POLL_INTERVAL = 1.0
"""Seconds between two looks at what other processes of the user have decided."""


_NOT_IN_ACTIVITY = (OutputLine, MessageDropped)


_NUMBER = r"\d+(?:\.\d+)?"
_AMOUNT = re.compile(rf"{_NUMBER}(?= (?:s|times|more)\b)")
_NUMBER_OR_ID = re.compile(
    rf"0x[0-9a-f]+|(?:[0-9a-f]{{1,12}}-){{4}}[0-9a-f]{{1,12}}|\b(?=[a-f]*\d)[0-9a-f]{{8,}}\b|{_NUMBER}", re.IGNORECASE
)
"""Numbers, addresses in memory, UUIDs, and random ids of requests."""
_SERVER_STATES = (ServerReady, ServerFailed, ServerStopped, ServerHeld, ServerNeedsLogin)


class _Folded(NamedTuple):
    """A row of the activity, and what the rows have in common that are folded into one."""

    common: tuple[str, str, str]
    row: ActivityRow


class StateReader:
    """Implements `host.admin.schema.StateApi`.

    Args:
        stdio: the host serves one client on its standard input and output.
        endpoint: the URL of the endpoint; empty over stdio and in the background.
        clients: the clients that are connected.

    `ends_in` gives the seconds until a host in the background ends if no client comes; None if it does not.
    `is_draining`: the host has been told to stop. `fleet` gives the processes that it shares its store with;
    `wait_for_decisions` waits until it is time to look at what other processes have decided.
    """

    def __init__(
        self,
        control: HostControl,
        runtime: Runtime,
        upstreams: Upstreams,
        caller_views: CallerViews,
        *,
        stdio: bool,
        endpoint: str = "",
        clients: Callable[[], list[ClientRow]] = list,
    ) -> None:
        self.ends_in: Callable[[], float | None] = lambda: None
        self.is_draining: Callable[[], bool] = lambda: False
        self.history: HostHistory | None = None
        self.fleet: Callable[[], FleetStatus | None] = lambda: None
        self.wait_for_decisions: Callable[[], Awaitable[None]] = partial(trio.sleep, POLL_INTERVAL)
        self._gate = runtime.gate
        self._started = trio.current_time()
        self._control = control
        self._upstreams = upstreams
        self._catalog = runtime.catalog
        self._caller_views = caller_views
        self._confirmations: ConfirmationQueue = runtime.gate.authorizer.confirmations
        self._stdio = stdio
        self._endpoint = endpoint
        self._clients = clients
        self._versions: Counter[str] = Counter(dict.fromkeys(SECTIONS, 1))
        self._change: trio.Event | None = None
        """Set and dropped at the next change; None while nobody waits for that."""
        self._activity: deque[_Folded | tuple[float, RequestCompleted]] = deque(maxlen=MAX_ACTIVITY)
        """The last events. Requests, of which there may be thousands in a second, become rows when somebody looks."""
        self._traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._journal = runtime.journal
        self._logins = runtime.logins
        self._reported_problems: list[str] = []
        self._comparing = False
        """Whether some of what is held back is still to be compared."""
        self._newly_ready: dict[str, None] = {}
        """Servers whose rules are to be held against what they list, in the order in which they became ready, or their
        rules were read again."""
        self._became_ready = trio.lowlevel.ParkingLot()
        runtime.journal.subscribe(self._on_event)
        self._confirmations.subscribe(lambda: self.mark_changed("confirmations", "grants", "servers"))
        control.subscribe(partial(self.mark_changed, "configuration"), partial(self.mark_changed, "problems"))

    async def run(self) -> None:
        """Watch what changes without an event (lists, and decisions of other processes of the user), until
        cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_catalog)
            nursery.start_soon(self._poll_decisions)
            nursery.start_soon(self._report_unmatched)

    async def _follow_catalog(self) -> None:
        seen = self._catalog.version
        while True:
            seen = await self._catalog.wait_for_change(seen)
            self.mark_changed("catalog", "views", "held", "servers")

    async def _report_unmatched(self) -> None:
        while True:
            while not self._newly_ready:
                await self._became_ready.park()
            server = next(iter(self._newly_ready))
            del self._newly_ready[server]
            for rule in await self._unmatched(server):
                self._journal.note(RuleUnused(server, rule))

    async def _poll_decisions(self) -> None:
        while True:
            await self.wait_for_decisions()
            await self.follow_decisions()

    async def follow_decisions(self) -> None:
        """`reload_decisions`, for whoever has nobody to tell of an error in what other processes have stored."""
        try:
            await self.reload_decisions()
        except Exception as problem:  # noqa: BLE001 - it must not end the host
            self._journal.note(InternalError("looking at what other hosts decided", problem))

    async def reload_decisions(self) -> None:
        """Take over the decisions that other processes of the user have stored."""
        definitions = self._gate.definitions
        changed = await definitions.pins.reread()
        revision = definitions.pins.revision
        if changed:
            await self._control.settle()  # it may have been about sandboxes
            definitions.invalidate(changed)
            self.mark_changed("held", "catalog", "servers")
        definitions.taken_over = revision  # not before: others are told that what was rejected holds nowhere
        if self._gate.authorizer.grants.reread():
            self._confirmations.release_covered()
            self.mark_changed("grants")
        with suppress(StateError):  # a problem of the grants, which is shown
            await self._gate.authorizer.grants.store_revocations()
        if self._confirmations.drop_expired():
            self.mark_changed("confirmations")
        if self._comparing:
            self.mark_changed("held")
        if self._problems() != self._reported_problems:
            self._reported_problems = self._problems()
            self.mark_changed("problems")

    def host_info(self) -> HostInfo:
        return {
            "colonnade": VERSION,
            "config": os.path.realpath(self._control.config.source),
            "pid": os.getpid(),
            "stdio": self._stdio,
            "endpoint": self._endpoint,
            "audit": "files" if self._gate.decision_log.has_files else "stdout",
        }

    def connected_clients(self) -> ClientList:
        return {"clients": self._clients()}

    async def status(self) -> HostStatus:
        servers = (await self.sections(["servers"]))["servers"]
        return {
            **self.host_info(),
            "uptime": round(trio.current_time() - self._started, 1),
            "clients": len(self._clients()),
            "ends_after": self._ends_after(),
            "ends_in": self.ends_in(),
            "drain": 0.0 if self._stdio else self._control.config.drain,
            "draining": self.is_draining(),
            "fleet": self.fleet(),
            "process": usage(),
            "servers": servers,
            "confirmations": sum(not each.refused for each in self._confirmations.list_all()),
            "held": sum(server["held"] for server in servers),
            "waiting_changes": [
                visible(f"{each['server']}: {sentence}" if each["server"] else sentence)
                for each in self._control.waiting_changes
                for sentence in each["widens"]
            ],
            "problems": self._problems(),
        }

    def _ends_after(self) -> float | None:
        if self._stdio or self._endpoint:
            return None
        daemon = self._control.config.daemon
        idle = 0.0 if daemon is None else daemon.idle
        return idle if math.isfinite(idle) else None

    async def state(self) -> AdminState:
        sections = await self.sections(SECTIONS)
        return cast(AdminState, {**self.host_info(), **sections})

    async def sections(self, names: Collection[str]) -> StateSections:
        section_makers: dict[str, Callable[[], Awaitable[list[Any]]]] = {
            "servers": self._servers,
            "catalog": self._entries,
            "views": self._caller_views.rows,
            "confirmations": lambda: map_in_slices(self._confirmation_as_data, self._confirmations.list_all()),
            "held": self._held,
            "grants": lambda: map_in_slices(partial(grant_as_data, self._gate), self._gate.authorizer.all_grants()),
            "configuration": lambda: map_in_slices(copy, self._control.waiting_changes),
            "activity": lambda: map_in_slices(_copy_activity, self._activity),
            "problems": lambda: map_in_slices(str, self._problems()),
        }
        sections: dict[str, Any] = {}
        for name in names:
            sections[name] = await section_makers[name]()
        return cast(StateSections, sections)

    async def _entries(self) -> list[EntryRow]:
        rows: list[EntryRow] = []
        offered = [self._catalog.entries_of(server, kind) for kind in Kind for server in self._upstreams.by_id]
        for entry in [entry for entries in offered for entry in entries]:
            await pause()
            if self._gate.policies.has_server(entry.ref.server):  # a reload may have removed it in a pause
                rows.append(self._entry_as_data(entry))
        return rows

    async def _held(self) -> list[HeldRow]:
        """The held definitions: those compared before at once; of the others, as many as fit into a moment."""
        deadline = time.monotonic() + COMPARE_BUDGET
        held_entries = (await self._gate.definitions.held())[:MAX_HELD]
        rows = await map_in_slices(lambda held: held_as_data(self._gate, held, deadline), held_entries)
        self._comparing = not all(each["ready"] for each in rows)
        return rows

    async def _servers(self) -> list[ServerRow]:
        waiting = [held for held in await self._gate.definitions.held() if not held.rejected]
        held_counts = Counter(held.item.server for held in waiting)
        remarks = await self._order_remarks(waiting[:MAX_HELD])
        rows = []
        for server in list(self._upstreams.by_id):
            unmatched_rules = await self._unmatched(server)
            tools = [entry.ref for entry in self._catalog.entries_of(server, Kind.TOOL)]
            uncounted = await count_uncounted(self._gate, server, tools)
            if server in self._upstreams:  # a reload may have removed it in a pause
                upstream = self._upstreams.by_id[server]
                row = self._server_as_data(upstream, held_counts[server], unmatched_rules, uncounted)
                row["warnings"] += remarks.get(server, [])
                rows.append(row)
        return rows

    async def _order_remarks(self, waiting: list[HeldItem]) -> dict[str, list[str]]:
        """By server, a sentence on the held definitions of which only the order differs."""
        counts: Counter[tuple[str, str]] = Counter()
        for held in waiting:
            await pause()
            if remark := order_remark(self._gate, held):
                counts[held.item.server, remark] += 1
        return {
            server: [f"in {'a definition that waits' if count == 1 else f'{count} definitions that wait'}, {remark}"]
            for (server, remark), count in counts.items()
        }

    def versions(self) -> dict[str, int]:
        return dict(self._versions)

    async def wait_changed(self, since: Mapping[str, int]) -> dict[str, int]:
        while all(self._versions[section] <= since.get(section, 0) for section in SECTIONS):
            self._change = self._change or trio.Event()
            await self._change.wait()
        return self.versions()

    def mark_changed(self, *sections: str) -> None:
        """These sections of the state have changed."""
        versions = self._versions
        for section in sections:
            versions[section] += 1
        if self._change is not None:
            self._change.set()
            self._change = None

    def _on_event(self, event: Event) -> None:
        now = time.time()
        if isinstance(event, RequestCompleted):
            self._traffic[event.server].add(event, now)
            self._activity.append((now, event))
            self.mark_changed("activity", "servers")
            return
        sections = ["activity", "servers"]
        if isinstance(event, DefinitionChanged):
            sections += ["held", "catalog"]
        elif isinstance(event, DecisionMade | ConfirmationRequested):
            sections += ["confirmations", "grants"]
        elif isinstance(event, ServerReady):
            sections += ["catalog", "held", "grants", "problems"]
            self._newly_ready[event.server] = None
            self._became_ready.unpark_all()
        elif isinstance(event, ConfigReloaded):
            sections += ["catalog", "views", "held", "grants", "problems"]
            self._newly_ready |= dict.fromkeys(self._upstreams.by_id)
            for removed in self._traffic.keys() - self._upstreams.by_id.keys():
                del self._traffic[removed]
            self._became_ready.unpark_all()
        elif isinstance(event, AuditFailed):
            sections.append("problems")
        if isinstance(event, _SERVER_STATES):
            self._traffic[event.server].add_state(*_state_of(event), now)
        if not isinstance(event, _NOT_IN_ACTIVITY):
            # Elsewhere, a number may be a part of a name: what two tools are said to do is not the same.
            varies = _NUMBER_OR_ID if isinstance(event, (*_SERVER_STATES, InstanceFailed)) else _AMOUNT
            self._activity.append(self._fold(_activity_row(now, event), varies))
        self.mark_changed(*sections)

    def _fold(self, row: ActivityRow, varies: re.Pattern[str]) -> _Folded:
        """The row for the activity, together with an earlier one that says the same but for what varies, whose place it
        takes: the seventh attempt to start a server is no seventh line."""
        common = row["kind"], row["server"], varies.sub("", row["text"])
        for former in self._activity:
            if isinstance(former, _Folded) and former.common == common:
                self._activity.remove(former)
                return _Folded(common, {**row, "first": former.row["first"], "count": former.row["count"] + 1})
        return _Folded(common, row)

    def traffic(self, server: str) -> ServerTraffic:
        """Return the recent calls and states of the server."""
        now, traffic = time.time(), self._traffic.get(server, Traffic())
        states = traffic.states()
        for state in states:
            state["text"] = visible(state["text"])
        return {"now": now, "minutes": traffic.minutes(now), "quarters": traffic.quarters(now), "states": states}

    def _server_as_data(self, upstream: UpstreamServer, held: int, unmatched: list[str], uncounted: int) -> ServerRow:
        spec = upstream.spec
        traffic = self._traffic.get(spec.id, Traffic())
        p50, p95 = traffic.percentiles(time.time())
        status, state = server_status(upstream, self._catalog, self._journal), upstream.main.state
        info = state.client.negotiated.info if isinstance(state, Ready) else ()
        return {
            **status,
            "trust": spec.trust.value,
            "latency_ms": None if traffic.latency is None else round(traffic.latency * 1000, 1),
            "p50_ms": p50,
            "p95_ms": p95,
            "restarts": traffic.restarts,
            "tokens": model_tokens(sum(len(each.exported) for each in self._catalog.entries_of(spec.id, Kind.TOOL))),
            "calls": traffic.calls,
            "failed": traffic.failed,
            "tool_errors": traffic.tool_errors,
            "bytes_in": traffic.size,
            "in_flight": self._gate.decision_log.in_flight[spec.id],
            "held": held,
            "unmatched": unmatched,
            "uncounted": uncounted,
            "left_out": [visible(each) for each in upstream.main.left_out[:MAX_LEFT_OUT]],
            "list_problems": [visible(each) for each in upstream.list_problems],
            "warnings": [*warnings_of(spec, info, status["detail"], self._control.config.source), *spec.replaced],
            "settings": [visible(each) for each in spec.describe_settings()],
            "sandbox": spec.describe_sandbox(self._journal.means.get(spec.id, "")),
            "sandbox_open": spec.unconfined is Unconfined.OPEN,
            "login_failed": "" if self._logins is None else visible(self._logins.why_failed(spec.id)),
        }

    async def _unmatched(self, server: str) -> list[str]:
        """The rules that match nothing of what a ready server offers."""
        upstream = self._upstreams.by_id.get(server)
        if upstream is None or not isinstance(upstream.main.state, Ready):
            return []
        return await unmatched_rules(self._gate, self._catalog, server)

    def _entry_as_data(self, entry: Entry) -> EntryRow:
        ref = entry.ref
        decision = self._gate.definitions.evaluate(ref, None, "")
        pin_status = self._gate.definitions.status(ref)
        definition = members(entry.definition)
        shown = self._gate.definitions.is_visible_cached(ref, "")
        hidden = decision.verdict is Verdict.ALLOW and not shown and pin_status is PinStatus.APPROVED
        return {
            "server": ref.server,
            "kind": ref.kind.value,
            "name": visible(ref.name),
            "outward": visible(entry.outward),
            "title": excerpt_of(definition.get("title")),
            "description": excerpt_of(definition.get("description")),
            "verdict": Verdict.DENY.value if hidden else decision.verdict.value,
            "rule": visible(decision.rule),
            "standing": pin_status.value,
            "shown": shown,
            "fingerprint": self._gate.definitions.pins.fingerprint(ref) or "",
        }

    def _confirmation_as_data(self, confirmation: PendingConfirmation) -> ConfirmationRow:
        subject, context = confirmation.access.subject, confirmation.context
        answers = ["deny", "once", "session", "time", "always"]
        if subject.session is None:
            answers.remove("session")
        outline, texts = outlined(context.raw_arguments)
        return {
            "id": confirmation.id,
            "state": "refused" if confirmation.refused else "waiting",
            "server": subject.item.server,
            "trust": context.trust.value,
            "kind": subject.item.kind,
            "name": visible(subject.item.name),
            "summary": describe_access(confirmation.access),
            "arguments": pretty(context.raw_arguments),
            "outline": outline,
            "texts": texts,
            "others": pretty(context.others) if context.others else "",
            "caller": visible(subject.caller or "a client without a token"),
            "process": context.process.as_row() if context.process is not None and context.process.pid else None,
            "says": visible(context.says),
            "through": context.through,
            "session": subject.session is not None,
            "rule": visible(subject.rule),
            "origin": rule_origin(self._gate, subject.item.server, subject.rule),
            "asked": confirmation.created_at,
            "until": confirmation.expires_at,
            "waiting": len(confirmation.waiters),
            "why": confirmation.refused,
            "answers": answers,
            "whole_session": entry_answer(confirmation) is ConfirmationAnswer.SESSION,
            "whole_time": entry_answer(confirmation) is ConfirmationAnswer.TIME,
            "claims": [visible(claim) for claim in context.claims],
            "description": description_in(context.definition),
            "definition": definition_as_text(context.definition) if context.definition else "",
        }

    def _problems(self) -> list[str]:
        """Problems with what the host keeps, and that it is about to end."""
        mistake = self._control.file_problem
        problems = [
            self.is_draining() and "the host is stopping: it ends with what is under way, and opens no session (drain)",
            self._gate.definitions.pins.problem,
            self._gate.authorizer.grants.problem,
            self._gate.decision_log.problem,
            self.history and self.history.problem,
            mistake and f"the configuration file has a mistake and is not applied: {mistake}",
        ]
        return [visible(problem) for problem in (*problems, *_fleet_problems(self.fleet())) if problem]


def _fleet_problems(fleet: FleetStatus | None) -> Iterator[str]:
    """The sentences about the other members: they serve the same clients."""
    if fleet is None:
        return
    for member in fleet["members"]:
        if not member["equal_rules"]:
            yield (
                f"the process at {member['address']} of the fleet {fleet['name']} has other servers, rules or views "
                "in its configuration: what a client may do depends on the process that it reaches"
            )


def _copy_activity(noted: _Folded | tuple[float, RequestCompleted]) -> ActivityRow:
    return {**noted.row} if isinstance(noted, _Folded) else _activity_row(*noted)


def _activity_row(t: float, event: Event) -> ActivityRow:
    return {
        "t": t,
        "first": t,
        "count": 1,
        "kind": type(event).__name__,
        "server": getattr(event, "server", ""),
        "text": visible(str(event)),
        "level": event.severity.name.lower(),
    }


def _state_of(event: ServerReady | ServerFailed | ServerStopped | ServerHeld | ServerNeedsLogin) -> tuple[str, str]:
    """The state that a server has come into, in a word, and what is said about it."""
    match event:
        case ServerReady(counts=counts):
            return "ready", counts
        case ServerStopped():
            return "stopped", "not used"
        case ServerFailed(why=why):
            return "failed", why
        case ServerHeld():
            return "held", event.why
    return "needs login", event.why
