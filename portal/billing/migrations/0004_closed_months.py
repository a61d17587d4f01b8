"""What the database refuses so that a closed month never changes and usage is written once.

Every refusal is a check_violation. Those for the sake of a closed month carry the constraint name
``closed_month``, the others ``books``: the portal tells them apart by it.
"""

from django.db import migrations

# 0x626F6F6B73, portal.billing.periods.BOOKS_LOCK: shared by who writes events and prices, held by a close.
BOOKS = """
CREATE FUNCTION billing_closed_until() RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT max(ends_at) FROM billing_billingperiod WHERE state = 'closed'
$$;
"""

PERIODS = """
ALTER TABLE billing_billingperiod ADD CONSTRAINT period_never_overlaps
  EXCLUDE USING gist (tstzrange(starts_at, ends_at) WITH &&);

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
    IF EXISTS (SELECT 1 FROM billing_usagerecord WHERE period_id = NEW.id AND line_id IS NULL) THEN
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
DROP TRIGGER billing_period_frozen ON billing_billingperiod;
CREATE TRIGGER billing_period_frozen BEFORE INSERT OR UPDATE OR DELETE ON billing_billingperiod
  FOR EACH ROW EXECUTE FUNCTION billing_period_frozen();
"""

INVOICES = """
CREATE OR REPLACE FUNCTION billing_invoice_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
BEGIN
  IF TG_OP <> 'INSERT' AND OLD.is_issued THEN
    RAISE EXCEPTION 'invoice % is issued and never changes', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  SELECT * INTO month FROM billing_billingperiod
    WHERE id = CASE WHEN TG_OP = 'INSERT' THEN NEW.period_id ELSE OLD.period_id END FOR SHARE;
  IF month.state = 'closed' THEN
    RAISE EXCEPTION 'period % is closed: its invoices never change', month.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF TG_OP = 'INSERT' THEN
    IF NEW.is_issued OR NEW.number IS NOT NULL THEN
      RAISE EXCEPTION 'an invoice begins as a draft' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN NEW;
  END IF;
  IF NEW.id <> OLD.id OR NEW.period_id <> OLD.period_id OR NEW.team_id <> OLD.team_id
     OR NEW.currency <> OLD.currency THEN
    RAISE EXCEPTION 'invoice % stays with its team, month and currency', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF NEW.is_issued THEN
    IF month.state <> 'closing' THEN
      RAISE EXCEPTION 'invoice % is issued only when its month closes', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF NEW.total_micro <> (SELECT coalesce(sum(amount_micro), 0) FROM billing_invoiceline
                           WHERE invoice_id = NEW.id) THEN
      RAISE EXCEPTION 'the lines of invoice % do not add up to its total', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER billing_invoice_frozen ON billing_invoice;
CREATE TRIGGER billing_invoice_frozen BEFORE INSERT OR UPDATE OR DELETE ON billing_invoice
  FOR EACH ROW EXECUTE FUNCTION billing_invoice_frozen();

CREATE OR REPLACE FUNCTION billing_line_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  bill record;
BEGIN
  FOR bill IN
    SELECT i.is_issued, p.state FROM billing_invoice i JOIN billing_billingperiod p ON p.id = i.period_id
    WHERE i.id IN (CASE WHEN TG_OP = 'INSERT' THEN NEW.invoice_id ELSE OLD.invoice_id END,
                   CASE WHEN TG_OP = 'DELETE' THEN OLD.invoice_id ELSE NEW.invoice_id END)
    ORDER BY i.id FOR SHARE OF i, p
  LOOP
    IF bill.is_issued OR bill.state = 'closed' THEN
      RAISE EXCEPTION 'the lines of an issued invoice never change'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
  END LOOP;
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;
"""

USAGE = """
CREATE OR REPLACE FUNCTION billing_usage_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
  own billing_billingperiod%ROWTYPE;
  was billing_usagerecord%ROWTYPE;
  found record;
BEGIN
  SELECT * INTO month FROM billing_billingperiod
    WHERE id = CASE WHEN TG_OP = 'INSERT' THEN NEW.period_id ELSE OLD.period_id END FOR SHARE;
  IF month.state = 'closed' THEN
    RAISE EXCEPTION 'period % is closed: its usage never changes', month.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF TG_OP <> 'INSERT' AND OLD.line_id IS NOT NULL THEN
    RAISE EXCEPTION 'usage % stands on a line and never changes', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    was := OLD;
    was.line_id := NEW.line_id;
    IF was IS DISTINCT FROM NEW THEN
      RAISE EXCEPTION 'usage % never changes, it only gets its line', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    SELECT i.is_issued, i.period_id, i.team_id, i.currency, l.late_for_id INTO found
      FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id WHERE l.id = NEW.line_id FOR SHARE;
    IF found.is_issued OR (found.period_id, found.team_id, found.currency, found.late_for_id)
       IS DISTINCT FROM (NEW.period_id, NEW.team_id, NEW.currency, NEW.late_for_id) THEN
      RAISE EXCEPTION 'usage % belongs on a draft line of its own team, month and currency', OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
    RETURN NEW;
  END IF;
  IF NEW.line_id IS NOT NULL THEN
    RAISE EXCEPTION 'usage gets its line when its month closes'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
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

CREATE FUNCTION billing_lease_keeps_its_price() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM billing_usagerecord WHERE lease_id = OLD.id) THEN
    RAISE EXCEPTION 'lease % has usage: who pays for what never changes', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_lease_keeps_its_price
  BEFORE UPDATE OF id, team_id, user_id, flavor_id, share_milli, price_milli ON leases_lease FOR EACH ROW
  WHEN ((OLD.id, OLD.team_id, OLD.user_id, OLD.flavor_id, OLD.share_milli, OLD.price_milli)
        IS DISTINCT FROM (NEW.id, NEW.team_id, NEW.user_id, NEW.flavor_id, NEW.share_milli, NEW.price_milli))
  EXECUTE FUNCTION billing_lease_keeps_its_price();
"""

EVENTS = """
CREATE FUNCTION billing_events_stay_out() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Until this transaction ends no month closes; one that just closes is waited for and then seen.
  PERFORM pg_advisory_xact_lock_shared(422776367987);
  IF (SELECT min(at) FROM added) < billing_closed_until() THEN
    RAISE EXCEPTION 'an event of a lease lies in a closed month'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
  END IF;
  IF EXISTS (SELECT 1 FROM added a JOIN billing_usagerecord u ON u.lease_id = a.lease_id
             WHERE upper(u.span) > a.at) THEN
    RAISE EXCEPTION 'an event of a lease lies before the end of its usage'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_events_stay_out AFTER INSERT ON leases_leaseevent
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_events_stay_out();
"""

PRICES = """
CREATE FUNCTION billing_rates_stay_out() RETURNS trigger LANGUAGE plpgsql AS $$
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
      OR NEW.micro_per_hour <> OLD.micro_per_hour OR NEW.card_id <> OLD.card_id
      OR NEW.device_model_id <> OLD.device_model_id))
  THEN
    RAISE EXCEPTION 'usage was billed at price %', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_rates_stay_out BEFORE INSERT OR UPDATE ON catalog_rate
  FOR EACH ROW EXECUTE FUNCTION billing_rates_stay_out();

CREATE FUNCTION billing_card_keeps_its_currency() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.currency <> OLD.currency
     AND EXISTS (SELECT 1 FROM catalog_rate WHERE card_id = OLD.id) THEN
    RAISE EXCEPTION 'rate card % has prices: its currency never changes', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF NEW.is_default AND EXISTS (SELECT 1 FROM billing_usagerecord WHERE currency <> NEW.currency) THEN
    RAISE EXCEPTION 'usage was billed in another currency than that of rate card %', NEW.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_card_keeps_its_currency BEFORE INSERT OR UPDATE ON catalog_ratecard
  FOR EACH ROW EXECUTE FUNCTION billing_card_keeps_its_currency();
"""

NEVER_EMPTIED = (
    "billing_billingperiod",
    "billing_invoice",
    "billing_invoiceline",
    "billing_usagerecord",
    "leases_lease",
    "leases_leaseevent",
    "leases_requestevent",
    "catalog_rate",
    "catalog_ratecard",
)
TRUNCATE = """
CREATE FUNCTION billing_never_emptied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is never emptied', TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
""" + "".join(
    f"CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON {table}"
    " FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();\n"
    for table in NEVER_EMPTIED
)


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0003_adjustments"),
        ("catalog", "0005_queue_and_time"),
        ("leases", "0011_lease_by_holder"),
    ]
    operations = [
        migrations.RunSQL(sql, migrations.RunSQL.noop)
        for sql in (BOOKS, PERIODS, INVOICES, USAGE, EVENTS, PRICES, TRUNCATE)
    ]
