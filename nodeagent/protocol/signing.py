"""The text an agent signs to prove that it holds its node's key."""

from __future__ import annotations

PREFIX = "berth-agent-v1"


def challenge_text(nonce: str, node: str) -> bytes:
    """Return the bytes to sign: the nonce makes it fresh, the node keeps it from serving another one."""
    return f"{PREFIX}:{nonce}:{node}".encode()
