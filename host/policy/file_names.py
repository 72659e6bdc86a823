"""Names of files as lax file systems compare them. Pure functions, for conditions on paths and for rules on URIs."""

from __future__ import annotations

import re
import unicodedata

UNSEEN = ("Cc", "Cf", "Cs")
"""Categories of characters that some systems drop or cannot store, such as joiners."""

_ODD_SEGMENT = re.compile(r"[. ]*")


def loosened(path: str) -> str:
    """The path folded as by a file system that ignores case, forms of letters, and dots and blanks at the end of
    names."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())
    return "/".join(each if is_odd(each) else each.rstrip(". ") for each in plain.split("/"))


def loosened_pattern(pattern: str) -> str:
    """A pattern for `loosened` paths: of the same paths, and of those that a file system takes for them. A dot behind a
    star stays: without it, the pattern would be one for every name."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", without_unseen(pattern)).casefold())
    ends = [(each, each.rstrip(". ")) for each in plain.split("/")]
    return "/".join(each if end[-1:] in ("", "*", "?") else end for each, end in ends)


def without_unseen(text: str) -> str:
    """The text without the characters of `UNSEEN`."""
    if text.isprintable():
        return text
    return "".join(char for char in text if unicodedata.category(char) not in UNSEEN)


def is_odd(name: str) -> bool:
    """Whether the name is empty, or of dots and blanks alone."""
    return _ODD_SEGMENT.fullmatch(name) is not None
