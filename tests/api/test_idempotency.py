from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from portal.api.models import IdempotencyKey
from portal.leases.models import LeaseRequest
from tests.portal.builders import World, build_world

BODY = {"flavor": "h100-1g-10gb", "duration_s": 3600}
KEY = {"Idempotency-Key": "call-1"}


def test_a_repeat_gets_the_first_answer_and_changes_nothing(world: World, calls: Any) -> None:
    bob = calls("bob")

    first, second = bob.post("requests/", BODY, **KEY), bob.post("requests/", BODY, **KEY)

    assert second.json() == first.json()
    assert second.status_code == 201
    assert second["Location"] == first["Location"]
    assert second["Idempotent-Replayed"] == "true"
    assert LeaseRequest.objects.count() == 1


def test_the_same_key_for_another_call_is_refused(world: World, calls: Any) -> None:
    bob = calls("bob")
    bob.post("requests/", BODY, **KEY)

    other_body = bob.post("requests/", {**BODY, "count": 2}, **KEY)
    other_path = bob.post("quote/", BODY, **KEY)

    for refused in (other_body, other_path):
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
    assert LeaseRequest.objects.count() == 1


def test_keys_of_different_people_never_meet(world: World, calls: Any) -> None:
    mine = calls("bob").post("requests/", BODY, **KEY)
    hers = calls("charlie").post("requests/", {**BODY, "team": "language"}, **KEY)

    assert (mine.status_code, hers.status_code) == (201, 201)
    assert mine.json()["id"] != hers.json()["id"]


def test_a_refusal_is_not_kept_so_that_a_corrected_world_gets_a_fresh_try(
    world: World, calls: Any, settings: Any
) -> None:
    bob = calls("bob")
    settings.MAX_WAITING_PER_TEAM = 0
    refused = bob.post("requests/", BODY, **KEY)
    settings.MAX_WAITING_PER_TEAM = 10

    accepted = bob.post("requests/", BODY, **KEY)

    assert (refused.status_code, accepted.status_code) == (429, 201)


@pytest.mark.parametrize("key", ["", "x" * 101, "tab\there"])
def test_a_key_is_short_and_printable(key: str, world: World, calls: Any) -> None:
    answer = calls("bob").post("requests/", BODY, **{"Idempotency-Key": key})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "Idempotency-Key"


def test_old_keys_are_forgotten_as_new_ones_come(world: World, calls: Any) -> None:
    bob = calls("bob")
    bob.post("requests/", BODY, **KEY)
    IdempotencyKey.objects.update(created_at=world.now - timedelta(hours=49))

    bob.post("requests/", BODY, **{"Idempotency-Key": "call-2"})

    assert list(IdempotencyKey.objects.values_list("key", flat=True)) == ["call-2"]


@pytest.mark.django_db(transaction=True)
def test_five_at_once_make_one_request() -> None:
    from tests.api.conftest import Caller

    world = build_world()
    secret, found = world.token("bob", "lease:write"), []

    def ask() -> None:
        found.append(Caller(secret).post("requests/", BODY, **KEY))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [answer.status_code for answer in found] == [201] * 5
    assert len({answer.json()["id"] for answer in found}) == 1
    assert LeaseRequest.objects.count() == 1
