"""A desktop host: where its files lie, how they are shaped, and the rules for the keys of a server in them."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path

from config.desktop.entry import CannotUse, Rule, ServerEntry, escape
from config.document import Document, Plain, is_null
from config.file_state import note_state
from config.json_text import Wanted
from config.problems import ConfigError, KeyPath
from config.read import read

SYSTEM = Path("/")
"""The folder from which paths of system-wide files start."""
_OTHER_TOOLS = re.compile(r"(?!(?:.*\|)?mcp)\w+(?:\|\w+)*", re.IGNORECASE)
_SYSTEM_FOLDERS = ("~/.config/", "~/Library/Application Support/", "~/")


@dataclass(frozen=True)
class HostFile:
    """A file of a host. Paths have `~` for the user's folder; a project's file starts from the project's folder. A `*`
    in a path stands for any part of a name."""

    linux: str
    macos: str = ""
    """The same as on Linux, if empty."""
    is_project: bool = False
    variable: str = ""
    """An environment variable that names another file, or another folder for it."""
    below: str = ""
    """The path of the file in the folder that the variable names; empty if the variable names the file."""
    is_all_servers: bool = False
    """Whether the file is about servers alone."""

    def path(self, project: Path, home: Path, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
        """The path of the file on this system."""
        text = self.macos if platform == "darwin" and self.macos else self.linux
        if self.is_project:
            return project / text
        if self.variable and environ.get(self.variable):
            return Path(environ[self.variable]) / self.below
        if text.startswith("~/.config/") and os.path.isabs(environ.get("XDG_CONFIG_HOME", "")):
            return Path(environ["XDG_CONFIG_HOME"]) / text.removeprefix("~/.config/")
        return home / text.removeprefix("~/")

    def found(
        self, project: Path, home: Path, environ: Mapping[str, str], platform: str = sys.platform
    ) -> Iterator[Path]:
        """The files that exist at the path on this system; several, if a part of it is any name."""
        path = self.path(project, home, environ, platform)
        if "*" in str(path):
            depth = next(n for n, part in enumerate(path.parts) if "*" in part)
            pattern = str(Path(*path.parts[depth:]))
            yield from sorted(file for file in Path(*path.parts[:depth]).glob(pattern) if file.is_file())
        elif path.is_file():
            yield path

    def matches(self, path: Path) -> bool:
        """Whether a path could be this file, on either system, in any user's folder or project."""
        return any(
            len(path.parts) >= len(parts) and all(map(fnmatchcase, path.parts[-len(parts) :], parts))
            for parts in (_tail(self.linux), _tail(self.macos or self.linux))
        )

    def project_of(self, path: Path) -> Path:
        """The project of a path that `matches`."""
        return path.parents[len(_tail(self.linux)) - 1]


@cache  # asked about each file of each host, whenever a file is read
def _tail(text: str) -> tuple[str, ...]:
    """The parts of a path below the user's folder, or below its folder for settings, which may be elsewhere."""
    for folder in _SYSTEM_FOLDERS:
        text = text.removeprefix(folder)
    return Path(text).parts


@dataclass
class FileContext:
    """The file that is being read, and what the host would know when it reads it. `project` is the folder of the
    project whose file it is; None for a file of the user."""

    file: Path
    document: Document
    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    project: Path | None = None
    notices: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    """Descriptions of the inputs that the host asks its user for, by their ids."""
    seen: dict[Path, str] = field(default_factory=dict)
    """The other files and folders that were looked at, also those that are missing, each with its state before that."""
    _roots: dict[tuple[Path, tuple[KeyPath, ...]], dict[str, object]] = field(default_factory=dict)
    """The values of other files, of which each is read once: some concern each of hundreds of servers."""

    @property
    def root(self) -> dict[str, object]:
        return self.document.root

    @property
    def folder(self) -> Path:
        return self.file.parent

    def sibling(self, path: Path, *kept: KeyPath, data: bytes | None = None) -> dict[str, object]:
        """The values of another file of the host; empty if there is none. `kept` are the paths to read, if not all.
        `data` is the content, if it is known or does not stand in a file.

        Raises:
            CannotUse: it cannot be read, so a restriction could be missed.
        """
        if data is None and (path, kept) in self._roots:
            return self._roots[path, kept]
        try:
            if data is None:
                self.note(path)
                if not stat.S_ISREG(path.stat().st_mode):  # says whether it is there, which `read` does not
                    raise OSError
            document = read(path, lambda root: partial(_is_along_any, kept) if kept else None, data, may_be_blank=True)
            if not document.problems:
                if data is None:
                    self._roots[path, kept] = document.root
                return document.root
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (ConfigError, OSError):
            pass
        # Not within the handler: the error could show pieces of the file.
        source = "file" if data is None else "setting"
        raise CannotUse(f"the {source} {path.name} of its host, which may restrict it, cannot be read or has mistakes")

    def note(self, path: Path) -> None:
        """Note a file or folder that is looked at next: what it holds counts."""
        note_state(self.seen, path)

    def within(self, folder: Path, pattern: str) -> list[Path]:
        """The files in a folder, which is noted, and with `**` those below it too, also behind links."""
        folders, reached = [folder], {os.path.realpath(folder)}
        for each in folders:
            self.note(each)
            for below in sorted(each.glob("*/")) if "**" in pattern else ():
                if (real := os.path.realpath(below)) not in reached:
                    reached.add(real)
                    folders.append(below)
        return sorted(file for each in folders for file in each.glob(pattern.rpartition("/")[2]))

    def at(self, *path: str) -> dict[str, object]:
        """The map at a path of the file; empty if there is none."""
        return at(self.root, *path)

    def users(self, file: HostFile) -> Path:
        """The path of a file of the user."""
        return file.path(Path(), self.home, self.environ)

    def of_variable(self, name: str) -> dict[str, object]:
        """The values that an environment variable holds as JSON; empty if it is not set.

        Raises:
            CannotUse: they cannot be read.
        """
        return self.sibling(Path(name), data=self.environ.get(name, "").encode())

    def system_wide(self, linux: str, macos: str, *kept: KeyPath) -> dict[str, object]:
        """The values of a file for all users of the machine.

        Raises:
            CannotUse: it cannot be read.
        """
        return self.sibling(self.system_path(linux, macos), *kept)

    def system_path(self, linux: str, macos: str) -> Path:
        """A path for all users of the machine. Both are written without the slash at the beginning."""
        return SYSTEM / (macos if sys.platform == "darwin" else linux)


def at(root: dict[str, object], *path: str) -> dict[str, object]:
    """The map at a path of a file; empty if there is none."""
    value: object = root
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def has_server(root: Mapping[str, object], key: str, fits: Callable[[dict[str, object]], bool]) -> bool:
    """Whether one of the servers, or other maps, under a key of a file is as described."""
    servers = root.get(key)
    return isinstance(servers, dict) and any(isinstance(each, dict) and fits(each) for each in servers.values())


def concern_servers(hooks: object) -> bool:
    """Whether hooks could be about tools of servers: all but those for plain names of other tools."""
    if not hooks or is_null(hooks):
        return False
    matchers = [hook.get("matcher") if isinstance(hook, dict) else None for hook in _listed(hooks)]
    # A number, a truth or nothing is no name of a tool, though it is kept as text.
    return not all(
        isinstance(each, str) and not isinstance(each, Plain) and _OTHER_TOOLS.fullmatch(each) for each in matchers
    )


def detect_hooks(
    title: str,
    hooks: Iterable[str],
    roots: Iterable[dict[str, object]],
    entries: Iterable[ServerEntry],
    *,
    have_matchers: bool = True,
) -> None:
    """Note for all entries the hooks of these names that could be about tools of servers, by their matchers if they
    have such."""
    roots = list(roots)
    for hook in hooks:
        found = (at(root, "hooks").get(hook) for root in roots)
        if any(map(concern_servers if have_matchers else bool, found)):
            for entry in entries:
                entry.detect(f"a hook of {title} ({hook})")


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def in_repository(folder: Path) -> list[Path]:
    """The folders from that of the git repository down to this one; none outside of a repository."""
    for root in (folder, *folder.parents):
        if (root / ".git").exists():
            return [each for each in (*reversed(folder.parents), folder) if each.is_relative_to(root)]
    return []


Translator = Callable[[str, FileContext], str]
Servers = list[tuple[KeyPath, str, object]]
"""The servers of a file, each with its path, its name and its value."""


def merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """Two maps in one, in which the values of the second replace those of the first. Keys keep the first place."""
    made = dict(below)
    for key, value in above.items():
        first = made.get(key)
        made[key] = merged(first, value) if isinstance(first, dict) and isinstance(value, dict) else value
    return made


def literal(text: str, context: FileContext) -> str:
    """A text of a host that knows no references."""
    return escape(text)


def rewrite(text: str, reference: re.Pattern[str], write: Callable[[re.Match[str]], str]) -> str:
    """The text with each reference as `write` writes it in our form, and all else taken literally.

    Raises:
        CannotUse: a `$` stands before a reference, which our form would read as a literal `${`.
    """
    made, at = "", 0
    # A brace behind the last closing one closes nowhere. Looking for the end of each would take time in proportion to
    # the square of their number.
    last = text.rfind("}") + 1
    searched = text[:last] + text[last:].replace("{", " ")
    for match in reference.finditer(searched):
        written = write(match)
        made += escape(text[at : match.start()])
        if made.endswith("$") and written.startswith("${"):
            raise CannotUse("a $ stands right before a reference, which cannot be written here")
        made += written
        at = match.end()
    return made + escape(text[at:])


def servers_at(context: FileContext, path: tuple[str, ...]) -> Servers:
    """The servers in the map at a path; none if there is no such path.

    Raises:
        ConfigError: they do not stand in a map.
    """
    value: object = context.root
    for n, key in enumerate(path):
        if not isinstance(value, dict):
            place = context.document.places[path[:n]].value
            raise context.document.fatal(place, f"{'.'.join(path[:n])}: expected a map")
        value = value.get(key)
        if value is None or is_null(value):
            return []
    if not isinstance(value, dict):
        place = context.document.places[path].value
        raise context.document.fatal(place, f"{'.'.join(path)}: expected a map of servers")
    return [((*path, name), name, below) for name, below in value.items()]


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
    syntax: str = "JSON"
    """The syntax of its files: JSON, YAML or TOML."""
    has_shape: Callable[[Mapping[str, object]], bool] = lambda root: False
    """Whether a file at no host's place has the parts of a file of this host."""
    has_marks: Callable[[Mapping[str, object]], bool] = lambda root: False
    """Whether a file at no host's place may come from this host. What restricts servers of this host then restricts
    those of the file too, in whatever form it is read."""
    has_own_keys: bool = False
    """Whether keys of ours may stand beside the servers. They could mean another thing in a file of a host."""
    hides_switches: bool = False
    """Whether the person's switches and approvals stand in no file."""

    def wanted(self, path: KeyPath) -> bool:
        """Whether a value of a large file means something here."""
        return self.has_own_keys or _is_along_any((self.servers, *self.other_keys), path)

    def found_in(self, context: FileContext) -> Servers:
        """The servers of a file.

        Raises:
            ConfigError: they do not stand in a map.
        """
        return servers_at(context, self.servers) if self.find is None else self.find(context)

    def fits(self, root: Mapping[str, object]) -> bool:
        """Whether a file at no host's place is one of this host as a whole.

        Where files of several hosts have their servers under the same key, none may have a key that is not known here.
        """
        if not self.has_shape(root):
            return False
        found = root.get(self.servers[0]) if self.servers in (("mcpServers",), ("servers",)) else None
        servers = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        return all(each.keys() <= self.rules.keys() for each in servers if isinstance(each, dict))

    def place_of(self, file: Path, home: Path, environ: Mapping[str, str]) -> tuple[Path | None, Path]:
        """The project whose file this is, if any, and the folder that relative paths in it start from."""
        known = [known for known in self.files if known.matches(file)]
        of_user = [each for each in known if not each.is_project]
        places = [each.path(home, home, environ, platform) for each in of_user for platform in ("linux", "darwin")]
        if file not in places:
            for each in known:
                if each.is_project:
                    return each.project_of(file), each.project_of(file)
        return None, home if of_user else file.parent


def _is_along_any(kept: tuple[KeyPath, ...], path: KeyPath) -> bool:
    """Whether a path leads to a kept one, or is below it."""
    return any(all(mine is None or part == mine for part, mine in zip(path, each, strict=False)) for each in kept)


def wanted_of(host: DesktopHost | None) -> Wanted | None:
    """Which values to read of a host's file; None for all of a file that is ours."""
    return None if host is None else host.wanted
