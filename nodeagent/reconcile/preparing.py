"""A lease on its way: its places are made, then its holder is let in."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.drivers import errors
from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.conflicts import obstacle
from nodeagent.reconcile.lease_records import DRAINING, PREPARING, TRIES, Place, Work
from nodeagent.reconcile.state import NodeState
from nodeagent.reconcile.steps import TAKEN, Outcome, Refusal, Step, find, is_half_made


def beginning_step(state: NodeState, device: str, work: Work, place: Place, now: int) -> Step | None:
    """Make the places of a lease, then let its holder in."""
    if not place.is_made:
        is_due = work.phase == PREPARING and place.retry_at <= now
        return _making_step(state, work, place, now) if is_due else None
    if work.is_standing and not state.units.is_let_in(work):
        return state.units.opening(device, work, place, state.notice_of(work), now)
    return None


def _making_step(state: NodeState, work: Work, place: Place, now: int) -> Step | None:
    device = place.slot.device
    on, foreign = state.sight.on(device), state.sight.foreign(device)
    found = obstacle(work, place, on, foreign, state.health.crowded)
    if isinstance(found, Refusal):
        state.fail(work, found, now)
        return None
    if found:
        place.postpone(now)
        return None
    mig = place.slot.mode == "mig"
    if state.mig[device] is not None and state.mig[device] != mig:
        return Step("mode", device, work, place, enabled=mig)
    if not (place.is_ours or place.is_fresh):
        return Step("look", device, work, place)
    is_fresh = place.is_fresh
    if is_fresh and not _write_down(state, work, place):
        place.rest(now)
        return None
    return Step("make", device, work, place, is_fresh=is_fresh, notice=state.notice_of(work))


def _write_down(state: NodeState, work: Work, place: Place) -> bool:
    """Write down that what stands at a free place from now on is ours; False where the disk refuses.

    What is made and not written down would be a stranger's after a crash.
    """
    place.is_ours = True
    state.ledger.note(work)
    place.is_ours = is_written = state.ledger.save()
    place.is_fresh = not is_written
    return is_written


def settle_made(state: NodeState, step: Step, outcome: Outcome, now: int) -> None:
    """Take into account what a look, a change of the MIG mode or the making of a place brought."""
    work, place = step.work, step.place
    if step.kind == "look":  # no progress: what is refused again and again counts its tries on
        on = state.sight.on(step.device)
        for other_work, other in on:
            if other_work.phase == PREPARING and not (other.is_made or other.is_ours):
                other.is_fresh = not obstacle(other_work, other, on, state.sight.foreign(step.device))
        return
    place.hurry()
    if step.kind == "mode":
        state.mig[step.device] = step.enabled
        return
    if outcome.access is not None:
        place.is_made, place.access, place.partition = True, outcome.access, outcome.access.partition
        place.folders, place.binds = outcome.folders, outcome.binds
        let_in(state, work, now)
    state.note(work)


def let_in(state: NodeState, work: Work, now: int) -> None:
    """Call a lease ready once its holder can work."""
    if work.phase == PREPARING and state.units.is_let_in(work):
        work.become_ready(now)


def settle_unmade(state: NodeState, step: Step, outcome: Outcome, refusal: Refusal, now: int) -> None:
    """Fail the lease, unless waiting or another look may help: somebody else may have changed the device."""
    work, place = step.work, step.place
    if outcome.facts is not None and _is_without_ours(work, place, outcome.facts, refusal):
        place.is_ours = False  # look again before the next try, also in the next life
        state.ledger.note(work)
    if outcome.mig is not None and outcome.mig != state.mig[step.device] and place.tries < TRIES:
        state.mig[step.device] = outcome.mig
        place.postpone(now)
        return
    found = obstacle(work, place, state.sight.on(step.device), state.sight.foreign(step.device))
    if found is True or _may_free_up(state, refusal, step.device):
        place.postpone(now)
        return
    if isinstance(found, Refusal):
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
    if work.phase == PREPARING:
        state.fail(work, Refusal(word, refusal.detail, refusal.nvml), now)


def _is_without_ours(work: Work, place: Place, facts: Iterable[PartitionFact], refusal: Refusal) -> bool:
    """Say whether a refused step left nothing of ours: nothing stands there, or somebody was quicker.

    Half-made, it is our own.
    """
    found = find(work, place, facts)
    if found is None or refusal.word == TAKEN:
        return True
    is_taken = refusal.nvml == errors.INSUFFICIENT_RESOURCES
    return is_taken and not found.lease and not is_half_made(found)


def _may_free_up(state: NodeState, refusal: Refusal, device: str) -> bool:
    """Say whether room for a share is short only because something of ours is not cleared yet."""
    clearing = any(w.phase == DRAINING and not p.is_cleared for w, p in state.sight.on(device))
    return refusal.nvml == errors.INSUFFICIENT_RESOURCES and clearing
