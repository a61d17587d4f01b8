"""A lease on its way: its places are made, then its holder is let in."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.drivers import errors
from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.conflicts import obstacle
from nodeagent.reconcile.lease_records import DRAINING, PREPARING, TRIES, LeasePlace, LeaseRecord
from nodeagent.reconcile.state import NodeState
from nodeagent.reconcile.steps import TAKEN, DeviceStep, StepOutcome, StepRefusal, find, is_half_made


def beginning_step(
    state: NodeState, device: str, record: LeaseRecord, place: LeasePlace, now: int
) -> DeviceStep | None:
    """Make the places of a lease, then let its holder in."""
    if not place.is_made:
        is_due = record.phase == PREPARING and place.retry_at <= now
        return _making_step(state, record, place, now) if is_due else None
    if record.is_standing and not state.units.is_let_in(record):
        return state.units.opening(device, record, place, state.notice_of(record), now)
    return None


def _making_step(state: NodeState, record: LeaseRecord, place: LeasePlace, now: int) -> DeviceStep | None:
    device = place.slot.device
    on, foreign = state.observed.on(device), state.observed.foreign(device)
    found = obstacle(record, place, on, foreign, state.health.crowded)
    if isinstance(found, StepRefusal):
        state.fail(record, found, now)
        return None
    if found:
        place.postpone(now)
        return None
    mig = place.slot.mode == "mig"
    if state.mig[device] is not None and state.mig[device] != mig:
        return DeviceStep("mode", device, record, place, enabled=mig)
    if not (place.is_ours or place.is_fresh):
        return DeviceStep("look", device, record, place)
    is_fresh = place.is_fresh
    if is_fresh and not _write_down(state, record, place):
        place.rest(now)
        return None
    return DeviceStep("make", device, record, place, is_fresh=is_fresh, notice=state.notice_of(record))


def _write_down(state: NodeState, record: LeaseRecord, place: LeasePlace) -> bool:
    """Write down that what stands at a free place from now on is ours; False where the disk refuses.

    What is made and not written down would be a stranger's after a crash.
    """
    place.is_ours = True
    state.ledger.note(record)
    place.is_ours = is_written = state.ledger.save()
    place.is_fresh = not is_written
    return is_written


def settle_made(state: NodeState, step: DeviceStep, outcome: StepOutcome, now: int) -> None:
    """Take into account what a look, a change of the MIG mode or the making of a place brought."""
    record, place = step.record, step.place
    if step.kind == "look":  # no progress: what is refused again and again counts its tries on
        on = state.observed.on(step.device)
        for other_record, other in on:
            if other_record.phase == PREPARING and not (other.is_made or other.is_ours):
                other.is_fresh = not obstacle(other_record, other, on, state.observed.foreign(step.device))
        return
    place.hurry()
    if step.kind == "mode":
        state.mig[step.device] = step.enabled
        return
    if outcome.access is not None:
        place.is_made, place.access, place.partition = True, outcome.access, outcome.access.partition
        place.folders, place.binds = outcome.folders, outcome.binds
        let_in(state, record, now)
    state.note(record)


def let_in(state: NodeState, record: LeaseRecord, now: int) -> None:
    """Call a lease ready once its holder can work."""
    if record.phase == PREPARING and state.units.is_let_in(record):
        if state.units.runtime is None:
            record.entrance = state.units.played_words(record)
        record.become_ready(now)


def settle_unmade(
    state: NodeState, step: DeviceStep, outcome: StepOutcome, refusal: StepRefusal, now: int
) -> None:
    """Fail the lease, unless waiting or another look may help: somebody else may have changed the device."""
    record, place = step.record, step.place
    if outcome.facts is not None and _is_without_ours(record, place, outcome.facts, refusal):
        place.is_ours = False  # look again before the next try, also in the next life
        state.ledger.note(record)
    if outcome.mig is not None and outcome.mig != state.mig[step.device] and place.tries < TRIES:
        state.mig[step.device] = outcome.mig
        place.postpone(now)
        return
    found = obstacle(record, place, state.observed.on(step.device), state.observed.foreign(step.device))
    if found is True or _may_free_up(state, refusal, step.device):
        place.postpone(now)
        return
    if isinstance(found, StepRefusal):
        refusal = found
    is_passing = refusal.nvml in (errors.IN_USE, errors.RESET_REQUIRED)
    if is_passing and place.tries < TRIES:
        place.postpone(now)
        return
    word = refusal.word
    if is_passing:
        word = "mig_mode_refused" if step.kind == "mode" else "in_use"
    elif refusal.nvml == errors.INSUFFICIENT_RESOURCES:
        word = "conflict"
    elif refusal.nvml == errors.GPU_IS_LOST:
        word = "gpu_lost"
    if record.phase == PREPARING:
        state.fail(record, StepRefusal(word, refusal.detail, refusal.nvml), now)


def _is_without_ours(
    record: LeaseRecord, place: LeasePlace, facts: Iterable[PartitionFact], refusal: StepRefusal
) -> bool:
    """Say whether a refused step left nothing of ours: nothing stands there, or somebody was quicker.

    Half-made, it is our own.
    """
    found = find(record, place, facts)
    if found is None or refusal.word == TAKEN:
        return True
    is_taken = refusal.nvml == errors.INSUFFICIENT_RESOURCES
    return is_taken and not found.lease and not is_half_made(found)


def _may_free_up(state: NodeState, refusal: StepRefusal, device: str) -> bool:
    """Say whether room for a share is short only because something of ours is not cleared yet."""
    clearing = any(w.phase == DRAINING and not p.is_cleared for w, p in state.observed.on(device))
    return refusal.nvml == errors.INSUFFICIENT_RESOURCES and clearing
