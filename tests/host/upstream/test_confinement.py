"""Servers with a sandbox: what their program is started with, and the state that they have if it cannot be had."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from config import StdioServer, Unconfined
from config.references import Secret
from config.sandbox import ContainerClient, Sandbox, SandboxFiles
from host.journal import Event, Journal, OutputLine, ServerConfined, ServerUnconfined
from host.sanitize import without_directories
from host.storage.directory import open_state
from host.upstream.confinement import _REMEDIES, CannotConfine, confine
from host.upstream.connect import open_link
from host.wire.link import LinkLost
from host.wire.process import NotConfined, open_keeper
from tests.kit.kernel import needs_namespaces


def server(sandbox: Sandbox, *words: str) -> StdioServer:
    return StdioServer(id="a", command=tuple(Secret(word, word) for word in words), cwd=Path("/"), sandbox=sandbox)


@pytest.mark.disk
@needs_namespaces
async def test_a_program_is_started_confined_and_that_is_told(tmp_path: Path) -> None:
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    spec = server(Sandbox(), "cat")
    async with (
        open_keeper() as keeper,
        open_link(spec, http_sse=False, keeper=keeper, journal=journal, directory=directory) as link,
    ):
        assert link.hears_unasked
    (noted,) = (each for each in events if isinstance(each, ServerConfined))
    assert "namespaces" in noted.means
    assert journal.means == {"a": noted.means}


async def test_what_cannot_be_had_is_why_it_does_not_start(tmp_path: Path) -> None:
    """Only a person mends that, so it is not tried again and again."""
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    spec = server(Sandbox(SandboxFiles(read=(str(tmp_path / "nowhere"),))), "sh")
    async with open_keeper() as keeper:
        with pytest.raises(CannotConfine) as caught:
            async with open_link(spec, http_sse=False, keeper=keeper, journal=Journal(), directory=directory):
                raise AssertionError
    assert isinstance(caught.value, LinkLost)
    assert caught.value.lasting
    assert f'the path "{tmp_path}/nowhere" of its sandbox: it is not there' in str(caught.value)


async def test_no_client_is_told_the_folders_of_a_path(tmp_path: Path) -> None:
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    spec = server(Sandbox(SandboxFiles(read=('/srv/of "Ann"\'s/my data',))), "sh")
    with pytest.raises(NotConfined) as caught:
        await confine(spec, {}, directory)
    said = str(CannotConfine(spec, caught.value))
    assert said.endswith("it is not there): make it, or name its folder")
    assert "/srv" not in without_directories(said)


@pytest.mark.parametrize("step", _REMEDIES)
def test_each_refusal_has_its_remedy(step: str) -> None:
    sandbox = Sandbox(with_=ContainerClient.PODMAN, image="acme/x:1")
    said = str(CannotConfine(server(sandbox, "x"), NotConfined(step, os.strerror(errno.EPERM))))
    step, remedy = (
        text.replace("{runtime}", "podman").replace("{image}", "acme/x:1") for text in (step, _REMEDIES[step])
    )
    assert said.startswith(f'the program "x" was not started, because it cannot be confined as sandbox says ({step}: ')
    assert said.endswith(remedy)


@pytest.mark.parametrize("step", _REMEDIES)
def test_one_that_is_confined_by_its_trust_can_be_started_without(step: str) -> None:
    """Nobody wrote a sandbox, so the words do not say so. It is not started for all that."""
    spec = replace(server(Sandbox(), "x"), confined_by_trust=True)
    said = str(CannotConfine(spec, NotConfined(step, os.strerror(errno.EPERM))))
    assert said.startswith('the program "x" was not started, because it is not trusted, and cannot be confined (')
    assert said.count("sandbox: off") == 1


async def test_one_that_runs_as_before_is_told_at_each_start(tmp_path: Path) -> None:
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    spec = replace(server(Sandbox(), "cat"), sandbox=None, confined_by_trust=True, unconfined=Unconfined.OPEN)
    async with open_keeper() as keeper:
        for each in (spec, replace(spec, unconfined=Unconfined.CHOSEN)):
            async with open_link(each, http_sse=False, keeper=keeper, journal=journal):
                pass
    assert [event for event in events if not isinstance(event, OutputLine)] == [ServerUnconfined("a")]


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    (directory.path / "sandbox").touch()
    with pytest.raises(NotConfined) as caught:
        await confine(server(Sandbox(), "sh"), {}, directory)
    assert caught.value.step == "folders of its own"
