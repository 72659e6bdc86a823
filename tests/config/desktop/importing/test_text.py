"""What is written of imported servers, and what is shown of them."""

from __future__ import annotations

from pathlib import Path

import config
from config.desktop.importing.text import describe_launch, describe_tools, pieces, server_value, whole_text
from config.desktop.importing.tool_consent import ToolConsent
from tests.config.desktop.importing.kit import found, merged

SERVERS = {
    "My Server": {"command": "npx", "args": ["-y", "x"], "env": {"A": "no"}, "disabledTools": ["b"], "cwd": "/"},
    "bad\nservers:": {"command": "x", "odd": 1, "cwd": "/"},
    "off": {"url": "https://h/mcp", "disabled": True},
}


def test_the_text_has_comments_on_every_server_and_can_be_loaded(tmp_path: Path) -> None:
    servers = merged(tmp_path, *found(tmp_path, SERVERS)).servers
    text = whole_text(servers, lambda path: path.name, None)
    assert "\nnames: {limit: 48}\n" in text
    assert text.partition("\nservers:\n")[2] == (
        "  my-server:\n"
        '    # From mcp.json ("My Server").\n'
        "    command: [npx, -y, x]\n"
        '    env: {A: "no"}\n'
        '    cwd: "/"\n'
        "    consent: {tools: {deny: [b]}}\n"
        "\n"
        "  # bad-servers:\n"
        '  #   # From mcp.json ("bad?servers:").\n'
        '  #   # It cannot be used: its key "odd" is not known here and could restrict it; remove the key.\n'
        "  #   command: [x]\n"
        '  #   cwd: "/"\n'
        "\n"
        "  off:\n"
        "    # From mcp.json.\n"
        "    # It is off in its host.\n"
        '    url: "https://h/mcp"\n'
        "    disabled: true\n"
    )
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert list(config.load(file, {}).servers) == ["my-server", "off"]


def test_a_server_that_becomes_a_comment_keeps_its_arguments(tmp_path: Path) -> None:
    """Also those with references that mean nothing here."""
    bad = {
        "command": "npx",
        "args": ["-y", "x", "${selectedText}/a", "${env:HOME}"],
        "env": {"A": "${command:pick}", "B": "b"},
        "cwd": "/",
    }
    servers = found(tmp_path, {"bad": bad, "ok": {"command": "x"}}, ".cursor/mcp.json")
    text = whole_text(merged(tmp_path, *servers).servers, lambda path: path.name, None)
    assert '  #   command: [npx, -y, x, "$${selectedText}/a", "$${env:HOME}"]\n' in text
    assert '  #   env: {A: "$${command:pick}", B: b}\n  #   cwd: "/"\n' in text


def test_servers_that_cannot_be_used_are_comments_of_a_neighbour(tmp_path: Path) -> None:
    bad = {"command": "x", "odd": 1}
    servers = merged(
        tmp_path, *found(tmp_path, {"a": bad, "b": {"command": "b"}, "c": bad, "d": bad, "e": {"url": "http://h"}})
    ).servers
    made = pieces(servers, str, None, None)
    assert [server.id for server, _ in made] == ["b", "e"]
    assert [line for line in made[0][1].splitlines() if not line.startswith((" ", "#  "))] == [
        "# a:",
        "",
        "b:",
        "",
        "# c:",
        "",
        "# d:",
    ]
    assert made[1][1].startswith("e:\n")


def test_keys_stand_in_the_order_of_reading(tmp_path: Path) -> None:
    keys = {
        "trust": "untrusted",
        "env": {"A": "1"},
        "isolation": "per-client",
        "command": "x",
        "disabled": True,
        "disabledTools": ["t"],
        "headers": {},
    }
    (server,) = merged(tmp_path, *found(tmp_path, {"a": keys})).servers
    assert list(server_value(server, None, None)) == [
        "command",
        "env",
        "cwd",
        "isolation",
        "trust",
        "consent",
        "disabled",
    ]


def test_what_is_shown_holds_no_secret(tmp_path: Path) -> None:
    servers = {
        "a": {"command": "/opt/s3cr3t/run", "args": ["s3cr3t"], "cwd": "/"},
        "b": {"url": "https://me:s3cr3t@h/s3cr3t?x=s3cr3t"},
        "c": {"url": "https://${V}/x", "odd": 1},
        "d": {},
    }
    shown = [describe_launch(server) for server in found(tmp_path, servers, environ={"V": "s3cr3t"})]
    assert shown == ["run (1 argument)", "https://h", "https://***", "neither a command nor a URL"]


def test_restrictions_in_a_sentence() -> None:
    rule = {"name": "b", "when": {"x": "1"}}
    assert describe_tools(ToolConsent()) == []
    assert describe_tools(ToolConsent("ask")) == ["Tools: all confirmed."]
    assert describe_tools(ToolConsent("deny", allow=("a", rule), deny=("c",))) == [
        "Tools: a, b with some arguments allowed; c denied; all others denied."
    ]
