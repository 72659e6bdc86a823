"""A hundred edits of the configuration file while a host serves fifty calls a second: by a person's editor, and by a
program that would like to have more rights."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.kit.saves import remove_and_make, replace, write_in_place
from tests.kit.servers.offering import offer

from .clients import HandClient, by_hand
from .running import BARE_PYTHON, SERVERS, Running, heard_method, pid_of, recorder, serving, until

EDITS = int(os.environ.get("COLONNADE_EDITS", "100"))
CALLS_A_SECOND = 50
TOOLS = 60
SEED = 14


# Ways of saving


def linked(file: Path, text: str) -> None:
    """The file is a link from then on, to another file of another folder each time."""
    folder = file.parent / f"version-{len(list(file.parent.glob('version-*')))}"
    folder.mkdir()
    (folder / file.name).write_text(text)
    link = file.with_suffix(".link")
    link.symlink_to(folder / file.name)
    link.replace(file)


def in_halves(file: Path, text: str) -> None:
    """The first half ends between two servers or in one, as it happens."""
    with file.open("w") as writing:
        writing.write(text[: len(text) // 2])
        writing.flush()
        threading_sleep(0.1)
        writing.write(text[len(text) // 2 :])


def threading_sleep(seconds: float) -> None:
    """Wait in this thread, which writes a file as slowly as some editors."""
    signal.sigtimedwait([], seconds)


SAVES: list[Callable[[Path, str], None]] = [write_in_place, replace, remove_and_make, linked, in_halves]


class Scene:
    """A host, the file that it watches, and what has to be in force. `denied` are the tools of `edited` that the file
    denies, `in_force` those that the host denies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = Random(SEED)
        self.file = folder / "colonnade.yaml"
        self.logs = {id: folder / f"{id}.log" for id in ("steady", "other", "evil")}
        script = folder / "edited.json"
        offer(script, tools=[{"name": f"t{at}", "inputSchema": {"type": "object"}} for at in range(TOOLS)])
        self.edited: dict[str, Any] = {"command": [*BARE_PYTHON, str(SERVERS / "offering.py"), str(script)]}
        self.denied: set[str] = {"t0"}
        self.in_force: set[str] = {"t0"}
        self.restarts = 0
        self.more: dict[str, Any] = {}
        """Servers as the file has them against the will of its owner."""
        self.edits = 0

    def text(self) -> str:
        """The file as it is to be: YAML, so that it can be cut off anywhere."""
        servers: dict[str, Any] = {id: recorder(self.logs[id]) for id in ("steady", "other")}
        consent = {"tools": {"deny": sorted(self.denied)}}
        servers |= {"edited": {**self.edited, "consent": consent}, **self.more}
        lines = [f"# edit {self.edits}", "listen: {address: '127.0.0.1:0'}", "servers:"]
        return "\n".join([*lines, *(f"  {id}: {json.dumps(spec)}" for id, spec in servers.items())]) + "\n"

    def save(self, host: Running, text: str | None = None) -> str:
        """Save the file, and wait for what the host says to that."""
        self.edits += 1
        before = len(said(host))
        self.random.choice(SAVES)(self.file, self.text() if text is None else text)
        line: str = until(lambda: said(host)[before:], f"it says something to edit {self.edits}; {host.errors}")[-1]
        return line

    # Edits

    def narrow(self, host: Running) -> None:
        self.denied |= {f"t{self.random.randrange(TOOLS)}"}
        self.save(host)
        # What is denied holds at once, also while something else waits.
        self.in_force = set(self.denied) if self.in_force <= self.denied else self.in_force | self.denied

    def allow_more(self, host: Running) -> None:
        self.denied -= {self.random.choice(sorted(self.denied))} if len(self.denied) > 1 else set()
        line = self.save(host)
        if not self.in_force <= self.denied:
            assert "waits for a person" in line
            assert "the rules for tools permit more" in line

    def deny_again(self, host: Running) -> None:
        """What waits is taken back, and more is denied."""
        self.denied |= self.in_force | {f"t{self.random.randrange(TOOLS)}"}
        self.save(host)
        self.in_force = set(self.denied)

    def bring_another(self, host: Running) -> None:
        self.more["evil"] = recorder(self.logs["evil"])
        assert "evil: it is new" in self.save(host)

    def raise_another(self, host: Running) -> None:
        """Another variable and a higher trust for a server that is in use."""
        self.more["other"] = {**recorder(self.logs["other"]), "trust": "trusted", "env": {"X": str(self.edits)}}
        line = self.save(host)
        assert "other: trust rises from standard to trusted" in line
        assert "other: env has changed" in line

    def take_back(self, host: Running) -> None:
        self.more.clear()
        self.save(host)

    def entitle(self, host: Running) -> None:
        """A neutral change, for which a server is restarted."""
        self.edited["title"] = f"Title {self.edits}"
        assert "edited restarts" in self.save(host)
        self.restarts += 1

    def spoil(self, host: Running) -> None:
        text = self.random.choice(["", "servers: {a: {command: [x]", self.text()[:-9], "servers: {}\n", "- a\n"])
        before = self.file.read_text()
        assert "configuration kept" in self.save(host, f"{text}# {self.edits}\n" if text else text)
        line = self.save(host, before)
        assert "nothing has changed" in line or "nothing takes effect yet" in line

    def touch(self, host: Running) -> None:
        """Nothing changes, and nothing is said."""
        self.edits += 1
        before = len(said(host))
        os.utime(self.file)
        threading_sleep(0.5)
        assert len(said(host)) == before


def said(host: Running) -> list[str]:
    return [line for line in host.said if line.strip().startswith("configuration ")]


async def shown(client: HandClient) -> set[str]:
    answer = await client.ask("tools/list", id="list")
    return {each["name"].removeprefix("edited__") for each in answer["result"]["tools"] if "edited__" in each["name"]}


async def calls(client: HandClient, server: str, lost: list[object], counted: list[int], enough: trio.Event) -> None:
    """Half of the calls, until it is enough. `lost` are answers that are none."""

    async def one(number: int) -> None:
        params = {"name": f"{server}__echo", "arguments": {"n": number}}
        answer = await client.ask("tools/call", params, f"{server} {number}")
        if "result" not in answer or answer["result"].get("isError"):
            lost.append(answer)
        counted[0] += 1

    async with trio.open_nursery() as nursery:
        number, began = 0, trio.current_time()
        while not enough.is_set():
            number += 1
            nursery.start_soon(one, number)
            await trio.sleep_until(began + number * 2 / CALLS_A_SECOND)


@pytest.mark.timeout(400)  # real edits, each with the time that an editor takes
async def test_no_edit_loses_a_call_restarts_another_server_or_widens_without_a_person(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    write_in_place(scene.file, scene.text())
    edits = [
        *[scene.narrow, scene.allow_more, scene.deny_again] * 4,
        *[scene.bring_another, scene.raise_another, scene.take_back] * 2,
        *[scene.spoil, scene.touch, scene.entitle] * 2,
    ]
    lost, counted, enough = list[object](), [0], trio.Event()
    with serving(scene.file, "steady", "other", "edited") as host:
        pids = {id: pid_of(host.process.pid, scene.logs[id].name) for id in ("steady", "other")}
        async with by_hand(host.url) as client, by_hand(host.url) as caller, trio.open_nursery() as nursery:
            for server in pids:
                nursery.start_soon(calls, caller, server, lost, counted, enough)
            while scene.edits < EDITS:
                await trio.to_thread.run_sync(scene.random.choice(edits), host)
                expected = {f"t{at}" for at in range(TOOLS)} - scene.in_force
                assert await shown(client) == expected, f"after edit {scene.edits}"
                assert not scene.logs["evil"].exists()
            # A person takes over all that waits.
            await trio.to_thread.run_sync(scene.take_back, host)
            host.process.send_signal(signal.SIGHUP)
            at_last = {f"t{at}" for at in range(TOOLS)} - scene.denied
            with trio.fail_after(20):
                while await shown(client) != at_last:  # noqa: ASYNC110 - another process gets there
                    await trio.sleep(0.1)
            enough.set()
        status = host.status()
        assert lost == []
        assert counted[0] > EDITS
        assert {id: pid_of(host.process.pid, scene.logs[id].name) for id in pids} == pids
        assert {id: status[id]["attempts"] for id in pids} == dict.fromkeys(pids, 1)
        assert status["edited"]["attempts"] == 1
        assert all(len(heard_method(scene.logs[id], "initialize")) == 1 for id in pids)
        assert len([line for line in said(host) if "edited restarts" in line]) == scene.restarts
        print(f"{scene.edits} edits, {counted[0]} calls, {scene.restarts} restarts of the edited server")
