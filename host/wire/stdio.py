"""The stdio link to a server: one JSON message per line, both ways (2025-11-25, "Transports / stdio").

The caller owns the process. Its standard output is read until LAST_OUTPUT_WAIT after its end, not until end of file: a
grandchild may hold the pipe open for ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf

import trio
from msgspec import Raw

from host.jsonrpc.messages import Id, Malformed, Notification, write
from host.jsonrpc.raw import one_line
from host.memory import HoldingFactory, OverBudget, uncharged
from host.protocol.versions import Revision
from host.wire.framing import DISCARD_WINDOW, MAX_LINE, LineTooLong, MessageSplitter
from host.wire.link import Deliver, LinkLost, NoMemory, Parcel, ReceivedMessage, received_in
from host.wire.pipe import LineWriter, PipeClosed, PipeStalled
from host.wire.turns import Turns

LAST_OUTPUT_WAIT = 0.5
"""Seconds after the end of a process in which its last output is read."""
CHUNK = 64 * 1024


class StdioLink:
    """Carries messages over two pipes.

    Args:
        output: standard output of the server.
        stdin_fd: standard input of the server; a non-blocking descriptor.
        ended: waits for the end of the process and returns how it ended, in words for a person.
        on_text: called with each line of the output that is no message. Must not wait.
        on_tool_error: to be called by the client of the server with each result of a tool that says that the call
            failed. Must not wait; None: nobody looks at them.
        turns: shared by all links of one host.
        max_message: bytes of one message. A longer one is discarded, and the request that it answers fails.
        hold: charges memory for the message that is being read.
    """

    hears_unasked = True

    def __init__(
        self,
        output: trio.abc.ReceiveStream,
        stdin_fd: int,
        ended: Callable[[], Awaitable[str]],
        *,
        on_text: Callable[[bytes], None] = lambda _: None,
        on_tool_error: Callable[[Raw], None] | None = None,
        turns: Turns | None = None,
        max_message: int | None = None,
        hold: HoldingFactory = uncharged,
    ) -> None:
        self._turns = turns or Turns()
        self._max_message = max_message or MAX_LINE
        self._hold = hold
        self._output = output
        self._writer = LineWriter(stdin_fd)
        self._ended = ended
        self._on_text = on_text
        self.on_tool_error = on_tool_error
        self._lost_reason: str | None = None
        self._batches = False
        self._process_ended = trio.Event()

    async def run(self, deliver: Deliver) -> None:
        async with trio.open_nursery() as nursery:
            reading = trio.CancelScope()
            nursery.start_soon(self._write, reading)
            nursery.start_soon(self._watch, reading)
            with reading:
                await self._read(deliver)
                # Output usually ends a moment before the process does, and the exit status says more than end of file.
                with trio.move_on_after(LAST_OUTPUT_WAIT):
                    await self._process_ended.wait()
            nursery.cancel_scope.cancel()
        raise LinkLost(self._lost_reason or "it closed its standard output")

    async def send(self, parcel: Parcel) -> None:
        try:
            self._write_message(write(parcel.message))
        except LinkLost as lost:
            with trio.move_on_after(LAST_OUTPUT_WAIT):  # the exit status says more
                await self._process_ended.wait()
            raise LinkLost(self._lost_reason or str(lost)) from None

    def settle(self, revision: Revision) -> None:
        self._batches = revision.has_batches

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        try:
            self._write_message(write(notice))
        except LinkLost:
            return  # the server has ended, and its work with it

    def _write_message(self, data: bytes) -> None:
        try:
            self._writer.write_line(one_line(data))
        except PipeClosed:
            raise LinkLost(self._lost_reason or "it closed its standard input, or has ended") from None
        except PipeStalled as problem:
            raise LinkLost(f"it does not read its standard input: {problem}") from problem

    async def _read(self, deliver: Deliver) -> None:
        lines = MessageSplitter(self._max_message)
        turn = self._turns.turn()
        discard_timeout, reading = trio.CancelScope(), trio.CancelScope()

        def drop() -> None:
            held.release()
            reading.cancel("its memory is needed elsewhere")

        try:
            with self._hold(drop) as held, reading, discard_timeout:
                discarding = None
                while data := await self._output.receive_some(CHUNK):
                    turn.begin()
                    for line in lines.feed(bytes(data)):
                        messages = self._messages_in(line)
                        for received in messages[:-1]:
                            deliver(received)
                            await turn.yield_if_over()  # also between those of a batch
                        if messages:
                            deliver(messages[-1])
                        if lines.discarding is not discarding:
                            discarding = lines.discarding
                            discard_timeout.deadline = (
                                inf if discarding is None else trio.current_time() + DISCARD_WINDOW
                            )
                        await turn.yield_if_over()
                    held.resize(lines.pending)
        except OverBudget:
            reading.cancel()
        except LineTooLong as problem:
            self._lost_reason = f"it wrote {problem}"
            return
        except trio.BrokenResourceError:
            pass
        if reading.cancel_called:
            self._lost_reason = str(NoMemory())
        elif discard_timeout.cancelled_caught:
            self._lost_reason = f"it wrote a line of more than {self._max_message} bytes, and did not end it in time"
        elif last := lines.rest():
            for received in self._messages_in(last):
                deliver(received)

    def _messages_in(self, line: bytes | Malformed | None) -> list[ReceivedMessage]:
        """The messages of a line; none of a step of work (None)."""
        if line is None:
            return []
        if isinstance(line, Malformed):
            return [ReceivedMessage(line, size=line.size)]
        found = received_in(line, self._batches)
        for received in found:
            if isinstance(received.message, Malformed) and received.message.id is None:
                self._on_text(line)
        return found

    async def _write(self, reading: trio.CancelScope) -> None:
        try:
            await self._writer.run()
        except PipeStalled as problem:
            self._lost_reason = f"it does not read its standard input: {problem}"
            reading.cancel()

    async def _watch(self, reading: trio.CancelScope) -> None:
        why = await self._ended()
        self._lost_reason = self._lost_reason or why
        self._process_ended.set()
        reading.deadline = trio.current_time() + LAST_OUTPUT_WAIT
