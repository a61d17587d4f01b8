"""Both sides of a greeting: a fresh nonce of the agent, and the portal's proof before anything it says is obeyed."""

from __future__ import annotations

import logging
import secrets

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.identity import Identity
from nodeagent.protocol.limits import MOST_EPOCH_JUMP
from nodeagent.protocol.messages import Hello, Welcome
from nodeagent.protocol.signing import portal_text

log = logging.getLogger(__name__)


def fresh_nonce() -> str:
    """Return 32 random bytes in hex, for one greeting."""
    return secrets.token_hex(32)


def require_portal(welcome: Welcome, hello: Hello, nonce: str, public_key: str, identity: Identity) -> None:
    """Raise RefusedError unless the welcome is by the portal that this node was enrolled at; pins its key.

    ``public_key`` is the agent's own as the hello proved it. A node that was enrolled before portals had keys takes
    the first one it meets, and says so. A portal that changes its key signs with the former one as well.
    """
    text = portal_text(
        nonce=nonce, agent_nonce=hello.nonce, node=hello.node, public_key=public_key, epoch=welcome.epoch,
        portal_key=welcome.portal_key,
    )  # fmt: skip
    expected = hello.portal_key or welcome.portal_key
    if not all(_is_signed(key, text, welcome) for key in {expected, welcome.portal_key}):
        raise PortalRefusedError(
            "other_portal",
            "this is not the portal that the node was enrolled at; nothing it says is obeyed."
            " If the portal's key was lost, enrol the node again",
        )
    if not hello.portal_key:
        log.warning("the portal's key %s is trusted from now on; it was not known before", welcome.portal_key)
    elif welcome.portal_key != identity.portal_key and identity.portal_key:
        log.warning("the portal changed its key to %s", welcome.portal_key)
    identity.pin_portal(welcome.portal_key)


def require_epoch(welcome: Welcome, known: int, *, enrolled: bool) -> None:
    """Raise RefusedError for an epoch so far ahead that nothing would be left above it; an enrolment sets any."""
    if known and not enrolled and welcome.epoch > known + MOST_EPOCH_JUMP:
        raise PortalRefusedError("far_epoch", f"epoch {welcome.epoch} is too far above {known}")


def _is_signed(key: str, text: bytes, welcome: Welcome) -> bool:
    try:
        signature = bytes.fromhex(welcome.proofs.get(key, ""))
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
