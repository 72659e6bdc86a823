"""What confined programs did not get, as lines of their logs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from config import StdioServer
from config.references import Secret
from config.sandbox import Destination, Network, Sandbox, SandboxFiles
from config.types import MOST_MEMORY
from host.journal import Event, Journal, SandboxRefused
from host.storage.directory import open_state
from host.upstream.connect import open_link
from host.upstream.refusals import MOST_LOOKED_AT, MOST_TOLD, Refusals, SaidRefusals, find_refusal
from host.wire.link import LinkLost
from host.wire.process import open_keeper
from tests.host.sandbox.kit import PYTHON
from tests.kit.kernel import needs_namespaces

PLAN: dict[str, Any] = {
    "read": ["/usr", "/srv/given"],
    "write": ["/srv/out"],
    "own": ["/state/sandbox/a/home", "/state/sandbox/a/tmp"],
    "hidden": "/state",
    "links": {"/lib": "usr/lib"},
}


def told(line: str, sandbox: Sandbox | None = None) -> tuple[str, str] | None:
    """What was refused, and the sandbox with it: its files, or its network."""
    found = find_refusal(line, sandbox or Sandbox(), PLAN)
    if found is None:
        return None
    wider = found.allow
    allow = "" if wider is None else f"{wider.files.read} {wider.files.write} {wider.network}"
    return found.what, allow


@pytest.mark.parametrize(
    "line",
    [
        "Error: EACCES: permission denied, open '/srv/data/x'",
        "PermissionError: [Errno 13] Permission denied: '/srv/data/x'",
        "cat: /srv/data/x: Permission denied",
        "panic: open /srv/data/x: permission denied",
        "/srv/given/python3: line 12: /srv/data/x: No such file or directory",
        "Error: ENOENT: no such file or directory, scandir '/srv/data/x'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/data/x'",
        "EPERM: operation not permitted, lstat '/srv/data/../data/x'",
        "Error: Cannot find module '/srv/data/x'",
        "sh: 1: cd: can't cd to /srv/data/x",
    ],
)
def test_a_file_that_it_may_not_read(line: str) -> None:
    assert told(line) == ('to read "/srv/data/x"', "('/srv/data/x',) () none")


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("Error: EROFS: read-only file system, open '/srv/data/x'", "/srv/data/x"),
        ("OSError: [Errno 30] Read-only file system: '/srv/data/x'", "/srv/data/x"),
        ("Error: EACCES: permission denied, mkdir '/srv/data/x'", "/srv/data/x"),
        ("PermissionError: [Errno 13] Permission denied: '/srv/given/x'", "/srv/given/x"),
    ],
)
def test_a_file_that_it_may_not_write(line: str, path: str) -> None:
    assert told(line) == (f'to write "{path}"', f"() ('{path}',) none")


@pytest.mark.parametrize(
    ("line", "host"),
    [
        ("Error: getaddrinfo EAI_AGAIN api.example.com", "api.example.com"),
        ("Error: getaddrinfo ENOTFOUND API.example.com", "api.example.com"),
        ("Error: connect ENETUNREACH 192.0.2.1:80 - Local (0.0.0.0:0)", "192.0.2.1:80"),
        ("Error: connect ENETUNREACH 2001:db8::1:443 - Local (:::0)", "2001:db8::1:443"),
        ("OSError: [Errno 101] Network is unreachable", ""),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", ""),
        ("dial tcp: lookup api.example.com: no such host", "api.example.com"),
        ("npm error code ENOTCACHED", ""),
        (
            "npm error request to https://registry.npmjs.org/x failed: cache mode is 'only-if-cached' but no cached "
            "response is available.",
            "registry.npmjs.org",
        ),
        ("  hint: Packages were unavailable because the network was disabled.", ""),
    ],
)
def test_the_network(line: str, host: str) -> None:
    """A host that is named is what to allow, at the port of https if the line has none."""
    what = f"the network, for {host}" if host else "the network"
    more = Destination(host if ":" in host else f"{host}:443")
    given = (Destination("other.test:443"),)
    is_address_6 = host.count(":") > 1
    for before, reason in ((Network.NONE, "network: none"), (given, "network names other hosts")):
        found = find_refusal(line, Sandbox(network=before), PLAN)
        assert found is not None
        assert found.what == f"{what} ({reason})"
        wider = (*Sandbox(network=before).destinations, more)
        assert found.allow == Sandbox(network=wider if host and not is_address_6 else Network.ALL)
    assert told(line, Sandbox(network=Network.ALL)) is None
    assert told(line, Sandbox(network=Network.LOOPBACK)) is None


def test_a_host_that_is_permitted_and_not_reached() -> None:
    sandbox = Sandbox(network=(Destination("api.test:443"),))
    assert find_refusal("Error: getaddrinfo EAI_AGAIN api.test", sandbox, PLAN) is None


@pytest.mark.parametrize(
    "line",
    [
        "listening",
        "Error: ENOENT: no such file or directory, open '/srv/given/x'",
        "Error: EACCES: permission denied, open '/srv/out/x'",
        "Error: EACCES: permission denied, open '/proc/1/environ'",
        "Error: EACCES: permission denied, open '/state/sandbox/a/home/x'",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
        "Permission denied: '/'",
        "permission denied: /lib/x is missing, ENOENT",
    ],
)
def test_what_its_sandbox_is_not_the_reason_of(line: str) -> None:
    assert told(line) is None


def test_nothing_permits_the_state_of_the_host() -> None:
    found = find_refusal("EACCES: permission denied, open '/state/key'", Sandbox(), PLAN)
    assert found is not None
    assert (found.what, found.allow) == ('"/state/key", which is of Colonnade itself', None)


def test_what_it_has_stays_in_the_line_that_permits_more() -> None:
    sandbox = Sandbox(SandboxFiles(read=("/srv/a", "/srv/b c")), memory=512 * 1024**2)
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    Refusals("a", journal).tell("the network\x1b[2J", replace(sandbox, network=Network.ALL))
    assert [str(event) for event in events] == [
        "a: its sandbox: its program was refused the network⟨U+001B⟩[2J; to allow it, write "
        'sandbox: {files: {read: [/srv/a, "/srv/b c"]}, network: all, memory: 512MiB}'
    ]
    assert [(each.stream, each.line) for each in journal.output("a")] == [("sandbox", str(events[0])[3:])]


@pytest.mark.parametrize(
    "line",
    [
        "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "failed to connect to the docker API at unix:///var/run/docker.sock: no such file or directory",
    ],
)
def test_a_client_of_docker(line: str) -> None:
    found = find_refusal(line, Sandbox(), PLAN)
    assert found is not None
    assert (found.what.split(",")[0], found.allow) == ("the daemon of Docker", None)


async def test_a_hostile_program_fills_no_log() -> None:
    """The same is told once, and so much of one child."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    refusals = Refusals("a", journal)
    said = SaidRefusals(refusals, Sandbox(), PLAN)
    for _ in range(3):
        await said.take("EACCES: permission denied, open '/srv/x'")
    assert len(events) == 1
    assert said.hint == '; its sandbox may have refused it to read "/srv/x"'
    for number in range(1000):
        await said.take(f"EACCES: permission denied, open '/srv/{number}'")
    assert len(events) == MOST_TOLD + 1
    assert str(events[-1]) == "a: its sandbox: its program was refused more, which is not told"
    other = SaidRefusals(Refusals("b", journal), Sandbox(), PLAN)
    for _ in range(MOST_LOOKED_AT + 1):
        await other.take("permission denied, and nothing else")
    await other.take("EACCES: permission denied, open '/srv/x'")
    assert len(events) == MOST_TOLD + 1


@pytest.mark.disk
async def test_a_file_that_is_nowhere_was_not_refused(tmp_path: Path) -> None:
    """Programs look for many files that few have."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    said = SaidRefusals(Refusals("a", journal), Sandbox(), PLAN)
    await said.take(f"ENOENT: no such file or directory, open '{tmp_path}/x'")
    assert not events
    (tmp_path / "x").touch()
    await said.take(f"ENOENT: no such file or directory, open '{tmp_path}/x'")
    assert len(events) == 1


@pytest.mark.disk
async def test_no_file_is_looked_for_where_that_would_connect_to_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control is the same file below another mount."""
    (tmp_path / "net of all").mkdir()
    (tmp_path / "net of all" / "x").touch()
    (mounts := tmp_path / "mounts").write_text("")
    monkeypatch.setattr("host.upstream.refusals._MOUNTS", str(mounts))
    for kind, told in (("autofs", 0), ("nfs4", 1)):
        mounts.write_text(f"proc /proc proc rw 0 0\n-hosts {tmp_path}/net\\040of\\040all {kind} rw 0 0\n")
        events: list[Event] = []
        journal = Journal()
        journal.subscribe(events.append)
        said = SaidRefusals(Refusals("a", journal), Sandbox(), PLAN)
        await said.take(f"ENOENT: no such file or directory, open '{tmp_path}/net of all/x'")
        assert len(events) == told


@pytest.mark.disk
@pytest.mark.parametrize("image", [None, "localhost/a:1"])
async def test_a_new_file_in_a_folder_that_may_be_read(tmp_path: Path, image: str | None) -> None:
    """A path must be there when a program starts, so a line with the file itself would only keep it from starting."""
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append)
    sandbox = Sandbox(files=SandboxFiles(read=(str(tmp_path),)))
    said = SaidRefusals(Refusals("a", journal), sandbox, {**PLAN, "read": [str(tmp_path)], "image": image})
    await said.take(f"Error: EROFS: read-only file system, open '{tmp_path}/x'")
    (tmp_path / "y").touch()
    await said.take(f"Error: EROFS: read-only file system, open '{tmp_path}/y'")
    assert [str(each).partition("may have been refused ")[2] for each in events] == [
        f'to write "{tmp_path}"; to allow it, write sandbox: {{files: {{write: [{tmp_path}]}}}}',
        f'to write "{tmp_path}/y"; to allow it, write sandbox: '
        f"{{files: {{read: [{tmp_path}], write: [{tmp_path}/y]}}}}",
    ]


async def end_of(tmp_path: Path, code: str, sandbox: Sandbox) -> tuple[str, list[str]]:
    """How a confined program ends, and what is told of its refusals."""
    spec = StdioServer(id="a", command=tuple(map(Secret, (*PYTHON, code))), cwd=Path("/"), sandbox=sandbox)
    events: list[Event] = []
    journal = Journal()
    journal.subscribe(events.append, SandboxRefused)
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    async with (
        open_keeper() as keeper,
        open_link(spec, http_sse=False, keeper=keeper, journal=journal, directory=directory) as link,
    ):
        with trio.fail_after(20), pytest.raises(LinkLost) as caught:
            await link.run(lambda received: None)
    return str(caught.value), [str(event) for event in events]


@needs_namespaces
@pytest.mark.slow
async def test_a_confined_program_that_ends_for_want_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("secret")
    code = f"print(open({json.dumps(str(tmp_path))} + '/data/x').read())"
    end, told = await end_of(tmp_path, code, Sandbox())
    path = f"{tmp_path}/data/x"
    assert end.endswith(f'its sandbox may have refused it to read "{path}"')
    assert told == [
        f'a: its sandbox: its program may have been refused to read "{path}"; to allow it, write '
        f"sandbox: {{files: {{read: [{path}]}}}}"
    ]


@needs_namespaces
@pytest.mark.slow
async def test_a_program_whose_processes_have_too_much_together(tmp_path: Path) -> None:
    """That is how it ended, and a line of its log."""
    code = "import os, time\nfor _ in range(4):\n if not os.fork(): kept = b'x' * (60 << 20); break\ntime.sleep(60)"
    end, told = await end_of(tmp_path, code, Sandbox(memory=128 * 1024**2))
    assert end.endswith("it was ended: its sandbox permits 128 MiB of memory, for all its processes together")
    assert told == [
        "a: its sandbox: its program was refused more than 128 MiB of memory, for all together; to allow it, write "
        "sandbox: {memory: 256MiB}"
    ]


@pytest.mark.parametrize(
    ("line", "what", "allow"),
    [
        ("MemoryError", "more than 1024 MiB of memory in one process", {"memory": 2 * 1024**3}),
        (
            "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
            "more than 1024 MiB of memory in one process",
            {"memory": 2 * 1024**3},
        ),
        (
            "RangeError: Array buffer allocation failed",
            "more than 1024 MiB of memory in one process",
            {"memory": 2 * 1024**3},
        ),
        (
            "RuntimeError: can't start new thread",
            "more processes or threads (64 and 1024 MiB of memory are permitted)",
            {"processes": 128, "memory": 2 * 1024**3},
        ),
        (
            "Error: spawn /usr/bin/git EAGAIN",
            "more processes or threads (64 and 1024 MiB of memory are permitted)",
            {"processes": 128, "memory": 2 * 1024**3},
        ),
        (
            "sh: 1: Cannot fork: Resource temporarily unavailable",
            "more processes or threads (64 and 1024 MiB of memory are permitted)",
            {"processes": 128, "memory": 2 * 1024**3},
        ),
        (
            "OSError: [Errno 24] Too many open files: '/dev/null'",
            "more than 256 open files in one process",
            {"open_files": 512},
        ),
        (
            "Error: ENOSPC: no space left on device, write",
            "more than 64 MiB of temporary files in /tmp or /dev/shm",
            {"temporary": 128 * 1024**2},
        ),
        (
            "cp: error writing '/tmp/x': No space left on device",
            "more than 64 MiB of temporary files in /tmp or /dev/shm",
            {"temporary": 128 * 1024**2},
        ),
    ],
)
def test_a_limit_that_one_process_reached(line: str, what: str, allow: dict[str, Any]) -> None:
    found = find_refusal(line, Sandbox(), PLAN)
    assert found is not None
    assert (found.what, found.allow) == (what, replace(Sandbox(), **allow))


@pytest.mark.parametrize(
    "line",
    [
        "cp: error writing '/srv/out/x': No space left on device",
        "Error: ENOSPC: System limit for number of file watchers reached, watch '/srv/given'",
        "OSError: [Errno 23] Too many open files in system: '/srv/given/x'",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable: 'fd'",
    ],
)
def test_a_limit_that_is_not_of_its_sandbox(line: str) -> None:
    assert find_refusal(line, Sandbox(), PLAN) is None


def test_nothing_more_than_the_most_is_proposed() -> None:
    full = replace(Sandbox(), memory=MOST_MEMORY)
    found = find_refusal("MemoryError", full, PLAN)
    assert found is not None
    assert found.allow is None
