"""One lease: time left, how to connect, live figures, cost; after the end its receipt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.advice.selectors import advice_for_lease
from portal.billing.energy import energy_of_lease
from portal.billing.labels import labels_of, may_label_request
from portal.catalog import pricing
from portal.common.errors import BerthError, NotFound
from portal.common.moments import span
from portal.gateway.catalogue import apps
from portal.gateway.sharing import may_watch
from portal.gateway.tickets import why_no_app, why_no_terminal
from portal.leases.extending import waiting_extension
from portal.leases.failures import aftermath_text, failure_code, failure_detail, why_failed
from portal.leases.former_tenant import former_tenant_text
from portal.leases.models import Lease, Placement
from portal.leases.next_blocks import NextBlock, block_sentence, latest_end
from portal.leases.selectors import (
    gang_environment,
    may_manage_lease,
    may_see_access,
    together,
    visible_lease,
)
from portal.leases.states import EndReason, LeaseState
from portal.teams.selectors import Rights
from portal.web.access import rights_of
from portal.web.advice import lease_advice
from portal.web.energy_figures import shown_energy
from portal.web.figures import duration_text, money
from portal.web.idle.page import idle_card
from portal.web.leases.access import cluster_job, device_views, entrance
from portal.web.leases.apps import leads_to_apps
from portal.web.leases.receipt import quoted_micro, receipt_of
from portal.web.leases.rows import LeaseRow, lease_rows
from portal.web.leases.timeline import request_steps
from portal.web.leases.values import live_values
from portal.web.links import again_address
from portal.web.nodes.processes import MEASURED, own_processes
from portal.web.nodes.slice_metrics import silent_lease_text
from portal.web.opening import asked_to_open, lease_opening

EXTENSIONS_S = (1800, 3600, 4 * 3600, 24 * 3600)
LEAST_EXTRA_S = 60
RELEASABLE = (LeaseState.BOOKED, LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED)
WITH_PROCESSES = (LeaseState.PREPARING, *MEASURED)
OVER = (LeaseState.ENDING, LeaseState.CLEANING, LeaseState.ENDED, LeaseState.FAILED)


@dataclass(frozen=True)
class Extension:
    """More time that would fit, with what it costs; ``price`` None is unknown."""

    value: str
    label: str
    until: datetime
    price: Decimal | None
    currency: str


@dataclass(frozen=True)
class WaitingExtension:
    """An extension that waits for an approver: whose it is, what it adds and what that costs."""

    lease: Lease
    by: str
    asked_at: datetime
    offer: Extension
    for_whom: str = ""


@require_safe
def page(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a lease to anybody in its team; access and actions to whom they belong."""
    rights, now = rights_of(request), timezone.now()
    lease = visible_lease(rights, uid)
    (row,) = lease_rows([lease], now=now)
    placements = list(
        Placement.objects.filter(lease=lease)
        .select_related("device__model", "device__node", "lease")
        .order_by("device__index", "start", "id")
    )
    is_over = lease.state in OVER
    all_parts = together(lease)
    may_manage = may_manage_lease(rights, lease)
    latest = latest_end(lease, now=now)
    is_advised = is_over or (may_manage and lease.state == LeaseState.ACTIVE)
    advice = advice_for_lease(lease, now=now) if is_advised else None
    context: dict[str, Any] = {
        "lease": lease,
        "row": row,
        "devices": device_views(placements),
        "silent_text": silent_lease_text(placements),
        "former_tenant": "" if is_over else former_tenant_text(placements),
        "entrance": entrance(placements, gang_environment(lease, all_parts))
        if may_see_access(rights, lease) and not is_over
        else None,
        "cluster": cluster_job(placements),
        "may_see_access": may_see_access(rights, lease),
        "has_terminal": why_no_terminal(lease, rights.user) is None,
        "may_watch": may_watch(lease, rights.user),
        **_openable(request, lease),
        "again": _again(lease) if is_over else "",
        "opening": asked_to_open(request, lease.request) if not is_over else None,
        "opens_now": lease_opening(request, lease),
        "values": live_values(lease, now=now) if lease.state in MEASURED else [],
        "shows_processes": may_see_access(rights, lease) and lease.state in WITH_PROCESSES,
        "processes": own_processes(lease, now=now) if may_see_access(rights, lease) else None,
        "is_over": is_over,
        "failure": _failure(rights, lease) if lease.end_reason == EndReason.FAULT else None,
        "receipt": receipt_of(lease) if is_over else None,
        "energy": shown_energy(energy_of_lease(lease, now=now)) if lease.activated_at else None,
        "steps": request_steps(lease.request, [lease], starts_at=None),
        "extensions": extensions(lease, now=now, latest=latest) if may_manage else [],
        "waiting": waiting_view(lease) if not is_over else None,
        "block_text": block_sentence(latest) if latest and latest.why != "flavor" else "",
        "may_extend": may_manage
        and lease.state == LeaseState.ACTIVE
        and not lease.is_extra
        and lease.preempt_at is None
        and waiting_extension(lease) is None,
        "may_release": may_manage and lease.state in RELEASABLE,
        "longest": span(lease.flavor.max_duration_s),
        "saving": _saving(lease, row),
        "others": lease_rows([one for one in all_parts if one.pk != lease.pk], now=now),
        "is_gang": lease.request.nodes != 1,
        "labels": labels_of([lease]).get(lease.pk),
        "may_label": may_label_request(rights, lease.request),
        "sees_policy": rights.is_operator,
        "idle": idle_card(rights, lease),
        "advice": lease_advice(rights.user, lease, advice),
    }
    response = render(request, "web/lease_detail.html", context)
    # Also before it is active: what a refresh then shows keeps the policy of the page it came into.
    leads = settings.GATEWAYS and settings.APPS_DOMAIN and lease.user_id == rights.user.pk and not is_over
    return leads_to_apps(request, response) if leads else response


@require_safe
def processes(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a lease's processes alone, for its page to take anew every few seconds; empty once it is over.

    Raises NotFound for whoever may not see how it is reached.
    """
    rights, now = rights_of(request), timezone.now()
    lease = visible_lease(rights, uid)
    if not may_see_access(rights, lease):
        raise NotFound
    if lease.state not in WITH_PROCESSES:
        return HttpResponse()
    context = {"lease": lease, "processes": own_processes(lease, now=now)}
    return render(request, "web/parts/lease_processes.html", context)


def _again(lease: Lease) -> str:
    """Return where the same is asked for once more, "" where that cannot be."""
    return again_address(lease.request) if lease.flavor.is_active and not lease.request.is_job else ""


def _openable(request: HttpRequest, lease: Lease) -> dict[str, Any]:
    """Return the apps that the holder of an active lease can open here, and why not where that is none."""
    is_mine = lease.user_id == rights_of(request).user.pk and lease.state == LeaseState.ACTIVE
    refusal = why_no_app(lease, rights_of(request).user, host=request.get_host()) if is_mine else None
    is_wanted = is_mine and bool(settings.GATEWAYS)
    return {"apps": apps() if is_mine and refusal is None else (), "no_apps": refusal if is_wanted else None}


def waiting_view(lease: Lease) -> WaitingExtension | None:
    """Return the extension of a lease that waits for an approver, with what it costs."""
    asked = waiting_extension(lease)
    if asked is None:
        return None
    offer = _extension(lease, asked.extra_s)
    return WaitingExtension(lease, str(asked.asked_by), asked.asked_at, offer)


def _failure(rights: Rights, lease: Lease) -> dict[str, str]:
    """Return why a lease failed and what comes next; the node's own words for operators alone."""
    return {
        "text": why_failed(lease),
        "next": aftermath_text(lease),
        "code": failure_code(lease.fault) if rights.is_operator else "",
        "detail": failure_detail(lease.fault) if rights.is_operator else "",
    }


def extensions(lease: Lease, *, now: datetime, latest: NextBlock | None) -> list[Extension]:
    """Return the usual extensions that fit before what comes behind, and up to there, priced.

    That is the flavor's longest time, a booking of its place or maintenance of its node.
    """
    if lease.state != LeaseState.ACTIVE or latest is None or lease.not_after <= now:
        return []
    most_s = int((latest.at - lease.not_after).total_seconds())
    fitting = [extra for extra in EXTENSIONS_S if extra <= most_s]
    if latest.why != "flavor" and most_s >= LEAST_EXTRA_S and most_s not in fitting:
        fitting = sorted([*fitting, most_s])
    return [_extension(lease, extra) for extra in fitting]


def _extension(lease: Lease, extra_s: int) -> Extension:
    price = None
    try:
        found = pricing.quote(
            lease.flavor,
            team_id=lease.team_id,
            is_preemptible=lease.is_preemptible,
            count=_extended_units(lease),
            duration_s=extra_s,
            starts_at=lease.not_after,
            price_milli=lease.price_milli,
        )
        price = money(found.amount_micro)
    except BerthError:
        price = None
    return Extension(
        value=duration_text(extra_s),
        label=span(extra_s) or "",
        until=lease.not_after + timedelta(seconds=extra_s),
        price=price,
        currency=lease.request.currency,
    )


def _extended_units(lease: Lease) -> int:
    """Return how many units an extension pays for: all parts of a gang are extended together."""
    asked = lease.request
    return lease.count if asked.nodes == 1 else asked.count * max(asked.nodes, 1)


def _saving(lease: Lease, row: LeaseRow) -> Decimal | None:
    """Return what releasing now saves of the price that was quoted; None when that is unknown or nothing."""
    quoted = money(quoted_micro(lease))
    if lease.state != LeaseState.ACTIVE or row.cost is None or quoted is None or row.cost >= quoted:
        return None
    return quoted - row.cost
