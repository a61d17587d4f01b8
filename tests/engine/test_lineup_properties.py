"""What holds for every order, and Fair Tree and DRF against plain reckonings of their own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine import EngineState
from scheduler.engine.model import (
    Claim,
    DecayedUsage,
    Grant,
    GrantedSlot,
    PolicyRules,
    Running,
    Snapshot,
    TeamQuota,
)
from scheduler.engine.order import ORDERS
from scheduler.engine.order.lineup import Lineup
from scheduler.engine.policy import WORKS, Pools
from scheduler.engine.shape import shape_of
from tests.engine.builder import NOON, Cluster, device

LAST = Fraction(10**30)
Leaf = tuple[int, int]


def some_quotas(random: Random) -> tuple[TeamQuota, ...]:
    """A random tree of up to eight teams, with guarantees in some families."""
    rows = []
    for team in range(1, random.randint(2, 9)):
        parent = random.choice([None, *range(1, team)])
        rows.append(TeamQuota(team, parent, None, 0, guaranteed_milli=random.choice((0, 0, 1000, 3000))))
    return tuple(rows)


def some_claim(random: Random, claim_id: int, teams: int) -> Claim:
    return Claim(
        id=claim_id,
        team_id=random.randint(1, teams),
        mode="exclusive",
        count=random.choice((1, 1, 2, 4)),
        duration_s=random.choice((60, 600, 3600)),
        priority=random.choice((0, 0, 0, 5)),
        queued_at=NOON - timedelta(seconds=random.randint(0, 50)),
        user_id=random.randint(1, 4),
        work=random.choice(WORKS),
        predicted_s=random.choice((0, 30, 900)),
    )


def some_snapshot(random: Random) -> Snapshot:
    quotas = some_quotas(random)
    devices = tuple(device(id=n, node_id=n) for n in range(1, 9))
    claims = tuple(some_claim(random, n, len(quotas)) for n in range(1, random.randint(2, 40)))
    people = tuple(
        DecayedUsage(team, user, random.choice((0, 5, 10, 10, 700)) * 3_600_000)
        for team in range(1, len(quotas) + 1)
        for user in range(1, 5)
        if random.random() < 0.5
    )
    running = tuple(
        Running(
            n, 1000 + n, random.randint(1, len(quotas)), random.randint(1, 4), 1,
            NOON - timedelta(seconds=random.randint(0, 7200)), NOON + timedelta(hours=1), 1000,
            work=random.choice(WORKS),
        )
        for n in range(random.randint(0, 6))
    )  # fmt: skip
    return Snapshot(NOON, (), devices, (), claims, quotas, people=people, running=running)


def grant_of(claim: Claim) -> Grant:
    slot = GrantedSlot(1 + claim.id % 8, "exclusive", 0, 8, 1000, 80_000)
    return Grant(claim.id, claim.team_id, 1, (slot,) * claim.count, claim.count * 1000, claim.duration_s)


def handed_out(snapshot: Snapshot, policy: PolicyRules, is_granted: set[int]) -> list[int]:
    lineup = Lineup(snapshot, policy)
    found = []
    while (claim := lineup.next()) is not None:
        found.append(claim.id)
        if claim.id in is_granted:
            lineup.note(grant_of(claim))
    assert [claim.id for claim in lineup.served] == found
    return found


@pytest.mark.parametrize("name", sorted(ORDERS))
@given(seed=st.integers(0, 10**6))
def test_every_claim_is_handed_out_once_and_the_input_order_does_not_matter(name: str, seed: int) -> None:
    random = Random(seed)
    snapshot = some_snapshot(random)
    policy = PolicyRules(
        order=name, pools=random.choice((Pools(), Pools((("training", 1), ("inference", 2)))))
    )
    is_granted = {claim.id for claim in snapshot.queue if random.random() < 0.3}
    shuffled = replace(
        snapshot,
        queue=tuple(random.sample(snapshot.queue, len(snapshot.queue))),
        people=tuple(random.sample(snapshot.people, len(snapshot.people))),
    )

    found = handed_out(snapshot, policy, is_granted)

    assert sorted(found) == sorted(claim.id for claim in snapshot.queue)
    assert handed_out(shuffled, policy, is_granted) == found


def families_of(quotas: tuple[TeamQuota, ...], people: set[Leaf]) -> dict[object, list[tuple[object, int]]]:
    """For each branch its children and their shares, by the sentences of docs/queue.md."""
    found: dict[object, list[tuple[object, int]]] = {}
    for parent in (None, *(row.team_id for row in quotas)):
        rows = [row for row in quotas if row.parent_id == parent]
        has_guarantees = any(row.guaranteed_milli for row in rows)
        family: list[tuple[object, int]] = [
            (row.team_id, max(1, row.guaranteed_milli) if has_guarantees else 1) for row in rows
        ]
        own: list[tuple[object, int]] = [(leaf, 1) for leaf in sorted(people) if leaf[0] == parent]
        if family and own:
            guaranteed = next(row.guaranteed_milli for row in quotas if row.team_id == parent)
            over = guaranteed - sum(row.guaranteed_milli for row in rows)
            family.append((("people of", parent), max(1, over) if has_guarantees else 1))
            found[("people of", parent)] = own
        found[parent] = family or own
    return found


def fair_order(quotas: tuple[TeamQuota, ...], usage: Counter[Leaf], people: set[Leaf]) -> dict[Leaf, int]:
    """Rank of each person by Slurm's rule in exact fractions."""
    families = families_of(quotas, people)

    def total(branch: object) -> int:
        own = usage[branch] if isinstance(branch, tuple) and branch[0] != "people of" else 0
        return own + sum(total(child) for child, _ in families.get(branch, ()))

    def factor(branch: object, shares: int, family: list[tuple[object, int]]) -> Fraction:
        if not total(branch):
            return LAST
        part = Fraction(total(branch), sum(total(one) for one, _ in family))
        return Fraction(shares, sum(share for _, share in family)) / part

    ranks: dict[Leaf, int] = {}

    def walk(parents: list[object]) -> None:
        rated = [
            (factor(child, share, families[parent]), child)
            for parent in parents
            for child, share in families.get(parent, ())
        ]
        for level in sorted({one for one, _ in rated}, reverse=True):
            equal = [child for one, child in rated if one == level]
            leaves = [child for child in equal if child in people]
            rank = len(ranks)
            ranks.update((leaf, rank) for leaf in leaves)  # type: ignore[misc]
            walk([child for child in equal if child not in people])

    walk([None])
    return ranks


@given(seed=st.integers(0, 10**6))
def test_fair_tree_is_slurms_rule_after_every_grant(seed: int) -> None:
    random = Random(seed)
    snapshot = replace(some_snapshot(random), running=())
    left = {claim.id: replace(claim, priority=0) for claim in snapshot.queue}
    snapshot = replace(snapshot, queue=tuple(left.values()))
    policy = PolicyRules(order="fair_tree", penalty_s=3600)
    usage = Counter({(row.team_id, row.user_id): row.used_milli_s for row in snapshot.people})
    people = set(usage) | {(claim.team_id, claim.user_id) for claim in snapshot.queue}
    lineup = Lineup(snapshot, policy)

    while left:
        ranks = fair_order(snapshot.quotas, usage, people)
        first = min(left.values(), key=lambda c: (ranks[c.team_id, c.user_id], c.queued_at, c.id))
        claim = lineup.next()

        assert claim is not None
        assert claim.id == first.id
        del left[claim.id]
        if random.random() < 0.5:
            usage[claim.team_id, claim.user_id] += claim.count * 1000 * 3600
            lineup.note(grant_of(claim))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 30)), min_size=1, max_size=20))
def test_drf_never_serves_a_team_with_a_larger_dominant_share_while_another_ones_claim_fits(
    rows: list[tuple[int, int, int]],
) -> None:
    cluster = Cluster(PolicyRules(order="drf"))
    for node in range(4):
        cluster.node(str(node), devices=4, host={"cpu_milli": 32_000, "memory_mib": 500_000})
    cluster.node("other", "a100-80gb", devices=4, host={"cpu_milli": 32_000, "memory_mib": 500_000})
    for at, (team, count, cores) in enumerate(rows):
        model = ("a100-80gb",) if at % 3 == 0 else ("h100-80gb",)
        cluster.request(
            str(at),
            count=count,
            team=str(team),
            user_id=team,
            models=model,
            cpu_milli=cores * 1000,
            queued_s=0,
        )
    snapshot = cluster.snapshot()
    state = EngineState.from_snapshot(snapshot, cluster.policy)
    lineup = Lineup(snapshot, cluster.policy)
    left = {claim.id: claim for claim in snapshot.queue}
    holds: dict[int, Counter[str]] = {claim.team_id: Counter() for claim in snapshot.queue}
    whole = {"h100-80gb": 16, "a100-80gb": 4, "cpu": 160_000}

    def dominant(team: int) -> Fraction:
        return max(Fraction(holds[team][what], whole[what]) for what in whole)

    def fits(claim: Claim) -> bool:
        return isinstance(state.try_grant(claim, shape_of(claim, cluster.policy)), Grant)

    for claim in lineup:
        answer = state.try_grant(claim, shape_of(claim, cluster.policy))
        if not isinstance(answer, Grant):
            continue
        poorer = [one for one in left.values() if dominant(one.team_id) < dominant(claim.team_id)]
        assert not any(fits(one) for one in poorer)
        state.grant(answer, state.now)
        lineup.note(answer)
        del left[claim.id]
        holds[claim.team_id][next(iter(claim.models))] += claim.count
        holds[claim.team_id]["cpu"] += claim.cpu_milli


@pytest.mark.parametrize("name", sorted(ORDERS))
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_start_is_the_order_without_grants(name: str, seed: int) -> None:
    snapshot = some_snapshot(Random(seed))
    policy = PolicyRules(order=name)

    found = [claim.id for claim in Lineup(snapshot, policy).ordered(snapshot.queue)]

    assert found == handed_out(snapshot, policy, set())
