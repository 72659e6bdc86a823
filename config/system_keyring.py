"""Secrets in the keyring of the system, by the package `keyring`, which is optional (`colonnade[keyring]`).

Each secret is stored for the service `colonnade` under its name. A locked keyring may show a dialog of its own.
"""

from __future__ import annotations

import importlib
from typing import Any

SERVICE = "colonnade"
_NOT_INSTALLED = (
    "the package keyring is not installed; install it beside Colonnade (pip install keyring, pipx inject colonnade "
    "keyring, or in a clone uv tool install '.[keyring]')"
)


class KeyringUnavailable(Exception):
    """The keyring cannot be used; the text says why and shows no secret."""


def read_secret(name: str) -> str | None:
    """The secret of this name; None if there is none.

    Raises:
        KeyringUnavailable: there is no keyring, or it is locked.
    """
    keyring = _import()
    try:
        secret: str | None = keyring.get_password(SERVICE, name)
    except keyring.errors.KeyringError:
        problem = KeyringUnavailable("the system has no keyring that can be used here, or it is locked")
    else:
        return secret
    raise problem


def store_secret(name: str, secret: str) -> None:
    """Store a secret, in the place of one with the same name.

    Raises:
        KeyringUnavailable: there is no keyring, or it is locked.
    """
    keyring = _import()
    try:
        keyring.set_password(SERVICE, name, secret)
    except keyring.errors.KeyringError:
        problem = KeyringUnavailable("the system has no keyring that can be used here, or it is locked")
    else:
        return
    raise problem


def _import() -> Any:
    # Not at the top: it is optional, and looking for backends takes a tenth of a second.
    try:
        importlib.import_module("keyring.errors")
        return importlib.import_module("keyring")
    except ImportError:
        raise KeyringUnavailable(_NOT_INSTALLED) from None
