"""What operators see and do in the life of a node: empty it by a time, change its key, enrol it again."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.agents.acceptance import waiting_of
from portal.agents.models import EnrolToken
from portal.fleet.models import Device, Node
from portal.leases.draining import drain_node, settle_drains
from portal.leases.models import Lease
from tests.portal.builders import World
from tests.web.conftest import SignedIn

DRAIN, ROTATE = "/operations/nodes/gpu-01/drain/", "/operations/nodes/gpu-01/rotate/"
ASKED = {"within": "60", "by": "", "reason": "new memory"}


def test_a_drain_is_previewed_first_and_begins_with_the_second_word(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    operator = signed_in("operator")

    preview = operator.post(DRAIN, ASKED)
    assert f"/leases/{lease.uid}/" in preview.text
    assert not Node.objects.get(name="gpu-01").is_cordoned

    assert operator.post(DRAIN, ASKED | {"confirmed": "1"}).status_code == 302
    lease.refresh_from_db()
    assert lease.wanted_until is not None
    assert "Draining" in operator.get("/cluster/gpu-01/").text
    assert "Draining" in operator.get("/operations/nodes/").text


def test_bringing_a_draining_node_back_gives_leases_their_end_again(
    world: World, signed_in: SignedIn
) -> None:
    lease = world.active("bob", "h100", duration_s=7200)
    operator = signed_in("operator")
    operator.post(DRAIN, ASKED | {"confirmed": "1"})

    operator.post("/operations/nodes/gpu-01/uncordon/")

    lease.refresh_from_db()
    assert (lease.wanted_until, lease.cut_by) == (None, "")
    assert Node.objects.get(name="gpu-01").drain_by is None


@pytest.mark.parametrize(
    "change",
    [
        {"reason": ""},
        {"within": "7"},
        {"by": "soon"},
        {"by": "2099-01-01T00:00"},
        {"by": "9999-12-31T00:00"},
        {"until": "then"},
        {"until": "9999-12-31T00:00:00+00:00"},
    ],
)
def test_what_cannot_be_used_changes_nothing(
    world: World, signed_in: SignedIn, change: dict[str, str]
) -> None:
    answer = signed_in("operator").post(DRAIN, ASKED | {"confirmed": "1"} | change)

    assert answer.status_code == 422
    assert not Node.objects.get(name="gpu-01").is_cordoned


@pytest.mark.parametrize("by", ["2999-12-31T00:00", "9999-12-31T23:59"])
def test_the_preview_says_that_a_time_is_too_far_ahead(world: World, signed_in: SignedIn, by: str) -> None:
    answer = signed_in("operator").post(DRAIN, ASKED | {"by": by})

    assert answer.status_code == 422
    assert "Give a time in the next 90 days." in answer.text


def test_the_deadline_is_the_instant_that_was_previewed_however_long_somebody_looked(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = signed_in("operator")
    monkeypatch.setattr("portal.web.nodes.lifecycle_actions.db_now", lambda: world.now)
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', operator.post(DRAIN, ASKED).text))
    assert hidden["until"] == (world.now + timedelta(hours=1)).isoformat()

    monkeypatch.setattr(
        "portal.web.nodes.lifecycle_actions.db_now", lambda: world.now + timedelta(minutes=20)
    )
    operator.post(DRAIN, hidden)

    assert Node.objects.get(name="gpu-01").drain_by == world.now + timedelta(hours=1)


def test_another_time_for_an_overdue_node_is_the_span_that_was_chosen(
    world: World, signed_in: SignedIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, late = signed_in("operator"), world.now - timedelta(hours=2)
    Node.objects.filter(name="gpu-01").update(drain_by=late, is_cordoned=True, cordon_reason="fan")
    monkeypatch.setattr("portal.web.nodes.lifecycle_actions.db_now", lambda: world.now)

    page = operator.get(DRAIN).text
    assert "Drained until now by" in page
    assert re.search(r'name="by"[^>]*value="[^"]', page) is None, "it would go before the span"
    operator.post(DRAIN, {"within": "240", "by": "", "reason": "fan", "confirmed": "1"})

    assert Node.objects.get(name="gpu-01").drain_by == world.now + timedelta(hours=4)


def test_the_preview_says_what_becomes_of_bookings(world: World, signed_in: SignedIn) -> None:
    assert "Bookings that begin before then" in signed_in("operator").post(DRAIN, ASKED).text


def test_a_node_past_its_time_says_that_something_still_stands_there(
    world: World, signed_in: SignedIn
) -> None:
    world.active("bob", "h100", duration_s=7200)
    drain_node(
        node=world.nodes["gpu-01"], by=world.now - timedelta(hours=1), reason="fan",
        actor=world.user("operator"), now=world.now - timedelta(seconds=5),
    )  # fmt: skip

    assert "Not drained in time" in signed_in("operator").get("/cluster/gpu-01/").text


def test_operators_read_that_a_node_is_empty_and_get_to_its_page(world: World, signed_in: SignedIn) -> None:
    drain_node(
        node=world.nodes["gpu-01"], by=world.now, reason="fan", actor=world.user("operator"), now=world.now
    )
    settle_drains(now=world.now)

    text = signed_in("operator").get("/notifications/").text

    assert "Node gpu-01 is empty" in text
    assert "/cluster/gpu-01/" in text


def test_a_key_is_changed_where_the_agent_can_and_an_old_agent_is_told_apart(
    world: World, signed_in: SignedIn
) -> None:
    operator = signed_in("operator")
    Node.objects.filter(name="gpu-01").update(public_key=bytes(32))
    assert "too old" in operator.get("/cluster/gpu-01/").text
    operator.post(ROTATE)
    assert Node.objects.get(name="gpu-01").rotate_asked_at is None

    Node.objects.filter(name="gpu-01").update(features=["rotate"])
    assert ROTATE in operator.get("/cluster/gpu-01/").text
    operator.post(ROTATE)

    assert Node.objects.get(name="gpu-01").rotate_asked_at is not None
    assert "A new key is asked for" in operator.get("/cluster/gpu-01/").text


def test_enrolling_a_node_with_leases_says_first_what_it_does_to_them(
    world: World, signed_in: SignedIn
) -> None:
    world.active("bob", "h100", duration_s=7200)
    Node.objects.filter(name="gpu-01").update(public_key=bytes(32))
    operator = signed_in("operator")

    first = operator.post("/operations/nodes/enrol/", {"name": "gpu-01"})
    assert "1 lease is on this node" in first.text
    assert "state folder" in first.text
    assert not EnrolToken.objects.exists()

    second = operator.post("/operations/nodes/enrol/", {"name": "gpu-01", "confirmed": "1"})
    assert "enr_" in second.text
    assert Lease.objects.get().state == "active"


def test_an_empty_node_is_enrolled_again_without_a_question(world: World, signed_in: SignedIn) -> None:
    assert "enr_" in signed_in("operator").post("/operations/nodes/enrol/", {"name": "gpu-01"}).text


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "finance", "approver"])
def test_nobody_but_operators_drains_or_changes_keys(world: World, signed_in: SignedIn, name: str) -> None:
    client = signed_in(name)

    assert client.get(DRAIN).status_code == 403
    assert {client.post(path, ASKED | {"confirmed": "1"}).status_code for path in (DRAIN, ROTATE)} == {403}
    assert "Key in force" not in client.get("/cluster/gpu-01/").text
    assert not Node.objects.filter(is_cordoned=True).exists()


def test_the_drains_of_a_fleet_cost_its_list_no_query_each(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    counts = []
    for node in ("gpu-01", "gpu-03"):
        drain_node(
            node=world.nodes[node], by=world.now, reason="fan", actor=world.user("operator"), now=world.now
        )
        with CaptureQueriesContext(connection) as seen:
            operator.get("/operations/nodes/")
        counts.append(len(seen))

    assert counts[0] == counts[1]


def test_what_waits_on_a_node_is_listed_and_accepted_as_it_was_shown(
    world: World, signed_in: SignedIn
) -> None:
    Node.objects.filter(name="gpu-01").update(ahead_at=world.now, unknown_leases=["lse-of-tomorrow"])
    Device.objects.filter(node__name="gpu-01", index=0).update(
        is_accepted=False, said={"model": "H100 NVL", "memory_mib": 95_830}
    )
    Device.objects.filter(node__name="gpu-01", index=1).update(is_accepted=False, accepted=None)
    operator = signed_in("operator")

    page = operator.get("/cluster/gpu-01/").text
    listed = operator.get("/operations/nodes/").text
    stale = operator.post("/operations/nodes/gpu-01/accept/", {"seen": "0" * 16}, follow=True).text
    waits = Device.objects.filter(node__name="gpu-01", is_accepted=False).count()

    assert "Waits for your word" in page
    assert "lse-of-tomorrow" in page
    assert "H100 NVL" in page
    assert "ahead of this database" in listed
    assert "has changed meanwhile" in stale
    assert waits == 2

    Device.objects.filter(node__name="gpu-01", index=0).update(said={})
    seen = waiting_of(Node.objects.get(name="gpu-01")).seen
    assert seen in operator.get("/cluster/gpu-01/").text
    operator.post("/operations/nodes/gpu-01/accept/", {"seen": seen})
    assert not waiting_of(Node.objects.get(name="gpu-01"))
    assert "Waits for your word" not in operator.get("/cluster/gpu-01/").text


@pytest.mark.parametrize("who", ["bob", "alice", "charlie"])
def test_only_operators_see_what_waits_and_accept_it(world: World, signed_in: SignedIn, who: str) -> None:
    Device.objects.filter(node__name="gpu-01").update(is_accepted=False)
    person = signed_in(who)

    assert "Waits for your word" not in person.get("/cluster/gpu-01/").text
    assert person.post("/operations/nodes/gpu-01/accept/").status_code == 403
    assert not Device.objects.filter(node__name="gpu-01", is_accepted=True).exists()
