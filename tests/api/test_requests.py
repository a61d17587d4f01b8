from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from portal.common.clock import db_now
from portal.leases.models import LeaseRequest, RequestEvent
from portal.leases.requests import RequestSpec
from portal.leases.states import RequestState
from portal.teams.models import Team
from tests.portal.builders import World

BODY = {"flavor": "h100-1g-10gb", "duration_s": 3600}


def test_bob_asks_for_a_slice_and_gets_a_place_where_it_can_be_read(world: World, calls: Any) -> None:
    bob = calls("bob", "lease:write")

    answer = bob.post("requests/", {**BODY, "name": "first try"})

    assert answer.status_code == 201
    made = answer.json()
    assert made["state"] == "queued"
    assert made["team"] == "perception"
    assert made["quote"] == {"amount": "0.45", "currency": "EUR"}
    assert answer["Location"] == f"/api/v1/requests/{made['id']}/"
    seen = bob.get(answer["Location"]).json()
    assert seen["position"] == 1
    assert seen["name"] == "first try"


def test_asking_costs_few_queries(world: World, calls: Any, django_assert_max_num_queries: Any) -> None:
    bob = calls("bob", "lease:write")
    bob.post("requests/", BODY)

    with django_assert_max_num_queries(13):
        assert bob.post("requests/", BODY).status_code == 201


def test_a_host_whose_clock_runs_ahead_asks_and_decides_by_the_clock_of_the_database(
    world: World, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=1)
    began, real = db_now(), timezone.now
    monkeypatch.setattr(timezone, "now", lambda: real() + timedelta(minutes=30))

    asked = [calls("bob").post("requests/", BODY).json()["id"] for _ in range(3)]
    alice = calls("alice")
    answers = [
        alice.post(f"requests/{asked[0]}/approve/", {"note": ""}),
        alice.post(f"requests/{asked[1]}/reject/", {"note": "too large"}),
        calls("bob").post(f"requests/{asked[2]}/withdraw/"),
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert LeaseRequest.objects.filter(submitted_at__range=(began, db_now())).count() == 3
    assert RequestEvent.objects.exclude(at__range=(began, db_now())).count() == 0
    decided = LeaseRequest.objects.exclude(decided_at=None)
    assert decided.filter(decided_at__range=(began, db_now())).count() == decided.count() == 2


def test_somebody_in_two_teams_names_one(world: World, calls: Any) -> None:
    from portal.teams.services import add_member

    add_member(team=world.team("robotics"), user=world.user("bob"), role="researcher", now=world.now)

    answer = calls("bob").post("requests/", BODY)

    assert answer.status_code == 422
    assert [e["field"] for e in answer.json()["errors"]] == ["team"]


def test_a_waiting_request_says_why_with_figures_and_a_sentence(world: World, calls: Any) -> None:
    for _ in range(2):
        world.submit("alice", "h100", team="vision", count=4)
    world.turn()
    waiting = world.submit("bob", "h100", count=2)
    world.turn()

    seen = calls("bob").get(f"requests/{waiting.uid}/").json()

    assert seen["state"] == "queued"
    assert seen["reasons"][0]["code"] == "quota_ceiling"
    assert seen["reasons"][0]["figures"]["ceiling_milli"] == 8000
    assert "Vision" in seen["reasons"][0]["sentence"]


def test_list_is_filtered_paged_and_ordered(world: World, calls: Any) -> None:
    made = [world.submit("bob").uid for _ in range(5)]
    bob = calls("bob")

    first = bob.get("requests/?page_size=2").json()
    second = bob.get(first["next"]).json()
    oldest = bob.get("requests/?ordering=id&page_size=1&state=queued&state=granted&author=bob").json()

    assert [r["id"] for r in first["results"]] == made[:2:-1]
    assert [r["id"] for r in second["results"]] == made[2:0:-1]
    assert [r["id"] for r in oldest["results"]] == made[:1]
    assert [r["position"] for r in first["results"]] == [5, 4]
    assert bob.get("requests/?state=withdrawn").json()["results"] == []


def test_list_of_requests_costs_the_same_for_one_and_for_many(
    world: World, calls: Any, django_assert_num_queries: Any
) -> None:
    bob = calls("bob")
    world.submit("bob")
    with django_assert_num_queries(4):
        bob.get("requests/")
    for _ in range(10):
        world.submit("bob")

    with django_assert_num_queries(3):
        assert len(bob.get("requests/").json()["results"]) == 11


def test_withdrawing_is_safe_to_repeat_and_refused_once_granted(world: World, calls: Any) -> None:
    request = world.submit("bob")
    bob = calls("bob", "lease:write")

    first, second = (
        bob.post(f"requests/{request.uid}/withdraw/"),
        bob.post(f"requests/{request.uid}/withdraw/"),
    )

    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json()["state"] == "withdrawn"
    lease = world.active("bob")
    refused = bob.post(f"requests/{lease.request.uid}/withdraw/")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


@pytest.fixture
def waiting(world: World) -> LeaseRequest:
    team = world.team("perception")
    team.approval_above_gpu_seconds = 10
    team.save()
    return world.submit("bob")


def test_approver_lets_a_request_in(world: World, calls: Any, waiting: LeaseRequest) -> None:
    approver = calls("approver")
    inbox = approver.get("requests/?awaiting_me=true").json()["results"]

    answer = approver.post(f"requests/{waiting.uid}/approve/", {"note": "fine"})

    assert [r["id"] for r in inbox] == [waiting.uid]
    assert answer.json()["state"] == "queued"
    assert answer.json()["decided_by"] == "approver"
    again = approver.post(f"requests/{waiting.uid}/approve/")
    assert again.status_code == 409


def test_nobody_approves_their_own_and_researchers_approve_nothing(
    world: World, calls: Any, waiting: LeaseRequest
) -> None:
    from portal.leases.requests import submit_request

    own = submit_request(
        team=world.team("perception"), actor=world.user("alice"), rights=world.rights("alice"),
        spec=RequestSpec("h100-1g-10gb", 3600), now=world.now,
    )  # fmt: skip

    assert calls("bob").post(f"requests/{own.uid}/approve/").status_code == 403
    assert calls("alice").post(f"requests/{own.uid}/approve/").status_code == 403
    assert calls("charlie").post(f"requests/{own.uid}/approve/").status_code == 404
    own.refresh_from_db()
    assert own.state == RequestState.AWAITING_APPROVAL


def test_rejecting_needs_a_reason(world: World, calls: Any, waiting: LeaseRequest) -> None:
    approver = calls("approver")

    silent = approver.post(f"requests/{waiting.uid}/reject/")
    said = approver.post(f"requests/{waiting.uid}/reject/", {"note": "too long"})

    assert (silent.status_code, silent.json()["errors"][0]["field"]) == (422, "note")
    assert (said.json()["state"], said.json()["decision_note"]) == ("rejected", "too long")


def test_events_tell_the_whole_way(world: World, calls: Any) -> None:
    lease = world.active("bob")

    events = calls("bob").get(f"requests/{lease.request.uid}/events/").json()["results"]

    assert [e["now"] for e in events] == ["submitted", "queued", "granted"]


def test_reading_token_cannot_ask_and_asking_token_cannot_approve(world: World, calls: Any) -> None:
    reader, writer = calls("bob", "read"), calls("alice", "lease:write")
    request = world.submit("bob")

    refused = reader.post("requests/", BODY)
    decided = writer.post(f"requests/{request.uid}/approve/")

    assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing")
    assert refused.json()["facts"] == {"scope": "lease:write"}
    assert (decided.status_code, decided.json()["facts"]) == (403, {"scope": "admin"})


def test_too_many_waiting_says_when_to_come_back(world: World, calls: Any, settings: Any) -> None:
    settings.MAX_WAITING_PER_TEAM = 1
    bob = calls("bob")
    bob.post("requests/", BODY)

    answer = bob.post("requests/", BODY)

    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_waiting")
    assert answer["Retry-After"] == "10"


def test_what_no_device_can_serve_is_impossible_and_says_the_nearest(world: World, calls: Any) -> None:
    answer = calls("charlie").post("requests/", {"flavor": "h100", "duration_s": 60, "count": 9})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "count"


def test_a_length_that_is_not_offered_is_refused_in_days(world: World, calls: Any) -> None:
    answer = calls("bob").post("requests/", {**BODY, "duration_s": 8 * 86_400})

    assert answer.json()["errors"][0]["detail"] == "This flavor runs for 1 s to 7 d."


def test_asking_for_a_foreign_team_answers_as_for_one_that_is_not_there(world: World, calls: Any) -> None:
    world.submit("bob")
    charlie = calls("charlie")

    for path in ("requests/", "quote/"):
        foreign = charlie.post(path, {**BODY, "team": "perception"})
        missing = charlie.post(path, {**BODY, "team": "no-such-team"})
        assert foreign.status_code == missing.status_code == 404
        assert {**foreign.json(), "request_id": ""} == {**missing.json(), "request_id": ""}
    for path in ("requests/?team=", "leases/?team=", "usage/?team=", "invoices/?team="):
        assert charlie.get(path + "perception").json() == charlie.get(path + "no-such-team").json()


def test_reasons_come_in_the_language_asked_for(world: World, calls: Any) -> None:
    answer = calls("bob").post("requests/", {**BODY, "flavor": "no-such"}, **{"Accept-Language": "zh-hans"})

    assert answer["Content-Language"] == "zh-hans"
    assert answer.json()["code"] == "invalid"
