"""The messages that Colonnade sent in a run, held against the JSON schema of their revision.

The schemas of 2025-03-26 and later are those inside the official conformance suite. It has none of 2024-11-05: there
the models of the official Python SDK decide, of a version that knows no later revision. Both come from the registries,
into the build folder.

It knows which definition a message has to satisfy: that of its method, or of the result of the request that it answers,
and one that its sender may send at all. It refuses to know what stands in the message. Messages of an extension are
held against the envelope only, as no schema of the revision has them.

A run that finds nothing proves something only if it could have found something: one message of each definition is
spoiled, member by member, and every spoiled one must be found out (`hold`).
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal, TypeAlias

import jsonschema  # type: ignore[import-untyped]
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tests.conformance.suite import BUILD, CannotRun, Suite, install_suite

OLDEST = "2024-11-05"
OLD_SDK = "1.5.0"
BATCHES_IN = "2025-03-26"
EXTENSION_METHODS = frozenset({"tasks/get", "tasks/update", "tasks/cancel", "notifications/tasks"})
"""Those of the extension for tasks, in revisions that do not have tasks themselves."""
HAVE_FRACTIONS = ("NumberSchema", "ElicitResult")
EXTENSION_RESULTS = frozenset({"task"})
MOST_SHOWN = 20

Receiver: TypeAlias = Literal["client", "server"]
SENDERS: Mapping[Receiver, str] = {"client": "Server", "server": "Client"}
"""The role of Colonnade towards the receiver, as the names of definitions begin."""

READ_SUITE = r"""
const fs = require("node:fs"), vm = require("node:vm");
const text = fs.readFileSync(process.argv[1], "utf8");
function literal(name) {
  const start = text.indexOf(`${name}={$schema:`) + name.length + 1;
  const token = /`(?:\\[^]|[^`\\])*`|"(?:\\.|[^"\\])*"|[{}]/g;
  token.lastIndex = start;
  for (let depth = 0, found; (found = token.exec(text)); ) {
    if (found[0] === "{") depth++;
    else if (found[0] === "}" && --depth === 0)
      return vm.runInNewContext(`(${text.slice(start, token.lastIndex)})`);
  }
}
const names = /"2025-03-26":(\w+),"2025-06-18":(\w+),"2025-11-25":(\w+),\[\w+\]:(\w+)/.exec(text).slice(1);
const revisions = ["2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
console.log(JSON.stringify(Object.fromEntries(revisions.map((each, place) => [each, literal(names[place])]))));
"""
"""Prints the schemas that stand as object literals in the suite's one file, by revision."""


@dataclass(frozen=True)
class Sent:
    """A message that Colonnade sent. `answers` is the method of the request that it answers, if it answers one."""

    where: str
    revision: str
    to: Receiver
    message: Any
    answers: str | None = None


@dataclass
class Held:
    """The outcome of holding messages against their schemas."""

    number: Counter[str] = field(default_factory=Counter)  # of messages, by revision and receiver
    violations: list[str] = field(default_factory=list)
    spoiled: int = 0
    overlooked: list[str] = field(default_factory=list)  # definitions of which a spoiled message was not found out

    @property
    def is_sound(self) -> bool:
        """Whether there was something to hold, nothing violates its schema, and whatever was spoiled was found out."""
        return bool(self.number and self.spoiled) and not self.violations and not self.overlooked

    def report(self) -> str:
        """The counts of checked messages and findings, with some of the violations; the last line sums up."""
        shown = [f"  {each} ({times} times)" for each, times in Counter(self.violations).most_common(MOST_SHOWN)]
        missed = [f"  a spoiled message was not found out: {each}" for each in self.overlooked]
        counts = [f"  {where}: {number}" for where, number in sorted(self.number.items())]
        total = (
            f"{self.number.total()} messages of Colonnade held against the schemas of their revisions:"
            f" {len(self.violations)} violations; {self.spoiled} spoiled ones: {len(self.overlooked)} overlooked"
        )
        return "\n".join([*counts, *shown, *missed, total])


class Schema:
    """The schema of one revision."""

    def __init__(self, revision: str, document: Mapping[str, Any]) -> None:
        self._revision = revision
        self._key = "$defs" if "$defs" in document else "definitions"
        self._definitions: dict[str, Any] = document[self._key]
        self._kind = jsonschema.validators.validator_for(document)
        self._validators: dict[str, Any] = {}
        self._by_method = {
            method: name
            for name, each in self._definitions.items()
            if (method := each.get("properties", {}).get("method", {}).get("const")) is not None
        }
        self._by_code = {code: name for name, each in self._definitions.items() if (code := _code(each)) is not None}

    def errors(self, sent: Sent) -> list[str]:
        """Everything in which the message is not what its revision has; nothing if all is well."""
        message = sent.message
        if isinstance(message, list):
            return self._batch_errors(sent)
        envelope = self._envelope(message)
        if envelope is None:
            return ["it is no request, notification or response"]
        found = self._errors(envelope, message)
        if "method" in message and not self._may_send(sent):
            found.append(f"{message['method']} is nothing that a {sent.to} gets in {self._revision}")
        name, place = self.definition(sent)
        if name in ("", envelope):
            return found
        return found + self._errors(name, message[place] if place else message)

    def definition(self, sent: Sent) -> tuple[str, str]:
        """The definition for what is in the envelope, and the member that it describes; empty: the whole message. No
        name where the revision has no definition."""
        message = sent.message
        if not isinstance(message, dict):
            return "", ""
        if "method" in message:
            return self._by_method.get(message["method"], ""), ""
        if "error" in message:
            return self._by_code.get(_member(message["error"], "code")) or str(self._envelope(message)), ""
        return (self._result(sent.answers, message["result"]), "result") if "result" in message else ("", "")

    def spoiled(self, sent: Sent) -> Iterator[Sent]:
        """Copies that must not satisfy the definition: without a member that it requires, or with a list inside."""
        name, place = self.definition(sent)
        if not name:
            return
        required = ["code", "message"]
        if "method" in sent.message:
            place = "params"
            required = self._resolved(self._definitions[name]["properties"].get("params", {})).get("required", [])
        elif place == "result":
            required = self._resolved(self._definitions[name]).get("required", [])
        place = place or "error"
        yield _with(sent, {**sent.message, place: []})
        for member in required:
            rest = {key: value for key, value in sent.message[place].items() if key != member}
            yield _with(sent, {**sent.message, place: rest})

    def _batch_errors(self, sent: Sent) -> list[str]:
        if self._revision != BATCHES_IN or not sent.message:
            return [f"an array in {self._revision}"]
        return [error for message in sent.message for error in self.errors(_with(sent, message))]

    def _envelope(self, message: object) -> str | None:
        if not isinstance(message, dict):
            return None
        if isinstance(message.get("method"), str):
            return "JSONRPCRequest" if "id" in message else "JSONRPCNotification"
        if "error" in message:
            return self._first("JSONRPCErrorResponse", "JSONRPCError")
        return self._first("JSONRPCResultResponse", "JSONRPCResponse") if "result" in message else None

    def _result(self, method: str | None, result: object) -> str:
        kind = _member(result, "resultType")
        if kind == "input_required" and "InputRequiredResult" in self._definitions:
            return "InputRequiredResult"
        if kind in EXTENSION_RESULTS or method is None:
            return "Result"
        if method == "tools/call" and _member(result, "task") is not None:
            return self._first("CreateTaskResult", "CallToolResult")
        return self._first(f"{self._by_method.get(method, '').removesuffix('Request')}Result", "Result")

    def _may_send(self, sent: Sent) -> bool:
        method = sent.message["method"]
        if method not in self._by_method:
            return method in EXTENSION_METHODS
        union = self._definitions.get(f"{SENDERS[sent.to]}{'Request' if 'id' in sent.message else 'Notification'}", {})
        members = [self._resolved(each) for each in union.get("anyOf", [union])]
        return any(each.get("properties", {}).get("method", {}).get("const") == method for each in members)

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema

    def _first(self, *names: str) -> str:
        return next((name for name in names if name in self._definitions), names[-1])

    def _errors(self, name: str, value: Any) -> list[str]:
        validator = self._validators.get(name)
        if validator is None:
            schema = {"$ref": f"#/{self._key}/{name}", self._key: self._definitions}
            validator = self._validators[name] = self._kind(schema, format_checker=FORMATS)
        return [f"{name}{each.json_path[1:]}: {each.message[:300]}" for each in validator.iter_errors(value)]


def _code(definition: Mapping[str, Any]) -> int | None:
    """The code of the error that this definition describes, if it describes one."""
    error = definition.get("properties", {}).get("error", {})
    codes = [each.get("properties", {}).get("code", {}).get("const") for each in error.get("allOf", [])]
    return next((code for code in codes if code is not None), None)


def _member(value: object, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _with(sent: Sent, message: Any) -> Sent:
    return replace(sent, message=message)


FORMATS = jsonschema.FormatChecker(formats=())


@FORMATS.checks("uri")  # type: ignore[untyped-decorator]
def _is_uri(value: object) -> bool:
    return not isinstance(value, str) or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s]*$", value) is not None


@FORMATS.checks("byte", raises=ValueError)  # type: ignore[untyped-decorator]
def _is_base64(value: object) -> bool:
    return not isinstance(value, str) or base64.b64decode(value, validate=True) is not None


def hold(sent: Iterable[Sent], schemas: Mapping[str, Schema]) -> Held:
    """Hold every message against the schema of its revision, and spoil the first one of each definition."""
    held = Held()
    kinds: set[tuple[str, Receiver, str]] = set()
    for each in sent:
        schema = schemas[each.revision]
        held.number[f"{each.revision} to a {each.to}"] += 1
        errors = schema.errors(each)
        held.violations += [f"{each.revision} to a {each.to}, {each.where}: {error}" for error in errors]
        kind = (each.revision, each.to, schema.definition(each)[0])
        if errors or kind in kinds:
            continue
        kinds.add(kind)
        for spoiled in schema.spoiled(each):
            held.spoiled += 1
            if not schema.errors(spoiled):
                held.overlooked.append(f"{' '.join(kind)}: {json.dumps(spoiled.message)[:300]}")
    return held


def with_fractions(document: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with `number` where forms have `integer`: it was made from TypeScript's types, which tell no integers
    apart. The suite corrects the first of these definitions before it uses it."""
    key = "$defs" if "$defs" in document else "definitions"
    corrected = {name: _numbers(document[key][name]) for name in HAVE_FRACTIONS if name in document[key]}
    return {**document, key: {**document[key], **corrected}}


def _numbers(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_numbers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _numbers(each) for name, each in schema.items()}
    if "integer" in (kinds := found.get("type", ())):
        found["type"] = [
            *(kind for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind != "integer"),
            "number",
        ]
    return found


def load() -> dict[str, Schema]:
    """The schema of each revision. Raises `CannotRun` when one cannot be had."""
    documents = {OLDEST: read_old_sdk(), **read_suite(install_suite())}
    return {revision: Schema(revision, with_fractions(document)) for revision, document in documents.items()}


def read_suite(suite: Suite) -> dict[str, Any]:
    """The schemas inside the suite, by revision."""
    command = [str(suite.node), "-e", READ_SUITE, str(suite.script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotRun(f"The suite's schemas are not where they were looked for: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_old_sdk() -> dict[str, Any]:
    """The schema of 2024-11-05, from the models of the Python SDK of its time."""
    wheel = BUILD / f"mcp-{OLD_SDK}-py3-none-any.whl"
    if not wheel.is_file():
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*command, "--dest", str(BUILD), f"mcp=={OLD_SDK}"], check=False)
        if done.returncode != 0:
            raise CannotRun(f"pip could not download mcp {OLD_SDK} (exit status {done.returncode}).")
    module = ModuleType("mcp_of_2024_11_05")
    sys.modules[module.__name__] = module  # pydantic looks up the names of annotations there
    exec(zipfile.ZipFile(wheel).read("mcp/types.py"), module.__dict__)
    if module.LATEST_PROTOCOL_VERSION != OLDEST:
        raise CannotRun(f"mcp {OLD_SDK} is of {module.LATEST_PROTOCOL_VERSION}, not of {OLDEST}.")
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (each, "validation")
        for name, each in vars(module).items()
        if isinstance(each, type) and issubclass(each, BaseModel) and each.__name__ == name and each is not BaseModel
    ]
    found: dict[str, Any] = without_null(models_json_schema(models)[1])
    return found


def without_null(schema: Any) -> Any:
    """The schema without the `null` that pydantic allows wherever a member may be absent."""
    if isinstance(schema, list):
        return [without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: without_null(each) for name, each in schema.items() if (name, each) != ("default", None)}
    if {"type": "null"} in found.get("anyOf", []):
        found["anyOf"] = [each for each in found["anyOf"] if each != {"type": "null"}]
    return found
