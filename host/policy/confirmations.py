"""The confirmation queue: calls that wait for a person because their rule says `ask`.

A call waits until somebody answers, its time is over, or it is cancelled. After a timeout the confirmation is refused
and stays in the list, so that a later answer lets the next equal call pass.

A confirmation is bound to its whole access request: caller, server, definition, launch, rule and arguments. Equal
access requests share one confirmation, on which several calls wait. `once` releases the call that has waited longest (a
client's own answer: that client's); every other answer releases all of them. An answer creates a grant, which the gate
spends. This module sends no requests to servers.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Protocol

import trio
from msgspec import Raw, Struct, field, structs
from msgspec.structs import replace

from config import AskSpec, Channel, Condition, Trust
from host.client_process import ClientProcess
from host.errors import AuditUnavailable, Forbidden, StaleApproval, TooManyRequests, Unconfirmed
from host.exchange import ClientHandle
from host.jsonrpc.raw import encode, members, string
from host.peer.outstanding import BrokenAnswer, PeerError
from host.policy.grants import AccessRequest, Grant, Grants, Scope, new_id
from host.protocol.server_requests import ELICIT
from host.sanitize import visible
from host.storage.store import StateError
from host.subject import Item
from host.wire.link import LinkLost

MAX_OF_SERVER = 10
MAX_OF_CALLER = 5
"""Confirmations that may wait at once for one server, and for one caller. Nobody reads a longer list."""
MAX_REFUSED = 50
REFUSED_LIFE = 600.0
"""Refused confirmations that are kept, and for how many seconds. A grant for the next call lives as long. Later, a
person would not expect the call any more."""
MAX_CONFIRMABLE_BYTES = 16 * 1024
"""Bytes of arguments that a person can read before confirming them."""
MAX_FORM_TEXT = 8 * 1024
"""Characters of arguments that fit into a client's form; longer ones can be confirmed only where they are shown in
full."""
_NOBODY = "nobody was there to answer"
_STOPPING = "Colonnade is stopping, so that nobody can answer now; nothing was sent"
_SERVER_REQUESTS = {
    "sampling": "to use the client's model",
    "form": "to have a form filled in",
    "url": "to have a page visited",
    "roots": "to know the client's roots",
}


class ConfirmationAnswer(StrEnum):
    """The answers that a person can give."""

    DENY = "deny"
    ONCE = "once"
    SESSION = "session"
    TIME = "time"
    ALWAYS = "always"


class ConfirmationContext(Struct, frozen=True):
    """Information shown beside the access request. `raw_arguments` is JSON, as it will be sent, and so is `others`: an
    object of the members that are sent beside the arguments; empty if there are none."""

    trust: Trust
    raw_arguments: bytes
    claims: tuple[str, ...] = ()
    """Claims of the definition about itself, which are not verified."""
    definition: bytes = b""
    """The definition of the entry as the server wrote it; empty if it has none."""
    conditional: bool = False
    """Whether the rule asks because of the arguments."""
    others: bytes = b""
    process: ClientProcess | None = None
    """The program that the caller is; None if it is not known. Shown only: no part of what an answer is for."""
    says: str = ""
    """The name that the client gives itself, which nothing checks; empty if it gives none. Shown only, too."""
    through: str = ""
    """See `Exchange.through`."""
    client: str = ""
    trace_id: str = ""
    """As in `AuditRecord`, for the log: of the first of equal requests."""


class _WaitingCall(Struct, eq=False):
    settled: trio.Event = field(default_factory=trio.Event)
    grant: Grant | None = None
    refusal: Exception | None = None
    collected: bool = False
    """Whether the waiting call has taken its grant."""
    has_form: bool = False
    """Whether its client can show a form."""
    form_is_open: bool = False

    def permit(self, grant: Grant) -> None:
        self.grant = grant
        self.settled.set()

    def refuse(self, refusal: Exception) -> None:
        self.refusal = refusal
        self.settled.set()


class PendingConfirmation(Struct, eq=False):
    """One confirmation, shared by the calls that wait for its answer."""

    id: str
    access: AccessRequest
    context: ConfirmationContext
    created_at: float
    """Unix seconds."""
    expires_at: float
    """Unix seconds at which it is refused, or dropped if it was refused."""
    waiters: list[_WaitingCall] = field(default_factory=list)
    refused: str = ""
    """The reason why it was refused; empty while calls wait."""
    answers: int = 0
    """Answers that are being stored, or applied: several if another process has given one."""
    key: Hashable = None
    """The key of its queue, which it keeps when its access request loses its session; None in that of another
    process."""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let no further answer in for the block."""
        self.answers += 1
        try:
            yield
        finally:
            self.answers -= 1


class GivenAnswer(Struct, frozen=True):
    """A person's answer, as `ConfirmationQueue.answer` takes it; `at` is the Unix time of the store."""

    answer: ConfirmationAnswer
    channel: Channel
    seconds: float | None
    when: tuple[Condition, ...] | None
    exact: bool
    at: float

    @property
    def is_lasting(self) -> bool:
        """Whether its grant is stored."""
        return self.answer in (ConfirmationAnswer.TIME, ConfirmationAnswer.ALWAYS)


class FleetAnswers(Protocol):
    """The confirmations of the other processes of a fleet, and the answers, of which one counts in all."""

    def others(self) -> Sequence[PendingConfirmation]:
        """Those of other processes, which can be answered here."""

    def is_attended(self) -> bool:
        """Whether somebody is at another process who can answer."""

    async def answer(self, confirmation: PendingConfirmation, given: GivenAnswer, grant: Grant | None) -> bool:
        """Store an answer and its grant, if that is to be stored; the process whose call waits then applies it. False
        if there was another answer. Raises StateError if it cannot be stored."""

    async def take(self, confirmation: PendingConfirmation) -> bool:
        """Take a confirmation of this process back, to answer it here alone. False if it has an answer. Raises
        StateError."""

    async def claim(self, access: AccessRequest) -> bool:
        """Apply an answer that waits for the next call like this one, at whichever process; False if there is none, or
        another process has it. Raises AuditUnavailable: it is spent, and nothing is granted."""

    def unclaimed(self) -> Sequence[tuple[PendingConfirmation, GivenAnswer]]:
        """The answers that wait for such a call."""

    async def withdraw(self, id: str) -> bool:
        """Take back the answer to this confirmation; False if it does not wait any more. Raises StateError."""


class ConfirmationQueue:
    """All confirmations of the host. `record` writes each event to the audit: the name of the event, the confirmation,
    and its details."""

    def __init__(
        self, grants: Grants, spec: AskSpec, record: Callable[[str, PendingConfirmation, dict[str, object]], None]
    ) -> None:
        self.grants = grants
        self.spec = spec
        self.has_console = True
        """Whether there is a web console."""
        self.can_notify: Callable[[], bool] = lambda: False
        """Whether people who are not there can be told that a call waits for them."""
        self.fleet: FleetAnswers | None = None
        """Set once, in a fleet."""
        self._record = record
        self._closed = False
        self._open: dict[Hashable, PendingConfirmation] = {}
        self._refused: dict[Hashable, PendingConfirmation] = {}
        self._attached: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self._readers: list[Callable[[], None]] = []

    def subscribe(self, reader: Callable[[], None]) -> None:
        """`reader` is called whenever the list of confirmations changes; it must not wait and must not raise."""
        self._readers.append(reader)

    def _notify(self) -> None:
        for reader in self._readers:
            reader()

    def list_all(self) -> list[PendingConfirmation]:
        """All confirmations, the waiting ones first, each in the order in which they came; then those of other
        processes of the fleet."""
        others = () if self.fleet is None else self.fleet.others()
        return [*self.own(), *others]

    def own(self) -> list[PendingConfirmation]:
        """Those of calls of this process."""
        self.drop_expired()
        return [*self._open.values(), *self._refused.values()]

    def changed(self) -> None:
        """Say that confirmations of other processes have changed."""
        self._notify()

    def drop_expired(self) -> bool:
        """Drop the refused confirmations whose time is over; return whether there were any."""
        now = time.time()
        expired = [key for key, confirmation in self._refused.items() if confirmation.expires_at <= now]
        for key in expired:
            del self._refused[key]
        return bool(expired)

    @contextmanager
    def attach(self, channel: Channel) -> Iterator[None]:
        """Register a channel on which somebody can answer, for the block."""
        self._attached[channel] += 1
        self._notify()
        try:
            yield
        finally:
            self._attached[channel] -= 1
            self._notify()

    def is_attached(self, channel: Channel) -> bool:
        """Whether somebody is there who can answer on this channel."""
        return self._attached[channel] > 0

    def can_be_answered(self) -> bool:
        """Whether a channel is attached that the configuration permits to answer, or people can be told to come."""
        if self.is_attended() or (self.fleet is not None and self.fleet.is_attended()):
            return True
        return self.spec.reaches_people and self.can_notify()

    def is_attended(self) -> bool:
        """Whether a channel is attached here that the configuration permits to answer."""
        return any(count and channel in self.spec.answers for channel, count in self._attached.items())

    def refuse_unattended(self) -> None:
        """Refuse the calls that wait for people who could not be told, unless somebody is there by now."""
        if self.can_be_answered():
            return
        for confirmation in list(self._open.values()):
            for waiter in [each for each in confirmation.waiters if not each.form_is_open]:
                self._give_up(confirmation, waiter, _NOBODY)

    def close(self) -> None:
        """Refuse the calls that wait for a person, and later ones at once: the host is about to end, and an answer
        would come too late."""
        self._closed = True
        for confirmation in list(self._open.values()):
            for waiter in list(confirmation.waiters):
                self._give_up(confirmation, waiter, _STOPPING)

    async def confirm(self, access: AccessRequest, context: ConfirmationContext, client: ClientHandle | None) -> Grant:
        """Wait for a person's answer, and return the grant for this access request. Cancelling withdraws the call.

        Args:
            client: the way to the caller, if the configuration lets it answer and it can show a form.

        Raises:
            Forbidden: a person denied the request.
            Unconfirmed: nobody answered in time, or nobody can answer.
            StaleApproval: the entry changed meanwhile.
            TooManyRequests: too many confirmations are pending.
        """
        key = _key(access)
        if client is not None and len(context.raw_arguments) + len(context.others) > MAX_FORM_TEXT:
            client = None
        refused = "" if self.can_be_answered() or client is not None else _NOBODY
        if self._closed:
            refused = _STOPPING
        confirmation = self._open.get(key) or self._create(key, access, context, refused)
        if refused:
            if not confirmation.waiters:  # others may have begun to wait while a channel was attached, and wait still
                self._refuse(confirmation, refused)
            why = _STOPPING if self._closed else "nobody is there who could answer"
            raise self._unconfirmed(confirmation, f"and {why}", has_form=False)
        waiter = _WaitingCall(has_form=client is not None, form_is_open=client is not None)
        confirmation.waiters.append(waiter)
        confirmation.expires_at = time.time() + self.spec.timeout
        self._notify()
        try:
            with trio.move_on_after(self.spec.timeout):
                await self._wait_for_answer(confirmation, waiter, client)
            if waiter.refusal is not None:
                raise waiter.refusal
            if waiter.grant is None:
                raise self._timed_out(confirmation, waiter)
            waiter.collected = True
            return waiter.grant
        finally:
            self._remove_waiter(confirmation, waiter)

    async def answer(
        self,
        id: str,
        answer: ConfirmationAnswer,
        channel: Channel,
        *,
        seconds: float | None = None,
        when: tuple[Condition, ...] | None = None,
        exact: bool = True,
    ) -> PendingConfirmation | None:
        """Apply a person's answer. Returns None if it has no effect: the id is unknown, another answer is being stored,
        the configuration does not let this channel answer, or the answer is for a session that is gone.

        `seconds` is the life of a grant for a TIME. A lasting grant is bound to exactly these arguments; if not
        `exact`, to those that `when` names, or to none. It is stored before a call passes with it.

        Raises:
            AuditUnavailable, StateError: the answer cannot be recorded, so nothing is granted.
        """
        confirmation = next((each for each in self.list_all() if each.id == id), None)
        if confirmation is None or channel not in self.spec.answers or confirmation.answers:
            return None
        if answer is ConfirmationAnswer.SESSION and confirmation.access.subject.session is None:
            return None
        given = GivenAnswer(answer, channel, seconds, when, exact, self.grants.now())
        if self.fleet is None:
            return await self.apply(confirmation, given)
        with confirmation.answering():
            if channel is Channel.CLIENT:
                return await self.apply(confirmation, given) if await self.fleet.take(confirmation) else None
            grant = self._grant(confirmation, given) if given.is_lasting else None
            said: dict[str, object] = {"answer": answer.value, "by": channel.value}
            if grant is not None:
                said |= {"grant": grant.id, "exact": exact}
            self._record("answer", confirmation, said)
            return confirmation if await self.fleet.answer(confirmation, given, grant) else None

    async def apply(self, confirmation: PendingConfirmation, given: GivenAnswer) -> PendingConfirmation:
        """Apply the answer that counts. In a fleet it is none whose grant is stored, and the confirmation may be one
        of another process, which nothing waits for here. Raises as `answer` does."""
        answer, channel = given.answer, given.channel
        if answer is ConfirmationAnswer.DENY:
            subject = confirmation.access.subject
            self._record("answer", confirmation, {"answer": answer.value, "by": channel.value})
            refusal = Forbidden(subject.item.server, _denied_message(confirmation))
            for waiter in confirmation.waiters:
                waiter.refuse(refusal)
            self._remove(confirmation)
            self._drop_refused(lambda access: is_equal(access, confirmation.access))
            return confirmation
        grant = self._grant(confirmation, given)
        # The audit comes first: a grant that cannot be recorded is not given.
        said: dict[str, object] = {
            "answer": answer.value,
            "by": channel.value,
            "grant": grant.id,
            "exact": answer is ConfirmationAnswer.ONCE or given.exact,
        }
        self._record("answer", confirmation, said)
        with confirmation.answering():
            await self.grants.add(grant)
        self._record("granted", confirmation, said)
        going = confirmation.waiters[:1] if answer is ConfirmationAnswer.ONCE else list(confirmation.waiters)
        for waiter in going:
            confirmation.waiters.remove(waiter)
            waiter.permit(grant)
        if answer is ConfirmationAnswer.ONCE and going:
            self.grants.reserve(grant)  # the grant is for the waiting call; another call must not take it first
        if not confirmation.waiters:
            self._remove(confirmation)
        self._drop_refused(lambda access: is_equal(access, confirmation.access))
        self.release_covered()
        self._notify()
        return confirmation

    def _grant(self, confirmation: PendingConfirmation, given: GivenAnswer) -> Grant:
        subject, answer, now = confirmation.access.subject, given.answer, given.at
        if answer is ConfirmationAnswer.TIME:
            expires: float | None = now + (given.seconds or 0)
        else:
            expires = now + REFUSED_LIFE if answer is ConfirmationAnswer.ONCE else None
        wide = answer is not ConfirmationAnswer.ONCE and not given.exact
        # A refused call may be repeated in another session of the same caller.
        of_session = answer is ConfirmationAnswer.SESSION or (confirmation.waiters and not given.is_lasting)
        granted = structs.replace(
            subject,
            session=subject.session if of_session else None,
            digest=None if wide else subject.digest,
        )
        conditions = (given.when or ()) if wide else ()
        return Grant(new_id(), granted, conditions, Scope(answer.value), now, expires, given.channel.value)

    def unclaimed(self) -> list[Grant]:
        """Answers for the next equal call, at whichever process of a fleet: each as the grant that the call will get,
        with the id of its confirmation."""
        if self.fleet is None:
            return []
        made = [replace(self._grant(each, given), id=each.id) for each, given in self.fleet.unclaimed()]
        return [grant for grant in made if grant.expires is None or self.grants.now() < grant.expires]

    def settle(self, confirmation: PendingConfirmation) -> None:
        """Drop a confirmation that nothing waits for: its answer is elsewhere."""
        if not confirmation.waiters and confirmation in self.own():
            self._remove(confirmation)

    def fail(self, confirmation: PendingConfirmation, problem: Exception) -> None:
        """End the calls that wait for an answer that was given and cannot be applied."""
        for waiter in confirmation.waiters:
            waiter.refuse(problem)
        confirmation.waiters.clear()
        self.settle(confirmation)

    def release_covered(self) -> None:
        """Release the waiting calls for which a grant exists by now: a wider one that was given for another call, or
        one from another process. Refused confirmations that it covers need no answer any more."""
        for confirmation in list(self._open.values()):
            grant = self.grants.find(confirmation.access)
            if grant is None or grant.scope is Scope.ONCE:
                continue
            for waiter in confirmation.waiters:
                waiter.permit(grant)
            confirmation.waiters.clear()
            self._remove(confirmation)
        self._drop_refused(self._is_covered)

    def _is_covered(self, access: AccessRequest) -> bool:
        grant = self.grants.find(access)
        return grant is not None and grant.scope is not Scope.ONCE

    def _drop_refused(self, applies: Callable[[AccessRequest], bool]) -> None:
        for confirmation in list(self._refused.values()):
            if not confirmation.answers and applies(confirmation.access):
                self._remove(confirmation)

    def void(self, still_applies: Callable[[AccessRequest], bool]) -> None:
        """Drop every confirmation whose access request does not hold any more; its calls end with StaleApproval."""
        for confirmation in self.own():
            if not still_applies(confirmation.access):
                self._record("answer", confirmation, {"answer": "void"})
                for waiter in confirmation.waiters:
                    waiter.refuse(stale_approval(confirmation.access.subject.item))
                self._remove(confirmation)

    def end_session(self, session: Hashable) -> None:
        """Withdraw the calls of a session that has ended, and accept no further grant for it."""
        self.grants.end_session(session)
        for confirmation in list(self._open.values()):
            if confirmation.access.subject.session == session:
                self._record("answer", confirmation, {"answer": "withdrawn"})
                for waiter in confirmation.waiters:
                    waiter.refuse(self._unconfirmed(confirmation, "and its session has ended", has_form=False))
                self._remove(confirmation)
        for confirmation in self._refused.values():
            subject = confirmation.access.subject
            if subject.session == session:
                confirmation.access = replace(confirmation.access, subject=structs.replace(subject, session=None))

    # Within

    def _create(
        self, key: Hashable, access: AccessRequest, context: ConfirmationContext, refused: str
    ) -> PendingConfirmation:
        server, caller = access.subject.item.server, _caller_of(access)
        waiting = [each for each in self.list_all() if not each.refused]
        of_server = sum(each.access.subject.item.server == server for each in waiting)
        of_caller = sum(_caller_of(each.access) == caller for each in waiting)
        if of_caller >= MAX_OF_CALLER or of_server >= MAX_OF_SERVER:
            if of_caller >= MAX_OF_CALLER:
                limit = f"{MAX_OF_CALLER} confirmations of this client"
            else:
                limit = f"{MAX_OF_SERVER} confirmations about the server {server}"
            text = f"{limit} wait for a person's answer already, which is the most; try again later"
            raise TooManyRequests(text, data=encode({"retryAfterMs": int(self.spec.timeout * 1000)}))
        now = time.time()
        former = self._refused.pop(key, None)  # a person may have read the former id, and can still answer with it
        id = secrets.token_hex(4) if former is None else former.id
        confirmation = PendingConfirmation(id, access, context, now, now + self.spec.timeout, refused=refused, key=key)
        self._record("ask", confirmation, {})
        self._open[key] = confirmation
        return confirmation

    async def _wait_for_answer(
        self, confirmation: PendingConfirmation, waiter: _WaitingCall, client: ClientHandle | None
    ) -> None:
        if client is None:
            await waiter.settled.wait()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_client, confirmation, waiter, client)
            await waiter.settled.wait()
            nursery.cancel_scope.cancel("it is answered")

    async def _ask_client(self, confirmation: PendingConfirmation, waiter: _WaitingCall, client: ClientHandle) -> None:
        """Ask the client's user, who can answer yes for once, yes for the session, or no. Lasting answers are for the
        other channels. If the form has no answer, the call waits as long as somebody else can give one."""
        try:
            answer = _form_answer(
                members(await client.request(ELICIT, _elicitation_params(confirmation), None)), confirmation
            )
            why = "the client's form was closed without an answer"
        except (PeerError, BrokenAnswer, LinkLost, ValueError, KeyError):
            answer, why = None, "the client could not be asked"
        await trio.lowlevel.checkpoint_if_cancelled()  # it came while the form was being withdrawn
        if waiter not in confirmation.waiters:  # answered elsewhere meanwhile
            return
        waiter.form_is_open = False
        if answer is None:
            if not self.can_be_answered():
                self._give_up(confirmation, waiter, why)
            return
        confirmation.waiters.remove(waiter)  # the answer of a client's own user is for this call alone
        confirmation.waiters.insert(0, waiter)
        try:
            # Nothing lasting, so nothing is stored, and this does not wait, but in a fleet.
            await self.answer(confirmation.id, answer, Channel.CLIENT)
        except AuditUnavailable as problem:
            waiter.refuse(problem)
        except StateError:
            waiter.refuse(self._unconfirmed(confirmation, "and the answer could not be stored", has_form=True))

    def _give_up(self, confirmation: PendingConfirmation, waiter: _WaitingCall, why: str) -> None:
        """Refuse one call for which nobody can answer any more."""
        waiter.refuse(self._unconfirmed(confirmation, f"and {why}", has_form=waiter.has_form))
        confirmation.waiters.remove(waiter)  # at once: an answer that comes now is for the next call
        if not confirmation.waiters:
            self._refuse(confirmation, why)

    def _timed_out(self, confirmation: PendingConfirmation, waiter: _WaitingCall) -> Unconfirmed:
        why = f"nobody answered within {self.spec.timeout:.0f} s"
        if confirmation.waiters == [waiter]:
            self._refuse(confirmation, why)
        return self._unconfirmed(confirmation, f"and {why}", has_form=waiter.has_form)

    def _refuse(self, confirmation: PendingConfirmation, why: str) -> None:
        """Refuse the confirmation when no call waits for it any more. It stays in the list, so that a person can allow
        the next equal call."""
        self._record("answer", confirmation, {"answer": "none", "why": why})
        self._open.pop(confirmation.key, None)
        confirmation.refused, confirmation.expires_at = why, time.time() + REFUSED_LIFE
        self._refused[confirmation.key] = confirmation
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._notify()

    def _remove_waiter(self, confirmation: PendingConfirmation, waiter: _WaitingCall) -> None:
        if waiter.grant is not None and waiter.grant.scope is Scope.ONCE and not waiter.collected:
            self.grants.withdraw(waiter.grant)  # the call was cancelled after the answer was given
        if waiter in confirmation.waiters:
            confirmation.waiters.remove(waiter)
            if (
                not confirmation.waiters and self._open.get(confirmation.key) is confirmation
            ):  # the call was cancelled, and its confirmation with it
                self._record("answer", confirmation, {"answer": "withdrawn"})
                del self._open[confirmation.key]
            self._notify()

    def _remove(self, confirmation: PendingConfirmation) -> None:
        for kept in (self._open, self._refused):
            if kept.get(confirmation.key) is confirmation:
                del kept[confirmation.key]
        self._notify()

    def _unconfirmed(self, confirmation: PendingConfirmation, why: str, *, has_form: bool) -> Unconfirmed:
        access = confirmation.access
        text = f"{describe_access(access)} needs a person's consent, {why}. {self._open_way(confirmation, has_form)}"
        return Unconfirmed(access.subject.item.server, text)

    def _open_way(self, confirmation: PendingConfirmation, has_form: bool) -> str:
        """How the person can answer now, as a sentence for a model, or for the owner who gave a command. `has_form`:
        the client can show a form."""
        access = confirmation.access
        console = Channel.CONSOLE in self.spec.answers and self.has_console
        terminal = Channel.TERMINAL in self.spec.answers
        if console and self._attached[Channel.CONSOLE]:
            way = "on the page of the console that is open"
        elif terminal and self._attached[Channel.TERMINAL]:
            way = "in the terminal in which `colonnade ask` runs"
        elif terminal and _is_for_owner(confirmation):
            return f"`colonnade ask {confirmation.id} once` gives it; then repeat the command."
        elif console:
            way = "on the console (`colonnade console` opens it)" + (" or with `colonnade ask`" if terminal else "")
        elif terminal:
            way = "with `colonnade ask` in a terminal"
        elif has_form:
            return "Only the form that this client shows can give it; try again only if the user wants that."
        else:
            return "Only a client that shows forms may give it; `ask.answers` of the configuration can name other ways."
        # A caller with a token may be on another machine; the others are on this one.
        place = ", on the machine that runs Colonnade" if access.subject.caller is not None else ""
        return f"It can be given {way}{place}; then try again."


def entry_answer(confirmation: PendingConfirmation) -> ConfirmationAnswer | None:
    """The answer with which a person can be offered, as one step, to allow the entry with any arguments: for the
    session, or, to a caller that has a token and no session, for a time. None for no such step.

    A rule with conditions asks because of the arguments, so an answer for any arguments would undo it; a person can
    still choose that answer by name. A server request has no entry whose next use would be like this one. Callers with
    neither a session nor a token are not told apart.
    """
    subject = confirmation.access.subject
    if confirmation.access.ref is None or confirmation.context.conditional:
        return None
    if subject.session is not None:
        return ConfirmationAnswer.SESSION
    return None if subject.caller is None else ConfirmationAnswer.TIME


def describe_access(access: AccessRequest) -> str:
    """The access request as the beginning of a sentence."""
    item = access.subject.item
    what = _SERVER_REQUESTS.get(item.kind)
    if what is not None:
        return f"{item.server}'s request {what}"
    return f"The {item.kind} {visible(item.name)} of {item.server}"


def _through(context: ConfirmationContext) -> str:
    return f" (through {context.through})" if context.through else ""


def stale_approval(item: Item) -> StaleApproval:
    """The error for an entry that changed since a person approved or confirmed it."""
    what = f"the {item.kind} {visible(item.name)[:200]} of {item.server}"
    return StaleApproval(item.server, f"{what}, or what is allowed of it, has changed meanwhile; try again")


def _denied_message(confirmation: PendingConfirmation) -> str:
    said = f"{describe_access(confirmation.access)} was not allowed: a person said no."
    return said if _is_for_owner(confirmation) else f"{said} Do not try it again unless the user asks for it."


def _is_for_owner(confirmation: PendingConfirmation) -> bool:
    """Whether a person reads the refusal: the owner, who called by a command."""
    process = confirmation.context.process
    return process is not None and process.is_command


def is_equal(access: AccessRequest, other: AccessRequest) -> bool:
    """Whether they are equal but for their sessions."""
    return access.retry == other.retry and structs.replace(access.subject, session=None) == structs.replace(
        other.subject, session=None
    )


def _key(access: AccessRequest) -> Hashable:
    return access.subject, access.retry


def _caller_of(access: AccessRequest) -> Hashable:
    """Sessions of one token count as one caller; otherwise two of them could take every place of a server."""
    caller, session = access.subject.caller, access.subject.session
    return (None, session) if caller is None else caller


def _form_answer(said: Mapping[str, Raw], confirmation: PendingConfirmation) -> ConfirmationAnswer | None:
    """The answer in a client's result. None if its user gave none: many clients cancel forms by themselves, or accept
    them as they are, without the choice that the form requires.

    Raises:
        ValueError, KeyError: the result is malformed.
    """
    action = string(said["action"])
    if action == "decline":
        return ConfirmationAnswer.DENY
    content = members(said.get("content", Raw(b"{}")))
    choice = string(content.get("answer", Raw(b'""'))) if action == "accept" else ""
    return ConfirmationAnswer(choice) if choice in dict(_form_choices(confirmation)) else None


def _form_choices(confirmation: PendingConfirmation) -> list[tuple[str, str]]:
    """The answers that a client's form offers, each with its text."""
    choices = [("deny", "No"), ("once", "Yes, this once")]
    if confirmation.access.subject.session is not None:
        choices.append(("session", "Yes, with these arguments, for this session"))
    return choices


def _elicitation_params(confirmation: PendingConfirmation) -> dict[str, Raw]:
    """The confirmation as a form for the client (2025-11-25, "Elicitation"), with Colonnade's own text first."""
    access = confirmation.access
    sent = visible(confirmation.context.raw_arguments.decode(errors="replace"), lines=True)
    if confirmation.context.others:
        sent += (
            f"\nand beside the arguments:\n{visible(confirmation.context.others.decode(errors='replace'), lines=True)}"
        )
    message = (
        f"Colonnade asks: may this be done?\n{describe_access(access)} "
        f"(a server that is {confirmation.context.trust.value}) "
        f"would be called{_through(confirmation.context)} with:\n{sent}"
    )
    choices = _form_choices(confirmation)
    answer = {
        "type": "string",
        "title": "Answer",
        "enum": [value for value, _ in choices],
        "enumNames": [title for _, title in choices],
    }
    schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    return {"message": encode(message), "requestedSchema": encode(schema)}
