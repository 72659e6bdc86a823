"""The configuration file while a command changes it: servers are put in and taken out, and every other byte stays.

A new server is put behind the others and the comments that stand there, so that those keep their order and no comment
changes its neighbour. The file is replaced whole, and only if nobody changed it meanwhile; its mode and the links that
lead to it stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import indent

from config.desktop.foreign_files import refusal
from config.desktop.hosts import recognize
from config.desktop.importing.text import NEW_FILE
from config.document import Document, Plain
from config.edit import BYTE_ORDER_MARK, CannotEdit, append, cut
from config.problems import ConfigError, clip, did_you_mean
from config.read import read
from config.yaml_text import entries
from host.cli.exit_codes import WRONG, CommandFailed
from host.storage.foreign_file import CannotReplace, open_foreign


class OwnFile:
    """A configuration file of ours that may not be there yet. `shown` is its path for messages.

    Raises:
        CommandFailed: it cannot be read or replaced, or is the file of a desktop host.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_foreign(path)
        except CannotReplace as problem:
            raise CommandFailed(str(problem), WRONG) from None
        data = self._file.data
        self.exists = data is not None
        self.document = Document(str(path))
        self._mark, self._text = "", ""
        if data is None:
            return
        try:
            self.document = read(path, data=data, may_be_blank=True)
            if self.document.problems:
                raise ConfigError(self.document.problems)
        except ConfigError as problem:
            raise CommandFailed(str(problem), WRONG) from None
        if (host := recognize(path, self.document.root)) is not None:
            raise CommandFailed(
                f"{path} is a {host.title} file, which is left to its host; colonnade import {path} makes a "
                "configuration of it",
                WRONG,
            )
        if reason := refusal(self.document.root):
            raise CommandFailed(f"{path}: {reason}", WRONG)
        text = data.decode()
        if text.startswith(BYTE_ORDER_MARK):
            self._mark, text = BYTE_ORDER_MARK, text.removeprefix(BYTE_ORDER_MARK)
        self._text = text

    @property
    def servers(self) -> Mapping[str, object]:
        """The servers as they are written, by id."""
        servers = self.document.root.get("servers")
        return servers if isinstance(servers, dict) else {}

    @property
    def defaults(self) -> Mapping[str, object]:
        """The keys under `defaults`."""
        defaults = self.document.root.get("defaults")
        return defaults if isinstance(defaults, dict) else {}

    def default(self, key: str) -> object:
        """The value under `defaults` for a key of servers; None if there is none."""
        return self.defaults.get(key)

    def put(self, id: str, value: Mapping[str, object], lines: str | None = None) -> None:
        """Put a server in. `lines` are its text in YAML, if that holds comments.

        Raises:
            CommandFailed: there is such a server, or the file cannot be changed.
        """
        if id in self.servers:
            raise CommandFailed(f"{self.path} has a server {clip(id)} already; remove it first", WRONG)
        lines = lines or f"{id}:\n{entries(value, '  ')}"
        if not self.exists and not self._text:
            self._text = f"{NEW_FILE}servers:\n{indent(lines, '  ')}"
            return
        try:
            self._text = append(self.path, self._text, ("servers", id), _json_map(value), lines)
        except CannotEdit as problem:
            raise self._cannot(problem) from None

    def remove(self, id: str) -> None:
        """Take a server out.

        Raises:
            CommandFailed: there is none, or it is the only one, or a view names it, or the file cannot be changed.
        """
        if id not in self.servers:
            meant = did_you_mean(id, self.servers)
            known = ", ".join(map(clip, self.servers)) or "none"
            raise CommandFailed(f"{self.path} has no server {clip(id)}; {meant or f'its servers: {known}'}")
        if len(self.servers) == 1:
            raise CommandFailed(
                f"{clip(id)} is the only server of {self.path}, which needs one; disable it, or delete the file"
            )
        if named := self._views_with(id):
            raise CommandFailed(f"{self.path} names {clip(id)} at {' and '.join(named)} too; remove it there first")
        try:
            self._text = cut(self.path, self._text, ("servers", id)).rest
        except CannotEdit as problem:
            raise self._cannot(problem) from None

    def _views_with(self, id: str) -> list[str]:
        """The places in views that name a server."""
        views = self.document.root.get("views")
        return [
            f"views.{clip(name)}.{key}"
            for name, view in (views.items() if isinstance(views, dict) else ())
            for key in ("servers", "overrides")
            if isinstance(view, dict) and isinstance(view.get(key), dict) and id in view[key]
        ]

    def take_out(self, lines: str) -> None:
        """Take out lines of comments that the file has."""
        self._text = self._text.replace(lines, "", 1)

    def begin(self, text: str) -> None:
        """Give a file that is not there yet its content."""
        assert not self.exists
        self._text = text

    def write(self) -> None:
        """Replace the file; its folder is made if it is not there.

        Raises:
            CommandFailed: somebody changed it meanwhile, or it cannot be written.
        """
        self.make_folder()
        try:
            self._file.replace(self.data)
        except CannotReplace as problem:
            raise CommandFailed(str(problem), WRONG) from None

    def make_folder(self) -> None:
        """Make the folder of the file, for the user alone, if it is not there. Servers are tried in it.

        Raises:
            CommandFailed: it cannot be made.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise CommandFailed(f"{self.path} cannot be written: {problem.strerror}", WRONG) from None

    @property
    def text(self) -> str:
        """The content with the changes."""
        return self._text

    @property
    def data(self) -> bytes:
        """The bytes that `write` writes."""
        return (self._mark + self._text).encode()

    def _cannot(self, problem: CannotEdit) -> CommandFailed:
        return CommandFailed(f"{self.path} cannot be changed: {problem}", WRONG)


def _json_map(value: Mapping[str, object]) -> dict[str, object]:
    return {name: _json_value(below) for name, below in value.items()}


def _json_value(value: object) -> object:
    """A value as JSON and TOML have it: what is written without quotes is a truth or a number there."""
    if isinstance(value, dict):
        return _json_map(value)
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, Plain):
        truths: dict[str, object] = {"true": True, "false": False}
        return truths.get(value, int(value) if value.isdecimal() else str(value))
    return value
