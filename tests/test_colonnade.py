"""Colonnade runs its own packages, or says why it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colonnade import OPENINGS, foreign_package

ROOT = Path(__file__).parent.parent


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python looks into first, and that has copies of the beginnings of both packages."""
    for name, opening in OPENINGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_bytes(opening)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_its_own_packages_are_found() -> None:
    assert foreign_package(str(ROOT)) is None


def test_a_link_to_the_packages_is_no_other_place(elsewhere: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "link"
    link.symlink_to(elsewhere)
    assert foreign_package(str(link)) is None


def test_a_package_that_comes_first_is_refused(elsewhere: Path) -> None:
    problem = foreign_package(str(ROOT))
    assert problem is not None
    assert problem.startswith(
        f"Python finds the package host in {elsewhere}/host/__init__.py; expected Colonnade's own in {ROOT}/host"
    )


def test_a_module_of_that_name_is_refused(elsewhere: Path) -> None:
    (elsewhere / "config" / "__init__.py").unlink()
    (elsewhere / "config").rmdir()
    (elsewhere / "config.py").write_text("PORT = 80\n")
    assert f"the package config in {elsewhere}/config.py;" in str(foreign_package(str(elsewhere)))


def test_an_overwritten_package_is_refused(elsewhere: Path) -> None:
    (elsewhere / "config" / "__init__.py").write_text('"""Settings of something else."""\n')
    problem = str(foreign_package(str(elsewhere)))
    assert "the package config in " in problem
    assert "which was overwritten" in problem


def test_a_package_that_was_taken_away_is_missed(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "host" / "__init__.py").unlink()
    monkeypatch.setattr(sys, "path", [str(elsewhere)])
    assert "the package host in nowhere as a package" in str(foreign_package(str(elsewhere)))


@pytest.mark.slow
@pytest.mark.parametrize("command", [["-m", "host"], ["-c", "from colonnade import main; main()"]], ids=str)
def test_colonnade_does_not_start_among_foreign_files(command: list[str], tmp_path: Path) -> None:
    """In a project of which a desktop host says PYTHONPATH=., for instance: nothing of it runs."""
    (tmp_path / "config.py").write_text("raise SystemExit('this ran')\n")
    started = subprocess.run(
        [sys.executable, *command, "serve", "--stdio"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (started.returncode, started.stdout) == (2, "")
    assert started.stderr.startswith(f"colonnade: Python finds the package config in {tmp_path}/config.py;")
