"""The helper that prints headers: a real program below the keeper."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from config import HttpServer
from config.references import Secret
from host.upstream import headers_helper
from host.upstream.headers_helper import HeadersHelperFailed, run_headers_helper
from host.wire.process import open_keeper
from tests.config.kit import http, lines, load_text


def server(code: str) -> HttpServer:
    return HttpServer(
        id="a",
        url=Secret("http://127.0.0.1:9/mcp"),
        headers_helper=(Secret(sys.executable), Secret("-c"), Secret(code)),
        folder=Path("/"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(3)", "its headers_helper exited with status 3"),
        ("print('s3cr3t')", "its headers_helper printed no JSON object of texts"),
        ("print('{\"a\": 1}')", "its headers_helper printed no JSON object of texts"),
        ("print('x' * 70000)", "its headers_helper printed more than 64 KiB"),
        ("import time; time.sleep(60)", "its headers_helper took longer than 0 s"),
        ("import os; os.kill(os.getpid(), 9)", "its headers_helper was ended by signal 9"),
    ],
)
async def test_a_helper_that_fails(monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    """The sentence quotes nothing of its output."""
    if "sleep" in code:
        monkeypatch.setattr(headers_helper, "TIMEOUT", 0.4)
    async with open_keeper() as keeper:
        with pytest.raises(HeadersHelperFailed) as caught:
            await run_headers_helper(server(code), keeper)
    assert str(caught.value) == said


async def test_a_helper_that_does_not_exist() -> None:
    spec = HttpServer(id="a", url=Secret("http://h/"), headers_helper=(Secret("/nowhere/helper"),), folder=Path("/"))
    async with open_keeper() as keeper:
        with pytest.raises(HeadersHelperFailed, match="could not be started"):
            await run_headers_helper(spec, keeper)


def test_a_helper_is_a_list_and_runs_in_the_folder_of_the_file(tmp_path: Path) -> None:
    made = load_text(tmp_path, "servers: {a: {url: 'http://h/', headers_helper: [./token, --fresh]}}\n")
    spec = http(made, "a")
    assert spec.headers_helper is not None
    assert ([word.reveal() for word in spec.headers_helper], spec.folder) == (["./token", "--fresh"], tmp_path)
    for wrong in ("./token", "[]", "{a: b}"):
        (found,) = lines(tmp_path, f"servers: {{a: {{url: 'http://h/', headers_helper: {wrong}}}}}\n")
        assert "headers_helper: expected a list of a program and its arguments" in found
