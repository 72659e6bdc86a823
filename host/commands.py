"""What the commands do that need the whole program: serve, list, call. Each gives an exit code (command_line.py lists
them)."""

from __future__ import annotations

import json
import math
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from msgspec import Raw

from config import Config
from host.admin_client import find_hosts as find_running
from host.app import Host, open_host, serve, serve_over_stdio
from host.errors import AuditUnavailable, ColonnadeError, first_exception
from host.exchange import Answered, Caller, Exchange, NoClient
from host.heap import spare_collections
from host.journal import Journal
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode, members, value
from host.mcp_client import fetch_status, open_mcp_client
from host.names import server_of_name
from host.non_blocking import NonBlockingStream
from host.output import StatusLines, Terminal, open_log, printable
from host.outstanding import BrokenAnswer, PeerError
from host.protocol.methods import LIST_METHODS, TOOLS_CALL, Kind
from host.storage.directory import State
from host.storage.store import StateError
from host.upstream.catalog_sync import SendRequest, read_list
from host.upstream.supervisor import describe_counts
from host.wire.http_transport import AuthNeeded
from host.wire.link import LinkLost

DONE, FAILED, WRONG, UNREACHED = 0, 1, 2, 3
LIST_TIMEOUT = 15.0
"""Seconds that a list of all servers waits for those that are still starting."""
UNREACHABLE = (LinkLost, BrokenAnswer, ValueError, trio.TooSlowError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a command works on."""

    request: SendRequest
    has_capability: Callable[[str], bool]
    """Whether it offers a capability."""
    status: Callable[[], Awaitable[object | None]]
    """What its host says of its servers; None if that is no Colonnade."""
    notes: Callable[[], Awaitable[Sequence[tuple[str, str]]]]
    """What the owner of the host should know, by server; nothing for anybody else."""


Work = Callable[[Endpoint], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint to use: the one at `url`, or that of a host started from `config` for the moment."""

    url: str | None
    headers: Mapping[str, str]
    config: Config | None
    state: State | None
    """None if nothing is kept for the user here."""
    log_level: str


START_ERRORS = (StateError, AuditUnavailable)
"""What keeps a host from starting that the configuration cannot help."""


def serve_until_stopped(
    config: Config, state: State, bound: socket.socket | None, url: str, out: NonBlockingStream, log_level: str
) -> int:
    """Serve at the bound socket, which is known as `url`, or on standard input and output; states go to `out`. The exit
    code."""
    spare_collections()
    # Over stdio both go to standard error.
    journal = open_log(log_level, without=StatusLines.SHOWN_EVENTS if bound is None else ())
    states = StatusLines(Terminal(out))
    journal.subscribe(states.note)
    say = _to_terminal(out)
    code = DONE
    try:
        if bound is None:
            trio.run(serve_over_stdio, config, state, journal, say)
        else:
            trio.run(serve, config, state, bound, url, journal, say)
    except* START_ERRORS as group:
        print(f"colonnade: {first_exception(group)}", file=sys.stderr)
        code = WRONG
    return code


def _to_terminal(out: NonBlockingStream) -> Callable[[str], object] | None:
    """How the person who started the host is told what nobody else may read; None if nobody is there. Whoever starts a
    program from a file keeps what it says in one, too, where others read it."""
    if not sys.stderr.isatty():
        return None
    if out.isatty():
        return lambda line: out.write(f"{line}\n")
    return lambda line: print(line, file=sys.stderr, flush=True)


def show_list(target: Target, *, as_json: bool) -> int:
    """Print servers and entries; the exit code."""
    return _with_host(target, None, partial(_show, as_json=as_json))


def call_tool(target: Target, name: str, arguments: str, *, as_json: bool) -> int:
    """Call the tool with a JSON object and print what it says; the exit code."""
    params = encode({"name": name, "arguments": Raw(arguments.encode())})
    return _with_host(target, server_of_name(name), partial(_invoke, params=params, as_json=as_json))


def _with_host(target: Target, server: str | None, work: Work) -> int:
    """Run `work` against the endpoint. Of a host started for it, `server` (None: all of them) is waited for."""
    code = FAILED
    try:
        if target.url is not None:
            code = trio.run(_remotely, target.url, target.headers, target.state, work)
        elif target.config is not None and target.state is not None:
            code = trio.run(_locally, target.config, target.state, open_log(target.log_level), work, server)
    except* UNREACHABLE as group:
        problem = first_exception(group)
        needed = isinstance(problem, AuthNeeded)
        remedy = "; credentials are given by --header 'Authorization: Bearer TOKEN'" if needed else ""
        print(f"colonnade: {target.url or 'the host'}: {problem}{remedy}", file=sys.stderr)
        code = UNREACHED
    except* START_ERRORS as group:
        print(f"colonnade: {first_exception(group)}", file=sys.stderr)
        code = WRONG
    except* (PeerError, ColonnadeError) as group:
        print(f"colonnade: {first_exception(group)}", file=sys.stderr)
    return code


async def _remotely(url: str, headers: Mapping[str, str], state: State | None, work: Work) -> int:
    async with open_mcp_client(url, headers) as remote:
        has = remote.negotiated.capabilities.__contains__
        notes = partial(_notes_of_running, state, url)
        return await work(Endpoint(remote.request, has, partial(fetch_status, url, headers), notes))


async def _notes_of_running(state: State | None, url: str) -> Sequence[tuple[str, str]]:
    """Of the host behind the URL, if it is one of this user's."""
    for running in find_running(state.path) if state is not None else ():
        if running.problem is not None:
            continue
        told = running.get("state")
        if told["endpoint"] and f"{url}/".startswith(f"{told['endpoint']}/"):
            return notes(told["servers"])
    return ()


def notes(servers: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What is to be known of servers, as the office shows them."""
    found: list[tuple[str, str]] = []
    for server in servers:
        id = str(server["id"])
        if held := server["held"]:
            wait = "definition waits" if held == 1 else "definitions wait"
            found.append((id, f"{held} {wait} for approval (colonnade definitions)"))
        found += [(id, f"the rule {rule} matches nothing that it offers") for rule in server["unmatched"]]
        found += [(id, f"{each} is left out: clients could not read it") for each in server.get("left_out", ())]
        found += [(id, text) for text in server["warnings"]]
    return found


async def _locally(config: Config, state: State, journal: Journal, work: Work, server: str | None) -> int:
    async with open_host(config, state, journal) as host:
        wanted = [upstream for id, upstream in host.upstreams.by_id.items() if server in (None, id)]
        with trio.move_on_after(math.inf if server is not None else LIST_TIMEOUT):
            for upstream in wanted:
                await upstream.settled.wait()
        told = partial(_notes_of, host)
        return await work(Endpoint(partial(_ask_locally, host), lambda _: True, partial(_status_of, host), told))


async def _ask_locally(host: Host, method: str, params: Raw | None) -> Raw:
    request = Request(1, method, params)
    caller = Caller("command line", None)
    answer = await host.router.answer(Exchange(request, members(params or b"{}"), caller, NoClient()))
    assert isinstance(answer, Answered)
    return answer.result


async def _notes_of(host: Host) -> Sequence[tuple[str, str]]:
    return notes((await host.admin.sections(["servers"]))["servers"])


async def _status_of(host: Host) -> object:
    return json.loads(host.status())


async def _show(endpoint: Endpoint, *, as_json: bool) -> int:
    found: dict[Kind, list[Raw]] = {}
    for kind, listing in LIST_METHODS.items():
        found[kind] = []
        if endpoint.has_capability(listing.capability):
            try:
                await read_list(endpoint.request, listing, found[kind], [], lambda why: print(why, file=sys.stderr))
            except PeerError as refusal:
                print(f"{listing.method}: {refusal}", file=sys.stderr)
    status = await endpoint.status()
    if as_json:
        told = {LIST_METHODS[kind].member: [json.loads(bytes(raw)) for raw in raws] for kind, raws in found.items()}
        servers = status["servers"] if isinstance(status, dict) else None
        print(json.dumps({"servers": servers, **told}, indent=2))
        return DONE
    terminal = Terminal(sys.stdout)
    if isinstance(status, dict):
        for server in status["servers"]:
            _show_server(terminal, server)
        for id, text in await endpoint.notes():
            print(f"{id:<20} {terminal.faint('note:')} {printable(text)}")
        print()
    for kind, raws in found.items():
        for raw in raws:
            _show_entry(terminal, kind, raw)
    return DONE


def _show_server(terminal: Terminal, server: Mapping[str, object]) -> None:
    state = str(server["state"])
    entries = server["entries"]
    assert isinstance(entries, dict)
    counts = describe_counts((kind, entries.get(listing.member, 0)) for kind, listing in LIST_METHODS.items())
    detail = counts if state == "ready" else str(server["detail"])
    print(f"{server['id']!s:<20} {terminal.state(state)} {server['transport']!s:<6} {printable(detail)}".rstrip())


def _show_entry(terminal: Terminal, kind: Kind, raw: Raw) -> None:
    definition = members(raw)
    name = value(definition[LIST_METHODS[kind].key])
    said = next((value(definition[member]) for member in ("description", "title", "name") if member in definition), "")
    first = said.strip().splitlines()[0] if isinstance(said, str) and said.strip() else ""
    print(f"{kind.value:<9} {printable(str(name)):<44} {terminal.faint(printable(first)[:90])}".rstrip())


async def _invoke(endpoint: Endpoint, *, params: Raw, as_json: bool) -> int:
    result = json.loads(bytes(await endpoint.request(TOOLS_CALL.name, params)))
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        for block in result.get("content", []):
            text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
            print(printable(text, lines=True) if isinstance(text, str) else json.dumps(block))
    return FAILED if result.get("isError") is True else DONE
