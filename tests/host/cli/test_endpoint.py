"""The commands `list` and `call`: their arguments. tests/real/test_cli.py has what they do."""

from __future__ import annotations

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import UNREACHED, WRONG

URL = "http://127.0.0.1:9/mcp"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["list", "--config", "a.yaml", "--url", URL], "--config and --url do not go together"),
        (["list", "--config", "a.yaml", "--header", "A: sesame"], "--header does not go with --config"),
        (["list", "--url", URL, "--header", "sesame"], "expected NAME: VALUE"),
        (["list", "--url", URL, "--header", "Authorization:", "Bearer", "sesame"], "expected NAME: VALUE"),
        (["list", "--url", "127.0.0.1"], "expected a URL"),
        (["call", "--url", URL], "NAME"),
        *(
            (["call", "a__b", text, "--url", URL], "colonnade: the arguments ")
            for text in ('{"a":', "[]", "x", '{"a": 1')
        ),
        (["list", "--config", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
    ],
)
def test_wrong_arguments(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the reason, and no value of a header."""
    assert run(arguments) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert "sesame" not in err


def test_an_endpoint_that_is_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No state directory is made: the endpoint may be another user's."""
    state = tmp_path_factory.mktemp("home") / "state"
    monkeypatch.setenv("COLONNADE_STATE", str(state))
    assert run(["list", "--url", URL, "--header", "Authorization: Bearer sesame"]) == UNREACHED
    said = capsys.readouterr().err
    assert said.startswith(f"colonnade: {URL}: ")
    assert "sesame" not in said
    assert not state.exists()
