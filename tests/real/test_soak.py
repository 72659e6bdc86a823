"""A short run of what `make soak` does for minutes, and accounts that it must not be content with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .soak import Book, Call, Entry, play

SECRETS = {"web": "1" * 16, "own": "2" * 16, "pipe": "3" * 16}


def test_questions_find_the_one_client_they_are_meant_for(tmp_path: Path) -> None:
    """Three clients, questions over a shared HTTP connection, dedicated processes and a shared process, calls that are
    cancelled and streams that are resumed (rule 71)."""
    book = play(200, 1, tmp_path)
    assert book.verdict() == [], f"{book.details()}; {book.summary()}"
    assert book.count["cancelled"] > 0
    assert book.count["resumed"] > 0
    assert book.count["turned down"] > 0


def asked(book: Book, server: str, number: int, answer: str | None = "1") -> list[Entry]:
    """A question that its client gets (with an answer) or does not, and how the server's ledger has it. Every outcome
    carries the secret, as clients' answers do; a refusal of the host's carries none."""
    nonce = SECRETS[server]
    text = f"{nonce}/{number}"
    if answer is None:
        return [Entry(server, "asked", nonce, number, "form"), Entry(server, "got", nonce, number, "-32602 not now")]
    known = book.question("alice", text, book.calls[nonce])
    assert known is not None
    outcome = known[0].answers[number] = f"{text}: {answer}"
    return [Entry(server, "asked", nonce, number, "form"), Entry(server, "got", nonce, number, outcome)]


def sound() -> tuple[Book, list[Entry]]:
    """Accounts with which nothing is wrong: two questions of each server are delivered, and one of `pipe` is not."""
    book = Book()
    for id, (server, nonce) in enumerate(SECRETS.items()):
        book.begin(Call("alice", server, nonce, id))
    ledger = [entry for server in SECRETS for number in range(2) for entry in asked(book, server, number)]
    return book, [*ledger, *asked(book, "pipe", 2, None)]


def nothing_asked(book: Book, ledger: list[Entry]) -> None:
    ledger.clear()


def never_a_doubt(book: Book, ledger: list[Entry]) -> None:
    del ledger[-2:]


def lost(book: Book, ledger: list[Entry]) -> None:
    ledger += asked(book, "own", 2, None)


def doubled(book: Book, ledger: list[Entry]) -> None:
    book.question("alice", f"{SECRETS['web']}/1", book.calls[SECRETS["web"]])


def at_a_wrong_client(book: Book, ledger: list[Entry]) -> None:
    book.question("bob", f"{SECRETS['web']}/2", None)


def at_a_wrong_client_over_pipe(book: Book, ledger: list[Entry]) -> None:
    book.question("bob", f"{SECRETS['pipe']}/2", None)


def on_a_wrong_stream(book: Book, ledger: list[Entry]) -> None:
    book.question("alice", f"{SECRETS['web']}/2", book.calls[SECRETS["own"]])


def never_asked_by_anybody(book: Book, ledger: list[Entry]) -> None:
    book.question("alice", f"{'4' * 16}/0", None)


def answered_by_another(book: Book, ledger: list[Entry]) -> None:
    book.calls[SECRETS["pipe"]].answers[1] = "something else"


def another_instance(book: Book, ledger: list[Entry]) -> None:
    shown = {"nonce": SECRETS["own"], "answers": {}, "pid": 1, "served": 1, "first": "bob", "roots": None}
    book.result(book.calls[SECRETS["own"]], shown)


def another_ones_roots(book: Book, ledger: list[Entry]) -> None:
    shown = {"nonce": SECRETS["own"], "answers": {}, "pid": 1, "served": 1, "first": "alice", "roots": ["file:///bob"]}
    book.result(book.calls[SECRETS["own"]], shown)


def without_a_result(book: Book, ledger: list[Entry]) -> None:
    book.unanswered(book.calls[SECRETS["web"]], "the stream ended without it")


def test_sound_accounts_pass() -> None:
    book, ledger = sound()
    book.close(ledger)
    assert book.verdict() == []
    assert book.summary() == (
        "exchanges: 3; questions: 4 delivered, 0 lost, 0 doubled, 0 at a wrong client;"
        " shared stdio: 2 delivered, 1 refused, 0 at a wrong client"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        nothing_asked,
        never_a_doubt,
        lost,
        doubled,
        at_a_wrong_client,
        at_a_wrong_client_over_pipe,
        on_a_wrong_stream,
        never_asked_by_anybody,
        answered_by_another,
        another_instance,
        another_ones_roots,
        without_a_result,
    ],
)
def test_what_is_wrong_is_found_out(wrong: Callable[[Book, list[Entry]], None]) -> None:
    book, ledger = sound()
    wrong(book, ledger)
    book.close(ledger)
    assert book.verdict() != []


def test_a_question_that_ends_with_its_call_is_not_lost() -> None:
    """Its client called the call off, and the server was told that nobody is left who would answer."""
    book, ledger = sound()
    ledger += asked(book, "own", 2, None)
    book.calls[SECRETS["own"]].cancelled = True
    book.close(ledger)
    assert book.verdict() == []
    assert "0 lost" in book.summary()
