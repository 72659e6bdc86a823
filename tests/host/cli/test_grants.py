"""The command `grants` on what a stopped host left."""

from __future__ import annotations

import pytest

from config import Channel
from host.cli.exit_codes import DONE, FAILED, WRONG
from host.policy.gate import Gate
from host.policy.grants import Grant, Scope, new_id
from host.subject import Item, Subject
from tests.kit.awaited import awaited

from .conftest import Stopped


def granted(gate: Gate) -> str:
    subject = Subject(Item("gh", "tool", "create"), None, None, "sha256:1", "", "tools.ask: create")
    grant = Grant(new_id(), subject, (), Scope.ALWAYS, 0.0, None, Channel.CONSOLE.value)
    awaited(gate.authorizer.grants.add(grant))
    return grant.id


def test_grants_are_listed_and_revoked(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("grants") == DONE
    assert capsys.readouterr().out == "There are no grants.\n"
    id = str(stopped.inside(granted))
    assert stopped.run("grants") == DONE
    assert id in capsys.readouterr().out
    assert stopped.run("grants", "revoke", id) == DONE
    assert stopped.run("grants", "revoke", id, "feed\x1b") == FAILED
    assert "\x1b" not in capsys.readouterr().err
    assert stopped.inside(lambda gate: gate.authorizer.grants.all()) == []
    assert stopped.run("grants", "revoke") == WRONG


def test_looking_takes_nothing_back_though_the_configuration_cannot_be_read(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    id = str(stopped.inside(granted))
    kept = stopped.file.read_text()
    stopped.file.write_text("servers: [")
    assert stopped.run("grants") == DONE
    assert stopped.run("definitions") == DONE
    stopped.file.write_text(kept)
    assert stopped.run("grants") == DONE
    assert id in capsys.readouterr().out.splitlines()[-1]
