"""`${env:NAME}`, `${env:NAME:-default}`, `${file:PATH}` and `${keyring:NAME}` in values, and the wrapper that
hides their values.

This file knows the forms, the environment it is given and the folder that paths start from. It does not know which
setting a value belongs to. A filled-in text is never searched for further `${...}`, and no message holds the text that
a variable or a file gave, only its name.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from config.problems import clip
from config.system_keyring import KeyringUnavailable, read_secret

MAX_SECRET_FILE_BYTES = 64 * 1024
"""Bytes of a file that `${file:PATH}` names, which may be any file."""
HIDDEN = "***"
CLIENT_FOLDER = "${client:folder}"
"""The whole value of a program's `cwd` that stands for the folder of the client. It is filled in when the program is
started."""

_ESCAPE = "$${"
_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ENV = re.compile(rf"env:(?P<name>{_NAME})(?::-(?P<default>.*))?", re.DOTALL)
_BARE = re.compile(rf"(?P<name>{_NAME})(?::-.*)?", re.DOTALL)
_KNOWN = "known are ${env:NAME}, ${env:NAME:-default}, ${file:PATH} and ${keyring:NAME}; write $${ for ${ itself"


class Secret:
    """Text that nobody sees by accident: `str`, `repr`, formats and dumps give `shown`, only `reveal()` the text.

    `shown` is `***` unless a part of the text may be seen, as the host of a URL may. `filled` are the parts that
    references gave: to redact them in texts that may repeat them. `kept` are those of them that nothing may repeat: a
    file or the keyring gave them, which keep secrets alone.
    """

    __slots__ = ("_shown", "_text", "filled", "kept")

    def __init__(
        self, text: str, shown: str = HIDDEN, filled: tuple[str, ...] = (), kept: tuple[str, ...] = ()
    ) -> None:
        self._text = text
        self._shown = shown
        self.filled = filled
        self.kept = kept

    def reveal(self) -> str:
        """The text itself. Hand it on to the process or the request it is for; never to a message."""
        return self._text

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"Secret({self._shown!r})"

    def __format__(self, spec: str) -> str:
        return format(self._shown, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled or copied to disk")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(cls, serialization=core_schema.to_string_ser_schema())


@dataclass(frozen=True, repr=False)
class Expanded:
    """A value after its references were filled in. `shown` has `***` in their places; `literal` if there were none.
    `filled`: the text that each of them gave; `kept`: those of files and the keyring; `is_complete`: no reference was
    left as it is written."""

    text: str
    shown: str
    literal: bool
    filled: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    is_complete: bool = True

    def __repr__(self) -> str:
        return f"Expanded({self.shown!r})"


class CannotExpandError(Exception):
    """A reference that cannot be filled in; the text says why and holds no value."""


def is_literal(raw: str) -> bool:
    """Whether a value holds no references."""
    return all(match[0] == _ESCAPE for match in _REFERENCE.finditer(raw))


def without_references(raw: str) -> tuple[str, list[str]]:
    """The literal text of a value, with `\\0N\\0` in the place of its reference number N, and the references."""
    references: list[str] = []

    def mark(match: re.Match[str]) -> str:
        if match[0] == _ESCAPE:
            return "${"
        references.append(match[0])
        return f"\0{len(references) - 1}\0"

    return _REFERENCE.sub(mark, raw.replace("\0", "\N{REPLACEMENT CHARACTER}")), references


def with_references(text: str, references: Sequence[str]) -> str:
    """The value of a literal text with these references in the place of its marks; see `without_references`."""
    literal = text.replace("${", "$${")
    return re.sub(r"\0(\d+)\0", lambda mark: references[int(mark[1])], literal)


def rebase(raw: str, folder: Path) -> str:
    """A value whose `${file:PATH}` start from a folder, so that it means the same anywhere."""

    def absolute(match: re.Match[str]) -> str:
        path = (match[1] or "").removeprefix("file:")
        if match[0] == _ESCAPE or path == match[1] or not match[2]:
            return match[0]
        return f"${{file:{folder / path}}}"

    return _REFERENCE.sub(absolute, raw)


def inputs_of(raw: str) -> list[str]:
    """The ids of the `${input:ID}` in a value."""
    found = (match[1] for match in _REFERENCE.finditer(raw) if match[0] != _ESCAPE)
    return [inside.removeprefix("input:") for inside in found if inside.startswith("input:")]


def with_inputs(raw: str, references: Mapping[str, str]) -> str:
    """A value with other references in the place of `${input:ID}`, by their ids."""

    def replace(match: re.Match[str]) -> str:
        inside = match[1] or ""
        return references.get(inside.removeprefix("input:"), match[0]) if inside.startswith("input:") else match[0]

    return _REFERENCE.sub(replace, raw)


def reads_environment(raw: str) -> bool:
    """Whether a value has a reference to an environment variable."""
    return any(_ENV.fullmatch(match[1] or "") for match in _REFERENCE.finditer(raw))


def variables_of(raw: str, *, with_default: bool = False) -> list[str]:
    """The names of the environment variables that a value needs: those of its references without a default, or of all
    its references."""
    found = (_ENV.fullmatch(match[1] or "") for match in _REFERENCE.finditer(raw))
    return [match["name"] for match in found if match is not None and (with_default or match["default"] is None)]


def default_of(reference: str) -> tuple[str, str]:
    """The variable of a reference and its default; two empty texts if it has none."""
    match = _ENV.fullmatch(reference.removeprefix("${").removesuffix("}"))
    return (match["name"], match["default"]) if match is not None and match["default"] else ("", "")


def variables_in(value: object, *, with_default: bool = False) -> set[str]:
    """The names of the environment variables that values and all that is in them need; see `variables_of`."""
    if isinstance(value, str):
        return set(variables_of(value, with_default=with_default))
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {name for each in below for name in variables_in(each, with_default=with_default)}


def kept_secrets_of(raw: str) -> list[str]:
    """The references of a value to the keyring and to files."""
    found = (match[0] for match in _REFERENCE.finditer(raw) if match[0] != _ESCAPE)
    return [each for each in found if each.startswith(("${keyring:", "${file:"))]


def mask(raw: str) -> str:
    """A value with `***` in the place of every reference: as it is written, whatever the references give."""
    return _REFERENCE.sub(lambda match: "${" if match[0] == _ESCAPE else HIDDEN, raw)


GivenAddress = tuple[str | None, int | None]
"""An IP address and a port that the command line gives; None where those of the file hold."""


@dataclass(frozen=True, repr=False)
class Expander:
    """Fills in references.

    `may_be_empty`: a file without a server is no mistake. `inputs` gives the values of `${input:ID}`, which a desktop
    host asks its user for, None where there is none; without `inputs`, the form is not known. References to the
    variables `may_be_unset` stay as they are written while these are not set. `stopped` are further servers of the
    file, of which nothing is known. `given_address` holds instead of `listen.address`."""

    environ: Mapping[str, str]
    folder: Path
    may_be_empty: bool = False
    inputs: Callable[[str], str | None] | None = None
    may_be_unset: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    given_address: GivenAddress = (None, None)

    def expand(self, raw: str) -> Expanded:
        """The value with every reference filled in, once. Raises `CannotExpandError` naming all that failed."""
        failed: list[str] = []
        filled: list[str] = []
        kept: list[str] = []

        def fill(match: re.Match[str]) -> str:
            if match[0] == _ESCAPE:
                return "${"
            try:
                filled.append(self._resolve(match[1], closed=bool(match[2])))
                if match[1].startswith(("file:", "keyring:")):
                    kept.append(filled[-1])
                return filled[-1]
            except CannotExpandError as error:
                failed.append(str(error))
                return ""

        text = _REFERENCE.sub(fill, raw)
        if failed:
            raise CannotExpandError("; ".join(failed))
        if "\0" in text:
            raise CannotExpandError("the value holds a NUL character")
        # The text may be a subclass of str, which says how it was written.
        is_complete = self.environ.keys() >= self.may_be_unset.intersection(variables_of(raw))
        return Expanded(str(text), mask(raw), is_literal(raw), tuple(filled), tuple(kept), is_complete)

    def _resolve(self, inside: str, *, closed: bool) -> str:
        if not closed:
            raise CannotExpandError("a ${ is never closed with }; write $${ for ${ itself")
        if inside.startswith("file:"):
            return _read_secret_file(inside.removeprefix("file:"), self.folder)
        if inside.startswith("keyring:"):
            return _read_keyring(inside.removeprefix("keyring:"))
        if inside.startswith("input:") and self.inputs is not None:
            return self._input(inside.removeprefix("input:"), self.inputs)
        if inside.startswith("client:"):
            raise CannotExpandError(
                f'${{client:...}} has one place and one form, cwd: "{CLIENT_FOLDER}" with nothing beside it; write that'
            )
        match = _ENV.fullmatch(inside)
        if match is None:
            raise CannotExpandError(_unknown_form(inside))
        return self._variable(match["name"], match["default"])

    def _input(self, id: str, inputs: Callable[[str], str | None]) -> str:
        value = inputs(id)
        if value is None:
            raise CannotExpandError(
                f"the input {clip(id)}, which its host asks for, was not given; start colonnade serve on a terminal"
            )
        return value

    def _variable(self, name: str, default: str | None) -> str:
        value = self.environ.get(name)
        if default is not None:
            return value or default
        if value is None and name in self.may_be_unset:
            return f"${{env:{name}}}"
        if value is None:
            raise CannotExpandError(
                f"the environment variable {name} is not set; set it or write ${{env:{name}:-default}}"
            )
        return value


def _unknown_form(inside: str) -> str:
    """The error for an unknown form. It repeats a name at most, since the rest may be a secret in the wrong place."""
    if bare := _BARE.fullmatch(inside):
        return f"${{{clip(bare['name'])}}} is not a known form; write ${{env:{clip(bare['name'])}}}"
    prefix, colon, _ = inside.partition(":")
    if colon and re.fullmatch(r"[A-Za-z]{1,20}", prefix) and prefix != "env":
        return f"${{{prefix}:...}} is not a known form; {_KNOWN}"
    return f"this ${{...}} is not a known form; {_KNOWN}"


def _read_keyring(name: str) -> str:
    if not name:
        raise CannotExpandError("${keyring:} names no secret")
    reference = f"${{keyring:{clip(name)}}}"
    try:
        secret = read_secret(name)
    except KeyringUnavailable as problem:
        raise CannotExpandError(f"{reference} cannot be read: {problem}") from None
    if secret is None:
        raise CannotExpandError(f"{reference} is not in the keyring; store it with: keyring set colonnade {clip(name)}")
    return secret


def _read_secret_file(name: str, folder: Path) -> str:
    """The text of a small regular file without one newline at its end. A pipe is not waited for: it is refused."""
    reference = f"${{file:{clip(name)}}}"
    if not name:
        raise CannotExpandError("${file:} names no file")
    try:
        handle = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise CannotExpandError(f"{reference} is not a regular file")
            data = file.read(MAX_SECRET_FILE_BYTES + 1)
    except OSError as error:
        what = "is not a regular file" if error.errno in (errno.EISDIR, errno.ENXIO) else "cannot be read"
        raise CannotExpandError(f"{reference} {what}: {error.strerror or type(error).__name__}") from None
    except ValueError:
        raise CannotExpandError("a ${file:...} holds a NUL character in its path") from None
    if len(data) > MAX_SECRET_FILE_BYTES:
        raise CannotExpandError(f"{reference} is larger than 64 KiB")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise CannotExpandError(f"{reference} is not UTF-8") from None
    if text.endswith("\r\n"):
        return text[:-2]
    return text.removesuffix("\n")
