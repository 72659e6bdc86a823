"""The results of `call`, `read` and `prompt` as a person reads them. Content that is no text goes into files."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from host.cli.terminal import printable
from host.storage.foreign_file import CannotReplace, follow_links

LONGEST_STEM = 80
_EXTENSIONS = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
    "audio/wav": ".wav",
    "audio/x-wav": ".wav",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "application/pdf": ".pdf",
}
"""For types to which systems give different endings, or none."""


class ResultPrinter:
    """Prints content on standard output and writes content that is no text into new files of a folder.

    Args:
        stem: the name of a file, without its ending. A server may only add to it: a name of its choice could be one
            that other programs of the person look for.

    Attributes:
        is_whole: whether everything could be shown or written. What could not is said on standard error.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        self._folder = folder
        self._stem = stem
        self.is_whole = True

    def show_tool_result(self, result: Mapping[str, Any]) -> None:
        content = _items(result, "content")
        for block in content:
            self._show_block(block)
        if not content and "structuredContent" in result:
            print(printable(json.dumps(result["structuredContent"], indent=2, ensure_ascii=False), lines=True))

    def show_contents(self, result: Mapping[str, Any]) -> None:
        """Show what reading a resource gave."""
        for contents in _items(result, "contents"):
            self._show_contents(contents, self._stem)

    def show_prompt(self, result: Mapping[str, Any]) -> None:
        for message in _items(result, "messages"):
            print(f"{printable(str(message.get('role', '')))}:")
            content = message.get("content")
            for block in content if isinstance(content, list) else [content]:
                self._show_block(block)

    def _show_block(self, block: object) -> None:
        match block:
            case {"type": "text", "text": str(text)}:
                print(printable(text, lines=True))
            case {"type": "image" | "audio", "data": str(data), **others}:
                self._save(data, str(others.get("mimeType", "")), self._stem)
            case {"type": "resource", "resource": dict(contents)}:
                self._show_contents(contents, f"{self._stem}-{_last_part(str(contents.get('uri', '')))}")
            case {"type": "resource_link", "uri": str(uri), **others}:
                print(f"{printable(str(others.get('title') or others.get('name') or 'resource'))}: {printable(uri)}")
            case _:
                print(printable(json.dumps(block, ensure_ascii=False)))

    def _show_contents(self, contents: Mapping[str, Any], stem: str) -> None:
        match contents:
            case {"text": str(text)}:
                print(printable(text, lines=True))
            case {"blob": str(data)}:
                self._save(data, str(contents.get("mimeType", "")), stem)
            case _:
                print(printable(json.dumps(contents, ensure_ascii=False)))

    def _save(self, data: str, mime: str, stem: str) -> None:
        kind = printable(mime) or "content without a type"
        try:
            # Line ends and blanks are allowed in it: some servers wrap base64.
            content = base64.b64decode(re.sub(r"\s+", "", data), validate=True)
            path = write_new_file(self._folder, file_name(stem, mime), content)
        except binascii.Error:
            self._fail(f"{kind}: it is not base64, so it was not written")
        except CannotReplace as problem:
            self._fail(f"{kind}: {problem} (--output)")
        except OSError as problem:
            self._fail(f"{kind}: it cannot be written into {self._folder} (--output): {problem.strerror}")
        else:
            print(f"{path} ({kind}, {len(content):,} bytes)")

    def _fail(self, why: str) -> None:
        print(f"colonnade: {why}", file=sys.stderr)
        self.is_whole = False


def file_name(name: str, mime: str) -> str:
    """A name for a file with content of this type: plain characters, no path, not hidden. `name` may be a URI, whose
    last part then counts."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", _last_part(name)).strip("._-")[-LONGEST_STEM:].lstrip("._-") or "content"
    plain = mime.partition(";")[0].strip().lower()
    is_any = plain in ("", "application/octet-stream")
    extension = "" if is_any else _EXTENSIONS.get(plain) or mimetypes.guess_extension(plain) or ""
    if Path(stem).suffix and (not extension or mimetypes.guess_type(stem)[0] == plain):
        return stem
    return stem + (extension or ".bin")


def _last_part(uri: str) -> str:
    return re.split(r"[?#]", uri)[0].rstrip("/").rpartition("/")[2]


def write_new_file(folder: Path, name: str, content: bytes) -> Path:
    """Write a file that was not there before, with a number in its name if that is taken; its path.

    Raises:
        CannotReplace: a link on the way to the folder is not the user's own.
        OSError: it cannot be written.
    """
    for path in _numbered(follow_links(folder) / name):
        try:
            with path.open("xb") as file:  # follows no link and replaces no file
                file.write(content)
        except FileExistsError:
            continue
        return folder / path.name
    raise AssertionError("numbers do not end")


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in count(2):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def _items(result: Mapping[str, Any], member: str) -> list[Any]:
    found = result.get(member)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
