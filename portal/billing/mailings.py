"""Reports that are sent to people by themselves: who gets which, when a month is due, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.accounts.selectors import may_enter
from portal.audit.services import record
from portal.billing.models import BillingPeriod, PeriodState, ReportMailing, ReportSending
from portal.billing.models_mailings import LAST_DAY
from portal.billing.periods import day_starts, period_of
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.retry import with_retries
from portal.notifications.models import Delivery
from portal.notifications.services import notify
from portal.teams.models import Role, Team
from portal.teams.selectors import SEES_TEAM, Rights, below

# A format as people choose it, and the kind of file that it is.
FORMATS: Final = {"pdf": "report.pdf", "xlsx": "lines.xlsx", "csv": "lines.csv", "focus": "focus.csv"}
KIND: Final = "report.mailed"
MOST_RECIPIENTS: Final = 50
MOST_MAILINGS: Final = 50  # of one team


@dataclass(frozen=True, slots=True)
class MailingWish:
    """What somebody wants to be sent; formats of ``FORMATS``, user names, ``day`` None for after each close."""

    day: int | None
    formats: Sequence[str]
    language: str
    recipients: Sequence[str]
    is_on: bool = True


def may_mail(rights: Rights, team: Team) -> bool:
    """Say whether this person has reports of a team sent: its admins and finance, or those above."""
    return rights.has(team, Role.ADMIN, Role.FINANCE)


def mailings_of(rights: Rights) -> QuerySet[ReportMailing]:
    """Return the mailings that this person may change."""
    teams = rights.teams_with((Role.ADMIN, Role.FINANCE))
    rows = ReportMailing.objects.filter(below(teams, "team__"))
    return rows.select_related("team", "made_by").prefetch_related("recipients")


def mailing_of(rights: Rights, key: int) -> ReportMailing:
    """Return a mailing that this person may change; raises NotFound."""
    found = mailings_of(rights).filter(pk=key).first()
    if found is None:
        raise NotFound
    return found


@transaction.atomic
def set_mailing(
    *, team: Team, wish: MailingWish, rights: Rights, now: datetime, mailing: ReportMailing | None = None
) -> ReportMailing:
    """Make a mailing of a team, or change one; raises Forbidden, Conflict, and Invalid naming the field."""
    if not may_mail(rights, team):
        raise Forbidden(_("An admin or finance of the team has its report sent."))
    people = _checked(wish, team)
    row = mailing or ReportMailing(team=team, made_by=rights.user, created_at=now)
    if mailing is None and ReportMailing.objects.filter(team=team).count() >= MOST_MAILINGS:
        raise Conflict(_("A team has at most %(n)d mailings. Remove one first.") % {"n": MOST_MAILINGS})
    row.day, row.language, row.is_on = wish.day, wish.language, wish.is_on
    row.formats = [name for name in FORMATS if name in wish.formats]
    row.save()
    row.recipients.set(people)
    record(
        rights.user, "mailing.changed" if mailing else "mailing.added", team.slug, at=now, team_id=team.pk,
        mailing=row.pk, day=row.day, formats=row.formats, language=row.language, is_on=row.is_on,
        recipients=sorted(user.username for user in people),
    )  # fmt: skip
    return row


@transaction.atomic
def remove_mailing(*, mailing: ReportMailing, rights: Rights, now: datetime) -> None:
    """Forget a mailing; what it has sent stays with those who got it."""
    record(
        rights.user, "mailing.removed", mailing.team.slug, at=now, team_id=mailing.team_id, mailing=mailing.pk
    )
    mailing.delete()


def _checked(wish: MailingWish, team: Team) -> list[User]:
    """Return the recipients of a wish; raises Invalid naming every field that cannot be used."""
    fields: dict[str, Any] = {}
    if wish.day is not None and not 1 <= wish.day <= LAST_DAY:
        fields["day"] = _("Choose a day from 1 to %(n)d, or after the close.") % {"n": LAST_DAY}
    if not wish.formats or not set(wish.formats) <= set(FORMATS):
        fields["formats"] = _("Choose one or more of: %(names)s.") % {"names": ", ".join(FORMATS)}
    if wish.language not in dict(settings.LANGUAGES):
        fields["language"] = _("Choose one of: %(names)s.") % {"names": ", ".join(dict(settings.LANGUAGES))}
    people = list(User.objects.filter(username__in=wish.recipients, is_active=True))
    unknown = set(wish.recipients) - {user.username for user in people}
    # Nobody learns from this who else there is: a stranger and nobody are named alike.
    unknown |= {user.username for user in people if not _may_read(user, team)}
    if not wish.recipients or len(set(wish.recipients)) > MOST_RECIPIENTS:
        fields["recipients"] = _("Name 1 to %(n)d people by their user names.") % {"n": MOST_RECIPIENTS}
    elif unknown:
        fields["recipients"] = _("Nobody of this name sees this team: %(names)s.") % {
            "names": ", ".join(sorted(unknown)[:10])
        }
    if fields:
        raise Invalid(fields=fields)
    return people


def _may_read(user: User, team: Team) -> bool:
    return may_enter(user) and Rights(user).has(team, *SEES_TEAM)


def send_due_reports(*, now: datetime) -> int:
    """Send each month that is due, once; returns how many were. Safe to repeat and to run in parallel."""
    sent = 0
    for mailing in ReportMailing.objects.filter(is_on=True).select_related("team"):
        period = _due(mailing, now)
        if period is not None and not mailing.sendings.filter(period=period).exists():
            sent += with_retries(lambda of=(mailing, period): _send(*of, now=now))  # type: ignore[misc]
    return sent


def _due(mailing: ReportMailing, now: datetime) -> BillingPeriod | None:
    """Return the month that a mailing sends now, None where it has to wait: nothing of before it was made."""
    if mailing.day is None:
        closed = BillingPeriod.objects.filter(state=PeriodState.CLOSED, closed_at__gte=mailing.created_at)
        return closed.order_by("-month").first()
    running = period_of(now)
    at = day_starts(running)[mailing.day - 1]
    if not mailing.created_at <= at <= now:
        return None
    return BillingPeriod.objects.filter(ends_at=running.starts_at).first()


@transaction.atomic
def _send(mailing: ReportMailing, period: BillingPeriod, *, now: datetime) -> bool:
    _row, is_first = ReportSending.objects.get_or_create(
        mailing=mailing, period=period, defaults={"sent_at": now}
    )
    if is_first:
        _tell(mailing, period, now)
    return is_first


@transaction.atomic
def send_report(*, mailing: ReportMailing, period: BillingPeriod, rights: Rights, now: datetime) -> None:
    """Send a month now, again where it was sent before."""
    ReportSending.objects.update_or_create(mailing=mailing, period=period, defaults={"sent_at": now})
    _tell(mailing, period, now)
    record(
        rights.user, "mailing.sent", mailing.team.slug, at=now, team_id=mailing.team_id, mailing=mailing.pk,
        month=str(period),
    )  # fmt: skip


def _tell(mailing: ReportMailing, period: BillingPeriod, now: datetime) -> None:
    """Tell those recipients who see the team at this moment."""
    people = [user for user in mailing.recipients.order_by("pk") if _may_read(user, mailing.team)]
    query = f"?{urlencode({'team': mailing.team.slug})}"
    notify(
        people, KIND, target=_target(mailing, period), at=now, is_news=True, month=str(period),
        team=mailing.team.slug, name=mailing.team.name, language=mailing.language,
        is_closed=period.state == PeriodState.CLOSED,
        files=[f"/api/v1/reports/{period}/files/{FORMATS[name]}/{query}" for name in mailing.formats],
    )  # fmt: skip


def _target(mailing: ReportMailing, period: BillingPeriod) -> str:
    return f"mailing#{mailing.pk}/{period}"


def deliveries_of(mailing: ReportMailing, *, most: int) -> list[Delivery]:
    """Return what went to contact points by a mailing, the newest first, with person and notification at hand."""
    rows = Delivery.objects.filter(
        notification__kind=KIND, notification__target__startswith=f"mailing#{mailing.pk}/"
    )
    return list(rows.select_related("contact__user", "notification").order_by("-pk")[:most])
