"""Published servers that need a line in the configuration which nobody would guess:
`config/known_servers.toml`.

A row is found by the package in the command, which a person wrote; by `serverInfo`, or by the text of a failure, which
are words of the server. The latter decide nothing but which advice is shown: the text and the line are ours, and a
person writes them.
"""

from __future__ import annotations

import datetime
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from config.document import Plain

_LAUNCHERS: Mapping[tuple[str, ...], str] = {
    **{(word,): "npm" for word in ("npx", "bunx", "pnpx")},
    **dict.fromkeys((("npm", "exec"), ("pnpm", "dlx"), ("yarn", "dlx"), ("bun", "x")), "npm"),
    **dict.fromkeys((("uvx",), ("uv", "tool", "run"), ("pipx", "run")), "pypi"),
}
_UVX = (("uvx",), ("uv", "tool", "run"))
_PACKAGE_OPTIONS = {"npm": ("-p", "--package"), "pypi": ("--from", "--spec")}
_VALUE_OPTIONS = frozenset(
    {
        *("--with", "-w", "--with-editable", "--with-requirements", "--python", "--index", "--default-index"),
        *("--index-url", "-i", "--extra-index-url", "--constraints", "-c", "--overrides", "--cache-dir", "--directory"),
        *("--refresh-package", "--reinstall-package", "--upgrade-package", "-P", "--registry", "--env-file"),
    }
)
_NAME = {"npm": re.compile(r"(?:@[^/@]+/)?[^@/]+"), "pypi": re.compile(r"[A-Za-z0-9._-]+")}
_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|\[::1\])(?=:\d*$|$)")
_SDK = re.compile(r"(?:^|[=,])mcp(?:[\[<>=!~ @;,]|$)")
"""A word with a requirement of the Python SDK."""


_Made = tuple[str, dict[str, object] | None] | None


@dataclass(frozen=True)
class KnownServer:
    """A row. Its members are described in the file."""

    id: str
    packages: Mapping[str, str]
    advice: str
    change: Mapping[str, object]
    source: str
    date: datetime.date
    name: str = ""
    before: str = ""
    says: tuple[str, ...] = ()

    def is_shown_by(self, reason: str) -> bool:
        """Whether a failure, with the text of the server, is one that the row mends."""
        return any(text in reason for text in self.says)

    def is_meant(self, package: str | None, info: Mapping[str, str], reason: str) -> bool:
        """Whether the row is about a server with this package in its command, this `serverInfo`, or this failure."""
        if self.is_shown_by(reason):
            return True
        if self.name and info.get("name") == self.name:
            version = info.get("version", "")
            return not self.before or _numbers(version) < _numbers(self.before)
        return package in self.packages

    def made(self, server: Mapping[str, object], defaults: Mapping[str, object]) -> _Made:
        """The line for the file, and the keys of the server with it; None if there is nothing to change, or a person
        wrote something else."""
        ((form, value),) = self.change.items()
        return _FORMS[form](server, defaults, value)


@dataclass(frozen=True)
class Advice:
    """The advice of a row for one server.

    Attributes:
        line: for the file, with `…` for what stays as it is; or what else to do.
        changed: the keys of the server, as its file has them, with the line; None if the file cannot help.
        by_name: whether nothing but its own name in `serverInfo` says that it is this server.
    """

    row: KnownServer
    line: str
    changed: dict[str, object] | None = field(repr=False)  # arguments and URLs may hold secrets
    by_name: bool = False

    def __str__(self) -> str:
        remedy = self.line if self.changed is None else f"write {self.line}"
        case = f"if it is the published {self.row.name}, " if self.by_name else ""
        return f"{case}{self.row.advice}; {remedy} ({self.row.source}, {self.row.date})"


def advise(
    server: Mapping[str, object],
    defaults: Mapping[str, object] | None = None,
    *,
    info: Mapping[str, str] | None = None,
    reason: str = "",
) -> Iterator[Advice]:
    """The advice for a server that does not stand in its keys yet.

    Args:
        server: its keys as a file in our form has them.
        defaults: the keys under `defaults` of the file, which a key of the server replaces as a whole.
        info: the texts of its `serverInfo`, if it has been started.
        reason: why it does not start, with the text of the server.
    """
    package = package_in(command_words(server))
    for row in KNOWN:
        if row.is_meant(package, info or {}, reason) and (made := row.made(server, defaults or {})) is not None:
            yield Advice(row, *made, by_name=not row.is_meant(package, {}, reason))


def as_advised(server: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """The keys of a server as our file may have them after a person took an advice; a form for each row."""
    for row in KNOWN:
        if (made := row.made(server, {})) is not None and made[1] is not None:
            yield made[1]


def package_in(words: Sequence[str]) -> str | None:
    """The package that a command runs, as `npm:NAME` or `pypi:NAME`; None if it does not run one by its name."""
    found = _launcher(words)
    if found is None:
        return None
    launcher, registry = found
    rest = iter(words[len(launcher) :])
    package = ""
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _PACKAGE_OPTIONS[registry]:
            package = value if equals else next(rest, "")
        elif not word.startswith("-"):
            package = word
        elif option in _VALUE_OPTIONS and not equals:
            next(rest, "")
        if package:
            break
    name = _NAME[registry].match(package)
    if name is None:
        return None
    return f"npm:{name[0]}" if registry == "npm" else f"pypi:{re.sub(r'[-_.]+', '-', name[0]).lower()}"


def _launcher(words: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
    program = words[0].rpartition("/")[2] if words else ""
    named = tuple(words[:3])
    for launcher, registry in _LAUNCHERS.items():
        if program == launcher[0] and named[1 : len(launcher)] == launcher[1:]:
            return launcher, registry
    return None


def command_words(server: Mapping[str, object]) -> list[str]:
    """The command of a server as words; none for a URL, and where it cannot be read."""
    command, arguments = server.get("command"), server.get("args")
    if isinstance(command, list):
        return list(map(str, command))
    if not isinstance(command, str):
        return []
    if arguments is not None:
        return [command, *map(str, arguments)] if isinstance(arguments, list) else []
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _with_keys(server: Mapping[str, object], defaults: Mapping[str, object], value: object) -> _Made:
    assert isinstance(value, dict)
    ((key, wanted),) = value.items()
    present = server.get(key, defaults.get(key, {}))
    if not isinstance(present, dict) or present.keys() & wanted.keys():
        return None
    said = ", ".join([*(["…"] if present else []), *(f"{name}: {each}" for name, each in wanted.items())])
    added = {name: Plain(str(each)) for name, each in wanted.items()}
    return f"{key}: {{{said}}}", {**server, key: {**present, **added}}


def _with_url_host(server: Mapping[str, object], _: Mapping[str, object], host: object) -> _Made:
    url = server.get("url")
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    user, at, place = parts.netloc.rpartition("@")
    if _LOOPBACK.match(place) is None:
        return None
    place = _LOOPBACK.sub(str(host), place)
    changed = parts._replace(netloc=f"{user}{at}{place}").geturl()
    return f"url: {parts.scheme}://{place}/…", {**server, "url": changed}


def _with_requirement(server: Mapping[str, object], _: Mapping[str, object], requirement: object) -> _Made:
    words = command_words(server)
    found = _launcher(words)
    if not words or any(map(_SDK.search, words)):
        return None
    if found is None or found[0] not in _UVX:
        return f"have {requirement} installed in its environment", None
    place = len(found[0])
    command = [*words[:place], "--with", str(requirement), *words[place:]]
    line = f'command: [{", ".join(words[:place])}, --with, "{requirement}", …]'
    return line, {**{key: each for key, each in server.items() if key != "args"}, "command": command}


_FORMS = {"keys": _with_keys, "url_host": _with_url_host, "uvx_with": _with_requirement}


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:8]]


def _read() -> Iterator[KnownServer]:
    text = Path(__file__).with_suffix(".toml").read_text("utf-8")
    for row in tomllib.loads(text)["rows"]:
        yield KnownServer(**{**row, "says": tuple(row.get("says", ()))})


KNOWN = tuple(_read())
