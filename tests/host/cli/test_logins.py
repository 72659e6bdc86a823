"""Logins from the terminal: rows, the pasted answer, and the issuer that a person has to accept."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import msgspec
import pytest
import trio

from config import Config, load
from host.audit.read import records
from host.audit.writer import Audit
from host.cli.exit_codes import CommandFailed
from host.cli.logins import Logins
from host.errors import AuditUnavailable
from host.storage.directory import State, open_state
from host.storage.sqlite import open_store
from host.storage.store import CredentialKey
from host.upstream import open_logins
from host.upstream.vault import Login, open_vault
from tests.host.upstream.test_vault import LOGIN
from tests.kit.awaited import awaited
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer
from tests.kit.logins import login

NOTES = CredentialKey("notes")


@contextmanager
def issuers(count: int = 1) -> Iterator[list[Issuer]]:
    """Issuers in a thread of their own: a command runs its own event loop."""
    found: list[Issuer] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:

            async def one(task_status: trio.TaskStatus[Issuer] = trio.TASK_STATUS_IGNORED) -> None:
                async with open_issuer() as issuer:
                    task_status.started(issuer)
                    await trio.sleep_forever()

            for _ in range(count):
                found.append(await nursery.start(one))
            started.set()
            while not stop.is_set():  # noqa: ASYNC110 - another thread says so
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert started.wait(5)
    try:
        yield found
    finally:
        stop.set()
        thread.join()


class Home:
    """A configuration with a server at an issuer, and its state."""

    def __init__(self, folder: Path, url: str, oauth: str = "{}") -> None:
        file = folder / "colonnade.yaml"
        file.write_text(f"servers: {{notes: {{url: '{url}', oauth: {oauth}}}}}\n")
        self.config: Config = load(file)
        self.state: State = open_state(folder / "state")

    def store(self, stored: Login) -> None:
        sealed = open_vault(self.state, {}).close(NOTES, stored)
        with open_store(self.state, self.config.source) as store:
            awaited(store.write(lambda transaction: transaction.put_credential(NOTES, sealed)))

    def present(self) -> Login | None:
        with open_store(self.state, self.config.source) as store:
            stored = awaited(store.read_credentials()).get(NOTES)
        return None if stored is None else open_vault(self.state, {}).open(NOTES, stored)

    def log_in(self, *, accept: bool = False) -> None:
        with Logins.open(self.state, self.config) as logins:
            logins.log_in("notes", accept_other_issuer=accept)

    def log_out(self) -> None:
        with Logins.open(self.state, self.config) as logins:
            logins.log_out("notes")

    def recorded(self, kind: str) -> list[dict[str, Any]]:
        """The records of this kind, without what each record has."""
        names = ("server", "issuer", "resource", "scopes", "revoked", "by")
        found: list[dict[str, Any]] = list(records(self.state.audit, kind=kind))
        assert [each["peer"]["pid"] for each in found] == [os.getpid()] * len(found)
        return [{name: each[name] for name in names if name in each} for each in found]

    def has_in_audit(self, text: str) -> bool:
        return any(text.encode() in file.read_bytes() for file in self.state.audit.glob("*.jsonl"))


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLONNADE_KEY", raising=False)


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[str], str]], list[str]]]:
    """Has somebody type what the function makes of the issuer's link; the lines that were printed so far."""
    read, write = os.pipe()
    stdin = os.fdopen(read)
    monkeypatch.setattr(sys, "stdin", stdin)

    def types(answer: Callable[[str], str]) -> list[str]:
        printed: list[str] = []

        def see(*words: Any, **_: Any) -> None:
            printed.append(" ".join(map(str, words)))
            if "/authorize?" in printed[-1]:
                os.write(write, f"{answer(printed[-1].strip())}\n".encode())

        monkeypatch.setattr("builtins.print", see)
        return printed

    yield types
    os.close(write)
    stdin.close()


def answer_to(link: str, **more: str) -> str:
    """The address at which a browser ends."""
    query = parse_qs(urlsplit(link).query)
    return f"{query['redirect_uri'][0]}?{urlencode({'code': 'c', 'state': query['state'][0], **more})}"


Typing = Callable[[Callable[[str], str]], list[str]]


def test_a_pasted_address_ends_the_login(tmp_path: Path, typing: Typing) -> None:
    with issuers() as (issuer,):
        issuer.tokens = [{"access_token": "t0ken-1", "refresh_token": "r3fresh-1"}]
        home = Home(tmp_path, issuer.url)
        printed = typing(answer_to)
        home.log_in()
        stored = home.present()
        assert stored is not None
        assert (stored.access_token, stored.issuer) == ("t0ken-1", issuer.id)
        text = "\n".join(printed)
        for shown in (issuer.id, f"resource:  {issuer.url}", "redirect:  http://127.0.0.1:"):
            assert shown in text
        assert not [secret for secret in stored.secrets() if secret in text or home.has_in_audit(secret)]
        facts = {"server": "notes", "issuer": issuer.id, "resource": issuer.url, "scopes": [], "by": "terminal"}
        assert home.recorded("login") == [facts]


def test_a_login_that_cannot_be_recorded_is_not_stored(
    tmp_path: Path, typing: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise AuditUnavailable("the audit log cannot be written (no space)")

    with issuers() as (issuer,):
        issuer.tokens = [{"access_token": "t"}]
        home = Home(tmp_path, issuer.url)
        typing(answer_to)
        monkeypatch.setattr(Audit, "write_form", fail)
        with pytest.raises(CommandFailed, match="the audit log cannot be written"):
            home.log_in()
        assert home.present() is None


def test_a_login_page_at_another_place_is_shown(tmp_path: Path, typing: Typing) -> None:
    """A hostile issuer leads to the page of an honest one, and would get its code."""
    with issuers(2) as (evil, honest):
        metadata = evil.documents[ISSUER_METADATA]
        metadata["authorization_endpoint"] = honest.documents[ISSUER_METADATA]["authorization_endpoint"]
        printed = typing(lambda link: answer_to(link, iss=honest.id))
        with pytest.raises(CommandFailed, match="of another issuer than the one that was asked"):
            Home(tmp_path, evil.url).log_in()
        assert f"  page:      {honest.id}" in printed
        assert not evil.paths("/token"), "an honest issuer that names itself is what ends it"


def test_a_wrong_line_is_refused_and_the_next_one_counts(tmp_path: Path, typing: Typing) -> None:
    with issuers() as (issuer,):
        issuer.tokens = [{"access_token": "t"}]
        home = Home(tmp_path, issuer.url)
        printed = typing(lambda link: f"what?\n\nhttp://127.0.0.1/?code=c&state=guess\n{answer_to(link)}")
        home.log_in()
        assert home.present() is not None
        refused = "colonnade: this is not the address of this login; paste here the address at which the browser ended:"
        assert [line for line in printed if line.startswith("colonnade: ")] == [refused] * 2
        assert sum(line.startswith("Then paste here the address") for line in printed) == 1


def test_notices_are_shown_with_what_the_login_is_for(tmp_path: Path, typing: Typing) -> None:
    with issuers() as (issuer,):
        issuer.tokens = [{"access_token": "t"}]
        home = Home(tmp_path, issuer.url, oauth="{client_id: mine}")
        printed = typing(answer_to)
        home.log_in()
        (notice,) = (at for at, line in enumerate(printed) if "must permit the redirect" in line)
        assert notice < next(at for at, line in enumerate(printed) if "/authorize?" in line)


def test_a_denied_login_changes_nothing(tmp_path: Path, typing: Typing) -> None:
    with issuers() as (issuer,):
        home = Home(tmp_path, issuer.url)
        printed = typing(lambda link: answer_to(link, error="access_denied", error_description="ask\x1b[2J Ada"))
        with pytest.raises(CommandFailed, match='the login was denied; the issuer says: "ask Ada"'):
            home.log_in()
        assert not [line for line in printed if "denied" in line], "the command says it once, at its end"
        assert home.present() is None
        assert home.recorded("login") == []
        assert not issuer.paths("/token")


def test_another_issuer_needs_a_person(tmp_path: Path, typing: Typing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server names another one than at the last login: it is asked for its metadata, and for nothing else before a
    person accepts it. Also if the last login cannot be read any more."""
    with issuers(2) as (issuer, evil):
        home = Home(tmp_path, issuer.url)
        former = login(issuer)
        home.store(former)
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [evil.id]
        printed = typing(answer_to)
        for environ in ({}, {"COLONNADE_KEY": "k" * 32}):
            with monkeypatch.context() as patched:
                patched.setattr(os, "environ", {**os.environ, **environ})
                with pytest.raises(CommandFailed, match="nothing was changed"):
                    home.log_in()
            assert printed.pop() == f"\nThe last login was at another issuer: {issuer.id}"
            assert not [line for line in printed if "/authorize?" in line]
            assert {each.path for each in evil.asked} == {ISSUER_METADATA}
        assert home.present() == former
        evil.tokens = [{"access_token": "new"}]
        home.log_in(accept=True)
        stored = home.present()
        assert stored is not None
        assert stored.issuer == evil.id


def test_a_login_needs_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser may bring the answer, also where the command was started without one."""
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(open_logins, "TIME_LIMIT", 0.2)
    with issuers() as (issuer,):
        home = Home(tmp_path, issuer.url)
        with pytest.raises(CommandFailed, match="nobody logged in within"):
            home.log_in()
        home.store(login(issuer, issuer="https://former.example"))
        with pytest.raises(CommandFailed, match="--yes accepts the new issuer"):
            home.log_in()


def test_a_logout_forgets_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with issuers() as (issuer,):
        home = Home(tmp_path, issuer.url)
        home.store(login(issuer))
        home.log_out()
        assert home.present() is None
        assert [each.form["token"] for each in issuer.paths("/revoke")] == ["refresh-1", "access-1"]
        assert f"{issuer.id} has revoked the login" in capsys.readouterr().out
        facts = {"server": "notes", "issuer": issuer.id, "resource": issuer.url, "scopes": ["a"], "by": "terminal"}
        assert home.recorded("logout") == [{**facts, "revoked": "yes"}]
        assert not home.has_in_audit("access-1")


@pytest.mark.parametrize(
    ("change", "said"),
    [({"revocation_endpoint": None}, "has no way to revoke a login"), ({}, "may still be valid at")],
)
def test_a_logout_says_what_the_issuer_did_not_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, None], said: str
) -> None:
    with issuers() as (issuer,):
        issuer.documents["/revoke"] = (503, {}, b"")
        home = Home(tmp_path, issuer.url)
        home.store(login(issuer, **change))
        home.log_out()
        assert home.present() is None
        assert said in capsys.readouterr().out
        assert [each["revoked"] for each in home.recorded("logout")] == ["no"]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "logged in, refreshed by itself"),
        ({"refresh_token": None}, "logged in, until it expires"),
        ({"refresh_token": None, "expires": None}, "logged in"),
        ({"refresh_token": None, "access_token": None}, "needs login: colonnade login notes"),
        (
            {"refresh_token": None, "access_token": None, "ended": "the issuer said no"},
            "needs login, because the issuer said no: colonnade login notes",
        ),
        (
            {"access_token": None, "ended": "the issuer said no", "said": 'the issuer says: "x"'},
            'needs login, because the issuer said no: colonnade login notes; the issuer says: "x"',
        ),
    ],
)
def test_a_row_says_how_a_login_is(tmp_path: Path, change: dict[str, Any], state: str) -> None:
    home = Home(tmp_path, "https://mcp.example/mcp")
    home.store(msgspec.structs.replace(LOGIN, **change))
    with Logins.open(home.state, home.config) as logins:
        (row,) = logins.rows()
    assert row["state"] == state


def test_a_server_without_a_person_gets_its_token_by_itself(tmp_path: Path) -> None:
    home = Home(tmp_path, LOGIN.resource, oauth="{grant: client_credentials, client_id: c, client_secret: s}")
    home.store(msgspec.structs.replace(LOGIN, refresh_token=None))
    with Logins.open(home.state, home.config) as logins:
        (row,) = logins.rows()
    assert row["state"] == "gets its token by itself"


def test_a_port_that_is_taken_is_named_with_its_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        home = Home(tmp_path, LOGIN.resource, oauth=f"{{redirect_port: {port}}}")
        with pytest.raises(CommandFailed, match=rf"^cannot listen on 127\.0\.0\.1 port {port}: .*oauth\.redirect_port"):
            home.log_in()


def test_a_row_that_cannot_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path, "https://mcp.example/mcp")
    home.store(LOGIN)
    monkeypatch.setenv("COLONNADE_KEY", "k" * 32)
    with Logins.open(home.state, home.config) as logins:
        (row,) = logins.rows()
    assert "cannot be read with the present key" in row["state"]
    assert row["issuer"] == LOGIN.issuer
    home.log_out()
    assert home.present() is None
