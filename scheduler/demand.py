"""Learn from recent requests what requests look like, for the placement policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from django.db import IntegrityError

from portal.leases.models import LeaseRequest
from portal.leases.states import RequestState
from portal.policies import demand as tables
from portal.policies.models import DemandTable
from portal.policies.selectors import active_policy
from scheduler.engine.demand import Form
from scheduler.engine.learning.demand import MOST, relearned
from scheduler.engine.model import SHARED_MODES, Snapshot
from scheduler.engine.state import EngineState

FIELDS = (
    "flavor__mode", "count", "flavor__share_milli", "flavor__memory_mib", "flavor__cpu_milli",
    "flavor__host_memory_mib", "flavor__device_model__slug", "flavor__device_model__memory_mib", "state",
)  # fmt: skip


def learn(picture: Snapshot, *, now: datetime) -> DemandTable | None:
    """Store a new table when requests or fleet look different from the present one; None otherwise.

    ``picture`` is the installation as it is. Safe to repeat and to run in parallel: the version is unique, and
    who comes second has nothing to add.
    """
    requests = Counter(_forms())
    left = EngineState.from_snapshot(picture, active_policy()).fleet.left()
    found = relearned(picture.demand, tables.next_version(), requests, left)
    if found is None:
        return None
    try:
        return tables.store(found, requests=requests.total(), now=now)
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
