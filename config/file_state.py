"""The state of a file as a short text: it is another one as soon as somebody who reads the file could find another
content, or the same trouble no more."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from config.read import MAX_JSON_BYTES, open_regular

MISSING = ""
UNREADABLE = "unreadable"


def file_state(path: Path) -> str:
    """A digest (SHA-256, in hexadecimal) of the content of a file, or of the names in a folder; MISSING; or UNREADABLE
    for all else."""
    try:
        if path.is_dir():
            return hashlib.sha256(repr(sorted(os.listdir(path))).encode()).hexdigest()
        with open_regular(path) as file:
            return hashlib.sha256(file.read(MAX_JSON_BYTES + 1)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return MISSING
    except (OSError, ValueError):
        return UNREADABLE


def note_state(states: dict[Path, str], path: Path) -> None:
    """Note the state of a file before it is read for the first time. A change after that is then not missed."""
    if path not in states:
        states[path] = file_state(path)
