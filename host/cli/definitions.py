"""The command `definitions`: held definitions, and decisions about them."""

from __future__ import annotations

import hmac
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import (
    AnyCallable,
    Selection,
    config_option,
    is_confirmed,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.cli.names import SERVER
from host.cli.signals import allow_interrupts
from host.cli.terminal import Terminal

if TYPE_CHECKING:
    from host.cli.targets import DecisionScope, DecisionTarget
    from host.storage.directory import State

SHORT_ID_LENGTH = 10
"""Hexadecimal digits by which a person names a held definition."""
KINDS = ("tool", "prompt", "resource", "template", "instructions", "launch")


@click.group(invoke_without_command=True)
@click.option("--show", is_flag=True, help="Show every difference in full.")
@config_option
@state_option
@pass_selection
@click.pass_context
def definitions(context: click.Context, selection: Selection, show: bool) -> int:
    """List, approve, reject or revoke definitions.

    Without a command: list held definitions. `pins` is the same command. A new definition is shown as it is, a changed
    one as a difference: removed words in [-…-], added ones in {+…+}.
    """
    if context.invoked_subcommand is not None:
        return DONE
    scope = _scope(selection)
    is_empty = True
    for target in scope.all():
        held_rows = _held(target)
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
    return DONE


def _decision_options(command: AnyCallable) -> AnyCallable:
    options: list[Callable[[AnyCallable], AnyCallable]] = [
        click.argument("ids", metavar="[ID]...", nargs=-1),
        click.option("--server", metavar="NAME", type=SERVER, help="All held definitions of this server, shown first."),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
        config_option,
        state_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@definitions.command()
@_decision_options
@pass_selection
def approve(selection: Selection, ids: tuple[str, ...], server: str | None, yes: bool) -> int:
    """Approve held definitions, by the ids that `definitions` shows."""
    return _decide(selection, "approve", ids, server, has_agreed=yes)


@definitions.command()
@_decision_options
@pass_selection
def reject(selection: Selection, ids: tuple[str, ...], server: str | None, yes: bool) -> int:
    """Reject held definitions, by the ids that `definitions` shows."""
    return _decide(selection, "reject", ids, server, has_agreed=yes)


@definitions.command()
@click.argument("server", type=SERVER)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name", default="")
@config_option
@state_option
@pass_selection
def revoke(selection: Selection, server: str, kind: str, name: str) -> int:
    """Hold an approved definition until it is approved again."""
    scope = _scope(selection)
    from host.cli.targets import only

    definition = {"server": server, "kind": kind, "name": name, "fingerprint": ""}
    print(only(scope.all()).post("definitions/decide", **definition, decision="revoke")["done"])
    return DONE


def _decide(selection: Selection, decision: str, ids: Sequence[str], server: str | None, *, has_agreed: bool) -> int:
    if not ids and server is None:
        raise CommandFailed("say what: the ids that `colonnade definitions` shows, or --server NAME for all", WRONG)
    scope = _scope(selection)
    from host.cli.targets import only

    chosen = [
        (target, held)
        for target in scope.all()
        for held in _held(target)
        if (short_id(scope.state, held) in ids if ids else held["server"] == server and not held["rejected"])
    ]
    missing = set(ids) - {short_id(scope.state, held) for _, held in chosen}
    if missing or not chosen:
        which = f"with the id {', '.join(sorted(missing))}" if missing else f"of {server}"
        raise CommandFailed(f"no held definition {which} (any more); `colonnade definitions` shows the current list")
    target = only(list({id(target): target for target, _ in chosen}.values()))
    for _, held in chosen:
        _show_held(scope.state, held, whole=True)
    if not ids and not has_agreed:
        which = "all of these" if len(chosen) > 1 else "this"
        if not _confirmed(f"{decision.capitalize()} {which}?"):
            print("Nothing was done.")
            return FAILED
    code = DONE
    for _, held in chosen:
        if decision == "approve" and held["problem"]:
            named = f"{held['server']}: {held['kind']} {held['name']}".rstrip()
            print(f"colonnade: {named} was not approved: {held['problem']}", file=sys.stderr)
            code = FAILED
            continue
        definition = {key: held[key] for key in ("server", "kind", "name", "fingerprint")}
        print(target.post("definitions/decide", **definition, decision=decision)["done"])
    return code


def _scope(selection: Selection) -> DecisionScope:
    scope = selection.scope()
    allow_interrupts()
    return scope


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("colonnade: there is no terminal to confirm on; pass --yes once you have read it", file=sys.stderr)
        return False
    return is_confirmed(question)


def _held(target: DecisionTarget) -> list[Mapping[str, Any]]:
    """The held definitions with all differences. A host computes only so many at a time."""
    held: list[Mapping[str, Any]] = target.state()["held"]
    ready = -1
    while not all(each["ready"] for each in held) and ready < (ready := sum(each["ready"] for each in held)):
        held = target.state()["held"]
    return held


def _show_held(state: State, held: Mapping[str, Any], *, whole: bool) -> None:
    status = "rejected" if held["rejected"] else held["standing"]
    name = f" {held['name']}" if held["name"] else ""
    print(f"  {short_id(state, held)}  {held['server']}: {held['kind']}{name}  ({status})")
    if held["problem"]:
        print(f"      cannot be approved: {held['problem']}")
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
