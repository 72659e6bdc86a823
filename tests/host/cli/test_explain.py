"""The command `explain` on what a stopped host left."""

from __future__ import annotations

import json

import pytest

from host.cli.exit_codes import FAILED, VERDICT_ASK, VERDICT_DENY, WRONG
from host.cli.explain import short_fingerprint

from .conftest import Stopped


@pytest.mark.parametrize(("tool", "code"), [("get", VERDICT_DENY), ("create", VERDICT_DENY), ("wipe", VERDICT_DENY)])
def test_a_definition_that_nobody_approved_is_denied_whatever_its_rule(
    stopped: Stopped, tool: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an untrusted server."""
    assert stopped.run("explain", "--server", "gh", "--tool", tool) == code
    assert "tried:" in capsys.readouterr().out


def test_a_call_is_explained(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    assert stopped.run("explain", "--server", "gh", "--tool", "create", "--args", '{"a": 1}', "--json") == VERDICT_ASK
    explanation = json.loads(capsys.readouterr().out)
    assert (explanation["verdict"], explanation["rule"]) == ("ask", "tools.ask: create")
    assert explanation["standing"] == "approved"
    assert stopped.run("explain", "--server", "gh", "--tool", "wipe") == VERDICT_DENY
    assert "does not exist for any client" in capsys.readouterr().out
    assert stopped.run("explain", "--server", "nowhere", "--tool", "x") == FAILED


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
