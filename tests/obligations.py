"""Writes the tests that hold each obligation into `docs/obligations.md`: `python -m tests.obligations`.

A test holds an obligation if its docstring, or a comment in it, names the number: `(rule 71)`, `(rules 73, 76)`. The
obligations themselves are written by hand on the page; the lines with tests below each are written here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "obligations.md"

HEADING = re.compile(r"^### Rule (\d+)\n", re.MULTILINE)
_NAMED = re.compile(r"\brules? \d+(?:(?:,? and |, )(?:rules? )?\d+)*")
_LISTED = re.compile(r"\n- `tests/[^\n]*")


def written(page: str, held: dict[int, list[str]]) -> str:
    """The page with the lines of `held` below each obligation, instead of those that are there."""
    parts = HEADING.split(page)
    for at in range(1, len(parts), 2):
        text, blank, rest = parts[at + 1].partition("\n\n## ")
        text = _LISTED.sub("", text).rstrip("\n")
        listed = "".join(f"\n{line}" for line in held.get(int(parts[at]), []))
        end = f"\n\n## {rest}" if blank else "\n\n" if at + 2 < len(parts) else "\n"
        parts[at] = f"### Rule {parts[at]}\n"
        parts[at + 1] = text + (f"\n{listed}" if listed else "") + end
    return "".join(parts)


@cache
def held_by_tests() -> dict[int, list[str]]:
    """For each number the lines of the page: one for each file, with the functions that name the number."""
    found: dict[int, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.stem in ("obligations", "test_obligations"):  # their numbers are examples
            continue
        file = path.relative_to(ROOT).as_posix()
        for number, function in numbers_in(path.read_text("utf-8")):
            functions = found.setdefault(number, {}).setdefault(file, [])
            if function not in functions:
                functions.append(function)
    return {
        number: [f"- `{file}`: {', '.join(f'`{name}`' for name in names)}" for file, names in files.items()]
        for number, files in found.items()
    }


def numbers_in(source: str) -> Iterator[tuple[int, str]]:
    """Each number that is named, and the function or class of the file that it is named in.

    Raises:
        ValueError: a number is named outside of all of them, where it says of no test that it holds something.
    """
    named = [
        (source.count("\n", 0, match.start()) + 1, int(number))
        for match in _NAMED.finditer(source)
        for number in re.findall(r"\d+", match[0])
    ]
    if not named:
        return
    lines = {
        line: node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for line, number in named:
        if line not in lines:
            raise ValueError(f"line {line} names rule {number} outside of any test")
        yield number, lines[line]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8"), held_by_tests()), "utf-8")
