"""What is written down of every decision, and by whom: the audit gets all of it, the journal what people watch.

A decision is written before anything is sent, and if it cannot be written nothing is sent. What has happened already
is written if that is possible, and told in any case.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio
from msgspec import Raw

from host.errors import AuditUnavailable, ColonnadeError
from host.exchange import Caller
from host.hygiene import visible
from host.journal import AuditFailed, Decided, DecisionRefused, DefinitionChanged, Journal, Sent, Waiting
from host.policy.audit import Audit, shape_of, shape_of_long
from host.policy.desk import Matter, described
from host.policy.grants import Grant
from host.policy.pins import Change, Standing
from host.policy.predicates import LONGEST_DECODED, decoded
from host.policy.rules import Judgement
from host.slices import Steps


@dataclass(frozen=True, slots=True)
class Deed:
    """What is to be sent, or was refused: a request to an entry of a server, or (then it has no `method`) a question of
    the server's to a client."""

    server: str
    kind: str
    name: str
    method: str
    caller: Caller
    given: Raw
    judgement: Judgement
    fingerprint: str = ""
    launch: str = ""
    grant: Grant | None = None


@dataclass(slots=True)
class Trace:
    """What is known of a request once it was answered."""

    size: int = 0
    """Bytes of the result."""
    outcome: str = "answered"


LONGEST_TEXT = 200
"""Characters of a text in a record; of a longer one there are so many and a digest."""
MOST_CHANGES = 20
"""Changes of one list that are written down one by one; of more there is one record."""
_BOUNDED = frozenset(("args", "items"))
"""Fields that are short enough as they are made, or, with arguments in full, are meant to be whole."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Many changes of one list of a server. `digest` is a SHA-256 over all of them, in the server's order, each as the
    canonical JSON of [name, fingerprint, former fingerprint, standing]: whoever has the definitions can prove by it
    which ones were seen, and how they stood."""

    first: Change
    names: tuple[str, ...]
    """Names of the first MOST_CHANGES, `shortened`."""
    counts: Mapping[str, int]
    """How many stand how."""
    known: int
    """How many of them were seen before."""
    digest: str

    @property
    def count(self) -> int:
        return sum(self.counts.values())


def shortened(text: str) -> str:
    """A text as a record holds it. One that was cut is longer than any that was not, so neither can pose as the
    other."""
    if len(text) <= LONGEST_TEXT:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[:LONGEST_TEXT]}... sha256:{digest}"


def _bounded(value: object) -> object:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, Mapping):
        return {name: _bounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(item) for item in value]
    return value


def summed(changes: Sequence[Change]) -> Steps[Summary | None]:
    """The summary of changes of one list; None if they are few enough to be written down one by one."""
    if len(changes) <= MOST_CHANGES:
        return None
    digest, counts, known = hashlib.sha256(), Counter[str](), 0
    names: list[str] = []
    for change in changes:
        yield None
        if len(names) < MOST_CHANGES:
            names.append(shortened(change.name))
        parts = [change.name, change.fingerprint, change.was or "", change.standing.value]
        digest.update(json.dumps(parts, separators=(",", ":")).encode("ascii"))
        counts[change.standing.value] += 1
        known += not change.first
    first = next((change for change in changes if change.standing is not Standing.APPROVED), changes[0])
    return Summary(first, tuple(names), counts, known, f"sha256:{digest.hexdigest()}")


class Ledger:
    """Writes down. `full`: the audit holds arguments, and not only what they look like."""

    def __init__(self, audit: Audit, journal: Journal) -> None:
        self.problem = ""
        """Why nothing can be written down; empty while that works."""
        self.in_flight: Counter[str] = Counter()
        """Requests under way, by server."""
        self._audit = audit
        self._journal = journal
        self._peer: Mapping[str, object] | None = None

    @property
    def full(self) -> bool:
        return self._audit.full

    @full.setter
    def full(self, full: bool) -> None:
        self._audit.full = full

    # Before

    def must(self, what: str, **fields: object) -> int:
        """Write down what is about to happen; the number of the record.

        Raises:
            AuditUnavailable: it cannot be written down, so it must not happen.
        """
        try:
            seq = self._write(what, fields)
        except AuditUnavailable as problem:
            self._fail(problem)
            raise
        self.problem = ""
        return seq

    @contextmanager
    def sent(self, deed: Deed) -> Iterator[Trace]:
        """It is sent within the block: written down before, with what became of it after.

        Raises:
            AuditUnavailable: it cannot be written down, so it must not be sent.
        """
        seq = self.must("decision", **self._fields(deed))
        trace = Trace()
        began = trio.current_time()
        self.in_flight[deed.server] += 1
        outcome = "called off"
        try:
            yield trace
            outcome = trace.outcome
        except ColonnadeError as error:
            outcome = f"error {error.code}"
            raise
        except Exception:
            outcome = "failed"
            raise
        finally:
            self.in_flight[deed.server] -= 1
            seconds = trio.current_time() - began
            micros = int(seconds * 1_000_000)
            self.note("outcome", of=seq, server=deed.server, outcome=outcome, micros=micros, bytes=trace.size)
            verdict = deed.judgement.verdict.value
            self._journal.note(
                Sent(deed.server, deed.kind, deed.name, deed.caller.name, verdict, outcome, seconds, trace.size)
            )

    @contextmanager
    def naming(self, peer: Mapping[str, object]) -> Iterator[None]:
        """Name the process that a decision comes from in every record of the block. The block must not wait: records
        of others would name it too."""
        self._peer = peer
        try:
            yield
        finally:
            self._peer = None

    def _write(self, what: str, fields: Mapping[str, object]) -> int:
        """Every record passes here. Its texts come from servers, from clients and from the configuration, and only the
        number of records is limited elsewhere: so it is bounded here how long one can be."""
        if self._peer is not None:
            fields = {**fields, "peer": self._peer}
        bounded = {name: value if name in _BOUNDED else _bounded(value) for name, value in fields.items()}
        return self._audit.write(what, **bounded)

    # After

    def refused_peer(self, peer: Mapping[str, object], why: str, unrecorded: int) -> None:
        """A process that may not decide wanted to, and so did `unrecorded` more since the last record of this kind."""
        more = {"unrecorded": unrecorded} if unrecorded else {}
        self.note("refused", peer=peer, why=why, **more)
        self._journal.note(DecisionRefused(f"{visible(str(peer.get('name', 'unknown')))} ({peer['pid']})", why))

    def note(self, what: str, **fields: object) -> None:
        """Write down what has happened already: that cannot be undone because it cannot be written."""
        try:
            self._write(what, fields)
        except AuditUnavailable as problem:
            self._fail(problem)

    def refused(self, deed: Deed) -> None:
        """It was denied, and is not sent."""
        self.note("decision", **self._fields(deed))

    def changed(self, change: Change, what: str) -> None:
        """A server offers something, new or otherwise than before; see `DefinitionChanged` for `what`."""
        self.note(
            "pinned" if change.standing is Standing.APPROVED else "held",
            server=change.server,
            prim=change.kind,
            item=change.name,
            item_fp=change.fingerprint,
            was=change.was or "",
            standing=change.standing.value,
        )
        if not change.first:
            self._journal.note(DefinitionChanged(change.server, change.kind, change.name, what))

    def many_changed(self, summary: Summary, what: str) -> None:
        """A server offers much that is new or otherwise than before; `what` became of the first that is held back, or
        of the first."""
        first = summary.first
        self.note(
            "definitions",
            server=first.server,
            prim=first.kind,
            items=summary.names,
            counts=summary.counts,
            digest=summary.digest,
        )
        if summary.known:
            self._journal.note(DefinitionChanged(first.server, first.kind, first.name, what, summary.known))

    def deciding(self, what: str, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """A person is about to decide about a definition; raises as `must` does."""
        self.must(what, server=server, prim=kind, item=name, item_fp=fingerprint, by=by)

    def decided(self, what: str, server: str, kind: str, name: str, by: str) -> None:
        """That was done."""
        self._journal.note(Decided(server, f"{kind} {visible(name)[:200]}".rstrip(), what, by))

    def asked(self, what: str, matter: Matter, said: dict[str, object]) -> None:
        """Something happens on the desk. What grants something must be written down; raises as `must` does. Once it is
        `granted`, that is told."""
        wish = matter.wish
        if what == "granted":
            self._tell_answer(matter, said)
            return
        write = self.must if "grant" in said else self.note
        write(
            what,
            question=matter.id,
            server=wish.server,
            prim=wish.kind,
            item=wish.name,
            principal=wish.caller or "",
            rule=wish.rule,
            args={"canonical": wish.digest},
            **said,
        )
        if what == "ask":
            self._journal.note(Waiting(wish.server, matter.id, described(wish)))
        elif "grant" not in said:
            self._tell_answer(matter, said)

    def _tell_answer(self, matter: Matter, said: dict[str, object]) -> None:
        wish = matter.wish
        self._journal.note(Decided(wish.server, described(wish), str(said["answer"]), str(said.get("by", ""))))

    def configured(self, what: str, source: Path) -> None:
        """Which text of the configuration holds from now on (`config`), or was read and does not
        (`config_rejected`)."""
        try:
            digest = f"sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"
        except OSError:
            digest = ""
        self.note(what, file=str(source), policy=digest)

    def _fields(self, deed: Deed) -> dict[str, object]:
        given = bytes(deed.given)
        arguments: dict[str, object] = {
            "digest": f"sha256:{hashlib.sha256(given).hexdigest()}",  # of the very bytes that are sent
            "shape": shape_of(decoded(deed.given)) if len(given) <= LONGEST_DECODED else shape_of_long(given),
        }
        if self.full:
            arguments["json"] = given.decode(errors="replace")
        return {
            "server": deed.server,
            "prim": deed.kind,
            "item": deed.name,
            "item_fp": deed.fingerprint,
            "launch_fp": deed.launch,
            "method": deed.method,
            "principal": deed.caller.identity or "",
            "client": deed.caller.name,
            "args": arguments,
            "verdict": deed.judgement.verdict.value,
            "rule": deed.judgement.rule,
            "grant": "" if deed.grant is None else deed.grant.id,
            "approver": "" if deed.grant is None else deed.grant.by,
        }

    def _fail(self, problem: AuditUnavailable) -> None:
        if not self.problem:
            self.problem = problem.message
            self._journal.note(AuditFailed(problem.message))
