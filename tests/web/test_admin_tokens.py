from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from portal.accounts.models import ApiToken
from portal.accounts.selectors import live_token
from tests.portal.builders import World
from tests.web.conftest import SignedIn

GOOD = {"name": "bob's desk", "scope": "lease:write", "days": "30"}


def secret_in(text: str) -> str:
    found = re.search(r"bth_[\w-]{40,}", text)
    return found.group(0) if found else ""


def test_a_new_token_is_shown_once_and_works(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")

    made = bob.post("/tokens/", GOOD)
    later = bob.get("/tokens/")

    found = live_token(secret_in(made.text), now=timezone.now())
    assert found is not None
    assert found.user == world.user("bob")
    assert sorted(found.scopes) == ["lease:write", "read"]
    assert "no-store" in made.headers["Cache-Control"]
    assert secret_in(later.text) == ""
    assert "bob&#x27;s desk" in later.text


def test_a_revoked_token_stops_working(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    secret = secret_in(bob.post("/tokens/", GOOD).text)
    key = ApiToken.objects.get(name="bob's desk").pk

    assert bob.post(f"/tokens/{key}/revoke/").status_code == 302
    assert bob.post(f"/tokens/{key}/revoke/").status_code == 302

    assert live_token(secret, now=timezone.now()) is None
    assert "Revoked" in bob.get("/tokens/").text


def test_charlie_meets_another_persons_token_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    signed_in("bob").post("/tokens/", GOOD)
    key = ApiToken.objects.get(name="bob's desk").pk
    charlie = signed_in("charlie")

    assert charlie.post(f"/tokens/{key}/revoke/").status_code == 404
    assert charlie.post("/tokens/999999/revoke/").status_code == 404
    assert "s desk" not in charlie.get("/tokens/").text
    assert ApiToken.objects.get(pk=key).revoked_at is None


def test_an_expired_token_says_so(world: World, signed_in: SignedIn) -> None:
    signed_in("bob").post("/tokens/", GOOD)
    ApiToken.objects.update(
        created_at=world.now - timedelta(days=9), expires_at=world.now - timedelta(days=1)
    )

    assert "Expired" in signed_in("bob").get("/tokens/").text


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x" * 61},
        {"name": "a\x00b"},
        {"scope": "root"},
        {"scope": ""},
        {"days": "0"},
        {"days": "9999999999999999999999"},
        {"days": "soon"},
    ],
)
def test_bad_input_makes_no_token(world: World, signed_in: SignedIn, wrong: dict[str, str]) -> None:
    answer = signed_in("bob").post("/tokens/", GOOD | wrong)

    assert answer.status_code == 422
    assert "field-error" in answer.text
    assert not ApiToken.objects.filter(user=world.user("bob")).exists()
