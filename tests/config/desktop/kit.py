"""A user's folder with files of desktop hosts, and what may be called once such a file is read."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import config
from config import Config, Consent, Verdict
from config.desktop.desktop_file import DesktopFile
from config.desktop.desktop_host import DesktopHost
from config.desktop.entry import Rule, ServerEntry
from config.desktop.importing.found import FoundFile, read_servers
from config.load import read_file
from config.references import Expander
from host.policy.rules import Rules
from host.protocol.methods import Kind

CONSENT = TypeAdapter(Consent)
OFF = "off"
PROBLEM = "problem"


_opened: list[Path] | None = None


def _note_opened(event: str, arguments: tuple[object, ...]) -> None:
    if _opened is None or event not in ("open", "os.listdir", "os.scandir"):
        return
    path = arguments[0]
    is_reference = event == "open" and arguments[1] is None  # `os.open`, which has no mode
    if isinstance(path, str | os.PathLike) and not is_reference:
        _opened.append(Path(path))


sys.addaudithook(_note_opened)  # stays for the life of the process


@contextmanager
def opening() -> Iterator[list[Path]]:
    """The files and folders that are opened during the block, except for those of references such as `${file:PATH}`."""
    global _opened
    made: list[Path] = []
    _opened = made
    try:
        yield made
    finally:
        _opened = None


class Home:
    """A user's folder `path`, one for a project `project`, and one for files of the machine `system`, all in a folder
    of the test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kim"
        self.project = folder / "shop"
        self.system = folder / "system"
        self.environ: dict[str, str] = {}

    def file(self, place: str) -> Path:
        """A path in the user's folder if `place` begins with `~/`, of the machine if it begins with `/`, else in the
        project's folder."""
        if place.startswith("~/"):
            return self.path / place[2:]
        return self.system / place[1:] if place.startswith("/") else self.project / place

    def write(self, place: str, content: object) -> Path:
        """Write a file. What is no text is written as JSON."""
        file = self.file(place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file

    def load(self, place: str, content: object) -> Config:
        """Write a file and read it."""
        self.write(place, content)
        return self.read(place)

    def read(self, place: str, environ: Mapping[str, str] | None = None) -> Config:
        """Read a file that was written. All that is opened for that has to be watched."""
        with opening() as opened:
            made = config.load(self.file(place), self.environ if environ is None else environ, home=self.path)
        ours = {path for path in opened if path.is_relative_to(self.path.parent) and ".git" not in path.parts}
        assert ours <= set(made.files), f"not watched: {ours - set(made.files)}"
        return made

    def entries(self, place: str) -> dict[str, ServerEntry]:
        """The servers of a file that was written, before they are validated, by their ids."""
        document, host = read_file(self.file(place))
        assert host is not None
        return DesktopFile(host, self.file(place), document, self.path, self.environ).entries

    def server(self, place: str, entry: object, key: str = "mcpServers") -> Config:
        """Read a file of one server, `files`."""
        return self.load(place, {key: {"files": entry}})


def state(made: Config, id: str, tool: str = "read", arguments: Mapping[str, object] = {}) -> str:
    """The verdict on a call of a tool, or the reason why the server does not run."""
    server = made.servers[id]
    if server.disabled:
        return OFF
    if server.problem:
        return PROBLEM
    return Rules(server.consent, server.trust).evaluate(Kind.TOOL, tool, arguments).verdict


def imported(home: Home, place: str, id: str, tool: str = "read") -> str:
    """The verdict on a call of a tool in what `import` writes of a file if the person wants no more questions, or the
    reason why the server does not run."""
    file = home.file(place)
    _, host = read_file(file)
    servers, _ = read_servers(FoundFile(file, host), home.path, home.environ)
    server = next(each for each in servers if each.id == id)
    return PROBLEM if server.problems else OFF if server.is_off else server.tools.verdict(tool)


def detected(home: Home, place: str, id: str) -> str:
    """The verdict that `import` writes about a server with a setting that is not carried out here, once it is certain
    that the file does not serve it, and says to import it; empty if it has no such setting."""
    if not home.entries(place)[id].detected:
        return ""
    made = home.read(place, home.environ).servers[id]
    assert made.disabled or "import it" in made.problem
    return imported(home, place, id)


def states(made: Config, id: str, *tools: str) -> list[str]:
    return [state(made, id, tool) for tool in tools]


def new_entry(
    values: Mapping[str, object] = {}, rules: Mapping[str, Rule] = {}, base: Path = Path("/b")
) -> ServerEntry:
    """A server whose keys were read by these rules."""
    made = ServerEntry("a", "a", ("a",), dict(values), lambda text: text, base)
    made.apply(dict(rules))
    return made


def decide(entry: ServerEntry, tool: str, arguments: object = None) -> str:
    """The decision on a call of a tool of a server with the default level of trust."""
    tools: Any = entry.consent_for_tools()
    context = Expander({}, Path())
    consent = CONSENT.validate_python({} if tools is None else {"tools": tools}, context=context)
    return Rules(consent).evaluate(Kind.TOOL, tool, arguments).verdict.value


def places(host: DesktopHost, platform: str, environ: Mapping[str, str] = {}) -> set[str]:
    """The paths of a host's files on a system, for the user's folder `/u` and the project `/p`."""
    return {str(file.path(Path("/p"), Path("/u"), environ, platform)) for file in host.files}


ALLOW, ASK, DENY = str(Verdict.ALLOW), str(Verdict.ASK), str(Verdict.DENY)
