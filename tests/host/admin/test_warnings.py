"""What the person who runs a server should know about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from config import Unconfined, load
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
    assert not any(found.values())
    former = replace(load(str(file)).servers["a"], sandbox=None, unconfined=Unconfined.OPEN)
    (warning,) = warnings_of(former)
    assert "choose colonnade sandbox a strict, or off" in warning
    assert warnings_of(replace(former, unconfined=Unconfined.CHOSEN)) == []


def test_an_image_that_another_one_may_replace(tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    images = {"a": "x:1", "b": f"x@{digest}", "c": digest, "d": "sha256:1", "e": f"h/{digest}"}
    servers = {id: {"command": "x", "sandbox": {"with": "podman", "image": image}} for id, image in images.items()}
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": servers}))
    found = {id: warnings_of(spec) for id, spec in load(str(file)).servers.items()}
    assert {id: len(warnings) for id, warnings in found.items()} == {"a": 1, "b": 0, "c": 0, "d": 1, "e": 1}
    assert "write the digest: podman image inspect x:1 shows it" in found["a"][0]


@pytest.mark.disk
def test_a_sandbox_in_which_the_configuration_may_be_written(tmp_path: Path) -> None:
    (folder := tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write = {
        "a": ([str(folder)], 1),
        "b": ([str(tmp_path / "link")], 1),
        "c": ([str(folder / "colonnade.yaml")], 1),
        "d": ([str(folder / "out"), str(tmp_path / "a" / "bb")], 0),
        "e": ([], 0),
    }
    servers = {
        id: {"command": "x", "sandbox": {"files": {"read": [str(tmp_path)], "write": each}}}
        for id, (each, _) in write.items()
    }
    (file := folder / "colonnade.yaml").write_text(json.dumps({"servers": servers}))
    config = load(str(file))
    found = {id: warnings_of(spec, source=config.source) for id, spec in config.servers.items()}
    assert {id: len(each) for id, each in found.items()} == {id: count for id, (_, count) in write.items()}
    assert "name folders beside it" in found["a"][0]


def test_a_login_that_is_worth_less(tmp_path: Path) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text("servers: {a: {url: 'https://h/', oauth: {resource: none, pkce: assume}}, b: {url: 'https://h/'}}")
    servers = load(str(file)).servers
    first, second = warnings_of(servers["a"])
    assert "oauth.resource: none" in first
    assert "oauth.pkce: assume" in second
    assert warnings_of(servers["b"]) == []


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


def test_what_is_known_of_a_published_server(tmp_path: Path) -> None:
    """By its command, its name or its failure; never where the file has the line, and without anything secret."""
    memory = ["npx", "-y", "@modelcontextprotocol/server-memory", "--key", "s3cret"]
    servers = {
        "a": {"command": memory},
        "b": {"command": memory, "limits": {"concurrent": 2}},
        "c": {"command": memory, "limits": {"calls": "60/min"}},
        "d": {"command": ["node", "memory.js"]},
        "e": {"url": "http://127.0.0.1:8931/mcp?key=s3cret"},
    }
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": servers}))
    specs = load(str(file)).servers
    info = [("name", "memory-server"), ("version", "0.6.3")]
    said = {
        id: "".join(warnings_of(spec, info, "Access is only allowed at localhost:8931")) for id, spec in specs.items()
    }
    assert "write limits: {concurrent: 1} (" in said["a"]
    assert said["b"] == ""
    assert "write limits: {…, concurrent: 1} (" in said["c"]
    assert "write limits: {concurrent: 1} (" in said["d"]
    assert "write url: http://localhost:8931/… (" in said["e"]
    assert "s3cret" not in "".join(said.values())
    assert warnings_of(specs["d"]) == warnings_of(specs["e"]) == []
