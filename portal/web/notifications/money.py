"""Notifications about notes, invoices, reports and budgets, as sentences."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.budgets.models import BudgetAction, SpendBasis
from portal.common.templatetags.readable import amount
from portal.web.notifications.kinds import Facts, Wording


def _note_facts(f: Facts) -> Facts:
    cents = f.get("amount_micro")
    amount = f"{cents / 1_000_000:+.2f}".replace("-", "\u2212") if isinstance(cents, int) else "?"
    return {
        "who": f.get("by", "?"),
        "amount": f"{amount} {f.get('currency', '')}".strip(),
        "invoice": f.get("invoice", "?"),
        "line": f.get("line", "?"),
        "month": f.get("month", "?"),
        "note": f.get("note") or "–",
    }


def _note_proposed(f: Facts) -> str:
    return _(
        "%(who)s proposes to correct invoice %(invoice)s, line %(line)s, by %(amount)s. A second person decides."
    ) % _note_facts(f)


def _note_approved(f: Facts) -> str:
    return _(
        "%(who)s approved your note on invoice %(invoice)s, line %(line)s: %(amount)s in %(month)s."
    ) % _note_facts(f)


def _note_rejected(f: Facts) -> str:
    return _("%(who)s rejected your note on invoice %(invoice)s, line %(line)s: %(note)s") % _note_facts(f)


def _invoice_issued(f: Facts) -> str:
    return _("Invoice %(number)s of %(team)s for %(month)s is issued: %(amount)s.") % {
        "number": f.get("number", "?"),
        "team": f.get("name", "?"),
        "month": f.get("month", "?"),
        "amount": _amount(f.get("amount_micro"), f.get("currency")),
    }


def _report_ready(f: Facts) -> str:
    amounts = f.get("amounts")
    sums = [_amount(micro, unit) for unit, micro in amounts.items()] if isinstance(amounts, dict) else []
    said = _(
        "%(month)s is closed. Its chargeback report is ready, as PDF, XLSX, CSV and FOCUS too: %(amount)s."
    )
    return said % {"month": f.get("month", "?"), "amount": ", ".join(sums) or "–"}


def _report_mailed(f: Facts) -> str:
    said = (
        _("The chargeback report of %(team)s for %(month)s.")
        if f.get("is_closed")
        else _("The chargeback report of %(team)s for %(month)s, as a draft: the month is not closed.")
    )
    return said % {"team": f.get("name", "?"), "month": f.get("month", "?")}


def _amount(micro: object, unit: object) -> str:
    """Return an amount of whole cents with its currency."""
    return f"{amount(Decimal(micro) / 1_000_000)} {unit}" if isinstance(micro, int) else "?"


def _budget_reached(f: Facts) -> str:
    values = {"team": f.get("name", "?"), "n": f.get("is_percent", "?"), "percent": f.get("percent", "?")}
    if f.get("basis") == SpendBasis.FORECAST:
        said = _(
            "The budget of %(team)s will probably end at %(n)s %%; a threshold stands at %(percent)s %%."
        )
    else:
        said = _("%(team)s has spent %(n)s %% of its budget; a threshold stands at %(percent)s %%.")
    follows = {
        BudgetAction.APPROVAL: _("New requests need an approval now."),
        BudgetAction.PREEMPTIBLE: _("Only preemptible requests start now."),
        BudgetAction.BLOCK: _("Nothing new starts now."),
    }
    action = str(f.get("action"))
    if action not in follows:
        return said % values
    parts = {"first": said % values, "second": follows[BudgetAction(action)]}
    return pgettext("sentences", "%(first)s %(second)s") % parts


MONEY_KINDS: Final[dict[str, Wording]] = {
    "note.proposed": Wording("checkbox", "info", _note_proposed),
    "note.approved": Wording("circle-check", "good", _note_approved),
    "note.rejected": Wording("circle-x", "bad", _note_rejected),
    "invoice.issued": Wording("receipt", "info", _invoice_issued),
    "report.ready": Wording("file-invoice", "info", _report_ready),
    "report.mailed": Wording("file-invoice", "info", _report_mailed),
    "budget.reached": Wording("coin", "warn", _budget_reached),
}
