"""The form of a budget: its amount, its months, and from which percent on what happens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from portal.budgets.models import BudgetAction, SpendBasis, TeamBudget
from portal.budgets.services import BudgetSpec, ThresholdSpec
from portal.common.months import next_month
from portal.web.fields import MonthInput

MICRO = 1_000_000
EACH, TOGETHER = "each", "together"
_PERCENTS = re.compile(r"\s*\d{1,4}\s*%?\s*([,，;、\s]\s*\d{1,4}\s*%?\s*)*")


class PercentsField(forms.CharField):
    """Percentages as people write them ("80, 100"); cleans to whole numbers."""

    def __init__(self, **more: Any) -> None:
        attributes = {"class": "form-control", "inputmode": "numeric", "autocomplete": "off"}
        super().__init__(required=False, max_length=60, widget=forms.TextInput(attributes), **more)

    def clean(self, value: Any) -> tuple[int, ...]:
        """Return the numbers, or refuse what is none."""
        text = super().clean(value)
        if text and not _PERCENTS.fullmatch(text):
            raise forms.ValidationError(_("Write percentages such as 80, 100."))
        return tuple(int(found) for found in re.findall(r"\d+", text))


class BudgetForm(forms.Form):
    """A budget; thresholds are one field for each action and what it looks at."""

    amount = forms.DecimalField(
        label=_("Amount"), min_value=Decimal("0.01"), max_value=Decimal(10) ** 11, decimal_places=2,
        widget=forms.NumberInput({"class": "form-control", "step": "0.01", "min": "0.01", "inputmode": "decimal"}),
    )  # fmt: skip
    kind = forms.ChoiceField(
        label=_("For"),
        choices=((EACH, _("each month")), (TOGETHER, _("all months together"))),
        widget=forms.Select({"class": "form-select"}),
    )
    starts_on = MonthInput(label=_("First month"))
    last_month = MonthInput(
        label=_("Last month"), required=False, help_text=_("Empty: it goes on until somebody ends it.")
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for action, basis in _marks():
            self.fields[f"{action}_{basis}"] = PercentsField(label=BudgetAction(action).label)

    @classmethod
    def of(cls, row: TeamBudget | None, *, month: date) -> BudgetForm:
        """Return the form filled with a budget, or fresh for one that begins in ``month``."""
        if row is None:
            return cls(initial={"starts_on": month, "kind": EACH, "notify_actual": "80, 100"})
        initial: dict[str, Any] = {
            "amount": (Decimal(row.amount_micro) / MICRO).quantize(Decimal("0.01")),
            "kind": EACH if row.is_monthly else TOGETHER,
            "starts_on": row.starts_on,
            "last_month": row.ends_before and row.ends_before - timedelta(days=1),
            "version": row.version,
        }
        for one in row.thresholds.all():
            name = f"{one.action}_{one.basis}"
            initial[name] = f"{initial[name]}, {one.percent}" if name in initial else str(one.percent)
        return cls(initial=initial)

    def marks(self) -> list[tuple[str, forms.BoundField, forms.BoundField]]:
        """Return the fields of thresholds as rows: what happens, by spend, by forecast."""
        return [
            (str(BudgetAction(action).label), self[f"{action}_actual"], self[f"{action}_forecast"])
            for action in BudgetAction.values
        ]

    def spec(self) -> BudgetSpec:
        """Return what was filled in."""
        given = self.cleaned_data
        last = given["last_month"]
        return BudgetSpec(
            amount_micro=int(given["amount"] * MICRO),
            starts_on=given["starts_on"],
            ends_before=last and next_month(last),
            is_monthly=given["kind"] == EACH,
            thresholds=tuple(
                ThresholdSpec(percent, action, basis)
                for action, basis in _marks()
                for percent in given[f"{action}_{basis}"]
            ),
        )


def _marks() -> Iterator[tuple[str, str]]:
    for action in BudgetAction.values:
        for basis in SpendBasis.values:
            yield action, basis
