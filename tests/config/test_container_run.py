"""Which commands run a container, where an option is added, and what their own options say."""

from __future__ import annotations

import pytest

from config.container_run import client_program, container_run


@pytest.mark.parametrize(
    ("command", "client"),
    [
        ("docker run -i --rm x", "docker"),
        ("/usr/local/bin/docker run x", "/usr/local/bin/docker"),
        ("podman container run -i x", "podman"),
        ("docker --context far run x", "docker --context far"),
        ("docker --context=far -c=far -Htcp://a:1 -D --tls run x", "docker --context=far -c=far -Htcp://a:1 -D --tls"),
        ("podman -r --url unix:///s --runtime runc run x", "podman -r --url unix:///s --runtime runc"),
        ("sudo -n docker run x", "sudo -n docker"),
        ("env A=b C= nice docker run x", "env A=b C= nice docker"),
    ],
)
def test_commands_that_run_a_container(command: str, client: str) -> None:
    found = container_run(command.split())
    assert found is not None
    assert found.client == tuple(client.split())
    assert [*found.words, *found.rest] == command.split()
    at = len(found.words)
    assert found.with_cidfile("F") == [*command.split()[:at], "--cidfile", "F", *command.split()[at:]]
    assert found.words[-1] == "run"


@pytest.mark.parametrize(
    "command",
    [
        *("", "docker", "docker run-x", "docker exec -i a b", "docker compose run a", "docker container ls", "run x"),
        *("docker --context run", "npx docker run x", "sudo", "env -- ", "sh -c docker", "docker -", "docker --"),
    ],
)
def test_commands_that_do_not(command: str) -> None:
    assert container_run(command.split()) is None


@pytest.mark.parametrize(
    ("options", "detach", "cidfile"),
    [
        ("-i --rm x -d", False, ""),
        ("-d x", True, ""),
        ("-itd x", True, ""),
        ("--detach x", True, ""),
        ("--detach=true x", True, ""),
        ("--detach=false x", False, ""),
        ("-d=false x", False, ""),
        ("--name d -e -d x", False, ""),  # as the value of another option
        ("-e A=d x", False, ""),
        ("-eA=d x", False, ""),
        ("-ie -d x", False, ""),
        ("--privileged -d x", True, ""),
        ("--cidfile /f x", False, "/f"),
        ("--cidfile=/f x --cidfile=/g", False, "/f"),
        ("--cidfile a --cidfile b x", False, "b"),
        ("--cidfile", False, ""),
        ("-- x -d", False, ""),
        ("-i", False, ""),
    ],
)
def test_options_before_the_image(options: str, detach: bool, cidfile: str) -> None:
    found = container_run(["docker", "run", *options.split()])
    assert found is not None
    assert (found.detach, found.cidfile) == (detach, cidfile)


@pytest.mark.parametrize(
    ("command", "place"), [("a b", 0), ("sudo -E a", 2), ("env A=b C=d a", 3), ("sudo", 0), ("/usr/bin/env a", 1)]
)
def test_the_program_behind_a_wrapper(command: str, place: int) -> None:
    assert client_program(command.split()) == place


@pytest.mark.parametrize(
    ("options", "interactive"),
    [
        ("-i x", True),
        ("--rm -it x", True),
        ("-ti x", True),
        ("--interactive x", True),
        ("--interactive=false x", False),
        ("-i=false x", False),
        ("--rm x -i", False),
        ("-e i x", False),
        ("x", False),
    ],
)
def test_whether_a_container_gets_its_input(options: str, interactive: bool) -> None:
    found = container_run(["docker", "run", *options.split()])
    assert found is not None
    assert found.interactive is interactive
