"""A file of the same user that is replaced whole or not at all: that of another program, or a configuration of ours.

It is replaced only if its content is still the one that was read; then its mode, its group and the links that lead to
it stay. A program that writes in the instant between that look and the replacement loses what it wrote.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from host.storage.directory import sync_folder

MAX_BYTES = 32 * 1024 * 1024
"""Bytes of a file that is read to be replaced."""
_MAX_LINKS = 40
"""As many as the system itself follows."""
_REPOSITORY = (".git", ".hg", ".svn", ".jj")


class CannotReplace(Exception):
    """The file cannot be read or replaced. The sentence says why, and what to do."""


class ForeignFile(Struct, frozen=True):
    """A file as it was read. `data` is None if there is none; `real` is where links lead, and `folders` are those that
    have to be made for it, the innermost first."""

    path: Path
    real: Path
    data: bytes | None
    mode: int = 0o600
    group: int = -1
    folders: tuple[Path, ...] = ()

    def replace(self, data: bytes) -> None:
        """Write another content.

        Raises:
            CannotReplace: the content is another one by now, or the file cannot be written. It is as it was then.
        """
        new = self._new
        try:
            self.real.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)  # what a killed process left
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if self.group >= 0:
                    with suppress(PermissionError):  # the user is not, or not any more, in that group
                        os.fchown(descriptor, -1, self.group)
                os.fchmod(descriptor, self.mode)
                os.fsync(descriptor)
            self._check_unchanged()
            if self.data is None:
                os.link(new, self.real)  # never over a file that came in between
                new.unlink()
            else:
                os.replace(new, self.real)
            sync_folder(self.real.parent)
        except FileExistsError:
            self.clean_up()
            raise self._changed() from None
        except OSError as problem:
            self.clean_up()
            raise CannotReplace(f"{self.path} cannot be written: {problem.strerror}") from problem
        except CannotReplace:
            self.clean_up()
            raise

    def remove(self, folders: Sequence[Path]) -> None:
        """Remove the file, and those of the folders that are empty then.

        Raises:
            CannotReplace: the content is another one by now, or the file cannot be removed.
        """
        try:
            self._check_unchanged()
            self.real.unlink(missing_ok=True)
            sync_folder(self.real.parent)
        except OSError as problem:
            raise CannotReplace(f"{self.path} cannot be removed: {problem.strerror}") from problem
        _remove_empty(folders)

    def clean_up(self) -> None:
        """Remove what an attempt to replace it left, perhaps of a process that was killed."""
        with suppress(OSError):  # it changes nothing for anybody, and the next attempt removes it
            self._new.unlink(missing_ok=True)
        _remove_empty(self.folders)

    def _check_unchanged(self) -> None:
        again = open_foreign(self.path)
        if (again.real, again.data) != (self.real, self.data):
            raise self._changed()

    def _changed(self) -> CannotReplace:
        return CannotReplace(f"{self.path} was changed by another program meanwhile; nothing was written, try again")

    @property
    def _new(self) -> Path:
        """The file that becomes this one when it is replaced."""
        return self.real.with_name(f".{self.real.name}.colonnade")


def open_foreign(path: Path) -> ForeignFile:
    """Read a file, which may not be there yet.

    Raises:
        CannotReplace: it could not be replaced: it is no regular file, read-only, or another user's; or a link on the
            way to it is not to be written through (`follow_links`).
    """
    real = follow_links(path)
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        _check_folder(path, real.parent)
        return ForeignFile(path, real, None, folders=tuple(_missing_folders(real.parent)))
    except OSError as problem:
        if problem.errno in (errno.ENXIO, errno.ELOOP):
            raise CannotReplace(f"{path} is not a regular file") from None
        raise CannotReplace(f"{path} cannot be read: {problem.strerror}") from None
    try:
        found = os.fstat(descriptor)
        _check(path, found)
        _check_folder(path, real.parent)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise CannotReplace(f"{path} is larger than {MAX_BYTES // 1024**2} MiB")
    return ForeignFile(path, real, data, stat.S_IMODE(found.st_mode), found.st_gid)


def follow_links(path: Path) -> Path:
    """The place that the links on the way to a path lead to. It is followed here, and no part of it is looked up again:
    so what is checked is what is used.

    A link is refused unless it is this user's own. Not the user's own are: a link of another user (root apart), whose
    owner decides where it leads; and a link of a project that leads out of it, since a project may have been cloned or
    unpacked, and its links are then its author's. A project is a repository; around a link that is in none, the working
    folder. But neither the home folder nor one above it is a project, nor a folder in the user's `~/.config`, where
    links to the user's own files are usual. Nothing is created through a link to nothing.

    Raises:
        CannotReplace: such a link is there.
    """
    absolute = path.absolute()
    place, rest = Path(absolute.root), list(reversed(absolute.parts[1:]))
    own_words, links, last_link = len(rest), 0, absolute
    while rest:
        is_own_word = len(rest) <= own_words  # else it is a part of what a link says
        own_words = min(own_words, len(rest) - 1)
        word = rest.pop()
        if word == "..":
            place = place.parent
            continue
        link = place / word
        try:
            found = link.lstat()
        except OSError:  # nothing is there; but after `missing/..` there may be again
            if not is_own_word:
                raise CannotReplace(
                    f"{path} cannot be made: {last_link} is a link to {os.readlink(last_link)}, which is not there; "
                    "make that yourself, or remove the link"
                ) from None
            place = link
            continue
        if not stat.S_ISLNK(found.st_mode):
            place = link
            continue
        links += 1
        if links > _MAX_LINKS:
            raise CannotReplace(f"{path} is not a regular file: its links lead to one another")
        if found.st_uid not in (0, os.geteuid()):
            raise CannotReplace(f"{path}: {link} is a link of another user ({found.st_uid}); nothing is written there")
        if is_own_word:
            _check_stays(path, link)
            last_link = link
        target = Path(os.readlink(link))
        rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        place = Path(target.root) if target.is_absolute() else place
    return place


def _check_stays(path: Path, link: Path) -> None:
    target = Path(os.path.realpath(link))
    for project in _projects_of(link):
        if not target.is_relative_to(project):
            raise CannotReplace(
                f"{path}: {link} is a link out of the project {project}, to {target}, and may be its author's; name "
                f"{target} itself if it is what you want to change, or remove the link"
            )


def _projects_of(link: Path) -> list[Path]:
    """The folders that a link must not lead out of."""
    home = Path.home().resolve()
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config").resolve()

    def is_project(folder: Path) -> bool:
        return not (home.is_relative_to(folder) or folder.is_relative_to(settings))

    found = [each for each in link.parents if is_project(each) and any((each / mark).exists() for mark in _REPOSITORY)]
    if not found:
        with suppress(FileNotFoundError):  # the working folder was removed
            found = [each for each in (Path.cwd(),) if is_project(each) and link.is_relative_to(each)]
    return found


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise CannotReplace(f"{path} is not a regular file")
    if found.st_uid != os.geteuid():
        raise CannotReplace(f"{path} belongs to another user ({found.st_uid}); it is left as it is")
    if not found.st_mode & stat.S_IWUSR:
        raise CannotReplace(f"{path} is read-only; make it writable (chmod u+w) or edit it by hand")
    if found.st_nlink > 1:
        raise CannotReplace(
            f"{path} has {found.st_nlink} names (hard links), of which one would change; edit it by hand"
        )


def _check_folder(path: Path, folder: Path) -> None:
    while not folder.exists():
        folder = folder.parent
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise CannotReplace(f"{path} cannot be made: {folder} is no folder")
    is_locked = found.st_uid == os.geteuid() and not found.st_mode & stat.S_IWUSR  # root could write all the same
    if is_locked or not os.access(folder, os.W_OK | os.X_OK):
        raise CannotReplace(f"the folder {folder} is read-only; make it writable, or edit {path.name} by hand")


def _missing_folders(folder: Path) -> list[Path]:
    """The folders that do not exist, the innermost first."""
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it is not empty, or gone
            folder.rmdir()
