"""Energy and carbon: what leases used by the counters of their devices, and what that comes to by dated factors.

Only ``billing.electricity`` makes money of it. What nobody measured is unknown, and so is carbon where a factor is
missing (docs/adr/0038).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import models, transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.billing.labels import NONE, read_labels
from portal.billing.models import BillingPeriod
from portal.billing.periods import day_starts, hold_books, period_of
from portal.common.months import Months
from portal.common.sql import execute, fetch, in_sql
from portal.leases.models import Lease
from portal.leases.states import LIVE_ON_NODE
from portal.teams.labels import Labels
from portal.teams.models import Team

KWH_MJ = 3_600_000_000  # thousandths of a joule in a kilowatt-hour
LATE = timedelta(hours=2)  # as with the hours of utilisation: later minutes are in no hour
# Of a minute at one sample a second: with so many its energy is the whole minute's.
WHOLE_SAMPLES = 55
# The energy of a device's minute goes to the leases that held it, each by its share and its seconds. What nobody held
# is nobody's; where shares, which are rounded up, come to more than the device, each gives way by the same part.
# Measured is what a counter says of a device that was held as a whole. A part of a device has no counter, and power
# sampled once a second only comes near it: both are estimates.
_ROLL_UP = f"""
WITH held AS MATERIALIZED (
  SELECT l.id AS lease_id, p.device_id, p.share_milli, n.site, l.activated_at AS since, coalesce(l.ended_at, %(now)s)
    AS until, p.period
    FROM (SELECT * FROM leases_lease WHERE node_id = ANY(ARRAY(SELECT id FROM fleet_node)) AND clean_at > %(since)s
          UNION ALL SELECT * FROM leases_lease WHERE state IN {in_sql(LIVE_ON_NODE)} AND clean_at IS NULL) AS l
    JOIN leases_placement p ON p.lease_id = l.id JOIN fleet_node n ON n.id = l.node_id
   WHERE l.activated_at < %(now)s AND (l.ended_at IS NULL OR l.ended_at > %(since)s)),
part AS (
  SELECT h.*, m.minute, m.energy_mj, m.power_mean_w, least(m.samples, 60) AS samples,
         extract(epoch FROM least(h.until, m.minute + interval '1 minute') - greatest(h.since, m.minute)) AS seconds
    FROM telemetry_minuterollup m JOIN held h ON h.device_id = m.device_id AND h.since < m.minute + interval '1 minute'
     AND h.until > m.minute AND h.period && tstzrange(m.minute, m.minute + interval '1 minute')
   WHERE m.minute >= %(since)s AND m.minute < %(now)s AND m.device_id IS NOT NULL
     AND (m.energy_mj IS NOT NULL OR m.power_mean_w IS NOT NULL)),
known AS (
  SELECT lease_id, site, energy_mj IS NOT NULL AND share_milli >= 1000 AS is_measured,
         greatest(date_trunc('hour', minute, 'UTC'), CASE WHEN minute >= %(month)s THEN %(month)s::timestamptz END)
           AS begins,
         seconds * CASE WHEN samples >= {WHOLE_SAMPLES} THEN 1 ELSE samples / 60.0 END AS seconds,
         coalesce(energy_mj, power_mean_w::numeric * 1000
             * CASE WHEN samples >= {WHOLE_SAMPLES} THEN 60 ELSE samples END) * share_milli * seconds
             / greatest(60000, sum(share_milli * seconds) OVER (PARTITION BY device_id, minute)) AS mj
    FROM part)
INSERT INTO billing_leaseenergy (lease_id, begins, site, measured_s, measured_mj, estimated_s, estimated_mj)
SELECT lease_id, begins, min(site), ceil(coalesce(sum(seconds) FILTER (WHERE is_measured), 0)),
       round(coalesce(sum(mj) FILTER (WHERE is_measured), 0)),
       ceil(coalesce(sum(seconds) FILTER (WHERE NOT is_measured), 0)),
       round(coalesce(sum(mj) FILTER (WHERE NOT is_measured), 0))
  FROM known WHERE begins >= coalesce(billing_closed_until(), '-infinity') GROUP BY 1, 2
    ON CONFLICT (lease_id, begins) DO UPDATE SET measured_s = excluded.measured_s, measured_mj = excluded.measured_mj,
       estimated_s = excluded.estimated_s, estimated_mj = excluded.estimated_mj
 WHERE billing_leaseenergy.measured_s + billing_leaseenergy.estimated_s <= excluded.measured_s + excluded.estimated_s
"""  # noqa: S608 (our own words)


def factor_at(kind: str, site: str) -> str:
    """Return SQL for the factor of a site that is in force when the hour ``h`` begins."""
    return f"""(SELECT value_milli FROM (
    SELECT value_milli, valid FROM billing_energyfactor WHERE kind = '{kind}' AND site = {site}
       AND lower(valid) <= h.begins ORDER BY lower(valid) DESC LIMIT 1) AS last WHERE valid @> h.begins)
"""  # noqa: S608 (our own words)


# The factors of hours and sites: that of the site, else the one for all other sites. OFFSET keeps the planner from
# looking them up again for each lease.
_FACTORS = f"""
SELECT h.site, h.begins, coalesce({factor_at("carbon", "h.site")}, {factor_at("carbon", "''")}) AS grid,
       coalesce({factor_at("pue", "h.site")}, {factor_at("pue", "''")}) AS pue
  FROM (SELECT DISTINCT site, begins FROM billing_leaseenergy WHERE {{hours}}) AS h OFFSET 0
"""  # noqa: S608 (our own words)
# Milligrams: thousandths of a joule x thousandths of a PUE x milligrams per kWh.
_MJ = "(e.measured_mj + e.estimated_mj)"
CARBON_MG = f"{_MJ}::numeric * factor.pue * factor.grid / {KWH_MJ * 1000}"
_NO_FACTOR = "factor.pue IS NULL OR factor.grid IS NULL"
_SUMS = f"""
sum(e.measured_s), sum(e.measured_mj), sum(e.estimated_s), sum(e.estimated_mj), sum({CARBON_MG}),
sum({_MJ}) FILTER (WHERE {_NO_FACTOR})
"""
_OF_LEASE = f"""
SELECT {_SUMS} FROM billing_leaseenergy e JOIN ({_FACTORS.format(hours="lease_id = %(lease)s")}) AS factor
 USING (site, begins) WHERE e.lease_id = %(lease)s
"""  # noqa: S608 (our own words)
_HOURS = "begins >= %(since)s::timestamptz AND begins < %(until)s::timestamptz"
# A month by its sums of hours, and the device-seconds that were held by those of usage. A lease that is not metered yet
# counts by itself, less what usage has of it already. Each part is summed before they meet: a day has thousands of
# rows. Words in braces are for who writes the statement.
_OF_WHOM = """t.team_id = ANY(%(teams)s)
     AND (%(person)s = '' OR t.user_id = (SELECT id FROM accounts_user WHERE username = %(person)s))"""
_OF_MONTH = f"""
WITH s AS (SELECT * FROM unnest(%(days)s::date[], %(begins)s::timestamptz[], %(ends)s::timestamptz[]) AS s (day, begins,
  ends)),
running AS MATERIALIZED (
  SELECT t.id, t.team_id, t.user_id, t.flavor_id, t.count, t.activated_at AS since,
         coalesce(t.ended_at, %(now)s) AS until
    FROM leases_lease t WHERE NOT t.is_metered AND t.activated_at < %(now)s AND {_OF_WHOM}),
part AS (
  SELECT {{key}}, t.flavor_id, 0 AS devices_s, 0 AS share_milli_s, sum(x.measured_s) AS measured_s,
         sum(x.measured_mj) AS measured_mj, sum(x.estimated_s) AS estimated_s, sum(x.estimated_mj) AS estimated_mj,
         sum(x.factored) AS factored, sum(x.carbon) AS carbon, sum(x.no_factor_mj) AS no_factor_mj
    FROM billing_energytotal t {{energy}} WHERE t.period_id = %(period)s AND {_OF_WHOM} GROUP BY 1, 2, 3, 4
  UNION ALL
  SELECT {{key}}, t.flavor_id, 0, sum(x.share_milli_seconds), 0, 0, 0, 0, 0, 0, 0
    FROM billing_usagetotal t {{usage}} WHERE t.period_id = %(period)s AND t.late_for_id IS NULL AND {_OF_WHOM}
   GROUP BY 1, 2, 3, 4
  UNION ALL
  SELECT {{key}}, t.flavor_id, 0, sum(x.share_milli_seconds), 0, 0, 0, 0, 0, 0, 0
    FROM billing_usagetotal t {{usage}} WHERE t.late_for_id = %(period)s AND {_OF_WHOM} GROUP BY 1, 2, 3, 4
  UNION ALL
  SELECT {{key}}, t.flavor_id, sum(t.count * extract(epoch FROM least(t.until, x.ends) - greatest(t.since, x.begins))),
         0, 0, 0, 0, 0, 0, 0, 0
    FROM running t JOIN s x ON t.since < x.ends AND t.until > x.begins GROUP BY 1, 2, 3, 4
  UNION ALL
  SELECT {{key}}, t.flavor_id, 0, -sum(u.share_milli * extract(epoch FROM least(upper(u.span), x.ends)
         - greatest(lower(u.span), x.begins))), 0, 0, 0, 0, 0, 0, 0
    FROM running t JOIN billing_usagerecord u ON u.lease_id = t.id JOIN s x ON u.span && tstzrange(x.begins, x.ends)
   WHERE coalesce(u.late_for_id, u.period_id) = %(period)s GROUP BY 1, 2, 3, 4),
summed AS (
  SELECT {{ids}},
         sum(part.devices_s + part.share_milli_s / nullif(f.share_milli, 0)::numeric) AS held,
         sum(measured_s) AS measured_s, sum(measured_mj) AS measured_mj, sum(estimated_s) AS estimated_s,
         sum(estimated_mj) AS estimated_mj,
         CASE WHEN sum(factored) > 0 THEN sum(carbon) / {KWH_MJ * 1000} END AS mg, sum(no_factor_mj) AS no_factor
    FROM part JOIN catalog_flavor f ON f.id = part.flavor_id GROUP BY GROUPING SETS ({{sets}}))
SELECT CASE WHEN x.team_id IS NOT NULL THEN 'team' WHEN x.user_id IS NOT NULL THEN 'person'
            WHEN x.device_model_id IS NOT NULL THEN 'device_model' ELSE 'day' END,
       coalesce(t.slug, u.username, m.name, x.day::text),
       coalesce(t.name, nullif(u.display_name, ''), u.username, m.name, x.day::text),
       held, measured_s, measured_mj, estimated_s, estimated_mj, mg, no_factor
  FROM summed x LEFT JOIN teams_team t ON t.id = x.team_id::bigint LEFT JOIN accounts_user u ON u.id = x.user_id::bigint
  LEFT JOIN fleet_devicemodel m ON m.id = x.device_model_id::bigint
"""  # noqa: S608 (our own words)
_KEPT_OTHERWISE = f"""
WITH due AS (
  SELECT l.team_id, l.user_id, l.flavor_id, width_bucket(e.begins, %(begins)s::timestamptz[]) AS n, count(*) AS hours,
         sum(e.measured_s) AS measured_s, sum(e.measured_mj) AS measured_mj, sum(e.estimated_s) AS estimated_s,
         sum(e.estimated_mj) AS estimated_mj, count(*) FILTER (WHERE NOT ({_NO_FACTOR})) AS factored,
         coalesce(sum({_MJ}::numeric * factor.pue * factor.grid), 0) AS carbon,
         coalesce(sum({_MJ}) FILTER (WHERE {_NO_FACTOR}), 0) AS no_factor_mj
    FROM billing_leaseenergy e JOIN ({_FACTORS.format(hours=_HOURS)}) AS factor USING (site, begins)
    JOIN leases_lease l ON l.id = e.lease_id WHERE {_HOURS} GROUP BY 1, 2, 3, 4),
kept AS (
  SELECT t.team_id, t.user_id, t.flavor_id, d.day - %(first)s::date + 1 AS n, d.hours, d.measured_s, d.measured_mj,
         d.estimated_s, d.estimated_mj, d.factored, d.carbon, d.no_factor_mj
    FROM billing_energytotal t JOIN billing_energyday d ON d.total_id = t.id WHERE t.period_id = %(period)s),
days AS (
  SELECT d.total_id, sum(d.hours) AS hours, sum(d.measured_s) AS measured_s, sum(d.measured_mj) AS measured_mj,
         sum(d.estimated_s) AS estimated_s, sum(d.estimated_mj) AS estimated_mj, sum(d.factored) AS factored,
         sum(d.carbon) AS carbon, sum(d.no_factor_mj) AS no_factor_mj
    FROM billing_energyday d JOIN billing_energytotal t ON t.id = d.total_id WHERE t.period_id = %(period)s GROUP BY 1)
SELECT 'day ' || n || ' of team ' || team_id || ', person ' || user_id || ', flavor ' || flavor_id
  FROM due FULL JOIN kept USING (team_id, user_id, flavor_id, n)
 WHERE due IS NULL OR kept IS NULL OR (due.hours, due.measured_s, due.measured_mj, due.estimated_s, due.estimated_mj,
       due.factored, due.carbon, due.no_factor_mj) IS DISTINCT FROM (kept.hours, kept.measured_s, kept.measured_mj,
       kept.estimated_s, kept.estimated_mj, kept.factored, kept.carbon, kept.no_factor_mj)
UNION ALL
SELECT 'month of team ' || t.team_id || ', person ' || t.user_id || ', flavor ' || t.flavor_id
  FROM billing_energytotal t LEFT JOIN days d ON d.total_id = t.id
 WHERE t.period_id = %(period)s AND (t.hours, t.measured_s, t.measured_mj, t.estimated_s, t.estimated_mj, t.factored,
       t.carbon, t.no_factor_mj) IS DISTINCT FROM (d.hours, d.measured_s, d.measured_mj, d.estimated_s, d.estimated_mj,
       d.factored, d.carbon, d.no_factor_mj)
 ORDER BY 1
"""  # noqa: S608 (our own words)
# The energy of an hour by usage record: each record of the lease has as much of it as it has of their seconds in that
# hour. Adjustments of earlier months have none. Words in braces are for who writes the statement.
RECORD_ENERGY = f"""
SELECT record_id, sum(measured_s * part) AS measured_s, sum(measured_mj * part) AS measured_mj,
       sum(estimated_s * part) AS estimated_s, sum(estimated_mj * part) AS estimated_mj, sum(mg * part) AS mg,
       sum(no_factor * part) AS no_factor
  FROM (
    SELECT u.id AS record_id, e.measured_s, e.measured_mj, e.estimated_s, e.estimated_mj, {CARBON_MG} AS mg,
           CASE WHEN {_NO_FACTOR} THEN {_MJ} END AS no_factor,
           own.seconds / sum(own.seconds) OVER (PARTITION BY e.id) AS part
      FROM billing_leaseenergy e
      JOIN ({_FACTORS.format(hours="begins >= {since} AND begins < {until}")}) AS factor USING (site, begins)
      JOIN billing_usagerecord u ON u.lease_id = e.lease_id
       AND u.span && tstzrange(e.begins, least(e.begins + interval '1 hour', {{until}}))
     CROSS JOIN LATERAL (SELECT extract(epoch FROM least(upper(u.span), e.begins + interval '1 hour', {{until}})
             - greatest(lower(u.span), e.begins)) AS seconds) AS own
     WHERE u.period_id = {{period}} AND u.late_for_id IS NULL AND e.begins >= {{since}} AND e.begins < {{until}}
    ) AS parts
 GROUP BY 1
"""  # noqa: S608 (our own words)
_BY_RECORD = RECORD_ENERGY.format(
    period="%(period)s", since="%(since)s::timestamptz", until="%(until)s::timestamptz"
)
_OF_LINES = f"""
SELECT t.id, u.label_id, sum(x.measured_s), sum(x.measured_mj), sum(x.estimated_s), sum(x.estimated_mj), sum(x.mg),
       sum(x.no_factor)
  FROM ({_BY_RECORD}) AS x
  JOIN billing_usagerecord u ON u.id = x.record_id JOIN leases_lease l ON l.id = u.lease_id
  JOIN billing_usagetotal t ON t.period_id = u.period_id AND t.team_id = u.team_id AND t.user_id = l.user_id
   AND t.flavor_id = l.flavor_id AND t.micro_per_hour = u.micro_per_hour AND t.currency = u.currency
   AND t.late_for_id IS NULL
 GROUP BY 1, 2
"""  # noqa: S608 (our own words)
_REFUSED = """
SELECT n.name, d.index, sum(r.energy_refused), max(r.minute) FROM telemetry_minuterollup r
  JOIN fleet_device d ON d.id = r.device_id JOIN fleet_node n ON n.id = d.node_id
 WHERE r.minute >= %s AND r.energy_refused > 0 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 100
"""


class EnergyBasis(models.TextChoices):
    """How much a figure of energy is worth."""

    MEASURED = "measured", pgettext_lazy("energy", "measured")
    ESTIMATED = "estimated", pgettext_lazy("energy", "estimated")
    UNKNOWN = "unknown", pgettext_lazy("energy", "unknown")


class EnergyBy(models.TextChoices):
    """What the rows of a list of energy are."""

    TEAM = "team", _("Team")
    PERSON = "person", _("Person")
    DEVICE_MODEL = "device_model", pgettext_lazy("report", "Device model")
    DAY = "day", pgettext_lazy("report", "Day")


# By what rows are: what all parts are summed by.
_SETS = {
    EnergyBy.TEAM: "part.team_id",
    EnergyBy.PERSON: "part.user_id",
    EnergyBy.DEVICE_MODEL: "f.device_model_id",
    EnergyBy.DAY: "part.day",
}


@dataclass(frozen=True, slots=True)
class EnergyFigures:
    """Energy of leases in thousandths of a joule, of ``held_s`` device-seconds in which they were active.

    ``carbon_mg`` counts what has both its factors; ``no_factor_mj`` is the energy that lacks one.
    """

    held_s: int = 0
    measured_s: int = 0
    measured_mj: int = 0
    estimated_s: int = 0
    estimated_mj: int = 0
    carbon_mg: int | None = None
    no_factor_mj: int = 0

    @property
    def unknown_s(self) -> int:
        """Return the device-seconds of which nobody knows what they used."""
        return max(0, self.held_s - self.measured_s - self.estimated_s)

    @property
    def basis(self) -> EnergyBasis:
        """Say whether all that is known was measured, some was estimated, or nothing is known."""
        if not self.measured_s + self.estimated_s:
            return EnergyBasis.UNKNOWN
        return EnergyBasis.ESTIMATED if self.estimated_s else EnergyBasis.MEASURED

    @property
    def kwh(self) -> float | None:
        """Return what is known in kilowatt-hours; None where nothing is."""
        known = self.basis != EnergyBasis.UNKNOWN
        return (self.measured_mj + self.estimated_mj) / KWH_MJ if known else None

    @property
    def measured_kwh(self) -> float:
        """Return what counters of whole devices say."""
        return self.measured_mj / KWH_MJ

    @property
    def estimated_kwh(self) -> float:
        """Return what follows from shares of devices and from power."""
        return self.estimated_mj / KWH_MJ

    @property
    def no_factor_kwh(self) -> float:
        """Return the energy that is in no carbon."""
        return self.no_factor_mj / KWH_MJ

    @property
    def carbon_g(self) -> float | None:
        """Return grams of CO2 equivalent of the energy that has its factors; None where nothing has."""
        return None if self.carbon_mg is None else self.carbon_mg / 1000

    def __add__(self, other: EnergyFigures) -> EnergyFigures:
        """Return both together."""
        carbon = [mg for mg in (self.carbon_mg, other.carbon_mg) if mg is not None]
        return EnergyFigures(
            self.held_s + other.held_s,
            self.measured_s + other.measured_s,
            self.measured_mj + other.measured_mj,
            self.estimated_s + other.estimated_s,
            self.estimated_mj + other.estimated_mj,
            sum(carbon) if carbon else None,
            self.no_factor_mj + other.no_factor_mj,
        )


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """What a team, a person, a device model or a day used in a month; each team is itself alone."""

    key: str
    name: str
    figures: EnergyFigures


@dataclass(frozen=True, slots=True)
class RefusedCounter:
    """A device whose counter or power could not be true in so many seconds, last in the minute ``at``."""

    node: str
    index: int
    seconds: int
    at: datetime


@transaction.atomic
def roll_up_energy(*, now: datetime) -> int:
    """Make the hours that may still grow anew from their minutes; returns how many rows it wrote. Safe to repeat.

    Triggers add them to the sums of their months, which are opened before.
    """
    since = (now - LATE).replace(minute=0, second=0, microsecond=0)
    if now.minute >= 15:  # the hour before is complete but for minutes that came late
        since = now.replace(minute=0, second=0, microsecond=0)
    month, _next = Months().bounds(now)
    for at in (since, now):
        period_of(at)
    hold_books()  # a close waits for the hours that are written here, and none are written into a month that it closed
    return execute(_ROLL_UP, {"now": now, "since": since, "month": month})


def energy_of_lease(lease: Lease, *, now: datetime) -> EnergyFigures:
    """Return what a lease has used so far; two queries at most, none before it was active."""
    if lease.activated_at is None:
        return EnergyFigures()
    (row,) = fetch(_OF_LEASE, {"lease": lease.pk})
    held = ((lease.ended_at or now) - lease.activated_at).total_seconds() * lease.count
    return _figures(held, *row)


def energy_of_month(
    period: BillingPeriod, teams: Sequence[Team], *, by: EnergyBy, person: str = "", now: datetime
) -> tuple[list[EnergyRow], EnergyFigures]:
    """Return what a month's leases of these teams used, by team, person, device model or day; and all together.

    By the sums that the database keeps, whatever number of hours there are. An hour that crosses the begin of a day
    counts on the day in which it begins.
    """
    rows = _lists(period, teams, (by,), person, now)[by]
    whole = EnergyFigures()
    for row in rows:
        whole += row.figures
    return rows, whole


def energy_lists(
    period: BillingPeriod, teams: Sequence[Team], *, person: str = "", now: datetime
) -> tuple[dict[EnergyBy, list[EnergyRow]], EnergyFigures]:
    """Return all lists of a month's energy, and all together; two queries."""
    whole_month = _lists(period, teams, (EnergyBy.TEAM, EnergyBy.PERSON, EnergyBy.DEVICE_MODEL), person, now)
    days, whole = energy_of_month(period, teams, by=EnergyBy.DAY, person=person, now=now)
    return {**whole_month, EnergyBy.DAY: days}, whole


def _lists(
    period: BillingPeriod, teams: Sequence[Team], lists: Sequence[EnergyBy], person: str, now: datetime
) -> dict[EnergyBy, list[EnergyRow]]:
    """Return lists of a month, those that used most first and days in their order; by day alone, or by none."""
    starts, days = [period.starts_at, period.ends_at], [period.month]
    energy = usage = "CROSS JOIN LATERAL (SELECT t.*) x"
    key = "t.team_id, t.user_id, NULL::date AS day"
    if EnergyBy.DAY in lists:
        starts = day_starts(period)
        days = [period.month.replace(day=n) for n in range(1, len(starts))]
        energy, usage = (
            f"JOIN billing_{table} x ON x.total_id = t.id" for table in ("energyday", "usageday")
        )
        key = "NULL::bigint AS team_id, NULL::bigint AS user_id, x.day"
    given: dict[str, Any] = {
        "now": min(now, period.ends_at), "period": period.pk, "teams": [team.pk for team in teams], "days": days,
        "begins": starts[:-1], "ends": starts[1:], "person": person,
    }  # fmt: skip
    ids = [one if by in lists else f"NULL AS {one.partition('.')[2]}" for by, one in _SETS.items()]
    statement = _OF_MONTH.format(
        key=key,
        energy=energy,
        usage=usage,
        ids=", ".join(ids),
        sets=", ".join(f"({_SETS[by]})" for by in lists),
    )
    found: dict[EnergyBy, list[EnergyRow]] = {by: [] for by in lists}
    for by, row_key, name, *values in fetch(statement, given):
        found[EnergyBy(by)].append(EnergyRow(row_key, name, _figures(*values)))
    for by, rows in found.items():
        if by == EnergyBy.DAY:
            rows.sort(key=lambda row: row.key)
        else:
            rows.sort(key=lambda row: (-(row.figures.kwh or 0), row.name.lower()))
    return found


def energy_of_lines(period: BillingPeriod) -> dict[tuple[int, Labels], EnergyFigures]:
    """Return the energy behind the lines of a month, by total and by the labels that its usage is filed under."""
    given = {"period": period.pk, "since": period.starts_at, "until": period.ends_at}
    rows = fetch(_OF_LINES, given)
    known = read_labels(label for _total, label, *_sums in rows if label is not None)
    found: dict[tuple[int, Labels], EnergyFigures] = {}
    for total, label, *sums in rows:
        key = (total, NONE if label is None else known[label])
        found[key] = found.get(key, EnergyFigures()) + _figures(0, *sums)
    return found


def energy_kept_otherwise(period: BillingPeriod) -> list[str]:
    """Return the sums of a month that are not what its hours of energy come to by day and by factor."""
    given = {
        "period": period.pk, "first": period.month, "begins": day_starts(period)[:-1], "since": period.starts_at,
        "until": period.ends_at,
    }  # fmt: skip
    return [str(what) for (what,) in fetch(_KEPT_OTHERWISE, given)]


def refused_counters(*, since: datetime) -> list[RefusedCounter]:
    """Return the devices whose counter or power could not be true lately, the worst first."""
    return [RefusedCounter(*row) for row in fetch(_REFUSED, [since])]


def _figures(held: Any, *sums: Any) -> EnergyFigures:
    measured_s, measured_mj, estimated_s, estimated_mj, carbon_mg, no_factor_mj = sums
    return EnergyFigures(
        int(held or 0), math.ceil(measured_s or 0), round(measured_mj or 0), math.ceil(estimated_s or 0),
        round(estimated_mj or 0),        None if carbon_mg is None else round(carbon_mg), round(no_factor_mj or 0),
    )  # fmt: skip
