"""The configuration: the keys of the file, and at the same time the frozen objects that the host reads.

The classes are dataclasses that pydantic reads from the values of a file. The validators and descriptions of their
fields are for files alone: code that builds an object itself gives it final values, which are not checked again.
Durations are seconds, paths are absolute, and everything that may be secret is a `Secret`; the `repr` of a server or of
the whole is safe to log.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetPydanticSchema,
    ModelWrapValidatorHandler,
    Tag,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from config.naming import ID_PATTERN, LONGEST_ID
from config.problems import clip, did_you_mean
from config.references import Expander, Secret, mask
from config.types import (
    DEFAULT_HOST,
    TOKEN_NAME,
    Absent,
    AbsolutePaths,
    Address,
    AddressText,
    Affix,
    Argument,
    AskTime,
    AuditAge,
    AuditSize,
    CallTime,
    Concurrency,
    EachOnce,
    EndpointPath,
    EnvName,
    Flag,
    Folder,
    FrozenMap,
    Grace,
    HeaderName,
    HeaderValue,
    Host,
    HostNames,
    Idle,
    Instances,
    InvalidKey,
    InvalidValue,
    Json,
    JsonScalar,
    JsonScalars,
    Length,
    LoopbackAddress,
    Memory,
    MessageSize,
    Origin,
    Pattern,
    Range,
    RateText,
    SecretText,
    ServerId,
    Title,
    Token,
    TokenName,
    TypeName,
    Url,
    errors_below,
    expected,
    is_loopback,
    pointer,
    refuse_tilde,
    split_command,
)
from config.yaml import is_null, kind_of

DEFAULT_ADDRESS = Address(DEFAULT_HOST, 8808)
DEFAULT_PATH = "/mcp"
DEFAULT_START_GRACE = 3.0
DEFAULT_TIMEOUT = 60.0
DEFAULT_START_TIMEOUT = 60.0
DEFAULT_MAX_INSTANCES = 16
DEFAULT_IDLE_TIMEOUT = 300.0
DEFAULT_ASK_TIMEOUT = 50.0
DEFAULT_MEMORY = 256 * 1024 * 1024

_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
_NAME_A_TOKEN = 'name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}'


class _Strict:
    """A map of the file in which only the keys of the class may stand."""

    __pydantic_config__ = _STRICT


def _key(description: str, default: Any = None, **schema: Any) -> Any:
    """What an editor shows of a key. `default` is the default as the file would say it; it changes no value."""
    more = schema if default is None else {**schema, "default": default}
    return Field(description=description, json_schema_extra=more)


def _refuse_key(value: object) -> object:
    raise PydanticCustomError("extra_forbidden", "unknown key")


# A field that is no key of the file. Its default is not validated, so the validator only meets what a file wrote.
_NO_KEY = BeforeValidator(_refuse_key)


def _no_secrets() -> Mapping[str, Secret]:
    return MappingProxyType({})


class Verdict(StrEnum):
    """What becomes of a request: it passes, a person is asked, or it is answered as if there were nothing."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Trust(StrEnum):
    """What holds for a server where `consent` says nothing, and what becomes of its definitions.

    A trusted one may do everything, and its changes are only noted. Of a standard one, the first definitions are pinned
    and a changed one is held until a person approves it. Of an untrusted one nothing is listed before that, every call
    asks, and its texts are cleaned.
    """

    TRUSTED = "trusted"
    STANDARD = "standard"
    UNTRUSTED = "untrusted"


class Isolation(StrEnum):
    """Who shares an instance of a server (a process or a session): all clients, the requests of one, or nobody."""

    SHARED = "shared"
    PER_CLIENT = "per-client"
    PER_CALL = "per-call"


class Protocol(StrEnum):
    """How to begin with a server: the handshake revisions and the stateless ones begin differently.

    Auto asks which it speaks, and shakes hands if it does not know the question. Legacy shakes hands without asking,
    for servers that exit or fall silent when asked. Modern never shakes hands.
    """

    AUTO = "auto"
    LEGACY = "legacy"
    MODERN = "modern"


class Channel(StrEnum):
    """Where a person may answer."""

    CONSOLE = "console"
    TERMINAL = "terminal"
    CLIENT = "client"


class AuditDetail(StrEnum):
    """How much the audit keeps of the arguments of calls."""

    DIGEST = "digest"
    FULL = "full"


# Conditions on arguments.

CheckValue = str | int | float | bool | tuple[str | int | float | bool | None, ...] | None


@dataclass(frozen=True)
class Check:
    """One check of one argument.

    `op` and the type of `value`: `eq` scalar; `in` tuple of scalars; `prefix`, `suffix`, `glob` text; `range` a pair of
    numbers, None where it is open; `max_len` characters of text or items of an array; `type` a word of JSON Schema;
    `absent` True; `path_under` absolute paths; `host_in` host names.
    """

    op: str
    value: CheckValue


@dataclass(frozen=True)
class Condition:
    """The checks of one argument, which must all hold. `path` is a JSON pointer (RFC 6901) into the arguments."""

    path: str
    checks: tuple[Check, ...]


_NOT_SAID: Any = object()


@dataclass(frozen=True)
class Checks(_Strict):
    """The checks of one argument as the file has them; all must hold. A value alone means eq, a list alone in."""

    __pydantic_config__ = ConfigDict(
        **_STRICT, json_schema_extra={"minProperties": 1, "dependentSchemas": {"absent": {"maxProperties": 1}}}
    )

    eq: Annotated[JsonScalar, _key("It is this value, of this JSON type.")] = _NOT_SAID
    in_: Annotated[JsonScalars, Field(validation_alias="in", description="It is one of these values.")] = _NOT_SAID
    prefix: Annotated[Affix, _key("It is text that begins so.")] = _NOT_SAID
    suffix: Annotated[Affix, _key("It is text that ends so.")] = _NOT_SAID
    glob: Annotated[Pattern, _key("It is text that this pattern matches whole; * is any characters, ? one.")] = (
        _NOT_SAID
    )
    range: Annotated[Range, _key("It is a number from the first to the second, both included; null: open.")] = _NOT_SAID
    max_len: Annotated[Length, _key("It is text of at most so many characters, or a list of so many items.")] = (
        _NOT_SAID
    )
    type: Annotated[TypeName, _key("It has this JSON type.")] = _NOT_SAID
    absent: Annotated[Absent, _key("It is not there.")] = _NOT_SAID
    path_under: Annotated[AbsolutePaths, _key("It is an absolute path to one of these folders or into it.")] = _NOT_SAID
    host_in: Annotated[HostNames, _key("It is a URL of one of these hosts, or such a host.")] = _NOT_SAID

    def said(self) -> tuple[Check, ...]:
        """Those that the file names, in the order of this class."""
        return tuple(Check(op, value) for op, name in CHECKS.items() if (value := getattr(self, name)) is not _NOT_SAID)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        said = self.said()
        if not said:
            raise expected("at least one check", "an empty map", "for instance {prefix: draft-}")
        if len(said) > 1 and self.absent is not _NOT_SAID:
            raise InvalidValue("what is absent can be nothing else; leave absent alone, or take it away")
        return self


CHECKS = {key.name.removesuffix("_"): key.name for key in dataclasses.fields(Checks)}
"""The checks by their keys in the file, and their names here."""


def _expand_check(value: object) -> object:
    """A value by itself is `eq`, a list by itself is `in`."""
    if isinstance(value, str):
        return {"eq": value}
    return {"in": value} if isinstance(value, list) else value


def _conditions(when: Mapping[str, Checks]) -> tuple[Condition, ...]:
    """The conditions of a map of arguments. Their order in the file means nothing, so here it is always the same."""
    if not when:
        raise expected("a map of arguments", "an empty map", "take it away, or name an argument")
    names: dict[str, str] = {}
    for name in when:
        first = names.setdefault(pointer(name), name)
        if first != name:
            raise InvalidValue(f'"{clip(first)}" and "{clip(name)}" are the same argument; keep one')
    made = (Condition(pointer(name), checks.said()) for name, checks in when.items())
    return tuple(sorted(made, key=lambda condition: condition.path))


def _written_as(form: Any, make: Any = None) -> GetPydanticSchema:
    """Read a field as another type than its own, from which `make` then makes its value."""

    def schema(_: Any, handler: Any) -> core_schema.CoreSchema:
        written: core_schema.CoreSchema = handler(form)
        return core_schema.no_info_after_validator_function(make, written) if make else written

    return GetPydanticSchema(schema)


_OneArgument = Annotated[
    Checks, BeforeValidator(_expand_check, json_schema_input_type=JsonScalar | JsonScalars | Checks)
]
When = Annotated[tuple[Condition, ...], _written_as(dict[Argument, _OneArgument], _conditions)]


# Rules.


@dataclass(frozen=True)
class Rule(_Strict):
    """One entry of a list: a pattern, and perhaps conditions on the arguments.

    `closed`: an argument that the conditions do not name is not within the rule."""

    __pydantic_config__ = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "if": {"required": ["closed"], "properties": {"closed": {"const": True}}},
            "then": {"required": ["when"]},
        },
    )

    pattern: Annotated[
        Pattern,
        Field(
            validation_alias="name",
            description="The pattern that the name has to match; * is any characters, ? one.",
        ),
    ]
    when: Annotated[
        When,
        _key(
            "What the arguments have to be: each by its name, or by a JSON pointer that begins with a slash.",
            minProperties=1,
        ),
    ] = ()
    closed: Annotated[Flag, _key("No argument may be there that when does not name.", default=False)] = False

    @field_validator("closed")
    @classmethod
    def _closed_with_when(cls, closed: bool, info: ValidationInfo) -> bool:
        # A when that is wrong is missing in data, and its own problem is enough.
        if closed and info.data.get("when", ...) == ():
            raise InvalidValue(
                "closed is about arguments that when does not name; name under when those that there may be"
            )
        return closed


def _no_arguments(key: str) -> BeforeValidator:
    def refuse(value: object) -> object:
        raise InvalidKey(f"a URI is all there is to judge: it has no arguments that {key} could be about; take it away")

    return BeforeValidator(refuse)


@dataclass(frozen=True)
class UriRule(Rule):
    """One entry of a list of URIs, which have no arguments: a pattern alone."""

    __pydantic_config__ = _STRICT

    pattern: Annotated[
        Pattern,
        Field(
            validation_alias="uri",
            description="The pattern that the URI has to match; * stops at a slash, ** does not.",
        ),
    ]
    when: Annotated[SkipJsonSchema[tuple[Condition, ...]], _no_arguments("when")] = ()
    closed: Annotated[SkipJsonSchema[bool], _no_arguments("closed")] = False


def _pattern_alone(key: str, what: str) -> Any:
    def expand(value: object) -> object:
        if isinstance(value, list):
            raise expected(what, "a list")
        return {key: value} if isinstance(value, str) else value

    return expand


_RuleEntry = Annotated[
    Rule,
    BeforeValidator(
        _pattern_alone("name", "a pattern, or a map of name and when"), json_schema_input_type=Pattern | Rule
    ),
]
_UriRuleEntry = Annotated[
    UriRule,
    BeforeValidator(_pattern_alone("uri", "a pattern, or a map of uri"), json_schema_input_type=Pattern | UriRule),
]
_ALLOW = _key("What one of these rules names may be reached. What none names is then denied, unless default says else.")
_ASK = _key("Of what one of these rules names a person is asked, whatever allow says.")
_DENY = _key("What one of these rules names may not be reached, whatever else is said.")


@dataclass(frozen=True)
class KindConsent(_Strict):
    """The rules for one kind. `deny` wins over `ask`, `ask` over `allow`; order means nothing.

    What no list names is for `default`; if that is None, it is denied where an allow list stands, even an empty one,
    and else for the trust level to say.
    """

    allow: Annotated[tuple[_RuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_RuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_RuleEntry, ...], _DENY] = ()
    default: Annotated[
        Verdict | None,
        _key(
            "What becomes of the rest. Without it: deny where an allow list stands, and else as the trust level has it."
        ),
    ] = None

    @model_validator(mode="after")
    def _each_rule_once(self) -> Self:
        errors_below(self._repeated())
        return self

    def _repeated(self) -> Iterator[tuple[tuple[str, int], InvalidValue]]:
        """The rules that stand in a list already, or in a stronger one."""
        written: dict[str, str] = {}
        for name, rules in (("deny", self.deny), ("ask", self.ask), ("allow", self.allow or ())):
            for n, rule in enumerate(rules):
                # 1 and true are equal to Python and not to JSON, so rules are compared as they are written.
                first = written.get(repr(rule))
                if first is None:
                    written[repr(rule)] = name
                elif first == name:
                    yield (name, n), InvalidValue("this rule stands twice in this list; keep one")
                else:
                    yield (
                        (name, n),
                        InvalidValue(f"this rule stands under {first} too, which wins; keep it in one list"),
                    )


@dataclass(frozen=True)
class UriConsent(KindConsent):
    """The rules for one kind that is named by URI."""

    allow: Annotated[tuple[_UriRuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_UriRuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_UriRuleEntry, ...], _DENY] = ()


UNSPECIFIED = KindConsent()


def _one_word(keys: Iterable[str], what: str, *, lists: bool = False) -> Any:
    """Take one verdict for all of these keys. `lists`: the value is a map of lists, which a list by itself is not."""

    def expand(value: object) -> object:
        if isinstance(value, str):
            if value not in list(Verdict):
                found = kind_of(value) if is_null(value) else f'"{clip(value)}"'
                raise expected(f"allow, ask, deny, or a map of {what}", found, did_you_mean(value, Verdict))
            return dict.fromkeys(keys, value)
        if lists and isinstance(value, list):
            raise expected(
                f"allow, ask, deny, or a map of {what}", "a list", "say what it is for, as in {allow: [...]}"
            )
        return value

    return expand


_Names = Annotated[
    KindConsent,
    BeforeValidator(_one_word(["default"], "rules", lists=True), json_schema_input_type=Verdict | KindConsent),
]
_Uris = Annotated[
    KindConsent,
    _written_as(UriConsent),
    BeforeValidator(_one_word(["default"], "rules", lists=True), json_schema_input_type=Verdict | UriConsent),
]


@dataclass(frozen=True)
class Elicitation(_Strict):
    """Whether the server may ask the person at the client for something. The patterns of `url` are for the pages that
    it may want visited."""

    form: Annotated[Verdict | None, _key("To have a form filled in.")] = None
    url: Annotated[_Uris, _key("To have a page visited, by its URL.")] = UNSPECIFIED


@dataclass(frozen=True)
class Consent(_Strict):
    """What of a server may be reached and what it may ask for, kind by kind, in the server's own names.

    None and UNSPECIFIED: as the trust level has it. The patterns of `roots` are for the roots that it may be told."""

    tools: Annotated[_Names, _key("Rules for tools, by name; * is any characters.")] = UNSPECIFIED
    resources: Annotated[_Uris, _key("Rules for resources, by URI; * stops at a slash, ** does not.")] = UNSPECIFIED
    prompts: Annotated[_Names, _key("Rules for prompts, by name; * is any characters.")] = UNSPECIFIED
    sampling: Annotated[Verdict | None, _key("Whether it may ask for text from the client's model.")] = None
    elicitation: Annotated[
        Elicitation,
        BeforeValidator(_one_word(["form", "url"], "form and url"), json_schema_input_type=Verdict | Elicitation),
        _key("Whether it may ask the person at the client for something."),
    ] = Elicitation()
    roots: Annotated[_Uris, _key("Rules for the roots of the client that it may be told, by URI.")] = UNSPECIFIED


# Servers.


@dataclass(frozen=True)
class Limits(_Strict):
    """What a server may be used for at the most; None: no limit.

    `concurrent` calls run at once, a few more wait; `result` is in bytes, and so is `message`, one message as the
    server sends it; `sampling` counts the server's requests for it, `sampling_tokens` the tokens that they ask for."""

    calls: Annotated[RateText | None, _key("How many calls in a time, for instance 60/min.")] = None
    concurrent: Annotated[Concurrency | None, _key("How many calls may run at once; a few more wait.")] = None
    result: Annotated[MessageSize | None, _key("How large one answer may be, from 1KiB to 64MiB.")] = None
    sampling: Annotated[RateText | None, _key("How often the server may ask for text from the client's model.")] = None
    sampling_tokens: Annotated[
        RateText | None, _key("How many tokens it may ask for in a time, for instance 100000/day.")
    ] = None
    message: Annotated[
        MessageSize | None,
        _key(
            "How long one message of the server may be, from 1KiB to 64MiB. Without it, 8MiB; an HTTP answer in one "
            "piece 16MiB."
        ),
    ] = None


def _no_switch(value: object) -> object:
    """Whoever writes a switch for `trust` is not led to the word that allows everything."""
    if isinstance(value, str) and value.lower() in ("true", "yes", "on"):
        raise expected("trusted, standard or untrusted", f'"{clip(value)}"', "did you mean standard?")
    return value


_NOT_SHARED: Json = {
    "required": ["isolation"],
    "properties": {"isolation": {"not": {"const": Isolation.SHARED.value}}},
}
_DEDICATED_SCHEMA: Json = {"dependentSchemas": {"max_instances": _NOT_SHARED, "idle_timeout": _NOT_SHARED}}


@dataclass(frozen=True, repr=False, kw_only=True)
class Server(_Strict, ABC):
    """What every server has, however it is reached.

    `max_instances` and `idle_timeout` are about the dedicated instances of a server that is not shared: how many may
    live at once, and after how many seconds without use one is stopped.
    """

    __pydantic_config__ = ConfigDict(**_STRICT, json_schema_extra=_DEDICATED_SCHEMA)

    id: Annotated[SkipJsonSchema[str], _NO_KEY] = ""
    title: Annotated[Title | None, _key("A name for people, shown instead of the id.")] = None
    timeout: Annotated[
        CallTime, _key("How long one call may take; progress starts it anew, to 600s in all.", "60s")
    ] = DEFAULT_TIMEOUT
    start_timeout: Annotated[CallTime, _key("How long connecting, handshake and first lists may take.", "60s")] = (
        DEFAULT_START_TIMEOUT
    )
    consent: Annotated[
        Consent,
        BeforeValidator(
            _one_word(["tools", "resources", "prompts"], "tools, resources, prompts, sampling, elicitation and roots"),
            json_schema_input_type=Verdict | Consent,
        ),
        _key("What may be reached, and what the server may ask for. What is not said here follows from trust."),
    ] = Consent()
    trust: Annotated[
        Trust,
        BeforeValidator(_no_switch, json_schema_input_type=Trust),
        _key(
            "What holds where consent says nothing. trusted: everything is allowed, changed definitions too. standard: "
            "what it offers is allowed and a changed definition waits for approval; sampling and opening a URL ask. "
            "untrusted: every definition waits for approval, every call asks, its texts are cleaned, and it may ask "
            "for nothing.",
            "standard",
        ),
    ] = Trust.STANDARD
    limits: Annotated[Limits, _key("How much it may be used.")] = Limits()
    protocol: Annotated[
        Protocol,
        _key(
            "How to begin with the server. auto: ask which revisions it speaks, and shake hands if it does not know "
            "the question. legacy: never ask, for servers that exit or fall silent then. modern: never shake hands.",
            "auto",
        ),
    ] = Protocol.AUTO
    # Above the keys that only mean something to dedicated instances.
    isolation: Annotated[
        Isolation,
        _key(
            "Who shares an instance of the server: all clients, the requests of one client, or nobody (per-call).",
            "shared",
        ),
    ] = Isolation.SHARED
    max_instances: Annotated[
        Instances,
        _key("How many dedicated instances may live at once, if isolation is not shared.", DEFAULT_MAX_INSTANCES),
    ] = DEFAULT_MAX_INSTANCES
    idle_timeout: Annotated[
        Idle,
        _key(
            "After how long without use a dedicated instance is stopped, if isolation is not shared; 1s to 24h.", "5m"
        ),
    ] = DEFAULT_IDLE_TIMEOUT
    disabled: Annotated[Flag, _key("Leave the server out without taking it from the file.", default=False)] = False

    @field_validator("max_instances", "idle_timeout")
    @classmethod
    def _of_dedicated_instances(cls, value: float, info: ValidationInfo) -> float:
        # An isolation that is wrong is missing in data, and its own problem is enough.
        if info.data.get("isolation") is Isolation.SHARED:
            does = "counts" if info.field_name == "max_instances" else "stops"
            raise InvalidKey(
                f"{info.field_name} {does} dedicated instances, and a shared server has none; "
                "write isolation: per-client or per-call"
            )
        return value

    @abstractmethod
    def describe(self) -> str:
        """One line that is safe to show."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.describe()}>"


@dataclass(frozen=True, repr=False, kw_only=True)
class StdioServer(Server):
    """A server that is a child process: a program to start.

    `command` is the program, an absolute path or a bare word for PATH, and all of its arguments: those that a file has
    under `args` are at its end once the file is read. `env` is what the file adds to the child's environment.
    """

    __pydantic_config__ = ConfigDict(
        **_STRICT,
        json_schema_extra={
            **_DEDICATED_SCHEMA,
            "if": {"required": ["command"], "properties": {"command": {"type": "array"}}},
            "then": {"properties": {"args": False}},
        },
    )

    # Above the command, which is split into words without it.
    args: Annotated[tuple[SecretText, ...] | None, _key("The program's arguments, if command is a string.")] = None
    command: Annotated[
        tuple[SecretText, ...],
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1},
                ]
            }
        ),
        _key(
            "The program to start. A list is the program and its arguments; a string beside args is the program alone; "
            "a string by itself is split into words as a POSIX shell would."
        ),
    ]
    env: Annotated[FrozenMap[EnvName, SecretText], _key("Variables added to the program's environment.")] = field(
        default_factory=_no_secrets, hash=False
    )
    cwd: Annotated[Folder, _key("The folder the program starts in, from the folder of this file.", ".")] = Path()
    declared: Annotated[SkipJsonSchema[str], _NO_KEY] = ""
    """A digest of the command as it is written in the file, whatever its references give."""

    @property
    def program(self) -> Secret:
        return self.command[0]

    def describe(self) -> str:
        """One line that is safe to show: the program's base name and the number of its arguments."""
        count = len(self.command) - 1
        return f"{self.program} ({count} argument{'' if count == 1 else 's'})"

    @field_validator("command", mode="before")
    @classmethod
    def _split(cls, value: object, info: ValidationInfo) -> object:
        what = "a program, or a list of a program and its arguments"
        # Args that are wrong are missing in data, but they stand there.
        words = _written_words(value, alone=info.data.get("args", ()) is None)
        if isinstance(value, list) and info.data.get("args", ()) is not None:
            raise InvalidValue("command is a list already; put args there too, or write command as a string")
        if not isinstance(words, list):
            raise expected(what, kind_of(value))
        if not words or words[0] == "":
            raise expected(what, "no program")
        return words

    @field_validator("command")
    @classmethod
    def _program(cls, command: tuple[Secret, ...]) -> tuple[Secret, ...]:
        if not command[0].reveal():
            raise expected("a program, or a list of a program and its arguments", "no program")
        refuse_tilde(command[0].reveal())
        return command

    @model_validator(mode="wrap")
    @classmethod
    def _placed(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Paths start from the folder of the file, and the command is remembered as it is written."""
        server = handler(value)
        assert isinstance(info.context, Expander)
        folder = info.context.folder
        words = [mask(word) for word in _written_words(value["command"], alone="args" not in value)]
        text = server.program.reveal()
        # A bare word stays one, for PATH; anything with a slash starts from the folder of the file.
        program = Secret(str(folder / text) if "/" in text else text, clip(words[0].rstrip("/").rpartition("/")[2]))
        words += [mask(word) for word in value.get("args", ())]
        parts = [words, sorted(server.env), mask(value.get("cwd", ""))]
        return dataclasses.replace(
            server,
            command=(program, *server.command[1:], *(server.args or ())),
            args=None,
            cwd=folder / server.cwd,
            declared=f"sha256:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}",
        )


def _written_words(command: Any, *, alone: bool) -> Any:
    """The words of a command as they are written: a string that stands alone is split; not text, it stays as it is."""
    if not isinstance(command, str) or is_null(command):
        return command
    return split_command(command) if alone else [command]


def _unique_names(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidValue("two headers differ only in upper and lower case; keep one")
    return headers


@dataclass(frozen=True, repr=False, kw_only=True)
class HttpServer(Server):
    """A server at a URL: an address to reach. `str(url)` is its safe form: no query, `***` for what came from outside
    the file."""

    url: Annotated[Url, _key("The address of a server that speaks Streamable HTTP or the older HTTP+SSE.")]
    headers: Annotated[
        FrozenMap[HeaderName, HeaderValue],
        AfterValidator(_unique_names),
        _key("Headers sent with every request to the server."),
    ] = field(default_factory=_no_secrets, hash=False)

    def describe(self) -> str:
        """One line that is safe to show: the URL without query."""
        return str(self.url)


ServerSpec = StdioServer | HttpServer


def server_kind(value: object) -> str:
    """Which kind of server a map of the file describes. With neither key a command is missing, with both the url is too
    much."""
    return "url" if isinstance(value, dict) and "url" in value and "command" not in value else "command"


_Server = Annotated[
    Annotated[StdioServer, Tag("command")] | Annotated[HttpServer, Tag("url")], Discriminator(server_kind)
]


def _with_ids(servers: Mapping[str, ServerSpec]) -> Mapping[str, ServerSpec]:
    if not servers:
        raise InvalidValue("there is nothing to serve; name at least one server")
    return MappingProxyType({id: dataclasses.replace(server, id=id) for id, server in servers.items()})


# The rest of the file.


def _distinct_tokens(tokens: Mapping[str, Secret]) -> Mapping[str, Secret]:
    if not tokens:
        raise InvalidValue(f"there is no token, so nobody could come in; {_NAME_A_TOKEN}, or take auth away")
    names: dict[str, str] = {}
    for name, token in tokens.items():
        first = names.setdefault(token.reveal(), name)
        if first != name:
            raise InvalidValue(
                f'"{first}" and "{name}" have the same token, so they cannot be told apart; give each its own'
            )
    return tokens


@dataclass(frozen=True)
class Auth(_Strict):
    """Who may come in: access tokens by the names of those who have them."""

    tokens: Annotated[
        FrozenMap[TokenName, Token],
        AfterValidator(_distinct_tokens),
        _key(
            "Access tokens, each under the name of whoever has it; a request must carry one of them.",
            minProperties=1,
            propertyNames={"pattern": f"^{TOKEN_NAME}$"},
        ),
    ] = field(hash=False)


@dataclass(frozen=True, kw_only=True)
class Listen(_Strict):
    """Where the endpoint is, and who may come in; without `auth`, whoever reaches the address.

    `origins` and `hosts` are lower-case, beside the loopback ones. `sse` is whether the older HTTP+SSE transport is
    served too."""

    # Above the address, which is judged by it.
    auth: Annotated[Auth | None, _key("Who may come in; without it, whoever reaches the address.")] = None
    address: Annotated[
        AddressText,
        _key(
            "host:port; IPv6 in brackets; port 0: a free one. Beyond loopback only with tokens under auth.",
            f"{DEFAULT_HOST}:{DEFAULT_ADDRESS.port}",
        ),
    ] = DEFAULT_ADDRESS
    path: Annotated[EndpointPath, _key("The path of the endpoint.", DEFAULT_PATH)] = DEFAULT_PATH
    origins: Annotated[EachOnce[Origin], _key("Origins of web pages to accept beside loopback ones.")] = ()
    hosts: Annotated[EachOnce[Host], _key("Host headers to accept beside the loopback ones.")] = ()
    sse: Annotated[Flag, _key("Serve the older HTTP+SSE transport too, at /sse and /message.", default=True)] = True

    @property
    def tokens(self) -> Mapping[str, Secret]:
        """The access tokens by name; empty if none is needed."""
        return _no_secrets() if self.auth is None else self.auth.tokens

    @field_validator("address")
    @classmethod
    def _guarded(cls, address: Address, info: ValidationInfo) -> Address:
        # An auth that is wrong is missing in data, and its own problem is enough.
        if is_loopback(address.host) or info.data.get("auth", ...) is not None:
            return address
        raise InvalidValue(
            "an address beyond loopback is open to other machines, so it needs access tokens under listen.auth.tokens; "
            f"{_NAME_A_TOKEN}, or use {DEFAULT_HOST}"
        )


def _unique_answers(answers: tuple[Channel, ...]) -> tuple[Channel, ...]:
    if not answers:
        raise InvalidValue(f"nobody could answer; name at least one of {', '.join(Channel)}")
    if len(set(answers)) < len(answers):
        raise InvalidValue("one of them stands twice; keep one")
    return answers


@dataclass(frozen=True)
class AskSpec(_Strict):
    """Who answers when a call needs a person, and within how many seconds."""

    answers: Annotated[
        tuple[Channel, ...],
        AfterValidator(_unique_answers),
        _key(
            "Where a person may answer: at the web console, in a terminal with colonnade ask, and, only if it is named "
            "here, through the client that calls.",
            ["console", "terminal"],
            minItems=1,
            uniqueItems=True,
        ),
    ] = (Channel.CONSOLE, Channel.TERMINAL)
    timeout: Annotated[AskTime, _key("How long a question waits for an answer; 1s to 1h.", "50s")] = DEFAULT_ASK_TIMEOUT


@dataclass(frozen=True)
class ConsoleSpec(_Strict):
    """Where the web console is: at the endpoint's own address if that is a loopback one (`address` None), else, and
    with `--stdio`, at a loopback address of its own."""

    address: Annotated[
        LoopbackAddress | None,
        _key(
            "host:port of loopback; port 0: a free one. Without it: beside the endpoint, if that is at a loopback "
            "address, and else at a free port."
        ),
    ] = None


_SWITCH = {"on": True, "true": True, "off": False, "false": False}
# Some editors read off as a truth, others as the word.
_Switch = Annotated[Any, WithJsonSchema({"enum": [*_SWITCH, True, False]})]


def _read_switch(value: object) -> object:
    """`on` is a console at its usual place, `off` none."""
    if not isinstance(value, str):
        return value
    if value not in _SWITCH:
        found = kind_of(value) if is_null(value) else f'"{clip(value)}"'
        raise expected("on, off, or a map with an address", found, did_you_mean(value, ("on", "off")))
    return {} if _SWITCH[value] else None


@dataclass(frozen=True)
class AuditSpec(_Strict):
    """What the audit keeps: `keep` in seconds, `max` in bytes."""

    arguments: Annotated[
        AuditDetail,
        _key("What it keeps of what calls were given: a digest and the shape, or all of it.", "digest"),
    ] = AuditDetail.DIGEST
    keep: Annotated[AuditAge, _key("Files are deleted so long after their last record; from 1h.", "90d")] = 90 * 86400.0
    max: Annotated[
        AuditSize, _key("Files are deleted, the oldest first, while all together are larger; from 128MiB.", "1GiB")
    ] = 1024**3


@dataclass(frozen=True, repr=False, kw_only=True)
class Config(_Strict):
    """A whole configuration file.

    `servers` is in the order of the file; `notices` are sentences for whoever starts the host. `console` is None if
    there shall be none. `memory` is in bytes.
    """

    source: Annotated[SkipJsonSchema[Path], _NO_KEY] = Path()
    notices: Annotated[SkipJsonSchema[tuple[str, ...]], _NO_KEY] = ()
    listen: Annotated[Listen, _key("The endpoint: its address, and who may come in.")] = Listen()
    start_grace: Annotated[
        Grace, _key("How long the first answers may wait for servers that are still starting; 0s to 60s.", "3s")
    ] = DEFAULT_START_GRACE
    memory: Annotated[
        Memory,
        _key("How much memory the messages of clients and servers may take together; from 32MiB.", "256MiB"),
    ] = DEFAULT_MEMORY
    # Above ask, whose answers may come from it.
    console: Annotated[
        ConsoleSpec | None,
        BeforeValidator(_read_switch, json_schema_input_type=_Switch | ConsoleSpec),
        _key("The web console: on, off, or where it is."),
    ] = ConsoleSpec()
    ask: Annotated[AskSpec, _key("Questions to a person: who answers them.")] = AskSpec()
    audit: Annotated[AuditSpec, _key("The record of what was decided.")] = AuditSpec()
    servers: Annotated[
        FrozenMap[ServerId, _Server],
        AfterValidator(_with_ids),
        _key(
            "The servers, each under its id.",
            minProperties=1,
            propertyNames={"pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID},
        ),
    ] = field(hash=False)

    @field_validator("ask")
    @classmethod
    def _answered_somewhere(cls, ask: AskSpec, info: ValidationInfo) -> AskSpec:
        if info.data.get("console", ...) is None:
            text = "the console is off, so nobody can answer there; take it from the list"
            errors_below(
                (("answers", n), InvalidValue(text))
                for n, answer in enumerate(ask.answers)
                if answer is Channel.CONSOLE
            )
        return ask

    def __repr__(self) -> str:
        return f"<Config {self.source}: {', '.join(self.servers)}>"
