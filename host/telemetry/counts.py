"""Counts of a running host for its metrics: of the requests that are observed, and of what the journal tells.

Plain dicts, since a call takes 300 µs and one step of a metric of the library takes 2. Labels are bounded: ids of the
configuration, fixed words, known codes. None is a caller's name, or a word that a caller or a server has written,
except the names of tools, for which the configuration must ask.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from msgspec import Raw, Struct

from config import HttpServer, ServerSpec
from host.client_process import ClientTransport
from host.errors import ColonnadeError
from host.journal import (
    UNKNOWN_HOP,
    AttemptRefused,
    AttemptsUnnamed,
    ConfigReloaded,
    DecisionMade,
    Hop,
    InternalError,
    Journal,
    LoggedIn,
    LoginFailed,
    MessageDropped,
    RequestCompleted,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerStopped,
    TokenNotRefreshed,
)
from host.jsonrpc.conversation import Params
from host.jsonrpc.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PARSE_ERROR,
    Failure,
    Id,
    ParsedInput,
    Request,
    Success,
)
from host.jsonrpc.raw import members, string
from host.peer.outstanding import PeerError
from host.peer.peer import Peer, SendRequest
from host.protocol.known_params import KNOWN_PARAMS
from host.protocol.methods import DISCOVER, INITIALIZE, PING, TOOLS_CALL
from host.protocol.server_requests import METHODS as SERVER_REQUESTS
from host.protocol.server_requests import URL_REQUIRED
from host.protocol.versions import SERVED
from host.telemetry import names
from host.telemetry.names import Metric
from host.upstream.results import is_error
from host.wire.asgi import Headers

if TYPE_CHECKING:
    from host.upstream.call import UpstreamCall

BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper limits of the buckets of durations, in seconds (the conventions, "Metric: mcp.server.operation.duration")."""
MAX_TOOLS = 1000
"""Tools that are told apart. Servers may have any number, and other ones each day."""
LONGEST_TOOL = 128
"""Characters of the name of a tool that is told: as many as MCP wants it to have (2025-11-25, "Tool Names")."""
OTHER, TOOL_ERROR, CANCELLED, OK = "_OTHER", "tool_error", "cancelled", ""
"""Values of `error_type`: the first two are those of the conventions, for which an operation without an error has no
such attribute, which in Prometheus is an empty label."""
KNOWN_METHODS = frozenset({*KNOWN_PARAMS, *SERVER_REQUESTS, INITIALIZE, PING, DISCOVER})
"""Those that are told by name; a client may write any other."""
KNOWN_REVISIONS = frozenset({*SERVED, ""})
"""Those that are told by name, and that of a client that has agreed on none."""
OUTCOMES_OF_RELOADS = ("taken over", "waits", "rejected")
"""Values of `outcome` of `colonnade_config_reloads`."""
EXECUTE_TOOL = "execute_tool"
"""The name of the operation of a call of a tool, as OpenTelemetry has it."""
_EDGES = (-1.0, *map(float, BUCKETS))
"""The place of a duration among these is that of its bucket in a row."""
_METHODS = {kind.value: method for method, kinds in SERVER_REQUESTS.items() for kind in kinds}
"""The methods of server requests."""
_CALL = TOOLS_CALL.name
_COUNTED = "counted"
LONGEST_READ = 4096
"""Bytes of a result in which it is looked whether the call failed; of a longer one that is not the result of a task,
what was found when it came."""
_OUTCOMES = frozenset({"answered", "handed on", "told", "called off", "failed"})
"""Those without a code; see `RequestCompleted`."""

Labels = tuple[str, ...]


def _known_codes(of: type[ColonnadeError]) -> Iterator[int]:
    if hasattr(of, "code"):
        yield of.code
    for each in of.__subclasses__():
        yield from _known_codes(each)


_KNOWN_CODES = frozenset(
    {*_known_codes(ColonnadeError), INTERNAL_ERROR, INVALID_PARAMS, PARSE_ERROR, URL_REQUIRED, -32000, -32001}
)


def _status(error: str) -> str:
    """The code of a JSON-RPC error that a label tells; empty if there is none."""
    return error if error.lstrip("-").isdigit() else ""


def _operation(method: str) -> str:
    return EXECUTE_TOOL if method == TOOLS_CALL.name else ""


def error_type_of(code: int) -> str:
    """The label for an error with this code, which a server may have made up."""
    return str(code) if code in _KNOWN_CODES else OTHER


def transport_to(spec: ServerSpec) -> Literal["tcp", "pipe"]:
    """The transport to a server, as OpenTelemetry names it."""
    return "tcp" if isinstance(spec, HttpServer) else "pipe"


def cumulative(row: list[float]) -> list[float]:
    """The number of durations up to each limit, and of all, from a row of `Durations`."""
    return list(accumulate(row[1:]))


class Durations:
    """Durations by their labels."""

    def __init__(self) -> None:
        self.rows: dict[Labels, list[float]] = {}
        """The sum of the durations; for each bucket the number of those in it alone; and their number beyond all."""

    def row(self, labels: Labels) -> list[float]:
        """The row of these labels, which is made if there is none."""
        return self.rows.setdefault(labels, [0.0] * (len(BUCKETS) + 2))

    def observe(self, labels: Labels, seconds: float) -> None:
        row = self.row(labels)
        row[bisect_left(_EDGES, seconds)] += 1
        row[0] += seconds


class _CountedAnswer(Struct, gc=False):
    """A request of a client, or of a server, while it is answered. Implements `host.journal.Asking`."""

    trace_id: ClassVar = ""
    counts: HostCounts
    method: str
    hop: Hop
    began: float
    failed: bool | None = None
    """Whether the last request to a server for it failed; None if there was none, or if that was about its task and
    does not tell. Results that Colonnade makes of failures are short, or stand for an error of the server."""
    result: Raw | None = None
    """The result of that request."""

    def on_wait(self, what: str, seconds: float) -> None:
        self.counts.waits.observe((what,), seconds)

    def end(self, answer: Success | Failure | None) -> None:
        counts, method = self.counts, self.method
        if isinstance(answer, Success):
            failed, result = self.failed, answer.result
            if method == _CALL and (failed is None or (result is not self.result and len(result) <= LONGEST_READ)):
                failed = is_error(result)
            error = TOOL_ERROR if failed and method == _CALL else OK
        else:
            error = CANCELLED if answer is None else error_type_of(answer.error.code)
        revision, transport = self.hop
        seconds = counts.now() - self.began
        durations = counts.server_operations
        try:  # as `observe`, for speed
            row = durations.rows[method, error, revision, transport]
        except KeyError:  # of a method that is not told by name, each time
            row = durations.row((method if method in KNOWN_METHODS else OTHER, error, revision, transport))
        row[bisect_left(_EDGES, seconds)] += 1
        row[0] += seconds
        self.result = None  # the request may be kept, as that of a watched resource is

    def sent(self, params: dict[str, Raw]) -> dict[str, Raw]:
        return params


class _ServerWatch:
    """Counts the requests to a server. Implements `host.peer.outstanding.RequestWatch`."""

    __slots__ = ("_durations", "_peer", "_server", "_tool_in", "now")

    def __init__(self, counts: HostCounts, server: str, peer: Peer[Any]) -> None:
        self._server, self._peer, self.now = server, peer, counts.now
        self._durations = counts.client_operations
        self._tool_in = partial(counts.tool_in, server) if counts.names_tools else None

    def on_ended(
        self,
        method: str,
        params: Params,
        subject: UpstreamCall | None,
        seconds: float,
        result: Raw | None,
        why: Exception | None,
    ) -> None:
        error, tool_error = OK, None
        if result is None:
            error = CANCELLED if why is None else error_type_of(why.error.code) if isinstance(why, PeerError) else OTHER
        elif method == _CALL:
            kept = None if subject is None else subject.outlined
            tool_error = is_error(kept[1] if kept is not None and kept[0] is result else result)
            error = TOOL_ERROR if tool_error else OK
        if subject is not None:
            subject.tool_error = tool_error
            # What is called off says nothing: of a call that goes on, it was a poll of its task beside the result.
            if error != CANCELLED and (answer := subject.exchange.request.__dict__.get(_COUNTED)) is not None:
                answer.failed, answer.result = error != OK or tool_error, result
        labels: Labels = (self._server, method, error, self._peer.revision)
        if self._tool_in is not None:
            labels += (self._tool_in(method, params),)
        durations = self._durations
        try:  # as `observe`, for speed
            row = durations.rows[labels]
        except KeyError:
            row = durations.row(labels)
        row[bisect_left(_EDGES, seconds)] += 1
        row[0] += seconds


class HostCounts:
    """Counts from now on. Implements `host.journal.Observer`.

    Args:
        tools: durations at servers are told by the names of the tools too.
        now: the clock.
    """

    def __init__(self, journal: Journal, *, tools: bool = False, now: Callable[[], float] = perf_counter) -> None:
        self.now = now
        self.server_operations, self.client_operations, self.client_sessions = Durations(), Durations(), Durations()
        self.waits, self.server_sessions = Durations(), Durations()
        self.names_tools = tools
        self._tools: set[tuple[str, str]] = set()
        self._servers: frozenset[str] | None = None
        """Those of the configuration, once `keep_only` was told."""
        self._peers: dict[str, Peer[Any]] = {}
        """By server, the peer that was connected last."""
        self._ready_since: dict[str, tuple[float, str]] = {}
        """By server, the time and the revision."""
        self.transports: dict[str, Literal["tcp", "pipe"]] = {}
        """By server, the transport to it."""
        self._counts: dict[Metric, Counter[Labels]] = {
            each: Counter() for each in names.METRICS if each.kind == "counter"
        }
        # Prometheus sees no increase in a series that begins at 1, so those of which one is worth an alert begin at 0.
        self._count(names.INTERNAL_ERRORS, by=0)
        for outcome in OUTCOMES_OF_RELOADS:
            self._count(names.RELOADS, outcome, by=0)
        self._bytes: dict[Labels, list[int]] = {}
        """Those of arguments and of results, by the labels of both metrics."""
        self._calls: dict[Labels, tuple[list[int], list[int]]] = {}
        """By the labels of `CALLS`, their number, and the bytes to which theirs are added: one search for a call."""
        journal.subscribe(self._on_completed, RequestCompleted)
        journal.subscribe(self._on_attempt, AttemptRefused)
        journal.subscribe(lambda event: self._count(names.ATTEMPTS, "unnamed", by=event.count), AttemptsUnnamed)
        journal.subscribe(lambda event: self._count(names.CONFIRMATIONS, event.server, event.answer), DecisionMade)
        journal.subscribe(self._on_ready, ServerReady)
        journal.subscribe(self._on_failed, ServerFailed)
        journal.subscribe(lambda event: self._end_session(event.server), ServerStopped, ServerHeld)
        journal.subscribe(lambda event: self._end_session(event.server, OTHER), ServerNeedsLogin)
        journal.subscribe(lambda event: self._count(names.DROPPED, event.server, event.what), MessageDropped)
        for kind, outcome in ((LoggedIn, "done"), (LoginFailed, "failed"), (TokenNotRefreshed, "not refreshed")):
            journal.subscribe(partial(self._on_login, outcome), kind)
        journal.subscribe(self._on_reload, ConfigReloaded)
        journal.subscribe(lambda _: self._count(names.INTERNAL_ERRORS), InternalError)

    # Events

    received: Callable[[ParsedInput, Headers], None] | None = None

    def answering(self, request: Request, hop: Hop = UNKNOWN_HOP) -> _CountedAnswer:
        counted = request.__dict__[_COUNTED] = _CountedAnswer(self, request.method, hop, self.now())
        return counted

    def asking(
        self, server: str, revision: str, method: str, params: Mapping[str, Raw], id: Id | None, during: Request | None
    ) -> _CountedAnswer:
        return _CountedAnswer(self, method, Hop(revision, self.transports.get(server, "")), self.now())

    def sending(self, spec: ServerSpec, peer: Peer[Any], send: SendRequest) -> SendRequest:
        self.transports[spec.id], self._peers[spec.id] = transport_to(spec), peer
        peer.watch(_ServerWatch(self, spec.id, peer))
        return send

    def tool_in(self, server: str, method: str, params: Params) -> str:
        """The tool that is called, as its server names it; empty if the request is no call of a tool. The gate lets
        only calls of tools pass that the server lists."""
        if method != TOOLS_CALL.name or params is None:
            return ""
        found = members(params) if isinstance(params, Raw) else params
        key = server, string(found["name"])
        if key not in self._tools:
            if len(self._tools) >= MAX_TOOLS or len(key[1]) > LONGEST_TOOL:
                return OTHER
            self._tools.add(key)
        return key[1]

    def _count(self, metric: Metric, *labels: str, by: int = 1) -> None:
        self._counts[metric][labels] += by

    def _on_completed(self, event: RequestCompleted) -> None:
        server, kind = event.server, event.kind
        try:
            found = self._calls[server, event.method, kind, event.verdict, event.outcome]
        except KeyError:  # of an outcome with a code, or of a server's request, each time
            outcome = event.outcome if event.outcome in _OUTCOMES else "error"
            labels: Labels = (server, event.method or _METHODS[kind], kind, event.verdict, outcome)
            sizes = self._bytes.setdefault((server, kind), [0, 0])
            found = self._calls.setdefault(labels, ([0], sizes))
        count, sizes = found
        count[0] += 1
        sizes[0] += event.sent
        sizes[1] += event.size

    @property
    def counts(self) -> dict[Metric, Counter[Labels]]:
        """By metric, each counter's count by its labels, as they are now."""
        calls = Counter({labels: count for labels, ((count,), _) in self._calls.items()})
        sent, received = (Counter({labels: each[at] for labels, each in self._bytes.items()}) for at in (0, 1))
        return self._counts | {names.CALLS: calls, names.ARGUMENT_BYTES: sent, names.RESULT_BYTES: received}

    def follow(self, servers: Mapping[str, ServerSpec]) -> None:
        """Count for the servers of this configuration from now on; see `keep_only`."""
        for id, spec in servers.items():
            if spec.disabled:
                self._end_session(id)
        self.keep_only(servers)

    def keep_only(self, servers: Collection[str]) -> None:
        """Forget all servers but these, which a new configuration has. One that comes back begins at 0, also if calls
        of it have ended since it was removed."""
        before, self._servers = self._servers, frozenset(servers)
        kept = self._servers if before is None else self._servers & before
        counters = [counter for metric, counter in self._counts.items() if metric.of_servers]
        rows: list[dict[Labels, Any]] = [self.client_operations.rows, self.client_sessions.rows, *counters]
        rows += [self._calls, self._bytes]
        by_server: list[dict[str, Any]] = [self._peers, self._ready_since, self.transports]
        for found in rows:
            for labels in [each for each in found if each[0] not in kept]:
                del found[labels]
        for values in by_server:
            for server in values.keys() - kept:
                del values[server]
        self._tools = {(server, tool) for server, tool in self._tools if server in kept}

    def _on_attempt(self, event: AttemptRefused) -> None:
        # The first of a minute was told at once, and is told again with the others.
        self._count(names.ATTEMPTS, event.attempt.reason.value, by=event.count - 1 if event.count > 1 else 1)

    def _on_ready(self, event: ServerReady) -> None:
        self._end_session(event.server)  # of a server that was restarted, which no event tells
        peer = self._peers.get(event.server)
        self._ready_since[event.server] = self.now(), "" if peer is None else peer.revision
        self._count(names.SERVER_STARTS, event.server)
        self._count(names.SERVER_FAILURES, event.server, by=0)

    def _on_failed(self, event: ServerFailed) -> None:
        self._end_session(event.server, OTHER)
        self._count(names.SERVER_FAILURES, event.server)

    def _end_session(self, server: str, error: str = OK) -> None:
        if server in self._ready_since:
            since, revision = self._ready_since.pop(server)
            self.client_sessions.observe((server, error, revision), self.now() - since)

    # Labels that others imply, which are joined to them for whoever reads them

    def labels_of(self, metric: Metric, labels: Labels) -> Labels:
        """The labels of a row of durations, as the metric has them."""
        if metric is names.SERVER_OPERATION:
            method, error, *hop = labels
            return method, error, _status(error), _operation(method), *hop
        if metric is names.CLIENT_OPERATION:
            server, method, error, revision, *tool = labels
            transport = self.transports.get(server, "")
            return server, method, error, _status(error), _operation(method), revision, transport, *tool
        if metric is names.CLIENT_SESSION:
            return *labels, self.transports.get(labels[0], "")
        return labels

    def on_client_left(self, transport: ClientTransport, revision: str, seconds: float) -> None:
        """A session of a client has ended after so many seconds."""
        labels = revision if revision in KNOWN_REVISIONS else OTHER, "tcp" if transport in ("http", "sse") else "pipe"
        self.server_sessions.observe(labels, seconds)

    def _on_login(self, outcome: str, event: LoggedIn | LoginFailed | TokenNotRefreshed) -> None:
        self._count(names.LOGINS, event.server, outcome)

    def _on_reload(self, event: ConfigReloaded) -> None:
        taken_over, waits, rejected = OUTCOMES_OF_RELOADS
        self._count(names.RELOADS, rejected if event.failed else waits if event.waiting else taken_over)
