"""The catalog: snapshots that never change, versions that move only when something did, and everybody waiting wakes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from config import HttpServer, Secret
from config.views import NameStyle, ViewNames, ViewServer, ViewSpec
from host import slices
from host.catalog import (
    COPIES_IN_VIEW,
    KEPT_COPIES,
    MAX_INLINE_ENTRIES,
    Catalog,
    Definition,
    Entry,
    FreshnessHint,
    KindSnapshot,
    param_headers_in,
)
from host.memory import Budget, Use
from host.memory import server_owner as owner
from host.protocol.methods import Kind
from host.protocol.stateless import Freshness
from host.protocol.versions import Era
from host.source import EntryRef, Source, viewer_of
from host.views import View, Views
from tests.kit.awaited import Paused, awaited
from tests.kit.cost import counted_calls
from tests.kit.examples import examples

SESSION, STATELESS = viewer_of(Era.SESSION), viewer_of(Era.STATELESS)
catalog_of = partial(Catalog, views=Views())


def session(server: str) -> Source:
    return Source(server, Era.SESSION)


def stateless(server: str) -> Source:
    return Source(server, Era.STATELESS)


def by_server(shelf: KindSnapshot) -> dict[str, tuple[Entry, ...]]:
    return {server: tuple(part.by_name.values()) for server, part in shelf.parts.items()}


def tool(name: str, **more: object) -> Definition:
    return Definition(name, json.dumps({"name": name, **more}).encode())


def resource(uri: str) -> Definition:
    return Definition(uri, json.dumps({"uri": uri}).encode())


def catalog() -> tuple[Catalog, list[Entry]]:
    collided: list[Entry] = []
    return catalog_of(
        ["a", "b"], lambda ref, _: ref.name != "hidden", lambda entry, _: collided.append(entry)
    ), collided


def publish(
    shelves: Catalog, server: str, kind: Kind, definitions: Iterable[Definition], hint: FreshnessHint | None = None
) -> bool:
    entries = awaited(shelves.prepare_entries(session(server), kind, definitions, shelves._is_visible))
    return shelves.publish(kind, entries, hint)


def outward(shelves: Catalog, kind: Kind = Kind.TOOL) -> list[str]:
    return [entry.outward for entry in shelves.snapshot(kind, SESSION).entries]


WEB = "https://h/x"
"""A resource that is called the same, whichever server has it."""


def servers_of(shelves: Catalog, outward: str) -> list[str]:
    """The servers whose resource of this name is in the list of all."""
    return [each.ref.server for each in shelves.snapshot(Kind.RESOURCE, SESSION).entries if each.outward == outward]


def test_it_begins_empty() -> None:
    shelves, _ = catalog()
    assert shelves.version == 0
    assert all(shelves.snapshot(kind, SESSION).entries == () for kind in Kind)


def test_entries_stand_in_the_order_of_the_configuration_then_of_the_server() -> None:
    """(rule 56)"""
    shelves, _ = catalog()
    publish(shelves, "b", Kind.TOOL, [tool("2"), tool("1")])
    publish(shelves, "a", Kind.TOOL, [tool("9")])
    assert outward(shelves) == ["a__9", "b__2", "b__1"]


def test_an_entry_that_clients_of_an_era_refuse_is_named_and_stays() -> None:
    shelves, _ = catalog()
    text = tool("text", inputSchema={"type": "string"})
    publish(shelves, "a", Kind.TOOL, [tool("none"), text, tool("hidden", inputSchema=5)])
    assert outward(shelves) == ["a__none", "a__text"]
    assert [entry.ref.name for entry in shelves.unfit(session("a"), Kind.TOOL)] == ["text", "hidden"]
    assert shelves.unfit(stateless("a"), Kind.TOOL) == shelves.unfit(session("b"), Kind.TOOL) == ()
    assert [entry.misfit for entry in shelves.snapshot(Kind.TOOL, SESSION).entries[:1]] == [(None, None)]


def test_an_entry_is_found_by_both_of_its_names() -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.RESOURCE, [resource("x://1")])
    shelf = shelves.snapshot(Kind.RESOURCE, SESSION)
    (entry,) = shelf.entries
    assert (entry.ref, entry.outward) == (EntryRef(session("a"), Kind.RESOURCE, "x://1"), "a+x://1")
    assert shelf.find("a+x://1", "a") is entry
    assert shelf.entry("a", "x://1") is entry
    assert by_server(shelf) == {"a": (entry,)}


def test_only_the_names_of_a_definition_change_on_the_way_out() -> None:
    """(rules 4, 56)"""
    shelves, _ = catalog()
    raw = b'{"z":1.0,"name":"t","inputSchema":{"name":"t","\\u00e9":[ ]},"_meta":{"ui":{"resourceUri":"ui://p"}}}'
    publish(shelves, "a", Kind.TOOL, [Definition("t", raw)])
    (entry,) = shelves.snapshot(Kind.TOOL, SESSION).entries
    assert entry.definition == raw
    assert entry.exported == raw.replace(b'"z":1.0,"name":"t"', b'"z":1.0,"name":"a__t"').replace(
        b"ui://p", b"ui://a+p"
    )


def test_a_template_is_renamed_in_its_own_member() -> None:
    """(rule 65)"""
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TEMPLATE, [Definition("x://{p}", b'{"uriTemplate":"x://{p}","name":"n"}')])
    assert shelves.snapshot(Kind.TEMPLATE, SESSION).entries[0].exported == b'{"uriTemplate":"a+x://{p}","name":"n"}'


def test_half_an_emoji_in_the_name_of_a_member_does_not_matter() -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [Definition("t", b'{"name":"t","\\ud83d":1}')])
    assert shelves.snapshot(Kind.TOOL, SESSION).entries[0].exported == b'{"name":"a__t","\\ud83d":1}'


def test_a_list_is_remembered_until_it_is_listed_again() -> None:
    shelves, _ = catalog()
    source = session("a")
    entries = awaited(shelves.prepare_entries(source, Kind.TOOL, [tool("1")], lambda ref, _: True))
    shelves.publish(Kind.TOOL, entries, remembered=True)
    assert shelves.is_remembered(EntryRef(source, Kind.TOOL, "1"))
    assert not shelves.is_remembered(EntryRef(source, Kind.PROMPT, "1"))
    assert not shelves.publish(Kind.TOOL, entries)
    assert not shelves.is_remembered(EntryRef(source, Kind.TOOL, "1"))


def test_a_resource_may_be_one_of_a_remembered_template() -> None:
    shelves, _ = catalog()
    source = session("a")
    templates = awaited(shelves.prepare_entries(source, Kind.TEMPLATE, [], lambda ref, _: True))
    shelves.publish(Kind.TEMPLATE, templates, remembered=True)
    assert shelves.is_remembered(EntryRef(source, Kind.RESOURCE, "x:1"))
    assert not shelves.is_remembered(EntryRef(source, Kind.TOOL, "x:1"))


def test_publishing_the_same_again_changes_nothing() -> None:
    shelves, _ = catalog()
    assert publish(shelves, "a", Kind.TOOL, [tool("1")])
    before = shelves.snapshot(Kind.TOOL, SESSION)
    assert not publish(shelves, "a", Kind.TOOL, iter([tool("1")]))
    assert shelves.snapshot(Kind.TOOL, SESSION) is before
    assert shelves.version == 1


@pytest.mark.parametrize("after", [[], [tool("1", title="t")], [tool("2")], [tool("2"), tool("1")]])
def test_any_difference_is_a_new_version(after: list[Definition]) -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [tool("1"), tool("2")])
    assert publish(shelves, "a", Kind.TOOL, after)
    assert shelves.snapshot(Kind.TOOL, SESSION).version == shelves.version == 2


def test_a_change_of_one_kind_leaves_the_shelves_of_the_others() -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [tool("1")])
    before = shelves.snapshot(Kind.TOOL, SESSION)
    publish(shelves, "a", Kind.PROMPT, [tool("1")])
    assert shelves.snapshot(Kind.TOOL, SESSION) is before
    assert shelves.snapshot(Kind.PROMPT, SESSION).version == 1


def test_a_server_that_listed_nothing_has_listed() -> None:
    shelves, _ = catalog()
    assert "a" not in shelves.snapshot(Kind.TOOL, SESSION).parts
    assert not publish(shelves, "a", Kind.TOOL, [])
    assert by_server(shelves.snapshot(Kind.TOOL, SESSION)) == {"a": ()}
    assert shelves.version == 0


def test_a_shelf_that_was_taken_stays_as_it_was() -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [tool("1")])
    taken = shelves.snapshot(Kind.TOOL, SESSION)
    publish(shelves, "a", Kind.TOOL, [tool("2")])
    assert [entry.ref.name for entry in taken.entries] == ["1"]
    assert taken.find("a__1", "a") is not None
    assert taken.find("a__2", "a") is None
    with pytest.raises(TypeError):
        taken.parts["a"] = taken.parts["a"]  # type: ignore[index]  # the point of the test


@pytest.mark.parametrize("first", ["a", "b"])
def test_two_entries_with_one_outward_name_are_both_left_out_whoever_came_first(first: str) -> None:
    shelves, collided = catalog()
    for server in sorted("ab", reverse=first == "b"):
        publish(shelves, server, Kind.RESOURCE, [resource("https://h/x"), resource("own://")])
    shelf = shelves.snapshot(Kind.RESOURCE, SESSION)
    assert outward(shelves, Kind.RESOURCE) == ["a+own://", "b+own://"]
    assert {(entry.ref.server, entry.outward) for entry in collided} == {("a", "https://h/x"), ("b", "https://h/x")}
    assert shelf.find("https://h/x", "a") is shelf.find("https://h/x", "b") is None
    assert shelf.entry("a", "https://h/x"), "each server's own endpoint still has it"


def test_a_collision_ends_with_its_cause() -> None:
    shelves, _ = catalog()
    for server in "ab":
        publish(shelves, server, Kind.RESOURCE, [resource("https://h/x")])
    publish(shelves, "b", Kind.RESOURCE, [])
    assert outward(shelves, Kind.RESOURCE) == ["https://h/x"]


def test_a_server_that_is_not_configured_is_not_exported() -> None:
    shelves, _ = catalog()
    publish(shelves, "stranger", Kind.TOOL, [tool("1")])
    assert outward(shelves) == []


async def test_everybody_who_waits_wakes_at_a_change(nursery: trio.Nursery) -> None:
    shelves, _ = catalog()
    woke: list[int] = []

    async def wait() -> None:
        woke.append(await shelves.wait_for_change(0))

    nursery.start_soon(wait)
    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    publish(shelves, "a", Kind.TOOL, [])
    await trio.testing.wait_all_tasks_blocked()
    assert woke == []
    publish(shelves, "a", Kind.TOOL, [tool("1")])
    publish(shelves, "a", Kind.PROMPT, [tool("1")])
    await trio.testing.wait_all_tasks_blocked()
    assert woke == [2, 2], "many changes at once are one"


async def test_nobody_waits_for_what_has_been() -> None:
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [tool("1")])
    with trio.fail_after(1):
        assert await shelves.wait_for_change(0) == 1


def test_what_may_not_be_seen_is_in_nobodys_way() -> None:
    """A denied web resource does not take another server's down with it."""
    collided: list[Entry] = []
    catalog = catalog_of(["a", "b"], lambda ref, _: ref.server != "a", lambda entry, _: collided.append(entry))
    for server in ("a", "b"):
        publish(catalog, server, Kind.RESOURCE, [Definition("https://h/x", b'{"uri":"https://h/x"}')])
    shelf = catalog.snapshot(Kind.RESOURCE, SESSION)
    assert [entry.ref.server for entry in shelf.entries] == ["b"]
    assert shelf.find("https://h/x", "b") in shelf.entries
    assert collided == []


def test_what_may_not_be_seen_is_still_known_by_its_name() -> None:
    """So that asking for it is answered without asking its server."""
    catalog = catalog_of(["a"], lambda ref, _: False, lambda entry, _: None)
    publish(catalog, "a", Kind.TOOL, [Definition("x", b'{"name":"x"}')])
    shelf = catalog.snapshot(Kind.TOOL, SESSION)
    assert shelf.entries == ()
    assert shelf.find("a__x", "a") is shelf.entry("a", "x") is not None


def test_a_list_grows_old_and_not_older_than_old() -> None:
    """(rules 95, 97)"""
    hint = FreshnessHint(Freshness(5000, public=True), asked_at=100.0)
    left = [hint.remaining(time) for time in (100.0, 101.5, 105.0, 1000.0)]
    assert left == [Freshness(ms, public=True) for ms in (5000, 3500, 0, 0)]


def test_a_hint_is_replaced_with_its_list_and_changes_nothing_for_those_who_wait() -> None:
    """(rule 95)"""
    shelves, _ = catalog()
    assert shelves.hint(session("a"), Kind.TOOL) is None
    for ttl in (5000, 7000):
        hint = FreshnessHint(Freshness(ttl, public=True), 1.0)
        assert publish(shelves, "a", Kind.TOOL, [tool("1")], hint) is (ttl == 5000)
        assert shelves.hint(session("a"), Kind.TOOL) is hint
        assert shelves.version == 1
    assert shelves.hint(session("a"), Kind.PROMPT) is shelves.hint(session("b"), Kind.TOOL) is None
    publish(shelves, "a", Kind.TOOL, [tool("1")])
    assert shelves.hint(session("a"), Kind.TOOL) is None


def test_an_entry_says_what_headers_repeat_of_its_arguments() -> None:
    """Its annotations stay in what clients see (rules 27, 35)."""
    shelves, _ = catalog()
    schema = {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "Region"}}}
    publish(shelves, "a", Kind.TOOL, [tool("1", inputSchema=schema), tool("2"), tool("3", inputSchema=5)])
    first, *others = shelves.snapshot(Kind.TOOL, SESSION).entries
    assert [(mirror.header, mirror.path) for mirror in first.param_headers or ()] == [("mcp-param-region", ("p",))]
    assert json.loads(first.exported)["inputSchema"] == schema
    assert [entry.param_headers for entry in others] == [(), ()]


def test_whether_headers_repeat_arguments_of_a_server_is_known_of_its_whole_list() -> None:
    shelves, _ = catalog()
    schema = {"type": "object", "properties": {"p": {"type": "string", "x-mcp-header": "Region"}}}
    publish(shelves, "a", Kind.TOOL, [tool("hidden", inputSchema=schema), tool("plain")])
    publish(shelves, "b", Kind.TOOL, [tool("plain")])
    servers = ("a", "b", "c", None)
    assert [shelves.has_param_headers(server, STATELESS) for server in servers] == [True, False, False, False]


def test_annotations_that_are_not_allowed_are_none_of_an_entry_and_an_error_to_who_asks() -> None:
    """They may hide behind an escape (rule 36)."""
    schema = '{"type":"object","properties":{"p":{"type":"number","x-mcp-h\\u0065ader":"P"}}}'
    raw = b'{"name":"1","inputSchema":%s}' % schema.encode()
    with pytest.raises(ValueError, match="'p'"):
        param_headers_in(raw)
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [Definition("1", raw)])
    assert shelves.snapshot(Kind.TOOL, SESSION).entries[0].param_headers is None


def test_a_tool_that_may_become_a_task_by_now_is_another() -> None:
    """Its definition is the same: who is shown tasks is told all the same."""
    shelves, _ = catalog()
    publish(shelves, "a", Kind.TOOL, [Definition("t", b'{"name":"t"}')])
    assert not publish(shelves, "a", Kind.TOOL, [Definition("t", b'{"name":"t"}')])
    assert publish(shelves, "a", Kind.TOOL, [Definition("t", b'{"name":"t"}', may_be_task=True)])
    found = shelves.entry(EntryRef(session("a"), Kind.TOOL, "t"))
    assert found is not None
    assert found.may_be_task
    assert shelves.entry(EntryRef(session("a"), Kind.TOOL, "a__t")) is None


# Who may see it, and who is there at all


def opening() -> tuple[Catalog, set[tuple[str, str]], list[Entry]]:
    """A catalog that shows what is in the set, by server and name."""
    shown, collided = set[tuple[str, str]](), list[Entry]()
    return (
        catalog_of(["a", "b"], lambda ref, _: (ref.server, ref.name) in shown, lambda entry, _: collided.append(entry)),
        shown,
        collided,
    )


def test_what_may_be_seen_by_now_is_seen_once_that_is_reconsidered() -> None:
    """And what may not is not. A view that was taken before stays what it was."""
    shelves, shown, _ = opening()
    publish(shelves, "a", Kind.TOOL, [tool("x"), tool("y")])
    before = shelves.snapshot(Kind.TOOL, SESSION)
    assert (outward(shelves), shelves.version, before.version) == ([], 1, 1)
    shown.add(("a", "y"))
    assert outward(shelves) == []
    shelves.reevaluate(["a"])
    assert (outward(shelves), shelves.version, shelves.snapshot(Kind.TOOL, SESSION).version) == (["a__y"], 2, 2)
    assert all(shelves.snapshot(Kind.TOOL, SESSION).find(name, "a") for name in ("a__x", "a__y"))
    shown.clear()
    shelves.reevaluate(["b", "a"])
    assert (outward(shelves), before.entries) == ([], ())


def test_reconsidering_what_is_as_it_was_wakes_nobody() -> None:
    """Nor does reconsidering others."""
    shelves, shown, _ = opening()
    shown.add(("a", "x"))
    publish(shelves, "a", Kind.TOOL, [tool("x"), tool("y")])
    for servers in (["a"], ["b"], ["stranger"], []):
        shelves.reevaluate(servers)
    shown.add(("a", "y"))
    shelves.reevaluate(["b"])
    assert (outward(shelves), shelves.version, shelves.snapshot(Kind.TOOL, SESSION).version) == (["a__x"], 1, 1)


def test_two_of_one_name_are_in_each_others_way_only_if_both_may_be_seen() -> None:
    shelves, shown, collided = opening()
    shown.add(("a", WEB))
    for server in ("a", "b"):
        publish(shelves, server, Kind.RESOURCE, [resource(WEB)])
    assert (servers_of(shelves, WEB), collided) == (["a"], [])
    shown.add(("b", WEB))
    for _ in range(2):
        shelves.reevaluate(["b"])
    assert (servers_of(shelves, WEB), len(collided)) == ([], 2)
    shown.remove(("a", WEB))
    shelves.reevaluate(["a"])
    assert servers_of(shelves, WEB) == ["b"]


LONG = 2 * MAX_INLINE_ENTRIES


def long(shelves: Catalog, server: str, shown: set[tuple[str, str]], kind: Kind = Kind.TOOL) -> None:
    """The server lists so much that it is evaluated again in steps, and all of it may be seen."""
    shown.update((server, str(number)) for number in range(LONG))
    publish(shelves, server, kind, [tool(str(number)) for number in range(LONG)])


async def test_long_lists_are_evaluated_in_steps_and_swapped_in_one(nursery: trio.Nursery) -> None:
    """Those of all servers together. Whoever wants to be shown them waits for that."""
    shelves, shown, _ = opening()
    long(shelves, "a", shown)
    long(shelves, "b", shown)
    nursery.start_soon(shelves.run)
    before = shelves.snapshot(Kind.TOOL, SESSION)
    shown -= {("a", "7"), ("b", "8")}
    shelves.reevaluate(["a", "b"])
    assert shelves.snapshot(Kind.TOOL, SESSION) is before
    with trio.fail_after(5):
        assert await shelves.wait_for_change(shelves.version) == 3
        await shelves.wait_until_evaluated(Kind.TOOL)
    after = shelves.snapshot(Kind.TOOL, SESSION)
    assert (len(after.entries), after.version, after.last_narrowed) == (2 * LONG - 2, 3, 3)
    assert {("a", "7"), ("b", "8")} == {
        (each.ref.server, each.ref.name) for each in {*before.entries} - {*after.entries}
    }
    shown.add(("a", "7"))
    shelves.reevaluate(["a", "b"])
    await shelves.wait_until_evaluated(Kind.TOOL)
    widened = shelves.snapshot(Kind.TOOL, SESSION)
    assert (len(widened.entries), widened.version, widened.last_narrowed) == (2 * LONG - 1, 4, 3)
    shelves.reevaluate(["a"])
    with trio.fail_after(5):
        await shelves.wait_until_evaluated(Kind.TOOL)
    assert shelves.snapshot(Kind.TOOL, SESSION) is widened


async def test_whoever_wants_a_list_waits_for_that_list_alone() -> None:
    """Not for those of other kinds, nor, at the endpoint of a server, for those of others."""
    shelves, shown, _ = opening()
    long(shelves, "a", shown)
    long(shelves, "b", shown, Kind.RESOURCE)
    shelves.reevaluate(["a"])
    with trio.fail_after(5):
        await shelves.wait_until_evaluated(Kind.TOOL, "b")
        await shelves.wait_until_evaluated(Kind.RESOURCE)
    assert not shelves.is_evaluated(Kind.TOOL, "a")
    assert not shelves.is_evaluated(Kind.TOOL)


async def test_the_lists_of_one_kind_are_evaluated_beside_longer_ones_of_another(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that is begun already. Whoever waits for the short one is woken when that is done."""
    monkeypatch.setattr(slices, "SLICE", 1e-5)
    shelves, shown, _ = opening()
    publish(shelves, "a", Kind.RESOURCE, [resource(f"x://{number}") for number in range(20 * LONG)])
    long(shelves, "b", shown)
    nursery.start_soon(shelves.run)
    await trio.testing.wait_all_tasks_blocked()
    shelves.reevaluate(["a"])
    await trio.lowlevel.checkpoint()
    shown.remove(("b", "7"))
    shelves.reevaluate(["b"])
    with trio.fail_after(5):
        await shelves.wait_until_evaluated(Kind.TOOL)
    assert len(shelves.snapshot(Kind.TOOL, SESSION).entries) == LONG - 1
    assert not shelves.is_evaluated(Kind.RESOURCE)


def test_what_is_decided_while_lists_are_evaluated_holds_for_them() -> None:
    """Whether their first entries were evaluated already, or all of the first list."""
    for steps in (1, LONG - 1, LONG + 5, 2 * LONG - 1):
        shelves, shown, _ = opening()
        long(shelves, "a", shown)
        long(shelves, "b", shown)
        shelves.reevaluate(["a", "b"])
        judging = Paused(shelves._evaluate_due(Kind.TOOL))
        for _ in range(steps):
            next(judging)
        shown -= {("a", "0"), ("b", "0")}
        shelves.reevaluate(["a", "b"])
        judging.rest()
        assert all(shelves.snapshot(Kind.TOOL, SESSION).entry(server, "0") for server in "ab")
        assert len(shelves.snapshot(Kind.TOOL, SESSION).entries) == 2 * LONG - 2


async def test_what_is_listed_anew_while_lists_are_evaluated_is_not_evaluated_again() -> None:
    """It was made under the present policy, and cursors of lists from before it are no good."""
    shelves, shown, _ = opening()
    long(shelves, "a", shown)
    shown -= {("a", "0"), ("a", "1")}
    shelves.reevaluate(["a"])
    judging = Paused(shelves._evaluate_due(Kind.TOOL))
    next(judging)
    publish(shelves, "a", Kind.TOOL, [tool("1"), tool("2")])
    await shelves.wait_until_evaluated(Kind.TOOL)
    judging.rest()
    shelf = shelves.snapshot(Kind.TOOL, SESSION)
    assert (outward(shelves), shelf.version, shelf.last_narrowed) == (["a__2"], 2, 2)


@pytest.mark.parametrize("configured", [True, False])
async def test_what_is_gone_while_lists_are_evaluated_is_gone(configured: bool) -> None:
    """Also for who waits for it: because its server is not configured any more, or others need its memory."""
    memory, shown = Budget(100 * KEPT_COPIES * LONG), set[tuple[str, str]]()
    shelves = catalog_of(["a", "b"], lambda ref, _: (ref.server, ref.name) in shown, lambda entry, _: None, memory)
    assert shelves.charge(session("a"), Kind.TOOL, LONG)
    long(shelves, "a", shown)
    shelves.reevaluate(["a"])
    judging = Paused(shelves._evaluate_due(Kind.TOOL))
    next(judging)
    if configured:
        memory.total = 4
        memory.hold(owner("b"), Use.MESSAGES, 1, lambda: None)
    else:
        shelves.set_servers(["b"])
    await shelves.wait_until_evaluated(Kind.TOOL)
    judging.rest()
    shelf = shelves.snapshot(Kind.TOOL, SESSION)
    assert (shelf.parts, shelf.version, shelf.last_narrowed) == ({}, 2, 2)


async def test_a_new_configuration_has_its_own_order_and_nothing_of_who_is_gone() -> None:
    shelves = catalog_of(["a", "b", "c"], lambda ref, _: True, lambda entry, _: None)
    for server in "abc":
        publish(shelves, server, Kind.TOOL, [tool("x")], FreshnessHint(Freshness(5000, public=True), 1.0))
    version = shelves.version
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shelves.wait_for_change, version)
        await trio.testing.wait_all_tasks_blocked()
        shelves.set_servers(["c", "new", "a"])
    assert outward(shelves) == ["c__x", "a__x"]
    assert shelves.version == version + 1
    assert (shelves.hint(session("b"), Kind.TOOL), shelves.entry(EntryRef(session("b"), Kind.TOOL, "x"))) == (
        None,
        None,
    )
    assert shelves.hint(session("a"), Kind.TOOL) is not None
    assert "b" not in shelves.snapshot(Kind.TOOL, SESSION).parts
    publish(shelves, "new", Kind.TOOL, [tool("x")])
    assert outward(shelves) == ["c__x", "new__x", "a__x"]


def test_what_a_server_offers_is_charged_by_its_copies_and_released_with_the_server() -> None:
    memory = Budget(16_000)
    shelves = catalog_of(["a", "b"], lambda ref, _: True, lambda entry, _: None, memory)
    assert shelves.charge(session("a"), Kind.TOOL, 600)
    assert shelves.charge(session("a"), Kind.PROMPT, 400)
    assert not shelves.charge(session("a"), Kind.RESOURCE, 1), "a quarter is what one server may have"
    assert memory.by_owner() == {owner("a"): KEPT_COPIES * 1000}
    assert shelves.charge(session("a"), Kind.TOOL, 100)
    assert shelves.charge(session("b"), Kind.TOOL, 1)
    shelves.set_servers(["b"])
    assert memory.by_owner() == {owner("b"): KEPT_COPIES}


async def test_the_largest_list_gives_way_to_one_that_would_else_have_no_room() -> None:
    """It is gone as if it had never been read, whoever waits wakes up, and what is being made of it comes to
    nothing. The other lists of the same server stay."""
    memory = Budget(KEPT_COPIES * 4000)
    displaced: list[str] = []
    servers = ["large", "other", "late"]
    shelves = catalog_of(servers, lambda ref, _: True, lambda entry, _: None, memory)
    for server, kind, size in (("large", Kind.TOOL, 900), ("large", Kind.PROMPT, 100), ("other", Kind.TOOL, 999)):
        assert shelves.charge(session(server), kind, size, partial(displaced.append, f"{server} {kind.value}"))
        publish(shelves, server, kind, [tool("x")], FreshnessHint(Freshness(5000, public=True), 1.0))
    being_made = shelves.charge(session("large"), Kind.TOOL, 900, partial(displaced.append, "large tool"))
    version = shelves.version
    assert shelves.charge(session("late"), Kind.TOOL, 2)
    publish(shelves, "late", Kind.TOOL, [tool("x")])
    assert displaced == ["large tool"]
    assert being_made is not None
    assert being_made.dropped
    assert (outward(shelves), outward(shelves, Kind.PROMPT)) == (["other__x", "late__x"], ["large__x"])
    assert "large" not in shelves.snapshot(Kind.TOOL, SESSION).parts
    assert (shelves.hint(session("large"), Kind.TOOL), shelves.hint(session("large"), Kind.PROMPT) is None) == (
        None,
        False,
    )
    assert await shelves.wait_for_change(version) == version + 2
    assert memory.by_owner() == {
        owner("large"): KEPT_COPIES * 100,
        owner("other"): KEPT_COPIES * 999,
        owner("late"): KEPT_COPIES * 2,
    }
    assert shelves.charge(session("large"), Kind.TOOL, 900) is None, "it does not displace those who keep less"
    assert shelves.charge(session("large"), Kind.TOOL, 500)
    publish(shelves, "large", Kind.TOOL, [tool("x")])
    assert outward(shelves) == ["large__x", "other__x", "late__x"]
    assert displaced == ["large tool"]


# Two eras of one server


def publish_resources(shelves: Catalog, source: Source, *uris: str) -> bool:
    preparing = shelves.prepare_entries(source, Kind.RESOURCE, map(resource, uris), lambda ref, _: True)
    return shelves.publish(Kind.RESOURCE, awaited(preparing), alone=False)


def publish_tools(shelves: Catalog, source: Source, *names: str, alone: bool = False) -> bool:
    offered = [Definition(name, b'{"name":"%b"}' % name.encode()) for name in names]
    preparing = shelves.prepare_entries(source, Kind.TOOL, offered, lambda ref, _: ref.name != "hidden")
    return shelves.publish(Kind.TOOL, awaited(preparing), alone=alone)


def seen(shelves: Catalog, kind: Kind = Kind.TOOL) -> tuple[list[str], list[str]]:
    """The entries that clients with a session see, and stateless ones."""
    views = (shelves.snapshot(kind, viewer).entries for viewer in (SESSION, STATELESS))
    over_session, without = ([entry.outward for entry in entries] for entries in views)
    return over_session, without


def test_clients_see_the_list_of_their_own_era_or_else_the_other_one() -> None:
    """That of a session in one step, once it is shown."""
    shelves, _ = catalog()
    assert publish_tools(shelves, stateless("a"), "x", "late")
    assert seen(shelves) == (["a__x", "a__late"],) * 2
    assert shelves.snapshot(Kind.TOOL, SESSION) is shelves.snapshot(Kind.TOOL, STATELESS)
    assert publish_tools(shelves, session("a"), "x", "early")
    assert seen(shelves) == (["a__x", "a__late"],) * 2
    version = shelves.version
    shelves.show(session("a"))
    assert shelves.version == version + 1
    shelves.show(session("a"))
    assert shelves.version == version + 1
    assert seen(shelves) == (["a__x", "a__early"], ["a__x", "a__late"])
    for name, found in {"early": [True, False], "late": [False, True], "x": [True, True]}.items():
        refs = [EntryRef(source, Kind.TOOL, name) for source in (session("a"), stateless("a"))]
        assert [shelves.entry(ref) is not None for ref in refs] == found
        assert all(entry.ref == ref for ref in refs if (entry := shelves.entry(ref)))
    assert [entry.ref.name for entry in shelves.entries_of("a", Kind.TOOL)] == ["x", "early", "late"]
    shelves.hide(session("a"))
    assert seen(shelves) == (["a__x", "a__late"],) * 2
    shelves.withdraw(session("a"))
    assert shelves.listed(session("a"), Kind.TOOL) is None
    assert shelves.snapshot(Kind.TOOL, SESSION) is shelves.snapshot(Kind.TOOL, STATELESS)
    assert publish_tools(shelves, session("a"), "x", "early")
    assert seen(shelves) == (["a__x", "a__late"],) * 2


def test_a_server_that_changes_its_era_leaves_nothing_of_the_other() -> None:
    shelves, _ = catalog()
    publish_tools(shelves, stateless("a"), "x", "late")
    version = shelves.snapshot(Kind.TOOL, SESSION).version
    assert publish_tools(shelves, session("a"), "x", alone=True)
    assert seen(shelves) == (["a__x"], ["a__x"])
    assert shelves.listed(stateless("a"), Kind.TOOL) is None
    assert (
        shelves.snapshot(Kind.TOOL, SESSION).last_narrowed
        == shelves.snapshot(Kind.TOOL, SESSION).version
        == version + 1
    )


def test_another_server_in_the_same_place_has_to_be_shown_again() -> None:
    """Also if the former one had lost its lists, because others needed the memory."""
    shelves, _ = catalog()
    shelves.show(session("a"))
    shelves.withdraw_server("a")
    publish_tools(shelves, stateless("a"), "late")
    publish_tools(shelves, session("a"), "early")
    assert seen(shelves) == (["a__late"],) * 2


def test_a_server_that_is_gone_shows_no_other_list_of_its_own_for_a_moment() -> None:
    """What nobody saw of it collides with nothing."""
    collided: list[Entry] = []
    shelves = catalog_of(["a", "b"], lambda ref, _: True, lambda entry, _: collided.append(entry))
    publish_resources(shelves, stateless("a"), "y://")
    publish_resources(shelves, session("a"), WEB)
    publish_resources(shelves, stateless("b"), WEB)
    version = shelves.version
    shelves.withdraw_server("a")
    assert (seen(shelves, Kind.RESOURCE), collided, shelves.version) == (([WEB],) * 2, [], version + 1)


def test_the_lists_of_two_logins_are_kept_apart() -> None:
    shelves, _ = catalog()
    anns, bobs = (Source("a", Era.SESSION, owner) for owner in ("ann", "bob"))
    publish_tools(shelves, anns, "x", alone=True)
    publish_tools(shelves, bobs, "y", alone=True)
    found = [shelves.entry(EntryRef(source, Kind.TOOL, name)) for source in (anns, bobs) for name in "xy"]
    assert [entry is not None for entry in found] == [True, False, False, True]
    shelves.withdraw(anns)
    assert (shelves.listed(anns, Kind.TOOL), len(shelves.listed(bobs, Kind.TOOL) or ())) == (None, 1)


def test_a_source_that_could_not_list_keeps_its_place() -> None:
    """Until it lists, is withdrawn, or another one is alone."""
    shelves, _ = catalog()
    publish_tools(shelves, stateless("a"), "late")
    shelves.mark_unlisted(session("a"), Kind.TOOL, alone=False)
    assert seen(shelves) == (["a__late"],) * 2
    shelves.show(session("a"))
    assert seen(shelves) == ([], ["a__late"])
    shelves.withdraw(stateless("a"))
    publish_tools(shelves, stateless("a"), "late")
    assert seen(shelves) == ([], ["a__late"]), "whichever came first"
    version = shelves.version
    shelves.mark_unlisted(session("a"), Kind.TOOL, alone=False)
    assert shelves.version == version
    publish_tools(shelves, session("a"), "early")
    shelves.mark_unlisted(session("a"), Kind.TOOL, alone=False)
    assert seen(shelves) == (["a__early"], ["a__late"])
    shelves.withdraw(stateless("a"))
    shelves.mark_unlisted(stateless("a"), Kind.TOOL, alone=False)
    assert seen(shelves) == (["a__early"], [])
    shelves.withdraw(stateless("a"))
    assert seen(shelves) == (["a__early"],) * 2
    shelves.mark_unlisted(stateless("a"), Kind.TOOL, alone=True)
    assert seen(shelves) == ([], [])
    publish_tools(shelves, session("a"), "early", alone=True)
    assert seen(shelves) == (["a__early"],) * 2


def test_a_list_that_is_displaced_is_replaced_by_no_other_one() -> None:
    memory = Budget(KEPT_COPIES * 4000)
    shelves = catalog_of("abc", lambda ref, _: True, lambda entry, _: None, memory)
    assert shelves.charge(session("a"), Kind.TOOL, 1000)
    publish_tools(shelves, stateless("a"), "late")
    publish_tools(shelves, session("a"), "early")
    shelves.show(session("a"))
    assert shelves.charge(session("b"), Kind.TOOL, 999)
    assert shelves.charge(session("c"), Kind.TOOL, 2)
    assert seen(shelves) == ([], ["a__late"])


def test_names_collide_only_where_they_are_seen() -> None:
    """A name of one side is no other server's on the other side."""
    collided: list[Entry] = []
    shelves = catalog_of(["a", "b"], lambda ref, _: True, lambda entry, _: collided.append(entry))
    publish_resources(shelves, stateless("a"), "x://")
    publish_resources(shelves, session("a"), WEB)
    shelves.show(session("a"))
    publish_resources(shelves, stateless("b"), WEB)
    assert seen(shelves, Kind.RESOURCE) == ([], ["a+x://", WEB])
    assert {(entry.ref.server, entry.ref.name) for entry in collided} == {("a", WEB), ("b", WEB)}
    assert len(collided) == 2


def test_both_lists_of_a_server_are_evaluated_again() -> None:
    hidden: set[EntryRef] = set()
    shelves = catalog_of(["a"], lambda ref, _: ref not in hidden, lambda entry, _: None)
    publish_tools(shelves, stateless("a"), "x")
    publish_tools(shelves, session("a"), "x")
    shelves.show(session("a"))
    for source, expected in {session("a"): ([], ["a__x"]), stateless("a"): (["a__x"], [])}.items():
        hidden.clear()
        hidden.add(EntryRef(source, Kind.TOOL, "x"))
        shelves.reevaluate(["a"])
        assert seen(shelves) == expected
    hidden.clear()
    shelves.withdraw_server("a")
    assert seen(shelves) == ([], [])


# Views and callers

SERVERS = {id: HttpServer(id=id, url=Secret("http://h/")) for id in "ab"}
AUDIENCES = [("", ""), ("v", ""), ("plain", "")]


def two_views(**changed: ViewSpec) -> list[View]:
    """The view of everything, one of some tools of `a` and all of its resources, and one with plain names."""
    specs = {
        "": ViewSpec(),
        "v": ViewSpec(servers={"a": ViewServer(tools=("x*", "hidden"), resources=("**",))}),
        "plain": ViewSpec(names=ViewNames(NameStyle.PLAIN)),
    }
    return [View(name, spec, SERVERS) for name, spec in {**specs, **changed}.items()]


def viewed(shown: Callable[[EntryRef, str], bool] = lambda ref, _: ref.name != "hidden") -> tuple[Catalog, list[str]]:
    """A catalog with these views, and what it says of collisions."""
    said: list[str] = []
    return (
        catalog_of(
            ["a", "b"],
            shown,
            lambda entry, view: said.append(f"{view} {entry.outward}"),
            None,
            views=two_views(),
            audiences=AUDIENCES,
        ),
        said,
    )


def names_in(
    shelves: Catalog, view: str, kind: Kind = Kind.TOOL, era: Era = Era.SESSION, caller: str = ""
) -> list[str]:
    return [entry.outward for entry in shelves.snapshot(kind, viewer_of(era, view, caller)).entries]


def test_a_view_lists_what_it_offers_under_its_names() -> None:
    shelves, said = viewed()
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y"), tool("hidden")])
    publish(shelves, "b", Kind.TOOL, [tool("z")])
    assert names_in(shelves, "") == ["a__x1", "a__y", "b__z"]
    assert names_in(shelves, "v") == ["a__x1"]
    assert names_in(shelves, "plain") == ["x1", "y", "z"]
    assert all(names_in(shelves, view) == names_in(shelves, view, era=Era.STATELESS) for view, _ in AUDIENCES)
    assert names_in(shelves, "stranger") == []
    assert said == []
    (entry, *_) = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "plain")).entries
    assert (json.loads(entry.exported)["name"], entry.ref.name) == ("x1", "x1")


def test_a_name_outside_a_view_is_none_and_a_hidden_one_is_known() -> None:
    shelves, _ = viewed()
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y"), tool("hidden")])
    shelf = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "v"))
    assert [shelf.entry("a", name) is not None for name in ("x1", "y", "hidden")] == [True, False, True]
    assert [shelf.find(name, "a") is not None for name in ("a__x1", "a__y", "a__hidden")] == [True, False, True]
    assert "b" not in shelf.parts
    assert not shelf.parts["a"].is_whole


def test_what_a_view_does_not_change_is_the_same_object() -> None:
    """A part of a list, if it offers all of it, and else each entry."""
    shelves, _ = viewed()
    publish(shelves, "a", Kind.RESOURCE, [resource("x://1")])
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y")])
    everything, view, plain = (shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, each)) for each, _ in AUDIENCES)
    assert view.entry("a", "x1") is everything.entry("a", "x1")
    assert plain.entry("a", "x1") is not everything.entry("a", "x1")
    resources = [shelves.snapshot(Kind.RESOURCE, viewer_of(era, each)) for each, _ in AUDIENCES for era in Era]
    assert len({id(shelf) for shelf in resources}) == 1


def test_a_change_outside_a_view_leaves_its_list_as_it_is() -> None:
    """So that nothing is rendered again for its clients, and their cursors work."""
    shelves, _ = viewed()
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y")])
    before = {view: shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, view)) for view, _ in AUDIENCES}
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y2")])
    publish(shelves, "b", Kind.TOOL, [tool("z")])
    after = {view: shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, view)) for view, _ in AUDIENCES}
    assert after["v"] is before["v"]
    assert [after[view].version for view in ("", "plain")] == [3, 3]
    kept = (before["plain"], after["plain"])
    assert kept[0].entry("a", "x1") is kept[1].entry("a", "x1") is not None


def test_plain_names_of_two_servers_collide_in_their_view_alone() -> None:
    shelves, said = viewed()
    for server in "ab":
        publish(shelves, server, Kind.TOOL, [tool("x1"), tool(f"own_{server}"), tool("hidden")])
        publish(shelves, server, Kind.RESOURCE, [resource(WEB)])
    assert names_in(shelves, "plain") == ["own_a", "own_b"]
    assert names_in(shelves, "") == ["a__x1", "a__own_a", "b__x1", "b__own_b"]
    assert names_in(shelves, "v", Kind.RESOURCE) == [WEB]
    assert said == ["plain x1", "plain x1", f" {WEB}", f" {WEB}"], "a collision without a view is reported once"
    publish(shelves, "b", Kind.TOOL, [tool("own_b")])
    assert names_in(shelves, "plain") == ["x1", "own_a", "own_b"]


def test_reserved_names_are_no_servers() -> None:
    plain = View("plain", ViewSpec(names=ViewNames(NameStyle.PLAIN)), SERVERS)
    plain.reserved = frozenset({"call"})
    said: list[str] = []
    shelves = catalog_of(
        ["a"],
        lambda ref, _: True,
        lambda entry, view: said.append(view),
        views=[*two_views()[:1], plain],
        audiences=AUDIENCES[::2],
    )
    publish(shelves, "a", Kind.TOOL, [tool("call"), tool("x")])
    assert (names_in(shelves, "plain"), names_in(shelves, ""), said) == (["x"], ["a__call", "a__x"], ["plain"])


def test_callers_that_rules_name_see_their_own_list() -> None:
    audiences = [*AUDIENCES, ("", "ann"), ("v", "ann"), ("", "bob")]
    shelves = catalog_of(
        ["a"], lambda ref, caller: ref.name != caller, lambda *_: None, views=two_views(), audiences=audiences
    )
    publish(shelves, "a", Kind.TOOL, [tool("ann"), tool("x")])
    assert names_in(shelves, "", caller="ann") == ["a__x"]
    assert names_in(shelves, "", caller="bob") == names_in(shelves, "") == ["a__ann", "a__x"]
    bobs, everybodys = (shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "", caller)) for caller in ("bob", ""))
    assert bobs is everybodys
    assert names_in(shelves, "v", caller="ann") == ["a__x"]


def test_another_configuration_changes_views_in_one_step() -> None:
    """New ones are there, former ones have nothing, and what did not change stays what it was."""
    shelves, _ = viewed()
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y")])
    plain = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "plain"))
    former = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "v"))
    version = shelves.version
    new = ViewSpec(servers={"a": ViewServer(tools=("y",))})
    shelves.set_views(two_views(v=new, new=new), [*AUDIENCES, ("new", "")])
    assert names_in(shelves, "v") == names_in(shelves, "new") == ["a__y"]
    assert shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "plain")) is plain
    narrowed = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "v"))
    assert former.version < narrowed.last_narrowed <= narrowed.version
    assert shelves.version > version
    shelves.set_views(two_views()[:1], AUDIENCES[:1])
    gone = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "v"))
    assert (gone.entries, gone.last_narrowed > narrowed.version) == ((), True)
    shelves.set_views(two_views(v=new), AUDIENCES)
    back = shelves.snapshot(Kind.TOOL, viewer_of(Era.SESSION, "v"))
    assert (names_in(shelves, "v"), back.version > gone.version) == (["a__y"], True)


async def test_a_long_list_is_in_no_changed_view_until_it_is_evaluated(nursery: trio.Nursery) -> None:
    shelves, shown, _ = opening()
    shelves.set_views(two_views(), AUDIENCES)
    long(shelves, "a", shown)
    nursery.start_soon(shelves.run)
    everything = shelves.snapshot(Kind.TOOL, SESSION)
    narrower = ViewSpec(servers={"a": ViewServer(tools=("7",))})
    shelves.set_views(two_views(v=narrower), AUDIENCES)
    assert not shelves.is_evaluated(Kind.TOOL)
    assert names_in(shelves, "v") == []
    assert shelves.snapshot(Kind.TOOL, SESSION) is everything
    with trio.fail_after(5):
        await shelves.wait_until_evaluated(Kind.TOOL)
    assert names_in(shelves, "v") == ["a__7"]
    assert shelves.snapshot(Kind.TOOL, SESSION) is everything


@pytest.mark.parametrize("patterns", [("7", "8"), ("7", "9")])
def test_views_that_change_while_lists_are_evaluated_hold_for_them(patterns: tuple[str, ...]) -> None:
    """Also for one that had begun for other views, and needs nothing more for the present ones."""
    first, then = (ViewSpec(servers={"a": ViewServer(tools=each)}) for each in (("7", "8"), patterns))
    for steps in (1, LONG, 3 * LONG):
        shelves, shown, _ = opening()
        shelves.set_views(two_views(v=first), AUDIENCES)
        long(shelves, "a", shown)
        shown.remove(("a", "0"))
        shelves.reevaluate(["a"])
        judging = Paused(shelves._evaluate_due(Kind.TOOL))
        for _ in range(steps):
            next(judging)
        shelves.set_views(two_views(v=then)[:2], AUDIENCES[:2])
        judging.rest()
        assert names_in(shelves, "v") == [f"a__{each}" for each in patterns]
        found = shelves._listed(session("a"), Kind.TOOL)
        assert found is not None
        assert set(found.parts) == {*AUDIENCES[:2]}
        assert names_in(shelves, "plain") == []


def test_views_that_are_as_they_were_wake_nobody() -> None:
    shelves, _ = viewed()
    publish(shelves, "a", Kind.TOOL, [tool("x1"), tool("y")])
    views = list(shelves._views.values())
    version = shelves.version
    shelves.set_views(views, AUDIENCES)
    assert shelves.version == version


def test_a_list_that_was_prepared_for_former_views_is_published_for_the_present_ones() -> None:
    shelves, _ = viewed()
    prepared = awaited(shelves.prepare_entries(session("a"), Kind.TOOL, [tool("x1"), tool("y")], shelves._is_visible))
    shelves.set_views(two_views(v=ViewSpec(servers={"a": ViewServer(tools=("y",))})), AUDIENCES)
    assert shelves.publish(Kind.TOOL, prepared)
    assert (names_in(shelves, "v"), names_in(shelves, "")) == (["a__y"], ["a__x1", "a__y"])


def test_a_view_with_names_of_its_own_is_charged_its_copies() -> None:
    memory = Budget(200_000)
    shelves = catalog_of(["a", "b"], lambda ref, _: True, lambda *_: None, memory)
    assert shelves.charge(session("a"), Kind.TOOL, 1000)
    shelves.set_views(two_views(), AUDIENCES)
    assert memory.by_owner() == {owner("a"): (KEPT_COPIES + COPIES_IN_VIEW) * 1000}
    publish(shelves, "a", Kind.TOOL, [tool("x1")])
    memory.total = KEPT_COPIES * 4000
    shelves.set_views(two_views()[:2], AUDIENCES[:2])
    assert (memory.by_owner(), names_in(shelves, "v")) == ({owner("a"): KEPT_COPIES * 1000}, ["a__x1"])
    shelves.set_views(two_views(), AUDIENCES)
    assert (memory.by_owner(), names_in(shelves, "v")) == ({}, []), "there is no memory for the copies"


def test_a_list_takes_as_many_steps_beside_many_servers_as_beside_few() -> None:
    def steps(servers: int) -> int:
        names = [f"s{number}" for number in range(servers)]
        shelves = catalog_of(names, lambda ref, _: True, lambda entry, _: None)
        *others, last = [
            awaited(shelves.prepare_entries(session(name), Kind.TOOL, [tool("x")], lambda ref, _: True))
            for name in names
        ]
        for each in others:
            shelves.publish(Kind.TOOL, each)
        with counted_calls() as called:
            shelves.publish(Kind.TOOL, last)
            shelves.show(last.source)
            shelves.withdraw(last.source)
        return len(called)

    assert steps(10) == steps(200)


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(50))
def test_a_snapshot_of_single_changes_is_that_of_all_present_lists(order: random.Random) -> None:
    shelves, servers = catalog_of([], lambda ref, _: True, lambda entry, _: None), ["a", "b", "c", "d"]
    for _ in range(20):
        source, kind = Source(order.choice(servers), order.choice([*Era])), order.choice([Kind.TOOL, Kind.RESOURCE])
        alone = order.random() < 0.5

        def publish(source: Source = source, kind: Kind = kind, alone: bool = alone) -> None:
            offered = [resource(WEB), resource("x://1")] if kind is Kind.RESOURCE else [tool("x")]
            offered = offered[: order.randrange(3)]
            entries = awaited(shelves.prepare_entries(source, kind, offered, shelves._is_visible))
            shelves.publish(kind, entries, alone=alone)

        steps: list[Callable[[], object]] = [
            *[publish] * 4,
            partial(shelves.mark_unlisted, source, kind, alone=alone),
            partial(shelves.show, source),
            partial(shelves.hide, source),
            partial(shelves.withdraw, source),
            partial(shelves.withdraw_server, source.server),
            partial(shelves.set_servers, order.sample(servers, order.randrange(1, 5))),
        ]
        order.choice(steps)()
        found = {(kind, viewer): shelves.snapshot(kind, viewer) for kind in Kind for viewer in (SESSION, STATELESS)}
        assert not any(shelves._update_snapshots(kind, changed=True) for kind in Kind)
        for snapshot in found.values():
            assert list(snapshot.parts) == [server for server in shelves._order if server in snapshot.parts]
            shared = Counter(uri for part in snapshot.parts.values() for uri in part.shared_names)
            assert {entry.outward for entry in snapshot.colliding.values()} == {
                uri for uri, count in shared.items() if count > 1
            }
