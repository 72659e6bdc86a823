"""Servers of every trust and several consents behind one gate, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config import (
    AskSpec,
    CallerSpec,
    Check,
    Condition,
    Consent,
    HttpServer,
    Rule,
    ServerSpec,
    Trust,
)
from config.references import Secret
from host.errors import StaleApproval, Unconfirmed
from host.exchange import Answered, Caller, Exchange, InputRequired, MrtrRound, NoClient
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode
from host.policy.confirmations import ConfirmationAnswer, PendingConfirmation
from host.policy.gate import CallPermit, Gate
from host.protocol.methods import Kind
from host.source import SHARED
from tests.kit.gates import auto_answering, entry, kind, observe, open_gate

STRICT = Consent(tools=kind(allow=["get_*"], deny=["get_secret"]))
ASKING = Consent(tools=kind(ask=["create_*"]), resources=kind(ask=["file:///**"]), prompts=kind(ask=["p*"]))
URI = "file:///home/me/x"
DESK = Caller("desk", SHARED, "token", session="s1")


def spec(id: str, consent: Consent | None = None, trust: Trust = Trust.STANDARD) -> ServerSpec:
    return HttpServer(id=id, url=Secret("https://x/mcp"), consent=consent or Consent(), trust=trust)


SERVERS = {
    each.id: each
    for each in (
        spec("open"),
        spec("strict", STRICT),
        spec("asking", ASKING),
        spec("trusted", STRICT, Trust.TRUSTED),
        spec("untrusted", trust=Trust.UNTRUSTED),
    )
}


@contextmanager
def gate(
    servers: Mapping[str, ServerSpec] = SERVERS,
    ask: AskSpec | None = None,
    state: Path | None = None,
    callers: Mapping[str, CallerSpec] | None = None,
) -> Iterator[Gate]:
    with open_gate(servers, ask=ask, state=state, callers=callers) as opened:
        yield opened


def call(arguments: object = None, caller: Caller = DESK, at: MrtrRound | None = None) -> Exchange:
    params = {} if arguments is None else {"arguments": encode(arguments)}
    return Exchange(Request(1, "tools/call"), params, caller, NoClient(), round=at)


def offers(opened: Gate, server: str, *names: str, kind: Kind = Kind.TOOL, **more: object) -> None:
    """The server lists these, each with `more` in its definition."""
    observe(opened, server, kind, {name: json.dumps({"name": name, **more}).encode() for name in names})


def with_server(id: str, **more: Any) -> dict[str, ServerSpec]:
    return {**SERVERS, id: replace(SERVERS[id], **more)}


UNFINISHED = InputRequired("asking", {}, None)


@contextmanager
def dispatched(permit: CallPermit) -> Iterator[None]:
    """The request of the permit is sent and answered within the block."""
    permit.dispatch()
    yield
    permit.accept(Answered(EMPTY_OBJECT))


async def asked_about(
    opened: Gate,
    server: str,
    name: str,
    exchange: Exchange | None = None,
    answer: ConfirmationAnswer = ConfirmationAnswer.ONCE,
) -> tuple[CallPermit | None, list[PendingConfirmation]]:
    """What comes of it with somebody there, and what they were asked."""
    with auto_answering(opened, answer) as asked:
        return await opened.admit(exchange or call(), entry(server, Kind.TOOL, name)), asked


ACME = Rule("create", (Condition("/owner", (Check("in", ("acme",)),)),))
EVIL = Rule("create", (Condition("/owner", (Check("eq", "evil"),)),))
OTHER_SESSION = Caller("desk", SHARED, "token", session="s2")
OTHER_TOKEN = Caller("desk", SHARED, "other", session="s1")


async def passes(opened: Gate, name: str, exchange: Exchange) -> bool:
    """Whether it goes to its server with nobody there."""
    try:
        permit = await opened.admit(exchange, entry("asking", Kind.TOOL, name))
        assert permit is not None
        with dispatched(permit):
            return True
    except (Unconfirmed, StaleApproval):
        return False


async def asked_quietly(opened: Gate, name: str) -> None:
    with pytest.raises(StaleApproval):
        await opened.admit(call(), entry("asking", Kind.TOOL, name))


def padded(size: int) -> dict[str, str]:
    """Arguments of so many bytes."""
    return {"owner": "a" * (size - len(json.dumps({"owner": ""}, separators=(",", ":"))))}
