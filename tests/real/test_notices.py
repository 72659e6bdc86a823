"""How people are told, from a desktop host's client to a press on the notification: a real host in the background, a
real session bus, and a small desktop on it."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.kit.desktop import NEEDS_DBUS, FakeDesktop, desktop_at, running_bus
from tests.real.clients import LineClient, line_client
from tests.real.running import colonnade, host_of, recorder, until, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120), NEEDS_DBUS]
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
TELL = "import sys; open('told', 'a').write(sys.stdin.read())"


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with running_bus() as address:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        yield address


@contextmanager
def configured(folder: Path) -> Iterator[Path]:
    servers = {"rec": {**recorder(folder / "server.log"), "consent": {"tools": "ask"}}}
    ask = {"notify": ["desktop", {"command": [sys.executable, "-c", TELL]}]}
    file = write_config(folder, servers, daemon={"idle": "1s"}, ask=ask)
    yield file
    until(lambda: not host_of(file), "no host is left")


def says_call(client: LineClient, id: int, word: str, meta: dict[str, Any] | None = None) -> None:
    params = {"name": "rec__echo", "arguments": {"text": word}, **({} if meta is None else {"_meta": meta})}
    client.say(json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode())


def answer(client: LineClient, id: int) -> dict[str, Any]:
    while (heard := json.loads(client.hear())).get("id") != id:
        pass
    found: dict[str, Any] = heard["result"]
    return found


@pytest.mark.parametrize("meta", [None, META], ids=["handshake", "stateless"])
async def test_a_press_on_the_notification_leads_to_the_confirmation(
    tmp_path: Path, bus: str, meta: dict[str, Any] | None
) -> None:
    """Over a relay, with no console and no terminal open: the call waits, and a press opens the console at it."""
    in_thread = partial(trio.to_thread.run_sync, abandon_on_cancel=True)

    async def play(client: LineClient, desktop: FakeDesktop) -> None:
        if meta is None:
            await in_thread(client.open)
        await in_thread(says_call, client, 7, "a-secret-word", meta)
        await desktop.until("shown", 1)
        _, title, text, actions = desktop.shown[0]
        assert (title, actions) == ("A call waits for you", ["default", "Answer"])
        assert re.fullmatch(r"echo of rec, for \S+", text)
        await desktop.press(1)
        await desktop.until("opened", 1)
        page = r'url=(http://[^/]*)/console#([\w-]{43})&amp;confirmation=([0-9a-f]{8})"'
        found = re.search(page, desktop.opened[0])
        assert found is not None
        origin, code, id = found.groups()
        assert await in_thread(opens, origin, code)
        assert not await in_thread(opens, origin, code)  # once
        said = await in_thread(partial(colonnade, "ask", id, "once", COLONNADE_STATE=str(tmp_path / "state")))
        assert said.returncode == 0, said.stderr
        assert not (await in_thread(answer, client, 7)).get("isError")
        await desktop.until("closed", 1)
        told = json.loads((tmp_path / "told").read_text())
        assert told["waiting"][0]["name"] == "echo"
        everything = (tmp_path / "told").read_text() + "".join(map(str, desktop.shown))
        assert "a-secret-word" not in everything
        assert code not in everything

    with configured(tmp_path) as file, line_client(file, "--stdio") as client:
        async with desktop_at(bus) as desktop:
            await play(client, desktop)


def opens(origin: str, code: str) -> bool:
    """Whether a browser would get a session of the console with this code."""
    head = {"Content-Type": "application/json", "Origin": origin}
    asked = urllib.request.Request(f"{origin}/console/open", json.dumps({"code": code}).encode(), head)
    try:
        with urllib.request.urlopen(asked) as response:
            return "secret" in json.load(response)
    except urllib.error.HTTPError as problem:
        problem.close()
        return False


def test_without_a_desktop_a_call_is_refused_at_once_and_names_the_way(tmp_path: Path, bus: str) -> None:
    """There is a session bus, and no notification service on it."""
    servers = {"rec": {**recorder(tmp_path / "server.log"), "consent": {"tools": "ask"}}}
    file = write_config(tmp_path, servers, ask={"timeout": "1h"})
    with line_client(file, "--stdio", "--own") as client:
        client.open()
        for id in (1, 2):
            says_call(client, id, "x")
            (content,) = answer(client, id)["content"]
            assert "nobody" in content["text"]
            assert "`colonnade console` opens it) or with `colonnade ask`" in content["text"]
