"""The folder that a client works in, for servers that run once per folder (`cwd: "${client:folder}"`).

It is the working folder of the client's program, as the kernel has it. A root that the client declares takes its place
if it is that folder or lies below it, so no client can name another folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import trio

from config import Secret, ServerSpec, StdioServer
from host.errors import Unavailable
from host.exchange import Caller
from host.jsonrpc.raw import EMPTY_OBJECT, items, members, string
from host.peer.outstanding import BrokenAnswer, PeerError
from host.policy.fingerprint import absolute_search_path
from host.protocol.server_requests import LIST_ROOTS
from host.protocol.versions import SESSION, STATELESS
from host.wire.link import LinkLost
from host.wire.process import child_environment

ROOTS_WAIT = 3.0
"""Seconds in which a client must name its roots; afterwards its own folder counts."""
_MAX_ROOTS = 100
"""Roots that are looked at: each takes several system calls."""


class ClientFolders:
    """The folders of all clients. Each is determined once, at the first use of a server that needs it."""

    def __init__(self) -> None:
        self._settled: WeakKeyDictionary[Caller, str] = WeakKeyDictionary()
        self._asking: WeakKeyDictionary[Caller, trio.Event] = WeakKeyDictionary()

    def known(self, caller: Caller) -> str | None:
        """The real path of the folder of a caller; empty if it has none, None if `settle` must be awaited first."""
        process = caller.process
        if process is None or not process.folder:
            return ""
        return self._settled.get(caller) if _names_roots(caller) else process.folder

    def within(self, folder: str | None, callers: Iterable[Caller]) -> list[Caller]:
        """Those of the callers that work in this folder."""
        return [caller for caller in callers if self.known(caller) == folder]

    async def settle(self, server: str, caller: Caller) -> str:
        """The real path of the folder of a caller, whose client may be asked for its roots.

        Raises:
            Unavailable: it has none, or no program can start there, so it cannot use this server.
        """
        folder = self.known(caller)
        while folder is None:
            if (asking := self._asking.get(caller)) is not None:
                await asking.wait()
            else:
                self._asking[caller] = asking = trio.Event()
                try:
                    self._settled[caller] = await _folder_by_roots(caller)
                finally:
                    del self._asking[caller]
                    asking.set()
            folder = self.known(caller)
        if not folder or not is_folder(folder):
            raise no_folder(server)
        return folder


def may_have_folder(caller: Caller) -> bool:
    """Whether `settle` may find a folder for a caller. A client that opens a session is asked for its roots, so it has
    none before that is open."""
    has_begun = caller.era is STATELESS or caller.session is not None
    return caller.process is not None and has_begun and is_folder(caller.process.folder)


def no_folder(server: str) -> Unavailable:
    """The error for a client without a folder at a server that runs in it."""
    text = f"{server} runs in the folder of its client, and this client has none that is known"
    return Unavailable(server, f"{text}; connect the client by colonnade serve --stdio on this machine")


def in_folder(spec: ServerSpec, folder: str) -> StdioServer:
    """The configuration of a server with the folder of a client in the place of the words that stand for it. PATH has
    no relative folders then, so that the program is the approved one whatever the folder holds."""
    assert isinstance(spec, StdioServer)
    env = child_environment({name: value.reveal() for name, value in spec.env.items()})
    path = absolute_search_path(env)
    return replace(
        spec, cwd=Path(folder), env=spec.env if env.get("PATH") == path else {**spec.env, "PATH": Secret(path)}
    )


def is_folder(path: str) -> bool:
    """Whether a program can start in the folder of this real path."""
    return os.path.isdir(path) and os.access(path, os.X_OK) and os.path.realpath(path) == path


def _names_roots(caller: Caller) -> bool:
    # A stateless client can be asked only in the result of a request (2026-07-28, "Multi Round-Trip Requests").
    return caller.era is SESSION and caller.abilities.roots


async def _folder_by_roots(caller: Caller) -> str:
    """The first root in the folder of the client's program; that folder if there is none."""
    assert caller.process is not None
    folder = caller.process.folder
    answer = EMPTY_OBJECT
    with trio.move_on_after(ROOTS_WAIT), suppress(PeerError, BrokenAnswer, LinkLost):
        answer = await caller.client.request(LIST_ROOTS, {}, None)
    try:
        uris = [string(members(root)["uri"]) for root in items(members(answer)["roots"])[:_MAX_ROOTS]]
    except (KeyError, ValueError):
        return folder
    return next((path for path in map(_path_in, uris) if path and _is_below(path, folder)), folder)


def _path_in(uri: str) -> str:
    """The real path of the folder that a `file:` URI of this machine names; empty if it names none."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        return ""
    path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path:
        return ""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else ""


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder
