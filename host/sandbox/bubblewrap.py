"""Bubblewrap (bwrap), which makes the namespaces where a system permits them to it alone, by a profile of AppArmor or
as a set-user-id program. It is tried after our own, which hold more: it takes no rules of Landlock, and no limit of the
processes, which are counted instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from host.sandbox.namespaces import ENTRIES_OF_ALL
from host.sandbox.paths import folders_to_hold, is_below_any
from host.sandbox.seccomp import compile_filter

_FIXED = (
    *("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
    *("--disable-userns", "--die-with-parent", "--hostname", "sandbox", "--cap-drop", "ALL"),
)
"""Without a namespace of processes, or with one and without --die-with-parent, children would live on. --disable-userns
needs --unshare-user, and version 0.8."""
_FOLDERS = "/usr/bin:/bin:/usr/local/bin:/run/current-system/sw/bin"
_PROBE_LIMIT = 10.0
_OTHER_NETWORKS = ("none", "loopback")
"""Networks with a namespace of their own; bubblewrap turns its loopback on."""


def has_bubblewrap(plan: dict[str, Any]) -> bool:
    """Whether it is installed and confines by this plan: it starts a program that does nothing."""
    if shutil.which("bwrap", path=_FOLDERS) is None or plan["network"] not in (*_OTHER_NETWORKS, "all"):
        return False
    words, env, passed = wrapped(plan, ["true"], {"PATH": os.defpath})
    try:
        ended = subprocess.run(
            words,
            env=env,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        for each in passed:
            os.close(each)
    return ended.returncode == 0


def wrapped(
    plan: dict[str, Any], argv: Sequence[str], env: Mapping[str, str]
) -> tuple[list[str], dict[str, str], list[int]]:
    """The command that runs another one in bubblewrap by a plan (host/sandbox/plan.py), the environment of bubblewrap
    itself, and the descriptors that it needs, which are the caller's to close.

    Args:
        argv, env: the program's, whose characters stand for bytes (latin-1). Bubblewrap itself runs unconfined, so it
            gets none of these variables: some name files that are loaded, and the program might write those.
    """
    passed: list[int] = []
    words = [*_FIXED]
    if plan["network"] in _OTHER_NETWORKS:
        words.append("--unshare-net")
    words += [*_memory("/tmp", plan["temporary"]), *_files(plan)]
    seen = [*plan["read"], *plan["write"], *plan["own"], *plan["packages"]]
    for link, target in plan["links"].items():
        if not is_below_any(link, seen):
            words += ["--symlink", target, link]
    for path, text in plan["files"].items():
        if not is_below_any(path, seen):
            passed.append(_as_file(text.encode()))
            words += ["--perms", "0444", "--ro-bind-data", str(passed[-1]), path]
    words += ["--dir", plan["cwd"]]
    words += ["--dev", "/dev", *_memory("/dev/shm", plan["temporary"]), "--proc", "/proc"]
    if os.getuid() == 0:
        for name in ENTRIES_OF_ALL:
            words += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    words += ["--remount-ro", "/", "--chdir", plan["cwd"]]
    if made := compile_filter(alone=False, network=True):
        passed.append(_as_file(made))
        words += ["--seccomp", str(passed[-1])]
    own = (text.encode("latin-1") for name, value in env.items() for text in ("--setenv", name, value))
    options = b"".join(b"%b\0" % each for each in (*map(os.fsencode, words), b"--clearenv", *own))
    passed.append(_as_file(options))  # no other process may see them, as all do those of a command
    program = shutil.which("bwrap", path=_FOLDERS) or "bwrap"
    return [program, "--args", str(passed[-1]), "--", *argv], {"PATH": os.defpath}, passed


def _files(plan: dict[str, Any]) -> list[str]:
    """The files that the program sees, as `build_root` in namespaces.py gives them."""
    hidden, words = plan["hidden"], []
    modes = dict.fromkeys(plan["read"], "--ro-bind") | dict.fromkeys(plan["write"], "--bind")
    for path in sorted(modes):
        words += [modes[path], path, path]
    is_seen = is_below_any(hidden, modes)
    if is_seen:
        for path in folders_to_hold(hidden, plan["write"]):
            words += ["--bind", path, path]
        words += ["--perms", "0755", "--size", str(1024**2), "--tmpfs", hidden]
    for path in plan["own"]:
        words += ["--bind", path, path]
    for path in plan["packages"]:
        words += ["--ro-bind", path, path]
    return [*words, "--remount-ro", hidden] if is_seen else words


def _memory(place: str, size: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size), "--tmpfs", place]


def _as_file(data: bytes) -> int:
    """A descriptor that reads these bytes."""
    made = os.memfd_create("colonnade", 0)
    os.write(made, data)
    os.lseek(made, 0, os.SEEK_SET)
    return made
