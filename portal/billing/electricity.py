"""Electricity as a component of the rate: kWh of leases at the dated prices of their sites, on lines of their own.

Nothing is charged until somebody sets a price of electricity (``EnergyFactorKind.PRICE``). Energy comes from nodes, so
it is bounded by what the books know: no hour of a lease comes to more than its device may draw in the seconds that
are billed of it. What nobody measured is unknown and not charged (docs/adr/0046).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import groupby

from django.db import transaction

from portal.audit.services import record
from portal.billing.energy import KWH_MJ, LATE, factor_at
from portal.billing.external_usage import reverse_rows
from portal.billing.imports import hold_month
from portal.billing.models import (
    BillingPeriod,
    ElectricityCount,
    EnergyFactor,
    EnergyFactorKind,
    ExternalUsage,
    FinanceImport,
    ImportKind,
    PeriodState,
)
from portal.billing.selectors import currency
from portal.catalog.models import Flavor
from portal.catalog.pricing import apportion, to_minor
from portal.common.sql import execute, fetch
from portal.fleet.models import DeviceModel
from portal.leases.models import Lease
from portal.telemetry.roster import power_limit_w

SOURCE = "Electricity"
LOOK_BACK = timedelta(days=7)  # of hours that say what a flavor draws, for an estimate
# The key of the lock under which electricity is put on the books, so that it is put there once.
_POSTING_LOCK = 0x6B5768
_PRICE, _PUE = (
    f"coalesce({factor_at(kind, 'h.site')}, {factor_at(kind, repr(''))}{usual})"
    for kind, usual in (("price", ""), ("pue", ", 1000"))
)
# Hours that have a price, each no more than the device may draw in the seconds that were billed of it: watts x
# thousandths of a device x seconds are thousandths of a joule. Hours take the price and the PUE of their begin; without
# a PUE devices alone count. Words in braces are for who writes the statement.
_CHARGED = f"""
WITH factor AS MATERIALIZED (
  SELECT h.site, h.begins, {_PRICE} AS price, {_PUE} AS pue
    FROM (SELECT DISTINCT site, begins FROM billing_leaseenergy WHERE {{hours}}) AS h OFFSET 0),
priced AS (
  SELECT e.lease_id, e.begins, least(date_trunc('hour', e.begins, 'UTC') + interval '1 hour', %(until)s::timestamptz)
           AS ends, e.measured_mj, e.estimated_mj, f.price, f.pue
    FROM billing_leaseenergy e JOIN factor f USING (site, begins) WHERE {{hours}} AND f.price IS NOT NULL),
held AS (
  SELECT p.*, l.team_id, l.user_id, coalesce(used.label_id, 0) AS label_id, used.quantity * m.watts AS most
    FROM priced p JOIN leases_lease l ON l.id = p.lease_id JOIN catalog_flavor c ON c.id = l.flavor_id
    JOIN unnest(%(models)s::bigint[], %(watts)s::bigint[]) AS m(id, watts) ON m.id = c.device_model_id
   CROSS JOIN LATERAL (
     SELECT sum(u.share_milli * extract(epoch FROM least(upper(u.span), p.ends) - greatest(lower(u.span), p.begins)))
              ::bigint AS quantity, max(u.label_id) AS label_id
       FROM billing_usagerecord u WHERE u.lease_id = p.lease_id AND u.span && tstzrange(p.begins, p.ends) AND {{usage}}
     ) AS used
   WHERE used.quantity > 0),
part AS (
  SELECT held.*, 'measured' AS basis, least(measured_mj, most) AS mj FROM held
  UNION ALL
  SELECT held.*, 'estimated', least(estimated_mj, most - least(measured_mj, most)) FROM held)
SELECT team_id, user_id, label_id, basis, sum(mj::numeric * pue), sum(mj::numeric * pue * price), min(begins), max(ends)
  FROM part WHERE mj > 0 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""  # noqa: S608 (our own words)
_MONTH = "begins >= %(since)s::timestamptz AND begins < %(until)s::timestamptz"
_OF_MONTH = _CHARGED.format(hours=_MONTH, usage="u.period_id = %(period)s AND u.late_for_id IS NULL")
_OF_LEASE = _CHARGED.format(hours="lease_id = %(lease)s", usage="u.late_for_id IS NULL")
_UNPRICED = f"""
WITH bare AS MATERIALIZED (
  SELECT h.site, h.begins FROM (SELECT DISTINCT site, begins FROM billing_leaseenergy WHERE {_MONTH}) AS h
   WHERE {_PRICE} IS NULL)
SELECT e.site, count(*), sum(e.measured_mj + e.estimated_mj)
  FROM billing_leaseenergy e JOIN bare USING (site, begins)
 WHERE {_MONTH} AND e.measured_mj + e.estimated_mj > 0 GROUP BY 1
"""  # noqa: S608 (our own words)
# By the sums of days that the months keep: each quote asks, and hours are some hundred thousand a week.
_DRAWN = """
SELECT sum(d.measured_mj + d.estimated_mj), sum(d.measured_s + d.estimated_s)
  FROM billing_billingperiod p JOIN billing_energytotal t ON t.period_id = p.id AND t.flavor_id = %(flavor)s
  JOIN billing_energyday d ON d.total_id = t.id AND d.day >= %(since)s
 WHERE p.ends_at > %(since)s
"""

# What a month's electricity is made of, as far as its sums tell: one row of one text.
_SOURCE = """
SELECT concat_ws('/',
  (SELECT md5(string_agg(t::text, ' ' ORDER BY t.id)) FROM billing_energytotal t WHERE t.period_id = %(period)s),
  (SELECT md5(string_agg(concat_ws(' ', t.id, t.records, t.share_milli_seconds, t.seconds), ' ' ORDER BY t.id))
     FROM billing_usagetotal t WHERE t.period_id = %(period)s AND t.late_for_id IS NULL),
  (SELECT md5(string_agg(f::text, ' ' ORDER BY f.id)) FROM billing_energyfactor f
    WHERE f.kind IN ('price', 'pue') AND f.valid && tstzrange(%(since)s, %(until)s)))
"""

_Line = tuple[int, int | None, int | None, str]  # team, person, label, basis


@dataclass(frozen=True, slots=True)
class ElectricityRow:
    """What a person of a team pays for electricity in a month, filed under one label: a line of the invoice.

    ``energy_mj`` are thousandths of a joule with their PUE, of hours that were measured, or estimated.
    """

    team_id: int
    user_id: int
    label_id: int | None
    basis: str
    energy_mj: int
    exact: Fraction
    amount_micro: int
    starts_at: datetime
    ends_at: datetime

    @property
    def micro_per_kwh(self) -> int | None:
        """Return what a kWh costs on average, by the exact cost: whatever its line is rounded to."""
        return round(self.exact * KWH_MJ / self.energy_mj) if self.energy_mj else None


@dataclass(frozen=True, slots=True)
class ExpectedElectricity:
    """What the electricity of a request would probably cost, in micro-units, and its kWh in thousandths.

    ``is_most`` where nobody knows what such leases draw: then it is what their devices may draw at most.
    """

    amount_micro: int
    watt_hours: int
    is_most: bool


def charges_electricity(since: datetime, until: datetime) -> bool:
    """Say whether a price of electricity is in force at any time between two instants."""
    return EnergyFactor.objects.filter(kind=EnergyFactorKind.PRICE, valid__overlap=(since, until)).exists()


def electricity_of_month(period: BillingPeriod) -> list[ElectricityRow]:
    """Return what a month's metered leases pay for electricity, each team's lines rounded together; [] without a price.

    Of a closed month it is the same at any time: its energy, factors and usage are locked.
    """
    if not charges_electricity(period.starts_at, period.ends_at):
        return []
    given = {"since": period.starts_at, "until": period.ends_at, "period": period.pk, **_limits()}
    return _rows(_OF_MONTH, given)


def electricity_of_lease(lease: Lease) -> list[ElectricityRow]:
    """Return what a lease pays for electricity as far as it is metered, by basis; it is rounded on the invoice only."""
    if lease.activated_at is None or not charges_electricity(lease.activated_at, lease.not_after):
        return []
    return _rows(_OF_LEASE, {"lease": lease.pk, "until": "infinity", **_limits()})


@dataclass(frozen=True, slots=True)
class TeamElectricity:
    """By team the energy of a month that is charged, in thousandths of a joule, and what it comes to in micro-units.

    ``counted_at`` is when it was counted, None where it is on the books.
    """

    by_team: dict[int, tuple[int, int]]
    counted_at: datetime | None


def electricity_by_team(period: BillingPeriod, *, now: datetime) -> TeamElectricity:
    """Return what teams pay for a month's electricity: as it is on the books, else as it was last counted.

    Counted here only where the worker has not come by yet.
    """
    book = posted(period)
    if book is not None:
        rows = ExternalUsage.objects.filter(book=book).values_list("team_id", "energy_mj", "amount_micro")
        return TeamElectricity(_by_team(rows), None)
    if period.state == PeriodState.CLOSED or not charges_electricity(period.starts_at, period.ends_at):
        return TeamElectricity({}, None)
    counted = ElectricityCount.objects.filter(period=period).first()
    if counted is not None:
        found = {int(team): (mj, micro) for team, (mj, micro) in counted.by_team.items()}
        return TeamElectricity(found, counted.counted_at)
    return TeamElectricity(_by_team(map(_charge_of, electricity_of_month(period))), now)


def _charge_of(row: ElectricityRow) -> tuple[int, int, int]:
    return row.team_id, row.energy_mj, row.amount_micro


def _by_team(rows: Iterable[tuple[int, int | None, int]]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for team, energy_mj, amount_micro in rows:
        mj, micro = found.get(team, (0, 0))
        found[team] = (mj + (energy_mj or 0), micro + amount_micro)
    return found


def _limits() -> dict[str, list[int]]:
    models = list(DeviceModel.objects.values_list("pk", "slug"))
    return {
        "models": [pk for pk, _slug in models],
        "watts": [round(power_limit_w(slug)) for _pk, slug in models],
    }


def _rows(statement: str, given: dict[str, object]) -> list[ElectricityRow]:
    found = []
    for _team, rows in groupby(fetch(statement, given), key=lambda row: row[0]):
        own = list(rows)
        costs = [Fraction(int(row[5]), 1000 * KWH_MJ) for row in own]
        found += [
            ElectricityRow(team, user, label or None, basis, int(mj) // 1000, cost, amount, since, until)
            for (team, user, label, basis, mj, _cost, since, until), cost, amount in zip(
                own, costs, apportion(costs), strict=True
            )
        ]
    return found


def complete_at(period: BillingPeriod) -> datetime:
    """Return from when on no more minutes can come into a month's energy."""
    return period.ends_at + LATE


def posted(period: BillingPeriod) -> FinanceImport | None:
    """Return what has a month's electricity on the books, None where nothing has."""
    return FinanceImport.objects.filter(kind=ImportKind.ENERGY, period=period, is_live=True).first()


def is_posted(period: BillingPeriod, *, counts_anew: bool = False) -> bool:
    """Say whether a month's electricity is on the books as its energy record says, none where there is none.

    By the last count where it was made of what there is now, as far as sums tell; ``counts_anew`` looks at each hour.
    """
    book, counted = posted(period), None if counts_anew else _counted(period)
    digest = _digest(period, electricity_of_month(period)) if counted is None else counted.digest
    return (book.digest if book else "") == digest


def _counted(period: BillingPeriod) -> ElectricityCount | None:
    """Return the last count of a month where it was made of what there is now."""
    counted = ElectricityCount.objects.filter(period=period).first()
    return counted if counted is not None and counted.source == _source(period) else None


def _source(period: BillingPeriod) -> str:
    given = {"period": period.pk, "since": period.starts_at, "until": period.ends_at}
    return hashlib.sha256(f"{fetch(_SOURCE, given)} {sorted(_limits().items())}".encode()).hexdigest()


def _unpriced(period: BillingPeriod) -> dict[str, tuple[int, int]]:
    if not charges_electricity(period.starts_at, period.ends_at):
        return {}
    rows = fetch(_UNPRICED, {"since": period.starts_at, "until": period.ends_at})
    return {site: (hours, int(mj)) for site, hours, mj in rows}


def unpriced_hours(period: BillingPeriod) -> dict[str, tuple[int, int]]:
    """Return by site how many hours of leases have energy and no price, and their thousandths of a joule.

    As they were last counted; {} also where electricity has no price at any time of the month.
    """
    counted = ElectricityCount.objects.filter(period=period).first()
    if counted is None:
        return _unpriced(period)
    return {site: (hours, mj) for site, (hours, mj) in counted.unpriced.items()}


def count_electricity(period: BillingPeriod, *, now: datetime) -> list[ElectricityRow]:
    """Work out a month's electricity, keep what it comes to for pages, and return its lines. Safe to repeat."""
    source = _source(period)  # before the hours: what is written meanwhile is counted next time
    rows = electricity_of_month(period)
    ElectricityCount.objects.update_or_create(
        period=period,
        defaults={
            "counted_at": now, "digest": _digest(period, rows), "source": source,
            "by_team": _by_team(map(_charge_of, rows)), "unpriced": _unpriced(period),
        },
    )  # fmt: skip
    return rows


def post_due_electricity(*, now: datetime) -> int:
    """Put the electricity of open months that are over on the books, and again, once an hour, where it has changed.

    Months whose hours are still coming in are counted every ten minutes. Returns how many months it wrote on the
    books. Safe to repeat and to run in parallel.
    """
    written = 0
    for period in BillingPeriod.objects.filter(state=PeriodState.OPEN, starts_at__lte=now).order_by(
        "starts_at"
    ):
        if complete_at(period) <= now:
            if now.minute == 20 or _counted(period) is None or not is_posted(period):
                written += post_electricity(period, now=now)
        elif charges_electricity(period.starts_at, period.ends_at) and (
            now.minute % 10 == 0 or not ElectricityCount.objects.filter(period=period).exists()
        ):
            count_electricity(period, now=now)
    return written


@transaction.atomic
def post_electricity(period: BillingPeriod, *, now: datetime) -> bool:
    """Put a month's electricity on the books, in place of what it was before; False where nothing has changed.

    All rows or none. Call when the month's energy is complete. Raises PeriodClosed.
    """
    if posted(period) is None and not charges_electricity(period.starts_at, period.ends_at):
        return False
    execute("SELECT pg_advisory_xact_lock(%s)", [_POSTING_LOCK])
    period = hold_month(period.month)
    rows, book = count_electricity(period, now=now), posted(period)
    digest = _digest(period, rows)
    if (book.digest if book else "") == digest:
        return False
    if book is not None:
        reverse_rows(book, made_by=None, now=now)
    if rows:
        unit = currency()
        made = FinanceImport.objects.create(
            kind=ImportKind.ENERGY, period=period, digest=digest, currency=unit, rows=len(rows), made_by=None,
            made_at=now,
        )  # fmt: skip
        ExternalUsage.objects.bulk_create(
            (
                ExternalUsage(
                    book=made, line=line, period=period, team_id=row.team_id, user_id=row.user_id, source=SOURCE,
                    external_id=f"{period}-{row.team_id}-{row.user_id}-{row.label_id or 0}-{row.basis}",
                    description=_said(row), starts_at=row.starts_at, ends_at=row.ends_at, gpu_milli=0,
                    energy_mj=row.energy_mj, micro_per_kwh=row.micro_per_kwh, basis=row.basis,
                    amount_micro=row.amount_micro, currency=unit, label_id=row.label_id,
                )
                for line, row in enumerate(rows, start=1)
            ),
            batch_size=1000,
        )  # fmt: skip
    record(None, "electricity.posted", str(period), at=now, rows=len(rows), digest=digest)
    return True


def _said(row: ElectricityRow) -> str:
    """Return what a line says, as its invoice's digest holds it: kWh, their basis, and what they cost on average."""
    kwh, price = Decimal(row.energy_mj) / KWH_MJ, Decimal(row.micro_per_kwh or 0) / 1_000_000
    return f"Electricity, {kwh:.3f} kWh {row.basis} at {price:.6f}"


def _digest(period: BillingPeriod, rows: Sequence[ElectricityRow]) -> str:
    """Return a digest of lines and what they come to, "" for none."""
    if not rows:
        return ""
    said = [
        (row.team_id, row.user_id, row.label_id, row.basis, row.energy_mj, str(row.exact), row.amount_micro)
        for row in rows
    ]
    return hashlib.sha256(f"{period} {said}".encode()).hexdigest()


def electricity_otherwise(period: BillingPeriod) -> list[str]:
    """Return the lines of a closed month's electricity that are not what its energy record comes to."""
    if period.state != PeriodState.CLOSED:
        return []
    rows = ExternalUsage.objects.filter(period=period, is_live=True, book__kind=ImportKind.ENERGY)
    written: dict[_Line, tuple[int | None, int, int | None, str]] = {
        (row.team_id, row.user_id, row.label_id, row.basis): (
            row.energy_mj,
            row.amount_micro,
            row.micro_per_kwh,
            row.description,
        )
        for row in rows
    }
    # Lines of before a kWh's cost was kept say it in their text alone, worked out otherwise: it is taken as it stands.
    unkept = {key: said for key, (_mj, _amount, price, said) in written.items() if price is None}
    due: dict[_Line, tuple[int | None, int, int | None, str]] = {}
    for row in electricity_of_month(period):
        key = (row.team_id, row.user_id, row.label_id, row.basis)
        price_and_text = (None, unkept[key]) if key in unkept else (row.micro_per_kwh, _said(row))
        due[key] = (row.energy_mj, row.amount_micro, *price_and_text)
    return [
        f"electricity of team {key[0]}, person {key[1]}, {key[3]}: {due.get(key)} by its energy,"
        f" {written.get(key)} written"
        for key in sorted(due.keys() | written.keys(), key=str)
        if due.get(key) != written.get(key)
    ]


def expected_electricity(
    flavor: Flavor, *, count: int, duration_s: int, starts_at: datetime, now: datetime
) -> ExpectedElectricity | None:
    """Return what a request's electricity would probably cost, None where no price is in force then.

    By what leases of the flavor drew in the last days, at the prices and PUEs that are known for its hours: those of
    every site, or of the dearest where each has its own, since nobody knows yet where it will run.
    """
    until = starts_at + timedelta(seconds=duration_s)
    rows = EnergyFactor.objects.filter(
        kind__in=(EnergyFactorKind.PRICE, EnergyFactorKind.PUE),
        valid__overlap=(starts_at - timedelta(hours=1), until),
    )
    factors: dict[str, dict[str, list[EnergyFactor]]] = {
        kind: defaultdict(list) for kind in EnergyFactorKind.values
    }
    for row in rows.order_by("valid"):
        factors[row.kind][row.site].append(row)
    if not factors[EnergyFactorKind.PRICE]:
        return None
    drawn_mj, seconds = fetch(_DRAWN, {"since": (now - LOOK_BACK).date(), "flavor": flavor.pk})[0]
    watts = (
        Fraction(int(drawn_mj), int(seconds) * 1000)
        if seconds
        else Fraction(round(power_limit_w(flavor.device_model.slug)) * flavor.share_milli, 1000)
    )
    cost, joules, at = Fraction(0), Fraction(0), starts_at
    while at < until:
        hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        end = min(hour + timedelta(hours=1), until)
        price, pue = _at(factors[EnergyFactorKind.PRICE], hour), _at(factors[EnergyFactorKind.PUE], hour)
        seconds_then = Fraction((end - at) // timedelta(microseconds=1), 10**6)
        used = watts * count * seconds_then * (1000 if pue is None else pue) / 1000
        if price is not None:
            joules += used
            cost += used * price / 3_600_000
        at = end
    if not joules:
        return None
    return ExpectedElectricity(to_minor(cost), round(joules / 3600), is_most=not seconds)


def _at(sites: dict[str, list[EnergyFactor]], hour: datetime) -> int | None:
    """Return the factor of every site in force at an instant, or else the highest that a site has."""
    found = {}
    for site, rows in sites.items():
        place = bisect_right(rows, hour, key=lambda row: row.valid.lower)
        last = rows[place - 1] if place else None
        if last is not None and (last.valid.upper is None or hour < last.valid.upper):
            found[site] = last.value_milli
    return found.get("", max(found.values(), default=None))
