"""A security key in software: what a browser would send, made and signed by the rules of WebAuthn."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from webauthn.helpers import bytes_to_base64url

PRESENT, WITH_KEY = 0x01, 0x40


@dataclass
class SoftKey:
    """One credential of one site; ``count`` is what it says next."""

    origin: str
    host: str
    count: int = 0
    handle: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    private: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def at(self, origin: str, host: str) -> SoftKey:
        """Return the same credential as another site would get to see it."""
        return replace(self, origin=origin, host=host)

    def make(self, options: str) -> str:
        """Return the answer to ``navigator.credentials.create``."""
        numbers = self.private.public_key().public_numbers()
        key = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        held = bytes(16) + len(self.handle).to_bytes(2, "big") + self.handle + cbor2.dumps(key)
        attestation = {"fmt": "none", "attStmt": {}, "authData": self._data(PRESENT | WITH_KEY) + held}
        client = self._client("webauthn.create", options)
        return self._answer({"clientDataJSON": client, "attestationObject": cbor2.dumps(attestation)})

    def use(self, options: str) -> str:
        """Return the answer to ``navigator.credentials.get``, and count up."""
        self.count += 1
        data, client = self._data(PRESENT), self._client("webauthn.get", options)
        signed = self.private.sign(data + hashlib.sha256(client).digest(), ec.ECDSA(hashes.SHA256()))
        return self._answer({"clientDataJSON": client, "authenticatorData": data, "signature": signed})

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.host.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client(self, kind: str, options: str) -> bytes:
        challenge = json.loads(options)["challenge"]
        return json.dumps({"type": kind, "challenge": challenge, "origin": self.origin}).encode()

    def _answer(self, parts: dict[str, bytes]) -> str:
        said: dict[str, Any] = {name: bytes_to_base64url(value) for name, value in parts.items()}
        handle = bytes_to_base64url(self.handle)
        return json.dumps({"id": handle, "rawId": handle, "type": "public-key", "response": said})
