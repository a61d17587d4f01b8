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


def test_a_team_admin_lists_and_acknowledges_what_is_about_their_team(berth: Any, world: World) -> None:
    berth("alert", "set", "team_queue_wait", "60", "--tell", "both", who="operator")
    berth("alert", "set", "team_idle", "0", who="operator")
    shared, hidden = AlertRule.objects.order_by("-pk")[:2][::-1]
    team, now = world.team("perception"), timezone.now()
    subject = AlertSubject(f"team:{team.pk}", team.name, team_id=team.pk, lineages=frozenset(team.lineage))
    for made in (shared, hidden):
        settle_rule(made.pk, {subject: 900.0}, now=now)

    rows = json.loads(berth("alert", "list", "--team", "vision", "--json", who="alice").stdout)
    assert [(row["rule"], row["team"]) for row in rows] == [(shared.pk, "perception")]
    assert berth("alert", "list", "--team", "language", who="alice").exit_code != 0
    assert berth("alert", "list", who="bob").exit_code != 0
    assert "Nothing fires" in berth("alert", "list", "--past", who="alice").output
    taken = berth("alert", "ack", rows[0]["id"], who="alice").output
    assert taken == "Perception: acknowledged by alice.\n"
    assert berth("alert", "ack", hidden.alerts.get().uid, who="alice").exit_code != 0
    assert berth("alert", "rules", who="alice").exit_code != 0
    assert "both" in berth("alert", "rules", who="operator").output
