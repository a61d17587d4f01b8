"""Pausing intake for an alert: nothing new starts there while it lasts, what runs goes on, and it ends by itself."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from portal.alerts.acting import act
from portal.alerts.evaluating import settle_rule
from portal.alerts.metrics import AlertSubject
from portal.alerts.models import Alert, AlertRule
from portal.alerts.rules import AlertSpec, forget_alerts, make_rule, resume, silence, switch_rule
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import Device, IntakePause, Node
from portal.fleet.pauses import HOLDS, paused_devices
from portal.leases import bookings
from portal.leases.models import Lease, LeaseRequest
from portal.leases.reasons import sentence
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def only_rules_of_the_test(world: World) -> None:
    AlertRule.objects.all().delete()


def by_operator(world: World) -> dict[str, Any]:
    return {"actor": world.user("operator"), "rights": world.rights("operator")}


def rule(world: World, metric: str = "device_temp", **more: Any) -> AlertRule:
    return make_rule(spec=AlertSpec(metric, 90, action="pause", **more), now=world.now, **by_operator(world))


def hot(*devices: Device) -> dict[AlertSubject, float]:
    return {
        AlertSubject(f"device:{one.pk}", f"gpu/{one.index}", one.node_id, one.pk): 95.0 for one in devices
    }


def look(made: AlertRule, found: dict[AlertSubject, float], at: datetime) -> None:
    Node.objects.update(last_seen_at=at)
    settle_rule(made.pk, found, now=at)
    act(now=at)


def of(board: str) -> list[Device]:
    return list(Device.objects.filter(node__name=board).order_by("index"))


def reasons(request: LeaseRequest) -> list[dict[str, Any]]:
    request.refresh_from_db()
    return list(request.reasons)


def test_nothing_new_starts_on_a_device_while_its_alert_lasts_and_what_runs_goes_on(world: World) -> None:
    running = world.active("charlie", "h100")
    first, *others = of("gpu-01")
    made, at = rule(world), world.now + MINUTE
    Device.objects.filter(pk__in=[one.pk for one in others[1:]]).update(health="quarantined")
    look(made, hot(others[0]), at)

    request = world.submit("bob", "h100", at=at)
    assert world.turn(at) == []
    (told, *_rest) = [one for one in reasons(request) if one["code"] == "intake_paused"]
    assert (told["nodes"], told["until"]) == (["gpu-01"], (at + HOLDS).isoformat())
    assert "while an alert lasts there: gpu-01. It is paused until" in sentence(told)
    running.refresh_from_db()
    assert running.state == "active"

    look(made, dict.fromkeys(hot(others[0]), 20.0), at + MINUTE)
    assert world.turn(at + MINUTE) == []  # it fires for a moment more
    look(made, dict.fromkeys(hot(others[0]), 20.0), at + 2 * MINUTE)
    (lease,) = world.turn(at + 2 * MINUTE)
    assert (lease.request_id, first.pk in paused_devices(now=at)) == (request.pk, False)
    pause = IntakePause.objects.get()
    assert (pause.ended_at, pause.ended_by) == (at + 2 * MINUTE, None)
    said = AuditEntry.objects.filter(action__startswith="intake.").order_by("pk")
    assert [(one.action, one.actor_id) for one in said] == [("intake.paused", None), ("intake.resumed", None)]


def test_an_alert_of_a_node_pauses_that_node_and_one_of_berth_the_whole_fleet(world: World) -> None:
    node = world.nodes["gpu-03"]
    look(rule(world, "node_silence"), {AlertSubject(f"node:{node.pk}", node.name, node.pk): 999.0}, world.now)
    assert set(paused_devices(now=world.now)) == {one.pk for one in of("gpu-03")}

    look(rule(world, "invariants"), {AlertSubject("fleet", "Berth"): 99.0}, world.now)
    assert set(paused_devices(now=world.now)) == set(Device.objects.values_list("pk", flat=True))


@pytest.mark.parametrize("metric", ["queue_wait", "queue_length", "budget_used"])
def test_what_a_pause_would_keep_up_or_a_budget_says_itself_pauses_nothing(world: World, metric: str) -> None:
    with pytest.raises(Invalid) as refused:
        rule(world, metric)
    assert set(refused.value.fields) == {"action"}


def test_an_alert_that_lasts_puts_the_end_off_and_without_a_watch_it_comes(world: World) -> None:
    made, (board, *_others) = rule(world), of("gpu-01")
    look(made, hot(board), world.now)
    look(made, hot(board), world.now + 4 * MINUTE)
    assert IntakePause.objects.get().until == world.now + HOLDS
    look(made, hot(board), world.now + 6 * MINUTE)
    until = IntakePause.objects.get().until
    assert until == world.now + 6 * MINUTE + HOLDS

    assert board.pk in paused_devices(now=until - MINUTE)
    assert paused_devices(now=until) == {}
    look(made, hot(board), until + MINUTE)  # the watch is back, and the alert fires as ever
    assert board.pk in paused_devices(now=until + MINUTE)
    assert AuditEntry.objects.filter(action="intake.paused").count() == 1


def test_an_operator_ends_it_by_hand_and_the_same_alert_does_not_pause_again(world: World) -> None:
    made, (board, *_others) = rule(world), of("gpu-01")
    look(made, hot(board), world.now)
    uid, at = Alert.objects.get().uid, world.now + MINUTE
    with pytest.raises(Forbidden):
        resume(uid=uid, actor=world.user("alice"), rights=world.rights("alice"), now=at)
    with pytest.raises(NotFound):
        resume(uid="alt-none", now=at, **by_operator(world))

    resume(uid=uid, now=at, **by_operator(world))
    resume(uid=uid, now=at + MINUTE, **by_operator(world))
    look(made, hot(board), at + 2 * MINUTE)
    assert paused_devices(now=at + 2 * MINUTE) == {}
    pause = IntakePause.objects.get()
    assert (pause.ended_at, pause.ended_by) == (at, world.user("operator"))
    assert AuditEntry.objects.filter(action="intake.resumed", actor=world.user("operator")).count() == 1

    for minute in (3, 4, 5):
        look(made, dict.fromkeys(hot(board), 20.0), at + minute * MINUTE)
    look(made, hot(board), at + 6 * MINUTE)  # another alert
    assert board.pk in paused_devices(now=at + 6 * MINUTE)
    with pytest.raises(Conflict):
        resume(uid=rule_alert(world), now=at + 7 * MINUTE, **by_operator(world))


def rule_alert(world: World) -> str:
    """Return an alert that never paused anything."""
    spec = AlertSpec("device_temp", 10)
    quiet = make_rule(spec=spec, now=world.now, **by_operator(world))
    settle_rule(quiet.pk, hot(of("gpu-03")[0]), now=world.now)
    return Alert.objects.get(rule=quiet).uid


def test_at_most_three_an_hour_and_a_silence_or_a_rule_that_is_off_ends_them(world: World) -> None:
    made, boards = rule(world), of("gpu-01")
    look(made, hot(*boards[:5]), world.now)
    assert len(paused_devices(now=world.now)) == 3
    assert Alert.objects.filter(held_back_at__isnull=False).count() == 2

    at = world.now + MINUTE
    silence(
        rule=made, node=boards[0].node, team=None, reason="known", ends_at=at + MINUTE, now=at, **by_operator(world)
    )  # fmt: skip
    act(now=at)
    assert paused_devices(now=at) == {}

    look(made, hot(*boards[:5]), world.now + 61 * MINUTE)
    at = world.now + 61 * MINUTE
    assert len(paused_devices(now=at)) == 2  # those that were held back
    switch_rule(key=made.pk, is_on=False, now=at, **by_operator(world))
    act(now=at)
    assert paused_devices(now=at) == {}


def test_a_booking_does_not_begin_on_a_device_that_is_paused(world: World) -> None:
    request = world.submit("bob", "h100", starts_at=world.now + 60 * MINUTE)
    (lease,) = world.turn()
    board = lease.placements.get().device
    look(rule(world), hot(board), world.now + 59 * MINUTE)

    at = world.now + 60 * MINUTE
    for late_s in (0, 121):
        Node.objects.update(last_seen_at=at + timedelta(seconds=late_s))
        assert bookings.start_booked(now=at + timedelta(seconds=late_s)) == 0
    assert Lease.objects.get(pk=lease.pk).end_reason == "replanned"
    assert world.user("bob").notifications.get(kind="booking.replanned").facts["why"] == "paused"
    request.refresh_from_db()
    assert request.state == "queued"


def test_the_database_refuses_a_pause_of_two_things_or_without_an_end_and_old_ones_are_forgotten(
    world: World,
) -> None:
    board = of("gpu-01")[0]
    usual: dict[str, Any] = {"reason": "hot", "started_at": world.now, "until": world.now + MINUTE}
    wrong = (
        {"node": board.node, "device": board},
        {"until": world.now},
        {"ended_at": world.now - MINUTE},
        {"ended_by": world.user("operator")},
        {"reason": ""},
        {"cause": ""},
    )
    for one in wrong:
        with pytest.raises(IntegrityError), transaction.atomic():
            IntakePause.objects.create(**{"cause": "alt-1", **usual, **one})
    IntakePause.objects.create(cause="alt-1", **usual, ended_at=world.now)
    with pytest.raises(IntegrityError), transaction.atomic():
        IntakePause.objects.create(cause="alt-1", **usual)
    forget_alerts(now=world.now + timedelta(days=91))
    assert not IntakePause.objects.exists()
