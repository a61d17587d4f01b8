"""The capacity of a month as pages show it: counted at once where that is quick, else as the worker counted it last.

A month of 80,000 leases on a thousand devices takes half a minute to go through.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from django.db import transaction
from django.db.models import Sum

from portal.billing.conservation import CapacityAccount, DeviceAccount, all_devices, capacity_by_device
from portal.billing.models import BillingPeriod, CapacityCount, PeriodState, UsageTotal
from portal.common.invariants import one_snapshot
from portal.common.sql import fetch

MOST_AT_ONCE: Final = 10_000  # usage records
COUNTED_EVERY: Final = timedelta(hours=1)
# Months with more than a page counts: never counted, open and counted long ago, or closed since.
_WANTED = f"""
SELECT p.id FROM billing_billingperiod p LEFT JOIN billing_capacitycount c ON c.period_id = p.id
 WHERE (SELECT sum(records) FROM billing_usagetotal t WHERE t.period_id = p.id) > %(most)s
   AND (c.period_id IS NULL OR c.counted_at < p.closed_at
        OR (p.state <> '{PeriodState.CLOSED}' AND c.counted_at <= %(before)s))
 ORDER BY c.counted_at NULLS FIRST, p.starts_at DESC LIMIT 1
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class CountedCapacity:
    """The account of each device, by node and index, as of an instant."""

    devices: list[DeviceAccount]
    at: datetime


def counted_capacity(period: BillingPeriod, *, now: datetime) -> CountedCapacity | None:
    """Return where a month's capacity went; None for a large month that the worker has yet to count."""
    records = UsageTotal.objects.filter(period=period).aggregate(n=Sum("records"))["n"] or 0
    if records <= MOST_AT_ONCE:
        return CountedCapacity(all_devices(capacity_by_device(period, now=now)), now)
    row = CapacityCount.objects.filter(period=period).first()
    if row is None:
        return None
    accounts = {int(pk): _account(told) for pk, told in row.devices.items()}
    return CountedCapacity(all_devices(accounts), row.counted_at)


def count_capacity(*, now: datetime) -> BillingPeriod | None:
    """Count the month that wants it most, in one snapshot; returns it, None where none does. Safe to repeat.

    Call outside a transaction. What somebody counted later stays.
    """
    found = fetch(_WANTED, {"most": MOST_AT_ONCE, "before": now - COUNTED_EVERY})
    if not found:
        return None
    with one_snapshot():
        period = BillingPeriod.objects.get(pk=found[0][0])
        devices = {str(pk): _told(one) for pk, one in capacity_by_device(period, now=now).items()}
    with transaction.atomic():
        row, _is_new = CapacityCount.objects.select_for_update().get_or_create(
            period=period, defaults={"counted_at": now, "devices": devices}
        )
        if row.counted_at < now:
            row.counted_at, row.devices = now, devices
            row.save()
    return period


def _told(account: CapacityAccount) -> dict[str, Any]:
    return {
        "kinds": {str(kind): amount for kind, amount in account.kinds.items() if amount},
        "above": account.above,
        "capacity": account.capacity,
        "stranded_micro": str(account.stranded_micro),
    }


def _account(told: dict[str, Any]) -> CapacityAccount:
    account = CapacityAccount(
        above=told["above"], capacity=told["capacity"], stranded_micro=Decimal(told["stranded_micro"])
    )
    account.kinds.update(told["kinds"])
    return account
