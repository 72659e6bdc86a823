from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.build import FIXED, NotInstalled, fixed_hash, run


def test_the_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    shutil.copytree(FIXED, folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert fixed_hash(folder) == fixed_hash()
    with (folder / "load.c").open("a") as file:
        file.write(" ")
    changed = fixed_hash(folder)
    assert changed != fixed_hash()
    (folder / "load.c").rename(folder / "other.c")
    assert fixed_hash(folder) not in (changed, fixed_hash())


def test_what_cannot_be_installed_says_why() -> None:
    with pytest.raises(NotInstalled, match="no-such-program: No such file"):
        run("no-such-program")
    with pytest.raises(NotInstalled, match=r"^too bad$"):
        run("sh", "-c", "echo it begins; echo too bad >&2; exit 1")
