"""The events of YAML as the tokens of a document.

In a file of ours everything by which a short text can mean something long or surprising is refused: anchors, aliases,
merge keys, tags, second documents, duplicate keys and deep nesting. A desktop host's file may hold anything where it
means nothing here. In the parts that are wanted an alias is the value it stands for, up to a limit, and `<<` is a key
like any other: neither Continue nor Goose merges.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from config.document import MAX_DEPTH, TOO_DEEP, Document, Marks, Plain, Sign, Token
from config.json_text import Wanted
from config.problems import KeyPath, Mark

_NO_ANCHORS = "anchors and aliases are not accepted; write the value out where it is needed"
_NO_TAGS = "tags are not accepted; remove it or put the text in quotes"
_MERGE = "<<"
_DEEPEST = 3 * MAX_DEPTH
"""The depth at which parsing stops, also where nothing is wanted: the parser recurses."""
_MOST_REPEATED = 10_000
"""The number of events that aliases may repeat in a file. Aliases of aliases could stand for any number of them."""


class YamlEvents:
    """The events of a YAML text, parsed once. An error of the text is raised by `tokens`, behind those before it."""

    def __init__(self, text: str, document: Document) -> None:
        """Parse the text.

        Raises:
            ConfigError: a character of it is not allowed.
        """
        bad = yaml.SafeLoader.NON_PRINTABLE.search(text)
        if bad is not None:
            mark = Marks(text).at(bad.start())
            raise document.fatal(mark, f"the character U+{ord(bad[0]):04X} is not allowed; remove it")
        self._failed: tuple[Mark, str] | None = None
        loader = yaml.SafeLoader(text)
        self._events: list[yaml.Event] = []
        self._marks: list[Mark] = []
        depth = 0
        try:
            while loader.check_event():
                event = loader.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it bare
                self._events.append(event)
                self._marks.append(_mark(event.start_mark))
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if depth > _DEEPEST:
                    self._failed = self._marks[-1], TOO_DEEP
                    break
        except yaml.MarkedYAMLError as error:
            mark = _mark(error.problem_mark or error.context_mark)
            self._failed = mark, _explain(error, text, mark, list(zip(self._events, self._marks, strict=True)))
        except (ValueError, OverflowError):
            # The scanner hands the digits of escapes and versions to chr() and int() unchecked.
            self._failed = _mark(loader.get_mark()), "this number is no character; write another escape"
        self._ends: dict[int, int] = {}
        """The index behind each node, by that of its first event."""
        self._targets: dict[int, int] = {}
        """The index of the node that each alias stands for."""
        self._connect()

    def _connect(self) -> None:
        anchors: dict[str, int] = {}
        open_nodes: list[int] = []
        for n, event in enumerate(self._events):
            match event:
                case yaml.AliasEvent():
                    if event.anchor in anchors:
                        self._targets[n] = anchors[event.anchor]
                case yaml.NodeEvent() if event.anchor is not None:
                    anchors[event.anchor] = n
                case yaml.DocumentStartEvent():
                    anchors.clear()
            match event:
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    open_nodes.append(n)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    self._ends[open_nodes.pop()] = n + 1
                case yaml.NodeEvent():
                    self._ends[n] = n + 1

    def tokens(self, document: Document) -> Iterator[Token]:
        """The tokens of a file of ours. Problems that hide no others are noted in the document.

        Raises:
            ConfigError: the text is not YAML.
        """
        documents = 0
        for event, mark in zip(self._events, self._marks, strict=True):
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                document.add(mark, _NO_ANCHORS)
            if getattr(event, "tag", None) is not None:
                document.add(mark, _NO_TAGS)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                _check_single(documents, mark, document)
            if isinstance(event, yaml.AliasEvent):
                yield Plain(""), mark
            elif (token := _token(event)) is not None:
                yield token, mark
        self._check(document)

    def wanted_tokens(self, document: Document, wanted: Wanted) -> Iterator[Token]:
        """The tokens of a host's file with values in the place of aliases. An entry that is not wanted has the value
        null.

        Raises:
            ConfigError: the text is not YAML, or its aliases repeat too much.
        """
        self._check(document)
        starts = [n for n, event in enumerate(self._events) if isinstance(event, yaml.DocumentStartEvent)]
        _check_single(len(starts), self._marks[starts[-1]] if starts else Mark(1, 1), document)
        for n, event in enumerate(self._events):
            if isinstance(event, yaml.AliasEvent) and n not in self._targets:
                raise document.fatal(self._marks[n], "this alias stands for nothing; remove it")
        self._repeated = 0
        for n in starts:
            yield from self._node(n + 1, (), document, wanted)

    def _node(self, n: int, path: KeyPath, document: Document, wanted: Wanted) -> Iterator[Token]:
        """The tokens of a node. The builder stops at a depth, so the recursion is bounded."""
        event, mark = self._events[n], self._marks[n]
        if isinstance(event, yaml.AliasEvent):
            target = self._targets[n]
            self._repeated += self._ends[target] - target
            if self._repeated > _MOST_REPEATED:
                raise document.fatal(mark, "aliases repeat more than any server needs; write the values out")
            yield from self._node(target, path, document, wanted)
            return
        if getattr(event, "tag", None) is not None:
            document.add(mark, _NO_TAGS)
        token = _token(event)
        assert token is not None
        yield str(token) if token == _MERGE else token, mark
        if isinstance(token, str):
            return
        end = self._ends[n] - 1
        n += 1
        while n < end:
            name = None
            if token is Sign.MAP:
                yield from self._node(n, (*path, None), document, wanted)
                key = self._events[self._targets.get(n, n)]
                name = key.value if isinstance(key, yaml.ScalarEvent) else None
                n = self._ends[n]
            if name is None or wanted((*path, name)):
                yield from self._node(n, (*path, name), document, wanted)
            else:
                yield Plain(""), self._marks[n]
            n = self._ends[n]
        yield Sign.END, self._marks[end]

    def _check(self, document: Document) -> None:
        # Not within the handlers of the parser's errors: these hold pieces of the file, which even as the context of
        # ours could get into a log.
        if self._failed is not None:
            raise document.fatal(*self._failed)


def _check_single(documents: int, mark: Mark, document: Document) -> None:
    if documents > 1:
        raise document.fatal(mark, "a second document begins here; a file can only have one")


def _token(event: yaml.Event) -> Sign | str | None:
    """The token of an event; None for the limits of the document and for an alias."""
    match event:
        case yaml.ScalarEvent():
            return Plain(event.value) if event.style is None else event.value
        case yaml.MappingStartEvent():
            return Sign.MAP
        case yaml.SequenceStartEvent():
            return Sign.LIST
        case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
            return Sign.END
    return None


def _mark(mark: yaml.Mark | None) -> Mark:
    """The parser's place, counted from 1; it gives one with everything but some of its errors."""
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _explain(error: yaml.MarkedYAMLError, text: str, mark: Mark, events: list[tuple[yaml.Event, Mark]]) -> str:
    """The parser's complaint in words that say what to do; it quotes single characters at most."""
    problem = error.problem or ""
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        return "tabs are not allowed for indentation in YAML; use spaces"
    if "tag" in problem:
        return _NO_TAGS
    usual = _usual_mistake(error, mark, line[: mark.column - 1], events)
    hint = "; inside {...} or [...] a value with ${...} needs quotes" if "${" in line else ""
    return f"this is not YAML: {usual or problem or 'it cannot be read'}{hint}"


def _usual_mistake(
    error: yaml.MarkedYAMLError, place: Mark, before: str, events: list[tuple[yaml.Event, Mark]]
) -> str | None:
    """The words for a mistake in an indentation, a bracket, a quote or a colon; None for others.

    Args:
        place: where it was found.
        before: the line in front of that.
        events: those in front of that.
    """
    problem, context, begin = error.problem or "", error.context or "", _mark(error.context_mark)
    found = problem.rpartition(" '")[2].removesuffix("'")
    if context == "while scanning a quoted scalar":
        return f"the quote in line {begin.line} is not closed"
    opened, opened_at = _innermost_open(events)
    if isinstance(opened, yaml.CollectionStartEvent) and opened.flow_style:
        bracket = "[" if isinstance(opened, yaml.SequenceStartEvent) else "{"
        if found == "<stream end>":
            return f'the "{bracket}" in line {opened_at.line} is not closed'
        if problem.startswith("expected ',' or ") and found != "{" and place.line > opened_at.line:
            return f'the "{bracket}" in line {opened_at.line} is not closed, or a comma is missing before this'
        return None
    last, last_at = events[-1]
    if found == "<scalar>" and isinstance(last, yaml.ScalarEvent) and last.style in ("'", '"'):
        escape = "''" if last.style == "'" else '\\"'
        text = f"the quoted text from line {last_at.line} ends before this"
        return f"{text}; check its quotes (inside it, write {last.style} as {escape})"
    if found in ("<block mapping start>", "<block sequence start>") and not before.strip():
        if context.startswith("while parsing a block"):
            block = f"the block that it would belong to (from line {begin.line}) by {begin.column - 1}"
            return f"wrong indentation: this line is indented by {len(before)}, and {block}"
        first = next((mark.column for event, mark in events if isinstance(event, yaml.NodeEvent)), 1)
        if len(before) < first - 1:
            return f"wrong indentation: this line is indented by {len(before)}, and the first one by {first - 1}"
    if found == "?" and context == "while parsing a block collection":
        return f"wrong indentation: this key stands among the items of the list that begins in line {begin.line}"
    if problem == "mapping values are not allowed here":
        if ": " in before:
            return 'a value with ": " in it needs quotes'
        return '": " is missing in the line above, or this line is indented too far'
    if problem == "could not find expected ':'":
        return f'": " is missing in line {begin.line}, which should be a key and its value'
    return None


def _innermost_open(events: list[tuple[yaml.Event, Mark]]) -> tuple[yaml.Event, Mark]:
    """The start of the innermost list or mapping that is open after the events; the first event if none is."""
    opened = events[:1]
    for event, mark in events:
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event, mark))
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
    return opened[-1]
