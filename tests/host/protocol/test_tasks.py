"""Messages of tasks: what is written is valid in its dialect, and what is read is what the server sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import product
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import mcp.types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from pydantic import BaseModel

from host.errors import InvalidParams
from host.jsonrpc.messages import ErrorBody, write
from host.jsonrpc.raw import members
from host.protocol.mrtr import MAX_KEYS
from host.protocol.tasks import (
    ACKNOWLEDGEMENT,
    Status,
    Support,
    Task,
    TaskRequest,
    TaskState,
    created_in_extension,
    created_in_handshake,
    input_responses_of,
    is_created,
    iso_timestamp,
    notification_in_extension,
    notification_in_handshake,
    read_created,
    read_status,
    related_task_of,
    status_in_extension,
    status_in_handshake,
    status_of_result,
    task_id_of,
    task_list,
    task_params,
    task_request_of,
    task_support,
    update_params,
    with_related_task,
    with_task,
    without_related_task,
)

FULL = Task(
    id="gh.786512e2",
    status=Status.WORKING,
    created="2025-11-25T10:30:00.000Z",
    updated="2025-11-25T10:40:00.000Z",
    ttl_ms=60000,
    poll_ms=5000,
    message='half "done" é',
)
BARE = replace(FULL, ttl_ms=None, poll_ms=None, message=None)
RESULT = Raw(b'{"content":[{"type":"text","text": "\\u00e9"}],"n":1.50}')
ERROR = ErrorBody(-32000, "no more quota", Raw(b'{"left": 0.0}'))
FORM = Raw(b'{"message": "\\u00e9","requestedSchema":{"type":"object","properties":{}}}')

TASKS = st.builds(
    Task,
    id=st.text(),
    status=st.sampled_from(Status),
    created=st.text(),
    updated=st.text(),
    ttl_ms=st.none() | st.integers(0, 2**53 - 1),
    poll_ms=st.none() | st.integers(0, 2**53 - 1),
    message=st.none() | st.text(),
)

_STAMPS = {"taskId": {"type": "string"}, "createdAt": {"type": "string"}, "lastUpdatedAt": {"type": "string"}}
_REQUEST = {"type": "object", "properties": {"method": {"type": "string"}, "params": {"type": "object"}}}
_NEEDED = ["taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs"]


def extension_schema(status: Status, kind: str | None, **payload: object) -> dict[str, object]:
    """The schema of a "DetailedTask" or "CreateTaskResult" of the extension with this status, without other members."""
    properties: dict[str, object] = {
        **_STAMPS,
        "status": {"const": status.value},
        "statusMessage": {"type": "string"},
        "ttlMs": {"type": ["integer", "null"]},
        "pollIntervalMs": {"type": "integer"},
        **payload,
    }
    needed = [*_NEEDED, *payload]
    if kind is not None:
        properties["resultType"] = {"const": kind}
        needed.append("resultType")
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


PAYLOADS: dict[Status, dict[str, object]] = {
    Status.INPUT_REQUIRED: {
        "inputRequests": {
            "type": "object",
            "additionalProperties": {**_REQUEST, "required": ["method"], "additionalProperties": False},
        }
    },
    Status.COMPLETED: {"result": {"type": "object"}},
    Status.FAILED: {
        "error": {
            "type": "object",
            "properties": {"code": {"type": "integer"}, "message": {"type": "string"}, "data": {}},
            "required": ["code", "message"],
            "additionalProperties": False,
        }
    },
}


def at(status: Status, task: Task = FULL) -> Task:
    return replace(task, status=status)


def said(raw: Raw | None) -> Any:
    assert raw is not None
    return json.loads(bytes(raw))


def raws(**found: bytes) -> dict[str, Raw]:
    return {name: Raw(each) for name, each in found.items()}


def valid(model: type[BaseModel], raw: Raw | bytes | None) -> None:
    """Check a message against the schema of 2025-11-25, without unknown members."""
    assert raw is not None
    model.model_validate_json(bytes(raw), strict=True, by_name=False, extra="forbid")


# What both dialects know


def test_three_states_are_final() -> None:
    assert [status for status in Status if status.is_final] == [Status.COMPLETED, Status.FAILED, Status.CANCELLED]


def test_a_moment_is_in_utc_and_to_the_millisecond() -> None:
    assert iso_timestamp(0) == "1970-01-01T00:00:00.000Z"
    assert iso_timestamp(1764066600.1239) == "2025-11-25T10:30:00.123Z"
    read = datetime.fromisoformat(iso_timestamp(1764066600.5))
    assert read.utcoffset() == timedelta(0)
    assert read.timestamp() == 1764066600.5


@pytest.mark.parametrize(
    ("result", "in_handshake"),
    [
        (b'{"content":[],"isError":true}', Status.FAILED),
        (b'{"content":[],"\\u0069sError":true}', Status.FAILED),
        (b'{"content":[],"isError":false}', Status.COMPLETED),
        (b'{"content":[],"isError":"true"}', Status.COMPLETED),
        (b'{"content":[{"type":"text","text":"isError: true"}]}', Status.COMPLETED),
        (b'{"content":[],"structuredContent":{"isError":true}}', Status.COMPLETED),
        (b"{}", Status.COMPLETED),
    ],
)
def test_what_a_tool_calls_an_error_is_a_failed_task_in_one_dialect_only(result: bytes, in_handshake: Status) -> None:
    assert status_of_result(Raw(result), extension=False) is in_handshake
    assert status_of_result(Raw(result), extension=True) is Status.COMPLETED


# What clients of the handshake dialect get


@pytest.mark.parametrize(("task", "status"), [*product([FULL, BARE], Status)])
def test_what_the_handshake_dialect_gets_is_what_its_schema_says(task: Task, status: Status) -> None:
    task = at(status, task)
    valid(mcp.types.CreateTaskResult, created_in_handshake(task))
    valid(mcp.types.GetTaskResult, status_in_handshake(task))
    valid(mcp.types.CancelTaskResult, status_in_handshake(task))
    valid(mcp.types.TaskStatusNotificationParams, notification_in_handshake(task).params)
    valid(mcp.types.ListTasksResult, task_list([task, BARE]))
    notice = mcp.types.TaskStatusNotification.model_validate_json(write(notification_in_handshake(task)), by_name=False)
    assert notice.params.status == status


def test_the_handshake_dialect_in_its_own_words() -> None:
    assert said(status_in_handshake(FULL)) == {
        "taskId": "gh.786512e2",
        "status": "working",
        "createdAt": "2025-11-25T10:30:00.000Z",
        "lastUpdatedAt": "2025-11-25T10:40:00.000Z",
        "ttl": 60000,
        "pollInterval": 5000,
        "statusMessage": 'half "done" é',
    }
    assert said(created_in_handshake(FULL)) == {"task": said(status_in_handshake(FULL))}
    assert said(notification_in_handshake(FULL).params) == said(status_in_handshake(FULL))
    assert notification_in_handshake(FULL).method == "notifications/tasks/status"


def test_kept_for_ever_is_said_and_the_rest_is_left_out() -> None:
    bare = said(status_in_handshake(BARE))
    assert bare["ttl"] is None
    assert set(bare) == {"taskId", "status", "createdAt", "lastUpdatedAt", "ttl"}


def test_a_list_of_tasks_and_of_none() -> None:
    """(rule 93)"""
    assert said(task_list([FULL, BARE])) == {
        "tasks": [said(status_in_handshake(FULL)), said(status_in_handshake(BARE))]
    }
    assert said(task_list([])) == {"tasks": []}
    valid(mcp.types.ListTasksResult, task_list([]))


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (b"{}", b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}'),
        (
            b'{"n": 1.50,"_meta":{"a/b":[1.0]}}',
            b'{"n":1.50,"_meta":{"a/b":[1.0],"io.modelcontextprotocol/related-task":{"taskId":"t"}}}',
        ),
        (
            b'{"_meta":{"io.modelcontextprotocol\\/related-task":{"taskId":"theirs"},"x":1}}',
            b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"},"x":1}}',
        ),
        (b'{"_meta":5}', b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}'),
    ],
)
def test_what_belongs_to_a_task_names_it(holder: bytes, expected: bytes) -> None:
    """The task id replaces an earlier one, and all other members keep their bytes (rule 52)."""
    found = with_related_task(Raw(holder), "t")
    assert bytes(found) == expected
    assert related_task_of(found) == "t"


@pytest.mark.parametrize("holder", [b"[]", b"5", b"", b"{"])
def test_what_is_no_object_can_belong_to_no_task(holder: bytes) -> None:
    with pytest.raises(ValueError):
        with_related_task(Raw(holder), "t")
    assert related_task_of(Raw(holder)) is None
    assert bytes(without_related_task(Raw(holder))) == holder


# What clients of the extension get


@pytest.mark.parametrize(("task", "status"), [*product([FULL, BARE], Status)])
def test_what_the_extension_gets_is_what_its_schema_says(task: Task, status: Status) -> None:
    """Only a created task has the result type "task"; every other result is "complete" (rule 92)."""
    task = at(status, task)
    payload = PAYLOADS.get(status, {})
    created = said(created_in_extension(task))
    jsonschema.Draft202012Validator(extension_schema(status, "task")).validate(created)
    full = said(status_in_extension(task, inputs={"k": ("roots/list", {})}, result=RESULT, error=ERROR))
    jsonschema.Draft202012Validator(extension_schema(status, "complete", **payload)).validate(full)
    notice = notification_in_extension(task, inputs={"k": ("roots/list", {})}, result=RESULT, error=ERROR)
    assert notice.method == "notifications/tasks"
    jsonschema.Draft202012Validator(extension_schema(status, None, **payload)).validate(said(notice.params))
    assert {**said(notice.params), "resultType": "complete"} == full


def test_the_extension_in_its_own_words() -> None:
    assert said(created_in_extension(FULL)) == {
        "resultType": "task",
        "taskId": "gh.786512e2",
        "status": "working",
        "createdAt": "2025-11-25T10:30:00.000Z",
        "lastUpdatedAt": "2025-11-25T10:40:00.000Z",
        "ttlMs": 60000,
        "pollIntervalMs": 5000,
        "statusMessage": 'half "done" é',
    }
    assert said(created_in_extension(BARE))["ttlMs"] is None
    assert said(ACKNOWLEDGEMENT) == {"resultType": "complete"}


def test_a_result_and_an_error_keep_their_bytes() -> None:
    done = status_in_extension(at(Status.COMPLETED), result=RESULT)
    assert bytes(RESULT) in bytes(done)
    assert said(status_in_extension(at(Status.FAILED), error=ERROR))["error"] == {
        "code": -32000,
        "message": "no more quota",
        "data": {"left": 0.0},
    }
    assert "data" not in said(status_in_extension(at(Status.FAILED), error=ErrorBody(1, "m")))["error"]


def test_what_a_task_asks_for_stands_under_its_keys() -> None:
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] = {
        "1": ("elicitation/create", members(FORM)),
        "2": ("roots/list", {}),
    }
    found = members(status_in_extension(at(Status.INPUT_REQUIRED), inputs=inputs))["inputRequests"]
    params = b'{"message":"\\u00e9","requestedSchema":{"type":"object","properties":{}}}'
    assert bytes(found) == (
        b'{"1":{"method":"elicitation/create","params":' + params + b'},"2":{"method":"roots/list"}}'
    )


def test_a_task_may_wait_for_nothing_more() -> None:
    """All input requests are answered, and the task has not continued yet."""
    assert said(status_in_extension(at(Status.INPUT_REQUIRED), inputs={}))["inputRequests"] == {}


def test_a_key_that_only_an_escape_can_spell_is_written_as_it_came() -> None:
    """A server chooses its keys, and a client must see the same one again."""
    key = next(iter(members(b'{"\\ud83d":1}')))
    found = bytes(status_in_extension(at(Status.INPUT_REQUIRED), inputs={key: ("roots/list", {})}))
    assert b'{"\\ud83d":{"method":"roots/list"}}' in found
    assert bytes(update_params("t", {key: Raw(b"{}")})) == b'{"taskId":"t","inputResponses":{"\\ud83d":{}}}'


@pytest.mark.parametrize("status", [Status.INPUT_REQUIRED, Status.COMPLETED, Status.FAILED])
def test_a_status_without_what_it_calls_for_is_not_written(status: Status) -> None:
    with pytest.raises(ValueError, match=f"that is {status} needs its"):
        status_in_extension(at(status))
    with pytest.raises(ValueError, match=f"that is {status} needs its"):
        notification_in_extension(at(status))


# What clients ask


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (None, None),
        (b"{}", TaskRequest(None)),
        (b'{"ttl":60000,"x":1}', TaskRequest(60000)),
        (b'{"ttl":0}', TaskRequest(0)),
        (b'{"ttl":6e4}', TaskRequest(60000)),
        (b'{"ttl":null}', TaskRequest(None)),
        (b'{"ttl":1e300}', TaskRequest(2**53 - 1)),
    ],
)
def test_a_call_says_whether_it_wants_to_be_a_task(task: bytes | None, expected: TaskRequest | None) -> None:
    assert task_request_of(raws(name=b'"t"') if task is None else raws(task=task)) == expected


@pytest.mark.parametrize(
    "task",
    [b"null", b"true", b"[]", b'"x"', b'{"ttl":-1}', b'{"ttl":0.5}', b'{"ttl":"1"}', b'{"ttl":true}', b'{"ttl":{}}'],
)
def test_a_wish_that_is_none_is_the_callers_mistake(task: bytes) -> None:
    with pytest.raises(InvalidParams, match="task"):
        task_request_of(raws(task=task))


def test_a_request_names_its_task() -> None:
    assert task_id_of(members(task_params("gh.é"))) == "gh.é"
    valid(mcp.types.GetTaskRequestParams, task_params("t"))
    valid(mcp.types.GetTaskPayloadRequestParams, task_params("t"))
    valid(mcp.types.CancelTaskRequestParams, task_params("t"))


@pytest.mark.parametrize("id", [None, b"5", b"null", b"{}", b'"\\ud83d"'])
def test_a_request_that_names_no_task_is_the_callers_mistake(id: bytes | None) -> None:
    with pytest.raises(InvalidParams, match="taskId"):
        task_id_of({} if id is None else raws(taskId=id))


def test_answers_come_by_key_as_they_were_written() -> None:
    answers = {"k": Raw(b'{"action":"accept","content":{"n": 1.50}}'), "l": Raw(b'{"roots":[]}')}
    params = members(update_params("t", answers))
    assert task_id_of(params) == "t"
    assert input_responses_of(params) == answers
    assert input_responses_of(raws(inputResponses=b"{}")) == {}


@pytest.mark.parametrize("answers", [None, b"null", b"[]", b"5", b'{"k":null}', b'{"k":{},"l":"yes"}'])
def test_answers_that_are_none_are_the_callers_mistake(answers: bytes | None) -> None:
    with pytest.raises(InvalidParams, match="inputResponses"):
        input_responses_of({} if answers is None else raws(inputResponses=answers))


# What we ask of servers


def test_a_call_is_sent_as_a_task() -> None:
    """(rule 90)"""
    params = raws(name=b'"t"', arguments=b'{"n": 1.50}', task=b'{"ttl":1,"x":2}')
    sent = with_task(params, 60000)
    assert sent == {**params, "task": Raw(b'{"ttl":60000}')}
    assert with_task(raws(name=b'"t"'), None) == raws(name=b'"t"', task=b"{}")
    assert task_request_of(sent) == TaskRequest(60000)
    valid(mcp.types.CallToolRequestParams, json.dumps({name: said(each) for name, each in sent.items()}).encode())


# What servers answer


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (b'{"name":"t","inputSchema":{"type":"object"}}', Support.FORBIDDEN),
        (b'{"name":"t","execution":{"taskSupport":"optional"}}', Support.OPTIONAL),
        (b'{"name":"t","execution":{"taskSupport":"required"}}', Support.REQUIRED),
        (b'{"name":"t","execution":{"taskSupport":"forbidden"}}', Support.FORBIDDEN),
        (b'{"name":"t","\\u0065xecution":{"task\\u0053upport":"requ\\u0069red"}}', Support.REQUIRED),
        (b'{"name":"t","execution":{"taskSupport":"maybe"}}', Support.FORBIDDEN),
        (b'{"name":"t","execution":{"taskSupport":true}}', Support.FORBIDDEN),
        (b'{"name":"t","execution":"taskSupport"}', Support.FORBIDDEN),
        (b'{"name":"t","execution":null,"description":"taskSupport"}', Support.FORBIDDEN),
        (b'{"name":"t","taskSupport":"required"}', Support.FORBIDDEN),
        (b'["taskSupport"', Support.FORBIDDEN),
    ],
)
def test_a_tool_says_whether_it_can_be_called_as_a_task(definition: bytes, expected: Support) -> None:
    """(rule 60)"""
    assert task_support(definition) is expected
    assert task_support(Raw(definition)) is expected


@pytest.mark.parametrize(
    ("result", "in_handshake", "in_extension"),
    [
        (bytes(created_in_handshake(FULL)), True, False),
        (bytes(created_in_extension(FULL)), False, True),
        (b'{"\\u0074ask":{"taskId":"x"}}', True, False),
        (b'{"resultType":"t\\u0061sk"}', False, True),
        (b'{"content":[{"type":"text","text":"task"}]}', False, False),
        (b'{"content":[],"task":{"taskId":"x"}}', False, False),
        (b'{"task":"x"}', False, False),
        (b'{"resultType":"complete","content":[],"structuredContent":{"task":1}}', False, False),
        (b"[1]", False, False),
        (b'["task"]', False, False),
    ],
)
def test_a_result_says_whether_the_call_became_a_task(result: bytes, in_handshake: bool, in_extension: bool) -> None:
    assert is_created(Raw(result), extension=False) is in_handshake
    assert is_created(Raw(result), extension=True) is in_extension


@given(TASKS)
def test_what_we_write_we_can_read(task: Task) -> None:
    assert read_created(created_in_handshake(task), extension=False) == task
    assert read_created(created_in_extension(task), extension=True) == task
    assert read_status(status_in_handshake(task), extension=False) == TaskState(task)
    assert read_status(notification_in_handshake(task).params or Raw(), extension=False) == TaskState(task)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.WORKING, {}),
        (Status.INPUT_REQUIRED, {"inputs": {"k": ("elicitation/create", FORM), "r": ("roots/list", None)}}),
        (Status.COMPLETED, {"result": RESULT}),
        (Status.FAILED, {"error": ERROR}),
        (Status.CANCELLED, {}),
    ],
)
@pytest.mark.parametrize("kind", [b'"resultType":"complete",', b'"resultType":"task",', b""])
def test_the_extension_says_with_a_status_what_it_calls_for(
    kind: bytes, status: Status, expected: dict[str, Any]
) -> None:
    """With both result types of the examples, and with members that the status does not need."""
    stamps = bytes(created_in_extension(at(status))).replace(b'"resultType":"task",', kind)
    payload = (
        b',"inputRequests":{"k":{"method":"elicitation/create","params":%b},"r":{"method":"roots/list"}}' % bytes(FORM)
        + b',"result":%b' % bytes(RESULT)
        + b',"error":{"code":-32000,"message":"no more quota","data":{"left": 0.0}}}'
    )
    found = read_status(Raw(stamps[:-1] + payload), extension=True)
    assert found == TaskState(at(status), **expected)


def test_a_server_that_says_little_is_understood() -> None:
    """A valid task needs only an id and a status."""
    little = Raw(b'{"taskId":"x","status":"working"}')
    task = Task("x", Status.WORKING, created="", updated="", ttl_ms=None, poll_ms=None, message=None)
    assert read_status(little, extension=False) == read_status(little, extension=True) == TaskState(task)
    assert read_created(Raw(b'{"task":%b}' % bytes(little)), extension=False) == task
    odd = Raw(
        b'{"taskId":"x","status":"working","createdAt":5,"lastUpdatedAt":null,"statusMessage":{},'
        b'"ttl":"1","ttlMs":-1,"pollInterval":0.5,"pollIntervalMs":true}'
    )
    assert read_status(odd, extension=False) == read_status(odd, extension=True) == TaskState(task)


def test_numbers_are_read_however_they_are_spelled_and_never_too_large() -> None:
    found = read_status(
        Raw(b'{"taskId":"x","status":"working","ttl":1e400,"pollInterval":5000.0}'), extension=False
    ).task
    assert (found.ttl_ms, found.poll_ms) == (None, 5000)
    huge = Raw(b'{"taskId":"x","status":"working","ttl":%b}' % (b"9" * 400))
    assert read_status(huge, extension=False).task.ttl_ms == 2**53 - 1
    long = read_status(Raw(b'{"taskId":"x","status":"working","ttlMs":9007199254740993}'), extension=True).task
    assert long.ttl_ms == 2**53 - 1


NO_TASKS = [
    b"[]",
    b"null",
    b"{}",
    b'{"taskId":5,"status":"working"}',
    b'{"taskId":"x"}',
    b'{"taskId":"x","status":"submitted"}',
    b'{"taskId":"x","status":null}',
]


@pytest.mark.parametrize("task", NO_TASKS)
def test_what_names_no_task_is_none(task: bytes) -> None:
    for extension in (False, True):
        with pytest.raises(ValueError):
            read_status(Raw(task), extension=extension)
    with pytest.raises(ValueError):
        read_created(Raw(b'{"task":%b}' % task), extension=False)
    with pytest.raises(ValueError):
        read_created(Raw(b'{"resultType":"task",%b' % (task[1:] if task.startswith(b"{t") else b"}")), extension=True)


def test_each_dialect_creates_tasks_in_its_own_way() -> None:
    with pytest.raises(ValueError, match="no member 'task'"):
        read_created(created_in_extension(FULL), extension=False)
    with pytest.raises(ValueError, match="not of type task"):
        read_created(created_in_handshake(FULL), extension=True)
    with pytest.raises(ValueError, match="neither of type complete nor of type task"):
        read_status(Raw(b'{"resultType":"input_required","taskId":"x","status":"working"}'), extension=True)


@pytest.mark.parametrize(
    ("status", "payload", "why"),
    [
        ("input_required", b"", "inputRequests is missing"),
        ("input_required", b',"inputRequests":[]', "inputRequests is missing or not an object"),
        ("input_required", b',"inputRequests":{"k":5}', "not an object of requests"),
        ("input_required", b',"inputRequests":{"k":{"method":5}}', "not an object of requests"),
        ("completed", b"", "result is missing"),
        ("completed", b',"result":"done"', "result is missing or not an object"),
        ("failed", b"", "error is missing"),
        ("failed", b',"error":{"message":"m"}', "no integer code"),
        ("failed", b',"error":{"code":"1","message":"m"}', "no integer code"),
        ("failed", b',"error":{"code":true,"message":"m"}', "no integer code"),
    ],
)
def test_a_status_without_what_it_calls_for_is_not_read(status: str, payload: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_status(Raw(b'{"taskId":"x","status":"%b"%b}' % (status.encode(), payload)), extension=True)


def test_an_error_without_words_is_still_one() -> None:
    raw = Raw(b'{"taskId":"x","status":"failed","error":{"code":-1}}')
    assert read_status(raw, extension=True).error == ErrorBody(-1, "")


def test_a_task_cannot_ask_for_everything_at_a_time() -> None:
    def asking(number: int) -> Raw:
        requests = {str(key): {"method": "roots/list"} for key in range(number)}
        return Raw(json.dumps({"taskId": "x", "status": "input_required", "inputRequests": requests}).encode())

    assert len(read_status(asking(MAX_KEYS), extension=True).inputs) == MAX_KEYS
    with pytest.raises(ValueError, match="more than 32"):
        read_status(asking(MAX_KEYS + 1), extension=True)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, None),
        (b"{}", None),
        (b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"}}}', "x"),
        (b'{"_meta":{"io.modelcontextprotocol\\/related-task":{"taskId":"x"}}}', "x"),
        (b'{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":5}}}', None),
        (b'{"_meta":{"io.modelcontextprotocol/related-task":"x"}}', None),
        (b'{"_meta":"io.modelcontextprotocol/related-task"}', None),
        (b'{"arguments":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"}}}}', None),
    ],
)
def test_a_server_says_which_task_something_belongs_to(params: bytes | None, expected: str | None) -> None:
    """(rule 71)"""
    assert related_task_of(None if params is None else Raw(params)) == expected


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (
            b'{"content": [1.0],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"x"},"a": 1.0}}',
            b'{"content":[1.0],"_meta":{"a":1.0}}',
        ),
        (b'{"_meta":{"io.modelcontextprotocol\\/related-task":5}}', b'{"_meta":{}}'),
        (b'{"content": ["\\u00e9"],"_meta":{"a": 1}}', None),
        (b'{"content": ["io.modelcontextprotocol/related-task"]}', None),
        (b'{"content": ["io.modelcontextprotocol/related-task"],"_meta": 5}', None),
    ],
)
def test_who_does_not_know_a_task_does_not_hear_of_it(holder: bytes, expected: bytes | None) -> None:
    """(rule 52)"""
    raw = Raw(holder)
    found = without_related_task(raw)
    if expected is None:
        assert found is raw
    else:
        assert bytes(found) == expected
