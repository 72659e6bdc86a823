"""The events of YAML as the tokens of a document.

Everything by which a short file can mean something long or surprising is refused: anchors, aliases, merge keys, tags,
second documents, duplicate keys and deep nesting.
"""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from config.document import Document, Marks, Plain, Sign, Token
from config.problems import ConfigError, Mark

_NO_ANCHORS = "anchors and aliases are not accepted; write the value out where it is needed"
_NO_TAGS = "tags are not accepted; remove it or put the text in quotes"


def yaml_tokens(text: str, document: Document) -> Iterator[Token]:
    """The tokens of a YAML text. Problems that hide no others are noted in the document.

    Raises:
        ConfigError: the text is not YAML.
    """
    bad = yaml.SafeLoader.NON_PRINTABLE.search(text)
    if bad is not None:
        mark = Marks(text).at(bad.start())
        raise document.fatal(mark, f"the character U+{ord(bad[0]):04X} is not allowed; remove it")
    loader = yaml.SafeLoader(text)
    failed: ConfigError
    documents = 0
    try:
        while loader.check_event():
            event = loader.get_event()  # type: ignore[no-untyped-call]  # the stubs leave it bare
            mark = _mark(event.start_mark)
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                document.add(mark, _NO_ANCHORS)
            if getattr(event, "tag", None) is not None:
                document.add(mark, _NO_TAGS)
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        raise document.fatal(mark, "a second document begins here; a file can only have one")
                case yaml.AliasEvent():
                    yield Plain(""), mark
                case yaml.ScalarEvent():
                    yield (Plain(event.value) if event.style is None else event.value), mark
                case yaml.MappingStartEvent():
                    yield Sign.MAP, mark
                case yaml.SequenceStartEvent():
                    yield Sign.LIST, mark
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    yield Sign.END, mark
        return
    except yaml.MarkedYAMLError as error:
        mark = _mark(error.problem_mark or error.context_mark)
        failed = document.fatal(mark, _explain(error.problem or "", text, mark))
    except (ValueError, OverflowError):
        # The scanner hands the digits of escapes and versions to chr() and int() unchecked.
        failed = document.fatal(_mark(loader.get_mark()), "this number is no character; write another escape")
    # Not within the handlers: the errors of the parser hold pieces of the file, which even as the context of ours could
    # get into a log.
    raise failed


def _mark(mark: yaml.Mark | None) -> Mark:
    """The parser's place, counted from 1; it gives one with everything but some of its errors."""
    return Mark(1, 1) if mark is None else Mark(mark.line + 1, mark.column + 1)


def _explain(problem: str, text: str, mark: Mark) -> str:
    """The parser's complaint in words that say what to do; it quotes single characters at most."""
    lines = text.split("\n")
    line = lines[mark.line - 1] if mark.line <= len(lines) else ""
    if line[mark.column - 1 : mark.column] == "\t":
        return "tabs are not allowed for indentation in YAML; use spaces"
    if "tag" in problem:
        return _NO_TAGS
    hint = "; inside {...} or [...] a value with ${...} needs quotes" if "${" in line else ""
    return f"this is not YAML: {problem or 'it cannot be read'}{hint}"
