"""A relay: its parts, and its loop between a client and hosts that a test plays. Real ones: tests/real/test_relay.py"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import Raw

import config.environment
from host import relay
from host.jsonrpc.messages import ErrorBody, Failure
from host.jsonrpc.raw import encode
from host.relay import (
    _INTERRUPTED,
    _OUTCOME_UNKNOWN,
    CONFIG_NAME,
    MAX_FAILURES,
    MAX_HELLO,
    MAX_LINE,
    MAX_UNREAD,
    PROGRAM_VARIABLES,
    Options,
    Relay,
    _End,
    _is_host,
    _Side,
    handed_over,
    named_variables,
    read_options,
    run,
    socket_path,
    state_path,
)
from host.relay_start import FirstAnswers
from tests.real.running import ROOT, until


def request(method: str, params: object = None, id: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--stdio", "a.yaml"], ("a.yaml", "/state", "", "")),
        (["a.yaml", "--stdio", "--log-level=debug"], ("a.yaml", "/state", "debug", "")),
        (["a.yaml", "--stdio", "--log-level=error,calls=info"], ("a.yaml", "/state", "error,calls=info", "")),
        (["--stdio", "--state", "/s", "a.yaml"], ("a.yaml", "/s", "", "")),
        (["--stdio", "a.yaml", "--view", "coding"], ("a.yaml", "/state", "", "coding")),
        (["--stdio", "--view=coding"], ("", "/state", "", "coding")),
        (["--stdio", "a.yaml", "--view"], None),
        (["--stdio", "--own", "a.yaml"], None),
        (["--stdio", "a.yaml", "b.yaml"], None),
        (["--stdio", "--port", "1", "a.yaml"], None),
        (["--stdio", "--state"], None),
        (["--stdio", "--log-level", "loud", "a.yaml"], None),
        (["--stdio", "--log-level", "info,calls", "a.yaml"], None),
        (["--stdio", "--help"], None),
        (["a.yaml"], None),
    ],
)
def test_what_the_command_line_is_left_to_say(arguments: list[str], found: tuple[str, str, str, str] | None) -> None:
    options = read_options(arguments, {"COLONNADE_STATE": "/state"})
    assert (None if options is None else (options.file, options.state, options.log_level, options.view)) == found


def test_the_file_is_looked_for_where_the_command_line_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def found() -> str:
        options = read_options(["--stdio"], environ)
        assert options is not None
        return options.file

    assert found() == ""
    own = tmp_path / "config" / "colonnade" / CONFIG_NAME
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert found() == str(own)
    (tmp_path / CONFIG_NAME).write_text("")
    assert found() == CONFIG_NAME


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"COLONNADE_STATE": "/s"}, "/s"),
        ({"XDG_STATE_HOME": "/x"}, "/x/colonnade"),
        ({"XDG_STATE_HOME": "relative"}, "~/.local/state/colonnade"),
        ({}, "~/.local/state/colonnade"),
    ],
)
def test_the_state_directory(environ: dict[str, str], path: str) -> None:
    assert state_path(None, environ) == os.path.expanduser(path)
    assert state_path("/given", environ) == "/given"


def test_one_file_has_one_socket_whatever_path_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    assert socket_path("/s", str(tmp_path / "a.yaml")) == socket_path("/s", str(tmp_path / "b.yaml"))
    assert socket_path("/s", str(tmp_path / "a.yaml")) != socket_path("/s", str(tmp_path / "c.yaml"))


def test_the_variables_that_a_file_may_mean() -> None:
    text = b"a: ${env:ONE}\nb: ${env:TWO:-x}\nc: $THREE ${FOUR} {env:FIVE} $${env:SIX}\nd: ${file:seven}"
    assert named_variables(text) >= {"ONE", "TWO", "THREE", "FOUR", "FIVE"}


def test_a_relay_hands_over_what_the_file_mentions_in_any_form() -> None:
    text = b"""bearer_token_env_var = "ONE"
env_vars = ["TWO"]
url = "https://$THREE/${env:FOUR:-x}"
env_keys:
  - FIVE
"""
    values = {name: name.lower() for name in ("ONE", "TWO", "THREE", "FOUR", "FIVE", "DOCKER_HOST")}
    assert handed_over(text, {**values, "OTHER": "o"}) == values
    assert handed_over(text, {"ONE": os.fsdecode(b"\xff"), "TWO": "\u00e9"}) == {"TWO": "\u00e9"}
    known = {name for names in config.environment.PROGRAM_VARIABLES.values() for name in names}
    assert sorted(known) == sorted(PROGRAM_VARIABLES)


@pytest.mark.parametrize(
    "text",
    ["daemon: false\n", "servers: {}\ndaemon: false # no\n", '{"daemon": false, "servers": {}}', "{daemon: false}"],
)
def test_a_file_may_want_a_host_for_each_client(tmp_path: Path, text: str) -> None:
    file = tmp_path / CONFIG_NAME
    file.write_text(text)
    assert run(["--stdio", str(file), "--state", str(tmp_path)]) is None


def test_a_configuration_from_a_pipe_is_not_read_here(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / CONFIG_NAME)
    assert run(["--stdio", str(tmp_path / CONFIG_NAME), "--state", str(tmp_path)]) is None


def test_it_loads_nothing_of_this_package_but_itself_and_the_version() -> None:
    program = (
        "import sys; from host.__main__ import main; from host import relay\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('host', 'config', 'trio', 'click')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['host', 'host.__main__', 'host.opening', 'host.relay', 'host.version']"


class MacConnection:
    """What `getsockopt` gives on macOS."""

    def __init__(self, version: int, user: int) -> None:
        self._credentials = struct.pack("=IIhxx16I", version, user, 1, *range(16))

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option, size) == (0, 1, len(self._credentials))  # SOL_LOCAL, LOCAL_PEERCRED
        return self._credentials


@pytest.mark.parametrize(("version", "other", "is_host"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_host_of_macos_is_a_process_of_this_user(
    monkeypatch: pytest.MonkeyPatch, version: int, other: int, is_host: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert _is_host(cast(socket.socket, MacConnection(version, os.geteuid() + other))) is is_host


# The loop


class Played:
    """Hosts and the client of a relay, which runs in a thread. The client's input and output are pipes."""

    def __init__(self, folder: Path) -> None:
        self.options = Options(str(folder / CONFIG_NAME), str(folder / "state"), "")
        self.path = socket_path(self.options.state, self.options.file)
        Path(self.path).parent.mkdir(parents=True, mode=0o700)
        self.starting: list[Callable[[], None]] = []
        """What each next start of a host does."""
        self.starts = 0
        self.said = b""
        """What a host that starts says."""
        source, self.input = os.pipe()
        self.output, sink = os.pipe()
        self._ours = [source, sink]
        first_answers = lambda: FirstAnswers(self.options.state, self.options.file)  # noqa: E731
        self._relay = Relay(self.options, HELLO, _Side(source, sink), self._start, first_answers)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._rest = b""
        self._ended: BaseException | None = None
        self._listening: list[socket.socket] = []
        self._hosts: list[PlayedHost] = []

    def _run(self) -> None:
        try:
            self._relay.run()
        except BaseException as end:  # noqa: BLE001 - looked at by `end`
            self._ended = end
        self._relay._drop_host()
        self._relay._release_lock()
        for each in self._ours:
            os.close(each)

    def _start(self) -> int:
        self.starts += 1
        reading, writing = os.pipe()
        if self.starting:
            self.starting.pop(0)()
        os.write(writing, self.said)
        os.close(writing)
        return reading

    def begin(self) -> None:
        self._thread.start()

    def listen(self) -> None:
        """Listen as a host; one before has ended."""
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.path)
        listening.listen()
        listening.settimeout(PATIENCE)
        self._listening.append(listening)

    def host(self, answer: bytes = b'{"accepted":true}\n') -> PlayedHost:
        """The next connection of the relay, after its first line was answered."""
        until(lambda: self._listening, "a host listens", PATIENCE)
        connection, _ = self._listening[-1].accept()
        connection.settimeout(PATIENCE)
        host = PlayedHost(connection)
        self._hosts.append(host)
        assert host.hear() == json.loads(HELLO)
        connection.sendall(answer)
        return host

    def hang_up(self) -> None:
        """Answer nothing to whoever comes, until the relay has ended."""
        self._listening[-1].settimeout(0.05)
        while self._thread.is_alive():
            with suppress(TimeoutError):
                self._listening[-1].accept()[0].close()

    def say(self, *messages: object) -> None:
        """Each is a message, or a line as bytes."""
        for message in messages:
            os.write(self.input, (message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")

    def hear_line(self) -> bytes:
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.output], [], [], PATIENCE)
            assert ready, f"nothing came but {self._rest[:200]!r}"
            data = os.read(self.output, 1 << 20)
            assert data, f"the relay has ended: {self._ended!r}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def hear(self) -> Any:
        return json.loads(self.hear_line())

    def end(self) -> tuple[int, str]:
        """How the relay has ended: its status, and what it said."""
        self._thread.join(PATIENCE)
        assert isinstance(self._ended, _End), self._ended
        return self._ended.code, str(self._ended)

    def close(self) -> None:
        os.close(self.input)
        for host in self._hosts:
            host.end()
        self._thread.join(PATIENCE)
        os.close(self.output)
        for listening in self._listening:
            listening.close()


class PlayedHost:
    """A connection of the relay, at the host's end."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._lines = connection.makefile("rb")

    def hear_line(self) -> bytes:
        """The next line without its end; nothing at the end of the connection."""
        return self._lines.readline().removesuffix(b"\n")

    def hear(self) -> Any:
        return json.loads(self.hear_line())

    def say(self, message: Mapping[str, object]) -> None:
        self.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def answer(self, message: Mapping[str, Any], result: object) -> None:
        self.say({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def fail(self, id: int | str | None) -> None:
        """Answer with an error, in the words of a host."""
        self.connection.sendall(bytes(encode(Failure(ErrorBody(-32601, "no", Raw(b'{"id":1}')), id))) + b"\n")

    def end(self) -> None:
        self._lines.close()
        self.connection.close()


PATIENCE = 20.0
HELLO = b'{"colonnade":"1"}\n'
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
OFFER = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": True}, "logging": {}}}


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.close()


@pytest.fixture
def host(played: Played) -> PlayedHost:
    """A host that is there before the relay."""
    played.listen()
    played.begin()
    return played.host()


def shake_hands(played: Played, host: PlayedHost) -> None:
    played.say(request("initialize", {"protocolVersion": "2025-11-25"}, "first"))
    host.answer(host.hear(), OFFER)
    assert played.hear()["id"] == "first"
    played.say(INITIALIZED)
    assert host.hear() == INITIALIZED


def open_again(played: Played, offer: object = OFFER) -> PlayedHost:
    """The next host, which is asked for what the client was told."""
    host = played.host()
    opening = host.hear()
    assert opening["method"] == "initialize"
    host.answer(opening, offer)
    return host


def lost(id: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": _INTERRUPTED, "message": _OUTCOME_UNKNOWN}}


def test_what_is_said_before_a_host_is_there_comes_to_it_once_and_in_order(played: Played) -> None:
    said = [request("tools/list", {}, number) for number in range(3)]
    played.say(*said)
    played.starting = [played.listen]
    played.begin()
    host = played.host()
    assert [host.hear() for _ in said] == said
    host.answer(said[1], {"tools": []})
    assert played.hear()["id"] == 1
    assert played.starts == 1
    os.write(played.input, b'{"jsonrpc":"2.0","id":7,')
    played.listen()
    host.end()
    assert [played.hear()["id"] for _ in range(2)] == [0, 2]
    os.write(played.input, b'"method":"ping"}\n')
    assert played.host().hear() == request("ping", id=7)


def test_a_session_goes_on_with_the_next_host(played: Played, host: PlayedHost) -> None:
    shake_hands(played, host)
    level = request("logging/setLevel", {"level": "info"}, "level")
    watched, listed = request("resources/subscribe", {"uri": "a:/b"}, 3), request("tools/list", id=4)
    for message in (level, watched, listed):
        played.say(message)
        host.answer(host.hear(), {"tools": []})
        assert played.hear()["id"] == message["id"]
    played.say(request("tools/call", {"name": "x"}, 5))
    host.say({"jsonrpc": "2.0", "id": 70, "method": "roots/list"})
    host.say({"jsonrpc": "2.0", "id": 71, "method": "elicitation/create"})
    host.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 71}})
    assert [played.hear().get("id") for _ in range(3)] == [70, 71, None]
    host.hear()
    played.listen()
    host.end()
    assert played.hear() == lost(5)
    cancelled = played.hear()
    assert (cancelled["method"], cancelled["params"]["requestId"]) == ("notifications/cancelled", 70)
    played.say(request("tools/call", {"name": "y"}, 6))
    host = open_again(played)
    again = [host.hear() for _ in range(4)]
    assert again[0] == INITIALIZED
    assert [each["method"] for each in again[1:]] == ["logging/setLevel", "resources/subscribe", "tools/list"]
    assert all(str(each["id"]).startswith("colonnade-relay-") for each in again[1:])
    assert host.hear()["id"] == 6
    assert played.hear() == {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": "a:/b"},
    }
    for each in again[1:]:
        host.answer(each, {"tools": [1]})
    assert played.hear()["method"] == "notifications/tools/list_changed"
    host.answer({"id": 6}, {})
    assert played.hear()["id"] == 6


def test_an_answer_to_a_former_host_does_not_answer_the_next_one(played: Played, host: PlayedHost) -> None:
    shake_hands(played, host)
    host.say({"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"})
    assert played.hear()["id"] == 1
    played.listen()
    host.end()
    assert played.hear()["method"] == "notifications/cancelled"
    late = {"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}
    played.say(late)
    host = open_again(played)
    assert host.hear() == INITIALIZED
    host.say({"jsonrpc": "2.0", "id": 2, "method": "elicitation/create"})
    assert played.hear()["id"] == 2
    ping, answer = request("ping", id=9), {"jsonrpc": "2.0", "id": 2, "result": {}}
    played.say(late, [late, ping], answer)
    assert host.hear() == [ping]
    assert host.hear() == answer


def test_what_was_answered_with_an_error_is_not_answered_again(played: Played, host: PlayedHost) -> None:
    shake_hands(played, host)
    for id in (5, 'a\\","id":7}'):
        played.say(request("tools/call", id=id))
        host.fail(host.hear()["id"])
        assert played.hear()["id"] == id
    played.say(request("ping", id=6))
    host.hear()
    host.end()
    assert played.hear() == lost(6)


def test_a_host_that_refuses_the_opening_ends_the_relay(played: Played, host: PlayedHost) -> None:
    shake_hands(played, host)
    host.end()
    host = played.host()
    host.fail(host.hear()["id"])
    code, why = played.end()
    assert (code, "start anew" in why) == (1, True)


@pytest.mark.parametrize("id", ["1.0", "1e400", "true", "[1]", '"\\ud800"', f"{1 << 63}", "9" * 5000])
def test_an_id_that_no_host_answers_is_not_answered_at_its_end_either(
    played: Played, host: PlayedHost, id: str
) -> None:
    shake_hands(played, host)
    played.say(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}'.encode(), request("ping", id=7))
    host.hear_line()
    assert host.hear()["id"] == 7
    host.end()
    assert played.hear() == lost(7)
    open_again(played)
    played.say(request("ping", id=8))
    played._hosts[-1].end()
    assert played.hear() == lost(8)


def test_a_handshake_that_a_host_did_not_answer_is_begun_again(played: Played, host: PlayedHost) -> None:
    opening = request("initialize", {"protocolVersion": "2025-11-25"}, 1)
    played.say(opening, INITIALIZED, request("tools/list", id=2))
    for _ in range(3):
        host.hear()
    played.listen()
    host.end()
    assert played.hear() == lost(2)
    host = played.host()
    assert [host.hear(), host.hear()] == [opening, INITIALIZED]


@pytest.mark.parametrize("less", [{"capabilities": {"tools": {}}}, {"protocolVersion": "2025-06-18"}])
def test_a_host_that_offers_less_ends_the_relay(played: Played, host: PlayedHost, less: Mapping[str, object]) -> None:
    shake_hands(played, host)
    played.listen()
    host.end()
    open_again(played, {**OFFER, **less})
    code, why = played.end()
    assert (code, "offers less than before" in why) == (1, True)


def test_a_stateless_client_is_subscribed_again_without_a_second_acknowledgement(
    played: Played, host: PlayedHost
) -> None:
    listen, discover = request("subscriptions/listen", {"notifications": {}}, "s"), request("server/discover", id=1)
    acknowledged = {
        "jsonrpc": "2.0",
        "method": "notifications/subscriptions/acknowledged",
        "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": "s"}},
    }
    played.say(discover, listen, request("tools/call", {"name": "x"}, 2))
    assert [host.hear()["id"] for _ in range(3)] == [1, "s", 2]
    host.answer(discover, {})
    host.say(acknowledged)
    assert [played.hear() for _ in range(2)][1] == acknowledged
    played.listen()
    host.end()
    assert played.hear() == lost(2)
    host = played.host()
    assert host.hear() == listen
    host.say(acknowledged)
    host.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    assert played.hear()["method"] == "notifications/tools/list_changed"
    host.answer(listen, {"resultType": "complete"})
    assert played.hear()["id"] == "s"
    played.listen()
    host.end()
    host = played.host()
    played.say(discover)
    assert host.hear() == discover


LINES = [
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"n": %b}}' % (b"7" * 5000),
    b'{"jsonrpc":"2.0","id":2,"method":"x","params":%b}' % (b"[" * 5000 + b"]" * 5000),
    b'{"jsonrpc":"2.0","id":3,"method":[]}',
    b'{"jsonrpc":"2.0","id":{"a":1},"method":"x"}',
    b'{"jsonrpc":"2.0","id":null,"method":7}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"tools/call"}',
    b'{"jsonrpc":"2.0","id":3,"params":1}',
    b'{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":[]}\r',
    b'{"jsonrpc":"2.0","id":5,"method":"x","result":1,"error":2}',
    b'[1,"a",null,[],{}]',
    b"[]",
    b"7",
    b"no JSON",
    b"\xff\xfe",
    b'{"a":\x00}',
]


def test_what_a_client_says_comes_as_it_is(played: Played, host: PlayedHost) -> None:
    played.say(b"", b"\r", *LINES)
    assert [host.hear_line() for _ in LINES] == LINES
    played.say(request("ping", id=9), request("ping", id=9))
    assert [host.hear()["id"] for _ in range(2)] == [9, 9]
    host.fail(None)
    host.fail(9)
    assert [played.hear().get("id") for _ in range(2)] == [None, 9]
    host.end()
    assert [played.hear()["id"] for _ in range(4)] == [1, 3, 4, 5]


def test_large_messages_go_both_ways(played: Played, host: PlayedHost) -> None:
    text = "x" * (MAX_LINE - 1000)
    asked = request("tools/call", {"text": text})
    writer = threading.Thread(target=played.say, args=(asked,))
    writer.start()
    assert host.hear() == asked
    writer.join()
    writer = threading.Thread(target=host.answer, args=(asked, {"text": text}))
    writer.start()
    assert played.hear()["result"] == {"text": text}
    writer.join()


def test_a_line_that_is_too_long_ends_the_session_as_a_host_would_end_it(played: Played, host: PlayedHost) -> None:
    def flood() -> None:
        with suppress(BrokenPipeError):
            played.say(b"x" * 4 * MAX_LINE)

    writer = threading.Thread(target=flood)
    writer.start()
    assert MAX_LINE < len(host.hear_line()) <= MAX_LINE + 64 * 1024
    assert host.hear_line() == b""
    host.fail(None)
    host.end()
    assert "id" not in played.hear()
    assert played.end() == (0, "")
    writer.join()


def written_until_full(descriptor: int) -> int:
    os.set_blocking(descriptor, False)
    count = 0
    while select.select([], [descriptor], [], 0.1)[1]:
        count += os.write(descriptor, (b"y" * 1023 + b"\n") * 64)
    os.set_blocking(descriptor, True)
    return count


def test_a_side_that_does_not_read_stops_the_other_one(played: Played, host: PlayedHost) -> None:
    to_host = written_until_full(played.input)
    to_client = written_until_full(host.connection.fileno())
    for count in (to_host, to_client):
        assert MAX_UNREAD < count < 4 * MAX_UNREAD
    for _ in range(to_host // 1024):
        assert len(host.hear_line()) == 1023
    for _ in range(to_client // 1024):
        assert len(played.hear_line()) == 1023


@pytest.mark.parametrize("line_end", [b"\n", b""])
def test_the_end_of_input_is_passed_on_and_what_was_said_then_comes_back(
    played: Played, host: PlayedHost, line_end: bytes
) -> None:
    os.write(played.input, json.dumps(request("ping")).encode() + line_end)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), played.input)
    assert host.hear() == request("ping")
    assert host.hear_line() == b""
    host.answer({"id": 1}, {"text": "z" * 300_000})
    host.end()
    assert len(played.hear()["result"]["text"]) == 300_000
    assert played.end() == (0, "")


def test_a_host_that_does_not_end_with_its_client_does_not_hold_the_relay(
    played: Played, host: PlayedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LEAVE_TIMEOUT", 0.1)
    shake_hands(played, host)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), played.input)
    assert host.hear_line() == b""
    assert played.end() == (0, "")


def test_a_client_whose_output_nobody_reads_is_gone(played: Played, host: PlayedHost) -> None:
    shake_hands(played, host)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), played.output)
    assert played.end() == (0, "")
    assert host.hear_line() == b""


def test_what_a_host_that_cannot_start_says_is_the_end(played: Played) -> None:
    played.said = b"colonnade: a.yaml:1: no\n"
    played.begin()
    assert played.end() == (2, "colonnade: a.yaml:1: no")


def test_a_host_that_is_killed_while_it_starts_is_started_again(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_START_PAUSE", 0.01)
    played.starting = [lambda: None, lambda: None, played.listen]
    played.begin()
    played.say(request("ping"))
    assert played.host().hear() == request("ping")
    assert played.starts == 3


@pytest.mark.few(2)
@pytest.mark.parametrize("answer", [b"", b"[]\n", b"7\n", b"no JSON\n", b'{"leaves":true}\n', b'{"leaves":true}'])
def test_what_answers_as_no_host_does_is_asked_again_for_a_while(
    played: Played, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(relay, "START_TIMEOUT", 0.3)
    played.listen()
    played.begin()
    for _ in range(2):
        played.host(answer).end()
    played.hang_up()
    code, why = played.end()
    assert (code, "could be started" in why) == (1, True)
    assert played.starts == 0


def test_a_host_that_accepts_nobody_does_not_hold_the_relay(played: Played) -> None:
    """A host that is stopped: its queue is full."""
    with socket.socket(socket.AF_UNIX) as stopped, ExitStack() as stack:
        stopped.bind(played.path)
        stopped.listen(0)
        with suppress(BlockingIOError):
            for _ in range(3):
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(played.path)
        played.starting = [played.listen]
        played.begin()
        played.say(request("ping"))
        assert played.host().hear() == request("ping")


def test_first_answers_of_before_a_host_are_not_used_after_it(played: Played) -> None:
    """Much can be decided while it runs."""
    read: list[Left] = []

    class Left(FirstAnswers):
        def __init__(self) -> None:
            read.append(self)

        def answer(self, message: dict[str, Any], opened: dict[str, Any] | None) -> str | None:
            return json.dumps({"initialize": OFFER, "tools/list": {"tools": len(read)}}.get(message["method"]))

    played._relay._read_first_answers = Left
    played.begin()
    played.say(request("initialize", {"protocolVersion": "2025-11-25"}, "first"))
    assert played.hear()["result"] == OFFER
    played.say(INITIALIZED)
    played.listen()
    host = open_again(played)
    assert host.hear() == INITIALIZED
    played.say(request("ping", id="gone"))
    assert host.hear()["id"] == "gone"
    played._listening.pop().close()
    host.end()
    assert played.hear() == lost("gone")
    played.say(request("tools/list", {}, "second"))
    assert played.hear()["result"] == {"tools": 2}


def test_a_host_that_says_nothing_is_left(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "HELLO_TIMEOUT", 0.1)
    played.listen()
    played.begin()
    played.host(b'{"accep')
    code, why = played.end()
    assert (code, "does not answer" in why) == (1, True)


def test_what_floods_the_relay_before_it_is_a_host_is_left(played: Played) -> None:
    played.listen()
    played.begin()
    flooding = played.host(b"").connection
    with pytest.raises(ConnectionError):
        flooding.sendall(b"x" * 64 * MAX_HELLO)
    played.say(request("ping"))
    assert played.host().hear() == request("ping")


def test_a_refusal_is_the_end(played: Played) -> None:
    played.listen()
    played.begin()
    played.host(b'{"refused":"not you"}\n')
    assert played.end() == (2, "not you")


def test_hosts_that_end_at_once_again_and_again_end_the_relay(played: Played, host: PlayedHost) -> None:
    for _ in range(MAX_FAILURES):
        host.end()
        host = played.host()
    host.end()
    code, why = played.end()
    assert (code, "again and again" in why) == (1, True)


def test_hosts_that_answer_something_may_end_at_any_time(played: Played, host: PlayedHost) -> None:
    for number in range(2 * MAX_FAILURES):
        played.say(request("ping", id=number))
        host.answer(host.hear(), {})
        assert played.hear()["id"] == number
        host.end()
        host = played.host()


def test_a_lock_that_is_never_freed_delays_a_start(
    played: Played, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is named once that takes longer than a moment."""
    monkeypatch.setattr(relay, "MOMENT", 0.05)
    monkeypatch.setattr(relay, "LOCK_TIMEOUT", 0.2)
    with open(f"{played.path}.start", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        played.starting = [played.listen]
        played.begin()
        played.say(request("ping"))
        assert played.host().hear() == request("ping")
    said = capfd.readouterr().err
    assert said.count(f"perhaps another process holds {played.path}.start") == 1


@pytest.mark.parametrize("plant", ["mkdir", "mkfifo", "symlink"])
def test_a_planted_lock_or_socket_holds_nobody(played: Played, plant: str, tmp_path: Path) -> None:
    def make(path: str) -> None:
        if plant == "symlink":
            os.symlink(tmp_path / "nothing", path)
        else:
            getattr(os, plant)(path)

    make(played.path)
    make(f"{played.path}.start")
    played.said = b"no"
    played.begin()
    code, why = played.end()
    assert code == 2
    # A lock on a named pipe is as good as one on a file; of the other two the relay says what is in its way.
    assert why == "no" if plant == "mkfifo" else f"{played.path}.start cannot be used" in why
    assert not (tmp_path / "nothing").exists()
