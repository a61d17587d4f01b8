"""Deputies: who decides on requests in an approver's place while they are away; both are told of begin and end."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import entering
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.notifications.models import Notification
from portal.notifications.services import notify
from portal.teams.models import MOST_DELEGATED, Delegation, Membership
from portal.teams.selectors import DECIDES, Rights

FURTHEST: Final = timedelta(days=366)
MOST_REASON: Final = 300
BEGUN: Final = "delegation.begun"
ENDED: Final = "delegation.ended"
# What began or ended longer ago is no news.
TOLD_WITHIN: Final = timedelta(days=7)
MOST_TOLD: Final = 500


@transaction.atomic
def name_deputy(
    *, rights: Rights, deputy: str, starts_at: datetime | None, ends_at: datetime, reason: str, now: datetime
) -> Delegation:
    """Let somebody decide in one's own place from ``starts_at`` (None: now) until ``ends_at``.

    Raises Forbidden for whoever decides nowhere by a role of their own, Invalid naming each field, and Conflict where
    another deputy is named for a part of that time.
    """
    if not rights.has_anywhere(*DECIDES):
        raise Forbidden(_("Only approvers and team admins name a deputy."))
    begins, why = starts_at or now, reason.strip()
    person = User.objects.filter(entering(), username=deputy).first()
    fields: dict[str, str] = {}
    if person is None or not Membership.objects.filter(user=person).exists():
        fields["deputy"] = _("Nobody with this user name has a role here.")
    elif person.pk == rights.user.pk:
        fields["deputy"] = _("Choose somebody else than yourself.")
    if not now <= begins <= now + FURTHEST:
        fields["starts_at"] = _("Choose a time from now on, within a year.")
    if not begins < ends_at <= begins + MOST_DELEGATED:
        fields["ends_at"] = _("Choose an end after the beginning, at most %(n)d days later.") % {
            "n": MOST_DELEGATED.days
        }
    if not why or len(why) > MOST_REASON or not why.isprintable():
        fields["reason"] = _("Write in one line why, at most %(n)d characters.") % {"n": MOST_REASON}
    if fields or person is None:
        raise Invalid(fields=fields)
    try:
        with transaction.atomic():
            made = Delegation.objects.create(
                delegator=rights.user, deputy=person, reason=why, starts_at=begins, ends_at=ends_at, created_at=now
            )  # fmt: skip
    except IntegrityError as error:
        if "delegation_to_one_at_a_time" not in str(error):
            raise
        raise Conflict(
            _("You have a deputy for a part of that time. End that first, or choose another time.")
        ) from error
    record(
        rights.user, "delegation.made", person.username, at=now,
        starts_at=begins.isoformat(), until=ends_at.isoformat(), reason=why,
    )  # fmt: skip
    if begins <= now:
        _tell_of_begin(made, at=now)
    return made


@transaction.atomic
def end_delegation(*, pk: int, rights: Rights, now: datetime) -> Delegation:
    """End a delegation before its time; either of both may. Safe to repeat. Raises NotFound, and Conflict once over."""
    found = visible_delegations(rights).select_for_update(of=("self",)).filter(pk=pk).first()
    if found is None:
        raise NotFound
    if found.ended_at is not None:
        return found
    if found.ends_at <= now:
        raise Conflict(_("This delegation is over already."))
    found.ended_at, found.ended_by = now, rights.user
    found.save(update_fields=["ended_at", "ended_by"])
    record(
        rights.user, "delegation.ended", found.deputy.username, at=now, delegator=found.delegator.username
    )  # fmt: skip
    _tell_of_end(found, at=now)
    return found


def visible_delegations(rights: Rights) -> QuerySet[Delegation]:
    """Return the delegations of which this person is one side, the newest first."""
    rows = Delegation.objects.filter(Q(delegator=rights.user) | Q(deputy=rights.user))
    return rows.select_related("delegator", "deputy", "ended_by")


def tell_of_delegations(*, now: datetime) -> int:
    """Tell both sides of delegations that have begun or ended by the clock; return how many. Safe to repeat."""
    since = now - TOLD_WITHIN
    begun = Delegation.objects.filter(starts_at__gt=since, starts_at__lte=now, ended_at=None, ends_at__gt=now)
    over = Delegation.objects.filter(ends_at__gt=since, ends_at__lte=now, ended_at=None)
    told = 0
    for kind, rows, tell in ((BEGUN, begun, _tell_of_begin), (ENDED, over, _tell_of_end)):
        found = list(rows.select_related("delegator", "deputy")[:MOST_TOLD])
        known = set(
            Notification.objects.filter(kind=kind, target__in=[_target(row) for row in found]).values_list(
                "target", flat=True
            )
        )
        untold = [row for row in found if _target(row) not in known]
        for row in untold:
            tell(row, at=now)
        told += len(untold)
    return told


def _target(row: Delegation) -> str:
    return f"delegation-{row.pk}"


def _tell_of_begin(row: Delegation, *, at: datetime) -> None:
    notify(
        [row.delegator, row.deputy], BEGUN, target=_target(row), at=at,
        delegator=str(row.delegator), deputy=str(row.deputy), ends_at=row.ends_at.isoformat(), reason=row.reason,
    )  # fmt: skip


def _tell_of_end(row: Delegation, *, at: datetime) -> None:
    by: dict[str, Any] = {"by": str(row.ended_by)} if row.ended_by else {}
    notify(
        [row.delegator, row.deputy], ENDED, target=_target(row), at=at,
        delegator=str(row.delegator), deputy=str(row.deputy), **by,
    )  # fmt: skip
