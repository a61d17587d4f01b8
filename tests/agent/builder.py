from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nodeagent.protocol.boards import board, device_facts
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot, LeaseReport, PartitionFact
from nodeagent.reconcile.journal import Journal
from nodeagent.reconcile.lease_records import NS
from nodeagent.reconcile.power import change_power, read_power
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import work_through
from nodeagent.reconcile.steps import read_partitions
from nodeagent.runtimes.base import Key, LeaseEntrance, LeaseGrant, Runtime, RuntimeRefusedError
from nodeagent.simulation.devices.driver import SimulatedDriver
from nodeagent.simulation.faults import Faults

START = 1_000 * NS


@dataclass
class FakeTime:
    now: int = START

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * NS)


class SimulatedNode:
    """A reconciler over simulated devices, without threads, sockets or waiting."""

    def __init__(
        self,
        state: Path,
        model: str = "h100-80gb",
        count: int = 1,
        modes: tuple[str, ...] = (),
        name: str = "gpu-01",
    ) -> None:
        self.state, self.model, self.name = state, model, name
        self.facts = device_facts(name, model, count, modes)
        self.time = FakeTime()
        self.boot = "boot-1"
        self.revision = 0
        self.seq = 0
        self.faults = Faults()
        self.runtime: Runtime | None = None
        self.start()

    def start(self) -> SimulatedNode:
        """Start (again) as a new process on the same hardware and journal."""
        self.driver = SimulatedDriver(
            self.facts, self.state, self.boot, faults=self.faults, clock=self.time, sleep=self.time.advance
        )
        journal = Journal(self.state / "journal.jsonl")
        self.reconciler = Reconciler(self.name, self.driver, journal, self.time.now, self.runtime)
        return self

    def reboot(self) -> SimulatedNode:
        self.boot += "+"
        return self.start()

    def device(self, index: int = 0) -> str:
        return self.facts[index].uuid

    def mig(self, profile: str, start: int, device: int = 0) -> DesiredSlot:
        size = board(self.model).profile(profile)
        assert size is not None
        memory = size.memory_mib or 0
        return DesiredSlot(self.device(device), "mig", start, size.memory_slices, 100, memory, profile)

    def whole(self, device: int = 0) -> DesiredSlot:
        fact = self.facts[device]
        return DesiredSlot(fact.uuid, "exclusive", 0, fact.grid, 1000, fact.memory_mib)

    def share(self, mode: str, milli: int, memory_mib: int, device: int = 0) -> DesiredSlot:
        return DesiredSlot(self.device(device), mode, 0, 0, milli, memory_mib)

    def desire(
        self, *leases: DesiredLease, node: str = "gpu-01", epoch: int = 1, power: str = "awake"
    ) -> Desired:
        """Take a new desired state and carry it out as far as time allows."""
        desired = self.accept(*leases, node=node, epoch=epoch, power=power)
        self.work()
        return desired

    def accept(
        self, *leases: DesiredLease, node: str = "gpu-01", epoch: int = 1, power: str = "awake"
    ) -> Desired:
        """Take a new desired state and do nothing for it yet."""
        self.revision += 1
        desired = Desired(node, epoch, self.revision, leases, power)
        self.reconciler.accept(desired, self.time.now)
        return desired

    def work(self) -> None:
        self.reconciler.tick(self.time.now)
        if goal := self.reconciler.next_power(self.time.now):
            self.reconciler.settle_power(goal, change_power(self.driver, goal), self.time.now)
        work_through(self.reconciler, self.driver, self.time)
        self.reconciler.ledger.save()

    def pass_time(self, seconds: float) -> None:
        """Let time go by, waking whenever something is due."""
        end = self.time.now + int(seconds * NS)
        while (wake := self.reconciler.next_wake()) is not None and wake <= end:
            self.time.now = max(self.time.now + 1, wake)
            self.work()
        self.time.now = end
        self.work()

    def look(self) -> None:
        for device in self.reconciler.devices:
            self.reconciler.observe_partitions(device, read_partitions(self.driver, device), self.time.now)
        if self.runtime is not None:
            self.reconciler.units.begin_look()
            self.reconciler.observe_units(self.runtime.known(), self.runtime.whole(), self.time.now)
        self.reconciler.observe_power(read_power(self.driver))

    def reports(self) -> dict[str, LeaseReport]:
        self.seq += 1
        leases = self.reconciler.lease_reports(self.seq)
        assert leases is not None
        return {report.lease: report for report in leases}

    def acknowledge(self) -> None:
        self.reconciler.acknowledged(self.seq)

    def phases(self) -> dict[str, str]:
        return {lease: report.phase for lease, report in self.reports().items()}

    def partitions(self) -> set[tuple[str, int, str]]:
        """What stands on the node, as (profile, start, lease)."""
        return {(fact.profile, fact.start, fact.lease) for fact in self.reconciler.observed.partitions()}

    def standing(self, device: int = 0) -> list[PartitionFact]:
        return self.driver.observe(self.device(device))


class RecordingRuntime:
    """Units in memory, one process each; ``calls`` is what was asked of it, in order."""

    name = "recording"
    is_isolating = True

    def __init__(self) -> None:
        self.open_leases: dict[Key, LeaseGrant] = {}
        self.calls: list[tuple[str, Key]] = []
        self.stubborn: set[str] = set()
        self.refusal: RuntimeRefusedError | None = None

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        self.calls.append(("open", grant.key))
        if self.refusal is not None:
            raise self.refusal
        self.open_leases[grant.key] = grant
        return LeaseEntrance({"unit": f"unit-{grant.lease}"}, f"/units/{grant.lease}")

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        return self.refusal

    def close(self, key: Key, *, kill: bool) -> None:
        self.calls.append(("kill" if kill else "close", key))
        if kill or key[0] not in self.stubborn:
            self.open_leases.pop(key, None)

    def pids(self, key: Key) -> list[int]:
        return [4711] if key in self.open_leases else []

    def known(self) -> list[Key]:
        return list(self.open_leases)

    def whole(self) -> list[Key]:
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        return None

    def why_not(self) -> str:
        return ""


def lease(
    name: str,
    *slots: DesiredSlot,
    generation: int = 1,
    remaining_s: int = 3600,
    grace_s: int = 5,
    load: str = "",
) -> DesiredLease:
    return DesiredLease(name, generation, "vision", "bob", remaining_s, grace_s, slots, load)
