"""A desktop host: where its files lie, how they are shaped, and the rules for the keys of a server in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from config.document import Document, is_null
from config.hosts.entry import CannotUse, Rule, ServerEntry
from config.json_text import Wanted
from config.problems import ConfigError, KeyPath
from config.read import read

SERVER_NAME = ""
"""Stands for any name in `DesktopHost.servers`."""


@dataclass(frozen=True)
class HostFile:
    """A file of a host. Paths have `~` for the user's folder; a project's file starts from the project's folder."""

    linux: str
    macos: str = ""
    """The same as on Linux, if empty."""
    is_project: bool = False
    variable: str = ""
    """An environment variable that names another folder for the file."""

    def path(self, project: Path, home: Path, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
        """The path of the file on this system."""
        text = self.macos if platform == "darwin" and self.macos else self.linux
        if self.is_project:
            return project / text
        if self.variable and environ.get(self.variable):
            return Path(environ[self.variable]) / Path(text).name
        if text.startswith("~/.config/") and os.path.isabs(environ.get("XDG_CONFIG_HOME", "")):
            return Path(environ["XDG_CONFIG_HOME"]) / text.removeprefix("~/.config/")
        return home / text.removeprefix("~/")

    def matches(self, path: Path) -> bool:
        """Whether a path could be this file, on either system, in any user's folder or project."""
        for text in {self.linux, self.macos or self.linux}:
            parts = Path(text.removeprefix("~/")).parts
            if len(parts) > 1 and path.parts[-len(parts) :] == parts:
                return True
            if len(parts) == 1 and path.name == parts[0]:
                return True
        return False


@dataclass
class FileContext:
    """The file that is being read, and what the host would know when it reads it."""

    file: Path
    document: Document
    home: Path
    notices: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    """Descriptions of the inputs that the host asks its user for, by their ids."""

    @property
    def root(self) -> dict[str, object]:
        return self.document.root

    @property
    def folder(self) -> Path:
        return self.file.parent

    def sibling(self, path: Path) -> dict[str, object]:
        """The values of another file of the host; empty if there is none.

        Raises:
            CannotUse: it cannot be read, so a restriction could be missed.
        """
        if not path.exists():
            return {}
        try:
            return read(path).root
        except ConfigError:
            problem = CannotUse(f"the file {path.name} of its host, which may restrict it, cannot be read")
        # Not within the handler: the error could show pieces of the file.
        raise problem

    def at(self, *path: str) -> dict[str, object]:
        """The map at a path of the file; empty if there is none."""
        return at(self.root, *path)


def at(root: dict[str, object], *path: str) -> dict[str, object]:
    """The map at a path of a file; empty if there is none."""
    value: object = root
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


Translator = Callable[[str, FileContext], str]
Servers = list[tuple[KeyPath, str, object]]
"""The servers of a file, each with its path, its name and its value."""


def literal(text: str, context: FileContext) -> str:
    """A text of a host that knows no references."""
    return text.replace("${", "$${")


def no_restrictions(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """A host whose restrictions are all in the entries of its servers."""


@dataclass(frozen=True)
class DesktopHost:
    """A host. `name` is its name on the command line, `title` the one for people."""

    name: str
    title: str
    files: tuple[HostFile, ...]
    servers: tuple[str, ...]
    """The keys that lead to the map of servers."""
    rules: Mapping[str, Rule]
    """The keys of a server. A key that is not here stops the server."""
    other_keys: tuple[KeyPath, ...] = ()
    """Paths that `restrict` reads, beside the servers. A part that is None stands for any key."""
    translate: Translator = literal
    restrict: Callable[[FileContext, Mapping[str, ServerEntry]], None] = no_restrictions
    """Apply what stands beside the servers, in the file or in others: switches and lists of tools. The entries have
    their host's names for servers."""
    find: Callable[[FileContext], Servers] | None = None
    """The servers of a file, if they do not stand in one map."""
    has_shape: Callable[[Mapping[str, object]], bool] = lambda root: False
    """Whether a file in an unusual place has the shape of this host's."""
    has_own_keys: bool = False
    """Whether keys of ours may stand beside the servers. They could mean another thing in a file of a host."""
    hides_switches: bool = False
    """Whether the person's switches and approvals stand in no file."""

    def wanted(self, path: KeyPath) -> bool:
        """Whether a value of a large file means something here."""
        return self.has_own_keys or any(_is_along(path, kept) for kept in (self.servers, *self.other_keys))

    def found_in(self, context: FileContext) -> Servers:
        """The servers of a file.

        Raises:
            ConfigError: they do not stand in a map.
        """
        if self.find is not None:
            return self.find(context)
        value: object = context.root
        for n, key in enumerate(self.servers):
            if not isinstance(value, dict):
                place = context.document.places[self.servers[:n]].value
                raise context.document.fatal(place, f"{'.'.join(self.servers[:n])}: expected a map")
            value = value.get(key)
            if value is None or is_null(value):
                return []
        if not isinstance(value, dict):
            place = context.document.places[self.servers].value
            raise context.document.fatal(place, f"{'.'.join(self.servers)}: expected a map of servers")
        return [((*self.servers, name), name, below) for name, below in value.items()]


def _is_along(path: KeyPath, kept: KeyPath) -> bool:
    """Whether a path leads to a kept one, or is below it."""
    return all(mine is None or part == mine for part, mine in zip(path, kept, strict=False))


def wanted_of(host: DesktopHost | None) -> Wanted | None:
    """Which values to read of a host's file; None for all of a file that is ours."""
    return None if host is None else host.wanted
