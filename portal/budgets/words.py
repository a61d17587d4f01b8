"""What a budget that stops something says to people: what happened, why, and what to do."""

from __future__ import annotations

from datetime import date
from typing import Any

from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.budgets.models import BudgetAction, SpendBasis
from portal.common.moments import month
from portal.common.units import HOUR_S, memory_text

Figures = dict[str, Any]
BALANCE, HOURS, MEMORY = "balance", "hours", "memory"


def reached_sentence(figures: Figures) -> str:
    """Return the sentences for what stops something, from its figures: those of a ``Reached`` of the gate."""
    if figures.get("basis") == HOURS:
        return _hours_sentence(figures)
    if figures.get("basis") == MEMORY:
        return _memory_sentence(figures)
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


def _hours_sentence(figures: Figures) -> str:
    limit, wanted = int(figures.get("limit_gpu_s", 0)), int(figures.get("wanted_gpu_s", 0))
    since, until = (date.fromisoformat(str(figures[name])) for name in ("since", "until"))
    values = {
        "team": figures.get("name") or _("your team"),
        "left": hours_text(int(figures.get("left_gpu_s", 0))),
        "limit": hours_text(limit),
        "wanted": hours_text(wanted),
        "month": month(since),
        "day": date_format(until, pgettext("format of a day", "j M")),
    }
    if wanted > limit:
        said = _(
            "The quota of %(team)s allows %(limit)s GPU-hours in %(month)s, and this would take %(wanted)s."
            " Ask for less, or ask whoever sets that quota for more."
        )
    else:
        said = _(
            "%(team)s has %(left)s of its %(limit)s GPU-hours of %(month)s left, and this would take"
            " %(wanted)s. Ask for less, wait until %(day)s, or ask whoever sets that quota for more."
        )
    return said % values


def _memory_sentence(figures: Figures) -> str:
    limit, wanted = int(figures.get("limit_mib", 0)), int(figures.get("wanted_mib", 0))
    values = {
        "team": figures.get("name") or _("your team"),
        "used": memory_text(int(figures.get("used_mib", 0))),
        "limit": memory_text(limit),
        "wanted": memory_text(wanted),
    }
    if wanted > limit:
        said = _(
            "The quota of %(team)s allows %(limit)s of device memory at once, and this would take %(wanted)s."
            " Ask for less, or ask whoever sets that quota for more."
        )
    else:
        said = _(
            "%(team)s holds %(used)s of the %(limit)s of device memory that its quota allows at once, and this"
            " takes %(wanted)s. It starts when enough is freed; ask for less to start sooner."
        )
    return said % values


def hours_text(gpu_seconds: int) -> str:
    """Return device seconds as GPU-hours to two places: "1,250.5"."""
    return f"{gpu_seconds / HOUR_S:,.2f}".rstrip("0").rstrip(".")


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
