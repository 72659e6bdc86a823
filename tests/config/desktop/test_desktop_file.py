"""A host's file as a whole: ids, restrictions beside the servers, and parts of a large file."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

import config
from config import ConfigError
from config.desktop.desktop_file import DesktopFile
from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, wanted_of
from config.desktop.entry import CannotUse, ServerEntry, off_if, program, renamed, same
from config.read import read


def restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    if context.at("switches").get("unclear") == "true":
        raise CannotUse("the switches are unclear")
    for name, entry in entries.items():
        if context.at("switches").get(name) == "false":
            entry.switch_off()
        entry.needs_approval = context.project is not None


HOST = DesktopHost(
    name="app",
    title="App",
    files=(HostFile("~/.app/mcp.json"), HostFile(".app/mcp.json", is_project=True)),
    servers=("mcp", "servers"),
    other_keys=(("switches",),),
    rules={"command": program, "program": renamed("command"), "args": same, "cwd": same, "off": off_if("true")},
    restrict=restrict,
)


def opened(folder: Path, servers: object, place: str = "mcp.json", **more: object) -> DesktopFile:
    file = folder / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"mcp": {"servers": servers}, **more}))
    return DesktopFile(HOST, file, read(file, lambda root: wanted_of(HOST)), folder / "home")


def test_ids_and_problems(tmp_path: Path) -> None:
    """Each server has an id of its own; what cannot be used is not in the file in our form."""
    made = opened(
        tmp_path, {"My App": {"command": "x"}, "my-app": {"command": "y"}, "日本": {"command": "z"}, "d": "x"}
    )
    assert [entry.name for entry in made.entries.values()] == ["My App", "my-app", "日本", "d"]
    assert made.root == {"servers": {"my-app": {"command": "x", "args": []}}}
    assert [bool(entry.problems) for entry in made.entries.values()] == [False, True, True, True]
    assert made.notices == ["read as an App file", "My App is served as my-app"]


def test_commands_that_are_none(tmp_path: Path) -> None:
    """The text of the file is judged, wherever relative paths start; a reference may hold anything."""
    servers = {
        "args": {"command": "npx -y @scope/server"},
        "off": {"command": "npx -y @scope/server", "off": True},
        "path": {"command": "npx", "args": ["C:\\Users\\kim"]},
        "list": {"command": ["npx -y server"]},
        "tools": {"command": "x", "tools": ["read"], "transportType": "sse"},
    }
    made = opened(tmp_path, servers, "home/.app/mcp.json")
    assert [bool(entry.problems) for entry in made.entries.values()] == [True, False, False, True, True]
    assert '"args": ["-y", "@scope/server"]' in made.entries["args"].problems[0]
    assert made.notices[-1] == "path: an argument of it is a path of Windows, which this machine does not have"
    assert made.entries["tools"].problems == [
        'its key "transportType" is "sse", which needs a url, and it has a command'
    ]
    assert made.entries["tools"].consent_for_tools() == {"allow": ["read"]}


def test_places_in_the_file(tmp_path: Path) -> None:
    """A key in our form is found where the host has it."""
    made = opened(tmp_path, {"A": {"program": "x", "args": ["y"]}})
    assert made.written(("servers", "a", "command")) == ("mcp", "servers", "A", "program")
    assert made.written(("servers", "a", "args", 0)) == ("mcp", "servers", "A", "args", 0)
    assert made.written(("servers", "a")) == ("mcp", "servers", "A")
    assert made.written(("listen",)) == ("listen",)


def test_restrictions_beside_the_servers(tmp_path: Path) -> None:
    made = opened(tmp_path, {"a": {"command": "x"}, "b": {"command": "x"}}, switches={"a": False})
    assert [entry.is_off for entry in made.entries.values()] == [True, False]
    assert made.root["servers"]["a"]["disabled"] == "true"  # type: ignore[index]


def test_restrictions_that_are_unclear_stop_all(tmp_path: Path) -> None:
    made = opened(tmp_path, {"a": {"command": "x"}, "b": {"command": "x"}}, switches={"unclear": True})
    assert [entry.problems for entry in made.entries.values()] == [["the switches are unclear"]] * 2
    assert made.root == {"servers": {}}


def test_relative_paths_start_from_the_project(tmp_path: Path) -> None:
    made = opened(tmp_path, {"a": {"command": "./x", "cwd": "sub"}, "b": {"command": "x"}}, "shop/.app/mcp.json")
    shop = str(tmp_path / "shop")
    assert made.root["servers"] == {
        "a": {"command": f"{shop}/x", "args": [], "cwd": f"{shop}/sub"},
        "b": {"command": "x", "args": [], "cwd": shop},
    }


def test_a_project_that_is_not_approved(tmp_path: Path) -> None:
    """What is off is not named."""
    made = opened(tmp_path, {"a": {"command": "x"}, "b": {"command": "x", "off": True}}, "shop/.app/mcp.json")
    assert made.notices[1].startswith("no file says that App may start a of this project")


@pytest.mark.parametrize("servers", [[], "x"])
def test_servers_that_are_no_map(tmp_path: Path, servers: object) -> None:
    with pytest.raises(ConfigError, match=r"mcp\.servers: expected a map of servers"):
        opened(tmp_path, servers)


def test_wanted_parts_of_a_large_file(tmp_path: Path) -> None:
    """The rest may be large and may hold a key twice; reading takes little of what parsing it as tokens would."""
    history = [{"text": "x" * 200, "n": n} for n in range(20_000)]
    before = time.process_time()
    made = opened(tmp_path, {"a": {"command": "x"}}, history=history, switches={"a": False})
    assert time.process_time() - before < 5
    assert made.entries["a"].is_off
    assert "history" not in made.root


def test_a_key_that_stands_twice_in_a_wanted_part(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text('{"mcp": {"servers": {"a": {"off": true, "off": false}}}, "rest": {"b": 1, "b": 2}}')
    document = read(file, lambda root: wanted_of(HOST))
    assert [problem.text for problem in document.problems] == ['duplicate key "off" (first at 1:28); remove one']


def test_the_digest_is_of_what_counts(tmp_path: Path) -> None:
    """Not of what a host writes beside it, nor of white space."""
    servers: dict[str, object] = {"a": {"command": "x"}, "b": {"command": "y"}}
    first = opened(tmp_path, servers).digest
    assert opened(tmp_path, servers, history=["much"]).digest == first
    others: list[dict[str, object]] = [
        {"a": {"command": "x"}},
        {"a": {"command": "x"}, "b": {"command": "z"}},
        {"a": {"command": "x"}, "b": {"command": "y", "off": True}},
        {"a": {"command": "x"}, "b": {"command": "y", "unknown": True}},
        {"a": {"command": "x"}, "b": {"command": "y", "unknown": True, "off": True}},
    ]
    digests = {opened(tmp_path, other).digest for other in others}
    assert len(digests) == len(others)
    assert first not in digests
    assert opened(tmp_path, servers, switches={"a": False}).digest != first


def test_what_is_empty_and_of_the_other_kind_is_left_out(tmp_path: Path) -> None:
    """As forms of hosts write it. What is not empty is an error."""
    servers: dict[str, object] = {
        "local": {"command": "x", "url": "", "headers": {}, "env": {}},
        "remote": {"url": "https://h/", "command": None, "args": [], "headers": {}},
        "both": {"command": "x", "url": "https://h/"},
        "neither": {"command": "", "args": []},
    }
    made = opened(tmp_path, servers)
    kept = [set(entry.values) for entry in made.entries.values()]
    assert kept == [{"command", "env"}, {"url", "headers"}, {"command", "url"}, {"command", "args"}]


def test_the_key_is_named_under_which_a_host_reads_no_servers(tmp_path: Path) -> None:
    file = tmp_path / ".mcp.json"
    file.write_text('{"servers": {"a": {"type": "stdio", "command": "x"}}}')
    assert config.load(file, {}, home=tmp_path).notices[1] == (
        "it has no mcpServers; Claude Code reads none under servers"
    )
