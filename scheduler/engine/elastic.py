"""What elastic leases grow by while boards idle: one more unit each in turn, after everybody else was served.

A unit goes only where nobody waits who could use that board and whose team could pay for it. It ends with
its lease at the latest, within the quota as everything, and is the first to go when somebody needs the place
(``scheduler.engine.victims``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.engine.calendar import Calendar
from scheduler.engine.model import Claim, Grant
from scheduler.engine.shape import Shape, ShapeKind, shape_of

# Units added in one turn; the next turn goes on.
MOST_GROWN = 64


def grown(
    calendar: Calendar, growing: Sequence[Claim], waiting: Iterable[tuple[Claim, tuple[int, Shape]]]
) -> tuple[Grant, ...]:
    """What each of ``growing`` gets on top, at most ``most_count`` units of one each; grants stay applied.

    ``waiting`` are the claims that got nothing, with their team and shape. Who comes first gets one unit, then
    the next, and round again: by priority, then by when it was asked, then by id.
    """
    if not growing:
        return ()
    hoping = _hoping(calendar, waiting)
    left = {claim.id: claim.most_count for claim in growing}
    line = sorted(growing, key=lambda claim: (-claim.priority, claim.queued_at, claim.id))
    failed: set[tuple[int, Shape, int]] = set()
    grants: list[Grant] = []
    while line:
        again = []
        for claim in line:
            if len(grants) == MOST_GROWN:
                return tuple(grants)
            grant = _one_more(calendar, claim, hoping, failed) if left[claim.id] > 0 else None
            if grant is not None:
                calendar.grant(grant)
                grants.append(grant)
                left[claim.id] -= 1
                again.append(claim)
        line = again
    return tuple(grants)


def _one_more(
    calendar: Calendar, claim: Claim, hoping: frozenset[ShapeKind], failed: set[tuple[int, Shape, int]]
) -> Grant | None:
    """One unit more for the claim, not applied; what ``failed`` before for its like is not tried again."""
    unit = replace(claim, count=1, nodes=1, most_count=0, starts_at=None)
    shape = shape_of(unit, calendar.room.policy)
    want = (claim.team_id, shape, calendar.layer_of(claim.duration_s))
    if want in failed:
        return None
    answer = calendar.try_grant(unit, shape)
    if isinstance(answer, Grant):
        boards = (calendar.room.board_of[slot.device_id] for slot in answer.slots)
        if not any(board.serves(kind) for board in boards for kind in hoping):
            return answer
    failed.add(want)
    return None


def _hoping(calendar: Calendar, waiting: Iterable[tuple[Claim, tuple[int, Shape]]]) -> frozenset[ShapeKind]:
    """The kinds of boards that somebody waits for whose team could pay."""
    wants = {want for _claim, want in waiting}
    return frozenset(
        shape.kind for team, shape in wants if shape.wanted and calendar.room.can_pay(team, shape)
    )
