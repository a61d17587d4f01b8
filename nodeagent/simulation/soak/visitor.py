"""Somebody else with root on a host: makes slices where the agent's own are not, between any two of its wakes."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from nodeagent.protocol.messages import DeviceFact
from nodeagent.reconcile.lease_records import LeasePlace, LeaseRecord
from nodeagent.runtimes.base import Key
from nodeagent.simulation.soak.stage import Stage

MAKES: Final = 0.1
SNATCHES: Final = 0.6
AIMS: Final = 0.5
REFUSES: Final = 0.4
CLINGS: Final = 0.3
REMOVES: Final = 0.2
RESTARTS: Final = 0.2


@dataclass(frozen=True, slots=True)
class VisitOutcome:
    """What came of it: where a slice was made, whether one of ours was removed, whether the agent is restarted."""

    made: tuple[str, int] | None = None
    has_removed: bool = False
    restarts: bool = False


class SoakVisitor:
    """Comes before each desired state, wake and look. ``facts`` are the devices of the host."""

    def __init__(self, dice: random.Random, facts: Iterable[DeviceFact]) -> None:
        self._dice = dice
        self._devices = [fact for fact in facts if fact.profiles]

    def come(self, stage: Stage, lease_records: Iterable[LeaseRecord], live: Collection[Key]) -> VisitOutcome:
        """Make, remove, refuse and cling as the dice say; what ``live`` leases hold is left alone.

        Nothing is both removed and made again at one visit: between them nobody could see that it was gone.
        """
        places = [(record, p) for record in lease_records for p in record.places if p.slot.mode == "mig"]
        if self._dice.random() < REFUSES:
            stage.refuse(self._dice.randrange(1, 6))
        if self._dice.random() < CLINGS:
            stage.cling(self._dice.randrange(1, 6))
        ending = [place for record, place in places if place.is_made and record.key not in live]
        if ending and self._dice.random() < REMOVES:
            return VisitOutcome(has_removed=self._remove(stage, ending))
        made = self._make(stage, [place for _, place in places if not place.is_made])
        return VisitOutcome(made, restarts=self._dice.random() < RESTARTS)

    def _remove(self, stage: Stage, ending: list[LeasePlace]) -> bool:
        slot = self._dice.choice(ending).slot
        return stage.remove(slot.device, slot.start)

    def _make(self, stage: Stage, empty: list[LeasePlace]) -> tuple[str, int] | None:
        """Make a slice: most likely where ours was refused, else where one was removed or cleared, or anywhere."""
        refused = [place for place in empty if place.tries]
        if not self._devices or self._dice.random() >= (SNATCHES if refused else MAKES):
            return None
        if refused or (empty and self._dice.random() < AIMS):
            slot = self._dice.choice(refused or empty).slot
            device, profile, start = slot.device, slot.profile, slot.start
        else:
            fact = self._dice.choice(self._devices)
            size = self._dice.choice(fact.profiles)
            device, profile, start = fact.uuid, size.name, self._dice.choice(size.starts)
        return (device, start) if stage.add_foreign(device, profile, start) else None
