"""The logins in the store: each is one record, encrypted and authenticated, and bound to its place.

The cipher is that of `host.seal`. A fleet has keys of its own. Otherwise the key comes from the environment variable
`COLONNADE_KEY`, which may be a reference to a file or to the system's keyring, or else is derived from the secret of
the state directory, which only the user can read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from config import Fleet
from config.references import CannotExpandError, Expander
from host.oauth.documents import ClientRegistration, Tokens, same_issuer
from host.oauth.problem import OAuthProblem
from host.oauth.token_forms import RefreshForm
from host.seal import InvalidSeal, Seal
from host.storage.choice import keys_for
from host.storage.directory import State
from host.storage.store import CredentialKey, StateError, StoredCredential

KEY_VARIABLE = "COLONNADE_KEY"
MIN_KEY = 32
"""Characters of a key in the environment."""
_PURPOSE = "login"


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A login at an issuer, for one resource.

    `id` names it: it stays the same while tokens are refreshed, and a new login has another one. Without an access
    token it is over, and only its registration is good; `ended` says why, and `said` what the issuer said about that,
    for people, quoted. `expires`: Unix time, None if the issuer did not say; `scopes`: those that were granted, or else
    requested; `missing`: those that the server found missing since then; `step_ups`: logins in a row that asked for
    missing scopes; `requested`: the scopes that it asked for, None if these were not kept; `refresh_form`: that of the
    last refresh that the issuer took; `indicator`: the resource that its requests name, None for `resource` in logins
    of earlier versions."""

    id: str
    resource: str
    issuer: str
    client: ClientRegistration
    token_endpoint: str
    revocation_endpoint: str | None
    scopes: tuple[str, ...]
    began: float
    access_token: str | None = None
    refresh_token: str | None = None
    expires: float | None = None
    missing: tuple[str, ...] = ()
    step_ups: int = 0
    ended: str = ""
    said: str = ""
    requested: tuple[str, ...] | None = None
    refresh_form: RefreshForm = RefreshForm()
    indicator: str | None = None

    @property
    def named_resource(self) -> str:
        """The resource that its requests name; empty for none."""
        return self.resource if self.indicator is None else self.indicator

    def __repr__(self) -> str:
        return f"<Login {self.id} at {self.issuer}>"

    @property
    def is_over(self) -> bool:
        return self.access_token is None

    def has_other_client(self, other: Login, names: Sequence[str] = ()) -> bool:
        """Whether they are of two clients, each with grants of its own: an id is one within its issuer, and an issuer
        that changed its name has its former token endpoint, or is known by several (`names`)."""
        is_other = not same_issuer(self.issuer, other.issuer, names)
        is_elsewhere = is_other and self.token_endpoint != other.token_endpoint
        return is_elsewhere or self.client.client_id != other.client.client_id

    def over(self, why: str, said: str = "") -> Login:
        """The login without tokens, for a reason in words: a part of a sentence."""
        return msgspec.structs.replace(self, access_token=None, refresh_token=None, expires=None, ended=why, said=said)

    def renewed(self, tokens: Tokens, now: float) -> Login:
        """The login with the tokens that the issuer gave at this Unix time."""
        return msgspec.structs.replace(
            self,
            access_token=tokens.access_token,
            # Without a new one, the former one stays good (RFC 6749, 6).
            refresh_token=tokens.refresh_token or self.refresh_token,
            expires=None if tokens.lifetime is None else now + tokens.lifetime,
            scopes=self.scopes if tokens.scopes is None else tokens.scopes,
        )

    def secrets(self) -> list[str]:
        """The texts that nobody else may see."""
        known = (self.access_token, self.refresh_token, self.client.client_secret)
        return [each for each in known if each is not None]


class Vault:
    """Encrypts logins for the store.

    Args:
        key: `KEY_BYTES` secret bytes.
        former: keys with which logins may have been encrypted.
    """

    def __init__(self, key: bytes, former: Sequence[bytes] = ()) -> None:
        self._seal = Seal(key, former=former)

    def close(self, key: CredentialKey, login: Login) -> StoredCredential:
        """The login as it is stored under this key."""
        sealed = self._seal.seal(
            _PURPOSE, _binding(key, login.resource, login.issuer), msgspec.json.encode(login), math.inf
        )
        return StoredCredential(login.resource, login.issuer, sealed)

    def open(self, key: CredentialKey, stored: StoredCredential) -> Login:
        """The login that is stored under this key.

        Raises:
            OAuthProblem: it was stored with another key, or has been changed.
        """
        try:
            content = self._seal.unseal(_PURPOSE, _binding(key, stored.resource, stored.issuer), stored.sealed)
            return msgspec.json.decode(content, type=Login)
        except (InvalidSeal, msgspec.DecodeError):
            pass
        raise OAuthProblem(
            f"its stored login cannot be read with the present key: use the former {KEY_VARIABLE}, or log in again"
        )


def open_vault(state: State, environ: Mapping[str, str], fleet: Fleet | None = None) -> Vault:
    """The vault of a fleet, or else of a state directory.

    Raises:
        StateError: there is no usable key.
    """
    written = environ.get(KEY_VARIABLE)
    if fleet is not None or written is None:
        key, *former = keys_for(b"logins", fleet, state)
        return Vault(key, former)
    try:
        given = Expander(environ, Path.cwd()).expand(written).text
    except CannotExpandError as problem:
        raise StateError(f"{KEY_VARIABLE}: {problem}") from None
    if len(given) < MIN_KEY:
        raise StateError(
            f"{KEY_VARIABLE} has {len(given)} characters; expected at least {MIN_KEY} random ones, for instance of "
            "`openssl rand -hex 32`"
        )
    secret = given.encode("utf-8", "surrogateescape")  # an environment variable may hold any bytes
    return Vault(hashlib.blake2b(secret, digest_size=32, person=b"colonnade login").digest())


def _binding(key: CredentialKey, resource: str, issuer: str) -> bytes:
    return json.dumps([*key, resource, issuer]).encode()
