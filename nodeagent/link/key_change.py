"""Changing the node's key at the portal's wish, step by step; what is lost in between loses nothing.

The session hands in ``Rotate`` and ``KeyStored`` as they come and sends the ``NewKey`` that comes back. Leases,
epoch and connection are not touched.
"""

from __future__ import annotations

import logging

from nodeagent.link.identity import Identity, StateError
from nodeagent.protocol.messages import KeyStored, NewKey, Rotate

log = logging.getLogger(__name__)


class KeyChange:
    """The change of one node's key. One per agent; it outlives connections."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def take(self, wish: Rotate) -> NewKey | None:
        """Return the answer to the portal's wish: the next key, durable by now, with its proof. Safe to repeat.

        None when the key cannot be written; the one in force stays, and the portal asks again.
        """
        try:
            public_key = self._identity.next_key()
            return NewKey(public_key=public_key, signature=self._identity.prove_next(wish.nonce))
        except StateError as no:
            log.error("the node's key is not changed: %s", no)
            return None

    def stored(self, word: KeyStored) -> bool:
        """Put the key that the portal has stored in force; False when it is not the one that was offered.

        When the rename fails both keys stay, and the next connection finds out which one opens the door.
        """
        try:
            is_ours = self._identity.adopt(word.public_key)
        except StateError as no:
            log.error("the node's new key is stored at the portal but not in its place here: %s", no)
            return False
        if is_ours:
            log.info("the node's key was changed")
        elif word.public_key != self._identity.public_key():
            log.warning("the portal stored a key that this agent did not offer; enrol the node again")
        return is_ours

    def pending(self) -> bool:
        """Say whether a next key was made that is not in force yet."""
        return self._identity.has_next
