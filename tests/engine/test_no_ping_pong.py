"""Random installations played turn by turn: nobody is sent away and fetched back for ever, nobody loses a guarantee.

Leases run until they are told to go or a random while is over; who was told comes back to the queue with what is left.
Seventy of them here, a thousand in ``make hostile``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

import pytest

from scheduler.engine import plan
from scheduler.engine.events import held_by
from scheduler.engine.model import Claim, Held, Plan, Running, Snapshot
from scheduler.engine.policy import PolicyRules, Preempting
from tests.engine.preempting import Stage, without
from tests.hostile.plenty import IS_FEW

FLAVORS = ("whole", "whole", "1g.10gb", "3g.40gb", "mps 300 8000")
STEP = timedelta(seconds=120)


@dataclass
class Life:
    """What lives and waits, and what happened."""

    snapshot: Snapshot
    policy: PolicyRules
    claims: dict[int, Claim]
    evicted: list[tuple[int, int, str]] = field(default_factory=list)  # (winner, loser, why)
    starts: int = 0
    leases: int = 500

    def turn(self) -> Plan:
        """Take a turn and carry it out."""
        found = plan(self.snapshot, self.policy)
        now = self.snapshot.taken_at
        running = {one.lease_id: one for one in self.snapshot.running}
        for one in found.preemptions:
            lease = running[one.lease_id]
            assert lease.preempt_at is None
            running[one.lease_id] = replace(
                lease, preempt_at=now + timedelta(seconds=60), preempted_for=one.claim_id
            )
            self.evicted.append((one.claim_id, lease.claim_id, one.why))
        for lease_id in found.spared:
            running[lease_id] = replace(running[lease_id], preempt_at=None, preempted_for=None)
        self.snapshot = replace(self.snapshot, running=tuple(running.values()))
        for grant in found.grants:
            self._start(grant)
        return found

    def _start(self, grant: object) -> None:
        claim = self.claims[grant.claim_id]  # type: ignore[attr-defined]
        self.leases += 1
        self.starts += 1
        now = self.snapshot.taken_at
        lease = Running(
            self.leases, claim.id, claim.team_id, 1, 1, now, now + timedelta(seconds=claim.duration_s),
            grant.cost_milli, claim.count, claim.priority, is_preemptible=claim.is_preemptible,  # type: ignore[attr-defined]
            evictions=claim.evictions,
        )  # fmt: skip
        running = [
            replace(one, preempt_at=None, preempted_for=None)
            if one.preempted_for == claim.id and one.preempt_at and one.preempt_at > now
            else one
            for one in self.snapshot.running
        ]
        self.snapshot = replace(
            self.snapshot,
            queue=tuple(c for c in self.snapshot.queue if c.id != claim.id),
            running=(*running, lease),
            held=(*self.snapshot.held, *held_by(grant, now, self.leases)),  # type: ignore[arg-type]
        )
        self._use(claim.team_id, lease.cost_milli)

    def _use(self, team_id: int, cost: int) -> None:
        parents = {q.team_id: q.parent_id for q in self.snapshot.quotas}
        chain: set[int] = set()
        here: int | None = team_id
        while here is not None:
            chain.add(here)
            here = parents[here]
        self.snapshot = replace(
            self.snapshot,
            quotas=tuple(
                replace(q, used_milli=q.used_milli + cost) if q.team_id in chain else q
                for q in self.snapshot.quotas
            ),
        )

    def pass_time(self, random: Random, *, ends: bool) -> None:
        """Let those who were told go, and perhaps somebody else end."""
        now = self.snapshot.taken_at + STEP
        self.snapshot = replace(self.snapshot, taken_at=now)
        for one in self.snapshot.running:
            told = one.preempt_at is not None and one.preempt_at <= now
            if told or one.until <= now or (ends and random.random() < 0.05):
                self._end(one, came_back=told)

    def _end(self, one: Running, *, came_back: bool) -> None:
        left: list[Held] = without(list(self.snapshot.held), one.lease_id)
        self._use(one.team_id, -one.cost_milli)
        queue = self.snapshot.queue
        if came_back:
            was = self.claims[one.claim_id]
            yields_to = was.yields_to | {one.preempted_for} if one.preempted_for else was.yields_to
            self.claims[was.id] = replace(was, evictions=was.evictions + 1, yields_to=yields_to)
            queue = (*queue, self.claims[was.id])
        winner = one.preempted_for if came_back else None
        queue = tuple(replace(c, is_owed=True) if c.id == winner else c for c in queue)
        running = tuple(r for r in self.snapshot.running if r.lease_id != one.lease_id)
        self.snapshot = replace(self.snapshot, held=tuple(left), queue=queue, running=running)


def scene(random: Random) -> Life:
    """Up to four nodes, three teams in a cohort and one outside, up to sixteen requests."""
    stage = Stage()
    for name in "abcd"[: random.randint(1, 4)]:
        model = random.choice(["h100-80gb", "l40s-48gb"])
        stage.node(name, model, devices=random.randint(1, 3))
    for team in ("red", "green", "blue"):
        guaranteed = random.randint(0, 4) * 1000
        stage.share(team, guaranteed, lending=random.choice([None, guaranteed // 2]))
    stage.team("outside", ceiling=random.choice([None, 2000]))
    for number in range(random.randint(4, 16)):
        flavor = random.choice(FLAVORS)
        stage.request(
            f"r{number}",
            flavor,
            count=random.choice([1, 1, 2]),
            nodes=random.choice([1, 1, 1, 0]) if flavor == "whole" else 1,
            team=random.choice(["red", "green", "blue", "outside"]),
            priority=random.choice([-10, 0, 0, 10]),
            is_preemptible=random.random() < 0.5,
            hours=1000,
        )
    rules = Preempting(least_run_s=random.choice([0, 300]), grace_s=60, most_evictions=50)
    policy = PolicyRules(backfill="none", preempting=rules)
    claims = {claim.id: claim for claim in stage.queue}
    late = random.sample(sorted(claims), len(claims) // 2)
    snapshot = replace(stage.snapshot(), queue=tuple(c for c in stage.queue if c.id not in late))
    life = Life(snapshot, policy, claims)
    return life


def check(life: Life) -> None:
    """What must hold after every turn."""
    snapshot = life.snapshot
    share: dict[int, int] = {}
    slots: set[tuple[int, int]] = set()
    for held in snapshot.held:
        if held.size == 0:
            share[held.device_id] = share.get(held.device_id, 0) + held.share_milli
            assert share[held.device_id] <= 1000
        for at in range(held.start, held.start + held.size):
            assert (held.device_id, at) not in slots
            slots.add((held.device_id, at))
    members = [q for q in snapshot.quotas if q.cohort_id is not None]
    lent = sum(
        min(
            max(0, q.guaranteed_milli - q.used_milli),
            q.guaranteed_milli if q.lending_milli is None else q.lending_milli,
        )
        for q in members
    )
    assert sum(max(0, q.used_milli - q.guaranteed_milli) for q in members) <= lent
    assert all(q.ceiling_milli is None or q.used_milli <= q.ceiling_milli for q in snapshot.quotas)


def check_told(life: Life, found: Plan, before: Snapshot) -> None:
    """No team of a cohort falls below its guarantee for another one, and only who agreed or borrowed goes."""
    leases = {one.lease_id: one for one in before.running}
    quotas = {q.team_id: q for q in before.quotas}
    lost: dict[int, int] = {}
    for one in found.preemptions:
        lease, winner = leases[one.lease_id], life.claims[one.claim_id]
        assert winner.id != lease.claim_id
        assert lease.claim_id not in winner.yields_to
        if one.why == "priority":
            assert lease.is_preemptible
            assert (winner.priority, not winner.is_preemptible) > (lease.priority, False)
        if lease.team_id != winner.team_id and quotas[lease.team_id].cohort_id is not None:
            lost[lease.team_id] = lost.get(lease.team_id, 0) + lease.cost_milli
    for team_id, cost in lost.items():
        started = sum(g.cost_milli for g in found.grants if g.team_id == team_id)
        assert quotas[team_id].used_milli + started - cost >= quotas[team_id].guaranteed_milli


@pytest.mark.parametrize("seed", range(40 if IS_FEW else 1_000))
def test_no_two_requests_evict_each_other_and_every_chain_ends(seed: int) -> None:
    random = Random(seed)
    life = scene(random)
    late = [claim for id_, claim in life.claims.items() if id_ not in {c.id for c in life.snapshot.queue}]
    for step in range(60):
        if late and random.random() < 0.3:
            life.snapshot = replace(life.snapshot, queue=(*life.snapshot.queue, late.pop()))
        before = life.snapshot
        check_told(life, life.turn(), before)
        check(life)
        life.pass_time(random, ends=step < 20)
    for claim in late:
        life.snapshot = replace(life.snapshot, queue=(*life.snapshot.queue, claim))

    quiet = 0
    for _ in range(200):
        told = len(life.evicted)
        found = life.turn()
        check(life)
        life.pass_time(random, ends=False)
        quiet = 0 if found.grants or len(life.evicted) > told else quiet + 1
        if quiet > 10:
            break

    pairs = {(winner, loser) for winner, loser, _ in life.evicted}
    assert not [pair for pair in pairs if pair[::-1] in pairs]
    assert quiet > 10


@pytest.mark.deep
def test_the_scenes_do_make_leases_go() -> None:
    whys = []
    for seed in range(60):
        random = Random(seed)
        life = scene(random)
        late = [c for id_, c in life.claims.items() if id_ not in {q.id for q in life.snapshot.queue}]
        for _ in range(30):
            if late:
                life.snapshot = replace(life.snapshot, queue=(*life.snapshot.queue, late.pop()))
            life.turn()
            life.pass_time(random, ends=False)
        whys += [why for _, _, why in life.evicted]

    assert whys.count("reclaim") > 10
    assert whys.count("priority") > 10
