"""Detached calls: calls that may outlive the request that began them.

A `DetachedCall` runs in a trio task of its own from its first step, since a trio task cannot change its nursery. The
request that began it is attached and waits for the result. Two things can answer that request before the call is over:

- A server request. The client can be asked only by ending its request with all open server requests and a
  `ParkedCallState`. The call is then *parked*: it waits, under a deadline, for the request that returns the answers and
  this state, and that request is attached next. (2026-07-28, "Multi Round-Trip Requests")
- The call becomes a *task*. The client finds it by its id, with its server requests and its result, until its lifetime
  is over. (2025-11-25, "Tasks"; the tasks extension beside 2026-07-28)

The work runs once, however often a request is repeated. Its result is kept for a limited time and within limits, until
the client fetches it. This module knows no transports, request ids, task dialects or servers. It does not seal states:
the module that sends a `ParkedCallState` binds it to the request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TypeAlias

import trio
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from host.errors import ColonnadeError, copy_of
from host.exchange import ProgressCallback
from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import encode, encode_object, is_object, members
from host.memory import Holding
from host.protocol.meta import PROGRESS_TOKEN, increased_progress, without_hop_fields
from host.protocol.methods import PROGRESS
from host.protocol.tasks import Status, Task, iso_timestamp
from host.wire.link import LinkLost

GATHER_DELAY = 0.02
"""Seconds that a server request waits for further ones to send along, since servers send several at once."""
PARKED_LIFETIME = 600.0
"""Seconds for which a parked call waits for its client."""
REPLAY_LIFETIME = 60.0
"""Seconds for which a delivered result can be fetched again, since its response may have been lost."""
MIN_TTL_MS = 1_000
MAX_TTL_MS = 86_400_000
DEFAULT_TTL_MS = 3_600_000
"""Lifetime of a task in milliseconds: minimum, maximum, and default."""
POLL_INTERVAL_MS = 500
MIN_POLL_MS = 100
"""Milliseconds between two status requests that a client is advised to keep: if its server advises none, and at
least."""
MAX_STATUS_MESSAGE = 4096
"""Characters of a server's status message that are passed on."""
MAX_TASK_META = 16 * 1024
"""Bytes of the `_meta` with which a server makes a task; a longer one is left out."""

MethodAndParams: TypeAlias = tuple[str, dict[str, Raw]]
"""The method and the params of a server request."""


class ParkedCallState(Struct, frozen=True):
    """Identifies one round of a parked call. The request that returns it continues there."""

    call_id: str
    """128 random bits, base64url."""
    round: int
    """1, 2, ..."""


class RequestsToClient(Struct, frozen=True):
    """Result for an attached request when its call was parked: the open server requests."""

    state: ParkedCallState
    requests: Mapping[str, MethodAndParams]
    """The open server requests by their keys; a key is never used twice in one call."""
    sent_to: str = ""
    """Id of the server that may have begun the call; empty if it was not sent yet."""


Outcome: TypeAlias = Raw | RequestsToClient | Task
"""Result for an attached request: the result of the call, its server requests, or the task that it has become."""


class OpenServerRequest:
    """A server request that waits for the client's answer."""

    __slots__ = ("_end", "_ended", "asked", "since")

    def __init__(self, asked: MethodAndParams) -> None:
        self.asked = asked
        self.since = trio.current_time()
        self._ended = trio.Event()
        self._end: Raw | Exception | None = None

    async def answer(self) -> Raw:
        """Wait for the answer, as the client sent it: a JSON object.

        Raises:
            LinkLost: the server request ended without an answer.
            Exception: the one it was refused with.
        """
        await self._ended.wait()
        if self._end is None:
            raise LinkLost("what this belongs to ended before the client answered")
        if isinstance(self._end, Exception):
            raise copy_of(self._end)  # raising the kept exception would add stacks to it, which hold it in turn
        return self._end

    def end(self, end: Raw | Exception | None) -> None:
        self._end = end
        self._ended.set()


class TaskOptions(Struct, frozen=True):
    """Settings of a call that may become a task."""

    id: str
    """Id of the task for its client, fit for a header; nobody else can guess it."""
    on_status: Callable[[DetachedCall], None]
    """Called when the task's status changes, or it has a further server request; must not wait."""
    ttl_ms: int | None = None
    """Lifetime that the client requests, from now; None if it requests none."""
    created: float = field(default_factory=time.time)
    """When it was made, in seconds since 1970."""


class AttachedRequest(Struct, frozen=True, eq=False):
    """A request that waits for the result of a call."""

    round: int
    """The round of the state that it returned; 0 for the call's first request."""
    tell: Callable[[Notification], None]
    token: Id | None


class DetachedCall:
    """One call with a trio task of its own. Implements `host.exchange.ClientHandle` for its work.

    Args:
        on_task: called when it becomes a task; must not wait.
        may_park: whether its client answers server requests by repeating the request.
        options: None if it cannot become a task.
        size: bytes of the request, which the work holds until its end.
    """

    held: Holding
    """The memory that it is charged for: its request, while no other charge counts that; then its result."""

    def __init__(
        self,
        owner: Hashable,
        on_task: Callable[[DetachedCall], None],
        *,
        may_park: bool = False,
        options: TaskOptions | None = None,
        size: int = 0,
    ) -> None:
        self.owner = owner
        self.size = size
        self.result: Raw | None = None
        """Result of its work. A call that ended with neither result nor error was cancelled."""
        self.error: ColonnadeError | None = None
        """Exception of its work. Raise a copy, so that this one does not collect the stacks of every request that gets
        it."""
        self.is_over = False
        self.client: Hashable | None = None
        """Identifies the session that has begun it as a task (`Caller.key`); None if none has."""
        self.is_fetched = False
        """Whether its client knows how the task has ended."""
        self.sent_to = ""
        """Id of the server to which the request was sent; empty until then."""
        self.life = trio.CancelScope()
        """Scope around everything that is done for the call. Its deadline ends the time for which results are kept."""
        self.working = trio.CancelScope()
        """Scope around its work."""
        self._open: dict[str, OpenServerRequest] = {}
        self._last_key = 0
        self.changed = trio.Event()
        """Set at the next change, and then replaced."""

        # As a parked call
        self.may_park = may_park
        self.attached: AttachedRequest | None = None
        self.state_id: str | None = None
        """None until the call is parked for the first time."""
        self.round = 0
        """Number of the newest round, 0 before the first."""
        self.delivered: int | None = None
        """The round whose request first got the result; None until then."""
        self.state_deadline = math.inf
        """Time at which the state expires. Until the call is a task, it is also the deadline of its life."""
        self._handed_over: dict[str, MethodAndParams] = {}
        self._last_progress = -math.inf

        # As a task
        self.id = ""
        """Id of the task for its client; empty if the call cannot become a task."""
        self.created: Task | None = None
        """The task as it was when the call became one; None until then."""
        self.notices: Callable[[Notification], None] | None = None
        """Takes the notifications of its work while it is a task; must not wait. None if nobody subscribes."""
        self._on_task = on_task
        self._on_status = None if options is None else options.on_status
        self._message: str | None = None
        self._followed: Task | None = None
        """The newest status of the server's task; None until it has made one."""
        self._task_meta: Raw | None = None
        if options is not None:
            asked = DEFAULT_TTL_MS if options.ttl_ms is None else options.ttl_ms
            self.id = options.id
            self._begin_lifetime(asked)
            self._created = self._updated = iso_timestamp(options.created)

    # Client handle of its work

    def notify(self, notice: Notification) -> None:
        if self.is_over:
            return
        if self.is_task:
            if self.notices is not None:
                self.notices(notice)
        elif (request := self.attached) is not None:
            if notice.method != PROGRESS:
                request.tell(notice)
            elif request.token is not None and (found := self._progress(notice)) is not None:
                request.tell(Notification(PROGRESS, encode_object({**found, PROGRESS_TOKEN: encode(request.token)})))

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        """As in any client handle, but without progress: `report` is never called.

        Raises:
            InvalidParams: `_meta` is no object.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_over or self.life.cancel_called:
            raise LinkLost("the call that this belongs to is over")
        if not self.is_task and not self.may_park:
            raise LinkLost("the client can be asked nothing while it waits for this")
        server_request = OpenServerRequest((method, without_hop_fields(params)))
        self._last_key += 1  # a key is never used twice
        key = f"q{self._last_key}"
        self._open[key] = server_request
        try:
            self._tell_status()
            return await server_request.answer()
        finally:
            self._end_request(key)  # a request that is still open is withdrawn

    def _progress(self, notice: Notification) -> dict[str, Raw] | None:
        """The members of a progress notification, if its value is greater than the last one's. A client may use the
        same token in every round."""
        try:
            found = members(notice.params or b"")
        except ValueError:
            return None
        progress = increased_progress(found, self._last_progress)
        if progress is None:
            return None
        self._last_progress = progress
        return found

    # Its server requests

    @property
    def server_requests(self) -> Mapping[str, MethodAndParams]:
        """Method and params of the open server requests, by key, oldest first."""
        return {key: request.asked for key, request in self._open.items()}

    def open_request(self, key: str) -> MethodAndParams | None:
        """Method and params of this open server request; None if there is none of that key (any more)."""
        found = self._open.get(key)
        return None if found is None else found.asked

    async def next_server_request(self, known: Collection[str]) -> str | None:
        """Wait for an open server request that is not among `known`, and return the oldest one's key; None if the call
        is over."""
        await trio.lowlevel.checkpoint()
        while not self.is_over:
            for key in self._open:
                if key not in known:
                    return key
            await self.changed.wait()
        return None

    async def wait_withdrawn(self, key: str) -> None:
        """Wait until this server request is not open any more: it was answered, or withdrawn."""
        await trio.lowlevel.checkpoint()
        while key in self._open:
            await self.changed.wait()

    def answer(self, key: str, answer: Raw) -> bool:
        """Answer a server request. False if none of that key is open, or if the answer is no object; then it stays
        open."""
        return is_object(answer) and self._end_request(key, answer)

    def refuse(self, key: str, problem: Exception) -> None:
        """Make a server request raise `problem`; no effect if none of that key is open.

        Args:
            problem: PeerError or BrokenAnswer, as `ClientHandle.request` raises it.
        """
        self._end_request(key, problem)

    def _end_requests(self) -> None:
        """End all open server requests without answers."""
        for request in self._open.values():
            request.end(None)
        self._open.clear()

    def _end_request(self, key: str, end: Raw | Exception | None = None) -> bool:
        request = self._open.pop(key, None)
        if request is None:
            return False
        request.end(end)
        if self._open:
            self._wake()
        else:
            self._tell_status()
        return True

    # Its end

    def end(self, outcome: Raw | ColonnadeError | None, message: str | None = None) -> None:
        """End the call: it notifies and requests nothing more. Only the first end counts.

        Args:
            outcome: None if it was cancelled.
            message: the reason, for people.
        """
        if self.is_over:
            return
        self.is_over = True
        self._message = message
        if isinstance(outcome, ColonnadeError):
            self.error = outcome
            self._message = outcome.message
        else:
            self.result = outcome
        self._end_requests()
        self._tell_status()
        # A kept call must not keep a receive buffer or parts of its client alive.
        self._handed_over = {}
        self.notices = self._on_status = None

    def cancel(self) -> bool:
        """Cancel the work. The call is over at once, though the work may take a moment to end. False if it was over."""
        if self.is_over:
            return False
        self.working.cancel("its result is no longer wanted")
        self.is_fetched = True
        self.end(None)
        return True

    @property
    def is_kept(self) -> bool:
        """Whether a client may still fetch its result."""
        return self.is_task or self.round > 0

    def _tell_status(self) -> None:
        self._wake()
        if self.is_task:
            self._updated = iso_timestamp(time.time())
            if self._on_status is not None:
                self._on_status(self)

    def _wake(self) -> None:
        """Wake every waiter for a change."""
        self.changed.set()
        self.changed = trio.Event()

    # The attached request

    @property
    def outcome(self) -> Raw | ColonnadeError | Task | None:
        """The answer to the attached request and to later ones with its state; None until there is one."""
        if self.created is not None:
            return self.created
        return self.result if self.error is None else self.error

    def attach(self, request: AttachedRequest) -> None:
        """Make this request the only one that waits for the call."""
        self.attached = request
        self._wake()
        self.expire_state_at(math.inf)

    @property
    def hand_over_at(self) -> float:
        """Time at which the open server requests are to be handed to the client; infinite if there is none."""
        for oldest in self._open.values():
            return oldest.since + GATHER_DELAY
        return math.inf

    def hand_over(self) -> RequestsToClient:
        """Hand all open server requests to the client. From now on the call waits for the client."""
        assert self.state_id is not None
        self.round += 1
        self._handed_over = dict(self.server_requests)
        self.attached = None
        self.expire_state_at(trio.current_time() + PARKED_LIFETIME)
        return RequestsToClient(ParkedCallState(self.state_id, self.round), self._handed_over, self.sent_to)

    def hand_over_again(self) -> RequestsToClient | None:
        """The newest round again, without the server requests that have ended since; None if all of them have."""
        assert self.state_id is not None
        left = {key: asked for key, asked in self._handed_over.items() if key in self._open}
        if not left:
            return None
        self.expire_state_at(trio.current_time() + PARKED_LIFETIME)
        return RequestsToClient(ParkedCallState(self.state_id, self.round), left, self.sent_to)

    def note_sent(self, server: str) -> None:
        """Note that the request was sent to this server; see `Exchange.on_sent`."""
        self.sent_to = server

    def take(self, answers: Mapping[str, Raw]) -> None:
        """Answer the server requests of the newest round; answers to other keys are ignored."""
        for key in self._handed_over:
            if key in answers:
                self.answer(key, answers[key])

    def expire_state_at(self, deadline: float) -> None:
        self.state_deadline = deadline
        if not self.is_task:
            self.life.deadline = deadline

    def goes_on_at(self, number: int) -> bool:
        """Whether the state of this round is valid: the newest one, and the one before it until the newest is used."""
        # A deadline counts from its time on, even if the call's own task has not run yet.
        if self.life.cancel_called or trio.current_time() >= self.state_deadline:
            return False
        if self.delivered is not None:
            return self.delivered <= number <= self.round
        newest_is_used = self.attached is not None and self.attached.round == self.round
        return number == self.round or (1 <= number == self.round - 1 and not newest_is_used)

    # The task

    @property
    def is_task(self) -> bool:
        return self.created is not None

    @property
    def is_found(self) -> bool:
        """Whether its client can find it as a task. Its deadline counts from its time on."""
        return self.is_task and not self.life.cancel_called

    @property
    def task(self) -> Task:
        """The present state of the task. COMPLETED: there is a result; the dialects distinguish kinds of results."""
        followed, poll, message = self._followed, POLL_INTERVAL_MS, self._message
        if followed is not None:
            poll = POLL_INTERVAL_MS if followed.poll_ms is None else max(followed.poll_ms, MIN_POLL_MS)
            # The message of a task at work is not true of one that is over.
            if not self.is_over or (followed.status.is_final and followed.message is not None):
                message = followed.message
        return Task(self.id, self._status, self._created, self._updated, self._ttl_ms, poll, message, self._task_meta)

    @property
    def told_size(self) -> int:
        """Bytes of the status message and the `_meta` of the server's task, at most."""
        message = None if self._followed is None else self._followed.message
        return len(self._task_meta or b"") + 4 * len(message or "")

    @property
    def _status(self) -> Status:
        if not self.is_over:
            return Status.INPUT_REQUIRED if self._open else Status.WORKING
        if self.error is not None:
            return Status.FAILED
        return Status.CANCELLED if self.result is None else Status.COMPLETED

    def become_task(self) -> None:
        """Become a task for the client: this is the answer to its request, and the request's open server requests end.
        No effect if the call is a task or is over. If its lifetime is over, it stays a plain call, and a waiting
        request gets its result."""
        if self.is_task or self.is_over or trio.current_time() >= self._ends_at:
            return
        self._end_requests()
        self.created = self.task
        self.life.deadline = self._ends_at
        self._on_task(self)
        self._wake()

    def _begin_lifetime(self, ttl_ms: int) -> None:
        self._ttl_ms = min(max(ttl_ms, MIN_TTL_MS), MAX_TTL_MS)
        self._ends_at = trio.current_time() + self._ttl_ms / 1000

    def follow(self, theirs: Task) -> None:
        """Take a status of the server's task, the first of which makes the call a task. The client's task has its
        message and poll interval, and the lifetime and `_meta` with which it was made, but not its status: the call may
        be over later, or wait for its client. No effect if the call is over."""
        if self.is_over:
            return
        former, message = self._followed, theirs.message
        self._followed = replace(theirs, message=None if message is None else message[:MAX_STATUS_MESSAGE], meta=None)
        if former is None:
            self._task_meta = theirs.meta if theirs.meta is None or len(theirs.meta) <= MAX_TASK_META else None
            if theirs.ttl_ms is not None:
                self._begin_lifetime(theirs.ttl_ms)
                if self.is_task:
                    self.life.deadline = self._ends_at
            self.become_task()
            self._wake()
        if self._followed.message != (None if former is None else former.message):
            self._tell_status()

    async def wait_begun(self) -> None:
        """Wait until the server has made a task of the call, or has a request to the client, or the call is over."""
        await trio.lowlevel.checkpoint()
        while self._followed is None and not self._open and not self.is_over:
            await self.changed.wait()


def lost_task(owner: Hashable, options: TaskOptions, result: Raw, message: str) -> DetachedCall:
    """A task that ended with a former process, as one that is over with this result. `message`: the reason, for
    people."""
    call = DetachedCall(owner, lambda call: None, options=options)
    call.become_task()
    call.end(result, message)
    return call
