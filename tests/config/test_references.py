"""References, and the wrapper that keeps what they give from sight."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from config.references import (
    CannotExpandError,
    Expander,
    Secret,
    inputs_of,
    kept_secrets_of,
    rebase,
    variables_in,
    variables_of,
    with_inputs,
    with_references,
    without_references,
)

ENVIRON = {"A": "alpha", "EMPTY": "", "NESTED": "${env:A}", "NUL": "a\0b", "LINES": "a\nb"}


def expander(folder: Path = Path("/")) -> Expander:
    return Expander(ENVIRON, folder)


def test_a_variable_that_may_be_unset_stays_as_it_is_written() -> None:
    """Until it is set; a default does not wait."""
    lenient = Expander({"A": "a"}, Path("/"), may_be_unset=frozenset({"A", "NONE"}))
    made = lenient.expand("<${env:A} ${env:NONE}>")
    assert (made.text, made.shown, made.is_complete) == ("<a ${env:NONE}>", "<*** ***>", False)
    made = lenient.expand("${env:A}${env:NONE:-n}")
    assert (made.text, made.is_complete) == ("an", True)
    with pytest.raises(CannotExpandError, match="OTHER is not set"):
        lenient.expand("${env:NONE}${env:OTHER}")


def test_variables_of_values() -> None:
    values = {"a": ["${env:A} $${env:B}", "${env:C:-c}"], "b": {"${env:D}": "${env:E}"}, "c": 1}
    assert variables_in(values) == {"A", "E"}
    assert variables_in(values, with_default=True) == {"A", "C", "E"}


@pytest.mark.parametrize(
    ("raw", "text", "shown"),
    [
        ("plain $A $(x) {y}", "plain $A $(x) {y}", "plain $A $(x) {y}"),
        ("<${env:A}>", "<alpha>", "<***>"),
        ("${env:A}${env:A}", "alphaalpha", "******"),
        ("${env:NONE:-other}", "other", "***"),
        ("${env:NONE:-}", "", "***"),
        ("${env:EMPTY:-other}", "other", "***"),
        ("${env:EMPTY}", "", "***"),
        ("${env:NESTED}", "${env:A}", "***"),
        ("$${env:A}", "${env:A}", "${env:A}"),
        ("$$${env:A}", "$${env:A}", "$${env:A}"),
        ("${env:LINES}", "a\nb", "***"),
        ("${env:NONE:-a:b/c}", "a:b/c", "***"),
    ],
)
def test_references(raw: str, text: str, shown: str) -> None:
    """Each is filled in once; what it gave is not looked at again."""
    made = expander().expand(raw)
    assert (made.text, made.shown, made.literal) == (text, shown, "***" not in shown)
    assert "alpha" not in repr(made)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("${env:NONE}", "the environment variable NONE is not set"),
        ("${A}", "${A} is not a known form; write ${env:A}"),
        ("${A:-x}", "${A} is not a known form; write ${env:A}"),
        ("${input:key}", "${input:...} is not a known form"),
        ("${env:}", "this ${...} is not a known form"),
        ("${env:1A}", "this ${...} is not a known form"),
        ("${sk-12345}", "this ${...} is not a known form"),
        ("${", "a ${ is never closed"),
        ("${env:A", "a ${ is never closed"),
        ("${env:NUL}", "the value holds a NUL"),
        ("a\0", "the value holds a NUL"),
        ("${file:}", "names no file"),
        ("${file:a\0b}", "NUL"),
    ],
)
def test_what_cannot_be_filled_in(raw: str, said: str) -> None:
    """The message names the variable or the form, and no value."""
    with pytest.raises(CannotExpandError) as caught:
        expander().expand(raw)
    assert said in str(caught.value)
    assert "12345" not in str(caught.value)


def test_all_that_failed_is_named() -> None:
    """Two missing variables in one value are two names in one message."""
    with pytest.raises(CannotExpandError, match=r"X1 is not set.*X2 is not set"):
        expander().expand("${env:X1}${env:A}${env:X2}")


def test_secret_files(tmp_path: Path) -> None:
    """Paths start from the folder of the file; one line break at the end goes."""
    (tmp_path / "key").write_text("k1\n\n")
    (tmp_path / "dos").write_bytes(b"k2\r\n")
    assert expander(tmp_path).expand("${file:key}").text == "k1\n"
    assert expander(tmp_path).expand("${file:./dos}").text == "k2"
    assert expander().expand(f"${{file:{tmp_path}/key}}").text == "k1\n"


def test_files_that_are_no_secret_files(tmp_path: Path) -> None:
    """Missing, too large, not text, a folder, a pipe: each refused at once, without waiting for a writer."""
    (tmp_path / "large").write_bytes(b"x" * 65537)
    (tmp_path / "full").write_bytes(b"x" * 65536)
    (tmp_path / "bytes").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    made = expander(tmp_path)
    assert len(made.expand("${file:full}").text) == 65536
    for name, said in {
        "none": "cannot be read: No such file",
        "large": "larger than 64 KiB",
        "bytes": "is not UTF-8",
        ".": "is not a regular file",
        "pipe": "is not a regular file",
    }.items():
        with pytest.raises(CannotExpandError, match=said):
            made.expand(f"${{file:{name}}}")


@given(st.text())
def test_text_without_references_is_itself(raw: str) -> None:
    """Only `${` and NUL mean anything."""
    if "${" not in raw and "\0" not in raw:
        assert expander().expand(raw).text == raw


@given(st.text(alphabet="a${}:-ENVenv1"))
def test_any_text_expands_or_says_why(raw: str) -> None:
    """No other exception leaves, however braces and dollars stand."""
    with contextlib.suppress(CannotExpandError):
        assert expander().expand(raw).literal == ("${" not in raw.replace("$${", ""))


def test_what_references_gave_is_kept_to_be_redacted() -> None:
    found = Expander({"USER": "me", "KEY": "sk-1"}, Path("/")).expand("${env:USER}:${env:KEY}@x $${y")
    assert (found.text, found.filled) == ("me:sk-1@x ${y", ("me", "sk-1"))


def test_a_secret_shows_itself_to_nobody() -> None:
    """Text, repr, formats, containers, pydantic and JSON give stars; reveal() the text."""
    secret = Secret("sk-1")

    class Model(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        key: Secret

    seen = [
        str(secret),
        repr(secret),
        f"{secret}",
        f"{secret:>8}",
        f"{secret!r}",
        repr([secret]),
        repr({"a": secret}),
        repr(Model(key=secret)),
        Model(key=secret).model_dump_json(),
        repr(Model(key=secret).model_dump()),
        repr(TypeAdapter(dict[str, Secret]).dump_python({"a": secret}, mode="json")),
    ]
    assert all("***" in text and "sk-1" not in text for text in seen)
    assert secret.reveal() == "sk-1"
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


def test_secrets_compare_by_text() -> None:
    """A reload can tell whether a value changed; text itself is never equal to a secret."""
    assert Secret("a") == Secret("a", shown="b")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1


def test_the_variables_that_a_value_needs() -> None:
    assert variables_of("${env:A}/${env:B:-x} $${env:C} ${file:D} ${keyring:E}") == ["A"]


def test_relative_files_of_secrets_start_from_a_folder() -> None:
    raw = "${file:a/b} $${file:c} ${file:/d} ${env:E} ${file:../f}"
    assert rebase(raw, Path("/x")) == "${file:/x/a/b} $${file:c} ${file:/d} ${env:E} ${file:/x/../f}"


def test_inputs_are_found_and_replaced() -> None:
    raw = "${input:a} $${input:b} ${env:C} ${input:d}"
    assert inputs_of(raw) == ["a", "d"]
    assert with_inputs(raw, {"a": "${env:A}"}) == "${env:A} $${input:b} ${env:C} ${input:d}"


def test_references_to_secrets_that_are_kept() -> None:
    assert kept_secrets_of("${keyring:a} ${file:b} $${file:c} ${env:D}") == ["${keyring:a}", "${file:b}"]


def test_the_literal_text_and_the_references_of_a_value() -> None:
    text, references = without_references("a$${x}${env:B}c${d")
    assert (text, references) == ("a${x}\0000\0c\0001\0", ["${env:B}", "${d"])
    assert with_references(text, ["1", "2"]) == "a$${x}1c2"
    assert without_references("a\0007\0") == ("a\N{REPLACEMENT CHARACTER}7\N{REPLACEMENT CHARACTER}", [])
