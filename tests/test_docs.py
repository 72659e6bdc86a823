"""The documents name tests and places that exist: a promise without its test would be an empty one."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from host.errors import ColonnadeError
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from tests import reference_page

ROOT = Path(__file__).parent.parent
SECURITY = (ROOT / "docs" / "security.md").read_text("utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_a_promise_names_a_test_that_exists() -> None:
    assert [f"{file}::{name}" for file, name in NAMED if name not in functions(file)] == []


@cache
def functions(file: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (\w+)\(", (ROOT / file).read_text(), re.M))


def test_there_are_promises() -> None:
    assert len(NAMED) > 20


def test_each_of_many_attacks_on_logins_has_a_test_and_tries_to_break_a_promise() -> None:
    promises, attacks = map(rows, SECURITY.partition("### Logins\n")[2].partition("\n## ")[0].split("| attack |"))
    named = [promise for promise, _ in promises]
    assert {breaks for _, breaks, _ in attacks} == set(named)
    assert [breaks for _, breaks, _ in attacks] == sorted((breaks for _, breaks, _ in attacks), key=named.index)
    tests = {test for _, _, test in attacks if re.fullmatch(r"`tests/[\w/]+\.py::\w+`", test)}
    assert len(tests) == len({attack for attack, _, _ in attacks}) == len(attacks) >= 60


def rows(text: str) -> list[list[str]]:
    """The cells of the rows below the line of dashes."""
    return [line.strip("| ").split(" | ") for line in text.partition("|---|")[2].splitlines()[1:] if line]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@cache
def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked to, as GitHub makes them."""
    outside_code = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", outside_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


RUNTIME = {
    re.split(r"[<>=]", each, maxsplit=1)[0]: each
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
}


def test_each_dependency_at_runtime_has_its_reason_and_there_are_as_many_as_is_said() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text("utf-8")
    listed = re.findall(r"\*\*([\w-]+)\*\* \(`([^`]+)`\)", page.partition("## For development")[0])
    assert {name.lower(): f"{name.lower()}{bounds}" for name, bounds in listed} == RUNTIME
    tens = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"]
    assert f"Colonnade has {tens[len(RUNTIME) - 10]} dependencies at runtime" in page


def test_each_dependency_at_runtime_is_imported_and_comes_not_merely_with_another() -> None:
    sources = "".join(path.read_text() for package in ("host", "config") for path in (ROOT / package).rglob("*.py"))
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", sources, re.MULTILINE))
    modules = packages_distributions()
    idle = [name for name in RUNTIME if not any(name in map(str.lower, modules.get(each, ())) for each in imported)]
    assert idle == []


def test_the_reference_is_that_of_the_code() -> None:
    """`python -m tests.reference_page > docs/reference.md` writes it anew."""
    assert (ROOT / "docs" / "reference.md").read_text("utf-8") == reference_page.page()


def test_the_reference_has_each_error_code() -> None:
    listed = set(re.findall(r"^\| (-?\d+) \|", reference_page.page(), re.MULTILINE))
    by_number = {PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR}
    assert {str(code) for code in by_number | codes(ColonnadeError)} - listed == set()


def codes(kind: type[ColonnadeError]) -> set[int]:
    """Those of the errors of a kind, wherever they are defined."""
    own = {kind.code} if hasattr(kind, "code") else set()
    return own.union(*map(codes, kind.__subclasses__()))


def test_it_is_said_of_each_part_of_the_reference_whether_it_stays() -> None:
    docs = ROOT / "docs"
    parts = re.findall(r"^## (.+)$", (docs / "reference.md").read_text("utf-8"), re.MULTILINE)
    places = {f"reference.md#{part.lower().replace(' ', '-')}" for part in parts} | {"metrics.md#names"}
    said = (docs / "stability.md").read_text("utf-8").partition("## What stays")[2].partition("\n## ")[0]
    assert places - set(re.findall(r"\]\(([^)\s]+)\)", said)) == set()


def test_each_option_key_event_and_error_code_says_what_it_means() -> None:
    assert [
        line for line in reference_page.page().splitlines() if line.startswith("| ") and line.endswith("|  |")
    ] == []
