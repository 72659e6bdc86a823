"""The office, as both ways to it see it: what can be seen, what may be asked of it, and how one hears of what changes.

A request is a JSON object that is taken whole or not at all: the classes here say what may stand in it, and anything
else is `MalformedRequest`. Not one of them names a program, an argument of one, an environment or a directory: what
runs is for the configuration file alone to say.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import trio
from msgspec import Meta, Struct

from config import Channel
from host.jsonrpc.raw import DECODE_ERRORS
from host.slices import Steps
from host.wire.descent import PeerProcess

MAX_REQUEST = 64 * 1024
"""Bytes of a request."""
MAX_GRANT_SECONDS = 31 * 24 * 3600
"""Seconds that an answer "for a time" may hold; "always" is another answer."""
COALESCE_DELAY = 0.1
"""Seconds between two looks at what changed: what changes together is told together."""

T = TypeVar("T")

AdminState = Mapping[str, Any]
"""What the office shows: a list for each section, and a few words of the host."""
AdminResult = Mapping[str, Any]
"""What came of a request, as JSON."""


class AdminError(Exception):
    """What was asked cannot be done (any more); the text is one sentence for the person who asked."""


class MalformedRequest(Exception):
    """The request is none that is known here; the text is one sentence."""


class DecisionApi(Protocol):
    """What a person can decide. All of these raise AdminError, and are steps, since decisions are stored."""

    def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Steps[AdminResult]: ...

    def decide(
        self, server: str, kind: str, name: str, fingerprint: str, decision: str, channel: Channel
    ) -> Steps[AdminResult]: ...

    def decide_all(
        self, server: str, fingerprints: list[str], decision: str, channel: Channel
    ) -> Steps[AdminResult]: ...

    def revoke(self, grant: str, channel: Channel) -> Steps[AdminResult]: ...

    def explain(self, server: str, kind: str, name: str, arguments: dict[str, Any] | None) -> Steps[AdminResult]: ...


class AdminApi(DecisionApi, Protocol):
    """What a person can see and do where a host runs. `console_url` raises AdminError."""

    async def state(self, sections: Collection[str] | None = None) -> AdminState:
        """What the sections of these names show, and a few words of the host; None: all sections."""

    async def run_steps(self, steps: Steps[T]) -> T:
        """Do the work to its end."""

    def hello(self) -> AdminState:
        """Who this is: `colonnade` (its version), `config`, `pid`, `stdio` and `endpoint`."""

    def versions(self) -> Mapping[str, int]:
        """A number for each section of `state` that grows with every change."""

    async def wait_changed(self, since: Mapping[str, int]) -> Mapping[str, int]:
        """Wait until a section is newer than that; the version then."""

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        """For the block, somebody is there who can answer."""

    def attributed_to(self, peer: PeerProcess, steps: Steps[T]) -> Steps[T]:
        """These steps, which carry out what this process sent: it is recorded with what they decide."""

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int) -> None:
        """A process that may not decide wanted to, and so did `unrecorded` more since the last call."""

    def console_url(self) -> str:
        """The address of the web console, with a code that opens it once."""


LongText = Annotated[str, Meta(max_length=8192)]
ShortText = Annotated[str, Meta(max_length=128)]


class AdminRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that is asked of the office."""

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        """Raises AdminError."""
        raise NotImplementedError


class AnswerRequest(AdminRequest, frozen=True, forbid_unknown_fields=True):
    """The answer to a question. `arguments` says which arguments a lasting one is for: exactly those that were shown,
    any, or those that fit the conditions given, in the words of the file."""

    id: ShortText
    answer: Literal["deny", "once", "session", "time", "always"]
    seconds: Annotated[int, Meta(ge=1, le=MAX_GRANT_SECONDS)] | None = None
    arguments: Literal["exact", "any"] | dict[str, Any] = "exact"

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        if (self.answer == "time") != (self.seconds is not None):
            raise MalformedRequest('"seconds" goes with the answer "time", and with no other')
        return api.answer(self.id, self.answer, self.seconds, self.arguments, channel)


class DecideRequest(AdminRequest, frozen=True, forbid_unknown_fields=True):
    """What becomes of one definition; `fingerprint` is of the one that was shown."""

    server: ShortText
    kind: ShortText
    name: LongText
    fingerprint: ShortText
    decision: Literal["approve", "reject", "revoke"]

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        return api.decide(self.server, self.kind, self.name, self.fingerprint, self.decision, channel)


class DecideAllRequest(AdminRequest, frozen=True, forbid_unknown_fields=True):
    """The same for all definitions of one server that were shown."""

    server: ShortText
    fingerprints: Annotated[list[ShortText], Meta(min_length=1)]
    decision: Literal["approve", "reject"] = "approve"

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        return api.decide_all(self.server, self.fingerprints, self.decision, channel)


class RevokeRequest(AdminRequest, frozen=True, forbid_unknown_fields=True):
    """An answer that was given is taken back."""

    id: ShortText

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        return api.revoke(self.id, channel)


class ExplainRequest(AdminRequest, frozen=True, forbid_unknown_fields=True):
    """What would become of a call, and why. Changes nothing."""

    server: ShortText
    kind: ShortText
    name: LongText
    arguments: dict[str, Any] | None = None

    def carry_out(self, api: DecisionApi, channel: Channel) -> Steps[AdminResult]:
        return api.explain(self.server, self.kind, self.name, self.arguments)


REQUESTS: Mapping[str, type[AdminRequest]] = {
    "answer": AnswerRequest,
    "decide": DecideRequest,
    "decide_all": DecideAllRequest,
    "revoke": RevokeRequest,
    "explain": ExplainRequest,
}
"""Everything that can be asked by name, at either way in."""


def carry_out(api: DecisionApi, verb: str, data: bytes, channel: Channel) -> Steps[AdminResult]:
    """Do what a request says. `verb` is one of REQUESTS, `data` the JSON of what it takes.

    Raises:
        MalformedRequest: it is no such request.
        AdminError: it cannot be done.
    """
    try:
        request = msgspec.json.decode(data, type=REQUESTS[verb])
    except DECODE_ERRORS as problem:
        raise MalformedRequest(f"this is no {verb} request that is known here") from problem
    return request.carry_out(api, channel)


class StateFeed:
    """What one onlooker hears: everything first, then the sections that changed."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api
        self._seen: dict[str, int] | None = None

    async def next(self) -> AdminState:
        """Wait for news. What comes while nobody waits is told at the next call; cancelled, nothing is lost."""
        if self._seen is None:
            await trio.lowlevel.checkpoint()
            seen = dict(self._api.versions())
            full_state = await self._api.state()
            self._seen = seen
            return full_state
        await trio.sleep(COALESCE_DELAY)
        versions = dict(await self._api.wait_changed(self._seen))
        sections = [section for section in versions if versions[section] != self._seen.get(section)]
        state = await self._api.state(sections)
        self._seen = versions
        return {section: state[section] for section in sections}


def encode(value: object) -> bytes:
    """As one line of JSON. Text that is not Unicode (half a surrogate pair) goes out as an escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()
