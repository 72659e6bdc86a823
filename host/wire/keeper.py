"""The keeper: a helper process of the host below which every server process runs, so that none outlives the host.

Run as a file (`python -I -S keeper.py FD NAME SUBREAPER LINK`, with the process names of descent.py). Imports only the
standard library and has no secret of the host.

    host ── keeper ─┬─ subreaper ── program ── its descendants
                    └─ subreaper ── program ── …

*Keeper*: forks one subreaper for each byte that comes over its socket together with four descriptors (control, and the
program's 0, 1, 2), and reaps subreapers. It kills any other child, because that is an orphan of a killed subreaper. The
byte says which one: ORDINARY for a server, CONFINED for one with a sandbox, LINK for a server that is Colonnade itself
(see descent.py), LEAVING for a program that leaves something outside its tree, such as the container of a daemon.
*Subreaper*: reads one order from its control socket, starts that program, reaps its descendants, reports what happens,
and kills the rest when the program itself ends. It is a child subreaper (prctl), so neither `setsid` nor a double fork
escapes it. When it has no child left, it has no descendant left; it then reports that and ends.
Both end only at the end of their socket, which the kernel also closes for a host that was killed. A process that was
stopped (SIGSTOP, which every server may send) sees no end of anything, so the kernel resumes each when its parent ends.

On the control socket, to the subreaper: a length of four bytes (big endian) and an order in JSON with the members
`argv`, `env` and `cwd`, whose characters stand for bytes (latin-1), independently of the locale; `sandbox`, if the
program is confined, a plan (host/sandbox/plan.py); `container`, the `memory` and `processes` of one that it makes, if
nobody else limits all of these together; and `after`, the command that removes what it leaves. After it single bytes,
TERM or KILL. End of file means that the host is gone: TERM, KILL_GRACE seconds, KILL, then `after`, which has
AFTER_LIMIT seconds.
From the subreaper: lines of JSON, `{"subreaper": pid}`, then `{"pid": pid}` or `{"error": reason}`, `{"exit": status}`
(negative for a signal), `{"gone": true}`. A confined program is preceded by `{"sandbox": {"means": words}}`, with the
sockets that listen in its network, and the error of one that could not be confined by `{"sandbox": {"failed": step,
"why": words}}`, both of which come from the child itself (host/sandbox/confine.py). Its pid is that of a process that
ends as it does. One that is ended, since all its processes together have too much memory or are too many, by
`{"sandbox": {"over": "memory" or "processes"}}`.

Without /proc or prctl (not Linux) a tree is only the program's process group.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

if sys.platform == "linux":
    import ctypes

ORDINARY, CONFINED, LINK, LEAVING = b"s", b"c", b"l", b"a"
TERM, KILL = b"T", b"K"
KILL_GRACE = 0.7
"""Seconds between TERM and KILL when the host is gone, so that all processes end within two seconds after the host."""
SUBREAPER_LIMIT = 1.5
"""Seconds that the subreapers of a dead host have. One that still runs then was stopped or hangs, and is killed."""
AFTER_LIMIT = 5.0
"""Seconds that the command which removes what a program left has, and its subreaper beyond SUBREAPER_LIMIT."""

_NOT_CONFINED = "not confined"
_SHORT_PAUSE, _LONG_PAUSE = 0.01, 0.5
"""Seconds between two rounds of killing, at first and in the end: some processes cannot be killed for a while."""
_STOP_ROUNDS = 20
"""Rounds in which processes are stopped before all are killed; only what forks faster than it is found needs many."""
_RLIMIT_LOCKS = 10
"""A limit that no kernel since 2.4.25 applies."""
_MARK = 2**62
_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NAME, _SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 1, 4, 15, 36, 37


# Process trees


def become_subreaper() -> bool:
    """Make this process the new parent of all orphans below it; False if the platform has no subreapers."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def is_subreaper() -> bool:
    """Whether this process adopts the orphans below it."""
    if sys.platform != "linux":
        return False
    answer = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def _set_name(name: str) -> None:
    """Set the process name. No other process can change it, so `descent.py` recognises the descendants of keepers by
    it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, name.encode(), 0, 0, 0)


def _mark() -> None:
    """Lower a hard limit of this process, which has no other effect. All descendants inherit it, wherever they go, and
    only the superuser can raise it, so `descent.py` also recognises those that have killed the processes above."""
    if sys.platform == "linux":
        hard = resource.getrlimit(_RLIMIT_LOCKS)[1]
        lower = _MARK if hard == resource.RLIM_INFINITY else max(0, hard - 1)
        with contextlib.suppress(OSError, ValueError):  # a kernel without this limit
            resource.setrlimit(_RLIMIT_LOCKS, (lower, lower))


def _hide_memory() -> None:
    """Keep other processes of the same user from reading this one's memory or attaching to it: orders contain the
    secrets of servers."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def _resume_at_parents_end() -> None:
    """Have the kernel send SIGCONT to this process when the thread that started it ends. SIGKILL instead would leave
    what is below this process to init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """The direct children of a process, including dead ones that are not reaped; none if it is gone or there is no
    /proc."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError as error:
        # The kernel has no such list, or a thread ended.
        if error.errno == errno.ENOENT and os.path.isdir(f"/proc/{pid}"):
            return [child for child, parent in _parents() if parent == pid]
    return found


def _parents() -> Iterable[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    yield int(name), int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue


def tree_below(pid: int, only: Callable[[int], bool] | None = None) -> list[int]:
    """All descendants of a process, parents before children.

    Args:
        only: selects among the direct children; descendants of the others are left out.
    """
    found: list[int] = []
    waiting = [child for child in children_of(pid) if only is None or only(child)]
    while waiting:
        found += waiting
        waiting = [grandchild for child in waiting for grandchild in children_of(child)]
    return found


# Signals


def _send_signals(pid: int, *signals: signal.Signals) -> None:
    for number in signals:
        try:
            os.kill(pid, number)
        except OSError:  # it has ended, or has another user (a program may start a set-user-id program)
            return


def kill_below(pid: int, only: Callable[[int], bool] | None = None) -> None:
    """Send SIGKILL to all processes that `tree_below` returns for the same arguments.

    All of them are stopped first, until a round finds no new one: a stopped process forks no more and reaps no child,
    so a fork bomb cannot outrun the killing. Processes that still appear meanwhile are left for the next call.
    """
    stopped: dict[int, None] = {}
    for _ in range(_STOP_ROUNDS):
        new = [found for found in tree_below(pid, only) if found not in stopped]
        if not new:
            break
        for found in new:
            _send_signals(found, signal.SIGSTOP)
        stopped.update(dict.fromkeys(new))
    for found in stopped:
        _send_signals(found, signal.SIGKILL)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # the group is empty
        os.killpg(leader, number)


def _reap() -> tuple[dict[int, int], bool]:
    """Take the status of every child that has ended. Returns their statuses, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)


class _ChildSignals:
    """Wakes a poll when a signal comes, so that one poll can wait for descriptors and for children."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def wait(self, other: socket.socket | None, seconds: float | None) -> bool:
        """Wait for a signal, for input on `other`, or for the time to pass. Returns whether `other` has input."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        if other is not None:
            poll.register(other, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(None if seconds is None else max(0.0, seconds) * 1000)]
        if self._read in ready:
            os.read(self._read, 4096)
        return other is not None and other.fileno() in ready

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)


# The subreaper


class _Subreaper:
    def __init__(self, keeper: int, control: socket.socket, signals: _ChildSignals) -> None:
        self._keeper = keeper
        self._control = control
        self._host_is_gone = False
        self._signals = signals
        self._program = 0
        self._running = False
        self._kill_at: float | None = None
        self._pause = _SHORT_PAUSE
        self._confined: _Confined | _ContainerLimits | None = None
        self._look_at = 0.0

    def run(self, descriptors: list[int]) -> None:
        self._report({"subreaper": os.getpid()})
        order = self._read_order()
        if order is None:
            return
        reason = self._start(order, descriptors)
        for descriptor in descriptors:  # while they are open here, the other ends never see end of file
            os.close(descriptor)
        if reason is not None:
            if self._confined is not None:
                self._confined.close()
            self._report({"error": reason})
            return
        if self._confined is not None:
            self._look_at = time.monotonic() + self._confined.pause
        self._report({"pid": self._program})
        self._watch()
        if self._confined is not None:
            self._confined.close()
        if "after" in order:
            self._remove_left(order)
        self._report({"gone": True})
        if os.getppid() == self._keeper:  # which may have been stopped since the host ended: nobody else resumes it
            _send_signals(self._keeper, signal.SIGCONT)

    def _remove_left(self, order: dict[str, Any]) -> None:
        """If the host is gone, remove what the program left."""
        if self._signals.wait(self._control, 0.0):  # it may have ended at the same moment
            self._read_command()
        if self._host_is_gone:
            nothing = os.open(os.devnull, os.O_RDWR)
            self._kill_at = time.monotonic() + AFTER_LIMIT
            if self._start({"argv": order["after"], "env": order["env"], "cwd": order["cwd"]}, [nothing] * 3) is None:
                self._watch()

    def _read_order(self) -> dict[str, Any] | None:
        head = self._read(4)
        body = self._read(struct.unpack("!I", head)[0]) if head else b""
        return json.loads(body) if body else None

    def _read(self, size: int) -> bytes:
        """Read exactly so many bytes; empty if the host ends before."""
        data = b""
        while len(data) < size:
            piece = self._control.recv(size - len(data))
            if not piece:
                return b""
            data += piece
        return data

    def _start(self, order: dict[str, Any], descriptors: list[int]) -> str | None:
        argv, env, cwd = order["argv"], order["env"], order["cwd"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        assert isinstance(cwd, str)
        try:
            os.chdir(cwd.encode("latin-1"))
        except (OSError, ValueError):
            return "bad cwd"
        try:
            if "sandbox" not in order:
                self._confined = _ContainerLimits(order["container"]) if "container" in order else None
                return self._run(argv, env, descriptors)
            self._confined = confined = _Confined(order["sandbox"])
            problem: str | None = _NOT_CONFINED
            for way in confined.ways():
                with confined.wrapped(way, argv, env) as (words, variables, passed):
                    confine = confined.confine(way, self._control.fileno())
                    problem = self._run(words, variables, descriptors, confine, passed)
                if problem != _NOT_CONFINED:
                    break
            return problem
        finally:
            os.chdir("/")  # otherwise the subreaper would keep the directory busy

    def _run(
        self,
        argv: list[str],
        env: dict[str, str],
        descriptors: list[int],
        confine: Callable[[], None] | None = None,
        passed: Sequence[int] = (),
    ) -> str | None:
        try:
            program = subprocess.Popen(
                [word.encode("latin-1") for word in argv],
                env={name.encode("latin-1"): value.encode("latin-1") for name, value in env.items()},
                stdin=descriptors[0],
                stdout=descriptors[1],
                stderr=descriptors[2],
                start_new_session=True,
                preexec_fn=confine,
                pass_fds=passed,
            )
        except subprocess.SubprocessError:
            return _NOT_CONFINED
        except FileNotFoundError:
            return "no interpreter" if _exists(argv[0].encode("latin-1"), env) else "not found"
        except PermissionError:
            return "not executable"
        except OSError as error:
            return "not executable" if error.errno == errno.ENOEXEC else os.strerror(error.errno or 0)
        except ValueError as error:
            return str(error)
        self._program = program.pid
        self._running = True
        program.returncode = 0  # all children are reaped by `_reap`; this object must not wait for its own
        return None

    def _watch(self) -> None:
        while True:
            ended, any_left = _reap()
            if self._program in ended:
                self._running = False
                if self._confined is not None and self._confined.has_run_out_of_memory():
                    self._report({"sandbox": {"over": "memory"}})
                self._report({"exit": ended[self._program]})
                _signal_group(self._program, signal.SIGKILL)
                self._kill_at = 0.0
            if not any_left:
                return
            if self._signals.wait(None if self._host_is_gone else self._control, self._seconds_to_wait()):
                self._read_command()

    def _seconds_to_wait(self) -> float | None:
        """Do what is due. Returns the seconds until something else is; None for no limit."""
        watched = self._confined if self._confined is not None and self._confined.is_watched else None
        if self._kill_at is None and watched is not None and (left := self._look_when_due(watched)) is not None:
            return left
        return self._kill_when_due()

    def _look_when_due(self, watched: _Confined | _ContainerLimits) -> float | None:
        """Look at what all processes of a confined program use together; None if it is too much, and all must end."""
        if time.monotonic() >= self._look_at:
            if over := watched.find_excess():
                self._report({"sandbox": {"over": over}})
                self._kill_at = 0.0
                return None
            self._look_at = time.monotonic() + watched.pause
        return self._look_at - time.monotonic()

    def _kill_when_due(self) -> float | None:
        """Kill the tree if it is time to. Returns the seconds until the next look; None for no limit."""
        if self._kill_at is None:
            return None
        left = self._kill_at - time.monotonic()
        if left > 0:
            return left
        kill_below(os.getpid())
        if self._running:
            _signal_group(self._program, signal.SIGKILL)
        self._pause = min(self._pause * 1.5, _LONG_PAUSE)  # for processes that cannot be killed
        return self._pause

    def _read_command(self) -> None:
        try:
            command = self._control.recv(64)
        except OSError:
            command = b""
        self._host_is_gone = not command
        if not command or TERM in command:
            self._terminate()
        if KILL in command:
            self._kill_at = 0.0
        elif not command and self._kill_at is None:
            self._kill_at = time.monotonic() + KILL_GRACE

    def _terminate(self) -> None:
        tree = tree_below(os.getpid())
        if isinstance(self._confined, _Confined) and self._confined.is_wrapped:
            tree = [pid for pid in tree if pid != self._program]  # all would be killed with it at once
        for pid in tree:
            _send_signals(pid, signal.SIGTERM, signal.SIGCONT)  # a stopped process does not handle SIGTERM alone
        if not tree:
            _signal_group(self._program, signal.SIGTERM)

    def _report(self, report: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the host is gone, which the next read shows
            self._control.sendall(json.dumps(report).encode() + b"\n")


class _Confined:
    """The confinement of the program of this subreaper, and the limits of all its processes together.

    Attributes:
        is_watched: whether this process looks at them; if not, a control group limits them.
        is_wrapped: whether the program runs in bubblewrap.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        _add_sources()
        from host.sandbox.control_group import make_group
        from host.sandbox.watch import OUR_PROCESSES, Watch

        self._plan = plan
        self._group = make_group(plan)
        self._watch = Watch(plan["memory"], plan["processes"] + OUR_PROCESSES)
        self.is_watched = self._group is None
        self.is_wrapped = False

    @property
    def pause(self) -> float:
        """Seconds until the next look."""
        return self._watch.pause

    def ways(self) -> Iterator[str]:
        """The ways that are tried, those that hold more first, each after the one before was refused."""
        from host.sandbox.confine import BUBBLEWRAP, LANDLOCK, NAMESPACES

        yield NAMESPACES
        from host.sandbox.bubblewrap import has_bubblewrap  # most systems need nothing of it

        if has_bubblewrap(self._plan):
            yield BUBBLEWRAP
        if self._plan["accept"] == LANDLOCK:
            yield LANDLOCK

    @contextlib.contextmanager
    def wrapped(
        self, way: str, argv: list[str], env: dict[str, str]
    ) -> Iterator[tuple[list[str], dict[str, str], list[int]]]:
        """The command that runs the program in this way, its environment, and the descriptors that it needs, for the
        block."""
        from host.sandbox.confine import BUBBLEWRAP

        self.is_wrapped = way == BUBBLEWRAP
        if not self.is_wrapped:
            yield argv, env, []
            return
        from host.sandbox.bubblewrap import wrapped

        words, variables, passed = wrapped(self._plan, argv, env)
        try:
            yield words, variables, passed
        finally:
            for descriptor in passed:
                os.close(descriptor)

    def confine(self, way: str, report: int) -> Callable[[], None]:
        """The function that confines the child."""
        from host.sandbox.confine import confine

        return lambda: confine(self._plan, report, way, self._group)

    def find_excess(self) -> str:
        """The limit that they exceed, `memory` or `processes`; empty if none."""
        return self._watch.find_excess(tree_below(os.getpid()))

    def has_run_out_of_memory(self) -> bool:
        """Whether the kernel ended a process of its control group for that."""
        return self._group is not None and self._group.has_run_out_of_memory()

    def close(self) -> None:
        """Remove the control group, which must be empty."""
        if self._group is not None:
            self._group.remove()


class _ContainerLimits:
    """The limits of a container whose client program applies none to all its processes together."""

    is_watched = True

    def __init__(self, limits: dict[str, Any]) -> None:
        _add_sources()
        from host.sandbox.watch import Watch

        self._watch = Watch(limits["memory"], limits["processes"])
        self._own = os.stat("/proc/self/ns/pid").st_ino

    @property
    def pause(self) -> float:
        return self._watch.pause

    def find_excess(self) -> str:
        """The limit that they exceed, `memory` or `processes`; empty if none."""
        return self._watch.find_excess(filter(self._is_inside, tree_below(os.getpid())))

    def _is_inside(self, pid: int) -> bool:
        """Whether a process is in the container, and none of the client program."""
        try:
            return os.stat(f"/proc/{pid}/ns/pid").st_ino != self._own
        except OSError:
            return True  # it hides its memory, as none of the client program does, or it has ended

    def has_run_out_of_memory(self) -> bool:
        """It is in no control group."""
        return False

    def close(self) -> None:
        """Nothing is left."""


def _add_sources() -> None:
    folder = os.path.dirname(__file__).removesuffix("/host/wire")
    if folder not in sys.path:
        sys.path.append(folder)


def _prepare_confinement() -> None:
    """Import what confines a child, and compile the usual filter of system calls, so that the subreapers that are
    forked then have both: that would be half of the cost of each start."""
    _add_sources()
    import host.sandbox.confine  # noqa: F401 - for those who import from it, and from what it imports
    from host.sandbox.seccomp import compile_filter

    compile_filter(alone=False, network=True)


def _exists(program: bytes, env: dict[str, str]) -> bool:
    """Whether there is a file of this name, as it is looked up with this environment."""
    path = env.get("PATH", os.defpath).encode("latin-1")
    folders = [b""] if b"/" in program else path.split(b":")
    return any(os.path.isfile(os.path.join(folder, program)) for folder in folders)


# The keeper


class _Keeper:
    def __init__(self, host: socket.socket, subreaper_name: str, link_name: str) -> None:
        self._host = host
        self._subreaper_name = subreaper_name
        self._link_name = link_name
        self._host_is_gone = False
        self._signals = _ChildSignals()
        self._subreapers: set[int] = set()
        self._leaving: set[int] = set()
        """Subreapers of programs that leave something, which is removed after the host has ended."""
        self._give_up_at = float("inf")

    def run(self) -> None:
        """Serve until the host is gone and no process is left."""
        pause, strays = _SHORT_PAUSE, False
        while True:
            ended, any_left = _reap()
            self._subreapers.difference_update(ended)
            self._leaving.difference_update(ended)
            if self._host_is_gone and not any_left:
                return
            if self._host_is_gone and time.monotonic() > self._give_up_at:
                # Subreapers that still run hang, and are killed as strays are.
                self._subreapers &= self._leaving if time.monotonic() < self._give_up_at + AFTER_LIMIT else set()
            strays = bool(ended or strays or self._host_is_gone) and self._kill_strays()
            pause = min(pause * 1.5, _LONG_PAUSE) if strays else _SHORT_PAUSE
            wait = pause if strays else 0.1 if self._host_is_gone else None  # a subreaper that hangs sends no signal
            if self._signals.wait(None if self._host_is_gone else self._host, wait):
                self._accept_order()

    def _kill_strays(self) -> bool:
        kill_below(os.getpid(), self._is_stray)
        return any(map(self._is_stray, children_of(os.getpid())))

    def _is_stray(self, child: int) -> bool:
        return child not in self._subreapers

    def _accept_order(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._host, 1, 4)  # one byte: the next has descriptors of its own
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._host_is_gone = True  # the socket stays open: its end shows the host that this process has ended
            self._give_up_at = time.monotonic() + SUBREAPER_LIMIT
            for subreaper in self._subreapers:
                _send_signals(subreaper, signal.SIGCONT)
        elif len(descriptors) == 4:
            if data == CONFINED:
                with contextlib.suppress(ImportError, OSError):  # the subreaper tries, too, and tells
                    _prepare_confinement()
            self._fork(descriptors, data)
        for descriptor in descriptors:
            os.close(descriptor)

    def _fork(self, descriptors: list[int], sort: bytes) -> None:
        keeper, is_link = os.getpid(), sort == LINK
        try:
            pid = os.fork()
        except OSError as error:  # the user's limit of processes
            os.write(descriptors[0], json.dumps({"error": os.strerror(error.errno or 0)}).encode() + b"\n")
            return
        if pid:
            self._subreapers.add(pid)
            if sort == LEAVING:
                self._leaving.add(pid)
            return
        try:
            os.setsid()
            _set_name(self._link_name if is_link else self._subreaper_name)
            if not is_link:
                _mark()
            become_subreaper()
            _resume_at_parents_end()
            self._host.close()
            self._signals.close()
            _Subreaper(keeper, socket.socket(fileno=descriptors[0]), _ChildSignals()).run(descriptors[1:])
        finally:
            os._exit(0)  # whatever happened: the keeper's own code must not go on in this copy of it


def _catch_signals() -> None:
    """Handle the signals that would end this process. They are not ignored, because programs would inherit that."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)


def main(descriptor: int, name: str, subreaper_name: str, link_name: str) -> None:
    """Run the keeper for the host at the other end of this descriptor, with these process names."""
    _set_name(name)
    _hide_memory()
    _catch_signals()
    become_subreaper()
    _resume_at_parents_end()
    gc.disable()
    gc.freeze()  # a collection would write to, and thereby copy, every page that is shared with the subreapers
    _Keeper(socket.socket(fileno=descriptor), subreaper_name, link_name).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
