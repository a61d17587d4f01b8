from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from portal.common.ids import import_uid
from portal.teams.models import Team


class ImportKind(models.TextChoices):
    """What a file of finance holds."""

    BALANCES = "balances", _("Opening balances")
    USAGE = "usage", _("External usage")
    ENERGY = "energy", _("Electricity")


class FinanceImport(models.Model):
    """A CSV file that finance imported into a month, all of it or nothing; ``digest`` is that of its text.

    What undoes one is an import of its own, ``reverses``, with every row negated. A file is live until then, and can
    be imported again afterwards. A trigger writes ``is_live``; nothing else ever changes. A month's electricity is one,
    too: Berth makes it from the energy record (``billing.electricity``), and nobody imported it.
    """

    uid = models.CharField(max_length=24, unique=True, default=import_uid)
    kind = models.CharField(max_length=8, choices=ImportKind.choices)
    period = models.ForeignKey("billing.BillingPeriod", on_delete=models.PROTECT, related_name="imports")
    digest = models.CharField(max_length=64)
    currency = models.CharField(max_length=3)
    rows = models.PositiveIntegerField()
    reverses = models.OneToOneField("self", null=True, on_delete=models.PROTECT, related_name="reversal")
    is_live = models.BooleanField(default=True)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    made_at = models.DateTimeField()

    class Meta:
        ordering = ["-made_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "digest"], name="import_of_a_file_once", condition=Q(is_live=True)
            ),
            models.CheckConstraint(condition=Q(kind__in=ImportKind.values), name="import_kind_known"),
            models.CheckConstraint(condition=Q(rows__gt=0), name="import_has_rows"),
            models.CheckConstraint(
                condition=Q(kind=ImportKind.ENERGY, made_by=None)
                | (~Q(kind=ImportKind.ENERGY) & Q(made_by__isnull=False)),
                name="import_made_by_somebody",
            ),
            models.CheckConstraint(
                condition=Q(reverses=None) | Q(is_live=False), name="import_reversal_not_live"
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class OpeningBalance(models.Model):
    """A row of an import: what a team brings along on a day. Micro-units; None where the file says nothing of it.

    ``balance_micro`` went into its wallet as a movement that names the import. ``used_micro`` counts against its
    budgets in the month, and is on no invoice: somebody else billed it.
    """

    book = models.ForeignKey(FinanceImport, on_delete=models.PROTECT, related_name="balances", db_index=False)
    line = models.PositiveIntegerField()
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    period = models.ForeignKey("billing.BillingPeriod", on_delete=models.PROTECT, related_name="+")
    balance_micro = models.BigIntegerField(null=True)
    used_micro = models.BigIntegerField(null=True)
    as_of = models.DateField()
    is_live = models.BooleanField(default=True)

    class Meta:
        ordering = ["line"]
        constraints = [
            models.UniqueConstraint(fields=["book", "line"], name="opening_balance_line_once"),
            models.UniqueConstraint(
                fields=["team", "period"], name="opening_balance_of_a_team_once", condition=Q(is_live=True)
            ),
            models.CheckConstraint(
                condition=Q(balance_micro__isnull=False) | Q(used_micro__isnull=False),
                name="opening_balance_says_something",
            ),
            models.CheckConstraint(
                condition=(Q(balance_micro=None) | Q(balance_micro=F("balance_micro") / 10_000 * 10_000))
                & (Q(used_micro=None) | Q(used_micro=F("used_micro") / 10_000 * 10_000)),
                name="opening_balance_in_cents",
            ),
        ]

    def __str__(self) -> str:
        return f"line {self.line} of import {self.book_id}"


class ExternalUsage(models.Model):
    """A row of an import: usage of devices outside Berth, billed to a team at the amount that the file gives.

    ``external_id`` is the row's name at its ``source``; what is live has it once. ``line`` is the row's number in the
    file, ``billed_on`` the line of an invoice, set when the month closes. Only that and ``is_live`` ever change. What
    was undone is on no line: the rows that reverse it take it back to nothing. Electricity of leases has ``energy_mj``,
    thousandths of a joule with their PUE, how they are known, ``basis``, and what a kWh of them costs on average,
    ``micro_per_kwh``: by the exact cost, before lines are rounded. Rows of before it was kept have none.
    """

    book = models.ForeignKey(FinanceImport, on_delete=models.PROTECT, related_name="usage", db_index=False)
    line = models.PositiveIntegerField()
    period = models.ForeignKey("billing.BillingPeriod", on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    source = models.CharField(max_length=40)
    external_id = models.CharField(max_length=80)
    description = models.CharField(max_length=60)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    gpu_milli = models.PositiveIntegerField()
    energy_mj = models.BigIntegerField(null=True)
    micro_per_kwh = models.BigIntegerField(null=True)
    basis = models.CharField(max_length=9, blank=True, default="", db_default="")
    amount_micro = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    label = models.ForeignKey(
        "billing.UsageLabel", null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    billed_on = models.OneToOneField(
        "billing.InvoiceLine", null=True, on_delete=models.PROTECT, related_name="external"
    )
    is_live = models.BooleanField(default=True)

    class Meta:
        ordering = ["book", "line"]
        indexes = [
            models.Index(
                fields=["team", "period"], name="external_by_team_and_month", condition=Q(is_live=True)
            )
        ]
        constraints = [
            models.UniqueConstraint(fields=["book", "line"], name="external_usage_line_once"),
            models.UniqueConstraint(
                fields=["source", "external_id"],
                name="external_id_once_at_its_source",
                condition=Q(is_live=True),
            ),
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at"))
                & (
                    Q(gpu_milli__gt=0, energy_mj=None, basis="")
                    | Q(gpu_milli=0, energy_mj__gte=0, basis__in=("measured", "estimated"))
                )
                & ~Q(source="")
                & ~Q(external_id="")
                & ~Q(description=""),
                name="external_usage_says_what_it_is",
            ),
            models.CheckConstraint(
                condition=Q(micro_per_kwh=None) | Q(micro_per_kwh__gte=0, energy_mj__gt=0),
                name="external_usage_price_of_energy",
            ),
            models.CheckConstraint(
                condition=Q(amount_micro=F("amount_micro") / 10_000 * 10_000), name="external_usage_in_cents"
            ),
            models.CheckConstraint(
                condition=Q(is_live=True, amount_micro__gte=0) | Q(is_live=False, billed_on=None),
                name="external_usage_live_or_undone",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.external_id} of {self.source}"

    @property
    def seconds(self) -> int:
        """Return how long it was used, in whole seconds."""
        return int((self.ends_at - self.starts_at).total_seconds())
