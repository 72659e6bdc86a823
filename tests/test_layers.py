"""The house rules that no type can say: imports point down and stand at the top, versions have one home, and every
file of the source has its test."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from config import Protocol
from tests.layers import PICTURE, RANKS, picture

ROOT = Path(__file__).parent.parent

DEFERRED_IN = (
    *("host.__main__", "host.relay", "host.cli.", "host.seal", "host.oauth.assertion", "host.wire.issuer_http"),
    *("host.wire.certificate", "host.notify.notices", "config.load", "config.read"),
    *("host.wire.keeper", "host.upstream.confinement", "host.upstream.contained", "host.upstream.installations"),
    *(
        "host.policy.fingerprint",
        "host.storage.choice",
        "host.fleet.entrance",
        "host.telemetry.entrance",
        "host.history.entrance",
    ),
)
"""Modules that import inside functions. Commands do it for what they need of the program: help and completion load none
of it. The others do it for what most hosts never use: cryptography, httpx, jeepney, psycopg, prometheus_client, TOML,
the sandbox, and the thirty modules that read files of desktop hosts."""

UNTESTED = {  # sources without a test file of their own name: this list may only get shorter
    # types and constants alone
    "host/policy/rows.py",
    "host/version.py",
    "host/storage/store.py",
    "host/wire/link.py",
    # tested through their neighbours only
    "host/app.py",
    "host/cli/endpoint_client.py",
    "host/mcp_client.py",
}

PROTOCOL_WORDS = {("config.model", word.value) for word in Protocol}
VERSION = re.compile(r"20\d\d-[01]\d-[0-3]\d")


def sources(package: str) -> dict[str, Path]:
    """The modules of a package by their dotted names."""
    found: dict[str, Path] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SOURCES = {**sources("host"), **sources("config")}


def rank(module: str) -> int | None:
    """The rank of a module of the host; None for `host` itself, which holds nothing but a sentence."""
    for level, names in enumerate(RANKS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return level
    assert module == "host", f"{module} has no rank: give it one in RANKS and in docs/architecture.md"
    return None


def imports(within: Iterable[ast.AST], module: str) -> Iterator[tuple[int, str]]:
    """Every module of ours that is imported, with its line. `from package import module` names the module."""
    for node in within:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module)
            names = [name if (name := f"{source}.{alias.name}") in SOURCES else source for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] in ("host", "config"))


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    package = module if SOURCES[module].name == "__init__.py" else module.rpartition(".")[0]
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


@cache
def sources_as_nodes() -> dict[str, Sequence[ast.AST]]:
    """All nodes of each module, the module first. They are made when a test first wants them, since each process of a
    run imports this file; and they are no garbage, which the collector would look for in a million objects."""
    gc.disable()
    try:
        return {module: list(ast.walk(ast.parse(path.read_bytes(), str(path)))) for module, path in SOURCES.items()}
    finally:
        gc.enable()
        gc.freeze()


def nodes(module: str) -> Sequence[ast.AST]:
    """All nodes of a module, the module first."""
    return sources_as_nodes()[module]


def test_imports_point_down() -> None:
    wrong: list[str] = []
    for module in SOURCES:
        own = rank(module) if module.startswith("host") else None
        for line, target in imports(nodes(module), module):
            if not target.startswith("host"):
                continue
            level = rank(target)
            if not module.startswith("host"):
                wrong.append(f"{module}:{line}: {target} (the configuration knows no host)")
            elif own is not None and level is not None and level > own:
                wrong.append(f"{module}:{line}: {target} (rank {level}, from rank {own})")
    assert wrong == []


@pytest.mark.slow
def test_no_two_files_of_the_host_import_each_other() -> None:
    """Neither directly nor around a corner: where two need each other, a third one is missing."""
    needs = {
        module: {target for _, target in imports(nodes(module), module) if target in SOURCES and target != module}
        for module in SOURCES
    }
    left = dict(needs)
    while free := {module for module, targets in left.items() if not targets & left.keys()}:
        left = {module: targets for module, targets in left.items() if module not in free}
    assert left == {}


def outermost_definitions(tree: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes that stand in no other."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        else:
            yield from outermost_definitions(node)


def test_imports_stand_at_the_top() -> None:
    deferred = {
        f"{module}:{inner.lineno}"
        for module in SOURCES
        if not module.startswith(DEFERRED_IN)
        for node in outermost_definitions(nodes(module)[0])
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    assert deferred == set(), "these stand inside a function or a class"


def test_every_file_opens_with_what_it_is_for() -> None:
    assert [
        module
        for module in SOURCES
        if isinstance(tree := nodes(module)[0], ast.Module) and tree.body and not ast.get_docstring(tree)
    ] == []


def test_version_strings_live_in_the_protocol_package() -> None:
    """But for the words of the key `protocol`, since the configuration knows no host; a test of the versions compares
    them."""
    found: list[str] = []
    for module in SOURCES:
        if module.startswith("host.protocol"):
            continue
        prose = {
            node.value for node in nodes(module) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        found += [
            f"{module}:{node.lineno}: {node.value!r}"
            for node in nodes(module)
            if isinstance(node, ast.Constant) and node not in prose and VERSION.search(_text(node.value))
            if (module, node.value) not in PROTOCOL_WORDS
        ]
    assert found == []


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def test_a_class_name_is_one_thing() -> None:
    """One name for one thing, in all of the source: a reader need not look which of two is meant."""
    found: dict[str, list[str]] = {}
    for module in SOURCES:
        for node in nodes(module):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{module}:{node.lineno}")
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert twice == {}, "rename all but one"


def test_every_source_has_its_test_and_every_test_its_source() -> None:
    wanted = {
        f"{path.parent.relative_to(ROOT)}/{path.name}"
        for path in SOURCES.values()
        if path.name != "__init__.py" and path.stat().st_size
    }
    tested = {
        f"{path.parent.relative_to(ROOT / 'tests')}/{path.name.removeprefix('test_')}"
        for package in ("host", "config")
        for path in (ROOT / "tests" / package).rglob("test_*.py")
    }
    assert sorted(wanted - tested - UNTESTED) == [], "these have no test file of their own name"
    assert sorted(tested - wanted) == [], "these test files have no source of their name"
    assert sorted(UNTESTED & tested) == [], "these have their test now: take them off UNTESTED"
    assert sorted(UNTESTED - wanted) == [], "these are gone: take them off UNTESTED"


def test_the_picture_shows_the_layers() -> None:
    assert (ROOT / PICTURE).read_text("utf-8") == picture(), f"run python -m tests.layers > {PICTURE}"


def test_the_rules_see_what_they_are_for() -> None:
    """A rule that finds nothing must be one that would find something."""
    tree = ast.parse("from host import names\nimport host.wire.link\nfrom host.errors import TimedOut\nimport os")
    assert list(imports(ast.walk(tree), "host.app")) == [(1, "host.names"), (2, "host.wire.link"), (3, "host.errors")]
    near = ast.parse("from .link import Link\nfrom . import pipe\nfrom ..errors import TimedOut")
    assert [name for _, name in imports(ast.walk(near), "host.wire.stdio")] == [
        "host.wire.link",
        "host.wire.pipe",
        "host.errors",
    ]
    assert rank("host.wire.link") == rank("host.peer") == 3
    with pytest.raises(AssertionError, match="has no rank"):
        rank("host.nowhere")
    assert VERSION.search("MCP 2025-11-25")
