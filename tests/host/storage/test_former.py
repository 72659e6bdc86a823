"""What the version before the database kept in files is imported once, whole; what cannot be read approves nothing.

The files in `former/` were written by that version."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Trust
from config.when import read_when
from host.policy.fingerprint import Launch, fingerprint
from host.policy.grants import AccessRequest, Grants
from host.policy.pin_rules import LAUNCH, PinStatus
from host.policy.pins import Pins
from host.slices import run_inline
from host.storage import sqlite
from host.storage.directory import ConfigDirectory, open_state
from tests.kit.gates import SOURCE, folder, store_opener

FORMER = Path(__file__).with_name("former")
TRUSTS = {"std": Trust.STANDARD, "strict": Trust.UNTRUSTED, "free": Trust.TRUSTED}
MADE = 1790000000.0


def tool(description: str) -> bytes:
    return json.dumps({"name": "t", "description": description, "inputSchema": {"type": "object"}}).encode()


def own(state: Path) -> ConfigDirectory:
    return open_state(state).for_config(SOURCE)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory as the former version left it."""
    state = tmp_path / "state"
    put(FORMER / "everyday", state)
    return state


def put(files: Path, state: Path) -> None:
    for path in files.iterdir():
        shutil.copyfile(path, own(state).path / path.name)


def standing(state: Path) -> tuple[dict[str, PinStatus], str | None]:
    """How everything of `everyday` stands, and what the problem is."""
    with store_opener(state) as opened:
        pins = Pins(opened(), TRUSTS)
        run_inline(pins.observe("std", "tool", {"seen": tool("one"), "changed": tool("two"), "ümläut ☃": tool("one")}))
        names = dict.fromkeys(["new", "approved", "rejected", "revoked"], tool("one"))
        run_inline(pins.observe("strict", "tool", names))
        found = {name: pins.status("std", "tool", name) for name in ("seen", "changed", "ümläut ☃")}
        found |= {name: pins.status("strict", "tool", name) for name in names}
        found["instructions"] = pins.status("std", "instructions", "")
        found["launch"] = pins.status("std", LAUNCH, "")
        return found, pins.problem


EVERYDAY = {
    "seen": PinStatus.APPROVED,
    "changed": PinStatus.CHANGED,
    "ümläut ☃": PinStatus.APPROVED,
    "new": PinStatus.NEW,
    "approved": PinStatus.APPROVED,
    "rejected": PinStatus.NEW,
    "revoked": PinStatus.NEW,
    "instructions": PinStatus.APPROVED,
    "launch": PinStatus.APPROVED,
}


def test_everything_stands_as_it_stood(state: Path) -> None:
    assert standing(state) == (EVERYDAY, None)
    with store_opener(state) as opened:
        pins = Pins(opened(), TRUSTS)
        assert {each.name: each.rejected for each in pins.held()} == {
            "changed": False,
            "new": False,
            "rejected": True,
            "revoked": False,
        }
        by = {(each.server, each.kind, each.name): (each.by, each.at) for each in pins.pinned()}
        assert by["strict", "tool", "approved"] == ("console", MADE + 0.5)
        assert by["std", "tool", "seen"] == ("first sight", MADE + 0.5)
        assert by["free", "prompt", "greet"] == ("trust", MADE + 0.5)
        # The name of a program that is no UTF-8 is the same one still.
        launch = Launch("sha256:" + "0" * 64, "/opt/caf\udce9/server")
        assert run_inline(pins.observe_launch("std", launch)) == []


def test_grants_hold_as_they_held(state: Path) -> None:
    shown = fingerprint(tool("one"))
    access = AccessRequest("alice", None, "std", "tool", "seen", shown, "sha256:x", "tools.ask: *", "sha256:b", None)
    nobody = AccessRequest(None, None, "std", "tool", "seen", shown, "sha256:x", "tools.ask: *", "sha256:b", None)
    fitting = {"owner": "ø", "n": 3}
    with store_opener(state) as opened:
        grants = Grants(opened(), wall=lambda: MADE + 1)
        always, conditional, exact = grants.all()
        assert grants.find(access) == always
        assert conditional.when == read_when({"owner": {"in": ["acme", "ø"]}, "n": {"range": [1, None]}})
        assert grants.find(replace(nobody, arguments=fitting)) == conditional
        assert grants.find(replace(nobody, arguments={"owner": "ø", "n": 0})) is None
        assert (exact.digest, exact.expires) == ("sha256:" + "a" * 64, MADE + 900)
        assert "its time is over" in str(Grants(opened(), wall=lambda: MADE + 901).why_unusable(exact))


def test_servers_whose_definitions_were_lost_once_have_no_first_sight_any_more(tmp_path: Path) -> None:
    state = tmp_path / "state"
    put(FORMER / "lost", state)
    with store_opener(state) as opened:
        pins = Pins(opened(), TRUSTS)
        run_inline(pins.observe("std", "tool", {"a": tool("one"), "b": tool("one"), "later": tool("one")}))
        assert [pins.status("std", "tool", name) for name in ("a", "b", "later")] == [
            PinStatus.APPROVED,
            PinStatus.NEW,
            PinStatus.NEW,
        ]
        assert pins.problem is None


def test_the_files_are_put_aside_and_read_once(state: Path) -> None:
    before = sorted(each.name for each in FORMER.joinpath("everyday").iterdir())
    standing(state)
    directory = own(state).path
    assert sorted(each.name for each in directory.joinpath("imported").iterdir()) == before
    assert sorted(each.name for each in directory.iterdir()) == ["file", "imported", "seen"]
    put(FORMER / "lost", state)  # a file that comes later is not read
    assert standing(state) == (EVERYDAY, None)


def test_a_crash_between_storing_and_putting_aside_imports_nothing_twice(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a person has decided something since."""
    with monkeypatch.context() as patch, store_opener(state) as opened:
        patch.setattr(sqlite, "set_former_aside", lambda directory: None)
        pins = Pins(opened(), TRUSTS)
        run_inline(pins.revoke("strict", "tool", "approved"))
    assert (own(state).path / "pins.json").exists()
    assert standing(state) == ({**EVERYDAY, "approved": PinStatus.NEW}, None)
    assert not (own(state).path / "pins.json").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"strict"', b'"strikt"'))


def resealed(path: Path, **changes: object) -> None:
    """Write the content with these changes, and with the check that belongs to it."""
    content = {**json.loads(path.read_bytes())["content"], **changes}
    body = json.dumps(content).encode()
    check = hashlib.sha256(body).hexdigest()
    path.write_bytes(b'{"check":"sha256:%b","content":%b}\n' % (check.encode(), body))


def of_another_version(path: Path) -> None:
    resealed(path, version=2)


def of_another_form(path: Path) -> None:
    resealed(path, more=1)


def deleted(path: Path) -> None:
    path.unlink()


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (cut, "it was cut or edited"),
        (edited, "it was cut or edited"),
        (of_another_version, "it is of another version"),
        (of_another_form, "it has another form"),
        (deleted, "the file with the approved definitions is gone"),
        (unreadable, "cannot be imported: Is a directory"),
    ],
)
def test_definitions_that_cannot_be_read_approve_nothing(how: Any, why: str, state: Path) -> None:
    how(own(state).path / "pins.json")
    found, problem = standing(state)
    assert set(found.values()) <= {PinStatus.NEW, PinStatus.UNKNOWN}
    assert why in str(problem)
    assert "nothing is approved until a person" in str(problem)
    assert standing(state) == (found, problem), "a restart changes nothing"


@pytest.mark.parametrize("how", [cut, edited, of_another_version, of_another_form, deleted, unreadable])
def test_grants_that_cannot_be_read_do_not_hold(how: Any, state: Path) -> None:
    path = own(state).path / "grants.json"
    how(path) if how is not edited else path.write_bytes(path.read_bytes().replace(b"alice", b"mallo"))
    with store_opener(state) as opened:
        assert Grants(opened()).all() == []
    assert standing(state) == (EVERYDAY, None)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NONE = st.none()
APPROVED = st.fixed_dictionaries(
    {"fingerprint": TEXTS, "definition": NONE | TEXTS, "at": st.floats(0, 2**40), "by": TEXTS}
)
OFFERED = st.fixed_dictionaries({"fingerprint": TEXTS, "definition": NONE | TEXTS, "since": st.floats(0, 2**40)})
ITEMS = st.fixed_dictionaries(
    {}, optional={"approved": APPROVED, "offered": OFFERED, "rejected": TEXTS, "closed": st.booleans()}
)
SERVERS = st.dictionaries(
    TEXTS, st.dictionaries(TEXTS, st.dictionaries(TEXTS, ITEMS, max_size=3), max_size=2), max_size=2
)


@pytest.mark.slow
@given(SERVERS, st.lists(TEXTS, max_size=3))
def test_any_content_of_the_form_comes_in_whole(servers: dict[str, Any], lost: list[str]) -> None:
    with folder() as made:
        directory = own(made / "state")
        (directory.path / "pins.json").write_text('{"content": {}}')
        resealed(directory.path / "pins.json", version=1, servers=servers, lost=lost)
        with store_opener(made / "state") as opened:
            found = run_inline(opened().read_definitions(0))
    assert (found.lost, found.closed_servers) == (None, frozenset(lost))
    come: dict[str, Any] = {}
    for server, kind, name, item in found.items:
        come.setdefault(server, {}).setdefault(kind, {})[name] = {
            **({"approved": fields_of(item.approved)} if item.approved is not None else {}),
            **({"offered": fields_of(item.offered)} if item.offered is not None else {}),
            "rejected": item.rejected,
            "closed": item.closed,
        }
    assert come == {
        server: {
            kind: {name: {"rejected": None, "closed": False, **item} for name, item in items.items()}
            for kind, items in kinds.items()
            if items
        }
        for server, kinds in servers.items()
        if any(kinds.values())
    }


def fields_of(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_the_id_of_a_configuration_is_the_one_that_the_former_version_used() -> None:
    with folder() as made:
        assert own(made).id == hashlib.sha256(os.fsencode(SOURCE)).hexdigest()[:16] == "a32a3014c4a38f68"
