"""Commands of servers that start Colonnade itself. Decided by the words of the configuration alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_NAME = "colonnade"
_PACKAGE = re.compile(rf"{_NAME}(?:\[[\w,-]*\])?(?:@.+|==.+)?")
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_PYTHON_FLAGS = re.compile(r"-[BEIOPSsu]+")
_RUNNERS = (("uvx",), ("uv", "tool", "run"), ("uv", "run"), ("pipx", "run"))
_VALUED = frozenset(
    [
        *("--from", "--with", "--with-editable", "--python", "-p", "--spec", "--directory", "--project", "--env-file"),
        *("--index", "--index-url", "--extra-index-url", "--default-index", "--extra", "--cache-dir", "--package"),
    ]
)
_SOURCES = ("--from", "--spec")
"""Options that name the package whose program is started."""
_FLAGS = frozenset(
    [
        *("--offline", "--quiet", "-q", "--isolated", "--no-cache", "-n", "--refresh", "--no-sync", "--frozen"),
        *("--locked", "--no-project", "--no-config", "--no-env-file", "--no-progress", "--"),
    ]
)


def starts_colonnade(command: Sequence[str]) -> bool:
    """Whether a command starts Colonnade: `colonnade` by any path, `python -m host`, or either by `uvx`, `uv tool run`,
    `uv run` or `pipx run`. False for options that are not known here: the word after one could be its value; and for
    another package, which may have a program of this name."""
    name = PurePath(command[0]).name if command else ""
    if name == _NAME:
        return True
    words = [name, *command[1:]]
    if _PYTHON.fullmatch(name):
        rest = words[1:]
        while rest and _PYTHON_FLAGS.fullmatch(rest[0]):
            rest = rest[1:]
        return rest[:2] == ["-m", "host"] or (rest != [] and PurePath(rest[0]).name == _NAME)
    for runner in _RUNNERS:
        run = _after_runner(runner, words)
        if run:
            return _PACKAGE.fullmatch(run[0]) is not None or starts_colonnade(run)
    return False


def _after_runner(runner: Sequence[str], words: list[str]) -> list[str]:
    """The command that a runner such as `uv run` starts; empty if it is another one."""
    for word in runner:
        if words[:1] != [word]:
            return []
        words = _after_options(words[1:])
    return words


def _after_options(words: list[str]) -> list[str]:
    """The words from the first that is no option; empty if an option is not known, or names another package."""
    while words and words[0].startswith("-"):
        option, equals, value = words[0].partition("=")
        if option in _SOURCES and not _may_be_ours(value if equals else "".join(words[1:2])):
            return []
        if option in _VALUED:
            words = words[1:] if equals else words[2:]
        elif words[0] in _FLAGS:
            words = words[1:]
        else:
            return []
    return words


def _may_be_ours(source: str) -> bool:
    """Whether a source of a package is that of Colonnade by its name, or a path or URL, which need not show a name."""
    return source == "." or "/" in source or _PACKAGE.fullmatch(source) is not None
