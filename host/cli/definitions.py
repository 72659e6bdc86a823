"""The command `definitions`: held definitions, and decisions about them."""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from host.cli.approving import approve_shown, show_definition
from host.cli.common import (
    Selection,
    is_confirmed,
    selection_options,
)
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.cli.names import SERVER
from host.cli.terminal import Terminal

if TYPE_CHECKING:
    from host.cli.targets import DecisionTarget
    from host.storage.directory import State

SHORT_ID_LENGTH = 10
"""Hexadecimal digits by which a person names a held definition."""
KINDS = ("tool", "prompt", "resource", "template", "instructions", "launch")


@click.group(invoke_without_command=True)
@click.option("--show", is_flag=True, help="Show every difference in full.")
@selection_options
@click.pass_context
def definitions(context: click.Context, selection: Selection, show: bool) -> int:
    """List, approve, reject or revoke definitions.

    Without a command: list held definitions. `pins` is the same command. A new definition is shown as it is, a changed
    one as a difference: removed words in [-…-], added ones in {+…+}.
    """
    if context.invoked_subcommand is not None:
        return DONE
    scope = selection.scope()
    is_empty = True
    uncounted: list[tuple[str, int]] = []
    for target in scope.all():
        state = _compared_state(target)
        held_rows = state["held"]
        uncounted += [(row["id"], count) for row in state["servers"] if (count := row["uncounted"])]
        if held_rows:
            is_empty = False
            print(f"{target.config}:")
        for held in held_rows:
            _show_held(scope.state, held, whole=show)
    if is_empty:
        print("Nothing is held back.")
    else:
        print()
        if not show:
            print("To see them in full: colonnade definitions --show")
        print("To decide: colonnade definitions approve ID... (or reject, revoke)")
    for id, count in uncounted:
        tools, they = ("tool", "it") if count == 1 else ("tools", "them")
        do_not = f"whose claims do not count before you approve {they}: colonnade definitions approve {id}"
        print(f"{id}: {count} {tools}, {do_not}")
    return DONE


def _decision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")(selection_options(command))
    command = click.option("--server", metavar="NAME", type=SERVER, help="All of this server, as SERVER.")(command)
    return click.argument("names", metavar="[SERVER|ID]...", nargs=-1)(command)


@definitions.command()
@_decision_options
@click.option("--show", is_flag=True, help="Show each definition in full.")
def approve(selection: Selection, names: tuple[str, ...], server: str | None, yes: bool, show: bool) -> int:
    """Approve definitions: held ones, by the ids that `definitions` shows, or all that a server offers.

    With SERVER, all definitions of it that no person has approved are shown, with what its tools claim about
    themselves, and approved if you agree. From then on the rules count these claims.
    """
    scope = selection.scope()
    targets = scope.all()
    servers, ids = _split(targets, names, server)
    if servers and ids:
        raise CommandFailed("name servers, or ids, but not both", WRONG)
    if not servers:
        return _decide(scope.state, targets, "approve", ids, None, has_agreed=True)
    return max(_approve_list(scope.state, targets, each, has_agreed=yes, whole=show) for each in servers)


@definitions.command()
@_decision_options
def reject(selection: Selection, names: tuple[str, ...], server: str | None, yes: bool) -> int:
    """Reject held definitions, by the ids that `definitions` shows, or all of a server."""
    scope = selection.scope()
    targets = scope.all()
    servers, ids = _split(targets, names, server)
    if len(servers) > 1 or (servers and ids):
        raise CommandFailed("name one server, or ids", WRONG)
    return _decide(scope.state, targets, "reject", ids, next(iter(servers), None), has_agreed=yes)


@definitions.command()
@click.argument("server", type=SERVER)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", default="")
@selection_options
def revoke(selection: Selection, server: str, kind: str, name: str) -> int:
    """Hold an approved definition until it is approved again."""
    scope = selection.scope()
    from host.cli.targets import only

    definition = {"server": server, "kind": kind, "name": name, "fingerprint": ""}
    print(only(scope.all()).post("definitions/decide", **definition, decision="revoke")["done"])
    return DONE


def _split(targets: Sequence[DecisionTarget], names: Sequence[str], server: str | None) -> tuple[list[str], list[str]]:
    """The servers and the ids among these names."""
    known = {id for target in targets for id in target.servers()} if names else set()
    servers = [*([] if server is None else [server]), *(name for name in names if name in known)]
    ids = [name for name in names if name not in known]
    if not servers and not ids:
        which = "the ids that `colonnade definitions` shows, or a server (--server NAME) for all of it"
        raise CommandFailed(f"say what: {which}", WRONG)
    return list(dict.fromkeys(servers)), ids


def _approve_list(
    state: State, targets: Sequence[DecisionTarget], server: str, *, has_agreed: bool, whole: bool
) -> int:
    """Show all definitions of a server that no person has approved, and approve them."""
    from host.cli.targets import only

    target = only(targets, server)
    rows = target.post("definitions/list", server=server)["definitions"]
    held = [each for each in _compared_state(target)["held"] if each["server"] == server and not each["rejected"]]
    automatic = [row for row in rows if row["standing"] == "approved" and not (row["counts"] or row["denied"])]
    unfit = [each for each in (*held, *automatic) if each["problem"]]
    chosen = [each["fingerprint"] for each in (*held, *automatic) if not each["problem"]]
    for each in held:
        _show_held(state, each, whole=True)
    for row in automatic:
        show_definition(f"  {row['kind']} {row['name']}".rstrip(), row, whole=whole)
    for each in unfit:
        _say_unfit(each)
    if not chosen:
        print(f"No definition of {server} waits for your approval.")
        return FAILED if unfit else DONE
    if not has_agreed and not _confirmed(f"Approve {'all of these' if len(chosen) > 1 else 'this'} of {server}?"):
        print("Nothing was done.")
        return FAILED
    for done in approve_shown(target, server, chosen):
        print(done)
    return FAILED if unfit else DONE


def _say_unfit(row: Mapping[str, Any]) -> None:
    named = f"{row['server']}: {row['kind']} {row['name']}".rstrip()
    print(f"colonnade: {named} was not approved: {row['problem']}", file=sys.stderr)


def _decide(
    state: State,
    targets: Sequence[DecisionTarget],
    decision: str,
    ids: Sequence[str],
    server: str | None,
    *,
    has_agreed: bool,
) -> int:
    from host.cli.targets import only

    chosen = [
        (target, held)
        for target in targets
        for held in _compared_state(target)["held"]
        if (short_id(state, held) in ids if ids else held["server"] == server and not held["rejected"])
    ]
    missing = set(ids) - {short_id(state, held) for _, held in chosen}
    if missing or not chosen:
        which = f"with the id {', '.join(sorted(missing))}" if missing else f"of {server}"
        raise CommandFailed(f"no held definition {which} (any more); `colonnade definitions` shows the current list")
    target = only(list({id(target): target for target, _ in chosen}.values()))
    for _, held in chosen:
        _show_held(state, held, whole=True)
    if not ids and not has_agreed:
        which = "all of these" if len(chosen) > 1 else "this"
        if not _confirmed(f"{decision.capitalize()} {which}?"):
            print("Nothing was done.")
            return FAILED
    code = DONE
    for _, held in chosen:
        if decision == "approve" and held["problem"]:
            _say_unfit(held)
            code = FAILED
            continue
        definition = {key: held[key] for key in ("server", "kind", "name", "fingerprint")}
        print(target.post("definitions/decide", **definition, decision=decision)["done"])
    return code


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("colonnade: there is no terminal to confirm on; pass --yes once you have read it", file=sys.stderr)
        return False
    return is_confirmed(question)


def _compared_state(target: DecisionTarget) -> Mapping[str, Any]:
    """The state, in which the held definitions have all differences. A host computes only so many at a time."""
    state = target.state()
    compared = -1
    while compared < (ready := sum(each["ready"] for each in state["held"])) < len(state["held"]):
        compared, state = ready, target.state()
    return state


def _show_held(state: State, held: Mapping[str, Any], *, whole: bool) -> None:
    status = "rejected" if held["rejected"] else held["standing"]
    name = f" {held['name']}" if held["name"] else ""
    print(f"  {short_id(state, held)}  {held['server']}: {held['kind']}{name}  ({status})")
    if held["problem"]:
        print(f"      cannot be approved: {held['problem']}")
    if order := held.get("order"):  # a host of an older version does not say it
        print(f"      {order}")
    if whole:
        is_new = all(piece["op"] == "added" for piece in held["diff"])
        lines = held["text"].split("\n") if is_new else Terminal(sys.stdout).difference(held["diff"])
        for line in lines:
            print(f"      {line}")


def short_id(state: State, held: Mapping[str, Any]) -> str:
    """The id by which a person names one definition of one server. It is keyed, so that no server can make another
    definition with the same id.

    Raises:
        CommandFailed: the key cannot be read.
    """
    from host.cli.targets import as_command_failures

    with as_command_failures():
        key = state.key()
    named = json.dumps([held[key] for key in ("server", "kind", "name", "fingerprint")]).encode()
    return hmac.new(key, named, "sha256").hexdigest()[:SHORT_ID_LENGTH]
