"""What the person who runs a server should know about it."""

from __future__ import annotations

import json
from pathlib import Path

from config import load
from host.admin.warnings import warnings_of


def test_a_program_that_is_not_trusted_and_not_confined(tmp_path: Path) -> None:
    servers = {
        "a": {"command": ["cat"], "trust": "untrusted"},
        "b": {"command": ["cat"]},
        "c": {"url": "http://127.0.0.1:9/mcp", "trust": "untrusted"},
    }
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": servers}))
    found = {id: warnings_of(spec) for id, spec in load(str(file)).servers.items()}
    assert {id: len(warnings) for id, warnings in found.items()} == {"a": 1, "b": 0, "c": 0}
    assert "unconfined" in found["a"][0]


def test_a_program_that_may_run_twice(tmp_path: Path) -> None:
    """A server at a URL runs once, in whatever eras it is used."""
    url = "http://127.0.0.1:9/mcp"
    servers = {
        "a": {"command": ["cat"], "eras": "both"},
        "b": {"url": url, "eras": "both"},
        "c": {"url": url},
        "d": {"command": ["cat"], "eras": "both", "isolation": "per-client"},
    }
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": servers}))
    found = {id: warnings_of(spec) for id, spec in load(str(file)).servers.items()}
    assert {id: len(warnings) for id, warnings in found.items()} == {"a": 2, "b": 0, "c": 0, "d": 1}
    assert "run twice" in found["a"][0]
    assert "only while it works on one call" in found["a"][1]
