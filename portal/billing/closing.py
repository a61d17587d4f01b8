"""Closing a month: usage metered to its last second, one invoice per team, then nothing changes any more."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.checklist import close_items
from portal.billing.metering import meter_all
from portal.billing.models import BillingPeriod, Invoice, InvoiceLine, PeriodState, UsageRecord
from portal.billing.periods import lock_books
from portal.billing.selectors import draft_lines
from portal.common.errors import Conflict, PeriodClosed
from portal.common.failpoints import failpoint
from portal.common.retry import with_retries
from portal.teams.models import Team


def close_period(*, period: BillingPeriod, actor: User | None, now: datetime) -> list[Invoice]:
    """Meter, invoice and freeze a month that is over; all of it or nothing.

    Raises Conflict with every must of ``close_items`` that is not met, PeriodClosed when it is closed already.
    Waits for transactions that write events of leases, and keeps new ones waiting until it is through.
    """
    if period.state != PeriodState.CLOSED and period.ends_at <= now:
        meter_all(now=now)
    return with_retries(lambda: _close(period.pk, actor, now))


@transaction.atomic
def _close(period_id: int, actor: User | None, now: datetime) -> list[Invoice]:
    lock_books()
    period = BillingPeriod.objects.select_for_update().get(pk=period_id)
    if period.state == PeriodState.CLOSED:
        raise PeriodClosed
    if period.ends_at > now:
        raise Conflict(_("This month is not over yet. Close it after its last second."), unmet="over")
    unmet = [item for item in close_items(period, now=now) if item.must and not item.is_met]
    if unmet:
        said = " ".join(item.sentence for item in unmet)
        raise Conflict(
            _("This month cannot be closed yet. %(why)s") % {"why": said},
            unmet=" ".join(item.code for item in unmet),
        )
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSING)
    billed = (
        UsageRecord.objects.filter(period=period).order_by().values_list("team_id", "currency").distinct()
    )
    teams = Team.objects.in_bulk({team_id for team_id, _currency in billed})
    ordered = sorted(billed, key=lambda row: (teams[row[0]].slug, row[1]))
    invoices = [
        _issue(teams[team_id], unit, period, number, now)
        for number, (team_id, unit) in enumerate(ordered, start=1)
    ]
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSED, closed_at=now)
    record(actor, "period.closed", str(period), at=now, invoices=len(invoices))
    failpoint("close.before_commit")
    return invoices


def _issue(team: Team, unit: str, period: BillingPeriod, number: int, now: datetime) -> Invoice:
    usage = UsageRecord.objects.filter(team=team, period=period, currency=unit)
    records = list(
        usage.select_related("lease__user", "lease__flavor__device_model", "late_for").order_by(
            "lease_id", "span"
        )
    )
    invoice = Invoice.objects.create(
        period=period, team=team, team_name=team.name, cost_centre=team.cost_centre, currency=unit
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
            late_for=rows[0].late_for,
        )
        UsageRecord.objects.filter(pk__in=[r.pk for r in rows]).update(line=line)
        total += view.amount_micro
    Invoice.objects.filter(pk=invoice.pk).update(
        total_micro=total, is_issued=True, issued_at=now, number=f"{period.starts_at:%Y%m}-{number:04d}"
    )
    invoice.refresh_from_db()
    failpoint("close.team_issued")
    return invoice
