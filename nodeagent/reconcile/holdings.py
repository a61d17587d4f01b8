"""Who holds what, as whoever looks at processes needs to know it."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.processes.attribution import Holding
from nodeagent.processes.guard import ScanScope
from nodeagent.reconcile.lease_records import GONE, Work
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.runtimes.base import CDI


def scan_scope(mind: Reconciler, *, is_isolating: bool) -> ScanScope:
    """Take down what the reconciler knows now; ``is_isolating`` as in ``holdings``."""
    return ScanScope(
        devices=tuple(mind.devices),
        partitions={device: [fact.uuid for fact in facts] for device, facts in mind.sight.facts.items()},
        holdings=holdings(mind.works.values(), is_isolating=is_isolating),
    )


def holdings(works: Iterable[Work], *, is_isolating: bool) -> list[Holding]:
    """Return the places of all leases that are not gone; one that ends is live until it is.

    ``is_isolating``: the runtime keeps a boundary around each lease.
    """
    return [
        Holding(
            work.lease,
            work.generation,
            place.slot.device,
            place.partition,
            place.slot.mode,
            has_unit=is_isolating,
            has_door=CDI in work.entrance,
        )
        for work in works
        if work.phase != GONE
        for place in work.places
        if place.partition
    ]
