"""The output of `list`: who an entry belongs to, what is counted, and how it is laid out."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from msgspec import Raw

from host.cli.exit_codes import FAILED, CommandFailed
from host.cli.listing import (
    Argument,
    Listing,
    OwnersView,
    arguments_of,
    as_json,
    count_entries,
    notes,
    show,
    show_clients,
    type_of,
)
from host.cli.terminal import Terminal
from host.protocol.methods import Kind
from tests.kit.admin import caller_view, client, entry, left_out, server, view

from .test_terminal import Screen

ADD = {"name": "notes__add", "description": "Write a note down\n\nIt lasts."}
NOTE = {"uriTemplate": "notes+note:///{number}", "name": "note"}
PAGE = {"uri": "https://example.com/a", "name": "A page"}
NOW = {"name": "clock__now", "description": "What time it is"}


def status(id: str, state: str = "ready", detail: str = "ready", **offered: int) -> dict[str, Any]:
    entries = {"tools": 0, "resources": 0, "resourceTemplates": 0, "prompts": 0, **offered}
    return {
        "id": id,
        "state": state,
        "detail": detail,
        "revision": "2025-11-25",
        "transport": "stdio",
        "entries": entries,
    }


def listing(owner: OwnersView | None = None, **more: Any) -> Listing:
    entries: dict[Kind, list[Any]] = {kind: [] for kind in Kind}
    entries |= {Kind.TOOL: [ADD, NOW], Kind.RESOURCE: [PAGE], Kind.TEMPLATE: [NOTE]}
    raws = {kind: [Raw(json.dumps(each).encode()) for each in those] for kind, those in entries.items()}
    servers = [status("notes", tools=4, resources=1, resourceTemplates=1), status("clock", tools=1)]
    servers.append(status("typo", "failed", "not found; next attempt in 2.1 s"))
    return Listing(raws, more.pop("servers", servers), owner)


def row(name: str, **more: Any) -> dict[str, Any]:
    return entry(name, server="notes", outward=f"notes__{name}", **more)


OWNER = OwnersView(
    [server("notes", held=2, unmatched=["tools.deny: wipe"], warnings=["beware"])],
    [
        row("add"),
        row("forget", verdict="deny", rule="tools.deny: forget", shown=False),
        row("find", standing="changed", shown=False),
        row("new", standing="new", shown=False),
        entry("page", kind="resource", server="notes", outward="https://example.com/a"),
    ],
    {"typo": [{"n": 1, "t": 0.0, "line": "no key"}, {"n": 2, "t": 1.0, "line": "no key"}]},
)


def test_the_owner_sees_what_is_denied_and_held() -> None:
    counts = count_entries(listing(OWNER))
    assert [(each.shown, each.denied, each.held) for each in counts.values()] == [(3, 1, 2), (1, 0, 0), (0, 0, 0)]
    assert counts["notes"].size == sum(len(json.dumps(each)) for each in (ADD, PAGE, NOTE))


def test_others_see_what_is_shown_to_them() -> None:
    """An address of the web names no server."""
    counts = count_entries(listing())
    assert [(each.shown, each.denied, each.held) for each in counts.values()] == [
        (2, None, None),
        (1, None, None),
        (0, None, None),
    ]


def test_at_the_endpoint_of_one_server_everything_is_its_own() -> None:
    """Its names do not begin with the server there."""
    raws: dict[Kind, list[Raw]] = {kind: [] for kind in Kind} | {Kind.TOOL: [Raw(b'{"name":"add"}')]}
    assert count_entries(Listing(raws, [status("notes", tools=1)], None))["notes"].shown == 1


def printed(listing: Listing, out: io.StringIO, capsys: pytest.CaptureFixture[str], *, in_full: bool) -> list[str]:
    show(Terminal(out), listing, in_full=in_full)
    return capsys.readouterr().out.splitlines()


def test_the_list_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each, however long."""
    long = listing(OWNER, servers=[status("notes", tools=4, resourceTemplates=1), status("typo", "failed", "x " * 200)])
    assert printed(listing(OWNER), io.StringIO(), capsys, in_full=False) == [
        "notes                ready    stdio  2025-11-25; 4 tools: 1 runs; 1 resource, 1 template; "
        "3 shown, 1 denied, 2 held; ~45 tokens",
        "clock                ready    stdio  2025-11-25; 1 tool; all shown; ~14 tokens",
        "typo                 failed   stdio  not found; next attempt in 2.1 s",
        "notes                note: 2 definitions wait for approval (colonnade definitions)",
        "notes                note: the rule tools.deny: wipe matches nothing that it offers",
        "notes                note: beware",
        "4 entries are shown; their definitions cost some 59 tokens (bytes / 4).",
        "",
        "tool      notes__add                                  Write a note down …",
        "tool      clock__now                                  What time it is",
        "resource  https://example.com/a                       A page",
        "template  notes+note:///{number}                      note",
    ]
    one = [status("notes", tools=1) | {"session": "handshake clients use \x1bso"}]
    line = printed(listing(servers=one), io.StringIO(), capsys, in_full=False)[0]
    assert "2025-11-25; handshake clients use \\x1bso; 1 tool" in line
    assert max(map(len, printed(long, io.StringIO(), capsys, in_full=False))) > 400


def test_views_are_lines_with_what_they_cost_and_one_alone_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    views = [
        view("", callers=[], is_default=True),
        view("coding", callers=["ci", "laptop"], left_out=[left_out()], search="auto"),
        view("small", callers=[], entries={"tools": 1}, tokens=9),
    ]
    lines = printed(listing(replace(OWNER, views=views)), io.StringIO(), capsys, in_full=False)
    assert lines[3:6] == [
        "(no view)            view     for all others; 5 entries; ~1,234 tokens",
        "@coding              view     for ci, laptop; 5 entries; 1 left out; ~1,234 tokens; search auto",
        "@small               view     1 entry; ~9 tokens",
    ]
    assert " view " not in "".join(
        printed(listing(replace(OWNER, views=views[:1])), io.StringIO(), capsys, in_full=False)
    )


def test_what_a_view_leaves_out_is_told_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Where it has plain names, only the host knows whose they are."""
    seen = caller_view(left_out=[left_out("wipe", server="notes")], entries=[])
    seen["entries"] = [{"server": "notes", "kind": "tool", "outward": "now", "verdict": "ask"}]
    raws: dict[Kind, list[Raw]] = {kind: [] for kind in Kind} | {Kind.TOOL: [Raw(b'{"name":"now"}')]}
    shown = Listing(raws, [status("notes", tools=5), status("clock", tools=1)], replace(OWNER, seen=seen))
    lines = printed(shown, io.StringIO(), capsys, in_full=False)
    assert lines[0].endswith("5 tools: 1 is asked about; 1 shown, 1 denied, 2 held, 1 left out; ~4 tokens")
    assert lines[1].endswith("0 shown, 1 not in the view; ~0 tokens")
    assert "notes                note: the tool wipe is left out: more than one is called wipe here" in lines
    assert as_json(shown)["left_out"] == seen["left_out"]
    of_one = shown.of_server("clock")
    assert of_one.owner is not None
    assert (of_one.owner.left_out(), of_one.entries[Kind.TOOL]) == ([], [])


@pytest.mark.parametrize(
    ("search", "wiped", "said"),
    [
        ("on", 0, "2 shown, 3 found by a search, 5 not in the view"),
        ("auto", 1, "2 shown, 3 found by a search, 1 left out, 4 not in the view"),
        ("off", 1, "2 shown, 1 left out, 7 not in the view"),
    ],
)
def test_why_entries_are_not_in_the_list_of_a_view(
    search: str, wiped: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = OwnersView(
        views=[view("", callers=[]), view(search=search)],
        seen=caller_view(
            search=search,
            left_out=[left_out("wipe", server="notes")] * wiped,
            entries=[
                {"server": "notes", "kind": "tool", "outward": f"notes__{name}", "verdict": "allow"}
                for name in ("add", *"abcd")
            ],
        ),
    )
    raws: dict[Kind, list[Raw]] = {kind: [] for kind in Kind}
    raws[Kind.TOOL] = [Raw(b'{"name":"notes__add"}'), Raw(b'{"name":"notes__a"}'), Raw(b'{"name":"search_tools"}')]
    shown = Listing(raws, [status("notes", tools=10), status("clock", tools=1)], owner)
    lines = printed(shown, io.StringIO(), capsys, in_full=False)
    assert f"; {said}; " in lines[0]
    assert lines[1].endswith("0 shown, 1 not in the view; ~0 tokens")


def test_the_list_on_a_terminal_is_wrapped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    long = listing(OWNER, servers=[status("notes", "failed", "it exited with status 1: " + "no key " * 20)])
    lines = printed(long, Screen(), capsys, in_full=False)
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("no key") == 20
    assert len(lines[1]) - len(lines[1].lstrip()) == 21


def test_what_becomes_of_calls_stands_beside_the_number_of_tools(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a tool in both eras count once; others than the owner do not know it."""
    shown = [row("a"), row("a"), row("b"), row("c", verdict="ask"), row("d", verdict="ask"), row("e", verdict="deny")]
    owner = OwnersView([], [*shown, row("f", verdict="deny", shown=False), entry("x", server="other")])
    servers = [status("notes", tools=6)]
    line = printed(listing(owner, servers=servers), io.StringIO(), capsys, in_full=False)[0]
    assert "; 6 tools: 2 run, 2 are asked about, 1 depends on its arguments; " in line
    assert "; 6 tools; " in printed(listing(servers=servers), io.StringIO(), capsys, in_full=False)[0]
    hidden = OwnersView([], [row("a", standing="new", verdict="ask", shown=False)])
    assert "; 6 tools; " in printed(listing(hidden, servers=servers), io.StringIO(), capsys, in_full=False)[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_description_takes_one_line_of_a_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first sentence, as much as fits."""
    monkeypatch.setenv("NO_COLOR", "1")
    long = {"name": "a__long", "description": "word " * 60 + "end. More."}
    short = {"name": "a__short", "description": "It adds, e.g. numbers. It takes two."}
    raws = {Kind.TOOL: [Raw(json.dumps(each).encode()) for each in (long, short)]}
    screen = Terminal(Screen())
    screen.width = columns
    show(screen, Listing(raws, None, None), in_full=False)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert max(map(len, lines)) <= columns
    texts = [line for line in lines if "word" in line or "adds" in line]
    assert len(texts) == 2
    assert texts[0].endswith("…")
    assert texts[1].endswith("It adds, e.g. numbers. …")
    show(Terminal(io.StringIO()), Listing(raws, None, None), in_full=False)
    assert "It adds, e.g. numbers. It takes two." in capsys.readouterr().out


def test_one_server_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    """With arguments, whole descriptions, and what clients do not see."""
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "the note\x1b[31m"}, "n": {"default": 3}},
        "required": ["text"],
    }
    find = Raw(json.dumps({**ADD, "inputSchema": schema}).encode())
    all_of_it = Listing({Kind.TOOL: [find]}, listing().servers, OWNER)
    assert printed(all_of_it.of_server("notes"), io.StringIO(), capsys, in_full=True)[5:] == [
        "",
        "tool notes__add",
        "  Write a note down",
        "",
        "  It lasts.",
        "    text  string, required",
        "        the note\\x1b[31m",
        "    n     any",
        "        (default: 3)",
        "",
        "Clients do not see:",
        "  tool      forget  denied by tools.deny: forget",
        "  tool      find  held: changed since it was approved",
        "  tool      new  held: never approved",
    ]
    assert "  | no key (2 times)" in printed(all_of_it.of_server("typo"), io.StringIO(), capsys, in_full=True)


def test_clients_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """First what the kernel knows, last what the client says."""
    monkeypatch.setattr("time.localtime", time.gmtime)
    at = {"transport": "http", "token": "laptop", "endpoint": "git", "view": "v"}
    over_http = client(process=None, **at, says="", era="stateless", revision="2026-07-28")
    silent = client(says="", era="", revision="", process={"program": "a\x1b", "pid": 9, "folder": ""})
    host = {"config": "/home/me/colonnade.yaml", "pid": 4711, "clients": [client(), over_http, silent]}
    show_clients(Terminal(io.StringIO()), [host, {**host, "pid": 4712, "clients": []}])
    assert capsys.readouterr().out.splitlines() == [
        "3 clients of process 4711, which serves /home/me/colonnade.yaml",
        "claude               relay  process 4712; in /home/me/work; 2025-11-25 (handshake); "
        "since 2026-09-21 14:13:20; says it is claude-code 2.1",
        "-                    http   token laptop; endpoint of git; view v; 2026-07-28 (stateless); "
        "since 2026-09-21 14:13:20",
        r"a\x1b                relay  process 9; has not said anything yet; since 2026-09-21 14:13:20",
        "0 clients of process 4712, which serves /home/me/colonnade.yaml",
    ]


def test_a_server_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(CommandFailed, match=r"there is no server 'nots'; did you mean notes\?") as failed:
        listing().of_server("nots")
    assert failed.value.exit_code == FAILED
    with pytest.raises(CommandFailed, match="its servers are notes, clock, typo"):
        listing().of_server("zzz")
    with pytest.raises(CommandFailed, match="no Colonnade"):
        Listing({}, None, None).of_server("notes")


def test_the_same_as_json() -> None:
    told = as_json(listing(OWNER))
    first = told["servers"][0]
    assert (first["shown"], first["denied"], first["held"], first["tokens"]) == (3, 1, 2, 45)
    assert len(first["notes"]) == 3
    assert [each["line"] for each in told["servers"][2]["log"]] == ["no key", "no key"]
    assert told["tools"] == [ADD, NOW]
    assert told["hidden"][1] == {
        "server": "notes",
        "kind": "tool",
        "name": "find",
        "why": "held: changed since it was approved",
    }
    others = as_json(listing())
    assert others["servers"][0]["denied"] is None
    assert "hidden" not in others
    assert as_json(Listing({Kind.TOOL: []}, None, None)) == {"servers": None, "tools": []}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "array", "items": {"type": "number"}}, "array of number"),
        ({"enum": ["a", 1]}, '"a" or 1'),
        ({"const": "x"}, '"x"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or null"),
        ({"oneOf": [{"type": "integer"}, {"type": "integer"}]}, "integer"),
        ({"$ref": "#/$defs/Color"}, "Color"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_types_in_words(schema: object, words: str) -> None:
    assert type_of(schema) == words


@pytest.mark.parametrize(
    ("kind", "definition", "arguments"),
    [
        (Kind.PROMPT, {"arguments": [{"name": "a", "required": True}, 3]}, [Argument("a", "string", True, "")]),
        (
            Kind.TEMPLATE,
            {"uriTemplate": "x://{host}/{/path*}{?a,b:3}"},
            [Argument(name, "string", False, "") for name in ("host", "path", "a", "b")],
        ),
        (Kind.RESOURCE, {"uri": "x://{a}"}, []),
        (Kind.TOOL, {}, []),
        (Kind.TOOL, {"inputSchema": []}, []),
        (Kind.TOOL, {"inputSchema": {"properties": 3}}, []),
        (Kind.TOOL, {"inputSchema": {"properties": {"a": 1}, "required": "a"}}, [Argument("a", "any", False, "")]),
        (Kind.PROMPT, {"arguments": "x"}, []),
    ],
)
def test_arguments_of_every_kind(kind: Kind, definition: dict[str, Any], arguments: list[Argument]) -> None:
    assert list(arguments_of(kind, definition)) == arguments


def test_notes_for_the_owner() -> None:
    assert notes(
        [
            server(
                "a",
                held=1,
                uncounted=2,
                sandbox="its own files",
                left_out=["tool x"],
                list_problems=["tools/list failed"],
            )
        ]
    ) == [
        ("a", "1 definition waits for approval (colonnade definitions)"),
        (
            "a",
            "a rule wants claims, which do not count before you approve its tools: 2 (colonnade definitions approve a)",
        ),
        ("a", "sandbox: its own files"),
        ("a", "tool x is left out: clients could not read it"),
        ("a", "tools/list failed"),
    ]
