"""The commands of containers, by what is asked for and what the client program has."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from config import Secret, StdioServer
from config.container_run import container_run
from config.sandbox import ContainerClient, Network, Sandbox
from host.sandbox.container import (
    ContainerCommand,
    NotToBeHad,
    RuntimeFacts,
    _fields,
    container_command,
    read_facts,
    without_namespaces,
)

IMAGE = "ghcr.io/acme/scraper@sha256:" + "a" * 64
ROOTLESS = RuntimeFacts("podman 4.3.1", is_podman=True, rootless=True, memory=False, processes=False, cpu=False)
DAEMON = RuntimeFacts("docker 28.2.2", is_podman=False, rootless=False, memory=True, processes=True, cpu=True)
PODMAN_ASKED = Sandbox(with_=ContainerClient.PODMAN, image=IMAGE)
DOCKER_ASKED = Sandbox(with_=ContainerClient.DOCKER, image=IMAGE)
PODMAN: dict[str, Any] = {
    "host": {
        "cgroupVersion": "v2",
        "cgroupControllers": ["cpu", "memory", "pids"],
        "security": {"rootless": True, "seccompEnabled": True, "seccompProfilePath": "/f.json"},
    },
    "version": {"Version": "5.4.0"},
}
DOCKER: dict[str, Any] = {
    "ServerVersion": "28.2.2",
    "OSType": "linux",
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns"],
}


def made(facts: RuntimeFacts, sandbox: Sandbox, *, cwd: str = "/cfg", **more: Any) -> ContainerCommand:
    env = {name: Secret(value) for name, value in more.pop("env", {}).items()}
    words = tuple(map(Secret, ("/bin/scraper", "--fast", "-v")))
    spec = StdioServer(id="a", command=words, cwd=Path(cwd), env=MappingProxyType(env), sandbox=sandbox)
    given = {
        "name": "colonnade-a-1",
        "user": "1000:1001",
        "mounts": {},
        "empty": [],
        "usual": {},
        "values": {},
        "client": {"PATH": "/bin"},
    }
    return container_command(spec, facts, **{**given, **more})


def of(facts: RuntimeFacts, **keys: Any) -> list[str]:
    runtime = ContainerClient.PODMAN if facts.is_podman else ContainerClient.DOCKER
    return list(made(facts, Sandbox(with_=runtime, image=IMAGE, **keys)).argv)


def test_a_command_of_rootless_podman_without_control_groups() -> None:
    assert of(ROOTLESS) == [
        *("podman", "run", "--rm", "--interactive", "--init", "--name=colonnade-a-1", "--pull=never"),
        *("--log-driver=none", "--no-healthcheck", "--stop-timeout=0", "--read-only", "--cap-drop=all"),
        *("--security-opt=no-new-privileges", "--ipc=private", "--cgroupns=private"),
        *("--ulimit=data=1073741824:1073741824", "--ulimit=nofile=256:256", "--ulimit=core=0:0", "--shm-size=67108864"),
        *("--tmpfs=/tmp:rw,exec,nosuid,nodev,size=67108864,mode=1777", "--read-only-tmpfs=false", "--http-proxy=false"),
        *("--pid=private", "--uts=private", "--userns=keep-id", "--ulimit=nproc=65:65", "--user=1000:1001"),
        *("--network=none", "--entrypoint=/bin/scraper", IMAGE, "--fast", "-v"),
    ]


def test_a_command_of_docker() -> None:
    argv = of(DAEMON, processes=9, network=Network.ALL)
    assert argv[0] == "docker"
    assert {"--memory=1073741824", "--memory-swap=1073741824", "--pids-limit=10", "--network=bridge"} <= {*argv}
    assert "--user=1000:1001" in argv
    assert not any("nproc" in word or "userns" in word or "http-proxy" in word for word in argv)


def test_podman_as_root_does_not_ask_for_its_own_limit_of_processes() -> None:
    argv = of(structs.replace(ROOTLESS, rootless=False, memory=True, processes=True))
    assert "--ulimit=nproc=10000:10000" in argv
    assert "--pids-limit=65" in argv
    assert not any("userns" in word for word in argv)


def test_root_of_a_rootless_daemon_is_the_user() -> None:
    assert "--user=0:0" in of(structs.replace(DAEMON, rootless=True))


@pytest.mark.parametrize(
    ("network", "podman", "docker"),
    [(Network.NONE, "none", "none"), (Network.LOOPBACK, "none", "none"), (Network.ALL, "private", "bridge")],
)
def test_networks(network: Network, podman: str, docker: str) -> None:
    """Both have a loopback of the container's own with `none`."""
    assert f"--network={podman}" in of(ROOTLESS, network=network)
    assert f"--network={docker}" in of(DAEMON, network=network)


def test_a_share_of_the_processors() -> None:
    assert "--cpus=1.5" in of(DAEMON, cpu=1.5)
    asked = replace(PODMAN_ASKED, cpu=1.5)
    assert read_facts(PODMAN, asked).cpu
    host = {**PODMAN["host"], "cgroupControllers": ["memory", "pids"]}
    with pytest.raises(NotToBeHad, match="a share of the processors: podman has no control group for it"):
        read_facts({**PODMAN, "host": host}, asked)


def test_a_filter_without_namespaces() -> None:
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": ["clone", "clone3", "read", "unshare"], "action": "SCMP_ACT_ALLOW", "args": []},
            {"names": ["setns"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        ],
    }
    made_of = without_namespaces(profile, "x86_64")
    read, clone, clone3 = made_of["syscalls"]
    assert (made_of["defaultAction"], read["names"]) == ("SCMP_ACT_ERRNO", ["read"])
    assert (clone["names"], clone["args"][0]["index"], clone3["action"]) == (["clone"], 0, "SCMP_ACT_ERRNO")
    kinds = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
    assert clone["args"][0]["value"] == sum(kinds), "mounts, control groups, UTS, IPC, users, processes, network"
    assert without_namespaces(profile, "s390x")["syscalls"][1]["args"][0]["index"] == 1
    argv = made(ROOTLESS, PODMAN_ASKED, filter_file="/state/f.json").argv
    assert "--security-opt=seccomp=/state/f.json" in argv


def test_no_value_of_a_variable_is_in_the_command() -> None:
    sandbox = Sandbox(with_=ContainerClient.DOCKER, image=IMAGE, environment=("HTTPS_PROXY",))
    usual = {"HTTPS_PROXY": "http://user:word@proxy", "LANG": "C", "LC_ALL": "C", "PATH": "/secret", "USER": "ann"}
    got = made(DAEMON, sandbox, env={"TOKEN": "sesame"}, usual=usual, values={"HOME": "/h"})
    assert {"--env=TOKEN", "--env=HTTPS_PROXY", "--env=LANG", "--env=LC_ALL", "--env=HOME=/h"} <= {*got.argv}
    assert not any(text in word for word in got.argv for text in ("sesame", "user:word", "/secret", "ann"))
    assert got.env == {
        "PATH": "/bin",
        "TOKEN": "sesame",
        "HTTPS_PROXY": "http://user:word@proxy",
        "LANG": "C",
        "LC_ALL": "C",
    }


def test_no_proxy_of_the_settings_of_docker_comes_in() -> None:
    argv = of(DAEMON)
    assert {"--env=HTTPS_PROXY=", "--env=https_proxy=", "--env=NO_PROXY=", "--env=all_proxy="} <= {*argv}
    assert not any("PROXY" in word for word in of(ROOTLESS))


def test_files() -> None:
    mounts = {"/srv/a,b": ("/real/a,b", False), "/home/x": ("/state/home", True)}
    sandbox = Sandbox(with_=ContainerClient.PODMAN, image=IMAGE)
    argv = made(ROOTLESS, sandbox, mounts=mounts, empty=["/srv/a,b/state"], cwd="/home/x/sub").argv
    assert '--mount=type=bind,"source=/real/a,b","target=/srv/a,b",readonly,bind-nonrecursive' in argv
    assert "--mount=type=bind,source=/state/home,target=/home/x" in argv
    assert '--mount=type=tmpfs,"target=/srv/a,b/state",tmpfs-size=65536' in argv
    assert "--workdir=/home/x/sub" in argv
    assert not any(word.startswith("--workdir") for word in made(ROOTLESS, sandbox, mounts=mounts).argv)


@given(st.lists(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_fields_are_read_back(fields: list[str]) -> None:
    assert [each for row in csv.reader(io.StringIO(_fields(*fields), newline="")) for each in row] == fields


@pytest.mark.parametrize("facts", [ROOTLESS, DAEMON])
def test_it_is_known_as_a_container_that_is_to_be_removed(facts: RuntimeFacts) -> None:
    run = container_run(of(facts))
    assert run is not None
    assert (run.detach, run.interactive, run.client) == (False, True, (of(facts)[0],))


# The facts of the client program


def test_what_podman_says() -> None:
    facts = read_facts(PODMAN, PODMAN_ASKED)
    assert facts == RuntimeFacts(
        "podman 5.4.0", is_podman=True, rootless=True, memory=True, processes=True, cpu=True, filter="/f.json"
    )
    assert facts.describe() == "a container of podman 5.4.0, rootless, limits by control groups"
    assert read_facts(PODMAN, DOCKER_ASKED) == facts, "some systems install podman by the name of docker"


def test_podman_ignores_limits_on_version_1_without_root() -> None:
    """It lists no controllers, or those of the system, and starts with a warning."""
    host = {**PODMAN["host"], "cgroupVersion": "v1"}
    facts = read_facts({**PODMAN, "host": host}, PODMAN_ASKED)
    assert (facts.memory, facts.processes, facts.counts_by_rlimit) == (False, False, True)
    assert facts.describe() == "a container of podman 5.4.0, rootless, limits by RLIMIT and a watch"
    rooted = {**host, "security": {"rootless": False, "seccompEnabled": True, "seccompProfilePath": "/f.json"}}
    assert read_facts({**PODMAN, "host": rooted}, PODMAN_ASKED).memory


def test_what_docker_says() -> None:
    assert read_facts(DOCKER, DOCKER_ASKED) == DAEMON


@pytest.mark.parametrize(
    ("info", "step"),
    [
        ({**DOCKER, "MemoryLimit": False}, "a limit of memory"),
        (
            {**DOCKER, "PidsLimit": False, "SecurityOptions": [*DOCKER["SecurityOptions"], "name=rootless"]},
            "a limit of processes",
        ),
        ({**DOCKER, "SecurityOptions": ["name=apparmor"]}, "a filter of system calls"),
        ({**DOCKER, "SecurityOptions": ["name=seccomp,profile=unconfined"]}, "a filter of system calls"),
        ({**DOCKER, "SecurityOptions": ["name=seccomp,profile=/etc/docker/own.json"]}, "a filter of system calls"),
        ({**DOCKER, "SecurityOptions": None}, "a filter of system calls"),
        ({**DOCKER, "SecurityOptions": [*DOCKER["SecurityOptions"], "name=userns"]}, "the user's own files"),
        ({**DOCKER, "OSType": "windows"}, "Linux"),
        ({"ServerErrors": ["Cannot connect to the Docker daemon"]}, "its daemon"),
        ({**DOCKER, "ServerVersion": "", "OSType": "", "SecurityOptions": None}, "its daemon"),
        ({**PODMAN, "host": {**PODMAN["host"], "serviceIsRemote": True}}, "a container on this machine"),
        (
            {**PODMAN, "host": {**PODMAN["host"], "security": {"rootless": True, "seccompEnabled": False}}},
            "a filter of system calls",
        ),
        (
            {
                **PODMAN,
                "host": {
                    "cgroupVersion": "v1",
                    "cgroupControllers": ["pids"],
                    "security": {"rootless": False, "seccompEnabled": True, "seccompProfilePath": "/f.json"},
                },
            },
            "a limit of memory",
        ),
    ],
)
def test_what_is_not_to_be_had(info: dict[str, Any], step: str) -> None:
    with pytest.raises(NotToBeHad) as caught:
        read_facts(info, DOCKER_ASKED)
    assert caught.value.step == step
