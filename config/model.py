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
import shlex
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
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from config.address_zones import is_loopback
from config.document import is_null, kind_of
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
    FilePath,
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
    MetadataUrl,
    Origin,
    Pattern,
    Port,
    Range,
    RateText,
    Scope,
    SecretText,
    ServerId,
    Title,
    Token,
    TokenName,
    TypeName,
    Url,
    errors_below,
    expected,
    pointer,
    refuse_tilde,
)

DEFAULT_ADDRESS = Address(DEFAULT_HOST, 8808)
DEFAULT_MEMORY = 256 * 1024 * 1024

_STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
_A_PROGRAM = "a program, or a list of a program and its arguments"
_NAME_A_TOKEN = 'name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}'


class _Strict:
    """A map of the file in which only the keys of the class may stand."""

    __pydantic_config__ = _STRICT


def _key(description: str, default: Any = None, **schema: Any) -> Any:
    """The description and default of a key, for editors. `default` is written as in the file; it changes no value."""
    more = schema if default is None else {**schema, "default": default}
    return Field(description=description, json_schema_extra=more)


def _refuse_key(value: object) -> object:
    raise PydanticCustomError("extra_forbidden", "unknown key")


# A field that is no key of the file. Its default is not validated, so the validator only meets what a file wrote.
_NO_KEY = BeforeValidator(_refuse_key)


def _no_secrets() -> Mapping[str, Secret]:
    return MappingProxyType({})


def _no_files() -> Mapping[Path, str]:
    return MappingProxyType({})


class Verdict(StrEnum):
    """The decision on a request: pass it, have a person confirm it, or refuse it as if its target did not exist."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class Trust(StrEnum):
    """The default policy for everything that `consent` does not mention, and for definitions.

    A trusted server may do everything, and its changes are only logged. The first definitions of a standard server are
    pinned, and a changed one is held until a person approves it. Definitions of an untrusted server are listed only
    after approval, every call of it needs confirmation, and its texts are sanitized.
    """

    TRUSTED = "trusted"
    STANDARD = "standard"
    UNTRUSTED = "untrusted"


class Isolation(StrEnum):
    """Sharing of an instance of a server (a process or a session): by all clients, the requests of one, or nobody."""

    SHARED = "shared"
    PER_CLIENT = "per-client"
    PER_CALL = "per-call"


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class Start(StrEnum):
    """When a server is started."""

    EAGER = "eager"
    LAZY = "lazy"


class Protocol(StrEnum):
    """The start of a connection to a server: with a handshake or, in the stateless revisions, without.

    Auto sends `server/discover`, and makes a handshake if the server does not know it. Legacy always makes a handshake,
    for servers that exit or fall silent on `server/discover`. Modern never makes one.
    """

    AUTO = "auto"
    LEGACY = "legacy"
    MODERN = "modern"


class Eras(StrEnum):
    """The eras in which a server is used at once, if it speaks both: with a handshake and stateless."""

    ONE = "one"
    BOTH = "both"


class HttpClient(StrEnum):
    """The HTTP client that connects to a server: Colonnade's own, or the package httpx, which needs many times the
    processor time and accepts more of what servers send."""

    BUILT_IN = "built-in"
    HTTPX = "httpx"


class Channel(StrEnum):
    """A place where a person may answer."""

    CONSOLE = "console"
    TERMINAL = "terminal"
    CLIENT = "client"


class AuditDetail(StrEnum):
    """The amount of the arguments of calls that the audit keeps."""

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


_UNSET: Any = object()


@dataclass(frozen=True)
class Checks(_Strict):
    """The checks of one argument in the file, which must all hold. A value alone means eq, a list alone means in."""

    __pydantic_config__ = ConfigDict(
        **_STRICT, json_schema_extra={"minProperties": 1, "dependentSchemas": {"absent": {"maxProperties": 1}}}
    )

    eq: Annotated[JsonScalar, _key("The argument is this value, of this JSON type.")] = _UNSET
    in_: Annotated[JsonScalars, Field(validation_alias="in", description="It is one of these values.")] = _UNSET
    prefix: Annotated[Affix, _key("It is text that begins with this.")] = _UNSET
    suffix: Annotated[Affix, _key("It is text that ends with this.")] = _UNSET
    glob: Annotated[Pattern, _key("It is text that the pattern matches as a whole; * is any characters, ? is one.")] = (
        _UNSET
    )
    range: Annotated[Range, _key("It is a number from the first to the second, both included; null is no limit.")] = (
        _UNSET
    )
    max_len: Annotated[
        Length, _key("It is text of at most this many characters, or a list of at most this many items.")
    ] = _UNSET
    type: Annotated[TypeName, _key("It has this JSON type.")] = _UNSET
    absent: Annotated[Absent, _key("It is missing.")] = _UNSET
    path_under: Annotated[AbsolutePaths, _key("It is the absolute path of one of these folders, or below one.")] = (
        _UNSET
    )
    host_in: Annotated[HostNames, _key("It is a URL of one of these hosts, or one of these hosts.")] = _UNSET

    def present(self) -> tuple[Check, ...]:
        """The checks that the file has, in the order of this class."""
        return tuple(Check(op, value) for op, name in CHECKS.items() if (value := getattr(self, name)) is not _UNSET)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        present = self.present()
        if not present:
            raise expected("at least one check", "an empty map", "for instance {prefix: draft-}")
        if len(present) > 1 and self.absent is not _UNSET:
            raise InvalidValue("an absent argument has no value to check; write absent alone, or remove it")
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
        raise expected("a map of arguments", "an empty map", "remove it, or name an argument")
    names: dict[str, str] = {}
    for name in when:
        first = names.setdefault(pointer(name), name)
        if first != name:
            raise InvalidValue(f'"{clip(first)}" and "{clip(name)}" are the same argument; remove one')
    made = (Condition(pointer(name), checks.present()) for name, checks in when.items())
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
            description="Pattern for the name; * is any characters, ? is one.",
        ),
    ]
    when: Annotated[
        When,
        _key(
            "Conditions on arguments, by name or by JSON pointer (which begins with a slash).",
            minProperties=1,
        ),
    ] = ()
    closed: Annotated[Flag, _key("Whether arguments that when does not name are outside the rule.", default=False)] = (
        False
    )

    @field_validator("closed")
    @classmethod
    def _closed_with_when(cls, closed: bool, info: ValidationInfo) -> bool:
        # A when that is wrong is missing in data, and its own problem is enough.
        if closed and info.data.get("when", ...) == ():
            raise InvalidValue("closed refuses arguments that when does not name; name the permitted ones under when")
        return closed


def _no_arguments(key: str) -> BeforeValidator:
    def refuse(value: object) -> object:
        raise InvalidKey(f"a URI has no arguments, so {key} has no meaning here; remove it")

    return BeforeValidator(refuse)


@dataclass(frozen=True)
class UriRule(Rule):
    """One entry of a list of URIs, which have no arguments: a pattern alone."""

    __pydantic_config__ = _STRICT

    pattern: Annotated[
        Pattern,
        Field(
            validation_alias="uri",
            description="Pattern for the URI; * stops at a slash, ** does not.",
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
_ALLOW = _key("Entries that match one of these rules are allowed; all others are then denied, unless default is set.")
_ASK = _key("Entries that match one of these rules need confirmation, even if allow matches too.")
_DENY = _key("Entries that match one of these rules are denied, even if other rules match too.")


@dataclass(frozen=True)
class KindConsent(_Strict):
    """The rules for one kind. `deny` wins over `ask`, and `ask` over `allow`; the order has no meaning.

    `default` decides about entries that no rule matches. If it is None, they are denied if there is an allow list, even
    an empty one, and the trust level decides if there is none.
    """

    allow: Annotated[tuple[_RuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_RuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_RuleEntry, ...], _DENY] = ()
    default: Annotated[
        Verdict | None,
        _key(
            "Decides about entries that no rule matches. Default: deny if there is an allow list, else as trust says."
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
                    yield (name, n), InvalidValue("this rule is in the list twice; remove one")
                else:
                    why = f"this rule is under {first} too, which wins; remove one"
                    yield (name, n), InvalidValue(why)


@dataclass(frozen=True)
class UriConsent(KindConsent):
    """The rules for one kind whose entries have URIs."""

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
    """Rules for the server's requests to the user of the client. The patterns of `url` are for pages."""

    form: Annotated[Verdict | None, _key("Requests to fill in a form.")] = None
    url: Annotated[_Uris, _key("Requests to visit a page, by its URL.")] = UNSPECIFIED


@dataclass(frozen=True)
class Consent(_Strict):
    """Rules for the requests to a server and from it, by kind, in the server's own names.

    None and UNSPECIFIED leave the decision to the trust level."""

    tools: Annotated[_Names, _key("Rules for tools, by name.")] = UNSPECIFIED
    resources: Annotated[_Uris, _key("Rules for resources, by URI.")] = UNSPECIFIED
    prompts: Annotated[_Names, _key("Rules for prompts, by name.")] = UNSPECIFIED
    sampling: Annotated[Verdict | None, _key("Requests for text from the client's model.")] = None
    elicitation: Annotated[
        Elicitation,
        BeforeValidator(_one_word(["form", "url"], "form and url"), json_schema_input_type=Verdict | Elicitation),
        _key("Requests to the user of the client."),
    ] = Elicitation()
    roots: Annotated[_Uris, _key("Rules for the client's roots that the server may know, by URI.")] = UNSPECIFIED


ENTRY_RULES = ("tools", "resources", "prompts")
"""The keys of `consent` about requests to entries of the server; the others are about requests of the server."""
NAME_RULES = ("tools", "prompts")
URI_RULES = ("resources", "roots")


# Servers.


@dataclass(frozen=True)
class Limits(_Strict):
    """Limits of the use of a server; without a key there is no such limit.

    `concurrent` calls run at once, a few more wait; `result` is in bytes, and so is `message`, one message as the
    server sends it; `sampling` counts the server's requests for it, `sampling_tokens` the tokens that they ask for."""

    calls: Annotated[RateText | None, _key("Rate of calls, for instance 60/min.")] = None
    concurrent: Annotated[Concurrency | None, _key("Calls that run at once; some more wait for a free place.")] = None
    result: Annotated[MessageSize | None, _key("Size of the largest result to pass on, from 1KiB to 64MiB.")] = None
    sampling: Annotated[RateText | None, _key("Rate of the server's requests for text from the client's model.")] = None
    sampling_tokens: Annotated[
        RateText | None, _key("Rate of the tokens that these requests ask for, for instance 100000/day.")
    ] = None
    message: Annotated[
        MessageSize | None,
        _key(
            "Size of the longest message to accept, from 1KiB to 64MiB. Default: 8MiB, and 16MiB for an HTTP response "
            "in one piece."
        ),
    ] = None


def _no_switch(value: object) -> object:
    """Refuse a switch under `trust` without proposing the word that allows everything."""
    if isinstance(value, str) and value.lower() in ("true", "yes", "on"):
        raise expected("trusted, standard or untrusted", f'"{clip(value)}"', "did you mean standard?")
    return value


_NOT_SHARED: Json = {
    "required": ["isolation"],
    "properties": {"isolation": {"not": {"const": Isolation.SHARED.value}}},
}
_DEDICATED_SCHEMA: Json = {"dependentSchemas": {"max_instances": _NOT_SHARED, "idle_timeout": _NOT_SHARED}}


@dataclass(frozen=True, repr=False, kw_only=True)
class BaseServer(_Strict, ABC):
    """The keys of all servers.

    `max_instances` and `idle_timeout` are about the dedicated instances of a server that is not shared: how many may
    live at once, and after how many seconds without use one is stopped. A server of a desktop host's file that cannot
    be used has a `problem`, which shows no secret; its command then stands for nothing, and it is never started.
    """

    __pydantic_config__ = ConfigDict(**_STRICT, json_schema_extra=_DEDICATED_SCHEMA)

    id: Annotated[SkipJsonSchema[str], _NO_KEY] = ""
    problem: Annotated[SkipJsonSchema[str], _NO_KEY] = ""
    title: Annotated[Title | None, _key("A name for people, shown instead of the id.")] = None
    timeout: Annotated[CallTime, _key("Timeout of a call; progress restarts it, up to 600s in all.", "60s")] = 60.0
    start_timeout: Annotated[CallTime, _key("Timeout for connecting, handshake and first lists together.", "60s")] = (
        60.0
    )
    consent: Annotated[
        Consent,
        BeforeValidator(
            _one_word(["tools", "resources", "prompts"], "tools, resources, prompts, sampling, elicitation and roots"),
            json_schema_input_type=Verdict | Consent,
        ),
        _key("Rules for requests to the server and from it; trust decides about everything that is not mentioned."),
    ] = Consent()
    trust: Annotated[
        Trust,
        BeforeValidator(_no_switch, json_schema_input_type=Trust),
        _key(
            "Default policy for everything that consent does not mention. trusted: everything is allowed, including "
            "changed definitions. standard: calls are allowed, changed definitions need approval; sampling and opening "
            "a URL need confirmation. untrusted: all definitions need approval and all calls confirmation, invisible "
            "characters are removed, and the server's own requests are denied.",
            "standard",
        ),
    ] = Trust.STANDARD
    limits: Annotated[Limits, _key("Limits of use.")] = Limits()
    protocol: Annotated[
        Protocol,
        _key(
            "How a connection begins. auto: send server/discover, and make a handshake if the server does not know it. "
            "legacy: always make a handshake, for servers that exit or fall silent on server/discover. modern: never "
            "make a handshake.",
            "auto",
        ),
    ] = Protocol.AUTO
    eras: Annotated[
        Eras | None,
        _key(
            "Connections to a server that speaks with a handshake and stateless. both: clients with a session are "
            "served over a session, opened when the first one needs it, and others without. one: all clients are "
            "served in the newer way. For a program, both starts it twice.",
            "both for a url, one for a command",
        ),
    ] = None
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
        _key("Dedicated instances that may run at once, if isolation is not shared.", 16),
    ] = 16
    idle_timeout: Annotated[
        Idle,
        _key(
            "Time without use after which a dedicated instance is stopped, if isolation is not shared; 1s to 24h.", "5m"
        ),
    ] = 300.0
    start: Annotated[
        Start,
        _key(
            "eager: start with the host. lazy: start at the first use, if the lists are known from an earlier start.",
            "eager",
        ),
    ] = Start.EAGER
    idle: Annotated[
        Idle | None,
        _key(
            "Time without use after which the server is stopped until its next use. It stays listed. 1s to 24h.",
            "never",
        ),
    ] = None
    disabled: Annotated[Flag, _key("Leaves the server out without removing it from the file.", default=False)] = False

    @property
    def may_use_both_eras(self) -> bool:
        """Whether clients of each era are served in their own, if the server speaks both."""
        eras = self.eras or (Eras.BOTH if isinstance(self, HttpServer) else Eras.ONE)
        return self.protocol is Protocol.AUTO and eras is Eras.BOTH

    @field_validator("eras", mode="after")
    @classmethod
    def _of_both_eras(cls, value: Eras | None, info: ValidationInfo) -> Eras | None:
        protocol = info.data.get("protocol", Protocol.AUTO)
        if value is Eras.BOTH and protocol is not Protocol.AUTO:
            raise InvalidKey(f"protocol: {protocol} permits one era only; remove one of the two keys")
        return value

    @field_validator("max_instances", "idle_timeout", mode="before")
    @classmethod
    def _of_dedicated_instances(cls, value: object, info: ValidationInfo) -> object:
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
class StdioServer(BaseServer):
    """A server that Colonnade starts as a child process.

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
        alone = info.data.get("args", ()) is None  # args that are wrong are missing in data, but the file has them
        if isinstance(value, list) and not alone:
            raise InvalidValue("command is a list already; put args there too, or write command as a string")
        if isinstance(value, dict) or is_null(value):
            raise expected(_A_PROGRAM, kind_of(value))
        return _written_words(value, alone=alone)

    @field_validator("command")
    @classmethod
    def _program(cls, command: tuple[Secret, ...]) -> tuple[Secret, ...]:
        if not command or not command[0].reveal():
            raise expected(_A_PROGRAM, "no program")
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


def _written_words(command: Any, *, alone: bool) -> list[Any]:
    """The words of a command as they are written; a string that stands alone is split as a POSIX shell would."""
    if not isinstance(command, str):
        return list(command)
    if not alone:
        return [command]
    try:
        # References are filled in later, so that what they give stays one word whatever it holds.
        return shlex.split(command)
    except ValueError as error:
        raise InvalidValue(f"this cannot be split into words ({str(error).lower()}); write it as a list") from None


def _unique_names(headers: Mapping[str, Secret]) -> Mapping[str, Secret]:
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidValue("two headers differ only in upper and lower case; remove one")
    return headers


class OAuthGrant(StrEnum):
    """Who gets a token at the issuer: a person who logs in, or Colonnade by itself, with the secret of the client."""

    AUTHORIZATION_CODE = "authorization_code"
    CLIENT_CREDENTIALS = "client_credentials"


@dataclass(frozen=True)
class OAuth(_Strict):
    """The client that Colonnade is at the issuer of a server. Without a `client_id` it registers itself."""

    __pydantic_config__ = ConfigDict(
        **_STRICT,
        json_schema_extra={
            "dependentRequired": {"client_secret": ["client_id"], "private_key": ["client_id"]},
            "if": {"required": ["grant"], "properties": {"grant": {"const": OAuthGrant.CLIENT_CREDENTIALS.value}}},
            "then": {
                "required": ["client_id"],
                "anyOf": [{"required": ["client_secret"]}, {"required": ["private_key"]}],
            },
        },
    )

    client_id: Annotated[SecretText | None, _key("The id of a client that is registered at the issuer.")] = None
    client_secret: Annotated[SecretText | None, _key("The secret of that client, if it has one.")] = None
    private_key: Annotated[
        SecretText | None,
        _key("The private key of that client in PEM format (RSA or P-256), if the issuer has its public key."),
    ] = None
    scopes: Annotated[EachOnce[Scope], _key("Scopes to request. Default: those that the server names.")] = ()
    client_metadata_url: Annotated[
        MetadataUrl | None,
        _key(
            "The public https URL of a Client ID Metadata Document of yours, for issuers that take such a URL as the "
            "client id."
        ),
    ] = None
    redirect_port: Annotated[
        Port | None,
        _key(
            "The port of 127.0.0.1 to which the browser returns, if the client is registered with one. Default: a "
            "free one."
        ),
    ] = None
    grant: Annotated[
        OAuthGrant,
        _key(
            "authorization_code: a person logs in. client_credentials: Colonnade gets a token for itself, with the "
            "client's secret or key.",
            "authorization_code",
        ),
    ] = OAuthGrant.AUTHORIZATION_CODE

    @model_validator(mode="after")
    def _complete(self) -> Self:
        secrets = [name for name in ("client_secret", "private_key") if getattr(self, name) is not None]
        if len(secrets) > 1:
            raise InvalidValue("a client has a client_secret or a private_key; remove one")
        if secrets and self.client_id is None:
            raise InvalidValue(f"{secrets[0]} belongs to a client_id; write that too")
        if self.grant is OAuthGrant.CLIENT_CREDENTIALS and not secrets:
            raise InvalidValue("client_credentials needs client_id, and client_secret or private_key")
        for name in ("client_id", *secrets):
            # Python has other bytes of an environment variable as halves of surrogate pairs.
            if (given := getattr(self, name)) and any("\ud800" <= each <= "\udfff" for each in given.reveal()):
                raise InvalidValue(f"{name} holds bytes that are no text in UTF-8")
        return self


@dataclass(frozen=True, repr=False, kw_only=True)
class HttpServer(BaseServer):
    """A server at a URL.

    `str(url)` is safe to show: it has no query, and `***` in the place of references."""

    url: Annotated[Url, _key("The URL of a server with Streamable HTTP or the older HTTP+SSE.")]
    headers: Annotated[
        FrozenMap[HeaderName, HeaderValue],
        AfterValidator(_unique_names),
        _key("Headers sent with every request to the server."),
    ] = field(default_factory=_no_secrets, hash=False)
    headers_helper: Annotated[
        tuple[SecretText, ...] | None,
        WithJsonSchema({"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1}),
        _key(
            "A program and its arguments that prints a JSON object of headers. It runs at each connection, for at most "
            "10 s; its headers replace others of the same name."
        ),
    ] = None
    client: Annotated[
        HttpClient,
        _key(
            "The HTTP client. built-in: Colonnade's own, which is fast and strict. httpx: the package of that name, "
            "for servers that the other one cannot be used with.",
            "built-in",
        ),
    ] = HttpClient.BUILT_IN
    oauth: Annotated[
        OAuth | None,
        _key("The client that logs in at the server, if Colonnade should not register one by itself."),
    ] = None
    folder: Annotated[SkipJsonSchema[Path], _NO_KEY] = Path()
    """The folder of the file, in which the helper runs."""
    learned_secrets: Annotated[SkipJsonSchema[list[Secret]], _NO_KEY] = field(
        default_factory=list, compare=False, hash=False
    )
    """Headers that the helper printed for the last connection, or the tokens of the login. They are redacted like
    configured ones."""

    @model_validator(mode="wrap")
    @classmethod
    def _placed(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        server = handler(value)
        assert isinstance(info.context, Expander)
        return server if server.headers_helper is None else dataclasses.replace(server, folder=info.context.folder)

    @field_validator("oauth")
    @classmethod
    def _only_credentials(cls, oauth: OAuth | None, info: ValidationInfo) -> OAuth | None:
        headers = info.data.get("headers", {})
        if oauth is not None and (
            info.data.get("headers_helper") is not None or any(name.lower() == "authorization" for name in headers)
        ):
            raise InvalidKey("the server has its credentials under headers or headers_helper; remove these, or oauth")
        return oauth

    @field_validator("headers_helper", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        if not isinstance(value, list) or not value:
            raise expected("a list of a program and its arguments", kind_of(value) if value else "an empty list")
        return value

    def describe(self) -> str:
        """One line that is safe to show: the URL without query."""
        return str(self.url)


ServerSpec = StdioServer | HttpServer


def server_kind(value: object) -> str:
    """The tag of the class for a map of the file. With neither key, `command` is reported as missing; with both, `url`
    as unknown."""
    return "url" if isinstance(value, dict) and "url" in value and "command" not in value else "command"


_Server = Annotated[
    Annotated[StdioServer, Tag("command")] | Annotated[HttpServer, Tag("url")], Discriminator(server_kind)
]


def _with_ids(servers: Mapping[str, ServerSpec], info: ValidationInfo) -> Mapping[str, ServerSpec]:
    assert isinstance(info.context, Expander)
    if not servers and not info.context.may_be_empty:
        raise InvalidValue("there is no server to serve; name at least one")
    return MappingProxyType({id: dataclasses.replace(server, id=id) for id, server in servers.items()})


# The rest of the file.


def _distinct_tokens(tokens: Mapping[str, Secret]) -> Mapping[str, Secret]:
    if not tokens:
        raise InvalidValue(f"there is no token, so every request would be refused; {_NAME_A_TOKEN}, or remove auth")
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
    """Access tokens by the names of their callers: only these callers may use the endpoint."""

    tokens: Annotated[
        FrozenMap[TokenName, Token],
        AfterValidator(_distinct_tokens),
        _key(
            "Access tokens, each under the name of its caller; every request needs one of them.",
            minProperties=1,
            propertyNames={"pattern": f"^{TOKEN_NAME}$"},
        ),
    ] = field(hash=False)


class HttpServerChoice(StrEnum):
    """The program part that serves HTTP without TLS: Colonnade's own, or the package hypercorn."""

    BUILT_IN = "built-in"
    HYPERCORN = "hypercorn"


@dataclass(frozen=True)
class Tls(_Strict):
    """The certificate with which the endpoint serves TLS. Both are files in PEM format, read again at each reload."""

    cert: Annotated[FilePath, _key("File with the certificate, and those of the authorities between, in PEM format.")]
    key: Annotated[FilePath, _key("File with its private key, in PEM format and without a password.")]


@dataclass(frozen=True, kw_only=True)
class Listen(_Strict):
    """The address of the endpoint, and who may use it.

    `origins` and `hosts` are lower-case, and in addition to the loopback ones."""

    # Above the address, which is checked against it.
    auth: Annotated[Auth | None, _key("Who may use the endpoint; default: everyone who can reach it.")] = None
    address: Annotated[
        AddressText,
        _key(
            "host:port, IPv6 in brackets; port 0 uses a free port. Addresses beyond loopback need tokens under auth.",
            f"{DEFAULT_HOST}:{DEFAULT_ADDRESS.port}",
        ),
    ] = DEFAULT_ADDRESS
    path: Annotated[EndpointPath, _key("The path of the endpoint.", "/mcp")] = "/mcp"
    origins: Annotated[EachOnce[Origin], _key("Origins of accepted web pages, in addition to loopback ones.")] = ()
    hosts: Annotated[EachOnce[Host], _key("Accepted Host headers, in addition to the loopback ones.")] = ()
    sse: Annotated[Flag, _key("Whether HTTP+SSE is served too, at /sse and /message.", default=True)] = True
    tls: Annotated[Tls | None, _key("Serve https, over HTTP/1.1 and HTTP/2, with this certificate.")] = None
    server: Annotated[
        HttpServerChoice,
        _key("What serves HTTP without TLS: Colonnade's own server, or the package hypercorn.", "built-in"),
    ] = HttpServerChoice.BUILT_IN

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

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
        raise InvalidValue(f"nobody could confirm; name at least one of {', '.join(Channel)}")
    if len(set(answers)) < len(answers):
        raise InvalidValue("a name is in the list twice; remove one")
    return answers


@dataclass(frozen=True)
class AskSpec(_Strict):
    """The people who confirm calls, and the seconds they have for it."""

    answers: Annotated[
        tuple[Channel, ...],
        AfterValidator(_unique_answers),
        _key(
            "Where a person may confirm: in the web console, in a terminal with colonnade ask, or through the calling "
            "client.",
            ["console", "terminal"],
            minItems=1,
            uniqueItems=True,
        ),
    ] = (Channel.CONSOLE, Channel.TERMINAL)
    timeout: Annotated[AskTime, _key("Time a call waits for confirmation; 1s to 1h.", "50s")] = 50.0


@dataclass(frozen=True)
class ConsoleSpec(_Strict):
    """The address of the web console.

    If it is None, the console is at the endpoint's own address if that is a loopback one. Otherwise, and with
    `--stdio`, it is at a loopback address of its own."""

    address: Annotated[
        LoopbackAddress | None,
        _key(
            "host:port of loopback; port 0 uses a free port. Default: beside the endpoint if that is on loopback, else "
            "a free port."
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
    """The content of the audit log.

    `keep` is in seconds after the last record of a file, `max` the bytes of all files together."""

    arguments: Annotated[
        AuditDetail,
        _key(
            "Arguments of calls: a digest and their shape, or in full, including secrets.",
            "digest",
        ),
    ] = AuditDetail.DIGEST
    keep: Annotated[AuditAge, _key("Files are deleted when their last record is older; from 1h.", "90d")] = 90 * 86400.0
    max: Annotated[
        AuditSize, _key("While all files together are larger, the oldest are deleted; from 128MiB.", "1GiB")
    ] = 1024**3


@dataclass(frozen=True, repr=False, kw_only=True)
class Config(_Strict):
    """A whole configuration file.

    `digest` is of the text of the file, or, if it is a desktop host's, of what was read from it and from the files
    beside it; `servers` is in the order of the file. `notices` are sentences for the person who starts the host, and
    `answers` the inputs that this person gave. `console` is None if it is switched off. `memory` is in bytes.
    """

    source: Annotated[SkipJsonSchema[Path], _NO_KEY] = Path()
    digest: Annotated[SkipJsonSchema[str], _NO_KEY] = field(default="", compare=False)
    files: Annotated[SkipJsonSchema[Mapping[Path, str]], _NO_KEY] = field(default_factory=_no_files, compare=False)
    """The file and all that were looked at beside it, also missing ones, each with its state (`config.file_state`)."""
    notices: Annotated[SkipJsonSchema[tuple[str, ...]], _NO_KEY] = ()
    given_address: Annotated[SkipJsonSchema[Address | None], _NO_KEY] = None
    """The address that holds instead of that of the file."""
    answers: Annotated[SkipJsonSchema[Mapping[str, Secret]], _NO_KEY] = field(default_factory=_no_secrets, hash=False)
    written: Annotated[SkipJsonSchema[Mapping[str, Secret]], _NO_KEY] = field(
        default_factory=_no_secrets, compare=False
    )
    """The sections of the file as they are written; see `config.written`."""
    read_once: Annotated[SkipJsonSchema[tuple[str, ...]], _NO_KEY] = field(default=(), compare=False)
    """Sentences about values that a reload reads again, and that come from the environment, which stays as it is."""
    listen: Annotated[Listen, _key("The endpoint: its address, and who may use it.")] = Listen()
    start_grace: Annotated[
        Grace | None,
        _key(
            "Time that lists wait for a server that was never seen, from its first start; 0s to 60s.",
            "4s with --stdio, else 20s",
        ),
    ] = None
    watch: Annotated[
        Switch, _key("Whether the file is read again when it is saved. What widens waits for a person.", "on")
    ] = Switch.ON
    memory: Annotated[
        Memory,
        _key("Memory for the messages of clients and servers together; from 32MiB.", "256MiB"),
    ] = DEFAULT_MEMORY
    # Above ask, whose answers may come from it.
    console: Annotated[
        ConsoleSpec | None,
        BeforeValidator(_read_switch, json_schema_input_type=_Switch | ConsoleSpec),
        _key("The web console: on, off, or its address."),
    ] = ConsoleSpec()
    ask: Annotated[AskSpec, _key("Who confirms calls.")] = AskSpec()
    audit: Annotated[AuditSpec, _key("The audit log of decisions.")] = AuditSpec()
    servers: Annotated[
        FrozenMap[ServerId, _Server],
        AfterValidator(_with_ids),
        _key(
            "The servers, each under its id.",
            minProperties=1,
            propertyNames={"pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID},
        ),
    ] = field(hash=False)

    @field_validator("ask", mode="wrap")
    @classmethod
    def _confirmed_somewhere(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> AskSpec:
        ask: AskSpec = handler(value)
        if info.data.get("console", ...) is None:  # the default answers may name it all the same
            text = "the console is off, so nobody can confirm there; remove it from the list"
            at = (n for n, answer in enumerate(value.get("answers", ())) if answer == Channel.CONSOLE)
            errors_below((("answers", n), InvalidValue(text)) for n in at)
        return ask

    def __repr__(self) -> str:
        return f"<Config {self.source}: {', '.join(self.servers)}>"
