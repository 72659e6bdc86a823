"""The confinement of a server's program: what it is started with, and what a person can do if it cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from config import StdioServer
from host.sanitize import visible
from host.storage.directory import ConfigDirectory
from host.wire.link import LinkLost
from host.wire.process import NotConfined, child_environment

_OFF = "sandbox: off"
_LESS = "or accept less with sandbox: {accept: landlock}"
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
    # Of containers.
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
        remedy = _REMEDIES.get(problem.step, "correct its sandbox")
        remedy = remedy.replace("{runtime}", spec.runtime).replace("{image}", spec.sandbox.image)
        reason = problem.reason.replace("{runtime}", spec.runtime)
        why = "it cannot be confined as sandbox says"
        if spec.confined_by_trust:  # nobody wrote it
            why = "it is not trusted, and cannot be confined"
            remedy += "" if _OFF in remedy else f", or write {_OFF} to have it started as your user"
        super().__init__(f'the program "{spec.program}" was not started, because {why} ({reason}): {remedy}')
        self.lasting = problem.step not in _MENDS_ITSELF


def confine(
    spec: StdioServer, own: Mapping[str, str], directory: ConfigDirectory
) -> tuple[dict[str, str], dict[str, Any]]:
    """The environment and the plan of a program that is confined. `own`: the variables that it is to have.

    Raises:
        NotConfined: something that its sandbox names is not there.
    """
    from host.sandbox.paths import in_quotes
    from host.sandbox.plan import MissingFile, confined_environment, make_plan

    assert spec.sandbox is not None
    folder = directory.sandbox_of(spec.id)
    env = confined_environment(spec.sandbox, child_environment({}), own, folder)
    try:
        return env, make_plan(spec, env, folder, directory.state)
    except MissingFile as problem:
        raise NotConfined(f"the path {in_quotes(visible(problem.path))} of its sandbox", "it is not there") from problem
    except OSError as problem:
        raise NotConfined("folders of its own", problem.strerror or "") from problem
