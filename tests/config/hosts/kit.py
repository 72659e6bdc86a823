"""A user's folder with files of desktop hosts, and what may be called once such a file is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import config
from config import Config, Verdict
from config.hosts import DesktopHost
from host.policy.rules import Rules
from host.protocol.methods import Kind

OFF = "off"
PROBLEM = "problem"


class Home:
    """A user's folder `path` beside a folder for a project `project`, both in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kim"
        self.project = folder / "shop"
        self.environ: dict[str, str] = {}

    def write(self, place: str, content: object) -> Path:
        """Write a file in the user's folder if `place` begins with `~/`, else in the project's. What is no text is
        written as JSON."""
        file = self.path / place[2:] if place.startswith("~/") else self.project / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file

    def load(self, place: str, content: object) -> Config:
        """Write a file and read it."""
        return config.load(self.write(place, content), self.environ, home=self.path)

    def server(self, place: str, entry: object, key: str = "mcpServers") -> Config:
        """Read a file of one server, `files`."""
        return self.load(place, {key: {"files": entry}})


def state(made: Config, id: str, tool: str = "read") -> str:
    """The verdict on a call of a tool, or the reason why the server does not run."""
    server = made.servers[id]
    if server.disabled:
        return OFF
    if server.problem:
        return PROBLEM
    return Rules(server.consent, server.trust).evaluate(Kind.TOOL, tool, {}).verdict


def states(made: Config, id: str, *tools: str) -> list[str]:
    return [state(made, id, tool) for tool in tools]


def places(host: DesktopHost, platform: str, environ: Mapping[str, str] = {}) -> set[str]:
    """The paths of a host's files on a system, for the user's folder `/u` and the project `/p`."""
    return {str(file.path(Path("/p"), Path("/u"), environ, platform)) for file in host.files}


ALLOW, ASK, DENY = str(Verdict.ALLOW), str(Verdict.ASK), str(Verdict.DENY)
