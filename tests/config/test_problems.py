"""Problems in words, in order, and without a planted secret, wherever it stands and whatever is wrong beside it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

import config
from config.problems import ConfigError, Problem, clip, printable


def test_problem_in_one_line() -> None:
    """Place, setting, sentence; without a setting the colon goes too."""
    assert str(Problem("c.yaml", 3, 5, "servers.a", "wrong")) == "c.yaml:3:5: servers.a: wrong"
    assert str(Problem("c.yaml", 3, 5, "", "wrong")) == "c.yaml:3:5: wrong"


def test_error_lists_problems_in_order() -> None:
    """Sorted by line and column, one a line."""
    later, sooner = Problem("c", 9, 1, "", "b"), Problem("c", 2, 7, "", "a")
    error = ConfigError([later, sooner])
    assert error.problems == (sooner, later)
    assert str(error) == "c:2:7: a\nc:9:1: b"


def test_a_text_is_made_fit_for_one_line() -> None:
    assert printable("a\x1b[31m\n é\ud83d") == "a?[31m? é?"


def test_clipped_words_are_one_short_line() -> None:
    """Escape sequences and line breaks do not reach a terminal."""
    assert clip("a\x1b[31m\nb") == "a?[31m?b"
    assert len(clip("x" * 100)) == 40


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
    "a key of it": lambda value: {value if isinstance(value, str) else "x": None},
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
        made = config.load(file, {"CANARY": FROM_ENV}, home=file.parent)
        return "\n".join(spec.problem for spec in made.servers.values() if spec.problem)
    except ConfigError as error:
        shown = [str(error), repr(error), repr(error.problems), *traceback.format_exception(error)]
        behind: BaseException | None = error.__context__
        while behind is not None:
            shown += [str(behind), *traceback.format_exception_only(behind)]
            behind = behind.__context__
        return "\n".join(shown)


def as_yaml(root: Any) -> str:
    return yaml.safe_dump(root)


def as_json(root: Any) -> str:
    return json.dumps(root)


def as_desktop_file(root: Any) -> str:
    if isinstance(root, dict):
        root = {"mcpServers" if key == "servers" else key: value for key, value in root.items()}
    return json.dumps(root)


@pytest.mark.few(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("written", [as_yaml, as_json, as_desktop_file])
def test_no_planted_secret_is_in_an_error(tmp_path: Path, written: Callable[[Any], str], change: str) -> None:
    """Each place of the file is spoilt in turn."""
    (tmp_path / "key").write_text(FROM_FILE)
    file = tmp_path / "c"
    root = yaml.safe_load(WHOLE)
    refused = 0
    for path in places(root):
        file.write_text(written(changed(root, path, CHANGES[change])))
        shown = said(file)
        refused += bool(shown)
        assert [secret for secret in SECRETS if secret in shown] == [], path
    assert refused > 10


@pytest.mark.few(2)
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
