"""Jobs of a trace as requests of the product: they queue, get leases, are preempted and end, turn by turn.

Every turn is ``scheduler.engine.plan.plan`` on a snapshot such as the database gives: claims, leases, decayed use,
and what was learned so far by the product's own rule. The room is kept between turns. All ends of a second come
first, then its arrivals, then a turn; while anything waits there is also a turn each full minute. Without notice
those who must go are gone at once, and another turn follows in the same second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Protocol

from scheduler.engine.events import Ended, held_by
from scheduler.engine.learning.lengths import EVERY_S, LEAST, NEW, LengthRecord
from scheduler.engine.model import (
    Claim,
    DecayedUsage,
    DeviceInfo,
    Grant,
    Held,
    Learned,
    NodeInfo,
    PolicyRules,
    Preemption,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.order.fair_share import decayed
from scheduler.engine.plan import plan
from scheduler.engine.state import EngineState
from scheduler.replay.jobs import Jobs

ZERO = datetime(2017, 10, 1, tzinfo=UTC)
TICK_S = 60
# What everybody asks for who does not know better; no trace has a longer job.
ASKED_S = 60 * 86_400
# What a preemption costs before a job runs usefully again; more for those on several nodes.
SMALL_COST_S, LARGE_COST_S, LARGE_FROM = 40, 60, 8
OWED_S = 300


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many equal nodes with so many GPUs each."""

    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What a trace is played on: an installation, and each job as the request that it is when it comes.

    ``request`` gives the claim of a row, with the number of its team (from 1) and of its person; ``zero`` is the
    instant that seconds of the trace count from. Lengths are learned by ``jobs.gpus``.
    """

    nodes: tuple[NodeInfo, ...]
    devices: tuple[DeviceInfo, ...]
    quotas: tuple[TeamQuota, ...]
    request: Callable[[int], Claim]
    zero: datetime = ZERO


def equal_nodes(jobs: Jobs, cluster: Cluster, *, is_told: bool, is_preemptible: bool) -> Scene:
    """Whole GPUs on equal nodes, no quotas, one person a team; all ask for ASKED_S, or for what they need."""

    def request(row: int) -> Claim:
        gpus, most = jobs.gpus[row], cluster.gpus
        nodes, count = (1, gpus) if gpus <= most else (gpus // most, most) if gpus % most == 0 else (0, gpus)
        return Claim(
            row + 1,
            jobs.team[row] + 1,
            "exclusive",
            count,
            jobs.duration[row] if is_told else ASKED_S,
            0,
            ZERO + timedelta(seconds=jobs.submit[row]),
            nodes=nodes,
            user_id=1,
            work="training",
            is_preemptible=is_preemptible,
        )

    return Scene(
        tuple(NodeInfo(n, f"n{n}") for n in range(1, cluster.nodes + 1)),
        tuple(
            DeviceInfo(n * cluster.gpus + at, n, "gpu", 1, 80_000, 1000, frozenset({"exclusive"}), index=at)
            for n in range(1, cluster.nodes + 1)
            for at in range(cluster.gpus)
        ),
        tuple(TeamQuota(team + 1, None, None, 0) for team in range(len(jobs.teams))),
        request,
    )


@dataclass(slots=True)
class PlayedQueue:
    """What happened to each job, in seconds of the trace, and how much was decided."""

    waited: list[int]
    started: list[int]
    ended: list[int]
    evictions: list[int]
    turns: int = 0
    decisions: int = 0
    preemptions: int = 0


class Watch(Protocol):
    """Somebody who looks on while a trace is played, and must not change anything."""

    def turned(self, turns: Turns, came: range, began: Sequence[int], now: int) -> None:
        """The turns of a second are over: the jobs that came since the last one, and those that began to run.

        Either may be empty: while anything waits there are turns in which nothing happens.
        """


class Predictor(Protocol):
    """Says how long jobs will run, from those that have ended. May be asked about jobs that have come."""

    def learn(self, ended: Sequence[tuple[int, int, int]]) -> None:
        """Learn from the jobs that have ended: row, end and seconds run."""

    def guess(self, rows: Sequence[int]) -> Sequence[int]:
        """Seconds that half of such jobs stay below; 0 for unknown."""


class Turns:
    """A trace on a cluster, or on the installation of a scene, under a policy.

    ``estimates`` stand for what the product predicts (0: nothing); a ``predictor`` learns it on the way when the
    product would. With ``is_told`` people ask for just the time that they need, as yardsticks want it; else all ask
    for ASKED_S. ``is_preemptible``: everybody said so.
    """

    def __init__(
        self,
        jobs: Jobs,
        policy: PolicyRules,
        cluster: Cluster | Scene,
        *,
        estimates: Sequence[float] | None = None,
        is_told: bool = False,
        is_preemptible: bool = True,
        predictor: Predictor | None = None,
        watches: Sequence[Watch] = (),
    ) -> None:
        self.jobs = jobs
        self.policy = policy
        self.scene = (
            cluster
            if isinstance(cluster, Scene)
            else equal_nodes(jobs, cluster, is_told=is_told, is_preemptible=is_preemptible)
        )
        self.predictor = predictor
        self.watches = watches
        count = len(jobs.submit)
        self.played = PlayedQueue([0] * count, [0] * count, [0] * count, [0] * count)
        self._predicted = [int(one) for one in estimates] if estimates else [0] * count
        self._over: list[tuple[int, int, int]] = []
        self._left = list(jobs.duration)  # seconds until its end, what it owes for preemptions included
        self._is_told = is_told
        self._ran = [0] * count
        self._since = [0] * count
        self._runs = [0] * count
        self._owed_to = [0] * count
        self._yields: list[frozenset[int]] = [frozenset()] * count
        self._queue: dict[int, Claim] = {}
        self._running: dict[int, Running] = {}
        self._held: dict[int, tuple[Held, ...]] = {}
        self._ends: list[tuple[int, int, int]] = []
        self._people: dict[tuple[int, int], int] = {}  # where use of a team's person is counted
        self._used: list[float] = []
        self._rate: list[int] = []
        self._above = {one.team_id: one.parent_id for one in self.scene.quotas}
        self._has_limits = any(
            one.ceiling_milli is not None or one.cohort_id is not None for one in self.scene.quotas
        )
        self._spent = dict.fromkeys(self._above, 0)  # what a team and those below it hold now
        self._counted_to = 0
        self._record = LengthRecord()
        self._learned = Learned()
        self._seen = self._learned_at = 0
        self._room = EngineState.from_snapshot(self._snapshot(0), policy)

    def play(self) -> PlayedQueue:
        """Play to the last end."""
        jobs, count = self.jobs, len(self.jobs.submit)
        arrived = seen = tick = 0
        while arrived < count or self._ends:
            now = min(
                jobs.submit[arrived] if arrived < count else self._ends[0][0],
                self._ends[0][0] if self._ends else 1 << 60,
            )
            if self._queue:
                now = min(now, tick)
            self._count(now)
            while self._ends and self._ends[0][0] <= now:
                self._end(*heapq.heappop(self._ends)[1:], now)
            self._learn(now)
            while arrived < count and jobs.submit[arrived] <= now:
                self._since[arrived] = now
                if self.predictor:
                    self._predicted[arrived] = self.predictor.guess([arrived])[0]
                self._queue[arrived] = self._claim(arrived)
                arrived += 1
            tick = (now // TICK_S + 1) * TICK_S
            began: list[int] = []
            while self._queue and self._turn(now, began):
                pass
            for watch in self.watches:
                watch.turned(self, range(seen, arrived), began, now)
            seen = arrived
        return self.played

    def snapshot(self, now: int) -> Snapshot:
        """What would be published now: whoever was told to go holds its place until then."""
        seen = self._snapshot(now)
        told = {one.lease_id: one.preempt_at for one in seen.running if one.preempt_at is not None}
        if not told:
            return seen
        held = (replace(h, until=min(h.until, told.get(h.lease_id or 0, h.until))) for h in seen.held)
        return replace(seen, held=tuple(held))

    def _turn(self, now: int, began: list[int]) -> bool:
        """One turn; says whether another one must follow at once, because those told to go are gone."""
        for row in [row for row in self._queue if 0 < self._owed_to[row] < now]:
            self._owed_to[row] = 0
            self._queue[row] = replace(self._queue[row], is_owed=False)
        snapshot = self._snapshot(now)
        found = plan(snapshot, self.policy, self._room, explains=False)
        self.played.turns += 1
        self.played.decisions += len(found.grants) + len(found.preemptions)
        for grant in found.grants:
            self._start(grant, now)
        for lease_id in found.spared:
            row = -lease_id - 1
            self._running[row] = replace(self._running[row], preempt_at=None, preempted_for=None)
        began += [grant.claim_id - 1 for grant in found.grants]
        gone = [self._tell(one, now) for one in found.preemptions]
        return any(gone)

    def _snapshot(self, now: int) -> Snapshot:
        quotas = self.scene.quotas
        if self._has_limits:
            quotas = tuple(replace(one, used_milli=self._spent[one.team_id]) for one in quotas)
        return Snapshot(
            self._at(now),
            self.scene.nodes,
            self.scene.devices,
            tuple(chain.from_iterable(self._held.values())),
            tuple(self._queue.values()),
            quotas,
            people=tuple(
                DecayedUsage(team, user, int(used))
                for (team, user), used in zip(self._people, self._used, strict=True)
                if used
            ),
            running=tuple(self._running.values()),
            learned=self._learned,
        )

    def _at(self, now: int) -> datetime:
        return self.scene.zero + timedelta(seconds=now)

    def _claim(self, row: int) -> Claim:
        asked = self.scene.request(row)
        left = self._left[row]
        return replace(
            asked,
            # A preemption costs time, which whoever asked for just enough gets on top.
            duration_s=left if self._is_told else max(asked.duration_s - self._ran[row], left),
            predicted_s=self._predicted[row] or asked.predicted_s,
            ran_s=self._ran[row],
            evictions=self.played.evictions[row],
            yields_to=self._yields[row],
        )

    def _spend(self, team_id: int | None, user_id: int, cost_milli: int) -> None:
        """Count what a lease holds from now on (less than zero: no longer)."""
        assert team_id is not None
        place = self._people.setdefault((team_id, user_id), len(self._used))
        if place == len(self._used):
            self._used.append(0.0)
            self._rate.append(0)
        self._rate[place] += cost_milli
        while team_id is not None:
            self._spent[team_id] += cost_milli
            team_id = self._above[team_id]

    def _start(self, grant: Grant, now: int) -> None:
        row = grant.claim_id - 1
        claim = self._queue.pop(row)
        self.played.waited[row] += now - self._since[row]
        self.played.started[row] = self._since[row] = now
        self._owed_to[row] = 0
        self._runs[row] += 1
        heapq.heappush(self._ends, (now + self._left[row], row, self._runs[row]))
        at = self._at(now)
        self._held[row] = held_by(grant, at)
        self._running[row] = Running(
            -claim.id,
            claim.id,
            claim.team_id,
            claim.user_id,
            grant.node_id,
            at,
            at + timedelta(seconds=grant.duration_s),
            grant.cost_milli,
            count=self.jobs.gpus[row],
            priority=claim.priority,
            work=claim.work,
            is_preemptible=claim.is_preemptible,
            evictions=claim.evictions,
            ran_s=claim.ran_s,
            predicted_s=claim.predicted_s,
            queued_at=claim.queued_at,
        )
        self._spend(claim.team_id, claim.user_id, grant.cost_milli)

    def _tell(self, one: Preemption, now: int) -> bool:
        """A lease hears that it must go; says whether it is gone already."""
        row, taker = -one.lease_id - 1, one.claim_id - 1
        grace_s = self.policy.preempting.grace_s
        self._owed_to[taker] = now + grace_s + OWED_S
        self._queue[taker] = replace(self._queue[taker], is_owed=True)
        at = self._at(now + grace_s)
        self._running[row] = replace(self._running[row], preempt_at=at, preempted_for=one.claim_id)
        if not grace_s:
            self._evict(row, now)
            return True
        heapq.heappush(self._ends, (now + grace_s, row, -self._runs[row]))
        return False

    def _end(self, row: int, run: int, now: int) -> None:
        """A lease ends: by itself, or (a negative run) because it was told to."""
        if abs(run) != self._runs[row] or row not in self._running:
            return
        if run < 0:
            lease = self._running[row]
            if lease.preempt_at is not None and lease.preempt_at <= self._at(now):
                self._evict(row, now)
            return
        jobs = self.jobs
        ran = self._leave(row, now)
        self.played.ended[row] = now
        self._over.append((row, now, self._ran[row] + ran))
        self._record.note(jobs.team[row] + 1, jobs.gpus[row], self._ran[row] + ran, self._predicted[row])

    def _evict(self, row: int, now: int) -> None:
        """A lease goes for another request, and its own request queues again with what it owes."""
        taker = self._running[row].preempted_for
        ran = self._leave(row, now)
        self.played.preemptions += 1
        self.played.evictions[row] += 1
        self._ran[row] += ran
        self._left[row] -= ran
        self._left[row] += LARGE_COST_S if self.jobs.gpus[row] > LARGE_FROM else SMALL_COST_S
        if taker is not None:
            self._yields[row] |= {taker}
        self._since[row] = now
        self._queue[row] = self._claim(row)

    def _leave(self, row: int, now: int) -> int:
        """The lease gives back what it holds; how long it ran."""
        lease = self._running.pop(row)
        self._room.apply(Ended(self._held.pop(row)))
        self._runs[row] += 1
        self._spend(lease.team_id, lease.user_id, -lease.cost_milli)
        return now - self._since[row]

    def _count(self, now: int) -> None:
        """Bring decayed use up to date."""
        passed, self._counted_to = now - self._counted_to, now
        if passed:
            for place, rate in enumerate(self._rate):
                used = decayed(self._used[place], passed, self.policy.half_life_s)
                self._used[place] = used + rate * passed

    def _learn(self, now: int) -> None:
        """Learn lengths anew when the product would: every hour, with enough ends."""
        if now < self._learned_at + EVERY_S:
            return
        self._learned_at = now - now % EVERY_S
        if len(self._over) < max(LEAST, self._seen + NEW):
            return
        self._seen = len(self._over)
        self._learned = self._record.learned(self._learned.version + 1, self._unfinished(now))
        if self.predictor:
            self.predictor.learn(self._over)
            self._predict([*self._queue, *self._running], self.predictor)

    def _predict(self, rows: Sequence[int], predictor: Predictor) -> None:
        """Predict anew for those that wait or run."""
        for row, predicted in zip(rows, predictor.guess(rows), strict=True):
            self._predicted[row] = predicted
            if row in self._queue:
                self._queue[row] = replace(self._queue[row], predicted_s=predicted)
            else:
                self._running[row] = replace(self._running[row], predicted_s=predicted)

    def _unfinished(self, now: int) -> Iterable[tuple[int, int, float]]:
        jobs = self.jobs
        for row in self._running:
            yield jobs.team[row] + 1, jobs.gpus[row], float(self._ran[row] + now - self._since[row])
        for row in self._queue:
            yield jobs.team[row] + 1, jobs.gpus[row], float(self._ran[row])
