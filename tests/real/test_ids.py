"""Ids and progress tokens belong to whoever gave them: many clients that all count from 1 get each its own answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from .clients import HandClient, by_hand
from .running import Running, heard_method, listening, recorder, serving, write_config

SESSIONS = 20
CALLS = 10
"""Of each session; half of them at each server."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ids")
    return {server: folder / f"{server}.log" for server in ("pipe", "web")}


@pytest.fixture(scope="module")
def host(logs: dict[str, Path]) -> Iterator[Running]:
    """One server over stdio and one over HTTP."""
    folder = logs["web"].parent
    command = [*recorder(logs["web"])["command"], "--http", "0"]
    with listening(*command, folder=folder) as (_, url):
        with serving(
            write_config(folder, {"pipe": recorder(logs["pipe"]), "web": {"url": url}}), "pipe", "web"
        ) as host:
            yield host


async def call_all(url: str, token: object | None) -> dict[str, list[bytes]]:
    """200 calls with id 1 that are all in flight at once, by the note that each must get back; servers answer once
    their hundred have come, the last one first."""
    answers: dict[str, list[bytes]] = {}

    async def call(client: HandClient, server: str, note: str) -> None:
        params: dict[str, Any] = {
            "name": f"{server}__together",
            "arguments": {"of": SESSIONS * CALLS // 2, "note": note},
        }
        if token is not None:
            params["_meta"] = {"progressToken": token}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answers[note] = await client.post(json.dumps(body).encode())

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(by_hand(url)) for _ in range(SESSIONS)]
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(clients):
                for turn in range(CALLS):
                    server = ("pipe", "web")[turn % 2]
                    nursery.start_soon(call, client, server, f"{server} {number}/{turn}")
    return answers


async def test_200_calls_with_one_id_are_answered_each_at_its_caller(host: Running) -> None:
    """20 sessions, 2 servers, 200 calls in flight that all have the id 1: 200 right answers."""
    answers = await call_all(host.url, None)
    assert len(answers) == SESSIONS * CALLS
    for note, messages in answers.items():
        (answer,) = (json.loads(message) for message in messages)
        assert answer == {"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": note}]}}


async def test_equal_progress_tokens_report_each_to_its_caller(host: Running, logs: dict[str, Path]) -> None:
    """The same with the same progress token everywhere: both reports of each call, under the token it was given; at
    the servers no two calls share one."""
    answers = await call_all(host.url, "t")
    assert len(answers) == SESSIONS * CALLS
    for note, messages in answers.items():
        *reports, answer = (json.loads(message) for message in messages)
        assert answer["result"]["content"][0]["text"] == note
        assert [report["params"] for report in reports] == [
            {"progressToken": "t", "progress": step, "message": note} for step in (1, 2)
        ]
    for log in logs.values():
        metas = [call["params"].get("_meta", {}) for call in heard_method(log, "tools/call")]
        tokens = [meta["progressToken"] for meta in metas if "progressToken" in meta]
        assert len(tokens) == len(set(tokens))  # those of calls without a token, which are texts, included
        assert len([token for token in tokens if isinstance(token, int)]) == SESSIONS * CALLS // 2


@pytest.mark.parametrize("id", ["1", 1, "", 2**53 + 1, -7, "ä\u2028"])
async def test_an_id_comes_back_as_it_was(host: Running, id: int | str) -> None:
    """A string stays a string and a number a number, whatever the server was asked under."""
    async with by_hand(host.url) as client:
        answer = await client.ask("tools/call", {"name": "web__steps", "arguments": {"count": 0, "note": "n"}}, id)
        assert (type(answer["id"]), answer["id"]) == (type(id), id)
        assert answer["result"]["content"][0]["text"] == "n"
