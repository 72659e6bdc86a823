"""The decision log: writes every decision to the audit, and announces to the journal what people watch.

A decision is written before its request is sent; if it cannot be written, nothing is sent. Events that have already
happened are written if possible, and announced in any case.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self, TypeVar

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from config import Verdict
from config.read import read_bytes
from host.attempts import LONGEST_NAME, Attempt, Attempts, cut
from host.audit.contents import Contents
from host.audit.records import RecordForm
from host.audit.shapes import shape_of, shape_of_long
from host.audit.writer import Audit
from host.client_process import ClientProcess
from host.errors import AuditUnavailable, ColonnadeError
from host.exchange import Caller
from host.journal import (
    EXCERPT_LENGTH,
    AttemptRefused,
    AttemptsUnnamed,
    AuditFailed,
    CallDenied,
    ConfirmationRequested,
    DecisionMade,
    DecisionRefused,
    DefinitionChanged,
    DefinitionsLost,
    Journal,
    RequestCompleted,
)
from host.policy.conditions import LONGEST_DECODED, decode_arguments
from host.policy.confirmations import PendingConfirmation, describe_access
from host.policy.grants import Grant
from host.policy.pin_rules import PinStatus
from host.policy.pins import Change
from host.sanitize import visible
from host.slices import pause
from host.source import Aspect
from host.subject import Item, Subject

T = TypeVar("T")


class AuditRecord(Struct, frozen=True):
    """A request to a server's entry, or a server's request to a client (without a `method`), which is to be sent or was
    refused."""

    subject: Subject
    method: str
    client: str
    """The name of the caller, for the log."""
    raw_arguments: Raw
    verdict: Verdict
    grant: Grant | None = None
    process: ClientProcess | None = None
    """The program that the caller is; None if it is not known."""
    through: str = ""
    """See `Exchange.through`."""
    opened_arguments: Mapping[str, Raw] | None = None
    """The members of the arguments, if they are known."""
    view: str = ""
    """The view in effect for the caller; empty for that of everything."""
    says: str = ""
    """See `Caller.says`."""
    trace_id: str = ""
    """See `host.journal.Answering`; for the log."""


class LoginFacts(Protocol):
    """The recorded part of a login: never a token."""

    @property
    def issuer(self) -> str: ...

    @property
    def resource(self) -> str: ...

    @property
    def scopes(self) -> Sequence[str]: ...


LONGEST_TEXT = 200
"""Characters of a text in a record. A longer text is replaced by its first characters and a digest."""
MAX_CHANGE_RECORDS = 20
"""Changes of one list that get a record each; if there are more, one record summarizes them."""
MAX_CHANGES_AT_ONCE = 100
CHANGES_A_MINUTE = 6.0
"""Records of changed definitions that a server may cause at once, and in a minute after that. Further changes are
folded."""
FOLD_INTERVAL = 60.0
"""Seconds for which refused attempts, and changes of a server that makes too many, are folded before they are recorded.
"""
ANNOUNCE_INTERVAL = 1.0
"""Seconds after which a refused attempt is announced at the latest."""
MAX_FORMS = 1024
"""Forms of records that are kept, of about a kilobyte each."""
_DECISION = (
    *("server", "prim", "item", "item_fp", "launch_fp", "principal", "rule", "method", "verdict", "grant", "approver"),
)
"""The members that all decisions of one form have in common."""
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_BOUNDED = frozenset(("args", "items"))
"""Fields that are short enough as they are made, or, with arguments in full, are meant to be whole."""


class ChangeSummary(Struct, frozen=True):
    """Summary of many changes of one list of a server. `digest` is a SHA-256 over all of them in the server's order,
    each as the canonical JSON of [name, fingerprint, former fingerprint, status]: with the definitions one can prove
    which changes were seen, and their status."""

    first_change: Change
    names: tuple[str, ...]
    """The first MAX_CHANGE_RECORDS names, shortened by `shorten`."""
    counts: Mapping[str, int]
    """Number of changes by status."""
    known: int
    """Number of changes whose names were seen before."""
    digest: str


def shorten(text: str) -> str:
    """A text as it stands in a record. A shortened text is longer than any complete one, so that neither can pass for
    the other."""
    if len(text) <= LONGEST_TEXT:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:LONGEST_TEXT]}... sha256:{digest}"


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return shorten(value)
    if isinstance(value, Mapping):
        return {name: _bounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value]
    return value


async def summarize(changes: Sequence[Change]) -> ChangeSummary | None:
    """The summary of changes of one list; None if they are few enough for a record each."""
    if len(changes) <= MAX_CHANGE_RECORDS:
        return None
    sums = _ChangeSums()
    for change in changes:
        await pause()
        sums.add(change)
    return sums.summary(changes)


class _ChangeSums:
    """Sums up changes of one list, one by one."""

    def __init__(self, changes: Sequence[Change] = ()) -> None:
        self._names: list[str] = []
        self._counts = Counter[str]()
        self._known = 0
        self._digest = hashlib.sha256()
        for change in changes:
            self.add(change)

    def add(self, change: Change) -> None:
        if len(self._names) < MAX_CHANGE_RECORDS:
            self._names.append(shorten(change.item.name))
        parts = [change.item.name, change.fingerprint, change.was or "", change.status.value]
        self._digest.update(_ENCODER.encode(parts).encode("ascii"))
        self._counts[change.status.value] += 1
        self._known += not change.first

    def summary(self, changes: Sequence[Change]) -> ChangeSummary:
        """The summary of these changes, which were added."""
        held = [change for change in changes if change.status is not PinStatus.APPROVED]
        # One that says something else stands before those of which only the order differs: one line is about all of
        # them.
        first = min(held, key=lambda change: change.reordered, default=changes[0])
        digest = f"sha256:{self._digest.hexdigest()}"
        return ChangeSummary(first, tuple(self._names), self._counts, self._known, digest)


class _FoldedChanges:
    """The changes that a server made in several readings of a list."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts = Counter[str]()
        self.known = self.readings = 0
        self.digest = hashlib.sha256()
        self.last: tuple[Change, str, str] | None = None
        """The first change of the last reading that says most, its outcome and the remedy."""

    def add(self, summary: ChangeSummary, what: str, remedy: str) -> None:
        new = [name for name in summary.names if name not in self.names]
        self.names += new[: MAX_CHANGE_RECORDS - len(self.names)]
        self.counts.update(summary.counts)
        self.known += summary.known
        self.readings += 1
        self.digest.update(summary.digest.encode())
        if what != "reordered" or self.last is None or self.last[1] != "held":  # as in a summary
            self.last = summary.first_change, what, remedy


class DecisionLog:
    """Writes decisions and outcomes.

    Attributes:
        full_arguments: the audit holds arguments in full, not only their shape and digest.
        contents: what it holds of arguments otherwise, and of results; None for nothing.
    """

    def __init__(self, audit: Audit, journal: Journal) -> None:
        self.problem = ""
        """The reason why records cannot be written; empty while they can."""
        self.in_flight: Counter[str] = Counter()
        """Number of requests in flight, by server."""
        self.denied: Counter[str] = Counter()
        """Number of requests that were denied and recorded, by server."""
        self.full_arguments = False
        self.contents: Contents | None = None
        self.has_files = audit.has_files
        self._audit = audit
        self.journal = journal
        self._peer: Mapping[str, object] | None = None
        self._forms: dict[object, RecordForm] = {}
        """Forms of decisions and outcomes, by what their records have in common."""
        self._attempts = Attempts()
        self._folds: dict[tuple[str, str], _FoldedChanges] = {}
        """Changes that wait to be recorded together, by server and kind."""
        self._change_records: dict[str, tuple[float, float]] = {}
        """Records of changes that each server may still cause, and the time at which that was computed."""
        self._has_folded = trio.lowlevel.ParkingLot()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush_attempts()
        self.flush_changes()

    @cached_property
    def now(self) -> Callable[[], float]:
        """The clock of trio, kept: `trio.current_time` looks it up each time."""
        return trio.lowlevel.current_clock().current_time

    # Before

    def record_or_fail(self, what: str, **fields: object) -> int:
        """Write a record of something that is about to happen, and return its number.

        Raises:
            AuditUnavailable: it cannot be written, so it must not happen.
        """
        return self._write_or_fail(*self._form(what, fields))

    def _write_or_fail(self, form: RecordForm, *values: object) -> int:
        try:
            seq = self._audit.write_form(form, *values)
        except AuditUnavailable as problem:
            self._fail(problem)
            raise
        self.problem = ""
        return seq

    def is_recorded(self) -> bool:
        """Whether records can be written. Where the last one could not, another one is tried: balancers send no
        requests that would do so."""
        if self.problem:
            with suppress(AuditUnavailable):
                self.record_or_fail("resumed", why=self.problem)
        return not self.problem

    @contextmanager
    def recording(self, record: AuditRecord) -> Iterator[RequestRecord]:
        """Write the decision, and send the request within this block. `RequestRecord.end` may end its record earlier.

        Raises:
            AuditUnavailable: the decision cannot be written, so the request must not be sent.
        """
        request_record = RequestRecord(self)
        request_record.begin(record)
        try:
            yield request_record
        except BaseException as problem:
            request_record.fail(problem)
            raise
        request_record.end()

    @contextmanager
    def attributing(self, peer: Mapping[str, object]) -> Iterator[None]:
        """Name the deciding process in every record that is written in this block, which must not wait. Those of
        requests are written elsewhere: each in the task of its request."""
        self._peer = peer
        try:
            yield
        finally:
            self._peer = None

    def _form(self, what: str, fields: dict[str, object]) -> tuple[RecordForm, *tuple[object, ...]]:
        """The form of any record, and its values. Texts come from servers, clients and the configuration, and only the
        number of records is limited elsewhere; this function limits their length."""
        if self._peer is not None:
            fields["peer"] = self._peer
        values = (value if name in _BOUNDED else _bounded(value) for name, value in fields.items())
        return RecordForm(what, {}, tuple(fields)), *values

    # After

    def record_refused_peer(self, peer: Mapping[str, object], why: str, unrecorded: int) -> None:
        """Record a process that tried to decide without permission, and `unrecorded` more such attempts since the last
        record of this kind."""
        more = {"unrecorded": unrecorded} if unrecorded else {}
        self.record("refused", peer=peer, why=why, **more)
        self.journal.note(DecisionRefused(f"{visible(str(peer.get('name', 'unknown')))} ({peer['pid']})", why))

    def record_attempt(self, attempt: Attempt) -> None:
        """Count a refused attempt. It is announced and recorded by `keep_folded`, so that the response takes the same
        time whatever the reason, and a flood is one record."""
        if len(attempt.name) > LONGEST_NAME:
            attempt = replace(attempt, name=cut(attempt.name))
        self._attempts.add(attempt, time.time())
        self._has_folded.unpark_all()

    async def keep_folded(self) -> None:
        """Announce refused attempts when they are first made, and record them with their number once a minute, and
        folded changes, until cancelled."""
        while True:
            while not (self._attempts or self._folds):
                await self._has_folded.park()
            minute_end = trio.current_time() + FOLD_INTERVAL
            while trio.current_time() < minute_end:
                await trio.sleep(ANNOUNCE_INTERVAL)
                self._announce_attempts()
            self.flush_attempts()
            self.flush_changes()

    def _announce_attempts(self) -> None:
        for attempt in self._attempts.fresh:
            self.journal.note(AttemptRefused(attempt.server, attempt))
        self._attempts.fresh.clear()

    def flush_attempts(self) -> None:
        """Record the refused attempts since the last time. A crash loses them."""
        self._announce_attempts()
        rows, others = self._attempts.take()
        for attempt, count, first in rows:
            self.record(
                "attempts",
                server=attempt.server,
                prim=attempt.kind,
                item=attempt.name,
                principal=attempt.principal,
                client=attempt.client,
                address=attempt.address,
                why=attempt.reason.value,
                count=count,
                first=datetime.fromtimestamp(first, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            )
            if count > 1:
                self.journal.note(AttemptRefused(attempt.server, attempt, count))
        if others:
            self.record("attempts", others=others, count=sum(others.values()))
            self.journal.note(AttemptsUnnamed(sum(others.values())))

    def record(self, what: str, **fields: object) -> None:
        """Record something that has already happened; a failure to write does not undo it."""
        self._write_or_announce(*self._form(what, fields))

    def _write_or_announce(self, form: RecordForm, *values: object) -> None:
        try:
            self._audit.write_form(form, *values)
        except AuditUnavailable as problem:
            self._fail(problem)

    def record_denied(self, record: AuditRecord) -> None:
        """Record and announce a request that was denied, and is not sent."""
        item, rule = record.subject.item, record.subject.rule
        self.denied[item.server] += 1
        self._write_or_announce(*self._decision(record))
        facts = item.name[: EXCERPT_LENGTH + 1], record.client, rule, record.trace_id
        self.journal.note(CallDenied(item.server, item.kind, *facts))

    def record_changes(
        self,
        changes: Sequence[Change],
        summary: ChangeSummary | None,
        outcome: Callable[[Change], str],
        remedy: str = "",
    ) -> None:
        """Record that a server offers new or changed definitions: each of them, or their summary. What a server changes
        for long and without a pause is folded to one record a minute, so that it cannot fill the disk.

        Args:
            changes: of one list, at least one.
            outcome: returns the outcome of a change; see `DefinitionChanged`.
            remedy: what makes the server write the same order at each start.
        """
        key = changes[0].item.server, changes[0].item.kind
        if key in self._folds or not self._may_record(*key, count=1 if summary else len(changes)):
            whole = summary or _ChangeSums(changes).summary(changes)
            self._folds.setdefault(key, _FoldedChanges()).add(whole, outcome(whole.first_change), remedy)
            self._has_folded.unpark_all()
        elif summary is not None:
            self.record_change_summary(summary, outcome(summary.first_change), remedy)
        else:
            for change in changes:
                self.record_change(change, outcome(change), remedy)

    def _may_record(self, server: str, kind: str, count: int) -> bool:
        now = time.monotonic()
        left, at = self._change_records.get(server, (MAX_CHANGES_AT_ONCE, now))
        left = min(left + (now - at) * CHANGES_A_MINUTE / 60, MAX_CHANGES_AT_ONCE)
        may = kind == Aspect.LAUNCH or left >= count  # programs are not started often
        self._change_records[server] = (left - count if may else left), now
        return may

    def flush_changes(self, server: str | None = None) -> None:
        """Record the folded changes of this server (None: of all servers). A crash loses them."""
        for key in [key for key in self._folds if server in (None, key[0])]:
            fold = self._folds.pop(key)
            self.record(
                "definitions",
                server=key[0],
                prim=key[1],
                items=tuple(fold.names),
                counts=fold.counts,
                digest=f"sha256:{fold.digest.hexdigest()}",
                readings=fold.readings,
            )
            if fold.known and fold.last is not None:
                change, what, remedy = fold.last
                self._announce_change(change.item, what, remedy, fold.known)

    def record_change(self, change: Change, what: str, remedy: str = "") -> None:
        """Record that a server offers a new or changed definition; see `DefinitionChanged` for `what`, and
        `record_changes` for `remedy`."""
        self.record(
            "pinned" if change.status is PinStatus.APPROVED else "held",
            server=change.item.server,
            prim=change.item.kind,
            item=change.item.name,
            item_fp=change.fingerprint,
            was=change.was or "",
            standing=change.status.value,
        )
        if not change.first:
            self._announce_change(change.item, what, remedy)

    def record_change_summary(self, summary: ChangeSummary, what: str, remedy: str = "") -> None:
        """Record that a server offers many new or changed definitions. `what` is the outcome of the first held one, or
        of the first."""
        first = summary.first_change.item
        self.record(
            "definitions",
            server=first.server,
            prim=first.kind,
            items=summary.names,
            counts=summary.counts,
            digest=summary.digest,
        )
        if summary.known:
            self._announce_change(first, what, remedy, summary.known)

    def _announce_change(self, item: Item, what: str, remedy: str, count: int = 1) -> None:
        said = remedy if what == "reordered" else ""
        self.journal.note(DefinitionChanged(item.server, item.kind, item.name, what, count, said))

    def record_definition_decision(self, what: str, item: Item, fingerprint: str, by: str) -> None:
        """Record that a person is about to decide about a definition; raises as `record_or_fail` does."""
        self.flush_changes(item.server)
        self.record_or_fail(what, server=item.server, prim=item.kind, item=item.name, item_fp=fingerprint, by=by)

    def announce_definition_decision(self, what: str, item: Item, by: str) -> None:
        """Announce a decision about a definition that was stored."""
        self.journal.note(DecisionMade(item.server, f"{item.kind} {visible(item.name)[:200]}".rstrip(), what, by))

    def record_confirmation(self, what: str, confirmation: PendingConfirmation, said: dict[str, object]) -> None:
        """Record an event of a confirmation. A grant must be recorded: raises as `record_or_fail` does. `granted` is
        also announced."""
        subject, item, context = confirmation.access.subject, confirmation.access.subject.item, confirmation.context
        if what == "granted":
            self._announce_answer(confirmation, said)
            return
        write = self.record_or_fail if "grant" in said else self.record
        write(
            what,
            question=confirmation.id,
            server=item.server,
            prim=item.kind,
            item=item.name,
            principal=subject.caller or "",
            rule=subject.rule,
            args={"canonical": subject.digest},
            **({"client": context.client} if context.client else {}),
            **({"agent": context.says} if context.says else {}),
            **_program(context.process),
            **said,
        )
        if what == "ask":
            facts = describe_access(confirmation.access), confirmation.refused, context.client, context.trace_id
            self.journal.note(ConfirmationRequested(item.server, confirmation.id, *facts))
        elif "grant" not in said:
            self._announce_answer(confirmation, said)

    def _announce_answer(self, confirmation: PendingConfirmation, said: dict[str, object]) -> None:
        access, context = confirmation.access, confirmation.context
        facts = describe_access(access), str(said["answer"]), str(said.get("by", "")), context.client, context.trace_id
        self.journal.note(DecisionMade(access.subject.item.server, *facts))

    def record_configuration(self, what: str, source: Path) -> None:
        """Record which text of the configuration takes effect (`config`), or was read and refused
        (`config_rejected`)."""
        try:
            digest = f"sha256:{hashlib.sha256(read_bytes(source)).hexdigest()}"
        except OSError:
            digest = ""
        self.record(what, file=str(source), policy=digest)

    def record_login(self, login: LoginFacts, server: str, by: str, **who: object) -> None:
        """Record that a person is logged in at a server; raises as `record_or_fail` does.

        Args:
            by: where the login was begun: a `Channel`.
            who: more about the person, such as the `peer`.
        """
        self.record_or_fail("login", server=server, **_facts_of(login), by=by, **who)

    def record_login_offer(self, server: str, caller: Caller) -> None:
        """Record that a client is shown the link of a login; raises as `record_or_fail` does."""
        self.record_or_fail("login_offer", server=server, principal=caller.identity or "", client=caller.name)

    def record_logout(self, login: LoginFacts | None, server: str, *, revoked: bool, by: str, **who: object) -> None:
        """Record that a login was forgotten, and whether the issuer has revoked it. `login`: None if it could not be
        read."""
        facts = {} if login is None else _facts_of(login)
        self.record("logout", server=server, **facts, revoked="yes" if revoked else "no", by=by, **who)

    def record_lost_definitions(self, why: str) -> None:
        """Record that the approvals are lost, so that every definition is held."""
        self.record("lost", why=why)
        self.journal.note(DefinitionsLost(why))

    def _decision(self, record: AuditRecord) -> tuple[RecordForm, object, str]:
        """The form of a decision, and its values."""
        raw_arguments, subject, grant, process = record.raw_arguments, record.subject, record.grant, record.process
        item, name = subject.item, subject.item.name
        arguments: dict[str, object] = {
            "bytes": len(raw_arguments),
            "digest": f"sha256:{hashlib.sha256(raw_arguments).hexdigest()}",  # digest of the exact bytes that are sent
            "shape": shape_of(decode_arguments(raw_arguments))
            if len(raw_arguments) <= LONGEST_DECODED
            else shape_of_long(raw_arguments, record.opened_arguments),
        }
        if self.full_arguments:
            arguments["json"] = bytes(raw_arguments).decode(errors="replace")
        elif (contents := self.contents) is not None:
            arguments |= contents.of(raw_arguments)
        what = (item.server, item.kind, name, subject.fingerprint, subject.launch, subject.caller or "", subject.rule)
        how = (record.method, record.verdict, "" if grant is None else grant.id, "" if grant is None else grant.by)
        who = record.view, record.says, None if process is None else (process.program, process.pid)
        key = what, how, record.through, who
        form = self._forms.get(key)
        if form is None:
            fields: dict[str, object] = dict(zip(_DECISION, what + how, strict=True)) | _program(process)
            told = {"through": record.through, "view": record.view, "agent": record.says}
            fields |= {each: text for each, text in told.items() if text}
            form = RecordForm("decision", {each: _bounded(value) for each, value in fields.items()}, ("args", "client"))
            if len(name) <= LONGEST_TEXT:
                self._keep(key, form)
        return form, arguments, record.client if len(record.client) <= LONGEST_TEXT else shorten(record.client)

    def _keep(self, key: object, form: RecordForm) -> None:
        if len(self._forms) >= MAX_FORMS:
            self._forms.clear()
        self._forms[key] = form

    def record_outcome(
        self,
        record: AuditRecord,
        seq: int,
        outcome: str,
        seconds: float,
        size: int,
        result: Raw | None = None,
        tool_error: bool = False,
    ) -> None:
        """Write and announce the outcome of the request whose decision has the number `seq`.

        Args:
            size: bytes of the result.
            tool_error: it is that of a tool which says that the call failed.
        """
        item, name = record.subject.item, record.subject.item.name[: EXCERPT_LENGTH + 1]
        kept: tuple[object, ...] = ()
        slots: tuple[str, ...] = ()
        if result is not None and (contents := self.contents) is not None:
            kept, slots = (contents.of(result),), ("result",)
        key = item.server, outcome, slots, tool_error
        form = self._forms.get(key)
        if form is None:
            fields: dict[str, object] = {"server": shorten(item.server), "outcome": shorten(outcome)}
            if tool_error:
                fields["tool_error"] = True
            form = RecordForm("outcome", fields, slots, ("of", "micros", "bytes"))
            self._keep(key, form)
        self._write_or_announce(form, *kept, seq, int(seconds * 1_000_000), size)
        self.journal.note(
            RequestCompleted(
                *(item.server, item.kind, name, record.client, record.verdict, outcome, seconds),
                size,
                seq,
                record.trace_id,
                record.method,
                len(record.raw_arguments),
                tool_error,
            )
        )

    def record_decision(self, record: AuditRecord) -> int:
        """Write the decision to send a request, and return the number of its record. Raises as `record_or_fail`
        does."""
        return self._write_or_fail(*self._decision(record))

    def _fail(self, problem: AuditUnavailable) -> None:
        if not self.problem:
            self.problem = problem.message
            self.journal.note(AuditFailed(problem.message))


def _program(process: ClientProcess | None) -> dict[str, object]:
    return {"process": {"program": process.program, "pid": process.pid}} if process is not None and process.pid else {}


def _facts_of(login: LoginFacts) -> dict[str, object]:
    return {"issuer": login.issuer, "resource": login.resource, "scopes": list(login.scopes)}


class RequestRecord(Struct, eq=False):
    """The records of one request: its decision before it is sent, and its outcome, once. A request that is never sent
    gets neither."""

    _log: DecisionLog
    open: AuditRecord | None = None
    """The decision, once it is written and as long as the outcome is not."""
    _seq: int = 0
    _began: float = 0.0

    def begin(self, record: AuditRecord) -> None:
        """Write the decision.

        Raises:
            AuditUnavailable: it cannot be written, so the request must not be sent.
        """
        assert self.open is None, "a request is sent once for each record"
        self._seq = self._log.record_decision(record)
        self.open, self._began = record, self._log.now()
        self._log.in_flight[record.subject.item.server] += 1

    def end(
        self, outcome: str = "answered", size: int = 0, result: Raw | None = None, tool_error: bool = False
    ) -> None:
        """Write the outcome, if the request was sent and its outcome is not written yet. `size`: bytes of the
        result, which may be recorded too. `tool_error`: see `DecisionLog.record_outcome`."""
        record, self.open = self.open, None
        if record is not None:
            self._log.in_flight[record.subject.item.server] -= 1
            seconds = self._log.now() - self._began
            self._log.record_outcome(record, self._seq, outcome, seconds, size, result, tool_error)

    def fail(self, problem: BaseException) -> None:
        """Write the outcome of a request that ended with this exception."""
        if isinstance(problem, ColonnadeError):
            problem.is_recorded |= self.open is not None
            self.end(f"error {problem.code}")
        else:
            self.end("failed" if isinstance(problem, Exception) else "called off")
