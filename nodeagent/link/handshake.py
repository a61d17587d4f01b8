"""Both sides of the handshake: a fresh nonce of the agent, and the portal's proof before anything it says is obeyed."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Protocol, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodeagent.link.enrolment import PortalRefusedError
from nodeagent.link.identity import Identity
from nodeagent.protocol.codec import ProtocolError, decode
from nodeagent.protocol.limits import MOST_EPOCH_JUMP
from nodeagent.protocol.messages import Hello, Message, Refused, StreamHello, Welcome
from nodeagent.protocol.signing import portal_text

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
ANSWER_WITHIN_S = 10


class Socket(Protocol):
    """What a session needs of a WebSocket."""

    async def send(self, message: str, /) -> None:
        """Send one text frame."""
        ...

    async def recv(self) -> str | bytes:
        """Return the next frame."""
        ...


async def expect(socket: Socket, kind: type[M]) -> M:
    """Return the next frame if it is of this kind; raises PortalRefusedError for anything else."""
    # Not wait_for: before Python 3.12 that loses a cancellation that comes together with the frame.
    async with asyncio.timeout(ANSWER_WITHIN_S):
        frame = await socket.recv()
    try:
        message = decode(frame)
    except ProtocolError as no:
        raise PortalRefusedError(
            no.code, "the other side does not speak this protocol; is this the portal?"
        ) from no
    if isinstance(message, Refused):
        raise PortalRefusedError(message.code, message.detail)
    if not isinstance(message, kind):
        raise PortalRefusedError(
            "unexpected", f"a {type(message).__name__} came where {kind.__name__} was due"
        )
    return message


def fresh_nonce() -> str:
    """Return 32 random bytes in hex, for one greeting."""
    return secrets.token_hex(32)


def require_portal(
    welcome: Welcome, hello: Hello | StreamHello, nonce: str, public_key: str, identity: Identity
) -> None:
    """Raise PortalRefusedError unless the welcome is by the portal that this node was enrolled at; pins its key.

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
    """Raise PortalRefusedError for an epoch so far ahead that nothing would be left above it; an enrolment sets any."""
    if known and not enrolled and welcome.epoch > known + MOST_EPOCH_JUMP:
        raise PortalRefusedError("far_epoch", f"epoch {welcome.epoch} is too far above {known}")


def _is_signed(key: str, text: bytes, welcome: Welcome) -> bool:
    try:
        signature = bytes.fromhex(welcome.proofs.get(key, ""))
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
