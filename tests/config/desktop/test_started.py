"""The servers that a host starts by itself, beside those of our configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.desktop.entry import ServerEntry
from config.desktop.gemini import GEMINI
from config.desktop.started import OurServers, started_by
from config.read import read

SERVERS = {
    "words": {"command": "uvx", "args": ["words", "--key", "s3cret"]},
    "work": {"command": "notes", "env": {"ACCOUNT": "work", "TOKEN": "t1"}},
    "home": {"command": "notes", "env": {"ACCOUNT": "home", "TOKEN": "t2"}},
    "eu": {"httpUrl": "https://z.example/mcp", "headers": {"X-Region": "eu"}},
    "us": {"httpUrl": "https://z.example/mcp", "headers": {"X-Region": "us"}},
    "url": {"httpUrl": "https://x.example/mcp?key=s3cret"},
    "other": {"command": "uvx", "args": ["words", "--key"]},
    "frozen": {"url": "https://y.example/mcp", "tcp": "ws://z"},
}


def entries(folder: Path, **more: object) -> dict[str, ServerEntry]:
    data = json.dumps({"mcpServers": SERVERS, **more}).encode()
    found = started_by(GEMINI, folder / ".gemini" / "settings.json", data, folder, {})
    return {entry.name: entry for entry in found}


def test_a_server_that_is_switched_off_is_not_started(tmp_path: Path) -> None:
    assert set(entries(tmp_path)) == set(SERVERS)
    assert set(entries(tmp_path, mcp={"excluded": ["url"]})) == set(SERVERS) - {"url"}


def test_a_line_that_is_known_to_help_makes_no_other_server(tmp_path: Path) -> None:
    """`import` may have added it to ours, and the host's file has not."""
    ours = {"a": {"command": ["uvx", "--with", "mcp<2", "words", "--key", "s3cret"], "limits": {"concurrent": "1"}}}
    file = tmp_path / ".gemini" / "settings.json"
    found = entries(tmp_path)
    assert [name for name, each in found.items() if OurServers(ours, tmp_path, {}).has(each, file)] == ["words"]
    ours["a"]["command"] = ["uvx", "--with", "other", "words", "--key", "s3cret"]
    assert not any(OurServers(ours, tmp_path, {}).has(each, file) for each in found.values())


def test_a_kept_value_counts_unless_it_is_a_secret_or_cannot_be_read(tmp_path: Path) -> None:
    for name in ("home", "${t"):
        (tmp_path / name).write_text(name)
    file, found = tmp_path / ".gemini" / "settings.json", entries(tmp_path)
    for account, same in (("home", {"home"}), ("gone", {"work", "home"}), ("${t", set())):
        env = {"ACCOUNT": f"${{file:{account}}}", "TOKEN": "${file:home}"}
        ours = OurServers({"a": {"command": "notes", "env": env}}, tmp_path, {})
        assert {name for name, each in found.items() if ours.has(each, file)} == same


def test_an_empty_or_missing_file_starts_nothing(tmp_path: Path) -> None:
    assert started_by(GEMINI, tmp_path / "settings.json", None, tmp_path, {}) == []
    assert started_by(GEMINI, tmp_path / "settings.json", b" \n", tmp_path, {}) == []


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        ("{command: [uvx, words, --key, s3cret]}", {"words"}),
        ("{command: uvx, args: [words, --key, '${env:KEY}']}", {"words"}),
        ("{command: uvx words --key 's3cret'}", {"words"}),
        ("{command: uvx, args: [words, --key]}", {"other"}),
        ("{command: uvx, args: [words, --key, '$${env:KEY}']}", set()),
        ("{command: uvx, args: [words, --key, s3cret], disabled: true}", set()),
        ("{command: uvx}", set()),
        ('{command: "un\'closed"}', set()),
        ("{url: 'https://x.example/mcp?key=${keyring:x}'}", {"url"}),
        ("{url: https://y.example/mcp}", {"frozen"}),
        ("{command: notes, env: {ACCOUNT: work, TOKEN: '${keyring:a}'}}", {"work"}),
        ("{command: notes, env: {ACCOUNT: work, TOKEN: t2}}", set()),
        ("{command: notes, env: {ACCOUNT: work}}", set()),
        ("{command: notes}", set()),
        ("{url: https://z.example/mcp, headers: {X-Region: us}}", {"us"}),
        ("{url: https://z.example/mcp, headers: {X-Region: '${env:R}'}}", {"eu", "us"}),
        ("{url: https://z.example/mcp}", set()),
        ("{url: '${env:URL}', headers: {X-Region: us}}", set()),
        ("{command: '${env:A}', env: {ACCOUNT: work, TOKEN: t1}}", set()),
        ("{command: ['${env:A}', '${env:B}', '${env:C}', '${env:D}']}", set()),
        ("nothing", set()),
    ],
)
def test_servers_are_the_same_if_they_launch_the_same(ours: str, same: set[str], tmp_path: Path) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text(f"servers:\n  renamed: {ours}\n")
    servers = read(file).root["servers"]
    assert isinstance(servers, dict)
    mine, home = OurServers(servers, tmp_path, {}), tmp_path / ".gemini" / "settings.json"
    found = entries(tmp_path).items()
    assert {name for name, entry in found if mine.has(entry, home)} == same
    assert not any(mine.without(["renamed"]).has(entry, home) for _, entry in found)
    assert {name for name, entry in found if mine.without(["x"]).has(entry, home)} == same
    assert {name for name, entry in found if mine.has_disabled(entry, home)} == (
        {"words"} if "disabled" in ours else set()
    )


@pytest.mark.parametrize(("folder", "same"), [({}, True), ({"cwd": "/srv"}, False)])
def test_one_that_starts_in_the_folder_of_its_client_is_the_same_unless_the_host_names_a_folder(
    tmp_path: Path, folder: dict[str, str], same: bool
) -> None:
    file = tmp_path / ".gemini" / "settings.json"
    data = json.dumps({"mcpServers": {"a": {"command": "node", "args": ["index.js"], **folder}}}).encode()
    (entry,) = started_by(GEMINI, file, data, tmp_path, {})
    ours = {"a": {"command": ["node", "index.js"], "cwd": "${client:folder}"}}
    assert OurServers(ours, tmp_path, {}).has(entry, file) is same
