"""The confinement of a server's program: what it is started with, and what a person can do if it cannot be had."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from config import StdioServer
from host.journal import Journal
from host.sanitize import visible
from host.storage.directory import ConfigDirectory
from host.wire.link import LinkLost
from host.wire.process import NotConfined, child_environment
from host.wire.turns import Turns
from host.worker import WorkerTimeout, run_in_worker

if TYPE_CHECKING:
    from host.sandbox.installed import ProgramStart
    from host.upstream.forwarder import Forwarder
    from host.upstream.refusals import SaidRefusals

_OFF = "sandbox: off"
_LESS = "or use a container (sandbox: with), or accept less with sandbox: {accept: landlock}"
_NO_NAMESPACES = (
    "this system refuses your programs namespaces of users. Have an administrator allow them: on Ubuntu to bubblewrap "
    "0.8 or newer alone, by a profile of AppArmor such as bwrap-userns-restrict, or to all programs by "
    "kernel.apparmor_restrict_unprivileged_userns=0; on older Debian by kernel.unprivileged_userns_clone=1, elsewhere "
    f"by user.max_user_namespaces, for a container by its options; {_LESS}"
)
_NO_GROUPS = (
    "boot with version 2 of control groups (systemd.unified_cgroup_hierarchy=1) and delegate them to your user, or "
    "write with: podman"
)
_REMEDIES = {
    "Linux": "a sandbox is for Linux alone: write sandbox: off, or run the program on another machine behind a url",
    "user namespaces": _NO_NAMESPACES,
    "mounts": _NO_NAMESPACES,
    "a /proc of its own": f"a container hides parts of /proc: run it with systempaths=unconfined, {_LESS}",
    "mount_setattr": "that needs Linux 5.12",
    "a share of the processors": (
        "that needs a control group of version 2, and your programs may make none here with cpu, memory and pids: run "
        "Colonnade below user@.service of systemd, with Delegate=cpu memory pids, or remove cpu"
    ),
    "Landlock 6": "that needs Linux 6.12, with Landlock among its security modules (lsm=)",
    "a network of its own": "Landlock alone has none, and knows no names: write network: none or all",
    "sockets in its network": "raise the limit of open files of this host",
    "a hidden state directory": "it cannot be hidden there: name folders beside it",
    # For containers:
    "{runtime}": "install it, or write another one, or sandbox: without with",
    "{runtime} info": "make it work for your user in a terminal",
    "its daemon": "start it, or have an administrator let your user reach its socket",
    "its image": "{runtime} pull {image}, or build it; Colonnade downloads none",
    "a container on this machine": "its files would not be there: let {runtime} make them here",
    "a filter of system calls": "turn seccomp on for {runtime}, or write sandbox: without with",
    "a limit of memory": _NO_GROUPS,
    "a limit of processes": _NO_GROUPS,
    "the user's own files": "turn that off, or write with: podman",
}
"""By the step that was refused: what a person can do."""
_MENDS_ITSELF = frozenset({"its daemon"})
"""Steps that may be had later, whatever people do: a daemon starts with the machine, as Colonnade does."""


class CannotConfine(LinkLost):
    """The program was not started, since not all that its sandbox says can be had."""

    def __init__(self, spec: StdioServer, problem: NotConfined) -> None:
        assert spec.sandbox is not None
        is_lacking = problem.reason.endswith(": it is not there")
        remedy = _REMEDIES.get(problem.step, "make it, or name its folder" if is_lacking else "correct its sandbox")
        remedy = remedy.replace("{runtime}", spec.runtime).replace("{image}", spec.sandbox.image)
        reason = problem.reason.replace("{runtime}", spec.runtime)
        why = "it cannot be confined as sandbox says"
        if spec.confined_by_trust:  # nobody wrote it
            why = "it is not trusted, and cannot be confined"
            remedy += "" if _OFF in remedy else f", or write {_OFF} to have it started as your user"
        super().__init__(f'the program "{spec.program}" was not started, because {why} ({reason}): {remedy}')
        self.lasting = problem.step not in _MENDS_ITSELF


class NotInstalled(LinkLost):
    """The program was not started, since its packages cannot be installed, or are not what was installed."""

    lasting = True


class Confined(Struct, frozen=True):
    """A confined program: its words, its environment and the plan that confines it."""

    argv: tuple[str, ...]
    env: dict[str, str]
    plan: dict[str, Any]


async def confine(spec: StdioServer, own: Mapping[str, str], directory: ConfigDirectory) -> Confined:
    """The program of a server as it is started. `own`: the variables that it is to have.

    Raises:
        NotConfined: something that its sandbox names is not there.
        NotInstalled: its packages are not installed, or were changed since.
    """
    from host.sandbox.installed import start_of
    from host.sandbox.packages import NotInstallable
    from host.sandbox.plan import confined_environment

    assert spec.sandbox is not None
    folder = directory.sandbox_of(spec.id)
    env = confined_environment(spec.sandbox, child_environment({}), own, folder)
    try:
        start: ProgramStart = start_of(spec, packages_of(spec, directory), env, os.environ)
    except NotInstallable as problem:
        raise NotInstalled(f"its command {problem}") from problem
    if start.missing is not None:
        raise NotInstalled("its packages are not installed yet")
    if start.record is not None:
        await _check(spec, start)
        env["PATH"] = os.pathsep.join(filter(None, (os.path.dirname(start.words[0]), env.get("PATH"))))
    return Confined(start.argv, env, plan_of(spec, env, folder, directory, start))


def packages_of(spec: StdioServer, directory: ConfigDirectory) -> Path:
    """The folder of what is installed for a confined server."""
    return directory.sandbox_of(spec.id) / "packages"


async def _check(spec: StdioServer, start: ProgramStart) -> None:
    """Compare what was installed with the record."""
    from host.sandbox.installed import digest_of

    assert start.record is not None
    try:
        seal = await run_in_worker(digest_of, Path(start.place), fall_back_to_thread=False)
    except OSError as problem:
        seal = problem.strerror or ""
    except WorkerTimeout:
        raise LinkLost("its packages could not be compared with what was installed in time") from None
    if seal != start.record.seal:
        raise NotInstalled(f"its packages are not what was installed: colonnade install {spec.id} installs them again")


def plan_of(
    spec: StdioServer,
    env: Mapping[str, str],
    folder: Path,
    directory: ConfigDirectory,
    start: ProgramStart,
    own_folders: Sequence[str] = (),
) -> dict[str, Any]:
    """`make_plan` for a configuration. Raises NotConfined."""
    from host.sandbox.paths import in_quotes
    from host.sandbox.plan import MissingFile, make_plan

    try:
        return make_plan(spec, env, folder, directory.state, start, own_folders)
    except MissingFile as problem:
        raise NotConfined(f"the path {in_quotes(visible(problem.path))} of its sandbox", "it is not there") from problem
    except OSError as problem:
        raise NotConfined("folders of its own", problem.strerror or "") from problem


def watch(
    spec: StdioServer,
    seen: Mapping[str, Any],
    listeners: Sequence[socket.socket],
    journal: Journal,
    turns: Turns,
) -> tuple[SaidRefusals, Forwarder | None]:
    """The refusals of a confined program, and the forwarder of its network; None if it reaches nothing by name.

    Args:
        seen: its plan, or `Contained.seen`.
        listeners: the sockets in its network.

    Raises:
        NotConfined: sockets in its network are lacking.
    """
    from host.upstream.forwarder import Forwarder
    from host.upstream.refusals import Refusals, SaidRefusals

    assert spec.sandbox is not None
    check_listeners(listeners, seen)
    refusals = Refusals(spec.id, journal)
    forwarder = Forwarder(listeners, spec.sandbox, refusals, turns) if listeners else None
    return SaidRefusals(refusals, spec.sandbox, seen), forwarder


def check_listeners(listeners: Sequence[socket.socket], plan: Mapping[str, Any]) -> None:
    """Raise NotConfined if sockets in the network of a program are lacking: the kernel drops those for which there is
    no room."""
    if len(listeners) < len(plan.get("listeners", ())):
        raise NotConfined("sockets in its network", os.strerror(errno.EMFILE))
