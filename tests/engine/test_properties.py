"""Any small cluster, any queue: never over-allocated, never refused without need, always the same."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine import Ended, EngineState, Granted, forecast, plan, snapshot_from_json, snapshot_to_json
from scheduler.engine.demand import Demand, Form
from scheduler.engine.events import held_by
from scheduler.engine.model import Claim, Grant, PolicyRules, Snapshot, TeamQuota
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.reasons import REASONS
from tests.engine.builder import NOON, Cluster
from tests.engine.oracle import after_grant, can_place, cost_of, is_legal_on, may_pay, part_of, taken_of

MIG = ("1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "4g.40gb")
FLAVORS = ("whole", *MIG, "mps 300 20000", "mps 600 9000", "memlimit 0 30000", "1g.6gb", "2g.12gb")
LAYOUTS = (None, None, (("2g.20gb", 0), ("1g.10gb", 2), ("3g.40gb", 4)))
HOSTS = ({}, {"rack": "x"}, {"cpu_milli": 5000, "memory_mib": 900}, {"cpu_milli": 2000, "rack": "x"})
LEARNED = Demand(
    7, ((Form(1000, 0, 1000, 1, ""), 3), (Form(900, 0, 300, 1, ""), 5)), ((300, 300.0), (1000, 1000.0)), 400
)
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One to three small nodes, three teams of which two hang under the first, up to ten claims."""
    rule = draw(st.sampled_from(sorted(POLICIES)))
    mixing = draw(st.sampled_from([(False, False), (True, False), (True, True)]))
    cluster = Cluster(PolicyRules(place=rule, share_across_teams=mixing[0], mps_across_teams=mixing[1]))
    ceilings = st.sampled_from([None, None, 400, 1000, 2500])
    cluster.team("lab", ceiling=draw(ceilings))
    cluster.team("vision", ceiling=draw(ceilings), parent="lab")
    cluster.team("language", ceiling=draw(ceilings), parent="lab")
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        kind = draw(st.sampled_from(["h100-80gb", "l40s-48gb", "a30-24gb"]))
        blocked = draw(st.sampled_from(["", "", "", "offline"]))
        weight = draw(st.sampled_from([1000, 333]))
        words = cluster.node(
            name, kind, draw(st.integers(1, 2)), blocked=blocked, profiles=(*MIG, "1g.6gb", "2g.12gb"),
            max_clients=2, weight_milli=weight, host=draw(st.sampled_from(HOSTS)),
        )  # fmt: skip
        cluster.change(words.devices[0], layout=draw(st.sampled_from(LAYOUTS)) if "h100" in kind else None)
        cluster.change(words.devices[-1], weight_milli=draw(st.sampled_from([weight, 500])))
    for number in range(draw(st.integers(1, 10))):
        flavor = draw(st.sampled_from(FLAVORS))
        cluster.request(
            f"r{number}",
            flavor,
            draw(st.integers(1, 3)),
            team=draw(st.sampled_from(["vision", "language"])),
            priority=draw(st.integers(0, 1)),
            hours=draw(st.sampled_from([1, 2])),
            queued_s=draw(st.integers(0, 2)),
            models=draw(st.sampled_from([(), (), ("h100-80gb",)])),
            cpu_milli=draw(st.sampled_from([0, 0, 1000, 3000])),
            host_memory_mib=draw(st.sampled_from([0, 0, 400])),
            least_memory_mib=draw(st.sampled_from([0, 0, 0, 40000, 60000])),
            nodes=draw(st.sampled_from([1, 1, 0, 2])) if flavor == "whole" else 1,
        )
    return cluster


def stored(snapshot: Snapshot, grants: tuple[Grant, ...]) -> Snapshot:
    for grant in grants:
        snapshot = after_grant(snapshot, grant)
    return snapshot


def second_half(cluster: Cluster) -> Snapshot:
    """A cluster in use: the first half of the queue has been served, the second half waits."""
    whole = cluster.snapshot()
    half = len(whole.queue) // 2
    first = replace(whole, queue=whole.queue[:half])
    return replace(stored(first, plan(first, cluster.policy).grants), queue=whole.queue[half:])


@few
@given(clusters())
def test_nothing_is_ever_over_allocated(cluster: Cluster) -> None:
    snapshot = second_half(cluster)

    found = plan(snapshot, cluster.policy)

    after = stored(snapshot, found.grants)
    devices = {d.id: d for d in snapshot.devices}
    for device in snapshot.devices:
        assert is_legal_on(device, [h for h in after.held if h.device_id == device.id], cluster.policy)
    assert all(within(was, now) for was, now in zip(snapshot.quotas, after.quotas, strict=True))
    assert_hosts_hold(after)
    claims = {c.id: c for c in snapshot.queue}
    for grant in found.grants:
        assert_honest(grant, claims[grant.claim_id], snapshot)
        assert grant.cost_milli == cost_of(grant.slots, devices)


def within(was: TeamQuota, now: TeamQuota) -> bool:
    return now.ceiling_milli is None or now.used_milli <= max(now.ceiling_milli, was.used_milli)


def assert_hosts_hold(snapshot: Snapshot) -> None:
    """Fail where leases take more CPU or memory than a node has."""
    for node in snapshot.nodes:
        cpu, memory = taken_of(node, snapshot)
        assert node.cpu_milli is None or cpu <= node.cpu_milli
        assert node.memory_mib is None or memory <= node.memory_mib


def assert_honest(grant: Grant, claim: Claim, snapshot: Snapshot) -> None:
    """Fail unless the grant is what the claim asked for, on as many open nodes, at legal places."""
    nodes = {n.id: n for n in snapshot.nodes}
    devices = {d.id: d for d in snapshot.devices}
    units = claim.count * max(claim.nodes, 1)
    parts = Counter(devices[s.device_id].node_id for s in grant.slots)
    assert len(grant.slots) == units
    assert devices[grant.slots[0].device_id].node_id == grant.node_id
    assert not any(nodes[node_id].blocked for node_id in parts)
    assert not claim.nodes or sorted(parts.values()) == [claim.count] * claim.nodes
    assert len({(s.device_id, s.start) for s in grant.slots}) == units
    for node_id, size in parts.items():
        part = claim if claim.nodes else part_of(claim, size)
        here = [s for s in grant.slots if devices[s.device_id].node_id == node_id]
        assert sum(s.cpu_milli for s in here) == here[0].cpu_milli == part.cpu_milli
        assert sum(s.host_memory_mib for s in here) == part.host_memory_mib
    for slot in grant.slots:
        device = devices[slot.device_id]
        assert slot.mode == claim.mode
        assert not claim.models or device.model in claim.models
        assert device.memory_mib >= claim.least_memory_mib
        assert slot.start + slot.size <= device.grid
        if claim.mode == "mig":
            assert device.layout is None or (claim.profile, slot.start) in device.layout


@few
@given(clusters())
def test_nobody_is_refused_while_a_legal_placement_exists(cluster: Cluster) -> None:
    snapshot = second_half(cluster)

    found = plan(snapshot, cluster.policy)

    after = stored(snapshot, found.grants)
    claims = {c.id: c for c in snapshot.queue}
    for wait in found.waits:
        if claims[wait.claim_id].count > 1 and claims[wait.claim_id].mode in ("mps", "memlimit"):
            continue  # shares of one claim stand on different boards; the next test looks at them
        assert not can_place(claims[wait.claim_id], after, cluster.policy)


@few
@given(clusters())
def test_the_impossible_is_impossible_on_the_idle_open_cluster_too(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    idle = replace(snapshot, nodes=tuple(replace(n, blocked="") for n in snapshot.nodes))
    claims = {c.id: c for c in snapshot.queue}

    for wait in plan(snapshot, cluster.policy).waits:
        possible = can_place(claims[wait.claim_id], idle, cluster.policy)
        assert not (wait.is_impossible and possible)


@few
@given(clusters(), st.randoms(use_true_random=False))
def test_the_same_picture_gives_the_same_plan_in_any_row_order(
    cluster: Cluster, chance: random.Random
) -> None:
    snapshot = second_half(cluster)
    mixed = replace(
        snapshot,
        **{
            table: tuple(chance.sample(rows, len(rows)))
            for table in ("nodes", "devices", "held", "queue", "quotas")
            for rows in [getattr(snapshot, table)]
        },
    )

    once = plan(snapshot, cluster.policy)

    assert plan(snapshot, cluster.policy) == once
    assert plan(mixed, cluster.policy) == once
    assert plan(snapshot_from_json(snapshot_to_json(snapshot)), cluster.policy) == once


@few
@given(clusters())
def test_everybody_gets_an_answer_and_every_refusal_a_known_reason(cluster: Cluster) -> None:
    snapshot = second_half(cluster)

    found = plan(snapshot, cluster.policy)

    answered = [g.claim_id for g in found.grants] + [w.claim_id for w in found.waits]
    assert sorted(answered) == sorted(c.id for c in snapshot.queue)
    for wait in found.waits:
        assert wait.reasons
        for reason in wait.reasons:
            assert set(reason.detail) == set(REASONS[reason.code].figures)
        if wait.reasons[0].code == "quota_ceiling":
            wanted = wait.reasons[0].detail["wanted_milli"]
            claim = next(c for c in snapshot.queue if c.id == wait.claim_id)
            assert not may_pay(claim.team_id, wanted, stored(snapshot, found.grants).quotas)


@few
@given(clusters())
def test_a_forecast_starts_now_exactly_what_the_turn_grants(cluster: Cluster) -> None:
    snapshot = second_half(cluster)

    starts = forecast(snapshot, cluster.policy, snapshot.queue)

    now = {claim_id for claim_id, found in starts.items() if found.starts_at == NOON}
    assert now == {g.claim_id for g in plan(snapshot, cluster.policy).grants}


@few
@given(clusters())
def test_alone_on_open_nodes_everything_possible_starts_within_a_week(cluster: Cluster) -> None:
    snapshot = second_half(cluster)
    snapshot = replace(snapshot, nodes=tuple(replace(n, blocked="") for n in snapshot.nodes))

    for found in forecast(snapshot, cluster.policy, snapshot.queue).values():
        assert found.is_impossible or found.starts_at is not None


@few
@given(clusters())
def test_what_ends_leaves_the_state_as_it_was(cluster: Cluster) -> None:
    snapshot = cluster.snapshot()
    state = EngineState.from_snapshot(snapshot, cluster.policy)
    before = [state.decide(c) for c in snapshot.queue]
    taken = []

    for claim in snapshot.queue:
        answer = state.decide(claim)
        if isinstance(answer, Grant):
            state.apply(Granted(answer, NOON))
            taken.append(answer)
    for grant in reversed(taken):
        state.apply(Ended(held_by(grant, NOON)))

    assert [state.decide(c) for c in snapshot.queue] == before


@few
@given(clusters())
def test_a_gang_of_shares_is_refused_only_without_enough_boards(cluster: Cluster) -> None:
    snapshot = second_half(cluster)
    shares = [c for c in snapshot.queue if c.mode in ("mps", "memlimit") and c.count > 1]

    found = plan(replace(snapshot, queue=tuple(shares)), cluster.policy)

    after = stored(snapshot, found.grants)
    waiting = {w.claim_id for w in found.waits}
    for claim in shares:
        if claim.id in waiting:
            single = replace(claim, count=1)
            for node in after.nodes:
                alone = [d for d in after.devices if d.node_id == node.id]
                boards = [d for d in alone if can_place(single, replace(after, devices=(d,)), cluster.policy)]
                assert len(boards) < claim.count or not payable(claim, boards, after)


def payable(claim: Claim, boards: list[object], snapshot: Snapshot) -> bool:
    costs = sorted(-(-claim.share_milli * d.weight_milli // 1000) for d in boards)  # type: ignore[attr-defined]
    return may_pay(claim.team_id, sum(costs[: claim.count]), snapshot.quotas)


@few
@given(cluster=clusters(), chance=st.randoms(use_true_random=False))
def test_a_room_kept_between_turns_decides_as_a_new_one(cluster: Cluster, chance: random.Random) -> None:
    """Some grants are stored, some are not, and some of what runs ends: the rows alone count."""
    snapshot, policy = cluster.snapshot(), cluster.policy
    room = EngineState.from_snapshot(snapshot, policy)

    for turn in range(4):
        assert room.renewed(snapshot)
        found = plan(snapshot, policy, room)
        assert found == plan(snapshot, policy)

        stored = [grant for grant in found.grants if chance.random() < 0.7]
        begun = [
            one for grant in stored for one in held_by(grant, snapshot.taken_at, 100 * turn + grant.claim_id)
        ]
        snapshot = replace(
            snapshot,
            taken_at=snapshot.taken_at + timedelta(seconds=60),
            demand=chance.choice([snapshot.demand, LEARNED]),
            held=(*(one for one in snapshot.held if chance.random() < 0.7), *begun),
            queue=tuple(claim for claim in snapshot.queue if chance.random() < 0.9),
        )


@few
@given(
    cluster=clusters(), churn_milli=st.sampled_from([0, 400, 950]), chance=st.randoms(use_true_random=False)
)
def test_a_twin_of_a_room_decides_as_a_new_room_and_leaves_the_first_alone(
    cluster: Cluster, churn_milli: int, chance: random.Random
) -> None:
    demand = Demand(1, ((Form(0, 0, 1000, 1, ""), 3), (Form(0, 0, 1000, 2, ""), 1)), churn_milli=churn_milli)
    asked, policy = replace(cluster.snapshot(), demand=demand), replace(cluster.policy, place="default")
    snapshot, queue = stored(asked, plan(asked, policy).grants), asked.queue
    room = EngineState.from_snapshot(snapshot, policy)
    before = [room.decide(claim) for claim in queue]
    left = tuple(one for one in snapshot.held if one.is_host or chance.random() < 0.5)
    shared = {one.device_id for one in left if not one.is_host}
    left = tuple(one for one in left if not one.is_host or one.device_id in shared)
    changed = {one.device_id for one in snapshot.held if one not in left}

    twin = room.twin()
    twin.refill(changed, left)

    fresh = EngineState.from_snapshot(replace(snapshot, held=left), policy)
    assert [twin.decide(claim) for claim in queue] == [fresh.decide(claim) for claim in queue]
    copied, made = twin.fleet._decider, fresh.fleet._decider
    assert copied.at.totals.tolist() == made.at.totals.tolist()
    assert copied.memo.nodes.tolist() == made.memo.nodes.tolist()
    assert copied.memo.price.tolist() == made.memo.price.tolist()
    assert [room.decide(claim) for claim in queue] == before


def test_a_twin_counts_anew_how_much_of_the_demand_is_over(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb", devices=4)
    for name in ("one", "two", "three", "four"):
        cluster.request(name, "whole")
    demand = Demand(1, ((Form(0, 0, 1000, 1, ""), 3), (Form(0, 0, 1000, 2, ""), 1)), churn_milli=400)
    asked, policy = replace(cluster.snapshot(), demand=demand), PolicyRules()
    full = stored(asked, plan(asked, policy).grants)
    room = EngineState.from_snapshot(full, policy)
    assert room.fleet.left().used == 4000

    twin = room.twin()
    twin.refill([held.device_id for held in full.held[1:]], full.held[:1])

    fresh = EngineState.from_snapshot(replace(full, held=full.held[:1]), policy)
    assert [twin.decide(claim) for claim in asked.queue] == [fresh.decide(claim) for claim in asked.queue]
    assert twin.fleet._decider.at.totals.tolist() == fresh.fleet._decider.at.totals.tolist()
    assert room.fleet.left().used == 4000


def test_a_room_of_other_nodes_is_not_gone_on_with(cluster: Cluster) -> None:
    cluster.node("a", "h100-80gb", devices=1)
    room = EngineState.from_snapshot(cluster.snapshot(), cluster.policy)
    cluster.node("b", "h100-80gb", devices=1)

    assert not room.renewed(cluster.snapshot())
