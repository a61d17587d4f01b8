"""A node's key is changed while it is connected: an operator asks, the agent offers, the portal stores it.

Leases, epoch and connection are not touched. The old key is good until the new one is stored, from then on only
the new one is: whatever is lost in between, the agent tries both (docs/nodes.md).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import transaction
from django.utils.translation import gettext as _

from nodeagent.protocol.messages import NewKey, Rotate
from nodeagent.protocol.signing import new_key_text
from portal.accounts.models import User
from portal.agents.admission import KEY_BYTES, Admitted, unhex
from portal.agents.errors import AgentRefused
from portal.audit.services import record
from portal.common.errors import Conflict
from portal.common.live import NODES, publish_on_commit
from portal.fleet.models import Node

FEATURE = "rotate"
ASK_AGAIN_S = 60.0


def can_rotate(node: Node) -> bool:
    """Say whether the node has a key that its agent can change."""
    return node.public_key is not None and FEATURE in node.features


def key_since(node: Node) -> datetime | None:
    """Return since when the node's key is in force, None where it has none."""
    if node.public_key is None:
        return None
    return node.key_changed_at or node.enrolled_at


@transaction.atomic
def ask_rotation(*, node: Node, actor: User, now: datetime) -> None:
    """Want a new key of the node's agent, now or when it connects next. Safe to repeat.

    Raises Conflict for a node without a key and for an agent too old to change it.
    """
    locked = Node.objects.select_for_update().get(pk=node.pk)
    if locked.public_key is None:
        raise Conflict(_("%(node)s has no key yet: enrol it first.") % {"node": locked.name})
    if FEATURE not in locked.features:
        raise Conflict(
            _("The agent of %(node)s is too old to change its key. Upgrade it, or enrol the node again.")
            % {"node": locked.name}
        )
    if locked.rotate_asked_at is None:
        Node.objects.filter(pk=locked.pk).update(rotate_asked_at=now)
        record(actor, "node.key_change_asked", locked.name, at=now)
    publish_on_commit(NODES, [locked.name])


@transaction.atomic
def store_new_key(who: Admitted, nonce: str, offer: NewKey, *, now: datetime) -> str:
    """Put the offered key in force and return it in hex, or raise AgentRefused and change nothing. Safe to repeat.

    ``who`` proved the old key when it connected, the offer's signature proves the new one. A node that was enrolled
    again or whose key was forgotten meanwhile gets no key through the old connection.
    """
    key = unhex(offer.public_key, KEY_BYTES)
    if key is None:
        raise AgentRefused("bad_new_key", "The public key must be 32 bytes in hex.")
    node = Node.objects.select_for_update().get(pk=who.node_id)
    if node.epoch != who.epoch or node.public_key is None:
        raise AgentRefused("stale_epoch", "This node was enrolled anew. Connect again.")
    if bytes(node.public_key) == key:
        return key.hex()
    if bytes(node.public_key) != who.public_key:
        raise AgentRefused(
            "bad_signature", "The key of this connection is not in force any more. Connect again."
        )
    try:
        proof = unhex(offer.signature, 64) or b""
        Ed25519PublicKey.from_public_bytes(key).verify(
            proof, new_key_text(nonce, node.name, offer.public_key)
        )
    except InvalidSignature as error:
        raise AgentRefused("bad_new_key", "The new key did not sign this offer. Offer it again.") from error
    Node.objects.filter(pk=node.pk).update(public_key=key, key_changed_at=now, rotate_asked_at=None)
    asked_at = node.rotate_asked_at.isoformat() if node.rotate_asked_at else None
    record(None, "node.key_changed", node.name, at=now, asked_at=asked_at)
    return key.hex()


@dataclass(slots=True)
class KeyRequest:
    """What one connection has asked of its agent: a nonce, until it is answered, and when it was asked.

    ``is_storing``: an answer is on its way to its row, which still asks for one.
    """

    nonce: str = ""
    asked_at: float = 0.0
    is_storing: bool = False

    def ask(self, *, at: float) -> Rotate | None:
        """Return what to send, None while the last wish is fresh. ``at`` is a monotonic clock in seconds."""
        if self.is_storing or (self.nonce and at - self.asked_at < ASK_AGAIN_S):
            return None
        self.nonce, self.asked_at = secrets.token_hex(32), at
        return Rotate(self.nonce)

    def answered(self) -> str:
        """Return the nonce that an answer must have signed, and take no second one."""
        nonce, self.nonce = self.nonce, ""
        return nonce
