"""What an ended lease cost, second by second: usage records, rates and the line of the invoice."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from django.urls import NoReverseMatch, reverse
from django.utils.formats import date_format
from django.utils.translation import gettext as _

from portal.billing.electricity import electricity_of_lease
from portal.billing.energy import KWH_MJ
from portal.billing.models import RefundCause, RefundRule, UsageRecord, UsageTotal
from portal.billing.selectors import line_key
from portal.catalog.pricing import exact_micro, to_minor
from portal.common.moments import span
from portal.leases.access import scratch_of
from portal.leases.models import Lease, StartPromise
from portal.leases.promises import is_late, promises_of
from portal.web.discounts import discount_label
from portal.web.energy_figures import kwh_text
from portal.web.figures import gib, gpus, money
from portal.web.jobs.rows import JobRow, job_of, job_row
from portal.web.leases.job_shares import bill_of
from portal.web.refunds import rule_text


@dataclass(frozen=True)
class ReceiptLine:
    """One billed interval under one rate; ``url`` leads to the invoice line it is part of."""

    label: str
    detail: str
    amount: Decimal | None
    starts_at: datetime
    ends_at: datetime
    seconds: int
    url: str


@dataclass(frozen=True, slots=True)
class JobShare:
    """One of several jobs' part of a lease."""

    job: JobRow
    seconds: int
    amount: Decimal | None


@dataclass(frozen=True)
class Receipt:
    """The receipt of an ended lease; ``difference_s``: agent clock minus billed seconds, None if unknown.
    ``refund`` is the rule by which ``refunded`` was given back, "" for none; ``minimum`` the minimum charge that it
    came to, None where it cost its time.
    ``promise`` is the promise of its start, None where there was none, ``is_late`` whether it was missed.
    ``electricity`` is what it pays for electricity beside its total, None where that has no price.
    ``scratch`` is the folder on its node that went with it, "" for none.
    ``job`` is the batch job that ran in it, as this lease ended it; ``jobs`` are the parts of several."""

    lines: list[ReceiptLine]
    total: Decimal | None
    quoted: Decimal | None
    saved: Decimal | None
    currency: str
    seconds: int
    agent_seconds: Decimal | None
    difference_s: Decimal | None
    is_counted: bool
    is_free: bool
    invoice_url: str
    refunded: Decimal | None
    refund: str
    minimum: Decimal | None = None
    promise: StartPromise | None = None
    is_late: bool = False
    scratch: str = ""
    electricity: Decimal | None = None
    electricity_kwh: str = ""
    job: JobRow | None = None
    jobs: list[JobShare] = field(default_factory=list)


def receipt_of(lease: Lease) -> Receipt:
    """Return the receipt; while metering has not come by yet it has no lines and ``is_counted`` is False."""
    bill = bill_of(lease)
    total, quoted = money(bill.total_micro), money(quoted_micro(lease))
    promise = promises_of([lease]).get(lease.pk)
    power = electricity_of_lease(lease)
    agent = None if lease.agent_active_ms is None else Decimal(lease.agent_active_ms) / 1000
    return Receipt(
        lines=[_line(record, lease) for record in bill.records],
        total=total,
        quoted=quoted,
        saved=quoted - total if quoted is not None and total is not None and total < quoted else None,
        currency=lease.request.currency,
        seconds=bill.seconds,
        agent_seconds=agent,
        difference_s=None if agent is None or not bill.is_counted else agent - bill.seconds,
        is_counted=bill.is_counted,
        is_free=bill.is_free,
        invoice_url=line_url(bill.records[-1], lease) if bill.records else "",
        refunded=money(bill.refunded_micro),
        refund=refund_text(bill.refund) if bill.refund else "",
        minimum=money(bill.minimum_micro),
        promise=promise,
        is_late=promise is not None and is_late(lease, promise),
        scratch=scratch_of(lease),
        electricity=money(to_minor(sum((row.exact for row in power), Fraction(0)))) if power else None,
        electricity_kwh=kwh_text(sum(row.energy_mj for row in power) / KWH_MJ) if power else "",
        job=None if bill.parts or not lease.request.is_job else job_of(lease),
        jobs=[JobShare(job_row(one.attempt.job), one.seconds, money(one.micro)) for one in bill.parts],
    )


def quoted_micro(lease: Lease) -> int | None:
    """Return what was quoted for this lease: its part of a gang's quote; None for what was grown later."""
    if lease.is_extra:
        return None
    return lease.request.quote_micro * lease.cost_milli // max(lease.request.cost_milli, 1)


def line_url(record: UsageRecord, lease: Lease) -> str:
    """Return the address of the invoice line that holds this record; "" where there is no such page."""
    total = UsageTotal.objects.select_related("line").filter(
        period=record.period_id,
        team=record.team_id,
        user=lease.user_id,
        flavor=lease.flavor_id,
        micro_per_hour=record.micro_per_hour,
        currency=record.currency,
        late_for=record.late_for_id,
    )
    found = total.first()
    key = str(found.line.position) if found is not None and found.line is not None else line_key(record)
    month = str(record.period)
    try:
        return reverse("web:invoice_line", args=[lease.team.slug, month, key])
    except NoReverseMatch:
        return ""


def refund_text(rule: RefundRule) -> str:
    """Return which rule applied and what it says, in the reader's language."""
    return _("%(cause)s: %(what)s (rule of %(day)s)") % {
        "cause": RefundCause(rule.cause).label,
        "what": rule_text(rule),
        "day": date_format(rule.valid.lower, "DATE_FORMAT"),
    }


def _rate(micro_per_hour: int) -> str:
    """Return a price with its cents, and with as much more as it has."""
    whole, _point, parts = f"{money(micro_per_hour):.6f}".partition(".")
    return f"{whole}.{parts.rstrip('0'):0<2}"


def _line(record: UsageRecord, lease: Lease) -> ReceiptLine:
    amount = to_minor(exact_micro(record.share_milli_seconds, record.micro_per_hour))
    formula = _("%(seconds)d s × %(share)s GPU × %(rate)s %(currency)s/h per device") % {
        "seconds": record.seconds,
        "share": gpus(record.share_milli),
        "rate": _rate(record.micro_per_hour),
        "currency": record.currency,
    }
    if record.rate.micro_per_gib_hour:
        said = _("in it %(gib)s GiB × %(rate)s %(currency)s/h")
        formula += " · " + said % {
            "gib": gib(lease.flavor.memory_mib * lease.count),
            "rate": _rate(record.rate.micro_per_gib_hour),
            "currency": record.currency,
        }
    if record.discount:
        formula = f"{formula} · {discount_label(record.discount)}"
    if record.minimum_micro is not None:
        said = _("at the price at which it comes to the minimum charge of %(amount)s %(currency)s")
        formula += " · " + said % {"amount": _rate(record.minimum_micro), "currency": record.currency}
    return ReceiptLine(
        label=span(record.seconds) or "",
        detail=formula,
        amount=money(amount),
        starts_at=record.span.lower,
        ends_at=record.span.upper,
        seconds=record.seconds,
        url=line_url(record, lease),
    )
