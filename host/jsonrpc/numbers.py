"""Numbers of JSON text that every reader takes for the same one.

JSON does not limit numbers (RFC 8259, 6). Most readers take a 64-bit float, some an integer or a decimal number, and
they round differently. A comparison with a number that they read differently decides about another number than the one
that the server gets.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

MAX_INTEGER = 2**53
"""Magnitude of the largest integer that no float takes for a neighbour."""
MAX_LENGTH = 40
"""Characters of a number with a fraction or an exponent. Some readers cut a long one: cJSON copies 64 bytes."""
MAX_PLACES = 28
"""Digits after the point in the decimal numbers of .NET, which round a number that has more, the smallest to 0."""


class WrittenFloat(float):
    """A 64-bit float with the text that it was read from. The text is looked at only if the number is compared."""

    __slots__ = ("text",)
    text: str


def read_float(text: str) -> WrittenFloat:
    """The value of a JSON number with a fraction or an exponent."""
    found = WrittenFloat(text)
    found.text = text
    return found


def is_exact(number: float) -> bool:
    """Whether the text of a number is one that readers of floats and of decimal numbers take for the same one. A float
    without a text counts as written in the shortest way."""
    if isinstance(number, int):
        return -MAX_INTEGER <= number <= MAX_INTEGER
    text = _text(number)
    if len(text) > MAX_LENGTH:
        return False
    try:
        return Decimal(text) == Decimal(float.__repr__(number))
    except InvalidOperation:  # the exponent is beyond any decimal number
        return False


def is_comparable(number: float) -> bool:
    """Whether every reader takes the text of a number for the same one: it `is_exact`, and has no more places than the
    shortest type of decimal numbers."""
    if not is_exact(number):
        return False
    places = 0 if isinstance(number, int) else Decimal(_text(number)).normalize().as_tuple().exponent
    return isinstance(places, int) and places >= -MAX_PLACES


def _text(number: float) -> str:
    return number.text if isinstance(number, WrittenFloat) else float.__repr__(number)


def compare(one: float, other: float) -> int | None:
    """-1, 0 or 1, as a number that `is_comparable` is less than another one, equal or greater. None if readers
    disagree, because the other one is an integer that floats round."""
    order = (one > other) - (one < other)
    if isinstance(other, int) and not is_exact(other):
        try:
            rounded = float(other)
        except OverflowError:
            return None
        written = Decimal(repr(one) if isinstance(one, int) else float.__repr__(one))
        if order != (one > rounded) - (one < rounded) or order != (written > other) - (written < other):
            return None
    return order
