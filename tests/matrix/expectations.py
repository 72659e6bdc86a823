"""The expected result of every cell of the matrix, as a pure function of the two revisions and the feature. Transports
make no difference, which is the claim that the run holds up.

Sources are the revisions' own pages: the changelogs of 2025-03-26, 2025-06-18, 2025-11-25 and 2026-07-28 say what each
has added and taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

REVISIONS = (R24, R25A, R25B, R25C, R26) = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
"""All have a handshake but the last, which is stateless."""

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602


BOTH_ERAS = "both"
"""In the place of a transport: a server at a URL that speaks 2025-11-25 with a handshake and 2026-07-28 without."""


def transports(revision: str) -> tuple[str, ...]:
    """Those of a revision: HTTP+SSE has none without a handshake."""
    return ("stdio", "http") if revision == R26 else ("stdio", "http", "sse")


class Feature(Enum):
    CALL = "call"
    READ = "read"
    GET = "get"
    COMPLETE = "complete"
    PROGRESS = "progress"
    CANCEL = "cancel"
    LIST_CHANGED = "list_changed"
    SUBSCRIBE = "subscribe"
    LOG = "log"
    SAMPLING = "sampling"
    FORM = "elicitation form"
    URL = "elicitation URL"
    ROOTS = "roots"
    TASK = "task"
    TASK_TOOL = "task tool"


class Verdict(Enum):
    WORKS = "W"
    TRANSLATED = "T"
    IMPOSSIBLE = "I"


class Note(Enum):
    """Why a cell is not simply "works"; the order is that of the numbers in the table."""

    AUDIO = (
        "audio content exists since 2025-03-26 (Changelog): the block becomes an embedded resource with the same bytes"
    )
    LINKS = (
        "blocks of type resource_link and structuredContent exist since 2025-06-18 (Changelog): the link becomes "
        "text; structured content and its outputSchema are left out, and the text of the result stays"
    )
    CHOICES = (
        "titled choices, multiple choice, and defaults of text, numbers and choices exist since 2025-11-25 "
        "(Elicitation / Requested Schema): titles become enumNames, defaults are left out, and a multiple choice "
        "is refused to the server with -32602"
    )
    SAMPLING_AUDIO = (
        "a message with audio is refused to the server with -32602, because 2024-11-05 has no audio (2025-03-26, "
        "Changelog)"
    )
    SAMPLING_TOOLS = (
        "a sampling request with tools is refused to the server with -32602: sampling.tools exists since "
        "2025-11-25 (Sampling / Capabilities)"
    )
    CLIENT_FORM = (
        "the client's revision has no elicitation, which exists since 2025-06-18 (Changelog): the request is "
        "refused to the server with -32601"
    )
    CLIENT_URL = (
        "the client's revision has no URL mode, which exists since 2025-11-25 (Elicitation / Capabilities): the "
        "request is refused to the server, with -32602 if the client has elicitation at all, else -32601; an "
        "error -32042 becomes the text of a failed call, with the address in it"
    )
    SERVER_FORM = (
        "the server's revision has no elicitation, which exists since 2025-06-18 (Changelog): if it asks "
        "nevertheless, it is refused with -32601"
    )
    SERVER_URL = (
        "the server's revision has no URL mode, which exists since 2025-11-25 (Elicitation / Capabilities): if it "
        "asks nevertheless, it is refused, with -32602 if it has elicitation at all, else -32601"
    )
    FREE_STRUCTURE = (
        "structured content that is not an object, and an outputSchema of such, exist since 2026-07-28 "
        "(Changelog): both are left out, and the text of the result stays"
    )
    LISTENING_CLIENT = (
        "the client requests notifications with subscriptions/listen, which exists since 2026-07-28 (Changelog); "
        "the server has resources/subscribe, and sends change notifications unasked"
    )
    LISTENED_SERVER = (
        "the server sends change notifications only on request by subscriptions/listen, which exists since "
        "2026-07-28 (Changelog); the client has resources/subscribe, and gets change notifications unasked"
    )
    LEVEL_OF_REQUEST = (
        "the client sets the level of log messages in each request, since 2026-07-28 (Changelog); the server has "
        "logging/setLevel"
    )
    LEVEL_OF_SESSION = (
        "the server sends log messages only for requests that set a level, since 2026-07-28 (Changelog); the "
        "client has logging/setLevel"
    )
    ASKED_IN_ROUNDS = (
        "the server sends its request in the middle of a call; since 2026-07-28 (Multi Round-Trip Requests) the "
        "client gets it in a result of type input_required, and answers by repeating its call"
    )
    ASKS_IN_ROUNDS = (
        "the server sends its requests in results of type input_required, since 2026-07-28 (Multi Round-Trip "
        "Requests); the client gets them in the middle of its call, which is repeated on its behalf"
    )
    LACKS_ABILITY = (
        "a capability that the client's revision does not have is not declared to a server of 2026-07-28, which "
        "responds with -32021 to a call that needs it (Error Codes): the client gets -32603 with "
        "data.requiredCapabilities"
    )
    UNFIT = (
        "a server of 2026-07-28 cannot be told that its request is refused: if the client's revision cannot "
        "express the request, the call fails"
    )
    URL_ID = (
        "since 2026-07-28 (Changelog) a URL has no elicitationId, no notification of its completion, and no error "
        "-32042: the id is left out or created, and the error becomes a server request"
    )
    TASK_DIALECTS = (
        "tasks of 2025-11-25 are requested by the client (Tasks); those of 2026-07-28 are an extension "
        "(io.modelcontextprotocol/tasks) in which the server decides: each side uses its own"
    )
    CLIENT_TASKS = (
        "the client's revision has no tasks, which exist since 2025-11-25 (Changelog): it gets the plain result"
    )
    SERVER_TASKS = (
        "the server's revision has no tasks, which exist since 2025-11-25 (Changelog): the client gets the plain "
        "result, and no tool requires a task"
    )
    DRIVEN = (
        "the client calls a tool that requires a task, but without a task: Colonnade runs the task and returns its "
        "result"
    )

    @property
    def number(self) -> int:
        return list(Note).index(self) + 1


@dataclass(frozen=True)
class Cell:
    """One client, one server, one feature. Revisions are their dates, which sort as they came."""

    client: str
    client_transport: str
    server: str
    server_transport: str
    feature: Feature

    def __str__(self) -> str:
        return (
            f"{self.feature.value}: client {self.client} over {self.client_transport}, "
            f"server {self.server} over {self.server_transport}"
        )


@dataclass(frozen=True)
class Expected:
    verdict: Verdict
    notes: tuple[Note, ...] = ()

    def __str__(self) -> str:
        return self.verdict.value + ",".join(map(str, sorted(note.number for note in self.notes)))


WORKS = Expected(Verdict.WORKS)


def expected(cell: Cell) -> Expected:
    """The verdict on the cell, and why."""
    judge = _EXPECTATIONS.get(cell.feature)
    return judge(cell.client, cell.server) if judge else WORKS


def _call(client: str, server: str) -> Expected:
    return _content(client, server, (Note.FREE_STRUCTURE, R26))


def _content(client: str, server: str, *more: tuple[Note, str]) -> Expected:
    lost = [
        note
        for note, since in ((Note.AUDIO, R25A), (Note.LINKS, R25B), *more)
        if has(server, since) and not has(client, since)
    ]
    return Expected(Verdict.TRANSLATED, tuple(lost)) if lost else WORKS


def _between(client_is_stateless: Note, server_is_stateless: Note, *, more: tuple[Note, ...] = ()) -> _Expectation:
    """Translated wherever one side alone is stateless, for one reason or the other."""

    def expect(client: str, server: str) -> Expected:
        if is_stateless(client) == is_stateless(server):
            return Expected(Verdict.WORKS, more)
        return Expected(
            Verdict.TRANSLATED, (client_is_stateless if is_stateless(client) else server_is_stateless, *more)
        )

    return expect


_watching = _between(Note.LISTENING_CLIENT, Note.LISTENED_SERVER)
_logging = _between(Note.LEVEL_OF_REQUEST, Note.LEVEL_OF_SESSION)


def _asking(client: str, server: str, *more: Note) -> Expected:
    return _between(Note.ASKED_IN_ROUNDS, Note.ASKS_IN_ROUNDS, more=more)(client, server)


def _sampling(client: str, server: str) -> Expected:
    """Works everywhere; what some of its content may be is another matter."""
    if is_stateless(server):
        refusals = ((Note.UNFIT, R25A), (Note.LACKS_ABILITY, R25C))
    else:
        refusals = ((Note.SAMPLING_AUDIO, R25A), (Note.SAMPLING_TOOLS, R25C))
    refused = [note for note, since in refusals if has(server, since) and not has(client, since)]
    return _asking(client, server, *refused)


def _form(client: str, server: str) -> Expected:
    if not has(server, R25B):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_FORM,))
    if not has(client, R25B):
        return Expected(Verdict.IMPOSSIBLE, (Note.LACKS_ABILITY if is_stateless(server) else Note.CLIENT_FORM,))
    if has(client, R25C) or not has(server, R25C):
        return _asking(client, server)
    if is_stateless(server):
        return _asking(client, server, Note.CHOICES, Note.UNFIT)
    return Expected(Verdict.TRANSLATED, (Note.CHOICES,))


def _url(client: str, server: str) -> Expected:
    if not has(server, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_URL,))
    if not has(client, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.LACKS_ABILITY if is_stateless(server) else Note.CLIENT_URL,))
    return WORKS if client == server else _asking(client, server, Note.URL_ID)


def _task(client: str, server: str) -> Expected:
    if not has(client, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.CLIENT_TASKS,))
    if not has(server, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_TASKS,))
    return WORKS if client == server else Expected(Verdict.TRANSLATED, (Note.TASK_DIALECTS,))


def _task_tool(client: str, server: str) -> Expected:
    if not has(server, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_TASKS,))
    return Expected(Verdict.TRANSLATED, (Note.DRIVEN,))


_Expectation = Callable[[str, str], Expected]
_EXPECTATIONS: dict[Feature, _Expectation] = {
    Feature.CALL: _call,
    Feature.GET: _content,
    Feature.LIST_CHANGED: _watching,
    Feature.SUBSCRIBE: _watching,
    Feature.LOG: _logging,
    Feature.SAMPLING: _sampling,
    Feature.FORM: _form,
    Feature.URL: _url,
    Feature.ROOTS: _asking,
    Feature.TASK: _task,
    Feature.TASK_TOOL: _task_tool,
}
"""Those of the features that do not simply work everywhere."""


def refusal(cell: Cell) -> int:
    """The error that a server gets in an impossible cell: -32601 where elicitation does not exist at all, -32602 where
    only this mode of it does not. What its own revision lacks comes first."""
    lacking = cell.client if expected(cell).notes[0] in (Note.CLIENT_FORM, Note.CLIENT_URL) else cell.server
    return INVALID_PARAMS if has(lacking, R25B) else METHOD_NOT_FOUND


def has(revision: str, since: str) -> bool:
    """Whether a revision has what another one has brought."""
    return revision >= since


def is_stateless(revision: str) -> bool:
    return has(revision, R26)


def places() -> list[tuple[str, str]]:
    """Every revision over every transport that it has, in the order of the table."""
    return [(revision, transport) for revision in REVISIONS for transport in transports(revision)]


def in_era_of(client: str) -> str:
    """The revision that a server of both eras speaks with a client."""
    return R26 if is_stateless(client) else R25C


def cells() -> Iterator[Cell]:
    """All of them, in the order of the table."""
    for feature, client in product(Feature, places()):
        for server in [*places(), (in_era_of(client[0]), BOTH_ERAS)]:
            yield Cell(*client, *server, feature)
