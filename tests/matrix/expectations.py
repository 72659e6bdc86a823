"""What every cell of the matrix should be, as a pure function of the two revisions and the feature. Transports make no
difference, which is the claim that the run holds up.

Sources are the revisions' own pages: the changelogs of 2025-03-26, 2025-06-18 and 2025-11-25 say what each has added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

REVISIONS = (R24, R25A, R25B, R25C) = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
TRANSPORTS = ("stdio", "http", "sse")

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602


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
        "text; structured content and the outputSchema that announces it are left out, their text stays"
    )
    CHOICES = (
        "titled choices, multiple choice and defaults of text, numbers and choices exist since 2025-11-25 "
        "(Elicitation / Requested Schema): titles become enumNames, defaults are left out, a multiple choice is "
        "refused to the server with -32602"
    )
    SAMPLING_AUDIO = (
        "a message of audio is refused to the server with -32602, since 2024-11-05 has no audio (2025-03-26, Changelog)"
    )
    SAMPLING_TOOLS = (
        "a request with tools is refused to the server with -32602: sampling.tools exists since 2025-11-25 "
        "(Sampling / Capabilities)"
    )
    CLIENT_FORM = (
        "the client's revision has no elicitation, which exists since 2025-06-18 (Changelog): refused to the server "
        "with -32601"
    )
    CLIENT_URL = (
        "the client's revision has no URL mode, which exists since 2025-11-25 (Elicitation / Capabilities): refused "
        "to the server, with -32602 where the client has elicitation at all, else -32601; an error -32042 "
        "becomes the text of a failed call, with the address in it"
    )
    SERVER_FORM = (
        "the server's revision has no elicitation, which exists since 2025-06-18 (Changelog): if it asks all the "
        "same, it is refused with -32601"
    )
    SERVER_URL = (
        "the server's revision has no URL mode, which exists since 2025-11-25 (Elicitation / Capabilities): if it "
        "asks all the same, it is refused, with -32602 where it has elicitation at all, else -32601"
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
        return self.verdict.value + ",".join(str(note.number) for note in self.notes)


WORKS = Expected(Verdict.WORKS)


def expected(cell: Cell) -> Expected:
    """The verdict on the cell, and why."""
    if cell.feature in (Feature.CALL, Feature.GET):
        return _content(cell.client, cell.server)
    if cell.feature is Feature.SAMPLING:
        return _sampling(cell.client, cell.server)
    if cell.feature is Feature.FORM:
        return _form(cell.client, cell.server)
    if cell.feature is Feature.URL:
        return _url(cell.client, cell.server)
    return WORKS


def _content(client: str, server: str) -> Expected:
    lost = [
        note
        for note, since in ((Note.AUDIO, R25A), (Note.LINKS, R25B))
        if has(server, since) and not has(client, since)
    ]
    return Expected(Verdict.TRANSLATED, tuple(lost)) if lost else WORKS


def _sampling(client: str, server: str) -> Expected:
    """Works everywhere; what some of its content may be is another matter."""
    refused = [
        note
        for note, since in ((Note.SAMPLING_AUDIO, R25A), (Note.SAMPLING_TOOLS, R25C))
        if has(server, since) and not has(client, since)
    ]
    return Expected(Verdict.WORKS, tuple(refused))


def _form(client: str, server: str) -> Expected:
    if not has(server, R25B):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_FORM,))
    if not has(client, R25B):
        return Expected(Verdict.IMPOSSIBLE, (Note.CLIENT_FORM,))
    if has(server, R25C) and not has(client, R25C):
        return Expected(Verdict.TRANSLATED, (Note.CHOICES,))
    return WORKS


def _url(client: str, server: str) -> Expected:
    if not has(server, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.SERVER_URL,))
    if not has(client, R25C):
        return Expected(Verdict.IMPOSSIBLE, (Note.CLIENT_URL,))
    return WORKS


def refusal(cell: Cell) -> int:
    """The error that a server gets in an impossible cell: -32601 where elicitation does not exist at all, -32602 where
    only this mode of it does not. What its own revision lacks comes first."""
    lacking = cell.client if expected(cell).notes[0] in (Note.CLIENT_FORM, Note.CLIENT_URL) else cell.server
    return INVALID_PARAMS if has(lacking, R25B) else METHOD_NOT_FOUND


def has(revision: str, since: str) -> bool:
    """Whether a revision has what another one has brought."""
    return revision >= since


def cells() -> Iterator[Cell]:
    """All of them, in the order of the table."""
    for feature in Feature:
        for client, client_transport, server, server_transport in product(REVISIONS, TRANSPORTS, REVISIONS, TRANSPORTS):
            yield Cell(client, client_transport, server, server_transport, feature)
