"""Results as a person reads them, and the files that content without text goes into."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.cli.results import ResultPrinter, file_name, write_new_file

PIXEL = b"\x89PNG\r\n\x1a\n"
IMAGE = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(PIXEL).decode()}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_texts_are_printed_and_images_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printer = ResultPrinter(tmp_path, "shop__draw")
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "AAAA"}
    printer.show_tool_result({"content": [text("two\nlines\x1b[31m"), IMAGE, IMAGE, sound]})
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "two",
        "lines\\x1b[31m",
        f"{tmp_path}/shop__draw.png (image/png, 8 bytes)",
        f"{tmp_path}/shop__draw-2.png (image/png, 8 bytes)",
        f"{tmp_path}/shop__draw.wav (audio/wav, 3 bytes)",
    ]
    assert (err, printer.is_whole) == ("", True)
    assert (tmp_path / "shop__draw-2.png").read_bytes() == PIXEL


def test_other_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Linked and embedded resources; structured content where there is nothing else; unknown blocks as JSON."""
    printer = ResultPrinter(tmp_path, "a__b")
    blob = {"uri": "x://h/../.bashrc?y#z", "mimeType": "application/octet-stream", "blob": "AAAA"}
    blocks = [
        {"type": "resource_link", "uri": "a+x://y", "name": "why"},
        {"type": "resource", "resource": {"uri": "x://t", "text": "inside"}},
        {"type": "resource", "resource": blob},
        {"type": "dance", "steps": 3},
    ]
    printer.show_tool_result({"content": blocks})
    printer.show_tool_result({"content": [], "structuredContent": {"ü": 1}})
    assert capsys.readouterr().out.splitlines() == [
        "why: a+x://y",
        "inside",
        f"{tmp_path}/a__b-.bashrc (application/octet-stream, 3 bytes)",
        '{"type": "dance", "steps": 3}',
        "{",
        '  "ü": 1',
        "}",
    ]


def test_what_a_server_calls_its_files_never_stands_alone(tmp_path: Path) -> None:
    """A result may not leave a `conftest.py` behind, which another program would run."""
    printer = ResultPrinter(tmp_path, "a__b")
    resource = {"uri": "x://h/conftest.py", "mimeType": "text/x-python", "blob": "AAAA"}
    printer.show_tool_result({"content": [{"type": "resource", "resource": resource}]})
    assert [each.name for each in tmp_path.iterdir()] == ["a__b-conftest.py"]
    ResultPrinter(tmp_path, "a+x://asked/for.bin").show_contents({"contents": [resource]})
    assert {each.name for each in tmp_path.iterdir()} == {"a__b-conftest.py", "for.bin.py"}


def test_a_resource_and_a_prompt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ResultPrinter(tmp_path, "a+x://h/notes.txt").show_contents({"contents": [{"uri": "x://h/notes.txt", "text": "hi"}]})
    messages = [{"role": "user", "content": text("Sum it up")}, {"role": "assistant", "content": [text("Yes"), IMAGE]}]
    ResultPrinter(tmp_path, "a__p").show_prompt({"messages": messages})
    assert capsys.readouterr().out.splitlines() == [
        "hi",
        "user:",
        "Sum it up",
        "assistant:",
        "Yes",
        f"{tmp_path}/a__p.png (image/png, 8 bytes)",
    ]


@pytest.mark.parametrize("result", [{}, {"content": None}, {"content": "x"}, {"content": [1, None, "x"]}])
def test_a_result_without_content_prints_nothing(
    result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = ResultPrinter(tmp_path, "a")
    printer.show_tool_result(result)
    printer.show_contents(result)
    printer.show_prompt(result)
    assert capsys.readouterr().out == ""


def test_content_that_cannot_be_written_is_said_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printer = ResultPrinter(tmp_path / "nowhere", "a__b")
    printer.show_tool_result({"content": [IMAGE, {**IMAGE, "data": "no base64!"}, text("the rest")]})
    out, err = capsys.readouterr()
    assert out == "the rest\n"
    assert err.splitlines() == [
        f"colonnade: image/png: it cannot be written into {tmp_path}/nowhere (--output): No such file or directory",
        "colonnade: image/png: it is not base64, so it was not written",
    ]
    assert not printer.is_whole


def test_a_file_that_is_there_is_never_changed(tmp_path: Path) -> None:
    """Neither itself nor what a link of its name leads to."""
    target = tmp_path / "target"
    (tmp_path / "a.png").write_bytes(b"mine")
    (tmp_path / "a-2.png").symlink_to(target)
    assert write_new_file(tmp_path, "a.png", b"new") == tmp_path / "a-3.png"
    assert (tmp_path / "a.png").read_bytes() == b"mine"
    assert not target.exists()
    assert (tmp_path / "a-3.png").stat().st_mode & 0o111 == 0


@pytest.mark.parametrize(
    ("name", "mime", "file"),
    [
        ("a__b", "image/png", "a__b.png"),
        ("a__b", "image/jpeg; q=1", "a__b.jpg"),
        ("a__b", "", "a__b.bin"),
        ("a__b", "no type", "a__b.bin"),
        ("docs+file:///d/report.pdf", "application/pdf", "report.pdf"),
        ("docs+file:///d/report.pdf", "", "report.pdf"),
        ("docs+file:///d/run.sh", "image/png", "run.sh.png"),
        ("docs+file:///d/.env", "", "env.bin"),
        ("docs+file:///d/../..", "image/png", "content.png"),
        ("a+x://h/ü b\n;", "image/png", "b.png"),
        ("a+x:opaque", "image/png", "a_x_opaque.png"),
        ("", "audio/wav", "content.wav"),
    ],
)
def test_names_of_files(name: str, mime: str, file: str) -> None:
    assert file_name(name, mime) == file


@given(st.text(), st.text())
def test_no_name_leaves_the_folder_or_hides(name: str, mime: str) -> None:
    file = file_name(name, mime)
    assert os.path.basename(file) == file
    assert file.isascii()
    assert file.isprintable()
    assert file[0] not in ".-"
    assert " " not in file
    assert len(file) < 120


def test_content_is_not_written_through_a_projects_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "autostart").mkdir()
    (tmp_path / "project" / "out").symlink_to(tmp_path / "autostart")
    monkeypatch.chdir(tmp_path / "project")
    printer = ResultPrinter(Path("out"), "a__b")
    printer.show_tool_result({"content": [IMAGE]})
    assert "is a link out of the project" in capsys.readouterr().err
    assert (printer.is_whole, list((tmp_path / "autostart").iterdir())) == (False, [])
