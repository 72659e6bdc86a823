"""Links: channels of parcels to one peer. Stdio, the two HTTP transports and the memory links of the tests implement
`Link`.

A parcel is a message and, if the transport knows it, the id of the request that it belongs to: a message on the stream
of a POST belongs to the request of that POST. A server request is forwarded to the client of that request and to no
other. A parcel to a server may have headers, which repeat parts of the message; a link carries no other metadata.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from host.errors import copy_of
from host.jsonrpc.glance import LongMessage, read_unless_long
from host.jsonrpc.messages import Id, Malformed, Message, Notification
from host.protocol.versions import Revision

MAX_SHOWN = 1024
"""Bytes of a text that is no message, of which people are shown the beginning."""


class Parcel(Struct, frozen=True, gc=False):
    """A message to the peer. `about`: the id of the request that it belongs to. `headers`: those that repeat
    parts of a stateless request; empty for every other message. The sender guarantees that they agree with the message
    and are valid HTTP. Like all messages, it is part of no reference cycle, so the garbage collector can ignore it.
    """

    message: Message
    about: Id | None = None
    headers: tuple[tuple[str, str], ...] = ()


class ReceivedMessage(Struct, frozen=True, gc=False):
    """A message from the peer. `about`: the id of the request that it belongs to, if the transport knows it."""

    message: Message | Malformed | LongMessage
    about: Id | None = None
    size: int = 0
    text: bytes = b""
    """The number of bytes, and the first MAX_SHOWN of them, of a text that is no message."""


def received_in(text: bytes, batches: bool, about: Id | None = None) -> list[ReceivedMessage]:
    """The messages in one line, body or event of a server; see `read_unless_long`. A byte order mark before them, which
    .NET writes, is left out (RFC 8259, 8.1)."""
    text = text.removeprefix(BOM_UTF8)
    found: list[ReceivedMessage] = []
    for message in read_unless_long(text, batches):  # no comprehension, which is a function
        beside = (len(text), text[:MAX_SHOWN]) if isinstance(message, Malformed) else ()
        found.append(ReceivedMessage(message, about, *beside))
    return found


Deliver = Callable[[ReceivedMessage], None]
"""Handles a received message. Returns at once, so that a link's reader never waits for a handler."""


class ConnectStage(IntEnum):
    """How far an attempt to connect came. Of several, the one that came furthest is told."""

    NOTHING = 0
    """Nothing there is of MCP."""
    REFUSED = 1
    """Something refused the first request."""
    FURTHER = 2


class LinkLost(Exception):
    """The channel to the peer is broken or closed. The text says why, for a person, without secrets.

    The attributes tell what the transport knows besides; each subclass sets its own.
    """

    nothing_begun = False
    """The peer certainly works on nothing that was sent: it received nothing, or refused at once."""
    ended_session = False
    """The peer has ended the session; a new connection opens another one."""
    lost_login = False
    """The login of the connection is over, or another one by now: the connection ends."""
    may_be_http_sse = False
    """The peer refused as servers do that support only HTTP+SSE (2024-11-05)."""
    reached = ConnectStage.FURTHER
    """How far the attempt to connect came that ended like this."""
    answered = False
    """The peer responded, but not with a response to the request: perhaps it does not know the method."""
    too_large = False
    """The peer's response is over a limit."""
    lasting = False
    """Another attempt will fail in the same way until a person changes something."""
    remedy = ""
    """Words for the person who runs the host: something to do that the text does not say already."""
    said = ""
    """The peer's words about it, as they came: for people only (`sanitize.quoted`), never part of the text above."""
    speaker = "the server"
    """The one who said that."""
    misused = False
    """The peer sent too many useless messages: another connection would soon end in the same way."""

    @property
    def with_remedy(self) -> str:
        """The text and the remedy."""
        return f"{self}: {self.remedy}" if self.remedy else str(self)


def unsent(lost: LinkLost) -> LinkLost:
    """The error for a message that was not sent, because the link had been lost before."""
    made = copy_of(lost)
    made.nothing_begun = True
    return made


class NoMemory(LinkLost):
    """The host has no memory left for a message of the peer."""

    too_large = True

    def __init__(self) -> None:
        super().__init__("there is no memory for its message (memory)")


class Link(Protocol):
    @property
    def hears_unasked(self) -> bool:
        """Whether messages of the peer that belong to no request can arrive."""

    async def run(self, deliver: Deliver) -> None:
        """Carry messages until the peer ends, then return. Called once; the link works as long as this runs.

        Raises:
            LinkLost: the channel broke.
        """

    async def send(self, parcel: Parcel) -> None:
        """Send one message, whole or not at all. Over HTTP, where the response comes in the exchange of the request,
        this returns at the end of the exchange and delivers its messages meanwhile.

        Raises:
            LinkLost: the message could not be sent, or its exchange broke.
        """

    def settle(self, revision: Revision) -> None:
        """Set the revision, after the handshake or the discovery. From now on the link sends the revision in a header
        if the transport has one, splits batches if the revision has them, and keeps nothing between two requests if the
        revision is stateless."""

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        """Tell the peer that the response to `id` is not needed any more. Bounded in time, never raises LinkLost."""
