"""Invoices hang together by digests; usage never changes any more, as its total is what knows the line.

A close writes totals and lines, some dozen rows a team, and leaves a million usage records as they are.
"""

from django.db import migrations, models

# What an invoice and its lines say, and what the invoice before it had said: whoever changes one has to change all
# that came after it. As JSON, so that no name can pass for the end of another.
DIGEST = """
CREATE FUNCTION billing_invoice_digest(bill billing_invoice, previous bytea) RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT sha256(coalesce(previous, ''::bytea) || convert_to(jsonb_build_array(
    bill.period_id, bill.team_id, bill.number, bill.team_name, bill.cost_centre, bill.currency, bill.total_micro,
    extract(epoch FROM bill.issued_at),
    (SELECT jsonb_agg(jsonb_build_array(l.position, l.person, l.flavor, l.device_model, l.micro_per_hour, l.lease_count,
       l.seconds, l.share_milli_seconds, l.amount_micro, l.late_for_id) ORDER BY l.position)
     FROM billing_invoiceline l WHERE l.invoice_id = bill.id))::text, 'UTF8'))
$$;

CREATE FUNCTION billing_invoice_chained() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.is_issued AND NOT OLD.is_issued THEN
    NEW.digest := billing_invoice_digest(NEW, (
      SELECT i.digest FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id
      WHERE i.is_issued ORDER BY p.starts_at DESC, i.number DESC LIMIT 1));
  ELSIF NEW.digest IS DISTINCT FROM OLD.digest THEN
    RAISE EXCEPTION 'the digest of invoice % is written when it is issued', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
-- After the guards, whose name comes first: what is refused needs no digest.
CREATE TRIGGER billing_issued_is_chained BEFORE UPDATE ON billing_invoice
  FOR EACH ROW EXECUTE FUNCTION billing_invoice_chained();
"""

CHAIN_THE_OLD = """
SET LOCAL statement_timeout = 0;
ALTER TABLE billing_invoice DISABLE TRIGGER USER;
DO $$
DECLARE
  bill billing_invoice%ROWTYPE;
  previous bytea;
BEGIN
  FOR bill IN SELECT i.* FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id
    WHERE i.is_issued ORDER BY p.starts_at, i.number
  LOOP
    previous := billing_invoice_digest(bill, previous);
    UPDATE billing_invoice SET digest = previous WHERE id = bill.id;
  END LOOP;
END $$;
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE billing_invoice ENABLE TRIGGER USER;
"""

USAGE = """
CREATE OR REPLACE FUNCTION billing_usage_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
  own billing_billingperiod%ROWTYPE;
  found record;
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
  SELECT l.team_id, l.share_milli, l.price_milli, f.device_model_id INTO found
    FROM leases_lease l JOIN catalog_flavor f ON f.id = l.flavor_id WHERE l.id = NEW.lease_id;
  IF NEW.team_id <> found.team_id OR NEW.share_milli <> found.share_milli OR NOT EXISTS (
    SELECT 1 FROM catalog_rate r JOIN catalog_ratecard c ON c.id = r.card_id
    WHERE r.id = NEW.rate_id AND r.valid @> NEW.span AND r.device_model_id = found.device_model_id
    AND c.currency = NEW.currency AND NEW.micro_per_hour = r.micro_per_hour * found.price_milli / 1000
    FOR SHARE OF r)
  THEN
    RAISE EXCEPTION 'usage must have the team and share of its lease and a price that was in force'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
"""

PERIODS = """
CREATE OR REPLACE FUNCTION billing_period_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'open' OR NEW.closed_at IS NOT NULL THEN
      RAISE EXCEPTION 'a period begins open' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF NEW.starts_at < billing_closed_until() THEN
      RAISE EXCEPTION 'the books are closed beyond the begin of this period'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
    RETURN NEW;
  END IF;
  IF OLD.state = 'closed' THEN
    RAISE EXCEPTION 'period % is closed and never changes', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF NEW.starts_at <> OLD.starts_at OR NEW.ends_at <> OLD.ends_at OR NEW.id <> OLD.id THEN
    RAISE EXCEPTION 'the bounds of period % never change', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF (NEW.state = 'closed') <> (NEW.closed_at IS NOT NULL) THEN
    RAISE EXCEPTION 'period % is closed at an instant, or not at all', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF NEW.state = 'closed' THEN
    IF NEW.ends_at > clock_timestamp() THEN
      RAISE EXCEPTION 'period % is not over', OLD.id USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF EXISTS (SELECT 1 FROM billing_billingperiod WHERE starts_at < NEW.starts_at AND state <> 'closed') THEN
      RAISE EXCEPTION 'an earlier period than % is still open', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF EXISTS (SELECT 1 FROM billing_usagetotal WHERE period_id = NEW.id AND line_id IS NULL) THEN
      RAISE EXCEPTION 'period % has usage on no line', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF EXISTS (SELECT 1 FROM billing_invoice WHERE period_id = NEW.id AND NOT is_issued) THEN
      RAISE EXCEPTION 'period % has a draft', OLD.id USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF (SELECT count(*) <> coalesce(max(substring(number FROM '-([0-9]+)$')::int), 0)
        OR count(DISTINCT substring(number FROM '^(.*)-[0-9]+$')) > 1
        FROM billing_invoice WHERE period_id = NEW.id) THEN
      RAISE EXCEPTION 'the invoices of period % are not numbered from 1 without a gap', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
  END IF;
  RETURN NEW;
END $$;
"""

TOTALS = """
CREATE OR REPLACE FUNCTION billing_totals_follow_usage() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  was billing_usagetotal%ROWTYPE;
BEGIN
  IF pg_trigger_depth() > 1 THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_TABLE_NAME = 'billing_usagetotal' AND TG_OP = 'UPDATE' THEN
    was := OLD;
    was.line_id := NEW.line_id;
    IF was IS NOT DISTINCT FROM NEW AND OLD.line_id IS NULL AND EXISTS (
      SELECT 1 FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id
      WHERE l.id = NEW.line_id AND NOT i.is_issued AND i.period_id = NEW.period_id AND i.team_id = NEW.team_id
      AND i.currency = NEW.currency AND l.late_for_id IS NOT DISTINCT FROM NEW.late_for_id
      AND l.seconds = NEW.seconds AND l.share_milli_seconds = NEW.share_milli_seconds
      AND l.micro_per_hour = NEW.micro_per_hour AND l.lease_count = NEW.leases)
    THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'totals are what usage adds up to: nothing else writes them'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0006_totals_kept")]
    operations = [
        migrations.AddField("invoice", "digest", models.BinaryField(max_length=32, null=True)),
        migrations.RunSQL(DIGEST, migrations.RunSQL.noop),
        migrations.RunSQL(CHAIN_THE_OLD, migrations.RunSQL.noop),
        migrations.AddConstraint(
            "invoice",
            models.CheckConstraint(
                condition=models.Q(is_issued=False) | models.Q(digest__isnull=False),
                name="invoice_issued_has_digest",
            ),
        ),
        migrations.RunSQL(USAGE, migrations.RunSQL.noop),
        migrations.RunSQL(PERIODS, migrations.RunSQL.noop),
        migrations.RunSQL(TOTALS, migrations.RunSQL.noop),
        migrations.RemoveField("usagerecord", "line"),
    ]
