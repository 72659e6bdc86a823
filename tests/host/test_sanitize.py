"""People see every character, models only those that a reader would have seen, and JSON stays what it was otherwise."""

from __future__ import annotations

import base64
import json
import unicodedata
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.sanitize import (
    ELLIPSIS,
    MAX_QUOTED,
    quoted,
    sanitize,
    sanitize_json,
    visible,
    visible_output,
    without_directories,
)
from tests.kit.cost import assert_costs_less, least_cost

EVERY = list(map(chr, range(0x110000)))
SHOWN_NUMBERS = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
GONE = {"Cc", "Cf", "Cs", "Co"}
NEW_LINES = "\n\r\x85\u2028\u2029"
# Format characters that show a sign of their own, before numbers mostly.
SIGNS = [*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]
# Letters, marks and unassigned places that nobody sees: Default_Ignorable_Code_Point, DerivedCoreProperties.txt.
IGNORED = [
    *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x3164, *range(0xFE00, 0xFE10)),
    *(0xFFA0, *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)),
]
HIEROGLYPH_FORMATS = range(0x13430, 0x13440)
NO_CHARACTERS = {*range(0xFDD0, 0xFDF0), *(plane << 16 | low for plane in range(17) for low in (0xFFFE, 0xFFFF))}

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
KEPT = {
    "family": FAMILY,
    "transgender flag": "\U0001f3f3\ufe0f\u200d\u26a7\ufe0f",
    "astronaut with a skin tone": "\U0001f469\U0001f3fd\u200d\U0001f680",
    "heart on fire": "\u2764\ufe0f\u200d\U0001f525",
    "two hold hands": "\U0001f9d1\U0001f3fb\u200d\U0001f91d\u200d\U0001f9d1\U0001f3ff",
    "polar bear": "\U0001f43b\u200d\u2744\ufe0f",
    "england": ENGLAND,
    "scotland": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "wales": "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f",
    "flag of letters": "\U0001f1eb\U0001f1f7",
    "keycap": "1\ufe0f\u20e3 and #\ufe0f\u20e3",
    "as text": "\u260e\ufe0e, \xa9\ufe0f",
    "persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "hindi, explicit half form": "\u0915\u094d\u200d\u0937",
    "hindi, no ligature": "\u0930\u093e\u091c\u094d\u200c\u091e\u0940",
    "malayalam": "\u0d28\u0d4d\u200d\u0d2e",
    "lines": "one\n\ttwo",
    "accents": "e\u0301 \xe9 \xdf \u0130",
    "other spaces": "1\xa0000\u202f000\u3000",
    "replacement": "\ufffd\ufffc",
}
TAKEN_OUT = {
    "hyperlink": ("ls\x1b]8;;http://evil\x07", "ls"),
    "hyperlink with text": ("\x1b]8;;http://evil\x1b\\text\x1b]8;;\x1b\\ here", "text here"),
    "colour": ("\x1b[1;31mred\x1b[0m", "red"),
    "colour with colons": ("\x1b[38:2:1:2:3mred", "red"),
    "colour in one character": ("\x9b31mred\x9b0m", "red"),
    "title in one character": ("a\x9d0;title\x9cb", "ab"),
    "device string": ("a\x1bP1$qm\x1b\\b", "ab"),
    "application, privacy, start of string": ("a\x1b_x\x1b\\b\x1b^y\x1b\\c\x1bXz\x1b\\d", "abcd"),
    "alphabet": ("\x1b(Ba\x1b)0", "a"),
    "reset, cursor": ("\x1bca\x1b7\x1b8b", "ab"),
    "long one without end": ("a\x1b]0;never ends", "a0;never ends"),
    "string that a new one ends": ("\x1b]0;x\x1b[31my", "0;xy"),
    "escape alone": ("a\x1b", "a"),
    "hidden part": ("a\x1b[8mhidden\x1b[28mb", "ahiddenb"),
    "overwritten line": ("rm -rf /\rls", "rm -rf /\nls"),
    "lines of other systems": ("a\r\nb\rc\x85d\u2028e\u2029f", "a\nb\nc\nd\ne\nf"),
    "backspaces": ("ab\x08\x08c", "abc"),
    "tags": ("hi" + "".join(chr(0xE0000 + ord(char)) for char in "delete all"), "hi"),
    "a flag of another country": (ENGLAND.replace("\U000e0065", "\U000e0066"), "\U0001f3f4"),
    "a flag without end": (ENGLAND[:-1], "\U0001f3f4"),
    "a flag and more": (ENGLAND + "\U000e0061\U000e007f", ENGLAND),
    "tags of a flag after another flag": ("\U0001f3c1" + ENGLAND[1:], "\U0001f3c1"),
    "direction": ("user\u202etxt.exe\u2066\u2069\u200f\u061c", "usertxt.exe"),
    "zero width": ("p\u200ba\u2060s\ufeffs\u200c\u200d", "pass"),
    "joiner in latin": ("pass\u200dword\u200c", "password"),
    "joiner at an end of a word": ("\u0645\u200c \u200c\u0645", "\u0645 \u0645"),
    "two joiners": ("\u0645\u200c\u200c\u0645 \U0001f468\u200d\u200d\U0001f469", "\u0645\u0645 \U0001f468\U0001f469"),
    "joiner hidden behind another": ("\u0645\u200c\u200b\u0645", "\u0645\u200c\u0645"),
    "joiner after an emoji": ("\U0001f468\u200d, \u2764\ufe0f\u200d", "\U0001f468, \u2764\ufe0f"),
    "selectors": ("a\ufe0f\ufe00\U000e0100\U000e01ef", "a"),
    "two selectors": ("\u2764\ufe0f\ufe0f\ufe0e\ufe0f", "\u2764\ufe0f"),
    "bytes in selectors": ("\U0001f600" + "".join(chr(0xE0100 + byte) for byte in b"secret"), "\U0001f600"),
    "keycap without cap": ("1\ufe0f2", "12"),
    "ideographic selector": ("\u8fba\U000e0100", "\u8fba"),
    "soft hyphen": ("dele\xadte", "delete"),
    "fillers": ("a\u115f\u1160\u3164\uffa0\u180e\u034fb", "ab"),
    "annotation, music": ("\ufff9a\ufffab\ufffb\U0001d173", "ab"),
    "private": ("\ue000a\U000f0000b\U0010fffd", "ab"),
    "halves": ("a\ud83db\ude00", "ab"),
    "halves in the wrong order": ("\ude00\ud83d", ""),
    "no characters": ("a\ufdd0\uffff\U0001fffe", "a"),
    "nul": ("a\x00b", "ab"),
}

odd_text = st.lists(
    st.sampled_from([*KEPT.values(), *(odd for odd, _ in TAKEN_OUT.values())])
    | st.sampled_from("aZ1# \n\r\t\x1b[]31m;\x07\\\x9b\x9c\u200c\u200d\ufe0f\ufe0e\u20e3\u0645\u094d\u0915\u2764")
    | st.sampled_from("\U0001f468\U0001f3fd\U0001f3f4\U000e0067\U000e0062\U000e007f\ud83d\ude00\u202e\u2028\x85")
    | st.characters(),
    max_size=12,
).map("".join)


@pytest.mark.slow
def test_every_character_shows_its_number_to_people_or_shows_itself() -> None:
    ignored = {*IGNORED, 0x2800}
    for char in EVERY:
        number = f"⟨U+{ord(char):04X}⟩"
        unseen = (unicodedata.category(char) in SHOWN_NUMBERS and char != " ") or ord(char) in ignored
        assert visible(char) == (number if unseen else char)


def test_people_see_what_is_between_the_letters() -> None:
    assert visible("a\u202eb\n") == "a⟨U+202E⟩b⟨U+000A⟩"
    assert visible("a\tb\nc\r", lines=True) == "a\tb\nc⟨U+000D⟩"
    assert visible("\U000e0041\xa0\ue000\ud800\x1b[31m") == "⟨U+E0041⟩⟨U+00A0⟩⟨U+E000⟩⟨U+D800⟩⟨U+001B⟩[31m"
    assert visible("plain “text” 日本") == "plain “text” 日本"


@given(odd_text)
def test_what_people_see_can_be_printed(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(text, lines=True).replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.slow
def test_every_character_alone_reaches_models_or_does_not() -> None:
    gone = {*IGNORED, *HIEROGLYPH_FORMATS, *NO_CHARACTERS}
    for char in EVERY:
        if char in NEW_LINES:
            wanted = "\n"
        elif ord(char) in gone or (unicodedata.category(char) in GONE and char != "\t" and ord(char) not in SIGNS):
            wanted = ""
        else:
            wanted = char
        assert sanitize(char) == wanted


@pytest.mark.slow
def test_every_character_that_is_taken_out_alone_is_taken_out_of_words() -> None:
    for char in EVERY:
        if sanitize(char) == "":
            assert sanitize(f"a{char}b") == "ab" or char in "\x1b\x9b", hex(ord(char))


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT)
def test_what_shapes_its_neighbours_stays_there(text: str) -> None:
    assert sanitize(text) == text
    assert sanitize(f"x {text} y") == f"x {text} y"


@pytest.mark.parametrize(("text", "left"), TAKEN_OUT.values(), ids=TAKEN_OUT)
def test_what_no_reader_would_have_seen_is_taken_out(text: str, left: str) -> None:
    assert sanitize(text) == left
    assert sanitize(left) == left != text


@given(odd_text, st.none() | st.integers(0, 20))
def test_to_clean_again_changes_nothing(text: str, limit: int | None) -> None:
    once = sanitize(text, limit=limit)
    assert sanitize(once, limit=limit) == once
    assert sanitize(once) == once
    assert limit is None or len(once) <= limit


def test_what_is_too_long_is_cut() -> None:
    assert sanitize("abcd", limit=4) == "abcd"
    assert sanitize("abcde", limit=4) == "abc" + ELLIPSIS
    assert sanitize("a\u200bbcd", limit=4) == "abcd"
    assert sanitize(FAMILY, limit=3) == FAMILY[0] + ELLIPSIS
    assert [sanitize("abc", limit=limit) for limit in (0, 1)] == ["", ELLIPSIS]


def test_hostile_text_takes_no_longer_than_any_other() -> None:
    for piece in (
        "\x1b]0;",
        "\x9d",
        "\x9b0",
        "\x1b[0 ",
        "\x1b \x1b",
        "\U0001f468\u200d",
        "\u0645\u200c",
        "\U0001f3f4\U000e0067",
    ):
        assert_costs_less(partial(sanitize, piece * (200_000 // len(piece))), 2)


# Once as JavaScript writes it, once as Python does.
written = pytest.mark.parametrize("ascii_only", [False, True], ids=["utf-8", "escapes"])


@written
@pytest.mark.parametrize(("text", "left"), [*TAKEN_OUT.values(), *((text, text) for text in KEPT.values())])
def test_every_string_in_json_is_cleaned(text: str, left: str, ascii_only: bool) -> None:
    if not ascii_only and any("\ud800" <= char <= "\udfff" for char in text):
        return
    raw = json.dumps({"a": [text, {text: 1}], "n": 1}, ensure_ascii=ascii_only).encode()
    done = sanitize_json(raw)
    assert json.loads(done) == {"a": [left, {left: 1}], "n": 1}
    if text == left:
        assert done is raw


@pytest.mark.slow
def test_every_character_is_found_in_json() -> None:
    for char in (*EVERY[:0xE000], *EVERY[0xE000:0xF900:97], *EVERY[0xF900:0xE1000], *EVERY[0xE1000::97], EVERY[-1]):
        if sanitize(char) != char:
            spelled = json.dumps(char).encode()
            assert sanitize_json(spelled) != spelled, hex(ord(char))
            if not "\ud800" <= char <= "\udfff":
                plain = json.dumps(char, ensure_ascii=False).encode()
                assert sanitize_json(plain) != plain, hex(ord(char))


def test_all_else_in_json_stays_byte_for_byte() -> None:
    raw = (
        b' { "n" : 1.0e+2,\r\n\t"big":12345678901234567890123, "s":"\\u0041\\/\\ud83d\\ude00", "bad" : "x\\u202Ey" ,'
        b' "path":"C:\\\\bin\\\\users", "zero":-0.0, "dup":1,"dup":2} '
    )
    assert sanitize_json(raw) == raw.replace(b"x\\u202Ey", b"xy")
    for same in (b"{}", b"[]", b'""', b"null", b'"a"', b'{"a\\\\b":"c\\"d\\u00e9\\n"}', b'"\\\\u202e"'):
        assert sanitize_json(same) is same


def test_what_looks_like_an_escape_is_not_one() -> None:
    """A backslash before the letter is text if it has one before itself."""
    assert sanitize_json(rb'["\\u202e", "\\\u202e", "\\\\u202e"]') == rb'["\\u202e", "\\", "\\\\u202e"]'


def test_names_that_become_equal_are_told_apart() -> None:
    """What had the name by itself keeps it, wherever it stands."""
    raw = rb'{"a\u200b":1, "a":2, "\u202ea" :3, "b\u200b":4, "in":{"a\u200b":5, "deep":[{"a":6}]}, "a~2":7}'
    assert sanitize_json(raw) == rb'{"a~3":1, "a":2, "a~4" :3, "b":4, "in":{"a":5, "deep":[{"a":6}]}, "a~2":7}'
    assert sanitize_json(rb'[{"\u200b":{"\u200c":1},"":2}]') == rb'[{"~2":{"":1},"":2}]'


names = st.text("ab\u200b\u202e\x1b~2", max_size=4)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | odd_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | odd_text, inner, max_size=5),
    max_leaves=15,
)


def cleaned_by_hand(value: object) -> object:
    """What values come to where the order of members is kept and no two names become one."""
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, list):
        return [cleaned_by_hand(item) for item in value]
    if isinstance(value, dict):
        return [cleaned_by_hand(item) for item in value.values()]
    return value


def members_only(value: object) -> object:
    if isinstance(value, list):
        return [members_only(item) for item in value]
    return [members_only(item) for item in value.values()] if isinstance(value, dict) else value


def all_names(value: object) -> list[str]:
    if isinstance(value, list):
        return [name for item in value for name in all_names(item)]
    return [*value, *all_names(list(value.values()))] if isinstance(value, dict) else []


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_json_in_general(value: object, ascii_only: bool, indent: int | None) -> None:
    try:
        raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    except UnicodeEncodeError:
        raw = json.dumps(value, indent=indent).encode()
    value = json.loads(raw)  # two halves that stood side by side are a whole character there
    done = sanitize_json(raw)
    found = json.loads(done)
    assert members_only(found) == cleaned_by_hand(value)  # nothing is lost to a name that another one has
    assert all(sanitize(name) == name for name in all_names(found))
    assert set(all_names(found)) >= {name for name in all_names(value) if sanitize(name) == name}
    assert sanitize_json(done) is done


@pytest.mark.slow
@given(json_values, st.integers(0, 8))
def test_json_with_a_limit(value: object, limit: int) -> None:
    raw = json.dumps(value).encode()
    value = json.loads(raw)
    done = sanitize_json(raw, limit=limit)
    found = json.loads(done)
    assert len(all_names(found)) == len(all_names(value))

    def check(part: object) -> None:
        if isinstance(part, str):
            assert len(part) <= limit or part.strip("=").replace("/", "").replace("+", "").isascii()
        for item in part if isinstance(part, list) else ():
            check(item)

    check(members_only(found))


def test_long_strings_are_cut_and_data_is_not() -> None:
    data = base64.b64encode(bytes(range(256)) * 8).decode()
    raw = json.dumps({"text": "word " * 100, "data": data, "icon": f"data:image/png;base64,{data}"}).encode()
    done = json.loads(sanitize_json(raw, limit=20))
    assert done == {"text": "word word word word" + ELLIPSIS, "data": data, "icon": f"data:image/png;base64,{data}"}
    assert len(done["text"]) == 20
    exact = json.dumps(["x" * 7 + " " + "\xe9" * 12]).encode()
    assert sanitize_json(exact, limit=20) is exact
    assert json.loads(sanitize_json(exact, limit=19)) == ["x" * 7 + " " + "\xe9" * 10 + ELLIPSIS]
    longer = b'{"nnnn nnnn":1,"nnnn mmmm":2}'
    assert sanitize_json(longer, limit=6) == '{"nnnn …":1,"nnn…~2":2}'.encode()


@given(st.binary(max_size=3000))
def test_base64_is_never_harmed(content: bytes) -> None:
    for encoded in (base64.b64encode(content), base64.urlsafe_b64encode(content)):
        raw = b'{"blob":"' + encoded + b'","t":"\\u200b"}'
        assert sanitize_json(raw, limit=1) == b'{"blob":"' + encoded + b'","t":""}'
        slashed = b'{"blob":"' + encoded.replace(b"/", b"\\/") + b'"}'  # as PHP writes it
        assert sanitize_json(slashed) is slashed


def test_hostile_json_takes_no_longer_than_its_length() -> None:
    short, long = (b"[" + b'{"a\\u200b":1,"a":2},' * (size // 20) + b"{}]" for size in (20_000, 160_000))
    assert_costs_less(lambda: sanitize_json(long), 24 * least_cost(lambda: sanitize_json(short)))
    deep = b'{"\\u200b":' * 10_000 + b"1" + b"}" * 10_000
    assert sanitize_json(deep) == b'{"":' * 10_000 + b"1" + b"}" * 10_000


def test_the_quick_case_is_quick() -> None:
    raw = json.dumps({"content": [{"type": "text", "text": "hello world\n" * 80}]}).encode()
    assert sanitize_json(raw) is raw
    assert least_cost(lambda: sanitize_json(raw), attempts=50) < 100e-6  # some 3 where nothing else runs


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[1;31mError\x1b[0m: no key", "Error: no key"),
        ("\x1b]0;title\x07ready", "ready"),
        (" 5%\r 99%\rdone\r", "done"),
        ("\tat main", "    at main"),
        ("a\u202eb\x08", "a⟨U+202E⟩b⟨U+0008⟩"),
        ("Schlüssel fehlt", "Schlüssel fehlt"),
    ],
)
def test_a_line_for_a_terminal_is_shown_without_its_escapes(line: str, shown: str) -> None:
    assert visible_output(line) == shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Cannot find module '/srv/a/index.js'", "Cannot find module '…/index.js'"),
        ("[Errno 2] '/home/me/My Files/x.js' and /etc/passwd", "[Errno 2] '…/x.js' and …/passwd"),
        ("at /srv/a/b.py:3:5 (/srv/c.py)", "at …/b.py:3:5 (…/c.py)"),
        ("/usr/bin/python3: no module", "…/python3: no module"),
        ("file:///srv/a/b.ts, unix:///var/run/x.sock", "…/b.ts, …/x.sock"),
        ("~/.config/x.json, dir=/srv/data/", "…/x.json, dir=…/data/"),
        ("PATH:/usr/bin:/bin", "PATH:…/bin:…/bin"),
        ("https://x.example/a/b, src/main.rs:3, and/or a / b", "https://x.example/a/b, src/main.rs:3, and/or a / b"),
    ],
)
def test_of_a_path_a_peer_learns_the_last_part(text: str, told: str) -> None:
    assert without_directories(text) == told
    assert without_directories(told) == told


@given(st.text(st.sampled_from("/ab.:'~ …()"), max_size=40))
def test_no_directory_of_an_absolute_path_stays(text: str) -> None:
    told = without_directories(f"see /secret/{text}")
    assert "/secret/" not in told or told == "see …/secret/" + told.partition("/secret/")[2]
    assert without_directories("see /secret/folder/file") == "see …/file"


def test_a_text_of_a_peer_is_marked_cleaned_and_cut_for_people() -> None:
    same = str
    assert quoted("no access", same) == 'the server says: "no access"'
    assert quoted("down", same, "the issuer") == 'the issuer says: "down"'
    assert quoted(" \r\n\t", same) == ""
    # It stays on its line and between its quotes, and shows what would be invisible.
    told = quoted('no"\ns: ready\x1b[2J\x1b]0;title\x07 \u202eabc\x00', same)
    assert told == 'the server says: "no\' s: ready ⟨U+202E⟩abc⟨U+0000⟩"'
    assert quoted("über 日本語", same) == 'the server says: "über 日本語"'
    longest = quoted("x" * 1000, same)
    assert longest == f'the server says: "{"x" * (MAX_QUOTED - 1)}{ELLIPSIS}"'


def test_a_secret_in_a_text_of_a_peer_is_redacted_whole() -> None:
    def redact(text: str) -> str:
        return text.replace("s3cr3t-t0ken", "***")

    for text in ("s3cr3t-t0ken", "s3cr3t\x1b[0m-t0ken", " " * 9 + "s3cr3t-t0ken" + "y" * 900):
        assert "s3cr3t" not in quoted(text, redact)
    at_the_cut = "x" * (MAX_QUOTED - 5) + "s3cr3t-t0ken"
    assert "s3" not in quoted(at_the_cut, redact)
