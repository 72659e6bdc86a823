"""Conditions on arguments that come from elsewhere than the file, as JSON: read by the rules of the file.

A person who answers a question may say for which arguments the answer holds. What he says is what he would write
under `when`, except that `${...}` is plain text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.form import ChecksForm, WhenForm, conditions, known_keys
from config.interpolate import Expander
from config.model import Condition
from config.problems import Mark, clip
from config.source import Scalar
from config.values import did_you_mean

_NOWHERE = Mark(1, 1)


class WhenError(ValueError):
    """Conditions that cannot be read; the text is a sentence for whoever wrote them."""


def read_when(when: Mapping[str, object]) -> tuple[Condition, ...]:
    """The conditions of a decoded JSON object such as `{"owner": {"in": ["acme"]}}`. Raises `WhenError`."""
    try:
        nodes = _nodes(when)
    except ValueError:
        raise WhenError("a number has too many digits") from None  # Python refuses to write it out
    try:
        form = WhenForm.model_validate({"when": nodes}, context=Expander({}, Path("/")))
    except ValidationError as error:
        raise WhenError("; ".join(_sentence(details) for details in error.errors(include_url=False))) from None
    return conditions(form.when)


def _nodes(value: object) -> object:
    """A decoded value as the readers of the form take it."""
    if isinstance(value, dict):
        return {key: _nodes(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_nodes(item) for item in value]
    if isinstance(value, str):
        return Scalar(value.replace("${", "$${"), False, _NOWHERE)
    return Scalar(json.dumps(value), True, _NOWHERE)


def _sentence(details: ErrorDetails) -> str:
    _, *path = details["loc"]
    where = ".".join(clip(str(part)) for part in path if part != "[key]")
    text = details["msg"]
    if details["type"] == "extra_forbidden":
        ops = known_keys(ChecksForm)
        text = f"there is no such check; {did_you_mean(str(path[-1]), ops) or 'there are ' + ', '.join(ops)}"
    elif details["type"] in ("model_type", "dict_type"):
        text = "expected a map of checks, or a value"
    return f"{where}: {text}" if where else text
