"""What of a month's money bought nothing: held and not used, failed, reserved and unused, more memory than touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime

from django.db import models
from django.utils.translation import gettext_lazy as _

from portal.accounts.models import User
from portal.billing.models import BillingPeriod
from portal.common.sql import fetch
from portal.leases.states import EndReason, LeaseState
from portal.teams.models import Team

# What leases were charged in the month, with what telemetry knows of each in its hours. ``part`` is how much of its
# charged time was measured; ``above`` what the smallest offered size of the same model that holds its peak memory
# would have cost less, as a part. The hours are looked up lease by lease (OFFSET keeps the lookup apart): the
# planner expects one lease of a month that is new to its statistics, and would add up all hours again for each.
CHARGED = f"""
WITH cost AS MATERIALIZED (
  SELECT lease_id, sum(seconds) AS seconds, sum(share_milli_seconds::numeric * micro_per_hour) / 3600000 AS micro
    FROM billing_usagerecord WHERE period_id = %(period)s AND late_for_id IS NULL AND team_id = ANY(%(teams)s)
   GROUP BY 1),
found AS (
  SELECT l.team_id, l.user_id, c.micro, l.end_reason = '{EndReason.FAULT}' AS is_failed,
         least(1, coalesce(h.minutes, 0) * 60 / c.seconds) AS part, coalesce(1 - least(h.util, 1), 0)::numeric AS idle,
         h.peak IS NULL AS is_unseen,
         (SELECT 1 - min(o.share_milli)::numeric / f.share_milli FROM catalog_flavor o
           WHERE o.device_model_id = f.device_model_id AND o.is_active AND o.memory_mib >= h.peak
           AND o.share_milli < f.share_milli) AS above
    FROM cost c JOIN leases_lease l ON l.id = c.lease_id JOIN catalog_flavor f ON f.id = l.flavor_id
   CROSS JOIN LATERAL (
      SELECT sum(minutes) AS minutes, sum(minutes * util_mean) / sum(minutes) / 100 AS util, max(memory_max_mib) AS peak
        FROM (SELECT * FROM telemetry_hourrollup WHERE lease_id = c.lease_id
                 AND hour >= date_trunc('hour', %(since)s::timestamptz) AND hour < %(until)s OFFSET 0) AS own) AS h)
SELECT team_id, user_id, sum(micro), sum(micro * part * idle) FILTER (WHERE NOT is_failed),
       sum(micro * (1 - part)) FILTER (WHERE NOT is_failed), sum(micro) FILTER (WHERE is_failed),
       sum(micro * coalesce(above, 0)) FILTER (WHERE NOT is_failed AND NOT is_unseen),
       sum(micro) FILTER (WHERE NOT is_failed AND is_unseen)
  FROM found GROUP BY 1, 2
"""  # noqa: S608 (our own words)
# Booked time that had come and was not used: nobody is billed for it, so it counts at the price of its first instant.
_RESERVED = f"""
WITH steps AS (
  SELECT l.team_id, l.user_id, l.share_milli, l.price_milli, f.device_model_id, f AS flavor, e.now AS state,
         greatest(e.at, l.starts_at, %(since)s) AS since,
         least(lead(e.at, 1, %(now)s) OVER (PARTITION BY l.id ORDER BY e.at, e.id), %(until)s) AS until
    FROM leases_lease l JOIN leases_leaseevent e ON e.lease_id = l.id JOIN catalog_flavor f ON f.id = l.flavor_id
   WHERE l.team_id = ANY(%(teams)s) AND l.starts_at < %(until)s AND (l.clean_at IS NULL OR l.clean_at > %(since)s))
SELECT s.team_id, s.user_id, sum(extract(epoch FROM s.until - s.since) * s.share_milli / 3600000
         * catalog_price_of(rate, s.flavor) * s.price_milli / 1000)
  FROM steps s JOIN catalog_rate rate ON rate.device_model_id = s.device_model_id AND rate.valid @> s.since
   AND rate.card_id = (SELECT id FROM catalog_ratecard WHERE is_default ORDER BY id LIMIT 1)
 WHERE s.state = '{LeaseState.BOOKED}' AND s.until > s.since GROUP BY 1, 2
"""  # noqa: S608 (our own states)


class WasteBy(models.TextChoices):
    """What the rows of a list of waste are."""

    TEAM = "team", _("Team")
    PERSON = "person", _("Person")


@dataclass(frozen=True, slots=True)
class WasteRow:
    """What a team or a person was charged in a month and what of it bought nothing, in micro-units before rounding.

    ``idle_micro`` was held, measured and not used, ``unmeasured_micro`` nobody knows; ``failed_micro`` was charged to
    leases that ended by a fault and is in neither. ``memory_micro`` is what less memory would have cost less, of leases
    whose peak is known; ``unseen_micro`` was charged to those of which it is not. ``reserved_micro`` was not charged.
    Idle and memory may be of the same lease: they do not add up.
    """

    key: str
    name: str
    charged_micro: int = 0
    idle_micro: int = 0
    unmeasured_micro: int = 0
    failed_micro: int = 0
    memory_micro: int = 0
    unseen_micro: int = 0
    reserved_micro: int = 0


FIGURES = tuple(field.name for field in fields(WasteRow) if field.name.endswith("_micro"))


def waste_of(
    period: BillingPeriod, teams: Sequence[Team], *, by: WasteBy, now: datetime
) -> tuple[list[WasteRow], WasteRow]:
    """Return what a month of these teams wasted, by team or person, the most expensive first; and all together.

    Of what is metered: leases that run are in it once they end. Each team is itself alone, without those below.
    """
    given = {
        "period": period.pk, "teams": [team.pk for team in teams], "since": period.starts_at,
        "until": min(now, period.ends_at), "now": now,
    }  # fmt: skip
    sums: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: dict.fromkeys(FIGURES, 0))
    for team_id, user_id, *values in fetch(CHARGED, given):
        for name, value in zip(FIGURES, values, strict=False):
            sums[team_id, user_id][name] = round(value or 0)
    for team_id, user_id, reserved in fetch(_RESERVED, given):
        sums[team_id, user_id]["reserved_micro"] = round(reserved)
    by_id = {team.pk: team for team in teams}
    people = User.objects.in_bulk({user_id for _team, user_id in sums})
    rows: dict[str, WasteRow] = {}
    whole = WasteRow("", "")
    for (team_id, user_id), figures in sums.items():
        team, user = by_id[team_id], people[user_id]
        row = WasteRow(team.slug, team.name) if by == WasteBy.TEAM else WasteRow(user.username, str(user))
        rows[row.key] = _more(rows.get(row.key, row), figures)
        whole = _more(whole, figures)
    return sorted(rows.values(), key=lambda row: (-_bad(row), row.name.lower())), whole


def _more(row: WasteRow, values: dict[str, int]) -> WasteRow:
    return replace(row, **{name: getattr(row, name) + values[name] for name in FIGURES})


def _bad(row: WasteRow) -> int:
    return max(row.idle_micro, row.memory_micro) + row.failed_micro + row.reserved_micro
