"""Transcripts of the matrix hold what matters, and nothing that is another in each run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.matrix.transcripts import normalised, transcript

SERVER = "v2025-11-25-http"


def normal(message: dict[str, Any]) -> Any:
    return json.loads(normalised(message, SERVER))


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ({"jsonrpc": "2.0", "id": 7, "method": "ping"}, {"jsonrpc": "2.0", "id": "...", "method": "ping"}),
        ({"jsonrpc": "2.0", "id": None, "result": {}}, {"jsonrpc": "2.0", "id": None, "result": {}}),
        (
            {"error": {"code": -32602, "message": "no", "data": 1}},
            {"error": {"code": -32602, "message": "...", "data": 1}},
        ),
        ({"taskId": "a", "nextCursor": None}, {"taskId": "...", "nextCursor": None}),
        ({"text": f"{SERVER}__echo at http://127.0.0.1:4711/"}, {"text": "SERVER__echo at http://127.0.0.1:PORT/"}),
        ({"text": '{"requestState": "x"}'}, {"text": '{"requestState": "..."}'}),
        ({"id": "the id of a thing"}, {"id": "the id of a thing"}),
        ({"name": "colonnade", "version": "1"}, {"name": "colonnade", "version": "..."}),
        ({"tools": [{"name": f"{SERVER}__a"}, {"name": "v2025-11-25-sse__a"}]}, {"tools": [{"name": "SERVER__a"}]}),
    ],
)
def test_what_varies_is_replaced(message: dict[str, Any], kept: dict[str, Any]) -> None:
    assert normal(message) == kept


def test_streams_stand_one_after_the_other() -> None:
    changed = {"method": "notifications/tools/list_changed"}
    asked_too_early = {"result": {"taskId": "t", "status": "working"}}
    received: list[tuple[int | None, dict[str, Any]]] = [
        *((2, {"b": 1}), (3, {"status": 200}), (3, asked_too_early), (None, {"c": 1}), (1, {"a": 1})),
        *((None, changed), (2, {"b": 2}), (2, {"b": 2}), (4, {"status": 200})),
    ]
    assert transcript(received) == ['{"a": 1}', '{"b": 1}', '{"b": 2}', '{"c": 1}']
