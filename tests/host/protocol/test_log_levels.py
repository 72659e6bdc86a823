"""Log levels: valid names, the most verbose of several, and comparison of severities."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from msgspec import Raw

from host.errors import InvalidParams
from host.jsonrpc.messages import Notification
from host.protocol.log_levels import DEFAULT_LEVEL, LEVELS, is_at_least, level_of, most_verbose, with_server_name

ORDER = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


def logged(params: bytes | None) -> Notification:
    return Notification("notifications/message", None if params is None else Raw(params))


def at(level: object) -> Notification:
    return logged(json.dumps({"level": level, "data": "d"}).encode())


def test_the_levels_are_those_of_syslog() -> None:
    assert list(LEVELS) == ORDER


@pytest.mark.parametrize("level", ORDER)
def test_a_level_is_read(level: str) -> None:
    assert level_of({"level": Raw(json.dumps(level).encode()), "_meta": Raw(b"{}")}) == level


@pytest.mark.parametrize(
    "level", [b'"Debug"', b'"warn"', b'""', b'" info"', b'"trace"', b"1", b"null", b'["info"]', b'"\\ud83d"', None]
)
def test_what_is_no_level_is_the_callers_mistake(level: bytes | None) -> None:
    """(rule 82)"""
    with pytest.raises(InvalidParams, match="one of debug, info") as refused:
        level_of({} if level is None else {"level": Raw(level)})
    assert refused.value.code == -32602


def test_the_most_verbose_is_the_lowest_of_those_wanted() -> None:
    """The order in which they are set does not matter (rule 82)."""
    assert most_verbose([]) is None
    for low, high in combinations(ORDER, 2):
        assert most_verbose([high, low, high]) == low
        assert most_verbose([low]) == low


def test_a_message_passes_from_the_wanted_level_up() -> None:
    for wanted, level in enumerate(ORDER):
        assert [is_at_least(at(each), level) for each in ORDER] == [n >= wanted for n in range(len(ORDER))]


@pytest.mark.parametrize("odd", ["Debug", "trace", "", 0, None, ["debug"], {}])
def test_a_message_of_unknown_severity_passes(odd: object) -> None:
    """A missing severity is not invented either (rule 84)."""
    assert is_at_least(at(odd), "emergency")


@pytest.mark.parametrize("params", [None, b"", b"[]", b"5", b"{}", b'{"data":"debug"}'])
def test_a_message_without_a_severity_passes(params: bytes | None) -> None:
    assert is_at_least(logged(params), "emergency")


def test_who_never_asked_gets_everything_but_debugging() -> None:
    assert [level for level in ORDER if is_at_least(at(level), DEFAULT_LEVEL)] == ORDER[1:]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"level":"info","logger":"db","data":1.50}', b'{"level":"info","logger":"gh/db","data":1.50}'),
        (
            b'{"level":"info","data":{"b":1,"a":"\\u00e9"}}',
            b'{"level":"info","data":{"b":1,"a":"\\u00e9"},"logger":"gh"}',
        ),
        (b'{"logger":"","data":0}', b'{"logger":"gh/","data":0}'),
        (b'{"logger":null,"data":0}', b'{"logger":"gh","data":0}'),
        (b'{"logger":5,"data":0}', b'{"logger":"gh","data":0}'),
        (b'{"logger":"\\ud83d","level":"odd","x":[]}', b'{"logger":"gh","level":"odd","x":[]}'),
        (b"{}", b'{"logger":"gh"}'),
    ],
)
def test_a_logger_is_named_after_its_server_and_the_rest_is_untouched(before: bytes, after: bytes) -> None:
    """(rule 84)"""
    found = with_server_name(logged(before), "gh")
    assert found.method == "notifications/message"
    assert bytes(found.params or b"") == after


@pytest.mark.parametrize("params", [None, b"[1]", b"5", b'"gh"', b"{"])
def test_what_is_no_object_has_no_logger(params: bytes | None) -> None:
    notice = logged(params)
    assert with_server_name(notice, "gh") == notice
