"""Random orders of what clients do with their sessions, and of crashes and stops of their host, while the store is
locked now and then: a session goes on as its client left it, and one that has ended does not come back.

A host that crashes stores nothing more, and is reached by nobody.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import trio
from hypothesis import given, settings
from trio.testing import MockClock

from config import Auth, Listen, Secret
from host.addresses import Addresses
from host.downstream.sessions import Session
from host.downstream.stored_sessions import IDLE_TIMEOUT, PAUSE, RETRY_INTERVAL, TOUCH_INTERVAL
from tests.kit.asgi import Connection, open_http_app
from tests.kit.examples import examples
from tests.kit.folders import folder
from tests.kit.gates import locked
from tests.kit.scripts import Step, scripts
from tests.kit.world import ScriptedServer

STEPS = {
    "open": 4,
    "use": 4,
    "level": 3,
    "watch": 3,
    "unwatch": 2,
    "delete": 2,
    "rotate": 1,
    "crash": 3,
    "stop": 2,
    "settle": 4,
    "lock": 1,
    "unlock": 2,
    "wait": 1,
}
LEVELS = ("debug", "error", "emergency")
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


class Client:
    """A client, and what its session may be by all that it knows. `states`: the level and the watched URIs; None for no
    session. There are several after a crash that may have come before the last changes were stored."""

    def __init__(self, connection: Connection, name: str, token: str) -> None:
        self.connection = connection
        self.name = name
        self.token = token
        self.states: set[tuple[str | None, frozenset[str]] | None] = {None}
        self.stored = set(self.states)
        """Those that the store may have."""

    def becomes(self, state: tuple[str | None, frozenset[str]] | None) -> None:
        self.states = {state}
        self.stored.add(state)


class Machine:
    """Plays a script. Public methods are its steps."""

    def __init__(self, state: Path, hosts: AsyncExitStack) -> None:
        self._state = state
        self._hosts = hosts
        self._host = AsyncExitStack()
        self._lock = ExitStack()
        self._is_locked = False
        self._tokens = {"laptop": "laptop-0123456789abcdef", "desk": "desk-0123456789abcdef"}
        self._clients: list[Client] = []
        self.went_on = 0

    @property
    def _listen(self) -> Listen:
        return Listen(auth=Auth({name: Secret(token) for name, token in self._tokens.items()}))

    async def start(self) -> None:
        server = ScriptedServer("a", tools=["x"], resources=["a://0", "a://1"], capabilities=DECLARED)
        opened = open_http_app(server, state=self._state, key=bytes(32), stores_sessions=True, listen=self._listen)
        self._host = await self._hosts.enter_async_context(AsyncExitStack())
        self._world, self._connection = await self._host.enter_async_context(opened)
        for client in self._clients:
            former, client.connection = client.connection, self._connection.another(client.connection.session)
            client.connection.headers = former.headers

    async def open(self, name: int, _: int) -> None:
        name_of = ("laptop", "desk")[name % 2]
        client = Client(self._connection.another(), name_of, self._tokens[name_of])
        client.connection.headers = {"authorization": f"Bearer {client.token}"}
        await client.connection.open()
        client.becomes((None, frozenset()))
        self._clients.append(client)

    async def use(self, which: int, foreign: int) -> None:
        client = self._pick(which)
        if client is None:
            return
        if foreign % 4 == 0:  # another name's token, which reaches nothing
            other = client.connection.another(client.connection.session)
            name = "desk" if client.name == "laptop" else "laptop"
            other.headers = {"authorization": f"Bearer {self._tokens[name]}"}
            assert (await other.get("POST", body=PING)).status in ((404, 503) if self._is_locked else (404,))
        await self._look(client)

    async def level(self, which: int, level: int) -> None:
        client = self._pick(which)
        if client is not None and (state := await self._look(client)) is not None:
            await client.connection.request("logging/setLevel", {"level": LEVELS[level % 3]})
            client.becomes((LEVELS[level % 3], state[1]))

    async def watch(self, which: int, uri: int) -> None:
        await self._watch(which, f"a://{uri % 2}", "resources/subscribe")

    async def unwatch(self, which: int, uri: int) -> None:
        await self._watch(which, f"a://{uri % 2}", "resources/unsubscribe")

    async def _watch(self, which: int, uri: str, method: str) -> None:
        client = self._pick(which)
        if client is not None and (state := await self._look(client)) is not None:
            assert "result" in await client.connection.request(method, {"uri": uri})
            client.becomes((state[0], state[1] | {uri} if method == "resources/subscribe" else state[1] - {uri}))

    async def delete(self, which: int, _: int) -> None:
        client = self._pick(which)
        if client is not None and await self._look(client) is not None:
            status = (await client.connection.get("DELETE")).status
            assert status == 204 or (status == 503 and self._is_locked)
            client.becomes(None)
            if status == 204:
                client.stored = {None}

    async def rotate(self, which: int, value: int) -> None:
        """Give a token another value, for new clients."""
        name = ("laptop", "desk")[which % 2]
        self._tokens[name] = f"{name}-{value}-{len(self._clients)}-0123456789abcdef"
        self._connection.change_access(self._listen, Addresses())
        for client in self._clients:
            if client.token not in self._tokens.values():
                client.states = client.stored = {None}

    async def crash(self, *_: int) -> None:
        self._world.gate.definitions.pins._db.problem = "this host was killed, and stores nothing any more"
        for client in self._clients:
            client.states = set(client.stored)
        self._release()
        await self.start()

    async def stop(self, *_: int) -> None:
        await self._host.aclose()
        for client in self._clients:
            if not self._is_locked:
                client.stored = set(client.states)
            client.states = set(client.stored)
        self._release()
        await self.start()

    def _release(self) -> None:
        """Release the lock: no host can start before."""
        self._lock.close()
        self._is_locked = False

    async def settle(self, *_: int) -> None:
        await trio.sleep(20 * PAUSE)
        if not self._is_locked:
            self._is_stored()

    async def lock(self, *_: int) -> None:
        if not self._is_locked:
            self._lock.enter_context(locked(self._state))
            self._is_locked = True

    async def unlock(self, *_: int) -> None:
        if self._is_locked:
            self._release()
            await trio.sleep(2 * RETRY_INTERVAL)
            self._is_stored()

    async def wait(self, seconds: int, _: int) -> None:
        await trio.sleep(seconds * TOUCH_INTERVAL / 8)

    def _is_stored(self) -> None:
        for client in self._clients:
            client.stored = set(client.states)

    def _pick(self, which: int) -> Client | None:
        return self._clients[which % len(self._clients)] if self._clients else None

    async def _look(self, client: Client) -> tuple[str | None, frozenset[str]] | None:
        """Use the session, and see what it is."""
        was_open = self._open(client) is not None
        status = (await client.connection.get("POST", body=PING)).status
        if status == 503:
            assert self._is_locked
            return None
        if status == 401:
            assert client.states == {None}
            return None
        found: tuple[str | None, frozenset[str]] | None = None
        if status == 200:
            session = self._open(client)
            assert session is not None
            found = session.level, frozenset(session.watched or ())
            self.went_on += not was_open
        assert found in client.states, (found, client.states)
        client.states = {found}
        return found

    def _open(self, client: Client) -> Session | None:
        """The client's session, if the present host has it."""
        said = f"session {(client.connection.session or '')[:6]} "
        rows = [each for each in self._connection.clients._sessions if said in each.name and not each.ended.is_set()]
        return rows[0] if rows else None

    async def play(self, script: list[Step]) -> None:
        await self.start()
        try:
            for name, first, second in script:
                await getattr(self, name)(first, second)
            await self.unlock()
            await self.settle()
            await self.crash()
            for client in self._clients:
                await self._look(client)
            await trio.sleep(IDLE_TIMEOUT + TOUCH_INTERVAL)
            for client in self._clients:
                client.states = {None}
                await self._look(client)
        finally:
            self._lock.close()


DECLARED = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}


def run(script: list[Step]) -> Machine:
    async def main() -> Machine:
        with folder() as state, pytest.MonkeyPatch.context() as patch:
            patch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.01)
            async with AsyncExitStack() as hosts:
                machine = Machine(state / "state", hosts)
                await machine.play(script)
                return machine

    return trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(scripts(STEPS, max_size=30))
def test_sessions_go_on_as_they_were_left_or_have_ended(script: list[Step]) -> None:
    run(script)


@pytest.mark.slow
def test_the_machine_sees_sessions_go_on() -> None:
    script = [("open", 0, 0), ("open", 1, 0), ("level", 0, 0), ("watch", 1, 0), ("settle", 0, 0), ("crash", 0, 0)]
    assert run([*script, ("use", 0, 1), ("use", 1, 1), ("delete", 1, 0)]).went_on == 3, "two, and one at the end"
