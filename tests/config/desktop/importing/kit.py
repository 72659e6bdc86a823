"""Short ways to import servers of a file and to read what is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import config
from config import Config, ConsentWord
from config.desktop.importing.found import FoundFile, FoundServer, read_servers
from config.desktop.importing.merge import ImportedServer, Merge
from config.desktop.importing.text import whole_text
from config.references import Expander


def found(
    folder: Path,
    servers: object,
    name: str = "mcp.json",
    environ: Mapping[str, str] = {},
    *,
    keep_approvals: bool = False,
    **more: object,
) -> list[FoundServer]:
    """The servers of a file with `mcpServers`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers, **more}))
    servers_found, _ = read_servers(FoundFile(path), folder, environ, keep_approvals=keep_approvals)
    return servers_found


def merged(
    folder: Path, *servers: FoundServer, environ: Mapping[str, str] = {}, taken: Mapping[str, object] = {}
) -> Merge:
    made = Merge(Expander(environ, folder), taken)
    made.add(servers)
    return made


def written(
    folder: Path,
    servers: list[ImportedServer],
    environ: Mapping[str, str] = {},
    word: ConsentWord | None = ConsentWord.CAREFUL,
) -> Config:
    """The servers as they are read from what is written under an answer."""
    (folder / "out").mkdir(exist_ok=True)
    file = folder / "out" / "colonnade.yaml"
    file.write_text(whole_text(servers, str, word))
    return config.load(file, environ)
