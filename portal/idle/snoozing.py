"""Who holds an idle lease may put off what is coming: with a reason, as often and for as long as the rule allows."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.fleet.services import raise_revision
from portal.idle.models import IDLE, IdleAction, IdleSnooze, IdleStanding
from portal.idle.rules import idle_rules, rule_for
from portal.idle.sweeping import takes_back
from portal.leases.models import Lease
from portal.leases.selectors import may_manage_lease
from portal.leases.transitions import announce, lock_leases
from portal.teams.selectors import Rights

MOST_REASON = 300


def snoozes_left(lease: Lease) -> tuple[int, int]:
    """Return how often a lease's holder may still put it off, and for how many minutes each."""
    rule = rule_for(lease, idle_rules())
    if rule is None or rule.then == IdleAction.NOTHING:
        return 0, 0
    return max(0, rule.snoozes - IdleSnooze.objects.filter(lease=lease).count()), rule.snooze_min


@transaction.atomic
def snooze(*, lease: Lease, actor: User, rights: Rights, reason: str, now: datetime) -> IdleStanding:
    """Put off what an idle lease has coming, by the time its rule gives; counted for the life of the lease.

    Its holder, admins of its team and operators. Raises Forbidden, Invalid, or Conflict where it does not idle, no
    rule does anything, it is put off already, or it was put off as often as the rule allows. Locks the lease.
    """
    if not may_manage_lease(rights, lease):
        raise Forbidden(_("Only its holder, a team admin or an operator may do that."))
    reason = " ".join(reason.split())
    if not 3 <= len(reason) <= MOST_REASON or not reason.isprintable():
        raise Invalid(
            fields={
                "reason": _("Say in 3 to %(most)d characters what it is kept for.") % {"most": MOST_REASON}
            }
        )
    (locked,) = lock_leases([lease.pk])
    row = IdleStanding.objects.select_for_update().filter(pk=locked.pk, state__in=IDLE).first()
    rule = rule_for(locked, idle_rules())
    if row is None or rule is None or rule.then == IdleAction.NOTHING:
        raise Conflict(_("Nothing is coming for this lease: there is nothing to put off."))
    if locked.ended_at is not None:
        raise Conflict(_("This lease has ended."))
    if row.snoozed_until is not None and row.snoozed_until > now:
        raise Conflict(_("It is put off already."), snoozed_until=row.snoozed_until.isoformat())
    count = IdleSnooze.objects.filter(lease=locked).count()
    if count >= rule.snoozes:
        raise Conflict(
            _("It was put off %(n)d times, as often as its rule allows. Use it, or save your work.")
            % {"n": count}
        )
    until = now + timedelta(minutes=rule.snooze_min)
    IdleSnooze.objects.create(lease=locked, ordinal=count + 1, by=actor, at=now, until=until, reason=reason)
    takes = rule.then == IdleAction.RECLAIM and takes_back(locked)
    row.snoozed_until, row.warned_at = until, None
    row.reclaim_at = until + timedelta(minutes=rule.grace_min) if takes else None
    row.then = rule.then
    row.save(update_fields=["snoozed_until", "warned_at", "reclaim_at", "then"])
    record(
        actor, "lease.idle_snoozed", locked.uid, at=now, team_id=locked.team_id,
        until=until.isoformat(), ordinal=count + 1, reason=reason,
    )  # fmt: skip
    if locked.must_go_for == "idle":
        locked.preempt_at = None
        locked.save(update_fields=["preempt_at"])
        raise_revision([locked.node_id])
        announce([locked], at=now)
    return row
