"""Leases as lists and cards show them: who, where, how long still, what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.billing.selectors import costs_and_prices
from portal.common.moments import span
from portal.leases.models import Lease
from portal.leases.selectors import seconds_left
from portal.leases.states import EndReason, LeaseState
from portal.web.figures import money, what_text


@dataclass(frozen=True)
class LeaseRow:
    """One lease; ``cost`` and ``per_hour`` are None when unknown, times None until they happened.

    ``read_at`` is when ``cost`` was right: the meter on the page runs on from there.
    """

    uid: str
    url: str
    topic: str
    title: str
    what: str
    team: str
    holder: str
    node: str
    state: str
    end_reason: str
    starts_at: datetime
    activated_at: datetime | None
    ends_at: datetime | None
    ended_at: datetime | None
    run_s: int | None
    left_s: int | None
    total_s: int | None
    ends_soon: bool
    ran: str
    cost: Decimal | None
    per_hour: Decimal | None
    currency: str
    memory_mib: int
    read_at: datetime
    part: str = ""
    is_extra: bool = False
    must_go: str = ""

    @property
    def is_running(self) -> bool:
        """Whether the money clock runs."""
        return self.state == LeaseState.ACTIVE


def lease_rows(leases: Sequence[Lease], *, now: datetime) -> list[LeaseRow]:
    """Return rows for leases read with team, user, flavor, node and request; a bounded number of queries."""
    if not leases:
        return []
    found = costs_and_prices(leases, now=now)
    return [_row(lease, cost=found[lease.pk][0], hourly=found[lease.pk][1], now=now) for lease in leases]


def part_text(lease: Lease) -> str:
    """Return which of its request's leases this is, in words; "" for the only one."""
    if lease.is_extra:
        return _("grown")
    if lease.request.nodes > 1:
        return _("part %(n)d of %(all)d") % {"n": lease.part + 1, "all": lease.request.nodes}
    return _("part %(n)d") % {"n": lease.part + 1} if lease.request.nodes == 0 else ""


def end_text(lease: Lease) -> str:
    """Return why the lease ended, in words; "" while it lives."""
    if lease.end_reason == EndReason.NONE:
        return ""
    if lease.end_reason == EndReason.FAULT and lease.activated_at is None:
        return _("It could not be started")
    if lease.end_reason == EndReason.IDLE:
        return _("Taken back, because it idled")
    return str(EndReason(lease.end_reason).label)


def _row(lease: Lease, *, cost: int | None, hourly: int | None, now: datetime) -> LeaseRow:
    what = what_text(lease.flavor.shown_name, lease.count)
    is_on = lease.state in (LeaseState.ACTIVE, LeaseState.INTERRUPTED)
    left_s = seconds_left(lease, now=now)
    run_s = _run_s(lease, now)
    return LeaseRow(
        uid=lease.uid,
        url=reverse("web:lease", args=[lease.uid]),
        topic=f"lease:{lease.uid}",
        title=lease.request.name or what,
        what=what,
        team=lease.team.name,
        holder=str(lease.user),
        node=lease.node.name,
        state=lease.state,
        end_reason=end_text(lease),
        starts_at=lease.starts_at,
        activated_at=lease.activated_at,
        ends_at=lease.ends_at if is_on else None,
        ended_at=lease.ended_at,
        run_s=run_s,
        left_s=left_s,
        total_s=None if run_s is None or left_s is None else run_s + left_s,
        ends_soon=left_s is not None and left_s <= settings.LEASE_WARN_BEFORE_S,
        ran=span(run_s) or "",
        cost=money(cost),
        per_hour=money(hourly),
        currency=lease.request.currency,
        memory_mib=lease.flavor.memory_mib * lease.count,
        read_at=now,
        part=part_text(lease),
        is_extra=lease.is_extra,
        must_go=must_go_text(lease) if is_on else "",
    )


def must_go_text(lease: Lease) -> str:
    """Return why the lease was told to go, in words; "" while it may stay."""
    return {
        "reclaim": _("Another team takes back what it is guaranteed."),
        "priority": _("It may be preempted, and a request that goes before it needs the place."),
        "elastic": _("It was grown while devices idled, and somebody waits for them now."),
        "idle": _("It idles. It stays if it is used before then."),
    }.get(lease.must_go_for, "")


def _run_s(lease: Lease, now: datetime) -> int | None:
    """Return the whole seconds between activation and the end (or now); None before activation."""
    if lease.activated_at is None:
        return None
    until = lease.ended_at or now
    return max(
        0, int((until.replace(microsecond=0) - lease.activated_at.replace(microsecond=0)).total_seconds())
    )
