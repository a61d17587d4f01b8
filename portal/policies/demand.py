"""Which tables of demand placement goes by: versions, each kept as it was when it decided."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Max

from portal.policies.models import DemandTable
from scheduler.engine.demand import Demand, Form


def current_demand() -> Demand:
    """The newest table; version 0, which knows nothing, as long as there is none."""
    row = DemandTable.objects.first()
    return Demand() if row is None else demand_of(row)


def demand_of(row: DemandTable) -> Demand:
    """A stored table as the engine takes it."""
    return Demand(
        row.version,
        tuple((Form(*fields), number) for fields, number in row.forms),
        tuple((size, price) for size, price in row.prices),
        row.churn_milli,
        row.used_milli,
        row.requests,
    )


def next_version() -> int:
    """The number that the next table would get."""
    return (DemandTable.objects.aggregate(last=Max("version"))["last"] or 0) + 1


@transaction.atomic
def store(demand: Demand, *, requests: int, now: datetime) -> DemandTable:
    """Keep a table that was learned from so many requests; raises IntegrityError when the version is taken."""
    return DemandTable.objects.create(
        version=demand.version,
        forms=[[list(form), number] for form, number in demand.forms],
        prices=[list(pair) for pair in demand.prices],
        requests=requests,
        churn_milli=demand.churn_milli,
        used_milli=demand.used_milli,
        made_at=now,
    )
