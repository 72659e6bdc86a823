"""Landlock alone, in a child for each case. Escapes that it holds are in tests/sandbox."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from host.sandbox import landlock
from host.sandbox.kernel import KernelRefused
from host.sandbox.privileges import drop_all
from tests.host.sandbox.forked import in_a_child
from tests.kit.kernel import NOT_HERE, needs_landlock


@needs_landlock
def test_files(tmp_path: Path) -> None:
    """A path that is not there is left out; a rule for a file is for that file alone."""
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    def work() -> str:
        drop_all()
        landlock.restrict(
            [f"{tmp_path}/read", f"{tmp_path}/other/file", "/nowhere"], [f"{tmp_path}/write"], network=True
        )
        said = [Path(f"{tmp_path}/{name}/file").read_text() for name in ("read", "write", "other")]
        Path(f"{tmp_path}/write/new").write_text("x")
        for path in (f"{tmp_path}/read/new", f"{tmp_path}/other/new"):
            try:
                Path(path).write_text("x")
            except PermissionError:
                said.append("refused")
        return " ".join(said)

    assert in_a_child(work) == "read write other refused refused"


@needs_landlock
def test_tcp() -> None:
    if landlock.version() < 4:
        pytest.skip(f"{NOT_HERE}Landlock 4, which knows TCP")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def connect(network: bool) -> str:
            drop_all()
            landlock.restrict(["/"], [], network=network)
            with socket.create_connection(address, 3):
                return "connected"

        assert in_a_child(lambda: connect(network=True)) == "connected"
        assert "PermissionError" in in_a_child(lambda: connect(network=False))


def test_a_kernel_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(step: str, *_: object) -> int:
        raise KernelRefused(step, 38)

    monkeypatch.setattr(landlock, "call", refuse)
    assert landlock.version() == 0
    with pytest.raises(KernelRefused):
        landlock.restrict([], [], network=False)


@needs_landlock
def test_it_gives_back_every_descriptor(tmp_path: Path) -> None:
    def work() -> int:
        drop_all()
        before = len(os.listdir("/proc/self/fd"))
        landlock.restrict(["/proc", str(tmp_path)], [], network=True)
        return len(os.listdir("/proc/self/fd")) - before

    assert in_a_child(work) == "0"
