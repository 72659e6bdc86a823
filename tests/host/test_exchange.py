"""The one model behind the faces cannot be changed by whoever holds it."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import fields

from host.client_process import ClientProcess
from host.exchange import Caller, Exchange, MrtrRound, NoClient
from host.jsonrpc.messages import Notification, Request
from host.protocol.abilities import NO_ABILITIES, SHARED_ABILITIES
from host.source import SHARED, Endpoint
from host.wire.link import LinkLost


class Noting(NoClient):
    """An outlet that notes what is told."""

    def __init__(self) -> None:
        self.told: list[Notification] = []

    def notify(self, notice: Notification) -> None:
        self.told.append(notice)


def test_an_exchange_is_what_was_asked_by_whom_and_where_news_go() -> None:
    handle = Noting()
    exchange = Exchange(Request(1, "m"), {}, Caller("desk", SHARED), handle)
    exchange.client.notify(Notification("n"))
    assert handle.told == [Notification("n")]
    assert (exchange.request.id, exchange.caller.name, exchange.caller.endpoint) == (1, "desk", SHARED)


def test_an_exchange_and_its_caller_are_frozen() -> None:
    exchange = Exchange(Request(1, "m"), {}, Caller("desk", Endpoint("gh")), NoClient())
    with pytest.raises(AttributeError, match="immutable"):
        exchange.caller = Caller("other", SHARED)  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError, match="immutable"):
        exchange.caller.endpoint = SHARED  # type: ignore[misc]  # the point of the test
    with pytest.raises(AttributeError, match="immutable"):
        exchange.caller.abilities = SHARED_ABILITIES  # type: ignore[misc]  # the point of the test


def test_a_caller_is_itself_alone() -> None:
    """Two clients of the same name and token are still two: what is kept for one is not the other's."""
    one, other = Caller("desk", SHARED, "token"), Caller("desk", SHARED, "token")
    assert one == one
    assert one != other
    assert len({one, other}) == 2


async def test_whoever_hears_nothing_can_be_asked_nothing() -> None:
    caller = Caller("desk", SHARED)
    assert (caller.abilities, caller.instance_key, caller.identity) == (NO_ABILITIES, None, None)
    caller.client.notify(Notification("n"))
    with pytest.raises(LinkLost, match="cannot be asked"):
        await caller.client.request("roots/list", {}, None)


def test_nothing_behind_the_faces_has_a_place_for_a_clients_token() -> None:
    """What a client proved itself with ends at the door: only the token's name goes on (rule 98)."""
    assert {field.name for field in fields(Caller)} == {
        "name",
        "endpoint",
        "identity",
        "abilities",
        "instance_key",
        "client",
        "key",
        "session",
        "era",
        "process",
        "says",
        "search",
        "on_dedicated",
    }
    assert {field.name for field in dataclasses.fields(ClientProcess)} == {
        "program",
        "pid",
        "folder",
        "environment",
        "refused",
        "is_command",
    }
    said = {"request", "params", "caller", "level", "round", "target", "address", "through"}
    assert {field.name for field in fields(Exchange)} == said | {"client", "on_task", "on_sent", "scope"}
    assert {field.name for field in fields(MrtrRound)} == {"server", "answers", "state"}
