"""Which texts of a server are secrets, and what is left of the text around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.hosts.entry import escape
from config.literal_secrets import is_secret_name, without_secrets
from tests.kit.cost import assert_costs_less

GITHUB = "ghp_" + "a1B2" * 9
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


def moved(**ours: object) -> tuple[dict[str, object], dict[str, str]]:
    """The keys without secrets, and what was kept."""
    kept: dict[str, str] = {}

    def keep(name: str, secret: str) -> str:
        kept[name] = secret
        return f"<{name}>"

    return without_secrets(ours, "s", keep), kept


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
    ("ours", "left", "kept"),
    [
        ({"env": {"TOKEN": "abc", "DEBUG": "1"}}, {"env": {"TOKEN": "<s.TOKEN>", "DEBUG": "1"}}, {"s.TOKEN": "abc"}),
        ({"env": {"X": GITHUB}}, {"env": {"X": "<s.X>"}}, {"s.X": GITHUB}),
        ({"env": {"X": f"v1:{JWT}"}}, {"env": {"X": "<s.X>"}}, {"s.X": f"v1:{JWT}"}),
        (
            {"env": {"DB": "postgres://me:hunter2@h/db"}},
            {"env": {"DB": "postgres://me:<s.DB>@h/db"}},
            {"s.DB": "hunter2"},
        ),
        ({"env": {"K": "-----BEGIN RSA PRIVATE KEY-----\nx"}}, {"env": {"K": "<s.K>"}}, None),
        (
            {"headers": {"Authorization": f"Bearer {JWT}"}},
            {"headers": {"Authorization": "Bearer <s.Authorization>"}},
            {"s.Authorization": JWT},
        ),
        ({"headers": {"Authorization": "Bearer x"}}, {"headers": {"Authorization": "<s.Authorization>"}}, None),
        ({"headers": {"Accept-Language": "en"}}, {"headers": {"Accept-Language": "en"}}, {}),
        (
            {"url": "https://h/mcp?api_key=abcd&v=2"},
            {"url": "https://h/mcp?api_key=<s.api_key>&v=2"},
            {"s.api_key": "abcd"},
        ),
        ({"url": f"https://h/s/{'a1' * 12}/mcp"}, {"url": "https://h/s/<s.url>/mcp"}, {"s.url": "a1" * 12}),
        ({"command": ["x", "--token", "abc"]}, {"command": ["x", "--token", "<s.token>"]}, {"s.token": "abc"}),
        ({"command": ["x", "--api-key=abc"]}, {"command": ["x", "--api-key=<s.api-key>"]}, {"s.api-key": "abc"}),
        ({"args": ["-e", "TOKEN=abc"]}, {"args": ["-e", "TOKEN=<s.TOKEN>"]}, {"s.TOKEN": "abc"}),
        (
            {"command": ["x", "--header", "X-Api-Key: abc"]},
            {"command": ["x", "--header", "X-Api-Key: <s.X-Api-Key>"]},
            {"s.X-Api-Key": "abc"},
        ),
        ({"command": ["x", GITHUB]}, {"command": ["x", "<s.argument-1>"]}, {"s.argument-1": GITHUB}),
        (
            {"oauth": {"client_id": "abc", "client_secret": "abc"}},
            {"oauth": {"client_id": "abc", "client_secret": "<s.client_secret>"}},
            {"s.client_secret": "abc"},
        ),
        (
            {"headers_helper": ["sh", "-c", f"say {GITHUB}"]},
            {"headers_helper": ["sh", "-c", "say <s.argument-2>"]},
            None,
        ),
    ],
)
def test_a_secret_is_kept_and_the_rest_stays(
    ours: dict[str, object], left: dict[str, object], kept: dict[str, str] | None
) -> None:
    made, found = moved(**ours)
    assert made == left
    assert kept is None or found == kept


@pytest.mark.parametrize(
    "ours",
    [
        {"env": {"TOKEN": "${env:T}", "KEY": "Bearer ${file:x}", "AUTH": "true", "MAX_TOKENS": "4096", "SECRET": ""}},
        {"command": ["npx", "-y", "@scope/server-name@2024.11.5", "--token-file", "/run/t", "--key", "--next"]},
        {"command": ["docker", "run", f"image@sha256:{'a1' * 32}", f"git+https://h/x@{'a1' * 20}"]},
        {
            "command": [
                "/nix/store/abcdefghij0123456789abcdefghij01-node/bin/node",
                "a-long-name-of-some-server-package",
            ]
        },
        {"url": "https://example.com/mcp?version=2", "cwd": "/x", "title": GITHUB},
        {"command": "npx", "args": "TOKEN=x", "env": "TOKEN", "headers": ["x"]},
    ],
)
def test_what_is_no_secret_stays(ours: dict[str, object]) -> None:
    assert moved(**ours) == (ours, {})


@pytest.mark.parametrize(
    ("ours", "left"),
    [
        ({"env": {"DB": "postgres://u:hunter2@${env:H}/x"}}, {"env": {"DB": "postgres://u:<hunter2>@${env:H}/x"}}),
        ({"env": {"X": f"pre${{env:H}}{GITHUB}"}}, {"env": {"X": f"pre${{env:H}}<{GITHUB}>"}}),
        (
            {"headers": {"Authorization": "Bearer ${env:H}-sekrettail"}},
            {"headers": {"Authorization": "Bearer ${env:H}<-sekrettail>"}},
        ),
        ({"env": {"TOKEN": "first${env:H}second"}}, {"env": {"TOKEN": "<first>${env:H}<second>"}}),
        ({"env": {"AUTH": "${env:USER}:${env:PW}"}}, {"env": {"AUTH": "${env:USER}:${env:PW}"}}),
        ({"url": "https://h/?key=abc${env:K}&b=$${"}, {"url": "https://h/?key=<abc>${env:K}&b=$${"}),
        (
            {"command": ["x", "https://u:hunter2@${env:H}/x", "--token=${env:A}behind"]},
            {"command": ["x", "https://u:<hunter2>@${env:H}/x", "--token=${env:A}<behind>"]},
        ),
        (
            {"command": ["x", '{"apiKey": "abcd1234efghijk", "n": "x"}']},
            {"command": ["x", '{"apiKey": "<abcd1234efghijk>", "n": "x"}']},
        ),
    ],
)
def test_a_secret_beside_a_reference_is_kept(ours: dict[str, object], left: dict[str, object]) -> None:
    assert without_secrets(ours, "s", lambda name, secret: f"<{secret}>") == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"Authorization": "Bearer ntn_1", "N": "2"}', '{"Authorization": "<Bearer ntn_1>", "N": "2"}'),
        (r"{\"X-Api-Key\": \"abc\"}", r"{\"X-Api-Key\": \"<abc>\"}"),
        ("{'Authorization': 'Bearer x'}", "{'Authorization': '<Bearer x>'}"),
        ("Server=h;User Id=u;Password=my pw;Port=1", "Server=h;User Id=u;Password=<my pw>;Port=1"),
        ("Pwd='a;b' ;Server=h", "Pwd='<a;b>' ;Server=h"),
        ("AccountName=a;AccountKey=abc==;EndpointSuffix=x", "<AccountName=a;AccountKey=abc==;EndpointSuffix=x>"),
        ("Password=pw;Endpoint=sb://h/", "Password=<pw>;Endpoint=sb://h/"),
        ("host=h password=a,b user=u", "host=h password=<a,b> user=u"),
        ("api-key=abc,Authorization=Basic x,a=b", "api-key=<abc>,Authorization=<Basic x>,a=b"),
        ("see root:hunter2@tcp(h:1)/db", "see root:<hunter2>@tcp(h:1)/db"),
        ("u:pw@h.example/x", "<u:pw@h.example/x>"),
        ("postgres://u:p@ss@h", "postgres://u:<p@ss>@h"),
        ("Trusted_Connection=yes;Server=h", "Trusted_Connection=yes;Server=h"),
        ("npm:left-pad@1.0.0", "npm:left-pad@1.0.0"),
        ("mcp/img:1.2@sha256:12ab", "mcp/img:1.2@sha256:12ab"),
        ("git@github.com:o/r", "git@github.com:o/r"),
    ],
)
def test_secrets_in_texts_of_several_settings(text: str, left: str) -> None:
    assert without_secrets({"env": {"X": text}}, "s", lambda name, secret: f"<{secret}>") == {"env": {"X": left}}


@pytest.mark.parametrize(
    ("ours", "left", "kept"),
    [
        ({"env": {"A": f"${{env:X:-{GITHUB}}}"}}, {"env": {"A": "<s.X>"}}, {"s.X": GITHUB}),
        ({"env": {"TOKEN": "${env:X:-abc}"}}, {"env": {"TOKEN": "<s.X>"}}, {"s.X": "abc"}),
        ({"env": {"A": "a ${env:TOKEN:-abc}"}}, {"env": {"A": "a <s.TOKEN>"}}, {"s.TOKEN": "abc"}),
        ({"env": {"A": "${env:SET_TOKEN:-abc}"}}, {"env": {"A": "${env:SET_TOKEN}"}}, {}),
        ({"url": "https://h?key=${env:X:-abc}"}, {"url": "https://h?key=<s.X>"}, {"s.X": "abc"}),
        ({"url": "https://${env:H:-h.example}/x"}, {"url": "https://${env:H:-h.example}/x"}, {}),
        ({"command": ["x", "--key", "${env:X:-}"]}, {"command": ["x", "--key", "${env:X:-}"]}, {}),
    ],
)
def test_a_secret_in_the_default_of_a_reference_is_kept(
    ours: dict[str, object], left: dict[str, object], kept: dict[str, str]
) -> None:
    found: dict[str, str] = {}

    def keep(name: str, secret: str) -> str:
        found[name] = secret
        return f"<{name}>"

    assert without_secrets(ours, "s", keep, set_variables={"SET_TOKEN"}) == left
    assert found == kept


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a-",
        "aB1-",
        "?",
        "-eyJ",
        "://",
        "://a:",
        '"a":"',
        ",key=",
        "key ",
        "a:b@",
        "';a='",
        ";pw=",
        '\\"',
        "$",
        "{",
        "-----BEGIN ",
    ],
)
def test_a_long_text_costs_little(piece: str) -> None:
    rest = piece * (40_000 // len(piece))
    text = f"x://{rest}"
    ours: dict[str, object] = {"env": {"A": text}, "command": [text, f"a={text}", rest]}
    assert_costs_less(lambda: without_secrets(ours, "s", lambda name, secret: ""), 1)


def test_variables_of_files_are_secrets_in_any_case() -> None:
    made = without_secrets({"env": {"A": "x", "B": "x"}}, "s", lambda name, secret: f"<{secret}>", {"A"})
    assert made == {"env": {"A": "<x>", "B": "x"}}


def test_a_dollar_before_a_secret_is_no_escape() -> None:
    made, kept = moved(env={"DB": "u://me$:$pw1@h", "T": "$${x"}, command=["x", "TOKEN$=a", "--token", "$${b"])
    assert made["env"] == {"DB": "u://me$:<s.DB>@h", "T": "$${x"}
    assert kept == {"s.DB": "$pw1", "s.token": "${b"}
    assert moved(url=f"https://h/?a=$&token=abc$&key=$${'{'}x")[0] == {
        "url": "https://h/?a=$&token=<s.token>&key=<s.key>"
    }


@given(st.text(st.sampled_from("aB1$:/@?&=-{} ")), st.sampled_from(["TOKEN", "X", "url"]))
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
