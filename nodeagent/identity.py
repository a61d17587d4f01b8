"""Who this node is: its key, made at first start, the enrolment token, and the lock on the state folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nodeagent.protocol.signing import challenge_text

KEY_BYTES = 32


class StateError(Exception):
    """The state folder cannot be used; the sentence says why and what to do."""


class Identity:
    """A node's Ed25519 key, kept in ``agent.key`` (mode 0600) of the state folder."""

    def __init__(self, node: str, state: Path) -> None:
        """Read the key, or make one; raises StateError."""
        self.node = node
        self._seed = _read_or_make(state / "agent.key")

    def sign(self, nonce: str) -> str:
        """Return the signature of a challenge in hex."""
        return self._key().sign(challenge_text(nonce, self.node)).hex()

    def public_key(self) -> str:
        """Return the public key in hex, for enrolment."""
        return self._key().public_key().public_bytes_raw().hex()

    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self._seed)


def lock_state(state: Path) -> int:
    """Make the state folder and keep other agents out of it; returns the descriptor that holds the lock."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as no:
        raise StateError(
            f"cannot use the state folder {state}: {no.strerror}; choose another with --state"
        ) from no
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise StateError(f"another agent works in {state}; stop it or choose another --state") from None
    return fd


def _read_or_make(path: Path) -> bytes:
    try:
        seed = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        return _make(path)
    except (OSError, ValueError) as no:
        raise StateError(
            f"cannot read the node's key {path}: {no}; remove it and enrol the node again"
        ) from no
    if len(seed) != KEY_BYTES:
        raise StateError(f"{path} is not a node's key; remove it and enrol the node again")
    return seed


def _make(path: Path) -> bytes:
    """Write a new key completely or not at all, readable by its owner only."""
    seed = os.urandom(KEY_BYTES)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as out:
        out.write(seed.hex() + "\n")
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    return seed
