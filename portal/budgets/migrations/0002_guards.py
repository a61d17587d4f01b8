from django.db import migrations

GUARDS = """
CREATE FUNCTION budgets_thresholds_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  strictness CONSTANT text[] := ARRAY['notify', 'approval', 'preemptible', 'block'];
BEGIN
  -- Who changes thresholds of the same budget meanwhile is waited for, and seen by what follows.
  PERFORM 1 FROM budgets_teambudget WHERE id = NEW.budget_id FOR NO KEY UPDATE;
  IF EXISTS (
    SELECT 1 FROM budgets_budgetthreshold mild JOIN budgets_budgetthreshold strict USING (budget_id, basis)
    WHERE budget_id = NEW.budget_id AND strict.percent < mild.percent AND mild.action <> 'notify'
      AND array_position(strictness, strict.action::text) > array_position(strictness, mild.action::text)) THEN
    RAISE EXCEPTION 'thresholds of budget % are not in order', NEW.budget_id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'budget_thresholds_in_order';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER budgets_thresholds_in_order AFTER INSERT OR UPDATE ON budgets_budgetthreshold
  FOR EACH ROW EXECUTE FUNCTION budgets_thresholds_in_order();

CREATE FUNCTION budgets_crossing_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER budgets_crossing_append_only BEFORE UPDATE OR DELETE ON budgets_budgetcrossing
  FOR EACH ROW EXECUTE FUNCTION budgets_crossing_kept();
CREATE TRIGGER budgets_crossing_not_emptied BEFORE TRUNCATE ON budgets_budgetcrossing
  FOR EACH STATEMENT EXECUTE FUNCTION budgets_crossing_kept();
"""

# The one figure that a team had so far holds in every month; nothing follows from it but a word, as before.
COPY = """
INSERT INTO budgets_teambudget (team_id, amount_micro, is_monthly, starts_on, version, created_at)
SELECT id, monthly_budget_micro, true, date_trunc('month', created_at AT TIME ZONE 'UTC')::date, 1, created_at
  FROM teams_team WHERE monthly_budget_micro > 0;
INSERT INTO budgets_budgetthreshold (budget_id, percent, basis, action)
SELECT b.id, p.percent, 'actual', 'notify' FROM budgets_teambudget b, unnest(ARRAY[90, 100]) AS p(percent);
"""


class Migration(migrations.Migration):
    """What must never happen to thresholds and crossings; and the budgets that teams have."""

    dependencies = [("budgets", "0001_initial")]

    operations = [
        migrations.RunSQL(GUARDS, migrations.RunSQL.noop),
        migrations.RunSQL(COPY, migrations.RunSQL.noop),
    ]
