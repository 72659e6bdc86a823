"""An untrusted program without the key `sandbox` below real hosts: on a new state, and on one of a former version."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters

from host.cli.admin_client import find_hosts
from tests.kit.kernel import needs_namespaces
from tests.kit.servers.offering import offer
from tests.real import running
from tests.real.clients import sdk, text_of
from tests.real.running import BARE_PYTHON, COLONNADE, SERVERS, beside, colonnade, serving, until, write_config

pytestmark = needs_namespaces
MARK = "offering.py"


def configured(folder: Path, args: Sequence[str] = (), **keys: object) -> Path:
    offer(folder / "offered.json", tools=[{"name": "t", "inputSchema": {}}])
    command = [*BARE_PYTHON, str(SERVERS / MARK), str(folder / "offered.json"), *args]
    return write_config(folder, {"s": {"command": command, "trust": "untrusted", "consent": {}, **keys}})


def command(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return colonnade(*words, "--config", str(file), COLONNADE_STATE=str(file.parent / "state"))


def row(file: Path) -> dict[str, Any]:
    (host,) = until(lambda: find_hosts(file.parent / "state"), "a host runs")
    (found,) = host.get("state")["servers"]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """A configuration whose state is of a version that started its program unconfined."""
    with serving(configured(tmp_path, sandbox="off"), "s"):
        pass
    with closing(sqlite3.connect(tmp_path / "state" / "colonnade.db")) as other, other:
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("PRAGMA user_version = 5")
    return configured(tmp_path)


async def test_a_new_one_is_confined_over_http_and_over_stdio(tmp_path: Path) -> None:
    file = configured(tmp_path)
    with serving(file, "s"):
        assert row(file)["sandbox"].endswith("(strict, from trust: untrusted)")
        assert "held by namespaces" in command(file, "sandbox", "s").stdout
        assert "Sandbox: its own files; network none" in command(file, "explain", "--server", "s").stdout
        assert command(file, "definitions", "approve", "s", "--yes").returncode == 0
        assert command(file, "sandbox", "s", "off").returncode != 0
    words = ["serve", "--stdio", "--own", str(file)]
    async with sdk(StdioServerParameters(command=COLONNADE, args=words, env=beside(file))) as client:
        assert await client.names() == ["s__t"]
        until(lambda: "held by namespaces" in row(file)["sandbox"], "it is started")


async def test_what_a_confined_program_is_refused_and_says_in_a_result_alone_is_told(tmp_path: Path) -> None:
    """As `server-filesystem` does. A call that succeeds may contain the same words."""
    said = f"EROFS: read-only file system, open '{tmp_path}"
    results = {
        name: {"content": [{"type": "text", "text": f"{said}/{name}'"}], "isError": name == "failing"}
        for name in ("fine", "failing")
    }
    file = configured(tmp_path, consent={"tools": {"default": "allow"}})
    tools = [{"name": name, "inputSchema": {}} for name in results]
    calls = {name: {"result": result} for name, result in results.items()}
    offer(tmp_path / "offered.json", tools=tools, calls=calls)
    with serving(file, "s") as host:
        assert command(file, "definitions", "approve", "s", "--yes").returncode == 0
        async with sdk(host.url) as client:
            for name in results:
                assert said in text_of(await client.client.call_tool(f"s__{name}", {}))
        told = f'may have been refused to write "{tmp_path}/'
        until(lambda: f'{told}failing"' in command(file, "logs", "s").stdout, "it is told")
        assert f"{told}fine" not in command(file, "logs", "s").stdout


def test_one_of_a_former_version_runs_as_before_until_a_person_has_it_confined(former: Path) -> None:
    with serving(former, "s"):
        found = row(former)
        assert (found["sandbox_open"], found["sandbox"][:24]) == (True, "off: it runs as your use")
        assert "choose colonnade sandbox s strict, or off" in " ".join(found["warnings"])
        assert "as before, until you choose" in command(former, "sandbox", "s").stdout
        assert command(former, "sandbox", "s", "strict").stdout == "s: it is confined.\n"
        until(lambda: row(former)["state"] == "ready" and "held by" in row(former)["sandbox"], "it is confined")
        assert not row(former)["sandbox_open"]
    with serving(former, "s"):
        assert "held by" in row(former)["sandbox"]


def test_a_person_keeps_it_unconfined_also_where_no_host_runs(former: Path) -> None:
    assert command(former, "sandbox", "s", "off").stdout == "s: it runs unconfined, until its command is another one.\n"
    with serving(former, "s"):
        found = row(former)
        assert (found["sandbox_open"], found["warnings"]) == (False, [])
        assert found["sandbox"] == "off: it runs as your user, as a person chose for this command"
        configured(former.parent, start_timeout="50s")
        assert command(former, "reload", "--yes").returncode == 0
        assert row(former)["sandbox"] == found["sandbox"]
        configured(former.parent, sandbox="strict")
        assert command(former, "reload", "--yes").returncode == 0
        until(lambda: "held by" in row(former)["sandbox"], "the file says so")
        configured(former.parent)
        assert command(former, "reload", "--yes").returncode == 0
        assert row(former)["sandbox"].endswith("(strict, from trust: untrusted)")


def test_one_that_becomes_untrusted_while_it_runs_is_confined_from_then_on(tmp_path: Path) -> None:
    file = configured(tmp_path, trust="standard")
    with serving(file, "s"):
        assert row(file)["sandbox"] == "off: it runs as your user"
        configured(tmp_path)
        assert command(file, "reload", "--yes").returncode == 0
        until(lambda: "held by" in row(file)["sandbox"], "it is confined")
        configured(tmp_path, trust="standard")
        assert command(file, "reload", "--yes").returncode == 0
        assert until(lambda: row(file)["sandbox"], "it has a row") == "off: it runs as your user"


def test_where_the_system_refuses_namespaces_a_new_one_is_not_started_and_a_former_one_is(
    former: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Ubuntu, and in most containers. It says what to do, and what the file then says is done."""
    here = former.parent
    refusing = here / "refusing"
    words = f"{sys.executable} -m tests.sandbox.refusing namespaces"
    refusing.write_text(f'#!/bin/sh\nexec {words} {COLONNADE} "$@"\n')
    refusing.chmod(0o755)
    monkeypatch.setattr(running, "COLONNADE", str(refusing))
    with serving(former, "s"):
        assert row(former)["sandbox_open"]
        configured(here, args=["new"])
        assert command(former, "reload", "--yes").returncode == 0
        failed = until(lambda: (found := row(former))["state"] == "failed" and found, "it is refused")
        assert "it is not trusted, and cannot be confined (user namespaces" in failed["detail"]
        assert ", or write sandbox: off to have it started as your user" in failed["detail"]
        configured(here, args=["new"], sandbox="off")
        assert command(former, "reload", "--yes").returncode == 0
        until(lambda: row(former)["state"] == "ready", "it is started as the file says")
