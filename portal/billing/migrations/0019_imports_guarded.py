"""What the database refuses of imports: they are whole, kept as they were made, and go into open months only."""

from django.db import migrations

IMPORTS = """
CREATE FUNCTION billing_import_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  month billing_billingperiod%ROWTYPE;
  undone billing_financeimport%ROWTYPE;
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT * INTO month FROM billing_billingperiod WHERE id = NEW.period_id FOR SHARE;
    IF month.state <> 'open' THEN
      RAISE EXCEPTION 'period % is not open', NEW.period_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closed_month';
    END IF;
    IF NEW.reverses_id IS NULL AND NOT NEW.is_live THEN
      RAISE EXCEPTION 'an import begins live' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF NEW.reverses_id IS NOT NULL THEN
      SELECT * INTO undone FROM billing_financeimport WHERE id = NEW.reverses_id FOR UPDATE;
      IF NOT undone.is_live OR (undone.kind, undone.period_id, undone.digest, undone.currency, undone.rows)
         IS DISTINCT FROM (NEW.kind, NEW.period_id, NEW.digest, NEW.currency, NEW.rows) THEN
        RAISE EXCEPTION 'import % cannot be undone by this', NEW.reverses_id
          USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
      END IF;
    END IF;
    RETURN NEW;
  END IF;
  -- One deep is this trigger alone; below the trigger of a reversal it is two.
  IF TG_OP = 'UPDATE' AND pg_trigger_depth() > 1 AND OLD.is_live AND NOT NEW.is_live THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% never changes', TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_import_guarded BEFORE INSERT OR UPDATE OR DELETE ON billing_financeimport
  FOR EACH ROW EXECUTE FUNCTION billing_import_guarded();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_financeimport
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();

CREATE FUNCTION billing_opening_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  file billing_financeimport%ROWTYPE;
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT * INTO file FROM billing_financeimport WHERE id = NEW.book_id;
    IF (file.kind, file.period_id, file.is_live) IS DISTINCT FROM ('balances', NEW.period_id, NEW.is_live) THEN
      RAISE EXCEPTION 'a row is of the month of its import' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF file.reverses_id IS NULL AND (NEW.balance_micro < 0 OR NEW.used_micro < 0) THEN
      RAISE EXCEPTION 'an opening balance is not below zero' USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    IF file.reverses_id IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM billing_openingbalance o WHERE o.book_id = file.reverses_id AND o.line = NEW.line
        AND (o.team_id, -o.balance_micro, -o.used_micro, o.as_of)
        IS NOT DISTINCT FROM (NEW.team_id, NEW.balance_micro, NEW.used_micro, NEW.as_of)) THEN
      RAISE EXCEPTION 'line % does not reverse that of import %', NEW.line, file.reverses_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP = 'UPDATE' AND pg_trigger_depth() > 1 AND OLD.is_live AND NOT NEW.is_live THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% never changes', TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
END $$;
CREATE TRIGGER billing_opening_guarded BEFORE INSERT OR UPDATE OR DELETE ON billing_openingbalance
  FOR EACH ROW EXECUTE FUNCTION billing_opening_guarded();
CREATE TRIGGER billing_never_emptied BEFORE TRUNCATE ON billing_openingbalance
  FOR EACH STATEMENT EXECUTE FUNCTION billing_never_emptied();

CREATE FUNCTION billing_opening_complete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT 1 FROM billing_financeimport f WHERE f.id IN (SELECT book_id FROM added)
             AND f.rows < (SELECT count(*) FROM billing_openingbalance o WHERE o.book_id = f.id)) THEN
    RAISE EXCEPTION 'an import has no more rows than its file'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_opening_complete AFTER INSERT ON billing_openingbalance
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_opening_complete();

CREATE FUNCTION billing_import_reverses() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE billing_financeimport SET is_live = false WHERE id = NEW.reverses_id;
  UPDATE billing_openingbalance SET is_live = false WHERE book_id = NEW.reverses_id;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_import_reverses AFTER INSERT ON billing_financeimport
  FOR EACH ROW WHEN (NEW.reverses_id IS NOT NULL) EXECUTE FUNCTION billing_import_reverses();

-- When the transaction ends, an import has all its rows, and each balance its movement.
CREATE FUNCTION billing_import_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.kind = 'balances' AND NEW.rows <> (SELECT count(*) FROM billing_openingbalance WHERE book_id = NEW.id) THEN
    RAISE EXCEPTION 'import % is not whole', NEW.uid USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  IF EXISTS (SELECT 1 FROM billing_openingbalance o WHERE o.book_id = NEW.id AND o.balance_micro <> 0
      AND NOT EXISTS (
        SELECT 1 FROM budgets_walletmovement m JOIN budgets_wallet w ON w.id = m.wallet_id
        WHERE w.team_id = o.team_id AND m.amount_micro = o.balance_micro
          AND m.reference = 'opening balance ' || NEW.uid AND m.kind IN ('top_up', 'pay_out'))) THEN
    RAISE EXCEPTION 'import % has a balance without a movement', NEW.uid
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER billing_import_is_whole AFTER INSERT ON billing_financeimport
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_import_is_whole();
"""


class Migration(migrations.Migration):
    dependencies = [("billing", "0018_imports")]
    operations = [migrations.RunSQL(IMPORTS, migrations.RunSQL.noop)]
