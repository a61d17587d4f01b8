"""A rate may have a price of device memory; one that has begun keeps it, as it keeps its price."""

from django.db import migrations, models

# What a whole device costs an hour where it is lent as a flavor: as Rate.price_of.
PRICE_OF = """
CREATE FUNCTION catalog_price_of(r catalog_rate, f catalog_flavor) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT r.micro_per_hour + r.micro_per_gib_hour * f.memory_mib * 1000 / (1024 * f.share_milli)
$$;
"""
BEGUN_RATES = """
CREATE OR REPLACE FUNCTION catalog_rate_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF lower(OLD.valid) > now() THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR NEW.micro_per_hour <> OLD.micro_per_hour OR NEW.minimum_micro <> OLD.minimum_micro
     OR NEW.micro_per_gib_hour <> OLD.micro_per_gib_hour OR NEW.card_id <> OLD.card_id
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
    dependencies = [("catalog", "0007_minimum_charge")]
    operations = [
        migrations.AddField(
            model_name="rate",
            name="micro_per_gib_hour",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
        migrations.AddConstraint(
            model_name="rate",
            constraint=models.CheckConstraint(
                condition=models.Q(("micro_per_gib_hour__gte", 0), ("micro_per_gib_hour__lte", 1000000000)),
                name="rate_memory_price_sane",
            ),
        ),
        migrations.RunSQL(PRICE_OF, migrations.RunSQL.noop),
        migrations.RunSQL(BEGUN_RATES, migrations.RunSQL.noop),
    ]
