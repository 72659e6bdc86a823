"""Tokens that name their home: the process of a fleet that alone can honour them.

Whichever process of the fleet gets such a token learns from it where to forward the request, and asks nobody. The name
is sealed under the keys of the fleet, and bound to its token: nobody else can read it, make one, or join it to another
token. A token without a home is none of this fleet; only its own process can say what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from host.seal import PREFIX, InvalidSeal, Seal

FORMAT = "f1."
"""Format of a token with a home. A later version of Colonnade that has another one still reads this one."""
MAX_KNOWN = 4096
"""Tokens whose home is remembered, in six megabytes at most: clients repeat the id of their session in each request."""
LONGEST_KNOWN = 512
"""Characters of such a token. A `requestState` can have half a million, and is repeated once."""
_PURPOSE = "home"


class Homed(NamedTuple):
    """A token, and the id of the process that it belongs to."""

    home: str
    token: str


class Homes:
    """Names homes in tokens, and reads them.

    Args:
        boot: the id of this process, which it has from its start to its end (`Seal.boot`).
    """

    def __init__(self, seal: Seal, boot: str) -> None:
        self.boot = boot
        self._seal = seal
        self._boot = boot.encode()
        self._known: dict[str, Homed] = {}

    def name(self, token: str) -> str:
        """The token with this process as its home: visible ASCII, 74 characters longer."""
        sealed = self._seal.seal(_PURPOSE, token.encode(), self._boot, math.inf)
        return f"{FORMAT}{sealed.removeprefix(PREFIX)}.{token}"

    def read(self, text: str) -> Homed | None:
        """The home of a token, and the token as it was before `name`; None if it has none of this fleet."""
        found = self._known.get(text)
        if found is None and (found := self._read(text)) is not None and len(text) <= LONGEST_KNOWN:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[text] = found
        return found

    def _read(self, text: str) -> Homed | None:
        if not text.startswith(FORMAT):
            return None
        sealed, _, token = text[len(FORMAT) :].partition(".")
        try:
            home = self._seal.unseal(_PURPOSE, token.encode(), PREFIX + sealed)
        except (InvalidSeal, UnicodeEncodeError):
            return None
        return Homed(home.decode(), token)


class HomedSeal(Seal):
    """A seal whose texts name the process that sealed them; it opens those of every process of the fleet.

    Args:
        is_present: whether the fleet has the process of this id now.
    """

    def __init__(self, seal: Seal, homes: Homes, is_present: Callable[[str], bool] = lambda boot: False) -> None:
        self.boot = homes.boot
        self.homes = homes
        self._inner = seal
        self._is_present = is_present

    def has_ended(self, boot: str) -> bool:
        return boot != self.boot and not self._is_present(boot)

    def seal(self, purpose: str, binding: bytes, content: bytes, lifetime: float) -> str:
        return self.homes.name(self._inner.seal(purpose, binding, content, lifetime))

    def unseal(self, purpose: str, binding: bytes, text: str) -> bytes:
        found = self.homes.read(text)
        if found is None:
            raise InvalidSeal
        return self._inner.unseal(purpose, binding, found.token)
