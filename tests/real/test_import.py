"""The imported servers of a home with files of several hosts, served and listed by the official client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from mcp.client.stdio import StdioServerParameters

from .clients import SdkClient
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
    assert "hunter2" not in said + (work / "colonnade.yaml").read_text()
    assert (work / "colonnade.secrets" / "same.API_KEY").read_text() == "hunter2"
    serve = StdioServerParameters(
        command=COLONNADE, args=["serve", "--stdio", "colonnade.yaml"], env=environment, cwd=work
    )
    client = SdkClient(serve)
    async with client.client:
        tools = (await client.client.list_tools()).tools
    names = {tool.name.partition("__")[0] for tool in tools}
    assert names == {"same"}  # few offers nothing, and no file says that the project may be started
    assert (tmp_path / "a.log").exists()
    assert not (work / "p.log").exists()
