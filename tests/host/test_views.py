"""Views: each has what its patterns name and nothing else, under its own names, and each caller reaches its own."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from config import Config, HttpServer, Secret
from config.load import load
from host.protocol.methods import Kind
from host.views import EVERYTHING, Views

SERVERS = """
servers:
  git: {url: "http://h/", consent: RULES}
  hub: {url: "http://h/", prefix: gh, overrides: {search: {description: Look for it., name: find}}}
  files: {url: "http://h/"}
"""


@pytest.fixture
def views(tmp_path: Path) -> Any:
    def made(text: str, *, tokens: tuple[str, ...] = (), rules: str = "{}") -> Views:
        found = Views()
        found.replace(configuration(tmp_path, text, tokens, rules))
        return found

    return made


def configuration(folder: Path, text: str, tokens: tuple[str, ...] = (), rules: str = "{}") -> Config:
    file = folder / "c.yaml"
    listed = ", ".join(f"{name}: {name * 30}" for name in tokens)
    file.write_text(
        SERVERS.replace("RULES", rules) + text + (f"\nlisten: {{auth: {{tokens: {{{listed}}}}}}}\n" if tokens else "")
    )
    return load(file, {})


def test_without_views_there_is_that_of_everything(views: Any) -> None:
    found = views("")
    everything = found.view(EVERYTHING)
    assert [view.name for view in found] == [EVERYTHING]
    assert found.audiences() == [(EVERYTHING, "")]
    assert everything.has_server("git")
    assert everything.has_server("stranger")
    assert everything.offers_all("git", Kind.TOOL)
    assert everything.offers("git", Kind.RESOURCE, "x://" + "a" * 10_000)
    assert found.names.outward_name("hub", "x") == everything.names.outward_name("hub", "x") == "gh__x"


def test_a_view_has_what_its_patterns_name(views: Any) -> None:
    view = views("views: {v: {servers: {git: all, hub: {tools: ['get_*', search], resources: ['x://a/**']}}}}").view(
        "v"
    )
    assert [view.has_server(id) for id in ("git", "hub", "files", "stranger")] == [True, True, False, False]
    assert view.offers_all("git", Kind.PROMPT)
    assert not view.offers_all("hub", Kind.TOOL)
    assert not view.offers_all("files", Kind.TOOL)
    names = {"get_x": True, "search": True, "delete": False, "find": False}
    assert {name: view.offers("hub", Kind.TOOL, name) for name in names} == names
    assert {name: view.offers_listed("hub", Kind.TOOL, name) for name in names} == names
    assert [view.offers(id, Kind.TOOL, "search") for id in ("git", "files")] == [True, False]
    assert not view.offers("hub", Kind.PROMPT, "search")
    kinds = [view.may_offer("hub", kind) for kind in Kind]
    assert dict(zip(Kind, kinds, strict=True)) == {
        Kind.TOOL: True,
        Kind.RESOURCE: True,
        Kind.TEMPLATE: True,
        Kind.PROMPT: False,
    }
    assert not view.may_offer("files", Kind.TOOL)


@pytest.mark.parametrize(
    ("uri", "has"),
    [("file:///a/b", True), ("file:///a/../b", False), ("file:///a/%2e%2e/b", False)],
)
def test_a_pattern_for_uris_holds_in_each_spelling(views: Any, uri: str, has: bool) -> None:
    view = views("views: {v: {servers: {files: {resources: ['file:///a/**']}}}}").view("v")
    assert view.offers("files", Kind.RESOURCE, uri) is has


def test_a_view_of_nothing_and_one_that_is_none_have_nothing(views: Any) -> None:
    found = views("views: {none: {servers: {}}}")
    for view in (found.view("none"), found.view("stranger")):
        assert not view.has_server("git")
        assert not view.offers("git", Kind.TOOL, "x")
        assert not view.offers_all("git", Kind.TOOL)
        assert not view.may_offer("git", Kind.TOOL)


def test_names_are_those_of_the_view(views: Any) -> None:
    found = views("views: {plain: {names: {style: plain}}, short: {names: {limit: 40}}}")
    plain, short = found.view("plain").names, found.view("short").names
    assert plain.outward_name("hub", "search") == "search"
    assert plain.inward_name("gh__search") == (None, "gh__search")
    assert plain.outward_uri("hub", "x://a") == "gh+x://a"
    assert len(plain.outward_name("hub", "a b")) == len("a_b_12345678")
    assert plain.outward_name("hub", "a b") != plain.outward_name("git", "a b")
    assert len(short.outward_name("hub", "x" * 100)) == 40
    assert short.inward_name("gh__search") == ("hub", "search")


def test_a_view_has_its_overrides_on_top_of_those_of_the_server(views: Any) -> None:
    text = "views: {v: {overrides: {hub: {search: {description: Seek., title: T}, other: {kind: prompt, name: o}}}}}"
    found = views(text)
    own, everything = found.view("v").overrides("hub", Kind.TOOL), found.view(EVERYTHING)
    assert [(each.name, each.description, each.title) for each in own.values()] == [("find", "Seek.", "T")]
    below = everything.overrides("hub", Kind.TOOL)["search"]
    assert (below.name, below.description, below.title) == ("find", "Look for it.", None)
    assert everything.overrides("hub", Kind.PROMPT) == {}
    assert everything.overrides("git", Kind.TOOL) == {}
    assert found.view("v").overrides("hub", Kind.PROMPT)["other"].name == "o"
    assert found.view("v").own_overrides("hub", Kind.TOOL)["search"].name is None
    assert everything.own_overrides("hub", Kind.TOOL) == everything.overrides("hub", Kind.TOOL)


def test_a_view_stays_the_same_object_until_it_changes(tmp_path: Path) -> None:
    found, kept = Views(), "views: {a: {servers: {git: all}}, b: {instructions: I}}"
    found.replace(configuration(tmp_path, kept))
    before = {view.name: view for view in found}
    found.replace(configuration(tmp_path, kept))
    assert {view.name: view for view in found} == before
    found.replace(configuration(tmp_path, kept.replace("instructions: I", "names: {style: plain}")))
    after = {view.name: view for view in found}
    assert [after[name] is before[name] for name in ("", "a", "b")] == [True, True, False]
    assert not after["b"].treats_alike("git", before["b"])


def test_a_view_treats_a_server_alike_if_nothing_about_this_one_changes(tmp_path: Path) -> None:
    found = Views()
    found.replace(configuration(tmp_path, "views: {v: {servers: {git: all, hub: {tools: [a]}}}}"))
    before = found.view("v")
    found.replace(configuration(tmp_path, "views: {v: {servers: {git: all, hub: {tools: [b]}}}}"))
    alike = {server: found.view("v").treats_alike(server, before) for server in ("git", "hub", "files")}
    assert alike == {"git": True, "hub": False, "files": True}


def test_other_servers_rename_what_views_have() -> None:
    found = Views({"a": HttpServer(id="a", url=Secret("http://h/"), prefix="x")})
    assert found.names.outward_name("a", "t") == "x__t"
    found.replace_servers(MappingProxyType({"a": HttpServer(id="a", url=Secret("http://h/"))}))
    assert found.names.outward_name("a", "t") == "a__t"


# Who reaches which

CALLERS = """
callers: {ann: {token: a}, bob: {token: b}, cid: {token: c}}
views:
  free: {}
  first: {callers: [ann, bob], servers: {git: all}}
  second: {callers: ann}
"""
RULES = "{tools: {deny: [{name: x, callers: [ann, cid]}]}}"


def test_audiences_are_the_views_with_each_caller_that_rules_name(views: Any) -> None:
    everybody = [(view, "") for view in (EVERYTHING, "free", "first", "second")]
    assert views(CALLERS, tokens=("a", "b", "c")).audiences() == everybody
    named = [("first", "ann"), ("second", "ann"), *((view, "cid") for view, _ in everybody)]
    assert views(CALLERS, tokens=("a", "b", "c"), rules=RULES).audiences() == everybody + named
