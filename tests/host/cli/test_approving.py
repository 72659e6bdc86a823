"""What servers offer, as it is shown, and its approval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from host.admin.decisions import PolicyAdmin
from host.cli.approving import approve_offers, reading, show_offers
from host.policy.gate import Gate
from host.policy.rows import DefinitionRow
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Source
from tests.host.cli.conftest import Stopped
from tests.kit.awaited import awaited
from tests.kit.gates import observe

READS = json.dumps({"name": "get", "description": "Get it\nreally", "annotations": {"readOnlyHint": True}}).encode()


def offered(stopped: Stopped) -> list[DefinitionRow]:
    def rows(gate: Gate) -> list[DefinitionRow]:
        return awaited(PolicyAdmin(gate).definitions("files"))["definitions"]

    made: Any = stopped.inside(rows)
    return list(made)


@pytest.fixture
def standard(stopped: Stopped) -> Stopped:
    """The server is not held back: its definitions were approved when they were first seen."""
    stopped.file.write_text(
        json.dumps({"servers": {"files": {"url": "http://127.0.0.1:9/mcp", "consent": "read-only"}}})
    )
    stopped.inside(lambda gate: observe(gate, "files", Kind.TOOL, {"get": READS, "set": b'{"name": "set"}'}))
    return stopped


def test_each_tool_is_shown_with_its_claims(standard: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    rows = offered(standard)
    assert reading(rows) == {"get"}
    show_offers({"files": rows})
    assert capsys.readouterr().out == (
        "  files:\n    get  (only reads, open world)\n        Get it\n    set  (may destroy, open world)\n"
    )
    show_offers({"files": rows}, whole=True)
    assert '          "readOnlyHint": true' in capsys.readouterr().out


def test_what_is_held_is_shown_as_a_whole_and_instructions_with_their_text(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.file.write_text(json.dumps({"servers": {"files": {"url": "http://127.0.0.1:9/mcp", "trust": "untrusted"}}}))

    def offer(gate: Gate) -> None:
        observe(gate, "files", Kind.TOOL, {"get": READS})
        source = Source("files", Era.SESSION)
        awaited(gate.definitions.observe_instructions(source, "Obey\nme"))

    stopped.inside(offer)
    rows = offered(stopped)
    assert {row["name"]: row["standing"] for row in rows} == {"get": "new", "": "new"}
    show_offers({"files": rows})
    said = capsys.readouterr().out
    assert '"description": "Get it\\nreally"' in said
    assert '        "Obey\\nme"\n' in said
    for row in rows:
        row["standing"] = "approved"
    show_offers({"files": rows})
    assert "    instructions for the model\n        Obey\n" in capsys.readouterr().out


def test_what_was_shown_is_approved_and_nothing_else(standard: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    rows = offered(standard)
    assert not any(row["counts"] for row in rows)
    shown = [row for row in rows if row["name"] == "get"]
    approve_offers(standard.file, {"files": shown}, standard.state)
    assert capsys.readouterr().out == "1 definition approved.\n"
    assert {row["name"]: row["counts"] for row in offered(standard)} == {"get": True, "set": False}
    approve_offers(standard.file, {"files": [row for row in offered(standard) if row["name"] == "get"]}, standard.state)
    assert capsys.readouterr().out == "The definitions of files are approved already.\n"
    shown[0]["fingerprint"] = "sha256:" + "0" * 64
    approve_offers(standard.file, {"files": shown, "gone": shown}, standard.state)
    said = capsys.readouterr()
    assert said.out == ""
    assert [line.partition(":")[0] for line in said.err.splitlines()] == [
        "The definitions of files are not approved",
        "The definitions of gone are not approved",
    ]


def test_what_cannot_be_approved_is_left_out(tmp_path: Path, standard: Stopped) -> None:
    rows = offered(standard)
    for row in rows:
        row["problem"] = "it repeats a secret"
    approve_offers(standard.file, {"files": rows}, standard.state)
    assert not any(row["counts"] for row in offered(standard))


def test_a_long_description_is_cut_behind_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "tool", "name": "get", "claims": [], "standing": "approved", "problem": ""}
    cut = [("word " * 30, "word " * 18 + "word…"), ("x" * 101, "x" * 99 + "…"), ("y" * 100, "y" * 100)]
    for description, shown in cut:
        offered: Any = {**row, "description": description}
        show_offers({"files": [offered]})
        assert capsys.readouterr().out.splitlines()[-1] == f"        {shown}"
