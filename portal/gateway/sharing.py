"""Whom the holder of a lease lets watch its terminals: one member of its team, or all of them. Nobody types there."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.gateway.models import TerminalShare
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from portal.notifications.services import notify
from portal.teams.models import Membership

MOST_SHARES: Final = 20


def members_to_choose(lease: Lease) -> QuerySet[User]:
    """Return the members of a lease's team, and of those above it, without its holder."""
    held = Membership.objects.filter(team_id__in=lease.team.lineage).values("user")
    return User.objects.filter(pk__in=held, is_active=True).exclude(pk=lease.user_id).order_by("username")


def shares_of(lease: Lease) -> QuerySet[TerminalShare]:
    """Return who may watch, the earliest first; the person is at hand, None is the whole team."""
    return TerminalShare.objects.filter(lease=lease).select_related("user").order_by("id")


def may_watch(lease: Lease, user: User) -> bool:
    """Say whether the holder of a lease that this person sees lets them watch its terminals now."""
    if lease.user_id == user.pk or lease.state != LeaseState.ACTIVE:
        return False
    if not members_to_choose(lease).filter(pk=user.pk).exists():
        return False
    return TerminalShare.objects.filter(Q(user=user) | Q(user=None), lease=lease).exists()


@transaction.atomic
def share_terminals(*, lease: Lease, actor: User, user: User | None, now: datetime) -> TerminalShare:
    """Let a member of the lease's team watch its terminals, or with None all of them. Safe to repeat.

    Raises Forbidden for whoever does not hold it, Conflict when it is not active or for one too many, Invalid for
    somebody else's member. Locks the lease.
    """
    _require_holder(lease, actor)
    locked = Lease.objects.select_for_update(of=("self",)).select_related("team").get(pk=lease.pk)
    if locked.state != LeaseState.ACTIVE:
        raise Conflict(_("Terminals are shared while the lease is active."))
    if user is not None and not members_to_choose(locked).filter(pk=user.pk).exists():
        raise Invalid(fields={"user": _("Choose a member of the team of this lease.")})
    there = TerminalShare.objects.filter(lease=locked, user=user).first()
    if there is not None:
        return there
    TerminalShare.objects.filter(lease__state=LeaseState.ENDED).delete()
    if TerminalShare.objects.filter(lease=locked).count() >= MOST_SHARES:
        raise Conflict(_("%(n)d may watch, the most there can be. Take one back first.") % {"n": MOST_SHARES})
    made = TerminalShare.objects.create(lease=locked, user=user, created_at=now)
    whom = user.username if user else ""
    record(actor, "terminal.shared", lease.uid, at=now, team_id=lease.team_id, user=whom)
    if user is not None:  # once for each lease: sharing again and again disturbs nobody
        notify([user], "terminal.shared", target=lease.uid, at=now, by=str(actor))
    return made


@transaction.atomic
def unshare_terminals(*, lease: Lease, actor: User, key: int, now: datetime) -> None:
    """Let somebody watch no more: what they have open ends within a second. Raises Forbidden or NotFound."""
    _require_holder(lease, actor)
    row = TerminalShare.objects.select_related("user").filter(lease=lease, pk=key).first()
    if row is None:
        raise NotFound
    row.delete()
    whom = row.user.username if row.user else ""
    record(actor, "terminal.unshared", lease.uid, at=now, team_id=lease.team_id, user=whom)


def _require_holder(lease: Lease, actor: User) -> None:
    if lease.user_id != actor.pk:
        raise Forbidden(_("Only its holder shares the terminals of a lease."))
