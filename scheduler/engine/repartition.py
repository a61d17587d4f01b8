"""Another layout for idle boards, when that lets waiting slices start. A board in use is never touched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scheduler.engine.layouts import repartition
from scheduler.engine.model import (
    GrantedSlot,
    Plan,
    PolicyRules,
    Reason,
    Snapshot,
    Wait,
)

Planner = Callable[[Snapshot, PolicyRules], Plan]


def repartitioned(snapshot: Snapshot, policy: PolicyRules, found: Plan, planner: Planner) -> Plan:
    """The plan with idle boards cut anew, where that grants all that ``found`` grants and more; else ``found``.

    What waits only for another cut never counts as impossible: it waits as if nothing were pinned.
    """
    left = {wait.claim_id for wait in found.waits}
    waiting = [claim for claim in snapshot.queue if claim.id in left and claim.mode == "mig"]
    if not waiting:
        return found
    # Only boards that hold nothing, now or later, and are granted to nobody, on nodes that are open.
    taken = {held.device_id for held in snapshot.held}
    taken |= {booking.held.device_id for booking in snapshot.bookings}
    taken |= {slot.device_id for grant in found.grants for slot in grant.slots}
    closed = {node.id for node in snapshot.nodes if node.blocked}
    idle = [d for d in snapshot.devices if d.id not in taken and d.node_id not in closed and not d.blocked]
    cuts = repartition(idle, waiting)
    better = found
    if cuts:
        layouts = {cut.device_id: cut.layout for cut in cuts}
        devices = (replace(d, layout=layouts[d.id]) if d.id in layouts else d for d in snapshot.devices)
        better = planner(replace(snapshot, devices=tuple(devices)), policy)
    before, after = ({grant.claim_id for grant in plan.grants} for plan in (found, better))
    if not before < after:
        better, cuts = found, ()
    used = {slot.device_id for grant in better.grants for slot in grant.slots}
    kept = tuple(cut for cut in cuts if cut.device_id in used)
    return replace(better, waits=_still_possible(snapshot, policy, better, planner), repartitions=kept)


def _still_possible(
    snapshot: Snapshot, policy: PolicyRules, found: Plan, planner: Planner
) -> tuple[Wait, ...]:
    """The waits, where those that only a pinned layout makes impossible say what an unpinned fleet would say."""
    never = {wait.claim_id for wait in found.waits if wait.is_impossible}
    claims = [claim for claim in snapshot.queue if claim.id in never and claim.mode == "mig"]
    if not claims:
        return found.waits
    free = tuple(replace(device, layout=None) for device in snapshot.devices)
    unpinned = planner(replace(snapshot, devices=free, queue=tuple(claims)), policy)
    told = {wait.claim_id: wait for wait in unpinned.waits}
    told |= {grant.claim_id: _until_idle(grant.claim_id, grant.slots) for grant in unpinned.grants}
    # Positions are counted anew among those that are possible.
    waits, position = [], 1
    for wait in found.waits:
        other = told.get(wait.claim_id, wait)
        waits.append(
            replace(wait, position=position, reasons=other.reasons, is_impossible=other.is_impossible)
        )
        position += not other.is_impossible
    return tuple(waits)


def _until_idle(claim_id: int, slots: Sequence[GrantedSlot]) -> Wait:
    """What to say where only the cut of boards in use is in the way: none is free until they are idle."""
    wanted = len(slots)
    figures = {"wanted": wanted, "free": 0, "total": wanted, "next_end": None, "blockers": list[int]()}
    return Wait(claim_id, 0, (Reason("no_capacity", figures),))
