"""What the agent knows of its node: leases, devices, partitions, units, health and power.

The reconciler owns it; the functions beside it that choose steps and settle them work on it. One thread only, time is
passed in.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from nodeagent.drivers.base import Driver
from nodeagent.host.notices import notice_path
from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.health import DeviceHealth
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import DRAINING, GONE, PREPARING, READY, LeaseRecord
from nodeagent.reconcile.ledger import Ledger
from nodeagent.reconcile.observed import ObservedPartitions
from nodeagent.reconcile.power import PowerControl
from nodeagent.reconcile.reports import ReportedLeases
from nodeagent.reconcile.steps import StepRefusal
from nodeagent.reconcile.units import LeaseUnits
from nodeagent.runtimes.base import Runtime

log = logging.getLogger(__name__)

NO_DEVICE: Final = ""


class NodeState(ReportedLeases):
    """``busy`` names lanes with a step under way."""

    def __init__(
        self, node: str, driver: Driver, journal: Journal, runtime: Runtime | None, notices: Path | None
    ) -> None:
        """Read the journal and the driver's inventory; nothing is looked at yet."""
        super().__init__(node, Ledger(journal, driver.boot_id(), driver.version))
        self.driver = driver
        self.devices = {fact.uuid: fact for fact in driver.inventory()}
        self.mig = {uuid: fact.mig_enabled for uuid, fact in self.devices.items()}
        self.health = DeviceHealth()
        self.busy: set[str] = set()
        self.power = PowerControl(driver)
        self.units = LeaseUnits(runtime)
        self.observed = ObservedPartitions(self.devices)
        self._notices = notices or journal.path.parent / "notices"

    def notice_of(self, record: LeaseRecord) -> Path:
        """Return the file that a lease's holder reads notices from."""
        return notice_path(self._notices, record.lease)

    def holds_nothing(self) -> bool:
        """Say whether no lease is on the node, none is being cleaned up, and nothing foreign stands there."""
        return all(record.phase == GONE for record in self.lease_records.values()) and not any(
            self.observed.facts.values()
        )

    def finish(self, record: LeaseRecord) -> None:
        """Call a draining lease gone when nothing of it is left."""
        is_over = self.units.is_closed(record) and all(place.is_cleared for place in record.places)
        if record.phase == DRAINING and is_over:
            record.phase = GONE
            if record.code == "in_use":  # that was while it was being cleared
                record.code = record.detail = ""

    def drain(self, record: LeaseRecord, reason: str, now: int) -> None:
        """Begin to take a lease away; what lies on devices that are no longer here needs no clearing."""
        record.drain(reason, now)
        self.drop_missing(record)
        self.note(record)

    def drop_missing(self, record: LeaseRecord) -> None:
        """Count places on devices that are no longer here as cleared: nobody can reach them, a reboot clears them."""
        for place in record.places:
            if place.slot.device not in self.devices:
                place.is_cleared, place.is_made = True, False
        record.is_closed = record.is_closed or not record.places
        self.finish(record)

    def fail(self, record: LeaseRecord, refusal: StepRefusal, now: int) -> None:
        """Give a lease up that is not ending yet."""
        if record.phase in (PREPARING, READY):
            log.warning("lease %s failed: %s: %s", record.lease, refusal.word, refusal.detail)
            record.fail(refusal.word, refusal.detail, now)
            self.note(record)

    @property
    def runtime_name(self) -> str:
        """Return how holders get in, "" where the driver plays them."""
        return "" if self.units.runtime is None else self.units.runtime.name

    def partition_facts(self) -> tuple[PartitionFact, ...]:
        """Return what was seen on the devices."""
        return self.observed.partitions()

    def power_facts(self) -> tuple[str, str]:
        """Return the node's power as read, and why it is not what was wanted."""
        return self.power.state, self.power.note
