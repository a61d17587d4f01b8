"""Charges split by what their usage is filed under, so that the parts of a line add up to it to the cent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from fractions import Fraction

from portal.billing.charges import Charge
from portal.billing.labels import NONE, read_labels
from portal.billing.models import BillingPeriod
from portal.billing.periods import day_starts
from portal.catalog.pricing import apportion
from portal.common.sql import fetch
from portal.teams.labels import Labels

_LABELLED = """
FROM billing_usagerecord u JOIN leases_lease l ON l.id = u.lease_id
JOIN billing_usagetotal t ON t.period_id = u.period_id AND t.team_id = u.team_id AND t.user_id = l.user_id
  AND t.flavor_id = l.flavor_id AND t.micro_per_hour = u.micro_per_hour AND t.currency = u.currency
  AND t.late_for_id IS NOT DISTINCT FROM u.late_for_id
"""
# ``first``: the lease has no earlier line of its own under this label, so that it counts once in a sum of lines.
_SHARES = f"""
SELECT total, label_id, sum(seconds)::bigint, sum(quantity)::bigint, count(*), count(*) FILTER (WHERE time = 1)
FROM (
  SELECT t.id AS total, u.label_id, sum(u.seconds) AS seconds, sum(u.share_milli_seconds) AS quantity,
    row_number() OVER (PARTITION BY u.lease_id, u.label_id ORDER BY t.id) AS time
  {_LABELLED} WHERE u.period_id = %s AND u.label_id IS NOT NULL AND t.id = ANY(%s)
  GROUP BY t.id, u.label_id, u.lease_id) x
GROUP BY 1, 2 ORDER BY 1, 2
"""  # noqa: S608 (our own words)
_DAYS = f"""
SELECT t.id, u.label_id, d.day,
  sum(extract(epoch FROM least(upper(u.span), d.ends) - greatest(lower(u.span), d.begins))::bigint
    * u.share_milli)::bigint
{_LABELLED} JOIN unnest(%s::date[], %s::timestamptz[], %s::timestamptz[]) AS d (day, begins, ends)
  ON u.span && tstzrange(d.begins, d.ends)
WHERE u.period_id = %s AND u.late_for_id IS NULL AND u.label_id IS NOT NULL AND t.id = ANY(%s) GROUP BY 1, 2, 3
"""  # noqa: S608 (our own words)
_ALL_DAYS = "SELECT total_id, day, share_milli_seconds FROM billing_usageday WHERE total_id = ANY(%s)"


def split_by_label(
    period: BillingPeriod, charges: Sequence[Charge], *, again: Mapping[int, int] | None = None
) -> list[Charge]:
    """Return the charges of a month, each in a part for each label of its usage and one for what has none.

    Amounts are whole cents that add up to the line. ``again`` says by total how many of its leases another line counts
    already: the leases of the parts are then those that nothing else counts.
    """
    shares: dict[int, list[tuple[int, int, int, int, int]]] = defaultdict(list)
    for total, *share in fetch(_SHARES, [period.pk, [c.total_id for c in charges if c.is_usage]]):
        shares[total].append(tuple(share))
    known = read_labels(label for parts in shares.values() for label, *_rest in parts)
    found = []
    for charge in charges:
        if charge.external is not None:
            found.append(replace(charge, cost_centre=charge.labels.cost_centre or charge.cost_centre))
            continue
        parts = shares.get(charge.total_id, []) if charge.is_usage else []
        leases = charge.leases - (again.get(charge.total_id, 0) if again else 0)
        rest = charge.share_milli_seconds - sum(quantity for _l, _s, quantity, *_n in parts)
        pieces: list[tuple[Labels, int, int, int]] = [
            (known[label], seconds, quantity, count if again is None else first)
            for label, seconds, quantity, count, first in parts
        ]
        if rest or not pieces:
            seconds = charge.seconds - sum(piece[1] for piece in pieces)
            pieces.append((NONE, seconds, rest, max(leases - sum(piece[3] for piece in pieces), 0)))
        for (labels, seconds, quantity, count), amount in zip(
            pieces, _amounts(charge, [piece[2] for piece in pieces]), strict=True
        ):
            found.append(
                replace(
                    charge, labels=labels, cost_centre=labels.cost_centre or charge.cost_centre,
                    seconds=seconds, share_milli_seconds=quantity, leases=count, amount_micro=amount,
                )
            )  # fmt: skip
    return found


def _amounts(charge: Charge, quantities: Sequence[int]) -> list[int]:
    """Return a line's amount in parts as its quantity is; whole cents that add up to it."""
    if len(quantities) == 1:
        return [charge.amount_micro]
    return apportion([Fraction(charge.amount_micro * q, charge.share_milli_seconds) for q in quantities])


def exact_by_day_and_label(
    period: BillingPeriod, charges: Sequence[Charge]
) -> Iterator[tuple[int, Labels, date, int]]:
    """Yield total, label, day and what was used then, in micro-units times SHARE_HOUR; adjustments are on no day."""
    prices = {
        charge.total_id: charge.micro_per_hour
        for charge in charges
        if charge.is_usage and not charge.late_for
    }
    starts = day_starts(period)
    days = [date.fromordinal(period.month.toordinal() + n) for n in range(len(starts) - 1)]
    rows = fetch(_DAYS, [days, starts[:-1], starts[1:], period.pk, list(prices)])
    known = read_labels(label for _total, label, _day, _quantity in rows)
    rest = {(total, day): quantity for total, day, quantity in fetch(_ALL_DAYS, [list(prices)])}
    for total, label, day, quantity in rows:
        rest[total, day] = rest.get((total, day), 0) - quantity
        yield total, known[label], day, quantity * prices[total]
    for (total, day), quantity in rest.items():
        if quantity:
            yield total, NONE, day, quantity * prices[total]
