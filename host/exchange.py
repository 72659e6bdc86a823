"""An exchange: one request of a client that is being answered, and its caller. All layers below the transports take it.

Sessions, streams and handshakes stay in the transports. Code that answers an exchange asks it for abilities, never for
a revision. There is no ambient request: the exchange is passed as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Raw

from host.catalog import Entry
from host.jsonrpc.messages import Notification, Request
from host.protocol.abilities import NO_ABILITIES, Abilities
from host.protocol.methods import Kind
from host.protocol.stateless import STALE, Freshness
from host.wire.link import LinkLost

ProgressCallback = Callable[[dict[str, Raw]], None]
"""Takes the members of one progress report; must not wait."""


class ClientHandle(Protocol):
    """A way to a client: the stream of one request, or what is said outside any."""

    def notify(self, notice: Notification) -> None:
        """Send a notification. Never waits: it is called by whoever reads a server's messages. Once the way is closed
        it does nothing."""

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        """Have the client answer a question, and give its result as it came. Cancelling this withdraws the question.
        `report` gets the client's progress; None if nobody wants it.

        Raises:
            PeerError: the client refused.
            BrokenAnswer: it answered with something that is no answer.
            LinkLost: there is no way to it (any more).
        """


class NoClient:
    """The handle of a caller that gets nothing but the answer."""

    def notify(self, notice: Notification) -> None:
        return

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        raise LinkLost("the client cannot be asked")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Caller:
    """Who sent a request. A caller is itself alone: two of the same name are two.

    `name` is for the log. `identity` is the name of the access token, None where nobody needs one: whoever comes
    without one is as good as any other.
    """

    name: str
    endpoint: str | None
    """The one server whose own endpoint was asked, or None for the endpoint of all servers."""
    identity: str | None = None
    abilities: Abilities = NO_ABILITIES
    instance_key: Hashable | None = None
    """Whose dedicated instances of servers this caller uses; None if every call is a client of its own."""
    client: ClientHandle = field(default_factory=NoClient)
    """For what is said to it outside any request."""
    key: Hashable = field(default_factory=object)
    """Stands for this caller where the caller itself must not be kept."""
    session: Hashable | None = None
    """A key that all requests of one session or stdio process share; None if each request stands alone."""

    @property
    def owner(self) -> Hashable:
        """To whom belongs what outlives a request: whoever comes to the same endpoint with the same token."""
        return self.endpoint, self.identity


@dataclass(frozen=True, slots=True)
class MrtrRound:
    """Where a request stands whose caller answers questions by repeating it (2026-07-28, "Multi Round-Trip
    Requests")."""

    server: str | None = None
    """The server that asked; None if none has yet."""
    answers: Mapping[str, Raw] | None = None
    """By the server's keys; None if the caller brought none."""
    state: str | None = None
    """The `requestState` of the server, to be sent back."""


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """The name in a request, resolved once at its caller's endpoint: see `Resolver.resolve`."""

    kind: Kind
    asked: str
    """The name or URI as the caller wrote it."""
    server: str | None
    """None: no server is meant."""
    inward: str
    """The server's own name or URI."""
    entry: Entry | None = None
    """The entry listed under a name, visible or not; None for resources, of which a server may have more than it
    lists."""
    by_listing: bool = False
    """Whether a URI names no server, and only what servers list tells whose it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One request being answered. After the answer its client handle is closed."""

    request: Request
    params: Mapping[str, Raw]
    """The members of the request's params, each undecoded; without those that are about its round."""
    caller: Caller
    client: ClientHandle
    level: str | None = None
    """The log messages that its caller wants of it, from this level on; None for none."""
    round: MrtrRound | None = None
    """None if the caller does not repeat requests: a server request then goes through the client handle."""
    on_task_created: Callable[[], None] | None = None
    """Called when the server has made a task of the request: its caller takes one in place of the result, and the
    exchange goes on without it. None if the caller takes none."""
    target: ResolvedName | None = None
    """The resolved name of a request of `TARGETED`; with None the router resolves it."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of an exchange, in the form that all revisions share: nothing that only one hop's revision has."""

    result: Raw
    freshness: Freshness = STALE


@dataclass(frozen=True, slots=True)
class InputRequired:
    """The server asks this before it answers; only for an exchange that has a round. With the answers, and `state`, the
    request is to be sent to the same server again."""

    server: str
    requests: Mapping[str, tuple[str, dict[str, Raw]]]
    """Method and params by the server's keys, as the caller may get them."""
    state: str | None
    restarts: bool = False
    """Whether these are pages to be visited before the request is sent once more from its beginning: the server is to
    hear neither of the answers nor of a state."""


Answer = Answered | InputRequired
