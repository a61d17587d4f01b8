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


class FinanceImport(models.Model):
    """A CSV file that finance imported into a month, all of it or nothing; ``digest`` is that of its text.

    What undoes one is an import of its own, ``reverses``, with every row negated. A file is live until then, and can
    be imported again afterwards. A trigger writes ``is_live``; nothing else ever changes.
    """

    uid = models.CharField(max_length=24, unique=True, default=import_uid)
    kind = models.CharField(max_length=8, choices=ImportKind.choices)
    period = models.ForeignKey("billing.BillingPeriod", on_delete=models.PROTECT, related_name="imports")
    digest = models.CharField(max_length=64)
    currency = models.CharField(max_length=3)
    rows = models.PositiveIntegerField()
    reverses = models.OneToOneField("self", null=True, on_delete=models.PROTECT, related_name="reversal")
    is_live = models.BooleanField(default=True)
    made_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
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
