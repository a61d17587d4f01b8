from django.db import migrations

NEVER_BACK = """
CREATE OR REPLACE FUNCTION fleet_node_never_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.epoch < OLD.epoch OR NEW.desired_revision < OLD.desired_revision
     OR (NEW.last_seq < OLD.last_seq AND NEW.boot_id = OLD.boot_id AND NEW.epoch = OLD.epoch) THEN
    RAISE EXCEPTION 'enrolment, revision and, within a boot, the last frame of node % only rise', OLD.name
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fleet_node_never_back BEFORE UPDATE OF epoch, desired_revision, last_seq ON fleet_node
  FOR EACH ROW EXECUTE FUNCTION fleet_node_never_back();
"""
GONE = "DROP TRIGGER fleet_node_never_back ON fleet_node; DROP FUNCTION fleet_node_never_back();"


class Migration(migrations.Migration):
    dependencies = [("fleet", "0011_rests")]
    operations = [migrations.RunSQL(NEVER_BACK, GONE)]
