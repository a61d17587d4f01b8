"""A portal with a past: a fleet in use, a queue, a year of ended leases with events, slices held and usage.

Rows are made by one INSERT … SELECT each, with triggers off; what triggers would have kept is made afterwards by the
SQL of their own migration, and ``check_invariants`` looks at the result.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

NODES = {"a100-80gb": 100, "h100-80gb": 25}  # of eight devices each
DEPARTMENTS, TEAMS, WAITING = 8, 200, 5_000
BACK = timedelta(days=360)
MEASURED = timedelta(days=7)  # leases that ended since then have hours of telemetry
ROLES = (
    # username, role, team
    ("bob", "researcher", "team-1"),
    ("alice", "admin", "department-1"),
    ("approver", "approver", "department-1"),
    ("finance", "finance", "bench"),
    ("operator", "operator", "bench"),
    ("charlie", "admin", "bench"),
)


def make(leases: int, now: datetime) -> None:
    """Make everything, so many ended leases among it. The database is empty and migrated."""
    from django.db import connection

    from portal.policies.first_policy import FIRST_RULES
    from portal.policies.models import Policy
    from scheduler.engine.policy_body import body_of
    from tools.bench.cycle import fill_fleet, make_fleet

    teams = _organisation(now)
    flavors = make_fleet(now, NODES)
    _prices(now)
    Policy.objects.create(name="first", version=1, body=body_of(FIRST_RULES), is_active=True, created_at=now)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica; SET statement_timeout = 0")
        # The past has the lower numbers, as it would have had.
        cursor.execute(
            "SELECT setval('leases_lease_id_seq', %(n)s), setval('leases_leaserequest_id_seq', %(n)s)",
            {"n": leases},
        )
        fill_fleet(flavors, teams, WAITING, now)
        _past(cursor, leases, now)
        cursor.execute("SET session_replication_role = origin; RESET statement_timeout; ANALYZE")
    _others(now)


def _organisation(now: datetime) -> list[Any]:
    """Make the teams in departments and the people of ``ROLES``; return the teams."""
    from portal.accounts.models import User
    from portal.quotas.models import Quota
    from portal.teams.models import Membership, Team
    from portal.teams.services import create_team

    root = create_team(name="Bench", slug="bench", parent=None, now=now, cost_centre="B-000")
    departments = [
        create_team(name=f"Department {n}", slug=f"department-{n}", parent=root, now=now)
        for n in range(1, DEPARTMENTS + 1)
    ]
    teams = [
        create_team(
            name=f"Team {n}", slug=f"team-{n}", parent=departments[n * DEPARTMENTS // (TEAMS + 1)], now=now,
            cost_centre=f"C-{n % 40}",
        )
        for n in range(1, TEAMS + 1)
    ]  # fmt: skip
    Quota.objects.bulk_create(
        Quota(team=team, guaranteed_milli=0, ceiling_milli=None) for team in (root, *departments, *teams)
    )
    for name, role, slug in ROLES:
        user = User.objects.create(username=name, display_name=name.title())
        Membership.objects.create(user=user, team=Team.objects.get(slug=slug), role=role, created_at=now)
    return teams


def _prices(now: datetime) -> None:
    from psycopg.types.range import TimestamptzRange

    from portal.catalog.models import Rate, RateCard
    from portal.fleet.models import DeviceModel

    card = RateCard.objects.create(name="Standard", currency="EUR", is_default=True)
    for model in DeviceModel.objects.all():
        Rate.objects.create(
            card=card, device_model=model, micro_per_hour=1_650_000 + 350_000 * model.pk, created_at=now,
            valid=TimestamptzRange(now - BACK - timedelta(days=40), None),
        )  # fmt: skip


def _past(cursor: Any, leases: int, now: datetime) -> None:
    """Clone what runs now as leases that ended, spread over the year, and give all their events and usage."""
    from portal.leases.models import Lease, LeaseRequest, Placement
    from portal.teams.models import Membership, Role, Team

    known = {"n": leases, "begin": now - BACK, "step": BACK / leases, "now": now, "measured": now - MEASURED}
    cursor.execute("ANALYZE")
    for statement in _LIVE:
        cursor.execute(statement, known)
    cursor.execute(_TABLE)
    cursor.execute(_PAST, known)
    cursor.execute("CREATE UNIQUE INDEX ON past (n); CREATE INDEX ON past (pattern); ANALYZE past")
    for table, pattern, new in (
        (LeaseRequest, "p.id = t.request", _REQUEST),
        (Lease, "p.id = t.pattern", _LEASE),
        (Placement, "p.lease_id = t.pattern AND p.is_live", _PLACEMENT),
    ):
        cursor.execute(_clone(table, f"JOIN past t ON {pattern}", new), known)
    cursor.execute("ANALYZE")
    cursor.execute(_QUOTAS)
    for statement in (
        _EVENTS, _REQUEST_EVENTS, _PERIODS, _USAGE, _HOURS, _FACTORS, _ENERGY, _FORECASTS, _AUDIT, _NEWS,
    ):  # fmt: skip
        cursor.execute(statement, known)
    kept = importlib.import_module("portal.billing.migrations.0006_totals_kept")
    # The line of an invoice, which that migration took from the records, stands on the totals only by now.
    cursor.execute(kept.FILL.replace("max(c.line_id)", "NULL::bigint"))
    cursor.execute(importlib.import_module("portal.billing.migrations.0029_energy_sums").FILL)
    bob = Membership.objects.get(user__username="bob")
    Membership.objects.bulk_create(
        [
            Membership(user_id=user, team_id=team, role=Role.RESEARCHER, created_at=now)
            for user, team in LeaseRequest.objects.order_by().values_list("author", "team").distinct()
            if user != bob.user_id
        ],
        batch_size=1_000,
    )
    assert Team.objects.count() == TEAMS + DEPARTMENTS + 1


def _clone(model: Any, source: str, new: Mapping[str, str]) -> str:
    """Return the INSERT of copies of rows ``p``; ``new`` are the columns that differ, as SQL over ``t`` and ``p``."""
    names = [field.column for field in model._meta.concrete_fields]
    if "id" not in new:
        names.remove("id")
    values = ", ".join(f"{new.get(name, f'p.{name}')} AS {name}" for name in names)
    table = model._meta.db_table
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table} p {source}"


# What runs began up to a day ago; some of it, and of the queue, is bob's.
_LIVE = (
    """
UPDATE leases_lease SET (starts_at, activated_at, moved_at) = (SELECT at, at, at FROM (
  SELECT date_trunc('second', %(now)s - id * 7919 %% 86400 * interval '1 second') AS at) a)
""",
    """
UPDATE leases_placement p SET period = tstzrange(l.starts_at, upper(p.period)) FROM leases_lease l
WHERE p.lease_id = l.id
""",
    """
UPDATE leases_leaserequest r SET author_id = bob.id FROM accounts_user bob, teams_team t
WHERE bob.username = 'bob' AND t.slug = 'team-1' AND r.team_id = t.id AND r.id %% 3 = 0
""",
    """
UPDATE leases_leaserequest r SET state = 'awaiting_approval' FROM teams_team t
WHERE t.slug IN ('team-2', 'team-3') AND r.team_id = t.id AND r.state = 'queued' AND r.id %% 2 = 0
""",
    "UPDATE leases_lease l SET user_id = r.author_id FROM leases_leaserequest r WHERE r.id = l.request_id",
)
# Leases in the order of their start; each ends within its month. Each person has one team, bob's among them.
_TABLE = """
CREATE TEMP TABLE past (n bigint, pattern bigint, request bigint, at timestamptz, team_id bigint, user_id bigint,
  ended timestamptz, id bigint);
SELECT setseed(0.5)
"""
_PAST = """
INSERT INTO past SELECT n, l.id AS pattern, l.request_id AS request, at, team.id AS team_id,
  CASE WHEN team.slug = 'team-1' AND n %% 3 = 0 THEN (SELECT id FROM accounts_user WHERE username = 'bob')
    ELSE person.id END AS user_id,
  least(at + (1 + n %% 1000 * 7919 %% 32) * interval '15 min',
    (date_trunc('month', at AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC', %(now)s) AS ended,
  n AS id
FROM (SELECT n, date_trunc('second', %(begin)s + (n - 1) * %(step)s - interval '1 min') AS at,
        (random() * random() * 199.99)::int + 1 AS team, n %% (SELECT count(*) FROM leases_lease) + 1 AS live
      FROM generate_series(1, %(n)s) n) g
JOIN (SELECT *, row_number() OVER (ORDER BY id) AS live FROM leases_lease) l USING (live)
JOIN teams_team team ON team.slug = 'team-' || g.team
JOIN accounts_user person ON person.username = 'person-' || g.team - 1 + 200 * (n %% 5)
"""
_REQUEST = {
    "id": "t.id", "uid": "'req-' || lpad(to_hex(t.n), 16, '0')", "team_id": "t.team_id", "author_id": "t.user_id",
    "state": "'fulfilled'", "submitted_at": "t.at - interval '10 min'", "queued_at": "t.at - interval '10 min'",
    "name": "'run ' || t.n", "remaining_s": "0",
}  # fmt: skip
_LEASE = {
    "id": "t.id", "uid": "'lse-' || lpad(to_hex(t.n), 16, '0')", "request_id": "t.id", "team_id": "t.team_id",
    "user_id": "t.user_id", "state": "'ended'", "starts_at": "t.at", "activated_at": "t.at", "ended_at": "t.ended",
    "not_after": "t.ended", "clean_at": "t.ended", "moved_at": "t.ended", "end_reason": "'expired'",
    "is_metered": "true",
}  # fmt: skip
_PLACEMENT = {
    "lease_id": "t.id", "team_id": "t.team_id", "is_live": "false", "period": "tstzrange(t.at, t.ended)",
}  # fmt: skip
_EVENTS = """
INSERT INTO leases_leaseevent (lease_id, was, now, at, reason)
SELECT l.id, was, step, CASE WHEN k < 2 THEN l.starts_at ELSE l.ended_at END, ''
FROM leases_lease l CROSS JOIN (VALUES (0, '', 'preparing'), (1, 'preparing', 'active'), (2, 'active', 'ending'),
  (3, 'ending', 'cleaning'), (4, 'cleaning', 'ended')) steps (k, was, step)
WHERE k < 2 OR l.ended_at IS NOT NULL ORDER BY l.starts_at, l.id, k
"""
_REQUEST_EVENTS = """
INSERT INTO leases_requestevent (request_id, was, now, at, reason)
SELECT r.id, was, CASE WHEN r.state = 'awaiting_approval' THEN r.state ELSE step END,
  CASE WHEN k = 0 THEN r.submitted_at ELSE r.submitted_at + interval '10 min' END, ''
FROM leases_leaserequest r CROSS JOIN (VALUES (0, '', 'queued'), (1, 'queued', 'granted'),
  (2, 'granted', 'fulfilled')) steps (k, was, step)
WHERE k = 0 OR (k = 1 AND r.state IN ('granted', 'fulfilled')) OR r.state = 'fulfilled' ORDER BY r.submitted_at, r.id, k
"""
_PERIODS = """
INSERT INTO billing_billingperiod (month, zone, starts_at, ends_at, state)
SELECT month::date, 'UTC', month AT TIME ZONE 'UTC', (month + interval '1 month') AT TIME ZONE 'UTC', 'open'
FROM generate_series(date_trunc('month', (%(begin)s - interval '1 day') AT TIME ZONE 'UTC'),
  %(now)s AT TIME ZONE 'UTC', interval '1 month') month
"""
_USAGE = """
INSERT INTO billing_usagerecord (lease_id, team_id, period_id, rate_id, span, seconds, share_milli,
  share_milli_seconds, micro_per_hour, currency, recorded_at)
SELECT l.id, l.team_id, p.id, r.id, tstzrange(date_trunc('second', l.activated_at), date_trunc('second', l.ended_at)),
  s.seconds, l.share_milli, s.seconds * l.share_milli, r.micro_per_hour, 'EUR', l.ended_at
FROM leases_lease l JOIN catalog_flavor f ON f.id = l.flavor_id JOIN catalog_rate r USING (device_model_id)
JOIN billing_billingperiod p ON l.activated_at >= p.starts_at AND l.activated_at < p.ends_at
CROSS JOIN LATERAL (SELECT extract(epoch FROM date_trunc('second', l.ended_at)
  - date_trunc('second', l.activated_at))::bigint AS seconds) s
WHERE l.is_metered AND s.seconds > 0 ORDER BY l.id
"""
_HOURS = """
INSERT INTO telemetry_hourrollup (lease_id, hour, minutes, util_mean)
SELECT l.id, hour, 60, 20 + l.id %% 70 FROM leases_lease l
CROSS JOIN generate_series(date_trunc('hour', greatest(l.starts_at, %(measured)s), 'UTC'),
  least(coalesce(l.ended_at, %(now)s), %(now)s), interval '1 hour') hour
WHERE coalesce(l.ended_at, %(now)s) > %(measured)s
"""
# Carbon, PUE and a price of electricity in all of that time; energy of the running month and the one before it.
_FACTORS = """
INSERT INTO billing_energyfactor (kind, site, value_milli, source, valid, created_at)
SELECT kind, '', value, 'bench', tstzrange(%(begin)s - interval '40 days', NULL), %(now)s
FROM (VALUES ('carbon', 380000), ('pue', 1280), ('price', 250500)) f (kind, value)
"""
_ENERGY = """
INSERT INTO billing_leaseenergy (lease_id, begins, site, measured_s, measured_mj, estimated_s, estimated_mj)
SELECT l.id, hour, '', s.whole, s.whole * 1000::bigint * (300 + l.id %% 300), s.part,
  s.part * (300 + l.id %% 300) * l.share_milli::bigint
FROM leases_lease l
CROSS JOIN generate_series(date_trunc('hour', l.activated_at, 'UTC'),
  least(coalesce(l.ended_at, %(now)s), %(now)s) - interval '1 second', interval '1 hour') hour
CROSS JOIN LATERAL (SELECT extract(epoch FROM least(coalesce(l.ended_at, %(now)s), hour + interval '1 hour')
  - greatest(l.activated_at, hour))::int AS seconds) n
CROSS JOIN LATERAL (SELECT CASE WHEN l.share_milli >= 1000 THEN n.seconds ELSE 0 END AS whole,
  CASE WHEN l.share_milli < 1000 THEN n.seconds ELSE 0 END AS part) s
WHERE l.activated_at >= date_trunc('month', %(now)s::timestamptz - interval '1 month', 'UTC') AND n.seconds > 0
ORDER BY hour, l.id
"""
_FORECASTS = """
INSERT INTO leases_startforecast (request_id, queued_at, made_at, p50_at, p90_at, raw_s, started_at)
SELECT id, queued_at, queued_at, queued_at + interval '9 min', queued_at + interval '20 min', 540,
  queued_at + (5 + id %% 15) * interval '1 min'
FROM leases_leaserequest WHERE state = 'fulfilled' AND id %% 5 = 0
"""
_AUDIT = """
INSERT INTO audit_auditentry (actor_id, action, target, team_id, detail, at)
SELECT author_id, 'request.submitted', uid, team_id, '{}', submitted_at FROM leases_leaserequest
ORDER BY submitted_at, id
"""
_NEWS = """
INSERT INTO notifications_notification (user_id, kind, target, facts, created_at, read_at)
SELECT user_id, 'lease.started', uid, '{}', ended_at,
  CASE WHEN ended_at < %(now)s - interval '1 day' THEN ended_at END
FROM leases_lease WHERE ended_at IS NOT NULL ORDER BY ended_at
"""
_QUOTAS = """
UPDATE quotas_quota q SET used_milli = s.used FROM (
  SELECT t.id, sum(l.cost_milli) AS used FROM teams_team t JOIN teams_team own ON t.id = ANY(own.lineage)
  JOIN leases_lease l ON l.team_id = own.id WHERE l.ended_at IS NULL GROUP BY t.id) s
WHERE s.id = q.team_id
"""


def _others(now: datetime) -> None:
    """Make one object of each kind that a page is about and a lease does not bring along."""
    from portal.accounts.models import User
    from portal.fleet.models import Node
    from portal.leases.maintenance import plan_window
    from portal.leases.requests import RequestSpec
    from portal.leases.reservations import SeriesSpec, create_reservation
    from portal.leases.templates import save_template
    from portal.teams.models import Team
    from portal.teams.selectors import Rights

    bob, operator, team = (
        User.objects.get(username="bob"),
        User.objects.get(username="operator"),
        Team.objects.get(slug="team-1"),
    )
    plan_window(
        nodes=[Node.objects.earliest("id")], starts_at=now + timedelta(days=2), ends_at=now + timedelta(days=3),
        reason="fans", actor=operator, now=now,
    )  # fmt: skip
    create_reservation(
        team=team, actor=bob, rights=Rights(bob), now=now,
        spec=SeriesSpec("1g-10gb", 3600, now + timedelta(days=5)),
    )  # fmt: skip
    admin = User.objects.get(username="charlie")
    spec = RequestSpec("a100", 3600)
    save_template(team=team, actor=admin, rights=Rights(admin), name="Notebook", spec=spec, now=now)
