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
from typing import NamedTuple

from scheduler.engine.admission import Admission
from scheduler.engine.kept_places import KeptPlaces, keep_places, with_used
from scheduler.engine.model import Claim, Plan, PolicyRules, Preemption, Reason, Snapshot, Wait
from scheduler.engine.preemptible_units import units_of
from scheduler.engine.shape import shape_of
from scheduler.engine.state import EngineState
from scheduler.engine.victims import Search, hopeful


class DecidedTurn(NamedTuple):
    """An ordinary turn: what came out, and how it went."""

    plan: Plan
    turn: Admission


Planner = Callable[[Snapshot, EngineState | None], DecidedTurn]

MOST_CLAIMS = 64
# With bookings or maintenance ahead each find is played through once more by the whole plan.
MOST_CHECKS = 8


def reclaimed(
    snapshot: Snapshot, policy: PolicyRules, planner: Planner, room: EngineState | None = None
) -> Plan:
    """The plan with those served first for whom leases were told to go, and with who must go next.

    Costs nothing where no live lease was told to go and none may be. ``planner`` decides an ordinary turn.
    ``room`` is the room of the snapshot where the caller keeps one, and then holds what was granted.
    """
    kept = keep_places(snapshot, policy, room)
    decided = planner(kept.seen, room)
    found = decided.plan
    named = _named(kept, policy, decided, planner)
    if room is not None:
        kept.release(room)
    if not (kept.placed or kept.grants or kept.spared or named):
        return found
    waits = _waits(kept, found, named, snapshot, policy)
    return replace(
        found,
        grants=(*kept.grants, *found.grants),
        waits=waits,
        preemptions=(*found.preemptions, *named),
        spared=(*found.spared, *kept.spared),
    )


def _waits(
    kept: KeptPlaces, found: Plan, named: Sequence[Preemption], snapshot: Snapshot, policy: PolicyRules
) -> tuple[Wait, ...]:
    """Those whose place is kept come first; who gets a place made now hears that before why it waits."""
    waits = []
    for position, (claim, told) in enumerate(kept.placed, start=1):
        ends = [one.preempt_at for one in told if one.preempt_at is not None]
        last = max(ends).isoformat() if ends else None
        figures = {"leases": [one.lease_id for one in told], "ends_at": last}
        waits.append(Wait(claim.id, position, (Reason("room_is_made", figures),)))
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


def _named(kept: KeptPlaces, policy: PolicyRules, decided: DecidedTurn, planner: Planner) -> list[Preemption]:
    """Who must go for the claims that still wait, in their order; at most MOST_CLAIMS of them are looked at."""
    snapshot, found = kept.seen, decided.plan
    if not found.waits:
        return []
    scored = decided.turn.lineup.scored if policy.preempting.by_score else None
    claims = {claim.id: claim for claim in snapshot.queue if claim.starts_at is None}
    waits = (
        claims[wait.claim_id]
        for wait in found.waits
        if wait.claim_id in claims
        and wait.claim_id not in decided.turn.held_back
        and not wait.is_impossible
        and not _is_node_waking(wait)
    )
    waiting = hopeful(snapshot, policy, waits, MOST_CLAIMS, by_score=scored is not None)
    if not waiting:
        return []
    room = _room_after(snapshot, policy, decided)
    units = units_of(snapshot, policy, room, scored)
    if not len(units):
        return []
    search = Search(room, units, policy.preempting, kept.promised, scored)
    has_blocks = bool(snapshot.bookings or snapshot.outages)
    checks = MOST_CHECKS
    named: list[Preemption] = []
    # With what score equal claims found nothing, and whom these yield to: a worse one finds no more.
    hopeless: dict[tuple[object, ...], list[tuple[float, frozenset[int]]]] = {}
    has_limits = any(q.ceiling_milli is not None or q.cohort_id is not None for q in snapshot.quotas)
    for claim in waiting:
        shape = shape_of(claim, policy)
        key = (has_limits and claim.team_id, shape, claim.priority, claim.is_preemptible)
        score = scored.score(claim) if scored else 0.0
        failed = hopeless.setdefault(key, [])
        if any(score >= least and yields <= claim.yields_to for least, yields in failed):
            continue
        victims = search.find(claim, shape, score)
        if victims and has_blocks:
            checks -= 1
            if checks < 0 or not _starts(snapshot, planner, search.room, claim):
                victims = None
        if victims is None:
            search.forget()
            failed.append((score, claim.yields_to))
            continue
        search.keep()
        named += [Preemption(lease.lease_id, claim.id, why) for unit, why in victims for lease in unit.leases]
    search.restore()
    return named


def _room_after(snapshot: Snapshot, policy: PolicyRules, decided: DecidedTurn) -> EngineState:
    """The room with all that the turn granted."""
    if not policy.repartition:
        return decided.turn.calendar.room
    room = EngineState.from_snapshot(snapshot, policy)
    for grant in (*decided.plan.grants, *decided.plan.growth):
        if grant.starts_at is None:
            room.grant(grant, snapshot.taken_at)
    return room


def _is_node_waking(wait: Wait) -> bool:
    """Whether a node is woken for the claim: nobody has to go for what comes by itself."""
    codes = [reason.code for reason in wait.reasons]
    return "node_waking" in codes and codes[0] in ("node_waking", "behind")


def _starts(snapshot: Snapshot, planner: Planner, room: EngineState, claim: Claim) -> bool:
    """Whether the whole plan, with all that lies ahead, would let the claim start in a room like this one."""
    seen = replace(
        snapshot,
        queue=(claim,),
        growing=(),
        held=tuple(held for board in room.boards for held in board.held),
        quotas=with_used(snapshot.quotas, room.budget),
    )
    return any(grant.claim_id == claim.id for grant in planner(seen, None).plan.grants)
