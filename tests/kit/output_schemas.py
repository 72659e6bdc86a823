"""Generated schemas of structured content, right and wrong in every keyword, for the judges of the clients:
`jsonschema` in each run, the Ajv of the official SDKs in `make eras`."""

from __future__ import annotations

import random
from typing import Any

JUNK: list[Any] = [None, True, 0, -1, 1.5, "", "a", [], ["a", "b"], [1], {}, {"a": 1}, [{}], [True]]
DIALECTS = [
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-04/schema#",
]
NAMES = [
    *("a", "b", "a/b", "a~b", "a%b", "\u00dc", "P<I>", "$ref", "$id", "__proto__", "constructor", "items", "", "0"),
    *("a#b", "a?b", "a b"),
]
REFS = [
    *("#", "#/$defs/a", "#/$defs/b", "#/definitions/a", "#/properties/a", "#/properties/a/items", "#/anyOf/0", "#a"),
    "",
    *("#/$defs/a~1b", "#/$defs/a~0b", "#/$defs/a%25b", "#/$defs/%C3%9C", "#/$defs/P%3CI%3E", "#/$defs", "#/x", "a"),
    *("#/$defs/a%b", "#/$defs/P<I>", "#/allOf/01", "#/allOf/-1", "http://a/b", "urn:a", "##", "#/default", "#/"),
]
ATOMS = [
    *("a", "Z", "0", "-", ",", "/", " ", "\u00e9", "\U0001f600", "\n", ".", "^", "$", "|", "(", ")", "[", "]", "{"),
    "}",
    *("(?:", "(?=", "(?!", "(?<=", "(?P<a>", "(?<a>", "*", "+", "?", "{2}", "{1,2}", "{2,1}", "{2,}", "{,2}", "[^"),
    "[]",
    *("[a-c]", "[c-a]", "[^a]", "[a-", "[-a]", "[\\w-]", "[\\w-a]", "[a-\\d]", "[+--]", "[\\x41-Z]", "\\", "\\-"),
    "\\_",
    *("\\d", "\\w", "\\S", "\\b", "\\B", "\\.", "\\/", "\\}", "\\]", "\\n", "\\a", "\\Z", "\\1", "\\0", "\\x4"),
    "\\x41",
    *("\\u0041", "\\u{41}", "\\ud83d", "\\p{L}", "\\cA"),
]
ONE = ["items", "contains", "propertyNames", "contentSchema", "not", "if", "then", "else", "additionalItems"]
MAPS = ["properties", "dependentSchemas", "$defs", "definitions"]
LISTS = ["allOf", "anyOf", "oneOf", "prefixItems"]
FLAGS = ["nullable", "deprecated", "readOnly", "uniqueItems"]
NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxItems", "minContains"]
TEXTS = ["title", "description", "$comment", "contentEncoding", "contentMediaType"]
OTHERS = ["discriminator", "x", "constructor", "__proto__", "toString", "example", "$vocabulary", "formatMinimum"]
RARE = ["id", "$id", "$async", "$dynamicRef", "$dynamicAnchor", "$anchor", "$recursiveRef", "$schema"]
MORE = ["type", "enum", "const", "format", "pattern", "patternProperties", "$ref", "required", "dependentRequired"]
LAST = ["dependencies", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "default", "examples"]
KEYWORDS = [*ONE, *MAPS, *LISTS, *FLAGS, *NUMBERS, *TEXTS, *OTHERS, *RARE, *MORE, *MORE, *LAST]


class OutputSchemas:
    """The same schemas for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def root(self) -> dict[str, Any]:
        found = self._schema(3)
        found["properties"] = {self._one_of(NAMES): self._schema(2)}
        for keyword, value in (
            ("$defs", lambda: {self._one_of(NAMES): self._schema(2) for _ in range(3)}),
            ("allOf", lambda: [{"properties": {"a": {"$ref": self._one_of(REFS)}}}]),
            ("$schema", lambda: self._one_of(DIALECTS)),
        ):
            if self._random.random() < 0.2:
                found[keyword] = value()
        found.pop("$id", None)
        return found | {"type": "object"}

    def pattern(self) -> str:
        return "".join(self._one_of(ATOMS) for _ in range(self._random.randint(1, 4)))

    def _one_of(self, choices: list[Any]) -> Any:
        return self._random.choice(choices)

    def _schema(self, depth: int) -> dict[str, Any]:
        keywords = self._random.sample(KEYWORDS, self._random.randint(0, 3))
        return {keyword: self._value(keyword, depth) for keyword in keywords}

    def _inner(self, depth: int) -> Any:
        return self._schema(depth - 1) if depth and self._random.random() < 0.9 else self._random.random() < 0.5

    def _value(self, keyword: str, depth: int) -> Any:
        few = range(self._random.randint(0, 2))
        if self._random.random() < 0.05 or keyword in OTHERS:
            return self._one_of(JUNK)
        if keyword in MAPS:
            return {self._one_of(NAMES): self._inner(depth) for _ in few}
        if keyword in LISTS or (keyword == "items" and self._random.random() < 0.1):
            return [self._inner(depth) for _ in few]
        if keyword in FLAGS:
            return self._random.random() < 0.5
        if keyword in NUMBERS:
            return self._one_of([0, 1, 2.5, -1, 10**30])
        if keyword in TEXTS:
            return "x"
        match keyword:
            case "type":
                return self._one_of(["string", "array", "integer", "null", ["string", "null"], ["object"], [], "File"])
            case "enum":
                return [1, "a"][: len(few)]
            case "pattern":
                return self.pattern()
            case "patternProperties":
                return {self.pattern(): self._inner(depth) for _ in few}
            case "$ref":
                return self._one_of(REFS)
            case "format":
                return self._one_of(["date", "uuid", "x", "constructor"])
            case "required" | "examples":
                return ["a", "b"][: len(few)]
            case "dependentRequired":
                return {"a": ["b"]}
            case "dependencies":
                return {self._one_of(NAMES): self._one_of([["a"], self._inner(depth)])}
            case "$schema":
                return self._one_of(DIALECTS)
            case "id" | "$id" | "$anchor" | "$dynamicAnchor":
                return self._one_of(["a", "b", "#a", "http://a/b"])
            case "$dynamicRef" | "$recursiveRef":
                return self._one_of(["#", "#a"])
        return self._inner(depth)
