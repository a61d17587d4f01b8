"""Impersonation: an operator sees the portal as somebody does, reading only. The person is told afterwards."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import LONGEST_IMPERSONATION, Impersonation, User
from portal.accounts.selectors import entering, may_enter
from portal.audit.services import record
from portal.common.errors import Forbidden, Invalid
from portal.notifications.services import notify
from portal.teams.models import Role
from portal.teams.selectors import Rights

MOST_REASON: Final = 300
ENDED: Final = "account.seen_as"


@transaction.atomic
def begin_impersonation(*, rights: Rights, username: str, reason: str, now: datetime) -> Impersonation:
    """Let an operator see the portal as somebody for half an hour; one that they had open before ends.

    Raises Forbidden for everybody else, and Invalid naming the field: never as an operator, or as finance of the
    organisation, who may do what an operator may not.
    """
    if not rights.is_operator:
        raise Forbidden(_("Only operators see the portal as somebody else."))
    why, person = reason.strip(), User.objects.filter(entering(), username=username).first()
    fields: dict[str, str] = {}
    if person is None:
        fields["username"] = _("Nobody has this user name.")
    elif not may_be_seen_as(person):
        fields["username"] = _("Nobody sees the portal as an operator or as finance of the organisation.")
    if not why or len(why) > MOST_REASON or not why.isprintable():
        fields["reason"] = _("Write in one line why, at most %(n)d characters.") % {"n": MOST_REASON}
    if fields or person is None:
        raise Invalid(fields=fields)
    for row in Impersonation.objects.select_for_update().filter(operator=rights.user, ended_at=None):
        end_impersonation(row, now=now)
    made = Impersonation.objects.create(
        operator=rights.user, person=person, reason=why, began_at=now, ends_at=now + LONGEST_IMPERSONATION
    )
    record(
        rights.user,
        "impersonation.begun",
        person.username,
        at=now,
        reason=why,
        until=made.ends_at.isoformat(),
    )
    return made


def may_be_seen_as(person: User) -> bool:
    """Say whether an operator may see the portal as this person."""
    rights = Rights(person)
    return may_enter(person) and not rights.has_anywhere(Role.OPERATOR) and not rights.is_finance


def running_impersonation(key: int, operator: User, *, now: datetime) -> Impersonation | None:
    """Return the impersonation with this key while it lasts and both are still who they were; None otherwise."""
    row = (
        Impersonation.objects.select_related("person", "operator")
        .filter(pk=key, operator_id=operator.pk, ended_at=None, ends_at__gt=now)
        .first()
    )
    if row is None or not Rights(row.operator).is_operator or not may_be_seen_as(row.person):
        return None
    return row


@transaction.atomic
def end_impersonation(row: Impersonation, *, now: datetime) -> bool:
    """End an impersonation, write it down and tell the person; False when that was done before. Safe to repeat."""
    end = min(now, row.ends_at)
    if not Impersonation.objects.filter(pk=row.pk, ended_at=None).update(ended_at=end):
        return False
    record(row.operator, "impersonation.ended", row.person.username, at=now, reason=row.reason)
    notify(
        [row.person], ENDED, target=f"impersonation-{row.pk}", at=now,
        by=str(row.operator), reason=row.reason, began_at=row.began_at.isoformat(), ended_at=end.isoformat(),
    )  # fmt: skip
    return True


def end_overdue(*, now: datetime) -> int:
    """End what has lasted its half hour and was not left; returns how many. Safe to repeat."""
    due = Impersonation.objects.filter(ended_at=None, ends_at__lte=now)
    return sum(end_impersonation(row, now=now) for row in due.select_related("person", "operator"))
