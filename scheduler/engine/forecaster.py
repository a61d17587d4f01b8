"""One snapshot's future, played once and asked many times: when would this claim start?

What-ifs take nothing from anybody and do not see each other, so the future of the queue does not depend on
them. It is played forward once (``timeline``); a what-if is then a look along the boards' states for the
first step at which there is room for all its units, for its whole time, and quota to pay for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from threading import RLock

import numpy as np

from scheduler.engine.admission import Want, is_booking
from scheduler.engine.blocks import Block
from scheduler.engine.bookings import Bookings
from scheduler.engine.columns import Flags, Ints
from scheduler.engine.earliest_start import StartSearch
from scheduler.engine.explain import Explainer
from scheduler.engine.kept_places import keep_places
from scheduler.engine.model import Claim, Forecast, PolicyRules, Reason, Snapshot
from scheduler.engine.order.ranking import tie
from scheduler.engine.plan import decided
from scheduler.engine.reasons import are_impossible
from scheduler.engine.shape import LONGEST_S, Shape, shape_of
from scheduler.engine.sleeping_nodes import waking
from scheduler.engine.state import EngineState
from scheduler.engine.timeline import Timeline
from scheduler.engine.what_if import Asker, WhatIf

HORIZON_S = 7 * 86_400
# Forecasters kept: of what is published now, as the book says and as it will probably be, and of what was before.
MOST_KEPT = 4
# Steps that a what-if is checked at one by one; beyond that its start is unknown.
MOST_CHECKS = 5_000
# A place that is kept is taken by the turn after it was given back.
A_TURN = timedelta(seconds=1)


class Forecaster:
    """The future of a snapshot up to a horizon in seconds. May be asked by several threads.

    ``began`` is the room as it is now, before the turn; whoever looks into it holds ``lock`` meanwhile.
    Raises UnknownPolicy as ``plan`` does.
    """

    def __init__(self, snapshot: Snapshot, policy: PolicyRules, horizon_s: int = HORIZON_S) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.horizon_s = horizon_s
        self.lock = RLock()
        snapshot = waking(snapshot)
        kept = keep_places(snapshot, policy)
        self._seen = kept.seen
        self._turn = turn = decided(kept.seen, policy)
        first = [claim for claim, _ in kept.placed]
        self._first = len(first)
        self._kept_until = {
            claim.id: max((one.preempt_at for one in told if one.preempt_at), default=snapshot.taken_at)
            for claim, told in kept.placed
        }
        self._order = [*first, *turn.lineup.ordered(kept.seen.queue)]
        self._ids = {claim.id for claim in snapshot.queue}
        self._granted = {grant.claim_id for grant in (*kept.grants, *turn.grants)}
        left = [
            claim.id not in self._granted and not is_booking(claim, snapshot.taken_at)
            for claim in self._order
        ]
        self._waiting_before = np.concatenate([[0], np.cumsum(left)]) if left else np.zeros(1, np.int64)
        self._timeline = timeline = Timeline(kept.seen, policy, turn, self._order, first)
        timeline.starts.update((grant.claim_id, snapshot.taken_at) for grant in kept.grants)
        timeline.run(snapshot.taken_at + timedelta(seconds=min(horizon_s, LONGEST_S)))
        self._records = timeline.history.closed()
        self._reasons: dict[tuple[Want, int], tuple[Reason, ...]] = {}
        self._rooms: dict[Shape, Ints] = {}
        self._get_ready()

    def _get_ready(self) -> None:
        """Look once into the room of now, so that the first who asks does not wait for its columns."""
        shapes = (shape_of(claim, self.policy) for claim in self._order if claim.mode != "mig")
        shape = next((shape for shape in shapes if shape.wanted), None)
        if shape is not None:
            self.began.spots(shape)

    @cached_property
    def began(self) -> EngineState:
        """The room of now before anything of the turn was granted."""
        return self._turn.calendar.began()

    def _fitted(self, shape: Shape) -> bool:
        return self.began.spots(shape) is not None

    @cached_property
    def _explainer(self) -> Explainer:
        return Explainer(self._turn.calendar.room, self._fitted, len(self._granted))

    def ask(self, claims: Iterable[Claim], horizon_s: int = HORIZON_S) -> dict[int, Forecast]:
        """The earliest start of each claim, by id, see ``forecast``."""
        asked = {claim.id: claim for claim in claims}
        until = self.snapshot.taken_at + timedelta(seconds=min(horizon_s, LONGEST_S))
        with self.lock:
            ranks = self._ranks([claim for claim in asked.values() if claim.id not in self._ids])
            return {claim.id: self._answer(claim, ranks.get(claim.id), until) for claim in asked.values()}

    def _ranks(self, what_ifs: Sequence[Claim]) -> dict[int, int]:
        """How many queued claims go before each what-if."""
        if not what_ifs:
            return {}
        if self.policy.order == "priority_fifo" and not self.policy.pools.parts:
            keys = self._keys
            return {c.id: self._first + bisect_left(keys, (-c.priority, tie(c))) for c in what_ifs}
        found, rank = {}, self._first
        for claim in self._turn.lineup.ordered((*self._seen.queue, *what_ifs)):
            if claim.id in self._ids:
                rank += 1
            else:
                found[claim.id] = rank
        return found

    @cached_property
    def _keys(self) -> list[tuple[object, ...]]:
        return [(-claim.priority, tie(claim)) for claim in self._order[self._first :]]

    def _answer(self, claim: Claim, rank: int | None, until: datetime) -> Forecast:
        own = self._timeline.rank_of.get(claim.id)
        position = int(self._waiting_before[own if rank is None and own is not None else rank or 0]) + 1
        shape = shape_of(claim, self.policy)
        if rank is None:
            starts_at = self._timeline.starts.get(claim.id)
        elif is_booking(claim, self.snapshot.taken_at):
            starts_at = self._booked(claim, shape)
        else:
            starts_at = self._start_of(claim, shape, rank, until)
        if starts_at is not None and starts_at > until:
            starts_at = None
        is_now = starts_at is not None and starts_at <= self.snapshot.taken_at
        reasons = () if is_now else self._why(claim, shape, position)
        is_impossible = are_impossible(reasons)
        kept_until = self._kept_until.get(claim.id)
        is_certain = starts_at is not None and kept_until is not None and starts_at <= kept_until + A_TURN
        starts_at = None if is_impossible else starts_at
        return Forecast(claim.id, starts_at, position, reasons, is_impossible, is_certain)

    def _why(self, claim: Claim, shape: Shape, position: int) -> tuple[Reason, ...]:
        """Why the claim does not start now."""
        if is_booking(claim, self.snapshot.taken_at):
            if self._booked(claim, shape) is not None:
                return ()
            bookings = self._bookings
            silence = bookings.undecided(claim)
            return (silence,) if silence else bookings.why(claim)
        calendar = self._turn.calendar
        calendar.reach(claim.duration_s)
        number = calendar.layer_of(claim.duration_s) if shape.wanted else 0
        key = (claim.team_id, shape), number
        if key not in self._reasons:
            ahead = calendar.ahead(claim, shape, self._positions)
            self._reasons[key] = (ahead,) if ahead else self._explainer.explain(claim, shape, position)
        return self._reasons[key]

    @cached_property
    def _positions(self) -> dict[int, int]:
        """Where those stand who were promised a start."""
        ranks = self._timeline.rank_of
        return {claim_id: int(self._waiting_before[ranks[claim_id]]) + 1 for claim_id in self._turn.promised}

    def _booked(self, claim: Claim, shape: Shape) -> datetime | None:
        """The wanted time, if it is free by all that is known and the quota allows it then."""
        return claim.starts_at if shape.wanted and self._bookings.fits(claim) else None

    @property
    def _bookings(self) -> Bookings:
        return Bookings(self._turn.calendar, self.snapshot, self._turn.grants)

    def free_units(self, claims: Iterable[Claim], starts: Sequence[datetime]) -> dict[int, list[int]]:
        """How many of each claim could be booked side by side from each start on, by id; quota aside.

        By the same room and the same blocks as a booking is decided: what runs, is booked, is promised to those who
        wait, and maintenance. No claim here may be spread over nodes.
        """
        with self.lock:
            calendar = self._turn.calendar
            found = {}
            for claim in claims:
                shape = shape_of(claim, self.policy)
                search = StartSearch(calendar.room, calendar.blocks, shape, claim.duration_s)
                found[claim.id] = search.units_at(starts) if shape.wanted else [0] * len(starts)
            return found

    def promises(self) -> list[Block]:
        """What is kept for claims that wait, from the start that the last decision promised them."""
        return [block for block in self._turn.calendar.blocks if block.cause == "waiting"]

    def _start_of(self, claim: Claim, shape: Shape, rank: int, until: datetime) -> datetime | None:
        if not shape.wanted or not self._turn.calendar.room.matching(shape.kind):
            return None
        times = self._timeline.times
        seen, is_last = self._records.seen_from(rank)
        is_last &= seen < len(times)
        room = self._turn.calendar.room
        asker = Asker(claim, shape, rank, room.least_cost(shape), room.most_cost(shape))
        what_if = WhatIf(self._timeline, self._records, seen, asker)
        for tried, (step, nodes) in enumerate(self._openings(shape, seen, is_last)):
            if tried >= MOST_CHECKS or times[step] > until:
                return None
            if what_if.holds(step, nodes):
                return times[step]
        return None

    def _openings(self, shape: Shape, seen: Ints, is_last: Flags) -> Iterator[tuple[int, list[int]]]:
        """Steps in order with the nodes that have room then, blocks and quota aside.

        For a claim over several nodes that are all that have room for a part of it.
        """
        records = self._records
        units = np.minimum(records.on_node(self._room_of(shape)), records.host_units(shape))
        least = 1 if shape.nodes == 0 else shape.wanted
        at = np.flatnonzero(is_last)
        value = np.where(units[at] >= least, units[at], 0)
        turns = np.ones(len(at), np.bool_)
        same = records.node[at][1:] == records.node[at][:-1]
        turns[1:] = ~same | (value[1:] != value[:-1])
        at, value = at[turns], value[turns]
        enough = max(shape.nodes, 1) if shape.nodes else shape.wanted
        in_time = np.argsort(seen[at], kind="stable")
        at, value = at[in_time], value[in_time]
        changes = zip(seen[at].tolist(), records.node[at].tolist(), value.tolist(), strict=True)
        last = len(self._timeline.times)
        return _steps(list(changes), enough, is_summed=shape.nodes == 0, last=last)

    def _room_of(self, shape: Shape) -> Ints:
        """Units of the shape per record, on its own board."""
        known = self._rooms.get(shape)
        if known is not None:
            return known
        history, records = self._timeline.history, self._records
        device_of = {(b.device.memory_mib, b.device.max_clients): None for b in history.boards}
        classes = {key: number for number, key in enumerate(device_of)}
        serving = np.array(
            [
                classes[b.device.memory_mib, b.device.max_clients] if b.serves(shape.kind) else -1
                for b in history.boards
            ],
            np.int64,
        )
        found = np.zeros(len(records.row), np.int64)
        for (memory_mib, max_clients), number in classes.items():
            here = np.flatnonzero(serving[records.row] == number)
            states, back = np.unique(records.state[here], return_inverse=True)
            rooms = [history.states[state].room(shape, memory_mib, max_clients) for state in states]
            found[here] = np.array(rooms, np.int64)[back] if len(here) else 0
        self._rooms[shape] = found
        return found


_KEPT: list[Forecaster] = []
_KEEPING = RLock()


def forecaster_of(snapshot: Snapshot, policy: PolicyRules, horizon_s: int = HORIZON_S) -> Forecaster:
    """The forecaster of this very snapshot object, played once: the last few are kept. Safe between threads."""
    with _KEEPING:
        for one in _KEPT:
            if one.snapshot is snapshot and one.policy == policy and one.horizon_s >= horizon_s:
                return one
        found = Forecaster(snapshot, policy, horizon_s)
        _KEPT[:] = [found, *_KEPT][:MOST_KEPT]
        return found


def _steps(
    changes: Sequence[tuple[int, int, int]], enough: int, *, is_summed: bool, last: int
) -> Iterator[tuple[int, list[int]]]:
    """Steps at which enough nodes (or with ``is_summed`` units) are open; changes are (step, node, units)."""
    open_nodes: dict[int, int] = {}
    for number, (step, node, units) in enumerate(changes):
        if units:
            open_nodes[node] = units
        else:
            open_nodes.pop(node, None)
        following = changes[number + 1][0] if number + 1 < len(changes) else last
        if following == step:
            continue
        if (sum(open_nodes.values()) if is_summed else len(open_nodes)) >= enough:
            for at in range(step, following):
                yield at, list(open_nodes)
