"""The registry from which a confined server's packages are installed: the one that npx or uvx would use here.

Reads the settings of the user and of this machine, for the address alone: no credentials beside it are taken, and the
program that installs reads none of these files.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from config.read import read_text
from host.relay_start import resolve_program
from host.sandbox.packages import Installer, NotInstallable, Wanted

NPM_REGISTRY = "https://registry.npmjs.org/"
PYPI = "https://pypi.org/simple"
_FILES_OF_PYPI = "files.pythonhosted.org"
"""The host of the files that pypi.org lists; a mirror is expected to have the files itself."""
_PORTS = {"https": 443, "http": 80}
_LINE = re.compile(r"\s*(?P<key>(@[^\s:=]+:)?registry)\s*=\s*[\"']?(?P<url>[^\"']*?)[\"']?\s*")
_VARIABLE = re.compile(r"\$\{([^}]+)\}")
_MORE_INDEXES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")


class Registry(Struct, frozen=True):
    """Where packages are installed from.

    Attributes:
        url: the address, which may have credentials in it.
        scopes: by scope of npm (`@name`), another address.
        hosts: those that must be reached, with their ports.
        folder: the folder that it is, behind `file:`; empty for one in a network.
    """

    url: str
    scopes: tuple[tuple[str, str], ...]
    hosts: tuple[tuple[str, int], ...]
    folder: str = ""

    def __str__(self) -> str:
        """The address for people."""
        return self.folder or ", ".join(
            host if port in _PORTS.values() else f"{host}:{port}" for host, port in self.hosts
        )


def registry_of(wanted: Wanted, own: Mapping[str, str], environment: Mapping[str, str]) -> Registry:
    """The registry for a command.

    Args:
        own: the variables that the file sets for the server, which replace others.

    Raises:
        NotInstallable: it is none that packages could be installed from by name alone.
    """
    variables = {**environment, **own}
    if wanted.installer is Installer.NPM:
        return _npm(wanted, variables)
    return _python(wanted, variables)


def _npm(wanted: Wanted, variables: Mapping[str, str]) -> Registry:
    named: dict[str, str] = {}
    for path in _npm_files(variables):
        for key, url in _npm_lines(path, variables):
            named.setdefault(key, url)
    given = {name.lower(): text for name, text in variables.items()}
    url = wanted.registry or given.get("npm_config_registry") or named.pop("registry", NPM_REGISTRY)
    scopes = tuple((key.removesuffix(":registry"), text) for key, text in named.items() if key != "registry")
    of_scope = dict(scopes)
    used = [of_scope.get(package.partition("/")[0], url) for package in wanted.packages]
    hosts = dict.fromkeys(map(_host, [*used, url]))
    return Registry(url, scopes, tuple(hosts))


def _npm_files(variables: Mapping[str, str]) -> Iterator[Path]:
    """The settings of npm that name a registry: those of the user before those of the machine."""
    given = {name.lower(): text for name, text in variables.items()}
    home = variables.get("HOME", "")
    yield Path(given.get("npm_config_userconfig") or f"{home}/.npmrc")
    if machine := given.get("npm_config_globalconfig"):
        yield Path(machine)
        return
    if node := resolve_program("node", variables, "/"):
        yield Path(node).parent.parent / "etc" / "npmrc"


def _npm_lines(path: Path, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    try:
        text = read_text(path)
    except (OSError, ValueError):
        return
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            yield match["key"], _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), match["url"])


def _python(wanted: Wanted, variables: Mapping[str, str]) -> Registry:
    for name in _MORE_INDEXES:
        if variables.get(name):
            raise NotInstallable(
                f"would be installed from several places ({name}), and here it is from one: set UV_DEFAULT_INDEX alone "
                "in its env, or install it yourself and name its script"
            )
    given = wanted.registry or variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL")
    url = given or _uv_setting(variables) or PYPI
    if url.startswith(("file:", "/")):
        folder = url.removeprefix("file://")
        return Registry(url, (), (), os.path.abspath(folder))
    host = _host(url)
    files = [(_FILES_OF_PYPI, 443)] if host[0] == "pypi.org" else []
    return Registry(url, (), (host, *files))


def _uv_setting(variables: Mapping[str, str]) -> str:
    """The index in the settings of the user or of the machine; empty if there is none."""
    home = variables.get("XDG_CONFIG_HOME") or f"{variables.get('HOME', '')}/.config"
    given = variables.get("UV_CONFIG_FILE")
    for path in [given] if given else [f"{home}/uv/uv.toml", "/etc/uv/uv.toml"]:
        try:
            settings = tomllib.loads(read_text(Path(path)))
        except (OSError, ValueError):
            continue
        if url := _default_index(settings):
            return url
    return ""


def _default_index(settings: Mapping[str, Any]) -> str:
    indexes = settings.get("index")
    tables: Sequence[object] = indexes if isinstance(indexes, list) else []
    named = [each for each in tables if isinstance(each, dict)]
    if any(not each.get("default") for each in named) or settings.get("extra-index-url"):
        raise NotInstallable(
            "would be installed from several places (uv.toml), and here it is from one: set UV_DEFAULT_INDEX in its "
            "env, or install it yourself and name its script"
        )
    urls = [*(each.get("url") for each in named), settings.get("index-url")]
    return next((url for url in urls if isinstance(url, str)), "")


def _host(url: str) -> tuple[str, int]:
    """The host and port of an address.

    Raises:
        NotInstallable: it has none.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        host, port = "", 0
    if not host:
        raise NotInstallable(
            "would be installed from a registry that has no address with http or https: install it yourself, and name "
            "its script"
        )
    return host, port
