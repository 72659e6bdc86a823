"""A server with definitions that official clients refuse, beside a good one: the SDK's client gets all the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.servers.refused import LEFT_OUT, WRITTEN

from .clients import SDK_LEAKS, sdk, text_of
from .running import BARE_PYTHON, SERVERS, Running, beside, colonnade, recorder, serving, write_config

pytestmark = SDK_LEAKS


@dataclass
class Setting:
    host: Running
    file: Path


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder: Path = tmp_path_factory.mktemp("refused")
    server = {"command": [*BARE_PYTHON, str(SERVERS / "refused.py")]}
    file = write_config(folder, {"bad": server, "good": recorder(folder / "good.log")})
    with serving(file, "bad", "good") as host:
        yield Setting(host, file)


async def test_the_sdk_gets_every_definition_that_it_accepts_in_some_form(here: Setting) -> None:
    async with sdk(here.host.url) as client:
        tools = await client.names()
        assert [name for name in tools if name.startswith("bad__")] == [
            f"bad__{name}" for name in ("first", *WRITTEN, "last")
        ]
        assert "good__echo" in tools
        resources = (await client.client.list_resources()).resources
        assert [str(each.uri) for each in resources if each.name in ("first", "size", "last")] == [
            f"bad+memo:{name}" for name in ("first", "size", "last")
        ]
        assert [each.name for each in (await client.client.list_resource_templates()).resource_templates] == ["last"]
        assert [each.name for each in (await client.client.list_prompts()).prompts] == ["bad__first", "bad__last"]
        assert text_of(await client.client.call_tool("bad__boolean", {"a": 1})) == "called"


def test_what_no_client_accepts_is_named_in_the_log_and_by_list(here: Setting) -> None:
    listed = colonnade("list", "--url", here.host.url, COLONNADE_STATE=beside(here.file)["COLONNADE_STATE"])
    assert listed.returncode == 0, listed.stderr
    for told in (listed.stdout, here.host.errors):
        for name in LEFT_OUT:
            assert f"the tool '{name}' (its inputSchema: " in told
        assert "the resource 'memo:nameless' (it has no name; " in told
        assert "the resource 'memo' (its URI has no scheme; " in told
        assert "the template 'memo:{a}' (it has no name; " in told
        assert "the prompt 'nameless' (its arguments: it has no name; " in told
        assert not any(f"'{name}'" in told for name in WRITTEN)
