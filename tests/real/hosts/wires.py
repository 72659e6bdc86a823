"""The messages of model endpoints, as far as a model needs them that calls one tool: four APIs.

Anthropic's messages, OpenAI's responses and chat completions, and Gemini's generateContent. Each streams if the request
wants it. Nothing here knows the host that asks. The shapes are those of the vendors' references.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MODEL = "model-of-the-tests"

Body = dict[str, Any]
Events = Sequence[tuple[str, object]]
"""The events of a stream: name (empty: none) and data, which is JSON, or a text as it is."""


@dataclass(frozen=True)
class Tool:
    """A tool as the host offers it to the model. Codex alone has namespaces."""

    name: str
    namespace: str = ""


@dataclass(frozen=True)
class Asked:
    """A request to a model: the tools that are offered, and the results of those that were called before in this
    conversation, as JSON text."""

    tools: Sequence[Tool]
    results: Sequence[str]


@dataclass(frozen=True)
class Answer:
    """The call of a tool; or, without one, a text that ends the turn. `id` tells it from the other answers: some hosts
    take two calls with one id for the same."""

    id: str
    tool: Tool | None = None
    arguments: Mapping[str, object] | None = None
    text: str = "Done."


class Wire(Protocol):
    """One API, for requests at the paths that end with `path`."""

    path: str

    def read(self, body: Body) -> Asked: ...

    def whole(self, answer: Answer) -> Body:
        """The body of a response that is not streamed."""

    def events(self, answer: Answer) -> Events: ...


class AnthropicMessages:
    path = "/messages"

    def read(self, body: Body) -> Asked:
        contents = [message["content"] for message in body["messages"] if not isinstance(message["content"], str)]
        results = [block for content in contents for block in content if block["type"] == "tool_result"]
        return Asked([Tool(tool["name"]) for tool in body.get("tools") or []], [json.dumps(each) for each in results])

    def whole(self, answer: Answer) -> Body:
        block: Body = {"type": "text", "text": answer.text}
        if answer.tool:
            block = {"type": "tool_use", "id": answer.id, "name": answer.tool.name, "input": answer.arguments}
        head = {"id": answer.id, "type": "message", "role": "assistant", "model": MODEL, "content": [block]}
        reason = "tool_use" if answer.tool else "end_turn"
        usage = {"input_tokens": 1, "output_tokens": 1}
        return {**head, "stop_reason": reason, "stop_sequence": None, "usage": usage}

    def events(self, answer: Answer) -> Events:
        whole = self.whole(answer)
        (block,) = whole["content"]
        if answer.tool:
            begun, delta = (
                {**block, "input": {}},
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])},
            )
        else:
            begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": answer.text}
        end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        return _named(
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": begun},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        )


class OpenAIResponses:
    path = "/responses"

    def read(self, body: Body) -> Asked:
        tools = []
        for tool in body.get("tools") or []:
            if tool["type"] == "namespace":
                tools += [Tool(each["name"], tool["name"]) for each in tool["tools"]]
            elif tool["type"] == "function":
                tools.append(Tool(tool["name"]))
        items = [] if isinstance(body["input"], str) else body["input"]
        return Asked(tools, [json.dumps(item) for item in items if item.get("type") == "function_call_output"])

    def whole(self, answer: Answer) -> Body:
        item: Body = {"id": answer.id, "status": "completed"}
        if answer.tool:
            item |= {"type": "function_call", "call_id": answer.id, "name": answer.tool.name}
            item |= {"arguments": json.dumps(answer.arguments)}
            item |= {"namespace": answer.tool.namespace} if answer.tool.namespace else {}
        else:
            content = {"type": "output_text", "text": answer.text, "annotations": []}
            item |= {"type": "message", "role": "assistant", "content": [content]}
        head = {"id": answer.id, "object": "response", "status": "completed", "model": MODEL}
        return {**head, "output": [item], "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}

    def events(self, answer: Answer) -> Events:
        whole = self.whole(answer)
        (item,) = whole["output"]
        return _named(
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": whole},
        )


class OpenAIChat:
    """The usage comes in a chunk without choices, as documented: Continue passes over the choices of one with usage."""

    path = "/chat/completions"

    def read(self, body: Body) -> Asked:
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        tools = [Tool(tool["function"]["name"]) for tool in body.get("tools") or []]
        return Asked(tools, [json.dumps(each) for each in results])

    def whole(self, answer: Answer) -> Body:
        return self._with({"message": self._message(answer), "finish_reason": self._reason(answer)}, True)

    def events(self, answer: Answer) -> Events:
        return [
            ("", self._with({"delta": self._message(answer), "finish_reason": None})),
            ("", self._with({"delta": {}, "finish_reason": self._reason(answer)})),
            ("", self._with(None, True)),
            ("", "[DONE]"),
        ]

    def _message(self, answer: Answer) -> Body:
        if answer.tool is None:
            return {"role": "assistant", "content": answer.text}
        function = {"name": answer.tool.name, "arguments": json.dumps(answer.arguments)}
        call = {"index": 0, "id": answer.id, "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    def _reason(self, answer: Answer) -> str:
        return "tool_calls" if answer.tool else "stop"

    def _with(self, choice: Body | None, usage: bool = False) -> Body:
        kind = "chat.completion" if choice and "message" in choice else "chat.completion.chunk"
        choices = [{"index": 0, **choice}] if choice else []
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "chat", "object": kind, "created": 1, "model": MODEL, "choices": choices}
        return head | ({"usage": counts} if usage else {})


class GeminiContent:
    path = "enerateContent"
    """Also of `streamGenerateContent`, which alone says that the response is streamed."""

    def read(self, body: Body) -> Asked:
        declared = [each for tool in body.get("tools") or [] for each in tool.get("functionDeclarations") or []]
        parts = [part for content in body["contents"] for part in content.get("parts") or []]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        return Asked([Tool(each["name"]) for each in declared], [json.dumps(each) for each in results])

    def whole(self, answer: Answer) -> Body:
        part: Body = {"text": answer.text}
        if answer.tool:
            part = {"functionCall": {"name": answer.tool.name, "args": answer.arguments}}
        candidate = {"index": 0, "content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": MODEL}

    def events(self, answer: Answer) -> Events:
        return [("", self.whole(answer))]


def _named(*events: Body) -> Events:
    """Events that are named by their type."""
    return [(event["type"], event) for event in events]


WIRES: tuple[Wire, ...] = (AnthropicMessages(), OpenAIResponses(), OpenAIChat(), GeminiContent())
