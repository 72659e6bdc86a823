"""What a relay may answer while a host starts, from a file made by hand. That of a host: tests/real/test_relay.py."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from config.desktop.hosts import HOSTS
from config.file_state import file_state
from host.relay_start import (
    FIRST_ANSWERS,
    FirstAnswers,
    host_environment,
    seal_first_answers,
    start_host,
    values_digest,
)
from host.version import VERSION
from host.wire.process import _INHERITED_VARIABLES

KEY = b"k" * 32
OPENED: dict[str, Any] = {"protocolVersion": "2025-11-25"}


class Left:
    """A state directory with a configuration whose last host has left its answers."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.file = folder / "colonnade.yaml"
        self.file.write_text("servers: {}")
        self.id = hashlib.sha256(os.fsencode(os.path.realpath(self.file))).hexdigest()[:16]
        self.path = self.state / "configs" / self.id / FIRST_ANSWERS
        self.path.parent.mkdir(parents=True)
        (self.state / "key").write_bytes(KEY)
        with sqlite3.connect(self.state / "colonnade.db") as database:
            database.execute("CREATE TABLE config (id TEXT, definitions INTEGER, credentials INTEGER)")
            database.execute("INSERT INTO config VALUES (?, 3, 4)", (self.id,))
        database.close()
        forms: dict[str, Any] = {
            "2025-06-18": {"opening": {"": "old"}, "lists": {"tools/list": {"": "old tools"}}},
            "2025-11-25": {
                "opening": {"": "plain", "apps": "with apps"},
                "lists": {"tools/list": {"": "tools", "c": "more tools"}},
            },
        }
        stateless = {"2026-07-28": {"opening": {"": "found"}, "lists": {"tools/list": {"": "stateless tools"}}}}
        files = {str(path): file_state(path) for path in (self.file, folder / "missing", folder)}
        self.body: dict[str, Any] = {
            "colonnade": VERSION,
            "files": files,
            "revisions": [3, 4],
            "variables": ["RULE"],
            "values": values_digest(KEY, ["RULE"], {}),
            "programs": [["true", "/nowhere:/bin", "/", os.path.realpath("/bin/true")], ["none", None, "/", None]],
        }
        self.answers = {"": {"forms": forms, "stateless": stateless, "default": "2025-11-25"}}

    def write(self, key: bytes = KEY) -> None:
        body = b"\n".join(json.dumps(each).encode() for each in (self.body, self.answers))
        self.path.write_bytes(seal_first_answers(key, body) + b"\n" + body)

    def answer(self, method: str, opened: dict[str, Any] | None = None, **params: Any) -> str | None:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return FirstAnswers(str(self.state), str(self.file)).answer(message, opened)

    def answers_to(self, view: str) -> bool:
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": OPENED}
        return FirstAnswers(str(self.state), str(self.file), view).answer(message, None) is not None

    def says(self) -> bool:
        return self.answer("initialize", **OPENED) == "plain"


@pytest.fixture
def left(tmp_path: Path) -> Left:
    made = Left(tmp_path)
    made.write()
    return made


def test_each_form_of_a_client_has_its_answers(left: Left) -> None:
    apps: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/ui": {}}}
    assert left.answer("initialize", **OPENED, capabilities={}) == "plain"
    assert left.answer("initialize", **OPENED, capabilities=apps) == "with apps"
    assert left.answer("initialize", protocolVersion="2025-06-18", capabilities=apps) == "old"
    assert left.answer("initialize", protocolVersion="1999-01-01") == "plain"
    assert left.answer("tools/list", OPENED) == "tools"
    assert left.answer("tools/list", OPENED, cursor="c") == "more tools"
    assert left.answer("tools/list", {"protocolVersion": "2025-06-18"}) == "old tools"
    envelope = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}
    assert left.answer("server/discover", **envelope) == "found"
    assert left.answer("tools/list", **envelope) == "stateless tools"
    assert left.answer("initialize", protocolVersion="2026-07-28") == "plain", "it has no handshake"


def test_all_else_is_for_the_host(left: Left) -> None:
    assert left.answer("tools/call", OPENED, name="a") is None
    assert left.answer("tools/list", OPENED, cursor="unknown") is None
    assert left.answer("initialize", OPENED, **OPENED) is None
    assert left.answer("ping", OPENED) is None
    envelope = {"_meta": {"io.modelcontextprotocol/protocolVersion": "2025-11-25"}}
    for method in ("server/discover", "tools/list"):  # it is stateless, and this revision is not
        with pytest.raises(LookupError):
            left.answer(method, **envelope)
    notice = {"jsonrpc": "2.0", "method": "initialize", "params": OPENED}
    assert FirstAnswers(str(left.state), str(left.file)).answer(notice, None) is None


@pytest.mark.parametrize("revisions", [[2, 4], [3, 5], []])
def test_after_another_decision_nothing_is_answered(left: Left, revisions: list[int]) -> None:
    left.body["revisions"] = revisions
    left.write()
    assert not left.says()


def test_after_a_change_of_a_file_nothing_is_answered(left: Left) -> None:
    assert left.says()
    left.file.write_text("servers: {a: {command: b}}")
    assert not left.says()
    left.file.write_text("servers: {}")
    assert left.says()
    (left.file.parent / "missing").write_text("")
    assert not left.says()


def test_with_another_value_of_a_rule_or_another_program_nothing_is_answered(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left.says()
    monkeypatch.setenv("RULE", "")
    assert not left.says()
    monkeypatch.delenv("RULE")
    left.body["programs"][0][3] = "/bin/another"
    left.write()
    assert not left.says()


def test_what_another_version_has_left_is_not_answered(left: Left) -> None:
    left.body["colonnade"] = "0.0.0"
    left.write()
    assert not left.says()


def test_only_the_holder_of_the_key_can_make_it(left: Left) -> None:
    content = left.path.read_bytes()
    for planted in (content.replace(b"tools", b"evils"), content[1:]):
        left.path.write_bytes(planted)
        assert not left.says()
    left.write(b"x" * 32)
    assert not left.says()
    left.path.write_bytes(b"")
    assert not left.says()


@pytest.mark.parametrize("planted", ["link", "pipe", "folder", "broken"])
def test_a_planted_file_is_not_read(left: Left, planted: str) -> None:
    content = left.path.read_bytes()
    left.path.unlink()
    if planted == "link":
        (left.path.parent / "other").write_bytes(content)
        left.path.symlink_to("other")
    elif planted == "pipe":
        os.mkfifo(left.path)
    elif planted == "folder":
        left.path.mkdir()
    else:
        body = b'{"colonnade":[]}'
        left.path.write_bytes(seal_first_answers(KEY, body) + b"\n" + body)
    assert not left.says()


def test_a_state_directory_that_is_not_there(tmp_path: Path) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": OPENED}
    assert FirstAnswers(str(tmp_path / "none"), str(tmp_path / "none.yaml")).answer(message, None) is None


SYSTEMD_RUN = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != -- ] && [ "$1" != true ]; do shift; done
[ "$1" = true ] && exit {status}
shift
exec "$@"
"""


@pytest.mark.parametrize("status", [0, 1])
def test_a_host_gets_a_scope_of_the_user_s_manager_where_that_gives_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The manager is played by a script; the host says that its file is missing, once."""
    (tmp_path / "systemd").mkdir()
    (tmp_path / "systemd" / "private").touch()
    program = tmp_path / "systemd-run"
    program.write_text(SYSTEMD_RUN.format(log=tmp_path / "log", status=status))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    descriptor = start_host(str(tmp_path / "none.yaml"), str(tmp_path / "state"), "", {"A"})
    with open(descriptor) as said:
        assert said.read().count("none.yaml") == 1
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked[0] == "--user --scope --quiet true"
    assert len(asked) == (2 if status == 0 else 1)


def test_a_host_gets_no_descriptor_of_a_desktop_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one above the present limit."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nls -l /proc/$$/fd >&2\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    inherited = os.open(tmp_path / "theirs", os.O_CREAT)
    os.dup2(inherited, 900)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        reading = start_host(str(tmp_path / "a.yaml"), str(tmp_path / "state"), "", [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(900)
        os.close(inherited)
    with open(reading) as file:
        said = file.read()
    assert "pipe:" in said
    assert "theirs" not in said


def test_the_host_that_is_started_keeps_no_key_of_a_desktop_host() -> None:
    kept = {"HOME": "h", "PATH": "p", "LANG": "C", "LC_ALL": "C", "XDG_RUNTIME_DIR": "/run", "https_proxy": "p"}
    kept |= {"OTEL_EXPORTER_OTLP_ENDPOINT": "u", "OTEL_TRACES_SAMPLER": "s"}
    keys = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "CLAUDE_CODE_MESSAGING_TOKEN": "t", "LD_PRELOAD": "x"}
    assert host_environment(kept | keys | {"TOKEN": "t"}, {"TOKEN", "UNSET"}) == kept | {"TOKEN": "t"}


def test_the_host_that_is_started_keeps_what_servers_get_and_where_restrictions_are() -> None:
    names = {file.variable for host in HOSTS for file in host.files if file.variable}
    names |= {"LC_TIME", *_INHERITED_VARIABLES} - {"TERM"}
    assert host_environment(dict.fromkeys(names, ""), ()).keys() == names


def test_a_client_with_a_view_gets_the_answers_for_that_view_alone(left: Left) -> None:
    left.answers["coding"] = left.answers[""]
    left.write()
    assert [left.answers_to(each) for each in ("", "coding", "other", "forms")] == [True, True, False, False]
    del left.answers[""]
    left.write()
    assert [left.answers_to(each) for each in ("", "coding")] == [False, True]
