"""A device without a browser signs in by a code that a person approves (RFC 8628)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import ApiToken, DeviceCode
from portal.audit import device_codes
from portal.audit.device_codes import GUESSES, NEW_ONES, DeviceRefused
from portal.audit.models import AuditEntry
from portal.common.errors import NotFound
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
GRANT = {"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": "berth-cli"}


def begun(name: str = "berth on gpu-laptop", **more: Any) -> Any:
    return Client(enforce_csrf_checks=True).post(
        "/oauth/device/", {"client_id": "berth-cli", "name": name, **more}
    )


def asked(secret: str) -> Any:
    return Client(enforce_csrf_checks=True).post("/oauth/token/", {**GRANT, "device_code": secret})


def browser(world: World, name: str = "bob") -> Client:
    client = Client()
    client.force_login(world.user(name))
    return client


def later(seconds: int) -> None:
    """Let the newest try have begun, and asked, so long ago."""
    row, ago = DeviceCode.objects.latest("pk"), timedelta(seconds=seconds)
    row.created_at, row.expires_at = row.created_at - ago, row.expires_at - ago
    row.asked_at = row.asked_at and row.asked_at - ago
    row.save()


def test_from_the_code_to_the_token_once(world: World) -> None:
    answer = begun(days="2").json()
    secret, code = answer["device_code"], answer["user_code"]
    bob = browser(world)

    assert answer["verification_uri_complete"].endswith(f"/device/?code={code}")
    assert asked(secret).json() == {"error": "authorization_pending"}
    assert asked(secret).json() == {"error": "slow_down"}
    assert DeviceCode.objects.get().interval_s == 10
    page = bob.get(f"/device/?code={code.lower()}").text
    assert "berth on gpu-laptop" in page
    assert "127.0.0.1" in page
    assert "2 days" in page
    assert bob.post("/device/", {"code": code, "decision": "approve"}, follow=True).status_code == 200
    got = asked(secret)

    assert got["Cache-Control"].startswith("max-age=0")
    here = Client().get("/api/v1/me/", headers={"Authorization": f"Bearer {got.json()['access_token']}"})
    assert here.json()["username"] == "bob"
    assert asked(secret).json()["error"] == "invalid_grant"
    assert ApiToken.objects.count() == 1
    assert browser(world, "alice").get(f"/device/?code={code}").status_code == 404
    assert secret.encode() not in bytes(DeviceCode.objects.get().digest)
    assert (
        AuditEntry.objects.filter(action__in=("device.approved", "token.made"), actor__username="bob").count()
        == 2
    )


def test_refused_expired_closed_and_full_get_no_token(world: World, settings: Any) -> None:
    bob = browser(world)
    refused = begun().json()
    bob.post("/device/", {"code": refused["user_code"], "decision": "refuse"})
    assert asked(refused["device_code"]).json()["error"] == "access_denied"

    late = begun().json()
    later(601)
    assert bob.get(f"/device/?code={late['user_code']}").status_code == 404
    assert asked(late["device_code"]).json()["error"] == "expired_token"

    full = begun().json()
    bob.post("/device/", {"code": full["user_code"], "decision": "approve"})
    settings.MAX_TOKENS_PER_PERSON = 0
    assert "most one person may have" in asked(full["device_code"]).json()["error_description"]
    settings.MAX_TOKENS_PER_PERSON = 50

    user = world.user("bob")
    user.is_active = False
    user.save()
    assert asked(full["device_code"]).json()["error"] == "access_denied"
    assert not ApiToken.objects.exists()
    device_codes.forget_device_codes(now=timezone.now() + timedelta(days=2))
    assert not DeviceCode.objects.exists()


def test_who_is_quicker_decides_and_guesses_are_counted(world: World) -> None:
    now, code = timezone.now(), begun().json()["user_code"]
    row = device_codes.find(world.user("bob"), code, now=now)
    device_codes.decide(row, world.user("alice"), is_approved=False, address="::1", now=now)
    with pytest.raises(NotFound):
        device_codes.decide(row, world.user("bob"), is_approved=True, address="::1", now=now)

    bob = browser(world)
    tries = [bob.get("/device/?code=BBBB-BBBB").status_code for _n in range(GUESSES.most + 1)]
    assert tries[-2:] == [404, 429]
    assert bob.get(f"/device/?code={begun().json()['user_code']}").status_code == 200


def test_nonsense_is_refused_and_beginning_is_counted(world: World) -> None:
    client = Client()
    assert client.post("/oauth/device/", {"client_id": "other"}).status_code == 401
    assert (
        client.post("/oauth/token/", {"grant_type": "password"}).json()["error"] == "unsupported_grant_type"
    )
    assert asked("nobody's").json()["error"] == "invalid_grant"
    for name, days in (("", "1"), ("x" * 61, "1"), ("x", "0"), ("x", "91"), ("x", "³"), ("x", "-1")):
        assert begun(name, days=days).json()["error"] == "invalid_request"
    assert client.get("/device/")["Location"].startswith("/sign-in/")
    assert [begun().status_code for _n in range(NEW_ONES.most)][-1] == 429
    with pytest.raises(DeviceRefused):
        device_codes.redeem("", now=timezone.now())
    row = DeviceCode.objects.latest("pk")
    for change in ({"is_approved": True}, {"used_at": row.created_at}):
        with pytest.raises(IntegrityError), transaction.atomic():
            DeviceCode.objects.filter(pk=row.pk).update(**change)
