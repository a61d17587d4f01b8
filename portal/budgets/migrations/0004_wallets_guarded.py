"""A wallet's balance is the sum of its movements, which are never edited: the database writes the one by the others."""

from django.db import migrations

GUARDS = """
CREATE FUNCTION budgets_movement_posted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  payer budgets_wallet%ROWTYPE;
  rented record;
  held bigint;
  due bigint;
  holds bigint := 0;
BEGIN
  SELECT * INTO payer FROM budgets_wallet WHERE id = NEW.wallet_id FOR UPDATE;
  IF NEW.kind IN ('hold', 'settle', 'amend') THEN
    IF NEW.lease_id IS NULL THEN
      RAISE EXCEPTION 'a % is of a lease', NEW.kind
        USING ERRCODE = 'check_violation', CONSTRAINT = 'movement_says_what_it_is';
    END IF;
    SELECT l.is_metered, l.is_preemptible, t.lineage INTO rented
      FROM leases_lease l JOIN teams_team t ON t.id = l.team_id WHERE l.id = NEW.lease_id;
    SELECT amount_micro INTO held FROM budgets_wallethold WHERE lease_id = NEW.lease_id AND wallet_id = NEW.wallet_id;
  END IF;
  IF NEW.kind = 'top_up' THEN
    IF NOT payer.is_open THEN
      RAISE EXCEPTION 'wallet % is closed', payer.id USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_closed';
    END IF;
  ELSIF NEW.kind = 'pay_out' THEN
    IF payer.balance_micro + NEW.amount_micro < 0 THEN
      RAISE EXCEPTION 'wallet % has not so much', payer.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_covers_it';
    END IF;
  ELSIF NEW.kind = 'hold' THEN
    IF rented.is_metered OR NOT payer.team_id = ANY(rented.lineage)
       OR held IS NULL AND (NOT payer.is_open OR EXISTS (
         SELECT 1 FROM budgets_walletmovement WHERE lease_id = NEW.lease_id)) THEN
      RAISE EXCEPTION 'wallet % does not pay for lease %', payer.id, NEW.lease_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_pays_for_it';
    END IF;
    IF payer.balance_micro + NEW.amount_micro < 0 AND NEW.amount_micro < 0
       AND NOT (payer.at_zero = 'preemptible' AND rented.is_preemptible) THEN
      RAISE EXCEPTION 'wallet % does not cover lease %', payer.id, NEW.lease_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_covers_it';
    END IF;
    INSERT INTO budgets_wallethold (wallet_id, lease_id, amount_micro)
      VALUES (NEW.wallet_id, NEW.lease_id, -NEW.amount_micro)
      ON CONFLICT (lease_id) DO UPDATE SET amount_micro = budgets_wallethold.amount_micro - NEW.amount_micro;
    holds := -NEW.amount_micro;
  ELSIF NEW.kind IN ('settle', 'amend') THEN
    SELECT coalesce(floor(sum(share_milli_seconds::numeric * micro_per_hour) / 3600000), 0) INTO due
      FROM billing_usagerecord WHERE lease_id = NEW.lease_id;
    IF NOT rented.is_metered OR NEW.cost_micro IS DISTINCT FROM due THEN
      RAISE EXCEPTION 'lease % came to %, by what is metered', NEW.lease_id, due
        USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_settles_usage';
    END IF;
    IF NEW.kind = 'settle' THEN
      DELETE FROM budgets_wallethold WHERE lease_id = NEW.lease_id AND wallet_id = NEW.wallet_id;
      holds := -held;
    ELSE
      SELECT cost_micro INTO held FROM budgets_walletmovement
        WHERE lease_id = NEW.lease_id AND wallet_id = NEW.wallet_id AND kind IN ('settle', 'amend')
        ORDER BY number DESC LIMIT 1;
    END IF;
    IF held IS NULL OR NEW.amount_micro IS DISTINCT FROM held - NEW.cost_micro THEN
      RAISE EXCEPTION 'wallet % has no such hold for lease %', payer.id, NEW.lease_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_settles_once';
    END IF;
  ELSIF NOT EXISTS (
    SELECT 1 FROM billing_invoicenote WHERE id = NEW.note_id AND state = 'approved' AND amount_micro = -NEW.amount_micro
      AND currency = payer.currency) THEN
    RAISE EXCEPTION 'note % was not approved for %', NEW.note_id, NEW.amount_micro
      USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_note_approved';
  END IF;
  NEW.number := payer.movements + 1;
  NEW.balance_micro := payer.balance_micro + NEW.amount_micro;
  UPDATE budgets_wallet SET movements = NEW.number, balance_micro = NEW.balance_micro, held_micro = held_micro + holds
    WHERE id = payer.id;
  RETURN NEW;
END $$;
CREATE TRIGGER budgets_movement_posted BEFORE INSERT ON budgets_walletmovement
  FOR EACH ROW EXECUTE FUNCTION budgets_movement_posted();
CREATE TRIGGER budgets_movement_append_only BEFORE UPDATE OR DELETE ON budgets_walletmovement
  FOR EACH ROW EXECUTE FUNCTION budgets_crossing_kept();
CREATE TRIGGER budgets_movement_not_emptied BEFORE TRUNCATE ON budgets_walletmovement
  FOR EACH STATEMENT EXECUTE FUNCTION budgets_crossing_kept();

CREATE FUNCTION budgets_wallet_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    IF (NEW.balance_micro, NEW.held_micro, NEW.movements) <> (0, 0, 0) THEN
      RAISE EXCEPTION 'a wallet begins empty' USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_is_its_movements';
    END IF;
    RETURN NEW;
  END IF;
  IF TG_OP IN ('DELETE', 'TRUNCATE') OR (NEW.team_id, NEW.currency) <> (OLD.team_id, OLD.currency) THEN
    RAISE EXCEPTION 'a wallet stays, and stays of its team and currency'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_is_its_movements';
  END IF;
  -- One deep is this trigger alone; below the trigger of a movement it is two.
  IF pg_trigger_depth() < 2 AND (NEW.balance_micro, NEW.held_micro, NEW.movements)
     <> (OLD.balance_micro, OLD.held_micro, OLD.movements) THEN
    RAISE EXCEPTION 'the balance of a wallet is the sum of its movements'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_is_its_movements';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER budgets_wallet_guarded BEFORE INSERT OR UPDATE OR DELETE ON budgets_wallet
  FOR EACH ROW EXECUTE FUNCTION budgets_wallet_guarded();
CREATE TRIGGER budgets_wallet_not_emptied BEFORE TRUNCATE ON budgets_wallet
  FOR EACH STATEMENT EXECUTE FUNCTION budgets_wallet_guarded();

CREATE FUNCTION budgets_hold_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF pg_trigger_depth() < 2 THEN
    RAISE EXCEPTION 'what a lease holds is what its movements say'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'wallet_is_its_movements';
  END IF;
  RETURN coalesce(NEW, OLD);
END $$;
CREATE TRIGGER budgets_hold_guarded BEFORE INSERT OR UPDATE OR DELETE ON budgets_wallethold
  FOR EACH ROW EXECUTE FUNCTION budgets_hold_guarded();
CREATE TRIGGER budgets_hold_not_emptied BEFORE TRUNCATE ON budgets_wallethold
  FOR EACH STATEMENT EXECUTE FUNCTION budgets_hold_guarded();
"""


class Migration(migrations.Migration):
    """What must never happen to wallets, what they hold, and their movements."""

    dependencies = [("budgets", "0003_wallets")]

    operations = [migrations.RunSQL(GUARDS, migrations.RunSQL.noop)]
