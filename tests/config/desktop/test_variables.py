"""References of editors."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop.desktop_host import FileContext, Translator
from config.desktop.entry import CannotUse
from config.desktop.variables import dollar_variables, editor_variables, only_environment
from config.document import Document

EDITOR = editor_variables(unset=":-", more={"input": lambda id, context: f"${{input:{id}}}"})


def translate(translator: Translator, text: str, project: Path | None = Path("/srv/sh${op")) -> str:
    context = FileContext(Path("/srv/mcp.json"), Document("mcp.json"), Path("/home/kim"), {}, project)
    return translator(text, context)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("${env:A_1}", "${env:A_1:-}"),
        ("${userHome}/x", "/home/kim/x"),
        ("${workspaceFolder}/${workspaceFolderBasename}", "/srv/sh$${op/sh$${op"),
        ("a${/}b${pathSeparator}", "a/b/"),
        ("${input:id}", "${input:id}"),
        ("${A} $A ${A:-b} ${", "$${A} $A $${A:-b} $${"),
    ],
)
def test_references_of_an_editor(text: str, ours: str) -> None:
    assert translate(EDITOR, text) == ours


@pytest.mark.parametrize(
    "text",
    ["${env:api-key}", "${env:}", "${config:a.b}", "${command:x}", "${file}", "${workspaceFolder:other}", "$${env:A}"],
)
def test_references_without_an_equivalent(text: str) -> None:
    with pytest.raises(CannotUse):
        translate(EDITOR, text)


def test_a_users_file_has_no_project() -> None:
    with pytest.raises(CannotUse, match="the folder of a project"):
        translate(EDITOR, "${workspaceFolder}", None)


def test_the_environment_alone() -> None:
    assert translate(only_environment, "${env:A} ${userHome} ${config:a}") == "${env:A} $${userHome} $${config:a}"


@pytest.mark.parametrize(
    ("text", "with_defaults", "without"),
    [
        ("$A ${A}x", "${env:A} ${env:A}x", "${env:A} ${env:A}x"),
        ("${A:-b}", "${env:A:-b}", "$${A:-b}"),
        ("${a b} ${env:A} %A%", "$${a b} $${env:A} %A%", "$${a b} $${env:A} %A%"),
    ],
)
def test_variables_after_a_dollar(text: str, with_defaults: str, without: str) -> None:
    assert translate(dollar_variables(), text) == with_defaults
    assert translate(dollar_variables(has_defaults=False), text) == without
