"""What may be seen of servers: what the rules show, as it was approved, in every spelling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from config import (
    Check,
    Condition,
    Consent,
    KindConsent,
    Rule,
    Trust,
    Verdict,
)
from host.errors import StaleApproval, Unconfirmed
from host.journal import DefinitionChanged, Event, Journal
from host.names import MAX_MATCHED_LENGTH
from host.policy import pins, uris
from host.policy.confirmations import ConfirmationAnswer
from host.policy.definitions import MAX_HELD_MATCHES, MAX_HELD_URIS
from host.policy.fingerprint import Launch
from host.policy.pin_rules import PinStatus
from host.policy.pins import PreparedPins
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import Source
from host.subject import Item
from tests.kit.awaited import awaited
from tests.kit.folders import folder
from tests.kit.gates import approve_all, auto_answering, entry, kind, observe, open_gate

from .servers import SERVERS, STRICT, URI, asked_about, call, dispatched, gate, offers, passes, spec, with_server


async def test_nothing_of_an_untrusted_server_exists_before_a_person_approved_it_and_then_every_call_asks() -> None:
    with gate() as opened:
        offers(opened, "untrusted", "x", "y")
        assert await asked_about(opened, "untrusted", "x") == (None, [])
        assert not opened.definitions.is_known(entry("untrusted", Kind.TOOL, "x"), "")
        (held, _) = opened.definitions.pins.held()
        awaited(opened.definitions.approve(held.item, held.fingerprint, "console"))
        assert opened.definitions.is_visible(entry("untrusted", Kind.TOOL, "x"), "")
        assert not opened.definitions.is_visible(entry("untrusted", Kind.TOOL, "y"), "")
        with pytest.raises(Unconfirmed, match="needs a person's consent, and nobody is there"):
            await opened.admit(call(), entry("untrusted", Kind.TOOL, "x"))
        for _ in range(2):
            permit, asked = await asked_about(opened, "untrusted", "x")
            assert permit is not None
            with dispatched(permit):
                assert [(pending.access.subject.item.name, pending.access.subject.rule) for pending in asked] == [
                    ("x", "trust: untrusted")
                ]


@pytest.mark.parametrize(("after", "what"), [("b, a", "reordered"), ("b, c", "held")])
def test_another_order_is_held_like_any_change_and_noted_with_its_remedy(after: str, what: str) -> None:
    """Over a restart too: what was approved is compared, whichever process saw it."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    with folder() as state:
        for words in ("a, b", after):
            with open_gate({"open": replace(SERVERS["open"], trust=Trust.STANDARD)}, journal, state=state) as opened:
                events.clear()
                observe(opened, "open", Kind.TOOL, {"x": f'{{"name":"x","description":"{words}"}}'.encode()})
                assert opened.definitions.is_visible(entry("open", Kind.TOOL, "x"), "") == (words == "a, b")
    (event,) = (each for each in events if isinstance(each, DefinitionChanged))
    assert event.what == what
    assert ("PYTHONHASHSEED" in str(event)) == (what == "reordered")


def test_of_so_many_changes_the_order_is_compared_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes on changing must cost little; of the others it is not said that only their order differs."""
    compared: list[bytes | None] = []

    def compare(before: bytes | None, after: bytes) -> bool:
        compared.append(before)
        return True

    monkeypatch.setattr(pins, "is_reordered", compare)
    names = [f"x{at}" for at in range(pins.MOST_COMPARED + 9)]

    def prepared(words: str) -> PreparedPins:
        offered = dict.fromkeys(names, f'{{"description":"{words}"}}'.encode())
        return awaited(opened.definitions.pins.prepare(Source("open", Era.SESSION), Kind.TOOL, offered))

    with gate() as opened:
        assert opened.definitions.pins.commit(prepared("a b")) is not None
        assert compared == []
        changes = prepared("b a").changes
        assert (len(changes), len(compared)) == (len(names), pins.MOST_COMPARED)
        assert sum(change.reordered for change in changes) == pins.MOST_COMPARED


@pytest.mark.parametrize("trust", list(Trust))
async def test_what_is_not_the_definition_that_was_approved_is_held_back_unless_its_server_is_trusted(
    trust: Trust,
) -> None:
    """Whoever calls it is told where to approve it; that it was there is no secret."""
    with gate({"s": spec("s", trust=trust)}) as opened:
        offers(opened, "s", "x", "y")
        approve_all(opened)
        former = opened.definitions.fingerprint(entry("s", Kind.TOOL, "x"))
        offers(opened, "s", "x", "y", description="Obey.")
        assert opened.definitions.is_visible(entry("s", Kind.TOOL, "x"), "") == (trust is Trust.TRUSTED)
        assert opened.definitions.is_known(entry("s", Kind.TOOL, "x"), "")
        if trust is Trust.TRUSTED:
            return
        with auto_answering(opened) as asked:
            with pytest.raises(StaleApproval, match="colonnade definitions") as refused:
                await opened.admit(call(), entry("s", Kind.TOOL, "x"))
            with pytest.raises(StaleApproval, match="colonnade definitions"):
                opened.admit_without_confirmation(call(), entry("s", Kind.TOOL, "x"))
        assert (refused.value.code, asked) == (409, [])
        awaited(
            opened.definitions.reject(
                Item("s", "tool", "x"), opened.definitions.fingerprint(entry("s", Kind.TOOL, "x")), "console"
            )
        )
        assert not opened.definitions.is_visible(entry("s", Kind.TOOL, "x"), "")
        offers(opened, "s", "x")
        assert opened.definitions.fingerprint(entry("s", Kind.TOOL, "x")) == former
        assert opened.definitions.is_visible(entry("s", Kind.TOOL, "x"), "")
        awaited(opened.definitions.revoke(Item("s", "tool", "x"), former, "console"))
        assert not opened.definitions.is_visible(entry("s", Kind.TOOL, "x"), "")


async def test_what_is_denied_and_held_back_does_not_exist() -> None:
    with gate() as opened:
        offers(opened, "strict", "delete")
        offers(opened, "strict", "delete", description="Other.")
        assert not opened.definitions.is_known(entry("strict", Kind.TOOL, "delete"), "")
        assert await opened.admit(call(), entry("strict", Kind.TOOL, "delete")) is None


async def test_a_server_whose_program_is_another_can_be_asked_nothing() -> None:
    with gate() as opened:
        offers(opened, "open", "x")
        assert awaited(opened.definitions.observe_launch("open", Launch("d", "/bin/one")))
        epoch = opened.policies.epoch
        assert not awaited(opened.definitions.observe_launch("open", Launch("d", "/bin/two")))
        assert opened.policies.epoch > epoch
        assert not opened.definitions.is_visible(entry("open", Kind.TOOL, "x"), "")
        with pytest.raises(StaleApproval, match="resolves to another program"):
            await opened.admit(call(), entry("open", Kind.TOOL, "x"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened.definitions.wait_until_launchable, "open")
            await wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 1
            approve_all(opened)
        assert await opened.admit(call(), entry("open", Kind.TOOL, "x")) is not None


@pytest.mark.parametrize(("trust", "exists"), [(Trust.TRUSTED, True), (Trust.STANDARD, True), (Trust.UNTRUSTED, False)])
async def test_a_uri_that_no_list_names_is_nothing_of_an_untrusted_server(trust: Trust, exists: bool) -> None:
    with gate({"s": spec("s", trust=trust)}) as opened, auto_answering(opened) as asked:
        offers(opened, "s", "file:///other", kind=Kind.RESOURCE)
        approve_all(opened)
        assert (await opened.admit(call(), entry("s", Kind.RESOURCE, URI)) is not None) is exists
        assert opened.definitions.is_visible(entry("s", Kind.RESOURCE, URI), "") is exists
    assert asked == []


async def test_a_uri_stands_as_the_template_that_makes_it() -> None:
    """Or as its own entry, if it has one."""
    template = "file:///home/me/{name}"
    with gate() as opened:
        offers(opened, "untrusted", template, kind=Kind.TEMPLATE)
        assert opened.definitions.status(entry("untrusted", Kind.RESOURCE, URI)) is PinStatus.NEW
        assert not opened.definitions.is_known(entry("untrusted", Kind.RESOURCE, URI), "")
        approve_all(opened)
        assert opened.definitions.fingerprint(entry("untrusted", Kind.RESOURCE, URI)) == opened.definitions.fingerprint(
            entry("untrusted", Kind.TEMPLATE, template)
        )
        with auto_answering(opened) as asked:
            assert await opened.admit(call(), entry("untrusted", Kind.RESOURCE, URI)) is not None
        assert [pending.access.subject.item.name for pending in asked] == [URI]
        offers(opened, "untrusted", URI, kind=Kind.RESOURCE)
        assert opened.definitions.status(entry("untrusted", Kind.RESOURCE, URI)) is PinStatus.NEW
        offers(opened, "untrusted", template, kind=Kind.TEMPLATE, description="Other.")
        with pytest.raises(StaleApproval):
            await opened.admit(call(), entry("untrusted", Kind.RESOURCE, "file:///home/me/y"))


@pytest.mark.parametrize("kind", [Kind.RESOURCE, Kind.TEMPLATE])
@pytest.mark.parametrize("uri", ["ui://a/page", "UI://a/page"])
async def test_the_pages_of_an_untrusted_server_do_not_exist(kind: Kind, uri: str) -> None:
    with gate() as opened:
        for server in ("open", "untrusted"):
            offers(opened, server, uri, kind=kind)
        approve_all(opened)
        assert opened.definitions.is_known(entry("open", kind, uri), "")
        assert not opened.definitions.is_known(entry("untrusted", kind, uri), "")
        with auto_answering(opened):
            assert await opened.admit(call(), entry("untrusted", kind, uri)) is None


@pytest.mark.parametrize("trust", list(Trust))
async def test_instructions_reach_a_model_once_they_are_approved(trust: Trust) -> None:
    """Those of an untrusted server without what nobody sees."""
    with gate({"s": spec("s", trust=trust)}) as opened:
        said, source = "Ob\u200bey.\u202e", Source("s", Era.SESSION)
        assert opened.definitions.instructions(source, None) is None
        awaited(opened.definitions.observe_instructions(source, said))
        assert opened.definitions.instructions(source, said) == (None if trust is Trust.UNTRUSTED else said)
        approve_all(opened)
        assert opened.definitions.instructions(source, said) == ("Obey." if trust is Trust.UNTRUSTED else said)
        awaited(opened.definitions.observe_instructions(source, "Obey more."))
        assert opened.definitions.instructions(source, "Obey more.") == (
            "Obey more." if trust is Trust.TRUSTED else None
        )


async def test_whoever_lists_hears_of_every_decision() -> None:
    moved: list[str] = []
    with gate() as opened:
        offers(opened, "untrusted", "x")
        opened.definitions.subscribe(moved.extend)
        approve_all(opened)
        assert moved == ["untrusted"]
        opened.definitions.invalidate(["strict", "open"])
        assert moved == ["untrusted", "strict", "open"]
        opened.replace(with_server("open", consent=STRICT), {})
        assert moved[3:] == ["open"]
        opened.replace(with_server("open", trust=Trust.UNTRUSTED), {})
        assert moved[4:] == ["open"]


async def test_whoever_lists_hears_nothing_of_a_server_whose_rules_a_reload_leaves() -> None:
    """Its verdicts are remembered, whatever else of it is configured otherwise, until it is removed."""
    moved: list[str] = []
    denied = [Rule("x", (Condition("/n", (Check("eq", value),)),)) for value in (1, True)]  # equal ones, for Python
    first, second = (spec("a", Consent(tools=KindConsent(deny=(rule,)))) for rule in denied)
    with gate({"a": first, "open": SERVERS["open"]}) as opened:
        opened.definitions.subscribe(moved.extend)
        rules = {server: opened.policies.rules(server) for server in ("a", "open")}
        epoch = opened.policies.epoch
        opened.replace({"open": spec("open"), "a": replace(first, title="A")}, {})
        assert {server: opened.policies.rules(server) for server in rules} == rules
        assert (moved, opened.policies.epoch) == ([], epoch + 1)
        opened.replace({"open": spec("open"), "a": second}, {})
        assert (moved, opened.policies.rules("open")) == (["a"], rules["open"])
        assert opened.policies.rules("a").evaluate(Kind.TOOL, "x", {"n": True}).verdict is Verdict.DENY
        opened.replace({"a": second}, {})
        opened.replace({"open": spec("open"), "a": second}, {})
        assert moved == ["a", "open"]
        assert opened.policies.rules("open") is not rules["open"]


async def test_what_people_decided_holds_for_the_next_host(tmp_path: Path) -> None:
    """What was for a session does not."""
    state = tmp_path / "state"
    with gate(state=state) as opened:
        offers(opened, "untrusted", "x")
        approve_all(opened)
        offers(opened, "asking", "create_x", "create_y")
        await asked_about(opened, "asking", "create_x", answer=ConfirmationAnswer.ALWAYS)
        await asked_about(opened, "asking", "create_y", answer=ConfirmationAnswer.SESSION)
    with gate(state=state) as opened:
        offers(opened, "untrusted", "x")
        assert opened.definitions.is_visible(entry("untrusted", Kind.TOOL, "x"), "")
        offers(opened, "asking", "create_x", "create_y")
        assert await passes(opened, "create_x", call())
        assert not await passes(opened, "create_y", call())


@pytest.mark.few(7)
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
@pytest.mark.parametrize(
    "spelling",
    [
        *(
            "file:///a/./x.md",
            "file:///a/%78.md",
            "file:///a//x.md",
            "file:///a/x.md?",
            "file:///a/x.md#",
            "FILE:///a/x.md",
        ),
        *("file:///a/x.md?x=1", "file:///a/x.md#frag", "file:///a/x.md/", "file:///a/x.md/.", "file:///a/x.md%3Fx"),
        *(
            "file:///a/x.md/./?a#b",
            "file:///a/x.md?" + "x" * 9000,
            "file:///a/x.md?%5c..%2f/../;#" + "%255c%23;/?" * 40,
        ),
    ],
)
async def test_what_is_held_back_is_held_back_in_every_spelling(spelling: str, trust: Trust) -> None:
    """Also where a template that is approved would make the URI."""
    servers = {"a": spec("a", Consent(resources=kind(default="allow")), trust)}
    with gate(servers) as opened:
        offers(opened, "a", "file:///{path}", kind=Kind.TEMPLATE)
        offers(opened, "a", "file:///a/x.md", "file:///a/y.md", kind=Kind.RESOURCE)
        approve_all(opened)
        offers(opened, "a", "file:///a/x.md", "file:///a/y.md", kind=Kind.RESOURCE, size=2)
        with pytest.raises(StaleApproval):
            await opened.admit(call(), entry("a", Kind.RESOURCE, spelling))
        assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, spelling), "")
        assert await opened.admit(call(), entry("a", Kind.RESOURCE, "file:///a/z.md")) is not None
        approve_all(opened)
        made = (
            spelling.startswith("file:///") or trust is Trust.STANDARD
        )  # of an untrusted one only what a template makes
        assert (await opened.admit(call(), entry("a", Kind.RESOURCE, spelling)) is not None) is made


@pytest.mark.parametrize(
    "spelling", ["FILE:///a/x", "file:/a/x", "file:///a/%78?y", " file:///a/x", "file:/a/" + "x" * 9000]
)
async def test_what_a_template_makes_that_is_held_back_is_held_back_in_every_spelling(spelling: str) -> None:
    servers = {"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}
    with gate(servers) as opened:
        offers(opened, "a", "file:///a/{name}", "x://{name}", kind=Kind.TEMPLATE)
        offers(opened, "a", "file:///a/{name}", "x://{name}", kind=Kind.TEMPLATE, title="Other.")
        for uri in (spelling, "file:///a/x"):
            with pytest.raises(StaleApproval):
                await opened.admit(call(), entry("a", Kind.RESOURCE, uri))
        approve_all(opened)
        assert await opened.admit(call(), entry("a", Kind.RESOURCE, spelling)) is not None


@pytest.mark.parametrize(
    ("of", "name"), [(Kind.RESOURCE, "file:///a/x"), (Kind.TEMPLATE, "file:///a/{name}")], ids=["resource", "template"]
)
async def test_what_another_process_holds_back_is_held_back_in_every_spelling_once_it_was_read(
    of: Kind, name: str, tmp_path: Path
) -> None:
    servers, other_spelling = {"a": spec("a")}, entry("a", Kind.RESOURCE, "FILE:///a/./x")
    with gate(servers, state=tmp_path) as opened, gate(servers, state=tmp_path) as other:
        for each in (opened, other):
            offers(each, "a", name, kind=of)
        assert opened.definitions.is_visible(other_spelling, "")
        item = entry("a", of, name).item
        await other.definitions.revoke(item, other.definitions.fingerprint(entry("a", of, name)), "console")
        offers(opened, "a", kind=Kind.PROMPT)
        assert opened.definitions.status(entry("a", of, name)) is PinStatus.NEW
        assert not opened.definitions.is_visible(other_spelling, "")


@pytest.mark.slow
@pytest.mark.parametrize(("more", "open_else"), [(-1, True), (0, True), (1, False)])
async def test_beside_very_many_held_spellings_no_unlisted_uri_is_open(more: int, open_else: bool) -> None:
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        held = [f"file:///a/{each}%20.md?x" for each in range(MAX_HELD_URIS + more)]
        plain = [f"file:///b/{each}" for each in range(1_000)]
        for size in (1, 2):
            offers(opened, "a", *held, *plain, kind=Kind.RESOURCE, size=size)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, "file:///c"), "") is open_else
        for uri in ("file:///a/7 .md", "file:///b/./7", "file:///b/999?", f"file:///a/{len(held) - 1} .md"):
            assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, uri), "")
        approve_all(opened)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, "file:///c"), "")


async def test_spellings_of_what_is_held_back_are_worked_out_once() -> None:
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        names = [f"file:///a/{each}%20.md" for each in range(200)]
        for size in (1, 2):
            offers(opened, "a", *names, kind=Kind.RESOURCE, size=size)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, "file:///c"), "")
        worked_out = uris._variants.cache_info().misses
        for count in range(1, 4):
            epoch = opened.policies.epoch
            offers(opened, "a", *(f"file:///b/{each}" for each in range(count)), kind=Kind.PROMPT)
            assert opened.policies.epoch > epoch
            assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, f"file:///a/{count} .md"), "")
        assert uris._variants.cache_info().misses <= worked_out + 6


@pytest.mark.parametrize(("more", "is_open"), [(0, True), (1, False)])
async def test_beside_very_many_held_templates_no_unlisted_uri_is_open(more: int, is_open: bool) -> None:
    uri = "http://u@h:80/a;b/..;/c%5cd/?q=1"
    count = MAX_HELD_MATCHES // len(uris.uri_variants(uri)) + more
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), Trust.STANDARD)}) as opened:
        for title in ("One.", "Other."):
            offers(opened, "a", *(f"x://{each}/{{id}}" for each in range(count)), kind=Kind.TEMPLATE, title=title)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, uri), "") is is_open
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, "file:///c"), "")
        assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, "x://7/./a"), "")


@pytest.mark.slow
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
async def test_beside_very_many_templates_that_begin_alike_no_uri_is_made_by_one(trust: Trust) -> None:
    """And what is held back stays so."""
    templates = [f"x://{{a}}/{number}" + "/{b}" * 20 for number in range(MAX_MATCHED_LENGTH // 60)]
    uri, other = "x://q/7" + "/" * 20, "y://q/7"
    with gate({"a": spec("a", Consent(resources=kind(default="allow")), trust)}) as opened:
        offers(opened, "a", *templates, "y://{c}/7", kind=Kind.TEMPLATE)
        approve_all(opened)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, uri), "") is (trust is Trust.STANDARD)
        assert opened.definitions.is_visible(entry("a", Kind.RESOURCE, other), "")
        offers(opened, "a", *templates, "y://{c}/7", kind=Kind.TEMPLATE, title="Other.")
        assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, uri), "")
        assert not opened.definitions.is_visible(entry("a", Kind.RESOURCE, other), "")
