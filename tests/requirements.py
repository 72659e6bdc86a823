"""Prints what the tests need, from pyproject.toml: older versions of pip cannot read dependency groups themselves."""

import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print("\n".join(pyproject["dependency-groups"]["dev"]))
