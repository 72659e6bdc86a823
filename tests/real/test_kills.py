"""What people decided, where processes are killed at random moments: whatever was confirmed is stored, and nothing is
that nobody decided. What was under way is stored whole or not at all."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from config import Trust
from host.cli.admin_client import AdminClientError, RunningHost, find_hosts
from host.cli.definitions import short_id
from host.policy.fingerprint import fingerprint
from host.policy.grants import Grant, Grants, Scope
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Source
from host.storage.directory import open_state
from host.storage.sqlite import open_store
from host.subject import Item, Subject
from tests.kit.awaited import awaited
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.kit.servers.offering import offer

from . import deciders
from .running import BARE_PYTHON, COLONNADE, ROOT, SERVERS, beside, serving, until, write_config

KILLS = int(os.environ.get("COLONNADE_KILLS", "20"))
"""In all: 6 of 10 of one deciding process, 2 of two at the same time, 1 of a command, 1 of a host or two."""


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A state directory, with the URL of a fleet in it for decisions of a fleet."""
    state = tmp_path / "state"
    if request.param == "sqlite":
        yield state
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as name:
        state.mkdir(mode=0o700)
        (state / "fleet").write_text(server.url(name))
        yield state


@pytest.mark.parametrize(("owners", "kills"), [(("one",), KILLS * 6 // 10), (("one", "two"), KILLS * 2 // 10)])
def test_a_kill_loses_nothing_that_was_confirmed(
    owners: tuple[str, ...], kills: int, state: Path, tmp_path: Path
) -> None:
    """Processes over one store, killed at random moments, also while they open it; each goes on where the last one was
    killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([deciders.__name__, "host.storage.postgres"])
    draw = Random(len(owners))
    life = 1.2 if (state / "fleet").exists() else 0.3  # it takes longer to open
    known: deciders.Known = {}
    confirmed = stored = journals = 0
    for kill in range(kills):
        logs = {owner: tmp_path / f"{kill}-{owner}.log" for owner in owners}
        processes = []
        for owner, log in logs.items():
            told = (state, log, owner, known, draw.randrange(2**32))
            processes.append(context.Process(target=deciders.decide_until_killed, args=told))
        for process in processes:
            process.start()
        pause(draw.uniform(0.0, life))
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
            assert process.exitcode == -signal.SIGKILL
        journal = state / "colonnade.db-journal"
        journals += journal.exists() and journal.stat().st_size > 0
        under_way = []
        for log in logs.values():
            count, step = deciders.outcome(log, known)
            confirmed += count
            under_way += [step] if step is not None else []
        found = deciders.stored(state, owners)
        for step in under_way:
            if found.get(step.key, False) == step.after:
                known[step.key] = step.after
                stored += 1
        assert found == {key: value for key, value in known.items() if value is not False}, (kill, under_way)
    assert confirmed > kills
    print(f"{kills} kills of {len(owners)}: {confirmed} confirmed; {stored} under way stored; {journals} journals")


# The program itself


@contextmanager
def opened(file: Path) -> Iterator[tuple[Pins, Grants]]:
    """What is kept of this configuration, while no host runs."""
    trusts = {"strict": Trust.UNTRUSTED, "std": Trust.STANDARD}
    with open_store(open_state(file.parent / "state"), file) as store:
        yield Pins(store, trusts), Grants(store)


def standing(file: Path) -> dict[str, str]:
    """How each tool of the untrusted server stands, and which grants there are."""
    with opened(file) as (pins, grants):
        found = {
            each.item.name: "approved"
            for each in pins.pinned()
            if each.item.server == "strict" and each.item.kind == "tool"
        }
        held = [each for each in pins.held() if each.item.server == "strict"]
        assert found.keys().isdisjoint(each.item.name for each in held)
        found |= {each.item.name: "rejected" if each.rejected else "new" for each in held}
        return found | {grant.id: "granted" for grant in grants.all()}


def wait_for_a_moment(process: subprocess.Popen[bytes], state: Path, draw: Random) -> None:
    """Until the process is in the middle of a transaction (the journal is not empty) or somewhat later, or has
    ended."""
    journal = state / "colonnade.db-journal"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        pause(0.0002)
    pause(draw.choice([0.0, draw.uniform(0.0, 0.005), draw.uniform(0.0, 0.2)]))


def decision_of(draw: Random, now: str) -> tuple[str, str]:
    """A decision about a tool that stands so, and how it stands then."""
    if now == "approved":
        return "revoke", "new"
    return draw.choice([("approve", "approved"), ("reject", "rejected")]) if now == "new" else ("approve", "approved")


def grant(id: str) -> Grant:
    subject = Subject(Item("strict", "tool", "t0"), None, None, "sha256:", "", "tools.ask: *")
    return Grant(id, subject, (), Scope.ALWAYS, 1.0, None, "console")


def tools(count: int) -> dict[str, bytes]:
    return {f"t{number}": deciders.definition(f"t{number}", 1) for number in range(count)}


def offering(of: Path) -> dict[str, Any]:
    return {"command": [*BARE_PYTHON, str(SERVERS / "offering.py"), str(of)]}


def tool_named(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(deciders.definition(name, 1))
    return found


def lists_all(host: RunningHost, names: list[str]) -> bool:
    listed = {each["name"] for each in host.get("state")["catalog"] if each["server"] == "strict"}
    return listed.issuperset(names)


def decide_by_socket(host: RunningHost, draw: Random, names: list[str], known: dict[str, str]) -> tuple[str, str, str]:
    """Decide about these until the host is gone; what was under way then (name and how it would stand), and why it was
    not confirmed."""
    while True:
        name = draw.choice(names)
        decision, after = decision_of(draw, known[name])
        shown = fingerprint(json.dumps(tool_named(name)).encode())
        try:
            host.post(
                "definitions/decide", server="strict", kind="tool", name=name, fingerprint=shown, decision=decision
            )
        except AdminClientError as problem:
            return name, after, str(problem)
        known[name] = after


def offer_more(hosts: list[RunningHost], file: Path, prefix: str, shown: set[str]) -> None:
    """Offer one tool more again and again, and note what is shown, until a host is gone."""
    offered = sorted(shown)
    for number in range(1000):
        offered.append(f"{prefix}{number}")
        offer(file, tools=[tool_named(name) for name in offered])
        for host in hosts:
            try:
                catalog = host.get("state")["catalog"]
            except AdminClientError:
                return
            shown |= {each["name"] for each in catalog if each["server"] == "std" and each["shown"]}
        pause(0.05)


def test_a_killed_command_has_decided_or_not(tmp_path: Path) -> None:
    """`definitions approve`, `reject` and `revoke`, and `grants revoke`, where no host runs."""
    kills, draw = KILLS // 10, Random(3)
    file = write_config(tmp_path, {"strict": {"command": ["true"], "trust": "untrusted", "sandbox": "off"}})
    state = open_state(tmp_path / "state")
    offered = tools(4)
    with opened(file) as (pins, grants):
        awaited(pins.observe(Source("strict", Era.SESSION), Kind.TOOL, offered))
        for number in range(kills):
            awaited(grants.add(grant(f"{number:016x}")))
    known = standing(file)
    assert set(known.values()) == {"new", "granted"}

    def command(name: str, now: str) -> tuple[list[str], str | None]:
        if now == "granted":
            return ["grants", "revoke", name], None
        decision, after = decision_of(draw, now)
        if decision == "revoke":
            return ["definitions", "revoke", "strict", "tool", name], after
        shown = {"server": "strict", "kind": "tool", "name": name, "fingerprint": fingerprint(offered[name])}
        return ["definitions", decision, short_id(state, shown)], after

    outcomes = Counter[str]()
    for kill in range(kills + 1):
        name = draw.choice(list(known))
        words, after = command(name, known[name])
        with (tmp_path / "said").open("w+") as said:
            process = subprocess.Popen([COLONNADE, *words], stdout=said, stderr=said, env=beside(file), cwd=ROOT)
            if kill:
                wait_for_a_moment(process, state.path, draw)
                process.kill()
            code = process.wait()
        assert code in (0, -signal.SIGKILL), (tmp_path / "said").read_text()
        expected = {key: value for key, value in known.items() if key != name} | ({name: after} if after else {})
        found = standing(file)
        outcomes["confirmed" if code == 0 else "stored" if found == expected else "not stored"] += 1
        assert found in ([expected] if code == 0 else [known, expected]), (words, code)
        known = found
    print(f"{kills} kills of commands: {dict(outcomes)}")


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_killed_host_has_stored_what_it_confirmed_and_showed(hosts: int, tmp_path: Path) -> None:
    """People decide about an untrusted server by the admin socket, each about tools of their own, while a server of
    standard trust offers more and more."""
    draw, names, state = Random(hosts), list(tools(6)), tmp_path / "state"
    strict, std = tmp_path / "strict.json", tmp_path / "std.json"
    offer(strict, tools=[tool_named(name) for name in names])
    file = write_config(
        tmp_path, {"strict": {**offering(strict), "trust": "untrusted", "sandbox": "off"}, "std": offering(std)}
    )
    known = dict.fromkeys(names, "new")
    shown: set[str] = set()
    for kill in range(max(1, KILLS // 20)):
        offer(std, tools=[tool_named(name) for name in sorted(shown)])
        with ExitStack() as stack:
            running = [stack.enter_context(serving(file, "strict", "std", stop=False)) for _ in range(hosts)]
            admins = find_hosts(state)
            for admin in admins:
                until(partial(lists_all, admin, names), "all is listed")
            with ThreadPoolExecutor() as threads:
                deciding = [
                    threads.submit(decide_by_socket, admin, Random(draw.random()), names[number::hosts], known)
                    for number, admin in enumerate(admins)
                ]
                offering_more = threads.submit(offer_more, admins, std, f"k{kill}n", shown)
                pause(draw.uniform(0.0, 0.6))
                for host in running:
                    host.process.kill()
            offering_more.result()
        found = standing(file)
        for name, after, why in (each.result() for each in deciding):
            assert re.search("ended|does not answer", why), why
            assert found[name] in (known[name], after)
            known[name] = found[name]
        assert found == known
        with opened(file) as (pins, _):
            assert shown <= {each.item.name for each in pins.pinned() if each.item.server == "std"}
    print(f"{len(shown)} tools shown: {known}")
