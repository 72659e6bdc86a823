"""A real host with many servers at URLs: what is remembered is listed, and only what is used is connected."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from host.cli.admin_client import RunningHost, find_hosts
from tests.kit.servers.counting import counting
from tests.real.clients import by_hand
from tests.real.running import serving, until, write_config

COUNT = 200


def running_host(folder: Path) -> RunningHost:
    """The host, once it can be asked: its port is open before."""
    (host,) = until(lambda: find_hosts(folder / "state"), "a host")
    assert isinstance(host, RunningHost)
    return host


def states(host: RunningHost) -> Counter[str]:
    return Counter(each["state"] for each in host.get("status")["servers"])


async def test_after_a_restart_only_a_call_connects(tmp_path: Path) -> None:
    """Lists and `status` do not. tests/host/upstream/test_remembered.py has what is found then."""
    with counting(tmp_path / "log") as server:
        servers = {f"s{n}": {"url": f"{server.url}/{n}"} for n in range(COUNT)}
        file = write_config(tmp_path, servers, defaults={"start": "lazy"})
        with serving(file):
            host = running_host(tmp_path)
            until(lambda: states(host) == {"ready": COUNT}, "each was never seen, and is connected")
        assert set(server.taken()[1]) == {f"/{n}" for n in range(COUNT)}
        with serving(file) as running:
            host = running_host(tmp_path)
            until(lambda: states(host) == {"stopped": COUNT}, "each is remembered")
            (row, *_) = host.get("status")["servers"]
            assert row["detail"] == "it is not connected; its next use connects it"
            async with by_hand(running.url) as client:
                names: list[str] = []
                cursor: dict[str, str] | None = {}
                while cursor is not None:
                    page = (await client.ask("tools/list", cursor))["result"]
                    names += [tool["name"] for tool in page["tools"]]
                    cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else None
                assert len(names) == len(set(names)) == 10 * COUNT
                assert server.taken() == (0, {})
                answer = await client.ask("tools/call", {"name": "s7__echo", "arguments": {"n": 1}})
                assert "result" in answer
                connections, requests = server.taken()
                assert (connections, set(requests)) == (1, {"/7"})
                assert states(host) == {"stopped": COUNT - 1, "ready": 1}
