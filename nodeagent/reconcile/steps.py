"""One safe step on one device: look first, do only the difference, read back. Runs on any thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from nodeagent.drivers import errors
from nodeagent.drivers.base import Driver, Partitioner, Sensors, Tenant, TenantGate
from nodeagent.drivers.errors import NotOfferedError, NvmlLikeError
from nodeagent.host import notices
from nodeagent.protocol.messages import HealthFact, PartitionFact, SlotAccess
from nodeagent.reconcile.lease_records import TRIES, LeasePlace, LeaseRecord
from nodeagent.runtimes.base import LeaseEntrance, LeaseGrant, Runtime, RuntimeRefusedError

log = logging.getLogger(__name__)

# Steps of a lease's unit: none of them makes or clears a partition, so there is nothing to read back.
LIMITS: Final = ("confine", "loosen")
UNIT_STEPS: Final = ("open", "close", *LIMITS)
TAKEN: Final = "conflict"


class TakenError(Exception):
    """Somebody else made the very partition that was asked for, before we began."""


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """Look at a device, make or clear a place, switch MIG mode for it (``enabled``), or tell its holder.

    ``kill`` ends processes. A device is looked at before places on it are made, so that what stood there is never
    taken for ours.
    Of the whole lease, on the lane of one of its devices: open its unit (``grant``), close it; per place: confine
    the unit to the place's limits, loosen them.
    ``spared`` are partitions of other leases: a place lost to one of them must not take it along.
    ``is_fresh``: the place was seen free and never begun, so what stands there is somebody else's.
    ``is_lost``: the device says that it is, so there is nothing left to clear on it.
    ``notice`` is the file that its holder reads notices from, ``in_s`` when what it is told will be.
    """

    kind: Literal["look", "make", "clear", "mode", "tell", "open", "confine", "loosen", "close"]
    device: str
    record: LeaseRecord
    place: LeasePlace
    enabled: bool = False
    kill: bool = False
    spared: frozenset[str] = frozenset()
    is_fresh: bool = False
    is_lost: bool = False
    notice: Path | None = None
    in_s: float = 0.0
    grant: LeaseGrant | None = None


@dataclass(frozen=True, slots=True)
class StepRefusal:
    """Why a step did not succeed: the NVML code when there is one, a stable word and a sentence.

    ``is_passing``: the runtime says that trying again may help.
    """

    word: str
    detail: str
    nvml: int | None = None
    is_passing: bool = False


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did, and the partitions read afterwards (None when they could not be read).

    ``mig`` is the device's MIG mode as read after a refusal.
    """

    refusal: StepRefusal | None = None
    access: SlotAccess | None = None
    facts: tuple[PartitionFact, ...] | None = None
    entrance: LeaseEntrance | None = None
    mig: bool | None = None
    folders: tuple[str, ...] = ()
    binds: dict[str, str] = field(default_factory=dict)


def carry_out(driver: Driver, step: DeviceStep, runtime: Runtime | None = None) -> StepOutcome:
    """Do one step; every refusal comes back as a value. Blocks as long as the driver does."""
    refusal = None
    try:
        if step.kind in ("open", "close"):
            return _of_lease(runtime, step)
        done = _ACTIONS[step.kind](driver, step)
        if step.kind in LIMITS or done.facts is not None:
            return done
        return replace(done, facts=read_partitions(driver, step.device))
    except RuntimeRefusedError as no:
        refusal = StepRefusal(no.word, no.detail, is_passing=no.is_passing)
    except TakenError as no:
        refusal = StepRefusal(TAKEN, f"{no} stands there and is not ours; remove it or cordon the device")
    except NvmlLikeError as no:
        refusal = StepRefusal("refused_by_driver", str(no), no.code)
    except NotOfferedError as no:
        refusal = StepRefusal("not_offered", str(no))
    except Exception as no:  # a driver's own mistake must not end the agent
        log.exception("step %s on %s failed", step.kind, step.device)
        refusal = StepRefusal("driver_error", f"{type(no).__name__}: {no}")
    if step.kind in UNIT_STEPS:  # nothing was made or cleared, and the device may not even be here
        return StepOutcome(refusal)
    return StepOutcome(refusal, facts=read_partitions(driver, step.device), mig=_read_mig(driver, step))


def _read_mig(driver: Partitioner, step: DeviceStep) -> bool | None:
    """Return the MIG mode of a device on which nothing could be made, None where it does not say."""
    if step.kind not in ("look", "make", "mode"):
        return None
    try:
        return driver.mig_mode(step.device)
    except NvmlLikeError:
        return None


def read_partitions(driver: Partitioner, device: str) -> tuple[PartitionFact, ...] | None:
    """Return what exists on a device, None when the driver cannot say."""
    try:
        return tuple(driver.observe(device))
    except Exception as no:  # same reason as above; the last known state stays
        log.debug("cannot read the partitions of %s: %s", device, no)
        return None


def read_health(driver: Sensors) -> tuple[HealthFact, ...] | None:
    """Return what the devices say of their health, None when the driver cannot tell: that is not good news."""
    try:
        return tuple(driver.health())
    except Exception as no:  # same reason as above
        log.debug("cannot read the health of the devices: %s", no)
        return None


def find(record: LeaseRecord, place: LeasePlace, facts: Iterable[PartitionFact]) -> PartitionFact | None:
    """Return the partition that stands at a place: by owner where devices remember it, else by position."""
    owner = record.owner(place)
    return next((fact for fact in facts if _is_at(place, owner, fact)), None)


def is_half_made(fact: PartitionFact) -> bool:
    """Say whether an instance lacks the compute instance without which nobody can use it."""
    return fact.uuid.startswith(f"{fact.device}/gi")


def _is_at(place: LeasePlace, owner: str, fact: PartitionFact) -> bool:
    if fact.lease or place.slot.mode != "mig":
        return fact.lease == owner
    return (fact.profile, fact.start) == (place.slot.profile, place.slot.start)


def _of_lease(runtime: Runtime | None, step: DeviceStep) -> StepOutcome:
    """Open or close the unit of a lease; without a runtime there is nothing to do."""
    if runtime is None:
        return StepOutcome(entrance=LeaseEntrance())
    if step.kind == "open":
        return StepOutcome(entrance=None if step.grant is None else runtime.open(step.grant))
    runtime.close(step.record.key, kill=step.kill)
    if pids := runtime.pids(step.record.key):
        raise RuntimeRefusedError(
            "in_use", f"still running: {', '.join(map(str, pids[:5]))}", is_passing=True
        )
    return StepOutcome()


def _look(driver: Partitioner, step: DeviceStep) -> StepOutcome:
    return StepOutcome(facts=tuple(driver.observe(step.device)))


def _make(driver: Driver, step: DeviceStep) -> StepOutcome:
    record, place = step.record, step.place
    found = find(record, place, driver.observe(step.device))
    if found is not None and not found.lease and step.is_fresh:
        raise TakenError(found.uuid)
    if found is not None and is_half_made(found):
        driver.destroy(found.uuid)
        found = None
    fact = found or driver.create(step.device, place.shape, place.slot.start, record.owner(place))
    driver.attach(fact.uuid, Tenant(record.lease, record.load_pattern, record.user, record.team))
    way = driver.access(fact.uuid)
    env = way.env if step.notice is None else {**way.env, notices.VARIABLE: str(step.notice)}
    access = SlotAccess(step.device, place.slot.start, fact.uuid, env, way.nodes)
    return StepOutcome(access=access, folders=way.folders, binds=way.binds)


def _confine(driver: TenantGate, step: DeviceStep) -> StepOutcome:
    driver.confine(step.place.partition, step.record.cgroup)
    return StepOutcome()


def _loosen(driver: TenantGate, step: DeviceStep) -> StepOutcome:
    driver.detach(step.place.partition, kill=step.kill)
    return StepOutcome()


def _tell(driver: TenantGate, step: DeviceStep) -> StepOutcome:
    record = step.record
    if step.notice is not None:
        ends_at = datetime.now(UTC) + timedelta(seconds=max(0.0, step.in_s))
        notices.put_up(
            step.notice, lease=record.lease, why=record.told_why, ends_at=ends_at, user=record.user
        )
    driver.tell(step.place.partition, record.told_why)
    return StepOutcome()


def _clear(driver: Driver, step: DeviceStep) -> StepOutcome:
    try:
        _vacate(driver, step)
    except NvmlLikeError as no:
        if not step.is_lost or no.code == errors.IN_USE:
            raise
        # A device may answer although it was called lost (XID 79 heard, one list of a tool without it): a call that
        # fails for another reason is tried again like any other before it counts as the device's silence.
        if no.code != errors.GPU_IS_LOST and step.place.tries < TRIES:
            raise
        # Nobody can reach it any more, and whatever brings the device back leaves nothing standing on it.
        driver.abandon(step.device, step.record.owner(step.place))
        return StepOutcome(facts=())
    return StepOutcome()


def _vacate(driver: Driver, step: DeviceStep) -> None:
    if not (step.place.is_ours or step.place.partition):
        return  # nothing of ours ever stood there, so that need not be asked of a device that may not answer
    for partition in _existing(driver, step):
        driver.detach(partition, kill=step.kill)
        if running := driver.processes(partition):
            pids = ", ".join(str(process.pid) for process in running[:5])
            raise NvmlLikeError(errors.IN_USE, f"still running: {pids}")
        try:
            driver.destroy(partition)
        except NvmlLikeError as no:
            if no.code not in (errors.NOT_FOUND, errors.NOT_SUPPORTED):
                raise
    listed = {fact.uuid for fact in driver.observe(step.device)}
    if still := [partition for partition in _existing(driver, step) if partition in listed]:
        raise NvmlLikeError(errors.IN_USE, f"{still[0]} is still listed")


def _existing(driver: Partitioner, step: DeviceStep) -> list[str]:
    """Return what must go from a place: the known partition, and what an interrupted step left there."""
    known = [step.place.partition] if step.place.partition else []
    if not step.place.is_ours or step.place.is_cleared:
        return known
    facts = driver.observe(step.device)
    owner = step.record.owner(step.place)
    if step.place.slot.mode != "mig" and any(fact.lease not in ("", owner) for fact in facts):
        # A name may be the next tenant's by now (that of a whole device always is): only the owner counts.
        known = [fact.uuid for fact in facts if fact.lease == owner]
    found = find(step.record, step.place, facts)
    return known if found is None or found.uuid in (*known, *step.spared) else [*known, found.uuid]


def _require_fit(driver: Driver, step: DeviceStep) -> None:
    """Refuse what the device cannot have at all, before its MIG mode changes for it."""
    device, shape, start = step.device, step.place.shape, step.place.slot.start
    offers = [offer for offer in driver.catalogue(device) if offer.shape.mode == shape.mode]
    if not offers:
        refusals = next((fact.refusals for fact in driver.inventory() if fact.uuid == device), {})
        raise NotOfferedError(refusals.get(shape.mode, f"{shape.mode} is not offered on {device}"))
    same = [offer for offer in offers if offer.shape.profile == shape.profile]
    if not same:
        sizes = ", ".join(offer.shape.profile for offer in offers)
        raise NvmlLikeError(
            errors.INVALID_ARGUMENT, f"{device} has no size {shape.profile!r}; it has {sizes}"
        )
    if start not in same[0].starts:
        starts = ", ".join(map(str, same[0].starts))
        raise NvmlLikeError(
            errors.INVALID_ARGUMENT,
            f"{shape.profile or shape.mode} cannot start at {start}; it can at {starts}",
        )


def _switch(driver: Driver, step: DeviceStep) -> StepOutcome:
    _require_fit(driver, step)
    status = driver.set_mig_mode(step.device, step.enabled)
    if status != 0:
        raise NvmlLikeError(status, "the MIG mode did not change")
    return StepOutcome()


_ACTIONS: dict[str, Callable[[Driver, DeviceStep], StepOutcome]] = {
    "look": _look,
    "make": _make,
    "clear": _clear,
    "mode": _switch,
    "tell": _tell,
    "confine": _confine,
    "loosen": _loosen,
}
