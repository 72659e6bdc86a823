"""Names of the running host, as types of arguments and options that a shell can complete.

A completion answers at once or not at all, and says nothing about problems: the person is typing. It offers only names
that a shell takes as they are. A server chooses its URIs, and one like `x:$(command)` must not get into a command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import AnyCallable, Selection
from host.cli.exit_codes import CommandFailed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from host.cli.admin_client import RunningHost

TIMEOUT = 1.0
"""Seconds in which a host must answer."""
MAX_HELP = 60
"""Characters of the text beside a name."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:+@%,=][A-Za-z0-9_./:+@%,=-]*")

Names = Iterable[tuple[str, str]]
"""Names, each with a few words about it."""


class RunningName(click.ParamType[str]):
    """A name that the running host knows. Any text is taken: the host says what is wrong with it."""

    name = "text"

    def __init__(self, find: Callable[[RunningHost, click.Context], Names]) -> None:
        self._find = find

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        found: dict[str, str] = {}
        for host in _hosts(context):
            try:
                found |= dict(self._find(host, context))
            except CommandFailed:
                continue
        return [
            CompletionItem(name, help=_short(about))
            for name, about in found.items()
            if name.startswith(incomplete) and _PLAIN.fullmatch(name)
        ]


def _short(about: str) -> str | None:
    text = about.partition("⟨U+000A⟩")[0].strip()  # a line feed, made visible
    return (text if len(text) <= MAX_HELP else f"{text[: MAX_HELP - 1]}…") or None


def _hosts(context: click.Context) -> list[RunningHost]:
    """The hosts that the options so far select."""
    from host.cli.admin_client import find_hosts
    from host.storage.directory import state_directory

    selection, params = context.find_object(Selection) or Selection(), context.params
    config = selection.config or params.get("config_file")
    url = params.get("url")
    return [
        host
        for host in find_hosts(state_directory(selection.state), TIMEOUT)
        if host.problem is None
        and (config is None or host.config == os.path.realpath(config))
        and (url is None or host.endpoint == url)
    ]


def _shown(kind: str) -> Callable[[RunningHost, click.Context], Names]:
    """Names as clients see them, in the view of the option --view if it is given."""

    def find(host: RunningHost, context: click.Context) -> Names:
        if view := context.params.get("view"):
            rows = host.post("callers/view", view=view)["entries"]
        else:
            rows = [row for row in host.get("state/catalog")["catalog"] if row["shown"]]
        return ((row["outward"], _about(row)) for row in rows if row["kind"] == kind)

    return find


def _own(kind: str) -> Callable[[RunningHost, click.Context], Names]:
    """Names that the server of the option --server has itself."""

    def find(host: RunningHost, context: click.Context) -> Names:
        rows = host.get("state/catalog")["catalog"]
        server = context.params.get("server")
        return ((row["name"], _about(row)) for row in rows if row["kind"] == kind and server in (None, row["server"]))

    return find


def _about(row: dict[str, Any]) -> str:
    return str(row["title"] or row["description"])


def _views(host: RunningHost, context: click.Context) -> Names:
    rows = host.get("state/views")["views"]
    return ((row["name"], f"for {', '.join(row['callers'])}" if row["callers"] else "") for row in rows)


SERVER = RunningName(lambda host, _: ((row["id"], row["state"]) for row in host.get("state/servers")["servers"]))
TOOL, PROMPT, RESOURCE = (RunningName(_shown(kind)) for kind in ("tool", "prompt", "resource"))
OWN_TOOL, OWN_PROMPT, OWN_RESOURCE, OWN_TEMPLATE = (
    RunningName(_own(kind)) for kind in ("tool", "prompt", "resource", "template")
)
CONFIRMATION = RunningName(
    lambda host, _: ((row["id"], row["summary"]) for row in host.get("state/confirmations")["confirmations"])
)
GRANT = RunningName(
    lambda host, _: ((row["id"], f"{row['server']}: {row['name']}") for row in host.get("state/grants")["grants"])
)
CALLER = RunningName(lambda host, _: ((name, "") for name in host.post("callers/view")["callers"]))


def view_option(text: str) -> Callable[[AnyCallable], AnyCallable]:
    """Add `--view`."""
    return click.option("--view", metavar="NAME", default="", type=RunningName(_views), help=text)
