"""The names of programs, and which of them only start others."""

from __future__ import annotations

import pytest

from host.client_process import MAX_NAME, ClientProcess, is_launcher, program_name


def test_a_client_of_which_nothing_is_known_has_no_folder_and_no_values() -> None:
    unknown = ClientProcess()
    assert (unknown.program, unknown.pid, unknown.folder, dict(unknown.environment)) == ("", 0, "", {})
    assert ClientProcess("claude", 7, "/w\n").as_row() == {"program": "claude", "pid": 7, "folder": "/w⟨U+000A⟩"}


@pytest.mark.parametrize(
    ("name", "command", "executable", "found"),
    [
        # A title that Node.js programs give themselves.
        ("claude", "claude", "/usr/bin/node", "claude"),
        ("npm exec @x/y", "npm exec @x/y", "/usr/bin/node", "npm"),
        # The script of an interpreter, by the name of its link or file, else of its folder.
        ("node", "node /n/.bin/gemini -p hi", "/usr/bin/node", "gemini"),
        ("MainThread", "/usr/bin/node --max-old-space-size=9 /n/@google/gemini-cli/bundle/gemini.js", "", "gemini"),
        ("node", "node -r ts-node /n/@qwen-code/qwen-code/dist/cli-entry.js", "/usr/bin/node", "qwen-code"),
        ("node", "node /usr/lib/node_modules/npm/bin/npx-cli.js -y thing", "/usr/bin/node", "npx-cli"),
        ("python", "/v/bin/python3 -X dev -I /v/bin/aider --model x", "/usr/bin/python3.12", "aider"),
        ("python", "python3 -m goose.__main__ run", "/usr/bin/python3.12", "goose"),
        ("colonnade", "/v/bin/python /v/bin/colonnade serve --stdio", "/usr/bin/python3.12", "colonnade"),
        ("python", "python -I -m host serve --stdio", "/usr/bin/python3.12", "colonnade"),
        ("python", "python main.py", "/usr/bin/python3.12", "main"),
        ("bun", "bun run /n/opencode/src/index.ts", "/usr/bin/bun", "opencode"),
        ("python3", "python3 -c x", "/usr/bin/python3.12", "python3.12"),
        ("node", "node", "/usr/bin/node", "node"),
        # Programs without an interpreter.
        ("claude", "claude -p hi", "/n/@anthropic-ai/claude-code/bin/claude.exe", "claude"),
        ("claude", "claude", "/home/u/.local/share/claude/versions/2.1.3", "claude"),
        ("MainThread", "/n/copilot-linux-x64/copilot -p hi", "/n/copilot-linux-x64/copilot", "copilot"),
        ("a-name-of-more-", "/bin/a-name-of-more-than-15", "/bin/a-name-of-more-than-15", "a-name-of-more-than-15"),
        ("a title", "/opt/thing", "/opt/thing", "a title"),
        ("thing", "/opt/thing", "/opt/thing (deleted)", "thing"),
        ("bash", "-bash", "/usr/bin/bash", "bash"),
        ("kthread", "", "", "kthread"),
        ("", "", "", ""),
    ],
)
def test_the_name_of_a_program(name: str, command: str, executable: str, found: str) -> None:
    assert program_name(name, command.split(" ") if command else [], executable) == found


def test_a_name_is_short_and_has_no_invisible_characters() -> None:
    assert program_name("x\x1b]0;y\u202e", ["/opt/x"], "/opt/z") == "x⟨U+001B⟩]0;y⟨U+202E⟩"
    assert len(program_name("", ["y" * 200], "")) == MAX_NAME


@pytest.mark.parametrize(
    ("program", "command", "launches"),
    [
        ("sh", "sh -c colonnade", True),
        ("bash", "bash -lc colonnade", True),
        ("bash", "bash run.sh", True),
        ("fish", "fish --no-config start.fish", True),
        ("bash", "-bash", False),
        ("zsh", "zsh -l", False),
        ("bash", "bash --rcfile", False),
        ("npm", "npm exec @x/y", True),
        ("npx-cli", "node npx-cli.js -y x", True),
        ("uvx", "uvx colonnade", True),
        ("env", "env A=b colonnade", True),
        ("claude", "claude", False),
        ("node", "node", False),
        ("colonnade", "colonnade serve", False),
    ],
)
def test_what_only_starts_others(program: str, command: str, launches: bool) -> None:
    assert is_launcher(program, command.split()) is launches
