"""Serving one turn's claims in order: what starts now, what is promised for later, and what is booked.

A claim that fits starts. One that has waited long enough for room gets the earliest start that the known
ends leave (backfill): its place is kept as a block from then on, and everybody behind it starts only where
that is not in the way. What is kept rests on known ends alone, so nobody behind can delay it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.engine.bookings import Bookings
from scheduler.engine.calendar import Calendar
from scheduler.engine.model import Claim, Grant, Reason, Snapshot
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.policy import PolicyRules
from scheduler.engine.refused_shapes import RefusedShapes
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.short_reserve import ShortReserve
from scheduler.engine.state import EngineState, Refusal

Want = tuple[int, Shape]


class Admission:
    """One turn on a calendar. ``waiting`` are the claims left for now, ``refused`` the bookings that fail,
    ``undecided`` those that cannot be judged before nodes are heard again.

    ``held_back`` are those of the waiting that would leave too little free for shorter ones.
    ``promised`` says when each claim that got a promise starts at the latest, as far as known ends go.
    """

    def __init__(self, snapshot: Snapshot, policy: PolicyRules, room: EngineState | None = None) -> None:
        self.calendar = Calendar(snapshot, policy, room)
        self.lineup = Lineup(snapshot, policy)
        self.grants: list[Grant] = []
        self.waiting: list[tuple[Claim, Want]] = []
        self.booked: list[Grant] = []
        self.refused: list[tuple[Claim, tuple[Reason, ...]]] = []
        self.undecided: list[tuple[Claim, Reason]] = []
        self.promised: dict[int, datetime] = {}
        self._snapshot = snapshot
        self._policy = policy
        self.held_back: dict[int, Want] = {}  # room or not: what is free is kept for shorter ones
        self._known = _Failures(self.calendar)
        self._spare = ShortReserve(self.calendar.room, self.lineup, policy)
        if policy.keep_apart:
            self.calendar.room.sort_by_length(snapshot, self.lineup.burdened)
        self._left = {"none": 0, "easy": min(policy.depth, 1)}.get(policy.backfill, policy.depth)

    @property
    def is_plain(self) -> bool:
        """Whether nothing begins later: then there is but one room."""
        return not self.calendar.layers

    def serve(self) -> None:
        """Grant in order what can be granted; then place the bookings, clear of what was promised."""
        bookings = []
        is_blocked = False
        for claim in self.lineup:
            if is_booking(claim, self.calendar.now):
                bookings.append(claim)
            elif is_blocked:
                self.waiting.append((claim, (claim.team_id, shape_of(claim, self._policy))))
            else:
                is_blocked = not self._serve(claim) and self.lineup.blocks
        if bookings:
            self._book(bookings)

    def _serve(self, claim: Claim) -> bool:
        """Grant it or let it wait; says whether it starts."""
        shape = shape_of(claim, self._policy)
        want = (claim.team_id, shape)
        if self._spare.holds_back(claim, shape):
            self.held_back[claim.id] = want
            self.waiting.append((claim, want))
            return False
        if not self._known.covers(claim, want):
            answer = self.calendar.try_grant(claim, shape)
            if isinstance(answer, Grant):
                self.calendar.room.lengths.note(answer, claim)
                self.calendar.grant(answer)
                self.grants.append(answer)
                self.lineup.note(answer)
                self._spare.note(answer)
                return True
            self._known.add(claim, want, answer)
        if self._left and self._waited_long(claim) and self._known.is_for_room(claim, want):
            self._left -= self._promise(claim, shape)
        self.waiting.append((claim, want))
        return False

    def _waited_long(self, claim: Claim) -> bool:
        waited_s = (self.calendar.now - claim.queued_at).total_seconds()
        return waited_s >= self._policy.reserve_after_s

    def _promise(self, claim: Claim, shape: Shape) -> bool:
        if self._known.is_hopeless(claim, shape):
            return False
        starts_at = self.calendar.promise(claim, shape)
        if starts_at is None:
            self._known.give_up(claim, shape)
            return False
        self.promised[claim.id] = starts_at
        return True

    def _book(self, bookings: Iterable[Claim]) -> None:
        books = Bookings(self.calendar, self._snapshot, self.grants)
        failed = []
        for claim in bookings:
            grant = books.book(claim)
            if grant is None:
                failed.append(claim)
            else:
                self.booked.append(grant)
        for claim in failed:
            silence = books.undecided(claim)
            if silence is None:
                self.refused.append((claim, books.why(claim)))
            else:
                self.undecided.append((claim, silence))


def is_booking(claim: Claim, now: datetime) -> bool:
    """Whether the claim wants to begin later; one whose time has come starts as soon as it can."""
    return claim.starts_at is not None and claim.starts_at > now


class _Failures:
    """What failed in this turn, so that equal and larger claims behind need no look of their own.

    Room and headroom only shrink while a turn serves, and a later room has no more than an earlier one.
    """

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._failed: dict[tuple[Want, datetime], Refusal] = {}
        self._refused: dict[datetime, RefusedShapes] = {}
        self._hopeless: set[tuple[Shape, int]] = set()

    def covers(self, claim: Claim, want: Want) -> bool:
        """Whether the claim needs no look."""
        at = self._room_of(claim)
        if claim.least_duration_s and at > self._calendar.now:
            return False
        if (want, at) in self._failed:
            return True
        return any(known.covers(want[1]) for since, known in self._refused.items() if since <= at)

    def add(self, claim: Claim, want: Want, refusal: Refusal) -> None:
        """Remember why the claim was refused."""
        at = self._room_of(claim)
        self._failed[want, at] = refusal
        if refusal is Refusal.CAPACITY:
            self._refused.setdefault(at, RefusedShapes()).add(want[1])

    def is_for_room(self, claim: Claim, want: Want) -> bool:
        """Whether it was room that the refused claim lacked, and not quota."""
        known = self._failed.get((want, self._room_of(claim)))
        return known is Refusal.CAPACITY if known else self._calendar.room.can_pay(*want)

    def give_up(self, claim: Claim, shape: Shape) -> None:
        """Remember that no known end makes room for it."""
        self._hopeless.add((shape, claim.duration_s))

    def is_hopeless(self, claim: Claim, shape: Shape) -> bool:
        """Whether no known end makes room for it."""
        return (shape, claim.duration_s) in self._hopeless

    def _room_of(self, claim: Claim) -> datetime:
        number = self._calendar.layer_of(claim.duration_s)
        return self._calendar.layers[number - 1].at if number else self._calendar.now
