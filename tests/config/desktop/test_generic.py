"""Files with `mcpServers` at a place of no host: the keys of all hosts, and ours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import config
from config import (
    Address,
    AskSpec,
    AuditDetail,
    Channel,
    Consent,
    Isolation,
    KindConsent,
    Limits,
    Listen,
    OAuth,
    OAuthGrant,
    Rate,
    Rule,
    Secret,
    StdioServer,
    Trust,
    Verdict,
)
from config.desktop.desktop_file import OWN_TOP_KEYS
from config.desktop.generic import GENERIC
from config.schema import known_keys
from tests.config.desktop.kit import ALLOW, DENY, OFF, Home, state, states
from tests.config.kit import http, lines, load_text, stdio


def dump(servers: object, **more: object) -> str:
    return json.dumps({"mcpServers": servers, **more}, indent="\t")


def test_a_usual_file(tmp_path: Path) -> None:
    """JSON indented with tabs; names become ids, and what concerns the host alone is left out."""
    text = dump(
        {
            "GitHub": {
                "command": "npx",
                "args": ["-y", "@x/github", 8080],
                "env": {"TOKEN": "${TOKEN}", "ALSO": "${env:TOKEN}", "NO": "${NONE:-n}"},
                "autoApprove": ["x"],
                "description": "a server",
                "timeout": 60000,
            },
            "my_server": {"type": "streamableHttp", "url": "http://127.0.0.1:9/mcp", "headers": {"A": "b"}},
            "plain": {"transport": "stdio", "command": "/opt/my program/run", "cwd": "data", "disabled": False},
        },
        globalShortcut="x",
    )
    made = load_text(tmp_path, text, {"TOKEN": "t"}, "desktop.json")
    assert list(made.servers) == ["github", "my-server", "plain"]
    github = stdio(made, "github")
    assert [word.reveal() for word in github.command[1:]] == ["-y", "@x/github", "8080"]
    assert {name: value.reveal() for name, value in github.env.items()} == {"TOKEN": "t", "ALSO": "t", "NO": "n"}
    assert github.timeout == 60.0
    assert http(made, "my-server").headers["A"].reveal() == "b"
    assert (stdio(made, "plain").program.reveal(), stdio(made, "plain").cwd) == (
        "/opt/my program/run",
        tmp_path / "data",
    )
    assert made.notices == (
        "read as a mcpServers file",
        "GitHub is served as github",
        "my_server is served as my-server",
    )


def test_command_is_the_program_alone(tmp_path: Path) -> None:
    """A string is never split here, with or without args; a list is taken too."""
    (tmp_path / "my program").write_text("#!/bin/sh\n")
    (tmp_path / "my program").chmod(0o755)
    servers = {"a": {"command": "my program"}, "b": {"command": ["x", "y"]}}
    made = load_text(tmp_path, dump(servers), {"PATH": str(tmp_path)})
    assert [word.reveal() for word in stdio(made, "a").command] == ["my program"]
    assert [word.reveal() for word in stdio(made, "b").command] == ["x", "y"]


@pytest.mark.parametrize("key", ["type", "transport"])
@pytest.mark.parametrize("kind", ["http", "sse", "streamable-http", "streamableHttp", "streamable_http"])
def test_types_of_remote_servers(tmp_path: Path, key: str, kind: str) -> None:
    """The transport is found out by asking, whatever it is called, and the file need not know better."""
    server = {"url": "https://h/mcp", "headers": {"A": "b"}}
    made = load_text(tmp_path, dump({"a": {**server, key: kind}}))
    assert made == load_text(tmp_path, dump({"a": server}))
    assert (http(made, "a").url.reveal(), http(made, "a").headers["A"].reveal()) == ("https://h/mcp", "b")
    assert made.notices == ("read as a mcpServers file",)


def test_trust_and_isolation_are_ours(tmp_path: Path) -> None:
    """They may stand in such a file too; the truth that some hosts write under trust means another thing."""
    own = {"command": "x", "trust": "trusted", "isolation": "per-client", "max_instances": 2, "idle_timeout": "1m"}
    own |= {
        "start": "lazy",
        "idle": "5m",
        "protocol": "auto",
        "eras": "one",
        "start_timeout": "5s",
        "timeout_total": "20m",
    }
    made = load_text(tmp_path, dump({"a": own, "b": {"command": "x", "trust": True}}))
    a = made.servers["a"]
    assert (a.trust, a.isolation, a.max_instances, a.idle_timeout) == (Trust.TRUSTED, Isolation.PER_CLIENT, 2, 60.0)
    assert made.servers["b"].trust is Trust.STANDARD
    assert 'found "1"' in problem(tmp_path, {"a": {"command": "x", "trust": 1}})


def test_views_and_overrides_are_ours(tmp_path: Path) -> None:
    """A boundary in such a file is one."""
    more = {
        "listen": {"auth": {"tokens": {"ci": "0123456789abcdef"}}},
        "callers": {"ci": {"token": "ci"}},
        "views": {"few": {"callers": "ci", "servers": {"a": {"tools": "x"}}}, "none": {"servers": {}}},
        "default_view": "none",
    }
    made = load_text(tmp_path, dump({"a": {"command": "x", "overrides": {"x": {"name": "y"}}}}, **more))
    assert made.servers["a"].overrides["x"].name == "y"
    assert [*made.callers, *made.views, made.default_view] == ["ci", "few", "none", "none"]
    assert any("default_view" in line for line in lines(tmp_path, dump({"a": {"command": "x"}}, default_view="v")))


def test_a_server_may_run_in_the_folder_of_its_client(tmp_path: Path) -> None:
    made = load_text(tmp_path, dump({"a": {"command": "x", "cwd": "${client:folder}"}, "b": {"command": "x"}}))
    assert [stdio(made, id).takes_client_folder for id in ("a", "b")] == [True, False]
    assert "has one place" in problem(tmp_path, {"a": {"command": "x", "cwd": "${client:folder}/a"}})


@pytest.mark.parametrize(
    ("switches", "disabled"),
    [
        ({}, False),
        ({"disabled": True}, True),
        ({"disabled": False}, False),
        ({"enabled": False}, True),
        ({"enabled": True}, False),
        ({"enabled": True, "disabled": True}, True),
        ({"enabled": False, "disabled": False}, True),
    ],
)
def test_switches(tmp_path: Path, switches: dict[str, bool], disabled: bool) -> None:
    """Either word turns a server off."""
    assert load_text(tmp_path, dump({"a": {"command": "x", **switches}})).servers["a"].disabled is disabled


def test_limits_and_who_answers_are_ours(tmp_path: Path) -> None:
    """They may stand in such a file too, with JSON's own truths, and are held to our rules."""
    server = {
        "command": "x",
        "prefix": "p",
        "limits": {"calls": "60/min", "concurrent": 2},
        "consent": {"tools": {"ask": ["*"]}},
    }
    more = {"ask": {"answers": ["client"], "timeout": "5s"}, "console": False, "audit": {"arguments": "full"}}
    made = load_text(tmp_path, dump({"a": server}, **more))
    assert made.servers["a"].outward_prefix == "p"
    assert made.servers["a"].limits == Limits(Rate(60, 60.0), 2)
    assert made.servers["a"].consent.tools == KindConsent(ask=(Rule("*"),))
    assert (made.ask, made.console, made.audit.arguments) == (AskSpec((Channel.CLIENT,), 5.0), None, AuditDetail.FULL)
    assert made.notices == ("read as a mcpServers file",)
    server["limits"] = {"calls": 60}
    assert problem(tmp_path, {"a": server}).startswith("limits.calls: expected a rate")


def test_every_key_of_a_configuration_is_known_in_desktop_form() -> None:
    """A new one must be named in `generic.py`, or here with the reason why it is ignored there."""
    ignored = {"timeout", "title"}  # hosts count a timeout in different units, some write a title
    assert {*known_keys(())} - {"servers", "defaults", "names"} == OWN_TOP_KEYS  # the second is refused
    assert {*known_keys(("servers", "any"))} - {"disabled", *ignored} <= {*GENERIC.rules}


def test_defaults_are_refused_and_never_ignored(tmp_path: Path) -> None:
    """Beside keys of hosts that make rules, nobody could say what they replace. The key of another program is left."""
    [line] = lines(tmp_path, dump({"a": {"command": "x"}}, defaults={"consent": "ask"}))
    assert "defaults are for servers under the key servers" in line
    made = load_text(tmp_path, dump({"a": {"command": "x"}}, defaults={"consent": "ask", "model": "m"}))
    assert made.servers["a"].consent == Consent()


def test_own_keys_beside_and_inside(tmp_path: Path) -> None:
    """listen, start_grace and consent are ours and held to our rules."""
    server = {"command": "x", "consent": {"tools": {"allow": ["a"]}}}
    made = load_text(tmp_path, dump({"a": server}, listen={"address": "127.0.0.1:0"}, start_grace="1s"))
    assert (made.listen, made.start_grace) == (Listen(address=Address("127.0.0.1", 0)), 1.0)
    assert made.servers["a"].consent == Consent(tools=KindConsent((Rule("a"),)))
    server["consent"] = {"tools": {"alow": ["a"]}}
    assert problem(tmp_path, {"A b": server}) == 'consent.tools.alow: unknown key; did you mean "allow"?'
    found = lines(tmp_path, dump({"A b": server}, listen={"port": 1}))
    assert len(found) == 1
    assert "listen.port: unknown key" in found[0]


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (
            {"My App": {"command": "x"}, "my-app": {"command": "y"}},
            '"My App" and "my-app" would both be served as my-app; rename one',
        ),
        ({"a": {"command": "x"}, "A": {"command": "y"}}, '"a" and "A" would both be served as a; rename one'),
        ({"日本": {"command": "x"}}, "its name holds no letter or digit to make an id of; rename it"),
        ({"a": {"type": "htpp", "url": "http://h/"}}, 'its key "type" is "htpp"; did you mean "http"?'),
        ({"a": {"type": "stdio", "url": "http://h/"}}, 'its key "type" is "stdio", which needs a command'),
        ({"a": {"type": "http", "command": "x"}}, 'its key "type" is "http", which needs a url'),
        ({"a": {"transport": "Sse", "url": "http://h/"}}, 'its key "transport" is "Sse"; did you mean "sse"?'),
        ({"a": {"type": ["http"], "url": "http://h/"}}, 'its key "type" is a list; expected one of stdio, http'),
        ({"a": {"url": "http://h/", "client": "httpx"}}, "client: former key; remove it: one client"),
        ({"a": {"type": "http"}}, "expected exactly one of command and url, found neither"),
        ({"Big": {"command": "x", "env": {"K": None}}}, "env.K: expected text, found nothing"),
        ({"Big": {"command": "x", "env": {"K": "${MISSING}"}}}, "env.K: the environment variable MISSING is not set"),
        (
            {"Big": {"command": "x", "env": {"K": "${input:k}"}}},
            "env.K: the input k, which its host",
        ),
        ({"Big": {"command": "x", "enabled": "no"}}, 'its key "enabled" is text; expected true or false'),
        ({"Big": {"command": "x", "disabled": [1]}}, 'its key "disabled" is a list; expected true or false'),
        ({"Big": {"command": "x", "disabledTools": "a"}}, 'its key "disabledTools" is not a list of names of tools'),
        ({"Big": {"command": "x", "includeTools": ["a*"]}}, 'the tool "a*" is permitted by a name with * or ?'),
        ({"Big": {"command": "x", "disabled_tool": []}}, 'its key "disabled_tool" is not known here and could'),
        (
            {"Big": {"command": "x", "disabledTools": ["a"], "consent": {"tools": "allow"}}},
            "it has both consent for tools and a key of its host that restricts tools",
        ),
        ({"Big": {"url": "https://h/", "oauth": {"clientIds": "x"}}}, 'its key "oauth.clientIds" is not known here'),
        ({"Big": {"url": "https://h/", "auth": {"client_id": "x"}}}, 'its key "auth.client_id" is not known here'),
        ({"Big": "x"}, "it is text; expected a map"),
    ],
)
def test_a_server_that_cannot_be_used(tmp_path: Path, servers: dict[str, object], said: str) -> None:
    """It has a problem, and the other servers can be used."""
    assert problem(tmp_path, servers).startswith(said)


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("x", "mcpServers: expected a map of servers"),
        ({"a": {"command": "x", "env": {"K": "\ud800"}}}, "half a surrogate pair"),
    ],
)
def test_wrong_files(tmp_path: Path, servers: object, said: str) -> None:
    found = lines(tmp_path, dump(servers))
    assert any(said in line for line in found), found


def test_a_file_without_servers_is_served(tmp_path: Path) -> None:
    """Hosts write such a file when they are installed."""
    assert load_text(tmp_path, dump({})).servers == {}


def problem(folder: Path, servers: dict[str, object]) -> str:
    """The problem of the last of these servers; a further one must be free of it."""
    made = load_text(folder, dump({**servers, "other": {"command": "y"}}))
    assert len(made.servers) == len(servers) + 1
    assert not made.servers["other"].problem
    return list(made.servers.values())[-2].problem


def consent(folder: Path, **keys: object) -> KindConsent:
    made = load_text(folder, dump({"a": {"command": "x", **keys}}))
    assert not made.servers["a"].problem
    return made.servers["a"].consent.tools


def test_lists_of_tools_become_rules(tmp_path: Path) -> None:
    """A tool that the host does not offer is denied here."""
    assert consent(tmp_path, disabledTools=["a", "b*"]) == KindConsent(deny=(Rule("a"), Rule("b*")))
    assert consent(tmp_path, includeTools=["a", "b"]) == KindConsent((Rule("a"), Rule("b")))
    assert consent(tmp_path, includeTools=[]) == KindConsent(())
    assert consent(tmp_path, includeTools=["a", "b"], excludeTools=["b", "c"]) == KindConsent(
        (Rule("a"),), deny=(Rule("b"), Rule("c"))
    )
    assert consent(tmp_path, autoApprove=["a"]) == KindConsent()


def test_keys_that_hosts_call_differently(tmp_path: Path) -> None:
    """A URL has several names, and there are approvals, which are only noted, and texts for people."""
    for key in ("url", "serverUrl", "httpUrl"):
        text = dump({"a": {key: "https://h/mcp", "alwaysAllow": ["x"], "name": "A", "title": "A", "timeout": 5}})
        assert http(load_text(tmp_path, text), "a").url.reveal() == "https://h/mcp"


@pytest.mark.parametrize(
    "entry", [{"headersHelper": "print headers"}, {"headers_helper": ["/bin/sh", "-c", "print headers"]}]
)
def test_a_helper_for_headers(tmp_path: Path, entry: dict[str, object]) -> None:
    """In the form of hosts, a command line for a shell, and in ours."""
    made = load_text(tmp_path, dump({"a": {"url": "https://h/mcp", **entry}}))
    assert [word.reveal() for word in http(made, "a").headers_helper or ()] == ["/bin/sh", "-c", "print headers"]


def test_long_names_are_shortened_alike_every_time(tmp_path: Path) -> None:
    """The id of a long name depends on that name alone."""
    name = "awslabs.aws-documentation-mcp-server"
    made = load_text(tmp_path, dump({"z": {"command": "x"}, name: {"command": "x"}}))
    assert list(made.servers) == ["z", "awslabs-aws-d-c94c58"]
    assert made.notices == ("read as a mcpServers file", f"{name} is served as awslabs-aws-d-c94c58")


def test_desktop_form_in_yaml(tmp_path: Path) -> None:
    """The same fields in YAML, read by the same strict reader."""
    text = "mcpServers:\n  Git Hub:\n    command: npx\n    env: {A: no, B: 012, C: '${X}'}\n"
    env = stdio(load_text(tmp_path, text, {"X": "x"}), "git-hub").env
    assert {name: value.reveal() for name, value in env.items()} == {"A": "no", "B": "012", "C": "x"}


def test_notices_hold_no_secrets(tmp_path: Path) -> None:
    """Names of fields are told, their values never."""
    made = load_text(tmp_path, dump({"A": {"command": "x", "oauth": "s3cr3t", "env": {"K": "s3cr3t"}}}, key="s3cr3t"))
    assert "s3cr3t" not in repr(made.notices) + repr(made) + made.servers["a"].problem


def test_null_is_what_hosts_write_for_nothing(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "args": None, "env": None, "cwd": None, "url": None, "headers": None}}
    made = load_text(tmp_path, dump(servers))
    assert isinstance(made.servers["a"], StdioServer)
    assert [word.reveal() for word in made.servers["a"].command] == ["x"]
    assert made.notices == ("read as a mcpServers file",)


def test_clients_of_logins(tmp_path: Path) -> None:
    """In our form, and in those of Claude Code and Cursor."""
    grant = {"client_id": "c", "client_secret": "${S}", "grant": "client_credentials", "scopes": ["a"]}
    clients: dict[str, dict[str, object]] = {
        "ours": {"oauth": grant},
        "claude": {"oauth": {"clientId": "c", "callbackPort": 8080, "scopes": "a b"}},
        "cursor": {"auth": {"CLIENT_ID": "c", "CLIENT_SECRET": "${S}"}},
        "none": {"oauth": {}},
    }
    servers = {name: {"url": f"https://{name}.example/mcp", **client} for name, client in clients.items()}
    made = load_text(tmp_path, dump(servers), {"S": "s"})
    client, secret = Secret("c"), Secret("s")
    assert [http(made, name).oauth for name in clients] == [
        OAuth(client_id=client, client_secret=secret, grant=OAuthGrant.CLIENT_CREDENTIALS, scopes=("a",)),
        OAuth(client_id=client, redirect_port=8080, scopes=("a", "b")),
        OAuth(client_id=client, client_secret=secret),
        None,
    ]
    assert "'s'" not in repr(made)


def test_the_keys_of_a_client_are_all_of_ours(tmp_path: Path) -> None:
    for field in dataclasses.fields(OAuth):
        value = {"client_id": "c", field.name: "not a value"}
        problem_of_value = problem(tmp_path, {"a": {"url": "https://h/", "oauth": value}})
        assert "is not known here" not in problem_of_value


@pytest.mark.parametrize("off", [True, False])
def test_what_is_switched_off_may_name_variables_that_are_gone(tmp_path: Path, off: bool) -> None:
    text = dump({"a": {"command": "x", "env": {"K": "${OLD_KEY}"}, "disabled": off}, "b": {"command": "y"}})
    if off:
        assert load_text(tmp_path, text).servers["a"].disabled
    else:
        assert "OLD_KEY" in load_text(tmp_path, text).servers["a"].problem


def test_variables_of_a_file(tmp_path: Path) -> None:
    """Those of the entry itself replace them, and nothing in them is a reference."""
    (tmp_path / "vars").write_text("# keys\nA=1\nexport B='two words'\nC=${A}\n\nD=\n")
    made = load_text(tmp_path, dump({"a": {"command": "x", "envFile": str(tmp_path / "vars"), "env": {"A": "0"}}}))
    env = {name: value.reveal() for name, value in stdio(made, "a").env.items()}
    assert env == {"A": "0", "B": "two words", "C": "${A}", "D": ""}
    assert problem(tmp_path, {"a": {"command": "x", "envFile": "/nowhere"}}) == (
        'the file that its key "envFile" names cannot be read'
    )


def test_inputs_are_asked_for_once(tmp_path: Path) -> None:
    """An answer holds for the whole file, and for the next reading of it."""
    file = tmp_path / "c.json"
    file.write_text(dump({"a": {"command": "x", "env": {"K": "${input:key}", "L": "Bearer ${input:key}"}}}))
    asked: list[str] = []

    def ask(id: str, description: str) -> str:
        asked.append(id)
        return "s3cr3t"

    made = config.load(file, {}, home=tmp_path, ask=ask)
    again = config.load(file, {}, home=tmp_path, answers=made.answers)
    assert asked == ["key"]
    for each in (made, again):
        assert stdio(each, "a").env["L"].reveal() == "Bearer s3cr3t"
    assert "s3cr3t" not in repr(made) + repr(made.answers)


HARMLESS = {
    "command": "x",
    "owner": "admin",
    "visibility": "private",
    "created": "2026-01-01",
    "updated": "2026-01-01",
    "skip_quarantine": True,
    "reconnect_on_use": True,
    "init_timeout": "9s",
    "icon": "a.svg",
    "alias": "a",
    "auto_approve_tool_changes": True,
    "fromGalleryId": "g",
    "displayName": "d",
    "display_name": "d",
    "serverName": "s",
    "metadata": {},
    "tags": ["t"],
    "version": "1",
    "gallery": True,
    "iconPath": "i",
    "faviconUrl": "f",
    "serverInstructions": True,
    "chatMenu": False,
    "alwaysLoad": True,
    "deferTools": True,
    "startup_timeout_sec": 5,
    "tool_timeout_sec": 5,
    "request_timeout_ms": 5,
    "connectionTimeout": 5,
    "initTimeout": 5,
    "startup": True,
    "required": True,
    "watchPaths": [],
    "remoteConfigured": True,
    "mcp_info": {"server_name": "a"},
    "uuid": "u",
    "id": "i",
    "_comment": "c",
    "comment": "c",
    "$typeName": "t",
    "requiresOAuth": False,
    "registryUrl": "",
    "provider": "",
    "providerUrl": "",
    "logoUrl": "",
    "longRunning": True,
    "isTrusted": True,
    "installSource": "manual",
    "searchKey": "",
    "official": True,
    "custom_instructions": {"text": "t"},
    "start_on_launch": True,
    "autoStart": False,
    "autostart": False,
}
"""A server with keys that change nothing of what it may do."""


@pytest.mark.parametrize(
    ("entry", "ours"),
    [
        ({"cmd": "x", "envs": {"A": "b"}, "working_dir": "/d"}, {"command": "x", "env": {"A": "b"}, "cwd": "/d"}),
        ({"command": "x", "environment": {"A": "b"}}, {"command": "x", "env": {"A": "b"}}),
        ({"command": "x", "working_directory": "/d"}, {"command": "x", "cwd": "/d"}),
        ({"command": "x", "workingDirectory": "/d"}, {"command": "x", "cwd": "/d"}),
        ({"command": "x", "type": "local", "tools": ["*"], "isActive": True}, {"command": "x"}),
        ({"command": "x", "transportType": "stdio", "quarantined": False}, {"command": "x"}),
        ({"command": "x", "protocol": "stdio", "isolation": {"enabled": False}}, {"command": "x"}),
        ({"url": "https://h/mcp", "transportType": "streamable-http"}, {"url": "https://h/mcp"}),
        ({"url": "https://h/mcp", "type": "remote", "protocol": "streamable-http"}, {"url": "https://h/mcp"}),
        ({"baseUrl": "https://h/mcp", "type": "sse"}, {"url": "https://h/mcp"}),
        ({"uri": "https://h/mcp", "http_headers": {"A": "b"}}, {"url": "https://h/mcp", "headers": {"A": "b"}}),
        ({"url": "https://h/mcp", "serverUrl": "https://h/mcp"}, {"url": "https://h/mcp"}),
        (
            {"url": "https://h/mcp", "auth": "oauth", "sse_read_timeout": 5, "keep_alive": True},
            {"url": "https://h/mcp"},
        ),
        ({"transport": {"type": "streamableHttp", "url": "https://h/mcp"}}, {"url": "https://h/mcp"}),
        ({"url": "https://h/mcp", "command": "", "args": [], "env": {}, "type": "http"}, {"url": "https://h/mcp"}),
        ({"command": "x", "url": "", "headers": {}, "type": "stdio"}, {"command": "x"}),
        ({"command": "x", "url": None, "headers": {}}, {"command": "x"}),
        ({"httpUrl": "https://h/mcp", "args": []}, {"url": "https://h/mcp"}),
        ({"url": "https://h/mcp", "type": "STREAMABLE_HTTP"}, {"url": "https://h/mcp"}),
        ({"command": "x", "prompts": {"p": {"enabled": True}}, "resources": {}}, {"command": "x"}),
        ({"command": "x", "disabled_prompts": [], "disabled_resources": []}, {"command": "x"}),
        ({"command": "x", "disabled_resourceTemplates": [], "autoApprove": True, "active": True}, {"command": "x"}),
        ({"command": "x", "trust_mode": "auto", "options": {"timeout": 5}}, {"command": "x"}),
        (HARMLESS, {"command": "x"}),
    ],
)
def test_keys_of_other_hosts_and_gateways(tmp_path: Path, entry: dict[str, object], ours: dict[str, object]) -> None:
    expected = load_text(tmp_path, dump({"a": ours})).servers
    assert load_text(tmp_path, dump({"a": entry}), name="x.json").servers == expected


def test_servers_in_a_list_under_another_key_and_without_one(tmp_path: Path) -> None:
    expected = load_text(tmp_path, dump({"a": {"command": "x"}})).servers
    entry = {"cmd": "x"}
    named = [{"name": "a", **entry}]
    for root in ({"mcpServers": named}, {"servers": named}, {"mcp_servers": {"a": entry}}, {"a": entry}):
        assert load_text(tmp_path, json.dumps(root), name="x.json").servers == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"tools": ["read"]}, KindConsent((Rule("read"),))),
        ({"tools": ["read", "*"]}, KindConsent()),
        ({"tools": []}, KindConsent(())),
        ({"enabledTools": ["a"], "enabled_tools": ["a", "b"]}, KindConsent((Rule("a"),))),
        ({"allowedTools": ["a"]}, KindConsent((Rule("a"),))),
        ({"allowed_tools": ["a"], "disallowed_tools": ["b"]}, KindConsent((Rule("a"),), deny=(Rule("b"),))),
        ({"disabled_tools": ["a"]}, KindConsent(deny=(Rule("a"),))),
        ({"disabledAutoApproveTools": ["a"]}, KindConsent(ask=(Rule("a"),))),
        (
            {"tools": {"x": {"enabled": False}, "y": {"enabled": True, "description": "d"}}},
            KindConsent(deny=(Rule("x"),)),
        ),
        ({"tools": {"a-x": {"enabled": False}}}, KindConsent(deny=(Rule("a-x"), Rule("x")))),
        ({"options": {"toolFilter": {"mode": "allow", "list": ["x"]}}}, KindConsent((Rule("x"),))),
        ({"options": {"toolFilter": {"mode": "block", "list": ["x"]}}}, KindConsent(deny=(Rule("x"),))),
    ],
)
def test_restrictions_of_other_hosts_and_gateways(tmp_path: Path, keys: dict[str, object], expected: object) -> None:
    assert consent(tmp_path, **keys) == expected


@pytest.mark.parametrize("keys", [{"quarantined": True}, {"isActive": False}, {"enabled": False}, {"active": False}])
def test_what_a_gateway_has_switched_off_is_off(tmp_path: Path, keys: dict[str, object]) -> None:
    assert load_text(tmp_path, dump([{"name": "a", "command": "x", **keys}])).servers["a"].disabled


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"include_tags": ["a"]}, 'its key "include_tags" picks tools by their tags'),
        ({"exclude_tags": ["a"]}, 'its key "exclude_tags" picks tools by their tags'),
        ({"access_groups": ["a"]}, 'its key "access_groups" says who may use it'),
        ({"tools": {"x": {"name": "y"}}}, 'its key "tools" changes the tool "x", which is not possible here'),
        ({"tools": {"x": {"enabled": "no"}}}, 'its key "tools.x.enabled" is text; expected true or false'),
        ({"tools": "x"}, 'its key "tools" is not a list of names of tools'),
        ({"prompts": {"p": {"enabled": False}}}, 'its key "prompts" switches something off'),
        ({"disabled_prompts": ["p"]}, 'its key "disabled_prompts" switches something off'),
        ({"customUserVars": {"A": {}}}, 'its key "customUserVars" asks each user for values'),
        ({"headers": {"A": "b"}}, "headers belongs to a server with a url"),
        ({"headersHelper": "x", "url": ""}, "headers_helper belongs to a server with a url"),
        ({"headersHelper": "x", "httpUrl": None}, "headers_helper belongs to a server with a url"),
        ({"args": ["${workspaceFolder}"]}, "it names the folder of a project"),
        ({"args": ["${extensionPath}${/}x.js"]}, "${extensionPath} is a folder that only its host knows"),
        ({"isolation": {"enabled": True}}, 'its key "isolation" has its host confine the program'),
        ({"options": {"toolFilter": {"list": ["x"]}}}, 'its key "options.toolFilter" has no mode'),
        ({"options": {"authTokens": ["t"]}}, 'its key "options.authTokens" is not known here and could restrict it'),
        ({"cmd": "y"}, 'its keys "command" and "cmd" mean the same and differ; remove one'),
        ({"cwd": "/a", "working_dir": "/b"}, 'its keys "cwd" and "working_dir" mean the same and differ; remove one'),
        ({"command": "npx -y @scope/server"}, 'its key "command" holds arguments'),
        ({"command": "npx", "args": [], "sandbox": {}}, 'its key "sandbox" is not known here and could restrict it'),
    ],
)
def test_what_cannot_be_taken_over_stops_the_server(tmp_path: Path, keys: dict[str, object], said: str) -> None:
    assert said in problem(tmp_path, {"a": {"command": "x", **keys}})


def test_a_server_whose_tools_a_person_has_to_look_at_asks(tmp_path: Path) -> None:
    assert consent(tmp_path, trust_mode="manual") == KindConsent(default=Verdict.ASK)


LITELLM_FILE = """
model_list: []
mcp_servers:
  one:
    url: https://one.example/mcp
    transport: http
    auth_type: bearer_token
    auth_value: os.environ/TOKEN
    static_headers: {X-A: a}
    extra_headers: [authorization]
    allowed_tools: [read]
  two: {url: "https://two.example/mcp", auth_type: api_key, authentication_token: os.environ/TOKEN}
  three: {transport: stdio, command: x, env: {A: os.environ/TOKEN}}
  four: {url: "https://four.example/mcp", auth_type: basic, auth_value: a}
  six: {url: "https://six.example/mcp", auth_type: oauth2, client_id: c, client_secret: os.environ/TOKEN, scopes: [a]}
  five: {url: "https://five.example/mcp", allowed_params: {read: [path]}}
"""


def test_a_file_of_litellm(tmp_path: Path) -> None:
    made = load_text(tmp_path, LITELLM_FILE, {"TOKEN": "t"}, "config.yaml")
    assert made.notices[0] == "read as a LiteLLM file"
    one = http(made, "one")
    assert {name: value.reveal() for name, value in one.headers.items()} == {"X-A": "a", "Authorization": "Bearer t"}
    assert one.consent.tools == KindConsent((Rule("read"),))
    assert http(made, "two").headers["X-API-Key"].reveal() == "t"
    assert stdio(made, "three").env["A"].reveal() == "t"
    assert http(made, "six").oauth == OAuth(Secret("c"), Secret("t"), scopes=("a",))
    assert "are a login that is not known here; write headers" in made.servers["four"].problem
    assert '"allowed_params" is not known here and could restrict it' in made.servers["five"].problem


def test_a_guardrail_of_litellm_stops_its_servers(tmp_path: Path) -> None:
    text = LITELLM_FILE + "guardrails: [{guardrail_name: g, litellm_params: {mode: pre_mcp_call}}]\n"
    made = load_text(tmp_path, text, {"TOKEN": "t"}, "config.yaml")
    assert "a guardrail of its file could" in made.servers["three"].problem


def test_a_file_of_mcpproxy(tmp_path: Path) -> None:
    """Its own keys beside the servers are none of ours, and its containers confine here nothing."""
    servers = [
        {
            "name": "a",
            "command": "x",
            "protocol": "stdio",
            "enabled": True,
            "quarantined": False,
            "disabled_tools": ["t"],
        },
        {"name": "b", "url": "https://h/mcp", "protocol": "auto"},
        {"name": "c", "command": "x", "isolation": {"enabled": False}},
        {"name": "a", "command": "y"},
        "text",
    ]
    file: dict[str, object] = {"listen": "127.0.0.1:8080", "data_dir": "~/.mcpproxy", "mcpServers": servers}
    made = load_text(tmp_path, json.dumps(file), name="mcp_config.json")
    assert made.notices[0] == "read as a mcpproxy-go file"
    assert [bool(each.problem) for each in made.servers.values()] == [False, False, False, True, True]
    assert made.servers["a"].consent.tools == KindConsent(deny=(Rule("t"),))
    file["docker_isolation"] = {"enabled": True}
    made = load_text(tmp_path, json.dumps(file), name="mcp_config.json")
    assert [bool(each.problem) for each in made.servers.values()] == [True, False, False, True, True]
    assert '"docker_isolation" of the file has its host confine' in made.servers["a"].problem
    file["output_sanitisation"] = {"mode": "block"}
    made = load_text(tmp_path, json.dumps(file), name="mcp_config.json")
    assert '"output_sanitisation" of its file filters what tools answer' in made.servers["b"].problem


def test_a_file_of_mcphub(tmp_path: Path) -> None:
    file = {"mcpServers": {"a": {"command": "x", "enabled": True}}, "users": [], "systemConfig": {"routing": {}}}
    made = load_text(tmp_path, json.dumps(file), name="mcp_settings.json")
    assert (made.notices, made.servers["a"].problem) == (("read as a mcphub file",), "")
    file["systemConfig"] = {"routing": {"enableGlobalRoute": False}}
    made = load_text(tmp_path, json.dumps(file), name="mcp_settings.json")
    assert "by which groups alone permit servers" in made.servers["a"].problem


def test_a_file_of_a_gateway_gives_no_trust(tmp_path: Path) -> None:
    file = {"mcp_servers": {"a": {"command": "x", "trust": "trusted"}}, "model_list": []}
    made = load_text(tmp_path, json.dumps(file), name="x.json")
    assert '"trust" is not known here' in made.servers["a"].problem


FOREIGN = {"serverUrl": "https://h/mcp"}
"""A server with a key that some hosts do not know."""


@pytest.mark.parametrize(
    ("beside", "file", "content"),
    [
        ({"a": {"command": "x", "transportType": "stdio"}}, "global-settings.json", {"disabledTools": ["a__read"]}),
        ({"a": {"transport": {"command": "x"}}}, "global-settings.json", {"disabledTools": ["a__read"]}),
        ({"a": {"command": "x", "type": "local"}}, "~/.copilot/settings.json", {"disabledMcpServers": ["a"]}),
        ([{"name": "a", "command": "x"}], "~/.continue/permissions.yaml", {"exclude": ["read"]}),
    ],
)
def test_restrictions_of_the_host_that_a_server_is_pasted_from(
    home: Home, beside: dict[str, object] | list[object], file: str, content: object
) -> None:
    """Such a file was once read as that host's, and permits no more since."""
    foreign = [{"name": "b", **FOREIGN}, *beside] if isinstance(beside, list) else {"b": FOREIGN, **beside}
    made = home.load("pasted.json", {"mcpServers": foreign})
    assert (made.notices[0], states(made, "a", "read")) == ("read as a mcpServers file", [ALLOW])
    home.write(file, content)
    assert state(home.read("pasted.json"), "a", "read") in (DENY, OFF)


@pytest.mark.parametrize(
    ("more", "host"),
    [
        ({"$version": 3, "permissions": {"deny": ["mcp__a__read"]}}, "Qwen Code"),
        ({"mcp": {"excluded": ["a"]}}, "Gemini CLI"),
        ({"projects": {"/p": {"disabledMcpServers": ["a"]}}}, "Claude Code"),
    ],
)
def test_restrictions_beside_the_servers_of_a_host(home: Home, more: dict[str, object], host: str) -> None:
    """They hold whether or not a server has a key that the host does not know."""
    servers: dict[str, object] = {"a": {"command": "x"}}
    made = home.load("settings.json", {"mcpServers": servers, **more})
    assert (made.notices[0], state(made, "a", "read")) == (f"read as a {host} file", state(made, "a", "read"))
    assert state(made, "a", "read") in (DENY, OFF)
    made = home.load("settings.json", {"mcpServers": {**servers, "b": FOREIGN}, **more})
    assert made.notices[0] == "read as a mcpServers file"
    assert state(made, "a", "read") in (DENY, OFF)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"permissions": {"deny": ["mcp__a__read"]}}, [DENY, ALLOW]),
        ({"excludeMCPServers": ["a"]}, [OFF, OFF]),
        ({"allowMCPServers": ["b"]}, [OFF, OFF]),
        ({"excludeTools": ["read"]}, [DENY, ALLOW]),
        ({"admin": {"mcp": {"enabled": False}}}, [OFF, OFF]),
        ({"disabledMcpServers": ["a"]}, [OFF, OFF]),
        ({"disabledMcpjsonServers": ["a"]}, [OFF, OFF]),
        ({"deniedMcpServers": [{"serverCommand": ["python3"]}]}, ["problem", "problem"]),
        ({"allowedMcpServers": [{"serverName": "b"}]}, [OFF, OFF]),
        ({"allowedMcpServers": [{"serverName": "a"}]}, [ALLOW, ALLOW]),
        ({"deniedMcpServers": "a"}, ["problem", "problem"]),
        ({"hooks": {"PreToolUse": [{"matcher": "mcp__.*"}]}}, ["problem", "problem"]),
        ({"hooks": {"PreToolUse": [{"matcher": "Bash"}], "Stop": [{}]}}, [ALLOW, ALLOW]),
        ({"chat.mcp.access": "none"}, [OFF, OFF]),
        ({"chat.mcp.access": "all", "chat.mcp.enabled": True}, [ALLOW, ALLOW]),
        ({"chat.disableAIFeatures": True}, [OFF, OFF]),
        ({"tools": ["@a/read", "fs_read"]}, [ALLOW, DENY]),
        ({"tools": ["@a/re*"]}, [ALLOW, DENY]),
        ({"tools": ["fs_read"]}, [DENY, DENY]),
        ({"tools": ["@a"]}, [ALLOW, ALLOW]),
        ({"tools": ["*"], "allowedTools": ["fs_read"]}, [ALLOW, ALLOW]),
    ],
)
def test_what_restricts_beside_the_servers_in_no_hosts_file(
    home: Home, more: dict[str, object], expected: list[str]
) -> None:
    """Such a key makes the file no host's, and is never dropped."""
    made = home.load("pasted.json", {"mcpServers": {"a": {"command": "python3"}}, **more})
    assert (made.notices[0], states(made, "a", "read", "write")) == ("read as a mcpServers file", expected)


@pytest.mark.parametrize(
    ("env", "reads"), [({"K": "v"}, False), ({"K": "${K}"}, True), ({}, True), ({"OTHER": "v"}, True)]
)
def test_a_program_may_fill_in_its_own_variables(tmp_path: Path, env: dict[str, str], reads: bool) -> None:
    """As mcp-remote does."""
    entry = {"command": "x", "args": ["A:${K}", "$${K}"], "env": env}
    made = load_text(tmp_path, dump({"a": entry}), {"K": "outer"})
    assert [word.reveal() for word in stdio(made, "a").command] == ["x", "A:outer" if reads else "A:${K}", "${K}"]


@pytest.mark.parametrize("listen", [":8080", "127.0.0.1:8080"])
def test_the_least_file_of_mcpproxy(tmp_path: Path, listen: str) -> None:
    text = json.dumps({"listen": listen, "mcpServers": [{"name": "a", "command": "x", "protocol": "stdio"}]})
    assert load_text(tmp_path, text, name="x.json").notices[0] == "read as a mcpproxy-go file"


def test_variables_without_braces_are_text_and_a_note_says_so(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "env": {"A": "Bearer $TOKEN"}}, "b": {"command": "x", "env": {"A": "pa$word"}}}
    made = load_text(tmp_path, dump(servers))
    assert stdio(made, "a").env["A"].reveal() == "Bearer $TOKEN"
    assert [note.partition(":")[0] for note in made.notices if "$NAME" in note] == ["a"]


def test_the_folder_of_the_user_is_known(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(dump({"a": {"command": "x", "args": ["${userHome}${/}n"]}}))
    made = config.load(tmp_path / "x.json", {}, home=Path("/u"))
    assert [word.reveal() for word in stdio(made, "a").command] == ["x", "/u/n"]


def test_own_settings_are_not_those_of_a_host(home: Home) -> None:
    """With a key of ours beside the servers it is a file for Colonnade."""
    home.write("~/.copilot/settings.json", {"disabledMcpServers": ["a"]})
    root = {"mcpServers": {"a": {"command": "x", "type": "local"}}, "console": False}
    assert state(home.load("mine.json", root), "a") == ALLOW


def test_settings_of_codex_in_another_syntax(home: Home) -> None:
    made = home.load("x.yaml", "mcp_servers: {a: {command: x}}\napproval_policy: never\n")
    assert (made.notices[0], state(made, "a")) == ("read as a mcpServers file", "problem")
