"""An exchange: one request of a client that is being answered, and its caller. All layers below the transports take it.

Sessions, streams and handshakes stay in the transports. Code that answers an exchange asks it for abilities, never for
a revision. There is no ambient request: the exchange is passed as an argument.

Every request makes several of these objects. They are msgspec structs, because a frozen dataclass takes ten times as
long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Protocol

from msgspec import Raw, Struct, field

from host.catalog import Entry
from host.client_process import ClientProcess
from host.jsonrpc.messages import Notification, Request
from host.protocol.abilities import NO_ABILITIES, Abilities
from host.protocol.methods import RESOURCE, Kind
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Task
from host.protocol.versions import SESSION, Era
from host.source import Endpoint, EntryRef, Viewer, viewer_of
from host.wire.deadlines import CallScope
from host.wire.link import LinkLost

STDIO = "stdio"
"""The `address` of an exchange with a client on standard input and output."""

ProgressCallback = Callable[[dict[str, Raw]], None]
"""Takes the members of a progress notification; must not wait."""


class ClientHandle(Protocol):
    """A way to a client: the stream of one request, or the stream for messages outside requests."""

    def notify(self, notice: Notification) -> None:
        """Send a notification. Must not wait: readers of servers' messages call it. No effect once the way is
        closed."""

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        """Send a request to the client and return its result, unchanged. Cancelling this withdraws the request.
        `report` gets the client's progress; None for none.

        Raises:
            PeerError: the client returned an error.
            BrokenAnswer: the client's response is malformed.
            LinkLost: there is no way to the client (any more).
        """


class NoClient:
    """The handle of a caller to which nothing but the response can be sent."""

    def notify(self, notice: Notification) -> None:
        return

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        raise LinkLost("the client cannot be asked")


class SearchChoice:
    """Whether a session is offered the search tools in place of its tools, where that is decided by what there is: once
    for the whole session (`Lists.searches`)."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made: bool | None = None
        """None until it is decided."""


class Caller(Struct, frozen=True, eq=False, weakref=True):
    """The sender of a request. Callers are compared by identity of the object, not by name.

    `name` is for the log. `identity`: name of the access token, or None if the endpoint requires none. Callers without
    a token are not told apart.
    """

    name: str
    endpoint: Endpoint
    identity: str | None = None
    abilities: Abilities = NO_ABILITIES
    instance_key: Hashable | None = None
    """Key of the dedicated server instances that this caller uses; None if each call has instances of its own."""
    client: ClientHandle = field(default_factory=NoClient)
    """Handle for messages outside requests."""
    key: Hashable = field(default_factory=object)
    """Identifies this caller where the caller itself must not be referenced."""
    session: Hashable | None = None
    """Key shared by all requests of one session or stdio process; None if each request stands alone."""
    era: Era = SESSION
    """A stateless client gets server requests in a result, and repeats its request with answers."""
    process: ClientProcess | None = None
    """The program of this machine that the client is; None over HTTP."""
    says: str = ""
    """Name and version that the client gives itself, in its own words, which nothing checks: people see an excerpt."""
    search: SearchChoice | None = None
    """None without a session: each request is decided about by itself."""
    on_dedicated: Callable[[], object] | None = None
    """Called when an instance is started for this caller alone, whose state ends with this process."""

    @property
    def viewer(self) -> Viewer:
        """The viewer that it is to the catalog."""
        return viewer_of(self.era, self.endpoint.view, self.endpoint.caller)

    @property
    def owner(self) -> Hashable:
        """Owner of what outlives a request: all callers at the same endpoint with the same token."""
        return self.endpoint, self.identity


class MrtrRound(Struct, frozen=True):
    """Position of a request whose caller answers server requests by repeating it (2026-07-28, "Multi Round-Trip
    Requests")."""

    server: str | None = None
    """The server that needs input; None in the first round."""
    answers: Mapping[str, Raw] | None = None
    """The client's answers by the server's keys; None if there are none."""
    state: str | None = None
    """The server's `requestState`, to be sent back."""


class ResolvedName(Struct, frozen=True):
    """The name in a request, resolved once at its caller's endpoint: see `Resolver.resolve`."""

    kind: Kind
    asked: str
    """The name or URI as in the request."""
    ref: EntryRef | None
    """Its entry; None if it belongs to no server. The server need not have the entry, nor be configured."""
    entry: Entry | None = None
    """The listed entry of a name, visible or hidden; None for resources, of which a server may have more than it
    lists."""
    by_listing: bool = False
    """Whether the name or URI names no server, so that only the servers' lists show its owner."""
    since: float | None = None
    """When its request came, if resolving it has waited."""
    outside: bool = False
    """Whether it is a resource that the caller's view does not have."""
    is_shown: bool = False
    """Whether the list of then shows the entry."""

    @property
    def exists(self) -> bool:
        """Whether the server may have it, as far as the caller's view tells. It has each tool and prompt in a list."""
        return not self.outside if self.kind is RESOURCE else self.entry is not None

    @property
    def server(self) -> str | None:
        return None if self.ref is None else self.ref.source.server


class Exchange(Struct, frozen=True, eq=False):
    """One request being answered. Its client handle is closed after the response."""

    request: Request
    params: Mapping[str, Raw]
    """The members of the request's params, undecoded, without those of its round."""
    caller: Caller
    client: ClientHandle
    level: str | None = None
    """Lowest level of log messages that the caller requests; None if it has set none."""
    round: MrtrRound | None = None
    """None if the caller does not repeat requests: a server request is then sent through the client handle."""
    on_task: Callable[[Task], None] | None = None
    """Called with the task that the server has made of the request, which the caller accepts in place of the result,
    and then with each status of it; the exchange continues without the caller. None if it accepts no tasks."""
    target: ResolvedName | None = None
    """The resolved name of a request in `TARGETED`; None if the router is to resolve it."""
    address: str = ""
    """Where the request came from: an IP address, or `stdio`; empty if that is not known."""
    through: str = ""
    """The search tool that the call came through; empty if the client named the tool itself."""
    scope: CallScope | None = None
    """The scope of the request, whose deadline a call sets, if it is answered in the task of the request."""
    on_sent: Callable[[str], object] | None = None
    """Called with the id of the server at the moment of sending: from then on the server may have executed the request.
    None if nobody has to know."""


class Answered(Struct, frozen=True):
    """The result of an exchange in the common form of all revisions, without members of one hop's revision.
    `outlined`: the outline of the result as it came, if it was made. `tool_error`: it came from a server, as that of a
    tool which says that the call failed."""

    result: Raw
    freshness: Freshness = STALE
    outlined: Raw | None = None
    tool_error: bool = False


class InputRequired(Struct, frozen=True):
    """Result of an exchange with a round whose server needs input first. With the answers and `state`, the request must
    be sent to the same server again."""

    server: str
    requests: Mapping[str, tuple[str, dict[str, Raw]]]
    """Method and params by the server's keys, as the caller may get them."""
    state: str | None
    restarts: bool = False
    """Whether the requests are pages to visit before the request is sent again from its beginning, without answers or
    state."""
    unknown: Mapping[str, Raw] = MappingProxyType({})
    """The other members of the server's result that the caller gets."""


Answer = Answered | InputRequired
