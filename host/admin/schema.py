"""The admin API as both of its doors see it: what can be seen, what can be decided, and the types of all requests and
answers. docs/openapi.json is made of them.

A request is a JSON object that is accepted as a whole or not at all: the classes here say which members it has, and
anything else is `MalformedRequest`. None of them names a program, an argument of one, an environment or a directory:
what runs is for the configuration file alone to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from config import Channel, Config
from host.audit.records import HistoryCall
from host.client_process import ClientRow, ProgramRow
from host.journal import ConfigReloaded
from host.jsonrpc.raw import DECODE_ERRORS
from host.policy.rows import (
    ArgumentText,
    ChangeRow,
    DefinitionRow,
    Explanation,
    GrantRow,
    HeldRow,
    OutlinePiece,
    RuleRow,
)
from host.subject import Item
from host.wire.descent import PeerProcess

MAX_GRANT_SECONDS = 31 * 24 * 3600
"""Seconds that an answer "for a time" may hold; "always" is another answer."""

NO_HOST = "no host of this configuration runs (colonnade serve)"
Api = TypeVar("Api", contravariant=True)


class AdminError(Exception):
    """The request cannot be carried out (any more); the text is one sentence for the person who sent it."""


class MalformedRequest(Exception):
    """The request is none that is known here; the text is one sentence."""


# Answers


class ApiVersions(TypedDict):
    """The versions of the admin API that this host speaks. `colonnade` is the version of the program."""

    colonnade: str
    versions: list[str]


class HostInfo(TypedDict):
    """Which host this is: its version, the path of its configuration file, and its process id. `stdio`: it serves one
    client on its standard input and output. `endpoint` is the URL of its endpoint, empty over stdio, and if a relay has
    started the host, which then runs in the background and serves relays alone. `audit`: where it writes the audit."""

    colonnade: str
    config: str
    pid: int
    stdio: bool
    endpoint: str
    audit: Literal["files", "stdout"]


ServerState = Literal[
    "starting", "ready", "stopped", "failed", "held", "installing", "disabled", "needs login", "needs folder"
]


class EntryCounts(TypedDict):
    """How many entries of each kind a server offers, before consent."""

    tools: int
    resources: int
    resourceTemplates: int
    prompts: int


class ServerStatus(TypedDict):
    """A server and its state, for everybody who may use the endpoint. `since` and `next_attempt_in` are seconds;
    `session` says how handshake clients are served by a stateless server, while they need a session; `says` is the name
    that the server gives itself; `dropped` are messages that were dropped, by reason. Names begin with `prefix`."""

    id: str
    prefix: str
    title: str | None
    transport: Literal["stdio", "http", "sse"]
    state: ServerState
    detail: str
    attempts: int
    entries: EntryCounts
    isolation: str
    instances: int
    max_instances: int
    dropped: dict[str, int]
    revision: NotRequired[str]
    session_revision: NotRequired[str]
    session: NotRequired[str]
    says: NotRequired[str]
    since: NotRequired[float]
    next_attempt_in: NotRequired[float]


class ServerRow(ServerStatus):
    """A server, with what only people should know: its trust, its traffic, and what waits for a decision. `latency_ms`
    is an average over some ten calls, `p50_ms` and `p95_ms` are percentiles of the last hour, at most a fifth too high;
    `tool_errors` counts the calls that were answered with the result of a tool which says that it failed, which are not
    among the `failed`; `restarts` counts how often it became ready again; `tokens` is an estimate of what all its tools
    cost a model, also those that clients do not see;
    `unmatched` are rules that match nothing that it offers; `uncounted` is the number of tools whose claims do not
    count, though a rule wants some; `left_out` are definitions that clients could not read; `list_problems` are
    sentences about lists that could not be read, or have something wrong. `settings`: what is started or reached, the
    keys in effect, and the names of variables or headers, without their values; a line each. `sandbox`: what its
    program is given, and what holds it in that, if it was started, or that it runs as the user; empty if it is none.
    `sandbox_open`: a person has to choose about that (`SandboxRequest`). `login_failed`: why the last login that was
    begun at this host came to nothing, until another one is begun; empty if it did not."""

    trust: str
    latency_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    restarts: int
    tokens: int
    calls: int
    failed: int
    tool_errors: int
    bytes_in: int
    in_flight: int
    held: int
    unmatched: list[str]
    uncounted: int
    left_out: list[str]
    list_problems: list[str]
    warnings: list[str]
    settings: list[str]
    sandbox: str
    sandbox_open: bool
    login_failed: str


class EntryRow(TypedDict):
    """An entry of the catalog with its verdict. `name` is its own name at the server, `outward` the one that clients
    see; `standing` is the state of its definition, `shown` whether clients see it."""

    server: str
    kind: str
    name: str
    outward: str
    title: str
    description: str
    verdict: str
    rule: str
    standing: str
    shown: bool
    fingerprint: str


class ConfirmationRow(TypedDict):
    """A call, or a server request, that a person has to confirm. `asked` and `until`, when it is refused or forgotten,
    are Unix time; `waiting` is the number of equal calls that wait; `why` it was refused, if it was. `others` are the
    members that are sent beside the arguments, if there are any. `process` is the program that the caller is; null if
    that is not known. `says` is the name that the client gives itself, which nothing checks. `through` is the search
    tool that the call came through, if it did. `origin` is the key of `defaults` that the rule is from, if it is.
    `description`, `definition` and `claims` are words of the server.
    `outline` has the arguments with marks in the place of longer texts, which are `texts`; both are empty if there are
    none. `whole_session`: the entry can be allowed with any arguments for the session, as one step; `whole_time`: for a
    time, since the caller has a token and no session."""

    id: str
    state: Literal["waiting", "refused"]
    server: str
    trust: str
    kind: str
    name: str
    summary: str
    arguments: str
    outline: list[OutlinePiece]
    texts: list[ArgumentText]
    others: str
    caller: str
    process: ProgramRow | None
    says: str
    through: str
    session: bool
    rule: str
    origin: str
    asked: float
    until: float
    waiting: int
    why: str
    answers: list[str]
    whole_session: bool
    whole_time: bool
    claims: list[str]
    description: str
    definition: str


class LeftOutRow(TypedDict):
    """An entry that a view has and its clients do not get, and why."""

    server: str
    kind: str
    name: str
    why: str


class ViewRow(TypedDict):
    """A view as a client in it gets it that no rule names; `name` is empty for that of everything. `callers` are those
    that it names; `is_default`: it is for all that no view names. `entries` counts what is listed, and `tokens` is
    an estimate of what these definitions cost a model."""

    name: str
    callers: list[str]
    is_default: bool
    search: str
    servers: list[str]
    entries: EntryCounts
    tokens: int
    left_out: list[LeftOutRow]


class ActivityRow(TypedDict):
    """Something that happened, at Unix time `t`: `count` times since `first`, with the same text but for numbers."""

    t: float
    first: float
    count: int
    kind: str
    server: str
    text: str
    level: str


class StateSections(TypedDict, total=False):
    """The sections that changed, each as a whole."""

    servers: list[ServerRow]
    catalog: list[EntryRow]
    views: list[ViewRow]
    confirmations: list[ConfirmationRow]
    held: list[HeldRow]
    grants: list[GrantRow]
    configuration: list[ChangeRow]
    activity: list[ActivityRow]
    problems: list[str]


class AdminState(HostInfo):
    """Everything there is to see. `held` are definitions that are new, changed or rejected; those that are not `ready`
    yet have neither a difference nor a text. `configuration` are changes of the file that wait for a person."""

    servers: list[ServerRow]
    catalog: list[EntryRow]
    views: list[ViewRow]
    confirmations: list[ConfirmationRow]
    held: list[HeldRow]
    grants: list[GrantRow]
    configuration: list[ChangeRow]
    activity: list[ActivityRow]
    problems: list[str]


SECTIONS = tuple(StateSections.__annotations__)


class ProcessUsage(TypedDict):
    """Resources of the host: open descriptors, and resident memory in bytes. None where the system does not tell."""

    descriptors: int | None
    max_descriptors: int | None
    memory: int | None
    memory_peak: int | None


class MemberRow(TypedDict):
    """A process of a fleet, as of its last lease. `address` is that of its inner listener; `lease` the seconds that are
    left of its lease. `equal_rules`: its configuration has the servers, rules and views of the host's; `behind`: it has
    not taken over all decisions that the host has."""

    boot: str
    address: str
    version: str
    status: str
    lease: float
    equal_rules: bool
    behind: bool


class FleetStatus(TypedDict):
    """A fleet as its database lists it. `boot` is the host among its members; `is_current`: the list is not older than
    a lease."""

    name: str
    boot: str
    is_current: bool
    members: list[MemberRow]


class HostStatus(HostInfo):
    """The health of a host. `uptime` is in seconds; `confirmations` counts those that wait, `held` the definitions;
    `waiting_changes` are those of the configuration file that wait for a person. `clients` counts those that
    are connected. `ends_after`: seconds for which a host in the background stays without a client, and `ends_in`:
    seconds until it ends if none comes; null where it does not end by itself, the latter also while it is used.
    `drain`: seconds for which what is under way may go on once the host is told to stop. `draining`: it was told.
    `fleet`: null if the host is alone."""

    uptime: float
    clients: int
    ends_after: float | None
    ends_in: float | None
    drain: float
    draining: bool
    fleet: FleetStatus | None
    process: ProcessUsage
    servers: list[ServerRow]
    confirmations: int
    held: int
    waiting_changes: list[str]
    problems: list[str]


class ClientList(TypedDict):
    """The clients that are connected, in the order in which they came."""

    clients: list[ClientRow]


class Done(TypedDict):
    """One sentence that tells the person what was done."""

    done: str


class LoginProposal(TypedDict):
    """A login that a person has asked for: what it will be for, and the `link` that begins it in a browser of this
    machine. Nothing has left for the issuer yet but requests for its metadata. `page` is the origin of the login page
    if that is not the issuer's, and `former_issuer` the issuer of the last login if it was another one; both are empty
    otherwise. `until`, when the login ends by itself, is Unix time."""

    server: str
    issuer: str
    page: str
    resource: str
    scopes: list[str]
    redirect: str
    former_issuer: str
    link: str
    until: float


class ConsoleLink(TypedDict):
    """An address that opens the web console once."""

    link: str


class LogLine(TypedDict):
    """A line that a server wrote at Unix time `t`, to its standard error, or to its standard output although it is no
    message; or a line of Colonnade on what its sandbox refused. `n` grows from line to line."""

    n: int
    t: float
    line: str
    stream: Literal["stderr", "stdout", "sandbox"]


class DefinitionList(TypedDict):
    """All definitions that a server offers, also approved ones, and the rules about them. `sandbox`: as of
    `ServerRow`. `starts`: of a confined program, what the kind of its command needs, and what it was found to install
    and to start with, if it was looked up; a sentence each."""

    definitions: list[DefinitionRow]
    rules: list[RuleRow]
    sandbox: str
    starts: list[str]


class ServerLog(TypedDict):
    """The last lines of a server's standard error, oldest first."""

    lines: list[LogLine]


class TrafficRow(TypedDict):
    """The calls of a server that ended in the minute, or quarter of an hour, from Unix time `t`, and the percentiles of
    their durations: null if none was answered. `tool_errors` were answered, and are not among the `failed`."""

    t: int
    calls: int
    failed: int
    tool_errors: int
    p50_ms: float | None
    p95_ms: float | None


class StateRow(TypedDict):
    """A state that a server came into at Unix time `t`, with what was said about it: `count` times, the last one at
    `until`."""

    t: float
    until: float
    state: str
    text: str
    count: int


class ServerTraffic(TypedDict):
    """The recent traffic of a server: the last hour by minutes and the last day by quarters of an hour, without those
    in which no call ended; its last states, oldest first. `now`: the Unix time of this."""

    now: float
    minutes: list[TrafficRow]
    quarters: list[TrafficRow]
    states: list[StateRow]


class HistoryList(TypedDict):
    """Calls of the past, the newest first. `missing`: sentences on what is not there."""

    calls: list[HistoryCall]
    missing: list[str]


class HistoryRecords(TypedDict):
    """A call of the past with its records of the audit: its decision, and its outcome if there is one. None are there
    any more once their file was deleted."""

    call: HistoryCall
    records: list[dict[str, Any]]


class SeenRow(TypedDict):
    """An entry as a caller sees it under its `outward` name. `verdict` is what becomes of a call without arguments,
    `tokens` an estimate of what its definition costs a model."""

    server: str
    kind: str
    name: str
    outward: str
    title: str
    description: str
    verdict: str
    tokens: int


class CallerView(TypedDict):
    """What a caller sees at the path `address` of the endpoint, or over stdio (then it is empty), in the `view` that is
    in effect for it there, empty for that of everything. `callers` are all that the file names. With a `search`, its
    lists have tools to search with in place of these `entries`; `tokens` is an estimate of what its lists cost a
    model."""

    address: str
    view: str
    callers: list[str]
    search: str
    servers: list[str]
    instructions: str
    tokens: int
    entries: list[SeenRow]
    left_out: list[LeftOutRow]


class ApiError(TypedDict):
    """Why the request was not carried out, in one sentence. `over`: the session of the web console has ended."""

    error: str
    over: NotRequired[bool]


# The API


class HostControl(Protocol):
    """The configuration in effect of a running host, and what a person can have done to it. The server is one of the
    configuration."""

    @property
    def config(self) -> Config:
        """The configuration in effect."""

    @property
    def waiting_changes(self) -> Sequence[ChangeRow]:
        """The changes of the configuration file that wait for a person."""

    @property
    def file_problem(self) -> str:
        """Why the configuration file, as it was read last, is not applied; empty if it is valid."""

    def subscribe(self, on_waiting_changes: Callable[[], None], on_file_problem: Callable[[], None]) -> None:
        """Have the former called each time `waiting_changes` was set, the latter when `file_problem` is another one;
        they must not wait."""

    def restart(self, server: str) -> None:
        """End the connection to the server and connect again. Calls in progress have some seconds to end."""

    def set_disabled(self, server: str, *, disabled: bool) -> None:
        """Leave the server out, or take it in again, until a person has the configuration read again."""

    async def settle(self) -> None:
        """Put into effect what a person chose about sandboxes."""

    async def reload(self, *, shown: str | None) -> ConfigReloaded:
        """Read the configuration again. With `shown`, nothing changes if the file has other changes by now than those
        that were shown under this id."""

    async def compare(self) -> ConfigReloaded | None:
        """Read the configuration and show what in it waits for a person; the outcome if it is invalid."""


class DecisionApi(Protocol):
    """The decisions of a person that need no running host. All methods raise AdminError."""

    async def definitions(self, server: str, caller: str = "") -> DefinitionList:
        """`caller`: whose calls the verdicts are about, by its name in `callers`; empty for one without."""

    async def decide(self, item: Item, fingerprint: str, decision: str, channel: Channel) -> Done: ...

    async def decide_all(self, server: str, fingerprints: list[str], decision: str, channel: Channel) -> Done: ...

    async def revoke(self, grant: str, channel: Channel) -> Done: ...

    async def choose_sandbox(self, server: str, sandbox: str, channel: Channel) -> Done:
        """`sandbox`: as in `SandboxRequest`."""

    async def explain(
        self, item: Item, arguments: dict[str, Any] | None, caller: str | None = None, view: str = ""
    ) -> Explanation:
        """`caller` and `view`: see `ExplainRequest`."""


class StateApi(Protocol):
    """The state of a running host."""

    async def status(self) -> HostStatus: ...

    async def state(self) -> AdminState: ...

    async def sections(self, names: Collection[str]) -> StateSections:
        """The sections of these names."""

    def host_info(self) -> HostInfo: ...

    def connected_clients(self) -> ClientList:
        """The clients that are connected now."""

    def versions(self) -> Mapping[str, int]:
        """A number for each section that grows with every change."""

    async def wait_changed(self, since: Mapping[str, int]) -> Mapping[str, int]:
        """Wait until a section is newer than that; the version then."""


class HistoryApi(Protocol):
    """The calls of the past, as far as somebody may see them. All methods raise AdminError."""

    async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
        """The calls of the past to which all that is wanted applies; see `HistoryRequest`."""

    async def past_call(self, id: str, place: int | None) -> HistoryRecords:
        """The call of this name; see `HistoryCallRequest`."""


class HistoryReader(NamedTuple):
    """A caller that sees calls of the past, by its name in `callers`: its own, or all."""

    caller: str
    calls: HistoryApi
    sees_all: bool


class AdminApi(DecisionApi, HistoryApi, Protocol):
    """The admin API of a running host: what a person can see and decide. Methods that return `Done` or what was asked
    for, and `console_url`, raise AdminError."""

    @property
    def reader(self) -> StateApi: ...

    async def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Done: ...

    async def deny_all(self, server: str, ids: list[str], channel: Channel) -> Done:
        """Deny the confirmations of the server that have these ids, and refused ones that equal them, and no others."""

    async def control(self, server: str, action: str) -> Done:
        """`restart`, `enable` or `disable` a server, or `install` what it is started from again."""

    async def reload(self, *, apply: bool, shown: str | None) -> Done:
        """Read the configuration again, and apply all of it; with `shown`, only if it still has the changes of this id.
        Without `apply`, nothing takes effect, and the section `configuration` has the changes that wait for a
        person."""

    async def login(self, server: str, channel: Channel) -> LoginProposal:
        """Open a login at a server, for a person who has asked for it there."""

    async def caller_view(self, caller: str | None, view: str) -> CallerView:
        """The entries that a caller of this name sees in a view; see `CallerViewRequest`."""

    async def server_traffic(self, server: str) -> ServerTraffic:
        """The recent traffic and the last states of a server."""

    async def server_log(self, server: str, after: int) -> ServerLog:
        """The last lines of a server's standard error whose number is greater than `after`."""

    def history_reader(self, token: bytes) -> HistoryReader | None:
        """The caller with the access token of this SHA-256 digest; None if there is none that the configuration in
        effect lets see calls of the past."""

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        """For the block, somebody is there who can answer."""

    def attributing(self, peer: PeerProcess) -> AbstractContextManager[None]:
        """For the block, which must not wait, the audit records this process with each decision."""

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int) -> None:
        """Record that a process that may not decide tried to, and that `unrecorded` more did since the last call."""

    def console_url(self) -> str:
        """The address of the web console, with a code that opens it once."""


# Requests


LongText = Annotated[str, Meta(max_length=8192)]
ShortText = Annotated[str, Meta(max_length=128)]
UnixTime = Annotated[float, Meta(ge=0, lt=253_402_300_800)]
"""Seconds, up to the year 9999."""
Place = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The place of a row in the history, an integer of SQLite."""


AdminResult = (
    CallerView
    | Done
    | DefinitionList
    | Explanation
    | HistoryList
    | HistoryRecords
    | LoginProposal
    | ServerLog
    | ServerTraffic
)


class AdminRequest(Struct, Generic[Api], frozen=True, forbid_unknown_fields=True):
    """Something that a person decides, or wants explained."""

    async def carry_out(self, api: Api, channel: Channel) -> AdminResult:
        """Raises AdminError."""
        raise NotImplementedError


class AnswerRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """The answer to a confirmation. `arguments`: what a lasting answer is for: exactly the arguments that were shown,
    any, or those that fit the conditions given, which are written as in the configuration file. `seconds` goes with the
    answer `time`, and with no other."""

    id: ShortText
    answer: Literal["deny", "once", "session", "time", "always"]
    seconds: Annotated[int, Meta(ge=1, le=MAX_GRANT_SECONDS)] | None = None
    arguments: Literal["exact", "any"] | dict[str, Any] = "exact"

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        if (self.answer == "time") != (self.seconds is not None):
            raise MalformedRequest('"seconds" goes with the answer "time", and with no other')
        return await api.answer(self.id, self.answer, self.seconds, self.arguments, channel)


class DenyAllRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Denies the confirmations of one server that were shown."""

    server: ShortText
    ids: Annotated[list[ShortText], Meta(min_length=1)]

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.deny_all(self.server, self.ids, channel)


class DecideRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """A decision about one definition; `fingerprint` is of the one that was shown."""

    server: ShortText
    kind: ShortText
    name: LongText
    fingerprint: ShortText
    decision: Literal["approve", "reject", "revoke"]

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.decide(Item(self.server, self.kind, self.name), self.fingerprint, self.decision, channel)


class DefinitionsRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """Asks for all definitions that a server offers, and for its rules. `caller`: whose calls the verdicts are about,
    by its name in `callers`; empty for one without."""

    server: ShortText
    caller: ShortText = ""

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.definitions(self.server, self.caller)


class DecideAllRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """A decision about all definitions of one server that were shown: held ones, and to approve also those that were
    approved without a person."""

    server: ShortText
    fingerprints: Annotated[list[ShortText], Meta(min_length=1)]
    decision: Literal["approve", "reject"] = "approve"

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.decide_all(self.server, self.fingerprints, self.decision, channel)


class RevokeRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """Revokes a grant."""

    id: ShortText

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.revoke(self.id, channel)


class SandboxRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """Chooses whether an untrusted program is confined that was approved before such programs were: strict, or off, so
    that it runs as before."""

    server: ShortText
    sandbox: Literal["strict", "off"]

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.choose_sandbox(self.server, self.sandbox, channel)


class ExplainRequest(AdminRequest[DecisionApi], frozen=True, forbid_unknown_fields=True):
    """Asks what would become of a call, and why. Changes nothing. `arguments` are those that the server gets. `caller`:
    who would call, by its name in `callers`; without it, a client over stdio or a command of the owner, for which no
    view is a boundary; empty for any that the file does not name. `view`: the one that it asks for; if that is empty,
    the one that is in effect for it where none is named."""

    server: ShortText
    kind: ShortText
    name: LongText
    arguments: dict[str, Any] | None = None
    caller: ShortText | None = None
    view: ShortText = ""

    async def carry_out(self, api: DecisionApi, channel: Channel) -> AdminResult:
        return await api.explain(Item(self.server, self.kind, self.name), self.arguments, self.caller, self.view)


class CallerViewRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Asks what a caller sees in a view. Without a `caller` it is a client over stdio, or a command of the owner, for
    which no view is a boundary; an empty one is any that the file does not name. An empty `view` is that which is in
    effect where none is named."""

    caller: ShortText | None = None
    view: ShortText = ""

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.caller_view(self.caller, self.view)


class ServerLogRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Asks for the standard error of a server: for the lines whose number is greater than `after`."""

    server: ShortText
    after: int = 0

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.server_log(self.server, self.after)


class TrafficRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Asks what a server has done in the last hour and the last day."""

    server: ShortText

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.server_traffic(self.server)


class HistoryRequest(AdminRequest[HistoryApi], frozen=True, forbid_unknown_fields=True):
    """Asks for calls of the past: those to which all that is given applies. `since`: Unix seconds. `client`: what a
    client calls itself, or its program. `tool`: the own name of an entry. `beyond`: the `place` of the last call that
    was shown."""

    since: UnixTime | None = None
    caller: LongText | None = None
    client: LongText | None = None
    server: ShortText | None = None
    tool: LongText | None = None
    verdict: Literal["allow", "ask", "deny"] | None = None
    outcome: ShortText | None = None
    beyond: Place | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 100

    async def carry_out(self, api: HistoryApi, channel: Channel) -> AdminResult:
        wanted = asdict(self)
        return await api.past_calls(wanted.pop("since"), wanted)


class HistoryCallRequest(AdminRequest[HistoryApi], frozen=True, forbid_unknown_fields=True):
    """Asks for one call of the past, by its `id`, with its records of the audit. With the `place` that it had in a
    list, it is found at once."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{6,16}$")]
    place: Place | None = None

    async def carry_out(self, api: HistoryApi, channel: Channel) -> AdminResult:
        return await api.past_call(self.id, self.place)


class ControlRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Restarts, enables or disables a server of the running host, or installs the packages of a confined one again,
    which may take minutes. The configuration file stays as it is."""

    server: ShortText
    action: Literal["restart", "enable", "disable", "install"]

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.control(self.server, self.action)


class LoginRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Opens a login at a server, or asks for the one that is open. Stored is what the person then permits at the
    issuer."""

    server: ShortText

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.login(self.server, channel)


class ReloadRequest(AdminRequest[AdminApi], frozen=True, forbid_unknown_fields=True):
    """Reads the configuration file again and applies all of it; with `shown`, only if the file still has the changes
    that were shown under this id. Without `apply`, nothing takes effect: the section `configuration` of the state then
    has the changes that wait for a person."""

    apply: bool = True
    shown: ShortText | None = None

    async def carry_out(self, api: AdminApi, channel: Channel) -> AdminResult:
        return await api.reload(apply=self.apply, shown=self.shown)


STORED_REQUESTS: Mapping[str, type[AdminRequest[DecisionApi]]] = {
    "definitions/list": DefinitionsRequest,
    "definitions/decide": DecideRequest,
    "definitions/decide-all": DecideAllRequest,
    "grants/revoke": RevokeRequest,
    "servers/sandbox": SandboxRequest,
    "explain": ExplainRequest,
}
"""The requests that need no running host, by their paths."""
HISTORY_REQUESTS: Mapping[str, type[AdminRequest[HistoryApi]]] = {
    "history/list": HistoryRequest,
    "history/call": HistoryCallRequest,
}
"""All requests of a caller that sees calls of the past."""
REQUESTS: Mapping[str, type[AdminRequest[AdminApi]]] = {
    **STORED_REQUESTS,
    "confirmations/answer": AnswerRequest,
    "confirmations/deny-all": DenyAllRequest,
    "callers/view": CallerViewRequest,
    "servers/log": ServerLogRequest,
    "servers/traffic": TrafficRequest,
    **HISTORY_REQUESTS,
    "servers/control": ControlRequest,
    "servers/login": LoginRequest,
    "configuration/reload": ReloadRequest,
}
"""Every request with a body, by its path."""


def read_request(requests: Mapping[str, type[AdminRequest[Api]]], path: str, data: bytes) -> AdminRequest[Api]:
    """The request at a path. `requests` is REQUESTS or STORED_REQUESTS, `data` the JSON of the body.

    Raises:
        MalformedRequest: it is no such request.
        AdminError: it needs a running host.
    """
    if path not in requests:
        raise AdminError(NO_HOST)
    try:
        return msgspec.json.decode(data, type=requests[path])
    except DECODE_ERRORS as problem:
        raise MalformedRequest(f"this is no request for {path} that is known here") from problem
