"""The command `explain` on what a stopped host left."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from host.cli.exit_codes import FAILED, VERDICT_ASK, VERDICT_DENY, WRONG, CommandFailed
from host.cli.explain import entry_named, short_fingerprint
from host.protocol.methods import Kind
from tests.kit.admin import entry
from tests.kit.gates import observe

from .conftest import TOOLS, Stopped


@pytest.mark.parametrize(("tool", "code"), [("get", VERDICT_DENY), ("create", VERDICT_DENY), ("wipe", VERDICT_DENY)])
def test_a_definition_that_nobody_approved_is_denied_whatever_its_rule(
    stopped: Stopped, tool: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an untrusted server."""
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, "wipe": b'{"name":"wipe"}'}))
    assert stopped.run("explain", "--server", "gh", "--tool", tool) == code
    assert "tried:" in capsys.readouterr().out


def test_a_call_is_explained(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, "wipe": b'{"name":"wipe"}'}))
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    assert stopped.run("explain", "--server", "gh", "--tool", "create", "--args", '{"a": 1}', "--json") == VERDICT_ASK
    explanation = json.loads(capsys.readouterr().out)
    assert (explanation["verdict"], explanation["rule"]) == ("ask", "tools.ask: create")
    assert explanation["standing"] == "approved"
    assert stopped.run("explain", "--server", "gh", "--tool", "wipe") == VERDICT_DENY
    assert "does not exist for any client" in capsys.readouterr().out
    for server, remedy in (("ghx", "did you mean gh?"), ("nowhere", "colonnade check shows its servers")):
        assert stopped.run("explain", "--server", server, "--tool", "x") == FAILED
        assert remedy in capsys.readouterr().err


def test_an_entry_that_the_server_does_not_have_has_no_verdict(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nearest one is named. Of a server whose lists are not known, the rules alone are told."""
    assert stopped.run("explain", "--server", "gh", "--tool", "creat") == FAILED
    assert "gh has no tool 'creat'; did you mean create?" in capsys.readouterr().err
    for named in (["--tool", "zzz"], ["--prompt", "create"], ["--resource", "file:///x"]):
        assert stopped.run("explain", "--server", "gh", *named) == FAILED
        assert "colonnade list shows its entries" in capsys.readouterr().err
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TEMPLATE, {"file:///{x}": b'{"uriTemplate":"file:///{x}"}'}))
    assert stopped.run("explain", "--server", "gh", "--resource", "file:///x") != FAILED


def test_an_entry_is_explained_by_the_name_that_clients_see(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name says the server and the entry of a stopped host, whose catalog is not known."""
    assert stopped.run("explain", "gh__create") == VERDICT_DENY
    by_own_name = capsys.readouterr().out if stopped.run("explain", "--server", "gh", "--tool", "create") else ""
    assert by_own_name.count("decided by:") == 2
    assert stopped.run("explain", "gh__creat") == FAILED
    assert "gh has no tool 'creat'; did you mean create?" in capsys.readouterr().err
    assert stopped.run("explain", "create") == FAILED
    assert "no server has an entry that clients see as 'create'" in capsys.readouterr().err


@dataclass
class Running:
    """A running host with a catalog."""

    rows: Sequence[Mapping[str, Any]]
    config = "colonnade.yaml"

    def servers(self) -> Collection[str]:
        return ["github"]

    def state(self) -> Mapping[str, Any]:
        return {"catalog": self.rows}

    def post(self, path: str, **body: object) -> Any:
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("outward", "found"),
    [
        ("github__plan", ("github", "prompt", "plan")),
        ("github__a_f3a1", ("github", "tool", "a.very.long.name")),
        ("github__unknown", ("github", "tool", "unknown")),
        ("github+file:///x", ("github", "resource", "file:///x")),
    ],
)
def test_a_running_host_knows_which_entry_clients_mean(outward: str, found: tuple[str, str, str]) -> None:
    rows = [entry("plan", kind="prompt"), entry("a.very.long.name", outward="github__a_f3a1")]
    assert entry_named([Running(rows)], outward) == found


def test_a_name_of_several_entries_is_refused_with_all_of_them() -> None:
    host = Running([entry("plan"), entry("plan", kind="prompt")])
    with pytest.raises(CommandFailed, match="--server github --tool plan; --server github --prompt plan"):
        entry_named([host], "github__plan")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool", "x"],
        ["--server", "gh"],
        [],
        ["gh__get", "--server", "gh"],
        ["gh__get", "--tool", "get"],
        ["--server", "gh", "--tool", "x", "--prompt", "y"],
        ["--server", "gh", "--tool", "x", "--args", "{"],
        ["--server", "gh", "--tool", "x", "--args", "[]"],
    ],
)
def test_wrong_arguments(stopped: Stopped, arguments: list[str]) -> None:
    assert stopped.run("explain", *arguments) == WRONG


def test_a_fingerprint_is_named_by_its_beginning() -> None:
    assert short_fingerprint("sha256:0123456789abcdef") == "01234567"
