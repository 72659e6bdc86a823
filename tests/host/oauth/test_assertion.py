"""Assertions: signed so that the public key says so, for one issuer and a minute."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64decode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from host.oauth.assertion import LIFETIME, client_assertion
from host.oauth.problem import OAuthProblem

ISSUER = "https://login.example/tenant"
EC = ec.generate_private_key(ec.SECP256R1())
RSA = rsa.generate_private_key(65537, 2048)


def pem(key: PrivateKeyTypes, password: bytes | None = None) -> str:
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()


def on_another_curve() -> str:
    """A key on a curve that the library does not know."""
    named = bytes.fromhex("06082a8648ce3d0301")  # ANSI X9.62 prime curves; P-256 is 07
    der = EC.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()).replace(named + b"\7", named + b"\x63")
    return f"-----BEGIN PRIVATE KEY-----\n{b64encode(der).decode()}\n-----END PRIVATE KEY-----\n"


def decoded(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def claims(assertion: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(decoded(assertion.split(".")[1]))
    return found


def test_the_claims_are_those_of_the_standard() -> None:
    one, other = (client_assertion("client", ISSUER, pem(EC), 1000.5) for _ in range(2))
    found = claims(one)
    assert found.pop("jti") != claims(other)["jti"]
    assert found == {"iss": "client", "sub": "client", "aud": ISSUER, "iat": 1000, "exp": 1000 + LIFETIME}


def test_the_signature_is_that_of_the_key() -> None:
    for key, algorithm in ((EC, "ES256"), (RSA, "RS256")):
        head, body, signature = client_assertion("client", ISSUER, pem(key), 5.0).split(".")
        assert json.loads(decoded(head)) == {"alg": algorithm, "typ": "JWT"}
        signed, data = decoded(signature), f"{head}.{body}".encode()
        if isinstance(key, rsa.RSAPrivateKey):
            key.public_key().verify(signed, data, padding.PKCS1v15(), SHA256())
        else:
            assert len(signed) == 64
            numbers = (int.from_bytes(signed[:32], "big"), int.from_bytes(signed[32:], "big"))
            key.public_key().verify(encode_dss_signature(*numbers), data, ec.ECDSA(SHA256()))


@pytest.mark.parametrize(
    "key",
    [
        "s3cret",
        "",
        pem(Ed25519PrivateKey.generate()),
        pem(ec.generate_private_key(ec.SECP384R1())),
        on_another_curve(),
        pem(EC, b"password"),
        "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----\n",
    ],
)
def test_another_key_cannot_be_used(key: str) -> None:
    with pytest.raises(OAuthProblem, match="is no RSA or P-256 key") as caught:
        client_assertion("client", ISSUER, key, 5.0)
    assert "s3cret" not in str(caught.value)
