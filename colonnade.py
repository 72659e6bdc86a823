"""The console script `colonnade`, also as `python -m host`: what runs before anything else of Colonnade is imported.

The packages `host` and `config` have names that other projects use, too. One of those that is installed beside
Colonnade, or that `PYTHONPATH` puts before it, would be imported in its place.
"""

from __future__ import annotations

import os
import sys

OPENINGS = {"host": b'"""Colonnade: one MCP endpoint', "config": b'"""A configuration file, read strictly'}
"""First bytes of each package of Colonnade: two that are installed into one folder overwrite each other's files."""
_WRONG = 2


def main() -> None:
    """Run the command that the arguments name, or end with a sentence if that would run code of another project."""
    if (problem := foreign_package(os.path.dirname(os.path.abspath(__file__)))) is not None:
        print(f"colonnade: {problem}", file=sys.stderr)  # noqa: T201 - no command has begun
        sys.exit(_WRONG)
    from host.__main__ import main

    main()


def foreign_package(folder: str) -> str | None:
    """A sentence about a package of another project that Python finds in the place of one in `folder`; None if it finds
    none. Nothing is imported."""
    for name, opening in OPENINGS.items():
        own = os.path.join(folder, name, "__init__.py")
        # As `import` looks. importlib.util takes a millisecond of the start of a relay.
        spec = next(filter(None, (finder.find_spec(name, None) for finder in sys.meta_path)), None)
        found = None if spec is None else spec.origin
        if found is None or os.path.realpath(found) != os.path.realpath(own):
            where = "nowhere as a package" if found is None else found
            advice = "remove that from PYTHONPATH and the current folder, or install Colonnade again"
        elif not _opens_with(found, opening):
            where = f"{found}, which was overwritten"
            advice = "install Colonnade again"
        else:
            continue
        return (
            f"Python finds the package {name} in {where}; expected Colonnade's own in {own}; {advice}, in an "
            "environment of its own (pipx, or uv tool install)"
        )
    return None


def _opens_with(path: str, opening: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(opening)) == opening
