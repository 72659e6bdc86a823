"""Decisions of a person about a running host, and their effect."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import AskSpec, Channel, Check, Condition, Consent, KindConsent, Rule, Trust
from config.views import ArgumentOverride, Override, ViewSpec
from host.admin.schema import AdminError
from host.journal import (
    MAX_OUTPUT_LINES,
    OutputLine,
)
from host.policy.confirmations import MAX_CONFIRMABLE_BYTES
from host.subject import Item
from tests.host.admin.opened_host import admin_of, opened, server
from tests.host.upstream.test_open_logins import NOWHERE
from tests.host.upstream.test_open_logins import opened as opened_desk
from tests.host.upstream.test_supervised import Protected
from tests.kit.awaited import awaited
from tests.kit.issuer import ISSUER_METADATA, open_issuer
from tests.kit.logins import login
from tests.kit.openapi import conforms
from tests.kit.world import open_world, tool


@pytest.mark.parametrize("answer", ["once", "session", "time", "always"])
async def test_every_answer_lets_the_call_pass_and_what_lasts_is_shown(answer: str) -> None:
    async with opened() as host:
        call, question = await host.asked()
        seconds = 60 if answer == "time" else None
        awaited(host.admin.answer(question["id"], answer, seconds, {"owner": {"in": ["acme"]}}, Channel.CONSOLE))
        assert "isError" not in await call.comes()
        grants = (await host.admin.reader.state())["grants"]
        assert [each["scope"] for each in grants] == ([] if answer == "once" else [answer])
        for each in grants:
            assert each["live"]
            assert each["arguments"].startswith("when ")
            assert "acme" in each["arguments"]
            assert (await host.admin.revoke(each["id"], Channel.CONSOLE))["done"]
            with pytest.raises(AdminError):
                await host.admin.revoke(each["id"], Channel.CONSOLE)
        assert (await host.admin.reader.state())["grants"] == []


async def test_no_is_told_to_the_caller() -> None:
    async with opened() as host:
        call, question = await host.asked()
        awaited(host.admin.answer(question["id"], "deny", None, "exact", Channel.CONSOLE))
        assert "a person said no" in json.dumps(await call.comes())
        with pytest.raises(AdminError, match="no longer pending"):
            awaited(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))


async def test_a_channel_that_the_configuration_does_not_name_answers_nothing() -> None:
    async with opened(ask=AskSpec((Channel.CONSOLE,))) as host:
        call, question = await host.asked()
        with pytest.raises(AdminError, match=r"ask\.answers"):
            awaited(host.admin.answer(question["id"], "once", None, "exact", Channel.TERMINAL))
        assert not call.done


@pytest.mark.parametrize("conditions", [{"owner": {"nonsense": 1}}, {"owner": {}}, {"": {"in": []}}])
async def test_conditions_that_cannot_be_read_allow_nothing(conditions: dict[str, Any]) -> None:
    async with opened() as host:
        call, question = await host.asked()
        with pytest.raises(AdminError):
            awaited(host.admin.answer(question["id"], "always", None, conditions, Channel.CONSOLE))
        assert (call.done, (await host.admin.reader.state())["grants"]) == (False, [])


async def test_the_longest_arguments_that_a_person_can_agree_to_are_shown_in_full() -> None:
    async with opened() as host:
        given = {"owner": "a" * (MAX_CONFIRMABLE_BYTES - len(json.dumps({"owner": ""})))}
        call, question = await host.asked(given)
        assert given["owner"] in question["arguments"]
        awaited(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))
        assert "isError" not in await call.comes()


async def test_an_entry_is_explained_by_the_name_that_the_page_shows() -> None:
    async with opened(server(tools=["get_\u202ex"])) as host:
        shown = [each["name"] for each in (await host.admin.reader.state())["catalog"]]
        assert "get_⟨U+202E⟩x" in shown
        explained = awaited(host.admin.explain(Item("gh", "tool", "get_⟨U+202E⟩x"), None))
        assert (explained["verdict"], explained["rule"]) == ("allow", "tools.allow: get_*")
        with pytest.raises(AdminError, match="has no tool"):
            awaited(host.admin.explain(Item("gh", "tool", "get_x"), None))


async def test_the_explanation_says_why_an_entry_is_left_out() -> None:
    views = {
        "broken": ViewSpec(overrides={"gh": {"create": Override(arguments={"path": ArgumentOverride(hidden=True)})}}),
        "equal": ViewSpec(overrides={"gh": {"create": Override(name="get_x")}}),
    }
    equal = "more than one is called gh__get_x here"
    async with opened(views=views) as host:
        for name, view, why in (
            ("create", "broken", "its override cannot be applied exactly: "),
            ("get_x", "broken", ""),
            ("create", "equal", equal),
            ("get_x", "equal", equal),
            ("create", "", ""),
            ("wipe", "equal", ""),  # denied, which is said instead
        ):
            explained = awaited(host.admin.explain(Item("gh", "tool", name), None, None, view))
            said = f"The tool {name} of gh is left out of the view {view}: {why}"
            assert explained["sentence"].startswith(said) is bool(why), (name, view)
            assert explained["shown"] is (name != "wipe" and not why)


async def test_two_names_that_look_alike_are_not_explained() -> None:
    async with opened(server(tools=["get_⟨U+202E⟩", "get_\u202e"])) as host:
        with pytest.raises(AdminError, match="several names look like this one"):
            awaited(host.admin.explain(Item("gh", "tool", "get_⟨U+202E⟩"), None))


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
        ids = [each["id"] for each in (await host.admin.reader.state())["confirmations"]]
        later, question = await host.asked({"owner": "later"})
        with pytest.raises(AdminError, match="none of these"):
            awaited(host.admin.deny_all("other", ids, Channel.CONSOLE))
        done = awaited(host.admin.deny_all("gh", [*ids, "feedbeef"], Channel.CONSOLE))["done"]
        assert done == "2 confirmations of gh: denied."
        for call in calls:
            assert "a person said no" in json.dumps(await call.comes())
        assert [each["id"] for each in (await host.admin.reader.state())["confirmations"]] == [question["id"]]
        assert not later.done
        with pytest.raises(AdminError, match="none of these"):
            awaited(host.admin.deny_all("gh", ids, Channel.CONSOLE))


async def test_a_channel_that_may_not_answer_denies_nothing() -> None:
    async with opened(ask=AskSpec((Channel.CONSOLE,))) as host:
        _, question = await host.asked()
        with pytest.raises(AdminError, match=r"ask\.answers"):
            awaited(host.admin.deny_all("gh", [question["id"]], Channel.TERMINAL))
        assert len((await host.admin.reader.state())["confirmations"]) == 1


async def test_a_refused_question_stays_and_can_be_granted_for_the_next_call(autojump_clock: MockClock) -> None:
    async with opened() as host:
        call, question = await host.asked()
        await trio.sleep(60)
        assert (await call.comes())["isError"]
        (refused,) = (await host.admin.reader.state())["confirmations"]
        assert (refused["id"], refused["state"], refused["waiting"]) == (question["id"], "refused", 0)
        said = awaited(host.admin.answer(question["id"], "once", None, "exact", Channel.CONSOLE))["done"]
        assert "the next call like it passes" in said


async def test_what_is_held_back_is_shown_in_full_and_approved_as_it_was_shown() -> None:
    async with opened(server(tools=[tool("create", description="evil\u202e")], trust=Trust.UNTRUSTED)) as host:
        (held,) = [each for each in (await host.admin.reader.state())["held"] if each["kind"] == "tool"]
        assert (held["standing"], held["rejected"]) == ("new", False)
        assert "evil⟨U+202E⟩" in held["text"]
        assert (await host.admin.reader.state())["catalog"][0]["shown"] is False
        what = Item("gh", "tool", "create")
        with pytest.raises(AdminError):
            awaited(host.admin.decide(what, "sha256:another", "approve", Channel.CONSOLE))
        awaited(host.admin.decide(what, held["fingerprint"], "reject", Channel.CONSOLE))
        assert (await host.admin.reader.state())["held"][0]["rejected"]
        awaited(host.admin.decide(what, held["fingerprint"], "approve", Channel.CONSOLE))
        assert (await host.admin.reader.state())["held"] == []
        assert (await host.admin.reader.state())["catalog"][0]["shown"] is True


async def test_without_a_console_there_is_no_link() -> None:
    async with opened() as host:
        with pytest.raises(AdminError):
            host.admin.console_url()
        host.admin.new_console_url = lambda confirmation, life: "http://127.0.0.1:1/console#x"
        assert host.admin.console_url() == "http://127.0.0.1:1/console#x"


async def test_a_person_controls_the_servers_of_a_host() -> None:
    async with opened() as host:
        assert "it restarts" in awaited(host.admin.control("gh", "restart"))["done"]
        assert "it is disabled until" in awaited(host.admin.control("gh", "disable"))["done"]
        with pytest.raises(AdminError, match="gh is enabled already"):
            awaited(host.admin.control("gh", "enable"))
        with pytest.raises(AdminError, match="no server 'ghx' in the configuration; did you mean gh"):
            awaited(host.admin.control("ghx", "restart"))
        assert host.control.done == [("restart", "gh"), ("set_disabled", "gh", True)]


async def test_nothing_is_installed_for_a_server_at_a_url() -> None:
    async with opened() as host:
        with pytest.raises(AdminError, match="gh is no program that is started here"):
            awaited(host.admin.control("gh", "install"))
        assert host.control.done == []


async def test_a_reload_says_what_came_of_it() -> None:
    async with opened() as host:
        said = await host.admin.reload(apply=True, shown="c1")
        assert (said["done"], host.control.done) == ("configuration read again: gh restarts.", [("reload", "c1")])
        host.control.accepts = False
        for apply in (True, False):
            with pytest.raises(AdminError, match="configuration kept: line 1: no"):
                await host.admin.reload(apply=apply, shown=None)
        host.control.accepts, host.control.complete = True, False
        with pytest.raises(AdminError, match="configuration read again: gh restarts"):
            await host.admin.reload(apply=True, shown=None)


async def test_the_standard_error_of_a_server_is_shown_from_a_line_on() -> None:
    async with opened() as host:
        for line in ("first", "second"):
            host.world.journal.note(OutputLine("gh", line))
        host.world.journal.note(OutputLine("other", "no"))
        log = awaited(host.admin.server_log("gh", 0))["lines"]
        assert [each["line"] for each in log] == ["first", "second"]
        assert awaited(host.admin.server_log("gh", log[0]["n"]))["lines"] == log[1:]
        for number in range(MAX_OUTPUT_LINES + 1):
            host.world.journal.note(OutputLine("gh", str(number)))
        assert len(awaited(host.admin.server_log("gh", 0))["lines"]) == MAX_OUTPUT_LINES


async def test_a_login_is_opened_by_the_console_with_what_it_is_for() -> None:
    async with open_issuer() as issuer, opened_desk(stored=login(issuer, issuer="https://former.example")) as desk:
        notes = Protected(desk.process.of(issuer))
        async with open_world(notes, server(), credentials=desk.process.credentials, logins=desk.logins) as world:
            await world.settled()
            admin = admin_of(world)
            issuer.challenge = 'Bearer scope="read write"'
            opened = await admin.login("notes", Channel.CONSOLE)
            assert opened["link"].startswith("http://127.0.0.1:")
            assert opened["redirect"] == opened["link"].partition("/oauth/")[0] + "/oauth/callback"
            assert (opened["issuer"], opened["resource"]) == (issuer.id, issuer.url)
            assert (opened["scopes"], opened["former_issuer"]) == (["read", "write"], "https://former.example")
            assert not issuer.paths("/register")
            conforms("POST", "/api/v1/servers/login", 200, opened)
            assert (await admin.login("notes", Channel.CONSOLE))["link"] == opened["link"]
            with pytest.raises(AdminError, match="gh is a program"):
                await admin.login("gh", Channel.CONSOLE)


async def test_a_login_that_cannot_be_is_told_and_shown() -> None:
    async with open_issuer() as issuer, opened_desk() as desk:
        del issuer.documents[ISSUER_METADATA]["code_challenge_methods_supported"]
        notes = Protected(desk.process.of(issuer))
        async with open_world(notes, credentials=desk.process.credentials, logins=desk.logins) as world:
            await world.settled()
            admin = admin_of(world)
            assert (await admin.reader.state())["servers"][0]["login_failed"] == ""
            with pytest.raises(AdminError, match=r"notes: .*PKCE"):
                await admin.login("notes", Channel.CONSOLE)
            await wait_all_tasks_blocked()
            (row,) = (await admin.reader.state())["servers"]
            assert (row["state"], "PKCE" in row["login_failed"]) == ("needs login", True)


async def test_a_disabled_server_has_no_login() -> None:
    async with opened_desk() as desk:
        notes = Protected(desk.process.of(NOWHERE))
        notes.spec = replace(notes.spec, disabled=True)
        async with open_world(notes, credentials=desk.process.credentials, logins=desk.logins) as world:
            admin = admin_of(world)
            with pytest.raises(AdminError, match="notes is disabled"):
                await admin.login("notes", Channel.CONSOLE)
