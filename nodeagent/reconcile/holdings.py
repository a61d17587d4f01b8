"""Who holds what, as whoever looks at processes needs to know it."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.processes.attribution import Holding
from nodeagent.processes.guard import ScanScope
from nodeagent.reconcile.lease_records import GONE, LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.base import CDI


def scan_scope(reconciler: Reconciler, *, is_isolating: bool) -> ScanScope:
    """Take down what the reconciler knows now; ``is_isolating`` as in ``holdings``."""
    return ScanScope(
        devices=tuple(reconciler.devices),
        partitions={
            device: [fact.uuid for fact in facts] for device, facts in reconciler.observed.facts.items()
        },
        holdings=holdings(reconciler.lease_records.values(), is_isolating=is_isolating),
    )


def holdings(lease_records: Iterable[LeaseRecord], *, is_isolating: bool) -> list[Holding]:
    """Return the places of all leases that are not gone; one that ends is live until it is.

    ``is_isolating``: the runtime keeps a boundary around each lease.
    """
    return [
        Holding(
            record.lease,
            record.generation,
            place.slot.device,
            place.partition,
            place.slot.mode,
            has_unit=is_isolating,
            has_door=CDI in record.entrance,
        )
        for record in lease_records
        if record.phase != GONE
        for place in record.places
        if place.partition
    ]
