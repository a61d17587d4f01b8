"""What is counted against budgets and quotas: what was spent, what is held by leases, and what waits.

The rows of the books lie above this app. They are read here all the same, in one statement with those of leases: the
answer must be of one moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from portal.budgets.models import Wallet
from portal.budgets.periods import BudgetStretch, months_between
from portal.catalog.pricing import SHARE_HOUR
from portal.common.months import Months
from portal.common.sql import fetch, in_sql
from portal.leases.states import LIVE_ON_NODE, WANTED_LEASES, LeaseState, RequestState
from portal.quotas.models import Quota

WAITING = (RequestState.QUEUED, RequestState.AWAITING_APPROVAL)
# Targets with the teams below them, the leases that are not on the books to their end, and from when to when these
# were active or are still to be.
_TIMES = f"""
target AS (
  SELECT * FROM unnest(%(keys)s::int[], %(teams)s::bigint[], %(since)s::timestamptz[], %(until)s::timestamptz[])
    AS x(key, team_id, since, until)),
member AS MATERIALIZED (
  SELECT x.key, x.since, x.until, t.id AS team_id FROM target x JOIN teams_team t ON x.team_id = ANY(t.lineage)),
unmetered AS MATERIALIZED (
  SELECT l.id, l.team_id, l.state, l.share_milli, l.price_milli, l.is_preemptible, l.starts_at, f.device_model_id,
         f AS flavor, least(l.not_after, l.preempt_at) AS ends_at
    FROM leases_lease l JOIN catalog_flavor f ON f.id = l.flavor_id
   WHERE NOT l.is_metered AND l.team_id IN (SELECT team_id FROM member)),
ran AS (
  SELECT lease_id, date_trunc('second', at) AS since,
         date_trunc('second', coalesce(next_at, %(now)s::timestamptz)) AS until
    FROM (SELECT e.lease_id, e.at, e.now AS state,
                 lead(e.at) OVER (PARTITION BY e.lease_id ORDER BY e.at, e.id) AS next_at
            FROM leases_leaseevent e WHERE e.lease_id IN (SELECT id FROM unmetered)) steps
   WHERE state = '{LeaseState.ACTIVE}'),
times AS (
  SELECT lease_id, since, until, true AS is_spent FROM ran
  UNION ALL
  SELECT id, greatest(starts_at, %(now)s::timestamptz), ends_at, false FROM unmetered
   WHERE state IN {in_sql(WANTED_LEASES)})"""  # noqa: S608 (our own states)
# Spent: usage that is on the books, approved notes, external usage, what a team had used elsewhere when it came, and
# active time by events that no usage record holds yet. Held: what live leases would cost from now to their end.
# Waiting: the quotes of requests for the time they are still owed, from their booked start or from now on. Prices as
# metering takes them: the default card, lowered to what the lease pays, and by discounts.
_STANDINGS = f"""
WITH {_TIMES},
kept AS (
  SELECT m.key, sum(u.share_milli_seconds::numeric * u.micro_per_hour) AS cost
    FROM member m JOIN billing_billingperiod p ON p.starts_at >= m.since AND p.starts_at < m.until
    JOIN billing_usagetotal u ON u.period_id = p.id AND u.team_id = m.team_id GROUP BY 1),
noted AS (
  SELECT m.key, sum(n.amount_micro) AS amount
    FROM member m JOIN billing_billingperiod p ON p.starts_at >= m.since AND p.starts_at < m.until
    JOIN billing_invoicenote n ON n.period_id = p.id AND n.team_id = m.team_id GROUP BY 1),
opened AS (
  SELECT m.key, sum(o.used_micro) AS amount
    FROM member m JOIN billing_billingperiod p ON p.starts_at >= m.since AND p.starts_at < m.until
    JOIN billing_openingbalance o ON o.period_id = p.id AND o.team_id = m.team_id GROUP BY 1),
outside AS (
  SELECT m.key, sum(x.amount_micro) AS amount
    FROM member m JOIN billing_billingperiod p ON p.starts_at >= m.since AND p.starts_at < m.until
    JOIN billing_externalusage x ON x.period_id = p.id AND x.team_id = m.team_id AND x.is_live GROUP BY 1),
priced AS (
  SELECT m.key, x.is_spent, sum(extract(epoch FROM d.ends - d.begins) * l.share_milli
           * (catalog_price_of(r, l.flavor) * l.price_milli / 1000 * (1000 - coalesce(d.off_milli, 0)) / 1000)) AS cost
    FROM times x JOIN unmetered l ON l.id = x.lease_id JOIN member m ON m.team_id = l.team_id
    JOIN catalog_rate r ON r.device_model_id = l.device_model_id
    JOIN catalog_ratecard c ON c.id = r.card_id AND c.is_default
    CROSS JOIN LATERAL catalog_discounted(l.team_id, l.is_preemptible, greatest(x.since, lower(r.valid), m.since),
                                          least(x.until, upper(r.valid), m.until)) d
   WHERE least(x.until, upper(r.valid), m.until) > greatest(x.since, lower(r.valid), m.since)
   GROUP BY 1, 2),
recorded AS (
  SELECT m.key, sum(u.share_milli_seconds::numeric * u.micro_per_hour) AS cost
    FROM billing_usagerecord u JOIN unmetered l ON l.id = u.lease_id JOIN member m ON m.team_id = l.team_id
   WHERE lower(u.span) >= m.since AND lower(u.span) < m.until GROUP BY 1),
asked AS (
  SELECT m.key, sum(r.quote_micro::numeric / r.duration_s * extract(epoch FROM
           least(greatest(r.starts_at, %(now)s) + make_interval(secs => r.remaining_s), m.until)
           - greatest(r.starts_at, %(now)s, m.since))) AS cost
    FROM leases_leaserequest r JOIN member m ON m.team_id = r.team_id
   WHERE r.state IN {in_sql(WAITING)}
     AND least(greatest(r.starts_at, %(now)s) + make_interval(secs => r.remaining_s), m.until)
         > greatest(r.starts_at, %(now)s, m.since)
   GROUP BY 1)
SELECT x.key,
       coalesce((SELECT cost FROM kept WHERE kept.key = x.key), 0)
       + coalesce((SELECT cost FROM priced WHERE priced.key = x.key AND is_spent), 0)
       - coalesce((SELECT cost FROM recorded WHERE recorded.key = x.key), 0),
       coalesce((SELECT cost FROM priced WHERE priced.key = x.key AND NOT is_spent), 0),
       coalesce((SELECT cost FROM asked WHERE asked.key = x.key), 0),
       coalesce((SELECT amount FROM noted WHERE noted.key = x.key), 0)
       + coalesce((SELECT amount FROM opened WHERE opened.key = x.key), 0)
       + coalesce((SELECT amount FROM outside WHERE outside.key = x.key), 0)
  FROM target x
"""  # noqa: S608 (our own states)


# The same of time: device seconds by share. What was corrected late counts in the month in which it ran.
_HOURS = f"""
WITH {_TIMES},
kept AS (
  SELECT m.key, sum(u.share_milli_seconds) AS amount
    FROM member m JOIN billing_billingperiod p ON p.starts_at >= m.since AND p.starts_at < m.until
    JOIN billing_usagetotal u ON u.period_id = p.id AND u.team_id = m.team_id AND u.late_for_id IS NULL GROUP BY 1),
timed AS (
  SELECT m.key, x.is_spent,
         sum(extract(epoch FROM least(x.until, m.until) - greatest(x.since, m.since)) * l.share_milli) AS amount
    FROM times x JOIN unmetered l ON l.id = x.lease_id JOIN member m ON m.team_id = l.team_id
   WHERE least(x.until, m.until) > greatest(x.since, m.since) GROUP BY 1, 2),
recorded AS (
  SELECT m.key, sum(u.share_milli_seconds) AS amount
    FROM billing_usagerecord u JOIN unmetered l ON l.id = u.lease_id JOIN member m ON m.team_id = l.team_id
   WHERE lower(u.span) >= m.since AND lower(u.span) < m.until GROUP BY 1),
asked AS (
  SELECT m.key, sum(f.share_milli * r.count * greatest(r.nodes, 1) * extract(epoch FROM
           least(greatest(r.starts_at, %(now)s) + make_interval(secs => r.remaining_s), m.until)
           - greatest(r.starts_at, %(now)s, m.since))) AS amount
    FROM leases_leaserequest r JOIN member m ON m.team_id = r.team_id JOIN catalog_flavor f ON f.id = r.flavor_id
   WHERE r.state IN {in_sql(WAITING)}
     AND least(greatest(r.starts_at, %(now)s) + make_interval(secs => r.remaining_s), m.until)
         > greatest(r.starts_at, %(now)s, m.since)
   GROUP BY 1)
SELECT x.key,
       coalesce((SELECT amount FROM kept WHERE kept.key = x.key), 0)
       + coalesce((SELECT amount FROM timed WHERE timed.key = x.key AND is_spent), 0)
       - coalesce((SELECT amount FROM recorded WHERE recorded.key = x.key), 0),
       coalesce((SELECT amount FROM timed WHERE timed.key = x.key AND NOT is_spent), 0),
       coalesce((SELECT amount FROM asked WHERE asked.key = x.key), 0)
  FROM target x
"""  # noqa: S608 (our own states)
# What leases hold of device memory, from the moment in which they are prepared until they are clean.
_MEMORY = f"""
SELECT m.id, sum(f.memory_mib::bigint * l.count)
  FROM leases_lease l JOIN catalog_flavor f ON f.id = l.flavor_id JOIN teams_team t ON t.id = l.team_id
  JOIN unnest(%s::bigint[]) AS m(id) ON m.id = ANY(t.lineage)
 WHERE NOT l.is_metered AND l.state IN {in_sql(LIVE_ON_NODE)} GROUP BY 1
"""  # noqa: S608 (our own states)


@dataclass(frozen=True, slots=True)
class BudgetStanding:
    """What counts against a limit, rounded down: spent, held by live leases, and waiting.

    Of a budget in micro-units, of GPU-hours in thousandths of a device times seconds.
    """

    spent: int
    held: int
    waiting: int


def standings(wanted: Sequence[tuple[int, BudgetStretch]], *, now: datetime) -> list[BudgetStanding]:
    """Return what counts for each (team id, months), with the teams below it; one query for all."""
    if not wanted:
        return []
    found = {
        key: BudgetStanding(int(spent // SHARE_HOUR) + int(noted), int(held // SHARE_HOUR), int(waiting))
        for key, spent, held, waiting, noted in fetch(_STANDINGS, _targets(wanted, now))
    }
    return [found[key] for key in range(len(wanted))]


def time_standings(wanted: Sequence[tuple[int, BudgetStretch]], *, now: datetime) -> list[BudgetStanding]:
    """Return what counts of time for each (team id, month), with the teams below it, in thousandths of device seconds;
    one query for all."""
    if not wanted:
        return []
    found = {
        key: BudgetStanding(int(spent), int(held), int(waiting))
        for key, spent, held, waiting in fetch(_HOURS, _targets(wanted, now))
    }
    return [found[key] for key in range(len(wanted))]


def _targets(wanted: Sequence[tuple[int, BudgetStretch]], now: datetime) -> dict[str, Any]:
    return {
        "keys": list(range(len(wanted))),
        "teams": [team_id for team_id, _months in wanted],
        "since": [months.starts_at for _team_id, months in wanted],
        "until": [months.ends_at for _team_id, months in wanted],
        "now": now,
    }


def memory_held(team_ids: Collection[int]) -> dict[int, int]:
    """Return by team id the MiB of device memory that live leases of it and of those below hold; one query."""
    found = dict.fromkeys(team_ids, 0)
    if found:
        found.update((pk, int(mib)) for pk, mib in fetch(_MEMORY, [list(found)]))
    return found


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a team and those below use of its limits: device seconds of this month, used and held, and MiB held now.

    None where there is no such limit.
    """

    gpu_seconds: int | None
    memory_mib: int | None


def quota_uses(quotas: Iterable[Quota], *, now: datetime) -> dict[int, QuotaUse]:
    """Return by team id what is used of these quotas' limits; no query where they have none."""
    rows = list(quotas)
    timed = [row.team_id for row in rows if row.gpu_seconds_a_month is not None]
    held = memory_held([row.team_id for row in rows if row.most_memory_mib is not None])
    month = months_between(now, now, Months())[0] if timed else None
    found = time_standings([(pk, month) for pk in timed], now=now) if month else []
    used = {pk: (one.spent + one.held) // 1000 for pk, one in zip(timed, found, strict=True)}
    return {row.team_id: QuotaUse(used.get(row.team_id), held.get(row.team_id)) for row in rows}


_WAITING_FOR_WALLETS = f"""
SELECT payer.id, sum(ceil(r.quote_micro::numeric * r.remaining_s / r.duration_s))
  FROM leases_leaserequest r JOIN teams_team t ON t.id = r.team_id AND t.lineage && %s::bigint[]
 CROSS JOIN LATERAL (
   SELECT w.id FROM budgets_wallet w WHERE w.is_open AND w.team_id = ANY(t.lineage)
    ORDER BY array_position(t.lineage, w.team_id) DESC LIMIT 1) payer
 WHERE r.state IN {in_sql(WAITING)} GROUP BY 1
"""  # noqa: S608 (our own states)


def waiting_by_wallet(wallets: Iterable[Wallet]) -> dict[int, int]:
    """Return by wallet id what would be held for the requests that wait for it, by their quotes; one query."""
    team_ids = [wallet.team_id for wallet in wallets]
    rows = fetch(_WAITING_FOR_WALLETS, [team_ids]) if team_ids else []
    return {pk: int(micro) for pk, micro in rows}
