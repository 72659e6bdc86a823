"""The commands by which a person decides: ask, definitions, grants, console, explain, audit. Each gives an exit code
(command_line.py lists them).

They speak with every host of the user that runs, by its control socket. Where none runs, definitions, grants and
explain work on the files that it left, under their lock.
"""

from __future__ import annotations

import hmac
import json
import os
import queue
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from config import AskSpec, Channel, Config, ConfigError, load
from host.admin_client import AdminClientError, RunningHost, find_hosts
from host.audit.read import records
from host.audit.seal import SealExists, begin_chain, chain_of, new_key, read_key, read_state
from host.audit.verify import read_head, verify_all
from host.audit.writer import Audit
from host.console.api import AdminError, MalformedRequest, carry_out
from host.console.policy_admin import PolicyAdmin
from host.errors import ColonnadeError
from host.journal import Journal
from host.output import Terminal
from host.policy.confirmations import ConfirmationQueue
from host.policy.decision_log import DecisionLog
from host.policy.explain import grant_as_data, held_as_data
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.sanitize import visible
from host.slices import run_inline
from host.storage.directory import State
from host.storage.sqlite import open_store
from host.storage.store import StateError
from host.wire.descent import refusal_reason, this_process

DONE, FAILED, WRONG, UNREACHED = 0, 1, 2, 3
SHORT_ID_LENGTH = 10
"""Hexadecimal digits by which a person names what is held back."""
EXIT_CODES = {"allow": 0, "ask": 4, "deny": 5}


class DecisionTarget(Protocol):
    """A running host, or the files of one that does not run."""

    @property
    def config(self) -> str: ...

    def servers(self) -> Collection[str]:
        """The ids of its servers."""

    def state(self) -> Mapping[str, Any]: ...

    def request(self, verb: str, **args: object) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Live:
    """A running host."""

    running: RunningHost

    @property
    def config(self) -> str:
        return self.running.config

    def servers(self) -> Collection[str]:
        return [str(server["id"]) for server in self.state()["servers"]]

    def state(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.running.request("state")
        return found

    def request(self, verb: str, **args: object) -> Any:
        return self.running.request(verb, **args)


class _Files:
    """What hosts of one configuration stored, while none runs."""

    def __init__(self, state: State, source: Path) -> None:
        self._state = state
        self._source = source

    @property
    def config(self) -> str:
        return os.path.realpath(self._source)

    def servers(self) -> Collection[str]:
        config = _config(self._source)
        return () if config is None else config.servers

    def state(self) -> Mapping[str, Any]:
        with self._gate() as gate:
            return {
                "config": self.config,
                "held": [held_as_data(gate, held) for held in gate.definitions.held()],
                "grants": [grant_as_data(gate, grant) for grant in gate.authorizer.grants.all()],
                "questions": [],
            }

    def request(self, verb: str, **args: Any) -> Any:
        caller = this_process()
        why = None if verb == "explain" else refusal_reason(caller, self._state.hosts)
        with self._gate() as gate:
            decisions = PolicyAdmin(gate)
            if why is not None:
                decisions.record_refused_peer(caller, why)
                raise AdminError(why)
            steps = carry_out(decisions, verb, json.dumps(args).encode(), Channel.TERMINAL)
            return run_inline(decisions.attributed_to(caller, steps))

    @contextmanager
    def _gate(self) -> Iterator[Gate]:
        config = _config(self._source)
        servers = {} if config is None else config.servers
        trusts = {server: spec.trust for server, spec in servers.items()}
        with Audit(self._state.audit) as audit, open_store(self._state, self._source) as store:
            confirmations = ConfirmationQueue(Grants(store), AskSpec(), lambda what, confirmation, said: None)
            yield Gate(servers, Pins(store, trusts), confirmations, DecisionLog(audit, Journal()))


def _config(source: Path) -> Config | None:
    try:
        return load(source)
    except ConfigError:
        return None


@dataclass(frozen=True, slots=True)
class DecisionScope:
    """Whose decisions a command is about: those of one configuration, or (None) of all."""

    state: State
    config: Path | None


def _live(where: DecisionScope) -> list[_Live]:
    """The running hosts that are meant."""
    found: list[_Live] = []
    for host in find_hosts(where.state.path):
        if host.problem is not None:
            print(f"colonnade: the host of process {host.pid}: {host.problem}", file=sys.stderr)
        elif where.config is None or host.config == os.path.realpath(where.config):
            found.append(_Live(host))
    return found


def _all(where: DecisionScope) -> list[DecisionTarget]:
    """For each configuration that is meant one of its running hosts, who share what is decided. Where none runs, the
    files: of the configuration that is named, or of all that are known."""
    found: dict[str, DecisionTarget] = {}
    for host in _live(where):
        found.setdefault(host.config, host)
    if found:
        return list(found.values())
    if where.config is not None:
        return [_Files(where.state, where.config)]
    return [_Files(where.state, source) for source in where.state.sources()]


def _one(hosts: Sequence[DecisionTarget]) -> DecisionTarget:
    """The only one; what is decided about is never guessed at."""
    if len(hosts) != 1:
        known = "; ".join(host.config for host in hosts)
        raise AdminError(f"say which configuration with --config FILE: {known or 'none is known'}")
    return hosts[0]


def _guarded(work: Callable[[], int]) -> int:
    """The exit code of the work, or of what went wrong with it, in words."""
    try:
        return work()
    except SealExists:
        print(
            "colonnade: the audit is sealed already; --again begins another chain with another key, and the former key "
            "goes on to verify the files of before",
            file=sys.stderr,
        )
    except (AdminClientError, AdminError, MalformedRequest, StateError) as problem:
        print(f"colonnade: {problem}", file=sys.stderr)
    except ColonnadeError as problem:
        print(f"colonnade: {problem.message}", file=sys.stderr)
    except OSError as problem:
        print(f"colonnade: the audit cannot be used: {problem.strerror}", file=sys.stderr)
    return FAILED


def _nobody() -> int:
    print("colonnade: no host of yours runs (colonnade serve)", file=sys.stderr)
    return UNREACHED


# ask


def ask(where: DecisionScope, id: str | None, answer: str | None, arguments: str, *, follow: bool) -> int:
    """List the questions; or show the one of this id; or answer it. With `follow`, stay and hear of new ones: then
    somebody is there to answer. On a terminal, ask for the answers."""
    return _guarded(lambda: _ask(where, id, answer, arguments, follow=follow))


def _ask(where: DecisionScope, id: str | None, answer: str | None, arguments: str, *, follow: bool) -> int:
    hosts = _live(where)
    if not hosts:
        return _nobody()
    if id is None:
        return _follow(hosts) if follow else _list_questions(hosts)
    for host in hosts:
        for question in host.state()["questions"]:
            if question["id"] == id:
                if answer is None:
                    _show_question(question)
                    return DONE
                print(_answer(host, question, answer, arguments))
                return DONE
    print(f"colonnade: there is no question {id}: it was answered, called off, or is void", file=sys.stderr)
    return FAILED


def _answer(host: DecisionTarget, question: Mapping[str, Any], answer: str, arguments: str) -> str:
    seconds = None
    if answer not in ("deny", "once", "session", "always"):
        found = re.fullmatch(r"([1-9][0-9]{0,6})([smhd])", answer)
        if found is None:
            raise AdminError("an answer is deny, once, session, always, or a time such as 15m, 1h or 7d")
        answer, seconds = "time", int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
    said: object = arguments
    if arguments not in ("exact", "any"):
        try:
            said = json.loads(arguments)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise AdminError('--arguments is exact, any, or conditions such as \'{"owner": {"in": ["acme"]}}\'')
    done = host.request("answer", id=question["id"], answer=answer, seconds=seconds, arguments=said)
    return str(done["done"])


def _list_questions(hosts: Sequence[DecisionTarget]) -> int:
    found = [question for host in hosts for question in host.state()["questions"]]
    for question in found:
        state = f"{question['state']}: {question['why']}" if question["why"] else question["state"]
        print(f"{question['id']}  {question['summary']}  ({question['caller']}; {state})")
    if not found:
        print("Nothing waits.")
    else:
        print("\ncolonnade ask ID shows one in full; colonnade ask ID once|session|15m|always|deny answers it")
    return DONE


def _show_question(question: Mapping[str, Any]) -> None:
    print(f"Colonnade asks: may this be done?  [{question['id']}]\n")
    told = {
        "what": question["summary"],
        "name": question["name"],
        "server": f"{question['server']} ({question['trust']})",
        "for": question["caller"],
        "because of": question["rule"],
    }
    if question["why"]:
        told["state"] = f"refused, since {question['why']}; an answer is for the next call like it"
    if question["waiting"] > 1:
        told["waiting"] = f"{question['waiting']} equal calls"
    if question["claims"]:
        told["it says of itself"] = ", ".join(question["claims"])
    for key, text in told.items():
        print(f"  {key + ':':<19}{text}")
    print("  arguments:")
    for line in question["arguments"].splitlines() or ["{}"]:
        print(f"    {line}")


def _follow(hosts: Sequence[_Live]) -> int:
    """Show what comes, until interrupted; on a terminal, ask for the answer to each."""
    print(f"Waiting for questions of {', '.join(host.config for host in hosts)}; Ctrl-C ends it.", flush=True)
    feed = _PendingFeed(hosts)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    while (found := feed.next()) is not None:
        host, question = found
        print()
        _show_question(question)
        sys.stdout.flush()
        if interactive:
            _prompt(feed, host, question)
    print("The host has ended." if len(hosts) == 1 else "The hosts have ended.")
    return DONE


class _PendingFeed:
    """The questions of several hosts, each once, while they wait. A thread for each host hears of them; a pipe tells
    whoever waits for a line at the same time."""

    def __init__(self, hosts: Sequence[_Live]) -> None:
        self._news: queue.SimpleQueue[tuple[_Live, list[dict[str, Any]] | None]] = queue.SimpleQueue()
        self._waiting: dict[str, tuple[_Live, dict[str, Any]]] = {}
        self._told: set[str] = set()
        self._running = len(hosts)
        self.wake, self._waker = os.pipe()
        for host in hosts:
            threading.Thread(target=self._hear, args=(host,), daemon=True).start()

    def _hear(self, host: _Live) -> None:
        try:
            for news in host.running.follow():
                if "questions" in news:
                    self._say(host, news["questions"])
        except AdminClientError as problem:
            print(f"colonnade: {host.config}: {problem}", file=sys.stderr)
        self._say(host, None)

    def _say(self, host: _Live, questions: list[dict[str, Any]] | None) -> None:
        self._news.put((host, questions))
        os.write(self._waker, b".")

    def next(self) -> tuple[_Live, dict[str, Any]] | None:
        """The next question that waits and was not shown; None when no host is left."""
        while True:
            for id, found in self._waiting.items():
                if id not in self._told:
                    self._told.add(id)
                    return found
            if not self._running:
                return None
            self._take()

    def waits(self, id: str) -> bool:
        """Whether a question still waits, as far as is known."""
        while not self._news.empty():
            self._take()
        return id in self._waiting

    def _take(self) -> None:
        host, questions = self._news.get()
        os.read(self.wake, 1)
        self._waiting = {id: found for id, found in self._waiting.items() if found[0] is not host}
        if questions is None:
            self._running -= 1
            return
        self._waiting |= {each["id"]: (host, each) for each in questions if each["state"] == "waiting"}


def _prompt(feed: _PendingFeed, host: _Live, question: Mapping[str, Any]) -> None:
    """Take the answer from the terminal, unless the question ends before."""
    choices = [each for each in question["answers"] if each != "time"]
    if "time" in question["answers"]:
        choices.append("15m")
    while feed.waits(question["id"]):
        print(f"\n{', '.join(choices)} (or nothing, to leave it)? ", end="", flush=True)
        line = _line(feed, question["id"])
        if line is None:
            break
        if not (answer := line.strip()):
            return
        try:
            print(_answer(host, question, answer, "exact"))
        except (AdminError, AdminClientError) as problem:
            print(problem)
        else:
            return
    print("It was answered elsewhere, was called off, or its time is over.")


def _line(feed: _PendingFeed, id: str) -> str | None:
    """A line from the terminal; None if the question is over before there is one."""
    while feed.waits(id):
        ready, _, _ = select.select([sys.stdin, feed.wake], [], [])
        if sys.stdin in ready:
            return sys.stdin.readline()
    return None


# console


def console(where: DecisionScope) -> int:
    """Print an address for every running host that is meant; each opens the web console once."""
    return _guarded(lambda: _console(where))


def _console(where: DecisionScope) -> int:
    hosts = _live(where)
    if not hosts:
        return _nobody()
    found = False
    for host in hosts:
        try:
            link = host.request("link")["link"]
        except AdminClientError as problem:
            print(f"colonnade: {host.config}: {problem}", file=sys.stderr)
            continue
        found = True
        print(link if len(hosts) == 1 else f"{link}  {host.config}")
    return DONE if found else FAILED


# definitions


def definitions(where: DecisionScope, *, everything: bool) -> int:
    """List what is held back; with `everything`, show each difference in full."""

    def work() -> int:
        found = False
        for host in _all(where):
            held = _held(host)
            if held:
                found = True
                print(f"{host.config}:")
            for each in held:
                _show_held(where, each, whole=everything)
        if not found:
            print("Nothing is held back.")
        else:
            print("\nThe differences in full: colonnade definitions --show")
            print("To decide: colonnade definitions approve ID... (or reject, revoke)")
        return DONE

    return _guarded(work)


def _show_held(where: DecisionScope, held: Mapping[str, Any], *, whole: bool) -> None:
    terminal = Terminal(sys.stdout)
    state = "rejected" if held["rejected"] else held["standing"]
    name = f" {held['name']}" if held["name"] else ""
    print(f"  {short_id(where, held)}  {held['server']}: {held['kind']}{name}  ({state})")
    if whole:
        for line in terminal.difference(held["diff"]):
            print(f"      {line}")


def short_id(where: DecisionScope, held: Mapping[str, Any]) -> str:
    """How a person names one definition of one server. Keyed: no server can make another one of the same name."""
    said = json.dumps([held[key] for key in ("server", "kind", "name", "fingerprint")]).encode()
    return hmac.new(where.state.key(), said, "sha256").hexdigest()[:SHORT_ID_LENGTH]


def short_fingerprint(fingerprint: str) -> str:
    """A fingerprint, for recognising it."""
    return fingerprint.removeprefix("sha256:")[:8]


def _held(host: DecisionTarget) -> list[Mapping[str, Any]]:
    """What is held back, with all differences: a host makes so many of them at a time."""
    held: list[Mapping[str, Any]] = host.state()["held"]
    ready = -1
    while not all(each["ready"] for each in held) and ready < (ready := sum(each["ready"] for each in held)):
        held = host.state()["held"]
    return held


def decide(where: DecisionScope, decision: str, ids: Sequence[str], server: str | None, *, sure: bool) -> int:
    """Approve or reject what is held back: by the ids that `definitions` shows, or all that waits of a server, which is
    shown first; `sure`: it was seen before and is not asked about."""
    return _guarded(lambda: _decide(where, decision, ids, server, sure=sure))


def _decide(where: DecisionScope, decision: str, ids: Sequence[str], server: str | None, *, sure: bool) -> int:
    chosen = [
        (host, held)
        for host in _all(where)
        for held in _held(host)
        if (short_id(where, held) in ids if ids else held["server"] == server and not held["rejected"])
    ]
    missing = set(ids) - {short_id(where, held) for _, held in chosen}
    if missing or not chosen:
        which = ", ".join(sorted(missing)) or f"of {server}"
        print(f"colonnade: nothing is held back any more as it was shown: {which}; look again", file=sys.stderr)
        return FAILED
    _one(list({id(host): host for host, _ in chosen}.values()))
    for _, held in chosen:
        _show_held(where, held, whole=True)
    if not ids and not sure and not _confirmed(f"{decision.capitalize()} {'all of these' if chosen[1:] else 'this'}?"):
        print("Nothing was done.")
        return FAILED
    one = _one(list({id(host): host for host, _ in chosen}.values()))
    for _, held in chosen:
        args = {key: held[key] for key in ("server", "kind", "name", "fingerprint")}
        print(one.request("decide", **args, decision=decision)["done"])
    return DONE


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        print("colonnade: nobody is there to confirm it; --yes says that you have seen it", file=sys.stderr)
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def revoke_pin(where: DecisionScope, server: str, kind: str, name: str) -> int:
    """Hold back what is approved, until it is approved again."""

    def work() -> int:
        args = {"server": server, "kind": kind, "name": name, "fingerprint": ""}
        print(_one(_all(where)).request("decide", **args, decision="revoke")["done"])
        return DONE

    return _guarded(work)


# grants


def grants(where: DecisionScope) -> int:
    """List what people allowed for longer than one call."""

    def work() -> int:
        found = [grant for host in _all(where) for grant in host.state()["grants"]]
        for grant in found:
            until = "" if grant["expires"] is None else f" until {time.ctime(grant['expires'])}"
            dead = "" if grant["live"] else f"; not usable: {grant['why']}"
            print(
                f"{grant['id']}  {grant['server']}: {grant['kind']} {grant['name']} for {grant['caller']}: "
                f"{grant['scope']}{until}, arguments {grant['arguments']} (by {grant['by']}{dead})"
            )
        if not found:
            print("There are no grants.")
        return DONE

    return _guarded(work)


def revoke_grants(where: DecisionScope, ids: Iterable[str]) -> int:
    """Take grants back."""

    def work() -> int:
        code = DONE
        for id in ids:
            if not any(_revoked(host, id) for host in _all(where)):
                print(f"colonnade: there is no grant {visible(id)}", file=sys.stderr)
                code = FAILED
        return code

    return _guarded(work)


def _revoked(host: DecisionTarget, id: str) -> bool:
    if all(grant["id"] != id for grant in host.state()["grants"]):
        return False
    print(f"{id}: {host.request('revoke', id=id)['done']}")
    return True


# explain


def explain(where: DecisionScope, server: str, kind: str, name: str, arguments: object, *, as_json: bool) -> int:
    """What would become of a call, with every rule that was tried; the exit code is the verdict."""

    def work() -> int:
        asked = {"server": server, "kind": kind, "name": name, "arguments": arguments}
        hosts = [host for host in _all(where) if server in host.servers()] or _all(where)
        told = _one(hosts).request("explain", **asked)
        if as_json:
            print(json.dumps(told, indent=2))
        else:
            _show_explanation(told)
        return EXIT_CODES[told["verdict"]] if told["shown"] else EXIT_CODES["deny"]

    return _guarded(work)


def _show_explanation(told: Mapping[str, Any]) -> None:
    print(told["sentence"])
    print(f"  decided by:  {told['rule']}")
    print("  tried:")
    for each in told["tried"]:
        print(f"    {'matched' if each['matched'] else '-':<8} {each['verdict']:<6} {each['rule']}  ({each['why']})")
    print(
        f"  definition:  {told['standing']}"
        + (f" ({short_fingerprint(told['fingerprint'])})" if told["fingerprint"] else "")
    )
    grant = told["grant"]
    print(f"  grant used:  {'none' if grant is None else grant['id'] + ' (' + grant['scope'] + ')'}")
    limits = ", ".join(f"{key} {text}" for key, text in told["limits"].items())
    print(f"  limits:      {limits or 'none'}")


# audit


def audit(
    where: State, *, server: str | None, kind: str | None, caller: str | None, since: float | None, follow: bool
) -> int:
    """Print the records of all hosts of the user, in the order of their time, one JSON object a line."""

    def work() -> int:
        found = records(where.audit, server=server, kind=kind, caller=caller, since=since, follow=follow)
        for record in found:
            print(json.dumps(record), flush=follow)
        return DONE

    return _guarded(work)


def verify_audit(where: State, key_file: str | None, head: str | None) -> int:
    """Print the state of each file; the exit code is 1 if one is not as it was written, or is missing.

    Args:
        key_file: holds the verification key; "-" is standard input. Without it, $COLONNADE_AUDIT_KEY may hold the key.
        head: a record that must be there, as this printed it before.
    """
    try:
        key = _verification_key(key_file)
        wanted = None if head is None else read_head(head)
    except OSError as problem:
        print(f"colonnade: {key_file} cannot be read: {problem.strerror}", file=sys.stderr)
        return WRONG
    except ValueError as problem:
        print(f"colonnade: {problem}", file=sys.stderr)
        return WRONG

    def work() -> int:
        report = verify_all(where.audit, key, wanted)
        for line in (*report.verified, *report.deleted, *report.problems):
            print(line)
        if report.head is not None:
            print(f"head: {report.head}")
        if key is None:
            print(f"Verified without a key: {_WITHOUT_KEY[read_state(where.audit) is not None]}.")
        return DONE if report.is_sound else FAILED

    return _guarded(work)


def _verification_key(file: str | None) -> bytes | None:
    """Raises OSError, or ValueError if it is no key."""
    if file is not None:
        return read_key(sys.stdin.read() if file == "-" else Path(file).read_text())
    given = os.environ.get("COLONNADE_AUDIT_KEY")
    return None if given is None else read_key(given)


_WITHOUT_KEY = {
    True: "the audit is sealed, and --key-file FILE also finds records that were rewritten",
    False: "somebody may have written all of it anew; colonnade audit init seals what is written from then on",
}


def init_audit(where: State, *, again: bool) -> int:
    """Begin to seal the audit, and print the verification key once."""

    def work() -> int:
        why = refusal_reason(this_process(), where.hosts)
        if why is not None:
            raise AdminError(why)
        key = new_key()
        if again and read_state(where.audit) is not None:
            with Audit(where.audit) as audit:  # sealed by the chain that ends
                audit.write("chain", next=chain_of(key))
        begin_chain(where.audit, key, again=again)
        print(key.hex())
        print(
            "This is the verification key. Keep it elsewhere: it is stored nowhere, and nothing can show it again.\n"
            "Hosts that run seal from their next file on; start them again to seal at once.",
            file=sys.stderr,
        )
        return DONE

    return _guarded(work)
