"""The configuration: the keys of the file, and at the same time the frozen objects that the host reads.

The classes are dataclasses that pydantic reads from the values of a file. The validators and descriptions of their
fields are for files alone: code that builds an object itself gives it final values, which are not checked again.
Durations are seconds, paths are absolute, and everything that may be secret is a `Secret`; the `repr` of a server or of
the whole is safe to log. No annotation is kept as text here: pydantic would compile each of them at every start.
"""

import dataclasses
import hashlib
import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

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
from pydantic_core import core_schema

from config.address_zones import is_loopback
from config.container_run import is_read_by_clients
from config.document import as_found, is_null, kind_of
from config.fleet import Fleet
from config.keys import STRICT, Internal, Strict, desc
from config.naming import ID_PATTERN, LONGEST_ID
from config.problems import clip, did_you_mean
from config.references import CLIENT_FOLDER, Expander, GivenAddress, Secret, mask
from config.sandbox import OFF_WORD, Sandbox, SandboxKey, what_is_open
from config.types import (
    DEFAULT_HOST,
    LONGEST_LIMIT,
    SHORTEST_LIMIT,
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
    CallerName,
    CallTime,
    Concurrency,
    DrainTime,
    EachOnce,
    EndpointPath,
    EnvName,
    FilePath,
    Flag,
    FrozenMap,
    Grace,
    HeaderName,
    HeaderValue,
    HistorySize,
    Host,
    HostNames,
    Idle,
    Instances,
    InvalidKey,
    InvalidValue,
    IssuerName,
    Json,
    JsonScalar,
    JsonScalars,
    Length,
    Lingering,
    LoopbackAddress,
    Memory,
    MessageSize,
    MetadataUrl,
    NameLength,
    NamePrefix,
    Origin,
    ParameterName,
    ParameterValue,
    Pattern,
    Places,
    Port,
    Range,
    Rate,
    RateText,
    ResourceName,
    Scope,
    SecretText,
    ServerId,
    StartFolder,
    StartTime,
    StreamPlaces,
    Title,
    Token,
    TokenName,
    TypeName,
    Url,
    ViewName,
    empty_map,
    errors_below,
    expected,
    pointer,
    refuse_tilde,
)
from config.views import (
    CallerNames,
    CallerSpec,
    Override,
    Overrides,
    Problems,
    ViewSpec,
    caller_problems,
    listed,
    override_problems,
    token_problems,
    unknown_name,
    view_problems,
)
from config.written import shown_words

DEFAULT_ADDRESS = Address(DEFAULT_HOST, 8808)
LONGEST_NAME = 64
SESSION_MEMORY, CONNECTION_MEMORY, STREAM_MEMORY = 6 * 1024, 12 * 1024, 4 * 1024
"""Bytes that an idle one needs (measured), a stream beside its session and its connection."""
DEFAULT_MEMORY = 256 * 1024 * 1024

_A_PROGRAM = "a program, or a list of a program and its arguments"
_NAME_A_TOKEN = 'name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}'


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


class Unconfined(StrEnum):
    """Why an untrusted program without the key `sandbox` runs as the user: it did so before that key followed from
    trust, and nobody has chosen yet, or a person chose that."""

    OPEN = "open"
    CHOSEN = "chosen"


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
    for servers that exit or fall silent on `server/discover`. Modern never makes one. With a revision, only this one is
    used.
    """

    AUTO = "auto"
    LEGACY = "legacy"
    MODERN = "modern"
    V2026_07_28 = "2026-07-28"
    V2025_11_25 = "2025-11-25"
    V2025_06_18 = "2025-06-18"
    V2025_03_26 = "2025-03-26"
    V2024_11_05 = "2024-11-05"


class Eras(StrEnum):
    """The eras in which a server is used at once, if it speaks both: with a handshake and stateless."""

    ONE = "one"
    BOTH = "both"


class Channel(StrEnum):
    """A place where a person may answer."""

    CONSOLE = "console"
    TERMINAL = "terminal"
    CLIENT = "client"


class AuditDetail(StrEnum):
    """The amount of the arguments of calls that the audit keeps."""

    DIGEST = "digest"
    FULL = "full"


class HistoryDetail(StrEnum):
    """The amount of the arguments and results of calls that is kept, in rising order."""

    REDACTED = "redacted"
    FULL = "full"


class AuditPlace(StrEnum):
    """Where a host that serves an endpoint writes its audit."""

    FILES = "files"
    STDOUT = "stdout"


class ToolClaim(StrEnum):
    """A word of a rule for a tool's claims about itself (`annotations` of MCP). A tool that does not claim to be
    read-only or closed-world counts as destructive and open-world, as in the protocol (2025-03-26, ToolAnnotations)."""

    READ_ONLY = "read-only"
    DESTRUCTIVE = "destructive"
    CLOSED_WORLD = "closed-world"
    OPEN_WORLD = "open-world"


_CONTRARY = {ToolClaim.READ_ONLY: ToolClaim.DESTRUCTIVE, ToolClaim.CLOSED_WORLD: ToolClaim.OPEN_WORLD}


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
class Checks(Strict):
    """The checks of one argument in the file, which must all hold. A value alone means eq, a list alone means in."""

    __pydantic_config__ = ConfigDict(
        **STRICT, json_schema_extra={"minProperties": 1, "dependentSchemas": {"absent": {"maxProperties": 1}}}
    )

    eq: Annotated[JsonScalar, desc("The argument is this value, of this JSON type.")] = _UNSET
    in_: Annotated[JsonScalars, Field(validation_alias="in", description="It is one of these values.")] = _UNSET
    prefix: Annotated[Affix, desc("It is text that begins with this.")] = _UNSET
    suffix: Annotated[Affix, desc("It is text that ends with this.")] = _UNSET
    glob: Annotated[Pattern, desc("It is text that the pattern matches as a whole; * is any characters, ? is one.")] = (
        _UNSET
    )
    range: Annotated[Range, desc("It is a number from the first to the second, both included; null is no limit.")] = (
        _UNSET
    )
    max_len: Annotated[
        Length, desc("It is text of at most this many characters, or a list of at most this many items.")
    ] = _UNSET
    type: Annotated[TypeName, desc("It has this JSON type.")] = _UNSET
    absent: Annotated[Absent, desc("It is missing.")] = _UNSET
    path_under: Annotated[AbsolutePaths, desc("It is the absolute path of one of these folders, or below one.")] = (
        _UNSET
    )
    host_in: Annotated[HostNames, desc("It is a URL of one of these hosts, or one of these hosts.")] = _UNSET

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
_RANGE_WORDS = frozenset({"min", "max", "minimum", "maximum"})


def meant_key(key: str, known: Collection[str]) -> str:
    """The key to look for among the known ones: `range`, if it is one, for a key that limits numbers elsewhere. Some of
    those resemble other checks."""
    return "range" if key in _RANGE_WORDS and "range" in known else key


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


def _sensible_claims(claims: tuple[ToolClaim, ...]) -> tuple[ToolClaim, ...]:
    if not claims:
        raise expected("at least one claim", "an empty list", f"known are {', '.join(ToolClaim)}")
    if len(set(claims)) < len(claims):
        raise InvalidValue("a claim is in the list twice; remove one")
    for one, other in _CONTRARY.items():
        if {one, other} <= set(claims):
            raise InvalidValue(f"no tool is both {one} and {other}; remove one, or write two rules")
    return tuple(sorted(claims))


# Rules.


@dataclass(frozen=True)
class Rule(Strict):
    """One entry of a list: a pattern, and perhaps conditions on the arguments, on a tool's claims and on the caller.
    All must hold.

    `closed`: an argument that the conditions do not name is not within the rule. The order of `claims` in the file
    means nothing, so here it is always the same."""

    __pydantic_config__ = ConfigDict(
        **STRICT,
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
        desc(
            "Conditions on arguments, by name or by JSON pointer (which begins with a slash).",
            minProperties=1,
        ),
    ] = ()
    closed: Annotated[Flag, desc("Whether arguments that when does not name are outside the rule.", default=False)] = (
        False
    )
    claims: Annotated[
        tuple[ToolClaim, ...],
        BeforeValidator(listed, json_schema_input_type=ToolClaim | tuple[ToolClaim, ...]),
        AfterValidator(_sensible_claims),
        desc(
            "What the tool claims about itself, all of it. In allow, claims count if a person approved the definition, "
            "or if the server is trusted; in ask and deny, other claims never help a tool.",
        ),
    ] = ()
    callers: Annotated[
        CallerNames,
        desc("The callers for whom the rule holds. Default: all, and those that no token tells apart."),
    ] = ()

    @field_validator("closed")
    @classmethod
    def _closed_with_when(cls, closed: bool, info: ValidationInfo) -> bool:
        # A when that is wrong is missing in data, and its own problem is enough.
        if closed and info.data.get("when", ...) == ():
            raise InvalidValue("closed refuses arguments that when does not name; name the permitted ones under when")
        return closed


def _no_condition(key: str, why: str) -> BeforeValidator:
    def refuse(value: object) -> object:
        raise InvalidKey(f"{why}, so {key} has no meaning here; remove it")

    return BeforeValidator(refuse)


_NO_CLAIMS = _no_condition("claims", "only tools claim something about themselves")


@dataclass(frozen=True)
class PromptRule(Rule):
    """One entry of a list of prompts, which claim nothing about themselves."""

    claims: Annotated[SkipJsonSchema[tuple[ToolClaim, ...]], _NO_CLAIMS] = ()


@dataclass(frozen=True)
class UriRule(Rule):
    """One entry of a list of URIs, which have no arguments and claim nothing: a pattern alone."""

    __pydantic_config__ = STRICT

    pattern: Annotated[
        Pattern,
        Field(
            validation_alias="uri",
            description="Pattern for the URI; * stops at a slash, ** does not.",
        ),
    ]
    when: Annotated[SkipJsonSchema[tuple[Condition, ...]], _no_condition("when", "a URI has no arguments")] = ()
    closed: Annotated[SkipJsonSchema[bool], _no_condition("closed", "a URI has no arguments")] = False
    claims: Annotated[SkipJsonSchema[tuple[ToolClaim, ...]], _NO_CLAIMS] = ()


def _pattern_alone(key: str, what: str, form: Any) -> BeforeValidator:
    def expand(value: object) -> object:
        if isinstance(value, list):
            raise expected(what, "a list")
        return {key: value} if isinstance(value, str) else value

    return BeforeValidator(expand, json_schema_input_type=Pattern | form)


_RuleEntry = Annotated[Rule, _pattern_alone("name", "a pattern, or a map of name, when and claims", Rule)]
_PromptRuleEntry = Annotated[PromptRule, _pattern_alone("name", "a pattern, or a map of name and when", PromptRule)]
_UriRuleEntry = Annotated[UriRule, _pattern_alone("uri", "a pattern, or a map of uri", UriRule)]
_ALLOW = desc("Entries that match one of these rules are allowed; all others are then denied, unless default is set.")
_ASK = desc("Entries that match one of these rules need confirmation, even if allow matches too.")
_DENY = desc("Entries that match one of these rules are denied, even if other rules match too.")


@dataclass(frozen=True)
class KindConsent(Strict):
    """The rules for one kind. `deny` wins over `ask`, and `ask` over `allow`; the order has no meaning.

    `default` decides about entries that no rule matches. If it is None, they are denied if there is an allow list, even
    an empty one, and the trust level decides if there is none.
    """

    allow: Annotated[tuple[_RuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_RuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_RuleEntry, ...], _DENY] = ()
    default: Annotated[
        Verdict | None,
        desc(
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
class PromptConsent(KindConsent):
    """The rules for prompts."""

    allow: Annotated[tuple[_PromptRuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_PromptRuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_PromptRuleEntry, ...], _DENY] = ()


@dataclass(frozen=True)
class UriConsent(KindConsent):
    """The rules for one kind whose entries have URIs."""

    allow: Annotated[tuple[_UriRuleEntry, ...] | None, _ALLOW] = None
    ask: Annotated[tuple[_UriRuleEntry, ...], _ASK] = ()
    deny: Annotated[tuple[_UriRuleEntry, ...], _DENY] = ()


UNSPECIFIED = KindConsent()


def _one_word(
    keys: Iterable[str], what: str, *, lists: bool = False, more: Mapping[str, object] = MappingProxyType({})
) -> Any:
    """Take one verdict for all of these keys, or a word of `more` for its value. `lists`: the value is a map of lists,
    which a list by itself is not."""
    words = (*Verdict, *more)
    wanted = f"{', '.join(words)}, or a map of {what}"

    def expand(value: object) -> object:
        if isinstance(value, str):
            if value not in words:
                raise expected(wanted, as_found(value), did_you_mean(value, words))
            return more[value] if value in more else dict.fromkeys(keys, value)
        if lists and isinstance(value, list):
            raise expected(wanted, "a list", "say what it is for, as in {allow: [...]}")
        return value

    return expand


def _rules_in(form: Any) -> BeforeValidator:
    return BeforeValidator(_one_word(["default"], "rules", lists=True), json_schema_input_type=Verdict | form)


_Names = Annotated[KindConsent, _rules_in(KindConsent)]
_PromptNames = Annotated[KindConsent, _written_as(PromptConsent), _rules_in(PromptConsent)]
_Uris = Annotated[KindConsent, _written_as(UriConsent), _rules_in(UriConsent)]


@dataclass(frozen=True)
class Elicitation(Strict):
    """Rules for the server's requests to the user of the client. The patterns of `url` are for pages."""

    form: Annotated[Verdict | None, desc("Requests to fill in a form.")] = None
    url: Annotated[_Uris, desc("Requests to visit a page, by its URL.")] = UNSPECIFIED


@dataclass(frozen=True)
class Consent(Strict):
    """Rules for the requests to a server and from it, by kind, in the server's own names.

    None and UNSPECIFIED leave the decision to the trust level."""

    tools: Annotated[_Names, desc("Rules for tools, by name.")] = UNSPECIFIED
    resources: Annotated[_Uris, desc("Rules for resources, by URI.")] = UNSPECIFIED
    prompts: Annotated[_PromptNames, desc("Rules for prompts, by name.")] = UNSPECIFIED
    sampling: Annotated[Verdict | None, desc("Requests for text from the client's model.")] = None
    elicitation: Annotated[
        Elicitation,
        BeforeValidator(_one_word(["form", "url"], "form and url"), json_schema_input_type=Verdict | Elicitation),
        desc("Requests to the user of the client."),
    ] = Elicitation()
    roots: Annotated[_Uris, desc("Rules for the client's roots that the server may know, by URI.")] = UNSPECIFIED


class ConsentWord(StrEnum):
    """A word for the whole consent of a server."""

    READ_ONLY = "read-only"
    """Tools that only read may be called, by their approved claims; a person confirms the others."""
    CAREFUL = "careful"
    """A person confirms every call of a tool."""
    CLOSED = "closed"
    """Nothing is permitted."""


_FREE: Json = {"resources": "allow", "prompts": "allow"}
CONSENT_WORDS: Mapping[str, Json] = MappingProxyType(
    {
        ConsentWord.READ_ONLY: {
            "tools": {"allow": [{"name": "*", "claims": "read-only"}], "default": "ask"},
            **_FREE,
        },
        ConsentWord.CAREFUL: {"tools": "ask", **_FREE},
        ConsentWord.CLOSED: dict.fromkeys(
            ("tools", "resources", "prompts", "sampling", "elicitation", "roots"), "deny"
        ),
    }
)
"""The words for a whole consent, with what each stands for, as it is written in a file. What it leaves out follows from
the trust level."""
ENTRY_RULES = ("tools", "resources", "prompts")
"""The keys of `consent` about requests to entries of the server; the others are about requests of the server."""
NAME_RULES = ("tools", "prompts")
URI_RULES = ("resources", "roots")


# Servers.


@dataclass(frozen=True)
class Limits(Strict):
    """Limits of the use of a server; without a key there is no such limit.

    `concurrent` calls run at once, a few more wait; `result` is in bytes, and so is `message`, one message as the
    server sends it; `sampling` counts the server's requests for it, `sampling_tokens` the tokens that they ask for."""

    calls: Annotated[RateText | None, desc("Rate of calls, for instance 60/min.")] = None
    concurrent: Annotated[Concurrency | None, desc("Calls that run at once; some more wait for a free place.")] = None
    result: Annotated[MessageSize | None, desc("Size of the largest result to pass on, from 1KiB to 64MiB.")] = None
    sampling: Annotated[RateText | None, desc("Rate of the server's requests for text from the client's model.")] = None
    sampling_tokens: Annotated[
        RateText | None, desc("Rate of the tokens that these requests ask for, for instance 100000/day.")
    ] = None
    message: Annotated[
        MessageSize | None,
        desc(
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
_IN_CLIENT_FOLDER: Json = {"required": ["cwd"], "properties": {"cwd": {"const": CLIENT_FOLDER}}}
_SEVERAL_INSTANCES: Json = {"anyOf": [_NOT_SHARED, _IN_CLIENT_FOLDER]}
_PROGRAM_SCHEMA: Json = {
    "dependentSchemas": {
        "max_instances": _SEVERAL_INSTANCES,
        "idle_timeout": _SEVERAL_INSTANCES,
        "cwd": {
            "if": _IN_CLIENT_FOLDER,
            "then": {
                "properties": {
                    "isolation": {"not": {"const": Isolation.PER_CALL.value}},
                    "eras": {"not": {"const": Eras.BOTH.value}},
                }
            },
        },
    }
}


@dataclass(frozen=True, kw_only=True)
class Defaults(Strict):
    """The keys of servers that may stand under `defaults` too, for those that lack them."""

    consent: Annotated[
        Consent,
        BeforeValidator(
            _one_word(
                ["tools", "resources", "prompts"],
                "tools, resources, prompts, sampling, elicitation and roots",
                more=CONSENT_WORDS,
            ),
            json_schema_input_type=ConsentWord | Verdict | Consent,
        ),
        desc(
            "Rules for requests to the server and from it; trust decides about everything that is not mentioned. "
            "read-only: tools that only read may be called, by their approved claims, and a person confirms the "
            "others. careful: a person confirms each call of a tool. closed: nothing is permitted."
        ),
    ] = Consent()
    trust: Annotated[
        Trust,
        BeforeValidator(_no_switch, json_schema_input_type=Trust),
        desc(
            "Default policy for everything that consent does not mention. trusted: everything is allowed, including "
            "changed definitions. standard: calls are allowed, changed definitions need approval; sampling and opening "
            "a URL need confirmation. untrusted: all definitions need approval and all calls confirmation, invisible "
            "characters are removed, the server's own requests are denied, and its program is confined (sandbox).",
            "standard",
        ),
    ] = Trust.STANDARD
    limits: Annotated[Limits, desc("Limits of use.")] = Limits()
    start: Annotated[
        Start,
        desc(
            "eager: start with the host. lazy: start at the first use, if the lists are known from an earlier start.",
            "eager",
        ),
    ] = Start.EAGER
    sandbox: SandboxKey = None


@dataclass(frozen=True, repr=False, kw_only=True)
class BaseServer(Defaults, ABC):
    """The keys of all servers.

    `max_instances` and `idle_timeout` are about the instances of a server that is not shared, or that runs once per
    folder of a client: how many may live at once, and after how many seconds without use one is stopped. A server that
    cannot be used has a `problem`, which shows no secret, and is never started. If it is of a desktop host's file, its
    command stands for nothing. If it `waits_for` environment variables, references to them stand in its values as they
    are written.
    """

    __pydantic_config__ = ConfigDict(**STRICT, json_schema_extra=_DEDICATED_SCHEMA)

    id: Internal[str] = ""
    problem: Internal[str] = ""
    waits_for: Internal[tuple[str, ...]] = ()
    """The environment variables that are missing and may still come, from a client (`config.environment`)."""
    variables: Internal[Mapping[str, Secret | None]] = field(default_factory=empty_map, hash=False)
    """The environment variables that it is started or reached with; None: not set, and a client may hand it over."""
    defaulted: Internal[frozenset[str]] = field(default=frozenset(), compare=False)
    """The keys that it has from `defaults`."""
    confined_by_trust: Internal[bool] = field(default=False, compare=False)
    """Whether it is an untrusted program without the key `sandbox`, whose sandbox follows from that."""
    unconfined: Internal[Unconfined | None] = field(default=None, compare=False)
    """Why a program whose sandbox would follow from its trust has none (`host.policy.confinement`)."""
    replaced: Internal[tuple[str, ...]] = field(default=(), compare=False)
    """Sentences on what passes since a key of its own replaces that of `defaults` as a whole."""
    longest_name: Internal[int] = LONGEST_NAME
    """The limit for names of the file."""
    prefix: Annotated[
        NamePrefix | None,
        desc("What the names of its tools and prompts and the URIs of its resources begin with. Default: its id."),
    ] = None
    title: Annotated[Title | None, desc("A name for people, shown instead of the id.")] = None
    timeout: Annotated[CallTime, desc("Timeout of a call, up to 24h; progress restarts it.", "60s")] = 60.0
    timeout_total: Annotated[
        CallTime | None,
        desc("Time in all for a call that reports progress; timeout to 24h.", "the larger of 600s and timeout"),
    ] = None
    start_timeout: Annotated[StartTime, desc("Timeout for connecting, handshake and first lists together.", "60s")] = (
        60.0
    )
    protocol: Annotated[
        Protocol,
        desc(
            "How a connection begins. auto: send server/discover, and make a handshake if the server does not know it. "
            "legacy: always make a handshake, for servers that exit or fall silent on server/discover. modern: never "
            "make a handshake. The name of a revision: use this one only.",
            "auto",
        ),
    ] = Protocol.AUTO
    eras: Annotated[
        Eras | None,
        desc(
            "Connections to a server that speaks with a handshake and stateless. both: clients with a session are "
            "served over a session, opened when the first one needs it, and others without. one: all clients are "
            "served in the newer way. For a program, both starts it twice.",
            "both for a url, one for a command",
        ),
    ] = None
    isolation: Annotated[
        Isolation,
        desc(
            "Who shares an instance of the server: all clients, the requests of one client, or nobody (per-call).",
            "shared",
        ),
    ] = Isolation.SHARED
    max_instances: Annotated[
        Instances,
        desc("Instances that may run at once beside the first, if isolation is not shared or cwd is the client's.", 16),
    ] = 16
    idle_timeout: Annotated[
        Idle,
        desc("Time without use after which such an instance is stopped; 1s to 24h.", "5m"),
    ] = 300.0
    idle: Annotated[
        Idle | None,
        desc(
            "Time without use after which the server is stopped until its next use. It stays listed. 1s to 24h.",
            "never",
        ),
    ] = None
    disabled: Annotated[Flag, desc("Leaves the server out without removing it from the file.", default=False)] = False
    overrides: Overrides = field(default_factory=empty_map, hash=False)

    @property
    def outward_prefix(self) -> str:
        """The beginning of the names of its entries, as clients see them."""
        return self.prefix or self.id

    @property
    def longest_call(self) -> float:
        """Seconds in which a call must end, whatever progress it reports."""
        return self.timeout_total or max(self.timeout, _USUAL_TOTAL)

    @property
    def longest_wait(self) -> float:
        """Seconds for what a call may have to wait for before it is sent, and for requests of Colonnade's own."""
        return min(self.timeout, _USUAL_TOTAL)

    @property
    def may_use_both_eras(self) -> bool:
        """Whether clients of each era are served in their own, if the server speaks both."""
        eras = self.eras or (Eras.BOTH if isinstance(self, HttpServer) else Eras.ONE)
        return self.protocol is Protocol.AUTO and eras is Eras.BOTH

    @field_validator("overrides")
    @classmethod
    def _fitting_overrides(cls, overrides: Mapping[str, Override]) -> Mapping[str, Override]:
        errors_below(override_problems(overrides))
        return overrides

    @field_validator("timeout_total", mode="after")
    @classmethod
    def _not_below_timeout(cls, total: float | None, info: ValidationInfo) -> float | None:
        if total is not None and total < info.data.get("timeout", total):
            raise InvalidValue(
                f"a call may take {info.data['timeout']:g}s without progress (timeout); expected no less"
            )
        return total

    @field_validator("eras", mode="after")
    @classmethod
    def _of_both_eras(cls, value: Eras | None, info: ValidationInfo) -> Eras | None:
        protocol = info.data.get("protocol", Protocol.AUTO)
        if value is Eras.BOTH and protocol is not Protocol.AUTO:
            raise InvalidKey(f"protocol: {protocol} permits one era only; remove one of the two keys")
        return value

    @property
    def takes_client_folder(self) -> bool:
        """Whether it is a program that runs once per folder of a client."""
        return False

    def describe_sandbox(self, means: str = "") -> str:
        """One line for people: what its program is given, why, and the means that hold it. Empty if it is none."""
        return ""

    def describe_settings(self) -> list[str]:
        """One line that is safe to show for each setting in effect, but for its rules and its sandbox."""
        settings: dict[str, object] = {
            "prefix": self.outward_prefix,
            "trust": self.trust,
            "start": self.start,
            "idle": "never" if self.idle is None else f"{self.idle:g}s",
            "timeout": f"{self.timeout:g}s",
            "timeout_total": f"{self.longest_call:g}s",
            "start_timeout": f"{self.start_timeout:g}s",
            "protocol": self.protocol,
            "eras": Eras.BOTH if self.may_use_both_eras else Eras.ONE,
            "isolation": self.isolation,
        }
        if self.isolation is not Isolation.SHARED or self.takes_client_folder:
            settings |= {"max_instances": self.max_instances, "idle_timeout": f"{self.idle_timeout:g}s"}
        for key in dataclasses.fields(self.limits):
            limit = getattr(self.limits, key.name)
            if limit is not None:
                is_rate = isinstance(limit, Rate)
                settings[f"limits.{key.name}"] = f"{limit.count} in {limit.seconds:g}s" if is_rate else limit
        started = [] if self.problem else [self.describe()]  # the command of one with a problem may stand for nothing
        return [*started, *(f"{key}: {value}" for key, value in settings.items())]

    def _contradictions(self, written: Collection[str]) -> Iterator[tuple[tuple[str, ...], InvalidKey]]:
        """The keys of the file that others of it give no meaning."""
        if self.isolation is Isolation.SHARED and not self.takes_client_folder:
            for key, does in (("max_instances", "counts"), ("idle_timeout", "stops")):
                if key in written:
                    yield (
                        (key,),
                        InvalidKey(
                            f"{key} {does} dedicated instances, and a shared server has none; "
                            "write isolation: per-client or per-call"
                        ),
                    )

    @abstractmethod
    def describe(self) -> str:
        """One line that is safe to show."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.describe()}>"


_USUAL_TOTAL = 600.0
"""Seconds: `timeout_total` where it is not written, and the most that a call waits before it is sent."""
_CLIENT_FOLDER = Path(CLIENT_FOLDER)
"""No folder of a file: those are absolute."""


@dataclass(frozen=True, repr=False, kw_only=True)
class StdioServer(BaseServer):
    """A server that Colonnade starts as a child process.

    `command` is the program, an absolute path or a bare word for PATH, and all of its arguments: those that a file has
    under `args` are at its end once the file is read. `env` is what the file adds to the child's environment.
    """

    __pydantic_config__ = ConfigDict(
        **STRICT,
        json_schema_extra={
            **_PROGRAM_SCHEMA,
            "if": {"required": ["command"], "properties": {"command": {"type": "array"}}},
            "then": {"properties": {"args": False}},
        },
    )

    # Above the command, which is split into words without it.
    args: Annotated[tuple[SecretText, ...] | None, desc("The program's arguments, if command is a string.")] = None
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
        desc(
            "The program to start. A list is the program and its arguments; a string beside args is the program alone; "
            "a string by itself is split into words as a POSIX shell would."
        ),
    ]
    env: Annotated[FrozenMap[EnvName, SecretText], desc("Variables added to the program's environment.")] = field(
        default_factory=empty_map, hash=False
    )
    cwd: Annotated[
        StartFolder,
        desc(
            "The folder the program starts in, from the folder of this file. ${client:folder}: one instance in each "
            "folder that clients of serve --stdio work in.",
            ".",
        ),
    ] = Path()
    declared: Internal[str] = ""
    """A digest of the command as it is written in the file, whatever its references give."""
    written_words: Internal[tuple[str, ...]] = field(default=(), compare=False)
    """The words of the command as they are written in the file, without what is usually secret."""

    @property
    def program(self) -> Secret:
        return self.command[0]

    @property
    def takes_client_folder(self) -> bool:
        return self.cwd == _CLIENT_FOLDER

    @property
    def runtime(self) -> str:
        """The client program that makes the container in which its program runs; empty if it runs in none."""
        return "" if self.sandbox is None or self.sandbox.with_ is None else self.sandbox.with_.value

    @property
    def started_words(self) -> tuple[str, ...]:
        """The words that say what is started on this machine: the command, or the client program of a container."""
        return (self.runtime,) if self.runtime else tuple(word.reveal() for word in self.command)

    def _contradictions(self, written: Collection[str]) -> Iterator[tuple[tuple[str, ...], InvalidKey]]:
        yield from super()._contradictions(written)
        if self.sandbox is not None and self.takes_client_folder:
            text = f"a confined program cannot work in folders of clients; write another cwd, or sandbox: {OFF_WORD}"
            yield ("sandbox",), InvalidKey(text)
        for name in filter(is_read_by_clients, self.env if self.runtime else ()):
            text = f"{self.runtime} would take this variable for itself; set it in the image, or remove it"
            yield ("env", name), InvalidKey(text)
        if self.takes_client_folder and self.isolation is Isolation.PER_CALL:
            text = "an instance for each call cannot stay in a folder; write shared or per-client, or another cwd"
            yield ("isolation",), InvalidKey(text)
        if self.takes_client_folder and self.eras is Eras.BOTH:
            text = "eras: both would start the program twice in a folder of a client; remove it, or write another cwd"
            yield ("eras",), InvalidKey(text)

    def describe_sandbox(self, means: str = "") -> str:
        if self.sandbox is not None:
            held = f"; held by {means}{what_is_open(means)}" if means else ""
            return f"{self.sandbox.describe()}{held}{self._origin_of_sandbox()}"
        match self.unconfined:
            case Unconfined.OPEN:
                why = f", as before, until you choose: colonnade sandbox {self.id} strict, or off"
            case Unconfined.CHOSEN:
                why = ", as a person chose for this command"
            case _:
                why = self._origin_of_sandbox()
        return f"off: it runs as your user{why}"

    def _origin_of_sandbox(self) -> str:
        if self.confined_by_trust:
            return " (strict, from trust: untrusted)"
        return " (from defaults.sandbox)" if "sandbox" in self.defaulted else ""

    def describe_settings(self) -> list[str]:
        return [*super().describe_settings(), *([f"env: {', '.join(self.env)}"] if self.env else ())]

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
        written = [*_written_words(value["command"], alone="args" not in value), *value.get("args", ())]
        words = [mask(word) for word in written]
        text = server.program.reveal()
        # A bare word stays one, for PATH; anything with a slash starts from the folder of the file, but in a container.
        is_here = "/" in text and not server.runtime
        program = Secret(str(folder / text) if is_here else text, clip(words[0].rstrip("/").rpartition("/")[2]))
        cwd = value.get("cwd", "")
        is_clients = cwd == CLIENT_FOLDER  # as it is written: a variable may hold the same text
        parts = [words, sorted(server.env), [cwd] if is_clients else mask(cwd)]  # a folder may have this name
        placed = dataclasses.replace(
            server,
            command=(program, *server.command[1:], *(server.args or ())),
            args=None,
            cwd=_CLIENT_FOLDER if is_clients else folder / server.cwd,
            declared=f"sha256:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}",
            written_words=shown_words(written),
        )
        errors_below(placed._contradictions(value))
        if placed.trust is Trust.UNTRUSTED and "sandbox" not in value:
            placed = dataclasses.replace(placed, sandbox=Sandbox(), confined_by_trust=True)
        return placed


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


class Pkce(StrEnum):
    """Whether an issuer that does not say that it knows PKCE with S256 is used."""

    ADVERTISED = "advertised"
    ASSUME = "assume"


@dataclass(frozen=True)
class OAuth(Strict):
    """The client that Colonnade is at the issuer of a server. Without a `client_id` it registers itself."""

    __pydantic_config__ = ConfigDict(
        **STRICT,
        json_schema_extra={
            "dependentRequired": {"client_secret": ["client_id"], "private_key": ["client_id"]},
            "if": {"required": ["grant"], "properties": {"grant": {"const": OAuthGrant.CLIENT_CREDENTIALS.value}}},
            "then": {
                "required": ["client_id"],
                "anyOf": [{"required": ["client_secret"]}, {"required": ["private_key"]}],
            },
        },
    )

    client_id: Annotated[SecretText | None, desc("The id of a client that is registered at the issuer.")] = None
    client_secret: Annotated[SecretText | None, desc("The secret of that client, if it has one.")] = None
    private_key: Annotated[
        SecretText | None,
        desc("The private key of that client in PEM format (RSA or P-256), if the issuer has its public key."),
    ] = None
    scopes: Annotated[EachOnce[Scope], desc("Scopes to request. Default: those that the server names.")] = ()
    client_metadata_url: Annotated[
        MetadataUrl | None,
        desc(
            "The public https URL of a Client ID Metadata Document of yours, for issuers that take such a URL as the "
            "client id."
        ),
    ] = None
    redirect_port: Annotated[
        Port | None,
        desc(
            "The port of 127.0.0.1 to which the browser returns, if the client is registered with one. Default: a "
            "free one."
        ),
    ] = None
    issuers: Annotated[
        EachOnce[IssuerName],
        desc(
            "The names of the issuer, if it has several: its metadata may be found at one and name another of them. "
            "The server may name no other issuer. Default: the one that the server names."
        ),
    ] = ()
    resource: Annotated[
        ResourceName | None,
        desc(
            "The resource to name to the issuer in the place of the server's, or none for an issuer that refuses such "
            "a parameter. Default: the one that the server names."
        ),
    ] = None
    pkce: Annotated[
        Pkce,
        desc(
            "advertised: the issuer has to say that it knows PKCE. assume: it need not say so. PKCE is used anyway.",
            "advertised",
        ),
    ] = Pkce.ADVERTISED
    parameters: Annotated[
        FrozenMap[ParameterName, ParameterValue],
        desc("Parameters for the address of the login page, in addition to ours. An empty prompt leaves ours out."),
    ] = field(default_factory=empty_map, hash=False)
    grant: Annotated[
        OAuthGrant,
        desc(
            "authorization_code: a person logs in. client_credentials: Colonnade gets a token for itself, with the "
            "client's secret or key.",
            "authorization_code",
        ),
    ] = OAuthGrant.AUTHORIZATION_CODE

    def indicator(self, resource: str) -> str:
        """The resource to name to the issuer of a server with this one; empty for none."""
        return resource if self.resource is None else self.resource

    @property
    def warnings(self) -> Iterator[str]:
        """The risks that its keys bring, as parts of sentences."""
        if self.resource == "":
            yield (
                "with oauth.resource: none its tokens are bound to no server: it could use them at others of its issuer"
            )
        elif self.resource is not None:
            yield f"its tokens are those of oauth.resource, {self.resource}: it could use them there"
        if self.pkce is Pkce.ASSUME:
            yield (
                "with oauth.pkce: assume its issuer may ignore PKCE: a program on this machine that got the answer of "
                "a login could then use it"
            )

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

    url: Annotated[Url, desc("The URL of a server with Streamable HTTP or the older HTTP+SSE.")]
    headers: Annotated[
        FrozenMap[HeaderName, HeaderValue],
        AfterValidator(_unique_names),
        desc("Headers sent with every request to the server."),
    ] = field(default_factory=empty_map, hash=False)
    headers_helper: Annotated[
        tuple[SecretText, ...] | None,
        WithJsonSchema({"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1}),
        desc(
            "A program and its arguments that prints a JSON object of headers. It runs at each connection, for at most "
            "10 s; its headers replace others of the same name."
        ),
    ] = None
    oauth: Annotated[
        OAuth | None,
        desc("The client that logs in at the server, if Colonnade should not register one by itself."),
    ] = None
    folder: Internal[Path] = Path()
    """The folder of the file, in which the helper runs."""
    learned_secrets: Internal[list[Secret]] = field(default_factory=list, compare=False, hash=False)
    """Headers that the helper printed for the last connection, or the tokens of the login. They are redacted like
    configured ones."""

    @model_validator(mode="wrap")
    @classmethod
    def _placed(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        server = handler(value)
        assert isinstance(info.context, Expander)
        errors_below(server._contradictions(value))
        return server if server.headers_helper is None else dataclasses.replace(server, folder=info.context.folder)

    def _contradictions(self, written: Collection[str]) -> Iterator[tuple[tuple[str, ...], InvalidKey]]:
        yield from super()._contradictions(written)
        if "sandbox" in written:
            yield ("sandbox",), InvalidKey("it confines a program, and here is a url; remove it")

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

    def describe_settings(self) -> list[str]:
        return [*super().describe_settings(), *([f"headers: {', '.join(self.headers)}"] if self.headers else ())]

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
    errors_below(_equal_prefixes(servers))
    names = info.data.get("names", NamesSpec())
    return MappingProxyType(
        {id: dataclasses.replace(server, id=id, longest_name=names.limit) for id, server in servers.items()}
    )


def _equal_prefixes(servers: Mapping[str, ServerSpec]) -> Iterator[tuple[tuple[str, str], InvalidValue]]:
    """Prefixes that another server has too, or that are its id: names would not tell whose they are."""
    owners: dict[str, str] = {}
    for id, server in servers.items():
        if server.prefix is not None and (other := owners.setdefault(server.prefix, id)) != id:
            yield (id, "prefix"), InvalidValue(f"the server {other} has this prefix too; give each its own")
        elif server.prefix != id and server.prefix in servers:
            yield (id, "prefix"), InvalidValue(f"this is the id of another server; give {id} another prefix")


# The rest of the file.


@dataclass(frozen=True)
class NamesSpec(Strict):
    """The names of tools and prompts that clients see."""

    limit: Annotated[
        NameLength,
        desc(
            f"Characters of a name with its prefix, from {SHORTEST_LIMIT} to {LONGEST_LIMIT}. A longer one is cut and "
            "ends in a digest.",
            LONGEST_NAME,
        ),
    ] = LONGEST_NAME


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
class Auth(Strict):
    """Access tokens by the names of their callers: only these callers may use the endpoint."""

    tokens: Annotated[
        FrozenMap[TokenName, Token],
        AfterValidator(_distinct_tokens),
        desc(
            "Access tokens, each under the name of its caller; every request needs one of them.",
            minProperties=1,
            propertyNames={"pattern": f"^{TOKEN_NAME}$"},
        ),
    ] = field(hash=False)


@dataclass(frozen=True)
class Tls(Strict):
    """The certificate with which the endpoint serves TLS. Both are files in PEM format, read again at each reload."""

    cert: Annotated[FilePath, desc("File with the certificate, and those of the authorities between, in PEM format.")]
    key: Annotated[FilePath, desc("File with its private key, in PEM format and without a password.")]


@dataclass(frozen=True, kw_only=True)
class Listen(Strict):
    """The address of the endpoint, and who may use it.

    `origins` and `hosts` are lower-case, and in addition to the loopback ones."""

    # Above the address, which is checked against it.
    auth: Annotated[Auth | None, desc("Who may use the endpoint; default: everyone who can reach it.")] = None
    address: Annotated[
        AddressText,
        desc(
            "host:port, IPv6 in brackets; port 0 uses a free port. Addresses beyond loopback need tokens under auth.",
            f"{DEFAULT_HOST}:{DEFAULT_ADDRESS.port}",
        ),
    ] = DEFAULT_ADDRESS
    path: Annotated[EndpointPath, desc("The path of the endpoint.", "/mcp")] = "/mcp"
    origins: Annotated[EachOnce[Origin], desc("Origins of accepted web pages, in addition to loopback ones.")] = ()
    hosts: Annotated[EachOnce[Host], desc("Accepted Host headers, in addition to the loopback ones.")] = ()
    sse: Annotated[Flag, desc("Whether HTTP+SSE is served too, at /sse and /message.", default=True)] = True
    tls: Annotated[Tls | None, desc("Serve https with this certificate.")] = None
    http2: Annotated[
        AddressText | None,
        desc("host:port of HTTP/2, beside that of HTTP/1.1; with TLS if there is a certificate. Default: no HTTP/2."),
    ] = None
    metrics: Annotated[
        AddressText | None,
        desc(
            "host:port at which Prometheus finds /metrics; beyond loopback it needs metrics.token. Needs the extra "
            "metrics. Default: no metrics."
        ),
    ] = None

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    @property
    def is_local(self) -> bool:
        """Whether no other machine reaches any of the addresses."""
        return all(is_loopback(each.host) for each in self.addresses)

    @property
    def addresses(self) -> tuple[Address, ...]:
        return (self.address,) if self.http2 is None else (self.address, self.http2)

    @property
    def tokens(self) -> Mapping[str, Secret]:
        """The access tokens by name; empty if none is needed."""
        return empty_map() if self.auth is None else self.auth.tokens

    @field_validator("address")
    @classmethod
    def _given(cls, address: Address, info: ValidationInfo) -> Address:
        assert isinstance(info.context, Expander)
        host, port = info.context.given_address
        return Address(address.host if host is None else host, address.port if port is None else port)

    @field_validator("address", "http2")
    @classmethod
    def _guarded(cls, address: Address | None, info: ValidationInfo) -> Address | None:
        assert isinstance(info.context, Expander)
        # An auth that is wrong is missing in data, and its own problem is enough.
        if address is None or is_loopback(address.host) or info.data.get("auth", ...) is not None:
            return address
        is_given = info.field_name == "address" and info.context.given_address[0] is not None
        raise InvalidValue(
            f"{f'{address.host} (--host)' if is_given else 'an address beyond loopback'} is open to other machines, so "
            f"it needs access tokens under listen.auth.tokens; {_NAME_A_TOKEN}, or use {DEFAULT_HOST}"
        )

    @field_validator("http2", "metrics")
    @classmethod
    def _with_port(cls, address: Address | None, info: ValidationInfo) -> Address | None:
        assert isinstance(info.context, Expander)
        others = {_endpoint(info.context.given_address): info.data.get("address")}
        errors_below(_port_problems((), address, {**others, "listen.http2": info.data.get("http2")}))
        return address


def _endpoint(given: GivenAddress) -> str:
    """The name of what says at which port the endpoint is."""
    return "listen.address" if given[1] is None else "--port"


def _port_problems(place: tuple[str, ...], address: Address | None, others: Mapping[str, Address | None]) -> Problems:
    """The problem with the address at this place, if one of the others has its port."""
    for name, other in others.items():
        if address is not None and other is not None and address.excludes(other):
            yield place, InvalidValue(f"{name} has this port; expected another")


@dataclass(frozen=True)
class MetricsSpec(Strict):
    """The extent of the metrics of `listen.metrics`, and who may have them."""

    tools: Annotated[
        Flag, desc("Whether the durations of tools are told by the names of the tools too.", default=False)
    ] = False
    token: Annotated[
        Token | None,
        desc("The access token of /metrics. Default: everyone who can reach its address, which is then on loopback."),
    ] = None


@dataclass(frozen=True)
class TracesSpec(Strict):
    """Traces of requests, sent to the collector that the `OTEL_*` variables name."""

    content: Annotated[
        Flag, desc("Whether spans have arguments and results of tools, URIs, and texts of errors.", default=False)
    ] = False


def _unique_answers(answers: tuple[Channel, ...]) -> tuple[Channel, ...]:
    if not answers:
        raise InvalidValue(f"nobody could confirm; name at least one of {', '.join(Channel)}")
    if len(set(answers)) < len(answers):
        raise InvalidValue("a name is in the list twice; remove one")
    return answers


def _read_notice(value: object) -> object:
    """The words `desktop` and `browser` are notices without a key."""
    if value == "desktop":
        return {}
    if value == "browser":
        return Notice(opens_page=True)
    if isinstance(value, dict) and len(value.keys() & {"command", "webhook"}) == 1:
        return value
    found = f'"{clip(value)}"' if isinstance(value, str) else kind_of(value)
    raise expected("desktop, browser, or a map with either command or webhook", found)


@dataclass(frozen=True)
class Notice(Strict):
    """A way to tell people that a call waits for them: a program or a URL, or else the desktop."""

    command: Annotated[
        tuple[SecretText, ...] | None,
        WithJsonSchema({"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1}),
        desc("A program and its arguments. It gets a JSON object on its standard input, and has 10 s."),
    ] = None
    webhook: Annotated[Url | None, desc("A URL to which the JSON object is posted.")] = None
    headers: Annotated[
        FrozenMap[HeaderName, HeaderValue],
        AfterValidator(_unique_names),
        desc("Headers sent to the webhook."),
    ] = field(default_factory=empty_map, hash=False)
    folder: Internal[Path] = Path()
    """The folder of the file, in which the command runs."""
    opens_page: Internal[bool] = False
    """Whether the console is opened in the browser too, if no page of it is open."""

    @property
    def is_desktop(self) -> bool:
        return self.command is None and self.webhook is None

    @model_validator(mode="wrap")
    @classmethod
    def _placed(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        notice = handler(value)
        assert isinstance(info.context, Expander)
        if notice.is_desktop:
            return notice
        if notice.webhook is None and "headers" in value:
            errors_below([(("headers",), InvalidKey("headers are sent to a webhook, and here is none; remove them"))])
        if notice.command == ():
            errors_below([(("command",), expected("a list of a program and its arguments", "an empty list"))])
        return notice if notice.command is None else dataclasses.replace(notice, folder=info.context.folder)


_Notice = Annotated[
    Notice, BeforeValidator(_read_notice, json_schema_input_type=Literal["desktop", "browser"] | Notice)
]


def _one_desktop(ways: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """`browser` notifies on the desktop too."""
    return tuple(way for way in ways if way != Notice()) if Notice(opens_page=True) in ways else ways


@dataclass(frozen=True)
class AskSpec(Strict):
    """The people who confirm calls, how they are told, and the seconds they have for it."""

    answers: Annotated[
        tuple[Channel, ...],
        AfterValidator(_unique_answers),
        desc(
            "Where a person may confirm: in the web console, in a terminal with colonnade ask, or through the calling "
            "client.",
            ["console", "terminal"],
            minItems=1,
            uniqueItems=True,
        ),
    ] = (Channel.CONSOLE, Channel.TERMINAL)
    timeout: Annotated[AskTime, desc("Time a call waits for confirmation; 1s to 1h.", "50s")] = 50.0
    notify: Annotated[
        EachOnce[_Notice],
        AfterValidator(_one_desktop),
        desc("How people are told that a call waits for them, besides the open console and terminals.", ["desktop"]),
    ] = (Notice(),)

    @property
    def reaches_people(self) -> bool:
        """Whether somebody who is told can answer."""
        return Channel.CONSOLE in self.answers or Channel.TERMINAL in self.answers


@dataclass(frozen=True)
class ConsoleSpec(Strict):
    """The address of the web console.

    If it is None, the console is at the endpoint's own address if that is a loopback one. Otherwise, and with
    `--stdio`, it is at a loopback address of its own."""

    address: Annotated[
        LoopbackAddress | None,
        desc(
            "host:port of loopback; port 0 uses a free port. Default: beside the endpoint if that is on loopback, else "
            "a free port."
        ),
    ] = None


_SWITCH = {"on": True, "true": True, "off": False, "false": False}
# Some editors read off as a truth, others as the word.
_Switch = Annotated[Any, WithJsonSchema({"enum": [*_SWITCH, True, False]})]


def _read_switch(value: object, *, a_map: str) -> object:
    """`on` is what the defaults say, `off` none. `a_map`: what else it may be."""
    if not isinstance(value, str):
        return value
    if value not in _SWITCH:
        raise expected(f"on, off, or {a_map}", as_found(value), did_you_mean(value, ("on", "off")))
    return {} if _SWITCH[value] else None


@dataclass(frozen=True)
class AuditSpec(Strict):
    """The place and the content of the audit log.

    `keep` is in seconds after the last record of a file, `max` the bytes of all files together."""

    to: Annotated[
        AuditPlace,
        desc("Files of the state directory, or lines on standard output, as for a container.", "files"),
    ] = field(default=AuditPlace.FILES, compare=False)  # with the next start, and so no change that waits for a person
    arguments: Annotated[
        AuditDetail,
        desc(
            "Arguments of calls: a digest and their shape, or in full, including secrets.",
            "digest",
        ),
    ] = AuditDetail.DIGEST
    keep: Annotated[AuditAge, desc("Files are deleted when their last record is older; from 1h.", "90d")] = 90 * 86400.0
    max: Annotated[
        AuditSize, desc("While all files together are larger, the oldest are deleted; from 128MiB.", "1GiB")
    ] = 1024**3

    @model_validator(mode="wrap")
    @classmethod
    def _without_retention(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        audit = handler(value)
        if audit.to is AuditPlace.STDOUT and isinstance(value, dict):
            why = "lines on standard output are kept as long as whoever collects them says; remove {}"
            errors_below([((key,), InvalidKey(why.format(key))) for key in ("keep", "max") if key in value])
        return audit


@dataclass(frozen=True)
class HistorySpec(Strict):
    """The limits of the history: `keep` is in seconds, `max` the bytes of the index. `arguments` is what the audit
    has of arguments and results, besides what its own key says; None for nothing."""

    keep: Annotated[AuditAge, desc("Calls are deleted when they are older; from 1h.", "30d")] = 30 * 86400.0
    max: Annotated[
        HistorySize, desc("While the index is larger, its oldest calls are deleted; from 16MiB.", "1GiB")
    ] = 1024**3
    arguments: Annotated[
        HistoryDetail | None,
        desc(
            "Arguments and results of calls that the audit keeps, of at most 32 KiB each: redacted (without what looks "
            "like a secret, and without long texts) or full. Default: none."
        ),
    ] = None


def _streams_among(connections: int) -> int:
    """The most streams that leave enough of these connections for messages."""
    return connections * 4 // 5


@dataclass(frozen=True)
class Capacity(Strict):
    """How many clients the endpoint holds at once, idle ones included."""

    sessions: Annotated[Places, desc("Open sessions over Streamable HTTP; 16 to 100000.", 1000)] = 1000
    connections: Annotated[
        Places, desc("Open connections over HTTP/1.1; 16 to 100000, within the limit of open files.", 1000)
    ] = 1000
    streams: Annotated[
        StreamPlaces | None,
        desc("Open event streams, half of them of one kind; default and most: four fifths of the connections."),
    ] = None

    @property
    def most_streams(self) -> int:
        return _streams_among(self.connections) if self.streams is None else self.streams

    @property
    def idle_memory(self) -> int:
        """Bytes that idle clients need beyond those of the defaults, which the program itself includes."""
        return max(0, self._needed - DEFAULT_CAPACITY._needed)

    @property
    def _needed(self) -> int:
        return self.sessions * SESSION_MEMORY + self.connections * CONNECTION_MEMORY + self.most_streams * STREAM_MEMORY

    @field_validator("streams")
    @classmethod
    def _beside_messages(cls, streams: int | None, info: ValidationInfo) -> int | None:
        connections = info.data.get("connections")
        if streams is not None and connections is not None and streams > (most := _streams_among(connections)):
            raise InvalidValue(
                f"{streams} streams leave too few of {connections} connections for messages; expected at most "
                f"{most}, or set capacity.connections to {-(-streams * 5 // 4)} or more"
            )
        return streams


DEFAULT_CAPACITY = Capacity()


@dataclass(frozen=True)
class DaemonSpec(Strict):
    """The host that `serve --stdio` starts in the background. `idle` is in seconds; infinite if it does not end."""

    idle: Annotated[Lingering, desc("It ends when it has had no client for so long; 1s to 24h, or never.", "10m")] = (
        600.0
    )


def _read_daemon(value: object) -> object:
    """`false` is none: each `serve --stdio` is a host of its own."""
    if isinstance(value, dict):
        return value
    if value is False or value == "false":
        return None
    raise expected("false, or a map with idle", f'"{clip(value)}"' if isinstance(value, str) else kind_of(value))


def _rule_caller_problems(consent: Consent, callers: Collection[str]) -> Problems:
    """The callers in rules that the file does not have."""
    kinds: list[tuple[tuple[str, ...], KindConsent]] = [
        ((kind,), getattr(consent, kind)) for kind in (*ENTRY_RULES, "roots")
    ]
    kinds.append((("elicitation", "url"), consent.elicitation.url))
    for place, rules in kinds:
        for key, entries in (("allow", rules.allow or ()), ("ask", rules.ask), ("deny", rules.deny)):
            for n, rule in enumerate(entries):
                for path, error in caller_problems(rule.callers, callers):
                    yield ("consent", *place, key, n, *path), error


def _listeners(listen: Listen | None, fleet: Fleet | None, given: GivenAddress) -> dict[str, Address | None]:
    """The addresses of a host by the names of what says their ports, but for that of the console."""
    found = {f"listen.{key}": getattr(listen, key, None) for key in ("http2", "metrics")}
    inner = None if fleet is None or fleet.inner is None else fleet.inner.listen
    return {_endpoint(given): getattr(listen, "address", None), **found, "fleet.inner.listen": inner}


@dataclass(frozen=True, repr=False, kw_only=True)
class Config(Strict):
    """A whole configuration file.

    `digest` is of the text of the file, or, if it is a desktop host's, of what was read from it and from the files
    beside it; `servers` is in the order of the file. `notices` are sentences for the person who starts the host, and
    `answers` the inputs that this person gave. `console` is None if it is switched off. `memory` is in bytes.
    """

    source: Internal[Path] = Path()
    digest: Internal[str] = field(default="", compare=False)
    files: Internal[Mapping[Path, str]] = field(default_factory=empty_map, compare=False)
    """The file and all that were looked at beside it, also missing ones, each with its state (`config.file_state`)."""
    notices: Internal[tuple[str, ...]] = ()
    unapproved: Internal[frozenset[str]] = field(default=frozenset(), compare=False)
    """The servers of a desktop host's file for a project that no file says that this host may start."""
    given_address: Internal[GivenAddress] = (None, None)
    """What holds instead of `listen.address` of the file."""
    answers: Internal[Mapping[str, Secret]] = field(default_factory=empty_map, hash=False)
    in_background: Internal[bool] = False
    """The host lacks the environment of a terminal, and a server waits for a client that has a missing variable."""
    handed_over: Internal[Mapping[str, Secret]] = field(default_factory=empty_map, compare=False)
    """Environment variables that clients handed over, for servers alone (`config.environment`)."""
    own_variables: Internal[frozenset[str]] = field(default=frozenset(), compare=False)
    """Environment variables whose values are those of the host alone (`config.environment`)."""
    written: Internal[Mapping[str, Secret]] = field(default_factory=empty_map, compare=False)
    """The sections of the file as they are written; see `config.written`."""
    read_once: Internal[tuple[str, ...]] = field(default=(), compare=False)
    """Sentences about values that a reload reads again, and that come from the environment, which stays as it is."""
    # Above listen, which may need its token.
    metrics: Annotated[MetricsSpec, desc("The metrics at listen.metrics.")] = MetricsSpec()
    listen: Annotated[Listen, desc("The endpoint: its address, and who may use it.")] = Listen()
    callers: Annotated[
        FrozenMap[CallerName, CallerSpec],
        desc(
            "Whoever calls with an access token, under a name for views and rules.",
            propertyNames={"pattern": f"^{TOKEN_NAME}$"},
        ),
    ] = field(default_factory=empty_map, hash=False)
    start_grace: Annotated[
        Grace | None,
        desc(
            "Time that lists wait for a server that was never seen, from its first start; 0s to 60s.",
            "4s with --stdio, else 20s",
        ),
    ] = None
    watch: Annotated[
        Switch, desc("Whether the file is read again when it is saved. What widens waits for a person.", "on")
    ] = Switch.ON
    memory: Annotated[
        Memory,
        desc("Memory for the messages of clients and servers together; from 32MiB.", "256MiB"),
    ] = DEFAULT_MEMORY
    drain: Annotated[
        DrainTime,
        desc("Time that what is under way has to end once the host is told to stop; 0s to 10m.", "30s"),
    ] = 30.0
    # Below memory, which it needs.
    capacity: Annotated[Capacity, desc("How many clients the endpoint holds at once.")] = DEFAULT_CAPACITY
    fleet: Annotated[Fleet | None, desc("The processes that share one store. Default: this process has its own.")] = (
        None
    )
    daemon: Annotated[
        DaemonSpec | None,
        BeforeValidator(_read_daemon, json_schema_input_type=Literal[False] | DaemonSpec),
        desc("The host that all serve --stdio of this file share, or false: each is a host of its own."),
    ] = DaemonSpec()
    # Above ask, whose answers may come from it.
    console: Annotated[
        ConsoleSpec | None,
        BeforeValidator(
            partial(_read_switch, a_map="a map with an address"), json_schema_input_type=_Switch | ConsoleSpec
        ),
        desc("The web console: on, off, or its address."),
    ] = ConsoleSpec()
    ask: Annotated[AskSpec, desc("Who confirms calls.")] = AskSpec()
    audit: Annotated[AuditSpec, desc("The audit log of decisions.")] = AuditSpec()
    # Below the audit, of which it is made.
    history: Annotated[
        HistorySpec | None, desc("The index of the audit's calls, which the console searches. Default: none.")
    ] = None
    traces: Annotated[
        TracesSpec | None,
        BeforeValidator(partial(_read_switch, a_map="a map with content"), json_schema_input_type=_Switch | TracesSpec),
        desc("Traces of requests by OpenTelemetry: on, off, or what they hold. Needs the extra otel. Default: off."),
    ] = None
    names: Annotated[NamesSpec, desc("How long the names of tools and prompts may be.")] = field(
        default=NamesSpec(), compare=False
    )
    defaults: Annotated[
        Defaults,
        desc("Keys for servers that lack them. A key of a server replaces that of the defaults as a whole."),
    ] = field(default=Defaults(), compare=False)
    servers: Annotated[
        FrozenMap[ServerId, _Server],
        AfterValidator(_with_ids),
        desc(
            "The servers, each under its id.",
            minProperties=1,
            propertyNames={"pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID},
        ),
    ] = field(hash=False)
    # Below the servers and callers, which they name.
    views: Annotated[
        FrozenMap[ViewName, ViewSpec],
        desc(
            "What callers are offered, each view under its name.",
            propertyNames={"pattern": f"^{ID_PATTERN}$", "maxLength": LONGEST_ID},
        ),
    ] = field(default_factory=empty_map, hash=False)
    default_view: Annotated[
        ViewName | None,
        desc(
            "The view of all callers that no view names, as a boundary. Default: they get everything, and every view."
        ),
    ] = None

    @field_validator("listen")
    @classmethod
    def _guarded_metrics(cls, listen: Listen, info: ValidationInfo) -> Listen:
        metrics: MetricsSpec | None = info.data.get("metrics")  # one that is wrong is missing, as below
        if listen.metrics is None or is_loopback(listen.metrics.host) or metrics is None or metrics.token is not None:
            return listen
        why = "an address beyond loopback is open to other machines, so it needs a token; name one under metrics.token"
        errors_below([(("metrics",), InvalidValue(f"{why}, or use {DEFAULT_HOST}"))])
        return listen

    @field_validator("fleet", "console")
    @classmethod
    def _with_ports(cls, spec: Fleet | ConsoleSpec | None, info: ValidationInfo) -> Fleet | ConsoleSpec | None:
        assert isinstance(info.context, Expander)
        others = _listeners(info.data.get("listen"), info.data.get("fleet"), info.context.given_address)
        if isinstance(spec, ConsoleSpec):
            errors_below(_port_problems(("address",), spec.address, others))
        elif spec is not None and spec.inner is not None:
            errors_below(_port_problems(("inner", "listen"), spec.inner.listen, others))
        return spec

    @field_validator("history")
    @classmethod
    def _of_files(cls, history: HistorySpec | None, info: ValidationInfo) -> HistorySpec | None:
        if history is not None and "audit" in info.data and info.data["audit"].to is AuditPlace.STDOUT:
            raise InvalidKey(
                "with audit.to: stdout there is no history, since it is made of the audit's files; remove it"
            )
        return history

    @field_validator("capacity")
    @classmethod
    def _within_memory(cls, capacity: Capacity, info: ValidationInfo) -> Capacity:
        memory, idle = info.data.get("memory"), capacity.idle_memory
        if memory is not None and idle > memory // 2:
            raise InvalidValue(
                f"so many idle clients need {-(-idle // 1024**2)}MiB, which is more than half of memory; set memory to "
                f"{-(-2 * idle // 1024**2)}MiB or more, or expect fewer"
            )
        return capacity

    @field_validator("callers")
    @classmethod
    def _known_tokens(cls, callers: Mapping[str, CallerSpec], info: ValidationInfo) -> Mapping[str, CallerSpec]:
        if "listen" in info.data:  # one that is wrong is missing in data, and its own problem is enough
            errors_below(token_problems(callers, info.data["listen"].tokens))
        return callers

    @field_validator("defaults")
    @classmethod
    def _known_callers_of_defaults(cls, defaults: Defaults, info: ValidationInfo) -> Defaults:
        if (callers := info.data.get("callers")) is not None:
            errors_below(_rule_caller_problems(defaults.consent, callers))
        return defaults

    @field_validator("servers")
    @classmethod
    def _known_callers_of_servers(
        cls, servers: Mapping[str, ServerSpec], info: ValidationInfo
    ) -> Mapping[str, ServerSpec]:
        if (callers := info.data.get("callers")) is not None:
            found = ((id, _rule_caller_problems(spec.consent, callers)) for id, spec in servers.items())
            errors_below(((id, *path), error) for id, problems in found for path, error in problems)
        return servers

    @field_validator("views")
    @classmethod
    def _known_names(cls, views: Mapping[str, ViewSpec], info: ValidationInfo) -> Mapping[str, ViewSpec]:
        if "servers" in info.data:
            assert isinstance(info.context, Expander)
            overrides = {id: spec.overrides for id, spec in info.data["servers"].items()}
            errors_below(view_problems(views, overrides, info.context.stopped, info.data.get("callers")))
        return views

    @field_validator("default_view")
    @classmethod
    def _known_view(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and name not in info.data.get("views", (name,)):
            raise unknown_name("a view under views", name, info.data["views"])
        return name

    @field_validator("ask", mode="wrap")
    @classmethod
    def _confirmed_somewhere(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> AskSpec:
        ask: AskSpec = handler(value)
        if info.data.get("console", ...) is None:  # the default answers may name it all the same
            text = "the console is off, so nobody can confirm there; remove it from the list"
            at = (n for n, answer in enumerate(value.get("answers", ())) if answer == Channel.CONSOLE)
            errors_below((("answers", n), InvalidValue(text)) for n in at)
        if value.get("notify") and not ask.reaches_people:
            text = "whoever is told could not answer; add console or terminal to ask.answers, or remove notify"
            errors_below([(("notify",), InvalidValue(text))])
        return ask

    def redirect_notices(self) -> Iterator[str]:
        """The ports of logins that a listener of the host has too."""
        console = None if self.console is None else self.console.address
        others = {**_listeners(self.listen, self.fleet, self.given_address), "console.address": console}
        for id, spec in self.servers.items():
            oauth = spec.oauth if isinstance(spec, HttpServer) else None
            if oauth is None or oauth.redirect_port is None or oauth.grant is not OAuthGrant.AUTHORIZATION_CODE:
                continue
            for _, problem in _port_problems((), Address(DEFAULT_HOST, oauth.redirect_port), others):
                yield f"servers.{id}.oauth.redirect_port: {problem}; no login can begin while a host listens there"

    def message_memory(self, capacity: Capacity) -> int:
        """The bytes of `memory` that are left for messages while there is room for so many idle clients."""
        return max(self.memory // 2, self.memory - capacity.idle_memory)

    def __repr__(self) -> str:
        return f"<Config {self.source}: {', '.join(self.servers)}>"
