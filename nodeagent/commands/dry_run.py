"""A driver that only plays: it starts from what a real one shows and changes nothing outside itself.

With it the reconciler says what it would do, step by step, for a plan that nobody has to be afraid of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodeagent.drivers import errors
from nodeagent.drivers.base import (
    Access,
    Driver,
    DriverReading,
    PartitionShape,
    ProcessFact,
    ShapeOffer,
    Tenant,
)
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.protocol.messages import DeviceFact, HealthFact, PartitionFact
from nodeagent.reconcile.lease_records import GONE, LeaseRecord
from nodeagent.reconcile.reconciler import Reconciler
from nodeagent.reconcile.sequential import MOST_STEPS
from nodeagent.reconcile.steps import DeviceStep, StepOutcome, carry_out, read_partitions
from nodeagent.runtimes.base import Key, LeaseEntrance, LeaseGrant, Runtime, RuntimeRefusedError


class DryRunDriver:
    """Legal positions, overlaps and MIG modes as the real driver has them; everything else always succeeds."""

    is_blocking = False

    def __init__(self, real: Driver) -> None:
        """Look at every device once; of one that cannot be seen nothing is known, and nothing is played on it."""
        self._real = real
        self.name, self.version = real.name, real.version
        self._devices = {fact.uuid: fact for fact in real.inventory()}
        seen = {uuid: read_partitions(real, uuid) for uuid in self._devices}
        self._facts = {uuid: list(facts) for uuid, facts in seen.items() if facts is not None}

    def boot_id(self) -> str:
        """Return the real boot."""
        return self._real.boot_id()

    def inventory(self) -> list[DeviceFact]:
        """Return the devices with the MIG modes of the play."""
        return list(self._devices.values())

    def catalogue(self, device: str) -> list[ShapeOffer]:
        """Return what the real driver offers."""
        return self._real.catalogue(device)

    def observe(self, device: str) -> list[PartitionFact]:
        """Return what stands in the play; refuses for a device that could not be seen."""
        return list(self._existing(device))

    def create(self, device: str, shape: PartitionShape, position: int, owner: str = "") -> PartitionFact:
        """Add a partition where the real driver would allow it, as far as can be known beforehand."""
        existing = self._existing(device)
        offers = [
            o
            for o in self.catalogue(device)
            if (o.shape.mode, o.shape.profile) == (shape.mode, shape.profile)
        ]
        if not offers:
            why = self._devices[device].refusals.get(shape.mode, "")
            raise NotOfferedError(why or f"{shape.mode} {shape.profile} is not offered on {device}".strip())
        if position not in offers[0].starts:
            raise NvmlLikeError(
                errors.INVALID_ARGUMENT, f"{shape.profile or shape.mode} cannot start at {position}"
            )
        size = shape.size if shape.mode == "mig" else 0
        span = range(position, position + size)
        for other in existing:
            if any(slot in span for slot in range(other.start, other.start + other.size)):
                raise NvmlLikeError(errors.INSUFFICIENT_RESOURCES, f"{other.uuid} stands there")
        is_whole = shape.mode == "exclusive"
        fact = PartitionFact(
            uuid=device if is_whole else f"{device}/{shape.profile or shape.mode}@{position}:{owner}",
            device=device,
            profile=shape.profile or ("" if is_whole else shape.mode),
            start=position,
            size=self._devices[device].grid if is_whole else size,
            lease="" if shape.mode == "mig" else owner,
        )
        existing.append(fact)
        return fact

    def destroy(self, partition: str) -> None:
        """Take a partition out of the play."""
        for facts in self._facts.values():
            facts[:] = [fact for fact in facts if fact.uuid != partition]

    def abandon(self, device: str, owner: str) -> None:
        """Take what an owner has on a lost device out of the play."""
        if device in self._facts:
            self._facts[device] = [fact for fact in self._facts[device] if fact.lease != owner]

    def access(self, partition: str) -> Access:
        """Return the nodes of the device that would be used; those of MIG instances are not known before."""
        device = self._devices.get(partition.partition("/")[0])
        if device is None or device.mig_enabled:
            return Access()
        try:
            return Access(nodes=self._real.access(device.uuid).nodes)
        except (NvmlLikeError, NotOfferedError):  # a driver that knows the nodes only of what stands
            return Access()

    def processes(self, partition: str) -> list[ProcessFact]:
        """Everybody who is asked to go has gone."""
        return []

    def metrics(self) -> DriverReading:
        """Nothing is measured."""
        return DriverReading()

    def health(self) -> list[HealthFact]:
        """Return what the real devices say."""
        return self._real.health()

    def mig_mode(self, device: str) -> bool | None:
        """Return the MIG mode of the play."""
        fact = self._devices.get(device)
        return None if fact is None else fact.mig_enabled

    def set_mig_mode(self, device: str, enabled: bool) -> int:
        """Switch an empty device of the play."""
        if self._existing(device):
            return errors.IN_USE
        self._devices[device] = replace(self._devices[device], mig_enabled=enabled)
        return 0

    def attach(self, partition: str, tenant: Tenant) -> None:
        """Nothing to prepare."""

    def confine(self, partition: str, cgroup: str) -> None:
        """Nothing to bind."""

    def detach(self, partition: str, *, kill: bool) -> None:
        """Nothing to loosen."""

    def tell(self, partition: str, why: str) -> None:
        """Nobody to tell."""

    def power(self) -> str:
        """A plan is made for a node that is awake."""
        return "unsupported"

    def set_power(self, *, asleep: bool) -> None:
        """Nothing sleeps in a plan."""

    def close(self) -> None:
        """Nothing is held."""

    def _existing(self, device: str) -> list[PartitionFact]:
        if device not in self._devices:
            raise NvmlLikeError(errors.NOT_FOUND, f"{device} is not on this node")
        if device not in self._facts:
            why = next((f": {fact.detail}" for fact in self._real.health() if fact.device == device), "")
            raise NvmlLikeError(
                errors.UNKNOWN,
                f"what stands on {device} cannot be seen{why}; a plan for it needs that, look at `berth-agent check`",
            )
        return self._facts[device]


class DryRunRuntime:
    """Units of a plan: those that are open now, and what the play adds."""

    def __init__(self, real: Runtime) -> None:
        self.name, self.is_isolating = real.name, real.is_isolating
        self._real = real
        self._open = set(real.known())

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Open it in the play, where this host would open it."""
        if (refusal := self.would_refuse(grant)) is not None:
            raise refusal
        self._open.add(grant.key)
        return LeaseEntrance({"runtime": self.name})

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return what the real runtime lacks."""
        if self._real.why_not():
            return RuntimeRefusedError("no_runtime", self._real.why_not())
        return self._real.would_refuse(grant)

    def close(self, key: Key, *, kill: bool) -> None:
        """Close it in the play."""
        self._open.discard(key)

    def pids(self, key: Key) -> list[int]:
        """Nobody stays."""
        return []

    def known(self) -> list[Key]:
        """Return what is open in the play."""
        return sorted(self._open)

    def whole(self) -> list[Key]:
        """Return the same: half-open leases are opened once more at the start anyway."""
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        """No process belongs to a play."""
        return None

    def why_not(self) -> str:
        """Return what the host lacks."""
        return self._real.why_not()


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of a plan: where, what in words, for which lease, and why it would be refused ("": it is not)."""

    number: int
    device: int | None
    action: str
    lease: str
    refusal: str = ""


def rehearse(reconciler: Reconciler, driver: Driver, now: int) -> list[PlannedStep]:
    """Play every step that the present goal needs and return them in order."""
    order: dict[str, int | None] = {uuid: fact.index for uuid, fact in reconciler.devices.items()}
    plan: list[PlannedStep] = []
    is_moving = True
    while is_moving and len(plan) < MOST_STEPS:
        is_moving = False
        for device in reconciler.lanes:
            while (step := reconciler.next_step(device, now)) is not None and len(plan) < MOST_STEPS:
                outcome = carry_out(driver, step, reconciler.units.runtime)
                if step.kind != "look" or outcome.refusal is not None:
                    plan.append(_planned(len(plan) + 1, order.get(device), step, outcome))
                reconciler.settle(step, outcome, now)
                is_moving = True
    return plan + _unseen(reconciler, driver, order, len(plan))


def _unseen(
    reconciler: Reconciler, driver: Driver, order: Mapping[str, int | None], done: int
) -> list[PlannedStep]:
    """Return one refusal per lease and device on which nothing can be planned, because it cannot be seen."""
    found: list[PlannedStep] = []
    for device in reconciler.devices:
        try:
            driver.observe(device)
        except NvmlLikeError as no:
            waiting = [
                record
                for record in reconciler.lease_records.values()
                if record.phase != GONE and _is_on(record, device)
            ]
            found += [
                PlannedStep(
                    done + len(found) + at, order.get(device), f"look at {device}", record.lease, no.detail
                )
                for at, record in enumerate(waiting, start=1)
            ]
    return found


def _is_on(record: LeaseRecord, device: str) -> bool:
    return any(place.slot.device == device for place in record.places)


def _planned(number: int, device: int | None, step: DeviceStep, outcome: StepOutcome) -> PlannedStep:
    refusal = "" if outcome.refusal is None else f"{outcome.refusal.word}: {outcome.refusal.detail}"
    return PlannedStep(number, device, words_of(step), step.record.lease, refusal)


def words_of(step: DeviceStep) -> str:
    """Return what a step does, for people."""
    slot, user = step.place.slot, step.record.user or "its holder"
    what = {
        "mig": f"{slot.profile} at slice {slot.start}",
        "exclusive": "the whole device",
    }.get(slot.mode, f"{slot.mode} share of {slot.share_milli / 10:g} %, {slot.memory_mib} MiB")
    return {
        "look": f"look for {what}",
        "make": f"make {what}",
        "clear": f"remove {what}",
        "mode": f"switch MIG {'on' if step.enabled else 'off'}",
        "tell": f"tell {user} that the lease ends early",
        "open": f"open the lease to {user}",
        "confine": f"bind {user} to the limits of {what}",
        "loosen": f"loosen the limits of {what}" + (" and end what runs there" if step.kill else ""),
        "close": f"end what {user} runs" if step.kill else f"ask what {user} runs to end",
    }[step.kind]
