"""The commands by which a person confirms calls: `ask` in the terminal, `console` for the link to the web console."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import (
    UNITS,
    Selection,
    config_option,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.names import CONFIRMATION
from host.cli.signals import allow_interrupts

if TYPE_CHECKING:
    from host.cli.targets import RunningTarget


_ANSWER_LATER = "colonnade ask ID once|tool|session|15m|always|deny answers it"


@click.command()
@click.argument("id", required=False, type=CONFIRMATION)
@click.argument("answer", required=False)
@click.option(
    "--arguments",
    metavar="WHICH",
    default="exact",
    show_default=True,
    help="What a lasting answer is for: exact (these arguments), any, or conditions as a JSON object.",
)
@click.option("--follow", is_flag=True, help="Stay, and show new confirmations: calls then wait for an answer.")
@config_option
@state_option
@pass_selection
def ask(selection: Selection, id: str | None, answer: str | None, arguments: str, follow: bool) -> int:
    """List pending confirmations; show or answer one.

    ID shows one in full. ANSWER is once, tool (any arguments, for this session), session, 15m (any time), always, deny,
    or deny-all (all that wait of the same server). Without ID, on a terminal, the command stays and asks for answers.
    """
    scope = selection.scope()
    allow_interrupts()
    targets = scope.running()
    if id is None:
        if follow or (sys.stdin.isatty() and sys.stdout.isatty()):
            return _follow(targets)
        return _list(targets)
    for target in targets:
        for confirmation in target.state()["confirmations"]:
            if confirmation["id"] == id:
                if answer is None:
                    _show(confirmation, _place(targets, target), whole=True)
                else:
                    print(_answer(target, confirmation, answer, arguments))
                return DONE
    raise CommandFailed(f"there is no confirmation {id} (any more): it was answered, was cancelled, or is void")


def _answer(target: RunningTarget, confirmation: Mapping[str, Any], answer: str, arguments: str) -> str:
    """Send the decision and return what was done, in one sentence. Raises CommandFailed."""
    seconds = None
    if answer == "deny-all":
        ids = [each["id"] for each in target.state()["confirmations"] if _waits_with(confirmation, each)]
        return str(target.post("confirmations/deny-all", server=confirmation["server"], ids=ids)["done"])
    if answer == "tool":
        if not confirmation["whole_session"]:
            raise CommandFailed(f"tool is no answer to this: {', '.join(_choices(confirmation))} are")
        answer, arguments = "session", "any"
    if answer not in ("deny", "once", "session", "always"):
        match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", answer)
        if match is None:
            raise CommandFailed(
                "an answer is once, tool, session, always, deny, deny-all, or a time such as 15m, 1h or 7d"
            )
        answer, seconds = "time", int(match[1]) * UNITS[match[2]]
    scope: object = arguments
    if arguments not in ("exact", "any"):
        try:
            scope = json.loads(arguments)
        except (ValueError, RecursionError):
            scope = None
        if not isinstance(scope, dict):
            raise CommandFailed('--arguments is exact, any, or conditions such as \'{"owner": {"in": ["acme"]}}\'')
    done = target.post("confirmations/answer", id=confirmation["id"], answer=answer, seconds=seconds, arguments=scope)
    return str(done["done"])


def _waits_with(confirmation: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether `deny-all` for a confirmation denies the other one, too."""
    is_same: bool = other["id"] == confirmation["id"]
    waits_too: bool = other["server"] == confirmation["server"] and other["state"] == "waiting"
    return is_same or waits_too


def _choices(confirmation: Mapping[str, Any]) -> list[str]:
    """The answers to a confirmation."""
    given = ["15m" if answer == "time" else answer for answer in confirmation["answers"]]
    return [*given, *(["tool"] if confirmation["whole_session"] else []), "deny-all"]


def _list(targets: Sequence[RunningTarget]) -> int:
    rows = [(target, each) for target in targets for each in target.state()["confirmations"]]
    for target, row in rows:
        _show_row(row, _place(targets, target))
    if rows:
        print(f"\ncolonnade ask ID shows one in full; {_ANSWER_LATER}")
    else:
        print("Nothing waits.")
    return DONE


def _place(targets: Sequence[RunningTarget], target: RunningTarget) -> str:
    """The host of a confirmation, if there are several."""
    return target.process if len(targets) > 1 else ""


def _show_row(confirmation: Mapping[str, Any], place: str) -> None:
    caller = confirmation["caller"] + (f" of {place}" if place else "")
    state = confirmation["state"] + (f": {confirmation['why']}" if confirmation["why"] else "")
    print(f"{confirmation['id']}  {confirmation['summary']}  ({caller}; {state})")


def _show(confirmation: Mapping[str, Any], place: str, *, whole: bool = False) -> None:
    """Print a confirmation; `whole`: with the definition."""
    print(f"Colonnade asks: may this be done?  [{confirmation['id']}]\n")
    fields = {
        "what": confirmation["summary"],
        "name": confirmation["name"],
        "server": f"{confirmation['server']} ({confirmation['trust']})",
        "for": confirmation["caller"],
        "because of": confirmation["rule"],
    }
    if place:
        fields["host"] = place
    if confirmation["why"]:
        fields["state"] = f"refused, since {confirmation['why']}; an answer is for the next call like it"
    if confirmation["waiting"] > 1:
        fields["waiting"] = f"{confirmation['waiting']} equal calls"
    for label, text in fields.items():
        print(f"  {label + ':':<19}{text}")
    texts = {"arguments": confirmation["arguments"] or "{}"}
    if confirmation.get("others"):  # a host of an earlier version has none
        texts["sent beside the arguments"] = confirmation["others"]
    if confirmation["claims"]:
        texts["it claims of itself, unchecked"] = "\n".join(confirmation["claims"])
    if confirmation["description"]:
        texts["its description, in the server's words"] = confirmation["description"]
    if whole and confirmation["definition"]:
        texts["its definition, in the server's words"] = confirmation["definition"]
    for label, text in texts.items():
        print(f"  {label}:")
        for line in text.splitlines():
            print(f"    {line}")


# While new confirmations come


def _follow(targets: Sequence[RunningTarget]) -> int:
    """Show the calls that were refused and can still be answered, and new confirmations until interrupted; on a
    terminal, ask for the answer to each."""
    configs = dict.fromkeys(target.config for target in targets)
    print(f"Waiting for confirmations of {', '.join(configs)}; Ctrl-C ends it.", flush=True)
    listed = [(target, each) for target in targets for each in target.state()["confirmations"]]
    if refused := [(target, each) for target, each in listed if each["state"] == "refused"]:
        print("\nRefused already; an answer is for the next call like it:")
        for target, each in refused:
            _show_row(each, _place(targets, target))
        print(f"{_ANSWER_LATER} (in another terminal)", flush=True)
    feed = _PendingFeed(targets)
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    while (pending := feed.next()) is not None:
        target, confirmation = pending
        print()
        _show(confirmation, _place(targets, target))
        sys.stdout.flush()
        if is_interactive:
            _prompt(feed, target, confirmation)
    print("The host has ended." if len(targets) == 1 else "The hosts have ended.")
    return DONE


class _PendingFeed:
    """The waiting confirmations of several hosts, each once. A thread for each host reads its events; a pipe wakes a
    reader of the terminal, who waits for a line at the same time."""

    def __init__(self, targets: Sequence[RunningTarget]) -> None:
        self._updates: queue.SimpleQueue[tuple[RunningTarget, list[dict[str, Any]] | None]] = queue.SimpleQueue()
        self._waiting: dict[str, tuple[RunningTarget, dict[str, Any]]] = {}
        self._shown: set[str] = set()
        self._running = len(targets)
        self.wake, self._waker = os.pipe()
        for target in targets:
            threading.Thread(target=self._read, args=(target,), daemon=True).start()

    def _read(self, target: RunningTarget) -> None:
        try:
            for sections in target.host.follow():
                if "confirmations" in sections:
                    self._put(target, sections["confirmations"])
        except CommandFailed as problem:
            print(f"colonnade: {target.config}: {problem}", file=sys.stderr)
        self._put(target, None)

    def _put(self, target: RunningTarget, confirmations: list[dict[str, Any]] | None) -> None:
        self._updates.put((target, confirmations))
        os.write(self._waker, b".")

    def next(self) -> tuple[RunningTarget, dict[str, Any]] | None:
        """The next waiting confirmation that was not shown; None when no host is left."""
        while True:
            for id, pending in self._waiting.items():
                if id not in self._shown:
                    self._shown.add(id)
                    return pending
            if not self._running:
                return None
            self._take()

    def is_waiting(self, id: str) -> bool:
        """Whether a confirmation still waits, as far as is known."""
        while not self._updates.empty():
            self._take()
        return id in self._waiting

    def _take(self) -> None:
        target, confirmations = self._updates.get()
        os.read(self.wake, 1)
        self._waiting = {id: pending for id, pending in self._waiting.items() if pending[0] is not target}
        if confirmations is None:
            self._running -= 1
            return
        self._waiting |= {each["id"]: (target, each) for each in confirmations if each["state"] == "waiting"}


def _prompt(feed: _PendingFeed, target: RunningTarget, confirmation: Mapping[str, Any]) -> None:
    """Take the answer from the terminal, unless the confirmation ends before."""
    choices = _choices(confirmation)
    while feed.is_waiting(confirmation["id"]):
        print("\nonce is this call; session, a time and always are for calls with exactly these arguments.")
        print(f"{', '.join(choices)} (or nothing, to leave it)? ", end="", flush=True)
        line = _read_line(feed, confirmation["id"])
        if line is None:
            break
        if not (answer := line.strip()):
            print(f"It is left. {_ANSWER_LATER.replace('ID', confirmation['id'])}")
            return
        try:
            print(_answer(target, confirmation, answer, "exact"))
        except CommandFailed as problem:
            print(problem)
        else:
            return
    print("It was answered elsewhere, was called off, or its time is over: then colonnade ask still lists it.")


def _read_line(feed: _PendingFeed, id: str) -> str | None:
    """A line from the terminal; None if the confirmation ends before there is one."""
    while feed.is_waiting(id):
        ready, _, _ = select.select([sys.stdin, feed.wake], [], [])
        if sys.stdin in ready:
            return sys.stdin.readline()
    return None


# The web console


@click.command()
@config_option
@state_option
@pass_selection
def console(selection: Selection) -> int:
    """Print a link that opens the web console once.

    There is a link for each running host. With several, each is followed by its configuration and its process.
    """
    scope = selection.scope()
    allow_interrupts()
    targets = scope.running()
    code = FAILED
    for target in targets:
        try:
            link = target.post("console-links")["link"]
        except CommandFailed as problem:
            print(f"colonnade: {target.config}: {problem}", file=sys.stderr)
            continue
        code = DONE
        print(link if len(targets) == 1 else f"{link}  {target.config} ({target.process})")
    return code
