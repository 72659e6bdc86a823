"""Clients that defer tools themselves."""

from __future__ import annotations

import pytest

from host.protocol.deferring_clients import defers_tools


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("claude-code 2.1.332", True),
        ("claude-code 2.1.7", True),
        ("claude-code 2.1.6", False),
        ("claude-code 1.0.128", False),
        ("claude-code 10.0", True),
        ("claude-code", False),
        ("claude-code newest", False),
        ("claude-code " + "9" * 80, True),
        ("claude-codex 3.0.0", False),
        ("codex-mcp-client 0.171.0", True),
        ("codex-mcp-client 0.144.5-alpha.1", True),
        ("codex-mcp-client 0.46.0", False),
        ("qwen-cli-mcp-client-colonnade 0.0.1", True),
        ("qwen-cli-mcp-client-my server 0.0.1", True),
        ("qwen-cli-mcp-client-colonnade", True),
        ("qwen-cli-mcp-client", False),
        ("gemini-cli-mcp-client 0.0.1", False),
        ("cursor-vscode 1.0.0", False),
        ("", False),
        (" ", False),
    ],
)
def test_known_clients_from_the_version_on_that_defers(client: str, expected: bool) -> None:
    assert defers_tools(client) is expected
