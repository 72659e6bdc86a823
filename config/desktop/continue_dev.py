"""Continue: `config.yaml`, with a list of `mcpServers`, and files of servers alone in folders `.continue/mcpServers`.

Files in JSON are in the form of another host's: a map of servers, the same for each project, or one server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from io import StringIO
from urllib.parse import unquote, urlsplit

from dotenv import dotenv_values

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, Servers, rewrite, servers_at
from config.desktop.entry import (
    CannotUse,
    ServerEntry,
    cannot,
    duration,
    escape,
    harmless,
    kind,
    mapping,
    names,
    off_if,
    program,
    same,
    truth,
)
from config.document import is_null
from config.patterns import after_prefix
from config.read import read_text

_MOVED = "CONTINUE_GLOBAL_DIR"
_USER = HostFile("~/.continue/config.yaml", variable=_MOVED, below="config.yaml")
_FOLDERS = tuple(
    HostFile(f"~/.continue/{names}", variable=_MOVED, below=names, is_all_servers=True)
    for names in ("mcpServers/*.yaml", "mcpServers/*.yml", "mcpServers/*.json")
)
_PROJECTS = tuple(
    HostFile(f".continue/mcpServers/*.{end}", is_project=True, is_all_servers=True) for end in ("yaml", "yml", "json")
)

_SECRET = re.compile(r"\$\{\{\s*(secrets|inputs)\.([^\s{}]+)\s*\}\}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}", re.ASCII)
_NO_HUB = "names a block of Continue's hub, which only its host can fetch; write the server out"


def _translate(text: str, context: FileContext) -> str:
    """`${{ secrets.NAME }}`: a value of the `.env` files that Continue reads, or else a variable of the environment."""
    if _SECRET.search(text) is None:
        return escape(text)
    project = context.project
    files = [context.users(_USER).parent / ".env"]
    if project is not None:
        files = [project / ".continue" / ".env", project / ".env", *files]
    known: dict[str, str | None] = {}
    for file in reversed(files):
        context.note(file)
        with suppress(OSError, ValueError):  # it is not there, or no text: then it gives no values
            known |= dotenv_values(stream=StringIO(read_text(file)), interpolate=False)
    return _with_secrets(text, known)


def _with_secrets(text: str, known: Mapping[str, str | None]) -> str:
    def reference(match: re.Match[str]) -> str:
        name = match[2]
        if match[1] == "inputs":
            raise CannotUse("it has an input of a block, which only its host can fill in; write the value")
        if (value := known.get(name)) is not None:
            return escape(value)
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise CannotUse("it has a secret whose name no variable can have, and that is in no .env file of its host")
        return f"${{env:{name}}}"

    return rewrite(text, _SECRET, reference)


def _find(context: FileContext) -> Servers:
    value = context.root.get("mcpServers")
    if isinstance(value, list):
        return [(("mcpServers", n), _name(item, n), item) for n, item in enumerate(value)]
    if value is not None:
        return servers_at(context, ("mcpServers",))
    if "projects" in context.root:
        keys = (("projects", project, "mcpServers") for project in context.at("projects"))
        return [each for path in keys for each in servers_at(context, path)]
    if {"command", "url"} & set(context.root):
        return [((), context.file.stem, context.root)]
    return []


def _name(item: object, place: int) -> str:
    if isinstance(item, dict):
        for key in ("name", "uses"):
            if isinstance(item.get(key), str) and item[key]:
                return str(item[key])
    return f"server {place + 1}"


def _env(entry: ServerEntry, key: str, value: object) -> None:
    """Variables, except `PATH`, which is always that of the host. Here alone, `${NAME}` is a secret too."""
    own = {name: text for name, text in mapping(key, value).items() if name != "PATH"}
    if len(own) < len(mapping(key, value)):
        entry.note("its host does not set PATH from the file, so it is left out")
    entry.set(key, own, key, lambda text: entry.translate(_VARIABLE.sub(r"${{ secrets.\1 }}", text)))


def _url(entry: ServerEntry, key: str, value: object) -> None:
    # A URL is shown, so a secret in it stays a reference.
    entry.set(key, value, key, lambda text: _with_secrets(text, {}))


def _headers(entry: ServerEntry, key: str, value: object) -> None:
    """`headers`, those in `requestOptions`, and `apiKey`; the later replace the earlier."""
    options = mapping("requestOptions", entry.values.get("requestOptions", {}))
    for name, option in options.items():
        if name == "verifySsl" and not is_null(option) and not truth("verifySsl", option):
            raise CannotUse('its key "requestOptions" switches the check of certificates off, which is not possible')
        if name not in ("headers", "verifySsl", "timeout"):
            raise CannotUse('its key "requestOptions" holds a key that is not supported; remove the key')
    headers: dict[str, object] = {}
    for source in (entry.values.get("headers", {}), options.get("headers", {})):
        headers |= {} if is_null(source) else mapping("headers", source)
    if isinstance(key_text := entry.values.get("apiKey"), str) and not is_null(key_text):
        headers = {name: text for name, text in headers.items() if name.lower() != "authorization"}
        headers["Authorization"] = f"Bearer {key_text}"
    if headers:
        entry.set("headers", headers, key)


def _cwd(entry: ServerEntry, key: str, value: object) -> None:
    """A folder, or its URI."""
    if isinstance(value, str) and value.startswith("file://"):
        value = unquote(urlsplit(value).path)
    entry.set(key, value, key)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The permissions of the command-line program."""
    permissions = context.sibling(context.users(_USER).with_name("permissions.yaml"))
    lists = {key: _patterns(key, permissions[key]) for key in ("allow", "ask", "exclude") if key in permissions}
    for name, entry in entries.items():
        cwd = entry.values.get("cwd", "/")
        if context.project is None and isinstance(cwd, str) and not cwd.startswith(("/", "file:")):
            entry.stop('its key "cwd" starts from a workspace, which is not known here; write an absolute path')
        prefix = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") + "_"
        entry.deny(_own(prefix, lists.get("exclude", [])))
        entry.ask(_own(prefix, lists.get("ask", [])))
        if "allow" in lists:
            entry.approve(sorted(_own(prefix, lists["allow"])))


def _patterns(key: str, value: object) -> list[str]:
    """The patterns of a list. One for certain arguments is taken for all."""
    if is_null(value):
        return []
    found = names(key, value)
    return [pattern.partition("(")[0] for pattern in found if key != "allow" or "(" not in pattern]


def _own(prefix: str, patterns: list[str]) -> set[str]:
    """The patterns for tools by their own names, and by those after the server's."""
    return {rest for pattern in patterns for rest in (pattern, *after_prefix(pattern, prefix))}


_RULES = {
    "name": harmless,
    "type": kind(remote=("streamable-http", "sse", "http")),
    "command": program,
    "args": same,
    "env": _env,
    "envFile": harmless,  # its host warns and does not read it
    "cwd": _cwd,
    "url": _url,
    **dict.fromkeys(("apiKey", "requestOptions", "headers"), _headers),
    "connectionTimeout": duration("start_timeout", 0.001),
    "disabled": off_if("true"),
    **dict.fromkeys(("serverName", "faviconUrl", "sourceFile", "sourceSlug"), harmless),
    **dict.fromkeys(("uses", "with", "override"), cannot(_NO_HUB)),
}

CONTINUE = DesktopHost(
    name="continue",
    title="Continue",
    files=(_USER, *_FOLDERS, *_PROJECTS),
    servers=("mcpServers",),
    other_keys=(("projects",), *((key,) for key in _RULES)),  # a file may be a single server
    rules=_RULES,
    translate=_translate,
    find=_find,
    restrict=_restrict,
    syntax="YAML",
    has_shape=lambda root: isinstance(root.get("mcpServers"), list),
    has_marks=lambda root: isinstance(root.get("mcpServers"), list),
    hides_switches=True,
)
