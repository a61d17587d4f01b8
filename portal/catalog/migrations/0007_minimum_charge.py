"""A rate may say what a lease comes to at least; one that has begun keeps that, as it keeps its price."""

from django.db import migrations, models

BEGUN_RATES = """
CREATE OR REPLACE FUNCTION catalog_rate_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF lower(OLD.valid) > now() THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR NEW.micro_per_hour <> OLD.micro_per_hour OR NEW.minimum_micro <> OLD.minimum_micro
     OR NEW.card_id <> OLD.card_id
     OR NEW.device_model_id <> OLD.device_model_id OR lower(NEW.valid) <> lower(OLD.valid)
     OR (upper(OLD.valid) IS NOT NULL AND upper(OLD.valid) <= now() AND NEW.valid <> OLD.valid)
     OR (upper(NEW.valid) IS NOT NULL AND upper(NEW.valid) < now() AND NEW.valid <> OLD.valid) THEN
    RAISE EXCEPTION 'a rate that has begun can only be given an end in the future'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0006_discounts")]
    operations = [
        migrations.AddField(
            model_name="rate", name="minimum_micro", field=models.BigIntegerField(db_default=0, default=0)
        ),
        migrations.AddConstraint(
            model_name="rate",
            constraint=models.CheckConstraint(
                condition=models.Q(("minimum_micro__gte", 0)), name="rate_minimum_not_negative"
            ),
        ),
        migrations.RunSQL(BEGUN_RATES, migrations.RunSQL.noop),
    ]
