"""Electricity by dated prices, on lines beside usage; hours of energy are written under the lock of the books."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

EXTERNAL = """
CREATE OR REPLACE FUNCTION billing_external_guarded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  file billing_financeimport%ROWTYPE;
  month billing_billingperiod%ROWTYPE;
  was billing_externalusage%ROWTYPE;
  put record;
BEGIN
  IF TG_OP = 'INSERT' THEN
    SELECT * INTO file FROM billing_financeimport WHERE id = NEW.book_id;
    IF (file.kind, file.period_id, file.is_live, file.currency)
       IS DISTINCT FROM (CASE WHEN NEW.energy_mj IS NULL THEN 'usage' ELSE 'energy' END, NEW.period_id, NEW.is_live,
         NEW.currency) OR NEW.billed_on_id IS NOT NULL THEN
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
CREATE OR REPLACE FUNCTION billing_external_is_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.kind IN ('usage', 'energy') AND NEW.rows <> (SELECT count(*) FROM billing_externalusage WHERE book_id = NEW.id) THEN
    RAISE EXCEPTION 'import % is not whole', NEW.uid USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
"""
# Whoever writes hours of energy and a close wait for each other: none are written into a month that was just closed.
# People know the price of electricity before they use it.
GUARDED = """
CREATE FUNCTION billing_energy_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(422776367987);
  RETURN NULL;
END $$;
CREATE TRIGGER billing_energy_waits BEFORE INSERT OR UPDATE OR DELETE ON billing_leaseenergy
  FOR EACH STATEMENT EXECUTE FUNCTION billing_energy_waits();

CREATE FUNCTION billing_electricity_is_told() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.kind = 'price' AND lower(NEW.valid) < clock_timestamp() - interval '1 minute'
     AND (TG_OP = 'INSERT' OR (NEW.kind, lower(NEW.valid)) IS DISTINCT FROM (OLD.kind, lower(OLD.valid))) THEN
    RAISE EXCEPTION 'a price of electricity begins now or later'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER billing_electricity_is_told BEFORE INSERT OR UPDATE ON billing_energyfactor
  FOR EACH ROW EXECUTE FUNCTION billing_electricity_is_told();
"""
KINDS = [("balances", "Opening balances"), ("usage", "External usage"), ("energy", "Electricity")]


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0026_memory_price"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name="energyfactor",
            name="kind",
            field=models.CharField(
                choices=[
                    ("carbon", "Grid, g CO₂e per kWh"),
                    ("pue", "PUE"),
                    ("price", "Electricity, price per MWh"),
                ],
                max_length=6,
            ),
        ),
        migrations.RemoveConstraint(model_name="energyfactor", name="energy_factor_possible"),
        migrations.AddConstraint(
            model_name="energyfactor",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "carbon"), ("value_milli__lte", 5000000)),
                    models.Q(("kind", "pue"), ("value_milli__gte", 1000), ("value_milli__lte", 10000)),
                    models.Q(("kind", "price"), ("value_milli__lte", 10000000)),
                    _connector="OR",
                ),
                name="energy_factor_possible",
            ),
        ),
        migrations.RemoveConstraint(model_name="financeimport", name="import_kind_known"),
        migrations.AlterField(
            model_name="financeimport", name="kind", field=models.CharField(choices=KINDS, max_length=8)
        ),
        migrations.AlterField(
            model_name="financeimport",
            name="made_by",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddConstraint(
            model_name="financeimport",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["balances", "usage", "energy"])), name="import_kind_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="financeimport",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "energy"), ("made_by", None)),
                    models.Q(
                        models.Q(("kind", "energy"), _negated=True),
                        ("made_by__isnull", False),
                    ),
                    _connector="OR",
                ),
                name="import_made_by_somebody",
            ),
        ),
        migrations.RemoveConstraint(model_name="externalusage", name="external_usage_says_what_it_is"),
        migrations.AddField(
            model_name="externalusage", name="energy_mj", field=models.BigIntegerField(null=True)
        ),
        migrations.AddField(
            model_name="externalusage",
            name="basis",
            field=models.CharField(blank=True, db_default="", default="", max_length=9),
        ),
        migrations.AddConstraint(
            model_name="externalusage",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("ends_at__gt", models.F("starts_at")),
                    models.Q(
                        models.Q(("basis", ""), ("energy_mj", None), ("gpu_milli__gt", 0)),
                        models.Q(
                            ("basis__in", ("measured", "estimated")), ("energy_mj__gte", 0), ("gpu_milli", 0)
                        ),
                        _connector="OR",
                    ),
                    models.Q(("source", ""), _negated=True),
                    models.Q(("external_id", ""), _negated=True),
                    models.Q(("description", ""), _negated=True),
                ),
                name="external_usage_says_what_it_is",
            ),
        ),
        migrations.RunSQL(EXTERNAL, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDED, migrations.RunSQL.noop),
    ]
