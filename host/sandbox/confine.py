"""Confines a process that is about to become a server's program. Runs between fork and exec, in a child of the
subreaper (host/wire/keeper.py), which imports it for such servers alone.

    subreaper ── outer ── init (1 in its namespace of processes) ── program

*outer* stays outside, because only children of a process enter its new namespace of processes; it ends as the program
ends. *init* reaps what the program leaves, and all of that ends with init. Both are copies of the subreaper, and keep
no descriptor but the pipe between them. All means are in force before init forks the program, so init, which the
program might attach to, has no right that the program lacks.

With Landlock alone there is neither: the child itself becomes the program. With bubblewrap (bubblewrap.py) it becomes
that, which has an outer process and an init of its own.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from host.sandbox import landlock
from host.sandbox.control_group import ControlGroup
from host.sandbox.kernel import KernelRefused, call
from host.sandbox.namespaces import DEVICES, build_root, separate
from host.sandbox.network import open_listeners, raise_loopback
from host.sandbox.paths import is_below_any
from host.sandbox.privileges import be_ended_first, drop_all, leave_keys, limit, set_readable
from host.sandbox.seccomp import filter_calls, has_filters

NAMESPACES, BUBBLEWRAP, LANDLOCK = "namespaces", "bubblewrap", "landlock"
_SET_PDEATHSIG = 1
_MOST_DESCRIPTORS = 1 << 20
_OF_ITS_OWN = ("loopback", "named")
"""Networks with a loopback that leads nowhere else, or to sockets of the host alone."""


def confine(plan: dict[str, Any], report: int, way: str, group: ControlGroup | None = None) -> None:
    """Return in the process that is to be replaced by the program, or by bubblewrap with it, with all that the plan
    (host/sandbox/plan.py) says in force. The Unix socket `report` gets a line with a JSON object: the `means` in words,
    with the sockets that listen in a network of the program's own, or the step that `failed`, and `why`.

    Args:
        way: NAMESPACES, BUBBLEWRAP or LANDLOCK.
        group: the control group that limits it, if there is one.

    Raises:
        OSError: a step failed. Nothing may be started.
    """
    listeners: list[socket.socket] = []
    try:
        means = _apply(plan, way, group, listeners)
        _tell(report, {"means": means}, listeners)
    except OSError as problem:
        step = problem.step if isinstance(problem, KernelRefused) else "preparation"
        _tell(report, {"failed": step, "why": problem.strerror or ""})
        raise
    for each in listeners:
        each.close()


def _tell(report: int, what: dict[str, str], listeners: Sequence[socket.socket] = ()) -> None:
    line = json.dumps({"sandbox": what}).encode() + b"\n"
    with socket.socket(fileno=os.dup(report)) as to_host:
        socket.send_fds(to_host, [line], [each.fileno() for each in listeners])


def _apply(plan: dict[str, Any], way: str, group: ControlGroup | None, listeners: list[socket.socket]) -> str:
    if sys.platform != "linux":
        raise KernelRefused("Linux", errno.ENOSYS)
    if plan["cpu"] is not None and group is None:
        raise KernelRefused("a share of the processors", errno.EOPNOTSUPP)
    be_ended_first()
    if group is not None:
        group.enter()
    set_readable(readable=True)  # or else it could not write its own maps of users
    if way == LANDLOCK:
        used = _apply_landlock_alone(plan)
    elif way == BUBBLEWRAP:
        limit(plan["memory"], None, plan["open_files"])
        leave_keys()
        used = {way: True, "Landlock": False, "seccomp": has_filters()}
    else:
        ends = _enter_namespaces(plan)
        if plan["network"] in _OF_ITS_OWN:
            raise_loopback()
            listeners += open_listeners(plan["listeners"])
        used = _apply_within(plan)
        if program := os.fork():
            _be_init(program, ends)
    return _in_words({**used, "a control group": group is not None})


def _in_words(used: dict[str, bool]) -> str:
    had, lacking = (", ".join(name for name, is_used in used.items() if is_used is wanted) for wanted in (True, False))
    return f"{had}; not by {lacking}" if lacking else had


def _apply_within(plan: dict[str, Any]) -> dict[str, bool]:
    """Put in force all that holds the program beside namespaces. Returns the means, and whether they are in force."""
    limit(plan["memory"], plan["processes"], plan["open_files"])
    leave_keys()
    drop_all()
    if known := landlock.version():
        landlock.restrict(
            [*plan["read"], *plan["packages"], "/etc"],
            [*plan["write"], *plan["own"], "/tmp", "/dev", "/proc"],
            network=plan["network"] != "none",
        )
    os.chdir(plan["cwd"])
    set_readable(readable=False)
    has_filter = filter_calls(alone=False, network=True)
    return {"namespaces": True, f"Landlock {known or ''}".rstrip(): bool(known), "seccomp": has_filter}


def _apply_landlock_alone(plan: dict[str, Any]) -> dict[str, bool]:
    known = landlock.version()
    if known < landlock.OUTSIDE:
        raise KernelRefused(f"Landlock {landlock.OUTSIDE}", errno.ENOSYS)
    if plan["network"] in _OF_ITS_OWN:
        raise KernelRefused("a network of its own", errno.EPERM)
    hidden, named = plan["hidden"], (*plan["read"], *plan["write"])
    if is_below_any(hidden, named) or any(is_below_any(path, [hidden]) for path in named):
        raise KernelRefused("a hidden state directory", errno.EPERM)
    limit(plan["memory"], None, plan["open_files"])
    leave_keys()
    drop_all()
    devices = [f"/dev/{name}" for name in DEVICES]
    landlock.restrict(
        [*plan["read"], *plan["packages"], *plan["files"], *devices, "/proc"],
        [*plan["write"], *plan["own"], "/dev/null"],
        network=plan["network"] == "all",
    )
    os.chdir(plan["cwd"])
    has_filter = filter_calls(alone=True, network=plan["network"] == "all")
    return {f"Landlock {known}": True, "seccomp": has_filter, "namespaces": False}


def _enter_namespaces(plan: dict[str, Any]) -> int:
    """Return in init, with the descriptor that tells outer how the program ended. Outer never returns."""
    separate(network=plan["network"] == "all")
    ended, ends = os.pipe()
    if init := os.fork():
        _be_outer(init, ended)
    os.close(ended)
    call("an end with its parent", "prctl", _SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    build_root(plan)
    return ends


def _be_outer(init: int, ended: int) -> NoReturn:
    """Wait for init, and end as the program did."""
    try:
        _close_all_but(ended)
        set_readable(readable=False)
        told = os.read(ended, 16)
        status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
        status = int(told) if told else status
        if status < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if -status != signal.SIGKILL:
                signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)
    finally:
        os._exit(1)


def _be_init(program: int, ends: int) -> NoReturn:
    """Reap until the program has ended, and tell outer how. What is left ends with this process."""
    try:
        _close_all_but(ends)
        pid, status = os.wait()
        while pid != program:
            pid, status = os.wait()
        os.write(ends, str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _close_all_but(descriptor: int) -> None:
    """Close what came from the subreaper: while it is open here, nobody sees its end."""
    signal.set_wakeup_fd(-1)
    os.closerange(0, descriptor)
    os.closerange(descriptor + 1, _MOST_DESCRIPTORS)
