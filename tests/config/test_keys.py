"""Which keys may stand in a map of the file, and what an editor is told about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import TypeAdapter, ValidationError

from config.keys import Internal, Strict, desc


@dataclass(frozen=True)
class Section(Strict):
    size: Annotated[int, desc("How large it is.", 3, minimum=1)] = 3
    inner: Internal[int] = 0


ADAPTER = TypeAdapter(Section)


def refused(value: object) -> list[tuple[tuple[int | str, ...], str]]:
    try:
        ADAPTER.validate_python(value)
    except ValidationError as error:
        return [(each["loc"], each["type"]) for each in error.errors(include_url=False)]
    return []


def test_only_its_own_keys_may_stand_in_a_map() -> None:
    assert ADAPTER.validate_python({"size": 4}) == Section(4)
    assert refused({"size": 4, "sise": 5}) == [(("sise",), "unexpected_keyword_argument")]


def test_a_field_that_is_no_key_is_unknown_to_a_file() -> None:
    assert refused({"inner": 1}) == [(("inner",), "extra_forbidden")]


def test_an_editor_is_told_what_a_key_is_for() -> None:
    size = ADAPTER.json_schema()["properties"]["size"]
    assert (size["description"], size["default"], size["minimum"]) == ("How large it is.", 3, 1)
