"""The JSON Schema of the file, generated from the model: for editors, and for the keys that an error message offers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import ConfigDict, RootModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from config.model import Config
from config.problems import KeyPath
from config.types import Json


class ConfigFile(RootModel[Any]):
    """The model as the validator of a whole file."""

    model_config = ConfigDict(hide_input_in_errors=True)
    root: Config  # `RootModel[Config]` would build the validator of the whole file twice


class _Generator(GenerateJsonSchema):
    """Leaves out the traces of Python: titles made of names, null for what may be left out, defaults as Python has
    them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def schema() -> Json:
    """JSON Schema (2020-12) of a configuration file, for editors. Every call makes a new dictionary."""
    document = ConfigFile.model_json_schema(schema_generator=_Generator)
    definitions = document["$defs"]
    for definition in definitions.values():
        definition.pop("title", None)
        if "description" in definition:  # its first paragraph is for everybody, the rest for those who read the model
            definition["description"] = definition["description"].partition("\n\n")[0].replace("\n", " ")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Colonnade configuration",
        **definitions.pop("Config"),
        "$defs": definitions,
    }


def known_keys(path: KeyPath) -> list[str]:
    """The keys that may stand in the map at this place of the file, required ones first; empty where keys are free."""
    document = _schema_once()
    nodes = list(_alternatives(document, document))
    for part in path:
        nodes = [below for node in nodes for child in _below(node, part) for below in _alternatives(child, document)]
    return list(
        dict.fromkeys(key for part in ("required", "properties") for node in nodes for key in node.get(part, ()))
    )


# A file may have thousands of unknown keys, and making the schema takes 10 ms.
_schema_once = cache(schema)


def _below(node: Json, part: str | int | None) -> Iterator[Any]:
    """The schema of an entry of a map, or of the items of a list."""
    if isinstance(part, int):
        yield node.get("items")
    elif part in node.get("properties", {}):
        yield node["properties"][part]
    else:
        yield node.get("additionalProperties")


def _alternatives(node: Any, document: Json) -> Iterator[Json]:
    """The node itself with everything that it refers to or leaves the choice of."""
    if not isinstance(node, dict):
        return
    yield node
    if "$ref" in node:
        yield from _alternatives(document["$defs"][node["$ref"].rpartition("/")[2]], document)
    for choice in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _alternatives(choice, document)
