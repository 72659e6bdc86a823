"""What is decided is written down before it happens, and what came of it after."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec import Raw
from msgspec.structs import replace
from msgspec.structs import replace as with_changes

from config import Trust, Verdict
from host.attempts import MAX_ROWS, Attempt, Reason
from host.audit.contents import Contents
from host.audit.records import files
from host.audit.writer import Audit
from host.client_process import ClientProcess
from host.errors import AuditUnavailable, TimedOut
from host.journal import (
    EXCERPT_LENGTH,
    AttemptRefused,
    AuditFailed,
    CallDenied,
    ConfirmationRequested,
    DecisionMade,
    DefinitionChanged,
    DefinitionsLost,
    Event,
    Journal,
    RequestCompleted,
)
from host.policy.confirmations import ConfirmationContext, PendingConfirmation
from host.policy.decision_log import (
    CHANGES_A_MINUTE,
    FOLD_INTERVAL,
    LONGEST_TEXT,
    MAX_CHANGE_RECORDS,
    MAX_CHANGES_AT_ONCE,
    AuditRecord,
    ChangeSummary,
    DecisionLog,
    _ChangeSums,
    _FoldedChanges,
    shorten,
    summarize,
)
from host.policy.grants import AccessRequest, Grant, Scope
from host.policy.pin_rules import PinStatus
from host.policy.pins import Change
from host.subject import Item, Subject
from tests.kit.awaited import awaited
from tests.kit.folders import folder
from tests.kit.gates import altered

GIVEN = Raw(b'{"title": "a roof", "n": 3}')
ADD = Item("gh", "tool", "add")
GRANT = Grant("g1", Subject(ADD, "laptop", None, "f", "l", "r"), (), Scope.ALWAYS, 0.0, None, "console")
RECORD = AuditRecord(
    Subject(ADD, "laptop", None, "sha256:f", "sha256:l", "tools.ask: add"),
    "tools/call",
    "laptop, stateless",
    GIVEN,
    Verdict.ASK,
    GRANT,
)
ACCESS = AccessRequest(Subject(ADD, "laptop", None, "f", "l", "tools.ask: add", "sha256:d"), {})
PENDING = PendingConfirmation("m1", ACCESS, ConfirmationContext(Trust.STANDARD, b"{}"), 0.0, 1.0)


class Written:
    def __init__(self, where: Path) -> None:
        self.where = where
        self.events: list[Event] = []
        self.audit = Audit(where)
        journal = Journal()
        journal.subscribe(self.events.append)
        self.decision_log = DecisionLog(self.audit, journal)

    def records(self) -> list[dict[str, Any]]:
        lines = [line for path in files(self.where) for line in path.read_text().splitlines()]
        return [record for line in lines if (record := json.loads(line))["kind"] != "start"]

    def breaks(self) -> None:
        """From now on nothing can be written."""
        self._reopen(os.O_RDONLY)

    def mends(self) -> None:
        self._reopen(os.O_WRONLY | os.O_APPEND)

    def _reopen(self, flags: int) -> None:
        assert self.audit.path is not None
        assert self.audit._file is not None
        descriptor = os.open(self.audit.path, flags)
        os.dup2(descriptor, self.audit._file.descriptor)
        os.close(descriptor)


@pytest.fixture
def written() -> Iterator[Written]:
    with folder() as made:
        (made / "audit").mkdir()
        opened = Written(made / "audit")
        with opened.audit:
            yield opened


DENIED = Attempt(Reason.DENIED, "tool", "gh__x", "10.0.0.7", "laptop", "laptop, stateless", "gh")


async def test_refused_attempts_are_one_record_a_minute(
    written: Written, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.decision_log.keep_folded)
        for _ in range(10_000):
            written.decision_log.record_attempt(DENIED)
        await trio.sleep(2)
        assert not written.records()
        assert written.events == [AttemptRefused("gh", DENIED)]
        await trio.sleep(60)
        (record,) = written.records()
        assert {name: record[name] for name in ("kind", "server", "prim", "item", "why", "count")} == {
            "kind": "attempts",
            "server": "gh",
            "prim": "tool",
            "item": "gh__x",
            "why": "denied",
            "count": 10_000,
        }
        assert (record["principal"], record["client"], record["address"]) == ("laptop", "laptop, stateless", "10.0.0.7")
        assert written.events[1:] == [AttemptRefused("gh", DENIED, 10_000)]
        written.decision_log.record_attempt(DENIED)
        await trio.sleep(62)
        assert [each["count"] for each in written.records()] == [10_000, 1]
        nursery.cancel_scope.cancel()


async def test_the_end_of_the_host_records_the_attempts_of_its_last_minute(written: Written) -> None:
    with written.decision_log as decision_log:
        decision_log.record_attempt(DENIED)
        assert not written.records()
    assert [each["kind"] for each in written.records()] == ["attempts"]


async def test_a_flood_of_names_is_bounded_and_the_rest_counted(written: Written) -> None:
    """However many names, and however long and unprintable they are."""
    for n in range(10_000):
        written.decision_log.record_attempt(
            with_changes(DENIED, name=f"{n}" + chr(0x10FFFF) * 5000, principal=str(n % 7))
        )
    written.decision_log.flush_attempts()
    *rows, others = written.records()
    assert len(rows) == MAX_ROWS
    assert (others["count"], others["others"]) == (10_000 - MAX_ROWS, {"denied": 10_000 - MAX_ROWS})
    assert max(len(json.dumps(row)) for row in rows) < 3_000


async def test_attempts_that_cannot_be_written_are_announced(written: Written) -> None:
    written.decision_log.record("revoke", grant="g1")
    written.breaks()
    written.decision_log.record_attempt(DENIED)
    written.decision_log.flush_attempts()
    assert [type(event) for event in written.events] == [AttemptRefused, AuditFailed]


async def test_a_decision_is_there_before_and_its_outcome_after(written: Written) -> None:
    with written.decision_log.recording(RECORD) as record:
        (decision,) = written.records()
        assert written.decision_log.in_flight["gh"] == 1
        record.end(size=12)
    assert written.decision_log.in_flight["gh"] == 0
    decision, outcome = written.records()
    assert decision["kind"] == "decision"
    told = {name: decision[name] for name in ("server", "prim", "item", "method", "principal", "client", "verdict")}
    assert told == {
        "server": "gh",
        "prim": "tool",
        "item": "add",
        "method": "tools/call",
        "principal": "laptop",
        "client": "laptop, stateless",
        "verdict": "ask",
    }
    assert (decision["rule"], decision["grant"], decision["approver"]) == ("tools.ask: add", "g1", "console")
    assert (decision["item_fp"], decision["launch_fp"]) == ("sha256:f", "sha256:l")
    digest = f"sha256:{hashlib.sha256(bytes(GIVEN)).hexdigest()}"
    assert decision["args"] == {"bytes": 27, "digest": digest, "shape": {"title": "str[6]", "n": "num"}}
    assert (outcome["kind"], outcome["of"], outcome["outcome"], outcome["bytes"]) == (
        "outcome",
        decision["seq"],
        "answered",
        12,
    )
    (sent,) = written.events
    assert isinstance(sent, RequestCompleted)
    assert (sent.name, sent.outcome, sent.verdict, sent.size) == ("add", "answered", "ask", 12)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: "other"} for name in ("server", "kind", "name", "caller", "fingerprint", "launch", "rule")),
        *({name: "other"} for name in ("method", "client", "through")),
        *({name: "%d \u202e\n"} for name in ("name", "client", "rule")),
        {"raw_arguments": Raw(b'{"%d":[]}')},
        {"verdict": Verdict.DENY},
        {"grant": None},
        {"grant": replace(GRANT, by="terminal")},
        {"process": ClientProcess("claude", 7)},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_a_record_says_nothing_of_the_one_before(changes: dict[str, Any], written: Written) -> None:
    """The members that decisions and outcomes have in common are encoded once for many records."""

    def members(number: int) -> dict[str, object]:
        own = ("seq", "ts", "mono", "prev", "hash", "of")
        return {name: value for name, value in written.records()[number].items() if name not in own}

    changed = altered(RECORD, **changes)
    log, other = written.decision_log, DecisionLog(written.audit, Journal())
    log.record_outcome(RECORD, log.record_decision(RECORD), "answered", 0.25, 1)
    for each in (log, other):
        each.record_outcome(changed, each.record_decision(changed), "error 7", 0.5, 2)
    assert members(2) == members(4) != members(0)
    assert members(3) == members(5) != members(1)


async def test_the_program_of_a_client_is_written_down_if_it_is_known(written: Written) -> None:
    program = ClientProcess("claude", 7, "/work", {"A": "b"})
    for process in (None, ClientProcess(), program):
        written.decision_log.record_denied(with_changes(RECORD, process=process))
        context = ConfirmationContext(Trust.STANDARD, b"{}", process=process)
        written.decision_log.record_confirmation("ask", PendingConfirmation("m1", ACCESS, context, 0.0, 1.0), {})
    told = [record.get("process") for record in written.records()]
    assert told == [None] * 4 + [{"program": "claude", "pid": 7}] * 2


async def test_the_search_tool_that_a_call_came_through_is_written_down(written: Written) -> None:
    written.decision_log.record_denied(RECORD)
    written.decision_log.record_denied(with_changes(RECORD, through="call_tool"))
    assert [record.get("through") for record in written.records()] == [None, "call_tool"]


async def test_an_event_that_readers_keep_holds_no_long_name(written: Written) -> None:
    with written.decision_log.recording(altered(RECORD, name="n" * 100_000)):
        pass
    (sent,) = written.events
    assert isinstance(sent, RequestCompleted)
    assert len(sent.name) < 300
    assert f"{'n' * EXCERPT_LENGTH}... for" in str(sent)


async def test_arguments_are_there_in_full_only_if_that_is_wanted(written: Written) -> None:
    written.decision_log.full_arguments = True
    with written.decision_log.recording(RECORD):
        pass
    assert written.records()[0]["args"]["json"] == bytes(GIVEN).decode()


async def test_an_outcome_says_that_the_tool_failed_only_if_it_did(written: Written) -> None:
    for tool_error in (False, True, False):
        with written.decision_log.recording(RECORD) as record:
            record.end(size=6, tool_error=tool_error)
    outcomes = written.records()[1::2]
    assert [each.get("tool_error") for each in outcomes] == [None, True, None]
    assert {each["outcome"] for each in outcomes} == {"answered"}
    assert [each.tool_error for each in written.events if isinstance(each, RequestCompleted)] == [False, True, False]


@pytest.mark.parametrize(
    ("contents", "args", "result"),
    [
        (None, {}, None),
        (
            Contents(lambda: ["roof"]),
            {"redacted": '{"title":"a ***","n":3}'},
            {"json": '"done"'},
        ),
        (Contents(None), {"json": '{"title": "a roof", "n": 3}'}, {"json": '"done"'}),
    ],
)
async def test_arguments_and_results_are_there_as_the_history_wants_them(
    written: Written, contents: Contents | None, args: dict[str, str], result: dict[str, str] | None
) -> None:
    """From the next record on. Of a request that failed there is no result."""
    for given in (contents, None):
        written.decision_log.contents = given
        with written.decision_log.recording(RECORD) as record:
            record.end(size=6, result=Raw(b'"done"'))
    written.decision_log.contents = contents
    with written.decision_log.recording(RECORD):
        pass
    first, outcome, second, bare, _, without = written.records()
    kept = {name: first["args"].get(name) for name in ("json", "redacted") if name in first["args"]}
    assert (kept, outcome.get("result")) == (args, result)
    assert (outcome["bytes"], outcome["outcome"]) == (6, "answered")
    assert not {"json", "redacted"} & {*second["args"]}
    assert "result" not in bare
    assert "result" not in without


@pytest.mark.parametrize(
    ("problem", "outcome"), [(TimedOut("gh", "too late"), "error 504"), (RuntimeError("ours"), "failed")]
)
async def test_what_fails_is_written_down_as_that(written: Written, problem: Exception, outcome: str) -> None:
    with pytest.raises(type(problem)):
        with written.decision_log.recording(RECORD):
            raise problem
    assert written.records()[-1]["outcome"] == outcome


async def test_what_is_called_off_is_written_down_as_that(written: Written) -> None:
    with trio.CancelScope() as scope:
        with written.decision_log.recording(RECORD):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert written.records()[-1]["outcome"] == "called off"
    assert written.decision_log.in_flight["gh"] == 0


async def test_what_cannot_be_written_down_is_not_sent_and_that_is_told_once(written: Written) -> None:
    with written.decision_log.recording(RECORD):
        pass
    written.breaks()
    for _ in range(2):
        with pytest.raises(AuditUnavailable):
            with written.decision_log.recording(RECORD):
                raise AssertionError("it was sent")
    written.decision_log.record("revoke", grant="g1")  # what has happened cannot be undone
    assert written.decision_log.problem
    assert len([event for event in written.events if isinstance(event, AuditFailed)]) == 1


def test_it_is_tried_again_whether_something_can_be_written_down(written: Written) -> None:
    """A balancer that hears that it cannot sends no request that would find out."""
    written.decision_log.record("revoke", grant="g1")
    assert written.decision_log.is_recorded()
    written.breaks()
    written.decision_log.record("revoke", grant="g2")
    assert not written.decision_log.is_recorded()
    written.mends()
    assert written.decision_log.is_recorded()
    assert written.decision_log.is_recorded()
    assert [each["kind"] for each in written.records()] == ["revoke", "resumed"]


def test_lost_definitions_are_recorded_and_told(written: Written) -> None:
    """The audit has why, and so has the log."""
    written.decision_log.record_lost_definitions("the database is gone")
    assert [each["why"] for each in written.records() if each["kind"] == "lost"] == ["the database is gone"]
    assert written.events == [DefinitionsLost("the database is gone")]


def test_what_is_refused_has_no_outcome_and_a_line_in_the_log(written: Written) -> None:
    written.decision_log.record_denied(with_changes(RECORD, trace_id="4bf9"))
    assert [record["kind"] for record in written.records()] == ["decision"]
    item, rule = RECORD.subject.item, RECORD.subject.rule
    assert written.events == [CallDenied(item.server, item.kind, item.name, RECORD.client, rule, "4bf9")]


@pytest.mark.parametrize(
    ("standing", "kind"), [(PinStatus.APPROVED, "pinned"), (PinStatus.NEW, "held"), (PinStatus.CHANGED, "held")]
)
def test_definitions_are_written_down_as_they_stand(written: Written, standing: PinStatus, kind: str) -> None:
    """A first sight is told to nobody: there may be thousands."""
    written.decision_log.record_change(Change(Item("gh", "tool", "add"), standing, True, "f2", None), "held")
    written.decision_log.record_change(Change(Item("gh", "tool", "add"), standing, False, "f2", "f1"), "held")
    assert [(record["kind"], record["was"]) for record in written.records()] == [(kind, ""), (kind, "f1")]
    assert written.events == [DefinitionChanged("gh", "tool", "add", "held")]


def test_what_happens_to_a_confirmation_is_written_down_and_told(written: Written) -> None:
    written.decision_log.record_confirmation("ask", PENDING, {})
    said: dict[str, object] = {"answer": "once", "by": "console", "grant": "g1"}
    written.decision_log.record_confirmation("answer", PENDING, said)
    assert len(written.events) == 1  # it is not granted yet
    written.decision_log.record_confirmation("granted", PENDING, said)
    ask, answer = written.records()
    assert (ask["kind"], ask["question"], ask["args"]) == ("ask", "m1", {"canonical": "sha256:d"})
    assert (answer["kind"], answer["answer"], answer["grant"]) == ("answer", "once", "g1")
    waiting, decided = written.events
    assert isinstance(waiting, ConfirmationRequested)
    assert waiting.id == "m1"
    assert isinstance(decided, DecisionMade)
    assert (decided.answer, decided.by) == ("once", "console")


def test_a_confirmation_that_is_refused_at_once_is_told_as_refused(written: Written) -> None:
    written.decision_log.record_confirmation("ask", replace(PENDING, refused="nobody was there to answer"), {})
    (event,) = written.events
    assert isinstance(event, ConfirmationRequested)
    assert event.refused == "nobody was there to answer"


def test_nothing_is_granted_that_cannot_be_written_down(written: Written) -> None:
    written.decision_log.record_confirmation("ask", PENDING, {})
    written.breaks()
    with pytest.raises(AuditUnavailable):
        written.decision_log.record_confirmation("answer", PENDING, {"answer": "once", "by": "console", "grant": "g1"})
    with pytest.raises(AuditUnavailable):
        written.decision_log.record_definition_decision("approve", Item("gh", "tool", "add"), "f", "console")
    written.decision_log.record_confirmation("answer", PENDING, {"answer": "withdrawn"})


class Login:
    issuer = "https://login.example"
    resource = "https://gh.example/mcp"
    scopes = ("read", "write")


def test_logins_and_logouts_are_written_down(written: Written) -> None:
    facts = {"server": "gh", "issuer": Login.issuer, "resource": Login.resource, "scopes": ["read", "write"]}
    written.decision_log.record_login(Login(), "gh", "console")
    written.decision_log.record_logout(Login(), "gh", revoked=True, by="terminal", peer={"pid": 1})
    written.decision_log.record_logout(None, "gh", revoked=False, by="terminal")
    login, logout, unreadable = written.records()
    assert {**login, "kind": "login", **facts, "by": "console"} == login
    assert {**logout, "kind": "logout", **facts, "revoked": "yes", "by": "terminal", "peer": {"pid": 1}} == logout
    assert (unreadable["server"], unreadable["revoked"], "issuer" in unreadable) == ("gh", "no", False)
    written.breaks()
    with pytest.raises(AuditUnavailable):
        written.decision_log.record_login(Login(), "gh", "console")


def test_the_text_of_the_configuration_is_written_down_as_a_digest(written: Written, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("servers: {}")
    written.decision_log.record_configuration("config", file)
    written.decision_log.record_configuration("config_rejected", tmp_path / "gone.yaml")
    held, gone = written.records()
    assert held["policy"] == f"sha256:{hashlib.sha256(b'servers: {}').hexdigest()}"
    assert (gone["kind"], gone["policy"]) == ("config_rejected", "")


def changes(count: int, standing: PinStatus = PinStatus.NEW) -> list[Change]:
    return [Change(Item("gh", "tool", f"t{at}"), standing, False, f"sha256:{at}", "sha256:old") for at in range(count)]


def test_so_many_changes_are_written_down_one_by_one_and_no_more() -> None:
    for count in (0, MAX_CHANGE_RECORDS - 1, MAX_CHANGE_RECORDS):
        assert awaited(summarize(changes(count))) is None
    assert awaited(summarize(changes(MAX_CHANGE_RECORDS + 1))) is not None


def test_many_changes_are_one_record_that_proves_all_of_them(written: Written) -> None:
    many = [*changes(5000), *changes(1, PinStatus.APPROVED)]
    summary = awaited(summarize(many))
    assert summary is not None
    written.decision_log.record_change_summary(summary, "held")
    (record,) = written.records()
    assert (record["kind"], record["server"], record["prim"]) == ("definitions", "gh", "tool")
    assert record["counts"] == {"new": 5000, "approved": 1}
    assert record["items"] == [f"t{at}" for at in range(MAX_CHANGE_RECORDS)]
    digest = hashlib.sha256()
    for each in many:
        digest.update(
            json.dumps([each.item.name, each.fingerprint, each.was, each.status.value], separators=(",", ":")).encode()
        )
    assert record["digest"] == f"sha256:{digest.hexdigest()}"
    (event,) = written.events
    assert str(event) == (
        "gh: tool t0 and 5000 more: not as it was approved; held until a person approves it (colonnade definitions)"
    )


def outcome(change: Change) -> str:
    return "reordered" if change.reordered else "held"


@pytest.mark.parametrize("at", [0, MAX_CHANGE_RECORDS])
def test_a_line_about_many_says_that_only_the_order_differs_if_that_is_so_of_all(written: Written, at: int) -> None:
    """Else a server could hide a change among others."""
    many = [
        msgspec.structs.replace(each, reordered=True) for each in changes(MAX_CHANGE_RECORDS + 1, PinStatus.CHANGED)
    ]
    for of_reading in (many, [*many[:at], msgspec.structs.replace(many[at], reordered=False), *many[at + 1 :]]):
        summary = awaited(summarize(of_reading))
        written.decision_log.record_changes(of_reading, summary, outcome, "do this")
    alike, other = written.events
    assert alike == DefinitionChanged("gh", "tool", "t0", "reordered", MAX_CHANGE_RECORDS + 1, "do this")
    assert other == DefinitionChanged("gh", "tool", f"t{at}", "held", MAX_CHANGE_RECORDS + 1)


@pytest.mark.parametrize("turns", [(True, True), (False, True), (True, False)])
def test_folded_changes_are_said_to_be_of_the_order_alone_if_all_of_them_are(
    written: Written, turns: tuple[bool, bool]
) -> None:
    fold = _FoldedChanges()
    for reordered in turns:
        changed = [msgspec.structs.replace(changes(1, PinStatus.CHANGED)[0], reordered=reordered)]
        summary = _ChangeSums(changed).summary(changed)
        fold.add(summary, outcome(summary.first_change), "do this")
    assert fold.last is not None
    assert fold.last[1] == ("reordered" if all(turns) else "held")


@pytest.mark.parametrize(
    "other",
    [{"item": Item("gh", "tool", "t9999")}, {"fingerprint": "sha256:x"}, {"was": None}, {"status": PinStatus.CHANGED}],
)
def test_a_digest_is_another_if_anything_is(other: dict[str, Any]) -> None:
    many = changes(100)
    changed = [*many[:-1], Change(**{**msgspec.structs.asdict(many[-1]), **other})]
    first, second = awaited(summarize(many)), awaited(summarize(changed))
    assert first is not None
    assert second is not None
    assert first.digest != second.digest


def flap(written: Written, readings: int, each: int = 1) -> list[ChangeSummary]:
    """A server changes so many of its tools in each of so many readings. Returns the summary of each."""
    summaries = []
    for _ in range(readings):
        of_reading = changes(each, PinStatus.CHANGED)
        written.decision_log.record_changes(of_reading, awaited(summarize(of_reading)), lambda change: "held")
        summaries.append(_ChangeSums(of_reading).summary(of_reading))
    return summaries


def of_definitions(written: Written) -> list[dict[str, Any]]:
    return [record for record in written.records() if record["kind"] in ("pinned", "held", "definitions")]


@pytest.mark.few(1)
@pytest.mark.parametrize("each", [1, MAX_CHANGE_RECORDS, MAX_CHANGE_RECORDS + 1])
def test_what_a_server_goes_on_changing_is_folded_to_one_record(each: int, written: Written) -> None:
    """It proves what was seen in each reading; nothing is counted twice or left out."""
    readings = 2 * MAX_CHANGES_AT_ONCE
    summaries = flap(written, readings, each)
    cost = 1 if each > MAX_CHANGE_RECORDS else each
    alone = MAX_CHANGES_AT_ONCE // cost
    assert len(of_definitions(written)) == alone * cost
    written.decision_log.flush_changes()
    *_, folded = of_definitions(written)
    assert len(of_definitions(written)) == alone * cost + 1
    assert (folded["kind"], folded["server"], folded["prim"]) == ("definitions", "gh", "tool")
    assert folded["readings"] == readings - alone
    assert folded["counts"] == {"changed": (readings - alone) * each}
    assert folded["items"] == [f"t{at}" for at in range(min(each, MAX_CHANGE_RECORDS))]
    digest = hashlib.sha256("".join(summary.digest for summary in summaries[alone:]).encode())
    assert folded["digest"] == f"sha256:{digest.hexdigest()}"


def test_changes_are_told_one_by_one_again_when_the_server_is_calm(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("host.policy.decision_log.time.monotonic", lambda: now)
    flap(written, MAX_CHANGES_AT_ONCE + 1)
    written.decision_log.flush_changes()
    before = len(of_definitions(written))
    now += 60.0
    flap(written, int(CHANGES_A_MINUTE) + 5)
    assert len(of_definitions(written)) == before + int(CHANGES_A_MINUTE)


async def test_folded_changes_are_recorded_within_a_minute(
    written: Written, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(written.decision_log.keep_folded)
        flap(written, MAX_CHANGES_AT_ONCE + 7)
        await trio.sleep(FOLD_INTERVAL + 2)
        assert of_definitions(written)[-1]["readings"] == 7
        nursery.cancel_scope.cancel()


def test_folded_changes_are_recorded_before_a_person_decides_and_at_the_end(written: Written) -> None:
    flap(written, MAX_CHANGES_AT_ONCE + 1)
    written.decision_log.record_definition_decision("approve", Item("gh", "tool", "t0"), "f", "terminal")
    assert [record["kind"] for record in written.records()][-2:] == ["definitions", "approve"]
    flap(written, 1)
    with written.decision_log:
        pass
    assert written.records()[-1]["kind"] == "definitions"


def test_another_program_is_recorded_at_once_whatever_else_changes(written: Written) -> None:
    flap(written, MAX_CHANGES_AT_ONCE + 1)
    launch = Change(Item("gh", "launch", ""), PinStatus.CHANGED, False, "f2", "f1")
    written.decision_log.record_changes([launch], None, lambda change: "held")
    assert written.records()[-1]["prim"] == "launch"


# Texts of others


LONG = "n" * 350_000


def _summarised(decision_log: DecisionLog, end: str) -> None:
    summary = awaited(
        summarize([Change(Item("gh", "tool", f"{LONG}{at}{end}"), PinStatus.NEW, True, "f", None) for at in range(21)])
    )
    assert summary is not None
    decision_log.record_change_summary(summary, "held")


def _sent(decision_log: DecisionLog, text: str) -> None:
    with decision_log.recording(altered(RECORD, name=text, method=text, caller=text, client=text, rule=text)) as record:
        record.end(text)


def _asked(decision_log: DecisionLog, text: str) -> None:
    access = altered(ACCESS, name=text, caller=text, rule=text)
    decision_log.record_confirmation("answer", replace(PENDING, access=access), {"answer": "none", "why": text})


def _decided(decision_log: DecisionLog, text: str) -> None:
    with decision_log.attributing({"pid": 1, "uid": 2, "name": text, "exe": text}):
        decision_log.record_definition_decision("approve", Item("gh", "tool", text), "f", "terminal")


@pytest.mark.parametrize(
    "write",
    [
        lambda decision_log, text: decision_log.record_change(
            Change(Item("gh", "tool", text), PinStatus.NEW, True, "f", None), "held"
        ),
        _summarised,
        _sent,
        lambda decision_log, text: decision_log.record_denied(
            altered(RECORD, name=text, raw_arguments=Raw(json.dumps({text: text}).encode()))
        ),
        _asked,
        _decided,
        lambda decision_log, text: decision_log.record_refused_peer({"pid": 1, "name": text, "exe": text}, text, 0),
        lambda decision_log, text: decision_log.record_configuration("config_rejected", Path(text)),
    ],
    ids=["definition", "summary", "sent", "refused", "answer", "decision", "peer", "file"],
)
async def test_no_text_of_others_makes_a_record_long_and_two_long_ones_stay_two(
    written: Written, write: Callable[[DecisionLog, str], None]
) -> None:
    for end in ("a", "b"):
        write(written.decision_log, LONG + end)
    assert written.audit.path is not None
    lines = written.audit.path.read_bytes().splitlines()
    assert max(map(len, lines)) < 10_000
    own = ("seq", "ts", "mono", "prev", "hash", "args", "of", "micros", "digest")
    told = [{name: value for name, value in record.items() if name not in own} for record in written.records()]
    half = len(told) // 2
    assert all(first != second for first, second in zip(told[:half], told[half:], strict=True))


def test_what_is_cut_is_known_by_its_digest_and_is_like_no_other_text(written: Written) -> None:
    whole, long = "n" * LONGEST_TEXT, "n" * (LONGEST_TEXT + 1)
    assert shorten(whole) == whole
    assert shorten(long) == f"{whole}... sha256:{hashlib.sha256(long.encode()).hexdigest()}"
    assert shorten(shorten(long)) != shorten(long)
    written.decision_log.record_denied(altered(RECORD, name="\ud800" * 300))  # servers may say what is no text


def test_arguments_in_full_are_never_cut(written: Written) -> None:
    written.decision_log.full_arguments = True
    given = Raw(json.dumps({"text": LONG}).encode())
    written.decision_log.record_denied(altered(RECORD, raw_arguments=given))
    assert written.records()[0]["args"]["json"] == bytes(given).decode()
