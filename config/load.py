"""Read, rewrite, validate: from a path to a `Config`, or to all that is wrong with the file at once.

This file joins the others and finds the line of a rejected value. It reads the configuration file and the files that
its `${file:...}` name, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from config.address_zones import is_loopback
from config.defaults import replacements, with_defaults
from config.document import Document, Place, is_null
from config.environment import Environment
from config.json_text import Wanted
from config.model import (
    DEFAULT_ADDRESS,
    ENTRY_RULES,
    NAME_RULES,
    URI_RULES,
    Config,
    Consent,
    KindConsent,
    Listen,
    Rule,
    ServerSpec,
    StdioServer,
    Trust,
    Verdict,
    meant_key,
)
from config.own_form import URL_KEYS, has_own_servers, may_be_at_a_host
from config.problems import ConfigError, KeyPath, Mark, clip, did_you_mean, nearest_word
from config.read import read
from config.references import Expander, GivenAddress, Secret, is_literal, reads_environment, variables_in
from config.schema import ConfigFile, known_keys
from config.types import SHORTEST_TOKEN, TOKEN_NAME, sentence
from config.written import written_sections

if TYPE_CHECKING:
    from config.desktop.desktop_file import DesktopFile
    from config.desktop.desktop_host import DesktopHost

# A key that is no word may be a value that slipped to the left of its colon: it is not repeated.
_WORD = re.compile(r"\w[\w.-]*")
# A name as long as a token may be a token in the wrong place: it is not repeated beside what is wrong with it.
_SHORT_NAME = re.compile(rf"(?={TOKEN_NAME}$).{{1,{SHORTEST_TOKEN - 1}}}")
_UNKNOWN_KEY = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_NEITHER = "expected exactly one of command and url, found neither"
_MISSING = {
    "servers": "it names what to serve",
    "cert": "it names the file with the certificate",
    "key": "it names the file with the private key of the certificate",
    "ca": "it names the file with the authority of the fleet's certificates",
    "fleet.name": "it is the same in all processes of the fleet",
    "store": "it is the URL of the fleet's PostgreSQL database",
    "keys": "they seal what clients of the fleet keep, and sign its decisions",
    "listen": "it is the address for the other processes of the fleet",
    "address": "it is where the other processes of the fleet reach this one",
    "tokens": "it names who may use the endpoint",
    "token": "it names the caller's token under listen.auth.tokens",
    "name": "it is the pattern of the rule",
    "uri": "it is the pattern of the rule",
    "to": "it is a host with its port",
}
_OF_HOSTS = {
    **dict.fromkeys(
        ("type", "transport", "transportType"),
        "remove it: which transport a url speaks is found out, and a command speaks over stdio",
    ),
    **dict.fromkeys(("serverUrl", "httpUrl"), 'did you mean "url"?'),
    **dict.fromkeys(("environment", "envs"), 'did you mean "env"?'),
    **dict.fromkeys(("working_dir", "working_directory", "workingDirectory"), 'did you mean "cwd"?'),
    "cmd": 'did you mean "command"?',
    "enabled": 'write "disabled: true" to switch a server off',
    **dict.fromkeys(("disabledTools", "excludeTools"), "write consent: {tools: {deny: [NAME]}}"),
    **dict.fromkeys(("tools", "includeTools", "enabledTools"), "write consent: {tools: {allow: [NAME]}}"),
    **dict.fromkeys(("autoApprove", "alwaysAllow"), "write consent: {tools: {allow: [NAME], default: ask}}"),
}
"""The remedies for keys of hosts in a server of ours."""
_FORMER: Mapping[KeyPath, str] = {
    ("listen", "server"): "remove it: HTTP/1.1 has one server, and HTTP/2 an address of its own, under listen.http2",
    ("servers", "client"): "remove it: one client, of Colonnade itself, reaches all servers with a url",
}
"""The remedies for keys of former versions, by their paths without the id of a server."""
_LAUNCH = (URL_KEYS, ("command", "cmd"))
_SERVERS_OF_HOSTS = frozenset({"mcpServers", "mcp_servers", "mcp", "context_servers", "amp.mcpServers", "extensions"})
_PYDANTIC_KEY = "[key]"  # how pydantic marks an error in a key instead of the value under it


Ask = Callable[[str, str], str | None]
"""Asks a person for an input of a desktop host's file, by its id and its description; None if nobody can be asked."""


def load(
    path: str | os.PathLike[str],
    environ: Mapping[str, str] | None = None,
    *,
    home: Path | None = None,
    answers: Mapping[str, Secret] = MappingProxyType({}),
    ask: Ask = lambda id, description: None,
    in_background: bool = False,
    handed_over: Mapping[str, Secret] = MappingProxyType({}),
    data: bytes | None = None,
    given_address: GivenAddress = (None, None),
) -> Config:
    """Read the configuration file at `path`, ours or a desktop host's.

    `environ` is where `${env:NAME}` looks, by default the environment of the process. Relative paths in the file start
    from its folder. Raises `ConfigError` with every problem found, in the order of the file; no message holds a secret.
    In a host's file, the problems of a server become its own `problem`, and the others can be used. `home` is the
    user's folder, where hosts keep further files. An input that is not among `answers` is asked for once, with `ask`.
    `in_background`: the environment is not that of the user's terminal, so a server that lacks a variable waits for it
    alone. `handed_over` are variables that clients handed over, for servers (`config.environment`). `data` is the
    content of the file, if it is not to be read from the disk. `given_address` holds instead of `listen.address`,
    also where other addresses are compared to it.
    """
    source = Path(os.path.abspath(path))
    file = place_of(source)
    environ = os.environ if environ is None else environ
    document, host = read_file(file, data)
    defaulted: Mapping[str, frozenset[str]] = {}
    if host is None:
        root, defaulted = with_defaults(document.root)
        environment = Environment(root, environ, handed_over, in_background=in_background)
        expander = Expander(
            environment.values, file.parent, may_be_unset=environment.awaited, given_address=given_address
        )
        config = _validate_own_file(document, root, defaulted, environment, expander)
        notices: tuple[str, ...] = ()
        digest, seen = document.digest, dict[Path, str]()
    else:
        from config.desktop.desktop_file import DesktopFile

        desktop = DesktopFile(host, file, document, home or Path.home(), environ)
        given = dict(answers)

        def answer(id: str) -> str | None:
            if id not in given and (text := ask(id, desktop.inputs.get(id, ""))) is not None:
                given[id] = Secret(text)
            return given[id].reveal() if id in given else None

        environment = Environment(desktop.root, environ, handed_over, in_background=in_background)
        for id, problem in _stopped(environment).items():
            desktop.entries[id].stop(problem)
        expander = Expander(
            environment.values,
            file.parent,
            may_be_empty=True,
            inputs=answer,
            may_be_unset=environment.awaited,
            given_address=given_address,
        )
        config = dataclasses.replace(
            _validate_host_file(document, desktop, expander), answers=given, unapproved=desktop.unapproved
        )
        notices = tuple(desktop.notices)
        root = desktop.root
        digest, seen = desktop.digest, dict(desktop.seen)
    notices = (
        *notices,
        *_secret_notices(root),
        *_listen_notices(config.listen),
    )
    config = dataclasses.replace(
        config,
        source=source,
        given_address=given_address,
        digest=digest,
        files=MappingProxyType({**seen, **dict.fromkeys((file, source), document.digest)}),
        written=written_sections(root),
        read_once=tuple(_read_once_notices(root)),
        servers=_with_variables(config, environment, defaulted, root),
        in_background=in_background,
        handed_over=handed_over,
        own_variables=environment.own_names,
    )
    found = (*_consent_notices(config.servers), *_view_notices(config), *config.redirect_notices())
    return dataclasses.replace(config, notices=(*notices, *dict.fromkeys(found)))


def read_file(file: Path, data: bytes | None = None) -> tuple[Document, DesktopHost | None]:
    """The values of a file, and the desktop host whose file it is; None for one in our form. `data` is its content, if
    that was read before.

    Raises:
        ConfigError: there is no map to look at, or it is a file of another kind.
    """
    document = read(file, lambda root: None if _is_own(file, root) else _wanted_of_host(file, root), data)
    if _is_own(file, document.root):
        return document, None
    from config.desktop.foreign_files import refusal
    from config.desktop.hosts import recognize

    host = recognize(file, document.root)
    if host is None and (reason := refusal(document.root)):
        raise document.fatal(document.places[()].value, reason)
    return document, host


def _is_own(file: Path, root: Mapping[str, object]) -> bool:
    """Whether a file is certainly in our form. The modules of hosts are not imported then."""
    return not may_be_at_a_host(file) and has_own_servers(root)


def _wanted_of_host(file: Path, root: Mapping[str, object]) -> Wanted | None:
    from config.desktop.desktop_host import wanted_of
    from config.desktop.hosts import recognize

    return wanted_of(recognize(file, root))


def place_of(path: Path) -> Path:
    """The path by which a file is read: its own, or that behind its links where only that is at the place of a host."""
    if not may_be_at_a_host(path):
        return path
    from config.desktop.hosts import is_at_a_host

    real = Path(os.path.realpath(path))
    return real if not is_at_a_host(path) and is_at_a_host(real) else path


def problems_of_server(id: str, server: dict[str, object], expander: Expander) -> list[str]:
    """The problems of one server in our form as sentences, each after its key. None holds a secret."""
    root: dict[str, object] = {"servers": {id: server}}
    document = Document("", root=root)
    _mark_all(document, root, ())
    try:
        ConfigFile.model_validate(root, context=expander)
    except ValidationError as error:
        report = _Report(document, lambda path: path)
        return [text for details in _errors(error) for text in report.sentences(details)]
    return []


def rules_in(path: KeyPath, written: list[object], folder: Path) -> tuple[Rule, ...]:
    """The rules of one list, in its order; none if one of them is wrong.

    Args:
        path: where the list is; it ends in a kind and a verdict.
        written: the list as the file has it.
        folder: that of the file.
    """
    kind, verdict = path[-2:]
    try:
        consent = TypeAdapter(Consent).validate_python({kind: {verdict: written}}, context=Expander(os.environ, folder))
    except ValidationError:
        return ()
    rules: tuple[Rule, ...] = getattr(getattr(consent, str(kind)), str(verdict))
    return rules


def _mark_all(document: Document, value: object, path: KeyPath) -> None:
    """Give each value a place, in the first line."""
    document.places[path] = Place(Mark(1, 1), Mark(1, 1))
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in below:
        _mark_all(document, each, (*path, key))


def _validate(document: Document, root: dict[str, Any], report: _Report, expander: Expander) -> Config:
    config = None
    listen = root.get("listen", {})
    if isinstance(listen, dict):  # a given address holds also where the file has none
        root = {**root, "listen": {"address": f"{DEFAULT_ADDRESS.host}:{DEFAULT_ADDRESS.port}", **listen}}
    try:
        config = ConfigFile.model_validate(root, context=expander).root
    except ValidationError as error:
        for details in _errors(error):
            report.add(details)
    if config is None or document.problems:
        raise ConfigError(document.problems)
    return config


def _validate_own_file(
    document: Document,
    root: dict[str, Any],
    defaulted: Mapping[str, frozenset[str]],
    environment: Environment,
    expander: Expander,
) -> Config:
    """Validate a file in our form, without the servers that are stopped. `root` has the defaults in each server."""
    stopped = _stopped(environment)

    def written(path: KeyPath) -> KeyPath:
        is_default = path[:1] == ("servers",) and len(path) > 2 and path[2] in defaulted.get(str(path[1]), ())
        return ("defaults", *path[2:]) if is_default else path

    report = _Report(document, written)
    if not stopped:
        return _validate(document, root, report, expander)
    sections = root["servers"]
    usable = {**root, "servers": {id: each for id, each in sections.items() if id not in stopped}}
    if isinstance(defaults := root.get("defaults"), dict):  # a default that lacks a variable stopped its servers
        lacking = {key for key, value in defaults.items() if variables_in(value) - environment.values.keys()}
        usable["defaults"] = {key: value for key, value in defaults.items() if key not in lacking}
    config = _validate(
        document, usable, report, dataclasses.replace(expander, may_be_empty=True, stopped=frozenset(stopped))
    )
    servers: dict[str, ServerSpec] = {
        id: _stopped_server(id, stopped[id], disabled=section.get("disabled") == "true")
        if id in stopped
        else config.servers[id]
        for id, section in sections.items()
    }
    return dataclasses.replace(config, servers=MappingProxyType(servers))


def _stopped(environment: Environment) -> dict[str, str]:
    """The problems of servers of which something is not known that permits or limits."""
    return {id: each.problem for id, each in environment.lacking.items() if each.own}


def _with_variables(
    config: Config, environment: Environment, defaulted: Mapping[str, frozenset[str]], root: Mapping[str, Any]
) -> Mapping[str, ServerSpec]:
    """The servers with their variables, and the keys that are defaults, or replace them. One that waits for variables
    has a problem."""
    made: dict[str, ServerSpec] = {}
    for id, spec in config.servers.items():
        spec = dataclasses.replace(spec, defaulted=defaulted.get(id, frozenset()))
        if not spec.problem:
            spec = dataclasses.replace(spec, replaced=replacements(spec, config.defaults, root))
        if not spec.problem:
            spec = dataclasses.replace(spec, variables=environment.used_by(spec))
            if id in environment.lacking:
                lacking = environment.lacking[id]
                spec = dataclasses.replace(spec, problem=lacking.problem, waits_for=lacking.awaited)
        made[id] = spec
    return MappingProxyType(made)


def _validate_host_file(document: Document, desktop: DesktopFile, expander: Expander) -> Config:
    """Validate a host's file. A server with a problem is left out, and the rest is validated again."""
    report = _Report(document, desktop.written)
    try:
        ConfigFile.model_validate(desktop.root, context=expander)
    except ValidationError as error:
        for details in _errors(error):
            path = details["loc"]
            if path[:1] == ("servers",) and len(path) > 1:
                desktop.entries[str(path[1])].problems += report.sentences(details)
    config = _validate(document, desktop.root, report, expander)
    servers: dict[str, ServerSpec] = {
        id: _stopped_server(id, "; ".join(entry.problems), disabled=entry.is_off)
        if entry.problems
        else config.servers[id]
        for id, entry in desktop.entries.items()
    }
    return dataclasses.replace(config, servers=MappingProxyType(servers))


def _stopped_server(id: str, problem: str, *, disabled: bool = False) -> StdioServer:
    """A server of which nothing is known but its problem."""
    return StdioServer(id=id, command=(Secret(""),), problem=problem, disabled=disabled)


def _errors(error: ValidationError) -> list[ErrorDetails]:
    found = error.errors(include_input=False, include_url=False)
    # A missing key may be there misspelt, which is then the only error: unknown keys come first.
    return sorted(found, key=lambda details: details["type"] == "missing")


class _Report:
    """Notes the errors of the model in the words of the file."""

    def __init__(self, document: Document, written: Callable[[KeyPath], KeyPath]) -> None:
        self._document = document
        self._written = written
        self._reported = {Mark(problem.line, problem.column) for problem in document.problems}
        self._said: set[tuple[Mark, str]] = set()
        """Each problem of the defaults is one of every server that has them."""
        self._misspelt: set[tuple[KeyPath, str | None]] = set()
        """Keys that are there misspelt, each with the path of its map."""

    def add(self, details: ErrorDetails) -> None:
        path = details["loc"]
        if path[:1] == ("servers",) and path[2:3] in (("command",), ("url",)):
            path = path[:2] + path[3:]  # after the id, pydantic names the kind of the server
        place = self._written(path)
        of_key = place[-1:] == (_PYDANTIC_KEY,) and place not in self._document.places
        if of_key:
            place = place[:-1]
        if details["type"] == "missing":
            self._add_missing(place)
        elif details["type"] in _UNKNOWN_KEY:
            text = self._unknown_key(path, place)
            if text:
                shown = place if _WORD.fullmatch(str(place[-1])) else place[:-1]
                self._note(self._key(place), shown, text)
        elif of_key or details["type"] == "config_key":
            self._note(self._key(place), place, details["msg"])
        else:
            place = self._deepest(place)
            text = sentence(details, _value(self._document.root, place), known_keys(path))
            self._note(self._document.places[place].value, place, text)

    def sentences(self, details: ErrorDetails) -> list[str]:
        """The error of one server as sentences, which do not count as problems of the file."""
        problems = self._document.problems
        before = len(problems)
        self.add(details)
        found = problems[before:]
        del problems[before:]
        above = where_of(self._written(details["loc"][:2]))
        return [
            f"{where}: {text}" if where else text
            for where, text in ((each.where.removeprefix(above).removeprefix("."), each.text) for each in found)
        ]

    def _add_missing(self, path: KeyPath) -> None:
        key = str(path[-1])
        above = self._deepest(path[:-1])
        if key == "command":
            if not self._misspelt & {(above, "command"), (above, "url")}:
                self._note(self._key(above), above, _NEITHER)
        elif (above, key) not in self._misspelt:
            text = f'the key "{key}" is missing; {_MISSING.get(f"{path[0]}.{key}") or _MISSING[key]}'
            self._note(self._document.places[above].value, path, text)

    def _unknown_key(self, path: KeyPath, place: KeyPath) -> str:
        """The error for a key that the model does not know; empty if another problem explains it."""
        key = str(path[-1])
        known = known_keys(path[:-1])
        if key not in known:
            self._misspelt.add((place[:-1], "url" if key.endswith("Url") else nearest_word(key, known)))
            if remedy := _FORMER.get(path[:1] + path[2:] if path[0] == "servers" else path):
                return f"former key; {remedy}"
            if key in _OF_HOSTS and path[:1] == ("servers",) and len(path) == 3:
                return f"unknown key; {_OF_HOSTS[key]}"
            if len(path) == 1 and key in _SERVERS_OF_HOSTS and "servers" in self._document.root:
                return "unknown key; only what stands under servers is served, so put its servers there"
            meant = did_you_mean(meant_key(key, known), known, '"')
            return f"unknown key; {meant or 'known keys: ' + ', '.join(known)}"
        # The key belongs to a server of the other kind.
        server = _value(self._document.root, place[:-1])
        assert isinstance(server, dict)
        has_url, has_command = (any(_is_filled(server.get(name)) for name in names) for names in _LAUNCH)
        if (has_url and has_command) or key in ("command", "url"):
            return "expected exactly one of command and url, found both; remove one" if key == "url" else ""
        if has_url:
            return f"{key} belongs to a server with a command; this one has a url"
        if has_command:
            is_secret = key in ("headers", "headers_helper", "oauth")
            instead = "a program gets its secrets in env" if is_secret else "this one has a command"
            return f"{key} belongs to a server with a url; {instead}"
        return ""

    def _note(self, mark: Mark, path: KeyPath, text: str) -> None:
        """Note a problem, unless reading the file found one at its place, from which it only follows."""
        if mark not in self._reported and (mark, text) not in self._said:
            self._said.add((mark, text))
            self._document.add(mark, text, where_of(path))

    def _deepest(self, path: KeyPath) -> KeyPath:
        """The path, as far as the file has values there."""
        while path not in self._document.places:
            path = path[:-1]
        return path

    def _key(self, path: KeyPath) -> Mark:
        """The mark of the last key of a path."""
        place = self._document.places[self._deepest(path)]
        return place.key or place.value


def _value(root: object, path: KeyPath) -> object:
    value: Any = root
    for part in path:
        value = value[part]
    return value


def _is_filled(value: object) -> bool:
    return bool(value) and not is_null(value)


def where_of(path: KeyPath) -> str:
    """A path as a person reads it: `servers.gh.consent.tools.allow[0]`."""
    shown = path[:3] if _may_be_secret(path) else path
    return "".join(f"[{part}]" if isinstance(part, int) else f".{clip(str(part))}" for part in shown).removeprefix(".")


def _may_be_secret(path: KeyPath) -> bool:
    """Whether a path ends in the name of a variable or header that is none: perhaps a value in the wrong place."""
    match path:
        case ("servers" | "mcpServers", _, "env" | "headers", str(name), *_):
            return _WORD.fullmatch(name) is None
        case ("listen", "auth", "tokens", str(name), *_):
            return _SHORT_NAME.fullmatch(name) is None
        case _:
            return False


def _secret_notices(root: dict[str, Any]) -> Iterator[str]:
    """Secrets that everyone who can read the file has. The file is valid, so its values have their form."""
    tokens = root.get("listen", {}).get("auth", {}).get("tokens", {})
    fleet = root.get("fleet") or {}
    secrets = {f"listen.auth.tokens.{name}": token for name, token in tokens.items()}
    secrets |= {f"fleet.keys[{n}]": key for n, key in enumerate(fleet.get("keys", ()))}
    if (token := (root.get("metrics") or {}).get("token")) is not None:
        secrets["metrics.token"] = token
    store = fleet.get("store", "")
    if is_literal(store) and urlsplit(store).password is not None:  # with references it need not look like a URL
        secrets["fleet.store"] = store
    for place, secret in secrets.items():
        if is_literal(secret):
            yield (
                f"{place}: written in the file itself, so everyone who can read the file has it; "
                "${env:NAME} or ${file:PATH} keeps it out"
            )


def _read_once_notices(root: dict[str, Any]) -> Iterator[str]:
    """Keys of the endpoint that a reload takes over, but whose value comes from the environment of the process."""
    listen = root.get("listen", {})
    values = {f"auth.tokens.{name}": token for name, token in listen.get("auth", {}).get("tokens", {}).items()}
    values |= {f"tls.{key}": path for key, path in listen.get("tls", {}).items()}
    for key, text in values.items():
        if reads_environment(text):
            yield (
                f"listen.{key}: environment variables are read once, when the host starts; ${{file:PATH}} is read at "
                "each reload"
            )


def _listen_notices(listen: Listen) -> Iterator[str]:
    if listen.tls is not None and listen.http2 is None:
        yield "listen.tls: the endpoint is served over HTTP/1.1 alone; listen.http2 adds an address with HTTP/2"
    for key in ("address", "http2", "metrics") if not listen.hosts else ():
        address = getattr(listen, key)
        if address is None or is_loopback(address.host):
            continue
        own = "" if ip_address(address.host).is_unspecified else f" and {address.host}"
        yield (
            f"listen.{key}: clients are answered at URLs with localhost, 127.0.0.1, [::1]{own} only, and get HTTP "
            "421 at others; list each name and IP address that they use in URLs under listen.hosts"
        )


def _consent_notices(servers: Mapping[str, ServerSpec]) -> Iterator[str]:
    """Rules that are probably not in the server's own names, and defaults that its own trust does not expect."""
    for id, spec in servers.items():
        yield from (f"servers.{id}: {text}" for text in spec.replaced)
        owner = "defaults" if "consent" in spec.defaulted else f"servers.{id}"
        for kind in (*NAME_RULES, *URI_RULES):
            lists: KindConsent = getattr(spec.consent, kind)
            where = f"{owner}.consent.{kind}"
            patterns = (rule.pattern for rule in (*(lists.allow or ()), *lists.ask, *lists.deny))
            yield from _pattern_notices(where, kind, patterns, spec)
        is_own_trust = spec.trust is Trust.UNTRUSTED and "trust" not in spec.defaulted
        if is_own_trust and "consent" in spec.defaulted and _allows_something(spec.consent):
            yield (
                f"servers.{id}.trust: untrusted asks only about what consent does not mention, and defaults.consent "
                f"allows some of it; write a consent for {id} too (consent: {{}} leaves all to trust)"
            )


def _view_notices(config: Config) -> Iterator[str]:
    """Names in views and overrides that are probably not the server's own."""
    for id, spec in config.servers.items():
        yield from _pattern_notices(f"servers.{id}.overrides", "tools", spec.overrides, spec)
        for name, view in config.views.items():
            part = view.part(id) if view.servers is not None else None
            for kind in ENTRY_RULES if part is not None else ():
                yield from _pattern_notices(f"views.{name}.servers.{id}.{kind}", kind, getattr(part, kind), spec)
            yield from _pattern_notices(f"views.{name}.overrides.{id}", "tools", view.overrides.get(id, ()), spec)


def _pattern_notices(where: str, kind: str, patterns: Iterable[str], spec: ServerSpec) -> Iterator[str]:
    for pattern in patterns:
        if kind in NAME_RULES and pattern.startswith(f"{spec.outward_prefix}__"):
            without = f"without {spec.outward_prefix}__ it would be"
            yield f'{where}: "{clip(pattern)}" is not the server\'s own name; {without}'
        elif kind in URI_RULES and pattern[:1] not in ("*", "?") and ":" not in pattern:
            yield f'{where}: "{clip(pattern)}" has no scheme, as URIs have; a file is file:///path'


def _allows_something(consent: Consent) -> bool:
    lists = (consent.tools, consent.resources, consent.prompts, consent.roots, consent.elicitation.url)
    words = (consent.sampling, consent.elicitation.form, *(each.default for each in lists))
    return Verdict.ALLOW in words or any(each.allow for each in lists)
