from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.models_capacity import CapacityCount
from portal.billing.models_energy import (
    ElectricityCount,
    EnergyDay,
    EnergyFactor,
    EnergyFactorKind,
    EnergyTotal,
    LeaseEnergy,
)
from portal.billing.models_imports import ExternalUsage, FinanceImport, ImportKind, OpeningBalance
from portal.billing.models_labels import UsageLabel
from portal.billing.models_mailings import ReportMailing, ReportSending
from portal.billing.models_notes import InvoiceNote, NoteState
from portal.billing.models_refunds import RefundCause, RefundRule
from portal.catalog.models import Discount, Flavor, Rate
from portal.common.ids import invoice_uid
from portal.leases.models import Lease
from portal.teams.models import Team

__all__ = [
    "BillingPeriod", "CapacityCount", "ElectricityCount", "EnergyDay", "EnergyFactor", "EnergyFactorKind",
    "EnergyTotal", "ExternalUsage", "FinanceImport", "ImportKind", "Invoice", "InvoiceLine", "InvoiceNote",
    "LeaseEnergy", "MonthZone", "NoteState", "OpeningBalance", "PeriodState", "RefundCause", "RefundRule",
    "ReportMailing", "ReportSending", "UsageDay", "UsageLabel", "UsageRecord", "UsageTotal",
]  # fmt: skip


class PeriodState(models.TextChoices):
    """Steps of a billing period."""

    OPEN = "open", pgettext_lazy("month", "Open")
    CLOSING = "closing", _("Closing")
    CLOSED = "closed", _("Closed")


PERIOD_NEXT: dict[str, frozenset[str]] = {
    PeriodState.OPEN: frozenset({PeriodState.CLOSING}),
    PeriodState.CLOSING: frozenset({PeriodState.CLOSED, PeriodState.OPEN}),
}


class BillingPeriod(models.Model):
    """One calendar month in a zone: ``month`` is its first day there. Once closed it never changes."""

    month = models.DateField(unique=True)
    zone = models.CharField(max_length=64)
    starts_at = models.DateTimeField(unique=True)
    ends_at = models.DateTimeField()
    state = models.CharField(max_length=8, choices=PeriodState.choices, default=PeriodState.OPEN)
    closed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="period_runs_forward"),
            models.CheckConstraint(condition=Q(state__in=PeriodState.values), name="period_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}"

    def local(self, at: datetime) -> datetime:
        """Return an instant as clocks in the month's zone show it."""
        return at.astimezone(ZoneInfo(self.zone))


class MonthZone(models.Model):
    """The time zone in which months begin and end, from the month that begins on the day ``since``; UTC before.

    A trigger keeps it once the books have such a month.
    """

    since = models.DateField(primary_key=True)
    name = models.CharField(max_length=64)
    set_at = models.DateTimeField()

    class Meta:
        ordering = ["-since"]
        constraints = [models.CheckConstraint(condition=Q(since__day=1), name="zone_holds_from_a_month")]

    def __str__(self) -> str:
        return f"{self.name} from {self.since:%Y-%m}"


class Invoice(models.Model):
    """What a team owes for a month. Draft while the month is open, then issued and frozen.

    ``digest`` is written by the database as it is issued: SHA-256 of all it says and of the digest before it.
    """

    uid = models.CharField(max_length=24, unique=True, default=invoice_uid)
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="invoices")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="invoices")
    number = models.CharField(max_length=30, unique=True, null=True, blank=True)
    team_name = models.CharField(max_length=80)
    cost_centre = models.CharField(max_length=40, blank=True)
    currency = models.CharField(max_length=3)
    total_micro = models.BigIntegerField(default=0)
    is_issued = models.BooleanField(default=False)
    issued_at = models.DateTimeField(null=True, blank=True)
    digest = models.BinaryField(max_length=32, null=True)

    class Meta:
        ordering = ["-period__starts_at", "team_name"]
        constraints = [
            models.UniqueConstraint(
                fields=["period", "team", "currency"], name="one_invoice_per_team_and_month"
            ),
            models.CheckConstraint(
                condition=Q(is_issued=False) | (Q(number__isnull=False) & Q(issued_at__isnull=False)),
                name="invoice_issued_has_number",
            ),
            models.CheckConstraint(
                condition=Q(is_issued=False) | Q(digest__isnull=False), name="invoice_issued_has_digest"
            ),
        ]

    def __str__(self) -> str:
        return self.number or self.uid


class InvoiceLine(models.Model):
    """One flavor, person and price of an invoice; names and rate are copied, the amount rounded once.

    ``labels`` is what its usage is filed under, with how much of it; None for nothing, and in months that were closed
    before lines held labels.
    ``late_for`` makes it an adjustment: its usage belongs to that earlier month, which was closed already. The line of
    a credit or debit note has no usage: its amount is that of its ``note``, its names are those of the corrected line.
    """

    invoice = models.ForeignKey(Invoice, on_delete=models.PROTECT, related_name="lines")
    position = models.PositiveIntegerField()
    person = models.CharField(max_length=100)
    flavor = models.CharField(max_length=60)
    device_model = models.CharField(max_length=80)
    micro_per_hour = models.BigIntegerField()
    lease_count = models.PositiveIntegerField()
    seconds = models.BigIntegerField()
    share_milli_seconds = models.BigIntegerField()
    amount_micro = models.BigIntegerField()
    late_for = models.ForeignKey(BillingPeriod, null=True, on_delete=models.PROTECT, related_name="+")
    labels = models.JSONField(null=True)

    class Meta:
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["invoice", "position"], name="invoice_line_position_once"),
            models.CheckConstraint(
                condition=Q(seconds__gte=0, share_milli_seconds__gte=0), name="line_quantity_sane"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.flavor} {self.amount_micro}"


class UsageRecord(models.Model):
    """A billed interval of a lease in whole seconds, inside one month and under one rate.

    ``seconds`` = ends - starts; ``share_milli_seconds`` = seconds x share of devices held. ``micro_per_hour`` is
    the rate, lowered to what the lease pays of it, by ``discount``, and by what the rule ``refund`` gives back; or the
    price at which the lease comes to its minimum charge, ``minimum_micro``, None where it is charged by its time.
    Usage that was written after its month had been closed is an adjustment: billed in the open month ``period``,
    dated and priced in the closed one, ``late_for``. Only its ``label`` can change, and only while its month is open;
    the line that it is on is that of its ``UsageTotal``.
    """

    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="usage")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="usage")
    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="usage")
    late_for = models.ForeignKey(BillingPeriod, null=True, on_delete=models.PROTECT, related_name="+")
    rate = models.ForeignKey(Rate, on_delete=models.PROTECT, related_name="+")
    span = DateTimeRangeField()
    seconds = models.PositiveBigIntegerField()
    share_milli = models.PositiveIntegerField()
    share_milli_seconds = models.PositiveBigIntegerField()
    micro_per_hour = models.BigIntegerField()
    minimum_micro = models.BigIntegerField(null=True)
    currency = models.CharField(max_length=3)
    refund = models.ForeignKey(
        RefundRule, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    discount = models.ForeignKey(
        Discount, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    label = models.ForeignKey(
        UsageLabel, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    recorded_at = models.DateTimeField()

    class Meta:
        ordering = ["span", "id"]
        indexes = [
            models.Index(fields=["label", "period"], name="usage_labelled", condition=~Q(label=None)),
            models.Index(fields=["team", "period"], name="usage_by_team_and_month"),
            models.Index(fields=["period"], name="usage_at_minimum", condition=~Q(minimum_micro=None)),
            models.Index(fields=["refund"], name="usage_refunded", condition=~Q(refund=None)),
            models.Index(fields=["discount"], name="usage_discounted", condition=~Q(discount=None)),
        ]
        constraints = [
            ExclusionConstraint(
                name="usage_never_billed_twice",
                expressions=[
                    (Func(F("lease_id"), F("lease_id") + 1, function="int8range"), RangeOperators.OVERLAPS),
                    ("span", RangeOperators.OVERLAPS),
                ],
            ),
            models.CheckConstraint(
                condition=Q(share_milli_seconds=F("seconds") * F("share_milli")),
                name="usage_quantity_adds_up",
            ),
            models.CheckConstraint(
                condition=Q(minimum_micro=None) | Q(minimum_micro__gt=0, refund=None),
                name="usage_minimum_or_refund",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.seconds} s of {self.lease_id}"


class UsageTotal(models.Model):
    """What one person used of one flavor at one price in a team's month: a line of the invoice, ready to be rated.

    Kept by the database itself from usage records, in the statement that writes or takes back one, and written by
    nothing else; ``line`` is set when the month closes. ``records`` and ``leases`` count what is behind it.
    """

    period = models.ForeignKey(BillingPeriod, on_delete=models.PROTECT, related_name="totals")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+")
    micro_per_hour = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    late_for = models.ForeignKey(BillingPeriod, null=True, on_delete=models.PROTECT, related_name="+")
    line = models.OneToOneField(InvoiceLine, null=True, on_delete=models.PROTECT, related_name="total")
    records = models.PositiveIntegerField()
    leases = models.PositiveIntegerField()
    seconds = models.PositiveBigIntegerField()
    share_milli_seconds = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["period", "team", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["period", "team", "user", "flavor", "micro_per_hour", "currency", "late_for"],
                nulls_distinct=False,
                name="usage_total_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.share_milli_seconds} at {self.micro_per_hour}"


class UsageDay(models.Model):
    """The part of a total that was used on one day of its month's zone; the days of a total add up to it."""

    total = models.ForeignKey(UsageTotal, on_delete=models.CASCADE, related_name="days")
    day = models.DateField()
    seconds = models.PositiveBigIntegerField()
    share_milli_seconds = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["day"]
        constraints = [models.UniqueConstraint(fields=["total", "day"], name="usage_day_once")]

    def __str__(self) -> str:
        return f"{self.day}: {self.share_milli_seconds}"
