"""The imported servers of a home with files of several hosts, served and listed by the official client."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import trio
from mcp.client.stdio import StdioServerParameters

from host.relay_start import FIRST_ANSWERS

from .clients import SdkClient
from .person import answered
from .running import BARE_PYTHON, COLONNADE, SERVERS, beside

RECORDER = str(SERVERS / "recorder.py")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**beside(tmp_path / "x"), "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / ".config")}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


async def test_what_was_imported_is_served(tmp_path: Path, environment: dict[str, str]) -> None:
    """One server is the same for two hosts, one may use no tool, and one is of a project that no host has approved."""
    program, *arguments = BARE_PYTHON
    work = tmp_path / "work"
    same = {"command": program, "args": [*arguments, RECORDER, str(tmp_path / "a.log")], "env": {"API_KEY": "hunter2"}}
    write(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"Same": same}})
    write(
        tmp_path / ".gemini" / "settings.json",
        {
            "mcpServers": {
                "twin": {**same, "excludeTools": ["never"]},
                "few": {
                    "command": program,
                    "args": [*arguments, RECORDER, str(tmp_path / "b.log")],
                    "includeTools": [],
                },
            }
        },
    )
    write(
        work / ".mcp.json",
        {"mcpServers": {"project": {"command": program, "args": [*arguments, RECORDER, "p.log"]}}},
    )
    done = await trio.run_process(
        [COLONNADE, "import", "--yes", "--secrets", "file"],
        env=environment, cwd=work, capture_stdout=True, capture_stderr=True, check=False,
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    assert "Trying 2 servers" in said
    assert "  same                 10 tools" in said
    assert (tmp_path / "a.log").exists()
    configs = await trio.Path(environment["COLONNADE_STATE"], "configs").glob(f"*/{FIRST_ANSWERS}")
    assert list(configs), "a relay can answer before a host runs"
    assert "hunter2" not in said + (work / "colonnade.yaml").read_text()
    assert (work / "colonnade.secrets" / "same.API_KEY").read_text() == "hunter2"
    serve = StdioServerParameters(
        command=COLONNADE, args=["serve", "--stdio", "--own", "colonnade.yaml"], env=environment, cwd=work
    )
    client = SdkClient(serve)
    async with client.client:
        tools = (await client.client.list_tools()).tools
    names = {tool.name.partition("__")[0] for tool in tools}
    assert names == {"same"}  # few offers nothing, and no file says that the project may be started
    assert not (work / "p.log").exists()


CLOCK = """
import json, sys
TOOLS = [
    {"name": "get_time", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "set_alarm", "inputSchema": {"type": "object"}, "annotations": {"destructiveHint": False}},
]
ANSWERS = {
    "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                   "serverInfo": {"name": "clock", "version": "1"}},
    "tools/list": {"tools": TOOLS},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        found = {"result": ANSWERS[message["method"]]} if message["method"] in ANSWERS else None
        found = found or {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}), flush=True)
"""


@pytest.mark.parametrize("answer", ["1", "2"])
async def test_what_only_reads_runs_at_once_after_an_import_at_a_terminal(
    tmp_path: Path, environment: dict[str, str], answer: str
) -> None:
    """A person answers the questions of `import` and edits nothing. The definitions are approved as they were shown, so
    a relay can answer from them before a host runs."""
    program, *arguments = BARE_PYTHON
    (tmp_path / "clock.py").write_text(CLOCK)
    clock = {"command": program, "args": [*arguments, str(tmp_path / "clock.py")]}
    write(tmp_path / ".claude.json", {"mcpServers": {"clock": clock}})
    answers = {r"(?:confirmations|is open)\? \[y/N\] ": "n", r"\[1\]: ": answer, r"\[y/N\] ": "y"}
    file = tmp_path / ".config" / "colonnade" / "colonnade.yaml"
    assert not file.parent.exists(), "servers start in the folder of their file"
    command = [COLONNADE, "import", "claude-code", "-o", str(file)]
    code, person = await trio.to_thread.run_sync(answered, command, answers, tmp_path, environment, 60)
    assert (code, person.typed) == (0, ["y", "y", answer, "n", "n"]), person.said
    assert "get_time  (only reads, open world)" in person.said
    assert "set_alarm  (may change something, open world)" in person.said
    assert "2 definitions approved." in person.said
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    configs = await trio.Path(environment["COLONNADE_STATE"], "configs").glob(f"*/{FIRST_ANSWERS}")
    assert list(configs)
    serve = StdioServerParameters(
        command=COLONNADE, args=["serve", "--stdio", "--own", str(file)], env=environment, cwd=tmp_path
    )
    async with SdkClient(serve).client as client:
        assert sorted(tool.name for tool in (await client.list_tools()).tools) == [
            "clock__get_time",
            "clock__set_alarm",
        ]
        for tool, passes in (("get_time", answer == "1"), ("set_alarm", False)):
            result = await client.call_tool(f"clock__{tool}", {})
            said = str(result.content)
            assert ("done" in said) is passes, said
            assert ("needs a person's consent" in said) is not passes


async def test_a_second_host_gives_its_servers_up_only_to_a_colonnade_that_serves_them(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Its servers are added to the file of a running Colonnade, where they wait for a reload."""
    program, *arguments = BARE_PYTHON
    (tmp_path / "clock.py").write_text(CLOCK)
    cursor, gemini = tmp_path / ".cursor" / "mcp.json", tmp_path / ".gemini" / "settings.json"
    for file, name in ((cursor, "one"), (gemini, "two")):
        write(
            file, {"mcpServers": {name: {"command": program, "args": [*arguments, str(tmp_path / "clock.py"), name]}}}
        )

    async def colonnade(*words: str) -> str:
        done = await trio.run_process(
            [COLONNADE, *words], env=environment, cwd=tmp_path, capture_stdout=True, capture_stderr=True
        )
        return (done.stdout + done.stderr).decode()

    said = await colonnade("import", "cursor", "--yes")
    assert "colonnade reload" not in said
    serve = StdioServerParameters(
        command=COLONNADE, args=["serve", "--stdio", "--own", "colonnade.yaml"], env=environment, cwd=tmp_path
    )
    async with SdkClient(serve).client as client:
        said = await colonnade("import", "gemini", "--merge", "--yes", "--approve")
        assert said.index("  colonnade reload ") < said.index("  colonnade connect gemini --move ")
        said = await colonnade("connect", "gemini", "--move", "--yes")
        assert "still starts two by itself, which the running Colonnade does not serve yet" in said
        assert set(json.loads(gemini.read_text())["mcpServers"]) == {"two", "colonnade"}
        answers = {r"Apply them\? \[y/N\] ": "y", r"Write this\? \[y/N\] ": "y"}
        command = [COLONNADE, "connect", "gemini", "--move"]
        code, person = await trio.to_thread.run_sync(answered, command, answers, tmp_path, environment, 60)
        assert (code, person.typed) == (0, ["y", "y"]), person.said
        assert list(json.loads(gemini.read_text())["mcpServers"]) == ["colonnade"]
        with trio.fail_after(30):
            while "two__get_time" not in [tool.name for tool in (await client.list_tools()).tools]:  # noqa: ASYNC110
                await trio.sleep(0.1)
