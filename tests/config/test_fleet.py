"""The section for several processes with one store: what it refuses, and what it becomes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from config import Address, Inner
from tests.config.kit import lines, load_text

RAW = bytes(range(224, 256))
KEY = RAW.hex()
ENV = {"K": KEY, "URL": "postgresql://me:hidden@127.0.0.1/x", "BAD": "postgresql://me:hidden@db/x", "SHORT": "hidden"}
SERVERS = "servers: {a: {command: x}}"


def fleet(name: str = "acme", store: str = "postgresql://localhost/x", keys: str = "'${env:K}'", more: str = "") -> str:
    return f"fleet: {{name: {name}, store: '{store}', keys: [{keys}]{more}}}\n{SERVERS}"


def test_a_whole_section(tmp_path: Path) -> None:
    inner = "inner: {listen: '0.0.0.0:8443', address: '10.0.0.7:8443', cert: c.pem, key: k.pem, ca: ca.pem}"
    made = load_text(tmp_path, fleet(store="${env:URL}", more=f", {inner}"), ENV)
    assert made.fleet is not None
    assert (made.fleet.name, made.fleet.store.reveal(), made.fleet.secrets) == ("acme", ENV["URL"], (RAW,))
    paths = (tmp_path / name for name in ("c.pem", "k.pem", "ca.pem"))
    assert made.fleet.inner == Inner(Address("0.0.0.0", 8443), Address("10.0.0.7", 8443), *paths)
    assert made.notices == ()
    assert "hidden" not in repr(made.fleet)
    assert KEY not in repr(made.fleet)
    assert load_text(tmp_path, SERVERS).fleet is None


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("padding", ["=", ""])
def test_a_key_is_the_same_in_every_form(tmp_path: Path, encode: object, padding: str) -> None:
    assert callable(encode)
    written = encode(RAW).decode().rstrip("=") + padding
    made = load_text(tmp_path, fleet(keys=f"'{written}', '{KEY.upper()}', '{'0' * 64}'"))
    assert made.fleet is not None
    assert made.fleet.secrets == (RAW, bytes(32)), "the same key twice is one"


@pytest.mark.parametrize(
    "store",
    [
        "postgres://127.0.0.1:5433/x",
        "postgresql://u:p@[::1]:5433/x",
        "postgresql://u@/x?host=/run/postgresql",
        "postgresql://u@%2Frun%2Fpostgresql/x",
        "postgresql://u:p@a.example,b.example:5433/x?sslmode=verify-full&target_session_attrs=read-write",
    ],
)
def test_stores_whose_server_is_known(tmp_path: Path, store: str) -> None:
    made = load_text(tmp_path, fleet(store=store), ENV)
    assert made.fleet is not None
    assert made.fleet.store.reveal() == store


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (fleet(store="mysql://h/x"), "1:28: fleet.store: expected a URL such as postgresql://"),
        (fleet(store="host=localhost dbname=x"), "percent-encode spaces"),
        (fleet(store="postgresql:///x"), "with a host; for a Unix socket, ?host= and its folder"),
        (fleet(store="postgresql://localhost/x?service=y"), "name the host instead"),
        (fleet(store="postgresql://localhost/x?host"), "this one cannot be read"),
        (fleet(store="postgresql://db.example/x"), "has to prove who it is; add sslmode=verify-full"),
        (fleet(store="postgresql://db.example/x?sslmode=require"), "has to prove who it is"),
        (fleet(store="postgresql://localhost,db.example/x"), "has to prove who it is"),
        (fleet(store="postgresql://localhost/x?hostaddr=10.0.0.1"), "has to prove who it is"),
        (fleet(store="postgresql://localhost/x?host=db.example"), "has to prove who it is"),
        (fleet(store="${env:BAD}"), "has to prove who it is"),
        (fleet(keys=""), "1:62: fleet.keys: expected at least one key, found an empty list; `openssl rand -hex 32`"),
        (fleet(keys="'${env:SHORT}'"), "fleet.keys[0]: expected a key of 32 bytes in hexadecimal digits or Base64"),
        (fleet(keys="'é'"), "fleet.keys[0]: expected a key of 32 bytes"),
        (fleet(name="Acme Inc"), "a fleet's name is at most 20 lower-case letters and digits, with single dashes"),
        (
            fleet(more=", inner: {listen: '0.0.0.0:1'}"),
            'fleet.inner.address: the key "address" is missing; it is where',
        ),
        *(
            (
                fleet(more=f", inner: {{listen: '0.0.0.0:1', address: '{address}', cert: c, key: k, ca: a}}"),
                "fleet.inner.address: expected the IP address and port at which the others reach this process",
            )
            for address in ("0.0.0.0:8443", "[::]:8443", "10.0.0.7:0")
        ),
        (fleet(more=", redis: x"), "fleet.redis: unknown key; known keys: name, store, keys, inner"),
        (f"fleet: {{store: 'postgresql://localhost/x', keys: ['{KEY}']}}\n{SERVERS}", "the same in all processes"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    found = lines(tmp_path, text, ENV)
    assert any(said in line for line in found), found
    assert "hidden" not in str(found)


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ("postgresql://u:p@localhost/x", ["fleet.keys[0]", "fleet.store"]),
        ("postgresql://u@localhost:5432/x", ["fleet.keys[0]"]),
        ("postgresql://u:${env:PASSWORD}@[${env:ADDRESS}]/x", ["fleet.keys[0]"]),
    ],
)
def test_secrets_in_the_file_itself_are_told(tmp_path: Path, store: str, told: list[str]) -> None:
    made = load_text(tmp_path, fleet(store=store, keys=f"'{KEY}'"), {"PASSWORD": "p", "ADDRESS": "::1"})
    assert [notice.partition(":")[0] for notice in made.notices] == told
