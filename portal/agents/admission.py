"""Proof of identity: what an agent must show before the portal believes it, and what its hello changes then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import transaction
from django.db.models import QuerySet

from nodeagent.protocol.messages import Hello, StreamHello
from nodeagent.protocol.signing import challenge_text, stream_text
from portal.accounts.services import digest_of
from portal.agents.acceptance import tell_waiting, waiting_devices
from portal.agents.errors import AgentRefused
from portal.agents.handshake import Handshake
from portal.agents.models import EnrolToken
from portal.agents.portal_key import known_keys
from portal.agents.restored_database import FAR_EPOCH, overtake, tell_ahead
from portal.common.sql import fetch
from portal.fleet.models import Node
from portal.fleet.services import forget_acceptance, learn_devices

KEY_BYTES = NONCE_BYTES = 32
# What a hello may change of its node; the rest belongs to operators, scheduler and reports. That it was heard is
# noted once its welcome went out.
TOLD = (
    "public_key", "enrolled_at", "key_changed_at", "rotate_asked_at", "epoch", "boot_id", "last_seq",
    "agent_version", "driver", "driver_version", "cpu_milli", "memory_mib", "site", "rack", "runtime",
    "features", "desired_revision", "ahead_at",
)  # fmt: skip
# Devices come before their node in every transaction; rows that only refer to a device never wait for this lock.
_LOCK_DEVICES = (
    "SELECT d.id FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id WHERE n.name = %s"
    " ORDER BY d.id FOR NO KEY UPDATE OF d"
)
# Whose signature is checked where there is no key, so that the answer takes as long; it opens nothing.
_DECOY: Final = bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")


@dataclass(frozen=True, slots=True)
class Admitted:
    """An agent that proved who it is, by which key, and what it understands beside version 1 of the protocol.

    ``is_blank``: its journal knows of no earlier connection. ``is_held``: it is told nothing before it is known what
    it carries (``restored_database``). ``seen_at`` is when the node was heard before.
    """

    node_id: int
    name: str
    epoch: int
    public_key: bytes
    features: frozenset[str]
    is_blank: bool
    is_held: bool
    seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class ProvenNode:
    """A node whose agent opened a socket for streams, by the key and in the enrolment it proved."""

    node_id: int
    name: str
    epoch: int
    public_key: bytes
    features: tuple[str, ...] = ()


def admit(hello: Hello, *, nonce: str, now: datetime, handshake: Handshake | None = None) -> Admitted:
    """Check who is calling and store its inventory, or raise AgentRefused and change nothing.

    With a token the key is stored and the token consumed in one step; without, the signature must be by the key
    stored at enrolment. Nothing is locked before that is known. ``handshake`` is asked last: a hello whose
    connection is over by then takes no effect. That the agent was heard is noted by what it says once it was
    welcomed.
    """
    if hello.nonce and unhex(hello.nonce, NONCE_BYTES) is None:
        raise AgentRefused("bad_nonce", "The agent's nonce must be 32 bytes in hex.")
    key = _proven_key(hello, nonce, now)
    if hello.portal_key and hello.portal_key not in known_keys():
        raise AgentRefused(
            "other_portal",
            "This agent was enrolled at a portal with another key. Enrol the node here with a new token.",
        )
    try:
        return _admit(hello, key, now, handshake or Handshake())
    except AgentRefused as no:
        if no.code == FAR_EPOCH:
            _tell_far(hello, now)
        raise


@transaction.atomic
def _tell_far(hello: Hello, now: datetime) -> None:
    node = Node.objects.get(name=hello.node)
    tell_ahead(node, hello, (node.epoch, node.desired_revision), now=now)


def _proven_key(hello: Hello, nonce: str, now: datetime) -> bytes:
    """Return the public key that signed the challenge, or raise AgentRefused.

    A node that does not exist, one without a key and another key than the stored one are answered alike: who holds
    no key learns no name.
    """
    text = challenge_text(nonce, hello.node, hello.nonce, hello.portal_key)
    if hello.enrol_token:
        key = unhex(hello.public_key, KEY_BYTES)
        if key is None:
            raise AgentRefused("bad_key", "The public key must be 32 bytes in hex.")
        if not _tokens(hello, now).exists():
            raise _bad_token()
        if not _is_signed(key, hello.signature, text):
            raise _not_known("the token's key did not sign")
        return key
    return _stored_key(hello.node, hello.signature, text)


def prove_streams(hello: StreamHello, *, nonce: str) -> ProvenNode:
    """Check whose agent opens a socket for streams, or raise AgentRefused; changes nothing."""
    if unhex(hello.nonce, NONCE_BYTES) is None:
        raise AgentRefused("bad_nonce", "The agent's nonce must be 32 bytes in hex.")
    text = stream_text(
        nonce=nonce, agent_nonce=hello.nonce, node=hello.node, epoch=hello.epoch, portal_key=hello.portal_key
    )
    key = _stored_key(hello.node, hello.signature, text)
    ((pk, epoch, features),) = fetch(
        "SELECT id, epoch, features FROM fleet_node WHERE name = %s", [hello.node]
    )
    if hello.portal_key not in known_keys():
        raise AgentRefused("other_portal", "This agent was enrolled at a portal with another key.")
    if epoch != hello.epoch:
        raise AgentRefused("stale_epoch", "This node was enrolled anew. Connect again.")
    return ProvenNode(pk, hello.node, epoch, key, tuple(features or ()))


def _stored_key(node: str, signature: str, text: bytes) -> bytes:
    """Return the node's stored key, by which the text is signed, or raise AgentRefused."""
    found = fetch("SELECT public_key FROM fleet_node WHERE name = %s", [node])
    stored = found[0][0] if found else None
    is_signed = _is_signed(bytes(stored or _DECOY), signature, text)
    if stored is None or not is_signed:
        raise _not_known("no such node" if not found else "no key" if stored is None else "another key")
    return bytes(stored)


@transaction.atomic
def _admit(hello: Hello, key: bytes, now: datetime, handshake: Handshake) -> Admitted:
    """Store what a proven hello says. Locks the node's devices, then the node."""
    fetch(_LOCK_DEVICES, [hello.node])
    node = Node.objects.select_for_update().filter(name=hello.node).first()
    if node is None:
        raise _not_known("no such node")
    overtake(node, hello, now=now)
    if hello.enrol_token:
        if not _tokens(hello, now).update(used_at=now):
            raise _bad_token()
        if node.enrolled_at is not None and bytes(node.public_key or b"") != key:
            forget_acceptance(node)  # maybe another machine
        node.public_key, node.enrolled_at, node.epoch = key, now, node.epoch + 1
        node.key_changed_at, node.rotate_asked_at = now, None
    elif bytes(node.public_key or b"") != key:  # changed or forgotten since it was read
        raise _not_known("another key by now")
    if hello.boot_id != node.boot_id:
        node.boot_id, node.last_seq = hello.boot_id, -1
    node.agent_version, node.driver = hello.agent_version[:40], hello.driver[:40]
    node.driver_version = hello.driver_version[:40]
    node.cpu_milli, node.memory_mib = hello.cpu_milli, hello.memory_mib
    node.site, node.rack = hello.site or node.site, hello.rack or node.rack
    node.runtime, node.features = hello.runtime, [name[:40] for name in hello.features]
    node.save(update_fields=TOLD)
    waited = waiting_devices(node.pk)
    learn_devices(node, hello.devices, now=now)
    tell_waiting(node, waited, now=now)
    if not handshake.admit():
        raise AgentRefused("too_late", "The connection ended before this hello was taken. Connect again.")
    return Admitted(
        node_id=node.pk,
        name=node.name,
        epoch=node.epoch,
        public_key=key,
        features=frozenset(hello.features),
        is_blank=hello.last_epoch == 0,
        is_held=node.ahead_at is not None,
        seen_at=node.last_seen_at,
    )


def _tokens(hello: Hello, now: datetime) -> QuerySet[EnrolToken]:
    """Return the token of a hello where it is good."""
    return EnrolToken.objects.filter(
        node__name=hello.node,
        digest=digest_of(hello.enrol_token.partition(".")[0]),
        used_at=None,
        expires_at__gt=now,
    )


def _is_signed(key: bytes, told: str, text: bytes) -> bool:
    signature = unhex(told, 64) or bytes(64)
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _bad_token() -> AgentRefused:
    return AgentRefused(
        "bad_token", "This token was used, has expired or is for another node. Ask for a new one."
    )


def _not_known(why: str) -> AgentRefused:
    return AgentRefused(
        "bad_signature",
        "No node of this name is enrolled with this key. Ask an operator for an enrolment token.",
        why=why,
    )


def unhex(text: str, length: int) -> bytes | None:
    """Return the bytes of a hex text of this many bytes, None for anything else."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return raw if len(raw) == length else None
