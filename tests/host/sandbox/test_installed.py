"""What was installed: the record of it, its digest, and the script that is run."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from config import StdioServer
from config.references import Secret
from config.sandbox import Install, Sandbox
from host.sandbox.installed import (
    Installed,
    command_of,
    digest_of,
    old_places,
    paths_in,
    read_record,
    record_bytes,
    record_path,
    start_of,
    version_of,
    wanted_text,
)
from host.sandbox.packages import NotInstallable, Wanted, wanted_by
from tests.host.sandbox.kit import program


def wanted(command: str, *, builds: bool = False) -> Wanted:
    found = wanted_by(shlex.split(command))
    assert found is not None
    return replace(found, builds=builds)


def manifest(place: Path, name: str, **members: object) -> None:
    folder = place / "npm" / "node_modules" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps(members))


def recorded(packages: Path, command: str, place: str = "p") -> Installed:
    made = Installed(wanted_text(wanted(command)), place, "a", "1", "", "sha256:1", "sha256:2")
    (packages / "p").mkdir(parents=True, exist_ok=True)
    record_path(packages).write_bytes(record_bytes(made))
    return made


def test_a_record_is_for_what_is_installed_whatever_is_run_of_it(tmp_path: Path) -> None:
    made = recorded(tmp_path, "npx a@1 x")
    assert read_record(tmp_path, wanted("npx -y a@1 y")) == made
    assert read_record(tmp_path, wanted("npx -p a@1 other")) == made
    assert read_record(tmp_path, wanted("npx a@2")) is None
    assert read_record(tmp_path, wanted("npx a@1", builds=True)) is None
    assert read_record(tmp_path, wanted("uvx a==1")) is None


@pytest.mark.parametrize("damage", ["missing", "text", "members", "place", "outside"])
def test_a_record_that_is_none(tmp_path: Path, damage: str) -> None:
    recorded(tmp_path, "npx a", "../p" if damage == "outside" else "p")
    if damage == "missing":
        record_path(tmp_path).unlink()
    elif damage == "text":
        record_path(tmp_path).write_text("[")
    elif damage == "members":
        record_path(tmp_path).write_text('{"wanted": 1}')
    elif damage == "place":
        (tmp_path / "p").rmdir()
    assert read_record(tmp_path, wanted("npx a")) is None


def test_old_places_are_those_beside_the_record(tmp_path: Path) -> None:
    assert old_places(tmp_path / "nowhere") == []
    (tmp_path / "q").mkdir()
    assert old_places(tmp_path) == [tmp_path / "q"]
    recorded(tmp_path, "npx a")
    assert old_places(tmp_path) == [tmp_path / "q"]


# The script


@pytest.mark.parametrize(
    ("name", "scripts", "chosen"),
    [
        ("a", "x.js", "a"),
        ("@of/a", "x.js", "a"),
        ("a", {"other": "x.js"}, "other"),
        ("a", {"one": "x.js", "two": "./x.js"}, "one"),
        ("a", {"a": "x.js", "b": "y.js"}, "a"),
        ("@of/a", {"a": "x.js", "b": "y.js"}, "a"),
    ],
)
def test_npx_chooses_a_script(tmp_path: Path, name: str, scripts: object, chosen: str) -> None:
    manifest(tmp_path, name, bin=scripts)
    script = program(tmp_path / "npm" / "node_modules" / ".bin" / chosen)
    assert command_of(wanted(f"npx {name} x"), tmp_path) == (str(script), "x")


@pytest.mark.parametrize("scripts", [None, {}, {"b": "x.js", "c": "y.js"}, 7])
def test_npx_has_no_script_to_choose(tmp_path: Path, scripts: object) -> None:
    manifest(tmp_path, "a", bin=scripts)
    with pytest.raises(NotInstallable, match="a package without a script that npx would run"):
        command_of(wanted("npx a"), tmp_path)


def test_a_script_by_its_name(tmp_path: Path) -> None:
    script = program(tmp_path / "venv" / "bin" / "b")
    assert command_of(wanted("uvx --from a b --x"), tmp_path) == (str(script), "--x")
    with pytest.raises(NotInstallable, match=r"write uvx --from PACKAGE SCRIPT; they have b$"):
        command_of(wanted("uvx a"), tmp_path)
    with pytest.raises(NotInstallable, match=r"write npx -p PACKAGE SCRIPT; they have none$"):
        command_of(wanted("npx -p a c"), tmp_path)


def test_versions(tmp_path: Path) -> None:
    manifest(tmp_path, "@of/a", version="1.2.3-beta.1")
    assert version_of(wanted("npx @of/a"), tmp_path) == "1.2.3-beta.1"
    manifest(tmp_path, "b", version="\x1b[2J")
    assert version_of(wanted("npx b"), tmp_path) == ""
    assert version_of(wanted("npx c"), tmp_path) == ""
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages" / "some_server-2.0.dist-info").mkdir(parents=True)
    assert version_of(wanted("uvx Some.Server"), tmp_path) == "2.0"
    assert version_of(wanted("uvx server"), tmp_path) == ""


# Digests


NAMES = st.from_regex(r"[ab]/[a-c]{1,2}", fullmatch=True)


@given(st.lists(NAMES, unique=True, min_size=1, max_size=5))
def test_a_digest_is_the_same_in_whatever_order_files_come(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    places = [tmp_path_factory.mktemp("place") for _ in range(2)]
    for place, order in zip(places, (names, reversed(names)), strict=True):
        for name in order:
            program(place / name, name)
    assert digest_of(places[0]) == digest_of(places[1])
    assert paths_in(places[0]) == sorted(names)


@pytest.mark.parametrize("change", ["text", "mode", "name", "more", "less", "link", "target"])
def test_a_digest_says_all_about_the_files(tmp_path: Path, change: str) -> None:
    path, link = tmp_path / "a" / "b", tmp_path / "link"
    path.parent.mkdir()
    path.write_text("1")
    link.symlink_to("a/b")
    before = digest_of(tmp_path)
    match change:
        case "text":
            path.write_text("2")
        case "mode":
            path.chmod(0o755)
        case "name":
            path.rename(path.with_name("c"))
        case "more":
            (tmp_path / "c").touch()
        case "less":
            path.unlink()
        case "link":
            link.unlink()
            link.write_text("1")
        case "target":
            link.unlink()
            link.symlink_to("/a/b")
    assert digest_of(tmp_path) != before


def test_a_digest_without_what_the_registry_did_not_give(tmp_path: Path) -> None:
    for path in ("given.py", "made.cfg"):
        (tmp_path / path).write_text("1")
    before = digest_of(tmp_path, {"made.cfg"})
    (tmp_path / "made.cfg").write_text("2")
    assert digest_of(tmp_path, {"made.cfg"}) == before
    (tmp_path / "given.py").write_text("2")
    assert digest_of(tmp_path, {"made.cfg"}) != before


# The start


def server(*words: str, cwd: Path = Path("/"), sandbox: Sandbox | None = None) -> StdioServer:
    return StdioServer(id="a", command=tuple(map(Secret, words)), cwd=cwd, sandbox=sandbox or Sandbox())


def test_a_command_that_installs_nothing_starts_as_it_is(tmp_path: Path) -> None:
    start = start_of(server("node", "x.js"), tmp_path, {}, {})
    assert (start.words, start.place, start.missing) == (("node", "x.js"), "", None)


def test_packages_are_missing_until_they_are_installed(tmp_path: Path) -> None:
    spec = server("npx", "a@1", "x")
    missing = start_of(spec, tmp_path, {"PATH": "/nowhere"}, {}).missing
    assert str(missing) == "a@1 from registry.npmjs.org by npm"
    wide = start_of(
        server("uvx", "a", sandbox=Sandbox(install=Install(scripts=True))), tmp_path, {"PATH": "/nowhere"}, {}
    ).missing
    assert str(wide) == "a from pypi.org, files.pythonhosted.org by uv, and runs what they install with"
    made = recorded(tmp_path, "npx a@1")
    manifest(tmp_path / "p", "a", bin="x.js")
    script = program(tmp_path / "p" / "npm" / "node_modules" / ".bin" / "a")
    start = start_of(spec, tmp_path, {"PATH": "/nowhere"}, {})
    assert (start.words, start.record, start.place) == ((str(script), "x"), made, str(tmp_path / "p"))
    assert start.interpreter == "node"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/\'python\' "$0" "$@"\n\'\'\'\n', True),
        ("#!/bin/sh\nexec other\n", False),
        ("", False),
    ],
)
def test_a_script_that_finds_python_by_path_is_started_with_it(tmp_path: Path, text: str, is_found: bool) -> None:
    """Its server may have a PATH that leads nowhere. What the script is, and so its launch, stays the same."""
    recorded(tmp_path, "uvx a")
    script = program(tmp_path / "p" / "venv" / "bin" / "a", text)
    start = start_of(server("uvx", "a", "x"), tmp_path, {"PATH": "/nowhere"}, {})
    assert start.words == (str(script), "x")
    assert start.argv == ((str(script.with_name("python")),) if is_found else ()) + start.words


def test_what_npx_finds_is_not_installed(tmp_path: Path) -> None:
    """It runs a script of a package above the folder that it starts in, or else one beside node."""
    node = program(tmp_path / "node" / "bin" / "node")
    beside = program(node.parent / "a")
    environment = {"PATH": str(node.parent)}
    spec = server("npx", "-y", "a", "x", cwd=tmp_path / "work" / "deep")
    assert start_of(spec, tmp_path, environment, {}).words == (str(beside), "x")
    near = program(tmp_path / "work" / "node_modules" / ".bin" / "a")
    assert start_of(spec, tmp_path, environment, {}).words == (str(near), "x")
    for words in (("npx", "a@1"), ("npx", "-p", "a", "a"), ("npx", "@of/a"), ("uvx", "a")):
        assert start_of(server(*words, cwd=spec.cwd), tmp_path, environment, {}).missing is not None


def test_the_record_is_a_text_for_people() -> None:
    assert str(Installed("", "p", "a", "1.2", "", "sha256:12", "sha256:34")) == "a 1.2 (sha256:12)"
    assert os.path.basename(record_path(Path("/x"))) == "installed.json"


@pytest.mark.parametrize("option", ["--no", "--no-install"])
def test_what_is_not_to_be_installed_runs_if_it_is_there(tmp_path: Path, option: str) -> None:
    spec = server("npx", option, "a-tool-of-ours", cwd=tmp_path)
    with pytest.raises(NotInstallable, match="remove --no-install"):
        start_of(spec, tmp_path / "packages", {}, {})
    script = program(tmp_path / "node_modules" / ".bin" / "a-tool-of-ours")
    assert start_of(spec, tmp_path / "packages", {}, {}).words == (str(script),)


@pytest.mark.parametrize("command", ["npx --ignore-scripts a", "uvx --no-build a"])
def test_an_option_against_scripts_counts_more_than_the_file(tmp_path: Path, command: str) -> None:
    words, permits = shlex.split(command), Sandbox(install=Install(scripts=True))
    with_option, without = (server(*each, sandbox=permits) for each in (words, [words[0], words[2]]))
    for spec, runs in ((with_option, False), (without, True)):
        missing = start_of(spec, tmp_path, {}, {}).missing
        assert missing is not None
        assert missing.wanted.builds is runs
