"""What a node says is believed for its own things, its own grant and its own time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from nodeagent.protocol.messages import LeaseReport
from portal.agents.desired import desired_state
from portal.agents.reports import accept_report
from portal.fleet.models import Node
from portal.leases.models import Lease
from tests.agents.test_reports import Desk, granted, ready
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


def test_a_node_ends_no_lease_of_another_node(world: World, desk: Desk) -> None:
    lease = world.active()
    gone = desk.report(LeaseReport(lease.uid, lease.generation, "gone"))

    accept_report(world.nodes["gpu-03"].pk, gone)

    assert Lease.objects.get(pk=lease.pk).state == "active"


def test_the_end_of_an_earlier_grant_does_not_end_this_one(world: World, desk: Desk) -> None:
    lease = world.active()
    Lease.objects.filter(pk=lease.pk).update(generation=2)

    desk.say(LeaseReport(lease.uid, 1, "gone"))

    assert Lease.objects.get(pk=lease.pk).state == "active"


def test_a_lease_that_its_node_ended_late_costs_nothing_after_its_end(
    world: World, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = granted(world)
    desk.say(ready(lease))
    lease.refresh_from_db()

    monkeypatch.setattr("portal.agents.reports.db_now", lambda: lease.not_after + timedelta(seconds=30))
    desk.say(LeaseReport(lease.uid, lease.generation, "gone", reason="expired"))

    ended = Lease.objects.get(pk=lease.pk)
    assert (ended.state, ended.ended_at, ended.end_reason) == ("ended", lease.not_after, "expired")


def test_a_node_with_a_lease_is_never_told_to_sleep(world: World) -> None:
    Node.objects.filter(name="gpu-01").update(power_desired="asleep", power_state="awake")
    node = world.nodes["gpu-01"]
    assert desired_state(node.pk, now=world.now).power == "asleep"

    Node.objects.filter(pk=node.pk).update(power_desired="awake")
    world.active()
    Node.objects.filter(pk=node.pk).update(power_desired="asleep")

    assert desired_state(node.pk, now=world.now).power == "awake"
