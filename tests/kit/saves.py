"""The ways in which editors and programs save a file."""

from __future__ import annotations

from pathlib import Path


def write_in_place(file: Path, text: str) -> None:
    file.write_text(text)


def replace(file: Path, text: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


def remove_and_make(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)
