"""The packages of a confined server: where they are, which version, and whether they are still what was recorded.

    packages/installed.json     the record
    packages/NAME/npm           what npm installed, or
    packages/NAME/venv          an environment of Python that uv made

The program may read the folder of its packages, and never write it. Others of the user could write there: so the digest
of all files is compared with the record before each start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from config import StdioServer
from config.read import read_text
from host.relay_start import resolve_program
from host.sandbox.packages import Installer, NotInstallable, Wanted, wanted_by
from host.sandbox.registry import Registry, registry_of

_RECORD = "installed.json"
NPM_FOLDER, UV_FOLDER = "npm", "venv"
_FINDS_PYTHON = b"#!/bin/sh\n'''exec' "
"""How a script of uv begins that finds the Python beside it by `realpath` and `dirname` of PATH (0.13)."""
_SEPARATORS = re.compile(r"[-_.]+")


class Installed(Struct, frozen=True):
    """The record of what was installed.

    Attributes:
        wanted: what was to be installed, as `wanted_text` writes it.
        place: the name of the folder in that of the packages.
        name, version: those of the first package.
        interpreter: the path of the Python of an environment, as it stood before packages were in it; empty for npm.
        digest: of what the registry gave, the same wherever and whenever it is installed.
        seal: of all files.
    """

    wanted: str
    place: str
    name: str
    version: str
    interpreter: str
    digest: str
    seal: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.digest})"


def wanted_text(wanted: Wanted) -> str:
    """All that decides about an installation; the script that is run does not."""
    return json.dumps([wanted.installer, wanted.packages, wanted.python, wanted.builds])


def read_record(packages: Path, wanted: Wanted) -> Installed | None:
    """The record of what this command installs; None if that is not installed."""
    try:
        record = Installed(**json.loads(read_text(packages / _RECORD)))
    except (OSError, ValueError, TypeError):
        return None
    is_wanted = record.wanted == wanted_text(wanted) and os.path.basename(record.place) == record.place
    return record if is_wanted and (packages / record.place).is_dir() else None


def record_bytes(record: Installed) -> bytes:
    return json.dumps(asdict(record), indent=1).encode()


def record_path(packages: Path) -> Path:
    return packages / _RECORD


def old_places(packages: Path) -> list[Path]:
    """The folders beside the one of the record: of former packages, and of installations that were not finished."""
    try:
        place = json.loads(read_text(packages / _RECORD))["place"]
    except (OSError, ValueError, TypeError, KeyError):
        place = ""
    return [each for each in packages.iterdir() if each.is_dir() and each.name != place] if packages.is_dir() else []


# The start


class Missing(Struct, frozen=True):
    """Packages that are to be installed before a program can be started."""

    wanted: Wanted
    registry: Registry

    def __str__(self) -> str:
        """The end of a sentence that begins with `it installs`."""
        runs = ", and runs what they install with" if self.wanted.builds else ""
        return f"{', '.join(self.wanted.packages)} from {self.registry} by {self.wanted.installer}{runs}"


class ProgramStart(Struct, frozen=True):
    """The start of a confined program.

    Attributes:
        words: its command, in which the script stands in the place of the installer.
        record: what was installed for it; None if nothing is to be.
        place: the folder of that; empty if nothing is to be installed.
        interpreter: the program that runs the script, by name or path; empty if its first line says that.
        missing: what is to be installed before.
        python: the Python that the script is started with; empty if it is started by itself.
    """

    words: tuple[str, ...]
    record: Installed | None = None
    place: str = ""
    interpreter: str = ""
    missing: Missing | None = None
    python: str = ""

    @property
    def argv(self) -> tuple[str, ...]:
        return (self.python, *self.words) if self.python else self.words


def wanted_of(spec: StdioServer) -> Wanted | None:
    """The packages that the command of a confined server installs, with its `sandbox.install`; None if there are none.

    Raises:
        NotInstallable: as of `wanted_by`.
    """
    assert spec.sandbox is not None
    wanted = wanted_by([word.reveal() for word in spec.command])
    return None if wanted is None else replace(wanted, builds=wanted.builds and spec.sandbox.install.scripts)


def missing_for(spec: StdioServer, wanted: Wanted, host: Mapping[str, str]) -> Missing:
    """These packages, with the registry for them. `host`: the variables of the host.

    Raises:
        NotInstallable: as of `registry_of`.
    """
    own = {name: value.reveal() for name, value in spec.env.items()}
    return Missing(wanted, registry_of(wanted, own, host))


def start_of(
    spec: StdioServer, packages: Path, environment: Mapping[str, str], host: Mapping[str, str]
) -> ProgramStart:
    """The start of a program whose `sandbox` is set.

    Args:
        packages: the folder of its packages.
        environment: its variables; host: those of the host, for the registry.

    Raises:
        NotInstallable: its command installs what is not installed here.
    """
    words, wanted = tuple(word.reveal() for word in spec.command), wanted_of(spec)
    if wanted is None:
        return ProgramStart(words)
    if script := script_there(wanted, str(spec.cwd), environment):
        return ProgramStart((script, *wanted.arguments))
    record = read_record(packages, wanted)
    if record is None:
        if not wanted.installs:
            raise NotInstallable(
                "says that nothing is to be installed, and its script is not there: remove --no-install"
            )
        return ProgramStart(words, missing=missing_for(spec, wanted, host))
    place = packages / record.place
    command = command_of(wanted, place)
    python = _python_of(command[0]) if wanted.installer is Installer.UV else ""
    return ProgramStart(command, record, str(place), record.interpreter or "node", python=python)


def _python_of(script: str) -> str:
    """The Python beside a script that would find it by programs of PATH, which a server may have another one of; empty
    if it is no such script."""
    with open(script, "rb") as file:
        begins = file.read(len(_FINDS_PYTHON))
    return os.path.join(os.path.dirname(script), "python") if begins == _FINDS_PYTHON else ""


def command_of(wanted: Wanted, place: Path) -> tuple[str, ...]:
    """The words that start what was installed in this folder.

    Raises:
        NotInstallable: it has no such script.
    """
    if wanted.installer is Installer.NPM:
        folder = place / NPM_FOLDER / "node_modules"
        script = folder / ".bin" / (wanted.script or _script_of_npx(folder / wanted.name))
    else:
        script = place / UV_FOLDER / "bin" / wanted.script
    if not os.access(script, os.X_OK):
        remedy = (
            "write uvx --from PACKAGE SCRIPT" if wanted.installer is Installer.UV else "write npx -p PACKAGE SCRIPT"
        )
        there = ", ".join(_scripts(script.parent)) or "none"
        raise NotInstallable(f"runs a script that its packages do not have: {remedy}; they have {there}")
    return (str(script), *wanted.arguments)


def _script_of_npx(package: Path) -> str:
    """The script that npx chooses: the only one, or that with the name of the package."""
    try:
        manifest = json.loads(read_text(package / "package.json"))
    except (OSError, ValueError):
        manifest = {}
    scripts = manifest.get("bin") if isinstance(manifest, dict) else None
    name = package.name
    if isinstance(scripts, str):
        return name
    if isinstance(scripts, dict) and scripts:
        paths = {os.path.normpath(str(path)) for path in scripts.values()}
        if len(paths) == 1:
            return os.path.basename(str(next(iter(scripts))))
        if name in scripts:
            return name
    raise NotInstallable("names a package without a script that npx would run: write npx -p PACKAGE SCRIPT")


def _scripts(folder: Path) -> list[str]:
    try:
        found = sorted(each.name for each in folder.iterdir() if os.access(each, os.X_OK))
    except OSError:
        return []
    return [each for each in found if re.fullmatch(r"[\w.-]{1,60}", each)][:10]


def script_there(wanted: Wanted, cwd: str, environment: Mapping[str, str]) -> str | None:
    """The script that npx runs without installing anything, since it is there already: one of a package above the
    folder that it starts in, or beside node. None if there is none, or it would install."""
    if wanted.installer is not Installer.NPM or wanted.script or not re.fullmatch(r"[\w.-]+", wanted.packages[0]):
        return None
    name, folder = wanted.packages[0], Path(cwd)
    for each in (folder, *folder.parents):
        if (script := each / "node_modules" / ".bin" / name).is_file():
            return str(script)
    node = resolve_program("node", environment, cwd)
    if node is None:
        return None
    script = Path(node).parent / name
    return str(script) if script.is_file() else None


def version_of(wanted: Wanted, place: Path) -> str:
    """The version of the first package that was installed in this folder; empty if it cannot be found."""
    if wanted.installer is Installer.NPM:
        try:
            manifest = json.loads(read_text(place / NPM_FOLDER / "node_modules" / wanted.name / "package.json"))
        except (OSError, ValueError):
            return ""
        return _version(manifest.get("version")) if isinstance(manifest, dict) else ""
    name = _SEPARATORS.sub("-", wanted.name).lower()
    for each in place.glob(f"{UV_FOLDER}/lib/python*/site-packages/*.dist-info"):
        found, _, version = each.name.removesuffix(".dist-info").rpartition("-")
        if _SEPARATORS.sub("-", found).lower() == name:
            return _version(version)
    return ""


def _version(found: Any) -> str:
    """A version as a text for people: it comes from the package."""
    return found if isinstance(found, str) and re.fullmatch(r"[\w.+!~-]{1,64}", found) else ""


# Digests


def digest_of(place: Path, without: Collection[str] = ()) -> str:
    """The digest of all files in a folder, as `sha256:` and hexadecimal digits. May take seconds.

    Args:
        without: paths in the folder that are left out.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    for path, line in _lines(place):
        if path not in without:
            digest.update(line)
    return f"sha256:{digest.hexdigest()}"


def paths_in(place: Path) -> list[str]:
    """The paths of all files in a folder, from there."""
    return [path for path, _, _ in _files(place)]


def _lines(place: Path) -> Iterator[tuple[str, bytes]]:
    """Each file with a line that says all about it."""
    for path, full, mode in _files(place):
        if stat.S_ISLNK(mode):
            kind, what = b"link", os.fsencode(os.readlink(full))
        elif stat.S_ISREG(mode):
            kind = b"program" if mode & 0o111 else b"file"
            with open(full, "rb") as file:
                what = hashlib.file_digest(file, "sha256").digest()
        else:
            kind, what = b"other", b""
        name = os.fsencode(path)
        yield path, b"%b %d %b %d %b\n" % (kind, len(name), name, len(what), what)


def _files(place: Path) -> Iterator[tuple[str, str, int]]:
    """The path from the folder on, the whole path and the mode of each file, in the order of their names."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        inner: list[str] = []
        for entry in sorted(os.scandir(place / folder), key=lambda each: each.name):
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                inner.append(f"{path}/")
            else:
                yield path, entry.path, entry.stat(follow_symlinks=False).st_mode
        waiting += reversed(inner)
