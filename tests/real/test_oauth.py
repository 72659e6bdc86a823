"""Logins at a server of the official SDK behind oidc-provider: the real processes, by the command line.

npm installs the issuer into build/oauth when these tests are run for the first time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.oauth.browser import Browser
from tests.real.oauth.fixtures import (
    Provider,
    login_command,
    protected_server,
    run_colonnade,
    running_provider,
)
from tests.real.running import Running, serving, until, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the first test may have to install the issuer


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with running_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def protected(provider: Provider) -> Iterator[str]:
    with protected_server(provider.issuer, "notes") as url:
        yield url


@pytest.fixture
def file(protected: str, tmp_path: Path) -> Path:
    return write_config(tmp_path, {"notes": {"url": protected}})


def log_in(file: Path, server: str = "notes") -> str:
    """Log in as a person with a browser does; what the command said."""
    with login_command(file, server) as command:
        page = Browser().log_in(command.start_link())
        assert page.status == 200, page
        assert command.end() == 0, command.said
        return command.said


def call(host: Running, file: Path, text: str = "hello") -> str:
    done = run_colonnade(file, "call", "notes__note", json.dumps({"text": text}))
    return done.stdout + done.stderr


def wait_state(host: Running, state: str, server: str = "notes") -> dict[str, object]:
    found: dict[str, object] = until(
        lambda: (row := host.status()[server])["state"] == state and row, f"{server} is {state}: {host.said}"
    )
    return found


def test_a_login_makes_the_server_work(file: Path, provider: Provider) -> None:
    with serving(file) as host:
        row = wait_state(host, "needs login")
        assert row["detail"] == "the server wants a login (HTTP 401): colonnade login notes"
        assert "needs a login" in call(host, file) or "colonnade login notes" in call(host, file)
        said = log_in(file)
        assert f"issuer:    {provider.issuer}" in said
        assert f"Logged in at {provider.issuer}" in said
        wait_state(host, "ready")
        assert call(host, file).strip() == "noted: hello"
    # The next host begins with the login.
    with serving(file, "notes") as host:
        assert call(host, file).strip() == "noted: hello"
        assert not host.state_lines("notes", "needs")
