"""The servers and their states as one JSON object: what `GET /status` gives and `colonnade list` shows."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import trio

from config import HttpServer
from host.catalog import Catalog
from host.journal import Journal
from host.jsonrpc.raw import encode
from host.memory import Budget
from host.protocol.methods import LIST_METHODS, Kind
from host.upstream.supervisor import Connecting, Failed, Held, Ready, Upstream, describe_state
from host.upstream.upstreams import Upstreams
from host.version import VERSION


def status(
    upstreams: Upstreams, catalog: Catalog, journal: Journal, *, parked: int, tasks: int, memory: Budget
) -> bytes:
    """`{"colonnade": version, "parked": number, "tasks": number, "process": {...}, "memory": {...}, "servers": [...]}`.

    `parked` calls are under way that may have to wait for an answer of their client, and `tasks` that are tasks or may
    become some. `process` is as of `usage`. `memory` is the budget in bytes: `limit`, `used`, `by_use`, and what the
    `largest_owner` holds. A server has `id`,
    `title`, `transport`, `state` (one of `starting`, `ready`, `failed`, `held`, `disabled`), `detail` in words, `since`
    and `next_attempt_in` in seconds, `attempts`, `revision` and `says` (what it calls itself), `entries` by kind,
    `isolation`, the number of dedicated `instances` that live and may live (`max_instances`), and `dropped` (messages
    dropped, by reason)."""
    servers = [_server(upstream, upstreams, catalog, journal) for upstream in upstreams.by_id.values()]
    told: dict[str, object] = {"colonnade": VERSION, "parked": parked, "tasks": tasks, "process": usage()}
    told |= {"memory": _memory(memory), "servers": servers}
    return bytes(encode(told))


def usage() -> dict[str, int | None]:
    """Resources of this process that cannot be read from outside: open `descriptors` and how many there may be, and the
    resident `memory` in bytes, now and at its peak. None where the system does not tell (outside Linux)."""
    unknown = dict.fromkeys(("descriptors", "max_descriptors", "memory", "memory_peak"))
    try:
        lines = [line.partition(":") for line in Path("/proc/self/status").read_text().splitlines()]
        kibibytes = {name: int(text.split()[0]) for name, _, text in lines if name in ("VmRSS", "VmHWM")}
        return {
            "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # one is that of the listing
            "max_descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "memory": kibibytes["VmRSS"] * 1024,
            "memory_peak": kibibytes["VmHWM"] * 1024,
        }
    except (OSError, ValueError, KeyError, IndexError):
        return unknown


def _memory(memory: Budget) -> dict[str, object]:
    """Bytes that messages may take, that they take, and by what they are taken; the largest owner's part of it."""
    return {
        "limit": memory.total,
        "used": memory.used,
        "by_use": memory.by_use(),
        "largest_owner": max(memory.by_owner().values(), default=0),
    }


def _server(upstream: Upstream, upstreams: Upstreams, catalog: Catalog, journal: Journal) -> dict[str, object]:
    state = upstream.state
    id = upstream.spec.id
    now = trio.current_time()
    told: dict[str, object] = {
        "id": id,
        "title": upstream.spec.title,
        "transport": "stdio"
        if not isinstance(upstream.spec, HttpServer)
        else "sse"
        if upstream.dialect.http_sse
        else "http",
        "state": "disabled",
        "detail": describe_state(state),
        "attempts": upstream.attempts,
        "entries": {LIST_METHODS[kind].member: len(catalog.snapshot(kind).by_server.get(id, ())) for kind in Kind},
        "isolation": upstream.spec.isolation.value,
        "instances": len(upstreams.instances.get(id, ())),
        "max_instances": upstream.spec.max_instances if id in upstreams.instances else 0,
        "dropped": dict(journal.dropped.get(id, {})),
    }
    if isinstance(state, Ready):
        told |= {
            "state": "ready",
            "revision": state.client.negotiated.revision.name,
            "says": state.client.negotiated.server,
        }
    elif isinstance(state, Failed):
        told |= {"state": "failed", "next_attempt_in": round(max(state.next_attempt - now, 0.0), 2)}
    elif isinstance(state, Connecting):
        told["state"] = "starting"
    elif isinstance(state, Held):
        told["state"] = "held"
    if isinstance(state, Ready | Failed | Connecting | Held):
        told["since"] = round(now - state.since, 2)
    return told
