"""What became of a step: done, to be tried again, or the end of its lease.

Functions of the reconciler, which owns all they change; one thread only, time is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nodeagent.drivers import errors
from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.conflicts import obstacle
from nodeagent.reconcile.lease_records import DRAINING, PREPARING, READY, RETRY_LOST_NS, TRIES, Place, Work
from nodeagent.reconcile.steps import TAKEN, UNIT_STEPS, Outcome, Refusal, Step, find, is_half_made

if TYPE_CHECKING:
    from nodeagent.reconcile.reconciler import Reconciler

log = logging.getLogger(__name__)


def settle(mind: Reconciler, step: Step, outcome: Outcome, now: int) -> None:
    """Take the result of a step into account."""
    if step.kind not in UNIT_STEPS:
        mind.sight.see(step.device, outcome.facts)
    if step.kind in UNIT_STEPS:
        _settle_unit(mind, step, outcome, now)
    elif step.kind == "tell":
        step.place.is_told = True  # once: a file and a signal are a courtesy, the end comes anyway
        if outcome.refusal is not None:
            log.warning("lease %s could not be told: %s", step.work.lease, outcome.refusal.detail)
    elif outcome.refusal is None:
        _settle_done(mind, step, outcome, now)
    elif step.kind == "clear":
        _settle_uncleared(mind, step, outcome.refusal, now)
    else:
        _settle_unmade(mind, step, outcome, outcome.refusal, now)
    # Of a lost card nothing was read: that nothing stands there is only what becomes of it.
    if step.kind not in UNIT_STEPS and outcome.facts is not None and not step.is_lost:
        miss(mind, step.device, outcome.facts, now)


def miss(mind: Reconciler, device: str, facts: Sequence[PartitionFact], now: int) -> None:
    """Take into account what a look at a device did not find: its lease has failed, and the place is anybody's.

    Whatever is made there next, before we make it again, is not ours.
    """
    present = {fact.uuid for fact in facts}
    for work, place in mind.sight.on(device):
        if place.is_cleared or place.slot.mode == "exclusive" or place.partition in present:
            continue
        if work.phase in (PREPARING, READY) and place.is_made:
            mind.fail(work, Refusal("partition_lost", f"{place.partition} no longer exists"), now)
        if place.slot.mode == "mig" and place.is_ours and find(work, place, facts) is None:
            place.vanish()
            mind.note(work)


def disown(mind: Reconciler, device: str, facts: Sequence[PartitionFact], why: str, now: int) -> None:
    """Call nothing on a device ours any more whose slices are known to have gone; ``why`` is for people.

    A place and a UUID prove nothing: the next slice there has the same. Only what the device names as ours is ours.
    """
    for work, place in mind.sight.on(device):
        if place.slot.mode != "mig" or place.is_cleared or not place.is_ours:
            continue
        found = find(work, place, facts)
        if found is not None and found.lease:
            continue
        if work.phase in (PREPARING, READY) and place.is_made:
            mind.fail(work, Refusal("partition_lost", why), now)
        place.vanish()
        mind.note(work)


def _settle_done(mind: Reconciler, step: Step, outcome: Outcome, now: int) -> None:
    work, place = step.work, step.place
    if step.kind == "look":  # no progress: what is refused again and again counts its tries on
        _find_free(mind, step.device)
        return
    place.hurry()
    if step.kind == "mode":
        mind.mig[step.device] = step.enabled
        return
    if step.kind == "clear":
        place.is_cleared, place.is_made, place.access = True, False, None
        mind.finish(work)
        _hurry(mind, step.device)
    elif outcome.access is not None:
        place.is_made, place.access, place.partition = True, outcome.access, outcome.access.partition
        place.folders, place.binds = outcome.folders, outcome.binds
        _let_in(mind, work, now)
    mind.note(work)


def _find_free(mind: Reconciler, device: str) -> None:
    """Remember which places are free by the newest look, of those that are to be made on a device."""
    on = mind.sight.on(device)
    for work, place in on:
        if work.phase == PREPARING and not (place.is_made or place.is_ours):
            place.is_fresh = not obstacle(work, place, on, mind.sight.foreign(device))


def _settle_unit(mind: Reconciler, step: Step, outcome: Outcome, now: int) -> None:
    """Take the result of a step of a lease's unit into account."""
    work, refusal = step.work, outcome.refusal
    is_look = step.kind == "confine" and work.phase == READY  # a look whether it is still bound is no news
    mind.units.settle(step, outcome, now)
    if refusal is None:
        _let_in(mind, work, now)
        mind.finish(work)
    elif step.kind == "close":
        work.code, work.detail = refusal.word, refusal.detail
    elif step.kind in ("open", "confine") and not _is_passing(mind, refusal, step):
        if work.phase == READY and mind.units.may_be_open(work.key):
            if (work if step.kind == "open" else step.place).tries == 1:
                log.warning("lease %s goes on as it is open: %s", work.lease, refusal.detail)
        else:
            mind.fail(work, refusal, now)
    if not (step.kind == "loosen" or is_look):
        mind.note(work)


def _is_passing(mind: Reconciler, refusal: Refusal, step: Step) -> bool:
    tries = step.work.tries if step.kind == "open" else step.place.tries
    return (refusal.is_passing or refusal.nvml == errors.IN_USE) and tries < TRIES


def _let_in(mind: Reconciler, work: Work, now: int) -> None:
    if work.phase == PREPARING and mind.units.is_let_in(work):
        work.become_ready(now)


def _settle_uncleared(mind: Reconciler, step: Step, refusal: Refusal, now: int) -> None:
    """Wait and try again, for ever: a card is never reset and a slice never called clean too early."""
    code = {errors.IN_USE: "in_use", errors.GPU_IS_LOST: "gpu_lost"}.get(refusal.nvml or 0, refusal.word)
    if step.work.code != code:
        step.work.code, step.work.detail = code, refusal.detail
        mind.note(step.work)
    step.place.postpone(now, step.work.kill_at)
    if code == "gpu_lost":
        step.place.retry_at = now + RETRY_LOST_NS


def _settle_unmade(mind: Reconciler, step: Step, outcome: Outcome, refusal: Refusal, now: int) -> None:
    """Fail the lease, unless waiting or another look may help: somebody else may have changed the device."""
    work, place = step.work, step.place
    if outcome.facts is not None and _is_without_ours(work, place, outcome.facts, refusal):
        place.is_ours = False  # look again before the next try, also in the next life
        mind.ledger.note(work)
    if outcome.mig is not None and outcome.mig != mind.mig[step.device] and place.tries < TRIES:
        mind.mig[step.device] = outcome.mig
        place.postpone(now)
        return
    found = obstacle(work, place, mind.sight.on(step.device), mind.sight.foreign(step.device))
    if found is True or _may_free_up(mind, refusal, step.device):
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
        mind.fail(work, Refusal(word, refusal.detail, refusal.nvml), now)


def _is_without_ours(work: Work, place: Place, facts: Iterable[PartitionFact], refusal: Refusal) -> bool:
    """Say whether a refused step left nothing of ours: nothing stands there, or somebody was quicker.

    Half-made, it is our own.
    """
    found = find(work, place, facts)
    if found is None or refusal.word == TAKEN:
        return True
    is_taken = refusal.nvml == errors.INSUFFICIENT_RESOURCES
    return is_taken and not found.lease and not is_half_made(found)


def _may_free_up(mind: Reconciler, refusal: Refusal, device: str) -> bool:
    """Say whether room for a share is short only because something of ours is not cleared yet."""
    clearing = any(w.phase == DRAINING and not p.is_cleared for w, p in mind.sight.on(device))
    return refusal.nvml == errors.INSUFFICIENT_RESOURCES and clearing


def _hurry(mind: Reconciler, device: str) -> None:
    """Something became free: what waits on this device need not wait out its back-off."""
    for work, place in mind.sight.on(device):
        if work.phase == PREPARING:
            place.hurry()
