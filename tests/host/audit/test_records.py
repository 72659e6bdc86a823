"""Every record has the form that the module describes, whatever text is in it."""

from __future__ import annotations

import hashlib
import os
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from host.audit.records import NO_FORMER_HASH
from host.audit.verify import Integrity
from host.audit.writer import open_audit
from tests.host.audit.kit import FIELDS, decoded, verify, written


def test_a_record_is_what_the_page_says(folder: Path) -> None:
    before = time.time()
    path = written(folder)
    found = decoded(path)
    assert [record["kind"] for record in found] == ["start", *["decision"] * 5, "stop"]
    assert [record["seq"] for record in found] == list(range(1, 8))
    assert found[0]["file"] == path.name
    assert found[0]["pid"] == os.getpid()
    assert found[0]["prev"] == NO_FORMER_HASH
    assert found[1].items() >= FIELDS.items()
    for earlier, later in pairwise(found):
        assert later["prev"] == earlier["hash"]
        assert str(later["ts"]) >= str(earlier["ts"])
        assert isinstance(later["mono"], int)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found[0]["ts"]))
    assert str(found[0]["ts"])[:16] in {
        time.strftime("%Y-%m-%dT%H:%M", time.gmtime(at)) for at in (before, time.time())
    }
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}\.\d{{6}}Z-{os.getpid()}\.jsonl", path.name)


def test_the_hash_is_over_canonical_json(folder: Path) -> None:
    """As another program would compute it, from the page alone."""
    with open_audit(folder) as audit:
        audit.write(
            "decision",
            **FIELDS,
            odd="\u202e\x7f\n\t\x1b é “日本” \U0001f600 \ud800",
            nested={"é": [{"z": 1, "a": None}]},
        )
        assert audit.path is not None
    for record in decoded(audit.path):
        claimed = record.pop("hash")
        digest = hashlib.sha256(str(record["prev"]).encode() + rfc8785.dumps(record))  # type: ignore[arg-type]
        assert claimed == f"sha256:{digest.hexdigest()}"
    assert verify(audit.path).integrity is Integrity.OK


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.text("abcxyz_", min_size=5, max_size=9), values, max_size=4), max_size=8))
def test_records_in_general(tmp_path_factory: pytest.TempPathFactory, many: list[dict[str, object]]) -> None:
    folder = tmp_path_factory.mktemp("audit")
    with open_audit(folder) as audit:
        for number, fields in enumerate(many):
            assert audit.write("outcome", **fields) == number + 2
    assert audit.path is not None
    found = verify(audit.path)
    assert (found.integrity, found.records) == (Integrity.OK, len(many) + 2)
    text = audit.path.read_text("utf-8")
    assert all(char.isprintable() or char == "\n" for char in text)
    for record in decoded(audit.path):
        claimed = record.pop("hash")
        body = str(record["prev"]).encode() + rfc8785.dumps(record)  # type: ignore[arg-type]
        assert claimed == f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize(
    "name",
    [
        'x"}\n{"v":1,"seq":3,"kind":"grant"}',
        "x\r\nfake",
        "x\u2028fake\u2029\x85",
        "\x1b[2J\x1b]0;title\x07\x9b1m\x7f",
        "\u202egnp.exe\u200b",
        "half \ud800 and \udfff",
        "\\",
        "\x00",
        "100 %d %b %%",
    ],
)
def test_a_name_begins_no_line_and_moves_no_cursor(folder: Path, name: str) -> None:
    with open_audit(folder) as audit:
        audit.write("decision", item=name, args={"shape": {name: "str[1]"}}, list=[name])
        assert audit.path is not None
    raw = audit.path.read_bytes()
    text = raw.decode()
    assert raw.count(b"\n") == 3
    assert text.count('"kind":"grant"') == 0
    assert all(char.isprintable() or char == "\n" for char in text)
    assert len(text.splitlines()) == 3
    found = verify(audit.path)
    assert (found.integrity, found.records) == (Integrity.OK, 3)
