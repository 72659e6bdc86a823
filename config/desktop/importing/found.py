"""The files of desktop hosts on this machine, and their servers with all that is needed to write them elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.desktop.desktop_file import DesktopFile
from config.desktop.desktop_host import DesktopHost, wanted_of
from config.desktop.entry import ServerEntry, escape
from config.desktop.entry_form import NAME
from config.desktop.generic import GENERIC
from config.desktop.hosts import HOSTS
from config.desktop.importing.tool_consent import ToolConsent, stricter
from config.desktop.started import is_path_from
from config.desktop.vscode import VSCODE, may_be_vscode
from config.document import Plain
from config.load import place_of, problems_of_server, read_file
from config.problems import ConfigError
from config.read import read
from config.references import CLIENT_FOLDER, Expander, rebase

_KINDS = ("tools", "resources", "prompts")
_PROGRAM = "its program"
_FILE = re.compile(r"[^@:$]+\.(?:py|m?js|cjs|m?ts|sh|rb|php|jar|exe|json|toml|ya?ml|env|db|sqlite3?)")
"""A relative path of a file that programs name in their arguments. Names of packages and images have a `:` or `@`."""


@dataclass(frozen=True)
class FoundFile:
    """A file of a host. `host` is None for a file that a person named, whose host is to be recognized."""

    path: Path
    host: DesktopHost | None = None


@dataclass(frozen=True, kw_only=True)
class FoundServer:
    """A server of a host's file."""

    host: DesktopHost
    file: Path
    name: str
    id: str
    ours: Mapping[str, object]
    """Its keys in our form, without consent for tools and without `disabled`. All paths are absolute."""
    tools: ToolConsent
    """The tools that its host denies, and those that a file says its host asks about."""
    passed: ToolConsent
    """The tools that the person wants not to be asked about, as a consent that asks about the rest."""
    shows_switches: bool
    """Whether files show all tools that are switched off at its host."""
    is_off: bool
    depends_on_folder: bool
    """Whether it names the folder in which it starts, or one of its arguments is a path from there. Not if that is the
    folder of its client."""
    problems: tuple[str, ...]
    """The reasons why it cannot be used."""
    remarks: tuple[str, ...]
    """Sentences on how it differs from its host."""
    host_remarks: tuple[str, ...] = ()
    """Such sentences that say the same of other servers of the host."""


def find_files(
    hosts: Iterable[DesktopHost],
    project: Path,
    home: Path,
    environ: Mapping[str, str],
    platform: str = sys.platform,
) -> Iterator[FoundFile]:
    """The files of these hosts for the user, and for the project in a folder. Each is given once."""
    seen: set[Path] = set()
    for host in hosts:
        for file in sorted(host.files, key=lambda file: file.is_project):
            for path in file.found(project, home, environ, platform):
                if (real := path.resolve()) not in seen:
                    seen.add(real)
                    yield FoundFile(path, host)


def read_servers(
    found: FoundFile, home: Path, environ: Mapping[str, str], *, keep_approvals: bool = False
) -> tuple[list[FoundServer], dict[str, str]]:
    """The servers of a file without Colonnade itself, and the descriptions of the inputs that its host asks for.

    Args:
        keep_approvals: calls that the host passes without asking are allowed here too.

    Raises:
        ConfigError: the file cannot be read, or is one of ours.
    """
    file = found.path if found.host else place_of(found.path)
    if found.host is None:
        document, host = read_file(file)
    else:
        host = found.host
        document = read(file, lambda root: wanted_of(host), key=".".join(host.servers))
    if document.problems:
        raise ConfigError(document.problems)
    if host is None and file.suffix not in (".yaml", ".yml", ".toml") and may_be_vscode(document.root):
        host = VSCODE
    if host is None:
        known = "this is a configuration of Colonnade, and no file of a host"
        unknown = 'it has no servers where they are looked for; expected "mcpServers" with a map of servers'
        is_ours = isinstance(document.root.get("servers"), dict)
        raise document.fatal(document.places[()].value, known if is_ours else unknown)
    desktop = DesktopFile(host, file, document, home, environ, imports=True)
    servers = [
        _found_server(host, file, entry, home, environ, keep_approvals=keep_approvals)
        for entry in desktop.entries.values()
        if entry.name != NAME
    ]
    return servers, desktop.inputs


def _found_server(
    host: DesktopHost, file: Path, entry: ServerEntry, home: Path, environ: Mapping[str, str], *, keep_approvals: bool
) -> FoundServer:
    ours, depends_on_folder = _placed(entry, file.parent)
    passed, remarks, host_remarks = _passed(host, entry, keep_approvals=keep_approvals)
    tools, passed, ours = _tools(entry, ours, passed)
    # A file of the user says nothing of a folder, and every host starts its servers in the one that it works in.
    is_users = bool(host.files) and entry.base == home
    if is_users and not depends_on_folder:
        ours.pop("cwd", None)
    if is_users and (path := _relative_path_in(entry, ours)):
        ours["cwd"], depends_on_folder = CLIENT_FOLDER, False
        remarks.append(
            f"It starts in the folder of its client, as in {title_of(host)}, since {path} is a relative path."
        )
        if path == _PROGRAM:
            remarks.append(
                "The program itself is looked for in your home folder: no client decides which one is started."
            )
    if entry.is_off:
        remarks.append(f"It is off in {title_of(host)}.")
    elif entry.needs_approval:
        remarks.append(f"It is disabled, since no file says that {title_of(host)} may start it for this project.")
    remarks += [f"{note[:1].upper()}{note[1:]}." for note in entry.notes]
    problems = entry.problems or problems_of_server(
        entry.id, ours, Expander(environ, file.parent, inputs=lambda id: id)
    )
    return FoundServer(
        host=host,
        file=file,
        name=entry.name,
        id=entry.id,
        ours=ours,
        tools=tools,
        passed=passed,
        # Of a file at another place, what stands beside it at the host's own place is not known.
        shows_switches=host in HOSTS and not host.hides_switches and any(each.matches(file) for each in host.files),
        is_off=entry.is_off or entry.needs_approval or entry.may_be_forbidden,
        depends_on_folder=depends_on_folder,
        problems=tuple(problems),
        remarks=tuple(remarks),
        host_remarks=tuple(host_remarks),
    )


def _tools(
    entry: ServerEntry, ours: dict[str, object], passed: ToolConsent
) -> tuple[ToolConsent, ToolConsent, dict[str, object]]:
    """The restrictions of the tools, what is not asked about, and the keys without them. Rules of ours that stand in
    the entry hold as they are."""
    own, trust = entry.values.get("consent"), ours.get("trust")
    consent = ours.get("consent")
    if isinstance(own, str) and isinstance(consent, str):
        consent = dict.fromkeys(_KINDS, consent)
    kinds = dict(consent) if isinstance(consent, dict) else {}
    tools = kinds.pop("tools", None)
    rest = {key: value for key, value in ours.items() if key != "consent"}
    rest = {**rest, "consent": kinds} if kinds else rest
    if isinstance(own, str) or (isinstance(own, dict) and "tools" in own):
        return ToolConsent.read(tools, trust), ToolConsent("allow"), rest
    found = ToolConsent.read(each_text(entry.restrictions(), escape), trust)
    return stricter(found, passed) if entry.asks_all else found, passed, rest


def title_of(host: DesktopHost) -> str:
    """The name of a host in a sentence."""
    return "its host" if host is GENERIC else host.title


def _passed(host: DesktopHost, entry: ServerEntry, *, keep_approvals: bool) -> tuple[ToolConsent, list[str], list[str]]:
    """What is not asked about in any case, and what a person should know of that: of the server, and of servers of the
    host."""
    title = title_of(host)
    remarks, host_remarks = [], []
    if host.hides_switches:
        host_remarks.append(f"No file shows which tools are switched off in {title}.")
    allowed: tuple[str, ...] = ()
    if entry.approved or entry.approves_all:
        count = len(set(entry.approved))
        what = "all tools" if entry.approves_all else f"{count} tool{'' if count == 1 else 's'}"
        if not keep_approvals:
            remarks.append(f"Calls of {what} are not asked about in {title}.")
            host_remarks.append(f"--keep-approvals takes over which calls are not asked about in {title}.")
        elif entry.approves_all and not host.hides_switches and not entry.asks_all:
            return ToolConsent("allow"), [f"Calls are not confirmed, as in {title}."], []
        elif not entry.approves_all:
            allowed = tuple(escape(tool) for tool in sorted(set(entry.approved)))
            remarks.append(f"Calls of {what} are not confirmed, as in {title}.")
    return ToolConsent("ask", allow=allowed), remarks, host_remarks


def _placed(entry: ServerEntry, folder: Path) -> tuple[dict[str, object], bool]:
    """The keys with absolute paths, which start from a folder, and whether that folder matters."""
    ours: dict[str, object] = {
        key: each_text(value, partial(rebase, folder=folder)) for key, value in entry.ours.items() if key != "disabled"
    }
    command, args = ours.get("command"), ours.get("args")
    if isinstance(command, str) and isinstance(args, list):
        del ours["args"]
        command = [command, *args]
    if command is None:
        return ours, False
    words = list(command) if isinstance(command, list) else [command]
    if words and isinstance(words[0], str) and "/" in words[0]:
        words[0] = _below(folder, words[0])
    cwd = _below(folder, str(ours.get("cwd", "")))
    ours.update(command=words if isinstance(command, list) else words[0], cwd=cwd)
    start = Path(cwd.replace("$${", "${"))
    return ours, "cwd" in entry.values or any(is_path_from(start, str(word)) for word in words[1:])


def _relative_path_in(entry: ServerEntry, ours: Mapping[str, object]) -> str:
    """The part of a command, in words, that is a path from the folder in which its program starts; empty if none is,
    or if the program has a folder of its own."""
    command, written = ours.get("command"), entry.values.get("command", entry.values.get("cmd"))
    if command is None or "cwd" in entry.values:
        return ""
    program = written[0] if isinstance(written, list) and written else written
    if isinstance(program, str) and "/" in program and not program.startswith(("/", "$", "~", "{")):
        return _PROGRAM
    return "an argument" if isinstance(command, list) and any(map(_is_relative_path, command[1:])) else ""


def _is_relative_path(word: object) -> bool:
    text = str(word).partition("=")[2] if str(word).startswith("-") else str(word)
    is_file = not text.startswith("/") and _FILE.fullmatch(text) is not None
    return text in (".", "..") or text.startswith(("./", "../")) or is_file


def _below(folder: Path, path: str) -> str:
    """A path in our form that starts from a folder, unless it is absolute or begins with a reference or with `~`."""
    return path if path.startswith(("/", "${", "~")) else str(Path(escape(str(folder))) / path)


def each_text(value: object, change: Callable[[str], str]) -> object:
    """The same values with each text changed. Scalars that were written without quotes stay as they are."""
    if isinstance(value, dict):
        return {name: each_text(below, change) for name, below in value.items()}
    if isinstance(value, list):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) and not isinstance(value, Plain) else value
