"""The folders of editors."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop.editors import EDITORS, extension_files, user_files


@pytest.mark.parametrize(("system", "folder"), [("linux", ".config"), ("darwin", "Library/Application Support")])
def test_files_of_editors(system: str, folder: str) -> None:
    def paths(files: object) -> list[str]:
        return [str(file.path(Path("/p"), Path("/u"), {}, system)) for file in files]  # type: ignore[attr-defined]

    assert paths(user_files("a.json", ("Code",))) == [
        f"/u/{folder}/Code/User/a.json",
        "/u/.vscode-server/data/User/a.json",
        "/u/.vscode-server-insiders/data/User/a.json",
    ]
    assert paths(extension_files("me.mine", "a.json"))[: len(EDITORS)] == [
        f"/u/{folder}/{editor}/User/globalStorage/me.mine/settings/a.json" for editor in EDITORS
    ]
