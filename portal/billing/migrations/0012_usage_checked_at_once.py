"""Usage is checked by the statement that writes it, not row by row: the same refusals, several times as fast."""

from django.db import migrations

CHECKED = """
CREATE FUNCTION billing_usage_is_right() RETURNS trigger LANGUAGE plpgsql AS $$
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
             WHERE a.team_id <> l.team_id OR a.share_milli <> l.share_milli OR c.currency IS DISTINCT FROM a.currency
             OR a.micro_per_hour
               <> r.micro_per_hour * l.price_milli / 1000 * (1000 - coalesce(e.credit_milli, 0)) / 1000) THEN
    RAISE EXCEPTION 'usage must have the team and share of its lease and a price that was in force'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_usage_is_right AFTER INSERT ON billing_usagerecord
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_usage_is_right();
DROP TRIGGER billing_usage_frozen ON billing_usagerecord;
CREATE TRIGGER billing_usage_frozen BEFORE UPDATE OR DELETE ON billing_usagerecord
  FOR EACH ROW EXECUTE FUNCTION billing_usage_frozen();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0011_refunds_guarded")]
    operations = [migrations.RunSQL(CHECKED, migrations.RunSQL.noop)]
