"""Issuers that a grammar of peculiarities makes, each through a life of logins, refreshes, failures and attacks: no
secret goes to a wrong place, and no login is given up that its issuer would still renew.

A script has a judge of its own, which knows the issuer's books. `test_the_judge_notices` breaks the product on purpose.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from config import HttpServer, OAuth, Pkce
from config.references import Secret
from host.oauth import documents
from host.oauth.problem import OAuthProblem
from host.upstream import credentials, discovery, login
from host.upstream.credentials import LoginUnavailable
from host.upstream.vault import Login
from host.wire.issuer_http import Answer
from tests.issuers.kit import use
from tests.kit.awaited import awaited
from tests.kit.examples import examples
from tests.kit.logins import NOTES, Process, processes
from tests.kit.peculiar_issuer import (
    EVIL,
    INSERTED,
    OPENID_APPENDED,
    OPENID_INSERTED,
    Issuer,
    Network,
    PageRefused,
    Peculiar,
    log_in,
    network,
)

ISSUERS = int(os.environ.get("COLONNADE_ISSUERS", examples(500)))
BATCHES = 20
STEPS = 14
SECRET = "s3cret-of-the-person"
NAMES = ("https://login.example", "https://login.example/", "https://login.example/tenant", "https://id.example")
NO_ANSWERS = (
    Answer(200, b"<!doctype html>"),
    Answer(200, b"{}"),
    Answer(200, b'{"access_token": "a b", "token_type": "Bearer"}'),
    Answer(200, b'{"access_token": "a", "token_type": "mac"}'),
    Answer(200, b'{"access_token": "a", "token_ty'),
    Answer(400, b"bad request"),
    Answer(400, b'{"error": "temporarily_unavailable"}'),
    Answer(403, b"blocked by the firewall"),
    Answer(404, b""),
    Answer(200, b'{"ok": false, "error": "ratelimited"}'),
    Answer(307, b""),
    Answer(429, b""),
    Answer(500, b'{"error": "invalid_grant"}'),
    Answer(503, b"<h1>Sorry</h1>"),
)
"""Answers of a token endpoint that say nothing about the login."""


def peculiar(chance: random.Random) -> Peculiar:
    """An issuer by the grammar. Each peculiarity is documented of one at least."""

    def rarely(one: Any, usual: Any, share: float = 0.3) -> Any:
        return one if chance.random() < share else usual

    issuer = chance.choice(NAMES)
    says = rarely(tuple(chance.choices(NAMES, k=3)), (issuer,))
    if "tenant" not in issuer:
        says = tuple(chance.choice((name, f"{name.rstrip('/')}/")) if name.count("/") < 4 else name for name in says)
    places = [INSERTED, OPENID_INSERTED, *([OPENID_APPENDED] if issuer.endswith("tenant") else [])]
    there = tuple(chance.sample(places, chance.randint(1, len(places))))
    registers = chance.random() < 0.5
    secret_by = rarely(("client_secret_post",), rarely(("client_secret_basic", "client_secret_post"), ()))
    lies = registers and secret_by == ("client_secret_post",) and chance.random() < 0.5
    methods = ("none",) if lies or not secret_by else rarely(None, secret_by)
    refresh_scope = rarely(chance.choice(("offline_access", "refresh_token")), "")
    announces = refresh_scope == "offline_access" and chance.random() < 0.5
    return Peculiar(
        name=f"seed {chance.random()}",
        server=chance.choice(("https://notes.example/mcp", "https://notes.example/v1/mcp/", "https://notes.example")),
        issuer=issuer,
        metadata_at_root=chance.random() < 0.3,
        says=says,
        places=there,
        not_json=tuple(each for each in places if each not in there and chance.random() < 0.5),
        endpoints=rarely("https://tokens.example/oauth2", ""),
        scopes=rarely(None, ("notes",)),
        offered=("notes", "offline_access") if announces else (),
        says_pkce=chance.random() < 0.7,
        auth_methods=methods,
        registration={"token_endpoint_auth_method": "none"} if lies else {},
        refuses_client=rarely((422, b'{"message": "Required parameter: client_secret"}'), None),
        token_status=rarely(201, 200),
        more_redirects=chance.random() < 0.2,
        secret_by=secret_by,
        client=None if registers else ("ID", SECRET if secret_by else None),
        redirect=rarely("http://127.0.0.1:8765/oauth/callback", "") if not registers else "",
        resource_is=chance.choice(("ignored", "ignored", "required", "refused")),
        parameters=rarely({"access_type": "offline"}, {}),
        refuses_consent=chance.random() < 0.2,
        refresh_scope=refresh_scope,
        scope_at_refresh=chance.random() < 0.2,
        iss=chance.choice(("no", "no", "sent", "announced")) if len(set(says)) == 1 else "no",
        token={
            "token_type": chance.choice(("Bearer", "bearer", "user", "bot")),
            "expires_in": chance.choice((3599, "3600", 300, 86400.0, None)),
            "scope": chance.choice(("notes", None)),
            **rarely({"ok": True}, {}),
        },
        nested=rarely("authed_user", "", 0.15),
        form_encoded=chance.choice(("no", "no", "unless asked")),
        scope_between=chance.choice((" ", ",")),
        errors_status=rarely(200, 400),
        refusal=chance.choice(("invalid_grant", "bad_refresh_token", "invalid_refresh_token", "unauthorized_client")),
        rotates=chance.random() < 0.6,
        grace=chance.random() < 0.4,
        revokes=chance.random() < 0.6,
    )


def written(of: Peculiar) -> OAuth:
    """The keys that the documentation has for such an issuer."""
    keys: dict[str, Any] = {}
    if of.client is not None:
        id, secret = of.client
        keys["client_id"] = Secret(id)
        if secret is not None:
            keys["client_secret"] = Secret(secret)
    if of.redirect:
        keys["redirect_port"] = 8765
    if any(name.rstrip("/") != of.issuer.rstrip("/") for name in of.says):
        keys["issuers"] = tuple(dict.fromkeys((of.issuer, *of.says)))
    if not of.says_pkce:
        keys["pkce"] = Pkce.ASSUME
    if of.resource_is == "refused":
        keys["resource"] = ""
    if of.refresh_scope and of.refresh_scope not in of.offered:
        keys["scopes"] = ("notes", of.refresh_scope)
    keys["parameters"] = {**of.parameters, **({"prompt": ""} if of.refuses_consent else {})}
    return OAuth(**keys)


@dataclass
class Script:
    """One issuer, played. `problems`: what the judge found."""

    net: Network
    process: Process
    spec: HttpServer
    chance: random.Random
    problems: list[str] = field(default_factory=list)
    made: Login | None = None
    played: list[str] = field(default_factory=list)

    def judge(self, is_right: bool, problem: str) -> None:
        if not is_right:
            self.problems.append(f"{problem} after {', '.join(self.played)}")

    @property
    def stored(self) -> Login:
        found = self.process.credentials.of(self.spec).login
        assert found is not None
        return found

    @property
    def is_good(self) -> bool:
        """Whether the issuer would renew the login, by its own books."""
        issuer = self.net.issuer
        found = issuer.refresh.get(issuer.given)
        return found is not None and found[0] in issuer.clients

    async def log_in(self) -> None:
        if self.made is not None and self.made.client.client_id not in self.net.issuer.clients:
            # Its page says that it does not know the client, and the person does what the documentation says.
            awaited(self.process.store.write(lambda transaction: transaction.remove_credential(NOTES)))
        try:
            self.made = await log_in(self.net, self.spec, self.process.store)
        except (OAuthProblem, PageRefused) as problem:
            self.judge(False, f"no login: {problem}")
        await self.process.credentials.reload()

    async def refresh(self) -> None:
        if self.stored.is_over:
            asked = len(self.net.sent)
            self.judge(await use(self.process, self.spec) == "", "a token of a login that is over")
            self.judge(len(self.net.sent) == asked, "asked for what is over")
            return
        is_good = self.is_good
        token = await use(self.process, self.spec, may_fail=True)
        if is_good:
            self.judge(token in self.net.issuer.tokens, f"a good login gave no token: {self.stored.ended}")
        else:
            # An error of the issuer's own says nothing: the login stays, and the sentence names the remedy.
            is_gone = self.stored.client.client_id not in self.net.issuer.clients
            is_unsaid = is_gone and self.net.issuer.of.refuses_client is not None
            self.judge(token == "" and self.stored.is_over is not is_unsaid, "a dead login was not over")

    async def fail(self) -> None:
        """Answers that say nothing of the login, twice."""
        if self.stored.is_over:
            return
        bad = self.chance.choice(NO_ANSWERS)
        self.net.issuer.says_only = bad
        for _ in range(2):
            try:
                self.judge(await use(self.process, self.spec) == "", f"a token from {bad}")
            except LoginUnavailable:
                continue
        self.net.issuer.says_only = None
        self.judge(not self.stored.is_over, f"given up for {bad}")

    async def lose(self) -> None:
        """An answer that gets lost on its way."""
        if self.stored.is_over or not self.is_good:
            return
        self.net.issuer.loses = 1
        await use(self.process, self.spec, may_fail=True)
        self.net.issuer.loses = 0
        self.judge(not self.stored.is_over, "given up for an answer that was lost")

    async def forget_client(self) -> None:
        if self.net.issuer.of.client is None:
            self.net.issuer.clients.clear()

    async def revoke(self) -> None:
        """The person takes the grant back, at the issuer."""
        self.net.issuer.refresh.clear()

    async def turn_hostile(self) -> None:
        """The server names another issuer, which calls itself by a good name or its own, for a moment."""
        good = self.net.issuers
        names = self.chance.choice(((EVIL,), good[0].of.says))
        hostile = Peculiar(name="evil", server=good[0].of.server, issuer=EVIL, says=names, endpoints=f"{EVIL}/x")
        former = replace(good[0].of, server="https://gone.example/mcp")
        self.net.issuers = [Issuer(hostile), replace(good[0], of=former, secrets={**good[0].secrets})]
        try:
            await log_in(self.net, self.spec, self.process.store, accepts_other=False)
        except (OAuthProblem, PageRefused):
            pass
        else:
            self.judge(False, "a login at a hostile issuer")
        posted = [each.url for each in self.net.sent if each.method == "POST" and each.url.startswith(EVIL)]
        self.judge(posted == [], f"posted to {posted}")
        self.judge(self.net.strays == [], f"astray: {self.net.strays}")
        self.net.issuers = good

    async def move(self) -> None:
        """The configuration has another url, and then the former one again."""
        other = replace(self.spec, url=Secret(f"{EVIL}/mcp"))
        self.judge(self.process.credentials.of(other).current() is None, "a token for another url")
        self.process.credentials.of(self.spec)
        await self.process.credentials.reload()


async def play(seed: int) -> list[str]:
    """The problems that the judge found in the life of this issuer."""
    chance = random.Random(seed)
    of = peculiar(chance)
    spec = HttpServer(id="notes", url=Secret(of.server), oauth=written(of))
    with network(of) as net:
        async with processes() as (process,):
            script = Script(net, process, spec, chance)
            await script.log_in()
            if script.made is not None:
                script.judge(script.made.refresh_token is not None, "no refresh token")
                usual: list[Callable[[], Any]] = [script.refresh] * 5 + [script.fail, script.lose, script.turn_hostile]
                rare: list[Callable[[], Any]] = [script.forget_client, script.revoke, script.move, script.log_in]
                for _ in range(STEPS):
                    step = chance.choice(usual + rare)
                    script.played.append(step.__name__)
                    await step()
                # A person can log in again, whatever happened, and the login is then good.
                script.played.append("the last login")
                await script.log_in()
                await script.refresh()
            script.judge(net.strays == [], f"astray: {net.strays}")
            return [f"{seed}: {problem}" for problem in script.problems]


@pytest.mark.few(5)
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_issuers(batch: int) -> None:
    for seed in range(batch, ISSUERS, BATCHES):
        assert await play(seed) == []


def _drops_refresh_token(self: Login, tokens: Any, now: float) -> Login:
    renewed: Login = _RENEWED(self, structs.replace(tokens, refresh_token=tokens.refresh_token or "gone"), now)
    return renewed


_RENEWED = Login.renewed
BROKEN: dict[str, list[tuple[object, str, object]]] = {
    "any refusal ends a login": [(credentials, "_FINAL", (*credentials._FINAL, "", "temporarily_unavailable"))],
    "the former refresh token is dropped": [(Login, "renewed", _drops_refresh_token)],
    "each issuer is the same": [(module, "same_issuer", lambda *_: True) for module in (discovery, documents, login)],
    "a dead refresh token is tried for ever": [(credentials, "_FINAL", ())],
}


@pytest.mark.few(2)
@pytest.mark.parametrize("how", BROKEN)
async def test_the_judge_notices(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, broken in BROKEN[how]:
        monkeypatch.setattr(owner, name, broken)
    for seed in range(60):
        if await play(seed):
            return
    pytest.fail("the judge has not noticed")
