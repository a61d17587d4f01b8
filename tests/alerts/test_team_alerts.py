"""Alerts about a team are told to and seen by its admins, and by nobody else of a team."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from portal.accounts.models import User
from portal.alerts.evaluating import settle_rule
from portal.alerts.metrics import METRICS, AlertSubject, Sources
from portal.alerts.models import Alert, AlertRule
from portal.alerts.rules import AlertSpec, acknowledge, make_rule
from portal.alerts.selectors import open_alerts
from portal.alerts.telling import tell
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.idle.models import IdleStanding
from portal.notifications.models import ContactPoint, Delivery, Notification, Topic
from portal.teams.models import Role
from portal.teams.services import add_member
from portal.web.notifications.rows import notification_rows
from tests.portal.builders import World
from tests.web.conftest import SignedIn, signed_in  # noqa: F401

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def only_rules_of_the_test(world: World) -> None:
    AlertRule.objects.all().delete()


def rule(world: World, metric: str = "team_queue_wait", threshold: float = 60, **more: Any) -> AlertRule:
    by = {"actor": world.user("operator"), "rights": world.rights("operator")}
    return make_rule(spec=AlertSpec(metric, threshold, **more), now=world.now, **by)


def about(world: World, slug: str) -> AlertSubject:
    team = world.team(slug)
    return AlertSubject(f"team:{team.pk}", team.name, team_id=team.pk, lineages=frozenset(team.lineage))


def told() -> dict[str, set[str]]:
    """Who was told what, as they read it."""
    found: dict[str, set[str]] = {}
    rows = list(Notification.objects.order_by("pk"))
    for row, shown in zip(rows, notification_rows(rows), strict=True):
        found.setdefault(row.user.username, set()).add(shown.text)
    return found


def a_second_admin(world: World) -> User:
    """Let charlie run the language team."""
    charlie = world.user("charlie")
    add_member(team=world.team("language"), user=charlie, role=Role.ADMIN, now=world.now)
    return charlie


def mailbox(user: User, *muted: Topic, at: datetime) -> None:
    ContactPoint.objects.create(
        user=user, kind="email", name="mail", address=b"-", shown="-", origin="-", muted=list(muted),
        confirmed_at=at, created_at=at,
    )  # fmt: skip


def test_each_admin_hears_of_their_teams_once_and_operators_of_what_nobody_else_does(world: World) -> None:
    a_second_admin(world)
    made = rule(world, audience="team")
    waits = {
        about(world, "perception"): 900.0,
        about(world, "vision"): 700.0,
        about(world, "speech"): 800.0,
        about(world, "robotics"): 950.0,  # neither it nor anything above it has an admin
    }

    settle_rule(made.pk, waits, now=world.now)
    tell(now=world.now)
    tell(now=world.now + 6 * MINUTE)

    says = "Longest wait of a team's requests above 1 min"
    assert told() == {
        "alice": {f"Alert about your team: {says}. Perception, Vision; at the worst 15 min."},
        "charlie": {f"Alert about your team: {says}. Speech; at the worst 13 min 20 s."},
        "operator": {f"Alert: {says}. Robotics; at the worst 15 min 50 s."},
    }

    Notification.objects.all().delete()
    for minute in (1, 3):
        settle_rule(made.pk, {}, now=world.now + minute * MINUTE)
    tell(now=world.now + 10 * MINUTE)
    assert told()["charlie"] == {f"Resolved: {says}. Speech."}
    assert set(told()) == {"alice", "charlie", "operator"}


def test_with_both_operators_hear_of_all_and_who_is_both_hears_once(world: World) -> None:
    add_member(team=world.team("vision"), user=world.user("operator"), role=Role.ADMIN, now=world.now)
    board = world.nodes["gpu-01"].devices.get(index=0)
    perception = world.team("perception")
    made = rule(world, "device_util", 5, comparison="below", audience="both", name="Unused")
    subject = AlertSubject(
        f"device:{board.pk}", "gpu-01/0", board.node_id, board.pk, perception.pk, None, frozenset(perception.lineage)
    )  # fmt: skip
    mailbox(world.user("alice"), Topic.ALERTS, at=world.now)
    mailbox(world.user("operator"), Topic.TEAM_ALERTS, at=world.now)

    settle_rule(made.pk, {subject: 1.0, AlertSubject("device:0", "gpu-09/0"): 2.0}, now=world.now)
    tell(now=world.now)

    assert told() == {
        "operator": {"Alert: Unused. gpu-01/0, gpu-09/0; at the worst 1 %."},
        "alice": {"Alert about your team: Unused. gpu-01/0; at the worst 1 %."},
    }
    assert {row.contact.user.username for row in Delivery.objects.all()} == {"alice", "operator"}


def test_admins_see_and_acknowledge_what_is_about_their_teams_and_nothing_else(world: World) -> None:
    charlie, alice = a_second_admin(world), world.user("alice")
    shared, own = rule(world, audience="both", escalate_min=1), rule(world, threshold=61)
    for made in (shared, own):
        settle_rule(
            made.pk, {about(world, "perception"): 900.0, about(world, "language"): 800.0}, now=world.now
        )

    def seen(name: str) -> set[tuple[int, str]]:
        rows = open_alerts(world.rights(name))
        return {(row.rule_id, row.about) for row in rows}

    assert seen("alice") == {(shared.pk, "Perception")}
    assert seen("charlie") == {(shared.pk, "Language")}
    assert seen("bob") == seen("finance") == set()
    assert len(seen("operator")) == 4
    theirs = Alert.objects.get(rule=shared, about="Language")
    hidden = Alert.objects.get(rule=own, about="Perception")
    for alert in (theirs, hidden):
        with pytest.raises(NotFound):
            acknowledge(uid=alert.uid, actor=alice, rights=world.rights("alice"), now=world.now)
    with pytest.raises(Forbidden):
        acknowledge(uid=theirs.uid, actor=world.user("bob"), rights=world.rights("bob"), now=world.now)
    acknowledge(uid=theirs.uid, actor=charlie, rights=world.rights("charlie"), now=world.now)
    tell(now=world.now + 5 * MINUTE)
    (late,) = Notification.objects.filter(kind="escalation.alert", target__startswith=f"alert-{shared.pk}#")
    assert late.facts["named"] == ["Perception"]


def test_figures_of_no_team_are_for_operators_and_those_of_teams_are_read(world: World) -> None:
    for metric in ("node_silence", "queue_wait", "outbox"):
        with pytest.raises(Invalid) as no:
            rule(world, metric, audience="both")
        assert set(no.value.fields) == {"audience"}
    lease = world.active("charlie")
    world.submit("bob", at=world.now - 10 * MINUTE)
    world.submit("bob", at=world.now - 5 * MINUTE)
    standing = {
        "lease": lease,
        "state": "empty",
        "why": "nothing",
        "since": world.now,
        "minutes": 60,
        "known": 60,
    }
    IdleStanding.objects.create(judged_at=world.now, **standing)

    def read(metric: str, later: timedelta) -> dict[str, float]:
        found = METRICS[metric].read(Sources(world.now + later))
        return {subject.about: value for subject, value in found.items()}

    assert read("team_queue_wait", timedelta()) == {"Perception": 600}
    assert read("team_idle", 10 * MINUTE) == {"Language": 1}
    assert read("team_idle", 20 * MINUTE) == {}  # judged too long ago


def test_a_team_admin_works_with_them_on_pages(
    world: World,
    signed_in: SignedIn,  # noqa: F811
) -> None:
    shared, hidden = rule(world, audience="both"), rule(world, "team_idle", 0, name="Quiet")
    settle_rule(shared.pk, {about(world, "perception"): 900.0}, now=world.now)
    settle_rule(hidden.pk, {about(world, "perception"): 3.0}, now=world.now)
    mine, other = Alert.objects.get(rule=shared), Alert.objects.get(rule=hidden)

    alice, bob = signed_in("alice"), signed_in("bob")
    text = alice.get("/alerts/").text
    assert "/requests/?state=queued&amp;team=perception" in text
    for unseen in ("Quiet", "/alerts/rules/", "/alerts/silence/"):
        assert unseen not in text
    assert alice.post("/alerts/silence/", {}).status_code == 403
    for page in ("/?home=team", "/teams/vision/", "/teams/perception/"):
        assert "15 min, where the rule says" in alice.get(page).text
    for page in ("/", "/teams/perception/"):
        shown = bob.get(page).text
        assert "where the rule says" not in shown
        assert 'href="/alerts/"' not in shown
    assert bob.get("/alerts/").status_code == 403

    assert alice.post(f"/alerts/{other.uid}/acknowledge/").status_code == 404
    assert alice.post(f"/alerts/{mine.uid}/acknowledge/").status_code == 302
    assert "acknowledged by" in alice.get("/alerts/").text
    for minute in (1, 3):
        settle_rule(shared.pk, {}, now=world.now + minute * MINUTE)
    assert "Lately resolved" in alice.get("/alerts/").text
