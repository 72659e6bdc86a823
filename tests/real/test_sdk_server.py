"""A server made with the official SDK behind the real host: once as a program, once over Streamable HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from mcp import MCPError
from mcp.client import Client
from mcp.types import PromptReference, ResourceTemplateReference, TextContent, TextResourceContents

from host.upstream.catalog_sync import MAX_AGE
from tests.kit.ports import free_port

from .clients import PATIENCE, SDK_LEAKS, Guest, by_hand, eventually, sdk, text_of
from .running import SERVERS, START, Running, listening, sdk_server, serving, until, write_config

pytestmark = [SDK_LEAKS, pytest.mark.slow]

TOOLS_CHANGED = "notifications/tools/list_changed"
each_server = pytest.mark.parametrize("server", ["pipe", "web"])


@dataclass
class Setting:
    host: Running
    folder: Path
    direct: str
    """The URL of the server over Streamable HTTP."""

    @property
    def url(self) -> str:
        return self.host.url

    def notes(self, server: str) -> list[str]:
        """What the server's `hang` wrote down."""
        log = self.folder / f"{server}.log"
        return log.read_text().splitlines() if log.exists() else []


def http_command(log: Path, port: int) -> list[str]:
    return [sys.executable, str(SERVERS / "sdk_server.py"), str(log), "--http", str(port)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("sdk-server")
    with ExitStack() as stack:
        _, url = stack.enter_context(listening(*http_command(folder / "web.log", free_port()), folder=folder))
        twice = {**sdk_server(), "eras": "both"}
        file = write_config(folder, {"pipe": sdk_server(str(folder / "pipe.log")), "web": {"url": url}, "twice": twice})
        # The server says where it will listen before it does, so the first attempt may come too early.
        yield Setting(stack.enter_context(serving(file, "pipe", "web", "twice")), folder, url)


@each_server
async def test_tools_keep_what_they_say_of_themselves(here: Setting, server: str) -> None:
    """Title, annotations, schemas and `_meta` of a definition; structured output beside the text of a result."""
    async with sdk(here.url) as client:
        tools = {tool.name: tool for tool in (await client.client.list_tools()).tools}
        tool = tools[f"{server}__weather"]
        assert tool.title == "The weather"
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.open_world_hint) == (True, False)
        assert tool.meta == {"io.example/rank": 3}
        assert tool.input_schema["required"] == ["city"]
        assert tool.output_schema is not None
        assert tool.output_schema["required"] == ["city", "degrees"]
        result = await client.client.call_tool(f"{server}__weather", {"city": "Wien"})
        assert result.structured_content == {"city": "Wien", "degrees": 21.5}
        assert '"degrees": 21.5' in text_of(result)
        failed = await client.client.call_tool(f"{server}__fail")
        assert failed.is_error


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("server", ["web", "twice"])
async def test_a_server_of_both_eras_serves_each_client_in_its_own(here: Setting, server: str, mode: str) -> None:
    """Its request in the middle of a call needs the session that a client with a handshake has. The SDK's own server
    can ask a stateless client nothing there."""
    guest = Guest()
    async with guest.at(here.url, mode) as client:
        weather = await client.call_tool(f"{server}__weather", {"city": "Wien"})
        assert '"degrees": 21.5' in text_of(weather)
        if mode == "auto":
            with pytest.raises(MCPError, match="no back-channel"):
                await client.call_tool(f"{server}__table")
            return
        assert text_of(await client.call_tool(f"{server}__table")) == "a table for 4"
        assert guest.asked == [f"[{server}] How many guests?"]


@each_server
async def test_meta_goes_there_and_back_but_for_the_hops_own(here: Setting, server: str) -> None:
    """Vendor members and trace context reach the server and come back; the progress token the server sees is not the
    client's."""
    trace = {"io.example/x": {"n": [1, 2.50]}, "traceparent": "00-aa-bb-01"}
    async with by_hand(here.url) as client:
        params = {"name": f"{server}__marked", "arguments": {}, "_meta": {**trace, "progressToken": "mine"}}
        meta = (await client.ask("tools/call", params))["result"]["_meta"]
    token = meta.pop("progressToken", meta.pop("progress_token", None))
    assert meta == trace
    assert token not in (None, "mine")


@each_server
async def test_resources_and_templates_are_read(here: Setting, server: str) -> None:
    """Under the URIs that the lists give, which the contents carry too."""
    async with sdk(here.url) as client:
        first = f"{server}+memo://first"
        assert first in [str(each.uri) for each in (await client.client.list_resources()).resources]
        (content,) = (await client.client.read_resource(first)).contents
        assert isinstance(content, TextResourceContents)
        assert (str(content.uri), content.text, content.mime_type) == (first, "the first memo", "text/plain")
        templates = (await client.client.list_resource_templates()).resource_templates
        assert f"{server}+memo://numbered/{{number}}" in [each.uri_template for each in templates]
        (content,) = (await client.client.read_resource(f"{server}+memo://numbered/7")).contents
        assert isinstance(content, TextResourceContents)
        assert content.text == "memo number 7"


@each_server
async def test_prompts_are_got_and_arguments_completed(here: Setting, server: str) -> None:
    async with sdk(here.url) as client:
        prompts = {prompt.name: prompt for prompt in (await client.client.list_prompts()).prompts}
        assert [each.name for each in prompts[f"{server}__paint"].arguments or []] == ["colour"]
        (message,) = (await client.client.get_prompt(f"{server}__paint", {"colour": "blue"})).messages
        assert isinstance(message.content, TextContent)
        assert message.content.text == "Paint it blue."
        prompt = PromptReference(type="ref/prompt", name=f"{server}__paint")
        done = await client.client.complete(prompt, {"name": "colour", "value": "gre"})
        assert done.completion.values == ["green", "grey"]
        template = ResourceTemplateReference(type="ref/resource", uri=f"{server}+memo://numbered/{{number}}")
        assert (await client.client.complete(template, {"name": "number", "value": "4"})).completion.values == ["40"]


@each_server
async def test_progress_comes_step_by_step(here: Setting, server: str) -> None:
    """Every report, in order, with total and message, and the first one before the last one was made."""
    reports: list[tuple[float, float | None, str | None]] = []
    times: list[float] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total, message))
        times.append(trio.current_time())

    async with sdk(here.url) as client:
        result = await client.client.call_tool(f"{server}__steps", {"count": 4}, progress_callback=report)
    assert text_of(result) == "done"
    assert reports == [(step, 4, f"step {step}") for step in (1, 2, 3, 4)]
    assert times[-1] - times[0] > 0.1


@each_server
async def test_a_cancel_ends_the_tool(here: Setting, server: str) -> None:
    """The tool itself is interrupted, at that server alone."""
    other = {"pipe": "web", "web": "pipe"}[server]
    before = here.notes(server), here.notes(other)
    reported = trio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async with sdk(here.url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.client.call_tool, f"{server}__hang", {}, None, report)
        with trio.fail_after(5):
            await reported.wait()
            nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(
        until, lambda: here.notes(server)[len(before[0]) :] == ["hanging", "cancelled"], "the tool noted it", 5
    )
    assert here.notes(other) == before[1]


@each_server
async def test_a_new_tool_is_announced(here: Setting, server: str) -> None:
    async with sdk(here.url) as client:
        await client.names()
        await client.client.call_tool(f"{server}__grow", {"name": f"new-at-{server}"})
        await client.hears(TOOLS_CHANGED, seconds=1)
        assert f"{server}__new-at-{server}" in await client.names()
        assert text_of(await client.client.call_tool(f"{server}__new-at-{server}")) == f"new-at-{server}"


@each_server
async def test_each_of_many_changes_is_announced_and_listed(here: Setting, server: str) -> None:
    """However many came before: each one is notified of by itself, and a list that is asked for at once has it. Prints
    how long that took. Changes at other paces: tests/host/upstream/test_catalog_sync.py."""
    changes, apart = 15, 0.7
    async with sdk(here.url) as client:
        await client.names()
        heard, listed = list[float](), list[float]()
        for turn in range(changes):
            began, before = trio.current_time(), client.told.count(TOOLS_CHANGED)
            name = f"{turn}-at-{server}"
            await client.client.call_tool(f"{server}__grow", {"name": name})
            changed = trio.current_time()
            heard.append(await client.hears(TOOLS_CHANGED, seconds=PATIENCE, after=before))
            assert f"{server}__{name}" in await client.names()
            listed.append(trio.current_time() - changed)
            await trio.sleep(max(began + apart - trio.current_time(), 0.0))  # the pace of the changes
    print(f"{server}: {changes} changes, heard after {max(heard):.2f} s and listed after {max(listed):.2f} s at most")


@each_server
async def test_a_new_tool_that_is_not_announced_is_called_all_the_same(here: Setting, server: str) -> None:
    """The list is read again for the name that it lacks, unless a test before this one had it read less than MAX_AGE
    ago."""
    async with sdk(here.url) as client:
        await client.client.call_tool(f"{server}__grow", {"name": f"quiet-at-{server}", "announces": False})

        async def is_known() -> bool:
            try:
                return text_of(await client.client.call_tool(f"{server}__quiet-at-{server}")) == f"quiet-at-{server}"
            except MCPError:
                return False

        await eventually(is_known, MAX_AGE + 1)
        assert f"{server}__quiet-at-{server}" in await client.names()


async def test_at_its_own_mount_a_server_declares_what_it_declares_without_anything_between(here: Setting) -> None:
    """It is Colonnade all the same that answers."""
    mode = "auto"  # in the era in which Colonnade speaks with it: the server declares another thing in each
    async with Client(here.direct, mode=mode, cache=None) as direct, Client(f"{here.url}/web", mode=mode) as alone:
        assert direct.protocol_version == alone.protocol_version == "2026-07-28"
        theirs, ours = (each.server_capabilities.model_dump(exclude_defaults=True) for each in (direct, alone))
        for name in ("tools", "resources", "prompts", "completions", "logging"):
            assert ours.get(name) == theirs.get(name), name
        assert alone.server_info is not None
        assert alone.server_info.name == "colonnade"


async def test_instructions_of_all_servers_are_told(here: Setting) -> None:
    """Merged under each server's name; at a server's own mount as they are."""
    async with sdk(here.url) as client, sdk(f"{here.url}/web") as alone:
        told = client.client.instructions or ""
        assert "## pipe\nAsk for the weather first." in told
        assert "## web\nAsk for the weather first." in told
        assert alone.client.instructions == "Ask for the weather first."


@pytest.mark.parametrize(
    ("eras", "reason"), [("one", "web is unavailable: "), ("both", "web could not be reached: it cannot be reached: ")]
)
async def test_a_server_over_http_that_is_restarted_comes_back(tmp_path: Path, eras: str, reason: str) -> None:
    """The call that it works on fails when it goes, and while it is away calls fail at once with the reason; its tools
    stay listed, and once it is back they work again without anybody's doing. A session over HTTP ends only when the
    server has forgotten it, so a call over it finds out by itself that the server is away."""
    port = free_port()
    command = http_command(tmp_path / "web.log", port)
    reported = trio.Event()
    answers: list[str] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async def hang() -> None:
        answers.append(text_of(await client.client.call_tool("web__hang", progress_callback=report)))

    async def works() -> bool:
        return not (await client.client.call_tool("web__weather", {"city": "Wien"})).is_error

    with ExitStack() as stack:
        process, url = stack.enter_context(listening(*command, folder=tmp_path))
        host = stack.enter_context(serving(write_config(tmp_path, {"web": {"url": url, "eras": eras}}), "web"))
        async with sdk(host.url) as client:
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(hang)
                    await reported.wait()
                    process.kill()
                    process.wait()
            assert answers[0].startswith("the connection to web was lost during the request: ")
            await trio.to_thread.run_sync(until, lambda: host.status()["web"]["state"] != "ready", "the loss is seen")
            with trio.fail_after(5):  # at once, not after the server's timeout
                failed = await client.client.call_tool("web__weather", {"city": "Wien"})
            assert failed.is_error
            assert text_of(failed).startswith(reason)
            assert "web__weather" in await client.names()
            stack.enter_context(listening(*command, folder=tmp_path))
            await eventually(works, START)  # attempts come less and less often
            assert "web__weather" in await client.names()


@pytest.mark.parametrize("eras", ["one", "both"])
async def test_a_call_whose_session_the_server_has_forgotten_is_sent_once_more(tmp_path: Path, eras: str) -> None:
    log, forgets = tmp_path / "web.log", tmp_path / "web.log.forgets"
    command = [sys.executable, str(SERVERS / "forgetful.py"), str(log), str(free_port())]
    protocol = {"protocol": "legacy"} if eras == "one" else {}
    with ExitStack() as stack:
        _, url = stack.enter_context(listening(*command, folder=tmp_path))
        file = write_config(tmp_path, {"web": {"url": url, "eras": eras, **protocol}})
        host = stack.enter_context(serving(file, "web"))
        async with Client(host.url, mode="legacy", cache=None) as legacy:
            for _ in range(2):
                assert not (await legacy.call_tool("web__weather", {"city": "Wien"})).is_error
                forgets.write_text("once")
                assert not (await legacy.call_tool("web__weather", {"city": "Wien"})).is_error
            assert log.read_text().splitlines().count("tools/call") == 2


async def test_a_server_behind_a_balancer_without_affinity_serves_clients_with_a_session(tmp_path: Path) -> None:
    """It accepts sessions, and does not know them at the next request: such clients are served statelessly."""
    log, forgets = tmp_path / "web.log", tmp_path / "web.log.forgets"
    forgets.write_text("always")
    command = [sys.executable, str(SERVERS / "forgetful.py"), str(log), str(free_port())]
    with ExitStack() as stack:
        _, url = stack.enter_context(listening(*command, folder=tmp_path))
        host = stack.enter_context(serving(write_config(tmp_path, {"web": {"url": url}}), "web"))
        async with Client(host.url, mode="legacy", cache=None) as legacy:
            assert "web__weather" in [tool.name for tool in (await legacy.list_tools()).tools]
            assert not (await legacy.call_tool("web__weather", {"city": "Wien"})).is_error
        assert log.read_text()
        assert "use the stateless connection, because it accepts no session" in host.status()["web"]["session"]
