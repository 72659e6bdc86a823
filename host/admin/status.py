"""The servers and their states: the rows of the admin API that everybody may see, and the JSON object of them that
`GET /status` gives and `colonnade list` shows."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import trio

from config import HttpServer
from host.admin.schema import ProcessUsage, ServerState, ServerStatus
from host.catalog import Catalog
from host.journal import Journal
from host.jsonrpc.raw import encode
from host.memory import Budget
from host.protocol.methods import Kind
from host.sanitize import visible, with_said, without_directories
from host.source import Endpoint
from host.upstream.runtime import Runtime
from host.upstream.state import (
    Connecting,
    Disabled,
    Failed,
    Held,
    Installing,
    NeedsFolder,
    NeedsLogin,
    Ready,
    Stopped,
    describe_session,
    describe_state,
    said_in,
)
from host.upstream.supervisor import UpstreamServer
from host.upstream.upstreams import Upstreams
from host.version import VERSION
from host.views import View

_STATES: Mapping[type, ServerState] = {
    Connecting: "starting",
    Ready: "ready",
    Failed: "failed",
    Held: "held",
    Installing: "installing",
    Disabled: "disabled",
    Stopped: "stopped",
    NeedsLogin: "needs login",
    NeedsFolder: "needs folder",
}


def status(
    upstreams: Upstreams,
    runtime: Runtime,
    endpoint: Endpoint,
    *,
    parked: int,
    tasks: int,
    draining: bool = False,
    memory: Budget,
) -> bytes:
    """`{"colonnade": version, "parked": number, "tasks": number, "draining": bool, "process": {...}, "memory": {...},
    "servers": [...]}`, with the servers at this endpoint.

    `parked` calls are under way that may have to wait for an answer of their client, and `tasks` that are tasks or may
    become some. `draining`: the host has been told to stop. `process` is as of `usage`. `memory` is the budget in
    bytes: `limit`, `used`, `by_use`, and what the `largest_owner` holds."""
    view = runtime.gate.policies.views.view(endpoint.view)
    servers = [
        server_status(upstreams[id], runtime.catalog, runtime.journal, view, shorten=True)
        for id in upstreams.at(endpoint)
    ]
    for server in servers:
        if "session" in server:
            server["session"] = without_directories(server["session"])
    told: dict[str, object] = {"colonnade": VERSION, "parked": parked, "tasks": tasks, "draining": draining}
    told |= {"process": usage()}
    told |= {"memory": _memory(memory), "servers": servers}
    return bytes(encode(told))


def usage() -> ProcessUsage:
    """Resources of this process that cannot be read from outside: open `descriptors` and how many there may be, and the
    resident `memory` in bytes, now and at its peak. None where the system does not tell (outside Linux)."""
    unknown: ProcessUsage = {"descriptors": None, "max_descriptors": None, "memory": None, "memory_peak": None}
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


def server_status(
    server: UpstreamServer, catalog: Catalog, journal: Journal, view: View | None = None, *, shorten: bool = False
) -> ServerStatus:
    """The row of one server, with its texts made visible. `view`: only its entries count. `shorten`: programs see it,
    and get the last part of each path of this machine only; what a server with a URL says names none."""
    spec, state, instances = server.spec, server.main.state, server.instances
    why, said = describe_state(state), said_in(state)
    if shorten:
        why, said = without_directories(why), said if isinstance(spec, HttpServer) else without_directories(said)
    detail = with_said(why, said)
    entries = {kind: catalog.entries_of(spec.id, kind) for kind in Kind}
    counts = {
        kind: len(listed)
        if view is None or view.offers_all(spec.id, kind)
        else sum(view.offers_listed(spec.id, kind, each.ref.name) for each in listed)
        for kind, listed in entries.items()
    }
    http_transport: Literal["http", "sse"] = "sse" if server.main.dialect.http_sse else "http"
    row: ServerStatus = {
        "id": spec.id,
        "prefix": spec.outward_prefix,
        "title": None if spec.title is None else visible(spec.title),
        "transport": http_transport if isinstance(spec, HttpServer) else "stdio",
        "state": _STATES[type(state)],
        "detail": visible(detail),
        "attempts": server.main.attempts,
        "entries": {
            "tools": counts[Kind.TOOL],
            "resources": counts[Kind.RESOURCE],
            "resourceTemplates": counts[Kind.TEMPLATE],
            "prompts": counts[Kind.PROMPT],
        },
        "isolation": spec.isolation.value,
        "instances": 0 if instances is None else len(instances),
        "max_instances": 0 if instances is None else spec.max_instances,
        "dropped": dict(journal.dropped.get(spec.id, {})),
    }
    now = trio.current_time()
    if isinstance(state, Ready):
        row["revision"] = state.client.negotiated.revision.name
        row["says"] = visible(state.client.negotiated.server)
    elif isinstance(state, Failed) and not math.isinf(state.next_attempt):
        row["next_attempt_in"] = round(max(state.next_attempt - now, 0.0), 2)
    if server.session is not None and server.main.is_stateless:
        session = server.session.state
        if isinstance(session, Ready):
            row["session_revision"] = session.client.negotiated.revision.name
        described = describe_session(session)
        if described is not None and (isinstance(session, Ready) or isinstance(state, Ready)):
            row["session"] = visible(described)
    if not isinstance(state, Disabled):
        row["since"] = round(now - state.since, 2)
    return row
