"""Every few minutes all running leases are judged, and what their rules say is done: told, and spared again.

A lease that is to be taken back gets ``preempt_at`` like one that is preempted, but goes for nobody: its node, its page
and the API show the end in the same places (docs/idle.md, docs/preemption.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from portal.audit.services import record
from portal.common.sql import execute, fetch, in_sql
from portal.fleet.services import raise_revision
from portal.idle.judging import IdleVerdict, judge
from portal.idle.models import IDLE, IdleAction, IdleRule, IdleStanding
from portal.idle.rules import idle_rules, rule_for
from portal.idle.windows import windows_of
from portal.leases.lifecycle import end_leases
from portal.leases.models import Lease
from portal.leases.states import RUNNING_LEASES, EndReason, LeaseState
from portal.leases.transitions import announce, lock_leases
from portal.notifications.services import notify

EVERY_MIN = 5
# Where no rule says how long to look back: shown, and nothing happens.
USUAL_MIN = 60
CHUNK = 200
# Nothing is taken back on a judgement that is older.
FRESH = timedelta(minutes=3 * EVERY_MIN)
_FIGURES = ("minutes", "known", "worked", "util", "sm", "power_w", "memory_mib", "processes")


def sweep_idle(*, now: datetime) -> int:
    """Judge all active leases and do what their rules say; returns how many idle. Safe to repeat."""
    execute(
        "DELETE FROM idle_idlestanding s USING leases_lease l WHERE l.id = s.lease_id"  # noqa: S608 (our own states)
        f" AND l.state NOT IN {in_sql(RUNNING_LEASES)} AND l.end_reason <> '{EndReason.IDLE}'"
    )
    rules = idle_rules()
    leases = list(
        Lease.objects.filter(state=LeaseState.ACTIVE)
        .select_related("team", "node", "request", "user")
        .order_by("pk")
    )
    return sum(_sweep(leases[n : n + CHUNK], rules, now) for n in range(0, len(leases), CHUNK))


def takes_back(lease: Lease) -> bool:
    """Say whether a lease is ever taken back for idling.

    A part of a gang waits for others, a batch job ends by itself, and what was grown goes to who waits.
    """
    return lease.request.nodes == 1 and not lease.request.is_job and not lease.is_extra


def _sweep(leases: Sequence[Lease], rules: Sequence[IdleRule], now: datetime) -> int:
    rule_of = {lease.pk: rule_for(lease, rules) for lease in leases}
    minutes = {pk: rule.after_min if rule else USUAL_MIN for pk, rule in rule_of.items()}
    windows = windows_of(leases, minutes, now=now)
    verdicts = {pk: judge(window) for pk, window in windows.items()}
    with transaction.atomic():
        # Leases before their standings, as in snoozing.
        locked = [ls for ls in lock_leases(list(verdicts)) if ls.state == LeaseState.ACTIVE]
        before = IdleStanding.objects.select_for_update().order_by("pk").in_bulk([ls.pk for ls in locked])
        changed: list[Lease] = []
        rows = []
        for lease in locked:
            row = _standing(before.get(lease.pk), lease, verdicts[lease.pk], now)
            if _apply(row, lease, rule_of[lease.pk], now):
                changed.append(lease)
            rows.append(row)
        fields = [field.name for field in IdleStanding._meta.concrete_fields if not field.primary_key]
        IdleStanding.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["lease"], update_fields=fields
        )
        Lease.objects.bulk_update(changed, ["preempt_at"])
        _news(changed, now)
    return sum(row.state in IDLE for row in rows)


def _standing(before: IdleStanding | None, lease: Lease, verdict: IdleVerdict, now: datetime) -> IdleStanding:
    """Return the row of a lease with a new verdict in it; ``since`` stays while the state does."""
    row = before or IdleStanding(lease=lease)
    if before is None or before.state != verdict.state:
        looked_back = timedelta(minutes=verdict.minutes if verdict.state in IDLE else 0)
        # From one idle state into the other it has idled on.
        if not (before and before.state in IDLE and verdict.state in IDLE):
            row.since = max(lease.activated_at or lease.starts_at, now - looked_back)
    row.state, row.why, row.judged_at = verdict.state, verdict.why, now
    row.since = min(row.since, now)
    for name in _FIGURES:
        setattr(row, name, getattr(verdict, name))
    return row


def _apply(row: IdleStanding, lease: Lease, rule: IdleRule | None, now: datetime) -> bool:
    """Do what the rule of a locked lease says; returns whether its ``preempt_at`` changed."""
    row.then = rule.then if rule else ""
    told = lease.must_go_for == "idle"
    if row.state not in IDLE or rule is None or rule.then == IdleAction.NOTHING:
        row.warned_at = row.reclaim_at = row.snoozed_until = None
        return _spare(lease, now) if told else False
    grace = timedelta(minutes=rule.grace_min)
    takes = rule.then == IdleAction.RECLAIM and takes_back(lease)
    if row.snoozed_until is not None and now < row.snoozed_until:
        row.reclaim_at = row.snoozed_until + grace if takes else None
        return _spare(lease, now) if told else False
    if row.warned_at is not None and (told or not takes):
        row.reclaim_at = lease.preempt_at if told and takes else None
        return _spare(lease, now) if told and not takes else False
    # Told to go for a request already, or over before the grace is: nothing to add.
    is_new = takes and lease.preempt_at is None and lease.not_after > now + grace
    is_first = row.warned_at is None
    row.snoozed_until, row.warned_at = None, row.warned_at or now
    row.reclaim_at = now + grace if is_new else None
    if is_first or is_new:
        facts = {"since": row.since.isoformat(), "why": row.why}
        facts |= {"ends_at": row.reclaim_at.isoformat()} if row.reclaim_at else {}
        notify([lease.user], "lease.idle", target=lease.uid, at=now, is_news=True, **facts)
    if is_new:
        lease.preempt_at = now + grace
        record(
            None, "lease.told_to_go", lease.uid, at=now, team_id=lease.team_id,
            why="idle", ends_at=lease.preempt_at.isoformat(),
        )  # fmt: skip
    return is_new


def _spare(lease: Lease, now: datetime) -> bool:
    """Let a locked lease stay that was told to go because it idled."""
    lease.preempt_at = None
    record(None, "lease.spared", lease.uid, at=now, team_id=lease.team_id, why="idle")
    facts = {"not_after": lease.not_after.isoformat(), "why": "idle"}
    notify([lease.user], "lease.spared", target=lease.uid, at=now, is_news=True, **facts)
    return True


@transaction.atomic
def take_back_due(*, now: datetime) -> int:
    """End leases that idled through their grace period, at the instant it was over. Safe to repeat.

    Only where the rule is still there, the last judgement is fresh and still says that the lease idles; others are
    spared. Returns how many ended.
    """
    rows = fetch(
        "SELECT l.id FROM leases_lease l JOIN idle_idlestanding s ON s.lease_id = l.id"  # noqa: S608 (our own states)
        f" WHERE l.state IN {in_sql(RUNNING_LEASES)} AND l.preempt_at <= %s AND l.preempted_for_id IS NULL"
        " ORDER BY l.id LIMIT 500 FOR UPDATE OF l SKIP LOCKED",
        [now],
    )
    if not rows:
        return 0
    leases = [ls for ls in lock_leases([pk for (pk,) in rows]) if ls.must_go_for == "idle"]
    standings = IdleStanding.objects.select_for_update().order_by("pk").in_bulk([ls.pk for ls in leases])
    rules = idle_rules()
    taken, spared = 0, []
    for lease in leases:
        row, rule = standings.get(lease.pk), rule_for(lease, rules)
        is_idle = row is not None and row.state in IDLE and now - row.judged_at <= FRESH
        if not (is_idle and rule and rule.then == IdleAction.RECLAIM and takes_back(lease)):
            spared.append(lease)
            _spare(lease, now)
            IdleStanding.objects.filter(pk=lease.pk).update(
                warned_at=None, reclaim_at=None, snoozed_until=None
            )
            continue
        assert lease.preempt_at is not None
        end_leases([lease], reason=EndReason.IDLE, at=lease.preempt_at)
        if lease.end_reason == EndReason.IDLE:  # else its own time was up before
            record(None, "lease.taken_back", lease.uid, at=now, team_id=lease.team_id, why="idle")
            notify([lease.user], "lease.taken_back", target=lease.uid, at=now, is_news=True)
            taken += 1
    Lease.objects.bulk_update(spared, ["preempt_at"])
    _news(spared, now)
    return taken


def _news(leases: Sequence[Lease], now: datetime) -> None:
    """Tell nodes and browsers that ends have moved."""
    if leases:
        raise_revision([lease.node_id for lease in leases])
        announce(leases, at=now)
