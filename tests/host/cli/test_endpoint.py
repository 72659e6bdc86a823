"""The commands `list`, `call`, `read` and `prompt`: their arguments. tests/real/test_cli.py has what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import FAILED, UNREACHED, WRONG

URL = "http://127.0.0.1:9/mcp"
OWN = "its one client"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["list", "--config", "a.yaml", "--url", URL], "--config and --url do not go together"),
        (["list", "--running", "a.yaml", "--url", URL], "--running and --url do not go together"),
        (["list", "--config", "a.yaml", "--header", "A: sesame"], "--header does not go with --config"),
        (["list", "--own", "--url", URL], "--own and --url do not go together"),
        (["list", "--own", "--header", "A: sesame"], "--header does not go with --own"),
        (["list", "--url", URL, "--header", "sesame"], "expected NAME: VALUE"),
        (["list", "--url", URL, "--header", "Authorization:", "Bearer", "sesame"], "expected NAME: VALUE"),
        (["list", "--url", "127.0.0.1"], "expected a URL"),
        (["call", "--url", URL], "NAME"),
        (["read", "--url", URL], "URI"),
        (["prompt", "--url", URL], "NAME"),
        (["prompt", "a__b", "[]", "--url", URL], "colonnade: the arguments "),
        (["read", "a+x:y", "--config", "a.yaml", "--url", URL], "--config and --url do not go together"),
        *(
            ([command, "a", "-o", "/no/such/folder", "--url", URL], "does not exist")
            for command in ("call", "read", "prompt")
        ),
        *(
            (["call", "a__b", text, "--url", URL], "colonnade: the arguments ")
            for text in ('{"a":', "[]", "x", '{"a": 1')
        ),
        (["list", "--config", "/nowhere/a.yaml"], "/nowhere/a.yaml"),
        (["call", "git", "git_commit", "{}"], "did you mean git__git_commit?"),
        (["prompt", "git", "review"], "did you mean git__review?"),
        (["call", "a__b", "x=1", "y=z"], """one JSON object: colonnade call a__b '{"x": 1, "y": "z"}'"""),
        *(
            (["list", "--clients", *more], "only --json and --state go with it")
            for more in (
                ["git"],
                ["--url", URL],
                ["--config", "a.yaml"],
                ["--running", "a.yaml"],
                ["--own"],
                ["--view", "v"],
            )
        ),
    ],
)
def test_wrong_arguments(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the reason, and no value of a header."""
    assert run(arguments) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert "sesame" not in err


def test_a_view_is_named_in_the_url_or_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (URL, f"{URL}/"):
        assert run(["list", "--url", url, "--view", "coding"]) == UNREACHED
        assert capsys.readouterr().err.startswith(f"colonnade: {URL}/@coding: ")
    file, state = tmp_path / "colonnade.yaml", tmp_path / "state"
    file.write_text("servers: {a: {command: /bin/true}}\nviews: {coding: {}}\n")
    assert run(["list", "--config", str(file), "--own", "--view", "codin", "--state", str(state)]) == WRONG
    assert "has no view codin; did you mean coding?" in capsys.readouterr().err
    assert [each for each in state.rglob("*") if each.is_file()] == []  # no host is started for it


@pytest.mark.parametrize("command", [["list"], ["call", "a__echo"]])
def test_an_endpoint_that_is_not_there(
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """No state directory is made: the endpoint may be another user's."""
    state = tmp_path_factory.mktemp("home") / "state"
    monkeypatch.setenv("COLONNADE_STATE", str(state))
    assert run([*command, "--url", URL, "--header", "Authorization: Bearer sesame"]) == UNREACHED
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(f"colonnade: {URL}: ")
    assert "connection refused" in said
    assert "sesame" not in said
    assert not state.exists()


class FoundHost:
    problem = None
    pid = 4711

    def __init__(self, endpoint: str, config: str = "/home/me/colonnade.yaml") -> None:
        self.config = config
        self.stdio = endpoint == OWN
        self.endpoint = "" if self.stdio else endpoint


OTHER = FoundHost("", "/home/me/other.yaml")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """`colonnade read` beside these running hosts, none of which can be reached."""
    (tmp_path / "state").mkdir(0o700)
    monkeypatch.setattr("host.mcp_client.SOCKET_TIMEOUT", 0.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))

    def read(hosts: list[FoundHost], *options: str) -> int:
        monkeypatch.setattr("host.cli.admin_client.find_hosts", lambda state: hosts)
        return run(["read", "a+x:y", "--state", str(tmp_path / "state"), *options])

    return read


@pytest.mark.parametrize(
    ("hosts", "code", "why"),
    [
        ([], UNREACHED, "no host of yours runs (colonnade serve); --config FILE starts one"),
        (
            [FoundHost(OWN)],
            UNREACHED,
            "the running host of /home/me/colonnade.yaml serves its one client only (serve --stdio --own)",
        ),
        (
            [FoundHost(URL), FoundHost(OWN), FoundHost(""), OTHER],
            FAILED,
            "several hosts run; say which one with --config FILE or --url URL: /home/me/colonnade.yaml; "
            "/home/me/other.yaml",
        ),
        ([FoundHost(OWN), FoundHost(URL)], UNREACHED, "the host of /home/me/colonnade.yaml: it has ended"),
        ([FoundHost(URL), FoundHost("")], UNREACHED, "the host of /home/me/colonnade.yaml: it has ended"),
    ],
)
def test_the_running_host_is_found(
    hosts: list[FoundHost], code: int, why: str, reads: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """By its socket, also if it has a URL: the command needs no token, and knows no certificate."""
    assert reads(hosts) == code
    assert f"colonnade: {why}" in capsys.readouterr().err


def test_the_configuration_says_which_host_is_meant(
    reads: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If none of it runs, one is started, and so is one with --own. What --config did before is named on a terminal."""
    hosts = [FoundHost(""), FoundHost(OWN), OTHER]
    notice = f"{OTHER.config} is served by process 4711, which is used; --own starts another one, as --config did"
    for on_terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda shown=on_terminal: shown)
        assert reads(hosts, "--config", OTHER.config) == UNREACHED
        said = capsys.readouterr().err
        assert f"the host of {OTHER.config}: it has ended" in said
        assert (notice in said) is on_terminal
    for options in (["--config", "/c/b.yaml"], ["--config", OTHER.config, "--own"]):
        assert reads(hosts, *options) == WRONG
        assert f"{options[1]}:1:1: " in capsys.readouterr().err, "it is read, to start a host"


def test_the_default_file_says_which_host_is_meant(
    reads: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where none of it runs, the only other one is used, which is said; if none runs at all, one is started."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "colonnade.yaml"
    file.write_text("servers: 1\n")
    third = FoundHost("", "/home/me/third.yaml")
    assert reads([OTHER, FoundHost(URL, str(file)), third]) == UNREACHED
    said = capsys.readouterr().err
    assert f"the host of {file}: it has ended" in said
    assert "which runs" not in said
    assert reads([OTHER]) == UNREACHED
    said = capsys.readouterr().err
    assert f"this is {OTHER.config}, which runs; colonnade.yaml does not (--config)" in said
    assert f"the host of {OTHER.config}: it has ended" in said
    assert reads([OTHER, third]) == FAILED
    assert "several hosts run" in capsys.readouterr().err
    for hosts in ([], [FoundHost(OWN)]):
        assert reads(hosts) == UNREACHED  # it may be of a repository that was cloned
        assert "--config colonnade.yaml starts its servers for this command" in capsys.readouterr().err
        with monkeypatch.context() as patched:
            patched.setattr("host.cli.endpoint.users_config", lambda: file)
            assert reads(hosts) == WRONG
        said = capsys.readouterr().err
        assert "no host of colonnade.yaml runs, so one is started for this command" in said
        assert "colonnade.yaml:1:10: " in said
    assert reads([], "--header", "A: b") == UNREACHED
    assert "no host of yours runs" in capsys.readouterr().err


def test_the_former_word_for_the_running_host_goes_on_with_a_notice(
    reads: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [FoundHost(""), OTHER]
    assert reads(hosts, "--running", OTHER.config) == UNREACHED
    said = capsys.readouterr().err
    assert "--running FILE is --config FILE by now" in said
    assert f"the host of {OTHER.config}: it has ended" in said
    assert reads(hosts, "--running", "/c/b.yaml") == UNREACHED
    assert "no host of /c/b.yaml runs; --config FILE starts one" in capsys.readouterr().err
    assert reads(hosts, "--running", OTHER.config, "--header", "A: b") == WRONG
    assert "--header is for a URL" in capsys.readouterr().err


def test_with_a_header_the_host_is_reached_as_the_client_that_has_it(
    reads: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reads([FoundHost(URL)], "--header", "Authorization: Bearer sesame") == UNREACHED
    assert f"colonnade: {URL}: " in capsys.readouterr().err
