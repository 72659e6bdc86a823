"""Read, fill in, validate: from a path to a `Config`, or to all that is wrong with the file at once.

This file joins the others and owns the way back from a rejected value to its line. It reads the configuration file
and the files its `${file:...}` name, and writes nothing.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config import desktop, model, source
from config.form import (
    AskForm,
    ConsentForm,
    FileForm,
    KindForm,
    LimitsForm,
    ListenForm,
    ServerForm,
    UriKindForm,
    UriRuleForm,
    cross_problems,
    form_at,
    known_keys,
)
from config.globs import covers
from config.interpolate import Expanded, Expander, Secret
from config.model import (
    AskSpec,
    Channel,
    Config,
    Consent,
    ConsoleSpec,
    HttpServer,
    KindConsent,
    Limits,
    Listen,
    Rule,
    Server,
    ServerSpec,
    StdioServer,
)
from config.problems import ConfigError, Mark, Problem, clip
from config.source import List, Map, Node, Scalar, kind_of
from config.values import SHORTEST_TOKEN, TOKEN_NAME, AuditDetail

_WRONG_KINDS = {"model_type": "a map", "dict_type": "a map", "tuple_type": "a list", "list_type": "a list"}
# A key that is no word may be a value that slipped to the left of its colon: it is not repeated.
_WORD = re.compile(r"\w[\w.-]*")
# A name as long as a token may be a token in the wrong place: it is not repeated beside what is wrong with it.
_SHORT_NAME = re.compile(rf"(?={TOKEN_NAME}$).{{1,{SHORTEST_TOKEN - 1}}}")
_MISSING = {
    "servers": "it names what to serve",
    "tokens": "it names who may come in",
    "name": "it is the pattern of the rule",
    "uri": "it is the pattern of the rule",
}
_COMMON_KEYS = [key.name for key in dataclasses.fields(Server) if key.name not in ("id", "consent", "limits")]
_LISTS: tuple[tuple[tuple[str, ...], type[KindForm | UriKindForm]], ...] = (
    (("tools",), KindForm),
    (("resources",), UriKindForm),
    (("prompts",), KindForm),
    (("elicitation", "url"), UriKindForm),
    (("roots",), UriKindForm),
)
"""Where in a consent the lists of rules are, and in which form."""
_PYDANTIC_KEY = "[key]"  # how pydantic marks an error in a key instead of the value under it


def load(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Config:
    """Read the configuration file at `path`, ours or a desktop host's.

    `environ` is where `${env:NAME}` looks, by default the environment of the process. Relative paths in the file start
    from its folder. Raises `ConfigError` with every problem found, in the order of the file; no message holds a secret.
    """
    file = Path(os.path.abspath(path))
    read = source.read(Path(path))
    desktop_file = desktop.rewrite(read.root) if desktop.is_desktop(read.root) else None
    root = read.root if desktop_file is None else desktop_file.root
    collector = _ProblemCollector(source.clip_path(Path(path)), read, desktop_file)
    expander = Expander(os.environ if environ is None else environ, file.parent, bare_names=desktop_file is not None)
    collector.check_cross_keys(root, expander)
    form = collector.validate(root, expander)
    servers = _build_servers(form, root, file.parent, collector) if form is not None else {}
    if form is None or collector.problems:
        raise ConfigError(collector.problems)
    grace = model.DEFAULT_START_GRACE if form.start_grace is None else form.start_grace
    listen = _build_listen(form.listen)
    notices = (
        *(() if desktop_file is None else desktop_file.notices),
        *_listen_notices(form.listen, listen),
        *_consent_notices(servers),
    )
    return Config(
        file,
        listen,
        grace,
        MappingProxyType(servers),
        notices,
        AskSpec(**_given_fields(form.ask)),
        None if form.console is None else ConsoleSpec(form.console.address),
        form.audit.arguments is AuditDetail.FULL,
        model.DEFAULT_AUDIT_KEEP if form.audit.keep is None else form.audit.keep,
        model.DEFAULT_AUDIT_MAX if form.audit.max is None else form.audit.max,
        model.DEFAULT_MEMORY if form.memory is None else form.memory,
    )


class _ProblemCollector:
    """The problems so far. A place with a problem of its own gets no second one that only follows from it."""

    def __init__(self, file: str, read: source.Source, desktop_file: desktop.DesktopFile | None) -> None:
        self._file = file
        self.problems = list(read.problems)
        self._reported: set[tuple[int, int]] = set()
        for mark, where, text in [] if desktop_file is None else desktop_file.problems:
            self.add(mark, where, text)
        self._reported = {(problem.line, problem.column) for problem in self.problems}

    def add(self, mark: Mark, where: str, text: str) -> None:
        if mark not in self._reported:
            self.problems.append(Problem(self._file, mark.line, mark.column, where, text))

    def check_cross_keys(self, root: Map, expander: Expander) -> None:
        """Note what is wrong with keys taken together, which no single value shows."""
        self._check_console_answers(root)
        servers = root.get("servers")
        for name, (key, server) in servers.entries.items() if isinstance(servers, Map) else ():
            if not isinstance(server, Map):
                continue
            for at, text in cross_problems(server):
                mark = key.mark if at is None else server.entries[at][0].mark
                self.add(mark, _path_text(root, ("servers", name) if at is None else ("servers", name, at)), text)
            for path, form in _LISTS:
                self._check_redundant_rules(root, ("servers", name, "consent", *path), form, expander)

    def _check_console_answers(self, root: Map) -> None:
        """Note that questions are to be answered at a console which is switched off."""
        path: KeyPath = ("ask", "answers")
        answers, console = _find(root, path), root.get("console")
        if isinstance(answers, List) and isinstance(console, Scalar) and console.text in ("off", "false"):
            for n, item in enumerate(answers.items):
                if isinstance(item, Scalar) and item.text == Channel.CONSOLE:
                    text = "the console is off, so nobody can answer there; take it from the list"
                    self.add(item.mark, _path_text(root, (*path, n)), text)

    def _check_redundant_rules(
        self, root: Map, path: KeyPath, form: type[KindForm | UriKindForm], expander: Expander
    ) -> None:
        """Note the rules of a kind that never decide: a stronger list has all that they name, or they stand twice."""
        lists = _find(root, path)
        if not isinstance(lists, Map):
            return
        try:
            kind = _kind(form.model_validate(_plain(lists), context=expander))
        except ValidationError:
            return  # what is wrong with a value is noted where values are read
        stronger: list[_WrittenRule] = []
        for name, rules in (("deny", kind.deny), ("ask", kind.ask), ("allow", kind.allow or ())):
            own: list[_WrittenRule] = []
            for n, rule in enumerate(rules):
                at: KeyPath = (*path, name, n)
                node = _deepest(root, at)[0]
                written_rule = _WrittenRule(rule, name, _pattern(node))
                text = _redundant(written_rule, own, stronger, uris=form is UriKindForm)
                if text:
                    self.add(node.mark, _path_text(root, at), f'"{written_rule.shown}" {text}')
                own.append(written_rule)
            stronger += own

    def validate(self, root: Map, expander: Expander) -> FileForm | None:
        """The file in its form, or None after noting what is wrong."""
        try:
            return FileForm.model_validate(_plain(root), context=expander)
        except ValidationError as error:
            found = error.errors(include_input=False, include_url=False, include_context=False)
            # A key that is missing may be there misspelt, and then the misspelling explains it.
            for details in sorted(found, key=lambda details: details["type"] == "missing"):
                self._reject(root, details)
            return None

    def _reject(self, root: Map, details: ErrorDetails) -> None:
        path = details["loc"]
        if details["type"] == "extra_forbidden":
            shown = path if _WORD.fullmatch(str(path[-1])) else path[:-1]
            self.add(_key_mark(root, path), _path_text(root, shown), _unknown_key(path))
        elif details["type"] == "missing":
            key = clip(str(path[-1]))
            above, _ = _deepest(root, path[:-1])
            self.add(above.mark, _path_text(root, path), f'the key "{key}" is missing; {_MISSING[key]}')
        elif path and path[-1] == _PYDANTIC_KEY and _find(root, path) is None:
            self.add(_key_mark(root, path[:-1]), _path_text(root, path[:-1]), details["msg"])
        else:
            node, depth = _deepest(root, path)
            kind = _WRONG_KINDS.get(details["type"])
            text = details["msg"] if kind is None else f"expected {kind}, found {kind_of(node)}"
            self.add(node.mark, _path_text(root, path[:depth]), text)


def _plain(node: Node) -> object:
    """Maps and lists as dictionaries and lists; scalars stay nodes, for the readers of the form."""
    match node:
        case Map(entries=entries):
            return {name: _plain(value) for name, (_, value) in entries.items()}
        case List(items=items):
            return [_plain(item) for item in items]
        case _:
            return node


KeyPath = tuple[str | int, ...]


def _step(node: Node, part: str | int) -> Node | None:
    if isinstance(node, Map) and isinstance(part, str):
        return node.get(part)
    if isinstance(node, List) and isinstance(part, int) and part < len(node.items):
        return node.items[part]
    return None


def _deepest(root: Map, path: KeyPath) -> tuple[Node, int]:
    """The node that a path leads to, or the last one on the way, and how many steps led there."""
    node: Node = root
    for depth, part in enumerate(path):
        below = _step(node, part)
        if below is None:
            return node, depth
        node = below
    return node, len(path)


def _find(root: Map, path: KeyPath) -> Node | None:
    node, depth = _deepest(root, path)
    return node if depth == len(path) else None


def _key_mark(root: Map, path: KeyPath) -> Mark:
    above, depth = _deepest(root, path[:-1])
    entry = above.entries.get(str(path[-1])) if isinstance(above, Map) and depth == len(path) - 1 else None
    return above.mark if entry is None else entry[0].mark


def _path_text(root: Map, path: KeyPath) -> str:
    """A path in the words of the file: `servers.gh.consent.tools.allow[0]`."""
    text = ""
    node: Node | None = root
    for part in path[:3] if _may_be_secret(path) else path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            entry = node.entries.get(part) if isinstance(node, Map) else None
            text += ("." if text else "") + (clip(part) if entry is None else entry[0].shown)
        node = None if node is None else _step(node, part)
    return text


def _may_be_secret(path: KeyPath) -> bool:
    """Whether a path ends in the name of a variable or header that is none: perhaps a value in the wrong place."""
    match path:
        case ("servers", _, "env" | "headers", str(name), *_):
            return _WORD.fullmatch(name) is None
        case ("listen", "auth", "tokens", str(name), *_):
            return _SHORT_NAME.fullmatch(name) is None
        case _:
            return False


def _unknown_key(path: KeyPath) -> str:
    form = form_at(path[:-1])
    if form is UriRuleForm and path[-1] in ("when", "closed"):
        return f"a URI is all there is to judge: it has no arguments that {path[-1]} could be about; take it away"
    known = [] if form is None else known_keys(form)
    meant = difflib.get_close_matches(str(path[-1]).lower(), known, 1, 0.6)
    hint = f'did you mean "{meant[0]}"?' if meant else f"known are {', '.join(known)}"
    return f"unknown key; {hint}"


def _build_listen(form: ListenForm) -> Listen:
    host, port = form.address or (model.DEFAULT_HOST, model.DEFAULT_PORT)
    origins, hosts = (tuple(dict.fromkeys(extra)) for extra in (form.origins, form.hosts))
    tokens = {} if form.auth is None else form.auth.tokens
    path = form.path or model.DEFAULT_PATH
    return Listen(host, port, path, origins, hosts, _secrets(tokens), form.sse is not False)


def _listen_notices(form: ListenForm, listen: Listen) -> Iterator[str]:
    for name, token in {} if form.auth is None else form.auth.tokens.items():
        if token.literal:
            yield (
                f"listen.auth.tokens.{name}: written in the file itself, where whoever reads the file has it; "
                "${env:NAME} or ${file:PATH} keeps it out"
            )
    if not model.is_loopback(listen.host) and not listen.hosts:
        own = "" if ip_address(listen.host).is_unspecified else f" and {listen.host}"
        yield (
            f"listen.address: as Host only the loopback names{own} are accepted; "
            "list the others that clients use under listen.hosts"
        )


def _consent_notices(servers: Mapping[str, ServerSpec]) -> Iterator[str]:
    """Rules that are probably not in the server's own names."""
    for id, spec in servers.items():
        kinds = {"tools": spec.consent.tools, "prompts": spec.consent.prompts, "resources": spec.consent.resources}
        kinds["roots"] = spec.consent.roots
        for kind, lists in kinds.items():
            where = f"servers.{id}.consent.{kind}"
            for pattern in (rule.pattern for rule in (*(lists.allow or ()), *lists.ask, *lists.deny)):
                if kind in ("tools", "prompts") and pattern.startswith(f"{id}__"):
                    yield f'{where}: "{clip(pattern)}" is not the server\'s own name; without {id}__ it would be'
                elif kind in ("resources", "roots") and pattern[:1] not in ("*", "?") and ":" not in pattern:
                    yield f'{where}: "{clip(pattern)}" has no scheme, as URIs have; a file is file:///path'


def _build_servers(form: FileForm, root: Map, folder: Path, collector: _ProblemCollector) -> dict[str, ServerSpec]:
    servers: dict[str, ServerSpec] = {}
    for name, server in form.servers.items():
        for key, text in _tilde_paths(server):
            path: KeyPath = ("servers", name, key)
            collector.add(_deepest(root, path)[0].mark, _path_text(root, path), text)
        if server.url is not None:
            servers[name] = _build_http(name, server, server.url)
        elif server.command is not None:
            servers[name] = _build_stdio(name, server, server.command, folder)
    return servers


def _tilde_paths(server: ServerForm) -> list[tuple[str, str]]:
    """Paths that a shell would begin at home; nothing here does."""
    texts = {"command": server.command[0] if server.command else None, "cwd": server.cwd}
    return [
        (key, "a ~ is not expanded; write ${env:HOME}")
        for key, value in texts.items()
        if value is not None and (value.text == "~" or value.text.startswith("~/"))
    ]


def _build_stdio(name: str, form: ServerForm, command: tuple[Expanded, ...], folder: Path) -> StdioServer:
    program, *words = command
    args = [*words, *(form.args or ())]
    return StdioServer(
        id=name,
        program=_program(program, folder),
        args=tuple(Secret(arg.text) for arg in args),
        declared=_command_digest(command, args, form),
        cwd=folder if form.cwd is None else folder / form.cwd.text,
        env=_secrets(form.env),
        **_common_fields(form),
    )


def _command_digest(command: Sequence[Expanded], args: Sequence[Expanded], form: ServerForm) -> str:
    """What the owner wrote: the same text is the same, though a variable may stand for something else by now."""
    words = [command[0].shown, *(arg.shown for arg in args)]
    parts = [words, sorted(form.env), "" if form.cwd is None else form.cwd.shown]
    return f"sha256:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"


def _build_http(name: str, form: ServerForm, url: Expanded) -> HttpServer:
    return HttpServer(
        id=name,
        url=Secret(url.text, url.shown.partition("?")[0]),
        headers=_secrets(form.headers),
        **_common_fields(form),
    )


def _common_fields(form: ServerForm) -> dict[str, Any]:
    """The fields that every server has; what the file does not say is left to the defaults of the model."""
    named = {name: getattr(form, name) for name in _COMMON_KEYS}
    made = {"consent": _consent(form.consent), "limits": Limits(**_given_fields(form.limits))}
    return {**made, **{name: value for name, value in named.items() if value is not None}}


def _program(program: Expanded, folder: Path) -> Secret:
    """A bare word stays one, for PATH; anything with a slash starts from the folder of the file."""
    text = str(folder / program.text) if "/" in program.text else program.text
    return Secret(text, clip(program.shown.rstrip("/").rpartition("/")[2]))


def _secrets(values: Mapping[str, Expanded]) -> Mapping[str, Secret]:
    return MappingProxyType({name: Secret(value.text) for name, value in values.items()})


def _given_fields(form: AskForm | LimitsForm) -> dict[str, Any]:
    """What the file says of the keys of a form; the rest is left to the defaults of the model."""
    return {name: value for name in type(form).model_fields if (value := getattr(form, name)) is not None}


def _consent(form: ConsentForm) -> Consent:
    return Consent(
        tools=_kind(form.tools),
        resources=_kind(form.resources),
        prompts=_kind(form.prompts),
        sampling=form.sampling,
        form=form.elicitation.form,
        url=_kind(form.elicitation.url),
        roots=_kind(form.roots),
    )


def _kind(form: KindForm | UriKindForm) -> KindConsent:
    allow, ask, deny = (
        None if rules is None else tuple(rule.rule() for rule in rules) for rules in (form.allow, form.ask, form.deny)
    )
    return KindConsent(allow, ask or (), deny or (), form.default)


def _pattern(item: Node) -> str:
    """The pattern of a rule as the file writes it."""
    node = item.get("name") or item.get("uri") if isinstance(item, Map) else item
    return node.shown if isinstance(node, Scalar) else ""


class _WrittenRule(NamedTuple):
    """A rule, the list it stands in, and its pattern as the file writes it."""

    rule: Rule
    list: str
    shown: str

    def is_same(self, other: _WrittenRule) -> bool:
        # 1 and true are equal to Python and not to JSON, so what rules hold is compared as it is written.
        return self.rule == other.rule and repr(self.rule) == repr(other.rule)


def _redundant(
    rule: _WrittenRule, before: Sequence[_WrittenRule], stronger: Sequence[_WrittenRule], *, uris: bool
) -> str:
    """Why a rule never decides, as the end of a sentence that begins with its pattern; empty if it may."""
    if any(other.is_same(rule) for other in before):
        return "stands twice in this list; keep one"
    for other in stronger:
        if other.is_same(rule):
            return f"stands under {other.list} too, which wins; keep it in one list"
    unconditional = [other for other in stronger if not other.rule.when]
    pattern = rule.rule.pattern
    if not covers([other.rule.pattern for other in unconditional], pattern, uris=uris):
        return ""
    for other in unconditional:
        if covers([other.rule.pattern], pattern, uris=uris):
            return f'never decides: "{other.shown}" under {other.list} wins for all that it names; take it away'
    lists = " and ".join(dict.fromkeys(other.list for other in unconditional))
    return f"never decides: what stands under {lists} wins for all that it names; take it away"
