"""The `initialize` handshake of the legacy revisions, both sides of it, as pure functions.

Source: 2025-11-25, "Lifecycle / Initialization"; the earlier revisions differ only in members that are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.raw import encode, is_object, members, string, value
from host.protocol.abilities import Abilities, abilities_of
from host.protocol.methods import COMPLETION_CAPABILITY, LISTINGS, Kind
from host.protocol.versions import LATEST_LEGACY, LEGACY, Revision, settled_with

LOGGING_CAPABILITY = "logging"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a client said in `initialize`."""

    revision: Revision
    """What was settled, not what was asked for."""
    client: str
    """Name and version as the client gives them: for logs only, never a ground for trust."""
    abilities: Abilities
    """What revision and capabilities come to."""


@dataclass(frozen=True, slots=True)
class ServerOffer:
    """What a server said in its answer to `initialize`."""

    revision: Revision
    capabilities: frozenset[str]
    instructions: str | None
    server: str
    """Name and version as the server gives them: a claim, shown to people, never a ground for trust."""
    subscribes: bool
    """Whether it tells of changes to a single resource, if asked to."""

    def offers(self, kind: Kind) -> bool:
        return LISTINGS[kind].capability in self.capabilities

    @property
    def completes(self) -> bool:
        # 2024-11-05 has the method but no way to declare it: it is tried, and -32601 means no.
        return COMPLETION_CAPABILITY in self.capabilities or not self.revision.has_completions_capability

    @property
    def logs(self) -> bool:
        return LOGGING_CAPABILITY in self.capabilities


class WrongRevision(ValueError):
    """The server answered with a revision that Colonnade does not speak."""


def opening(params: Raw | None) -> Opening:
    """What the client's `initialize` asks for.

    Raises:
        InvalidParams: `protocolVersion` is missing or no string, or `capabilities` or `clientInfo` is no object.
    """
    try:
        found = members(params or b"")
        asked = string(found["protocolVersion"])
    except (ValueError, KeyError):
        raise InvalidParams("initialize needs an object with a protocolVersion") from None
    capabilities = found.get("capabilities", Raw(b"{}"))
    if not is_object(capabilities):
        raise InvalidParams("capabilities is not an object")
    info = found.get("clientInfo", Raw(b"{}"))
    if not is_object(info):
        raise InvalidParams("clientInfo is not an object")
    revision = settled_with(asked)
    return Opening(revision, _who(info), abilities_of(revision, capabilities))


def opening_answer(settled: Revision, version: str, instructions: str | None) -> Raw:
    """The result of `initialize` that a client gets. Capabilities: what Colonnade implements, whoever happens to be up,
    since a client is told them once (an advertised feature with an empty list is lawful)."""
    capabilities: dict[str, object] = {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        LOGGING_CAPABILITY: {},
    }
    if settled.has_completions_capability:
        capabilities[COMPLETION_CAPABILITY] = {}
    answer: dict[str, object] = {
        "protocolVersion": settled.name,
        "capabilities": capabilities,
        "serverInfo": {"name": "colonnade", "title": "Colonnade", "version": version},
    }
    if instructions:
        answer["instructions"] = instructions
    return encode(answer)


def declared(askable: Abilities, *, roots_change: bool) -> dict[str, object]:
    """The capabilities that Colonnade declares to a server: what whoever is behind it may be asked for. For a server
    that several clients share that is the most that any of them may be; what the one that is then meant can is decided
    for each question (`questions.fit`).

    Tasks are never declared, nor `sampling.context`: "this server" would mean all servers to the client.

    Args:
        roots_change: the server will be told when the roots do.
    """
    asks: dict[str, object] = {}
    if askable.roots:
        asks["roots"] = {"listChanged": True} if roots_change else {}
    if askable.form or askable.url:
        asks["elicitation"] = ({"form": {}} if askable.form else {}) | ({"url": {}} if askable.url else {})
    if askable.sampling:
        asks["sampling"] = {"tools": {}} if askable.sampling_tools else {}
    return asks


def greeting(version: str, asks: Mapping[str, object] | None = None) -> Raw:
    """The params of the `initialize` that Colonnade sends to a server: the latest revision, and `asks` (see `declared`)
    as the capabilities; none at all without it."""
    return encode(
        {
            "protocolVersion": LATEST_LEGACY.name,
            "capabilities": dict(asks or {}),
            "clientInfo": {"name": "colonnade", "title": "Colonnade", "version": version},
        }
    )


def offer(result: Raw) -> ServerOffer:
    """What the server answered.

    Raises:
        WrongRevision: it settled on a revision that Colonnade does not speak.
        ValueError: the result is not what `initialize` must be answered with.
    """
    found = members(result)
    if "protocolVersion" not in found:
        raise ValueError("the answer to initialize has no protocolVersion")
    version = string(found["protocolVersion"])
    if version not in LEGACY:
        raise WrongRevision(version[:40])
    capabilities = {
        name: each for name, each in members(found.get("capabilities", Raw(b"{}"))).items() if is_object(each)
    }
    return ServerOffer(
        LEGACY[version],
        frozenset(capabilities),
        _text(found.get("instructions", Raw(b"null"))),
        _who(found.get("serverInfo", Raw(b"{}"))),
        _is_true(capabilities.get("resources", Raw(b"{}")), "subscribe"),
    )


def _is_true(capability: Raw, name: str) -> bool:
    return bytes(members(capability).get(name, b"")).strip() == b"true"


def _text(raw: Raw) -> str | None:
    """What it says there, if it says anything that can be passed on: a server is not turned away for its prose."""
    try:
        return string(raw)
    except ValueError:
        return None


def _who(info: Raw) -> str:
    try:
        said = members(info)
        parts = [value(said[name]) for name in ("name", "version") if name in said]
    except ValueError:
        return ""
    return " ".join(part[:80] for part in parts if isinstance(part, str))
