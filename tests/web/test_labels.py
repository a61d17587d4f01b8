"""Projects and tags on pages: made, chosen, changed and shown, each by those who should."""

from __future__ import annotations

from datetime import timedelta

from portal.leases.models import LeaseRequest
from portal.teams.models import Project, Team
from tests.portal.builders import World
from tests.web.conftest import SignedIn

GIVEN = {
    "code": "EU-4711",
    "name": "Segmentation",
    "team": "vision",
    "cost_centre": "CC-9",
    "tags": "grant=horizon",
}


def test_an_admin_makes_a_project_and_a_member_files_a_request_under_it(
    world: World, signed_in: SignedIn
) -> None:
    alice, bob, charlie = signed_in("alice"), signed_in("bob"), signed_in("charlie")
    assert bob.post("/finance/projects/", GIVEN).status_code == 403
    for wrong in ({"code": "a b"}, {"tags": "x"}, {"team": "language"}):
        assert alice.post("/finance/projects/", GIVEN | wrong).status_code == 422
    assert alice.post("/finance/projects/", GIVEN).status_code == 302
    assert "EU-4711 · Segmentation" in bob.get("/requests/new/").text

    ask = {
        "team": "perception",
        "flavor": "h100-1g-10gb",
        "count": "1",
        "duration": "1 h",
        "project": "EU-4711",
    }
    refused = bob.post("/requests/new/", ask | {"tags": "Paper=x"})
    assert refused.status_code == 422
    assert "cannot be the name of a tag" in refused.text
    assert bob.post("/requests/new/", ask | {"tags": "paper=iclr"}).status_code == 302
    asked = LeaseRequest.objects.get()
    text = bob.get(f"/requests/{asked.uid}/").text
    assert "EU-4711" in text
    assert "iclr" in text
    assert "horizon" in text
    assert "CC-9" in text

    page = f"/requests/{asked.uid}/labels/"
    assert "cost_centre" not in bob.get(page).text
    assert 'name="cost_centre"' in alice.get(page).text
    assert charlie.get(page).status_code == 404
    assert bob.post(page, {"project": "", "tags": "paper=cvpr"}).status_code == 302
    text = bob.get(f"/requests/{asked.uid}/").text
    assert "EU-4711" not in text
    assert "cvpr" in text


def test_a_project_is_ended_and_a_team_tagged(world: World, signed_in: SignedIn) -> None:
    alice, bob, finance = signed_in("alice"), signed_in("bob"), signed_in("finance")
    alice.post("/finance/projects/", GIVEN)
    change = {"name": "Other", "cost_centre": "", "tags": "", "is_ended": "on"}
    assert bob.post("/finance/projects/EU-4711/", change).status_code == 403
    assert bob.get("/finance/projects/no-such/").status_code == 404
    assert finance.post("/finance/projects/EU-4711/", change).status_code == 302
    assert Project.objects.get().is_ended

    page, given = "/teams/perception/labels/", {"cost_centre": "CC-2", "tags": "site=berlin"}
    assert bob.post(page, given).status_code == 403
    assert finance.post(page, given | {"tags": "site"}).status_code == 422
    assert finance.post(page, given).status_code == 302
    assert Team.objects.get(slug="perception").tags == {"site": "berlin"}


def test_the_report_is_chosen_by_project_and_by_tag(world: World, signed_in: SignedIn) -> None:
    world.active("bob", at=world.now - timedelta(minutes=5), tags={"paper": "iclr"})
    finance = signed_in("finance")
    signed_in("finance").post("/teams/perception/labels/", {"cost_centre": "", "tags": "site=berlin"})

    text = finance.get("/reports/?by=tag:site").text
    assert "Tag site" in text
    assert "berlin" in text
    assert "No project" in finance.get("/reports/?by=project").text
    assert finance.get("/reports/?by=tag:No such").status_code == 200
