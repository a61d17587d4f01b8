"""A night on simulated devices, with and without a sleep policy: energy by the driver's counters, and who waits.

The decisions are the product's (``plan`` and ``orders``), minute by minute on a clock of its own; the energy is
what the simulated driver counts. Six nodes of eight H100, from 18:00 to 08:00, requests as in ``ARRIVALS``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from nodeagent.drivers.base import PartitionShape, Tenant
from nodeagent.protocol.boards import device_facts
from nodeagent.simulation.devices.driver import SimulatedDriver
from scheduler.engine.model import Claim, DeviceInfo, Held, NodeInfo, PolicyRules, Snapshot, TeamQuota
from scheduler.engine.plan import plan
from scheduler.engine.policy import Sleep, SleepTime
from scheduler.engine.sleep import NodePower, orders
from scheduler.engine.sleeping_nodes import ASLEEP

NODES, BOARDS, SEED = 6, 8, 1
BEGIN: Final = datetime(2026, 3, 2, 18, 0, tzinfo=UTC)
MINUTES = 14 * 60
WAKE = timedelta(minutes=2)
WHOLE = PartitionShape("exclusive", "", 8, 1000, 81_559)
NIGHT: Final = Sleep((SleepTime(tuple(range(7)), 20 * 60, 7 * 60, awake=1),), after_s=900)


@dataclass
class NightHost:
    """A node: its simulated devices, what the portal wants of its power, and when it is awake."""

    driver: SimulatedDriver
    power: NodePower
    awake_at: datetime = BEGIN


@dataclass
class Night:
    """One night under one policy."""

    policy: PolicyRules
    folder: Path
    now: datetime = BEGIN
    hosts: dict[int, NightHost] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    queue: list[Claim] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    sleeps: int = 0
    slept_minutes: int = 0

    def __post_init__(self) -> None:
        for number in range(1, NODES + 1):
            facts = device_facts(f"n{number}", "h100-80gb", BOARDS, ("exclusive",))
            state = self.folder / f"n{number}"
            state.mkdir()
            driver = SimulatedDriver(facts, state, "boot", seed=SEED, clock=self.clock)
            self.hosts[number] = NightHost(driver, NodePower(number, False, BEGIN))
        self.devices = tuple(
            DeviceInfo(100 * n + i, n, "h100-80gb", 8, 81_559, 1000, frozenset({"exclusive"}), index=i)
            for n in self.hosts
            for i in range(BOARDS)
        )

    def clock(self) -> int:
        """Nanoseconds of the simulated clock."""
        return int(self.now.timestamp() * 1_000_000_000)

    def is_up(self, node: int) -> bool:
        """Say whether a node takes work now."""
        host = self.hosts[node]
        return not host.power.is_asleep and host.awake_at <= self.now

    def snapshot(self) -> Snapshot:
        """The picture of this minute."""
        nodes = tuple(NodeInfo(n, f"n{n}", "" if self.is_up(n) else ASLEEP, wake_s=120) for n in self.hosts)
        return Snapshot(
            self.now, nodes, self.devices, tuple(self.held), tuple(self.queue), (TeamQuota(1, None, None, 0),)
        )

    def minute(self, arrivals: list[Claim]) -> None:
        """End what is over, serve the queue, let nodes sleep and wake, and read the counters."""
        for held in [one for one in self.held if one.until <= self.now]:
            self.held.remove(held)
            driver, uuid = self.device(held.device_id)
            driver.detach(uuid, kill=True)
            driver.destroy(uuid)
        self.queue += arrivals
        self.serve()
        self.settle()
        for host in self.hosts.values():
            self.slept_minutes += host.power.is_asleep
            host.driver.metrics()

    def serve(self) -> None:
        """Start what can start."""
        for grant in plan(self.snapshot(), self.policy).grants:
            claim = next(one for one in self.queue if one.id == grant.claim_id)
            self.queue.remove(claim)
            self.waits_s.append((self.now - claim.queued_at).total_seconds())
            until = self.now + timedelta(seconds=grant.duration_s)
            for slot in grant.slots:
                self.held.append(Held(slot.device_id, 0, 8, "exclusive", 1, claim.id, until, 1000))
                driver, uuid = self.device(slot.device_id)
                driver.create(uuid, WHOLE, 0, f"lease-{claim.id}")
                driver.attach(uuid, Tenant(f"lease-{claim.id}", "steady"))

    def settle(self) -> None:
        """Carry out the orders of this minute."""
        busy = {held.device_id // 100 for held in self.held}
        for number, host in self.hosts.items():
            since = None if number in busy else host.power.idle_since or self.now
            host.power = replace(host.power, idle_since=since)
        found = orders(self.snapshot(), self.policy, tuple(host.power for host in self.hosts.values()))
        for number, _why in found.sleep:
            host = self.hosts[number]
            host.driver.set_power(asleep=True)
            host.power = replace(host.power, is_asleep=True)
            self.sleeps += 1
        for number, _why in found.wake:
            host = self.hosts[number]
            host.driver.set_power(asleep=False)
            host.awake_at = self.now + WAKE
            host.power = replace(host.power, is_asleep=False, idle_since=host.awake_at)

    def device(self, device_id: int) -> tuple[SimulatedDriver, str]:
        """Return a device's driver and uuid."""
        driver = self.hosts[device_id // 100].driver
        return driver, driver.inventory()[device_id % 100].uuid

    def energy_kwh(self) -> float:
        """Return what all devices used."""
        samples = (s for host in self.hosts.values() for s in host.driver.metrics().devices)
        return sum(sample.energy_mj or 0 for sample in samples) / 3.6e9


def measure() -> dict[str, Any]:
    """Play the same night without sleep and with it: load kept to few nodes or spread, a node kept ready or none."""
    usual = PolicyRules(keep_empty=4.0)
    none_ready = replace(NIGHT, times=(replace(NIGHT.times[0], awake=0),))
    variants = {
        "awake": usual,
        "asleep": replace(usual, sleep=NIGHT),
        "asleep, none kept ready": replace(usual, sleep=none_ready),
        "asleep, load spread": replace(usual, place="spread", keep_empty=0.0, sleep=NIGHT),
    }
    found = {name: _night(policy) for name, policy in variants.items()}
    most = found["awake"]["energy_kwh"]
    for figures in found.values():
        figures["saved_kwh"] = round(most - figures["energy_kwh"], 2)
        figures["saved_percent"] = round(100 * (1 - figures["energy_kwh"] / most), 1)
    return found


def _night(policy: PolicyRules) -> dict[str, Any]:
    arrivals = _arrivals()
    with TemporaryDirectory() as folder:
        night = Night(policy, Path(folder))
        for number in range(MINUTES):
            night.now = BEGIN + timedelta(minutes=number)
            night.minute(arrivals.get(number, []))
        night.now = BEGIN + timedelta(minutes=MINUTES)
        waits = sorted(night.waits_s)
        return {
            "energy_kwh": round(night.energy_kwh(), 2),
            "node_hours_asleep": round(night.slept_minutes / 60, 1),
            "sleeps": night.sleeps,
            "requests": len(waits),
            "mean_wait_s": round(sum(waits) / len(waits), 1),
            "longest_wait_s": round(waits[-1]),
        }


def _arrivals() -> dict[int, list[Claim]]:
    """About thirty requests in the evening and ten in the night, of one to eight boards, minutes to hours long."""
    dice = random.Random(SEED)
    minutes = sorted(
        [dice.randrange(0, 240) for _ in range(30)] + [dice.randrange(240, 780) for _ in range(10)]
    )
    found: dict[int, list[Claim]] = {}
    for number, minute in enumerate(minutes, 1):
        count, hours = dice.choice((1, 1, 1, 2, 2, 4, 8)), dice.choice((0.25, 0.5, 1.0, 2.0, 4.0))
        at = BEGIN + timedelta(minutes=minute)
        claim = Claim(number, 1, "exclusive", count, int(hours * 3600), 0, at)
        found.setdefault(minute, []).append(claim)
    return found
