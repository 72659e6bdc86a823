"""Files of Codex."""

from __future__ import annotations

import pytest

from config import OAuth, Secret
from tests.config.desktop.kit import ALLOW, PROBLEM, Home, detected, state
from tests.config.kit import http, stdio

USER = "~/.codex/config.toml"
PROJECT = ".codex/config.toml"
SETTINGS = """
    model = "gpt-5.1-codex"
    approval_policy = "on-request"

    [projects."/home/kim/shop"]
    trust_level = "trusted"

    [mcp_servers.docs]
    command = "npx"
    args = ["-y", "@acme/docs-mcp", "$HOME/${X}"]
    env_vars = ["DOCS_TOKEN", { name = "HTTPS_PROXY", source = "local" }, "DOCS_REGION"]
    cwd = "/home/kim"
    startup_timeout_sec = 20
    tool_timeout_sec = 45.5
    enabled_tools = ["search", "fetch", "delete_page"]
    disabled_tools = ["delete_page"]   # applied after enabled_tools
    default_tools_approval_mode = "prompt"

    [mcp_servers.docs.env]
    DOCS_REGION = "eu"

    [mcp_servers.docs.tools.search]
    approval_mode = "approve"
    output_token_limit = 20000

    [mcp_servers.tracker]
    url = "https://tracker.example.com/mcp"
    bearer_token_env_var = "TRACKER_TOKEN"
    http_headers = { "X-Team" = "blue", "x-request-source" = "none" }
    env_http_headers = { "X-Request-Source" = "CODEX_SOURCE" }
    required = true

    [mcp_servers.old]
    command = "old-mcp"
    enabled = false
    """


def one(keys: str, before: str = "") -> str:
    return f'{before}\n[mcp_servers.docs]\ncommand = "docs-mcp"\n{keys}\n'


@pytest.mark.parametrize("where", [USER, "~/copies/codex.toml"])
def test_a_usual_file(home: Home, where: str) -> None:
    home.write(where, SETTINGS)
    made = home.read(where, {"DOCS_TOKEN": "d", "TRACKER_TOKEN": "t", "CODEX_SOURCE": "cli"})
    assert [spec.problem for spec in made.servers.values()] == ["", "", ""]
    docs, tracker = stdio(made, "docs"), http(made, "tracker")
    assert [word.reveal() for word in docs.command] == ["npx", "-y", "@acme/docs-mcp", "$HOME/${X}"]
    assert {name: value.reveal() for name, value in docs.env.items()} == {
        "DOCS_TOKEN": "d",
        "HTTPS_PROXY": "",
        "DOCS_REGION": "eu",
    }
    assert (docs.start_timeout, docs.timeout, str(docs.cwd)) == (20.0, 45.5, "/home/kim")
    assert {name: value.reveal() for name, value in tracker.headers.items()} == {
        "X-Team": "blue",
        "X-Request-Source": "cli",
        "Authorization": "Bearer t",
    }
    assert made.servers["old"].disabled
    assert made.notices == ("read as a Codex file",)
    tools = ("search", "fetch", "delete_page", "other")
    assert [state(made, "docs", tool) for tool in tools] == ["ask", "ask", "deny", "deny"]
    assert home.entries(where)["docs"].approved == ["search"]


def test_a_variable_that_is_not_set(home: Home) -> None:
    home.write(USER, SETTINGS)
    made = home.read(USER)
    assert "the environment variable TRACKER_TOKEN is not set" in made.servers["tracker"].problem
    assert not made.servers["docs"].problem


@pytest.mark.parametrize(
    "text",
    [
        one("enabled = false"),
        one("enabled_tools = []"),
        one('enabled_tools = ["write"]'),
        one('disabled_tools = ["read"]'),
        one('enabled_tools = ["read"]\ndisabled_tools = ["read"]'),
        one('omit_tools_from = ["direct", "deferred", "code_mode"]'),
    ],
)
def test_restricted_tools_cannot_be_called(home: Home, text: str) -> None:
    home.write(USER, text)
    made = home.read(USER)
    assert not made.servers["docs"].problem
    assert state(made, "docs", "read") in ("deny", "off")


@pytest.mark.parametrize(
    ("keys", "decided"),
    [
        ("", "allow"),
        ('default_tools_approval_mode = "auto"', "allow"),
        ('default_tools_approval_mode = "approve"', "allow"),
        ('default_tools_approval_mode = "prompt"', "ask"),
        ('default_tools_approval_mode = "writes"', "ask"),
        ('tools.read.approval_mode = "prompt"', "ask"),
        ('tools.write.approval_mode = "prompt"', "allow"),
        ('default_tools_approval_mode = "prompt"\ntools.read.approval_mode = "auto"', "ask"),
        ('default_tools_approval_mode = "approve"\ntools.read.approval_mode = "auto"', "ask"),
        ('default_tools_approval_mode = "auto"\nenabled_tools = ["read"]\ntools.read.approval_mode = "writes"', "ask"),
    ],
)
def test_approval_modes(home: Home, keys: str, decided: str) -> None:
    home.write(USER, one(keys))
    assert state(home.read(USER), "docs", "read") == decided


NEVER = 'approval_policy = "never"'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (one("", NEVER), "off"),
        (one('default_tools_approval_mode = "approve"', NEVER), "off"),
        (one("", f'profile = "p"\n[profiles.p]\n{NEVER}'), "off"),
        (one("", "[approval_policy.granular]\nmcp_elicitations = false"), "off"),
        (one("", f'{NEVER}\nsandbox_mode = "danger-full-access"'), ""),
    ],
)
def test_a_policy_that_refuses_what_needs_approval_is_detected(home: Home, text: str, found: str) -> None:
    home.write(USER, text)
    assert detected(home, USER, "docs") == found


@pytest.mark.parametrize("where", [USER, "/etc/codex/config.toml"])
def test_a_projects_file_completes_that_of_the_user(home: Home, where: str) -> None:
    home.write(where, one('disabled_tools = ["write"]\nenv = {A = "1", B = "2"}'))
    home.write(PROJECT, '[mcp_servers.docs]\nenabled_tools = ["read", "write"]\nenv = {B = "3"}\n')
    made = home.read(PROJECT)
    assert {name: value.reveal() for name, value in stdio(made, "docs").env.items()} == {"A": "1", "B": "3"}
    assert [state(made, "docs", tool) for tool in ("read", "write", "x")] == ["allow", "deny", "deny"]


def test_folders_above_complete_a_projects_file_up_to_that_of_the_repository(home: Home) -> None:
    file = "packages/sub/.codex/config.toml"
    home.write(
        PROJECT,
        f'[mcp_servers.docs]\ndisabled_tools = ["write"]\n[projects."{home.project}"]\ntrust_level = "trusted"\n',
    )
    home.write("packages/.codex/config.toml", "[mcp_servers.docs.tools.read]\napproval_mode = 'prompt'\n")
    home.write(file, one(""))
    assert state(home.read(file), "docs", "write") == "allow"
    (home.project / ".git").mkdir()
    assert [state(home.read(file), "docs", tool) for tool in ("write", "read", "x")] == ["deny", "ask", "allow"]
    assert home.entries(file)["docs"].needs_approval  # only the user's file says what is trusted


def test_managed_settings_replace_those_of_the_user(home: Home) -> None:
    home.write(USER, one('enabled_tools = ["read"]'))
    home.write("/etc/codex/managed_config.toml", "[mcp_servers.docs]\nenabled_tools = []\n")
    assert state(home.read(USER), "docs", "read") == "deny"


@pytest.mark.parametrize(
    ("requirements", "found"),
    [("[mcp_servers]", "off"), ('[mcp_servers.docs.identity]\ncommand = "docs-mcp"', "off"), ("[other]", "")],
)
def test_requirements_of_the_machine_are_detected(home: Home, requirements: str, found: str) -> None:
    home.write(USER, one(""))
    home.write("/etc/codex/requirements.toml", requirements)
    assert detected(home, USER, "docs") == found


def test_a_file_that_cannot_be_read_stops_all_servers(home: Home) -> None:
    home.write(USER, one(""))
    home.write("/etc/codex/requirements.toml", "[mcp_servers")
    assert "requirements.toml of its host" in home.read(USER).servers["docs"].problem


def test_a_project_file_waits_for_trust(home: Home) -> None:
    home.write(PROJECT, one('cwd = "data"'))
    assert stdio(home.read(PROJECT), "docs").cwd == home.project / "data"
    assert home.entries(PROJECT)["docs"].needs_approval
    for folder, level, waits in (
        (home.project, "trusted", False),
        (home.project, "untrusted", True),
        (home.project.parent, "trusted", False),
    ):
        home.write(USER, f'[projects."{folder}"]\ntrust_level = "{level}"\n')
        assert home.entries(PROJECT)["docs"].needs_approval is waits
    (home.project / ".git").mkdir()
    assert home.entries(PROJECT)["docs"].needs_approval
    home.write(USER, one(""))
    assert not home.entries(USER)["docs"].needs_approval


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('type = "stdio"', 'its key "type" is not known here'),
        ('bearer_token = "x"', "put the token into a variable named by bearer_token_env_var"),
        ('oauth_resource = "https://h/"', "needs OAuth"),
        ('oauth = { client = "x" }', 'its key "oauth.client" is not known here'),
        ('auth = "chatgpt"', "needs OAuth"),
        ('experimental_environment = "cloud"', "starts it on another machine"),
        ('environment_id = "cloud"', "starts it on another machine"),
        ('env_vars = [{ name = "A", source = "remote" }]', "names a variable of another machine"),
        ('env_vars = [{ name = "A", other = "x" }]', "is not a list of names of variables"),
        ('env_vars = ["A-B"]', "does not name a variable of the environment"),
        ('omit_tools_from = ["other"]', "holds a word that is not known here"),
        ('default_tools_approval_mode = "maybe"', "its mode of approval is not known here"),
        ('tools.read.mode = "x"', "holds a key that is not known here"),
        ('url = "http://h/"', "found both"),
        ('enabled_tools = "read"', "is not a list of names of tools"),
    ],
)
def test_servers_that_cannot_be_used(home: Home, keys: str, said: str) -> None:
    home.write(USER, one(keys))
    assert said in home.read(USER).servers["docs"].problem


def test_harmless_keys(home: Home) -> None:
    keys = 'environment_id = "local"\nname = "x"\nstartup_timeout_ms = 5\nsupports_parallel_tool_calls = true'
    home.write(USER, one(f'{keys}\nomit_tools_from = ["code_mode"]'))
    assert state(home.read(USER), "docs", "read") == "allow"


@pytest.mark.parametrize("hook", ["PreToolUse", "PermissionRequest"])
@pytest.mark.parametrize(
    "place", ["~/.codex/hooks.json", ".codex/hooks.json", "/etc/codex/hooks.json", "~/.codex/config.toml"]
)
def test_a_hook_that_could_deny_calls_stops_all_servers(home: Home, place: str, hook: str) -> None:
    matchers = {"Bash|apply_patch": ALLOW, "mcp__files__.*": PROBLEM}
    for matcher, expected in matchers.items():
        table = f'[[hooks.{hook}]]\nmatcher = "{matcher}"\n'
        home.write(place, table if place.endswith("toml") else {"hooks": {hook: [{"matcher": matcher, "hooks": []}]}})
        assert state(home.load(".codex/config.toml", '[mcp_servers.files]\ncommand = "x"\n'), "files") == expected


def test_the_client_of_a_login(home: Home) -> None:
    keys = 'url = "https://sso.example.com/mcp"\nscopes = ["read"]\noauth = { client_id = "x" }'
    home.write(USER, f"[mcp_servers.sso]\n{keys}\n")
    assert http(home.read(USER), "sso").oauth == OAuth(client_id=Secret("x"), scopes=("read",))


def test_a_helper_for_headers(home: Home) -> None:
    keys = 'url = "https://sso.example.com/mcp"\nauth = "oauth"\nhttp_headers_helper = "corp-token --json"'
    home.write(USER, f"[mcp_servers.sso]\n{keys}\n")
    helper = http(home.read(USER), "sso").headers_helper
    assert helper is not None
    assert [word.reveal() for word in helper] == ["/bin/sh", "-c", "corp-token --json"]
