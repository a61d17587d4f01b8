"""Placing bookings: a claim for a time to come gets its slots now, or hears which times near it are free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.engine.blocks import overlapping
from scheduler.engine.calendar import Calendar
from scheduler.engine.earliest_start import SILENT, StartSearch, is_undecided
from scheduler.engine.explain import Explainer
from scheduler.engine.model import Claim, Grant, Reason, Snapshot
from scheduler.engine.place.fill import Spot, spots_cost
from scheduler.engine.quota import Budget
from scheduler.engine.shape import LONGEST_S, Shape, shape_of
from scheduler.engine.shortage import paused

MOST_WINDOWS, MOST_NODES = 3, 8
AROUND = timedelta(days=7)
# Nobody plans further ahead, and the end must stay within the calendar.
FURTHEST = timedelta(seconds=LONGEST_S)


class Bookings:
    """The bookings of one turn, after everybody who wants to start now.

    What is held beyond a booking's start counts as taken, what is over by then does not; ``grants`` are what
    this turn gave. Room and quota are those of the whole period: never above a ceiling by what is known.
    """

    def __init__(self, calendar: Calendar, snapshot: Snapshot, grants: Sequence[Grant]) -> None:
        self._calendar = calendar
        self._snapshot = snapshot
        self._grants = grants
        self._explainer = Explainer(calendar.room)

    def book(self, claim: Claim) -> Grant | None:
        """The slots for the wanted time, which are kept from now on; None when they cannot be had."""
        room, shape = self._calendar.room, shape_of(claim, self._calendar.room.policy)
        if claim.starts_at is None or self._never(claim, shape):
            return None
        spots = self._search(claim, shape).at(claim.starts_at)
        if spots is None or not self._can_pay(claim, shape, spots, claim.starts_at):
            return None
        grant = replace(room.granted(claim, shape, spots), starts_at=claim.starts_at)
        self._calendar.grant(grant)
        return grant

    def fits(self, claim: Claim) -> bool:
        """Whether the wanted time could be had now, by room and by quota, as ``book`` would decide."""
        room, shape = self._calendar.room, shape_of(claim, self._calendar.room.policy)
        if claim.starts_at is None or not shape.wanted or not room.matching(shape.kind):
            return False
        spots = self._search(claim, shape).at(claim.starts_at)
        return spots is not None and self._can_pay(claim, shape, spots, claim.starts_at)

    def why(self, claim: Claim) -> tuple[Reason, ...]:
        """Why a claim was not booked, and which times near it are free after all others were."""
        shape = shape_of(claim, self._calendar.room.policy)
        never = self._never(claim, shape)
        if never is not None or claim.starts_at is None:
            return (never,) if never else ()
        search = self._search(claim, shape)
        code = "booking_taken" if search.at(claim.starts_at) is None else "booking_above_quota"
        nearest = [at.isoformat() for at in self._nearest(search, claim, shape, claim.starts_at)]
        figures = {
            "starts_at": claim.starts_at.isoformat(),
            "duration_s": claim.duration_s,
            "nearest": nearest,
        }
        away = self._away(claim, shape) if code == "booking_taken" else []
        if away:
            figures["maintenance"] = away
        return (Reason(code, figures),)

    def undecided(self, claim: Claim) -> Reason | None:
        """Which silent or paused nodes a booking that failed hangs on: it would be had without that; else None.

        Neither says anything about the wanted time: right after a start no node has been heard yet.
        """
        shape = shape_of(claim, self._calendar.room.policy)
        if claim.starts_at is None or self._never(claim, shape) is not None:
            return None
        undecided = [board for board in self._calendar.room.matching(shape.kind) if is_undecided(board)]
        if not undecided:
            return None
        search = StartSearch(
            self._calendar.room, self._calendar.blocks, shape, claim.duration_s, with_undecided=True
        )
        spots = search.at(claim.starts_at)
        if spots is None or not self._can_pay(claim, shape, spots, claim.starts_at):
            return None
        quiet = [board for board in undecided if board.node.blocked in SILENT]
        if not quiet:
            return paused(undecided)
        names = list(dict.fromkeys(board.node.name for board in quiet))
        return Reason("nodes_silent", {"starts_at": claim.starts_at.isoformat(), "nodes": names[:MOST_NODES]})

    def _never(self, claim: Claim, shape: Shape) -> Reason | None:
        starts_at = claim.starts_at
        if starts_at is not None and starts_at - self._calendar.now > FURTHEST:
            return Reason("malformed", {"field": "starts_at", "value": starts_at.isoformat()})
        return self._explainer.never(claim, shape)

    def _away(self, claim: Claim, shape: Shape) -> list[str]:
        """The nodes that could serve the claim, but whose maintenance the wanted time runs into."""
        assert claim.starts_at is not None
        serving = {board.device.id for board in self._calendar.room.matching(shape.kind)}
        blocks = overlapping(self._calendar.blocks, claim.starts_at, claim.duration_s)
        names = {
            block.node for block in blocks if block.cause == "maintenance" and block.held.device_id in serving
        }
        return sorted(names)[:MOST_NODES]

    def _search(self, claim: Claim, shape: Shape) -> StartSearch:
        return StartSearch(self._calendar.room, self._calendar.blocks, shape, claim.duration_s)

    def _nearest(self, search: StartSearch, claim: Claim, shape: Shape, wanted: datetime) -> list[datetime]:
        """Up to three starts near the wanted one that are free, one of them before and one behind if any are."""
        since = max(self._calendar.now, wanted - AROUND)
        free = [
            at
            for at, spots in search.openings(since, wanted + AROUND)
            if spots is not None
            and at not in (self._calendar.now, wanted)
            and self._can_pay(claim, shape, spots, at)
        ]
        before = sorted((at for at in free if at < wanted), reverse=True)[:MOST_WINDOWS]
        behind = sorted(at for at in free if at > wanted)[:MOST_WINDOWS]
        sides = [*before[:1], *behind[:1]]
        rest = sorted((*before[1:], *behind[1:]), key=lambda at: (abs(at - wanted), at))
        return sorted([*sides, *rest[: MOST_WINDOWS - len(sides)]])

    def _can_pay(self, claim: Claim, shape: Shape, spots: Sequence[Spot], starts_at: datetime) -> bool:
        budget = self._budget(claim, starts_at)
        return budget.allows(claim.team_id, spots_cost(spots, shape))

    def _budget(self, claim: Claim, starts_at: datetime) -> Budget:
        """What the teams will have taken then: all that is still held, and all that begins before the end."""
        room, budget = self._calendar.room, Budget(self._snapshot.quotas)
        for held in self._snapshot.held:
            board = room.board_of.get(held.device_id)
            if board is not None and held.until <= starts_at:
                budget.take(held.team_id, -board.cost_of(held))
        for grant in self._grants:
            if room.now + timedelta(seconds=grant.duration_s) > starts_at:
                budget.take(grant.team_id, grant.cost_milli)
        for block in overlapping(self._calendar.blocks, starts_at, claim.duration_s):
            board = room.board_of.get(block.held.device_id)
            if board is not None:
                budget.take(block.held.team_id, board.cost_of(block.held))
        return budget
