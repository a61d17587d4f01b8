"""Closing a month: usage metered to its last second, one invoice per team, then nothing changes any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.checklist import close_items
from portal.billing.electricity import complete_at, post_electricity
from portal.billing.external_lines import external_usage, line_of_external
from portal.billing.line_labels import labels_of_totals
from portal.billing.metering import meter_all
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    Invoice,
    InvoiceLine,
    InvoiceNote,
    PeriodState,
    UsageTotal,
)
from portal.billing.notes import draft_notes, line_of_note
from portal.billing.periods import lock_books
from portal.billing.rehearsal import require_seen
from portal.billing.selectors import draft_lines
from portal.common.errors import Conflict, PeriodClosed
from portal.common.failpoints import failpoint
from portal.common.retry import with_retries
from portal.common.sql import execute
from portal.notifications.services import notify
from portal.teams.models import Membership, Role

PATIENCE = (
    "5min"  # of each look at a month that may have millions of records; nobody waits for it in a page's time
)


def close_period(
    *, period: BillingPeriod, actor: User | None, seen: str = "", now: datetime
) -> list[Invoice]:
    """Meter, invoice and freeze a month that is over, its electricity with it; all of it or nothing.

    ``seen`` is what a rehearsal said that the month comes to, "" for whatever it does. Raises Conflict with every must
    of ``close_items`` that is not met, and where it comes to something else; PeriodClosed when it is closed already.
    Waits for transactions that write events of leases, and keeps new ones waiting until it is through.
    """
    if period.state != PeriodState.CLOSED and period.ends_at <= now:
        meter_all(now=now)
        if period.state == PeriodState.OPEN and complete_at(period) <= now:
            with_retries(lambda: post_electricity(period, now=now))
    return with_retries(lambda: _close(period.pk, actor, seen, now))


@transaction.atomic
def _close(period_id: int, actor: User | None, seen: str, now: datetime) -> list[Invoice]:
    lock_books()
    period = BillingPeriod.objects.select_for_update().get(pk=period_id)
    if period.state == PeriodState.CLOSED:
        raise PeriodClosed
    execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
    if period.ends_at > now:
        raise Conflict(_("This month is not over yet. Close it after its last second."), unmet="over")
    unmet = [item for item in close_items(period, now=now, is_closing=True) if item.must and not item.is_met]
    if unmet:
        said = " ".join(item.sentence for item in unmet)
        raise Conflict(
            _("This month cannot be closed yet. %(why)s") % {"why": said},
            unmet=" ".join(item.code for item in unmet),
        )
    if seen:
        require_seen(period, seen)
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSING)
    drafts = _drafts(period)
    invoices = [_issue(draft, period, number, now) for number, draft in enumerate(drafts, start=1)]
    BillingPeriod.objects.filter(pk=period_id).update(state=PeriodState.CLOSED, closed_at=now)
    record(actor, "period.closed", str(period), at=now, invoices=len(invoices))
    _tell(period, invoices, now)
    failpoint("close.before_commit")
    return invoices


def _tell(period: BillingPeriod, invoices: Sequence[Invoice], now: datetime) -> None:
    """Tell finance of the organisation that the report is ready, and finance and admins of a team of its invoice."""
    people: dict[int, dict[int, User]] = defaultdict(dict)
    finance: dict[int, User] = {}
    rows = Membership.objects.filter(role__in=(Role.ADMIN, Role.FINANCE), user__is_active=True)
    for row in rows.select_related("user", "team").order_by("user_id"):
        people[row.team_id][row.user_id] = row.user
        if row.role == Role.FINANCE and row.team.parent_id is None:
            finance[row.user_id] = row.user
    totals: dict[str, int] = defaultdict(int)
    for invoice in invoices:
        totals[invoice.currency] += invoice.total_micro
        notify(
            people[invoice.team_id].values(), "invoice.issued", target=invoice.uid, at=now, month=str(period),
            number=invoice.number, team=invoice.team.slug, name=invoice.team_name,
            amount_micro=invoice.total_micro, currency=invoice.currency,
        )  # fmt: skip
    notify(
        finance.values(), "report.ready", target=f"period#{period}", at=now, month=str(period),
        invoices=len(invoices), amounts=dict(totals),
    )  # fmt: skip


def _drafts(period: BillingPeriod) -> list[Invoice]:
    """Write one draft with its lines for each team and currency that used something or has a note, teams by slug.

    Notes are numbered in this order, so that numbers rise from invoice to invoice.
    """
    totals: dict[tuple[str, str], list[UsageTotal]] = defaultdict(list)
    rows = UsageTotal.objects.filter(period=period).select_related(
        "team", "user", "flavor__device_model", "late_for"
    )
    for total in rows:
        totals[total.team.slug, total.currency].append(total)
    notes: dict[tuple[str, str], list[InvoiceNote]] = defaultdict(list)
    for note in draft_notes(period):
        notes[note.team.slug, note.currency].append(note)
    outside: dict[tuple[str, str], list[ExternalUsage]] = defaultdict(list)
    for row in external_usage(period, is_drafted=True):
        outside[row.team.slug, row.currency].append(row)
    filed = labels_of_totals(period)
    drafts, numbered = [], 0
    for slug, unit in sorted(totals.keys() | notes.keys() | outside.keys()):
        own, corrections, external = totals[slug, unit], notes[slug, unit], outside[slug, unit]
        team = (own or corrections or external)[0].team
        rated = draft_lines(own)
        invoice = Invoice.objects.create(
            period=period,
            team=team,
            team_name=team.name,
            cost_centre=team.cost_centre,
            currency=unit,
            total_micro=sum(view.amount_micro for view, _total in rated)
            + sum(note.amount_micro for note in corrections)
            + sum(row.amount_micro for row in external),
        )
        lines = InvoiceLine.objects.bulk_create(
            InvoiceLine(
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
                late_for=total.late_for,
                labels=filed.get(total.pk),
            )
            for view, total in rated
        )
        for line, (_view, total) in zip(lines, rated, strict=True):
            total.line = line
        UsageTotal.objects.bulk_update([total for _view, total in rated], ["line"])
        for position, note in enumerate(corrections, start=len(rated) + 1):
            numbered += 1
            note.number = f"{period.month:%Y%m}-N{numbered:04d}"
            note.issued_line = line_of_note(note, invoice, position)
            note.issued_line.save(force_insert=True)
            note.save(update_fields=["number", "issued_line"])
        first = len(rated) + len(corrections) + 1
        made = InvoiceLine.objects.bulk_create(
            line_of_external(row, invoice, position) for position, row in enumerate(external, start=first)
        )
        for row, line in zip(external, made, strict=True):
            row.billed_on = line
        ExternalUsage.objects.bulk_update(external, ["billed_on"], batch_size=1000)
        drafts.append(invoice)
    return drafts


def _issue(invoice: Invoice, period: BillingPeriod, number: int, now: datetime) -> Invoice:
    invoice.is_issued, invoice.issued_at = True, now
    invoice.number = f"{period.month:%Y%m}-{number:04d}"
    invoice.save(update_fields=["is_issued", "issued_at", "number"])
    failpoint("close.team_issued")
    return invoice
