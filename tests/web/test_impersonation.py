"""See as: an operator sees what a person sees, reads only, without secrets, for half an hour, with both names kept."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import get_resolver, reverse
from django.utils import timezone

from portal.accounts.models import Impersonation
from portal.audit.models import AuditEntry
from portal.billing.periods import period_of
from portal.common.errors import Forbidden
from portal.leases.models import LeaseRequest
from portal.notifications.impersonations import begin_impersonation, end_overdue
from portal.teams.models import Role
from portal.teams.services import add_member
from portal.telemetry import viewers
from portal.web.impersonation import SHOWN
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def as_bob(world: World, signed_in: SignedIn) -> Client:
    """The operator's browser, which sees the portal as bob."""
    operator = signed_in("operator")
    answer = operator.post("/operations/see-as/", {"username": "bob", "reason": "his queue looks wrong"})
    assert answer.status_code == 302
    return operator


def test_an_operator_sees_what_bob_sees_under_a_banner_and_leaves(world: World, as_bob: Client) -> None:
    request = world.submit("bob")
    LeaseRequest.objects.update(name="training of bob")

    page = as_bob.get("/requests/").text
    assert "training of bob" in page
    assert "Operator, you see the portal as Bob" in page
    assert 'href="/operations/nodes/"' not in page
    assert "data-live=" not in page
    left = as_bob.post("/operations/see-as/end/", follow=True).text
    assert "You see the portal as yourself again." in left
    assert "you see the portal as Bob" not in left
    assert "Operator as Bob" in left
    assert as_bob.get(f"/requests/{request.uid}/").status_code == 200
    begun, ended = AuditEntry.objects.filter(action__startswith="impersonation").order_by("id")
    assert [begun.actor, begun.target, ended.actor, ended.target] == [world.user("operator"), "bob"] * 2
    assert begun.detail["reason"] == "his queue looks wrong"


def test_bob_is_told_afterwards_once(world: World, as_bob: Client, signed_in: SignedIn) -> None:
    assert "saw the portal as you" not in signed_in("bob").get("/notifications/").text

    as_bob.post("/operations/see-as/end/")
    assert end_overdue(now=timezone.now() + timedelta(hours=1)) == 0

    text = signed_in("bob").get("/notifications/").text
    assert text.count("saw the portal as you") == 1
    assert "his queue looks wrong" in text


@pytest.mark.parametrize("who", ["alice", "finance", "charlie"])
def test_nobody_but_operators_see_as_somebody(world: World, signed_in: SignedIn, who: str) -> None:
    browser = signed_in(who)

    assert browser.get("/operations/see-as/").status_code == 403
    assert browser.post("/operations/see-as/", {"username": "bob", "reason": "x"}).status_code == 403
    with pytest.raises(Forbidden):
        begin_impersonation(rights=world.rights(who), username="bob", reason="x", now=world.now)
    assert not Impersonation.objects.exists()


@pytest.mark.parametrize("whom", ["operator", "finance", "second", "nobody-here", "gone"])
def test_never_as_an_operator_or_somebody_with_more_rights(
    world: World, signed_in: SignedIn, whom: str
) -> None:
    add_member(team=world.team("language"), user=world.user("charlie"), role=Role.OPERATOR, now=world.now)
    world.user("bob").is_active = False
    world.user("bob").save()
    name = {"second": "charlie", "gone": "bob"}.get(whom, whom)

    page = signed_in("operator").post("/operations/see-as/", {"username": name, "reason": "x"})

    assert page.status_code == 422
    assert not Impersonation.objects.exists()


def test_no_post_of_any_kind_goes_through(world: World, as_bob: Client) -> None:
    request = world.submit("bob")

    for path in (
        f"/requests/{request.uid}/withdraw/", "/sign-out/", "/notifications/read/", "/language/", "/tokens/",
        "/operations/see-as/", "/api/v1/requests/",
    ):  # fmt: skip
        assert as_bob.post(path).status_code == 403, path
        assert as_bob.put(path).status_code == 403, path
        assert as_bob.delete(path).status_code == 403, path

    assert LeaseRequest.objects.get().state == "queued"


def test_secrets_the_api_and_the_operators_own_pages_are_not_shown(world: World, as_bob: Client) -> None:
    lease = world.active("bob", at=timezone.now())
    for path in (
        "/tokens/", "/ssh-keys/", "/sessions/", "/second-factor/", "/contact-points/", "/password/", "/profile/",
        f"/leases/{lease.uid}/terminal/", f"/leases/{lease.uid}/watch/", f"/leases/{lease.uid}/apps/jupyterlab/",
        f"/leases/{lease.uid}/processes/", "/operations/audit/", "/calendar/mine.ics", "/device/", "/no-such-page/",
        "/api/v1/me/", "/api/v1/requests/", f"/api/v1/leases/{lease.uid}/access/",
    ):  # fmt: skip
        assert as_bob.get(path).status_code == 403, path


def test_the_lease_is_shown_without_the_way_in(world: World, as_bob: Client, signed_in: SignedIn) -> None:
    lease = world.active("bob", at=timezone.now())

    own, seen = signed_in("bob").get(f"/leases/{lease.uid}/").text, as_bob.get(f"/leases/{lease.uid}/").text

    assert "CUDA_VISIBLE_DEVICES" in own
    assert "CUDA_VISIBLE_DEVICES" not in seen
    assert lease.uid in seen


def test_every_page_that_is_shown_can_be_read(world: World, as_bob: Client) -> None:
    """In a transaction that reads only: a page that writes something as it is shown would be refused."""
    known = {
        f"web:{name}"
        for name in get_resolver().namespace_dict["web"][1].reverse_dict
        if isinstance(name, str)
    }
    add_member(team=world.team("perception"), user=world.user("bob"), role=Role.ADMIN, now=world.now)
    request, lease = world.submit("bob"), world.active("bob", at=timezone.now())
    period_of(timezone.now())  # metering opens it in the first minute of a month
    given = {
        "node": ["gpu-01"], "request": [request.uid], "lease": [lease.uid], "invoice": ["perception", "2026-01"],
        **{name: ["perception"] for name in (
            "team", "team_settings", "team_templates", "team_images", "team_quota", "team_budget", "team_wallet",
            "team_labels",
        )},
    }  # fmt: skip
    of_objects = {"job", "reservation", "workshop", "project", "invoice_line"}

    for view in sorted(name for name in SHOWN if name.startswith("web:")):
        assert view in known, view
        name = view.partition(":")[2]
        if name not in of_objects:
            answer = as_bob.get(reverse(view, args=given.get(name, [])))
            assert answer.status_code in (200, 302, 403, 404), view
            assert "You only look: nothing" not in answer.text, view


def test_the_database_refuses_what_a_page_would_write(
    as_bob: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(_rights: object) -> int:
        LeaseRequest.objects.update(name="written")
        return 0

    monkeypatch.setattr("portal.web.context.decisions_waiting", writes)
    monkeypatch.setattr("portal.teams.selectors.Rights.may_decide", True)

    answer = as_bob.get("/requests/")

    assert answer.status_code == 403


def test_after_half_an_hour_it_is_over_and_what_was_asked_is_not_done(world: World, as_bob: Client) -> None:
    request = world.submit("bob")
    past = timedelta(minutes=31)
    Impersonation.objects.update(
        began_at=timezone.now() - past, ends_at=timezone.now() - timedelta(minutes=2)
    )

    answer = as_bob.post(f"/requests/{request.uid}/withdraw/")

    assert answer.url == "/operations/see-as/"
    assert LeaseRequest.objects.get().state == "queued"
    assert Impersonation.objects.get().ended_at is not None
    assert world.user("bob").notifications.filter(kind="account.seen_as").exists()
    assert as_bob.get("/operations/see-as/").status_code == 200


def test_left_alone_it_is_ended_and_told_by_the_clock(world: World, as_bob: Client) -> None:
    later = timezone.now() + timedelta(minutes=31)

    assert [end_overdue(now=later), end_overdue(now=later)] == [1, 0]

    assert world.user("bob").notifications.filter(kind="account.seen_as").count() == 1
    assert as_bob.get("/requests/").url == "/operations/see-as/"


@pytest.mark.parametrize("lost", ["operator", "person"])
def test_it_ends_as_soon_as_rights_change(world: World, as_bob: Client, lost: str) -> None:
    if lost == "operator":
        world.user("operator").memberships.all().delete()
    else:
        add_member(team=world.team("northwind"), user=world.user("bob"), role=Role.FINANCE, now=world.now)

    assert as_bob.get("/requests/").url == "/operations/see-as/"
    assert Impersonation.objects.get().ended_at is not None


def test_no_socket_is_opened_meanwhile(as_bob: Client) -> None:
    cookie = {"cookie": f"sessionid={as_bob.cookies['sessionid'].value}"}
    assert viewers.admit(cookie, now=timezone.now()) is None

    as_bob.post("/operations/see-as/end/")

    assert viewers.admit(cookie, now=timezone.now()) is not None


def test_pages_of_before_and_meanwhile_have_buttons_that_do_nothing(
    world: World, signed_in: SignedIn
) -> None:
    operator = Client(enforce_csrf_checks=True)
    operator.force_login(world.user("operator"))
    before = operator.get("/operations/see-as/").context["csrf_token"]
    told = {"username": "bob", "reason": "x", "csrfmiddlewaretoken": str(before)}
    assert operator.post("/operations/see-as/", told).status_code == 302
    meanwhile = str(operator.get("/requests/").context["csrf_token"])
    assert operator.post("/operations/see-as/end/", {"csrfmiddlewaretoken": meanwhile}).status_code == 302

    for old in (told["csrfmiddlewaretoken"], meanwhile):
        answer = operator.post("/notifications/read/", {"csrfmiddlewaretoken": old})
        assert answer.status_code == 403


NONSENSE = {
    "impersonation_is_of_another": {"person": "operator"},
    "impersonation_is_short": {"minutes": 31},
    "impersonation_has_a_reason": {"reason": ""},
    "one_impersonation_at_a_time": {"twice": True},
}


@pytest.mark.parametrize("constraint", NONSENSE)
def test_the_database_refuses_nonsense(world: World, constraint: str) -> None:
    wrong = {"person": "bob", "minutes": 30, "reason": "x", "twice": False, **NONSENSE[constraint]}  # type: ignore[dict-item]

    def make() -> None:
        Impersonation.objects.create(
            operator=world.user("operator"), person=world.user(str(wrong["person"])), reason=str(wrong["reason"]),
            began_at=world.now, ends_at=world.now + timedelta(minutes=int(wrong["minutes"])),
        )  # fmt: skip

    if wrong["twice"]:
        make()
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        make()
