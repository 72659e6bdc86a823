"""Spans of YAML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.edit import CannotEdit, append, cut, has, insert, paste, values
from tests.kit.examples import examples

FILE = Path("config.yaml")
OURS = {"enabled": True, "type": "stdio", "cmd": "/x/colonnade", "args": ["serve", "--stdio"], "timeout": 300}
ITEM = {"name": "colonnade", "command": "/x/colonnade"}

GOOSE = """# mine
GOOSE_MODEL: x
extensions:   # all
  # about notes
  notes:
    cmd: uvx
    envs: {A: b}   # why
    text: |
      [x]

      more

  tickets:
    uri: https://x
# end
other: 1
"""
CONTINUE = """mcpServers:
- name: a # first
  env:
    X: y
# about b
- name: b
models: []
"""


def test_an_entry_goes_below_the_line_of_its_map() -> None:
    insertion = insert(FILE, GOOSE, ("extensions", "colonnade"), OURS)
    assert insertion.text == GOOSE.replace(
        "# all\n",
        '# all\n  colonnade:\n    enabled: true\n    type: "stdio"\n    cmd: "/x/colonnade"\n'
        '    args: ["serve", "--stdio"]\n    timeout: 300\n',
    )
    assert cut(FILE, insertion.text, ("extensions", "colonnade")).rest == GOOSE


def test_an_item_goes_to_the_front_of_its_list() -> None:
    insertion = insert(FILE, CONTINUE, ("mcpServers", 0), ITEM)
    assert insertion.text == CONTINUE.replace(
        "mcpServers:\n", 'mcpServers:\n- name: "colonnade"\n  command: "/x/colonnade"\n'
    )
    assert cut(FILE, insertion.text, ("mcpServers", 0)).rest == CONTINUE


def test_comments_around_an_entry_stay() -> None:
    rest, piece = cut(FILE, GOOSE, ("extensions", "notes"))
    assert rest == GOOSE[: GOOSE.index("  notes:")] + GOOSE[GOOSE.index("\n  tickets:") :].removeprefix("\n")
    assert "# about notes\n" in rest
    assert values(FILE, paste(FILE, rest, ("extensions", "notes"), piece).text) == values(FILE, GOOSE)
    rest, piece = cut(FILE, CONTINUE, ("mcpServers", 0))
    assert (rest, piece) == ("mcpServers:\n# about b\n- name: b\nmodels: []\n", "- name: a # first\n  env:\n    X: y\n")
    assert values(FILE, paste(FILE, rest, ("mcpServers", 0), piece).text) == values(FILE, CONTINUE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'extensions:\n  c:\n    uri: "u"\n'),
        ("a: 1", 'a: 1\nextensions:\n  c:\n    uri: "u"'),
        ("extensions:\n", 'extensions:\n  c:\n    uri: "u"\n'),
        ("extensions:", 'extensions:\n  c:\n    uri: "u"'),
        ("extensions: {}\n", 'extensions: {"c": {"uri": "u"}}\n'),
        ("extensions: {a: {b: 1}}\n", 'extensions: {"c": {"uri": "u"}, a: {b: 1}}\n'),
        (
            "extensions:\r\n    a:\r\n        b: 1\r\n",
            'extensions:\r\n    c:\r\n      uri: "u"\r\n    a:\r\n        b: 1\r\n',
        ),
    ],
)
def test_the_style_of_the_file_is_kept(text: str, expected: str) -> None:
    assert insert(FILE, text, ("extensions", "c"), {"uri": "u"}).text == expected


def test_the_last_entry_leaves_an_empty_collection() -> None:
    text = "extensions: # c\n  a:\n    uri: u\nz: 1\n"
    rest, piece = cut(FILE, text, ("extensions", "a"))
    assert rest == "extensions: {} # c\nz: 1\n"
    assert values(FILE, paste(FILE, rest, ("extensions", "a"), piece).text) == values(FILE, text)
    rest, piece = cut(FILE, "mcpServers:\n  - name: a\n", ("mcpServers", 0))
    assert rest == "mcpServers: []\n"
    assert values(FILE, paste(FILE, rest, ("mcpServers", 0), piece).text) == {"mcpServers": [{"name": "a"}]}


def test_entries_between_commas() -> None:
    text = "extensions: {a: {x: 1}, b: {y: 2} , c: 3}\n"
    for name in "abc":
        rest, piece = cut(FILE, text, ("extensions", name))
        assert values(FILE, paste(FILE, rest, ("extensions", name), piece).text) == values(FILE, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("extensions: null\n", 'its "extensions" is no map'),
        ("extensions: x\n", 'its "extensions" is no map'),
        ("extensions: {c: 1}\n", 'it has "c" already'),
        ("extensions: &x\n  a: 1\n", "something beside it"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: !tag x\n", "not YAML"),
        ("{a: 1}\n", "by hand"),
        ("a: 1\n...\n", "by hand"),
    ],
)
def test_a_file_that_cannot_take_it_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CannotEdit, match=problem):
        insert(FILE, text, ("extensions", "c"), {"uri": "u"})


def test_what_is_used_elsewhere_cannot_be_cut() -> None:
    with pytest.raises(CannotEdit):
        cut(FILE, "extensions:\n  a: &x {u: 1}\n  b: *x\n", ("extensions", "a"))
    rest, _ = cut(FILE, "extensions:\n  a: &x {u: 1}\n  b: *x # alias\n  c: 1\n", ("extensions", "b"))
    assert rest == "extensions:\n  a: &x {u: 1}\n  c: 1\n"


ENTRIES = [
    "a:\n  cmd: x\n  args:\n  - b # c\n",
    "b: {cmd: x}\n",
    '"c d":\n  # why\n  text: >-\n    folded\n\n    more\n',
    "e:\n  null: ~\n  last:\n",
    "f: 'two\n\n  lines'\n",
]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    st.permutations(ENTRIES), st.lists(st.sampled_from(["", "\n", "# note\n"]), min_size=5, max_size=5), st.booleans()
)
def test_any_order_of_entries(entries: list[str], between: list[str], windows: bool) -> None:
    block = "".join(gap + entry for gap, entry in zip(between, entries, strict=True))
    text = "extensions:\n" + "".join(f"   {line}" if line.strip() else line for line in block.splitlines(True))
    text = text.replace("\n", "\r\n") if windows else text
    assert cut(FILE, insert(FILE, text, ("extensions", "c"), OURS).text, ("extensions", "c")).rest == text
    added = append(FILE, text, ("extensions", "z"), {"x": 1}, "z:\n  x: 1\n")
    assert list(values(FILE, added)["extensions"])[-1] == "z"
    assert cut(FILE, added, ("extensions", "z")).rest == text
    for name in ("a", "b", "c d", "e", "f"):
        rest, piece = cut(FILE, text, ("extensions", name))
        assert not has(values(FILE, rest), ("extensions", name))
        assert values(FILE, paste(FILE, rest, ("extensions", name), piece).text) == values(FILE, text)


def test_a_name_may_be_a_word_for_a_truth() -> None:
    """A server `off` or `no` is a name for all who read the file."""
    text = "servers:\n  no:\n    command: x\n"
    piece = "off:\n  command: y\n"
    made = paste(FILE, text, ("servers", "off"), piece).text
    assert values(FILE, made) == {"servers": {"off": {"command": "y"}, "no": {"command": "x"}}}
    assert cut(FILE, made, ("servers", "off")) == (text, piece)
    flow = paste(FILE, "servers: {}\n", ("servers", "off"), piece).text
    assert values(FILE, flow) == {"servers": {"off": {"command": "y"}}}


@pytest.mark.parametrize(
    "expected",
    [
        "servers:\n<>",
        "# mine\nservers:\n<># of z\nz: 1\n",
        "servers:\n  a: {b: 1} # x\n<>",
        "servers:\n  a:\n    b: 1\n    # of a\n<>z: 1\n",
        "servers:\n  a: {}\n\n  # b:\n  #   x\n<>\n# of z\nz: 1\n",
        "servers:\n  a: {}\n\n  b: {}\n\n<>\nz: 1\n",
        "servers:\n  a: {}\n\n  b: {}\n\n<>",
        "servers:\n  a:\n    b: |\n      x\n<>",
        "servers:\n  a:\n  - b\n<>z: 1\n",
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_entry_that_is_added_is_the_last_one(expected: str, newline: str) -> None:
    """Behind the comments of the last one, before those of the next key; between blank lines with one of its own."""
    text = re.sub("(?<=\n)\n<>", "", expected).replace("<>", "").replace("\n", newline)
    made = append(FILE, text, ("servers", "c"), {"url": "u"}, "c:\n  url: u\n")
    assert made == expected.replace("<>", "  c:\n    url: u\n").replace("\n", newline)
    assert list(values(FILE, made)["servers"])[-1] == "c"
    if values(FILE, text)["servers"]:
        assert cut(FILE, made, ("servers", "c")).rest == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "servers:\n  c:\n    url: u\n"),
        ("# mine\n", "# mine\nservers:\n  c:\n    url: u\n"),
        ("servers: {}\n", 'servers: {"c": {"url": "u"}}\n'),
        ("servers: {a: {b: 1}} # x\n", 'servers: {a: {b: 1}, "c": {"url": "u"}} # x\n'),
        ("servers:\n  a: {b: 1} # x", "servers:\n  a: {b: 1} # x\n  c:\n    url: u"),
    ],
)
def test_an_entry_is_added_to_other_forms(text: str, expected: str) -> None:
    assert append(FILE, text, ("servers", "c"), {"url": "u"}, "c:\n  url: u\n") == expected
