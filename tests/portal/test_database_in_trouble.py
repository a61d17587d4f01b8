"""A database that cannot do its work now: 503 with a time to come back, in words, and never a bare 500."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.backends import base
from django.db import connection
from django.test import Client

from portal.accounts.services import create_token
from portal.common.retry import CANNOT_NOW, RETRYABLE
from portal.leases import requests
from tests.portal.builders import World

STATES = sorted({*CANNOT_NOW, *RETRYABLE, "08006"})
ASK = {"flavor": "h100-1g-10gb", "duration_s": 3600}


def fail_with(state: str) -> None:
    """Let PostgreSQL itself refuse a statement with this code."""
    with connection.cursor() as cursor:
        cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'drill' USING ERRCODE = '{state}'; END $$")


def run_out_of_time() -> None:
    """Meet a real statement timeout."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '20ms'")
        cursor.execute("SELECT pg_sleep(5)")


@pytest.fixture
def api(world: World) -> Client:
    made = create_token(user=world.user("bob"), name="x", scopes=["admin"], days=1, now=world.now)
    return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {made.secret}"})


@pytest.fixture
def browser(world: World) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(world.user("bob"))
    return client


def broken(monkeypatch: pytest.MonkeyPatch, failure: Any) -> None:
    monkeypatch.setattr(requests, "submit_request", failure)


@pytest.mark.parametrize("state", STATES)
def test_the_api_says_when_to_come_back(api: Client, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    broken(monkeypatch, lambda **_given: fail_with(state))

    answer = api.post("/api/v1/requests/", ASK, content_type="application/json")

    assert answer.status_code == 503
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.json()["code"] == "unavailable"
    assert answer.json()["next"] == "Nothing was changed. Try again in a few seconds."


def test_a_full_disk_is_called_by_its_name(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda **_given: fail_with("53100"))

    answer = api.post("/api/v1/requests/", ASK, content_type="application/json")

    assert answer.json()["detail"] == "The disk of the database is full."


def test_a_real_statement_timeout_is_no_fault_of_berth(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda **_given: run_out_of_time())

    answer = api.post("/api/v1/requests/", ASK, content_type="application/json")

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


@pytest.mark.parametrize("state", ["53100", "57014", "53300", "25P03"])
def test_a_page_says_it_in_words(browser: Client, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    monkeypatch.setattr("portal.web.notifications.page.mark_read", lambda *_a, **_k: fail_with(state))

    answer = browser.post("/notifications/read/")

    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "Berth is busy for a moment" in answer.text
    assert str(CANNOT_NOW[state]) in answer.text


@pytest.mark.parametrize(
    ("path", "kind"), [("/leases/", "text/html"), ("/api/v1/me/", "application/problem+json")]
)
def test_what_fails_before_the_view_answers_alike(
    browser: Client, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.setattr(base.SessionBase, "_get_session", lambda *_a, **_k: fail_with("53300"))
    monkeypatch.setattr(base.SessionBase, "_session", property(lambda _self: fail_with("53300")))

    answer = browser.get(path)

    assert answer.status_code == 503
    assert answer.headers["Content-Type"].startswith(kind)
    assert int(answer.headers["Retry-After"]) > 0


def test_another_mistake_stays_a_fault(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, lambda **_given: fail_with("42P01"))

    answer = api.post("/api/v1/requests/", ASK, content_type="application/json")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")


@pytest.mark.django_db(transaction=True)
def test_reading_goes_on_while_nothing_can_be_written(api: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.accounts.models.ApiToken.objects.filter", lambda **_given: Full())

    assert api.get("/api/v1/me/").status_code == 200


class Full:
    """Rows on a disk without room."""

    def update(self, **_values: Any) -> int:
        fail_with("53100")
        return 0
