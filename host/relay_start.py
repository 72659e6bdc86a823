"""The start of a host by a relay, and what the relay answers meanwhile. relay.py imports it when no host runs, and like
that file it uses the standard library alone."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import signal
import sqlite3
import stat
import sys
from urllib.parse import quote

from host.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

FIRST_ANSWERS = "first-answers"
"""Name of the file in the directory of a configuration; see `downstream/first_answers.py`."""

_KEPT = frozenset(
    [
        *("HOME", "PATH", "LANG", "LANGUAGE", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR", "DBUS_SESSION_BUS_ADDRESS"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy", "ftp_proxy"),
        *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8"),
    ]
)
_KEPT_PREFIXES = ("LC_", "XDG_", "COLONNADE_", "OTEL_")
"""Besides RESTRICTING, the variables of a desktop host that the Colonnade which it starts keeps: none of its keys, but
what `OTEL_EXPORTER_OTLP_HEADERS` has for the collector of traces."""
RESTRICTING = frozenset(
    [
        *("AMP_SETTINGS_FILE", "CLAUDE_CODE_PLUGIN_CACHE_DIR", "CLAUDE_CONFIG_DIR", "CODEX_HOME"),
        *("CLINE_GLOBAL_SETTINGS_PATH", "CLINE_MCP_SETTINGS_PATH", "CONTINUE_GLOBAL_DIR", "COPILOT_HOME"),
        "CURSOR_CONFIG_DIR",
        *("GEMINI_CLI_HOME", "GEMINI_CLI_SYSTEM_DEFAULTS_PATH", "GEMINI_CLI_SYSTEM_SETTINGS_PATH"),
        *("GEMINI_CLI_TRUSTED_FOLDERS_PATH", "GOOSE_ALLOWLIST", "GOOSE_ALLOWLIST_BYPASS", "GOOSE_MODE"),
        *("GOOSE_PATH_ROOT", "OPENCODE_CONFIG", "OPENCODE_CONFIG_CONTENT", "OPENCODE_CONFIG_DIR"),
        *("OPENCODE_PERMISSION", "QWEN_CODE_MCP_APPROVALS_PATH", "QWEN_CODE_SYSTEM_DEFAULTS_PATH"),
        *("QWEN_CODE_SYSTEM_SETTINGS_PATH", "QWEN_HOME"),
    ]
)
"""The places of desktop hosts' files that restrict servers, and such restrictions themselves."""
_IN_SCOPE = (
    "systemd-run --user --scope --quiet true >/dev/null 2>&1 "
    '&& exec systemd-run --user --scope --quiet --collect -- "$@"; exec "$@"'
)
"""Tried first: a manager that is there may refuse all the same. `--scope` executes the command in its own process."""
_APPS = "io.modelcontextprotocol/ui"
_MAX_FILE = 32 * 1024 * 1024 + 1
"""Bytes that a digest is of, as in `config.file_state`."""


def host_environment(environ: Mapping[str, str], named: Collection[str]) -> dict[str, str]:
    """The part of a desktop host's environment that the Colonnade which it starts keeps: what any program needs, and
    the variables that the configuration names, which it may need to read that at all."""
    return {
        name: value
        for name, value in environ.items()
        if name in named or name in _KEPT or name in RESTRICTING or name.startswith(_KEPT_PREFIXES)
    }


def start_host(file: str, state: str, log_level: str, named: Collection[str]) -> int:
    """Start a host that outlives this process: in a session of its own, a child of init, and where there is a systemd
    manager of the user, in a scope of that one, which the end of a log-in session leaves alone.

    Args:
        file, state: the configuration and the state directory.
        log_level: that of the host; empty if none is given.
        named: the variables that the configuration names.

    Returns:
        The descriptor of its standard error, which it closes once a relay can connect.
    """
    command = [sys.executable, "-m", "host", "serve", "--daemon", os.path.abspath(file)]
    command += ["--state", state]
    if log_level:
        command += ["--log-level", log_level]
    environ = host_environment(os.environ, named)
    runtime = environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    if not os.path.isdir(runtime):
        del environ["XDG_RUNTIME_DIR"]
    elif os.path.exists(os.path.join(runtime, "systemd", "private")):
        command = ["/bin/sh", "-c", _IN_SCOPE, "sh", *command]
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                nothing = os.open(os.devnull, os.O_RDWR)
                for target, source in ((0, nothing), (1, nothing), (2, writing)):
                    os.dup2(source, target)
                # A desktop host may have left us some of its own, perhaps above a limit that it has lowered since.
                os.closerange(3, max(map(int, os.listdir("/dev/fd"))) + 1)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                os.chdir("/")
                os.execve(command[0], command, environ)
        finally:
            os._exit(0)
    os.close(writing)
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:  # else nothing is left of the child
        os.waitpid(child, 0)
    return reading


def seal_first_answers(key: bytes, body: bytes) -> bytes:
    """The first line of the file: only who reads the key of the state directory can make it."""
    own = hashlib.blake2b(b"first answers", key=key, digest_size=32).digest()
    return hashlib.blake2b(body, key=own, digest_size=32).hexdigest().encode()


def values_digest(key: bytes, names: Iterable[str], environ: Mapping[str, str]) -> str:
    """A digest of the values of variables, which shows nothing of them."""
    values = json.dumps([(name, environ.get(name)) for name in sorted(names)])
    return hashlib.blake2b(values.encode(), key=key, digest_size=32, person=b"variables").hexdigest()


def resolve_program(command: str, env: Mapping[str, str], cwd: str) -> str | None:
    """The path as `subprocess.Popen` in the keeper finds it: a name without a slash in the child's PATH, a relative
    path from the child's directory; files that cannot be executed are skipped."""
    folders = [""] if os.path.dirname(command) else os.get_exec_path(env)
    for folder in folders:
        path = os.path.join(cwd, folder, command)
        try:
            if os.path.isfile(path) and os.access(path, os.X_OK):
                return os.path.realpath(path)
        except ValueError:  # the path contains a NUL: the keeper cannot start it either
            return None
    return None


class FirstAnswers:
    """The answers of the last host of a configuration to its clients. There are none, unless the file fits the state of
    everything that it was made from.

    Args:
        state, file: the state directory and the configuration file.
        view: the view that the client is to have; empty for none.
    """

    def __init__(self, state: str, file: str, view: str = "") -> None:
        self._forms: dict[str, Any] = {}
        self._stateless: dict[str, Any] = {}
        self._default = ""
        try:
            self._read(state, hashlib.sha256(os.fsencode(os.path.realpath(file))).hexdigest()[:16], view)
        except (OSError, ValueError, LookupError, TypeError, sqlite3.Error):
            self._forms = {}

    def _read(self, state: str, id: str, view: str) -> None:
        key = _read_own(os.path.join(state, "key"))
        seal, _, body = _read_own(os.path.join(state, "configs", id, FIRST_ANSWERS)).partition(b"\n")
        if not hmac.compare_digest(seal, seal_first_answers(key, body)):
            return
        basis, _, answers = body.partition(b"\n")
        found = json.loads(basis)
        if (
            found["colonnade"] == VERSION
            and found["revisions"] == _revisions(state, id)
            and found["values"] == values_digest(key, found["variables"], os.environ)
            and all(_state_of(path) == digest for path, digest in found["files"].items())
            and all(_finds(*each) for each in found["programs"])
        ):
            read = json.loads(answers)[view]
            self._stateless, self._default, self._forms = read["stateless"], read["default"], read["forms"]

    def answer(self, message: dict[str, Any], opened: dict[str, Any] | None) -> str | None:
        """The JSON text of the result; None if only the host can answer.

        Args:
            opened: the result of the client's `initialize`; None before.
        """
        if not self._forms or not isinstance(message.get("id"), str | int):
            return None
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize" and opened is None:
            form = self._forms.get(params["protocolVersion"], self._forms[self._default])
            shows_apps = _APPS in ((params.get("capabilities") or {}).get("extensions") or {})
            return str(form["opening"]["apps" if shows_apps and "apps" in form["opening"] else ""])
        if opened is not None:
            form = self._forms[opened["protocolVersion"]]
        else:
            form = self._stateless[params["_meta"]["io.modelcontextprotocol/protocolVersion"]]
            if method == "server/discover":
                return str(form["opening"][""])
        page: str | None = form["lists"].get(method, {}).get(params.get("cursor", ""))
        return page


def _read_own(path: str) -> bytes:
    """The content of a regular file of this user that is no link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError("it is not a file of ours")
        return file.read()


def _revisions(state: str, id: str) -> list[int]:
    """The numbers of changes of the configuration's definitions and credentials."""
    path = os.path.join(state, "colonnade.db")
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=0.2)) as database:
        row = database.execute("SELECT definitions, credentials FROM config WHERE id = ?", (id,)).fetchone()
    return list(row)


def _finds(command: str, search_path: str | None, folder: str, program: str | None) -> bool:
    """Whether a command still stands for this program; `search_path` is that of its server, None for that of a host."""
    env = os.environ if search_path is None else {"PATH": search_path}
    return resolve_program(command, env, folder) == program


def _state_of(path: str) -> str:
    """The state of a file or folder, as `config.file_state` gives it."""
    try:
        if os.path.isdir(path):
            return hashlib.sha256(repr(sorted(os.listdir(path))).encode()).hexdigest()
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "unreadable"
            return hashlib.sha256(file.read(_MAX_FILE)).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        return "unreadable"
