"""Control groups. Few machines let a test make one, so folders with the kernel's names stand in for those."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host.sandbox import control_group
from host.sandbox.control_group import make_group

PLAN = {"memory": 512 * 1024**2, "processes": 64, "cpu": 1.5}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hierarchy in which this process is in user/app/run, and may make groups in app."""
    for place, controllers in {"": "cpu memory", "user": "", "user/app": "cpu memory pids", "user/app/run": ""}.items():
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "cgroup.subtree_control").write_text(controllers)
        (tmp_path / place / "cgroup.procs").write_text("")
    read = control_group._read
    of_this = "5:memory:/elsewhere\n0::/user/app/run\n"
    monkeypatch.setattr(control_group, "_read", lambda path: of_this if path == "/proc/self/cgroup" else read(path))
    return tmp_path


def test_it_is_made_below_the_nearest_that_may_have_some(root: Path) -> None:
    made = make_group(PLAN, (str(root),))
    assert made is not None
    assert made.path == str(root / "user" / "app" / f"colonnade-{os.getpid()}")
    made.enter()
    written = {each.name: each.read_text() for each in Path(made.path).iterdir()}
    assert written == {
        "memory.max": str(512 * 1024**2),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "66",
        "cpu.max": "150000 100000",
        "cgroup.procs": "0",
    }


def test_a_share_of_the_processors_needs_its_controller(root: Path) -> None:
    """The nearest group that gives it, which need not be the nearest one that gives the others."""
    (root / "user" / "app" / "cgroup.subtree_control").write_text("memory pids")
    assert make_group(PLAN, (str(root),)) is None
    without = make_group({**PLAN, "cpu": None}, (str(root),))
    assert without is not None
    assert not (Path(without.path) / "cpu.max").exists()
    (root / "user" / "cgroup.subtree_control").write_text("cpu memory pids")
    made = make_group(PLAN, (str(root),))
    assert made is not None
    assert Path(made.path).parent == root / "user"
    assert (Path(made.path) / "cpu.max").read_text() == "150000 100000"


@pytest.mark.parametrize("controllers", ["", "memory", "cpu pids"])
def test_without_controllers_there_is_none(root: Path, controllers: str) -> None:
    (root / "user" / "app" / "cgroup.subtree_control").write_text(controllers)
    assert make_group(PLAN, (str(root),)) is None
    assert make_group(PLAN, (str(root / "nowhere"),)) is None


def test_one_that_cannot_be_limited_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(control_group.ControlGroup, "limit", refuse)
    assert make_group(PLAN, (str(root),)) is None
    assert not list((root / "user" / "app").glob("colonnade-*"))


def test_those_of_processes_that_are_gone_are_removed(root: Path) -> None:
    """Also one of a former process with the number of this one."""
    left, used, own = (root / "user" / "app" / f"colonnade-{pid}" for pid in (2**22 + 1, os.getppid(), os.getpid()))
    for each in (left, used, own):
        each.mkdir()
    assert (made := make_group(PLAN, (str(root),))) is not None
    assert (left.exists(), used.exists(), made.path) == (False, True, str(own))


@pytest.mark.parametrize(
    ("text", "is_so"), [("oom 3\noom_kill 0\n", False), ("oom 1\noom_kill 2\n", True), ("", False)]
)
def test_whether_memory_ran_out(root: Path, text: str, is_so: bool) -> None:
    made = make_group(PLAN, (str(root),))
    assert made is not None
    (Path(made.path) / "memory.events").write_text(text)
    assert made.has_run_out_of_memory() is is_so
