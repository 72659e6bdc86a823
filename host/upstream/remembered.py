"""Remembered servers: what each server offered when it was last connected, so that a host can list it while the server
is still starting.

What is remembered adds no right. It is published like a list of the server itself: an entry is visible only if consent
and approvals show it, and a call waits for the server and for its present definition (`Upstreams.wait_started`).

It holds for one identity of the server: the configuration with which it is reached, its credentials included, and its
launch. With another configuration, program, URL or credential, nothing is remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, final, get_type_hints

import msgspec
from msgspec import Raw

from config import HttpServer, ServerSpec
from config.environment import handed_on
from host.catalog import Catalog, Definition, Entry
from host.jsonrpc.withheld import Withheld
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.protocol.versions import LEGACY, MODERN
from host.slices import pause
from host.source import Source
from host.storage.sql import Store
from host.storage.store import RememberedServer

_LINE = msgspec.json.Decoder(tuple[str, bool, Raw])
"""One entry of a stored list: name, whether a call may become a task, and the definition as the server wrote it."""

_USER_VARIABLES = ("HOME", "USER", "XDG_CONFIG_HOME", "XDG_DATA_HOME")


class Remembered(NamedTuple):
    """What is remembered of one server."""

    negotiated: NegotiatedServer
    lists: dict[Kind, list[Definition]]

    async def without(self, withheld: Withheld) -> Remembered:
        """The same with these texts replaced."""
        lists: dict[Kind, list[Definition]] = {}
        for kind, definitions in self.lists.items():
            lists[kind] = []
            for each in definitions:
                await pause()
                raw = withheld.replaced(each.raw) if withheld.may_be_in(each.raw) else each.raw
                lists[kind].append(Definition(withheld.replaced_in_text(each.name), raw, each.may_be_task))
        clean, said = withheld.replaced_in_text, self.negotiated
        negotiated = msgspec.structs.replace(
            said,
            server=clean(said.server),
            instructions=None if said.instructions is None else clean(said.instructions),
            info=tuple((name, clean(text)) for name, text in said.info),
            beside=withheld.replaced(said.beside.encode()).decode(),
        )
        return Remembered(negotiated, lists)


@final
class RememberedServers:
    """What is remembered of the servers of one configuration file.

    Args:
        key: secret for the digests of identities, since credentials are part of them.
        catalog, pins: what the servers offer now.
        login_of: gives the name of the login for a server, which stays the same while its tokens change; empty without
            one.
    """

    def __init__(
        self, store: Store, key: bytes, catalog: Catalog, pins: Pins, login_of: Callable[[ServerSpec], str]
    ) -> None:
        self._login_of = login_of
        self._store = store
        self._key = key
        self._catalog = catalog
        self._pins = pins

    async def load(self, spec: ServerSpec, source: Source) -> Remembered | None:
        """The memory of this server with its present identity, for the login of this source. Its launch must
        have been observed.

        Raises:
            StateError: it cannot be read.
        """
        if _is_of_unknown_owner(spec):
            return None
        stored = await self._store.read_remembered(spec.id, self._identity(spec, source))
        if stored is None:
            return None
        try:
            lists: dict[Kind, list[Definition]] = {}
            for kind, entries in stored.lists.items():
                definitions = lists[Kind(kind)] = []
                for line in entries.splitlines():
                    await pause()
                    name, may_be_task, raw = _LINE.decode(line)
                    definitions.append(Definition(name, bytes(raw), may_be_task))
            return Remembered(_read_negotiated(stored.negotiated), lists)
        except (ValueError, KeyError):  # msgspec's errors are ValueErrors
            return None  # another version wrote it

    async def save(
        self, spec: ServerSpec, source: Source, negotiated: NegotiatedServer, kinds: Collection[Kind]
    ) -> None:
        """Remember what this source offers now: its lists of these kinds. Lists of other kinds stay as remembered, also
        those that are not listed any more, because another server has its place.

        Raises:
            StateError: it cannot be stored.
        """
        if _is_of_unknown_owner(spec):
            return
        identity = self._identity(spec, source)
        listed = {kind: self._catalog.listed(source, kind) for kind in kinds}
        lists: dict[str, bytes] = {}
        for kind, entries in listed.items():
            if entries is not None:
                lists[kind.value] = await self._lines(entries)
        remembered = RememberedServer(identity, _write_negotiated(negotiated), lists)
        await self._store.write(lambda transaction: transaction.put_remembered(spec.id, remembered))

    async def _lines(self, entries: Iterable[Entry]) -> bytes:
        lines: list[bytes] = []
        for entry in entries:
            await pause()
            # The catalog has the definitions of untrusted servers without invisible characters.
            raw = self._pins.offered_definition(entry.ref)
            if raw is not None:
                lines.append(msgspec.json.encode((entry.ref.name, entry.may_be_task, Raw(raw))))
        return b"\n".join(lines)

    def _identity(self, spec: ServerSpec, source: Source) -> str:
        """Digest of all that decides which server answers, and for whom."""
        # Programs find the credentials of their user in these folders.
        user = [] if isinstance(spec, HttpServer) else [os.environ.get(name, "") for name in _USER_VARIABLES]
        login = self._login_of(spec)
        whose = [*([login] if login else []), *([[source.owner]] if source.owner else [])]
        written = json.dumps([self._pins.launch(spec.id), _reached(spec), user, *whose])
        return hashlib.blake2b(written.encode(), key=self._key, digest_size=32, person=b"remembered").hexdigest()


def _is_of_unknown_owner(spec: ServerSpec) -> bool:
    """Whether the credentials are known only after the connection began, so that nothing can be remembered for them."""
    return isinstance(spec, HttpServer) and spec.headers_helper is not None


def is_same_server(one: ServerSpec, other: ServerSpec) -> bool:
    """Whether both configurations reach the same server for the same owner of credentials."""
    return _reached(one) == _reached(other)


def _reached(spec: ServerSpec) -> list[object]:
    if isinstance(spec, HttpServer):
        words = [word.reveal() for word in spec.headers_helper or ()]
        return [spec.protocol.value, spec.url.reveal(), _revealed(spec.headers.items()), words]
    words = [word.reveal() for word in spec.command]
    variables = sorted({**handed_on(spec), **dict(_revealed(spec.env.items()))}.items())
    return [spec.protocol.value, words, str(spec.cwd), variables]


def _revealed(values: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    return sorted((name, value.reveal()) for name, value in values)


def _write_negotiated(negotiated: NegotiatedServer) -> str:
    fields = msgspec.structs.asdict(negotiated)
    return msgspec.json.encode({**fields, "revision": negotiated.revision.name}).decode()


def _read_negotiated(text: str) -> NegotiatedServer:
    found = msgspec.json.decode(text)
    revision = {**LEGACY, **MODERN}[found.pop("revision")]
    types = get_type_hints(NegotiatedServer)
    return NegotiatedServer(revision, **{name: msgspec.convert(value, types[name]) for name, value in found.items()})
