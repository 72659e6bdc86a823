"""Authentication of a client with its private key: a signed assertion in place of a secret (RFC 7523, 2.2 and 3)."""

from __future__ import annotations

import json
import secrets
from base64 import urlsafe_b64encode

from host.oauth.problem import OAuthProblem

LIFETIME = 60
"""Seconds for which an assertion is good: each request gets one of its own."""
_SIZE = 32
"""Bytes of each half of an ES256 signature."""


def client_assertion(client_id: str, issuer: str, key: str, now: float) -> str:
    """An assertion of the client, for one request to this issuer.

    Args:
        key: the private key in PEM format, without a password: RSA (RS256), or EC P-256 (ES256).
        now: Unix time.

    Raises:
        OAuthProblem: the key cannot be used. The error contains nothing of it.
    """
    # Few hosts need these, and importing them takes 30 ms.
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if isinstance(private, RSAPrivateKey):
        algorithm = "RS256"
    elif isinstance(private, EllipticCurvePrivateKey) and isinstance(private.curve, SECP256R1):
        algorithm = "ES256"
    else:
        raise OAuthProblem("oauth.private_key is no RSA or P-256 key in PEM format without a password")
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": issuer,
        "iat": int(now),
        "exp": int(now) + LIFETIME,
        "jti": secrets.token_urlsafe(16),
    }
    signed = f"{_encode({'alg': algorithm, 'typ': 'JWT'})}.{_encode(claims)}"
    return f"{signed}.{_base64(_sign(private, signed.encode('ascii')))}"


def _sign(private: object, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(private, RSAPrivateKey):
        return private.sign(data, PKCS1v15(), SHA256())
    assert isinstance(private, EllipticCurvePrivateKey)
    # JWS has the two numbers themselves (RFC 7518, 3.4).
    r, s = decode_dss_signature(private.sign(data, ECDSA(SHA256())))
    return r.to_bytes(_SIZE, "big") + s.to_bytes(_SIZE, "big")


def _encode(part: dict[str, object]) -> str:
    return _base64(json.dumps(part, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
