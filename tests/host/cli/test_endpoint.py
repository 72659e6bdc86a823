"""The commands `list`, `call`, `read` and `prompt`: their arguments. tests/real/test_cli.py has what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import FAILED, UNREACHED, WRONG

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
        (["read", "--url", URL], "URI"),
        (["prompt", "--url", URL], "NAME"),
        (["prompt", "a__b", "[]", "--url", URL], "colonnade: the arguments "),
        (["read", "a+x:y", "--config", "a.yaml", "--url", URL], "--config and --url do not go together"),
        *(([command, "a", "-o", "/nowhere", "--url", URL], "does not exist") for command in ("call", "read", "prompt")),
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


class FoundHost:
    problem = None
    config = "/home/me/colonnade.yaml"

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint


@pytest.mark.parametrize(
    ("endpoints", "code", "why"),
    [
        ([], UNREACHED, "no host of yours runs (colonnade serve); --config FILE starts one"),
        ([""], UNREACHED, "the running host of /home/me/colonnade.yaml serves its one client only (serve --stdio)"),
        (
            [URL, "", URL.replace("9", "8")],
            FAILED,
            "several hosts run; say which one with --url: http://127.0.0.1:9/mcp",
        ),
        (["", URL], UNREACHED, f"{URL}: "),
    ],
)
def test_the_running_host_is_found(
    endpoints: list[str],
    code: int,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("host.cli.admin_client.find_hosts", lambda state: [FoundHost(each) for each in endpoints])
    (tmp_path / "state").mkdir(0o700)
    assert run(["read", "a+x:y", "--state", str(tmp_path / "state")]) == code
    assert f"colonnade: {why}" in capsys.readouterr().err
