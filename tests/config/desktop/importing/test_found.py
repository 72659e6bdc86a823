"""Files of hosts are found, and their servers mean the same at another place, and never more."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import config
from config import ConfigError, ConsentWord, HttpServer, StdioServer
from config.desktop.desktop_host import DesktopHost, FileContext
from config.desktop.entry import ServerEntry
from config.desktop.entry_form import ENTRY_FORMS
from config.desktop.hosts import HOSTS
from config.desktop.importing.found import FoundFile, find_files, read_servers
from config.desktop.importing.tool_consent import ToolConsent, asked_tools
from config.edit import insert, values
from host.policy.rules import Rules
from host.protocol.methods import Kind
from tests.config.desktop.importing.kit import found, merged, written

GEMINI = next(host for host in HOSTS if host.name == "gemini")


def test_files_of_the_user_and_of_the_project_are_found_once(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "home" / "project"
    for folder in (home, project):
        (folder / ".gemini").mkdir(parents=True)
        (folder / ".gemini" / "settings.json").write_text("{}")
    assert [each.path for each in find_files([GEMINI], project, home, {})] == [
        home / ".gemini" / "settings.json",
        project / ".gemini" / "settings.json",
    ]
    assert len(list(find_files([GEMINI], home, home, {}))) == 1
    assert list(find_files([GEMINI], tmp_path, tmp_path, {})) == []


def test_a_server_means_the_same_at_another_place(tmp_path: Path) -> None:
    """The configuration lies in another folder than the host's file."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "secret").write_text("s3cr3t\n")
    servers = {
        "a": {"command": "./run", "args": ["x", 8080], "env": {"A": "${file:secret}", "B": "$${x"}, "cwd": "data"},
        "b": {"command": "npx", "args": ["-y"], "timeout": 1000},
        "c": {"url": "https://h/mcp?x=${V}", "headers": {"K": "${V:-d}"}},
    }
    environ = {"V": "v"}
    made = found(tmp_path / "here", servers, environ=environ)
    there = config.load(tmp_path / "here" / "mcp.json", environ, home=tmp_path).servers
    ours = written(tmp_path, merged(tmp_path, *made).servers, environ).servers
    assert list(ours) == list(there)
    for id, server in there.items():
        again = ours[id]
        if isinstance(server, StdioServer):
            assert isinstance(again, StdioServer)
            assert (again.command, again.env, again.cwd) == (server.command, server.env, server.cwd)
        else:
            assert isinstance(again, HttpServer)
            assert (again.url, again.headers) == (server.url, server.headers)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"command": "node", "args": ["build/index.js"]}, "an argument"),
        ({"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]}, "an argument"),
        ({"command": "x", "args": ["--db=./notes.db"]}, "an argument"),
        ({"command": "x", "args": ["--config", "../mcp"]}, "an argument"),
        ({"command": "./run", "args": []}, "its program"),
        ({"command": "npx", "args": ["-y", "@scope/server.js", "pkg@1.2.js", "ghcr.io/owner/image:latest.js"]}, ""),
        ({"command": "uvx", "args": ["mcp-server-git", "--repository", "/srv/a.db", "--url=https://x/a.json"]}, ""),
        ({"command": "node", "args": ["${HOME}/index.js", "-v", "1.5", "a.b", 8080]}, ""),
        ({"command": "node", "args": ["index.js"], "cwd": "sub"}, ""),
        ({"command": "node", "args": ["index.js"], "cwd": "/srv"}, ""),
        ({"httpUrl": "https://h/./index.js"}, ""),
    ],
)
def test_a_server_without_a_folder_starts_in_that_of_its_client_if_it_names_a_relative_path(
    tmp_path: Path, keys: dict[str, object], what: str
) -> None:
    """As at the host, which starts it in the folder that it works in itself. A project's file has a folder."""
    environ = {"HOME": "/h"}
    for folder in (tmp_path, tmp_path / "project"):
        file = folder / ".gemini" / "settings.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"mcpServers": {"a": keys}}))
        (server,), _ = read_servers(FoundFile(file, GEMINI), tmp_path, environ)
        assert server.problems == ()
        takes_folder = bool(what) and folder == tmp_path
        text = f"It starts in the folder of its client, as in Gemini CLI, since {what} is a relative path."
        assert (text in server.remarks) == takes_folder
        is_in_home = "The program itself is looked for in your home folder" in " ".join(server.remarks)
        assert is_in_home == (takes_folder and what == "its program")
        if takes_folder:
            assert server.ours["cwd"] == "${client:folder}"
        else:  # that of the configuration, unless the file says another one
            own = "cwd" in keys or (folder != tmp_path and "command" in keys)
            assert ("cwd" in server.ours) == own
        spec = written(tmp_path, merged(tmp_path, server).servers, environ).servers["a"]
        assert spec.takes_client_folder == takes_folder


def test_a_file_at_another_place_has_its_folder(tmp_path: Path) -> None:
    (server,) = found(tmp_path, {"a": {"command": "node", "args": ["./index.js"]}})
    assert server.ours["cwd"] == str(tmp_path)


def test_a_server_in_the_folder_of_its_client_is_the_one_that_was_imported_with_a_folder(tmp_path: Path) -> None:
    """An import of an earlier version wrote the user's folder."""
    file = tmp_path / ".gemini" / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"a": {"command": "node", "args": ["index.js"]}}}))
    servers, _ = read_servers(FoundFile(file, GEMINI), tmp_path, {})
    taken = {"a": {**servers[0].ours, "cwd": str(tmp_path)}}
    assert [id for _, id in merged(tmp_path, *servers, taken=taken).present] == ["a"]
    assert len(merged(tmp_path, *servers, *servers).servers) == 1


def test_problems_are_kept(tmp_path: Path) -> None:
    servers = {
        "odd": {"command": "x", "allowList": []},
        "unset": {"command": "x", "env": {"A": "${NOT_THERE}"}},
        "wrong": {"command": "x", "limits": {"calls": "1"}},
        "good": {"command": "x"},
    }
    problems = {each.name: each.problems for each in found(tmp_path, servers)}
    assert problems["odd"][0].startswith('its key "allowList" is not known here')
    assert problems["unset"] == (
        "env.A: the environment variable NOT_THERE is not set; set it or write ${env:NOT_THERE:-default}",
    )
    assert problems["wrong"][0].startswith("limits.calls: expected a rate")
    assert problems["good"] == ()


def test_colonnade_itself_is_left_out(tmp_path: Path) -> None:
    assert [each.name for each in found(tmp_path, {"colonnade": {"command": "colonnade"}, "a": {"command": "x"}})] == [
        "a"
    ]


def test_a_file_of_ours_or_with_mistakes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    for text in ("servers: {a: {command: x}}\n", '{"mcpServers": {"a": 1, "a": 2}}', "{"):
        file.write_text(text)
        with pytest.raises(ConfigError):
            read_servers(FoundFile(file), tmp_path, {})


@pytest.mark.parametrize(
    ("name", "server", "is_read"),
    [
        ("x.json", {"command": "x", "args": ["y"]}, True),
        ("x.json", {"type": "http", "url": "https://h/"}, True),
        ("x.json", {"command": ["x"]}, False),
        ("x.json", {"command": "x", "consent": {"tools": "ask"}}, False),
        ("x.yaml", {"command": "x"}, False),
    ],
)
def test_a_file_that_may_be_vs_codes_is_read_as_one(
    tmp_path: Path, name: str, server: dict[str, object], is_read: bool
) -> None:
    """Without a type for each server it could also be in our form, and is as good there."""
    file = tmp_path / name
    file.write_text(json.dumps({"servers": {"a": {"command": "x"}, "b": server}}))
    if not is_read:
        with pytest.raises(config.ConfigError, match="this is a configuration of Colonnade"):
            read_servers(FoundFile(file, None), tmp_path, {})
        return
    servers, _ = read_servers(FoundFile(file, None), tmp_path, {})
    assert [(each.name, each.problems) for each in servers] == [("a", ()), ("b", ())]


def test_a_server_that_is_off_keeps_its_references(tmp_path: Path) -> None:
    (server,) = found(tmp_path, {"a": {"command": "x", "env": {"K": "${V}"}, "disabled": True}}, environ={"V": "v"})
    assert server.is_off
    assert server.ours["env"] == {"K": "${env:V}"}
    spec = written(tmp_path, merged(tmp_path, server).servers, {"V": "v"}).servers["a"]
    assert spec.disabled


@pytest.mark.parametrize(
    ("keys", "without", "kept"),
    [
        ({}, "ask", "ask"),
        ({"autoApprove": []}, "ask", "ask"),
        ({"autoApprove": ["a"]}, "ask", {"default": "ask", "allow": ["a"]}),
        ({"trust": True}, "ask", None),
        ({"trust": False}, "ask", "ask"),
        ({"disabledTools": ["b"]}, {"default": "ask", "deny": ["b"]}, {"default": "ask", "deny": ["b"]}),
        (
            {"disabledTools": ["b"], "autoApprove": ["a", "b"]},
            {"default": "ask", "deny": ["b"]},
            {"default": "ask", "allow": ["a"], "deny": ["b"]},
        ),
        (
            {"includeTools": ["a", "b"], "autoApprove": ["a"]},
            {"default": "deny", "ask": ["a", "b"]},
            {"allow": ["a"], "ask": ["b"]},
        ),
        ({"includeTools": ["a"], "trust": True}, {"default": "deny", "ask": ["a"]}, {"allow": ["a"]}),
        ({"consent": "deny", "autoApprove": ["a"]}, "deny", "deny"),
        ({"consent": {"tools": {"allow": ["x*"]}}}, {"allow": ["x*"]}, {"allow": ["x*"]}),
    ],
)
def test_consent(tmp_path: Path, keys: dict[str, object], without: object, kept: object) -> None:
    """Approvals become rules only with --keep-approvals; about the rest a person is asked here."""
    for keep, expected in ((False, without), (True, kept)):
        (server,) = found(tmp_path, {"a": {"command": "x", **keys}}, keep_approvals=keep)
        assert server.problems == ()
        assert asked_tools(ConsentWord.CAREFUL, server.tools, server.passed).written() == expected
        assert not server.shows_switches
        assert any("--keep-approvals" in remark for remark in server.host_remarks) is (
            not keep and bool(keys.get("autoApprove") or keys.get("trust"))
        )


def test_consent_for_other_kinds_stays(tmp_path: Path) -> None:
    (server,) = found(tmp_path, {"a": {"command": "x", "consent": "ask"}})
    consent = written(tmp_path, merged(tmp_path, server).servers).servers["a"].consent
    assert {consent.tools.default, consent.resources.default, consent.prompts.default} == {"ask"}


def test_a_host_that_hides_its_switches_passes_nothing_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(
        json.dumps({"mcpServers": {"a": {"command": "x", "excludeTools": ["t"]}, "b": {"command": "y", "trust": True}}})
    )
    host = dataclasses.replace(GEMINI, hides_switches=True)
    servers, _ = read_servers(FoundFile(path, host), tmp_path, {}, keep_approvals=True)
    assert [each.tools for each in servers] == [ToolConsent(deny=("t",)), ToolConsent()]
    assert [each.passed for each in servers] == [ToolConsent("ask")] * 2
    assert not any(each.shows_switches for each in servers)
    assert all("No file shows" in each.host_remarks[0] for each in servers)


@pytest.mark.parametrize("name", ["cline", "roo", "qwen", "gemini", "copilot", "codex", "zed"])
def test_without_any_list_nothing_is_restricted_and_nothing_passed(tmp_path: Path, name: str) -> None:
    """An entry without a list of approvals is as one with an empty list: the answer of the person decides."""
    host = next(host for host in HOSTS if host.name == name)
    path = host.files[0].path(tmp_path, tmp_path, {})
    path.parent.mkdir(parents=True)
    place = ENTRY_FORMS[name].place(values(path, ENTRY_FORMS[name].new_file))
    text = insert(path, ENTRY_FORMS[name].new_file, (*place[:-1], "a"), ENTRY_FORMS[name].command("x", [])).text
    path.write_text(text)
    for keep in (False, True):
        (server,), _ = read_servers(FoundFile(path, host), tmp_path, {}, keep_approvals=keep)
        assert (server.tools, server.passed) == (ToolConsent(), ToolConsent("ask"))
        assert server.shows_switches
        assert server.host_remarks == ()
    elsewhere = path.rename(tmp_path / f"else{path.suffix}")
    (server,), _ = read_servers(FoundFile(elsewhere, host), tmp_path, {})
    assert not server.shows_switches


words = st.sampled_from([ConsentWord.READ_ONLY, ConsentWord.CAREFUL, None])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("word", [ConsentWord.READ_ONLY, ConsentWord.CAREFUL, None])
def test_settings_that_are_not_carried_out(tmp_path: Path, keep: bool, word: ConsentWord | None) -> None:
    """One that can only ask has all calls confirmed, also approved ones. One that may forbid disables the server."""

    def restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
        for entry in entries.values():
            entry.detect("a setting", may_forbid=entry.name == "b")

    path = tmp_path / "app.json"
    a = {"command": "x", "includeTools": ["read", "write"], "trust": True}
    path.write_text(json.dumps({"mcpServers": {"a": a, "b": {"command": "y"}}}))
    host = dataclasses.replace(GEMINI, restrict=restrict)
    servers, _ = read_servers(FoundFile(path, host), tmp_path, {}, keep_approvals=keep)
    assert [each.remarks for each in servers] == [
        ("All its calls are confirmed, since a setting asks about some.",),
        ("It is disabled, since a setting could forbid its calls; remove that line if it does not.",),
    ]
    specs = written(tmp_path, merged(tmp_path, *servers).servers, word=word).servers
    assert [spec.disabled for spec in specs.values()] == [False, True]
    rules = Rules(specs["a"].consent, specs["a"].trust)
    verdicts = [rules.evaluate(Kind.TOOL, tool).verdict for tool in ("read", "write", "other")]
    assert verdicts == ["ask", "ask", "deny"]


TOOLS = ["a", "b", "c", "d"]
tools = st.lists(st.sampled_from(TOOLS), unique=True, max_size=3)
entries = st.fixed_dictionaries(
    {},
    optional={
        "disabledTools": tools | st.just(["*"]) | st.just(["a*"]),
        "excludeTools": tools,
        "includeTools": tools,
        "autoApprove": tools,
        "alwaysAllow": tools,
        "trust": st.booleans(),
        "disabled": st.booleans(),
        "enabled": st.booleans(),
        "unknown": st.just(1),
        "env": st.dictionaries(st.sampled_from(["A", "TOKEN"]), st.sampled_from(["x", "$${x", "${V}", "${NONE}"])),
        "args": st.lists(st.sampled_from(["-y", "--token", "abc", "a b", "no", "#"])),
    },
)


def forbids(entry: dict[str, Any], tool: str) -> bool:
    """Whether the host does not offer a tool, by a reading of the keys that knows nothing of ours."""
    if entry.get("disabled") is True or entry.get("enabled") is False or "unknown" in entry:
        return True
    denied = [*entry.get("disabledTools", []), *entry.get("excludeTools", [])]
    if tool in denied or "*" in denied or ("a*" in denied and tool == "a"):
        return True
    return "includeTools" in entry and tool not in entry["includeTools"]


def passes(entry: dict[str, Any], tool: str) -> bool:
    """Whether the host calls a tool without asking."""
    return entry.get("trust") is True or tool in [*entry.get("autoApprove", []), *entry.get("alwaysAllow", [])]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "B b", "c", "gh"]), entries, min_size=1), entries, st.booleans(), words)
def test_what_is_written_permits_no_call_that_the_host_forbids(
    tmp_path: Path, servers: dict[str, dict[str, Any]], twin: dict[str, Any], keep: bool, word: ConsentWord | None
) -> None:
    """Two files, which have a server in common; what is written is loaded, and evaluated by the rules of the host."""
    environ = {"V": "v"}
    first = {name: {"command": name, **keys} for name, keys in servers.items()}
    name = next(iter(first))
    second: dict[str, dict[str, Any]] = {
        "twin": {**twin, **{key: first[name][key] for key in ("command", "env", "args") if key in first[name]}}
    }
    for key in ("env", "args"):
        if key not in first[name]:
            second["twin"].pop(key, None)
    hosts = [*found(tmp_path, first, environ=environ, keep_approvals=keep)]
    hosts += found(tmp_path, second, "second.json", environ=environ, keep_approvals=keep)
    imported = merged(tmp_path, *hosts, environ=environ).servers
    if all(server.problems for server in imported):
        return
    specs = written(tmp_path, imported, environ, word).servers
    by_name: dict[str, dict[str, Any]] = {**first, **second}
    for server in imported:
        spec = specs.get(server.id)
        assert (spec is None) == bool(server.problems)
        if spec is None or spec.disabled:
            continue
        rules = Rules(spec.consent, spec.trust)
        for each in server.found:
            entry = by_name[each.name]
            for tool in [*TOOLS, "other"]:
                verdict = rules.evaluate(Kind.TOOL, tool).verdict
                assert not forbids(entry, tool) or verdict == "deny", (each.name, tool)
                if word is not None and not (keep and passes(entry, tool)):  # nothing is approved
                    assert verdict != "allow", (each.name, tool)


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_every_host_is_found_and_its_server_is_the_same_elsewhere(
    tmp_path: Path, host: DesktopHost, platform: str
) -> None:
    """Its usual file, as `connect` would write an entry of another name into it."""
    form = ENTRY_FORMS[host.name]
    file = host.files[0].path(tmp_path, tmp_path, {}, platform)
    file = file.with_name(file.name.replace("*", "x"))
    file.parent.mkdir(parents=True, exist_ok=True)
    text = form.new_file
    *above, last = form.place(values(file, text))
    entry = {**form.command("/bin/cat", ["a b", "--token", "t0ken"])}
    if isinstance(last, str):
        last = "files"
    else:
        entry["name"] = "files"
    file.write_text(insert(file, text, (*above, last), entry).text)
    (found_file,) = find_files([host], tmp_path / "project", tmp_path, {}, platform)
    assert found_file.path == file
    servers, _ = read_servers(found_file, tmp_path, {})
    (server,) = servers
    assert (server.name, server.problems) == ("files", ())
    spec = written(tmp_path, merged(tmp_path, server).servers).servers["files"]
    assert isinstance(spec, StdioServer)
    assert [word.reveal() for word in spec.command] == ["/bin/cat", "a b", "--token", "t0ken"]
    verdict = Rules(spec.consent, spec.trust).evaluate(Kind.TOOL, "any").verdict
    assert verdict == "ask"


def test_an_approval_of_all_does_not_replace_a_setting_that_asks_about_all(tmp_path: Path) -> None:
    path = tmp_path / "asks.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "trust": true}}}')
    host = dataclasses.replace(GEMINI, restrict=lambda context, entries: entries["a"].ask())
    (server,), _ = read_servers(FoundFile(path, host), tmp_path, {}, keep_approvals=True)
    assert server.tools == ToolConsent("ask")
