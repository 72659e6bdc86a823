"""LM Studio's file."""

from __future__ import annotations

import pytest

from config.desktop.lm_studio import LM_STUDIO
from tests.config.desktop.kit import ALLOW, DENY, OFF, PROBLEM, Home, state, states
from tests.config.kit import http, stdio

PLACES = ("~/.lmstudio/mcp.json", "~/.cache/lm-studio/mcp.json")


@pytest.mark.parametrize("place", PLACES)
def test_a_usual_file(home: Home, place: str) -> None:
    made = home.load(
        place,
        {
            "mcpServers": {
                "hf": {"url": "https://hub.example/mcp", "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
                "browser": {"command": "/opt/npx", "args": ["@acme/browser-mcp"], "env": {"HEADLESS": "1"}},
                "slow": {"command": "uvx", "args": ["slow-mcp"], "timeout": 300000, "type": "stdio"},
            }
        },
    )
    assert made.notices == ("read as an LM Studio file",)
    assert [state(made, id) for id in made.servers] == [ALLOW] * 3
    assert http(made, "hf").headers["Authorization"].reveal() == "Bearer ${env:TOKEN}"
    assert (stdio(made, "browser").cwd, stdio(made, "slow").timeout) == (home.path, 60.0)
    assert LM_STUDIO.hides_switches


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"disabled": True}, [OFF, OFF]),
        ({"disabledTools": ["read"]}, [DENY, ALLOW]),
        ({"allowed_tools": ["read"]}, [PROBLEM, PROBLEM]),
    ],
)
def test_keys_that_restrict(home: Home, more: dict[str, object], expected: list[str]) -> None:
    assert states(home.server(PLACES[0], {"command": "x", **more}), "files", "read", "write") == expected
