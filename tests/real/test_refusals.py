"""Refusals by a server of the official Python SDK and by Colonnade, against the table in docs/revisions.md. The
TypeScript SDK's server is held against it by `make eras`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.kit.ports import free_port

from .refusals import SESSION, STATELESS, expected, refused, table
from .running import ROOT, SERVERS, listening, serving, write_config

each_revision = pytest.mark.parametrize("revision", [SESSION, STATELESS])
PREFIX = ("sdk__", "sdk+")


@dataclass
class Urls:
    python: str
    colonnade: str


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Urls]:
    folder = tmp_path_factory.mktemp("refusals")
    port = str(free_port())
    with listening(sys.executable, str(SERVERS / "sdk_server.py"), "--http", port, folder=folder) as (_, url):
        # The server says where it listens before it does; the host waits for that.
        with serving(write_config(folder, {"sdk": {"url": url, "trust": "trusted"}}), "sdk") as host:
            yield Urls(url, host.url)


@each_revision
def test_the_python_sdk_refuses_as_the_table_says(urls: Urls, revision: str) -> None:
    assert refused(urls.python, revision) == expected("python", revision)


@each_revision
@pytest.mark.parametrize("mount", ["/sdk", ""])
def test_colonnade_refuses_as_the_table_says(urls: Urls, revision: str, mount: str) -> None:
    found = refused(urls.colonnade + mount, revision, ("", "") if mount else PREFIX)
    assert found == expected("colonnade", revision)


def test_the_page_has_the_table() -> None:
    assert table() in (ROOT / "docs" / "revisions.md").read_text()
