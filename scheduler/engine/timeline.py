"""The queue played forward: from one end to the next, by the turn's own rules, over the ends already known.

It starts with the turn as it is decided now. After that it knows when live placements must end, what was
booked, which nodes go away and come back, and how long claims run at most; nothing else: no early release,
no new arrivals, blocked nodes stay blocked. So it is a bound by the book, not a prediction, unless the snapshot
says how long claims will probably run (``outcome``).

Where leases go for better scores they do so here too, looked for at a few instants (``future_victims``), and long
requests leave as much free for shorter ones as in a turn (``short_reserve``).

Everybody left is stuck, so after an end only the nodes where it happened are looked at, teams that were short of
quota, and what was held back for shorter ones; ``future_places`` finds the boards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import heappop, heappush
from itertools import islice

from scheduler.engine.admission import Admission
from scheduler.engine.blocks import Ahead, Block, known_blocks, promised
from scheduler.engine.board import Board
from scheduler.engine.board_history import AT_FIRST, BoardHistory
from scheduler.engine.earliest_start import OVERDUE_S, StartSearch, comes_back
from scheduler.engine.events import Ended
from scheduler.engine.future_places import FuturePlaces
from scheduler.engine.future_victims import FutureVictim, FutureVictims, idle_spots
from scheduler.engine.model import Claim, Grant, Held, PolicyRules, Snapshot
from scheduler.engine.order.burden import overload
from scheduler.engine.order.costs import Costs
from scheduler.engine.shape import Shape, shape_of
from scheduler.engine.short_reserve import ShortReserve
from scheduler.engine.waiting_lines import Line, WaitingLines

MOST_EVENTS = 20_000
# Starts promised later than now: each costs a look at everything that runs.
MOST_PROMISES = 64
MOST_PASSED_OVER = 32
CHECKPOINT = 256
# When leases are looked at that may go for better scores: seconds from now, the notice apart, the last one first.
LOOKS_S = [*(1_209_600 / 1.5**n for n in range(21)), 240.0, 180.0, 120.0, 60.0, 0.0]
PREEMPTED_S = 60  # what a preemption costs before the request runs usefully again
MOST_HOPEFUL = 64


class Timeline:
    """The future of one snapshot. ``starts`` says when each queued claim starts, as far as it was played.

    ``times`` are the instants of the steps, ``history`` the boards' states, ``ahead`` what was kept for later,
    ``spends`` what was taken of quotas: (step, rank, team, weighted thousandths), ``checkpoints`` what every
    team used before each ``CHECKPOINT`` of them.
    ``order`` is the queue in order, a claim's place in it is its rank; ``first`` are those for whom leases
    were told to go, which no turn serves. ``room`` is the future's, not now's.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        policy: PolicyRules,
        turn: Admission,
        order: Sequence[Claim],
        first: Sequence[Claim] = (),
    ) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.turn = turn
        self.order = order
        self._claims = {claim.id: claim for claim in order}
        self.rank_of = {claim.id: rank for rank, claim in enumerate(order)}
        self.now = snapshot.taken_at
        self.times = [self.now]
        self.starts: dict[int, datetime] = {}
        self.ahead: list[Ahead] = []
        self.spends: list[tuple[int, int, int, int]] = []
        self.checkpoints: list[dict[int, int]] = []
        self.room = turn.calendar.began()
        self._events: list[tuple[datetime, int, int, tuple[Held, ...], Sequence[Board]]] = []
        self._made = 0
        self._later: dict[int, list[Ahead]] = defaultdict(list)
        self._promised: set[int] = set()
        self._crowded: set[Board] = set()
        self._passed = 0
        self._promises_left = MOST_PROMISES
        self._depth = {"none": 0, "easy": min(policy.depth, 1)}.get(policy.backfill, policy.depth)
        self._open_again(snapshot)
        if policy.keep_apart:
            self.room.sort_by_length(snapshot, turn.lineup.burdened)
        self.history = BoardHistory([board for board in self.room.boards if not board.blocked])
        self.row_of = {board.device.id: row for row, board in enumerate(self.history.boards)}
        self._lines = WaitingLines(self.room)
        self._places = FuturePlaces(self.room, self._later, self._lines.boards_of)
        self._back: dict[int, Claim] = {}  # those that were preempted on the way and wait again
        self._likely_s = dict(snapshot.likely_s)
        self._victims = FutureVictims.of(snapshot, policy, self.room, turn.lineup)
        self._costs = Costs(snapshot)
        self._reserve = ShortReserve(self.room, turn.lineup, policy) if policy.keep_short else None
        self._asked = sum(self._costs.of(claim) for claim in snapshot.queue) if self._reserve else 0
        self._held_back: dict[Shape, None] = {shape: None for _, shape in turn.held_back.values()}
        notice_s = policy.preempting.grace_s
        self._looks = [self.now + timedelta(seconds=notice_s + one) for one in LOOKS_S if self._victims]
        self._begin(snapshot, first)

    def _open_again(self, snapshot: Snapshot) -> None:
        """Nodes whose maintenance is on, or that sleep, come back: until then their boards are held, not closed."""
        away = {one.node_id: one.until for one in snapshot.outages if one.starts_at <= self.now < one.until}
        for board in self.room.boards:
            if board.node.id in away and comes_back(board):
                board.blocked = ""

    def _begin(self, snapshot: Snapshot, first: Sequence[Claim]) -> None:
        for block in known_blocks(snapshot):
            if block.starts_at <= self.now:
                self._close(block)
            else:
                self._keep(block, AT_FIRST)
        for held in snapshot.held:
            if held.device_id in self.room.board_of:
                end = held.until if held.until > self.now else self.now + timedelta(seconds=OVERDUE_S)
                self._push(end, 0, (held,))
        for board in self.history.boards:
            self.history.note(0, AT_FIRST, board, self.room.host_of(board))
        for grant in sorted(self.turn.grants, key=lambda grant: self.rank_of[grant.claim_id]):
            self._start(grant, self.rank_of[grant.claim_id])
        for grant in self.turn.booked:
            starts_at = grant.starts_at or self.now
            self.starts[grant.claim_id] = starts_at
            for block in promised(grant, starts_at):
                self._keep(Block(block.starts_at, block.held, "booking"), AT_FIRST)
        for block in self.turn.calendar.blocks:
            if block.cause == "waiting" and block.claim_id is not None:
                self._promised.add(block.claim_id)
                self._keep(block, self.rank_of[block.claim_id])
        left = [claim for claim, _ in self.turn.waiting]
        self._owed = {claim.id for claim in first}
        for claim in sorted((*first, *left), key=lambda claim: self.rank_of[claim.id]):
            shape = shape_of(claim, self.policy)
            if shape.wanted:
                self._lines.add(claim, shape, self.rank_of[claim.id])
        for line in self._lines:
            if not self.room.budget.allows(line.team_id, line.cost):
                self._lines.set_short(line)

    def _close(self, block: Block) -> None:
        self.room.board_of[block.held.device_id].put(block.held)
        self._push(block.held.until, 0, (block.held,))

    def _keep(self, block: Block, rank: int, by: int = AT_FIRST) -> None:
        one = Ahead(block, rank, len(self.times) - 1, by)
        self.ahead.append(one)
        self._later[block.held.device_id].append(one)
        board = self.room.board_of[block.held.device_id]
        if block.cause == "waiting":
            self._push(block.starts_at, 2, (), (board,))
        else:
            self._push(block.starts_at, 1, (block.held,))

    def _push(self, at: datetime, kind: int, held: tuple[Held, ...], boards: Sequence[Board] = ()) -> None:
        self._made += 1
        heappush(self._events, (at, kind, self._made, held, boards))

    def run(self, until: datetime) -> None:
        """Play until nothing more ends or the time is over; after the queue what-ifs may still find room."""
        for _ in range(MOST_EVENTS):
            if not self._events or min([*self._looks[-1:], self._events[0][0]]) > until:
                return
            if self._looks and self._looks[-1] < self._events[0][0]:
                self._step(self._looks.pop())
                self._preempt()
                continue
            self._step(self._events[0][0])
            self._serve(self._next())

    def _step(self, at: datetime) -> None:
        self.now = self.room.now = at
        self.times.append(at)

    def _next(self) -> list[Board]:
        """Let all that is due end and begin; the boards where there may be more room than before."""
        changed: dict[Board, None] = {}
        freed: dict[Board, None] = {}
        while self._events and self._events[0][0] == self.now:
            _, kind, _, held, boards = heappop(self._events)
            freed.update(dict.fromkeys(boards))
            for one in held:
                board = self.room.board_of[one.device_id]
                changed[board] = None
                if kind:
                    self._take_over(board, one)
                else:
                    freed[board] = None
            if not kind:
                self._end(held)
        for board in changed:
            self.history.note(len(self.times) - 1, AT_FIRST, board, self.room.host_of(board))
        return list(freed)

    def _end(self, held: Iterable[Held]) -> None:
        for one in held:
            board = self.room.board_of[one.device_id]
            if one not in board.held:
                continue
            if board in self._crowded:
                self._clear_of(board, one)
            else:
                self.room.end(Ended((one,)))
            if not board.held:
                self.room.lengths.forget(one.device_id)
            self._spend(AT_FIRST, one.team_id, -board.cost_of(one))

    def _clear_of(self, board: Board, held: Held) -> None:
        """End one of several things that should not stand on one board together."""
        left = [one for one in board.held if one is not held]
        board.refill(left)
        if any(one.mode == "exclusive" for one in left):
            board.use, board.mask = "exclusive", board.full
        if not left:
            self._crowded.discard(board)
        self.room.host_of(board).take(held, -1)
        self.room.look_again_at((held,))
        self.room.budget.take(held.team_id, -board.cost_of(held))

    def _spend(self, rank: int, team_id: int, cost: int) -> None:
        if cost:
            if len(self.spends) >= CHECKPOINT * len(self.checkpoints):
                self.checkpoints.append(self._budget_now(team_id, -cost))
            self.spends.append((len(self.times) - 1, rank, team_id, cost))

    def _budget_now(self, team_id: int, cost: int) -> dict[int, int]:
        """What every team uses, with ``cost`` more of one team."""
        budget = self.room.budget
        budget.take(team_id, cost)
        used = {quota.team_id: budget.used(quota.team_id) for quota in self.snapshot.quotas}
        budget.take(team_id, -cost)
        return used

    def _take_over(self, board: Board, held: Held) -> None:
        """What was booked begins; maintenance ends what is still there."""
        for one in [x for x in self._later[held.device_id] if x.block.held is held]:
            self._drop(one)
        if not held.team_id:
            self._end(tuple(one for one in board.held if one.team_id))
        if board.held:
            self._crowded.add(board)
        board.put(held)
        self.room.host_of(board).take(held, 1)
        self.room.look_again_at((held,))
        self.room.budget.take(held.team_id, board.cost_of(held))
        self._spend(AT_FIRST, held.team_id, board.cost_of(held))
        self._push(held.until, 0, (held,))

    def _drop(self, one: Ahead) -> None:
        self._later[one.block.held.device_id].remove(one)
        one.till = len(self.times) - 1

    def _serve(self, freed: Sequence[Board]) -> None:
        """Start in queue order whoever fits on the nodes of the freed boards, or has quota again."""
        nodes = {board.node.id: None for board in freed}
        held_back, self._held_back = self._held_back, {}
        if self._reserve:
            self._reserve.look_again()
            self._reserve.overload = overload(self._asked, self._costs.capacity)
        tops: list[tuple[int, int, Shape]] = []
        places: dict[Shape, list[int] | None] = {}
        for shape in self._lines.helped(freed):
            places[shape] = None if shape.is_spread else list(nodes)
        # Who was held back had room, on whatever node.
        for shape in (*(line.shape for line in self._lines.with_quota_again()), *held_back):
            places[shape] = None
        for number, shape in enumerate(places):
            if self._lines.of[shape]:
                heappush(tops, (self._lines.of[shape][0][0], number, shape))
        aside: dict[Shape, list[tuple[int, int, Line]]] = defaultdict(list)
        late: dict[Shape, int] = {}
        while tops:
            _, number, shape = heappop(tops)
            lines = self._lines.of[shape]
            rank, nth, line = lines[0]
            is_full = False
            if line.duration_s >= late.get(shape, 1 << 60):
                aside[shape].append(heappop(lines))
            else:
                is_full = self._try(line, places[shape], late)
                heappop(lines)
                if line.head == len(line.claims):
                    pass
                elif line.rank == rank:
                    aside[shape].append((rank, nth, line))
                else:
                    heappush(lines, (line.rank, nth, line))
            if lines and not is_full:
                heappush(tops, (lines[0][0], number, shape))
        for shape, lines in aside.items():
            for entry in lines:
                heappush(self._lines.of[shape], entry)

    def _try(self, line: Line, nodes: list[int] | None, late: dict[Shape, int]) -> bool:
        """Start the line's first claim if it can be; True when its shape finds no room whatever its duration."""
        rank, claim = line.claims[line.head]
        is_owed = claim.id in self._owed
        if self._reserve and not is_owed and self._reserve.holds_back(claim, line.shape):
            self._held_back[line.shape] = None
            return False
        if not self.room.budget.allows(line.team_id, line.cost):
            self._lines.set_short(line)
            return False
        found = self._places.find(line, nodes, rank, claim)
        if isinstance(found, list) and self._promise_before(rank):
            found = self._places.find(line, nodes, rank, claim)
        if not isinstance(found, list):
            if found == "quota":
                self._lines.set_short(line)
            elif found == "later":
                late[line.shape] = min(late.get(line.shape, 1 << 60), line.duration_s)
            return found == "full"
        line.head += 1
        self._start(self.room.granted(claim, line.shape, found), rank)
        return False

    def _start(self, grant: Grant, rank: int) -> None:
        if self._reserve:
            self._reserve.note(grant)
            self._asked -= self._costs.of(self._claims[grant.claim_id])
        if self._victims and rank < len(self.order):
            claim = self._claims[grant.claim_id]
            self._victims.started(grant, claim, self.now, len(grant.slots))
        if self.policy.keep_apart:
            self.room.lengths.note(grant, self._claims[grant.claim_id])
        likely_s = self._likely_s.get(grant.claim_id)
        if likely_s is not None:
            grant = replace(grant, duration_s=min(likely_s, grant.duration_s))
        held = self.room.grant(grant, self.now)
        self._spend(rank, grant.team_id, grant.cost_milli)
        self._push(held[0].until, 0, held)
        self.starts.setdefault(grant.claim_id, self.now)
        self._back.pop(grant.claim_id, None)
        step = len(self.times) - 1
        for board in {self.room.board_of[one.device_id]: None for one in held}:
            self.history.note(step, rank, board, self.room.host_of(board))
        if grant.claim_id in self._promised:
            self._promised.discard(grant.claim_id)
            kept = [one for one in self.ahead if one.block.claim_id == grant.claim_id and one.till > step]
            for one in kept:
                self._drop(one)
            # What was kept may help others, but only in a step of its own: within one, ranks go up.
            self._push(self.now, 2, (), [self.room.board_of[one.block.held.device_id] for one in kept])

    def _preempt(self) -> None:
        """Let leases go for claims whose score has become clearly better than theirs; these begin."""
        lines, victims = self._lines, self._victims
        left = (
            one for one in self.order
            if one.id not in self.starts and one in lines and one.id not in self._owed
        )  # fmt: skip
        waiting = [*islice(left, MOST_HOPEFUL), *self._back.values()]
        if victims is None or not waiting:
            return
        scores = victims.look(self.now, waiting)
        hopeless: dict[Shape, float] = {}
        freed: dict[Board, None] = {}
        gone: list[tuple[FutureVictim, Claim]] = []
        for claim in sorted(waiting, key=lambda claim: self.rank_of[claim.id]):
            shape, score, rank = shape_of(claim, self.policy), scores[claim.id], self.rank_of[claim.id]
            if score >= hopeless.get(shape, math.inf) or not self.room.can_pay(claim.team_id, shape):
                continue
            found = victims.find(claim, shape, score)
            if not found:
                hopeless[shape] = score
                continue
            for one in found:
                self.room.end(Ended(one.held))
                for held in one.held:
                    board = self.room.board_of[held.device_id]
                    freed[board] = None
                    self._spend(rank, held.team_id, -board.cost_of(held))
                    self.history.note(len(self.times) - 1, rank, board, self.room.host_of(board))
            gone += [(one, claim) for one in found]
            spots = idle_spots(self.room, shape)
            if spots is not None:
                lines.leave(claim, rank)
                self._start(self.room.granted(claim, shape, spots), rank)
        for victim, taker in gone:
            self._queue_again(
                victim, taker, [(-one.priority, scores[one.id], self.rank_of[one.id]) for one in waiting]
            )
        if freed:
            self._push(self.now, 2, (), list(freed))

    def _queue_again(
        self, victim: FutureVictim, taker: Claim, standings: Sequence[tuple[int, float, int]]
    ) -> None:
        """Let the request of a victim wait with what it has left, before those that stand behind it."""
        claim = victim.again(taker, self.room, self.now)
        standing = -claim.priority, victim.score
        behind = (rank for *other, rank in standings if tuple(other) > standing)
        left_s = max((one.until - self.now).total_seconds() for one in victim.held)
        self._likely_s[claim.id] = max(int(left_s) + PREEMPTED_S, 1)
        self._claims[claim.id] = self._back[claim.id] = claim
        self.rank_of[claim.id] = max(min(behind, default=len(self.order)) - 1, 0)
        self._lines.add(claim, shape_of(claim, self.policy), self.rank_of[claim.id])

    def _promise_before(self, rank: int) -> bool:
        """Somebody of this rank is about to start: keep a place for the first one it would pass over."""
        while self._passed < len(self.order) and self.order[self._passed].id in self.starts:
            self._passed += 1
        if len(self._promised) >= self._depth or not self._promises_left:
            return False
        for claim in self.order[self._passed : min(rank, self._passed + MOST_PASSED_OVER)]:
            if claim.id in self.starts or claim.id in self._promised or not self._may_be_promised(claim):
                continue
            self._promises_left -= 1
            shape = shape_of(claim, self.policy)
            blocks = [one.block for some in self._later.values() for one in some]
            found = StartSearch(self.room, blocks, shape, claim.duration_s).earliest()
            if found is None:
                continue
            self._promised.add(claim.id)
            for block in promised(self.room.granted(claim, shape, found[1]), found[0]):
                self._keep(block, self.rank_of[claim.id], rank)
            return True
        return False

    def _may_be_promised(self, claim: Claim) -> bool:
        shape = shape_of(claim, self.policy)
        return (
            shape.wanted > 0
            and (claim.starts_at is None or claim.starts_at <= self.now)
            and (self.now - claim.queued_at).total_seconds() >= self.policy.reserve_after_s
            and self.room.can_pay(claim.team_id, shape)
        )
