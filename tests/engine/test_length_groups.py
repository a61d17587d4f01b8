"""Long requests beside long ones and short beside short where neither can be stopped, if the policy says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.engine import plan
from scheduler.engine.events import Ended
from scheduler.engine.model import Booking, Held, Plan, Running, Snapshot
from scheduler.engine.policy import PolicyRules, Preempting
from scheduler.engine.state import EngineState
from tests.engine.builder import NOON, Cluster

RULES = PolicyRules(order="default", place="binpack", keep_apart=1.0)
A, B = 1, 2
LONG_H, SHORT_H = 100.0, 0.5


@pytest.fixture
def half_full(cluster: Cluster) -> Cluster:
    """Two nodes of four boards: on a two run long, on b two others soon end."""
    for name, hours in (("a", LONG_H), ("b", SHORT_H)):
        node = cluster.node(name, devices=4)
        for index in range(2):
            node.hold(index, hours=hours)
    cluster.policy = RULES
    return cluster


def seen(cluster: Cluster, **more: object) -> Snapshot:
    """The snapshot with a lease for each placement, begun at noon."""
    running = tuple(
        Running(
            held.lease_id or 0, -(held.lease_id or 0), held.team_id, 1, cluster.devices[held.device_id].node_id, NOON,
            held.until, 1000, work="training", **more,  # type: ignore[arg-type]
        )
        for held in cluster.held
    )  # fmt: skip
    return replace(cluster.snapshot(), running=running)


def nodes(cluster: Cluster, found: Plan) -> dict[str, int]:
    return {cluster.names[grant.claim_id]: grant.node_id for grant in found.grants}


@pytest.mark.parametrize(("hours", "node"), [(LONG_H, A), (SHORT_H, B)])
@pytest.mark.parametrize("place", ["binpack", "default"])
def test_a_request_goes_to_its_like(half_full: Cluster, hours: float, node: int, place: str) -> None:
    half_full.policy = replace(RULES, place=place)
    half_full.request("one", hours=hours)

    assert nodes(half_full, plan(seen(half_full), half_full.policy)) == {"one": node}


@pytest.mark.parametrize("hours", [LONG_H, SHORT_H])
@pytest.mark.parametrize("rules", [replace(RULES, keep_apart=0.0), replace(RULES, order="priority_fifo")])
def test_nobody_looks_for_its_like(half_full: Cluster, hours: float, rules: PolicyRules) -> None:
    half_full.request("one", hours=hours)

    assert nodes(half_full, plan(seen(half_full), rules)) == {"one": A}


def test_what_goes_for_better_scores_counts_nowhere(half_full: Cluster) -> None:
    rules = replace(RULES, preempting=Preempting(by_score=True))
    half_full.request("yields", hours=SHORT_H, is_preemptible=True, work="training")

    assert nodes(half_full, plan(seen(half_full), rules)) == {"yields": A}

    half_full.queue.clear()
    half_full.request("stays", hours=SHORT_H, work="training")

    assert nodes(half_full, plan(seen(half_full, is_preemptible=True), rules)) == {"stays": A}


@pytest.mark.parametrize("is_ahead", [False, True], ids=["now", "before a booking"])
def test_grants_of_the_same_turn_count(cluster: Cluster, is_ahead: bool) -> None:
    for name in ("a", "b", "c"):
        cluster.node(name, devices=4)
    for number in range(3):
        cluster.request(f"long {number}", hours=LONG_H, priority=9 - number)
        cluster.request(f"short {number}", hours=SHORT_H, priority=9 - number)
    booked = Booking(
        NOON + timedelta(hours=50), Held(9, 0, 8, "exclusive", 1, 7, NOON + timedelta(hours=51), 1000)
    )
    snapshot = replace(cluster.snapshot(), bookings=(booked,) * is_ahead)

    found = nodes(cluster, plan(snapshot, RULES))

    # The first short one takes a, as nobody is long yet, and the first long one the fullest node.
    assert found == {"short 0": A, "long 0": A, "long 1": A, "long 2": A, "short 1": B, "short 2": B}


def test_a_room_kept_between_turns_forgets_who_is_gone(half_full: Cluster) -> None:
    before = seen(half_full)
    room = EngineState.from_snapshot(before, RULES)
    plan(before, RULES, room)
    half_full.held = half_full.held[2:]
    room.apply(Ended(before.held[:2]))
    half_full.request("one", hours=LONG_H)

    found = plan(seen(half_full), RULES, room)

    # On a nobody is left, so that a long one finds no like, and b is fuller.
    assert nodes(half_full, found) == {"one": B}
