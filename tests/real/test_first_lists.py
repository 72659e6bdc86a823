"""The first lists of a real host, a few starts of each round; `first_lists.py` plays as many as wanted, and keeps the
machine busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .first_lists import HANDSHAKE, STATELESS, play, table


@pytest.mark.timeout(300)  # servers that were written in Python start slowly on a busy machine
@pytest.mark.parametrize(("name", "starts"), [("desktop", 2), ("transports", 1), ("ten", 2)])
def test_from_the_second_start_on_the_first_list_is_whole_while_a_server_sleeps(
    name: str, starts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_STATE", os.environ.get("COLONNADE_STATE", ""))  # put back what the round sets
    done = play(name, tmp_path, starts, delay=8.0, busy=0)
    print(table(done))
    assert {revision for each in done for revision in (HANDSHAKE, STATELESS) if revision in each.client} == {
        HANDSHAKE,
        STATELESS,
    }
    assert [text for each in done for text in each.problems] == []
    assert any(each.asleep for each in done)
