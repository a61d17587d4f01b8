from django.db import migrations

BEGUN_RATES = """
CREATE OR REPLACE FUNCTION catalog_rate_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF lower(OLD.valid) > now() THEN
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
  END IF;
  IF TG_OP = 'DELETE' OR NEW.micro_per_hour <> OLD.micro_per_hour OR NEW.card_id <> OLD.card_id
     OR NEW.device_model_id <> OLD.device_model_id OR lower(NEW.valid) <> lower(OLD.valid)
     OR (upper(OLD.valid) IS NOT NULL AND upper(OLD.valid) <= now() AND NEW.valid <> OLD.valid)
     OR (upper(NEW.valid) IS NOT NULL AND upper(NEW.valid) < now() AND NEW.valid <> OLD.valid) THEN
    RAISE EXCEPTION 'a rate that has begun can only be given an end in the future'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER catalog_rate_guard BEFORE UPDATE OR DELETE ON catalog_rate
  FOR EACH ROW EXECUTE FUNCTION catalog_rate_guard();
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0001_initial")]
    operations = [migrations.RunSQL(BEGUN_RATES, migrations.RunSQL.noop)]
