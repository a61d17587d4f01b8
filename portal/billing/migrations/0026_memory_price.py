"""Usage pays the price of its memory, too; a flavor that was billed by its memory keeps its size."""

from django.db import migrations

CHECKED = """
CREATE OR REPLACE FUNCTION billing_usage_is_right() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- A close that is under way is waited for, and seen by what follows.
  PERFORM 1 FROM billing_billingperiod
    WHERE id IN (SELECT period_id FROM added UNION SELECT late_for_id FROM added) ORDER BY id FOR SHARE;
  PERFORM 1 FROM catalog_rate WHERE id IN (SELECT rate_id FROM added) ORDER BY id FOR SHARE;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod month ON month.id = a.period_id
             WHERE month.state <> 'open') THEN
    RAISE EXCEPTION 'a period that is closed or closing gets no usage'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod month ON month.id = a.period_id
             JOIN billing_billingperiod own ON own.id = a.late_for_id
             WHERE own.state <> 'closed' OR own.ends_at > month.starts_at) THEN
    RAISE EXCEPTION 'an adjustment belongs to an earlier period that is closed'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN billing_billingperiod own ON own.id = coalesce(a.late_for_id, a.period_id)
             WHERE NOT tstzrange(own.starts_at, own.ends_at) @> a.span OR isempty(a.span)) THEN
    RAISE EXCEPTION 'usage must lie inside its period' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a WHERE a.seconds <> extract(epoch FROM upper(a.span) - lower(a.span))) THEN
    RAISE EXCEPTION 'usage seconds must equal its span' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id
             LEFT JOIN billing_refundrule f ON f.id = a.refund_id AND f.valid @> l.ended_at
             WHERE a.refund_id IS NOT NULL AND f.id IS NULL) THEN
    RAISE EXCEPTION 'usage is refunded by a rule that was in force when its lease ended'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id JOIN catalog_flavor f ON f.id = l.flavor_id
             LEFT JOIN catalog_rate r ON r.id = a.rate_id AND r.valid @> a.span
               AND r.device_model_id = f.device_model_id
             LEFT JOIN catalog_ratecard c ON c.id = r.card_id LEFT JOIN billing_refundrule e ON e.id = a.refund_id
             LEFT JOIN catalog_discount o ON o.id = a.discount_id
             WHERE a.team_id <> l.team_id OR a.share_milli <> l.share_milli OR c.currency IS DISTINCT FROM a.currency
             OR a.minimum_micro IS NULL AND a.micro_per_hour
               <> catalog_price_of(r, f) * l.price_milli / 1000 * (1000 - coalesce(o.off_milli, 0)) / 1000
               * (1000 - coalesce(e.credit_milli, 0)) / 1000) THEN
    RAISE EXCEPTION 'usage must have the team and share of its lease and a price that was in force'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT FROM added a JOIN leases_lease l ON l.id = a.lease_id
             CROSS JOIN LATERAL catalog_discounted(l.team_id, l.is_preemptible, lower(a.span), upper(a.span)) d
             WHERE (a.discount_id IS NOT NULL OR EXISTS (SELECT FROM catalog_discount o WHERE o.valid && a.span))
             AND d.discount_id IS DISTINCT FROM a.discount_id) THEN
    RAISE EXCEPTION 'usage has the largest discount that applies to all of it'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  -- What is raised comes to the minimum of the rate under which its lease began, and to less than a micro-unit more
  -- for each hour of a device.
  IF EXISTS (SELECT FROM (SELECT DISTINCT lease_id FROM added WHERE minimum_micro IS NOT NULL) m
             JOIN leases_lease l ON l.id = m.lease_id
             CROSS JOIN LATERAL (
               SELECT sum(u.share_milli_seconds::numeric * u.micro_per_hour) AS cost,
                 sum(u.share_milli_seconds) FILTER (WHERE u.minimum_micro IS NOT NULL) AS raised,
                 min(u.minimum_micro) AS least, max(u.minimum_micro) AS most, bool_or(u.refund_id IS NOT NULL) AS refunded,
                 (array_agg(r.minimum_micro ORDER BY lower(u.span)))[1] AS due
               FROM billing_usagerecord u JOIN catalog_rate r ON r.id = u.rate_id WHERE u.lease_id = m.lease_id) s
             WHERE l.ended_at IS NULL OR s.refunded OR (s.least, s.most) IS DISTINCT FROM (s.due, s.due)
             OR s.cost < s.due::numeric * 3600000 OR s.cost >= s.due::numeric * 3600000 + s.raised) THEN
    RAISE EXCEPTION 'usage at the minimum charge comes to the minimum of the rate under which its lease began'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
"""
PRICES = """
CREATE OR REPLACE FUNCTION billing_rates_stay_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(422776367987);
  IF TG_OP = 'INSERT' OR lower(NEW.valid) IS DISTINCT FROM lower(OLD.valid) THEN
    IF billing_closed_until() IS NOT NULL AND coalesce(lower(NEW.valid), '-infinity') < billing_closed_until() THEN
      RAISE EXCEPTION 'a price begins in a closed month'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
  END IF;
  IF TG_OP = 'UPDATE' AND EXISTS (
    SELECT 1 FROM billing_usagerecord u WHERE u.rate_id = OLD.id AND (NOT NEW.valid @> u.span
      OR NEW.micro_per_hour <> OLD.micro_per_hour OR NEW.minimum_micro <> OLD.minimum_micro
      OR NEW.micro_per_gib_hour <> OLD.micro_per_gib_hour OR NEW.card_id <> OLD.card_id
      OR NEW.device_model_id <> OLD.device_model_id))
  THEN
    RAISE EXCEPTION 'usage was billed at price %', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
"""
SIZES = """
CREATE FUNCTION billing_flavor_keeps_its_size() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(422776367987);
  IF EXISTS (SELECT FROM catalog_rate r JOIN billing_usagerecord u ON u.rate_id = r.id
             JOIN leases_lease l ON l.id = u.lease_id
             WHERE r.device_model_id = OLD.device_model_id AND r.micro_per_gib_hour > 0 AND l.flavor_id = OLD.id) THEN
    RAISE EXCEPTION 'usage was billed by the memory of flavor %', OLD.slug
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_flavor_keeps_its_size BEFORE UPDATE ON catalog_flavor FOR EACH ROW
  WHEN ((NEW.memory_mib, NEW.share_milli, NEW.device_model_id)
    IS DISTINCT FROM (OLD.memory_mib, OLD.share_milli, OLD.device_model_id))
  EXECUTE FUNCTION billing_flavor_keeps_its_size();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0025_labels_on_lines"), ("catalog", "0008_memory_price")]
    operations = [
        migrations.RunSQL(CHECKED, migrations.RunSQL.noop),
        migrations.RunSQL(PRICES, migrations.RunSQL.noop),
        migrations.RunSQL(SIZES, migrations.RunSQL.noop),
    ]
