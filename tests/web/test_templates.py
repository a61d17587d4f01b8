"""Templates of a team, asking again and the link to a form: fields filled by one click."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.audit.models import AuditEntry
from portal.catalog.models import Flavor
from portal.leases import templates
from portal.leases.models import LeaseRequest, RequestTemplate
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
PAGE, NEW = "/teams/vision/templates/", "/requests/new/"
NOTEBOOK = {
    "name": "PyTorch notebook on 10 GB", "opens": "notebook", "flavor": "h100-1g-10gb", "count": "1",
    "duration": "6 h", "is_preemptible": "on",
}  # fmt: skip


def fields_of(page: str, name: str) -> str:
    """Return where the link of a name leads."""
    found = re.search(rf'<a class="chip" href="([^"]+)"[^>]*>{re.escape(name)}</a>', page)
    assert found is not None
    return unescape(found[1])


def test_an_admin_names_what_members_start_from_by_one_click(world: World, signed_in: SignedIn) -> None:
    alice = signed_in("alice")

    assert alice.post(PAGE, NOTEBOOK).status_code == 302
    assert alice.post(PAGE, {**NOTEBOOK, "duration": "4 h"}).status_code == 302  # of the same name: replaced

    row = RequestTemplate.objects.get()
    assert (row.opens, row.duration_s, row.is_preemptible) == ("notebook", 4 * 3600, True)
    assert AuditEntry.objects.filter(action="template.saved", target=row.uid).count() == 2
    form = alice.get(fields_of(alice.get(NEW).text, row.name)).text
    assert 'value="4 h"' in form
    assert re.search(r'value="h100-1g-10gb"[^>]* checked', form)
    assert re.search(r'name="is_preemptible"[^>]* checked', form)


def test_only_an_admin_keeps_them_and_others_do_not_know_them(world: World, signed_in: SignedIn) -> None:
    signed_in("alice").post(PAGE, NOTEBOOK)
    row = RequestTemplate.objects.get()
    perception = RequestTemplate.objects.create(
        team=world.teams["perception"], name="own", flavor=row.flavor, duration_s=60, author=row.author,
        created_at=world.now,
    )  # fmt: skip
    bob, charlie = signed_in("bob"), signed_in("charlie")

    own = bob.get("/teams/perception/templates/")

    assert "own" in own.text
    assert "Save a template" not in own.text
    assert bob.post("/teams/perception/templates/", NOTEBOOK).status_code == 403
    assert bob.post(f"/teams/perception/templates/{perception.uid}/remove/").status_code == 302
    assert charlie.get(PAGE).status_code == 404
    assert charlie.post(f"{PAGE}{row.uid}/remove/").status_code == 404
    assert row.name not in charlie.get(NEW).text
    assert RequestTemplate.objects.count() == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": " "}, "This field is required."),
        ({"flavor": "none"}, "Select a valid choice"),
        ({"duration": "900 d"}, "This flavor runs for"),
        ({"count": "1000"}, "Ask for 1 to"),
        ({"opens": "game"}, "Select a valid choice"),
    ],
)
def test_what_could_not_be_asked_for_is_no_template(
    world: World, signed_in: SignedIn, change: dict[str, str], said: str
) -> None:
    answer = signed_in("alice").post(PAGE, {**NOTEBOOK, **change})

    assert answer.status_code == 422
    assert said in answer.text
    assert not RequestTemplate.objects.exists()


def test_a_team_has_so_many_and_no_two_of_a_name(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MOST_TEMPLATES", 1)
    alice = signed_in("alice")
    alice.post(PAGE, NOTEBOOK)

    answer = alice.post(PAGE, {**NOTEBOOK, "name": "another"})

    assert answer.status_code == 422
    assert "the most it may have" in answer.text
    row = RequestTemplate.objects.get()
    row.pk, row.uid = None, "tpl-0000000000000000"
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_a_flavor_that_is_not_on_offer_any_more_cannot_be_started_from(
    world: World, signed_in: SignedIn
) -> None:
    alice = signed_in("alice")
    alice.post(PAGE, NOTEBOOK)
    Flavor.objects.filter(slug="h100-1g-10gb").update(is_active=False)

    assert "not on offer now" in alice.get(PAGE).text
    assert NOTEBOOK["name"] not in alice.get(NEW).text


def test_asking_again_and_the_link_fill_the_form_with_all_that_was_chosen(
    world: World, signed_in: SignedIn
) -> None:
    bob = signed_in("bob")
    asked = {
        "team": "perception", "flavor": "h100", "count": "2", "duration": "90 min", "opens": "device",
        "name": "run 7", "least": "30 min", "priority": "low",
    }  # fmt: skip
    bob.post(NEW, asked)
    request = LeaseRequest.objects.get()
    link = re.search(
        r'data-copy="http://testserver(/requests/new/[^"]+)"', bob.get("/requests/quote/", asked).text
    )
    assert link is not None

    again = fields_of(bob.get(NEW).text, "The last one again")

    assert again == unescape(link[1])
    assert unescape(again) in unescape(bob.get(f"/requests/{request.uid}/").text)
    sent = {name: str(value) for name, value in bob.get(again).context["form"].initial.items()}
    assert {name: sent[name] for name in asked} == asked


def test_the_form_asks_the_database_as_often_with_many_templates(
    world: World, signed_in: SignedIn, django_assert_num_queries: Any, django_assert_max_num_queries: Any
) -> None:
    alice = signed_in("alice")
    alice.post(PAGE, NOTEBOOK)
    with django_assert_max_num_queries(100) as one:
        alice.get(NEW)
    count = len(one)
    for number in range(4):
        alice.post(PAGE, {**NOTEBOOK, "name": f"n{number}"})

    with django_assert_num_queries(count):
        assert alice.get(NEW).text.count('class="chip" href=') == 5
