"""Published servers that need another line: the rows of the file, whom they are about, and what they change."""

from __future__ import annotations

import datetime
import re
from dataclasses import replace
from pathlib import Path

import pytest

from config import known_servers, load
from config.document import Plain
from config.known_servers import KNOWN, KnownServer, advise, as_advised, package_in
from config.yaml_text import entries

MEMORY = "@modelcontextprotocol/server-memory"
LOCALHOST = "the server says: Access is only allowed at localhost:8931"
ONE_AT_ONCE = {"limits": {"concurrent": Plain("1")}}


def advised(server: dict[str, object], **more: object) -> list[tuple[str, str]]:
    return [(each.row.id, each.line) for each in advise(server, **more)]  # type: ignore[arg-type]


def test_every_row_says_what_it_is_about_and_where_it_is_from() -> None:
    assert len({row.id for row in KNOWN}) == len(KNOWN)
    page = (Path(__file__).parents[2] / "docs" / "clients-and-servers.md").read_text("utf-8")
    for row in KNOWN:
        assert re.fullmatch(r"[a-z0-9-]+", row.id)
        assert row.packages
        for package, version in row.packages.items():
            registry, _, name = package.partition(":")
            assert registry in ("npm", "pypi")
            assert package_in(["npx" if registry == "npm" else "uvx", name]) == package
            assert re.match(r"\d", version)
            assert f"`{name}` {version}" in page
        assert row.advice.rstrip(".") == row.advice != ""
        assert len(row.change) == 1
        assert row.source
        assert type(row.date) is datetime.date
        assert all(len(text) > 20 for text in row.says)


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (["npx", "-y", MEMORY], f"npm:{MEMORY}"),
        (["/usr/bin/npx", "--yes", f"{MEMORY}@2026.8.31", "x"], f"npm:{MEMORY}"),
        (["npx", "-p", f"{MEMORY}@latest", "mcp-server-memory"], f"npm:{MEMORY}"),
        (["npm", "exec", f"--package={MEMORY}", "--", "mcp-server-memory"], f"npm:{MEMORY}"),
        (["pnpm", "dlx", "x@1"], "npm:x"),
        (["bun", "x", "x"], "npm:x"),
        (["uvx", "mcp-server-sqlite==2025.4.25", "--db", "x"], "pypi:mcp-server-sqlite"),
        (["uvx", "--python", "3.12", "--with", "y", "Mcp_Server.SQLite[a]"], "pypi:mcp-server-sqlite"),
        (["uvx", "--from", "mcp-server-sqlite", "server"], "pypi:mcp-server-sqlite"),
        (["uv", "tool", "run", "--with=y", "x"], "pypi:x"),
        (["pipx", "run", "x"], "pypi:x"),
        (["uv", "run", "x"], None),
        (["node", MEMORY], None),
        (["npx"], None),
        (["npx", "-p"], None),
        (["uvx", "--from", ""], None),
        ([], None),
    ],
)
def test_the_package_that_a_command_runs(words: list[str], package: str | None) -> None:
    assert package_in(words) == package


@pytest.mark.parametrize(
    ("server", "line"),
    [
        ({"command": ["npx", "-y", MEMORY]}, "limits: {concurrent: 1}"),
        ({"command": f"npx -y {MEMORY}"}, "limits: {concurrent: 1}"),
        ({"command": "npx", "args": [MEMORY], "limits": {"calls": "1/s"}}, "limits: {…, concurrent: 1}"),
        ({"command": "npx", "args": [MEMORY], "limits": {"concurrent": "4"}}, None),
        ({"command": ["npx", "other", MEMORY]}, None),
        ({"command": "npx 'unclosed"}, None),
        ({"url": "https://h/mcp"}, None),
        ({}, None),
    ],
)
def test_a_key_is_added_and_never_replaced(server: dict[str, object], line: str | None) -> None:
    found = list(advise(server))
    assert [each.line for each in found] == ([line] if line else [])
    for advice in found:
        limits = server.get("limits", {})
        assert isinstance(limits, dict)
        assert advice.changed == {**server, "limits": {**limits, "concurrent": "1"}}


def test_the_limits_under_defaults_stay_with_the_one_that_is_added() -> None:
    """A key of a server replaces that of the defaults as a whole, so their other limits would be gone."""
    server: dict[str, object] = {"command": ["npx", MEMORY]}
    (advice,) = advise(server, {"limits": {"calls": "60/min"}})
    assert advice.changed is not None
    assert advice.changed["limits"] == {"calls": "60/min", "concurrent": "1"}
    assert list(advise(server, {"limits": {"concurrent": "2"}})) == []


def test_a_server_that_runs_is_known_by_what_it_says_of_itself() -> None:
    server: dict[str, object] = {"command": ["node", "/srv/memory.js"]}
    assert advised(server, info={"name": "memory-server", "version": "0.6.3"}) == [
        ("memory-parallel", "limits: {concurrent: 1}")
    ]
    assert advised(server, info={"name": "memory-server 0.6.3"}) == []
    (said,) = map(str, advise(server, info={"name": "memory-server"}))
    assert said.startswith("if it is the published memory-server, calls that run at once lose data"), "it may lie"
    (said,) = map(str, advise({"command": ["npx", MEMORY]}, info={"name": "memory-server"}))
    assert said.startswith("calls that run at once lose data")


def test_a_version_that_needs_it_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = (each for each in KNOWN if each.id == "memory-parallel")
    monkeypatch.setattr(known_servers, "KNOWN", (replace(row, before="0.10"),))
    for version, count in (("0.9.7", 1), ("0.6.3", 1), ("0.10", 0), ("0.10.1", 0), ("1", 0), ("", 1)):
        assert len(advised({}, info={"name": "memory-server", "version": version})) == count


@pytest.mark.parametrize(
    ("url", "line", "changed"),
    [
        ("http://127.0.0.1:8931/mcp", "url: http://localhost:8931/…", "http://localhost:8931/mcp"),
        ("http://127.0.0.1/mcp?key=s3cret", "url: http://localhost/…", "http://localhost/mcp?key=s3cret"),
        ("http://127.0.0.1:pw@127.0.0.1:1/", "url: http://localhost:1/…", "http://127.0.0.1:pw@localhost:1/"),
        ("http://[::1]:8931/mcp", "url: http://localhost:8931/…", "http://localhost:8931/mcp"),
        ("http://localhost:8931/mcp", None, ""),
        ("http://127.0.0.1.evil.example/mcp", None, ""),
        ("http://127.0.0.1:1@evil.example/mcp", None, ""),
        ("http://192.168.1.3:8931/mcp", None, ""),
        ("https://evil.example/127.0.0.1", None, ""),
        ("http://[::1/mcp", None, ""),
    ],
)
def test_another_host_of_the_same_machine(url: str, line: str | None, changed: str) -> None:
    """The line repeats nothing that may be secret. No server can lead to another machine, whatever it answers."""
    found = list(advise({"url": url}, reason=LOCALHOST))
    assert [each.line for each in found] == ([line] if line else [])
    assert [each.changed for each in found] == ([{"url": changed}] if line else [])
    assert "s3cret" not in "".join(map(repr, found)) + "".join(map(str, found))
    assert list(advise({"url": url}, reason="HTTP 403")) == []


@pytest.mark.parametrize(
    ("server", "line", "command"),
    [
        (
            {"command": ["uvx", "mcp-server-sqlite", "--db", "x"]},
            'command: [uvx, --with, "mcp<2", …]',
            ["uvx", "--with", "mcp<2", "mcp-server-sqlite", "--db", "x"],
        ),
        (
            {"command": "uv", "args": ["tool", "run", "mcp-text-editor"]},
            'command: [uv, tool, run, --with, "mcp<2", …]',
            ["uv", "tool", "run", "--with", "mcp<2", "mcp-text-editor"],
        ),
        ({"command": ["uvx", "--with", "mcp<2", "mcp-server-sqlite"]}, None, []),
        ({"command": ["uvx", "--with=mcp[cli]==1.9", "mcp-server-sqlite"]}, None, []),
        ({"command": ["uvx", "mcp-server-time"]}, None, []),
    ],
)
def test_a_further_requirement(server: dict[str, object], line: str | None, command: list[str]) -> None:
    found = list(advise(server))
    assert [each.line for each in found] == ([line] if line else [])
    assert [each.changed for each in found] == ([{"command": command}] if line else [])


def test_a_program_that_dies_of_the_other_version_is_known_by_its_last_words() -> None:
    reason = "it exited with status 1: AttributeError: 'Server' object has no attribute 'list_tools'"
    assert [id for id, _ in advised({"command": ["uvx", "own"]}, reason=reason)] == ["sdk-1"]
    (advice,) = advise({"command": ["python3", "own.py"]}, reason=reason)
    assert (advice.line, advice.changed) == ("have mcp<2 installed in its environment", None)
    assert f"; {advice.line} (" in str(advice)
    assert [each.changed for each in advise({"command": ["pipx", "run", "mcp-server-sqlite"]})] == [None]
    assert advised({"url": "http://127.0.0.1:1/mcp"}, reason=reason) == []


@pytest.mark.parametrize(
    "program",
    [
        "from mcp.server import Server; Server('x').list_tools",
        "from mcp.server import Server; Server('x').list_prompts",
        "from mcp.server.lowlevel import Server; Server('x').call_tool",
        "from mcp.server import Server; Server('x').read_resource",
        "from mcp.server import Server; Server('x').get_prompt",
        "from mcp.server.fastmcp import FastMCP",
        "from mcp.server import FastMCP",
        "from mcp.shared.exceptions import McpError",
        "from mcp import McpError",
    ],
)
def test_what_programs_of_the_first_version_say_with_the_second(program: str) -> None:
    with pytest.raises((AttributeError, ImportError)) as raised:
        exec(program, {})
    said = f"it exited with status 1: {type(raised.value).__name__}: {raised.value}"
    assert [id for id, _ in advised({"command": ["uvx", "own"]}, reason=said)] == ["sdk-1"]


def test_a_server_is_the_same_with_a_line_that_was_advised() -> None:
    assert {"url": "http://localhost:1/mcp"} in list(as_advised({"url": "http://127.0.0.1:1/mcp"}))
    assert {"command": ["uvx", "--with", "mcp<2", "x"]} in list(as_advised({"command": "uvx", "args": ["x"]}))


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: str(row.id))
def test_every_change_is_a_valid_configuration(row: KnownServer, tmp_path: Path) -> None:
    servers: list[dict[str, object]] = [
        {"command": ["npx", MEMORY]},
        {"url": "http://127.0.0.1:8931/mcp"},
        {"command": ["uvx", "mcp-server-sqlite"]},
    ]
    found = [advice for each in servers for advice in advise(each, reason=LOCALHOST) if advice.row is row]
    assert found
    for advice in found:
        assert advice.changed is not None
        file = tmp_path / "colonnade.yaml"
        file.write_text(f"servers:\n  a:\n{entries(advice.changed, '    ')}")
        assert list(load(file, {}).servers) == ["a"]
        assert str(advice) == f"{row.advice}; write {advice.line} ({row.source}, {row.date})"
