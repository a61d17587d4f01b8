"""Leases that must go so that somebody else can start, and the places kept until they are gone.

Two rights let a waiting claim take a place. It may *reclaim*: while its team stays inside its guarantee it
takes back what other teams of its cohort borrowed. And it may *outrank*: leases that said they may be
preempted go for claims that stand higher, by priority or, where that is equal, because the claim itself may
not be preempted. What an elastic lease has grown by goes for anybody. No team of a cohort falls below its
guarantee by this, and nobody takes from the claim that it was preempted for (docs/preemption.md).

A lease that was told keeps its place for a grace period. Until the claim starts, that place and what it
costs are taken for everybody else, and the claim is served before all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from scheduler.engine.model import Claim, Plan, Policy, Preemption, Reason, Running, Snapshot, Wait
from scheduler.engine.places import Kept, keep_places, with_used
from scheduler.engine.shape import shape_of
from scheduler.engine.state import EngineState
from scheduler.engine.victims import Search, hopeful, units_of

Planner = Callable[[Snapshot, Policy], Plan]

MOST_CLAIMS = 64
# With bookings or maintenance ahead each find is played through once more by the whole plan.
MOST_CHECKS = 8


def reclaimed(snapshot: Snapshot, policy: Policy, planner: Planner) -> Plan:
    """The plan with those served first for whom leases were told to go, and with who must go next.

    Costs nothing where no live lease was told to go and none may be. ``planner`` decides an ordinary turn.
    """
    kept = keep_places(snapshot, policy)
    found = planner(kept.seen, policy)
    named = _named(kept, policy, found, planner)
    waits = _waits(kept, found, named, snapshot, policy)
    return replace(
        found,
        grants=(*kept.grants, *found.grants),
        waits=waits,
        preemptions=(*found.preemptions, *named),
        spared=(*found.spared, *kept.spared),
    )


def _waits(
    kept: Kept, found: Plan, named: Sequence[Preemption], snapshot: Snapshot, policy: Policy
) -> tuple[Wait, ...]:
    """Those whose place is kept come first; who gets a place made now hears that before why it waits."""
    waits = [
        Wait(claim.id, position, (_room_is_made(told),))
        for position, (claim, told) in enumerate(kept.placed, start=1)
    ]
    by_claim: dict[int, list[int]] = {}
    for one in named:
        by_claim.setdefault(one.claim_id, []).append(one.lease_id)
    ends_at = snapshot.taken_at + timedelta(seconds=policy.preempting.grace_s)
    for wait in found.waits:
        reasons = wait.reasons
        if wait.claim_id in by_claim:
            figures = {"leases": by_claim[wait.claim_id], "ends_at": ends_at.isoformat()}
            reasons = (Reason("room_is_made", figures), *reasons)
        waits.append(replace(wait, position=wait.position + len(kept.placed), reasons=reasons))
    return tuple(waits)


def _room_is_made(told: Sequence[Running]) -> Reason:
    ends = [one.preempt_at for one in told if one.preempt_at is not None]
    last = max(ends).isoformat() if ends else None
    return Reason("room_is_made", {"leases": [one.lease_id for one in told], "ends_at": last})


def _named(kept: Kept, policy: Policy, found: Plan, planner: Planner) -> list[Preemption]:
    """Who must go for the claims that still wait, in their order; at most MOST_CLAIMS of them are looked at."""
    snapshot = kept.seen
    claims = {claim.id: claim for claim in snapshot.queue if claim.starts_at is None}
    waits = (
        claims[wait.claim_id]
        for wait in found.waits
        if wait.claim_id in claims and not wait.is_impossible and not _is_node_waking(wait)
    )
    waiting = hopeful(snapshot, policy, waits, MOST_CLAIMS)
    units = units_of(snapshot, policy) if waiting else []
    if not units:
        return []
    room = EngineState.from_snapshot(snapshot, policy)
    for grant in (one for one in (*found.grants, *found.growth) if one.starts_at is None):
        room.grant(grant, snapshot.taken_at)
    search = Search(room, units, policy.preempting, kept.promised)
    has_blocks = bool(snapshot.bookings or snapshot.outages)
    checks = MOST_CHECKS
    named: list[Preemption] = []
    hopeless: set[tuple[object, ...]] = set()
    for claim in waiting:
        shape = shape_of(claim, policy)
        key = (claim.team_id, shape, claim.priority, claim.is_preemptible, claim.yields_to)
        if key in hopeless:
            continue
        victims = search.find(claim, shape)
        if victims and has_blocks:
            checks -= 1
            if checks < 0 or not _starts(snapshot, policy, planner, room, claim):
                victims = None
        if victims is None:
            search.forget()
            hopeless.add(key)
            continue
        search.keep()
        named += [Preemption(lease.lease_id, claim.id, why) for unit, why in victims for lease in unit.leases]
    return named


def _is_node_waking(wait: Wait) -> bool:
    """Whether a node is woken for the claim: nobody has to go for what comes by itself."""
    codes = [reason.code for reason in wait.reasons]
    return "node_waking" in codes and codes[0] in ("node_waking", "behind")


def _starts(snapshot: Snapshot, policy: Policy, planner: Planner, room: EngineState, claim: Claim) -> bool:
    """Whether the whole plan, with all that lies ahead, would let the claim start in a room like this one."""
    seen = replace(
        snapshot,
        queue=(claim,),
        growing=(),
        held=tuple(held for board in room.boards for held in board.held),
        quotas=with_used(snapshot.quotas, room.budget),
    )
    return any(grant.claim_id == claim.id for grant in planner(seen, policy).grants)
