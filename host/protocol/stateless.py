"""The revision without a handshake: what every request says of itself, and what every result carries. Both sides.

Inside Colonnade a result has the form that a server of a handshake would give it. What a stateless client needs besides
is put on at the face (`complete_result`, `with_server_info`), and taken off where a stateless server is asked
(`strip_hop_fields`).

Source: 2026-07-28, "General fields / _meta", "Versioning", "Discovery" and "Caching".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import encode, encode_object, is_object, items, may_contain_word, members, string, value
from host.protocol.abilities import APPS_EXTENSION, TASKS_EXTENSION, Abilities, abilities_of
from host.protocol.identity import implementation_info
from host.protocol.log_levels import level_of
from host.protocol.meta import HOP_PREFIX, META, PROGRESS_TOKEN, end_to_end_fields
from host.protocol.methods import (
    COMPLETION_CAPABILITY,
    DISCOVER,
    LIST_METHOD_BY_NAME,
    LOGGING_CAPABILITY,
    RESOURCES_READ,
)
from host.protocol.negotiated import NegotiatedServer, negotiated_server
from host.protocol.versions import MODERN, SERVED, Revision, unsupported_version

VERSION = f"{HOP_PREFIX}protocolVersion"
CAPABILITIES = f"{HOP_PREFIX}clientCapabilities"
CLIENT = f"{HOP_PREFIX}clientInfo"
LEVEL = f"{HOP_PREFIX}logLevel"
SERVER = f"{HOP_PREFIX}serverInfo"

_HOP_MEMBERS = frozenset({VERSION, CAPABILITIES, CLIENT, LEVEL, SERVER})

RESULT_TYPE = "resultType"
COMPLETE = "complete"
INPUT_REQUIRED = "input_required"
"""The result asks for more (`mrtr`)."""
TASK = "task"
"""The result is a task (`tasks`)."""
TTL = "ttlMs"
SCOPE = "cacheScope"

_HINTS = frozenset({RESULT_TYPE, TTL, SCOPE})

CACHEABLE = frozenset({DISCOVER, RESOURCES_READ.name, *LIST_METHOD_BY_NAME})
"""The methods whose results say how long they stay true, and for whom."""

MAX_TTL = 2**53 - 1
"""Milliseconds: the largest number that every JSON reader has exactly."""


# What a request says of itself


@dataclass(frozen=True, slots=True)
class StatedEnvelope:
    """What a request says in its `_meta`, and nothing is judged yet."""

    version: str
    capabilities: Raw
    level: Raw | None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What that comes to."""

    abilities: Abilities
    level: str | None
    """The least severe log message that the request wants to hear of; None for none at all."""


def has_envelope(params: Raw | Mapping[str, Raw] | None) -> bool:
    """Whether a request says of which revision it is, rightly or wrongly. Never raises."""
    return _version_in(params) is not None


def version_of(params: Raw | Mapping[str, Raw] | None) -> str | None:
    """The revision that a request says it is of; None if it says none, or in no text. Never raises."""
    try:
        return string(_version_in(params) or b"")
    except ValueError:
        return None


def read_stated(params: Mapping[str, Raw]) -> StatedEnvelope:
    """What a request says of itself.

    Raises:
        InvalidParams: it lacks the revision or the capabilities, or one is of the wrong type.
    """
    if META not in params:
        raise InvalidParams(f"a request needs {META} with {VERSION} and {CAPABILITIES}; served are {', '.join(SERVED)}")
    try:
        meta = members(params[META])
    except ValueError:
        raise InvalidParams(f"{META} is not an object") from None
    for name in (VERSION, CAPABILITIES):
        if name not in meta:
            raise InvalidParams(f"{META} needs {name}; served are {', '.join(SERVED)}")
    try:
        version = string(meta[VERSION])
    except ValueError:
        raise InvalidParams(f"{VERSION} is not a string") from None
    if not is_object(meta[CAPABILITIES]):
        raise InvalidParams(f"{CAPABILITIES} is not an object")
    return StatedEnvelope(version, meta[CAPABILITIES], meta.get(LEVEL))


def envelope(found: StatedEnvelope) -> Envelope:
    """What the statement of a request comes to.

    Raises:
        UnsupportedVersion: it is of a revision that is not served without a handshake.
        InvalidParams: it wants log messages of a level that there is not.
    """
    revision = MODERN.get(found.version)
    if revision is None:
        raise unsupported_version(found.version)
    level = None if found.level is None else level_of({"level": found.level})
    return Envelope(abilities_of(revision, found.capabilities), level)


def with_envelope(
    params: dict[str, Raw],
    revision: Revision,
    capabilities: Mapping[str, object],
    *,
    level: str | None,
    client_version: str,
    token: Id | None,
) -> dict[str, Raw]:
    """The same params as a stateless server must get them: they say what we say of the request, and nothing of the hop
    they came on.

    Args:
        capabilities: what may be asked for while this one request is answered (`handshake.client_capabilities`).
        level: the least severe log message that is wanted.
        token: the one we want progress under.

    Raises:
        InvalidParams: `_meta` is no object.
    """
    meta: dict[str, object] = {
        VERSION: revision.name,
        CAPABILITIES: capabilities,
        CLIENT: implementation_info(client_version),
    }
    if level is not None:
        meta[LEVEL] = level
    if token is not None:
        meta[PROGRESS_TOKEN] = token
    ours = {name: encode(each) for name, each in meta.items()}
    return {**params, META: encode_object({**ours, **end_to_end_fields(params)})}


_VERSION_WORD = VERSION.rpartition("/")[2]
"""The part of the name whose letters have few spellings: long texts are opened for nothing if a slash is looked for."""


def _version_in(params: Raw | Mapping[str, Raw] | None) -> Raw | None:
    try:
        if isinstance(params, Raw):
            if not may_contain_word(params, _VERSION_WORD):
                return None
            params = members(params)
        meta = (params or {}).get(META)
        return members(meta).get(VERSION) if meta is not None and may_contain_word(meta, _VERSION_WORD) else None
    except ValueError:
        return None


# How long a result stays true


@dataclass(frozen=True, slots=True)
class Freshness:
    """How long a result may be used, in milliseconds, and whether for anybody or only for who got it."""

    ttl_ms: int
    public: bool


STALE = Freshness(0, public=False)


def freshness_of(result: Raw) -> Freshness:
    """What a server says of its result. What it says wrongly, or not at all, is taken the careful way. Never raises."""
    try:
        found = members(result)
    except ValueError:
        return STALE
    ttl = _value(found, TTL)
    return Freshness(min(max(ttl, 0), MAX_TTL) if type(ttl) is int else 0, _value(found, SCOPE) == "public")


def common_freshness(parts: Iterable[Freshness]) -> Freshness:
    """What holds of a result that is made of several; STALE if it is made of none."""
    all_parts = tuple(parts)
    if not all_parts:
        return STALE
    return Freshness(min(part.ttl_ms for part in all_parts), all(part.public for part in all_parts))


def _value(found: Mapping[str, Raw], name: str) -> object:
    try:
        return value(found[name])
    except (KeyError, ValueError):
        return None


# What a result carries


def complete_result(method: str, result: Raw, version: str, freshness: Freshness = STALE) -> Raw:
    """The result of `method`, an object in the form of the inside, for a stateless client.

    Args:
        version: Colonnade's own.
        freshness: said only where the method has such a thing.

    Raises:
        ValueError: it is no object, or nested too deep to be opened.
    """
    return _insert_head(_head(freshness if method in CACHEABLE else None, version), result)


def with_server_info(result: Raw, version: str) -> Raw:
    """The same result, an object that says itself of what kind it is, with our name on it.

    Raises:
        ValueError: it is no object, or nested too deep to be opened.
    """
    return _insert_head(_server_info_head(version), result)


def result_type_of(result: Raw) -> str:
    """Of what kind a server's result is: "complete" unless it says something else, empty if that is no text. Never
    raises."""
    try:
        said = members(result).get(RESULT_TYPE)
    except ValueError:
        return COMPLETE
    try:
        return COMPLETE if said is None else string(said)
    except ValueError:
        return ""


def strip_hop_fields(result: Raw) -> Raw:
    """A server's complete result, an object, in the form of the inside: without what belongs to one hop. Not for tasks,
    whose `ttlMs` is their own. Itself if it has nothing of that, or cannot be opened."""
    try:
        whole = members(result)
    except ValueError:
        return result
    if META not in whole and _HINTS.isdisjoint(whole):
        return result
    found = {name: each for name, each in whole.items() if name not in _HINTS}
    meta = found.get(META)
    if meta is not None and is_object(meta) and may_contain_word(meta, HOP_PREFIX):
        kept = {name: each for name, each in members(meta).items() if name not in _HOP_MEMBERS}
        if kept:
            found[META] = encode_object(kept)
        else:
            del found[META]
    return encode_object(found)


class _Head:
    """Members that every result of one sort begins with. There are few sorts, so they are written once."""

    def __init__(self, found: Mapping[str, object], version: str) -> None:
        self.found = {name: encode(each) for name, each in found.items()}
        self.stamp = encode(implementation_info(version))
        self.names = frozenset((*found, META))
        self.text = bytes(encode_object({**self.found, META: encode_object({SERVER: self.stamp})}))[:-1]


@lru_cache(maxsize=64)
def _head(freshness: Freshness | None, version: str) -> _Head:
    found: dict[str, object] = {RESULT_TYPE: COMPLETE}
    if freshness is not None:
        found |= {TTL: freshness.ttl_ms, SCOPE: "public" if freshness.public else "private"}
    return _Head(found, version)


@lru_cache(maxsize=1)
def _server_info_head(version: str) -> _Head:
    return _Head({}, version)


def _insert_head(head: _Head, result: Raw) -> Raw:
    """The result behind the members of `head`, which replace its own of the same names; of `_meta` only our stamp is
    replaced."""
    found = members(result)
    if head.names.isdisjoint(found):
        rest = bytes(result).strip()[1:].lstrip()
        return Raw(b"".join((head.text, b"," if found else b"", rest)))
    meta = {**_members_or_none(found.get(META)), SERVER: head.stamp}
    kept = {name: each for name, each in found.items() if name not in head.found and name != META}
    return encode_object({**head.found, META: encode_object(meta), **kept})


def _members_or_none(meta: Raw | None) -> dict[str, Raw]:
    try:
        return members(meta or b"")
    except ValueError:
        return {}


# What a server is


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a server answered to `server/discover`."""

    negotiated: NegotiatedServer | None
    """In the newest stateless revision that it shares with us; None if it shares none."""
    versions: tuple[str, ...]
    """All that it says it speaks."""


def discover_result(version: str, instructions: str | None) -> Raw:
    """The result of `server/discover` that a client gets, with our name on it; `complete_result` does the rest. It is
    the same whoever happens to be up.

    Args:
        version: Colonnade's own.
    """
    capabilities: dict[str, object] = {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        LOGGING_CAPABILITY: {},
        COMPLETION_CAPABILITY: {},
        "extensions": {TASKS_EXTENSION: {}, APPS_EXTENSION: {}},
    }
    answer: dict[str, object] = {"supportedVersions": SERVED, "capabilities": capabilities}
    if instructions:
        answer["instructions"] = instructions
    return with_server_info(encode(answer), version)


def discover_params(revision: Revision, capabilities: Mapping[str, object], client_version: str) -> dict[str, Raw]:
    """The params of the `server/discover` that Colonnade sends."""
    return with_envelope({}, revision, capabilities, level=None, client_version=client_version, token=None)


def read_discovery(result: Raw) -> Discovery:
    """What the server answered.

    Raises:
        ValueError: the result is not what `server/discover` must be answered with.
    """
    found = members(result)
    try:
        versions = tuple(string(each) for each in items(found["supportedVersions"]))
        capabilities = found["capabilities"]
    except KeyError as missing:
        raise ValueError(f"the answer to {DISCOVER} has no {missing.args[0]}") from None
    if result_type_of(result) != COMPLETE:
        raise ValueError(f"the answer to {DISCOVER} is not complete")
    shared = next((MODERN[name] for name in SERVED if name in MODERN and name in versions), None)
    if shared is None:
        return Discovery(None, versions)
    server = _members_or_none(found.get(META)).get(SERVER)
    return Discovery(negotiated_server(shared, capabilities, found.get("instructions"), server), versions)
