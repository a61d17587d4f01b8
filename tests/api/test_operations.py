from __future__ import annotations

import pytest
from django.test import Client

from portal.accounts.sign_in_attempts import BAD_TOKEN, BadTokens
from portal.api import operations
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_alive_and_ready_answer_without_signing_in(client: Client, valkey_url: str) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["checks"] == {"database": "ok", "redis": "ok", "migrations": "ok"}


def test_readiness_names_what_is_missing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operations.CHECKS, "redis", lambda: "away")

    answer = client.get("/readyz")

    assert (answer.status_code, answer["Retry-After"]) == (503, "3")
    assert answer.json()["checks"]["redis"] == "away"


def test_figures_count_what_is_there(world: World, client: Client) -> None:
    world.active("bob")
    world.submit("bob")

    text = client.get("/metrics").content.decode()

    assert 'berth_leases{state="active"} 1.0' in text
    assert 'berth_requests{state="queued"} 1.0' in text
    assert 'berth_nodes{state="online"} 2.0' in text
    assert 'berth_devices{health="ok"} 12.0' in text


def test_nothing_is_changed_through_these_addresses(client: Client) -> None:
    assert [client.post(at).status_code for at in ("/healthz", "/readyz", "/metrics")] == [405, 405, 405]


def test_type_of_a_problem_leads_to_its_meaning(client: Client) -> None:
    refused = client.get("/api/v1/me/").json()

    meaning = client.get(refused["type"].partition("#")[0]).json()[refused["code"]]

    assert meaning["status"] == refused["status"] == 401
    assert meaning["next"] == refused["next"]


def test_answers_stay_out_of_caches(client: Client) -> None:
    assert client.get("/api/v1/me/")["Cache-Control"] == "no-store"


def test_guesses_at_an_operators_token_are_counted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portal.api.metrics.bad_tokens", BadTokens())
    wrong = {"REMOTE_ADDR": "192.0.2.7", "headers": {"Authorization": "Bearer bth_wrong"}}

    answers = [client.get("/metrics", **wrong) for _nth in range(BAD_TOKEN.most + 1)]

    assert [a.status_code for a in answers] == [403] * BAD_TOKEN.most + [429]
    assert 0 < int(answers[-1]["Retry-After"]) <= BAD_TOKEN.window_s
    assert client.get("/metrics", REMOTE_ADDR="192.0.2.8", headers=wrong["headers"]).status_code == 403
