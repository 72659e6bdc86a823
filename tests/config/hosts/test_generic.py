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
)
from config.hosts import GENERIC
from config.hosts.desktop_file import OWN_TOP_KEYS
from config.schema import known_keys
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
    made = load_text(tmp_path, dump({"a": {"command": "my program"}, "b": {"command": ["x", "y"]}}))
    assert [word.reveal() for word in stdio(made, "a").command] == ["my program"]
    assert [word.reveal() for word in stdio(made, "b").command] == ["x", "y"]


@pytest.mark.parametrize("key", ["type", "transport"])
@pytest.mark.parametrize("kind", ["http", "sse", "streamable-http", "streamableHttp", "streamable_http"])
def test_types_of_remote_servers(tmp_path: Path, key: str, kind: str) -> None:
    """Whatever the transport is called: it is found out by asking, and the file need not know better."""
    server = {"url": "https://h/mcp", "headers": {"A": "b"}}
    made = load_text(tmp_path, dump({"a": {**server, key: kind}}))
    assert made == load_text(tmp_path, dump({"a": server}))
    assert (http(made, "a").url.reveal(), http(made, "a").headers["A"].reveal()) == ("https://h/mcp", "b")
    assert made.notices == ("read as a mcpServers file",)


def test_trust_and_isolation_are_ours(tmp_path: Path) -> None:
    """They may stand in such a file too; the truth that some hosts write under trust means another thing."""
    own = {"command": "x", "trust": "trusted", "isolation": "per-client", "max_instances": 2, "idle_timeout": "1m"}
    own |= {"start": "lazy", "idle": "5m", "protocol": "auto", "eras": "one", "start_timeout": "5s"}
    made = load_text(tmp_path, dump({"a": own, "b": {"command": "x", "trust": True}}))
    a = made.servers["a"]
    assert (a.trust, a.isolation, a.max_instances, a.idle_timeout) == (Trust.TRUSTED, Isolation.PER_CLIENT, 2, 60.0)
    assert made.servers["b"].trust is Trust.STANDARD
    assert 'found "1"' in problem(tmp_path, {"a": {"command": "x", "trust": 1}})


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
    server = {"command": "x", "limits": {"calls": "60/min", "concurrent": 2}, "consent": {"tools": {"ask": ["*"]}}}
    more = {"ask": {"answers": ["client"], "timeout": "5s"}, "console": False, "audit": {"arguments": "full"}}
    made = load_text(tmp_path, dump({"a": server}, **more))
    assert made.servers["a"].limits == Limits(Rate(60, 60.0), 2)
    assert made.servers["a"].consent.tools == KindConsent(ask=(Rule("*"),))
    assert (made.ask, made.console, made.audit.arguments) == (AskSpec((Channel.CLIENT,), 5.0), None, AuditDetail.FULL)
    assert made.notices == ("read as a mcpServers file",)
    server["limits"] = {"calls": 60}
    assert problem(tmp_path, {"a": server}).startswith("limits.calls: expected a rate")


def test_every_key_of_a_configuration_is_known_in_desktop_form() -> None:
    """A new one must be named in `generic.py`, or here with the reason why it is ignored there."""
    ignored = {"timeout", "title"}  # hosts count a timeout in different units, some write a title
    assert {*known_keys(())} - {"servers"} == OWN_TOP_KEYS
    assert {*known_keys(("servers", "any"))} - {"disabled", *ignored} <= {*GENERIC.rules}


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
        ({"a": {"transport": "SSE", "url": "http://h/"}}, 'its key "transport" is "SSE"; did you mean "sse"?'),
        ({"a": {"type": ["http"], "url": "http://h/"}}, 'its key "type" is a list; expected one of stdio, http'),
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
        ({"Big": {"command": "x", "disabled_tools": []}}, 'its key "disabled_tools" is not known here and could'),
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
