"""The extension by which an app tells a listener whose request it is."""

from __future__ import annotations

from collections.abc import Hashable

from host.wire.asgi import CLAIM, claim


def test_a_listener_without_the_extension_serves_everything() -> None:
    assert claim({"type": "http"}, None)
    assert claim({"type": "http", "extensions": {}}, "laptop", reserved=True)


def test_the_listener_is_told_whose_request_it_is_and_decides() -> None:
    told: list[tuple[Hashable, bool]] = []

    def take(owner: Hashable, *, reserved: bool) -> bool:
        told.append((owner, reserved))
        return owner is not None

    scope = {"type": "http", "extensions": {CLAIM: take}}
    assert claim(scope, "laptop")
    assert not claim(scope, None, reserved=True)
    assert told == [("laptop", False), (None, True)]
