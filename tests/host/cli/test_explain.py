"""The command `explain` on what a stopped host left."""

from __future__ import annotations

import json

import pytest

from host.cli.exit_codes import FAILED, VERDICT_ASK, VERDICT_DENY, WRONG
from host.cli.explain import short_fingerprint
from host.protocol.methods import Kind
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool", "x"],
        ["--server", "gh"],
        ["--server", "gh", "--tool", "x", "--prompt", "y"],
        ["--server", "gh", "--tool", "x", "--args", "{"],
        ["--server", "gh", "--tool", "x", "--args", "[]"],
    ],
)
def test_wrong_arguments(stopped: Stopped, arguments: list[str]) -> None:
    assert stopped.run("explain", *arguments) == WRONG


def test_a_fingerprint_is_named_by_its_beginning() -> None:
    assert short_fingerprint("sha256:0123456789abcdef") == "01234567"
