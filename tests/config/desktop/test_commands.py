"""Commands that cannot be started here, and programs that only look so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from config.desktop.commands import belongs_to_windows, problem_of_command, program_exists, windows_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with programs."""
    for name in ("bin/here", "bin/my program", "my tools/run it"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def judged(folder: Path, command: str, *args: str) -> str:
    return problem_of_command(command, args, lambda program: program_exists(program, folder, str(folder / "bin")))


@pytest.mark.parametrize(
    ("command", "args", "keys"),
    [
        ("npx -y @scope/server", (), '"command": "npx", "args": ["-y", "@scope/server"]'),
        (
            "npx -y",
            ("@a/b@1.2", "--stdio"),
            '"command": "npx", "args": ["-y", "@a/b@1.2", "--stdio"]',
        ),
        ("uvx mcp-server-git", (), '"command": "uvx", "args": ["mcp-server-git"]'),
        ("  npx   server ", (), '"command": "npx", "args": ["server"]'),
        ("here data", (), '"command": "here", "args": ["…"]'),
        ("no-such https://h/mcp", (), '"command": "…", "args": ["…"]'),
        ("/opt/no/such --stdio", (), '"command": "…", "args": ["--stdio"]'),
        ("~/no/such --stdio", (), '"command": "…", "args": ["--stdio"]'),
        ("'/opt/my program/run' --port 80", (), '"command": "…", "args": ["--port", "…"]'),
        ("node /home/kim/server.js", (), '"command": "node", "args": ["…"]'),
        ("npx server --token ghp_0123456789abcdefghij", (), '"args": ["server", "--token", "…"]'),
        ("npx server --password hunter2", (), '"args": ["server", "--password", "…"]'),
        ("npx server ${env:TOKEN}", (), '"command": "npx", "args": ["server", "…"]'),
        ("npx it's", (), '"command": "npx", "args": ["…"]'),
        ("no-such-server serve stdio", (), '"command": "…", "args": ["…", "…"]'),
        ("./my tools/run it --flag x", (), '"command": "…/run it", "args": ["--flag", "…"]'),
        ("here\tserve\n", (), '"command": "here", "args": ["…"]'),
    ],
)
def test_a_text_that_holds_arguments(folder: Path, command: str, args: tuple[str, ...], keys: str) -> None:
    """The two keys are shown, without what could be a secret or a folder."""
    said = judged(folder, command, *args)
    assert said.startswith('its key "command" holds arguments, and is the program alone; write "command": ')
    assert keys in said


@pytest.mark.parametrize(
    "command",
    [
        "here",
        "my program",
        "bin/my program",
        "./my tools/run it",
        "~/my tools/run it",
        "absent",
        "/opt/no such/program",
        "/Applications/My App - Beta/run",
        "",
        "a\0b",
        "x" * 5000,
        "~nobody-of-that-name/x",
    ],
)
def test_what_may_be_a_program(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path or a name with spaces, which is there or may be on another day."""
    monkeypatch.setenv("HOME", str(folder))
    assert judged(folder, command) == ""


@pytest.mark.parametrize(
    ("command", "args", "said"),
    [
        (r"C:\Program Files\nodejs\npx.cmd", (), 'its key "command" is a path of Windows; write the program of this'),
        (r"C:\nodejs\npx.cmd -y server", (), 'its key "command" is a path of Windows'),
        ("C:/nodejs/node.exe", (), 'its key "command" is a path of Windows'),
        (r'"C:\Program Files\x.exe" --stdio', (), 'its key "command" is a path of Windows'),
        (r"\\server\share\x.exe", (), 'its key "command" is a path of Windows'),
        (r"%APPDATA%\npm\x.cmd", (), 'its key "command" is a path of Windows'),
        (r".\server.exe", (), 'its key "command" is a path of Windows'),
        (
            "cmd",
            ("/c", "npx", "-y", "server"),
            'cmd is the shell of Windows; write "command": "npx", "args": ["-y", "server"]',
        ),
        ("cmd.exe", ("/d", "/s", "/c", "npx -y server"), '; write "command": "npx", "args": ["-y", "server"]'),
        ("cmd /c npx -y server", (), 'cmd is the shell of Windows; write "command": "npx", "args": ["-y", "server"]'),
        ("powershell", ("-Command", "npx server"), '; write "command": "npx", "args": ["server"]'),
        ("wsl", ("-e", "npx", "x"), 'wsl starts programs of Linux from Windows; write "command": "npx", "args": ["x"]'),
        (
            "powershell",
            ("-NoProfile", "-ExecutionPolicy", "Bypass", "-File", "x"),
            'powershell is the shell of Windows; write "command": "…", "args": []',
        ),
        (
            "wsl.exe",
            ("-d", "Ubuntu", "--", "npx", "x"),
            'wsl.exe starts programs of Linux from Windows; write "command": "npx", "args": ["x"]',
        ),
        ("cmd", (), "cmd is the shell of Windows; write the program that it starts"),
        ("npx.cmd", ("-y", "server"), 'its key "command" is a program of Windows; write "command": "npx"'),
        ('"here"', (), 'its key "command" has quotes or spaces around the program; remove them'),
        ("here ", (), 'its key "command" has quotes or spaces around the program; remove them'),
    ],
)
def test_what_belongs_to_windows(folder: Path, command: str, args: tuple[str, ...], said: str) -> None:
    assert said in judged(folder, command, *args)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("  ", 'its key "command" is empty; write a program'),
        ("\n", 'its key "command" is empty; write a program'),
        ("cd /srv && npx x", 'is a line for a shell; write "command": "sh", "args": ["-c", "…"]'),
        ("npx x | tee log", 'is a line for a shell; write "command": "sh", "args": ["-c", "…"]'),
        ("https://h/mcp", 'its key "command" is a URL; write it under "url"'),
        ("A=b npx x", 'sets a variable; write that under env, and "command": "npx", "args": ["x"]'),
    ],
)
def test_what_a_shell_would_read(folder: Path, command: str, said: str) -> None:
    assert said in judged(folder, command)


def test_a_program_that_is_there_is_never_judged(folder: Path) -> None:
    """As cmd.exe is in the Linux of Windows, and a path of Windows may be a name here."""
    for name in ("cmd.exe", r"C:\x.exe", "npx -y server"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
        assert judged(folder, name, "/c", "x") == ""
    assert os.access(folder / "bin" / "cmd.exe", os.X_OK)


def test_paths_of_windows_among_arguments() -> None:
    assert windows_paths(["-y", r"C:\Users\kim\notes"])
    assert not windows_paths(["-y", "/c", "a:b", "https://h/", r"\d+"])


@pytest.mark.parametrize(
    ("program", "belongs"),
    [
        ("C:Userskimnpx.cmd", True),
        ("npx.cmd", True),
        ("cmd", True),
        ("npx", False),
        ("/opt/cmd", False),
        ("cmdx", False),
    ],
)
def test_programs_of_windows(program: str, belongs: bool) -> None:
    """A command of ours is read as a shell reads it, without backslashes."""
    assert belongs_to_windows(program) is belongs
