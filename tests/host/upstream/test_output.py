"""The output of real children beside their messages, and the words for how they ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, memory_stream_one_way_pair, wait_all_tasks_blocked

from config import HttpServer, ServerSpec, StdioServer
from config.references import Secret
from config.sandbox import Sandbox
from host.journal import Event, Journal, OutputLine, OutputRecord, SandboxRefused
from host.jsonrpc.raw import encode
from host.sanitize import ELLIPSIS
from host.upstream.connect import open_link
from host.upstream.output import (
    FAILURE_LENGTH,
    LINE_LENGTH,
    LONGEST_FAILURE,
    MOST_FAILURES,
    REASON_WINDOW,
    DroppedAnswers,
    ProgramOutput,
    describe_silence,
)
from host.upstream.refusals import Refusals, SaidRefusals
from host.upstream.server_secrets import ServerSecrets
from host.wire.link import LinkLost
from host.wire.process import open_keeper
from host.wire.turns import Turns


def python(code: str, **more: object) -> StdioServer:
    return StdioServer(
        id="a",
        command=(Secret(sys.executable, "python"), Secret("-c"), Secret(code)),
        cwd=Path("/"),
        **more,  # type: ignore[arg-type]
    )


async def end_of(spec: StdioServer) -> tuple[str, list[tuple[str, str]]]:
    """How the program ended, in words, and its output as it was noted."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    async with open_keeper() as keeper, open_link(spec, http_sse=False, keeper=keeper, journal=journal) as link:
        with trio.fail_after(10), pytest.raises(LinkLost) as caught:
            await link.run(lambda received: None)
    return str(caught.value), [(event.stream, event.line) for event in events if isinstance(event, OutputLine)]


KILL = "import os, sys; print('Error: chatter', file=sys.stderr, flush=True); os.kill(os.getpid(), {})"
EXIT = "import sys; print('{}', file=sys.std{}); sys.exit({})"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import missing", "it exited with status 1: ModuleNotFoundError: No module named 'missing'"),
        ("import sys; sys.stderr.write('no key'); sys.exit(2)", "it exited with status 2: no key"),
        (EXIT.format("no key", "out", 2), "it exited with status 2: no key"),
        (EXIT.format("INFO: working", "err", 2), "it exited with status 2 and gave no reason (colonnade logs a)"),
        ("raise SystemExit(2)", "it exited with status 2 and gave no reason"),
        (EXIT.format("Error: no key", "err", 0), "it exited with status 0: Error: no key"),
        (
            EXIT.format("working", "err", 0),
            "it exited with status 0, as if it had finished: over stdio a server runs until its standard input is "
            "closed",
        ),
        (
            KILL.format(9),
            "it was ended by signal 9, SIGKILL (by a person, or by the system because memory ran out)",
        ),
        (KILL.format(15), "it was ended by signal 15, SIGTERM"),
        (KILL.format(6), "it crashed with signal 6, SIGABRT: Error: chatter"),
        (
            EXIT.format("Error: chatter", "err", 137),
            "it exited with status 137, as after signal 9, SIGKILL (by a person, or by the system because memory ran "
            "out)",
        ),
    ],
)
async def test_the_end_of_a_program_in_words(code: str, why: str) -> None:
    """The reason is on standard error, else on standard output. What was said before a kill is none."""
    assert (await end_of(python(code)))[0] == why


@pytest.mark.parametrize(("option", "why"), [("--rm", "add -i behind run"), ("-i", "as if it had finished")])
async def test_the_end_of_a_container_without_input(tmp_path: Path, option: str, why: str) -> None:
    (tmp_path / "docker").symlink_to("/bin/true")
    spec = StdioServer(id="a", command=(Secret(f"{tmp_path}/docker"), Secret("run"), Secret(option)), cwd=Path("/"))
    assert why in (await end_of(spec))[0]


async def test_output_is_read_whatever_it_is() -> None:
    code = (
        "import sys; sys.stderr.buffer.write(b'\\x1b[31mred\\xff\\x1b[0m\\n' + b'x' * 300000 + b'\\n 5%\\r99%\\r\\n');"
        "sys.stderr.flush(); sys.stdout.buffer.write(b'banner\\n{}\\n\\xe2\\x80\\xaelast'); sys.stdout.flush()"
    )
    _, output = await end_of(python(code))
    assert ("stderr", "red\ufffd") in output
    assert ("stderr", "99%") in output
    assert [line for stream, line in output if stream == "stdout"] == ["banner", "{}", "⟨U+202E⟩last"]


async def test_a_long_line_is_cut() -> None:
    _, output = await end_of(python("import sys; print('x' * 5000, file=sys.stderr)"))
    assert output == [("stderr", "x" * (LINE_LENGTH - 1) + ELLIPSIS)]


async def test_secrets_of_the_configuration_are_redacted() -> None:
    code = "import os, sys; print('bad key', os.environ['KEY'], os.environ['ZONE'], file=sys.stderr)"
    spec = python(code, env={"KEY": Secret("sk-123456"), "ZONE": Secret("UTC")})
    assert (await end_of(spec))[1] == [("stderr", "bad key *** UTC")]


PEM = "-----BEGIN KEY-----\nMIIEvQIBADAN\n-----END KEY-----\n"


@pytest.mark.parametrize(
    ("spec", "text", "shown"),
    [
        (python("", env={"K": Secret("sk-123456")}), "no sk-123456 there", "no *** there"),
        (python("", env={"K": Secret(PEM)}), "cannot read MIIEvQIBADAN", "cannot read ***"),
        (python("", env={"K": Secret("user:hunter22", filled=("hunter22",))}), "hunter22 is wrong", "*** is wrong"),
        (
            StdioServer(id="a", command=(Secret("x"), Secret("--key=sk-123456", filled=("sk-123456",))), cwd=Path("/")),
            "unknown key sk-123456",
            "unknown key ***",
        ),
        (
            StdioServer(id="a", command=(Secret("x"), Secret("/home/me/x.py", filled=("/home/me",))), cwd=Path("/")),
            'File "/home/me/x.py"',
            'File "/home/me/x.py"',
        ),
        (
            HttpServer(id="a", url=Secret("https://x.example"), headers={"Authorization": Secret("Bearer sk-123456")}),
            "sk-123456, Bearer sk-123456",
            "***, ***",
        ),
        (
            HttpServer(id="a", url=Secret("https://x.example/?k=sk-123456", filled=("sk-123456",))),
            "issuer https://x.example/sk-123456",
            "issuer https://x.example/***",
        ),
    ],
)
def test_what_was_told_in_confidence_is_not_repeated(spec: ServerSpec, text: str, shown: str) -> None:
    """Whole values, their lines, what references gave, and credentials without their scheme; no paths in a command."""
    assert ServerSecrets(spec).redact(text) == shown


class Ended:
    """A child that ends with a status when it is told to."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.over = ""

    async def wait(self) -> int:
        await trio.lowlevel.checkpoint()
        return self.status


async def test_an_error_long_before_the_end_is_not_its_reason(autojump_clock: MockClock) -> None:
    output = ProgramOutput(python(""), Journal(), Turns().turn())
    near, far = memory_stream_one_way_pair()
    await near.send_all(b"Error: one request failed\n")
    await near.aclose()
    await output.read_stderr(far)
    child = Ended(1)
    assert await output.describe_end(child) == "it exited with status 1: Error: one request failed"  # type: ignore[arg-type]
    await trio.sleep(REASON_WINDOW + 1)
    assert await output.describe_end(child) == "it exited with status 1 and gave no reason (colonnade logs a)"  # type: ignore[arg-type]


def failed(text: str, **more: object) -> Raw:
    return encode({"content": [{"type": "image", "data": ""}, {"type": "text", "text": text}], "isError": True, **more})


async def test_results_of_failed_calls_are_looked_at_in_bounds() -> None:
    """They are those of a program that may be hostile: its secrets stay out, and so does what is long."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    plan = {"read": [], "write": [], "links": [], "own": [], "hidden": "/state"}
    spec = python("", env={"KEY": Secret("s3cret-value", "${KEY}")})
    output = ProgramOutput(spec, journal, Turns().turn(), SaidRefusals(Refusals("a", journal), Sandbox(), plan))
    line = "EACCES: permission denied, open '/srv/{}'"
    for result in (
        failed(line.format("long"), more="x" * LONGEST_FAILURE),
        failed("x" * FAILURE_LENGTH + "\n" + line.format("late")),
        encode({"isError": True, "content": "EACCES"}),
        encode({"isError": True}),
        failed(f"Error:\n\x1b[31m{line.format('first')}\n{line.format('s3cret-value')}"),
        *(failed(line.format(number)) for number in range(2 * MOST_FAILURES)),
    ):
        output.take_tool_error(result)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.look_at_failures)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    told = [event.what for event in events if isinstance(event, SandboxRefused)]
    assert told[0] == 'to read "/srv/first"'
    assert len(told) <= MOST_FAILURES + 1
    assert not {f'to read "/srv/{name}"' for name in ("long", "late", "s3cret-value")}.intersection(told)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "if it needs longer, raise start_timeout"),
        (
            [("stderr", "Please log in"), ("stderr", "}")],
            'if it needs longer, raise start_timeout; its standard error ends with "Please log in"',
        ),
        (
            [("stdout", "listening on port 3000"), ("stdout", "ready")],
            'its standard output is no JSON-RPC but begins "listening on port 3000"; it may need an option for stdio',
        ),
    ],
)
def test_a_program_that_is_silent_is_described_by_what_it_wrote_instead(
    lines: list[tuple[str, str]], said: str
) -> None:
    records = [OutputRecord(number, 0.0, line, stream) for number, (stream, line) in enumerate(lines)]  # type: ignore[arg-type]
    assert describe_silence(records, DroppedAnswers()) == describe_silence(records) == said


def test_a_program_that_answers_is_no_slow_one() -> None:
    dropped = DroppedAnswers()
    dropped.add("a first reason", "A")
    records = [OutputRecord(1, 0.0, "{}", "stdout")]
    assert describe_silence(records, dropped) == "it answered once with what is no answer to a request: a first reason"
    dropped.add("another reason", "B")
    assert describe_silence([], dropped).startswith("it answered 2 times with what is no answer to a request: another")
    assert dropped.said == "B"
