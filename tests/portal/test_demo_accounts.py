"""The demo's people have a password that everybody knows: while the demo is off, nothing of theirs opens a door."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from portal.accounts.models import ApiToken, User
from portal.accounts.selectors import live_token
from portal.accounts.services import create_token
from portal.demo import organisation
from portal.telemetry import viewers
from tests.portal.builders import PASSWORD, World

SIGN_IN = "/sign-in/"


@pytest.fixture
def demo(db: None, settings: Any) -> dict[str, User]:
    """The people of the demo, made while it was on."""
    settings.DEMO = True
    now = timezone.now()
    return organisation.make_people(organisation.make_teams(now), now)


def enter(client: Client, name: str, password: str = organisation.PASSWORD) -> int:
    return int(client.post(SIGN_IN, {"username": name, "password": password}).status_code)


def test_with_the_demo_on_they_enter(demo: dict[str, User]) -> None:
    assert all(user.is_demo for user in demo.values())
    assert enter(Client(), "bob") == 302


@pytest.mark.parametrize("name", [name for name, _shown, _roles in organisation.PEOPLE])
def test_with_the_demo_off_their_password_is_refused_like_a_wrong_one(
    demo: dict[str, User], settings: Any, name: str
) -> None:
    settings.DEMO = False
    client = Client()

    answer = client.post(SIGN_IN, {"username": name, "password": organisation.PASSWORD})

    assert answer.status_code == 422
    assert "do not fit together" in answer.text
    assert client.get("/").status_code == 302
    assert client.post(SIGN_IN, {"demo": name}).status_code == 422


def test_with_the_demo_off_sessions_tokens_and_sockets_of_theirs_are_dead(
    demo: dict[str, User], settings: Any
) -> None:
    client = Client()
    enter(client, "bob")
    now = timezone.now()
    secret = create_token(user=demo["bob"], name="x", scopes=["admin"], days=1, now=now).secret
    cookie = {"cookie": f"sessionid={client.cookies['sessionid'].value}"}
    bearer = {"authorization": f"Bearer {secret}"}
    admitted = [viewers.admit(headers, now=now) for headers in (cookie, bearer)]
    assert all(admitted)

    settings.DEMO = False

    assert client.get("/").status_code == 302
    assert Client(headers=bearer).get("/api/v1/me/").status_code == 401
    assert live_token(secret, now=now) is None
    assert [viewers.admit(headers, now=now) for headers in (cookie, bearer)] == [None, None]
    assert viewers.review([v for v in admitted if v], now=now) == {}


def test_real_people_keep_working(world: World, settings: Any) -> None:
    settings.DEMO = False
    secret = create_token(
        user=world.user("bob"), name="x", scopes=["admin"], days=1, now=timezone.now()
    ).secret

    assert enter(Client(), "bob", PASSWORD) == 302
    assert Client(headers={"authorization": f"Bearer {secret}"}).get("/api/v1/me/").status_code == 200


def test_one_is_adopted_by_a_real_person(
    demo: dict[str, User], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DEMO = False
    create_token(user=demo["bob"], name="x", scopes=["admin"], days=1, now=timezone.now())
    said = iter(["short", "a much better one 7"])
    monkeypatch.setattr("portal.demo.management.commands.demo_accounts.getpass", lambda _text: next(said))

    with pytest.raises(CommandError, match="too short"):
        call_command("demo_accounts", "--adopt", "bob")
    call_command("demo_accounts", "--adopt", "bob", stdout=io.StringIO())

    assert enter(Client(), "bob") == 422
    assert enter(Client(), "bob", "a much better one 7") == 302
    assert not ApiToken.objects.filter(user=demo["bob"], revoked_at=None).exists()
    with pytest.raises(CommandError, match="no account of the demo"):
        call_command("demo_accounts", "--adopt", "bob")


def test_the_others_are_removed_for_good(demo: dict[str, User]) -> None:
    said = io.StringIO()
    call_command("demo_accounts", "--remove", "alice", stdout=said)
    call_command("demo_accounts", "--remove", stdout=said)
    call_command("demo_accounts", stdout=said)

    assert "Accounts of the demo: none" in said.getvalue()
    assert enter(Client(), "alice") == 422
    assert User.objects.filter(username="alice").exists()
    with pytest.raises(CommandError, match="nobody"):
        call_command("demo_accounts", "--remove", "nobody")
