"""The scripts of the attacks: that they measure, and that they attack with what they say."""

from __future__ import annotations

import json
import random
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
import trio

from tests.kit.web_server import answering

from .attacks import FAMILIES, LARGE_MESSAGES, REQUEST_FLOODS
from .boundaries import BOUNDARIES, spellings
from .figures import read_passes
from .good_client import Client, Phase
from .hostile_client import LARGEST, body_of, mutation
from .measured_host import PassClock
from .server import Paged, Renamed, fold, lax, spellings_of, useless


def test_every_attack_has_a_name_of_its_own() -> None:
    names = [*BOUNDARIES, *(attack.name for family in FAMILIES for attack in family.attacks)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["name", "arguments", "message", "requestedSchema"])
def test_a_lax_reader_takes_each_spelling_for_the_name_and_an_exact_one_does_not(name: str) -> None:
    for spelling in spellings_of(name):
        text = f'{{"{name}":1,{spelling}:2}}'
        assert lax(json.loads(text, object_pairs_hook=list)) == {fold(name): 2}
        assert json.loads(text)[name] == 1


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", [*REQUEST_FLOODS, *LARGE_MESSAGES])
def test_a_flood_consists_of_whole_messages(kind: str) -> None:
    lines = useless(kind).splitlines()
    if kind == "large malformed":
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(lines[0])
        return
    messages = [json.loads(line) for line in lines]
    assert len({each.get("id") for each in messages}) == len(messages)


def burn(seconds: float) -> None:
    """Need so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.slow
def test_the_clock_sees_the_processor_time_of_a_pass_and_no_waiting() -> None:
    clock = PassClock()

    async def work() -> None:
        burn(0.05)
        await trio.sleep(0.2)
        await trio.to_thread.run_sync(burn, 0.3)  # another thread's time is not the loop's
        burn(0.02)
        await trio.lowlevel.checkpoint()

    trio.run(work, instruments=[clock])
    passes = read_passes(clock.report().splitlines(), 0, time.monotonic())
    assert 0.05 <= passes.longest < 0.3


def test_a_pass_that_lasts_is_reported_while_it_lasts() -> None:
    clock = PassClock()
    lines: list[str] = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        burn(0.03)
        lines.extend(clock.report().splitlines())

    trio.run(work, instruments=[clock])
    assert read_passes(lines, 0, time.monotonic()).longest >= 0.03


class Host(BaseHTTPRequestHandler):
    """As much of a host as the good client needs. The call with `freezes` waits until it is told to go on."""

    protocol_version = "HTTP/1.1"
    freezes: int
    frozen: Event
    wrong: bool

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        result: object = {}
        if message["method"] == "tools/call":
            number = message["params"]["arguments"]["n"]
            if number == self.freezes:
                self.frozen.wait(10)
            result = {"content": [{"type": "text", "text": "wrong" if self.wrong else str(number)}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        self.send_response(200)
        self.send_header("Mcp-Session-Id", "s")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def url() -> object:
    Host.freezes, Host.frozen, Host.wrong = -1, Event(), False
    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Host)) as port:
        yield f"http://127.0.0.1:{port}/mcp"
        Host.frozen.set()


@pytest.mark.slow
def test_a_host_that_stands_still_delays_every_call_that_was_due(url: str) -> None:
    """A closed loop would count one slow call; a worker's later calls were due all the same."""
    Host.freezes = 3
    phase = Phase(40, 400, limit=5, timeout=5, listen=False)
    working = Thread(target=phase.work, args=[Client(url, "good__echo", None, fresh=False), 0])
    working.start()
    while len(phase.latencies) < 2:
        Event().wait(0.005)
    Event().wait(0.3)  # far longer than all calls take: 10 calls, one every 10 ms
    Host.frozen.set()
    working.join()
    assert phase.errors == []
    assert len(phase.latencies) == 10
    assert sum(latency > 0.2 for latency in phase.latencies) >= 8


def test_calls_that_were_due_and_never_begun_count(url: str) -> None:
    Host.freezes = 1
    phase = Phase(40, 400, limit=0.2, timeout=0.3, listen=False)
    phase.work(Client(url, "good__echo", None, fresh=False), 0)
    assert len(phase.latencies) == 10
    assert len(phase.errors) == 1
    assert "timed out" in phase.errors[0]


def test_an_answer_that_is_not_the_calls_own_is_an_error(url: str) -> None:
    Host.wrong = True
    phase = Phase(4, 400, limit=5, timeout=5, listen=False)
    phase.work(Client(url, "good__echo", None, fresh=False), 0)
    assert [error.split(":")[0] for error in phase.errors] == ["Wrong"]


@pytest.mark.few(2)
@pytest.mark.parametrize("which", ["members", "objects", "integers", "escapes"])
def test_the_bodies_are_legal(which: str) -> None:
    """Within the limits of docs/operations.md: what they attack is the time that it takes to find that out."""
    body = body_of(which, "other__echo")
    assert len(body) <= LARGEST
    assert sum(body.count(mark) for mark in (b"{", b"[", b",")) <= 200_000
    assert json.loads(body)["params"]["name"] == "other__echo"


def test_the_escapes_fill_the_largest_body() -> None:
    assert len(body_of("escapes", "asked__echo")) > LARGEST - 100


def test_spellings_have_the_plain_suffixes_first_and_follow_from_the_seed() -> None:
    found = spellings("/d/.env", 500, 1)
    for suffix in ("?", "?x=1", "#", "#frag", "/", "/."):
        assert f"file:///d/.env{suffix}" in found
    assert found == spellings("/d/.env", 500, 1)
    assert len(set(found)) > 300


def test_mutations_follow_from_the_seed_and_change_the_request() -> None:
    sound = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    made = [mutation(sound, random.Random(seed)) for seed in range(200)]
    assert made == [mutation(sound, random.Random(seed)) for seed in range(200)]
    assert len(set(made)) > 150
    assert made.count(sound) < 20


def test_lists_have_their_sizes_and_no_name_of_the_reading_before() -> None:
    for server, size in ((Renamed("renamed", None), 9_999), (Paged("paged", None), 22_000)):
        server.entries = 9_999
        first, second = (
            {tool["name"] for page in range(server.pages) for tool in server.page(page, generation)}
            for generation in (1, 2)
        )
        assert len(first) == len(second) == size
        assert not first & second
