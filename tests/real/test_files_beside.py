"""A desktop host's file that is served, while the host's other files change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.saves import replace

from .clients import HandClient, by_hand
from .running import BARE_PYTHON, SERVERS, Running, serving, until


def told(host: Running) -> list[str]:
    return [line for line in host.said if line.strip().startswith("configuration ")]


async def saved(host: Running, file: Path, values: object, *says: str) -> None:
    """Save a file, and wait for what the host says to that."""
    before = len(told(host))
    file.parent.mkdir(exist_ok=True)
    replace(file, json.dumps(values))
    lines = await trio.to_thread.run_sync(until, lambda: told(host)[before:], f"it says something; {host.errors}")
    assert all(each in lines[0] for each in says), lines


async def called(client: HandClient, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = await client.ask("tools/call", {"name": name, "arguments": {"n": 1}}, name)
    return answer


async def test_a_restriction_beside_the_served_file_holds_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is not there before. The end of the restriction waits for a person."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home, project = tmp_path / "home", tmp_path / "shop"
    home.mkdir()
    project.mkdir()
    state, served, settings = home / ".claude.json", project / ".mcp.json", project / ".claude" / "settings.json"
    log = tmp_path / "a.log"
    server = {"command": BARE_PYTHON[0], "args": [*BARE_PYTHON[1:], str(SERVERS / "recorder.py"), str(log)]}
    served.write_text(json.dumps({"mcpServers": {"a": server}}))
    with serving(served, "a", options=["--port", "0"]) as host:
        async with by_hand(host.url) as client:
            assert "result" in await called(client, "a__echo")
            denies = {"permissions": {"deny": ["mcp__a__echo"]}}
            await saved(host, settings, denies, "a has new rules or limits")
            assert "error" in await called(client, "a__echo")
            assert "result" in await called(client, "a__odd")
            # Claude Code keeps other things in this file, and writes it all the time.
            before = len(told(host))
            for number in range(20):
                replace(state, json.dumps({"numStartups": number, "projects": {str(served.parent): {}}}))
                await trio.sleep(0.2)  # as long as another program takes between two writes
            await saved(host, settings, {}, "a: the rules for tools permit more")
            assert len(told(host)) == before + 1
            assert "error" in await called(client, "a__echo")
            hooks = {"hooks": {"PreToolUse": [{"matcher": "mcp__.*", "hooks": []}]}}
            await saved(host, settings, {**denies, **hooks}, "a restarts")
            await trio.to_thread.run_sync(until, lambda: host.status()["a"]["state"] == "failed", "it is stopped")
            assert "a hook of Claude Code" in host.status()["a"]["detail"]
            answer = await called(client, "a__odd")
            assert "error" in answer or answer["result"]["isError"]
            await saved(host, settings, {}, "a: it can be used again")
            assert host.status()["a"]["state"] == "failed"
