"""The parts that all components of one host share."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, final

from config import ServerSpec
from host.catalog import Catalog
from host.journal import Journal
from host.policy.gate import Gate
from host.upstream.client_folder import ClientFolders
from host.upstream.credentials import Credentials
from host.upstream.installations import Installations
from host.upstream.log_levels import LogLevels
from host.upstream.open_logins import OpenLogins
from host.upstream.remembered import RememberedServers
from host.wire.link import Link


class OpenLink(Protocol):
    def __call__(self, spec: ServerSpec, *, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        """Open a link to the configured server. `http_sse`: over HTTP+SSE (2024-11-05).

        Raises:
            LinkLost: the link could not be opened.
        """


@final
@dataclass(frozen=True, slots=True)
class Runtime:
    """The shared parts: the catalog of entries, the gate that admits requests, the journal, the way to servers, what is
    remembered of servers (None: nothing), the log levels, the logins of servers, those that are open (None: there are
    none), and the folders of clients, and the packages of confined servers (None: nothing is installed for any).
    `single_client`: there will be only one client (`Upstreams.serve_only`)."""

    catalog: Catalog
    gate: Gate
    journal: Journal
    open_link: OpenLink
    remembered: RememberedServers | None = None
    credentials: Credentials | None = None
    logins: OpenLogins | None = None
    client_folders: ClientFolders = field(default_factory=ClientFolders)
    installations: Installations | None = None
    single_client: bool = False
    log_levels: LogLevels = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_levels", LogLevels(self.gate.policies.views.includes))
