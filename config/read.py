"""The bytes of a configuration file as a document: YAML, JSON or TOML.

A file whose name ends in `.toml` is TOML. A file whose first characters are `{` and then `"` or `}` is JSON, where tabs
are white space and comments are permitted. Any other is YAML.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from config.document import Builder, Document, Plain, is_null, kind_of
from config.json_text import Wanted, is_blank, json_tokens, looks_like_json, parse
from config.problems import ConfigError, Mark, printable
from config.yaml import YamlEvents

MAX_FILE_BYTES = 1024 * 1024
"""Bytes of a file of which all is read into values."""
MAX_JSON_BYTES = 32 * 1024 * 1024
"""Desktop hosts keep other things in the same file, in JSON always."""
_ARCHIVE = b"PK\x03\x04"
_SHAPE_DEPTH = 4
"""The depth of the values by which the host of a file in YAML is recognized."""

WantedOf = Callable[[Mapping[str, object]], Wanted | None]
"""Which values of a file to read, by all of its values, or by those near the top in YAML; None for all, and for the
strictness of our own files. TOML is always read as a whole."""


def read(
    path: Path,
    wanted_of: WantedOf = lambda root: None,
    data: bytes | None = None,
    *,
    may_be_blank: bool = False,
    key: str = "servers",
) -> Document:
    """Read and parse a file of at most 1 MiB, or 32 MiB of JSON of which not all is wanted. `data` is its content, if
    that was read before. A file of white space and comments is an empty map if it `may_be_blank`. The `key` of
    the servers is for messages.

    Raises:
        ConfigError: there is no map to look at.
    """
    document = Document(printable(str(path)))
    data = load_bytes(path, document) if data is None else data
    if data.startswith(_ARCHIVE):
        raise document.fatal(
            Mark(1, 1),
            "this is an archive, as Claude extensions (.mcpb, .dxt) are; unpack it, and add its server with colonnade "
            "add NAME -- COMMAND ARGUMENTS: its manifest.json has both under server.mcp_config",
        )
    document.digest = hashlib.sha256(data).hexdigest()
    text = decode(data, document)
    if text.lstrip().startswith("```"):
        raise document.fatal(Mark(1, 1), "this is a piece of Markdown; take out the lines with ```")
    if path.suffix == ".toml":
        from config.toml import read_toml

        root: object = read_toml(text, document)
    elif looks_like_json(text):
        text, values = parse(text, document)
        wanted = wanted_of(values)
        if wanted is None:
            _check_size(data, document)
        root = Builder(json_tokens(text, document, wanted), document).build()
    elif is_blank(text):
        root = Plain("")
    else:
        _check_size(data, document)
        root = _read_yaml(text, document, wanted_of)
    if is_null(root):
        if may_be_blank:
            return document
        raise document.fatal(Mark(1, 1), f'the file is empty; it needs at least the key "{key}"')
    if not isinstance(root, dict):
        hint = '; a list of servers stands under "mcpServers"' if isinstance(root, list) else ""
        what = f'expected a map with the key "{key}", found {kind_of(root)}{hint}'
        raise document.fatal(document.places[()].value, what)
    document.root = root
    return document


def _read_yaml(text: str, document: Document, wanted_of: WantedOf) -> object:
    events = YamlEvents(text, document)
    draft = Document(document.file)
    try:
        values = Builder(events.wanted_tokens(draft, lambda path: len(path) < _SHAPE_DEPTH), draft).build()
    except ConfigError:
        values = {}  # the same error is raised below, with those before it
    wanted = wanted_of(values if isinstance(values, dict) else {})
    tokens = events.tokens(document) if wanted is None else events.wanted_tokens(document, wanted)
    return Builder(tokens, document).build()


def load_bytes(path: Path, document: Document) -> bytes:
    """The content of a file.

    Raises:
        ConfigError: it cannot be read, or is larger than 32 MiB (1 MiB if it does not begin as JSON).
    """
    try:
        with _open_named(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES and looks_like_json(data[:4096].decode(errors="replace")):
                data += file.read(MAX_JSON_BYTES + 1 - len(data))
                if len(data) <= MAX_JSON_BYTES:
                    return data
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except ValueError:
        reason = "the path holds a NUL character"
    else:
        _check_size(data, document)
        return data
    raise document.fatal(Mark(1, 1), f"the file cannot be read: {reason}")


def _open_named(path: Path) -> BinaryIO:
    """Open a file, or a pipe or a terminal of this process if the path itself is one, as in `check <(make-config)`."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/self/fd/")):
        return path.open("rb")
    return open_regular(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. A pipe is not waited for, and a device not read: others may have put either in its place.

    Raises:
        OSError: it cannot be opened, or is no regular file (EINVAL).
    """
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file")
    return file


def read_bytes(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The content of a regular file of at most so many bytes.

    Raises:
        OSError: it cannot be read, is no regular file (EINVAL), or is larger (EFBIG).
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most // 1024**2} MiB")
    return data


def read_text(path: Path) -> str:
    """The text of a regular file of at most 1 MiB, with LF at the end of lines.

    Raises:
        OSError: it cannot be read, or is no such file.
        ValueError: it is not UTF-8.
    """
    return read_bytes(path, MAX_FILE_BYTES).decode("utf-8-sig").replace("\r\n", "\n")


def _check_size(data: bytes, document: Document) -> None:
    if len(data) > MAX_FILE_BYTES:
        limit = MAX_JSON_BYTES if len(data) > MAX_JSON_BYTES else MAX_FILE_BYTES
        raise document.fatal(Mark(1, 1), f"the file cannot be read: larger than {limit // 1024**2} MiB")


def decode(data: bytes, document: Document) -> str:
    """The text of a file in UTF-8, without a byte order mark and with LF at the end of lines.

    Raises:
        ConfigError: it is not UTF-8.
    """
    failed: ConfigError
    try:
        return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        failed = document.fatal(mark, "this is not UTF-8; save the file as UTF-8")
    raise failed
