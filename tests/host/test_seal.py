"""A sealed text opens for what it was made for, until its time, and not with one bit changed."""

from __future__ import annotations

import base64
import math
import re
import struct

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from host.seal import KEY_BYTES, PREFIX, InvalidSeal, Seal

SEAL = Seal(bytes(range(KEY_BYTES)))
NOW = 1000.0


def close(content: bytes = b"content", seal: Seal = SEAL) -> str:
    return seal.seal("state", b"alice", content, NOW + 60)


def refused(text: str, purpose: str = "state", bound: bytes = b"alice", now: float = NOW, seal: Seal = SEAL) -> None:
    with pytest.raises(InvalidSeal):
        seal.unseal(purpose, bound, text, now)


@given(st.text(max_size=50), st.binary(max_size=100), st.binary(max_size=300), st.floats(allow_nan=False))
def test_what_was_closed_opens_before_its_time(purpose: str, bound: bytes, content: bytes, until: float) -> None:
    text = SEAL.seal(purpose, bound, content, until)
    before = math.nextafter(until, -math.inf)
    if before < until:
        assert SEAL.unseal(purpose, bound, text, before) == content
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
    texts = {SEAL.seal("purpose", b"bound", b"content", NOW + 60) for _ in range(100)}
    assert len(texts) == 100
    for text in texts:
        carried = base64.urlsafe_b64decode(text.removeprefix(PREFIX) + "==")
        assert not any(word in carried for word in (b"purpose", b"bound", b"content", struct.pack(">d", NOW + 60)))


@settings(max_examples=10)
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
    seal = Seal(bytes(KEY_BYTES))
    text = next(
        each for each in (close(b"x" * (30 + length), seal) for _ in range(1000)) if "-" in each and "_" in each
    )
    body = text.removeprefix(PREFIX)
    assert seal.unseal("state", b"alice", text, NOW) == b"x" * (30 + length)
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
        refused(PREFIX + other, seal=seal)
    for prefix in ("", "c1", "C1.", "c2.", "c1:", " c1."):
        refused(prefix + body, seal=seal)


def test_it_opens_for_nothing_and_nobody_else() -> None:
    """Nor under the key of another process (rule 80)."""
    text = close()
    refused(text, purpose="cursor")
    refused(text, bound=b"bob")
    refused(text, bound=b"")
    refused(text, seal=Seal())
    assert SEAL.unseal("state", b"alice", text, NOW) == b"content"


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
    assert SEAL.unseal("state", b"alice", made(content, b"c1.\0\0\0\5statealice"), NOW) == b"x"
    refused(made(content, b"c2.\0\0\0\5statealice"))
    refused(made(content[:7], b"c1.\0\0\0\5statealice"))


def test_a_time_that_is_none_has_passed() -> None:
    refused(SEAL.seal("state", b"alice", b"", math.nan))
    refused(close(), now=math.nan)


def test_all_refusals_read_the_same() -> None:
    """They help nobody who tries."""
    said = set()
    for text, now in ((close(), NOW + 60), (close(seal=Seal()), NOW), ("x", NOW), (PREFIX + "A", NOW), ("é", NOW)):
        with pytest.raises(InvalidSeal) as caught:
            SEAL.unseal("state", b"alice", text, now)
        said.add(str(caught.value))
        assert caught.value.__cause__ is None
    assert said == {"it is not valid, or not valid any more"}


def test_each_seal_has_a_key_of_its_own_and_a_given_one_is_used() -> None:
    key = bytes(range(1, KEY_BYTES + 1))
    assert Seal(key).unseal("state", b"alice", close(seal=Seal(key)), NOW) == b"content"
    refused(close(seal=Seal()), seal=Seal())
    with pytest.raises(ValueError):
        Seal(b"short")
