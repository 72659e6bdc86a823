"""Which changes of a file wait for a person."""

from __future__ import annotations

import dataclasses
import json
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import (
    Check,
    Condition,
    Config,
    Consent,
    KindConsent,
    Notice,
    Rule,
    Secret,
    StdioServer,
    ToolClaim,
    Trust,
    Verdict,
    load,
)
from config.sandbox import Sandbox
from host.policy.claims import POSSIBLE_CLAIMS, ToolClaims
from host.policy.rules import ENTRY_DEFAULTS, Rules
from host.policy.widening import changes_as_data, permits_more, widenings, without_widenings
from host.protocol.methods import Kind

READ_ONLY, DESTRUCTIVE, CLOSED = ToolClaim.READ_ONLY, ToolClaim.DESTRUCTIVE, ToolClaim.CLOSED_WORLD
NAMES = ("a", "ab", "b", "ba", "c", "")
PATTERNS = ("a", "a*", "b", "*b", "*", "c")
STRICTNESS = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}

CLAIMS = ((), (), (READ_ONLY,), (DESTRUCTIVE,), (CLOSED,), (CLOSED, READ_ONLY))
WHEN: tuple[tuple[Condition, ...], ...] = ((), (), (Condition("/n", (Check("eq", 1),)),))
ARGUMENTS = ({"n": 1}, {"n": 2}, {"n": "1"})
"""A condition on them holds, does not, and cannot be decided."""

CALLERS = ((), (), ("ci",), ("laptop",), ("ci", "laptop"))

rule = st.builds(
    Rule,
    st.sampled_from(PATTERNS),
    st.sampled_from(WHEN),
    st.just(False),
    st.sampled_from(CLAIMS),
    st.sampled_from(CALLERS),
)
rules = st.lists(rule, max_size=3).map(tuple)
consents = st.builds(
    KindConsent,
    allow=st.none() | rules,
    ask=rules,
    deny=rules,
    default=st.none() | st.sampled_from(list(Verdict)),
)
trusts = st.sampled_from(list(Trust))


def assert_no_laxer(before: tuple[KindConsent, Trust], after: tuple[KindConsent, Trust]) -> None:
    """Of no call of any tool by any caller, whatever it claims, and whether that counts or not. Fully trusted, all
    claims count; with less trust some of them may not count any more. A higher trust waits by itself."""
    old, new = (Rules(Consent(tools=consent), trust) for consent, trust in (before, after))
    told: list[tuple[ToolClaims | None, ToolClaims | None]] = [(each, each) for each in POSSIBLE_CLAIMS]
    if after[1] is not Trust.TRUSTED:
        told += [(None, None)] if before[1] is not Trust.TRUSTED else [(each, None) for each in POSSIBLE_CLAIMS]
    for name, arguments, (was, now), caller in product(NAMES, ARGUMENTS, told, ("", "ci", "laptop")):
        former = old.evaluate(Kind.TOOL, name, arguments, was, caller).verdict
        later = new.evaluate(Kind.TOOL, name, arguments, now, caller).verdict
        assert STRICTNESS[later] >= STRICTNESS[former], (name, arguments, was, now, caller)


@given(consents, trusts, consents, trusts, st.integers(0, 3))
def test_what_permits_no_more_has_no_laxer_verdict_on_any_call(
    old: KindConsent, old_trust: Trust, new: KindConsent, new_trust: Trust, near: int
) -> None:
    if near:  # a small change of the former one
        changed = ("deny", "ask", "allow")[near - 1]
        new = dataclasses.replace(old, **{changed: getattr(new, changed)})
    if not permits_more((old, old_trust), (new, new_trust), ENTRY_DEFAULTS, uris=False):
        assert_no_laxer((old, old_trust), (new, new_trust))


@given(consents, trusts)
def test_rules_that_stay_permit_no_more(consent: KindConsent, trust: Trust) -> None:
    assert not permits_more((consent, trust), (consent, trust), ENTRY_DEFAULTS, uris=False)


BASE = (
    "command: [x, y], env: {A: b}, trust: standard, limits: {calls: 60/min}, consent: {tools: {allow: [a], ask: [b]}}"
)

URL = BASE.replace("command: [x, y], env: {A: b}", "url: 'http://h/mcp'")

CHANGES: dict[str, tuple[str, list[str]]] = {
    "another argument": (BASE.replace("[x, y]", "[x, z]"), ["command has changed"]),
    "another variable": (BASE.replace("A: b", "A: c"), ["env has changed"]),
    "a higher trust": (BASE.replace("standard", "trusted"), ["trust rises from standard to trusted"]),
    "a looser limit": (BASE.replace("60/min", "61/min"), ["limits permit more"]),
    "no limit": (BASE.replace("limits: {calls: 60/min}, ", ""), ["limits permit more"]),
    "one more that is allowed": (BASE.replace("[a]", "[a, c]"), ["the rules for tools permit more"]),
    "no confirmation": (BASE.replace(", ask: [b]", ""), []),
    "allowed without confirmation": (BASE.replace("[a], ask: [b]", "[a, b]"), ["the rules for tools permit more"]),
    "sampling": (BASE.replace("tools:", "sampling: allow, tools:"), ["sampling permits more"]),
    "another prefix of names": (f"{BASE}, prefix: p", ["prefix has changed"]),
    "confined": (f"{BASE}, sandbox: strict", []),
    "a URL": (URL, ["it is reached in another way"]),
    "the same": (BASE, []),
    "another order": (BASE.replace("allow: [a], ask: [b]", "ask: [b], allow: [a]"), []),
    "a lower trust": (BASE.replace("standard", "untrusted"), []),
    "a tighter limit": (BASE.replace("60/min", "1/s").replace("1/s", "1/h"), []),
    "one more that is denied": (BASE.replace("ask: [b]", "ask: [b], deny: [c]"), []),
    "from allowed to asked": (BASE.replace("[a], ask: [b]", "[], ask: [a, b]"), []),
    "a question about another one": (BASE.replace("ask: [b]", "ask: [b, c]"), ["the rules for tools permit more"]),
    "switched off, at a URL": (f"{URL}, disabled: true", ["it is reached in another way"]),
    "a title": (f"{BASE}, title: T, timeout: 5s, timeout_total: 24h, idle: 10m", []),
    "more at once, though fewer in all": (BASE.replace("60/min", "100/h"), ["limits permit more"]),
    "more isolation": (f"{BASE}, isolation: per-call", []),
    "switched off": (f"{BASE}, disabled: true", []),
}


def config(folder: Path, server: str, **top: str) -> Config:
    file = folder / "c.yaml"
    lines = "".join(f"{key}: {value}\n" for key, value in top.items())
    file.write_text(f"{lines}servers:\n  same: {{command: [z]}}\n  s: {{{server}}}\n")
    return load(file)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_server_waits_where_it_widens(change: str, tmp_path: Path) -> None:
    server, sentences = CHANGES[change]
    old, new = config(tmp_path, BASE), config(tmp_path, server)
    if change == "no confirmation":  # the allow list denies it from now on
        sentences = ["the rules for tools permit more"]
    assert widenings(old, new) == ({"s": tuple(sentences)} if sentences else {})
    applied = without_widenings(old, new)
    expected = (old if sentences else new).servers["s"]
    assert applied.servers["s"] == dataclasses.replace(expected, disabled=new.servers["s"].disabled)
    assert list(applied.servers) == ["same", "s"]


def test_another_sandbox_waits_and_so_does_none(tmp_path: Path) -> None:
    """Even a narrower one does: which of two is narrower may depend on the machine."""
    old = config(tmp_path, f"{BASE}, sandbox: {{network: loopback}}")
    for other in ("", ", sandbox: strict", ", sandbox: {network: all}", ', sandbox: {network: ["a.test:443"]}'):
        new = config(tmp_path, f"{BASE}{other}")
        assert widenings(old, new) == {"s": ("sandbox has changed",)}
        assert without_widenings(old, new).servers["s"] == old.servers["s"]
        old = new if "a.test" in other else old
    for other in ('["a.test:443", "b.test:443"]', '["*.a.test:443"]', '[{to: "a.test:443", private: true}]'):
        new = config(tmp_path, f"{BASE}, sandbox: {{network: {other}}}")
        assert widenings(old, new) == {"s": ("sandbox has changed",)}


@pytest.mark.parametrize(
    "more",
    [
        *("files: {read: [/srv]}", "files: {write: [/srv]}", "network: loopback", "environment: [SHELL]"),
        *("memory: 2GiB", "memory: 512MiB", "temporary: 1GiB", "cpu: 1.5", "processes: 65", "open_files: 257"),
        *("install: {scripts: true}", "accept: landlock", "with: podman, image: x"),
    ],
)
def test_each_key_of_a_sandbox_waits(more: str, tmp_path: Path) -> None:
    strict, other = (config(tmp_path, f"{BASE}, sandbox: {each}") for each in ("strict", f"{{{more}}}"))
    for old, new in ((strict, other), (other, strict)):
        assert widenings(old, new) == {"s": ("sandbox has changed",)}
        assert without_widenings(old, new).servers["s"] == old.servers["s"]


def test_a_container_for_a_program_that_had_no_sandbox_waits(tmp_path: Path) -> None:
    """Its image has another program under the same command, which would get the same secrets."""
    old = config(tmp_path, BASE)
    new = config(tmp_path, f"{BASE}, sandbox: {{with: podman, image: other}}")
    assert widenings(old, new) == {"s": ("sandbox has changed",)}
    assert without_widenings(old, new).servers["s"] == old.servers["s"]


def test_an_untrusted_program_gets_out_of_its_sandbox_only_with_a_person(tmp_path: Path) -> None:
    """What waits has the sandbox that its trust gave it, and says so."""
    bare = BASE.replace(", trust: standard", "")
    assert bare != BASE
    old = config(tmp_path, f"{bare}, trust: untrusted")
    for more, found in {
        ", trust: untrusted, sandbox: off": ("sandbox has changed",),
        ", trust: untrusted, sandbox: strict": (),
        "": ("trust rises from untrusted to standard", "sandbox has changed"),
    }.items():
        new = config(tmp_path, f"{bare}{more}")
        assert set(widenings(old, new).get("s", ())) == set(found)
        kept = without_widenings(old, new).servers["s"]
        assert (kept.sandbox, kept.confined_by_trust) == (Sandbox(), more != ", trust: untrusted, sandbox: strict")
    assert widenings(config(tmp_path, BASE), old) == {}


def test_a_server_that_cannot_be_used_any_more_stops_at_once(tmp_path: Path) -> None:
    """It starts again only for a person."""
    old = config(tmp_path, "command: [x]")
    before = old.servers["s"]
    assert isinstance(before, StdioServer)
    unusable = dataclasses.replace(before, command=(Secret(""),), problem="it has a hook")
    new = dataclasses.replace(old, servers=MappingProxyType({**old.servers, "s": unusable}))
    assert widenings(old, new) == {}
    assert without_widenings(old, new).servers["s"] == unusable
    assert widenings(new, old) == {"s": ("it can be used again", "command has changed")}
    assert without_widenings(new, old).servers["s"].problem == "it has a hook"
    at_url = config(tmp_path, "url: https://example.com/mcp")
    assert widenings(at_url, new) == {}
    assert without_widenings(new, at_url).servers["s"] == unusable


WAITING = 'command: [x], env: {A: "${env:%s}"}, limits: {calls: 9/min}'


def in_background(folder: Path, server: str) -> Config:
    config(folder, "command: [x]")
    (folder / "c.yaml").write_text(f"servers: {{s: {{{server}}}}}")
    return load(folder / "c.yaml", {}, in_background=True)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (WAITING % "A", WAITING % "B", "env has changed"),
        ("command: [x], env: {A: a}, limits: {calls: 9/min}", WAITING % "A", "env has changed"),
        ('command: ["${env:A}"]', 'command: ["${env:B}"]', "command has changed"),
        ('url: "${env:A}"', 'url: "${env:B}"', "url has changed"),
        ('url: "https://example.com"', 'url: "${env:B}"', "url has changed"),
        (
            "command: [x], env: {A: a}",
            'command: [x], env: {A: "${env:SECRET:-a}"}',
            "it uses SECRET of the environment",
        ),
    ],
)
def test_a_server_takes_no_other_variable_without_a_person(
    before: str, after: str, sentence: str, tmp_path: Path
) -> None:
    """Also while it waits for one: the client that comes next may have it."""
    old, new = in_background(tmp_path, before), in_background(tmp_path, after)
    assert widenings(old, new) == {"s": (sentence,)}
    assert without_widenings(old, new).servers["s"] == old.servers["s"]


def test_a_server_that_waits_can_be_narrowed(tmp_path: Path) -> None:
    """It goes on waiting; and where it is reached in another way, the former way stays as it is."""
    old, new = in_background(tmp_path, WAITING % "A"), in_background(tmp_path, WAITING.replace("9/min", "1/min") % "A")
    assert widenings(old, new) == {}
    assert without_widenings(old, new).servers["s"] == new.servers["s"]
    at_url = in_background(tmp_path, 'url: "${env:B}", limits: {calls: 1/min}')
    kept = without_widenings(old, at_url).servers["s"]
    assert (kept.waits_for, kept.problem, kept.limits) == (("A",), old.servers["s"].problem, new.servers["s"].limits)
    known = in_background(tmp_path, WAITING.replace("${env:%s}", "a"))
    assert widenings(old, known) == {"s": ("it can be used again", "env has changed")}
    assert without_widenings(old, known).servers["s"] == old.servers["s"]


def test_what_narrows_holds_beside_what_waits(tmp_path: Path) -> None:
    """Also in the same server, and in the same part of it."""
    old = config(tmp_path, f"{BASE}, isolation: per-client", ask="{answers: [console, terminal]}")
    text = (
        "command: [x, z], env: {A: b}, trust: untrusted, limits: {calls: 1/h, concurrent: 3}, timeout: 5s, "
        "consent: {tools: {allow: [a, c], ask: [b]}, prompts: {deny: [p]}, sampling: allow, "
        "elicitation: {url: {deny: [u]}}}"
    )
    new = config(tmp_path, text, ask="{answers: [console, client]}", audit="{keep: 1h}")
    applied = without_widenings(old, new)
    before, wanted, now = old.servers["s"], new.servers["s"], applied.servers["s"]
    assert isinstance(now, StdioServer)
    assert isinstance(before, StdioServer)
    assert [word.reveal() for word in now.command] == [word.reveal() for word in before.command]
    assert (now.trust, now.limits, now.timeout) == (wanted.trust, wanted.limits, wanted.timeout)
    assert now.isolation == before.isolation
    assert now.consent.tools == before.consent.tools
    assert now.consent.prompts == wanted.consent.prompts
    assert now.consent.sampling == before.consent.sampling
    assert now.consent.elicitation.url == wanted.consent.elicitation.url
    assert (applied.ask, applied.audit) == (old.ask, old.audit)
    assert widenings(old, applied) == {}
    assert set(widenings(applied, new)) == set(widenings(old, new)) == {"s", ""}


def test_another_program_or_address_is_told_nothing_until_a_person_applies_it(tmp_path: Path) -> None:
    old = config(tmp_path, BASE, ask="{notify: [{command: [a]}, {webhook: 'https://h/'}]}")
    new = config(tmp_path, BASE, ask="{notify: [desktop, {webhook: 'https://h/'}, {command: [b]}], timeout: 5s}")
    assert widenings(old, new) == {"": ("ask.notify: another program or address is told what waits",)}
    applied = without_widenings(old, new).ask
    assert applied.notify == (Notice(), old.ask.notify[1])
    assert applied.timeout == 5.0
    for fewer in ("{notify: [{command: [a]}]}", "{notify: []}", "{notify: [desktop]}"):
        assert widenings(old, config(tmp_path, BASE, ask=fewer)) == {}
    other = "{notify: [{webhook: 'https://h/', headers: {A: b}}]}"
    assert widenings(old, config(tmp_path, BASE, ask=other))


@given(consents, trusts, consents, trusts)
def test_what_is_applied_has_no_laxer_verdict_on_any_call(
    old: KindConsent, old_trust: Trust, new: KindConsent, new_trust: Trust
) -> None:
    def configured(consent: KindConsent, trust: Trust) -> Config:
        server = StdioServer(id="s", command=(Secret("x"),), consent=Consent(tools=consent), trust=trust)
        return Config(servers={"s": server})

    applied = without_widenings(configured(old, old_trust), configured(new, new_trust)).servers["s"]
    assert_no_laxer((old, old_trust), (applied.consent.tools, applied.trust))


ALLOW, ASK, DENY = Verdict


@pytest.mark.parametrize(
    ("former", "saved", "waits", "verdicts"),
    [
        ("{allow: ['git_*']}", "{allow: ['git_*'], ask: [git_log], deny: [git_show]}", False, {}),
        ("{allow: [git_log, git_show]}", "{allow: [git_show], ask: [git_log]}", False, {}),
        ("{allow: ['git_*']}", "{allow: [git_log]}", False, {}),
        ("{deny: [a]}", "{deny: ['a*']}", False, {}),
        (
            "{allow: [log, show, status, stash]}",
            "{allow: [show, commit], ask: [status], deny: [log]}",
            True,
            {"log": DENY, "show": ALLOW, "status": ASK, "stash": DENY, "commit": DENY},
        ),
        ("{allow: [log], deny: [x]}", "{ask: [log, add], deny: [y]}", True, {"log": ASK, "add": DENY, "y": DENY}),
        ("allow", "{default: allow, ask: [a]}", False, {}),
        ("ask", "{default: allow, deny: [a]}", True, {"a": DENY, "b": ASK}),
    ],
)
def test_the_stricter_half_of_an_edit_holds(
    tmp_path: Path, former: str, saved: str, waits: bool, verdicts: dict[str, Verdict]
) -> None:
    """`verdicts`: those in effect until a person reloads; without them, what was saved is in effect."""
    old, new = (config(tmp_path, f"command: [x], consent: {{tools: {each}}}") for each in (former, saved))
    assert bool(widenings(old, new)) == waits
    applied = without_widenings(old, new).servers["s"]
    if not waits:
        assert applied.consent == new.servers["s"].consent
    in_effect = Rules(applied.consent, applied.trust)
    assert {name: in_effect.evaluate(Kind.TOOL, name).verdict for name in verdicts} == verdicts


def test_a_change_is_shown_as_the_file_has_it(tmp_path: Path) -> None:
    old = config(tmp_path, BASE)
    new = config(
        tmp_path,
        BASE.replace("command: [x, y]", "command: [z, '${env:HOME}']").replace("{A: b}", "{A: b, T: abc}"),
        audit="{arguments: full}",
    )
    of_server, of_host = changes_as_data(old, new, "c1")
    assert (of_server["id"], of_server["server"], of_server["widens"]) == (
        "c1",
        "s",
        ["command has changed", "env has changed"],
    )
    text = "".join(piece["text"] for piece in of_server["diff"] if piece["op"] != "removed")
    assert '"${env:HOME}"' in text
    assert "abc" not in text
    assert [piece["text"].strip() for piece in of_server["diff"] if piece["op"] == "removed"] == ["x", "y"]
    assert (of_host["server"], of_host["widens"]) == ("", ["audit has changed"])
    assert "full" in str(of_host["diff"])
    applied = without_widenings(old, new)
    assert applied.written["s"] == old.written["s"]
    assert changes_as_data(applied, new, "c2") == [{**each, "id": "c2"} for each in (of_server, of_host)]


def test_another_value_of_a_reference_has_no_difference_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PROGRAM", "x")
    old = config(tmp_path, "command: ['${env:A_PROGRAM}']")
    monkeypatch.setenv("A_PROGRAM", "y")
    (row,) = changes_as_data(old, config(tmp_path, "command: ['${env:A_PROGRAM}']"), "c1")
    assert (row["widens"], row["diff"]) == (["command has changed"], [])


A, B = "a" * 20, "b" * 20


@pytest.mark.parametrize(
    ("before", "after", "sentences", "kept"),
    [
        ({"x": A}, {"x": A, "y": B}, ["listen.auth: the token y is new"], {"x": A}),
        ({"x": A}, {"x": B}, ["listen.auth: the token x has another value"], {}),
        ({"x": A, "y": B}, {"x": A}, [], {"x": A}),
        ({"x": A}, {"y": A}, ["listen.auth: the token y is new"], {}),
        ({"x": A}, None, ["listen.auth: no access token is needed any more"], {"x": A}),
        (None, {"x": A}, ["listen.auth: the token x is new"], None),
        (None, None, [], None),
    ],
)
def test_a_token_is_withdrawn_at_once_and_a_new_one_waits(
    before: dict[str, str] | None,
    after: dict[str, str] | None,
    sentences: list[str],
    kept: dict[str, str] | None,
    tmp_path: Path,
) -> None:
    """The value of a token is shown to nobody."""
    old, new = (
        config(tmp_path, BASE, **({} if each is None else {"listen": f"{{auth: {{tokens: {each}}}}}"}))
        for each in (before, after)
    )
    assert widenings(old, new) == ({"": tuple(sentences)} if sentences else {})
    auth = without_widenings(old, new).listen.auth
    assert (None if auth is None else {name: token.reveal() for name, token in auth.tokens.items()}) == kept
    shown = json.dumps(changes_as_data(old, new, "c1"))
    assert A not in shown
    assert B not in shown


def test_other_files_of_a_certificate_do_not_wait(tmp_path: Path) -> None:
    old, new = (config(tmp_path, BASE, listen=f"{{tls: {{cert: {each}, key: {each}}}}}") for each in ("a", "b"))
    assert widenings(old, new) == {}
    assert without_widenings(old, new).listen == new.listen


def test_a_new_server_waits_and_a_removed_one_does_not(tmp_path: Path) -> None:
    old = config(tmp_path, BASE)
    (tmp_path / "c.yaml").write_text("servers: {new: {command: [x]}, off: {command: [x], disabled: true}}")
    new = load(tmp_path / "c.yaml")
    assert widenings(old, new) == {"new": ("it is new",), "off": ("it is new",)}
    assert list(without_widenings(old, new).servers) == []
    assert widenings(new, old).keys() == {"same", "s"}


KEPT = "history.arguments: more is kept of arguments and results"


@pytest.mark.parametrize(
    ("before", "after", "sentences"),
    [
        ({}, {"ask": "{answers: [console, client]}"}, ["ask.answers: a person may confirm in more places"]),
        ({}, {"ask": "{answers: [console]}"}, []),
        ({}, {"audit": "{keep: 1h}"}, ["audit has changed"]),
        ({}, {"history": "{keep: 1h}"}, []),
        ({}, {"history": "{arguments: redacted}"}, [KEPT]),
        ({"history": "{}"}, {"history": "{keep: 1h, arguments: full}"}, [KEPT]),
        ({"history": "{arguments: redacted}"}, {"history": "{arguments: full}"}, [KEPT]),
        ({"history": "{arguments: full}"}, {"history": "{arguments: redacted}"}, []),
        ({"history": "{arguments: full}"}, {"history": "{}"}, []),
        ({"history": "{arguments: full}"}, {}, []),
        ({}, {"memory": "64MiB"}, []),
    ],
)
def test_changes_of_the_host_wait_where_they_widen(
    before: dict[str, Any], after: dict[str, Any], sentences: list[str], tmp_path: Path
) -> None:
    old, new = config(tmp_path, BASE, **before), config(tmp_path, BASE, **after)
    assert widenings(old, new) == ({"": tuple(sentences)} if sentences else {})
    applied = without_widenings(old, new)
    assert (applied.ask, applied.audit) == ((old.ask, old.audit) if sentences else (new.ask, new.audit))
    assert applied.memory == new.memory
    was, wanted, now = (each.history for each in (old, new, applied))
    if wanted is not None and KEPT in sentences:
        wanted = dataclasses.replace(wanted, arguments=None if was is None else was.arguments)
    assert now == wanted
    if KEPT in sentences:
        (row,) = changes_as_data(old, new, "c1")
        assert "arguments" in str(row["diff"])
