"""The extensions between apps and listeners, and what all apps do with ASGI events."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from host.wire.asgi import (
    CLAIM,
    FINDINGS,
    MAX_FINDINGS,
    PEER,
    BodyTooLarge,
    Event,
    Headers,
    Scope,
    cancel_when,
    claim,
    examine_sender,
    immediate,
    of_head,
    read_body_untimed,
    respond,
    until_disconnect,
)
from host.wire.descent import this_process


def test_a_listener_without_the_extension_serves_everything() -> None:
    assert claim({"type": "http"}, None)
    assert claim({"type": "http", "extensions": {}}, "laptop", reserved=True)


def test_the_listener_is_told_whose_request_it_is_and_decides() -> None:
    told: list[tuple[Hashable, bool]] = []

    def take(owner: Hashable, *, reserved: bool) -> bool:
        told.append((owner, reserved))
        return owner is not None

    scope = {"type": "http", "extensions": {CLAIM: take}}
    assert claim(scope, "laptop")
    assert not claim(scope, None, reserved=True)
    assert told == [("laptop", False), (None, True)]


async def test_the_block_ends_when_the_client_leaves_and_not_before(autojump_clock: MockClock) -> None:
    async def receive() -> Event:
        if trio.current_time() - began < 3:
            await trio.sleep(1)
            return {"type": "http.request", "body": b"", "more_body": False}
        return {"type": "http.disconnect"}

    began = trio.current_time()
    async with until_disconnect(receive):
        await trio.sleep(60)
    assert trio.current_time() - began == pytest.approx(3)


async def test_a_block_that_is_done_does_not_wait_for_the_client(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        scope = trio.CancelScope()
        nursery.start_soon(cancel_when, stop, scope)
        with trio.fail_after(1):
            async with until_disconnect(trio.sleep_forever) as inner:
                inner.start_soon(trio.sleep_forever)
        assert not scope.cancel_called
        stop.set()
        with scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught


def test_a_listener_without_the_extension_does_nothing_at_once() -> None:
    assert immediate({"type": "http"}) is None
    assert immediate({"type": "http", "extensions": {}}) is None


def test_what_a_head_says_is_found_once_while_the_listener_remembers_the_head() -> None:
    asked: list[str] = []

    def path(scope: Scope) -> str:
        asked.append(scope["path"])
        return asked[-1].upper()

    findings: dict[object, object] = {}
    scope = {"type": "http", "path": "/a", "extensions": {FINDINGS: findings}}
    assert [of_head(dict(scope), path) for _ in range(2)] == ["/A", "/A"]
    assert of_head(scope, lambda scope: 1) == 1
    assert (asked, len(findings)) == (["/a"], 2)
    for without in ({"path": "/b"}, {"path": "/b", "extensions": {}}):
        assert of_head(without, path) == "/B"
    assert asked == ["/a", "/b", "/b"]


def test_a_head_that_is_repeated_for_days_keeps_few_findings() -> None:
    """Each reload of the configuration asks anew, with another function."""
    findings: dict[object, object] = {}
    scope = {"type": "http", "extensions": {FINDINGS: findings}}
    for reload in range(100):
        assert of_head(scope, partial(lambda found, _: found, reload)) == reload
    assert len(findings) <= MAX_FINDINGS


def test_only_the_listener_of_a_unix_socket_tells_who_sent_a_request() -> None:
    me = this_process()
    assert examine_sender({"type": "http", "extensions": {PEER: lambda: me}}) is me
    with pytest.raises(LookupError):
        examine_sender({"type": "http", "extensions": {}})


@pytest.mark.parametrize(
    "body",
    [(b"abcde",), (b"ab", b"cde"), (b"ab", b"", b"cde"), (b"", b"abcde"), (b"a", b"b", b"c", b"de"), (b"abcde", b"")],
)
async def test_each_part_of_a_body_is_counted_as_it_comes_up_to_a_limit(body: tuple[bytes, ...]) -> None:
    async def read(limit: int) -> tuple[bytes, list[int]]:
        parts, sizes = [*body], list[int]()

        async def receive() -> Event:
            await trio.lowlevel.checkpoint()
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        return await read_body_untimed(receive, limit, sizes.append), sizes

    assert await read(5) == (b"abcde", [*map(len, body)])
    with pytest.raises(BodyTooLarge):
        await read(4)


@pytest.mark.parametrize(("status", "headers"), [(200, [(b"content-length", b"0")]), (204, [])])
async def test_a_whole_answer_has_a_length_unless_it_must_not(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """RFC 9110, 8.6."""
    sent: list[Event] = []

    async def send(event: Event) -> None:
        sent.append(event)

    await respond(send, status, {})
    assert sent == [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": b"", "more_body": False},
    ]


def test_a_header_is_found_by_its_name_in_any_case() -> None:
    found = Headers([(b"X-A", b" 1\t"), (b"x-a", b"2"), (b"X-B", b"\xe9")])
    assert found.all("x-a") == ["1", "2"]
    assert found.one("x-a") is None
    assert found.one("x-b") == "é"
    assert found.one("x-c") is None
    assert found.all("x-c") == []
