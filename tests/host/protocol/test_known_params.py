"""The names that params may have."""

from __future__ import annotations

import pytest

from host.downstream.stateless import SUPPORTED_METHODS
from host.downstream.tasks import IN_EXTENSION, IN_HANDSHAKE
from host.jsonrpc.raw import members
from host.protocol.known_params import KNOWN_PARAMS, UNSET, other_members
from host.protocol.methods import COMPLETION_COMPLETE, DISCOVER, SUBSCRIBE, TARGETED, UNSUBSCRIBE

# From the schemas of all revisions: members that only one of them has belong to every era.
REACHING_ENTRIES = {
    "tools/call": ["_meta", "name", "arguments", "task", "inputResponses", "requestState"],
    "prompts/get": ["_meta", "name", "arguments", "inputResponses", "requestState"],
    "resources/read": ["_meta", "uri", "inputResponses", "requestState"],
    "resources/subscribe": ["_meta", "uri"],
    "resources/unsubscribe": ["_meta", "uri"],
    "completion/complete": ["_meta", "ref", "argument", "context"],
}


@pytest.mark.parametrize("method", REACHING_ENTRIES)
def test_every_member_of_every_revision_is_known_in_its_own_spelling_alone(method: str) -> None:
    names = REACHING_ENTRIES[method]
    assert KNOWN_PARAMS[method].twin_in([*names, "other"]) is None
    for name in names:
        assert KNOWN_PARAMS[method].twin_in([name.upper()]) == name.upper()
        assert KNOWN_PARAMS[method].twin_in([f"{name}\0"]) == f"{name}\0"


def test_only_known_members_can_be_unset() -> None:
    for method, unset in UNSET.items():
        assert all(KNOWN_PARAMS[method].twin_in([name.upper()]) for name in unset)


def test_every_method_whose_params_are_read_has_its_names() -> None:
    read = {*TARGETED, COMPLETION_COMPLETE, SUBSCRIBE, UNSUBSCRIBE, *SUPPORTED_METHODS, *IN_EXTENSION, *IN_HANDSHAKE}
    assert KNOWN_PARAMS.keys() >= read - {DISCOVER}


@pytest.mark.parametrize(
    ("method", "params", "others"),
    [
        ("tools/call", b'{"name":"x","arguments":{},"_meta":{},"task":{},"a":1}', b'{"a":1}'),
        ("tools/call", b'{"name":"x","inputResponses":{},"requestState":"s"}', b"{}"),
        ("prompts/get", b'{"name":"x","arguments":{},"task":{}}', b'{"task":{}}'),
        ("resources/read", b'{"uri":"x","arguments":{}}', b'{"arguments":{}}'),
        ("completion/complete", b'{"ref":{},"argument":{"name":"a"}}', b'{"argument":{"name":"a"}}'),
        ("resources/subscribe", b'{"uri":"x","a":1}', b"{}"),
    ],
)
def test_members_that_are_sent_beside_the_arguments(method: str, params: bytes, others: bytes) -> None:
    assert other_members(method, members(params)) == members(others)
