"""The answers that a relay gives while a host starts: `initialize`, `server/discover` and the lists, in a file.

A desktop host waits about a second for its servers, and a start takes as long. So the host leaves what it answers its
clients, for each form of a client, and a relay answers from it (`relay_start.py: FirstAnswers`). All else waits for the
host, which then opens the session itself.

The file holds what clients were shown, so consent has been applied. It fits only what it was made from: the state of
the files and of the store, the programs of the servers, and the variables that restrict them. After any other decision,
nothing is answered from it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from msgspec import Raw

from config import Config, StdioServer
from host.addresses import addresses_of
from host.downstream.duplex import DuplexSession
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.stateless_stdio import StatelessStdio
from host.jsonrpc.messages import Failure, Message, ParsedInput, Request, Success
from host.jsonrpc.raw import encode, encode_object, members, string
from host.memory import Budget
from host.policy.fingerprint import program_of
from host.protocol.abilities import APPS_EXTENSION
from host.protocol.methods import DISCOVER, INITIALIZE, LIST_METHOD_BY_NAME, Kind
from host.protocol.stateless import with_envelope
from host.protocol.versions import LATEST, LATEST_LEGACY, LEGACY
from host.relay_start import FIRST_ANSWERS, RESTRICTING, seal_first_answers, values_digest
from host.slices import pause
from host.source import Endpoint
from host.storage.directory import State
from host.storage.store import Revisions
from host.version import VERSION

MAX_BYTES = 16 * 1024 * 1024
"""Bytes of all answers in the file. Longer lists are answered by the host alone."""
PIECE = 64 * 1024
"""Characters of an answer that are written between two pauses."""
SETTLING = 1.0
"""Seconds without a change after one, before the first file is written."""
RESETTLING = 3.0
"""The same before a file is replaced. Reading all lists in all revisions takes as long as some hundred calls, and a
list that changes once a second would have them read each time."""
CHECK_INTERVAL = 10.0
"""Seconds between two looks whether the store has changed, which another process may do. As long at most are lists
that change on and on waited for."""


_APPS: Mapping[str, object] = {"extensions": {APPS_EXTENSION: {}}}


class Recording:
    """Makes the file of one configuration.

    Args:
        revisions: the revisions of the store now; must not wait.
        in_effect: the configuration in effect, with the files that were looked at when it was read last; None while the
            next host would have another one.

    Attributes:
        views: those that clients of this host had; empty for none. The answers for them are in the file.
    """

    def __init__(
        self,
        state: State,
        source: Path,
        stateless: Stateless,
        memory: Budget,
        revisions: Callable[[], Revisions],
        in_effect: Callable[[], Config | None],
    ) -> None:
        self._path = state.for_config(source).path / FIRST_ANSWERS
        self._key = state.key()
        self._router = stateless.router
        self._stateless = stateless
        self._revisions = revisions
        self._memory = memory
        self._in_effect = in_effect
        self.views = {""}
        self._room = 0
        """The bytes that the answers may still take; below 0 if they are too long."""
        self._texts: dict[bytes, Raw] = {}
        """The answers that are being read by their digests, each once: most revisions have the same lists."""
        self._written: object = None
        """The basis of the present file."""

    async def keep(self) -> None:
        """Keep the file up to date, until cancelled."""
        version = 0
        while True:
            with trio.move_on_after(CHECK_INTERVAL):
                version = await self._router.catalog.wait_for_change(version)
                settle = SETTLING if self._written is None else RESETTLING
                with trio.move_on_after(settle) as settling:
                    while True:
                        version = await self._router.catalog.wait_for_change(version)
                        settling.deadline = trio.current_time() + settle
            await self.write()

    async def write(self) -> None:
        """Write the file, unless it is up to date. Whatever stands in the way: there is none then."""
        basis = self._basis()
        if basis == self._written:
            return
        answers = await self._answers(basis[0], basis[4]) if basis[0] is not None else None
        if answers is None or self._basis() != basis:
            with suppress(OSError):
                await trio.to_thread.run_sync(self._path.unlink)
            self._written = basis if self._room < 0 else None  # what was too long is not read again as it is
            return
        config, files, revisions, *_ = basis
        assert config is not None
        variables = sorted(config.own_variables | RESTRICTING)
        made_from = {
            "colonnade": VERSION,
            "files": {str(path): state for path, state in files.items()},
            "revisions": [revisions.definitions, revisions.credentials],
            "variables": variables,
            "values": values_digest(self._key, variables, os.environ),
            "programs": [
                _program(spec)
                for spec in config.servers.values()
                if isinstance(spec, StdioServer) and not spec.disabled
            ],
        }
        # Not by `encode`: a path may hold bytes that are no text.
        body = json.dumps(made_from).encode() + b"\n" + bytes(encode(answers))
        await trio.to_thread.run_sync(self._replace, body)
        self._written = basis

    def _basis(self) -> tuple[Config | None, dict[Path, str], Revisions, int, frozenset[str]]:
        config = self._in_effect()
        if config is not None and config.fleet is not None:
            config = None  # a relay cannot see what its processes decide
        return (
            config,
            {} if config is None else dict(config.files),
            self._revisions()._replace(grants=0),  # they change no list
            self._router.catalog.version,
            frozenset(self.views),
        )

    def _replace(self, body: bytes) -> None:
        """Raises nothing: without the file, a relay waits."""
        new = self._path.with_suffix(".new")
        with suppress(OSError):
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as file:
                file.write(seal_first_answers(self._key, body) + b"\n" + body)
            new.replace(self._path)

    async def _answers(self, config: Config, views: Iterable[str]) -> dict[str, Any] | None:
        """The answers by view, in the form that `FirstAnswers` reads; None if one of the requests was refused, or if
        they are too long."""
        self._room = MAX_BYTES
        addresses = addresses_of(config)
        endpoints = {view: endpoint for view in views if (endpoint := addresses.own(view)) is not None}
        found: dict[str, Any] | None
        try:
            found = {view: await self._answers_at(endpoint) for view, endpoint in endpoints.items()}
        except* _Refused:  # out of a nursery
            found = None
        self._texts.clear()
        return found

    async def _answers_at(self, endpoint: Endpoint) -> dict[str, Any]:
        """Raises _Refused."""
        forms: dict[str, dict[str, Any]] = {}
        for revision in LEGACY:
            forms[revision] = await self._record(endpoint, revision, {})
            if len(forms) == 1:
                self._expect(forms[revision]["lists"].values(), len(LEGACY))
            with_apps = await self._record(endpoint, revision, _APPS, lists=False)
            forms[revision]["opening"] |= {"apps": with_apps["opening"][""]}
        stateless = {LATEST.name: await self._record(endpoint, LATEST.name, {})}
        return {"forms": forms, "stateless": stateless, "default": LATEST_LEGACY.name}

    def _expect(self, lists: Iterable[Mapping[str, Raw]], times: int) -> None:
        """Raise _Refused if there is no room for these lists so many times more. Each reading of a list of several
        pages has other cursors, and later revisions leave no less in its definitions."""
        more = times * sum(len(text) for pages in lists if len(pages) > 1 for text in pages.values())
        if more > self._room:
            self._room = -1
            raise _Refused

    async def _record(
        self, endpoint: Endpoint, revision: str, capabilities: Mapping[str, object], *, lists: bool = True
    ) -> dict[str, Any]:
        """The answers to a client of this revision: `opening` by the form of its capabilities, and the pages of each
        list by their cursors. Raises _Refused."""
        shared = self._router, self._stateless.journal, None, self._stateless.tasks
        session = Session("first answers", endpoint, *shared, memory=self._memory)
        stateless_stdio = StatelessStdio(self._stateless, session, trio.Event())
        async with trio.open_nursery() as nursery:
            try:
                client = _Client(session, stateless_stdio, nursery, revision, capabilities, self._text_of)
                found: dict[str, Any] = {"opening": {"": await client.open()}, "lists": {}}
                varies = revision != LATEST.name and self._router.lists.depends_on_client(endpoint)
                for method, listing in LIST_METHOD_BY_NAME.items() if lists else ():
                    if listing.kind is not Kind.TOOL or not varies:  # else the relay waits for the host with it
                        found["lists"][method] = await client.read_list(method)
            finally:
                session.end()
                nursery.cancel_scope.cancel()
        return found

    async def _text_of(self, result: Raw) -> Raw:
        """The JSON text of a result, as a JSON string, in slices. Raises _Refused."""
        await pause()
        digest = hashlib.sha256(bytes(result)).digest()
        if (text := self._texts.get(digest)) is None:
            written, pieces = bytes(result).decode(), list[bytes]()
            for at in range(0, len(written), PIECE):
                await pause()
                pieces.append(bytes(encode(written[at : at + PIECE]))[1:-1])
            text = self._texts[digest] = Raw(b'"%b"' % b"".join(pieces))
        await pause()
        self._room -= len(bytes(text))
        if self._room < 0:
            raise _Refused
        return text


def _program(spec: StdioServer) -> tuple[str, str | None, str, str | None]:
    """The values that decide which program a server is, and the program, as `relay_start.py` compares them."""
    search_path = spec.env.get("PATH")
    return (
        spec.started_words[0],
        None if search_path is None else search_path.reveal(),
        "/" if spec.takes_client_folder else str(spec.cwd),
        program_of(spec),
    )


class _Refused(Exception):
    """A request was answered with an error, or the answers are too long."""


class _Client:
    """A client that is one of ours."""

    def __init__(
        self,
        session: Session,
        stateless_stdio: StatelessStdio,
        nursery: trio.Nursery,
        revision: str,
        capabilities: Mapping[str, object],
        text_of: Callable[[Raw], Awaitable[Raw]],
    ) -> None:
        self._text_of = text_of
        self._revision = revision
        self._capabilities = capabilities
        self._send, self._receive = trio.open_memory_channel[Message](math.inf)
        self._channel = DuplexSession(session, self._enqueue, self._send.send, nursery, stateless_stdio)

    def _enqueue(self, message: Message) -> bool:
        self._send.send_nowait(message)
        return True

    async def open(self) -> Raw:
        """The result of `initialize`, or of `server/discover`, as `text_of` gives it."""
        if self._revision == LATEST.name:
            return await self._text_of(await self._ask(DISCOVER, {}))
        info = {"name": "colonnade", "version": VERSION}
        params = {"protocolVersion": self._revision, "capabilities": self._capabilities, "clientInfo": info}
        return await self._text_of(await self._ask(INITIALIZE, params))

    async def read_list(self, method: str) -> dict[str, Raw]:
        """Each page by its cursor, as `text_of` gives it; the cursor of the first one is empty."""
        pages: dict[str, Raw] = {}
        cursor: str | None = ""
        while cursor is not None and cursor not in pages:
            page = await self._ask(method, {"cursor": cursor} if cursor else {})
            pages[cursor] = await self._text_of(page)
            following = members(page).get("nextCursor")
            cursor = None if following is None else string(following)
        return pages

    async def _ask(self, method: str, params: Mapping[str, object]) -> Raw:
        asked = {name: encode(value) for name, value in params.items()}
        if self._revision == LATEST.name:
            asked = with_envelope(asked, LATEST, self._capabilities, level=None, client_version=VERSION, token=None)
        self._channel.on_received(ParsedInput(Request(1, method, encode_object(asked)), None))
        async for message in self._receive:
            if isinstance(message, Success):
                return message.result
            if isinstance(message, Failure):
                raise _Refused
        raise AssertionError("the channel stays open")
