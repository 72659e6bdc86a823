"""Holds answers of the admin API against its description."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from host.admin.openapi import describe


def _closed(node: Any) -> Any:
    """The schema, with objects that have no other members than those that are named: what is sent is described."""
    if isinstance(node, dict):
        found = {key: _closed(value) for key, value in node.items()}
        if "properties" in found and "additionalProperties" not in found:
            found["additionalProperties"] = False
        return found
    return [_closed(each) for each in node] if isinstance(node, list) else node


DOCUMENT: Mapping[str, Any] = describe()
_CLOSED = _closed(DOCUMENT)


def conforms(method: str, path: str, status: int, body: object) -> None:
    """The answer of a route, or one line of its stream, is as it is described: the status, and every member."""
    answers = DOCUMENT["paths"][path][method.lower()]["responses"]
    assert str(status) in answers, f"{method} {path} is not described to answer with {status}"
    (kind,) = answers[str(status)]["content"]
    where = ["paths", path, method.lower(), "responses", str(status), "content", kind, "schema"]
    pointer = "#/" + "/".join(each.replace("~", "~0").replace("/", "~1") for each in where)
    validator = jsonschema.Draft202012Validator({**_CLOSED, "$ref": pointer})
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(json.loads(json.dumps(body)))]
    assert problems == []
