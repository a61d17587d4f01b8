"""Accounts in a terminal."""

from __future__ import annotations

import httpx
import pytest
from django.core.wsgi import get_wsgi_application

from portal.accounts.models import User
from portal.cli import client
from tests.cli.conftest import Berth
from tests.portal.builders import World
from tests.web.test_people import busy


def test_account_is_closed_and_reopened(berth: Berth, world: World) -> None:
    busy(world)

    asked = berth("person", "close", "bob", who="operator", typed="n\n")
    assert asked.exit_code != 0
    assert User.objects.get(username="bob").is_active
    done = berth("person", "close", "bob", "--end-leases", "-y", who="operator")
    assert "3 that wait are taken back, 1 that run end now" in done.stderr
    listed = berth("person", "accounts", "--closed", who="operator").stdout
    assert "bob" in listed
    assert "alice" not in listed
    assert berth("person", "reopen", "bob", who="operator").exit_code == 0
    assert User.objects.get(username="bob").is_active
    assert berth("person", "accounts", who="alice").exit_code == 1


def test_list_of_accounts_has_all_of_them(berth: Berth, world: World) -> None:
    User.objects.bulk_create(User(username=f"student{n:04}") for n in range(1100))

    listed = berth("person", "accounts", "student", who="operator").stdout

    assert len({word for word in listed.split() if word.startswith("student")}) == 1100
    assert listed.count("student") == 1100


def test_pages_of_a_portal_that_is_known_by_another_name_are_read_where_the_token_belongs(
    berth: Berth, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    User.objects.bulk_create(User(username=f"student{n:04}") for n in range(450))
    asked: list[tuple[str, str]] = []

    class Proxy(httpx.WSGITransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked.append((request.url.host, request.url.path))
            request.headers["Host"] = "localhost"
            return super().handle_request(request)

    monkeypatch.setattr(client, "transport", Proxy(get_wsgi_application()))
    listed = berth("person", "accounts", "student", who="operator").stdout

    assert listed.count("student") == 450
    assert asked == [("testserver", "/api/v1/people/")] * 3
