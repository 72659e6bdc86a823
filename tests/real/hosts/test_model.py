"""The model that calls one tool, in the form of each API, and the edit of the configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .__main__ import kinds
from .model import Call, Model, Turn
from .wires import WIRES, Answer, Tool

CALL = Call("get_time", {"zone": "UTC"}, "noon")
ANTHROPIC, RESPONSES, CHAT, GEMINI = "/v1/messages", "/v1/responses", "/v1/chat/completions", "/m:generateContent"


def ask(path: str, tools: list[str], results: list[str]) -> dict[str, Any]:
    """A request of a host to a model."""
    if path == ANTHROPIC:
        blocks = [{"type": "tool_result", "tool_use_id": "x", "content": each} for each in results]
        return {"tools": [{"name": tool} for tool in tools], "messages": [{"role": "user", "content": blocks}]}
    if path == RESPONSES:
        space = {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": tool} for tool in tools]}
        return {"tools": [space], "input": [{"type": "function_call_output", "output": each} for each in results]}
    if path == CHAT:
        functions = [{"type": "function", "function": {"name": tool}} for tool in tools]
        return {"tools": functions, "messages": [{"role": "tool", "content": each} for each in results]}
    parts = [{"functionResponse": {"response": {"output": each}}} for each in results]
    declared = [{"functionDeclarations": [{"name": tool} for tool in tools]}]
    return {"tools": declared, "contents": [{"role": "user", "parts": parts}]}


@pytest.fixture
def model() -> Model:
    made = Model("http://127.0.0.1:1")
    made.turn = Turn(CALL)
    return made


@pytest.mark.parametrize("path", [ANTHROPIC, RESPONSES, CHAT, GEMINI])
def test_one_call_and_its_result(path: str, model: Model) -> None:
    _, first = model.answer(path, ask(path, ["mcp__s__get_time", "read"], []))
    _, second = model.answer(path, ask(path, ["mcp__s__get_time"], ["it is noon"]))
    assert b"mcp__s__get_time" in first
    assert b"zone" in first
    assert b"Done." in second
    assert b"get_time" not in second
    assert not model.turn.problem


@pytest.mark.parametrize(
    ("tools", "results", "problem"),
    [
        ([["read"]], [[]], "was not offered"),
        ([[]], [[]], "no tools"),
        ([], [], "asked no model"),
        ([["s__get_time"]], [[]], "had no result"),
        ([["s__get_time"]] * 2, [[], ["denied"]], "denied"),
    ],
)
def test_why_a_call_did_not_go_through(
    tools: list[list[str]], results: list[list[str]], problem: str, model: Model
) -> None:
    for offered, given in zip(tools, results, strict=True):
        model.answer(CHAT, ask(CHAT, offered, given))
    assert problem in model.turn.problem


def test_a_tool_that_is_found_by_the_hosts_search_is_called_by_name(model: Model) -> None:
    model.answer(ANTHROPIC, ask(ANTHROPIC, ["ToolSearch"], []))
    assert model.turn.searched == ""
    model.answer(ANTHROPIC, ask(ANTHROPIC, ["ToolSearch", "mcp__s__get_time"], ["a reference"]))
    assert model.turn.called == Tool("mcp__s__get_time")


def test_a_tool_that_stays_hidden_is_called_through_the_hosts_bridge(model: Model) -> None:
    model.answer(CHAT, ask(CHAT, ["tool_search", "tool_call"], []))
    _, body = model.answer(CHAT, ask(CHAT, ["tool_search", "tool_call"], ['{"name": "mcp__s__get_time"}']))
    (call,) = json.loads(body)["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "tool_call"
    assert json.loads(call["function"]["arguments"]) == {"name": "mcp__s__get_time", "arguments": {"zone": "UTC"}}


@pytest.mark.parametrize("path", [ANTHROPIC, RESPONSES, CHAT, GEMINI])
@pytest.mark.parametrize("tool", [None, Tool("get_time")])
def test_a_stream_says_what_the_whole_says(path: str, tool: Tool | None) -> None:
    (wire,) = (wire for wire in WIRES if path.endswith(wire.path))
    answer = Answer("a1", tool, CALL.arguments)
    streamed, whole = json.dumps(list(wire.events(answer))), json.dumps(wire.whole(answer))
    for word in ("get_time", "zone") if tool else ("Done.",):
        assert word in streamed
        assert word in whole


def test_half_of_the_starts_are_beside_busy_loops_and_a_third_of_each_half_without_a_running_host() -> None:
    assert kinds(3) == ["first", "running", "running, busy"]
    assert [kinds(20).count(kind) for kind in ("cold", "running", "cold, busy", "running, busy")] == [3, 6, 3, 7]
