"""The entry by which each desktop host starts Colonnade or reaches its URL.

Every host takes a command. A URL with a token needs a reference to a variable that the host fills in; a host without
references would have to hold the token itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config.edit import ValuePath, get

NAME = "colonnade"
"""The name of the entry."""

Entry = dict[str, object]

_CALL_SECONDS = 120
"""A confirmation by a person (50 s) and the call itself (60 s), by our defaults."""


def _command(program: str, arguments: Sequence[str]) -> Entry:
    return {"command": program, "args": list(arguments)}


def _header(value: str) -> Entry:
    return {"headers": {"Authorization": f"Bearer {value}"}}


def _no_variables(names: Sequence[str]) -> Entry:
    return {}


def _in_env(reference: str, key: str = "env") -> Callable[[Sequence[str]], Entry]:
    return lambda names: {key: {name: reference.replace("NAME", name) for name in names}} if names else {}


@dataclass(frozen=True)
class EntryForm:
    """A host's form of our entry.

    Attributes:
        path: The keys that lead to the map of servers, or to their list.
        newer_path: Keys that lead to it in newer files, if they are there.
        command: The entry for a program and its arguments.
        url: The entry for a URL; None if the host takes only commands.
        reference: A reference to the variable NAME in the host's form; empty if it fills in none.
        token: The keys for a reference to a token.
        literal_token: The keys for the token itself.
        variables: The keys that pass variables on to the program; None if it gets few of them, and none can be passed.
        withheld: The variables that the host keeps for itself, of those that it passes on otherwise.
        is_list: Whether the servers stand in a list.
        new_file: The beginning of a file that the host accepts.
        file_name: The name of the file that is made if there is none; the first of the host's files, if empty.
        variables_from: The place where the host finds variables.
        longest_name: The characters of a name of ours that stays whole there, behind the host's own words; None if that
            is not known.
    """

    path: tuple[str, ...]
    newer_path: tuple[str, ...] = ()
    command: Callable[[str, Sequence[str]], Entry] = _command
    url: Callable[[str], Entry] | None = None
    reference: str = ""
    token: Callable[[str], Entry] = _header
    literal_token: Callable[[str], Entry] = _header
    variables: Callable[[Sequence[str]], Entry] | None = _no_variables
    withheld: frozenset[str] = frozenset()
    is_list: bool = False
    new_file: str = ""
    file_name: str = ""
    variables_from: str = "its environment"
    longest_name: int | None = None

    @property
    def passes_all_variables(self) -> bool:
        return self.variables is _no_variables

    def place(self, root: object) -> ValuePath:
        """The path of our entry in a file with these values; in a list, it is the first item."""
        keys = self.newer_path if self.newer_path and isinstance(get(root, self.newer_path), dict) else self.path
        return (*keys, 0) if self.is_list else (*keys, NAME)


ENTRY_FORMS: Mapping[str, EntryForm] = {
    "claude-desktop": EntryForm(("mcpServers",), variables=None),
    "claude-code": EntryForm(
        ("mcpServers",),
        url=lambda url: {"type": "http", "url": url},
        reference="${NAME}",
        longest_name=128 - len("mcp__colonnade__"),
    ),
    "cursor": EntryForm(("mcpServers",), url=lambda url: {"url": url}, reference="${env:NAME}"),
    "vscode": EntryForm(
        ("servers",),
        command=lambda program, arguments: {"type": "stdio", **_command(program, arguments)},
        url=lambda url: {"type": "http", "url": url},
        reference="${env:NAME}",
    ),
    "windsurf": EntryForm(
        ("mcpServers",),
        url=lambda url: {"serverUrl": url},
        reference="${env:NAME}",
        variables=_in_env("${env:NAME}"),
    ),
    # Its `timeout` is for the start and for each call. Without it, the start may take 2 to 3 s.
    "cline": EntryForm(
        ("mcpServers",),
        command=lambda program, arguments: {**_command(program, arguments), "timeout": _CALL_SECONDS},
        url=lambda url: {"type": "streamableHttp", "url": url, "timeout": _CALL_SECONDS},
        reference="${env:NAME}",
        variables=_in_env("${env:NAME}"),
    ),
    "roo": EntryForm(
        ("mcpServers",),
        url=lambda url: {"type": "streamable-http", "url": url},
        reference="${env:NAME}",
        variables=_in_env("${env:NAME}"),
    ),
    "gemini": EntryForm(
        ("mcpServers",),
        url=lambda url: {"httpUrl": url},
        reference="${NAME}",
        variables=_in_env("${NAME}"),  # it withholds variables whose names look like those of secrets
        longest_name=63 - len("mcp_colonnade_"),
    ),
    "qwen": EntryForm(("mcpServers",), url=lambda url: {"httpUrl": url}, reference="${NAME}"),
    "copilot": EntryForm(
        ("mcpServers",),
        command=lambda program, arguments: {"type": "local", **_command(program, arguments), "tools": ["*"]},
        url=lambda url: {"type": "http", "url": url, "tools": ["*"]},
        reference="${NAME}",
        longest_name=64 - len("colonnade-"),
        withheld=frozenset(
            {
                *("ANTHROPIC_API_KEY", "COPILOT_GITHUB_TOKEN", "GITHUB_PERSONAL_ACCESS_TOKEN", "GITHUB_TOKEN"),
                "OPENAI_API_KEY",
            }
        ),
    ),
    "lm-studio": EntryForm(("mcpServers",), url=lambda url: {"url": url}, variables=None),
    # Without `required`, a run without a terminal waits about a second for the tools, and goes on without them.
    "codex": EntryForm(
        ("mcp_servers",),
        command=lambda program, arguments: {
            **_command(program, arguments),
            "required": True,
            "startup_timeout_sec": 60,
        },
        url=lambda url: {"url": url},
        reference="NAME",
        longest_name=128 - len("mcp__colonnade__"),
        token=lambda variable: {"bearer_token_env_var": variable},
        literal_token=lambda token: {"http_headers": {"Authorization": f"Bearer {token}"}},
        variables=lambda names: {"env_vars": list(names)} if names else {},
    ),
    # It may start servers before it has read the variables of the login shell.
    "zed": EntryForm(("context_servers",), url=lambda url: {"url": url}, variables=None),
    "continue": EntryForm(
        ("mcpServers",),
        command=lambda program, arguments: {"name": NAME, **_command(program, arguments)},
        url=lambda url: {"name": NAME, "type": "streamable-http", "url": url},
        reference="${{ secrets.NAME }}",
        token=lambda reference: {"apiKey": reference},
        literal_token=lambda token: {"apiKey": token},
        variables=_in_env("${{ secrets.NAME }}"),
        is_list=True,
        new_file="name: Local\nversion: 1.0.0\nschema: v1\n",
        variables_from="~/.continue/.env",
    ),
    "opencode": EntryForm(
        ("mcp",),
        newer_path=("mcp", "servers"),
        command=lambda program, arguments: {"type": "local", "command": [program, *arguments]},
        url=lambda url: {"type": "remote", "url": url, "oauth": False},
        reference="{env:NAME}",
        file_name="opencode.json",
    ),
    "amp": EntryForm(("amp.mcpServers",), url=lambda url: {"url": url}, reference="${NAME}"),
    "goose": EntryForm(
        ("extensions",),
        command=lambda program, arguments: {
            "enabled": True,
            "type": "stdio",
            "name": NAME,
            "description": "",
            "cmd": program,
            "args": list(arguments),
            "timeout": 300,
        },
        url=lambda url: {
            "enabled": True,
            "type": "streamable_http",
            "name": NAME,
            "description": "",
            "uri": url,
            "timeout": 300,
        },
        reference="$NAME",
        token=lambda reference: {**_header(reference), "env_keys": [reference.removeprefix("$")]},
    ),
}
"""By the name of the host."""

_PROGRAM_KEYS = frozenset({"command", "cmd"})
_VARIABLE_KEYS = ("env", "envs", "environment", "env_vars", "env_keys")
_LAUNCH_KEYS = ("command", "args", "cmd", "url", "serverUrl", "httpUrl", "uri")


def is_same_launch(written: Mapping[str, object], found: Any) -> bool:
    """Whether an entry of a file still starts or reaches what was written."""
    return isinstance(found, dict) and all(found.get(key) == written.get(key) for key in _LAUNCH_KEYS)


def starts_program(entry: Mapping[str, object]) -> bool:
    """Whether an entry starts a program, and does not reach a URL."""
    return not _PROGRAM_KEYS.isdisjoint(entry)


def named_variables(entry: Mapping[str, object]) -> set[str]:
    """The variables that an entry gives the program, in any host's form."""
    found = (entry.get(key) for key in _VARIABLE_KEYS)
    return {str(name) for each in found if isinstance(each, dict | list) for name in each}


def is_alike(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    """Whether two entries both start a program, or both reach a URL."""
    return starts_program(one) == starts_program(other)


def additions(written: Mapping[str, Any], found: Mapping[str, Any]) -> Entry:
    """The keys, variables and items that an entry of a file has beside what was written, or with another value."""
    made: Entry = {}
    for key, value in found.items():
        mine = written.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            more: Any = additions(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            more = [item for item in value if item not in mine]
        elif key in written and mine == value:
            continue
        else:
            made[key] = value
            continue
        if more:
            made[key] = more
    return made


def with_additions(entry: Mapping[str, Any], added: Mapping[str, Any]) -> Entry:
    """An entry with the additions to another one."""
    made = dict(entry)
    for key, more in added.items():
        mine = made.get(key)
        if isinstance(mine, dict) and isinstance(more, dict):
            made[key] = with_additions(mine, more)
        elif isinstance(mine, list) and isinstance(more, list):
            made[key] = [*mine, *(item for item in more if item not in mine)]
        else:
            made[key] = more
    return made
