"""Files that are watched, saved as editors and programs save files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
import trio

from config.file_state import file_state
from host.watched_files import REST, watch_files
from tests.kit.saves import remove_and_make, replace, write_in_place


async def saves(file: Path, *steps: Callable[[], object], count: int) -> int:
    """How often the file was saved by the steps; `count` is waited for."""
    seen, known = 0, sha256(file.read_bytes()).hexdigest()  # noqa: ASYNC240 - a small file
    enough = trio.Event()

    async def on_saved() -> None:
        nonlocal seen
        seen += 1
        if seen >= count:
            enough.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, file, lambda: {file: known}, on_saved)
        await trio.sleep(0.5)  # the watch is set up in a thread
        for step in steps:
            step()
            await trio.sleep(1.2)
        if count:
            with trio.fail_after(20):
                await enough.wait()
        nursery.cancel_scope.cancel()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("save", [write_in_place, replace, remove_and_make])
async def test_a_saved_file_is_seen_whatever_saves_it(save: Callable[[Path, str], None], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("1")
    assert await saves(file, lambda: save(file, "2"), lambda: save(file, "3"), count=2) == 2


@pytest.mark.slow
async def test_a_file_behind_a_link_is_seen_and_so_is_another_link(tmp_path: Path) -> None:
    """As a mounted directory of Kubernetes exchanges its files."""
    for name, text in (("one", "1"), ("two", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "one" / "c.yaml")

    def relink() -> None:
        (tmp_path / "new").symlink_to(tmp_path / "two" / "c.yaml")
        (tmp_path / "new").rename(tmp_path / "link")

    write = (tmp_path / "one" / "c.yaml").write_text
    assert await saves(tmp_path / "link", lambda: write("3"), relink, count=2) == 2


@pytest.mark.slow
async def test_what_changes_nothing_is_not_seen(tmp_path: Path) -> None:
    """The same text, another file of the folder, another time, and that the file is gone."""
    file = tmp_path / "c.yaml"
    file.write_text("1")
    steps = (
        lambda: file.write_text("1"),
        lambda: (tmp_path / "other").write_text("2"),
        lambda: os.utime(file, (1, 1)),
        file.unlink,
    )
    assert await saves(file, *steps, count=0) == 0


@pytest.mark.slow
async def test_a_file_that_is_written_in_two_steps_is_seen_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("1")
    seen: list[str] = []

    async def on_saved() -> None:
        seen.append(file.read_text())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, file, lambda: {file: sha256(b"1").hexdigest()}, on_saved)
        await trio.sleep(0.5)  # the watch is set up in a thread
        file.write_text("2: a half")
        await trio.sleep(0.15)  # the other half takes longer than one step of the watch
        file.write_text("2: a half and the rest")
        with trio.fail_after(20):
            while not seen:  # noqa: ASYNC110 - a thread watches
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert seen == ["2: a half and the rest"]


@pytest.mark.slow
async def test_what_was_saved_before_the_watch_began_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("2")
    await seen_within(file, sha256(b"1").hexdigest())


@pytest.mark.slow
async def test_a_file_whose_folder_is_made_anew_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "c.yaml"
    file.write_text("1")

    def make_anew() -> None:
        file.unlink()
        folder.rmdir()
        folder.mkdir()
        file.write_text("2")

    await seen_within(file, sha256(b"1").hexdigest(), make_anew)


@pytest.mark.slow
async def test_the_file_that_a_changed_link_leads_to_is_watched_from_then_on(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "c.yaml").write_text(name)
    (tmp_path / "folder").symlink_to(tmp_path / "one")
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "c.yaml")

    def relink() -> None:
        (tmp_path / "new").symlink_to(tmp_path / "two")
        (tmp_path / "new").rename(tmp_path / "folder")

    write = (tmp_path / "two" / "c.yaml").write_text
    assert await saves(tmp_path / "link", relink, lambda: write("3"), count=2) == 2


@pytest.mark.slow
async def test_without_watches_of_the_system_the_file_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user has only so many of them."""

    def refuses(*folders: Path, **options: object) -> object:
        raise OSError(28, "inotify watch limit reached")

    monkeypatch.setattr("host.watched_files.watch", refuses)
    monkeypatch.setattr("host.watched_files.LOOK_INTERVAL", 0.1)
    file = tmp_path / "c.yaml"
    file.write_text("1")
    await seen_within(file, sha256(b"1").hexdigest(), lambda: file.write_text("2"))


async def seen_within(file: Path, known: str, change: Callable[[], object] = lambda: None, seconds: float = 20) -> None:
    """Wait until the change was seen."""
    seen = trio.Event()

    async def on_saved() -> None:
        seen.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, file, lambda: {file: known}, on_saved)
        await trio.sleep(0.5)  # the watch is set up in a thread
        change()
        with trio.fail_after(seconds):
            await seen.wait()
        nursery.cancel_scope.cancel()


class Watching:
    """Files that are watched; `saved` counts how often they were."""

    def __init__(self, source: Path, *others: Path) -> None:
        self.source = source
        self.files = {path: file_state(path) for path in (source, *others)}
        self.saved = 0

    async def run(self) -> None:
        async def on_saved() -> None:
            self.saved += 1

        await watch_files(self.source, lambda: self.files, on_saved)

    async def sees(self, change: Callable[[], object], count: int = 1) -> None:
        """Make a change, and wait until it is seen so many times, and no more."""
        wanted = self.saved + count
        change()
        with trio.fail_after(20):
            while self.saved < wanted:  # noqa: ASYNC110 - a thread watches
                await trio.sleep(0.05)
        await self.rests()

    async def rests(self) -> None:
        saved = self.saved
        await trio.sleep(1.2)  # a further call would come within the time for settling
        assert self.saved == saved


@asynccontextmanager
async def watching(source: Path, *others: Path) -> AsyncIterator[Watching]:
    made = Watching(source, *others)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.sleep(0.5)  # the watch is set up in a thread
        yield made
        nursery.cancel_scope.cancel()


def make(file: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


@pytest.mark.slow
async def test_another_file_is_seen_that_comes_with_its_folders_changes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, without the looks of every few seconds."""
    monkeypatch.setattr("host.watched_files.LOOK_INTERVAL", 600)
    source, other = tmp_path / "c.json", tmp_path / "project" / ".host" / "settings.json"
    source.write_text("1")
    async with watching(source, other) as watched:
        await watched.sees(make(other, "1"))
        await watched.sees(lambda: replace(other, "2"))
        await watched.sees(lambda: remove_and_make(other, "3"))
        await watched.sees(other.unlink)


@pytest.mark.slow
async def test_a_folder_is_seen_when_a_file_comes_or_goes_and_not_when_one_changes(tmp_path: Path) -> None:
    source, folder = tmp_path / "c.json", tmp_path / "policies"
    source.write_text("1")
    async with watching(source, folder) as watched:
        await watched.sees(make(folder / "a.toml", "1"))
        await watched.sees(make(folder / "b.toml", "1"))
        make(folder / "b.toml", "2")()
        await watched.rests()
        await watched.sees((folder / "b.toml").unlink)


@pytest.mark.slow
async def test_files_that_were_found_when_it_was_read_again_are_watched_from_then_on(tmp_path: Path) -> None:
    """Also if they have changed since. Those that do not count any more are not watched."""
    source, former, later = tmp_path / "c.json", tmp_path / "a" / "former", tmp_path / "b" / "later"
    for each in (source, former, later):
        make(each, "1")()
    async with watching(source, former) as watched:
        watched.files = {source: file_state(source), later: file_state(later)}
        make(later, "2")()
        await watched.sees(make(source, "2"))
        await watched.sees(make(later, "3"))
        make(former, "2")()
        await watched.rests()


@pytest.mark.slow
async def test_a_change_while_the_file_itself_is_missing_is_seen_when_it_is_back(tmp_path: Path) -> None:
    source, other = tmp_path / "c.json", tmp_path / "settings.json"
    source.write_text("1")
    async with watching(source, other) as watched:
        source.unlink()
        make(other, "1")()
        await watched.rests()
        await watched.sees(make(source, "1"))


@pytest.mark.slow
async def test_a_file_that_takes_long_to_read_is_not_read_all_the_time(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text("1")
    began: list[float] = []
    ended: list[float] = []
    twice = trio.Event()

    async def on_saved() -> None:
        began.append(trio.current_time())
        await trio.sleep(0.1)  # the time of the reading
        ended.append(trio.current_time())
        if len(ended) == 2:
            twice.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_files, file, lambda: {file: sha256(b"0").hexdigest()}, on_saved)
        with trio.fail_after(30):
            while not twice.is_set():
                file.write_text(str(trio.current_time()))
                await trio.sleep(0.1)  # the time between two writes
        nursery.cancel_scope.cancel()
    assert began[1] - ended[0] >= REST * 0.1
