"""The command that runs a server's program in a container, and what must be known of the client program for it.

Pure: the client programs themselves are asked by host/upstream/contained.py.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from config import StdioServer
from config.sandbox import Network, Sandbox
from config.types import MOST_PROCESSES
from host.sandbox.paths import is_below_any

_PROXIES = tuple(
    name for each in ("ALL", "FTP", "HTTP", "HTTPS", "NO") for name in (f"{each}_PROXY", f"{each.lower()}_proxy")
)
_FILTERS_OF_DOCKER = ("builtin", "default")
"""The names of the one that comes with it. Without capabilities it refuses namespaces."""
_NAMESPACES = 0x7E020000
_ALLOW, _REFUSE, _ENOSYS = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", 38
_MAKE_NAMESPACES = frozenset({"clone", "clone3", "setns", "unshare"})
_LOCALE = ("LANG", "TZ")


class NotToBeHad(Exception):
    """The client program does not give what a sandbox asks for. `step`: what is refused; `why`: the reason."""

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"{step}: {why}")
        self.step, self.why = step, why


class RuntimeFacts(Struct, frozen=True):
    """The facts that a client program tells of itself.

    Attributes:
        version: its name and version.
        is_podman: whether it is podman, by whatever name it was started.
        rootless: whether its containers run below a user that is not root.
        memory, processes, cpu: whether it limits these by control groups.
        filter: the path of its filter of system calls, if that lets containers make namespaces of their own.
    """

    version: str
    is_podman: bool
    rootless: bool
    memory: bool
    processes: bool
    cpu: bool
    filter: str = ""

    @property
    def counts_by_rlimit(self) -> bool:
        """Whether a container has a namespace of users of its own, in which RLIMIT_NPROC counts its processes alone."""
        return self.is_podman and self.rootless

    def describe(self) -> str:
        """One line for people: what holds the program."""
        limits = "limits by control groups" if self.memory and self.processes else "limits by RLIMIT and a watch"
        return f"a container of {self.version}{', rootless' if self.rootless else ''}, {limits}"


def read_facts(info: Mapping[str, Any], sandbox: Sandbox) -> RuntimeFacts:
    """The facts in the answer to `info` in JSON. It is of podman, or of docker; podman also goes by docker's name.

    Raises:
        NotToBeHad: containers are not held there as the sandbox promises.
    """
    assert sandbox.with_ is not None
    runtime = sandbox.with_.value
    facts, has_filter = _of_podman(info["host"], info) if "host" in info else _of_docker(info)
    if not has_filter:
        raise NotToBeHad("a filter of system calls", f"{runtime} has none, or one of your own")
    for limited, what in ((facts.memory, "memory"), (facts.processes, "processes")):
        if not limited and not facts.counts_by_rlimit:
            raise NotToBeHad(f"a limit of {what}", f"{runtime} has no control group for it")
    if sandbox.cpu is not None and not facts.cpu:
        raise NotToBeHad("a share of the processors", f"{runtime} has no control group for it")
    return facts


def _of_podman(host: Mapping[str, Any], info: Mapping[str, Any]) -> tuple[RuntimeFacts, bool]:
    if host.get("serviceIsRemote"):
        raise NotToBeHad("a container on this machine", "podman makes them on another one")
    security, found = host["security"], host.get("cgroupControllers") or []
    rootless = bool(security["rootless"])
    # Rootless on version 1 it takes limits, warns, and applies none.
    controllers = [] if rootless and host.get("cgroupVersion") != "v2" else found
    version = f"podman {info['version']['Version']}"
    memory, processes, cpu = (each in controllers for each in ("memory", "pids", "cpu"))
    path = str(security.get("seccompProfilePath") or "")
    has_filter = bool(security["seccompEnabled"] and path)
    return RuntimeFacts(version, True, rootless, memory, processes, cpu, path), has_filter


def _of_docker(info: Mapping[str, Any]) -> tuple[RuntimeFacts, bool]:
    if errors := info.get("ServerErrors"):
        raise NotToBeHad("its daemon", str(errors[0]))
    if not info.get("ServerVersion"):  # docker 28 prints all members, empty
        raise NotToBeHad("its daemon", "it cannot be reached")
    if info.get("OSType") != "linux":
        raise NotToBeHad("Linux", "its containers are of another system")
    options = [dict(pair.partition("=")[::2] for pair in each.split(",")) for each in info.get("SecurityOptions") or ()]
    names = {each.get("name"): each for each in options}
    if "userns" in names:
        raise NotToBeHad("the user's own files", "the daemon gives containers other users (userns-remap)")
    version = f"docker {info.get('ServerVersion', '')}"
    memory, processes, cpu = (bool(info.get(each)) for each in ("MemoryLimit", "PidsLimit", "CpuCfsQuota"))
    facts = RuntimeFacts(version, False, "rootless" in names, memory, processes, cpu)
    return facts, names.get("seccomp", {}).get("profile") in _FILTERS_OF_DOCKER


class ContainerCommand(Struct, frozen=True):
    """A command, and the environment of the client program, which has the values for the program in the container."""

    argv: tuple[str, ...]
    env: dict[str, str]


def container_command(
    spec: StdioServer,
    facts: RuntimeFacts,
    *,
    name: str,
    user: str,
    mounts: Mapping[str, tuple[str, bool]],
    empty: Sequence[str],
    usual: Mapping[str, str],
    values: Mapping[str, str],
    client: Mapping[str, str],
    filter_file: str = "",
) -> ContainerCommand:
    """The command that runs the program of a server in a container.

    Args:
        user: the user and group of this process, as `1000:1000`.
        mounts, empty: what host/sandbox/plan.py says of its files.
        usual: variables of the host, of which it gets those that its sandbox names.
        values: variables that may be seen in the list of processes, such as its home.
        client: the environment of the client program.
        filter_file: the path of the filter that `without_namespaces` made of that of the client program.
    """
    sandbox = spec.sandbox
    assert sandbox is not None
    own = {each: value.reveal() for each, value in spec.env.items()}
    passed = {
        each: text for each, text in usual.items() if each in (*_LOCALE, *sandbox.environment) or each.startswith("LC_")
    }
    passed = {**passed, **own}
    options = [
        *_holding(sandbox, facts, name, user),
        *([f"--security-opt=seccomp={filter_file}"] if filter_file else []),
        *(_mount(place, real, writable, facts) for place, (real, writable) in sorted(mounts.items())),
        *(f"--mount={_fields('type=tmpfs', f'target={place}', 'tmpfs-size=65536')}" for place in empty),
        *(f"--env={each}={text}" for each, text in values.items() if each not in own),
        *(f"--env={each}" for each in passed),
        # The client of docker gives containers the proxies of its own settings, with the passwords in them.
        *(f"--env={each}=" for each in ([] if facts.is_podman else _PROXIES) if each not in passed),
    ]
    if is_below_any(str(spec.cwd), mounts):
        options.append(f"--workdir={spec.cwd}")
    program, *arguments = (word.reveal() for word in spec.command)
    argv = (spec.runtime, "run", *options, f"--entrypoint={program}", sandbox.image, *arguments)
    return ContainerCommand(argv, {**client, **passed})


def _holding(sandbox: Sandbox, facts: RuntimeFacts, name: str, user: str) -> list[str]:
    """The options about what the program is held by, and how it is run."""
    memory, processes = sandbox.memory, sandbox.processes + 1  # with the init
    found = [
        *("--rm", "--interactive", "--init", f"--name={name}", "--pull=never", "--log-driver=none"),
        *("--no-healthcheck", "--stop-timeout=0", "--read-only", "--cap-drop=all"),
        *("--security-opt=no-new-privileges", "--ipc=private", "--cgroupns=private"),
        *(f"--ulimit=data={memory}:{memory}", f"--ulimit=nofile={sandbox.open_files}:{sandbox.open_files}"),
        *("--ulimit=core=0:0", f"--shm-size={sandbox.temporary}"),
        f"--tmpfs=/tmp:rw,exec,nosuid,nodev,size={sandbox.temporary},mode=1777",
    ]
    if facts.is_podman:
        found += ["--read-only-tmpfs=false", "--http-proxy=false", "--pid=private", "--uts=private"]
    if facts.counts_by_rlimit:
        found += ["--userns=keep-id", f"--ulimit=nproc={processes}:{processes}"]
    elif facts.is_podman:
        # Without it, podman as root asks for four million, which it may not where the system gives root less.
        found.append(f"--ulimit=nproc={MOST_PROCESSES}:{MOST_PROCESSES}")
    if facts.memory:
        found += [f"--memory={memory}", f"--memory-swap={memory}"]
    if facts.processes:
        found.append(f"--pids-limit={processes}")
    if sandbox.cpu is not None:
        found.append(f"--cpus={sandbox.cpu:g}")
    # In a daemon without root, root is the user, and so owns the user's files.
    found.append(f"--user={'0:0' if facts.rootless and not facts.is_podman else user}")
    network = ("private" if facts.is_podman else "bridge") if sandbox.network is Network.ALL else "none"
    return [*found, f"--network={network}"]


def without_namespaces(profile: Mapping[str, Any], machine: str) -> dict[str, Any]:
    """A filter of system calls in the form of the client programs, which refuses namespaces besides. In one of its own
    a program would have capabilities there, and reach parts of the kernel that are made for root.

    Args:
        machine: the architecture, as `uname -m` says.
    """
    calls = [
        {**each, "names": [*filter(lambda name: name not in _MAKE_NAMESPACES, each["names"])]}
        for each in profile["syscalls"]
    ]
    flags = {"index": int(machine.startswith("s390")), "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    more = [
        {"names": ["clone"], "action": _ALLOW, "args": [flags]},
        # Its flags are in memory, which no filter sees. Libraries call clone instead.
        {"names": ["clone3"], "action": _REFUSE, "errnoRet": _ENOSYS},
    ]
    return {**profile, "syscalls": [*(each for each in calls if each["names"]), *more]}


def _mount(place: str, real: str, writable: bool, facts: RuntimeFacts) -> str:
    # Mounts below would be writable, so they are left out.
    more = () if writable else ("readonly", "bind-nonrecursive")
    return f"--mount={_fields('type=bind', f'source={real}', f'target={place}', *more)}"


def _fields(*fields: str) -> str:
    """Fields with commas between them, as both clients read them."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(fields)  # the end of a line is quoted, too, if it is one there
    return text.getvalue().removesuffix("\n")
