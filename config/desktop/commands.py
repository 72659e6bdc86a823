"""Commands in files of hosts that cannot be started here: with their arguments in the same text, or made for Windows.

Hosts look for a program of exactly that name, so a text with spaces may be one: what exists is never judged.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_LAUNCHERS = frozenset(
    {
        *("npx", "npm", "pnpm", "yarn", "bun", "bunx", "node", "deno", "tsx", "uv", "uvx", "pipx", "python", "python3"),
        *("docker", "podman", "java", "dotnet", "go", "ruby", "php", "sh", "bash", "zsh", "env"),
    }
)
"""Programs that start others, which may be missing here."""
_OPTION = re.compile(r"--?[A-Za-z0-9]")
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\|%[A-Za-z_]+%[\\/]|\.{1,2}\\")
_DRIVE = re.compile(r"[A-Za-z]:|\\\\|%[A-Za-z_]+%|\.{1,2}\\")
"""The beginning of such a path, perhaps without backslashes, which a shell takes for escapes."""
_WINDOWS_SHELLS = re.compile(r"(cmd|powershell|pwsh|wsl)(\.exe)?", re.IGNORECASE)
_SHELL_OPTION = re.compile(
    r"/[A-Za-z](:\w+)?|(?P<with_value>-(ExecutionPolicy|ep|ex|WindowStyle|d|-distribution|u|-user|-cd))"
    r"|-(NoProfile|nop|NoLogo|NonInteractive|Command|c|File|f|e|-exec|-)",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_OF_SHELLS = frozenset({"cd", "export", "source", "exec", "set"})
_SHELL_SIGNS = frozenset({"&&", "||", "|", ";", ">", "2>", "2>&1", "&"})
_WINDOWS_PROGRAM = re.compile(r"([\w.-]+)\.(exe|cmd|bat|ps1)", re.IGNORECASE)
_PLAIN_OPTION = re.compile(r"--?[A-Za-z][\w-]{0,30}", re.ASCII)
_FETCHING = frozenset({"npx", "bunx", "uvx", "pipx", "pnpm", "yarn", "npm", "bun"})
"""Launchers whose first word, but for their subcommand, names a package."""
_SUBCOMMANDS = frozenset({"run", "dlx", "exec", "x", "tool"})
_PACKAGE = re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z][a-z0-9._-]*(@[a-z0-9._-]+)?", re.ASCII)
_MOST_SPACES = 50
"""Spaces in a path that is looked for."""


def problem_of_command(command: str, args: Sequence[str], exists: Callable[[str], bool]) -> str:
    """Why a text is no program here, in a sentence with what to write; empty if it may be one.

    Args:
        command: as the file has it, with its references: they may be secrets, and are not repeated.
        args: the arguments that stand apart, for what to write.
        exists: whether there is such a program; true if that is not known.
    """
    if exists(command):
        return ""
    if re.match("https?://", command):
        return 'its key "command" is a URL; write it under "url"'
    if _DRIVE.match(command.lstrip("\"' ")):
        return 'its key "command" is a path of Windows; write the program of this machine'
    words = _split(command, exists)
    if not words:
        return 'its key "command" is empty; write a program' if command.strip(" \t\r\n") != command else ""
    if _WINDOWS_SHELLS.fullmatch(words[0]):
        rest = [*words[1:], *args]
        while rest and (option := _SHELL_OPTION.fullmatch(rest[0])):
            del rest[: 2 if option["with_value"] else 1]
        rest = _words(rest[0]) if len(rest) == 1 else rest
        instead = f"write {_two_keys(rest, exists)}" if rest else "write the program that it starts"
        what = (
            "starts programs of Linux from Windows" if words[0].lower().startswith("wsl") else "is the shell of Windows"
        )
        return f"{words[0]} {what}; {instead}"
    if len(words) > 1 and _VARIABLE.match(words[0]):
        return f'its key "command" sets a variable; write that under env, and {_two_keys([*words[1:], *args], exists)}'
    if len(words) > 1 and (words[0] in _OF_SHELLS or not _SHELL_SIGNS.isdisjoint(words)):
        return 'its key "command" is a line for a shell; write "command": "sh", "args": ["-c", "…"]'
    if len(words) == 1 and words[0] != command and exists(words[0]):
        return 'its key "command" has quotes or spaces around the program; remove them'
    if len(words) > 1 and _holds_arguments(words, exists):
        return (
            f'its key "command" holds arguments, and is the program alone; write {_two_keys([*words, *args], exists)}'
        )
    if program := _WINDOWS_PROGRAM.fullmatch(words[0]):
        return f'its key "command" is a program of Windows; write "command": "{program[1]}"'
    return ""


def windows_paths(words: Iterable[str]) -> bool:
    """Whether one of the words is a path of Windows."""
    return any(_WINDOWS_PATH.match(word) for word in words)


def belongs_to_windows(program: str) -> bool:
    """Whether a program that is not there is one of Windows, by its name or by its path."""
    patterns = (_WINDOWS_SHELLS, _WINDOWS_PROGRAM)
    return bool(_DRIVE.match(program)) or any(pattern.fullmatch(program) for pattern in patterns)


def program_exists(program: str, folder: Path, path: str | None) -> bool:
    """Whether there is a program. A relative path starts from the folder, and a name is looked for in `path`."""
    try:
        if "/" in program:
            return (folder / Path(program).expanduser()).exists()
        return shutil.which(program, path=path) is not None
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL character, or the folder of an unknown user
        return False


def _split(text: str, exists: Callable[[str], bool]) -> list[str]:
    """The program and its arguments. A path may have spaces: the longest one that is there is the program."""
    ends = [match.start() for match in re.finditer(r"[ \t\r\n]+", text)][:_MOST_SPACES] if "/" in text else []
    for end in reversed(ends):
        if " " in text[:end].strip() and exists(text[:end]):
            return [text[:end], *_words(text[end:])]
    return _words(text)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without its other one
        return text.split()


def _holds_arguments(words: Sequence[str], exists: Callable[[str], bool]) -> bool:
    """Whether the first word is a program or no path, or another word is what no path is made of."""
    first, *rest = words
    if "/" not in first:
        return True  # a name with spaces in it, which no program has
    is_known = first.rpartition("/")[2] in _LAUNCHERS or exists(first)
    return is_known or any(_OPTION.match(word) or word.startswith("@") or "://" in word for word in rest)


def _two_keys(words: Sequence[str], exists: Callable[[str], bool]) -> str:
    """The two keys for a command. What could be a secret or a path is not repeated: of the program, only a name that is
    known or there; of its arguments, options without values, and the package that a launcher fetches."""
    program, *rest = words
    name = program.rpartition("/")[2]
    is_known = name in _LAUNCHERS or exists(program)
    shown: list[str] = []
    fetches = name in _FETCHING
    for word in rest:
        is_package = fetches and bool(_PACKAGE.fullmatch(word)) and word not in _SUBCOMMANDS
        harmless = bool(_PLAIN_OPTION.fullmatch(word)) or is_package or (fetches and word in _SUBCOMMANDS)
        shown.append(word if harmless else "…")
        fetches = fetches and not is_package and harmless
    command = (f"…/{name}" if "/" in program else name) if is_known else "…"
    return f'"command": {json.dumps(command, ensure_ascii=False)}, "args": {json.dumps(shown, ensure_ascii=False)}'
