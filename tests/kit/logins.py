"""Logins in a store, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from host.journal import Event
from host.oauth.documents import ClientRegistration
from host.storage.sqlite import SqliteStore
from host.storage.store import CredentialKey
from host.upstream.credentials import Credential, Credentials
from host.upstream.vault import Login, Vault
from tests.kit.awaited import awaited
from tests.kit.folders import folder
from tests.kit.gates import store_opener
from tests.kit.issuer import Issuer

NOTES = CredentialKey("notes")
VAULT = Vault(bytes(32))
START = 1_000_000.0


@dataclass
class Clock:
    """Unix time as the test sets it."""

    time: float = START

    def __call__(self) -> float:
        return self.time


def login(at: Issuer, /, **changes: Any) -> Login:
    """A login whose token is valid for ten minutes."""
    made: dict[str, Any] = {
        "id": "login-1",
        "resource": at.url,
        "issuer": at.id,
        "client": ClientRegistration("client"),
        "token_endpoint": f"{at.id}/token",
        "revocation_endpoint": f"{at.id}/revoke",
        "scopes": ("a",),
        "began": START,
        "access_token": "access-1",
        "refresh_token": "refresh-1",
        "expires": START + 600,
        **changes,
    }
    return Login(**made)


def put(store: SqliteStore, stored: Login, key: CredentialKey = NOTES) -> None:
    """Store a login, as another process does."""
    sealed = VAULT.close(key, stored)
    awaited(store.write(lambda transaction: transaction.put_credential(key, sealed)))


def present(store: SqliteStore, key: CredentialKey = NOTES) -> Login | None:
    """The login as it is stored now."""
    stored = awaited(store.read_credentials()).get(key)
    return None if stored is None else VAULT.open(key, stored)


@dataclass
class Process:
    """One host with its credentials, over a store that others share."""

    store: SqliteStore
    credentials: Credentials
    clock: Clock
    reported: list[Event]
    """Reports of tokens that could not be refreshed."""

    def of(self, issuer: Issuer) -> Credential:
        return self.credentials.of(issuer.spec)


@asynccontextmanager
async def processes(
    count: int = 1, *, state: Path | None = None, stored: Login | None = None
) -> AsyncIterator[list[Process]]:
    """Hosts on one state, for the block, after this login was stored. Nothing polls by itself."""
    clock = Clock()
    with folder() as made, store_opener(state or made / "state", wall=clock) as opens:
        async with trio.open_nursery() as nursery:
            found: list[Process] = []
            for _ in range(count):
                store = opens()
                if stored is not None and not found:
                    put(store, stored)
                reported: list[Event] = []
                credentials = Credentials(store, VAULT, nursery, clock, reported.append)
                await credentials.reload()
                found.append(Process(store, credentials, clock, reported))
            yield found
            nursery.cancel_scope.cancel()
