"""A session ends when idle and after its longest time; the headers keep pages to themselves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts import sessions
from portal.accounts.models import BrowserSession
from portal.accounts.services import create_token, revoke_token
from portal.accounts.sessions import forget_sessions
from portal.common.errors import Invalid
from portal.telemetry import viewers
from tests.portal.builders import World


class Clock:
    """The time as sessions see it."""

    def __init__(self) -> None:
        self.at = timezone.now()

    def now(self) -> Any:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Clock:
    settings.SESSION_IDLE_S, settings.SESSION_COOKIE_AGE = 3600, 4 * 3600
    found = Clock()
    monkeypatch.setattr(sessions, "timezone", found)
    monkeypatch.setattr("django.contrib.sessions.backends.db.timezone", found)
    return found


@pytest.fixture
def bob(world: World, clock: Clock) -> Client:
    client = Client()
    client.force_login(world.user("bob"))
    return client


def ends(client: Client) -> Any:
    return BrowserSession.objects.get(session_key=client.cookies["sessionid"].value).expire_date


def test_an_idle_session_ends_for_pages_and_sockets(bob: Client, clock: Clock) -> None:
    cookie = {"cookie": f"sessionid={bob.cookies['sessionid'].value}"}
    clock.at += timedelta(seconds=3599)
    assert viewers.admit(cookie, now=clock.at)
    clock.at += timedelta(seconds=2)

    assert viewers.admit(cookie, now=clock.at) is None
    assert bob.get("/notifications/").status_code == 302


def test_what_a_person_does_moves_the_idle_end_and_what_a_page_does_not(bob: Client, clock: Clock) -> None:
    before = ends(bob)
    clock.at += timedelta(seconds=600)
    bob.get("/notifications/", headers={"HX-Request": "true"})
    assert ends(bob) == before

    bob.get("/notifications/")

    assert ends(bob) == before + timedelta(seconds=600)


def test_the_longest_time_ends_a_session_that_is_in_use(bob: Client, clock: Clock) -> None:
    answers = []
    for _half_hour in range(9):
        answers.append(bob.get("/notifications/").status_code)
        clock.at += timedelta(seconds=1800)

    assert answers == [200] * 8 + [302]


def test_ended_sessions_are_swept(bob: Client, clock: Clock) -> None:
    assert forget_sessions(now=clock.at) == 0
    assert forget_sessions(now=clock.at + timedelta(seconds=3601)) == 1


def test_one_person_has_only_so_many_live_tokens(world: World, settings: Any) -> None:
    settings.MAX_TOKENS_PER_PERSON = 2
    given: Any = {"user": world.user("bob"), "scopes": ["read"], "days": 1, "now": timezone.now()}
    first = create_token(name="one", **given).row
    create_token(name="two", **given)

    with pytest.raises(Invalid) as no:
        create_token(name="three", **given)
    revoke_token(user=world.user("bob"), token_id=first.pk, now=timezone.now())
    create_token(name="three", **given)

    assert "2 usable tokens" in str(no.value.fields["name"])


@pytest.mark.parametrize("path", ["/sign-in/", "/api/v1/me/", "/healthz", "/nothing/"])
def test_every_answer_keeps_to_itself(db: None, path: str) -> None:
    headers = Client().get(path).headers

    assert "camera=()" in headers["Permissions-Policy"]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
