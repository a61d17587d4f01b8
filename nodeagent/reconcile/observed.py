"""What exists on the devices, and whose it is: partitions as last read, places of leases by device."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.lease_records import GONE, LeasePlace, LeaseRecord
from nodeagent.reconcile.steps import find

log = logging.getLogger(__name__)


class ObservedPartitions:
    """``facts`` are the partitions of each device as last read."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._devices = tuple(devices)
        self.facts: dict[str, tuple[PartitionFact, ...]] = {}
        self._dark: set[str] = set()
        self._on: dict[str, list[tuple[LeaseRecord, LeasePlace]]] = {}

    def see(self, device: str, facts: tuple[PartitionFact, ...] | None) -> bool:
        """Take a look at a device; says whether it is news. None: it did not answer, what was known stays."""
        if facts is None:
            if device not in self._dark:
                log.warning("%s does not tell what stands on it; what was read last is believed", device)
            self._dark.add(device)
            return False
        self._dark.discard(device)
        is_news = facts != self.facts.get(device)
        self.facts[device] = facts
        return is_news

    def index(self, lease_records: Iterable[LeaseRecord]) -> None:
        """Sort the places of all leases by device."""
        self._on = {device: [] for device in self._devices}
        for record in lease_records:
            for place in record.places:
                self._on.setdefault(place.slot.device, []).append((record, place))

    def on(self, device: str) -> Sequence[tuple[LeaseRecord, LeasePlace]]:
        """Return the places on a device."""
        return self._on.get(device, ())

    def held(self, device: str, but: LeasePlace) -> frozenset[str]:
        """Return the partitions of a device that other places hold."""
        return frozenset(p.partition for _, p in self.on(device) if p is not but and p.is_made)

    def foreign(self, device: str) -> list[PartitionFact]:
        """Return the partitions of a device that no lease of ours accounts for."""
        return [fact for fact in self.facts.get(device, ()) if self.owner(fact) is None]

    def owner(self, fact: PartitionFact) -> LeaseRecord | None:
        """Return the record of the lease that a partition belongs to, None when it is foreign."""
        on = [(w, p) for w, p in self.on(fact.device) if w.phase != GONE and _is_held(p)]
        known = [(w, p) for w, p in on if p.is_made and p.partition == fact.uuid]
        return next((w for w, p in (*known, *on) if find(w, p, (fact,)) is not None), None)

    def partitions(self) -> tuple[PartitionFact, ...]:
        """Return every partition on the node, with its lease when it is ours."""
        found = []
        for facts in self.facts.values():
            for fact in facts:
                record = self.owner(fact)
                lease = "" if record is None else record.lease
                found.append(
                    PartitionFact(fact.uuid, fact.device, fact.profile, fact.start, fact.size, lease)
                )
        return tuple(found)


def _is_held(place: LeasePlace) -> bool:
    """Say whether what stands at a place can be ours: once it was cleared, whatever comes there is somebody else's."""
    return place.is_ours and not place.is_cleared
