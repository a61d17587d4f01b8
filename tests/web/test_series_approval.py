from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from portal.catalog.pricing import quote
from portal.leases.models import LeaseRequest, Reservation
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.emptying import PAST_TRIGGERS
from tests.portal.builders import World
from tests.portal.test_series_approval import reserve
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db


@pytest.fixture
def series(world: World) -> Reservation:
    """A daily hour of bob's that waits for an approver."""
    team = world.team("perception")
    team.approval_above_gpu_seconds = 6 * 3600
    team.save()
    world.now = timezone.now()
    return reserve(world)


def test_an_approver_decides_with_times_and_price_at_hand(series: Reservation, signed_in: SignedIn) -> None:
    alice, path = signed_in("alice"), f"/reservations/{series.uid}/decide/"

    text = alice.get("/approvals/").text
    said = alice.post(path, {"decision": "approve", "note": ""}, follow=True).text

    assert series.uid in text
    assert "28 times" in text
    price = quote(
        series.flavor, team_id=series.team_id, count=1, duration_s=28 * 3600, starts_at=series.starts_at
    )
    assert f"{price.amount_micro / 1e6:,.2f}" in text
    assert "Its times are being booked" in said
    assert "Nothing waits for you" in said
    assert LeaseRequest.objects.filter(series=series, state="queued").exists()
    assert "approved your reservation" in signed_in("bob").get("/notifications/").text


def test_its_author_reads_that_it_waits_and_why_it_was_rejected(
    series: Reservation, signed_in: SignedIn
) -> None:
    bob, page = signed_in("bob"), f"/reservations/{series.uid}/"
    assert "waits for approval" in bob.get(page).text

    signed_in("alice").post(f"{page}decide/", {"decision": "reject", "note": "Use a slice."})

    assert "Use a slice." in bob.get(page).text
    assert "Rejected" in bob.get("/reservations/").text


def test_charlie_and_its_author_cannot_decide(series: Reservation, signed_in: SignedIn) -> None:
    path = f"/reservations/{series.uid}/decide/"

    assert signed_in("charlie").post(path, {"decision": "approve"}).status_code == 404
    signed_in("bob").post(path, {"decision": "approve"})

    assert Reservation.objects.get().approval == "awaiting_approval"


def test_in_chinese_it_waits_too(series: Reservation, signed_in: SignedIn) -> None:
    bob = signed_in("bob")

    text = bob.get(f"/reservations/{series.uid}/", headers={"Accept-Language": "zh-hans"}).text

    assert "此周期预订正在等待审批" in text


def test_by_command_line_requests_and_reservations_are_decided(
    series: Reservation,
    world: World,
    berth: Berth,  # noqa: F811
) -> None:
    waits = world.submit("bob", "h100", duration_s=7 * 3600)
    assert waits.state == "awaiting_approval"

    assert berth("approve", waits.uid, who="bob").exit_code == 1
    assert berth("approve", waits.uid, who="alice").exit_code == 0
    assert berth("reject", series.uid, "--note", "too much", who="charlie").exit_code == 1
    assert berth("reject", series.uid, "--note", "too much", who="alice").exit_code == 0
    assert berth("approve", "nod-1", who="alice").exit_code == 2

    waits.refresh_from_db()
    series.refresh_from_db()
    assert (waits.state, series.approval) == ("queued", "rejected")


def test_a_price_that_ends_before_the_series_does_is_unknown_and_the_rest_is_shown(
    series: Reservation, signed_in: SignedIn
) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(PAST_TRIGGERS)
        end = series.starts_at + timedelta(days=1)
        cursor.execute("UPDATE catalog_rate SET valid = tstzrange(lower(valid), %s)", [end])
        cursor.execute("SET LOCAL session_replication_role = origin")

    answer = signed_in("alice").get("/approvals/")

    assert answer.status_code == 200
    assert series.uid in answer.text
    assert "28 times" in answer.text
