"""One turn: who gets what now, and why everybody else waits."""

from __future__ import annotations

from scheduler.engine.asleep import waking
from scheduler.engine.elastic import grown
from scheduler.engine.explain import Explainer
from scheduler.engine.joint import serve_together
from scheduler.engine.model import Plan, Policy, Reason, Snapshot, Wait
from scheduler.engine.reasons import are_impossible
from scheduler.engine.reclaim import reclaimed
from scheduler.engine.recut import repartitioned
from scheduler.engine.serve import Serving, Want, is_booking
from scheduler.engine.shape import Shape


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide one turn.

    Same snapshot and policy give the same plan. Every claim that gets nothing leaves with ordered
    wait reasons. A claim that cannot start blocks nobody behind it, but for a promised start that nobody may
    delay (see ``scheduler.engine.serve``). Where nothing begins later, claims are placed together if that
    serves all that one after another would serve, and more. Raises UnknownPolicy when the
    policy names a rule that does not exist. Where the policy repartitions, idle boards get another pinned
    layout when that lets more claims start, and the grants of the plan count on it. Leases that may be taken
    back are told to go where that lets a waiting claim start (see ``scheduler.engine.reclaim``).
    """
    return reclaimed(snapshot, policy, _decide)


def _decide(snapshot: Snapshot, policy: Policy) -> Plan:
    found = _plan(snapshot, policy)
    return found if not policy.repartition else repartitioned(snapshot, policy, found, _plan)


def _plan(snapshot: Snapshot, policy: Policy) -> Plan:
    turn = decided(snapshot, policy)
    waits = _waits(snapshot, turn)
    growth = grown(turn.calendar, snapshot.growing, turn.waiting)
    return Plan(grants=(*turn.grants, *turn.booked), waits=waits, growth=growth)


def decided(snapshot: Snapshot, policy: Policy) -> Serving:
    """One turn without its wait reasons, for those who look further ahead; see ``plan``."""
    snapshot = waking(snapshot)
    turn = Serving(snapshot, policy)
    turn.serve()
    if turn.is_plain:
        served = turn.grants, turn.waiting
        queue = [claim for claim in turn.lineup.served if not is_booking(claim, snapshot.taken_at)]
        turn.grants, turn.waiting = serve_together(turn.calendar.room, queue, served)
    return turn


def _waits(snapshot: Snapshot, turn: Serving) -> tuple[Wait, ...]:
    calendar, granted = turn.calendar, len(turn.grants)
    began = calendar.began() if granted and turn.waiting else calendar.room
    explainer = Explainer(calendar.room, began, granted)
    reasons: dict[tuple[Want, int], tuple[Reason, ...]] = {}
    positions: dict[int, int] = {}
    has_room: dict[Shape, bool] = {}
    waits = []
    position = 1
    for claim, want in turn.waiting:
        shape = want[1]
        if calendar.layers and shape not in has_room:
            has_room[shape] = shape.wanted > 0 and calendar.room.spots(shape) is not None
        key = want, calendar.layer_of(claim.duration_s) if has_room.get(shape) else 0
        if key not in reasons:
            ahead = calendar.ahead(claim, shape, positions) if key[1] else None
            reasons[key] = (ahead,) if ahead else explainer.explain(claim, shape, position)
        never = are_impossible(reasons[key])
        told = reasons[key] if never else turn.lineup.explain(claim, reasons[key])
        positions[claim.id] = position
        waits.append(Wait(claim.id, position, told, never))
        position += not never
    waits += [Wait(claim.id, position, (silence,)) for claim, silence in turn.undecided]
    waits += [Wait(claim.id, position, why, is_impossible=True) for claim, why in turn.refused]
    return tuple(waits)
