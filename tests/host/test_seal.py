"""A sealed text opens for what it was made for, until its time, and not with one bit changed."""

from __future__ import annotations

import base64
import math
import os
import re
import struct
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from host.seal import KEY_BYTES, PREFIX, InvalidSeal, Seal, derive_key
from tests.kit.examples import examples

KEY = bytes(range(KEY_BYTES))
NOW = 1000.0


def at(now: float, key: bytes = KEY) -> Seal:
    """A seal whose clock stands at this time."""
    return Seal(key, lambda: now)


def close(content: bytes = b"content", key: bytes = KEY) -> str:
    return at(NOW, key).seal("state", b"alice", content, 60)


def refused(text: str, purpose: str = "state", bound: bytes = b"alice", now: float = NOW, key: bytes = KEY) -> None:
    with pytest.raises(InvalidSeal):
        at(now, key).unseal(purpose, bound, text)


@given(st.text(max_size=50), st.binary(max_size=100), st.binary(max_size=300), st.floats(allow_nan=False))
def test_what_was_closed_opens_before_its_time(purpose: str, bound: bytes, content: bytes, until: float) -> None:
    text = at(0.0).seal(purpose, bound, content, until)
    before = math.nextafter(until, -math.inf)
    if before < until:
        assert at(before).unseal(purpose, bound, text) == content
    for late in (until, math.inf):
        refused(text, purpose, bound, late)


def test_a_text_fits_into_a_header_and_a_url() -> None:
    """And says its format first."""
    for length in range(20):
        text = close(b"x" * length)
        assert re.fullmatch(r"c1\.[A-Za-z0-9_-]+", text)
        assert len(text) <= 52 + length * 4 / 3


def test_nothing_of_it_can_be_read_and_no_two_are_alike() -> None:
    """Neither the content, nor the purpose, nor what it is bound to (rule 80)."""
    texts = {at(NOW).seal("purpose", b"bound", b"content", 60) for _ in range(100)}
    assert len(texts) == 100
    for text in texts:
        carried = base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "==")
        assert not any(word in carried for word in (b"purpose", b"bound", b"content", struct.pack(">d", NOW + 60)))


@settings(max_examples=examples(10))
@given(st.binary(max_size=60))
def test_one_bit_of_the_text_changed_and_it_is_refused(content: bytes) -> None:
    """Any bit, those of the prefix and those that the last character has to spare included."""
    text = close(content)
    for at, character in enumerate(text):
        for bit in range(8):
            refused(text[:at] + chr(ord(character) ^ (1 << bit)) + text[at + 1 :])


@given(st.binary(max_size=40), st.data())
def test_another_character_anywhere_and_it_is_refused(content: bytes, data: st.DataObject) -> None:
    text = close(content)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    if changed != text:
        refused(changed)


@pytest.mark.parametrize("length", range(6))
def test_a_cut_and_an_extended_text_are_refused(length: int) -> None:
    text = close(b"x" * length)
    for end in range(len(text)):
        refused(text[:end])
        refused(text[len(text) - end :])
    for more in ("A", "AA", "AAA", "AAAA", "=", "==", "===", "\n", " ", "\0", ".", text):
        refused(text + more)
        refused(more + text)


@pytest.mark.parametrize("length", range(3))
def test_the_same_bytes_written_otherwise_are_refused(length: int) -> None:
    """With padding, in the other alphabet, with white space or foreign characters in between."""
    key = bytes(KEY_BYTES)
    text = next(each for each in (close(b"x" * (30 + length), key) for _ in range(1000)) if "-" in each and "_" in each)
    body = text.removeprefix(PREFIX)
    assert at(NOW, key).unseal("state", b"alice", text) == b"x" * (30 + length)
    for other in (
        body + ("=" * (-len(body) % 4) or "===="),
        body.replace("-", "+").replace("_", "/"),
        body.replace("-", "+"),
        f" {body}",
        f"{body}\n",
        f"{body[:8]}\n{body[8:]}",
        f"{body[:8]}!{body[8:]}",
        f"{body[:8]}é{body[8:]}",
        f"{body[:8]}\ud800{body[8:]}",
    ):
        refused(PREFIX + other, key=key)
    for prefix in ("", "c1", "C1.", "c2.", "c1:", " c1."):
        refused(prefix + body, key=key)


def test_it_opens_for_nothing_and_nobody_else() -> None:
    """Nor under the key of another process (rule 80)."""
    text = close()
    refused(text, purpose="cursor")
    refused(text, bound=b"bob")
    refused(text, bound=b"")
    refused(text, key=os.urandom(KEY_BYTES))
    assert at(NOW).unseal("state", b"alice", text) == b"content"


@pytest.mark.parametrize(("purpose", "bound"), [("statea", b"lice"), ("stat", b"ealice"), ("", b"statealice")])
def test_purpose_and_bound_do_not_run_into_each_other(purpose: str, bound: bytes) -> None:
    refused(close(), purpose, bound)


@pytest.mark.parametrize("text", ["", "c1.", "c1.A", "c1.AAAA", "c1." + "A" * 48, "é", "\ud800", "null", "c1." * 30])
def test_what_was_never_sealed_is_refused(text: str) -> None:
    refused(text)


def test_the_format_is_what_its_prefix_says() -> None:
    """Whoever has the key may be another version of this program: what it calls c1 must be made so, and whole."""

    def made(content: bytes, context: bytes) -> str:
        sealed = bytes(12) + ChaCha20Poly1305(bytes(range(KEY_BYTES))).encrypt(bytes(12), content, context)
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    content = struct.pack(">d", NOW + 60) + b"x"
    assert at(NOW).unseal("state", b"alice", made(content, b"c1.\0\0\0\5statealice")) == b"x"
    refused(made(content, b"c2.\0\0\0\5statealice"))
    refused(made(content[:7], b"c1.\0\0\0\5statealice"))


def test_a_time_that_is_none_has_passed() -> None:
    refused(at(NOW).seal("state", b"alice", b"", math.nan))
    refused(close(), now=math.nan)


def test_all_refusals_read_the_same() -> None:
    """They help nobody who tries."""
    said = set()
    for text, now in (
        (close(), NOW + 60),
        (close(key=os.urandom(KEY_BYTES)), NOW),
        ("x", NOW),
        (PREFIX + "A", NOW),
        ("é", NOW),
    ):
        with pytest.raises(InvalidSeal) as caught:
            at(now).unseal("state", b"alice", text)
        said.add(str(caught.value))
        assert caught.value.__cause__ is None
    assert said == {"it is not valid, or not valid any more"}


def test_whoever_has_the_key_opens_it_later_by_the_time_of_the_world() -> None:
    text = Seal(KEY).seal("state", b"alice", b"content", 60)
    assert Seal(KEY).unseal("state", b"alice", text) == b"content"
    assert at(time.time() + 30).unseal("state", b"alice", text) == b"content"
    refused(text, now=time.time() + 61)
    with pytest.raises(ValueError):
        Seal(b"short")


def test_one_secret_has_a_key_for_each_use() -> None:
    keys = {derive_key(KEY, b"a"), derive_key(KEY, b"b"), derive_key(bytes(KEY_BYTES), b"a"), KEY}
    assert (len(keys), {len(key) for key in keys}) == (4, {KEY_BYTES})
    assert derive_key(KEY, b"a") in keys
    for secret in (b"", b"short", bytes(KEY_BYTES + 1)):
        with pytest.raises(ValueError, match="expected 32 bytes"):
            derive_key(secret, b"a")


def test_the_first_key_seals_and_the_former_ones_open() -> None:
    """A key is changed in steps: known everywhere, then first, then gone."""
    old, new = KEY, bytes(KEY_BYTES)
    before, between, after = Seal(old, former=[new]), Seal(new, former=[old]), Seal(new)
    for text in (before.seal("state", b"alice", b"content", 60), between.seal("state", b"alice", b"content", 60)):
        assert before.unseal("state", b"alice", text) == between.unseal("state", b"alice", text) == b"content"
    assert after.unseal("state", b"alice", between.seal("state", b"alice", b"content", 60)) == b"content"
    with pytest.raises(InvalidSeal):
        after.unseal("state", b"alice", before.seal("state", b"alice", b"content", 60))
    with pytest.raises(ValueError):
        Seal(new, former=[b"short"])
