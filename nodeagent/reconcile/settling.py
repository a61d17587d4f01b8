"""What became of a step: done, to be tried again, or the end of its lease.

One thread only, time is passed in.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nodeagent.drivers import errors
from nodeagent.protocol.messages import PartitionFact
from nodeagent.reconcile.draining import settle_cleared, settle_uncleared
from nodeagent.reconcile.lease_records import PREPARING, READY, TRIES
from nodeagent.reconcile.preparing import let_in, settle_made, settle_unmade
from nodeagent.reconcile.state import NodeState
from nodeagent.reconcile.steps import UNIT_STEPS, DeviceStep, StepOutcome, StepRefusal, find

log = logging.getLogger(__name__)


def settle(state: NodeState, step: DeviceStep, outcome: StepOutcome, now: int) -> None:
    """Take the result of a step into account."""
    if step.kind not in UNIT_STEPS:
        state.observed.see(step.device, outcome.facts)
    if step.kind in UNIT_STEPS:
        _settle_unit(state, step, outcome, now)
    elif step.kind == "tell":
        step.place.is_told = True  # once: a file and a signal are a courtesy, the end comes anyway
        if outcome.refusal is not None:
            log.warning("lease %s could not be told: %s", step.record.lease, outcome.refusal.detail)
    elif outcome.refusal is None and step.kind == "clear":
        settle_cleared(state, step)
    elif outcome.refusal is None:
        settle_made(state, step, outcome, now)
    elif step.kind == "clear":
        settle_uncleared(state, step, outcome.refusal, now)
    else:
        settle_unmade(state, step, outcome, outcome.refusal, now)
    # Of a lost device nothing was read: that nothing stands there is only what becomes of it.
    if step.kind not in UNIT_STEPS and outcome.facts is not None and not step.is_lost:
        miss(state, step.device, outcome.facts, now)


def miss(state: NodeState, device: str, facts: Sequence[PartitionFact], now: int) -> None:
    """Take into account what a look at a device did not find: its lease has failed, and anybody may take the place.

    Whatever is made there next, before we make it again, is not ours.
    """
    present = {fact.uuid for fact in facts}
    for record, place in state.observed.on(device):
        if place.is_cleared or place.slot.mode == "exclusive" or place.partition in present:
            continue
        if record.phase in (PREPARING, READY) and place.is_made:
            state.fail(record, StepRefusal("partition_lost", f"{place.partition} no longer exists"), now)
        if place.slot.mode == "mig" and place.is_ours and find(record, place, facts) is None:
            place.vanish()
            state.note(record)


def disown(state: NodeState, device: str, facts: Sequence[PartitionFact], why: str, now: int) -> None:
    """Call nothing on a device ours any more whose slices are known to have gone; ``why`` is for people.

    A place and a UUID prove nothing: the next slice there has the same. Only what the device names as ours is ours.
    """
    for record, place in state.observed.on(device):
        if place.slot.mode != "mig" or place.is_cleared or not place.is_ours:
            continue
        found = find(record, place, facts)
        if found is not None and found.lease:
            continue
        if record.phase in (PREPARING, READY) and place.is_made:
            state.fail(record, StepRefusal("partition_lost", why), now)
        place.vanish()
        state.note(record)


def _settle_unit(state: NodeState, step: DeviceStep, outcome: StepOutcome, now: int) -> None:
    """Take the result of a step of a lease's unit into account."""
    record, refusal = step.record, outcome.refusal
    is_look = step.kind == "confine" and record.phase == READY  # a look whether it is still bound is no news
    state.units.settle(step, outcome, now)
    if refusal is None:
        let_in(state, record, now)
        state.finish(record)
    elif step.kind == "close":
        record.code, record.detail = refusal.word, refusal.detail
    elif step.kind in ("open", "confine") and not _is_passing(state, refusal, step):
        if record.phase == READY and state.units.may_be_open(record.key):
            if (record if step.kind == "open" else step.place).tries == 1:
                log.warning("lease %s goes on as it is open: %s", record.lease, refusal.detail)
        else:
            state.fail(record, refusal, now)
    if not (step.kind == "loosen" or is_look):
        state.note(record)


def _is_passing(state: NodeState, refusal: StepRefusal, step: DeviceStep) -> bool:
    tries = step.record.tries if step.kind == "open" else step.place.tries
    return (refusal.is_passing or refusal.nvml == errors.IN_USE) and tries < TRIES
