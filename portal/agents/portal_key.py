"""The portal's own key: by it agents know that they speak with the portal they were enrolled at.

An Ed25519 key derived from BERTH_PORTAL_KEY, or from the secret key where that is not set: every process has the
same one, and no copy of the database holds it (docs/nodes.md says how it is changed).
"""

from __future__ import annotations

import functools

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from nodeagent.protocol.signing import portal_text

PURPOSE = b"berth portal key v1"


def public_key() -> str:
    """Return the public key in force in hex, "" for a process that was given no secret to derive it from."""
    return _public(_key(settings.PORTAL_KEY)) if settings.PORTAL_KEY else ""


def known_keys() -> frozenset[str]:
    """Return the public keys that agents may have pinned: the one in force and the one before."""
    return frozenset(_public(key) for key in _keys())


def proofs(*, nonce: str, agent_nonce: str, node: str, public_key: str, epoch: int) -> dict[str, str]:
    """Return the signature of one handshake by each key of the portal, by public key in hex.

    All of them sign the key in force with it, so that an agent which pinned the former one may follow.
    """
    keys = _keys()
    text = portal_text(
        nonce=nonce, agent_nonce=agent_nonce, node=node, public_key=public_key, epoch=epoch,
        portal_key=_public(keys[0]),
    )  # fmt: skip
    return {_public(key): key.sign(text).hex() for key in keys}


def _keys() -> list[Ed25519PrivateKey]:
    return [_key(secret) for secret in (settings.PORTAL_KEY, settings.PORTAL_KEY_BEFORE) if secret]


@functools.cache
def _key(secret: str) -> Ed25519PrivateKey:
    seed = HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(secret.encode())
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
