"""VS Code's files."""

from __future__ import annotations

from pathlib import Path

import pytest

import config
from config.desktop.vscode import VSCODE
from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state
from tests.config.kit import http, lines, stdio

USER, PROJECT = "~/.config/Code/User/mcp.json", ".vscode/mcp.json"
SETTINGS = "~/.config/Code/User/settings.json"
USER_FILE = """{
  // team servers
  "inputs": [
    {"type": "promptString", "id": "wiki-token", "description": "Wiki token", "password": true},
    {"type": "pickString", "id": "region", "description": "Region", "options": ["eu", "us"], "default": "eu"},
    {"type": "command", "id": "made", "command": "x.y"},
  ],
  "servers": {
    "wiki": {"type": "http", "url": "https://wiki.example/${input:region}/mcp",
      "headers": {"Authorization": "Bearer ${input:wiki-token}"}, "gallery": true, "version": "1.2.0"},
    "notes": {"command": "~/bin/notes", "args": ["~/a", "${userHome}/notes", "${NAME}", "$$NAME"],
      "env": {"PORT": 3000, "DEBUG": null, "EMPTY": "${env:UNSET}", "PATH": "/opt/x"}, "envFile": "${userHome}/n.env"},
    "made": {"command": "x", "args": ["${input:made}"]},
    "lost": {"command": "x", "args": ["${input:lost}"]},
    "folder": {"command": "x", "cwd": "${workspaceFolder}"},
    "task": {"command": "${command:pick}"},
  },
}
"""


@pytest.mark.parametrize(
    "place",
    [
        USER,
        "~/Library/Application Support/Code/User/mcp.json",
        "~/.config/Code - Insiders/User/mcp.json",
        "~/.config/Code/User/profiles/1a2b/mcp.json",
        "~/.vscode-server/data/User/mcp.json",
    ],
)
def test_the_users_file(home: Home, place: str) -> None:
    """With comments, and with inputs that a person is asked for."""
    home.environ = {"PATH": "/usr/bin"}
    home.write("~/n.env", "PORT=1\nTOKEN='t ${X}'\n")
    asked: dict[str, str] = {}

    def ask(id: str, description: str) -> str:
        asked[id] = description
        return {"wiki-token": "w", "region": "us"}[id]

    made = config.load(home.write(place, USER_FILE), home.environ, home=home.path, ask=ask)
    assert made.notices == ("read as a VS Code file",)
    assert [state(made, id) for id in made.servers] == [ALLOW, ALLOW, *[PROBLEM] * 4]
    assert http(made, "wiki").url.reveal() == "https://wiki.example/us/mcp"
    assert http(made, "wiki").headers["Authorization"].reveal() == "Bearer w"
    assert asked == {"region": "Region (eu, us)", "wiki-token": "Wiki token"}
    notes = stdio(made, "notes")
    assert [word.reveal() for word in notes.command] == [
        f"{home.path}/bin/notes",
        f"{home.path}/a",
        f"{home.path}/notes",
        "${NAME}",
        "$$NAME",
    ]
    assert {name: value.reveal() for name, value in notes.env.items()} == {
        "PORT": "3000",
        "EMPTY": "",
        "PATH": "/usr/bin:/opt/x",
        "TOKEN": "t ${X}",
    }
    assert notes.cwd == home.path
    assert "is the result of a command" in made.servers["made"].problem
    assert made.servers["lost"].problem == 'its input "lost" is not among the inputs of the file'
    assert made.servers["folder"].problem.startswith("it names the folder of a project")
    assert made.servers["task"].problem == "the reference ${command} has a value only in the editor"
    assert VSCODE.hides_switches


def test_inputs_that_nobody_gives(home: Home) -> None:
    """The server fails, and the others run."""
    home.write("~/n.env", "")
    made = home.load(USER, USER_FILE)
    assert (state(made, "wiki"), state(made, "notes")) == (PROBLEM, ALLOW)
    assert "the input region, which its host asks for, was not given" in made.servers["wiki"].problem


def test_a_projects_file(home: Home) -> None:
    made = home.load(
        PROJECT,
        {
            "servers": {
                "build": {
                    "type": "stdio",
                    "command": "python",
                    "args": ["tools/build_mcp.py"],
                    "cwd": "${workspaceFolder}/sub",
                    "dev": {"watch": "tools/**/*.py", "debug": {"type": "debugpy"}},
                },
                "legacy": {"transport": "sse", "url": "http://localhost:9100/sse"},
                "plain": {"command": "tools/x"},
            }
        },
    )
    assert [state(made, id) for id in made.servers] == [ALLOW] * 3
    assert (stdio(made, "build").cwd, stdio(made, "plain").cwd) == (home.project / "sub", home.project)
    assert stdio(made, "plain").program.reveal() == str(home.project / "tools/x")
    assert made.notices[1].startswith("no file says that VS Code may start build, legacy, plain of this project")


def test_the_shape_alone(tmp_path: Path, home: Home) -> None:
    """A file elsewhere is VS Code's if all its servers have types or it has inputs, and nothing of ours."""
    typed: dict[str, object] = {"a": {"type": "stdio", "command": "x"}}
    for content in ({"servers": typed}, {"servers": {"a": {"command": "x"}}, "inputs": []}):
        assert home.load("elsewhere.json", content).notices == ("read as a VS Code file",)
    assert home.load("elsewhere.json", {"servers": {"a": {"command": "x"}}}).notices == ()
    ours = '{"servers": {"a": {"type": "stdio", "command": "x"}}, "listen": {"address": "127.0.0.1:0"}}'
    assert "servers.a.type: unknown key" in lines(tmp_path, ours)[0]


SANDBOX = {"filesystem": {"denyRead": ["~/.ssh"]}, "network": {"allowedDomains": ["*.pkg.example"]}}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "x", "disabled": True}, OFF),
        ({"command": "x", "sandboxEnabled": True}, PROBLEM),
        ({"command": "x", "sandboxEnabled": False}, ALLOW),
        ({"command": "x", "sandbox": SANDBOX}, PROBLEM),
        ({"command": "x", "tools": ["read"]}, ALLOW),
        ({"command": "x", "tools": ["write"]}, DENY),
        ({"command": "x", "tools": ["*"]}, ALLOW),
        ({"command": "x", "tools": {}}, PROBLEM),
        ({"command": "x", "toolsets": ["read"]}, PROBLEM),
        ({"command": "x", "envFile": "missing"}, PROBLEM),
        ({"url": "https://h/mcp", "oauth": {"clientId": "x"}}, PROBLEM),
        ({"url": "unix:///run/x.sock#/mcp"}, PROBLEM),
        ({"type": "ws", "url": "https://h/mcp"}, PROBLEM),
    ],
)
def test_keys_that_restrict(home: Home, entry: dict[str, object], expected: str) -> None:
    assert state(home.server(USER, entry, "servers"), "files") == expected


def test_a_sandbox_for_the_whole_file(home: Home) -> None:
    """It confines programs."""
    servers = {"a": {"command": "x"}, "b": {"type": "http", "url": "https://h/mcp"}}
    made = home.load(USER, {"servers": servers, "sandbox": SANDBOX})
    assert (state(made, "a"), state(made, "b")) == (PROBLEM, ALLOW)


@pytest.mark.parametrize(
    ("settings", "program", "remote"),
    [
        ({"chat.mcp.access": "none"}, OFF, OFF),
        ({"chat.mcp.access": "all"}, ALLOW, ALLOW),
        ({"chat.mcp.access": "registry"}, PROBLEM, PROBLEM),
        ({"chat.mcp.enabled": False}, OFF, OFF),
        ({"chat.mcp.deniedServers": [{"serverName": "a"}]}, OFF, ALLOW),
        ({"chat.mcp.deniedServers": [{"serverCommand": ["npx", "-y"]}]}, PROBLEM, PROBLEM),
        ({"chat.mcp.deniedServers": None}, ALLOW, ALLOW),
        ({"chat.mcp.allowedServers": []}, OFF, OFF),
        ({"chat.mcp.allowedServers": [{"serverName": "a"}]}, ALLOW, OFF),
        ({"chat.mcp.allowedServers": [{"serverUrl": "https://x.tracker.example/*"}]}, PROBLEM, PROBLEM),
        ({"chat.mcp.allowedServers": None}, ALLOW, ALLOW),
    ],
)
def test_settings_that_restrict(home: Home, settings: dict[str, object], program: str, remote: str) -> None:
    home.write(SETTINGS, {"editor.fontSize": 13, **settings})
    servers = {
        "a": {"command": "npx", "args": ["-y", "${userHome}/x"]},
        "b": {"type": "http", "url": "https://x.tracker.example/mcp"},
    }
    made = home.load(USER, {"servers": servers})
    assert (state(made, "a"), state(made, "b")) == (program, remote)


def test_settings_with_mistakes_stop_all(home: Home) -> None:
    home.write(SETTINGS, '{"chat.mcp.access": "none", "chat.mcp.access": "all"}')
    assert state(home.server(USER, {"command": "x"}, "servers"), "files") == PROBLEM
    home.write(SETTINGS, "")
    assert state(home.server(USER, {"command": "x"}, "servers"), "files") == ALLOW


def test_a_key_of_dev_that_is_not_known_stops_the_server(home: Home) -> None:
    made = home.server(USER, {"command": "x", "dev": {"watchs": "*"}}, "servers")
    assert made.servers["files"].problem.endswith(
        '"dev.watchs" is not known here and could restrict it; did you mean "watch"?'
    )


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("~/.config/Code/User/profiles/1a/mcp.json", SETTINGS),
        ("~/.config/Code/User/profiles/1a/mcp.json", "~/.config/Code/User/profiles/1a/settings.json"),
        (PROJECT, ".vscode/settings.json"),
        (PROJECT, SETTINGS),
        (PROJECT, "~/Library/Application Support/Code - Insiders/User/settings.json"),
        (PROJECT, "~/.vscode-server/data/Machine/settings.json"),
        ("~/.vscode-server/data/User/mcp.json", "~/.vscode-server/data/Machine/settings.json"),
    ],
)
def test_settings_at_other_places_restrict(home: Home, file: str, place: str) -> None:
    home.write(place, {"chat.mcp.access": "none"})
    assert state(home.server(file, {"command": "x"}, "servers"), "files") == OFF


def test_a_workspace(home: Home) -> None:
    """Its servers are read, and its settings restrict those of the project too."""
    servers = {"a": {"command": "x", "args": ["${input:key}"]}, "b": {"command": "x"}}
    inputs = [{"type": "promptString", "id": "key", "description": "Key"}]
    mcp = {"servers": servers, "inputs": inputs}
    settings = {"mcp": mcp, "chat.mcp.deniedServers": [{"serverName": "b"}]}
    home.write("shop.code-workspace", {"folders": [{"path": "."}], "settings": settings})
    entries = home.entries("shop.code-workspace")
    assert [entry.needs_approval for entry in entries.values()] == [True, True]
    assert [(entry.problems, entry.is_off) for entry in entries.values()] == [([], False), ([], True)]
    assert state(home.load(PROJECT, {"servers": {"b": {"command": "x"}}}), "b") == OFF
    home.write("shop.code-workspace", {"folders": [], "settings": {"mcp": {"servers": servers, "sandbox": SANDBOX}}})
    assert state(home.read("shop.code-workspace"), "b") == PROBLEM


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        ("/etc/vscode/policy.json", {"ChatMCP": "none"}),
        ("/etc/vscode/policy.json", {"ChatMCP": False}),
        ("/etc/vscode/policy.json", {"ChatAgentMode": False}),
        ("~/.config/Code/User/settings.json", {"chat.agent.enabled": False}),
        (".vscode/settings.json", {"chat.disableAIFeatures": True}),
    ],
)
def test_switches_of_the_administrator_and_of_all_that_calls_tools(home: Home, place: str, settings: object) -> None:
    content = {"servers": {"files": {"command": "x"}}}
    assert state(home.load(".vscode/mcp.json", content), "files") == ALLOW
    home.write(place, settings)
    assert state(home.read(".vscode/mcp.json"), "files") == OFF
