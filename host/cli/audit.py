"""The command `audit`: the records of all hosts of the user, their verification and their sealing."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, counted, pass_selection, read_age, state_option
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.cli.names import SERVER
from host.cli.signals import end_loading
from host.cli.terminal import printable

if TYPE_CHECKING:
    from host.storage.directory import State

KEY_VARIABLE = "COLONNADE_AUDIT_KEY"
_WITHOUT_KEY = {
    True: "the audit is sealed, and --key-file FILE also finds records that were rewritten",
    False: "somebody may have rewritten all of it; colonnade audit init seals what is written from then on",
}
"""By whether the audit is sealed."""


@click.group(invoke_without_command=True)
@click.option("--server", metavar="NAME", type=SERVER, help="Only records of this server.")
@click.option("--kind", metavar="KIND", help="Only records of this kind.")
@click.option("--caller", metavar="NAME", help="Only records of this caller.")
@click.option("--since", metavar="AGE", type=read_age, help="Only records of the last 15m, 2h, 7d.")
@click.option("--follow", is_flag=True, help="Go on with new records.")
@click.option(
    "--table/--json", "as_table", default=None, help="The form. Default: a table on a terminal, else JSON lines."
)
@state_option
@pass_selection
@click.pass_context
def audit(
    context: click.Context,
    selection: Selection,
    server: str | None,
    kind: str | None,
    caller: str | None,
    since: int | None,
    follow: bool,
    as_table: bool | None,
) -> int:
    """Print, verify or seal the audit.

    Without a command: print the records of all hosts in order of time: as a table on a terminal or with --table, and
    otherwise as one JSON object a line.
    """
    if context.invoked_subcommand is not None:
        return DONE
    from host.audit.read import records
    from host.cli.targets import as_command_failures

    state = selection.open_state()
    end_loading()
    tell_streams(state)
    begin = None if since is None else time.time() - since
    form: Callable[[Mapping[str, Any]], str] = json.dumps
    if sys.stdout.isatty() if as_table is None else as_table:
        form = _row
        print(_COLUMNS.format("TIME", "KIND", "SERVER", "ENTRY", "WHAT"))
    with as_command_failures():
        for record in records(state.audit, server=server, kind=kind, caller=caller, since=begin, follow=follow):
            print(form(record), flush=follow)
    return DONE


def tell_streams(state: State, consequence: str = "") -> None:
    """Say which running hosts have their audit elsewhere, and what follows from that."""
    from host.cli.admin_client import find_hosts

    for host in find_hosts(state.path, timeout=1.0):
        if host.audit == "stdout":
            print(
                f"colonnade: the host of {printable(host.config)} (process {host.pid}) writes its audit to standard "
                f"output (audit.to: stdout){consequence}: it is where that is collected, as by docker logs, kubectl "
                "logs or journalctl; colonnade audit verify FILE verifies collected lines, and - is standard input",
                file=sys.stderr,
            )


_COLUMNS = "{:<19} {:<11} {:<14} {:<32} {}"
_TOLD = (
    "issuer",
    "scopes",
    "revoked",
    "standing",
    "counts",
    "answer",
    "grant",
    "by",
    "why",
    "unrecorded",
    "others",
    "readings",
    "peer",
    "name",
    "file",
)
"""Members that the last column of the table tells of records that have no sentence of their own."""


def _row(record: Mapping[str, Any]) -> str:
    """A record as one line of the table; as JSON, if somebody has changed it so that it makes no such line. Times are
    local."""
    try:
        at = datetime.fromisoformat(record["ts"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        entry = f"{record.get('prim', '')} {record.get('item', '')}"
        cells = (at, str(record["kind"]), str(record.get("server", "")), entry.strip(), _what(record))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return printable(json.dumps(record))
    return _COLUMNS.format(*map(printable, cells)).rstrip()


def _what(record: Mapping[str, Any]) -> str:
    match record["kind"]:
        case "decision":
            caller = record.get("principal") or record.get("client") or "a client without a name"
            program = "{program} ({pid})".format(**record["process"]) if record.get("process") else ""
            program = "" if program in caller else f", {program}"
            through = f", through {record['through']}" if record.get("through") else ""
            given = f", allowed by {record['approver']}" if record.get("approver") else ""
            return f"{record['verdict']} ({record['rule']}) for {caller}{program}{through}{given}"
        case "outcome":
            failed = ", tool error" if record.get("tool_error") else ""
            return f"{record['outcome']}{failed}, {record['micros'] / 1000:.1f} ms, {record['bytes']} bytes"
        case "ask":
            return f"{record.get('rule', '')} for {record.get('principal') or 'a client without a token'}"
        case "attempts" if "why" in record:
            caller = record.get("principal") or record.get("client") or "a caller that is not known"
            where = f" from {record['address']}" if record["address"] else ""
            return f"{record['why']}, {counted(record['count'], 'time')}, for {caller}{where}"
        case _:
            told = ((name, record.get(name)) for name in _TOLD)
            return ", ".join(f"{name} {json.dumps(value)}".replace('"', "") for name, value in told if value)


@audit.command()
@click.argument("lines", metavar="[FILE]...", nargs=-1, type=click.Path(readable=False, allow_dash=True))
@click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(readable=False, allow_dash=True),
    help=f"The verification key; - is standard input. Default: ${KEY_VARIABLE}.",
)
@click.option("--head", metavar="HEAD", help="A record that must be there, as an earlier verification printed it.")
@state_option
@pass_selection
def verify(selection: Selection, lines: tuple[str, ...], key_file: str | None, head: str | None) -> int:
    """Verify the audit: print the state of each file.

    With FILE, verify the lines that were collected from the standard output of
    hosts with audit.to: stdout; - is standard input. Other lines among them are
    counted.

    The exit code is 1 if a file is not as it was written, continues one that
    is missing, does not fit the key, or does not have the head; and if no record
    is among the lines of FILE.
    """
    from host.audit.seal import read_state
    from host.audit.verify import read_head, verify_all, verify_lines
    from host.cli.targets import as_command_failures

    if "-" in lines and key_file == "-":
        raise click.UsageError("standard input has either the lines or the key.", click.get_current_context())
    state = selection.open_state()
    end_loading()
    try:
        key = _verification_key(key_file)
        wanted = None if head is None else read_head(head)
    except OSError as problem:
        raise CommandFailed(f"{key_file} cannot be read: {problem.strerror}", WRONG) from problem
    except ValueError as problem:
        raise CommandFailed(str(problem), WRONG) from problem
    others = 0
    with as_command_failures():
        if lines:
            report, others = verify_lines(_read(lines), key, wanted)
        else:
            tell_streams(state)
            report = verify_all(state.audit, key, wanted)
        for line in (*report.verified, *report.deleted, *report.problems):
            print(line)
        if report.head is not None:
            print(f"head: {report.head}")
        if others:
            print(f"{counted(others, 'other line')} among them: no records")
        if key is None and lines and report.verified:
            print("Verified without a key: somebody may have rewritten all of them where they were collected.")
        elif key is None and not lines:
            print(f"Verified without a key: {_WITHOUT_KEY[read_state(state.audit) is not None]}.")
    return DONE if report.is_sound else FAILED


def _read(files: tuple[str, ...]) -> Iterator[bytes]:
    """The lines of these files; raises CommandFailed if one cannot be read."""
    for file in files:
        with ExitStack() as stack:
            try:
                yield from sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            except OSError as problem:
                raise CommandFailed(f"{file} cannot be read: {problem.strerror}", WRONG) from problem


def _verification_key(file: str | None) -> bytes | None:
    """Raises OSError, or ValueError if it is no key."""
    from host.audit.seal import read_key

    if file is not None:
        return read_key(sys.stdin.read() if file == "-" else Path(file).read_text())
    text = os.environ.get(KEY_VARIABLE)
    return None if text is None else read_key(text)


@audit.command("init")
@click.option("--again", is_flag=True, help="Begin another chain, with another key.")
@state_option
@pass_selection
def initialise(selection: Selection, again: bool) -> int:
    """Seal the audit from now on, and print the verification key once."""
    from host.audit.seal import SealExists, begin_chain, chain_of, new_key, read_state
    from host.audit.writer import Audit
    from host.cli.targets import as_command_failures
    from host.wire.descent import refusal_reason, this_process

    state = selection.open_state()
    end_loading()
    refusal = refusal_reason(this_process(), state.hosts)
    if refusal is not None:
        raise CommandFailed(refusal)
    key = new_key()
    with as_command_failures():
        if again and read_state(state.audit) is not None:
            with Audit(state.audit) as ending:  # sealed by the chain that ends
                ending.write("chain", next=chain_of(key))
        try:
            begin_chain(state.audit, key, again=again)
        except SealExists as problem:
            raise CommandFailed(
                "the audit is sealed already; --again begins another chain with another key, and the former key goes "
                "on to verify the files of before"
            ) from problem
    print(key.hex())
    print(
        "This is the verification key. Keep it elsewhere: it is stored nowhere, and nothing can show it again.\n"
        "Hosts that run seal from their next file on; start them again to seal at once.",
        file=sys.stderr,
    )
    return DONE
