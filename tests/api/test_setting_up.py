"""What the pages of the first start do, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.catalog.first_start import setup_code
from portal.catalog.models import Flavor, Rate, RateCard
from portal.policies.selectors import active_policy
from portal.teams.models import Team
from tests.api.conftest import Caller
from tests.portal.builders import World, make_node

pytestmark = pytest.mark.django_db
FIRST = {
    "organisation": "Harbour",
    "currency": "USD",
    "username": "alice",
    "password": "a quiet harbour at night",
}


def test_the_first_call_needs_the_code_instead_of_a_token_and_works_once() -> None:
    nobody = Caller()

    wrong = nobody.put("setup/", {**FIRST, "code": "AAAA"})
    made = nobody.put("setup/", {**FIRST, "code": setup_code()})
    again = nobody.put("setup/", {**FIRST, "code": setup_code(), "username": "eve"})

    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "code")
    assert (made.status_code, made.json()) == (201, {"username": "alice", "team": "harbour"})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert User.objects.count() == 1
    assert active_policy().order == "default"
    assert Client().login(username="alice", password=FIRST["password"])


@pytest.mark.parametrize(
    "body", [{}, [], {"code": 1}, {**FIRST, "code": "x", "nonsense": 1}, {**FIRST, "code": "\0"}]
)
def test_nonsense_before_the_first_start_is_refused(body: Any) -> None:
    assert Caller().put("setup/", body).status_code in (400, 422)
    assert Team.objects.count() == 0


def test_an_empty_installation_reaches_its_first_price_over_http() -> None:
    Caller().put("setup/", {**FIRST, "code": setup_code()})
    client = Client()
    client.force_login(User.objects.get())
    send: Any = lambda method, path, body=None: getattr(client, method)(  # noqa: E731
        f"/api/v1/{path}", body or {}, content_type="application/json"
    )

    assert client.get("/api/v1/setup/steps/").json()["is_ready"] is False
    assert send("post", "teams/", {"parent": "harbour", "name": "Vision"}).status_code == 201
    person = send("post", "teams/vision/people/", {"username": "bob", "role": "researcher"}).json()
    assert Client().get(person["link"].removeprefix("http://testserver")).status_code == 200
    assert send("put", "teams/vision/", {"approval_above_gpu_seconds": 3600}).json()["name"] == "Vision"
    make_node("gpu-01", "h100-80gb", 1, ("exclusive", "mig"), now=timezone.now())
    assert "h100-80gb" in send("post", "models/h100-80gb/flavors/").json()["made"]
    assert send("put", "currency/", {"currency": "CNY"}).json() == {"currency": "CNY", "is_fixed": False}
    price = {"device_model": "h100-80gb", "price_per_hour": "2.50", "starts_at": "2026-01-01T00:00:00Z"}
    assert send("post", "rates/", price).status_code == 201
    assert send("put", "currency/", {"currency": "EUR"}).status_code == 409
    assert client.get("/api/v1/setup/steps/").json() == {
        f"has_{name}": True
        for name in ("organisation", "teams", "people", "threshold", "nodes", "flavors", "prices")
    } | {"is_ready": True}
    assert Rate.objects.get().card == RateCard.objects.get()


def test_flavors_that_are_switched_off_are_listed_when_asked_for(world: World, calls: Any) -> None:
    operator, bob = calls("operator"), calls("bob")

    off = operator.put("flavors/h100/", {"is_active": False})

    assert off.json()["is_active"] is False
    slugs = lambda answer: {row["slug"] for row in answer.json()["results"]}  # noqa: E731
    assert "h100" not in slugs(bob.get("flavors/"))
    assert "h100" in slugs(bob.get("flavors/?include=inactive"))
    assert bob.get("flavors/?include=all").status_code == 422
    assert bob.get("flavors/h100/").status_code == 404
    assert bob.put("flavors/h100/", {"is_active": True}).status_code == 403
    assert operator.put("flavors/h100/", {"min_duration_s": 900_000}).status_code == 422
    assert operator.put("flavors/h100/", {"mode": "mig"}).status_code == 422
    assert not Flavor.objects.get(slug="h100").is_active


def test_nobody_lifts_the_threshold_of_their_own_team(world: World, calls: Any) -> None:
    assert calls("alice").put("teams/vision/", {"approval_above_gpu_seconds": None}).status_code == 403
    assert calls("alice").put("teams/perception/", {"approval_above_gpu_seconds": None}).status_code == 200
    assert (
        calls("bob").post("teams/perception/people/", {"username": "x", "role": "admin"}).status_code == 403
    )
    assert calls("alice").post("people/bob/invitation/").status_code == 403
