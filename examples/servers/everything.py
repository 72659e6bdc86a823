"""A reference MCP server that offers one of everything the official conformance suite asks for.

    python examples/servers/everything.py                          # over stdio
    python examples/servers/everything.py --http 127.0.0.1:8931    # over HTTP, at /mcp; port 0 takes a free one
    python examples/servers/everything.py --handshake-only ...     # as a server that has never heard of 2026-07-28
    python examples/servers/everything.py --push ...               # with tools that ask as they did before 2026-07-28

Over HTTP it prints the address it listens on, as the first line on stdout.

It knows the fixed names, texts and URIs which the suite looks for, and speaks both the session-based revisions up to
2025-11-25 and, unless it is told not to, the session-less 2026-07-28. Its tools ask the same in both: with a session by
real requests in the middle of the call, without one by giving the questions back as the result. With `--push`, those
that are older than that revision know the first way only, as most tools do that were written before it: they serve
clients with a session, and fail without one. It refuses to know
anything about Colonnade: a gateway in front of it has to give the same answers as the server itself, so nothing here
may bend towards the gateway. It owns the state of the sessions it serves (log levels, subscriptions, the replay log),
all of it in memory.

It is built on the SDK's low-level server: what stands in this file is what goes over the wire.
"""

from __future__ import annotations

import argparse
import base64
import json
import socket
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, get_args

import anyio
import mcp_types as types
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# The suite looks for a pause between two notifications of one call, to see that they are sent as they happen.
PAUSE_SECONDS = 0.05
LONG_SECONDS = 0.9  # so long that a gateway that answers short calls with plain JSON opens a stream for it

# One red pixel, and one silent 8 kHz sample: the smallest files that a decoder accepts.
RED_PIXEL_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SILENCE_WAV = base64.b64encode(
    b"RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00"
    b"data\x02\x00\x00\x00\x00\x00"
).decode()

pushes = False
"""Whether the tools that are older than 2026-07-28 ask by requests alone."""

Params = types.CallToolRequestParams | types.GetPromptRequestParams
Context = ServerRequestContext[Any, Any]


def speaks_2026(ctx: Context) -> bool:
    """Whether the caller speaks a session-less revision, where a server may not send requests of its own."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def session_key(ctx: Context) -> str:
    """What tells the session of this request from the others: its HTTP session id; stdio has a single one."""
    return str(ctx.request.headers.get("mcp-session-id", "")) if ctx.request is not None else "stdio"


# ---------------------------------------------------------------------------------------------------------------------
# Asking the client: sampling, elicitation, roots
# ---------------------------------------------------------------------------------------------------------------------

ANSWER_TYPES: dict[type[types.InputRequest], type[types.InputResponse]] = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}


class ToolFailed(Exception):
    """The tool ran and did not succeed; the model sees the text, in a result marked `isError`."""


class InputNeeded(Exception):
    """The call cannot go on before the client has answered; `result` says what is asked."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("the call waits for the client's answers")
        self.result = result


def needed_capability(request: types.InputRequest) -> types.ClientCapabilities:
    """What a client must have declared before it may be asked this."""
    if isinstance(request, types.ElicitRequest):
        return types.ClientCapabilities(elicitation=types.ElicitationCapability())
    if isinstance(request, types.CreateMessageRequest):
        return types.ClientCapabilities(sampling=types.SamplingCapability())
    return types.ClientCapabilities(roots=types.RootsCapability())


def require(ctx: Context, capability: types.ClientCapabilities) -> None:
    """Refuse the call when the client has not declared `capability`: 2026-07-28 has an error code of its own for it."""
    if ctx.session.check_client_capability(capability):
        return
    data = types.MissingRequiredClientCapabilityErrorData(required_capabilities=capability)
    wire = data.model_dump(by_alias=True, mode="json", exclude_none=True)
    wanted = ", ".join(wire["requiredCapabilities"])
    if not speaks_2026(ctx):
        raise ToolFailed(f"This needs a client that declares the capability: {wanted}.")
    raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"The client did not declare: {wanted}", wire)


async def ask(
    ctx: Context,
    params: Params,
    wanted: dict[str, types.InputRequest],
    state: str | None = None,
) -> dict[str, Any]:
    """The client's answers, by the keys of `wanted`.

    With a session the server sends all requests at once and waits; what the client refuses raises `MCPError`. Without
    one it gives the questions back as the result, and the client calls again with the answers (and with `state`, which
    the server sealed); until all of them are there and are of the right kind, this raises `InputNeeded`. Answers
    without the state they were asked with do not count.
    """
    for request in wanted.values():
        require(ctx, needed_capability(request))
    if not speaks_2026(ctx):
        return await send_requests(ctx, wanted)
    given = params.input_responses or {}
    complete = all(isinstance(given.get(key), ANSWER_TYPES[type(request)]) for key, request in wanted.items())
    if not complete or (state is not None and params.request_state is None):
        raise InputNeeded(types.InputRequiredResult(input_requests=wanted, request_state=state))
    return {key: given[key] for key in wanted}


async def ask_as_before(
    ctx: Context, params: types.CallToolRequestParams, key: str, request: types.InputRequest
) -> Any:
    """The client's answer, for a tool that is older than 2026-07-28. With `--push` that revision gets no question, and
    the SDK raises `MCPError`."""
    asked = {key: request}
    return (await (send_requests(ctx, asked) if pushes else ask(ctx, params, asked)))[key]


async def send_requests(ctx: Context, wanted: dict[str, types.InputRequest]) -> dict[str, Any]:
    """The answers of a client that has a session, by the keys of `wanted`."""
    # Tied to the request id, so that each question travels on the stream of the call it belongs to.
    tie = ServerMessageMetadata(related_request_id=ctx.request_id)
    answers: dict[str, Any] = {}
    refusals: list[MCPError] = []

    async def send(key: str, request: types.InputRequest) -> None:
        try:
            answers[key] = await ctx.session.send_request(request, ANSWER_TYPES[type(request)], metadata=tie)
        except MCPError as refusal:
            refusals.append(refusal)

    async with anyio.create_task_group() as tasks:
        for key, request in wanted.items():
            tasks.start_soon(send, key, request)
    if refusals:
        raise refusals[0]
    return answers


def form(message: str, properties: dict[str, Any], required: list[str] | None = None) -> types.ElicitRequest:
    """A question to the user with a form of `properties`; all are required unless `required` names some."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str, max_tokens: int) -> types.CreateMessageRequest:
    """A question to the client's model."""
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


def said(answer: types.ElicitResult) -> str:
    """An elicitation's outcome in the form that the suite's descriptions show."""
    return f"action={answer.action}, content={json.dumps(answer.content)}"


# ---------------------------------------------------------------------------------------------------------------------
# Logging
# ---------------------------------------------------------------------------------------------------------------------

LEVELS: tuple[str, ...] = get_args(types.LoggingLevel)  # from `debug` up to `emergency`
session_levels: dict[str, str] = {}


async def set_level(ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    """`logging/setLevel`: holds for the session that sent it."""
    session_levels[session_key(ctx)] = params.level
    return types.EmptyResult()


async def log(ctx: Context, level: types.LoggingLevel, text: str) -> None:
    """Send one log message with the call it belongs to, if the client wants messages of that level.

    A session hears everything until it sets a level; a 2026-07-28 request hears nothing unless it names one.
    """
    if speaks_2026(ctx):
        floor = (ctx.meta or {}).get(types.LOG_LEVEL_META_KEY)
    else:
        floor = session_levels.get(session_key(ctx), LEVELS[0])
    if floor not in LEVELS or LEVELS.index(level) < LEVELS.index(str(floor)):
        return
    params = types.LoggingMessageNotificationParams(level=level, data=text, logger="everything")
    await ctx.session.send_notification(types.LoggingMessageNotification(params=params), ctx.request_id)


# ---------------------------------------------------------------------------------------------------------------------
# Tools: how they are declared and called
# ---------------------------------------------------------------------------------------------------------------------

ToolBody = Callable[[Context, types.CallToolRequestParams], Awaitable[types.CallToolResult]]
TOOLS: dict[str, tuple[types.Tool, ToolBody]] = {}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(input_schema: dict[str, Any] = NO_ARGUMENTS) -> Callable[[ToolBody], ToolBody]:
    """Offer the function as a tool, under its own name and with its docstring as the description."""

    def offer(body: ToolBody) -> ToolBody:
        name = body.__name__
        description = (body.__doc__ or "").strip()
        TOOLS[name] = (types.Tool(name=name, description=description, input_schema=input_schema), body)
        return body

    return offer


async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """`tools/list`: in the order of this file, the same for everybody."""
    return types.ListToolsResult(tools=[declared for declared, _ in TOOLS.values()])


async def call_tool(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    """`tools/call`: a tool that fails is a result; a tool that does not exist is a protocol error."""
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    _, body = TOOLS[params.name]
    try:
        return await body(ctx, params)
    except ToolFailed as failure:
        return types.CallToolResult(content=[types.TextContent(text=str(failure))], is_error=True)
    except InputNeeded as pause:
        return pause.result


def tool_input_schema(name: str) -> dict[str, Any] | None:
    """The input schema of a tool, for the SDK's check of mirrored `Mcp-Param-*` headers."""
    return TOOLS[name][0].input_schema if name in TOOLS else None


def text(words: str) -> types.CallToolResult:
    """A result of one text."""
    return types.CallToolResult(content=[types.TextContent(text=words)])


def argument(params: types.CallToolRequestParams, name: str) -> str:
    """A required string argument; the low-level server leaves that check to the tool."""
    value = (params.arguments or {}).get(name)
    if not isinstance(value, str):
        raise ToolFailed(f"The argument {name!r} is required and must be a string.")
    return value


def string_schema(name: str, description: str, **more: str) -> dict[str, Any]:
    """An input schema of one required string."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description, **more}},
        "required": [name],
    }


# ---------------------------------------------------------------------------------------------------------------------
# Tools: each kind of content, and failure
# ---------------------------------------------------------------------------------------------------------------------


@tool()
async def test_simple_text(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Returns a text."""
    return text("This is a simple text response for testing.")


@tool()
async def test_image_content(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Returns an image."""
    return types.CallToolResult(content=[types.ImageContent(data=RED_PIXEL_PNG, mime_type="image/png")])


@tool()
async def test_audio_content(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Returns a sound."""
    return types.CallToolResult(content=[types.AudioContent(data=SILENCE_WAV, mime_type="audio/wav")])


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    """A text resource, carried inside of a result."""
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, mime_type=mime_type, text=words))


@tool()
async def test_embedded_resource(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Returns a resource inside of the result."""
    resource = embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[resource])


@tool()
async def test_multiple_content_types(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Returns a text, an image and a resource at once."""
    return types.CallToolResult(
        content=[
            types.TextContent(text="Multiple content types test:"),
            types.ImageContent(data=RED_PIXEL_PNG, mime_type="image/png"),
            embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    )


@tool()
async def test_error_handling(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Always fails."""
    raise ToolFailed("This tool intentionally returns an error for testing")


# Keywords that a proxy loses easily when it reads schemas into types of its own.
RICH_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@tool(RICH_SCHEMA)
async def json_schema_2020_12_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Tool with JSON Schema 2020-12 features; returns its arguments."""
    return text(json.dumps(params.arguments or {}))


@tool(string_schema("region", "Where to look", **{"x-mcp-header": "Region"}))
async def test_mirrored_header(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Has an argument that a 2026-07-28 client repeats in the header `Mcp-Param-Region`."""
    return text(f"Region: {argument(params, 'region')}")


# ---------------------------------------------------------------------------------------------------------------------
# Tools: what happens on the way to the result
# ---------------------------------------------------------------------------------------------------------------------


@tool()
async def test_tool_with_logging(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Sends three log messages while it runs."""
    await log(ctx, "info", "Tool execution started")
    await anyio.sleep(PAUSE_SECONDS)
    await log(ctx, "info", "Tool processing data")
    await anyio.sleep(PAUSE_SECONDS)
    await log(ctx, "info", "Tool execution completed")
    return text("Tool with logging executed successfully")


@tool()
async def test_logging_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Sends one log message, to those who asked for it."""
    await log(ctx, "info", "Logged once")
    return text("Logged once")


@tool()
async def test_tool_with_progress(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Reports progress from 0 to 100, if the caller gave a token for it."""
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"Completed {done} of 100")
        await anyio.sleep(PAUSE_SECONDS)
    return text("Tool with progress executed successfully")


@tool()
async def test_reconnection(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Drops the stream of its own call; the caller finds the result when it comes back for it."""
    if ctx.close_sse_stream is not None:  # absent on stdio and on session-less HTTP: there is nothing to come back to
        await ctx.close_sse_stream()
    await anyio.sleep(LONG_SECONDS)
    return text("Reconnection test completed")


# ---------------------------------------------------------------------------------------------------------------------
# Tools: those that ask the client
# ---------------------------------------------------------------------------------------------------------------------


@tool(string_schema("prompt", "The prompt to send to the LLM"))
async def test_sampling(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Asks the client's model."""
    answer = await ask_as_before(ctx, params, "answer", sampling(argument(params, "prompt"), 100))
    content = answer.content
    return text(f"LLM response: {content.text if isinstance(content, types.TextContent) else content}")


@tool(string_schema("message", "The message to show the user"))
async def test_elicitation(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Asks the user for a name and an address."""
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    answer = await ask_as_before(ctx, params, "user", form(argument(params, "message"), properties))
    return text(f"User response: {said(answer)}")


@tool()
async def test_elicitation_sep1034_defaults(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Asks the user with a default for each kind of field."""
    properties = {
        "name": {"type": "string", "description": "User name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User age", "default": 30},
        "score": {"type": "number", "description": "User score", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "description": "Verification status", "default": True},
    }
    answer = await ask_as_before(ctx, params, "user", form("Please review the form", properties, required=[]))
    return text(f"Elicitation completed: {said(answer)}")


@tool()
async def test_elicitation_sep1330_enums(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Asks the user to choose, in each of the five ways a choice can be written."""
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{number}", "title": f"{word} Option"}
        for number, word in enumerate(("First", "Second", "Third"), start=1)
    ]
    properties = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    answer = await ask_as_before(ctx, params, "user", form("Please choose", properties, required=[]))
    return text(f"Elicitation completed: {said(answer)}")


@tool()
async def test_missing_capability(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Works only for a client that has a model to ask."""
    await ask(ctx, params, {"answer": sampling("Are you there?", 10)})
    return text("The client has a model")


# ---------------------------------------------------------------------------------------------------------------------
# Tools: those that 2026-07-28 asks for by name, for its calls in several rounds
# ---------------------------------------------------------------------------------------------------------------------

NAME_FORM = form("What is your name?", {"name": {"type": "string"}})
CAPITAL_QUESTION = sampling("What is the capital of France?", 100)


def field(answer: types.ElicitResult, name: str) -> str:
    """One field of an accepted form; a declined one has none."""
    return str((answer.content or {}).get(name, "(no answer)"))


@tool()
async def test_input_required_result_elicitation(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks for a name, then greets."""
    answers = await ask(ctx, params, {"user_name": NAME_FORM})
    return text(f"Hello, {field(answers['user_name'], 'name')}!")


@tool()
async def test_streaming_elicitation(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Reports progress, then asks for a name."""
    await ctx.session.report_progress(0, 1)
    answers = await ask(ctx, params, {"user_name": NAME_FORM})
    return text(f"Hello, {field(answers['user_name'], 'name')}!")


@tool()
async def test_input_required_result_sampling(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks the client's model for a capital."""
    answers = await ask(ctx, params, {"capital_question": CAPITAL_QUESTION})
    return text(f"The model says: {answers['capital_question'].content}")


@tool()
async def test_input_required_result_list_roots(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks for the client's roots."""
    answers = await ask(ctx, params, {"client_roots": types.ListRootsRequest()})
    return text(f"Roots: {', '.join(str(root.uri) for root in answers['client_roots'].roots)}")


@tool()
async def test_input_required_result_request_state(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks for a confirmation and gives out a state that must come back with it."""
    await ask(ctx, params, {"confirm": form("Please confirm", {"ok": {"type": "boolean"}})}, state="confirming")
    return text("state-ok")


@tool()
async def test_input_required_result_tampered_state(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Gives out a state whose least change is refused: the seal is broken then."""
    await ask(ctx, params, {"confirm": form("Please confirm", {"ok": {"type": "boolean"}})}, state="confirming")
    return text("The state came back as it was given out")


@tool()
async def test_input_required_result_multiple_inputs(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks the user, the model and for roots in one round."""
    wanted: dict[str, types.InputRequest] = {
        "user_name": NAME_FORM,
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": types.ListRootsRequest(),
    }
    answers = await ask(ctx, params, wanted, state="asked-three")
    return text(f"{field(answers['user_name'], 'name')} has {len(answers['client_roots'].roots)} roots")


@tool()
async def test_input_required_result_multi_round(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks for a name and then, knowing it, for a colour: the state carries the name from round to round."""
    known = json.loads(params.request_state or "{}")
    if "name" not in known:
        first = form("Step 1: What is your name?", {"name": {"type": "string"}})
        known["name"] = field((await ask(ctx, params, {"step1": first}, state="{}"))["step1"], "name")
    second = form("Step 2: What is your favorite color?", {"color": {"type": "string"}})
    answers = await ask(ctx, params, {"step2": second}, state=json.dumps(known))
    return text(f"{known['name']} likes {field(answers['step2'], 'color')}")


@tool()
async def test_input_required_result_capabilities(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult:
    """Asks only what the client says it can answer."""
    possible: dict[str, types.InputRequest] = {
        "user_name": NAME_FORM,
        "capital_question": CAPITAL_QUESTION,
        "client_roots": types.ListRootsRequest(),
    }
    declared = {
        key: request
        for key, request in possible.items()
        if ctx.session.check_client_capability(needed_capability(request))
    }
    answered = await ask_in_turn(ctx, declared) if not speaks_2026(ctx) else list(await ask(ctx, params, declared))
    return text(f"Answered: {', '.join(answered) or 'nothing'}")


async def ask_in_turn(ctx: Context, wanted: dict[str, types.InputRequest]) -> list[str]:
    """Ask one after the other; the keys of those that the client has not refused, as it may though it declared them."""
    answered = []
    for key, request in wanted.items():
        try:
            await send_requests(ctx, {key: request})
        except MCPError:
            continue
        answered.append(key)
    return answered


# ---------------------------------------------------------------------------------------------------------------------
# Resources and their subscriptions
# ---------------------------------------------------------------------------------------------------------------------

WATCHED = "test://watched-resource"
TEMPLATE_START, TEMPLATE_END = "test://template/", "/data"

# 2026-07-28 clients listen on a stream of their own, which the SDK's handler serves from this bus; sessions subscribe.
bus = InMemorySubscriptionBus()
subscribers: defaultdict[str, dict[str, ServerSession]] = defaultdict(dict)
watched_version = 0


async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
    """`resources/list`: what has a fixed URI."""
    rows = [
        ("test://static-text", "Static text", "A text that never changes", "text/plain"),
        ("test://static-binary", "Static binary", "An image that never changes", "image/png"),
        (WATCHED, "Watched resource", "A text that changes; subscribe to it", "text/plain"),
    ]
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=name, description=description, mime_type=mime_type)
            for uri, name, description, mime_type in rows
        ]
    )


async def list_templates(
    ctx: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    """`resources/templates/list`."""
    template = types.ResourceTemplate(
        uri_template=f"{TEMPLATE_START}{{id}}{TEMPLATE_END}",
        name="Data by id",
        description="A resource with a parameter in its URI",
        mime_type="application/json",
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    """`resources/read`; the revisions name different codes for a resource that does not exist."""
    contents = resource_contents(str(params.uri))
    if contents is None:
        code = types.INVALID_PARAMS if speaks_2026(ctx) else -32002
        raise MCPError(code, "Resource not found", {"uri": str(params.uri)})
    return types.ReadResourceResult(contents=[contents])


def resource_contents(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    """What stands behind a URI, `None` when nothing does."""
    if uri == "test://static-text":
        words = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=words)
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=RED_PIXEL_PNG)
    if uri == WATCHED:
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=f"Version {watched_version}")
    if uri.startswith(TEMPLATE_START) and uri.endswith(TEMPLATE_END):
        id = uri.removeprefix(TEMPLATE_START).removesuffix(TEMPLATE_END)
        data = json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=data)
    return None


async def subscribe(ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    """`resources/subscribe`: this session hears of changes from now on."""
    subscribers[str(params.uri)][session_key(ctx)] = ctx.session
    return types.EmptyResult()


async def unsubscribe(ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    """`resources/unsubscribe`: and no longer; it is no error when it never did."""
    subscribers[str(params.uri)].pop(session_key(ctx), None)
    return types.EmptyResult()


@tool()
async def test_trigger_resource_update(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Changes the watched resource and tells everyone who watches it."""
    global watched_version
    watched_version += 1
    await bus.publish(ResourceUpdated(uri=WATCHED))
    for key, session in list(subscribers[WATCHED].items()):
        try:
            await session.send_resource_updated(WATCHED)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            del subscribers[WATCHED][key]  # that session has ended without a word
    return text(f"{WATCHED} is at version {watched_version}")


def revise(offered: types.Tool | types.Prompt) -> None:
    """Change an entry of a list. Its name stays: other callers compare the names of two readings meanwhile."""
    words, _, edition = (offered.description or "").partition(" Edition ")
    offered.description = f"{words} Edition {int(edition.rstrip('.') or 1) + 1}."


@tool()
async def test_trigger_tool_change(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Changes its own description, and announces the change of the tool list."""
    revise(TOOLS["test_trigger_tool_change"][0])
    await bus.publish(ToolsListChanged())
    await ctx.session.send_tool_list_changed()
    return text("Announced")


@tool()
async def test_trigger_prompt_change(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Changes the description of a prompt, and announces the change of the prompt list."""
    revise(PROMPTS[0])
    await bus.publish(PromptsListChanged())
    await ctx.session.send_prompt_list_changed()
    return text("Announced")


# ---------------------------------------------------------------------------------------------------------------------
# Prompts and completion
# ---------------------------------------------------------------------------------------------------------------------


def prompt(name: str, description: str, **arguments: str) -> types.Prompt:
    """A prompt whose arguments (name and description) are all required."""
    return types.Prompt(
        name=name,
        description=description,
        arguments=[
            types.PromptArgument(name=key, description=value, required=True) for key, value in arguments.items()
        ],
    )


PROMPTS = (
    prompt("test_simple_prompt", "One message."),
    prompt(
        "test_prompt_with_arguments",
        "One message with its arguments",
        arg1="First test argument",
        arg2="Second test argument",
    ),
    prompt(
        "test_prompt_with_embedded_resource",
        "A message with a resource inside",
        resourceUri="URI of the resource to embed",
    ),
    prompt("test_prompt_with_image", "A message with an image"),
    prompt("test_input_required_result_prompt", "Asks the user before it is ready"),
)


async def list_prompts(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
    """`prompts/list`."""
    return types.ListPromptsResult(prompts=list(PROMPTS))


async def get_prompt(
    ctx: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    """`prompts/get`."""
    declared = next((each for each in PROMPTS if each.name == params.name), None)
    if declared is None:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    arguments = params.arguments or {}
    missing = [each.name for each in declared.arguments or [] if each.name not in arguments]
    if missing:
        raise MCPError(types.INVALID_PARAMS, f"Missing arguments: {', '.join(missing)}")
    try:
        contents = await prompt_contents(ctx, params, arguments)
    except InputNeeded as pause:
        return pause.result
    except ToolFailed as failure:  # a prompt has no result that says "failed"
        raise MCPError(types.INVALID_REQUEST, str(failure)) from failure
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in contents])


async def prompt_contents(
    ctx: Context, params: types.GetPromptRequestParams, arguments: dict[str, str]
) -> list[types.ContentBlock]:
    """The contents of a prompt's messages, in order."""
    if params.name == "test_prompt_with_arguments":
        words = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
        return [types.TextContent(text=words)]
    if params.name == "test_prompt_with_embedded_resource":
        return [
            embedded(arguments["resourceUri"], "text/plain", "Embedded resource content for testing."),
            types.TextContent(text="Please process the embedded resource above."),
        ]
    if params.name == "test_prompt_with_image":
        return [
            types.ImageContent(data=RED_PIXEL_PNG, mime_type="image/png"),
            types.TextContent(text="Please analyze the image above."),
        ]
    if params.name == "test_input_required_result_prompt":
        question = form("What context should the prompt use?", {"context": {"type": "string"}})
        answers = await ask(ctx, params, {"user_context": question})
        return [types.TextContent(text=f"Use this context: {field(answers['user_context'], 'context')}")]
    return [types.TextContent(text="This is a simple prompt for testing.")]


WORDS = ("paris", "park", "party", "test-one", "test-two")


async def complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    """`completion/complete`: the same few words for every argument, by their beginning."""
    values = [word for word in WORDS if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


# ---------------------------------------------------------------------------------------------------------------------
# The server itself, and how it is run
# ---------------------------------------------------------------------------------------------------------------------


class EverythingServer(Server[dict[str, Any]]):
    """The SDK's server, which promises list changes from 2026-07-28 on only; this one promises them to sessions too."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """What `initialize` answers with."""
        changes = notification_options or NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


def build_server() -> EverythingServer:
    """A server with everything registered."""
    server = EverythingServer(
        "everything",
        version="1.0.0",
        title="Everything",
        instructions="A reference server with one of everything, for tests.",
        # Nothing here changes on its own or differs between callers, but for the watched resource: no caching of reads.
        cache_hints={
            "tools/list": CacheHint(ttl_ms=60_000, scope="public"),
            "prompts/list": CacheHint(ttl_ms=60_000, scope="public"),
            "resources/list": CacheHint(ttl_ms=60_000, scope="public"),
            "resources/templates/list": CacheHint(ttl_ms=60_000, scope="public"),
            "resources/read": CacheHint(ttl_ms=0, scope="public"),
        },
        get_tool_input_schema=tool_input_schema,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
    )
    # Not by the constructor: that warns on stderr of a feature which 2026-07-28 deprecates and 2025-11-25 asks for.
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, set_level)
    # Seals what `ask` gives out as the state and refuses what was not sealed here; the key ends with the process.
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=server.name))
    return server


class ReplayLog(EventStore):
    """The latest events of all streams, so that a client which lost a stream finds the rest of it."""

    KEPT = 1000  # of all streams together: a test run stays far below

    def __init__(self) -> None:
        self._last = 0
        self._events: dict[str, tuple[str, types.JSONRPCMessage | None]] = {}

    async def store_event(self, stream_id: str, message: types.JSONRPCMessage | None) -> str:
        """Keep one event; without a message it marks only where the stream began."""
        self._last += 1
        self._events[str(self._last)] = (stream_id, message)
        if len(self._events) > self.KEPT:
            del self._events[next(iter(self._events))]
        return str(self._last)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what the stream of `last_event_id` has had since; `None` when that event is not known any more."""
        if last_event_id not in self._events:
            return None
        wanted, _ = self._events[last_event_id]
        for event_id, (stream_id, message) in list(self._events.items()):
            if stream_id == wanted and message is not None and int(event_id) > int(last_event_id):
                await send_callback(EventMessage(message, event_id))
        return wanted


class HandshakeOnly:
    """Refuses over HTTP what carries a later revision's header, in the words of a server older than that revision."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what belongs to a session or opens one."""
        version = Headers(scope=scope).get("mcp-protocol-version") if scope["type"] == "http" else None
        app = self._app if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS else self._refusal(version)
        await app(scope, receive, send)

    def _refusal(self, version: str) -> ASGIApp:
        words = f"Bad Request: Unsupported protocol version: {version}"
        error = {"code": types.INVALID_REQUEST, "message": words}
        return JSONResponse({"jsonrpc": "2.0", "id": "server-error", "error": error}, 400)


async def serve_stdio(handshake_only: bool) -> None:
    """Serve the one client at stdin and stdout until it hangs up."""
    server = build_server()
    options = server.create_initialization_options()
    async with stdio_server() as (read, write):
        if not handshake_only:
            await server.run(read, write, options)
            return
        async with server.lifespan(server) as state:
            await serve_loop(server, read, write, lifespan_state=state, init_options=options)


def serve_http(host: str, port: int, handshake_only: bool) -> None:
    """Serve at `http://host:port/mcp` until interrupted.

    On a loopback address the SDK refuses requests with a foreign `Host` or `Origin`: a web page that made its own
    name point to this machine gets nowhere.
    """
    app: ASGIApp = build_server().streamable_http_app(
        host=host,
        event_store=ReplayLog(),  # without one, no stream can be taken up again
        retry_interval=500,  # milliseconds
    )
    if handshake_only:
        app = HandshakeOnly(app)
    with socket.create_server((host, port)) as listener:
        print(f"http://{host}:{listener.getsockname()[1]}/mcp", flush=True)
        # Open streams end with the process: nobody waits here for clients that stay connected.
        # Not httptools, which uvicorn would take where it is installed: it leaves spaces at the end of a header.
        config = uvicorn.Config(app, http="h11", log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


def main(arguments: list[str]) -> None:
    """Read the command line and serve."""
    global pushes
    parser = argparse.ArgumentParser(description="A reference MCP server with one of everything, for tests.")
    parser.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP (port 0: any free one) and not over stdio")
    parser.add_argument("--handshake-only", action="store_true", help="speak no revision later than 2025-11-25")
    parser.add_argument("--push", action="store_true", help="older tools ask by requests alone, in every revision")
    options = parser.parse_args(arguments)
    pushes = options.push
    if options.http is None:
        anyio.run(serve_stdio, options.handshake_only)
        return
    host, separator, port = options.http.rpartition(":")
    if not separator or not port.isdecimal():
        parser.error(f"--http takes HOST:PORT, for example 127.0.0.1:8931, not {options.http!r}")
    serve_http(host, int(port), options.handshake_only)


if __name__ == "__main__":
    main(sys.argv[1:])
