"""What people are told about the kind of a command."""

from __future__ import annotations

import pytest

from host.sandbox.presets import preset_of


@pytest.mark.parametrize(
    ("words", "begin", "has"),
    [
        (("npx", "-y", "a"), "npx: its packages are installed", "node runs"),
        (("/opt/bin/npm", "exec", "--", "a"), "npm: its packages are installed", "node runs"),
        (("uvx", "a"), "uvx: its packages are installed", "a Python of this machine runs"),
        (("uv", "tool", "run", "a"), "uv: its packages are installed", "a Python of this machine runs"),
        (("npx", "./a"), "npx: not started, since its command names a package that is not one", "install it yourself"),
        (("python3.11", "-m", "a"), "python -m: ", "the module"),
        (("/venv/bin/python", "a.py"), "python: ", "the script"),
        (("node", "a.js"), "node: ", "node_modules"),
        (("/opt/a/bin/a",), "a program: ", "installed with"),
        (("uv", "run", "a"), "a program: ", "installed with"),
    ],
)
def test_presets(words: tuple[str, ...], begin: str, has: str) -> None:
    said = preset_of(words)
    assert said.startswith(begin)
    assert has in said
