"""The command `history`: the calls of all hosts of the user, searched in an index of the audit."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from host.cli.audit import tell_streams
from host.cli.common import Selection, is_confirmed, pass_selection, read_age, read_id, selection_options, state_option
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.names import CALLER, OWN_TOOL, SERVER
from host.cli.signals import end_loading
from host.cli.terminal import announced, cut, printable

if TYPE_CHECKING:
    from host.audit.records import HistoryCall
    from host.cli.targets import DecisionScope
    from host.history.index import HistoryIndex
    from host.history.search import CallFilter, NewestCall
    from host.storage.directory import State

FOLLOW_INTERVAL = 0.5
"""Seconds between two looks at the audit that is followed."""
MOST_PENDING = 500
"""Calls without an outcome that are waited for; the oldest are given up."""
MOST_KNOWN = 1_000
"""Calls that ended and are not shown once more; the oldest are forgotten."""
MOST_NAMES = 20
"""Names that are proposed in place of one that is not known, and similar to none."""
ANOTHER_INDEX = (
    "the index was built again, so calls that ended in the last seconds may be missing here; "
    "colonnade history without --follow has them"
)
_COLUMNS = "{:<19}  {:<16}  {:<16}  {:<14}  {:<28}  {:<7}  {:<16}  {:>10}  {:>9}  {:<16}  {}"
_TITLES = ("TIME", "CALLER", "CLIENT", "SERVER", "ENTRY", "VERDICT", "OUTCOME", "DURATION", "BYTES", "ID", "RULE")
_WIDTHS = (19, 16, 16, 14, 28, 7, 16, 10, 9, 16)


@click.group(invoke_without_command=True)
@click.option("--since", metavar="AGE", type=read_age, help="Only calls of the last 15m, 2h, 7d.")
@click.option("--until", metavar="AGE", type=read_age, help="Only calls before that.")
@click.option("--caller", metavar="NAME", type=CALLER, help="Only calls of this caller.")
@click.option("--client", metavar="NAME", help="Only calls of clients that call themselves so, or of this program.")
@click.option("--server", metavar="NAME", type=SERVER, help="Only calls of this server.")
@click.option("--tool", metavar="NAME", type=OWN_TOOL, help="Only calls of this tool: NAME or SERVER__NAME.")
@click.option("--verdict", type=click.Choice(("allow", "ask", "deny")), help="Only calls with this verdict.")
@click.option(
    "--outcome",
    metavar="WORD",
    help="Only calls that ended so: answered, 'tool error' (answered by a tool that says that it failed), error, "
    "failed, called, pending, unknown; or that were refused: denied, held, missing, unanswered (by a person), or "
    "permitted, and not sent: unavailable, limited.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="The most calls.")
@click.option("--follow", is_flag=True, help="Go on with calls as they end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@selection_options
@click.pass_context
def history(
    context: click.Context,
    selection: Selection,
    since: int | None,
    until: int | None,
    caller: str | None,
    client: str | None,
    server: str | None,
    tool: str | None,
    verdict: str | None,
    outcome: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> int:
    """Search the calls of the past, the newest last.

    Without a command: print the calls, and the requests that were refused, to which all options apply. With --config,
    only those of hosts of FILE.
    """
    if (command := context.invoked_subcommand) is not None:
        written = ParameterSource.COMMANDLINE
        given = [name for name in context.params if context.get_parameter_source(name) is written]
        if given:  # `--server x forget y` would forget more than it says
            options = ", ".join(each.opts[0] for each in context.command.params if each.name in given)
            raise click.UsageError(f"{options}: this is for a search; put options of {command} behind it.", context)
        return DONE
    from host.history.index import as_time
    from host.history.search import CallFilter, newest, search

    if follow and until is not None:
        raise click.UsageError("--until does not go with --follow.", context)
    state = selection.open_state()
    end_loading()
    tell_streams(state, ", so there is no history of its calls")
    now = time.time()
    with closing(_open_index(state)) as index, _as_command_failures():
        _read_on(index)
        mark = newest(index)
        wanted = CallFilter(
            since=None if since is None else as_time(now - since),
            before=None if until is None else as_time(now - until),
            caller=caller,
            client=client,
            server=server,
            tool=tool,
            verdict=verdict,
            outcome=outcome,
            configs=_configs(index, selection),
            limit=limit,
        )
        rows = search(index, wanted)[::-1]
        if not rows and (unknown := _unknown_name(index, wanted, selection.scope())):
            if not follow:
                raise CommandFailed(unknown)
            print(f"colonnade: {unknown}", file=sys.stderr)
        if not as_json:
            print(_COLUMNS.format(*_TITLES))
        for row in chain(rows, _follow(index, wanted, mark, rows) if follow else ()):
            print(json.dumps(_members(row)) if as_json else _line(row), flush=follow)
    return DONE


def _open_index(state: State) -> HistoryIndex:
    """The index, which keeps what the audit has, since the command does not know what each host would keep."""
    from host.history.index import NAME, Bounds, HistoryIndex

    bounds, path = Bounds(keep=math.inf), state.path / NAME
    if path.exists() and path.stat().st_size > bounds.max:
        bounds = bounds._replace(max=max(bounds.max, _most_bytes(state)))
    return HistoryIndex(state.path, state.audit, bounds)


def _most_bytes(state: State) -> int:
    """The bytes to which a configuration lets the index grow; without a limit if one cannot be read."""
    from config import ConfigError, load

    most = 0
    for source in state.sources():
        try:
            history = load(source, in_background=True).history
        except ConfigError:
            if os.path.exists(source):
                return sys.maxsize
        else:
            most = most if history is None else max(most, history.max)
    return most


@contextmanager
def _as_command_failures() -> Iterator[None]:
    from host.history.index import HistoryUnavailable

    try:
        yield
    except HistoryUnavailable as problem:
        raise CommandFailed(printable(str(problem))) from problem


def _read_on(index: HistoryIndex) -> None:
    """Take over what the audit has by now. What is missing is said."""
    from host.history.index import HistoryUnavailable

    try:
        with announced("for the index of the audit, which takes long only the first time"):
            while index.read_on():
                pass
            index.trim()
    except HistoryUnavailable as problem:
        print(f"colonnade: the newest calls are missing: {printable(str(problem))}", file=sys.stderr)
    for remark in index.remarks():
        print(f"colonnade: {printable(remark)}", file=sys.stderr)


def _configs(index: HistoryIndex, selection: Selection) -> list[str] | None:
    """The names that the audit has for the configuration that is selected.

    Raises:
        CommandFailed: it has none, and there is no such file: a mistyped name must not look like a quiet day.
    """
    from host.history.search import configurations

    if selection.config is None:
        return None
    real = os.path.realpath(selection.config)
    names = [name for name in configurations(index) if os.path.realpath(name) == real]
    if not names and not os.path.exists(real):
        raise CommandFailed(f"there is no file {printable(real)}, and the history has no call of its hosts")
    return names


def _unknown_name(index: HistoryIndex, wanted: CallFilter, scope: DecisionScope) -> str:
    """A sentence on a name of which there is no call at all, and which may be mistyped; empty if there is none. A
    server of a configuration need not have been called."""
    from host.cli.suggest import did_you_mean
    from host.history.search import OUTCOMES, CallFilter, names_in, search
    from host.sanitize import visible

    for what in ("caller", "server", "tool", "outcome"):
        name = getattr(wanted, what)
        if name is None:
            continue
        names = {*names_in(index, what), *(OUTCOMES if what == "outcome" else ())}
        if name not in names and what == "server":
            names.update(server for target in scope.all() for server in target.servers())
        # A tool and an outcome have further spellings.
        if name not in names and not search(index, CallFilter(**{what: name}, limit=1)):
            known = "; ".join(sorted(map(visible, names))[:MOST_NAMES])
            others = f"known are {known}" if what == "outcome" else f"it has calls of {known or 'none'}"
            remedy = did_you_mean(name, names) or others
            if what == "caller" and (tokens := _tokens_of(name, scope)):
                remedy = f"calls have the name of the caller's token: {', '.join(tokens)}"
            return f"the history has no call of the {what} {visible(name)!r}; {remedy}"
    return ""


def _tokens_of(caller: str, scope: DecisionScope) -> list[str]:
    """The names of the tokens of a caller with a name of its own in the configurations that are meant, or that run."""
    from config import ConfigError, load

    found: set[str] = set()
    for target in scope.all():
        with suppress(ConfigError):
            callers = load(target.config, in_background=True).callers
            found |= {spec.token for name, spec in callers.items() if name == caller != spec.token}
    return sorted(found)


def _follow(
    index: HistoryIndex, wanted: CallFilter, mark: NewestCall, shown: Iterable[HistoryCall]
) -> Iterator[HistoryCall]:
    """The calls that end from now on, and refused requests, for ever. While the index cannot be used, that is said, and
    made up for."""
    from host.history.index import HistoryUnavailable
    from host.history.search import NewestCall, later_than, newest, present

    pause = Event()
    known = dict.fromkeys(row["id"] for row in shown if not row["pending"])  # a place is given again
    pending = dict.fromkeys(row["place"] for row in shown if row["pending"])
    openings, problem = index.openings, ""
    while True:
        try:
            while index.read_on():
                pass
            if index.openings > openings:
                openings, mark = index.openings, newest(index)
                pending.clear()
                print(f"colonnade: {ANOTHER_INDEX}", file=sys.stderr)
            else:
                mark = present(index, mark)
            rows, problem = later_than(index, mark.place, pending, wanted), ""
        except HistoryUnavailable as now:
            if not problem:
                print(f"colonnade: the newest calls are missing: {printable(str(now))}", file=sys.stderr)
            rows, problem = [], str(now)
        for row in rows:
            if row["place"] > mark.place:
                mark = NewestCall(row["place"], row["id"], row["time"])
            if row["pending"]:
                pending[row["place"]] = None
            elif row["place"] in pending or row["id"] not in known:
                pending.pop(row["place"], None)
                known[row["id"]] = None
                if wanted.has_outcome(row):
                    yield row
        while len(pending) > MOST_PENDING:
            del pending[next(iter(pending))]
        while len(known) > MOST_KNOWN:
            del known[next(iter(known))]
        pause.wait(FOLLOW_INTERVAL)


def _members(row: HistoryCall) -> dict[str, object]:
    return {name: value for name, value in row.items() if name != "place"}


def _line(row: HistoryCall) -> str:
    """A call as one line of the table, with what --caller, --client and --outcome take. Times are local."""
    from host.history.search import TOOL_ERROR

    taken = row["seconds"]
    duration = "" if taken is None else f"{taken * 1000:,.1f} ms" if taken < 10 else f"{taken:,.1f} s"
    size = "" if row["received"] is None else f"{row['received']:,}"
    outcome = TOOL_ERROR if row["tool_error"] else row["outcome"] or ("pending" if row["pending"] else "")
    outcome += f" x{row['count']:,}" if row["count"] > 1 else ""
    entry = f"{row['kind']} {row['item']}".strip()
    who = (row["caller"] or row["client"], row["agent"] or row["program"])
    cells = (_local(row["time"]), *who, row["server"], entry, row["verdict"], outcome, duration, size, row["id"])
    shown = (cut(printable(cell), width) for cell, width in zip(cells, _WIDTHS, strict=True))
    return _COLUMNS.format(*shown, printable(row["rule"])).rstrip()


def _local(time: str) -> str:
    try:
        return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):  # of a line that somebody wrote into the audit
        return time


@history.command()
@click.argument("id", metavar="ID", type=read_id)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@state_option
@pass_selection
def show(selection: Selection, id: str, as_json: bool) -> int:
    """Show a call with its records of the audit. ID is as in the list."""
    from host.history.search import contents_of

    state = selection.open_state()
    end_loading()
    row, records = find_call(state, id)
    if as_json:
        print(json.dumps({**_members(row), "records": records}))
        return DONE
    for name, value in _members(row).items():
        if value not in ("", None):
            print(f"{name + ':':<10} {printable(str(value))}")
    for line in content_lines(contents_of(records)):
        print(line)
    for record in records:
        print(json.dumps(record))
    if not records:
        print(f"colonnade: its record is not in the audit any more ({row['file']})", file=sys.stderr)
    return DONE


def content_lines(contents: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Arguments and result of a call, as `contents_of` has them, for a terminal."""
    marks = {"json": "", "redacted": " (redacted)", "left_out": " (left out)"}
    return [f"{name}{marks[how]}: {printable(text)}" for name, kept in contents.items() for how, text in kept.items()]


def find_call(state: State, id: str) -> tuple[HistoryCall, list[dict[str, object]]]:
    """The call of this name, with its records; none if they are not there any more.

    Raises:
        CommandFailed: there is no such call, or it cannot be read.
    """
    from host.history.search import call_named, records_of

    with closing(_open_index(state)) as index, _as_command_failures():
        _read_on(index)
        row = call_named(index, id)
    if row is None:
        raise CommandFailed(f"the history has no call {id}, or several that begin so; colonnade history lists them")
    try:
        return row, records_of(state.audit, row)
    except OSError as problem:
        raise CommandFailed(f"{row['file']} cannot be read: {problem.strerror}") from problem


@history.command("forget")
@click.argument("caller", metavar="CALLER", type=CALLER)
@click.option("--yes", is_flag=True, help="Do not ask.")
@state_option
@pass_selection
def forget_caller(selection: Selection, caller: str, yes: bool) -> int:
    """Forget the calls of a caller so far. The audit keeps its records until its own retention deletes them."""
    from host.history.forgotten import forget
    from host.history.index import HistoryUnavailable, as_time
    from host.history.search import CallFilter, tokens_of

    state = selection.open_state()
    end_loading()
    if not yes and not is_confirmed(f"Forget all calls of {printable(caller)} so far?"):
        return FAILED
    with closing(_open_index(state)) as index:
        unknown = ""
        with suppress(HistoryUnavailable):  # it is forgotten all the same
            _read_on(index)
            unknown = _unknown_name(index, CallFilter(caller=caller), selection.scope())
        try:
            forget(state.path, caller, until := as_time(time.time()))
        except OSError as problem:
            raise CommandFailed(f"that cannot be stored: {problem.strerror}") from problem
        with _as_command_failures():
            index.trim()
            staying = tokens_of(index, caller, until)
    if unknown:
        print(f"colonnade: {unknown}", file=sys.stderr)
    without = " without an access token" if staying else ""
    print(
        f"The history has no calls of {printable(caller)}{without} before this moment. The audit has their records "
        "until its retention deletes them."
    )
    for token in map(printable, staying):
        print(f"Its calls with the access token {token} stay; colonnade history forget {token} forgets those.")
    return DONE
