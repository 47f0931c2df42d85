"""An issuer of tokens for tests: real keys, real signatures, a real server for its JWK set."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://login.example.com/", "perdure"


class Key:
    """A private key under an id, and what it signs."""

    def __init__(self, id: str, algorithm: str = "ES256", bits: int = 2048) -> None:
        self.id = id
        self.algorithm = algorithm
        self.private: Any
        self.kind: Any
        match algorithm[:2]:
            case "RS" | "PS":
                self.private, self.kind = rsa.generate_private_key(65537, bits), RSAAlgorithm
            case "ES":
                curve = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}[algorithm]
                self.private, self.kind = ec.generate_private_key(curve), ECAlgorithm
            case _:
                self.private, self.kind = ed25519.Ed25519PrivateKey.generate(), OKPAlgorithm

    @property
    def jwk(self) -> dict[str, Any]:
        return {**self.kind.to_jwk(self.private.public_key(), as_dict=True), "kid": self.id, "use": "sig"}

    @property
    def pem(self) -> bytes:
        pem: bytes = self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return pem

    def sign(self, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        return jwt.encode(
            body(**claims), self.private, algorithm=self.algorithm, headers={"kid": self.id, **(headers or {})}
        )


def body(**claims: Any) -> dict[str, Any]:
    """The claims of a good token, with some of them changed; None leaves one out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "ada",
        "tenant": "shop",
        "roles": ["sender"],
        "iat": now,
        "exp": now + 60,
    }
    return {name: value for name, value in (good | claims).items() if value is not None}


def raw(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token as no library would make it."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def jwks(*keys: Key) -> dict[str, Any]:
    return {"keys": [key.jwk for key in keys]}


class Server:
    """Serves a JWK set, and counts how often it is asked for. Any other answer can be set."""

    def __init__(self, *keys: Key) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.status = 200
        self.headers: dict[str, str] = {}
        self.answer: bytes | None = None
        self.url = ""

    def body(self) -> bytes:
        return json.dumps(jwks(*self.keys)).encode() if self.answer is None else self.answer


@contextmanager
def serving(*keys: Key) -> Iterator[Server]:
    state = Server(*keys)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked += 1
            self.send_response(state.status)
            for name, value in state.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(state.body())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
