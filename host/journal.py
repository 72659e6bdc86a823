"""Events as typed records. Readers (log, status, start-up lines) subscribe; a part that has news
calls `note` and never waits.

Records hold what a person needs: ids from the configuration, counts, and text from servers only cut and escaped.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import trio
from msgspec import Raw, Struct

from config import ServerSpec
from host.attempts import SENTENCES, Attempt, Reason
from host.jsonrpc.messages import Failure, Id, ParsedInput, Request, Success
from host.peer.peer import Peer, SendRequest
from host.wire.asgi import Headers

EXCERPT_LENGTH = 200
"""Characters of a text of a peer that an event repeats."""
OBSERVED = "observed"
"""Key of the `Answering` that is kept with a request."""
MAX_OUTPUT_LINES = 200
"""Lines of output that are kept for each server."""


class Severity(IntEnum):
    """How much an event matters, to the log and to the console alike. The numbers are those of `logging`."""

    INFO = 20
    WARNING = 30
    ERROR = 40


_INFO, _WARNING = Severity.INFO, Severity.WARNING  # for speed; see RESOURCE in protocol/methods.py


class Event(Struct, frozen=True):
    """Something that people may want to know. `part`: that of the log whose level it follows (`cli/common.py`).
    `text`: the sentence about it, a format whose `self` is the event."""

    part: ClassVar[str] = "servers"
    text: ClassVar[str] = ""

    @property
    def severity(self) -> Severity:
        return _INFO

    def __str__(self) -> str:
        return self.text.format(self=self)


class ServerReady(Event, frozen=True):
    """A server is connected and its lists are in the catalog."""

    text: ClassVar = "{self.server}: ready in {self.seconds:.1f} s ({self.counts})"
    server: str
    said: str
    """The name that the client gives itself."""
    counts: str
    seconds: float


class ServerStopped(Event, frozen=True):
    """A server was stopped because it was not used."""

    text: ClassVar = "{self.server}: stopped, since it was not used for {self.seconds:.0f} s; its next use starts it"
    server: str
    seconds: float


class VariablesHandedOn(Event, frozen=True):
    """A program is started with variables beside those of every server, since it is a client of another service."""

    server: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.server}: its program gets {', '.join(self.names)}, by which it finds its service"


class ServerConfined(Event, frozen=True):
    """A program was started with these means that confine it."""

    part: ClassVar = "sandbox"
    text: ClassVar = "{self.server}: its program is confined by {self.means}"
    server: str
    means: str


class ServerUnconfined(Event, frozen=True):
    """A program that is not trusted was started without a sandbox, as before, since nobody has chosen yet."""

    part: ClassVar = "sandbox"
    severity: ClassVar = Severity.WARNING
    server: str

    def __str__(self) -> str:
        return f"{self.server}: {runs_unconfined(self.server)}"


class SandboxRefused(Event, frozen=True):
    """A confined program tried something and did not get it, or says so if it is not `certain`. `allow`: the line for
    the file that would permit it; empty if none does."""

    part: ClassVar = "sandbox"
    severity: ClassVar = Severity.WARNING
    stream: ClassVar[Literal["sandbox"]] = "sandbox"
    text: ClassVar = "{self.server}: {self.line}"
    server: str
    what: str
    allow: str
    certain: bool

    @property
    def line(self) -> str:
        was = "was" if self.certain else "may have been"
        allow = f"; to allow it, write {self.allow}" if self.allow else ""
        return f"its sandbox: its program {was} refused {self.what}{allow}"


class SessionOpened(Event, frozen=True):
    """Handshake clients of a server are served over a session, beside the stateless connection for others."""

    text: ClassVar = "{self.server}: handshake clients use a session ({self.revision})"
    server: str
    revision: str


class SessionClosed(Event, frozen=True):
    """The session beside a stateless connection was closed because it was not used."""

    text: ClassVar = (
        "{self.server}: its session was not used for {self.seconds:.0f} s and is closed; its next use opens one"
    )
    server: str
    seconds: float


class SessionAbsent(Event, frozen=True):
    """A server accepts no session beside its stateless connection, which serves all clients."""

    text: ClassVar = "{self.server}: accepts no session ({self.why}), so all clients are served over one connection"
    server: str
    why: str


class SessionFailed(Event, frozen=True):
    """The session beside a stateless connection failed, while that connection may serve on."""

    severity: ClassVar = Severity.WARNING
    server: str
    why: str
    reopens: bool = False

    def __str__(self) -> str:
        instead = "it is opened again" if self.reopens else "handshake clients use the stateless connection"
        return f"{self.server}: its session failed ({self.why}); {instead}"


class ServerHeld(Event, frozen=True):
    """A server is not started, because its command resolves to another program than the approved one, or if it is
    confined, because that starts with other files."""

    part: ClassVar = "consent"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: held: {self.why}"
    server: str
    program: str
    """The path of the program now; empty if there is none."""
    confined: bool
    installs: str = ""
    """The packages to be installed before it can be started, and their registry; empty if there are none."""

    @property
    def why(self) -> str:
        if self.installs:
            what = f"installs {self.installs}"
        elif not self.program:
            what = "resolves to no program"
        elif self.confined:
            what = f"starts {self.program} with other files than the approved ones"
        else:
            what = f"resolves to {self.program}, which is not the approved program"
        return f"its command {what}: colonnade definitions --show, then approve it"


class PackagesInstalled(Event, frozen=True):
    """The packages of a confined server were installed. `what`: version and digest."""

    text: ClassVar = "{self.server}: installed in {self.seconds:.1f} s: {self.what}"
    server: str
    what: str
    seconds: float


class ServerFailed(Event, frozen=True):
    """A server is not, or no longer, connected."""

    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: failed: {self.outlook}"
    server: str
    why: str
    retry_in: float
    """Seconds to the next attempt; infinite if the configuration has to be mended first."""

    @property
    def outlook(self) -> str:
        """Why, and when the next attempt is, if there is one."""
        if math.isinf(self.retry_in):
            return self.why
        return f"{self.why}; next attempt in {self.retry_in:.1f} s"


class ServerNeedsLogin(Event, frozen=True):
    """A server is not connected until a person logs in."""

    part: ClassVar = "logins"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: needs login: {self.why}"
    server: str
    why: str


class LoggedIn(Event, frozen=True):
    """A person has logged in at a server. `by`: where the login was begun."""

    part: ClassVar = "logins"
    text: ClassVar = "{self.server}: logged in at {self.issuer} ({self.by})"
    server: str
    issuer: str
    by: str


class LoginFailed(Event, frozen=True):
    """A login that was begun at this host came to nothing."""

    part: ClassVar = "logins"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: nobody is logged in: {self.why}"
    server: str
    why: str


class TokenNotRefreshed(Event, frozen=True):
    """The token of a login could not be refreshed. The present one is used as long as it is valid."""

    part: ClassVar = "logins"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: its token could not be refreshed: {self.why}"
    server: str
    why: str


class InstanceFailed(Event, frozen=True):
    """A dedicated instance of a server could not be started, or was lost."""

    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: a dedicated instance failed: {self.why}"
    server: str
    why: str


class MessageDropped(Event, frozen=True):
    """A message was dropped: it was none, or nobody was waiting for it."""

    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: {self.what} dropped: {self.detail}"
    server: str
    what: str
    """One of `invalid message`, `message too long`, `unknown id`, `unknown progress token`, `unexpected notification`,
    `notification too large`, `request too large`, `too many requests`, `request repeated`, `too many log messages`,
    `unexpected event`, `event stream broken`."""
    detail: str


class EntryOmitted(Event, frozen=True):
    """An entry of a server is not exported. `cause` tells those apart that are each told in the log."""

    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: {self.what}"
    server: str
    what: str
    cause: str = ""


class ListsSlowed(Event, frozen=True):
    """The lists of a server change so often that they are not read at each change, but about every `interval`
    seconds."""

    severity: ClassVar = Severity.WARNING
    server: str
    interval: float

    def __str__(self) -> str:
        return f"{self.server}: {slow_reading(self.interval)}"


class SecretWithheld(Event, frozen=True):
    """A server repeated a secret that it was given. It is replaced in what clients and people get; told once for each
    connection and `where`."""

    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: it repeats a secret that it was given, in {self.where}; the secret is withheld"
    server: str
    where: str


class ServerRequestRefused(Event, frozen=True):
    """A server wanted to ask a client something, and was refused."""

    part: ClassVar = "calls"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: {self.request} refused: {self.why}"
    server: str
    request: str
    why: str
    caller: str = ""
    """Empty if it is not certain which client was meant."""
    trace_id: str = ""
    """See `Answering`."""


class RequestCompleted(Event, frozen=True, gc=False):
    """A request reached a server, or a request of a server reached a client, and this became of it."""

    part: ClassVar = "calls"
    server: str
    kind: str
    name: str
    """Cut after EXCERPT_LENGTH + 1 characters, since readers may keep the event."""
    caller: str
    verdict: str
    outcome: str
    """`answered`, `called off`, `failed`, or `error` and its code; of a request of a server `handed on` to a client
    that answers with a request of its own, and `told`, of roots that a person let the server have."""
    seconds: float
    size: int = 0
    """Bytes of the result."""
    audit: int = 0
    """The number of the decision's record in the audit."""
    trace_id: str = ""
    """See `Answering`."""
    method: str = ""
    """Empty for a request of a server."""
    sent: int = 0
    """Bytes of the arguments."""
    tool_error: bool = False
    """The result, with which the request was `answered`, is that of a tool which says that the call failed."""

    @property
    def severity(self) -> Severity:
        return _WARNING if self.outcome == "failed" else _INFO

    def __str__(self) -> str:
        what = f"{self.kind} {excerpt(self.name)} for {self.caller}"
        return f"{self.server}: {what}: {self.outcome} in {self.seconds:.3f} s ({self.verdict})"


class CallDenied(Event, frozen=True):
    """A call was refused because of its arguments: by a rule, or since readers could take them for others, or nobody
    could confirm so long ones. A long `name` is cut."""

    part: ClassVar = "calls"
    severity: ClassVar = Severity.WARNING
    server: str
    kind: str
    name: str
    caller: str
    rule: str
    trace_id: str = ""
    """See `Answering`."""

    def __str__(self) -> str:
        return f"{self.server}: {self.kind} {excerpt(self.name)} for {self.caller}: denied ({excerpt(self.rule)})"


class RequestFailed(Event, frozen=True):
    """Why a request failed, where the server said something about it that its client is not told."""

    part: ClassVar = "calls"
    severity: ClassVar = Severity.WARNING
    server: str
    why: str
    said: str
    """Quoted; see `sanitize.quoted`."""
    caller: str = ""
    """Empty for a request of Colonnade's own."""
    trace_id: str = ""
    """See `Answering`."""

    def __str__(self) -> str:
        caller = f" for {self.caller}" if self.caller else ""
        return f"{self.server}: a request{caller} failed: {self.why}; {self.said}"


class ConfirmationRequested(Event, frozen=True):
    """A person is asked whether something may be done; `id` is how it is answered. `refused`: the reason why it was
    refused at once; the answer is then for the next equal call. Empty while it waits."""

    part: ClassVar = "consent"
    severity: ClassVar = Severity.WARNING
    server: str
    id: str
    what: str
    refused: str = ""
    caller: str = ""
    trace_id: str = ""
    """Of the first of the requests that wait; see `Answering`."""

    def __str__(self) -> str:
        if self.refused:
            outcome = f"was refused, because {self.refused}; a person can allow the next equal call"
        else:
            outcome = "waits for a person's answer"
        return f"{self.server}: {self.what} {outcome} (colonnade ask {self.id})"


_ANSWERS = {
    "deny": "denied",
    "once": "allowed once",
    "session": "allowed for the session",
    "time": "allowed for a time",
    "always": "allowed always",
    "none": "nobody answered",
    "withdrawn": "called off before it was answered",
    "void": "void, since it changed meanwhile",
    "approve": "approved",
    "reject": "rejected",
    "unapprove": "approval taken back",
    "confine": "to be confined",
    "unconfine": "to stay unconfined",
}


class DecisionMade(Event, frozen=True):
    """A confirmation has ended: `answer` is the person's, or `none`, `withdrawn` or `void`."""

    part: ClassVar = "consent"
    server: str
    what: str
    answer: str
    by: str
    caller: str = ""
    """The caller that asked; empty if it was no request."""
    trace_id: str = ""
    """See `ConfirmationRequested`."""

    def __str__(self) -> str:
        said = _ANSWERS.get(self.answer, self.answer)
        return f"{self.server}: {self.what}: {said}" + (f" ({self.by})" if self.by else "")


class DefinitionChanged(Event, frozen=True):
    """A server's definition differs from before. `what` is the outcome: `held`, since it is not what was approved;
    `reordered`, which is held too, though only the order of words differs (with the `remedy`); `accepted`, since the
    server is trusted; `installed`, by an installation that was permitted; `edited`, since the owner did it; or it
    `returned` to what was approved."""

    part: ClassVar = "consent"
    server: str
    kind: str
    name: str
    what: str
    count: int = 1
    """How many there are of which this is to be said."""
    remedy: str = ""

    @property
    def severity(self) -> Severity:
        return Severity.WARNING if self.what in ("held", "reordered", "accepted") else Severity.INFO

    def __str__(self) -> str:
        others = f" and {self.count - 1} more" if self.count > 1 else ""
        item = f"{self.server}: {self.kind} {excerpt(self.name)}".rstrip() + f"{others}:"
        return {
            "held": f"{item} not as it was approved; held until a person approves it (colonnade definitions)",
            "reordered": f"{item} not as it was approved, though only the order of its words differs; held until a "
            f"person approves it (colonnade definitions); {self.remedy}",
            "installed": f"{item} with what is installed for it",
            "edited": f"{item} changed, since the configuration was edited",
            "accepted": f"{item} changed, and accepted, since the server is trusted",
            "returned": f"{item} again as it was approved",
        }[self.what]


class AuditFailed(Event, frozen=True):
    """The audit log cannot be written, so nothing is sent to any server."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.ERROR
    text: ClassVar = "audit: {self.why}; no request is sent while this lasts"
    why: str


class HistoryFailed(Event, frozen=True):
    """The index of the history cannot be written. Calls go on, and it is made up for."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "history: {self.why}"
    why: str


class DefinitionsLost(Event, frozen=True):
    """The approvals are lost, so nothing is approved."""

    part: ClassVar = "consent"
    severity: ClassVar = Severity.ERROR
    text: ClassVar = "state: {self.why}"
    why: str


class ConfigReloaded(Event, frozen=True):
    """The configuration was read again; `changes` says in words what is different, or what is wrong with it."""

    part: ClassVar = "host"
    changes: str
    accepted: bool
    waiting: tuple[str, ...] = ()
    """Changes that widen, which wait for a person, as sentences."""
    complete: bool = True
    """False if the certificate of the endpoint could not be renewed, although the configuration is valid."""

    @property
    def failed(self) -> bool:
        """Whether something in the files is wrong and did not take effect."""
        return not (self.accepted and self.complete)

    @property
    def severity(self) -> Severity:
        return Severity.ERROR if self.failed else Severity.WARNING if self.waiting else Severity.INFO

    def __str__(self) -> str:
        if not self.accepted:
            return f"configuration kept: {self.changes}"
        waits = f"; waits for a person (colonnade reload): {', '.join(self.waiting)}" if self.waiting else ""
        return f"configuration read again: {self.changes}{waits}"


class RuleUnused(Event, frozen=True):
    """A rule of consent matches nothing that its server offers."""

    part: ClassVar = "consent"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.server}: the rule {self.rule} matches nothing that it offers"
    server: str
    rule: str


class ConsoleFailed(Event, frozen=True):
    """The web console could not be opened; all else goes on."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.ERROR
    text: ClassVar = "there is no web console: {self.why}"
    why: str


class MetricsFailed(Event, frozen=True):
    """The address of the metrics could not be had; all else goes on."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.ERROR
    text: ClassVar = "there are no metrics: {self.why}"
    why: str


class NoticeFailed(Event, frozen=True):
    """People could not be told that a call waits. `way`: the entry of the configuration. Later failures are not told
    until it has worked again."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.way}: nobody could be told what waits: {self.why}"
    way: str
    why: str


class SessionsNotStored(Event, frozen=True):
    """What outlives the process of sessions over HTTP could not be stored; they are served all the same. Later failures
    are not told until it has worked again."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "new sessions would end with this process: {self.why}"
    why: str


class AttemptRefused(Event, frozen=True):
    """Somebody asked for something in vain. `count`: how often within a minute."""

    part: ClassVar = "calls"
    server: str
    attempt: Attempt
    count: int = 1

    @property
    def severity(self) -> Severity:
        # Names are mistyped every day.
        return Severity.INFO if self.attempt.reason is Reason.MISSING else Severity.WARNING

    def __str__(self) -> str:
        each = self.attempt
        server = f"{self.server}: " if self.server else ""
        client = f" to {excerpt(each.client or each.principal)}" if each.client or each.principal else ""
        address = f" from {each.address}" if each.address else ""
        times = f", {self.count} times within a minute" if self.count > 1 else ""
        return f"{server}{each.kind} {excerpt(each.name)} refused{client}{address}: {SENTENCES[each.reason]}{times}"


class AttemptsUnnamed(Event, frozen=True):
    """More was asked for in vain within a minute than is kept by name."""

    part: ClassVar = "calls"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "{self.count} more refused attempts within a minute, whose names are not kept"
    count: int


class DecisionRefused(Event, frozen=True):
    """A local process that may not decide wanted to."""

    part: ClassVar = "consent"
    severity: ClassVar = Severity.WARNING
    text: ClassVar = "process {self.process} was refused at the admin socket: {self.why}"
    process: str
    """Its name, escaped, and its id."""
    why: str


class OutputLine(Event, frozen=True):
    """A server wrote a line to its standard error, or one that is no message to its standard output."""

    part: ClassVar = "output"
    text: ClassVar = "{self.server}: {self.stream}: {self.line}"
    server: str
    line: str
    stream: Literal["stderr", "stdout"] = "stderr"


class InternalError(Event, frozen=True):
    """Colonnade itself made a mistake while it answered a request."""

    part: ClassVar = "host"
    severity: ClassVar = Severity.ERROR
    text: ClassVar = "{self.where}: internal error: {self.problem!r}"
    where: str
    problem: BaseException
    caller: str = ""
    """Empty if it was no request of a client."""
    trace_id: str = ""
    """See `Answering`."""


class Hop(NamedTuple):
    """The facts of a connection to a peer, for whoever watches requests; empty where they are not known.

    Attributes:
        revision: The name of the protocol revision, one that Colonnade knows.
        transport: As OpenTelemetry names it.
    """

    revision: str = ""
    transport: Literal["tcp", "pipe", ""] = ""


UNKNOWN_HOP = Hop()


class Answering(Protocol):
    """A request of a client, or of a server, while it is answered here."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hexadecimal digits; empty if there is none."""

    def on_wait(self, what: str, seconds: float) -> None:
        """It has waited for this; see `waiting`."""

    def end(self, answer: Success | Failure | None) -> None:
        """It is answered with this; None if it was called off."""


class Asking(Answering, Protocol):
    """A request of a server to a client, from its arrival to the answer that its server gets."""

    def sent(self, params: dict[str, Raw]) -> dict[str, Raw]:
        """It is sent to its client now; the params with which it is."""


class Observer(Protocol):
    """Watches requests: metrics, traces. It does not wait by itself."""

    @property
    def received(self) -> Callable[[ParsedInput, Headers], None] | None:
        """Takes each message that came over HTTP, and the headers of its request; None if they do not matter."""

    def answering(self, request: Request, hop: Hop = UNKNOWN_HOP) -> Answering:
        """Called when the request is about to be answered. `hop`: to its client."""

    def sending(self, spec: ServerSpec, peer: Peer[Any], send: SendRequest) -> SendRequest:
        """A function that sends requests to this server, watched; `send` does it unwatched, over this peer. It is
        `send` itself where only the end of requests matters, which the peer tells (`Peer.watch`)."""

    def asking(
        self, server: str, revision: str, method: str, params: Mapping[str, Raw], id: Id | None, during: Request | None
    ) -> Asking:
        """Called when a server's request for a client is about to be admitted.

        Args:
            revision: that of the server's connection.
            params: as the server wrote them.
            id: None if it is part of a result.
            during: the request of the client in which it belongs; None if in none.
        """


def observed_of(request: Request) -> Answering | None:
    """The request as it is observed; None if it is not."""
    found: Answering | None = request.__dict__.get(OBSERVED)
    return found


def trace_id_of(observed: Answering | None) -> str:
    return "" if observed is None else observed.trace_id


@contextmanager
def waiting(observed: Answering | None, what: Literal["person", "slot", "server"]) -> Iterator[None]:
    """For the block, a request waits for this. Not for what most requests pass without waiting."""
    began = trio.current_time()
    try:
        yield
    finally:
        if observed is not None:
            observed.on_wait(what, trio.current_time() - began)


class OutputRecord(NamedTuple):
    """A line of output, or of Colonnade on what a sandbox refused, at Unix time `t`. Numbers grow from line to line,
    for all servers together."""

    number: int
    t: float
    line: str
    stream: Literal["stderr", "stdout", "sandbox"]


class Journal:
    """The one place where events go. Keeps the last lines of each server's output.

    Attributes:
        dropped: counts of what was dropped, by server and reason.
        means: those that confine the program that a server started last.
        observer: watches the requests; None: nothing does, and a request makes no step more.
    """

    def __init__(self) -> None:
        self.observer: Observer | None = None
        self._readers: list[tuple[Callable[[Any], None], tuple[type, ...]]] = []
        self._readers_of: dict[type, list[Callable[[Any], None]]] = {}
        self.dropped: dict[str, Counter[str]] = {}
        self.means: dict[str, str] = {}
        self._output: dict[str, deque[OutputRecord]] = {}
        self.last_output = 0
        """The number of the last line of any server."""
        self.subscribe(self._count_dropped, MessageDropped)
        self.subscribe(self._keep_line, OutputLine, SandboxRefused)
        self.subscribe(self._keep_means, ServerConfined)

    def unobserved(self) -> Journal:
        """The same journal, for requests that are our own."""
        found = copy(self)
        found.observer = None
        return found

    def subscribe(self, reader: Callable[[Any], None], *kinds: type) -> None:
        """`reader` is called for every event of these kinds (without any: for all) from now on; it must not wait and
        must not raise."""
        self._readers.append((reader, kinds))
        self._readers_of.clear()

    def note(self, event: Event) -> None:
        kind = type(event)
        if kind not in self._readers_of:
            self._readers_of[kind] = [reader for reader, kinds in self._readers if kind in (kinds or (kind,))]
        for reader in self._readers_of[kind]:
            reader(event)

    def _count_dropped(self, event: MessageDropped) -> None:
        self.dropped.setdefault(event.server, Counter())[event.what] += 1

    def _keep_line(self, event: OutputLine | SandboxRefused) -> None:
        self.last_output += 1
        record = OutputRecord(self.last_output, time.time(), event.line, event.stream)
        self._output.setdefault(event.server, deque(maxlen=MAX_OUTPUT_LINES)).append(record)

    def _keep_means(self, event: ServerConfined) -> None:
        self.means[event.server] = event.means

    def output(self, server: str, after: int = 0) -> list[OutputRecord]:
        """The last lines that a server wrote to its standard error, those on its standard output that are no messages,
        and those on what its sandbox refused: at most MAX_OUTPUT_LINES, oldest first, whose number is greater than
        `after`."""
        return [record for record in self._output.get(server, ()) if record.number > after]


def runs_unconfined(server: str) -> str:
    """The choice of a person about a program that runs as before (`host.policy.confinement`)."""
    return (
        "it is not trusted, yet its program runs as you, unconfined, since it did so before such programs were "
        f"confined: choose colonnade sandbox {server} strict, or off, or write sandbox (docs/sandbox.md)"
    )


def slow_reading(interval: float) -> str:
    """How often the changing lists of a server are read, and why not at each change."""
    every = f"{max(interval, 1.0):.0f} s"
    return f"its lists are read every {every} only, because they change often and take long to compare"


def excerpt(text: str | bytes) -> str:
    """A short piece of foreign text, escaped, for a person to recognise."""
    if isinstance(text, bytes):
        text = text[: EXCERPT_LENGTH * 4].decode(errors="replace")
    cut = text if len(text) <= EXCERPT_LENGTH else text[:EXCERPT_LENGTH] + "..."
    return ascii(cut)[1:-1]
