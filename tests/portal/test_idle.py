from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, transaction

from portal.agents.desired import desired_state
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid
from portal.common.invariants import broken
from portal.common.sql import execute
from portal.idle.models import IdleRule, IdleSnooze, IdleStanding
from portal.idle.rules import idle_rules, remove_rule, rule_for, set_rule
from portal.idle.selectors import idle_now
from portal.idle.snoozing import snooze, snoozes_left
from portal.idle.sweeping import sweep_idle, take_back_due
from portal.idle.words import evidence_text
from portal.leases import preempting
from portal.leases.models import Lease, LeaseRequest
from portal.telemetry.models import MinuteRollup
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def running(world: World, name: str = "bob", flavor: str = "h100") -> Lease:
    """Return a lease that runs for two hours already and for three more."""
    return world.active(name, flavor, at=world.now - 120 * MINUTE, duration_s=5 * 3600)


def measure(
    lease: Lease, *, until: datetime, minutes: int = 70, util: float = 0.0, memory: int = 20_000
) -> None:
    """Store minutes of a lease up to an instant."""
    end = until.replace(second=0, microsecond=0)
    MinuteRollup.objects.bulk_create(
        [
            MinuteRollup(
                lease_id=lease.pk, minute=end - n * MINUTE, samples=60, util_mean=util, memory_max_mib=memory
            )
            for n in range(1, minutes + 1)
        ],
        ignore_conflicts=True,
    )


def rule(world: World, then: str = "reclaim", **more: Any) -> IdleRule:
    """Let an operator set a rule, for everybody unless ``more`` says for whom."""
    given: dict[str, Any] = {"team": None, "flavor": None, "after_min": 30, "grace_min": 20, "snoozes": 1}
    operator: dict[str, Any] = {"actor": world.user("operator"), "rights": world.rights("operator")}
    return set_rule(then=then, now=world.now, **{**given, **more}, **operator)


def told(world: World) -> Lease:
    """Return a lease of bob's that idles and was told that it is taken back in twenty minutes."""
    lease = running(world)
    measure(lease, until=world.now)
    rule(world)
    assert sweep_idle(now=world.now) == 1
    lease.refresh_from_db()
    return lease


def test_without_a_rule_an_idle_lease_is_shown_and_left_alone(world: World) -> None:
    lease = running(world)
    measure(lease, until=world.now)

    assert sweep_idle(now=world.now) == 1

    row = IdleStanding.objects.get(lease=lease)
    lease.refresh_from_db()
    assert (row.state, row.why, row.then, row.reclaim_at, lease.preempt_at) == (
        "held_idle",
        "nothing",
        "",
        None,
        None,
    )
    assert row.since == world.now - 60 * MINUTE
    assert not world.user("bob").notifications.filter(kind="lease.idle").exists()
    assert [seen.lease_id for seen in idle_now(world.rights("alice"))] == [lease.pk]
    assert idle_now(world.rights("charlie")) == []
    assert "Nothing computed in the last 60 minutes." in evidence_text(row)


def test_a_rule_that_warns_tells_the_holder_once(world: World) -> None:
    lease = running(world)
    measure(lease, until=world.now)
    rule(world, "warn")

    sweep_idle(now=world.now)
    measure(lease, until=world.now + 5 * MINUTE)
    sweep_idle(now=world.now + 5 * MINUTE)

    note = world.user("bob").notifications.get(kind="lease.idle")
    lease.refresh_from_db()
    assert (note.created_at, "ends_at" in note.facts, lease.preempt_at) == (world.now, False, None)


def test_what_is_to_be_taken_back_is_told_like_a_preemption_and_ends_at_that_time(world: World) -> None:
    lease = told(world)
    at = world.now + 20 * MINUTE

    row = IdleStanding.objects.get(lease=lease)
    assert (lease.preempt_at, lease.must_go_for, row.reclaim_at) == (at, "idle", at)
    assert world.user("bob").notifications.get(kind="lease.idle").facts["ends_at"] == at.isoformat()
    (sent,) = desired_state(lease.node_id, now=world.now).leases
    assert sent.notice is None or sent.notice.why == "reclaim"
    measure(lease, until=at, minutes=25)
    sweep_idle(now=at - MINUTE)
    assert preempting.preempt_due(now=at) == 0  # not its business
    assert take_back_due(now=at - timedelta(seconds=1)) == 0
    assert take_back_due(now=at + MINUTE) == 1
    assert take_back_due(now=at + MINUTE) == 0

    lease.refresh_from_db()
    assert (lease.state, lease.end_reason, lease.ended_at) == ("ending", "idle", at)
    world.gone(lease, at=at + MINUTE)
    assert LeaseRequest.objects.get(pk=lease.request_id).state == "fulfilled"
    assert AuditEntry.objects.filter(action="lease.taken_back", target=lease.uid).exists()
    assert not broken()


def test_a_minute_of_work_in_the_grace_period_spares_the_lease(world: World) -> None:
    lease = told(world)
    measure(lease, until=world.now + 5 * MINUTE, minutes=5, util=80.0)

    sweep_idle(now=world.now + 5 * MINUTE)

    lease.refresh_from_db()
    row = IdleStanding.objects.get(lease=lease)
    assert (lease.preempt_at, row.state, row.reclaim_at, row.warned_at) == (None, "busy", None, None)
    assert world.user("bob").notifications.filter(kind="lease.spared").exists()


def test_what_is_not_measured_any_more_is_never_taken_back(world: World) -> None:
    lease = told(world)
    later = world.now + 15 * MINUTE

    sweep_idle(now=later)  # half of its window is missing now

    lease.refresh_from_db()
    assert (lease.preempt_at, IdleStanding.objects.get(lease=lease).state) == (None, "unknown")


def test_a_judgement_that_is_too_old_or_a_rule_that_is_gone_spares_it_at_the_last_moment(
    world: World,
) -> None:
    lease = told(world)
    other = IdleStanding.objects.get(lease=lease)

    assert take_back_due(now=world.now + 21 * MINUTE) == 0  # judged 21 minutes ago
    Lease.objects.filter(pk=lease.pk).update(preempt_at=world.now + 20 * MINUTE)
    IdleStanding.objects.filter(pk=other.pk).update(judged_at=world.now + 19 * MINUTE)
    remove_rule(
        key=IdleRule.objects.get().pk,
        actor=world.user("operator"),
        rights=world.rights("operator"),
        now=world.now,
    )
    assert take_back_due(now=world.now + 21 * MINUTE) == 0

    lease.refresh_from_db()
    assert (lease.state, lease.preempt_at) == ("active", None)


def test_the_holder_puts_it_off_with_a_reason_as_often_as_the_rule_allows(world: World) -> None:
    lease = told(world)
    bob: dict[str, Any] = {"actor": world.user("bob"), "rights": world.rights("bob")}
    assert snoozes_left(lease) == (1, 60)

    with pytest.raises(Forbidden):
        snooze(
            lease=lease,
            actor=world.user("charlie"),
            rights=world.rights("charlie"),
            reason="mine",
            now=world.now,
        )
    with pytest.raises(Invalid):
        snooze(lease=lease, reason="  ", now=world.now, **bob)
    row = snooze(lease=lease, reason="a long download", now=world.now, **bob)
    lease.refresh_from_db()
    assert (lease.preempt_at, row.snoozed_until) == (None, world.now + 60 * MINUTE)
    assert row.reclaim_at == world.now + 80 * MINUTE  # what pages show
    with pytest.raises(Conflict):
        snooze(lease=lease, reason="once more", now=world.now, **bob)
    measure(lease, until=world.now + 61 * MINUTE, minutes=61)
    sweep_idle(now=world.now + 30 * MINUTE)
    assert IdleStanding.objects.get(lease=lease).reclaim_at == world.now + 80 * MINUTE
    later = world.now + 61 * MINUTE
    sweep_idle(now=later)

    lease.refresh_from_db()
    assert lease.preempt_at == later + 20 * MINUTE
    with pytest.raises(Conflict, match="1 times"):
        snooze(lease=lease, reason="once more", now=later, **bob)
    assert AuditEntry.objects.get(action="lease.idle_snoozed").detail["reason"] == "a long download"


def test_a_gang_a_job_and_what_was_grown_are_told_and_not_taken_back(world: World) -> None:
    lease = running(world)
    measure(lease, until=world.now)
    LeaseRequest.objects.filter(pk=lease.request_id).update(is_job=True)
    rule(world)

    sweep_idle(now=world.now)

    lease.refresh_from_db()
    assert lease.preempt_at is None
    assert world.user("bob").notifications.filter(kind="lease.idle").exists()


def test_a_lease_that_was_told_to_go_for_a_request_is_left_to_it(world: World) -> None:
    lease = running(world)
    measure(lease, until=world.now)
    waiting = world.submit("charlie", "h100")
    at = world.now + 2 * MINUTE
    Lease.objects.filter(pk=lease.pk).update(preempt_at=at, preempted_for=waiting)
    rule(world)

    sweep_idle(now=world.now)

    lease.refresh_from_db()
    assert (lease.preempt_at, lease.must_go_for) == (at, "reclaim")
    assert IdleStanding.objects.get(lease=lease).reclaim_at is None


def test_the_nearest_team_decides_and_there_the_flavor(world: World) -> None:
    lease = running(world)
    everybody = rule(world, "warn")
    assert rule_for(lease, idle_rules()) == everybody
    flavor = rule(world, "warn", flavor=world.flavors["h100"])
    assert rule_for(lease, idle_rules()) == flavor
    above = rule(world, "nothing", team=world.team("vision"))
    rule(world, "reclaim", team=world.team("language"))
    assert rule_for(lease, idle_rules()) == above
    own = rule(world, "warn", team=world.team("perception"), flavor=world.flavors["h100"])
    assert rule_for(lease, idle_rules()) == own


def test_only_operators_set_rules_and_figures_have_bounds(world: World) -> None:
    with pytest.raises(Forbidden):
        set_rule(
            team=None,
            flavor=None,
            then="warn",
            actor=world.user("alice"),
            rights=world.rights("alice"),
            now=world.now,
        )
    with pytest.raises(Invalid) as refused:
        rule(world, "explode", after_min=1, grace_min=0, snoozes=99, snooze_min=0)
    assert set(refused.value.fields) == {"then", "after_min", "grace_min", "snoozes", "snooze_min"}
    assert rule(world, "warn") == rule(world, "reclaim")  # the last word counts
    assert IdleRule.objects.get().then == "reclaim"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE idle_idlestanding SET state = 'busy'",
        "UPDATE idle_idlestanding SET state = 'unknown'",
        "UPDATE idle_idlestanding SET \"then\" = 'warn'",
        "UPDATE idle_idlestanding SET known = minutes + 1",
        "UPDATE idle_idlerule SET grace_min = 0",
        "UPDATE idle_idlerule SET snoozes = 11",
        "UPDATE idle_idlerule SET \"then\" = 'explode'",
        'INSERT INTO idle_idlerule (after_min, "then", grace_min, snoozes, snooze_min, changed_at)'
        " VALUES (60, 'warn', 30, 1, 60, now())",
    ],
)
def test_the_database_refuses_what_must_never_be(sql: str, world: World) -> None:
    told(world)

    with pytest.raises(IntegrityError), transaction.atomic():
        execute(sql)


def test_a_snooze_is_never_changed(world: World) -> None:
    lease = told(world)
    snooze(
        lease=lease, actor=world.user("bob"), rights=world.rights("bob"), reason="a download", now=world.now
    )

    for sql in ("UPDATE idle_idlesnooze SET reason = 'x'", "DELETE FROM idle_idlesnooze"):
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            execute(sql)
    assert IdleSnooze.objects.get().ordinal == 1
