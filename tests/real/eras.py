"""The four servers of `test_both_eras.py` behind one endpoint, and clients that npm has to fetch: `make eras`.

The official TypeScript SDK's client answers the questions in the middle of a call, in either era, over HTTP and over
standard input and output. The Inspector's command line, which cannot answer any, lists and calls. The SDK's server is
held against the table of refusals.

It owns `build/eras`: the packages that `typescript/package.json` pins, a Node that is new enough for them, and what the
Inspector would otherwise keep in the home directory. Where npm is missing, or its registry, this fails and says so: it
is run on purpose, and has nothing to show then.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from host.protocol.output_schema import is_compiled
from tests.conformance.suite import NODE_VERSION, node_package
from tests.kit.output_schemas import OutputSchemas
from tests.kit.servers.refused import PROMISING, WRITTEN

from .refusals import SESSION, STATELESS, expected, refused
from .running import BARE_PYTHON, COLONNADE, OVER_STDIO, ROOT, SERVERS, listening, recorder, serving, write_config
from .test_both_eras import FOUR, PROGRAM, SAME_ERA, VERSIONS, Setting, at_urls, questions, serving_four

pytestmark = pytest.mark.timeout(400)  # the first test may have to install a few hundred megabytes

SOURCE = Path(__file__).parent / "typescript"
BUILD = ROOT / "build" / "eras"
MODULES = BUILD / "node_modules"
NODE = MODULES / node_package() / "bin" / "node"
INSPECTOR = MODULES / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
INSTALL_SECONDS = 300
PATIENCE = 50

each_mode = pytest.mark.parametrize("mode", VERSIONS)


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder with the packages, and with the programs that need to lie beside them."""
    pins = json.loads((SOURCE / "package.json").read_text())["dependencies"] | {node_package(): NODE_VERSION}
    BUILD.mkdir(parents=True, exist_ok=True)
    done = BUILD / ".installed"  # written last: an install that was interrupted is begun again
    wanted = json.dumps(pins)
    if not done.is_file() or done.read_text() != wanted:
        install([f"{package}@{version}" for package, version in pins.items()])
        done.write_text(wanted)
    for program in SOURCE.glob("*.mjs"):
        shutil.copy(program, BUILD)
    return BUILD


def install(packages: list[str]) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is not installed: it is needed to fetch the TypeScript SDK and the Inspector")
    shutil.rmtree(MODULES, ignore_errors=True)
    options = ["--prefix", str(BUILD), "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
    command = [npm, "install", *options, "--loglevel=error", *packages]
    try:
        done = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the npm registry did not deliver within {INSTALL_SECONDS} s")
    if done.returncode != 0 or not NODE.is_file() or not INSPECTOR.is_file():
        pytest.fail(f"npm could not install {packages} (status {done.returncode}): {done.stderr.strip()[-500:]}")


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with at_urls(tmp_path_factory.mktemp("urls")) as urls:
        yield urls


@pytest.fixture(scope="session")
def here(urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with serving_four(tmp_path_factory.mktemp("eras"), urls) as setting:
        yield setting


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """One run of a client to its end. Its home is in the build folder: the Inspector keeps things there."""
    home = BUILD / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [str(NODE), *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=BUILD,
        env={**os.environ, "HOME": str(home)},
        check=False,
    )


def typescript(clients: Path, **task: Any) -> dict[str, Any]:
    """What the TypeScript client came to; see `typescript/driver.mjs`."""
    done = run(str(clients / "driver.mjs"), json.dumps({"guests": 4, **task}))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def inspector(url: str, era: str, *more: str) -> dict[str, Any]:
    """What the Inspector's command line printed: an object with `result` or `error`."""
    command = ["--cli", "--server-url", url, "--transport", "http", "--protocol-era", era, "--format", "json"]
    done = run(str(INSPECTOR), *command, *more)
    said = done.stdout or done.stderr
    try:
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
    except (ValueError, IndexError):
        pytest.fail(f"status {done.returncode}: {said}")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The TypeScript SDK's client
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("era", SAME_ERA)
def test_without_a_host_the_typescript_client_completes_its_own_era(
    clients: Path, urls: dict[str, str], era: str, transport: str
) -> None:
    """So that what the other tests see is the host's doing."""
    where = {"url": urls[era]} if transport == "http" else {"command": [*PROGRAM, era]}
    mode = SAME_ERA[era]
    found = typescript(clients, mode=mode, tools=["book_table"], **where)
    assert found["version"] == VERSIONS[mode]
    assert found["texts"] == {"book_table": "Friday: a table for 4, Tess"}
    assert found["asked"] == questions("Friday", 4)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@each_mode
def test_every_server_asks_the_typescript_client(clients: Path, here: Setting, mode: str, transport: str) -> None:
    """All four, one after the other, through one connection (rule 71, rule 73, rule 79, rule 80)."""
    where: dict[str, Any] = {"url": here.host.url}
    if transport == "stdio":
        where = {
            "command": [
                COLONNADE,
                "serve",
                str(here.file),
                *OVER_STDIO,
                "--state",
                str(here.file.parent / "state"),
            ]
        }
    tools = [f"{server}__book_table" for server in FOUR]
    found = typescript(clients, mode=mode, tools=tools, **where)
    assert found["version"] == VERSIONS[mode]
    assert found["texts"] == dict.fromkeys(tools, "Friday: a table for 4, Tess")
    assert found["asked"] == [question for title in FOUR.values() for question in questions("Friday", 4, title)]


# ---------------------------------------------------------------------------------------------------------------------
# Definitions that the TypeScript clients refuse
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["1", "legacy", "auto"])
def test_a_definition_that_the_typescript_client_refuses_takes_no_other_away(
    clients: Path, tmp_path: Path, mode: str
) -> None:
    """Its checks are stricter than those of the Python SDK. It also checks results by the schemas of their tools."""
    server = {"command": [*BARE_PYTHON, str(SERVERS / "refused.py")]}
    file = write_config(tmp_path, {"bad": server, "good": recorder(tmp_path / "good.log")})
    promising = [f"bad__{name}" for name in PROMISING]
    with serving(file, "bad", "good") as host:
        done = run(str(clients / "lister.mjs"), host.url, mode, *promising)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [name for name in found["tools"] if name.startswith("bad__")] == [
        f"bad__{name}" for name in ("first", *WRITTEN, "last")
    ]
    assert "good__echo" in found["tools"]
    assert {"first", "size", "last"} <= set(found["resources"])
    assert (found["templates"], found["prompts"]) == (["last"], ["bad__first", "bad__last"])
    assert found["called"] == promising


def test_the_typescript_clients_compile_every_output_schema_that_passes(clients: Path, tmp_path: Path) -> None:
    generated = OutputSchemas(2)
    schemas = [generated.root() for _ in range(1000)]
    schemas += [{"type": "object", "properties": {"a": {"pattern": generated.pattern()}}} for _ in range(2000)]
    (tmp_path / "schemas.json").write_text(json.dumps(schemas))
    done = run(str(clients / "compiler.mjs"), str(tmp_path / "schemas.json"))
    assert done.returncode == 0, done.stderr
    passed = [is_compiled(Raw(json.dumps(schema).encode())) for schema in schemas]
    outcomes = [(one, json.loads(line)) for one, line in zip(passed, done.stdout.splitlines(), strict=True)]
    assert [each for each in zip(outcomes, schemas, strict=True) if each[0][0] and each[0][1] != [None, None]] == []
    counts = Counter((one, refused == [None, None]) for one, refused in outcomes)
    assert min(counts[True, True], counts[False, False]) > 500, counts


# ---------------------------------------------------------------------------------------------------------------------
# The Inspector's command line
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern", "auto"])
def test_the_inspector_lists_what_all_servers_offer(clients: Path, here: Setting, era: str) -> None:
    found = inspector(here.host.url, era, "--method", "tools/list")
    names = {tool["name"] for tool in found["result"]["tools"]}
    assert names == {f"{server}__{tool}" for server in FOUR for tool in ("add", "book_table")}


@pytest.mark.parametrize("server", FOUR)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_calls_a_tool(clients: Path, here: Setting, era: str, server: str) -> None:
    call = ["--method", "tools/call", "--tool-name", f"{server}__add", "--tool-arg", "a=2", "--tool-arg", "b=3"]
    found = inspector(here.host.url, era, *call)
    assert [block["text"] for block in found["result"]["content"]] == ["5"], found


@pytest.mark.parametrize("server", FOUR)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_inspector_is_told_that_it_cannot_be_asked(clients: Path, here: Setting, era: str, server: str) -> None:
    """It declares no way to fill in forms: the call fails at once, and says so (rule 74)."""
    call = ["--method", "tools/call", "--tool-name", f"{server}__book_table", "--tool-arg", "day=Friday"]
    found = inspector(here.host.url, era, *call)
    said = json.dumps(found)
    assert "error" in found or found["result"]["isError"], said
    causes = (
        "does not support elicitation",
        "capability that the request does not declare",
        "for what this request does",
    )
    assert any(each in said for each in causes), said


# ---------------------------------------------------------------------------------------------------------------------
# The TypeScript SDK's server
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [SESSION, STATELESS])
def test_the_typescript_sdk_refuses_as_the_table_says(clients: Path, revision: str) -> None:
    with listening(str(NODE), str(clients / "server.mjs"), folder=clients) as (_, url):
        assert refused(url, revision) == expected("typescript", revision)
