"""The JSON files in which former versions of Colonnade kept a configuration's state: imported into the database once.

A file is `{"check":"sha256:<of the content's bytes>","content":{...}}`. `pins.json` held definitions, `grants.json`
grants; an empty `pins.json.seen` stayed if the file was deleted.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from host.storage.directory import ConfigDirectory
from host.storage.store import ApprovedDefinition, OfferedDefinition, StoredGrant, StoredItem

_HEAD = b'{"check":"sha256:'
_MIDDLE = b'","content":'
_BODY_AT = len(_HEAD) + 64 + len(_MIDDLE)
_FILES = ("pins.json", "grants.json")

T = TypeVar("T", bound=msgspec.Struct)


class _Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    approved: ApprovedDefinition | None = None
    offered: OfferedDefinition | None = None
    rejected: str | None = None
    closed: bool = False


class _Pins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    servers: dict[str, dict[str, dict[str, _Item]]]
    lost: list[str]


class _Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    caller: str | None
    server: str
    kind: str
    name: str
    fingerprint: str
    launch: str
    rule: str
    digest: str | None
    when: msgspec.Raw
    scope: str
    made: float
    expires: float | None
    by: str
    retry: bool


class _Grants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    grants: list[_Grant]


class _Unreadable(Exception):
    """The file is not as Colonnade wrote it. The text says why."""


@dataclass(frozen=True, slots=True)
class FormerContent:
    """The content of the files. `lost` says, as a sentence, why what was approved cannot be known."""

    items: Mapping[tuple[str, str], Mapping[str, StoredItem]] = field(default_factory=dict)
    closed_servers: tuple[str, ...] = ()
    grants: tuple[StoredGrant, ...] = ()
    lost: str | None = None


def read_former(directory: ConfigDirectory) -> FormerContent:
    """The content of the files. Grants that cannot be read are left out: they do not hold then."""
    lost: str | None = None
    pins: _Pins | None = None
    try:
        pins = _read(directory.path / "pins.json", _Pins)
        if pins is None and os.path.lexists(directory.path / "pins.json.seen"):
            lost = "the file with the approved definitions is gone"
    except _Unreadable as problem:
        lost = f"the file with the approved definitions cannot be imported: {problem}"
    try:
        grants = _read(directory.path / "grants.json", _Grants)
    except _Unreadable:
        grants = None
    return FormerContent(
        {} if pins is None else _items(pins),
        () if pins is None else tuple(pins.lost),
        () if grants is None else tuple(_grant(grant) for grant in grants.grants),
        lost,
    )


def set_former_aside(directory: ConfigDirectory) -> None:
    """Move the files to `imported/`: what is there now is in the database."""
    found = [path for name in _FILES for path in directory.path.glob(f"{name}*")]
    if not found:
        return
    kept = directory.path / "imported"
    kept.mkdir(mode=0o700, exist_ok=True)
    for path in found:
        os.replace(path, kept / path.name)
    (directory.path / "lock").unlink(missing_ok=True)


def _read(path: Path, form: type[T]) -> T | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise _Unreadable(str(problem.strerror)) from problem
    body = data[_BODY_AT:-2]
    if data[:_BODY_AT] != _HEAD + hashlib.sha256(body).hexdigest().encode() + _MIDDLE or data[-2:] != b"}\n":
        raise _Unreadable("it was cut or edited")
    try:
        content = msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise _Unreadable("it has another form") from problem
    if getattr(content, "version") != 1:  # noqa: B009 - both forms have one
        raise _Unreadable("it is of another version")
    return content


def _items(pins: _Pins) -> dict[tuple[str, str], dict[str, StoredItem]]:
    return {
        (server, kind): {
            name: StoredItem(item.approved, item.offered, item.rejected, item.closed) for name, item in items.items()
        }
        for server, kinds in pins.servers.items()
        for kind, items in kinds.items()
    }


def _grant(grant: _Grant) -> StoredGrant:
    fields = msgspec.structs.asdict(grant)
    conditions = bytes(fields.pop("when")).decode()
    return StoredGrant(conditions=conditions, **fields)
