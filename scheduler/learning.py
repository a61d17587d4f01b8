"""Learn from the requests that came what requests look like, for the placement policy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from django.db import IntegrityError

from portal.leases.models import LeaseRequest
from portal.leases.states import RequestState
from portal.policies import demand as tables
from portal.policies.models import DemandTable
from scheduler.engine.demand import MOST, differ, priced, seen
from scheduler.engine.model import SHARED_MODES
from scheduler.engine.place.statistics import Form

NEW_FROM = 0.05  # of the requests others, or of the demand over: a new version is worth it
FIELDS = (
    "flavor__mode", "count", "flavor__share_milli", "flavor__memory_mib", "flavor__cpu_milli",
    "flavor__host_memory_mib", "flavor__device_model__slug", "flavor__device_model__memory_mib", "state",
)  # fmt: skip


def learn(*, now: datetime) -> DemandTable | None:
    """Store a new table when the last requests look different from the present one; None otherwise.

    Safe to repeat and to run in parallel: the version is unique, and who comes second has nothing to add.
    """
    forms = list(_forms())
    found = seen(tables.next_version(), forms)
    if found is None or differ(found, tables.current_demand()) < NEW_FROM:
        return None
    try:
        return tables.store(priced(found), requests=len(forms), now=now)
    except IntegrityError:
        return None


def _forms() -> Iterator[tuple[Form, bool]]:
    """What the last requests asked of a node, and whether it is over.

    MIG slices take places of their own and are left out.
    """
    rows = LeaseRequest.objects.order_by("-id").exclude(flavor__mode="mig").values_list(*FIELDS)[:MOST]
    for mode, count, share, memory, cpu, host_memory, model, board_memory, state in rows:
        is_over = state == RequestState.FULFILLED
        if mode not in SHARED_MODES:
            yield Form(cpu * count, host_memory * count, 1000, count, model or ""), is_over
            continue
        part = min(max(share, -(-memory * 1000 // max(board_memory or memory, 1))), 1000)
        for _ in range(count):
            yield Form(cpu, host_memory, part, 1, model or ""), is_over
