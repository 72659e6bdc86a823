"""A real host and real commands whose database cannot grow any more: what was confirmed before counts, what would need
to be remembered is refused, and with room again it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host.cli.admin_client import AdminClientError, RunningHost, find_hosts
from tests.kit.servers.offering import offer
from tests.real.running import BARE_PYTHON, SERVERS, colonnade, full_disk, serving, until, write_config

LONG = "x" * 40_000
"""Does not fit into the pages that a database of a few definitions has."""


def tool(name: str, description: str = "") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


def shown(host: RunningHost) -> set[str]:
    return {entry["name"] for entry in host.get("state")["catalog"] if entry["shown"]}


def held(host: RunningHost) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in host.get("state")["held"]}


def decide(host: RunningHost, decision: str, name: str, fingerprint: str = "") -> None:
    host.post("definitions/decide", server="strict", kind="tool", name=name, fingerprint=fingerprint, decision=decision)


def test_a_full_disk_refuses_what_would_need_to_be_remembered_and_loses_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    offers = {"strict": tmp_path / "strict.json", "std": tmp_path / "std.json"}
    servers = {id: {"command": [*BARE_PYTHON, str(SERVERS / "offering.py"), str(of)]} for id, of in offers.items()}
    file = write_config(tmp_path, {**servers, "strict": {**servers["strict"], "trust": "untrusted", "sandbox": "off"}})
    offer(offers["strict"], tools=[tool("kept"), tool("doomed"), tool("more")])
    offer(offers["std"], tools=[tool("seen")])
    with serving(file, "strict", "std") as running:
        (host,) = find_hosts(state)
        until(lambda: set(held(host)) == {"kept", "doomed", "more"}, "all of the untrusted server waits")
        for name, fingerprint in [(name, each["fingerprint"]) for name, each in held(host).items() if name != "more"]:
            decide(host, "approve", name, fingerprint)
        assert shown(host) == {"kept", "doomed", "seen"}

        with full_disk(running.process.pid, state / "colonnade.db"):
            offer(offers["std"], tools=[tool("seen"), tool("late", LONG)])
            until(lambda: host.get("state")["problems"], "the host says that something is wrong")
            (problem,) = host.get("state")["problems"]
            assert "new offers of servers are held back" in problem
            assert shown(host) == {"kept", "doomed", "seen"}, "what is not remembered is not taken for seen"
            offer(offers["strict"], tools=[tool("kept"), tool("doomed"), tool("more", LONG)])
            until(lambda: len(held(host)["more"]["text"]) > len(LONG), "the other definition is known")
            with pytest.raises(AdminClientError):
                decide(host, "approve", "more", held(host)["more"]["fingerprint"])
            done = colonnade(
                "definitions",
                "approve",
                "--server",
                "strict",
                "--yes",
                "--config",
                str(file),
                COLONNADE_STATE=str(state),
            )
            assert (done.returncode, "cannot be written down" in done.stderr) == (1, True), done.stderr
            assert shown(host) == {"kept", "doomed", "seen"}
            assert running.process.poll() is None

        offer(offers["std"], tools=[tool("late", LONG), tool("seen")])
        until(lambda: shown(host) == {"kept", "doomed", "seen", "late"}, "with room again, it is remembered and shown")
        until(lambda: host.get("state")["problems"] == [], "nothing is left unwritten")
        decide(host, "revoke", "doomed")
    with serving(file, "strict", "std"):
        (host,) = find_hosts(state)
        until(lambda: set(held(host)) == {"doomed", "more"}, "what was confirmed stands as it stood")
        assert shown(host) == {"kept", "seen", "late"}
