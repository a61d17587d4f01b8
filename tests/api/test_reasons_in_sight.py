"""Wait reasons tell how many leases are in the way; by name only those that the reader may see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from portal.leases.forecasting import RequestPreview
from portal.leases.models import Lease, LeaseRequest
from tests.portal.builders import World

FULL_FOR_BOTH = [{"code": "no_capacity", "wanted": 1, "free": 0, "total": 8, "next_end": None}]


@pytest.fixture
def waiting(world: World) -> LeaseRequest:
    """A request of charlie's behind leases of bob's, for whom one of his must go, and one of charlie's own."""
    theirs, own = world.active("bob"), world.active("charlie")
    request = world.submit("charlie", "h100")
    reasons = [
        {"code": "room_is_made", "leases": [theirs.pk], "ends_at": "2026-11-21T12:00:00+00:00"},
        {**FULL_FOR_BOTH[0], "blockers": [theirs.pk, own.pk]},
    ]
    LeaseRequest.objects.filter(pk=request.pk).update(reasons=reasons)
    return request


def names(holder: str) -> list[str]:
    return list(Lease.objects.filter(user__username=holder).values_list("uid", flat=True))


def test_the_api_counts_strangers_leases_and_names_the_readers_own(waiting: LeaseRequest, calls: Any) -> None:
    seen = calls("charlie").get(f"requests/{waiting.uid}/").json()["reasons"]

    made, full = (reason["figures"] for reason in seen)
    assert (made["leases"], made["known"]) == (1, [])
    assert (full["blockers"], full["known"]) == (2, names("charlie"))
    assert seen[1]["sentence"].endswith(f"In the way, among others: {names('charlie')[0]}.")
    assert names("bob")[0] not in json.dumps(seen)


def test_who_may_see_all_of_them_reads_all_names(waiting: LeaseRequest, calls: Any) -> None:
    seen = calls("operator").get(f"requests/{waiting.uid}/").json()["reasons"]

    assert seen[0]["figures"]["known"] == names("bob")
    assert seen[1]["figures"]["known"] == [*names("bob"), *names("charlie")]
    assert f"In the way: {names('bob')[0]}, {names('charlie')[0]}." in seen[1]["sentence"]


def test_no_answer_tells_a_row_of_a_lease(waiting: LeaseRequest, calls: Any) -> None:
    charlie = calls("charlie", "lease:write")
    path = f"requests/{waiting.uid}/"

    rows = [*charlie.get("requests/").json()["results"], charlie.get(path).json()]
    rows.append(charlie.post(f"{path}withdraw/").json())

    told = [reason["figures"] for row in rows for reason in row["reasons"]]
    assert [f.get("leases", f.get("blockers")) for f in told] == [1, 2] * 3


def test_a_quote_counts_what_is_in_the_way(
    waiting: LeaseRequest, calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = RequestPreview(None, False, 1, waiting_reasons(waiting), [])
    monkeypatch.setattr("portal.api.catalog.preview", lambda **_asked: seen)

    quoted = calls("charlie").post("quote/", {"flavor": "h100", "duration_s": 3600}).json()["reasons"]

    assert [reason["figures"]["known"] for reason in quoted] == [[], names("charlie")]
    assert quoted[1]["figures"]["blockers"] == 2


def waiting_reasons(request: LeaseRequest) -> list[dict[str, Any]]:
    return list(LeaseRequest.objects.values_list("reasons", flat=True).get(pk=request.pk))


def test_a_list_asks_once_for_the_names_in_all_its_reasons(
    world: World, waiting: LeaseRequest, calls: Any
) -> None:
    charlie = calls("charlie")
    charlie.get("requests/")  # notes when the token was last used
    with CaptureQueriesContext(connection) as one:
        charlie.get("requests/")
    more = world.submit("charlie", "h100")
    LeaseRequest.objects.filter(pk=more.pk).update(reasons=LeaseRequest.objects.get(pk=waiting.pk).reasons)

    with CaptureQueriesContext(connection) as two:
        assert len(charlie.get("requests/").json()["results"]) >= 2

    assert len(two) == len(one)


def test_the_page_names_ones_own_lease_and_no_strangers(world: World, waiting: LeaseRequest) -> None:
    client = Client()
    client.force_login(world.user("charlie"))

    text = client.get(f"/requests/{waiting.uid}/").text

    assert f"In the way, among others: {names('charlie')[0]}." in text
    assert names("bob")[0] not in text
