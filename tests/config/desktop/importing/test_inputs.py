"""Inputs of hosts, and whether a configured server has the references that an import writes for them."""

from __future__ import annotations

import pytest

from config.desktop.importing.inputs import as_configured, input_ids, variable_for


def test_each_input_is_found_once() -> None:
    ours = {"command": ["x", "${input:a}"], "env": {"K": "${input:b}${input:a}", "L": "$${input:c}"}}
    assert input_ids(ours) == ["a", "b"]


@pytest.mark.parametrize(
    ("id", "variable"), [("my-key", "MY_KEY"), ("2", "INPUT_2"), ("--", "INPUT"), ("tokenÄ", "TOKEN")]
)
def test_the_variable_of_an_input(id: str, variable: str) -> None:
    assert variable_for(id) == variable


@pytest.mark.parametrize(
    ("id", "reference", "is_it"),
    [
        ("my key", "${keyring:input.my-key}", True),
        ("my-key", "${keyring:input.my-key-2}", True),
        ("my-key", "${file:colonnade.secrets/input.my-key}", True),
        ("my-key", "${env:MY_KEY}", True),
        ("my-key", "${keyring:input.other-key}", False),
        ("my-key", "${keyring:my-key}", False),
        ("my-key", "${keyring:input.my-key-x}", False),
        ("my-key", "${env:OTHER}", False),
        ("my-key", "text", False),
    ],
)
def test_a_configured_server_has_the_reference_of_an_input(id: str, reference: str, is_it: bool) -> None:
    ours = {"url": "https://h", "headers": {"Authorization": f"Bearer ${{input:{id}}}"}}
    configured = {"url": "https://h", "headers": {"Authorization": f"Bearer {reference}"}}
    assert (as_configured(ours, configured) == configured) is is_it
