"""Tickets: made by the portal for a person it knows, taken once by a gateway that needs no cookie."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.services import digest_of
from portal.agents.features import serves_streams
from portal.common.errors import Conflict, Forbidden
from portal.common.sql import fetch
from portal.gateway import app_hosts
from portal.gateway.models import StreamTicket
from portal.gateway.sharing import may_watch
from portal.leases.models import Lease
from portal.leases.states import LeaseState

GOOD_FOR: Final = timedelta(seconds=30)
KEPT_FOR: Final = timedelta(hours=1)
# What a ticket for SSH opens, in the place of an app's name; no app has a capital.
SSH_APP: Final = "SSH"
# And one for watching the terminals of somebody else's lease.
WATCH_APP: Final = "WATCH"


@dataclass(frozen=True, slots=True)
class TakenTicket:
    """What a ticket was made for."""

    user_id: int
    lease_id: int
    generation: int
    session_key: str
    token_id: int
    origin: str
    app: str = ""


def _not_active(lease: Lease) -> str:
    """Return why nothing opens in a lease that is not active, and what to do."""
    if lease.state in (LeaseState.BOOKED, LeaseState.PREPARING):
        return _("The lease is not active yet. It can be opened as soon as it is.")
    if lease.state == LeaseState.INTERRUPTED:
        return _("The node of this lease is silent. What it runs can be reached again when the node is back.")
    return _("The lease is over, and nothing in it can be opened any more. Ask for another one.")


def why_no_terminal(lease: Lease, user: User) -> Conflict | Forbidden | None:
    """Return why this person opens no terminal in a lease that they see, None where they may."""
    if lease.user_id != user.pk:
        return Forbidden(_("Only its holder opens a terminal in a lease."))
    if lease.state != LeaseState.ACTIVE:
        return Conflict(_not_active(lease))
    if not settings.GATEWAYS:
        return Conflict(_("This installation has no gateway, so there are no terminals. Ask an operator."))
    if not serves_streams(lease.node):
        return Conflict(_("The node of this lease serves no terminals. Ask an operator."))
    return None


def why_no_ssh(lease: Lease, user: User) -> Conflict | Forbidden | None:
    """Return why this person does not connect to a lease that they see by SSH, None where they may."""
    if lease.user_id != user.pk:
        return Forbidden(_("Only its holder connects to a lease by SSH."))
    if lease.state != LeaseState.ACTIVE:
        return Conflict(_not_active(lease))
    if not settings.GATEWAYS:
        return Conflict(_("This installation has no gateway, so there is no SSH. Ask an operator."))
    if not serves_streams(lease.node):
        return Conflict(_("The node of this lease serves no SSH. Ask an operator."))
    return None


def why_not_watched(lease: Lease, user: User) -> Conflict | Forbidden | None:
    """Return why this person does not watch the terminals of a lease that they see, None where they may."""
    if not may_watch(lease, user):
        return Forbidden(_("The holder of this lease does not share its terminals with you now."))
    if not settings.GATEWAYS:
        return Conflict(_("This installation has no gateway, so there are no terminals. Ask an operator."))
    return None


def why_no_app(lease: Lease, user: User, *, host: str) -> Conflict | Forbidden | None:
    """Return why this person opens no app in a lease that they see, None where they may.

    ``host``: the portal's name, as they called it.
    """
    if lease.user_id != user.pk:
        return Forbidden(_("Only its holder opens apps in a lease."))
    if lease.state != LeaseState.ACTIVE:
        return Conflict(_not_active(lease))
    if not settings.GATEWAYS or not settings.APPS_DOMAIN:
        return Conflict(_("This installation has no domain for apps. Ask an operator."))
    if not app_hosts.is_reachable(host):
        return Conflict(
            _(
                "Apps open only in a browser on the portal's own machine here. Use a terminal, or ask an operator."
            )
        )
    if not serves_streams(lease.node):
        return Conflict(_("The node of this lease serves no apps. Ask an operator."))
    return None


@transaction.atomic
def make_ticket(
    lease: Lease,
    user: User,
    *,
    session_key: str = "",
    token_id: int = 0,
    origin: str = "",
    app: str = "",
    host: str = "",
    now: datetime,
) -> str:
    """Return the secret of a ticket for a terminal, SSH, or an app of somebody who called the portal by ``host``.

    Raises Conflict or Forbidden where there may be none.
    """
    if app == SSH_APP:
        refusal = why_no_ssh(lease, user)
    elif app == WATCH_APP:
        refusal = why_not_watched(lease, user)
    else:
        refusal = why_no_app(lease, user, host=host) if app else why_no_terminal(lease, user)
    if refusal is not None:
        raise refusal
    StreamTicket.objects.filter(expires_at__lt=now - KEPT_FOR).delete()
    secret = secrets.token_urlsafe(32)
    StreamTicket.objects.create(
        digest=digest_of(secret),
        user=user,
        lease=lease,
        generation=lease.generation,
        session_key=session_key,
        token_id=token_id,
        origin=origin[:300],
        app=app,
        expires_at=now + GOOD_FOR,
    )
    return secret


def take_ticket(secret: str, *, now: datetime) -> TakenTicket | None:
    """Return what a ticket is for and spend it; None for one that is spent, too old or was never made."""
    rows = fetch(
        "UPDATE gateway_streamticket SET used_at = %s WHERE digest = %s AND used_at IS NULL AND expires_at > %s"
        " RETURNING user_id, lease_id, generation, session_key, token_id, origin, app",
        [now, digest_of(secret), now],
    )
    return TakenTicket(*rows[0]) if rows else None


def enter_address(
    lease: Lease,
    user: User,
    *,
    app: str,
    session_key: str = "",
    token_id: int = 0,
    origin: str,
    is_secure: bool,
    now: datetime,
) -> str:
    """Return the address that opens an app, good once and for half a minute; raises Conflict or Forbidden.

    ``origin`` is that of the portal, as the person called it.
    """
    secret = make_ticket(
        lease,
        user,
        session_key=session_key,
        token_id=token_id,
        origin=origin,
        app=app,
        host=urlsplit(origin).netloc,
        now=now,
    )
    return f"{app_hosts.origin(app, lease.uid, is_secure=is_secure)}{app_hosts.ENTER_PATH}?t={secret}"
