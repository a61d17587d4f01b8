"""The texts by which agent and portal prove to each other who they are, and an agent its next key.

Their first words keep them apart: no answer to a challenge can pass for the proof of a new key.
"""

from __future__ import annotations

PREFIX = "berth-agent-v1"
MUTUAL_PREFIX = "berth-agent-v2"
PORTAL_PREFIX = "berth-portal-v1"
NEW_KEY_PREFIX = "berth-agent-new-key-v1"
STREAM_PREFIX = "berth-agent-streams-v1"


def challenge_text(nonce: str, node: str, agent_nonce: str = "", portal_key: str = "") -> bytes:
    """Return the bytes an agent signs: the nonce makes it fresh, the node keeps it from serving another one.

    An agent that asks for the portal's proof signs its own nonce too, and which portal it expects ("": none yet):
    whoever takes either away on the way is found out.
    """
    if not agent_nonce:
        return f"{PREFIX}:{nonce}:{node}".encode()
    return f"{MUTUAL_PREFIX}:{nonce}:{node}:{agent_nonce}:{portal_key}".encode()


def portal_text(
    *, nonce: str, agent_nonce: str, node: str, public_key: str, epoch: int, portal_key: str
) -> bytes:
    """Return the bytes a portal signs: both nonces, whom it lets in by which key, and its own key in force."""
    said = f"{nonce}:{agent_nonce}:{node}:{public_key}:{epoch}:{portal_key}"
    return f"{PORTAL_PREFIX}:{said}".encode()


def stream_text(*, nonce: str, agent_nonce: str, node: str, epoch: int, portal_key: str) -> bytes:
    """Return the bytes an agent signs for a socket that carries streams: no control socket takes them."""
    return f"{STREAM_PREFIX}:{nonce}:{agent_nonce}:{node}:{epoch}:{portal_key}".encode()


def new_key_text(nonce: str, node: str, public_key: str) -> bytes:
    """Return the bytes that the next key signs, by which it is proven to be in this agent's hands."""
    return f"{NEW_KEY_PREFIX}:{nonce}:{node}:{public_key}".encode()
