"""The stateless revision: reading and writing the envelope of requests, the additional members of results, and
`server/discover`, for both sides.

Inside Colonnade a result has the form of a handshake revision. The transport adds the members for a stateless client
(`complete_result`, `with_server_info`); those of a stateless server are removed when its result arrives
(`strip_hop_fields`).

Source: 2026-07-28, "General fields / _meta", "Versioning", "Discovery" and "Caching".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cached_property, lru_cache

import msgspec
from msgspec import Raw, Struct, field

from host.errors import InvalidParams
from host.jsonrpc.messages import Id
from host.jsonrpc.raw import (
    DECODE_ERRORS,
    EMPTY_OBJECT,
    encode,
    encode_object,
    is_object,
    items,
    may_contain_word,
    members,
    members_if_object,
    string,
    text_at,
    unless_null,
    value,
)
from host.jsonrpc.twins import fold_name
from host.protocol.abilities import (
    APPS_EXTENSION,
    CACHED_BYTES,
    CACHED_CLIENTS,
    TASKS_EXTENSION,
    Abilities,
    abilities_of,
)
from host.protocol.identity import display_name, implementation_info
from host.protocol.log_levels import level_of
from host.protocol.meta import HOP_PREFIX, META, PROGRESS_TOKEN, end_to_end_fields, unknown_members
from host.protocol.methods import (
    DISCOVER,
    LIST_METHOD_BY_NAME,
    RESOURCES_READ,
)
from host.protocol.negotiated import (
    FIRST_MEMBERS,
    NegotiatedServer,
    declared_capabilities,
    first_members,
    negotiated_server,
)
from host.protocol.versions import MODERN, SERVED, Revision, unsupported_version

VERSION = f"{HOP_PREFIX}protocolVersion"
CAPABILITIES = f"{HOP_PREFIX}clientCapabilities"
CLIENT = f"{HOP_PREFIX}clientInfo"
LEVEL = f"{HOP_PREFIX}logLevel"
SERVER = f"{HOP_PREFIX}serverInfo"

HOP_MEMBERS = frozenset({VERSION, CAPABILITIES, CLIENT, LEVEL, SERVER})
"""The members of `_meta` that belong to one connection."""

RESULT_TYPE = "resultType"
COMPLETE = "complete"
INPUT_REQUIRED = "input_required"
"""Type of a result with input requests (`mrtr`)."""
TASK = "task"
"""Type of a result that is a task (`tasks`)."""
TTL = "ttlMs"
SCOPE = "cacheScope"

_HINTS = frozenset({RESULT_TYPE, TTL, SCOPE})

CACHEABLE = frozenset({DISCOVER, RESOURCES_READ.name, *LIST_METHOD_BY_NAME})
"""The methods whose results have caching hints (2026-07-28, "Caching / Cacheable Results")."""

MAX_TTL = 2**53 - 1
"""Milliseconds: the largest integer that every JSON parser reads exactly."""


# The envelope of a request


class CheckedEnvelope(Struct, frozen=True):
    """Abilities and log level of a stateless request."""

    abilities: Abilities
    level: str | None
    """The least severe log message that is sent for the request; None for no log messages."""
    answers_requests: bool
    """Whether the client can answer any server request."""
    revision: str
    """The name of the revision, for whoever observes the request."""


class StatedEnvelope(Struct, frozen=True, dict=True):
    """The envelope in the `_meta` of a request, before its values are checked."""

    version: str
    capabilities: Raw
    level: Raw | None
    client: str = ""
    """Name and version as the client gives them; empty if it gives none."""

    @cached_property
    def checked(self) -> CheckedEnvelope:
        """The envelope with its values checked, once for all requests that state the same.

        Raises:
            UnsupportedVersion: the revision is not a stateless one that Colonnade supports.
            InvalidParams: the log level does not exist.
        """
        revision = MODERN.get(self.version)
        if revision is None:
            raise unsupported_version(self.version)
        level = None if self.level is None else level_of({"level": self.level})
        abilities = abilities_of(revision, self.capabilities)
        answers_requests = abilities.roots or abilities.sampling or abilities.form or abilities.url
        return CheckedEnvelope(abilities, level, answers_requests, revision.name)


def has_envelope(params: Raw | Mapping[str, Raw] | None) -> bool:
    """Whether the `_meta` of a request names a revision, even an invalid one. Never raises."""
    return _version_in(params) is not None


def version_of(params: Raw | Mapping[str, Raw] | None) -> str | None:
    """The revision that a request names; None if it is missing or not a string. Never raises."""
    found = _version_in(params)
    try:
        return None if found is None else string(found)
    except ValueError:
        return None


def take_stated(params: dict[str, Raw]) -> StatedEnvelope:
    """Take the envelope of a request out of its params. Their `_meta` keeps what is passed on, and the progress token.

    Raises:
        InvalidParams: the revision or the capabilities are missing or of the wrong type.
    """
    if META not in params:
        raise InvalidParams(
            f"a request needs {META} with {VERSION} and {CAPABILITIES}; supported versions: {', '.join(SERVED)}"
        )
    text = bytes(params[META])
    stated, params[META] = _divide(text) if len(text) > CACHED_BYTES else _divide_once(text)
    return stated


def _divide(text: bytes) -> tuple[StatedEnvelope, Raw]:
    """The envelope in the `_meta` of a request, and the rest."""
    try:
        meta = members(text)
    except ValueError:
        raise InvalidParams(f"{META} is not an object") from None
    for name in (VERSION, CAPABILITIES):
        if name not in meta:
            raise InvalidParams(f"{META} needs {name}; supported versions: {', '.join(SERVED)}")
    try:
        version = string(meta[VERSION])
    except ValueError:
        raise InvalidParams(f"{VERSION} is not a string") from None
    if not is_object(meta[CAPABILITIES]):
        raise InvalidParams(f"{CAPABILITIES} is not an object")
    kept = {name: each for name, each in meta.items() if not name.startswith(HOP_PREFIX)}
    level = unless_null(meta.get(LEVEL))  # as for the Python SDK's server
    stated = StatedEnvelope(version, meta[CAPABILITIES], level, display_name(meta.get(CLIENT)))
    return stated, encode_object(kept)


_divide_once = lru_cache(maxsize=CACHED_CLIENTS)(_divide)


def with_envelope(
    params: dict[str, Raw],
    revision: Revision,
    capabilities: Mapping[str, object],
    *,
    level: str | None,
    client_version: str,
    token: Id | None,
) -> dict[str, Raw]:
    """The params of a request to a stateless server: with its envelope instead of the members of `_meta` that belong to
    the client's connection.

    Args:
        capabilities: client capabilities for this one request (`handshake.client_capabilities`).
        level: the least severe log message that is wanted.
        client_version: Colonnade's own version.
        token: the progress token, if progress is wanted.

    Raises:
        InvalidParams: `_meta` is not an object.
    """
    envelope = _own_envelope(revision.name, client_version, bytes(encode(capabilities)))
    rest: dict[str, Raw] = {}
    if level is not None:
        rest[LEVEL] = encode(level)
    if token is not None:
        rest[PROGRESS_TOKEN] = encode(token)
    if params.get(META, EMPTY_OBJECT) != EMPTY_OBJECT:
        rest |= end_to_end_fields(params)
    if rest:
        envelope = Raw(bytes(envelope)[:-1] + b"," + bytes(encode_object(rest))[1:])
    return {**params, META: envelope}


@lru_cache(maxsize=64)
def _own_envelope(version: str, client_version: str, capabilities: bytes) -> Raw:
    """The envelope with what nearly all requests have alone, encoded once."""
    own = {VERSION: version, CLIENT: implementation_info(client_version), CAPABILITIES: Raw(capabilities)}
    return encode(own)


_VERSION_WORD = VERSION.rpartition("/")[2]
"""Last part of the key. Without the slash, which PHP writes as an escape, fewer long texts have to be decoded to find
the key (`may_contain_word`)."""


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


# Caching hints of a result


class Freshness(Struct, frozen=True):
    """Caching hints of a result: how long it is fresh, in milliseconds, and whether it may be shared between users."""

    ttl_ms: int
    public: bool


STALE = Freshness(0, public=False)


def freshness_of(result: Raw) -> Freshness:
    """The caching hints of a server's result. A hint that is missing or invalid counts as 0 or private. Never
    raises."""
    found = members_if_object(result)
    ttl = _value(found, TTL)
    return Freshness(min(max(ttl, 0), MAX_TTL) if type(ttl) is int else 0, _value(found, SCOPE) == "public")


def common_freshness(parts: Iterable[Freshness]) -> Freshness:
    """The hints of a result that is combined from several: the shortest time, and public only if all are. STALE without
    any."""
    all_parts = tuple(parts)
    if not all_parts:
        return STALE
    return Freshness(min(part.ttl_ms for part in all_parts), all(part.public for part in all_parts))


def _value(found: Mapping[str, Raw], name: str) -> object:
    try:
        return value(found[name])
    except (KeyError, ValueError):
        return None


# Members of a result


def complete_result(method: str, result: Raw, version: str, freshness: Freshness = STALE) -> Raw:
    """A result for a stateless client: with `resultType`, `serverInfo` and, if the method has them, caching hints.

    Args:
        result: the result in the form of a handshake revision.
        version: Colonnade's own version.

    Raises:
        ValueError: `result` is not an object, or nested too deep to be decoded.
    """
    return _insert_head(_head(freshness if method in CACHEABLE else None, version), result)


def with_server_info(result: Raw, version: str) -> Raw:
    """A result that already has its `resultType`, with Colonnade's `serverInfo`.

    Args:
        version: Colonnade's own version.

    Raises:
        ValueError: `result` is not an object, or nested too deep to be decoded.
    """
    return _insert_head(_server_info_head(version), result)


class _Typed(Struct):
    type: str = field(name=RESULT_TYPE, default=COMPLETE)


_typed = msgspec.json.Decoder(_Typed)


def result_type_of(result: Raw) -> str:
    """The `resultType` of a server's result: "complete" if it is missing, empty if it is not a string. Never raises."""
    try:
        return _typed.decode(result).type
    except DECODE_ERRORS:
        return _unusual_result_type(result)


def _unusual_result_type(result: Raw) -> str:
    found = members_if_object(result)
    return text_at(found, RESULT_TYPE) or "" if RESULT_TYPE in found else COMPLETE


def strip_hop_fields(result: Raw) -> Raw:
    """A complete result of a server in the form of a handshake revision: without the members that belong to one
    connection. `result` itself if it has none of them, or cannot be decoded. Not for tasks, whose `ttlMs` is their
    lifetime."""
    found = members_if_object(result)
    meta, hints = found.get(META), _HINTS.intersection(found)
    if meta is None and not hints:
        return result
    for name in hints:
        del found[name]
    if meta is not None and is_object(meta) and may_contain_word(meta, HOP_PREFIX):
        kept = {name: each for name, each in members(meta).items() if name not in HOP_MEMBERS}
        if kept:
            found[META] = encode_object(kept)
        else:
            del found[META]
    return encode_object(found)


USUAL = frozenset(
    ("content", "structuredContent", "isError", "contents", "messages", "description", "completion", META, RESULT_TYPE)
)
"""Members of complete results, none of which is taken for another one."""


class _Head:
    """The members at the beginning of a result, encoded once for all results with the same caching hints."""

    def __init__(self, found: Mapping[str, object], version: str) -> None:
        self.found = {name: encode(each) for name, each in found.items()}
        self.server_info = encode(implementation_info(version))
        self.names = frozenset((*found, META))
        self._folded = frozenset(map(fold_name, self.names))
        self.text = bytes(encode_object({**self.found, META: encode_object({SERVER: self.server_info})}))[:-1]

    def twins_in(self, names: Iterable[str]) -> frozenset[str]:
        """The names that some readers take for one of these members."""
        return frozenset(name for name in names if name not in self.names and fold_name(name) in self._folded)


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
    """The result with the members of `head` first, instead of its own members of the same names, and of names that some
    readers take for these: a complete result could be one that requires input to them. Of `_meta` only `serverInfo` is
    replaced."""
    found = members(result)
    if not found.keys() <= USUAL and (twins := head.twins_in(found)):
        found = {name: each for name, each in found.items() if name not in twins}
        result = encode_object(found)
    if head.names.isdisjoint(found):
        rest = bytes(result).strip()[1:].lstrip()
        return Raw(b"".join((head.text, b"," if found else b"", rest)))
    meta = {**members_if_object(found.get(META)), SERVER: head.server_info}
    kept = {name: each for name, each in found.items() if name not in head.found and name != META}
    return encode_object({**head.found, META: encode_object(meta), **kept})


# Discovery


class Discovery(Struct, frozen=True):
    """A server's result of `server/discover`."""

    negotiated: NegotiatedServer | None
    """The server in the newest stateless revision that it shares with Colonnade; None if it shares none."""
    versions: tuple[str, ...]
    """All versions that the server names."""


def discover_result(
    version: str,
    instructions: str | None,
    *,
    server: NegotiatedServer | None = None,
    tasks: bool = True,
    apps: bool = True,
    lacking: Container[str] = (),
) -> Raw:
    """The result of a client's `server/discover`, with Colonnade's `serverInfo`; pass it to `complete_result`.

    Args:
        version: Colonnade's own version.
        server: the only server of the endpoint, whose capabilities are declared; see `declared_capabilities` and
            `first_members`.
        tasks: calls may become tasks.
        apps: MCP Apps pages are shown.
        lacking: see `declared_capabilities`.
    """
    capabilities = declared_capabilities(server, lacking)
    extensions = [name for name, offered in ((TASKS_EXTENSION, tasks), (APPS_EXTENSION, apps)) if offered]
    if extensions:
        capabilities["extensions"] = {name: {} for name in extensions}
    answer: dict[str, object] = {"supportedVersions": SERVED, "capabilities": capabilities}
    if instructions:
        answer["instructions"] = instructions
    return with_server_info(encode({**answer, **first_members(server)}), version)


def discover_params(revision: Revision, capabilities: Mapping[str, object], client_version: str) -> dict[str, Raw]:
    """The params of the `server/discover` that Colonnade sends to a server."""
    return with_envelope({}, revision, capabilities, level=None, client_version=client_version, token=None)


def read_discovery(result: Raw) -> Discovery:
    """Read a server's result of `server/discover`.

    Raises:
        ValueError: the result is not a valid result of `server/discover`.
    """
    found = members(result)
    try:
        versions = tuple(string(each) for each in items(found["supportedVersions"]))
        capabilities = found["capabilities"]
    except KeyError as missing:
        raise ValueError(f"the result of {DISCOVER} has no {missing.args[0]}") from None
    if result_type_of(result) != COMPLETE:
        raise ValueError(f"the result of {DISCOVER} is not of type {COMPLETE}")
    shared = next((MODERN[name] for name in SERVED if name in MODERN and name in versions), None)
    if shared is None:
        return Discovery(None, versions)
    server = members_if_object(found.get(META)).get(SERVER)
    beside = unknown_members(found, (*FIRST_MEMBERS, *_HINTS))
    return Discovery(negotiated_server(shared, capabilities, found.get("instructions"), server, beside), versions)
