"""The OpenAPI 3.1 description of the admin API, made of its routes and types. `python -m host.admin.openapi` prints it;
docs/openapi.json is what it prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from http import HTTPStatus
from typing import Any

import msgspec

from config import Channel
from host.admin.api import ANY_ERRORS, MAX_REQUEST, ROUTES, Route
from host.admin.paths import API_VERSION
from host.admin.schema import REQUESTS, ApiError

_DESCRIPTION = f"""\
What a person sees of a running Colonnade host and decides. The API has two doors, which answer the same:

- a Unix socket in `run/` of the state directory, for the command line. The process at the other end must be of the \
same user and must not descend from a running host;
- the address of the web console, for its own page: with the cookie and the secret of a session, from the page's own \
origin, and with a growing number in each POST. `POST /console/open` opens a session with `{{"code": ...}}`, what is \
behind the `#` of a link of `POST /api/v1/console-links`, or with `{{"token": ...}}`, the token of a caller that \
sees calls of the past. It answers with the cookie and `{{"secret": ...}}`. `POST /console/leave` ends the session.

A session that a caller has opened with its access token takes `POST /api/v1/history/list` and `history/call` alone, \
and gets what the configuration lets the caller see: members that it is not told of are empty.

`GET /api` says which versions of the API a host speaks. Within a version answers may gain members and routes may be \
added. A body has at most {MAX_REQUEST} bytes.
"""
_REFERENCE = "#/components/schemas/{name}"
_MEANINGS = {
    400: "The body is no such request",
    403: "The caller may not send this request",
    408: "The body did not come in time",
    409: "The request cannot be carried out (any more)",
    413: "The body is too long",
    429: "Too many streams are open",
    500: "A mistake in Colonnade",
    503: "Too many requests at a time",
}


def describe() -> dict[str, Any]:
    """The description, as JSON."""
    types = [ApiError, *(result for route in ROUTES for result in route.results), *REQUESTS.values()]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Colonnade admin API",
            "version": API_VERSION.removeprefix("v"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "cookie": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "colonnade_console_SESSION",
                    "description": "The cookie of a session of the web console. At the Unix socket none is needed.",
                },
                "secret": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Colonnade-Console",
                    "description": "The secret of the same session.",
                },
                "sequence": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Colonnade-Sequence",
                    "description": "For a POST: a number that is larger than that of every request before.",
                },
            },
        },
    }


def _operation(route: Route, schemas: dict[int, dict[str, Any]]) -> dict[str, Any]:
    kind = "application/x-ndjson" if route.streams else "application/json"
    results = [schemas[id(result)] for result in route.results]
    result = results[0] if len(results) == 1 else {"anyOf": results}
    answers: dict[str, Any] = {"200": {"description": "Done", "content": {kind: {"schema": result}}}}
    for status in sorted({*route.errors, *ANY_ERRORS}):
        schema = schemas[id(ApiError)]
        answers[str(status)] = {
            "description": _MEANINGS.get(status, HTTPStatus(status).phrase),
            "content": {"application/json": {"schema": schema}},
        }
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "security": _security(route.method, route.doors),
        "responses": answers,
    }
    if route.body is not None:
        schema = schemas[id(REQUESTS[route.body])]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _operation_id(route: Route) -> str:
    """The path in camel case, with the method before it if it only reads."""
    words = route.path.replace(f"/{API_VERSION}", "").strip("/").replace("/", "-").split("-")[1:] or ["versions"]
    if route.method == "GET":
        words = ["get", *words]
    return words[0] + "".join(word.capitalize() for word in words[1:])


def _security(method: str, doors: Collection[Channel]) -> list[dict[str, list[str]]]:
    """Nothing at the Unix socket; at the web console all of it."""
    needed: dict[str, list[str]] = {"cookie": [], "secret": []}
    if method == "POST":
        needed["sequence"] = []
    return [{}, needed] if Channel.CONSOLE in doors else [{}]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe(), indent=2) + "\n")
