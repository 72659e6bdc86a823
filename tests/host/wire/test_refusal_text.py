"""The text of a response that is no message, for a person: of pages, JSON and plain text, without parts of secrets."""

from __future__ import annotations

from functools import partial

import pytest

from host.wire.refusal_text import MAX_SAID, readable_text
from tests.kit.cost import assert_costs_less

CHALLENGE = b"""<!DOCTYPE html><html lang="en-US"><head><title>Just a moment...</title>
<style>*{box-sizing:border-box}</style><script>(function(){window._cf_chl_opt={cZone:"x"}})();</script></head>
<body class="no-js"><div><noscript>Enable JavaScript and cookies to continue</noscript></div></body></html>"""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (b"no access from here\n", "no access from here\n"),
        (CHALLENGE, "Just a moment... Enable JavaScript and cookies to continue"),
        (b"\xef\xbb\xbf<h1>Not&nbsp;allowed &amp; logged</h1>", "Not\xa0allowed & logged"),
        (b"<p>open", "open"),
        (b"< less", " less"),
        (b"<SCRIPT>no</SCRIPT ><b>yes", "yes"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>No</Message></Error>", "AccessDenied No"),
        (b'{"error":"access_denied","error_description":"not this address"}',
         "error_description: not this address, error: access_denied"),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"\\u00dcber"}}',
         "message: Über, code: -32001"),
        (b'{"errors":[{"detail":"a"},{"detail":"b"}],"status":403}', "detail: a, detail: b, status: 403"),
        (b'"Forbidden"', "Forbidden"),
        (b"[]", ""),
        (b"[" * 9000, "[" * 9000),
        (b"\x1f\x8b\x08\x00\xff", ""),
    ],
)  # fmt: skip
def test_what_a_person_can_read_of_a_body(body: bytes, text: str) -> None:
    assert readable_text(body, whole=True) == text


def test_of_a_long_body_only_the_title_counts() -> None:
    """The end of what was read may be the beginning of a secret."""
    assert readable_text(CHALLENGE + b"s3cr", whole=False) == "Just a moment..."
    assert readable_text(b"x s3cr", whole=False) == ""
    assert readable_text(b"<title>unended s3cr", whole=False) == ""
    assert readable_text(b"x" * MAX_SAID) == "x" * MAX_SAID
    assert readable_text(b"x" * MAX_SAID + b"y") == ""


@pytest.mark.parametrize(
    "piece", [b"<", b"<script", b"<a", b"<script>", b"<title>", b"&", b"x<!", b'{"a":', b"[", b"<!-- "]
)
def test_no_body_takes_long(piece: bytes) -> None:
    body = (piece * MAX_SAID)[:MAX_SAID]
    for whole in (True, False):
        assert_costs_less(partial(readable_text, body, whole=whole), 0.01)
