"""References of editors: `${env:NAME}`, and those that the editor itself has a value for, as `${workspaceFolder}`.
References of command-line programs: `$NAME` and `${NAME}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from config.desktop.desktop_host import FileContext, Translator, rewrite
from config.desktop.entry import CannotUse, escape
from config.problems import clip

_REFERENCE = re.compile(r"\$\{([^{}:]*)(?::([^{}]*))?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_EDITOR = frozenset(
    {
        *("command", "config", "cwd", "defaultBuildTask", "execPath", "extensionInstallFolder", "file", "fileBasename"),
        *("fileBasenameNoExtension", "fileDirname", "fileDirnameBasename", "fileExtname", "fileWorkspaceFolder"),
        *("input", "lineNumber", "relativeFile", "relativeFileDirname", "selectedText", "userHome"),
        *("workspaceFolder", "workspaceFolderBasename"),
    }
)


def _project(context: FileContext) -> str:
    if context.project is None:
        raise CannotUse("it names the folder of a project, which its host knows only while one is open")
    return str(context.project)


VALUES: Mapping[str, Callable[[FileContext], str]] = {
    "workspaceFolder": _project,
    "workspaceFolderBasename": lambda context: _project(context).rpartition("/")[2],
    "userHome": lambda context: str(context.home),
    "pathSeparator": lambda context: "/",
    "/": lambda context: "/",
}
"""The references without an argument, with their values."""

Written = Callable[[str, FileContext], str]
"""Writes the reference with an argument in our form."""


def editor_variables(
    known: Mapping[str, Callable[[FileContext], str]] = VALUES,
    refused: frozenset[str] = _OF_EDITOR,
    more: Mapping[str, Written] = {},
    unset: str = "",
) -> Translator:
    """A translator of `${env:NAME}` and of references of an editor.

    `known` are those without an argument, and `more` those with one. Others are taken literally, but those `refused`
    need the editor. `unset` is `:-` if a variable that is not set is empty there; else it is an error here."""

    def translate(text: str, context: FileContext) -> str:
        def write(match: re.Match[str]) -> str:
            name, argument = match[1], match[2]
            if name == "env" and argument is not None:
                if not _NAME.fullmatch(argument):
                    raise CannotUse(f'it names the variable "{clip(argument)}", which is no name of a variable here')
                return f"${{env:{argument}{unset}}}"
            if argument is None and name in known:
                return escape(known[name](context))
            if argument is not None and name in more:
                return more[name](argument, context)
            if name in refused:
                raise CannotUse(f"the reference ${{{name}}} has a value only in the editor")
            return escape(match[0])

        return rewrite(text, _REFERENCE, write)

    return translate


DOLLAR = re.compile(r"\$(?:(\w+)|\{([^}]+)\})", re.ASCII)
_NAME_OR_DEFAULT = re.compile(rf"{_NAME.pattern}(:-.*)?", re.DOTALL)


def dollar_variables(*, has_defaults: bool = True) -> Translator:
    """A translator of `$NAME` and `${NAME}`, and of `${NAME:-default}` if the host knows defaults. A variable that is
    not set stays as it is written there; here it is an error."""
    known = _NAME_OR_DEFAULT if has_defaults else _NAME

    def write(match: re.Match[str]) -> str:
        return f"${{env:{inside}}}" if known.fullmatch(inside := match[1] or match[2]) else escape(match[0])

    return lambda text, context: rewrite(text, DOLLAR, write)


only_environment = editor_variables({}, frozenset())
"""`${env:NAME}` alone; all else is literal."""
