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
from nodeagent.reconcile.health import Wellbeing
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import DRAINING, GONE, PREPARING, READY, Work
from nodeagent.reconcile.ledger import Ledger
from nodeagent.reconcile.observed import Sight
from nodeagent.reconcile.power import PowerMind
from nodeagent.reconcile.steps import Refusal
from nodeagent.reconcile.units import Units
from nodeagent.runtimes.base import Runtime

log = logging.getLogger(__name__)

NO_DEVICE: Final = ""


class NodeState:
    """``changed`` is set whenever the portal should hear something new; ``busy`` names lanes with a step under way."""

    def __init__(
        self, node: str, driver: Driver, journal: Journal, runtime: Runtime | None, notices: Path | None
    ) -> None:
        """Read the journal and the driver's inventory; nothing is looked at yet."""
        self.node = node
        self.driver = driver
        self.devices = {fact.uuid: fact for fact in driver.inventory()}
        self.mig = {uuid: fact.mig_enabled for uuid, fact in self.devices.items()}
        self.health = Wellbeing()
        self.busy: set[str] = set()
        self.changed = True
        self.ledger = Ledger(journal, driver.boot_id(), driver.version)
        self.works = self.ledger.works
        self.power = PowerMind(driver)
        self.units = Units(runtime)
        self.sight = Sight(self.devices)
        self._notices = notices or journal.path.parent / "notices"

    def notice_of(self, work: Work) -> Path:
        """Return the file that a lease's holder reads notices from."""
        return notice_path(self._notices, work.lease)

    def holds_nothing(self) -> bool:
        """Say whether no lease is on the node, none is being cleaned up, and nothing foreign stands there."""
        return all(work.phase == GONE for work in self.works.values()) and not any(self.sight.facts.values())

    def finish(self, work: Work) -> None:
        """Call a draining work gone when nothing of it is left."""
        is_over = self.units.is_closed(work) and all(place.is_cleared for place in work.places)
        if work.phase == DRAINING and is_over:
            work.phase = GONE
            if work.code == "in_use":  # that was while it was being cleared
                work.code = work.detail = ""

    def drain(self, work: Work, reason: str, now: int) -> None:
        """Begin to take a work away; what lies on devices that are no longer here needs no clearing."""
        work.drain(reason, now)
        self.drop_missing(work)
        self.note(work)

    def drop_missing(self, work: Work) -> None:
        """Count places on devices that are no longer here as cleared: nobody can reach them, a reboot clears them."""
        for place in work.places:
            if place.slot.device not in self.devices:
                place.is_cleared, place.is_made = True, False
        work.is_closed = work.is_closed or not work.places
        self.finish(work)

    def fail(self, work: Work, refusal: Refusal, now: int) -> None:
        """Give a lease up that is not ending yet."""
        if work.phase in (PREPARING, READY):
            log.warning("lease %s failed: %s: %s", work.lease, refusal.word, refusal.detail)
            work.fail(refusal.word, refusal.detail, now)
            self.note(work)

    def note(self, work: Work) -> None:
        """Remember to write a work down, and that the portal should hear of it."""
        self.ledger.note(work)
        self.changed = True
