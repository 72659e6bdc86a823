"""No error shows a planted secret, wherever it stands in a file and whatever is wrong beside it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import config
from config import ConfigError, WhenError, read_when

LITERAL, FROM_ENV, FROM_FILE = "l1teral-canary-0123", "env-c4nary-0123456", "f1le-canary-012345"

WHOLE = """\
listen:
  auth: {tokens: {me: LITERAL, you: "${env:CANARY}", ci: "${file:key}"}}
servers:
  child:
    command: [run, "--key=LITERAL", "${env:CANARY}", "x${file:key}"]
    env: {A: LITERAL, B: "${env:CANARY}", C: "a ${file:key}"}
    cwd: "/srv/${env:CANARY}"
    timeout: 60s
    limits: {calls: 60/min, result: 1MiB}
  line: {command: "run LITERAL ${env:CANARY}"}
  program: {command: "LITERAL x", args: [LITERAL, "${env:CANARY}"]}
  remote:
    url: "https://h.example/${env:CANARY}/mcp?key=LITERAL&more=${file:key}"
    headers: {Authorization: "Bearer LITERAL", X-Key: "${env:CANARY}", X-More: "${file:key}"}
    isolation: per-call
    consent: {tools: {deny: [{name: x, when: {a: {prefix: b}}}]}}
""".replace("LITERAL", LITERAL)

Path_ = tuple[str | int, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every map, list and value of the file."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in entries:
        yield from places(below, (*path, key))


def changed(root: Any, path: Path_, change: Any) -> Any:
    """The file with something else at one place."""
    made = deepcopy(root)
    if not path:
        return change(made)
    above = made
    for part in path[:-1]:
        above = above[part]
    above[path[-1]] = change(above[path[-1]])
    return made


def with_unknown_key(value: Any) -> Any:
    return {**value, "unknwon": deepcopy(value)} if isinstance(value, dict) else {"unknwon": value}


CHANGES = {
    "a list of it": lambda value: [value],
    "a map of it": lambda value: {"x": value},
    "an unknown key with it": with_unknown_key,
    "an item more": lambda value: [*value, value] if isinstance(value, list) else [value, value],
    "a number in its place": lambda value: 60,
    "nothing in its place": lambda value: None,
    "a variable that is not set beside it": lambda value: f"{value}${{env:NOT_SET}}",
    "an open reference before it": lambda value: f"${{{value}",
    "a NUL after it": lambda value: f"{value}\0",
    "a line break after it": lambda value: f"{value}\n",
    "a space before it": lambda value: f" {value}",
    "a quote before it": lambda value: f"'{value}",
}
SECRETS = (LITERAL, FROM_ENV, FROM_FILE)


def said(file: Path) -> str:
    """All that an error about the file shows, its traceback and the errors behind it included; empty if it is valid."""
    try:
        config.load(file, {"CANARY": FROM_ENV})
    except ConfigError as error:
        shown = [str(error), repr(error), repr(error.problems), *traceback.format_exception(error)]
        behind: BaseException | None = error.__context__
        while behind is not None:
            shown += [str(behind), *traceback.format_exception_only(behind)]
            behind = behind.__context__
        return "\n".join(shown)
    return ""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_no_planted_secret_is_in_an_error(tmp_path: Path, form: str, change: str) -> None:
    """Each place of the file is spoilt in turn."""
    (tmp_path / "key").write_text(FROM_FILE)
    file = tmp_path / f"c.{form}"
    root = yaml.safe_load(WHOLE)
    refused = 0
    for path in places(root):
        made = changed(root, path, CHANGES[change])
        file.write_text(yaml.safe_dump(made) if form == "yaml" else yaml.safe_dump(made, default_style='"'))
        shown = said(file)
        refused += bool(shown)
        assert [secret for secret in SECRETS if secret in shown] == [], path
    assert refused > 10


@pytest.mark.parametrize("cut", ["'", '"', "{", "]", ": ", "&a ", "*a", "!!x ", "\t", "\0"])
def test_no_planted_secret_is_in_an_error_of_syntax(tmp_path: Path, cut: str) -> None:
    """The file is spoilt between any two lines, and before each secret."""
    file = tmp_path / "c.yaml"
    lines = WHOLE.splitlines(keepends=True)
    spoilt = ["".join((*lines[:n], cut, *lines[n:])) for n in range(len(lines))]
    pieces = WHOLE.split(LITERAL)
    spoilt += [LITERAL.join(pieces[:n]) + cut + LITERAL + LITERAL.join(pieces[n:]) for n in range(1, len(pieces))]
    for text in spoilt:
        file.write_text(text)
        assert LITERAL not in said(file)


def test_no_planted_secret_is_in_an_error_of_conditions() -> None:
    """Arguments of a call, from which a person makes conditions, may hold secrets."""
    wrong: list[dict[str, object]] = [
        {"a": {"prefix": [LITERAL]}},
        {"a": {"range": [1, 2, LITERAL]}},
        {"a": {"path_under": [[LITERAL]]}},
        {"a": {"max_len": {"x": LITERAL}}},
        {"a": {"eq": [LITERAL]}},
    ]
    for when in wrong:
        with pytest.raises(WhenError) as caught:
            read_when(when)
        assert LITERAL not in "".join(traceback.format_exception(caught.value))
