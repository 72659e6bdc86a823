"""The servers that a host starts by itself from a file, and which of them our own configuration has.

Two servers are the same if they start the same command or reach the same URL with the same variables and headers,
whatever their names: with others, they may be of two accounts. Paths are compared as absolute ones, as import writes
them, and the folder in which a program starts counts if the host names it or an argument is a path from there. A
reference in our configuration stands for any text, because a secret that was moved out of the host's file is one there,
and may be another one by now. Under a name that is not that of a secret, a kept value counts if it can be read.
A line that is known to help a published server may have been added to ours (`config.known_servers`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from itertools import repeat
from pathlib import Path

from config.desktop.desktop_file import DesktopFile
from config.desktop.desktop_host import DesktopHost
from config.desktop.entry import ServerEntry, escape
from config.desktop.entry_form import NAME
from config.document import Plain
from config.known_servers import as_advised, command_words
from config.literal_secrets import is_secret_name
from config.read import read
from config.references import CLIENT_FOLDER, CannotExpandError, Expander, kept_secrets_of

_REFERENCE = re.compile(r"\$\$\{|\$\{[^}]*\}")


def started_by(
    host: DesktopHost, file: Path, data: bytes | None, home: Path, environ: Mapping[str, str]
) -> list[ServerEntry]:
    """The servers of a host's file that are not switched off.

    Raises:
        ConfigError: the file cannot be parsed.
    """
    if data is None:
        return []
    document = read(file, lambda root: host.wanted, data, may_be_blank=True, key=".".join(host.servers))
    entries = DesktopFile(host, file, document, home, environ).entries.values()
    return [entry for entry in entries if not entry.is_off]


def restricts_own_entry(
    host: DesktopHost, file: Path, data: bytes | None, home: Path, environ: Mapping[str, str]
) -> bool:
    """Whether the host has rules for single tools of our entry in its file, or settings that may be some.

    Raises:
        ConfigError: the file cannot be parsed.
    """
    entries = started_by(host, file, data, home, environ)
    return any(entry.name == NAME and (entry.detected or isinstance(entry.restrictions(), dict)) for entry in entries)


class OurServers:
    """The servers of our configuration, as they are written in a file of a folder."""

    def __init__(self, servers: Mapping[str, object], folder: Path, environ: Mapping[str, str]) -> None:
        self._servers = {id: ours for id, ours in servers.items() if isinstance(ours, dict)}
        self._folder = folder
        self._environ = environ

    def without(self, ids: Collection[str]) -> OurServers:
        """The others."""
        rest = {id: ours for id, ours in self._servers.items() if id not in ids}
        return OurServers(rest, self._folder, self._environ)

    def has(self, entry: ServerEntry, file: Path) -> bool:
        """Whether one that is not disabled starts or reaches the same as an entry of a host's file."""
        return any(not self._is_disabled(ours) for ours in self._same_as(entry, file))

    def has_disabled(self, entry: ServerEntry, file: Path) -> bool:
        """Whether those that start or reach the same are disabled."""
        same = self._same_as(entry, file)
        return bool(same) and all(map(self._is_disabled, same))

    def stands_in_for(self, entry: ServerEntry, file: Path) -> bool:
        """Whether one has the id of an entry of a host's file, or starts or reaches the same. It may be disabled."""
        return entry.id in self._servers or bool(self._same_as(entry, file))

    @staticmethod
    def _is_disabled(ours: Mapping[str, object]) -> bool:
        return ours.get("disabled") == Plain("true")

    def _same_as(self, entry: ServerEntry, file: Path) -> list[dict[str, object]]:
        forms = (entry.ours, *as_advised(entry.ours))
        launches = {launch for form in forms if (launch := _launch(form, file.parent))}
        expander = Expander(self._environ, file.parent)
        if not launches:
            return []
        cwd = _cwd(entry.ours, file.parent) if _depends_on_folder(entry, file.parent) else None
        names_folder = "cwd" in entry.values
        return [
            ours
            for ours in self._servers.values()
            if any(_is_same(_launch(ours, self._folder), theirs, expander) for theirs in launches)
            and (
                not names_folder  # the host starts it in its own folder, too
                if ours.get("cwd") == CLIENT_FOLDER
                else cwd is None or _stands_for(_cwd(ours, self._folder), cwd, expander)
            )
            and all(self._has_map(ours.get(key), entry.ours.get(key), expander) for key in ("env", "headers"))
        ]

    def _has_map(self, ours: object, theirs: object, expander: Expander) -> bool:
        mine, others = ours or {}, theirs or {}
        if not isinstance(mine, dict) or not isinstance(others, dict) or mine.keys() != others.keys():
            return False
        return all(_stands_for(self._with_kept(key, str(mine[key])), str(others[key]), expander) for key in mine)

    def _with_kept(self, name: str, text: str) -> str:
        """A value with what was kept of it, unless that is a secret by its name or cannot be read."""
        expander = Expander(self._environ, self._folder)
        for reference in () if is_secret_name(name) else kept_secrets_of(text):
            try:
                text = text.replace(reference, escape(expander.expand(reference).text))
            except CannotExpandError:
                continue
        return text


def _launch(server: Mapping[str, object], folder: Path) -> tuple[str, ...]:
    """The words of the command with an absolute path of the program, or the URL; empty if there is neither."""
    words = _words(server)
    if words and "/" in words[0] and "command" in server:
        return (_below(folder, words[0]), *words[1:])
    return words


def _cwd(server: Mapping[str, object], folder: Path) -> str:
    return _below(folder, str(server.get("cwd", "")))


def _below(folder: Path, path: str) -> str:
    """A path that starts from a folder, unless it begins with a reference."""
    return path if path.startswith("${") else os.path.normpath(Path(escape(str(folder))) / path)


def _depends_on_folder(entry: ServerEntry, folder: Path) -> bool:
    """Whether the entry names the folder in which it starts, or an argument is a path from there."""
    if "command" not in entry.ours:
        return False
    start = Path(_cwd(entry.ours, folder).replace("$${", "${"))
    return "cwd" in entry.values or any(is_path_from(start, word) for word in _words(entry.ours)[1:])


def is_path_from(folder: Path, word: str) -> bool:
    """Whether an argument is a relative path to something in a folder."""
    path = word.partition("=")[2] if word.startswith("-") else word
    try:
        return bool(path) and not path.startswith("/") and (folder / path).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL character
        return False


def _words(server: Mapping[str, object]) -> tuple[str, ...]:
    """The words of the command, or the URL after an empty word; none if there is neither."""
    if isinstance(server.get("command"), list | str):
        return tuple(command_words(server))
    url = server.get("url")
    return ("", url) if isinstance(url, str) else ()


def _is_same(ours: tuple[str, ...], theirs: tuple[str, ...], expander: Expander) -> bool:
    if not any(_REFERENCE.sub("", word) for word in ours):
        return ours == theirs  # references alone would stand for any command or URL
    return len(ours) == len(theirs) and all(map(_stands_for, ours, theirs, repeat(expander)))


def _stands_for(ours: str, theirs: str, expander: Expander) -> bool:
    """Whether our text is the same or has the same value. Each of its references may have any."""
    if ours == theirs:
        return True
    pieces = _REFERENCE.split(ours.replace("$${", "\0"))
    pattern = ".*".join(re.escape(piece.replace("\0", "${")) for piece in pieces)
    return re.fullmatch(pattern, _filled(theirs, expander), re.DOTALL) is not None


def _filled(text: str, expander: Expander) -> str:
    try:
        return expander.expand(text).text
    except CannotExpandError:
        return text.replace("$${", "${")
