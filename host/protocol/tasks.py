"""Tasks: reading and writing their messages in two dialects, for both sides. A task is a call whose first response is a
task id, under which the client requests its status and its result later.

A `Task` is the same in both dialects. In the *handshake* dialect (2025-11-25, "Tasks") a created task is nested in a
member, its result has a request of its own, and its server requests are ordinary ones that name the task in `_meta`
(`with_related_task`). In the *extension* (`io.modelcontextprotocol/tasks`, beside 2026-07-28) input requests, result
and error are beside the status, and input responses come with `tasks/update`. A task's `ttlMs` is its lifetime, not the
caching hint of the same name. Input requests have the shape of `mrtr`.

Messages that Colonnade writes are exact. A server's task needs an id and a known status; any other member of the wrong
type counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from host.errors import InvalidParams
from host.jsonrpc.messages import ErrorBody, Notification
from host.jsonrpc.raw import (
    EMPTY_OBJECT,
    encode,
    encode_object,
    is_object,
    may_contain_word,
    members,
    members_if_object,
    text_at,
    text_below,
    unless_null,
    value,
)
from host.protocol.meta import HOP_PREFIX, META
from host.protocol.methods import required_text
from host.protocol.mrtr import input_required, read_input_required, retry_of
from host.protocol.stateless import COMPLETE, HOP_MEMBERS, RESULT_TYPE, TASK

TASKS_GET = "tasks/get"
TASKS_RESULT = "tasks/result"
"""Handshake only: waits for the end of the task and returns the result of the call."""
TASKS_CANCEL = "tasks/cancel"
TASKS_LIST = "tasks/list"
"""Handshake only."""
TASKS_UPDATE = "tasks/update"
"""Extension only: brings input responses for the task."""
TASK_STATUS = "notifications/tasks/status"
"""The notification of the handshake dialect."""
TASKS_NOTIFICATION = "notifications/tasks"
"""The notification of the extension."""

RELATED_TASK = f"{HOP_PREFIX}related-task"

_MAX_MILLISECONDS = 2**53 - 1
"""The largest integer that every JSON parser reads exactly."""
_TTL, _POLL = "ttl", "pollInterval"
_TTL_MS, _POLL_MS = "ttlMs", "pollIntervalMs"


class Status(StrEnum):
    """Status of a task. A status with `is_final` never changes again."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (Status.WORKING, Status.INPUT_REQUIRED)


class Support(StrEnum):
    """Whether a tool may be called as a task (2025-11-25, "Tool-Level Negotiation")."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


class Task(Struct, frozen=True):
    """One task, in either dialect."""

    id: str
    status: Status
    created: str
    """ISO 8601, UTC, as `iso_timestamp` writes it. From a server: any text; empty if it is missing."""
    updated: str
    """Time of the last change, in the same form."""
    ttl_ms: int | None
    """Lifetime in milliseconds since `created`; None for unlimited (from a server also if it is missing)."""
    poll_ms: int | None
    """Milliseconds that a client should wait between two requests for the status."""
    message: str | None
    """Status message for people."""
    meta: Raw | None = None
    """`_meta` of the result that says that the task was made, as an object with members, without those of the
    connection. It may hold a text for the model meanwhile: `io.modelcontextprotocol/model-immediate-response`."""


class TaskRequest(Struct, frozen=True):
    """A client's request to run its call as a task."""

    ttl_ms: int | None
    """The requested lifetime in milliseconds; None if the client leaves it open."""


class TaskState(Struct, frozen=True):
    """The state of a task at a server. Only the extension has more than the task itself."""

    task: Task
    inputs: Mapping[str, tuple[str, Raw | None]] = field(default_factory=dict)
    """Method and params of the input requests, by key, while the task is INPUT_REQUIRED. A key names the same input
    request for the whole life of the task. No more than `mrtr.MAX_KEYS` at a time."""
    result: Raw | None = None
    """Result of the call of a COMPLETED task, as the server wrote it; always an object."""
    error: ErrorBody | None = None
    """Error of a FAILED task."""


def iso_timestamp(seconds: float) -> str:
    """The timestamp of a task: ISO 8601 in UTC with milliseconds, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of_result(result: Raw, *, extension: bool) -> Status:
    """The status of a task whose call ended with this result. A result with `isError` is FAILED in the handshake
    dialect ("Task Execution Errors"), but COMPLETED in the extension, where only JSON-RPC errors are FAILED."""
    if extension:
        return Status.COMPLETED
    try:
        failed = value(members(result)["isError"]) is True
    except (ValueError, KeyError):
        failed = False
    return Status.FAILED if failed else Status.COMPLETED


# To clients, in the handshake dialect


def created_in_handshake(task: Task) -> Raw:
    """The result of a call that became a task."""
    return encode({"task": _as_handshake_json(task), **_with_meta(task)})


def status_in_handshake(task: Task) -> Raw:
    """The result of TASKS_GET and of TASKS_CANCEL."""
    return encode(_as_handshake_json(task))


def task_list(tasks: Iterable[Task]) -> Raw:
    """The result of TASKS_LIST, with all tasks on one page."""
    return encode({"tasks": [_as_handshake_json(task) for task in tasks]})


def notification_in_handshake(task: Task) -> Notification:
    return Notification(TASK_STATUS, status_in_handshake(task))


def with_related_task(holder: Raw, id: str) -> Raw:
    """Params or a result with the task id in `_meta`, instead of any other task id there; the other members keep their
    bytes. A `_meta` that is not an object is replaced.

    Raises:
        ValueError: `holder` is not an object.
    """
    found = members(holder)
    meta = {**members_if_object(found.get(META)), RELATED_TASK: encode({"taskId": id})}
    return encode_object({**found, META: encode_object(meta)})


# To clients, in the extension

ACKNOWLEDGEMENT = encode({RESULT_TYPE: COMPLETE})
"""The result of TASKS_UPDATE and of TASKS_CANCEL: the request was accepted, its effect may come later."""


def created_in_extension(task: Task) -> Raw:
    """The result of a call that became a task."""
    return encode({RESULT_TYPE: TASK, **_as_extension_json(task), **_with_meta(task)})


def status_in_extension(
    task: Task,
    *,
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] | None = None,
    result: Raw | None = None,
    error: ErrorBody | None = None,
) -> Raw:
    """The result of TASKS_GET, with the one of the three arguments that the status needs.

    Args:
        inputs: method and params of all open input requests, by key.
        result: the result of the call, in the form for this client.

    Raises:
        ValueError: the argument that the status needs is None.
    """
    return encode({RESULT_TYPE: COMPLETE, **_detail(task, inputs, result, error)})


def notification_in_extension(
    task: Task,
    *,
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] | None = None,
    result: Raw | None = None,
    error: ErrorBody | None = None,
) -> Notification:
    """The status of a task as a notification, with the arguments of `status_in_extension`. The caller adds the
    subscription id."""
    return Notification(TASKS_NOTIFICATION, encode(_detail(task, inputs, result, error)))


# From clients


def task_request_of(params: Mapping[str, Raw]) -> TaskRequest | None:
    """The request of a call in the handshake dialect to be run as a task, or None. Other revisions ignore the member.

    Raises:
        InvalidParams: `task` is not an object, or its `ttl` is not a whole number of milliseconds.
    """
    task = params.get("task")
    if task is None:
        return None
    try:
        ttl = unless_null(members(task).get(_TTL))
    except ValueError:
        raise InvalidParams("the member 'task' is not an object") from None
    if ttl is None:
        return TaskRequest(None)
    wanted = _milliseconds(ttl)
    if wanted is None:
        raise InvalidParams("the ttl of the task is not a whole number of milliseconds")
    return TaskRequest(wanted)


def task_id_of(params: Mapping[str, Raw]) -> str:
    """The task id of a TASKS_… request; raises as `required_text` does."""
    return required_text(params, "taskId")


def input_responses_of(params: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The input responses of a TASKS_UPDATE, by key; each is an object. Whether their keys are open is not checked.

    Raises:
        InvalidParams: `inputResponses` is missing or not an object of objects.
    """
    answers = retry_of(params).answers
    if answers is None:
        raise InvalidParams("the member 'inputResponses' is missing")
    return answers


# To servers


def with_task(params: Mapping[str, Raw], ttl_ms: int | None) -> dict[str, Raw]:
    """The params of a call that is to be run as a task, in the handshake dialect. Replaces an earlier `task`."""
    return {**params, "task": encode({} if ttl_ms is None else {_TTL: ttl_ms})}


def task_params(id: str) -> Raw:
    """The params of TASKS_GET, TASKS_RESULT and TASKS_CANCEL."""
    return encode({"taskId": id})


def update_params(id: str, answers: Mapping[str, Raw]) -> Raw:
    """The params of TASKS_UPDATE."""
    return encode({"taskId": id, "inputResponses": encode_object(answers)})


# From servers


def with_support(definition: bytes, *, optional: bool) -> bytes:
    """The definition of a tool with `taskSupport: optional`, or without `taskSupport` if not `optional`; `definition`
    itself if it needs no change."""
    if optional and task_support(definition) is Support.OPTIONAL:
        return definition
    if not optional and not may_contain_word(definition, '"execution"'):
        return definition
    found = members(definition)
    if not optional and "execution" not in found:
        return definition
    execution = members_if_object(found.pop("execution", None))
    execution.pop("taskSupport", None)
    if optional:
        execution["taskSupport"] = encode(Support.OPTIONAL)
    if execution:
        found["execution"] = encode_object(execution)
    return bytes(encode_object(found))


def task_support(definition: bytes | Raw) -> Support:
    """The `execution.taskSupport` of a tool's definition; FORBIDDEN if it is missing or unknown. Never raises. Most
    definitions do not have to be decoded for it."""
    if not may_contain_word(definition, "taskSupport"):
        return Support.FORBIDDEN
    try:
        return Support(text_below(definition, "execution", "taskSupport") or "")
    except ValueError:
        return Support.FORBIDDEN


def is_created(result: Raw, *, extension: bool) -> bool:
    """Whether the result of a call is a created task. A server may also return the result of the call itself."""
    found = members_if_object(result)
    if extension:
        return text_at(found, RESULT_TYPE) == TASK
    # A tool's result must have `content`; with it, `task` is any other member that the server has added.
    return "content" not in found and "task" in found and is_object(found["task"])


def read_created(result: Raw, *, extension: bool) -> Task:
    """Read a created task.

    Raises:
        ValueError: the result has no valid task; the text says why in one sentence.
    """
    found = members(result)
    if extension:
        if text_at(found, RESULT_TYPE) != TASK:
            raise ValueError("the result is not of type task")
        return replace(_task(found, _TTL_MS, _POLL_MS), meta=_meta(found))
    if "task" not in found:
        raise ValueError("the result has no member 'task'")
    return replace(_task(members(found["task"]), _TTL, _POLL), meta=_meta(found))


def read_status(result: Raw, *, extension: bool) -> TaskState:
    """Read the result of TASKS_GET, or the params of a notification, or (in the handshake dialect) the result of
    TASKS_CANCEL.

    Raises:
        ValueError: there is no valid task, or, in the extension, the member that its status needs is missing; the text
            says why in one sentence.
    """
    found = members(result)
    if not extension:
        return TaskState(_task(found, _TTL, _POLL))
    # Examples of the extension have "task" here, its text "complete"; a notification has neither.
    if text_at(found, RESULT_TYPE) not in (None, COMPLETE, TASK):
        raise ValueError("the result is neither of type complete nor of type task")
    task = _task(found, _TTL_MS, _POLL_MS)
    if task.status is Status.INPUT_REQUIRED:
        _required_member(found, "inputRequests", task)
        return TaskState(task, inputs=read_input_required(result).requests)
    if task.status is Status.COMPLETED:
        return TaskState(task, result=_required_member(found, "result", task))
    if task.status is Status.FAILED:
        return TaskState(task, error=_error(_required_member(found, "error", task)))
    return TaskState(task)


def related_task_of(params: Raw | None) -> str | None:
    """The task id in the `_meta` of a server's request or notification, or None."""
    if params is None or not may_contain_word(params, RELATED_TASK):
        return None
    return text_below(params, META, RELATED_TASK, "taskId")


def without_related_task(holder: Raw) -> Raw:
    """Params or a result without the task id in `_meta`, for a client that does not know the task; `holder` itself, not
    a copy, if they have none."""
    if not may_contain_word(holder, RELATED_TASK):
        return holder
    found = members_if_object(holder)
    meta = members_if_object(found.get(META))
    if meta.pop(RELATED_TASK, None) is None:
        return holder
    found[META] = encode_object(meta)
    return encode_object(found)


# Writing


def _as_handshake_json(task: Task) -> dict[str, object]:
    return _as_json(task, _TTL, _POLL)


def _as_extension_json(task: Task) -> dict[str, object]:
    return _as_json(task, _TTL_MS, _POLL_MS)


def _as_json(task: Task, ttl: str, poll: str) -> dict[str, object]:
    found: dict[str, object] = {
        "taskId": task.id,
        "status": task.status.value,
        "createdAt": task.created,
        "lastUpdatedAt": task.updated,
        ttl: task.ttl_ms,
    }
    if task.poll_ms is not None:
        found[poll] = task.poll_ms
    if task.message is not None:
        found["statusMessage"] = task.message
    return found


def _with_meta(task: Task) -> dict[str, object]:
    return {} if task.meta is None else {META: task.meta}


def _detail(
    task: Task,
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] | None,
    result: Raw | None,
    error: ErrorBody | None,
) -> dict[str, object]:
    found = _as_extension_json(task)
    called_for = {
        Status.INPUT_REQUIRED: ("inputRequests", None if inputs is None else _input_requests(inputs)),
        Status.COMPLETED: ("result", result),
        Status.FAILED: ("error", error),
    }
    if task.status in called_for:
        member, content = called_for[task.status]
        if content is None:
            raise ValueError(f"a task that is {task.status} needs its {member}")
        found[member] = content
    return found


def _input_requests(inputs: Mapping[str, tuple[str, Mapping[str, Raw]]]) -> Raw:
    return members(input_required(inputs, None)).get("inputRequests", EMPTY_OBJECT)


# Reading


def _task(found: Mapping[str, Raw], ttl: str, poll: str) -> Task:
    id = text_at(found, "taskId")
    if id is None:
        raise ValueError("the task has no taskId")
    try:
        status = Status(text_at(found, "status") or "")
    except ValueError:
        raise ValueError("the task has no known status") from None
    return Task(
        id=id,
        status=status,
        created=text_at(found, "createdAt") or "",
        updated=text_at(found, "lastUpdatedAt") or "",
        ttl_ms=_milliseconds(found.get(ttl)),
        poll_ms=_milliseconds(found.get(poll)),
        message=text_at(found, "statusMessage"),
    )


def _meta(found: Mapping[str, Raw]) -> Raw | None:
    meta = members_if_object(found.get(META))
    kept = {name: each for name, each in meta.items() if name not in HOP_MEMBERS and name != RELATED_TASK}
    return encode_object(kept) if kept else None


def _required_member(found: Mapping[str, Raw], member: str, task: Task) -> Raw:
    content = found.get(member)
    if content is None or not is_object(content):
        raise ValueError(f"the task is {task.status}, but its {member} is missing or not an object")
    return content


def _error(raw: Raw) -> ErrorBody:
    found = members(raw)
    code = value(found["code"]) if "code" in found else None
    if type(code) is not int:
        raise ValueError("the error of the task has no integer code")
    return ErrorBody(code, text_at(found, "message") or "", found.get("data"))


def _milliseconds(raw: Raw | None) -> int | None:
    """A whole number of milliseconds in any spelling (`6e4` is one), at most _MAX_MILLISECONDS; None if it is negative
    or anything else."""
    try:
        number = None if raw is None else value(raw)
    except ValueError:
        return None
    if type(number) is float and number.is_integer():
        number = int(number)
    return min(number, _MAX_MILLISECONDS) if type(number) is int and number >= 0 else None
