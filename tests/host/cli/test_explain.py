"""The command `explain` on what a stopped host left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec import Raw

from config import Verdict
from host.attempts import Attempt, Reason
from host.audit.contents import Contents
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, VERDICT_ASK, VERDICT_DENY, WRONG, CommandFailed
from host.cli.explain import _caller_of, entry_named, short_fingerprint
from host.history.index import Bounds, HistoryIndex
from host.history.search import CallFilter, search
from host.policy.decision_log import AuditRecord
from host.policy.gate import Gate
from host.protocol.methods import Kind
from host.subject import Item, Subject
from tests.kit.admin import entry
from tests.kit.gates import observe

from .conftest import TOOLS, Stopped


@pytest.mark.parametrize(("tool", "code"), [("get", VERDICT_DENY), ("create", VERDICT_DENY), ("wipe", VERDICT_DENY)])
def test_a_definition_that_nobody_approved_is_denied_whatever_its_rule(
    stopped: Stopped, tool: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an untrusted server."""
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, "wipe": b'{"name":"wipe"}'}))
    assert stopped.run("explain", "--server", "gh", "--tool", tool) == code
    assert "tried:" in capsys.readouterr().out


def test_a_call_is_explained(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, {**TOOLS, "wipe": b'{"name":"wipe"}'}))
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    assert stopped.run("explain", "--server", "gh", "--tool", "create", "--args", '{"a": 1}', "--json") == VERDICT_ASK
    explanation = json.loads(capsys.readouterr().out)
    assert (explanation["verdict"], explanation["rule"]) == ("ask", "tools.ask: create")
    assert explanation["standing"] == "approved"
    assert stopped.run("explain", "--server", "gh", "--tool", "wipe") == VERDICT_DENY
    assert "does not exist for any client" in capsys.readouterr().out
    for server, remedy in (("ghx", "did you mean gh?"), ("nowhere", "colonnade check shows its servers")):
        assert stopped.run("explain", "--server", server, "--tool", "x") == FAILED
        assert remedy in capsys.readouterr().err


def test_a_caller_is_explained_by_its_name(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads(stopped.file.read_text())
    config["listen"] = {"auth": {"tokens": {"ci": "x" * 40}}}
    config["callers"] = {"ci": {"token": "ci"}}
    config["servers"]["gh"] |= {"trust": "standard", "consent": {"tools": {"deny": [{"name": "get", "callers": "ci"}]}}}
    stopped.file.write_text(json.dumps(config))
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    of_get = ("explain", "--server", "gh", "--tool", "get")
    assert stopped.run(*of_get) == DONE
    assert "a caller without a name is not one of them" in capsys.readouterr().out
    assert stopped.run(*of_get, "--caller", "ci") == VERDICT_DENY
    assert "does not exist for the caller ci" in capsys.readouterr().out
    assert stopped.run("explain", "--server", "gh", "--caller", "ci") == DONE
    said = capsys.readouterr().out
    assert "called by ci without arguments" in said
    assert "deny   tool get" in said
    for named in (of_get, ("explain", "--server", "gh")):
        assert stopped.run(*named, "--caller", "cj") == FAILED
        assert "there is no caller 'cj' under callers in the configuration; it has ci" in capsys.readouterr().err


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("tool", "asked", "code", "said"),
    [
        ("create", [], VERDICT_DENY, "is not in the view few"),
        ("get", ["--view", "few"], DONE, "The tool get of gh is allowed"),
        ("create", ["--view", "more"], DONE, "The tool create of gh is allowed"),  # no boundary for the owner
        (
            "get",
            ["--view", "fow"],
            FAILED,
            "there is no view 'fow' under views in the configuration; did you mean few?",
        ),
        ("create", ["--caller", "ci"], VERDICT_DENY, "is not in the view few"),
        ("get", ["--caller", "ci", "--view", "more"], FAILED, "ci does not reach the view more; it reaches few"),
        ("create", ["--caller", "laptop", "--view", "more"], DONE, "The tool create of gh is allowed"),
    ],
)
def test_a_view_is_explained_by_its_name(
    tool: str, asked: Sequence[str], code: int, said: str, stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(stopped.file.read_text())
    config["listen"] = {"auth": {"tokens": {"ci": "x" * 40, "laptop": "y" * 40}}}
    config["callers"] = {"ci": {"token": "ci"}, "laptop": {"token": "laptop"}}
    config["servers"]["gh"] |= {"trust": "standard", "consent": {"tools": "allow"}}
    config["views"] = {"few": {"servers": {"gh": {"tools": "get"}}}, "more": {"callers": "laptop"}}
    config["default_view"] = "few"
    stopped.file.write_text(json.dumps(config))
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    capsys.readouterr()
    assert stopped.run("explain", "--server", "gh", "--tool", tool, *asked) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_an_entry_that_the_server_does_not_have_has_no_verdict(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nearest one is named. Of a server whose lists are not known, the rules alone are told."""
    assert stopped.run("explain", "--server", "gh", "--tool", "creat") == FAILED
    assert "gh has no tool 'creat'; did you mean create?" in capsys.readouterr().err
    for named in (["--tool", "zzz"], ["--prompt", "create"], ["--resource", "file:///x"]):
        assert stopped.run("explain", "--server", "gh", *named) == FAILED
        assert "colonnade list shows its entries" in capsys.readouterr().err
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TEMPLATE, {"file:///{x}": b'{"uriTemplate":"file:///{x}"}'}))
    assert stopped.run("explain", "--server", "gh", "--resource", "file:///x") != FAILED


def test_an_entry_is_explained_by_the_name_that_clients_see(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name says the server and the entry of a stopped host, whose catalog is not known."""
    assert stopped.run("explain", "gh__create") == VERDICT_DENY
    by_own_name = capsys.readouterr().out if stopped.run("explain", "--server", "gh", "--tool", "create") else ""
    assert by_own_name.count("decided by:") == 2
    assert stopped.run("explain", "gh__creat") == FAILED
    assert "gh has no tool 'creat'; did you mean create?" in capsys.readouterr().err
    assert stopped.run("explain", "create") == FAILED
    assert "no server has an entry that clients see as 'create'" in capsys.readouterr().err
    assert stopped.run("explain", "gb__create") == FAILED
    assert "did you mean gh__create?" in capsys.readouterr().err


@dataclass
class Running:
    """A running host with a catalog."""

    rows: Sequence[Mapping[str, Any]]
    config = "colonnade.yaml"
    prefix: str = "github"

    def servers(self) -> Mapping[str, str]:
        return {"github": self.prefix}

    def state(self) -> Mapping[str, Any]:
        return {"catalog": self.rows}

    def post(self, path: str, **body: object) -> Any:
        assert path == "callers/view", "nothing else is sent"
        if body != {"view": "coding", "caller": "ci"}:
            raise CommandFailed("it does not reach the view")
        return {"entries": [entry("plan", kind="prompt", outward="draft"), entry("create", outward="github__plan")]}


@pytest.mark.parametrize(
    ("outward", "found"),
    [
        ("github__plan", ("github", "prompt", "plan")),
        ("github__a_f3a1", ("github", "tool", "a.very.long.name")),
        ("github__unknown", ("github", "tool", "unknown")),
        ("github+file:///x", ("github", "resource", "file:///x")),
    ],
)
def test_a_running_host_knows_which_entry_clients_mean(outward: str, found: tuple[str, str, str]) -> None:
    rows = [entry("plan", kind="prompt"), entry("a.very.long.name", outward="github__a_f3a1")]
    assert entry_named([Running(rows)], outward) == found


@pytest.mark.parametrize(
    ("outward", "view", "found"),
    [
        ("draft", "coding", ("github", "prompt", "plan")),
        ("github__plan", "coding", ("github", "tool", "create")),
        ("github__other", "coding", ("github", "tool", "other")),
        ("github__plan", "reading", ("github", "prompt", "plan")),
    ],
)
def test_a_name_is_one_of_the_view_first(outward: str, view: str, found: tuple[str, str, str]) -> None:
    rows = [entry("plan", kind="prompt"), entry("other")]
    assert entry_named([Running(rows)], outward, {"view": view, "caller": "ci"}) == found


@pytest.mark.parametrize(
    ("outward", "found"),
    [
        ("gh__plan", ("github", "tool", "plan")),
        ("gh+x://a", ("github", "resource", "x://a")),
        ("ui://gh+page", ("github", "resource", "ui://page")),
    ],
)
def test_a_name_with_the_prefix_of_the_file_is_understood(outward: str, found: tuple[str, str, str]) -> None:
    assert entry_named([Running([], "gh")], outward) == found
    with pytest.raises(CommandFailed, match="no server has an entry"):
        entry_named([Running([], "gh")], "github__plan")


@pytest.mark.parametrize("outward", ["plan", "githb__plan", "github_plan"])
def test_the_name_that_was_perhaps_meant_is_said(outward: str) -> None:
    with pytest.raises(CommandFailed, match=r"did you mean github__plan\?"):
        entry_named([Running([entry("plan"), entry("create")])], outward)


def test_a_name_of_several_entries_is_refused_with_all_of_them() -> None:
    host = Running([entry("plan"), entry("plan", kind="prompt")])
    with pytest.raises(CommandFailed, match="--server github --tool plan; --server github --prompt plan"):
        entry_named([host], "github__plan")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool", "x"],
        [],
        ["gh__get", "--server", "gh"],
        ["gh", "get"],
        ["gh__get", "--tool", "get"],
        ["--server", "gh", "--tool", "x", "--prompt", "y"],
        ["--server", "gh", "--tool", "x", "--args", "{"],
        ["--server", "gh", "--tool", "x", "--args", "[]"],
    ],
)
def test_wrong_arguments(stopped: Stopped, arguments: list[str]) -> None:
    assert stopped.run("explain", *arguments) == WRONG


def test_a_server_and_its_tool_as_two_words(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("explain", "gh", "get") == WRONG
    assert "did you mean gh__get?" in capsys.readouterr().err


def test_a_fingerprint_is_named_by_its_beginning() -> None:
    assert short_fingerprint("sha256:0123456789abcdef") == "01234567"


def test_what_a_program_is_given_stands_before_its_rules(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.file.write_text('{"servers": {"he": {"command": ["npx", "x"], "sandbox": {"network": "all"}}}}')
    assert stopped.run("explain", "--server", "he") == DONE
    said = "its own files; the whole network; 1024 MiB of memory; 64 processes; 256 open files"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"Sandbox: {said}"
    assert lines[1].startswith("  npx: its packages are installed once a person has approved that")
    assert stopped.run("explain", "--server", "he", "--json") == DONE
    assert json.loads(capsys.readouterr().out)["sandbox"] == said


def test_all_rules_of_a_server_are_written_out(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what a word stands for, and what follows from the trust level; then the decision about each entry."""
    stopped.file.write_text('{"servers": {"he": {"url": "http://127.0.0.1:9/mcp", "consent": "read-only"}}}')
    reading = b'{"name":"get","annotations":{"readOnlyHint":true}}'
    stopped.inside(lambda gate: observe(gate, "he", Kind.TOOL, {"get": reading}))
    stopped.inside(lambda gate: observe(gate, "he", Kind.RESOURCE, {"x://y": b'{"uri":"x://y"}'}))
    assert stopped.run("explain", "--server", "he") == DONE
    assert capsys.readouterr().out.splitlines() == [
        "The rules of he: deny before ask before allow, then the rest",
        "  allow  tools.allow: * claims read-only",
        "  ask    tools.default",
        "  allow  resources.default",
        "  allow  prompts.default",
        "  ask    elicitation.url: trust: standard",
        "  allow  roots: trust: standard",
        "  allow  elicitation.form: trust: standard",
        "  ask    sampling: trust: standard",
        "Its entries, called without arguments:",
        "  ask    tool get",
        "           tools.default  (it claims: only reads, open world; not approved by a person, so it does not count)",
        "  allow  resource x://y",
        "           resources.default",
        "Claims count once you have approved the definitions: colonnade definitions approve he",
    ]
    assert stopped.run("definitions", "approve", "he", "--yes") == DONE
    capsys.readouterr()
    assert stopped.run("explain", "--server", "he", "--json") == DONE
    first = json.loads(capsys.readouterr().out)["entries"][0]
    assert (first["verdict"], first["rule"]) == ("allow", "tools.allow: * claims read-only")
    assert stopped.run("explain", "--server", "he", "--args", "{}") == WRONG


WRITTEN = """\
defaults:
  consent: read-only
servers:
  gh:
    url: http://127.0.0.1:9/mcp
    consent:
      tools:
        allow: [get]
        ask:
          - {name: create, when: {a: {eq: "1"}}}
          - name: create
            when: {a: {eq: "2"}}
        deny:
          - wipe
          - {name: "no*", when: {a: {eq: "x"}}}
          - "nothing"
  he: {url: "http://127.0.0.1:9/mcp"}
  ke: {url: "http://127.0.0.1:9/mcp", trust: untrusted, consent: {}}
  le: {url: "http://127.0.0.1:9/mcp", consent: {tools: ask}}
"""


@pytest.mark.parametrize(
    ("server", "tool", "arguments", "line", "key"),
    [
        ("gh", "get", {}, 0, ""),
        ("gh", "create", {"a": "1"}, 10, "servers.gh.consent.tools.ask[0]"),  # two begin alike
        ("gh", "create", {"a": "2"}, 11, "servers.gh.consent.tools.ask[1]"),
        ("gh", "wipe", {}, 14, "servers.gh.consent.tools.deny[0]"),
        ("gh", "nothing", {}, 16, "servers.gh.consent.tools.deny[2]"),
        ("gh", "other", {}, 8, "servers.gh.consent.tools.allow"),
        ("he", "get", {}, 2, "defaults.consent"),
        ("ke", "get", {}, 18, "servers.ke.trust"),
        ("le", "get", {}, 19, "servers.le.consent.tools"),
    ],
)
def test_the_line_that_decides_is_named_unless_it_allows(
    server: str,
    tool: str,
    arguments: dict[str, str],
    line: int,
    key: str,
    stopped: Stopped,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also for a call of the past."""
    stopped.file.write_text(WRITTEN)
    definitions = {name: json.dumps({"name": name}).encode() for name in ("get", "create", "wipe", "nothing", "other")}
    stopped.inside(lambda gate: observe(gate, server, Kind.TOOL, definitions))
    stopped.run("definitions", "approve", "--yes")
    record = decision(tool, json.dumps(arguments).encode(), server=server)
    call = past(stopped, record, full=True)[0]
    capsys.readouterr()
    asked = ("--server", server, "--tool", tool, "--args", json.dumps(arguments))
    for words in (asked, ("--call", call)):
        stopped.run("explain", *words)
        changes = [each for each in capsys.readouterr().out.splitlines() if "to change:" in each]
        assert changes == ([f"  to change:   {stopped.file}:{line}: {key}"] if key else [])
        stopped.run("explain", *words, "--json")
        assert json.loads(capsys.readouterr().out)["to_change"] == (f"{stopped.file}:{line}: {key}" if key else "")


CHOSEN = """\
servers:
  gh:
    url: http://127.0.0.1:9/mcp
    consent:
      tools:
        deny:
          - {name: "two words"}
          - name: "create*"
            claims: destructive
          - {name: "create*", callers: [ci]}
      resources:
        ask: [{uri: "x://a/*"}, "x://b", "x://${env:USER}/**"]
        deny:
          - x://c/*
          - uri: x://c/**
      prompts:
        ask:
          - name: "review"
            when: {a: {eq: "1"}}
            closed: true
callers: {ci: {token: t}}
listen: {auth: {tokens: {t: "0123456789abcdef"}}}
"""


@pytest.mark.parametrize(
    ("words", "line", "key"),
    [
        (["--tool", "two words"], 7, "tools.deny[0]"),
        (["--tool", "create"], 8, "tools.deny[1]"),
        (["--tool", "create", "--caller", "ci"], 10, "tools.deny[2]"),
        (["--resource", "x://a/1"], 12, "resources.ask[0]"),
        (["--resource", "x://b"], 12, "resources.ask[1]"),
        (["--resource", "x://me/1"], 12, "resources.ask[2]"),
        (["--resource", "x://c/1"], 14, "resources.deny[0]"),
        (["--resource", "x://c/1/2"], 15, "resources.deny[1]"),
        (["--template", "x://c/{id}"], 14, "resources.deny[0]"),
        (["--prompt", "review", "--args", '{"a": "1"}'], 18, "prompts.ask[0]"),
    ],
)
def test_the_line_of_a_rule_is_named_in_whatever_way_it_chooses(
    words: Sequence[str],
    line: int,
    key: str,
    stopped: Stopped,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("USER", "me")
    stopped.file.write_text(CHOSEN)
    offered = {
        Kind.TOOL: {name: json.dumps({"name": name}).encode() for name in ("two words", "create")},
        Kind.PROMPT: {"review": b'{"name":"review"}'},
        Kind.TEMPLATE: {"x://{+all}": b'{"uriTemplate":"x://{+all}"}', "x://c/{id}": b'{"uriTemplate":"x://c/{id}"}'},
    }
    for kind, definitions in offered.items():
        stopped.inside(partial(observe, server="gh", kind=kind, offered=definitions))
    stopped.run("definitions", "approve", "--yes")
    capsys.readouterr()
    stopped.run("explain", "--server", "gh", *words, "--json")
    assert json.loads(capsys.readouterr().out)["to_change"] == f"{stopped.file}:{line}: servers.gh.consent.{key}"


def test_a_call_that_a_person_refused_is_explained_too(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    asked = {"server": "gh", "principal": "", "rule": "tools.ask: create", "answer": "deny", "args": {"canonical": ""}}

    def refuse(gate: Gate) -> None:
        for kind, name in (("tool", "create"), ("sampling", "sampling")):
            gate.decision_log.record("answer", question="q", prim=kind, item=name, **asked)

    stopped.inside(refuse)
    call, of_server, _ = past(stopped)
    capsys.readouterr()
    assert stopped.run("explain", "--call", call) == VERDICT_ASK
    out = capsys.readouterr().out
    assert (
        ": ask (tools.ask: create), denied\nNow, as for a call without arguments, since a confirmation keeps none"
        in out
    )
    assert "to change:" in out
    assert stopped.run("explain", "--call", of_server) == FAILED
    assert "is a request of a server, not a call;" in capsys.readouterr().err


def test_a_call_of_the_past_is_explained_by_the_rules_of_its_own_file(
    stopped: Stopped, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while a host of another one runs, and no other does."""
    call, *_ = past(stopped, decision("create"))
    running = RunningHost(stopped.state.path, 7, config="/x/other.yaml")
    monkeypatch.setattr("host.cli.targets.find_hosts", lambda _: [running])
    words = ["explain", "--call", call, "--state", str(stopped.state.path)]
    stopped.run("explain", "--server", "gh", "--tool", "create")
    now = capsys.readouterr().out
    run(words)
    assert now in capsys.readouterr().out
    stopped.file.unlink()
    assert run(words) == FAILED
    said = f"{call} is a call of {stopped.file}, which is not there; name the file by --config"
    assert said in capsys.readouterr().err


def test_a_call_of_the_past_is_not_explained_as_for_somebody_else(stopped: Stopped) -> None:
    """A host that runs has the file as it was before it became wrong; the names of callers are in the file alone."""
    stopped.file.write_text("servers: {gh: {url: 3}}")
    with pytest.raises(CommandFailed, match=r"the name of its caller is not known, .* servers\.gh\.url"):
        _caller_of(str(stopped.file), "token-of-ci")


def past(stopped: Stopped, *decisions: AuditRecord, full: bool = False, contents: Contents | None = None) -> list[str]:
    """Have these been decided before; the ids of the calls, as the history names them."""

    def decide(gate: Gate) -> None:
        gate.decision_log.full_arguments = full
        gate.decision_log.contents = contents
        gate.decision_log.record_configuration("config", stopped.file)
        for each in decisions:
            gate.decision_log.record_outcome(each, gate.decision_log.record_decision(each), "answered", 0.01, 9)
        gate.decision_log.record_attempt(Attempt(Reason.DENIED, "tool", "gh__wipe", "10.0.0.7", "desk", "d", "gh"))
        gate.decision_log.flush_attempts()

    stopped.inside(decide)
    with closing(HistoryIndex(stopped.state.path, stopped.state.audit, Bounds())) as index:
        while index.read_on():
            pass
        return [row["id"] for row in search(index, CallFilter())][::-1]


def decision(
    name: str,
    arguments: bytes = b"{}",
    caller: str | None = None,
    method: str = "tools/call",
    server: str = "gh",
) -> AuditRecord:
    subject = Subject(Item(server, "tool", name), caller, None, "", "", "tools.allow: *")
    return AuditRecord(subject, method, "desk", Raw(arguments), Verdict.ALLOW)


def test_a_call_of_the_past_is_explained_by_the_rules_of_today(
    stopped: Stopped, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(stopped.file.read_text())
    deny = [{"name": "get", "when": {"path": {"glob": "/etc/*"}}}, {"name": "create", "callers": "ci"}]
    config |= {"listen": {"auth": {"tokens": {"token-of-ci": "x" * 40}}}, "callers": {"ci": {"token": "token-of-ci"}}}
    config["servers"]["gh"]["consent"] = {"tools": {"allow": ["*"], "deny": deny}}
    stopped.file.write_text(json.dumps(config))
    stopped.run("definitions", "approve", "--server", "gh", "--yes")
    etc, long = decision("get", b'{"path":"/etc/passwd"}'), decision("x" * 300)
    bare, attempt = past(stopped, etc)
    kept, without, of_ci, strange, cut, server_request, _ = past(
        stopped, etc, decision("get", b'{"path":"/tmp"}'), decision("create", caller="token-of-ci"),
        decision("create", caller="gone"), long, decision("get", method=""), full=True,
    )[2:]  # fmt: skip
    capsys.readouterr()
    for id, code, said in (
        (kept, VERDICT_DENY, "Then, "),
        (without, DONE, ": allow (tools.allow: *), answered\n"),
        (bare, VERDICT_DENY, "Now, as for a call without arguments, since its own were not kept; audit: "),
        (of_ci, VERDICT_DENY, "ci"),
        (strange, DONE, "Then, "),
    ):
        assert stopped.run("explain", "--call", id) == code, said
        out = capsys.readouterr().out
        assert said in out
        assert ("were not kept" in out) is (id == bare)
    assert stopped.run("explain", "--call", kept, "--json") == VERDICT_DENY
    assert json.loads(capsys.readouterr().out)["past"] == {
        "verdict": "allow", "rule": "tools.allow: *", "outcome": "answered", "remark": "",
        "arguments": {"json": '{"path":"/etc/passwd"}'},
    }  # fmt: skip
    for id, said in (
        (attempt, "is a refused attempt, not a call;"),
        (cut, "the audit has only the beginning of the name"),
        (server_request, "is a request of a server, not a call;"),
        ("0" * 16, "the history has no call"),
    ):
        assert stopped.run("explain", "--call", id) == FAILED
        assert said in capsys.readouterr().err
    assert stopped.run("explain", "--call", kept, "--server", "gh") == WRONG
    key = decision("get", b'{"path":"/tmp","key":"k"}')
    more = past(stopped, key, decision("get", b'{"path":"%b"}' % (b"x" * 40_000)), etc, contents=Contents(list))
    for id, shown, decided in (
        (
            more[-4],
            'arguments (redacted): {"path":"/tmp","key":"***"}',
            "Now, as for a call without arguments, since its own are redacted; audit: ",
        ),
        (
            more[-3],
            "arguments (left out): longer than 32 KiB",
            "Now, as for a call without arguments, since its own were left out; audit: ",
        ),
        (more[-2], 'arguments: {"path":"/etc/passwd"}', "decided by:"),
    ):
        assert stopped.run("explain", "--call", id) == VERDICT_DENY
        out = capsys.readouterr().out
        assert f"  {shown}\n" in out
        assert decided in out
    assert stopped.run("explain", "--call", "nothing") == WRONG
