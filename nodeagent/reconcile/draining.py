"""A lease that is taken away: its unit is closed, then its places are cleared."""

from __future__ import annotations

from nodeagent.drivers import errors
from nodeagent.reconcile.lease_records import DRAINING, PREPARING, RETRY_LOST_NS, Place, Work
from nodeagent.reconcile.state import NO_DEVICE, NodeState
from nodeagent.reconcile.steps import Refusal, Step
from nodeagent.reconcile.units import nowhere


def ending_step(state: NodeState, device: str, work: Work, place: Place, now: int) -> Step | None:
    """Close the unit of a draining lease, then clear its places."""
    if not state.units.is_closed(work):
        return state.units.closing(device, work, place, leader(state, work), state.health.lost, now)
    if place.is_cleared or place.retry_at > now:
        return None
    kill = now >= work.kill_at
    spared, is_lost = state.sight.held(device, place), device in state.health.lost
    return Step("clear", device, work, place, kill=kill, spared=spared, is_lost=is_lost)


def leader(state: NodeState, work: Work) -> str:
    """Return the device on whose lane a lease's unit is closed; a lane of its own where all are lost or gone.

    Calls to a lost card may hang, and nothing else should wait for them.
    """
    here = state.devices.keys() - state.health.lost
    return next((p.slot.device for p in work.places if p.slot.device in here), NO_DEVICE)


def close_without_device(state: NodeState, now: int) -> Step | None:
    """Close the unit of a draining lease none of whose devices can be counted on."""
    for work in state.works.values():
        is_open = work.phase == DRAINING and not state.units.is_closed(work)
        if is_open and leader(state, work) == NO_DEVICE and work.retry_at <= now:
            kill = now >= work.kill_at
            return Step("close", NO_DEVICE, work, next(iter(work.places), nowhere()), kill=kill)
    return None


def settle_cleared(state: NodeState, step: Step) -> None:
    """A place is clean: what waits on its device need not wait out its back-off."""
    place = step.place
    place.hurry()
    place.is_cleared, place.is_made, place.access = True, False, None
    state.finish(step.work)
    for work, other in state.sight.on(step.device):
        if work.phase == PREPARING:
            other.hurry()
    state.note(step.work)


def settle_uncleared(state: NodeState, step: Step, refusal: Refusal, now: int) -> None:
    """Wait and try again, for ever: a card is never reset and a slice never called clean too early."""
    code = {errors.IN_USE: "in_use", errors.GPU_IS_LOST: "gpu_lost"}.get(refusal.nvml or 0, refusal.word)
    if step.work.code != code:
        step.work.code, step.work.detail = code, refusal.detail
        state.note(step.work)
    step.place.postpone(now, step.work.kill_at)
    if code == "gpu_lost":
        step.place.retry_at = now + RETRY_LOST_NS
