"""Differences between two readings of a file: each key of a server, each at the top, and nothing if nothing changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import Config, Difference, HttpServer, StdioServer, difference
from config.diff import listen_in_effect
from config.references import Secret
from tests.config.kit import http, load_text
from tests.kit.examples import examples

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
    "sandbox": (PROGRAM, f"{PROGRAM}, sandbox: strict"),
    "cwd": (PROGRAM, f"{PROGRAM}, cwd: y"),
    "url": (URL, "url: 'http://h/x', isolation: per-call"),
    "headers": (URL, f"{URL}, headers: {{A: b}}"),
    "headers_helper": (URL, f"{URL}, headers_helper: [x]"),
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
    "timeout_total": (PROGRAM, f"{PROGRAM}, timeout_total: 5m"),
    "title": (PROGRAM, f"{PROGRAM}, title: t"),
    "prefix": (PROGRAM, f"{PROGRAM}, prefix: p"),
    "disabled": (PROGRAM, f"{PROGRAM}, disabled: true"),
}
JUDGED = {
    "consent": (PROGRAM, f"{PROGRAM}, consent: {{tools: ask}}"),
    "limits": (PROGRAM, f"{PROGRAM}, limits: {{concurrent: 2}}"),
}
OVERRIDES = (PROGRAM, f"{PROGRAM}, overrides: {{t: {{title: T}}}}")
BOTH = {"trust": (PROGRAM, f"{PROGRAM}, trust: trusted")}


def test_every_field_of_a_server_is_tried_here() -> None:
    """A new one must be put into one of the tables."""
    fields = {each.name for spec in (StdioServer, HttpServer) for each in dataclasses.fields(spec) if each.compare}
    # The second half follows from the others, from the top of the file, and from the environment.
    derived = {"id", "declared", "folder", "problem", "waits_for", "variables", "longest_name"}
    assert {*RESTARTS, *JUDGED, *BOTH, *derived, "overrides"} == fields


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


def test_overrides_hold_without_a_restart(tmp_path: Path) -> None:
    old, new = (read(tmp_path, f"a: {keys}", "b: command: y") for keys in OVERRIDES)
    assert difference(old, new) == difference(new, old) == Difference(applied=("a has other overrides",))


@pytest.mark.parametrize(("before", "after"), [("1", "true"), ("1", "'1'"), ("0", "false"), ("[1]", "[true]")])
def test_types_of_values_in_overrides_are_told_apart(tmp_path: Path, before: str, after: str) -> None:
    old, new = (
        read(tmp_path, f"a: command: x, overrides: {{t: {{arguments: {{n: {{value: {value}}}}}}}}}")
        for value in (before, after)
    )
    assert difference(old, new).applied == ("a has other overrides",)


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
    ("listen", "", "listen: {tls: {cert: c.pem, key: k.pem}}"),
    ("listen", "listen: {tls: {cert: c.pem, key: k.pem}}", ""),
    (
        "listen",
        "listen: {address: '0.0.0.0:1', hosts: [a], auth: {tokens: {a: '${env:S}'}}}",
        "listen: {address: '0.0.0.0:1', hosts: [b], auth: {tokens: {a: '${env:S}'}}}",
    ),
    ("start_grace", "", "start_grace: 1s"),
    ("watch", "", "watch: off"),
    ("capacity", "", "capacity: {sessions: 2000}"),
    ("fleet", "", f"fleet: {{name: a, store: 'postgresql://localhost/a', keys: ['{'0' * 64}']}}"),
    ("audit.to", "", "audit: {to: stdout}"),
    ("console", "", "console: off"),
    ("console", "console: off", "console: {address: '127.0.0.1:0'}"),
    ("listen", "", "listen: {metrics: '127.0.0.1:9464'}"),
    ("metrics", "", "metrics: {tools: true}"),
    ("traces", "", "traces: on"),
    ("traces", "traces: on", "traces: {content: true}"),
]
LIVE = [
    ("daemon", "daemon: {idle: 1m}"),
    ("daemon", "daemon: false"),
    ("drain", "drain: 5s"),
    ("ask", "ask: {timeout: 2s}"),
    ("ask", "ask: {answers: [terminal]}"),
    ("ask", "ask: {notify: []}"),
    ("audit", "audit: {arguments: full}"),
    ("history", "history: {}"),
    ("history", "history: {arguments: full}"),
    ("memory", "memory: 64MiB"),
    ("views", "views: {few: {}}"),
]


def test_every_key_of_the_host_is_tried_here() -> None:
    """A new one must be put into one of the tables."""
    fields = {field.name for field in dataclasses.fields(Config)}
    tried = {key.partition(".")[0] for key, *_ in (*FIXED, *LIVE)}
    others = {"servers", "source", "digest", "files", "notices", "answers", "given_address", "written", "read_once"}
    others |= {"in_background", "handed_over", "own_variables", "unapproved"}
    of_views = {"callers", "default_view"}
    assert {
        *tried,
        *others,
        *of_views,
        "defaults",
        "names",
    } == fields  # the last two are of the servers that they reach


def test_another_limit_for_names_restarts_all_servers(tmp_path: Path) -> None:
    old, new = (read(tmp_path, "a: command: x", "b: command: y", top=top) for top in ("", "names: {limit: 48}"))
    assert difference(old, new) == Difference(restart=("a", "b"))
    assert difference(old, read(tmp_path, "a: command: x", "b: command: y", top="names: {limit: 64}")) == Difference()


ENVIRON = {"S": "0123456789abcdef", "T": "abcdef0123456789"}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("{a: '${env:S}'}", "{a: '${env:T}'}", "token a has another value"),
        ("{a: '${env:S}'}", "{b: '${env:S}'}", "token b added, token a withdrawn"),
        ("{a: '${env:S}'}", "{a: '${env:S}', b: '${env:T}'}", "token b added"),
        ("{a: '${env:S}', b: '${env:T}'}", "{b: '${env:T}'}", "token a withdrawn"),
        ("", "{a: '${env:S}'}", "token a added, every request needs one of them"),
        ("{a: '${env:S}'}", "", "token a withdrawn, no request needs one"),
    ],
)
def test_tokens_change_at_once(tmp_path: Path, before: str, after: str, said: str) -> None:
    tops = (f"listen: {{auth: {{tokens: {tokens}}}}}" if tokens else "" for tokens in (before, after))
    old, new = (read(tmp_path, "a: command: x", top=top, environ=ENVIRON) for top in tops)
    assert difference(old, new) == Difference(applied=(f"listen.auth: {said}",))
    assert listen_in_effect(old.listen, new.listen) == new.listen


def test_so_do_the_files_of_a_certificate(tmp_path: Path) -> None:
    old, new = (
        read(tmp_path, "a: command: x", top=f"listen: {{tls: {{cert: {name}.pem, key: {name}.key}}}}")
        for name in ("old", "new")
    )
    assert difference(old, new) == Difference()  # the certificate that is read says whether it can be used
    assert listen_in_effect(old.listen, new.listen) == new.listen


def test_an_endpoint_that_other_machines_reach_needs_tokens_until_it_is_closed(tmp_path: Path) -> None:
    """A file that names another address and no tokens is for the next start."""
    top = "listen: {address: '0.0.0.0:1', hosts: [a], auth: {tokens: {a: '${env:S}'}}}"
    old, new = (read(tmp_path, "a: command: x", top=each, environ=ENVIRON) for each in (top, ""))
    assert listen_in_effect(old.listen, new.listen) == old.listen
    assert difference(old, new) == Difference(deferred=("listen has changed: that takes effect with the next start",))


def test_a_value_of_the_environment_is_said_to_be_read_once(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("t" * 20)
    top = "listen: {auth: {tokens: {a: '${env:S}', b: '${file:t}', c: '$${env:S}0123456789'}}}"
    (said,) = read(tmp_path, "a: command: x", top=top, environ=ENVIRON).read_once
    assert said.startswith("listen.auth.tokens.a: environment variables are read once")
    top = "listen: {tls: {cert: '${env:S}.pem', key: 'k${env:U:-x}.pem'}}"
    assert len(read(tmp_path, "a: command: x", top=top, environ=ENVIRON).read_once) == 2


@pytest.mark.parametrize(("key", "before", "after"), FIXED)
def test_what_is_fixed_is_said(tmp_path: Path, key: str, before: str, after: str) -> None:
    """The endpoint and the console stay where they are."""
    old, new = (read(tmp_path, "a: command: x", top=top, environ=ENVIRON) for top in (before, after))
    assert difference(old, new) == Difference(deferred=(f"{key} has changed: that takes effect with the next start",))


@pytest.mark.parametrize(("key", "after"), LIVE)
def test_what_holds_at_once_for_all_servers_is_said(tmp_path: Path, key: str, after: str) -> None:
    old, new = (read(tmp_path, "a: command: x", top=top) for top in ("", after))
    assert difference(old, new) == Difference(applied=(f"{key} has changed",))


def test_who_is_offered_which_view_holds_at_once(tmp_path: Path) -> None:
    tokens = "listen: {auth: {tokens: {a: 0123456789abcdef}}}\nviews: {few: {}}\n"
    old, new = (read(tmp_path, "a: command: x", top=tokens + top) for top in ("", "default_view: few"))
    assert difference(old, new) == Difference(applied=("default_view has changed",))
    new = read(tmp_path, "a: command: x", top=f"{tokens}callers: {{a: {{token: a}}}}")
    assert difference(old, new) == Difference(applied=("callers has changed",))


def test_which_view_comes_first_is_a_change(tmp_path: Path) -> None:
    old, new = (
        read(tmp_path, "a: command: x", top=f"views: {views}") for views in ("{x: {}, y: {}}", "{y: {}, x: {}}")
    )
    assert difference(old, new) == Difference(applied=("views has changed",))


IDS = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


@given(st.data(), IDS, IDS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
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
