"""The folders of VS Code and of editors made from it: where their settings and the files of their extensions lie."""

from __future__ import annotations

from config.desktop.desktop_host import HostFile

EDITORS = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")
_LINUX = "~/.config"
_MACOS = "~/Library/Application Support"
_REMOTE = ("~/.vscode-server/data", "~/.vscode-server-insiders/data")


def user_files(path: str, editors: tuple[str, ...] = EDITORS) -> tuple[HostFile, ...]:
    """A file in the folder `User` of each of these editors, and of VS Code on a machine that it is connected to."""
    return (
        *(HostFile(f"{_LINUX}/{editor}/User/{path}", f"{_MACOS}/{editor}/User/{path}") for editor in editors),
        *(HostFile(f"{folder}/User/{path}") for folder in _REMOTE),
    )


def machine_files(path: str) -> tuple[HostFile, ...]:
    """A file in the folder `Machine` of VS Code on a machine that it is connected to."""
    return tuple(HostFile(f"{folder}/Machine/{path}") for folder in _REMOTE)


def extension_files(extension: str, name: str) -> tuple[HostFile, ...]:
    """The settings of an extension in each editor."""
    return user_files(f"globalStorage/{extension}/settings/{name}")
