"""Definitions of entries in the form that clients accept. A client that refuses one definition loses the whole list,
and with it the entries of all servers.

A definition that all clients accept keeps every byte. Otherwise the members that the protocol does not require are left
out where they are of a wrong type, and a tool's schema is written in an equivalent form (`json_schema`). A definition
that has no such form is unfit for the clients of an era. What a server is sent never depends on this.

Source: "Tool", "Resource", "ResourceTemplate" and "Prompt" of the schemas of 2024-11-05 to 2026-07-28. The types of a
member are the same in all revisions that have it, `outputSchema` apart. Official SDKs check more than that (measured):
`properties` and `required` also of 2026-07-28 (TypeScript 2.4), URIs as pydantic does (Python 1.2 to 1.30), and that
`lastModified` has date, time and zone (TypeScript from 1.24 on).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from pydantic_core import Url

from host.jsonrpc.raw import DECODE_ERRORS, encode, encode_object, items, members, text_below, with_members
from host.jsonrpc.strict import count_tokens
from host.protocol.json_schema import EMPTY, object_schema, schema_of_any_value
from host.protocol.methods import Kind
from host.protocol.output_schema import ObjectSchema, is_compiled, is_sound, needs_a_look
from host.protocol.versions import SESSION, STATELESS, Era

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+:")
_TIMESTAMP = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]+)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)


MAX_INLINE_TOKENS = 500
MAX_INLINE_BYTES = 16 * 1024
"""Structural characters and bytes of a definition that is written anew in the event loop: some 10 µs for each
character, if each begins a schema, and all bytes are copied for each schema around them."""


BYTES_PER_TOKEN = 4
"""A rule of thumb for JSON with English words."""


def model_tokens(size: int) -> int:
    """Estimate what definitions of so many bytes cost a language model, in tokens."""
    return -(-size // BYTES_PER_TOKEN)


class Misfit(NamedTuple):
    """A definition that not all clients accept as it is: for each era the reason why its clients accept it in no form,
    or None."""

    handshake: str | None
    stateless: str | None


class Unfit(ValueError):
    """A definition has no form that the client accepts; the text says why."""


def misfit_of(kind: Kind, definition: bytes, uris: Sequence[str] = ()) -> Misfit | None:
    """How a definition, a JSON object, differs from what clients accept; None if all accept every byte.

    Args:
        uris: of a resource, all forms in which clients see its URI.
    """
    if is_plain(kind, definition, look=True) and not any(map(_why_no_uri, uris)):
        return None
    reasons: list[str | None] = []
    changes = False
    for era in (SESSION, STATELESS):
        # Clients of the handshake era may read a URI as pydantic does; the others only need one.
        found = (_why_no_uri(uri) for uri in uris if not (era is STATELESS and _SCHEME.match(uri)))
        reason = next(filter(None, found), None)
        try:
            changes = adapted(kind, definition, era) != definition or changes
        except Unfit as problem:
            reason = reason or str(problem)
        reasons.append(reason)
    return Misfit(*reasons) if changes or any(reasons) else None


def is_short(definition: bytes) -> bool:
    """Whether a definition is written anew in the event loop."""
    return len(definition) <= MAX_INLINE_BYTES and count_tokens(definition) <= MAX_INLINE_TOKENS


def adapted(kind: Kind, definition: bytes, era: Era) -> bytes:
    """The definition in the form that the clients of an era accept; `definition` itself if it needs no change.

    Raises:
        Unfit: there is no such form.
    """
    found = members(definition)
    mended = _mended_members(found, _SHAPES[kind])
    if kind is Kind.TOOL:
        _mend_schemas(mended, era)
    return bytes(with_members(Raw(definition), found, mended))


def describe_unfit(label: str, misfit: Misfit) -> str:
    """Which clients are not shown the entry with this label, and why; for people."""
    why = f"({misfit.handshake or misfit.stateless}; a call by its name reaches it)"
    if all(misfit):
        return f"{label} {why}"
    return f"{label}, for {'handshake' if misfit.handshake else 'stateless'} clients {why}"


def _why_no_uri(uri: str) -> str | None:
    if _SCHEME.match(uri) is None:
        return "its URI has no scheme"
    try:
        Url(uri)
    except ValueError:
        return "its URI is not valid"
    return None


# The members of definitions. A member without a default is required.


class _Icon(Struct, gc=False, rename="camel"):
    src: str
    mime_type: str = ""
    sizes: tuple[str, ...] = ()
    theme: Literal["dark", "light"] = "light"


class _Annotations(Struct, gc=False, rename="camel"):
    audience: tuple[Literal["assistant", "user"], ...] = ()
    priority: Annotated[float, Meta(ge=0, le=1)] = 0.0
    last_modified: Annotated[str, Meta(pattern=_TIMESTAMP)] = ""


class _ToolAnnotations(Struct, gc=False, rename="camel"):
    title: str = ""
    read_only_hint: bool = False
    destructive_hint: bool = True
    idempotent_hint: bool = False
    open_world_hint: bool = True


class _Execution(Struct, gc=False, rename="camel"):
    task_support: Literal["forbidden", "optional", "required"] = "forbidden"


class _Argument(Struct, gc=False):
    name: str
    title: str = ""
    description: str = ""
    required: bool = False


class _Shown(Struct, gc=False, kw_only=True, rename="camel"):
    title: str = ""
    description: str = ""
    icons: tuple[_Icon, ...] = ()
    meta: dict[str, Raw] = field(name="_meta", default_factory=dict)


class _Tool(_Shown, gc=False, kw_only=True, rename="camel"):
    name: str
    annotations: _ToolAnnotations | UnsetType = UNSET
    execution: _Execution | UnsetType = UNSET


class _Resource(_Shown, gc=False, kw_only=True, rename="camel"):
    uri: str
    name: str
    mime_type: str = ""
    size: Annotated[float, Meta(multiple_of=1, ge=-(2**53), le=2**53)] = 0.0
    annotations: _Annotations | UnsetType = UNSET


class _Template(_Shown, gc=False, kw_only=True, rename="camel"):
    uri_template: str
    name: str
    mime_type: str = ""
    annotations: _Annotations | UnsetType = UNSET


class _Prompt(_Shown, gc=False, kw_only=True):
    name: str
    arguments: tuple[_Argument, ...] = ()


_SHAPES: dict[Kind, type[Struct]] = {
    Kind.TOOL: _Tool,
    Kind.RESOURCE: _Resource,
    Kind.TEMPLATE: _Template,
    Kind.PROMPT: _Prompt,
}
_ESSENTIAL = frozenset(("arguments",))
"""Members that are not required, but without which the entry would be another one."""


# A tool's schemas as all clients accept them.


class _Schema(Struct, gc=False, rename="camel"):
    properties: dict[str, _Schema] = {}
    pattern_properties: dict[str, _Schema] = {}
    dependent_schemas: dict[str, _Schema] = {}
    dependencies: dict[str, _Schema | tuple[str, ...]] = {}
    defs: dict[str, _Schema] = field(name="$defs", default_factory=dict)
    definitions: dict[str, _Schema] = {}
    items: _Schema | tuple[_Schema, ...] = ()
    prefix_items: tuple[_Schema, ...] = ()
    all_of: tuple[_Schema, ...] = ()
    any_of: tuple[_Schema, ...] = ()
    one_of: tuple[_Schema, ...] = ()
    additional_items: _Schema | bool = True
    unevaluated_items: _Schema | bool = True
    additional_properties: _Schema | bool = True
    unevaluated_properties: _Schema | bool = True
    contains: _Schema | UnsetType = UNSET
    property_names: _Schema | UnsetType = UNSET
    content_schema: _Schema | UnsetType = UNSET
    negated: _Schema | UnsetType = field(name="not", default=UNSET)
    condition: _Schema | UnsetType = field(name="if", default=UNSET)
    then: _Schema | UnsetType = UNSET
    otherwise: _Schema | UnsetType = field(name="else", default=UNSET)


class _ObjectSchema(_Schema, gc=False, kw_only=True):
    type: Literal["object"]
    dialect: str = field(name="$schema", default="")
    required: tuple[str, ...] = ()


class _PlainTool(_Tool, gc=False, kw_only=True, rename="camel"):
    input_schema: _ObjectSchema
    output_schema: ObjectSchema | UnsetType = UNSET


_plain = {kind: msgspec.json.Decoder(_PlainTool if kind is Kind.TOOL else shape) for kind, shape in _SHAPES.items()}


def is_plain(kind: Kind, definition: bytes, *, look: bool) -> bool:
    """Whether all clients accept the definition. False also for a few that they accept.

    Args:
        look: whether to look at patterns and references of an output schema. Without, it has to have none.
    """
    try:
        found = _plain[kind].decode(definition)
    except DECODE_ERRORS:
        return False
    if not (isinstance(found, _PlainTool) and found.output_schema is not UNSET and needs_a_look(definition)):
        return True
    return look and is_sound(members(definition)["outputSchema"])


# Mending


def _mended_members(found: dict[str, Raw], shape: type[Struct]) -> dict[str, Raw]:
    """The members of an object of this shape. Raises Unfit."""
    mended = dict(found)
    for name, member_type, required in _members_of(shape):
        if name not in found:
            if required:
                raise Unfit(f"it has no {name}")
            continue
        try:
            _decoder(member_type).decode(found[name])
            continue
        except DECODE_ERRORS:
            pass
        try:
            mended[name] = _mended(found[name], member_type)
        except ValueError as problem:
            if required or (name in _ESSENTIAL and not EMPTY.fullmatch(found[name])):
                raise Unfit(f"its {name}: {problem}") from None
            del mended[name]
    return mended


def _mended(raw: Raw, member_type: Any) -> Raw:
    """A member whose value is of a wrong type, without its own wrong members. Raises ValueError."""
    shape = _shape_in(member_type)
    if shape is None:
        raise ValueError("of a wrong type")
    if get_origin(member_type) is tuple:
        return encode([_mended_object(each, shape) for each in items(raw)])
    return _mended_object(raw, shape)


def _mended_object(raw: Raw, shape: type[Struct]) -> Raw:
    found = members(raw)
    return with_members(raw, found, _mended_members(found, shape))


def _shape_in(member_type: Any) -> type[Struct] | None:
    """The shape of the objects in a member of this type, or None."""
    if isinstance(member_type, type) and issubclass(member_type, Struct):
        return member_type
    found = (each for each in get_args(member_type) if isinstance(each, type) and issubclass(each, Struct))
    return next(found, None)


@lru_cache(maxsize=16)
def _members_of(shape: type[Struct]) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and whether it is required, of each member."""
    found = msgspec.structs.fields(shape)
    return tuple((each.encode_name, each.type, each.required) for each in found)


@lru_cache(maxsize=64)
def _decoder(member_type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(member_type)


def _mend_schemas(found: dict[str, Raw], era: Era) -> None:
    try:
        found["inputSchema"] = object_schema(found.get("inputSchema"), booleans=era is STATELESS)
    except ValueError as problem:
        raise Unfit(f"its inputSchema: {problem}") from None
    if "outputSchema" in found:
        schema = _output_schema(found["outputSchema"], era)
        if schema is None:
            del found["outputSchema"]
        else:
            found["outputSchema"] = schema


def _output_schema(schema: Raw, era: Era) -> Raw | None:
    """The schema of structured content in a form that clients accept; None if there is none. To clients of the
    handshake era structured content is an object, so they get no schema for any other value."""
    try:
        if text_below(schema, "type") == "object":
            mended = object_schema(schema, booleans=era is STATELESS)
        elif era is STATELESS:
            mended = schema_of_any_value(schema)
        else:
            return None
        found = members(mended)
    except ValueError:
        return None
    # Clients keep schemas by `$id` for a connection: results of another tool with the same one, and those after a
    # change, are checked by the first. Without references to it, it has no other meaning for them.
    if found.pop("$id", None) is not None:
        mended = encode_object(found)
    return mended if is_compiled(mended) else None
