"""Whether the rows of `config/known_servers.toml` still hold, each proved with the published packages that it names."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import trio
from mcp import Client

from config.known_servers import KNOWN, KnownServer
from tests.kit.ports import free_port
from tests.published.install import NeedsPython, install_python
from tests.published.places import Place, listening_places
from tests.published.servers import BY_PACKAGE
from tests.real.clients import initialize
from tests.real.running import serving, write_config

CLIENTS, CALLS = 4, 5
_ANSWER = b'"protocolVersion"'


def check_known(packages: Collection[str] | None = None) -> list[str]:
    """Everything wrong with the rows: one that does not reproduce, one without a check, a check without a row.

    Args:
        packages: those that are installed; rows of others are left out then. Of a row that installs its packages
            itself, the first one stands for all.
    """
    rows = {row.id: row for row in KNOWN}
    if packages is not None:
        for id, row in list(rows.items()):
            if not row.packages.keys() & BY_PACKAGE.keys():
                rows[id] = replace(row, packages=dict(list(row.packages.items())[:1]))
            elif not row.packages.keys() <= set(packages):
                del rows[id]
    wrong = [f"{id}: there is no check of this row" for id in rows.keys() - CHECKS.keys()]
    wrong += [f"{id}: there is no such row" for id in CHECKS.keys() - {row.id for row in KNOWN}]
    for id, row in rows.items():
        if id in CHECKS:
            wrong += [f"{id}: {problem}"] if (problem := CHECKS[id](row)) else []
    return wrong


def _memory(row: KnownServer) -> str:
    """Calls at once lose entries in one of three tries, and with the keys of the row they lose none."""
    keys = row.change["keys"]
    assert isinstance(keys, dict)
    every = CLIENTS * CALLS
    if not any(_stored({}) < every for _ in range(3)):
        return f"all {every} entities are stored"
    stored = _stored(keys)
    return "" if stored == every else f"of {every} entities {stored} are stored with its keys"


def _stored(keys: Mapping[str, Any]) -> int:
    """Entities that the memory server has stored after calls at once that all succeeded."""
    with tempfile.TemporaryDirectory() as name:
        place = Place(BY_PACKAGE["npm:@modelcontextprotocol/server-memory"], Path(name))
        entry = {"command": place.words(), "env": place.env("known"), "trust": "trusted", **keys}
        with serving(write_config(Path(name), {"memory": entry}), "memory") as host:
            trio.run(_create, f"{host.url}/memory")
        lines = (Path(name) / "memory.jsonl").read_text().splitlines()
        names = {json.loads(line)["name"] for line in lines}
    return len(names)


async def _create(url: str) -> None:
    async def one(client: Client, name: str) -> None:
        entity = {"name": name, "entityType": "x", "observations": []}
        result = await client.call_tool("create_entities", {"entities": [entity]})
        assert not result.is_error, result

    async def all_of(number: int) -> None:
        async with Client(url, mode="legacy", cache=None) as client, trio.open_nursery() as nursery:
            for at in range(CALLS):
                nursery.start_soon(one, client, f"{number}-{at}")

    async with trio.open_nursery() as nursery:
        for number in range(CLIENTS):
            nursery.start_soon(all_of, number)


def _playwright(row: KnownServer) -> str:
    """The address is refused with the text of the row, and the name of the host is not."""
    with tempfile.TemporaryDirectory() as name:
        place = Place(BY_PACKAGE["npm:@playwright/mcp"], Path(name), free_port())
        with listening_places([place], "known"):
            headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
            said = []
            for host in ("127.0.0.1", str(row.change["url_host"])):
                url = f"http://{host}:{place.port}{place.server.path}"
                said.append(httpx.post(url, content=initialize("2025-11-25"), headers=headers, trust_env=False))
    refused = said[0].status_code == 403 and row.is_shown_by(said[0].text)
    return "" if refused and said[1].status_code == 200 else f"it answers {[each.status_code for each in said]}"


def _old_sdk(row: KnownServer) -> str:
    """Each package ends with one of the texts, and answers with the requirement of the row beside it. Those that need a
    newer Python than this one are left out."""
    wrong, tried = [], 0
    for package, version in row.packages.items():
        name = package.partition(":")[2]
        with suppress(NeedsPython):
            plain = _started(name, f"{name}=={version}")
            with_old = _started(name, f"{name}=={version}", str(row.change["uvx_with"]))
            tried += 1
            if _ANSWER in plain.stdout or not row.is_shown_by(plain.stderr.decode()):
                wrong.append(f"{name} does not end with the text")
            if _ANSWER not in with_old.stdout:
                wrong.append(f"{name} does not answer with the requirement")
    return "; ".join(wrong) if tried else "no package of it can be installed here"


def _started(name: str, *requirements: str) -> subprocess.CompletedProcess[bytes]:
    """A run of a program, whose input is `initialize` and ends then."""
    where = install_python(f"known-{name}-{len(requirements)}", *requirements)
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [str(where / name)],
            input=initialize("2025-11-25") + b"\n",
            capture_output=True,
            env={"HOME": folder, "PATH": os.environ["PATH"]},
            cwd=folder,
            timeout=60,
            check=False,
        )


CHECKS: dict[str, Callable[[KnownServer], str]] = {
    "memory-parallel": _memory,
    "playwright-localhost": _playwright,
    "sdk-1": _old_sdk,
}
