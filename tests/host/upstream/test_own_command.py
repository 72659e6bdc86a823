"""Which commands of servers start Colonnade itself."""

from __future__ import annotations

import pytest

from host.upstream.own_command import starts_colonnade


@pytest.mark.parametrize(
    "command",
    [
        "colonnade serve --stdio other.yaml",
        "/opt/venv/bin/colonnade serve --stdio",
        "/opt/venv/bin/python3.12 -I -m host serve --stdio",
        "python -u /opt/venv/bin/colonnade serve",
        "uvx colonnade serve --stdio",
        "uvx --from . --offline colonnade serve",
        "uvx --from=/src colonnade@0.1 serve",
        "/usr/bin/uv tool run -p 3.12 colonnade==0.1 serve",
        "uv --directory /src run --frozen colonnade serve",
        "uv run --project /src -- python -m host serve",
        "uv run /opt/venv/bin/colonnade serve",
        "pipx run --spec /src colonnade serve",
        "uvx --from colonnade[x]==1.0 colonnade serve",
    ],
)
def test_commands_that_start_colonnade(command: str) -> None:
    assert starts_colonnade(command.split())


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python server.py colonnade",
        "python -m hostile",
        "python -m",
        "python",
        "python -X colonnade server.py",
        "/opt/colonnade/bin/server",
        "colonnade-server",
        "sh -c colonnade",
        "node colonnade",
        "uvx",
        "uvx mcp-server-git colonnade",
        "uvx --from colonnade mcp-server-git",
        "uvx --from other colonnade",
        "uvx --from=colonnade-other colonnade",
        "uv tool run --from other==1 colonnade",
        "pipx run --spec other colonnade",
        "uvx --from",
        "uvx --unknown colonnade server",
        "uvx colonnade-tools",
        "uv colonnade",
        "uv tool install colonnade",
        "uv run server.py colonnade",
        "uv run --from",
        "pipx install colonnade",
        "npx colonnade",
    ],
)
def test_commands_that_start_something_else(command: str) -> None:
    assert not starts_colonnade(command.split())
