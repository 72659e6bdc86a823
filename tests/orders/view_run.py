"""A host of one file, its clients, and two servers whose lists change: each change, and what is held against the judge
after it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import trio

from config import Config, ConfigError, load
from tests.kit.world import ScriptedServer
from tests.orders.view_clients import LIST_METHODS, SECRETS, TAG, Ask, Client, Stateless
from tests.orders.view_judge import (
    EXPANDED,
    KEYS,
    KINDS,
    NEW_NAMES,
    PROMPTS,
    SERVERS,
    TEMPLATES,
    TOOLS,
    URIS,
    VIEWS,
    File,
    Judge,
    Lists,
    Place,
    edited,
    random_file,
    random_lists,
)

CHANGED = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "resourceTemplates": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}
UPDATED, LOGGED = "notifications/resources/updated", "notifications/message"
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
PLACES = [Place(), *(Place(view=view) for view in VIEWS), *(Place(server) for server in SERVERS)]


EQUAL_NAMES = "would be named"
"""The problem of a file with two overrides that give one name, which is refused."""

Arrived = tuple[str, str, str, Any]
"""Server, method, own name or URI, and arguments."""


class Server(ScriptedServer):
    """Answers everything, and notes what arrives under the tag of each request."""

    def __init__(self, id: str, random: Random) -> None:
        answers = {
            "tools/call": self._answer_call,
            "prompts/get": self._answer_prompt,
            "resources/read": self._answer_read,
            "completion/complete": self._answer_completion,
        }
        super().__init__(id, capabilities=CAPABILITIES, answers=answers, instructions=f"Words of server {id}.")
        self.lists = random_lists(random)
        self.arrived: defaultdict[str, list[Arrived]] = defaultdict(list)

    async def _answer_call(self, params: dict[str, Any]) -> object:
        self._note("tools/call", params["name"], params["arguments"])
        await trio.sleep(0.01)
        return {"content": []}

    async def _answer_prompt(self, params: dict[str, Any]) -> object:
        self._note("prompts/get", params["name"], params.get("arguments", {}))
        return {"messages": []}

    async def _answer_read(self, params: dict[str, Any]) -> object:
        self.arrived[params["_meta"][TAG]].append((self.id, "resources/read", params["uri"], None))
        return {"contents": [{"uri": params["uri"], "text": self.id}]}

    async def _answer_completion(self, params: dict[str, Any]) -> object:
        of = params["ref"].get("name") or params["ref"]["uri"]
        self.arrived[params["argument"]["value"]].append((self.id, "completion/complete", of, None))
        return {"completion": {"values": []}}

    def _note(self, method: str, name: str, arguments: dict[str, Any]) -> None:
        self.arrived[arguments["tag"]].append((self.id, method, name, arguments))


Shown = dict[str, list[dict[str, Any]]]
"""By kind: the definitions that a client sees."""


@dataclass(frozen=True)
class State:
    """The file in effect, and what the servers list."""

    judge: Judge
    lists: Lists


class Run:
    """One host.

    Args:
        file: its configuration, whose content is `spec`.
        reload: has the host read it again, as a person does; the error if it is refused.
        pause: seconds in which every change has reached every client.
        asked: requests of each client after a change.
        is_busy: other requests are sent all the time.
        has_status: /status tells of the servers.
    """

    def __init__(
        self,
        file: Path,
        spec: File,
        servers: Mapping[str, Server],
        clients: Sequence[Client],
        order: Random,
        reload: Callable[[], Awaitable[str]],
        *,
        pause: float = 5.0,
        asked: int = 4,
        is_busy: bool = False,
        has_status: bool = False,
    ) -> None:
        self.file, self.servers, self.clients, self.order = file, servers, clients, order
        self.seen = Counter[str]()
        self._reload = reload
        self._pause = pause
        self._asked = asked
        self._is_busy = is_busy
        self._has_status = has_status
        self._states = [self._state(Judge(spec))]
        self._since = 0
        """The first state that may still be in effect."""
        self._tags = 0
        self._refusals: dict[tuple[type[Client], str, str], str] = {}

    def _state(self, judge: Judge) -> State:
        return State(judge, {id: server.lists for id, server in self.servers.items()})

    @property
    def now(self) -> State:
        return self._states[-1]

    async def change_lists(self) -> None:
        """One of the servers lists something else, and says so."""
        server = self.servers[self.order.choice(SERVERS)]
        fresh = random_lists(self.order)
        kinds = self.order.sample(KINDS, self.order.randint(1, 4))
        server.lists = {**server.lists, **{kind: fresh[kind] for kind in kinds}}
        self._states.append(self._state(self.now.judge))
        before = Counter(server.asked)
        async with trio.open_nursery() as nursery:
            self._ask_beside(nursery)
            for method in dict.fromkeys(CHANGED[kind] for kind in kinds):
                await server.notifies(method)
        await self._wait(
            lambda: all(server.asked.count(each) > before[each] for each in (LIST_METHODS[kind] for kind in kinds))
        )
        await self.settle()

    async def edit(self) -> None:
        """A person changes the file, and has it read again. One that the host refuses changes nothing."""
        spec = edited(dict(self.now.judge.file), self.order)
        former = self.now
        save(self.file, spec)
        self._states.append(self._state(Judge(spec)))
        async with trio.open_nursery() as nursery:
            self._ask_beside(nursery)
            refused = await self._reload()
        assert not refused or EQUAL_NAMES in refused, (refused, spec)
        self.seen["edits refused" if refused else "edits"] += 1
        if refused:
            save(self.file, dict(former.judge.file))
            self._states[-1] = former
        await self.settle()

    def _ask_beside(self, nursery: trio.Nursery) -> None:
        for client in self.clients:
            if self.order.random() < 0.3:
                nursery.start_soon(self.ask, client)

    async def settle(self) -> None:
        """Let the change arrive, and hold everything against the judge."""
        await trio.sleep(self._pause)
        former, now = (self._states[at].judge for at in (max(len(self._states) - 2, 0), -1))
        self._since = len(self._states) - 1
        await self._for_each(lambda client: self._check(client, former, now))
        await self._check_asides()
        for _ in range(self._asked):
            await self._for_each(self.ask)

    async def _for_each(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Do it with every client: one after the other, so that a run can be repeated; at a busy host all at once."""
        if not self._is_busy:
            for client in self.clients:
                await work(client)
            return
        async with trio.open_nursery() as nursery:
            for client in self.clients:
                nursery.start_soon(work, client)

    async def _check(self, client: Client, former: Judge, now: Judge) -> None:
        before, after = client.address(former), client.address(now)
        if client.is_open:
            if before != after:
                assert client.is_over, f"{client} stays, from {before} to {after}"
            elif not _may_end(former, now, client.token, before):
                assert not client.is_over, f"{client} was ended at {after}"
        if client.is_over:
            client.close()
            self.seen["ended"] += 1
        was_open = client.is_open
        if not was_open:
            client.opened_at = after
            status = await client.open()
            assert (status == 404) == (after is None), f"{client}: {status} at {after}"
            if client.listens:
                self._check_instructions(client, after)
        lists = await client.read_lists() if client.is_open or not client.listens else None
        if was_open:
            await self._check_notices(client, lists)
        self._check_lists(client, after, lists)
        if self._has_status and client.has_address:
            servers = await client.servers()
            assert (servers is None) == (after is None), f"{client} at {after} is told of {servers}"
            expected = [each for each in SERVERS if after is not None and now.has_server(after.view, each)]
            if after is not None and not after.server:
                assert servers == expected, f"{client} at {after} is told of {servers}"

    async def _check_notices(self, client: Client, lists: Shown | None) -> None:
        assert lists is not None, f"{client} has no lists"
        changed = Counter(CHANGED[kind] for kind in KINDS if client.lists.get(kind) != lists[kind])
        told = Counter[str]()

        def is_told() -> bool:
            told.update(each["method"] for each in client.notices() if each["method"] in CHANGED.values())
            return set(told) >= set(changed)

        await self._wait(is_told)
        assert set(told) == set(changed), f"{client} was told {dict(told)}, and changed have {changed}"
        assert told <= changed, f"{client} was told {told} of {changed}"
        self.seen["told"] += len(told)
        self.seen["not told"] += 3 - len(told)

    def _check_lists(
        self, client: Client, address: Place | None, lists: dict[str, list[dict[str, Any]]] | None
    ) -> None:
        assert (lists is None) == (address is None), f"{client} has {lists} at {address}"
        if lists is None or address is None:
            return
        client.lists = lists
        for kind, expected in self.now.judge.seen(client.token, address, self.now.lists).items():
            listed = {each[KEYS[kind]]: each for each in lists[kind]}
            shown, offered = sorted(listed), sorted(expected)
            assert shown == offered, f"{client} at {address}: {kind}: {shown}, not {offered}"
            for name, thing in expected.items():
                each = listed[name]
                if kind == "tools":
                    arguments = set(each["inputSchema"].get("properties", {}))
                else:
                    arguments = {one["name"] for one in each.get("arguments", ())}
                found = (each.get("title"), each.get("description"), arguments)
                assert found == (thing.title, thing.description, set(thing.arguments)), (client, each)
            self.seen[f"{kind} shown"] += len(expected)

    def _check_instructions(self, client: Client, address: Place | None) -> None:
        if address is None:
            return
        for server in SERVERS:
            if address.server not in ("", server) or not self.now.judge.has_server(address.view, server):
                assert f"Words of server {server}" not in client.instructions, f"{client} at {address}"
        has_own = address.view and not address.server
        text = self.now.judge.file["views"][address.view].get("instructions") if has_own else None
        assert text is None or text in client.instructions, f"{client} at {address}: {client.instructions}"

    async def _check_asides(self) -> None:
        """Servers report updates and write logs: nobody hears of a resource or a server that its view does not have."""
        await self._for_each(self._prepare)
        for server in self.servers.values():
            for uri in URIS:
                await server.notifies(UPDATED, {"uri": uri})
            await server.notifies(LOGGED, {"level": "error", "data": f"log of {server.id}"})
        await trio.sleep(self._pause / 2)
        await self._for_each(self._check_heard)

    async def _prepare(self, client: Client) -> None:
        if client.is_open and client.listens:
            client.notices()
            if self.order.random() < 0.3:
                await self._subscribe(client)

    async def _check_heard(self, client: Client) -> None:
        address = client.address(self.now.judge)
        if not client.is_open or address is None:
            return
        servers = [id for id in SERVERS if address.server in ("", id) and self.now.judge.has_server(address.view, id)]
        expected = [] if isinstance(client, Stateless) else [f"log of {id}" for id in servers]
        notices: list[dict[str, Any]] = []

        def logs() -> list[str]:
            notices.extend(client.notices())
            return sorted(each["params"]["data"] for each in notices if each["method"] == LOGGED)

        if self._is_busy:  # a log that may belong to a call goes to its client alone
            assert set(logs()) <= set(expected), f"{client} at {address} hears {logs()}"
        else:
            await self._wait(lambda: len(logs()) >= len(expected))
            assert logs() == expected, f"{client} at {address} hears {logs()}"
        for uri in [each["params"]["uri"] for each in notices if each["method"] == UPDATED]:
            assert client.subscribed, f"{client} hears of {uri}, and has subscribed to nothing"
            assert self.now.judge.uri(client.token, address, uri) is not None, f"{client} hears of {uri}"
            self.seen["updates"] += 1

    async def _wait(self, condition: Callable[[], bool]) -> None:
        """Give what must come some more time: a real machine may be busy."""
        for _ in range(10):
            if condition():
                break
            await trio.sleep(self._pause / 2)

    async def _subscribe(self, client: Client) -> None:
        address = client.address(self.now.judge)
        uri = self.random_uri(client)
        assert address is not None
        reply = await client.subscribe(uri)
        if reply.message is None:  # it cannot
            return
        may = self.now.judge.uri(client.token, address, uri) is not None
        assert ("result" in reply.message) == may, f"{client} subscribes to {uri} at {address}: {reply}"
        if may:
            client.subscribed.add(uri)
        self.seen["subscribed" if may else "not subscribed"] += 1

    def random_uri(self, client: Client) -> str:
        own = self.order.choice((*URIS, *EXPANDED))
        return own if client.place.server else f"{self.order.choice(SERVERS)}+{own}"

    def random_ask(self, client: Client) -> Ask:
        self._tags += 1
        order, tag = self.order, f"t{self._tags}"
        method = order.choice(("tools/call", "tools/call", "prompts/get", "resources/read", "completion/complete"))
        kind = {"tools/call": "tools", "prompts/get": "prompts", "resources/read": "resources"}.get(method, "")
        kind = kind or order.choice(("prompts", "resourceTemplates"))
        arguments: dict[str, Any] = {"tag": tag}
        if kind == "tools":
            arguments["owner"] = "me"
            for name, value in (("limit", 3), ("labels", ["y"])):
                if order.random() < 0.2:
                    arguments[name] = value
            if order.random() < 0.3:
                del arguments["owner"]
        elif method == "prompts/get" and order.random() < 0.2:
            arguments["mood"] = "mine"
        if kind == "resources":
            name = self.random_uri(client)
        elif kind == "resourceTemplates":
            own = order.choice(TEMPLATES)
            name = own if client.place.server else f"{order.choice(SERVERS)}+{own}"
        elif client.lists.get(kind) and order.random() < 0.5:
            name = order.choice(client.lists[kind])["name"]
        else:
            name = order.choice(TOOLS if kind == "tools" else PROMPTS)
            name = order.choice((name, *NEW_NAMES[kind]))
            name = order.choice((name, *(f"{server}__{name}" for server in SERVERS)))
        return Ask(method, kind, name, tag, arguments)

    async def ask(self, client: Client) -> None:
        """Send a request; it must come to what the judge says, in one of the states that it may have met."""
        if client.listens and (not client.is_open or client.is_over):
            return
        ask, since, stream = self.random_ask(client), self._since, client.stream
        reply = await client.ask(ask.method, ask.params)
        under = self._states[since:]
        arrived = [each for server in self.servers.values() for each in server.arrived[ask.tag]]
        expected = [_expected(client, ask, state) for state in under]
        assert len(arrived) <= 1, (client, ask, arrived)
        came = arrived[0] if arrived else None
        self.seen["arrived" if came else "refused"] += 1
        if came is None and stream is not None and reply.message is None:
            await self._wait(stream.complete.is_set)
        # A change that ends its session may keep it from arriving.
        may_miss = len(under) > 1 or (stream is not None and stream.complete.is_set())
        is_right = came in expected or (came is None and may_miss)
        assert is_right, f"{client}: {ask}: {came}, not {expected}; {reply}"
        if came is None and reply.message is not None and len(under) == 1:
            assert "error" in reply.message, (client, ask, reply)
            self._check_refusal(client, ask, reply.message["error"])

    def _check_refusal(self, client: Client, ask: Ask, error: Mapping[str, Any]) -> None:
        """A thing that is not there is refused with the same words, whatever the reason."""
        if "argument" not in error["message"]:
            told = json.dumps(error, sort_keys=True).replace(ask.name, "…")
            first = self._refusals.setdefault((type(client), ask.method, ask.kind), told)
            assert told == first, (client, ask, error)


def _expected(client: Client, ask: Ask, state: State) -> Arrived | None:
    address = client.address(state.judge)
    if address is None:
        return None
    if ask.method == "resources/read":
        found = state.judge.uri(client.token, address, ask.name)
        return None if found is None else (found[0], ask.method, found[1], None)
    thing = state.judge.seen(client.token, address, state.lists)[ask.kind].get(ask.name)
    if thing is None:
        return None
    if ask.method == "completion/complete":
        is_taken_out = ask.kind == "prompts" and "mood" not in thing.arguments
        return None if is_taken_out else (thing.server, ask.method, thing.own, None)
    arguments = state.judge.arguments(address, thing, ask.arguments)
    return None if arguments is None else (thing.server, ask.method, thing.own, arguments)


def _may_end(former: Judge, now: Judge, token: str, address: Place | None) -> bool:
    """Whether a session may end although its own address leads where it led: rules name its caller now or did, or
    another address of what it had there leads elsewhere."""
    if _named_in_rules(former, token) != _named_in_rules(now, token):
        return True
    same = [place for place in PLACES if former.address(token, place) == address]
    return any(now.address(token, place) != address for place in same)


def _named_in_rules(judge: Judge, token: str) -> bool:
    name = judge.caller(token)
    return bool(name) and any(name in str(spec.get("consent")) for spec in judge.file["servers"].values())


def save(file: Path, spec: File) -> None:
    file.write_text(json.dumps(spec))


def save_random_file(
    file: Path,
    random: Random,
    servers: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[File, Config]:
    """A file that the host accepts, with `settings` beside the random ones."""
    while True:
        spec = {**random_file(random, servers, SECRETS), **settings}
        save(file, spec)
        try:
            return spec, load(file)
        except ConfigError as error:
            if EQUAL_NAMES not in str(error):
                raise
