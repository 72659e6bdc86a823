"""Long texts of arguments are shown as text and edits as differences, and nothing of the arguments is left out."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from host.policy.argument_texts import outlined
from host.policy.fingerprint import pretty, visible_lines
from host.policy.rows import ArgumentText
from tests.kit.cost import assert_costs_less

LINES = st.text(st.sampled_from("ab\n\t\0\r\"'⟨1⟩\u202e"), max_size=12)
NAMES = st.sampled_from(["oldText", "newText", "old_string", "new_string", "a", "text 1", "", "\0", "x\ny"])
VALUES = st.recursive(
    LINES | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def layout(value: object) -> str:
    return "".join(f"<{piece['text']}>" if piece["mark"] else piece["text"] for piece in outlined(dumped(value))[0])


def only(value: object) -> ArgumentText:
    (found,) = outlined(dumped(value))[1]
    return found


def side(text: ArgumentText, *ops: str) -> str:
    """The text, or what an edit makes of it, as it is shown."""
    return "\n".join(piece["text"] for piece in text["pieces"] if piece["op"] in ops)


def test_a_text_of_several_lines_stands_beside_the_layout() -> None:
    value = {"path": "a.py", "content": "def f():\n\treturn 1\n", "mode": "w\n"}
    assert layout(value) == '{\n  "content": <text 1>,\n  "mode": "w\\n",\n  "path": "a.py"\n}'
    assert only(value) == {
        "kind": "text",
        "name": "content",
        "pieces": [{"op": "same", "text": "def f():\n\treturn 1\n"}],
    }


def test_short_arguments_have_no_texts() -> None:
    values: list[object] = [{"a": "one line", "b": [1, None]}, {}, [], "x", {"old_string": 1, "new_string": "x"}]
    for value in values:
        assert outlined(dumped(value)) == ([], [])
    assert outlined(b"") == outlined(b'{"a": "x\\ny"') == outlined(b"[" * 50_000) == ([], [])


def test_an_edit_is_a_difference_line_by_line_with_what_was_removed_first() -> None:
    value = {"edits": [{"oldText": "a\nb\nc\nd", "newText": "a\nB\nC\nd"}, {"old_str": "x", "new_str": ""}]}
    outline = layout(value)
    for mark in ("<edit 1: removed>", "<edit 1: added>", "<edit 2: removed>", "<edit 2: added>"):
        assert mark in outline
    first, second = outlined(dumped(value))[1]
    assert (first["kind"], first["name"]) == ("edit", "oldText, newText")
    assert [(piece["op"], piece["text"]) for piece in first["pieces"]] == [
        ("same", "a"),
        ("removed", "b\nc"),
        ("added", "B\nC"),
        ("same", "d"),
    ]
    assert second["pieces"] == [{"op": "removed", "text": "x"}]


def test_a_text_that_is_a_difference_keeps_its_signs() -> None:
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-old\n+new\n same\n"
    text = only({"patch": patch})
    assert (text["kind"], side(text, "same", "added", "removed")) == ("patch", patch)
    assert (side(text, "removed"), side(text, "added")) == ("-old", "+new")
    assert only({"note": "- a list\n+ is no patch"})["kind"] == "text"
    assert only({"input": "*** Begin Patch\n-x\n*** End Patch"})["kind"] == "patch"


def test_members_that_are_there_twice_are_all_shown() -> None:
    outline, texts = outlined(b'{"old_string": "a\\nb", "old_string": "c", "new_string": "d\\ne"}')
    assert "".join(piece["text"] for piece in outline) == (
        '{\n  "new_string": text 1,\n  "old_string": text 2,\n  "old_string": "c"\n}'
    )
    assert [text["kind"] for text in texts] == ["text", "text"]


@given(VALUES)
def test_with_the_texts_in_their_places_the_layout_is_that_of_the_json(value: object) -> None:
    outline, texts = outlined(dumped(value))
    if not texts:
        assert outline == []
        return
    shown = ""
    for piece in outline:
        if piece["mark"]:
            kind, number, op = re.fullmatch(r"(\w+) (\d+)(?:: (\w+))?", piece["text"]).groups()  # type: ignore[union-attr]
            text = texts[int(number) - 1]
            assert kind == text["kind"]
            shown += json.dumps(side(text, "same", *([op] if op else ["added", "removed"])), ensure_ascii=False)
        else:
            assert not re.search(r"[^\n\S ]", piece["text"])
            shown += piece["text"]
    # Here the texts are visible already, and there before they are written as JSON.
    assert shown == visible_lines(pretty(dumped(_visible(value))))


def _visible(value: object) -> object:
    """The value with every text made visible as it is beside the layout, if it is there."""
    if isinstance(value, dict):
        made = {name: _visible(each) for name, each in value.items()}
        for old, new in (("oldText", "newText"), ("old_string", "new_string")):
            if isinstance(value.get(old), str) and isinstance(value.get(new), str):
                made |= {name: visible_lines(value[name], "\n\t") for name in (old, new)}
        return made
    if isinstance(value, list):
        return [_visible(each) for each in value]
    is_long = isinstance(value, str) and "\n" in value.strip("\n")
    return visible_lines(value, "\n\t") if is_long and isinstance(value, str) else value


def test_many_edits_of_long_texts_take_no_long_time() -> None:
    old, new = ("\n".join(f"{word}{at}" for at in range(300)) for word in ("old", "new"))
    raw = dumped({"edits": [{"oldText": old, "newText": new}] * 100})
    assert_costs_less(lambda: outlined.__wrapped__(raw), 0.3)
