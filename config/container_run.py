"""Commands of servers that run a container: `docker run` and `podman run`, by the words of the configuration alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_CLIENTS = frozenset({"docker", "podman"})
_WRAPPERS = frozenset({"doas", "env", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo"})
"""Programs that start the program that they name, with the same input and output."""
_ASSIGNMENT = re.compile(r"\w+=")
_CLIENT_FLAGS = frozenset(
    [
        *("-D", "--debug", "--tls", "--tlsverify", "-v", "--version", "--help"),  # docker
        *("-r", "--remote", "--noout", "--syslog"),  # podman
    ]
)
"""Options before `run` that take no value; every other one takes one."""
_FLAGS = frozenset(
    [
        *("detach", "disable-content-trust", "help", "init", "interactive", "no-healthcheck", "oom-kill-disable"),
        *("privileged", "publish-all", "quiet", "read-only", "rm", "sig-proxy", "tty", "use-api-socket"),
        # of podman alone
        *("env-host", "http-proxy", "no-hostname", "no-hosts", "passwd", "read-only-tmpfs", "replace", "rmi", "rootfs"),
        *("tls-verify", "unsetenv-all"),
    ]
)
"""Long options of `run` that take no value; every other one takes one."""
_SHORT_FLAGS = frozenset("diPqt")
_FALSE = ("0", "f", "false")

_READ_BY_CLIENTS = re.compile(
    "DBUS_SESSION_BUS_ADDRESS|HOME|NOTIFY_SOCKET|PATH|REGISTRY_AUTH_FILE|STORAGE_DRIVER|STORAGE_OPTS|TMPDIR|USER"
    "|(?:BUILDAH|CONTAINER|DOCKER_|LD_|LISTEN_|PODMAN|SSL_CERT_|XDG_|_CONTAINERS_).*"
    "|(?i:.*_PROXY)"
    r"|.*\*"
)


def is_read_by_clients(name: str) -> bool:
    """Whether the clients themselves take a variable of this name from their environment, or, as podman does with a
    star at the end, take the name for all of theirs that begin so."""
    return _READ_BY_CLIENTS.fullmatch(name) is not None


@dataclass(frozen=True)
class ContainerRun:
    """A command that runs a container.

    Attributes:
        client: the words before `run` (or `container run`): the client program, its options, and what starts it.
        words: those words and `run`.
        rest: the words after it.
        detach: whether the client leaves the container to itself and ends.
        interactive: whether the container gets the input of the client.
        cidfile: the file that the options name for the id of the container; empty if they name none.
    """

    client: tuple[str, ...]
    words: tuple[str, ...]
    rest: tuple[str, ...]
    detach: bool
    interactive: bool
    cidfile: str

    def with_cidfile(self, path: str) -> list[str]:
        """The command with an option more: the client writes the id of the container into this new file."""
        return [*self.words, "--cidfile", path, *self.rest]


def client_program(words: Sequence[str]) -> int:
    """The place of the program in a command that a wrapper such as `sudo` or `env` may begin: `sudo -n docker`."""
    place = 0
    while place < len(words) and _name(words[place]) in _WRAPPERS:
        place += 1
        while place < len(words) and (words[place].startswith("-") or _ASSIGNMENT.match(words[place])):
            place += 1
    return place if place < len(words) else 0


def container_run(words: Sequence[str]) -> ContainerRun | None:
    """The parts of a command that runs a container; None if it runs none, or in a way that is not known here."""
    program = client_program(words)
    if not words or _name(words[program]) not in _CLIENTS:
        return None
    place = program + 1
    while place < len(words) and words[place].startswith("-"):
        word = words[place]
        has_value = "=" in word or (word[:2] != "--" and len(word) != 2)  # `-Hunix:…`; a lone `-` takes none
        place += 1 if has_value or word in _CLIENT_FLAGS else 2
    client = tuple(words[:place])
    if list(words[place : place + 1]) == ["container"]:
        place += 1
    if list(words[place : place + 1]) != ["run"]:
        return None
    rest = tuple(words[place + 1 :])
    return ContainerRun(client, tuple(words[: place + 1]), rest, *_options(rest))


def _options(words: Sequence[str]) -> tuple[bool, bool, str]:
    """Whether the options before the image detach, whether they pass the input on, and their `--cidfile`. As the
    clients read them, the last of two equal options holds."""
    detach, interactive, cidfile = False, False, ""
    left = list(words)
    while left and left[0].startswith("-") and left[0] not in ("-", "--"):
        word = left.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in _FLAGS:
                value = left.pop(0) if left else ""
            if name == "detach":
                detach = value.lower() not in _FALSE
            elif name == "interactive":
                interactive = value.lower() not in _FALSE
            elif name == "cidfile":
                cidfile = value
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter not in _SHORT_FLAGS:
                if place == len(word):
                    del left[:1]
                break
            is_set = not (word[place : place + 1] == "=" and word[place + 1 :].lower() in _FALSE)
            if letter == "d":
                detach = is_set
            elif letter == "i":
                interactive = is_set
    return detach, interactive, cidfile


def _name(word: str) -> str:
    return word.rpartition("/")[2]
