"""Published servers in a sandbox: each lists and does the same as without one.

python -m tests.published.confined              prints the table, fails if anything differs, and else writes it into
                                                docs/sandbox.md
python -m tests.published.confined --ci         those that CI has installed, whose rows the page must have
python -m tests.published.confined --only TEXT  those whose package has this text in its name
python -m tests.published.confined --runners    in the sandbox, they are started by npx and uvx, which install them in
                                                a launch of its own; needs the registries

Each stands twice in the file of one host: as it is, and with `sandbox` of `strict`, one folder, and what its row says.
The official SDK's client lists, reads and calls both.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trio

from host.cli.admin_client import find_hosts
from tests.kit.web_server import answering
from tests.published.install import command, install
from tests.published.looks import Seen, differing, look, without_places
from tests.published.places import MARK, left_behind, wait_all_ready
from tests.published.servers import BY_PACKAGE, Server
from tests.real.running import BIN, ROOT, serving, write_config

PAGE = ROOT / "docs" / "sandbox.md"
BEGIN, END = "<!-- table of make sandbox-servers -->\n", "<!-- end of the table -->\n"
HEAD = ("| package | version | beside `strict` and a folder | calls |", "|---|---|---|---|")
GROUP = 6
AT_ONCE = 2


@dataclass(frozen=True)
class Confined:
    """A published server in a sandbox. In all texts, `{folder}` stands for a folder of the run that it may write, and
    `{page}` for the URL of a page on loopback.

    Args:
        calls: tools and their arguments.
        beside: keys of its sandbox beside the folder.
        files: by name, texts in the folder.
        differs: a regular expression of what differs from run to run, and for a sandbox.
        refused: whether a call leads to an error without a sandbox, too, as what it needs is not there.
        note: a sentence for people, beside the keys.
        ci: whether it is one of those that CI runs.
    """

    server: Server
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    beside: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    refused: bool = False
    note: str = ""
    ci: bool = False

    @property
    def id(self) -> str:
        return f"s{CONFINED.index(self)}"

    def row(self) -> str:
        keys = {**self.beside, **({"env": self.server.env} if self.server.env else {})}
        shown = ", ".join(f"`{key}: {_yaml(value)}`" for key, value in keys.items())
        beside = ". ".join(each for each in (shown, self.note) if each) or "nothing"
        calls = ", ".join(f"`{tool}`" for tool, _ in self.calls)
        return f"| `{self.server.package}` | {self.server.version} | {beside} | {calls} |"


def _yaml(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _known(package: str, **changes: Any) -> Server:
    """A server that is compared directly, too (servers.py)."""
    return replace(BY_PACKAGE[package], **changes)


_FOLDER = {"a.txt": "doric\n", "b/c.txt": "ionic\n"}
_PAGE = "data:text/html,<title>Arcade</title><h1>Columns</h1>"
_CHROMIUM = ("--headless", "--no-sandbox", "--executable-path=/usr/bin/chromium")
_DEVTOOLS = ("--headless", "--no-usage-statistics", "--chromeArg=--no-sandbox", "--executablePath=/usr/bin/chromium")
_BROWSER = {"memory": "2GiB", "processes": 256, "open_files": 1024}

CONFINED = (
    Confined(_known("npm:@modelcontextprotocol/server-everything"), (("get-sum", {"a": 2, "b": 3}),), ci=True),
    Confined(
        _known("npm:@modelcontextprotocol/server-filesystem"),
        (
            ("write_file", {"path": "{folder}/new.txt", "content": "corinthian"}),
            ("directory_tree", {"path": "{folder}"}),
            ("read_text_file", {"path": "{folder}/b/c.txt"}),
        ),
        files=_FOLDER,
        ci=True,
    ),
    Confined(
        _known("npm:@modelcontextprotocol/server-memory"),
        (
            ("create_entities", {"entities": [{"name": "x", "entityType": "y", "observations": ["z"]}]}),
            ("read_graph", {}),
        ),
        note="Without the variable, it writes into its own package, which it may not",
        ci=True,
    ),
    Confined(
        _known("npm:@modelcontextprotocol/server-sequential-thinking"),
        (_known("npm:@modelcontextprotocol/server-sequential-thinking").call,),
        ci=True,
    ),
    Confined(
        _known("npm:@modelcontextprotocol/server-pdf", args=("--stdio", "{folder}/a.pdf")),
        (("read_pdf_bytes", {"url": "file://{folder}/a.pdf"}),),
        files={"a.pdf": "%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n"},
    ),
    Confined(
        _known("npm:@upstash/context7-mcp"),
        (("query-docs", {"libraryId": "/a/b", "query": "none"}),),
        note="To work, `network: all`: without it, its result is that it cannot reach its service",
        ci=True,
    ),
    Confined(
        _known("npm:@playwright/mcp", args=_CHROMIUM),
        (("browser_navigate", {"url": _PAGE}), ("browser_snapshot", {})),
        beside=_BROWSER,
        note="With `--no-sandbox`: the browser cannot make a sandbox of its own in one",
        differs=r"page-[\dTZ-]+",
    ),
    Confined(
        _known("npm:chrome-devtools-mcp", args=_DEVTOOLS),
        (("new_page", {"url": _PAGE}), ("list_pages", {})),
        beside=_BROWSER,
        note="With `--chromeArg=--no-sandbox`",
    ),
    Confined(
        _known("npm:@eslint/mcp"),
        (("lint-files", {"filePaths": ["{folder}/a.js"]}),),
        files={
            "a.js": "let x = 1;\n",
            "eslint.config.js": "module.exports = [{rules: {'no-unused-vars': 'error'}}];\n",
        },
    ),
    Confined(
        Server("npm:repomix", "1.18.1", "bin/repomix.cjs", ("pack_codebase", {}), args=("--mcp",)),
        (("pack_codebase", {"directory": "{folder}"}),),
        files=_FOLDER,
        differs=r"/[^\s\"]*/mcp-outputs/\w+|\b[0-9a-f]{16}\b",
    ),
    Confined(
        Server("npm:@wonderwhy-er/desktop-commander", "0.2.52", "dist/index.js", ("get_config", {})),
        (
            ("write_file", {"path": "{folder}/new.txt", "content": "corinthian"}),
            ("start_process", {"command": "cat {folder}/a.txt", "timeout_ms": 5000}),
        ),
        beside={"environment": ["SHELL"]},
        files=_FOLDER,
        note="Or else its shell is `/bin/sh`",
        # Its descriptions say whether it sees that the machine is a container.
        differs=r'PID \d+|(?<="description": )"(?:\\.|[^"\\])*Tilde paths(?:\\.|[^"\\])*"',
    ),
    Confined(
        _known("npm:@kazuph/mcp-taskmanager"),
        (("request_planning", {"originalRequest": "x", "tasks": [{"title": "y", "description": "z"}]}),),
    ),
    Confined(_known("pypi:mcp-server-time"), (_known("pypi:mcp-server-time").call,), ci=True),
    Confined(
        _known("pypi:mcp-server-git"),
        (
            ("git_status", {"repo_path": "{folder}"}),
            ("git_add", {"repo_path": "{folder}", "files": ["a.txt"]}),
            ("git_diff_staged", {"repo_path": "{folder}"}),
        ),
        files=_FOLDER,
        ci=True,
    ),
    Confined(
        _known("pypi:mcp-server-fetch", args=("--ignore-robots-txt", "--allow-private-ips"), env={"PATH": "/nowhere"}),
        (("fetch", {"url": "{page}"}),),
        beside={"network": "all"},
        note="Where it finds Node, its first call has npm install a converter into its own package, which it may not",
    ),
    Confined(
        _known("pypi:mcp-shell-server", env={"ALLOW_COMMANDS": "cat"}, varies="execution_time"),
        (("shell_execute", {"command": ["cat", "a.txt"], "directory": "{folder}"}),),
        files=_FOLDER,
        ci=True,
    ),
    Confined(
        _known("pypi:awslabs.aws-documentation-mcp-server"),
        (_known("pypi:awslabs.aws-documentation-mcp-server").call,),
        note="To work, `network: all`",
        refused=True,
    ),
    Confined(
        _known("pypi:office-word-mcp-server"),
        (
            ("create_document", {"filename": "{folder}/a.docx", "title": "Arcade"}),
            ("add_paragraph", {"filename": "{folder}/a.docx", "text": "Columns"}),
            ("get_document_text", {"filename": "{folder}/a.docx"}),
        ),
    ),
    Confined(
        _known("pypi:excel-mcp-server"),
        (
            ("create_workbook", {"path": "{folder}/a.xlsx"}),
            ("import_csv", {"path": "{folder}/a.xlsx", "csv_path": "{folder}/a.csv", "sheet": "One"}),
            ("describe_workbook", {"path": "{folder}/a.xlsx"}),
        ),
        files={"a.csv": "a,b\n1,2\n"},
    ),
    Confined(
        _known("pypi:markitdown-mcp"),
        (("convert_to_markdown", {"uri": "file://{folder}/a.html"}),),
        files={"a.html": "<h1>Columns</h1><p>in a row"},
    ),
    Confined(
        Server(
            "pypi:mcp-server-motherduck",
            "1.1.0",
            "mcp-server-motherduck",
            ("execute_query", {"sql": "select 1"}),
            args=("--db-path", "{folder}/a.duckdb", "--read-write"),
        ),
        (
            ("execute_query", {"sql": "create table t as select 42 as n"}),
            ("list_tables", {}),
        ),
    ),
    Confined(
        Server("pypi:code-index-mcp", "2.17.1", "code-index-mcp", ("get_settings_info", {})),
        (("set_project_path", {"path": "{folder}"}), ("find_files", {"pattern": "*.txt"})),
        files=_FOLDER,
    ),
    Confined(_known("pypi:mcp-server-calculator"), (_known("pypi:mcp-server-calculator").call,), ci=True),
)


@dataclass(frozen=True)
class Side:
    """A server of the run, with a sandbox or without one."""

    confined: Confined
    folder: Path
    page: str
    in_sandbox: bool
    by_runner: bool = False
    """Whether npx or uvx starts it."""

    @property
    def id(self) -> str:
        return f"{self.confined.id}{'-confined' if self.in_sandbox else ''}"

    def __str__(self) -> str:
        return f"{self.confined.server.package}{', confined' if self.in_sandbox else ''}"

    def entry(self, mark: str) -> dict[str, Any]:
        """Its keys in the file. Without a sandbox, it has a home of its own, too."""
        server = self.confined.server
        home = {} if self.in_sandbox else {"HOME": f"{self.folder}-home"}
        entry = {
            "command": [*(_runner(server) if self.by_runner else command(server)), *server.args],
            "cwd": "{folder}",
            "env": {"NO_COLOR": "1", **server.env, **home, MARK: mark},
            "trust": "trusted",
            "start_timeout": "2m",
        }
        if self.in_sandbox:
            entry["sandbox"] = {"files": {"write": ["{folder}"]}, **self.confined.beside}
        return {key: self._filled(value) for key, value in entry.items()}

    def prepare(self) -> None:
        """Make its folder, with a repository that has nothing in it yet."""
        Path(f"{self.folder}-home").mkdir()
        for name, text in self.confined.files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        self.folder.mkdir(exist_ok=True)
        if "git" in self.confined.server.package:
            subprocess.run(["git", "init", "--quiet", "-b", "main", str(self.folder)], check=True)

    def calls(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(tool, self._filled(arguments)) for tool, arguments in self.confined.calls]

    def plain(self, seen: Seen) -> Seen:
        """The same as was seen, without what differs from run to run."""
        text = json.dumps(without_places(seen, str(self.folder), 0, self.confined.server.varies), ensure_ascii=False)
        made: Seen = json.loads(re.sub(self.confined.differs, "0", text) if self.confined.differs else text)
        return made

    def _filled(self, value: Any) -> Any:
        text = json.dumps(value).replace("{folder}", str(self.folder)).replace("{page}", self.page)
        return json.loads(text)


def _runner(server: Server) -> list[str]:
    """The words that install and start it, without its arguments."""
    name = server.package.partition(":")[2]
    if server.package.startswith("npm:"):
        return ["npx", "-y", f"{name}@{server.version}"]
    return [str(BIN / "uvx"), "--from", f"{name}=={server.version}", server.program]


def run_group(group: Sequence[Confined], *, by_runner: bool = False) -> list[str]:
    """Some servers behind one host, each with and without a sandbox. Returns everything that is wrong."""
    with tempfile.TemporaryDirectory(prefix="confined-") as name, _page() as url:
        sides: list[Side] = []
        for each in group:
            for in_sandbox in (False, True):
                side = Side(each, Path(name, f"{len(sides)}"), url, in_sandbox, by_runner and in_sandbox)
                side.prepare()
                sides.append(side)
        mark = secrets.token_hex(8)
        config = Path(name, "host")
        config.mkdir()
        file = write_config(config, {side.id: side.entry(mark) for side in sides})
        with serving(file) as host:
            waiting = wait_all_ready(host, [side.id for side in sides])
            ready = [side for side in sides if side.id not in waiting]
            wrong = [
                f"{side}: {waiting[side.id]['state']}: {waiting[side.id]['detail']}"
                for side in sides
                if side.id in waiting
            ]
            seen, problems = trio.run(_look_all, ready, host.url)
            wrong += problems + _not_held(config, ready)
        for each in group:
            plain, confined = (seen.get(f"{each.id}{end}") for end in ("", "-confined"))
            if plain is not None and confined is not None:
                wrong += [f"{each.server.package}: {found}" for found in compare(each, plain, confined)]
        return wrong + [f"left behind: {each}" for each in left_behind(mark)]


def compare(each: Confined, plain: Seen, confined: Seen) -> Iterator[str]:
    """Everything that is wrong with what was seen of a server without a sandbox, and in one."""
    failed = [called for called in plain["calls"] if "error" in called or called.get("isError")]
    if bool(failed) != each.refused:
        yield f"its calls without a sandbox: {plain['calls']}"
    yield from differing(plain, confined)


async def _look_all(sides: Sequence[Side], url: str) -> tuple[dict[str, Seen], list[str]]:
    seen: dict[str, Seen] = {}
    wrong: list[str] = []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(side: Side) -> None:
        async with limit:
            try:
                seen[side.id] = side.plain(await look(f"{url}/{side.id}", "auto", *side.calls()))
            except Exception as problem:  # noqa: BLE001 - the run goes on, and fails
                wrong.append(f"{side}: {problem!r}")

    async with trio.open_nursery() as nursery:
        for side in sides:
            nursery.start_soon(one, side)
    return seen, wrong


def _not_held(config: Path, sides: Sequence[Side]) -> list[str]:
    """Those with a sandbox of which the host does not say that it is held, and the other way about."""
    (host,) = find_hosts(config / "state")
    said = {row["id"]: row["sandbox"] for row in host.get("state/servers")["servers"]}
    return [
        f"{each}: its sandbox is {said[each.id]!r}"
        for each in sides
        if ("held by namespaces" in said[each.id]) != each.in_sandbox
    ]


@contextmanager
def _page() -> Iterator[str]:
    """A page on loopback; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "index.html").write_text("<title>A page</title><h1>Arcades</h1><p>Columns in a row.</p>")
        with answering(ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))) as port:
            yield f"http://127.0.0.1:{port}/"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """The log is read by nobody."""


def page(rows: Sequence[str]) -> str:
    """The whole of docs/sandbox.md, with this table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return before + BEGIN + "\n".join([*HEAD, *rows, ""]) + END + rest.partition(END)[2]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--runners", action="store_true")
    options = parser.parse_args()
    chosen = [each for each in CONFINED if (each.ci or not options.ci) and options.only in each.server.package]
    if any("chromium" in word for each in chosen for word in each.server.args) and not shutil.which("chromium"):
        print("Two of them need chromium: apt-get install chromium.")
        return 1
    install([each.server for each in chosen])
    wrong: list[str] = []
    for at in range(0, len(chosen), GROUP):
        wrong += run_group(chosen[at : at + GROUP], by_runner=options.runners)
    rows = [each.row() for each in chosen]
    print("\n".join([*HEAD, *rows]))
    if options.ci or options.only or options.runners:
        there = PAGE.read_text().splitlines()
        wrong += [f"docs/sandbox.md does not say: {row}" for row in rows if row not in there]
    elif not wrong:
        PAGE.write_text(page(rows))
    print("\n".join(wrong))
    print(f"{len(chosen)} servers, {len(wrong)} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
