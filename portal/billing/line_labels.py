"""What the usage of each line is filed under: copied onto the line when its month closes, and held by its digest."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from portal.billing.models import BillingPeriod, ExternalUsage, UsageTotal
from portal.common.sql import fetch

LineLabels = list[dict[str, Any]]
_OF_TOTALS = """
SELECT t.id, b.cost_centre, b.project, b.tags::text, sum(u.share_milli_seconds)::bigint
  FROM billing_usagerecord u JOIN leases_lease l ON l.id = u.lease_id JOIN billing_usagelabel b ON b.id = u.label_id
  JOIN billing_usagetotal t ON t.period_id = u.period_id AND t.team_id = u.team_id AND t.user_id = l.user_id
   AND t.flavor_id = l.flavor_id AND t.micro_per_hour = u.micro_per_hour AND t.currency = u.currency
   AND t.late_for_id IS NOT DISTINCT FROM u.late_for_id
 WHERE u.period_id = %s AND u.label_id IS NOT NULL AND (%s::bigint[] IS NULL OR u.team_id = ANY(%s))
 GROUP BY t.id, b.id ORDER BY t.id, b.project, b.cost_centre, b.tags::text
"""


def labels_of_totals(period: BillingPeriod, team_ids: Sequence[int] | None = None) -> dict[int, LineLabels]:
    """Return by total what its usage is filed under, with how much of it; totals without any are left out. One query.

    None asks for every team.
    """
    found: dict[int, LineLabels] = defaultdict(list)
    teams = None if team_ids is None else list(team_ids)
    for total, centre, project, tags, quantity in fetch(_OF_TOTALS, [period.pk, teams, teams]):
        found[total].append(
            {
                "cost_centre": centre,
                "project": project,
                "tags": json.loads(tags),
                "share_milli_seconds": quantity,
            }
        )
    return found


def labels_of_external(row: ExternalUsage) -> LineLabels | None:
    """Return what external usage is filed under, None for nothing; its label must be at hand."""
    if row.label is None:
        return None
    of = row.label
    return [{"cost_centre": of.cost_centre, "project": of.project, "tags": of.tags, "share_milli_seconds": 0}]


def lines_labelled_otherwise(period: BillingPeriod) -> list[str]:
    """Return the lines of a closed month whose labels are not those of their usage.

    A month that was closed before lines held labels has none on any line, and is left out.
    """
    totals = list(
        UsageTotal.objects.filter(period=period, line__isnull=False).select_related("line__invoice")
    )
    written = {total.pk: total.line.labels for total in totals if total.line is not None}
    if not any(written.values()):
        return []
    due = labels_of_totals(period)
    return [
        f"{total.line.invoice.number}, line {total.line.position}: not filed as its usage is"
        for total in totals
        if total.line is not None and (total.line.labels or []) != due.get(total.pk, [])
    ]
