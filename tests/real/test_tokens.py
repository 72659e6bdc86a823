"""Access tokens that change while a real host serves, and what it records of those who come in vain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import trio

from host.cli.exit_codes import DONE

from .clients import PATIENCE, HandClient
from .running import Running, colonnade, recorder, serving, until, write_config

TOKENS = {"laptop": "laptop-0123456789abcdef", "desk": "desk-0123456789abcdef"}
NEW = "another-0123456789abcdef"


def with_tokens(folder: Path, watch: str = "off", callers: Mapping[str, object] | None = None, **listen: Any) -> Path:
    for name, token in TOKENS.items():
        (folder / name).write_text(token)
    tokens = {name: f"${{file:{name}}}" for name in TOKENS}
    listen = {"address": "127.0.0.1:0", "auth": {"tokens": tokens}, **listen}
    rules = {"tools": {"deny": ["exit"]}}
    more = {} if callers is None else {"callers": callers, "history": {}}
    servers = {"a": {**recorder(folder / "a.log"), "consent": rules}}
    return write_config(folder, servers, listen=listen, watch=watch, **more)


class Console:
    """The web console of a host, as a page of it speaks."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self.http = http
        self.origin = url.removesuffix("/mcp")
        self.headers = {"origin": self.origin}
        self.number = 0

    async def sign_in(self, token: str) -> int:
        answer = await self.http.post(f"{self.origin}/console/open", json={"token": token}, headers=self.headers)
        if answer.status_code == 200:
            cookie = answer.headers["set-cookie"].partition(";")[0]
            self.headers |= {"cookie": cookie, "x-colonnade-console": answer.json()["secret"]}
        return answer.status_code

    async def post(self, path: str, body: object) -> httpx.Response:
        self.number += 1
        headers = {**self.headers, "x-colonnade-sequence": str(self.number)}
        return await self.http.post(f"{self.origin}/api/v1/{path}", json=body, headers=headers)


@asynccontextmanager
async def bearing(url: str, token: str) -> AsyncIterator[HandClient]:
    async with httpx.AsyncClient(trust_env=False, verify=False, headers={"authorization": f"Bearer {token}"}) as http:
        client = HandClient(http, url, "2025-11-25")
        await client.open()
        yield client


def attempts(state: Path) -> list[dict[str, Any]]:
    lines = [line for path in (state / "audit").glob("*.jsonl") for line in path.read_text().splitlines()]
    return [record for line in lines if (record := json.loads(line))["kind"] == "attempts"]


def reloaded(host: Running, file: Path) -> str:
    done = colonnade("reload", COLONNADE_STATE=str(file.parent / "state"))
    assert (done.returncode, done.stderr) == (DONE, ""), host.errors
    return done.stdout


async def test_a_changed_token_ends_its_sessions_and_no_others(tmp_path: Path) -> None:
    """Also on a connection that repeats the head of its last request. What was in vain is recorded at the end."""
    file = with_tokens(tmp_path)
    with serving(file, "a") as host:
        async with bearing(host.url, TOKENS["laptop"]) as laptop, bearing(host.url, TOKENS["desk"]) as desk:
            answers: list[dict[str, Any]] = []

            async def wait() -> None:
                params = {"name": "a__together", "arguments": {"of": 2, "note": "desk 1"}}
                answers.append(await desk.ask("tools/call", params, 2))

            async def ping(client: HandClient) -> int:
                body = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
                answer = await client.http.post(client.url, json=body, headers=client.headers, timeout=PATIENCE)
                return answer.status_code

            async with trio.open_nursery() as nursery:
                assert "error" in await laptop.ask("tools/call", {"name": "a__exit"})
                assert await ping(laptop) == 200
                nursery.start_soon(wait)
                await trio.to_thread.run_sync(until, lambda: "desk 1" in (tmp_path / "a.log").read_text(), "it is sent")
                (tmp_path / "laptop").write_text(NEW)
                assert await ping(laptop) == 200
                said = await trio.to_thread.run_sync(reloaded, host, file)
                assert "listen.auth: token laptop has another value" in said
                assert [await ping(laptop), await ping(laptop), await ping(desk)] == [401, 401, 200]
                async with bearing(host.url, NEW) as again:
                    assert await ping(again) == 200
                    again.headers["mcp-session-id"] = laptop.headers["mcp-session-id"]
                    assert await ping(again) == 404
                params = {"name": "a__together", "arguments": {"of": 2, "note": "desk 2"}}
                assert "result" in await desk.ask("tools/call", params, 4)
            assert "result" in answers[0]
    told = attempts(tmp_path / "state")
    found = {(each["why"], each["prim"], each["item"], each["principal"]): each for each in told}
    assert found.keys() == {("denied", "tool", "a__exit", "laptop"), ("wrong token", "path", "/mcp", "")}
    assert found["wrong token", "path", "/mcp", ""]["count"] == 2
    assert {each["address"] for each in found.values()} == {"127.0.0.1"}
    assert colonnade("audit", "verify", COLONNADE_STATE=str(tmp_path / "state")).returncode == DONE


def test_a_saved_file_withdraws_a_token_and_a_new_one_waits_for_a_person(tmp_path: Path) -> None:
    file = with_tokens(tmp_path, watch="on")

    def status(token: str) -> int:
        url = host.url.rpartition("/")[0] + "/status"
        return httpx.get(url, headers={"authorization": f"Bearer {token}"}, trust_env=False).status_code

    with serving(file, "a") as host:
        assert [status(token) for token in (*TOKENS.values(), NEW)] == [200, 200, 401]
        (tmp_path / "new").write_text(NEW)
        file.write_text(file.read_text().replace("laptop", "new"))
        until(lambda: status(TOKENS["laptop"]) == 401, f"the token is withdrawn; {host.errors}")
        assert [status(token) for token in (TOKENS["desk"], NEW)] == [200, 401]
        assert "token new added" in reloaded(host, file)
        assert [status(token) for token in (TOKENS["desk"], NEW)] == [200, 200]


async def test_a_caller_sees_its_own_calls_on_the_console_for_as_long_as_its_token_and_the_file_say(
    tmp_path: Path,
) -> None:
    """Without the key, as in a file of before, its token opens nothing there."""
    file = with_tokens(tmp_path, callers={name: {"token": name} for name in TOKENS})
    with serving(file, "a") as host:
        for name, token in TOKENS.items():
            async with bearing(host.url, token) as client:
                for tool in ("exit", "nothing"):
                    await client.ask("tools/call", {"name": f"a__{tool}", "arguments": {}})
                await client.ask("tools/call", {"name": "a__together", "arguments": {"of": 1, "note": name}}, 7)
        async with httpx.AsyncClient(trust_env=False) as http:
            console = Console(http, host.url)
            assert await console.sign_in(TOKENS["laptop"]) == 403
            with_tokens(tmp_path, callers={"me": {"token": "laptop", "history": "own"}, "desk": {"token": "desk"}})
            await trio.to_thread.run_sync(reloaded, host, file)
            assert await console.sign_in(TOKENS["desk"]) == 403
            assert await console.sign_in(TOKENS["laptop"]) == 200
            found = (await console.post("history/list", {})).json()["calls"]
            assert [(each["caller"], each["item"]) for each in found] == [("laptop", "together")]
            (shown,) = [(await console.post("history/call", {"id": each["id"]})).json() for each in found]
            assert {each["kind"] for each in shown["records"]} == {"decision", "outcome"}
            assert (await console.post("explain", {"server": "a", "kind": "tool", "name": "exit"})).status_code == 403
            assert (await http.get(f"{console.origin}/api/v1/state", headers=console.headers)).status_code == 403
            (tmp_path / "laptop").write_text(NEW)
            await trio.to_thread.run_sync(reloaded, host, file)
            assert (await console.post("history/list", {})).status_code == 403
            assert await console.sign_in(NEW) == 200
            assert (await console.post("history/list", {})).json()["calls"] == found
