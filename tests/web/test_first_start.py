"""The pages that set up an installation: who may, what is refused, and that nothing needs the demo."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.audit.models import AuditEntry
from portal.catalog.first_start import progress, set_up, setup_code
from portal.catalog.models import Flavor, Rate, RateCard
from portal.catalog.standard import make_standard_flavors
from portal.fleet.models import DeviceModel
from portal.policies.selectors import active_policy
from portal.teams.models import Membership, Role, Team
from tests.portal.builders import World, make_node
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
PASSWORD = "a quiet harbour at night"
FIRST = {
    "organisation": "Harbour Institute", "currency": "cny", "username": "alice", "display_name": "",
    "password": PASSWORD, "again": PASSWORD,
}  # fmt: skip


def first(**more: str) -> dict[str, str]:
    return FIRST | {"code": setup_code()} | more


def test_the_first_administrator_is_made_by_the_page_and_signed_in() -> None:
    browser = Client()

    assert "Set it up" in browser.get("/sign-in/").text
    made = browser.post("/setup/", first(code=setup_code().lower().replace("-", " ")))

    assert made.headers["Location"] == "/setup/"
    assert "Make a team" in browser.get("/setup/").text
    assert set(Membership.objects.values_list("role", flat=True)) == set(Role.values)
    assert RateCard.objects.get().currency == "CNY"
    assert active_policy().order == "default"
    assert AuditEntry.objects.filter(action="organisation.made").exists()
    assert "Set up Berth" in browser.get("/").text


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"code": "AAAA-BBBB"}, "code"),
        ({"organisation": "  "}, "organisation"),
        ({"currency": "EURO"}, "currency"),
        ({"currency": "1€x"}, "currency"),
        ({"username": "a b"}, "username"),
        ({"password": "short", "again": "short"}, "password"),
        ({"again": "another one entirely"}, "again"),
    ],
)
def test_what_does_not_fit_makes_nothing_and_is_named(more: dict[str, str], field: str) -> None:
    answer = Client().post("/setup/", first(**more))

    assert answer.status_code == 422
    assert answer.context["form"].errors[field]
    assert (Team.objects.count(), User.objects.count(), RateCard.objects.count()) == (0, 0, 0)


def test_setting_up_works_once(world: World) -> None:
    stranger = Client()

    assert stranger.get("/setup/").headers["Location"] == "/sign-in/?next=/setup/"
    assert stranger.post("/setup/", first()).status_code == 302
    assert Team.objects.filter(parent=None).count() == 1
    assert "Set it up" not in stranger.get("/sign-in/").text


def test_only_those_who_run_the_organisation_see_what_is_left(world: World, signed_in: SignedIn) -> None:
    assert signed_in("operator").get("/setup/").status_code == 200
    assert signed_in("bob").get("/setup/").status_code == 403
    assert signed_in("charlie").get("/setup/").status_code == 403


def test_the_first_price_needs_no_rate_card_and_may_begin_now() -> None:
    set_up(code=None, organisation="Harbour", currency="EUR", username="alice", display_name="",
           password=PASSWORD, now=timezone.now())  # fmt: skip
    RateCard.objects.all().delete()
    make_node("gpu-01", "h100-80gb", 1, ("exclusive",), now=timezone.now())
    alice = Client()
    alice.force_login(User.objects.get())

    page = alice.get("/finance/prices/")
    usual = page.context["form"].initial
    done = alice.post(
        "/finance/prices/",
        {
            "model": usual["model"],
            "price": "12.50",
            "starts_at": usual["starts_at"].strftime("%Y-%m-%dT%H:%M"),
        },
    )

    assert done.status_code == 302
    assert Rate.objects.get().valid.lower <= timezone.now()
    assert RateCard.objects.get().currency == "EUR"


def test_the_currency_stays_once_there_is_a_price(world: World, signed_in: SignedIn) -> None:
    finance = signed_in("finance")

    refused = finance.post("/finance/currency/", {"currency": "USD"}, follow=True)

    assert "already" in refused.text
    assert RateCard.objects.get(is_default=True).currency == "EUR"
    assert signed_in("bob").post("/finance/currency/", {"currency": "CHF"}).status_code == 403


def test_the_currency_changes_while_there_is_no_price() -> None:
    browser = Client()
    browser.post("/setup/", first())

    browser.post("/finance/currency/", {"currency": "usd"})
    browser.post("/finance/currency/", {"currency": "x"})

    assert RateCard.objects.get(is_default=True).currency == "USD"


def test_teams_are_made_below_by_those_who_run_what_is_above(world: World, signed_in: SignedIn) -> None:
    alice = signed_in("alice")

    made = alice.post("/teams/vision/new/", {"name": "Robots & arms", "slug": "", "cost_centre": "C-9"})

    team = Team.objects.get(name="Robots & arms")
    assert made.headers["Location"] == "/teams/robots-arms/"
    assert team.lineage == [*world.team("vision").lineage, team.pk]
    again = alice.post("/teams/vision/new/", {"name": "Robots & arms"})
    assert set(again.context["form"].errors) == {"name", "slug"}
    assert set(alice.post("/teams/vision/new/", {"name": "观察"}).context["form"].errors) == {"slug"}
    assert signed_in("bob").get("/teams/vision/new/").status_code in (403, 404)
    assert signed_in("charlie").get("/teams/vision/new/").status_code == 404
    assert signed_in("charlie").post("/teams/vision/new/", {"name": "mine"}).status_code == 404


def test_the_threshold_is_set_by_an_admin_above_and_never_by_the_teams_own(
    world: World, signed_in: SignedIn
) -> None:
    alice = signed_in("alice")  # runs vision; perception lies below it
    form = {"name": "Perception", "cost_centre": "", "approval_above": "1.5"}

    assert alice.post("/teams/perception/settings/", form).status_code == 302
    world.team("perception").refresh_from_db()
    assert world.team("perception").approval_above_gpu_seconds == 5400
    assert world.submit("bob", "h100", duration_s=7200).state == "awaiting_approval"

    assert alice.post("/teams/vision/settings/", form).status_code == 403
    assert signed_in("charlie").get("/teams/perception/settings/").status_code == 404
    assert alice.post("/teams/perception/settings/", form | {"approval_above": "-1"}).status_code == 422
    assert alice.post("/teams/perception/settings/", form | {"approval_above": ""}).status_code == 302
    world.team("perception").refresh_from_db()
    assert world.team("perception").approval_above_gpu_seconds is None


def test_somebody_new_chooses_a_password_with_a_link_that_works_once(
    world: World, signed_in: SignedIn
) -> None:
    made = signed_in("alice").post(
        "/teams/perception/people/new/", {"username": "dora", "display_name": "Dora", "role": "researcher"}
    )
    path = re.search(r"/join/[\w/-]+", made.text)[0]  # type: ignore[index]
    dora = Client()

    assert "no-store" in made.headers["Cache-Control"]
    assert dora.post("/sign-in/", {"username": "dora", "password": ""}).status_code == 422
    assert dora.get(path).status_code == 200
    assert dora.post(path, {"password": "dora", "again": "dora"}).status_code == 422
    assert dora.post(path, {"password": PASSWORD, "again": PASSWORD}).headers["Location"] == "/sign-in/"
    assert dora.post("/sign-in/", {"username": "dora", "password": PASSWORD}).status_code == 302

    stranger = Client()
    assert stranger.get(path).status_code == 404
    assert stranger.post(path, {"password": "x" * 12, "again": "x" * 12}).status_code == 404
    assert stranger.get(path[:-3] + "zz/").status_code == 404
    assert stranger.get("/join/AAAA/x-y/").status_code == 404
    assert User.objects.get(username="dora").check_password(PASSWORD)


def test_a_name_that_somebody_has_is_refused_and_roles_above_ones_own_too(
    world: World, signed_in: SignedIn
) -> None:
    alice = signed_in("alice")
    before = User.objects.count()

    taken = alice.post("/teams/vision/people/new/", {"username": "BOB", "role": "researcher"})
    above = alice.post("/teams/vision/people/new/", {"username": "eve", "role": "operator"})

    assert (taken.status_code, above.status_code) == (422, 422)
    assert signed_in("charlie").post("/teams/vision/people/new/", {"username": "eve"}).status_code == 404
    assert User.objects.count() == before


def test_a_new_link_is_made_by_operators_alone(world: World, signed_in: SignedIn) -> None:
    bob = {"username": "bob"}
    browser = signed_in("bob")

    assert signed_in("alice").post("/teams/vision/people/link/", bob).status_code == 403
    made = signed_in("operator").post("/teams/vision/people/link/", bob)
    path = re.search(r"/join/[\w/-]+", made.text)[0]  # type: ignore[index]
    assert signed_in("operator").post("/teams/vision/people/link/", {"username": "nobody"}).status_code == 404

    assert browser.post(path, {"password": PASSWORD, "again": PASSWORD}).status_code == 302
    assert browser.get("/leases/").status_code == 302, "the sessions there were end with it"
    User.objects.filter(username="bob").update(is_active=False)
    assert signed_in("operator").post("/teams/vision/people/link/", bob).status_code == 404


def test_operators_offer_flavors_of_every_sharing_mode(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    form = {"model": "h100-80gb", "mode": "timeslice", "share_gib": "20", "share_percent": "30",
            "name": "H100 time slice", "slug": "h100-slice", "max_count": "2", "max_hours": "12",
            "preemptible_percent": "50"}  # fmt: skip

    assert operator.post("/operations/flavors/", form).status_code == 302

    made = Flavor.objects.get(slug="h100-slice")
    assert (made.share_milli, made.memory_mib, made.max_count) == (300, 20 * 1024, 2)
    assert (made.max_duration_s, made.preemptible_milli) == (12 * 3600, 500)
    for wrong in (
        {"slug": "h100-slice"}, {"slug": "UP"}, {"slug": "b", "share_gib": "9999"}, {"slug": "b", "mode": "mig"},
        {"slug": "b", "mode": "exclusive"}, {"slug": "b", "profile": "1g.10gb"}, {"slug": "b", "mode": "none"},
        {"slug": "b", "share_gib": "NaN"}, {"slug": "b", "max_hours": "0"}, {"slug": "b", "model": "none"},
    ):  # fmt: skip
        assert operator.post("/operations/flavors/", form | wrong).status_code == 422, wrong
    assert signed_in("bob").get("/operations/flavors/").status_code == 403
    assert signed_in("alice").post("/operations/flavors/", form | {"slug": "c"}).status_code == 403


def test_standard_flavors_and_changed_terms_need_no_shell(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")

    assert operator.post("/operations/models/h100-80gb/flavors/").status_code == 302
    assert operator.post("/operations/models/nothing/flavors/").status_code == 404
    assert Flavor.objects.filter(slug="h100-80gb-3g-40gb").exists()
    terms = {"name": "Slice 40", "name_zh": "切片 40", "max_count": "1", "max_hours": "2.5", "cpu_cores": "4",
             "memory_gib": "32", "preemptible_percent": "100"}  # fmt: skip
    assert operator.post("/operations/flavors/h100-80gb-3g-40gb/", terms).status_code == 302

    found = Flavor.objects.get(slug="h100-80gb-3g-40gb")
    assert (found.name, found.name_zh, found.max_duration_s) == ("Slice 40", "切片 40", 9000)
    assert (found.cpu_milli, found.host_memory_mib, found.is_active) == (4000, 32 * 1024, False)
    assert operator.get("/operations/flavors/none/").status_code == 404
    assert signed_in("bob").post("/operations/flavors/h100/", terms).status_code == 403


def test_progress_says_what_is_missing(world: World, django_assert_num_queries: object) -> None:
    assert progress().is_ready
    assert progress().has_people
    Flavor.objects.update(is_active=False)
    assert (progress().has_flavors, progress().has_prices, progress().is_ready) == (False, False, False)
    Flavor.objects.update(is_active=True)
    make_node("gpu-99", "a100-80gb", 1, ("exclusive",), now=world.now)
    make_standard_flavors(DeviceModel.objects.get(slug="a100-80gb"))
    assert not progress().has_prices
    with django_assert_num_queries(1):  # type: ignore[operator]
        progress()


def test_a_link_ends(world: World, signed_in: SignedIn, settings: object) -> None:
    made = signed_in("operator").post("/teams/vision/people/link/", {"username": "bob"})
    path = re.search(r"/join/[\w/-]+", made.text)[0]  # type: ignore[index]

    settings.PASSWORD_RESET_TIMEOUT = -1  # type: ignore[attr-defined]

    assert Client().get(path).status_code == 404
    assert made.context["expires_at"] - timezone.now() > timedelta(days=2)
