"""Strict reading: what is refused before any setting is looked at, and where it is said to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.problems import ConfigError
from config.read import MAX_FILE_BYTES, read, read_text
from tests.config.kit import lines, load_text, stdio

ONE = "servers: {a: {command: x}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "1:1: the file is empty"),
        (b"# only a comment\n", "1:1: the file is empty"),
        (b"---\n...\n", "1:1: the file is empty"),
        (b"servers:\n\ta: {}\n", "2:1: tabs are not allowed for indentation in YAML; use spaces"),
        (b"servers:\n  a: {command: \xff}\n", "2:16: this is not UTF-8"),
        ("servers: {}\n".encode("utf-16"), "1:1: this is not UTF-8"),
        (b"servers: {a: {command: x}}\n---\nservers: {}\n", "2:1: a second document begins here"),
        (b"servers: \x00\n", "1:10: the character U+0000 is not allowed"),
        (b"- a\n", "1:1: expected a map"),
        (b"hello\n", "1:1: expected a map"),
        (b"servers: {a: {command: x}\n", "2:1: this is not YAML"),
        (b"servers: {a: {command: x, env: {A: ${env:B}}}}\n", "1:37: this is not YAML"),
        (b'servers: {a: {command: "\\UFFFFFFFF"}}\n', "1:27: this number is no character"),
        (b"%YAML 9.9\n---\nservers: {}\n", "1:1: this is not YAML"),
        (b"servers: {a: {command: !x!y z}}\n", "1:24: tags are not accepted"),
    ],
)
def test_unreadable_file(tmp_path: Path, text: bytes, expected: str) -> None:
    """Each is one problem at its place, and nothing else is looked at."""
    found = lines(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_file_over_one_mebibyte(tmp_path: Path) -> None:
    """A file of 10 MB is refused without being parsed."""
    assert lines(tmp_path, b"#" * 10_000_000) == ["1:1: the file cannot be read: larger than 1 MiB"]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """The system's reason is given, not a traceback."""
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="NUL"):
        read(Path("a\0b"))


def test_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    """A byte order mark and CRLF, as Windows editors write them, are read."""
    text = b"\xef\xbb\xbfservers:\r\n  a:\r\n    command: x\r\n"
    assert stdio(load_text(tmp_path, text), "a").program.reveal() == "x"


def test_a_text_is_read_as_other_programs_read_it(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    assert read_text(file) == "a\nb\n"


def test_only_small_regular_files_are_read_as_texts(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large", tmp_path / "pipe"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    os.mkfifo(pipe)
    for path, problem in (
        (large, "larger than 1 MiB"),
        (pipe, "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
    ):
        with pytest.raises(OSError, match=problem):
            read_text(path)


@pytest.mark.disk
def test_a_pipe_in_the_place_of_a_configuration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "colonnade.yaml")
    (tmp_path / "link.yaml").symlink_to("/dev/zero")
    for name in ("colonnade.yaml", "link.yaml"):
        with pytest.raises(ConfigError, match="the file cannot be read: it is not a regular file"):
            read(tmp_path / name)


def test_a_pipe_of_this_process_is_read(tmp_path: Path) -> None:
    """As in `colonnade check <(make-config)`."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(b"servers: {a: {command: x}}")
    try:
        assert read(Path(f"/dev/fd/{reading}")).root == {"servers": {"a": {"command": "x"}}}
    finally:
        os.close(reading)


def test_an_archive_is_called_one(tmp_path: Path) -> None:
    file = tmp_path / "server.mcpb"
    file.write_bytes(b"PK\x03\x04\x14\x00\xff")
    with pytest.raises(ConfigError, match=r"this is an archive, as Claude extensions \(.mcpb, .dxt\) are; unpack it"):
        read(file)


def test_a_list_of_servers_is_told_its_place(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text('[{"name": "a", "command": "x"}]')
    with pytest.raises(ConfigError, match='found a list; a list of servers stands under "mcpServers"'):
        read(file)


def test_markdown_around_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "servers.json"
    file.write_text('```json\n{"mcpServers": {}}\n```\n')
    with pytest.raises(ConfigError, match="1:1: this is a piece of Markdown; take out the lines with ```"):
        read(file)
