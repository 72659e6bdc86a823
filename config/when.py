"""Conditions on arguments that come from elsewhere than the file, as JSON: read by the rules of the file.

A person who answers a confirmation may say for which arguments the answer holds. What he says is what he would write
under `when`, except that `${...}` is plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ConfigDict, RootModel, ValidationError
from pydantic_core import ErrorDetails

from config.document import Plain
from config.model import CHECKS, Condition, When, meant_key
from config.problems import clip, did_you_mean
from config.references import Expander
from config.types import sentence


class WhenError(ValueError):
    """Conditions that cannot be read; the text is a sentence for whoever wrote them."""


class _When(RootModel[When]):
    model_config = ConfigDict(hide_input_in_errors=True, defer_build=True)  # until a person answers with conditions


def read_when(when: Mapping[str, object]) -> tuple[Condition, ...]:
    """The conditions of a decoded JSON object such as `{"owner": {"in": ["acme"]}}`. Raises `WhenError`."""
    try:
        written = _as_written(when)
    except ValueError:
        raise WhenError("a number has too many digits") from None  # Python refuses to write it out
    try:
        return _When.model_validate(written, context=Expander({}, Path("/"))).root
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise WhenError("; ".join(_sentence(details, written) for details in found)) from None


def _as_written(value: object) -> object:
    """A decoded value as a file in JSON would have it."""
    if isinstance(value, dict):
        return {key: _as_written(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_as_written(item) for item in value]
    return value.replace("${", "$${") if isinstance(value, str) else Plain(json.dumps(value))


def _sentence(details: ErrorDetails, value: object) -> str:
    path = [part for part in details["loc"] if part != "[key]"]
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
    where = ".".join(clip(str(part)) for part in path)
    text = sentence(details, value)
    if details["type"] == "unexpected_keyword_argument":
        meant = did_you_mean(meant_key(str(path[-1]), CHECKS), CHECKS)
        text = f"there is no such check; {meant or 'there are ' + ', '.join(CHECKS)}"
    elif details["type"] == "dataclass_type":
        text = "expected a map of checks, or a value"
    return f"{where}: {text}" if where else text
