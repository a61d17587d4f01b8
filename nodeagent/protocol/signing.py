"""The texts an agent signs to prove that it holds its node's key, or the next one.

Their first words keep them apart: no answer to a challenge can pass for the proof of a new key.
"""

from __future__ import annotations

PREFIX = "berth-agent-v1"
NEW_KEY_PREFIX = "berth-agent-new-key-v1"


def challenge_text(nonce: str, node: str) -> bytes:
    """Return the bytes to sign: the nonce makes it fresh, the node keeps it from serving another one."""
    return f"{PREFIX}:{nonce}:{node}".encode()


def new_key_text(nonce: str, node: str, public_key: str) -> bytes:
    """Return the bytes that the next key signs, by which it is proven to be in this agent's hands."""
    return f"{NEW_KEY_PREFIX}:{nonce}:{node}:{public_key}".encode()
