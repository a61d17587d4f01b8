"""Enrolment: the one-time token with which a node's agent introduces its key, and forgetting the key."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.services import digest_of
from portal.agents.models import EnrolToken
from portal.agents.portal_key import public_key
from portal.audit.services import record
from portal.common.errors import Invalid
from portal.common.live import NODES, publish_on_commit
from portal.fleet.models import Node

TOKEN_LIFE = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class NewEnrolment:
    """A node and the secret that enrols its agent once."""

    node: Node
    secret: str


@transaction.atomic
def create_enrol_token(
    *, node_name: str, actor: User | None, now: datetime, life: timedelta = TOKEN_LIFE
) -> NewEnrolment:
    """Make the node on first sight and a one-time token for its agent; older unused tokens end.

    Behind a dot the token names the portal's public key: the agent obeys no other portal from then on.
    """
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
    portal_key = public_key()
    return NewEnrolment(node, f"{secret}.{portal_key}" if portal_key else secret)


@transaction.atomic
def revoke_node(*, node: Node, actor: User, now: datetime) -> None:
    """Forget the node's key: its agent is turned away at once. What runs there goes on, unheard, until its end."""
    Node.objects.filter(pk=node.pk).update(
        public_key=None, key_changed_at=None, rotate_asked_at=None, epoch=F("epoch") + 1
    )
    record(actor, "node.revoked", node.name, at=now)
    publish_on_commit(NODES, [node.name])
