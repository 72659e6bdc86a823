"""The servers that a host starts by itself from a file, and which of them our own configuration has.

Two servers are the same if they start the same command or reach the same URL with the same variables and headers,
whatever their names: with others, they may be of two accounts. A reference in our configuration stands for any text,
because a secret that was moved out of the host's file is one there.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from config.document import Plain
from config.hosts.desktop_file import DesktopFile
from config.hosts.desktop_host import DesktopHost
from config.hosts.entry import ServerEntry
from config.read import read

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
    document = read(file, lambda root: host.wanted, data, may_be_blank=True)
    entries = DesktopFile(host, file, document, home, environ).entries.values()
    return [entry for entry in entries if not entry.is_off]


def is_among(entry: ServerEntry, servers: Mapping[str, object]) -> bool:
    """Whether one of our servers, as they are written in our file, starts or reaches the same."""
    theirs = _launch(entry.ours)
    if not theirs:
        return False
    return any(
        _is_same(_launch(ours), theirs)
        and all(_is_same_map(ours.get(key), entry.ours.get(key)) for key in ("env", "headers"))
        for ours in servers.values()
        if isinstance(ours, dict) and ours.get("disabled") != Plain("true")
    )


def _launch(server: object) -> tuple[str, ...]:
    """The words of the command, or the URL; empty if there is neither."""
    if not isinstance(server, dict):
        return ()
    command, arguments = server.get("command"), server.get("args")
    if isinstance(command, list):
        return tuple(str(word) for word in command)
    if isinstance(command, str):
        if arguments is None:
            try:
                return tuple(shlex.split(command))
            except ValueError:
                return ()
        return (command, *(str(word) for word in arguments)) if isinstance(arguments, list) else ()
    url = server.get("url")
    return ("", url) if isinstance(url, str) else ()


def _is_same(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    if ours == theirs:
        return True
    if not any(_REFERENCE.sub("", word) for word in ours):
        return False  # it would stand for any command or URL
    return len(ours) == len(theirs) and all(_stands_for(mine, other) for mine, other in zip(ours, theirs, strict=True))


def _is_same_map(ours: object, theirs: object) -> bool:
    mine, others = ours or {}, theirs or {}
    if not isinstance(mine, dict) or not isinstance(others, dict):
        return False
    return mine.keys() == others.keys() and all(_stands_for(str(mine[key]), str(others[key])) for key in mine)


def _stands_for(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    pieces = _REFERENCE.split(ours.replace("$${", "\0"))
    pattern = ".*".join(re.escape(piece.replace("\0", "${")) for piece in pieces)
    return len(pieces) > 1 and re.fullmatch(pattern, theirs.replace("$${", "${"), re.DOTALL) is not None
