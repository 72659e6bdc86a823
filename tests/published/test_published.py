"""The comparison of published servers, and that its page and its list agree. The servers run in `make published`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from config.known_servers import KNOWN, KnownServer
from tests.published import confined
from tests.published.confined import CONFINED, Side
from tests.published.differences import DIFFERENCES, expected
from tests.published.known import CHECKS, check_known
from tests.published.looks import NO_SUCH, Seen, differing, without_places
from tests.published.places import Place
from tests.published.run import PAGE, Results, compare, page
from tests.published.servers import SERVERS

TOOL = {"name": "t", "execution": {"taskSupport": "required"}}


def seen(**more: Any) -> Seen:
    lists: Seen = {"tools": {}, "resources": {}, "templates": {}, "prompts": {}}
    unknown = {
        f"unknown {kind}": {"error": -32602, "message": f"Unknown {kind}: {NO_SUCH}"} for kind in ("tool", "prompt")
    }
    return {**lists, **unknown, "revision": "2025-11-25", **more}


def test_there_are_forty_and_twelve_of_them_in_ci() -> None:
    assert len({server.package for server in SERVERS}) == len(SERVERS) == 40
    assert sum(server.ci for server in SERVERS) == 12
    for registry in ("npm:", "pypi:"):
        assert sum(server.package.startswith(registry) for server in SERVERS if server.ci) >= 4
    assert sum(server.http is not None for server in SERVERS if server.ci) >= 3


def test_each_row_of_known_servers_has_a_check() -> None:
    assert sorted(CHECKS) == sorted(row.id for row in KNOWN)


def test_in_ci_each_row_of_known_servers_is_checked_whose_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: dict[str, list[str]] = {}

    def check(row: KnownServer) -> str:
        checked[row.id] = list(row.packages)
        return "it does not reproduce"

    for id in CHECKS:
        monkeypatch.setitem(CHECKS, id, check)
    twelve = [server.package for server in SERVERS if server.ci]
    assert [each.partition(":")[0] for each in check_known(twelve)] == [row.id for row in KNOWN]
    assert checked["sdk-1"] == ["pypi:mcp-server-sqlite"]
    assert len(check_known()) == len(KNOWN)
    assert checked["sdk-1"] == [package for row in KNOWN if row.id == "sdk-1" for package in row.packages]
    assert [each.partition(":")[0] for each in check_known(["npm:@playwright/mcp"])] == [
        "playwright-localhost",
        "sdk-1",
    ]


def test_rows_of_known_servers_are_of_the_versions_that_are_compared() -> None:
    versions = {server.package: server.version for server in SERVERS}
    for row in KNOWN:
        for package in row.packages.keys() & versions.keys():
            assert row.packages[package] == versions[package], package


def test_the_page_has_all_servers_and_nothing_wrong() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert [row.split("|")[1:3] for row in rows] == [[f" `{each.package}` ", f" {each.version} "] for each in SERVERS]
    assert not [row for row in rows if "X" in row]
    assert page(rows) == PAGE.read_text()


def test_what_differs_is_told_by_its_place() -> None:
    assert list(differing({"a": [1, {"b": 2}], "c": 3}, {"a": [1, {"b": 4}], "d": 5})) == [
        "/a/1/b: 2 became 4",
        "/c: 3 became null",
        "/d: null became 5",
    ]
    assert list(differing(seen(), seen())) == []


def test_documented_differences_are_exact() -> None:
    """Each makes one thing of another; what else differs is none of them."""
    direct = seen(
        **{
            "tools": {"t": TOOL, "": {"error": 1}},
            "unknown tool": {"isError": True},
            "unknown prompt": {"error": -32601},
        }
    )
    stateless, numbers = expected(direct, "auto")
    assert numbers == list(range(1, len(DIFFERENCES) + 1))
    assert stateless == seen(tools={"t": {"name": "t"}})
    assert expected(direct, "legacy")[0] == seen(tools={"t": {"name": "t", "execution": {"taskSupport": "optional"}}})
    assert expected(seen(), "auto") == (seen(), [])
    absent = {"": {"error": -32601}}
    assert expected(seen(resources=absent, templates=absent, prompts=absent), "auto")[1] == []
    assert expected(seen(templates=absent), "auto") == (seen(), [4])


def test_folder_port_and_numbers_that_vary_count_for_nothing() -> None:
    said = {"a": "in /tmp/x at 4711, count: 3", "b": {"count": 4}}
    assert without_places(said, "/tmp/x", 4711, "count") == {"a": "in {folder} at {port}, count: 0", "b": {"count": 0}}
    assert without_places(said, "/y", 0, "") == said


def test_a_server_that_was_not_seen_or_differs_is_wrong() -> None:
    server = next(each for each in SERVERS if each.http is None)
    id = Place(server, Path()).id
    results = Results()
    for mode in ("auto", "legacy"):
        results.direct[id, mode], results.through[id, mode] = seen(), seen(revision="2026-07-28")
    rows, wrong = compare(results, [server])
    assert rows == [f"| `{server.package}` | {server.version} | 2025-11-25 | 0 0 0 0 | = | = | – | – |"]
    assert wrong == []
    results.through[id, "auto"] = seen(tools={"t": TOOL})
    del results.through[id, "legacy"]
    (row,), wrong = compare(results, [server])
    assert row.endswith("| X | X | – | – |")
    assert [each.partition(": ")[0] for each in wrong] == [f"{server.package}, auto", f"{server.package}, legacy"]


def test_what_stands_for_the_run_is_filled_in() -> None:
    server = next(each for each in SERVERS if each.http is not None and "{port}" in each.http)
    place = Place(server, Path("/f"), 4711)
    assert "4711" in place.words()
    assert place.url() == "http://localhost:4711/mcp"
    assert place.env("m")["HOME"] == "/f"


def test_twenty_and_more_run_in_a_sandbox_and_their_table_is_that_of_the_page() -> None:
    assert len({each.server.package for each in CONFINED}) == len(CONFINED) >= 20
    assert sum(each.ci for each in CONFINED) >= 8
    installed = {server.package for server in SERVERS if server.ci}
    assert {each.server.package for each in CONFINED if each.ci} <= installed
    assert confined.page([each.row() for each in CONFINED]) == confined.PAGE.read_text()


def test_a_server_that_does_something_else_in_a_sandbox_is_wrong() -> None:
    each = CONFINED[0]
    succeeded: dict[str, Any] = {"calls": [{"content": []}]}
    assert list(confined.compare(each, seen(**succeeded), seen(**succeeded))) == []
    refused = seen(calls=[{"content": [], "isError": True}])
    assert list(confined.compare(each, seen(**succeeded), refused)) == ["/calls/0/isError: null became true"]
    assert "its calls without a sandbox" in "".join(confined.compare(each, refused, refused))
    assert list(confined.compare(replace(each, refused=True), refused, refused)) == []
    assert list(confined.compare(each, seen(tools={"t": TOOL}, **succeeded), seen(**succeeded)))


def test_only_one_of_the_two_has_a_sandbox(tmp_path: Path) -> None:
    each = next(each for each in CONFINED if each.beside and each.files)
    entries = [Side(each, tmp_path / "f", "http://p", in_sandbox).entry("m") for in_sandbox in (False, True)]
    assert "sandbox" not in entries[0]
    assert entries[1]["sandbox"] == {"files": {"write": [str(tmp_path / "f")]}, **each.beside}
    assert entries[0]["command"] == entries[1]["command"]
    assert "HOME" not in entries[1]["env"]
