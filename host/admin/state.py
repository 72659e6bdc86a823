"""The admin API without its doors: what a person can see of a running host and decide, in plain data. Nothing of MCP
leads here.

Texts of servers are made visible before they are shown, character for character. Each section of the state has a number
that grows with every change, so that a reader fetches only what is new.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast, final

import trio
from msgspec import Raw

from config import Channel, HttpServer, ServerSpec, Verdict
from config.problems import did_you_mean
from config.when import WhenError, read_when
from host.admin.decisions import NO_HOST, PolicyAdmin
from host.admin.schema import (
    SECTIONS,
    ActivityRow,
    AdminError,
    AdminState,
    ConfirmationRow,
    Done,
    EntryRow,
    HostControl,
    HostInfo,
    HostStatus,
    LoginProposal,
    ServerLog,
    ServerRow,
    StateSections,
)
from host.admin.status import server_status, usage
from host.admin.warnings import warnings_of
from host.catalog import Entry
from host.errors import ColonnadeError
from host.journal import (
    AuditFailed,
    ConfigReloaded,
    ConfirmationRequested,
    DecisionMade,
    DefinitionChanged,
    Event,
    InternalError,
    MessageDropped,
    OutputLine,
    RequestCompleted,
    RuleUnused,
    ServerReady,
)
from host.jsonrpc.raw import members, value
from host.oauth.problem import OAuthProblem
from host.policy.conditions import conditions_hold
from host.policy.confirmations import (
    ConfirmationAnswer,
    ConfirmationQueue,
    PendingConfirmation,
    can_allow_entry,
    describe_access,
)
from host.policy.explain import definition_as_text, description_in, grant_as_data, held_as_data, unmatched_rules
from host.policy.fingerprint import pretty
from host.policy.pin_rules import PinStatus
from host.policy.rows import ChangeRow, HeldRow
from host.protocol.methods import Kind
from host.sanitize import visible
from host.slices import Steps, Waiting, map_in_steps
from host.storage.store import StateError
from host.upstream.connect import why_no_login
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

T = TypeVar("T")

_NOT_IN_ACTIVITY = (OutputLine, MessageDropped)


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


@final
class _Waited(Waiting, Generic[T]):
    """An async function, as a step. `outcome`: what it returned."""

    outcome: T

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work

    async def wait(self) -> None:
        self.outcome = await self._work()

    def block(self) -> None:
        raise NotImplementedError  # a host runs in an event loop only


class HostAdmin(PolicyAdmin):
    """Implements `host.admin.schema.AdminApi`.

    Args:
        control: the configuration in effect, and what a person can have done to it.
        stdio: the host serves one client on its standard input and output.
        endpoint: the URL of the endpoint; empty over stdio.

    `new_console_url` makes an address that opens the web console once; None if there is no web console.
    """

    def __init__(
        self,
        control: HostControl,
        runtime: Runtime,
        upstreams: Upstreams,
        *,
        stdio: bool,
        endpoint: str = "",
    ) -> None:
        self.new_console_url: Callable[[], str] | None = None
        super().__init__(runtime.gate)
        self._started = trio.current_time()
        self._control = control
        self._upstreams = upstreams
        self._catalog = runtime.catalog
        self._confirmations: ConfirmationQueue = runtime.gate.authorizer.confirmations
        self._stdio = stdio
        self._endpoint = endpoint
        self._versions: Counter[str] = Counter(dict.fromkeys(SECTIONS, 1))
        self._change_waiters = trio.lowlevel.ParkingLot()
        self._activity: deque[ActivityRow | tuple[float, RequestCompleted]] = deque(maxlen=MAX_ACTIVITY)
        """The last events. Requests, of which there may be thousands in a second, become rows when somebody looks."""
        self._traffic: defaultdict[str, _Traffic] = defaultdict(_Traffic)
        self._journal = runtime.journal
        self._logins = runtime.logins
        self._reported_problems: list[str] = []
        self._comparing = False
        """Whether some of what is held back is still to be compared."""
        self._newly_ready: dict[str, None] = {}
        """Servers whose rules are to be held against what they list, in the order in which they became ready."""
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
            self.mark_changed("catalog", "held", "servers")

    async def _report_unmatched(self) -> None:
        while True:
            while not self._newly_ready:
                await self._became_ready.park()
            server = next(iter(self._newly_ready))
            del self._newly_ready[server]
            for rule in await self._catalog.slices.run(unmatched_rules(self._gate, self._catalog, server)):
                self._journal.note(RuleUnused(server, rule))

    async def _poll_decisions(self) -> None:
        while True:
            await trio.sleep(POLL_INTERVAL)
            try:
                await self.reload_decisions()
            except Exception as problem:  # noqa: BLE001 - errors in files of other processes must not end the host
                self._journal.note(InternalError("looking at what other hosts decided", problem))

    async def reload_decisions(self) -> None:
        """Take over the decisions that other processes of the user have stored."""
        changed = await self.run_steps(self._gate.definitions.pins.reread())
        if changed:
            self._gate.definitions.invalidate(changed)
            self.mark_changed("held", "catalog", "servers")
        if self._gate.authorizer.grants.reread():
            self._confirmations.release_covered()
            self.mark_changed("grants")
        with suppress(StateError):  # a problem of the grants, which is shown
            await self.run_steps(self._gate.authorizer.grants.store_revocations())
        if self._confirmations.drop_expired():
            self.mark_changed("confirmations")
        if self._comparing:
            self.mark_changed("held")
        if self._problems() != self._reported_problems:
            self._reported_problems = self._problems()
            self.mark_changed("problems")

    async def run_steps(self, steps: Steps[T]) -> T:
        return await self._catalog.slices.run(steps)

    # State

    def host_info(self) -> HostInfo:
        return {
            "colonnade": VERSION,
            "config": os.path.realpath(self._control.config.source),
            "pid": os.getpid(),
            "stdio": self._stdio,
            "endpoint": self._endpoint,
        }

    async def status(self) -> HostStatus:
        servers = (await self.sections(["servers"]))["servers"]
        return {
            **self.host_info(),
            "uptime": round(trio.current_time() - self._started, 1),
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

    async def state(self) -> AdminState:
        sections = await self.sections(SECTIONS)
        return cast(AdminState, {**self.host_info(), **sections})

    async def sections(self, names: Collection[str]) -> StateSections:
        return await self.run_steps(self.sections_in_steps(names))

    def sections_in_steps(self, names: Collection[str]) -> Steps[StateSections]:
        section_makers: dict[str, Callable[[], Steps[list[Any]]]] = {
            "servers": self._servers,
            "catalog": self._entries,
            "confirmations": lambda: map_in_steps(self._confirmation_as_data, self._confirmations.list_all()),
            "held": self._held,
            "grants": lambda: map_in_steps(partial(grant_as_data, self._gate), self._gate.authorizer.grants.all()),
            "configuration": lambda: map_in_steps(_copy_change, self._control.waiting_changes),
            "activity": lambda: map_in_steps(_copy_activity, self._activity),
            "problems": lambda: map_in_steps(str, self._problems()),
        }
        sections: dict[str, Any] = {}
        for name in names:
            sections[name] = yield from section_makers[name]()
        return cast(StateSections, sections)

    def _entries(self) -> Steps[list[EntryRow]]:
        rows: list[EntryRow] = []
        for entry in [entry for kind in Kind for entry in self._entries_of_kind(kind)]:
            yield None
            if self._gate.policies.has_server(entry.ref.server):  # a reload may have removed it since the step before
                rows.append(self._entry_as_data(entry))
        return rows

    def _held(self) -> Steps[list[HeldRow]]:
        """The held definitions: those compared before at once; of the others, as many as fit into a moment."""
        deadline = time.monotonic() + COMPARE_BUDGET
        held_entries = (yield from self._gate.definitions.held_in_steps())[:MAX_HELD]
        rows = yield from map_in_steps(lambda held: held_as_data(self._gate, held, deadline), held_entries)
        self._comparing = not all(each["ready"] for each in rows)
        return rows

    def _servers(self) -> Steps[list[ServerRow]]:
        held_counts = Counter(
            held.item.server for held in (yield from self._gate.definitions.held_in_steps()) if not held.rejected
        )
        rows = []
        for server in list(self._upstreams.by_id):
            unmatched_rules = yield from self._unmatched(server)
            if server in self._upstreams:  # a reload may have removed it since the step before
                rows.append(self._server_as_data(self._upstreams.by_id[server], held_counts[server], unmatched_rules))
        return rows

    def versions(self) -> dict[str, int]:
        return dict(self._versions)

    async def wait_changed(self, since: Mapping[str, int]) -> dict[str, int]:
        while all(self._versions[section] <= since.get(section, 0) for section in SECTIONS):
            await self._change_waiters.park()
        return self.versions()

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        return self._confirmations.attach(channel)

    def console_url(self) -> str:
        if self.new_console_url is None:
            raise AdminError("this host has no web console (console: off)")
        return self.new_console_url()

    # Decisions

    def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Steps[Done]:
        if channel not in self._confirmations.spec.answers:
            raise AdminError(f"the configuration does not let the {channel.value} answer (ask.answers)")
        pending = next((confirmation for confirmation in self._confirmations.list_all() if confirmation.id == id), None)
        if pending is None:
            raise AdminError("this confirmation is no longer pending: it was answered, withdrawn, or is void")
        choice = ConfirmationAnswer(answer)
        if choice is ConfirmationAnswer.SESSION and pending.access.subject.session is None:
            raise AdminError("the caller has no session, so it cannot be allowed for a session")
        try:
            when = read_when(arguments) if isinstance(arguments, dict) else ()
        except WhenError as problem:
            raise AdminError(f"these conditions cannot be read: {problem}") from None
        if when and conditions_hold(when, pending.access.arguments) is not True:
            raise AdminError("these conditions do not hold for the arguments of this very call")
        try:
            answered = yield from self._confirmations.answer(
                id, choice, channel, seconds=seconds, when=when, exact=arguments == "exact"
            )
        except ColonnadeError as problem:
            raise AdminError(problem.message) from None
        except StateError as problem:
            raise AdminError(f"it cannot be written down: {problem}") from None
        if answered is None:
            raise AdminError("this confirmation is no longer pending")
        if choice is ConfirmationAnswer.DENY:
            return {"done": f"{describe_access(answered.access)}: denied."}
        waits = "it goes on now" if not answered.refused else "nothing waits any more; the next call like it passes"
        return {"done": f"{describe_access(answered.access)}: allowed ({answer}); {waits}."}

    def deny_all(self, server: str, ids: list[str], channel: Channel) -> Steps[Done]:
        if channel not in self._confirmations.spec.answers:
            raise AdminError(f"the configuration does not let the {channel.value} answer (ask.answers)")
        wanted = set(ids)
        known = [each for each in self._confirmations.list_all() if each.id in wanted]
        shown = [each for each in known if each.access.subject.item.server == server]
        denied = 0
        for each in shown:
            answered = yield from self._confirmations.answer(each.id, ConfirmationAnswer.DENY, channel)
            denied += answered is not None
        if not denied:
            raise AdminError("none of these confirmations is pending any more: look again")
        return {"done": f"{denied} confirmation{'' if denied == 1 else 's'} of {server}: denied."}

    # The running host

    def control(self, server: str, action: str) -> Steps[Done]:
        yield None
        spec = self._spec(server)
        if action == "restart":
            if spec.disabled:
                raise AdminError(f"{server} is disabled; `colonnade enable {server}` takes it in")
            self._control.restart(server)
            done = "it restarts; calls in progress have some seconds to end"
            if any(change["server"] == server for change in self._control.waiting_changes):
                done += ". A change of it in the file waits for you: colonnade reload"
        elif spec.disabled is (action == "disable"):
            raise AdminError(f"{server} is {action}d already")
        else:
            self._control.set_disabled(server, disabled=action == "disable")
            ends = {
                "enable": "the configuration is read again or the host is restarted",
                "disable": "`colonnade enable`, `colonnade reload` or a restart of the host",
            }
            done = f"it is {action}d until {ends[action]}"
        self.mark_changed("servers", "catalog", "held")
        return {"done": f"{server}: {done}."}

    def reload(self, *, apply: bool, shown: str | None) -> Steps[Done]:
        compare: Callable[[], Awaitable[ConfigReloaded | None]] = self._control.compare
        reading = _Waited(partial(self._control.reload, shown=shown) if apply else compare)
        yield reading
        if reading.outcome is not None and reading.outcome.failed:
            raise AdminError(str(reading.outcome))
        if reading.outcome is None:
            count = len(self._control.waiting_changes)
            return {"done": f"changes of the configuration that wait for a person: {count}."}
        return {"done": f"{reading.outcome}."}

    def login(self, server: str, channel: Channel) -> Steps[LoginProposal]:
        spec = self._spec(server)
        if spec.disabled:
            raise AdminError(f"{server} is disabled; `colonnade enable {server}` takes it in")
        if why := why_no_login(spec):
            raise AdminError(why)
        assert isinstance(spec, HttpServer)
        connecting = _Waited(partial(self._connect, spec, channel))
        yield connecting
        self.mark_changed("servers")
        return connecting.outcome

    async def _connect(self, spec: HttpServer, channel: Channel) -> LoginProposal:
        """Open a login, and find out what it will be for. What fails is an AdminError."""
        if self._logins is None:
            raise AdminError(NO_HOST)
        try:
            login, proposed = await self._logins.connect(spec, channel.value)
        except (OAuthProblem, StateError) as problem:
            raise AdminError(f"{spec.id}: {problem}") from None
        return {
            "server": spec.id,
            "issuer": visible(proposed.issuer.id),
            "page": visible(proposed.page_elsewhere),
            "resource": visible(proposed.resource),
            "scopes": [visible(scope) for scope in proposed.scopes],
            "redirect": proposed.redirect_uri,
            "former_issuer": visible(proposed.former_issuer) if proposed.is_other_issuer else "",
            "link": login.callback.start_url,
            "until": login.until,
        }

    def server_log(self, server: str, after: int) -> Steps[ServerLog]:
        yield None
        self._spec(server)
        lines = self._journal.output(server, after)
        return {"lines": [{"n": each.number, "t": each.t, "line": each.line, "stream": each.stream} for each in lines]}

    def _spec(self, server: str) -> ServerSpec:
        """The configuration of a server; raises AdminError if there is none."""
        servers = self._control.config.servers
        if server not in servers:
            remedy = did_you_mean(server, servers) or f"its servers are {', '.join(servers)}"
            raise AdminError(f"there is no server {visible(server)} in the configuration; {remedy}")
        return servers[server]

    # Rows

    def mark_changed(self, *sections: str) -> None:
        for section in sections:
            self._versions[section] += 1
        if self._change_waiters:
            self._change_waiters.unpark_all()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, RequestCompleted):
            self._traffic[event.server].add(event)
            self._activity.append((time.time(), event))
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
            sections += ["catalog", "held", "grants", "problems"]
        elif isinstance(event, AuditFailed):
            sections.append("problems")
        if not isinstance(event, _NOT_IN_ACTIVITY):
            self._activity.append(_activity_row(time.time(), event))
        self.mark_changed(*sections)

    def _entries_of_kind(self, kind: Kind) -> list[Entry]:
        return [entry for server in self._upstreams.by_id for entry in self._catalog.entries_of(server, kind)]

    def _server_as_data(self, upstream: UpstreamServer, held: int, unmatched: list[str]) -> ServerRow:
        spec = upstream.spec
        traffic = self._traffic.get(spec.id, _Traffic())
        return {
            **server_status(upstream, self._catalog, self._journal),
            "trust": spec.trust.value,
            "latency_ms": None if traffic.latency is None else round(traffic.latency * 1000, 1),
            "calls": traffic.calls,
            "failed": traffic.failed,
            "bytes_in": traffic.size,
            "in_flight": self._gate.decision_log.in_flight[spec.id],
            "held": held,
            "unmatched": unmatched,
            "left_out": [visible(each) for each in upstream.main.left_out[:MAX_LEFT_OUT]],
            "list_problems": [visible(each) for each in upstream.list_problems],
            "warnings": warnings_of(spec),
            "login_failed": "" if self._logins is None else visible(self._logins.why_failed(spec.id)),
        }

    def _unmatched(self, server: str) -> Steps[list[str]]:
        """The rules that match nothing of what a ready server offers."""
        upstream = self._upstreams.by_id.get(server)
        if upstream is None or not isinstance(upstream.main.state, Ready):
            return []
        return (yield from unmatched_rules(self._gate, self._catalog, server))

    def _entry_as_data(self, entry: Entry) -> EntryRow:
        ref = entry.ref
        decision = self._gate.policies.rules(ref.server).evaluate(ref.kind, ref.name)
        pin_status = self._gate.definitions.status(ref)
        definition = members(entry.definition)
        shown = self._gate.definitions.is_visible_cached(ref)
        hidden = decision.verdict is Verdict.ALLOW and not shown and pin_status is PinStatus.APPROVED
        return {
            "server": ref.server,
            "kind": ref.kind.value,
            "name": visible(ref.name),
            "outward": visible(entry.outward),
            "title": _text(definition.get("title")),
            "description": _text(definition.get("description")),
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
        return {
            "id": confirmation.id,
            "state": "refused" if confirmation.refused else "waiting",
            "server": subject.item.server,
            "trust": context.trust.value,
            "kind": subject.item.kind,
            "name": visible(subject.item.name),
            "summary": describe_access(confirmation.access),
            "arguments": pretty(context.raw_arguments),
            "others": pretty(context.others) if context.others else "",
            "caller": visible(subject.caller or "a client without a name"),
            "session": subject.session is not None,
            "rule": visible(subject.rule),
            "asked": confirmation.created_at,
            "until": confirmation.expires_at,
            "waiting": len(confirmation.waiters),
            "why": confirmation.refused,
            "answers": answers,
            "whole_session": can_allow_entry(confirmation),
            "claims": [visible(claim) for claim in context.claims],
            "description": description_in(context.definition),
            "definition": definition_as_text(context.definition) if context.definition else "",
        }

    def _problems(self) -> list[str]:
        """Problems with what the host keeps."""
        mistake = self._control.file_problem
        problems = [
            self._gate.definitions.pins.problem,
            self._gate.authorizer.grants.problem,
            self._gate.decision_log.problem,
            mistake and f"the configuration file has a mistake and is not applied: {mistake}",
        ]
        return [visible(problem) for problem in problems if problem]


def _copy_change(row: ChangeRow) -> ChangeRow:
    return {**row}


def _copy_activity(noted: ActivityRow | tuple[float, RequestCompleted]) -> ActivityRow:
    return _activity_row(*noted) if isinstance(noted, tuple) else {**noted}


def _activity_row(t: float, event: Event) -> ActivityRow:
    return {
        "t": t,
        "kind": type(event).__name__,
        "server": getattr(event, "server", ""),
        "text": visible(str(event)),
        "level": event.severity.name.lower(),
    }


def _text(raw: Raw | None) -> str:
    try:
        text = "" if raw is None else value(raw)
    except ValueError:
        text = ""
    return visible(text)[:500] if isinstance(text, str) else ""
