"""Programs that the tests of logins start: the issuer, the protected server, hosts, and `colonnade login`."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.suite import NODE_VERSION, node_package
from tests.kit.ports import free_port
from tests.real.running import COLONNADE, ROOT, beside, until

SOURCE = Path(__file__).parent
BUILD = ROOT / "build" / "oauth"
NODE = BUILD / "node_modules" / node_package() / "bin" / "node"
INSTALL_SECONDS = 300
START_LINK = re.compile(r"http://127\.0\.0\.1:\d+/oauth/start/\S+")
ISSUER_LINK = re.compile(r"http://127\.0\.0\.1:\d+/auth\?\S+")


def install_provider() -> Path:
    """The script of the authorization server, beside the packages that it needs, which npm installs once."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:  # the tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _install_provider()


def _install_provider() -> Path:
    pins = json.loads((SOURCE / "package.json").read_text())["dependencies"] | {node_package(): NODE_VERSION}
    done = BUILD / ".installed"  # written last: an install that was interrupted is begun again
    wanted = json.dumps(pins)
    if not done.is_file() or done.read_text() != wanted:
        npm = shutil.which("npm")
        if npm is None:
            pytest.fail("npm is not installed: it is needed to fetch the authorization server")
        options = ["--prefix", str(BUILD), "--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
        packages = [f"{package}@{version}" for package, version in pins.items()]
        command = [npm, "install", *options, "--loglevel=error", *packages]
        ran = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if ran.returncode != 0 or not NODE.is_file():
            pytest.fail(f"npm could not install {packages} (status {ran.returncode}): {ran.stderr.strip()[-500:]}")
        done.write_text(wanted)
    shutil.copy(SOURCE / "provider.mjs", BUILD)
    return BUILD / "provider.mjs"


class Provider:
    """The authorization server, which runs."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def events(self) -> list[dict[str, Any]]:
        """The outcomes of requests to it, in their order."""
        with urllib.request.urlopen(f"{self.issuer}/test/events", timeout=10) as answer:
            found: list[dict[str, Any]] = json.load(answer)
            return found

    def secrets(self) -> set[tuple[str, str]]:
        """The codes, verifiers, tokens and assertions of all token requests, each after its kind."""
        with urllib.request.urlopen(f"{self.issuer}/test/secrets", timeout=10) as answer:
            return set(map(tuple, json.load(answer)))

    def count(self, **wanted: str) -> int:
        """How many events have these members."""
        return sum(all(event.get(name) == value for name, value in wanted.items()) for event in self.events())

    def set(self, **settings: object) -> None:
        """Change what it does from now on; see `provider.mjs`."""
        data = json.dumps(settings).encode()
        with urllib.request.urlopen(f"{self.issuer}/test/settings", data, timeout=10) as answer:
            answer.read()


RESOURCE_CLIENT = {
    "client_id": "resource",
    "client_secret": "resource-secret",
    "token_endpoint_auth_method": "client_secret_post",
    "redirect_uris": [],
    "grant_types": [],
    "response_types": [],
}
"""The protected server at the issuer: it asks about tokens."""


@contextmanager
def running_provider(*clients: Mapping[str, object], **options: object) -> Iterator[Provider]:
    """The authorization server at a free port, for the block."""
    script = install_provider()
    settings = json.dumps({"clients": [RESOURCE_CLIENT, *clients], **options})
    with _program([str(NODE), str(script), settings], r"http://127\.0\.0\.1:\d+") as issuer:
        yield Provider(issuer)


@contextmanager
def protected_server(issuer: str, *scopes: str, port: int | None = None) -> Iterator[str]:
    """The protected server, for the block; its URL. It is at a free port, unless one is given."""
    command = [sys.executable, str(SOURCE / "protected.py"), str(port or free_port()), issuer, *scopes]
    with _program(command, r"http://\S+/mcp") as url:
        until(lambda: _answers(url), "the protected server answers")
        yield url


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        return answer.code == 401
    except OSError:
        return False
    return False


@contextmanager
def _program(command: Sequence[str], address: str) -> Iterator[str]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=BUILD) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            found = re.search(address, line)
            assert found, (line, process.stderr.read() if not line else "")
            yield found[0]
        finally:
            process.kill()
            process.communicate()


def run_colonnade(file: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command about the configuration `file`, to its end."""
    command = [COLONNADE, *arguments, "--config", str(file)]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=beside(file),
        stdin=subprocess.DEVNULL,
        **more,
    )


@contextmanager
def login_command(file: Path, server: str, *more: str) -> Iterator[LoginCommand]:
    """`colonnade login`, which waits for the browser."""
    command = [COLONNADE, "login", server, "--config", str(file), *more]
    environment = {**beside(file), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        try:
            yield LoginCommand(process)
        finally:
            process.kill()
            process.communicate()


class LoginCommand:
    """A login in a terminal. `said` is what it printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.said = ""

    def start_link(self) -> str:
        """The link for a browser on this machine."""
        return self._read_until(START_LINK)

    def issuer_link(self) -> str:
        """The link for a browser elsewhere."""
        return self._read_until(ISSUER_LINK)

    def paste(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; the exit code."""
        assert self._process.stdout is not None
        self.said += self._process.stdout.read()
        return self._process.wait(10)

    def _read_until(self, wanted: re.Pattern[str]) -> str:
        assert self._process.stdout is not None
        while (found := wanted.search(self.said)) is None:
            line = self._process.stdout.readline()
            assert line, f"it ended: {self.said}"
            self.said += line
        return found[0]
