"""The four tools of a view with search: definitions, arguments and results."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from msgspec import Raw

from host.errors import AmbiguousMembers
from host.jsonrpc.raw import members
from host.protocol.search_tools import (
    CALL_TOOL,
    DEFAULT_LIMIT,
    DESCRIBE_TOOLS,
    MAX_ARGUMENT_NAME,
    MAX_ARGUMENTS,
    MAX_DESCRIBED,
    MAX_LIMIT,
    MAX_QUERY,
    MAX_SERVERS,
    MAX_SUMMARY,
    READ_TOOL,
    SEARCH_TOOL_NAMES,
    SEARCH_TOOLS,
    InvalidArguments,
    Query,
    called_through,
    described_result,
    error_result,
    found_result,
    found_tool,
    names_of,
    query_of,
    search_definitions,
)


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def params(arguments: object, **others: object) -> dict[str, Raw]:
    return {"name": raw("x"), "arguments": raw(arguments), **{name: raw(each) for name, each in others.items()}}


def definitions(*servers: str) -> dict[str, Any]:
    return {each["name"]: each for each in map(json.loads, search_definitions(servers))}


def definition(**members: object) -> bytes:
    return json.dumps({"name": "t", "inputSchema": {"type": "object"}, **members}).encode()


def test_the_definitions_are_valid_and_say_what_each_tool_may_do() -> None:
    tools = definitions("git", "slack")
    assert tools.keys() == SEARCH_TOOL_NAMES
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        assert tool["inputSchema"]["type"] == "object"
    assert [name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]] == [
        SEARCH_TOOLS,
        DESCRIBE_TOOLS,
        READ_TOOL,
    ]
    assert tools[CALL_TOOL]["annotations"]["destructiveHint"] is True
    assert [name for name, tool in tools.items() if "outputSchema" in tool] == [SEARCH_TOOLS, DESCRIBE_TOOLS]


def test_search_tools_names_the_servers() -> None:
    assert "Servers: git, slack." in definitions("git", "slack")[SEARCH_TOOLS]["description"]
    assert "Servers: none at present." in definitions()[SEARCH_TOOLS]["description"]
    many = definitions(*(f"s{number}" for number in range(MAX_SERVERS + 1)))[SEARCH_TOOLS]["description"]
    assert f"s{MAX_SERVERS - 1}, ...." in many
    assert f"s{MAX_SERVERS}" not in many


def test_the_four_definitions_cost_little() -> None:
    assert sum(map(len, search_definitions(("git", "slack")))) < 3600  # 900 tokens


# Arguments


def test_a_call_through_a_tool_is_the_call_of_the_other_one() -> None:
    asked = params({"name": "git__log", "arguments": {"n": 1.0}}, _meta={"progressToken": 1}, task={"ttl": 1})
    assert called_through(asked) == {
        "name": raw("git__log"),
        "arguments": raw({"n": 1.0}),
        "_meta": raw({"progressToken": 1}),
        "task": raw({"ttl": 1}),
    }
    assert asked["name"] == raw("x")  # the request itself stays


@pytest.mark.parametrize("arguments", [{"name": "a"}, {"name": "a", "arguments": None}])
def test_arguments_may_be_left_out(arguments: dict[str, object]) -> None:
    assert called_through(params(arguments)) == {"name": raw("a")}


def test_the_inner_arguments_keep_their_bytes() -> None:
    text = Raw(b'{"name":"a","arguments":{"z": 1e3 ,"\\u0061":"\\ud83d"}}')
    assert (
        bytes(called_through({"name": raw("x"), "arguments": text})["arguments"]) == b'{"z": 1e3 ,"\\u0061":"\\ud83d"}'
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'name' is missing"),
        ({"name": 1}, "'name' must be a string"),
        ({"name": "a", "arguments": []}, "'arguments' must be an object"),
        ({"name": "a", "arguments": "{}"}, "'arguments' must be an object"),
        ({"name": "a", "path": "/"}, "unknown argument 'path'; expected arguments, name"),
        ([], "must be an object"),
        (None, "must be an object"),
    ],
)
def test_arguments_of_another_form_are_refused_in_words(arguments: object, said: str) -> None:
    with pytest.raises(InvalidArguments, match=said):
        called_through(params(arguments))


def test_a_request_without_arguments_names_no_tool() -> None:
    with pytest.raises(InvalidArguments, match="'name' is missing"):
        called_through({"name": raw("x")})


@pytest.mark.parametrize("twin", ["Name", "ARGUMENTS", "name\0"])
def test_members_that_some_readers_take_for_another_are_refused(twin: str) -> None:
    with pytest.raises(AmbiguousMembers):
        called_through(params({"name": "a", twin: "b"}))


def test_a_query_has_defaults() -> None:
    assert query_of(params({"query": "open an issue"})) == Query("open an issue", None, DEFAULT_LIMIT)
    assert query_of(params({"query": "q", "server": None, "limit": None})) == Query("q")
    assert query_of(params({"query": "q", "server": "git", "limit": 3})) == Query("q", "git", 3)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"query": 1},
        {"query": "q" * (MAX_QUERY + 1)},
        {"query": "q", "limit": 0},
        {"query": "q", "limit": MAX_LIMIT + 1},
        {"query": "q", "limit": True},
        {"query": "q", "limit": 1.5},
        {"query": "q", "limit": "1"},
        {"query": "q", "server": 1},
        {"query": "q", "names": []},
        "q",
    ],
)
def test_a_query_of_another_form_is_refused(arguments: object) -> None:
    with pytest.raises(InvalidArguments):
        query_of(params(arguments))


def test_names_are_taken_once_and_in_order() -> None:
    assert names_of(params({"names": ["b", "a", "b"]})) == ["b", "a"]


@pytest.mark.parametrize(
    "arguments", [{}, {"names": "a"}, {"names": []}, {"names": [1]}, {"names": ["a"] * (MAX_DESCRIBED + 1)}]
)
def test_names_of_another_form_are_refused(arguments: object) -> None:
    with pytest.raises(InvalidArguments):
        names_of(params(arguments))


# Results


def read(result: Raw) -> tuple[Any, Any]:
    """The structured content of a result, and its text."""
    said = json.loads(bytes(result))
    (block,) = said["content"]
    return said["structuredContent"], json.loads(block["text"])


def test_what_was_found_is_short_and_fits_the_schema() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}
    tools = [
        found_tool("g__t", "git", definition(description=" One\n line. \n\nMore.", inputSchema=schema), read_only=True),
        found_tool("g__u", "git", definition(), read_only=False),
    ]
    found, text = read(found_result(tools))
    assert found == {
        "tools": [
            {"name": "g__t", "server": "git", "description": "One line.", "arguments": ["a?", "b"], "readOnly": True},
            {"name": "g__u", "server": "git", "description": "", "arguments": []},
        ]
    }
    assert text == found
    jsonschema.validate(found, definitions()[SEARCH_TOOLS]["outputSchema"])


def test_a_long_description_is_cut() -> None:
    tool = found_tool("t", "s", definition(description="x" * (MAX_SUMMARY + 1)), read_only=False)
    assert len(tool.description) == MAX_SUMMARY
    assert tool.description.endswith("...")


@pytest.mark.parametrize(("count", "shown"), [(MAX_ARGUMENTS, MAX_ARGUMENTS), (MAX_ARGUMENTS + 1, MAX_ARGUMENTS + 1)])
def test_of_many_arguments_the_first_are_named(count: int, shown: int) -> None:
    names: dict[str, object] = {f"a{number}": {} for number in range(count)}
    names = {"x" * (MAX_ARGUMENT_NAME + 1): {}, **names}
    tool = found_tool("t", "s", definition(inputSchema={"type": "object", "properties": names}), read_only=False)
    assert (len(tool.arguments), tool.arguments[0]) == (shown, "a0?")
    assert (tool.arguments[-1] == "...") is (count > MAX_ARGUMENTS)


@pytest.mark.parametrize(
    "strange",
    [
        b'{"name":"t","description":1,"inputSchema":[]}',
        b'{"name":"t","description":"\\ud83d","inputSchema":{"properties":{"\\ud83d":{}},"required":null}}',
        b'{"name":"t","inputSchema":{"properties":{"\\ud83d":{}}}}',
    ],
)
def test_a_strange_definition_is_found_all_the_same(strange: bytes) -> None:
    found, _ = read(found_result([found_tool("t", "s", strange, read_only=False)]))
    assert found["tools"] == [{"name": "t", "server": "s", "description": "", "arguments": []}]


def test_descriptions_are_the_definitions_as_lists_have_them() -> None:
    result = described_result([b'{"name": "a", "inputSchema": {"type":"object"}}'], ["nosuch"])
    found, text = read(result)
    assert found == {"tools": [{"name": "a", "inputSchema": {"type": "object"}}], "unknown": ["nosuch"]}
    assert text == found
    assert b'{"name": "a", "inputSchema": {"type":"object"}}' in bytes(members(result)["structuredContent"])
    jsonschema.validate(found, definitions()[DESCRIBE_TOOLS]["outputSchema"])


def test_an_error_is_a_result_with_a_text() -> None:
    assert json.loads(bytes(error_result("no"))) == {"content": [{"type": "text", "text": "no"}], "isError": True}
