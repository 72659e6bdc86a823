"""Each issuer of the table in the documentation, as it is described there: with what the table says to write, a login
goes through its whole life."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from config import HttpServer, OAuth
from config.references import Secret
from host.oauth.problem import OAuthProblem
from host.upstream.credentials import LoginUnavailable
from host.upstream.login import revoke
from host.url import Url
from host.wire.listener import serve_http
from host.wire.port import bind
from tests.config.kit import load_text
from tests.issuers.kit import use
from tests.issuers.known import KNOWN, SECRET
from tests.kit.logins import processes
from tests.kit.peculiar_issuer import EVIL, Network, PageRefused, Peculiar, log_in, network, serve

PAGE = Path(__file__).parents[2] / "docs" / "authorization.md"
TABLE = {
    cells[0]: cells[1:]
    for line in re.findall(r"^\| (.*) \|$", PAGE.read_text("utf-8").partition("## What issuers want\n")[2], re.M)
    if len(cells := line.split(" | ")) == 5 and cells[0] != "issuer"
}
"""By the issuer: server, what is peculiar, what to write, source."""


def server(name: str, folder: Path, *, written: bool = True) -> HttpServer:
    """The server of a row, with what the row says to write or without."""
    url, _, keys, _ = (cell.strip("`") for cell in TABLE[name])
    more = f", {keys}" if written and keys != "nothing" else ""
    (found,) = load_text(folder, f"servers: {{notes: {{url: '{url}'{more}}}}}", {"SECRET": SECRET}).servers.values()
    assert isinstance(found, HttpServer)
    return found


def test_each_row_has_its_issuer_and_each_issuer_its_row() -> None:
    assert list(TABLE) == list(KNOWN)
    assert {name: cells[0].strip("`") for name, cells in TABLE.items()} == {
        name: each.server for name, each in KNOWN.items()
    }
    for name, cells in TABLE.items():
        assert re.search(r"20\d\d-\d\d|\.(?:com|dev|org)/", cells[3]), f"{name} has no source"


@pytest.mark.few(5)
@pytest.mark.parametrize("name", KNOWN)
async def test_a_login_lives_as_long_as_its_grant(name: str, tmp_path: Path) -> None:
    """Discovery, login, refreshes, an outage, a dead refresh token, another login, and its end."""
    spec = server(name, tmp_path)
    with network(KNOWN[name]) as net:
        issuer = net.issuer
        async with processes() as (process,):
            made = await log_in(net, spec, process.store)
            assert made.access_token in issuer.tokens
            assert made.refresh_token is not None
            assert made.issuer == (issuer.of.says or (issuer.of.issuer,))[0]
            for _ in range(3):
                assert await use(process, spec) in issuer.tokens
            for issuer.outage in (429, 500, 503):
                with pytest.raises(LoginUnavailable):
                    await use(process, spec)
            issuer.outage = 0
            assert await use(process, spec) in issuer.tokens, "nothing was given up meanwhile"

            issuer.lives = False
            assert await use(process, spec) == ""
            asked = len(net.sent)
            for _ in range(3):
                assert await use(process, spec) == ""
            assert len(net.sent) == asked, "what is over is not asked for again"
            assert "the issuer gave no other token" in process.credentials.of(spec).problem

            issuer.lives = True
            known = set(issuer.clients)
            made = await log_in(net, spec, process.store)
            assert set(issuer.clients) == known, "the client stays the same"
            assert await use(process, spec) in issuer.tokens
            if made.revocation_endpoint is not None:
                assert await revoke(made, Url.parse(spec.url.reveal()))
                assert made.refresh_token not in issuer.refresh
            assert net.strays == []


NEEDED = [name for name, cells in TABLE.items() if cells[2] != "nothing"]


@pytest.mark.parametrize("name", NEEDED)
async def test_what_the_table_says_to_write_is_needed(name: str, tmp_path: Path) -> None:
    """Without it there is no login, or one that ends with its first token; and nothing goes astray."""
    with network(KNOWN[name]) as net:
        async with processes() as (process,):
            try:
                made = await log_in(net, server(name, tmp_path, written=False), process.store)
            except (OAuthProblem, PageRefused):
                made = None
            assert made is None or made.refresh_token is None
            assert net.strays == []


@pytest.mark.few(5)
@pytest.mark.parametrize("name", KNOWN)
async def test_a_hostile_server_gains_nothing_by_what_is_written(name: str, tmp_path: Path) -> None:
    """It names another issuer than before, which also calls itself by the name of the good one."""
    spec, good = server(name, tmp_path), KNOWN[name]
    with network(good) as net:
        async with processes() as (process,):
            made = await log_in(net, spec, process.store)
    for says in ((), good.says or (good.issuer,)):
        evil = Peculiar(name="evil", server=good.server, issuer=EVIL, says=says)
        with network(evil, replace(good, issuer="https://elsewhere.example", says=())) as net:
            net.issuers[1].secrets.update({made.refresh_token or "": "refresh token", SECRET: "client secret"})
            async with processes(stored=made) as (process,):
                with pytest.raises((OAuthProblem, PageRefused)):
                    await log_in(net, spec, process.store, accepts_other=False)
                assert await use(process, spec, may_fail=True) == ""
                assert not [each for each in net.sent if each.form and each.url.startswith(EVIL)]


async def test_an_issuer_at_a_socket() -> None:
    """The same kit over HTTP, with names of a slash, forms, commas and errors in 200, and the client of the product."""
    bound = bind("127.0.0.1", 0)
    here = f"http://127.0.0.1:{bound.getsockname()[1]}"
    net = Network(
        replace(
            KNOWN["Slack"],
            server=f"{here}/mcp",
            issuer=f"{here}/",
            says=(here,),
            endpoints=here,
            client=("ID", SECRET),
            secret_by=("client_secret_post",),
            auth_methods=None,
            form_encoded="always",
            nested="",
            redirect="",
            token={"token_type": "user", "expires_in": "43200"},
        )
    )
    spec = HttpServer(
        id="notes", url=Secret(f"{here}/mcp"), oauth=OAuth(client_id=Secret("ID"), client_secret=Secret(SECRET))
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, partial(serve, net), bound))
        async with processes() as (process,):
            made = await log_in(net, spec, process.store)
            assert made.issuer == here
            for _ in range(2):
                assert await use(process, spec) in net.issuer.tokens
            net.issuer.lives = False
            assert await use(process, spec) == ""
            assert net.strays == []
        nursery.cancel_scope.cancel()


async def test_a_name_that_is_not_listed_is_not_registered(tmp_path: Path) -> None:
    figma = replace(KNOWN["Figma"], refuses_registration=(403, b"Forbidden"))
    with network(figma) as net:
        async with processes() as (process,):
            spec = HttpServer(id="notes", url=server("Figma", tmp_path).url)
            with pytest.raises(OAuthProblem, match=r"refused to register Colonnade \(HTTP 403\)"):
                await log_in(net, spec, process.store)
