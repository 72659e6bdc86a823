"""Configurations of former versions mean what they meant."""

from __future__ import annotations

import json
import lzma

import pytest

from config.desktop.desktop_file import IMPORT
from tests.former.record import RECORD, digests, meaning, read_text

FORMER: dict[str, dict[str, str]] = json.loads(lzma.decompress(RECORD.read_bytes()))
DETECTED = ("amp.mcpPermissions", '"permissions"')
"""Settings of desktop hosts that were applied once. Now they stop the servers that they could restrict."""


def test_the_record_is_of_many_configurations() -> None:
    assert len(FORMER) > 100
    assert any("trust: untrusted" in text for text in FORMER)
    assert any("mcpServers" in text for text in FORMER)


@pytest.mark.parametrize("number", range(len(FORMER)))
def test_each_server_has_its_former_verdicts_rules_and_names(number: int) -> None:
    text = [*FORMER][number]
    config = read_text(text)
    meant = meaning(config, text)
    now = digests(meant)
    stopped = {id for id, spec in config.servers.items() if spec.problem.endswith(IMPORT)}
    differing = {id: meant[id] for id in now.keys() - stopped if now[id] != FORMER[text].get(id)}
    assert now.keys() == FORMER[text].keys()
    assert not stopped or any(key in text for key in DETECTED), text
    assert differing == {}, text


def test_another_rule_is_another_digest() -> None:
    narrow, wide = "servers: {a: {command: x, consent: {tools: {deny: [t]}}}}", "servers: {a: {command: x}}"
    assert digests(meaning(read_text(narrow), narrow)) != digests(meaning(read_text(wide), narrow))
