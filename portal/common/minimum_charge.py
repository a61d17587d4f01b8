"""Leases that do not come to the minimum charge of the rate under which they began, as a query of ``invariants``."""

from __future__ import annotations

# One that ended with its month, when that was closed before its end was known, has nothing left to make up for it.
UNDER_MINIMUM = """
  SELECT l.uid FROM (
    SELECT u.lease_id, sum(u.share_milli_seconds::numeric * u.micro_per_hour) / 3600000 AS cost,
      max(u.minimum_micro) AS raised_to, bool_or(u.refund_id IS NOT NULL) AS is_refunded,
      (array_agg(r.minimum_micro ORDER BY lower(u.span)))[1] AS minimum,
      (array_agg(upper(u.span) = p.ends_at ORDER BY lower(u.span) DESC))[1] AS ends_with_month
    FROM billing_usagerecord u JOIN catalog_rate r ON r.id = u.rate_id
    JOIN billing_billingperiod p ON p.id = coalesce(u.late_for_id, u.period_id)
    WHERE u.lease_id IN (SELECT o.lease_id FROM billing_usagerecord o JOIN catalog_rate m ON m.id = o.rate_id
                         WHERE m.minimum_micro > 0)
    GROUP BY u.lease_id) c
  JOIN leases_lease l ON l.id = c.lease_id AND l.is_metered
  CROSS JOIN LATERAL (
    SELECT e.now NOT IN ('interrupted', 'failed') AND e.reason NOT IN ('maintenance', 'preempted', 'fault') AS is_own
    FROM leases_leaseevent e WHERE e.lease_id = l.id AND e.was = 'active' ORDER BY e.at DESC, e.id DESC LIMIT 1) stop
  WHERE CASE WHEN c.raised_to IS NULL
    THEN stop.is_own AND NOT c.is_refunded AND NOT c.ends_with_month AND c.cost > 0 AND c.cost < c.minimum
    ELSE NOT stop.is_own OR c.raised_to <> c.minimum OR c.cost < c.minimum END
"""
