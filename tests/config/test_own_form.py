"""The form of a file, told without the modules of desktop hosts, which are not imported for a file of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from config.desktop.hosts import HOSTS
from config.own_form import has_own_servers, may_be_at_a_host

SERVERS = "servers:\n  time: {command: [uvx, mcp-server-time]}\n"
LOAD = """
import sys
from config import load
load(sys.argv[1], {"PATH": ""})
print(sorted(name for name in sys.modules if name.startswith(("config.desktop", "config.toml", "dotenv", "tomllib"))))
"""


@pytest.mark.slow
def test_no_module_of_hosts_is_imported_for_a_file_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text(SERVERS)
    made = subprocess.run([sys.executable, "-c", LOAD, file], check=True, capture_output=True, text=True)
    assert made.stdout == "[]\n"


def test_every_place_of_a_host_may_be_one(tmp_path: Path) -> None:
    for host in HOSTS:
        for file in host.files:
            for platform in ("linux", "darwin"):
                assert may_be_at_a_host(file.path(tmp_path, tmp_path, {}, platform))


def test_a_file_of_ours_is_at_no_place_of_a_host(tmp_path: Path) -> None:
    assert not may_be_at_a_host(tmp_path / "colonnade.yaml")
    assert not may_be_at_a_host(tmp_path / "goose.yml")
    (tmp_path / "linked.yaml").symlink_to(tmp_path / ".continue" / "config.yaml")
    assert may_be_at_a_host(tmp_path / "linked.yaml")


@pytest.mark.parametrize(
    ("root", "own"),
    [
        ({"servers": {"a": {"command": "x"}}}, True),
        ({"servers": {"a": {"transport": {"url": "x"}}}}, True),
        ({"servers": {"a": {"args": []}}}, False),
        ({"servers": [{"command": "x"}]}, False),
        ({"servers": {"a": {"command": "x"}}, "mcpServers": {"b": {}}}, False),
        ({"servers": {"a": {"command": "x"}}, "mcpServers": {}}, True),
    ],
)
def test_servers_in_our_form(root: dict[str, object], own: bool) -> None:
    assert has_own_servers(root) is own
