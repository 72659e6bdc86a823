"""The office, as both ways to it see it: what can be seen, what may be asked of it, and how one hears of what changes.

A request is a JSON object that is taken whole or not at all: the classes here say what may stand in it, and anything
else is `Malformed`. Not one of them names a program, an argument of one, an environment or a directory: what runs is
for the configuration file alone to say.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal, Protocol

import msgspec
import trio
from msgspec import Meta, Struct

from config import Channel
from host.jsonrpc.raw import REFUSALS
from host.wire.descent import Peer

MAX_REQUEST = 64 * 1024
"""Bytes of a request."""
LONGEST_GRANT = 31 * 24 * 3600
"""Seconds that an answer "for a time" may hold; "always" is another answer."""
SETTLE = 0.1
"""Seconds between two looks at what changed: what changes together is told together."""

State = Mapping[str, Any]
"""What the office shows: a list for each section, and a few words of the host."""
Done = Mapping[str, Any]
"""What came of a request, as JSON."""


class OfficeError(Exception):
    """What was asked cannot be done (any more); the text is one sentence for the person who asked."""


class Malformed(Exception):
    """The request is none that is known here; the text is one sentence."""


class Decider(Protocol):
    """What a person can decide. All of these raise OfficeError."""

    def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Done: ...

    def decide(self, server: str, kind: str, name: str, fingerprint: str, decision: str, channel: Channel) -> Done: ...

    def decide_all(self, server: str, fingerprints: list[str], decision: str, channel: Channel) -> Done: ...

    def revoke(self, grant: str, channel: Channel) -> Done: ...

    def explain(self, server: str, kind: str, name: str, arguments: dict[str, Any] | None) -> Done: ...


class Office(Decider, Protocol):
    """What a person can see and do where a host runs. `link` raises OfficeError."""

    async def state(self, sections: Collection[str] | None = None) -> State:
        """What the sections of these names show, and a few words of the host; None: all sections."""

    def hello(self) -> State:
        """Who this is: `colonnade` (its version), `config`, `pid`, `stdio` and `endpoint`."""

    def version(self) -> Mapping[str, int]:
        """A number for each section of `state` that grows with every change."""

    async def changed(self, since: Mapping[str, int]) -> Mapping[str, int]:
        """Wait until a section is newer than that; the version then."""

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        """For the block, somebody is there who can answer."""

    def naming(self, peer: Peer) -> AbstractContextManager[object]:
        """For the block, which must not wait: what is decided was sent by this process, and is recorded with it."""

    def refused(self, peer: Peer, why: str, unrecorded: int) -> None:
        """A process that may not decide wanted to, and so did `unrecorded` more since the last call."""

    def link(self) -> str:
        """The address of the web console, with a code that opens it once."""


Text = Annotated[str, Meta(max_length=8192)]
Word = Annotated[str, Meta(max_length=128)]


class Request(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that is asked of the office."""

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        """Raises OfficeError."""
        raise NotImplementedError


class Answer(Request, frozen=True, forbid_unknown_fields=True):
    """The answer to a question. `arguments` says which arguments a lasting one is for: exactly those that were shown,
    any, or those that fit the conditions given, in the words of the file."""

    id: Word
    answer: Literal["deny", "once", "session", "time", "always"]
    seconds: Annotated[int, Meta(ge=1, le=LONGEST_GRANT)] | None = None
    arguments: Literal["exact", "any"] | dict[str, Any] = "exact"

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        if (self.answer == "time") != (self.seconds is not None):
            raise Malformed('"seconds" goes with the answer "time", and with no other')
        return office.answer(self.id, self.answer, self.seconds, self.arguments, channel)


class Decide(Request, frozen=True, forbid_unknown_fields=True):
    """What becomes of one definition; `fingerprint` is of the one that was shown."""

    server: Word
    kind: Word
    name: Text
    fingerprint: Word
    decision: Literal["approve", "reject", "revoke"]

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        return office.decide(self.server, self.kind, self.name, self.fingerprint, self.decision, channel)


class DecideAll(Request, frozen=True, forbid_unknown_fields=True):
    """The same for all definitions of one server that were shown."""

    server: Word
    fingerprints: Annotated[list[Word], Meta(min_length=1)]
    decision: Literal["approve", "reject"] = "approve"

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        return office.decide_all(self.server, self.fingerprints, self.decision, channel)


class Revoke(Request, frozen=True, forbid_unknown_fields=True):
    """An answer that was given is taken back."""

    id: Word

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        return office.revoke(self.id, channel)


class Explain(Request, frozen=True, forbid_unknown_fields=True):
    """What would become of a call, and why. Changes nothing."""

    server: Word
    kind: Word
    name: Text
    arguments: dict[str, Any] | None = None

    def carry_out(self, office: Decider, channel: Channel) -> Done:
        return office.explain(self.server, self.kind, self.name, self.arguments)


REQUESTS: Mapping[str, type[Request]] = {
    "answer": Answer,
    "decide": Decide,
    "decide_all": DecideAll,
    "revoke": Revoke,
    "explain": Explain,
}
"""Everything that can be asked by name, at either way in."""


def carry_out(office: Decider, verb: str, data: bytes, channel: Channel) -> Done:
    """Do what a request says. `verb` is one of REQUESTS, `data` the JSON of what it takes.

    Raises:
        Malformed: it is no such request.
        OfficeError: it cannot be done.
    """
    try:
        request = msgspec.json.decode(data, type=REQUESTS[verb])
    except REFUSALS as problem:
        raise Malformed(f"this is no {verb} request that is known here") from problem
    return request.carry_out(office, channel)


class Feed:
    """What one onlooker hears: everything first, then the sections that changed."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._seen: dict[str, int] | None = None

    async def next(self) -> State:
        """Wait for news. What comes while nobody waits is told at the next call; cancelled, nothing is lost."""
        if self._seen is None:
            await trio.lowlevel.checkpoint()
            seen = dict(self._office.version())
            everything = await self._office.state()
            self._seen = seen
            return everything
        await trio.sleep(SETTLE)
        now = dict(await self._office.changed(self._seen))
        sections = [section for section in now if now[section] != self._seen.get(section)]
        state = await self._office.state(sections)
        self._seen = now
        return {section: state[section] for section in sections}


def encode(value: object) -> bytes:
    """As one line of JSON. Text that is not Unicode (half a surrogate pair) goes out as an escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()
