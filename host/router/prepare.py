"""The steps of a request to an entry until it is sent: decisions about plain values, without I/O or time.

The router looks up what is known, asks here for the next step, carries it out, and looks again:

    asked by            function        steps, in this order
    Resolver.resolve    next_step       [WAIT_LISTED] [REREAD]; then the name is resolved
    Router.answer       next_step       [WAIT_STARTED] [OFFER_LOGIN] ATTEMPT
    Router._send        next_sending    [WAIT_STARTED] [REREAD] [LEASE] SEND; this is an attempt, with its permit
    Router._recover     after_failure   after a lost session: REOPEN, then once more as in the row above
                                        after a lost login: RENEW, which ends the attempt
    Router.answer       next_step       after an attempt in vain: WAIT_READ or OFFER_LOGIN, then as in the second row

Steps in brackets are taken only where they are needed: a shared connection that is open is used without a lease. After
each wait outside an attempt, the name is resolved again. `Past` and `Sent` bound what is repeated. Beyond that, and
where nothing helps, the request fails.
"""

from __future__ import annotations

from enum import Enum, auto, unique

from msgspec import Struct, structs

MAX_ATTEMPTS = 3
"""Attempts at one request, each after its server changed to the other era, or after a login."""
MAX_START_WAITS = 3
"""Waits of one attempt for a server to start. Each ends with the server started or with an error, but another server
may have the name by then, or the same one may have stopped again during another wait."""
MAX_SENT = 2
"""Times that one attempt sends its request: again only if the server had forgotten the session."""


@unique
class Step(Enum):
    """A step on the way to an attempt."""

    WAIT_LISTED = auto()
    """Wait for lists that were never read."""
    REREAD = auto()
    """Have lists read that are old, or that do not have the name."""
    WAIT_STARTED = auto()
    WAIT_READ = auto()
    """Wait until the lists of the era that serves the caller now were read."""
    OFFER_LOGIN = auto()
    """Offer the login that is needed, and wait for it."""
    ATTEMPT = auto()
    REFUSE_UNREAD = auto()
    """Its definition is only remembered, and could not be read."""
    REFUSE_CHANGING = auto()
    """Its server changes again and again."""


@unique
class Setback(Enum):
    """Why an attempt came to nothing without effect at the server, so that another one may succeed."""

    OTHER_ERA = auto()
    """The caller is served in the other era by now, in which the server may define the entry differently."""
    NO_LOGIN = auto()


class Known(Struct, frozen=True):
    """The present knowledge of a name. The first half is about the lists that may have it, and counts until it is
    resolved; the second half is about the connection that serves the caller at its server."""

    is_listed: bool = True
    """The lists of the server were read or remembered; for a URI without a server, those of all servers."""
    is_missing: bool = False
    """A list might have the name that does not show it."""
    is_old: bool = False
    """A list is old whose changes are not announced."""

    is_starting: bool = False
    is_unread: bool = False
    """The server offers the entry only as far as is remembered."""
    needs_login: bool = False
    """The server is not connected until a person logs in, and the caller may be offered that."""


READY = Known()
"""A listed name at a server that is connected: nearly every request."""
STARTING = Known(is_starting=True)


class Past(Struct, frozen=True):
    """The steps that were taken for a request so far; it bounds what is done again."""

    is_resolved: bool = False
    """The lists were waited for as long as a request waits for them."""
    waited_listed: bool = False
    """That was done once for those that were never read."""
    starts: int = 0
    """Waits for a start since the last attempt."""
    attempts: int = 0
    setback: Setback | None = None
    """Why the last attempt came to nothing; cleared by the wait for its remedy."""

    def after(self, step: Step) -> Past:
        """The past once this wait is over."""
        if step is Step.WAIT_LISTED:
            return structs.replace(self, waited_listed=True)
        starts, attempts = self.starts, self.attempts
        if step is Step.WAIT_STARTED:
            starts += 1
        elif step is Step.OFFER_LOGIN and self.setback is None:
            attempts += 1  # it needed the login before it could be attempted
        return Past(is_resolved=True, starts=starts, attempts=attempts)

    def after_attempt(self, setback: Setback) -> Past:
        return Past(is_resolved=True, attempts=self.attempts + 1, setback=setback)


UNRESOLVED = Past()
RESOLVED = Past(is_resolved=True)
"""The past of a request whose name is resolved, by its transport or by the router."""


_ATTEMPT = Step.ATTEMPT  # for speed; see RESOURCE in protocol/methods.py


def next_step(known: Known, past: Past) -> Step:
    """The next step of a request that is not admitted yet."""
    if past.setback is not None:
        return Step.WAIT_READ if past.setback is Setback.OTHER_ERA else Step.OFFER_LOGIN
    if not past.is_resolved:
        if not known.is_listed and not past.waited_listed:
            return Step.WAIT_LISTED
        if known.is_missing or known.is_old:
            return Step.REREAD
    if past.attempts == MAX_ATTEMPTS or (known.is_starting and past.starts == MAX_START_WAITS):
        return Step.REFUSE_CHANGING
    if known.is_starting:
        return Step.WAIT_STARTED
    if known.is_unread:
        return Step.OFFER_LOGIN if known.needs_login else Step.REFUSE_UNREAD
    return _ATTEMPT


# An attempt


@unique
class Sending(Enum):
    """A step of a request that was admitted and has no answer."""

    WAIT_STARTED = auto()
    REREAD = auto()
    """Have old lists read: the definition may have changed while a person was asked."""
    LEASE = auto()
    """Lease a connection."""
    SEND = auto()
    RESOLVE_AGAIN = auto()
    """End the attempt: its permit is for the definition of the other era (`Setback.OTHER_ERA`)."""
    REFUSE_MISSING = auto()
    """The server has no such method, so there is no such entry."""
    REFUSE_CHANGING = auto()
    """Its server stops again and again."""


class Reached(Struct, frozen=True):
    """The present knowledge of the server of an admitted request."""

    is_starting: bool = False
    is_old: bool = False
    """A list is old, and the request needed a person's consent: if one was asked, that may have taken minutes."""
    is_leased: bool = False
    """A connection may be used: it is leased, or needs no lease. The fields below are about it."""
    is_other_era: bool = False
    """It is not of the era of the permit, by whose definition the request was admitted."""
    is_incapable: bool = False
    """It does not declare what the method needs."""


UNLEASED = Reached()
LEASED = Reached(is_leased=True)


class Sent(Struct, frozen=True):
    """The steps that were taken for an admitted request so far; it bounds what is done again."""

    starts: int = 0
    """Waits for a start."""
    was_reread: bool = False
    times: int = 0
    """Times that the request was sent."""

    def after(self, step: Sending) -> Sent:
        """The past once this step was carried out."""
        starts = self.starts + 1 if step is Sending.WAIT_STARTED else self.starts
        times = self.times + 1 if step is Sending.SEND else self.times
        return Sent(starts, self.was_reread or step is Sending.REREAD, times)


UNSENT = Sent()


_LEASE, _SEND = Sending.LEASE, Sending.SEND  # for speed, as above


def next_sending(known: Reached, past: Sent) -> Sending:
    """The next step of an admitted request that has no answer."""
    if not known.is_leased:
        if known.is_starting:
            return Sending.WAIT_STARTED if past.starts < MAX_START_WAITS else Sending.REFUSE_CHANGING
        return Sending.REREAD if known.is_old and not past.was_reread and not past.times else _LEASE
    if known.is_other_era:
        return Sending.RESOLVE_AGAIN
    # A request is sent again only to a server that had the method.
    return Sending.REFUSE_MISSING if known.is_incapable and not past.times else _SEND


@unique
class CallFailure(Enum):
    """How a request that was sent has failed."""

    SESSION_LOST = auto()
    """The server has forgotten its session, so it did not process the request."""
    LOGIN_LOST = auto()
    """The server refused the login, so it did not process the request."""
    URL_REQUIRED = auto()
    """The server wants the user to visit pages first."""
    REFUSED = auto()
    """Any other error of the server."""


@unique
class Recovery(Enum):
    """A remedy for a failure."""

    REOPEN = auto()
    """Wait for another session than the one that the server has forgotten, and send the request over that."""
    RENEW = auto()
    """Give a grant back that was spent on nothing. The failure is raised, and ends the attempt (`Setback.NO_LOGIN`)."""
    SHOW_PAGES = auto()
    """Admit the pages that are to be visited first, and have the caller visit them."""
    REFUSE_PAGES = auto()
    """Admit the pages that are to be visited first, and name them in the error."""
    NONE = auto()
    """The request has failed, with the error as it is."""


def after_failure(failure: CallFailure, past: Sent, *, retries: bool) -> Recovery:
    """The remedy for a failure. `retries`: the caller repeats its request after what it was asked for."""
    if failure is CallFailure.SESSION_LOST:
        return Recovery.REOPEN if past.times < MAX_SENT else Recovery.NONE
    if failure is CallFailure.LOGIN_LOST:
        return Recovery.RENEW
    if failure is CallFailure.URL_REQUIRED:
        return Recovery.SHOW_PAGES if retries else Recovery.REFUSE_PAGES
    return Recovery.NONE
