"""Server requests: recognising what a server asks of a client, and adapting it to the client that will get it.

Pure functions. Which client gets a server request, and whether consent permits it, is decided elsewhere; `_meta` is in
`meta.py`. Members that need no change keep their bytes. Source: 2025-11-25, "Sampling", "Elicitation", "Roots", and the
schemas of the revisions around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from msgspec import Raw

from host.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND, Notification
from host.jsonrpc.raw import (
    EMPTY_OBJECT,
    NULL,
    encode,
    encode_object,
    is_array,
    is_object,
    is_string,
    items,
    members,
    string,
    text_at,
    text_below,
    with_members,
)
from host.jsonrpc.twins import describe_twin
from host.protocol.abilities import Abilities
from host.protocol.known_members import ELICITATION, ROOTS, SAMPLING, URLS, twin_in
from host.protocol.methods import ELICITATION_COMPLETE
from host.protocol.versions import Revision

URL_REQUIRED = -32042
"""Error code: the user must visit pages before the request is sent again (2025-11-25, "URL Elicitation Required
Error").
"""

SAMPLED_LINKS = (("messages", "*", "content", "content", "*"), ("messages", "*", "content", "*", "content", "*"))
"""Places of tool results in a sampling request, whose content may name resources (2025-11-25, "ToolResultContent"). The
content of a message is one block or an array of blocks."""


class ServerRequest(Enum):
    """Kinds of server requests."""

    SAMPLING = "sampling"
    FORM = "form"
    URL = "url"
    ROOTS = "roots"


SAMPLE = "sampling/createMessage"
ELICIT = "elicitation/create"
LIST_ROOTS = "roots/list"

METHODS: dict[str, tuple[ServerRequest, ...]] = {
    SAMPLE: (ServerRequest.SAMPLING,),
    ELICIT: (ServerRequest.FORM, ServerRequest.URL),
    LIST_ROOTS: (ServerRequest.ROOTS,),
}
"""The methods of server requests, each with the kinds that it may be."""
_PARAMS = {SAMPLE: SAMPLING, ELICIT: ELICITATION, LIST_ROOTS: ROOTS}

_SAMPLING_TOOLS: dict[str, object] = {"sampling": {"tools": {}}}


class ServerRequestRejected(Exception):
    """A server request that is not forwarded. `code` and `why` are the JSON-RPC error for the server; `why` is one
    sentence that reveals nothing of the client except its capabilities.

    `missing_capability`: the client capability that would have been needed, in the shape of the schema, if nothing else
    is the reason.
    """

    def __init__(self, code: int, why: str, missing_capability: dict[str, object] | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.missing_capability = missing_capability


def server_request_of(
    method: str, params: Raw | None, *, identified: bool = True
) -> tuple[ServerRequest, dict[str, Raw]] | None:
    """The kind of a server request, with the members of its params; None for any other method.

    Args:
        identified: elicitation in mode url needs an `elicitationId`, which 2026-07-28 does not have.

    Raises:
        ServerRequestRejected: the params are invalid for the method (INVALID_PARAMS).
    """
    if method not in METHODS:
        return None
    found = _checked_members(method, params)
    if method == LIST_ROOTS:
        return ServerRequest.ROOTS, found
    if method == SAMPLE:
        _require("messages", is_array(found.get("messages", NULL)), "an array")
        _require("maxTokens", _is_number(found.get("maxTokens", NULL)), "a number")
        return ServerRequest.SAMPLING, found
    return _elicitation(found, identified), found


def capability_of(request: ServerRequest, params: Mapping[str, Raw] | None = None) -> dict[str, object]:
    """The client capability that a server request needs, in the shape of the schema."""
    if request is ServerRequest.SAMPLING:
        return _SAMPLING_TOOLS if _offers_tools(params or {}) else {"sampling": {}}
    if request is ServerRequest.ROOTS:
        return {"roots": {}}
    return {"elicitation": {request.value: {}}}


def capability_names(capability: Mapping[str, object]) -> list[str]:
    """The names in the result of `capability_of`, such as `roots` or `elicitation.form`."""
    return [".".join((name, *modes)) if isinstance(modes, Mapping) else name for name, modes in capability.items()]


def adapt(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities, asker: str) -> dict[str, Raw]:
    """The params of a server request for a client with these abilities. Never requests a task, because Colonnade
    declares none to servers.

    Args:
        params: the members that `server_request_of` returned.
        asker: display name of the server. A message to the user begins with it, because the client sees one server,
            Colonnade, for all of them.

    Raises:
        ServerRequestRejected: the client does not support such requests (METHOD_NOT_FOUND), or not in this mode or with
            this content (INVALID_PARAMS).
    """
    _refuse_undeclared(request, params, abilities)
    try:
        return _adapted(request, params, abilities, asker)
    except ValueError:  # decoding failed at this depth of the stack although it did not when the params were checked
        raise ServerRequestRejected(INVALID_PARAMS, "the params are nested too deep") from None


def supports(abilities: Abilities, request: ServerRequest) -> bool:
    """Whether a client with these abilities supports this kind of server request."""
    return {
        ServerRequest.SAMPLING: abilities.sampling,
        ServerRequest.FORM: abilities.form,
        ServerRequest.URL: abilities.url,
        ServerRequest.ROOTS: abilities.roots,
    }[request]


def elicitation_id(params: Mapping[str, Raw]) -> str:
    """The server's `elicitationId` of a ServerRequest.URL, from the members that `server_request_of` returned."""
    return string(params["elicitationId"])


def with_elicitation_id(params: Mapping[str, Raw], id: str) -> dict[str, Raw]:
    """The params with another `elicitationId`; every other member keeps its bytes."""
    return {**params, "elicitationId": encode(id)}


def without_elicitation_id(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The params without `elicitationId`, which 2026-07-28 does not have ("ElicitRequestURLParams")."""
    return {name: each for name, each in params.items() if name != "elicitationId"}


def stateless_form(method: str, params: Mapping[str, Raw]) -> tuple[str, Mapping[str, Raw]]:
    """Method and params of a server request for a stateless client, in a result or in the status of a task."""
    return method, without_elicitation_id(params) if method == ELICIT else params


def completed_elicitation_id(params: Raw | None) -> str | None:
    """The id of the elicitation that is complete, or None if the notification is malformed and therefore ignored."""
    return text_below(params, "elicitationId")


def elicitation_complete(id: str, params: Raw | None = None) -> Notification:
    """The notification that the elicitation `id` is complete, with the other members of `params`, an object."""
    found = members(params) if params is not None else {}
    return Notification(ELICITATION_COMPLETE, encode_object(with_elicitation_id(found, id)))


def adapt_url_elicitations(data: Raw | None, rename: Callable[[str], str], asker: str) -> Raw | None:
    """The `data` of a URL_REQUIRED error with every id renamed and every message beginning with `asker`; None if
    `elicitation_params_of` has none, or a page has no id."""
    if elicitation_params_of(data) is None:
        return None
    try:
        found = _url_required_members(data)
        pages = [members(each) for each in items(found["elicitations"])]
        ids = [elicitation_id(page) for page in pages]
    except (ValueError, KeyError):
        return None
    adapted = [with_elicitation_id(page, rename(id)) for page, id in zip(pages, ids, strict=True)]
    for page in adapted:
        page["message"] = _with_asker_name(page["message"], asker)
    found["elicitations"] = encode([encode_object(page) for page in adapted])
    return encode_object(found)


def elicitation_params_of(data: Raw | None) -> list[dict[str, Raw]] | None:
    """The elicitations of a URL_REQUIRED error, each as the params of a ServerRequest.URL without an id; None if there
    are none, or one of them is invalid."""
    try:
        pages = [members(each) for each in items(_url_required_members(data)["elicitations"])]
        kinds = [_elicitation({"mode": encode("url"), **page}, identified=False) for page in pages]
    except (ValueError, KeyError, ServerRequestRejected):
        return None
    if not pages or any(kind is not ServerRequest.URL for kind in kinds):
        return None
    return [{"mode": encode("url"), **without_elicitation_id(page)} for page in pages]


def urls_required(data: Raw | None) -> list[tuple[str, str]]:
    """Message and URL of every elicitation of a URL_REQUIRED error, for clients that get them as text."""
    try:
        pages = [members(each) for each in items(_url_required_members(data)["elicitations"]) if is_object(each)]
    except (ValueError, KeyError):
        return []
    return [(text_at(page, "message") or "", url) for page in pages if (url := text_at(page, "url"))]


def refuse_unsupported(request: ServerRequest, revision: Revision) -> None:
    """Refuse a server request that the revision negotiated with its server does not have.

    Raises:
        ServerRequestRejected: the revision has no such request.
    """
    if request in METHODS[ELICIT] and not revision.has_elicitation:
        raise ServerRequestRejected(METHOD_NOT_FOUND, f"{revision.name} has no elicitation")
    if request is ServerRequest.URL and not revision.has_url_elicitation:
        raise ServerRequestRejected(INVALID_PARAMS, f"{revision.name} has no elicitation in mode url")


# Recognising


def _checked_members(method: str, params: Raw | None) -> dict[str, Raw]:
    if params is None and method == LIST_ROOTS:
        return {}
    try:
        found = members(params or b"")
    except ValueError:
        raise ServerRequestRejected(INVALID_PARAMS, f"the params of {method} are missing or not an object") from None
    try:
        twin = twin_in(params or EMPTY_OBJECT, _PARAMS[method])
    except ValueError as problem:
        raise ServerRequestRejected(INVALID_PARAMS, f"the params are {problem}") from None
    if twin is not None:
        raise ServerRequestRejected(INVALID_PARAMS, describe_twin(twin))
    return found


def _url_required_members(data: Raw | None) -> dict[str, Raw]:
    """The members of the data of a URL_REQUIRED error. Raises ValueError if the data may be read in several ways."""
    if data is None or twin_in(data, URLS) is not None:
        raise ValueError("expected an object with one meaning")
    return members(data)


def _elicitation(found: Mapping[str, Raw], identified: bool) -> ServerRequest:
    mode = text_at(found, "mode") if "mode" in found else "form"
    # Not decoded: a message with a lone surrogate is passed on as it is.
    _require("message", is_string(found.get("message", NULL)), "a string")
    if mode == "form":
        _require("requestedSchema", is_object(found.get("requestedSchema", NULL)), "an object")
        return ServerRequest.FORM
    if mode == "url":
        _require("url", _is_page(text_at(found, "url")), "an http or https URL")
        _require("elicitationId", not identified or text_at(found, "elicitationId") is not None, "a string")
        return ServerRequest.URL
    raise ServerRequestRejected(INVALID_PARAMS, "the member 'mode' is neither 'form' nor 'url'")


def _require(member: str, met: bool, shape: str) -> None:
    if not met:
        raise ServerRequestRejected(INVALID_PARAMS, f"the member {member!r} is missing or not {shape}")


def _is_number(raw: Raw) -> bool:
    return bytes(raw)[:1] in b"-0123456789"


def _is_page(url: str | None) -> bool:
    """Whether a URL may be opened in a browser: other schemes can start programs or read files."""
    return url is not None and url.lower().startswith(("https://", "http://"))


# Adapting


def _adapted(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities, asker: str) -> dict[str, Raw]:
    adapted = {name: each for name, each in params.items() if name != "task"}
    if request is ServerRequest.SAMPLING:
        _refuse_invalid_messages(adapted, abilities)
        # To the client, "this server" is Colonnade: it would add the context of all servers.
        if "includeContext" in adapted and text_at(adapted, "includeContext") != "none":
            adapted["includeContext"] = encode("none")
    elif request is not ServerRequest.ROOTS:
        adapted["message"] = _with_asker_name(adapted["message"], asker)
    if request is ServerRequest.FORM and not abilities.choice_schemas:
        adapted.pop("mode", None)
        adapted["requestedSchema"] = _plain_form(adapted["requestedSchema"])
    return adapted


def _refuse_undeclared(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities) -> None:
    if supports(abilities, request):
        return
    lacks = capability_of(request, params)
    if request in METHODS[ELICIT]:
        if abilities.form or abilities.url:
            raise ServerRequestRejected(
                INVALID_PARAMS, f"the client does not support elicitation in mode {request.value}", lacks
            )
        raise ServerRequestRejected(METHOD_NOT_FOUND, "the client does not support elicitation", lacks)
    raise ServerRequestRejected(METHOD_NOT_FOUND, f"the client does not support {request.value}", lacks)


def _refuse_invalid_messages(params: Mapping[str, Raw], abilities: Abilities) -> None:
    """Refuse messages that the client's revision or its sampling does not support. Nothing is left out instead: the
    model would answer another request than the server's."""
    if not abilities.sampling_tools and _offers_tools(params):
        raise ServerRequestRejected(INVALID_PARAMS, "the client's sampling does not support tools", _SAMPLING_TOOLS)
    if abilities.sampling_tools and abilities.audio:
        return
    for content in _contents(params["messages"]):
        if is_array(content) and not abilities.sampling_arrays:
            raise ServerRequestRejected(
                INVALID_PARAMS, "the client's sampling supports one content block in a message, not an array"
            )
        for block in items(content) if is_array(content) else [content]:
            _refuse_invalid_block(text_at(members(block), "type") if is_object(block) else None, abilities)


def _refuse_invalid_block(kind: str | None, abilities: Abilities) -> None:
    if kind in ("tool_use", "tool_result") and not abilities.sampling_tools:
        raise ServerRequestRejected(
            INVALID_PARAMS, f"the client's sampling does not support content of type {kind}", _SAMPLING_TOOLS
        )
    if kind == "audio" and not abilities.audio:
        raise ServerRequestRejected(INVALID_PARAMS, "the client does not support audio")


def _offers_tools(params: Mapping[str, Raw]) -> bool:
    return "tools" in params or "toolChoice" in params


def _contents(messages: Raw) -> Iterator[Raw]:
    for message in items(messages):
        if is_object(message):
            content = members(message).get("content")
            if content is not None:
                yield content


def _with_asker_name(message: Raw, asker: str) -> Raw:
    """The message, a JSON string, with the name of the server before it. Its own bytes, with their escapes, are
    kept."""
    return Raw(bytes(encode(f"[{asker}] "))[:-1] + bytes(message).lstrip()[1:])


def _plain_form(schema: Raw) -> Raw:
    """The form as 2025-06-18 has it ("Requested Schema"); `schema` itself, not a copy, if it needs no change."""
    found = members(schema)
    properties = found.get("properties")
    if properties is None or not is_object(properties):
        return schema
    before = members(properties)
    after = {name: _plain_field(each) for name, each in before.items()}
    return with_members(schema, found, {**found, "properties": with_members(properties, before, after)})


def _plain_field(field: Raw) -> Raw:
    if not is_object(field):
        return field
    before = members(field)
    found = dict(before)
    kind = text_at(found, "type")
    if kind == "array":
        raise ServerRequestRejected(INVALID_PARAMS, "the client does not support several choices in one field")
    # In 2025-06-18 only booleans have defaults; a strict client would refuse the whole form.
    if kind in ("string", "number", "integer"):
        found.pop("default", None)
    if kind == "string" and "oneOf" in found:
        found = _plain_choice(found)
    return field if found == before else encode_object(found)


def _plain_choice(found: dict[str, Raw]) -> dict[str, Raw]:
    """A titled choice (`oneOf`) as `enum` and `enumNames`, in the same place among the members."""
    try:
        choices = [members(each) for each in items(found["oneOf"])]
        values, names = [each["const"] for each in choices], [each["title"] for each in choices]
    except (ValueError, KeyError):
        raise ServerRequestRejected(INVALID_PARAMS, "a choice in the form lacks const or title") from None
    if not all(map(is_string, (*values, *names))):
        raise ServerRequestRejected(INVALID_PARAMS, "const or title of a choice in the form is not a string")
    plain: dict[str, Raw] = {}
    for name, each in found.items():
        if name == "oneOf":
            plain |= {"enum": encode(values), "enumNames": encode(names)}
        else:
            plain.setdefault(name, each)
    return plain
