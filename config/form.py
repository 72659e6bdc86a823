"""The form of the file: which keys there are, what each may hold, and the schema that tells an editor the same.

The models describe the file, not what it comes to: their values are nodes read into plain things by the readers of
`config.values`. What is wrong with keys taken together is said here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from config import model
from config.interpolate import Expanded
from config.naming import ID_PATTERN, LONGEST_ID
from config.problems import clip
from config.source import List, Map, Scalar, kind_of
from config.values import (
    SCALAR_SCHEMA,
    SCALARS_SCHEMA,
    TOKEN_NAME,
    Absent,
    Address,
    Argument,
    AskTime,
    AuditAge,
    AuditArguments,
    AuditSize,
    CallTime,
    Channel,
    Command,
    CommandLine,
    Concurrency,
    Count,
    EndpointPath,
    EnvName,
    Flag,
    Grace,
    HeaderName,
    HeaderValue,
    Host,
    Hosts,
    Idle,
    InvalidValue,
    Isolation,
    Json,
    JsonScalar,
    JsonScalars,
    Length,
    LoopbackAddress,
    Memory,
    NonEmptyText,
    Origin,
    Paths,
    Pattern,
    Protocol,
    Range,
    Rate,
    ServerId,
    Size,
    Text,
    Title,
    Token,
    TokenName,
    Trust,
    TypeName,
    Url,
    Verdict,
    did_you_mean,
    expected,
    pointer,
)

_ENTRY_KINDS = ("tools", "resources", "prompts")
_WORD_SCHEMA: Json = {"enum": list(model.Verdict)}
_PATTERN_SCHEMA: Json = {"type": "string", "minLength": 1}
_NAME_A_TOKEN = 'name one, for instance auth: {tokens: {laptop: "${env:LAPTOP_TOKEN}"}}'
_DEDICATED_KEYS = {"max_instances": "counts", "idle_timeout": "stops"}


def _unique_names(headers: dict[str, Expanded]) -> dict[str, Expanded]:
    if len({name.lower() for name in headers}) < len(headers):
        raise InvalidValue("two headers differ only in upper and lower case; keep one")
    return headers


def _at_least_one_server(servers: dict[str, ServerForm]) -> dict[str, ServerForm]:
    if not servers:
        raise InvalidValue("there is nothing to serve; name at least one server")
    return servers


def _distinct_tokens(tokens: dict[str, Expanded]) -> dict[str, Expanded]:
    if not tokens:
        raise InvalidValue(f"there is no token, so nobody could come in; {_NAME_A_TOKEN}, or take auth away")
    names: dict[str, str] = {}
    for name, token in tokens.items():
        first = names.setdefault(token.text, name)
        if first != name:
            raise InvalidValue(
                f'"{first}" and "{name}" have the same token, so they cannot be told apart; give each its own'
            )
    return tokens


def _optional_field(default: str | int | None, description: str, **more: Any) -> Any:
    """A field that may be left out. `default` is what the schema says, in the words of the file."""
    extra: Json = {**more} if default is None else {**more, "default": default}
    return Field(default=None, description=description, json_schema_extra=extra)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, arbitrary_types_allowed=True)


_VERDICTS = tuple(model.Verdict)


def _expand_shorthand(value: object, keys: Iterable[str], what: str) -> object:
    """One word for all of these keys; anything else as it is."""
    if not isinstance(value, Scalar):
        return value
    if value.text not in _VERDICTS:
        found = kind_of(value) if value.is_null else f'"{value.shown}"'
        raise expected(f"allow, ask, deny, or a map of {what}", found, did_you_mean(value.text, _VERDICTS))
    return dict.fromkeys(keys, value)


class ChecksForm(_Form):
    """What an argument has to be; all checks must hold. A value by itself means eq, a list by itself means in."""

    eq: JsonScalar = Field(default=None, description="It is this value, of this JSON type.")
    in_: JsonScalars | None = Field(default=None, alias="in", description="It is one of these values.")
    prefix: NonEmptyText | None = _optional_field(None, "It is text that begins so.")
    suffix: NonEmptyText | None = _optional_field(None, "It is text that ends so.")
    glob: Pattern | None = _optional_field(
        None, "It is text that this pattern matches whole; * is any characters, ? one."
    )
    range: Range | None = _optional_field(
        None, "It is a number from the first to the second, both included; null: open."
    )
    max_len: Length | None = _optional_field(
        None, "It is text of at most so many characters, or a list of so many items."
    )
    type: TypeName | None = _optional_field(None, "It has this JSON type.")
    absent: Absent | None = _optional_field(None, "It is not there.")
    path_under: Paths | None = _optional_field(None, "It is an absolute path to one of these folders or into it.")
    host_in: Hosts | None = _optional_field(None, "It is a URL of one of these hosts, or such a host.")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        if isinstance(value, Scalar):
            return {"eq": value}
        return {"in": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _sensible(self) -> ChecksForm:
        if not self.model_fields_set:
            raise expected("at least one check", "an empty map", "for instance {prefix: draft-}")
        if self.absent and len(self.model_fields_set) > 1:
            raise InvalidValue("what is absent can be nothing else; leave absent alone, or take it away")
        return self

    def checks(self) -> tuple[model.Check, ...]:
        """The checks that the file names, in the order of this form."""
        names = {name: key.alias or name for name, key in type(self).model_fields.items()}
        return tuple(
            model.Check(op, getattr(self, name)) for name, op in names.items() if name in self.model_fields_set
        )


def _distinct_arguments(when: dict[str, ChecksForm]) -> dict[str, ChecksForm]:
    if not when:
        raise expected("a map of arguments", "an empty map", "take it away, or name an argument")
    names: dict[str, str] = {}
    for name in when:
        if names.setdefault(pointer(name), name) != name:
            raise InvalidValue(f'"{clip(names[pointer(name)])}" and "{clip(name)}" are the same argument; keep one')
    return when


When = Annotated[dict[Argument, ChecksForm], AfterValidator(_distinct_arguments)]


def conditions(when: Mapping[str, ChecksForm]) -> tuple[model.Condition, ...]:
    """What is said of each argument. Their order in the file means nothing, so here it is always the same."""
    made = (model.Condition(pointer(name), form.checks()) for name, form in when.items())
    return tuple(sorted(made, key=lambda condition: condition.path))


class WhenForm(_Form):
    """Conditions on arguments by themselves, as they stand in a rule."""

    when: When


class RuleForm(_Form):
    """One rule for tools or prompts: a pattern by itself, or with conditions on the arguments."""

    name: Pattern = Field(description="The pattern that the name has to match; * is any characters, ? one.")
    when: When | None = Field(
        default=None,
        description="What the arguments have to be: each by its name, or by a JSON pointer that begins with a slash.",
        json_schema_extra={"minProperties": 1},
    )
    closed: Flag | None = _optional_field(False, "No argument may be there that when does not name.")

    @model_validator(mode="before")
    @classmethod
    def _pattern_alone(cls, value: object) -> object:
        return _pattern_or_map(value, "name", "a pattern, or a map of name and when")

    @field_validator("closed")
    @classmethod
    def _with_when(cls, closed: bool | None, info: ValidationInfo) -> bool | None:
        # A when that is wrong is missing in data, and its own problem is enough.
        if closed and info.data.get("when", ...) is None:
            raise InvalidValue(
                "closed is about arguments that when does not name; name under when those that there may be"
            )
        return closed

    def rule(self) -> model.Rule:
        return model.Rule(self.name, conditions(self.when or {}), bool(self.closed))


class UriRuleForm(_Form):
    """One rule for URIs: a pattern by itself, or under its key."""

    uri: Pattern = Field(description="The pattern that the URI has to match; * stops at a slash, ** does not.")

    @model_validator(mode="before")
    @classmethod
    def _pattern_alone(cls, value: object) -> object:
        return _pattern_or_map(value, "uri", "a pattern, or a map of uri")

    def rule(self) -> model.Rule:
        return model.Rule(self.uri)


def _pattern_or_map(value: object, key: str, what: str) -> object:
    if isinstance(value, Scalar):
        return {key: value}
    if isinstance(value, list):
        raise expected(what, "a list")
    return value


_ALLOW_TEXT = "What one of these rules names may be reached. What none names is then denied, unless default says else."
_ASK_TEXT = "Of what one of these rules names a person is asked, whatever allow says."
_DENY_TEXT = "What one of these rules names may not be reached, whatever else is said."
_DEFAULT_TEXT = (
    "What becomes of the rest. Without it: deny where an allow list stands, and else as the trust level has it."
)


class _Lists(_Form):
    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        if isinstance(value, list):
            raise expected("allow, ask, deny, or a map of rules", "a list", "say what it is for, as in {allow: [...]}")
        return _expand_shorthand(value, ("default",), "rules")


class KindForm(_Lists):
    """Rules for one kind, by name: what may be reached, what a person is asked of, and what may not be reached."""

    allow: tuple[RuleForm, ...] | None = Field(default=None, description=_ALLOW_TEXT)
    ask: tuple[RuleForm, ...] = Field(default=(), description=_ASK_TEXT)
    deny: tuple[RuleForm, ...] = Field(default=(), description=_DENY_TEXT)
    default: Verdict | None = _optional_field(None, _DEFAULT_TEXT)


class UriKindForm(_Lists):
    """Rules for one kind, by URI: what may be reached, what a person is asked of, and what may not be reached."""

    allow: tuple[UriRuleForm, ...] | None = Field(default=None, description=_ALLOW_TEXT)
    ask: tuple[UriRuleForm, ...] = Field(default=(), description=_ASK_TEXT)
    deny: tuple[UriRuleForm, ...] = Field(default=(), description=_DENY_TEXT)
    default: Verdict | None = _optional_field(None, _DEFAULT_TEXT)


class ElicitationForm(_Form):
    """Whether the server may ask the person at the client for something."""

    form: Verdict | None = _optional_field(None, "To have a form filled in.")
    url: UriKindForm = Field(default_factory=UriKindForm, description="To have a page visited, by its URL.")

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        return _expand_shorthand(value, ("form", "url"), "form and url")


class ConsentForm(_Form):
    """What of a server may be reached and what it may ask for, kind by kind."""

    tools: KindForm = Field(default_factory=KindForm, description="Rules for tools, by name; * is any characters.")
    resources: UriKindForm = Field(
        default_factory=UriKindForm, description="Rules for resources, by URI; * stops at a slash, ** does not."
    )
    prompts: KindForm = Field(default_factory=KindForm, description="Rules for prompts, by name; * is any characters.")
    sampling: Verdict | None = _optional_field(None, "Whether it may ask for text from the client's model.")
    elicitation: ElicitationForm = Field(
        default_factory=ElicitationForm, description="Whether it may ask the person at the client for something."
    )
    roots: UriKindForm = Field(
        default_factory=UriKindForm, description="Rules for the roots of the client that it may be told, by URI."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: object) -> object:
        return _expand_shorthand(value, _ENTRY_KINDS, "tools, resources, prompts, sampling, elicitation and roots")


class LimitsForm(_Form):
    """What a server may be used for at the most."""

    calls: Rate | None = _optional_field(None, "How many calls in a time, for instance 60/min.")
    concurrent: Concurrency | None = _optional_field(None, "How many calls may run at once; a few more wait.")
    result: Size | None = _optional_field(None, "How large one answer may be, from 1KiB to 64MiB.")
    message: Size | None = _optional_field(
        None,
        "How long one message of the server may be, from 1KiB to 64MiB. Without it, 8MiB; an HTTP answer in one piece "
        "16MiB.",
    )
    sampling: Rate | None = _optional_field(None, "How often the server may ask for text from the client's model.")
    sampling_tokens: Rate | None = _optional_field(
        None, "How many tokens it may ask for in a time, for instance 100000/day."
    )


class ServerForm(_Form):
    """One server: a program to start (command) or an address to reach (url)."""

    command: Command | None = _optional_field(
        None,
        "The program to start. A list is the program and its arguments; a string beside args is the program alone; "
        "a string by itself is split into words as a POSIX shell would.",
    )
    args: tuple[Text, ...] | None = _optional_field(None, "The program's arguments, if command is a string.")
    env: dict[EnvName, Text] = Field(default={}, description="Variables added to the program's environment.")
    cwd: Text | None = _optional_field(".", "The folder the program starts in, from the folder of this file.")
    url: Url | None = _optional_field(
        None, "The address of a server that speaks Streamable HTTP or the older HTTP+SSE."
    )
    headers: Annotated[dict[HeaderName, HeaderValue], AfterValidator(_unique_names)] = Field(
        default={}, description="Headers sent with every request to the server."
    )
    timeout: CallTime | None = _optional_field(
        "60s", "How long one call may take; progress starts it anew, to 600s in all."
    )
    start_timeout: CallTime | None = _optional_field("60s", "How long connecting, handshake and first lists may take.")
    consent: ConsentForm = Field(
        default_factory=ConsentForm,
        description="What may be reached, and what the server may ask for. What is not said here follows from trust.",
    )
    trust: Trust | None = _optional_field(
        "standard",
        "What goes without saying. trusted: everything is allowed, changed definitions too. standard: what it offers "
        "is allowed and a changed definition waits for approval; sampling and opening a URL ask. untrusted: every "
        "definition waits for approval, every call asks, its texts are cleaned, and it may ask for nothing.",
    )
    limits: LimitsForm = Field(default_factory=LimitsForm, description="How much it may be used.")
    protocol: Protocol | None = _optional_field(
        "auto",
        "How to begin with the server. auto: ask which revisions it speaks, and shake hands if it does not know the "
        "question. legacy: never ask, for servers that exit or fall silent then. modern: never shake hands.",
    )
    isolation: Isolation | None = _optional_field(
        "shared", "Who shares an instance of the server: all clients, the requests of one client, or nobody (per-call)."
    )
    max_instances: Count | None = _optional_field(
        model.DEFAULT_MAX_INSTANCES, "How many dedicated instances may live at once, if isolation is not shared."
    )
    idle_timeout: Idle | None = _optional_field(
        "5m", "After how long without use a dedicated instance is stopped, if isolation is not shared; 1s to 24h."
    )
    disabled: Flag | None = _optional_field(False, "Leave the server out without taking it from the file.")
    title: Title | None = _optional_field(None, "A name for people, shown instead of the id.")

    @model_validator(mode="before")
    @classmethod
    def _command_alone(cls, value: object) -> object:
        if isinstance(value, dict) and "args" not in value and isinstance(value.get("command"), Scalar):
            return {**value, "command": CommandLine(value["command"])}
        return value


class AuthForm(_Form):
    """Who may come in."""

    tokens: Annotated[dict[TokenName, Token], AfterValidator(_distinct_tokens)] = Field(
        description="Access tokens, each under the name of whoever has it; a request must carry one of them.",
        json_schema_extra={"minProperties": 1, "propertyNames": {"pattern": f"^{TOKEN_NAME}$"}},
    )


class ListenForm(_Form):
    """Where the endpoint is and who may knock."""

    # Above the address, which is judged by it.
    auth: AuthForm | None = Field(default=None, description="Who may come in; without it, whoever reaches the address.")
    address: Address | None = _optional_field(
        f"{model.DEFAULT_HOST}:{model.DEFAULT_PORT}",
        "host:port; IPv6 in brackets; port 0: a free one. Beyond loopback only with tokens under auth.",
    )
    path: EndpointPath | None = _optional_field(model.DEFAULT_PATH, "The path of the endpoint.")
    origins: tuple[Origin, ...] = Field(default=(), description="Origins of web pages to accept beside loopback ones.")
    hosts: tuple[Host, ...] = Field(default=(), description="Host headers to accept beside the loopback ones.")
    sse: Flag | None = _optional_field(True, "Serve the older HTTP+SSE transport too, at /sse and /message.")

    @field_validator("address")
    @classmethod
    def _guarded(cls, address: tuple[str, int] | None, info: ValidationInfo) -> tuple[str, int] | None:
        # An auth that is wrong is missing in data, and its own problem is enough.
        if address is None or model.is_loopback(address[0]) or info.data.get("auth", ...) is not None:
            return address
        raise InvalidValue(
            "an address beyond loopback is open to other machines, so it needs access tokens under listen.auth.tokens; "
            f"{_NAME_A_TOKEN}, or use {model.DEFAULT_HOST}"
        )


def _unique_answers(answers: tuple[model.Channel, ...]) -> tuple[model.Channel, ...]:
    if not answers:
        raise InvalidValue(f"nobody could answer; name at least one of {', '.join(model.Channel)}")
    if len(set(answers)) < len(answers):
        raise InvalidValue("one of them stands twice; keep one")
    return answers


class AskForm(_Form):
    """Who answers when a call needs a person."""

    answers: Annotated[tuple[Channel, ...], AfterValidator(_unique_answers)] | None = Field(
        default=None,
        description="Where a person may answer: at the web console, in a terminal with colonnade ask, and, only if it "
        "is named here, through the client that calls.",
        json_schema_extra={"default": ["console", "terminal"], "minItems": 1, "uniqueItems": True},
    )
    timeout: AskTime | None = _optional_field("50s", "How long a question waits for an answer; 1s to 1h.")


class ConsoleForm(_Form):
    """Where the web console is."""

    address: LoopbackAddress | None = _optional_field(
        None,
        "host:port of loopback; port 0: a free one. Without it: beside the endpoint, if that is at a loopback address, "
        "and else at a free port.",
    )


def _read_console(value: object, read: ValidatorFunctionWrapHandler) -> ConsoleForm | None:
    if not isinstance(value, Scalar):
        return cast(ConsoleForm, read(value))
    if value.text not in _SWITCH:
        found = kind_of(value) if value.is_null else f'"{value.shown}"'
        raise expected("on, off, or a map with an address", found, did_you_mean(value.text, ("on", "off")))
    return ConsoleForm() if _SWITCH[value.text] else None


_SWITCH = {"on": True, "true": True, "off": False, "false": False}


class AuditForm(_Form):
    """What the audit keeps."""

    arguments: AuditArguments | None = _optional_field(
        "digest", "What it keeps of what calls were given: a digest and the shape, or all of it."
    )
    keep: AuditAge | None = _optional_field("90d", "Files are deleted so long after their last record; from 1h.")
    max: AuditSize | None = _optional_field(
        "1GiB", "Files are deleted, the oldest first, while all together are larger; from 128MiB."
    )


class FileForm(_Form):
    """A configuration file of Colonnade."""

    listen: ListenForm = Field(default_factory=ListenForm, description="The endpoint: its address, and who may knock.")
    start_grace: Grace | None = _optional_field(
        "3s", "How long the first answers may wait for servers that are still starting; 0s to 60s."
    )
    memory: Memory | None = _optional_field(
        "256MiB", "How much memory the messages of clients and servers may take together; from 32MiB."
    )
    ask: AskForm = Field(default_factory=AskForm, description="Questions to a person: who answers them.")
    console: Annotated[ConsoleForm | None, WrapValidator(_read_console)] = Field(
        default_factory=ConsoleForm, description="The web console: on, off, or where it is."
    )
    audit: AuditForm = Field(default_factory=AuditForm, description="The record of what was decided.")
    servers: Annotated[dict[ServerId, ServerForm], AfterValidator(_at_least_one_server)] = Field(
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
        case ("ask",):
            return AskForm
        case ("console",):
            return ConsoleForm
        case ("audit",):
            return AuditForm
        case ("servers", _, "limits"):
            return LimitsForm
        case ("servers", _, "consent", *rest):
            return _form_of_consent(tuple(rest))
        case _:
            return None


def _form_of_consent(path: tuple[str | int, ...]) -> type[_Form] | None:
    match path:
        case ():
            return ConsentForm
        case ("elicitation",):
            return ElicitationForm
        case ("elicitation", "url", *below) | ("resources" | "roots", *below):
            return _URI_FORMS.get(len(below))
        case (_, *below):
            return _NAME_FORMS.get(len(below))
    return None


# By how many steps below its kind a map is: kind, list and number of the rule, when and argument.
_NAME_FORMS: dict[int, type[_Form]] = {0: KindForm, 2: RuleForm, 4: ChecksForm}
_URI_FORMS: dict[int, type[_Form]] = {0: UriKindForm, 2: UriRuleForm}


def known_keys(form: type[_Form]) -> list[str]:
    """The keys of a map, as the file writes them."""
    return [key.alias or name for name, key in form.model_fields.items()]


def cross_problems(server: Map) -> list[tuple[str | None, str]]:
    """What is wrong with a server's keys taken together, each as (the key to point at or None, the sentence)."""
    return [*_misplaced(server), *_needs_dedicated(server)]


def _needs_dedicated(server: Map) -> list[tuple[str | None, str]]:
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
    document = _clean_schema(FileForm.model_json_schema())
    assert isinstance(document, dict)
    definitions = document["$defs"]
    for name in ("KindForm", "UriKindForm", "ElicitationForm", "ConsentForm"):
        definitions[name] = {"anyOf": [_WORD_SCHEMA, definitions[name]]}
    for name in ("RuleForm", "UriRuleForm"):
        definitions[name] = {"anyOf": [_PATTERN_SCHEMA, definitions[name]]}
    definitions["RuleForm"]["anyOf"][1] |= {
        "if": {"required": ["closed"], "properties": {"closed": {"const": True}}},
        "then": {"required": ["when"]},
    }
    definitions["ChecksForm"]["minProperties"] = 1
    definitions["ChecksForm"]["dependentSchemas"] = {"absent": {"maxProperties": 1}}
    definitions["ChecksForm"] = {"anyOf": [SCALAR_SCHEMA, SCALARS_SCHEMA, definitions["ChecksForm"]]}
    # Some editors read off as a truth, others as the word.
    definitions["ConsoleForm"] = {"anyOf": [{"enum": [*_SWITCH, True, False]}, definitions["ConsoleForm"]]}
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
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document, "title": "Colonnade configuration"}


def _clean_schema(node: Any) -> Any:
    """Without the traces of Python: generated titles, and null for what may be left out."""
    if isinstance(node, list):
        return [_clean_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: _clean_schema(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))
    }
    if cleaned.get("default", ...) is None:
        del cleaned["default"]
    choices = [choice for choice in cleaned.get("anyOf", ()) if choice != {"type": "null"}]
    if choices:
        del cleaned["anyOf"]
        return {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **cleaned}
    return cleaned
