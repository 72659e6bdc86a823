"""Spans of TOML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.edit import CannotEdit, cut, has, insert, paste, values

FILE = Path("config.toml")
OURS = {"command": "/x/colonnade", "args": ["serve"], "env": {"A B": "c"}}

FULL = '''# mine
model = "x"  # a model

[mcp_servers.docs] # docs
command = """
[mcp_servers.trap]
"""
args = [ # all
  "[mcp_servers.docs.env]", "]", # "
]

# variables
[mcp_servers.docs.env]
A = 'b'
# about other

# of other
[other]
z = 1

[mcp_servers.docs.tools.search]
approval_mode = "approve"

[mcp_servers."a.b"]
url = "u"
'''
WITHOUT_DOCS = """# mine
model = "x"  # a model

# about other

# of other
[other]
z = 1

[mcp_servers."a.b"]
url = "u"
"""


def test_a_table_goes_with_the_tables_below_it_and_nothing_else() -> None:
    rest, piece = cut(FILE, FULL, ("mcp_servers", "docs"))
    assert rest == WITHOUT_DOCS
    assert "# variables" in piece
    again = paste(FILE, rest, ("mcp_servers", "docs"), piece).text
    assert values(FILE, again) == values(FILE, FULL)
    assert again.startswith(WITHOUT_DOCS)


def test_a_quoted_name_goes_with_the_blank_line_above() -> None:
    table = '[mcp_servers."a.b"]\nurl = "u"\n'
    rest, piece = cut(FILE, FULL, ("mcp_servers", "a.b"))
    assert (piece, rest) == (table, FULL.removesuffix(f"\n{table}"))


@pytest.mark.parametrize(
    "text", ["", "a = 1", "a = 1\n", FULL, FULL.replace("\n", "\r\n"), "# only\n", 'mcp_servers.a.url = "x"\nz = 1\n']
)
def test_a_new_table_stands_at_the_end(text: str) -> None:
    insertion = insert(FILE, text, ("mcp_servers", "colonnade"), OURS)
    assert insertion.text.startswith(text)
    assert insertion.text.endswith("\n") == (text == "" or text.endswith("\n"))
    assert ("\r\n" in text) == ("\r\n" in insertion.piece)
    assert values(FILE, insertion.text)["mcp_servers"]["colonnade"] == OURS


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers.a.url = "x"\nmcp_servers.b.url = "y"\nz = 1\n',
        '[mcp_servers]\na = { url = "x" }\nb = { url = "y" }\n',
        '[mcp_servers]\na.url = "x"\nb.url = "y"\n',
    ],
)
def test_a_server_in_another_form_comes_back_as_a_table(text: str) -> None:
    rest, piece = cut(FILE, text, ("mcp_servers", "a"))
    assert piece == '[mcp_servers.a]\nurl = "x"\n'
    assert values(FILE, paste(FILE, rest, ("mcp_servers", "a"), piece).text) == values(FILE, text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('mcp_servers = { a = { url = "x" } }\n', "by hand"),
        ("mcp_servers = 1\n", "by hand"),
        ("a = \n", "not TOML"),
    ],
)
def test_a_file_that_cannot_take_it_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CannotEdit, match=problem):
        insert(FILE, text, ("mcp_servers", "colonnade"), OURS)


def test_a_server_within_a_value_cannot_be_cut() -> None:
    with pytest.raises(CannotEdit, match='no "a" of its own'):
        cut(FILE, 'mcp_servers = { a = { url = "x" } }\n', ("mcp_servers", "a"))


PIECES = [
    '[mcp_servers.a]\ncommand = "x"\n',
    "[mcp_servers.a.env]\nX = 'y'   # why\n",
    '[mcp_servers.b]\nargs = [\n"[z]", # ]\n]\n',
    "[other]\ntext = '''\n[mcp_servers.a]\n'''\n",
    '[[list]]\nx = {a = [1, {b = "}"}]}\n',
    '["q\\"x"]\n"a = b" = 1979-05-27\n',
]


@given(
    st.permutations(PIECES), st.lists(st.sampled_from(["\n", "# c\n", "  \n"]), min_size=6, max_size=6), st.booleans()
)
def test_any_order_of_tables(pieces: list[str], between: list[str], windows: bool) -> None:
    text = "".join(gap + piece for gap, piece in zip(between, pieces, strict=True))
    text = text.replace("\n", "\r\n") if windows else text
    rest, piece = cut(FILE, text, ("mcp_servers", "a"))
    assert not has(values(FILE, rest), ("mcp_servers", "a"))
    assert values(FILE, paste(FILE, rest, ("mcp_servers", "a"), piece).text) == values(FILE, text)
    insertion = insert(FILE, text, ("mcp_servers", "c"), OURS)
    assert cut(FILE, insertion.text, ("mcp_servers", "c")).rest.rstrip() == text.rstrip()
