from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.common.live import redis_client
from portal.leases.forecasting import SNAPSHOT_KEY
from portal.policies.models import Policy
from portal.policies.services import built_in
from portal.quotas.models import Cohort, Quota
from scheduler import snapshot
from scheduler.engine import snapshot_to_json
from tests.portal.builders import World

BODY = {
    "pools": {"parts": {"training": 1}, "times": [{"days": [0], "from": "08:00", "to": "07", "parts": {}}]}
}


@pytest.fixture(autouse=True)
def no_picture(world: World) -> None:
    redis_client().delete(SNAPSHOT_KEY)


def saved(calls: Any, body: Any, based_on: int, **more: Any) -> Any:
    given = {"name": "house rules", "body": body, "based_on": based_on, **more}
    return calls("operator").post("policies/", given)


def test_a_policy_is_saved_read_compared_and_rolled_back(calls: Any) -> None:
    first = saved(calls, {}, 0)
    second = saved(calls, {"depth": 4}, 1, note="four")
    operator = calls("operator")

    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["Location"] == "/api/v1/policies/2/"
    assert operator.get("policies/2/").json()["body"] == {**built_in(), "depth": 4}
    [change] = operator.get("policies/1/diff/2/").json()["results"]
    assert (change["rule"], change["was"], change["now"]) == ("depth", ["1"], ["4"])
    back = operator.post("policies/1/roll-back/", {"based_on": 2})
    assert (back.status_code, back.json()["version"], back.json()["based_on"]) == (201, 3, 1)
    listed = operator.get("policies/").json()["results"]
    assert [(row["version"], row["is_active"]) for row in listed] == [(3, True), (2, False), (1, False)]


def test_every_fault_is_an_entry_with_its_dotted_field(calls: Any) -> None:
    answer = calls("operator").post("policies/check/", {"body": {**BODY, "depth": 0}})

    assert answer.status_code == 422
    found = {entry["field"]: entry["code"] for entry in answer.json()["errors"]}
    assert found == {
        "pools.times[0].to": "bad_time",
        "pools.times[0].parts": "no_parts",
        "depth": "too_small",
    }


@pytest.mark.parametrize("body", [None, [], "x", 1, {"order": "alphabet"}, {"memory_factors": {"x": 10**9}}])
def test_a_body_that_cannot_be_used_changes_nothing(calls: Any, body: Any) -> None:
    assert saved(calls, body, 0).status_code == 422
    assert not Policy.objects.exists()


def test_an_old_based_on_is_a_conflict(calls: Any) -> None:
    saved(calls, {}, 0)
    saved(calls, {"depth": 2}, 1)

    late = saved(calls, {"depth": 3}, 1)

    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert Policy.objects.count() == 2


def test_a_check_shows_what_would_change_for_those_who_wait(world: World, calls: Any) -> None:
    saved(calls, {}, 0)
    world.submit("bob", "h100", count=8)
    charlie = world.submit("charlie", "h100", count=8, at=timezone.now())
    Quota.objects.update(ceiling_milli=None)
    redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=timezone.now())))

    answer = calls("operator").post("policies/check/", {"body": {"depth": 2}, "preview": True})

    tried = answer.json()["preview"]
    assert (tried["waiting"], tried["looked_at"]) == (2, 2)
    assert set(tried["counts"].values()) == {0}
    assert charlie.uid not in answer.text
    assert calls("operator").post("policies/check/", {"body": {}}).json()["preview"] is None


def test_a_policy_that_serves_another_first_says_who_would_start(world: World, calls: Any) -> None:
    saved(calls, {}, 0)
    Quota.objects.update(ceiling_milli=None)
    world.submit("bob", "h100", count=8, at=world.now - timedelta(minutes=5))
    world.submit("alice", "h100", count=8, priority="high")
    redis_client().set(SNAPSHOT_KEY, snapshot_to_json(snapshot.take(now=timezone.now())))

    given = {"body": {"order": "fifo"}, "preview": True}
    tried = calls("operator").post("policies/check/", given).json()["preview"]

    assert [row["team"] for row in tried["would_start"]] == ["Perception"]
    assert [row["team"] for row in tried["would_not_start"]] == ["Vision"]
    nothing = {"blocked": 0, "would_start": 0, "would_not_start": 0, "sooner": 0, "later": 0}
    assert tried["teams"] == [
        {**nothing, "team": "Perception", "would_start": 1},
        {**nothing, "team": "Vision", "would_not_start": 1},
    ]


def test_a_quota_put_takes_lending_and_cohort_and_keeps_what_is_left_out(world: World, calls: Any) -> None:
    operator = calls("operator")
    cohort = operator.post("cohorts/", {"name": "pool"}).json()["id"]
    body = {"guaranteed_milli": 2000, "ceiling_milli": 8000}

    first = operator.put(
        "teams/vision/quota/", {**body, "lending_milli": 500, "cohort_id": cohort}, **{"If-Match": '"1"'}
    )
    second = operator.put("teams/vision/quota/", body, **{"If-Match": '"2"'})

    assert first.status_code == 200, first.content
    assert second.json()["lending_milli"] == 500
    assert second.json()["cohort"] == {"id": cohort, "name": "pool"}
    assert [m["team"] for m in operator.get(f"cohorts/{cohort}/").json()["members"]] == ["vision"]
    assert operator.delete(f"cohorts/{cohort}/").status_code == 409
    assert Cohort.objects.exists()


@pytest.mark.parametrize(
    "more", [{"lending_milli": 99_000}, {"cohort_id": 999}, {"lending_milli": -1}, {"cohort_id": 0}]
)
def test_bad_lending_and_strange_cohorts_are_refused(world: World, calls: Any, more: dict[str, int]) -> None:
    before = Quota.objects.filter(team__slug="vision").values().get()
    body = {"guaranteed_milli": 2000, "ceiling_milli": 8000, **more}

    assert calls("operator").put("teams/vision/quota/", body, **{"If-Match": '"1"'}).status_code == 422
    assert Quota.objects.filter(team__slug="vision").values().get() == before


def test_an_admin_cannot_join_a_cohort_of_teams_they_do_not_decide_on(world: World, calls: Any) -> None:
    cohort = calls("operator").post("cohorts/", {"name": "pool"}).json()["id"]
    Quota.objects.filter(team__slug="language").update(cohort_id=cohort)
    body = {"guaranteed_milli": 0, "ceiling_milli": None, "cohort_id": cohort}

    assert calls("alice").put("teams/perception/quota/", body, **{"If-Match": '"1"'}).status_code == 422
