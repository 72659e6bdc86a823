"""Where a host's files lie, what is known when one is read, and references."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at, literal, merged, rewrite
from config.desktop.entry import CannotUse
from config.desktop.generic import GENERIC
from config.desktop.hosts import HOSTS
from config.document import Document
from config.file_state import MISSING, file_state
from tests.config.desktop.kit import Home
from tests.kit.cost import assert_costs_less

U, P = Path("/u"), Path("/p")
APP = HostFile(
    "~/.config/App/mcp.json", "~/Library/Application Support/App/mcp.json", variable="APP_HOME", below="app/mcp.json"
)
FILE = HostFile("~/.app.json", variable="APP_FILE")
PROFILE = HostFile("~/.config/App/profiles/*/mcp.json")
BOTH = (HostFile("~/.app/mcp.json"), HostFile(".app/mcp.json", is_project=True))


def host(*files: HostFile) -> DesktopHost:
    return DesktopHost(name="app", title="App", files=files, servers=("servers",), rules={})


@pytest.mark.parametrize(
    ("platform", "environ", "path"),
    [
        ("linux", {}, "/u/.config/App/mcp.json"),
        ("darwin", {}, "/u/Library/Application Support/App/mcp.json"),
        ("linux", {"XDG_CONFIG_HOME": "/x"}, "/x/App/mcp.json"),
        ("darwin", {"XDG_CONFIG_HOME": "/x"}, "/u/Library/Application Support/App/mcp.json"),
        ("linux", {"XDG_CONFIG_HOME": "relative"}, "/u/.config/App/mcp.json"),
        ("linux", {"APP_HOME": "/moved"}, "/moved/app/mcp.json"),
        ("linux", {"APP_HOME": ""}, "/u/.config/App/mcp.json"),
    ],
)
def test_paths(platform: str, environ: dict[str, str], path: str) -> None:
    assert APP.path(P, U, environ, platform) == Path(path)


def test_a_variable_may_name_the_file_itself() -> None:
    assert FILE.path(P, U, {"APP_FILE": "/moved/other"}) == Path("/moved/other")


def test_a_projects_file_is_in_the_project() -> None:
    assert BOTH[1].path(P, U, {}, "linux") == Path("/p/.app/mcp.json")


@pytest.mark.parametrize(
    ("file", "path", "matches"),
    [
        (APP, "/home/a/.config/App/mcp.json", True),
        (APP, "/Users/a/Library/Application Support/App/mcp.json", True),
        (APP, "/xdg/App/mcp.json", True),
        (APP, "/xdg/Apps/mcp.json", False),
        (APP, "mcp.json", False),
        (PROFILE, "/u/.config/App/profiles/1a2b/mcp.json", True),
        (PROFILE, "/u/.config/App/mcp.json", False),
        (HostFile("~/.app/servers/*.yaml"), "/u/.app/servers/a.yaml", True),
        (HostFile("~/.app/servers/*.yaml"), "/u/.app/servers/a.json", False),
        (HostFile(".mcp.json", is_project=True), "/any/.mcp.json", True),
        (HostFile("~/.app.json"), "/any/my.app.json", False),
    ],
)
def test_a_path_that_could_be_the_file(file: HostFile, path: str, matches: bool) -> None:
    assert file.matches(Path(path)) is matches


def test_files_that_exist(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / ".config/App/profiles" / name).mkdir(parents=True)
        (tmp_path / ".config/App/profiles" / name / "mcp.json").write_text("{}")
    (tmp_path / ".config/App/mcp.json").mkdir()
    found = [file.parent.name for file in PROFILE.found(P, tmp_path, {}, "linux")]
    assert found == ["a", "b"]
    assert list(APP.found(P, tmp_path, {}, "linux")) == []
    assert [*BOTH[0].found(P, tmp_path, {}), *BOTH[1].found(P, tmp_path, {})] == []


@pytest.mark.parametrize(
    ("path", "project", "base"),
    [
        ("/u/.app/mcp.json", None, "/u"),
        ("/p/.app/mcp.json", "/p", "/p"),
        ("/u/deep/p/.app/mcp.json", "/u/deep/p", "/u/deep/p"),
        ("/elsewhere/mcp.json", None, "/elsewhere"),
    ],
)
def test_the_project_of_a_file(path: str, project: str | None, base: str) -> None:
    """The user's folder is no project, though its file has the same name."""
    assert host(*BOTH).place_of(Path(path), U, {}) == (Path(project) if project else None, Path(base))


@pytest.mark.parametrize(
    "path", ["/u/.config/App/mcp.json", "/backup/App/mcp.json", "/u/.config/App/profiles/x/mcp.json"]
)
def test_a_users_file_starts_from_the_users_folder(path: str) -> None:
    assert host(APP, PROFILE).place_of(Path(path), U, {}) == (None, U)


def context(folder: Path) -> FileContext:
    return FileContext(folder / "mcp.json", Document("mcp.json"), folder)


def test_siblings(tmp_path: Path) -> None:
    """What is not there or empty restricts nothing."""
    file = tmp_path / "settings.json"
    assert context(tmp_path).sibling(file) == {}
    assert context(tmp_path).sibling(file / "below") == {}
    file.write_text("")
    assert context(tmp_path).sibling(file) == {}
    assert context(tmp_path).sibling(file / "below") == {}
    file.write_text('{"a": {"b": "c", "d": "e"}, // mine\n"f": ["g"],}')
    assert context(tmp_path).sibling(file) == {"a": {"b": "c", "d": "e"}, "f": ["g"]}
    assert at(context(tmp_path).sibling(file, ("a", "b")), "a") == {"b": "c", "d": ""}
    assert at({"a": {"b": "text"}}, "a", "b") == {}


@pytest.mark.parametrize("content", ["// mine\n", " \n", "/* a */", "null"])
def test_a_sibling_of_comments_alone_restricts_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    assert context(tmp_path).sibling(tmp_path / "s.json") == {}
    (tmp_path / "s.yaml").write_text("# mine\n")
    assert context(tmp_path).sibling(tmp_path / "s.yaml") == {}


def test_parts_of_a_large_sibling(tmp_path: Path) -> None:
    """A file of which all is wanted may have 1 MiB."""
    file = tmp_path / "settings.json"
    file.write_text('{"big": ["' + "x" * 2_000_000 + '"], "a": "b"}')
    assert context(tmp_path).sibling(file, ("a",))["a"] == "b"
    with pytest.raises(CannotUse):
        context(tmp_path).sibling(file)


@pytest.mark.parametrize("content", ["{ s3cr3t", '{"a": "s3cr3t", "a": "b"}', "[]", "folder"])
def test_a_sibling_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    """It could restrict a server. Nothing of it is quoted."""
    file = tmp_path / "settings.json"
    if content == "folder":
        file.mkdir()
    else:
        file.write_text(content)
    with pytest.raises(CannotUse) as caught:
        context(tmp_path).sibling(file)
    assert "settings.json" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("plain $x", "plain $x"),
        ("<a>${b}<c>", "${env:a}$${b}${env:c}"),
        ("$${b}", "$$${b}"),
        ("<a>", "${env:a}"),
    ],
)
def test_references_are_rewritten_and_the_rest_is_literal(text: str, ours: str) -> None:
    assert rewrite(text, re.compile("<(.)>"), lambda match: f"${{env:{match[1]}}}") == ours


def test_a_dollar_before_a_reference() -> None:
    """In our form the two would be a literal `${`."""
    with pytest.raises(CannotUse):
        rewrite("$<a>", re.compile("<(.)>"), lambda match: "${env:a}")
    assert rewrite("$<a>", re.compile("<(.)>"), lambda match: "a") == "$a"


def test_a_host_without_references(tmp_path: Path) -> None:
    assert literal("a ${b} $${c} $d", context(tmp_path)) == "a $${b} $$${c} $d"


def test_settings_of_two_files_in_one() -> None:
    """Values of the second replace those of the first, and a key keeps the first place."""
    below: dict[str, object] = {"a": {"x": "1", "y": "2"}, "b": ["1"], "c": {"z": "1"}}
    above: dict[str, object] = {"d": "3", "c": "none", "b": ["2"], "a": {"y": "3", "w": "4"}}
    made = merged(below, above)
    assert made == {"a": {"x": "1", "y": "3", "w": "4"}, "b": ["2"], "c": "none", "d": "3"}
    assert list(made) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("platform", "key"), [("linux", "linux"), ("darwin", "macos")])
def test_files_of_the_machine(home: Home, platform: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", platform)
    for name in ("linux", "macos"):
        home.write(f"/{name}/a.json", {"system": name})
    context = FileContext(home.file("~/x.json"), Document("x"), home.path)
    assert context.system_wide("linux/a.json", "macos/a.json") == {"system": key}
    assert context.system_wide("linux/b.json", "macos/b.json") == {}


def test_a_file_of_the_user_may_have_moved(tmp_path: Path) -> None:
    context = FileContext(tmp_path / "x.json", Document("x"), U, {"APP_HOME": "/moved"})
    assert context.users(APP) == Path("/moved/app/mcp.json")


def test_settings_in_a_variable(tmp_path: Path) -> None:
    known = FileContext(tmp_path / "x.json", Document("x"), U, {"SET": '{"a": "b"}', "BROKEN": "{"})
    assert (known.of_variable("SET"), known.of_variable("UNSET")) == ({"a": "b"}, {})
    with pytest.raises(CannotUse, match="the setting BROKEN of its host"):
        known.of_variable("BROKEN")


def test_each_file_that_is_looked_at_is_noted_with_its_state(tmp_path: Path) -> None:
    """Also one that is missing, or cannot be read."""
    context = FileContext(tmp_path / "x.json", Document("x"), tmp_path)
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "bad.json").write_text("{")
    context.sibling(tmp_path / "a.json")
    context.sibling(tmp_path / "missing.json")
    with pytest.raises(CannotUse):
        context.sibling(tmp_path / "bad.json")
    context.note(tmp_path / "policies")
    assert list(context.seen) == [tmp_path / name for name in ("a.json", "missing.json", "bad.json", "policies")]
    assert context.seen == {path: file_state(path) for path in context.seen}


@pytest.mark.parametrize(
    ("place", "content", "missing"),
    [
        (".mcp.json", {"mcpServers": {"a": {"command": "x"}}}, [".claude/settings.json", "~/.claude.json"]),
        (".gemini/settings.json", {"mcpServers": {"a": {"command": "x"}}}, ["~/.gemini/policies", ".gemini/policies"]),
        ("~/.gemini/settings.json", {"mcpServers": {}}, ["/etc/gemini-cli/policies", "/etc/gemini-cli/settings.json"]),
        (".vscode/mcp.json", {"servers": {"a": {"command": "x"}}}, ["~/.config/Code/User/settings.json"]),
        (".cursor/mcp.json", {"mcpServers": {"a": {"command": "x", "envFile": ".env"}}}, [".env", ".cursor/cli.json"]),
        ("~/.config/goose/config.yaml", "extensions: {}", ["~/.config/goose/permission.yaml"]),
        (
            ".continue/mcpServers/a.yaml",
            "mcpServers: [{name: a, command: x, env: {K: '${{ secrets.K }}'}}]",
            [".env", ".continue/.env", "~/.continue/.env", "~/.continue/permissions.yaml"],
        ),
    ],
)
def test_what_could_come_beside_a_file_is_among_its_files(
    place: str, content: object, missing: list[str], home: Home
) -> None:
    """A restriction may come with a new file, or with a new folder."""
    made = home.load(place, content)
    assert made.files[home.file(place)] == file_state(home.file(place))
    assert {home.file(each): made.files.get(home.file(each)) for each in missing} == {
        home.file(each): MISSING for each in missing
    }


@pytest.mark.few(4)
@pytest.mark.parametrize("host", [*HOSTS, GENERIC], ids=lambda host: host.name)
def test_references_that_never_end_cost_little(host: DesktopHost) -> None:
    """A file of a repository that was cloned may hold anything."""

    def translate() -> None:
        for piece in ("${A:-", "${", "{env:A", "${{secrets.a", "${input:", "$A", "%A", "${  "):
            for end in ("", "}"):
                with suppress(CannotUse):
                    host.translate(piece * 20_000 + end, FileContext(P / "a", Document("a"), U, {}, P))

    assert_costs_less(translate, 2)


@pytest.mark.parametrize(
    ("place", "content"),
    [
        (".vscode/mcp.json", {"mcpServers": {"files": {"command": "x", "trust": "trusted"}}}),
        (".cursor/mcp.json", {"servers": {"files": {"command": "x", "trust": "trusted"}}}),
        (".cursor/mcp.json", {"amp.mcpServers": {"files": {"command": "x"}}}),
        ("~/.config/goose/config.yaml", "servers: {files: {command: x, trust: trusted}}"),
    ],
)
def test_a_host_starts_no_servers_of_another_form(place: str, content: object, home: Home) -> None:
    """At the place of a host a file is the host's: in our form it could raise its own trust."""
    made = home.load(place, content)
    assert not made.servers
    assert made.notices[1].startswith("it has no ")
