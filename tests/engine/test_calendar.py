"""What begins later: bookings, maintenance, and how a turn keeps clear of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from scheduler.engine import forecast, plan
from scheduler.engine.calendar import MOST_INSTANTS, Calendar
from scheduler.engine.model import Booking, Grant, Held, Outage, Plan, PolicyRules, Snapshot
from tests.engine.builder import NOON, Cluster


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


def booked(cluster: Cluster, device_id: int, at: float, until: float, flavor: str = "whole", start: int = 0,
           team: str = "language") -> Booking:  # fmt: skip
    """A placement of a lease that begins later."""
    before = list(cluster.held)
    cluster.hold(device_id, flavor, start, team=team, hours=until, lease=-1)
    held = cluster.held[-1]
    cluster.held[:] = before
    return Booking(NOON + hours(at), held)


def outage(node_id: int, at: float, until: float) -> Outage:
    return Outage(node_id, NOON + hours(at), NOON + hours(until), "window")


def decide(cluster: Cluster, *ahead: Booking | Outage) -> Plan:
    return plan(seen(cluster, *ahead), cluster.policy)


def seen(cluster: Cluster, *ahead: Booking | Outage) -> Snapshot:
    return replace(
        cluster.snapshot(),
        bookings=tuple(one for one in ahead if isinstance(one, Booking)),
        outages=tuple(one for one in ahead if isinstance(one, Outage)),
    )


def granted(found: Plan) -> dict[int, Grant]:
    return {grant.claim_id: grant for grant in found.grants}


def why(found: Plan, claim_id: int) -> dict[str, object]:
    reason = next(wait for wait in found.waits if wait.claim_id == claim_id).reasons[0]
    return {"code": reason.code, **reason.detail}


def test_what_ends_before_a_booking_starts_now_and_what_would_run_into_it_waits(cluster: Cluster) -> None:
    cluster.node("a")
    short, long = cluster.request("short", hours=2), cluster.request("long", hours=3)
    alone = replace(seen(cluster, booked(cluster, 1, 2, 5)), queue=(long,))

    assert set(granted(decide(cluster, booked(cluster, 1, 2, 5)))) == {short.id}
    assert why(plan(alone, cluster.policy), long.id) == {
        "code": "booked_ahead",
        "starts_at": (NOON + hours(2)).isoformat(),
        "longest_s": 7200,
    }


def test_another_board_is_taken_when_the_first_is_booked(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    long = cluster.request("long", hours=8)

    found = granted(decide(cluster, booked(cluster, 1, 2, 5)))

    assert found[long.id].slots[0].device_id == 2


def test_maintenance_closes_all_boards_of_its_node_before_it_begins(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    long = cluster.request("long", "1g.10gb", hours=8)

    found = decide(cluster, outage(1, 4, 6))

    assert why(found, long.id) == {
        "code": "maintenance_ahead",
        "nodes": ["a"],
        "starts_at": (NOON + hours(4)).isoformat(),
        "longest_s": 4 * 3600,
    }


def test_maintenance_that_is_on_blocks_its_node(cluster: Cluster) -> None:
    cluster.node("a")
    claim = cluster.request("any")

    found = decide(cluster, outage(1, -1, 1))

    assert why(found, claim.id)["nodes"] == [{"node": "a", "blocked": "maintenance", "devices": 1}]


def test_maintenance_that_is_over_or_of_another_node_is_in_nobodys_way(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.node("b", "l40s-48gb")
    claim = cluster.request("any", models=("h100-80gb",))

    assert claim.id in granted(decide(cluster, outage(1, -2, -1), outage(2, 0.5, 3)))


def test_a_claim_that_may_be_cut_ends_where_maintenance_begins(cluster: Cluster) -> None:
    cluster.node("a")
    claim = cluster.request("cut", hours=8, least_duration_s=3600)

    found = granted(decide(cluster, outage(1, 4, 6)))[claim.id]

    assert (found.duration_s, found.cut_by) == (4 * 3600, "maintenance")


def test_a_claim_is_not_cut_shorter_than_it_allows(cluster: Cluster) -> None:
    cluster.node("a")
    claim = cluster.request("cut", hours=8, least_duration_s=5 * 3600)

    found = decide(cluster, booked(cluster, 1, 4, 6))

    assert not found.grants
    assert why(found, claim.id)["code"] == "booked_ahead"


def test_the_longest_of_several_cuts_is_chosen(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.node("b", "a100-80gb")
    claim = cluster.request("cut", hours=8, least_duration_s=3600)

    found = granted(decide(cluster, booked(cluster, 1, 2, 9), booked(cluster, 2, 5, 9)))[claim.id]

    assert (found.node_id, found.duration_s, found.cut_by) == (2, 5 * 3600, "booking")


def test_a_whole_claim_elsewhere_is_better_than_a_cut_one(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    claim = cluster.request("cut", hours=8, least_duration_s=3600)

    found = granted(decide(cluster, booked(cluster, 1, 2, 9)))[claim.id]

    assert (found.slots[0].device_id, found.duration_s, found.cut_by) == (2, 8 * 3600, "")


def test_a_slice_stands_beside_a_booked_slice(cluster: Cluster) -> None:
    cluster.node("a")
    beside = cluster.request("beside", "4g.40gb", hours=8)
    over = cluster.request("over", "4g.40gb", hours=8)

    found = decide(cluster, booked(cluster, 1, 2, 5, "3g.40gb", 4))

    assert granted(found)[beside.id].slots[0].start == 0
    assert over.id not in granted(found)


def test_a_share_stands_beside_a_booked_share_of_its_team_within_its_memory(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb")
    small = cluster.request("small", "mps 400 9000", team="language", hours=4)
    large = cluster.request("large", "mps 400 9000", team="language", hours=4)
    other = cluster.request("other", "mps 100 1000", team="vision", hours=4)

    found = decide(cluster, booked(cluster, 1, 2, 5, "mps 500 20000"))

    assert set(granted(found)) == {small.id}
    assert why(found, large.id)["code"] == "booked_ahead"
    assert why(found, other.id)["code"] == "behind"


def test_a_share_does_not_stand_on_a_board_that_is_booked_whole(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 100 1000", hours=1)
    inside = cluster.request("inside", "mps 100 1000", hours=1)
    beyond = cluster.request("beyond", "mps 100 1000", hours=3)

    found = decide(cluster, booked(cluster, 1, 2, 5))

    assert set(granted(found)) == {inside.id}
    assert why(found, beyond.id)["code"] == "booked_ahead"


def test_cpu_of_what_is_booked_is_kept_for_it(cluster: Cluster) -> None:
    cluster.node("a", devices=2, host={"cpu_milli": 4000})
    claim = cluster.request("claim", hours=4, cpu_milli=3000)
    busy = booked(cluster, 1, 2, 5)
    busy = replace(busy, held=replace(busy.held, cpu_milli=2000))

    found = decide(cluster, busy)

    assert why(found, claim.id)["code"] == "booked_ahead"


def test_many_instants_share_a_bounded_number_of_rooms_and_nobody_runs_into_a_booking(
    cluster: Cluster,
) -> None:
    cluster.node("a", devices=8)
    ahead = [booked(cluster, 1 + at % 8, 1 + at / 4, 1.2 + at / 4) for at in range(32)]
    for at in range(8):
        cluster.request(f"r{at}", hours=1 + at)
    snapshot = seen(cluster, *ahead)

    found = plan(snapshot, cluster.policy)

    assert len(Calendar(snapshot, cluster.policy).layers) <= MOST_INSTANTS
    assert found.grants
    for grant in found.grants:
        end = NOON + timedelta(seconds=grant.duration_s)
        taken = {slot.device_id for slot in grant.slots}
        assert not any(one.starts_at < end and one.held.device_id in taken for one in ahead)


def test_what_begins_after_the_longest_claim_costs_no_room(cluster: Cluster) -> None:
    cluster.node("a")
    cluster.request("short", hours=2)

    calendar = Calendar(seen(cluster, outage(1, 2, 6), booked(cluster, 1, 30, 40)), cluster.policy)

    assert calendar.layers == []


def test_a_board_with_something_booked_is_not_cut_anew(cluster: Cluster) -> None:
    cluster.policy = PolicyRules(repartition=True)
    cluster.node("a").layout(("4g.40gb", 0), ("3g.40gb", 4))
    cluster.request("slice", "1g.10gb", hours=1)

    found = decide(cluster, booked(cluster, 1, 2, 5, "3g.40gb", 4))

    assert (found.grants, found.repartitions) == ((), ())


def test_a_foreign_booking_on_a_board_nobody_knows_is_passed_over(cluster: Cluster) -> None:
    cluster.node("a")
    claim = cluster.request("claim", hours=3)
    odd = Booking(NOON + hours(1), Held(99, 0, 8, "exclusive", 1, 5, NOON + hours(2)))

    assert claim.id in granted(decide(cluster, odd))


def test_maintenance_of_a_node_with_a_sick_board_does_not_spoil_forecasts(cluster: Cluster) -> None:
    cluster.node("a", devices=2).hold(0, hours=3)
    cluster.change(2, blocked="quarantined")
    claim = cluster.claim(-1, hours=1)

    found = forecast(seen(cluster, outage(1, 5, 6)), cluster.policy, [claim])

    assert found[claim.id].starts_at == NOON + hours(3)
