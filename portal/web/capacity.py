"""Where the capacity of a month went: cluster, nodes and devices by what their time went to, down to leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_safe

from portal.billing.capacity_counts import counted_capacity
from portal.billing.conservation import (
    OF_LEASES,
    CapacityAccount,
    CapacityKind,
    DeviceAccount,
    LeaseTime,
    lease_times,
    together,
)
from portal.billing.periods import period_of
from portal.billing.selectors import currency
from portal.catalog.pricing import SHARE_HOUR
from portal.common.clock import db_now
from portal.common.errors import Forbidden, NotFound
from portal.fleet.models import Device
from portal.teams.selectors import Rights
from portal.web.access import rights_of
from portal.web.figures import money
from portal.web.invoices.months import all_months, named

MOST_MONTHS = 6
CSS = {
    CapacityKind.BILLED: "plot-1",
    CapacityKind.FREE: "plot-2",
    CapacityKind.RESERVED: "plot-3",
    CapacityKind.PREPARING: "plot-4",
    CapacityKind.CLEANING: "plot-5",
    CapacityKind.STRANDED: "plot-6",
    CapacityKind.IDLE: "plot-forecast",
    CapacityKind.MAINTENANCE: "plot-mark",
    CapacityKind.FAULT: "plot-block",
    CapacityKind.UNKNOWN: "plot-rest",
}


@dataclass(frozen=True, slots=True)
class BarPart:
    """One kind of a bar, in thousandths of its width."""

    css: str
    x: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class CapacityFigure:
    """Hours of one kind; ``url`` leads to what is behind it, "" for nothing."""

    label: str
    css: str
    hours: str
    url: str
    is_none: bool


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A device or a node of the table."""

    name: str
    note: str
    is_node: bool
    is_open: bool
    bar: list[BarPart]
    figures: list[CapacityFigure]
    capacity: str
    difference: int


@require_safe
def page(request: HttpRequest, month: str = "") -> HttpResponse:
    """Show where a month's capacity went, that of the running one unless it is named."""
    require_finance_or_operator(rights_of(request))
    now = db_now()
    period = named(month) if month else period_of(now)
    month = str(period)
    months = [str(row) for row in all_months(now=now)[:MOST_MONTHS]]
    counted = counted_capacity(period, now=now)
    if counted is None:
        return render(request, "web/capacity.html", {"period": period, "month": month, "months": months})
    found = counted.devices
    total = together(one.account for one in found)
    context = {
        "period": period,
        "month": month,
        "months": months,
        "counted_at": counted.at if counted.at < now else None,
        "total": _row(_("Cluster"), "", total, {}, is_node=True),
        "above": _hours(total.above) if total.above else "",
        "stranded": money(round(int(total.stranded_micro), -4)),
        "currency": currency(),
        "rows": list(_rows(month, found, request.GET.get("node", ""))),
        "heads": [str(kind.label) for kind in CapacityKind],
    }
    return render(request, "web/capacity.html", context)


@require_safe
def device(request: HttpRequest, month: str, uuid: str) -> HttpResponse:
    """Show the leases behind a device's month, all of them or those with one kind of time."""
    require_finance_or_operator(rights_of(request))
    period, now = named(month), db_now()
    found = Device.objects.select_related("node", "model").filter(uuid=uuid).first()
    kind = request.GET.get("kind", "")
    if found is None or kind not in ("", *OF_LEASES):
        raise NotFound
    times = lease_times(period, found.pk, now=now)
    shown = [one for one in times if not kind or one.kinds.get(kind)]
    context = {
        "period": period,
        "month": month,
        "device": found,
        "kind": CapacityKind(kind).label if kind else "",
        "heads": [str(one.label) for one in OF_LEASES],
        "rows": [(one, [_hours(one.kinds.get(k, 0)) for k in OF_LEASES]) for one in shown],
        "sums": [_hours(_sum(shown, k)) for k in OF_LEASES],
    }
    return render(request, "web/capacity_device.html", context)


def require_finance_or_operator(rights: Rights) -> None:
    """Raise Forbidden for everybody else: this is about the whole fleet."""
    if not (rights.is_finance or rights.is_operator):
        raise Forbidden(_("Only finance and operators see where the capacity went."))


def _rows(month: str, found: list[DeviceAccount], opened: str) -> Iterable[CapacityRow]:
    """Yield nodes, the opened one followed by its devices."""
    nodes: dict[str, list[DeviceAccount]] = defaultdict(list)
    for one in found:
        nodes[one.node].append(one)
    for node, own in nodes.items():
        url = reverse("web:node", args=[node])
        yield _row(
            node,
            ngettext("%(n)d device", "%(n)d devices", len(own)) % {"n": len(own)},
            together(one.account for one in own),
            dict.fromkeys(CapacityKind.values, url),
            is_node=True,
            is_open=node == opened,
        )
        for one in own if node == opened else ():
            leases = reverse("web:capacity_device", args=[month, one.uuid])
            urls = {
                kind: f"{leases}?{urlencode({'kind': kind})}" if kind in OF_LEASES else url
                for kind in CapacityKind.values
            }
            yield _row(_("Device %(n)d") % {"n": one.index}, one.model, one.account, urls, is_node=False)


def _row(
    name: str,
    note: str,
    account: CapacityAccount,
    urls: dict[str, str],
    *,
    is_node: bool,
    is_open: bool = False,
) -> CapacityRow:
    figures = [
        CapacityFigure(
            str(kind.label),
            CSS[kind],
            _hours(account.kinds[kind]),
            urls.get(kind, "") if account.kinds[kind] else "",
            not account.kinds[kind],
        )
        for kind in CapacityKind
    ]
    return CapacityRow(
        name, note, is_node, is_open, _bar(account), figures, _hours(account.capacity), account.difference
    )


def _bar(account: CapacityAccount) -> list[BarPart]:
    whole = max(sum(account.kinds.values()), 1)
    parts, x = [], 0.0
    for kind in CapacityKind:
        width = 1000 * account.kinds[kind] / whole
        if width:
            title = f"{kind.label}: {_hours(account.kinds[kind])} h"
            parts.append(BarPart(CSS[kind], round(x, 2), round(width, 2), title))
        x += width
    return parts


def _sum(rows: Iterable[LeaseTime], kind: str) -> int:
    return sum(row.kinds.get(kind, 0) for row in rows)


def _hours(amount: int) -> str:
    """Return thousandths of a device times seconds as hours of a whole device; a dash for none."""
    if not amount:
        return "–"
    if 0 < amount < SHARE_HOUR / 100:
        return "< " + number_format(0.01, decimal_pos=2, use_l10n=True)
    return number_format(amount / SHARE_HOUR, decimal_pos=2, use_l10n=True, force_grouping=True)
