"""The side of a lease that belongs to no device: the unit that lets its holder in, opened last and closed first.

Pure like the reconciler that owns it. A unit is opened once all places of its lease stand; then each place binds
its limits to it. At the end limits are loosened, the unit is closed, and only then are places cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from nodeagent.host.notices import VARIABLE
from nodeagent.protocol.messages import DesiredSlot
from nodeagent.protocol.variables import merged
from nodeagent.reconcile.lease_records import GONE, NS, PREPARING, READY, Key, LeasePlace, LeaseRecord
from nodeagent.reconcile.steps import DeviceStep, StepOutcome
from nodeagent.runtimes.base import LeaseGrant, Runtime, RuntimeRefusedError

log = logging.getLogger(__name__)

# The unit's own end comes a little after the agent's, so that it only acts when the agent does not; what is in it
# has its grace then.
LATER_S: Final = 10
SLACK_NS: Final = 5 * NS
UNCLAIMED: Final = "stray"
SHARED: Final = frozenset({"mps", "memlimit", "timeslice"})


class LeaseUnits:
    """Which leases are open on this host, as far as a runtime keeps units at all (None: the driver plays holders)."""

    def __init__(self, runtime: Runtime | None) -> None:
        """Look at what is open: re-derived, never believed from the journal.

        Units of ready leases are opened once more, which finds them as they are and puts right what an earlier
        life left half-done (two ends armed, say); nothing that runs in them notices.
        """
        self.runtime = runtime
        # What a holder is told of a lease that the driver plays, as words of an entrance.
        self.played_words: Callable[[LeaseRecord], dict[str, str]] = lambda record: {}
        self.known: frozenset[Key] = frozenset()
        self._is_told = True
        try:
            self.known = frozenset(() if runtime is None else runtime.known())
        except RuntimeRefusedError as no:  # slow at start, say: the first look that succeeds tells
            log.warning("cannot tell yet which leases are open: %s", no)
            self._is_told = False
        self._opened: set[Key] = set()
        self._shut: set[Key] = set()

    def begin_look(self) -> None:
        """Remember from now on what this agent opens and closes while it looks at what is open."""
        self._opened.clear()
        self._shut.clear()

    def may_be_open(self, key: Key) -> bool:
        """Say whether a lease is open on this host, as far as the host has told."""
        return key in self.known or not self._is_told

    def is_let_in(self, record: LeaseRecord) -> bool:
        """Say whether a lease is open to its holder and bound by its limits."""
        is_bound = self.is_open(record) and all(place.is_confined for place in record.places)
        return record.is_standing and (is_bound or self.runtime is None) and not record.awaits_image

    def is_open(self, record: LeaseRecord) -> bool:
        """Say whether a lease's unit is open, and its own end the one that the lease has now.

        While a lease is being made its end moves on; what counts is the end that it has once it is ready.
        """
        is_late = record.phase == READY and abs(record.last_end - record.armed_for) > SLACK_NS
        return record.is_open and not is_late

    def is_closed(self, record: LeaseRecord) -> bool:
        """Say whether nothing runs in a draining lease's unit any more."""
        return self.runtime is None or record.is_closed

    def opening(
        self, device: str, record: LeaseRecord, place: LeasePlace, notice: Path, now: int
    ) -> DeviceStep | None:
        """Return the step that opens a standing lease, or binds this place's limits to it."""
        if record.awaits_image:
            return None
        if not self.is_open(record):
            if place is not record.places[0] or record.retry_at > now:
                return None
            return DeviceStep("open", device, record, place, grant=grant_of(record, now, str(notice)))
        if not place.is_confined and place.retry_at <= now:
            return DeviceStep("confine", device, record, place)
        return None

    def closing(
        self,
        device: str,
        record: LeaseRecord,
        place: LeasePlace,
        leader: str,
        lost: Collection[str],
        now: int,
    ) -> DeviceStep | None:
        """Return the step that loosens a place of a draining lease or closes its unit, on the leader's lane.

        The unit waits until all places are loosened but those on lost devices: calls to one may hang.
        """
        kill = now >= record.kill_at
        wanted = 2 if kill else 1
        if is_tight(place, wanted):
            return DeviceStep("loosen", device, record, place, kill=kill)
        must_wait = any(is_tight(p, wanted) and p.slot.device not in lost for p in record.places)
        if device != leader or must_wait or record.retry_at > now:
            return None
        return DeviceStep("close", device, record, place, kill=kill)

    def settle(self, step: DeviceStep, outcome: StepOutcome, now: int) -> None:
        """Take the result of a step of this side into account; failing the lease is the reconciler's business."""
        record, place = step.record, step.place
        if step.kind == "loosen":
            self._loosened(step, outcome)
        elif outcome.refusal is not None:
            patience = place if step.kind == "confine" else record
            patience.postpone(now, record.kill_at if step.kind == "close" else None)
        elif step.kind == "open" and outcome.entrance is not None:
            record.is_open, record.entrance = True, dict(outcome.entrance.words)
            record.armed_for = 0 if step.grant is None else step.grant.armed_for
            record.cgroup = outcome.entrance.cgroup
            record.hurry()
            self.known |= {record.key}
            self._opened.add(record.key)
            for each in record.places:
                each.is_confined = False
        elif step.kind == "confine":
            place.is_confined = True
            place.hurry()
        elif step.kind == "close":
            record.is_closed = True
            self.known -= {record.key}
            self._shut.add(record.key)

    def _loosened(self, step: DeviceStep, outcome: StepOutcome) -> None:
        """A limit that cannot be loosened keeps nothing: what counts is that nothing runs any more."""
        if outcome.refusal is not None:
            log.warning(
                "limits of lease %s could not be loosened: %s", step.record.lease, outcome.refusal.detail
            )
        step.place.loosened = 2 if step.kill else 1
        if step.kill:
            step.record.hurry()

    def observe(
        self, known: Collection[Key], whole: Collection[Key], lease_records: Mapping[Key, LeaseRecord]
    ) -> None:
        """Take a look at what is open now into account: a ready lease that lost a way in is opened again.

        Opening finds the ways that are left as they are; what runs in them goes on.
        """
        known = (set(known) - self._shut) | self._opened
        whole = set(whole) | self._opened
        for record in lease_records.values():
            if record.phase == READY and record.is_open and record.key not in whole:
                log.warning("a way into lease %s is gone; it is opened again", record.lease)
                record.is_open = False
                record.hurry()
            for place in record.places if record.phase == READY else ():
                # What holds a share to its size can be taken away: binding it once more looks, and puts it back.
                place.is_confined = place.is_confined and place.slot.mode not in SHARED
        self.known, self._is_told = frozenset(known), True

    def unclaimed(
        self, lease_records: Mapping[Key, LeaseRecord], wanted: Collection[Key] | None
    ) -> Iterable[Key]:
        """Return the leases that are open here though no desired state and no record knows them any more."""
        if wanted is None:
            return ()
        return [key for key in self.known if key not in wanted and key not in lease_records]

    def reopened(self, lease_records: Mapping[Key, LeaseRecord]) -> list[LeaseRecord]:
        """Return leases that are over by their record though something of theirs is still open here."""
        return [
            record
            for key, record in lease_records.items()
            if record.phase == GONE and key in self.known and self.runtime
        ]


def is_tight(place: LeasePlace, wanted: int = 1) -> bool:
    """Say whether a place's limits are still to be loosened; ``wanted`` as ``LeasePlace.loosened`` counts."""
    return place.is_made and not place.is_cleared and place.loosened < wanted


def nowhere() -> LeasePlace:
    """Return a place on no device, for steps of a lease that has none."""
    return LeasePlace(DesiredSlot("", "exclusive", 0, 0, 0, 0), 0, is_cleared=True)


def unclaimed_record(key: Key, now: int) -> LeaseRecord:
    """Return the record that closes a unit nobody remembers; it holds no place on any device."""
    record = LeaseRecord(lease=key[0], generation=key[1], places=[nowhere()], deadline=now, taken_at=now)
    record.is_clock_lost = True  # how long it was used is not known here
    record.drain(UNCLAIMED, now)
    return record


def grant_of(record: LeaseRecord, now: int, notice: str) -> LeaseGrant:
    """Return what a standing lease may use, all its places together.

    Its time is counted from now: what making it took is added to the end of a lease that is not ready yet.
    """
    nodes: dict[str, None] = {}
    folders: dict[str, None] = {}
    binds: dict[str, str] = {}
    for place in record.places:
        if place.access is None:
            continue
        nodes |= dict.fromkeys(place.access.nodes)
        folders |= dict.fromkeys(place.folders)
        binds |= place.binds
    envs = [place.access.env for place in record.places if place.access is not None]
    made_in = now - record.taken_at if record.phase == PREPARING else 0
    armed_for = record.last_end + made_in
    left_s = max(0, -(-(armed_for - now) // NS))
    return LeaseGrant(
        lease=record.lease,
        generation=record.generation,
        user=record.user,
        team=record.team,
        env={**merged(envs), "BERTH_LEASE": record.lease, VARIABLE: notice},
        nodes=tuple(nodes),
        ends_in_s=left_s + LATER_S,
        grace_s=record.grace_s,
        folders=tuple(folders),
        shown=(str(Path(notice).parent),),
        binds=binds,
        cpu_milli=record.cpu_milli,
        memory_mib=record.host_memory_mib,
        armed_for=armed_for,
    )
