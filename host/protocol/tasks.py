"""Tasks as data: calls that answer at once with a name, under which one asks about them later. Two dialects, both ways.

A `Task` is the same in both. The *handshake* dialect (2025-11-25, "Tasks") has it in a member of its own when it is
created, gives its result to a request of its own, and asks for input by ordinary requests that say which task they are
`with_related_task` to. The *extension* (`io.modelcontextprotocol/tasks`, beside 2026-07-28) has everything flat: what
is asked for, result and error stand beside the status, and answers come with `tasks/update`. Its `ttlMs` is how long
the task is kept, and has nothing to do with the member of the same name that says how long a list is fresh.

Nothing here knows what runs, who may ask, or what time it is; what can be asked for in the middle is spelled as in
`mrtr`. What we write is exact. What a server wrote is taken if it names a task and a status, and whatever else is
wrong with the members of a task counts as not said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import ErrorBody, Notification
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, may_contain_word, members, string, value
from host.protocol.meta import HOP_PREFIX, META
from host.protocol.mrtr import input_required, read_input_required, retry_of
from host.protocol.stateless import COMPLETE, RESULT_TYPE, TASK

TASKS_GET = "tasks/get"
TASKS_RESULT = "tasks/result"
"""Handshake only: waits for the end, and answers as the call itself would have."""
TASKS_CANCEL = "tasks/cancel"
TASKS_LIST = "tasks/list"
"""Handshake only."""
TASKS_UPDATE = "tasks/update"
"""Extension only: brings answers to what the task asks for."""
TASK_STATUS = "notifications/tasks/status"
"""The notice of the handshake dialect."""
TASKS_NOTIFICATION = "notifications/tasks"
"""The notice of the extension."""

RELATED_TASK = f"{HOP_PREFIX}related-task"

_MAX_MILLISECONDS = 2**53 - 1
_TTL, _POLL = "ttl", "pollInterval"
_TTL_MS, _POLL_MS = "ttlMs", "pollIntervalMs"


class Status(StrEnum):
    """Where a task stands. The three that are `is_final` are final."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (Status.WORKING, Status.INPUT_REQUIRED)


class Support(StrEnum):
    """What a tool says of being called as a task (2025-11-25, "Tool-Level Negotiation")."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as both dialects know it."""

    id: str
    status: Status
    created: str
    """ISO 8601, UTC, as `iso_timestamp` writes it. In what a server said: whatever it wrote, and empty if nothing."""
    updated: str
    ttl_ms: int | None
    """How long it is kept, in milliseconds from `created`; None for ever (or a server's that does not say)."""
    poll_ms: int | None
    """How long to wait between two questions about it, in milliseconds."""
    message: str | None
    """For people."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A client's request that its call be a task."""

    ttl_ms: int | None
    """How long it would like to have it kept, in milliseconds; None if it does not say."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """What a server said of a task. Only the extension says more than the task itself."""

    task: Task
    inputs: Mapping[str, tuple[str, Raw | None]] = field(default_factory=dict)
    """Method and params of what it asks for, by key, while it is INPUT_REQUIRED. A key means the same question for as
    long as the task lives. No more than `rounds.MAX_KEYS` at a time."""
    result: Raw | None = None
    """Of a COMPLETED task, always an object: the result of the call, as the server wrote it."""
    error: ErrorBody | None = None
    """Of a FAILED task."""


def iso_timestamp(seconds: float) -> str:
    """A time as tasks have it, in UTC and to the millisecond. `seconds` since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status_of_result(result: Raw, *, extension: bool) -> Status:
    """The status of a task whose call ended in this result. What a tool itself calls an error is FAILED in the
    handshake dialect ("Task Execution Errors"); in the extension only JSON-RPC errors are."""
    if extension:
        return Status.COMPLETED
    try:
        failed = value(members(result)["isError"]) is True
    except (ValueError, KeyError):
        failed = False
    return Status.FAILED if failed else Status.COMPLETED


# What our clients get, in the handshake dialect


def created_in_handshake(task: Task) -> Raw:
    """The result of a call that became a task."""
    return encode({"task": _as_handshake_json(task)})


def status_in_handshake(task: Task) -> Raw:
    """The result of TASKS_GET, and of TASKS_CANCEL."""
    return encode(_as_handshake_json(task))


def task_list(tasks: Iterable[Task]) -> Raw:
    """The result of TASKS_LIST: all of them, on one page."""
    return encode({"tasks": [_as_handshake_json(task) for task in tasks]})


def notification_in_handshake(task: Task) -> Notification:
    return Notification(TASK_STATUS, status_in_handshake(task))


def with_related_task(holder: Raw, id: str) -> Raw:
    """Params or a result that belong to a task and do not name it elsewhere: `_meta` says which one, in the place of
    any other that it said; the other members keep their bytes. An empty `_meta` takes the place of one that is no
    object. `holder` is an object, else ValueError."""
    found = members(holder)
    meta = found.get(META)
    kept = members(meta) if meta is not None and is_object(meta) else {}
    kept[RELATED_TASK] = encode({"taskId": id})
    found[META] = encode_object(kept)
    return encode_object(found)


# What our clients get, in the extension

ACKNOWLEDGEMENT = encode({RESULT_TYPE: COMPLETE})
"""The result of TASKS_UPDATE, and of TASKS_CANCEL: it was heard, nothing more."""


def created_in_extension(task: Task) -> Raw:
    """The result of a call that became a task."""
    return encode({RESULT_TYPE: TASK, **_as_extension_json(task)})


def status_in_extension(
    task: Task,
    *,
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] | None = None,
    result: Raw | None = None,
    error: ErrorBody | None = None,
) -> Raw:
    """The result of TASKS_GET. Of the three, the one is written that the status calls for.

    Args:
        inputs: all that it still asks for: method and params by key.
        result: of the call, in the form that the client gets results in.

    Raises:
        ValueError: what the status calls for is not there.
    """
    return encode({RESULT_TYPE: COMPLETE, **_detail(task, inputs, result, error)})


def notification_in_extension(
    task: Task,
    *,
    inputs: Mapping[str, tuple[str, Mapping[str, Raw]]] | None = None,
    result: Raw | None = None,
    error: ErrorBody | None = None,
) -> Notification:
    """What `status_in_extension` would say at this moment, with the same arguments, as a notice. Not yet tagged with
    the subscription that it belongs to."""
    return Notification(TASKS_NOTIFICATION, encode(_detail(task, inputs, result, error)))


# What our clients ask


def task_request_of(params: Mapping[str, Raw]) -> TaskRequest | None:
    """Whether a call in the handshake dialect wants to be a task. For other revisions the member means nothing.

    Raises:
        InvalidParams: `task` is no object, or its `ttl` is not a whole number of milliseconds.
    """
    task = params.get("task")
    if task is None:
        return None
    try:
        ttl = members(task).get(_TTL)
    except ValueError:
        raise InvalidParams("task is not an object") from None
    if ttl is None or bytes(ttl) == b"null":
        return TaskRequest(None)
    wanted = _milliseconds(ttl)
    if wanted is None:
        raise InvalidParams("the ttl of the task is not a whole number of milliseconds")
    return TaskRequest(wanted)


def task_id_of(params: Mapping[str, Raw]) -> str:
    """The task that a TASKS_… request is about.

    Raises:
        InvalidParams: it names none.
    """
    try:
        return string(params["taskId"])
    except KeyError:
        raise InvalidParams("the member 'taskId' is missing") from None
    except ValueError:
        raise InvalidParams("the member 'taskId' is not a string") from None


def input_responses_of(params: Mapping[str, Raw]) -> Mapping[str, Raw]:
    """The answers that a TASKS_UPDATE brings, by key; each is an object. Nobody has looked whether they were asked for.

    Raises:
        InvalidParams: there are none, or they are no objects.
    """
    answers = retry_of(params).answers
    if answers is None:
        raise InvalidParams("the member 'inputResponses' is missing")
    return answers


# What we ask of servers


def with_task(params: Mapping[str, Raw], ttl_ms: int | None) -> dict[str, Raw]:
    """The params of a call that is to be a task, in the handshake dialect, in place of any `task` that was there."""
    return {**params, "task": encode({} if ttl_ms is None else {_TTL: ttl_ms})}


def task_params(id: str) -> Raw:
    """The params of TASKS_GET, TASKS_RESULT and TASKS_CANCEL."""
    return encode({"taskId": id})


def update_params(id: str, answers: Mapping[str, Raw]) -> Raw:
    """The params of TASKS_UPDATE."""
    return encode({"taskId": id, "inputResponses": encode_object(answers)})


# What servers answer


def with_support(definition: bytes, *, optional: bool) -> bytes:
    """The definition of a tool that says that it can be called as a task and need not be, or nothing of tasks; itself
    if it says just that already."""
    if optional and task_support(definition) is Support.OPTIONAL:
        return definition
    if not optional and not may_contain_word(definition, '"execution"'):
        return definition
    found = members(definition)
    if not optional and "execution" not in found:
        return definition
    former = found.pop("execution", EMPTY_OBJECT)
    execution = (
        {name: each for name, each in members(former).items() if name != "taskSupport"} if is_object(former) else {}
    )
    if optional:
        execution["taskSupport"] = encode(Support.OPTIONAL)
    if execution:
        found["execution"] = encode_object(execution)
    return bytes(encode_object(found))


def task_support(definition: bytes | Raw) -> Support:
    """What a tool's definition says in `execution.taskSupport`; FORBIDDEN if it says nothing that is known. Never
    raises. Most definitions are not even opened."""
    if not may_contain_word(definition, "taskSupport"):
        return Support.FORBIDDEN
    try:
        return Support(string(members(members(definition)["execution"])["taskSupport"]))
    except (ValueError, KeyError):
        return Support.FORBIDDEN


def is_created(result: Raw, *, extension: bool) -> bool:
    """Whether the result of a call says that it became a task. A server may as well have answered at once."""
    try:
        found = members(result)
    except ValueError:
        return False
    if extension:
        return _text(found, RESULT_TYPE) == TASK
    # A tool's result must have content; one that has it may have invented any other member.
    return "content" not in found and "task" in found and is_object(found["task"])


def read_created(result: Raw, *, extension: bool) -> Task:
    """The task that a call became, where `is_created`.

    Raises:
        ValueError: no task can be read there; one sentence says why.
    """
    found = members(result)
    if extension:
        if _text(found, RESULT_TYPE) != TASK:
            raise ValueError("the result is not of type task")
        return _task(found, _TTL_MS, _POLL_MS)
    if "task" not in found:
        raise ValueError("the result holds no task")
    return _task(members(found["task"]), _TTL, _POLL)


def read_status(result: Raw, *, extension: bool) -> TaskState:
    """What the result of TASKS_GET says, or the params of a notice (or, in the handshake dialect, the result of
    TASKS_CANCEL).

    Raises:
        ValueError: no task can be read there, or the extension's has not what its status calls for; one sentence
            says why.
    """
    found = members(result)
    if not extension:
        return TaskState(_task(found, _TTL, _POLL))
    # Examples of the extension say "task" here, its text "complete"; a notice says neither.
    if _text(found, RESULT_TYPE) not in (None, COMPLETE, TASK):
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
    """The task that a server's request or notice says it belongs to; None if it says none."""
    if params is None or not may_contain_word(params, RELATED_TASK):
        return None
    try:
        return string(members(members(members(params)[META])[RELATED_TASK])["taskId"])
    except (ValueError, KeyError):
        return None


def without_related_task(holder: Raw) -> Raw:
    """The same without the task it says it belongs to, for whoever does not know that task; itself, not a copy, if it
    says none."""
    if not may_contain_word(holder, RELATED_TASK):
        return holder
    try:
        found = members(holder)
        meta = members(found[META])
    except (ValueError, KeyError):
        return holder
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
        member, said = called_for[task.status]
        if said is None:
            raise ValueError(f"a task that is {task.status} needs its {member}")
        found[member] = said
    return found


def _input_requests(inputs: Mapping[str, tuple[str, Mapping[str, Raw]]]) -> Raw:
    return members(input_required(inputs, None)).get("inputRequests", EMPTY_OBJECT)


# Reading


def _task(found: Mapping[str, Raw], ttl: str, poll: str) -> Task:
    id = _text(found, "taskId")
    if id is None:
        raise ValueError("the task has no taskId")
    try:
        status = Status(_text(found, "status") or "")
    except ValueError:
        raise ValueError("the task has no status that is known") from None
    return Task(
        id=id,
        status=status,
        created=_text(found, "createdAt") or "",
        updated=_text(found, "lastUpdatedAt") or "",
        ttl_ms=_milliseconds(found.get(ttl)),
        poll_ms=_milliseconds(found.get(poll)),
        message=_text(found, "statusMessage"),
    )


def _required_member(found: Mapping[str, Raw], member: str, task: Task) -> Raw:
    said = found.get(member)
    if said is None or not is_object(said):
        raise ValueError(f"the task is {task.status}, but its {member} is missing or no object")
    return said


def _error(raw: Raw) -> ErrorBody:
    found = members(raw)
    code = value(found["code"]) if "code" in found else None
    if type(code) is not int:
        raise ValueError("the error of the task has no code")
    return ErrorBody(code, _text(found, "message") or "", found.get("data"))


def _text(found: Mapping[str, Raw], member: str) -> str | None:
    try:
        return string(found[member])
    except (ValueError, KeyError):
        return None


def _milliseconds(raw: Raw | None) -> int | None:
    """A whole number that is not negative, however it is spelled (`6e4` is one), or the most that everybody can count
    to; else None."""
    try:
        number = None if raw is None else value(raw)
    except ValueError:
        return None
    if type(number) is float and number.is_integer():
        number = int(number)
    return min(number, _MAX_MILLISECONDS) if type(number) is int and number >= 0 else None
