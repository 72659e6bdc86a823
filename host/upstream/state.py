"""The states of a server, and of the session beside its stateless connection, and their descriptions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import trio

from host.upstream.client import Client


@dataclass(frozen=True, slots=True)
class Connecting:
    since: float
    last_failure: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    since: float
    client: Client


@dataclass(frozen=True, slots=True)
class Failed:
    since: float
    why: str
    next_attempt: float


@dataclass(frozen=True, slots=True)
class Disabled:
    pass


@dataclass(frozen=True, slots=True)
class Held:
    """The server is not started until a person approves its program."""

    since: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The server is not started before it is used (`start: lazy`, `idle`)."""

    since: float


@dataclass(frozen=True, slots=True)
class NeedsLogin:
    """The server is not connected until a person logs in: another attempt would be refused as well."""

    since: float
    why: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The session beside a stateless connection cannot be had, so that connection serves all clients. After ABSENT_FOR
    a client that could use the session makes it be tried again, without waiting for it.

    `is_reached`: whether the server was reached; otherwise a new stateless connection makes it be tried again, too."""

    since: float
    why: str
    is_reached: bool


State = Connecting | Ready | Failed | Disabled | Held | Stopped | NeedsLogin | Absent


def describe_state(state: State) -> str:
    """A state in words, as the end of a sentence that begins with the server."""
    now = trio.current_time()
    if isinstance(state, Ready):
        return "ready"
    if isinstance(state, Stopped):
        return "it is stopped; its first use starts it"
    if isinstance(state, Disabled):
        return "it is disabled, in the file or by colonnade disable"
    if isinstance(state, Absent):
        return state.why
    if isinstance(state, Held):
        return "its command resolves to another program than the approved one; see colonnade definitions"
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
    """How handshake clients are served by a stateless server, in words, from the state of its session; None if none of
    them needs the session at the moment."""
    if isinstance(state, Ready):
        return f"handshake clients use a session ({state.client.negotiated.revision.name})"
    if isinstance(state, Absent):
        return f"handshake clients use the stateless connection, because {state.why}"
    if isinstance(state, Stopped):
        return None
    return "handshake clients wait until their session is open"
