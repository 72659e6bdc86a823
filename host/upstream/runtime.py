"""The parts that all components of one host share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from host.catalog import Catalog
from host.journal import Journal
from host.policy.gate import Gate
from host.upstream.credentials import Credentials
from host.upstream.log_levels import LogLevels
from host.upstream.open_logins import OpenLogins
from host.upstream.remembered import RememberedServers


@final
@dataclass(frozen=True, slots=True)
class Runtime:
    """The shared parts: the catalog of entries, the gate that admits requests, the journal, what is remembered of
    servers (None: nothing), the log levels, the logins of servers, and those that are open (None: there are none)."""

    catalog: Catalog
    gate: Gate
    journal: Journal
    remembered: RememberedServers | None = None
    log_levels: LogLevels = field(default_factory=LogLevels)
    credentials: Credentials | None = None
    logins: OpenLogins | None = None
