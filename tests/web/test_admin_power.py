from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from portal.fleet.models import Node, NodeSleep
from portal.telemetry.energy import saving, settle_sleeps
from portal.telemetry.models import MinuteRollup
from tests.portal.builders import World
from tests.web.conftest import SignedIn

NODE = "/cluster/gpu-03/"
WAKE, SLEEP = "/operations/nodes/gpu-03/wake/", "/operations/nodes/gpu-03/sleep/"
IDLE_MJ, ASLEEP_MJ = 2_400_000, 240_000  # 40 W and 4 W over a minute


def sets(**fields: object) -> None:
    Node.objects.filter(name="gpu-03").update(**fields)


@pytest.fixture
def slept(world: World) -> NodeSleep:
    """gpu-03 idled for half an hour, slept for two and is awake again; its four boards were measured."""
    node = world.nodes["gpu-03"]
    began = world.now.replace(second=0) - timedelta(hours=3)
    sets(power_state="awake", idle_since=world.now)
    for minute in range(-30, 120):
        energy = IDLE_MJ if minute < 0 else ASLEEP_MJ
        at = began + timedelta(minutes=minute)
        MinuteRollup.objects.bulk_create(
            MinuteRollup(device_id=device.pk, minute=at, samples=60, energy_mj=energy)
            for device in node.devices.all()
        )
    Node.objects.filter(pk=node.pk).update(idle_since=began - timedelta(minutes=30))
    sleep = NodeSleep.objects.create(node=node, began_at=began, why="policy")
    settle_sleeps(now=began + timedelta(minutes=1))
    NodeSleep.objects.update(ended_at=began + timedelta(hours=2))
    Node.objects.filter(pk=node.pk).update(idle_since=began + timedelta(hours=2))
    settle_sleeps(now=world.now)
    sleep.refresh_from_db()
    return sleep


def test_what_a_sleep_saved_is_its_idle_rate_less_what_was_used(world: World, slept: NodeSleep) -> None:
    assert slept.idle_mw == 4 * 40_000
    assert slept.used_mj == 4 * 120 * ASLEEP_MJ
    assert slept.saved_mj == 4 * 120 * (IDLE_MJ - ASLEEP_MJ)

    found = saving(now=world.now, since=world.now - timedelta(days=1))

    assert (found.sleeps, found.asleep_s) == (1, 7200)
    assert found.saved_wh == pytest.approx(4 * 36 * 2)


def test_what_was_not_measured_is_unknown_and_not_zero(world: World) -> None:
    node, began = world.nodes["gpu-03"], world.now - timedelta(hours=3)
    for device in node.devices.all()[1:]:  # one board is silent
        MinuteRollup.objects.bulk_create(
            MinuteRollup(
                device_id=device.pk, minute=began + timedelta(minutes=m), samples=60, energy_mj=IDLE_MJ
            )
            for m in range(-30, 120)
        )
    sets(idle_since=began - timedelta(hours=1))
    NodeSleep.objects.create(node=node, began_at=began, ended_at=began + timedelta(hours=2))

    settle_sleeps(now=world.now)

    assert saving(now=world.now, since=world.now - timedelta(days=1)).saved_mj is None


def test_a_sleep_that_still_lasts_counts_as_far_as_it_is_measured(world: World, slept: NodeSleep) -> None:
    NodeSleep.objects.update(ended_at=None, used_mj=None, saved_mj=None)

    found = saving(now=slept.began_at + timedelta(minutes=60), since=slept.began_at)

    assert (found.asleep_s, found.saved_mj) == (3600, 4 * 60 * (IDLE_MJ - ASLEEP_MJ))


def test_operators_see_power_and_what_it_saved(world: World, signed_in: SignedIn, slept: NodeSleep) -> None:
    operator = signed_in("operator")

    page, nodes = operator.get(NODE).text, operator.get("/operations/nodes/").text

    assert "0.29 kWh" in page
    assert "0.29 kWh" in nodes
    assert WAKE in page
    assert SLEEP in page


def test_a_sleeping_node_says_so_to_everybody_and_its_room_is_free(world: World, signed_in: SignedIn) -> None:
    sets(power_state="asleep", power_desired="asleep")

    page = signed_in("bob").get(NODE).text

    assert "This node sleeps to save energy" in page
    assert "Out of service" not in page
    assert WAKE not in page


@pytest.mark.parametrize(
    ("desired", "state", "text"),
    [("awake", "asleep", "Waking up"), ("asleep", "awake", "Falling asleep"), ("asleep", "asleep", "Asleep")],
)
def test_the_state_on_the_way_is_told(
    world: World, signed_in: SignedIn, desired: str, state: str, text: str
) -> None:
    sets(power_state=state, power_desired=desired)

    assert text in signed_in("operator").get("/operations/nodes/").text


def test_unknown_power_is_shown_as_unknown_and_offers_nothing(world: World, signed_in: SignedIn) -> None:
    page = signed_in("operator").get(NODE).text

    assert "has not said whether it can sleep" in page
    assert SLEEP not in page


def test_why_a_node_does_not_obey_is_shown(world: World, signed_in: SignedIn) -> None:
    sets(power_state="awake", power_desired="asleep", power_note="IN_USE: a process is on GPU-1")

    assert "IN_USE: a process is on GPU-1" in signed_in("operator").get(NODE).text


def test_an_operator_keeps_a_node_awake_and_lets_it_sleep(world: World, signed_in: SignedIn) -> None:
    operator = signed_in("operator")
    sets(power_state="awake")

    operator.post(WAKE, {"hours": "4"})
    kept = Node.objects.get(name="gpu-03")
    operator.post(SLEEP)
    sent = Node.objects.get(name="gpu-03")

    assert kept.power_rule == "awake"
    assert kept.power_rule_until is not None
    assert timedelta(hours=3, minutes=59) < kept.power_rule_until - timezone.now() < timedelta(hours=4)
    assert (sent.power_rule, sent.power_rule_until) == ("asleep", None)


def test_a_node_that_cannot_sleep_says_why_and_stays_as_it_is(world: World, signed_in: SignedIn) -> None:
    sets(power_state="unsupported")

    answer = signed_in("operator").post(SLEEP, follow=True)

    assert "gpu-03 cannot sleep" in answer.text
    assert Node.objects.get(name="gpu-03").power_rule == ""


@pytest.mark.parametrize(
    "hours", ["", "0", "-1", "5", "1.5", "9" * 40, "NaN", "٤", " ", "a\x00b", "x" * 5000]
)
def test_a_time_that_is_not_offered_wakes_nothing_and_says_so(
    world: World, signed_in: SignedIn, hours: str
) -> None:
    answer = signed_in("operator").post(WAKE, {"hours": hours}, follow=True)

    assert "Choose how long it stays awake." in answer.text
    kept = Node.objects.get(name="gpu-03")
    assert (kept.power_rule, kept.power_rule_until) == ("", None)


@pytest.mark.parametrize("name", ["alice", "bob", "charlie", "finance", "approver"])
def test_nobody_but_operators_changes_power(world: World, signed_in: SignedIn, name: str) -> None:
    client = signed_in(name)
    sets(power_state="awake")

    assert {client.post(path, {"hours": "4"}).status_code for path in (WAKE, SLEEP)} == {403}
    assert 'action="/operations/' not in client.get(NODE).text
    assert Node.objects.get(name="gpu-03").power_rule == ""


def test_a_node_that_is_not_there_is_a_missing_page(world: World, signed_in: SignedIn) -> None:
    assert signed_in("operator").post("/operations/nodes/gpu-99/wake/").status_code == 404
    assert signed_in("operator").post("/operations/nodes/gpu-99/sleep/").status_code == 404
