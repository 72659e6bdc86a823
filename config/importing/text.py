"""Imported servers as the text of a configuration, with comments on where each is from and how it differs there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from config.document import Plain
from config.importing.found import with_tools
from config.importing.merge import ImportedServer
from config.problems import clip
from config.yaml_text import comment, commented_out, entries

ShowPath = Callable[[Path], str]

_HEADER = (
    "Servers of desktop hosts, written by colonnade import. Change what you like: nothing reads the files of the hosts "
    "again. colonnade check says whether this file is right; docs/configuration.md has all keys."
)
_FIRST_KEYS = ("title", "command", "url", "env", "headers")
_LAST_KEYS = ("trust", "consent", "disabled")
INDENT = "  "


def whole_text(servers: Iterable[ImportedServer], show: ShowPath) -> str:
    """The text of a configuration with these servers, at least one of which can be used."""
    blocks = (server_text(server, show) for server in servers)
    return f"{comment(_HEADER)}\nservers:\n" + "\n".join(blocks)


def server_text(server: ImportedServer, show: ShowPath, indent: str = INDENT) -> str:
    """A server with its comments below its id, as whole lines. One that cannot be used is a comment as a whole."""
    remarks = [origin(server, show), *server.remarks]
    if server.problems:
        remarks.append(f"It cannot be used: {'; '.join(server.problems)}.")
    below = indent + "  "
    lines = f"{indent}{server.id}:\n" + "".join(comment(remark, below) for remark in remarks)
    lines += entries(server_value(server), below)
    return commented_out(lines, indent) if server.problems else lines


def server_value(server: ImportedServer) -> dict[str, object]:
    """The keys of a server as a configuration has them, in the order in which people read them."""
    keys = with_tools(server.ours, server.tools)
    if server.is_off:
        keys["disabled"] = Plain("true")
    order = [*_FIRST_KEYS, *sorted(keys.keys() - {*_FIRST_KEYS, *_LAST_KEYS}), *_LAST_KEYS]
    return {key: keys[key] for key in order if key in keys}


def origin(server: ImportedServer, show: ShowPath) -> str:
    """The places where a server was found."""
    places = [
        f"{each.host.title}, {show(each.file)}" + (f' ("{clip(each.name)}")' if each.name != server.id else "")
        for each in server.found
    ]
    return f"From {'; '.join(places)}."
