"""What a person sees of a running host, and what becomes of what they say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Check, Condition, Consent, KindConsent, Rule, Trust
from host.admin.schema import SECTIONS, AdminError, ConfirmationRow, HostControl
from host.admin.state import MAX_ACTIVITY, HostAdmin
from host.journal import (
    MAX_OUTPUT_LINES,
    ConfigReloaded,
    ConsoleFailed,
    Event,
    OutputLine,
    RequestCompleted,
    RuleUnused,
    ServerFailed,
    ServerReady,
)
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES
from host.policy.explain import unmatched_rules
from host.policy.rows import ChangeRow
from host.slices import run_inline
from host.subject import Item
from tests.host.upstream.test_open_logins import NOWHERE
from tests.host.upstream.test_open_logins import opened as opened_desk
from tests.host.upstream.test_supervised import Protected
from tests.kit.control import FakeControl, control_of
from tests.kit.gates import kind
from tests.kit.issuer import ISSUER_METADATA, open_issuer
from tests.kit.logins import login
from tests.kit.openapi import conforms
from tests.kit.world import Later, ScriptedServer, World, later, open_world, tool

CHANGE: ChangeRow = {
    "id": "c1",
    "server": "gh",
    "widens": ["command has changed"],
    "diff": [{"op": "added", "text": "{}"}],
}


async def done(params: dict[str, Any]) -> object:
    return {"content": [{"type": "text", "text": "done"}]}


def server(**more: Any) -> ScriptedServer:
    consent = more.pop("consent", Consent(tools=kind(allow=["get_*"], ask=["create"], deny=["wipe"])))
    listed = more.pop("tools", ["get_x", "create", "wipe"])
    return ScriptedServer("gh", tools=listed, consent=consent, answers={"tools/call": done}, **more)


def admin_of(world: World, control: HostControl | None = None) -> HostAdmin:
    return HostAdmin(control or control_of(world), world.runtime, world.upstreams, stdio=False)


class Opened:
    def __init__(self, world: World, admin: HostAdmin, control: FakeControl, nursery: trio.Nursery) -> None:
        self.world = world
        self.control = control
        self.admin = admin
        self._nursery = nursery

    async def asked(self, arguments: object = None, **client: Any) -> tuple[Later, ConfirmationRow]:
        """A call of gh__create that waits, and its question as it is shown."""
        caller = await self.world.client(**client)
        call = later(self._nursery, caller.call, "gh__create", arguments or {"owner": "acme"})
        await wait_all_tasks_blocked()
        question = (await self.admin.state())["confirmations"][-1]
        return call, question


@asynccontextmanager
async def opened(*servers: ScriptedServer, ask: AskSpec | None = None) -> AsyncIterator[Opened]:
    async with trio.open_nursery() as nursery, open_world(*(servers or (server(),)), ask=ask) as world:
        await world.settled()
        admin = admin_of(world, control := control_of(world))
        with admin.attach(Channel.CONSOLE):
            yield Opened(world, admin, control, nursery)
        nursery.cancel_scope.cancel()


async def test_servers_and_entries_are_shown_with_what_is_allowed_and_why() -> None:
    async with opened() as host:
        state = await host.admin.state()
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
            run_inline(admin.answer(question["id"], "always", None, "exact", Channel.CONSOLE))
            await call.comes()
            await host.asked({"owner": "other"})
            control.set_waiting_changes([CHANGE])
            state: dict[str, Any] = {**await admin.state()}
            conforms("GET", "/api/v1/state", 200, state)
            assert [each["state"] for each in state["servers"]] == ["ready", "ready", "failed", "starting", "disabled"]
            assert all(state[section] for section in SECTIONS if section != "problems")
            conforms(
                "POST",
                "/api/v1/explain",
                200,
                run_inline(admin.explain(Item("gh", "tool", "create"), {"owner": "acme"})),
            )
        nursery.cancel_scope.cancel()


async def test_rules_that_match_nothing_are_named() -> None:
    async with opened(server(consent=Consent(tools=kind(allow=["*"], ask=["creat_"])))) as host:
        assert (await host.admin.state())["servers"][0]["unmatched"] == ["tools.ask: creat_"]


UNUSED = Consent(tools=kind(allow=["*"], ask=["creat_"]))


@pytest.mark.parametrize("left", [[], ["other"], ["gh", "other"]])
async def test_what_a_reload_takes_while_it_is_told_is_left_out(left: list[str]) -> None:
    """Whichever step the reload comes between, and whether it removes a server or gives it other rules."""
    for done_before in count():
        async with opened(*(ScriptedServer(id, tools=["x", "y"], consent=UNUSED) for id in ("gh", "other"))) as host:
            telling = host.admin.sections_in_steps(SECTIONS)
            if len(list(islice(telling, done_before))) < done_before:
                break
            host.world.configures(*(ScriptedServer(id, consent=Consent(tools=kind(deny=["x"]))) for id in left))
            told = run_inline(telling)
            if not done_before:
                assert [each["id"] for each in told["servers"]] == left
                assert {each["server"] for each in told["catalog"]} == set(left)
                assert all(each["unmatched"] == [] for each in told["servers"])
    assert done_before > 10


async def test_no_rule_that_a_reload_takes_is_said_to_match_nothing() -> None:
    async with opened(server(consent=UNUSED)) as host:
        for consent, told in ((UNUSED, ["tools.ask: creat_"]), (Consent(), [])):
            comparing = unmatched_rules(host.world.gate, host.world.catalog, "gh")
            next(comparing)
            host.world.configures(server(consent=consent))
            assert run_inline(comparing) == told


async def test_a_server_that_is_removed_before_its_rules_are_compared_ends_nothing() -> None:
    """Others that became ready have theirs compared, once, however often they did so meanwhile."""
    gh, other = (ScriptedServer(id, tools=["x"], consent=UNUSED) for id in ("gh", "other"))
    async with opened(gh, other) as host, trio.open_nursery() as nursery:
        nursery.start_soon(host.admin.run)
        await wait_all_tasks_blocked(0.01)
        for server in ("gh", "other", "gh", "other", "other"):
            host.world.journal.note(ServerReady(server, server, "", 0.0))
        host.world.configures(other)
        await wait_all_tasks_blocked(0.01)
        unused = [event for event in host.world.events if isinstance(event, RuleUnused)]
        assert unused == [RuleUnused("other", "tools.ask: creat_")]
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_not_trusted_and_not_confined_carries_a_warning() -> None:
    async with opened(server(trust=Trust.UNTRUSTED), ScriptedServer("other", tools=["x"])) as host:
        first, second = (await host.admin.state())["servers"]
        assert "unconfined" in first["warnings"][0]
        assert second["warnings"] == []


async def test_a_question_shows_everything_that_an_answer_is_bound_to() -> None:
    async with opened() as host:
        call, question = await host.asked({"owner": "acme\u202e"}, identity="laptop")
        assert (question["state"], question["kind"], question["name"], question["caller"]) == (
            "waiting",
            "tool",
            "create",
            "laptop",
        )
        assert question["rule"] == "tools.ask: create"
        assert "⟨U+202E⟩" in question["arguments"]
        assert question["answers"] == ["deny", "once", "session", "time", "always"]
        assert run_inline(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))["done"].endswith(
            "on now."
        )
        assert "isError" not in await call.comes()
        assert (await host.admin.state())["confirmations"] == []


@pytest.mark.parametrize("answer", ["once", "session", "time", "always"])
async def test_every_answer_lets_the_call_pass_and_what_lasts_is_shown(answer: str) -> None:
    async with opened() as host:
        call, question = await host.asked()
        seconds = 60 if answer == "time" else None
        run_inline(host.admin.answer(question["id"], answer, seconds, {"owner": {"in": ["acme"]}}, Channel.CONSOLE))
        assert "isError" not in await call.comes()
        grants = (await host.admin.state())["grants"]
        assert [each["scope"] for each in grants] == ([] if answer == "once" else [answer])
        for each in grants:
            assert each["live"]
            assert each["arguments"].startswith("when ")
            assert "acme" in each["arguments"]
            assert run_inline(host.admin.revoke(each["id"], Channel.CONSOLE))["done"]
            with pytest.raises(AdminError):
                run_inline(host.admin.revoke(each["id"], Channel.CONSOLE))
        assert (await host.admin.state())["grants"] == []


async def test_no_is_told_to_the_caller() -> None:
    async with opened() as host:
        call, question = await host.asked()
        run_inline(host.admin.answer(question["id"], "deny", None, "exact", Channel.CONSOLE))
        assert "a person said no" in json.dumps(await call.comes())
        with pytest.raises(AdminError, match="no longer pending"):
            run_inline(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))


async def test_a_channel_that_the_configuration_does_not_name_answers_nothing() -> None:
    async with opened(ask=AskSpec((Channel.CONSOLE,))) as host:
        call, question = await host.asked()
        with pytest.raises(AdminError, match=r"ask\.answers"):
            run_inline(host.admin.answer(question["id"], "once", None, "exact", Channel.TERMINAL))
        assert not call.done


@pytest.mark.parametrize("conditions", [{"owner": {"nonsense": 1}}, {"owner": {}}, {"": {"in": []}}])
async def test_conditions_that_cannot_be_read_allow_nothing(conditions: dict[str, Any]) -> None:
    async with opened() as host:
        call, question = await host.asked()
        with pytest.raises(AdminError):
            run_inline(host.admin.answer(question["id"], "always", None, conditions, Channel.CONSOLE))
        assert (call.done, (await host.admin.state())["grants"]) == (False, [])


async def test_the_longest_arguments_that_a_person_can_agree_to_are_shown_in_full() -> None:
    async with opened() as host:
        given = {"owner": "a" * (MAX_CONFIRMABLE_BYTES - len(json.dumps({"owner": ""})))}
        call, question = await host.asked(given)
        assert given["owner"] in question["arguments"]
        run_inline(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))
        assert "isError" not in await call.comes()


async def test_a_question_shows_what_is_sent_beside_the_arguments() -> None:
    async with opened() as host:
        _, question = await host.asked()
        assert question["others"] == ""
        caller = await host.world.client()
        later(host._nursery, caller.call, "gh__create", {"owner": "acme"}, extra={"a": "b\u202e"})
        await wait_all_tasks_blocked()
        question = (await host.admin.state())["confirmations"][-1]
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


async def test_an_entry_is_explained_by_the_name_that_the_page_shows() -> None:
    async with opened(server(tools=["get_\u202ex"])) as host:
        shown = [each["name"] for each in (await host.admin.state())["catalog"]]
        assert "get_⟨U+202E⟩x" in shown
        explained = run_inline(host.admin.explain(Item("gh", "tool", "get_⟨U+202E⟩x"), None))
        assert (explained["verdict"], explained["rule"]) == ("allow", "tools.allow: get_*")
        with pytest.raises(AdminError, match="has no tool"):
            run_inline(host.admin.explain(Item("gh", "tool", "get_x"), None))


async def test_two_names_that_look_alike_are_not_explained() -> None:
    async with opened(server(tools=["get_⟨U+202E⟩", "get_\u202e"])) as host:
        with pytest.raises(AdminError, match="several names look like this one"):
            run_inline(host.admin.explain(Item("gh", "tool", "get_⟨U+202E⟩"), None))


async def test_a_rule_about_arguments_is_not_undone_in_one_step() -> None:
    """The answer for any arguments is then not offered for the session."""
    when = (Condition("/owner", (Check("eq", "acme"),)),)
    consent = Consent(tools=KindConsent(ask=(Rule("create", when),)))
    async with opened(server(consent=consent)) as host:
        _, question = await host.asked({"owner": "acme"})
        assert not question["whole_session"]
        assert "session" in question["answers"]


async def test_all_that_was_shown_of_a_server_is_denied_and_nothing_else() -> None:
    async with opened() as host:
        calls = [(await host.asked({"owner": owner}))[0] for owner in ("a", "b")]
        ids = [each["id"] for each in (await host.admin.state())["confirmations"]]
        later, question = await host.asked({"owner": "later"})
        with pytest.raises(AdminError, match="none of these"):
            run_inline(host.admin.deny_all("other", ids, Channel.CONSOLE))
        done = run_inline(host.admin.deny_all("gh", [*ids, "feedbeef"], Channel.CONSOLE))["done"]
        assert done == "2 confirmations of gh: denied."
        for call in calls:
            assert "a person said no" in json.dumps(await call.comes())
        assert [each["id"] for each in (await host.admin.state())["confirmations"]] == [question["id"]]
        assert not later.done
        with pytest.raises(AdminError, match="none of these"):
            run_inline(host.admin.deny_all("gh", ids, Channel.CONSOLE))


async def test_a_channel_that_may_not_answer_denies_nothing() -> None:
    async with opened(ask=AskSpec((Channel.CONSOLE,))) as host:
        _, question = await host.asked()
        with pytest.raises(AdminError, match=r"ask\.answers"):
            run_inline(host.admin.deny_all("gh", [question["id"]], Channel.TERMINAL))
        assert len((await host.admin.state())["confirmations"]) == 1


async def test_a_refused_question_stays_and_can_be_granted_for_the_next_call(autojump_clock: MockClock) -> None:
    async with opened() as host:
        call, question = await host.asked()
        await trio.sleep(60)
        assert (await call.comes())["isError"]
        (refused,) = (await host.admin.state())["confirmations"]
        assert (refused["id"], refused["state"], refused["waiting"]) == (question["id"], "refused", 0)
        said = run_inline(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))["done"]
        assert "the next call like it passes" in said


async def test_what_is_held_back_is_shown_in_full_and_approved_as_it_was_shown() -> None:
    async with opened(server(tools=[tool("create", description="evil\u202e")], trust=Trust.UNTRUSTED)) as host:
        (held,) = [each for each in (await host.admin.state())["held"] if each["kind"] == "tool"]
        assert (held["standing"], held["rejected"]) == ("new", False)
        assert "evil⟨U+202E⟩" in held["text"]
        assert (await host.admin.state())["catalog"][0]["shown"] is False
        what = Item("gh", "tool", "create")
        with pytest.raises(AdminError):
            run_inline(host.admin.decide(what, "sha256:another", "approve", Channel.CONSOLE))
        run_inline(host.admin.decide(what, held["fingerprint"], "reject", Channel.CONSOLE))
        assert (await host.admin.state())["held"][0]["rejected"]
        run_inline(host.admin.decide(what, held["fingerprint"], "approve", Channel.CONSOLE))
        assert (await host.admin.state())["held"] == []
        assert (await host.admin.state())["catalog"][0]["shown"] is True


async def test_the_health_of_a_host_counts_what_waits_for_a_person(autojump_clock: MockClock) -> None:
    tools = [tool("create"), tool("get_x")]
    async with opened(server(tools=tools, trust=Trust.UNTRUSTED)) as host:
        for held in (await host.admin.state())["held"]:
            if held["name"] != "get_x":
                what = Item(held["server"], held["kind"], held["name"])
                run_inline(host.admin.decide(what, held["fingerprint"], "approve", Channel.CONSOLE))
        await host.asked()
        await trio.sleep(7)
        status: dict[str, Any] = {**await host.admin.status()}
        conforms("GET", "/api/v1/status", 200, status)
        assert (status["confirmations"], status["held"], status["problems"]) == (1, 1, [])
        assert status["uptime"] >= 7
        assert [each["id"] for each in status["servers"]] == ["gh"]
        await trio.sleep(60)  # it is refused then, and does not wait any more
        assert (await host.admin.status())["confirmations"] == 0


async def test_whoever_watches_hears_of_each_section_that_changed() -> None:
    async with opened() as host:
        before = host.admin.versions()
        assert set(before) == set(SECTIONS)
        with trio.move_on_after(0.01):
            await host.admin.wait_changed(before)
            raise AssertionError("nothing has changed")
        await host.asked()
        now = await host.admin.wait_changed(before)
        assert now["confirmations"] > before["confirmations"]
        assert now["held"] == before["held"]


async def test_activity_is_kept_up_to_a_bound_and_as_text_that_can_be_seen() -> None:
    async with opened() as host:
        for at in range(MAX_ACTIVITY + 5):
            host.world.journal.note(ServerFailed("gh", f"\x1b[2J {at}", 1.0))
        activity = (await host.admin.state())["activity"]
        assert len(activity) == MAX_ACTIVITY
        assert activity[-1]["level"] == "warning"
        assert "\x1b" not in json.dumps([each["text"] for each in activity], ensure_ascii=False)


async def test_completed_requests_are_activity_between_other_events() -> None:
    async with opened() as host:
        host.world.journal.note(ServerFailed("gh", "it ended", 1.0))
        host.world.journal.note(RequestCompleted("gh", "tool", "x\u202e", "desk\u202e", "ask", "failed", 0.5))
        host.world.journal.note(ServerFailed("gh", "again", 1.0))
        first, request, last = (await host.admin.state())["activity"][-3:]
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
        activity = (await host.admin.state())["activity"]
        assert [each["level"] for each in activity[-4:]] == ["error", "error", "warning", "info"]


async def test_traffic_is_counted() -> None:
    async with opened() as host:
        client = await host.world.client()
        await client.call("gh__get_x")
        (shown,) = (await host.admin.state())["servers"]
        assert (shown["calls"], shown["failed"], shown["in_flight"]) == (1, 0, 0)
        assert shown["latency_ms"] is not None
        assert shown["latency_ms"] >= 0


async def test_without_a_console_there_is_no_link() -> None:
    async with opened() as host:
        with pytest.raises(AdminError):
            host.admin.console_url()
        host.admin.new_console_url = lambda: "http://127.0.0.1:1/console#x"
        assert host.admin.console_url() == "http://127.0.0.1:1/console#x"


# The running host


async def test_a_person_controls_the_servers_of_a_host() -> None:
    async with opened() as host:
        assert "it restarts" in run_inline(host.admin.control("gh", "restart"))["done"]
        assert "it is disabled until" in run_inline(host.admin.control("gh", "disable"))["done"]
        with pytest.raises(AdminError, match="gh is enabled already"):
            run_inline(host.admin.control("gh", "enable"))
        with pytest.raises(AdminError, match="no server ghx in the configuration; did you mean gh"):
            run_inline(host.admin.control("ghx", "restart"))
        assert host.control.done == [("restart", "gh"), ("set_disabled", "gh", True)]


async def test_a_reload_says_what_came_of_it() -> None:
    async with opened() as host:
        said = await host.admin.run_steps(host.admin.reload(apply=True, shown="c1"))
        assert (said["done"], host.control.done) == ("configuration read again: gh restarts.", [("reload", "c1")])
        host.control.accepts = False
        for apply in (True, False):
            with pytest.raises(AdminError, match="configuration kept: line 1: no"):
                await host.admin.run_steps(host.admin.reload(apply=apply, shown=None))
        host.control.accepts, host.control.complete = True, False
        with pytest.raises(AdminError, match="configuration read again: gh restarts"):
            await host.admin.run_steps(host.admin.reload(apply=True, shown=None))


async def test_changes_that_wait_for_a_person_are_shown_until_they_are_applied() -> None:
    async with opened() as host:
        before = host.admin.versions()
        host.control.set_waiting_changes([CHANGE])
        assert host.admin.versions()["configuration"] > before["configuration"]
        said = await host.admin.run_steps(host.admin.reload(apply=False, shown=None))
        assert said["done"] == "changes of the configuration that wait for a person: 1."
        assert (await host.admin.state())["configuration"] == [CHANGE]
        assert (await host.admin.status())["waiting_changes"] == ["gh: command has changed"]
        host.control.set_waiting_changes([])
        assert (await host.admin.state())["configuration"] == []


async def test_a_reload_that_leaves_what_waits_as_it_is_does_not_show_it_again() -> None:
    async with opened() as host:
        before = host.admin.versions()
        host.world.journal.note(ConfigReloaded("nothing has changed", accepted=True))
        assert host.admin.versions()["configuration"] == before["configuration"]
        assert host.admin.versions()["problems"] > before["problems"]


async def test_a_mistake_in_the_configuration_file_is_a_problem_until_it_is_mended() -> None:
    async with opened() as host:
        for mistake, shown in (
            ("line 1: no", ["the configuration file has a mistake and is not applied: line 1: no"]),
            ("", []),
        ):
            before = host.admin.versions()
            host.control.set_file_problem(mistake)
            assert host.admin.versions()["problems"] > before["problems"]
            assert (await host.admin.state())["problems"] == shown


async def test_the_standard_error_of_a_server_is_shown_from_a_line_on() -> None:
    async with opened() as host:
        for line in ("first", "second"):
            host.world.journal.note(OutputLine("gh", line))
        host.world.journal.note(OutputLine("other", "no"))
        log = run_inline(host.admin.server_log("gh", 0))["lines"]
        assert [each["line"] for each in log] == ["first", "second"]
        assert run_inline(host.admin.server_log("gh", log[0]["n"]))["lines"] == log[1:]
        for number in range(MAX_OUTPUT_LINES + 1):
            host.world.journal.note(OutputLine("gh", str(number)))
        assert len(run_inline(host.admin.server_log("gh", 0))["lines"]) == MAX_OUTPUT_LINES


# Logins


async def test_a_login_is_opened_by_the_console_with_what_it_is_for() -> None:
    async with open_issuer() as issuer, opened_desk(stored=login(issuer, issuer="https://former.example")) as desk:
        notes = Protected(desk.process.of(issuer))
        async with open_world(notes, server(), credentials=desk.process.credentials, logins=desk.logins) as world:
            await world.settled()
            admin = admin_of(world)
            issuer.challenge = 'Bearer scope="read write"'
            opened = await admin.run_steps(admin.login("notes", Channel.CONSOLE))
            assert opened["link"].startswith("http://127.0.0.1:")
            assert opened["redirect"] == opened["link"].partition("/oauth/")[0] + "/oauth/callback"
            assert (opened["issuer"], opened["resource"]) == (issuer.id, issuer.url)
            assert (opened["scopes"], opened["former_issuer"]) == (["read", "write"], "https://former.example")
            assert not issuer.paths("/register")
            conforms("POST", "/api/v1/servers/login", 200, opened)
            assert (await admin.run_steps(admin.login("notes", Channel.CONSOLE)))["link"] == opened["link"]
            with pytest.raises(AdminError, match="gh is a program"):
                await admin.run_steps(admin.login("gh", Channel.CONSOLE))


async def test_a_login_that_cannot_be_is_told_and_shown() -> None:
    async with open_issuer() as issuer, opened_desk() as desk:
        del issuer.documents[ISSUER_METADATA]["code_challenge_methods_supported"]
        notes = Protected(desk.process.of(issuer))
        async with open_world(notes, credentials=desk.process.credentials, logins=desk.logins) as world:
            await world.settled()
            admin = admin_of(world)
            assert (await admin.state())["servers"][0]["login_failed"] == ""
            with pytest.raises(AdminError, match=r"notes: .*PKCE"):
                await admin.run_steps(admin.login("notes", Channel.CONSOLE))
            await wait_all_tasks_blocked()
            (row,) = (await admin.state())["servers"]
            assert (row["state"], "PKCE" in row["login_failed"]) == ("needs login", True)


async def test_a_disabled_server_has_no_login() -> None:
    async with opened_desk() as desk:
        notes = Protected(desk.process.of(NOWHERE))
        notes.spec = replace(notes.spec, disabled=True)
        async with open_world(notes, credentials=desk.process.credentials, logins=desk.logins) as world:
            admin = admin_of(world)
            with pytest.raises(AdminError, match="notes is disabled"):
                await admin.run_steps(admin.login("notes", Channel.CONSOLE))
