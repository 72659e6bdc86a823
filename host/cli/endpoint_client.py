"""Connections of `list`, `call`, `read` and `prompt` to an endpoint: one that runs somewhere, or that of a host started
for the command."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import trio
from msgspec import Raw

from config import Config
from host.admin.schema import LogLine
from host.cli.admin_client import AdminClientError, RunningHost, find_hosts
from host.cli.common import LeastLevels, own_endpoint, own_folder
from host.cli.exit_codes import UNREACHED, WRONG, CommandFailed
from host.cli.listing import MAX_LOG_LINES, Listing, OwnersView, name_of, why_hidden
from host.cli.log import open_log
from host.cli.progress import ProgressBar
from host.cli.suggest import did_you_mean
from host.cli.terminal import MOMENT, Terminal, announced, say_waiting
from host.client_process import ClientProcess
from host.errors import ColonnadeError, first_exception
from host.exchange import Answered, Caller, Exchange, NoClient, ProgressCallback
from host.jsonrpc.messages import Notification, Request
from host.jsonrpc.raw import encode, members
from host.mcp_client import fetch_status, open_mcp_client, open_own_client
from host.names import Names, template_matches
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.meta import with_progress_token
from host.protocol.methods import LIST_METHODS, PROGRESS, Kind, Method
from host.sanitize import visible
from host.source import Endpoint
from host.storage.directory import State
from host.storage.store import StateError
from host.upstream.pages import read_list
from host.wire.http_errors import AuthNeeded
from host.wire.link import LinkLost

if TYPE_CHECKING:
    from host.app import Host

LIST_TIMEOUT = 15.0
"""Seconds that a list of all servers waits for those that are still starting."""
UNREACHABLE = (LinkLost, BrokenAnswer, ValueError, trio.TooSlowError)

_LOOK_INTERVAL = 1.0
"""Seconds between two looks at what is waited for."""

T = TypeVar("T")
_WaitedFor = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]
"""The confirmations and the servers of a host, as in its state."""


class _Ask(Protocol):
    def __call__(self, method: str, params: Raw | None, report: ProgressCallback | None = None) -> Awaitable[Raw]: ...


@dataclass(frozen=True, slots=True)
class OpenEndpoint:
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


Work = Callable[[OpenEndpoint], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Target:
    """The endpoint to use: the one at `url`, or that of the hosts of one configuration that run, or that of a host
    started from `config` for the command.

    Args:
        state: None if the user has no state directory, and none is needed.
        view: the view to use; empty for none. A URL has it in its path.
    """

    command: str
    url: str | None
    headers: Mapping[str, str]
    running: Sequence[RunningHost]
    config: Config | None
    state: State | None
    view: str
    log_level: LeastLevels

    @property
    def name(self) -> str:
        """What it is called in errors."""
        return self.url or ("the host" if not self.running else f"the host of {visible(self.running[0].config)}")

    @property
    def source(self) -> str | None:
        """The path of the configuration; None if it is not known."""
        known = [*([] if self.config is None else [str(self.config.source)]), *(each.config for each in self.running)]
        return known[0] if known else None


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
    servers = {} if target.config is None else target.config.servers
    names = Names(servers)
    if method.kind is Kind.RESOURCE:
        found = names.inward_uri(name, servers)
        server = None if found is None else found[0]
    else:
        server, _ = names.inward_name(name)
    raw = encode({method.target: name, **params})
    return _with_host(target, server, partial(_request, method=method, name=name, params=raw))


def _with_host(target: Target, server: str | None, work: Work[T]) -> T:
    """Run `work` at the endpoint. If a host is started for it, wait for this server first (None: for all)."""
    failure: CommandFailed
    try:
        if target.url is not None:
            return trio.run(_remotely, target.url, target.headers, target.state, work)
        if target.running:
            assert target.state is not None
            return trio.run(_at_running, target, target.state, work, server)
        assert target.config is not None
        assert target.state is not None
        return trio.run(_locally, target, target.config, target.state, work, server)
    except* CommandFailed as group:
        problem = first_exception(group)
        assert isinstance(problem, CommandFailed)
        failure = problem
    except* UNREACHABLE as group:
        cause = first_exception(group)
        why = cause.with_remedy if isinstance(cause, LinkLost) else str(cause)
        if isinstance(cause, AuthNeeded):
            why = f"{cause}; credentials are given by --header 'Authorization: Bearer TOKEN'"
        failure = CommandFailed(f"{target.name}: {why}", UNREACHED)
    except* StateError as group:
        failure = CommandFailed(str(first_exception(group)), WRONG)
    except* (PeerError, ColonnadeError) as group:
        failure = CommandFailed(str(first_exception(group)))
    raise failure


async def _remotely(url: str, headers: Mapping[str, str], state: State | None, work: Work[T]) -> T:
    with announced(f"for {url}"):
        async with open_mcp_client(url, headers) as remote:
            has = remote.negotiated.capabilities.__contains__
            owner = partial(trio.to_thread.run_sync, _view_of_running, state, url)
            return await work(OpenEndpoint(remote.request, has, partial(fetch_status, url, headers), owner))


def _view_of_running(state: State | None, url: str) -> OwnersView | None:
    """The host at the URL, if it is one of this user's."""
    for running in find_hosts(state.path) if state is not None else ():
        if running.problem is None and running.endpoint and f"{url}/".startswith(f"{running.endpoint}/"):
            return _view_of(running, None)
    return None


def _view_of(running: RunningHost, view: str | None) -> OwnersView:
    """The host as its owner sees it. `view`: the view that is listed; None if that is not known."""
    servers, catalog = running.get("state/servers")["servers"], running.get("state/catalog")["catalog"]
    logs = {id: running.post("servers/log", server=id)["lines"][-MAX_LOG_LINES:] for id in _without_connection(servers)}
    views, seen = [], None
    with suppress(AdminClientError):  # a host of an older version
        views = running.get("state/views")["views"]
        if view is not None and _has_views(views):
            seen = running.post("callers/view", view=view)
    return OwnersView(servers, catalog, logs, views, seen)


def _has_views(views: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some lists may be other than those of all servers, under their usual names."""
    return any(each["name"] or each["left_out"] for each in views)


async def _at_running(target: Target, state: State, work: Work[T], server: str | None) -> T:
    """At the one of the hosts of one configuration that serves commands."""
    hosts = target.running
    config = hosts[0].config
    async with AsyncExitStack() as stack:
        with announced(f"for the host of {visible(config)}"):
            opening = open_own_client(config, state.path, target.command, own_folder(), target.view)
            opened = await stack.enter_async_context(opening)
        remote, pid = opened
        host = next((each for each in hosts if each.pid == pid), hosts[-1])

        def sections() -> _WaitedFor:
            return host.get("state/confirmations")["confirmations"], host.get("state/servers")["servers"]

        async def look() -> _WaitedFor:
            return await trio.to_thread.run_sync(sections, abandon_on_cancel=True)

        has = remote.negotiated.capabilities.__contains__
        status = partial(trio.to_thread.run_sync, host.get, "state/servers")
        owner = partial(trio.to_thread.run_sync, _view_of, host, target.view)
        await stack.enter_async_context(_saying(server, look))
        return await work(OpenEndpoint(remote.request, has, status, owner))


async def _locally(target: Target, config: Config, state: State, work: Work[T], server: str | None) -> T:
    from host.app import START_ERRORS, open_host

    endpoint, journal = own_endpoint(config, target.view), open_log(target.log_level)
    try:
        async with open_host(config, state, journal) as host:
            return await _at_own(target, endpoint, host, work, server)
    except* START_ERRORS as group:
        raise CommandFailed(str(first_exception(group)), WRONG) from None


async def _at_own(target: Target, endpoint: Endpoint, host: Host, work: Work[T], server: str | None) -> T:
    async def look() -> _WaitedFor:
        sections = await host.admin.reader.sections(["confirmations", "servers"])
        return sections["confirmations"], sections["servers"]

    async with _saying(server, look):
        wanted = [upstream for id, upstream in host.upstreams.by_id.items() if server in (None, id)]
        with trio.move_on_after(math.inf if server is not None else LIST_TIMEOUT):
            async with trio.open_nursery() as nursery:
                for upstream in wanted:
                    nursery.start_soon(upstream.wait_settled, own_folder())
        owner = partial(_view_of_own, host, target.view)
        ask = partial(_ask_locally, host, endpoint, f"colonnade {target.command}")
        return await work(OpenEndpoint(ask, lambda _: True, partial(_status_of, host, endpoint), owner))


# What is waited for


@asynccontextmanager
async def _saying(server: str | None, look: Callable[[], Awaitable[_WaitedFor]]) -> AsyncIterator[None]:
    """Say on standard error what is waited for, for the block: a person at once, and else what takes longer than a
    moment. `look` gives the confirmations and the servers of the host; the request is for this server (None: all)."""

    async def say() -> None:
        said, slow, since = "", "", trio.current_time()
        while True:
            await trio.sleep(_LOOK_INTERVAL)
            try:
                confirmations, servers = await look()
            except CommandFailed:
                continue
            what, before, slow = _confirmation_of_ours(confirmations), slow, _slow_server(servers, server)
            if what or (before and slow != before):
                since = trio.current_time()
            elif trio.current_time() - since > MOMENT:
                what = slow
            if what not in ("", said):
                say_waiting(what)
            said = what

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say)
        yield
        nursery.cancel_scope.cancel()


def _confirmation_of_ours(confirmations: Iterable[Mapping[str, Any]]) -> str:
    for each in confirmations:
        if each["state"] == "waiting" and (each.get("process") or {}).get("pid") == os.getpid():
            return f"for a person to confirm: colonnade ask {each['id']}, or colonnade console"
    return ""


def _slow_server(servers: Iterable[Mapping[str, Any]], server: str | None) -> str:
    starting = [str(row["id"]) for row in servers if row["state"] == "starting" and server in (None, row["id"])]
    if starting:
        return f"for {', '.join(starting)} to start"
    return f"for the answer of {visible(server)}" if server is not None else "for the lists"


class _ProgressReader(NoClient):
    """The handle of a caller that takes progress, and nothing else beside the response."""

    def __init__(self, report: ProgressCallback) -> None:
        self._report = report

    def notify(self, notice: Notification) -> None:
        if notice.method == PROGRESS:
            self._report(members(notice.params or b"{}"))


async def _ask_locally(
    host: Host,
    endpoint: Endpoint,
    program: str,
    method: str,
    params: Raw | None,
    report: ProgressCallback | None = None,
) -> Raw:
    sent = with_progress_token(params, None if report is None else 1)
    client = NoClient() if report is None else _ProgressReader(report)
    process = ClientProcess(program, os.getpid(), own_folder())
    caller = Caller(f"{program} ({process.pid})", endpoint, process=process)
    exchange = Exchange(Request(1, method, sent), members(sent or b"{}"), caller, client)
    answer = await host.router.answer(exchange)
    assert isinstance(answer, Answered)
    return answer.result


async def _view_of_own(host: Host, view: str) -> OwnersView:
    sections = await host.admin.reader.sections(["servers", "catalog", "views"])
    logs: dict[str, list[LogLine]] = {}
    for id in _without_connection(sections["servers"]):
        log = await host.admin.server_log(id, 0)
        logs[id] = log["lines"][-MAX_LOG_LINES:]
    seen = None
    if _has_views(sections["views"]):
        seen = await host.admin.caller_view(None, view)
    return OwnersView(sections["servers"], sections["catalog"], logs, sections["views"], seen)


def _without_connection(servers: Iterable[Mapping[str, Any]]) -> list[str]:
    """The servers that failed, or are starting, perhaps again."""
    return [str(row["id"]) for row in servers if row["state"] in ("failed", "starting")]


async def _status_of(host: Host, endpoint: Endpoint) -> object:
    return json.loads(host.status(endpoint))


# Work at an endpoint


async def _list(endpoint: OpenEndpoint) -> Listing:
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
    view = await endpoint.owner()
    servers = status["servers"]
    if view is not None and view.seen is not None:
        servers = [row for row in servers if row["id"] in view.seen["servers"]]
    return Listing(entries, servers, view and view.of_servers({row["id"] for row in servers}))


async def _read_list(endpoint: OpenEndpoint, kind: Kind) -> list[Raw]:
    found: list[Raw] = []
    listing = LIST_METHODS[kind]
    if endpoint.has_capability(listing.capability):
        await read_list(endpoint.request, listing, found, [], lambda why: print(why, file=sys.stderr))
    return found


async def _request(endpoint: OpenEndpoint, *, method: Method, name: str, params: Raw) -> Mapping[str, Any]:
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


async def _suggestion(endpoint: OpenEndpoint, kind: Kind, name: str) -> str:
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
