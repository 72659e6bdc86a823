"""Tests of this folder start hosts, servers and clients as processes, and are slow but for those of `IN_EVERY_RUN`."""

from __future__ import annotations

from pathlib import Path

import pytest

IN_EVERY_RUN = ("test_sdk_client.py", "test_sdk_server.py")
"""Files of the tests that `make test` runs too: calls over each transport, with the official SDK at both ends."""
_HERE = Path(__file__).parent


def is_left_out(file: Path, config: pytest.Config) -> bool:
    """Whether a run without slow tests need not read this file, since it has no others."""
    return (
        "not slow" in config.getoption("markexpr")
        and file.parent == _HERE
        and file.name.startswith("test_")
        and file.name not in IN_EVERY_RUN
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if is_left_out(collection_path, config) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder, _, name = item.nodeid.partition("::")[0].rpartition("/")
        if folder == "tests/real" and name not in IN_EVERY_RUN:
            item.add_marker(pytest.mark.slow)
