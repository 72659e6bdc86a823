"""Differences between two readings of a file: each key of a server, each at the top, and nothing if nothing changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Config, Difference, HttpServer, StdioServer, difference
from config.references import Secret
from tests.config.kit import http, load_text

PROGRAM = "command: [x], isolation: per-call"
URL = "url: 'http://h/', isolation: per-call"


def read(folder: Path, *servers: str, top: str = "", environ: dict[str, str] | None = None) -> Config:
    """A file with these servers, each as `id: keys`."""
    entries = "".join(f"  {name}: {{{keys}}}\n" for name, _, keys in (server.partition(": ") for server in servers))
    return load_text(folder, f"{top}\nservers:\n{entries}", environ)


RESTARTS = {
    "command": (PROGRAM, "command: [y], isolation: per-call"),
    "args": (PROGRAM, "command: [x, y], isolation: per-call"),
    "env": (PROGRAM, f"{PROGRAM}, env: {{A: b}}"),
    "cwd": (PROGRAM, f"{PROGRAM}, cwd: y"),
    "url": (URL, "url: 'http://h/x', isolation: per-call"),
    "headers": (URL, f"{URL}, headers: {{A: b}}"),
    "headers_helper": (URL, f"{URL}, headers_helper: [x]"),
    "client": (URL, f"{URL}, client: httpx"),
    "oauth": (URL, f"{URL}, oauth: {{client_id: c}}"),
    "protocol": (URL, f"{URL}, protocol: legacy"),
    "eras": (URL, f"{URL}, eras: one"),
    "isolation": (PROGRAM, "command: [x], isolation: per-client"),
    "max_instances": (PROGRAM, f"{PROGRAM}, max_instances: 2"),
    "start": (PROGRAM, f"{PROGRAM}, start: lazy"),
    "idle": (PROGRAM, f"{PROGRAM}, idle: 10m"),
    "idle_timeout": (PROGRAM, f"{PROGRAM}, idle_timeout: 2s"),
    "start_timeout": (PROGRAM, f"{PROGRAM}, start_timeout: 2s"),
    "timeout": (PROGRAM, f"{PROGRAM}, timeout: 2s"),
    "title": (PROGRAM, f"{PROGRAM}, title: t"),
    "disabled": (PROGRAM, f"{PROGRAM}, disabled: true"),
}
JUDGED = {
    "consent": (PROGRAM, f"{PROGRAM}, consent: {{tools: ask}}"),
    "limits": (PROGRAM, f"{PROGRAM}, limits: {{concurrent: 2}}"),
}
BOTH = {"trust": (PROGRAM, f"{PROGRAM}, trust: trusted")}


def test_every_field_of_a_server_is_tried_here() -> None:
    """A new one must be put into one of the tables."""
    fields = {each.name for spec in (StdioServer, HttpServer) for each in dataclasses.fields(spec) if each.compare}
    # `declared` and `folder` follow from the others.
    assert {*RESTARTS, *JUDGED, *BOTH, "id", "declared", "folder", "problem"} == fields


def test_headers_of_a_helper_are_no_change(tmp_path: Path) -> None:
    """They are noted in the reading that is in force."""
    old, new = (read(tmp_path, f"a: {URL}, headers_helper: [x]") for _ in range(2))
    http(old, "a").learned_secrets.append(Secret("s"))
    assert difference(old, new) == Difference()


@pytest.mark.parametrize("key", [*RESTARTS, *JUDGED, *BOTH])
def test_one_changed_key(tmp_path: Path, key: str) -> None:
    """The change concerns its own server alone, forwards and backwards."""
    before, after = {**RESTARTS, **JUDGED, **BOTH}[key]
    old, new = (read(tmp_path, "z: command: q", f"a: {keys}", "b: url: 'http://b/'") for keys in (before, after))
    made = Difference(
        restart=("a",) if key in RESTARTS or key in BOTH else (),
        policy_changed=("a",) if key in JUDGED or key in BOTH else (),
    )
    assert difference(old, new) == difference(new, old) == made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: command: x, env: {A: '${env:S}'}", "a: command: x, env: {A: '${env:T}'}"),
        ("a: url: 'http://h/?k=${env:S}'", "a: url: 'http://h/?k=${env:T}'"),
        ("a: command: 'run ${env:S}'", "a: command: 'run ${env:T}'"),
        ("a: command: x", "a: url: 'http://h/'"),
    ],
)
def test_secrets_and_kinds_of_servers_change_too(tmp_path: Path, before: str, after: str) -> None:
    """A secret is compared by what it is, not by how it is shown."""
    old, new = (read(tmp_path, server, environ={"S": "s", "T": "t"}) for server in (before, after))
    assert difference(old, new).restart == ("a",)
    assert difference(old, old) == Difference()


def test_what_only_looks_another_way_is_no_change(tmp_path: Path) -> None:
    """Keys in another order, a default that is written out, conditions in another order."""
    rule = "consent: {{tools: {{allow: [{{name: t, when: {{{}}}}}]}}}}"
    old = read(tmp_path, "a: command: [x], env: {A: a, B: b}, " + rule.format("a: 1, b: [c]"))
    new = read(
        tmp_path,
        "a: env: {B: b, A: a}, timeout: 60s, trust: standard, command: [x], "
        + rule.format("/b: {in: [c]}, a: {eq: 1}"),
        top="listen: {address: 'localhost:8808'}\nconsole: on",
    )
    assert difference(old, new) == Difference()


@pytest.mark.parametrize(("before", "after"), [("1", "true"), ("1", "'1'"), ("0", "false"), ("[1]", "[true]")])
def test_types_in_conditions_are_told_apart(tmp_path: Path, before: str, after: str) -> None:
    """Rules differ even where Python takes their values for equal."""
    old, new = (
        read(tmp_path, f"a: command: x, consent: {{tools: {{deny: [{{name: t, when: {{a: {value}}}}}]}}}}")
        for value in (before, after)
    )
    assert difference(old, new) == Difference(policy_changed=("a",))


FIXED = [
    ("listen", "", "listen: {address: '127.0.0.1:1'}"),
    ("listen", "listen: {auth: {tokens: {a: '${env:S}'}}}", "listen: {auth: {tokens: {a: '${env:T}'}}}"),
    ("start_grace", "", "start_grace: 1s"),
    ("watch", "", "watch: off"),
    ("console", "", "console: off"),
    ("console", "console: off", "console: {address: '127.0.0.1:0'}"),
]
LIVE = [
    ("ask", "ask: {timeout: 2s}"),
    ("ask", "ask: {answers: [terminal]}"),
    ("audit", "audit: {arguments: full}"),
    ("memory", "memory: 64MiB"),
]


def test_every_key_of_the_host_is_tried_here() -> None:
    """A new one must be put into one of the tables."""
    fields = {field.name for field in dataclasses.fields(Config)}
    tried = {key for key, *_ in (*FIXED, *LIVE)}
    assert {*tried, "servers", "source", "digest", "files", "notices", "answers", "given_address", "written"} == fields


@pytest.mark.parametrize(("key", "before", "after"), FIXED)
def test_what_is_fixed_is_said(tmp_path: Path, key: str, before: str, after: str) -> None:
    """The endpoint and the console stay where they are."""
    environ = {"S": "0123456789abcdef", "T": "abcdef0123456789"}
    old, new = (read(tmp_path, "a: command: x", top=top, environ=environ) for top in (before, after))
    assert difference(old, new) == Difference(deferred=(f"{key} has changed: that takes effect with the next start",))


@pytest.mark.parametrize(("key", "after"), LIVE)
def test_what_holds_at_once_for_all_servers_is_said(tmp_path: Path, key: str, after: str) -> None:
    old, new = (read(tmp_path, "a: command: x", top=top) for top in ("", after))
    assert difference(old, new) == Difference(applied=(f"{key} has changed",))


IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@given(st.data(), IDS, IDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_every_server_is_accounted_for(
    tmp_path: Path, data: st.DataObject, before: list[str], after: list[str]
) -> None:
    """In the order of the file that names it, each exactly where it belongs."""
    keys = st.sampled_from(["command: x", "command: y", "command: x, consent: deny", "command: x, trust: trusted"])
    chosen = [{name: data.draw(keys) for name in names} for names in (before, after)]
    old, new = (read(tmp_path, *(f"{name}: {each}" for name, each in servers.items())) for servers in chosen)
    made = difference(old, new)
    both = [name for name in after if name in before]
    was, is_ = chosen
    assert made.added == tuple(name for name in after if name not in before)
    assert made.removed == tuple(name for name in before if name not in after)
    assert made.restart == tuple(
        n for n in both if was[n] != is_[n] and {was[n], is_[n]} != {"command: x", "command: x, consent: deny"}
    )
    assert made.policy_changed == tuple(
        n for n in both if was[n] != is_[n] and {was[n], is_[n]} != {"command: x", "command: y"}
    )
    assert difference(new, new) == Difference()
