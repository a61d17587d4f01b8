from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.quotas.cohorts import create_cohort
from portal.quotas.grants import give_priority
from portal.quotas.models import Cohort, PriorityGrant, Quota
from portal.web.teams.priority import PriorityForm
from tests.portal.builders import World
from tests.web.conftest import SignedIn

HOME = "/operations/cohorts/"


@pytest.fixture
def cohort(world: World) -> Cohort:
    """vision and language share a cohort; vision borrows two devices."""
    made = create_cohort(
        actor=world.user("operator"), rights=world.rights("operator"), name="deep pool", now=world.now
    )
    Quota.objects.filter(team__slug__in=["vision", "language"]).update(cohort=made)
    Quota.objects.filter(team__slug="vision").update(guaranteed_milli=1000, used_milli=3000)
    Quota.objects.filter(team__slug="language").update(guaranteed_milli=6000, lending_milli=2500)
    return made


@pytest.mark.parametrize("who", ["alice", "bob", "charlie", "finance"])
def test_nobody_but_operators_works_on_cohorts(cohort: Cohort, signed_in: SignedIn, who: str) -> None:
    client = signed_in(who)

    assert client.get(HOME).status_code == 403
    assert client.post(HOME, {"name": "mine"}).status_code == 403
    for key in (cohort.pk, 999_999):
        assert client.post(f"{HOME}{key}/rename/", {"name": "mine"}).status_code == 403
        assert client.post(f"{HOME}{key}/remove/").status_code == 403
    assert list(Cohort.objects.values_list("name", flat=True)) == ["deep pool"]


def test_a_cohort_shows_who_borrows_and_what_could_be_lent(cohort: Cohort, signed_in: SignedIn) -> None:
    text = signed_in("operator").get(HOME).text

    assert "deep pool" in text
    assert "2 devices are borrowed, 2.5 idle ones could be lent" in text
    assert "/teams/vision/" in text
    assert 'data-label="Borrows">2<' in text


def test_a_cohort_is_made_renamed_and_removed(world: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")

    assert "No cohorts yet" in client.get(HOME).text
    client.post(HOME, {"name": "one"})
    key = Cohort.objects.get(name="one").pk
    client.post(f"{HOME}{key}/rename/", {"name": "two"})
    assert Cohort.objects.get(pk=key).name == "two"
    client.post(f"{HOME}{key}/remove/")
    assert not Cohort.objects.exists()
    assert client.post(f"{HOME}{key}/remove/").status_code == 404


def test_a_cohort_with_teams_stays_and_bad_names_are_refused(cohort: Cohort, signed_in: SignedIn) -> None:
    client = signed_in("operator")

    kept = client.post(f"{HOME}{cohort.pk}/remove/", follow=True)
    taken = client.post(HOME, {"name": "deep pool"})
    empty = client.post(HOME, {"name": " "})
    renamed = client.post(f"{HOME}{cohort.pk}/rename/", {"name": "x" * 81}, follow=True)

    assert "Take them out first" in kept.text
    assert (taken.status_code, empty.status_code) == (422, 422)
    assert "There is a cohort of this name already" in taken.text
    assert "Give it a name" in renamed.text
    assert list(Cohort.objects.values_list("name", flat=True)) == ["deep pool"]


def test_more_guaranteed_than_there_is_is_said(world: World, signed_in: SignedIn) -> None:
    Quota.objects.filter(team__slug="language").update(ceiling_milli=None, guaranteed_milli=99_000)

    assert "More is guaranteed than there is" in signed_in("operator").get(HOME).text
    assert "More is guaranteed than there is" in signed_in("operator").get("/teams/perception/quota/").text


def test_the_quota_page_sets_lending_and_cohort(cohort: Cohort, signed_in: SignedIn) -> None:
    client = signed_in("operator")
    row = Quota.objects.get(team__slug="robotics")
    sent = {"guaranteed": "2", "ceiling": "4", "lending": "1.5", "cohort": cohort.pk, "version": row.version}

    assert client.post("/teams/robotics/quota/", sent).status_code == 302

    row.refresh_from_db()
    assert (row.guaranteed_milli, row.lending_milli, row.cohort_id) == (2000, 1500, cohort.pk)
    text = client.get("/teams/robotics/quota/").text
    assert "deep pool" in text
    assert 'value="1.5"' in text
    assert "In the cohort deep pool" in client.get("/teams/robotics/").text


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"lending": "9"}, "lends at most what it is guaranteed"),
        ({"lending": "-1"}, "greater than or equal to 0"),
        ({"cohort": "999999"}, "Select a valid choice"),
        ({"cohort": "x"}, "Select a valid choice"),
    ],
)
def test_bad_lending_and_strange_cohorts_are_refused_at_the_field(
    cohort: Cohort, signed_in: SignedIn, more: dict[str, str], sentence: str
) -> None:
    before = Quota.objects.filter(team__slug="robotics").values().get()
    sent = {"guaranteed": "1", "ceiling": "4", "version": before["version"], **more}

    answer = signed_in("operator").post("/teams/robotics/quota/", sent)

    assert answer.status_code == 422
    assert sentence in answer.text
    assert Quota.objects.filter(team__slug="robotics").values().get() == before


def test_teams_out_of_sight_are_counted_but_not_named(cohort: Cohort, signed_in: SignedIn) -> None:
    Quota.objects.filter(team__slug="vision").update(cohort=None)
    Quota.objects.filter(team__slug="perception").update(cohort=cohort)

    text = signed_in("alice").get("/teams/perception/quota/").text

    assert "deep pool" in text
    assert "and one team out of your sight" in text
    assert "/teams/language/" not in text


def priority(world: World) -> dict[str, str]:
    return {
        "steps": "5",
        "starts_at": f"{world.now:%Y-%m-%dT%H:%M}",
        "ends_at": f"{world.now + timedelta(days=2):%Y-%m-%dT%H:%M}",
        "reason": "paper deadline",
    }


def test_an_admin_above_lets_a_team_go_first_and_ends_it(world: World, signed_in: SignedIn) -> None:
    alice = signed_in("alice")

    assert alice.post("/teams/perception/priority/", priority(world)).status_code == 302
    grant = PriorityGrant.objects.get()
    text = signed_in("bob").get("/teams/perception/").text
    assert "paper deadline" in text
    assert "Active" in text
    assert "/priority/" not in text, "bob sees it but cannot change it"
    assert alice.post(f"/teams/perception/priority/{grant.pk}/revoke/").status_code == 302
    assert "Revoked" in alice.get("/teams/perception/").text


@pytest.mark.parametrize(
    ("who", "slug", "status"),
    [
        ("alice", "vision", 403),
        ("bob", "perception", 403),
        ("charlie", "perception", 404),
        ("alice", "speech", 404),
    ],
)
def test_nobody_else_gives_or_ends_priority(
    world: World, signed_in: SignedIn, who: str, slug: str, status: int
) -> None:
    grant = give_priority(
        team=world.team(slug), actor=world.user("operator"), rights=world.rights("operator"), steps=1,
        starts_at=world.now, ends_at=world.now + timedelta(days=1), reason="test", now=world.now,
    )  # fmt: skip
    client = signed_in(who)

    assert client.post(f"/teams/{slug}/priority/", priority(world)).status_code == status
    assert client.post(f"/teams/{slug}/priority/{grant.pk}/revoke/").status_code == status
    assert PriorityGrant.objects.filter(revoked_at=None).count() == 1


def test_a_grant_of_a_strange_team_is_a_missing_one(world: World, signed_in: SignedIn) -> None:
    grant = give_priority(
        team=world.team("speech"), actor=world.user("operator"), rights=world.rights("operator"), steps=1,
        starts_at=world.now, ends_at=world.now + timedelta(days=1), reason="test", now=world.now,
    )  # fmt: skip

    assert signed_in("alice").post(f"/teams/perception/priority/{grant.pk}/revoke/").status_code == 404


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"steps": "0"}, "greater than or equal to 1"),
        ({"steps": "x"}, "whole number"),
        ({"reason": ""}, "required"),
        ({"ends_at": "2020-01-01T00:00"}, "must end after it starts"),
        ({"ends_at": "soon"}, "valid date"),
        ({"starts_at": "0001-01-01T00:00"}, "At most a year"),
    ],
)
def test_priority_that_makes_no_sense_is_refused_at_the_field(
    world: World, signed_in: SignedIn, more: dict[str, str], sentence: str
) -> None:
    answer = signed_in("operator").post("/teams/vision/priority/", priority(world) | more)

    assert answer.status_code == 422
    assert sentence in answer.text
    assert not PriorityGrant.objects.exists()


def test_cohorts_take_a_fixed_number_of_queries(cohort: Cohort, world: World, signed_in: SignedIn) -> None:
    client = signed_in("operator")

    def queries() -> int:
        with CaptureQueriesContext(connection) as seen:
            assert client.get(HOME).status_code == 200
        return len(seen)

    before = queries()
    for n in range(4):
        made = create_cohort(
            actor=world.user("operator"), rights=world.rights("operator"), name=f"more {n}", now=world.now
        )
        Quota.objects.filter(team__slug=("perception", "segmentation", "speech", "robotics")[n]).update(
            cohort=made
        )

    assert queries() <= before <= 20


def test_the_form_for_priority_begins_in_the_zone_of_its_reader(world: World) -> None:
    with timezone.override("Asia/Shanghai"):
        form = PriorityForm.fresh(datetime(2026, 3, 1, 9, 20, tzinfo=UTC))

        assert 'value="2026-03-01T18:00"' in str(form["starts_at"])
        assert 'value="2026-03-08T18:00"' in str(form["ends_at"])
