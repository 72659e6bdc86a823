"""Servers that others wrote and published, four of them behind one host, used with the official SDK's client.

`time`, `git` and `fetch` are among the packages the tests need; `everything` comes from the npm registry, once, into
`build/npm`. Where there is no Node, or no registry, its tests are skipped and say so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio
from mcp.types import EmbeddedResource, PromptReference, ResourceLink, TextContent, TextResourceContents

from tests.kit.web_server import answering

from .clients import SDK_LEAKS, SdkClient, eventually, over_stdio, sdk, text_of
from .running import BIN, ROOT, Running, pid_of, serving, write_config

pytestmark = [
    pytest.mark.timeout(150),  # the first test may have to install a package
    SDK_LEAKS,
]

NPM = ROOT / "build" / "npm"
EVERYTHING = "@modelcontextprotocol/server-everything"
INSTALL_SECONDS = 100
PAGE = b"<html><head><title>A page</title></head><body><h1>Arcades</h1><p>Columns in a row.</p></body></html>"


class PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/page.html"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(PAGE) if found else 0))
        self.end_headers()
        self.wfile.write(PAGE if found else b"")

    def log_message(self, *_: object) -> None:
        """Who fetched what is seen in the answers."""


def install_everything() -> Path | str:
    """The server's program, installed if it is not there; or why it cannot be had. One process at a time: two npm in
    one folder leave it half filled."""
    if shutil.which("node") is None:
        return "node is not installed"
    NPM.mkdir(parents=True, exist_ok=True)
    with (NPM / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install_everything()


def _install_everything() -> Path | str:
    script = NPM / "node_modules" / EVERYTHING / "dist" / "index.js"
    whole = NPM / ".installed"
    if whole.is_file():
        return script
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    shutil.rmtree(NPM / "node_modules", ignore_errors=True)
    quiet = [
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        "--fetch-retries=1",
        "--fetch-retry-mintimeout=1000",
    ]
    options = ["--prefix", str(NPM), *quiet]
    try:
        done = subprocess.run(
            [npm, "install", *options, EVERYTHING], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the npm registry did not deliver within {INSTALL_SECONDS} s"
    if done.returncode != 0 or not script.is_file():
        return f"npm could not install it (status {done.returncode}): {done.stderr.strip()[-200:]}"
    whole.touch()
    return script


@dataclass
class Setting:
    host: Running
    file: Path
    repository: Path
    page: str
    without_everything: str | None
    """Why that server is missing, if it is."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("published")
    repository = folder / "repository"
    make_repository(repository)
    script = install_everything()
    servers: dict[str, object] = {
        "time": {"command": [str(BIN / "mcp-server-time"), "--local-timezone", "Europe/Vienna"]},
        "git": {"command": [str(BIN / "mcp-server-git"), "--repository", str(repository)]},
        "fetch": {
            "command": [str(BIN / "mcp-server-fetch"), "--ignore-robots-txt", "--allow-private-ips"],
            "env": {"PATH": str(BIN)},  # where it finds Node it runs npm to install a converter of its own
        },
    }
    if isinstance(script, Path):
        servers["everything"] = {"command": ["node", str(script), "stdio"]}
    file = write_config(folder, servers)
    with answering(HTTPServer(("127.0.0.1", 0), PageHandler)) as port, serving(file, *servers) as host:
        page = f"http://127.0.0.1:{port}/page.html"
        yield Setting(host, file, repository, page, None if isinstance(script, Path) else script)


@pytest.fixture
def with_everything(here: Setting) -> Setting:
    """The same; the test is skipped where that server is missing. (Here, since a skip out of a trio test loses its
    reason.)"""
    if here.without_everything is not None:
        pytest.skip(f"{EVERYTHING}: {here.without_everything}")
    return here


def make_repository(folder: Path) -> None:
    """A git repository with one commit and one change that is not yet committed."""
    folder.mkdir()
    alone = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> None:
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        subprocess.run(["git", *who, *words], cwd=folder, env=alone, check=True, capture_output=True)

    git("init", "-b", "main")
    (folder / "columns.txt").write_text("doric\n")
    git("add", "columns.txt")
    git("commit", "-m", "The first column")
    (folder / "columns.txt").write_text("doric\nionic\n")


async def test_each_server_is_there_with_what_it_offers(here: Setting) -> None:
    """The tools and prompts of all of them stand in the lists, each under its server's name."""
    async with sdk(here.host.url) as client:
        names = await client.names()
        assert {"time__get_current_time", "time__convert_time", "git__git_status", "git__git_log", "fetch__fetch"} <= {
            *names
        }
        assert "fetch__fetch" in [prompt.name for prompt in (await client.client.list_prompts()).prompts]


async def test_everything_offers_all_kinds_of_entries(with_everything: Setting) -> None:
    """Tools, resources and templates in the lists under its name, and its instructions among those of the host."""
    async with sdk(with_everything.host.url) as client:
        assert {"everything__echo", "everything__get-sum"} < set(await client.names())
        resources = (await client.client.list_resources()).resources
        assert any(str(each.uri).startswith("everything+demo://resource/static/") for each in resources)
        templates = (await client.client.list_resource_templates()).resource_templates
        assert "everything+demo://resource/dynamic/text/{resourceId}" in [each.uri_template for each in templates]
        assert "# Everything Server" in (client.client.instructions or "")


async def test_time_tells_and_converts_the_time(here: Setting) -> None:
    async with sdk(here.host.url) as client:
        now = await client.client.call_tool("time__get_current_time", {"timezone": "Asia/Kathmandu"})
        assert "+05:45" in text_of(now)
        asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        assert "T21:00" in text_of(await client.client.call_tool("time__convert_time", asked))
        assert (await client.client.call_tool("time__get_current_time", {"timezone": "Atlantis"})).is_error


async def test_git_reads_a_repository_and_commits_to_it(here: Setting) -> None:
    where = {"repo_path": str(here.repository)}
    async with sdk(here.host.url) as client:
        assert "columns.txt" in text_of(await client.client.call_tool("git__git_status", where))
        assert "+ionic" in text_of(await client.client.call_tool("git__git_diff_unstaged", where))
        log = await client.client.call_tool("git__git_log", where)
        assert "The first column" in "".join(block.text for block in log.content if isinstance(block, TextContent))
        outside = await client.client.call_tool("git__git_status", {"repo_path": "/"})
        assert outside.is_error


async def test_fetch_gets_a_page_as_a_tool_and_as_a_prompt(here: Setting) -> None:
    async with sdk(here.host.url) as client:
        assert "Columns in a row." in text_of(await client.client.call_tool("fetch__fetch", {"url": here.page}))
        prompt = await client.client.get_prompt("fetch__fetch", {"url": here.page})
        content = prompt.messages[0].content
        assert isinstance(content, TextContent)
        assert "Columns in a row." in content.text
        missing = await client.client.call_tool("fetch__fetch", {"url": here.page + "x"})
        assert missing.is_error
        assert "404" in text_of(missing)


async def test_everything_is_called_read_got_and_completed(with_everything: Setting) -> None:
    """Structured content, links that can be read under the names they come with, embedded resources, prompts,
    templates, completion."""
    async with sdk(with_everything.host.url) as client:
        assert "is 5" in text_of(await client.client.call_tool("everything__get-sum", {"a": 2, "b": 3}))
        weather = await client.client.call_tool("everything__get-structured-content", {"location": "Chicago"})
        assert set(weather.structured_content or {}) == {"temperature", "conditions", "humidity"}
        links = await client.client.call_tool("everything__get-resource-links", {"count": 2})
        await check_links([str(block.uri) for block in links.content if isinstance(block, ResourceLink)], client)
        prompts = {prompt.name: prompt for prompt in (await client.client.list_prompts()).prompts}
        assert [each.name for each in prompts["everything__args-prompt"].arguments or []] == ["city", "state"]
        got = await client.client.get_prompt("everything__args-prompt", {"city": "Graz"})
        assert isinstance(got.messages[0].content, TextContent)
        assert "Graz" in got.messages[0].content.text
        embedded = await client.client.get_prompt(
            "everything__resource-prompt", {"resourceType": "Text", "resourceId": "1"}
        )
        (resource,) = [each.content for each in embedded.messages if isinstance(each.content, EmbeddedResource)]
        assert str(resource.resource.uri).startswith("everything+demo://")
        reference = PromptReference(type="ref/prompt", name="everything__completable-prompt")
        done = await client.client.complete(reference, {"name": "department", "value": "E"})
        assert done.completion.values == ["Engineering"]


async def check_links(uris: list[str], client: SdkClient) -> None:
    assert len(uris) == 2
    for uri in uris:
        assert uri.startswith("everything+demo://resource/dynamic/")
        (content,) = (await client.client.read_resource(uri)).contents
        assert str(content.uri) == uri
    static = (await client.client.list_resources()).resources[0]
    (content,) = (await client.client.read_resource(str(static.uri))).contents
    assert isinstance(content, TextResourceContents)
    assert content.text


async def test_a_long_operation_reports_while_it_runs(with_everything: Setting) -> None:
    """Reports come one by one, the first of them well before the answer."""
    times: list[tuple[float, float]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        times.append((progress, trio.current_time()))

    async with sdk(with_everything.host.url) as client:
        operation = {"duration": 1, "steps": 4}
        result = await client.client.call_tool(
            "everything__trigger-long-running-operation", operation, progress_callback=report
        )
        ended = trio.current_time()
    assert "completed" in text_of(result)
    assert [progress for progress, _ in times] == [1, 2, 3, 4]
    assert ended - times[0][1] > 0.5


async def test_one_of_them_killed_comes_back(here: Setting) -> None:
    """SIGKILL for `time`: the others keep answering, and then it can be called again."""
    async with sdk(here.host.url) as client:
        before = here.host.status()
        os.kill(pid_of(here.host.process.pid, "mcp-server-time"), signal.SIGKILL)
        while (await client.client.call_tool("time__get_current_time", {"timezone": "UTC"})).is_error:
            assert not (await client.client.call_tool("git__git_status", {"repo_path": str(here.repository)})).is_error
            await trio.sleep(0.05)
        assert "time__get_current_time" in await client.names()
        after = here.host.status()
    assert {id: each["attempts"] - before[id]["attempts"] for id, each in after.items() if id != "time"} == {
        id: 0 for id in after if id != "time"
    }
    assert after["time"]["attempts"] == before["time"]["attempts"] + 1


async def test_the_same_over_stdio(here: Setting) -> None:
    """All that are there behind `serve --stdio`: lists, a call at each, a prompt, a completion."""
    async with sdk(over_stdio(here.file)) as client:

        async def all_there() -> bool:
            return {name.partition("__")[0] for name in await client.names()} == here.host.status().keys()

        await eventually(all_there, 20)  # the first list waits only so long for the imports of Python servers
        assert "+05:45" in text_of(
            await client.client.call_tool("time__get_current_time", {"timezone": "Asia/Kathmandu"})
        )
        status = await client.client.call_tool("git__git_status", {"repo_path": str(here.repository)})
        assert "columns.txt" in text_of(status)
        assert "Columns in a row." in text_of(await client.client.call_tool("fetch__fetch", {"url": here.page}))
        assert (await client.client.get_prompt("fetch__fetch", {"url": here.page})).messages
        if here.without_everything is not None:
            return
        assert "is 5" in text_of(await client.client.call_tool("everything__get-sum", {"a": 2, "b": 3}))
        reference = PromptReference(type="ref/prompt", name="everything__completable-prompt")
        done = await client.client.complete(reference, {"name": "department", "value": "E"})
        assert done.completion.values == ["Engineering"]
