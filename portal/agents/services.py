"""Enrolment and proof of identity: what an agent must show before the portal believes it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from nodeagent.protocol.messages import Hello
from nodeagent.protocol.signing import challenge_text
from portal.accounts.models import User
from portal.accounts.services import digest_of
from portal.agents.errors import AgentRefused
from portal.agents.models import EnrolToken
from portal.audit.services import record
from portal.common.errors import Invalid
from portal.common.live import NODES, publish_on_commit
from portal.common.rows import fetch
from portal.fleet.models import Node
from portal.fleet.services import learn_devices

TOKEN_LIFE = timedelta(minutes=15)
KEY_BYTES = 32
# What a hello may change of its node; the rest belongs to operators, scheduler and reports.
TOLD = (
    "public_key", "enrolled_at", "key_changed_at", "rotate_asked_at", "epoch", "boot_id", "last_seq",
    "agent_version", "driver", "driver_version", "cpu_milli", "memory_mib", "site", "rack", "runtime",
    "features", "last_seen_at",
)  # fmt: skip
# Devices come before their node in every transaction; rows that only refer to a device never wait for this lock.
_LOCK_DEVICES = (
    "SELECT d.id FROM fleet_device d JOIN fleet_node n ON n.id = d.node_id WHERE n.name = %s"
    " ORDER BY d.id FOR NO KEY UPDATE OF d"
)


@dataclass(frozen=True, slots=True)
class NewEnrolment:
    """A node and the secret that enrols its agent once."""

    node: Node
    secret: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """An agent that proved who it is, by which key, and what it understands beside version 1 of the protocol.

    ``is_blank``: its journal knows of no earlier connection. ``seen_at`` is when the node was heard before.
    """

    node_id: int
    name: str
    epoch: int
    public_key: bytes
    features: frozenset[str]
    is_blank: bool
    seen_at: datetime | None


@transaction.atomic
def create_enrol_token(
    *, node_name: str, actor: User | None, now: datetime, life: timedelta = TOKEN_LIFE
) -> NewEnrolment:
    """Make the node on first sight and a one-time token for its agent; older unused tokens end."""
    try:
        validate_slug(node_name)
    except ValidationError as error:
        raise Invalid(fields={"name": _("Use letters, digits and dashes only.")}) from error
    if len(node_name) > 60:
        raise Invalid(fields={"name": _("At most 60 characters.")})
    node, _created = Node.objects.get_or_create(name=node_name, defaults={"created_at": now})
    node.enrol_tokens.filter(used_at=None, expires_at__gt=now).update(expires_at=now)
    secret = "enr_" + secrets.token_urlsafe(32)
    EnrolToken.objects.create(node=node, digest=digest_of(secret), created_at=now, expires_at=now + life)
    record(actor, "node.enrolment_prepared", node.name, at=now)
    return NewEnrolment(node, secret)


@transaction.atomic
def revoke_node(*, node: Node, actor: User, now: datetime) -> None:
    """Forget the node's key: its agent is turned away at once. What runs there goes on, unheard, until its end."""
    Node.objects.filter(pk=node.pk).update(
        public_key=None, key_changed_at=None, rotate_asked_at=None, epoch=F("epoch") + 1
    )
    record(actor, "node.revoked", node.name, at=now)
    publish_on_commit(NODES, [node.name])


@transaction.atomic
def admit(hello: Hello, *, nonce: str, now: datetime) -> Admitted:
    """Check who is calling and store its inventory, or raise AgentRefused.

    With a token the key is stored and the token consumed in one step; without, the signature must
    be by the key stored at enrolment. Locks the node's devices, then the node. That a blank agent was
    heard is left to whoever settles what it forgot: until then its leases' clocks stop at the word before.
    """
    fetch(_LOCK_DEVICES, [hello.node])
    node = Node.objects.select_for_update().filter(name=hello.node).first()
    if node is None:
        raise AgentRefused("unknown_node", "No node of this name. Ask an operator for an enrolment token.")
    if hello.enrol_token:
        key = _consume_token(node, hello, now)
        node.public_key, node.enrolled_at, node.epoch = key, now, node.epoch + 1
        node.key_changed_at, node.rotate_asked_at = now, None
    if not node.public_key:
        raise AgentRefused(
            "not_enrolled", "This node has no key yet. Start the agent with an enrolment token."
        )
    _verify(bytes(node.public_key), hello, nonce)
    seen_at = node.last_seen_at
    if hello.boot_id != node.boot_id:
        node.boot_id, node.last_seq = hello.boot_id, -1
    node.agent_version, node.driver = hello.agent_version[:40], hello.driver[:40]
    node.driver_version = hello.driver_version[:40]
    node.cpu_milli, node.memory_mib = hello.cpu_milli, hello.memory_mib
    node.site, node.rack = hello.site or node.site, hello.rack or node.rack
    node.runtime, node.features = hello.runtime, [name[:40] for name in hello.features]
    is_blank = hello.last_epoch == 0
    node.last_seen_at = seen_at if is_blank else now
    node.save(update_fields=TOLD)
    learn_devices(node, hello.devices, now=now)
    return Admitted(
        node_id=node.pk,
        name=node.name,
        epoch=node.epoch,
        public_key=bytes(node.public_key),
        features=frozenset(hello.features),
        is_blank=is_blank,
        seen_at=seen_at,
    )


def _consume_token(node: Node, hello: Hello, now: datetime) -> bytes:
    key = unhex(hello.public_key, KEY_BYTES)
    if key is None:
        raise AgentRefused("bad_key", "The public key must be 32 bytes in hex.")
    taken = EnrolToken.objects.filter(
        node=node, digest=digest_of(hello.enrol_token), used_at=None, expires_at__gt=now
    ).update(used_at=now)
    if not taken:
        raise AgentRefused(
            "bad_token", "This token was used, has expired or is for another node. Ask for a new one."
        )
    return key


def _verify(key: bytes, hello: Hello, nonce: str) -> None:
    signature = unhex(hello.signature, 64) or b""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, challenge_text(nonce, hello.node))
    except InvalidSignature as error:
        raise AgentRefused(
            "bad_signature", "This is not the key the node enrolled with. Enrol the node again."
        ) from error


def unhex(text: str, length: int) -> bytes | None:
    """Return the bytes of a hex text of this many bytes, None for anything else."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        return None
    return raw if len(raw) == length else None
