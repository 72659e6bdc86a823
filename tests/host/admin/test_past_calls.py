"""The calls of the past that the owner sees, and those that a caller sees which signs in with its access token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio

from config import Config, load
from host.admin.past_calls import PastCalls, reader_of
from host.admin.schema import AdminError, HistoryApi, HistoryRequest
from host.audit.writer import Audit, open_audit
from host.history.entrance import HostHistory
from host.history.forgotten import forget
from host.journal import Journal
from host.storage.directory import open_state
from tests.host.history.kit import call

TOKENS = {"ann-token": "0123456789abcdef", "bob": "123456789abcdef0", "eve": "23456789abcdef01"}
SECRET = "a value that is hidden from the caller"


def config(folder: Path, callers: str) -> Config:
    file = folder / "colonnade.yaml"
    file.write_text(
        f"history: {{}}\nlisten: {{auth: {{tokens: {TOKENS}}}}}\ncallers: {callers}\nservers: {{a: {{command: [x]}}}}\n"
    )
    return load(file)


class World:
    """The history of a host with calls of three tokens, and one without."""

    def __init__(self, folder: Path, nursery: trio.Nursery, audit: Audit) -> None:
        self.folder = folder
        self.audit = audit
        self.state = open_state(folder / "state")
        self.history = HostHistory(self.state, Journal(), nursery, has_files=True)
        self.says("{ann: {token: ann-token, history: own}, boss: {token: bob, history: all}, eve: {token: eve}}")

    def says(self, callers: str) -> None:
        """The configuration in effect has these callers."""
        self.config = config(self.folder, callers)
        self.history.follow(self.config)

    def reader(self, token: str) -> HistoryApi | None:
        digest = sha256(TOKENS.get(token, token).encode()).digest()
        found = reader_of(digest, lambda: self.history, lambda: self.config)
        return None if found is None else found.calls

    @property
    def owner(self) -> PastCalls:
        return PastCalls(lambda: self.history, lambda: self.config)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    with open_audit(open_state(folder / "state").audit) as audit:
        async with trio.open_nursery() as nursery:
            made = World(folder, nursery, audit)
            audit.write("config", file=str(made.config.source), policy="")
            for principal in ("ann-token", "bob", "eve", ""):
                more: dict[str, Any] = {"args": {"bytes": 9, "json": SECRET}, "rule": SECRET, "approver": SECRET}
                more["tool_error"] = principal == "ann-token"
                call(audit, f"of {principal}", principal=principal, client="ann-token", view=SECRET, **more)
            audit.write(
                "attempts", server="a", prim="tool", item="hidden", principal="ann-token", why="denied", count=2
            )
            yield made
            nursery.cancel_scope.cancel()


async def found_by(reader: HistoryApi | None, **wanted: Any) -> list[Any]:
    assert reader is not None
    request = HistoryRequest(**wanted)
    found: Any = await request.carry_out(reader, None)  # type: ignore[arg-type]
    return list(found["calls"])


async def test_a_caller_sees_its_own_calls_or_all_as_the_configuration_says(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        every = await found_by(made.owner)
        assert [each["item"] for each in every] == ["hidden", "of ", "of eve", "of bob", "of ann-token"]
        assert await found_by(made.reader("bob")) == every
        ann = made.reader("ann-token")
        (own,) = await found_by(ann)
        assert (own["item"], own["tool_error"]) == ("of ann-token", True)
        assert made.reader("eve") is None
        assert made.reader("none of these") is None
        for wanted in ({"caller": "bob"}, {"tool": "hidden"}, {"outcome": "denied"}, {"beyond": every[0]["place"]}):
            assert await found_by(ann, **wanted) == []
        for each in every[:-1]:
            for place in (None, each["place"]):
                assert ann is not None
                with pytest.raises(AdminError, match="cannot be shown now"):
                    await ann.past_call(each["id"], place)


async def test_a_caller_is_told_of_its_calls_what_it_was_told_then(tmp_path: Path) -> None:
    """Neither the rule that decided, nor the arguments that the server got, nor what these could be guessed by: their
    size, and hashes. A row has its members all the same."""
    async with world(tmp_path) as made:
        (full,) = await found_by(made.owner, caller="ann-token", tool="of ann-token")
        (own,) = await found_by(made.reader("ann-token"))
        assert own.keys() == full.keys()
        assert {name for name in full if full[name] != own[name]} == {
            *("rule", "approver", "view", "file", "seq", "config", "sent")
        }
        ann, boss = made.reader("ann-token"), made.reader("bob")
        assert ann is not None
        assert boss is not None
        shown, whole = await ann.past_call(own["id"], own["place"]), await boss.past_call(own["id"], None)
        assert shown["call"] == own
        assert [(each["kind"], each.get("tool_error")) for each in shown["records"]] == [
            ("decision", None),
            ("outcome", True),
        ]
        assert SECRET not in str(shown)
        assert not any("sha256" in str(each) for each in shown["records"])
        assert whole == await made.owner.past_call(own["id"], None)
        assert SECRET in str(whole["records"])


async def test_what_is_missing_and_why_is_for_the_owner(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        assert made.audit.path is not None
        with made.audit.path.open("ab") as file:
            file.write(b"no record\n")
        owner, ann = made.owner, made.reader("ann-token")
        assert ann is not None
        wanted: dict[str, Any] = {"limit": 10}
        (said,) = (await owner.past_calls(None, wanted))["missing"]
        assert made.audit.path.name in said
        assert (await ann.past_calls(None, wanted))["missing"] == [
            "some calls may be missing here: the owner of the host sees why"
        ]
        made.history.follow(load(_without_history(tmp_path)))
        with pytest.raises(AdminError, match="keeps no history"):
            await owner.past_calls(None, wanted)
        with pytest.raises(
            AdminError, match=r"^the calls cannot be shown now: search in a shorter time, or ask the owner of the host$"
        ):
            await ann.past_calls(None, wanted)


def _without_history(folder: Path) -> Path:
    file = folder / "other.yaml"
    file.write_text("servers: {a: {command: [x]}}")
    return file


async def test_a_caller_that_was_forgotten_sees_what_came_later(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        ann = made.reader("ann-token")
        (own,) = await found_by(ann)
        forget(made.state.path, "ann-token", own["time"])
        made.history.follow(load(_without_history(tmp_path)))
        (made.state.path / "history.db").unlink()
        made.says("{ann: {token: ann-token, history: own}}")
        call(made.audit, "later", principal="ann-token")
        assert [each["item"] for each in await found_by(made.reader("ann-token"))] == ["later"]


async def test_what_a_caller_sees_follows_the_configuration(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        made.says("{ann: {token: ann-token, history: all}, boss: {token: bob}}")
        assert len(await found_by(made.reader("ann-token"))) == 5
        assert made.reader("bob") is None
        made.says("{other: {token: ann-token, history: own}}")
        assert len(await found_by(made.reader("ann-token"))) == 1
