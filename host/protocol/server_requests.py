"""What a server may ask of a client: recognising the question, and making it fit for the client that will get it.

A question is data here: nobody is asked. Which client is meant, whether it may be asked, and whose name the client sees
are other files' business; so is `_meta` (`meta.py`). What is not changed for a reason keeps its bytes.
Source: 2025-11-25, "Sampling", "Elicitation", "Roots", and the schemas of the revisions around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from msgspec import Raw

from host.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND, Notification
from host.jsonrpc.raw import encode, encode_object, is_object, items, members, string
from host.protocol.abilities import Abilities
from host.protocol.versions import Revision

ELICITATION_COMPLETE = "notifications/elicitation/complete"
URL_REQUIRED = -32042
"""The error of a server that wants the user to visit pages first (2025-11-25, "URL Elicitation Required Error")."""

SAMPLED_LINKS = (("messages", "*", "content", "content", "*"), ("messages", "*", "content", "*", "content", "*"))
"""Where a sampling question holds results of tools, whose content may name resources (2025-11-25, "ToolResultContent"):
a message is one block or an array of them."""


class ServerRequest(Enum):
    """The four things a server may ask for."""

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
"""The methods of questions, each with the questions that it may turn out to be."""

_SAMPLING_TOOLS: dict[str, object] = {"sampling": {"tools": {}}}


class ServerRequestRejected(Exception):
    """The question is not passed on. `code` and `why` are the JSON-RPC error for the server that asked; `why` is one
    sentence and holds nothing of the client's but what it can do.

    `missing_capability` is what the client would have had to declare, as its capabilities spell it, where that alone is
    the reason.
    """

    def __init__(self, code: int, why: str, missing_capability: dict[str, object] | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.missing_capability = missing_capability


def server_request_of(
    method: str, params: Raw | None, *, identified: bool = True
) -> tuple[ServerRequest, dict[str, Raw]] | None:
    """What is asked, with the members of its params; None for a method that is no question.

    With `identified`, sending the user to a page needs an `elicitationId`; the stateless revision has none.

    Raises:
        ServerRequestRejected: the params are not what the method needs (INVALID_PARAMS).
    """
    if method not in METHODS:
        return None
    found = _checked_members(method, params)
    if method == LIST_ROOTS:
        return ServerRequest.ROOTS, found
    if method == SAMPLE:
        _require("messages", _is_array(found.get("messages")), "an array")
        _require("maxTokens", _is_number(found.get("maxTokens")), "a number")
        return ServerRequest.SAMPLING, found
    return _elicitation(found, identified), found


def capability_of(request: ServerRequest, params: Mapping[str, Raw] | None = None) -> dict[str, object]:
    """What a client must declare to be asked this, as its capabilities spell it. `params` are those of the question."""
    if request is ServerRequest.SAMPLING:
        return _SAMPLING_TOOLS if _offers_tools(params or {}) else {"sampling": {}}
    if request is ServerRequest.ROOTS:
        return {"roots": {}}
    return {"elicitation": {request.value: {}}}


def adapt(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities, asker: str) -> dict[str, Raw]:
    """The params as a client with these abilities may get them. `params` are those that `server_request_of` gave.

    `asker` is what people call the server: behind Colonnade a client sees one server, so a message to its user begins
    with who is really asking. No task is asked for, since none is ever declared.

    Raises:
        ServerRequestRejected: the client cannot be asked for this at all (METHOD_NOT_FOUND), or not in this mode or
        with this content (INVALID_PARAMS).
    """
    _refuse_undeclared(request, params, abilities)
    try:
        return _adapted(request, params, abilities, asker)
    except ValueError:  # what a deep stack cannot open although a shallow one could
        raise ServerRequestRejected(INVALID_PARAMS, "the params are nested too deep") from None


def supports(abilities: Abilities, request: ServerRequest) -> bool:
    """Whether a client with these abilities can be asked this at all."""
    return {
        ServerRequest.SAMPLING: abilities.sampling,
        ServerRequest.FORM: abilities.form,
        ServerRequest.URL: abilities.url,
        ServerRequest.ROOTS: abilities.roots,
    }[request]


def elicitation_id(params: Mapping[str, Raw]) -> str:
    """The server's id of a ServerRequest.URL. `params` are those that `server_request_of` gave."""
    return string(params["elicitationId"])


def with_elicitation_id(params: Mapping[str, Raw], id: str) -> dict[str, Raw]:
    """The same params under another id; every other member keeps its bytes."""
    return {**params, "elicitationId": encode(id)}


def without_elicitation_id(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """The same params without an id, as the stateless revision has them (2026-07-28, "ElicitRequestURLParams")."""
    return {name: each for name, each in params.items() if name != "elicitationId"}


def stateless_form(method: str, params: Mapping[str, Raw]) -> tuple[str, Mapping[str, Raw]]:
    """A question as a stateless client may have it, in a result or in the status of a task."""
    return method, without_elicitation_id(params) if method == ELICIT else params


def completed_elicitation_id(params: Raw | None) -> str | None:
    """The id that a ELICITATION_COMPLETE names, or None if the notice is malformed (such a notice is ignored)."""
    try:
        return string(members(params or b"")["elicitationId"])
    except (ValueError, KeyError):
        return None


def elicitation_complete(id: str, params: Raw | None = None) -> Notification:
    """The notice that what was asked under `id` is done. `params`, an object, may bring other members along."""
    found = members(params) if params is not None else {}
    return Notification(ELICITATION_COMPLETE, encode_object(with_elicitation_id(found, id)))


def adapt_url_elicitations(data: Raw | None, rename: Callable[[str], str], asker: str) -> Raw | None:
    """The `data` of a URL_REQUIRED error with every id renamed and every message signed by the `asker`, nothing else
    changed; None if it is not such data, or names something else than pages."""
    try:
        found = members(data or b"")
        pages = [members(each) for each in items(found["elicitations"])]
        ids = [elicitation_id(page) for page in pages]
    except (ValueError, KeyError):
        return None
    if not all(_is_page(_text(page.get("url"))) for page in pages):
        return None
    fitted = [with_elicitation_id(page, rename(id)) for page, id in zip(pages, ids, strict=True)]
    for page in fitted:
        if _is_string(page.get("message")):
            page["message"] = _with_asker_name(page["message"], asker)
    found["elicitations"] = encode([encode_object(page) for page in fitted])
    return encode_object(found)


def elicitation_params_of(data: Raw | None) -> list[dict[str, Raw]] | None:
    """The pages that a URL_REQUIRED error names, each as the params of a ServerRequest.URL without an id; None if it
    names none, or anything that is no such question."""
    try:
        pages = [members(each) for each in items(members(data or b"")["elicitations"])]
        asked = [_elicitation({"mode": encode("url"), **page}, identified=False) for page in pages]
    except (ValueError, KeyError, ServerRequestRejected):
        return None
    if not pages or any(question is not ServerRequest.URL for question in asked):
        return None
    return [{"mode": encode("url"), **without_elicitation_id(page)} for page in pages]


def urls_required(data: Raw | None) -> list[tuple[str, str]]:
    """Message and address of every page that a URL_REQUIRED error names, for clients that must be told in prose."""
    try:
        pages = [members(each) for each in items(members(data or b"")["elicitations"]) if is_object(each)]
    except (ValueError, KeyError):
        return []
    return [(_text(page.get("message")) or "", url) for page in pages if (url := _text(page.get("url")))]


def refuse_unsupported(request: ServerRequest, revision: Revision) -> None:
    """Refuse a question that does not exist in the revision settled with the server that asks it.

    Raises:
        ServerRequestRejected: it does not.
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
        return members(params or b"")
    except ValueError:
        raise ServerRequestRejected(INVALID_PARAMS, f"{method} needs params that are an object") from None


def _elicitation(found: Mapping[str, Raw], identified: bool) -> ServerRequest:
    mode = _text(found["mode"]) if "mode" in found else "form"
    _require("message", _is_string(found.get("message")), "a string")
    if mode == "form":
        schema = found.get("requestedSchema")
        _require("requestedSchema", schema is not None and is_object(schema), "an object")
        return ServerRequest.FORM
    if mode == "url":
        _require("url", _is_page(_text(found.get("url"))), "an http or https URL")
        _require("elicitationId", not identified or _text(found.get("elicitationId")) is not None, "a string")
        return ServerRequest.URL
    raise ServerRequestRejected(INVALID_PARAMS, "the mode of an elicitation is form or url")


def _require(member: str, met: bool, shape: str) -> None:
    if not met:
        raise ServerRequestRejected(INVALID_PARAMS, f"the member {member!r} is missing or not {shape}")


def _is_array(raw: Raw | None) -> bool:
    return raw is not None and _head(raw) == b"["


def _is_string(raw: Raw | None) -> bool:
    # Not decoded: a message may hold half an emoji, and is passed on all the same.
    return raw is not None and _head(raw) == b'"'


def _is_number(raw: Raw | None) -> bool:
    return raw is not None and _head(raw) in b"-0123456789"


def _is_page(url: str | None) -> bool:
    """Whether a browser may be sent there: other schemes run programs, or read files."""
    return url is not None and url.lower().startswith(("https://", "http://"))


def _head(raw: Raw) -> bytes:
    return bytes(raw).lstrip()[:1]


def _text(raw: Raw | None) -> str | None:
    """The text of a member that is a string, else None."""
    try:
        return None if raw is None else string(raw)
    except ValueError:
        return None


# Fitting


def _adapted(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities, asker: str) -> dict[str, Raw]:
    fitted = {name: each for name, each in params.items() if name != "task"}
    if request is ServerRequest.SAMPLING:
        _refuse_invalid_messages(fitted, abilities)
        # The client would read "this server" as Colonnade, which is every server.
        if "includeContext" in fitted and _text(fitted["includeContext"]) != "none":
            fitted["includeContext"] = encode("none")
    elif request is not ServerRequest.ROOTS:
        fitted["message"] = _with_asker_name(fitted["message"], asker)
    if request is ServerRequest.FORM and not abilities.choice_schemas:
        fitted.pop("mode", None)
        fitted["requestedSchema"] = _plain_form(fitted["requestedSchema"])
    return fitted


def _refuse_undeclared(request: ServerRequest, params: Mapping[str, Raw], abilities: Abilities) -> None:
    if supports(abilities, request):
        return
    lacks = capability_of(request, params)
    if request in METHODS[ELICIT]:
        if abilities.form or abilities.url:
            raise ServerRequestRejected(
                INVALID_PARAMS, f"the client does not do elicitation in mode {request.value}", lacks
            )
        raise ServerRequestRejected(METHOD_NOT_FOUND, "the client does not do elicitation", lacks)
    raise ServerRequestRejected(METHOD_NOT_FOUND, f"the client does not do {request.value}", lacks)


def _refuse_invalid_messages(params: Mapping[str, Raw], abilities: Abilities) -> None:
    """Refuse what this client's revision or its sampling has no words for; nothing is left out in silence."""
    if not abilities.sampling_tools and _offers_tools(params):
        raise ServerRequestRejected(INVALID_PARAMS, "the client's sampling does not take tools", _SAMPLING_TOOLS)
    if abilities.sampling_tools and abilities.audio:
        return
    for content in _contents(params["messages"]):
        if _is_array(content) and not abilities.sampling_arrays:
            raise ServerRequestRejected(
                INVALID_PARAMS, "the client's sampling takes one content block in a message, not an array"
            )
        for block in items(content) if _is_array(content) else [content]:
            _refuse_invalid_block(_type(block), abilities)


def _refuse_invalid_block(kind: str | None, abilities: Abilities) -> None:
    if kind in ("tool_use", "tool_result") and not abilities.sampling_tools:
        raise ServerRequestRejected(
            INVALID_PARAMS, f"the client's sampling does not take content of type {kind}", _SAMPLING_TOOLS
        )
    if kind == "audio" and not abilities.audio:
        raise ServerRequestRejected(INVALID_PARAMS, "the client does not take audio")


def _offers_tools(params: Mapping[str, Raw]) -> bool:
    return "tools" in params or "toolChoice" in params


def _contents(messages: Raw) -> Iterator[Raw]:
    for message in items(messages):
        if is_object(message):
            content = members(message).get("content")
            if content is not None:
                yield content


def _type(raw: Raw) -> str | None:
    return _text(members(raw).get("type")) if is_object(raw) else None


def _with_asker_name(message: Raw, asker: str) -> Raw:
    """The message with who asks before it. Only put before: its own bytes, escapes and all, stay as they are."""
    return Raw(bytes(encode(f"[{asker}] "))[:-1] + bytes(message).lstrip()[1:])


def _plain_form(schema: Raw) -> Raw:
    """The schema in the words of 2025-06-18; itself, not a copy, if it needs no others."""
    found = members(schema)
    properties = found.get("properties")
    if properties is None or not is_object(properties):
        return schema
    before = members(properties)
    after = {name: _plain_field(each) for name, each in before.items()}
    if all(after[name] is before[name] for name in before):
        return schema
    found["properties"] = encode_object(after)
    return encode_object(found)


def _plain_field(field: Raw) -> Raw:
    if not is_object(field):
        return field
    before = members(field)
    found = dict(before)
    kind = _text(found.get("type"))
    if kind == "array":
        raise ServerRequestRejected(INVALID_PARAMS, "the client's forms have no field for several choices")
    # Only booleans had defaults; a strict client would turn the whole form away.
    if kind in ("string", "number", "integer"):
        found.pop("default", None)
    if kind == "string" and "oneOf" in found:
        found = _plain_choice(found)
    return field if found == before else encode_object(found)


def _plain_choice(found: dict[str, Raw]) -> dict[str, Raw]:
    """A choice with a title for each value, as values and names side by side, where it stood."""
    try:
        choices = [members(each) for each in items(found["oneOf"])]
        values, names = [each["const"] for each in choices], [each["title"] for each in choices]
    except (ValueError, KeyError):
        raise ServerRequestRejected(INVALID_PARAMS, "a choice in the form is not made of const and title") from None
    if not all(map(_is_string, (*values, *names))):
        raise ServerRequestRejected(INVALID_PARAMS, "a choice in the form is not made of strings")
    plain: dict[str, Raw] = {}
    for name, each in found.items():
        if name == "oneOf":
            plain |= {"enum": encode(values), "enumNames": encode(names)}
        else:
            plain.setdefault(name, each)
    return plain
