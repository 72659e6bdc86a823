"""Makes what the benchmark runs, in a folder of its own: compiles the upstream and the load generator, and installs the
other proxies. It knows the fixed sources by their hash."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
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


def compiler() -> str | None:
    return shutil.which("cc")


def made(name: str) -> list[str]:
    """The command of a program of `fixed`: compiled, or where there is no compiler the same in Python."""
    if not (cc := compiler()):
        return [sys.executable, str(FIXED / f"{name}.py")]
    return [_compiled(cc, FIXED / f"{name}.c", fixed_hash())]


def made_forwarded() -> list[str]:
    """The command of `forwarded.c`.

    Raises:
        NotInstalled: there is no compiler.
    """
    if not (cc := compiler()):
        raise NotInstalled("there is no compiler (cc)")
    source = HERE / "forwarded.c"
    return [_compiled(cc, source, hashlib.sha256(fixed_hash().encode() + source.read_bytes()).hexdigest())]


def _compiled(cc: str, source: Path, digest: str) -> str:
    program = BUILD / f"{source.stem}-{digest[:12]}"
    if not program.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            new = Path(folder) / source.stem
            subprocess.run([cc, *FLAGS, "-o", new, source], check=True)
            new.rename(program)
    return str(program)


class NotInstalled(Exception):
    """A proxy that cannot be installed here, with the reason."""


def from_pypi(requirement: str) -> Path:
    """The folder of programs of an environment that has this package."""
    environment = BUILD / "peers" / requirement
    ready = environment / "ready"
    if not ready.exists():
        run(sys.executable, "-m", "venv", "--clear", environment)
        run(environment / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
        ready.touch()
    return environment / "bin"


def from_npm(requirement: str) -> Path:
    """The folder of modules of a prefix that has this package."""
    prefix = BUILD / "peers" / requirement
    ready = prefix / "ready"
    if not ready.exists():
        prefix.mkdir(parents=True, exist_ok=True)
        run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", prefix, requirement)
        ready.touch()
    return prefix / "node_modules"


def run(*command: str | Path) -> None:
    """Run an installer to its end.

    Raises:
        NotInstalled: it failed, with the last line that it said.
    """
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as problem:
        raise NotInstalled(f"{problem.filename}: {problem.strerror}") from problem
    except subprocess.CalledProcessError as problem:
        lines = f"{problem.stdout}{problem.stderr}".strip().splitlines()
        raise NotInstalled(lines[-1] if lines else f"exit code {problem.returncode}") from problem
