"""Rules over metrics: an alert is pending, fires, is told, acted upon and resolved; storms are folded."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.utils import DatabaseError

from portal.alerts import evaluating, metrics, telling
from portal.alerts.acting import act
from portal.alerts.evaluating import settle_rule, watch_alerts
from portal.alerts.metrics import AlertSubject, Sources
from portal.alerts.models import Alert, AlertRule, AlertSilence
from portal.alerts.rules import (
    AlertSpec,
    acknowledge,
    change_rule,
    end_silence,
    make_rule,
    remove_rule,
    silence,
    switch_rule,
)
from portal.alerts.telling import tell
from portal.alerts.words import evidence_text
from portal.audit.models import AuditEntry
from portal.budgets.models import BudgetForecast, TeamBudget
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.live import redis_client
from portal.fleet.models import Device, HealthEvent, MaintenanceWindow, Node
from portal.notifications.models import Delivery, Notification
from portal.telemetry.frames import DeviceNow, Frame, pack
from portal.telemetry.latest import LATEST
from portal.web.notifications.rows import notification_rows
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def only_rules_of_the_test(world: World) -> None:
    AlertRule.objects.all().delete()


def by_operator(world: World) -> dict[str, Any]:
    return {"actor": world.user("operator"), "rights": world.rights("operator")}


def rule(world: World, metric: str = "device_temp", threshold: float = 90, **more: Any) -> AlertRule:
    return make_rule(spec=AlertSpec(metric, threshold, **more), now=world.now, **by_operator(world))


def device(n: int, node: Node | None = None, **more: Any) -> AlertSubject:
    return AlertSubject(f"device:{n}", f"gpu-01/{n}", node.pk if node else None, **more)


def states(made: AlertRule) -> dict[str, str]:
    return dict(Alert.objects.filter(rule=made).order_by("pk").values_list("subject", "state"))


def news(kind: str = "alert.firing") -> list[str]:
    return [row.text for row in notification_rows(Notification.objects.filter(kind=kind).order_by("pk"))]


def test_an_alert_is_pending_fires_is_told_and_is_resolved_after_a_moment(world: World) -> None:
    made, hot, cold = rule(world, for_s=120), {device(1): 95.0, device(2): 60.0}, {device(1): 60.0}
    at = world.now

    settle_rule(made.pk, hot, now=at)
    tell(now=at)
    assert (states(made), news()) == ({"device:1": "pending"}, [])

    at += 2 * MINUTE
    settle_rule(made.pk, hot, now=at)
    tell(now=at)
    tell(now=at)
    assert states(made) == {"device:1": "firing"}
    assert news() == ["Alert: Temperature of a device above 90 °C. gpu-01/1; at the worst 95 °C."]

    settle_rule(made.pk, cold, now=at + MINUTE)
    assert states(made) == {"device:1": "firing"}
    settle_rule(made.pk, cold, now=at + 2 * MINUTE)
    tell(now=at + 2 * MINUTE)
    assert states(made) == {"device:1": "resolved"}
    assert news("alert.resolved") == ["Resolved: Temperature of a device above 90 °C. gpu-01/1."]


def test_what_does_not_last_was_never_an_alert_and_what_is_unknown_changes_nothing(world: World) -> None:
    made, at = rule(world, for_s=120), world.now
    settle_rule(made.pk, {device(1): 95.0, device(2): 95.0}, now=at)
    settle_rule(made.pk, {device(2): 10.0}, now=at + MINUTE)
    assert states(made) == {"device:1": "pending"}

    settle_rule(made.pk, {device(1): 96.0}, now=at + 2 * MINUTE)
    settle_rule(made.pk, {device(1): float("nan")}, now=at + 60 * MINUTE)
    settle_rule(made.pk, {}, now=at + 61 * MINUTE)
    assert Alert.objects.get().resolved_at is None
    settle_rule(made.pk, {}, now=at + timedelta(hours=26))
    assert Alert.objects.get().gone_at is not None
    settle_rule(made.pk, {device(9): 99.0}, now=at)  # somebody who began earlier and comes late
    assert Alert.objects.count() == 1


def test_a_storm_is_one_message_a_bounded_number_of_rows_and_counted(
    world: World, django_assert_max_num_queries: Any
) -> None:
    made = rule(world, "queue_length", 0)
    flood = {AlertSubject(f"flavor:{n}", f"f{n}"): float(n) for n in range(1, 10_001)}

    with django_assert_max_num_queries(52):
        for second in range(0, 60, 15):
            at = world.now + timedelta(seconds=second)
            settle_rule(made.pk, flood, now=at)
            tell(now=at)

    made.refresh_from_db()
    assert (made.matched, made.folded) == (10_000, 9_500)
    assert Alert.objects.count() == evaluating.MOST_OPEN
    assert Alert.objects.filter(subject="flavor:10000").exists()  # the worst are kept
    (said,) = news()
    assert "and 9995 more" in said
    assert Notification.objects.count() == 1


def test_what_joins_a_group_waits_and_many_groups_are_told_as_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = list(Node.objects.all())
    made, at = rule(world, grouping="node"), world.now
    settle_rule(made.pk, {device(1, nodes[0]): 95.0}, now=at)
    tell(now=at)
    settle_rule(
        made.pk, {device(1, nodes[0]): 95.0, device(2, nodes[0]): 95.0, device(3, nodes[1]): 95.0}, now=at
    )
    tell(now=at + MINUTE)
    told = {row.target: row.facts["count"] for row in Notification.objects.all()}
    assert told == {f"alert-{made.pk}#{nodes[0].pk}": 1, f"alert-{made.pk}#{nodes[1].pk}": 1}
    tell(now=at + 5 * MINUTE)
    assert Notification.objects.get(target=f"alert-{made.pk}#{nodes[0].pk}").facts["count"] == 2

    Notification.objects.all().delete()
    Alert.objects.update(notified_at=None)
    monkeypatch.setattr(telling, "MOST_GROUPS", 1)
    tell(now=at + 10 * MINUTE)
    assert [row.target for row in Notification.objects.all()] == [f"alert-{made.pk}#"]


def test_silenced_alerts_are_shown_told_to_nobody_and_not_acted_upon(world: World) -> None:
    node = Node.objects.order_by("pk")[0]
    made = rule(world, "node_silence", 300, action="cordon", escalate_min=1)
    made_silence = silence(
        rule=made, node=node, team=None, ends_at=world.now + 30 * MINUTE, reason="new switch", now=world.now,
        **by_operator(world),
    )  # fmt: skip
    settle_rule(made.pk, {AlertSubject(f"node:{node.pk}", node.name, node.pk): 999.0}, now=world.now)
    tell(now=world.now + 10 * MINUTE)
    assert act(now=world.now + 10 * MINUTE) == 0
    assert (Notification.objects.count(), states(made)) == (0, {f"node:{node.pk}": "firing"})

    end_silence(uid=made_silence.uid, now=world.now + 11 * MINUTE, **by_operator(world))
    tell(now=world.now + 11 * MINUTE)
    assert act(now=world.now + 11 * MINUTE) == 1
    node.refresh_from_db()
    assert node.is_cordoned
    assert len(news()) == len(news("escalation.alert")) == 1


def test_a_rule_acts_at_most_three_times_an_hour_and_each_time_is_on_record(world: World) -> None:
    devices = list(Device.objects.order_by("pk")[:5])
    made = rule(world, action="quarantine")
    told = rule(world, "device_temp", 80)
    found = {AlertSubject(f"device:{one.pk}", str(one), one.node_id, one.pk): 95.0 for one in devices}
    settle_rule(made.pk, found, now=world.now)
    settle_rule(told.pk, found, now=world.now)

    assert act(now=world.now) == 3
    assert act(now=world.now + MINUTE) == 0
    assert Device.objects.filter(health="quarantined").count() == 3
    assert Alert.objects.filter(held_back_at__isnull=False).count() == 2
    assert AuditEntry.objects.filter(action="alert.acted", actor=None).count() == 3
    assert act(now=world.now + 61 * MINUTE) == 2


def test_an_alert_that_somebody_acknowledged_is_not_escalated(world: World) -> None:
    alice = world.user("alice")
    made = rule(world, escalate_min=10, escalate_to=alice)
    settle_rule(made.pk, {device(1): 95.0, device(2): 95.0}, now=world.now)
    tell(now=world.now)
    one = Alert.objects.get(subject="device:1")
    acknowledge(uid=one.uid, now=world.now, **by_operator(world))

    tell(now=world.now + 10 * MINUTE)
    tell(now=world.now + 20 * MINUTE)

    (row,) = Notification.objects.filter(kind="escalation.alert")
    assert row.user == alice
    assert news("escalation.alert") == [
        "Nobody has acknowledged for 10 minutes: Temperature of a device above 90 °C. gpu-01/2."
    ]
    assert not Delivery.objects.exists()


def test_rules_are_changed_switched_and_removed_with_their_alerts_and_only_by_operators(world: World) -> None:
    made = rule(world, name="Hot")
    settle_rule(made.pk, {device(1): 95.0}, now=world.now)
    for spec, field in (
        (AlertSpec("nothing", 1), "metric"),
        (AlertSpec("device_temp", float("nan")), "threshold"),
        (AlertSpec("device_temp", 1e300), "threshold"),
        (AlertSpec("device_temp", 1, for_s=90_000), "for_s"),
        (AlertSpec("device_temp", 1, name="Hot"), "name"),
        (AlertSpec("queue_wait", 1, action="cordon"), "action"),
        (AlertSpec("node_silence", 1, action="quarantine"), "action"),
        (AlertSpec("device_temp", 1, escalate_min=0), "escalate_min"),
    ):
        with pytest.raises(Invalid) as no:
            make_rule(spec=spec, now=world.now, **by_operator(world))
        assert set(no.value.fields) == {field}
    alice = {"actor": world.user("alice"), "rights": world.rights("alice"), "now": world.now}
    with pytest.raises(Forbidden):
        switch_rule(key=made.pk, is_on=False, **alice)

    later = world.now + MINUTE
    change_rule(key=made.pk, spec=AlertSpec("device_temp", 99, name="Hot"), now=later, **by_operator(world))
    assert states(made) == {"device:1": "resolved"}
    assert (
        evidence_text(Alert.objects.get()) == "The rule has been changed since."
    )  # it fired above 90, not 99
    with pytest.raises(Conflict):
        acknowledge(uid=Alert.objects.get().uid, now=later, **by_operator(world))
    settle_rule(made.pk, {device(1): 100.0}, now=later)
    switch_rule(key=made.pk, is_on=False, now=later, **by_operator(world))
    settle_rule(made.pk, {device(2): 100.0}, now=later)
    remove_rule(key=made.pk, now=later, **by_operator(world))
    assert not Alert.objects.filter(resolved_at=None).exists()
    rule(world, name="Hot")
    with pytest.raises(NotFound):
        remove_rule(key=made.pk, now=later, **by_operator(world))
    with pytest.raises(Invalid):
        silence(
            rule=None,
            node=None,
            team=None,
            ends_at=world.now,
            reason=" ",
            now=world.now,
            **by_operator(world),
        )


def test_the_database_refuses_a_second_open_alert_a_way_back_and_a_silence_of_everything(
    world: World,
) -> None:
    made = rule(world)
    settle_rule(made.pk, {device(1): 95.0}, now=world.now)
    first = Alert.objects.get()

    def refused(change: Any) -> None:
        with pytest.raises((IntegrityError, DatabaseError)), transaction.atomic():
            change()

    refused(lambda: Alert.objects.create(
        rule=made, subject="device:1", about="", state="pending", value=1, pending_at=world.now, seen_at=world.now
    ))  # fmt: skip
    refused(lambda: Alert.objects.update(state="pending", firing_at=None))
    refused(lambda: Alert.objects.update(state="resolved"))
    refused(lambda: AlertRule.objects.update(threshold=float("nan")))
    refused(lambda: AlertSilence.objects.create(
        reason="all", starts_at=world.now, ends_at=world.now + MINUTE, made_by=world.user("operator")
    ))  # fmt: skip
    assert Alert.objects.get().state == first.state


def test_every_metric_is_read_in_a_fixed_number_of_queries_and_scopes_narrow_it(
    world: World, django_assert_max_num_queries: Any
) -> None:
    now, one = world.now, Device.objects.select_related("node").order_by("pk")[0]
    world.submit("bob", at=now - 10 * MINUTE)
    HealthEvent.objects.create(node=one.node, device=one, code="48", severity="critical", detail="", at=now)
    sample = DeviceNow(one.uuid, 50.0, 70_000, 80_000, 300.0, 91.0, "nvml")
    frame = Frame(one.node.name, now.timestamp(), "b", 1, (sample,), ())
    redis_client().hset(LATEST, one.node.name, pack(frame))
    try:
        with django_assert_max_num_queries(14):
            sources = Sources(now)
            found = {name: metric.read(sources) for name, metric in metrics.METRICS.items()}
        for name in metrics.METRICS:
            rule(world, name, -1)
        narrow = rule(world, node=Node.objects.exclude(pk=one.node_id)[0], name="elsewhere")
        assert watch_alerts(now=now) == len(metrics.METRICS) + 1
    finally:
        redis_client().delete(LATEST)

    def by_name(metric: str) -> dict[str, float]:
        return {subject.about: value for subject, value in found[metric].items()}

    assert by_name("device_temp") == {str(one): 91}
    assert by_name("device_memory") == {str(one): 87.5}
    assert by_name("ecc") == by_name("xid") == by_name("health_critical") == {str(one): 1}
    assert list(by_name("queue_wait").values()) == [600]
    assert set(by_name("node_silence")) == set(Node.objects.values_list("name", flat=True))
    assert not states(narrow)


def test_a_node_in_maintenance_is_not_called_silent(world: World) -> None:
    node = world.nodes["gpu-01"]
    window = MaintenanceWindow.objects.create(
        starts_at=world.now, ends_at=world.now + MINUTE, reason="new cables", created_at=world.now
    )
    window.nodes.add(node)

    during, after = (
        {subject.about for subject in Sources(at).silence()} for at in (world.now, world.now + 2 * MINUTE)
    )

    assert after - during == {node.name}


def test_budgets_count_while_they_run(world: World) -> None:
    month, year = date(2026, 11, 1), date(2026, 1, 1)
    at = datetime(2026, 11, 16, 12, tzinfo=UTC)
    # Of whom, from when, until when, each month anew, what was looked at last.
    for slug, starts_on, ends_before, is_monthly, since in (
        ("vision", month, None, True, month),
        ("language", year, None, True, date(2026, 10, 1)),  # of last month: this one was not looked at yet
        ("robotics", year, month, True, date(2026, 10, 1)),  # has ended
        ("northwind", year, date(2027, 1, 1), False, year),
    ):
        budget = TeamBudget.objects.create(
            team=world.team(slug), amount_micro=200, is_monthly=is_monthly, starts_on=starts_on,
            ends_before=ends_before, created_at=at,
        )  # fmt: skip
        BudgetForecast.objects.create(
            budget=budget, since=since, made_at=at, spent_micro=150, likely_micro=220
        )

    sources = Sources(at)

    for name, percent in (("budget_used", 75), ("budget_forecast", 110)):
        found = metrics.METRICS[name].read(sources)
        assert {subject.about: value for subject, value in found.items()} == {
            "Vision": percent, "Northwind Labs": percent,
        }  # fmt: skip


def test_a_fresh_installation_watches_what_any_site_would(world: World) -> None:
    from importlib import import_module

    first = import_module("portal.alerts.migrations.0001_initial").FIRST_RULES

    assert {metric for metric, *_rest in first} <= set(metrics.METRICS)
    assert {metric for metric, *_rest, is_on in first if is_on} == {
        "node_silence", "device_temp", "ecc", "health_critical", "outbox", "deliveries",
    }  # fmt: skip
