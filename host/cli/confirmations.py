"""The commands by which a person confirms calls: `ask` in the terminal, `console` for the link to the web console."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from host.cli.common import (
    UNITS,
    Selection,
    selection_options,
    show_question,
)
from host.cli.exit_codes import DONE, FAILED, CommandFailed
from host.cli.names import CONFIRMATION

if TYPE_CHECKING:
    from host.cli.admin_client import RunningHost
    from host.cli.targets import DecisionScope


_LOOK_INTERVAL = 0.5
"""Seconds between two looks for a host: a client that is asked about waits meanwhile, or is refused."""
_TOOL_TIME = "15m"
"""For how long `tool` allows an entry to a caller without a session."""
_REFLEX_TIME = 0.5
"""Seconds after a confirmation is shown, in which nobody has read it: what is typed is still meant for another one."""
_LETTERS = {"y": "once", "t": "tool", "s": "session", "a": "always", "n": "deny", "D": "deny-all"}
_WORDS = {**_LETTERS, "yes": "once", "no": "deny"}
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
@selection_options
def ask(selection: Selection, id: str | None, answer: str | None, arguments: str, follow: bool) -> int:
    """List pending confirmations; show or answer one.

    ID shows one in full. ANSWER is once, tool (any arguments, for this session, or for 15 minutes if the client has a
    token and no session), session, 15m (any time), always, deny, or deny-all (all that wait of the same server), or the
    letter y, t, s, a, n or D. Without ID, on a terminal, the command stays and asks for answers, also when a host comes
    or ends.
    """
    scope = selection.scope()
    if id is None and sys.stdin.isatty() and sys.stdout.isatty():
        _stay(scope)
    targets = scope.running()
    if id is None:
        return _follow(targets) if follow else _list(targets)
    for target in targets:
        for confirmation in target.state()["confirmations"]:
            if confirmation["id"] == id:
                if answer is None:
                    _show(confirmation, _place(targets, target), whole=True)
                else:
                    print(_answer(target, confirmation, answer, arguments))
                return DONE
    raise CommandFailed(f"there is no confirmation {id} (any more): it was answered, was cancelled, or is void")


def _answer(target: RunningHost, confirmation: Mapping[str, Any], answer: str, arguments: str) -> str:
    """Send the decision and return what was done, in one sentence. Raises CommandFailed."""
    seconds = None
    answer = _WORDS.get(answer, answer)
    if answer == "deny-all":
        ids = [each["id"] for each in target.state()["confirmations"] if _waits_with(confirmation, each)]
        return str(target.post("confirmations/deny-all", server=confirmation["server"], ids=ids)["done"])
    if answer == "tool":
        if not _takes_tool(confirmation):
            raise CommandFailed(f"tool is no answer to this: {', '.join(_choices(confirmation))} are")
        answer, arguments = ("session" if confirmation["whole_session"] else _TOOL_TIME), "any"
    if answer not in ("deny", "once", "session", "always"):
        match = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", answer)
        if match is None:
            raise CommandFailed(
                "an answer is once, tool, session, always, deny, deny-all, their letters "
                f"({', '.join(_LETTERS)}), or a time such as 15m, 1h or 7d"
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
    return [*given, *(["tool"] if _takes_tool(confirmation) else []), "deny-all"]


def _takes_tool(confirmation: Mapping[str, Any]) -> bool:
    """Whether the entry can be allowed with any arguments, as one step."""
    return bool(confirmation["whole_session"] or confirmation.get("whole_time"))  # an earlier host has no times


def _list(targets: Sequence[RunningHost]) -> int:
    rows = [(target, each) for target in targets for each in target.state()["confirmations"]]
    for target, row in rows:
        _show_row(row, _place(targets, target))
    if rows:
        print(f"\ncolonnade ask ID shows one in full; {_ANSWER_LATER}")
    else:
        print("Nothing waits.")
    return DONE


def _place(targets: Sequence[RunningHost], target: RunningHost) -> str:
    """The host of a confirmation, if there are several."""
    return target.process if len(targets) > 1 else ""


def _show_row(confirmation: Mapping[str, Any], place: str) -> None:
    caller = _program(confirmation) or _caller(confirmation)
    caller += f" of {place}" if place else ""
    state = confirmation["state"] + (f": {confirmation['why']}" if confirmation["why"] else "")
    print(f"{confirmation['id']}  {confirmation['summary']}  ({caller}; {state})")


def _caller(confirmation: Mapping[str, Any]) -> str:
    """The name of the caller's token, or that it has none; and what the client calls itself."""
    says = confirmation.get("says")  # a host of an earlier version says none
    return f"{confirmation['caller']}, which calls itself {says!r}" if says else str(confirmation["caller"])


def _program(confirmation: Mapping[str, Any]) -> str:
    """The program that asks; empty if it is not known."""
    found = confirmation.get("process")  # a host of an earlier version says none
    if not found:
        return ""
    where = f" in {found['folder']}" if found["folder"] else ""
    return f"{found['program']} (process {found['pid']}){where}"


def _show(confirmation: Mapping[str, Any], place: str, *, whole: bool = False) -> None:
    """Print a confirmation; `whole`: with the definition."""
    print(f"Colonnade asks: may this be done?  [{confirmation['id']}]\n")
    origin = confirmation.get("origin")  # a host of an earlier version says none
    fields = {
        "what": confirmation["summary"],
        "name": confirmation["name"],
        "server": f"{confirmation['server']} ({confirmation['trust']})",
        "for": _caller(confirmation),
        "because of": confirmation["rule"] + (f" (from {origin})" if origin else ""),
    }
    if program := _program(confirmation):
        fields["program"] = program
    if through := confirmation.get("through"):  # a host of an earlier version says none
        fields["through"] = f"{through}, the search tool of a view"
    if place:
        fields["host"] = place
    if confirmation["why"]:
        fields["state"] = f"refused, since {confirmation['why']}; an answer is for the next call like it"
    else:
        fields["time left"] = f"{max(0.0, confirmation['until'] - time.time()):.0f} s"
    if confirmation["waiting"] > 1:
        fields["waiting"] = f"{confirmation['waiting']} equal calls"
    for label, text in fields.items():
        print(f"  {label + ':':<19}{text}")
    outline = _outline(confirmation)
    texts = {"arguments": outline or confirmation["arguments"] or "{}"}
    for number, each in enumerate(confirmation["texts"] if outline else [], 1):
        texts[_text_label(number, each)] = "\n".join(_text_lines(each))
    if outline and whole:
        texts["the same arguments, as JSON"] = confirmation["arguments"]
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
        for line in text.split("\n"):
            print(f"    {line}")


# A line of a text begins with a bar, and a mark stands without quotes: no text of a client looks like that.


def _outline(confirmation: Mapping[str, Any]) -> str:
    """The arguments with marks in the place of their longer texts; empty if there are none."""
    pieces = confirmation.get("outline", ())  # a host of an earlier version has none
    return "".join(f"⟨{piece['text']}⟩" if piece["mark"] else piece["text"] for piece in pieces)


def _text_label(number: int, text: Mapping[str, Any]) -> str:
    counts: Counter[str] = Counter()
    for piece in text["pieces"]:
        counts[piece["op"]] += piece["text"].count("\n") + 1
    ends = bool(text["pieces"]) and text["pieces"][-1]["text"].rpartition("\n")[2] == ""
    total = counts.total() - ends  # the line feed at the end begins no line, as in an editor
    sizes = [f"{total} line{'s' * (total != 1)}"]
    if text["kind"] == "edit":
        sizes = [f"{counts['removed']} removed (-)", f"{counts['added']} added (+)"]
    name = f" ({text['name']})" if text["name"] else ""
    return f"{text['kind']} {number}{name}, {', '.join(sizes)}"


def _text_lines(text: Mapping[str, Any]) -> Iterator[str]:
    signs = {"added": "+ ", "removed": "- "}
    for piece in text["pieces"]:
        sign = signs.get(piece["op"], "  ") if text["kind"] == "edit" else ""
        for line in piece["text"].split("\n"):
            yield f"| {sign}{line}"


# While new confirmations come


def _stay(scope: DecisionScope) -> NoReturn:
    """Follow the hosts that run, and those that run later: a host in the background ends and starts with its
    clients."""
    while True:
        looked_at = scope.sockets()
        if targets := scope.find():
            _follow(targets, partial(_watch, scope, looked_at))
        print("Waiting for a host, which its first client starts; Ctrl-C ends it.", flush=True)
        while not scope.find():
            threading.Event().wait(_LOOK_INTERVAL)


def _watch(scope: DecisionScope, looked_at: set[Path], feed: _PendingFeed) -> None:
    """Add hosts that start while others run. `looked_at`: the sockets that were there before the hosts of the feed were
    found. A folder is read each time; hosts are asked only if there is a new socket in it."""
    known = {target.path for target in feed.targets}
    seen = looked_at | known
    while not feed.ended.wait(_LOOK_INTERVAL):
        if new := scope.sockets() - seen:
            seen |= new
            for target in scope.find():
                if target.path not in known:
                    known.add(target.path)
                    feed.add(target)


def _follow(targets: Sequence[RunningHost], watch: Callable[[_PendingFeed], None] | None = None) -> int:
    """Show the calls that were refused and can still be answered, and new confirmations until interrupted; on a
    terminal, ask for the answer to each. `watch` runs in a thread, and may add hosts."""
    _announce(targets, targets)
    feed = _PendingFeed(targets)
    if watch is not None:
        threading.Thread(target=watch, args=(feed,), daemon=True).start()
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    while (pending := feed.next()) is not None:
        target, confirmation = pending
        print()
        _show(confirmation, _place(feed.targets, target))
        sys.stdout.flush()
        if is_interactive:
            _prompt(feed, target, confirmation)
    print("The host has ended." if len(feed.targets) == 1 else "The hosts have ended.")
    return DONE


def _announce(targets: Sequence[RunningHost], among: Sequence[RunningHost]) -> None:
    """Say that the confirmations of hosts are waited for, and which calls they have refused."""
    configs = dict.fromkeys(target.config for target in targets)
    print(f"Waiting for confirmations of {', '.join(configs)}; Ctrl-C ends it.", flush=True)
    listed = [(target, each) for target in targets for each in target.state()["confirmations"]]
    if refused := [(target, each) for target, each in listed if each["state"] == "refused"]:
        print("\nRefused already; an answer is for the next call like it:")
        for target, each in refused:
            _show_row(each, _place(among, target))
        print(f"{_ANSWER_LATER} (in another terminal)", flush=True)


class _PendingFeed:
    """The waiting confirmations of several hosts, each once. A thread for each host reads its events; a pipe wakes a
    reader of the terminal, who waits for a line at the same time."""

    def __init__(self, targets: Sequence[RunningHost]) -> None:
        self._updates: queue.SimpleQueue[tuple[RunningHost, list[dict[str, Any]] | None]] = queue.SimpleQueue()
        self._waiting: dict[str, tuple[RunningHost, dict[str, Any]]] = {}
        self._shown: set[str] = set()
        self.targets: list[RunningHost] = []
        self._announced = len(targets)
        self._running = 0
        self.ended = threading.Event()
        self.wake, self._waker = os.pipe()
        for target in targets:
            self._begin(target)

    def add(self, target: RunningHost) -> None:
        """Another host, in any thread."""
        self._put(target, [])

    def _begin(self, target: RunningHost) -> None:
        self.targets.append(target)
        self._running += 1
        threading.Thread(target=self._read, args=(target,), daemon=True).start()

    def _read(self, target: RunningHost) -> None:
        try:
            for sections in target.follow():
                if "confirmations" in sections:
                    self._put(target, sections["confirmations"])
        except CommandFailed as problem:
            print(f"colonnade: {target.config}: {problem}", file=sys.stderr)
        self._put(target, None)

    def _put(self, target: RunningHost, confirmations: list[dict[str, Any]] | None) -> None:
        self._updates.put((target, confirmations))
        os.write(self._waker, b".")

    def next(self) -> tuple[RunningHost, dict[str, Any]] | None:
        """The next waiting confirmation that was not shown; None when no host is left."""
        while True:
            for id, pending in self._waiting.items():
                if id not in self._shown:
                    self._shown.add(id)
                    return pending
            if not self._running:
                self.ended.set()
                return None
            if new := self.targets[self._announced :]:
                self._announced = len(self.targets)
                with suppress(CommandFailed):  # it has ended again, which its thread says
                    print()
                    _announce(new, self.targets)
            self._take()

    def is_waiting(self, id: str) -> bool:
        """Whether a confirmation still waits, as far as is known."""
        while not self._updates.empty():
            self._take()
        return id in self._waiting

    def _take(self) -> None:
        target, confirmations = self._updates.get()
        os.read(self.wake, 1)
        if all(target is not each for each in self.targets):
            self._begin(target)
        self._waiting = {id: pending for id, pending in self._waiting.items() if pending[0] is not target}
        if confirmations is None:
            self._running -= 1
            return
        self._waiting |= {each["id"]: (target, each) for each in confirmations if each["state"] == "waiting"}


def _prompt(feed: _PendingFeed, target: RunningHost, confirmation: Mapping[str, Any]) -> None:
    """Take the answer from the terminal, unless the confirmation ends before.

    Only what is typed after the prompt counts. The prompt comes a moment after the confirmation: a key that is meant
    for one that has just vanished must not answer the next one, which nobody has read.
    """
    choices = _choices(confirmation)
    _let_reflexes_pass()
    while feed.is_waiting(confirmation["id"]):
        print()
        for choice in choices:
            letter = next((letter for letter, word in _LETTERS.items() if word == choice), "")
            print(f"  {letter:<2} {choice:<9} {_explain(choice, confirmation)}")
        show_question(f"{', '.join(choices)} (or nothing, to leave it)", "? ")
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
    print("\nIt was answered elsewhere, was called off, or its time is over: then colonnade ask still lists it.")


def _let_reflexes_pass() -> None:
    threading.Event().wait(_REFLEX_TIME)


def _explain(choice: str, confirmation: Mapping[str, Any]) -> str:
    """The meaning of an answer."""
    life = "in this session" if confirmation["whole_session"] else f"for {_TOOL_TIME}"
    same = "calls with exactly these arguments"
    return {
        "once": "this call alone",
        "tool": f"calls with any arguments {life}",
        "session": f"{same} in this session",
        "15m": f"{same} for 15 minutes; or another time, such as 1h, 7d",
        "always": f"{same} until the grant is revoked (colonnade grants)",
        "deny": "not this call",
        "deny-all": f"not this call, nor the others of {confirmation['server']} that wait",
    }[choice]


def _read_line(feed: _PendingFeed, id: str) -> str | None:
    """A line from the terminal; None if the confirmation ends before there is one."""
    while feed.is_waiting(id):
        ready, _, _ = select.select([sys.stdin, feed.wake], [], [])
        if sys.stdin in ready:
            return sys.stdin.readline()
    return None


# The web console


@click.command()
@selection_options
def console(selection: Selection) -> int:
    """Print a link that opens the web console once.

    There is a link for each running host. With several, each is followed by its configuration and its process.
    """
    targets = selection.scope().running()
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
