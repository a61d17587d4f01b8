"""A code beside the password: from setting it up to losing the phone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pyotp
import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import BrowserSession, User
from portal.accounts.sign_in_attempts import SECOND_STEP, forgive
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound, TooManyCalls
from portal.second_factor import services
from portal.second_factor.models import AuthenticatorApp, RecoveryCode, RequiringRole
from tests.portal.builders import PASSWORD, World

pytestmark = pytest.mark.django_db


def turned_on(user: User, now: datetime) -> tuple[pyotp.TOTP, list[str]]:
    """Give somebody a second factor some time ago; returns their app and recovery codes."""
    app = pyotp.TOTP(services.begin(user, now=now).secret)
    return app, services.confirm(user, app.at(now), now=now)


def sign_in(client: Client, name: str, goal: str = "/") -> Any:
    return client.post("/sign-in/", {"username": name, "password": PASSWORD, "next": goal})


def is_in(client: Client) -> bool:
    return client.get("/notifications/").status_code == 200


def told(action: str) -> list[str]:
    return list(AuditEntry.objects.filter(action=action).values_list("target", flat=True))


def test_a_person_turns_it_on_and_is_asked_from_then_on(world: World) -> None:
    here = Client()
    assert sign_in(here, "bob")["Location"] == "/"

    refused = here.post("/second-factor/begin/", {"password": "not it"})
    begun = here.post("/second-factor/begin/", {"password": PASSWORD}, follow=True)
    secret = re.search(r'data-copy="([A-Z2-7]{32})"', begun.text)[1]  # type: ignore[index]
    wrong = here.post("/second-factor/confirm/", {"code": "000000"})
    shown = here.post("/second-factor/confirm/", {"code": pyotp.TOTP(secret).now()})

    assert refused.status_code == wrong.status_code == 422
    assert "<svg" in begun.text
    codes = re.findall(r"\b(?:[a-z2-7]{4}-){3}[a-z2-7]{4}\b", shown.text)
    assert len(set(codes)) == services.RECOVERY_CODES
    assert shown["Cache-Control"].startswith("max-age=0")
    assert codes[0] not in here.get("/second-factor/").text
    # Neither the secret nor a code can be read from the database.
    row = AuthenticatorApp.objects.get(user__username="bob")
    assert secret.encode() not in bytes(row.sealed_secret)
    assert all(len(bytes(one.digest)) == 32 for one in RecoveryCode.objects.all())

    AuthenticatorApp.objects.update(last_step=0)  # 30 seconds later
    there = Client()
    asked = sign_in(there, "bob", "/leases/")
    assert asked["Location"] == "/second-step/"
    assert not is_in(there)
    assert there.post("/second-step/", {"code": "12345"}).status_code == 422
    assert there.post("/second-step/", {"code": pyotp.TOTP(secret).now()})["Location"] == "/leases/"
    assert is_in(there)
    assert there.get("/second-step/")["Location"] == "/sign-in/"
    assert told("second_factor.on") == ["bob"]


def test_each_code_lets_in_once_and_tries_are_counted(world: World) -> None:
    bob, now = world.user("bob"), world.now
    app, recovery = turned_on(bob, now - timedelta(hours=1))

    assert services.check(bob, app.at(now), now=now) == "app"
    with pytest.raises(Invalid):
        services.check(bob, app.at(now), now=now)
    with pytest.raises(Invalid):  # an older one after a newer one
        services.check(bob, app.at(now - timedelta(seconds=30)), now=now)
    assert services.check(bob, recovery[0].upper().replace("-", " "), now=now) == "recovery"
    with pytest.raises(Invalid):
        services.check(bob, recovery[0], now=now)

    for _again in range(SECOND_STEP.most - 3):
        with pytest.raises(Invalid):
            services.check(bob, "000000", now=now)
    with pytest.raises(TooManyCalls):
        services.check(bob, recovery[1], now=now)
    assert told("second_factor.refused") == ["bob"]
    forgive("bob")
    assert services.check(bob, recovery[1], now=now) == "recovery"
    assert services.state_of(bob).codes_left == services.RECOVERY_CODES - 2


def test_the_second_step_ends_with_the_password_and_with_time(world: World, settings: Any) -> None:
    turned_on(world.user("bob"), timezone.now() - timedelta(hours=1))
    client = Client()
    sign_in(client, "bob")
    assert client.get("/second-step/").status_code == 200

    bob = world.user("bob")
    bob.set_password("a long walk home")
    bob.save()

    assert client.get("/second-step/")["Location"] == "/sign-in/"
    assert not is_in(client)
    assert Client().get("/second-step/")["Location"] == "/sign-in/"


def test_a_role_needs_one_and_who_has_none_sets_it_up_on_the_way_in(world: World) -> None:
    operator, rights, now = world.user("operator"), world.rights("operator"), timezone.now()
    browser, open_already = Client(), Client()
    browser.force_login(operator)
    sign_in(open_already, "approver")
    with pytest.raises(Conflict):  # nobody shuts themselves out
        services.require(["operator"], actor=operator, rights=rights, now=now)

    saved = browser.post("/operations/second-factor/", {"roles": ["approver"]}, follow=True)

    assert "1 session ended" in saved.text
    assert not is_in(open_already)
    client = Client()
    assert sign_in(client, "approver")["Location"] == "/second-step/"
    secret = re.search(r'data-copy="([A-Z2-7]{32})"', client.get("/second-step/").text)[1]  # type: ignore[index]
    assert secret in client.get("/second-step/").text  # a reload shows the same
    done = client.post("/second-step/", {"code": pyotp.TOTP(secret).now()})
    assert "recovery codes" in done.text
    assert is_in(client)
    refused = client.post("/second-factor/off/", {"password": PASSWORD})
    assert refused.status_code == 409
    assert sign_in(Client(), "bob")["Location"] == "/"
    with transaction.atomic(), pytest.raises(IntegrityError):
        RequiringRole.objects.create(role="captain")


def test_an_operator_resets_it_and_nobody_else(world: World) -> None:
    bob, now = world.user("bob"), timezone.now()
    turned_on(bob, now - timedelta(hours=1))
    here = Client()
    here.force_login(bob)
    for name in ("alice", "charlie"):
        with pytest.raises(Forbidden):
            services.reset("bob", actor=world.user(name), rights=world.rights(name), now=now)
        other = Client()
        other.force_login(world.user(name))
        assert other.get("/operations/second-factor/").status_code == 403
        assert other.post("/operations/second-factor/reset/", {"username": "bob"}).status_code == 403
    operator = Client()
    operator.force_login(world.user("operator"))

    nobody = operator.post("/operations/second-factor/reset/", {"username": "nobody"})
    done = operator.post("/operations/second-factor/reset/", {"username": "bob"}, follow=True)

    assert nobody.status_code == 422
    assert "no second factor any more" in done.text
    assert not BrowserSession.objects.filter(user=bob).exists()
    assert sign_in(Client(), "bob")["Location"] == "/"
    assert told("second_factor.reset") == ["bob"]
    with pytest.raises(NotFound):
        services.reset("nobody", actor=world.user("operator"), rights=world.rights("operator"), now=now)


def test_tokens_and_people_of_the_demo_and_of_providers_are_not_asked(world: World) -> None:
    now = timezone.now()
    demo, outside = world.user("alice"), world.user("charlie")
    demo.is_demo = True
    demo.save()
    outside.set_unusable_password()
    outside.save()
    for user in (demo, outside):
        with pytest.raises(Forbidden):
            services.begin(user, now=now)
    RequiringRole.objects.create(role="admin")

    assert not services.is_required(demo)
