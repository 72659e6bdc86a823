"""Connections of `list`, `call`, `read` and `prompt` to an endpoint: one that runs somewhere, or that of a host started
for the command."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import trio
from msgspec import Raw

from config import Config
from host.admin.schema import LogLine
from host.app import START_ERRORS, Host, open_host
from host.cli.admin_client import find_hosts
from host.cli.exit_codes import UNREACHED, WRONG, CommandFailed
from host.cli.http_servers import choose_plain_server
from host.cli.listing import MAX_LOG_LINES, Listing, OwnersView, name_of, why_hidden
from host.cli.log import open_log
from host.cli.progress import ProgressBar
from host.cli.suggest import did_you_mean
from host.cli.terminal import Terminal
from host.errors import ColonnadeError, first_exception
from host.exchange import Answered, Caller, Exchange, NoClient, ProgressCallback
from host.journal import Journal
from host.jsonrpc.messages import Notification, Request
from host.jsonrpc.raw import encode, members
from host.mcp_client import fetch_status, open_mcp_client
from host.names import inward_uri, split_name, template_matches
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.meta import with_progress_token
from host.protocol.methods import LIST_METHODS, PROGRESS, Kind, Method
from host.sanitize import visible
from host.storage.directory import State
from host.upstream.pages import read_list
from host.wire.http_errors import AuthNeeded
from host.wire.link import LinkLost

LIST_TIMEOUT = 15.0
"""Seconds that a list of all servers waits for those that are still starting."""
UNREACHABLE = (LinkLost, BrokenAnswer, ValueError, trio.TooSlowError)

T = TypeVar("T")


class _Ask(Protocol):
    def __call__(self, method: str, params: Raw | None, report: ProgressCallback | None = None) -> Awaitable[Raw]: ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An open endpoint.

    Args:
        request: sends a request; `report` gets the progress.
        has_capability: whether it offers a capability.
        status: the JSON of `/status`; None if it is no Colonnade.
        owner: the host as its owner sees it; None for others.
    """

    request: _Ask
    has_capability: Callable[[str], bool]
    status: Callable[[], Awaitable[object | None]]
    owner: Callable[[], Awaitable[OwnersView | None]]


Work = Callable[[Endpoint], Awaitable[T]]


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


def fetch_listing(target: Target, server: str | None) -> Listing:
    """Everything there is to list; with a server, it alone is waited for. Raises CommandFailed."""
    return _with_host(target, server, _list)


def request_entry(target: Target, method: Method, name: str, params: Mapping[str, object]) -> Mapping[str, Any]:
    """Send a request that reaches one entry, and return its result. Progress is shown on standard error if that is a
    terminal. A name that is similar to an existing one is told with the refusal.

    Args:
        params: the params but for the name.

    Raises:
        CommandFailed: it was refused, or the endpoint cannot be reached.
    """
    servers = () if target.config is None else target.config.servers
    if method.kind is Kind.RESOURCE:
        found = inward_uri(name, servers)
        server = None if found is None else found[0]
    else:
        server, _ = split_name(name)
    raw = encode({method.target: name, **params})
    return _with_host(target, server, partial(_request, method=method, name=name, params=raw))


def _with_host(target: Target, server: str | None, work: Work[T]) -> T:
    """Run `work` at the endpoint. If a host is started for it, wait for this server first (None: for all)."""
    failure: CommandFailed
    try:
        if target.url is not None:
            return trio.run(_remotely, target.url, target.headers, target.state, work)
        assert target.config is not None
        assert target.state is not None
        return trio.run(_locally, target.config, target.state, open_log(target.log_level), work, server)
    except* CommandFailed as group:
        problem = first_exception(group)
        assert isinstance(problem, CommandFailed)
        failure = problem
    except* UNREACHABLE as group:
        cause = first_exception(group)
        why = cause.with_remedy if isinstance(cause, LinkLost) else str(cause)
        if isinstance(cause, AuthNeeded):
            why = f"{cause}; credentials are given by --header 'Authorization: Bearer TOKEN'"
        failure = CommandFailed(f"{target.url or 'the host'}: {why}", UNREACHED)
    except* START_ERRORS as group:
        failure = CommandFailed(str(first_exception(group)), WRONG)
    except* (PeerError, ColonnadeError) as group:
        failure = CommandFailed(str(first_exception(group)))
    raise failure


async def _remotely(url: str, headers: Mapping[str, str], state: State | None, work: Work[T]) -> T:
    async with open_mcp_client(url, headers) as remote:
        has = remote.negotiated.capabilities.__contains__
        owner = partial(trio.to_thread.run_sync, _view_of_running, state, url)
        return await work(Endpoint(remote.request, has, partial(fetch_status, url, headers), owner))


def _view_of_running(state: State | None, url: str) -> OwnersView | None:
    """The host at the URL, if it is one of this user's."""
    for running in find_hosts(state.path) if state is not None else ():
        if running.problem is None and running.endpoint and f"{url}/".startswith(f"{running.endpoint}/"):
            servers, catalog = running.get("state/servers")["servers"], running.get("state/catalog")["catalog"]
            logs = {
                id: running.post("servers/log", server=id)["lines"][-MAX_LOG_LINES:]
                for id in _without_connection(servers)
            }
            return OwnersView(servers, catalog, logs)
    return None


async def _locally(config: Config, state: State, journal: Journal, work: Work[T], server: str | None) -> T:
    async with open_host(config, state, journal, choose_plain_server(config.listen)) as host:
        wanted = [upstream for id, upstream in host.upstreams.by_id.items() if server in (None, id)]
        with trio.move_on_after(math.inf if server is not None else LIST_TIMEOUT):
            for upstream in wanted:
                await upstream.main.life.settled.wait()
        owner = partial(_view_of_own, host)
        return await work(Endpoint(partial(_ask_locally, host), lambda _: True, partial(_status_of, host), owner))


class _ProgressReader(NoClient):
    """The handle of a caller that takes progress, and nothing else beside the response."""

    def __init__(self, report: ProgressCallback) -> None:
        self._report = report

    def notify(self, notice: Notification) -> None:
        if notice.method == PROGRESS:
            self._report(members(notice.params or b"{}"))


async def _ask_locally(host: Host, method: str, params: Raw | None, report: ProgressCallback | None = None) -> Raw:
    sent = with_progress_token(params, None if report is None else 1)
    client = NoClient() if report is None else _ProgressReader(report)
    exchange = Exchange(Request(1, method, sent), members(sent or b"{}"), Caller("command line", None), client)
    answer = await host.router.answer(exchange)
    assert isinstance(answer, Answered)
    return answer.result


async def _view_of_own(host: Host) -> OwnersView:
    sections = await host.admin.sections(["servers", "catalog"])
    logs: dict[str, list[LogLine]] = {}
    for id in _without_connection(sections["servers"]):
        log = await host.admin.run_steps(host.admin.server_log(id, 0))
        logs[id] = log["lines"][-MAX_LOG_LINES:]
    return OwnersView(sections["servers"], sections["catalog"], logs)


def _without_connection(servers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The servers that failed, or are starting, perhaps again."""
    return [str(row["id"]) for row in servers if row["state"] in ("failed", "starting")]


async def _status_of(host: Host) -> object:
    return json.loads(host.status())


# Work at an endpoint


async def _list(endpoint: Endpoint) -> Listing:
    entries: dict[Kind, list[Raw]] = {}
    for kind in LIST_METHODS:
        try:
            entries[kind] = await _read_list(endpoint, kind)
        except PeerError as refusal:
            entries[kind] = []
            print(f"{LIST_METHODS[kind].method}: {refusal}", file=sys.stderr)
    status = await endpoint.status()
    if not isinstance(status, dict):
        return Listing(entries, None, None)
    ids = {row["id"] for row in status["servers"]}
    view = await endpoint.owner()
    if view is not None:
        rows = [row for row in view.servers if row["id"] in ids]
        view = replace(view, servers=rows, catalog=[row for row in view.catalog if row["server"] in ids])
    return Listing(entries, status["servers"], view)


async def _read_list(endpoint: Endpoint, kind: Kind) -> list[Raw]:
    found: list[Raw] = []
    listing = LIST_METHODS[kind]
    if endpoint.has_capability(listing.capability):
        await read_list(endpoint.request, listing, found, [], lambda why: print(why, file=sys.stderr))
    return found


async def _request(endpoint: Endpoint, *, method: Method, name: str, params: Raw) -> Mapping[str, Any]:
    bar = ProgressBar(Terminal(sys.stderr))
    try:
        result = await endpoint.request(method.name, params, bar.report)
    except (PeerError, ColonnadeError) as refusal:
        bar.close()
        if remedy := await _suggestion(endpoint, method.kind, name):
            raise CommandFailed(f"{refusal}; {remedy}") from refusal
        raise
    finally:
        bar.close()
    found = json.loads(bytes(result))
    return found if isinstance(found, dict) else {}


async def _suggestion(endpoint: Endpoint, kind: Kind, name: str) -> str:
    """The remedy for a name that is not listed; empty if it is, or is similar to none. The owner of the host hears why
    an entry is hidden."""
    try:
        names = [name_of(kind, raw) for raw in await _read_list(endpoint, kind)]
        templates = await _read_list(endpoint, Kind.TEMPLATE) if kind is Kind.RESOURCE else []
        view = await endpoint.owner()
    except (PeerError, ColonnadeError, CommandFailed):
        return ""
    if name in names:
        return ""
    hidden = () if view is None else view.hidden()
    for row in hidden:
        if (row["kind"], row["outward"]) == (kind.value, visible(name)):
            return f"clients do not see it: {why_hidden(row)}"
    if any(template_matches(name_of(Kind.TEMPLATE, raw), name) for raw in templates):
        return ""
    return did_you_mean(name, names)
