"""A fingerprint is the same for the same definition and for no other; a difference shows all that differs."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

import config
from config import HttpServer, Secret, ServerSpec, StdioServer
from config.sandbox import ContainerClient, Network, Sandbox, SandboxFiles
from host.policy.fingerprint import (
    ELLIPSIS,
    Diff,
    Launch,
    arguments_digest,
    difference,
    fingerprint,
    launch_for_people,
    launch_of,
    pretty,
    program_of,
)
from tests.kit.cost import assert_costs_less

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: object, order: random.Random) -> object:
    """The same with the members of every object in another order."""
    if isinstance(value, dict):
        members = [(name, shuffled(each, order)) for name, each in value.items()]
        order.shuffle(members)
        return dict(members)
    return [shuffled(each, order) for each in value] if isinstance(value, list) else value


def dumped(value: object, **how: object) -> bytes:
    return json.dumps(value, **how).encode()  # type: ignore[arg-type]  # whatever `json.dumps` takes


# Fingerprints


def test_a_fingerprint_is_the_hash_of_the_canonical_form() -> None:
    raw = b'{"b": [1.50, true, null], "a": "\\u00e9\\n"}'
    canonical = '{"a":"é\\n","b":[1.5,true,null]}'.encode()
    assert fingerprint(raw) == f"sha256:{hashlib.sha256(canonical).hexdigest()}"


@given(VALUES | st.dictionaries(st.text('a\ud7ff\ue000\uffff\U00010000\x00\x7f\u2028"\\', max_size=3), st.integers()))
@example({"\ue000": 1, "\U00010000": 2})
@example([1e16, 1e-5, -0.0, 5e-324, 0.1, 1.0])
@example({"a": 2**53})
def test_the_canonical_form_is_that_of_rfc_8785(value: object) -> None:
    """A text with a number that not all readers can hold has none, and counts as it is written."""
    for raw in (dumped(value), dumped(value, ensure_ascii=False, indent=1)):
        try:
            canonical = rfc8785.dumps(value)  # type: ignore[arg-type]  # it is JSON
        except ValueError:
            canonical = b"\0as it is\0" + raw
        assert fingerprint(raw) == f"sha256:{hashlib.sha256(canonical).hexdigest()}"


@given(VALUES, st.randoms(use_true_random=False))
def test_order_blanks_and_spelling_mean_nothing(value: object, order: random.Random) -> None:
    plain = fingerprint(dumped(value))
    other = shuffled(value, order)
    assert fingerprint(dumped(other, indent=3)) == plain
    assert fingerprint(dumped(other, ensure_ascii=False, separators=(",", ":"))) == plain


@given(VALUES, VALUES)
def test_two_values_have_one_fingerprint_only_if_they_are_one(one: object, other: object) -> None:
    same = rfc8785.dumps(one) == rfc8785.dumps(other)  # type: ignore[arg-type]  # they are JSON
    assert (fingerprint(dumped(one)) == fingerprint(dumped(other))) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"1", b'"1"'),
        (b"1", b"true"),
        (b"0", b"false"),
        (b"null", b'""'),
        (b"[]", b"{}"),
        (b"[1, 2]", b"[2, 1]"),
        (b'{"a": null}', b"{}"),
        (b'"a"', '"а"'.encode()),  # a Cyrillic one
        (b'"\xc3\xa9"', b'"e\xcc\x81"'),  # composed or not
        (b'"a"', '"a\u200b"'.encode()),
        (b"9007199254740993", b"9007199254740992"),
        (b"9007199254740993", b"9007199254740993.0"),
        (b"0.1", b"0.10000000000000000001"),
        (b"1e400", b"1e401"),
        (b"1e-400", b"0"),
        (b'"\\ud800"', b'"\\ud801"'),
        (b'{"\\ud800": 1}', b'{"\\ud801": 1}'),
        (b'{"a": 1}', b'{"a": 2, "a": 1}'),
        (b'{"a": 1, "a": 2}', b'{"a": 2, "a": 1}'),
        (b"NaN", b"Infinity"),
        (b"not JSON", b"not JSON "),
        (b"\xff", b"\xfe"),
        (b"1" * 5000, b"1" * 5001),
        (b"[" * 150 + b"]" * 150, b"[" * 151 + b"]" * 151),
        (b"[" * 100000, b"[" * 100001),
        (b"[0" + b",0" * 30000 + b"]", b"[0" + b",0" * 30001 + b"]"),
    ],
)
def test_what_is_not_the_same_has_another_fingerprint(one: bytes, other: bytes) -> None:
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(bytes(bytearray(one)))


def test_what_has_no_canonical_form_never_meets_what_has_one() -> None:
    """Whatever follows: its hash begins with what no JSON begins with."""
    odd = b'{"a": 1, "a": 2}'
    hashed = b"\x00as it is\x00" + odd
    assert fingerprint(odd) == f"sha256:{hashlib.sha256(hashed).hexdigest()}"
    assert fingerprint(hashed) != fingerprint(odd)


def test_how_deep_the_caller_stands_does_not_matter() -> None:
    raw = b'{"a":' * 95 + b"1" + b"}" * 95

    def deep(levels: int) -> str:
        return deep(levels - 1) if levels else fingerprint(raw)

    assert deep(300) == fingerprint(raw)


def test_arguments_are_digested_alike_and_none_are_not_empty_ones() -> None:
    assert arguments_digest(b'{"a": 1, "b": 2}') == arguments_digest(b'{"b":2,"a":1}')
    assert arguments_digest(b'{"a": 1}') != arguments_digest(b'{"a": "1"}')
    assert len({arguments_digest(None), arguments_digest(b"{}"), arguments_digest(b"null")}) == 3
    assert arguments_digest(b'{"a":1e-99999999999999999999}') != arguments_digest(b'{"a":0}')


def test_what_is_sent_beside_the_arguments_is_part_of_their_digest() -> None:
    beside = arguments_digest(b'{"a":1}', b'{"x": 1, "y": 2}')
    assert beside == arguments_digest(b'{"a": 1}', b'{"y":2,"x":1}')
    assert (
        len({beside, arguments_digest(b'{"a":1}'), arguments_digest(b'{"a":1}', b"{}"), arguments_digest(b'{"x":1}')})
        == 4
    )


# Launch identity


def stdio(program: str, *args: str, cwd: Path = Path("/"), env: dict[str, str] | None = None) -> StdioServer:
    return StdioServer(
        id="a",
        command=(Secret(program), *map(Secret, args)),
        cwd=cwd,
        env={name: Secret(value) for name, value in (env or {}).items()},
    )


def make_program(path: Path, bits: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(bits)
    return path


def test_what_the_owner_wrote_is_declared_and_values_of_variables_are_not(tmp_path: Path) -> None:
    base = stdio("sh", "-c", "x", env={"TOKEN": "secret"})
    same = stdio("sh", "-c", "x", env={"TOKEN": "another"})
    assert launch_of(same) == launch_of(base)
    others: list[ServerSpec] = [
        stdio("bash", "-c", "x", env={"TOKEN": "secret"}),
        stdio("sh", "-c", "y", env={"TOKEN": "secret"}),
        stdio("sh", "-c x", env={"TOKEN": "secret"}),
        stdio("sh", "-c", "x", env={"OTHER": "secret"}),
        stdio("sh", "-c", "x"),
        stdio("sh", "-c", "x", cwd=tmp_path, env={"TOKEN": "secret"}),
        HttpServer(id="a", url=Secret("https://example.com/mcp")),
        HttpServer(id="a", url=Secret("https://example.com/mcp?")),
    ]
    assert len({launch_of(each).declared for each in [base, *others]}) == len(others) + 1
    assert "secret" not in repr([launch_of(each) for each in [base, *others]])


def test_people_see_a_line_for_each_group_of_a_confined_launch() -> None:
    given = "reads /a; network none; 64 processes; starts with /b; or /c; starts with /d"
    shown = launch_for_people(json.dumps({"declared": "x", "program": "/p", "sandbox": given}).encode(), None)
    assert json.loads(shown)["sandbox"] == [
        *("reads /a", "network none", "64 processes"),
        *("starts with /b; or /c", "starts with /d"),
    ]
    assert '\n    "network none",\n' in pretty(shown)
    for other in (b'{"declared":"x","program":null}', b"[1]", b"no"):
        assert launch_for_people(other, None) == other


def test_people_see_an_installation_on_one_line() -> None:
    paths = ["/v/bin/x", "/v/bin", "/v/lib", "/v/pyvenv.cfg", "/p/bin", "/p/lib", "/q/lib", "/v"]
    given = "; ".join(["network none", *(f"starts with {path}" for path in paths)])
    shown = json.loads(launch_for_people(json.dumps({"declared": "x", "sandbox": given}).encode(), None))
    assert shown["sandbox"] == [
        "network none",
        *("starts with /v/bin/x", "starts with bin, lib, pyvenv.cfg in /v"),
        *("starts with bin, lib in /p", "starts with /q/lib", "starts with /v"),
    ]


def test_people_see_the_command_of_a_launch_as_the_file_writes_it(tmp_path: Path) -> None:
    """Without secrets, and only that of this launch."""
    file = tmp_path / "c.yaml"
    words = ["serve", "-v", "--token", "s3cret", "${env:KEY}", "a b"]
    for sandbox in ("off", "strict"):
        file.write_text(json.dumps({"servers": {"a": {"command": words, "sandbox": sandbox}}}))
        spec = config.load(file, {"KEY": "value"}).servers["a"]
        launch = launch_of(spec)
        definition = json.dumps({"declared": launch.declared, "program": None}).encode()
        shown = json.loads(launch_for_people(definition, spec))
        assert shown["command"] == "serve -v --token '***' '${env:KEY}' 'a b'"
        other = definition.replace(b"sha256:", b"sha256:0")
        assert launch_for_people(other, spec) == other


def test_an_image_is_part_of_it_and_its_program_is_the_client(tmp_path: Path) -> None:
    """The command is of the image, so it names no files here."""
    (client := tmp_path / "podman").touch(mode=0o755)
    (script := tmp_path / "run.py").touch()
    sandboxes = (Sandbox(with_=ContainerClient.PODMAN, image=image) for image in ("x:1", "x:2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        words = (Secret("python3"), Secret(str(script)))
        first, other = (
            launch_of(StdioServer(id="a", command=words, cwd=tmp_path, sandbox=sandbox)) for sandbox in sandboxes
        )
    assert first.program == str(client)
    assert first.declared != other.declared
    assert first.sandbox.endswith("; in a container of podman from x:1")


def test_a_sandbox_is_part_of_it_with_what_the_command_names(tmp_path: Path) -> None:
    """For the person who approves it. A launch without one is what it always was."""
    program = make_program(tmp_path / "bin" / "serve")
    (tmp_path / "lib").mkdir()
    free = stdio(str(program))
    strict, wider = (replace(free, sandbox=each) for each in (Sandbox(), Sandbox(network=Network.ALL)))
    assert len({launch_of(each).declared for each in (free, strict, wider)}) == 3
    assert launch_of(strict).declared == launch_of(replace(free, sandbox=Sandbox(SandboxFiles()))).declared
    assert launch_of(free).sandbox == ""
    assert launch_of(strict).sandbox.split("; ")[:2] == ["its own files", "network none"]
    assert f"starts with {tmp_path}/lib" in launch_of(strict).sandbox
    assert program_of(strict) == launch_of(strict).program == str(program)


def test_a_url_comes_to_no_program_and_headers_are_not_part_of_it() -> None:
    plain = HttpServer(id="a", url=Secret("https://example.com/mcp"))
    told = HttpServer(id="a", url=Secret("https://example.com/mcp"), headers={"Authorization": Secret("x")})
    assert launch_of(plain) == launch_of(told)
    assert launch_of(plain).program is None


def test_a_bare_name_is_looked_up_in_the_path_that_the_child_will_have(tmp_path: Path) -> None:
    first, second = make_program(tmp_path / "1" / "serve"), make_program(tmp_path / "2" / "serve")
    env = {"PATH": f"{tmp_path}/0:{tmp_path}/1:{tmp_path}/2"}
    spec = stdio("serve", env=env)
    assert launch_of(spec).program == str(first)
    make_program(tmp_path / "0" / "serve")
    assert launch_of(spec) == Launch(launch_of(spec).declared, str(tmp_path / "0" / "serve"))
    (tmp_path / "0" / "serve").chmod(0o644)
    assert launch_of(spec).program == str(first), "what cannot be executed is passed over"
    first.unlink()
    first.mkdir()
    assert launch_of(spec).program == str(second)
    second.unlink()
    assert launch_of(spec).program is None


def test_without_a_path_of_its_own_a_server_has_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_program(tmp_path / "serve")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch_of(stdio("serve")).program == str(program)


def test_what_is_relative_begins_at_the_directory_of_the_server(tmp_path: Path) -> None:
    program = make_program(tmp_path / "bin" / "serve")
    assert launch_of(stdio("bin/serve", cwd=tmp_path)).program == str(program)
    for path in ("bin", ":/nowhere:bin", "./bin/"):
        assert launch_of(stdio("serve", cwd=tmp_path, env={"PATH": path})).program == str(program)
    assert launch_of(stdio("serve", cwd=tmp_path / "bin", env={"PATH": "/nowhere:"})).program == str(program)
    assert launch_of(stdio("serve\0", cwd=tmp_path)).program is None


def test_links_are_followed_to_the_program_itself(tmp_path: Path) -> None:
    one, two = make_program(tmp_path / "one"), make_program(tmp_path / "two")
    link = tmp_path / "serve"
    link.symlink_to(one)
    before = launch_of(stdio(str(link)))
    assert before.program == str(one)
    link.unlink()
    link.symlink_to(two)
    after = launch_of(stdio(str(link)))
    assert (after.declared, after.program) == (before.declared, str(two))


# For people


def texts(diff: Diff, *ops: str) -> str:
    return "".join(text for op, text in diff if op in ops)


def test_a_definition_is_laid_out_a_member_a_line_sorted_by_name() -> None:
    raw = b'{"name":"x","a":[1,{"c":1.50,"b":[]}],"e":{},"n":null,"t":true,"s":"line\\nnext"}'
    assert pretty(raw).splitlines() == [
        "{",
        '  "a": [',
        "    1,",
        "    {",
        '      "b": [],',
        '      "c": 1.50',
        "    }",
        "  ],",
        '  "e": {},',
        '  "n": null,',
        '  "name": "x",',
        '  "s": "line\\nnext",',
        '  "t": true',
        "}",
    ]


def test_members_that_are_there_twice_are_shown_twice() -> None:
    assert pretty(b'{"a": "evil", "a": "good"}') == '{\n  "a": "evil",\n  "a": "good"\n}'


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert pretty(b"not JSON\x1b[2J\xff") == "not JSON⟨U+001B⟩[2J\\xff"
    assert pretty(b"[" * 50000).startswith("[[[")


def test_one_word_that_changed_is_all_that_is_marked() -> None:
    before = {"name": "add", "description": "Adds two numbers and returns the sum"}
    after = {**before, "description": "Adds two numbers and emails the sum"}
    diff = difference(dumped(before), dumped(after))
    assert [piece for piece in diff if piece[0] != "same"] == [("removed", "returns"), ("added", "emails")]


def test_a_definition_that_was_never_seen_is_all_new() -> None:
    raw = dumped({"name": "add"})
    assert difference(None, raw) == [("added", pretty(raw))]


def test_invisible_characters_are_made_visible_also_where_only_they_differ() -> None:
    before, after = dumped({"d": "say hi"}), dumped({"d": "say\u202e hi\U000e0041"})
    diff = difference(before, after)
    assert texts(diff, "added") == "⟨U+202E⟩⟨U+E0041⟩"
    spelled = difference(dumped({"d": "a ⟨U+202E⟩"}), dumped({"d": "a \u202e"}))
    assert texts(spelled, "removed") == texts(spelled, "added") == "⟨U+202E⟩"


def test_long_stretches_of_the_same_are_cut_and_changes_never_are() -> None:
    words = [f"word{at}" for at in range(3000)]
    before = {"a": " ".join(words), "z": {f"k{at}": at for at in range(200)}}
    changed = [*words[:1000], "MARK", *words[1000:2000], *words[2001:]]
    after = {"a": " ".join(changed), "z": {**before["z"], "k77": "77"}}  # type: ignore[dict-item]
    diff = difference(dumped(before), dumped(after))
    assert "MARK" in texts(diff, "added")
    assert "word2000" in texts(diff, "removed")
    assert texts(diff, "added").count('"') == 2, "77 became text"
    same = [text for op, text in diff if op == "same"]
    assert all(len(text) < 600 for text in same)
    assert sum(ELLIPSIS in text for text in same) == 4, "all but the 77 between its new quotation marks"
    assert any(f"\n{ELLIPSIS}\n" in text for text in same)


WORDS = st.lists(st.sampled_from(["a", "b", "a.b", "\u200b", "\n", "⋯", " ", "é"]), max_size=30).map(" ".join)


@given(WORDS, WORDS)
def test_without_what_was_added_it_is_the_former_and_without_what_was_removed_the_present(old: str, new: str) -> None:
    """Short texts are not cut."""
    before, after = dumped({"d": old}), dumped({"d": new})
    diff = difference(before, after)
    if ELLIPSIS not in old + new and not any(ELLIPSIS in text for _, text in diff):
        assert texts(diff, "same", "removed") == pretty(before)
        assert texts(diff, "same", "added") == pretty(after)
    assert (texts(diff, "removed", "added") == "") is (old == new)
    assert all(text for _, text in diff)
    assert all(one[0] != other[0] for one, other in pairwise(diff))


MEBIBYTE = 1 << 20


def _long(text: str) -> bytes:
    return json.dumps({"name": "x", "description": text}, ensure_ascii=False).encode()


HOSTILE: dict[str, Callable[[], tuple[bytes, bytes]]] = {
    "all the same word": lambda: (_long("a " * (MEBIBYTE // 2)), _long("a " * (MEBIBYTE // 2 - 9) + "b " + "a " * 7)),
    "two words in turn": lambda: (_long("ab ba " * (MEBIBYTE // 6)), _long("ba ab " * (MEBIBYTE // 6))),
    "no words": lambda: (_long(".!" * (MEBIBYTE // 2)), _long("!." * (MEBIBYTE // 2))),
    "other words": lambda: (_long(" ".join(map(str, range(170000)))), _long(" ".join(map(str, range(170000, 0, -1))))),
    "invisible": lambda: (_long("\u202e" * (MEBIBYTE // 3)), _long("\u200b\u202e" * (MEBIBYTE // 6))),
    "line ends": lambda: (_long("\n" * (MEBIBYTE // 2)), _long("\n\r" * (MEBIBYTE // 4))),
    "many members": lambda: (
        dumped({f"k{at}": at for at in range(60000)}),
        dumped({f"k{at}": -at for at in range(60000)}),
    ),
    "many items": lambda: (b"[0" + b",0" * (MEBIBYTE // 2) + b"]", b"[1" + b",1" * (MEBIBYTE // 2) + b"]"),
    "just laid out": lambda: (dumped([{"a": at} for at in range(4900)]), dumped([{"b": at} for at in range(4900)])),
    "deep": lambda: (
        b"[" * (MEBIBYTE // 2) + b"]" * (MEBIBYTE // 2),
        b"[" * (MEBIBYTE // 2) + b"1" + b"]" * (MEBIBYTE // 2),
    ),
    "deep and wide": lambda: (
        b"[" + b",".join([b"[" * 90 + b"]" * 90] * 100) + b"]",
        b"[" + b",".join([b"[" * 90 + b"1" + b"]" * 90] * 100) + b"]",
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_definition_takes_long_to_compare(name: str) -> None:
    """The goal is 300 ms; a busy machine gets more."""
    before, after = HOSTILE[name]()
    diff = difference(before, after)
    assert texts(diff, "removed", "added")
    assert_costs_less(lambda: difference(before, after), 1)
    assert len(texts(diff, "removed", "added")) <= 6 * MEBIBYTE


def test_the_same_text_is_the_same_launch_whatever_a_variable_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So another program behind it is a change, and is held; a secret in an argument is no part of it."""
    file = tmp_path / "c.yaml"
    file.write_text('servers: {a: {command: ["${env:TOOL}", --key, "${env:KEY}"]}}')
    found = []
    for tool, key in (("/bin/true", "one"), ("/bin/false", "two")):
        monkeypatch.setenv("TOOL", tool)
        monkeypatch.setenv("KEY", key)
        found.append(launch_of(config.load(file).servers["a"]))
    assert found[0].declared == found[1].declared
    assert found[0].program != found[1].program
    file.write_text('servers: {a: {command: ["${env:TOOL}", --other, "${env:KEY}"]}}')
    assert launch_of(config.load(file).servers["a"]).declared != found[0].declared
