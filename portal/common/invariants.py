"""What must hold at every moment, each as a query that returns the offenders.

The constraints make most of these impossible; the checker looks all the same, and it is the only
guard of the sums that no constraint can express. Read-only, one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection, transaction

from portal.common.minimum_charge import UNDER_MINIMUM
from portal.common.sql import execute

LIVE = "('booked','preparing','active','interrupted','ending','cleaning','failed')"
PATIENCE = "2min"  # of each query: on years of usage some take longer than a request may
# By lease: when its money clock ran, in whole seconds, to infinity while it runs; and what usage says of it.
ACTIVE_TIME = """
  SELECT lease_id, range_agg(tstzrange(date_trunc('second', at), date_trunc('second', left_at))) AS span
  FROM (
    SELECT lease_id, at, now,
      coalesce(lead(at) OVER (PARTITION BY lease_id ORDER BY at, id), 'infinity') AS left_at
    FROM leases_leaseevent) steps
  WHERE now = 'active' GROUP BY lease_id
"""
# Leases of old that a closed month keeps as they are: manage.py repair_lease_events notes them.
UNNOTED = """NOT EXISTS (SELECT 1 FROM audit_auditentry a
           WHERE a.target = l.uid AND a.action = 'lease.events_stay')"""
USAGE_TIME = """
  SELECT lease_id, range_agg(span) AS span, max(upper(span)) AS until,
    bool_and(seconds = extract(epoch FROM upper(span) - lower(span))) AS counts
  FROM billing_usagerecord GROUP BY lease_id
"""
CLOSED_UNTIL = "SELECT max(ends_at) AS at FROM billing_billingperiod WHERE state = 'closed'"


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise, and the query whose rows break it (first column names the offender)."""

    name: str
    promise: str
    offenders: str


@dataclass(frozen=True, slots=True)
class Breach:
    """A broken promise with some of its offenders."""

    invariant: Invariant
    offenders: tuple[str, ...]


INVARIANTS = (
    Invariant(
        "no_overlap",
        "No two live placements share a slot of a device at the same time.",
        """SELECT a.id FROM leases_placement a JOIN leases_placement b ON a.id < b.id
           AND a.device_id = b.device_id AND a.slots && b.slots AND a.period && b.period
           WHERE a.is_live AND b.is_live AND a.host_id IS NULL AND b.host_id IS NULL""",
    ),
    Invariant(
        "host_sums",
        "A shared board's sums equal the shares that have begun inside it and stay within the board.",
        """SELECT h.placement_id FROM leases_sharedhost h LEFT JOIN leases_placement s
           ON s.host_id = h.placement_id AND s.is_live
           AND NOT EXISTS (SELECT 1 FROM leases_lease l WHERE l.id = s.lease_id AND l.state = 'booked')
           GROUP BY h.placement_id HAVING h.clients <> count(s.id)
           OR h.used_share_milli <> coalesce(sum(s.share_milli), 0)
           OR h.used_memory_mib <> coalesce(sum(s.memory_mib), 0)
           OR h.used_share_milli > 1000 OR h.used_memory_mib > h.memory_mib OR h.clients > h.max_clients""",
    ),
    Invariant(
        "mps_of_one_team",
        "Shares of different teams are on a device that serves MPS only where the policy allowed it when they met.",
        """SELECT a.id FROM leases_placement a JOIN leases_placement b ON a.id < b.id
           AND a.device_id = b.device_id AND a.team_id <> b.team_id AND a.period && b.period
           WHERE a.is_live AND b.is_live AND a.mode = 'mps' AND b.mode = 'mps' AND a.host_id IS NOT NULL
           AND b.host_id IS NOT NULL AND NOT a.met_teams AND NOT b.met_teams""",
    ),
    Invariant(
        "quota_counters",
        "What a quota counts is the sum over the leases of its subtree that have begun, and within its ceiling.",
        f"""SELECT q.team_id FROM quotas_quota q LEFT JOIN teams_team t ON q.team_id = ANY(t.lineage)
           LEFT JOIN leases_lease l ON l.team_id = t.id AND l.state IN {LIVE} AND l.state <> 'booked'
           GROUP BY q.id, q.team_id, q.used_milli, q.ceiling_milli
           HAVING q.used_milli <> coalesce(sum(l.cost_milli), 0) OR q.used_milli > q.ceiling_milli""",
    ),
    Invariant(
        "live_leases_hold",
        "A live lease holds placements, an ended one holds none.",
        f"""SELECT l.uid FROM leases_lease l LEFT JOIN leases_placement p ON p.lease_id = l.id AND p.is_live
           GROUP BY l.id HAVING (l.state IN {LIVE}) <> (count(p.id) > 0)""",
    ),
    Invariant(
        "gang_complete",
        "A live lease holds as many placements as it was granted, all on its node.",
        f"""SELECT l.uid FROM leases_lease l JOIN leases_placement p ON p.lease_id = l.id AND p.is_live
           JOIN fleet_device d ON d.id = p.device_id WHERE l.state IN {LIVE}
           GROUP BY l.id HAVING count(p.id) <> l.count OR bool_or(d.node_id <> l.node_id)""",
    ),
    Invariant(
        "awake_while_held",
        "A node that is told to sleep holds no lease that has begun.",
        """SELECT l.uid FROM leases_lease l JOIN fleet_node n ON n.id = l.node_id
           WHERE n.power_desired = 'asleep' AND l.state IN
           ('preparing','active','interrupted','ending','cleaning','failed')""",
    ),
    Invariant(
        "granted_has_lease",
        "A granted request has a live lease, only one where it is no gang and does not grow; any other has none,"
        " and what is left of a grant that was lost is only being cleaned.",
        f"""SELECT r.uid FROM leases_leaserequest r LEFT JOIN leases_lease l
           ON l.request_id = r.id AND l.generation = r.attempts + 1 AND l.state IN {LIVE}
           GROUP BY r.id HAVING (r.state = 'granted') <> (count(l.id) >= 1)
           OR (r.nodes = 1 AND count(l.id) FILTER (WHERE NOT l.is_extra) > 1)
           UNION SELECT r.uid FROM leases_leaserequest r JOIN leases_lease l ON l.request_id = r.id
           AND l.generation <> r.attempts + 1 AND l.state IN ('booked', 'preparing', 'active', 'interrupted')""",
    ),
    Invariant(
        "gang_in_all_parts",
        "A gang lives in all its parts or in none: as many leases as nodes, and none that outlives another.",
        """SELECT r.uid FROM leases_leaserequest r JOIN leases_lease l
           ON l.request_id = r.id AND NOT l.is_extra AND l.generation = r.attempts + 1
           WHERE r.state = 'granted' AND r.nodes <> 1 GROUP BY r.id
           HAVING (r.nodes > 1 AND (count(l.id) <> r.nodes OR count(DISTINCT l.node_id) <> r.nodes))
           OR (r.nodes = 0 AND sum(l.count) <> r.count)
           OR (bool_or(l.state IN ('preparing', 'active', 'interrupted'))
               AND bool_or(l.ended_at < now() - interval '1 minute'))""",
    ),
    Invariant(
        "states_follow_events",
        "A lease is in the state its last event says, since the instant it says.",
        """SELECT l.uid FROM leases_lease l JOIN LATERAL
           (SELECT now, at FROM leases_leaseevent e WHERE e.lease_id = l.id ORDER BY e.id DESC LIMIT 1) e ON true
           WHERE e.now <> l.state OR e.at <> l.moved_at""",
    ),
    Invariant(
        "events_run_forward",
        "The steps of a lease are recorded in the order in which they were taken; what a closed month keeps is noted.",
        f"""SELECT l.uid FROM leases_lease l JOIN (SELECT DISTINCT lease_id FROM (SELECT lease_id,
           at < lag(at) OVER (PARTITION BY lease_id ORDER BY id) AS is_back FROM leases_leaseevent) s
           WHERE is_back) b ON b.lease_id = l.id WHERE {UNNOTED}
           UNION SELECT l.uid FROM leases_lease l WHERE l.clean_at < l.ended_at AND {UNNOTED}""",
    ),
    Invariant(
        "no_lease_ends_after_its_end",
        "No lease ends, or costs money, after its end; what a closed month keeps is noted.",
        f"""SELECT l.uid FROM leases_lease l LEFT JOIN leases_leaseevent e
           ON e.lease_id = l.id AND e.was = 'active' AND e.at > l.not_after
           WHERE (l.ended_at > l.not_after OR e.id IS NOT NULL) AND {UNNOTED}""",
    ),
    Invariant(
        "usage_never_twice",
        "No second of a lease is metered twice.",
        """SELECT a.lease_id FROM billing_usagerecord a JOIN billing_usagerecord b
           ON a.id < b.id AND a.lease_id = b.lease_id AND a.span && b.span""",
    ),
    Invariant(
        "usage_tiles",
        "The usage of a metered lease is its active time to the second, piece by piece.",
        f"""SELECT l.uid FROM leases_lease l LEFT JOIN ({ACTIVE_TIME}) a ON a.lease_id = l.id
           LEFT JOIN ({USAGE_TIME}) u ON u.lease_id = l.id
           WHERE l.is_metered AND (coalesce(a.span, '{{}}') <> coalesce(u.span, '{{}}') OR NOT u.counts)""",
    ),
    Invariant(
        "usage_so_far",
        "The usage of a lease that is not metered to its end is its active time up to some second, without a gap.",
        f"""SELECT l.uid FROM leases_lease l JOIN ({USAGE_TIME}) u ON u.lease_id = l.id
           LEFT JOIN ({ACTIVE_TIME}) a ON a.lease_id = l.id WHERE NOT l.is_metered AND (NOT u.counts
           OR u.span <> coalesce(a.span, '{{}}') * tstzmultirange(tstzrange(NULL, u.until)))""",
    ),
    Invariant(
        "closed_months_are_whole",
        "No active second of a lease that lies in a closed month is without usage.",
        f"""SELECT l.uid FROM leases_lease l JOIN ({ACTIVE_TIME}) a ON a.lease_id = l.id
           CROSS JOIN ({CLOSED_UNTIL}) closed LEFT JOIN ({USAGE_TIME}) u ON u.lease_id = l.id
           WHERE closed.at IS NOT NULL
           AND NOT a.span * tstzmultirange(tstzrange(NULL, closed.at)) <@ coalesce(u.span, '{{}}')""",
    ),
    Invariant(
        "usage_in_its_month",
        "Usage lies in the month it is billed in; only an adjustment belongs to an earlier one, which was closed.",
        """SELECT u.id FROM billing_usagerecord u JOIN billing_billingperiod p ON p.id = u.period_id
           LEFT JOIN billing_billingperiod o ON o.id = u.late_for_id
           WHERE NOT tstzrange(coalesce(o.starts_at, p.starts_at), coalesce(o.ends_at, p.ends_at)) @> u.span
           OR (o.id IS NOT NULL AND (o.state <> 'closed' OR o.ends_at > p.starts_at))""",
    ),
    Invariant(
        "usage_on_its_invoice",
        "Usage stands on a line of its own team, month, currency and adjustment.",
        """SELECT t.id FROM billing_usagetotal t JOIN billing_invoiceline l ON l.id = t.line_id
           JOIN billing_invoice i ON i.id = l.invoice_id WHERE (t.team_id, t.period_id, t.currency,
           t.late_for_id) IS DISTINCT FROM (i.team_id, i.period_id, i.currency, l.late_for_id)""",
    ),
    Invariant(
        "invoices_issued_by_closing",
        "The invoices of a closed month are issued and numbered from 1 without a gap; others are drafts.",
        """SELECT p.id FROM billing_billingperiod p JOIN billing_invoice i ON i.period_id = p.id
           GROUP BY p.id HAVING bool_or(i.is_issued <> (p.state = 'closed'))
           OR (p.state = 'closed' AND count(*) <> max(substring(i.number FROM '-([0-9]+)$')::int))""",
    ),
    Invariant(
        "invoices_add_up",
        "The lines of an issued invoice add up to its total.",
        """SELECT i.number FROM billing_invoice i LEFT JOIN billing_invoiceline l ON l.invoice_id = i.id
           WHERE i.is_issued GROUP BY i.id HAVING i.total_micro <> coalesce(sum(l.amount_micro), 0)""",
    ),
    Invariant(
        "lines_match_usage",
        "A line counts the seconds of its usage records.",
        """SELECT l.id FROM billing_invoiceline l LEFT JOIN billing_usagetotal t ON t.line_id = l.id
           WHERE l.seconds <> coalesce(t.seconds, 0)""",
    ),
    Invariant(
        "closed_months_are_billed",
        "All usage of a closed month stands on a line.",
        """SELECT t.id FROM billing_usagetotal t JOIN billing_billingperiod p ON p.id = t.period_id
           WHERE p.state = 'closed' AND t.line_id IS NULL""",
    ),
    Invariant(
        "totals_are_their_usage",
        "The totals of a month are what its usage records add up to, and the days of a total add up to it.",
        """WITH sums AS (SELECT u.period_id, u.team_id, l.user_id, l.flavor_id, u.micro_per_hour, u.currency,
             coalesce(u.late_for_id, 0) AS late, count(*) AS n, count(DISTINCT u.lease_id) AS leases,
             sum(u.seconds) AS seconds, sum(u.share_milli_seconds) AS quantity
             FROM billing_usagerecord u JOIN leases_lease l ON l.id = u.lease_id GROUP BY 1, 2, 3, 4, 5, 6, 7),
           days AS (SELECT total_id, sum(seconds) AS seconds, sum(share_milli_seconds) AS quantity
             FROM billing_usageday GROUP BY total_id)
           SELECT coalesce(t.id::text, 'none of team ' || s.team_id) FROM sums s FULL JOIN billing_usagetotal t
           ON (t.period_id, t.team_id, t.user_id, t.flavor_id, t.micro_per_hour, t.currency, coalesce(t.late_for_id, 0))
            = (s.period_id, s.team_id, s.user_id, s.flavor_id, s.micro_per_hour, s.currency, s.late)
           LEFT JOIN days d ON d.total_id = t.id
           WHERE (t.records, t.leases, t.seconds, t.share_milli_seconds, d.seconds, d.quantity)
           IS DISTINCT FROM (s.n, s.leases, s.seconds, s.quantity, s.seconds, s.quantity)""",
    ),
    Invariant(
        "lines_are_their_totals",
        "A line is the total of its usage at its price.",
        """SELECT l.id::text FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id
           LEFT JOIN billing_usagetotal t ON t.line_id = l.id WHERE i.is_issued
           AND NOT EXISTS (SELECT 1 FROM billing_invoicenote n WHERE n.issued_line_id = l.id)
           AND NOT EXISTS (SELECT 1 FROM billing_externalusage x WHERE x.billed_on_id = l.id) AND
           (l.seconds, l.share_milli_seconds, l.micro_per_hour, l.lease_count, l.late_for_id)
           IS DISTINCT FROM (t.seconds, t.share_milli_seconds, t.micro_per_hour, t.leases, t.late_for_id)""",
    ),
    Invariant(
        "notes_within_their_lines",
        "The credit notes of a line never come to more than it charged, nor its debit notes; a second person decides.",
        """SELECT l.id FROM billing_invoiceline l JOIN billing_invoicenote n ON n.line_id = l.id
           WHERE n.state = 'approved' GROUP BY l.id HAVING bool_or(n.decided_by_id = n.proposed_by_id)
           OR sum(n.amount_micro) NOT BETWEEN -l.amount_micro AND l.amount_micro""",
    ),
    Invariant(
        "notes_are_their_lines",
        "Each approved note of a closed month is billed on one line of its team, month and amount; others on none.",
        """SELECT n.uid FROM billing_invoicenote n LEFT JOIN billing_billingperiod p ON p.id = n.period_id
           LEFT JOIN billing_invoiceline l ON l.id = n.issued_line_id LEFT JOIN billing_invoice i ON i.id = l.invoice_id
           WHERE (n.state = 'approved' AND p.state = 'closed') IS DISTINCT FROM (n.number IS NOT NULL)
           OR (n.number IS NOT NULL AND (i.period_id, i.team_id, i.currency, l.amount_micro, l.seconds)
           IS DISTINCT FROM (n.period_id, n.team_id, n.currency, n.amount_micro, 0))""",
    ),
    Invariant(
        "wallets_add_up",
        "The balance of a wallet is the sum of its movements, numbered without a gap; it holds what leases hold.",
        """SELECT w.id FROM budgets_wallet w LEFT JOIN (
             SELECT wallet_id, count(*) AS n, max(number) AS last, sum(amount_micro) AS amount,
               bool_and(balance_micro = running) AS is_running
             FROM (SELECT m.*, sum(amount_micro) OVER (PARTITION BY wallet_id ORDER BY number) AS running
                     FROM budgets_walletmovement m) m GROUP BY 1) s ON s.wallet_id = w.id
           LEFT JOIN (SELECT wallet_id, sum(amount_micro) AS held FROM budgets_wallethold GROUP BY 1) h
             ON h.wallet_id = w.id
           WHERE (w.movements, w.movements, w.balance_micro, w.held_micro) IS DISTINCT FROM
             (coalesce(s.n, 0), coalesce(s.last, 0), coalesce(s.amount, 0), coalesce(h.held, 0))
           OR NOT coalesce(s.is_running, true)""",
    ),
    Invariant(
        "imports_are_whole",
        "An import has as many rows as its file, each balance in it a movement; what undoes one negates its rows.",
        """SELECT f.uid FROM billing_financeimport f LEFT JOIN billing_openingbalance o ON o.book_id = f.id
           LEFT JOIN billing_openingbalance b ON b.book_id = f.reverses_id AND b.line = o.line
           WHERE f.kind = 'balances' GROUP BY f.id HAVING count(o.id) <> f.rows
           OR bool_or(f.reverses_id IS NOT NULL AND (o.team_id, o.balance_micro, o.used_micro)
             IS DISTINCT FROM (b.team_id, -b.balance_micro, -b.used_micro))
           OR bool_or(coalesce(o.balance_micro, 0) <> 0 AND NOT EXISTS (
             SELECT 1 FROM budgets_walletmovement m JOIN budgets_wallet w ON w.id = m.wallet_id
             WHERE w.team_id = o.team_id AND m.amount_micro = o.balance_micro
             AND m.reference = 'opening balance ' || f.uid))""",
    ),
    Invariant(
        "external_usage_is_its_lines",
        "External usage of a closed month is on one line of its team and amount, what is undone or of others on none.",
        """SELECT x.id FROM billing_externalusage x JOIN billing_billingperiod p ON p.id = x.period_id
           JOIN billing_financeimport f ON f.id = x.book_id
           LEFT JOIN billing_invoiceline l ON l.id = x.billed_on_id LEFT JOIN billing_invoice i ON i.id = l.invoice_id
           WHERE (x.is_live AND p.state = 'closed') IS DISTINCT FROM (x.billed_on_id IS NOT NULL)
           OR x.is_live IS DISTINCT FROM f.is_live OR x.period_id <> f.period_id
           OR (x.billed_on_id IS NOT NULL AND (i.period_id, i.team_id, i.currency, l.amount_micro, l.seconds)
           IS DISTINCT FROM (x.period_id, x.team_id, x.currency, x.amount_micro, 0))""",
    ),
    Invariant(
        "holds_are_their_movements",
        "A lease holds of a wallet what its movements say, until it is settled, once.",
        """SELECT coalesce(h.lease_id, m.lease_id) FROM budgets_wallethold h FULL JOIN (
             SELECT lease_id, wallet_id, -sum(amount_micro) AS amount FROM budgets_walletmovement
             WHERE kind IN ('hold', 'settle') GROUP BY 1, 2 HAVING NOT bool_or(kind = 'settle')) m
             ON (m.lease_id, m.wallet_id, m.amount) = (h.lease_id, h.wallet_id, h.amount_micro)
           WHERE h.id IS NULL OR m.lease_id IS NULL""",
    ),
    Invariant(
        "wallets_settle_usage",
        "A lease that was settled with a wallet came to what its usage costs, rounded down to a micro-unit.",
        """SELECT s.lease_id FROM (
             SELECT DISTINCT ON (m.lease_id) m.lease_id, m.cost_micro FROM budgets_walletmovement m
             JOIN leases_lease l ON l.id = m.lease_id AND l.is_metered
             WHERE m.cost_micro IS NOT NULL ORDER BY m.lease_id, m.number DESC) s
           LEFT JOIN billing_usagerecord u ON u.lease_id = s.lease_id GROUP BY s.lease_id, s.cost_micro
           HAVING s.cost_micro <>
             coalesce(floor(sum(u.share_milli_seconds::numeric * u.micro_per_hour) / 3600000), 0)""",
    ),
    Invariant(
        "usage_pays_its_price",
        "Usage is priced at its rate, lowered to what the lease pays of it, by its discount, and by what refunds it.",
        """SELECT u.id FROM billing_usagerecord u JOIN catalog_rate r ON r.id = u.rate_id
           JOIN leases_lease l ON l.id = u.lease_id JOIN catalog_flavor s ON s.id = l.flavor_id
           LEFT JOIN billing_refundrule f ON f.id = u.refund_id LEFT JOIN catalog_discount d ON d.id = u.discount_id
           WHERE u.minimum_micro IS NULL AND u.micro_per_hour <> catalog_price_of(r, s) * l.price_milli / 1000
             * (1000 - coalesce(d.off_milli, 0)) / 1000 * (1000 - coalesce(f.credit_milli, 0)) / 1000
           OR NOT f.valid @> l.ended_at""",
    ),
    Invariant("minimum_is_charged", "A lease comes to its minimum, unless a fault ended it.", UNDER_MINIMUM),
    Invariant(
        "one_price_at_a_time",
        "A device model has one price at any moment.",
        """SELECT a.id FROM catalog_rate a JOIN catalog_rate b ON a.id < b.id AND a.card_id = b.card_id
           AND a.device_model_id = b.device_model_id AND a.valid && b.valid""",
    ),
    Invariant(
        "slices_lie_legally",
        "A slice lies where its size may begin on that device, a whole board from its first slot to its last.",
        """SELECT p.id FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id
           JOIN fleet_devicemodel m ON m.id = d.model_id WHERE p.is_live AND p.host_id IS NULL
           AND (p.slots <> int8range(p.start, p.start + p.size) OR CASE WHEN p.mode = 'mig' THEN NOT EXISTS (
             SELECT 1 FROM jsonb_array_elements(d.profiles) own LEFT JOIN fleet_profile f
             ON f.device_model_id = m.id AND f.name = p.profile
             WHERE (own->>'name' = p.profile OR own->>'size' = f.size)
             AND (own->>'slices')::int = p.size AND own->'starts' @> to_jsonb(p.start))
           ELSE p.start <> 0 OR p.size <> m.grid END)""",
    ),
    Invariant(
        "one_mode_at_a_time",
        "What lives on a device at the same time is in one mode, and a share in that of the board it is part of.",
        """SELECT a.id FROM leases_placement a JOIN leases_placement b ON a.id < b.id
           AND a.device_id = b.device_id AND a.period && b.period AND a.mode <> b.mode
           WHERE a.is_live AND b.is_live""",
    ),
    Invariant(
        "steps_are_a_chain",
        "Each step of a lease begins where the one before it ended.",
        """SELECT DISTINCT lease_id FROM (SELECT lease_id, was,
           lag(now) OVER (PARTITION BY lease_id ORDER BY id) AS before FROM leases_leaseevent) s
           WHERE before IS NOT NULL AND before <> was""",
    ),
    Invariant(
        "usage_inside_its_lease",
        "Usage lies between the first second of its lease and the one in which its money clock stopped.",
        """SELECT u.id FROM billing_usagerecord u JOIN leases_lease l ON l.id = u.lease_id
           WHERE l.activated_at IS NULL OR lower(u.span) < date_trunc('second', l.activated_at)
           OR upper(u.span) > date_trunc('second', l.ended_at)""",
    ),
    Invariant(
        "lines_cost_their_usage",
        "A line costs what its usage does, within the cent that it was rounded by.",
        """SELECT l.id FROM billing_invoiceline l JOIN billing_usagetotal t ON t.line_id = l.id
           WHERE abs(l.amount_micro - t.share_milli_seconds::numeric * t.micro_per_hour / 3600000) >= 10000""",
    ),
    Invariant(
        "one_currency_per_invoice",
        "An invoice adds up one currency: its own.",
        """SELECT i.number FROM billing_invoice i JOIN billing_invoiceline l ON l.invoice_id = i.id
           JOIN billing_usagetotal t ON t.line_id = l.id WHERE t.currency <> i.currency""",
    ),
    Invariant(
        "invoice_numbers_gapless",
        "The invoices of a month are numbered from 1 without a gap.",
        """SELECT p.starts_at::date FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id
           WHERE i.is_issued GROUP BY p.id
           HAVING max(split_part(i.number, '-', 2)::int) <> count(*) OR min(split_part(i.number, '-', 2)::int) <> 1""",
    ),
    Invariant(
        "invoices_are_a_chain",
        "An issued invoice and its lines say what they said when it was issued, each bound to the one before it.",
        """SELECT number FROM (SELECT i AS bill, i.number, i.digest,
             lag(i.digest) OVER (ORDER BY p.starts_at, length(i.number), i.number) AS previous
             FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id WHERE i.is_issued) chain
           WHERE digest IS DISTINCT FROM billing_invoice_digest(bill, previous)""",
    ),
    Invariant(
        "rows_of_one_team",
        "Request, lease, slices, usage and invoice are of one team, usage and invoice of one month.",
        """SELECT l.uid FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id
           WHERE r.team_id <> l.team_id
           UNION ALL SELECT l.uid FROM leases_lease l JOIN leases_placement p ON p.lease_id = l.id
           WHERE p.team_id <> l.team_id
           UNION ALL SELECT l.uid FROM billing_usagerecord u JOIN leases_lease l ON l.id = u.lease_id
           WHERE u.team_id <> l.team_id
           UNION ALL SELECT i.number FROM billing_usagetotal u JOIN billing_invoiceline n ON n.id = u.line_id
           JOIN billing_invoice i ON i.id = n.invoice_id WHERE u.team_id <> i.team_id OR u.period_id <> i.period_id""",
    ),
    Invariant(
        "seats_wait_for_their_people",
        "A slice of a workshop starts once its person has come, in the team that asked for it.",
        """SELECT r.uid FROM leases_leaserequest r LEFT JOIN leases_workshopseat s ON s.request_id = r.id
           LEFT JOIN leases_workshop w ON w.id = s.workshop_id
           WHERE (r.awaits_person AND s.claimed_at IS NOT NULL) OR w.team_id <> r.team_id OR s.user_id <> r.author_id
           OR (s.id IS NOT NULL AND NOT r.awaits_person AND s.claimed_at IS NULL)
           UNION ALL SELECT l.uid FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id
           WHERE r.awaits_person AND (l.state NOT IN ('booked', 'ended') OR l.activated_at IS NOT NULL)""",
    ),
    Invariant(
        "idle_goes_by_its_rule",
        "What is told to go for idling idles by its last judgement, its holder was told, and it goes when that says.",
        """SELECT l.uid FROM leases_lease l LEFT JOIN idle_idlestanding s ON s.lease_id = l.id
           WHERE (l.state IN ('active', 'interrupted') AND l.preempt_at IS NOT NULL AND l.preempted_for_id IS NULL
             AND (s.warned_at IS NULL OR s.reclaim_at IS DISTINCT FROM l.preempt_at))
           OR (l.end_reason = 'idle' AND (s.warned_at IS NULL OR coalesce(l.ended_at > l.preempt_at, true)))""",
    ),
    Invariant(
        "secrets_are_digests",
        "Of a token only its SHA-256 is kept.",
        """SELECT 'api ' || id FROM accounts_apitoken WHERE octet_length(digest) <> 32
           UNION ALL SELECT 'enrolment ' || id FROM agents_enroltoken WHERE octet_length(digest) <> 32
           UNION ALL SELECT 'ticket ' || id FROM gateway_streamticket WHERE octet_length(digest) <> 32""",
    ),
    Invariant(
        "somebody_runs_it",
        "Every organisation has an operator who can sign in.",
        """SELECT t.slug FROM teams_team t WHERE t.parent_id IS NULL AND NOT EXISTS (
           SELECT 1 FROM teams_membership m JOIN accounts_user u ON u.id = m.user_id
           WHERE m.team_id = t.id AND m.role = 'operator' AND u.is_active
             AND (m.ends_at IS NULL OR m.ends_at > now()))""",
    ),
)


# What no month is closed without. Whether usage tiles is not among them: the close looks at its own month.
MONEY = tuple(
    invariant
    for invariant in INVARIANTS
    if invariant.name
    in {
        "usage_never_twice",
        "usage_in_its_month",
        "usage_on_its_invoice",
        "invoices_issued_by_closing",
        "invoices_add_up",
        "lines_match_usage",
        "closed_months_are_billed",
        "totals_are_their_usage",
        "lines_are_their_totals",
        "notes_within_their_lines",
        "notes_are_their_lines",
        "wallets_add_up",
        "imports_are_whole",
        "external_usage_is_its_lines",
        "holds_are_their_movements",
        "wallets_settle_usage",
        "usage_pays_its_price",
        "minimum_is_charged",
        "one_price_at_a_time",
    }
)


@contextmanager
def one_snapshot() -> Iterator[None]:
    """Read for up to ``PATIENCE`` a statement, all of it from one snapshot unless a transaction is open already."""
    is_alone = not connection.in_atomic_block
    with transaction.atomic():
        if is_alone:
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            execute(f"SET LOCAL statement_timeout = '{PATIENCE}'")
        yield


def broken(invariants: Sequence[Invariant] = INVARIANTS) -> list[Breach]:
    """Return the promises that do not hold; changes nothing.

    All are looked at in one snapshot, unless the caller has a transaction open already. A query that takes longer
    than ``PATIENCE`` raises OperationalError.
    """
    found = []
    with one_snapshot(), connection.cursor() as cursor:
        for invariant in invariants:
            cursor.execute(f"SELECT * FROM ({invariant.offenders}) offenders LIMIT 20")
            offenders = tuple(str(row[0]) for row in cursor.fetchall())
            if offenders:
                found.append(Breach(invariant, offenders))
    return found


# What is proved of all months by ``verify_books``.
BOOKS = (*MONEY, *(i for i in INVARIANTS if i.name in {"lines_cost_their_usage", "one_currency_per_invoice"}))
