"""The official SDK's client starts what `colonnade connect` wrote into a host's file, as the host would."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from mcp.client.stdio import StdioServerParameters

from config.desktop.entry_form import ENTRY_FORMS
from config.desktop.hosts import HOSTS
from config.edit import get, values

from .clients import SDK_LEAKS, sdk
from .running import COLONNADE, host_of, recorder, serving, until, write_config

pytestmark = SDK_LEAKS


def colonnade(home: Path, *arguments: str) -> str:
    env = {**os.environ, "HOME": str(home), "COLONNADE_STATE": str(home / "state")}
    env.pop("XDG_CONFIG_HOME", None)
    done = subprocess.run(
        [COLONNADE, *arguments], capture_output=True, text=True, timeout=60, check=False, env=env, cwd=home
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def entry_of(home: Path, name: str) -> dict[str, Any]:
    """Our entry in the file of a host."""
    host = next(host for host in HOSTS if host.name == name)
    (file,) = (
        path
        for each in host.files
        if "*" not in each.linux and (path := each.path(home, home, {}, "linux")).is_file() and not each.is_project
    )
    root = values(file, file.read_text())
    entry: dict[str, Any] = get(root, ENTRY_FORMS[name].place(root))
    return entry


def started_by(home: Path, name: str) -> tuple[str, ...]:
    """The command with which a host starts what stands in its file."""
    entry = entry_of(home, name)
    words = entry.get("command") or entry["cmd"]
    return (*(words if isinstance(words, list) else [words]), *entry.get("args", []))


async def test_all_hosts_list_the_tools_of_all_servers(tmp_path: Path) -> None:
    """Files of any form lead to one command, which is started once for all of them."""
    servers = {"a": recorder(tmp_path / "a.log"), "b": recorder(tmp_path / "b.log")}
    file = write_config(tmp_path, servers, daemon={"idle": "1s"})
    names = [host.name for host in HOSTS]
    colonnade(tmp_path, "connect", *names, "--config", str(file), "--yes")
    commands = {started_by(tmp_path, name) for name in names}
    ((command, *arguments),) = commands
    started = StdioServerParameters(
        command=command, args=arguments, cwd="/", env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    )
    async with sdk(started) as client:
        assert {"a__echo", "b__echo"} < set(await client.names())
    colonnade(tmp_path, "disconnect", *names, "--yes")
    until(lambda: not host_of(file), "the host in the background has ended")


async def test_a_host_reaches_the_running_host_by_its_url(tmp_path: Path) -> None:
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    with serving(file, "a") as running:
        colonnade(tmp_path, "connect", "gemini", "--url", "--config", str(file), "--yes")
        entry = entry_of(tmp_path, "gemini")
        assert entry["httpUrl"] == running.url
        async with sdk(entry["httpUrl"]) as client:
            assert "a__echo" in await client.names()
