"""Read, rewrite, validate: from a path to a `Config`, or to all that is wrong with the file at once.

This file joins the others and finds the line of a rejected value. It reads the configuration file and the files that
its `${file:...}` name, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.address_zones import is_loopback
from config.document import Document, Place
from config.hosts import DesktopHost, place_of, recognize
from config.hosts.desktop_file import DesktopFile
from config.hosts.desktop_host import wanted_of
from config.hosts.entry import ServerEntry
from config.model import NAME_RULES, URI_RULES, Config, KindConsent, Listen, ServerSpec, StdioServer
from config.problems import ConfigError, KeyPath, Mark, clip, did_you_mean, nearest_word
from config.read import read
from config.references import Expander, Secret, is_literal, reads_environment
from config.schema import ConfigFile, known_keys
from config.types import SHORTEST_TOKEN, TOKEN_NAME, sentence
from config.written import written_sections

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
    "tokens": "it names who may use the endpoint",
    "name": "it is the pattern of the rule",
    "uri": "it is the pattern of the rule",
}
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
) -> Config:
    """Read the configuration file at `path`, ours or a desktop host's.

    `environ` is where `${env:NAME}` looks, by default the environment of the process. Relative paths in the file start
    from its folder. Raises `ConfigError` with every problem found, in the order of the file; no message holds a secret.
    In a host's file, the problems of a server become its own `problem`, and the others can be used. `home` is the
    user's folder, where hosts keep further files. An input that is not among `answers` is asked for once, with `ask`.
    """
    source = Path(os.path.abspath(path))
    file = place_of(source)
    environ = os.environ if environ is None else environ
    document, host = read_file(file)
    if host is None:
        expander = Expander(environ, file.parent)
        root = document.root
        config = _validate(document, root, _Report(document, lambda path: path), expander)
        notices: tuple[str, ...] = ()
        digest, seen = document.digest, dict[Path, str]()
    else:
        desktop = DesktopFile(host, file, document, home or Path.home(), environ)
        given = dict(answers)

        def answer(id: str) -> str | None:
            if id not in given and (text := ask(id, desktop.inputs.get(id, ""))) is not None:
                given[id] = Secret(text)
            return given[id].reveal() if id in given else None

        expander = Expander(environ, file.parent, may_be_empty=True, inputs=answer)
        config = dataclasses.replace(_validate_host_file(document, desktop, expander), answers=given)
        notices = tuple(desktop.notices)
        root = desktop.root
        digest, seen = desktop.digest, dict(desktop.seen)
    notices = (
        *notices,
        *_token_notices(root),
        *_listen_notices(config.listen),
        *_consent_notices(config.servers),
    )
    return dataclasses.replace(
        config,
        source=source,
        digest=digest,
        files=MappingProxyType({**seen, **dict.fromkeys((file, source), document.digest)}),
        notices=notices,
        written=written_sections(root),
        read_once=tuple(_read_once_notices(root)),
    )


def read_file(file: Path) -> tuple[Document, DesktopHost | None]:
    """The values of a file, and the desktop host whose file it is; None for one in our form.

    Raises:
        ConfigError: there is no map to look at.
    """
    document = read(file, lambda root: wanted_of(recognize(file, root)))
    return document, recognize(file, document.root)


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


def _mark_all(document: Document, value: object, path: KeyPath) -> None:
    """Give each value a place, in the first line."""
    document.places[path] = Place(Mark(1, 1), Mark(1, 1))
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in below:
        _mark_all(document, each, (*path, key))


def _validate(document: Document, root: dict[str, Any], report: _Report, expander: Expander) -> Config:
    config = None
    try:
        config = ConfigFile.model_validate(root, context=expander).root
    except ValidationError as error:
        for details in _errors(error):
            report.add(details)
    if config is None or document.problems:
        raise ConfigError(document.problems)
    return config


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
        id: _unusable(entry) if entry.problems else config.servers[id] for id, entry in desktop.entries.items()
    }
    return dataclasses.replace(config, servers=MappingProxyType(servers))


def _unusable(entry: ServerEntry) -> StdioServer:
    return StdioServer(id=entry.id, command=(Secret(""),), problem="; ".join(entry.problems), disabled=entry.is_off)


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
        above = _where(self._written(details["loc"][:2]))
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
            text = f'the key "{key}" is missing; {_MISSING[key]}'
            self._note(self._document.places[above].value, path, text)

    def _unknown_key(self, path: KeyPath, place: KeyPath) -> str:
        """The error for a key that the model does not know; empty if another problem explains it."""
        key = str(path[-1])
        known = known_keys(path[:-1])
        if key not in known:
            self._misspelt.add((place[:-1], nearest_word(key, known)))
            meant = did_you_mean(key, known, '"')
            return f"unknown key; {meant or 'known keys: ' + ', '.join(known)}"
        # The key belongs to a server of the other kind.
        server = _value(self._document.root, place[:-1])
        assert isinstance(server, dict)
        if "command" in server and "url" in server:
            return "expected exactly one of command and url, found both; remove one" if key == "url" else ""
        if "url" in server:
            return f"{key} belongs to a server with a command; this one has a url"
        if "command" in server:
            is_secret = key in ("headers", "headers_helper", "oauth")
            instead = "a program gets its secrets in env" if is_secret else "this one has a command"
            return f"{key} belongs to a server with a url; {instead}"
        return ""

    def _note(self, mark: Mark, path: KeyPath, text: str) -> None:
        """Note a problem, unless reading the file found one at its place, from which it only follows."""
        if mark not in self._reported:
            self._document.add(mark, text, _where(path))

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


def _where(path: KeyPath) -> str:
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


def _token_notices(root: dict[str, Any]) -> Iterator[str]:
    """Tokens that everyone who can read the file has. The file is valid, so its values have their form."""
    for name, token in root.get("listen", {}).get("auth", {}).get("tokens", {}).items():
        if is_literal(token):
            yield (
                f"listen.auth.tokens.{name}: written in the file itself, so everyone who can read the file has it; "
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
    host = listen.address.host
    if not is_loopback(host) and not listen.hosts:
        own = "" if ip_address(host).is_unspecified else f" and {host}"
        yield (
            f"listen.address: clients are answered at URLs with localhost, 127.0.0.1, [::1]{own} only, and get HTTP "
            "421 at others; list each name and IP address that they use in URLs under listen.hosts"
        )


def _consent_notices(servers: Mapping[str, ServerSpec]) -> Iterator[str]:
    """Rules that are probably not in the server's own names."""
    for id, spec in servers.items():
        for kind in (*NAME_RULES, *URI_RULES):
            lists: KindConsent = getattr(spec.consent, kind)
            where = f"servers.{id}.consent.{kind}"
            for pattern in (rule.pattern for rule in (*(lists.allow or ()), *lists.ask, *lists.deny)):
                if kind in NAME_RULES and pattern.startswith(f"{id}__"):
                    yield f'{where}: "{clip(pattern)}" is not the server\'s own name; without {id}__ it would be'
                elif kind in URI_RULES and pattern[:1] not in ("*", "?") and ":" not in pattern:
                    yield f'{where}: "{clip(pattern)}" has no scheme, as URIs have; a file is file:///path'
