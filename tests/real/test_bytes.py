"""What crosses the host unharmed, byte for byte, whatever JSON allows; by hand, in every handshake revision, over HTTP
and over stdio, to servers over either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers.recorder import LINKED, ODD

from .clients import LineClient, by_hand, initialize, line_client
from .running import (
    heard,
    heard_method,
    listening,
    pids_below,
    recorder,
    serving,
    until,
    write_config,
)

REVISIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
each_revision = pytest.mark.parametrize("revision", REVISIONS)
each_server = pytest.mark.parametrize("server", ["pipe", "web"])

# A client's numbers are finite; all else may be as odd as what servers send.
ARGUMENTS = (
    b'{"price":1.10,"long":12345678901234567890123,"less":-0.0,"power":1E+2,"tiny":1e-400,"cut":"\\ud83d",'
    b'"escapes":"\\u00e9 \\/ \xc3\xa9 \\u2028 \xe2\x80\xa8", "spaces" : [ 1 , {"b":2,"a":1} ],"":null}'
)


@dataclass
class Setting:
    url: str
    file: Path
    logs: dict[str, Path]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("bytes")
    logs = {server: folder / f"{server}.log" for server in ("pipe", "web")}
    with ExitStack() as stack:
        command = [*recorder(logs["web"])["command"], "--http", "0"]
        _, url = stack.enter_context(listening(*command, folder=folder))
        file = write_config(folder, {"pipe": recorder(logs["pipe"]), "web": {"url": url}})
        yield Setting(stack.enter_context(serving(file, "pipe", "web")).url, file, logs)


@pytest.fixture(scope="module")
def lines(here: Setting) -> Iterator[LineClient]:
    """A host of its own, over stdio, with the same servers."""
    with line_client(here.file) as client:
        client.open()
        yield client
        assert client.leave() == 0


def call(name: str, arguments: bytes = b"{}", meta: bytes = b"") -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b","arguments":%b%b}}' % (
        name.encode(),
        arguments,
        b',"_meta":' + meta if meta else b"",
    )


async def over_http(url: str, message: bytes) -> bytes:
    async with by_hand(url) as client:
        (answer,) = await client.post(message)
        return answer


def text_in(answer: bytes) -> bytes:
    """The text of a result, as UTF-8: what `echo` got."""
    text: str = json.loads(answer)["result"]["content"][0]["text"]
    return text.encode()


@each_revision
async def test_each_revision_over_http(here: Setting, revision: str) -> None:
    """The revision that is asked for is the one that is served: handshake, list, call, and ping."""
    async with by_hand(here.url, revision) as client:
        tools = (await client.ask("tools/list"))["result"]["tools"]
        assert {"pipe__echo", "web__echo"} < {tool["name"] for tool in tools}
        for server in ("pipe", "web"):
            answer = await client.ask(
                "tools/call", {"name": f"{server}__steps", "arguments": {"count": 0, "note": "n"}}
            )
            assert answer["result"] == {"content": [{"type": "text", "text": "n"}]}
        assert await client.ask("ping") == {"jsonrpc": "2.0", "id": 1, "result": {}}


@each_revision
async def test_progress_in_each_revision_over_http(here: Setting, revision: str) -> None:
    """Reports come before the answer on its own stream, under the client's token."""
    async with by_hand(here.url, revision) as client:
        *reports, answer = await client.post(
            call("web__steps", b'{"count":2,"note":"n"}', b'{"progressToken":"\\u0074"}')
        )
    assert [json.loads(report)["params"]["progressToken"] for report in reports] == ["t", "t"]
    assert text_in(answer) == b"n"


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-1]])
def test_the_oldest_and_the_newest_revision_over_stdio(tmp_path: Path, revision: str) -> None:
    """The same, line by line."""
    with line_client(write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})) as client:
        opened = client.open(revision)
        assert opened["protocolVersion"] == revision
        listed = json.loads(client.answer(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'))
        assert "a__echo" in [tool["name"] for tool in listed["result"]["tools"]]
        client.say(call("a__steps", b'{"count":2,"note":"n"}', b'{"progressToken":5}'))
        reports = [json.loads(client.hear())["params"] for _ in range(2)]
        assert [(report["progressToken"], report["progress"]) for report in reports] == [(5, 1), (5, 2)]
        assert text_in(client.hear()) == b"n"
        assert client.leave() == 0


async def test_an_unknown_revision_is_answered_with_the_latest_one(here: Setting, lines: LineClient) -> None:
    async with by_hand(here.url) as client:
        client.headers.pop("mcp-session-id")
        client.headers.pop("mcp-protocol-version")
        (answer,) = await client.post(initialize("1999-12-31"))
        assert json.loads(answer)["result"]["protocolVersion"] == REVISIONS[-1]


@each_server
async def test_results_come_back_byte_for_byte_over_http(here: Setting, server: str) -> None:
    """Numbers as they were written, lone surrogates, unknown members, the order and even the spaces."""
    answer = await over_http(here.url, call(f"{server}__odd"))
    assert answer == b'{"jsonrpc":"2.0","id":1,"result":' + ODD + b"}"


@each_server
def test_results_come_back_byte_for_byte_over_stdio(lines: LineClient, server: str) -> None:
    wait_listed(lines, f"{server}__odd")
    answer = lines.answer(call(f"{server}__odd"))
    assert answer == b'{"jsonrpc":"2.0","id":1,"result":' + ODD + b"}\n"


def wait_listed(client: LineClient, name: str) -> None:
    listing = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    until(lambda: name.encode() in client.answer(listing), f"{name} is listed")


@each_server
async def test_only_the_uri_of_a_link_is_changed(here: Setting, server: str) -> None:
    """Every other byte of the result stays; what looks like a URI in structured content is the server's own affair."""
    answer = await over_http(here.url, call(f"{server}__linked"))
    wanted = LINKED.replace(b'"uri":"memo://1","name"', b'"uri":"%b+memo://1","name"' % server.encode())
    assert answer == b'{"jsonrpc":"2.0","id":1,"result":' + wanted + b"}"


@each_server
async def test_at_a_servers_mount_nothing_is_changed(here: Setting, server: str) -> None:
    answer = await over_http(f"{here.url}/{server}", call("linked"))
    assert answer == b'{"jsonrpc":"2.0","id":1,"result":' + LINKED + b"}"


@each_server
async def test_arguments_arrive_byte_for_byte_over_http(here: Setting, server: str) -> None:
    assert b'"arguments":' + ARGUMENTS in text_in(await over_http(here.url, call(f"{server}__echo", ARGUMENTS)))


@each_server
def test_arguments_arrive_byte_for_byte_over_stdio(lines: LineClient, server: str) -> None:
    wait_listed(lines, f"{server}__echo")
    assert b'"arguments":' + ARGUMENTS in text_in(lines.answer(call(f"{server}__echo", ARGUMENTS)))


@each_server
async def test_meta_of_others_arrives_byte_for_byte(here: Setting, server: str) -> None:
    """Beside a progress token of the client's, which is not passed on."""
    async with by_hand(here.url) as client:
        meta = b'{"io.example/x":{"n":1.10,"s":"\\ud83d"},"progressToken":"mine"}'
        got = text_in((await client.post(call(f"{server}__echo", b"{}", meta)))[-1])
    assert b'"io.example/x":{"n":1.10,"s":"\\ud83d"}' in got
    assert b"mine" not in got


@each_server
async def test_unknown_params_arrive_byte_for_byte(here: Setting, server: str) -> None:
    """A member that no revision knows is not ours to drop."""
    message = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%b__echo","vendor":[1.0, null]}}'
        % server.encode()
    )
    assert b'"vendor":[1.0, null]' in text_in(await over_http(here.url, message))


@pytest.mark.parametrize("number", [b"1E400", b"-1e999", b"NaN", b"9" * 5000])
async def test_numbers_that_parsers_disagree_on_do_not_reach_a_server(here: Setting, number: bytes) -> None:
    """From a client they are refused, and what is behind them is not called."""
    before = len(heard(here.logs["pipe"]))
    async with by_hand(here.url) as client:
        answer = await client.http.post(
            client.url, content=call("pipe__echo", b'{"n":' + number + b"}"), headers=client.headers
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32700
    assert len(heard(here.logs["pipe"])) == before


def test_the_end_of_input_ends_everything(tmp_path: Path) -> None:
    """A stdio client that leaves: its call is called off at the server, the host ends with 0, its children too."""
    log = tmp_path / "a.log"
    with line_client(write_config(tmp_path, {"a": recorder(log)})) as client:
        client.open()
        wait_listed(client, "a__hang")
        client.say(call("a__hang", b"{}", b'{"progressToken":1}'))
        assert b"notifications/progress" in client.hear()
        below = pids_below(client.process.pid)
        assert any(str(log) in command for command in below.values())
        assert client.leave() == 0
        (hung,) = heard_method(log, "tools/call")
        cancels = heard_method(log, "notifications/cancelled")
        assert [notice["params"]["requestId"] for notice in cancels] == [hung["id"]]
        assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []


def test_a_host_that_leaves_says_nothing_but_messages(tmp_path: Path) -> None:
    """Every line on standard output is a message, also when a server is noisy and another one cannot be started."""
    servers: dict[str, Any] = {"a": recorder(tmp_path / "a.log"), "gone": {"command": [str(tmp_path / "nowhere")]}}
    with line_client(write_config(tmp_path, servers)) as client:
        client.open()
        wait_listed(client, "a__fail")
        assert json.loads(client.answer(call("a__fail")))["result"]["isError"] is True
        gone = json.loads(client.answer(call("gone__any")))["result"]
        assert gone["isError"] is True
        assert gone["content"][0]["text"].startswith("gone is unavailable: ")
        assert client.leave() == 0
        while line := client.hear():
            assert json.loads(line)["jsonrpc"] == "2.0"
