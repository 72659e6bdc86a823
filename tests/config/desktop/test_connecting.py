"""The content of hosts' files with Colonnade connected, and given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.desktop.connecting import SPAN_CHANGED, connected, given_back, own_path
from config.desktop.entry_form import ENTRY_FORMS
from config.edit import CannotEdit, ValuePath, pruned, values
from tests.config.edit.documents import json_texts
from tests.kit.examples import examples

VSCODE = ENTRY_FORMS["vscode"]
ENTRY = VSCODE.command("/opt/colonnade", ["serve", "--stdio", "/c.yaml"])
FILES = {"codex": Path("config.toml"), "continue": Path("config.yaml"), "goose": Path("config.yaml")}
CONTENTS = {
    "codex": '# mine\r\nmodel = "x"\r\n\r\n[mcp_servers.a]\r\ncommand = "x"\r\n\r\n[other]\r\ny = 1',
    "continue": "name: L\nmcpServers:\n  # a\n  - name: a\n    command: x\n  - name: b\n    command: y\nmodels: []\n",
    "goose": "GOOSE_MODEL: x\nextensions:\n  a: # a\n    cmd: x\n    args: []\n# end",
}


def content(name: str) -> tuple[Path, bytes, ValuePath]:
    """A file of a host with a server `a`, and the path of that."""
    form = ENTRY_FORMS[name]
    if name in CONTENTS:
        return FILES[name], CONTENTS[name].encode(), (*form.path, 0 if form.is_list else "a")
    root: object = {"a": {"command": "x", "args": []}, "b": {"command": "y"}}
    for key in reversed(form.path):
        root = {"// no comment": 1, key: root, "after": [1.0, None]}
    text = "\ufeff// mine\n" + json.dumps(root, indent="\t") + "\n"
    return Path("settings.json"), text.encode(), (*form.path, "a")


each_host = pytest.mark.parametrize("name", ENTRY_FORMS)


@each_host
def test_a_file_that_did_not_change_is_given_back_byte_for_byte(name: str) -> None:
    form = ENTRY_FORMS[name]
    file, data, path = content(name)
    entry = form.command("/opt/colonnade", ["serve"])
    after, change = connected(file, data, form, entry, [path])
    root = values(file, after.decode("utf-8-sig"))
    assert own_path(root, change.path) == change.path
    assert (b"\r\n" in data) == (b"\r\n" in after)
    assert after.startswith("\ufeff".encode()) == data.startswith("\ufeff".encode())
    assert given_back(file, after, change, form).data == data
    assert given_back(file, data, change, form).data == data


@each_host
def test_of_a_file_that_changed_only_our_span_goes(name: str) -> None:
    form = ENTRY_FORMS[name]
    file, data, path = content(name)
    entry = form.command("/opt/colonnade", ["serve"])
    after, change = connected(file, data, form, entry, [])
    grown = after + b"\n# new" if file.suffix != ".json" else after + b"\n// new"
    assert given_back(file, grown, change, form).data == grown.replace(change.written.encode(), b"")
    after, change = connected(file, data, form, entry, [path])
    end = b"\n# new" if file.suffix != ".json" else b"\n// new"
    assert given_back(file, after + end, change, form).data == data + end


@each_host
def test_a_new_file_goes_again(name: str) -> None:
    form = ENTRY_FORMS[name]
    file, _, _ = content(name)
    entry = form.command("/opt/colonnade", ["serve"])
    after, change = connected(file, None, form, entry, [])
    assert given_back(file, after, change, form).data is None
    assert given_back(file, after + b"\n", change, form).data is None
    comment = b"// mine\n" if file.suffix == ".json" else b"# mine\n"
    left = given_back(file, after + comment, change, form).data or b""
    assert left.endswith(comment)
    assert pruned(values(file, left.decode()), change.path[:-1]) == values(file, form.new_file)


def test_a_file_that_its_host_wrote_anew_is_cleared_all_the_same() -> None:
    file, data, path = content("vscode")
    after, change = connected(file, data, VSCODE, ENTRY, [path])
    root = values(file, after.decode("utf-8-sig"))
    root["servers"]["colonnade"]["gallery"] = True
    root["servers"]["new"] = {"command": "z"}
    back = given_back(file, json.dumps(root, indent=4).encode(), change, VSCODE)
    assert back.kept == []
    assert json.loads(back.data or b"") == {
        "// no comment": 1,
        "servers": {"a": {"command": "x", "args": []}, "b": {"command": "y"}, "new": {"command": "z"}},
        "after": [1.0, None],
    }


def test_what_the_user_changed_is_not_overwritten() -> None:
    file, data, path = content("vscode")
    after, change = connected(file, data, VSCODE, ENTRY, [path])
    root = values(file, after.decode("utf-8-sig"))
    root["servers"]["colonnade"]["args"] = ["other"]
    root["servers"]["a"] = {"command": "mine"}
    back = given_back(file, json.dumps(root).encode(), change, VSCODE)
    assert back.kept == [SPAN_CHANGED, 'it has another server "a" by now; the former one is in the backup']
    assert json.loads(back.data or b"") == root


def test_an_item_is_found_wherever_it_stands_in_the_list() -> None:
    file, data, path = content("continue")
    form = ENTRY_FORMS["continue"]
    after, change = connected(file, data, form, form.command("/c", []), [path])
    text = after.decode().replace("mcpServers:\n", "mcpServers:\n  - name: first\n    command: z\n")
    back = given_back(file, text.encode(), change, form).data or b""
    names = [item["name"] for item in values(file, back.decode())["mcpServers"]]
    assert sorted(names) == ["a", "b", "first"]


COMMENTED = """{
  // mine
  "servers": {
    "a": {"command": "x"}, // about a
    /* before b */ "b": {
      // in b
      "command": "y",
    },
    "c": {"command": "z"},

    // before d
    "d": {"command": "w"} // about d
  },
  "theme": "dark"
}
"""


@pytest.mark.parametrize("moves", ["a", "b", "d", "bd", "abcd"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"theme": "dark"', '"theme": "light",\n  "n": 1'),
        ("// mine\n", ""),
        ("// before d", "// before"),
        ('"servers": {\n', '"servers": {\n    "new": {"command": "n"},\n'),
    ],
)
def test_moved_servers_go_back_to_their_place(moves: str, old: str, new: str) -> None:
    file = Path("mcp.json")
    after, change = connected(file, COMMENTED.encode(), VSCODE, ENTRY, [("servers", name) for name in moves])
    back = given_back(file, after.replace(old.encode(), new.encode()), change, VSCODE)
    assert back.kept == []
    assert (back.data or b"").decode() == COMMENTED.replace(old, new)


@pytest.mark.parametrize("moves", ["b", "ab"])
@pytest.mark.parametrize("indent", [2, 4])
def test_moved_servers_go_back_beside_one_that_came_meanwhile(moves: str, indent: int) -> None:
    """Where the host wrote the file anew in its own way, they go to the front."""
    file = Path("mcp.json")
    servers = {"a": {"command": "a"}, "b": {"command": "b", "args": ["x"]}}
    root = {"servers": servers, "theme": "dark"}
    data = json.dumps(root, indent=2).encode()
    after, change = connected(file, data, VSCODE, ENTRY, [("servers", name) for name in moves])
    edited = json.loads(after)
    edited["servers"]["new"] = {"command": "n"}
    back = given_back(file, json.dumps(edited, indent=indent).encode(), change, VSCODE).data or b""
    expected = {**root, "servers": {**servers, "new": {"command": "n"}}}
    assert json.loads(back) == expected
    if indent == 2:
        assert back.decode() == json.dumps(expected, indent=2)


def test_maps_that_were_made_go_only_if_they_are_empty() -> None:
    file = Path("settings.json")
    after, change = connected(file, b'{\n  "x": 1\n}', VSCODE, ENTRY, [])
    text = after.decode()
    assert given_back(file, (text + "\n").encode(), change, VSCODE).data == b'{\n  "x": 1\n}\n'
    root = values(file, text)
    root["servers"]["new"] = {"command": "z"}
    back = given_back(file, json.dumps(root).encode(), change, VSCODE).data or b""
    assert json.loads(back) == {"servers": {"new": {"command": "z"}}, "x": 1}


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(CannotEdit, match="not UTF-8") as refusal:
        connected(Path("a.json"), b'{"secret": "\xff"}', VSCODE, ENTRY, [])
    assert refusal.value.__context__ is None


@pytest.mark.slow
@given(json_texts(), st.booleans())
@settings(max_examples=examples(100))
def test_any_file_comes_back(text: str, is_marked: bool) -> None:
    file = Path("mcp.json")
    data = (("\ufeff" if is_marked else "") + text).encode()
    servers = values(file, text).get("servers") or {}
    after, change = connected(file, data, VSCODE, ENTRY, [("servers", name) for name in sorted(servers)])
    assert list(values(file, after.decode("utf-8-sig"))["servers"]) == ["colonnade"]
    assert given_back(file, after, change, VSCODE).data == data
    other = given_back(file, after + b"\n", change, VSCODE)
    assert other.kept == []
    assert values(file, (other.data or b"").decode("utf-8-sig")).get("servers", {}) == servers


@pytest.mark.parametrize("moves", [[("mcpServers", "a")], []])
def test_a_server_that_was_added_before_our_entry_ends_in_no_comma(moves: list[tuple[str, str]]) -> None:
    """Some hosts refuse a file with a comma before its closing brace."""
    file, host = Path("claude_desktop_config.json"), ENTRY_FORMS["claude-desktop"]
    body = '\n    "a": {"command": "a"}\n  ' if moves else ""
    data = f'{{\n  "mcpServers": {{{body}}}\n}}\n'.encode()
    after, change = connected(file, data, host, ENTRY, moves)
    edited = after.replace(b'"mcpServers": {', b'"mcpServers": {\n    "new": {"command": "n"},', 1)
    json.loads(edited)
    given = given_back(file, edited, change, host).data
    assert given is not None
    assert list(json.loads(given)["mcpServers"]) == [*(name for _, name in moves), "new"]
