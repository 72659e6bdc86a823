"""The one model behind the faces cannot be changed by whoever holds it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from host.exchange import Caller, Exchange
from host.jsonrpc.messages import Notification, Request


def test_an_exchange_is_what_was_asked_by_whom_and_where_news_go() -> None:
    told: list[Notification] = []
    exchange = Exchange(Request(1, "m"), {}, Caller("desk", None), told.append)
    exchange.tell(Notification("n"))
    assert told == [Notification("n")]
    assert (exchange.request.id, exchange.caller.name, exchange.caller.endpoint) == (1, "desk", None)


def test_an_exchange_and_its_caller_are_frozen() -> None:
    exchange = Exchange(Request(1, "m"), {}, Caller("desk", "gh"), lambda _: None)
    with pytest.raises(FrozenInstanceError):
        exchange.caller = Caller("other", None)  # type: ignore[misc]  # the point of the test
    with pytest.raises(FrozenInstanceError):
        exchange.caller.endpoint = None  # type: ignore[misc]  # the point of the test


def test_callers_are_equal_by_what_they_are() -> None:
    assert Caller("desk", None) == Caller("desk", None) != Caller("desk", "gh")
