"""One turn: who gets what now, and why everybody else waits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache

from scheduler.engine.admission import Admission, Want, is_booking
from scheduler.engine.elastic import grown
from scheduler.engine.explain import Explainer
from scheduler.engine.joint_placement import fitting_without, serve_together
from scheduler.engine.model import Plan, PolicyRules, Reason, Snapshot, Wait
from scheduler.engine.reasons import are_impossible
from scheduler.engine.reclaim import DecidedTurn, reclaimed
from scheduler.engine.repartition import repartitioned
from scheduler.engine.shape import Shape
from scheduler.engine.sleeping_nodes import waking
from scheduler.engine.state import EngineState


def plan(
    snapshot: Snapshot, policy: PolicyRules, room: EngineState | None = None, *, explains: bool = True
) -> Plan:
    """Decide one turn.

    Same snapshot and policy give the same plan. Every claim that gets nothing leaves with ordered
    wait reasons, none without ``explains``. A claim that cannot start blocks nobody behind it, but for a promised
    start that nobody may
    delay (see ``scheduler.engine.admission``). Where nothing begins later, claims are placed together if that
    serves all that one after another would serve, and more. Raises UnknownPolicy when the
    policy names a rule that does not exist. Where the policy repartitions, idle boards get another pinned
    layout when that lets more claims start, and the grants of the plan count on it. Leases that may be taken
    back are told to go where that lets a waiting claim start (see ``scheduler.engine.reclaim``).

    ``room`` is for those who decide turn after turn: the room that the snapshot describes, kept between turns.
    Afterwards it holds the grants and growth of the plan as well. It is for fleets whose boards and nodes do
    not change, and is not looked at where the policy repartitions or nodes are away.
    """
    if room is not None and (policy.repartition or snapshot.outages):
        room = None
    if room is not None:
        room.now = snapshot.taken_at
        room.heed(snapshot.demand)
    return reclaimed(snapshot, policy, _Planner(policy, explains), room)


class _Planner:
    """Decides an ordinary turn, and remembers how it went."""

    def __init__(self, policy: PolicyRules, explains: bool) -> None:
        self._policy = policy
        self._explains = explains

    def __call__(self, snapshot: Snapshot, room: EngineState | None = None) -> DecidedTurn:
        found = self._plan(snapshot, room)
        if not self._policy.repartition:
            return found
        better = repartitioned(snapshot, self._policy, found.plan, lambda seen, _: self._plan(seen).plan)
        return DecidedTurn(better, found.turn)

    def _plan(self, snapshot: Snapshot, room: EngineState | None = None) -> DecidedTurn:
        turn = decided(snapshot, self._policy, room)
        if self._explains:
            waits = _waits(snapshot, turn)
        else:
            waits = tuple(Wait(claim.id, at, ()) for at, (claim, _) in enumerate(turn.waiting, start=1))
        growth = grown(turn.calendar, snapshot.growing, turn.waiting)
        return DecidedTurn(Plan(grants=(*turn.grants, *turn.booked), waits=waits, growth=growth), turn)


def decided(snapshot: Snapshot, policy: PolicyRules, room: EngineState | None = None) -> Admission:
    """One turn without its wait reasons, for those who look further ahead; see ``plan``."""
    snapshot = waking(snapshot)
    turn = Admission(snapshot, policy, room)
    turn.serve()
    if turn.is_plain and not turn.lineup.blocks:
        held_back = turn.held_back
        served = turn.grants, [one for one in turn.waiting if one[0].id not in held_back]
        queue = [
            claim
            for claim in turn.lineup.served
            if claim.id not in held_back and not is_booking(claim, snapshot.taken_at)
        ]
        turn.grants, waiting = serve_together(turn.calendar.room, queue, served)
        if held_back:
            left = {claim.id: (claim, want) for claim, want in (*waiting, *turn.waiting)}
            granted = {grant.claim_id for grant in turn.grants}
            rows = (left[claim.id] for claim in turn.lineup.served if claim.id in left)
            waiting = [row for row in rows if row[0].id not in granted]
        turn.waiting = waiting
    return turn


def _fitted(turn: Admission) -> Callable[[Shape], bool]:
    """Says of the shapes that wait whether they had room as the turn began; looked up when first asked."""

    @cache
    def fitting() -> Collection[Shape]:
        room, shapes = turn.calendar.room, {want[1] for _claim, want in turn.waiting}
        found = fitting_without(room, turn.grants, shapes)
        if found is None:
            began = turn.calendar.began()
            found = {shape for shape in shapes if began.spots(shape) is not None}
        return found

    return lambda shape: shape in fitting()


def _waits(snapshot: Snapshot, turn: Admission) -> tuple[Wait, ...]:
    calendar, granted = turn.calendar, len(turn.grants)
    explainer = Explainer(calendar.room, _fitted(turn) if granted else None, granted)
    reasons: dict[tuple[Want, int], tuple[Reason, ...]] = {}
    positions: dict[int, int] = {}
    has_room: dict[Shape, bool] = {}
    waits = []
    position = 1
    for claim, want in turn.waiting:
        shape = want[1]
        if claim.id in turn.held_back and calendar.room.spots(shape) is not None:
            waits.append(Wait(claim.id, position, (Reason("kept_for_short"),)))
            positions[claim.id] = position
            position += 1
            continue
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
