"""A lease that is taken away: its unit is closed, then its places are cleared."""

from __future__ import annotations

from nodeagent.drivers import errors
from nodeagent.reconcile.lease_records import DRAINING, PREPARING, RETRY_LOST_NS, LeasePlace, LeaseRecord
from nodeagent.reconcile.state import NO_DEVICE, NodeState
from nodeagent.reconcile.steps import DeviceStep, StepRefusal
from nodeagent.reconcile.units import nowhere


def ending_step(
    state: NodeState, device: str, record: LeaseRecord, place: LeasePlace, now: int
) -> DeviceStep | None:
    """Close the unit of a draining lease, then clear its places."""
    if not state.units.is_closed(record):
        return state.units.closing(device, record, place, leader(state, record), state.health.lost, now)
    if place.is_cleared or place.retry_at > now:
        return None
    kill = now >= record.kill_at
    spared, is_lost = state.observed.held(device, place), device in state.health.lost
    return DeviceStep("clear", device, record, place, kill=kill, spared=spared, is_lost=is_lost)


def leader(state: NodeState, record: LeaseRecord) -> str:
    """Return the device on whose lane a lease's unit is closed; a lane of its own where all are lost or gone.

    Calls to a lost device may hang, and nothing else should wait for them.
    """
    here = state.devices.keys() - state.health.lost
    return next((p.slot.device for p in record.places if p.slot.device in here), NO_DEVICE)


def close_without_device(state: NodeState, now: int) -> DeviceStep | None:
    """Close the unit of a draining lease none of whose devices can be counted on."""
    for record in state.lease_records.values():
        is_open = record.phase == DRAINING and not state.units.is_closed(record)
        if is_open and leader(state, record) == NO_DEVICE and record.retry_at <= now:
            kill = now >= record.kill_at
            return DeviceStep("close", NO_DEVICE, record, next(iter(record.places), nowhere()), kill=kill)
    return None


def settle_cleared(state: NodeState, step: DeviceStep) -> None:
    """A place is clean: what waits on its device need not wait out its back-off."""
    place = step.place
    place.hurry()
    place.is_cleared, place.is_made, place.access = True, False, None
    state.finish(step.record)
    for record, other in state.observed.on(step.device):
        if record.phase == PREPARING:
            other.hurry()
    state.note(step.record)


def settle_uncleared(state: NodeState, step: DeviceStep, refusal: StepRefusal, now: int) -> None:
    """Wait and try again, for ever: a device is never reset and a slice never called clean too early."""
    code = {errors.IN_USE: "in_use", errors.GPU_IS_LOST: "gpu_lost"}.get(refusal.nvml or 0, refusal.word)
    if step.record.code != code:
        step.record.code, step.record.detail = code, refusal.detail
        state.note(step.record)
    step.place.postpone(now, step.record.kill_at)
    if code == "gpu_lost":
        step.place.retry_at = now + RETRY_LOST_NS
