"""Files of other programs: replaced whole, or not at all."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from config.desktop.connecting import connected, given_back
from config.desktop.entry_form import ENTRY_FORMS
from config.edit import values
from host.storage.connections import Connections, Record
from host.storage.directory import State, open_state
from host.storage.foreign_file import CannotReplace, open_foreign


def test_mode_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "mcp.json"
    link.symlink_to("dotfiles/mcp.json")
    file = open_foreign(link)
    assert (file.data, file.real) == (b"old", real)
    file.replace(b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert os.listdir(real.parent) == ["mcp.json"]


def test_a_new_file_and_its_folders_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "mcp.json"
    file = open_foreign(path)
    assert file.data is None
    file.replace(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    open_foreign(path).remove(file.folders)
    assert os.listdir(tmp_path) == []


def test_folders_that_are_used_by_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "a" / "mcp.json"
    file = open_foreign(path)
    file.replace(b"new")
    (tmp_path / "a" / "other").touch()
    open_foreign(path).remove(file.folders)
    assert os.listdir(tmp_path / "a") == ["other"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, with a project `home/project` as the working folder."""
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / ".config").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home / "project")
    return home


def content(folder: Path) -> dict[str, str]:
    """The regular files below a folder, with what is in them."""
    return {
        str(each.relative_to(folder)): each.read_text()
        for each in folder.rglob("*")
        if each.is_file() and not each.is_symlink()
    }


@pytest.mark.parametrize("target", ["real.json", "missing/real.json", "/nowhere-at-all/real.json", "../../real.json"])
@pytest.mark.parametrize("link", ["mcp.json", "folder", "folder/deeper/mcp.json"])
def test_nothing_is_made_through_a_link_to_nothing(target: str, link: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    place = tmp_path / "a" / link
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    path = place if link.endswith(".json") else place / "mcp.json"
    with pytest.raises(CannotReplace, match=r"is a link to .*, which is not there; make that yourself"):
        open_foreign(path)
    assert content(tmp_path) == {}


def test_a_link_that_is_put_there_in_between_is_not_written_through(tmp_path: Path) -> None:
    file = open_foreign(tmp_path / "folder" / "mcp.json")
    (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotReplace):
        file.replace(b"new")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(CannotReplace):
        file.replace(b"new")
    assert content(tmp_path) == {}


@pytest.mark.parametrize("mark", [".git", ""], ids=["a repository elsewhere", "the working folder"])
@pytest.mark.parametrize(("link", "target"), [("mcp.json", "{home}/rc.json"), ("sub", "{home}"), ("sub", "../..")])
def test_a_link_that_leads_out_of_a_project_is_not_written_through(
    mark: str, link: str, target: str, home: Path
) -> None:
    project = home / ("work/cloned" if mark else "project")
    (project / mark).mkdir(parents=True, exist_ok=True)
    (home / "rc.json").write_text("the user's")
    (project / link).symlink_to(target.format(home=home))
    path = project / link if link.endswith(".json") else project / link / "rc.json"
    before = content(home)
    with pytest.raises(CannotReplace, match=r"is a link out of the project .* may be its author's"):
        open_foreign(path)
    assert content(home) == before


def test_a_project_may_have_links_within_it(home: Path) -> None:
    (home / "project" / "common").mkdir()
    (home / "project" / "common" / "mcp.json").write_text("old")
    (home / "project" / "sub").symlink_to("common")
    (home / "project" / "mcp.json").symlink_to("sub/mcp.json")
    open_foreign(Path("mcp.json")).replace(b"new")
    assert content(home) == {"project/common/mcp.json": "new"}


@pytest.mark.parametrize("working", ["project", "project/package"])
def test_a_link_of_a_package_may_lead_to_another_folder_of_its_repository(
    working: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (".git", "common", "package"):
        (home / "project" / folder).mkdir()
    (home / "project" / "common" / "mcp.json").write_text("old")
    (home / "project" / "package" / "mcp.json").symlink_to("../common/mcp.json")
    monkeypatch.chdir(home / working)
    open_foreign(home / "project" / "package" / "mcp.json").replace(b"new")
    assert content(home) == {"project/common/mcp.json": "new"}


def test_a_working_folder_is_a_project_also_where_the_home_folder_is_a_repository(home: Path) -> None:
    (home / ".git").mkdir()
    (home / "rc.json").write_text("the user's")
    (home / "project" / "mcp.json").symlink_to("../rc.json")
    with pytest.raises(CannotReplace, match="is a link out of the project"):
        open_foreign(Path("mcp.json"))


@pytest.mark.parametrize("working", ["", ".config", ".config/colonnade", "project"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_the_users_own_links_to_their_dotfiles_are_written_through(
    working: str, is_folder: bool, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dotfiles = home / "dotfiles"
    (dotfiles / ".git").mkdir(parents=True)
    (dotfiles / "colonnade").mkdir()
    (dotfiles / "colonnade" / "colonnade.yaml").write_text("old")
    place = home / ".config" / "colonnade"
    if is_folder:
        place.symlink_to(dotfiles / "colonnade")
    else:
        place.mkdir()
        (place / "colonnade.yaml").symlink_to("../../dotfiles/colonnade/colonnade.yaml")
    monkeypatch.chdir(home / working)
    open_foreign(place / "colonnade.yaml").replace(b"new")
    open_foreign(place / "other.yaml").replace(b"other")
    assert (dotfiles / "colonnade" / "colonnade.yaml").read_bytes() == b"new"
    assert (place / "colonnade.yaml").read_bytes() == b"new"
    assert place.is_symlink() == is_folder
    assert (place / "other.yaml").read_bytes() == b"other"


def test_a_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a link to another user")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "own").symlink_to("link")
    os.chown(tmp_path / "link", 12345, -1, follow_symlinks=False)
    for path in (tmp_path / "link" / "mcp.json", tmp_path / "own" / "mcp.json"):
        with pytest.raises(CannotReplace, match=r"is a link of another user \(12345\)"):
            open_foreign(path)


def test_dots_after_a_link_lead_where_the_system_takes_them(home: Path) -> None:
    """`link/../mcp.json` is beside what the link leads to, not beside the link."""
    (home / "elsewhere" / "deep").mkdir(parents=True)
    (home / "project" / "link").symlink_to(home / "elsewhere" / "deep")
    with pytest.raises(CannotReplace, match="is a link out of the project"):
        open_foreign(home / "project" / "link" / ".." / "mcp.json")


def test_links_after_a_folder_that_is_not_there_are_checked(home: Path) -> None:
    (home / "rc.json").write_text("the user's")
    (home / "project" / "link").symlink_to(home)
    with pytest.raises(CannotReplace, match="is a link out of the project"):
        open_foreign(home / "project" / "missing" / ".." / "link" / "rc.json")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _two_names(path: Path) -> None:
    path.touch()
    os.link(path, path.with_name("other"))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def _foreign(path: Path) -> None:
    path.touch()
    os.chown(path, 12345, -1)


def _locked_folder(path: Path) -> None:
    path.parent.chmod(0o555)


def _below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


def _endless(path: Path) -> None:
    path.symlink_to(path.name)


REFUSED: dict[str, Callable[[Path], object]] = {
    "not a regular file": lambda path: path.mkdir(),
    "is not a regular file": _pipe,
    "mcp.json is not a regular": _socket,
    "not a regular file|cannot be read": lambda path: path.symlink_to("/dev/null"),
    "read-only; make it writable": lambda path: path.touch(0o444),
    "has 2 names": _two_names,
    "belongs to another user": _foreign,
    "the folder .* is read-only": _locked_folder,
    "cannot be read: Not a directory": _below_a_file,
    "not a regular file|Too many": _endless,
}


@pytest.mark.parametrize("problem", REFUSED)
def test_a_file_that_could_not_be_given_back_as_it_was_is_refused(problem: str, tmp_path: Path) -> None:
    if "another user" in problem and os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    path = tmp_path / "home" / "mcp.json"
    path.parent.mkdir()
    try:
        REFUSED[problem](path)
        with pytest.raises(CannotReplace, match=problem):
            open_foreign(path)
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda path: path.write_bytes(b"theirs"),
        lambda path: path.unlink(),
        lambda path: (path.unlink(), path.symlink_to("other")),
        lambda path: path.chmod(0o444),
    ],
)
def test_a_change_in_between_is_seen(meanwhile: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b"old")
    (tmp_path / "other").write_bytes(b"old")
    file = open_foreign(path)
    meanwhile(path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with pytest.raises(CannotReplace):
        file.replace(b"new")
    with pytest.raises(CannotReplace):
        file.remove([])
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


def test_a_file_that_appears_in_between_stays(tmp_path: Path) -> None:
    file = open_foreign(tmp_path / "mcp.json")
    (tmp_path / "mcp.json").write_bytes(b"theirs")
    with pytest.raises(CannotReplace, match="changed by another program meanwhile"):
        file.replace(b"new")
    assert (tmp_path / "mcp.json").read_bytes() == b"theirs"


# Random edits

VSCODE = ENTRY_FORMS["vscode"]
ENTRY = VSCODE.command("/opt/colonnade", ["serve", "--stdio"])
CONTENTS = [
    '{"servers": {"a": {"command": "x"}}}',
    '// all\n{\n\t"servers": { // mine\n\t\t"a": {"command": "x"}, /* b */ "b": {"command": "y"} // last\n\t}, // end\n'
    "}",
    '\ufeff{\r\n  "inputs": [], // ,}\r\n  "servers": {\r\n    /* a */ "a" /* : */ : {"command": "x",},\r\n  },\r\n}',
    "{}",
    "",
    None,
]


class Trial:
    """One host's file, which is connected and disconnected while much goes wrong."""

    def __init__(self, folder: Path, state: State, rng: random.Random) -> None:
        self.rng = rng
        self.path = folder / "User" / "mcp.json"
        self.connections = Connections(state)
        self.is_alone = False
        original = rng.choice(CONTENTS)
        if original is not None:
            self.path.parent.mkdir()
            target = self.path
            if rng.random() < 0.3:
                target = folder / "real.json"
                self.path.symlink_to(target)
            target.write_bytes(original.encode())
            target.chmod(rng.choice([0o600, 0o644]))

    @property
    def data(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def connect(self) -> None:
        file = open_foreign(self.path)
        moves = [("servers", name) for name in self.servers() if self.rng.random() < 0.5]
        after, change = connected(file.path, file.data, VSCODE, ENTRY, moves)
        self.meanwhile()
        self.connections.keep(Record("vscode", str(file.path), "/c", change, tuple(map(str, file.folders))))
        self.meanwhile()
        file.replace(after)

    def disconnect(self) -> None:
        file = open_foreign(self.path)
        record = self.connections.get(file.path)
        if record is None or file.data is None:
            return
        back = given_back(file.path, file.data, record.change, VSCODE)
        self.meanwhile()
        if back.data is None:
            file.remove([Path(folder) for folder in record.folders])
        else:
            file.replace(back.data)
        self.connections.forget(file.path)

    def servers(self) -> list[str]:
        return list(values(self.path, (self.data or b"").decode("utf-8-sig")).get("servers", {}))

    def meanwhile(self) -> None:
        """Another program writes, sometimes."""
        if self.data is None or self.is_alone or self.rng.random() > 0.15:
            return
        text = self.data.decode()
        root = values(self.path, text.removeprefix("\ufeff"))
        new = text + "\n" if self.rng.random() < 0.5 else json.dumps(root, indent=3)
        self.path.write_bytes(new.encode())


def killed_at(moment: int, work: Callable[[], None]) -> bool:
    """Do the work in a process that is killed before its `moment`th change on disk. Whether it came to that."""
    child = os.fork()
    if child == 0:
        left = [moment]
        for name in ("open", "replace", "link", "unlink", "fsync", "write"):
            setattr(os, name, _counting(getattr(os, name), left))
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def _counting(function: Callable[..., object], left: list[int]) -> Callable[..., object]:
    def counted(*arguments: object, **more: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)

    return counted


@pytest.mark.slow
def test_200_edits_lose_nothing(tmp_path: Path) -> None:
    """Whatever happens in between, the file has one of the contents that somebody meant, and all servers come back."""
    outcomes = dict.fromkeys(("done", "refused", "killed"), 0)
    for seed in range(200):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        trial = Trial(folder, open_state(folder / "state"), rng)
        with trial.connections.lock():
            pass  # makes the folder of the records
        before = trial.servers() if trial.data is not None else []
        if rng.random() < 0.5:
            trial.is_alone = True  # so only two contents are possible
            was, killed = trial.data, killed_at(rng.randrange(14), trial.connect)
            trial.is_alone = False
            outcomes["killed" if killed else "done"] += 1
            record = trial.connections.get(trial.path)
            if trial.data != was:
                assert record is not None, "the file was changed without a record"
                assert given_back(trial.path, trial.data or b"", record.change, VSCODE).data == was
        else:
            try:
                trial.connect()
                outcomes["done"] += 1
            except CannotReplace:
                outcomes["refused"] += 1
        assert trial.data is None or values(trial.path, trial.data.decode("utf-8-sig")) is not None
        trial.meanwhile()
        for _ in range(4):  # a refusal wants a second try
            try:
                trial.disconnect()
                break
            except CannotReplace:
                outcomes["refused"] += 1
        if trial.connections.get(trial.path) is None or trial.data is None:
            after = trial.servers() if trial.data is not None else []
            assert sorted(after) == sorted(before), f"seed {seed}"
        left = [each.name for each in folder.rglob("*") if ".colonnade" in each.name]
        assert len(left) <= 1, "a killed process leaves one file, which the next one removes"
    assert min(outcomes.values()) > 10, outcomes
