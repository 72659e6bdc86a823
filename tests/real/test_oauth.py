"""Logins at a server of the official SDK behind oidc-provider: the real processes, by the command line.

npm installs the issuer into build/oauth when these tests are run for the first time.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from host.cli.admin_client import find_hosts
from host.oauth.authorization import challenge_of
from tests.host.oauth.test_assertion import EC, pem
from tests.kit.ports import free_port
from tests.kit.stateless import stateless_request
from tests.real.oauth.browser import Browser
from tests.real.oauth.fixtures import Provider, login_command, protected_server, run_colonnade, running_provider
from tests.real.running import BIN, ROOT, Running, beside, serving, until, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the first test may have to install the issuer

AUTHORIZATION = ROOT / "docs" / "authorization.md"

OWN_CLIENT: dict[str, Any] = {
    "client_id": "own",
    "client_secret": "own-s3cret-of-the-client",
    "token_endpoint_auth_method": "client_secret_basic",
    "redirect_uris": [],
    "response_types": [],
    "grant_types": ["client_credentials"],
}


_POINT = EC.public_key().public_numbers()
_NUMBERS = {name: urlsafe_b64encode(n.to_bytes(32, "big")) for name, n in (("x", _POINT.x), ("y", _POINT.y))}
_PUBLIC_KEY = {name: text.rstrip(b"=").decode() for name, text in _NUMBERS.items()}
SIGNING = {
    **OWN_CLIENT,
    "client_id": "signing",
    "token_endpoint_auth_method": "private_key_jwt",
    "jwks": {"keys": [{"kty": "EC", "crv": "P-256", **_PUBLIC_KEY}]},
}
REDIRECT = free_port()
CONFIDENTIAL: dict[str, Any] = {
    "client_id": "confidential",
    "client_secret": "c0nfidential-s3cret-0123456789",
    "token_endpoint_auth_method": "client_secret_post",
    "application_type": "native",
    "redirect_uris": [f"http://127.0.0.1:{REDIRECT}/oauth/callback"],
}

NARROW = {**CONFIDENTIAL, "client_id": "narrow", "scope": "notes"}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider(OWN_CLIENT, CONFIDENTIAL, SIGNING, NARROW) as provider:
        yield provider


@pytest.fixture(scope="module")
def protected(provider: Provider) -> Iterator[str]:
    with protected_server(provider.issuer, "notes") as url:
        yield url


@pytest.fixture
def file(provider: Provider, protected: str, tmp_path: Path) -> Iterator[Path]:
    """A configuration with the protected server."""
    yield write_config(tmp_path, {"notes": {"url": protected}})
    provider.set(lifetime=3600, format="opaque", refresh=True, down=False, delay=0, hold=0)


def log_in(file: Path, options: Sequence[str] = ()) -> str:
    """Log in as a person with a browser does; what the command said."""
    with login_command(file, "notes", *options) as command:
        page = Browser().log_in(command.start_link())
        assert page.status == 200, page
        assert command.end() == 0, command.said
        return command.said


def call_by_command(file: Path) -> str:
    """A call of the command at the running host; what it printed."""
    done = run_colonnade(file, "call", "notes__note", '{"text": "hello"}')
    return (done.stdout + done.stderr).strip()


def call(host: Running) -> str:
    """A call of a client; what came back."""
    with opened(host) as send:
        return send("hello")


def wait_state(host: Running, state: str, server: str = "notes") -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        row = host.status()[server]
        return row if row["state"] == state else None

    row: dict[str, Any] = until(found, f"{server} is {state}: {host.said} {host.errors}")
    return row


def credentials(file: Path) -> list[dict[str, Any]]:
    done = run_colonnade(file, "credentials", "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def expiry(file: Path) -> int:
    """Unix time at which the token of the only login expires."""
    (row,) = credentials(file)
    return calendar.timegm(time.strptime(row["expires"], "%Y-%m-%dT%H:%M:%SZ"))


def test_a_login_makes_the_server_work(file: Path, provider: Provider) -> None:
    with serving(file) as host:
        row = wait_state(host, "needs login")
        says = 'the server says: "error_description: Authentication required, error: invalid_token"'
        assert row["detail"] == f"the server wants a login (HTTP 401): colonnade login notes; {says}"
        until(lambda: host.state_lines("notes", "needs"), "the state is told")
        assert "colonnade login notes" in run_colonnade(file, "list").stdout
        assert "colonnade login notes" in run_colonnade(file, "status").stdout
        assert "the server wants a login (HTTP 401): colonnade login notes" in (answer := call_by_command(file))
        assert "says" not in answer, "a client gets our words only"
        said = log_in(file)
        assert f"issuer:    {provider.issuer}" in said
        assert f"Logged in at {provider.issuer}" in said
        wait_state(host, "ready")
        assert call_by_command(file) == "noted: hello"
        assert len(host.state_lines("notes", "needs")) == 1
        (row,) = credentials(file)
        assert (row["issuer"], row["server"], row["scopes"]) == (provider.issuer, "notes", ["notes"])
    # The next host begins with the login.
    with serving(file, "notes") as host:
        assert call(host) == "noted: hello"
        assert not host.state_lines("notes", "needs")


def documented(block: str, protected: str, issuer: str) -> re.Pattern[str]:
    """The pattern of a block of the page: with the addresses of the test, any numbers, and anything for `…`."""
    text = re.escape(block.replace("https://notes.example/mcp", protected).replace("https://login.example", issuer))
    return re.compile(re.sub(r"\d+", r"\\d+", text).replace("…", ".+"))


def test_the_page_leads_from_a_401_to_the_first_call(
    provider: Provider, protected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of the section, and all that the section shows of it. The host of the test has no terminal, and so
    prints no link to the console, but how to get one."""
    _, _, section = AUTHORIZATION.read_text("utf-8").partition("## From a 401 to the first call\n")
    blocks = iter(re.findall(r"^```(\w+)\n(.*?)^```", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL))

    def next_block(kind: str) -> str:
        found, text = next(blocks)
        assert found == kind, text
        return str(text)

    def shown(line: str = "", instead: str = "") -> re.Pattern[str]:
        """The next block, as a pattern; one of its lines may be another one without a terminal."""
        block = next_block("text")
        assert line in block
        return documented(block.replace(line, instead) if line else block, protected, provider.issuer)

    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    file = tmp_path / "colonnade.yaml"
    written = next_block("yaml").replace("https://notes.example/mcp", protected)
    file.write_text(f'listen: {{address: "127.0.0.1:0"}}\n{written}')

    def command() -> list[str]:
        return shlex.split(next_block("sh"))

    assert command() == ["colonnade", "serve"]
    with serving(file, cwd=tmp_path) as host:
        said = shown(
            "The console is at http://127.0.0.1:8808/console#… (this link opens it once)\n",
            "The console opens with the link that colonnade console prints\n",
        )
        until(lambda: said.fullmatch("".join(f"{line}\n" for line in host.said)), f"{said.pattern} is {host.said}")
        assert command() == ["colonnade", "login", "notes"]
        with login_command(file, "notes") as login:
            Browser().log_in(login.start_link())
            assert login.end() == 0
        assert shown().fullmatch(login.said), login.said
        said = shown()
        until(lambda: said.fullmatch(f"{host.said[-1]}\n"), f"{said.pattern} is {host.said}")
        done = subprocess.run(command(), cwd=tmp_path, env=beside(file), capture_output=True, text=True, timeout=30)
        assert shown().fullmatch(done.stdout), done
    assert list(blocks) == []


def test_an_address_is_pasted_where_there_is_no_browser(file: Path) -> None:
    with login_command(file, "notes") as command:
        command.start_link()
        page = Browser().log_in(command.issuer_link(), until="http://127.0.0.1")
        # The issuer of this test is on loopback as well: go on to the address of the command.
        assert "/oauth/callback?" not in page.url
    with login_command(file, "notes") as command:
        command.start_link()
        link = command.issuer_link()
        redirect = link.partition("redirect_uri=")[2].partition("&")[0].replace("%3A", ":").replace("%2F", "/")
        page = Browser().log_in(link, until=redirect)
        command.paste("what is this?")
        command.paste(page.url)
        assert command.end() == 0, command.said
        assert "this is not the address of this login" in command.said
    with serving(file, "notes") as host:
        assert call(host) == "noted: hello"


def test_a_login_for_more_scopes_makes_the_call_work(provider: Provider, tmp_path: Path) -> None:
    """The issuer gives a client no scopes but those of its registration."""
    port = free_port()
    with ExitStack() as later:
        with protected_server(provider.issuer, "notes", port=port) as url:
            file = write_config(tmp_path, {"notes": {"url": url}})
            log_in(file)
            host = later.enter_context(serving(file, "notes"))
            assert call(host) == "noted: hello"
        with protected_server(provider.issuer, "notes", "files", port=port):
            until(lambda: "lacks a scope" in call(host), "the server wants more scopes")
            assert "with the scopes notes files." in log_in(file)
            wait_state(host, "ready")
            until(lambda: call(host) == "noted: hello", "the new login is used")


def test_a_configured_client_without_the_scopes_is_told_what_to_do(
    provider: Provider, protected: str, tmp_path: Path
) -> None:
    oauth = {
        "client_id": "narrow",
        "client_secret": CONFIDENTIAL["client_secret"],
        "redirect_port": REDIRECT,
        "scopes": ["notes", "files"],
    }
    file = write_config(tmp_path, {"notes": {"url": protected, "oauth": oauth}})
    with login_command(file, "notes") as command:
        Browser().log_in(command.start_link())
        assert command.end() == 1
        assert "(invalid_scope): it does not give the client these scopes. Permit" in command.said


def test_a_logout_is_seen_by_the_host_and_by_the_issuer(file: Path, provider: Provider) -> None:
    log_in(file)
    with serving(file, "notes") as host:
        before = provider.count(revoked="grant")
        done = run_colonnade(file, "logout", "notes")
        assert (done.returncode, f"{provider.issuer} has revoked" in done.stdout) == (0, True), done
        assert provider.count(revoked="grant") > before
        wait_state(host, "needs login")
        assert "colonnade login notes" in call(host)
        assert credentials(file) == []
        # The registration is gone too; the next login begins from nothing.
        log_in(file)
        wait_state(host, "ready")
        assert call(host) == "noted: hello"


LIFETIME = 8
"""Seconds of the tokens whose refreshes are counted. Each is refreshed a fifth of them ahead: shorter ones could end
before that, because their issuer cuts the fraction off the second in which they end."""


class Refreshes:
    """The refreshes from now on, with tokens of LIFETIME."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._began = time.monotonic()
        self._before = self._counts()
        provider.set(lifetime=LIFETIME)

    def _counts(self) -> list[int]:
        kinds = ({"grant": "refresh_token"}, {"grant": "refresh_token", "error": "invalid_grant"}, {"revoked": "grant"})
        return [self._provider.count(**kind) for kind in kinds]

    def __len__(self) -> int:
        return self._counts()[0] - self._before[0]

    def check(self) -> None:
        """Each expiry has cost one of them, however long the machine took, and the issuer has refused none."""
        done, refused, revoked = (now - before for now, before in zip(self._counts(), self._before, strict=True))
        assert (refused, revoked) == (0, 0)
        assert 3 <= done <= (time.monotonic() - self._began) / (LIFETIME * 4 / 5), self._provider.events()


def test_a_thousand_calls_over_three_expiries(file: Path, provider: Provider) -> None:
    """None of them fails. The tokens are JWTs."""
    provider.set(format="jwt")
    refreshes = Refreshes(provider)
    log_in(file)
    with serving(file, "notes") as host, calling(host, clients=8) as results:
        until(lambda: len(results) >= 1_000 and len(refreshes) >= 3, "1,000 calls and three expiries", 100)
    assert failures(results) == set()
    refreshes.check()


def all_command_lines() -> Iterator[bytes]:
    """Those of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            yield path.read_bytes()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def opened(host: Running) -> Iterator[Callable[[str], str]]:
    """Calls of a stateless client, at a connection of its own; what came back."""
    url = urlsplit(host.url)
    assert url.hostname is not None
    with closing(HTTPConnection(url.hostname, url.port, timeout=20)) as connection:

        def send(text: str) -> str:
            headers, body = stateless_request("tools/call", {"name": "notes__note", "arguments": {"text": text}})
            connection.request("POST", url.path, json.dumps(body), headers)
            answer = json.load(connection.getresponse())
            try:
                found: str = answer["result"]["content"][0]["text"]
            except LookupError:
                return json.dumps(answer)
            return found

        yield send


BETWEEN_CALLS = 0.02
"""Seconds: some call is under way whenever a token ends, and the processors have time for the others."""


@contextmanager
def calling(*hosts: Running, clients: int = 1) -> Iterator[list[str]]:
    """Calls for the block, by so many clients at each host; what has come back so far."""
    results: list[str] = []
    stop = threading.Event()

    def call_on(host: Running) -> None:
        with opened(host) as send:
            while not stop.wait(BETWEEN_CALLS):
                try:
                    results.append(send(f"{len(results)}"))
                except (OSError, HTTPException, ValueError) as problem:
                    results.append(repr(problem))
                    return

    threads = [threading.Thread(target=call_on, args=(host,)) for host in hosts * clients]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def failures(results: list[str]) -> set[str]:
    return {text for text in results if not text.startswith("noted: ")}


def test_three_hosts_on_one_state_never_use_a_refresh_token_twice(file: Path, provider: Provider) -> None:
    """The issuer would revoke the login."""
    refreshes = Refreshes(provider)
    log_in(file)
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving(file, "notes")) for _ in range(3)]
        with calling(*hosts) as results:
            until(lambda: len(refreshes) >= 3, "three expiries", 100)
    assert failures(results) == set()
    refreshes.check()


def test_an_issuer_that_is_down_does_not_stop_valid_tokens(file: Path, provider: Provider) -> None:
    """Also where the token is to be refreshed already. The protected server asks the issuer too, so only the token
    endpoint is down."""
    provider.set(lifetime=20)
    log_in(file)
    expires = expiry(file)
    with serving(file, "notes") as host:
        pause(expires - 3.8 - time.time())  # a fifth of its lifetime is left
        with calling(host) as results:
            provider.set(token_down=True)
            pause(2.5)
            provider.set(token_down=False)
            pause(6)
        assert failures(results) == set()
        assert not host.state_lines("notes", "needs")


def test_a_code_of_somebody_else_logs_nobody_in(tmp_path: Path, provider: Provider, protected: str) -> None:
    """An attacker's code, brought to a person's login with its state in the person's own browser: the verifier is not
    that of the code, so the issuer gives nothing for it."""
    oauth = {"client_id": "confidential", "client_secret": CONFIDENTIAL["client_secret"], "redirect_port": REDIRECT}
    file = write_config(tmp_path, {"notes": {"url": protected, "oauth": oauth}})
    (redirect,) = CONFIDENTIAL["redirect_uris"]
    with login_command(file, "notes") as command:
        browser = Browser()
        _, link = browser.fetch(command.start_link())
        assert link is not None
        own = dict(parse_qsl(urlsplit(link).query))
        theirs = urlencode({**own, "state": "theirs", "code_challenge": challenge_of("v" * 43)})
        page = Browser("mallory").log_in(f"{link.partition('?')[0]}?{theirs}", until=redirect)
        stolen = dict(parse_qsl(urlsplit(page.url).query))
        before = provider.count(grant="authorization_code", error="invalid_grant")
        browser.fetch(f"{redirect}?{urlencode({**stolen, 'state': own['state']})}")
        assert command.end() != 0
        assert "(invalid_grant)" in command.said
    assert provider.count(grant="authorization_code", error="invalid_grant") == before + 1
    assert credentials(file) == []


INTRUDER = """
import encodings.idna, errno, http.client, os, socket, sys
if os.geteuid() == 0:  # after the imports, whose files the other user may not be able to read
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    print("I am another user")
port, process = int(sys.argv[1]), sys.argv[2]
for path in ("/oauth/callback?code=evil&state=guess", "/oauth/callback", "/oauth/start/guess", "/"):
    for cookie in ("", "colonnade_login=", "colonnade_login=guess"):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", path, headers={"cookie": cookie} if cookie else {})
        print("status", connection.getresponse().status)
for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
    for address in ("127.0.0.1", "0.0.0.0"):
        try:
            with socket.socket() as other:
                if option is not None:
                    other.setsockopt(socket.SOL_SOCKET, option, 1)
                other.bind((address, port))
                other.listen()
                print("bound")
        except OSError as error:
            print("bind", errno.errorcode[error.errno])
print("command line", open(f"/proc/{process}/cmdline").read())
try:
    print("environment", open(f"/proc/{process}/environ").read())
except OSError as error:
    print("environ", errno.errorcode[error.errno])
"""


def test_a_process_of_another_user_ends_no_login(file: Path) -> None:
    """It finds the port, and neither the link nor the cookie. It is `nobody` if the tests may be that."""
    with login_command(file, "notes") as command:
        link = command.start_link()
        arguments = ["-I", "-S", "-c", INTRUDER, str(urlsplit(link).port), str(command.pid)]
        ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=30, check=False)
        assert ran.returncode == 0, ran.stderr
        found = Counter(line.partition(" ")[2] for line in ran.stdout.splitlines() if line.startswith("status"))
        assert found == {"403": 6, "404": 6}
        assert ran.stdout.count("bind EADDRINUSE") == 6
        assert link.rpartition("/")[2] not in ran.stdout
        assert ("I am another user" in ran.stdout) == (os.geteuid() == 0)
        assert "environ EACCES" in ran.stdout, "no more than any other process of its own user"
        # The person is not held up by any of it.
        assert Browser().log_in(link).status == 200
        assert command.end() == 0


def test_no_browser_is_opened(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server must not be able to open pages: neither a host nor a login starts a program that does."""
    (programs := tmp_path / "programs").mkdir()
    for name in ("xdg-open", "x-www-browser", "www-browser", "sensible-browser", "firefox", "chromium", "open", "gio"):
        (programs / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/opened\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("BROWSER", str(programs / "firefox"))
    monkeypatch.setenv("DISPLAY", ":0")
    subprocess.run([sys.executable, "-c", "import webbrowser; webbrowser.open('http://127.0.0.1')"], check=True)
    assert (tmp_path / "opened").read_text() == "firefox\n", "this test would see it"
    with serving(file) as host:
        wait_state(host, "needs login")
        for _ in range(3):
            assert "colonnade login notes" in call(host)
        log_in(file)
        wait_state(host, "ready")
    assert (tmp_path / "opened").read_text() == "firefox\n"


def test_the_first_call_after_an_expiry_says_what_to_do(file: Path, provider: Provider) -> None:
    """Without a refresh token: it does not say that the server cannot be reached, which has had no chance."""
    provider.set(lifetime=12, refresh=False)
    log_in(file)
    with serving(file, "notes") as host:
        pause(expiry(file) + 2 - time.time())
        assert wait_state(host, "ready"), "nobody has noticed"
        over = "the login is over, because its token has expired, and the issuer gave none to refresh it"
        assert call(host) == f"notes is unavailable: {over}: colonnade login notes"
        assert wait_state(host, "needs login")
        assert not host.state_lines("notes", "failed")


def test_a_revoked_login_is_told_once(file: Path, provider: Provider) -> None:
    log_in(file)
    with serving(file, "notes") as host:
        assert call(host) == "noted: hello"
        provider.set(revoke_all=True)
        before = provider.count(grant="refresh_token", error="invalid_grant")
        with opened(host) as send:
            for _ in range(50):
                send("x")
        wait_state(host, "needs login")
        pause(2)  # a loop would show itself
        assert len(host.state_lines("notes", "needs")) == 1
        assert provider.count(grant="refresh_token", error="invalid_grant") - before == 1
        assert not host.state_lines("notes", "failed")
        (row,) = credentials(file)
        why = "the issuer gave no other token (invalid_grant)"
        says = 'the issuer says: "grant request is invalid"'
        assert row["state"] == f"needs login, because {why}: colonnade login notes; {says}"
        assert any(f"because {why}" in line for line in host.state_lines("notes", "needs"))


def test_another_issuer_waits_for_a_person(provider: Provider, tmp_path: Path) -> None:
    """The server at the same URL names another issuer than at the login that a person has approved: neither the host
    nor `colonnade login` registers there, or sends it anything else."""
    port = free_port()
    with running_provider() as other, ExitStack() as later:
        with protected_server(provider.issuer, "notes", port=port) as url:
            file = write_config(tmp_path, {"notes": {"url": url}})
            log_in(file)
            host = later.enter_context(serving(file, "notes"))
            assert call(host) == "noted: hello"
        with protected_server(other.issuer, "notes", port=port):
            until(lambda: "colonnade login notes" in call(host), "the former tokens are refused")
            assert wait_state(host, "needs login")
            refused = run_colonnade(file, "login", "notes")
            assert (refused.returncode, "nothing was changed" in refused.stderr) == (1, True), refused
            assert f"  issuer:    {other.issuer}\n" in refused.stdout
            assert f"The last login was at another issuer: {provider.issuer}\n" in refused.stdout
            assert [row["issuer"] for row in credentials(file)] == [provider.issuer]
            assert other.events() == []
            revoked = provider.count(revoked="grant")
            log_in(file, options=["--yes"])
            until(
                lambda: provider.count(revoked="grant") > revoked, "the former login is revoked, and at its own issuer"
            )
            wait_state(host, "ready")
            assert call(host) == "noted: hello"
            assert [row["issuer"] for row in credentials(file)] == [other.issuer]


@pytest.mark.parametrize(
    ("end", "moment", "state"),
    [
        (signal.SIGKILL, "delay", "ready"),  # the issuer knows nothing of the refresh
        (signal.SIGKILL, "hold", "needs login"),  # the issuer has taken the token back, and the new one is lost
        (signal.SIGTERM, "hold", "ready"),  # the host waits for the new one
    ],
)
def test_a_host_that_ends_in_a_refresh_keeps_the_login_or_asks_for_one(
    file: Path, provider: Provider, end: signal.Signals, moment: str, state: str
) -> None:
    """Never half of it: the next host is ready without a login, or with one."""
    provider.set(lifetime=10)  # so the token is still valid when its refresh begins, and no call waits for that
    log_in(file)
    has_token = time.monotonic()
    granted = provider.count(grant="refresh_token")
    reached = {"delay": {"waits": "/token"}, "hold": {"grant": "refresh_token"}}[moment]
    before = provider.count(**reached)
    provider.set(**{moment: 2000}, lifetime=3600)
    with serving(file, "notes", stop=False) as host, opened(host) as send:
        until(lambda: send("x") and provider.count(**reached) > before, "a refresh has begun")
        host.process.send_signal(end)
        host.process.wait(10)
    provider.set(delay=0, hold=0)
    assert provider.count(grant="refresh_token") - granted == (moment == "hold")
    pause(max(0.0, has_token + 11 - time.monotonic()))  # until the former token has expired
    with serving(file) as host:
        until(lambda: host.status()["notes"]["state"] == state, f"it is {state}", 60)
        if state == "needs login":
            log_in(file)
            wait_state(host, "ready")
        assert call(host) == "noted: hello"
        assert not host.state_lines("notes", "failed")


def test_colonnade_gets_its_own_token(provider: Provider, protected: str, tmp_path: Path) -> None:
    secret = OWN_CLIENT["client_secret"]
    oauth = {"grant": "client_credentials", "client_id": "own", "client_secret": secret, "scopes": ["notes"]}
    file = write_config(tmp_path, {"notes": {"url": protected, "oauth": oauth}})
    with serving(file, "notes") as host:
        assert call(host) == "noted: hello"
        assert not host.state_lines("notes", "needs")
    oauth["client_secret"] = "wrong-s3cret-of-the-client"
    file = write_config(tmp_path, {"other": {"url": protected, "oauth": oauth}})
    with serving(file) as host:
        (line,) = until(lambda: host.state_lines("other", "failed"), "it fails")
        assert "invalid_client" in line
        assert "s3cret" not in host.errors + str(host.said)


def test_colonnade_signs_with_its_private_key(provider: Provider, protected: str, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text(pem(EC))
    oauth = {"grant": "client_credentials", "client_id": "signing", "private_key": "${file:key.pem}"}
    file = write_config(tmp_path, {"notes": {"url": protected, "oauth": {**oauth, "scopes": ["notes"]}}})
    with serving(file, "notes") as host:
        assert call(host) == "noted: hello"


LINK = re.compile(r"http://127\.0\.0\.1:\d+/oauth/login/[\w-]+")


def without_links(text: str) -> str:
    """The text without the links for the person."""
    return re.sub(r"http://\S+/auth\?\S+|/oauth/(?:start|login)/[\w-]+", "", text)


def call_of_a_client_with_pages(host: Running) -> str:
    """A call of a client that can show pages; the whole answer."""
    headers, body = stateless_request("tools/call", {"name": "notes__note", "arguments": {"text": "hello"}})
    body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {"url": {}}}
    request = urllib.request.Request(host.url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return f"{answer.headers}{answer.read().decode()}"


def test_no_secret_of_a_login_is_seen_anywhere(
    provider: Provider, protected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty and more, of eleven kinds, over a whole life: three logins in the terminal, refreshes, a client with a
    key, a revocation, a login at the host with a link from a client, and a logout. They are in nothing that is printed,
    logged, answered, shown or written, except for the files in which their owner wrote them, and the links for the
    person."""
    provider.set(lifetime=3)
    known = provider.secrets()
    key, client_secret, sealing = pem(EC), str(CONFIDENTIAL["client_secret"]), secrets.token_hex(16)
    monkeypatch.setenv("COLONNADE_KEY", sealing)
    (tmp_path / "key.pem").write_text(key)
    heard = f"tr '\\0' '\\n' < /proc/self/environ > {tmp_path}/environ; exec tee {tmp_path}/heard"
    own = {"grant": "client_credentials", "client_id": "signing", "private_key": "${file:key.pem}", "scopes": ["notes"]}
    servers = {
        "notes": {
            "url": protected,
            "oauth": {"client_id": "confidential", "client_secret": client_secret, "redirect_port": REDIRECT},
            "consent": {"elicitation": {"url": "allow"}},
        },
        "signed": {"url": protected, "oauth": own},
        "child": {"command": ["/bin/sh", "-c", heard]},
    }
    file = write_config(tmp_path, servers, audit={"arguments": "full"})
    browsers = [Browser() for _ in range(4)]
    shown: list[str] = []

    def run(*words: str) -> None:
        done = run_colonnade(file, *words)
        shown.extend((done.stdout, done.stderr))

    with serving(file, "signed", options=["--log-level", "debug"]) as host:
        wait_state(host, "needs login")
        for browser in browsers[:3]:
            with login_command(file, "notes", "--yes") as command:
                assert browser.log_in(command.start_link()).status == 200
                assert command.end() == 0
                shown.append(without_links(command.said))
            wait_state(host, "ready")
        with calling(host) as results:
            pause(7)
        shown += [*results, call_by_command(file), json.dumps(host.status())]
        for words in (["list"], ["status", "--json"], ["logs", "child"], ["credentials"], ["credentials", "--json"]):
            run(*words)
        (running,) = find_hosts(tmp_path / "state")
        shown.append(json.dumps(running.get("state")))
        command_lines = list(all_command_lines())
        provider.set(revoke_all=True)
        shown.append(call_by_command(file))
        wait_state(host, "needs login")
        answer = call_of_a_client_with_pages(host)
        shown.append(without_links(answer))
        (link,) = LINK.findall(answer)
        assert browsers[3].go_on(link).status == 200
        wait_state(host, "ready")
        with calling(host) as results:
            pause(4)
        shown += results
        run("logout", "notes")
        shown += host.said
    run("audit", "show")
    shown.append(host.errors)
    visited = [page for browser in browsers for page in browser.visited]
    shown += [without_links(page.text) for page in visited if "/oauth/" in page.url]

    planted = provider.secrets() - known
    planted |= {("state", state) for page in visited for state in re.findall(r"[?&]state=([\w-]{20,})", page.url)}
    planted |= {("link", page.url.rpartition("/")[2]) for page in visited if "/oauth/start/" in page.url}
    planted |= {
        ("cookie", str(each.value))
        for browser in browsers
        for each in browser.cookies
        if each.name == "colonnade_login"
    }
    planted |= {("client_secret", client_secret), ("key", sealing), ("private_key", key.splitlines()[1])}
    kinds = Counter(kind for kind, _ in planted)
    assert len(planted) >= 20
    assert kinds.keys() == {
        *("code", "code_verifier", "state", "link", "cookie", "access_token", "refresh_token"),
        *("client_secret", "client_assertion", "private_key", "key"),
    }
    assert kinds["refresh_token"] > 3, "former ones and their successors"

    written = [path for path in tmp_path.rglob("*") if path.is_file() and path not in (file, tmp_path / "key.pem")]
    assert {"colonnade.db", "environ", "heard"} <= {path.name for path in written}
    assert '"jsonrpc"' in (tmp_path / "heard").read_text()
    places = {str(path): path.read_bytes() for path in written}
    places |= {f"text {n}": text.encode() for n, text in enumerate(shown)}
    # The issuer's own command line has its clients.
    places |= {f"command line {n}": text for n, text in enumerate(command_lines) if b"provider.mjs" not in text}
    found = {(place, kind) for place, text in places.items() for kind, secret in planted if secret.encode() in text}
    assert found == set()
