"""The side of a lease that belongs to no device: the unit that lets its holder in, opened last and closed first.

Pure like the reconciler that owns it. A unit is opened once all places of its lease stand; then each place binds
its limits to it. At the end limits are loosened, the unit is closed, and only then are places cleared.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from nodeagent.host.notices import VARIABLE
from nodeagent.protocol.messages import DesiredSlot
from nodeagent.protocol.variables import merged
from nodeagent.reconcile.lease_records import GONE, NS, PREPARING, READY, Key, Place, Work
from nodeagent.reconcile.steps import Outcome, Step
from nodeagent.runtimes.base import Grant, Runtime, RuntimeRefusedError

log = logging.getLogger(__name__)

# The unit's own end comes a little after the agent's, so that it only acts when the agent does not; what is in it
# has its grace then.
LATER_S: Final = 10
SLACK_NS: Final = 5 * NS
STRAY: Final = "stray"
SHARED: Final = frozenset({"mps", "memlimit", "timeslice"})


class Units:
    """Which leases are open on this host, as far as a runtime keeps units at all (None: the driver plays holders)."""

    def __init__(self, runtime: Runtime | None) -> None:
        """Look at what is open: re-derived, never believed from the journal.

        Units of ready leases are opened once more, which finds them as they are and puts right what an earlier
        life left half-done (two ends armed, say); nothing that runs in them notices.
        """
        self.runtime = runtime
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

    def is_let_in(self, work: Work) -> bool:
        """Say whether a lease is open to its holder and bound by its limits."""
        is_bound = self.is_open(work) and all(place.is_confined for place in work.places)
        return work.is_standing and (is_bound or self.runtime is None)

    def is_open(self, work: Work) -> bool:
        """Say whether a lease's unit is open, and its own end the one that the lease has now.

        While a lease is being made its end moves on; what counts is the end that it has once it is ready.
        """
        is_late = work.phase == READY and abs(work.deadline - work.armed_for) > SLACK_NS
        return work.is_open and not is_late

    def is_closed(self, work: Work) -> bool:
        """Say whether nothing runs in a draining lease's unit any more."""
        return self.runtime is None or work.is_closed

    def opening(self, device: str, work: Work, place: Place, notice: Path, now: int) -> Step | None:
        """Return the step that opens a standing lease, or binds this place's limits to it."""
        if not self.is_open(work):
            if place is not work.places[0] or work.retry_at > now:
                return None
            return Step("open", device, work, place, grant=grant_of(work, now, str(notice)))
        if not place.is_confined and place.retry_at <= now:
            return Step("confine", device, work, place)
        return None

    def closing(
        self, device: str, work: Work, place: Place, leader: str, lost: Collection[str], now: int
    ) -> Step | None:
        """Return the step that loosens a place of a draining lease or closes its unit, on the leader's lane.

        The unit waits until all places are loosened but those on lost devices: calls to one may hang.
        """
        kill = now >= work.kill_at
        wanted = 2 if kill else 1
        if is_tight(place, wanted):
            return Step("loosen", device, work, place, kill=kill)
        must_wait = any(is_tight(p, wanted) and p.slot.device not in lost for p in work.places)
        if device != leader or must_wait or work.retry_at > now:
            return None
        return Step("close", device, work, place, kill=kill)

    def settle(self, step: Step, outcome: Outcome, now: int) -> None:
        """Take the result of a step of this side into account; failing the lease is the reconciler's business."""
        work, place = step.work, step.place
        if step.kind == "loosen":
            self._loosened(step, outcome)
        elif outcome.refusal is not None:
            patience = place if step.kind == "confine" else work
            patience.postpone(now, work.kill_at if step.kind == "close" else None)
        elif step.kind == "open" and outcome.entrance is not None:
            work.is_open, work.entrance = True, dict(outcome.entrance.words)
            work.armed_for = 0 if step.grant is None else step.grant.armed_for
            work.cgroup = outcome.entrance.cgroup
            work.hurry()
            self.known |= {work.key}
            self._opened.add(work.key)
            for each in work.places:
                each.is_confined = False
        elif step.kind == "confine":
            place.is_confined = True
            place.hurry()
        elif step.kind == "close":
            work.is_closed = True
            self.known -= {work.key}
            self._shut.add(work.key)

    def _loosened(self, step: Step, outcome: Outcome) -> None:
        """A limit that cannot be loosened keeps nothing: what counts is that nothing runs any more."""
        if outcome.refusal is not None:
            log.warning(
                "limits of lease %s could not be loosened: %s", step.work.lease, outcome.refusal.detail
            )
        step.place.loosened = 2 if step.kill else 1
        if step.kill:
            step.work.hurry()

    def observed(self, known: Collection[Key], whole: Collection[Key], works: Mapping[Key, Work]) -> None:
        """Take a look at what is open now into account: a ready lease that lost a way in is opened again.

        Opening finds the ways that are left as they are; what runs in them goes on.
        """
        known = (set(known) - self._shut) | self._opened
        whole = set(whole) | self._opened
        for work in works.values():
            if work.phase == READY and work.is_open and work.key not in whole:
                log.warning("a way into lease %s is gone; it is opened again", work.lease)
                work.is_open = False
                work.hurry()
            for place in work.places if work.phase == READY else ():
                # What holds a share to its size can be taken away: binding it once more looks, and puts it back.
                place.is_confined = place.is_confined and place.slot.mode not in SHARED
        self.known, self._is_told = frozenset(known), True

    def strays(self, works: Mapping[Key, Work], wanted: Collection[Key] | None) -> Iterable[Key]:
        """Return the leases that are open here though no desired state and no work knows them any more."""
        return () if wanted is None else [key for key in self.known if key not in wanted and key not in works]

    def reopened(self, works: Mapping[Key, Work]) -> list[Work]:
        """Return leases that are over by their record though something of theirs is still open here."""
        return [
            work for key, work in works.items() if work.phase == GONE and key in self.known and self.runtime
        ]


def is_tight(place: Place, wanted: int = 1) -> bool:
    """Say whether a place's limits are still to be loosened; ``wanted`` as ``Place.loosened`` counts."""
    return place.is_made and not place.is_cleared and place.loosened < wanted


def nowhere() -> Place:
    """Return a place on no device, for steps of a lease that has none."""
    return Place(DesiredSlot("", "exclusive", 0, 0, 0, 0), 0, is_cleared=True)


def stray_work(key: Key, now: int) -> Work:
    """Return the work that closes a unit nobody remembers; it holds no place on any device."""
    work = Work(lease=key[0], generation=key[1], places=[nowhere()], deadline=now, taken_at=now)
    work.is_clock_lost = True  # how long it was used is not known here
    work.drain(STRAY, now)
    return work


def grant_of(work: Work, now: int, notice: str) -> Grant:
    """Return what a standing lease may use, all its places together.

    Its time is counted from now: what making it took is added to the end of a lease that is not ready yet.
    """
    nodes: dict[str, None] = {}
    folders: dict[str, None] = {}
    binds: dict[str, str] = {}
    for place in work.places:
        if place.access is None:
            continue
        nodes |= dict.fromkeys(place.access.nodes)
        folders |= dict.fromkeys(place.folders)
        binds |= place.binds
    envs = [place.access.env for place in work.places if place.access is not None]
    made_in = now - work.taken_at if work.phase == PREPARING else 0
    armed_for = work.deadline + made_in
    left_s = max(0, -(-(armed_for - now) // NS))
    return Grant(
        lease=work.lease,
        generation=work.generation,
        user=work.user,
        team=work.team,
        env={**merged(envs), "BERTH_LEASE": work.lease, VARIABLE: notice},
        nodes=tuple(nodes),
        ends_in_s=left_s + LATER_S,
        grace_s=work.grace_s,
        folders=tuple(folders),
        shown=(str(Path(notice).parent),),
        binds=binds,
        cpu_milli=work.cpu_milli,
        memory_mib=work.host_memory_mib,
        armed_for=armed_for,
    )
