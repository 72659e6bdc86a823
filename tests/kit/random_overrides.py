"""Random overrides of a tool's arguments, and random calls. `jsonschema` judges what becomes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jsonschema  # type: ignore[import-untyped]
from msgspec import Raw

from config.views import ArgumentOverride, Override
from host.errors import InvalidParams
from host.overrides import Edited, Inapplicable, edit
from host.protocol.methods import Kind
from host.protocol.schema_value import equal

HIDDEN = ArgumentOverride(hidden=True)
VALUES: tuple[Any, ...] = (None, True, 0, 1, 2, 7, -3, 1.5, "", "x", "xy", "abc", "long text", [], [1], ["x"], {})


def value(given: object) -> ArgumentOverride:
    return ArgumentOverride(value=json.dumps(given).encode())


def default(given: object, description: str | None = None) -> ArgumentOverride:
    return ArgumentOverride(default=json.dumps(given).encode(), description=description)


def edit_schema(schema: object, arguments: Mapping[str, ArgumentOverride]) -> Edited:
    definition = json.dumps({"name": "tool", "inputSchema": schema}).encode()
    return edit(Kind.TOOL, definition, Override(arguments=arguments))


def schema_of(edited: Edited) -> Any:
    return json.loads(edited.definition)["inputSchema"]


def applied(edited: Edited, arguments: object) -> Any:
    """The arguments that the server gets. Raises InvalidParams."""
    if edited.arguments is None:
        return arguments
    made = edited.arguments.apply(Raw(json.dumps(arguments).encode()))
    assert made is not None
    return json.loads(bytes(made))


class Count(NamedTuple):
    """Numbers of a run: overrides that were applied, or not; calls of the edited schema that the server's own accepted,
    and those that sent what was taken out."""

    applied: int = 0
    left_out: int = 0
    accepted: int = 0
    refused: int = 0

    def plus(self, other: Count) -> Count:
        return Count(*map(sum, zip(self, other, strict=True)))


def judge(schema: Any, pick: random.Random) -> Count:
    """Edit a schema by a random override, and judge random calls."""
    trial = _Trial(schema, pick)
    changes = trial.overrides()
    try:
        edited = edit_schema(schema, changes)
    except Inapplicable:
        return Count(left_out=1)
    shown, own = schema_of(edited), judge_of(schema)
    taken_out = frozenset(name for name, each in changes.items() if each.is_taken_out)
    assert not any(name in each.get("properties", {}) for name in taken_out for each in certain(shown))
    accepts = judge_of(shown).is_valid
    accepted = refused = 0
    for call in filter(accepts, trial.calls(shown, taken_out)):
        seen = schema, changes, call
        try:
            sent = applied(edited, call)
        except InvalidParams:
            assert taken_out & call.keys(), seen
            refused += 1
            continue
        assert not taken_out & call.keys(), seen
        assert own.is_valid(sent), (*seen, sent)
        assert equal(sent, _wanted(changes, call)), (*seen, sent)
        accepted += 1
    return Count(1, 0, accepted, refused)


def judge_of(schema: Any) -> Any:
    """The validator of the dialect that a schema names."""
    return jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)


def certain(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema, and those that it combines with `allOf`."""
    if isinstance(schema, dict):
        yield schema
        for each in schema.get("allOf", ()):
            yield from certain(each)


def _wanted(changes: Mapping[str, ArgumentOverride], call: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by what the override says, or else by what the client sends."""
    made = dict(call)
    for name, change in changes.items():
        if change.value is not None:
            made[name] = json.loads(change.value)
        elif change.default is not None:
            made.setdefault(name, json.loads(change.default))
    return made


class _Trial:
    """Overrides of a schema and calls, which often fit it."""

    def __init__(self, schema: Any, pick: random.Random) -> None:
        self._schema = schema
        self._pick = pick
        self._declared = sorted({name for each in certain(schema) for name in each.get("properties", ())})
        self._names = [*self._declared, "a", "b", "other"]

    def overrides(self) -> dict[str, ArgumentOverride]:
        names = self._declared if self._declared and self._pick.randrange(10) else self._names
        few = min(1 + self._pick.randrange(2), len(names))
        return {name: self._override(name) for name in self._pick.sample(names, few)}

    def _override(self, name: str) -> ArgumentOverride:
        given = self._pick.choice(self._fitting(self._schema, name) if self._pick.randrange(10) else VALUES)
        made = HIDDEN, value(given), default(given), default(given, "words"), ArgumentOverride(description="words")
        return self._pick.choice(made)

    def calls(self, shown: Any, taken_out: frozenset[str]) -> Iterator[dict[str, Any]]:
        """Calls of the edited schema. One in ten sends what was taken out."""
        required = {name for each in certain(shown) for name in each.get("required", ())}
        fitting = {name: self._fitting(shown, name) for name in dict.fromkeys((*self._names, *taken_out))}
        for _ in range(8):
            names = [name for name in fitting if name in required or self._pick.randrange(10) < 3]
            others = [name for name in names if name not in taken_out]
            names = others if self._pick.randrange(10) else [*others, *taken_out]
            yield {name: self._pick.choice(fitting[name]) for name in names}

    def _fitting(self, schema: Any, name: str) -> list[Any]:
        """Values that the schemas of an argument accept; others if there are none."""
        declared = [each["properties"][name] for each in certain(schema) if name in each.get("properties", {})]
        some = [*self._pick.sample(VALUES, 8), *_named_in(declared)]
        if not declared:
            return some
        own = judge_of({**{word: schema[word] for word in ("$schema", "$defs") if word in schema}, "allOf": declared})
        return [each for each in some if own.is_valid(each)] or some


def _named_in(schemas: list[Any]) -> Iterator[Any]:
    """The values that schemas name."""
    for schema in schemas:
        if isinstance(schema, dict):
            yield from schema.get("enum", ())
            yield from (schema[word] for word in ("const", "default", "minimum") if word in schema)
