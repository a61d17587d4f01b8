"""The bill of a month beside what clusters counted for leases of their pools."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from portal.cluster_usage.selectors import (
    TOLERATED_S,
    DifferenceCause,
    UsageDifference,
    books_of_clusters,
    usage_differences,
)
from portal.common.clock import db_now
from portal.web.access import rights_of
from portal.web.capacity import MOST_MONTHS, require_finance_or_operator
from portal.web.invoices.months import all_months, named

MOST_SHOWN = 500


@dataclass(frozen=True, slots=True)
class CauseCount:
    """How many leases of the month have a part of their difference by a cause, and its seconds."""

    label: str
    leases: int
    seconds: str


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """A lease of the table; seconds with their sign, "" where one side is unknown."""

    one: UsageDifference
    difference: str
    before: str
    after: str
    parts: list[tuple[str, str, str]]


@require_safe
def page(request: HttpRequest, month: str) -> HttpResponse:
    """Show a month's leases of pools whose seconds differ from the cluster's, or all of them."""
    require_finance_or_operator(rights_of(request))
    period = named(month)
    found = usage_differences(period)
    notable = [one for one in found if one.is_notable]
    shown = found if "all" in request.GET else notable
    context = {
        "period": period,
        "month": str(period),
        "months": [str(row) for row in all_months(now=db_now())[:MOST_MONTHS]],
        "books": books_of_clusters(),
        "tolerated": TOLERATED_S,
        "leases": len(found),
        "notable": len(notable),
        "unexplained": sum(1 for one in notable if not one.is_explained),
        "causes": _causes(notable),
        "is_all": "all" in request.GET,
        "rows": [_row(one) for one in shown[:MOST_SHOWN]],
        "more": max(0, len(shown) - MOST_SHOWN),
    }
    return render(request, "web/cluster_usage.html", context)


def _row(one: UsageDifference) -> DifferenceRow:
    parts = [(str(part.cause.label), signed(part.seconds), part.evidence) for part in one.parts]
    return DifferenceRow(one, signed(one.difference_s), signed(one.before_s), signed(one.after_s), parts)


def _causes(notable: list[UsageDifference]) -> list[CauseCount]:
    found = []
    for cause in DifferenceCause:
        parts = [part.seconds for one in notable for part in one.parts if part.cause == cause]
        if parts:
            found.append(CauseCount(str(cause.label), len(parts), signed(sum(parts))))
    return found


def signed(seconds: int | None) -> str:
    """Return seconds with their sign; "" for unknown."""
    return "" if seconds is None else _("%(n)s s") % {"n": f"{seconds:+d}" if seconds else "0"}
