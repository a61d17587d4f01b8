"""Random stories for a node: desired states that are sound, and what happens to the host in between."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

from nodeagent.protocol.messages import DesiredLease, DesiredSlot, DeviceFact

TEAMS: Final = ("vision", "speech")
LONG_S: Final = 100_000
GRACES: Final = (0, 5, 30)
# An act takes this long, whatever happens in it: ends of leases fall between acts, not on their edges.
ACT_S: Final = 600
SHARES: Final = ("mps", "memlimit", "timeslice")

Event = Literal["reboot", "lose", "foreign", "refuse", "cling", "restart", "nothing"]
EVENTS: Final[tuple[Event, ...]] = (
    "nothing", "nothing", "restart", "refuse", "refuse", "cling", "cling", "foreign", "lose", "reboot",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WantedLease:
    """A lease of a story; ``ends_act`` is the act in which its own end comes (none: it stays until dropped)."""

    lease: DesiredLease
    ends_at_s: int


@dataclass(frozen=True, slots=True)
class SoakAct:
    """One desired state and what happens before it. ``device``, ``profile``, ``start`` belong to the event."""

    wishes: tuple[WantedLease, ...]
    event: Event
    device: str = ""
    profile: str = ""
    start: int = 0
    times: int = 1


def story(dice: random.Random, facts: tuple[DeviceFact, ...], acts: int) -> list[SoakAct]:
    """Return a story: each act keeps some leases of the act before, drops some and adds new ones that fit."""
    writer = _Writer(dice, facts)
    return [writer.act(number) for number in range(acts)]


class _Writer:
    def __init__(self, dice: random.Random, facts: tuple[DeviceFact, ...]) -> None:
        self._dice, self._facts = dice, facts
        self._kept: list[WantedLease] = []
        self._names = 0

    def act(self, number: int) -> SoakAct:
        at_s = number * ACT_S
        kept = [w for w in self._kept if w.ends_at_s > at_s and self._dice.random() < 0.7]
        slots = [slot for wish in kept for slot in wish.lease.slots]
        for _ in range(self._dice.randrange(1, 5)):
            found = self._slots(slots, kept)
            if found:
                kept.append(self._wish(found[0], found[1], at_s))
                slots += found[0]
        self._kept = kept
        return self._with_event(tuple(kept))

    def _with_event(self, wishes: tuple[WantedLease, ...]) -> SoakAct:
        event = self._dice.choice(EVENTS)
        fact = self._dice.choice(self._facts)
        if event == "foreign" and fact.profiles:
            profile = self._dice.choice(fact.profiles)
            return SoakAct(wishes, event, fact.uuid, profile.name, self._dice.choice(profile.starts))
        return SoakAct(wishes, event, fact.uuid, times=self._dice.randrange(1, 4))

    def _wish(self, slots: list[DesiredSlot], team: str, at_s: int) -> WantedLease:
        self._names += 1
        has_own_end = self._dice.random() < 0.25
        remaining_s = self._dice.randrange(120, ACT_S - 120) if has_own_end else LONG_S
        lease = DesiredLease(
            lease=f"L{self._names}",
            generation=self._dice.randrange(1, 4),
            team=team,
            user="alice" if team == TEAMS[0] else "bob",
            remaining_s=remaining_s,
            grace_s=self._dice.choice(GRACES),
            slots=tuple(slots),
            load_pattern="steady",
        )
        return WantedLease(lease, at_s + remaining_s)

    def _slots(
        self, taken: list[DesiredSlot], kept: list[WantedLease]
    ) -> tuple[list[DesiredSlot], str] | None:
        """Return one or two free slots for a new lease and its team, None where the dice found no room."""
        team = self._dice.choice(TEAMS)
        number = 2 if self._dice.random() < 0.15 else 1
        found: list[DesiredSlot] = []
        for fact in self._dice.sample(self._facts, min(number, len(self._facts))):
            slot = self._slot(fact, [s for s in taken if s.device == fact.uuid], kept, team)
            if slot is None:
                return None
            found.append(slot)
        return found, team

    def _slot(
        self, fact: DeviceFact, taken: list[DesiredSlot], kept: list[WantedLease], team: str
    ) -> DesiredSlot | None:
        mode = taken[0].mode if taken else self._dice.choice(fact.modes)
        if mode == "exclusive":
            return None if taken else DesiredSlot(fact.uuid, mode, 0, fact.grid, 1000, fact.memory_mib)
        if mode in SHARES:
            return self._share(fact, mode, taken, kept, team)
        profile = self._dice.choice(fact.profiles)
        start = self._dice.choice(profile.starts)
        span = range(start, start + profile.slices)
        if any(slot.start in span or start in range(slot.start, slot.start + slot.size) for slot in taken):
            return None
        same = sum(slot.profile == profile.name for slot in taken)
        if same >= profile.max_instances:
            return None
        return DesiredSlot(
            fact.uuid, mode, start, profile.slices, 0, profile.memory_mib, profile=profile.name
        )

    def _share(
        self, fact: DeviceFact, mode: str, taken: list[DesiredSlot], kept: list[WantedLease], team: str
    ) -> DesiredSlot | None:
        milli = self._dice.choice((100, 200, 300))
        if sum(slot.share_milli for slot in taken) + milli > 1000:
            return None
        strangers = any(
            wish.lease.team != team and any(slot.device == fact.uuid for slot in wish.lease.slots)
            for wish in kept
        )
        if mode == "mps" and strangers:
            return None
        return DesiredSlot(fact.uuid, mode, 0, 0, milli, fact.memory_mib * milli // 1000)
