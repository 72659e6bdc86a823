"""Whether an untrusted program without the key `sandbox` is confined, on a state from before and on a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from config import StdioServer, Trust, Unconfined
from config.sandbox import Network, Sandbox
from host.policy.confinement import NO_FOLDER, settled_servers
from host.policy.fingerprint import launch_of
from host.policy.pins import Pins
from host.storage.sqlite import SqliteStore
from tests.config.kit import load_text, stdio
from tests.kit.awaited import awaited
from tests.kit.gates import store_opener

STRICT = Sandbox()


def spec(tmp_path: Path, more: str = "trust: untrusted", command: str = "cat") -> StdioServer:
    return stdio(load_text(tmp_path, f"servers: {{a: {{command: {command}, {more}}}}}"), "a")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def open_store(state: Path) -> Iterator[Callable[[], SqliteStore]]:
    with store_opener(state) as opened:
        yield opened


def age(state: Path) -> None:
    """Make the database one of the version that confined no untrusted program."""
    with closing(sqlite3.connect(state / "colonnade.db")) as other, other:
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("PRAGMA user_version = 5")


@pytest.fixture
def from_before(tmp_path: Path, state: Path) -> Iterator[Callable[[], Pins]]:
    """Pins of a host on a state in which a former version started the program."""
    former = replace(spec(tmp_path), sandbox=None)
    with store_opener(state) as opened:
        awaited(Pins(opened(), {"a": Trust.UNTRUSTED}).observe_launch("a", launch_of(former)))
    age(state)
    with store_opener(state) as opened:
        yield lambda: Pins(opened(), {"a": Trust.UNTRUSTED})


def outcome(pins: Pins, made: StdioServer) -> tuple[Sandbox | None, Unconfined | None]:
    settled = settled_servers({"a": made}, pins)["a"]
    assert settled_servers({"a": settled}, pins) == {"a": settled}
    return settled.sandbox, settled.unconfined


@pytest.mark.parametrize(
    ("text", "sandbox", "by_trust"),
    [
        ("servers: {a: {command: cat, trust: untrusted}}", STRICT, True),
        ("servers: {a: {command: cat, trust: standard}}", None, False),
        ("servers: {a: {command: cat}}\ndefaults: {trust: untrusted}", STRICT, True),
        ("servers: {a: {command: cat, trust: standard}}\ndefaults: {trust: untrusted}", None, False),
        ("servers: {a: {command: cat, trust: untrusted, sandbox: off}}", None, False),
        ("servers: {a: {command: cat, trust: untrusted}}\ndefaults: {sandbox: off}", None, False),
        ("servers: {a: {command: cat, trust: untrusted, sandbox: strict}}", STRICT, False),
        (
            "servers: {a: {command: cat, trust: untrusted}}\ndefaults: {sandbox: {network: all}}",
            Sandbox(network=Network.ALL),
            False,
        ),
    ],
)
def test_what_the_file_says(tmp_path: Path, text: str, sandbox: Sandbox | None, by_trust: bool) -> None:
    made = stdio(load_text(tmp_path, text), "a")
    assert (made.sandbox, made.confined_by_trust) == (sandbox, by_trust)


def test_a_server_at_a_url_has_no_sandbox(tmp_path: Path) -> None:
    made = load_text(tmp_path, "servers: {a: {url: 'http://127.0.0.1/', trust: untrusted}}").servers["a"]
    assert (made.sandbox, made.confined_by_trust, made.describe_sandbox()) == (None, False, "")


def test_where_it_comes_from_is_no_other_launch(tmp_path: Path) -> None:
    assert launch_of(spec(tmp_path)) == launch_of(spec(tmp_path, "sandbox: strict"))


def test_a_new_program_is_confined(tmp_path: Path, open_store: Callable[[], SqliteStore]) -> None:
    pins = Pins(open_store(), {"a": Trust.UNTRUSTED})
    assert outcome(pins, spec(tmp_path)) == (STRICT, None)
    awaited(pins.observe_launch("a", launch_of(spec(tmp_path))))
    assert outcome(pins, spec(tmp_path)) == (STRICT, None)


def test_one_that_was_standard_is_confined_once_it_is_untrusted(
    tmp_path: Path, open_store: Callable[[], SqliteStore]
) -> None:
    """Its launch is approved, but this version started it: a person has changed the file since."""
    pins = Pins(open_store(), {"a": Trust.STANDARD})
    awaited(pins.observe_launch("a", launch_of(spec(tmp_path, "trust: standard"))))
    assert outcome(pins, spec(tmp_path)) == (STRICT, None)


def test_one_that_a_former_version_started_runs_as_before_until_a_person_chooses(
    tmp_path: Path, from_before: Callable[[], Pins]
) -> None:
    pins, other = from_before(), from_before()
    assert outcome(pins, spec(tmp_path)) == (None, Unconfined.OPEN)
    awaited(pins.set_unconfined("a", True))
    assert outcome(pins, spec(tmp_path)) == (None, Unconfined.CHOSEN)
    assert awaited(other.reread()) == {"a"}
    assert outcome(other, spec(tmp_path)) == outcome(from_before(), spec(tmp_path)) == (None, Unconfined.CHOSEN)
    awaited(pins.set_unconfined("a", None))
    assert outcome(pins, spec(tmp_path)) == (STRICT, None)
    assert awaited(other.reread()) == {"a"}
    assert outcome(other, spec(tmp_path)) == (STRICT, None)


@pytest.mark.parametrize("chosen", [None, True])
def test_with_another_command_it_is_a_new_one(
    tmp_path: Path, from_before: Callable[[], Pins], chosen: bool | None
) -> None:
    pins = from_before()
    if chosen:
        awaited(pins.set_unconfined("a", chosen))
    assert outcome(pins, spec(tmp_path, command="[cat, x]")) == (STRICT, None)
    assert outcome(pins, spec(tmp_path)) == (None, Unconfined.CHOSEN if chosen else Unconfined.OPEN)


def test_what_was_never_approved_is_confined(tmp_path: Path, state: Path) -> None:
    """A former version held it, so it never ran."""
    former = replace(spec(tmp_path), sandbox=None)
    with store_opener(state) as opened:
        pins = Pins(opened(), {"a": Trust.UNTRUSTED})
        awaited(pins.observe_launch("a", structs.replace(launch_of(former), program="/first")))
        awaited(pins.observe_launch("a", structs.replace(launch_of(former), program="/other")))
        (held,) = pins.held()
        awaited(pins.reject(held.item, held.fingerprint))
        awaited(pins.revoke(held.item))
    age(state)
    with store_opener(state) as opened:
        assert outcome(Pins(opened(), {"a": Trust.UNTRUSTED}), spec(tmp_path)) == (STRICT, None)


def test_a_confined_program_works_in_no_folder_of_a_client(
    tmp_path: Path, open_store: Callable[[], SqliteStore]
) -> None:
    made = spec(tmp_path, "trust: untrusted, cwd: '${client:folder}'")
    settled = settled_servers({"a": made}, Pins(open_store(), {}))["a"]
    assert (settled.problem, settled.sandbox) == (NO_FOLDER, STRICT)


def test_one_line_says_what_is_in_force_and_why(tmp_path: Path) -> None:
    given = Sandbox().describe()
    made = spec(tmp_path)
    assert made.describe_sandbox("namespaces") == f"{given}; held by namespaces (strict, from trust: untrusted)"
    assert spec(tmp_path, "sandbox: strict").describe_sandbox() == given
    assert spec(tmp_path, "trust: untrusted, sandbox: off").describe_sandbox() == "off: it runs as your user"
    weak = "Landlock 7, seccomp; not by namespaces, a control group"
    assert f"; held by {weak}, so these stay open: names of files, the view of other processes (" in (
        made.describe_sandbox(weak)
    )
    assert ", sockets of your user, UDP (" in made.describe_sandbox("Landlock 7; not by seccomp, namespaces")
    assert "open:" not in made.describe_sandbox("namespaces, Landlock 7; not by seccomp")
    former = replace(made, sandbox=None, unconfined=Unconfined.OPEN)
    assert former.describe_sandbox() == (
        "off: it runs as your user, as before, until you choose: colonnade sandbox a strict, or off"
    )
    chosen = replace(former, unconfined=Unconfined.CHOSEN)
    assert chosen.describe_sandbox() == "off: it runs as your user, as a person chose for this command"
    (from_defaults,) = load_text(tmp_path, "servers: {a: {command: cat}}\ndefaults: {sandbox: strict}").servers.values()
    assert from_defaults.describe_sandbox() == f"{given} (from defaults.sandbox)"
