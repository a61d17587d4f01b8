"""Who this node is: its key, made at first start, the next one while it is changed, and the lock on the state folder.

A key is changed in steps of which each may be the last: the next one is durable in ``agent.key.next`` before
anybody hears of it, and takes the place of ``agent.key`` by one rename once the portal is known to have stored it.
Whatever was lost in between, one of the two opens the door (docs/nodes.md).
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeagent.protocol.signing import challenge_text, new_key_text, stream_text

KEY_BYTES = 32
KEY_FILE = "agent.key"
PORTAL_FILE = "portal.key"
log = logging.getLogger(__name__)


class StateError(Exception):
    """The state folder cannot be used; the sentence says why and what to do."""


class Identity:
    """A node's Ed25519 key, kept in ``agent.key`` (mode 0600) of the state folder, and the next one beside it.

    ``portal_key`` is the public key of the portal that the node was enrolled at, kept in ``portal.key`` ("": none).
    """

    def __init__(self, node: str, state: Path) -> None:
        """Read the keys, or make the first one; raises StateError."""
        self.node = node
        self._path = state / KEY_FILE
        self._next_path = state / f"{KEY_FILE}.next"
        self._seed = _read_or_make(self._path)
        self._next = _read_next(self._next_path)
        self._portal_path = state / PORTAL_FILE
        self.portal_key = _read_portal(self._portal_path)

    def sign(
        self, nonce: str, *, with_next: bool = False, agent_nonce: str = "", portal_key: str = ""
    ) -> str:
        """Return the signature of a challenge in hex, by the key in force or the next one."""
        key = self._next_key() if with_next else _key(self._seed)
        return key.sign(challenge_text(nonce, self.node, agent_nonce, portal_key)).hex()

    def sign_streams(self, nonce: str, *, agent_nonce: str, epoch: int) -> str:
        """Return the signature of a gateway's challenge in hex, by the key in force, for the portal that is pinned."""
        text = stream_text(
            nonce=nonce, agent_nonce=agent_nonce, node=self.node, epoch=epoch, portal_key=self.portal_key
        )
        return _key(self._seed).sign(text).hex()

    def public_key(self, *, with_next: bool = False) -> str:
        """Return the public key in force in hex, or the next one."""
        return self.next_key() if with_next else _public(self._seed)

    def pin_portal(self, key: str) -> None:
        """Remember the portal's public key, durable before this returns. Raises StateError. Safe to repeat."""
        if key == self.portal_key:
            return
        try:
            _write(self._portal_path, key)
        except OSError as no:
            raise StateError(f"cannot write the portal's key {self._portal_path}: {no.strerror}") from no
        self.portal_key = key

    @property
    def has_next(self) -> bool:
        """Say whether a next key was made and is not in force yet."""
        return self._next is not None

    def next_key(self) -> str:
        """Return the next public key in hex; it is made, and durable, before this returns. Safe to repeat.

        Raises StateError when it cannot be written: nothing has changed then.
        """
        if self._next is None:
            try:
                self._next = _make(self._next_path)
            except OSError as no:
                raise StateError(f"cannot write the next key {self._next_path}: {no.strerror}") from no
        return _public(self._next)

    def prove_next(self, nonce: str) -> str:
        """Return the next key's signature over a rotation's nonce in hex; call ``next_key`` first."""
        text = new_key_text(nonce, self.node, self.next_key())
        return self._next_key().sign(text).hex()

    def adopt(self, public_key: str = "") -> bool:
        """Put the next key in force; False, and nothing changed, when there is none or it is not this one.

        Raises StateError when the rename fails: both keys stay.
        """
        if self._next is None or public_key not in ("", _public(self._next)):
            return False
        try:
            self._next_path.replace(self._path)
            _sync_folder(self._path.parent)
        except OSError as no:
            raise StateError(f"cannot put the next key in the place of {self._path}: {no.strerror}") from no
        self._seed, self._next = self._next, None
        return True

    def drop_next(self) -> None:
        """Forget a next key that is not wanted any more: the one in force was just enrolled."""
        if self._next is not None:
            self._next_path.unlink(missing_ok=True)
            self._next = None

    def _next_key(self) -> Ed25519PrivateKey:
        assert self._next is not None, "there is no next key"
        return _key(self._next)


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


def _key(seed: bytes) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(seed)


def _public(seed: bytes) -> str:
    # The longer spelling of public_bytes_raw(), which the cryptography of Debian 12 does not have.
    return _key(seed).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def _read_or_make(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        return _make(path)
    except OSError as no:
        raise StateError(
            f"cannot read the node's key {path}: {no}; remove it and enrol the node again"
        ) from no
    except ValueError:
        raise StateError(f"{path} is not a node's key; remove it and enrol the node again") from None


def _read_next(path: Path) -> bytes | None:
    """Return the next key, None where there is none. One that cannot be read is no reason to stay away."""
    try:
        return _read(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as no:
        log.warning("the next key %s cannot be used (%s); another one is made when it is asked for", path, no)
        return None


def _read(path: Path) -> bytes:
    seed = bytes.fromhex(path.read_text(encoding="ascii").strip())
    if len(seed) != KEY_BYTES:
        raise ValueError(f"{len(seed)} bytes instead of {KEY_BYTES}")
    return seed


def _make(path: Path) -> bytes:
    """Write a new key completely or not at all, readable by its owner only."""
    seed = os.urandom(KEY_BYTES)
    _write(path, seed.hex())
    return seed


def _read_portal(path: Path) -> str:
    """Return the portal's public key in hex, "" where none is kept; raises StateError for one that is damaged.

    Going on without it would trust the next portal that comes.
    """
    try:
        return _read(path).hex()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as no:
        raise StateError(
            f"cannot read the portal's key {path}: {no}; enrol the node again after removing it"
        ) from no


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all, readable by its owner only, and durable."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as out:
        out.write(text + "\n")
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: without it a power cut may bring the old name back."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
