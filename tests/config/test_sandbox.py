"""The key `sandbox`: its forms, its mistakes, and what it says to people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from config.sandbox import GIVEN, WITHHELD, ContainerClient, Destination, Means, Network, Sandbox, SandboxFiles, as_yaml
from host.wire.process import _INHERITED_VARIABLES
from tests.config.kit import lines, load_text, stdio

PINNED = f"ghcr.io/acme/scraper@sha256:{'0a' * 32}"
STDIO = "servers: {{a: {{command: x, sandbox: {}}}}}"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("off", None),
        ("'off'", None),
        ("false", None),
        ("strict", Sandbox()),
        ("{}", Sandbox()),
        ("{network: all}", Sandbox(network=Network.ALL)),
        ("{memory: 512MiB, processes: 8, open_files: 99}", Sandbox(memory=512 * 1024**2, processes=8, open_files=99)),
        ("{cpu: 1.5, temporary: 1GiB}", Sandbox(cpu=1.5, temporary=1024**3)),
        ("{cpu: 2}", Sandbox(cpu=2.0)),
        (
            "{network: ['API.x.com:443', {to: 'db:1', private: true}, 'db:1', '[0:0::1]:2', '1.2.3.4:5', 'db:1']}",
            Sandbox(
                network=(
                    Destination("api.x.com:443"),
                    Destination("db:1", private=True),
                    *map(Destination, ("db:1", "[::1]:2", "1.2.3.4:5")),
                )
            ),
        ),
        ("{accept: landlock, environment: [HTTP_PROXY]}", Sandbox(accept=Means.LANDLOCK, environment=("HTTP_PROXY",))),
        (f"{{with: podman, image: {PINNED}}}", Sandbox(with_=ContainerClient.PODMAN, image=PINNED)),
        (
            "{with: docker, image: 'a.b:5000/c/d__e:1.2'}",
            Sandbox(with_=ContainerClient.DOCKER, image="a.b:5000/c/d__e:1.2"),
        ),
        (f"{{with: docker, image: '{PINNED[-71:]}'}}", Sandbox(with_=ContainerClient.DOCKER, image=PINNED[-71:])),
        ("{files: {read: [/a/../b], write: [/c/]}}", Sandbox(files=SandboxFiles(("/b",), ("/c",)))),
    ],
)
def test_forms(tmp_path: Path, written: str, read: Sandbox | None) -> None:
    assert stdio(load_text(tmp_path, STDIO.format(written)), "a").sandbox == read


@pytest.mark.parametrize(
    ("made", "written"),
    [
        (Sandbox(), "sandbox: strict"),
        (Sandbox(network=Network.ALL), "sandbox: {network: all}"),
        (Sandbox(cpu=1.5, temporary=2 * 1024**3), "sandbox: {temporary: 2048MiB, cpu: 1.5}"),
        (
            Sandbox(SandboxFiles(("/a", "/b c: ${env:HOME}"), ("/ü, [",)), memory=512 * 1024**2, accept=Means.LANDLOCK),
            'sandbox: {files: {read: [/a, "/b c: $${env:HOME}"], write: ["/\\u00fc, ["]}, memory: 512MiB, '
            "accept: landlock}",
        ),
    ],
)
def test_the_line_that_means_a_sandbox(tmp_path: Path, made: Sandbox, written: str) -> None:
    assert as_yaml(made) == written
    assert stdio(load_text(tmp_path, f"servers: {{a: {{command: x, {written}}}}}"), "a").sandbox == made


@pytest.mark.disk
def test_paths_begin_at_the_file_or_at_home(tmp_path: Path) -> None:
    made = stdio(load_text(tmp_path, STDIO.format("{files: {read: [data, '~/notes', '${env:D}']}}"), {"D": "/d"}), "a")
    assert made.sandbox is not None
    assert made.sandbox.files.read == (str(tmp_path / "data"), str(Path.home() / "notes"), "/d")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("on", ': expected off, strict, or a map of what the program may use, found "on"'),
        ("strct", ': expected off, strict, or a map of what the program may use, found "strct"; did you mean strict?'),
        (
            "{network: host}",
            '.network: expected none, loopback, all, or a list such as ["api.example.com:443"], found "host"',
        ),
        ("{network: al}", 'found "al"; did you mean all?'),
        (
            "{network: {a: b}}",
            '.network: expected none, loopback, all, or a list such as ["api.example.com:443"], found a',
        ),
        ("{network: []}", ".network: expected 1 to 64 hosts with ports, found 0; or write none"),
        (
            f"{{network: [{', '.join(f'a:{port}' for port in range(1, 66))}]}}",
            "expected 1 to 64 hosts with ports",
        ),
        (
            "{network: [a]}",
            '.network[0]: expected a host with its port such as "api.example.com:443", found "a"',
        ),
        ("{network: ['https://a/']}", 'found "https://a/"; no scheme and no path; the port is from 1 to 65535'),
        ("{network: ['a:0']}", 'found "a:0"; no scheme and no path; the port is from 1 to 65535'),
        ("{network: ['a:65536']}", 'found "a:65536"; no scheme and no path; the port is from 1 to 65535'),
        ("{network: ['::1:80']}", 'found "::1:80"; put an IPv6 address in brackets'),
        ("{network: ['[10.0.0.1]:80']}", 'found "[10.0.0.1]:80"; put an IPv6 address in brackets'),
        ("{network: ['0.0.0.0:80']}", 'found "0.0.0.0:80"; this is no address of one host'),
        ("{network: ['[::ffff:10.0.0.5]:80']}", "this is no address of one host"),
        ("{network: ['[fe80::1%eth0]:80']}", "this is no address of one host"),
        ("{network: ['*.com:443']}", "a * stands before a name with a dot, as in *.example.com"),
        ("{network: ['a.*.com:443']}", "* stands for what is before a name, as in *.example.com"),
        ("{network: ['127.1:80']}", 'expected a host with its port such as "api.example.com:443", found "127.1:80"'),
        ("{network: ['a.localhost:80']}", 'found "a.localhost:80"; write localhost'),
        ("{network: ['ü.de:1']}", "write it in its ASCII form, which begins with xn--"),
        ("{network: [{private: true}]}", '.network[0].to: the key "to" is missing; it is a host with its port'),
        ("{network: [{too: 'a:1'}]}", '.network[0].too: unknown key; did you mean "to"?'),
        (
            "{network: ['a:1', {to: '10.0.0.1:1', private: true}]}",
            ".network[1].private: an address is permitted as it is written; remove private",
        ),
        ("{file: {}}", '.file: unknown key; did you mean "files"?'),
        ("{memory: 1MiB}", ".memory: expected a size from 64MiB to 64GiB"),
        ("{open_files: 8}", '.open_files: expected a whole number from 16 to 65536, found "8"'),
        ("{processes: 0}", '.processes: expected a whole number from 1 to 10000, found "0"'),
        ("{temporary: 1KiB}", ".temporary: expected a size from 1MiB to 64GiB"),
        ("{cpu: 0}", '.cpu: expected a number of processors from 0.01 to 1000, such as 1.5, found "0"'),
        ("{cpu: 50%}", '.cpu: expected a number of processors from 0.01 to 1000, such as 1.5, found "50%"'),
        ("{files: {read: [/]}}", "more than a program can be confined to"),
        ("{files: {read: [//]}}", "more than a program can be confined to"),
        ("{files: {write: [//proc/self]}}", "more than a program can be confined to"),
        ("{files: {write: [/proc/self]}}", "more than a program can be confined to"),
        ("{files: {read: ['']}}", "expected a path such as /srv/data"),
        (
            "{environment: [API_KEY]}",
            ', found "API_KEY"; to give it another one, write env: {API_KEY: "${env:API_KEY}"}',
        ),
        ("{environment: [HTTPS_PROXI]}", ', found "HTTPS_PROXI"; did you mean HTTPS_PROXY?'),
        ("{environment: [HOME]}", ".environment[0]: a confined program has HOME anyway; remove it"),
        ("{environment: [LC_ALL]}", ".environment[0]: a confined program has LC_ALL anyway; remove it"),
        ("{environment: [A=b]}", ".environment[0]: a variable's name is printable ASCII without spaces and ="),
        ("{image: a}", ".image: it is for a container; write with: podman or with: docker, or remove it"),
        ("{with: podman}", ".with: a container is made of an image; write image: and its name beside it"),
        ("{with: lxc, image: a}", '.with: expected podman or docker, found "lxc"'),
        ("{with: podman, image: a, accept: landlock}", ".accept: a container is never replaced by Landlock; remove it"),
        ("{with: podman, image: a, install: {scripts: true}}", ".install: nothing is installed for a container"),
        (
            "{with: podman, image: a, network: ['h:1']}",
            ".network: a container has no network to hosts by name; write none",
        ),
        ("{with: podman, image: a, memory: 64MiB}", ".memory: a container does not start with less than 128MiB"),
        *(
            (f"{{with: podman, image: '{word}'}}", ".image: expected the name of an image such as ghcr.io/")
            for word in ("--privileged", "", "a b", "docker://a", "oci:/a", "A", "a@sha256:0", "a/", "a:", "-a")
        ),
        ("{accept: none}", '.accept: expected namespaces or landlock, found "none"'),
    ],
)
def test_mistakes(tmp_path: Path, written: str, said: str) -> None:
    (found,) = lines(tmp_path, STDIO.format(written))
    assert said in found


def test_a_program_alone_is_confined(tmp_path: Path) -> None:
    """A default is for those that have one."""
    (found,) = lines(tmp_path, "servers: {a: {url: 'http://h/', sandbox: strict}}")
    assert "servers.a.sandbox: it confines a program, and here is a url; remove it" in found
    made = load_text(tmp_path, "defaults: {sandbox: strict}\nservers: {a: {url: 'http://h/'}, b: {command: x}}")
    assert [each.sandbox for each in made.servers.values()] == [None, Sandbox()]
    (found,) = lines(tmp_path, 'servers: {a: {command: x, cwd: "${client:folder}", sandbox: strict}}')
    assert "a confined program cannot work in folders of clients" in found


def test_what_a_client_program_reads_itself_is_no_variable_for_a_container(tmp_path: Path) -> None:
    """podman takes a star at the end for all of its own variables that begin so, with the passwords in them."""
    text = "servers: {a: {command: x, env: {PATH: a, http_proxy: b, LANG: C, TOKEN: d, H*: e}, sandbox: %s}}"
    found = lines(tmp_path, text % "{with: podman, image: a}")
    assert [line.partition(": ")[2] for line in found] == [
        f"servers.a.env{name}: podman would take this variable for itself; set it in the image, or remove it"
        for name in (".PATH", ".http_proxy", "")  # a name that is none of a key is not shown
    ]
    assert stdio(load_text(tmp_path, text % "strict"), "a").env.keys() == {"PATH", "http_proxy", "LANG", "TOKEN", "H*"}


def test_the_program_of_a_container_is_one_of_its_image(tmp_path: Path) -> None:
    """And its variables are those of the client program, which finds its service by them."""
    text = "servers: {a: {command: [./bin/kubectl], sandbox: {with: docker, image: a}}}"
    made = stdio(load_text(tmp_path, text, {"DOCKER_HOST": "unix:///d", "KUBECONFIG": "/k"}), "a")
    assert made.command[0].reveal() == "./bin/kubectl"
    assert made.started_words == ("docker",)
    assert {name for name, value in made.variables.items() if value is not None} == {"DOCKER_HOST"}


def test_what_may_be_given_is_all_that_other_servers_get() -> None:
    assert {*WITHHELD, *GIVEN} == _INHERITED_VARIABLES


def test_one_line_for_people() -> None:
    assert Sandbox().describe() == "its own files; network none; 1024 MiB of memory; 64 processes; 256 open files"
    contained = Sandbox(with_=ContainerClient.PODMAN, image=PINNED)
    assert contained.describe() == f"{Sandbox().describe()}; in a container of podman from {PINNED}"
    assert as_yaml(contained) == f'sandbox: {{with: podman, image: "{PINNED}"}}'
    wider = Sandbox(SandboxFiles(("/a",), ("/b", "/c")), Network.ALL, ("X",), accept=Means.LANDLOCK)
    assert wider.describe() == (
        "writes /b, /c; reads /a; the whole network; the variables X; 1024 MiB of memory; "
        "64 processes; 256 open files; "
        "Landlock alone is accepted"
    )
    assert Sandbox(cpu=1.5, temporary=1024**2).describe().endswith("; 1 MiB for temporary files; 1.5 processors")
    named = Sandbox(network=(Destination("a.com:443"), Destination("db:1", private=True)))
    assert "; network to a.com:443, db:1 (private addresses too); " in named.describe()


def test_destinations_in_the_line_for_the_file(tmp_path: Path) -> None:
    """It is read as what it means."""
    named = Sandbox(network=(Destination("*.a.com:443"), Destination("[::1]:1"), Destination("db:1", private=True)))
    line = as_yaml(named)
    assert line == 'sandbox: {network: ["*.a.com:443", "[::1]:1", {to: "db:1", private: true}]}'
    assert stdio(load_text(tmp_path, f"servers: {{a: {{command: x, {line}}}}}"), "a").sandbox == named
    json.dumps(named.beside_strict())


def test_a_launch_is_known_by_what_is_not_strict() -> None:
    """So a key that comes later changes no launch that lacks it."""

    @dataclass(frozen=True)
    class Later(Sandbox):
        more: int = 3

    assert Sandbox().beside_strict() == Later().beside_strict() == {}
    wider = {"files": SandboxFiles(write=("/b",)), "network": Network.ALL, "memory": 2 * 1024**3}
    expected = {"files": {"write": ("/b",)}, "network": "all", "memory": 2 * 1024**3}
    assert Sandbox(**wider).beside_strict() == Later(**wider).beside_strict() == expected  # type: ignore[arg-type]
