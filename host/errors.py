"""Every error that may end a request, and whose fault it is.

    ColonnadeError
    ├── CallerError              the client asked for something that cannot be done
    │   ├── InvalidRequest       -32600  the message itself is not usable here
    │   ├── MethodNotFound       -32601  also: the server that it is for does not offer that
    │   ├── InvalidParams        -32602  members missing or of the wrong type, a bad cursor
    │   │   ├── AmbiguousMembers -32602  some readers take one of its members for another one
    │   │   └── UnknownState     -32602  what a retry brings back was not given out for it, or is over
    │   ├── UnknownEntry         -32602  no such tool or prompt (or policy hides it: the same words)
    │   ├── ResourceNotFound     -32002  no such resource (or policy hides it: the same words)
    │   ├── HeaderMismatch       -32020  the headers do not say what the body says
    │   ├── MissingAbility       -32021  the request declares no capability that carrying it out needs
    │   ├── UnsupportedVersion   -32022  the request is of a revision that is not served
    │   └── TooManyRequests      429     too much of it at once
    ├── AuditUnavailable         503  what is done cannot be recorded, so nothing is done
    └── UpstreamError            a named server failed
        ├── ServerErrorResponse  the server's own JSON-RPC error, in terms that the caller knows
        ├── Forbidden            403  what was asked of it, or what it asked, is not allowed
        ├── Unconfirmed          408  a person would have had to allow it, and nobody answered
        ├── StaleApproval        409  it is not what a person agreed to any more
        ├── TooManyResources     429  as many instances of it run, or resources of it are watched, as may be
        ├── TooLarge             413  its answer is longer than the configuration allows
        ├── Unavailable          503  not connected; says why and when the next attempt is
        │   └── SessionLost      503  it did not process the call, because it had forgotten the session
        │   └── LoginNeeded      503  not connected until a person logs in
        │       └── LoginLost    503  it did not execute the call, which found that the login is over
        ├── ProtocolViolation    502  it answered with something that is no answer
        ├── Interrupted          502  its connection broke during a call of a tool, which may have run
        └── TimedOut             504

Anything else that is raised while a request is answered is our own fault, and becomes -32603.

Codes: JSON-RPC 2.0 section 5.1, MCP 2025-11-25 "Resources / Error Handling", MCP 2026-07-28 "Error Codes"; our own
codes are positive, since -32768..-32000 is reserved. A message is one sentence for the caller and never holds a secret,
a path or a traceback.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Raw, json

UNCONFIRMED = 408
"""Code for a confirmation that nobody answered in time."""
TOO_LARGE = 413
"""Code for a result, or a request of a server, that is longer than permitted."""
TOO_MANY_REQUESTS = 429
"""Code for exceeded limits of number or rate, of any transport or link."""
_MAX_METHOD = 80
"""Characters of an unknown method that its error repeats."""
INTERNAL_ERROR_MESSAGE = "Internal error in Colonnade; its log says more"
"""Message to a caller for an internal error."""


class ColonnadeError(Exception):
    """Base of all errors that become the response to a request.

    Args:
        message: one sentence for the caller.
        data: the `data` member of the JSON-RPC error, already encoded, or None.
    """

    code: int
    is_recorded = False
    """Whether the audit says of the request that it ended so."""

    def __init__(self, message: str, *, data: Raw | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class CallerError(ColonnadeError):
    """The client requested something impossible."""


class InvalidRequest(CallerError):
    """The message is no valid JSON-RPC request, or may not be sent now."""

    code = -32600


class MethodNotFound(CallerError):
    """The method is unknown, or nothing that the client sees offers it."""

    code = -32601

    @classmethod
    def of_method(cls, method: str) -> MethodNotFound:
        """The error for a method that the revision of the request does not have, in the form of the official SDKs."""
        return cls("Method not found", data=Raw(json.encode(method[:_MAX_METHOD])))


class InvalidParams(CallerError):
    """The params are not what the method wants."""

    code = -32602


class AmbiguousMembers(InvalidParams):
    """Some readers of the params, or of an object in them, take one member for another one."""


class UnknownState(InvalidParams):
    """The `requestState` is none that was given out for this request, or is over; in the form of the official SDKs.

    Args:
        why: what is known of it.
    """

    def __init__(self, why: str = "Invalid or expired requestState") -> None:
        data = Raw(b'{"reason":"invalid_request_state"}')
        super().__init__(f"{why}; send the request again from the beginning", data=data)


class UnknownEntry(CallerError):
    """The tool or prompt does not exist, or is denied: the client is not told which."""

    code = -32602


class ResourceNotFound(CallerError):
    """The resource does not exist, or is denied: the client is not told which."""

    code = -32002


class HeaderMismatch(CallerError):
    """A header of the request says something else than its body (2026-07-28)."""

    code = -32020


class MissingAbility(CallerError):
    """`data` holds `requiredCapabilities`."""

    code = -32021


class UnsupportedVersion(CallerError):
    """`data` holds `supported` and `requested`."""

    code = -32022


class TooManyRequests(CallerError):
    """A limit of Colonnade is reached. `data.retryAfterMs` says when to try again."""

    code = TOO_MANY_REQUESTS


class AuditUnavailable(ColonnadeError):
    """The audit cannot be written, so nothing may be dispatched."""

    code = 503


class UpstreamError(ColonnadeError):
    """A named server failed. `server` is its id."""

    def __init__(self, server: str, message: str, *, data: Raw | None = None) -> None:
        super().__init__(message, data=data)
        self.server = server


class ServerErrorResponse(UpstreamError):
    """The server's own JSON-RPC error, with its code, message and data."""

    def __init__(self, server: str, code: int, message: str, data: Raw | None) -> None:
        super().__init__(server, message, data=data)
        self.code = code


class Forbidden(UpstreamError):
    """The rules deny these arguments, or a person refused."""

    code = 403


class Unconfirmed(UpstreamError):
    """Nobody confirmed the call in time, or nobody is there who could."""

    code = UNCONFIRMED


class StaleApproval(UpstreamError):
    """The entry is held, or is not any more what the person agreed to."""

    code = 409


class TooManyResources(UpstreamError):
    """A limit of the server is reached, such as its dedicated instances."""

    code = TOO_MANY_REQUESTS


class TooLarge(UpstreamError):
    """A message is larger than its limit."""

    code = TOO_LARGE


class Unavailable(UpstreamError):
    """The server is not there: it has failed, is starting, or is disabled."""

    code = 503


class SessionLost(Unavailable):
    """The call may be sent once more, over another session."""


class LoginNeeded(Unavailable):
    """A person must log in at the server first."""


class LoginLost(LoginNeeded):
    """The call may be sent once more, after another login."""


class ProtocolViolation(UpstreamError):
    """The server's answer is not what the protocol allows."""

    code = 502


class Interrupted(UpstreamError):
    """The connection ended in the middle of the call, whose outcome is unknown."""

    code = 502


class TimedOut(UpstreamError):
    """The server did not answer in time."""

    code = 504


E = TypeVar("E", bound=Exception)


def copy_of(error: E) -> E:
    """A copy of the error to raise in another task: an exception collects the stacks through which it is raised."""
    made = type(error).__new__(type(error), *error.args)
    made.__dict__.update(error.__dict__)
    return made


def first_exception(group: BaseException) -> BaseException:
    """The cause of an exception group: the first plain exception in it."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
