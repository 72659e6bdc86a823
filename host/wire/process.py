"""Server processes of the host: started, watched and ended through the keeper (keeper.py), so that none is left behind.

Handles pipes, exit statuses and the stopping of process trees; never restarts a program. A `Child` owns its three pipe
ends and its control socket. A `Keeper` owns the helper process, and replaces it if it was killed. Every process of the
host must be started here, because `become_subreaper` relies on that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from host.wire import keeper as helper
from host.wire.descent import KEEPER_NAME, LINK_NAME, SUBREAPER_NAME

_PIPE_BYTES = 256 * 1024
"""Size of the buffer of a pipe. With Linux's 64 KiB, a response of 9 MB takes 140 passes of the event loop. Not 1 MiB:
all pipes of a user share 64 MiB, beyond which new pipes have one page."""
START_TIMEOUT = 10.0
"""Seconds in which the keeper must start a new program; only a keeper that was stopped or starved needs more."""
MAX_CONCURRENT_STARTS = 8
"""Programs that may be starting at once: a machine that starts fifty at once does nothing else meanwhile."""
KILL_TIMEOUT = 1.0
"""Seconds after SIGKILL in which a subreaper must end its tree; then the subreaper is killed, and as many seconds more.
"""
_LISTENERS_SPACE = socket.CMSG_SPACE(4 * 253)
"""Room for as many descriptors as one message may have (unix(7))."""
_SWEEP_INTERVAL = 0.05
"""Seconds between two looks for strays: a process becomes one whenever its parent ends, and nothing tells."""

_INHERITED_VARIABLES = frozenset(
    [
        # Passed on by every MCP SDK, so a server that runs elsewhere runs here.
        *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
        # Locale (with LC_*), time zone and scratch folder.
        *("LANG", "TZ", "TMPDIR"),
        # Folders of caches, settings and sockets: without them npx, uvx and docker download again or fail off line.
        *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
        # Necessary behind a company's proxy. The address of a proxy may contain a password, but one for the network,
        # which the server uses anyway.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
        # Nothing else: users keep tokens in their environment under any name.
    ]
)


class SpawnError(Exception):
    """A program could not be started. `reason`: why, without any argument or secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotConfined(SpawnError):
    """A program was not started, since it could not be confined as its sandbox says. `step`: what was refused."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step = step


class _KeeperLost(SpawnError):
    """The keeper ended before the program was started."""


def child_environment(own: Mapping[str, str], base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a server: the few variables of ours that it needs, and those configured for it.

    Args:
        own: variables that the configuration sets for this server; they replace others of the same name.
        base: the environment to select from. Exported shell functions (`() {`) are never passed on.
    """
    passed = {
        name: value
        for name, value in base.items()
        if (name in _INHERITED_VARIABLES or name.startswith("LC_")) and not value.startswith("()")
    }
    return {**passed, **own}


def become_subreaper() -> bool:
    """Make the host adopt the processes of a keeper that was killed; False if the platform has no subreapers.

    From then on, if a keeper is killed, an open `Keeper` kills and reaps every child of this process that has a session
    of its own and is neither a keeper nor a living subreaper. Children in the session of the host, and their exit
    statuses, are left alone.
    """
    return helper.become_subreaper()


class Child:
    """One running program and its descendants. Made by `Keeper.open_child` only.

    The user must read `stdout` and `stderr` to their end; otherwise the program may block. Descendants can hold them
    open for a moment after the exit of the program itself, for which `wait` waits.
    """

    def __init__(self, control: socket.socket, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = 0
        self.returncode: int | None = None
        """Exit status, or the negative number of the signal that ended it; None while it runs."""
        self.stdout: trio.abc.ReceiveStream = trio.lowlevel.FdStream(stdout)
        self.stderr: trio.abc.ReceiveStream = trio.lowlevel.FdStream(stderr)
        self._stdin: int | None = stdin
        os.set_blocking(stdin, False)
        self._control = trio.socket.from_stdlib_socket(control)
        self.means = ""
        """The means that confine the program, in words; empty if it is not confined."""
        self.over = ""
        """`memory` or `processes`, if it was ended for what all its processes together have; empty if not."""
        self.listeners: list[socket.socket] = []
        """The sockets that listen in its network, in the order of its plan. They are closed with the child."""
        self._subreaper = 0
        self._problem: SpawnError | None = None
        self._order_sent = False
        self._answered = trio.Event()
        self._ended = trio.Event()
        self._gone = trio.Event()
        self._listening = trio.CancelScope(shield=True)

    @property
    def stdin_fd(self) -> int:
        """The non-blocking write end of the program's standard input. Read this property before each use, because a
        closed descriptor may be reused for another file.

        Raises:
            trio.ClosedResourceError: it was closed.
        """
        if self._stdin is None:
            raise trio.ClosedResourceError("the standard input of this program was closed")
        return self._stdin

    def close_stdin(self) -> None:
        """Close the program's standard input. Tasks that wait to write to it get `trio.ClosedResourceError`."""
        if self._stdin is not None:
            stdin, self._stdin = self._stdin, None
            trio.lowlevel.notify_closing(stdin)
            os.close(stdin)

    async def wait(self) -> int:
        """Wait for the exit of the program, not of its descendants; returns `returncode`. Several tasks may wait."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    # For `Keeper` only

    async def _send_order(self, order: bytes) -> None:
        """Have the subreaper start the program; return when it runs. Raises SpawnError."""
        with trio.move_on_after(START_TIMEOUT):
            try:
                while order:
                    order = order[await self._control.send(order) :]
            except OSError:
                pass  # the subreaper is gone, which `_listen` reports
            else:
                self._order_sent = True
            await self._answered.wait()
        if self._problem is not None:
            raise self._problem
        if not self.pid and self._gone.is_set():
            raise (SpawnError if self._subreaper else _KeeperLost)("its keeper ended")
        if not self.pid:
            raise SpawnError("the keeper did not answer in time")

    async def _listen(self) -> None:
        """Handle the reports of the subreaper until it ends. Shielded, because `_stop` needs the reports."""
        with self._listening:
            rest = b""
            while data := await self._read_reports():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take_report(json.loads(line))
        # If these were not reported before, the subreaper was killed; the keeper or the host kills its program.
        self._take_report({"gone": True})
        self._take_report({"exit": -signal.SIGKILL})
        self._answered.set()

    async def _read_reports(self) -> bytes:
        try:
            data, ancillary, *_ = await self._control.recvmsg(4096, _LISTENERS_SPACE, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return b""
        for level, kind, sent in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array("i", sent[: len(sent) // 4 * 4])
                self.listeners += [socket.socket(fileno=descriptor) for descriptor in found]
        return data

    def _take_report(self, report: dict[str, object]) -> None:
        match report:
            case {"subreaper": int(subreaper)}:
                self._subreaper = subreaper
            case {"pid": int(pid)}:
                self.pid = pid
                self._answered.set()
            case {"sandbox": {"means": str(means)}}:
                self.means, self._problem = means, None  # a way that holds more was refused before
            case {"sandbox": {"failed": str(step), "why": str(why)}}:
                self._problem = NotConfined(step, why)
            case {"sandbox": {"over": str(over)}}:
                self.over = over
            case {"error": str(reason)}:
                self._problem = self._problem or SpawnError(reason)
                self._answered.set()
            case {"exit": int(status)}:
                if self.returncode is None:
                    self.returncode = status
                self._ended.set()
            case {"gone": True}:
                self._gone.set()

    def _send_command(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # gone, or stopped with a full socket: the next step kills the subreaper
            os.write(self._control.fileno(), word)

    async def _stop(self, grace: float) -> None:
        """End the whole tree: end of input, `grace` seconds, TERM, `grace` seconds, KILL, wait."""
        self.close_stdin()
        if not self._order_sent:  # a subreaper that sees the end of input in place of an order starts nothing
            with contextlib.suppress(OSError):  # the subreaper has ended
                self._control.shutdown(socket.SHUT_WR)
        elif not await self._ended_within(grace):
            self._send_command(helper.TERM)
            if not await self._ended_within(grace):
                self._send_command(helper.KILL)
        await self._finish()

    async def _finish(self) -> None:
        """Wait for the end of a tree that is being killed. If its subreaper does not end it, kill the subreaper, so
        that the keeper kills the tree."""
        with trio.move_on_after(KILL_TIMEOUT):
            await self._gone.wait()
        if not self._gone.is_set() and self._subreaper:
            with contextlib.suppress(OSError):  # it holds the other end of the socket, so the number is still its own
                os.kill(self._subreaper, signal.SIGKILL)
            with trio.move_on_after(KILL_TIMEOUT):
                await self._gone.wait()

    async def _ended_within(self, seconds: float) -> bool:
        with trio.move_on_after(seconds):
            await self._ended.wait()
        return self._ended.is_set()

    async def _close(self) -> None:
        self.close_stdin()
        self._listening.cancel()
        self._control.close()
        for each in self.listeners:
            each.close()
        await trio.aclose_forcefully(self.stdout)
        await trio.aclose_forcefully(self.stderr)


def _encode(argv: Sequence[str], env: Mapping[str, str], cwd: str, more: Mapping[str, Any]) -> bytes:
    """The order for a subreaper, in the format that keeper.py describes."""
    if not argv:
        raise SpawnError("the command is empty")
    order: dict[str, object] = {
        "argv": [_as_bytes(word) for word in argv],
        "env": {_as_bytes(name): _as_bytes(value) for name, value in env.items()},
        "cwd": _as_bytes(os.path.abspath(cwd)),
    }
    order |= {name: value for name, value in more.items() if value}
    body = json.dumps(order).encode()
    return struct.pack("!I", len(body)) + body


def _as_bytes(text: str) -> str:
    return os.fsencode(text).decode("latin-1")


class _KeeperProcess:
    """One running keeper process."""

    def __init__(self) -> None:
        self.ended = trio.Event()
        self.socket, theirs = socket.socketpair()
        names = KEEPER_NAME, SUBREAPER_NAME, LINK_NAME
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(helper.__file__)), str(theirs.fileno()), *names],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",  # no folder stays in use because of it
                # A program can read the environment of its parent in /proc; some Pythons need this one variable.
                env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.socket.setblocking(False)
        _helpers.add(self.process.pid)

    def alive(self) -> bool:
        return self.process.poll() is None

    def resume(self) -> None:
        """Continue the process if a server has stopped it."""
        self.process.send_signal(signal.SIGCONT)

    async def watch(self) -> None:
        """Wait for the end of the process, take its status, close the socket. Shielded: ended by `aclose`."""
        with trio.CancelScope(shield=True):
            await trio.lowlevel.wait_readable(self.socket)  # a keeper never writes, so this is its end
        self.process.wait()  # its descriptors are closed a moment before
        _helpers.discard(self.process.pid)
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()
        self.ended.set()

    async def aclose(self) -> None:
        """Make the process end when its subreapers have ended; kill it after SUBREAPER_LIMIT seconds."""
        with contextlib.suppress(OSError):  # the process has ended, and `watch` has closed the socket
            self.socket.shutdown(socket.SHUT_WR)
        self.resume()
        with trio.move_on_after(helper.SUBREAPER_LIMIT):
            await self.ended.wait()
        if not self.ended.is_set():
            self.process.kill()
            await self.ended.wait()


_helpers: set[int] = set()
"""Process ids of all keepers of this process: children that must not be killed as strays."""


def _enlarge(pipe: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # the limit of the user is reached
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class Keeper:
    """Starts programs that cannot outlive the host. Made by `open_keeper` only."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._helper = _KeeperProcess()
        nursery.start_soon(self._watch, self._helper)
        self._handover_lock = trio.Lock()
        self._starting = trio.CapacityLimiter(MAX_CONCURRENT_STARTS)
        self._children: set[Child] = set()
        self._closed = False

    @property
    def pid(self) -> int:
        """The process id of the current helper; it changes when the helper was killed and replaced."""
        return self._helper.process.pid

    @asynccontextmanager
    async def open_child(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        grace: float = 2.0,
        is_link: bool = False,
        sandbox: Mapping[str, Any] | None = None,
        container: Mapping[str, int] | None = None,
        after: Sequence[str] = (),
    ) -> AsyncIterator[Child]:
        """Run a program for the block; at the end, end it with all its descendants.

        Leaving closes the standard input, sends TERM to the whole tree after `grace` seconds and KILL after as many
        more, and waits until no process is left. When the program itself ends, for whatever reason, the rest of its
        tree is killed. Leaving is shielded from cancellation and takes at most `2 * grace + 2 * KILL_TIMEOUT` seconds.
        A start that is cancelled leaves no process behind.

        Args:
            argv: the program and its arguments; a name without a slash is looked up in the PATH of `env`, a relative
                path begins at `cwd`.
            env: its whole environment (see `child_environment`).
            grace: seconds to end after the end of input, and again after TERM.
            is_link: whether the program is Colonnade itself, whose processes may be clients of other hosts.
            sandbox: the plan by which it is confined (host/sandbox/plan.py); None: it runs as the user.
            container: the `memory` in bytes and the `processes` of the container that the program makes, if nobody else
                limits all its processes together.
            after: a command that removes what the program leaves outside its tree. It runs only if the host itself is
                gone before the program.

        Raises:
            SpawnError: the program could not be started; NotConfined: not with all that the plan says.
        """
        order = _encode(argv, env, cwd, {"sandbox": sandbox, "container": container, "after": after})
        sort = helper.LINK if is_link else helper.LEAVING if after else helper.CONFINED if sandbox else helper.ORDINARY
        try:
            child = await self._start(order, sort)
        except _KeeperLost:  # the keeper was killed before it forked; the next attempt replaces it
            child = await self._start(order, sort)
        try:
            yield child
        finally:
            await self._end(child, grace)

    async def _start(self, order: bytes, sort: bytes) -> Child:
        async with self._starting:
            child = await self._begin(sort)
            try:
                await child._send_order(order)
            except BaseException:
                await self._end(child, 0.0)
                raise
        return child

    async def _end(self, child: Child, grace: float) -> None:
        with trio.CancelScope(shield=True):
            await child._stop(grace)
            self._children.discard(child)
            await child._close()

    async def _begin(self, sort: bytes) -> Child:
        """Have the keeper fork a subreaper. No checkpoint follows before the return, so that the caller always gets the
        child that it has to stop."""
        async with self._handover_lock:
            while True:
                if self._closed:
                    raise SpawnError("the host is stopping")
                try:
                    return self._hand_over(sort)
                except BlockingIOError:
                    with contextlib.suppress(trio.ClosedResourceError):  # it was killed; the next round replaces it
                        await trio.lowlevel.wait_writable(self._helper.socket)
                except ConnectionError:  # it was just killed; the next round replaces it
                    await self._helper.ended.wait()
                except OSError as error:
                    raise SpawnError(os.strerror(error.errno or 0)) from error

    def _hand_over(self, sort: bytes) -> Child:
        if not self._helper.alive():
            self._replace_helper()
        with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as passed_on:
            ours: list[int] = []
            theirs: list[int] = []
            for at_program in (0, 1, 1):
                ends = os.pipe()
                _enlarge(ends[0])
                mine = ends[1 - at_program]
                ours.append(mine)
                on_failure.callback(os.close, mine)
                theirs.append(ends[at_program])
                passed_on.callback(os.close, ends[at_program])
            control, far = socket.socketpair()
            on_failure.callback(control.close)
            passed_on.callback(far.close)
            socket.send_fds(self._helper.socket, [sort], [far.fileno(), *theirs])
            self._helper.resume()  # in case a server has stopped it
            on_failure.pop_all()
        child = Child(control, *ours)
        self._children.add(child)
        self._nursery.start_soon(child._listen)
        return child

    def _replace_helper(self) -> None:
        self._helper = _KeeperProcess()
        self._nursery.start_soon(self._watch, self._helper)

    async def _watch(self, helper_process: _KeeperProcess) -> None:
        """Wait for the end of a keeper process. If it was killed, kill and reap the strays of its children until all of
        these have ended."""
        await helper_process.watch()
        orphaned = set(self._children)
        while helper.is_subreaper():
            if not self._sweep() and orphaned.isdisjoint(self._children):
                return
            await trio.sleep(_SWEEP_INTERVAL)

    def _sweep(self) -> bool:
        """Kill and reap the strays among the children of this process. Returns whether there were any."""
        session, subreapers = os.getsid(0), {child._subreaper for child in self._children if not child._gone.is_set()}

        def is_stray(pid: int) -> bool:
            try:
                return pid not in subreapers and pid not in _helpers and os.getsid(pid) != session
            except OSError:
                return False

        strays = [pid for pid in helper.children_of(os.getpid()) if is_stray(pid)]
        if strays:
            helper.kill_below(os.getpid(), only=is_stray)
        for pid in strays:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return bool(strays)

    async def _close(self) -> None:
        self._closed = True
        left = set(self._children)
        for child in left:
            child._send_command(helper.KILL)
        with trio.move_on_after(KILL_TIMEOUT):
            for child in left:
                await child._gone.wait()
        for child in left:
            await child._close()
        await self._helper.aclose()
        if helper.is_subreaper():
            self._sweep()


@asynccontextmanager
async def open_keeper() -> AsyncIterator[Keeper]:
    """Start the keeper process for the block; at the end, kill all programs that still run, and end the keeper.

    Leaving is shielded, because the programs must be killed also when the host is cancelled. It takes at most
    KILL_TIMEOUT and SUBREAPER_LIMIT seconds; normally every `open_child` was left before. An exception of the block is
    raised in an exception group, as from any nursery.

    Raises:
        OSError: the keeper could not be started.
    """
    async with trio.open_nursery() as nursery:
        made = Keeper(nursery)
        try:
            yield made
        finally:
            with trio.CancelScope(shield=True):
                await made._close()
            nursery.cancel_scope.cancel()
