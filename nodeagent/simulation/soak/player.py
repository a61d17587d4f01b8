"""Plays one story on one host, kills the agent where it is told to, and watches what must never happen."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from zlib import crc32

from nodeagent.protocol.messages import Desired, DesiredLease, LeaseReport
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import FAILED, NS, PREPARING, READY, Key
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.reconcile.steps import read_health, read_partitions
from nodeagent.simulation.faults import SimulatedCrash
from nodeagent.simulation.soak.crashing_journal import CrashingJournal
from nodeagent.simulation.soak.script import ACT_S, SoakAct
from nodeagent.simulation.soak.stage import NODE, Stage, Trace
from nodeagent.simulation.soak.visitor import SoakVisitor

START_NS: Final = 1_000 * NS
SETTLE_S: Final = 120
MOST_WAKES: Final = 5_000
OF_CARDS: Final = ("timeslice", "compute mode", "daemon")  # what the leases of a device need of it together
CHARGE_SLACK_NS: Final = 3 * NS  # ends are told in whole seconds


@dataclass(slots=True)
class SoakTally:
    """What one play saw."""

    changes: int = 0
    crashes: int = 0
    overlaps: int = 0
    disturbed: int = 0
    leaks: int = 0
    overcharged: int = 0
    visits: int = 0
    worst_steps: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SoakClock:
    """Nanoseconds of the boot clock, moved by the player alone."""

    now: int = START_NS

    def __call__(self) -> int:
        """Return the time."""
        return self.now


class Player:
    """One host, one agent after the other. ``die_at`` are the numbers of the changes at which agents die."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        clock: SoakClock,
        dice: random.Random,
        die_at: Iterable[int] = (),
        visitor: SoakVisitor | None = None,
    ) -> None:
        """Begin the first life; a ``visitor`` comes before each wake."""
        self._visitor = visitor
        self.tally = SoakTally()
        self._stage, self._folder, self._clock, self._dice = stage, folder, clock, dice
        self._die_at = set(die_at)
        self._desired = Desired(NODE, 1, 0, ())
        self._said_at = clock.now
        self._live: dict[Key, tuple[tuple[str, int], ...]] = {}
        self._moved_in: set[Key] = set()
        self._foreign: set[tuple[str, int]] = set()
        self._held_from: dict[Key, int] = {}
        self._held_until: dict[Key, int] = {}
        self._asked_s: dict[Key, int] = {}
        self._journal: Journal | None = None
        stage.hook = self._change
        self._begin_life()

    def play(self, acts: Iterable[SoakAct]) -> frozenset[Trace]:
        """Play a story to its last act and return everything that stands on the host then."""
        for number, act in enumerate(acts):
            self._happen(act)
            self._visit()
            self._desire([wish.lease for wish in act.wishes if wish.ends_at_s > number * ACT_S], number, act)
            self._pass_time(START_NS + (number + 1) * ACT_S * NS)
        return self._sure(self._stage.traces()) | self._told()

    def finish(self) -> None:
        """Drop all leases and count what is left behind."""
        self._live.clear()
        self._say(())
        self._pass_time(self._clock.now + SETTLE_S * NS)
        left = [t for t in self._stage.traces() if not self._is_foreign(t)]
        lease_records = [w for w in self._reconciler.lease_records.values() if w.phase != "gone"]
        leaks = [
            *(f"left behind: {trace}" for trace in left),
            *(f"not over: {w.lease}" for w in lease_records),
        ]
        self.tally.leaks += len(leaks)
        self.tally.notes += leaks

    # The story

    def _happen(self, act: SoakAct) -> None:
        """Let the event of an act happen; nothing of it is the agent's doing."""
        with self._unwatched():
            if act.event == "lose":
                self._foreign = {place for place in self._foreign if place[0] != act.device}
                self._forget_live(lambda places: any(device == act.device for device, _ in places))
                self._stage.lose(act.device)
            elif act.event == "foreign":
                if self._stage.add_foreign(act.device, act.profile, act.start):
                    self._foreign.add((act.device, act.start))
            elif act.event == "refuse":
                self._stage.refuse(act.times)
            elif act.event == "cling":
                self._stage.cling(act.times)
            elif act.event == "reboot":
                self._foreign.clear()
                self._live.clear()
                self._moved_in.clear()
                self._stage.reboot()
        if act.event in ("reboot", "restart"):
            self._die(count=False)

    def _desire(self, leases: list[DesiredLease], number: int, act: SoakAct) -> None:
        at_s = number * ACT_S
        ends = {wish.lease.lease: wish.ends_at_s for wish in act.wishes}
        self._say(tuple(_later(lease, ends[lease.lease] - at_s) for lease in leases))

    def _say(self, leases: tuple[DesiredLease, ...]) -> None:
        """Publish a desired state; leases it leaves out may be touched from now on."""
        self._desired = Desired(NODE, 1, self._desired.revision + 1, leases)
        self._said_at = self._clock.now
        wanted = {(lease.lease, lease.generation) for lease in leases}
        for lease in leases:
            self._asked_s.setdefault((lease.lease, lease.generation), lease.remaining_s)
        for key in self._live.keys() - wanted:
            self._held_until.setdefault(key, self._clock.now)
        self._forget_live_keys(wanted)
        self._alive(self._accept)

    def _accept(self) -> None:
        self._reconciler.observe_health(read_health(self._driver), self._clock.now)
        gone_s = (self._clock.now - self._said_at) // NS
        leases = tuple(_later(ls, ls.remaining_s - gone_s) for ls in self._desired.leases)
        self._reconciler.accept(Desired(NODE, 1, self._desired.revision, leases), self._clock.now)
        self._work()

    def _work(self) -> None:
        steps = work_through(self._reconciler, self._driver, self._clock)
        self.tally.worst_steps = max(self.tally.worst_steps, steps)
        self._reconciler.ledger.save()
        self._note_ready()

    def _pass_time(self, until: int) -> None:
        """Let time go by, waking the agent whenever something is due, and looking around in between."""
        for _ in range(MOST_WAKES):
            wake = self._reconciler.next_wake()
            if wake is None or wake > until:
                break
            self._clock.now = max(self._clock.now + NS // 1000, wake)
            self._drop_ended()
            self._pass()
            self._visit()
            self._alive(self._tick)
        else:
            self.tally.notes.append("the agent never comes to rest")
            self.tally.leaks += 1
        self._clock.now = max(self._clock.now, until)
        self._drop_ended()
        self._pass()
        self._visit()
        self._alive(self._look)

    def _visit(self) -> None:
        """Let somebody else be at the devices. What he removes is seen to be gone before he comes again."""
        if self._visitor is None:
            return
        with self._unwatched():
            visit = self._visitor.come(self._stage, self._reconciler.lease_records.values(), self._live)
        if visit.made is not None:
            self.tally.visits += 1
            self._foreign.add(visit.made)
        if visit.has_removed:
            self._alive(self._look)
        if visit.restarts:
            self._die(count=False)

    def _pass(self) -> None:
        """Let the host do what is due; nobody needs the agent for that."""
        with self._unwatched():
            self._stage.pass_time()

    def _tick(self) -> None:
        self._reconciler.tick(self._clock.now)
        self._work()

    def _look(self) -> None:
        """Do what the agent does every few seconds: look at devices, health and units, and report."""
        for device in self._reconciler.devices:
            self._reconciler.observe_partitions(
                device, read_partitions(self._driver, device), self._clock.now
            )
        self._reconciler.observe_health(read_health(self._driver), self._clock.now)
        if self._runtime is not None:
            self._reconciler.units.begin_look()
            self._reconciler.observe_units(self._runtime.known(), self._runtime.whole(), self._clock.now)
        self._check_owners()
        self._tick()
        self._check_charges(self._reconciler.lease_reports(self._clock.now) or ())
        self._reconciler.acknowledged(self._clock.now)
        self._reconciler.ledger.save()

    # Life and death

    def _begin_life(self) -> None:
        """Start an agent on the host as it is; it may die while starting."""
        while True:
            if self._journal is not None:
                self._journal.close()
            try:
                self._driver, self._runtime = self._stage.life()
                self._journal = CrashingJournal(self._folder / "journal.jsonl", self._change, self._dice)
                self._reconciler = Reconciler(
                    NODE, self._driver, self._journal, self._clock.now, self._runtime
                )
                return
            except SimulatedCrash:
                self.tally.crashes += 1

    def close(self) -> None:
        """Let go of the host's files."""
        if self._journal is not None:
            self._journal.close()
        self._stage.close()

    def _alive(self, doing: Callable[[], None]) -> None:
        """Do something as the agent; when it dies, the next one starts, hears the desired state and goes on."""
        while True:
            try:
                doing()
                return
            except SimulatedCrash:
                self.tally.crashes += 1
                self._begin_life()
                doing = self._accept if doing != self._look else self._accept_and_look

    def _accept_and_look(self) -> None:
        self._accept()
        self._look()

    def _die(self, *, count: bool) -> None:
        self.tally.crashes += count
        self._begin_life()
        self._alive(self._accept)

    @contextlib.contextmanager
    def _unwatched(self):  # type: ignore[no-untyped-def]
        self._stage.hook = _nothing
        try:
            yield
        finally:
            self._stage.hook = self._change

    # What must never happen

    def _change(self, name: str) -> None:
        """Look at the host around each change, and die here if this is the one."""
        if name.endswith(".after"):
            self._check(name)
        self.tally.changes += 1
        if self.tally.changes in self._die_at:
            raise SimulatedCrash(name)

    def _check(self, name: str) -> None:
        with self._unwatched():
            standing = self._stage.partitions()
            taken: set[tuple[str, int]] = set()
            for part in standing:
                span = {(part.device, slot) for slot in range(part.start, part.start + part.size)}
                if span & taken:
                    self.tally.overlaps += 1
                    self.tally.notes.append(f"{name}: {part.uuid} overlaps")
                taken |= span
            for place in self._foreign - {(part.device, part.start) for part in standing}:
                self._foreign.discard(place)
                self.tally.disturbed += 1
                self.tally.notes.append(f"{name}: what others made at {place} was removed")
            for key, places in self._live.items():
                if not self._stage.is_working(key, places):
                    self.tally.disturbed += 1
                    self.tally.notes.append(f"{name}: lease {key[0]} was disturbed")

    def _check_owners(self) -> None:
        """What the agent takes for a lease's it will remove one day, also where it has not done so yet."""
        for part in self._reconciler.observed.partitions():
            if part.lease and (part.device, part.start) in self._foreign:
                self.tally.disturbed += 1
                self.tally.notes.append(f"what others made, {part.uuid}, is called that of {part.lease}")

    def _note_ready(self) -> None:
        """From the moment a lease is ready until it is dropped or ends, nothing of it may be touched."""
        wanted = {(lease.lease, lease.generation) for lease in self._desired.leases}
        for key, record in self._reconciler.lease_records.items():
            if record.phase != READY or key not in wanted or key in self._live:
                continue
            self._held_from.setdefault(key, self._clock.now)
            if key not in self._moved_in:
                self._moved_in.add(key)
                with self._unwatched():
                    self._stage.move_in(key, stubborn=crc32(key[0].encode()) % 3 == 0)
            self._live[key] = tuple((p.slot.device, p.slot.start) for p in record.places)
        self._drop_ended()  # the next life may find a lease ready whose end is due

    def _drop_ended(self) -> None:
        gone_s = (self._clock.now - self._said_at) / NS
        self._forget_live_keys(
            {(ls.lease, ls.generation) for ls in self._desired.leases if ls.remaining_s > gone_s + 2}
        )

    def _check_charges(self, reports: Iterable[LeaseReport]) -> None:
        """A holder pays from ready to the end, however long clearing takes and whoever dies over it."""
        for r in reports:
            key = (r.lease, r.generation)
            most = self._asked_s.get(key, 0) * NS
            if key in self._held_from and key in self._held_until:
                most = min(most, self._held_until[key] - self._held_from[key])
            if r.active_ms is not None and r.active_ms * NS // 1000 > most + CHARGE_SLACK_NS:
                self.tally.overcharged += 1
                self.tally.notes.append(f"lease {r.lease} is charged {r.active_ms} ms of {most / NS} s")

    def _forget_live_keys(self, keep: set[Key]) -> None:
        self._live = {key: places for key, places in self._live.items() if key in keep}

    def _forget_live(self, is_over: Callable[[tuple[tuple[str, int], ...]], bool]) -> None:
        self._live = {key: places for key, places in self._live.items() if not is_over(places)}

    # What is compared

    def _told(self) -> frozenset[Trace]:
        """Return what the portal would be told of each wanted lease."""
        reports: tuple[LeaseReport, ...] = self._reconciler.lease_reports(self._clock.now + 1) or ()
        wanted = {(lease.lease, lease.generation) for lease in self._desired.leases}
        return frozenset(
            ("told", r.lease, str(r.generation), r.phase, _alike(r.code), *(a.partition for a in r.access))
            for r in reports
            if (r.lease, r.generation) in wanted
        )

    def _sure(self, traces: frozenset[Trace]) -> frozenset[Trace]:
        """Leave out what failed leases have so far: it depends on which of their places was tried first.

        That none of it stays is asked at the end.
        """
        lease_records = self._reconciler.lease_records.values()
        failed = [record for record in lease_records if record.phase == FAILED]
        owners = {record.owner(place) for record in failed for place in record.places}
        at = {(p.slot.device, str(p.slot.start)) for record in failed for p in record.places}
        used = {
            place.slot.device
            for record in lease_records
            if record.phase in (PREPARING, READY)
            for place in record.places
        }
        return frozenset(
            t
            for t in traces
            if not (t[0] == "file" and t[2] in owners)
            and not (t[0] in OF_CARDS and t[1] not in used)
            and not (len(t) > 3 and (t[0], t[2]) in at)
        )

    def _is_foreign(self, trace: Trace) -> bool:
        return len(trace) > 2 and trace[2].isdigit() and (trace[0], int(trace[2])) in self._foreign


def _later(lease: DesiredLease, remaining_s: int) -> DesiredLease:
    return replace(lease, remaining_s=max(0, remaining_s))


def _alike(code: str) -> str:
    """Return one word for a lost device and one that a restarted agent cannot find any more."""
    return "gpu_lost" if code == "unknown_device" else code


def _nothing(_name: str) -> None:
    return
