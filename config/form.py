"""The form of the file: which keys there are, what each may hold, and the schema that tells an editor the same.

The models describe the file, not what it comes to: their values are nodes read into plain things by the readers of
`config.values`. What is wrong with keys taken together is said here as well.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from config import model
from config.interpolate import Expanded
from config.naming import ID_PATTERN, LONGEST_ID
from config.source import List, Map, Scalar
from config.values import (
    TOKEN_NAME,
    Address,
    CallTime,
    Command,
    CommandLine,
    Count,
    EndpointPath,
    EnvName,
    Flag,
    Grace,
    HeaderName,
    HeaderValue,
    Host,
    Idle,
    Isolation,
    Json,
    Origin,
    Pattern,
    Protocol,
    ServerId,
    Text,
    Title,
    Token,
    TokenName,
    Trust,
    Url,
    Wrong,
    did_you_mean,
    expected,
)

_WORD_SCHEMA: Json = {"enum": ["allow", "deny"]}
_NAME_A_TOKEN = 'name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}'
_DEDICATED_KEYS = {"max_instances": "counts", "idle_timeout": "stops"}


def _unique_names(headers: dict[str, Expanded]) -> dict[str, Expanded]:
    if len({name.lower() for name in headers}) < len(headers):
        raise Wrong("two headers differ only in upper and lower case; keep one")
    return headers


def _not_empty(servers: dict[str, ServerForm]) -> dict[str, ServerForm]:
    if not servers:
        raise Wrong("there is nothing to serve; name at least one server")
    return servers


def _different(tokens: dict[str, Expanded]) -> dict[str, Expanded]:
    if not tokens:
        raise Wrong(f"there is no token, so nobody could come in; {_NAME_A_TOKEN}, or take auth away")
    names: dict[str, str] = {}
    for name, token in tokens.items():
        first = names.setdefault(token.text, name)
        if first != name:
            raise Wrong(f'"{first}" and "{name}" have the same token, so they cannot be told apart; give each its own')
    return tokens


def _described(default: str | int | None, description: str, **more: Any) -> Any:
    """A field that may be left out. `default` is what the schema says, in the words of the file."""
    extra: Json = {**more} if default is None else {**more, "default": default}
    return Field(default=None, description=description, json_schema_extra=extra)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


def _word_or_map(value: object, what: str, allow: object, deny: object) -> object:
    if not isinstance(value, Scalar):
        return value
    if value.text not in ("allow", "deny"):
        raise expected(what, f'"{value.shown}"', did_you_mean(value.text, ("allow", "deny")))
    return allow if value.text == "allow" else deny


class KindForm(_Form):
    """Patterns of one kind: what may be reached and what may not."""

    allow: tuple[Pattern, ...] | None = Field(
        default=None, description="Only what one of these patterns names may be reached. An empty list: nothing."
    )
    deny: tuple[Pattern, ...] = Field(
        default=(), description="What one of these patterns names may not be reached, whatever allow says."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        return _word_or_map(value, "allow, deny, or a map of patterns", {}, {"allow": []})


class ConsentForm(_Form):
    """What of a server may be reached, kind by kind."""

    tools: KindForm = Field(
        default_factory=KindForm, description="Consent for tools, by name; * matches any characters."
    )
    resources: KindForm = Field(
        default_factory=KindForm, description="Consent for resources, by URI; * stops at a slash, ** does not."
    )
    prompts: KindForm = Field(
        default_factory=KindForm, description="Consent for prompts, by name; * matches any characters."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        no_kind = {kind: {"allow": list[object]()} for kind in ("tools", "resources", "prompts")}
        return _word_or_map(value, "allow, deny, or a map of tools, resources and prompts", {}, no_kind)


class ServerForm(_Form):
    """One server: a program to start (command) or an address to reach (url)."""

    command: Command | None = _described(
        None,
        "The program to start. A list is the program and its arguments; a string beside args is the program alone; "
        "a string by itself is split into words as a POSIX shell would.",
    )
    args: tuple[Text, ...] | None = _described(None, "The program's arguments, if command is a string.")
    env: dict[EnvName, Text] = Field(default={}, description="Variables added to the program's environment.")
    cwd: Text | None = _described(".", "The folder the program starts in, from the folder of this file.")
    url: Url | None = _described(None, "The address of a server that speaks Streamable HTTP or the older HTTP+SSE.")
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(_unique_names)] = Field(
        default={}, description="Headers sent with every request to the server."
    )
    timeout: CallTime | None = _described("60s", "How long one call may take; progress starts it anew, to 600s in all.")
    start_timeout: CallTime | None = _described("60s", "How long connecting, handshake and first lists may take.")
    consent: ConsentForm = Field(
        default_factory=ConsentForm, description="What may be reached; without it, everything."
    )
    trust: Trust | None = _described(
        "standard",
        "What the server may ask of clients. trusted: everything. standard: to fill in a form and for the roots; "
        "sampling and opening a URL are refused. untrusted: nothing, and its instructions and the pages of its apps "
        "are left out.",
    )
    protocol: Protocol | None = _described(
        "auto",
        "How to begin with the server. auto: ask which revisions it speaks, and shake hands if it does not know the "
        "question. legacy: never ask, for servers that exit or fall silent then. modern: never shake hands.",
    )
    isolation: Isolation | None = _described(
        "shared", "Who shares an instance of the server: all clients, the requests of one client, or nobody (per-call)."
    )
    max_instances: Count | None = _described(
        model.DEFAULT_MAX_INSTANCES, "How many dedicated instances may live at once, if isolation is not shared."
    )
    idle_timeout: Idle | None = _described(
        "5m", "After how long without use a dedicated instance is stopped, if isolation is not shared; 1s to 24h."
    )
    disabled: Flag | None = _described(False, "Leave the server out without taking it from the file.")
    title: Title | None = _described(None, "A name for people, shown instead of the id.")

    @model_validator(mode="before")
    @classmethod
    def _command_alone(cls, value: object) -> object:
        if isinstance(value, dict) and "args" not in value and isinstance(value.get("command"), Scalar):
            return {**value, "command": CommandLine(value["command"])}
        return value


class AuthForm(_Form):
    """Who may come in."""

    tokens: Annotated[dict[TokenName, Token], AfterValidator(_different)] = Field(
        description="Access tokens, each under the name of whoever has it; a request must carry one of them.",
        json_schema_extra={"minProperties": 1, "propertyNames": {"pattern": f"^{TOKEN_NAME}$"}},
    )


class ListenForm(_Form):
    """Where the endpoint is and who may knock."""

    # Above the address, which is judged by it.
    auth: AuthForm | None = Field(default=None, description="Who may come in; without it, whoever reaches the address.")
    address: Address | None = _described(
        f"{model.DEFAULT_HOST}:{model.DEFAULT_PORT}",
        "host:port; IPv6 in brackets; port 0: a free one. Beyond loopback only with tokens under auth.",
    )
    path: EndpointPath | None = _described(model.DEFAULT_PATH, "The path of the endpoint.")
    origins: tuple[Origin, ...] = Field(default=(), description="Origins of web pages to accept beside loopback ones.")
    hosts: tuple[Host, ...] = Field(default=(), description="Host headers to accept beside the loopback ones.")
    sse: Flag | None = _described(True, "Serve the older HTTP+SSE transport too, at /sse and /message.")

    @field_validator("address")
    @classmethod
    def _guarded(cls, address: tuple[str, int] | None, info: ValidationInfo) -> tuple[str, int] | None:
        # An auth that is wrong is missing in data, and its own problem is enough.
        if address is None or model.is_loopback(address[0]) or info.data.get("auth", ...) is not None:
            return address
        raise Wrong(
            "an address beyond loopback is open to other machines, so it needs access tokens under listen.auth.tokens; "
            f"{_NAME_A_TOKEN}, or use {model.DEFAULT_HOST}"
        )


class FileForm(_Form):
    """A configuration file of Colonnade."""

    listen: ListenForm = Field(default_factory=ListenForm, description="The endpoint: its address, and who may knock.")
    start_grace: Grace | None = _described(
        "3s", "How long the first answers may wait for servers that are still starting; 0s to 60s."
    )
    servers: Annotated[dict[ServerId, ServerForm], AfterValidator(_not_empty)] = Field(
        description="The servers, each under its id.",
        json_schema_extra={
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID},
        },
    )


def form_at(path: tuple[str | int, ...]) -> type[_Form] | None:
    """The model that describes the map at a place of the file; None where keys are free."""
    match path:
        case ():
            return FileForm
        case ("listen",):
            return ListenForm
        case ("listen", "auth"):
            return AuthForm
        case ("servers", _):
            return ServerForm
        case ("servers", _, "consent"):
            return ConsentForm
        case ("servers", _, "consent", _):
            return KindForm
        case _:
            return None


def cross_problems(server: Map) -> list[tuple[str | None, str]]:
    """What is wrong with a server's keys taken together, each as (the key to point at or None, the sentence)."""
    return [*_misplaced(server), *_undedicated(server)]


def _undedicated(server: Map) -> list[tuple[str | None, str]]:
    isolation = server.get("isolation")
    if isolation is not None and (not isinstance(isolation, Scalar) or isolation.text != model.Isolation.SHARED):
        return []
    return [
        (
            key,
            f"{key} {does} dedicated instances, and a shared server has none; write isolation: per-client or per-call",
        )
        for key, does in _DEDICATED_KEYS.items()
        if key in server.entries
    ]


def _misplaced(server: Map) -> list[tuple[str | None, str]]:
    has = server.entries.keys()
    if "command" in has and "url" in has:
        return [("url", "expected exactly one of command and url, found both; keep one")]
    if "command" not in has and "url" not in has:
        return [(None, "expected exactly one of command and url, found neither")]
    if "url" in has:
        return [
            (key, f"{key} belongs to a server with a command; this one has a url")
            for key in ("args", "env", "cwd")
            if key in has
        ]
    if "headers" in has:
        return [("headers", "headers belong to a server with a url; give a program its secrets in env")]
    if "args" in has and isinstance(server.get("command"), List):
        return [("args", "command is a list already; put the arguments there, or write command as a string")]
    return []


def schema() -> Json:
    """JSON Schema (2020-12) of a configuration file, for editors. Every call makes a new dictionary."""
    made = _tidied(FileForm.model_json_schema())
    assert isinstance(made, dict)
    definitions = made["$defs"]
    for name in ("KindForm", "ConsentForm"):
        definitions[name] = {"anyOf": [_WORD_SCHEMA, definitions[name]]}
    nothing = False
    definitions["ServerForm"]["oneOf"] = [
        {"required": ["command"], "properties": {"url": nothing, "headers": nothing}},
        {"required": ["url"], "properties": dict.fromkeys(("command", "args", "env", "cwd"), nothing)},
    ]
    definitions["ServerForm"]["if"] = {"required": ["command"], "properties": {"command": {"type": "array"}}}
    definitions["ServerForm"]["then"] = {"properties": {"args": nothing}}
    dedicated = {
        "required": ["isolation"],
        "properties": {"isolation": {"not": {"const": model.Isolation.SHARED.value}}},
    }
    definitions["ServerForm"]["dependentSchemas"] = dict.fromkeys(_DEDICATED_KEYS, dedicated)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "Colonnade configuration"}


def _tidied(node: Any) -> Any:
    """Without the traces of Python: generated titles, and null for what may be left out."""
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _tidied(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if made.get("default", ...) is None:
        del made["default"]
    choices = [choice for choice in made.get("anyOf", ()) if choice != {"type": "null"}]
    if choices:
        del made["anyOf"]
        return {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **made}
    return made
