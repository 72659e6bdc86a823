"""Two real hosts of one user on one configuration, with an untrusted server below each that tries to approve itself:
through the other host, through its own, with the command line, and after killing its host."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from host.audit.records import files
from host.cli.admin_client import find_hosts
from tests.real.running import BARE_PYTHON, COLONNADE, SERVERS, colonnade, pid_of, serving, until, write_config

TOOLS = 5


def configured(folder: Path, state: Path, out: Path, other: Path) -> Path:
    """A configuration in a new folder; what its host keeps stands beside it."""
    folder.mkdir()
    file = folder / "colonnade.yaml"
    words = [*BARE_PYTHON, str(SERVERS / "approver.py"), str(state), str(out), COLONNADE, str(file), str(other)]
    return write_config(
        folder, {"evil": {"command": words, "trust": "untrusted", "sandbox": "off", "consent": {"tools": "allow"}}}
    )


def told(out: Path, ways: int) -> dict[str, Any]:
    """What the attempts were answered, once there are so many."""
    found = until(lambda: len(names := sorted(out.glob("*.json"))) >= ways and names, f"{ways} attempts in {out}")
    return {path.name: json.loads(path.read_text()) for path in found}


def recorded(state: Path, kind: str) -> list[dict[str, Any]]:
    lines = [line for path in files(state / "audit") for line in path.read_bytes().splitlines()]
    return [record for line in lines if (record := json.loads(line))["kind"] == kind]


def shown(state: Path) -> list[list[str]]:
    """The tools that each running host shows."""
    hosts = [host.get("state") for host in find_hosts(state)]
    return [[entry["name"] for entry in host["catalog"] if entry["shown"]] for host in hosts]


def test_no_server_approves_itself_through_any_host_of_its_user(tmp_path: Path) -> None:
    state, out = tmp_path / "shared" / "state", tmp_path / "out"
    out.mkdir()
    forgotten = tmp_path / "forgotten.yaml"  # of a configuration of which no host runs
    file = configured(tmp_path / "shared", state, out, forgotten)
    forgotten.write_text(file.read_text())
    apart = configured(tmp_path / "apart", state, out, forgotten)  # this one keeps its state elsewhere
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(each, "evil")) for each in (file, file, apart)]
        until(lambda: all(len(host.get("state")["held"]) == TOOLS for host in find_hosts(state)), "all is held back")
        assert len(find_hosts(state)) == 2
        (out / "go").touch()
        for name, said in told(out, 3 * (3 * 2 + 2)).items():  # three servers; three ways to two sockets, two commands
            words = said["error"] if "error" in said else said["err"]
            assert "processes that a Colonnade host started" in words, (name, said)
            assert said.get("code", 1) == 1, (name, said)
        assert shown(state) == [[], []]
        assert recorded(state, "approve") == []
        servers = {pid_of(host.process.pid, "approver.py") for host in hosts}
        refused = recorded(state, "refused")
        assert servers <= {record["peer"]["pid"] for record in refused}
        assert all(record["peer"]["name"] and record["peer"]["uid"] == os.geteuid() for record in refused)
        assert any("python" in record["peer"]["exe"] for record in refused)


def test_a_server_that_killed_its_host_does_not_approve_itself_through_another(tmp_path: Path) -> None:
    state, out = tmp_path / "shared" / "state", tmp_path / "out"
    out.mkdir()
    file = configured(tmp_path / "shared", state, out, tmp_path / "forgotten.yaml")
    with serving(file, "evil", stop=False) as one:
        (out / "go").touch()
        told(out, 3 + 2)
        for path in out.iterdir():
            path.unlink()
        with serving(file, "evil") as other:
            until(lambda: all(len(host.get("state")["held"]) == TOOLS for host in find_hosts(state)), "it is held")
            (out / "kill").touch()  # the server below `other` still waits for `go`
            assert one.process.wait(20) == -signal.SIGKILL
            (said,) = told(out, 1).values()
            assert "processes that a Colonnade host started" in said["error"]
            assert shown(state) == [[]]
            assert recorded(state, "refused")[-1]["peer"]["name"].startswith("python")
            assert other.process.poll() is None


def test_a_person_in_a_terminal_still_decides_for_all_hosts_and_is_named(tmp_path: Path) -> None:
    state, out = tmp_path / "shared" / "state", tmp_path / "out"
    out.mkdir()
    file = configured(tmp_path / "shared", state, out, tmp_path / "shared" / "colonnade.yaml")
    with serving(file, "evil"), serving(file, "evil"):
        until(lambda: all(len(host.get("state")["held"]) == TOOLS for host in find_hosts(state)), "it is held")
        approve = ["definitions", "approve", "--server", "evil", "--yes", "--config", str(file)]
        done = colonnade(*approve, COLONNADE_STATE=str(state))
        assert done.returncode == 0, done.stderr
        until(lambda: [len(names) for names in shown(state)] == [TOOLS, TOOLS], "both hosts show all")
        approvals = recorded(state, "approve")
        assert len(approvals) == TOOLS
        assert {record["peer"]["name"] for record in approvals} == {"colonnade"}
        assert recorded(state, "refused") == []
    # Where no host runs, the files are decided about, and the record names the command as well: `pins` is its alias.
    done = colonnade("pins", "revoke", "evil", "tool", "tool1", "--config", str(file), COLONNADE_STATE=str(state))
    assert done.returncode == 0, done.stderr
    (record,) = recorded(state, "unapprove")
    assert record["peer"]["name"] == "colonnade"
