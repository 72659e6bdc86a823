"""The needs of a confined program at its start, in a sentence for people, by the kind of its command. `needed` in
plan.py finds the files. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from host.sandbox.packages import Installer, NotInstallable, wanted_by

_PYTHON = re.compile(r"python[0-9.]*")
_RUNNERS = {Installer.NPM: "node", Installer.UV: "a Python of this machine"}


def preset_of(words: Sequence[str]) -> str:
    """The kind of a command, and what a program of that kind needs."""
    name = words[0].rpartition("/")[2]
    try:
        wanted = wanted_by(words)
    except NotInstallable as problem:
        return f"{name}: not started, since its command {problem}"
    if wanted is not None:
        return (
            f"{name}: its packages are installed once a person has approved that, and {_RUNNERS[wanted.installer]} "
            "runs their script from a folder of its own that it only reads"
        )
    if _PYTHON.fullmatch(name) and "-m" in words[1:]:
        return (
            "python -m: the interpreter with its libraries or virtual environment, and the module with its package if "
            "it is in the folder that it starts in"
        )
    if _PYTHON.fullmatch(name):
        return "python: the interpreter with its libraries or virtual environment, and the script with its package"
    if name in ("node", "nodejs"):
        return "node: what node is installed with, and the script with its package and each node_modules above"
    return "a program: what it is installed with, and if it is a script, its package and its interpreter"
