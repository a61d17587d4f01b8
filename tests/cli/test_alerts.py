"""``berth alert``: a rule that pauses intake, what it does, and the way out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from portal.alerts.acting import act
from portal.alerts.evaluating import settle_rule
from portal.alerts.metrics import AlertSubject
from portal.alerts.models import AlertRule
from portal.fleet.pauses import paused_devices
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


def test_an_operator_lets_a_rule_pause_intake_and_resumes_it(berth: Any, world: World) -> None:
    AlertRule.objects.all().delete()
    berth("alert", "set", "device_temp", "90", "--action", "pause", who="operator")
    made, now = AlertRule.objects.get(), timezone.now()
    board = world.nodes["gpu-01"].devices.get(index=0)
    settle_rule(
        made.pk, {AlertSubject(f"device:{board.pk}", "gpu-01/0", board.node_id, board.pk): 95.0}, now=now
    )
    act(now=now)

    (row,) = json.loads(berth("alert", "list", "--json", who="operator").stdout)
    assert row["paused_until"] is not None
    told = berth("alert", "resume", row["id"], who="operator")
    assert told.output == "gpu-01/0: new leases may start again.\n"
    assert paused_devices(now=timezone.now()) == {}
    (row,) = json.loads(berth("alert", "list", "--json", who="operator").stdout)
    assert row["paused_until"] is None
