"""Short ways to write a file, load it, and look at what was refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import config
from config import Config, ConfigError, HttpServer, Problem, StdioServer


def load_text(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, name: str = "c.yaml"
) -> Config:
    """Write `text` to a file in `folder` and load it, with an empty environment unless one is given."""
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return config.load(file, environ or {})


def problems(
    folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, name: str = "c.yaml"
) -> tuple[Problem, ...]:
    """The problems of `text`; fails if there is none."""
    with pytest.raises(ConfigError) as caught:
        load_text(folder, text, environ, name)
    return caught.value.problems


def lines(folder: Path, text: str | bytes, environ: Mapping[str, str] | None = None, name: str = "c.yaml") -> list[str]:
    """The problems as `line:column: where: text`."""
    prefix = f"{folder / name}:"
    return [str(problem).removeprefix(prefix) for problem in problems(folder, text, environ, name)]


def stdio(config: Config, server: str) -> StdioServer:
    """The server, which must be a child process."""
    spec = config.servers[server]
    assert isinstance(spec, StdioServer)
    return spec


def http(config: Config, server: str) -> HttpServer:
    """The server, which must be at a URL."""
    spec = config.servers[server]
    assert isinstance(spec, HttpServer)
    return spec
