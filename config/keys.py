"""The common part of the maps of the file: the keys that may stand in one, and the text about each for editors."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, GetPydanticSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError, core_schema

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)


class Strict:
    """A map of the file in which only the keys of the class may stand."""

    __pydantic_config__ = STRICT


def desc(description: str, default: Any = None, **schema: Any) -> Any:
    """The description and default of a key, for editors. `default` is written as in the file; it changes no value."""
    more = schema if default is None else {**schema, "default": default}
    return Field(description=description, json_schema_extra=more)


def _refuse_key(value: object) -> object:
    raise PydanticCustomError("extra_forbidden", "unknown key")


_REFUSED = GetPydanticSchema(lambda source, handler: core_schema.no_info_plain_validator_function(_refuse_key))
Internal = Annotated[T, _REFUSED, SkipJsonSchema()]
"""A field that is no key of the file. Its default is not validated, so the validator only meets what a file wrote."""
