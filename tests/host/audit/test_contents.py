"""Arguments and results in records: what is replaced, what stays, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from host.audit.contents import LONGEST_TEXT, MOST_KEPT, Contents

CONFIGURED = 'hunter/22"ü\\'
REDACTED = Contents(lambda: [CONFIGURED])
FULL = Contents(None)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["--key", "$${", "${env:A:-b}"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["token", "key"]), inner),
)


def encoded(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def redacted(value: object) -> Any:
    (text,) = REDACTED.of(encoded(value)).values()
    return json.loads(text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"title": "a roof", "n": 3, "f": 1.0, "of": [None, True]}, None),
        ({"day": "2026-11-21", "id": "123e4567-e89b-12d3-a456-426614174000"}, None),
        ({"next_page_id": "test_of_the_history_of_2_calls"}, None),
        ({"path": "/home/ann/work-2/notes/long-name-of-a-file.txt"}, None),
        ({"said": "a basic understanding of tokens"}, None),
        ({"said": f"it is {CONFIGURED}."}, {"said": "it is ***."}),
        ({CONFIGURED: 1}, {"***": 1}),
        ({"api_key": "x", "pin": 1234, "secret": ""}, {"api_key": "***", "pin": "***", "secret": ""}),
        (
            {"password": {"old": "x", "is": True, "of": [None, 1]}},
            {"password": {"old": "***", "is": True, "of": [None, "***"]}},
        ),
        (["run", "--api-key", "x", "--n=1", "TOKEN=y"], ["run", "--api-key", "***", "--n=1", "TOKEN=***"]),
        ("https://u:pw@h/x?token=abc&q=1", "https://u:***@h/x?token=***&q=1"),
        ("Authorization: Bearer abc-def.123", "Authorization: ***"),
        ("mysql --password hunter2 -e x", "mysql --password *** -e x"),
        ("A=1 TOKEN=abc  run --env=SECRET=ef\t-t x", "A=1 TOKEN=***  run --env=SECRET=***\t-t x"),
        ('got {"token": "abc", "n": 1}', 'got {"token": *** "n": 1}'),
        ("the key of a door, pass: by", "the key of a door, pass: ***"),
        ("Basic dXNlcjpwYXNz", "***"),
        ("push with ghp_abcdefgh12 to it", "push with *** to it"),
        ("of d41d8cd98f00b204e9800998ecf8427e.", "of ***."),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----", "***"),
        ("x" * LONGEST_TEXT, None),
        (CONFIGURED + "x" * LONGEST_TEXT, f"str[{LONGEST_TEXT + len(CONFIGURED)}]"),
        ({"text": '{"token": "abc", "id": 7}'}, {"text": '{"token":"***","id":7}'}),
        ({"text": '{"id": 7}'}, None),
        ({"text": '{"id": ' + CONFIGURED}, {"text": '{"id": ***'}),
    ],
)  # fmt: skip
def test_what_must_not_be_kept_is_replaced_and_the_rest_stays(value: object, shown: object) -> None:
    """Where nothing is replaced, the record says so: rules can be tried on it."""
    (name,) = REDACTED.of(encoded(value))
    assert (name, redacted(value)) == (("json", value) if shown is None else ("redacted", shown))
    assert FULL.of(encoded(value)) == {"json": bytes(encoded(value)).decode()}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'"' + b"x" * MOST_KEPT + b'"', "longer than 32 KiB"),
        (b"[" + b"1," * 6000 + b"1]", "more than 5,000 values"),
        (b"[" * 4000 + b"]" * 4000, "unreadable"),
        (b"[1e400]", "unreadable"),
        (b'["\xff"]', "unreadable"),
    ],
)
def test_what_is_too_much_is_left_out(raw: bytes, why: str) -> None:
    assert REDACTED.of(Raw(raw)) == {"left_out": why}
    assert ("left_out" in FULL.of(Raw(raw))) is (len(raw) > MOST_KEPT)


@pytest.mark.slow
@given(values, st.sampled_from(["", "x", " "]))
def test_no_value_makes_it_fail_and_no_configured_secret_stays(value: Any, beside: str) -> None:
    given = {"a": value, "b": [f"{beside}{CONFIGURED}", json.dumps({"c": CONFIGURED}), value]}
    (text,) = REDACTED.of(encoded(given)).values()
    assert CONFIGURED not in text
    assert "hunter" not in text
