"""What the database refuses of credit and debit notes; a month's close numbers them, and its digests hold them."""

from django.db import migrations

NOTES = """
CREATE FUNCTION billing_note_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  was billing_invoicenote%ROWTYPE;
  month billing_billingperiod%ROWTYPE;
  corrected record;
  put record;
  sums record;
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'note % is kept, whatever became of it', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  -- Whoever writes a note of a line waits for the others: what they come to together is bounded.
  SELECT l.*, i.team_id, i.currency, i.period_id, i.is_issued, p.state, p.ends_at INTO corrected
    FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id
    JOIN billing_billingperiod p ON p.id = i.period_id WHERE l.id = NEW.line_id FOR UPDATE OF l;
  IF TG_OP = 'INSERT' THEN
    IF NEW.state <> 'proposed' OR NEW.number IS NOT NULL THEN
      RAISE EXCEPTION 'a note begins as a proposal' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF NOT corrected.is_issued OR corrected.state <> 'closed' OR (corrected.team_id, corrected.currency)
       IS DISTINCT FROM (NEW.team_id, NEW.currency) THEN
      RAISE EXCEPTION 'a note corrects an issued line of its own team and currency'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF EXISTS (SELECT 1 FROM billing_invoicenote WHERE issued_line_id = NEW.line_id) THEN
      RAISE EXCEPTION 'a note corrects a line of usage, not another note'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF NEW.lease_id IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM billing_usagetotal t JOIN billing_usagerecord u ON u.period_id = t.period_id
        AND u.team_id = t.team_id AND u.micro_per_hour = t.micro_per_hour AND u.currency = t.currency
        AND u.late_for_id IS NOT DISTINCT FROM t.late_for_id
      JOIN leases_lease l ON l.id = u.lease_id AND l.user_id = t.user_id AND l.flavor_id = t.flavor_id
      WHERE t.line_id = NEW.line_id AND u.lease_id = NEW.lease_id) THEN
      RAISE EXCEPTION 'lease % is not on line %', NEW.lease_id, NEW.line_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
  ELSE
    was := OLD;
    was.state := NEW.state;
    was.decided_by_id := NEW.decided_by_id;
    was.decided_at := NEW.decided_at;
    was.decision_note := NEW.decision_note;
    was.period_id := NEW.period_id;
    IF OLD.state = 'proposed' AND NEW.state <> 'proposed' AND was IS NOT DISTINCT FROM NEW THEN
      IF NEW.state = 'approved' THEN
        SELECT * INTO month FROM billing_billingperiod WHERE id = NEW.period_id FOR SHARE;
        IF month.state <> 'open' OR month.starts_at < corrected.ends_at THEN
          RAISE EXCEPTION 'note % belongs in an open month after the one that it corrects', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
        END IF;
      END IF;
    ELSE
      was := OLD;
      was.number := NEW.number;
      was.issued_line_id := NEW.issued_line_id;
      SELECT l.*, i.team_id, i.currency, i.period_id, i.is_issued, p.state INTO put
        FROM billing_invoiceline l JOIN billing_invoice i ON i.id = l.invoice_id
        JOIN billing_billingperiod p ON p.id = i.period_id WHERE l.id = NEW.issued_line_id;
      IF was IS DISTINCT FROM NEW OR OLD.state <> 'approved' OR OLD.number IS NOT NULL
         OR put.is_issued OR put.state <> 'closing'
         OR (put.period_id, put.team_id, put.currency, put.amount_micro, put.late_for_id, put.seconds,
             put.share_milli_seconds, put.lease_count)
         IS DISTINCT FROM (OLD.period_id, OLD.team_id, OLD.currency, OLD.amount_micro, corrected.period_id,
             0::bigint, 0::bigint, 0) THEN
        RAISE EXCEPTION 'note % never changes: it is decided once, and put on a line as its month closes', OLD.id
          USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
      END IF;
      RETURN NEW;
    END IF;
  END IF;
  IF NEW.state IN ('proposed', 'approved') THEN
    -- What waits counts against a line as if it were approved; it counts in favour of one only once it is.
    SELECT coalesce(sum(amount_micro) FILTER (WHERE amount_micro < 0), 0) AS credits,
      coalesce(sum(amount_micro) FILTER (WHERE amount_micro > 0), 0) AS debits,
      coalesce(sum(amount_micro) FILTER (WHERE amount_micro < 0 AND state = 'approved'), 0) AS sure_credits,
      coalesce(sum(amount_micro) FILTER (WHERE amount_micro > 0 AND state = 'approved'), 0) AS sure_debits
      INTO sums FROM billing_invoicenote
      WHERE line_id = NEW.line_id AND id <> NEW.id AND state IN ('proposed', 'approved');
    IF (NEW.amount_micro < 0
        AND corrected.amount_micro + sums.credits + sums.sure_debits + NEW.amount_micro < 0)
       OR (NEW.amount_micro > 0
        AND sums.debits + sums.sure_credits + NEW.amount_micro > corrected.amount_micro) THEN
      RAISE EXCEPTION 'the notes of line % come to more than it charged', NEW.line_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'note_within_its_line';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_note_guarded BEFORE INSERT OR UPDATE OR DELETE ON billing_invoicenote
  FOR EACH ROW EXECUTE FUNCTION billing_note_guarded();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_invoicenote
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();
"""

# An invoice without notes has the digest that it had before there were any.
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
     WHERE l.invoice_id = bill.id HAVING count(*) > 0), '[]'::jsonb))::text, 'UTF8'))
$$;
"""

PERIODS = """
CREATE FUNCTION billing_notes_are_issued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM billing_invoicenote WHERE period_id = NEW.id AND number IS NULL) THEN
    RAISE EXCEPTION 'period % has a note on no line', OLD.id USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF (SELECT count(*) <> coalesce(max(substring(number FROM '-N([0-9]+)$')::int), 0)
      OR count(DISTINCT substring(number FROM '^(.*)-N[0-9]+$')) > 1
      FROM billing_invoicenote WHERE period_id = NEW.id) THEN
    RAISE EXCEPTION 'the notes of period % are not numbered from 1 without a gap', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT 1 FROM billing_invoice i JOIN billing_invoiceline l ON l.invoice_id = i.id
             WHERE i.period_id = NEW.id AND NOT EXISTS (SELECT 1 FROM billing_usagetotal t WHERE t.line_id = l.id)
             AND NOT EXISTS (SELECT 1 FROM billing_invoicenote n WHERE n.issued_line_id = l.id)) THEN
    RAISE EXCEPTION 'period % has a line without usage and without a note', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
-- After the guard of periods, whose name comes first.
CREATE TRIGGER billing_period_notes_are_issued BEFORE UPDATE ON billing_billingperiod FOR EACH ROW
  WHEN (NEW.state = 'closed' AND OLD.state <> 'closed') EXECUTE FUNCTION billing_notes_are_issued();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_notes")]
    operations = [migrations.RunSQL(sql, migrations.RunSQL.noop) for sql in (NOTES, DIGEST, PERIODS)]
