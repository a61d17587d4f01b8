"""One turn: who gets what now, and why everybody else waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler.engine.explain import Explainer
from scheduler.engine.joint import serve_together
from scheduler.engine.model import Claim, Grant, Plan, Policy, Reason, Snapshot, Wait
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.reasons import are_impossible
from scheduler.engine.recut import repartitioned
from scheduler.engine.refused import Refused
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.state import EngineState, Refusal

Want = tuple[int, Shape]


def plan(snapshot: Snapshot, policy: Policy) -> Plan:
    """Decide one turn.

    Same snapshot and policy give the same plan. Every claim that gets nothing leaves with ordered
    wait reasons. A claim that cannot start blocks nobody behind it, and claims are placed together where
    that serves all that one after another would serve, and more. Raises UnknownPolicy when the
    policy names a rule that does not exist. Where the policy repartitions, idle boards get another pinned
    layout when that lets more claims start, and the grants of the plan count on it.
    """
    found = _plan(snapshot, policy)
    return found if not policy.repartition else repartitioned(snapshot, policy, found, _plan)


def _plan(snapshot: Snapshot, policy: Policy) -> Plan:
    state = EngineState.from_snapshot(snapshot, policy)
    lineup = Lineup(snapshot, policy)
    served = _serve(state, lineup, lineup.note)
    grants, waiting = serve_together(state, lineup.served, _serve, served)
    return Plan(grants=tuple(grants), waits=_waits(snapshot, state, waiting, len(grants), lineup))


def _serve(
    state: EngineState, queue: Iterable[Claim], note: Callable[[Grant], object] = lambda _: None
) -> tuple[list[Grant], list[tuple[Claim, Want]]]:
    """Grant in order what can be granted, and ``note`` it; within a turn room and headroom only shrink.

    So what failed once fails for every equal claim behind it, without another look.
    """
    grants: list[Grant] = []
    waiting: list[tuple[Claim, Want]] = []
    failed: set[Want] = set()
    refused = Refused()
    for claim in queue:
        want = (claim.team_id, shape_of(claim, state.policy))
        if want not in failed and not refused.covers(want[1]):
            answer = state.try_grant(claim, want[1])
            if isinstance(answer, Grant):
                state.grant(answer, state.now)
                grants.append(answer)
                note(answer)
                continue
            failed.add(want)
            if answer is Refusal.CAPACITY:
                refused.add(want[1])
        waiting.append((claim, want))
    return grants, waiting


def _waits(
    snapshot: Snapshot,
    state: EngineState,
    waiting: Sequence[tuple[Claim, Want]],
    granted: int,
    lineup: Lineup,
) -> tuple[Wait, ...]:
    began = EngineState.from_snapshot(snapshot, state.policy) if granted and waiting else state
    explainer = Explainer(state, began, granted)
    reasons: dict[Want, tuple[Reason, ...]] = {}
    waits = []
    position = 1
    for claim, want in waiting:
        if want not in reasons:
            reasons[want] = explainer.explain(claim, want[1], position)
        never = are_impossible(reasons[want])
        told = reasons[want] if never else reasons[want] + lineup.reasons(claim)
        waits.append(Wait(claim.id, position, told, never))
        position += not never
    return tuple(waits)
