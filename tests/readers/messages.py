"""Random messages of clients and of servers, with members that some readers take for others, and how the host judges
them. The texts are harmless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any
from unicodedata import normalize

from msgspec import Raw

from host.downstream.error_answers import params_of
from host.errors import InvalidParams
from host.jsonrpc.messages import Request, receive
from host.jsonrpc.raw import encode_object, members
from host.policy.argument_names import find_twin
from host.protocol.known_members import why_ambiguous
from host.protocol.methods import Kind, target_of, with_target
from host.protocol.server_requests import ServerRequestRejected, server_request_of

SCHEMA: dict[str, Any] = {"properties": {"path": {}, "options": {"properties": {"mode": {}}}}}
DEFINITION = json.dumps({"name": "t", "inputSchema": SCHEMA}).encode()
CONDITIONS = frozenset(("/path",))

Members = list[tuple[str, Any]]


class Pairs(Members):
    """An object, whose members may be twins."""


class Unusable(Exception):
    """A message that the host refuses for another reason."""


@dataclass(frozen=True)
class Message:
    """`known`: names of members, by the names that lead to their object. `direction`: who sends it."""

    direction: str
    method: str
    text: bytes
    root: Pairs
    known: Mapping[tuple[str, ...], tuple[str, ...]]


_PARAMS = ("name", "arguments", "_meta", "task", "inputResponses", "requestState")
_ELICITATION = ("mode", "message", "url", "elicitationId", "requestedSchema", "task", "_meta")
_SCHEMA = (
    *("$schema", "$ref", "type", "required", "enum", "enumNames", "const", "title", "description", "default"),
    *("x-mcp-header", "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "items"),
    *("prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf", "not"),
)
_LIMITS = ("format", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems")
KNOWN: Mapping[str, Mapping[tuple[str, ...], tuple[str, ...]]] = {
    "tools/call": {(): _PARAMS, ("arguments",): ("path", "options"), ("arguments", "options"): ("mode",)},
    "prompts/get": {(): ("name", "arguments", "_meta", "inputResponses", "requestState")},
    "resources/read": {(): ("uri", "_meta", "inputResponses", "requestState")},
    "completion/complete": {
        (): ("ref", "argument", "context", "_meta"),
        ("ref",): ("type", "name", "title", "uri"),
        ("argument",): ("name", "value"),
    },
    "elicitation/create": {(): _ELICITATION, ("requestedSchema",): (*_SCHEMA, *_LIMITS)},
    "sampling/createMessage": {
        (): (
            *("messages", "modelPreferences", "systemPrompt", "includeContext", "temperature", "maxTokens"),
            *("stopSequences", "metadata", "tools", "toolChoice", "task", "_meta"),
        )
    },
    "tool": {
        (): (
            *("name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons", "execution"),
            "_meta",
        ),
        ("inputSchema",): _SCHEMA,
        ("annotations",): ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"),
    },
}
"""Members that each object has, in words of its own."""
OF_CLIENTS = ("tools/call", "tools/call", "prompts/get", "resources/read", "completion/complete")
OF_SERVERS = ("elicitation/create", "elicitation/create", "sampling/createMessage", "tool")


def a_message(random: Random, direction: str) -> Message:
    method = random.choice(OF_CLIENTS if direction == "client" else OF_SERVERS)
    root = _plain(random, method)
    objects = [(at, each) for at, each in _objects(root) if at in KNOWN[method] or random.random() < 0.2]
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        at, target = random.choice(objects)
        _add_one(random, target, KNOWN[method].get(at, ("x",)))
    return Message(direction, method, _written(random, root).encode(), root, KNOWN[method])


def _plain(random: Random, method: str) -> Pairs:
    own = Pairs([("vendor", "v"), ("note", Pairs([("a", "1")]))])
    random.shuffle(own)
    own = Pairs(own[: random.randrange(3)])
    if method == "tools/call":
        arguments = Pairs([("path", "/open"), ("options", Pairs([("mode", "plain")])), ("free", Pairs([("b", "1")]))])
        return Pairs([("name", "t"), ("arguments", arguments), *own])
    if method == "prompts/get":
        return Pairs([("name", "t"), *own])
    if method == "resources/read":
        return Pairs([("uri", "memo:open"), *own])
    if method == "completion/complete":
        return Pairs(
            [("ref", Pairs([("type", "ref/prompt"), ("name", "t")])), ("argument", Pairs([("name", "a")])), *own]
        )
    if method == "elicitation/create":
        if random.random() < 0.5:
            return Pairs([("mode", "url"), ("message", "m"), ("url", "https://open/"), ("elicitationId", "e"), *own])
        return Pairs([("message", "m"), ("requestedSchema", Pairs([("title", "open")])), *own])
    if method == "tool":
        schema, annotations = Pairs([("type", "object")]), Pairs([("title", "open")])
        return Pairs([("name", "t"), ("description", "d"), ("inputSchema", schema), ("annotations", annotations), *own])
    return Pairs([("messages", []), ("maxTokens", 5), ("systemPrompt", "open"), *own])


def _objects(root: Pairs, at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Pairs]]:
    found = [(at, root)]
    for name, each in root:
        found += _objects(each, (*at, name)) if isinstance(each, Pairs) else []
    return found


_FORMS = {"s": "\u017f", "k": "\u212a", "i": "\u0131", "n": "\uff4e", "a": "\uff41", "e": "\u0435"}


def _add_one(random: Random, target: Pairs, known: tuple[str, ...]) -> None:
    """Add a member that is, or is not, a twin of another one."""
    name = random.choice((*known, *(name for name, _ in target if name)))
    way = random.randrange(6)
    if way == 0:
        name = random.choice((name.upper(), name.title(), name.swapcase()))
    elif way == 1:
        at = random.randrange(len(name))
        name = name[:at] + name[at].swapcase() + name[at + 1 :]
    elif way == 2:
        name += random.choice(("\0", "\0x"))
    elif way == 3:
        name = "".join(_FORMS.get(char, char) if random.random() < 0.5 else char for char in name)
    elif way == 4:
        name = random.choice((f"{name}s", f"x-{name}", f" {name}", f"\0{name}", name[:-1], f"{name}\u200d"))
    else:
        name = random.choice(("other", "Other", "OTHER", "x", "X"))
    if any(name == other for other, _ in target):
        return
    value: Any = random.choice(("secret", "/secret", Pairs([("path", "/secret"), ("name", "s"), ("title", "secret")])))
    target.insert(random.randrange(len(target) + 1), (name, value))


def _written(random: Random, value: Any) -> str:
    if isinstance(value, Pairs):
        return f"{{{','.join(f'{_name(random, name)}:{_written(random, each)}' for name, each in value)}}}"
    return json.dumps(value)


def _name(random: Random, name: str) -> str:
    if random.random() < 0.8:
        return json.dumps(name, ensure_ascii=random.random() < 0.5)
    return '"' + "".join(f"\\u{ord(char):04x}" for char in name) + '"'


# How the host judges it


def passed(message: Message, *, looks: bool = True) -> bytes | None:
    """The object as the host sends it on; None if it refuses it because of a member that readers take for another one.
    Without `looks`, it does not look for these.

    Raises:
        Unusable: it is refused for another reason.
    """
    if message.direction == "client":
        return _passed_of_client(message, looks)
    if message.method == "tool":
        return None if looks and why_ambiguous(message.text, Kind.TOOL) is not None else message.text
    if looks:
        try:
            server_request_of(message.method, Raw(message.text))
        except ServerRequestRejected as refusal:
            if "some readers take" not in refusal.why:
                raise Unusable from None
            return None
    return message.text


def _passed_of_client(message: Message, looks: bool) -> bytes | None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (message.method.encode(), message.text)
    request = receive(line).message
    assert isinstance(request, Request), request
    found = members(request.params or b"")
    if looks:
        try:
            found = params_of(request)
            name = target_of(message.method, found)[1]
            arguments = found.get("arguments")
            is_call = message.method == "tools/call" and arguments is not None
            if is_call and find_twin(arguments or b"", DEFINITION, CONDITIONS) is not None:
                return None
        except InvalidParams as refusal:
            if "some readers take" not in refusal.message:
                raise Unusable from None
            return None
        found = with_target(message.method, found, name)
    return bytes(encode_object(found))


def is_ambiguous(message: Message) -> bool:
    """Whether an object that is judged has two members that are equal after folding, or one that folds to a known name
    and is not it: the rule, in words of its own."""
    for at, each in _objects(message.root):
        if at in message.known:
            names = [name for name, _ in each]
            folded = [folded_name(name) for name in names]
            known = {folded_name(name): name for name in message.known[at]}
            if len(set(folded)) < len(folded):
                return True
            if any(fold in known and known[fold] != name for fold, name in zip(folded, names, strict=True)):
                return True
    return False


def folded_name(name: str) -> str:
    return normalize("NFKC", name.split("\0")[0]).casefold()
