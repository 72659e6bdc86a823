"""The parsers that read bytes of outsiders, each with the promises that it keeps for every input.

A target takes the bytes and returns; it raises if the parser raises what its contract does not name, or if a promise is
broken: what a cut of the input gives, what is read again after being written, which URIs a rule denies.
"""

from __future__ import annotations

import json
import os.path
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Raw

import config
from config import Consent, KindConsent, Rule, Trust, Verdict
from host.jsonrpc.glance import read_outlined
from host.jsonrpc.messages import Malformed, read, read_each, receive, write
from host.jsonrpc.raw import items, members, string, value
from host.names import template_matches
from host.policy.fingerprint import difference, fingerprint, pretty
from host.policy.rules import Rules
from host.protocol.links import without_page
from host.protocol.methods import Kind
from host.protocol.param_headers import param_headers_of
from host.sanitize import sanitize, sanitize_json, visible
from host.wire.framing import LineTooLong, MessageSplitter
from host.wire.head import MAX_HEAD, check_head, head_end
from host.wire.proxy_head import InvalidProxyHead, read_proxy_head
from host.wire.sse import EventParser, EventTooLong, SseEvent
from tests.fuzz import requests, responses

REFUSING_STATUSES = {400, 426, 431, 501, 505}
_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def json_messages(data: bytes) -> None:
    """Messages of clients and of servers. A strict reader accepts only what Python's own parser reads as well."""
    read_each(data, batches=True)
    assert read_outlined(data) in (None, read(data))
    received = receive(data)
    for found in [received.message, *(received.batch or ())]:
        if isinstance(found, Malformed):
            continue
        again = read(write(found))
        assert type(again) is type(found), f"{found!r} is written as {again!r}"
        assert _payload(again) == _payload(found)
    for reader in (members, items, string, value):
        try:
            reader(data)
        except ValueError:
            continue


def _payload(message: object) -> list[object]:
    parts = [getattr(message, name, None) for name in ("id", "method", "params", "result")]
    return [json.loads(bytes(part)) if isinstance(part, Raw) else part for part in parts]


def event_stream(data: bytes) -> None:
    """An event stream gives the same events however it is cut."""
    cut = data[0] % 7 + 1 if data else 1
    assert _events(data, len(data) or 1) == _events(data, cut)


def _events(data: bytes, step: int) -> tuple[list[SseEvent | Malformed], str, float | None]:
    parser = EventParser(limit=512)
    found: list[SseEvent | Malformed] = []
    with suppress(EventTooLong):
        for at in range(0, len(data), step):
            found.extend(each for each in parser.feed(data[at : at + step]) if each is not None)
    return found, parser.last_id, parser.retry


def stdio_lines(data: bytes) -> None:
    """Messages are the same however their lines are cut, and so is the fate of those over the limit."""
    cut = data[0] % 7 + 1 if data else 1
    assert _messages(data, len(data) or 1) == _messages(data, cut)


def _messages(data: bytes, step: int) -> list[bytes | Malformed]:
    splitter = MessageSplitter(limit=512)
    found: list[bytes | Malformed] = []
    try:
        for at in range(0, len(data), step):
            found.extend(each for each in splitter.feed(data[at : at + step]) if each is not None)
        if splitter.discarding is None:
            found.append(splitter.rest())
    except LineTooLong:
        found.append(b"too long")
    return found


def http_head(data: bytes) -> None:
    """A head is refused with a status and a sentence, or it has one Host and one way to know its length."""
    end = head_end(data)
    head = None if end is None else data[:end]
    if head is None:
        return
    refusal = check_head(head)
    if refusal is not None:
        assert refusal.status in REFUSING_STATUSES
        assert refusal.why.isascii()
        return
    assert len(head) <= MAX_HEAD
    names = [line.partition(b":")[0].lower() for line in head[:-4].split(b"\r\n")[1:]]
    assert names.count(b"host") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1 + names.count(b"transfer-encoding")
    assert b"upgrade" not in names


def http_request(data: bytes) -> None:
    """A request is refused if h11 refuses it, and otherwise read as h11 reads it."""
    requests.compare(data)


def configuration(data: bytes) -> None:
    """A configuration file is read, or refused with sentences of one line that repeat no secret."""
    secret = "s3cr3t-v4lue-0f-th3-t3st"
    name = "file.json" if data.lstrip()[:1] == b"{" else "file.yaml"
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        file = Path(folder, name)
        file.write_bytes(data)
        for sentence in _problems(file, {"SECRET": secret}):
            assert "\n" not in sentence
            assert secret not in sentence


def _problems(file: Path, environ: dict[str, str]) -> list[str]:
    try:
        config.load(file, environ)
    except config.ConfigError as error:
        return [str(problem) for problem in error.problems]
    return []


_FILES = Rules(Consent(resources=KindConsent(allow=(Rule("file:///srv/**"),), deny=(Rule("**/.env"),))), Trust.STANDARD)


def uris(data: bytes) -> None:
    """A URI that Python's documented functions map to a denied file is denied, in every spelling."""
    text = data.decode(errors="replace")
    template, _, uri = text.rpartition("\n")
    template_matches(template, uri)
    verdict = _FILES.evaluate(Kind.RESOURCE, uri).verdict
    if not _FILES.is_visible(Kind.RESOURCE, uri):
        assert verdict is Verdict.DENY
    try:
        path = os.path.normpath(unquote(urlsplit(uri).path))
    except ValueError:
        return
    # A pattern for all below a folder includes the folder itself.
    if path.endswith("/.env") or not f"{path}/".startswith("/srv/"):
        assert verdict is Verdict.DENY, f"{uri!r} reads {path!r}"


def definitions(data: bytes) -> None:
    """A definition has one fingerprint whatever blanks stand around it, and what shows or cleans it takes any bytes."""
    pretty(data)
    difference(data[:8] + data[16:], data)
    try:
        data.decode()
        found = members(data)
        json.loads(data)
    except (ValueError, RecursionError):
        return
    if fingerprint(data) == fingerprint(data + b" "):  # it has a canonical form
        assert fingerprint(json.dumps(json.loads(data), indent=1).encode()) == fingerprint(data)
    without_page(Raw(data))
    cleaned = sanitize_json(data)
    assert len(members(cleaned)) == len(found)
    assert sanitize_json(cleaned) == cleaned
    for name in found:
        assert sanitize(visible(name)) == visible(name)
    try:
        param_headers_of(found.get("inputSchema", Raw(b"{}")))
    except ValueError:
        return


def proxy_head(data: bytes) -> None:
    """A head for the proxy of a confined program leads to a host in one form, and what is passed on asks for one answer
    of it."""
    end = head_end(data)
    try:
        found = read_proxy_head(data[:end])
    except InvalidProxyHead:
        return
    assert 0 < found.port < 65536
    assert found.host == found.host.lower()
    assert not {*found.host} & {*" /@%*[]\r\n"}, found.host
    if found.passed_on is not None:
        line, *fields = found.passed_on.split(b"\r\n")
        assert line.split(b" ")[1].startswith(b"/"), line
        named = [each.partition(b":")[0].strip().lower() for each in fields]
        assert named.count(b"connection") == 1, fields
        assert b"proxy-authorization" not in named, fields


TARGETS: dict[str, Callable[[bytes], None]] = {
    "json": json_messages,
    "sse": event_stream,
    "lines": stdio_lines,
    "head": http_head,
    "responses": responses.compare,
    "proxy": proxy_head,
    "request": http_request,
    "config": configuration,
    "uris": uris,
    "definitions": definitions,
}
"""By the name of their folder in `corpus/`."""
