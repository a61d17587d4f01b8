from __future__ import annotations

from datetime import timedelta
from typing import Any

from portal.billing.metering import meter_all
from portal.leases.states import LeaseState
from tests.portal.builders import World


def test_holder_sees_slices_cost_and_time_left(world: World, calls: Any) -> None:
    lease = world.active("bob", at=world.now - timedelta(seconds=1800))

    seen = calls("bob").get(f"leases/{lease.uid}/").json()

    assert seen["state"] == "active"
    assert 1790 <= seen["seconds_left"] <= 1800
    assert seen["price_per_hour"] == {"amount": "0.45", "currency": "EUR"}
    assert seen["cost_so_far"]["amount"].startswith("0.22")
    assert seen["slots"][0]["profile"] == "1g.10gb"
    assert (seen["can_manage"], seen["can_see_access"]) == (True, True)


def test_access_is_for_the_holder_and_admins_while_it_runs(world: World, calls: Any) -> None:
    lease = world.active("bob")

    holder = calls("bob", "lease:write").get(f"leases/{lease.uid}/access/")
    operator = calls("operator").get(f"leases/{lease.uid}/access/")
    reader = calls("bob", "read").get(f"leases/{lease.uid}/access/")

    (slot,) = holder.json()["slots"]
    assert slot["partition"].startswith("MIG-")
    assert slot["environment"]["CUDA_VISIBLE_DEVICES"] == slot["partition"]
    assert (operator.status_code, operator.json()["code"]) == (403, "forbidden")
    assert (reader.status_code, reader.json()["code"]) == (403, "scope_missing")


def test_releasing_stops_the_money_clock_and_repeats_harmlessly(world: World, calls: Any) -> None:
    lease = world.active("bob", at=world.now - timedelta(seconds=60))
    bob = calls("bob", "lease:write")

    first, second = bob.post(f"leases/{lease.uid}/release/"), bob.post(f"leases/{lease.uid}/release/")

    assert first.json()["state"] == "ending"
    assert first.json()["end_reason"] == "released"
    assert second.json()["ended_at"] == first.json()["ended_at"]
    world.gone(lease)
    assert bob.get(f"leases/{lease.uid}/access/").json()["slots"] == []


def test_only_holder_admin_and_operator_release(world: World, calls: Any) -> None:
    lease = world.active("bob")

    assert calls("approver").post(f"leases/{lease.uid}/release/").status_code == 403
    assert calls("charlie").post(f"leases/{lease.uid}/release/").status_code == 404
    lease.refresh_from_db()
    assert lease.state == LeaseState.ACTIVE
    assert calls("operator").post(f"leases/{lease.uid}/release/").status_code == 200


def test_extending_moves_the_end_up_to_the_longest(world: World, calls: Any) -> None:
    lease = world.active("bob")
    bob = calls("bob", "lease:write")

    longer = bob.post(f"leases/{lease.uid}/extend/", {"extra_s": 600})
    too_long = bob.post(f"leases/{lease.uid}/extend/", {"extra_s": 8 * 86_400})

    assert longer.json()["not_after"] > lease.not_after.isoformat()[:19]
    assert (too_long.status_code, too_long.json()["errors"][0]["field"]) == (422, "extra_s")


def test_list_of_leases_is_filtered_and_costs_the_same_for_one_and_many(
    world: World, calls: Any, django_assert_max_num_queries: Any
) -> None:
    first = world.ended("bob", seconds=60)
    bob = calls("bob")
    bob.get("leases/")
    for _ in range(4):
        world.active("bob")

    with django_assert_max_num_queries(8):
        rows = bob.get("leases/").json()["results"]

    assert len(rows) == 5
    assert [r["id"] for r in bob.get("leases/?state=ended").json()["results"]] == [first.uid]
    assert bob.get("leases/?node=gpu-03").json()["results"] == []
    assert bob.get(f"leases/?request={first.request.uid}&user=bob").json()["results"][0]["id"] == first.uid


def test_events_usage_and_sample_of_a_lease(world: World, calls: Any) -> None:
    lease = world.ended("bob", seconds=600)
    meter_all(now=world.now)
    bob = calls("bob", "read")

    steps = [e["now"] for e in bob.get(f"leases/{lease.uid}/events/").json()["results"]]
    usage = bob.get(f"leases/{lease.uid}/usage/").json()["results"]
    sample = bob.get(f"leases/{lease.uid}/sample/").json()

    assert steps == ["preparing", "active", "ending", "cleaning", "ended"]
    assert [(u["seconds"], u["price_per_hour"]["amount"]) for u in usage] == [(600, "3.60")]
    assert sample["util_percent"] is None


def test_feed_of_events_goes_on_where_it_stopped(world: World, calls: Any) -> None:
    world.ended("bob", seconds=60)
    bob = calls("bob")

    page = bob.get("lease-events/?ordering=id&page_size=3").json()
    rest = bob.get(page["next"]).json()

    assert [e["now"] for e in page["results"] + rest["results"]] == [
        "preparing", "active", "ending", "cleaning", "ended",
    ]  # fmt: skip
    assert rest["next"] is None


def test_an_extension_above_the_threshold_waits_for_an_approver(world: World, calls: Any) -> None:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 2 * 3600
    team.save()
    lease = world.active("bob", "h100", duration_s=3600)
    bob, alice = calls("bob"), calls("alice")
    ends = bob.get(f"leases/{lease.uid}/").json()["not_after"]

    asked = bob.post(f"leases/{lease.uid}/extend/", {"extra_s": 7200}).json()

    assert (asked["not_after"], asked["extension"]["state"]) == (ends, "awaiting_approval")
    assert [row["id"] for row in alice.get("leases/?awaiting_me=true").json()["results"]] == [lease.uid]
    assert bob.get("leases/?awaiting_me=true").json()["results"] == []
    assert bob.post(f"leases/{lease.uid}/extension/approve/", {}).status_code == 403
    longer = alice.post(f"leases/{lease.uid}/extension/approve/", {"note": "fine"}).json()
    assert longer["extension"] is None
    assert longer["not_after"] == asked["extension"]["until"]
