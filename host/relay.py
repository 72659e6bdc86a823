"""`colonnade serve --stdio`: a relay between one desktop host and the one Colonnade of this user and configuration.

A desktop host waits about a second for its servers, starts one of these per window, and kills it without a word. So the
relay copies lines between standard input and output and the Unix socket of the Colonnade that runs
(`downstream/relays.py`), starts that one if none does, and opens its client's session again when that one has ended.

It imports a few modules of the standard library, and of this package only what does the same: its start is most of what
the desktop host waits for.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
import zlib
from contextlib import suppress
from time import monotonic

from host.opening import CHANGED, LISTEN, NOTED, SUBSCRIPTION_ID, Opening
from host.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc take longer to load than what is here
    from collections.abc import Callable, Mapping
    from typing import Any

    from host.relay_start import FirstAnswers

CONFIG_NAME = "colonnade.yaml"
SUFFIX = ".relay"
"""Of the sockets in the folder `run` of the state directory."""
TRAIL_VARIABLE = "COLONNADE_TRAIL"
"""Of a server that is Colonnade itself: the configurations of the hosts above, as a list in JSON."""
MAX_HELLO = 1024 * 1024
"""Bytes of the first line in each direction."""
START_TIMEOUT = 60.0
"""Seconds in which a Colonnade must have been reached."""
HELLO_TIMEOUT = 20.0
"""Seconds in which one that runs must answer the first line: it may be reading lists of a thousand entries."""
LOCK_TIMEOUT = 10.0
"""Seconds for which the relay that holds the lock may be starting one."""
MOMENT = 3.0
"""Seconds for which a relay that another process keeps from starting one waits without a word."""
MAX_UNREAD = 1024 * 1024
"""Bytes that wait for one side; beyond that, nothing more is read from the other."""
MAX_LINE = 8 * 1024 * 1024
"""Bytes of a line of a client; of a longer one so many are passed on, and Colonnade says what is wrong with it."""
MAX_FAILURES = 5
"""Ends in a row of a Colonnade that had accepted us and answered nothing, each within `FAILURE_WINDOW` seconds, after
which the relay ends too: something kills them."""
FAILURE_WINDOW = 10.0
LEAVE_TIMEOUT = 3.0
"""Seconds for what a host still says after the end of our input."""
WRONG, FAILED, DONE = 2, 1, 0

_RETRY = 0.03
"""Seconds between two looks for the socket of a Colonnade that another relay starts."""
_START_PAUSE = 0.5
"""Seconds until the next start of one that has ended without a word, times the starts so far."""
_CHUNK = 64 * 1024
_HELPERS = (b"(colonnade-keep)", b"(colonnade-reap)", b"(colonnade-link)")
"""Process names of keepers and subreapers, below which servers run."""
_OWN_ID = "colonnade-relay-"
"""Beginning of the ids of our own requests."""
_LEVELS = ("debug", "info", "warning", "error")
_OUTCOME_UNKNOWN = (
    "Colonnade ended while this request was in progress, so its outcome is unknown: look whether it was carried out "
    "before you send it again"
)
_INTERRUPTED = 502
_OTHER: dict[str, Any] = {"method": ""}
_MAX_ID = 1 << 63
_MAX_DIGITS = 1000
_DECODER = json.JSONDecoder(parse_int=lambda digits: int(digits) if len(digits) < _MAX_DIGITS else None)
"""Python refuses integers of more than some 4000 digits, a host does not."""
_CANCELLED = b'{"jsonrpc":"2.0","method":"notifications/cancelled"'
_ACKNOWLEDGED = b'{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"'
_ID = rb'"id":("(?:[^"\\]|\\.)*"|-?[0-9]+)'
_WITH_ID = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:%b,"(?:(method)"|result":(.*)\}\Z)|"error":.*,%b\}\Z)' % (_ID, _ID), re.DOTALL
)
"""How Colonnade writes a message with an id: that of a request or a result, `method`, the result, that of an error."""
_REFERENCE = re.compile(rb"\$\{?(?:env:)?([A-Za-z_][A-Za-z0-9_]*)|\{env:([A-Za-z_][A-Za-z0-9_]*)")
"""A name in a reference to the environment, in our files and those of desktop hosts."""
_OWN = re.compile(rb"""(?:^|[{,])[ \t]*["']?daemon["']?[ \t]*:[ \t]*["']?false\b""", re.MULTILINE)
"""`daemon: false` in YAML and JSON. Where it means something else, each client has a host of its own, which is right
too."""
PROGRAM_VARIABLES = (
    *("AWS_CONFIG_FILE", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_REGION", "AWS_SDK_LOAD_CONFIG"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AZURE_CONFIG_DIR", "CLOUDSDK_ACTIVE_CONFIG_NAME", "CLOUDSDK_CONFIG"),
    *("CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF"),
    *("CONTAINER_CONNECTION", "CONTAINER_HOST", "CONTAINER_SSHKEY", "DOCKER_API_VERSION", "DOCKER_CERT_PATH"),
    *("DOCKER_CONFIG", "DOCKER_CONTENT_TRUST", "DOCKER_CONTENT_TRUST_SERVER", "DOCKER_CONTEXT"),
    *("DOCKER_DEFAULT_PLATFORM", "DOCKER_HOST", "DOCKER_TLS", "DOCKER_TLS_VERIFY", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("KUBECONFIG", "REGISTRY_AUTH_FILE"),
)
"""Those of `config/environment.py`, which every relay hands over."""


# Where things are


def state_path(given: str | None, environ: Mapping[str, str]) -> str:
    """The absolute path of the state directory: the given one, or else the one that the environment names. The file
    system is not read, and `..` stays, since a link may stand before it."""
    if named := given or environ.get("COLONNADE_STATE"):
        return os.path.join(os.getcwd(), named)
    base = environ.get("XDG_STATE_HOME", "")
    # A relative one is to be ignored (XDG Base Directory Specification, "Basics").
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.local/state"), "colonnade")


def users_config(environ: Mapping[str, str]) -> str:
    """The path of the configuration that is used in folders without one of their own. It may not be there."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "colonnade", CONFIG_NAME)


def socket_path(state: str, config: str) -> str:
    """The socket of the host of a configuration, whatever path names the file. Two files could share it: both sides
    compare the path itself."""
    real = os.fsencode(os.path.realpath(config))
    return os.path.join(state, "run", f"{zlib.crc32(real):08x}{zlib.crc32(real[::-1]):08x}{SUFFIX}")


def log_path(state: str, config: str) -> str:
    """The log of a host that a relay has started."""
    return socket_path(state, config).removesuffix(SUFFIX) + ".log"


def read_trail(environ: Mapping[str, str]) -> list[str] | None:
    """The configurations of the hosts above this process; None if no host has started it. Never raises."""
    if (text := environ.get(TRAIL_VARIABLE)) is None:
        return None
    try:
        above = json.loads(text)
    except (ValueError, RecursionError):
        above = None
    return [each for each in above if isinstance(each, str) and _is_text(each)] if isinstance(above, list) else []


def _is_text(value: str) -> bool:
    """Whether it can stand in JSON: a path or variable may hold any bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def named_variables(text: bytes) -> set[str]:
    """The names that a configuration may refer to, in the environment; some may stand for something else."""
    return {os.fsdecode(one or other) for one, other in _REFERENCE.findall(text)}


def handed_over(text: bytes, environ: Mapping[str, str]) -> dict[str, str]:
    """The part of a desktop host's environment that a relay hands over: the variables whose names occur in the
    configuration, in whatever form, and those of known programs. The Colonnade that gets them uses those that servers
    need."""
    return {
        name: value
        for name, value in environ.items()
        if (name in PROGRAM_VARIABLES or os.fsencode(name) in text) and _is_text(value)
    }


def first_line(config: str, text: bytes, environ: Mapping[str, str], **more: str) -> bytes:
    """The words of a relay about itself for the host of a configuration, whose content is given, and `more` of them
    (`downstream/relays.py: Hello`)."""
    hello = {
        "colonnade": VERSION,
        "config": os.path.realpath(config),
        "trail": read_trail(environ),
        "environment": handed_over(text, environ),
        **more,
    }
    return json.dumps(hello).encode() + b"\n"


class Options:
    """The arguments of `serve --stdio`, as far as a relay knows them.

    Attributes:
        file: the configuration file; empty if there is none.
        log_level: the levels of the log of a host that is started; empty if none are given.
        view: the view that the client is to have; empty for none.
    """

    def __init__(self, file: str, state: str, log_level: str, view: str = "") -> None:
        self.file = file
        self.state = state
        self.log_level = log_level
        self.view = view


def read_options(arguments: list[str], environ: Mapping[str, str]) -> Options | None:
    """The options after `serve`; None if the command line is to say what is wrong with them, or no relay is wanted."""
    given: dict[str, str] = {}
    file = ""
    stdio = False
    rest = iter(arguments)
    for each in rest:
        name, equals, value = each.partition("=")
        if each == "--stdio":
            stdio = True
        elif name in ("--state", "--log-level", "--view"):
            given[name] = value if equals else next(rest, "")
            if not given[name]:
                return None
        elif each.startswith("-") or file:
            return None
        else:
            file = each
    # Which parts of the log there are, the host that is started knows.
    levels = given.get("--log-level", "warning").split(",")
    if not stdio or any(each.rpartition("=")[2] not in _LEVELS for each in levels):
        return None
    if not file:
        file = next((each for each in (CONFIG_NAME, users_config(environ)) if os.path.lexists(each)), "")
    return Options(
        file, state_path(given.get("--state"), environ), given.get("--log-level", ""), given.get("--view", "")
    )


# The relay


class _End(Exception):
    """The relay ends. `code`: its exit status."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(why)
        self.code = code


class _Side:
    """One of the two sides: the lines that come from it, and the bytes that wait for it. Its descriptors are not
    blocking, but for a terminal or a file. `rest`: the bytes after the last line end."""

    def __init__(self, source: int, sink: int) -> None:
        self.source = source
        self.sink = sink
        self.waiting = bytearray()
        self.rest = bytearray()
        for each in (source, sink):
            if stat.S_ISFIFO(mode := os.fstat(each).st_mode) or stat.S_ISSOCK(mode):
                os.set_blocking(each, False)

    def read(self) -> list[bytes] | None:
        """The lines that have come, without their ends; None at the end."""
        try:
            data = os.read(self.source, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:  # a broken connection counts as the end
            data = b""
        if not data:
            return None
        self.rest += data
        if b"\n" not in data:
            return []
        *lines, rest = bytes(self.rest).split(b"\n")
        self.rest = bytearray(rest)
        return [line for line in lines if line.strip()]

    def write(self) -> bool:
        """Write what waits, as far as there is room. False if nobody reads any more."""
        try:
            while self.waiting:
                del self.waiting[: os.write(self.sink, memoryview(self.waiting)[:_CHUNK].tobytes())]
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return True


class Relay:
    """One client, and the host that serves it now.

    Args:
        start: starts a host; returns the descriptor at which it says why it could not, and which it closes otherwise.
        first_answers: reads what may be answered meanwhile.
    """

    def __init__(
        self,
        options: Options,
        hello: bytes,
        client: _Side,
        start: Callable[[], int],
        first_answers: Callable[[], FirstAnswers],
    ) -> None:
        self._options = options
        self._hello = hello
        self._client = client
        self._start = start
        self._read_first_answers = first_answers
        self._first_answers: FirstAnswers | None = None
        self._socket: socket.socket | None = None
        self._host: _Side | None = None
        self._is_accepted = False
        self._is_open = False
        """Whether the client's messages are passed on."""
        self._opening = Opening()
        self._queue: list[bytes] = []
        """The client's lines that no host has got."""
        self._sent: dict[str, dict[str, Any]] = {}
        """The client's requests that a host has got and not answered, by the JSON text of their ids."""
        self._asked: dict[str, None] = {}
        """The ids of the host's requests that the client has not answered. Two hosts use no id twice."""
        self._own: dict[str, dict[str, Any]] = {}
        """Our own requests, by the JSON text of their ids."""
        self._own_count = 0
        self._unacknowledged: set[str] = set()
        """The ids of `subscriptions/listen` that were sent again: the client knows that they were accepted."""
        self._failures = 0
        self._accepted_at = 0.0
        self._lock: int | None = None
        self._failure: int | None = None
        """The descriptor at which a host that starts says why it cannot."""
        self._reason = b""
        self._starts = 0
        """Hosts that were started since `_lost_at`, the time since which none has served the client."""
        self._lost_at = monotonic()
        self._said_since = 0.0
        """The `_lost_at` of the last wait that was told."""
        self._next_start = self._greeted_at = 0.0
        self._left_at = 0.0
        """When our input has ended; 0 before."""

    def run(self) -> None:
        """Copy until a side ends. Raises _End."""
        self._connect()
        while True:
            poll = select.poll()
            self._register(poll)
            ready = dict(poll.poll(None if self._is_open and not self._left_at else _RETRY * 1000))
            self._on_client(ready)
            if self._failure in ready and self._failure is not None:
                self._on_failure()
            if self._host is not None and self._host.sink in ready:
                self._on_host(ready[self._host.sink])
            if self._left_at:
                self._leave()
            elif self._host is None:
                self._connect()
            if not self._is_open:
                self._check_time()

    def _register(self, poll: select.poll) -> None:
        host, client = self._host, self._client
        waits_for_host = sum(map(len, self._queue)) if host is None or not self._is_open else len(host.waiting)
        if waits_for_host < MAX_UNREAD and not self._left_at:
            poll.register(client.source, select.POLLIN)
        poll.register(client.sink, select.POLLOUT if client.waiting else 0)  # its end is told in any case
        if host is not None:
            reads = select.POLLIN if len(client.waiting) < MAX_UNREAD else 0
            poll.register(host.sink, reads | (select.POLLOUT if host.waiting else 0))
        if self._failure is not None:
            poll.register(self._failure, select.POLLIN)

    # The client

    def _on_client(self, ready: dict[int, int]) -> None:
        client = self._client
        if client.sink in ready and (ready[client.sink] & ~select.POLLOUT or not client.write()):
            raise _End(DONE)  # nobody reads any more
        if client.source not in ready:
            return
        lines = client.read()
        for line in lines or ():
            self._on_line(line)
        if lines is None or len(client.rest) > MAX_LINE:
            if client.rest:
                self._on_line(bytes(client.rest))
            self._left_at = monotonic()
            if not self._is_open:
                self._drop_host()

    def _on_line(self, line: bytes) -> None:
        if self._is_open:
            self._pass_on(line)
        elif self._first_answers is None or not self._answer_first(self._first_answers, line):
            self._queue.append(line)

    def _answer_first(self, answers: FirstAnswers, line: bytes) -> bool:
        """Answer a message of the client in the place of a host that starts; False if it must wait for that one."""
        messages, opening = _messages(line), self._opening
        if len(messages) != 1:
            return False
        (message,) = messages
        if message.get("method") == "notifications/initialized" and opening.result is not None:
            opening.on_notification(message)
            return True
        if (id := _id_of(message)) is None:
            return False
        try:
            result = answers.answer(message, opening.result)
        except (LookupError, TypeError, AttributeError):  # the host says what is wrong with it
            return False
        if result is None:
            return False
        opening.on_answered(message, result.encode())
        self._client.waiting += f'{{"jsonrpc":"2.0","id":{id},"result":{result}}}\n'.encode()
        return True

    def _pass_on(self, line: bytes) -> None:
        """Send a line of the client to the host that serves it."""
        assert self._host is not None
        messages = _messages(line)
        dropped = [message for message in messages if self._is_late(message)]
        for message in messages:
            id = _id_of(message)
            if "method" not in message:
                self._asked.pop(id or "", None)
            elif id is None:
                self._opening.on_notification(message)
            else:
                self._sent[id] = message if message["method"] in NOTED else _OTHER
                if message["method"] == LISTEN:
                    self._opening.on_listening(id, message)
        if dropped:
            rest = [message for message in messages if message not in dropped]
            line = json.dumps(rest).encode() if rest else b""
        if line:
            self._host.waiting += line + b"\n"
            self._flush_host()

    def _is_late(self, message: dict[str, Any]) -> bool:
        """Whether it is the answer to a request that the present host has not sent: a former one did."""
        if "method" in message or not ("result" in message or "error" in message):
            return False
        id = _id_of(message)
        return id is not None and id not in self._asked

    def _leave(self) -> None:
        """End as the client does: the host sends what it still has, and cancels what is in progress."""
        if monotonic() > self._left_at + LEAVE_TIMEOUT or (self._host is None and not self._client.waiting):
            raise _End(DONE)
        if self._socket is not None and self._host is not None and not self._host.waiting:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self._drop_host()

    # The host

    def _connect(self) -> None:
        """Connect to the host that runs; start one if none does."""
        if self._greet():
            return
        if self._first_answers is None:
            self._first_answers = self._read_first_answers()
        if self._failure is not None or monotonic() < self._next_start:
            return
        if not self._take_lock() and monotonic() < self._lost_at + LOCK_TIMEOUT:
            return
        # Another relay may have started one while this one waited for the lock.
        if not self._greet():
            self._starts += 1
            self._failure, self._reason = self._start(), b""

    def _greet(self) -> bool:
        """Connect to the host that runs, and send it the first line; False if none does."""
        self._socket = connect(socket_path(self._options.state, self._options.file))
        if self._socket is None:
            return False
        self._host = _Side(self._socket.fileno(), self._socket.fileno())
        self._is_accepted = False
        self._host.waiting += self._hello
        self._greeted_at = monotonic()
        self._flush_host()
        return True

    def _flush_host(self) -> None:
        # A host that is gone is noticed when its end is read.
        if self._host is not None and not self._host.write():
            self._host.waiting.clear()

    def _on_host(self, events: int) -> None:
        assert self._host is not None
        if events & select.POLLOUT:
            self._flush_host()
        if not events & ~select.POLLOUT:
            return
        lines = self._host.read()
        if not self._is_accepted and len(self._host.rest) > MAX_HELLO:  # no host has so much to say before that
            lines = None
        for line in lines or ():
            if self._is_accepted:
                self._on_host_line(line)
            elif not self._accept(line):
                return
        if lines is None:
            self._on_host_end()
        elif self._client.waiting and not self._client.write():
            raise _End(DONE)

    def _accept(self, line: bytes) -> bool:
        """Take the host's answer to the first line; False if another host is to be asked."""
        answer = next(iter(_messages(line)), {})
        if refused := answer.get("refused"):
            raise _End(WRONG, str(refused))
        if not answer.get("accepted"):  # it is of another version, or stops: another one takes its place
            self._drop_host()
            return False
        self._is_accepted = True
        self._accepted_at = monotonic()
        self._first_answers = None  # much may be decided until this host ends
        self._release_lock()
        _tell_person(f"Colonnade {VERSION}: process {answer.get('process')} serves this client; see colonnade status")
        if self._opening.initialize is None:
            self._replay()
        else:
            self._ask_host(self._opening.initialize)
        return True

    def _open(self) -> None:
        """Let the client's messages through."""
        self._is_open = True
        queue, self._queue = self._queue, []
        for line in queue:
            self._pass_on(line)

    def _on_host_line(self, line: bytes) -> None:
        parts = _WITH_ID.match(line)
        if parts is None:
            self._on_other_line(line)
            return
        id, result = (parts[1] or parts[4]).decode(), parts[3]
        if parts[2]:
            self._asked[id] = None
        elif id in self._own:
            self._on_own_answer(self._own.pop(id), result)
            return
        elif (message := self._sent.pop(id, None)) is not None:
            self._failures = 0
            self._on_answered(id, message, result)
        self._client.waiting += line + b"\n"

    def _on_other_line(self, line: bytes) -> None:
        """Take a notification, or an answer without an id."""
        if self._unacknowledged and line.startswith(_ACKNOWLEDGED):
            for message in _messages(line):
                id = json.dumps(message["params"]["_meta"][SUBSCRIPTION_ID], ensure_ascii=False)
                if id in self._unacknowledged:
                    self._unacknowledged.discard(id)
                    return
        if line.startswith(_CANCELLED):
            for message in _messages(line):
                self._asked.pop(json.dumps(message["params"]["requestId"]), None)
        self._client.waiting += line + b"\n"

    def _on_answered(self, id: str, message: dict[str, Any], result: bytes | None) -> None:
        if message["method"] == LISTEN:
            self._unacknowledged.discard(id)
            self._opening.on_listening(id, None)
        elif result is not None:
            self._opening.on_answered(message, result)

    def _on_host_end(self) -> None:
        """The host has ended: answer what it had got, and go on with another one."""
        was_accepted, self._is_open = self._is_accepted, False
        self._drop_host()
        if self._left_at:
            return
        if was_accepted:
            self._lost_at, self._starts = monotonic(), 0
            self._failures = self._failures + 1 if monotonic() - self._accepted_at < FAILURE_WINDOW else 1
            if self._failures > MAX_FAILURES:
                log = log_path(self._options.state, self._options.file)
                raise _End(FAILED, f"the Colonnade of this configuration ends again and again; see its log {log}")
        for id, message in list(self._sent.items()):
            del self._sent[id]
            if message["method"] == "initialize" and self._opening.initialize is None:
                self._queue[:0] = [json.dumps(each).encode() for each in (message, *self._opening.take_initialized())]
            elif message["method"] != LISTEN:
                self._answer_error(id, _INTERRUPTED, _OUTCOME_UNKNOWN)
        for id in self._asked:
            params = {"requestId": json.loads(id), "reason": "Colonnade has ended"}
            self._tell({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        self._asked = {}
        self._own = {}
        self._unacknowledged.clear()

    def _drop_host(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._host = None
        self._is_accepted = False

    # A session that is opened again

    def _ask_host(self, message: dict[str, Any]) -> None:
        """Send a message of the client again; if it is a request, with an id of ours."""
        assert self._host is not None
        if "id" in message:
            self._own_count += 1
            own = {**message, "id": f"{_OWN_ID}{self._own_count}"}
            self._own[json.dumps(own["id"])] = message
        else:
            own = message
        self._host.waiting += json.dumps(own).encode() + b"\n"
        self._flush_host()

    def _on_own_answer(self, message: dict[str, Any], result: bytes | None) -> None:
        method = message["method"]
        if method == "initialize":
            if result is None or self._opening.offers_less(json.loads(result)):
                raise _End(
                    FAILED, "the session could not be opened again: Colonnade offers less than before; start anew"
                )
            self._replay()
        elif method in CHANGED and result is not None:
            for notice in self._opening.changes(method, result):
                self._tell(notice)

    def _replay(self) -> None:
        for message in self._opening.replay():
            if message["method"] == LISTEN:
                assert self._host is not None
                id = _id_of(message) or ""
                self._unacknowledged.add(id)
                self._sent[id] = message
                self._host.waiting += json.dumps(message).encode() + b"\n"
            else:
                self._ask_host(message)
        for notice in self._opening.updates():
            self._tell(notice)
        self._open()

    # The start of a host

    def _take_lock(self) -> bool:
        """Take the right to start a host; False while another relay has it."""
        if self._lock is not None:
            return True
        path = socket_path(self._options.state, self._options.file) + ".start"
        try:
            for folder in (self._options.state, os.path.dirname(path)):  # as open_state makes them
                os.makedirs(folder, 0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise _End(WRONG, f"{path} cannot be used: {problem.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _on_failure(self) -> None:
        """Read what a host that starts says; its end means that it can be reached, or that it has failed."""
        assert self._failure is not None
        if data := os.read(self._failure, _CHUNK):
            self._reason += data[: MAX_UNREAD - len(self._reason)]
            return
        os.close(self._failure)
        self._failure = None
        if self._host is not None or self._greet():
            self._release_lock()
            _tell_person(self._reason.decode(errors="replace").strip())
        elif self._reason:
            raise _End(WRONG, self._reason.decode(errors="replace").strip())
        else:  # it was killed, or another one has just ended that it had found
            self._next_start = monotonic() + self._starts * _START_PAUSE

    def _check_time(self) -> None:
        """Raise _End if there is no host in time."""
        now, path = monotonic(), socket_path(self._options.state, self._options.file)
        if self._host is not None and now > self._greeted_at + HELLO_TIMEOUT:
            raise _End(FAILED, "the Colonnade of this configuration does not answer; see colonnade status")
        lock = path.removesuffix(SUFFIX) + ".lock" if self._starts else f"{path}.start"
        if now > self._lost_at + START_TIMEOUT:
            raise _End(FAILED, f"no Colonnade could be started; perhaps another process holds {lock}")
        is_kept_out = self._host is None and (self._lock is None or self._starts > 1)
        if is_kept_out and now > self._lost_at + MOMENT and self._said_since != self._lost_at:
            self._said_since = self._lost_at
            _tell_person(f"waiting for the Colonnade of {self._options.file}; perhaps another process holds {lock}")

    # Messages of ours

    def _answer_error(self, id: str, code: int, text: str) -> None:
        error = json.dumps({"code": code, "message": text})
        self._client.waiting += b'{"jsonrpc":"2.0","id":%s,"error":%s}\n' % (id.encode(), error.encode())

    def _tell(self, message: dict[str, Any]) -> None:
        self._client.waiting += json.dumps(message).encode() + b"\n"


def _messages(line: bytes) -> list[dict[str, Any]]:
    """The messages in a line: one, or those of a batch; none if it is no JSON, which the host says to the client."""
    try:
        read = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return []
    return [each for each in (read if isinstance(read, list) else [read]) if isinstance(each, dict)]


def _id_of(message: dict[str, Any]) -> str | None:
    """The JSON text of a message's id, as a host writes it; None if there is none that a host would answer."""
    id = message.get("id")
    if isinstance(id, str) and _is_text(id):
        return json.dumps(id, ensure_ascii=False)
    return str(id) if type(id) is int and -_MAX_ID <= id < _MAX_ID else None


def _tell_person(text: str) -> None:
    """Write to standard error, which desktop hosts keep in a log."""
    if text:
        with suppress(OSError):
            os.write(2, f"{text}\n".encode())


# The socket


def connect(path: str) -> socket.socket | None:
    """Connect to the host at a socket; None if there is none. A socket of another user, or of a process below a keeper,
    which is a server, counts as none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)  # a host that is stopped accepts nobody, and its queue may be full
    folder = -1
    try:
        if sys.platform == "linux":  # the address of a Unix socket has 107 bytes at most
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
            path = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
        connection.connect(path)
        if _is_host(connection):
            return connection
    except OSError:
        pass
    finally:
        if folder >= 0:
            os.close(folder)
    connection.close()
    return None


def _is_host(connection: socket.socket) -> bool:
    """Whether a process of this user that is no server is at the other end. On macOS, where it was never tested, any
    process of this user counts (sys/ucred.h: a version, then the user). Raises OSError."""
    if sys.platform == "darwin":
        version, user = struct.unpack_from("=2I", connection.getsockopt(0, 1, 76))
        return bool(version == 0 and user == os.geteuid())
    pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return user == os.geteuid() and not _is_server(pid)


def _is_server(pid: int) -> bool:
    """Whether a process is below a keeper, as servers are, or has their lower limit of file locks
    (wire/descent.py)."""
    if _lock_limit(pid) < _OWN_LOCK_LIMIT:
        return True
    while pid > 1:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        end = line.rindex(b")")
        if line[line.index(b"(") : end + 1] in _HELPERS:
            return True
        pid = int(line[end + 1 :].split()[1])
    return False


def _lock_limit(pid: int) -> float:
    with open(f"/proc/{pid}/limits", "rb") as file:
        return float(file.read().partition(b"Max file locks")[2].split()[1].replace(b"unlimited", b"inf"))


_OWN_LOCK_LIMIT = float("inf")
"""Read at the start: a server may lower that of this process to its own later (prlimit)."""
with suppress(OSError):
    _OWN_LOCK_LIMIT = _lock_limit(os.getpid())


# The start


def run(arguments: list[str]) -> int | None:
    """Relay standard input and output; the exit status, or None if the command line is to carry out `serve`."""
    options = read_options(arguments, os.environ)
    if options is None or not os.path.isfile(options.file):  # no other process can read a pipe again
        return None
    try:
        with open(options.file, "rb") as file:
            text = file.read()
    except OSError:
        return None  # the command line says why
    if _OWN.search(text) or not _is_text(os.path.realpath(options.file)):
        return None
    trail = read_trail(os.environ)
    if trail is not None and connect(socket_path(options.state, options.file)) is None:
        return None  # a server leaves no process behind
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os._exit(DONE))
    named = named_variables(text).union(PROGRAM_VARIABLES)

    def start() -> int:
        if trail is not None:  # as above; the host above starts us again
            raise _End(FAILED, "the Colonnade that served this one has ended")
        from host.relay_start import start_host

        return start_host(options.file, options.state, options.log_level, named)

    def first_answers() -> FirstAnswers:
        from host.relay_start import FirstAnswers

        return FirstAnswers(options.state, options.file, options.view)

    try:
        hello = first_line(options.file, text, os.environ, view=options.view)
        Relay(options, hello, _Side(0, 1), start, first_answers).run()
    except _End as end:
        if str(end):
            _tell_person(str(end))
        return end.code
    return DONE
