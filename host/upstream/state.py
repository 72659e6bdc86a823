"""The states of a server, and of the session beside its stateless connection, and their descriptions."""

from __future__ import annotations

import math

import trio
from msgspec import Struct

from host.sanitize import with_said
from host.upstream.client import Client
from host.wire.link import LinkLost


class Connecting(Struct, frozen=True):
    """`said`: what the server said about its last failure, quoted for people; so in the other states with a reason.
    `refused`: how the last attempt ended, if this one tries another transport because of it."""

    since: float
    last_failure: str | None
    said: str = ""
    refused: LinkLost | None = None


class Ready(Struct, frozen=True):
    since: float
    client: Client


class Failed(Struct, frozen=True):
    since: float
    why: str
    next_attempt: float
    said: str = ""


class Disabled(Struct, frozen=True):
    pass


class Held(Struct, frozen=True):
    """The server is not started until a person approves its program, and if it is confined, the files beside it or what
    is installed for it. `why`: the end of a sentence about its command."""

    since: float
    why: str


class Installing(Struct, frozen=True):
    """The packages that its command names are being installed."""

    since: float


class Stopped(Struct, frozen=True):
    """The server is not started before it is used (`start: lazy`, `idle`); one `at_url` is not connected before."""

    since: float
    at_url: bool = False


class NeedsLogin(Struct, frozen=True):
    """The server is not connected until a person logs in: another attempt would be refused as well."""

    since: float
    why: str
    said: str = ""


class NeedsFolder(Struct, frozen=True):
    """The server runs in a folder of a client (`cwd: "${client:folder}"`), and is not started before one that has a
    folder uses it."""

    since: float


class Absent(Struct, frozen=True):
    """The session beside a stateless connection cannot be had, so that connection serves all clients. After ABSENT_FOR
    a client that could use the session makes it be tried again, without waiting for it.

    `is_reached`: whether the server was reached; otherwise a new stateless connection makes it be tried again, too."""

    since: float
    why: str
    is_reached: bool
    said: str = ""


State = Connecting | Ready | Failed | Disabled | Held | Installing | Stopped | NeedsLogin | NeedsFolder | Absent


def said_in(state: State) -> str:
    """The server's words about a state, quoted; empty if there are none."""
    return state.said if isinstance(state, Connecting | Failed | NeedsLogin | Absent) else ""


def describe_for_people(state: State) -> str:
    """A state in words, as `describe_state`, with what the server says about it."""
    return with_said(describe_state(state), said_in(state))


def describe_state(state: State) -> str:
    """A state in words, as the end of a sentence that begins with the server. Clients are told it, too."""
    now = trio.current_time()
    if isinstance(state, Ready):
        return "ready"
    if isinstance(state, Stopped):
        return f"it is {'not connected; its next use connects' if state.at_url else 'stopped; its next use starts'} it"
    if isinstance(state, NeedsFolder):
        return "it waits for a client's folder; the first use by a client of colonnade serve --stdio starts it there"
    if isinstance(state, Disabled):
        return "it is disabled, in the file or by colonnade disable"
    if isinstance(state, Absent):
        return state.why
    if isinstance(state, Held):
        return f"its command {state.why}; see colonnade definitions"
    if isinstance(state, Installing):
        return f"its packages are being installed, for {now - state.since:.0f} s so far"
    if isinstance(state, NeedsLogin):
        return state.why
    if isinstance(state, Failed):
        if math.isinf(state.next_attempt):
            return state.why
        return f"{state.why}; next attempt in {max(state.next_attempt - now, 0):.1f} s"
    if state.last_failure is not None:
        return f"it is reconnecting after a failure: {state.last_failure}"
    return "it is still starting"


def describe_session(state: State) -> str | None:
    """How handshake clients are served by a stateless server, in words for people, from the state of its session; None
    if none of them needs the session at the moment."""
    if isinstance(state, Ready):
        return f"handshake clients use a session ({state.client.negotiated.revision.name})"
    if isinstance(state, Absent):
        return f"handshake clients use the stateless connection, because {with_said(state.why, state.said)}"
    if isinstance(state, Stopped):
        return None
    return "handshake clients wait until their session is open"
