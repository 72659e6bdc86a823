"""Servers of several files become one where they start the same, and keep apart where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop.importing.found import FoundServer
from tests.config.desktop.importing.kit import found, merged


def two(
    folder: Path, one: dict[str, object], other: dict[str, object], names: tuple[str, str] = ("a", "b")
) -> list[FoundServer]:
    """A server each of two files."""
    return [*found(folder, {names[0]: one}, "one.json"), *found(folder, {names[1]: other}, "two.json")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "x", "args": ["-y"]}, {"command": "x", "args": ["-y"]}),
        ({"command": "x"}, {"command": "x", "args": []}),
        ({"command": "x", "env": {}}, {"command": "x", "description": "other"}),
        ({"command": "x", "env": {"K": "${V}"}}, {"command": "x", "env": {"K": "v"}}),
        ({"url": "https://h/mcp", "type": "http"}, {"url": "https://h/mcp"}),
    ],
)
def test_the_same_launch_is_one_server(tmp_path: Path, one: dict[str, object], other: dict[str, object]) -> None:
    environ = {"V": "v"}
    servers = [*found(tmp_path, {"a": one}, "1.json", environ), *found(tmp_path, {"b": other}, "2.json", environ)]
    (server,) = merged(tmp_path, *servers, environ=environ).servers
    assert server.id == "a"
    assert [each.name for each in server.found] == ["a", "b"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "x"}, {"command": "y"}),
        ({"command": "x"}, {"command": "x", "args": ["-y"]}),
        ({"command": "x", "env": {"K": "1"}}, {"command": "x", "env": {"K": "2"}}),
        ({"command": "x", "cwd": "/a"}, {"command": "x", "cwd": "/b"}),
        ({"command": "x"}, {"url": "https://h/mcp"}),
        ({"command": "x"}, {"command": "x", "limits": {"calls": "1/s"}}),
        ({"command": "x", "trust": "untrusted"}, {"command": "x"}),
        ({"command": "x", "consent": {"sampling": "deny"}}, {"command": "x"}),
        ({"command": "x"}, {"command": "x", "odd": 1}),
    ],
)
def test_another_launch_is_another_server(tmp_path: Path, one: dict[str, object], other: dict[str, object]) -> None:
    servers = merged(tmp_path, *two(tmp_path, one, other, ("a", "a"))).servers
    assert [server.id for server in servers] == ["a", "a-generic"]


def test_the_folder_matters_only_to_those_who_use_it(tmp_path: Path) -> None:
    """Two files in two folders: a program without paths is the same in both, one with a script of its folder is not."""
    for folder in ("p", "q"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "server.py").write_text("")
    for argument, count in (("serve", 1), ("server.py", 2), ("--root=.", 2), (".", 2)):
        servers = [
            *found(tmp_path, {"a": {"command": "x", "args": [argument]}}, "p/mcp.json"),
            *found(tmp_path, {"a": {"command": "x", "args": [argument]}}, "q/mcp.json"),
        ]
        assert len(merged(tmp_path, *servers).servers) == count, argument


def test_the_stricter_consent_holds_and_off_wins(tmp_path: Path) -> None:
    (server,) = merged(
        tmp_path,
        *two(
            tmp_path,
            {"command": "x", "disabledTools": ["a"]},
            {"command": "x", "includeTools": ["a", "b"], "disabled": True},
        ),
    ).servers
    assert server.tools.written() == {"allow": ["b"], "deny": ["a"]}
    assert server.is_off
    assert server.remarks == [
        "It is off in its host.",
        "It is off here, since it is off in one of them.",
        "The restrictions of all of them hold.",
    ]


def test_keys_for_people_come_from_either(tmp_path: Path) -> None:
    first, second = two(tmp_path, {"command": "x"}, {"command": "x"})
    second = type(second)(**{**vars(second), "ours": {**second.ours, "timeout": "5s"}})
    (server,) = merged(tmp_path, first, second).servers
    assert server.ours["timeout"] == "5s"


def test_ids_are_free(tmp_path: Path) -> None:
    servers = [each for n in range(4) for each in found(tmp_path, {"gh": {"command": f"x{n}"}}, f"{n}.json")]
    assert [server.id for server in merged(tmp_path, *servers).servers] == ["gh", "gh-generic", "gh-2", "gh-3"]
    taken = {"gh": {"command": "other"}}
    assert [server.id for server in merged(tmp_path, *servers[:1], taken=taken).servers] == ["gh-generic"]


def test_a_server_that_is_there_already_is_not_added(tmp_path: Path) -> None:
    """References are compared by their values, so a secret that was moved before is the same."""
    (tmp_path / "secret").write_text("s3cr3t\n")
    taken = {
        "mine": {
            "command": ["x", "-y"],
            "env": {"K": "${file:secret}"},
            "consent": {"tools": "ask"},
            "cwd": "elsewhere",
        }
    }
    servers = found(tmp_path, {"a": {"command": "x", "args": ["-y"], "env": {"K": "s3cr3t"}}, "b": {"command": "z"}})
    made = merged(tmp_path, *servers, taken=taken)
    assert [(server.name, id) for server, id in made.present] == [("a", "mine")]
    assert [server.id for server in made.servers] == ["b"]


@pytest.mark.parametrize(
    ("limits", "ours", "is_there"),
    [
        ({}, {"concurrent": "1"}, True),
        ({}, {"concurrent": "3"}, True),  # written by the person since
        ({"calls": "60/min"}, {"calls": "60/min"}, True),
        ({"calls": "60/min"}, {"calls": "60/min", "concurrent": "1"}, True),
        ({"calls": "60/min"}, {"calls": "60/min", "concurrent": "3"}, False),
        ({"calls": "60/min"}, {"concurrent": "1"}, False),
    ],
)
def test_a_line_that_is_known_to_help_makes_no_other_server(
    tmp_path: Path, limits: dict[str, object], ours: dict[str, object], is_there: bool
) -> None:
    command = ["npx", "-y", "@modelcontextprotocol/server-memory"]
    theirs = {"command": command[0], "args": command[1:], **({"limits": limits} if limits else {})}
    made = merged(tmp_path, *found(tmp_path, {"a": theirs}), taken={"a": {"command": command, "limits": ours}})
    assert [id for _, id in made.present] == (["a"] if is_there else [])


# Inputs and secrets


def keep(name: str, secret: str) -> str:
    return f"${{keyring:{name}}}"


def test_an_answer_is_kept_and_named_in_its_place(tmp_path: Path) -> None:
    (server,) = merged(
        tmp_path, *found(tmp_path, {"a": {"command": "x", "env": {"K": "Bearer ${input:my-key}"}}})
    ).servers
    server.replace_inputs({"my-key": "s3cr3t"}.get, keep)
    server.replace_secrets(keep, {})
    assert server.ours["env"] == {"K": "Bearer ${keyring:input.my-key}"}
    assert not server.problems


def test_without_an_answer_the_server_cannot_be_used(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "env": {"K": "${input:my-key}", "L": "${input:2}", "M": "$${input:x}"}}}
    (server,) = merged(tmp_path, *found(tmp_path, servers)).servers
    server.replace_inputs(lambda id: None, keep)
    assert server.ours["env"] == {"K": "${env:MY_KEY}", "L": "${env:INPUT_2}", "M": "$${input:x}"}
    assert server.problems[0].startswith("its host asks for the input my-key, for which there is no answer")


def test_nobody_is_asked_for_a_server_that_cannot_be_used(tmp_path: Path) -> None:
    (server,) = merged(
        tmp_path, *found(tmp_path, {"a": {"command": "x", "odd": 1, "env": {"K": "${input:k}"}}})
    ).servers
    asked: list[str] = []
    server.replace_inputs(lambda id: asked.append(id), keep)
    assert not asked
    assert server.ours["env"] == {"K": "${env:K}"}


def test_variables_are_kept_those_of_files_too(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("PLAIN=1\n")
    servers = {"a": {"command": "x", "envFile": str(tmp_path / "vars"), "env": {"TOKEN": "t", "DEBUG": "1"}}}
    (server,) = merged(tmp_path, *found(tmp_path, servers)).servers
    server.replace_secrets(keep, {})
    assert server.ours["env"] == {
        "PLAIN": "${keyring:a.PLAIN}",
        "TOKEN": "${keyring:a.TOKEN}",
        "DEBUG": "${keyring:a.DEBUG}",
    }
