"""Which texts of a server are secrets, and what is left of the text around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.desktop.entry import escape
from config.literal_secrets import is_secret_name, secrets_in_argument, without_secrets
from tests.kit.cost import assert_costs_less


def named(ours: dict[str, object]) -> dict[str, object]:
    """The keys with `<NAME=SECRET>` in the place of each secret."""
    return without_secrets(ours, "s", lambda name, secret: f"<{name}={secret}>", {"SET_TOKEN": "x", "EMPTY_KEY": ""})


@pytest.mark.parametrize(
    "name",
    [
        *("TOKEN", "GITHUB_TOKEN", "githubToken", "API_KEY", "apikey", "OPENAI_APIKEY", "X-Api-Key", "Authorization"),
        *("DB_PASSWORD", "dbPass", "PGPASSWORD", "CLIENT_SECRET", "Cookie", "AWS_SECRET_ACCESS_KEY", "private-key"),
        *("CONNECTION_STRING", "GITHUB_PAT", "SENTRY_DSN", "MYSQL_PW", "PGPASS"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PATH",
            "HOME",
            "AUTHOR",
            "KEYBOARD",
            "MONKEY",
            "AWS_ACCESS_KEY_ID",
            "TOKEN_LIMIT",
            "SECRET_NAME",
            "PATTERN",
            "BYPASS",
            "COMPASS",
        ),
        *("GOOGLE_CREDENTIALS_FILE", "AUTH_URL", "AUTH_TYPE", "USER", "", "1", "BYPASS", "COMPASS"),
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("key", "value", "left"),
    [
        ("env", {"TOKEN": "abc", "DEBUG": "1"}, {"TOKEN": "<s.TOKEN=abc>", "DEBUG": "<s.DEBUG=1>"}),
        ("env", {"A": '{"b": "c"}', "B": "a b\nc"}, {"A": '<s.A={"b": "c"}>', "B": "<s.B=a b\nc>"}),
        (
            "env",
            {"DB_HOST": "kim:pw@db:5432", "M_USER": "k@m"},
            {"DB_HOST": "<s.DB_HOST=kim:pw@db:5432>", "M_USER": "k@m"},
        ),
        ("env", {"A": "Bearer abc"}, {"A": "Bearer <s.A=abc>"}),
        ("env", {"DB_URL": "db://me:pw@h/db"}, {"DB_URL": "<s.DB_URL=db://me:pw@h/db>"}),
        ("env", {"WEB": "https://h.example/hook/abc?d"}, {"WEB": "https://h.example<s.WEB=/hook/abc?d>"}),
        ("headers", {"Authorization": "bearer abc"}, {"Authorization": "bearer <s.Authorization=abc>"}),
        ("headers", {"Accept-Language": "en"}, {"Accept-Language": "<s.Accept-Language=en>"}),
        ("url", "https://h/mcp?api_key=abcd&v=2", "https://h/mcp?api_key=<s.api_key=abcd>&v=2"),
        ("url", "https://me:p@ss@h/mcp", "https://me:<s.password=p@ss>@h/mcp"),
        ("command", ["x", "--token", "abc"], ["x", "--token", "<s.token=abc>"]),
        ("command", ["x", "--api-key=abc"], ["x", "--api-key=<s.api-key=abc>"]),
        ("command", ["x", "db://me:pw@h/db"], ["x", "db://me:<s.password=pw>@h/db"]),
        ("command", ["x", "-H", "X-Api-Key: abc"], ["x", "-H", "X-Api-Key: <s.X-Api-Key=abc>"]),
        ("command", ["x", "--header=A: Basic abc"], ["x", "--header=A: Basic <s.A=abc>"]),
        ("command", ["x", "--headers", '{"a": "b"}'], ["x", "--headers", '<s.headers={"a": "b"}>']),
        ("args", ["-e", "TOKEN=abc"], ["-e", "TOKEN=<s.TOKEN=abc>"]),
        ("args", ["--env=TOKEN=abc", "--env=A=b"], ["--env=TOKEN=<s.TOKEN=abc>", "--env=A=b"]),
        ("headers_helper", ["x", "--key", "abc"], ["x", "--key", "<s.key=abc>"]),
        ("oauth", {"client_id": "a", "client_secret": "b"}, {"client_id": "a", "client_secret": "<s.client_secret=b>"}),
        ("oauth", {"private_key": "a"}, {"private_key": "<s.private_key=a>"}),
    ],
)
def test_a_secret_is_kept_and_the_rest_stays(key: str, value: object, left: object) -> None:
    assert named({key: value}) == {key: left}


@pytest.mark.parametrize(
    "ours",
    [
        {"env": {"TOKEN": "${env:T}", "KEY": "Bearer ${file:x}", "AUTH": "${env:USER}:${env:PW}", "SECRET": ""}},
        {"env": {"API_URL": "https://h.example/", "HOST": "h.example", "EMAIL": "me@h.example", "DATA_DIR": "/none"}},
        {"env": {"VAULT": str(Path(__file__).parent)}},
        {"command": ["npx", "-y", "@scope/name@2024.11.5", "--token-file", "/run/t", "--key", "--next", "ghp_abcd"]},
        {"url": "https://example.com/mcp?version=2", "cwd": "/x", "title": "x"},
        {"command": "npx", "args": "TOKEN=x", "env": "TOKEN", "headers": ["x"], "oauth": "x", "url": 7},
        {"command": ["x", "--token", 7], "env": {"A": 7}},
    ],
)
def test_what_is_no_secret_stays(ours: dict[str, object]) -> None:
    assert named(ours) == ours


@pytest.mark.parametrize(
    ("ours", "left"),
    [
        ({"env": {"DB": "db://u:pw@${env:H}/x"}}, {"env": {"DB": "<s.DB=db://u:pw@>${env:H}<s.DB=/x>"}}),
        ({"env": {"A": "http://${env:H}:1/x"}}, {"env": {"A": "http://${env:H}:1<s.A=/x>"}}),
        ({"headers": {"A": "Bearer ${env:H}-x"}}, {"headers": {"A": "Bearer ${env:H}<s.A=-x>"}}),
        ({"url": "https://h/?key=abc${env:K}&b=$${"}, {"url": "https://h/?key=<s.key=abc>${env:K}&b=$${"}),
        ({"args": ["https://u:pw@${env:H}/x"]}, {"args": ["https://u:<s.password=pw>@${env:H}/x"]}),
        ({"args": ["--token=${env:A}behind"]}, {"args": ["--token=${env:A}<s.token=behind>"]}),
        # A default
        ({"env": {"TOKEN": "${env:X:-abc}"}}, {"env": {"TOKEN": "<s.X=abc>"}}),
        ({"env": {"A": "${env:EMPTY_KEY:-abc}"}}, {"env": {"A": "<s.EMPTY_KEY=abc>"}}),
        ({"cwd": "${env:A_KEY:-b}", "url": "${env:A_KEY:-b}"}, {"cwd": "${env:A_KEY:-b}", "url": "<s.A_KEY=b>"}),
        ({"env": {"A": "${env:SET_TOKEN:-abc}"}}, {"env": {"A": "${env:SET_TOKEN}"}}),
        ({"url": "https://h?key=${env:X:-abc}"}, {"url": "https://h?key=<s.X=abc>"}),
        ({"url": "https://${env:H:-h.example}/x"}, {"url": "https://${env:H:-h.example}/x"}),
        ({"env": {"LEVEL": "${env:LEVEL:-info}"}}, {"env": {"LEVEL": "${env:LEVEL:-info}"}}),
        ({"args": ["--key", "${env:X:-}"]}, {"args": ["--key", "${env:X:-}"]}),
        # Signs of our form
        ({"args": ["--token", "$${b", "TOKEN$=a"]}, {"args": ["--token", "<s.token=${b>", "TOKEN$=a"]}),
        ({"env": {"A": "u://h$/x", "B": "u://h$$/${env:X}"}}, None),
    ],
)
def test_secrets_beside_references_and_in_them(ours: dict[str, object], left: dict[str, object] | None) -> None:
    made = named(ours)
    assert left is None or made == left
    assert "$<" not in str(made), "with a reference behind it, $ would be an escape"


def test_the_secrets_in_an_argument() -> None:
    assert secrets_in_argument("--token", "a ${x} b") == ["a ", " b"]
    assert secrets_in_argument("", "https://u:pw@h/?key=abc&${d") == ["pw", "abc"]
    assert not secrets_in_argument("--verbose", "abc")


@pytest.mark.parametrize("piece", ["a", "a-", "aB1-", "?", "://", "://a:", ",key=", "key ", "a:b@", "&pw=", "$", "{"])
def test_a_long_text_costs_little(piece: str) -> None:
    rest = piece * (40_000 // len(piece))
    text = f"x://{rest}"
    ours: dict[str, object] = {"env": {"A": text}, "command": [text, f"a={text}", rest], "url": text}
    assert_costs_less(lambda: without_secrets(ours, "s", lambda name, secret: ""), 1)


@given(st.text(st.sampled_from("aB1$:/@?&=-{} ")), st.sampled_from(["TOKEN", "X", "URL"]))
def test_the_references_give_the_text_that_was_there(text: str, name: str) -> None:
    kept: dict[str, str] = {}

    def keep(name: str, secret: str) -> str:
        reference = f"${{keyring:{len(kept)}}}"
        kept[reference] = secret
        return reference

    value = "${env:X}".join(map(escape, text.split("B")))
    if "$${env" in value:  # a literal $ before a reference, which nobody can write
        return
    made = without_secrets({"env": {name: value}}, "s", keep)["env"]
    assert isinstance(made, dict)
    written = made[name]
    for reference, secret in kept.items():
        assert f"${reference}" not in written  # it would be an escape
        written = written.replace(reference, escape(secret))
    assert written.replace("$${", "${") == value.replace("$${", "${")
