"""The state of a running host, as a person sees it."""

from __future__ import annotations

import json
from itertools import count, islice
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Channel, Consent, KindConsent, Rule, ToolClaim, Trust, Unconfined, Verdict
from config.sandbox import Sandbox
from config.views import Override, OverrideKind, ViewSpec
from host.admin.schema import SECTIONS
from host.admin.state import MAX_ACTIVITY
from host.attempts import Attempt, Reason
from host.client_process import ClientProcess
from host.journal import (
    AttemptRefused,
    ConfigReloaded,
    ConfirmationRequested,
    ConsoleFailed,
    DefinitionChanged,
    Event,
    RequestCompleted,
    RuleUnused,
    ServerConfined,
    ServerFailed,
    ServerReady,
)
from host.policy.explain import unmatched_rules
from host.policy.rows import ChangeRow
from host.protocol.definitions import model_tokens
from host.protocol.methods import Kind
from host.subject import Item
from tests.host.admin.opened_host import Opened, admin_of, opened, server
from tests.kit.awaited import Paused, awaited
from tests.kit.control import control_of
from tests.kit.gates import kind, observe
from tests.kit.openapi import conforms
from tests.kit.world import ScriptedServer, later, open_world, tool

CHANGE: ChangeRow = {
    "id": "c1",
    "server": "gh",
    "widens": ["command has changed"],
    "diff": [{"op": "added", "text": "{}"}],
}


async def test_servers_and_entries_are_shown_with_what_is_allowed_and_why() -> None:
    async with opened() as host:
        state = await host.admin.reader.state()
        assert json.loads(json.dumps(state)) == state
        (shown,) = state["servers"]
        assert (shown["id"], shown["state"], shown["trust"], shown["entries"]["tools"]) == (
            "gh",
            "ready",
            "standard",
            3,
        )
        entries = {each["name"]: (each["verdict"], each["rule"], each["shown"]) for each in state["catalog"]}
        assert entries == {
            "get_x": ("allow", "tools.allow: get_*", True),
            "create": ("ask", "tools.ask: create", True),
            "wipe": ("deny", "tools.deny: wipe", False),
        }
        assert state["problems"] == []


@pytest.mark.slow
async def test_everything_there_is_to_see_is_as_the_api_describes_it() -> None:
    """Servers in every state, entries, what waits, and what was granted."""

    async def broken(params: dict[str, Any]) -> object:
        return []

    async def slow(params: dict[str, Any]) -> object:
        await trio.sleep(3600)
        return {}

    strange = ScriptedServer("strange", tools=["x"], trust=Trust.UNTRUSTED)
    bad = ScriptedServer("bad", answers={"initialize": broken})
    hung = ScriptedServer("hung", answers={"initialize": slow})
    servers = (server(), strange, bad, hung, ScriptedServer("off", disabled=True))
    async with trio.open_nursery() as nursery, open_world(*servers) as world:
        for id in ("gh", "strange", "bad"):
            await world.upstreams.by_id[id].main.life.settled.wait()
        admin = admin_of(world, control := control_of(world))
        with admin.attach(Channel.CONSOLE):
            host = Opened(world, admin, control, nursery)
            call, question = await host.asked()
            awaited(admin.answer(question["id"], "always", None, "exact", Channel.CONSOLE))
            await call.comes()
            await host.asked({"owner": "other"})
            control.set_waiting_changes([CHANGE])
            state: dict[str, Any] = {**await admin.reader.state()}
            conforms("GET", "/api/v1/state", 200, state)
            assert [each["state"] for each in state["servers"]] == ["ready", "ready", "failed", "starting", "disabled"]
            assert all(state[section] for section in SECTIONS if section != "problems")
            conforms(
                "POST",
                "/api/v1/explain",
                200,
                awaited(admin.explain(Item("gh", "tool", "create"), {"owner": "acme"})),
            )
        nursery.cancel_scope.cancel()


async def test_rules_that_match_nothing_are_named() -> None:
    async with opened(server(consent=Consent(tools=kind(allow=["*"], ask=["creat_"])))) as host:
        assert (await host.admin.reader.state())["servers"][0]["unmatched"] == ["tools.ask: creat_"]


async def test_overrides_for_what_a_server_does_not_offer_are_named() -> None:
    overrides = {each: Override(title="T") for each in ("create", "creat")}
    overrides["create_prompt"] = Override(OverrideKind.PROMPT, "other")
    view = ViewSpec(overrides={"gh": {"create": Override(title="V"), "wip": Override(title="V")}})
    async with opened(server(overrides=overrides), views={"v": view}) as host:
        assert (await host.admin.reader.state())["servers"][0]["unmatched"] == [
            "overrides: creat",
            "views.v.overrides: wip",
            "overrides: create_prompt",
        ]


async def test_tools_whose_claims_do_not_count_are_counted() -> None:
    """As long as a rule wants claims and no person has approved the tools."""
    wanting = Consent(tools=KindConsent((Rule("*", claims=(ToolClaim.READ_ONLY,)),), default=Verdict.ASK))
    async with opened(server(consent=wanting)) as host:
        (row,) = (await host.admin.reader.state())["servers"]
        assert row["uncounted"] > 0
        rows = awaited(host.admin.definitions("gh"))["definitions"]
        shown = [each["fingerprint"] for each in rows]
        awaited(host.admin.decide_all("gh", shown, "approve", Channel.CONSOLE))
        assert (await host.admin.reader.state())["servers"][0]["uncounted"] == 0


UNUSED = Consent(tools=kind(allow=["*"], ask=["creat_"]))


@pytest.mark.few(1)
@pytest.mark.parametrize("left", [[], ["other"], ["gh", "other"]])
async def test_what_a_reload_takes_while_it_is_told_is_left_out(left: list[str]) -> None:
    """Whichever step the reload comes between, and whether it removes a server or gives it other rules."""
    for done_before in count():
        async with opened(*(ScriptedServer(id, tools=["x", "y"], consent=UNUSED) for id in ("gh", "other"))) as host:
            telling = Paused(host.admin.reader.sections(SECTIONS))
            if len(list(islice(telling, done_before))) < done_before:
                break
            host.world.configures(*(ScriptedServer(id, consent=Consent(tools=kind(deny=["x"]))) for id in left))
            told = telling.rest()
            if not done_before:
                assert [each["id"] for each in told["servers"]] == left
                assert {each["server"] for each in told["catalog"]} == set(left)
                assert all(each["unmatched"] == [] for each in told["servers"])
    assert done_before > 10


async def test_no_rule_that_a_reload_takes_is_said_to_match_nothing() -> None:
    async with opened(server(consent=UNUSED)) as host:
        for consent, told in ((UNUSED, ["tools.ask: creat_"]), (Consent(), [])):
            comparing = Paused(unmatched_rules(host.world.gate, host.world.catalog, "gh"))
            next(comparing)
            host.world.configures(server(consent=consent))
            assert comparing.rest() == told


async def test_a_server_that_is_removed_before_its_rules_are_compared_ends_nothing() -> None:
    """Others that became ready have theirs compared, once, however often they did so meanwhile."""
    gh, other = (ScriptedServer(id, tools=["x"], consent=UNUSED) for id in ("gh", "other"))
    async with opened(gh, other) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.admin.reader.run)
        await wait_all_tasks_blocked(0.01)
        for server in ("gh", "other", "gh", "other", "other"):
            host.world.journal.note(ServerReady(server, server, "", 0.0))
        host.world.configures(other)
        await wait_all_tasks_blocked(0.01)
        unused = [event for event in host.world.events if isinstance(event, RuleUnused)]
        assert unused == [RuleUnused("other", "tools.ask: creat_")]
        host.world.journal.note(ConfigReloaded("other has new rules or limits", accepted=True))
        await wait_all_tasks_blocked(0.01)
        assert [event for event in host.world.events if isinstance(event, RuleUnused)] == unused * 2
        nursery.cancel_scope.cancel()


async def test_a_server_that_runs_unconfined_as_before_carries_a_warning_and_a_choice() -> None:
    former = server(trust=Trust.UNTRUSTED, confined_by_trust=True, unconfined=Unconfined.OPEN)
    async with opened(former, ScriptedServer("other", tools=["x"])) as host:
        first, second = (await host.admin.reader.state())["servers"]
        assert "unconfined" in first["warnings"][0]
        assert second["warnings"] == []
        assert (first["sandbox_open"], second["sandbox_open"]) == (True, False)
        assert second["sandbox"] == "off: it runs as your user"
        assert "trust: untrusted" in first["settings"]


async def test_a_server_with_a_sandbox_says_what_it_is_given_and_what_holds_it() -> None:
    async with opened(server(trust=Trust.UNTRUSTED, sandbox=Sandbox())) as host:
        (row,) = (await host.admin.reader.state())["servers"]
        assert (row["sandbox"], row["warnings"]) == (Sandbox().describe(), [])
        host.world.journal.note(ServerConfined(row["id"], "namespaces"))
        (row,) = (await host.admin.reader.state())["servers"]
        assert row["sandbox"] == f"{Sandbox().describe()}; held by namespaces"


async def test_definitions_of_which_only_the_order_differs_are_said_with_the_remedy() -> None:
    async with opened() as host:
        for words in ("a, b", "b, a"):
            names = ("get_1", "get_2", "get_3")
            offered = {each: json.dumps({"name": each, "description": words}).encode() for each in names}
            offered["get_4"] = json.dumps({"name": "get_4", "title": f"{words}, {words[-1]}"}).encode()
            observe(host.world.gate, "gh", Kind.TOOL, offered)
        state = await host.admin.reader.state()
        assert ["PYTHONHASHSEED" in each["order"] for each in state["held"]] == [True, True, True, False]
        assert state["servers"][0]["held"] == 4
        [said] = state["servers"][0]["warnings"]
        assert said.startswith("in 3 definitions that wait, only the order of words or of listed texts differs")


async def test_what_an_own_key_replaces_of_the_defaults_is_a_warning_too() -> None:
    async with opened(server(replaced=("its consent replaces defaults.consent",))) as host:
        [row] = (await host.admin.reader.state())["servers"]
        assert row["warnings"] == ["its consent replaces defaults.consent"]


async def test_a_question_shows_everything_that_an_answer_is_bound_to() -> None:
    async with opened() as host:
        call, question = await host.asked({"owner": "acme\u202e"}, identity="laptop")
        assert (question["state"], question["kind"], question["name"], question["caller"]) == (
            "waiting",
            "tool",
            "create",
            "laptop",
        )
        assert (question["rule"], question["origin"]) == ("tools.ask: create", "")
        assert question["process"] is None
        assert "⟨U+202E⟩" in question["arguments"]
        assert (question["outline"], question["texts"]) == ([], [])
        assert question["answers"] == ["deny", "once", "session", "time", "always"]
        assert awaited(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))["done"].endswith(
            "on now."
        )
        assert "isError" not in await call.comes()
        assert (await host.admin.reader.state())["confirmations"] == []


async def test_a_question_shows_long_texts_as_text() -> None:
    async with opened() as host:
        _, question = await host.asked({"owner": "acme\nand\nothers"})
        assert [piece["text"] for piece in question["outline"]] == ['{\n  "owner": ', "text 1", "\n}"]
        assert question["texts"][0]["pieces"] == [{"op": "same", "text": "acme\nand\nothers"}]


async def test_a_question_names_the_program_that_the_kernel_knows() -> None:
    async with opened() as host:
        _, question = await host.asked(process=ClientProcess("claude", 7, "/work\u202e"))
        assert question["process"] == {"program": "claude", "pid": 7, "folder": "/work⟨U+202E⟩"}
        _, unknown = await host.asked({"owner": "b"}, process=ClientProcess())
        assert unknown["process"] is None
        assert (unknown["caller"], unknown["says"]) == ("a client without a token", "test 1")


async def test_a_question_names_the_key_of_the_defaults_that_its_rule_is_from() -> None:
    async with opened(server(consent=Consent(tools=kind(default="ask")), defaulted=frozenset(("consent",)))) as host:
        _, question = await host.asked()
        assert (question["rule"], question["origin"]) == ("tools.default", "defaults.consent")


async def test_a_question_shows_what_is_sent_beside_the_arguments() -> None:
    async with opened() as host:
        _, question = await host.asked()
        assert question["others"] == ""
        caller = await host.world.client()
        later(host._nursery, caller.call, "gh__create", {"owner": "acme"}, extra={"a": "b\u202e"})
        await wait_all_tasks_blocked()
        question = (await host.admin.reader.state())["confirmations"][-1]
        assert question["others"] == '{\n  "extra": {\n    "a": "b⟨U+202E⟩"\n  }\n}'


async def test_a_question_shows_the_definition_as_the_server_wrote_it() -> None:
    listed = tool("create", description="Creates.\nAt once\u202e.", inputSchema={"type": "object", "title": "T"})
    async with opened(server(tools=[listed])) as host:
        _, question = await host.asked()
        assert question["description"] == "Creates.\nAt once⟨U+202E⟩."
        assert '"title": "T"' in question["definition"]
        assert "⟨U+202E⟩" in question["definition"]
        assert question["whole_session"]
        assert question["until"] > question["asked"]


async def test_the_health_of_a_host_counts_what_waits_for_a_person(autojump_clock: MockClock) -> None:
    tools = [tool("create"), tool("get_x")]
    async with opened(server(tools=tools, trust=Trust.UNTRUSTED)) as host:
        for held in (await host.admin.reader.state())["held"]:
            if held["name"] != "get_x":
                what = Item(held["server"], held["kind"], held["name"])
                awaited(host.admin.decide(what, held["fingerprint"], "approve", Channel.CONSOLE))
        await host.asked()
        await trio.sleep(7)
        status: dict[str, Any] = {**await host.admin.reader.status()}
        conforms("GET", "/api/v1/status", 200, status)
        assert (status["confirmations"], status["held"], status["problems"]) == (1, 1, [])
        assert status["uptime"] >= 7
        assert (status["clients"], status["ends_after"], status["ends_in"]) == (0, 600, None)
        assert [each["id"] for each in status["servers"]] == ["gh"]
        await trio.sleep(60)  # it is refused then, and does not wait any more
        assert (await host.admin.reader.status())["confirmations"] == 0


async def test_whoever_watches_hears_of_each_section_that_changed() -> None:
    async with opened() as host:
        before = host.admin.reader.versions()
        assert set(before) == set(SECTIONS)
        with trio.move_on_after(0.01):
            await host.admin.reader.wait_changed(before)
            raise AssertionError("nothing has changed")
        await host.asked()
        now = await host.admin.reader.wait_changed(before)
        assert now["confirmations"] > before["confirmations"]
        assert now["held"] == before["held"]


async def test_activity_is_kept_up_to_a_bound_and_as_text_that_can_be_seen() -> None:
    async with opened() as host:
        for at in range(MAX_ACTIVITY + 5):
            host.world.journal.note(ServerFailed("gh", f"\x1b[2J {'x' * at}", 1.0))
        activity = (await host.admin.reader.state())["activity"]
        assert len(activity) == MAX_ACTIVITY
        assert activity[-1]["level"] == "warning"
        assert "\x1b" not in json.dumps([each["text"] for each in activity], ensure_ascii=False)


async def test_what_repeats_itself_is_one_row_of_the_activity() -> None:
    """Seven attempts to start a server that crashes; those of another one are in between."""
    async with opened() as host:
        for at in range(7):
            host.world.journal.note(ServerFailed("gh", "it ended", 2.0**at))
            host.world.journal.note(ServerFailed("other", "it ended", 2.0**at))
        host.world.journal.note(ServerReady("gh", "", "2 tools", 0.1))
        host.world.journal.note(ServerFailed("gh", "it ended otherwise", 1.0))
        activity = [each for each in (await host.admin.reader.state())["activity"] if each["kind"] == "ServerFailed"]
        assert [(each["server"], each["count"]) for each in activity] == [("gh", 7), ("other", 7), ("gh", 1)]
        assert activity[0]["text"].endswith("next attempt in 64.0 s")
        assert activity[0]["first"] <= activity[0]["t"]
        states = (await host.admin.server_traffic("gh"))["states"]
        assert [(each["state"], each["text"], each["count"]) for each in states[-3:]] == [
            ("failed", "it ended", 7),
            ("ready", "2 tools", 1),
            ("failed", "it ended otherwise", 1),
        ]


async def test_ids_in_the_reason_of_a_failure_do_not_make_it_another_one() -> None:
    reasons = [
        *(f"it exited with status 1: no key for <Client at 0x7f{at}a2bc>" for at in "bcd"),
        *(f'the server says: "busy (request {at}f0c2d4a1b3e596{at})"' for at in "1a2"),
        *(f"session 01{at}9fb-7c1e-4d{at}-aa{at}2-5b0{at}deadbeef is over" for at in "f3c"),
    ]
    async with opened() as host:
        for reason in reasons:
            host.world.journal.note(ServerFailed("gh", reason, 1.0))
        activity = [each for each in (await host.admin.reader.state())["activity"] if each["kind"] == "ServerFailed"]
        assert [each["count"] for each in activity] == [3, 3, 3]


async def test_what_is_said_of_two_things_is_two_rows_of_the_activity() -> None:
    """Their names may differ by a number alone."""
    events: list[Event] = [
        *(DefinitionChanged("gh", "tool", f"delete{at}", "held") for at in range(3)),
        *(ConfirmationRequested("gh", f"{at}", "the tool x") for at in range(3)),
        *(AttemptRefused("", Attempt(Reason.NO_TOKEN, "path", "/", f"10.0.0.{at}"), at) for at in (7, 7, 8, 8)),
    ]
    async with opened() as host:
        for event in events:
            host.world.journal.note(event)
        counts = [each["count"] for each in (await host.admin.reader.state())["activity"]]
        assert counts[-8:] == [1] * 6 + [2] * 2


async def test_traffic_of_a_removed_server_is_not_kept() -> None:
    async with opened(*(ScriptedServer(id, tools=["x"]) for id in ("gh", "other"))) as host:
        for id in ("gh", "other"):
            host.world.journal.note(RequestCompleted(id, "tool", "x", "desk", "allow", "answered", 0.5))
        host.world.configures(ScriptedServer("other"))
        host.world.journal.note(ConfigReloaded("gh removed", accepted=True))
        traffic = host.admin.reader.traffic
        assert [len(traffic(id)["minutes"]) for id in ("gh", "other")] == [0, 1]


async def test_completed_requests_are_activity_between_other_events() -> None:
    async with opened() as host:
        host.world.journal.note(ServerFailed("gh", "it ended", 1.0))
        host.world.journal.note(RequestCompleted("gh", "tool", "x\u202e", "desk\u202e", "ask", "failed", 0.5))
        host.world.journal.note(ServerFailed("gh", "again", 1.0))
        first, request, last = (await host.admin.reader.state())["activity"][-3:]
        assert [first["kind"], last["kind"]] == ["ServerFailed"] * 2
        assert (request["kind"], request["server"], request["level"]) == ("RequestCompleted", "gh", "warning")
        assert request["text"] == "gh: tool x\\u202e for desk⟨U+202E⟩: failed in 0.500 s (ask)"
        assert first["t"] <= request["t"] <= last["t"]


async def test_activity_has_the_severity_of_its_events() -> None:
    events: list[Event] = [
        ConfigReloaded("line 1: no", accepted=False),
        ConsoleFailed("it is taken"),
        ServerFailed("gh", "it ended", 1.0),
    ]
    async with opened() as host:
        for event in (*events, ServerReady("gh", "", "", 0.1)):
            host.world.journal.note(event)
        activity = (await host.admin.reader.state())["activity"]
        assert [each["level"] for each in activity[-4:]] == ["error", "error", "warning", "info"]


async def test_traffic_is_counted() -> None:
    async with opened() as host:
        client = await host.world.client()
        await client.call("gh__get_x")
        (shown,) = (await host.admin.reader.state())["servers"]
        assert (shown["calls"], shown["failed"], shown["tool_errors"], shown["in_flight"]) == (1, 0, 0, 0)
        assert shown["latency_ms"] is not None
        assert shown["latency_ms"] >= 0
        assert shown["p50_ms"] == shown["p95_ms"] is not None
        offered = host.world.catalog.entries_of("gh", Kind.TOOL)
        assert {each.ref.name for each in offered} == {"get_x", "create", "wipe"}, "one of them is denied"
        assert shown["tokens"] == model_tokens(sum(len(each.exported) for each in offered))
        traffic = await host.admin.server_traffic("gh")
        assert [each["calls"] for each in traffic["minutes"]] == [each["calls"] for each in traffic["quarters"]] == [1]


# The running host


async def test_changes_that_wait_for_a_person_are_shown_until_they_are_applied() -> None:
    async with opened() as host:
        before = host.admin.reader.versions()
        host.control.set_waiting_changes([CHANGE])
        assert host.admin.reader.versions()["configuration"] > before["configuration"]
        said = await host.admin.reload(apply=False, shown=None)
        assert said["done"] == "changes of the configuration that wait for a person: 1."
        assert (await host.admin.reader.state())["configuration"] == [CHANGE]
        assert (await host.admin.reader.status())["waiting_changes"] == ["gh: command has changed"]
        host.control.set_waiting_changes([])
        assert (await host.admin.reader.state())["configuration"] == []


async def test_a_reload_that_leaves_what_waits_as_it_is_does_not_show_it_again() -> None:
    async with opened() as host:
        before = host.admin.reader.versions()
        host.world.journal.note(ConfigReloaded("nothing has changed", accepted=True))
        assert host.admin.reader.versions()["configuration"] == before["configuration"]
        assert host.admin.reader.versions()["problems"] > before["problems"]


async def test_a_mistake_in_the_configuration_file_is_a_problem_until_it_is_mended() -> None:
    async with opened() as host:
        for mistake, shown in (
            ("line 1: no", ["the configuration file has a mistake and is not applied: line 1: no"]),
            ("", []),
        ):
            before = host.admin.reader.versions()
            host.control.set_file_problem(mistake)
            assert host.admin.reader.versions()["problems"] > before["problems"]
            assert (await host.admin.reader.state())["problems"] == shown


# Logins
