from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from portal.alerts.acting import act
from portal.alerts.evaluating import settle_rule
from portal.alerts.metrics import AlertSubject
from portal.alerts.models import Alert, AlertRule, AlertSilence
from portal.fleet.pauses import paused_devices
from tests.portal.builders import World
from tests.web.conftest import SignedIn

PAGE = "/alerts/"
RULE = {
    "name": "", "metric": "node_silence", "comparison": "above", "threshold": "300", "for_s": "5 min",
    "severity": "critical", "node": "", "device_model": "", "team": "", "audience": "operators", "grouping": "node",
    "escalate_min": "15", "escalate_to": "alice", "action": "cordon", "is_on": "on",
}  # fmt: skip


def test_operators_set_change_switch_and_remove_rules_and_others_see_nothing(
    world: World, signed_in: SignedIn
) -> None:
    operator, charlie = signed_in("operator"), signed_in("charlie")
    first = AlertRule.objects.count()

    assert charlie.get(PAGE).status_code == charlie.post(f"{PAGE}rules/new/", RULE).status_code == 403
    for wrong in ({"threshold": "nan"}, {"metric": "x"}, {"for_s": "soon"}, {"escalate_to": "nobody"}):
        assert operator.post(f"{PAGE}rules/new/", RULE | wrong).status_code == 422
    assert operator.post(f"{PAGE}rules/new/", RULE | {"action": "quarantine"}).status_code == 422
    assert operator.post(f"{PAGE}rules/new/", RULE).status_code == 302

    made = AlertRule.objects.latest("pk")
    own = f"{PAGE}rules/{made.pk}/"
    assert (AlertRule.objects.count(), made.for_s, made.escalate_to) == (first + 1, 300, world.user("alice"))
    text = operator.get(PAGE).text
    assert "Silence of an agent above 5 min for 5 min" in text
    assert "The node is cordoned, after 15 min to" in text
    assert 'name="threshold" value="300"' in operator.get(own).text
    assert charlie.post(f"{own}switch/", {"on": "0"}).status_code == 403
    operator.post(own, RULE | {"name": "Lost nodes", "threshold": "600"})
    operator.post(f"{own}switch/", {"on": "0"})
    made.refresh_from_db()
    assert (made.name, made.threshold, made.is_on) == ("Lost nodes", 600, False)
    operator.post(f"{own}remove/")
    assert operator.get(own).status_code == 404


def test_an_alert_is_shown_with_its_evidence_acknowledged_and_silenced(
    world: World, signed_in: SignedIn, django_assert_max_num_queries: Any
) -> None:
    operator, charlie = signed_in("operator"), signed_in("charlie")
    node = world.nodes["gpu-01"]
    operator.post(f"{PAGE}rules/new/", RULE | {"for_s": ""})
    made = AlertRule.objects.latest("pk")
    settle_rule(made.pk, {AlertSubject(f"node:{node.pk}", node.name, node.pk): 900.0}, now=timezone.now())
    alert = Alert.objects.get()

    with django_assert_max_num_queries(24):
        text = operator.get(PAGE).text
    assert "15 min, where the rule says: Silence of an agent above 5 min." in text
    assert f'<a href="/cluster/{node.name}/">gpu-01</a>' in text
    assert "One alert fires" in operator.get("/").text
    assert charlie.post(f"{PAGE}{alert.uid}/acknowledge/").status_code == 403
    operator.post(f"{PAGE}{alert.uid}/acknowledge/")
    assert "acknowledged by Operator" in operator.get(PAGE).text

    sent = {"rule": made.pk, "node": node.name, "team": "", "length": "2 h", "reason": "new switch"}
    assert operator.post(f"{PAGE}silence/", sent | {"length": "90 d"}).status_code == 422
    assert operator.post(f"{PAGE}silence/", sent | {"rule": "", "node": ""}).status_code == 422
    assert operator.post(f"{PAGE}silence/", sent).status_code == 302
    assert "silenced: new switch" in operator.get(PAGE).text
    operator.post(f"{PAGE}silences/{AlertSilence.objects.get().uid}/end/")
    assert "silenced: new switch" not in operator.get(PAGE).text


@pytest.mark.parametrize("query", ["?rule=x", "?rule=999999999999999999999", "?node=%F0%9F%A6%86&team=%22"])
def test_a_link_that_fills_in_nonsense_is_answered(world: World, signed_in: SignedIn, query: str) -> None:
    assert signed_in("operator").get(PAGE + query).status_code == 200


def test_a_pause_is_shown_where_operators_look_and_ended_by_them(world: World, signed_in: SignedIn) -> None:
    operator, charlie = signed_in("operator"), signed_in("charlie")
    board = world.nodes["gpu-01"].devices.get(index=0)
    name = "Rack 3 <too> hot"
    hot = RULE | {"metric": "device_temp", "threshold": "90", "for_s": "", "action": "pause", "name": name}
    assert operator.post(f"{PAGE}rules/new/", hot | {"metric": "queue_wait"}).status_code == 422
    assert operator.post(f"{PAGE}rules/new/", hot).status_code == 302
    made, now = AlertRule.objects.latest("pk"), timezone.now()
    subject = AlertSubject(f"device:{board.pk}", "gpu-01/0", board.node_id, board.pk)
    settle_rule(made.pk, {subject: 95.0}, now=now)
    act(now=now)

    resume = f"{PAGE}{Alert.objects.get().uid}/resume/"
    text = operator.get(PAGE).text
    assert "Nothing new starts there, until at least" in text
    assert resume in text
    for page in ("/operations/nodes/", "/cluster/gpu-01/"):
        assert "Rack 3 &lt;too&gt; hot" in operator.get(page).text
    seen = charlie.get("/cluster/gpu-01/").text
    assert "gpu-01/0: until" in seen
    assert "Nothing new starts here while an alert lasts" in seen
    assert "Rack 3" not in seen + charlie.get("/cluster/gpu-03/").text

    assert charlie.post(resume).status_code == 403
    assert operator.post(resume).status_code == 302
    assert paused_devices(now=timezone.now()) == {}
    text = operator.get(PAGE).text
    assert "new leases may start there again" in text
    assert resume not in text
    assert operator.post(f"{PAGE}alt-none/resume/").status_code == 404
