from django.db import migrations

CLOSED_MONTH = """
CREATE OR REPLACE FUNCTION billing_period_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state = 'closed' THEN
    RAISE EXCEPTION 'period % is closed and never changes', OLD.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_period_frozen BEFORE UPDATE OR DELETE ON billing_billingperiod
  FOR EACH ROW EXECUTE FUNCTION billing_period_frozen();

CREATE OR REPLACE FUNCTION billing_usage_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
BEGIN
  SELECT * INTO month FROM billing_billingperiod
    WHERE id = CASE WHEN TG_OP = 'INSERT' THEN NEW.period_id ELSE OLD.period_id END FOR SHARE;
  IF month.state = 'closed' THEN
    RAISE EXCEPTION 'period % is closed: its usage never changes', month.id USING ERRCODE = 'check_violation';
  END IF;
  IF TG_OP <> 'DELETE' THEN
    IF lower(NEW.span) < month.starts_at OR upper(NEW.span) > month.ends_at THEN
      RAISE EXCEPTION 'usage must lie inside its period' USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.seconds <> extract(epoch FROM upper(NEW.span) - lower(NEW.span)) THEN
      RAISE EXCEPTION 'usage seconds must equal its span' USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
  END IF;
  RETURN OLD;
END $$;
CREATE TRIGGER billing_usage_frozen BEFORE INSERT OR UPDATE OR DELETE ON billing_usagerecord
  FOR EACH ROW EXECUTE FUNCTION billing_usage_frozen();

CREATE OR REPLACE FUNCTION billing_invoice_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.is_issued THEN
    RAISE EXCEPTION 'invoice % is issued and never changes', OLD.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_invoice_frozen BEFORE UPDATE OR DELETE ON billing_invoice
  FOR EACH ROW EXECUTE FUNCTION billing_invoice_frozen();

CREATE OR REPLACE FUNCTION billing_line_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  frozen boolean;
BEGIN
  SELECT is_issued INTO frozen FROM billing_invoice
    WHERE id = CASE WHEN TG_OP = 'INSERT' THEN NEW.invoice_id ELSE OLD.invoice_id END FOR SHARE;
  IF frozen THEN
    RAISE EXCEPTION 'the lines of an issued invoice never change' USING ERRCODE = 'check_violation';
  END IF;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER billing_line_frozen BEFORE INSERT OR UPDATE OR DELETE ON billing_invoiceline
  FOR EACH ROW EXECUTE FUNCTION billing_line_frozen();
"""

PERIOD_STATES = """
CREATE OR REPLACE FUNCTION billing_billingperiod_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'open' AND NEW.state IN ('closing'))
      OR (OLD.state = 'closing' AND NEW.state IN ('closed', 'open'))) THEN
    RAISE EXCEPTION 'billing_billingperiod %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS billing_billingperiod_state_guard ON billing_billingperiod;
CREATE TRIGGER billing_billingperiod_state_guard BEFORE UPDATE OF state ON billing_billingperiod
  FOR EACH ROW EXECUTE FUNCTION billing_billingperiod_state_guard();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial")]
    operations = [
        migrations.RunSQL(PERIOD_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(CLOSED_MONTH, migrations.RunSQL.noop),
    ]
