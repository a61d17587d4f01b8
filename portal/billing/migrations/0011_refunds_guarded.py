"""Refunds by rule: a rule that has begun is locked, and usage pays its price less what its rule gives back."""

from django.db import migrations

RULES = """
CREATE FUNCTION billing_refund_rule_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF lower(NEW.valid) IS NULL OR lower(NEW.valid) < now() THEN
      RAISE EXCEPTION 'a refund rule begins now or later' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN NEW;
  END IF;
  IF lower(OLD.valid) > clock_timestamp() THEN
    IF TG_OP = 'UPDATE' AND (lower(NEW.valid) IS NULL OR lower(NEW.valid) < now()) THEN
      RAISE EXCEPTION 'a refund rule begins now or later' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR NEW.id <> OLD.id OR (NEW.cause, NEW.credit_milli, NEW.most_s, NEW.within_s)
     IS DISTINCT FROM (OLD.cause, OLD.credit_milli, OLD.most_s, OLD.within_s) OR lower(NEW.valid) <> lower(OLD.valid)
     OR (upper(OLD.valid) <= now() AND NEW.valid <> OLD.valid)
     OR (upper(NEW.valid) < now() AND NEW.valid <> OLD.valid) THEN
    RAISE EXCEPTION 'a refund rule that has begun can only be given an end in the future'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_refund_rule_guard BEFORE INSERT OR UPDATE OR DELETE ON billing_refundrule
  FOR EACH ROW EXECUTE FUNCTION billing_refund_rule_guard();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_refundrule
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""

USAGE = """
CREATE OR REPLACE FUNCTION billing_usage_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
  own billing_billingperiod%ROWTYPE;
  found record;
  paid_milli integer := 1000;
BEGIN
  SELECT * INTO month FROM billing_billingperiod
    WHERE id = CASE WHEN TG_OP = 'INSERT' THEN NEW.period_id ELSE OLD.period_id END FOR SHARE;
  IF month.state <> 'open' THEN
    RAISE EXCEPTION 'period % is closed or closing: its usage never changes', month.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'usage % never changes', OLD.id USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  own := month;
  IF NEW.late_for_id IS NOT NULL THEN
    SELECT * INTO own FROM billing_billingperiod WHERE id = NEW.late_for_id FOR SHARE;
    IF own.state <> 'closed' OR own.ends_at > month.starts_at THEN
      RAISE EXCEPTION 'an adjustment belongs to an earlier period that is closed'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
  END IF;
  IF NOT tstzrange(own.starts_at, own.ends_at) @> NEW.span OR isempty(NEW.span) THEN
    RAISE EXCEPTION 'usage must lie inside its period' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF NEW.seconds <> extract(epoch FROM upper(NEW.span) - lower(NEW.span)) THEN
    RAISE EXCEPTION 'usage seconds must equal its span' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  SELECT l.team_id, l.share_milli, l.price_milli, l.ended_at, f.device_model_id INTO found
    FROM leases_lease l JOIN catalog_flavor f ON f.id = l.flavor_id WHERE l.id = NEW.lease_id;
  IF NEW.refund_id IS NOT NULL THEN
    SELECT 1000 - credit_milli INTO paid_milli FROM billing_refundrule
      WHERE id = NEW.refund_id AND valid @> found.ended_at;
    IF paid_milli IS NULL THEN
      RAISE EXCEPTION 'usage is refunded by a rule that was in force when its lease ended'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
  END IF;
  IF NEW.team_id <> found.team_id OR NEW.share_milli <> found.share_milli OR NOT EXISTS (
    SELECT 1 FROM catalog_rate r JOIN catalog_ratecard c ON c.id = r.card_id
    WHERE r.id = NEW.rate_id AND r.valid @> NEW.span AND r.device_model_id = found.device_model_id
    AND c.currency = NEW.currency
    AND NEW.micro_per_hour = r.micro_per_hour * found.price_milli / 1000 * paid_milli / 1000
    FOR SHARE OF r)
  THEN
    RAISE EXCEPTION 'usage must have the team and share of its lease and a price that was in force'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0010_refunds")]
    operations = [migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (RULES, USAGE)]
