"""Tests of this folder start hosts, servers and clients as processes, and are slow but for those of `IN_EVERY_RUN`."""

from __future__ import annotations

from pathlib import Path

import pytest

IN_EVERY_RUN = ("test_sdk_client.py", "test_sdk_server.py")
"""Files of the tests that `make test` runs too: calls over each transport, with the official SDK at both ends."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name not in IN_EVERY_RUN:
            item.add_marker(pytest.mark.slow)
