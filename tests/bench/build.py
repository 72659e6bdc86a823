"""Makes what the benchmark runs: compiles the upstream and the load generator, and knows them by their hash."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "bench"
FIXED = HERE / "fixed"
"""The sources that every figure depends on."""
FLAGS = ("-O2", "-Wall", "-Wextra", "-Wno-unused-function")


def fixed_hash(folder: Path = FIXED) -> str:
    """SHA-256 of the fixed sources, names and contents."""
    digest = hashlib.sha256()
    for file in sorted([*folder.glob("*.c"), *folder.glob("*.h"), *folder.glob("*.py")]):
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def compiled(name: str) -> str:
    """The path of a program of `fixed`, compiled."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / name
    subprocess.run(["cc", *FLAGS, "-o", program, FIXED / f"{name}.c"], check=True)
    return str(program)
