"""The clients that the socket for relays takes, or not: real hosts, a server that tries to be one, and Colonnade as a
server of Colonnade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from host.admin.socket import MAX_REFUSALS_RECORDED
from host.relay import socket_path
from host.version import VERSION
from tests.real.running import BARE_PYTHON, COLONNADE, Running, colonnade, recorder, serving, until, write_config
from tests.real.test_relay import relay
from tests.real.test_two_hosts import recorded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ATTEMPTS = 60
INTRUDER = f"""
import contextlib, ctypes, json, os, socket, sys, time
path, config, out = sys.argv[1:]

def attempt(line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(path)
        with contextlib.suppress(BrokenPipeError):  # it may be refused before it says anything
            connection.sendall(line)
        return connection.recv(10000).decode()

while not os.path.exists(path):
    time.sleep(0.01)
claims = dict(colonnade="{VERSION}", config=config, environment=dict(PATH="/evil"))
told = []
for trail in (None, [], ["/elsewhere.yaml"], [config]):
    told.append(attempt(json.dumps(dict(claims, trail=trail)).encode() + b"\\n"))
ctypes.CDLL(None).prctl(15, b"colonnade-link", 0, 0, 0)
if os.fork() == 0:
    told.append(attempt(json.dumps(dict(claims, trail=["/elsewhere.yaml"])).encode() + b"\\n"))
    for _ in range({ATTEMPTS}):
        told.append(attempt(b"{{"))
    with open(out + ".new", "w") as file:
        json.dump(told, file)
    os.rename(out + ".new", out)
    half_open = [socket.socket(socket.AF_UNIX) for _ in range(100)]
    for each in half_open:
        each.setblocking(False)
        each.connect_ex(path)
    time.sleep(600)
os.wait()
"""
"""A server that comes to its own host as a client: with each trail, with the name of a link's subreaper, and often."""


def test_a_server_is_no_client_of_its_host_and_keeps_nobody_out(tmp_path: Path) -> None:
    file, out = tmp_path / "colonnade.yaml", tmp_path / "out"
    path = socket_path(str(tmp_path / "state"), str(file))
    intruder = [*BARE_PYTHON, "-c", INTRUDER, path, str(file), str(out)]
    rec = {**recorder(tmp_path / "log"), "trust": "trusted"}
    write_config(tmp_path, {"evil": {"command": intruder}, "rec": rec})
    with serving(file, "rec"):
        until(out.exists, "all attempts were made")
        told = json.loads(out.read_text())
        assert len(told) == 5 + ATTEMPTS
        for line in told:
            assert "only a server whose command is colonnade itself may" in json.loads(line)["refused"]
        with relay(file) as client:
            client.open()
            assert "result" in json.loads(client.answer(_call(1, "rec__echo")))
            assert client.leave() == 0
        refusals = recorded(tmp_path / "state", "refused")
        assert refusals[0]["peer"]["name"].startswith("python")
        seconds = len({record["ts"][:19] for record in refusals}) + 1
        assert MAX_REFUSALS_RECORDED <= len(refusals) <= MAX_REFUSALS_RECORDED * seconds


def _call(id: int, tool: str) -> bytes:
    params: dict[str, Any] = {"name": tool, "arguments": {}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()


def written(folder: Path, link_to: Path | None = None) -> Path:
    """A configuration with a server, and another one that is Colonnade with that file."""
    folder.mkdir(exist_ok=True)
    servers: dict[str, Any] = {"rec": {**recorder(folder / "log"), "trust": "trusted"}}
    if link_to is not None:
        command = [COLONNADE, "serve", "--stdio", str(link_to), "--state", str(link_to.parent / "state")]
        servers["link"] = {"command": command, "trust": "trusted"}
    return write_config(folder, servers, console="off")


def refused_link(host: Running) -> str:
    """Why the link of a host does not work, once it does not."""

    def why() -> str:
        link = host.status().get("link")
        return str(link["detail"]) if link is not None and link["state"] == "failed" else ""

    found: str = until(why, "the link is refused", 30)
    return found


def reload(file: Path) -> None:
    done = colonnade("reload", "--yes", "--config", str(file), "--state", str(file.parent / "state"))
    assert done.returncode == 0, done.stderr


def test_colonnade_is_a_client_of_another_host_and_not_of_its_own_client(tmp_path: Path) -> None:
    lower_file = written(tmp_path / "lower")
    upper_file = written(tmp_path / "upper", lower_file)
    with serving(lower_file, "rec") as lower, serving(upper_file, "rec", "link") as upper:
        with relay(upper_file) as client:
            client.open()
            assert "result" in json.loads(client.answer(_call(1, "link__rec__echo")))
            assert client.leave() == 0
        listed = colonnade("list", "--clients", "--json", "--state", str(tmp_path / "lower" / "state"))
        (host,) = json.loads(listed.stdout)
        behind = [each["process"] for each in host["clients"]]
        assert [(each["program"], each["pid"]) for each in behind] == [("colonnade", upper.process.pid)]
        written(tmp_path / "lower", upper_file)
        reload(lower_file)
        assert "would be served to itself" in refused_link(lower)
        assert upper.status()["link"]["state"] == "ready"


def test_a_configuration_that_came_above_a_running_link_is_passed_on_to_it(tmp_path: Path) -> None:
    """The third host has begun to lead to the first one before the second one led to the third. Otherwise the first
    one would not know that the second one leads to it."""
    first_file = written(tmp_path / "first")
    third_file = written(tmp_path / "third", first_file)
    second_file = written(tmp_path / "second", third_file)
    with (
        serving(first_file, "rec") as first,
        serving(third_file, "link") as third,
        serving(second_file, "link") as second,
    ):
        until(lambda: len(third.state_lines("link", "ready")) == 2, "the link was started again")
        written(tmp_path / "first", second_file)
        reload(first_file)
        assert f"{second_file.name} would be served to itself" in refused_link(first)
        assert second.status()["link"]["state"] == third.status()["link"]["state"] == "ready"
