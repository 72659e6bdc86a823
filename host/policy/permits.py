"""The guard of permits. A permit proves that a message was admitted; no request is sent without one.

There are three: `CallPermit` and `WatchPermit`, which only `gate` issues, and `ServerRequestPermit`, which only
`server_requests` issues. A test holds that no other module imports `ISSUER`.
"""

from __future__ import annotations

from msgspec import Struct

ISSUER = object()


class Permit(Struct, frozen=True, eq=False):
    """Base of all permits. Raises TypeError if the caller does not have the issuer's mark."""

    issuer: object

    def __post_init__(self) -> None:
        if self.issuer is not ISSUER:
            raise TypeError("only the policy makes permits")
