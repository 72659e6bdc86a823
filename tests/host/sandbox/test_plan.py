"""The plan of a program: the paths that its command names, and no more."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from config import StdioServer
from config.references import Secret
from config.sandbox import Destination, Means, Network, Sandbox, SandboxFiles
from host.sandbox.installed import ProgramStart
from host.sandbox.paths import is_below_any
from host.sandbox.plan import SHORT_TEMPORARY, MissingFile, confined_environment, make_mounts, make_plan, needed
from tests.host.sandbox.kit import program

pytestmark = pytest.mark.disk


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    (made / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(made))
    return made


def spec(*words: str | Path, cwd: Path = Path("/"), sandbox: Sandbox | None = None) -> StdioServer:
    return StdioServer(
        id="a", command=tuple(Secret(str(word)) for word in words), cwd=cwd, sandbox=sandbox or Sandbox()
    )


def named(*words: str | Path, cwd: Path = Path("/")) -> list[str]:
    return needed(ProgramStart(tuple(map(str, words))), {"PATH": "/usr/bin"}, str(cwd))


def plan(tmp_path: Path, made: StdioServer) -> dict[str, Any]:
    return make_plan(made, {"PATH": "/usr/bin"}, tmp_path / "state" / "own", tmp_path / "state")


def test_a_program_of_the_system_needs_nothing() -> None:
    assert named("sh", "-c", "exit") == []
    assert named("/usr/bin/env") == []


def test_a_program_alone(tmp_path: Path) -> None:
    """The files beside it in a folder of programs are those of others."""
    assert named(program(tmp_path / "home" / "bin" / "tool")) == [str(tmp_path / "home" / "bin" / "tool")]


def test_an_installation(tmp_path: Path) -> None:
    tool = program(tmp_path / "node" / "bin" / "node")
    (tmp_path / "node" / "lib").mkdir()
    (tmp_path / "node" / "secret").mkdir()
    plan_of = plan(tmp_path, spec(tool))
    assert {str(tmp_path / "node" / "bin"), str(tmp_path / "node" / "lib")} <= {*plan_of["read"]}
    assert not is_below_any(str(tmp_path / "node" / "secret"), plan_of["read"])


def test_of_a_home_with_programs_their_libraries_alone(home: Path) -> None:
    tool = program(home / ".local" / "bin" / "tool")
    (home / ".local" / "share").mkdir()
    found = named(tool)
    assert str(home / ".local" / "lib") in found
    assert not any(is_below_any(str(home / each), found) for each in (".local/share", ".local/bin/other", ".ssh"))


def test_a_virtual_environment_and_its_python(tmp_path: Path) -> None:
    base = program(tmp_path / "python" / "bin" / "python3")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(base)
    (venv / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    script = program(venv / "bin" / "serve", f"#!{venv}/bin/python\n")
    found = named(script)
    assert {f"{venv}/lib", f"{venv}/pyvenv.cfg", f"{tmp_path}/python/lib", str(base.parent)} <= {*found}


@pytest.mark.parametrize("base", ["{venv}/bin", "/nowhere\0/bin", ""])
def test_a_virtual_environment_that_is_made_from_no_other(tmp_path: Path, base: str) -> None:
    """Its file may be one of a folder that was cloned."""
    venv = tmp_path / "venv"
    tool = program(venv / "bin" / "tool")
    (venv / "pyvenv.cfg").write_text(f"home = {base.format(venv=venv)}\nhome = {tmp_path}/other/bin\n")
    parts = [f"{venv}/{name}" for name in ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")]
    assert named(tool) == [str(tool), *parts, str(venv)]


def test_a_pipe_in_the_place_of_the_file_of_an_environment(tmp_path: Path) -> None:
    tool = program(tmp_path / "venv" / "bin" / "tool")
    os.mkfifo(tmp_path / "venv" / "pyvenv.cfg")
    assert f"{tmp_path}/venv/lib" in named(tool)


def test_a_script_has_its_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    script = program(package / "dist" / "index.js")
    (package / "package.json").touch()
    assert named("node", "--flag", script, "/nowhere") == [str(script), str(package)]
    assert named("node", "dist/index.js", cwd=package) == [str(script), str(package)]
    assert plan(tmp_path, spec("node", "dist/index.js", cwd=package))["cwd"] == str(package)
    alone = program(tmp_path / "alone" / "serve.py")
    assert named("python3", alone) == [str(alone), str(alone.parent)]


def test_a_package_among_others_has_them_too(tmp_path: Path) -> None:
    """It may begin in a folder of which it sees nothing else."""
    folder = tmp_path / "app" / "node_modules"
    script = program(folder / "@scope" / "server" / "bin" / "index.js", "#!/usr/bin/env node\n")
    (script.parent.parent / "package.json").touch()
    (tmp_path / "app" / "secret").touch()
    (folder / ".bin").mkdir()
    (folder / ".bin" / "server").symlink_to(script)
    for words in ((folder / ".bin" / "server",), ("node", "node_modules/@scope/server/bin/index.js")):
        made = plan(tmp_path, spec(*words, cwd=tmp_path / "app"))
        assert str(folder) in made["read"]
        assert not is_below_any(f"{tmp_path}/app/secret", made["read"])
        assert (made["cwd"] == f"{tmp_path}/app") is (words[0] == "node")


@pytest.mark.parametrize(
    "words",
    [
        ("env", "A=1", "-u", "B", "node", "{package}/dist/index.js"),
        ("/usr/bin/env", "-S", "A=1 node {package}/dist/index.js"),
        ("sh", "-c", "node {package}/dist/index.js --at x@y"),
        ("bash", "-lc", "A=1 exec node '{package}/dist/index.js' 2>&1 | tee log"),
        ("sh", "-c", "cd {package} && exec node dist/index.js"),
        ("sh", "-c", "env A=1 sh -c 'true; node {package}/dist/index.js'"),
    ],
)
def test_commands_in_a_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    script = program(tmp_path / "package" / "dist" / "index.js")
    (tmp_path / "package" / "package.json").touch()
    found = named(*(word.format(package=tmp_path / "package") for word in words))
    assert {str(script), str(tmp_path / "package")} <= {*found}


@pytest.mark.parametrize("text", ["node '", "", "; &&", "cd", "A=1", "exec", "cd a\0b; node c"])
def test_a_text_for_a_shell_that_names_nothing(text: str) -> None:
    assert named("sh", "-c", text) == []


def test_a_program_in_the_text_for_a_shell(tmp_path: Path) -> None:
    """It is looked up as any; what only looks like one is an argument."""
    tools = [program(tmp_path / "bin" / name) for name in ("first", "second", "third")]
    found = needed(ProgramStart(("sh", "-c", "first third; second")), {"PATH": f"{tmp_path}/bin"}, "/")
    assert [each in found for each in map(str, tools)] == [True, True, False]


def test_relative_paths_in_the_text_for_a_shell_begin_where_it_starts(tmp_path: Path) -> None:
    program(tmp_path / "package" / "dist" / "index.js")
    (tmp_path / "package" / "package.json").touch()
    made = plan(tmp_path, spec("sh", "-c", "node dist/index.js", cwd=tmp_path / "package"))
    assert made["cwd"] == str(tmp_path / "package")


@pytest.mark.parametrize("place", ["server.py", "server/__main__.py", "server/__init__.py"])
def test_a_module_where_it_starts(tmp_path: Path, place: str) -> None:
    program(tmp_path / "project" / place)
    (tmp_path / "project" / "pyproject.toml").touch()
    made = plan(tmp_path, spec("python3", "-m", "server.sub", cwd=tmp_path / "project"))
    assert str(tmp_path / "project") in made["read"]
    assert made["cwd"] == str(tmp_path / "project")
    assert named("python3", "-m", "other", "-m", cwd=tmp_path / "project") == []


def test_folders_with_modules(tmp_path: Path, home: Path) -> None:
    (tmp_path / "modules").mkdir()
    env = {"PATH": "/usr/bin", "PYTHONPATH": f"{tmp_path}/modules:{home}::a\0b", "NODE_PATH": "modules"}
    assert needed(ProgramStart(("python3", "-m", "server")), env, str(tmp_path)) == [f"{tmp_path}/modules"]


def test_a_shim_has_the_versions_that_it_chooses_from(home: Path) -> None:
    shim = program(home / ".pyenv" / "shims" / "python3", "#!/usr/bin/env bash\n")
    assert f"{home}/.pyenv/versions" not in named(shim)
    (home / ".pyenv" / "versions").mkdir()
    assert {f"{home}/.pyenv/{name}" for name in ("versions", "version", "libexec")} <= {*named(shim)}


def test_paths_among_the_arguments(tmp_path: Path, home: Path) -> None:
    """A folder that holds more than a program's files is read only if the file says so, and so is the machine's own
    version of a file that the program gets."""
    (tmp_path / "data").mkdir()
    script = program(home / "serve.py")
    words = (
        script,
        f"--root={tmp_path}/data",
        str(home),
        str(tmp_path),
        "/",
        "/etc",
        "/home",
        "/etc/passwd",
        "word",
        "a\0b/c",
    )
    assert named("python3", *words) == [str(script), f"{tmp_path}/data"]


def test_links_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    made = plan(tmp_path, spec("sh", sandbox=Sandbox(SandboxFiles(read=(f"{tmp_path}/link",)))))
    assert f"{tmp_path}/real" in made["read"]
    assert made["links"][f"{tmp_path}/link"] == "real"


def test_a_path_below_one_that_it_may_write_is_no_mount_of_its_own(tmp_path: Path) -> None:
    """The program could put a link in its place, which the next start would follow."""
    (tmp_path / "w" / "inner").mkdir(parents=True)
    files = SandboxFiles((f"{tmp_path}/w/inner",), (f"{tmp_path}/w", f"{tmp_path}/w/inner"))
    made = plan(tmp_path, spec("sh", sandbox=Sandbox(files)))
    assert made["write"] == [f"{tmp_path}/w"]
    assert f"{tmp_path}/w/inner" not in made["read"]


@pytest.mark.parametrize("how", ["read", "write", "argument", "home"])
def test_a_link_that_the_program_may_have_made_is_not_followed(tmp_path: Path, home: Path, how: str) -> None:
    """Or else it would be given at the next start what it could not read at this one."""
    folder = tmp_path / "w"
    folder.mkdir()
    sandbox = Sandbox(SandboxFiles(write=(str(folder),)))
    link = folder / "link"
    if how == "home":
        link = Path(plan(tmp_path, spec("sh"))["own"][0]) / "link"
    elif how != "argument":
        own = (f"{folder}/link", str(folder))
        sandbox = Sandbox(SandboxFiles(read=own[:1], write=own[1:]) if how == "read" else SandboxFiles(write=own))
    (home / ".ssh" / "key").touch()
    link.symlink_to(home / ".ssh" / "key")
    made = plan(tmp_path, spec("sh", link, f"--data={link}", f"/{link}", sandbox=sandbox))
    given = [*made["read"], *made["write"]]
    assert not [path for path in given if is_below_any(os.path.realpath(path), [str(home / ".ssh")])]
    assert made["write"] == [str(folder)]


def test_a_link_that_the_program_may_have_made_is_no_mount_of_a_container(tmp_path: Path, home: Path) -> None:
    """Client programs of containers follow links."""
    (out := tmp_path / "out").mkdir()
    (out / "data").symlink_to(home / ".ssh")
    (out / "more").mkdir()
    write = tuple(str(each) for each in (out, out / "data", out / "more"))
    sandbox = Sandbox(files=SandboxFiles(read=write[1:2], write=write))
    mounts, _ = make_mounts(sandbox, tmp_path / "state" / "own", tmp_path / "state")
    own = {str(tmp_path / "state" / "own" / "home"), SHORT_TEMPORARY}
    assert {place: real for place, real in mounts.items() if place not in own} == {str(out): (str(out), True)}


def test_an_option_names_a_file_and_not_its_package(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "db").touch()
    assert named("sh", f"--db={tmp_path}/data/db") == [f"{tmp_path}/data/db"]


@pytest.mark.parametrize("line", ["#!", "#! -x", '#!/bin/sh "x', "#!{self}"])
def test_a_first_line_that_names_no_interpreter(tmp_path: Path, line: str) -> None:
    script = tmp_path / "bin" / "serve"
    assert named(program(script, line.format(self=script) + "\n")) == [str(script)]


def test_a_program_that_no_file_can_be() -> None:
    assert named("a\0b") == []


@pytest.mark.parametrize("files", [SandboxFiles(read=("/nowhere",)), SandboxFiles(write=("/nowhere",))])
def test_a_path_that_is_not_there(tmp_path: Path, files: SandboxFiles) -> None:
    with pytest.raises(MissingFile) as caught:
        plan(tmp_path, spec("sh", sandbox=Sandbox(files)))
    assert caught.value.path == "/nowhere"


@pytest.mark.parametrize("place", ["/", "//", "/proc/self", "//proc/self", "/sys", "/dev/shm"])
def test_no_link_leads_to_what_no_program_is_given(tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(MissingFile):
        plan(tmp_path, spec("sh", sandbox=Sandbox(SandboxFiles(read=(f"{tmp_path}/link",)))))
    given = plan(tmp_path, spec("sh", tmp_path / "link", "/proc/self/environ", "//proc/self/environ"))["read"]
    assert not [
        path for path in given if path.startswith("//") or path == "/" or is_below_any(path, ["/proc", "/sys", "/dev"])
    ]


def test_an_argument_gives_no_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{tmp_path}/socket")
        assert named("sh", tmp_path / "socket") == []


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(MissingFile):
        plan(tmp_path, spec("sh", sandbox=Sandbox(SandboxFiles(read=(f"{tmp_path}/a",)))))


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("node ../served/index.js", True),
        ("node --config=../served/index.js", True),
        ("sh -c 'cd ../served && node index.js'", True),
        ("node {}/served/index.js", False),
        ("node ../../nowhere.js", False),
    ],
)
def test_it_starts_where_relative_paths_lead_to_what_it_can_read(tmp_path: Path, words: str, begins: bool) -> None:
    program(tmp_path / "served" / "index.js")
    (tmp_path / "work").mkdir()
    made = plan(tmp_path, spec(*shlex.split(words.format(tmp_path)), cwd=tmp_path / "work"))
    assert made["cwd"] == (str(tmp_path / "work") if begins else made["own"][0])
    assert not is_below_any(str(tmp_path / "work"), made["read"])


@pytest.mark.parametrize("folder", ["/proc", "nowhere", "state"])
def test_it_starts_in_no_folder_that_cannot_be_there(tmp_path: Path, folder: str) -> None:
    program(tmp_path / "served" / "index.js")
    path = os.path.relpath(tmp_path / "served" / "index.js", tmp_path / folder)
    made = plan(tmp_path, spec("node", path, cwd=tmp_path / folder))
    assert made["cwd"] == made["own"][0]


def test_it_starts_where_it_can_read_or_else_at_home(tmp_path: Path) -> None:
    made = plan(tmp_path, spec("sh", cwd=tmp_path))
    assert made["cwd"] == made["own"][0]
    assert plan(tmp_path, spec("sh", cwd=tmp_path, sandbox=Sandbox(SandboxFiles(read=(str(tmp_path),)))))["cwd"] == str(
        tmp_path
    )


def test_its_folders_are_its_own(tmp_path: Path) -> None:
    made = plan(tmp_path, spec("sh"))
    assert {os.stat(each).st_mode & 0o777 for each in (*made["own"], made["base"])} == {0o700}
    assert made["hidden"] == str(tmp_path / "state")


def test_its_environment() -> None:
    """Nothing of the user's but what it needs; without a network, package runners are told that there is none."""
    usual = {"PATH": "/bin", "LC_ALL": "C", "HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/u", "HTTP_PROXY": "http://p"}
    found = confined_environment(Sandbox(), usual, {"OWN": "1", "UV_OFFLINE": "0"}, Path("/s"))
    assert found == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HOME": "/s/home",
        "TMPDIR": "/own-tmp",
        "npm_config_offline": "true",
        "npm_config_update_notifier": "false",
        "UV_OFFLINE": "0",
        "OWN": "1",
    }
    assert confined_environment(Sandbox(accept=Means.LANDLOCK), usual, {}, Path("/s"))["TMPDIR"] == "/s/tmp"
    wider = Sandbox(network=Network.ALL, environment=("HTTP_PROXY",))
    assert confined_environment(wider, usual, {}, Path("/s")).keys() == {
        "PATH",
        "LC_ALL",
        "HTTP_PROXY",
        "HOME",
        "TMPDIR",
    }


def test_a_module_of_the_folder_that_python_starts_in(tmp_path: Path) -> None:
    """`python -m` looks there first, so the module is read, and the program starts there."""
    work = tmp_path / "work"
    (work / "served" / "deep").mkdir(parents=True)
    (work / "single.py").touch()
    for line in ("python3 -m served", "python3.11 -u -m served.deep.server --x"):
        assert str(work / "served") in named(*line.split(), cwd=work)
        made = plan(tmp_path, spec(*line.split(), cwd=work))
        assert made["cwd"] == str(work)
    assert str(work) in named("python3", "-m", "single", cwd=work)
    for line in ("python3 -I -m served", "python3 -m json.tool", "python3 -m", "sh -m served"):
        assert not [path for path in named(*line.split(), cwd=work) if path.startswith(str(work))]
    (work / "pyproject.toml").touch()
    assert str(work) in named("python3", "-m", "served", cwd=work)


def test_names_lead_to_sockets_of_its_loopback(tmp_path: Path) -> None:
    sandbox = Sandbox(network=tuple(map(Destination, ("a.test:443", "10.0.0.5:22", "*.b.test:443", "a.test:80"))))
    made = plan(tmp_path, spec("sh", sandbox=sandbox))
    assert made["network"] == "named"
    assert made["listeners"] == [("127.64.0.1", 3128), ("127.64.0.2", 443), ("10.0.0.5", 22), ("127.64.0.2", 80)]
    assert made["files"]["/etc/hosts"] == "127.0.0.1 localhost\n::1 localhost\n127.64.0.2 a.test\n"
    assert "/etc/resolv.conf" not in made["read"]
    assert plan(tmp_path, spec("sh"))["listeners"] == []


def test_variables_lead_to_the_proxy() -> None:
    """Variables of the file replace them, and those of the user are not handed on."""
    sandbox = Sandbox(network=(Destination("a.test:443"),), environment=("HTTP_PROXY", "NO_PROXY"))
    usual = {"HTTP_PROXY": "http://company", "NO_PROXY": "*"}
    found = confined_environment(sandbox, usual, {"https_proxy": "mine"}, Path("/s"))
    proxy, direct = "http://127.64.0.1:3128", "localhost,127.0.0.1,::1"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy", "NODE_USE_ENV_PROXY")
    assert [found[name] for name in names] == [proxy, proxy, proxy, "mine", direct, direct, "1"]
    assert (found["UV_OFFLINE"], found["npm_config_offline"]) == ("1", "true")


@pytest.mark.parametrize(
    ("registry", "left"), [("registry.npmjs.org:443", {"UV_OFFLINE"}), ("pypi.org:443", {"npm_config_offline"})]
)
def test_a_package_runner_whose_registry_is_permitted_is_not_told_that_there_is_none(
    registry: str, left: set[str]
) -> None:
    found = confined_environment(Sandbox(network=(Destination(registry),)), {}, {}, Path("/s"))
    assert {"UV_OFFLINE", "npm_config_offline"} & found.keys() == left


def test_this_interpreter_is_found() -> None:
    found = needed(ProgramStart((sys.executable,)), dict(os.environ), "/")
    assert is_below_any(os.path.realpath(os.__file__), [os.path.realpath(each) for each in found] + ["/usr"])
