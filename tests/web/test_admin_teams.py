from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.audit.models import AuditEntry
from portal.quotas.models import Quota
from portal.teams.models import Membership, Role, Team
from portal.teams.services import add_member
from tests.portal.builders import World, make_user
from tests.web.conftest import SignedIn
from tests.web.test_researcher_requests import same_text


def test_the_team_page_shows_quota_limits_spend_people_leases_and_queue(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob")
    waiting = world.submit("bob")

    text = signed_in("bob").get("/teams/perception/").text

    assert "Vision" in text  # the limit from above
    assert "Northwind Labs" in text
    assert f"/leases/{lease.uid}/" in text
    assert f"/requests/{waiting.uid}/" in text
    assert "Spent this month" in text
    assert "Bob" in text


def test_charlie_meets_another_team_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    charlie = signed_in("charlie")

    foreign = charlie.get("/teams/vision/")
    missing = charlie.get("/teams/no-such-team/")

    assert foreign.status_code == missing.status_code == 404
    assert same_text(foreign.text) == same_text(missing.text)
    assert charlie.get("/teams/vision/quota/").status_code == 404
    assert charlie.post("/teams/vision/members/", {"username": "charlie", "role": "admin"}).status_code == 404
    assert "Vision" not in charlie.get("/teams/").text


def test_somebody_with_one_team_goes_straight_to_it(world: World, signed_in: SignedIn) -> None:
    assert signed_in("bob").get("/teams/").headers["Location"] == "/teams/perception/"


def test_somebody_without_a_team_is_told_what_to_do(world: World, signed_in: SignedIn) -> None:
    world.people["dave"] = make_user("dave")

    assert "You are in no team yet" in signed_in("dave").get("/teams/").text


def test_an_admin_adds_and_removes_people_and_it_is_written_down(world: World, signed_in: SignedIn) -> None:
    alice = signed_in("alice")

    added = alice.post("/teams/vision/members/", {"username": "charlie", "role": "researcher"})
    again = alice.post("/teams/vision/members/", {"username": "charlie", "role": "researcher"})
    key = Membership.objects.get(team__slug="vision", user=world.user("charlie")).pk
    removed = alice.post(f"/teams/vision/members/{key}/remove/")

    assert {added.status_code, again.status_code, removed.status_code} == {302}
    assert not Membership.objects.filter(pk=key).exists()
    assert list(
        AuditEntry.objects.filter(target="charlie").order_by("id").values_list("action", flat=True)
    ) == [
        "member.added",
        "member.removed",
    ]


@pytest.mark.parametrize("role", ["finance", "operator"])
def test_an_admin_cannot_give_a_role_above_their_own(world: World, signed_in: SignedIn, role: str) -> None:
    answer = signed_in("alice").post("/teams/vision/members/", {"username": "bob", "role": role})

    assert answer.status_code == 422
    assert not Membership.objects.filter(team__slug="vision", role=role).exists()


def test_a_researcher_changes_nobody(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    key = Membership.objects.get(team__slug="perception", user=world.user("bob")).pk

    assert (
        bob.post("/teams/perception/members/", {"username": "charlie", "role": "researcher"}).status_code
        == 403
    )
    assert bob.post(f"/teams/perception/members/{key}/remove/").status_code == 403
    assert "/members/" not in bob.get("/teams/perception/").text


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"username": "", "role": "researcher"},
        {"username": "nobody-here", "role": "researcher"},
        {"username": "bob", "role": "king"},
        {"username": "x" * 5000, "role": "researcher"},
        {"username": "b\x00b", "role": "researcher"},
    ],
)
def test_bad_input_on_the_member_form_changes_nothing(
    world: World, signed_in: SignedIn, sent: dict[str, str]
) -> None:
    before = Membership.objects.count()

    answer = signed_in("alice").post("/teams/vision/members/", sent)

    assert answer.status_code == 422
    assert "field-error" in answer.text
    assert Membership.objects.count() == before


def test_a_membership_of_another_team_cannot_be_reached_through_ones_own(
    world: World, signed_in: SignedIn
) -> None:
    key = Membership.objects.get(user=world.user("charlie")).pk

    assert signed_in("alice").post(f"/teams/vision/members/{key}/remove/").status_code == 404
    assert Membership.objects.filter(pk=key).exists()


def test_the_last_admin_stays(world: World, signed_in: SignedIn) -> None:
    key = Membership.objects.get(user=world.user("alice")).pk

    answer = signed_in("alice").post(f"/teams/vision/members/{key}/remove/", follow=True)

    assert "last admin" in answer.text
    assert Membership.objects.filter(pk=key).exists()


def test_an_admin_above_sets_the_quota_of_a_team_below(world: World, signed_in: SignedIn) -> None:
    version = Quota.objects.get(team__slug="perception").version

    answer = signed_in("alice").post(
        "/teams/perception/quota/", {"guaranteed": "1.5", "ceiling": "4", "version": version}
    )

    quota = Quota.objects.get(team__slug="perception")
    assert answer.status_code == 302
    assert (quota.guaranteed_milli, quota.ceiling_milli) == (1500, 4000)
    assert AuditEntry.objects.filter(action="quota.changed", actor=world.user("alice")).count() == 1


def test_a_longest_run_time_is_set_on_the_page_and_said_beside_the_length(
    world: World, signed_in: SignedIn
) -> None:
    version = Quota.objects.get(team__slug="perception").version
    sent = {"guaranteed": "1", "ceiling": "4", "version": version}

    wrong = signed_in("alice").post("/teams/perception/quota/", sent | {"most_duration": "soon"})
    done = signed_in("alice").post("/teams/perception/quota/", sent | {"most_duration": "1 d 12 h"})

    assert (wrong.status_code, done.status_code) == (422, 302)
    assert Quota.objects.get(team__slug="perception").most_duration_s == 36 * 3600
    assert 'value="36 h"' in signed_in("alice").get("/teams/perception/quota/").text
    bob = signed_in("bob")
    assert "Perception: a lease runs for at most 1 d 12 h." in bob.get("/teams/perception/").text
    assert "By the quota of Perception at most 1 d 12 h in all." in bob.get("/requests/new/?count=1").text
    asked = {"team": "perception", "flavor": "h100-1g-10gb", "duration": "2 d", "count": "1"}
    refused = bob.get("/requests/quote/", asked)
    assert "runs for at most 1 d 12 h in all" in refused.text


def test_hours_and_memory_are_set_on_the_page_shown_and_said_in_the_quote(
    world: World, signed_in: SignedIn
) -> None:
    version = Quota.objects.get(team__slug="perception").version
    sent = {"guaranteed": "1", "ceiling": "4", "version": version}
    alice, bob = signed_in("alice"), signed_in("bob")

    wrong = alice.post("/teams/perception/quota/", sent | {"month_hours": "0", "most_memory": "-1"})
    done = alice.post("/teams/perception/quota/", sent | {"month_hours": "2.5", "most_memory": "60"})

    assert (wrong.status_code, done.status_code) == (422, 302)
    row = Quota.objects.get(team__slug="perception")
    assert (row.gpu_seconds_a_month, row.most_memory_mib) == (9000, 60 * 1024)
    form = alice.get("/teams/perception/quota/").text
    assert 'value="2.5"' in form
    assert 'value="60"' in form
    page = bob.get("/teams/perception/").text
    assert "Perception: 0 of 2.5 GPU-hours of this month are used or held." in page
    assert "Perception: 0 MiB of 60 GiB of device memory are held." in page
    asked = {"team": "perception", "flavor": "h100", "duration": "1 h", "count": "1"}
    assert (
        "The quota of Perception allows 60 GiB of device memory at once"
        in bob.get("/requests/quote/", asked).text
    )


def test_nobody_sets_the_quota_of_their_own_team(world: World, signed_in: SignedIn) -> None:
    sent = {"guaranteed": "99", "ceiling": "99", "version": "1"}

    assert signed_in("alice").post("/teams/vision/quota/", sent).status_code == 403
    assert signed_in("bob").post("/teams/perception/quota/", sent).status_code == 403
    assert signed_in("operator").post("/teams/vision/quota/", sent).status_code == 302


def test_a_quota_changed_in_between_is_refused_with_the_reason(world: World, signed_in: SignedIn) -> None:
    sent = {"guaranteed": "1", "ceiling": "2", "version": "1"}
    signed_in("alice").post("/teams/perception/quota/", sent)

    late = signed_in("operator").post("/teams/perception/quota/", sent | {"ceiling": "3"})

    assert late.status_code == 422
    assert "Somebody changed this quota" in late.text
    assert Quota.objects.get(team__slug="perception").ceiling_milli == 2000


@pytest.mark.parametrize(
    "sent",
    [
        {"guaranteed": "-1", "version": "1"},
        {"guaranteed": "NaN", "version": "1"},
        {"guaranteed": "1e99", "version": "1"},
        {"guaranteed": "1.23456", "version": "1"},
        {"guaranteed": "3", "ceiling": "2", "version": "1"},
        {"guaranteed": "1", "version": "9" * 40},
        {"guaranteed": "1"},
        {},
    ],
)
def test_bad_input_on_the_quota_form_changes_nothing(
    world: World, signed_in: SignedIn, sent: dict[str, str]
) -> None:
    before = Quota.objects.filter(team__slug="perception").values().get()

    answer = signed_in("alice").post("/teams/perception/quota/", sent)

    assert answer.status_code == 422
    assert "field-error" in answer.text or "tone-bad" in answer.text
    assert Quota.objects.filter(team__slug="perception").values().get() == before


def test_the_list_and_the_page_take_a_fixed_number_of_queries(world: World, signed_in: SignedIn) -> None:
    client = signed_in("alice")
    world.active("bob", at=world.now - timedelta(hours=1))  # a whole second, at least, has a price
    world.submit("bob")
    counts = {path: _queries(client, path) for path in ("/teams/", "/teams/vision/")}
    for n in range(6):
        child = Team.objects.create(
            name=f"Group {n}", slug=f"group-{n}", parent=world.team("vision"), created_at=world.now
        )
        Team.objects.filter(pk=child.pk).update(lineage=[*world.team("vision").lineage, child.pk])
        child.refresh_from_db()
        Quota.objects.create(team=child, ceiling_milli=1000)
        add_member(
            team=world.team("vision"), user=make_user(f"guest{n}"), role=Role.RESEARCHER, now=world.now
        )
    for _ in range(3):
        world.active("bob")
        world.submit("bob")

    for path, count in counts.items():
        assert _queries(client, path) <= count
        assert count <= 40


def _queries(client: object, path: str) -> int:
    with CaptureQueriesContext(connection) as seen:
        assert client.get(path).status_code == 200  # type: ignore[attr-defined]
    return len(seen)
