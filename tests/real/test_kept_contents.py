"""Arguments and results of calls that real hosts keep for the history."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import trio

from tests.kit.stateless import stateless_request

from .clients import by_hand, line_client
from .running import STOP, Running, colonnade, heard_method, recorder, serving, until, write_config

CALL = {"name": "a__echo", "arguments": {"note": "n", "token": "t0p"}}


async def test_each_client_has_them_kept_and_a_killed_host_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    """Over HTTP in both eras and over stdio; with a file that hosts have served without the key before."""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": recorder(log)}, history={})
    with serving(file, "a") as host:
        await trio.to_thread.run_sync(call_stateless, host)
    write_config(tmp_path, {"a": recorder(log)}, history={"arguments": "redacted"})
    with serving(file, "a") as host:
        await trio.to_thread.run_sync(call_stateless, host)
        async with by_hand(host.url) as client:
            await client.ask("tools/call", CALL)
    with line_client(file) as over_stdio:
        over_stdio.open()
        for id, params in enumerate((CALL, {"name": "a__hang", "arguments": {}}), 1):
            line = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
            if id == 1:
                over_stdio.answer(line)
            else:
                over_stdio.say(line)
                until(lambda: len(heard_method(log, "tools/call")) == 5, "it is called")
    rows = history(tmp_path)
    assert [row["outcome"] for row in rows] == ["answered"] * 4 + ["unknown"]
    shown = [history(tmp_path, "show", row["id"]) for row in rows]
    decisions, outcomes = ([each[0]["records"][at] for each in shown[:4]] for at in (0, 1))
    assert [each["args"].get("redacted") for each in decisions] == [None] + ['{"note":"n","token":"***"}'] * 3
    assert ["result" in each for each in outcomes] == [False, True, True, True]
    assert "t0p" not in str(shown)


def call_stateless(host: Running) -> None:
    headers, body = stateless_request("tools/call", CALL)
    request = urllib.request.Request(host.url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=STOP) as answer:
        assert "result" in json.load(answer)


def history(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    done = colonnade("history", *arguments, "--json", "--state", str(folder / "state"))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
