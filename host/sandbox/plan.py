"""The plan of a confined program: the files that it may read and write, its environment, and its limits.

A plan is a dictionary of plain values, since it goes to the subreaper as JSON:

    base, hidden, own   folders: one that is empty, the state directory, and those of the server in it
    packages            the folder in the state directory with what was installed for it, to read, if anything was
    read, write         real paths, which keep their places; what is below a folder is meant too
    links               symbolic links on the way to them, with their targets
    files               texts of files that the program gets in the place of the system's
    cwd                 where it starts; it may be a folder of which it sees nothing else
    network             none, loopback, named or all
    listeners           addresses and ports at which sockets of the host listen inside, if it is named
    memory, temporary, cpu, processes, open_files
    accept              namespaces or landlock

Reads the file system; waits for nothing else.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from config import StdioServer
from config.read import open_regular, read_text
from config.sandbox import GIVEN, LOCALHOST, Destination, Means, Network, Sandbox
from config.types import with_one_slash
from host.sandbox.destinations import Inside, place
from host.sandbox.installed import ProgramStart
from host.sandbox.paths import is_below_any, steps

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_SETTINGS = tuple(
    f"/etc/{name}"
    for name in (
        *("alternatives", "ca-certificates", "chromium.d", "fonts", "gai.conf", "gitconfig", "host.conf"),
        *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf"),
        *("os-release", "pki/ca-trust", "pki/tls/certs", "protocols", "services", "ssl/certs", "ssl/openssl.cnf"),
        "timezone",
    )
)
_NETWORK_SETTINGS = ("/etc/hosts", "/etc/resolv.conf")
_MADE = ("/etc/passwd", "/etc/group", "/etc/hosts")
"""Files of which a program has its own; it reads those of the machine if `files` names them."""
_OF_A_PREFIX = ("bin", "lib", "lib64", "libexec", "pyvenv.cfg")
"""The parts that an interpreter or program needs of the folder that it is installed in."""
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")
_MARKS = ("package.json", "pyproject.toml", "node_modules", "pyvenv.cfg")
"""Names by which the folder of a package is known."""
_OFFLINE = {
    "registry.npmjs.org": {"npm_config_offline": "true", "npm_config_update_notifier": "false"},
    "pypi.org": {"UV_OFFLINE": "1"},
}
"""Variables for package runners that do not reach their registry. Without them, npx and uvx try for up to a minute
before they use what they have."""
SHORT_TEMPORARY = "/own-tmp"
"""A link to the temporary folder of a server, and its place in a container. Its own path would be too long for sockets
in it, which end at 108 bytes."""
_PYTHON = re.compile(r"python[0-9.]*")
_MOST_LINKS = 40
_MOST_INTERPRETERS = 5
"""Scripts that are interpreted by scripts, at most, as in Linux."""


class MissingFile(Exception):
    """A path that `files` names is not there, or leads to what no program is given."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class CannotHide(Exception):
    """The state directory cannot be hidden in a container that may write, and so rename, what is above it."""


class _Paths(Struct):
    """Paths on their way into a plan: real ones, and the links on the way to them."""

    own: Sequence[str]
    """Real folders that the program may write. It may have put a link there, so none in them is followed."""
    read: dict[str, None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def add(self, path: str) -> None:
        """Let a path be read, if it is there."""
        if (real := self.resolve(path)) is not None:
            self.read[real] = None

    def resolve(self, path: str) -> str | None:
        """The real path; None if nothing is there. The links on the way are kept. A link in a folder that the program
        may write is not followed: it is there with that folder."""
        for _ in range(_MOST_LINKS):
            path = with_one_slash(path)
            link = next((each for each in steps(path) if os.path.islink(each)), None)
            if link is None:
                return path if os.path.exists(path) and not _is_made_up(path) else None
            if is_below_any(os.path.dirname(link), self.own):
                return link
            target = os.readlink(link)
            self.links[link] = target
            path = os.path.normpath(os.path.join(os.path.dirname(link), target) + path[len(link) :])
        return None


def _is_made_up(path: str) -> bool:
    """Whether it is all of the machine, or the kernel makes its files up. Only links lead there, or arguments."""
    return path == "/" or is_below_any(path, ("/proc", "/sys", "/dev"))


def make_plan(
    spec: StdioServer,
    env: Mapping[str, str],
    folder: Path,
    state: Path,
    start: ProgramStart | None = None,
    own_folders: Sequence[str] = (),
) -> dict[str, Any]:
    """The plan for the program of a server, whose `sandbox` is set; makes the folders of the server.

    Args:
        folder: that of the server in `state`, the state directory.
        start: what it is started from; None: its command.
        own_folders: folders in the state directory that it may write, beside its home and its temporary folder.

    Raises:
        MissingFile: a path of `files` is not there.
        OSError: the folders of the server cannot be made.
    """
    sandbox = spec.sandbox
    assert sandbox is not None
    base = str(folder / "root")
    os.makedirs(base, mode=0o700, exist_ok=True)
    home, temporary = _make_own_folders(folder)
    start = start or ProgramStart(tuple(word.reveal() for word in spec.command))
    own = [os.path.realpath(each) for each in (home, temporary, *own_folders, *sandbox.files.write)]
    paths = _Paths(own)
    for path in (*_SYSTEM, *_SETTINGS, *(_NETWORK_SETTINGS if sandbox.network is Network.ALL else ())):
        paths.add(path)
    for path in needed(start, env, str(spec.cwd)):
        paths.add(path)
    for path in sandbox.files.read:
        paths.read[_existing(paths, path)] = None
    written = [_existing(paths, path) for path in sandbox.files.write]
    if _has_root(sandbox):
        paths.links[SHORT_TEMPORARY] = temporary
    write = _outermost(written)
    read = [path for path in _outermost(paths.read) if not is_below_any(path, own)]
    inside = place(sandbox.destinations) if sandbox.destinations else None
    return {
        "base": base,
        "hidden": os.path.realpath(state),
        "own": [home, temporary, *own_folders],
        "packages": [start.place] if start.place else [],
        "read": read,
        "write": write,
        "links": paths.links,
        "files": _files(home, sandbox, inside),
        "cwd": _starts_in(start.words, str(spec.cwd), [*read, *write], home, os.path.realpath(state)),
        "network": sandbox.network.value if isinstance(sandbox.network, Network) else "named",
        "listeners": [*inside.listeners] if inside else [],
        "memory": sandbox.memory,
        "temporary": sandbox.temporary,
        "cpu": sandbox.cpu,
        "processes": sandbox.processes,
        "open_files": sandbox.open_files,
        "accept": sandbox.accept.value,
    }


def make_mounts(sandbox: Sandbox, folder: Path, state: Path) -> tuple[dict[str, tuple[str, bool]], list[str]]:
    """The files of this machine that a container has; makes the folders of the server.

    Args:
        folder: that of the server in `state`, the state directory.

    Returns:
        By the path in the container, the real path here, and whether it may be written; and the paths in it that must
        be empty, since the state directory is there.

    Raises:
        MissingFile: a path of `files` is not there.
        CannotHide: the state directory is in a folder that may be written.
        OSError: the folders of the server cannot be made.
    """
    home, temporary = _make_own_folders(folder)
    own = {home: home, SHORT_TEMPORARY: temporary}
    written = [*own.values(), *map(os.path.realpath, sandbox.files.write)]
    paths, hidden = _Paths(written), os.path.realpath(state)
    read = {path: (_existing(paths, path), False) for path in sandbox.files.read}
    write = {path: (_existing(paths, path), True) for path in sandbox.files.write}
    outermost = _outermost([real for real, _ in write.values()])  # below, the program may put links for the next start
    named = {
        path: (real, writable)
        for path, (real, writable) in {**read, **write}.items()
        if not is_below_any(real, [hidden]) and (real in outermost if writable else not is_below_any(real, written))
    }
    if any(writable and is_below_any(hidden, [real]) for real, writable in named.values()):
        raise CannotHide
    empty = [path + hidden.removeprefix(real) for path, (real, _) in named.items() if is_below_any(hidden, [real])]
    return {**named, **{place: (os.path.realpath(each), True) for place, each in own.items()}}, empty


def _make_own_folders(folder: Path) -> list[str]:
    """The home and the temporary folder of a server, which are kept."""
    own = [str(folder / name) for name in ("home", "tmp")]
    for each in own:
        os.makedirs(each, mode=0o700, exist_ok=True)
    return own


def _outermost(paths: Collection[str]) -> list[str]:
    """The paths that are below no other one of these."""
    return [path for path in paths if not is_below_any(path, [each for each in paths if each != path])]


def _existing(paths: _Paths, path: str) -> str:
    real = paths.resolve(path)
    if real is None:
        raise MissingFile(path)
    return real


def _files(home: str, sandbox: Sandbox, inside: Inside | None) -> dict[str, str]:
    """The program's users and groups, which are its own alone, and the names of hosts."""
    user, group = os.getuid(), os.getgid()
    found = {
        "/etc/passwd": f"user:x:{user}:{group}::{home}:/bin/sh\n",
        "/etc/group": f"user:x:{group}:\n",
    }
    if sandbox.network is Network.ALL:
        return found
    hosts = {} if inside is None else inside.hosts
    lines = ("127.0.0.1 localhost", "::1 localhost", *(f"{address} {name}" for name, address in hosts.items()))
    return {**found, "/etc/hosts": "".join(f"{line}\n" for line in lines)}


def _proxy_variables(destinations: Sequence[Destination]) -> dict[str, str]:
    """The variables that lead programs to the proxy inside. Node from 22.21 on has to be told to heed them."""
    if not destinations:
        return {}
    address, port = place(destinations).proxy
    names = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
    direct = ",".join((LOCALHOST, "127.0.0.1", "::1"))
    return {
        **dict.fromkeys(names, f"http://{address}:{port}"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), direct),
        "NODE_USE_ENV_PROXY": "1",
    }


def confined_environment(
    sandbox: Sandbox, usual: Mapping[str, str], own: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """The environment of a confined program.

    Args:
        usual: the variables that a server gets unconfined; own: those that the file sets, which replace all others.
        folder: that of the server in the state directory.
    """
    kept = {
        name: text for name, text in usual.items() if name in (*GIVEN, *sandbox.environment) or name.startswith("LC_")
    }
    temporary = SHORT_TEMPORARY if _has_root(sandbox) else str(folder / "tmp")
    own_folders = {"HOME": str(folder / "home"), "TMPDIR": temporary}
    return {**kept, **own_folders, **offline_variables(sandbox), **_proxy_variables(sandbox.destinations), **own}


def offline_variables(sandbox: Sandbox) -> dict[str, str]:
    """The variables that tell package runners which registries they do not reach."""
    if sandbox.network is Network.ALL:
        return {}
    reached = {each.host for each in sandbox.destinations}
    told = (variables for registry, variables in _OFFLINE.items() if registry not in reached)
    return {name: text for variables in told for name, text in variables.items()}


def _has_root(sandbox: Sandbox) -> bool:
    """Whether the program certainly has a root of its own, in which links can stand."""
    return sandbox.accept is Means.NAMESPACES


# The files that the launch names


def needed(start: ProgramStart, env: Mapping[str, str], cwd: str) -> list[str]:
    """The files and folders outside the system's own that the program needs to start, as far as its command names them:
    its installation and that of its interpreter, and the paths among its arguments, a script with its package. Of what
    was installed, nothing is looked at: it could name what it wants to read."""
    found = list(_program(start.interpreter, env, cwd)) if start.interpreter else []
    for words, folder in [(start.words, cwd)] if start.place else _commands(start.words, cwd):
        found += [] if start.interpreter else _program(words[0], env, folder)
        for at, path in _named(words, folder).items():
            # A program that may read the file of a socket may connect to it.
            found += [path] if os.path.isfile(path) or (os.path.isdir(path) and not _is_too_wide(path)) else []
            is_first = not words[at].startswith("-") and all(each.startswith("-") for each in words[1:at])
            if is_first and not start.place and os.path.isfile(path):
                found += _package(path)
        if module := _module(words, folder):
            found += _package(f"{module}/__init__.py" if os.path.isdir(module) else module)
    for name in ("PYTHONPATH", "NODE_PATH"):
        folders = (os.path.join(cwd, each) for each in env.get(name, "").split(":") if each and "\0" not in each)
        found += [each for each in map(os.path.normpath, folders) if os.path.isdir(each) and not _is_too_wide(each)]
    return [path for path in dict.fromkeys(found) if not is_below_any(path, _SYSTEM) and path not in _MADE]


def _commands(words: Sequence[str], cwd: str) -> Iterator[tuple[Sequence[str], str]]:
    """A command with its folder, the one behind `env`, and those that a shell is given as one word."""
    yield words, cwd
    name, rest = os.path.basename(words[0]), list(words[1:])
    if name == "env":
        while rest and (rest[0].startswith("-") or "=" in rest[0]):
            option = rest.pop(0)
            if option in ("-S", "--split-string") and rest:
                rest[:1] = _split(rest[0])
            elif option in ("-u", "--unset") and rest:
                rest.pop(0)
        if rest:
            yield from _commands(rest, cwd)
    elif name in _SHELLS and len(rest) > 1 and rest[0].startswith("-") and rest[0].endswith("c"):
        command: list[str] = []
        for word in (*_split(rest[1]), ";"):
            if not set(word) <= set("();<>|&"):
                command += [word] if command or (word != "exec" and "=" not in word) else []
                continue
            if command:
                yield from _commands(command, cwd)
            if command[:1] == ["cd"] and len(command) > 1 and "\0" not in command[1]:
                cwd = os.path.normpath(os.path.join(cwd, command[1]))
            command = []


def _split(text: str) -> list[str]:
    """The words of a shell's command; none if it has no end."""
    try:
        words = shlex.shlex(text, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = ""
        return list(words)
    except ValueError:
        return []


def _module(words: Sequence[str], cwd: str) -> str:
    """The folder or file of the module that `python -m` finds in the folder that it starts in; empty if it finds an
    installed one, or is told not to look there."""
    options = list(takewhile(lambda word: word.startswith("-") and word != "-m", words[1:]))
    rest = words[len(options) + 1 :]
    if not _PYTHON.fullmatch(os.path.basename(words[0])) or len(rest) < 2 or rest[0] != "-m":
        return ""
    name = rest[1].partition(".")[0]
    if "-I" in options or "-P" in options or not name.isidentifier():
        return ""
    path = os.path.join(cwd, name)
    return path if os.path.isdir(path) else f"{path}.py" if os.path.isfile(f"{path}.py") else ""


def _named(words: Sequence[str], cwd: str) -> dict[int, str]:
    """The paths that are there among the arguments of a command, by the place of the word."""
    found: dict[int, str] = {}
    for at, word in enumerate(words[1:], 1):
        path = os.path.normpath(os.path.join(cwd, _path_in(word)))
        if ("/" in word or "." in word) and "\0" not in path and os.path.exists(path):
            found[at] = path
    return found


def _path_in(word: str) -> str:
    return word.partition("=")[2] if word.startswith("-") else word


def _starts_in(words: Sequence[str], cwd: str, seen: Sequence[str], home: str, hidden: str) -> str:
    """The folder that a program starts in: its own if it may read it, or if arguments lead from there to what it may
    read; or else its home."""
    real = os.path.realpath(cwd)
    if is_below_any(real, seen):
        return real
    if not os.path.isdir(real) or _is_made_up(real) or is_below_any(real, [hidden]):
        return home
    relative = (os.path.realpath(path) for each in _commands(words, cwd) for path in _relative(*each))
    leads = any(is_below_any(path, seen) or any(is_below_any(each, [path]) for each in seen) for path in relative)
    return real if leads else home


def _relative(words: Sequence[str], cwd: str) -> Iterator[str]:
    """The paths among the arguments of a command that begin in its folder."""
    if module := _module(words, cwd):
        yield module
    for at, path in _named(words, cwd).items():
        if not os.path.isabs(_path_in(words[at])):
            yield path


def _program(word: str, env: Mapping[str, str], cwd: str, depth: int = 0) -> Iterator[str]:
    """The files of a program: itself, what it is installed with, and the interpreter in its first line."""
    if "\0" in word or depth > _MOST_INTERPRETERS:
        return
    folders = [""] if "/" in word else os.get_exec_path(dict(env))
    path = next((path for each in folders if os.access(path := os.path.join(cwd, each, word), os.X_OK)), None)
    if path is None or not os.path.isfile(path):
        return
    yield path
    yield from _of_shims(path)
    real = os.path.realpath(path)
    for each in (path, real):
        yield from _installation(each)
    yield from _package(real)
    if interpreter := _interpreter(real):
        yield from _program(interpreter, env, "/", depth + 1)


def _interpreter(path: str) -> str:
    """The program in the first line of a script, behind env if that is there; empty if there is none."""
    try:
        with open_regular(Path(path)) as file:
            line = file.readline(256)
    except OSError:  # the user may execute it, but not read it
        return ""
    if line[:2] != b"#!":
        return ""
    words = [each for each in os.fsdecode(line[2:]).split() if not each.startswith("-") and "=" not in each]
    return words[1] if len(words) > 1 and os.path.basename(words[0]) == "env" else "".join(words[:1])


def _of_shims(program: str) -> Iterator[str]:
    """The versions that a script in the `shims` of pyenv, rbenv or nodenv chooses from, and what it chooses with."""
    folder = os.path.dirname(program)
    root = os.path.dirname(folder)
    if os.path.basename(folder) == "shims" and os.path.isdir(f"{root}/versions"):
        yield from (f"{root}/{name}" for name in ("versions", "version", "libexec", "bin", "shims", "plugins"))


def _installation(program: str) -> Iterator[str]:
    """The parts of the folder that a program is installed in, and of those of the Pythons that it is made from."""
    waiting, known = [program], set[str]()
    while waiting:
        each = waiting.pop(0)
        folder = os.path.dirname(each)
        prefix = os.path.dirname(folder)
        if each in known or os.path.basename(folder) != "bin" or is_below_any(_home(), [os.path.realpath(prefix)]):
            continue
        known.add(each)  # a file may say that an environment is made from itself
        yield from (f"{prefix}/{name}" for name in _OF_A_PREFIX if name != "bin" or not _is_too_wide(prefix))
        if base := _made_from(prefix):
            waiting[:0] = [f"{base}/python", os.path.realpath(f"{base}/python3")]


def _made_from(prefix: str) -> str:
    """The folder with the Python that a virtual environment is made from; empty if it is none."""
    try:
        lines = read_text(Path(f"{prefix}/pyvenv.cfg")).splitlines()
    except (OSError, ValueError):
        return ""
    pairs = (line.partition("=") for line in lines)
    base = next((value.strip() for key, _, value in pairs if key.strip() == "home"), "")
    return "" if "\0" in base else base


def _package(script: str) -> Iterator[str]:
    """The folder of the package that a script belongs to, or else that of the script, unless it holds more; and the
    folders of packages above."""
    folder = os.path.dirname(script)
    above = list(steps(folder))[::-1]
    marked = (each for each in above if any(os.path.exists(f"{each}/{mark}") for mark in _MARKS))
    found = next((each for each in marked if not _is_too_wide(each)), None)
    if found is None and os.path.basename(folder) != "bin" and not _is_too_wide(folder):
        found = folder  # but what lies beside it in a folder of programs is another one's
    yield from [found] if found else []
    for each in above:
        if os.path.basename(each) == "node_modules":
            yield each
        elif os.path.isdir(f"{each}/node_modules"):
            yield f"{each}/node_modules"


def _is_too_wide(folder: str) -> bool:
    """Whether a folder holds more than one program's files, as home and what is above it do. Such a folder is read only
    if `files` says so."""
    home, real = _home(), os.path.realpath(folder)
    shared = (
        *("/home", "/tmp", "/var/tmp", "/var", "/srv", "/opt", "/mnt", "/media", "/run", "/etc"),
        *("/proc", "/sys", "/dev"),
    )
    places = (home, *(f"{home}/{name}" for name in (".ssh", ".config", ".local/share", ".local/state")))
    return real in shared or any(is_below_any(each, [real]) for each in places)


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))
