"""The packages that a command of npx or uvx installs, and the script that it runs then. Pure.

    npx -y some-server@1.2 ARGUMENT...          npm exec --package some-server -- some-script ARGUMENT...
    uvx some-server@1.2 ARGUMENT...             uv tool run --from some-server some-script ARGUMENT...

Only packages of a registry are known: those of a folder, an archive or a repository are none that a person could
approve by name and version. An option that is not known here is refused, since a command that is understood in part
would install something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct


class Installer(StrEnum):
    """The program that installs."""

    NPM = "npm"
    UV = "uv"


class NotInstallable(Exception):
    """A command installs what is not installed here. The text is the end of a sentence that begins with `its command`,
    with the remedy; it quotes no argument but known options."""


class Wanted(Struct, frozen=True):
    """A command that installs.

    Attributes:
        program: the first word, as it is written.
        packages: what is to be installed, as the installer reads it; the first one decides the version.
        script: the script to run; empty if npx chooses it by the package.
        arguments: those of the script.
        python: the Python that uv is to use, as its `--python`; empty for any.
        registry: the URL of the registry, if an option names one.
        installs: False if an option says that nothing is to be installed.
        builds: False if nothing may run while it is installed, by an option or by the file.
    """

    installer: Installer
    program: str
    packages: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    python: str = ""
    registry: str = ""
    installs: bool = True
    builds: bool = True

    @property
    def name(self) -> str:
        """The name of the first package, without version and extras."""
        match = re.fullmatch(_NPM_PACKAGE if self.installer is Installer.NPM else _REQUIREMENT, self.packages[0])
        assert match is not None
        return match["name"]


# Texts, which are compiled when a command first installs something: that takes 1 ms.
_NPM_PACKAGE = r"(?i)(?P<name>(@[a-z0-9~_-][a-z0-9~._-]*/)?[a-z0-9~_][a-z0-9~._-]*)(@(?P<version>[^./:@\\][^/:@\\]*))?"
_ARCHIVE = r"(?i).*\.(tgz|tar\.gz|tar)"
_REQUIREMENT = (
    r"(?i)(?P<name>[a-z0-9]([a-z0-9._-]*[a-z0-9])?)(?P<extras>\[[a-z0-9,._ -]*\])?"
    r"(?P<version>\s*(===|==|~=|!=|<=|>=|<|>)[^;@/\\:]+)?"
)
_SEVERAL = r",(?![^\[]*\])\s*(?=[A-Za-z0-9])"
"""Parts the requirements behind one `--with`, but not the conditions of a version."""
_AT_VERSION = r"(?P<package>[^@]+)@(?P<version>[^@/:;\\ ]+)"

_INSTALLS_NOTHING = frozenset(("--no", "--no-install"))
_BUILDS_NOTHING = frozenset(("--ignore-scripts", "--no-build"))
_NPM_SWITCHES = _INSTALLS_NOTHING | frozenset(
    (
        *("-y", "--yes", "-q", "--quiet", "-s", "--silent", "-d", "--verbose"),
        *("--prefer-online", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"),
    )
)
_NPM_OPTIONS = {"-p": "package", "--package": "package", "--registry": "registry", "--loglevel": ""}
_UV_SWITCHES = frozenset(
    (
        *("-q", "--quiet", "-v", "--verbose", "--isolated", "-n", "--no-cache", "--refresh", "-U", "--upgrade"),
        *("--no-progress", "--no-build", "--native-tls", "--system-certs", "--no-config", "--no-python-downloads"),
    )
)
_UV_OPTIONS = {
    "--from": "from",
    "--with": "with",
    "-w": "with",
    "--python": "python",
    "-p": "python",
    "--default-index": "registry",
    "--index-url": "registry",
    "-i": "registry",
    "--color": "",
}
"""By option: what its value is; empty if it changes nothing that is installed."""
_SWITCH = "switch"
_PYTHON_ITSELF = r"(?i)(c?python|pypy|graalpy|pyodide)w?[0-9.t-]*"
"""The names that uvx takes for an interpreter, and not for the package of that name."""
_REMEDY = "install it yourself, and name its script in the command"


def wanted_by(words: Sequence[str]) -> Wanted | None:
    """The packages that a command installs, and the script that it runs; None if its program is no installer.

    Raises:
        NotInstallable: it installs something else than packages of a registry, or has an option that is not known.
    """
    program = words[0].rpartition("/")[2]
    rest = list(words[1:])
    if program == "npx":
        return _npx(words[0], rest)
    if program == "npm" and rest[:1] in (["exec"], ["x"]):
        return _npm_exec(words[0], rest[1:])
    if program == "uvx":
        return _uvx(words[0], rest)
    if program == "uv" and rest[:2] == ["tool", "run"]:
        return _uvx(words[0], rest[2:])
    return None


def _npx(program: str, words: Sequence[str]) -> Wanted:
    values, command = _options(words, _NPM_SWITCHES, _NPM_OPTIONS, "npx")
    if command[:1] == ["--"]:
        command = command[1:]
    return _of_npm(program, values, command)


def _npm_exec(program: str, words: Sequence[str]) -> Wanted:
    values, command = _options(words, _NPM_SWITCHES, _NPM_OPTIONS, "npm exec")
    if command[:1] == ["--"]:
        return _of_npm(program, values, command[1:])
    if any(word.startswith("-") for word in command):
        raise NotInstallable("leaves it to npm exec which options are its own: write -- before the package")
    return _of_npm(program, values, command)


def _of_npm(program: str, values: Sequence[tuple[str, str]], command: Sequence[str]) -> Wanted:
    packages = [text for what, text in values if what == "package"]
    if not command:
        raise NotInstallable("names no package to run")
    script = command[0] if packages else ""
    packages = packages or [command[0]]
    for package in packages:
        if not re.fullmatch(_NPM_PACKAGE, package) or re.fullmatch(_ARCHIVE, package):
            raise NotInstallable(f"names a package that is not one of the registry: {_REMEDY}")
    if "/" in script or script.startswith("."):
        raise NotInstallable(f"runs a file by its path: {_REMEDY}")
    registry = next((text for what, text in reversed(values) if what == "registry"), "")
    switches = {text for what, text in values if what == _SWITCH}
    return Wanted(
        Installer.NPM,
        program,
        tuple(packages),
        script,
        tuple(command[1:]),
        registry=registry,
        installs=switches.isdisjoint(_INSTALLS_NOTHING),
        builds=switches.isdisjoint(_BUILDS_NOTHING),
    )


def _uvx(program: str, words: Sequence[str]) -> Wanted:
    values, command = _options(words, _UV_SWITCHES, _UV_OPTIONS, "uvx")
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise NotInstallable("names no package to run")
    last: Mapping[str, str] = dict(values)
    extra = [each.strip() for what, text in values if what == "with" for each in re.split(_SEVERAL, text)]
    wanted = last.get("from", command[0])
    package = _requirement(wanted)
    if re.fullmatch(_PYTHON_ITSELF, re.split(r"[^\w.-]", package)[0]):
        raise NotInstallable(
            "runs Python itself: write uvx --from PACKAGE python, or the path of an interpreter that has the packages"
        )
    script = command[0]
    if "from" not in last:
        match = re.fullmatch(_REQUIREMENT, package)
        script = match["name"] if match else ""
    if not script or "/" in script or script.startswith("."):
        raise NotInstallable(f"runs a file by its path: {_REMEDY}")
    return Wanted(
        Installer.UV,
        program,
        (package, *map(_requirement, extra)),
        script,
        tuple(command[1:]),
        python=last.get("python", ""),
        registry=last.get("registry", ""),
        builds=_BUILDS_NOTHING.isdisjoint(text for what, text in values if what == _SWITCH),
    )


def _requirement(text: str) -> str:
    """A requirement as uv pip reads it. `NAME@VERSION` is a form of uvx alone."""
    if match := re.fullmatch(_AT_VERSION, text):
        version = match["version"]
        text = match["package"] if version == "latest" else f"{match['package']}=={version}"
    if not re.fullmatch(_REQUIREMENT, text):
        raise NotInstallable(f"names a package that is not one of the registry: {_REMEDY}")
    return text


def _options(
    words: Sequence[str], switches: frozenset[str], options: Mapping[str, str], program: str
) -> tuple[list[tuple[str, str]], list[str]]:
    """The values of the options of an installer, each with what it is, and its switches; and the words from the first
    one on that is no option of it."""
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, is_joined, value = words[at].partition("=")
        if name in options:
            if not is_joined:
                at += 1
                if at == len(words):
                    raise NotInstallable(f"has no value for {name}")
                value = words[at]
            found.append((options[name], value))
        elif is_joined or name not in switches:
            shown = name if re.fullmatch(r"--?[a-z-]{1,30}", name) else "an option"
            raise NotInstallable(f"has {shown}, which is not known here as one of {program}: {_REMEDY}")
        else:
            found.append((_SWITCH, name))
        at += 1
    return found, list(words[at:])
