"""`npx` and `uvx` in a sandbox, by a real host: what is installed waits for a person, and runs without a network."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.kernel import needs_namespaces
from tests.kit.registry import SERVER_OF_NODE, PackageRegistry, npm_archive, package_registry
from tests.real.running import BIN, Running, _run, beside, serving, until, write_config

UVX = shutil.which("uvx", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    needs_namespaces,
    pytest.mark.skipif(shutil.which("npx") is None or UVX is None, reason="npx or uvx is not there"),
]
SERVERS = {"node": ["npx", "-y", "of-node"], "python": [UVX, "of-python"]}


@pytest.fixture
def registry() -> Iterator[PackageRegistry]:
    with package_registry() as made:
        yield made


def written(folder: Path, registry: PackageRegistry, **more: object) -> Path:
    servers = {
        name: {"command": command, "env": registry.environment, "sandbox": "strict", **more}
        for name, command in SERVERS.items()
    }
    return write_config(folder, servers)


def said(file: Path, *words: str) -> str:
    done = _run([*words, "--config", str(file)], None, beside(file))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def approve(file: Path) -> None:
    for server in SERVERS:
        said(file, "definitions", "approve", "--yes", server)


def is_in(host: Running, state: str) -> bool:
    return all(row["state"] == state for row in host.status().values())


def call(file: Path, tool: str, arguments: str = "{}") -> str:
    return said(file, "call", tool, arguments).strip()


def test_what_is_installed_waits_for_a_person_and_runs_without_a_network(
    tmp_path: Path, registry: PackageRegistry
) -> None:
    file = written(tmp_path, registry)
    with serving(file) as host:
        until(lambda: is_in(host, "held"), "both are held")
        assert not registry.asked, "nothing is asked of the registry before a person has approved it"
        shown = said(file, "definitions", "--show")
        assert f"of-node from 127.0.0.1:{registry.port} by npm" in shown
        assert f"of-python from 127.0.0.1:{registry.port} by uv" in shown
        refused = _run(["install", "node", "--config", str(file)], None, beside(file))
        assert refused.returncode == 1
        assert "nothing is installed for node yet: once a person has approved that" in refused.stderr
        approve(file)
        host.wait_ready(*SERVERS)
        explained = said(file, "explain", "--server", "node")
        assert "npx: its packages are installed once a person has approved that" in explained
        assert "installed: of-node 1.0.0 (sha256:" in explained
        assert "1.0.0" in call(file, "node__version")
        assert "1.0" in call(file, "python__version")
    assert registry.connections
    registry.connections = 0
    with serving(file, *SERVERS):
        assert "1.0.0" in call(file, "node__version")
    assert registry.connections == 0, "a second start reaches no network"


def test_another_version_waits_for_a_person(tmp_path: Path, registry: PackageRegistry) -> None:
    file = written(tmp_path, registry)
    with serving(file) as host:
        until(lambda: is_in(host, "held"), "both are held")
        approve(file)
        host.wait_ready(*SERVERS)
        assert "node: installed again, as it was: of-node 1.0.0 (sha256:" in said(file, "install", "node")
        until(lambda: is_in(host, "ready"), "both are ready again")
        newer = npm_archive("of-node", "1.1.0", {"bin/server.js": SERVER_OF_NODE})
        registry.npm["of-node"]["1.1.0"] = newer
        assert "1.0.0" in call(file, "node__version"), "a newer one is not installed by itself"
        done = said(file, "install", "node")
        assert "installed: of-node 1.1.0 (sha256:" in done
        assert "before: of-node 1.0.0 (sha256:" in done
        until(lambda: host.status()["node"]["state"] == "held", "the other version is held")
        shown = said(file, "definitions", "--show")
        assert '"installed": "of-node 1.' in shown
        assert "changed" in shown
        said(file, "definitions", "approve", "--yes", "node")
        until(lambda: is_in(host, "ready"), "it is ready once it is approved")
        assert "1.1.0" in call(file, "node__version")


def test_a_changed_file_is_not_run_and_another_package_waits(tmp_path: Path, registry: PackageRegistry) -> None:
    file = written(tmp_path, registry, trust="trusted")
    with serving(file, *SERVERS):
        pass
    (script,) = (tmp_path / "state").glob("configs/*/sandbox/node/packages/*/npm/node_modules/of-node/bin/server.js")
    script.write_text(script.read_text().replace("version", "vision"))
    with serving(file, "python") as host:
        until(lambda: host.status()["node"]["state"] == "failed", "it is not started")
        assert "its packages are not what was installed: colonnade install node" in host.status()["node"]["detail"]
        said(file, "install", "node")
        until(lambda: is_in(host, "ready"), "it runs once it is installed again")
        registry.npm["other"] = {"1.0.0": npm_archive("other", "1.0.0", {"server.js": SERVER_OF_NODE})}
        changed = json.loads(file.read_text())
        changed["servers"]["node"] |= {"command": ["npx", "other"], "trust": "standard"}
        file.write_text(json.dumps(changed))
        said(file, "reload", "--yes")
        until(lambda: host.status()["node"]["state"] == "held", "the other package waits")


def test_a_package_that_is_not_there(tmp_path: Path, registry: PackageRegistry) -> None:
    registry.npm.clear()
    registry.python.clear()
    file = written(tmp_path, registry, trust="trusted")
    with serving(file) as host:
        until(lambda: is_in(host, "failed"), "neither is installed")
        assert {row["detail"].partition(" from ")[0] for row in host.status().values()} == {
            "npm could not install of-node",
            "uv could not install of-python",
        }
        for row in host.status().values():
            assert "correct the name of the package; then colonnade restart " in row["detail"]


def test_published_packages_do_what_they_do_without_a_sandbox(tmp_path: Path) -> None:
    """From the registries that this machine reaches."""
    package, time = "@modelcontextprotocol/server-sequential-thinking@2026.8.31", "mcp-server-time==2026.10.19"
    plain = {"thinking": ["npx", "-y", package], "time": [UVX, "--from", time, "mcp-server-time"]}
    servers = {
        **{name: {"command": words} for name, words in plain.items()},
        **{f"{name}-s": {"command": words, "sandbox": "strict", "trust": "trusted"} for name, words in plain.items()},
    }
    calls = {
        "thinking": '{"thought": "a", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}',
        "time": '{"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}',
    }
    tools = {"thinking": "sequentialthinking", "time": "convert_time"}
    file = write_config(tmp_path, servers)
    with serving(file) as host:
        until(lambda: is_in(host, "ready"), "all four are ready", 120)
        for name in plain:
            listed = [json.loads(said(file, "list", id, "--json"))["tools"] for id in (name, f"{name}-s")]
            for tool in (tool for tools in listed for tool in tools):
                del tool["name"]
            assert listed[0]
            assert listed[0] == listed[1]
            assert call(file, f"{name}__{tools[name]}", calls[name]) == call(
                file, f"{name}-s__{tools[name]}", calls[name]
            )
