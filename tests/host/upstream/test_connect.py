"""Links as the configuration asks for them, to real children and a port where nobody listens."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from config import HttpServer, StdioServer
from config.references import Secret
from host.errors import first_exception
from host.journal import Event, Journal
from host.jsonrpc.messages import Notification, Request
from host.relay import TRAIL_VARIABLE
from host.sanitize import without_directories
from host.upstream.connect import CannotStart, open_link, open_url_link
from host.upstream.server_secrets import ServerSecrets
from host.wire.descent import LINK_NAME, SUBREAPER_NAME
from host.wire.link import Link, LinkLost, Parcel, ReceivedMessage
from host.wire.process import open_keeper


def child(*words: str, **more: object) -> StdioServer:
    program, *args = words
    return StdioServer(
        id="a",
        command=(Secret(program, program), *map(Secret, args)),
        cwd=Path("/"),
        **more,  # type: ignore[arg-type]
    )


async def run(spec: StdioServer, send: Sequence[Request] = ()) -> tuple[list[ReceivedMessage], str, list[Event]]:
    """What comes from a child until it ends, why it ended, and what was noted meanwhile."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    arrived: list[ReceivedMessage] = []
    async with open_keeper() as keeper, open_link(spec, http_sse=False, keeper=keeper, journal=journal) as link:
        for request in send:
            await link.send(Parcel(request))
        with trio.fail_after(10):
            try:
                await link.run(arrived.append)
            except LinkLost as lost:
                return arrived, str(lost), events
    raise AssertionError("the link ended without a reason")


async def test_a_childs_lines_come_as_messages_and_its_end_says_how() -> None:
    code = "import sys; print(sys.stdin.readline(), end=''); print('banner'); sys.exit(3)"
    arrived, why, _ = await run(child(sys.executable, "-c", code), [Request(1, "ping")])
    assert arrived[0].message == Request(1, "ping")
    assert len(arrived) == 2
    assert why == "it exited with status 3: banner"


async def send_on(link: Link) -> None:
    while True:
        await link.send(Parcel(Request(1, "ping")))
        await trio.sleep(0.01)


async def test_a_message_to_a_program_that_has_ended_fails_with_the_reason_too() -> None:
    code = "import sys, os; os.close(0); print('no API key given', file=sys.stderr); sys.exit(2)"

    async def read(link: Link) -> None:
        with suppress(LinkLost):
            await link.run(lambda received: None)

    async with (
        open_keeper() as keeper,
        open_link(child(sys.executable, "-c", code), http_sse=False, keeper=keeper, journal=Journal()) as link,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(read, link)
        with pytest.raises(LinkLost, match="it exited with status 2: no API key given"):
            await send_on(link)


async def test_a_grandchild_that_holds_the_output_does_not_hold_the_link() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60'])"
    _, why, _ = await run(child(sys.executable, "-c", code))
    assert why.startswith("it exited with status 0")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("C:npx.cmd", "was not found: it is one of Windows; write the program of this machine"),
        ("no-such-program", "was not found on PATH: install it, or correct the command, or write its path"),
        ("{folder}/nothing", 'was not found at "{folder}/nothing": install it, or correct the command'),
        (
            '{folder}/no "thing',
            "was not found at this path: install it, or correct the command, or put its arguments under args",
        ),
        ("{folder}/plain", "is not executable: make it so (chmod +x), or put its interpreter before it in the command"),
        (
            "{folder}/odd",
            "names an interpreter in its first line (#!) that is not there: install it, or correct the line",
        ),
    ],
)
async def test_a_program_that_cannot_be_started_is_a_lasting_failure_without_its_arguments(
    program: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "odd").write_text("#!/no/such/interpreter\n")
    (tmp_path / "odd").chmod(0o755)
    spec = child(program.format(folder=tmp_path), "--token=secret")
    with pytest.RaisesGroup(CannotStart, flatten_subgroups=True) as caught:
        await run(spec)
    problem = first_exception(caught.value)
    assert isinstance(problem, CannotStart)
    assert str(problem) == f'the program "{spec.program}" {why.format(folder=tmp_path)}'
    assert problem.lasting


@given(st.text(st.sampled_from("/ab.:'\"`~\n …()"), min_size=1, max_size=40))
def test_clients_are_told_no_directory_of_a_program_or_folder_that_was_not_found(name: str) -> None:
    path = Path(f"/secret/folder/{name}/program")
    spec = replace(child("x"), command=(Secret(str(path), path.name),))
    told = without_directories(str(CannotStart(spec, "not found")))
    assert told.startswith('the program "program" was not found at ')
    assert told.partition(" at ")[2].partition(":")[0] in ('"…/program"', "this path")
    told = without_directories(str(CannotStart(replace(spec, cwd=path), "bad cwd")))
    assert told.partition(" started in ")[2].partition(":")[0] in ('the folder "…/program"', "its folder")


def test_a_start_that_lacked_resources_may_succeed_later() -> None:
    problem = CannotStart(child("server"), "Too many open files")
    assert (str(problem), problem.lasting) == ('the program "server" could not be started: Too many open files', False)


async def test_the_child_gets_its_own_environment_and_little_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLONNADE_TEST_TOKEN", "secret")
    code = "import os, json; print(json.dumps({'jsonrpc': '2.0', 'method': ' '.join(sorted(os.environ))}))"
    arrived, _, _ = await run(child(sys.executable, "-c", code, env={"MINE": Secret("yes")}))
    names = arrived[0].message.method.split()  # type: ignore[union-attr]
    assert "MINE" in names
    assert "PATH" in names
    assert "COLONNADE_TEST_TOKEN" not in names


async def test_a_server_that_is_colonnade_is_told_which_configurations_lead_to_it(tmp_path: Path) -> None:
    """It is a link to the keeper. No other server is."""
    script = tmp_path / "colonnade"
    code = (
        "import os, json; print(json.dumps({'jsonrpc': '2.0', 'method':"
        " open(f'/proc/{os.getppid()}/comm').read() + os.environ.get('COLONNADE_TRAIL', 'none')}))"
    )
    script.write_text(f"#!{sys.executable}\n{code}\n")
    script.chmod(0o755)
    said = []
    for spec in (child(str(script), env={TRAIL_VARIABLE: Secret("mine")}), child(sys.executable, "-c", code)):
        async with (
            open_keeper() as keeper,
            open_link(
                spec, http_sse=False, keeper=keeper, journal=Journal(), trail=lambda: ["/a.yaml", "/b.yaml"]
            ) as link,
        ):
            arrived: list[ReceivedMessage] = []
            with trio.fail_after(10), pytest.raises(LinkLost):
                await link.run(arrived.append)
            said.append(arrived[0].message.method.split("\n"))  # type: ignore[union-attr]
    assert said == [[LINK_NAME, '["/a.yaml", "/b.yaml"]'], [SUBREAPER_NAME, "none"]]


async def test_a_known_client_program_gets_the_variables_that_it_needs(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text(
        f"#!{sys.executable}\nimport os, json\n"
        "print(json.dumps({'jsonrpc': '2.0', 'method': os.environ.get('KUBECONFIG', 'none')}))\n"
    )
    program.chmod(0o755)
    spec = child(str(program))
    for variables in ({}, {"KUBECONFIG": Secret("/k"), "OTHER": Secret("o")}):
        arrived, _, _ = await run(replace(spec, variables=variables))
        assert arrived[0].message.method == ("/k" if variables else "none")  # type: ignore[union-attr]


async def test_a_port_where_nobody_listens_is_a_lost_link() -> None:
    spec = HttpServer(id="a", url=Secret("http://127.0.0.1:1/mcp?key=secret"))
    async with (
        open_keeper() as keeper,
        open_link(spec, http_sse=False, keeper=keeper, journal=Journal()) as link,
        trio.open_nursery() as nursery,
    ):

        async def carry() -> None:
            with pytest.raises(LinkLost, match="connection refused"):
                await link.run(lambda arrival: None)

        nursery.start_soon(carry)
        with pytest.raises(LinkLost, match="it cannot be reached: connection refused"):
            await link.send(Parcel(Request(1, "ping")))


@asynccontextmanager
async def http_server(answers: dict[str, bytes]) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that answers each method with these bytes, and the heads it has heard."""
    heard: list[str] = []

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            async for data in stream:
                head += data
                if b"\r\n\r\n" in head:
                    break
            heard.append(head.decode())
            await stream.send_all(answers[heard[-1].partition(" ")[0]])
            if heard[-1].startswith("GET"):
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/sse", heard
        nursery.cancel_scope.cancel()


RECEIPT = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b"event: endpoint\ndata: /messages\n\nevent: strange\ndata: x\n\n"
)


@pytest.mark.parametrize(("http_sse", "path"), [(False, "/sse"), (True, "/messages")])
async def test_both_http_links_take_url_and_headers_from_the_configuration(http_sse: bool, path: str) -> None:
    journal = Journal()
    async with http_server({"POST": RECEIPT, "GET": STREAM}) as (url, heard):
        spec = HttpServer(id="a", url=Secret(url), headers={"X-Key": Secret("k")})
        async with open_url_link(spec, journal, http_sse=http_sse) as link, trio.open_nursery() as nursery:
            nursery.start_soon(link.run, lambda arrival: None)
            await link.send(Parcel(Notification("a")))
            nursery.cancel_scope.cancel()
    assert heard[-1].startswith(f"POST {path} HTTP/1.1\r\n")
    assert all("x-key: k\r\n" in head.lower() for head in heard)
    if http_sse:
        assert journal.dropped["a"]["unexpected event"] == 1


@pytest.mark.parametrize(("older", "heard_first"), [(False, "POST /sse"), (True, "GET /sse")])
async def test_the_transport_of_old_is_a_link_like_the_other(older: bool, heard_first: str) -> None:
    """Which of them it is, is the caller's to say."""
    async with http_server({"POST": RECEIPT, "GET": STREAM}) as (url, heard), open_keeper() as keeper:
        spec = HttpServer(id="a", url=Secret(url))
        async with (
            open_link(spec, http_sse=older, keeper=keeper, journal=Journal()) as link,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(link.run, lambda arrival: None)
            await link.send(Parcel(Notification("a")))
            nursery.cancel_scope.cancel()
    assert heard[0].startswith(f"{heard_first} HTTP/1.1\r\n")


async def test_headers_of_the_helper_replace_configured_ones() -> None:
    """They are redacted like those, too."""
    code = """print('{"x-key": "fresh-token"}')"""
    async with http_server({"POST": RECEIPT, "GET": STREAM}) as (url, heard), open_keeper() as keeper:
        spec = HttpServer(
            id="a",
            url=Secret(url),
            headers={"X-Key": Secret("configured"), "X-Other": Secret("kept")},
            headers_helper=(Secret(sys.executable), Secret("-c"), Secret(code)),
            folder=Path("/"),
        )
        async with (
            open_link(spec, http_sse=False, keeper=keeper, journal=Journal()) as link,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(link.run, lambda arrival: None)
            await link.send(Parcel(Notification("a")))
            nursery.cancel_scope.cancel()
    head = heard[0].lower()
    assert ("x-key: fresh-token\r\n" in head, "x-other: kept\r\n" in head, "configured" in head) == (True, True, False)
    assert ServerSecrets(spec).redact("it repeats fresh-token") == "it repeats ***"
