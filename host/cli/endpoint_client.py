"""The work of `list` and `call` at an endpoint: one that runs somewhere, or that of a host started for the command."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trio
from msgspec import Raw

from config import Config
from host.app import START_ERRORS, Host, open_host
from host.cli.admin_client import find_hosts
from host.cli.exit_codes import DONE, FAILED, UNREACHED, WRONG, CommandFailed
from host.cli.log import open_log
from host.cli.terminal import Terminal, printable
from host.errors import ColonnadeError, first_exception
from host.exchange import Answered, Caller, Exchange, NoClient
from host.journal import Journal
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode, members, value
from host.mcp_client import fetch_status, open_mcp_client
from host.names import server_of_name
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.methods import LIST_METHODS, TOOLS_CALL, Kind
from host.storage.directory import State
from host.upstream.catalog_sync import SendRequest, read_list
from host.upstream.supervisor import describe_counts
from host.wire.http_transport import AuthNeeded
from host.wire.link import LinkLost

LIST_TIMEOUT = 15.0
"""Seconds that a list of all servers waits for those that are still starting."""
UNREACHABLE = (LinkLost, BrokenAnswer, ValueError, trio.TooSlowError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An open endpoint.

    Args:
        has_capability: whether it offers a capability.
        status: the JSON of `/status`; None if it is no Colonnade.
        notes: sentences for the owner of the host, each with the id of a server; none for others.
    """

    request: SendRequest
    has_capability: Callable[[str], bool]
    status: Callable[[], Awaitable[object | None]]
    notes: Callable[[], Awaitable[Sequence[tuple[str, str]]]]


Work = Callable[[Endpoint], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint to use: the one at `url`, or that of a host started from `config` for the command.

    Args:
        state: None if the user has no state directory, and none is needed.
    """

    url: str | None
    headers: Mapping[str, str]
    config: Config | None
    state: State | None
    log_level: str


def show_list(target: Target, *, as_json: bool) -> int:
    """Print servers and entries; the exit code. Raises CommandFailed."""
    return _with_host(target, None, partial(_show, as_json=as_json))


def call_tool(target: Target, name: str, arguments: str, *, as_json: bool) -> int:
    """Call the tool with a JSON object and print its result; the exit code. Raises CommandFailed."""
    params = encode({"name": name, "arguments": Raw(arguments.encode())})
    return _with_host(target, server_of_name(name), partial(_invoke, params=params, as_json=as_json))


def _with_host(target: Target, server: str | None, work: Work) -> int:
    """Run `work` at the endpoint. If a host is started for it, wait for this server first (None: for all)."""
    code = FAILED
    failure: CommandFailed | None = None
    try:
        if target.url is not None:
            code = trio.run(_remotely, target.url, target.headers, target.state, work)
        elif target.config is not None and target.state is not None:
            code = trio.run(_locally, target.config, target.state, open_log(target.log_level), work, server)
    except* UNREACHABLE as group:
        problem = first_exception(group)
        needed = isinstance(problem, AuthNeeded)
        remedy = "; credentials are given by --header 'Authorization: Bearer TOKEN'" if needed else ""
        failure = CommandFailed(f"{target.url or 'the host'}: {problem}{remedy}", UNREACHED)
    except* START_ERRORS as group:
        failure = CommandFailed(str(first_exception(group)), WRONG)
    except* (PeerError, ColonnadeError) as group:
        failure = CommandFailed(str(first_exception(group)))
    if failure is not None:
        raise failure
    return code


async def _remotely(url: str, headers: Mapping[str, str], state: State | None, work: Work) -> int:
    async with open_mcp_client(url, headers) as remote:
        has = remote.negotiated.capabilities.__contains__
        notes = partial(_notes_of_running, state, url)
        return await work(Endpoint(remote.request, has, partial(fetch_status, url, headers), notes))


async def _notes_of_running(state: State | None, url: str) -> Sequence[tuple[str, str]]:
    """The notes of the host at the URL, if it is one of this user's."""
    for running in find_hosts(state.path) if state is not None else ():
        if running.problem is not None:
            continue
        told = running.get("state")
        if told["endpoint"] and f"{url}/".startswith(f"{told['endpoint']}/"):
            return notes(told["servers"])
    return ()


def notes(servers: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """The notes that rows of servers of the admin API give reason for."""
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
