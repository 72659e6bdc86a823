"""A server with definitions that clients could not read, beside a good one: the SDK's client reads the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .clients import SDK_LEAKS, sdk, text_of
from .running import BARE_PYTHON, SERVERS, Running, beside, colonnade, recorder, serving, write_config

pytestmark = SDK_LEAKS


@dataclass
class Setting:
    url: str
    host: Running
    file: Path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder: Path = tmp_path_factory.mktemp("unreadable")
    server = {"command": [*BARE_PYTHON, str(SERVERS / "unreadable.py"), "--instructions"]}
    file = write_config(folder, {"bad": server, "good": recorder(folder / "good.log")})
    with serving(file, "bad", "good") as host:
        yield Setting(host.url, host, file)


async def test_the_joint_lists_hold_all_that_can_be_read(here: Setting) -> None:
    async with sdk(here.url) as client:
        names = await client.names()
        assert [name for name in names if name.startswith("bad__")] == ["bad__good0", "bad__good1", "bad__good2"]
        assert "good__echo" in names
        assert [prompt.name for prompt in (await client.client.list_prompts()).prompts] == ["bad__good"]


@pytest.mark.parametrize("sort", ["digits", "surrogate", "levels"])
async def test_a_result_that_cannot_be_read_fails_its_call_and_nothing_else(here: Setting, sort: str) -> None:
    async with sdk(here.url) as client:
        failed = await client.client.call_tool("bad__good0", {"gives": sort})
        assert failed.is_error
        assert "bad sent a result that clients could not read" in text_of(failed)
        assert text_of(await client.client.call_tool("bad__good0", {"gives": "fine"})) == "fine"


def test_what_is_left_out_is_named_in_the_log_and_by_list(here: Setting) -> None:
    listed = colonnade("list", "--url", here.url, COLONNADE_STATE=beside(here.file)["COLONNADE_STATE"])
    assert listed.returncode == 0, listed.stderr
    for told in (listed.stdout, here.host.errors):
        for sort in ("digits", "surrogate", "surrogate_name", "levels", "twice", "infinite"):
            assert f"the tool '{sort}' (" in told
        assert "a tool without a readable name" in told
        assert "the prompt 'bad' (" in told
        assert "its instructions" in told
