"""The command `definitions` on what a stopped host left: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.definitions import short_id
from host.cli.exit_codes import DONE, FAILED, VERDICT_ASK, WRONG
from host.jsonrpc.withheld import WITHHELD
from host.policy.pin_rules import PinStatus
from host.protocol.methods import Kind
from host.storage.directory import open_state
from tests.kit.gates import entry, observe

from .conftest import TOOLS, Stopped


def status(stopped: Stopped, tool: str) -> object:
    return stopped.inside(lambda gate: gate.definitions.pins.status(entry("gh", Kind.TOOL, tool)))


def test_held_definitions_are_listed_and_shown_and_nothing_in_them_hides(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped.run("definitions") == DONE
    listed = capsys.readouterr().out
    assert "gh: tool create  (new)" in listed
    assert stopped.run("definitions", "--show") == DONE
    shown = capsys.readouterr().out
    assert "⟨U+202E⟩" in shown
    assert "\u202e" not in listed + shown


def test_a_new_definition_is_shown_as_it_is_and_a_changed_one_as_a_difference(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped.run("definitions", "approve", "--server", "gh", "--yes") == DONE
    shown = capsys.readouterr().out
    assert '        "description": "create⟨U+202E⟩"' in shown.splitlines()[2]
    assert "{+" not in shown
    changed = {"create": b'{"name":"create","description":"create more"}'}
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, **changed}))
    assert stopped.run("definitions", "--show") == DONE
    shown = capsys.readouterr().out
    assert "(changed)" in shown
    assert "[-" in shown
    assert "{+" in shown


def test_pins_is_the_same_command(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("definitions") == DONE
    listed = capsys.readouterr().out
    assert stopped.run("pins") == DONE
    assert capsys.readouterr().out == listed
    assert stopped.run("pins", "approve", "--server", "gh", "--yes") == DONE
    assert stopped.run("pins", "revoke", "gh", "tool", "create") == DONE


def test_a_definition_is_approved_by_the_id_that_was_shown_and_the_next_host_knows(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.run("definitions")
    id = next(line.split()[0] for line in capsys.readouterr().out.splitlines() if "tool create" in line)
    assert stopped.run("definitions", "approve", id) == DONE
    assert "create" in capsys.readouterr().out
    assert stopped.run("definitions", "approve", id) == FAILED
    assert id in capsys.readouterr().err
    assert status(stopped, "create") is PinStatus.APPROVED
    assert status(stopped, "get") is PinStatus.NEW
    assert stopped.run("definitions", "revoke", "gh", "tool", "create") == DONE
    assert status(stopped, "create") is PinStatus.NEW


def test_the_way_to_see_them_in_full_is_named_where_they_are_not_shown_so(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped.run("definitions")
    short = capsys.readouterr().out
    stopped.run("definitions", "--show")
    full = capsys.readouterr().out
    ways = ["To see them in full: colonnade definitions --show", "To decide: "]
    assert [way in short for way in ways] == [True, True]
    assert [way in full for way in ways] == [False, True]


def test_a_rejected_definition_stays_held(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("definitions", "reject", "--server", "gh", "--yes") == DONE
    assert stopped.run("definitions") == DONE
    assert "gh: tool create  (rejected)" in capsys.readouterr().out


def test_all_of_a_server_are_decided_at_once_and_shown_meanwhile(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stopped.run("definitions", "approve", "--server", "gh") == FAILED  # nobody is there to confirm it
    assert "Nothing was done." in capsys.readouterr().out
    assert stopped.run("definitions", "approve", "--server", "nowhere", "--yes") == FAILED
    assert stopped.run("definitions", "approve", "--server", "gh", "--yes") == DONE
    said = capsys.readouterr().out
    assert "create" in said
    assert "get" in said
    assert stopped.run("definitions") == DONE
    assert capsys.readouterr().out == "Nothing is held back.\n"


def test_tools_whose_claims_do_not_count_yet_are_named(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is held, and yet a person's approval changes what runs. What the rules deny in any case needs none."""
    consent = '{"tools": {"allow": [{"name": "*", "claims": "read-only"}], "deny": ["drop"], "default": "ask"}}'
    stopped.file.write_text(f'{{"servers": {{"he": {{"url": "http://127.0.0.1:9/mcp", "consent": {consent}}}}}}}')
    offered = {name: b'{"name":"%b","annotations":{"readOnlyHint":true}}' % name.encode() for name in ("get", "drop")}
    stopped.inside(lambda gate: observe(gate, "he", Kind.TOOL, offered))
    assert stopped.run("definitions") == DONE
    named = "he: 1 tool, whose claims do not count before you approve it: colonnade definitions approve he"
    assert capsys.readouterr().out.splitlines() == ["Nothing is held back.", named]
    assert stopped.run("explain", "he__get") == VERDICT_ASK
    assert "  definition:  approved when first seen, not by a person\n" in capsys.readouterr().out
    assert stopped.run("definitions", "approve", "he", "--yes") == DONE
    assert "  tool get  (only reads, open world)" in capsys.readouterr().out
    assert stopped.run("definitions") == DONE
    assert capsys.readouterr().out == "Nothing is held back.\n"
    assert stopped.run("explain", "he__get") == DONE
    assert "  definition:  approved by a person (" in capsys.readouterr().out


def test_a_definition_that_repeats_a_secret_is_not_approved_with_the_others(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    repeating = b'{"name":"create","description":"%b"}' % WITHHELD.encode()
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, "create": repeating}))
    assert stopped.run("definitions") == DONE
    assert "cannot be approved: it repeats a secret that its server was given" in capsys.readouterr().out
    assert stopped.run("definitions", "approve", "--server", "gh", "--yes") == FAILED
    assert "gh: tool create was not approved: it repeats a secret" in capsys.readouterr().err
    assert status(stopped, "get") is PinStatus.APPROVED
    assert status(stopped, "create") is PinStatus.NEW
    assert stopped.run("definitions", "reject", "--server", "gh", "--yes") == DONE


def test_a_whole_list_is_approved_also_where_nothing_is_held(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shown with what the tools claim, which counts once a person approved them."""
    reading = b'{"name":"get","description":"Gets it.\\nMore.","annotations":{"readOnlyHint":true}}'
    stopped.file.write_text('{"servers": {"he": {"url": "http://127.0.0.1:9/mcp"}}}')
    stopped.inside(lambda gate: observe(gate, "he", Kind.TOOL, {"get": reading}))
    assert stopped.run("definitions", "approve", "he", "--yes") == DONE
    said = capsys.readouterr().out
    assert "  tool get  (only reads, open world)\n      Gets it.\n" in said
    assert "1 definition of he: approved." in said
    assert stopped.run("definitions", "approve", "he", "--yes") == DONE
    assert capsys.readouterr().out == "No definition of he waits for your approval.\n"
    assert stopped.run("definitions", "approve", "he", "0123456789", "--yes") == WRONG


def test_what_is_decided_has_to_be_said(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("definitions", "approve", "--yes") == WRONG
    assert "--server NAME" in capsys.readouterr().err
    assert stopped.run("definitions", "revoke", "gh", "program", "x") == WRONG


def test_equal_definitions_of_two_servers_have_two_ids_that_nobody_else_could_tell(
    stopped: Stopped, tmp_path: Path
) -> None:
    """A server that copies another's definition is approved by nothing that is said of the other."""
    held: dict[str, object] = {"server": "gh", "kind": "tool", "name": "create", "fingerprint": "sha256:1"}
    ids = {short_id(stopped.state, {**held, "server": server}) for server in ("gh", "evil")}
    elsewhere = open_state(tmp_path / "elsewhere")
    assert len(ids | {short_id(elsewhere, held)}) == 3


def test_another_order_alone_is_said_with_its_remedy(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("a, b", "b, a"):
        offered = {"create": json.dumps({"name": "create", "description": words}).encode()}
        stopped.inside(lambda gate, offered=offered: observe(gate, "gh", Kind.TOOL, offered))  # type: ignore[misc]
        if words == "a, b":
            assert stopped.run("definitions", "approve", "--server", "gh", "--yes") == DONE
    capsys.readouterr()
    assert stopped.run("definitions") == DONE
    said = capsys.readouterr().out
    assert "gh: tool create  (changed)\n      only the order of words or of listed texts differs" in said
    assert "its operator can set PYTHONHASHSEED=0" in said
