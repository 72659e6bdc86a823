"""Installations by the real npm and uv, confined, from a registry of our own on the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from config import StdioServer
from config.references import Secret
from config.sandbox import Install, Sandbox
from host.journal import Event, Journal, PackagesInstalled
from host.sandbox.installed import Installed, record_path
from host.storage.directory import ConfigDirectory, open_state
from host.upstream import installing
from host.upstream.confinement import NotInstalled, confine, packages_of
from host.upstream.installing import CannotInstall, install_packages
from host.wire.process import NotConfined, open_keeper
from tests.kit.kernel import needs_namespaces
from tests.kit.registry import SERVER_OF_PYTHON, PackageRegistry, npm_archive, package_registry, sdist, wheel

pytestmark = [pytest.mark.slow, needs_namespaces]
UV = shutil.which("uv", path=f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
NPM = shutil.which("npm")
needs_npm = pytest.mark.skipif(NPM is None, reason="npm is not there")
needs_uv = pytest.mark.skipif(UV is None, reason="uv is not there")


@dataclass
class Place:
    """A configuration whose servers are installed from a registry."""

    registry: PackageRegistry
    directory: ConfigDirectory
    events: list[Event]

    def spec(self, *words: str, install: Install | None = None) -> StdioServer:
        program = str(Path(UV).parent / words[0]) if words[0].startswith("uv") and UV else words[0]
        return StdioServer(
            id="a",
            command=tuple(map(Secret, (program, *words[1:]))),
            cwd=Path("/"),
            env={name: Secret(text) for name, text in self.registry.environment.items()},
            sandbox=Sandbox(install=install or Install()),
        )

    async def install(self, spec: StdioServer, *, again: bool = False) -> Installed:
        journal = Journal()
        journal.subscribe(self.events.append)
        async with open_keeper() as keeper:
            try:
                return await install_packages(spec, self.directory, keeper, journal, again=again)
            except NotInstalled as problem:
                failed = problem
        raise failed

    async def run(self, spec: StdioServer, text: bytes = b"") -> bytes:
        """What the installed program writes when it gets this text."""
        made = await confine(spec, {name: value.reveal() for name, value in spec.env.items()}, self.directory)
        async with (
            open_keeper() as keeper,
            keeper.open_child(made.argv, env=made.env, cwd="/", sandbox=made.plan) as child,
        ):
            with trio.fail_after(20):
                os.write(child.stdin_fd, text)
                child.close_stdin()
                return b"".join([piece async for piece in child.stdout])


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with package_registry() as registry:
        yield Place(registry, open_state(tmp_path / "state").for_config(tmp_path / "c.yaml"), [])


LIST = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "version"}}\n'
BOTH = [
    pytest.param(("npx", "-y", "of-node"), "of-node", "1.0.0", marks=needs_npm),
    pytest.param(("uvx", "of-python"), "of-python", "1.0", marks=needs_uv),
]


@pytest.mark.parametrize(("words", "name", "version"), BOTH)
async def test_it_is_installed_and_run_without_the_network(
    place: Place, words: tuple[str, ...], name: str, version: str
) -> None:
    spec = place.spec(*words)
    record = await place.install(spec)
    assert (record.name, record.version) == (name, version)
    (told,) = (event for event in place.events if isinstance(event, PackagesInstalled))
    assert told.what == f"{name} {version} ({record.digest})"
    assert place.registry.connections
    place.registry.connections = 0
    assert f'"text":"{version}"' in (await place.run(spec, LIST)).decode().replace(": ", ":")
    assert place.registry.connections == 0
    assert sorted(each.name for each in packages_of(spec, place.directory).iterdir()) == sorted(
        [record.place, "installed.json"]
    ), "neither a cache nor a home of the installation is left"


@needs_uv
async def test_a_script_of_python_needs_no_path(place: Place) -> None:
    spec = place.spec("uvx", "of-python")
    await place.install(spec)
    said = await place.run(replace(spec, env={**spec.env, "PATH": Secret("/nowhere")}), LIST)
    assert b'"text":"1.0"' in said.replace(b": ", b":")


@pytest.mark.parametrize(("words", "name", "version"), BOTH)
async def test_it_has_the_same_digest_when_it_is_installed_again(
    place: Place, words: tuple[str, ...], name: str, version: str
) -> None:
    spec = place.spec(*words)
    first, second = await place.install(spec), await place.install(spec, again=True)
    assert first.place != second.place
    assert (first.digest, first.version) == (second.digest, version)
    files = place.registry.npm if name in place.registry.npm else place.registry.python
    files[name] = {
        "1.0.1": npm_archive(name, "1.0.1", {"x.js": "#!/usr/bin/env node"})
        if name == "of-node"
        else wheel(name, "1.0.1", "def main(): ...")
    }
    if name == "of-python":
        files[name] = {"of_python-1.0.1-py3-none-any.whl": files[name]["1.0.1"]}
    third = await place.install(spec, again=True)
    assert (third.version, third.digest != first.digest) == ("1.0.1", True)
    packages = packages_of(spec, place.directory)
    assert {each.name for each in packages.iterdir()} == {"installed.json", second.place, third.place}


@needs_npm
async def test_two_hosts_install_once(place: Place) -> None:
    spec, made = place.spec("npx", "of-node"), list[Installed]()

    async def install() -> None:
        made.append(await place.install(spec))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(install)
        nursery.start_soon(install)
    assert made[0] == made[1]
    assert len([event for event in place.events if isinstance(event, PackagesInstalled)]) == 1


@pytest.mark.parametrize(("words", "name", "version"), BOTH)
async def test_what_was_changed_since_is_not_run(place: Place, words: tuple[str, ...], name: str, version: str) -> None:
    spec = place.spec(*words)
    record = await place.install(spec)
    folder = packages_of(spec, place.directory) / record.place
    script = next(path for path in folder.rglob("*") if path.name in ("server.js", "of_python.py"))
    script.write_text(script.read_text() + "\n")
    with pytest.raises(NotInstalled, match="its packages are not what was installed: colonnade install a"):
        await place.run(spec)


async def test_what_is_not_installed_is_not_run(place: Place) -> None:
    with pytest.raises(NotInstalled, match="its packages are not installed yet"):
        await place.run(place.spec("npx", "of-node"))


@needs_npm
@pytest.mark.parametrize("scripts", [False, True])
async def test_scripts_of_npm_run_only_if_the_file_says_so(place: Place, scripts: bool) -> None:
    """The control is the same package with `install: {scripts: true}`."""
    made = npm_archive(
        "of-node",
        "2.0.0",
        {"x.js": "#!/usr/bin/env node"},
        scripts={"postinstall": "echo made > made; echo $HOME > home"},
    )
    place.registry.npm["of-node"] = {"2.0.0": made}
    spec = place.spec("npx", "of-node", install=Install(scripts=scripts))
    record = await place.install(spec)
    folder = packages_of(spec, place.directory) / record.place / "npm" / "node_modules" / "of-node"
    assert (folder / "made").exists() is scripts
    if scripts:
        home = Path((folder / "home").read_text().strip())
        assert home.parents[1] == packages_of(spec, place.directory)


@needs_npm
async def test_a_link_that_an_installation_leaves_is_not_written_through(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script makes its home a folder that its user cannot empty. For user 0, which can, nothing is removed here."""
    monkeypatch.setattr(installing, "_remove", len)
    (target := tmp_path / "target").write_text("of the user")
    plant = f"ln -sf {target} $HOME/.npmrc; chmod 500 $HOME; touch planted"
    made = npm_archive("of-node", "2.0.0", {"x.js": "#!/usr/bin/env node"}, scripts={"postinstall": plant})
    place.registry.npm["of-node"] = {"2.0.0": made}
    spec = place.spec("npx", "of-node", install=Install(scripts=True))
    for again in (False, True):
        record = await place.install(spec, again=again)
        folder = packages_of(spec, place.directory) / record.place / "npm" / "node_modules" / "of-node"
        assert (folder / "planted").exists()
    assert target.read_text() == "of the user"


@needs_uv
async def test_python_is_not_built_from_its_source(place: Place) -> None:
    place.registry.python["of-python"] = {"of_python-1.0.tar.gz": sdist("of_python", "1.0")}
    with pytest.raises(CannotInstall, match=r"install: \{scripts: true\}"):
        await place.install(place.spec("uvx", "of-python"))


@needs_uv
async def test_no_program_of_a_wheel_runs_while_it_is_installed(place: Place) -> None:
    """Python runs what is in files named *.pth at each start. The control is the start of the server."""
    work = "[open(f'{each}/ran', 'w') for each in (sys.prefix, os.environ['HOME']) if os.access(each, os.W_OK)]"
    made = wheel("of-python", "1.0", SERVER_OF_PYTHON, more={"a.pth": f"import os, sys; {work}\n"})
    place.registry.python["of-python"] = {"of_python-1.0-py3-none-any.whl": made}
    record = await place.install(spec := place.spec("uvx", "of-python"))
    packages = packages_of(spec, place.directory)
    environment = packages / record.place / "venv"
    assert list(environment.rglob("of_python.*.pyc")), "what it cannot compile itself is compiled"
    assert not (environment / "ran").exists()
    await place.run(spec)
    assert (packages.parent / "home" / "ran").exists()


@needs_uv
async def test_what_a_wheel_has_compiled_is_in_its_digest(place: Place) -> None:
    digests = set[str]()
    for compiled in ("1", "2"):
        made = wheel("of-python", "1.0", SERVER_OF_PYTHON, more={"__pycache__/x.pyc": compiled})
        place.registry.python["of-python"] = {"of_python-1.0-py3-none-any.whl": made}
        digests.add((await place.install(place.spec("uvx", "of-python"), again=True)).digest)
    assert len(digests) == 2


@needs_npm
@pytest.mark.parametrize(
    "work",
    [
        "for (let at = 0; at < 2500; at++) { fs.mkdirSync('d'); process.chdir('d'); }",
        "fs.mkdirSync('d'); fs.writeFileSync('d/x', ''); fs.chmodSync('d', 0); process.exit(1);",
        "require('child_process').execSync('rm package.json; mkfifo package.json');",
    ],
    ids=["too deep", "closed", "no file"],
)
async def test_nothing_is_left_of_a_failed_installation(place: Place, work: str) -> None:
    files = {"x.js": "", "try.js": f"const fs = require('fs'); {work}"}
    made = npm_archive("of-node", "2.0.0", files, scripts={"postinstall": "node try.js"})
    place.registry.npm["of-node"] = {"2.0.0": made}
    spec = place.spec("npx", "of-node", install=Install(scripts=True))
    for _ in range(2):
        with pytest.raises(CannotInstall):
            await place.install(spec)
        packages = packages_of(spec, place.directory)
        assert [each.name for each in packages.iterdir()] == []
        assert not (packages.parent / "install").exists()


@needs_npm
async def test_the_user_is_not_read_by_an_installation(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the settings of npm with their tokens nor a key: a script looks for both. What it finds is written where
    it may write."""
    home = tmp_path / "user"
    home.mkdir()
    (home / ".npmrc").write_text("//127.0.0.1/:_authToken=secret\n")
    monkeypatch.setenv("HOME", str(home))
    look = f"cat {home}/.npmrc > found; touch {home}/written; echo looked > looked"
    place.registry.npm["of-node"] = {
        "2.0.0": npm_archive("of-node", "2.0.0", {"x.js": ""}, scripts={"postinstall": look})
    }
    spec = place.spec("npx", "of-node", install=Install(scripts=True))
    record = await place.install(spec)
    folder = packages_of(spec, place.directory) / record.place / "npm" / "node_modules" / "of-node"
    assert (folder / "looked").exists()
    assert (folder / "found").read_text() == ""
    assert not (home / "written").exists()


@needs_npm
async def test_nothing_but_the_registry_is_reached(place: Place) -> None:
    """A script tries another port of the same host. The control asks the registry itself."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        script = (
            "const net = require('net'); const fs = require('fs'); const write = (name) => fs.writeFileSync(name, '');"
            f"for (const port of [{place.registry.port}, {other.getsockname()[1]}])"
            " net.connect(port, '127.0.0.1').on('connect', function() { write('in-' + port); this.destroy(); })"
            ".on('error', () => write('out-' + port));"
        )
        files = {"x.js": "#!/usr/bin/env node", "try.js": script}
        made = npm_archive("of-node", "2.0.0", files, scripts={"postinstall": "node try.js"})
        place.registry.npm["of-node"] = {"2.0.0": made}
        record = await place.install(spec := place.spec("npx", "of-node", install=Install(scripts=True)))
        folder = packages_of(spec, place.directory) / record.place / "npm" / "node_modules" / "of-node"
        found = {each.name for each in folder.iterdir()}
        assert f"in-{place.registry.port}" in found
        assert f"out-{other.getsockname()[1]}" in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("npx", "nowhere"), "correct the name of the package", marks=needs_npm),
        pytest.param(("npx", "of-node@7"), "correct the version in the command", marks=needs_npm),
        pytest.param(
            ("npx", "-p", "of-node", "other"), "write npx -p PACKAGE SCRIPT; they have of-node", marks=needs_npm
        ),
        pytest.param(("uvx", "nowhere"), "correct the name of the package", marks=needs_uv),
        pytest.param(("uvx", "of-python==7"), "correct the version in the command", marks=needs_uv),
        pytest.param(("uvx", "--from", "of-python", "other"), "write uvx --from PACKAGE SCRIPT", marks=needs_uv),
        pytest.param(("uvx", "-p", "3.99", "of-python"), "write --python in the command", marks=needs_uv),
        (("/nowhere/npx", "of-node"), "npm, which installs its packages, could not be started: not found"),
        (("npx", "./here"), "is not one of the registry"),
    ],
)
async def test_why_it_is_not_installed(place: Place, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(CannotInstall) as caught:
        await place.install(place.spec(*words))
    assert said in str(caught.value)
    assert caught.value.lasting
    assert not record_path(packages_of(place.spec(*words), place.directory)).exists()


@pytest.mark.parametrize(
    "words", [pytest.param(("npx", "of-node"), marks=needs_npm), pytest.param(("uvx", "of-python"), marks=needs_uv)]
)
async def test_a_registry_that_is_not_reached(place: Place, words: tuple[str, ...]) -> None:
    place.registry.port = 9
    with pytest.raises(CannotInstall, match="the registry is not reached"):
        await place.install(place.spec(*words))


@dataclass
class _Refusing:
    """A keeper where the system refuses this step."""

    step: str

    def open_child(self, *_: object, **__: object) -> object:
        raise NotConfined(self.step, "Operation not permitted")


@needs_npm
@pytest.mark.parametrize("step", ["user namespaces", "mounts", "a network of its own"])
async def test_without_a_network_by_name_it_says_that_nothing_is_installed(place: Place, step: str) -> None:
    said = rf"cannot be installed here \({step}: Operation not permitted\): npm is held to its registry .*yourself"
    with pytest.raises(CannotInstall, match=said):
        await install_packages(
            place.spec("npx", "-y", "of-node"), place.directory, cast(Any, _Refusing(step)), Journal(), again=False
        )
