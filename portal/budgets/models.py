from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import RangeOperators
from django.db import models
from django.db.models import F, Func, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.budgets.models_wallets import AtZero, MovementKind, Wallet, WalletHold, WalletMovement
from portal.teams.models import Team

__all__ = [
    "AtZero", "BudgetAction", "BudgetCrossing", "BudgetForecast", "BudgetThreshold", "MovementKind", "SpendBasis",
    "TeamBudget", "Wallet", "WalletHold", "WalletMovement",
]  # fmt: skip


class BudgetAction(models.TextChoices):
    """What happens from a threshold on, the mildest first; each holds beside the milder ones."""

    NOTIFY = "notify", pgettext_lazy("what a budget does", "Notify")
    APPROVAL = "approval", _("New requests need an approval")
    PREEMPTIBLE = "preemptible", _("Only preemptible requests")
    BLOCK = "block", _("Nothing new starts")


class SpendBasis(models.TextChoices):
    """What a threshold looks at."""

    ACTUAL = "actual", _("Spend")
    FORECAST = "forecast", _("Forecast")


class TeamBudget(models.Model):
    """What a team and those below it may spend: in each month of its time, or in all of it together.

    ``starts_on`` and ``ends_before`` are first days of months; without an end it goes on. Micro-units of the
    installation's currency.
    """

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="budgets")
    amount_micro = models.BigIntegerField()
    is_monthly = models.BooleanField(default=True)
    starts_on = models.DateField()
    ends_before = models.DateField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_on", "-id"]
        constraints = [
            models.CheckConstraint(condition=Q(amount_micro__gt=0), name="budget_is_positive"),
            models.CheckConstraint(
                condition=Q(starts_on__day=1) & (Q(ends_before=None) | Q(ends_before__day=1)),
                name="budget_is_of_whole_months",
            ),
            models.CheckConstraint(
                condition=Q(ends_before=None) | Q(ends_before__gt=F("starts_on")), name="budget_runs_forward"
            ),
            models.CheckConstraint(
                condition=Q(is_monthly=True) | Q(ends_before__isnull=False), name="budget_in_all_has_an_end"
            ),
            ExclusionConstraint(
                name="one_budget_at_a_time",
                expressions=[
                    (Func(F("team_id"), F("team_id") + 1, function="int8range"), RangeOperators.OVERLAPS),
                    (
                        Func(F("starts_on"), F("ends_before"), function="daterange"),
                        RangeOperators.OVERLAPS,
                    ),
                ],
            ),
        ]

    def __str__(self) -> str:
        return f"budget of {self.team_id} from {self.starts_on:%Y-%m}"


class BudgetThreshold(models.Model):
    """From so many percent of a budget on, by spend or by forecast, something happens.

    A trigger keeps them in order: what is stricter never begins before what is milder.
    """

    budget = models.ForeignKey(TeamBudget, on_delete=models.CASCADE, related_name="thresholds")
    percent = models.PositiveSmallIntegerField()
    basis = models.CharField(max_length=8, choices=SpendBasis.choices, default=SpendBasis.ACTUAL)
    action = models.CharField(max_length=12, choices=BudgetAction.choices)

    class Meta:
        ordering = ["percent", "basis", "id"]
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "basis", "percent", "action"], name="budget_threshold_once"
            ),
            models.CheckConstraint(
                condition=Q(percent__gte=1, percent__lte=1000), name="budget_threshold_sane"
            ),
            models.CheckConstraint(condition=Q(basis__in=SpendBasis.values), name="budget_basis_known"),
            models.CheckConstraint(condition=Q(action__in=BudgetAction.values), name="budget_action_known"),
        ]

    def __str__(self) -> str:
        return f"{self.percent} % {self.basis}: {self.action}"


class BudgetForecast(models.Model):
    """How the running period of a budget will probably end, as it was last looked at; micro-units.

    ``since`` is the period's first day. Eight of ten such periods end between low and high; all None while there are
    too few full days. ``runs_out_on`` is the day on which the budget will probably be, or was, used up (None: it
    lasts), ``earliest_on`` the same at the upper end of the interval.
    """

    budget = models.OneToOneField(TeamBudget, on_delete=models.CASCADE, related_name="forecast")
    since = models.DateField()
    made_at = models.DateTimeField()
    spent_micro = models.BigIntegerField()
    low_micro = models.BigIntegerField(null=True)
    likely_micro = models.BigIntegerField(null=True)
    high_micro = models.BigIntegerField(null=True)
    days = models.PositiveSmallIntegerField(default=0)
    runs_out_on = models.DateField(null=True)
    earliest_on = models.DateField(null=True)

    def __str__(self) -> str:
        return f"forecast of budget {self.budget_id}"


class BudgetCrossing(models.Model):
    """That a threshold was reached in a period, and when; people are told of it once. Append-only by trigger."""

    budget = models.ForeignKey(TeamBudget, on_delete=models.PROTECT, related_name="crossings")
    since = models.DateField()
    percent = models.PositiveSmallIntegerField()
    basis = models.CharField(max_length=8, choices=SpendBasis.choices)
    action = models.CharField(max_length=12, choices=BudgetAction.choices)
    amount_micro = models.BigIntegerField()
    figure_micro = models.BigIntegerField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["-at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["budget", "since", "basis", "percent", "action"], name="budget_crossing_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.percent} % of budget {self.budget_id}"
