"""One server of a desktop host's file on its way to our form, and the rules for the keys of such files.

A rule takes one key of a server. It maps the value to a key of ours, makes a restriction of it, stops the server with a
sentence, or does nothing where the key means nothing here. A key without a rule stops the server: it could be a
restriction. So a server can do less here than at its host, and never more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Concatenate, ParamSpec

from dotenv import dotenv_values

from config.document import Plain, is_null, kind_of
from config.file_state import note_state
from config.own_form import URL_KEYS
from config.patterns import common, covered, overlap, widest
from config.problems import KeyPath, clip, did_you_mean
from config.read import read_text

NEEDS_OAUTH = "needs OAuth with a client that is not read from this file; use a file of Colonnade's own, with oauth"
_REDIRECT = "the client for its login must permit the redirect http://127.0.0.1:PORT/oauth/callback at the issuer"
REMOTE_TYPES = ("http", "sse", "streamable-http", "streamableHttp", "streamable_http")

P = ParamSpec("P")


class CannotUse(Exception):
    """The server cannot be used; the text says why and holds no value that may be secret."""


Translate = Callable[[str], str]
"""Write the references of a text in our form. Raises `CannotUse` for one that has no equivalent here."""


@dataclass
class ServerEntry:
    """A server while its keys are read. `values` is its entry in the file, and `path` leads there. Relative paths start
    from `base`."""

    name: str
    id: str
    path: KeyPath
    values: dict[str, object]
    translate: Translate
    base: Path
    ours: dict[str, object] = field(default_factory=dict)
    """The keys in our form."""
    written: dict[str, KeyPath] = field(default_factory=dict)
    """The places in the file of the keys in our form, where they have other names."""
    problems: list[str] = field(default_factory=list)
    """The reasons why the server cannot be used."""
    notes: list[str] = field(default_factory=list)
    """Differences from its host, for the person who starts it."""
    approved: list[str] = field(default_factory=list)
    """Tools that its host calls without asking. They are approved here only if the person who imports says so."""
    approves_all: bool = False
    is_off: bool = False
    needs_approval: bool = False
    """Whether it stands in a project's file and no file says that the host's person has approved it."""
    detected: dict[str, bool] = field(default_factory=dict)
    """Settings of its host that could restrict its calls and are not carried out here, each with whether it may forbid
    some."""
    file_variables: dict[str, str] = field(default_factory=dict)
    """Variables of the files that the entry names."""
    seen: dict[Path, str] = field(default_factory=dict)
    """The states of the files that were looked at."""
    _only: set[str] | None = None
    _denied: set[str] = field(default_factory=set)
    _asked: set[str] = field(default_factory=set)
    _default: str = ""

    def apply(self, rules: dict[str, Rule]) -> None:
        """Read all keys of the entry by their rules. Problems are kept, each once."""
        for key, value in self.values.items():
            rule = rules.get(key)
            if rule is None:
                meant = did_you_mean(key, rules, '"')
                self.stop(f'its key "{clip(key)}" is not known here and could restrict it; {meant or "remove the key"}')
            elif not is_null(value):  # hosts write null for keys that are not set
                self.attempt(rule, key, value)

    def attempt(self, apply: Callable[Concatenate[ServerEntry, P], object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Apply something to this server, and keep the problem if it cannot be used then."""
        try:
            apply(self, *args, **kwargs)
        except CannotUse as problem:
            self.stop(str(problem))

    def set(self, key: str, value: object, place: str, translate: Translate | None = None) -> None:
        """Set a key of ours to a value of the key `place` in the file, with references in our form.

        Raises:
            CannotUse: a reference has no equivalent; the value is kept literally, for the person who mends the server.
        """
        self.written[key] = (*self.path, place)
        self.ours[key] = _translated(value, escape)
        self.ours[key] = _translated(value, translate or self.translate)

    def stop(self, problem: str) -> None:
        """Keep the server from being used."""
        if problem not in self.problems:
            self.problems.append(problem)

    def note(self, text: str) -> None:
        """Tell the person who starts the server of a difference from its host."""
        if text not in self.notes:
            self.notes.append(text)

    def set_env_file(self, value: object, place: str) -> None:
        """Add the variables of a file; those of the entry itself replace them.

        Raises:
            CannotUse: the file cannot be read.
        """
        if not isinstance(value, str) or "${" in (path := self.translate(value)).replace("$${", ""):
            raise CannotUse(f'its key "{place}" is not a plain path')
        file = self.base / path.replace("$${", "${")
        note_state(self.seen, file)
        try:
            text = read_text(file)
        except (OSError, ValueError):
            raise CannotUse(f'the file that its key "{place}" names cannot be read') from None
        for name, found in dotenv_values(stream=StringIO(text), interpolate=False).items():
            self.file_variables[name] = escape(found or "")

    def switch_off(self) -> None:
        self.is_off = True

    def detect(self, setting: str, *, may_forbid: bool = True) -> None:
        """Note a setting of its host, such as a hook, that could restrict its calls and is not carried out here. One
        that may not forbid a call can only have a person confirm it."""
        self.detected[setting] = self.detected.get(setting, False) or may_forbid

    @property
    def may_be_forbidden(self) -> bool:
        """Whether a setting that is not carried out here may forbid its calls."""
        return any(self.detected.values())

    def start_in_base(self) -> None:
        """Have the program, and relative paths of it, start from `base`."""
        if "command" not in self.ours:
            return
        cwd, command = self.ours.get("cwd", ""), self.ours["command"]
        if isinstance(cwd, str):
            self.ours["cwd"] = _below(self.base, cwd)
        words = command if isinstance(command, list) else [command]
        if words and isinstance(words[0], str) and "/" in words[0]:
            words = [_below(self.base, words[0]), *words[1:]]
            self.ours["command"] = words if isinstance(command, list) else words[0]

    def only(self, tools: Iterable[str]) -> None:
        """Permit no other tools. With several calls, only tools that each of them names.

        Raises:
            CannotUse: a name could match more here.
        """
        named = set(tools)
        for tool in named:
            _check_literal(tool)
        self.permit(named)

    def permit(self, patterns: Iterable[str]) -> None:
        """Permit no tools that match none of these patterns."""
        self._only = set(patterns) if self._only is None else common(self._only, patterns)

    def deny(self, tools: Iterable[str]) -> None:
        """Deny these tools; `*` and `?` are wild, so that no more than these are permitted."""
        self._denied.update(filter(None, tools))

    def ask(self, tools: Iterable[str] | None = None) -> None:
        """Have a person confirm calls of these tools, or of all."""
        if tools is None:
            self._default = self._default or "ask"
        else:
            self._asked.update(filter(None, tools))

    def deny_all(self) -> None:
        self._default = "deny"

    def approve(self, tools: Iterable[str] | None = None) -> None:
        """Note tools, or all, that the host calls without asking."""
        if tools is None:
            self.approves_all = True
        else:
            self.approved.extend(tools)

    def approve_named(self, tools: Iterable[str]) -> None:
        """Note tools by their literal names. One with `*` or `?` in it would be more tools here, and is left out."""
        self.approve(tool for tool in tools if not set("*?") & set(tool))

    def consent_for_tools(self) -> dict[str, object] | str | None:
        """The restrictions as rules of ours; None if there are none."""
        denied = widest(self._denied)
        if self._default == "deny" or covered("*", denied):
            return "deny"
        rules: dict[str, object] = {}
        asked = widest(tool for tool in self._asked if not covered(tool, denied))
        if self._only is not None:
            permitted = widest(tool for tool in self._only if not covered(tool, denied))
            asked = permitted if self._default else _asked_within(permitted, asked)
            rules["allow"] = sorted(permitted - asked)
        elif self._default:
            asked = set()
            rules["default"] = self._default
        if asked:
            rules["ask"] = sorted(asked)
        if denied:
            rules["deny"] = sorted(denied)
        return self._default if rules == {"default": self._default} else rules or None

    @property
    def asks_all(self) -> bool:
        """Whether the file says that its host asks a person before every call that it does not approve by name."""
        return self._default == "ask"

    def restrictions(self) -> dict[str, object] | str | None:
        """The rules of ours as in `consent_for_tools`, without confirmation of those tools that none names."""
        apart = replace(self, _default="") if self._default == "ask" else self
        return apart.consent_for_tools()

    @property
    def words(self) -> list[str]:
        """The program and its arguments in our form; none for a server at a URL."""
        command, args = self.ours.get("command", []), self.ours.get("args", [])
        words = [*(command if isinstance(command, list) else [command]), *(args if isinstance(args, list) else [])]
        return [str(word) for word in words] if all(isinstance(word, str) for word in words) else []

    @property
    def served(self) -> dict[str, object]:
        """The keys in our form as they are read. The value of a reference of a server that is off is of no interest;
        its variable may be long gone."""
        return {key: _translated(value, _literal) for key, value in self.ours.items()} if self.is_off else self.ours

    def finish(self) -> None:
        """Write the variables of files and the restrictions into the keys in our form."""
        env = self.ours.get("env", {})
        if self.file_variables and isinstance(env, dict):
            self.ours["env"] = {**self.file_variables, **env}
        if self.is_off:
            self.ours["disabled"] = Plain("true")
        tools = self.consent_for_tools()
        if tools is None:
            return
        consent = self.ours.setdefault("consent", {})
        if not isinstance(consent, dict) or "tools" in consent:
            self.stop("it has both consent for tools and a key of its host that restricts tools; remove one of them")
            return
        self.ours["consent"] = {**consent, "tools": _translated(tools, escape)}


def _translated(value: object, translate: Translate) -> object:
    if isinstance(value, dict):
        return {name: _translated(below, translate) for name, below in value.items()}
    if isinstance(value, list):
        return [_translated(item, translate) for item in value]
    if not isinstance(value, str):
        return value
    made = translate(str(value))
    return value if made == value else made  # a number, a truth or nothing stays what it is


Rule = Callable[[ServerEntry, str, object], None]


def _check_literal(tool: str) -> None:
    if "*" in tool or "?" in tool:
        raise CannotUse(f'the tool "{clip(tool)}" is permitted by a name with * or ?, which would match more here')


def _asked_within(permitted: set[str], asked: set[str]) -> set[str]:
    """The patterns to confirm, none of which may match a tool that is not permitted: a rule that asks permits too.

    A permitted pattern that overlaps such an asked one in part is asked as a whole."""
    beyond = {other for other in asked if not covered(other, permitted)}
    partly = {tool for tool in permitted for other in beyond if overlap(tool, other)}
    return widest(common(permitted, asked) | partly)


def escape(text: str) -> str:
    """A text without references, in our form."""
    return text.replace("${", "$${")


def _below(folder: Path, text: str) -> str:
    """A path in our form that starts from a folder, unless it is absolute or begins with a reference or with `~`."""
    return text if text.startswith(("/", "$", "~")) else str(Path(escape(str(folder))) / text)


def _literal(text: str) -> str:
    """A text in our form with its references taken literally."""
    return escape(text.replace("$${", "${"))


# Rules


def same(entry: ServerEntry, key: str, value: object) -> None:
    """The key means the same here."""
    entry.set(key, value, key)


def renamed(ours: str) -> Rule:
    """The key has another name here."""
    return lambda entry, key, value: entry.set(ours, value, key)


def within(rules: Mapping[str, Rule]) -> Rule:
    """The keys of the connection in a map of their own."""

    def read(entry: ServerEntry, key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise CannotUse(f'its key "{key}" is {kind_of(value)}; expected a map')
        if twice := next((name for name in rules if name in entry.values), ""):
            raise CannotUse(f'it has both the key "{key}" and the key "{twice}"; remove one')
        replace(entry, values=value, path=(*entry.path, key)).apply(dict(rules))

    return read


def program(entry: ServerEntry, key: str, value: object) -> None:
    """A command that is the program alone, even if it holds spaces."""
    entry.set("command", value, key)
    if isinstance(value, str):
        entry.ours.setdefault("args", [])


def harmless(entry: ServerEntry, key: str, value: object) -> None:
    """The key changes nothing of what the server may do."""


def harmless_map(*known: str) -> Rule:
    """A map that changes nothing of what the server may do, if it has no other keys than these."""

    def check(entry: ServerEntry, key: str, value: object) -> None:
        for name in mapping(key, value):
            if name not in known:
                meant = did_you_mean(name, known, '"') or "remove the key"
                raise CannotUse(f'its key "{key}.{clip(name)}" is not known here and could restrict it; {meant}')

    return check


def env_file(entry: ServerEntry, key: str, value: object) -> None:
    """A file of variables, as `.env` files are."""
    entry.set_env_file(value, key)


def headers_helper(entry: ServerEntry, key: str, value: object) -> None:
    """A command line for a shell that prints headers."""
    entry.set("headers_helper", ["/bin/sh", "-c", value] if isinstance(value, str) else value, key)


def oauth_client(**ours: str) -> Rule:
    """The client of a login: our keys by those of the host. An empty one means nothing here, since Colonnade finds the
    issuer by itself. The client is registered for the redirect of its host, which is another one than ours."""

    def read(entry: ServerEntry, key: str, value: object) -> None:
        client: dict[str, object] = {}
        for name, each in mapping(key, value).items():
            if name not in ours:
                meant = did_you_mean(name, ours, '"') or "remove the key"
                raise CannotUse(f'its key "{key}.{clip(name)}" is not known here and could restrict it; {meant}')
            if ours[name]:
                is_list = ours[name] == "scopes" and isinstance(each, str)
                client[ours[name]] = str(each).split() if is_list else each
        if client:
            entry.set("oauth", client, key)
        if "client_id" in client:
            entry.note(_REDIRECT)

    return read


def cannot(reason: str, *, but: object = None) -> Rule:
    """The key needs something that is not possible here, with any value but this one."""

    def stop(entry: ServerEntry, key: str, value: object) -> None:
        if but is None or value != but:
            raise CannotUse(f'its key "{key}" {reason}')

    return stop


def off_if(word: str) -> Rule:
    """A switch that turns the server off when it is `true` or `false`."""

    def switch(entry: ServerEntry, key: str, value: object) -> None:
        if truth(key, value) is (word == "true"):
            entry.switch_off()

    return switch


def only_tools(entry: ServerEntry, key: str, value: object) -> None:
    """A list of tools; all others are denied. An empty list denies all."""
    entry.only(names(key, value))


def listed_tools(entry: ServerEntry, key: str, value: object) -> None:
    """The only tools. `*` among them is all of them."""
    tools = names(key, value)
    if "*" not in tools:
        entry.only(tools)


def denied_tools(entry: ServerEntry, key: str, value: object) -> None:
    """A list of tools that are denied."""
    entry.deny(names(key, value))


def approved_tools(entry: ServerEntry, key: str, value: object) -> None:
    """A list of tools that the host calls without asking."""
    entry.approve_named(names(key, value))


def duration(ours: str, unit: float) -> Rule:
    """A timeout, in units of so many seconds. Ours of a call is 24 h at most, that of a start 600 s."""
    most = 24 * 3600 if ours == "timeout" else 600

    def limit(entry: ServerEntry, key: str, value: object) -> None:
        entry.set(ours, f"{min(max(number(key, value) * unit, 1), most):g}s", key)

    return limit


def call_timeout(unit: float) -> Rule:
    """The timeout of a call, in units of so many seconds."""
    return duration("timeout", unit)


def approves_all(entry: ServerEntry, key: str, value: object) -> None:
    """A switch by which the host asks nothing any more."""
    if truth(key, value):
        entry.approve()


def kind(remote: Iterable[str] = REMOTE_TYPES, local: Iterable[str] = ("stdio",)) -> Rule:
    """The transport. It has to fit `command` or `url`; which transport a URL speaks is found out by connecting."""
    local = tuple(local)
    known = (*local[:1], *remote, *local[1:])

    def check(entry: ServerEntry, key: str, value: object) -> None:
        what = ", ".join(known)
        if not isinstance(value, str):
            raise CannotUse(f'its key "{key}" is {kind_of(value)}; expected one of {what}')
        if value not in known:
            meant = did_you_mean(value, known, '"')
            raise CannotUse(f'its key "{key}" is "{clip(value)}"; {meant or f"expected one of {what}"}')
        is_local = value in local
        has_url = not entry.values.keys().isdisjoint(URL_KEYS)
        if is_local and "command" not in entry.values and has_url:
            raise CannotUse(f'its key "{key}" is "{value}", which needs a command, and it has a url')
        if not is_local and "command" in entry.values and not has_url:
            raise CannotUse(f'its key "{key}" is "{value}", which needs a url, and it has a command')

    return check


LAUNCH: Mapping[str, Rule] = {"command": program, **dict.fromkeys(("args", "env", "url", "headers"), same)}
"""The keys of most hosts that say what is started or reached."""
SWITCHES: Mapping[str, Rule] = {
    "disabled": off_if("true"),
    "disabledTools": denied_tools,
    **dict.fromkeys(("autoApprove", "alwaysAllow"), approved_tools),
}
"""The switches of editors, and of files that people copy from one to the next."""


# Values


def truth(key: str, value: object) -> bool:
    """The value of a switch.

    Raises:
        CannotUse: it is not `true` or `false`.
    """
    if isinstance(value, Plain) and value in ("true", "false"):
        return value == "true"
    found = "text" if isinstance(value, str) else kind_of(value)
    raise CannotUse(f'its key "{clip(key)}" is {found}; expected true or false')


def number(key: str, value: object) -> float:
    """The value of a number that is not negative.

    Raises:
        CannotUse: it is none.
    """
    if isinstance(value, Plain) and re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]+)?", value):
        return float(value)
    found = "text" if isinstance(value, str) and not isinstance(value, Plain) else kind_of(value)
    raise CannotUse(f'its key "{clip(key)}" is {found}; expected a number')


def names(key: str, value: object) -> list[str]:
    """The names in a list.

    Raises:
        CannotUse: it is not a list of texts.
    """
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise CannotUse(f'its key "{clip(key)}" is not a list of names of tools')
    return [str(item) for item in value]


def mapping(key: str, value: object) -> dict[str, object]:
    """The entries of a map.

    Raises:
        CannotUse: it is none.
    """
    if not isinstance(value, dict):
        raise CannotUse(f'its key "{clip(key)}" is {kind_of(value)}; expected a map')
    return value
