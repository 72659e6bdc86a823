"""The files of docs/views.md, served as they stand there: what each caller gets at each address, in both eras, is what
the page says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from .running import ROOT, Running, colonnade, serving, until

PAGE = (ROOT / "docs" / "views.md").read_text("utf-8")
TOKENS = {"ci": "ci-0123456789abcdef", "laptop": "laptop-0123456789abcdef"}
PATIENCE = 20.0
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


def files() -> list[tuple[str, str]]:
    """Each file of the page that says whom it offers what, and the text up to the next one."""
    pieces = re.split(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    return [(file, said) for file, said in zip(pieces[1::2], pieces[2::2], strict=True)]


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table with this head, without quotes."""
    _, _, below = text.partition(f"| {head} |\n")
    lines = re.match(r"(?:\|.*\n)*", below)[0].splitlines()[1:]  # type: ignore[index]  # it matches nothing too
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


class Caller:
    """A client with the token of a caller; `any` has none. One request at a time, each in a session of its own if the
    era has sessions."""

    def __init__(self, http: httpx.Client, host: Running, name: str, *, stateless: bool) -> None:
        self._http = http
        self._base = host.url.rpartition("/mcp")[0]
        self._stateless = stateless
        self._headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if name in TOKENS:
            self._headers["authorization"] = f"Bearer {TOKENS[name]}"

    def ask(self, address: str, method: str, params: dict[str, Any]) -> dict[str, Any] | int:
        """The answer, or the status of HTTP if it is another one than 200."""
        headers = dict(self._headers)
        if self._stateless:
            headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
            if "name" in params:
                headers["mcp-name"] = params["name"]
            params = {**params, "_meta": META}
        else:
            info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
            opened = self._post(address, headers, {"id": 0, "method": "initialize", "params": info})
            if opened.status_code != 200:
                return opened.status_code
            headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            self._post(address, headers, {"method": "notifications/initialized"})
        answer = self._post(address, headers, {"id": 1, "method": method, "params": params})
        if answer.status_code not in (200, 400):
            return answer.status_code
        text = answer.text
        if answer.headers["content-type"].startswith("text/event-stream"):
            text = [line for line in text.splitlines() if line.startswith("data: {")][-1].removeprefix("data: ")
        found: dict[str, Any] = json.loads(text)
        return found

    def _post(self, address: str, headers: dict[str, str], message: dict[str, Any]) -> httpx.Response:
        body = json.dumps({"jsonrpc": "2.0", **message})
        return self._http.post(self._base + address, headers=headers, content=body, timeout=PATIENCE)

    def tools(self, address: str) -> list[str] | int:
        names: list[str] = []
        params: dict[str, Any] = {}
        while True:
            answer = self.ask(address, "tools/list", params)
            if isinstance(answer, int):
                return answer
            names += [tool["name"] for tool in answer["result"]["tools"]]
            if (cursor := answer["result"].get("nextCursor")) is None:
                return names
            params = {"cursor": cursor}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(ROOT / "examples", tmp_path_factory.mktemp("page") / "examples"))


@pytest.mark.parametrize("number", range(len(files())))
@pytest.mark.timeout(120)  # a host, and a list of 500 tools for each row
def test_a_file_of_the_page_offers_what_the_page_says(
    number: int, examples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = files()[number]
    offered = rows(said, "caller | address | tools")
    assert offered, "the page says what this file offers"
    for name, token in TOKENS.items():
        monkeypatch.setenv(f"{name.upper()}_TOKEN", token)
    file = examples / "views" / "colonnade.yaml"
    file.write_text(text)
    with serving(file, "office", "notes", options=["--port", "0"]) as host, httpx.Client(trust_env=False) as http:
        for stateless in (False, True):
            for name, address, tools in offered:
                found = Caller(http, host, name, stateless=stateless).tools(address.strip("`"))
                if tools == "404":
                    assert found == 404, (name, address)
                elif tools.isdigit():
                    assert isinstance(found, list)
                    assert len(found) == int(tools), (name, address)
                else:
                    assert found == re.findall(r"`(.+?)`", tools), (name, address)
            for tool, arguments, gets in rows(said, "`call` | arguments of the client | the server gets"):
                caller = Caller(http, host, "any", stateless=stateless)
                params = {"name": tool.strip("`"), "arguments": json.loads(arguments.strip("`"))}
                answer = caller.ask("/mcp", "tools/call", params)
                assert isinstance(answer, dict)
                if gets.startswith("nothing"):
                    assert answer["error"]["code"] == -32602, answer
                else:
                    assert answer["result"]["content"][0]["text"] == gets.strip("`"), answer


@pytest.mark.timeout(120)
def test_the_walk_from_500_tools_to_four_says_what_the_page_says(examples: Path) -> None:
    """The running host takes the view over when its file is saved."""
    before, after = re.findall(r"```text\n(office .*?)```", PAGE, re.DOTALL)
    file = examples / "views" / "colonnade.yaml"
    shutil.copy(ROOT / "examples" / "views" / "colonnade.yaml", file)

    def listed(*options: str) -> str:
        """Nothing if the host has no such view."""
        return colonnade("list", "--config", str(file), *options, COLONNADE_STATE=str(file.parent / "state")).stdout

    with serving(file, "office", "notes", options=["--port", "0"]):
        assert listed().startswith(before)
        file.write_text(files()[0][0])
        assert until(lambda: listed("--view", "billing"), "the saved view is taken over") == after


def test_the_page_begins_with_the_file_of_the_example() -> None:
    """With a view in front."""
    example = (ROOT / "examples" / "views" / "colonnade.yaml").read_text().partition("servers:")[2]
    assert files()[0][0].partition("\nservers:")[2] == example
