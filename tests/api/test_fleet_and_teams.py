from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.fleet.models import Device, Health, HealthEvent
from portal.quotas.models import Quota
from tests.portal.builders import World


def test_members_see_nodes_coarsely_and_operators_see_revisions(world: World, calls: Any) -> None:
    coarse = {n["name"]: n for n in calls("bob").get("nodes/").json()["results"]}
    fine = {n["name"]: n for n in calls("operator").get("nodes/").json()["results"]}

    assert coarse["gpu-01"]["device_count"] == 8
    assert coarse["gpu-01"]["state"] == "online"
    assert "epoch" not in coarse["gpu-01"]
    assert fine["gpu-01"]["epoch"] == 1


def test_operator_cordons_with_a_reason_and_back(world: World, calls: Any) -> None:
    operator = calls("operator")

    silent = operator.post("nodes/gpu-01/cordon/", {"reason": ""})
    cordoned = operator.post("nodes/gpu-01/cordon/", {"reason": "fan"})
    back = operator.post("nodes/gpu-01/uncordon/")

    assert silent.status_code == 422
    assert (cordoned.json()["is_cordoned"], cordoned.json()["cordon_reason"]) == (True, "fan")
    assert back.json()["is_cordoned"] is False
    assert calls("alice").post("nodes/gpu-01/cordon/", {"reason": "x"}).status_code == 403


def test_operator_clears_a_devices_health(world: World, calls: Any) -> None:
    device = Device.objects.earliest("id")
    Device.objects.filter(pk=device.pk).update(health=Health.QUARANTINED)
    HealthEvent.objects.create(
        node=device.node, device=device, code="xid-79", severity="critical", detail="gone", at=world.now
    )
    operator = calls("operator")

    sick = operator.get("devices/?health=quarantined").json()["results"]
    cleared = operator.post(f"devices/{device.uuid}/clear-health/").json()

    assert [d["health_events"][0]["code"] for d in sick] == ["xid-79"]
    assert (cleared["health"], cleared["health_events"]) == ("ok", [])


def test_enrolling_a_node_says_how_many_leases_are_at_stake(world: World, calls: Any) -> None:
    lease = world.active("bob", "h100-1g-10gb")
    world.submit("alice", "h100-1g-10gb", starts_at=world.now + timedelta(days=2))
    world.turn()
    operator = calls("operator")

    found = [operator.post("nodes/", {"name": name}).json() for name in (lease.node.name, "gpu-99")]

    assert [row["leases_at_stake"] for row in found] == [1, 0]


def test_enrolment_secret_is_shown_once(world: World, calls: Any) -> None:
    operator = calls("operator")

    made = operator.post("nodes/", {"name": "gpu-99"}, **{"Idempotency-Key": "enrol"})
    again = operator.post("nodes/", {"name": "gpu-99"}, **{"Idempotency-Key": "enrol"})
    wrong = operator.post("nodes/", {"name": "no spaces please"})

    assert made.json()["secret"].startswith("enr_")
    assert again.json()["secret"] is None
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "name")


def test_map_hides_strangers_leases(world: World, calls: Any) -> None:
    lease = world.active("bob")

    assert lease.uid in calls("bob").get("map/").content.decode()
    assert lease.uid not in calls("charlie").get("map/").content.decode()


def test_flavors_carry_price_and_say_unknown_when_free_is_not_known(world: World, calls: Any) -> None:
    rows = {f["slug"]: f for f in calls("bob").get("flavors/").json()["results"]}

    assert rows["h100"]["price_per_hour"] == {"amount": "3.60", "currency": "EUR"}
    assert rows["h100-3g-40gb"]["free"] is None
    assert rows["h100-3g-40gb"]["memory_mib"] > 39_000
    assert rows["h100-3g-40gb"]["max_memory_mib"] == 0


def test_quote_prices_without_changing_anything(world: World, calls: Any) -> None:
    seen = calls("bob", "read").post("quote/", {"flavor": "h100", "duration_s": 7200, "count": 2}).json()

    assert seen["price"] == {"amount": "14.40", "currency": "EUR"}
    assert seen["is_now"] in (None, True)
    assert world.team("perception").requests.count() == 0


def test_quota_edits_need_the_version_that_was_read(world: World, calls: Any) -> None:
    alice = calls("alice")
    tag = alice.get("teams/perception/quota/")["ETag"]
    body = {"guaranteed_milli": 500, "ceiling_milli": 2000}

    blind = alice.put("teams/perception/quota/", body)
    first = alice.put("teams/perception/quota/", body, **{"If-Match": tag})
    stale = alice.put("teams/perception/quota/", body, **{"If-Match": tag})

    assert (blind.status_code, blind.json()["code"]) == (428, "precondition_required")
    assert (first.status_code, first["ETag"]) == (200, '"2"')
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert Quota.objects.get(team=world.team("perception")).ceiling_milli == 2000


def test_limits_of_a_quota_are_set_kept_and_refused_by_name(world: World, calls: Any) -> None:
    alice, body = calls("alice"), {"guaranteed_milli": 500, "ceiling_milli": 2000}
    path = "teams/perception/quota/"

    limits = {"most_duration_s": 7200, "gpu_seconds_a_month": 7200, "most_memory_mib": 50_000}
    made = alice.put(path, body | limits, **{"If-Match": '"1"'})
    kept = alice.put(path, body, **{"If-Match": '"2"'})
    wrong = alice.put(path, body | {"most_duration_s": 0}, **{"If-Match": '"3"'})
    quoted = calls("bob").post("quote/", {"team": "perception", "flavor": "h100-1g-10gb", "duration_s": 7260})

    assert (made.status_code, made.json()["most_duration_s"]) == (200, 7200)
    assert {name: kept.json()[name] for name in limits} == limits
    assert (kept.json()["used_gpu_seconds"], kept.json()["held_memory_mib"]) == (0, 0)
    assert wrong.status_code == 422
    assert "most_duration_s" in wrong.text
    assert quoted.status_code == 422
    assert "at most 2 h in all" in quoted.text
    large = calls("bob").post("quote/", {"team": "perception", "flavor": "h100", "duration_s": 7200})
    assert large.json()["budget"]["is_refused"] is True
    assert "of device memory at once" in large.json()["budget"]["sentence"]


def test_own_quota_is_for_the_team_above_to_set(world: World, calls: Any) -> None:
    body, tag = {"guaranteed_milli": 0, "ceiling_milli": 99_000}, {"If-Match": '"1"'}

    assert calls("alice").put("teams/vision/quota/", body, **tag).status_code == 403
    assert calls("bob").put("teams/perception/quota/", body, **tag).status_code == 403
    assert calls("operator").put("teams/vision/quota/", body, **tag).status_code == 200


def test_team_page_shows_headroom_and_who_binds(world: World, calls: Any) -> None:
    world.active("bob", "h100", count=2)

    seen = calls("bob").get("teams/perception/").json()

    assert seen["headroom"]["left_milli"] == 6000
    assert seen["headroom"]["bound_by"] == "Vision"
    assert seen["live_leases"] == 1


def test_admin_adds_and_removes_a_member_but_not_the_last_admin(world: World, calls: Any) -> None:
    alice = calls("alice")

    added = alice.post("teams/perception/members/", {"username": "charlie", "role": "researcher"})
    unknown = alice.post("teams/perception/members/", {"username": "nobody", "role": "researcher"})
    above = alice.post("teams/perception/members/", {"username": "charlie", "role": "operator"})
    removed = alice.delete("teams/perception/members/charlie/researcher/")
    last = alice.delete("teams/vision/members/alice/admin/")

    assert (added.status_code, added.json()["role"]) == (201, "researcher")
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (422, "username")
    assert above.status_code == 403
    assert removed.status_code == 204
    assert last.status_code == 409
    assert (
        calls("bob").post("teams/perception/members/", {"username": "bob", "role": "admin"}).status_code
        == 403
    )


def test_rights_taken_away_end_with_the_next_call(world: World, calls: Any) -> None:
    bob = calls("bob")
    assert bob.get("teams/perception/").status_code == 200

    world.user("bob").memberships.all().delete()

    assert bob.get("teams/perception/").status_code == 404


@pytest.mark.parametrize("name", ["alice", "bob", "operator"])
def test_me_says_roles_and_teams(name: str, world: World, calls: Any) -> None:
    seen = calls(name).get("me/").json()

    assert seen["username"] == name
    expected = {"alice": ["perception", "segmentation", "vision"], "bob": ["perception"], "operator": []}
    assert sorted(seen["teams"]) == expected[name]
