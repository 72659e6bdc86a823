"""Random files of hosts, as people and programs write them: comments, blank lines and line ends in odd places."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["github", "notes", "a b", 'q"uote', "ü", "{x}", "// no comment", "fetch"])
TEXTS = st.one_of(st.sampled_from(["", "npx", "*/", "/* x", "a, b", "],", "${env:X}", "\\", "ß"]), st.text(max_size=4))
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(-9, 999), st.none())
VALUES = st.recursive(
    SCALARS,
    lambda below: st.one_of(st.lists(below, max_size=3), st.dictionaries(NAMES, below, max_size=3)),
    max_leaves=6,
)
SERVERS = st.dictionaries(NAMES, st.dictionaries(st.sampled_from(["command", "args", "env"]), VALUES), max_size=3)
_GAPS = ["", "", "", " ", "\n", "\n  ", "\n\t", "\n\n    ", " // note, {\n  ", " /* a\n b */ ", "/**/", "  \n "]


@st.composite
def json_texts(draw: Any) -> str:
    """A JSON file with comments, final commas and any white space, which may hold servers."""
    newline = draw(st.sampled_from(["\n", "\n", "\r\n"]))
    gap = st.sampled_from(_GAPS)

    def space() -> str:
        return str(draw(gap)).replace("\n", newline)

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return (
                "{"
                + commas([f"{quoted(key)}{space()}:{space()}{written(below)}" for key, below in value.items()])
                + "}"
            )
        if isinstance(value, list):
            return "[" + commas([written(item) for item in value]) + "]"
        return quoted(value)

    def quoted(value: object) -> str:
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    def commas(items: list[str]) -> str:
        text = space() + f"{space()},{space()}".join(items) + space()
        return text + "," + space() if items and draw(st.booleans()) else text

    is_reversed = draw(st.booleans())
    root: dict[str, Any] = draw(st.dictionaries(st.sampled_from(["theme", "inputs", "x"]), VALUES, max_size=2))
    if draw(st.booleans()):
        root["servers"] = draw(SERVERS)
    if is_reversed:
        root = dict(reversed(list(root.items())))
    return space() + written(root) + space()
