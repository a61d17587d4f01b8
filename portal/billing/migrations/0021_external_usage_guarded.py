"""What the database refuses of external usage; a month's close puts it on lines, and its digests hold it."""

from django.db import migrations

EXTERNAL = """
CREATE FUNCTION billing_external_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  file billing_financeimport%ROWTYPE;
  month billing_billingperiod%ROWTYPE;
  was billing_externalusage%ROWTYPE;
  put record;
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT * INTO file FROM billing_financeimport WHERE id = NEW.book_id;
    IF (file.kind, file.period_id, file.is_live, file.currency)
       IS DISTINCT FROM ('usage', NEW.period_id, NEW.is_live, NEW.currency) OR NEW.billed_on_id IS NOT NULL THEN
      RAISE EXCEPTION 'a row is of the month and currency of its import'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    SELECT * INTO month FROM billing_billingperiod WHERE id = NEW.period_id FOR SHARE;
    IF month.state <> 'open' THEN
      RAISE EXCEPTION 'period % is not open', NEW.period_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
    IF NEW.starts_at < month.starts_at OR NEW.ends_at > month.ends_at THEN
      RAISE EXCEPTION 'external usage lies in its month' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF file.reverses_id IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM billing_externalusage o WHERE o.book_id = file.reverses_id AND o.line = NEW.line
        AND (o.team_id, o.source, o.external_id, -o.amount_micro, o.starts_at, o.ends_at)
        IS NOT DISTINCT FROM (NEW.team_id, NEW.source, NEW.external_id, NEW.amount_micro, NEW.starts_at, NEW.ends_at))
    THEN
      RAISE EXCEPTION 'line % does not reverse that of import %', NEW.line, file.reverses_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF pg_trigger_depth() > 1 AND OLD.is_live AND NOT NEW.is_live AND OLD.billed_on_id IS NULL THEN
      RETURN NEW;
    END IF;
    was := OLD;
    was.billed_on_id := NEW.billed_on_id;
    SELECT l.*, i.team_id, i.currency, i.period_id, i.is_issued, p.state INTO put
      FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id
      JOIN billing_billingperiod p ON p.id = i.period_id WHERE l.id = NEW.billed_on_id;
    IF was IS NOT DISTINCT FROM NEW AND OLD.billed_on_id IS NULL AND OLD.is_live AND NOT put.is_issued
       AND put.state = 'closing' AND (put.period_id, put.team_id, put.currency, put.amount_micro, put.seconds,
         put.share_milli_seconds, put.lease_count, put.micro_per_hour)
       IS NOT DISTINCT FROM (OLD.period_id, OLD.team_id, OLD.currency, OLD.amount_micro, 0::bigint, 0::bigint, 0,
         0::bigint) THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'external usage never changes: it is put on a line as its month closes'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_external_guarded BEFORE INSERT OR UPDATE OR DELETE ON billing_externalusage
  FOR EACH ROW EXECUTE FUNCTION billing_external_guarded();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_externalusage
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();

CREATE FUNCTION billing_external_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM billing_financeimport f WHERE f.id IN (SELECT book_id FROM added)
             AND f.rows < (SELECT count(*) FROM billing_externalusage o WHERE o.book_id = f.id)) THEN
    RAISE EXCEPTION 'an import has no more rows than its file'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_external_complete AFTER INSERT ON billing_externalusage
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_external_complete();

CREATE OR REPLACE FUNCTION billing_import_reverses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE billing_financeimport SET is_live = false WHERE id = NEW.reverses_id;
  UPDATE billing_openingbalance SET is_live = false WHERE book_id = NEW.reverses_id;
  UPDATE billing_externalusage SET is_live = false WHERE book_id = NEW.reverses_id;
  RETURN NULL;
END $$;

CREATE FUNCTION billing_external_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.kind = 'usage' AND NEW.rows <> (SELECT count(*) FROM billing_externalusage WHERE book_id = NEW.id) THEN
    RAISE EXCEPTION 'import % is not whole', NEW.uid USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_external_is_whole AFTER INSERT ON billing_financeimport
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_external_is_whole();
"""

# An invoice without external usage has the digest that it had before there was any.
DIGEST = """
CREATE OR REPLACE FUNCTION billing_invoice_digest(bill billing_invoice, previous bytea) RETURNS bytea
LANGUAGE sql STABLE AS $$
  SELECT sha256(coalesce(previous, ''::bytea) || convert_to((jsonb_build_array(
    bill.period_id, bill.team_id, bill.number, bill.team_name, bill.cost_centre, bill.currency, bill.total_micro,
    extract(epoch FROM bill.issued_at),
    (SELECT jsonb_agg(jsonb_build_array(l.position, l.person, l.flavor, l.device_model, l.micro_per_hour, l.lease_count,
       l.seconds, l.share_milli_seconds, l.amount_micro, l.late_for_id) ORDER BY l.position)
     FROM billing_invoiceline l WHERE l.invoice_id = bill.id)) || coalesce((
     SELECT jsonb_build_array(jsonb_agg(jsonb_build_array(l.position, n.number, n.uid, n.amount_micro, n.reason,
       o.number, c.position, n.lease_id, n.proposed_by_id, extract(epoch FROM n.proposed_at), n.decided_by_id,
       extract(epoch FROM n.decided_at)) ORDER BY l.position))
     FROM billing_invoicenote n JOIN billing_invoiceline l ON l.id = n.issued_line_id
     JOIN billing_invoiceline c ON c.id = n.line_id JOIN billing_invoice o ON o.id = c.invoice_id
     WHERE l.invoice_id = bill.id HAVING count(*) > 0), '[]'::jsonb) || coalesce((
     SELECT jsonb_build_array(jsonb_build_object('external', jsonb_agg(jsonb_build_array(l.position, x.source,
       x.external_id, x.description, x.user_id, extract(epoch FROM x.starts_at), extract(epoch FROM x.ends_at),
       x.gpu_milli, x.amount_micro, f.uid, f.digest) ORDER BY l.position)))
     FROM billing_externalusage x JOIN billing_invoiceline l ON l.id = x.billed_on_id
     JOIN billing_financeimport f ON f.id = x.book_id
     WHERE l.invoice_id = bill.id HAVING count(*) > 0), '[]'::jsonb))::text, 'UTF8'))
$$;
"""

PERIODS = """
CREATE OR REPLACE FUNCTION billing_notes_are_issued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM billing_invoicenote WHERE period_id = NEW.id AND number IS NULL) THEN
    RAISE EXCEPTION 'period % has a note on no line', OLD.id USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT 1 FROM billing_externalusage WHERE period_id = NEW.id AND is_live AND billed_on_id IS NULL) THEN
    RAISE EXCEPTION 'period % has external usage on no line', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF (SELECT count(*) <> coalesce(max(substring(number FROM '-N([0-9]+)$')::int), 0)
      OR count(DISTINCT substring(number FROM '^(.*)-N[0-9]+$')) > 1
      FROM billing_invoicenote WHERE period_id = NEW.id) THEN
    RAISE EXCEPTION 'the notes of period % are not numbered from 1 without a gap', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT 1 FROM billing_invoice i JOIN billing_invoiceline l ON l.invoice_id = i.id
             WHERE i.period_id = NEW.id AND NOT EXISTS (SELECT 1 FROM billing_usagetotal t WHERE t.line_id = l.id)
             AND NOT EXISTS (SELECT 1 FROM billing_invoicenote n WHERE n.issued_line_id = l.id)
             AND NOT EXISTS (SELECT 1 FROM billing_externalusage x WHERE x.billed_on_id = l.id)) THEN
    RAISE EXCEPTION 'period % has a line without usage and without a note', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0020_external_usage")]
    operations = [migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (EXTERNAL, DIGEST, PERIODS)]
