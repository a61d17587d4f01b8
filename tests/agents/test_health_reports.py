from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from nodeagent.protocol.messages import DeviceFact, HealthFact, LeaseReport, Report
from portal.agents.reports import accept_report
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid
from portal.fleet.health import clear_health, clear_node_health, quarantine, see_health
from portal.fleet.models import Device, Health, HealthEvent, Node
from portal.fleet.services import learn_devices
from portal.leases.health_notices import tell_of_health
from portal.leases.models import Lease, Placement
from portal.notifications.models import Notification
from portal.web.notifications.rows import notification_rows
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


class Desk:
    """An agent's desk: it writes reports with rising numbers."""

    def __init__(self, node: Node) -> None:
        self.node, self.seq = node, 0

    def say(self, *health: HealthFact, leases: tuple[LeaseReport, ...] = ()) -> None:
        self.seq += 1
        revision = Node.objects.get(pk=self.node.pk).desired_revision
        report = Report(1, "boot-1", self.seq, revision, leases, (), health=health)
        assert accept_report(self.node.pk, report)


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world.nodes["gpu-01"])


@pytest.fixture
def lease(world: World) -> Lease:
    return world.active()


def device_of(lease: Lease) -> Device:
    return Placement.objects.select_related("device").get(lease=lease).device


def fact(
    device: Device | None, code: str = "79", severity: str = "critical", action: str = "", detail: str = ""
) -> HealthFact:
    return HealthFact(device.uuid if device else "", code, severity, detail or f"said {code}", action)


def health_of(device: Device) -> tuple[str, str]:
    device.refresh_from_db()
    return str(device.health), device.health_reason


def news_of(world: World, name: str) -> list[str]:
    rows = Notification.objects.filter(user=world.user(name), kind__in=("lease.health", "fleet.health"))
    with translation.override("en"):
        return [row.text for row in notification_rows(rows)]


def test_a_critical_event_takes_one_device_out_of_work_and_nothing_else(world: World, desk: Desk) -> None:
    first, second = Device.objects.filter(node=desk.node).order_by("index")[:2]

    desk.say(fact(first, action="reset_gpu", detail="fallen off the bus"))

    assert health_of(first) == ("quarantined", "fallen off the bus")
    assert health_of(second) == ("ok", "")
    assert not Node.objects.get(pk=desk.node.pk).is_cordoned
    assert HealthEvent.objects.get().action == "reset_gpu"


def test_what_concerns_the_node_is_kept_and_quarantines_no_device(world: World, desk: Desk) -> None:
    desk.say(fact(None, "events_unwatched", "critical", "reboot_node"))

    event = HealthEvent.objects.get()
    assert (event.node_id, event.device_id) == (desk.node.pk, None)
    assert not Device.objects.exclude(health=Health.OK).exists()

    clear_node_health(node=desk.node, actor=world.user("operator"), now=world.now)

    event.refresh_from_db()
    assert event.cleared_by == "operator"


def test_a_warning_closes_by_itself_and_a_device_that_was_degraded_is_well_again(
    world: World, desk: Desk
) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")

    desk.say(fact(device, "63", "warning", "drain"))
    degraded = health_of(device)
    desk.say()

    assert degraded == ("degraded", "said 63")
    assert health_of(device) == ("ok", "")
    event = HealthEvent.objects.get()
    assert (event.cleared_by, event.cleared_at is not None) == ("agent", True)


def test_a_critical_event_stays_until_somebody_clears_it_though_the_agent_reports_it_no_more(
    world: World, desk: Desk
) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device))
    while_reported = HealthEvent.objects.get().unreported_at

    desk.say()

    event = HealthEvent.objects.get()
    assert while_reported is None
    assert event.unreported_at is not None
    assert (event.cleared_at, health_of(device)[0]) == (None, "quarantined")

    clear_health(device=device, actor=world.user("operator"), now=world.now)
    event.refresh_from_db()
    assert (event.cleared_by, health_of(device)) == ("operator", ("ok", ""))
    assert AuditEntry.objects.filter(action="device.cleared", target=device.uuid).exists()


def test_a_critical_event_that_is_reported_again_says_so(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device))
    desk.say()

    desk.say(fact(device, detail="twice now"))

    event = HealthEvent.objects.get()
    assert (event.unreported_at, event.detail) == (None, "twice now")


def test_what_is_cleared_while_the_agent_still_reports_it_comes_back(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device))
    clear_health(device=device, actor=world.user("operator"), now=timezone.now())

    desk.say(fact(device))

    assert HealthEvent.objects.filter(cleared_at=None).count() == 1
    assert health_of(device)[0] == "quarantined"


def test_a_device_that_was_away_comes_back_into_the_quarantine_it_left(world: World, desk: Desk) -> None:
    node = desk.node
    device = Device.objects.filter(node=node).earliest("index")
    facts = [
        DeviceFact(d.uuid, d.index, "nvidia", d.model.name, d.model.memory_mib, d.model.grid, tuple(d.modes))
        for d in node.devices.select_related("model")
    ]
    desk.say(fact(device))
    learn_devices(node, [f for f in facts if f.uuid != device.uuid], now=world.now)
    assert health_of(device)[0] == "missing"

    learn_devices(node, facts, now=world.now)

    assert health_of(device)[0] == "quarantined"


def test_clearing_does_not_call_a_missing_device_healthy(world: World) -> None:
    device = Device.objects.earliest("id")
    Device.objects.filter(pk=device.pk).update(health=Health.MISSING)

    clear_health(device=device, actor=world.user("operator"), now=world.now)

    assert health_of(device)[0] == "missing"


def test_a_device_of_another_node_cannot_be_spoken_of(world: World, desk: Desk) -> None:
    other = Device.objects.filter(node=world.nodes["gpu-03"]).earliest("index")

    desk.say(fact(other))

    assert health_of(other) == ("ok", "")
    assert not HealthEvent.objects.exists()


def test_an_agent_that_knows_no_actions_is_understood_as_before(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")

    desk.say(HealthFact(device.uuid, "79", "critical", "fallen off the bus"))

    assert health_of(device) == ("quarantined", "fallen off the bus")


def test_holders_hear_once_per_event_what_it_means_and_operators_that_a_device_left_work(
    world: World, desk: Desk, lease: Lease
) -> None:
    device = device_of(lease)

    for _again in range(3):
        desk.say(fact(device, action="reset_gpu"))

    (said,) = news_of(world, "bob")
    assert f"GPU {device.index} of gpu-01" in said
    assert "fallen off the bus" in said
    assert "Save your work now" in said
    assert "back into the queue" in said
    (told,) = news_of(world, "operator")
    assert "in quarantine" in told
    assert "XID 79" in told
    assert not news_of(world, "charlie")


def test_news_of_a_sick_device_leads_to_the_lease(world: World, desk: Desk, lease: Lease) -> None:
    desk.say(fact(device_of(lease), action="drain"))

    (row,) = notification_rows(Notification.objects.filter(user=lease.user, kind="lease.health"))

    assert row.url == f"/leases/{lease.uid}/"
    assert row.about


def test_what_asks_nobody_to_do_anything_is_no_news(world: World, desk: Desk, lease: Lease) -> None:
    desk.say(fact(device_of(lease), "63", "warning", "watch"), fact(device_of(lease), "92", "info"))
    desk.say(fact(device_of(lease), "31", "info", "restart_workload"))

    assert HealthEvent.objects.count() == 3
    assert not Notification.objects.filter(kind="lease.health").exists()


def test_a_fault_of_a_program_tells_its_holder_to_start_again_and_leaves_the_device_in_work(
    world: World, desk: Desk, lease: Lease
) -> None:
    desk.say(fact(device_of(lease), "31", "warning", "restart_workload"))

    (said,) = news_of(world, "bob")
    assert "start it again" in said
    assert health_of(device_of(lease)) == ("ok", "")


def test_a_warning_that_flutters_is_told_of_once(world: World, lease: Lease) -> None:
    node, device = world.nodes["gpu-01"], device_of(lease)
    warning = [fact(device, "63", "warning", "drain")]

    told = []
    for minute in range(0, 6, 2):
        told.append(len(see_health(node, warning, now=world.now + timedelta(minutes=minute))))
        told.append(len(see_health(node, [], now=world.now + timedelta(minutes=minute + 1))))
    later = see_health(node, warning, now=world.now + timedelta(hours=1))

    assert told == [1, 0, 0, 0, 0, 0]
    assert len(later) == 1


def test_a_warning_that_becomes_critical_quarantines_and_is_told_anew(
    world: World, desk: Desk, lease: Lease
) -> None:
    device = device_of(lease)
    desk.say(fact(device, "63", "warning", "drain"))
    Notification.objects.update(read_at=timezone.now())

    desk.say(fact(device, "63", "critical", "replace"))

    assert health_of(device)[0] == "quarantined"
    assert Notification.objects.get(kind="lease.health").read_at is None
    assert len(news_of(world, "operator")) == 1


def test_an_operator_takes_one_device_out_of_work_and_says_why(world: World, lease: Lease) -> None:
    device, operator = device_of(lease), world.user("operator")

    event = quarantine(device=device, actor=operator, reason="fan is loud", now=world.now)
    tell_of_health([event], now=world.now)

    assert health_of(device) == ("quarantined", "fan is loud")
    assert Lease.objects.get(pk=lease.pk).state == "active"
    assert AuditEntry.objects.get(action="device.quarantined").target == device.uuid
    (said,) = news_of(world, "bob")
    assert "operator" in said
    assert "your lease goes on" in said


def test_a_quarantine_by_hand_is_not_ended_by_what_the_agent_does_not_say(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    quarantine(device=device, actor=world.user("operator"), reason="fan", now=world.now)

    desk.say(fact(device, "63", "warning", "drain"))
    desk.say()

    event = HealthEvent.objects.get(code="by-hand")
    assert (event.cleared_at, event.unreported_at) == (None, None)
    assert health_of(device) == ("quarantined", "fan")


def test_a_quarantine_needs_a_reason_and_a_device_that_is_there(world: World) -> None:
    device, operator = Device.objects.earliest("id"), world.user("operator")

    with pytest.raises(Invalid):
        quarantine(device=device, actor=operator, reason="  ", now=world.now)
    Device.objects.filter(pk=device.pk).update(health=Health.MISSING)
    with pytest.raises(Conflict):
        quarantine(device=device, actor=operator, reason="fan", now=world.now)

    assert not HealthEvent.objects.exists()
    assert not AuditEntry.objects.filter(action="device.quarantined").exists()


CABLE = "the power cable of the board is not connected (XID 54, at 2026-03-02 10:00:00 UTC)"
AGAIN = "the power cable of the board is not connected (XID 54, 2 times, last at 2026-03-02 11:00:00 UTC)"


def test_fault_that_people_end_stays_cleared_though_the_agent_remembers_it(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device, "54", detail=CABLE))
    clear_health(device=device, actor=world.user("operator"), now=world.now)

    desk.say(fact(device, "54", detail=CABLE))
    desk.say(fact(device, "54", detail=CABLE))

    assert health_of(device) == ("ok", "")
    assert HealthEvent.objects.count() == 1


def test_fault_that_people_end_takes_the_device_out_again_when_it_happens_anew(
    world: World, desk: Desk
) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device, "54", detail=CABLE))
    clear_health(device=device, actor=world.user("operator"), now=world.now)

    desk.say(fact(device, "54", detail=AGAIN))

    assert health_of(device) == ("quarantined", AGAIN)


def test_fault_that_only_a_reset_ends_comes_back_however_often_it_is_cleared(
    world: World, desk: Desk
) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device, "48", detail="at ten"))
    clear_health(device=device, actor=world.user("operator"), now=world.now)

    desk.say(fact(device, "48", detail="at ten"))

    assert health_of(device) == ("quarantined", "at ten")


def test_what_was_cleared_on_one_device_is_news_on_another(world: World, desk: Desk) -> None:
    first, second = Device.objects.filter(node=desk.node).order_by("index")[:2]
    desk.say(fact(first, "54", detail=CABLE))
    clear_health(device=first, actor=world.user("operator"), now=world.now)

    desk.say(fact(first, "54", detail=CABLE), fact(second, "54", detail=CABLE))

    assert (health_of(first)[0], health_of(second)[0]) == ("ok", "quarantined")


def test_memory_that_cannot_be_repaired_takes_the_device_out_again_however_often_it_is_cleared(
    world: World, desk: Desk
) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    broken = fact(device, "row_remap_failed", action="replace", detail="1 row")
    desk.say(broken)
    clear_health(device=device, actor=world.user("operator"), now=world.now)
    between = health_of(device)

    desk.say(broken)

    assert between == ("ok", "")
    assert health_of(device) == ("quarantined", "1 row")


def test_what_an_operator_cleared_before_the_node_booted_is_told_anew(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    desk.say(fact(device, "54", detail=CABLE))
    clear_health(device=device, actor=world.user("operator"), now=world.now)
    Node.objects.filter(pk=desk.node.pk).update(boot_id="boot-2", last_seq=-1)

    see_health(Node.objects.get(pk=desk.node.pk), [fact(device, "54", detail=CABLE)], now=world.now)

    assert health_of(device)[0] == "quarantined"


def test_an_operator_who_is_called_agent_is_not_mistaken_for_one(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    operator = world.user("operator")
    operator.username = "agent"
    desk.say(fact(device, "54", detail=CABLE))

    clear_health(device=device, actor=operator, now=timezone.now())
    desk.say(fact(device, "54", detail=CABLE))

    event = HealthEvent.objects.get()
    assert (event.cleared_by, event.is_cleared_by_hand) == ("agent", True)
    assert health_of(device) == ("ok", "")


def test_what_changes_nothing_is_seen_without_a_lock(world: World, desk: Desk) -> None:
    device = Device.objects.filter(node=desk.node).earliest("index")
    facts = [fact(device, "63", "warning", "drain")]
    see_health(desk.node, facts, now=world.now)

    with CaptureQueriesContext(connection) as asked:
        see_health(desk.node, facts, now=world.now)

    assert not [query for query in asked.captured_queries if " FOR " in query["sql"]]


def test_news_for_holders_carry_no_words_that_may_name_other_teams_work(
    world: World, desk: Desk, lease: Lease
) -> None:
    detail = "pid 7 train_secret.py of lse-foreign"
    desk.say(fact(device_of(lease), "outside_mps", "warning", "restart_workload", detail))
    desk.say(fact(device_of(lease), "79", "critical", "reboot_node", detail))
    quarantine(device=device_of(lease), actor=world.user("operator"), reason=detail, now=world.now)

    held = Notification.objects.filter(user=lease.user, kind="lease.health")
    operated = Notification.objects.filter(kind="fleet.health")

    assert held.count() == 2
    assert not [row for row in held if "secret" in str(row.facts)]
    assert [row.facts["detail"] for row in operated] == [detail]
