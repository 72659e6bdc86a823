"""The environment variables of servers: which ones a server uses, whose value it gets, and which are missing.

A host may run in the background, without the variables of its user's terminal. Then a client hands over the values that
it has. They fill in what a server is started or reached with, and nothing else: the endpoint, and all keys that permit
or limit something, have the values of the host's own environment alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from config.container_run import client_program
from config.model import ServerSpec, StdioServer
from config.references import Secret, variables_in

_OF_DOCKER = (
    *("DOCKER_API_VERSION", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTENT_TRUST", "DOCKER_CONTENT_TRUST_SERVER"),
    *("DOCKER_CONTEXT", "DOCKER_DEFAULT_PLATFORM", "DOCKER_HOST", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
)
_OF_PODMAN = (
    *("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF"),
    *("CONTAINER_CONNECTION", "CONTAINER_HOST", "CONTAINER_SSHKEY", "REGISTRY_AUTH_FILE"),
)
PROGRAM_VARIABLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "docker": (*_OF_DOCKER, *_OF_PODMAN),  # by this name systems install podman too
        "podman": (*_OF_PODMAN, "DOCKER_CONFIG"),
        "kubectl": ("KUBECONFIG",),
        "kubernetes": ("KUBECONFIG",),
        "helm": ("KUBECONFIG",),
        "aws": (
            *("AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE"),
            "AWS_SDK_LOAD_CONFIG",
        ),
        "gcloud": ("CLOUDSDK_ACTIVE_CONFIG_NAME", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"),
        "az": ("AZURE_CONFIG_DIR",),
    }
)
"""By the name of a client program: the variables that say which service it talks to, and as whom. They are names,
addresses, and paths of files or sockets; none holds a key itself."""
_SAME_PROGRAM = {"awslabs": "aws", "docker-compose": "docker", "podman-compose": "podman", "podman-remote": "podman"}
_SHELLS = frozenset({"bash", "dash", "sh", "zsh"})
_COMMAND_OPTION = re.compile(r"-[a-z]*c")
_PACKAGE_RUNNERS = frozenset({"bunx", "npx", "pipx", "pnpm", "uv", "uvx"})
_RUN = frozenset({"dlx", "exec", "run", "tool"})
_REACHING = ("args", "command", "cwd", "env", "headers", "headers_helper", "url")
_REACHING_OAUTH = ("client_id", "client_secret", "private_key")
_WORD = re.compile(r"[a-z0-9]+")


def program_variables(words: Iterable[str]) -> tuple[str, ...]:
    """The variables that a command needs because of a client program that is known: the program itself, also behind
    `sudo`, `env` and the like or as the first one of `sh -c`, or one that the name of the package contains which it
    runs, as `mcp-server-git` in `uvx mcp-server-git`."""
    every = list(words)
    program, *more = (word.rpartition("/")[2] for word in every[client_program(every) :])
    if program in _SHELLS:
        return program_variables(started) if (started := _started_by_shell(every)) else ()
    named = [program]
    if program in _PACKAGE_RUNNERS:
        package = next((word for word in more if not word.startswith("-") and word not in _RUN), "")
        named = _WORD.findall(package.lower())
    found = (PROGRAM_VARIABLES.get(_SAME_PROGRAM.get(name, name), ()) for name in named)
    return tuple(dict.fromkeys(name for names in found for name in names))


def _started_by_shell(words: list[str]) -> list[str]:
    """The words of the command line of a shell, `-c TEXT`; none if they cannot be told."""
    place = next((place for place, word in enumerate(words) if _COMMAND_OPTION.fullmatch(word)), len(words))
    try:
        found = shlex.split("".join(words[place + 1 : place + 2]))
    except ValueError:
        return []
    return found[1:] if found[:1] == ["exec"] else found


def handed_on(spec: StdioServer) -> dict[str, str]:
    """The variables with their values that the program of a server gets because it is a known one; those under `env`
    hold instead of them."""
    names = program_variables(spec.started_words)
    values = ((name, spec.variables.get(name)) for name in names if name not in spec.env)
    return {name: value.reveal() for name, value in values if value is not None}


def differing(
    servers: Mapping[str, ServerSpec], environment: Mapping[str, str], but_for: Container[str] = ()
) -> dict[str, str]:
    """The servers that have another value of a variable than this environment, each with the name of the variable."""
    found: dict[str, str] = {}
    for id, spec in servers.items():
        for name, value in spec.variables.items():
            if value is not None and environment.get(name, value.reveal()) != value.reveal() and name not in but_for:
                found.setdefault(id, name)
    return found


def new_values(
    servers: Mapping[str, ServerSpec], environment: Mapping[str, str], replaceable: Container[str] = ()
) -> dict[str, Secret]:
    """The values in this environment of variables that servers use and that are not set, or are replaceable. None is of
    a server that has another value of one of its other variables: it must not get those of two environments."""
    others = {name for id in differing(servers, environment, replaceable) for name in servers[id].variables}
    found: dict[str, Secret] = {}
    for name, present in (each for spec in servers.values() for each in spec.variables.items()):
        if (present is None or name in replaceable) and name in environment and name not in others:
            found[name] = Secret(environment[name])
    return found


@dataclass(frozen=True)
class Lacking:
    """The variables without a default that a server names and that are not set.

    `awaited` may come from a client. `own` may not, since keys name them that permit or limit something, of this server
    or of another one, or the endpoint does."""

    awaited: tuple[str, ...]
    own: tuple[str, ...]

    @property
    def problem(self) -> str:
        """The mistake, and the remedy."""
        names = (*self.own, *self.awaited)
        several = len(names) > 1
        what, them, are = ("variables", "them", "are") if several else ("variable", "it", "is")
        listed = f"{', '.join(names[:-1])} and {names[-1]}" if several else names[0]
        if self.own:
            remedy = (
                "a rule, a limit or the endpoint names what no client may set: write the value in the file, or use "
                "serve --stdio --own"
            )
        else:
            remedy = f"start the client with {them}, write ${{keyring:NAME}} or ${{file:PATH}} instead, or use serve "
            remedy += "--stdio --own"
        return f"the environment {what} {listed} {are} not set; {remedy}"


class Environment:
    """The variables of a configuration.

    Args:
        root: the values of the file in our form.
        own: the environment of the host. Its values hold before those of clients.
        handed_over: the values that clients handed over, by name.
        in_background: servers may lack variables.

    Attributes:
        own_names: the variables that no client sets, since a rule, a limit or the endpoint names them.
        values: the values for all references, by name.
        lacking: by id, what is missing for a server that may lack it.
        awaited: the variables that servers wait for.
    """

    def __init__(
        self,
        root: Mapping[str, object],
        own: Mapping[str, str],
        handed_over: Mapping[str, Secret] = {},
        *,
        in_background: bool = False,
    ) -> None:
        servers = root.get("servers")
        self._servers = servers if isinstance(servers, dict) else {}
        beside = [value for key, value in root.items() if key != "servers"]
        rules = [_parts(section)[1] for section in self._servers.values()]
        self.own_names = frozenset(variables_in([beside, rules], with_default=True))
        adopted = {name: value.reveal() for name, value in handed_over.items() if name not in self.own_names}
        self.values: Mapping[str, str] = {**adopted, **own}
        self.lacking: Mapping[str, Lacking] = {}
        if in_background:
            missing = {id: variables_in(section) - self.values.keys() for id, section in self._servers.items()}
            self.lacking = {id: self._lacking(names) for id, names in missing.items() if names}
        self.awaited = frozenset(name for each in self.lacking.values() for name in each.awaited)

    def _lacking(self, missing: set[str]) -> Lacking:
        return Lacking(tuple(sorted(missing - self.own_names)), tuple(sorted(missing & self.own_names)))

    def used_by(self, spec: ServerSpec) -> Mapping[str, Secret | None]:
        """The variables that a server is started or reached with: each with its value, or None if a client may still
        hand one over."""
        reaching, _ = _parts(self._servers.get(spec.id))
        names = variables_in(reaching, with_default=True)
        if isinstance(spec, StdioServer):
            names |= {*program_variables(spec.started_words)} - spec.env.keys()
        return MappingProxyType(
            {
                name: Secret(value) if (value := self.values.get(name)) is not None else None
                for name in sorted(names)
                if name in self.values or name not in self.own_names
            }
        )


def _parts(section: object) -> tuple[dict[str, object], dict[str, object]]:
    """The keys of a server that it is started or reached with, and the other ones."""
    if not isinstance(section, dict):
        return {}, {}
    reaching = {key: section[key] for key in _REACHING if key in section}
    rules = {key: value for key, value in section.items() if key not in reaching}
    if isinstance(oauth := section.get("oauth"), dict):
        reaching["oauth"] = {key: oauth[key] for key in _REACHING_OAUTH if key in oauth}
        rules["oauth"] = {key: value for key, value in oauth.items() if key not in _REACHING_OAUTH}
    return reaching, rules
