from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.billing.metering import meter_all
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.portal.builders import World
from tests.web.conftest import SignedIn
from tests.web.test_researcher_requests import same_text


def test_the_holder_sees_how_to_connect_and_the_live_chart(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")
    uuid = lease.placements.get().partition_uuid

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert f"export CUDA_VISIBLE_DEVICES={uuid}" in text
    assert "data-chart" in text
    assert f'data-refresh-on="lease:{lease.uid}"' in text
    assert 'data-time="countdown"' in text
    assert "data-cost" in text


def test_finance_sees_the_lease_without_the_way_in_and_without_buttons(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob")
    client = signed_in("finance")

    text = client.get(f"/leases/{lease.uid}/").text

    assert "CUDA_VISIBLE_DEVICES" not in text
    assert f"/leases/{lease.uid}/release/" not in text
    assert client.post(f"/leases/{lease.uid}/release/").status_code == 403
    assert client.post(f"/leases/{lease.uid}/extend/", {"extra": "1 h"}).status_code == 403


def test_charlie_meets_another_teams_lease_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")
    charlie = signed_in("charlie")

    foreign = charlie.get(f"/leases/{lease.uid}/")
    missing = charlie.get("/leases/lse-0000000000000000/")

    assert foreign.status_code == missing.status_code == 404
    assert same_text(foreign.text) == same_text(missing.text)
    assert charlie.post(f"/leases/{lease.uid}/release/").status_code == 404
    assert charlie.post(f"/leases/{lease.uid}/extend/", {"extra": "1 h"}).status_code == 404
    assert lease.uid not in charlie.get("/leases/").text


def test_a_lease_close_to_its_end_warns(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob", at=world.now - timedelta(minutes=55), duration_s=3600)

    assert "This lease ends soon" in signed_in("bob").get(f"/leases/{lease.uid}/").text


def test_extending_adds_the_time_once_however_often_one_clicks(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    lease = world.active("bob", duration_s=3600)
    fields = {"extra": "1 h", "seen": lease.not_after.isoformat()}

    first = client.post(f"/leases/{lease.uid}/extend/", fields, follow=True)
    second = client.post(f"/leases/{lease.uid}/extend/", fields, follow=True)

    assert "Extended by 1 h." in first.text
    assert "not extended again" in second.text
    assert Lease.objects.get().not_after - lease.not_after == timedelta(hours=1)


def test_a_page_that_refreshes_itself_takes_no_message_from_the_one_that_comes(
    world: World, signed_in: SignedIn
) -> None:
    client, lease = signed_in("bob"), world.active("bob", duration_s=3600)
    path = f"/leases/{lease.uid}/"
    client.post(f"{path}extend/", {"extra": "1 h", "seen": lease.not_after.isoformat()})

    refreshed, came, again = (client.get(path, headers=more) for more in ({"HX-Request": "true"}, {}, {}))

    said = ["Extended by 1 h." in answer.text for answer in (refreshed, came, again)]
    assert said == [False, True, False]


@pytest.mark.parametrize("extra", ["", "soon", "-1 h", "99999 d", "0", "9" * 60, "1 h\x00"])
def test_an_extension_that_cannot_be_changes_nothing(world: World, signed_in: SignedIn, extra: str) -> None:
    lease = world.active("bob")

    answer = signed_in("bob").post(f"/leases/{lease.uid}/extend/", {"extra": extra}, follow=True)

    assert answer.status_code == 200
    assert 'role="alert"' in answer.text
    assert Lease.objects.get().not_after == lease.not_after


def test_releasing_stops_the_clock_once(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    lease = world.active("bob")

    for _click in range(2):
        assert client.post(f"/leases/{lease.uid}/release/").status_code == 302

    lease.refresh_from_db()
    assert lease.state == LeaseState.ENDING
    assert lease.events.filter(now=LeaseState.ENDING).count() == 1


def test_the_receipt_leads_from_seconds_to_the_invoice_line(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    lease = world.ended("bob", "h100", seconds=1800)
    before = client.get(f"/leases/{lease.uid}/").text
    meter_all(now=timezone.now())

    text = client.get(f"/leases/{lease.uid}/").text

    assert "being counted" in before
    assert "1800 s × 1 GPU × 3.60 EUR/h" in text
    assert "1.80" in text
    assert "difference 0.000 s" in text
    assert "/invoices/perception/" in text


def test_a_lease_that_never_started_is_free(world: World, signed_in: SignedIn) -> None:
    request = world.submit("bob")
    world.turn()
    lease = Lease.objects.get(request=request)
    client = signed_in("bob")
    assert "Almost there" in client.get(f"/leases/{lease.uid}/").text
    client.post(f"/leases/{lease.uid}/release/")

    assert "never active, so nothing is billed" in client.get(f"/leases/{lease.uid}/").text


@pytest.mark.parametrize(
    "query",
    [
        "?state=live&whose=mine&team=perception&ordering=-ends",
        "?state=nonsense&whose=all&team=language&ordering=drop",
        "?q=%25_%27%22&page=99999999999999999999",
        "?q=" + "x" * 500,
        "?ordering=--team&state=",
    ],
)
@pytest.mark.parametrize("path", ["/leases/", "/requests/"])
def test_lists_take_any_filter_without_falling_over(signed_in: SignedIn, path: str, query: str) -> None:
    assert signed_in("bob").get(path + query).status_code == 200


def test_lists_filter_to_what_was_asked_for(world: World, signed_in: SignedIn) -> None:
    bob, alice = world.active("bob"), world.active("alice")
    client = signed_in("alice")

    mine = client.get("/leases/?whose=mine").text
    found = client.get(f"/leases/?q={bob.uid}").text
    ended = client.get("/leases/?state=ended").text

    assert alice.uid in mine
    assert bob.uid not in mine
    assert alice.uid not in found
    assert bob.uid in found
    assert "Nothing matches" in ended


@pytest.mark.parametrize("path", ["/leases/", "/requests/"])
def test_the_number_of_queries_does_not_grow_with_the_list(
    world: World, signed_in: SignedIn, path: str
) -> None:
    client = signed_in("alice")
    # They cost something already, whichever part of a second it is: what costs nothing asks for no month.
    a_minute_ago = world.now - timedelta(minutes=1)
    world.active("bob", at=a_minute_ago)
    world.submit("bob", "h100", count=8)
    client.get(path)
    with CaptureQueriesContext(connection) as few:
        client.get(path)
    for _n in range(5):
        world.active("bob", at=a_minute_ago)
        world.submit("alice", "h100", count=8)

    with CaptureQueriesContext(connection) as many:
        client.get(path)

    assert len(many) <= len(few)
    assert len(many) <= 20


def test_several_devices_are_one_variable_and_a_nodes_words_are_quoted(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob", count=2)
    first, second = lease.placements.all()
    first.access = {
        "env": {"CUDA_VISIBLE_DEVICES": "x; id", "PATH": "/tmp"},
        "nodes": ["/dev/nvidia0", "/etc/shadow"],
    }
    first.save()

    text = signed_in("bob").get(f"/leases/{lease.uid}/").text

    assert f"export CUDA_VISIBLE_DEVICES=&#x27;x; id,{second.partition_uuid}&#x27;" in text
    assert text.count("export CUDA_VISIBLE_DEVICES") == 1
    assert "export PATH" not in text
    assert "/etc/shadow" not in text
