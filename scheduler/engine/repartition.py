"""Another layout for idle boards, when that lets waiting slices start. A board in use is never touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from scheduler.engine.layouts import repartition
from scheduler.engine.model import (
    Claim,
    DeviceInfo,
    GrantedSlot,
    Plan,
    PolicyRules,
    Reason,
    Repartition,
    Snapshot,
    Wait,
)

Planner = Callable[[Snapshot, PolicyRules], Plan]


def repartitioned(snapshot: Snapshot, policy: PolicyRules, found: Plan, planner: Planner) -> Plan:
    """The plan with idle boards cut anew, where that grants all that ``found`` grants and more; else ``found``.

    What waits only for another cut never counts as impossible: it waits as if nothing were pinned.
    """
    waiting = _waiting_for_slices(snapshot, found)
    if not waiting:
        return found
    cuts = repartition(_idle(snapshot, found), waiting)
    better = planner(_with_layouts(snapshot, cuts), policy) if cuts else found
    if not _grants_more(better, found):
        better, cuts = found, ()
    used = {slot.device_id for grant in better.grants for slot in grant.slots}
    kept = tuple(cut for cut in cuts if cut.device_id in used)
    return replace(better, waits=_still_possible(snapshot, policy, better, planner), repartitions=kept)


def _waiting_for_slices(snapshot: Snapshot, found: Plan) -> list[Claim]:
    left = {wait.claim_id for wait in found.waits}
    return [claim for claim in snapshot.queue if claim.id in left and claim.mode == "mig"]


def _idle(snapshot: Snapshot, found: Plan) -> list[DeviceInfo]:
    """Boards that hold nothing, now or later, and are granted to nobody, on nodes that are open."""
    taken = {held.device_id for held in snapshot.held}
    taken |= {booking.held.device_id for booking in snapshot.bookings}
    taken |= {slot.device_id for grant in found.grants for slot in grant.slots}
    closed = {node.id for node in snapshot.nodes if node.blocked}
    return [d for d in snapshot.devices if d.id not in taken and d.node_id not in closed and not d.blocked]


def _with_layouts(snapshot: Snapshot, cuts: Sequence[Repartition]) -> Snapshot:
    layouts = {cut.device_id: cut.layout for cut in cuts}
    devices = (replace(d, layout=layouts[d.id]) if d.id in layouts else d for d in snapshot.devices)
    return replace(snapshot, devices=tuple(devices))


def _grants_more(better: Plan, found: Plan) -> bool:
    before, after = ({grant.claim_id for grant in plan.grants} for plan in (found, better))
    return before < after


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
    return _numbered(_instead(wait, told.get(wait.claim_id)) for wait in found.waits)


def _until_idle(claim_id: int, slots: Sequence[GrantedSlot]) -> Wait:
    """What to say where only the cut of boards in use is in the way: none is free until they are idle."""
    wanted = len(slots)
    figures = {"wanted": wanted, "free": 0, "total": wanted, "next_end": None, "blockers": list[int]()}
    return Wait(claim_id, 0, (Reason("no_capacity", figures),))


def _instead(wait: Wait, other: Wait | None) -> Wait:
    if other is None:
        return wait
    return replace(wait, reasons=other.reasons, is_impossible=other.is_impossible)


def _numbered(waits: Iterable[Wait]) -> tuple[Wait, ...]:
    """The waits with positions counted anew among those that are possible."""
    found, position = [], 1
    for wait in waits:
        found.append(replace(wait, position=position))
        position += not wait.is_impossible
    return tuple(found)
