"""The files of desktop hosts on this machine, and their servers with all that is needed to write them elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.document import Plain
from config.hosts import GENERIC, DesktopHost, place_of
from config.hosts.desktop_file import DesktopFile
from config.hosts.desktop_host import wanted_of
from config.hosts.entry import ServerEntry, escape
from config.hosts.entry_form import NAME
from config.importing.tool_consent import ToolConsent, stricter
from config.load import problems_of_server, read_file
from config.problems import ConfigError
from config.read import read
from config.references import Expander, rebase

_KINDS = ("tools", "resources", "prompts")


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
    is_off: bool
    depends_on_folder: bool
    """Whether it names the folder in which it starts, or one of its arguments is a path from there."""
    secret_variables: frozenset[str]
    """Variables whose values are secrets, whatever they are called."""
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
    if host is None:
        raise document.fatal(document.places[()].value, "this is a configuration of Colonnade, and no file of a host")
    desktop = DesktopFile(host, file, document, home, environ)
    servers = [
        _found_server(host, file, entry, environ, keep_approvals=keep_approvals)
        for entry in desktop.entries.values()
        if entry.name != NAME
    ]
    return servers, desktop.inputs


def _found_server(
    host: DesktopHost, file: Path, entry: ServerEntry, environ: Mapping[str, str], *, keep_approvals: bool
) -> FoundServer:
    ours, depends_on_folder = _placed(entry, file.parent)
    tools, ours = _tools(entry, ours)
    tools, remarks, host_remarks = _confirmed(tools, host, entry, keep_approvals=keep_approvals)
    if entry.is_off:
        remarks.append(f"It is off in {title_of(host)}.")
    elif entry.needs_approval:
        remarks.append(f"It is disabled, since no file says that {title_of(host)} may start it for this project.")
    remarks += [f"{note[:1].upper()}{note[1:]}." for note in entry.notes]
    problems = entry.problems or problems_of_server(
        entry.id, ours, Expander(environ, file.parent, inputs=lambda id: id)
    )
    env = ours.get("env")
    of_files = {name for name, value in entry.file_variables.items() if isinstance(env, dict) and env[name] == value}
    return FoundServer(
        host=host,
        file=file,
        name=entry.name,
        id=entry.id,
        ours=ours,
        tools=tools,
        is_off=entry.is_off or entry.needs_approval,
        depends_on_folder=depends_on_folder,
        secret_variables=frozenset(of_files),
        problems=tuple(problems),
        remarks=tuple(remarks),
        host_remarks=tuple(host_remarks),
    )


def _tools(entry: ServerEntry, ours: dict[str, object]) -> tuple[ToolConsent, dict[str, object]]:
    """The restrictions of the tools, and the keys without them."""
    own, trust = entry.values.get("consent"), ours.get("trust")
    consent = ours.get("consent")
    if isinstance(own, str) and isinstance(consent, str):
        consent = dict.fromkeys(_KINDS, consent)
    kinds = dict(consent) if isinstance(consent, dict) else {}
    tools = kinds.pop("tools", None)
    if not (isinstance(own, str) or (isinstance(own, dict) and "tools" in own)):
        tools = each_text(entry.restrictions(), escape)
    rest = {key: value for key, value in ours.items() if key != "consent"}
    return ToolConsent.read(tools, trust), {**rest, "consent": kinds} if kinds else rest


def title_of(host: DesktopHost) -> str:
    """The name of a host in a sentence."""
    return "its host" if host is GENERIC else host.title


def with_tools(ours: Mapping[str, object], tools: ToolConsent) -> dict[str, object]:
    """The keys of a server with its consent for tools."""
    consent = ours.get("consent")
    kinds = dict(consent) if isinstance(consent, dict) else {}
    if (rules := tools.written()) is not None:
        kinds = {"tools": rules, **kinds}
    return {**ours, "consent": kinds} if kinds else dict(ours)


def _confirmed(
    tools: ToolConsent, host: DesktopHost, entry: ServerEntry, *, keep_approvals: bool
) -> tuple[ToolConsent, list[str], list[str]]:
    """The consent with confirmation where the host asks, or may ask, and what a person should know of that: of the
    server, and of servers of the host."""
    if not (host.hides_switches or host.asks_by_default or entry.host_asks):
        return tools, [], []
    title = title_of(host)
    remarks, host_remarks = [], []
    if host.hides_switches:
        host_remarks.append(
            f"Calls of servers of {title} are confirmed, since no file shows which tools are switched off there."
        )
    elif host.asks_by_default:
        host_remarks.append(f"Calls of servers of {title} are confirmed, as it does it.")
    else:
        remarks.append(f"Calls are confirmed, as {title} does it.")
    allowed: tuple[str, ...] = ()
    if entry.approved or entry.approves_all:
        count = len(set(entry.approved))
        what = "all tools" if entry.approves_all else f"{count} tool{'' if count == 1 else 's'}"
        if not keep_approvals:
            remarks.append(f"Calls of {what} are not asked about in {title}.")
            host_remarks.append(f"--keep-approvals takes over which calls are not asked about in {title}.")
        elif entry.approves_all and not host.hides_switches:
            return tools, [f"Calls are not confirmed, as in {title}."], []
        elif not entry.approves_all:
            allowed = tuple(escape(tool) for tool in sorted(set(entry.approved)))
            remarks.append(f"Calls of {what} are not confirmed, as in {title}.")
    return stricter(tools, ToolConsent("ask", allow=allowed)), remarks, host_remarks


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
    return ours, "cwd" in entry.values or any(_is_there(start, word) for word in words[1:])


def _below(folder: Path, path: str) -> str:
    """A path in our form that starts from a folder, unless it is absolute or begins with a reference or with `~`."""
    return path if path.startswith(("/", "${", "~")) else str(Path(escape(str(folder))) / path)


def _is_there(folder: Path, word: object) -> bool:
    """Whether an argument is a relative path to something in a folder."""
    text = str(word).partition("=")[2] if str(word).startswith("-") else str(word)
    try:
        return bool(text) and not text.startswith("/") and (folder / text).exists()
    except (OSError, ValueError):  # the text is too long for a path, or holds a NUL character
        return False


def each_text(value: object, change: Callable[[str], str]) -> object:
    """The same values with each text changed. Scalars that were written without quotes stay as they are."""
    if isinstance(value, dict):
        return {name: each_text(below, change) for name, below in value.items()}
    if isinstance(value, list):
        return [each_text(item, change) for item in value]
    return change(value) if isinstance(value, str) and not isinstance(value, Plain) else value
