"""An admin API that is real and small: confirmations, definitions and grants lie in lists, and an answer moves them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import trio
from msgspec.structs import astuple

from config import Channel
from host.admin.schema import (
    SECTIONS,
    AdminError,
    AdminState,
    CallerView,
    ClientList,
    DefinitionList,
    Done,
    HistoryList,
    HistoryReader,
    HistoryRecords,
    HostInfo,
    HostStatus,
    LoginProposal,
    LogLine,
    ServerLog,
    ServerTraffic,
    StateSections,
)
from host.audit.records import HistoryCall
from host.policy.argument_texts import outlined
from host.policy.fingerprint import pretty
from host.policy.rows import DefinitionRow, Explanation
from host.subject import Item
from host.wire.descent import PeerProcess
from tests.kit.awaited import checkpoint

T = TypeVar("T")

NOW = 1_790_000_000.0


def confirmation(id: str = "q1", **more: Any) -> dict[str, Any]:
    """A call that waits."""
    return {
        "id": id,
        "state": "waiting",
        "server": "github",
        "trust": "untrusted",
        "kind": "tool",
        "name": "create_issue",
        "summary": "The tool create_issue of github",
        "arguments": '{\n  "owner": "acme",\n  "title": "The login page is slow"\n}',
        "outline": [],
        "texts": [],
        "others": "",
        "caller": "laptop",
        "process": None,
        "says": "",
        "through": "",
        "session": True,
        "rule": "tools.ask: create_*",
        "origin": "",
        "asked": NOW,
        "until": NOW + 50,
        "waiting": 1,
        "why": "",
        "answers": ["deny", "once", "session", "time", "always"],
        "whole_session": True,
        "whole_time": False,
        "claims": [],
        "description": "Opens a new issue.",
        "definition": '{\n  "description": "Opens a new issue.",\n  "name": "create_issue"\n}',
        **more,
    }


def arguments(**given: object) -> dict[str, Any]:
    """The arguments of a confirmation, as a host shows them."""
    raw = json.dumps(given).encode()
    outline, texts = outlined(raw)
    return {"arguments": pretty(raw), "outline": outline, "texts": texts}


def client(**more: Any) -> Any:
    """A client behind a relay."""
    return {
        "says": "claude-code 2.1",
        "process": {"program": "claude", "pid": 4712, "folder": "/home/me/work"},
        "transport": "relay",
        "token": "",
        "endpoint": "",
        "view": "",
        "era": "handshake",
        "revision": "2025-11-25",
        "since": NOW,
        **more,
    }


def past_call(number: int = 1, **more: Any) -> HistoryCall:
    """A call of the past."""
    made: Any = {
        "id": f"{number:016x}",
        "place": number,
        "file": "20261130T011529.000000Z-7.jsonl",
        "seq": 2 * number,
        "config": "/home/me/colonnade.yaml",
        "time": "2026-11-30T01:15:29.123Z",
        "what": "call",
        "caller": "laptop",
        "client": "laptop (agent 1.2)",
        "agent": "agent 1.2",
        "program": "",
        "view": "",
        "server": "github",
        "kind": "tool",
        "item": "create_issue",
        "method": "tools/call",
        "verdict": "allow",
        "rule": "tools.allow: *",
        "approver": "",
        "outcome": "answered",
        "tool_error": False,
        "seconds": 0.0125,
        "sent": 27,
        "received": 1099,
        "count": 1,
        "pending": False,
        **more,
    }
    return cast("HistoryCall", made)


def held(name: str = "get_issue", **more: Any) -> dict[str, Any]:
    """A definition that changed."""
    return {
        "ready": True,
        "server": "github",
        "kind": "tool",
        "name": name,
        "standing": "changed",
        "fingerprint": f"sha256:{name}",
        "since": NOW,
        "rejected": False,
        "problem": "",
        "order": "",
        "trust": "untrusted",
        "diff": [
            {"op": "same", "text": '{"description": "Reads an issue'},
            {"op": "added", "text": " and sends it on"},
            {"op": "removed", "text": " by number"},
            {"op": "same", "text": '"}'},
        ],
        "text": '{"description": "Reads an issue and sends it on"}',
        **more,
    }


def offered(name: str = "get_issue", **more: Any) -> Any:
    """A definition of a server's list."""
    return {
        "server": "github",
        "kind": "tool",
        "name": name,
        "standing": "approved",
        "fingerprint": f"sha256:{name}",
        "by": "first sight",
        "counts": False,
        "claims": ["read-only", "open-world"],
        "description": "Reads an issue.",
        "text": f'{{\n  "name": "{name}"\n}}',
        "problem": "",
        **more,
    }


def entry(name: str, **more: Any) -> dict[str, Any]:
    """Something that a server offers."""
    return {
        "server": "github",
        "kind": "tool",
        "name": name,
        "outward": f"github__{name}",
        "title": "",
        "description": "What it does",
        "verdict": "allow",
        "rule": "tools.allow: get_*",
        "standing": "approved",
        "shown": True,
        "fingerprint": f"sha256:{name}",
        **more,
    }


def view(name: str = "coding", **more: Any) -> dict[str, Any]:
    """A view."""
    return {
        "name": name,
        "callers": ["laptop"],
        "is_default": False,
        "search": "off",
        "servers": ["github"],
        "entries": {"tools": 4, "resources": 0, "resourceTemplates": 0, "prompts": 1},
        "tokens": 1234,
        "left_out": [],
        **more,
    }


def caller_view(view: str = "coding", **more: Any) -> Any:
    """The entries that a caller sees in a view."""
    entries = [
        {
            "server": "github",
            "kind": "tool",
            "name": name,
            "outward": f"github__{name}",
            "title": "",
            "description": "What it does",
            "verdict": verdict,
            "tokens": 120,
        }
        for name, verdict in (("list_issues", "allow"), ("create_issue", "ask"))
    ]
    return {
        "address": "/mcp",
        "view": view,
        "callers": ["laptop", "ci"],
        "search": "off",
        "servers": ["github"],
        "instructions": "Work in small steps.",
        "tokens": 1234,
        "entries": entries,
        "left_out": [left_out()],
        **more,
    }


def left_out(name: str = "search", **more: Any) -> dict[str, Any]:
    """Something that a view leaves out."""
    return {"server": "github", "kind": "tool", "name": name, "why": f"more than one is called {name} here", **more}


def server(id: str = "github", **more: Any) -> dict[str, Any]:
    """One of the servers."""
    return {
        "id": id,
        "prefix": id,
        "title": None,
        "transport": "http",
        "state": "ready",
        "detail": "",
        "attempts": 1,
        "trust": "untrusted",
        "isolation": "shared",
        "instances": 0,
        "max_instances": 0,
        "dropped": {},
        "revision": "2025-11-25",
        "entries": {"tools": 3, "resources": 0, "resourceTemplates": 0, "prompts": 1},
        "latency_ms": 41,
        "p50_ms": 38.1,
        "p95_ms": 76.2,
        "restarts": 2,
        "tokens": 1234,
        "calls": 12,
        "failed": 1,
        "tool_errors": 2,
        "in_flight": 0,
        "bytes_in": 52_300,
        "held": 1,
        "unmatched": [],
        "uncounted": 0,
        "left_out": [],
        "list_problems": [],
        "warnings": [],
        "settings": ["https://example.com/mcp", "timeout: 60s"],
        "sandbox": "",
        "sandbox_open": False,
        "login_failed": "",
        **more,
    }


def happened(text: str, **more: Any) -> dict[str, Any]:
    """A row of the activity."""
    t = 1_790_000_000.0
    return {
        "t": t,
        "first": t,
        "count": 1,
        "kind": "ServerReady",
        "server": "github",
        "text": text,
        "level": "info",
    } | more


def grant(id: str, **more: Any) -> dict[str, Any]:
    """An answer that lasts."""
    return {
        "id": id,
        "caller": "laptop",
        "server": "github",
        "kind": "tool",
        "name": "create_issue",
        "scope": "always",
        "arguments": "exactly sha256:12ab",
        "made": NOW,
        "expires": None,
        "by": "console",
        "live": True,
        "why": "",
        **more,
    }


def change(server: str = "github", **more: Any) -> dict[str, Any]:
    """A change of the configuration that waits."""
    return {
        "id": "c1",
        "server": server,
        "widens": ["command has changed"],
        "diff": [
            {"op": "same", "text": '{\n  "command": [\n    "python3",\n    '},
            {"op": "removed", "text": '"old.py"'},
            {"op": "added", "text": '"new.py"'},
            {"op": "same", "text": "\n  ]\n}"},
        ],
        **more,
    }


class FakeAdminApi:
    """Everything that is asked of it is kept in `requests`; `present` says who is there."""

    def __init__(self, **sections: list[Any]) -> None:
        self._sections: dict[str, list[Any]] = {name: sections.get(name, []) for name in SECTIONS}
        self._version = dict.fromkeys(SECTIONS, 1)
        self._change_waiters = trio.lowlevel.ParkingLot()
        self.requests: list[tuple[Any, ...]] = []
        self.present: list[str] = []
        self.definition_rows: list[DefinitionRow] = []
        """All definitions that the servers offer."""
        self.proposals: dict[str, LoginProposal] = {}
        """The logins that can be opened, by server."""
        self.traffic: ServerTraffic = {"now": 0.0, "minutes": [], "quarters": [], "states": []}
        self.past: list[HistoryCall] = [past_call()]
        self.past_missing: list[str] = []
        self.readers: dict[bytes, HistoryReader] = {}
        """The callers that see calls of the past, by the digests of their tokens."""
        self.caller_views: dict[str | None, CallerView] = {}
        """The views that callers see, by the names of callers."""
        self.console_urls = iter(f"http://127.0.0.1:1/console#{number}" for number in range(1, 100))
        self.refusals: list[tuple[PeerProcess, str, int]] = []
        self.fails = False
        """Whether every request fails by a fault of ours."""

    @property
    def reader(self) -> FakeAdminApi:
        return self

    def add(self, section: str, *items: Any) -> None:
        """Something new to see."""
        self.replace(section, [*self._sections[section], *items])

    def replace(self, section: str, items: list[Any]) -> None:
        self._sections[section] = items
        self._version[section] += 1
        self._change_waiters.unpark_all()

    def section(self, name: str) -> list[Any]:
        return self._sections[name]

    def host_info(self) -> HostInfo:
        return {
            "colonnade": "0.1.0",
            "config": "/home/me/colonnade.yaml",
            "pid": 4711,
            "stdio": False,
            "endpoint": "http://127.0.0.1:8808/mcp",
            "audit": "files",
        }

    def connected_clients(self) -> ClientList:
        return {"clients": [client()]}

    async def status(self) -> HostStatus:
        await trio.lowlevel.checkpoint()
        return {
            **self.host_info(),
            "uptime": 11_520.0,
            "clients": 1,
            "ends_after": None,
            "ends_in": None,
            "drain": 30.0,
            "draining": False,
            "fleet": None,
            "process": {"descriptors": 30, "max_descriptors": 1024, "memory": 80 << 20, "memory_peak": 96 << 20},
            "servers": list(self._sections["servers"]),
            "confirmations": len(self._sections["confirmations"]),
            "held": len(self._sections["held"]),
            "waiting_changes": ["time: command changed"],
            "problems": ["the audit log cannot be written"],
        }

    async def state(self) -> AdminState:
        return cast(AdminState, {**self.host_info(), **await self.sections(SECTIONS)})

    async def sections(self, names: Collection[str]) -> StateSections:
        await trio.lowlevel.checkpoint()
        return cast(StateSections, {name: list(self._sections[name]) for name in names})

    def versions(self) -> Mapping[str, int]:
        return dict(self._version)

    async def wait_changed(self, since: Mapping[str, int]) -> Mapping[str, int]:
        await trio.lowlevel.checkpoint()
        while all(since.get(name, 0) >= number for name, number in self._version.items()):
            await self._change_waiters.park()
        return dict(self._version)

    async def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Done:
        await checkpoint()
        self._record("answer", id, answer, seconds, arguments, channel.value)
        found = self._take("confirmations", lambda each: each["id"] == id, "this question is not open any more")
        if answer in ("session", "time", "always"):
            bound = "any" if arguments == "any" else "exactly sha256:12ab"
            self.add("grants", grant(f"g-{id}", scope=answer, arguments=bound, name=found["name"]))
        return {"done": f"{answer}: {found['name']}"}

    async def deny_all(self, server: str, ids: list[str], channel: Channel) -> Done:
        await checkpoint()
        self._record("deny_all", server, ids, channel.value)
        for id in ids:
            self._take("confirmations", lambda each, id=id: each["id"] == id, "none of these is open any more")
        return {"done": f"{len(ids)} denied"}

    async def definitions(self, server: str, caller: str = "") -> DefinitionList:
        await checkpoint()
        self._record("definitions", server)
        return {
            "definitions": [each for each in self.definition_rows if each["server"] == server],
            "rules": [],
            "sandbox": "",
            "starts": [],
        }

    async def decide(self, item: Item, fingerprint: str, decision: str, channel: Channel) -> Done:
        await checkpoint()
        self._record("decide", *astuple(item), fingerprint, decision, channel.value)
        self._take("held", lambda each: each["fingerprint"] == fingerprint, "the definition changed meanwhile")
        if decision == "approve":
            self.add("catalog", entry(item.name))
        return {"done": f"{decision}: {item.name}"}

    async def decide_all(self, server: str, fingerprints: list[str], decision: str, channel: Channel) -> Done:
        await checkpoint()
        self._record("decide_all", server, fingerprints, decision, channel.value)
        for row in self.definition_rows:
            if row["fingerprint"] in fingerprints:
                row["counts"], row["by"] = True, channel.value
        self.replace("catalog", self._sections["catalog"])
        for each in [each for each in self._sections["held"] if each["fingerprint"] in fingerprints]:
            self._take("held", lambda one, gone=each: one is gone, "gone")
            self.add("catalog", entry(each["name"]))
        return {"done": f"{len(fingerprints)} approved"}

    async def revoke(self, grant: str, channel: Channel) -> Done:
        await checkpoint()
        self._record("revoke", grant, channel.value)
        self._take("grants", lambda each: each["id"] == grant, "there is no such grant")
        return {"done": "taken back"}

    async def choose_sandbox(self, server: str, sandbox: str, channel: Channel) -> Done:
        await checkpoint()
        self._record("choose_sandbox", server, sandbox, channel.value)
        return {"done": f"{server}: {sandbox}."}

    async def control(self, server: str, action: str) -> Done:
        await checkpoint()
        self._record("control", server, action)
        if server != "time":
            raise AdminError(f"there is no server {server} in the configuration; did you mean time?")
        return {"done": f"{server}: {action}"}

    async def reload(self, *, apply: bool, shown: str | None) -> Done:
        await checkpoint()
        self._record("reload", apply, shown)
        if apply:
            self.replace("configuration", [])
        return {"done": "configuration read again: nothing has changed."}

    async def login(self, server: str, channel: Channel) -> LoginProposal:
        await checkpoint()
        self._record("login", server, channel.value)
        if server not in self.proposals:
            raise AdminError(f"{server}: the issuer has no PKCE (S256)")
        return self.proposals[server]

    async def caller_view(self, caller: str | None, view: str) -> CallerView:
        await checkpoint()
        self._record("caller_view", caller, view)
        if view == "review":
            raise AdminError(f"/mcp/@review does not exist for {caller}")
        return self.caller_views[caller]

    async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
        await checkpoint()
        self._record("past_calls", since, {name: value for name, value in wanted.items() if value is not None})
        beyond, limit = wanted["beyond"] or 10**6, wanted["limit"]
        found = [each for each in self.past if each["place"] < beyond]
        return {"calls": found[:limit], "missing": self.past_missing}

    async def past_call(self, id: str, place: int | None) -> HistoryRecords:
        await checkpoint()
        self._record("past_call", id, place)
        found = [each for each in self.past if each["id"] == id]
        if not found:
            raise AdminError(f"the history has no call {id} (any more)")
        item = found[0]["item"]
        records: list[dict[str, object]] = [
            {"kind": "decision", "item": item, "args": {"bytes": 27, "redacted": item}},
            {"kind": "outcome", "result": {"left_out": "longer than 32 KiB"}},
        ]
        return {"call": found[0], "records": records}

    def history_reader(self, token: bytes) -> HistoryReader | None:
        return self.readers.get(token)

    async def server_log(self, server: str, after: int) -> ServerLog:
        await checkpoint()
        self._record("server_log", server, after)
        lines: list[LogLine] = [
            {"n": 7, "t": 0.0, "line": "no API key given", "stream": "stderr"},
            {"n": 9, "t": 1.0, "line": "bye", "stream": "stdout"},
        ]
        return {"lines": [each for each in lines if each["n"] > after]}

    async def server_traffic(self, server: str) -> ServerTraffic:
        await checkpoint()
        self._record("server_traffic", server)
        return self.traffic

    async def explain(
        self, item: Item, arguments: dict[str, Any] | None, caller: str | None = None, view: str = ""
    ) -> Explanation:
        await checkpoint()
        self._record("explain", *astuple(item), arguments, *(each for each in (caller, view) if each))
        return {
            "verdict": "ask",
            "rule": "tools.ask: create_*",
            "origin": "",
            "tried": [
                {"rule": "tools.deny: delete_*", "verdict": "deny", "matched": False, "why": "another name"},
                {"rule": "tools.ask: create_*", "verdict": "ask", "matched": True, "why": "the name matches"},
            ],
            "view": view,
            "callers": ["ci"],
            "standing": "approved",
            "by": "console",
            "fingerprint": "sha256:1",
            "grant": None,
            "limits": {},
            "shown": True,
            "sentence": "a person is asked",
        }

    @contextmanager
    def attach(self, channel: Channel) -> Iterator[None]:
        self.present.append(channel.value)
        try:
            yield
        finally:
            self.present.remove(channel.value)

    @contextmanager
    def attributing(self, peer: PeerProcess) -> Iterator[None]:
        yield

    def record_refused_peer(self, peer: PeerProcess, why: str, unrecorded: int) -> None:
        self.refusals.append((peer, why, unrecorded))

    def console_url(self) -> str:
        return next(self.console_urls)

    def _record(self, *what: Any) -> None:
        if self.fails:
            raise ZeroDivisionError("/secret/path")
        self.requests.append(what)

    def _take(self, section: str, fits: Any, otherwise: str) -> Any:
        found = next((each for each in self._sections[section] if fits(each)), None)
        if found is None:
            raise AdminError(otherwise)
        self.replace(section, [each for each in self._sections[section] if each is not found])
        return found
