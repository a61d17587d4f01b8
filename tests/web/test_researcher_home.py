from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.notifications.services import notify
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "approver", "finance", "operator"])
def test_everybody_finds_a_first_step(signed_in: SignedIn, name: str) -> None:
    answer = signed_in(name).get("/")

    assert answer.status_code == 200
    words = {"alice": "New request", "bob": "New request", "charlie": "New request"}
    others = {"approver": "Approvals", "finance": "Prices", "operator": "Nodes"}
    assert (words | others)[name] in answer.text


def test_home_shows_my_lease_my_queue_and_why_it_waits(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    lease = world.active("bob", "h100", count=7)
    world.submit("bob", "h100", count=2)
    world.turn()
    publish(world.now)

    text = signed_in("bob").get("/").text

    assert f"/leases/{lease.uid}/" in text
    assert f'data-live-topic="lease:{lease.uid}"' in text
    assert "of Vision are free" in text
    assert "Place in the queue" in text


def test_a_quota_bar_is_as_long_as_its_ceiling(world: World, signed_in: SignedIn) -> None:
    world.active("bob", "h100", count=2)

    text = signed_in("bob").get("/").text

    assert 'viewBox="0 0 8000 10"' in text
    assert "6 free" in text


def test_without_a_picture_the_start_is_unknown_and_not_zero(world: World, signed_in: SignedIn) -> None:
    world.active("bob", "h100", count=8)
    world.submit("bob", "h100")
    world.turn()

    text = signed_in("bob").get("/").text

    assert "unknown" in text


def test_home_shows_nothing_of_another_team(world: World, signed_in: SignedIn) -> None:
    lease = world.active("bob")

    assert lease.uid not in signed_in("charlie").get("/").text


def test_the_number_of_queries_does_not_grow_with_leases(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    world.active("bob", at=world.now - timedelta(hours=1))  # a whole second, at least, has a price
    world.submit("bob", "h100", count=8, duration_s=60)
    client.get("/")
    with CaptureQueriesContext(connection) as few:
        client.get("/")
    for _n in range(4):
        world.active("bob")
        world.submit("bob", "h100", count=8, duration_s=60)

    with CaptureQueriesContext(connection) as many:
        client.get("/")

    assert len(many) <= len(few)
    assert len(many) <= 32


def test_notifications_are_told_counted_and_marked_read(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    notify([world.user("bob")], "lease.ends_soon", target="lse-x", at=world.now)
    notify([world.user("bob")], "something.new", target="", at=world.now - timedelta(minutes=1))

    listed = client.get("/notifications/")
    assert listed.status_code == 200
    assert "ends soon" in listed.text
    assert "Something changed" in listed.text
    assert "Mark all as read" in listed.text

    assert client.post("/notifications/read/").status_code == 302
    assert "Mark all as read" not in client.get("/notifications/").text
    assert "No news yet" in signed_in("charlie").get("/notifications/").text


@pytest.mark.parametrize("page", ["0", "-1", "999999999999999999999", "x", "%F0%9F%98%80"])
def test_a_page_that_does_not_exist_shows_the_nearest(signed_in: SignedIn, page: str) -> None:
    assert signed_in("bob").get(f"/notifications/?page={page}").status_code == 200
