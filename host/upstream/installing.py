"""The installation of the packages that a confined server's command of npx or uvx names. It is a launch of its own:
confined too, with the registry as its network and a folder of the server's packages to write, and started only when a
person has approved it. The program that it is for runs afterwards, from that folder, which it may only read.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import trio

from config import StdioServer
from config.address_zones import Zone, zone_of
from config.references import Secret
from config.sandbox import LOCALHOST, Destination, Network, Sandbox, SandboxFiles
from host.journal import Journal, PackagesInstalled
from host.sandbox.installed import (
    NPM_FOLDER,
    UV_FOLDER,
    Installed,
    Missing,
    ProgramStart,
    command_of,
    digest_of,
    missing_for,
    old_places,
    paths_in,
    read_record,
    record_bytes,
    record_path,
    version_of,
    wanted_of,
    wanted_text,
)
from host.sandbox.packages import Installer, NotInstallable
from host.sandbox.plan import confined_environment, needed
from host.sandbox.registry import Registry
from host.sanitize import visible
from host.storage.directory import ConfigDirectory, replace_file
from host.upstream.confinement import CannotConfine, NotInstalled, check_listeners, packages_of, plan_of
from host.upstream.forwarder import FAILED, Forwarder, addresses_of
from host.upstream.output import ProgramOutput
from host.upstream.refusals import Refusals
from host.wire.process import Keeper, NotConfined, SpawnError, child_environment
from host.wire.stdio import CHUNK
from host.wire.turns import Turns
from host.worker import WorkerTimeout, run_in_worker

LOCK_INTERVAL = 0.2
"""Seconds between two looks whether another installation for the same server has ended."""
LOOK_UP_TIMEOUT = 10.0
"""Seconds for looking up the name of a registry."""
INSTALL_TIMEOUT = 600.0
"""Seconds that one program of an installation may take."""
_GRACE = 1.0
_LIMITS = Sandbox(memory=4 * 1024**3, processes=512, open_files=4096)
"""Those of the programs that install: they unpack many files at once."""
_TRUST_SETTINGS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")
_NPM_FLAGS = ("--no-audit", "--no-fund", "--no-update-notifier", "--no-package-lock", "--omit=dev", "--loglevel=error")
_FEW_TRIES = {"npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}
"""Without it, npm tries to reach the registry for a minute. The host tries again by itself."""
_COMPILE = (
    *("-I", "-S", "-c"),
    "import compileall, sys; compileall.compile_dir(sys.argv[1], maxlevels=100, quiet=2, workers=0)",
)
"""Options of a Python that compiles what was installed, since the program cannot. uv would do it by the Python of the
environment, which runs what packages put into files named *.pth."""
_PYTHONS = ("python3", "python")
_NOT_REACHED = "the registry is not reached; it is tried again"
_YOURSELF = "install it yourself, and name its script"
_REMEDIES = (
    (r"\bE404\b|not found in the package registry|HTTP status client error \(404", "correct the name of the package"),
    (r"\bETARGET\b|\bno versions? of\b|no matching version", "correct the version in the command"),
    (
        r"\bE40[13]\b|\(40[13] |authentication",
        f"the registry wants a login, and an installation has none: {_YOURSELF}",
    ),
    (
        r"\bENOTFOUND\b|\bEAI_AGAIN\b|\bECONN\w+|\bETIMEDOUT\b|\bENETUNREACH\b|error sending request|dns error|"
        r"client error \(connect\)|failed to fetch",
        _NOT_REACHED,
    ),
    (
        r"no usable wheels|building source distributions is disabled|no wheels",
        "write sandbox: {install: {scripts: true}} to let it be built",
    ),
    (
        r"no interpreter found|inspect python|requires-python|current python version",
        "write --python in the command, with another one",
    ),
)
"""By a pattern of what the program that installs wrote: what a person can do."""
_OF_NAMES = ("user namespaces", "mounts", "a network of its own")
"""Steps without which there is no network by name."""


class CannotInstall(NotInstalled):
    """Packages were not installed. The text says which, why, and what to do."""


async def install_packages(
    spec: StdioServer, directory: ConfigDirectory, keeper: Keeper, journal: Journal, *, again: bool
) -> Installed:
    """Install the packages of a server, and `again` if they are installed already: those are replaced once the new ones
    are there. The folder that a running program uses stays until the next installation.

    Raises:
        NotInstalled: they could not be installed.
    """
    packages = packages_of(spec, directory)
    # The home of a former installation is never used: a link in it could lead anywhere.
    work, place = (packages / secrets.token_hex(8) for _ in range(2))
    missing = _missing(spec)
    try:
        async with _alone(packages):
            began = trio.current_time()
            if not again and (record := read_record(packages, missing.wanted)) is not None:
                return record  # another host of this configuration was faster
            await run_in_worker(_remove, old_places(packages))
            place.mkdir(mode=0o700)
            leftover = [work, place]
            try:
                record = await _Installation(spec, directory, keeper, journal, place, work, missing).run()
                replace_file(record_path(packages), record_bytes(record))
                leftover = [work]
            finally:
                with trio.CancelScope(shield=True):
                    await run_in_worker(_remove, leftover)
    except OSError as problem:
        raise CannotInstall(f"its packages cannot be stored: {problem.strerror}") from problem
    except WorkerTimeout as problem:
        raise CannotInstall("its packages could not be looked through in time") from problem
    journal.note(PackagesInstalled(spec.id, str(record), trio.current_time() - began))
    return record


def _open_lock(packages: Path) -> BinaryIO:
    packages.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(packages.parent / "install.lock", "wb")


@asynccontextmanager
async def _alone(packages: Path) -> AsyncIterator[None]:
    """Wait until no other host, and nobody else in this one, installs packages of this server; for the block."""
    with _open_lock(packages) as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await trio.sleep(LOCK_INTERVAL)
        yield


@dataclass(frozen=True)
class _Installation:
    _spec: StdioServer
    _directory: ConfigDirectory
    _keeper: Keeper
    _journal: Journal
    _place: Path
    _work: Path
    _missing: Missing

    async def run(self) -> Installed:
        """Install; the record of it."""
        place, missing = self._place, self._missing
        interpreter = ""
        if missing.wanted.installer is Installer.NPM:
            home = self._work / "home"
            home.mkdir(mode=0o700, parents=True)
            (home / ".npmrc").write_text(_npm_settings(missing))
            await self._run(_npm_words(missing, place))
            digest = seal = await self._digest()
        else:
            python = place / UV_FOLDER / "bin" / "python"
            await self._run(_venv_words(missing, place))
            interpreter, without = os.readlink(python), paths_in(place)
            await self._run(_uv_words(missing, python))
            digest = await self._digest(without)
            await self._run([interpreter, *_COMPILE, str(place / UV_FOLDER / "lib")])
            seal = await self._digest()
        try:
            command_of(missing.wanted, place)
        except NotInstallable as problem:
            raise CannotInstall(f"its command {problem}") from problem
        return Installed(
            wanted_text(missing.wanted),
            place.name,
            missing.wanted.name,
            version_of(missing.wanted, place) or "of no version",
            interpreter,
            digest,
            seal,
        )

    async def _digest(self, without: Sequence[str] = ()) -> str:
        return await run_in_worker(digest_of, self._place, frozenset(without), fall_back_to_thread=False)

    async def _run(self, words: Sequence[str]) -> None:
        """Run one program of an installation to its end, confined."""
        spec, missing, work = self._spec, self._missing, self._work
        program = words[0] if "/" in words[0] else _installer(missing.wanted.program, words[0])
        start = ProgramStart((program, *words[1:]))
        confined = _confined_spec(spec, missing, start.words, self._place, await _network(missing.registry))
        assert confined.sandbox is not None
        env = confined_environment(confined.sandbox, child_environment({}), _variables(missing), work)
        try:
            plan = plan_of(confined, env, work, self._directory, start, [str(self._place)])
            async with self._keeper.open_child(start.words, env=env, cwd="/", grace=_GRACE, sandbox=plan) as child:
                child.close_stdin()
                turns, refusals = Turns(), _Told(spec.id, self._journal)
                output = ProgramOutput(confined, self._journal, turns.turn())
                check_listeners(child.listeners, plan)
                how = f"which was not finished within {INSTALL_TIMEOUT:g} s"
                async with trio.open_nursery() as nursery:
                    if child.listeners:
                        nursery.start_soon(Forwarder(child.listeners, confined.sandbox, refusals, turns).run)
                    nursery.start_soon(output.read_stderr, child.stderr)
                    nursery.start_soon(_read_lines, child.stdout, output)
                    with trio.move_on_after(INSTALL_TIMEOUT):
                        how = await output.describe_end(child) if await child.wait() else ""
                    nursery.cancel_scope.cancel()
        except NotConfined as problem:
            if problem.step in _OF_NAMES:
                raise CannotInstall(
                    f"its packages cannot be installed here ({problem.reason}): {missing.wanted.installer} is held to "
                    "its registry by namespaces that Colonnade makes itself, not by bubblewrap or Landlock; have an "
                    "administrator permit them to all programs, or install the packages yourself and name their script "
                    "in the command"
                ) from problem
            raise CannotConfine(spec, problem) from problem
        except SpawnError as problem:
            raise CannotInstall(
                f"{missing.wanted.installer}, which installs its packages, could not be started: {problem.reason}"
            ) from problem
        if how:
            raise CannotInstall(_failure(spec, missing, how, output.lines, refusals.last))


def _missing(spec: StdioServer) -> Missing:
    """The packages of a server, whether they are installed already or not."""
    try:
        wanted = wanted_of(spec)
        if wanted is None:
            raise NotInstallable("installs nothing: only npx, npm exec, uvx and uv tool run do")
        return missing_for(spec, wanted, os.environ)
    except NotInstallable as problem:
        raise CannotInstall(f"its command {problem}") from problem


def _failure(spec: StdioServer, missing: Missing, how: str, lines: Sequence[str], refused: str) -> str:
    """Why packages were not installed, and what to do. `refused`: what the forwarder refused last."""
    text = "\n".join(lines)
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text, re.IGNORECASE)), "")
    if FAILED in refused:
        remedy = _NOT_REACHED
    elif refused:
        remedy = f"it was refused {refused}, since only the registry is reached: {_YOURSELF}"
    return (
        f"{missing.wanted.installer} could not install {', '.join(missing.wanted.packages)} from {missing.registry}; "
        f"{how}: {remedy or f'colonnade logs {spec.id} has all that it wrote'}"
    )


def _remove(folders: Sequence[Path]) -> None:
    """Remove folders in which packages may have written: also what is too deep for shutil, or closed to its owner."""
    for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
        subprocess.run([*command, "--", *folders], capture_output=True, check=False)


def _installer(program: str, name: str) -> str:
    """The installer that belongs to the program of a command, which may be written as a path."""
    return str(Path(program).parent / name) if "/" in program else shutil.which(name) or name


def _search_path() -> str:
    """PATH without folders whose Python is a script, as those of pyenv are: it starts another one that is found by
    settings of the user."""
    folders = child_environment({}).get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(each for each in folders if not any(_is_script(f"{each}/{name}") for name in _PYTHONS))


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _confined_spec(
    spec: StdioServer,
    missing: Missing,
    words: Sequence[str],
    place: Path,
    network: Network | tuple[Destination, ...],
) -> StdioServer:
    """The program that installs as a server of its own: with another sandbox, and without what the file gives to the
    server itself."""
    assert spec.sandbox is not None
    registry = missing.registry
    read = [*_certificates().values(), *_pythons(missing), registry.folder]
    there = tuple(dict.fromkeys(path for path in read if os.path.isabs(path) and os.path.exists(path)))
    sandbox = replace(
        _LIMITS,
        files=SandboxFiles(read=there),
        network=network,
        accept=spec.sandbox.accept,
    )
    return replace(
        spec,
        command=tuple(map(Secret, words)),
        env={"URL": Secret(registry.url)} if "@" in registry.url else {},  # kept out of the log
        cwd=place,
        sandbox=sandbox,
    )


async def _network(registry: Registry) -> Network | tuple[Destination, ...]:
    """The registry alone, wherever it is: the user has chosen it, and no package has. So addresses that are not public
    are named."""
    found: dict[Destination, None] = {}
    for host, port in registry.hosts:
        found[Destination.at(host, port)] = None
        addresses: list[str] = []
        with trio.move_on_after(LOOK_UP_TIMEOUT), suppress(OSError, UnicodeError):  # which the installer says
            addresses = await trio.to_thread.run_sync(addresses_of, host, abandon_on_cancel=True)
        special = [each for each in addresses if host != LOCALHOST and zone_of(each) is not Zone.PUBLIC]
        found |= dict.fromkeys(Destination.at(each, port) for each in special)
    return tuple(found) or Network.NONE


class _Told(Refusals):
    """Refusals of an installation. No line of the file would permit more."""

    def tell(self, what: str, allow: Sandbox | None = None, *, certain: bool = True) -> None:
        self.last = visible(what)
        super().tell(what, certain=certain)


def _certificates() -> dict[str, str]:
    return {name: os.environ[name] for name in _TRUST_SETTINGS if os.environ.get(name)}


def _variables(missing: Missing) -> dict[str, str]:
    if missing.wanted.installer is Installer.NPM:
        return {**_certificates(), "npm_config_offline": "false", **_FEW_TRIES}
    return {
        **_certificates(),
        "PATH": _search_path(),
        "UV_OFFLINE": "0",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_PYTHON_INSTALL_DIR": _uv_pythons(),
        "UV_DEFAULT_INDEX": missing.registry.url,
    }


def _npm_settings(missing: Missing) -> str:
    """The settings of npm in the place of the user's: the addresses alone."""
    registry = missing.registry
    return "".join([f"registry={registry.url}\n", *(f"{scope}:registry={url}\n" for scope, url in registry.scopes)])


def _uv_pythons() -> str:
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.environ.get("UV_PYTHON_INSTALL_DIR") or f"{data}/uv/python"


def _pythons(missing: Missing) -> Iterator[str]:
    """Paths of the Pythons that uv may choose from."""
    if missing.wanted.installer is Installer.UV:
        path = _search_path()
        yield _uv_pythons()
        for each in (*_PYTHONS, *([missing.wanted.python] if missing.wanted.python else [])):
            yield from needed(ProgramStart((each,)), {"PATH": path}, "/")


def _npm_words(missing: Missing, place: Path) -> list[str]:
    folder = place / NPM_FOLDER
    folder.mkdir()
    scripts = [] if missing.wanted.builds else ["--ignore-scripts"]
    return ["npm", "install", "--prefix", str(folder), *_NPM_FLAGS, *scripts, "--", *missing.wanted.packages]


def _venv_words(missing: Missing, place: Path) -> list[str]:
    python = ["--python", missing.wanted.python] if missing.wanted.python else []
    return ["uv", "venv", "--quiet", "--relocatable", "--no-project", *python, str(place / UV_FOLDER)]


def _uv_words(missing: Missing, python: Path) -> list[str]:
    build = [] if missing.wanted.builds else ["--no-build"]
    words = ["uv", "pip", "install", "--quiet", "--python", str(python), *build]
    return [*words, "--", *missing.wanted.packages]


async def _read_lines(stdout: trio.abc.ReceiveStream, output: ProgramOutput) -> None:
    """Have what it writes to its standard output among its lines, too."""
    rest = b""
    while data := await stdout.receive_some(CHUNK):
        *lines, rest = (rest + data)[-4 * CHUNK :].split(b"\n")
        for line in lines:
            output.take_stdout(line)
