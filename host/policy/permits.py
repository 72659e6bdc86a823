"""The guard of permits, which prove that what is to be sent was admitted: no request reaches anybody without one.

There are three: `CallPermit` and `WatchPermit`, which only `gate` issues, and `ServerRequestPermit`, which only
`server_requests` issues. A test holds that nothing else imports `ISSUER`.
"""

from __future__ import annotations

from dataclasses import dataclass

ISSUER = object()


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """The base of every permit. Raises TypeError for whoever does not have the issuer's mark."""

    issuer: object

    def __post_init__(self) -> None:
        if self.issuer is not ISSUER:
            raise TypeError("only the policy makes permits")
