"""Closing a month: usage metered to its last second, one invoice per team, then nothing changes any more."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine, PeriodState, UsageRecord
from portal.billing.selectors import currency, draft_lines
from portal.common.errors import Conflict, PeriodClosed
from portal.common.failpoints import failpoint
from portal.teams.models import Team


def close_period(*, period: BillingPeriod, actor: User | None, now: datetime) -> list[Invoice]:
    """Meter, invoice and freeze a month that is over; all of it or nothing.

    Raises Conflict while the month still runs, PeriodClosed when it is closed already.
    """
    if period.ends_at > now:
        raise Conflict(_("This month is not over yet. Close it after its last second."))
    meter_all(now=now)
    return _close(period.pk, actor, now)


@transaction.atomic
def _close(period_id: int, actor: User | None, now: datetime) -> list[Invoice]:
    period = BillingPeriod.objects.select_for_update().get(pk=period_id)
    if period.state == PeriodState.CLOSED:
        raise PeriodClosed
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSING)
    teams = Team.objects.filter(pk__in=UsageRecord.objects.filter(period=period).values("team_id")).order_by(
        "slug"
    )
    invoices = [_issue(team, period, number, now) for number, team in enumerate(teams, start=1)]
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSED, closed_at=now)
    record(actor, "period.closed", str(period), at=now, invoices=len(invoices))
    failpoint("close.before_commit")
    return invoices


def _issue(team: Team, period: BillingPeriod, number: int, now: datetime) -> Invoice:
    usage = UsageRecord.objects.filter(team=team, period=period)
    records = list(
        usage.select_related("lease__user", "lease__flavor__device_model").order_by("lease_id", "span")
    )
    invoice = Invoice.objects.create(
        period=period, team=team, team_name=team.name, cost_centre=team.cost_centre, currency=currency()
    )
    total = 0
    for view, rows in draft_lines(records):
        line = InvoiceLine.objects.create(
            invoice=invoice,
            position=view.position,
            person=view.person,
            flavor=view.flavor,
            device_model=view.device_model,
            micro_per_hour=view.micro_per_hour,
            lease_count=view.lease_count,
            seconds=view.seconds,
            share_milli_seconds=view.share_milli_seconds,
            amount_micro=view.amount_micro,
        )
        UsageRecord.objects.filter(pk__in=[r.pk for r in rows]).update(line=line)
        total += view.amount_micro
    Invoice.objects.filter(pk=invoice.pk).update(
        total_micro=total, is_issued=True, issued_at=now, number=f"{period.starts_at:%Y%m}-{number:04d}"
    )
    invoice.refresh_from_db()
    failpoint("close.team_issued")
    return invoice
