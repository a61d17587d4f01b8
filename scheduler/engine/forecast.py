"""When would a claim start? The engine's own rules played forward over the ends already known.

The simulation knows when live placements must end and how long claims run at most, nothing else: no
early release, no new arrivals, blocked nodes stay blocked. So it is a bound by the book, not a
prediction. Equal claims (same team, same shape) form one line; only a line that the last end can help
is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush

from scheduler.engine.board import Board
from scheduler.engine.events import Ended, held_by
from scheduler.engine.explain import Explainer
from scheduler.engine.joint import place_together
from scheduler.engine.model import Claim, Forecast, Grant, Held, Policy, Reason, Snapshot
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.place.fill import node_room
from scheduler.engine.reasons import are_impossible
from scheduler.engine.refused import Refused
from scheduler.engine.shape import LONGEST_S, Shape, shape_of
from scheduler.engine.state import EngineState, Refusal

HORIZON_S = 7 * 86_400
MOST_EVENTS = 20_000
# A placement past its end is being cleaned; nobody knows how long, so a short while is assumed.
OVERDUE_S = 30

End = tuple[datetime, int, tuple[Held, ...]]


def forecast(
    snapshot: Snapshot, policy: Policy, claims: Iterable[Claim], horizon_s: int = HORIZON_S
) -> dict[int, Forecast]:
    """The earliest start of each claim, by claim id: queued ones, and what-ifs with negative ids.

    Each what-if stands in the queue by the ordinary order and is judged on its own: it takes nothing
    from queued claims and what-ifs do not see each other. ``starts_at`` is None when no start was
    found within the horizon (or within the bounded number of events), with the reasons why; a claim
    that cannot start at once carries the reasons of now. ``position`` counts from 1 among the claims
    that are left waiting now.
    """
    asked = {claim.id: claim for claim in claims}
    timeline = _Timeline(snapshot, policy, asked)
    timeline.run(snapshot.taken_at + timedelta(seconds=min(horizon_s, LONGEST_S)))
    return timeline.answers()


class _Line:
    """Equal claims of one team, in queue order; ``next`` is the first one still waiting."""

    __slots__ = ("claims", "head", "is_short_of_quota", "shape", "team_id")

    def __init__(self, team_id: int, shape: Shape) -> None:
        self.team_id = team_id
        self.shape = shape
        self.claims: list[tuple[int, Claim]] = []
        self.head = 0
        self.is_short_of_quota = False

    @property
    def rank(self) -> int:
        """The place in the whole queue of the first claim still waiting."""
        return self.claims[self.head][0]

    @property
    def is_empty(self) -> bool:
        """Whether everybody in the line has started."""
        return self.head == len(self.claims)


class _Timeline:
    """The queue and the state, moved from end to end."""

    def __init__(self, snapshot: Snapshot, policy: Policy, asked: dict[int, Claim]) -> None:
        self.snapshot = snapshot
        self.state = EngineState.from_snapshot(snapshot, policy)
        self.asked = asked
        self.unknown = set(asked)
        self.starts: dict[int, datetime] = {}
        self.positions: dict[int, int] = {}
        self.reasons: dict[int, tuple[Reason, ...]] = {}
        self.granted: dict[int, Grant] = {}
        queued = {claim.id for claim in snapshot.queue}
        what_ifs = (claim for claim in asked.values() if claim.id not in queued)
        self.queued = queued
        self.order = Lineup(snapshot, policy).ordered((*snapshot.queue, *what_ifs))
        self.lines = self._line_up(self.order)
        self.lines_of: dict[Shape, list[_Line]] = {}
        for line in self.lines:
            self.lines_of.setdefault(line.shape, []).append(line)
        self.shapes_on: dict[Board, Iterable[Shape]] = {}
        self.short_of_quota: list[_Line] = []
        self.ends = self._known_ends(snapshot.held)
        self.made = len(self.ends)

    def _line_up(self, queue: Sequence[Claim]) -> list[_Line]:
        lines: dict[tuple[int, Shape], _Line] = {}
        for rank, claim in enumerate(queue):
            shape = shape_of(claim, self.state.policy)
            key = (claim.team_id, shape)
            line = lines.get(key) or lines.setdefault(key, _Line(claim.team_id, shape))
            line.claims.append((rank, claim))
        return list(lines.values())

    def _known_ends(self, held: Iterable[Held]) -> list[End]:
        now = self.snapshot.taken_at
        overdue = now + timedelta(seconds=OVERDUE_S)
        ends: list[End] = []
        for made, one in enumerate(h for h in held if h.device_id in self.state.board_of):
            ends.append((one.until if one.until > now else overdue, made, (one,)))
        heapify(ends)
        return ends

    def run(self, until: datetime) -> None:
        """Serve the lines now and after every end, until all asked claims have an answer."""
        self._serve(self.lines, self.snapshot.taken_at)
        self._place_together()
        self._note_positions()
        self._note_reasons()
        for _ in range(MOST_EVENTS):
            if not self.unknown or not self.ends or self.ends[0][0] > until:
                return
            now, ended = self._next_ends()
            self.state.now = now
            self.state.end(Ended(tuple(ended)))
            self._serve(self._helped_by(ended), now)

    def _next_ends(self) -> tuple[datetime, list[Held]]:
        now = self.ends[0][0]
        ended: list[Held] = []
        while self.ends and self.ends[0][0] == now:
            ended += heappop(self.ends)[2]
        return now, ended

    def _serve(self, lines: Sequence[_Line], now: datetime) -> None:
        """Grant from the heads of the lines, in queue order, until every line is stuck or empty."""
        heads = [(line.rank, line) for line in lines]
        heapify(heads)
        refused = Refused()
        self.short_of_quota = []
        while heads and self.unknown:
            _, line = heappop(heads)
            if not self._start_head(line, now, refused):
                continue
            if line.is_empty:
                self.lines_of[line.shape].remove(line)
            else:
                heappush(heads, (line.rank, line))

    def _start_head(self, line: _Line, now: datetime, refused: Refused) -> bool:
        _, claim = line.claims[line.head]
        if refused.covers(line.shape):
            line.is_short_of_quota = False
            return False
        answer = self.state.try_grant(claim, line.shape)
        line.is_short_of_quota = answer is Refusal.QUOTA
        if not isinstance(answer, Grant):
            if answer is Refusal.CAPACITY:
                refused.add(line.shape)
            else:
                self.short_of_quota.append(line)
            return False
        if claim.id in self.queued:
            self.granted[claim.id] = answer
            self._push_end(self.state.grant(answer, now))
        self._start(line, now)
        return True

    def _start(self, line: _Line, now: datetime) -> None:
        """Let the head of the line start."""
        _, claim = line.claims[line.head]
        line.head += 1
        if claim.id in self.unknown:
            self.unknown.discard(claim.id)
            self.starts[claim.id] = now

    def _push_end(self, held: tuple[Held, ...]) -> None:
        heappush(self.ends, (held[0].until, self.made, held))
        self.made += 1

    def _place_together(self) -> None:
        """Start now what the turn places beyond one after another, with the equal what-ifs ahead of it."""
        if not self.unknown or not self.granted:
            return
        now = self.snapshot.taken_at
        waits = [(rank, claim, line) for line in self.lines for rank, claim in line.claims[line.head :]]
        waiting = [
            (claim, (line.team_id, line.shape))
            for _, claim, line in sorted(waits, key=lambda one: one[0])
            if claim.id in self.queued
        ]
        queue = [claim for claim in self.order if claim.id in self.queued]
        better = place_together(self.state, queue, list(self.granted.values()), waiting)
        if better is None:
            return
        self.granted = {grant.claim_id: grant for grant in better}
        self.ends = self._known_ends(self.snapshot.held)
        for grant in better:
            self._push_end(held_by(grant, now))
        for line in self.lines:
            while any(claim.id in self.granted for _, claim in line.claims[line.head :]):
                self._start(line, now)
            if line.is_empty and line in self.lines_of[line.shape]:
                self.lines_of[line.shape].remove(line)
        self._serve([line for line in self.lines if not line.is_empty], now)

    def _helped_by(self, ended: Sequence[Held]) -> list[_Line]:
        """The lines that may move after these ends: room on a freed board, or quota given back."""
        helped: dict[Shape, None] = {}
        for board in {self.state.board_of[held.device_id]: None for held in ended}:
            for shape in self._shapes_on(board):
                if board.room(shape) and shape not in helped and self._fits_beside(board, shape):
                    helped[shape] = None
        if any(held.cpu_milli or held.host_memory_mib for held in ended):
            # CPU that comes back helps beside any board of its node, not only the freed one.
            helped |= {shape: None for shape in self.lines_of if shape.wants_host and self.lines_of[shape]}
        moved = [line for shape in helped for line in self.lines_of[shape] if not line.is_short_of_quota]
        return moved + self.short_of_quota

    def _shapes_on(self, board: Board) -> list[Shape]:
        """The shapes still asked for that the board can serve at all."""
        known = self.shapes_on.get(board, self.lines_of)
        self.shapes_on[board] = left = [
            shape
            for shape in known
            if self.lines_of[shape] and (known is not self.lines_of or board.serves(shape.kind))
        ]
        return left

    def _fits_beside(self, board: Board, shape: Shape) -> bool:
        """Whether all units fit on the board's node. Without room on the freed board nothing changed."""
        if board.blocked or shape.wanted == 1 or shape.is_spread:
            return not board.blocked
        groups = self.state.groups(shape.kind)
        return any(
            group[0].node is board.node and node_room(group, shape) >= shape.wanted for group in groups
        )

    def _note_positions(self) -> None:
        ahead = 0
        for claim in self.order:
            if claim.id in self.asked:
                self.positions[claim.id] = ahead + 1
            ahead += claim.id in self.queued and claim.id not in self.granted

    def _note_reasons(self) -> None:
        """Why the asked claims wait now; kept for those that start later or not at all."""
        if not self.unknown:
            return
        began = EngineState.from_snapshot(self.snapshot, self.state.policy)
        explainer = Explainer(self.state, began, len(self.granted))
        for line in self.lines:
            known: tuple[Reason, ...] | None = None
            for _, claim in line.claims[line.head :]:
                if claim.id not in self.unknown:
                    continue
                if known is None:
                    known = explainer.explain(claim, line.shape, self.positions[claim.id])
                self.reasons[claim.id] = known
                if are_impossible(known):
                    self.unknown.discard(claim.id)

    def answers(self) -> dict[int, Forecast]:
        """One forecast per asked claim."""
        return {claim_id: self._answer(claim_id) for claim_id in self.asked}

    def _answer(self, claim_id: int) -> Forecast:
        reasons = self.reasons.get(claim_id, ())
        return Forecast(
            claim_id,
            self.starts.get(claim_id),
            self.positions[claim_id],
            reasons,
            are_impossible(reasons),
        )
