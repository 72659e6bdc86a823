"""The ends of a long message tell its short members, and where its long one is."""

from __future__ import annotations

import pytest

from host.jsonrpc.edges import END, long_object

LONG = b'{"x":"' + b"y" * 2 * END + b'"}'


@pytest.mark.parametrize(
    ("text", "name", "short"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":@}', b"result", {b"jsonrpc": b'"2.0"', b"id": b"7"}),
        (b'{"result":@,"jsonrpc":"2.0","id":"q"}\n', b"result", {b"jsonrpc": b'"2.0"', b"id": b'"q"'}),
        (b' { "id" : 7 , "error" : @ , "jsonrpc" : "2.0" } ', b"error", {b"id": b"7", b"jsonrpc": b'"2.0"'}),
        (b'{"method":"m","params":@,"id":-1}', b"params", {b"method": b'"m"', b"id": b"-1"}),
        (b'{"id":1,"id":2,"params":@,"id":3}', b"params", {b"id": b"3"}),
        (b'{"params":@}' + b" " * 100, b"params", {}),
    ],
)
def test_short_members_stand_around_a_long_object(text: bytes, name: bytes, short: dict[bytes, bytes]) -> None:
    found = long_object(text.replace(b"@", LONG))
    assert found is not None
    assert (found.name, found.short, bytes(found.value)) == (name, short, LONG)


@pytest.mark.parametrize(
    "text",
    [
        b'{"id":7,"result":"@"}',
        b'{"id":7,"result":[@]}',
        b'{"id":7,"result":@',
        b'{"id":7,"result":@,"other":1}',
        b'{"other":1,"result":@}',
        b'{"id":"\\"","result":@}',
        b'{"id":7,"result":@,"id":1.5}',
        b'{"id":7,"result":',
        b'[{"id":7,"result":@}]',
        b'{"params":@}' + b" " * END,
        b"",
    ],
)
def test_any_other_message_is_read_as_a_whole(text: bytes) -> None:
    assert long_object(text.replace(b"@", LONG)) is None
