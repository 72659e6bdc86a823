"""What a reload takes over, what it lets wait for a person, and what stays when the file is wrong."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from msgspec import Raw

from config import Config, Listen, Secret, StdioServer, ViewServer, load
from host.admin.status import server_status
from host.client_process import ClientProcess
from host.journal import ConfigReloaded, Event
from host.live_config import LiveConfig
from host.source import Endpoint
from tests.kit.world import Refusal, ScriptedClient, ScriptedServer, World, open_world

HEAD = "servers:\n"
PROGRAM = "  gh:\n    command: [/bin/true]\n"
ONE_TOOL = "    consent: {tools: {allow: [one]}}\n"
BOTH = "    consent: {tools: {allow: [one, two]}}\n"


def save(file: Path, text: str) -> None:
    file.write_text(text)


@asynccontextmanager
async def opened(
    file: Path, text: str, tools: Sequence[str] = ("one", "two")
) -> AsyncIterator[tuple[World, LiveConfig]]:
    """A host of the file, whose server `gh` offers these tools."""
    save(file, text)
    config = load(file)

    async def answer(params: dict[str, object]) -> object:
        return {"content": []}

    scripted = ScriptedServer("gh", tools=[*tools], answers={"tools/call": answer})
    scripted.spec = replace(scripted.spec, consent=config.servers["gh"].consent)
    async with open_world(scripted) as world:
        await world.settled()
        yield world, LiveConfig(config, world.runtime, world.upstreams, world.memory, stdio=True)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOKEN", "ACCOUNT", "FAR", "LATER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "colonnade.yaml"


async def shown(world: World) -> list[str]:
    return await (await world.client()).names()


async def test_a_person_has_other_rules_taken_over_without_a_restart(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        assert await shown(world) == ["gh__one"]
        save(file, HEAD + PROGRAM + BOTH)
        outcome = await live.reload()
        assert (str(outcome), outcome.failed) == ("configuration read again: gh has new rules or limits", False)
        assert await shown(world) == ["gh__one", "gh__two"]
        assert (world.servers["gh"].connections, live.config, live.waiting_changes) == (1, load(file), [])


async def test_a_file_with_a_mistake_changes_nothing_until_it_is_right_again(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        before = live.config
        save(file, HEAD + "  gh: {}\n")
        assert (await live.reload()).failed
        assert "gh" in live.file_problem
        assert live.config is before
        assert await live.compare() is not None
        save(file, HEAD + PROGRAM + ONE_TOOL)
        assert not (await live.reload(by_person=False)).failed
        assert live.file_problem == ""
        assert await shown(world) == ["gh__one"]


async def test_a_file_is_wrong_with_the_address_that_the_command_line_gave(file: Path) -> None:
    with_tokens = "listen: {auth: {tokens: {t: 0123456789abcdef}}}\n"
    async with opened(file, with_tokens + HEAD + PROGRAM + BOTH) as (_, live):
        live.config = load(file, given_address=("0.0.0.0", 9))
        for top, problem in (
            ("", "0.0.0.0 (--host) is open to other machines"),
            (f"{with_tokens[:-2]}, metrics: '127.0.0.1:9'}}\n", "listen.metrics: --port has this port"),
        ):
            save(file, top + HEAD + PROGRAM + BOTH)
            assert (await live.reload()).failed
            assert problem in live.file_problem
        assert live.config.listen.tokens


async def test_what_widens_in_a_saved_file_waits_for_the_person_who_has_seen_it(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        save(file, HEAD + PROGRAM + BOTH)
        outcome = await live.reload(by_person=False)
        assert len(outcome.waiting) == 1
        assert await shown(world) == ["gh__one"]
        (change,) = live.waiting_changes
        assert change["server"] == "gh"
        again = await live.reload(by_person=False)
        assert (again.changes, live.waiting_changes) == ("nothing has changed", [change])
        save(file, HEAD + PROGRAM + BOTH + "    timeout: 7s\n")
        assert "not the one whose changes were shown" in str(await live.reload(shown=change["id"]))
        assert await shown(world) == ["gh__one"]
        (other,) = live.waiting_changes
        assert not (await live.reload(shown=other["id"])).failed
        assert await shown(world) == ["gh__one", "gh__two"]
        assert live.waiting_changes == []


async def test_to_keep_more_of_calls_waits_and_to_keep_less_does_not(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + BOTH) as (world, live):
        log = world.gate.decision_log
        waits = ("history.arguments: more is kept of arguments and results",)
        for kept, waiting in (("redacted", waits), ("full", waits), ("redacted", ()), (None, ())):
            before = log.contents
            more = f"history: {{arguments: {kept}}}\n" if kept else ""
            save(file, more + HEAD + PROGRAM + BOTH)
            assert (await live.reload(by_person=False)).waiting == waiting
            assert (log.contents is not None) is (before is not None if waiting else kept is not None)
            assert not (await live.reload()).failed
            found = None if log.contents is None else log.contents.of(Raw(b'{"token":"x"}'))
            assert found == {
                None: None, "redacted": {"redacted": '{"token":"***"}'}, "full": {"json": '{"token":"x"}'}
            }[kept]  # fmt: skip


async def test_another_prefix_waits_and_then_names_the_entries_anew(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + BOTH) as (world, live), trio.open_nursery() as nursery:
        client = await world.client()
        assert await client.names() == ["gh__one", "gh__two"]
        nursery.start_soon(client.listen_changes)
        save(file, HEAD + PROGRAM + BOTH + "    prefix: g\n")
        assert (await live.reload(by_person=False)).waiting == ("gh: prefix has changed",)
        assert await client.names() == ["gh__one", "gh__two"]
        await live.reload()
        await world.settled()
        assert await client.names() == ["g__one", "g__two"]
        with trio.fail_after(5):
            while not client.notifications_of("notifications/tools/list_changed"):  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.01)
        with pytest.raises(Refusal, match="Unknown tool: gh__one"):
            await client.call("gh__one")
        assert await client.call("g__one") == {"content": []}
        at_its_own = await world.client("gh")
        assert await at_its_own.names() == ["one", "two"]
        nursery.cancel_scope.cancel()


async def test_a_saved_view_offers_less_at_once_and_more_when_a_person_says_so(file: Path) -> None:
    few = "views: {few: {servers: {gh: {tools: ['o*']}}}}\ndefault_view: few\n"
    more = few.replace("'o*'", "one, two")
    async with opened(file, HEAD + PROGRAM + BOTH) as (_, live):
        save(file, few + HEAD + PROGRAM + BOTH)
        outcome = await live.reload(by_person=False)
        assert (outcome.changes, outcome.waiting) == ("views has changed; default_view has changed", ())
        save(file, more + HEAD + PROGRAM + BOTH)
        outcome = await live.reload(by_person=False)
        assert outcome.waiting == ("views.few would offer more to callers that no view names",)
        assert live.config.views["few"].part("gh") == ViewServer(("o*",))
        (change,) = live.waiting_changes
        assert change["server"] == ""
        assert "o*" in "".join(piece["text"] for piece in change["diff"])
        await live.reload(shown=change["id"])
        assert (live.config.views, live.waiting_changes) == (load(file).views, [])


async def test_the_first_of_saved_views_that_name_a_caller_is_the_one_at_the_address_of_all_servers(file: Path) -> None:
    top = "listen: {auth: {tokens: {t: 0123456789abcdef}}}\ncallers: {c: {token: t}}\n"
    views = ["a: {callers: c, servers: {gh: {tools: one}}}", "b: {callers: c}"]
    async with opened(file, f"{top}views: {{{', '.join(views)}}}\n{HEAD}{PROGRAM}{BOTH}") as (world, live):
        save(file, f"{top}views: {{{', '.join(reversed(views))}}}\n{HEAD}{PROGRAM}{BOTH}")
        assert (await live.reload(by_person=False)).changes == "views has changed"
        assert world.gate.policies.views.addresses.at("t", "") == Endpoint(view="b")


async def test_clients_of_a_view_are_offered_what_the_file_says_of_it_now(file: Path) -> None:
    one = "views: {v: {servers: {gh: {tools: [one]}}}}\n"
    async with opened(file, one + HEAD + PROGRAM + BOTH) as (world, live):
        await live.reload()
        client, other = await world.client(Endpoint(view="v")), await world.client()
        assert await client.names() == ["gh__one"]
        save(file, one.replace("one", "two") + HEAD + PROGRAM + BOTH)
        await live.reload()
        assert await client.names() == ["gh__two"]
        assert await other.names() == ["gh__one", "gh__two"]
        assert await (await world.client("gh")).names() == ["one", "two"]
        with pytest.raises(Refusal, match="Unknown tool: gh__one"):
            await client.call("gh__one")
        save(file, HEAD + PROGRAM + BOTH)
        await live.reload()
        assert await client.names() == []


async def test_another_limit_cuts_the_names_of_all_servers_when_it_is_saved(file: Path) -> None:
    text = HEAD + PROGRAM + "    consent: {tools: ask}\n"
    async with opened(file, text, tools=["one", "two_" * 12]) as (world, live):
        client = await world.client()
        assert await client.names() == ["gh__one", f"gh__{'two_' * 12}"]
        save(file, "names: {limit: 48}\n" + text)
        outcome = await live.reload(by_person=False)
        assert (outcome.waiting, str(outcome)) == ((), "configuration read again: gh restarts")
        await world.settled()
        one, cut = await client.names()
        assert (one, len(cut), cut[:12]) == ("gh__one", 48, "gh__two_two_")
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call(f"gh__{'two_' * 12}")


async def test_to_compare_shows_what_waits_and_changes_nothing(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        save(file, HEAD + PROGRAM + BOTH)
        assert await live.compare() is None
        assert [each["server"] for each in live.waiting_changes] == ["gh"]
        assert await shown(world) == ["gh__one"]


async def test_the_next_host_has_no_server_that_a_person_has_taken_in_here(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (_, live):
        live.set_disabled("gh", disabled=True)
        assert live.for_next_host() is not None
        save(file, f"{HEAD}{PROGRAM}    disabled: true\n{ONE_TOOL}")
        await live.reload()
        found = live.for_next_host()
        assert found is not None
        assert found.files == live.files
        live.set_disabled("gh", disabled=False)
        assert live.for_next_host() is None
        live.set_disabled("gh", disabled=True)
        assert live.for_next_host() is not None


async def test_a_server_is_left_out_until_a_person_has_the_file_read_again(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        live.set_disabled("gh", disabled=True)
        assert await shown(world) == []
        assert live.config.servers["gh"].disabled
        save(file, HEAD + PROGRAM + ONE_TOOL + "# saved\n")
        await live.reload(by_person=False)
        assert live.config.servers["gh"].disabled, "to take it in again widens"
        await live.reload()
        await world.settled()
        assert await shown(world) == ["gh__one"]
        assert world.servers["gh"].connections == 2
        live.restart("gh")
        await world.settled()
        assert world.servers["gh"].connections == 3


@pytest.mark.parametrize(("command", "connections"), [("colonnade, serve, --stdio, x.yaml", 2), ("/bin/true", 1)])
async def test_links_are_restarted_together(file: Path, command: str, connections: int) -> None:
    async with opened(file, f"{HEAD}  gh:\n    command: [{command}]\n{BOTH}") as (world, live):
        live.restart_links()
        await world.settled()
        assert world.servers["gh"].connections == connections


async def test_the_endpoint_hears_which_tokens_hold_now_and_later(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (_, live):
        heard: list[Config] = []
        live.follow(heard.append)
        save(file, HEAD + PROGRAM + BOTH)
        await live.reload()
        assert [each.listen for each in heard] == [Listen(), Listen()]
        assert heard[-1] is live.config


async def test_each_reload_that_read_the_file_is_in_the_journal(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        events: list[Event] = []
        world.journal.subscribe(events.append)
        outcome = await live.reload()
        save(file, "servers: 1\n")
        rejected = await live.reload()
        assert [each for each in events if isinstance(each, ConfigReloaded)] == [outcome, rejected]


async def test_who_shows_what_waits_hears_of_it_each_time_it_is_set_and_of_other_mistakes(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (_, live):
        heard: list[str] = []
        live.subscribe(lambda: heard.append("changes"), lambda: heard.append("problem"))
        wanted: list[str] = []

        async def after(text: str, *more: str) -> None:
            save(file, text)
            await live.reload(by_person=False)
            wanted.extend(more)
            assert heard == wanted

        await after(HEAD + PROGRAM + BOTH, "changes")
        await after(HEAD + PROGRAM + BOTH + "# a comment\n")
        await after("servers: 1\n", "problem")
        await after("servers: 1\n")
        await after(HEAD + PROGRAM + BOTH, "problem", "changes")
        await live.compare()
        assert heard == [*wanted, "changes"]


WAITING = """\
servers:
  gh:
    command: [/bin/true]
    env: {TOKEN: "${env:TOKEN}", ACCOUNT: "${env:ACCOUNT:-main}"}
  notes:
    command: [/bin/true]
"""
SECRET = "value-of-a-client"


@asynccontextmanager
async def in_background(file: Path, text: str = WAITING) -> AsyncIterator[tuple[World, LiveConfig, Programs]]:
    """A host in the background of the file, whose servers `gh` and `notes` offer the tool `one` and answer it with
    their name; and its clients."""
    save(file, text)
    config = load(file, {}, in_background=True)

    def scripted(id: str) -> ScriptedServer:
        async def answer(params: dict[str, object]) -> object:
            return {"content": [{"type": "text", "text": id}]}

        server = ScriptedServer(id, tools=["one"], answers={"tools/call": answer})
        server.spec = replace(config.servers[id])  # type: ignore[assignment]
        return server

    async with open_world(*map(scripted, config.servers)) as world:
        live = LiveConfig(config, world.runtime, world.upstreams, world.memory)
        programs = Programs(live)
        yield world, live, programs
        await programs.leave()


class Programs:
    """Clients that hand over variables, until they leave."""

    def __init__(self, live: LiveConfig) -> None:
        self._live = live
        self._stays = AsyncExitStack()

    async def come(self, is_command: bool = False, /, **environment: str) -> ClientProcess:
        process = ClientProcess("claude", 7, "/w", environment, is_command)
        await self._stays.enter_async_context(self._live.adopt_environment(process))
        return process

    async def leave(self) -> None:
        """All of them."""
        await self._stays.aclose()


async def said(client: ScriptedClient, server: str) -> tuple[bool, str]:
    """Whether a call of the server failed, and its text."""
    result = await client.call(f"{server}__one")
    return result.get("isError", False), result["content"][0]["text"]


def token(live: LiveConfig, name: str = "TOKEN") -> str:
    spec = live.config.servers["gh"]
    assert isinstance(spec, StdioServer)
    return spec.env[name].reveal()


async def test_a_missing_variable_stops_one_server_until_a_client_has_it(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        without = await world.client(process=await programs.come())
        with trio.fail_after(5):
            assert await shown(world) == ["notes__one"]
        assert await said(without, "notes") == (False, "notes")
        failed, text = await said(without, "gh")
        assert failed
        assert "the environment variable TOKEN is not set; start the client with it" in text
        assert "--own" in text
        row = server_status(world.upstreams.by_id["gh"], world.catalog, world.journal)
        assert (row["state"], row["detail"]) == ("failed", live.config.servers["gh"].problem)
        first = await programs.come(TOKEN=SECRET, OTHER="o")
        assert first.refused == {}
        await world.settled()
        assert await shown(world) == ["gh__one", "notes__one"]
        for client in (without, await world.client(process=first)):
            assert await said(client, "gh") == (False, "gh")
        assert (world.servers["gh"].connections, world.servers["notes"].connections) == (1, 1)
        assert (token(live), token(live, "ACCOUNT")) == (SECRET, "main")
        assert live.config.handed_over == {"TOKEN": Secret(SECRET)}
        # It is kept in memory alone, where nothing shows it.
        shown_somewhere = (repr(live.config), repr(first), *map(str, world.events), *map(repr, world.events))
        assert not [each for each in shown_somewhere if SECRET in each]
        assert "TOKEN" not in os.environ


async def test_a_client_with_another_value_is_refused_by_that_server_alone(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        first = await world.client(process=await programs.come(TOKEN=SECRET))
        other = await world.client(process=await programs.come(TOKEN="another"))
        await world.settled()
        assert await said(first, "gh") == (False, "gh")
        assert await said(other, "notes") == (False, "notes")
        assert await other.names() == ["gh__one", "notes__one"]
        failed, text = await said(other, "gh")
        assert failed
        assert text == (
            "gh runs with another value of the environment variable TOKEN than this client has: start the client with "
            "the same value, or serve it alone with colonnade serve --stdio --own"
        )
        assert token(live) == SECRET, "the first value holds"
        assert world.servers["gh"].connections == 1


async def test_a_command_of_the_owner_uses_servers_whatever_their_values(file: Path) -> None:
    """And gives them its own where they have none."""
    async with in_background(file) as (world, live, programs):
        await programs.come(TOKEN=SECRET)
        process = await programs.come(True, TOKEN="another", LATER="l")
        command = await world.client(process=process)
        await world.settled()
        assert await said(command, "gh") == (False, "gh")
        assert (token(live), process.refused) == (SECRET, {})


async def test_values_and_refusals_outlast_a_reload(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        first, other = await programs.come(TOKEN=SECRET), await programs.come(TOKEN="another")
        await world.settled()
        save(file, WAITING + "    timeout: 7s\n")
        assert str(await live.reload(by_person=False)) == "configuration read again: notes restarts"
        assert (token(live), world.servers["gh"].connections) == (SECRET, 1)
        assert (first.refused, other.refused) == ({}, {"gh": "TOKEN"})
        # Once the file names no variable of it any more, it serves both; then another one, which the second has.
        save(file, WAITING.replace("${env:TOKEN}", "t"))
        assert not (await live.reload()).failed
        assert (first.refused, other.refused) == ({}, {})
        later = await programs.come(LATER="l")
        save(file, WAITING.replace("TOKEN}", "LATER}"))
        assert not (await live.reload()).failed
        assert token(live) == "l"
        assert later.refused == {}
        await world.settled()
        assert live.config.servers["gh"].problem == ""


async def test_a_value_takes_over_nothing_else_that_the_file_has(file: Path) -> None:
    """A server whose own change waits for a person waits on; and so does a new server."""
    async with in_background(file) as (world, live, programs):
        save(file, WAITING.replace("/bin/true", "/bin/false") + "  new: {command: x}\n")
        await programs.come(TOKEN=SECRET)
        assert live.config.servers["gh"].problem, "its command is another one"
        assert list(live.config.servers) == ["gh", "notes"]
        assert world.servers["gh"].connections == 0
        await live.reload(by_person=False)
        assert {each["server"] for each in live.waiting_changes} == {"gh", "notes", "new"}
        assert world.servers["gh"].connections == 0
        save(file, WAITING)
        await live.reload(by_person=False)
        assert world.servers["gh"].connections == 0, "it can be used again: a person says so"
        (change,) = live.waiting_changes
        assert not (await live.reload(shown=change["id"])).failed
        await world.settled()
        assert (token(live), world.servers["gh"].connections) == (SECRET, 1)


async def test_what_waits_for_a_person_keeps_waiting_when_a_value_comes(file: Path) -> None:
    async with in_background(file, WAITING + "    limits: {calls: 1/min}\n") as (world, live, programs):
        save(file, WAITING)
        await live.reload(by_person=False)
        (before,) = live.waiting_changes
        await programs.come(TOKEN=SECRET)
        await world.settled()
        assert world.servers["gh"].connections == 1
        (after,) = live.waiting_changes
        assert (before["server"], after["server"]) == ("notes", "notes")
        assert not (await live.reload(shown=after["id"])).failed
        assert (token(live), live.waiting_changes) == (SECRET, [])


async def test_a_default_gives_way_to_the_first_value(file: Path) -> None:
    async with in_background(file, WAITING.replace("${env:TOKEN}", "t")) as (world, live, programs):
        await world.settled()
        assert token(live, "ACCOUNT") == "main"
        await programs.come(ACCOUNT="mine")
        await world.settled()
        assert (token(live, "ACCOUNT"), world.servers["gh"].connections) == ("mine", 2)
        assert world.servers["notes"].connections == 1


async def test_no_server_gets_values_of_two_clients_that_differ(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        await programs.come(ACCOUNT="mine")
        other = await programs.come(ACCOUNT="theirs", TOKEN=SECRET)
        assert (live.config.servers["gh"].waits_for, other.refused) == (("TOKEN",), {"gh": "ACCOUNT"})
        await programs.come(ACCOUNT="mine", TOKEN="t")
        await world.settled()
        assert token(live) == "t"


async def test_a_value_that_cannot_be_used_is_left_out(file: Path) -> None:
    text = WAITING + '  far: {url: "${env:FAR}/mcp", disabled: true}\n'
    async with in_background(file, text) as (world, live, programs):
        await programs.come(FAR="no address", TOKEN=SECRET)
        await world.settled()
        assert token(live) == SECRET
        assert live.config.servers["far"].waits_for == ("FAR",)
        assert not (await live.reload()).failed
        await programs.come(FAR="https://example.com")
        assert live.config.servers["far"].problem == ""


async def test_while_the_file_is_wrong_a_server_waits_until_it_is_right(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        save(file, "servers: 1\n")
        process = await programs.come(TOKEN=SECRET)
        assert live.config.servers["gh"].waits_for == ("TOKEN",)
        save(file, WAITING)
        assert not (await live.reload(by_person=False)).failed
        await world.settled()
        assert (token(live), process.refused) == (SECRET, {})


async def test_a_server_that_a_person_left_out_stays_out(file: Path) -> None:
    async with in_background(file) as (world, live, programs):
        live.set_disabled("gh", disabled=True)
        await programs.come(TOKEN=SECRET)
        assert (live.config.servers["gh"].disabled, live.config.servers["gh"].problem) == (True, "")
        assert world.servers["gh"].connections == 0


async def test_a_value_holds_as_long_as_a_client_has_it(file: Path) -> None:
    """A key that was changed at its service reaches the server when the client starts again, and others are gone."""
    async with in_background(file) as (world, live, programs):
        await programs.come(TOKEN=SECRET)
        await programs.leave()
        await programs.come()
        await world.settled()
        assert (token(live), world.servers["gh"].connections) == (SECRET, 1)
        same = await programs.come(TOKEN=SECRET)
        other = await programs.come(TOKEN="new")
        assert (same.refused, other.refused, token(live)) == ({}, {"gh": "TOKEN"}, SECRET)
        await programs.leave()
        again = await programs.come(TOKEN="new")
        await world.settled()
        assert (again.refused, token(live), world.servers["gh"].connections) == ({}, "new", 2)
