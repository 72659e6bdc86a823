"""The form of the file: which keys there are, what each may hold, and the schema that tells an editor the same.

The models describe the file, not what it comes to: their values are nodes read into plain things, one reader per
kind of value. A reader takes a node, fills in its references with the `Expander` of the validation context and
raises a sentence that says what was expected. Values that may be secret are never quoted; others only if they were
written in the file.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from config import model
from config.interpolate import CannotExpandError, Expanded, Expander
from config.naming import ID_PATTERN, LONGEST_ID, make_id
from config.problems import clip
from config.source import List, Map, Scalar, kind_of

LONGEST_CALL = 600.0
LONGEST_GRACE = 60.0
RESERVED_PATHS = ("/status", "/healthz", "/console", "/sse", "/message")

Json = dict[str, Any]

_DURATION = r"[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h)"
_ENDPOINT_PATH = r"(?:/[A-Za-z0-9._~-]+)+"
_HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)"
_HOST_AND_PORT = rf"{_HOST}(?::[0-9]{{1,5}})?"
_ORIGIN = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST_AND_PORT}"
_ADDRESS = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ENV_NAME = re.compile(r"[!-<>-~]+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class Wrong(PydanticCustomError):
    """A value that is not what was expected; the sentence is complete and holds nothing secret."""

    def __new__(cls, text: str) -> Wrong:
        return super().__new__(cls, "config", text)


def _expected(what: str, found: str, remedy: str = "") -> Wrong:
    text = f"expected {what}, found {found}"
    return Wrong(f"{text}; {remedy}" if remedy else text)


def _scalar(value: object, what: str) -> Scalar:
    if isinstance(value, Scalar) and not value.is_null:
        return value
    found = "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else kind_of(value)
    remedy = 'write "" for empty text' if found == "nothing" else ""
    raise _expected(what, found, remedy)


def _expand(raw: str, info: ValidationInfo) -> Expanded:
    expander = info.context
    assert isinstance(expander, Expander)
    try:
        return expander.expand(raw)
    except CannotExpandError as error:
        raise Wrong(str(error)) from None


def _read(value: object, info: ValidationInfo, what: str) -> Expanded:
    return _expand(_scalar(value, what).text, info)


def _quote(value: Expanded) -> str:
    """What was found, if the file itself says so; what came from outside stays unsaid."""
    return f'"{clip(value.text)}"' if value.literal else "something else in what ${...} gave"


# Readers, one per kind of value.


def _read_text(value: object, info: ValidationInfo) -> Expanded:
    return _read(value, info, "text")


def _read_title(value: object, info: ValidationInfo) -> str:
    title = _read(value, info, "a name to show")
    if not title.text.strip() or not title.text.isprintable() or len(title.text) > 100:
        raise Wrong("expected one line of at most 100 characters to show as the name")
    return title.text


def _read_header_value(value: object, info: ValidationInfo) -> Expanded:
    header = _read(value, info, "the value of a header")
    if "\n" in header.text or "\r" in header.text:
        raise Wrong("a header value may not hold a line break")
    if not header.text.isascii() or not header.text.replace("\t", " ").isprintable():
        raise Wrong("a header value may hold printable ASCII characters only")
    if header.text != header.text.strip():
        raise Wrong("a header value may not begin or end with a space")
    return header


def _read_duration(value: object, info: ValidationInfo) -> float:
    what = "a duration such as 500ms, 60s, 5m or 1h"
    duration = _read(value, info, what)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", duration.text)
    if match is None:
        bare = duration.literal and re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", duration.text)
        raise _expected(what, _quote(duration), f"give the unit, for instance {duration.text}s" if bare else "")
    return float(match[1]) * _SECONDS[match[2]]


def _up_to(least: float, most: float, text: str) -> Callable[[float], float]:
    def check(seconds: float) -> float:
        if not least <= seconds <= most:
            raise Wrong(f"expected a duration {text}")
        return seconds

    return check


def _read_bool(value: object, info: ValidationInfo) -> bool:
    what = "true or false"
    scalar = _scalar(value, what)
    flag = _expand(scalar.text, info)
    if flag.text in ("true", "false"):
        if flag.literal and not scalar.plain:
            raise _expected(what, "text in quotes", f"write {flag.text} without quotes")
        return flag.text == "true"
    meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}
    word = flag.text.lower()
    remedy = meant.get(word) or (word if word in ("true", "false") else "")
    raise _expected(what, _quote(flag), f"write {remedy}" if remedy and flag.literal else "")


@dataclass(frozen=True)
class _CommandLine:
    """A command that stands alone in one string and is to be split into words."""

    node: Scalar


def _read_command(value: object, info: ValidationInfo) -> tuple[Expanded, ...]:
    what = "a program, or a list of a program and its arguments"
    if isinstance(value, list):
        words = tuple(_read(item, info, f"text in item {n} of the list") for n, item in enumerate(value, 1))
    elif isinstance(value, _CommandLine):
        # Split before the references are filled in: what they give stays one word whatever it holds.
        words = tuple(_expand(word, info) for word in _split(_scalar(value.node, what).text))
    else:
        words = (_read(value, info, what),)
    if not words or not words[0].text:
        raise _expected(what, "no program")
    return words


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise Wrong(f"this cannot be split into words ({str(error).lower()}); write it as a list") from None


def _read_url(value: object, info: ValidationInfo) -> Expanded:
    what = "a URL such as https://example.com/mcp"
    url = _read(value, info, what)
    if not url.text.isprintable() or " " in url.text or "\\" in url.text:
        raise Wrong(f"expected {what}; spaces, backslashes and control characters may not stand in it")
    try:
        parts = urlsplit(url.text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise Wrong(f"expected {what}; its host or port cannot be read") from None
    if parts.scheme not in ("http", "https"):
        raise Wrong(f"expected {what}; only http and https are spoken")
    if not host:
        raise Wrong(f"expected {what}; this one has no host")
    if "@" in parts.netloc:
        raise Wrong("a URL may not hold a user or password; send them in headers, as Authorization")
    if "#" in url.text:
        raise Wrong("a URL may not have a fragment; take away # and what follows it")
    return url


def _read_address(value: object, info: ValidationInfo) -> tuple[str, int]:
    what = "an address such as 127.0.0.1:8808"
    address = _read(value, info, what)
    host, colon, port = address.text.rpartition(":")
    if not re.fullmatch(_ADDRESS, address.text) or int(port) > 65535:
        remedy = "give the port too" if not colon else "an IPv6 address stands in brackets" if ":" in host else ""
        raise _expected(what, _quote(address), remedy)
    host = host.removeprefix("[").removesuffix("]")
    host = model.DEFAULT_HOST if host.lower() == "localhost" else host
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise _expected("a loopback address, since there are no access tokens yet", _quote(address), "use 127.0.0.1")
    return host, int(port)


def _read_endpoint_path(value: object, info: ValidationInfo) -> str:
    what = "a path such as /mcp"
    path = _read(value, info, what)
    segments = path.text.split("/")[1:]
    if not re.fullmatch(_ENDPOINT_PATH, path.text) or not {".", ".."}.isdisjoint(segments):
        remedy = "it begins with /, does not end with one, and holds letters, digits, - . _ ~ and single / only"
        raise _expected(what, _quote(path), remedy)
    if f"/{segments[0]}" in RESERVED_PATHS:
        raise _expected(what, _quote(path), f"/{segments[0]} is taken by Colonnade itself")
    return path.text


def _read_origin(value: object, info: ValidationInfo) -> str:
    what = "an origin such as https://example.com:8443"
    origin = _read(value, info, what)
    if not re.fullmatch(_ORIGIN, origin.text):
        raise _expected(what, _quote(origin), "scheme, host and port only, without a path or a / at the end")
    scheme, _, rest = origin.text.lower().partition("://")
    # A browser never sends the port that goes without saying: with it, the entry would match nothing.
    return f"{scheme}://{rest.removesuffix(_DEFAULT_PORTS.get(scheme, ' '))}"


def _read_host(value: object, info: ValidationInfo) -> str:
    what = "a host such as example.com or example.com:8808"
    host = _read(value, info, what)
    if not re.fullmatch(_HOST_AND_PORT, host.text):
        raise _expected(what, _quote(host), "no scheme and no path; an IPv6 address stands in brackets")
    return host.text.lower()


def _read_pattern(value: object, info: ValidationInfo) -> str:
    pattern = _read(value, info, "a pattern")
    if not pattern.text:
        raise _expected("a pattern", "empty text", "* stands for everything")
    return pattern.text


def _read_id(name: str) -> str:
    if re.fullmatch(ID_PATTERN, name) and len(name) <= LONGEST_ID:
        return name
    suggestion = make_id(name)
    hint = f', for instance "{suggestion}"' if suggestion else ""
    raise Wrong(
        f"a server id is at most {LONGEST_ID} lower-case letters and digits, with single dashes between, "
        f"and begins with a letter{hint}"
    )


def _read_env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name) or "${" in name:
        raise Wrong("a variable's name is printable ASCII without spaces and =; the value stands after the colon")
    return name


def _read_header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name) or "${" in name:
        raise Wrong("a header's name is letters, digits and dashes; the value stands after the colon")
    if model.is_protocol_header(name):
        raise Wrong("this header is set by Colonnade itself; take it away")
    return name


def _unique_names(headers: dict[str, Expanded]) -> dict[str, Expanded]:
    if len({name.lower() for name in headers}) < len(headers):
        raise Wrong("two headers differ only in upper and lower case; keep one")
    return headers


def _not_empty(servers: dict[str, ServerForm]) -> dict[str, ServerForm]:
    if not servers:
        raise Wrong("there is nothing to serve; name at least one server")
    return servers


# What an editor is told about them.


def _text_schema(pattern: str | None = None) -> Json:
    """Text as YAML writes it. An editor takes `8080` for a number and `true` for a truth; both are fine."""
    if pattern is None:
        return {"type": ["string", "number", "boolean"]}
    return {"type": "string", "pattern": rf"^(?:{pattern})$|\$\{{"}


_BOOL_SCHEMA: Json = {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": r"\$\{"}]}
_WORD_SCHEMA: Json = {"enum": ["allow", "deny"]}
_COMMAND_SCHEMA: Json = {
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": _text_schema(), "minItems": 1}]
}

Text = Annotated[Expanded, PlainValidator(_read_text), WithJsonSchema(_text_schema())]
Title = Annotated[str, PlainValidator(_read_title), WithJsonSchema(_text_schema())]
HeaderValue = Annotated[Expanded, PlainValidator(_read_header_value), WithJsonSchema(_text_schema())]
Duration = Annotated[float, PlainValidator(_read_duration), WithJsonSchema(_text_schema(_DURATION))]
CallTime = Annotated[Duration, AfterValidator(_up_to(1e-6, LONGEST_CALL, "above zero and at most 600s"))]
Grace = Annotated[Duration, AfterValidator(_up_to(0, LONGEST_GRACE, "of at most 60s"))]
Flag = Annotated[bool, PlainValidator(_read_bool), WithJsonSchema(_BOOL_SCHEMA)]
Command = Annotated[tuple[Expanded, ...], PlainValidator(_read_command), WithJsonSchema(_COMMAND_SCHEMA)]
Url = Annotated[Expanded, PlainValidator(_read_url), WithJsonSchema(_text_schema("https?://[^#]+"))]
Address = Annotated[tuple[str, int], PlainValidator(_read_address), WithJsonSchema(_text_schema(_ADDRESS))]
EndpointPath = Annotated[str, PlainValidator(_read_endpoint_path), WithJsonSchema(_text_schema(_ENDPOINT_PATH))]
Origin = Annotated[str, PlainValidator(_read_origin), WithJsonSchema(_text_schema(_ORIGIN))]
Host = Annotated[str, PlainValidator(_read_host), WithJsonSchema(_text_schema(_HOST_AND_PORT))]
Pattern = Annotated[str, PlainValidator(_read_pattern), WithJsonSchema({"type": "string", "minLength": 1})]
ServerId = Annotated[str, AfterValidator(_read_id)]
EnvName = Annotated[str, AfterValidator(_read_env_name)]
HeaderName = Annotated[str, AfterValidator(_read_header_name)]


def _described(default: str | bool | None, description: str, **more: Any) -> Any:
    """A field that may be left out. `default` is what the schema says, in the words of the file."""
    extra: Json = {**more} if default is None else {**more, "default": default}
    return Field(default=None, description=description, json_schema_extra=extra)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


def _word_or_map(value: object, what: str, allow: object, deny: object) -> object:
    if not isinstance(value, Scalar):
        return value
    if value.text not in ("allow", "deny"):
        meant = difflib.get_close_matches(value.text.lower(), ("allow", "deny"), 1)
        raise _expected(what, f'"{value.shown}"', f"did you mean {meant[0]}?" if meant else "")
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
    url: Url | None = _described(None, "The address of a server that speaks Streamable HTTP.")
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(_unique_names)] = Field(
        default={}, description="Headers sent with every request to the server."
    )
    timeout: CallTime | None = _described("60s", "How long one call may take; progress starts it anew, to 600s in all.")
    start_timeout: CallTime | None = _described("60s", "How long connecting, handshake and first lists may take.")
    consent: ConsentForm = Field(
        default_factory=ConsentForm, description="What may be reached; without it, everything."
    )
    disabled: Flag | None = _described(False, "Leave the server out without taking it from the file.")
    title: Title | None = _described(None, "A name for people, shown instead of the id.")

    @model_validator(mode="before")
    @classmethod
    def _command_alone(cls, value: object) -> object:
        if isinstance(value, dict) and "args" not in value and isinstance(value.get("command"), Scalar):
            return {**value, "command": _CommandLine(value["command"])}
        return value


class ListenForm(_Form):
    """Where the endpoint is and who may knock."""

    address: Address | None = _described(
        f"{model.DEFAULT_HOST}:{model.DEFAULT_PORT}", "host:port on loopback; IPv6 in brackets; port 0: a free one."
    )
    path: EndpointPath | None = _described(model.DEFAULT_PATH, "The path of the endpoint.")
    origins: tuple[Origin, ...] = Field(default=(), description="Origins of web pages to accept beside loopback ones.")
    hosts: tuple[Host, ...] = Field(default=(), description="Host headers to accept beside the loopback ones.")


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
