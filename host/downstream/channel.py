"""One session on one channel that carries messages both ways, in order: standard input and output, or the one event
stream of the transport of old. What comes in is taken here; how it goes out is the transport's to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from host.downstream.sessions import Session
from host.errors import LIMITED
from host.jsonrpc.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorBody,
    Failure,
    Malformed,
    Message,
    Notification,
    Request,
    read_batch_strictly,
    read_strictly,
)
from host.protocol.methods import INITIALIZE

MAX_IN_FLIGHT = 1000


def messages_in(data: bytes, message: Message | Malformed, session: Session) -> tuple[list[Message | Malformed], bool]:
    """What the client said in `data`, which was read as `message`; and whether that was a batch, which only clients of
    one revision may send."""
    if isinstance(message, Malformed) and session.sends_batches:
        batch = read_batch_strictly(data)
        if batch is not None:
            return batch, True
    return [message], False


def refuse_flood(session: Session, request: Request) -> Failure | None:
    """The answer to a request that is one too many for its session at once."""
    if len(session.serving) < MAX_IN_FLIGHT:
        return None
    return Failure(ErrorBody(LIMITED, f"more than {MAX_IN_FLIGHT} requests at once"), request.id)


class Channel:
    """The session's end of it.

    Args:
        say: puts a message on the channel without waiting; False if there is no room, or nobody.
        send: the same for what must not be lost: it waits for its turn.
        nursery: holds a task for each request.
    """

    def __init__(
        self,
        session: Session,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        self._session = session
        self._say = say
        self._send = send
        self._nursery = nursery

    def take(self, data: bytes, message: Message | Malformed | None = None) -> None:
        """One message from the client, or a batch of them if its revision has batches. `message` is what `data` was
        read as, if it was read already."""
        for each in messages_in(data, message or read_strictly(data), self._session)[0]:
            self._take(each)

    def refuse(self, why: str) -> None:
        """What came could not be read at all."""
        self._say(Failure(ErrorBody(PARSE_ERROR, why)))

    def _take(self, message: Message | Malformed) -> None:
        if isinstance(message, Request):
            self._called(message)
        elif isinstance(message, Notification):
            self._session.told(message)
        elif isinstance(message, Malformed) and not message.answers:
            self._say(Failure(ErrorBody(message.code, message.why), message.id))
        else:
            self._session.answered(message)

    def _called(self, request: Request) -> None:
        # In a batch `initialize` cannot be the first: which revision has batches is known only after it.
        if request.method == INITIALIZE and self._session.opening is None:
            self._nursery.start_soon(self._open, request)
        elif request.id in self._session.serving:
            self._say(Failure(ErrorBody(INVALID_REQUEST, "this id is in flight already"), request.id))
        elif (refusal := refuse_flood(self._session, request)) is not None:
            self._say(refusal)
        else:
            self._nursery.start_soon(self._answer, request, self._session.begin(request))

    async def _open(self, request: Request) -> None:
        await self._send(await self._session.open(request))

    async def _answer(self, request: Request, scope: trio.CancelScope) -> None:
        done = False

        def say(message: Notification | Request) -> bool:
            return not done and self._say(message)

        answer = await self._session.answer(request, scope, say)
        done = True
        if answer is not None:
            await self._send(answer)
