"""Secrets at rest: encrypted with a key that is derived from the portal's own, bound to whose and which they are."""

from __future__ import annotations

import functools
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

JOBS: Final = b"berth secrets of jobs 1"
CONTACTS: Final = b"berth contact points 1"
PROVIDERS: Final = b"berth identity providers 1"
SECOND_FACTORS: Final = b"berth second factors 1"
_NONCE: Final = 12


def seal(value: str, *, purpose: bytes, owner: int, name: str) -> bytes:
    """Return a value as it is stored; what is sealed for one purpose is nothing to another."""
    nonce = os.urandom(_NONCE)
    return nonce + _cipher(settings.PORTAL_KEY or settings.SECRET_KEY, purpose).encrypt(
        nonce, value.encode(), _bound(owner, name)
    )


def unseal(sealed: bytes, *, purpose: bytes, owner: int, name: str) -> str | None:
    """Return a stored value; None for one that was stored under a key that is gone."""
    for key in (settings.PORTAL_KEY or settings.SECRET_KEY, settings.PORTAL_KEY_BEFORE):
        if not key:
            continue
        try:
            return (
                _cipher(key, purpose).decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(owner, name)).decode()
            )
        except (InvalidTag, ValueError):
            continue
    return None


def _bound(owner: int, name: str) -> bytes:
    return f"{owner}:{name}".encode()


@functools.cache
def _cipher(key: str, purpose: bytes) -> AESGCM:
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=None, info=purpose).derive(key.encode()))
