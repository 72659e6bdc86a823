"""Which environment variables a server uses, which may come from a client, and what is said where one is missing."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

import config
from config import Config, ConfigError, HttpServer, Secret, Trust
from config.environment import (
    PROGRAM_VARIABLES,
    Environment,
    differing,
    handed_on,
    new_values,
    program_variables,
)
from tests.config.kit import http, stdio


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("docker run -i mcp/git", "docker"),
        ("docker --context far container run -i mcp/git", "docker"),
        ("sudo -n /usr/bin/podman run -i x", "podman"),
        ("env TZ=UTC docker run -i x", "docker"),
        ("sudo", None),
        ("docker-compose run -T x", "docker"),
        ("podman-remote run -i x", "podman"),
        ("/usr/bin/kubectl mcp", "kubectl"),
        ("git-mcp", None),
        ("uvx mcp-server-kubernetes --kubeconfig /srv/docker", "kubernetes"),
        ("uvx --from awslabs.core-mcp-server awslabs.core", "aws"),
        ("npx -y mcp-server-kubernetes@1.0", "kubernetes"),
        ("npx -y @scope/server-filesystem /home/user/git", None),
        ("uv tool run mcp-server-aws", "aws"),
        ("python3 git", None),
        ("uvx", None),
    ],
)
def test_variables_of_known_programs(command: str, program: str | None) -> None:
    """The variables are those of the program, or of the package that a runner of packages starts; not of what is passed
    to either."""
    assert program_variables(command.split()) == (() if program is None else PROGRAM_VARIABLES[program])


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("docker run -i x", "docker"),
        ("exec /usr/bin/podman run -i x 2>/dev/null", "podman"),
        ("cd /srv && docker run x", None),
        ("echo 'docker", None),
        ("", None),
        ("sh", None),
    ],
)
def test_variables_of_the_program_that_a_shell_starts(text: str, program: str | None) -> None:
    for words in (["bash", "-lc", text], ["sudo", "/bin/sh", "-c", text]):
        assert program_variables(words) == (() if program is None else PROGRAM_VARIABLES[program])
    assert program_variables(["sh", text]) == ()


def test_no_variable_of_a_known_program_holds_a_key() -> None:
    names = {name for names in PROGRAM_VARIABLES.values() for name in names}
    assert not [name for name in names if "TOKEN" in name or "PASSWORD" in name or name.endswith(("_KEY", "_SECRET"))]


def read(folder: Path, text: str, environ: dict[str, str] | None = None, **handed_over: str) -> Config:
    """A file, as a host in the background reads it."""
    file = folder / "c.yaml"
    file.write_text(text)
    given = {name: Secret(value) for name, value in handed_over.items()}
    return config.load(file, environ or {}, in_background=True, handed_over=given)


TWO = 'servers:\n  a: {command: [x, "${env:WORD}"], trust: untrusted, env: {B: b}}\n  b: {command: y}\n'


def test_a_variable_that_is_missing_stops_its_server_alone(tmp_path: Path) -> None:
    """Its rules and its trust are those of the file meanwhile, and so is the digest of its command."""
    made = read(tmp_path, TWO)
    assert made.servers["a"].problem == (
        "the environment variable WORD is not set; start the client with it, write ${keyring:NAME} or ${file:PATH} "
        "instead, or use serve --stdio --own"
    )
    assert (made.servers["a"].waits_for, made.servers["a"].trust) == (("WORD",), Trust.UNTRUSTED)
    assert (made.servers["b"].problem, made.servers["b"].waits_for) == ("", ())
    known = read(tmp_path, TWO, WORD="w")
    assert stdio(known, "a").declared == stdio(made, "a").declared
    assert (known.servers["a"].problem, stdio(known, "a").command[1].reveal()) == ("", "w")
    assert known.servers["a"].variables == {"WORD": Secret("w")}
    assert repr(known.servers["a"].variables["WORD"]) == "Secret('***')"
    assert (known.in_background, known.handed_over) == (True, {"WORD": Secret("w")})


def test_the_values_of_the_host_hold_before_those_of_clients(tmp_path: Path) -> None:
    made = read(tmp_path, TWO, {"WORD": "mine"}, WORD="theirs")
    assert stdio(made, "a").command[1].reveal() == "mine"


def test_a_host_on_a_terminal_refuses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(TWO)
    with pytest.raises(ConfigError, match=r"servers\.a\.command\[1\]: the environment variable WORD is not set"):
        config.load(file, {})


URL = 'servers: {a: {url: "${env:BASE}/mcp", headers: {A: "Bearer ${env:TOKEN}"}, oauth: {scopes: ["x"]}}}'


def test_a_server_at_a_url_waits_too(tmp_path: Path) -> None:
    made = http(read(tmp_path, URL.replace("A:", "X:")), "a")
    assert made.waits_for == ("BASE", "TOKEN")
    assert "the environment variables BASE and TOKEN are not set; start the client with them" in made.problem
    assert made.url != http(read(tmp_path, URL.replace("BASE", "OTHER").replace("A:", "X:")), "a").url
    known = http(read(tmp_path, URL.replace("A:", "X:"), BASE="https://example.com", TOKEN="t"), "a")
    assert (known.problem, known.url.reveal()) == ("", "https://example.com/mcp")


@pytest.mark.parametrize(
    "rule", ['trust: trusted, limits: {calls: "${env:N}"}', 'consent: {tools: {allow: ["${env:N}"]}}']
)
def test_no_client_sets_what_permits_or_limits(rule: str, tmp_path: Path) -> None:
    """Nor may it set a variable of that name for another server."""
    text = f'servers: {{a: {{command: x, {rule}}}, b: {{command: x, args: ["${{env:N}}"]}}, c: {{command: x}}}}'
    made = read(tmp_path, text, N="9/s")
    problem = (
        "the environment variable N is not set; a rule, a limit or the endpoint names what no client may set: write "
        "the value in the file, or use serve --stdio --own"
    )
    assert [spec.problem for spec in made.servers.values()] == [problem, problem, ""]
    assert list(made.servers) == ["a", "b", "c"]
    alone = read(tmp_path, f"servers: {{a: {{command: x, disabled: true, {rule}}}}}")
    assert (alone.servers["a"].problem, alone.servers["a"].disabled) == (problem, True)
    own = read(tmp_path, text, {"N": "9/s"}, N="1/s")
    assert own.own_variables == {"N"}
    assert stdio(own, "b").command[1].reveal() == "9/s"
    assert own.servers["b"].variables == {"N": Secret("9/s")}


def test_a_missing_variable_of_the_endpoint_is_an_error_of_the_file(tmp_path: Path) -> None:
    text = 'listen: {auth: {tokens: {t: "${env:T}"}}}\nservers: {a: {command: x, env: {T: "${env:T}"}}}'
    with pytest.raises(ConfigError, match=r"listen\.auth\.tokens\.t: the environment variable T is not set"):
        read(tmp_path, text, T="t" * 40)


def test_a_default_waits_for_nobody_and_may_be_replaced(tmp_path: Path) -> None:
    text = 'servers: {a: {command: x, env: {A: "${env:V:-d}"}, title: "${env:NAME:-t}"}}'
    made = stdio(read(tmp_path, text), "a")
    assert (made.problem, made.env["A"].reveal(), made.variables) == ("", "d", {"V": None})
    made = stdio(read(tmp_path, text, V="v", NAME="n"), "a")
    assert (made.env["A"].reveal(), made.title, made.variables) == ("v", "t", {"V": Secret("v")})


def test_a_known_program_gets_its_variables(tmp_path: Path) -> None:
    """Those under `env` hold instead of them."""
    text = "servers: {a: {command: docker run x, env: {DOCKER_HOST: tcp://mine}}, b: {command: docker run x}}"
    made = read(tmp_path, text, {"DOCKER_CONTEXT": "own", "PATH": "/bin"}, DOCKER_HOST="tcp://theirs", KUBECONFIG="k")
    assert handed_on(stdio(made, "a")) == {"DOCKER_CONTEXT": "own"}
    assert handed_on(stdio(made, "b")) == {"DOCKER_CONTEXT": "own", "DOCKER_HOST": "tcp://theirs"}
    assert "DOCKER_HOST" not in made.servers["a"].variables
    assert made.servers["b"].variables["DOCKER_CONFIG"] is None


def test_the_values_of_a_client_beside_those_of_servers(tmp_path: Path) -> None:
    """A server gets no value of a client that has another value of one of its variables."""
    text = """servers:
      a: {command: x, args: ["${env:ONE}", "${env:TWO}"]}
      b: {command: x, args: ["${env:TWO:-}", "${env:THREE:-}"]}
      c: {command: x, args: ["${env:THREE:-}", "${env:ONE}"]}
    """
    servers = read(tmp_path, text, ONE="1").servers
    assert differing(servers, {"ONE": "1", "TWO": "2"}) == {}
    assert differing(servers, {"ONE": "other"}) == {"a": "ONE", "c": "ONE"}
    values = {"ONE": "1", "TWO": "2", "THREE": "3", "FOUR": "4"}
    assert new_values(servers, values) == {"THREE": Secret("3"), "TWO": Secret("2")}
    assert new_values(servers, {**values, "ONE": "other"}) == {}
    two = read(tmp_path, text, TWO="2").servers
    other = {"THREE": "3", "TWO": "other"}
    assert new_values(two, other) == {}
    assert new_values(two, other, ["TWO"]) == {"THREE": Secret("3"), "TWO": Secret("other")}
    assert differing(two, other, ["TWO"]) == {}


def test_servers_of_a_desktop_host_wait_likewise(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "env": {"A": "${env:WORD}"}}, "b": {"command": "y", "bad": 1}}}'
    made = read(tmp_path, text)
    assert made.servers["a"].waits_for == ("WORD",)
    assert (made.servers["b"].waits_for, made.servers["b"].variables) == ((), {})
    assert 'its key "bad" is not known' in made.servers["b"].problem
    assert read(tmp_path, text, WORD="w").servers["a"].problem == ""


def test_a_section_of_another_form_uses_nothing() -> None:
    made = Environment({"servers": {"a": ["${env:A}"]}}, {}, in_background=True)
    spec = HttpServer(id="a", url=Secret("https://example.com"))
    assert made.used_by(spec) == MappingProxyType({})
    assert Environment({}, {}).awaited == frozenset()
