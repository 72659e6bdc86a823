"""A certificate that the HTTP client trusts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host.wire.http_pool import tls_context


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Trusts a certificate as a person would have Colonnade do it."""
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)

    def trust(file: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        tls_context.cache_clear()

    yield trust
    tls_context.cache_clear()
