"""What a budget that stops something says to people: what happened, why, and what to do."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.budgets.models import BudgetAction, SpendBasis

Figures = dict[str, Any]
BALANCE = "balance"


def reached_sentence(figures: Figures) -> str:
    """Return the sentences for what stops something, from its figures (``ReachedThreshold``, ``BalanceShortfall``)."""
    if figures.get("basis") == BALANCE:
        return _short_sentence(figures)
    if figures.get("basis") == SpendBasis.FORECAST:
        why = _("The budget of %(team)s will probably end at %(would)s %%.")
        rules = {
            BudgetAction.BLOCK: _("From a forecast of %(percent)s %% on nothing new starts."),
            BudgetAction.PREEMPTIBLE: _(
                "From a forecast of %(percent)s %% on only preemptible requests start."
            ),
            BudgetAction.APPROVAL: _("From a forecast of %(percent)s %% on requests need an approval."),
        }
    else:
        why = _("With this, the budget of %(team)s would be at %(would)s %%.")
        rules = {
            BudgetAction.BLOCK: _("From %(percent)s %% on nothing new starts."),
            BudgetAction.PREEMPTIBLE: _("From %(percent)s %% on only preemptible requests start."),
            BudgetAction.APPROVAL: _("From %(percent)s %% on requests need an approval."),
        }
    known = figures.get("action")
    action = BudgetAction(known) if known in rules else BudgetAction.BLOCK
    said = pgettext("sentences", "%(first)s %(second)s %(third)s")
    values = {
        "team": figures.get("name") or _("your team"),
        "would": figures.get("would_percent", "?"),
        "percent": figures.get("percent", "?"),
    }
    return said % {"first": why % values, "second": rules[action] % values, "third": _next(figures, action)}


def _short_sentence(figures: Figures) -> str:
    is_lent = figures.get("action") == BudgetAction.PREEMPTIBLE
    values = {
        "team": figures.get("name") or _("your team"),
        "left": _amount(figures, "left_micro"),
        "wanted": _amount(figures, "wanted_micro"),
    }
    said = pgettext("sentences", "%(first)s %(second)s %(third)s")
    return said % {
        "first": _("The wallet of %(team)s has %(left)s left for this, and %(wanted)s would be held.")
        % values,
        "second": _("Only preemptible requests start without cover.")
        if is_lent
        else _("Nothing starts that it does not cover."),
        "third": _("Ask for it as preemptible, or ask finance for a top-up.")
        if is_lent
        else _("Ask for less, or ask finance for a top-up."),
    }


def _amount(figures: Figures, name: str) -> str:
    return f"{int(figures.get(name, 0)) / 1_000_000:,.2f} {figures.get('currency', '')}".strip()


def _next(figures: Figures, action: str) -> str:
    if action == BudgetAction.APPROVAL:
        return _("It waits for an approver first.")
    if action == BudgetAction.PREEMPTIBLE:
        return _("Ask for it as preemptible, or ask finance to raise the budget.")
    if figures.get("is_monthly") and figures.get("until"):
        day = date_format(date.fromisoformat(str(figures["until"])), pgettext("format of a day", "j M"))
        return _(
            "Ask for less, ask finance to raise the budget, or wait for the next one from %(day)s on."
        ) % {"day": day}
    return _("Ask for less, or ask finance to raise the budget.")
