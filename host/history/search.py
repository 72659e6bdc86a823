"""Searches in the history: which calls are wanted, and what is said of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from host.audit.records import CONTENT_MEMBERS, HistoryCall, files, parse
from host.history.index import DENIED, HistoryIndex

MOST_ROWS = 500
"""Rows of one search."""
LONGEST_FIRST = 64 * 1024
"""Bytes of the first line of a file, which has no words of peers."""
UNKNOWN = "unknown"
"""The outcome of a call whose host has ended without writing one: it was killed."""
TOOL_ERROR = "tool error"
"""Names calls that were answered with the result of a tool which says that it failed."""
OUTCOMES = ("answered", TOOL_ERROR, "error", "failed", "called", "pending", UNKNOWN, DENIED)
"""The outcomes that are there always, whatever calls there are."""
_COLUMNS = (
    *("time", "what", "caller", "client", "agent", "program", "view", "server", "kind", "item", "method", "verdict"),
    *("rule", "approver", "outcome", "sent", "received", "count", "seq", "tool_error"),
)
_NAMES = {
    "server": "SELECT server FROM call",
    "tool": "SELECT item FROM call",
    "caller": "SELECT caller FROM call UNION SELECT client FROM call",
    "outcome": "SELECT substr(outcome, 1, instr(outcome || ' ', ' ') - 1) FROM call",
}
_UNENDED = "call.outcome IS NULL"
"""The condition for calls that were sent and have no outcome."""
_IS_RUNNING = "call.chain IN (SELECT chain FROM running)"
_TOLD = {"outcome": f"CASE WHEN {_UNENDED} AND NOT {_IS_RUNNING} THEN '{UNKNOWN}' ELSE call.outcome END"}
_SELECTED = ", ".join(_TOLD.get(name, f"call.{name}") for name in _COLUMNS)
_FROM = "FROM call JOIN file ON file.id = call.file"
_SELECT = f"SELECT call.id, hash, file.name, file.config, micros, {_SELECTED} {_FROM}"


class CallFilter(Struct, frozen=True, kw_only=True):
    """The calls that are wanted: those to which all that is given applies.

    Attributes:
        since, before: Times, as in records.
        caller: The name of a caller, or what its client is called in the log.
        client: The name that a client gives itself, with or without the version, or the program that it is.
        tool: The own name of a tool, prompt or resource, also behind the id of its server and `__`, as most clients see
            it; refused attempts are found by either.
        verdict: `allow`, `ask` or `deny`.
        outcome: One of OUTCOMES, or why a request was refused.
        configs: The configuration files whose hosts are meant; None for all.
        beyond: The place after which rows are wanted; see `HistoryCall.place`.
        only: The name of an access token whose own calls alone may be seen; None for all. No refused attempt is among
            them: its reason would say whether what is hidden from a caller exists.
    """

    since: str | None = None
    before: str | None = None
    caller: str | None = None
    client: str | None = None
    server: str | None = None
    tool: str | None = None
    verdict: str | None = None
    outcome: str | None = None
    configs: Iterable[str] | None = None
    beyond: int | None = None
    only: str | None = None
    limit: int = 100

    def conditions(self) -> dict[str, tuple[object, ...]]:
        """Conditions in SQL, with their values."""
        given: dict[str, tuple[object, ...]] = {}
        if self.since is not None:
            given["call.time >= ?"] = (self.since,)
        if self.before is not None:
            given["call.time < ?"] = (self.before,)
        if self.caller is not None:
            given["? IN (call.caller, call.client)"] = (self.caller,)
        if self.client is not None:
            begins = f"{self.client} "
            given["? IN (substr(call.agent || ' ', 1, ?), substr(call.program, 1, ?))"] = (begins, *2 * (len(begins),))
        for column, value in (("server", self.server), ("verdict", self.verdict)):
            if value is not None:
                given[f"call.{column} = ?"] = (value,)
        if self.tool is not None:
            ends = f"__{self.tool}"
            # A refused attempt has the name as its caller wrote it.
            is_attempt = "call.what = 'attempt' AND substr(call.item, -?) = ?"
            is_meant = f"(? IN (call.item, call.server || '__' || call.item) OR {is_attempt})"
            given[is_meant] = self.tool, len(ends), ends
        if self.outcome == "pending":
            given[f"{_UNENDED} AND {_IS_RUNNING}"] = ()
        elif self.outcome == UNKNOWN:
            given[f"{_UNENDED} AND NOT {_IS_RUNNING}"] = ()
        elif self.outcome == TOOL_ERROR:
            given["call.tool_error"] = ()
        elif self.outcome is not None:
            begins = f"{self.outcome} "
            given["substr(call.outcome || ' ', 1, ?) = ?"] = (len(begins), begins)
        seen = _within(self.configs, self.only)
        if self.beyond is not None:
            # Of what may be seen, too: the place of another's call would tell when it was.
            mark = " AND ".join(("call.id = ?", *seen))
            given[f"(call.time, call.seq, call.id) < (SELECT time, seq, call.id {_FROM} WHERE {mark})"] = (
                self.beyond,
                *chain.from_iterable(seen.values()),
            )
        return {**given, **seen}

    def has_outcome(self, row: HistoryCall) -> bool:
        """Whether the row has the outcome that is wanted."""
        if self.outcome == "pending":
            return row["pending"]
        if self.outcome == TOOL_ERROR:
            return row["tool_error"]
        return self.outcome is None or f"{row['outcome'] or ''} ".startswith(f"{self.outcome} ")


def search(index: HistoryIndex, wanted: CallFilter) -> list[HistoryCall]:
    """The calls that are wanted, the newest first.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    return _rows(
        index,
        wanted.conditions(),
        "ORDER BY call.time DESC, call.seq DESC, call.id DESC LIMIT ?",
        min(wanted.limit, MOST_ROWS),
    )


def _within(configs: Iterable[str] | None, only: str | None) -> dict[str, tuple[object, ...]]:
    """The conditions of `CallFilter` for what may be seen."""
    given: dict[str, tuple[object, ...]] = {}
    if configs is not None:
        names = tuple(configs)
        given[f"file.config IN ({', '.join('?' * len(names))})"] = names
    if only is not None:
        given["call.caller = ? AND call.what <> 'attempt'"] = (only,)
    return given


def call_named(
    index: HistoryIndex,
    id: str,
    place: int | None = None,
    configs: Iterable[str] | None = None,
    only: str | None = None,
) -> HistoryCall | None:
    """The call of this name, or the only one whose name begins so; None if there is none. All are looked at, unless it
    is at the place where it was found before. `configs` and `only`: see `CallFilter`.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    named = {**_within(configs, only), "call.hash >= ? AND call.hash < ?": (id, f"{id}g")}
    found = [] if place is None else _rows(index, {**named, "call.id = ?": (place,)}, "LIMIT ?", 1)
    found = found or _rows(index, named, "LIMIT ?", 2)
    return found[0] if len(found) == 1 else None


class NewestCall(NamedTuple):
    """A call in the index, after which others are added. Where it is deleted, its place may be given again.

    Attributes:
        place, id, time: As in `HistoryCall`; of an index without calls 0 and empty.
    """

    place: int = 0
    id: str = ""
    time: str = ""


def newest(index: HistoryIndex) -> NewestCall:
    """The call that was added last.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    return _mark(index, "")


def present(index: HistoryIndex, mark: NewestCall) -> NewestCall:
    """The mark if its call is there, else the one that was added last of those that are as old: what is added later has
    greater places than that.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    found = _mark(index, "WHERE id = ?", mark.place)
    return mark if found.id == mark.id else _mark(index, "WHERE time <= ?", mark.time)


def _mark(index: HistoryIndex, condition: str, *values: object) -> NewestCall:
    query = f"SELECT id, hash, time FROM call {condition} ORDER BY id DESC LIMIT 1"
    return NewestCall(*index.select(lambda database: database.execute(query, values).fetchone() or ()))


def later_than(index: HistoryIndex, place: int, pending: Iterable[int], wanted: CallFilter) -> list[HistoryCall]:
    """The calls that were added after this place, and those at the pending ones, in the order in which they were added,
    whatever their outcome.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    places = tuple(pending)
    condition = f"(call.id > ? OR call.id IN ({', '.join('?' * len(places))}))"
    conditions = {**replace(wanted, outcome=None).conditions(), condition: (place, *places)}
    return _rows(index, conditions, "ORDER BY call.id LIMIT ?", 2 * MOST_ROWS)


def names_in(index: HistoryIndex, what: str) -> list[str]:
    """The names of which the index has calls.

    Args:
        what: `server`, `tool`, `caller` or `outcome`, as in `CallFilter`.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    query = f"SELECT DISTINCT * FROM ({_NAMES[what]})"
    return index.select(lambda database: [name for (name,) in database.execute(query) if name])


def tokens_of(index: HistoryIndex, client: str, until: str) -> list[str]:
    """The names of the access tokens with which a client that the log calls so has called up to this time, as in a
    record.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    query = "SELECT DISTINCT caller FROM call WHERE client = ? AND caller <> '' AND time <= ? ORDER BY caller"
    return index.select(lambda database: [name for (name,) in database.execute(query, (client, until))])


def configurations(index: HistoryIndex) -> list[str]:
    """The configurations of which the index has calls.

    Raises:
        HistoryUnavailable: see `HistoryIndex.select`.
    """
    return index.select(lambda database: [name for (name,) in database.execute("SELECT DISTINCT config FROM file")])


def _rows(
    index: HistoryIndex, conditions: Mapping[str, tuple[object, ...]], order: str, limit: int
) -> list[HistoryCall]:
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    values = (*(value for given in conditions.values() for value in given), limit)

    def select(database: sqlite3.Connection) -> list[HistoryCall]:
        chains = ", ".join(map(str, sorted(index.running(database)))) or "0"
        running = f"WITH running(chain) AS (SELECT chain FROM file WHERE chain IN ({chains}))"
        return [_row(row) for row in database.execute(f"{running} {_SELECT}{where} {order}", values)]

    return index.select(select)


def _row(row: tuple[Any, ...]) -> HistoryCall:
    place, id, file, config, micros, *others = row
    told = {name: value for name, value in zip(_COLUMNS, others, strict=True) if value is not None}
    numbers = {name: told.pop(name, None) for name in ("sent", "received", "outcome")}
    tool_error = bool(told.pop("tool_error", False))
    texts = dict.fromkeys((name for name in _COLUMNS if name not in (*numbers, "count")), "")
    members = {**texts, "count": 1, **told, **numbers, "tool_error": tool_error}
    members |= {"id": id, "place": place, "file": file, "config": config}
    members["seconds"] = None if micros is None else micros / 1_000_000
    members["pending"] = members["outcome"] is None
    return cast("HistoryCall", {name: members[name] for name in HistoryCall.__annotations__})


def records_of(audit: Path, row: HistoryCall) -> list[dict[str, object]]:
    """The records of the audit that a row was made of: its decision, and its outcome, which may be in the next file of
    its process. None of those whose file was deleted.

    Raises:
        OSError: a file cannot be read.
    """
    found: list[dict[str, object]] = []
    name: str | None = row["file"]
    while name is not None:
        mark = b'"of":%d,' % row["seq"] if found else b'"hash":"sha256:%b' % row["id"].encode()
        with suppress(FileNotFoundError, ValueError), (audit / name).open("rb") as file:  # ValueError: it is empty
            with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                at = 0
                while (line := _line_with(data, mark, at)) is not None:
                    at, record = line
                    found.append(record)
                    if len(found) == 2 or row["outcome"] in (None, DENIED) or row["what"] != "call":
                        return found
                    mark = b'"of":%d,' % row["seq"]
        name = _next_of(audit, name) if found else None
    return found


def _next_of(audit: Path, name: str) -> str | None:
    """The name of the file in which the process of a file went on; None if there is none."""
    for path in files(audit):
        if path.name > name:
            with suppress(FileNotFoundError), path.open("rb") as file:
                first = parse(file.readline(LONGEST_FIRST))
                if first is not None and first.record.get("former") == name:
                    return path.name
    return None


def contents_of(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The `arguments` and the `result` of a call, as far as its records have them: each with the one member that
    `host.audit.contents.Contents` gives. Nothing of what was not kept."""
    found: dict[str, dict[str, str]] = {}
    for record in records:
        for name, member in (("arguments", "args"), ("result", "result")):
            if isinstance(kept := record.get(member), Mapping):
                told = {how: kept[how] for how in CONTENT_MEMBERS if isinstance(kept.get(how), str)}
                found |= {name: told} if told else {}
    return found


def _line_with(data: mmap, mark: bytes, begin: int) -> tuple[int, dict[str, object]] | None:
    """The first record after this place whose line has a mark, which no text in a record can have, and the place where
    it ends."""
    at = data.find(mark, begin)
    if at < 0:
        return None
    end = data.find(b"\n", at)
    line = parse(data[data.rfind(b"\n", 0, at) + 1 : end + 1])
    return None if line is None else (end, line.record)
