"""The description of the admin API: docs/openapi.json is what the code says."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]

from host.admin.api import ROUTES
from host.admin.openapi import describe
from host.admin.schema import REQUESTS
from tests.test_layers import ROOT


def test_the_file_is_what_the_code_describes() -> None:
    """`python -m host.admin.openapi > docs/openapi.json` writes it anew."""
    assert json.loads(Path(ROOT, "docs", "openapi.json").read_text("utf-8")) == describe()


def test_every_route_and_every_request_is_described_once() -> None:
    document = describe()
    described = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    assert sorted(described) == sorted((route.method, route.path) for route in ROUTES)
    bodies = [route.body for route in ROUTES if route.body is not None]
    assert sorted(bodies) == sorted(REQUESTS)
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(set(ids)) == len(ids)


def test_every_schema_is_one_and_is_there() -> None:
    document = describe()
    jsonschema.Draft202012Validator.check_schema(document["components"]["schemas"])
    written = json.dumps(document)
    for name in document["components"]["schemas"]:
        assert f'"#/components/schemas/{name}"' in written, f"{name} is described and used by nothing"
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["responses"].keys() >= {"200", "403", "500", "503"}, path


def test_a_request_has_no_other_members_than_those_that_are_described() -> None:
    schemas = describe()["components"]["schemas"]
    for request in REQUESTS.values():
        assert schemas[request.__name__]["additionalProperties"] is False
