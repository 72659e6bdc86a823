"""Issuers for the tests of logins."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.issuer import Issuer, open_issuer


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with open_issuer() as opened:
        yield opened


@pytest.fixture
async def other() -> AsyncIterator[Issuer]:
    """Another issuer."""
    async with open_issuer() as opened:
        yield opened
