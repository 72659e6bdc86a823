"""Files of desktop hosts, taken as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    Rate,
    Rule,
    StdioServer,
    Trust,
)
from config.desktop import _OWN_SERVER_KEYS, _SERVER_KEYS, OWN_TOP_KEYS
from config.schema import known_keys
from tests.config.kit import http, lines, load_text, stdio


def dump(servers: object, **more: object) -> str:
    return json.dumps({"mcpServers": servers, **more}, indent="\t")


def test_a_usual_file(tmp_path: Path) -> None:
    """JSON indented with tabs; names become ids, unknown fields are told and left out."""
    text = dump(
        {
            "GitHub": {
                "command": "npx",
                "args": ["-y", "@x/github", 8080],
                "env": {"TOKEN": "${TOKEN}", "ALSO": "${env:TOKEN}", "NO": "${NONE:-n}"},
                "autoApprove": ["x"],
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
        "mcpServers.GitHub.autoApprove: not known here, ignored",
        "mcpServers.GitHub.timeout: ignored, since hosts count it in different units",
        "GitHub is served as github",
        "my_server is served as my-server",
        "globalShortcut: not known here, ignored",
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
    assert made.notices == ()


def test_trust_and_isolation_are_ours(tmp_path: Path) -> None:
    """They may stand in such a file too; the truth that some hosts write under trust means another thing."""
    own = {"command": "x", "trust": "trusted", "isolation": "per-client", "max_instances": 2, "idle_timeout": "1m"}
    made = load_text(tmp_path, dump({"a": own, "b": {"command": "x", "trust": True}}))
    a = made.servers["a"]
    assert (a.trust, a.isolation, a.max_instances, a.idle_timeout) == (Trust.TRUSTED, Isolation.PER_CLIENT, 2, 60.0)
    assert made.servers["b"].trust is Trust.STANDARD
    assert made.notices == (
        "mcpServers.b.trust: a switch of other hosts, ignored; here it is trusted, standard or untrusted",
    )
    assert 'found "1"' in lines(tmp_path, dump({"a": {"command": "x", "trust": 1}}))[0]


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
    assert made.notices == ()
    server["limits"] = {"calls": 60}
    assert "mcpServers.a.limits.calls: expected a rate" in lines(tmp_path, dump({"a": server}))[0]


def test_every_key_of_a_configuration_is_known_in_desktop_form() -> None:
    """A new one must be named in `desktop.py`, or here with the reason why it is ignored there."""
    ignored = {
        "timeout",
        "title",
    }  # other hosts count a timeout in different units, some write a title
    assert {*known_keys(())} - {"servers"} == OWN_TOP_KEYS
    assert {*known_keys(("servers", "any"))} - {"disabled", *ignored} == _SERVER_KEYS | _OWN_SERVER_KEYS


def test_own_keys_beside_and_inside(tmp_path: Path) -> None:
    """listen, start_grace and consent are ours and held to our rules."""
    server = {"command": "x", "consent": {"tools": {"allow": ["a"]}}}
    made = load_text(tmp_path, dump({"a": server}, listen={"address": "127.0.0.1:0"}, start_grace="1s"))
    assert (made.listen, made.start_grace) == (Listen(address=Address("127.0.0.1", 0)), 1.0)
    assert made.servers["a"].consent == Consent(tools=KindConsent((Rule("a"),)))
    server["consent"] = {"tools": {"alow": ["a"]}}
    found = lines(tmp_path, dump({"A b": server}, listen={"port": 1}))
    assert len(found) == 2
    assert 'mcpServers.A b.consent.tools.alow: unknown key; did you mean "allow"?' in found[0]
    assert "listen.port: unknown key" in found[1]


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        (
            {"My App": {"command": "x"}, "my-app": {"command": "y"}},
            '"My App" and "my-app" would both be served as my-app',
        ),
        ({"a": {"command": "x"}, "A": {"command": "y"}}, '"a" and "A" would both be served as a'),
        ({"日本": {"command": "x"}}, "mcpServers.日本: the name holds no letter or digit"),
        ({"a": {"type": "htpp", "url": "http://h/"}}, 'found "htpp"; did you mean "http"?'),
        ({"a": {"type": "stdio", "url": "http://h/"}}, "mcpServers.a.type: stdio needs command, found url"),
        ({"a": {"type": "http", "command": "x"}}, "mcpServers.a.type: http needs url, found command"),
        ({"a": {"type": "sse", "command": "x"}}, "mcpServers.a.type: sse needs url, found command"),
        ({"a": {"transport": "stdio", "url": "http://h/"}}, "mcpServers.a.transport: stdio needs command, found url"),
        (
            {"a": {"transport": "SSE", "url": "http://h/"}},
            'mcpServers.a.transport: expected stdio, http or sse, found "SSE"',
        ),
        ({"a": {"type": None, "command": "x"}}, "mcpServers.a.type: expected stdio, http or sse, found nothing"),
        ({"a": {"type": "http"}}, "mcpServers.a: expected exactly one of command and url, found neither"),
        ({"Big": {"command": "x", "env": {"K": None}}}, "mcpServers.Big.env.K: expected text, found nothing"),
        (
            {"Big": {"command": "x", "env": {"K": "${MISSING}"}}},
            "mcpServers.Big.env.K: the environment variable MISSING",
        ),
        ({"Big": {"command": "x", "env": {"K": "${input:k}"}}}, "${input:...} is not a known form"),
        ({"Big": {"command": "x", "enabled": "no"}}, "mcpServers.Big.enabled: expected true or false"),
        ({"Big": {"command": "x", "disabled": [1]}}, "mcpServers.Big.disabled: expected true or false, found a list"),
        ({"Big": "x"}, "mcpServers.Big: expected a map, found text"),
        ([{"name": "a"}], "mcpServers: expected a map such as {name: value}, found a list"),
        ({}, "mcpServers: there is no server to serve"),
    ],
)
def test_wrong_files(tmp_path: Path, servers: object, said: str) -> None:
    """Known fields must be right; a wrong one is named as it stands in the file."""
    found = lines(tmp_path, dump(servers))
    assert any(said in line for line in found), found


def test_both_forms_in_one_file(tmp_path: Path) -> None:
    """Neither half is silently left out."""
    found = lines(tmp_path, '{"mcpServers": {"a": {"command": "x"}}, "servers": {"b": {"command": "x"}}}')
    assert any("only one of servers and mcpServers" in line for line in found)


def test_long_names_are_shortened_alike_every_time(tmp_path: Path) -> None:
    """The id of a long name depends on that name alone."""
    name = "awslabs.aws-documentation-mcp-server"
    made = load_text(tmp_path, dump({"z": {"command": "x"}, name: {"command": "x"}}))
    assert list(made.servers) == ["z", "awslabs-aws-d-c94c58"]
    assert made.notices == (f"{name} is served as awslabs-aws-d-c94c58",)


def test_desktop_form_in_yaml(tmp_path: Path) -> None:
    """The same fields in YAML, read by the same strict reader."""
    text = "mcpServers:\n  Git Hub:\n    command: npx\n    env: {A: no, B: 012, C: '${X}'}\n"
    env = stdio(load_text(tmp_path, text, {"X": "x"}), "git-hub").env
    assert {name: value.reveal() for name, value in env.items()} == {"A": "no", "B": "012", "C": "x"}


def test_notices_hold_no_secrets(tmp_path: Path) -> None:
    """Names of fields are told, their values never."""
    made = load_text(tmp_path, dump({"A": {"command": "x", "oauth": "s3cr3t", "env": {"K": "s3cr3t"}}}, key="s3cr3t"))
    assert "s3cr3t" not in repr(made.notices) + repr(made)


def test_null_is_what_hosts_write_for_nothing(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "args": None, "env": None, "cwd": None, "url": None, "headers": None}}
    made = load_text(tmp_path, dump(servers))
    assert isinstance(made.servers["a"], StdioServer)
    assert [word.reveal() for word in made.servers["a"].command] == ["x"]
    assert made.notices == ()


@pytest.mark.parametrize("off", [True, False])
def test_what_is_switched_off_may_name_variables_that_are_gone(tmp_path: Path, off: bool) -> None:
    text = dump({"a": {"command": "x", "env": {"K": "${OLD_KEY}"}, "disabled": off}, "b": {"command": "y"}})
    if off:
        assert load_text(tmp_path, text).servers["a"].disabled
    else:
        assert "OLD_KEY" in lines(tmp_path, text)[0]
