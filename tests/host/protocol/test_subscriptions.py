"""`subscriptions/listen`: filters and acknowledgements, read and written, and the subscription id of notifications."""

from __future__ import annotations

import json

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from host.errors import InvalidParams
from host.jsonrpc.messages import Id, Notification, write
from host.jsonrpc.raw import encode_object, members
from host.protocol.methods import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED
from host.protocol.subscriptions import (
    ACKNOWLEDGED,
    MAX_WATCHED,
    Filter,
    acknowledged,
    acknowledgement,
    filter_of,
    listen_params,
    listen_result,
    subscription_of,
    with_subscription_id,
    without_subscription_id,
)

NOTHING = Filter(frozenset(), (), ())
KEY = b'"io.modelcontextprotocol/subscriptionId"'
FILTERS = st.builds(
    Filter,
    st.frozensets(st.sampled_from([TOOLS_CHANGED, RESOURCES_CHANGED, PROMPTS_CHANGED])),
    st.lists(st.text(max_size=5), unique=True, max_size=3).map(tuple),
    st.lists(st.text(max_size=5), unique=True, max_size=3).map(tuple),
)
IDS = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5)


# Filters


@pytest.mark.parametrize(
    ("notifications", "expected"),
    [
        (b"{}", NOTHING),
        (b'{"toolsListChanged":true}', replace(NOTHING, lists=frozenset({TOOLS_CHANGED}))),
        (b'{"toolsListChanged": false ,"later":[1]}', NOTHING),
        (b'{"promptsListChanged":null,"resourceSubscriptions": null,"taskIds":null}', NOTHING),
        (
            b'{"promptsListChanged": true ,"resourcesListChanged":true}',
            replace(NOTHING, lists=frozenset({PROMPTS_CHANGED, RESOURCES_CHANGED})),
        ),
        (b'{"resourceSubscriptions":["b:1","a:1","b:\\u0031"]}', replace(NOTHING, uris=("b:1", "a:1"))),
        (b'{"resourceSubscriptions":[],"taskIds":["t","t"]}', replace(NOTHING, tasks=("t",))),
    ],
)
def test_what_a_client_wants(notifications: bytes, expected: Filter) -> None:
    """Each resource once (rule 86)."""
    assert filter_of(members(b'{"notifications":%b}' % notifications)) == expected


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (b"{}", "'notifications' is missing or not an object"),
        (b'{"notifications":null}', "'notifications' is missing or not an object"),
        (b'{"notifications":["toolsListChanged"]}', "'notifications' is missing or not an object"),
        (b'{"notifications":{"toolsListChanged":1}}', "'toolsListChanged' of 'notifications' is neither"),
        (b'{"notifications":{"resourceSubscriptions":"a:1"}}', "'resourceSubscriptions' of .* not an array of strings"),
        (b'{"notifications":{"resourceSubscriptions":["a:1",1]}}', "'resourceSubscriptions' of .* not an array"),
        (b'{"notifications":{"resourceSubscriptions":["\\ud83d"]}}', "'resourceSubscriptions' of .* not an array"),
        (b'{"notifications":{"TaskIds":[]}}', "some readers take the member 'TaskIds' for another one"),
    ],
)
def test_a_wish_of_another_shape_is_refused(params: bytes, why: str) -> None:
    with pytest.raises(InvalidParams, match=why):
        filter_of(members(params))


@pytest.mark.parametrize("member", ["resourceSubscriptions", "taskIds"])
def test_wishes_have_a_bound(member: str) -> None:
    """(rule 86)"""

    def wishing(count: int) -> Filter:
        text = json.dumps({"notifications": {member: [str(each) for each in range(count)]}})
        return filter_of(members(text.encode()))

    found = wishing(MAX_WATCHED)
    assert len(found.uris + found.tasks) == MAX_WATCHED
    with pytest.raises(InvalidParams, match=f"'{member}' of 'notifications' names more than 1000"):
        wishing(MAX_WATCHED + 1)


@given(FILTERS, IDS)
def test_what_one_side_writes_the_other_reads(wanted: Filter, id: Id) -> None:
    """(rule 86, rule 87)"""
    assert filter_of(listen_params(wanted)) == wanted
    notice = acknowledgement(id, wanted)
    assert notice.method == ACKNOWLEDGED
    assert acknowledged(notice.params) == wanted
    named = subscription_of(notice)
    assert named == id
    assert type(named) is type(id)


def test_the_acknowledgement_names_what_is_granted_and_nothing_else() -> None:
    """(rule 86)"""
    granted = Filter(frozenset({TOOLS_CHANGED}), ("gh+a:1",), ())
    notice = acknowledgement(9, granted)
    assert bytes(notice.params or b"") == (
        b'{"_meta":{%b:9},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["gh+a:1"]}}' % KEY
    )
    taken = mcp_types.SubscriptionsAcknowledgedNotification.model_validate_json(write(notice), by_name=False)
    assert taken.params.notifications.tools_list_changed is True
    assert taken.params.notifications.prompts_list_changed is None
    assert bytes(acknowledgement("9", NOTHING).params or b"") == b'{"_meta":{%b:"9"},"notifications":{}}' % KEY


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, NOTHING),
        (b"[]", NOTHING),
        (b"{}", NOTHING),
        (b'{"notifications":[]}', NOTHING),
        (b'{"notifications":{"toolsListChanged":1,"taskIds":"t"}}', NOTHING),
        (
            b'{"notifications":{"promptsListChanged":true,"resourceSubscriptions":[1,"a:1",null,"a:1","\\ud83d"]}}',
            Filter(frozenset({PROMPTS_CHANGED}), ("a:1",), ()),
        ),
    ],
)
def test_what_cannot_be_read_is_not_granted(params: bytes | None, expected: Filter) -> None:
    """(rule 87)"""
    assert acknowledged(None if params is None else Raw(params)) == expected


# Notices


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, b'{"_meta":{%b:9}}'),
        (b"{}", b'{"_meta":{%b:9}}'),
        (b'{"uri":"a:\\u0031", "n": 1.00}', b'{"uri":"a:\\u0031","n":1.00,"_meta":{%b:9}}'),
        (b'{"_meta":{"a": 1.0 },"uri":"x"}', b'{"_meta":{"a":1.0,%b:9},"uri":"x"}'),
        (b'{"_meta":{%b:"other"}}' % KEY, b'{"_meta":{%b:9}}'),
        (b'{"_meta":5,"uri":"x"}', b'{"_meta":{%b:9},"uri":"x"}'),
        (b"[1]", b'{"_meta":{%b:9}}'),
    ],
)
def test_a_notice_says_which_subscription_it_is_for(params: bytes | None, expected: bytes) -> None:
    """All other members keep their bytes (rule 86)."""
    notice = with_subscription_id(
        Notification("notifications/resources/updated", None if params is None else Raw(params)), 9
    )
    assert notice.method == "notifications/resources/updated"
    assert bytes(notice.params or b"") == expected % KEY
    assert subscription_of(notice) == 9


@pytest.mark.parametrize(
    "params",
    [
        None,
        b"[]",
        b"{}",
        b'{"_meta":[]}',
        b'{"_meta":{}}',
        b'{"_meta":{%b:null}}' % KEY,
        b'{"_meta":{%b:true}}' % KEY,
        b'{"_meta":{%b:9.5}}' % KEY,
        b'{"_meta":{%b:["9"]}}' % KEY,
        b'{"_meta":{%b:"\\ud83d"}}' % KEY,
    ],
)
def test_a_notice_that_names_no_subscription_has_none(params: bytes | None) -> None:
    assert subscription_of(Notification("x", None if params is None else Raw(params))) is None


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (b'{"_meta":{%b:9},"uri":"x"}' % KEY, b'{"uri":"x"}'),
        (b'{"uri":"x","_meta":{"a":1.00,%b:"9"}}' % KEY, b'{"uri":"x","_meta":{"a":1.00}}'),
        (b'{"_meta":{"io.modelcontextprotocol\\/subscriptionId":9}}', b"{}"),
        (b'{"_meta":{ "a":1 },"uri":"x"}', b'{"_meta":{ "a":1 },"uri":"x"}'),
        (b'{"_meta":{}}', b'{"_meta":{}}'),
        (b'{"_meta":5}', b'{"_meta":5}'),
        (b"{}", b"{}"),
    ],
)
def test_behind_us_nobody_sees_the_subscription(params: bytes, expected: bytes) -> None:
    """(rule 51)"""
    before = members(params)
    kept = dict(before)
    assert bytes(encode_object(without_subscription_id(before))) == expected
    assert before == kept


@pytest.mark.parametrize("id", [9, "9"])
def test_a_subscription_ends_with_an_empty_result(id: Id) -> None:
    """The result has the subscription id, with the same JSON type (rule 86)."""
    found = json.loads(bytes(listen_result(id)))
    assert found == {"resultType": "complete", "_meta": {"io.modelcontextprotocol/subscriptionId": id}}
