"""What a link is: a channel of parcels to one peer. Stdio, the two HTTP transports and the tests' memory links are
links.

A parcel is a message and, where the transport knows it, the id of the request it belongs to: a message that came on the
stream of a POST belongs to that POST's request. What a server asks for is answered by whoever that request is from, and
by nobody else. Outward it may have headers, which repeat parts of the message for transports that have such; those are
the only metadata a link carries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from host.jsonrpc.messages import Id, Malformed, Message, Notification
from host.protocol.versions import Revision


@dataclass(frozen=True, slots=True)
class Parcel:
    """`headers` mirror the message: requests of a stateless revision have them, and nothing else has. Whoever hands the
    parcel in stands for their being true, and fit to be sent."""

    message: Message
    about: Id | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A parcel from the other side; the message may be none."""

    message: Message | Malformed
    about: Id | None = None


Deliver = Callable[[ReceivedMessage], None]
"""Takes what arrived and returns at once: a link's reader waits for nobody."""


class LinkLost(Exception):
    """The channel to the peer is broken or closed. The text says why, for a person, without secrets.

    What more a transport knows stands in the members below; each kind of loss sets its own.
    """

    nothing_begun = False
    """It is certain that the peer works on nothing of what was sent: it got nothing, or said no at once."""
    ended_session = False
    """The peer has forgotten our session, and will begin a new one with us."""
    may_be_http_sse = False
    """The peer refused as servers do that only speak the transport of 2024-11-05."""
    answered = False
    """The peer did answer, though not with what was asked: it does not know the request, perhaps."""
    too_large = False
    """The peer answered with more than it may."""
    misused = False
    """The peer sent too much that means nothing: another connection would soon end in the same way."""


class NoMemory(LinkLost):
    """There is no memory for what the peer sent."""

    too_large = True

    def __init__(self) -> None:
        super().__init__("there is no memory for what it sent (memory)")


class Link(Protocol):
    async def run(self, deliver: Deliver) -> None:
        """Carry messages until the other side ends, then return; called once, for as long as the link is used.

        Raises:
            LinkLost: the channel broke.
        """

    async def send(self, parcel: Parcel) -> None:
        """Send one message, whole or not at all. Where answers ride on the sender's own exchange (HTTP), this returns
        when that exchange is over, and delivers meanwhile.

        Raises:
            LinkLost: it could not be sent, or its exchange broke.
        """

    def settle(self, revision: Revision) -> None:
        """The handshake is over, or the server needs none. From now on the link names the revision where the transport
        does that; where the other side may send batches, it takes them apart: each message in one is an arrival; and
        where the revision is stateless, it keeps nothing between two requests."""

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        """Tell the peer that nobody waits for the answer to `id` any more. Bounded in time, never raises LinkLost."""
