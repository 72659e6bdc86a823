"""Two processes on one state that refresh a login in any order, while people log in and out and the issuer fails now
and then: no refresh token is used twice, and what a person did last is what is stored."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qsl

import pytest
import trio

from host.journal import InternalError
from host.oauth.problem import OAuthProblem
from host.storage.sql import Transaction
from host.storage.store import StoredCredential
from host.upstream import credentials
from host.upstream.credentials import LoginUnavailable
from host.upstream.vault import Vault
from host.wire.asgi import Receive, Scope, Send, read_body, respond
from host.wire.listener import serve_http
from host.wire.port import bind
from tests.kit.issuer import Issuer
from tests.kit.logins import NOTES, VAULT, Process, login, present, processes

ORDERS = 12
OTHER_VAULT = Vault(b"k" * 32)
"""That of a process with another key."""


class RotatingIssuer(Issuer):
    """Takes each refresh token once. `reused`: those that came again."""

    def __init__(self, id: str, chance: random.Random) -> None:
        super().__init__(id)
        self.count = 1
        self.good = {"refresh-1"}
        self.spent: set[str] = set()
        self.reused: list[str] = []
        self._chance = chance

    def new_tokens(self) -> dict[str, str]:
        self.count += 1
        self.good.add(f"refresh-{self.count}")
        return {"access_token": f"access-{self.count}", "refresh_token": f"refresh-{self.count}"}

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        form = dict(parse_qsl((await read_body(receive, 1 << 16)).decode()))
        await trio.sleep(self._chance.random() * 0.02)
        status, answer = self._refresh(form["refresh_token"])
        await respond(send, status, {}, json.dumps(answer).encode())

    def _refresh(self, token: str) -> tuple[int, dict[str, object]]:
        failure = self._chance.random()
        if failure < 0.1:
            return 503, {}
        if token in self.spent:
            self.reused.append(token)
        if failure < 0.15 or token not in self.good:
            return 400, {"error": "invalid_grant"}
        self.good.remove(token)
        self.spent.add(token)
        return 200, {**self.new_tokens(), "token_type": "Bearer", "expires_in": self._chance.choice([1, 600])}


async def use(process: Process, issuer: Issuer, chance: random.Random) -> None:
    """Need tokens, have them refused, and miss scopes."""
    credential = process.of(issuer)
    for _ in range(15):
        with suppress(LoginUnavailable):
            await credential.renew(chance.choice([None, credential.current()]))
        await trio.sleep(chance.random() * 0.01)
        if chance.random() < 0.3:
            credential.note_missing([f"scope-{chance.randrange(10)}"])


async def follow(process: Process, chance: random.Random) -> None:
    while True:
        await trio.sleep(chance.random() * 0.01)
        await process.credentials.reload()


async def decide(process: Process, issuer: RotatingIssuer, chance: random.Random) -> str:
    """Log in, also with another key, and out. What was done last: the name of a login, or one of the other two."""
    last = "login-1"
    for number in range(2, 8):
        await trio.sleep(chance.random() * 0.06)
        process.clock.time += chance.choice([0, 1, 700])
        kind = chance.choice(["in", "in", "out", "other key", "nothing"])
        if kind != "nothing":
            made = login(issuer, id=f"login-{number}", **issuer.new_tokens())
            sealed = None if kind == "out" else (OTHER_VAULT if kind == "other key" else VAULT).close(NOTES, made)
            await process.store.write(partial(change, sealed))
            last = made.id if kind == "in" else kind
    return last


def change(sealed: StoredCredential | None, transaction: Transaction) -> None:
    if sealed is None:
        transaction.remove_credential(NOTES)
    else:
        transaction.put_credential(NOTES, sealed)


def stored(process: Process) -> str:
    """The stored login, in the words of `decide`."""
    try:
        found = present(process.store)
    except OAuthProblem:
        return "other key"
    return "out" if found is None else found.id


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(ORDERS))
async def test_refreshes_in_any_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LEASE", 1e6)  # the time of the test jumps, and would end a lease
    chance, bound = random.Random(seed), bind("127.0.0.1", 0)
    issuer = RotatingIssuer(f"http://127.0.0.1:{bound.getsockname()[1]}", chance)
    async with trio.open_nursery() as background, processes(2, stored=login(issuer)) as found:
        await background.start(serve_http, issuer.serve, bound)
        for process in found:
            background.start_soon(follow, process, chance)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for process in found * 3:
                    nursery.start_soon(use, process, issuer, chance)
                last = await decide(found[0], issuer, chance)
        assert stored(found[0]) == last
        assert issuer.reused == []
        assert not [event for process in found for event in process.reported if isinstance(event, InternalError)]
        background.cancel_scope.cancel()
