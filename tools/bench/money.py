"""Money at size: a month of a million usage records, 500 teams, one of which has three in ten of them.

``python -m tools.bench.money`` wants DATABASE_URL and REDIS_URL of servers it may make a database on. BENCH_RECORDS and
BENCH_TEAMS say how much there is. Wall-clock time, PostgreSQL's included.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from tools.bench.own_database import measured_apart, print_measured

RECORDS = int(os.environ.get("BENCH_RECORDS", "100000"))
TEAMS = int(os.environ.get("BENCH_TEAMS", "500"))
PER_LEASE, PEOPLE, RUN_S = 10, 5, 600
BIG_TEAM = 0.3  # of all records
VIEWS, METERED = 7, 20_000
SUM = "SELECT team_id, micro_per_hour, sum(share_milli_seconds) FROM billing_usagerecord GROUP BY 1, 2"


def measure() -> dict[str, Any]:
    return measured_apart("tools.bench.money")


def _measured() -> dict[str, Any]:
    from portal.billing.closing import close_period
    from portal.billing.models import Invoice
    from portal.billing.periods import month_bounds, period_of
    from portal.common.clock import db_now
    from portal.common.sql import fetch

    now = db_now()
    start = month_bounds(month_bounds(now)[0] - timedelta(days=1))[0]
    with _seconds() as filling:
        _fill(start, now)
    found: dict[str, Any] = {
        "records": f"{RECORDS:,} of {TEAMS} teams, {int(RECORDS * BIG_TEAM):,} of one; made in {filling()}",
        "metering": _metering(now),
    }
    with _seconds() as summing:
        fetch(SUM)
    found["plain SQL sum of the same rows"] = summing()
    found |= _pages(start)
    with _seconds() as closing:
        close_period(period=period_of(start), actor=None, now=now)
    found["close"] = f"{closing()}, {Invoice.objects.count()} invoices, {_memory_mib()} MiB at most"
    return found | _exports(start, now)


def _fill(start: datetime, now: datetime) -> None:
    """Clone one lease that went the whole way until there are enough, each with its steps; meter them by SQL."""
    import importlib

    from django.db import connection

    from portal.billing.periods import period_of
    from portal.leases.models import Lease
    from portal.teams.models import Team
    from tools.bench import fleet, stages

    made = fleet.prepare(now)
    stages.Walker(made).walk(stages.Meter(), 1)
    pattern, root = Lease.objects.get(), Team.objects.get(slug="bench")
    period = period_of(start)
    leases = RECORDS // PER_LEASE
    kept = importlib.import_module("portal.billing.migrations.0006_totals_kept")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            "DELETE FROM billing_usagerecord; DELETE FROM billing_usageday; DELETE FROM billing_usagetotal"
        )
        cursor.execute("UPDATE catalog_rate SET valid = tstzrange(%s, NULL)", [start - timedelta(days=1)])
        cursor.execute(_TEAMS, [root.pk, TEAMS])
        cursor.execute(_PEOPLE, [TEAMS * PEOPLE])
        cursor.execute(
            _LEASES,
            {"n": leases, "big": int(leases * BIG_TEAM), "teams": TEAMS, "people": PEOPLE, "start": start,
             "pattern": pattern.pk, "length": timedelta(seconds=PER_LEASE * RUN_S * 2)},
        )  # fmt: skip
        steps = {"per": PER_LEASE, "run": timedelta(seconds=RUN_S), "seconds": RUN_S, "pattern": pattern.pk,
                 "period": period.pk, "now": now, "kept": METERED}  # fmt: skip
        cursor.execute(_EVENTS, steps)
        cursor.execute(_USAGE, steps)
        cursor.execute(_UNMETERED, steps)
        cursor.execute("ANALYZE")  # or the next statement goes through the leases once for each record
        cursor.execute(kept.FILL.replace("max(c.line_id)", "NULL::bigint"))
        cursor.execute("SET session_replication_role = origin")
        cursor.execute("ANALYZE")
        cursor.execute("RESET statement_timeout")


_TEAMS = """
WITH root AS (SELECT id, lineage FROM teams_team WHERE id = %s)
INSERT INTO teams_team (id, name, slug, parent_id, lineage, cost_centre, created_at)
SELECT 1000 + n, 'Team ' || n, 'team-' || n, root.id, root.lineage || (1000 + n)::bigint, 'C-' || n, now()
FROM root, generate_series(1, %s) n
"""
_PEOPLE = """
INSERT INTO accounts_user SELECT (jsonb_populate_record(u, jsonb_build_object(
  'id', 1000 + n, 'username', 'person-' || n, 'display_name', 'Person ' || n))).*
FROM accounts_user u, generate_series(1, %s) n WHERE u.username = 'bob'
"""
# The first leases are the big team's, the others go round.
_LEASES = """
INSERT INTO leases_lease SELECT (jsonb_populate_record(l, jsonb_build_object(
  'id', l.id + n, 'uid', 'lse-' || lpad(n::text, 16, '0'), 'is_metered', true,
  'team_id', 1001 + CASE WHEN n <= %(big)s THEN 0 ELSE n %% %(teams)s END,
  'user_id', 1001 + CASE WHEN n <= %(big)s THEN 0 ELSE n %% %(teams)s END * %(people)s + (n / 7) %% %(people)s,
  'activated_at', at, 'ended_at', at + %(length)s, 'clean_at', at + %(length)s, 'starts_at', at,
  'moved_at', at + %(length)s, 'not_after', at + %(length)s))).*
FROM leases_lease l, generate_series(1, %(n)s) n, LATERAL (SELECT %(start)s + (n %% 640) * interval '1 hour' AS at) t
WHERE l.id = %(pattern)s
"""
_EVENTS = """
INSERT INTO leases_leaseevent (lease_id, was, now, at, reason)
SELECT l.id, CASE WHEN k = 0 THEN 'preparing' WHEN k %% 2 = 0 THEN 'interrupted' ELSE 'active' END,
  CASE WHEN k %% 2 = 0 THEN 'active' WHEN k = 2 * %(per)s - 1 THEN 'cleaning' ELSE 'interrupted' END,
  l.activated_at + k * %(run)s, '' FROM leases_lease l, generate_series(0, 2 * %(per)s - 1) k
WHERE l.id > %(pattern)s ORDER BY l.id, k
"""
# The last leases are left to be metered by the product.
_USAGE = """
INSERT INTO billing_usagerecord (lease_id, team_id, period_id, rate_id, span, seconds, share_milli,
  share_milli_seconds, micro_per_hour, currency, recorded_at)
SELECT l.id, l.team_id, %(period)s, r.id,
  tstzrange(l.activated_at + 2 * k * %(run)s, l.activated_at + (2 * k + 1) * %(run)s), %(seconds)s, l.share_milli,
  %(seconds)s * l.share_milli, r.micro_per_hour, 'EUR', %(now)s
FROM leases_lease l, catalog_rate r, generate_series(0, %(per)s - 1) k
WHERE l.id > %(pattern)s AND l.id <= (SELECT max(id) - %(kept)s / %(per)s FROM leases_lease)
"""
_UNMETERED = """
UPDATE leases_lease SET is_metered = false WHERE id > (SELECT max(id) - %(kept)s / %(per)s FROM leases_lease);
"""


def _metering(now: datetime) -> str:
    from portal.billing.metering import meter_all

    began = time.perf_counter()
    written = meter_all(now=now)
    took = time.perf_counter() - began
    return f"{written:,} records in {took:.1f} s, {written / took:,.0f} a second"


def _pages(start: datetime) -> dict[str, str]:
    """Return how long pages of the open month take for who sees the whole organisation."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    from portal.common.clock import db_now
    from portal.teams.models import Role, Team
    from portal.teams.services import add_member

    person = get_user_model().objects.get(username="bob")
    add_member(team=Team.objects.get(slug="bench"), user=person, role=Role.FINANCE, now=db_now())
    client = Client()
    client.force_login(person)
    month = f"{start:%Y-%m}"
    pages = {
        "a team's open month": f"/invoices/team-1/{month}/",
        "the month of all teams": f"/invoices/?month={month}",
        "the chargeback report by team": f"/reports/?month={month}",
        "the chargeback report by person": f"/reports/?month={month}&by=person",
    }
    return {name: _median(lambda path=path: client.get(path)) for name, path in pages.items()}  # type: ignore[misc]


def _exports(start: datetime, now: datetime) -> dict[str, str]:
    """Return how long files of the closed month take, and how large they are."""
    import tempfile

    from portal.billing.charges import charges_of
    from portal.billing.focus import write_focus
    from portal.billing.periods import period_of
    from portal.billing.selectors import invoice_view
    from portal.teams.models import Team
    from portal.web.reports.paper import pdf
    from portal.web.reports.printed import invoice_paper

    period, teams = period_of(start), list(Team.objects.all())
    found = {}
    with tempfile.TemporaryFile() as file:
        with _seconds() as took:
            write_focus(file, period, charges_of(period, teams))
        found["FOCUS export"] = f"{took()}, {file.tell() / 1e6:.0f} MB, {_memory_mib()} MiB at most"
    with _seconds() as took:
        sizes = [len(pdf(invoice_paper(invoice_view(team, period, now=now), now=now))) for team in teams]
    found["PDFs of invoices"] = f"{len(sizes)} in {took()}, {sum(sizes) / len(sizes) / 1000:.0f} kB each"
    return found


def _median(view: Callable[[], Any]) -> str:
    times = []
    for _ in range(VIEWS):
        began = time.perf_counter()
        answer = view()
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.status_code
    return f"{sorted(times)[VIEWS // 2]:.0f} ms (of {VIEWS}; most {max(times):.0f})"


@contextmanager
def _seconds() -> Iterator[Callable[[], str]]:
    began = time.perf_counter()
    ended: list[float] = []
    yield lambda: f"{ended[0] - began:.1f} s"
    ended.append(time.perf_counter())


def _memory_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    print_measured(_measured)
