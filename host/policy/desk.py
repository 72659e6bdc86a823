"""The desk: what waits for a person. A call that its rule says to ask about lies here until somebody answers, its time
is over, or it is called off; then it is refused, and stays to be looked at, so that the next one like it may pass.

A question is bound to the whole of its wish: caller, server, definition, launch, rule and arguments. Equal ones are
one, with several calls waiting. Allowing once lets the one go that waits longest; any other answer is for all of them.
What comes of an answer is a grant, and grants are spent elsewhere: nothing that is done here lets a request through.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

import trio
from msgspec import Raw

from config import AskSpec, Channel, Condition, Trust
from host.asking import BrokenAnswer, PeerError
from host.errors import AuditUnavailable, Changed, Crowded, Forbidden, Unanswered
from host.exchange import Outlet
from host.hygiene import visible
from host.jsonrpc.raw import encode, members, string
from host.policy.grants import Grant, Grants, Scope, Wish, new_id
from host.protocol.questions import ELICIT
from host.wire.link import LinkLost

MAX_OF_SERVER = 10
MAX_OF_CALLER = 5
"""Questions that may wait at once for one server, and for one caller; a page of questions is read by nobody."""
MAX_REFUSED = 50
REFUSED_LIFE = 3600.0
"""Refused questions that are kept, and for how many seconds; what is granted for the next call lives as long."""
LONGEST_AGREED = 16 * 1024
"""Bytes of arguments that a person can read, and so agree to."""
LONGEST_SHOWN = 8 * 1024
"""Characters of arguments that a client can be shown; what is longer is answered where it can be read in full."""
WHERE = "on the console (`colonnade console` opens it) or with `colonnade ask`"


class Answer(StrEnum):
    """What a person may say."""

    DENY = "deny"
    ONCE = "once"
    SESSION = "session"
    TIME = "time"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class About:
    """What a person is shown of a question, beside its wish. `given` is JSON, as it will be sent."""

    title: str
    trust: Trust
    given: bytes
    claims: tuple[str, ...] = ()
    """What the definition says of itself, which nobody has checked."""


@dataclass(eq=False)
class _Waiter:
    told: trio.Event = field(default_factory=trio.Event)
    grant: Grant | None = None
    refusal: Exception | None = None
    gone: bool = False
    """Its call has the grant."""


@dataclass(eq=False)
class Matter:
    """One question."""

    id: str
    wish: Wish
    about: About
    asked: float
    """Unix seconds."""
    until: float
    """Unix seconds at which it is refused, or dropped if it was refused."""
    waiters: list[_Waiter] = field(default_factory=list)
    refused: str = ""
    """Why it was refused; empty while calls wait."""


class Desk:
    """One for the whole host. `tell` is called with each thing that happens here, in words, for the audit: the name of
    what happened, the matter, and what was said."""

    def __init__(self, grants: Grants, spec: AskSpec, tell: Callable[[str, Matter, dict[str, object]], None]) -> None:
        self.grants = grants
        self.spec = spec
        self._tell = tell
        self._open: dict[Hashable, Matter] = {}
        self._refused: dict[Hashable, Matter] = {}
        self._attached: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self.changed: Callable[[], None] = lambda: None
        """Called whenever what lies here is not what it was."""

    def matters(self) -> list[Matter]:
        """All questions, the waiting ones first, each in the order in which they came."""
        now = time.time()
        for key in [key for key, matter in self._refused.items() if matter.until <= now]:
            del self._refused[key]
        return [*self._open.values(), *self._refused.values()]

    @contextmanager
    def attach(self, channel: Channel) -> Iterator[None]:
        """For the block somebody is there who can answer."""
        self._attached[channel] += 1
        self.changed()
        try:
            yield
        finally:
            self._attached[channel] -= 1
            self.changed()

    def is_attended(self) -> bool:
        """Whether anybody is there whom the configuration lets answer."""
        return any(count and channel in self.spec.answers for channel, count in self._attached.items())

    async def ask(self, wish: Wish, about: About, client: Outlet | None) -> Grant:
        """Wait for a person's answer; the grant that lets this very wish through. Cancelling this withdraws it.

        Args:
            client: the way to the caller, if the configuration lets it answer and it can be asked with a form.

        Raises:
            Forbidden: a person said no.
            Unanswered: nobody did, or nobody is there.
            Changed: what was asked about is no more what it was.
            Crowded: too many questions wait already.
        """
        key = _key(wish)
        matter = self._open.get(key) or self._begin(key, wish, about)
        if client is not None and len(about.given) > LONGEST_SHOWN:
            client = None
        if not self.is_attended() and client is None:
            if not matter.waiters:  # others may have been asked while somebody was there, and wait still
                self._refuse(key, matter, "nobody was there to answer")
            raise self._unanswered(wish, "and nobody is there who could answer")
        waiter = _Waiter()
        matter.waiters.append(waiter)
        matter.until = time.time() + self.spec.timeout
        self.changed()
        try:
            with trio.move_on_after(self.spec.timeout):
                await self._answered(waiter, matter, client)
            if waiter.refusal is not None:
                raise waiter.refusal
            if waiter.grant is None:
                raise self._late(key, matter, waiter)
            waiter.gone = True
            return waiter.grant
        finally:
            self._leave(key, matter, waiter)

    def answer(
        self,
        id: str,
        answer: Answer,
        channel: Channel,
        *,
        seconds: float | None = None,
        when: tuple[Condition, ...] | None = None,
        exact: bool = True,
    ) -> Matter | None:
        """A person's answer; None if it is of no use: nothing of this id waits, the configuration does not let this
        channel answer, or there is no session that it could be for. `seconds` is how long a grant for a TIME holds. A
        lasting grant is for exactly these arguments, or, if not `exact`, for those that `when` names, or for any."""
        found = next(((key, matter) for key, matter in self._all() if matter.id == id), None)
        if found is None or channel not in self.spec.answers:
            return None
        key, matter = found
        if answer is Answer.DENY:
            self._tell("answer", matter, {"answer": answer.value, "by": channel.value})
            refusal = Forbidden(matter.wish.server, _denied(matter.wish))
            for waiter in matter.waiters:
                waiter.refusal = refusal
                waiter.told.set()
            self._forget(key)
            return matter
        lasting = answer in (Answer.TIME, Answer.ALWAYS)
        if answer is Answer.SESSION and matter.wish.session is None:
            return None
        now = time.time()
        if answer is Answer.TIME:
            expires: float | None = now + (seconds or 0)
        else:
            expires = now + REFUSED_LIFE if answer is Answer.ONCE else None
        wide = answer is not Answer.ONCE and not exact
        grant = Grant(
            id=new_id(),
            caller=matter.wish.caller,
            # What was refused may be tried again in another session of the same caller.
            session=matter.wish.session if answer is Answer.SESSION or (matter.waiters and not lasting) else None,
            server=matter.wish.server,
            kind=matter.wish.kind,
            name=matter.wish.name,
            fingerprint=matter.wish.fingerprint,
            launch=matter.wish.launch,
            rule=matter.wish.rule,
            digest=None if wide else matter.wish.digest,
            when=(when or ()) if wide else (),
            scope=Scope(answer.value),
            made=now,
            expires=expires,
            by=channel.value,
            retry=False,
        )
        # What cannot be written down is not granted: the audit comes first.
        said: dict[str, object] = {
            "answer": answer.value,
            "by": channel.value,
            "grant": grant.id,
            "exact": not wide,
        }
        self._tell("answer", matter, said)
        self.grants.add(grant)
        self._tell("granted", matter, said)
        going = matter.waiters[:1] if answer is Answer.ONCE else list(matter.waiters)
        for waiter in going:
            matter.waiters.remove(waiter)
            waiter.grant = grant
            waiter.told.set()
        if answer is Answer.ONCE and going:
            self.grants.reserve(grant)  # it is for the one that waited; another must not take it meanwhile
        if not matter.waiters:
            self._forget(key)
        self.release_covered()
        self.changed()
        return matter

    def release_covered(self) -> None:
        """Let go what waits and has a grant by now: one that was given for more than the call it was asked about, or in
        another process."""
        for key, matter in list(self._open.items()):
            grant = self.grants.find(matter.wish)
            if grant is None or grant.scope is Scope.ONCE:
                continue
            for waiter in matter.waiters:
                waiter.grant = grant
                waiter.told.set()
            matter.waiters.clear()
            self._forget(key)

    def void(self, holds: Callable[[Wish], bool]) -> None:
        """Drop every question whose wish does not hold any more; whoever waits for one hears that it changed."""
        for key, matter in self._all():
            if not holds(matter.wish):
                self._tell("answer", matter, {"answer": "void"})
                for waiter in matter.waiters:
                    waiter.refusal = changed(matter.wish.server, matter.wish.kind, matter.wish.name)
                    waiter.told.set()
                self._forget(key)

    def end_session(self, session: Hashable) -> None:
        """Whoever had this session is gone: what it waits for is withdrawn, and nothing more can be allowed for it."""
        self.grants.end_session(session)
        for key, matter in list(self._open.items()):
            if matter.wish.session == session:
                self._tell("answer", matter, {"answer": "withdrawn"})
                for waiter in matter.waiters:
                    waiter.refusal = self._unanswered(matter.wish, "and its session has ended")
                    waiter.told.set()
                self._forget(key)
        for matter in self._refused.values():
            if matter.wish.session == session:
                matter.wish = replace(matter.wish, session=None)

    # Within

    def _all(self) -> list[tuple[Hashable, Matter]]:
        self.matters()
        return [*self._open.items(), *self._refused.items()]

    def _begin(self, key: Hashable, wish: Wish, about: About) -> Matter:
        of_server = sum(matter.wish.server == wish.server for matter in self._open.values())
        # All sessions of one token are one caller: otherwise two of them would take every place of a server.
        mine = (None, wish.session) if wish.caller is None else wish.caller
        of_caller = sum(
            mine == ((None, each.wish.session) if each.wish.caller is None else each.wish.caller)
            for each in self._open.values()
        )
        if of_server >= MAX_OF_SERVER or of_caller >= MAX_OF_CALLER:
            text = f"too many questions about {wish.server} wait for a person's answer already; try again later"
            raise Crowded(text, data=encode({"retryAfterMs": int(self.spec.timeout * 1000)}))
        now = time.time()
        former = self._refused.pop(key, None)  # whoever has read its id may still answer under that
        id = secrets.token_hex(4) if former is None else former.id
        matter = Matter(id, wish, about, now, now + self.spec.timeout)
        self._tell("ask", matter, {})
        self._open[key] = matter
        return matter

    async def _answered(self, waiter: _Waiter, matter: Matter, client: Outlet | None) -> None:
        if client is None:
            await waiter.told.wait()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask_client, matter, waiter, client)
            await waiter.told.wait()
            nursery.cancel_scope.cancel("it is answered")

    async def _ask_client(self, matter: Matter, waiter: _Waiter, client: Outlet) -> None:
        """The client's user says yes for once or for the session, or no; anything lasting is for the other channels."""
        try:
            said = members(await client.ask(ELICIT, _form(matter), None))
            action = string(said["action"])
            choice = string(members(said.get("content", Raw(b"{}"))).get("answer", Raw(b'"deny"')))
        except (PeerError, BrokenAnswer, LinkLost, ValueError, KeyError):
            if not self.is_attended():
                waiter.refusal = self._unanswered(matter.wish, "and the client could not be asked")
                waiter.told.set()
            return
        answer = Answer.DENY
        if action == "accept" and (choice == "once" or (choice == "session" and matter.wish.session is not None)):
            answer = Answer(choice)
        if waiter in matter.waiters:
            matter.waiters.remove(waiter)  # its own user's answer is for this call
            matter.waiters.insert(0, waiter)
            try:
                self.answer(matter.id, answer, Channel.CLIENT)
            except AuditUnavailable as problem:
                waiter.refusal = problem
                waiter.told.set()

    def _late(self, key: Hashable, matter: Matter, waiter: _Waiter) -> Unanswered:
        if matter.waiters == [waiter]:
            self._refuse(key, matter, f"nobody answered within {self.spec.timeout:.0f} s")
        return self._unanswered(matter.wish, f"and nobody answered within {self.spec.timeout:.0f} s")

    def _refuse(self, key: Hashable, matter: Matter, why: str) -> None:
        """Nobody waits any more; it stays for whoever wants to let the next one pass."""
        self._tell("answer", matter, {"answer": "none", "why": why})
        self._open.pop(key, None)
        matter.refused, matter.until = why, time.time() + REFUSED_LIFE
        self._refused[key] = matter
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self.changed()

    def _leave(self, key: Hashable, matter: Matter, waiter: _Waiter) -> None:
        if waiter.grant is not None and waiter.grant.scope is Scope.ONCE and not waiter.gone:
            self.grants.revoke(waiter.grant.id)  # the call was called off while the answer was on its way
        if waiter in matter.waiters:
            matter.waiters.remove(waiter)
            if not matter.waiters and self._open.get(key) is matter:  # it was called off, and the question with it
                self._tell("answer", matter, {"answer": "withdrawn"})
                del self._open[key]
            self.changed()

    def _forget(self, key: Hashable) -> None:
        self._open.pop(key, None)
        self._refused.pop(key, None)
        self.changed()

    def _unanswered(self, wish: Wish, why: str) -> Unanswered:
        text = f"{described(wish)} needs a person's consent, {why}. It can be given {WHERE}; then try again."
        return Unanswered(wish.server, text)


def described(wish: Wish) -> str:
    """What is wished, as the beginning of a sentence."""
    if wish.kind in ("sampling", "form", "url", "roots"):
        what = {
            "sampling": "to use the client's model",
            "form": "to have a form filled in",
            "url": "to have a page visited",
            "roots": "to know the client's roots",
        }[wish.kind]
        return f"{wish.server}'s wish {what}"
    return f"The {wish.kind} {visible(wish.name)} of {wish.server}"


def changed(server: str, kind: str, name: str) -> Changed:
    """The refusal of what is not what a person agreed to."""
    text = f"the {kind} {visible(name)[:200]} of {server}, or what is allowed of it, has changed meanwhile; try again"
    return Changed(server, text)


def _denied(wish: Wish) -> str:
    return f"{described(wish)} was not allowed: a person said no. Do not try it again unless the user asks for it."


def _key(wish: Wish) -> Hashable:
    return (
        wish.caller,
        wish.session,
        wish.server,
        wish.kind,
        wish.name,
        wish.fingerprint,
        wish.launch,
        wish.rule,
        wish.digest,
        wish.retry,
    )


def _form(matter: Matter) -> dict[str, Raw]:
    """The question as a client shows it (2025-11-25, "Elicitation"): our own words first."""
    wish = matter.wish
    given = visible(matter.about.given.decode(errors="replace"), lines=True)
    choices = [("deny", "No"), ("once", "Yes, this once")]
    if wish.session is not None:
        choices.append(("session", "Yes, with these arguments, for this session"))
    message = (
        f"Colonnade asks: may this be done?\n{described(wish)} (a server that is {matter.about.trust.value}) "
        f"would be called with:\n{given}"
    )
    answer = {
        "type": "string",
        "title": "Answer",
        "enum": [value for value, _ in choices],
        "enumNames": [title for _, title in choices],
    }
    schema = {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}
    return {"message": encode(message), "requestedSchema": encode(schema)}
