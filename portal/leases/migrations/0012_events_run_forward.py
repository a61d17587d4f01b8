from django.db import migrations, models

# Leases that are live when this is installed learn when they took their last step. An end before that step could
# never be kept; it is moved there.
LIVE_ROWS = """
UPDATE leases_lease l SET moved_at = last.at, not_after = CASE
   WHEN l.state IN ('active', 'interrupted') THEN greatest(l.not_after, last.at) ELSE l.not_after END
  FROM (SELECT e.lease_id, max(e.at) AS at FROM leases_leaseevent e GROUP BY e.lease_id) last
 WHERE last.lease_id = l.id AND l.state <> 'ended';
"""
# Rows that were there before are looked at only when they change: manage.py repair_lease_events mends those.
GUARDS = """
CREATE OR REPLACE FUNCTION leases_event_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  before timestamptz;
  lease_end timestamptz;
BEGIN
  SELECT max(at) INTO before FROM leases_leaseevent WHERE lease_id = NEW.lease_id;
  IF NEW.at < before THEN
    RAISE EXCEPTION 'events of lease % run backwards: % at %, after a step at %',
      NEW.lease_id, NEW.now, NEW.at, before USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.was = 'active' THEN
    SELECT not_after INTO lease_end FROM leases_lease WHERE id = NEW.lease_id;
    IF NEW.at > lease_end THEN
      RAISE EXCEPTION 'lease % was to end at %, before this step at %', NEW.lease_id, lease_end, NEW.at
        USING ERRCODE = 'check_violation';
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leases_event_in_order BEFORE INSERT ON leases_leaseevent
  FOR EACH ROW EXECUTE FUNCTION leases_event_in_order();

CREATE OR REPLACE FUNCTION leases_end_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  is_new boolean := TG_OP = 'INSERT';
BEGIN
  IF NEW.ended_at > NEW.not_after AND (is_new OR NEW.ended_at IS DISTINCT FROM OLD.ended_at
      OR NEW.not_after IS DISTINCT FROM OLD.not_after) THEN
    RAISE EXCEPTION 'lease % ends after its end: % is past %', NEW.id, NEW.ended_at, NEW.not_after
      USING ERRCODE = 'check_violation';
  END IF;
  IF NEW.clean_at < NEW.ended_at AND (is_new OR NEW.clean_at IS DISTINCT FROM OLD.clean_at
      OR NEW.ended_at IS DISTINCT FROM OLD.ended_at) THEN
    RAISE EXCEPTION 'lease % is clean before it ended: % and %', NEW.id, NEW.clean_at, NEW.ended_at
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leases_end_in_order BEFORE INSERT OR UPDATE OF not_after, ended_at, clean_at ON leases_lease
  FOR EACH ROW EXECUTE FUNCTION leases_end_in_order();
"""
NO_GUARDS = """
DROP TRIGGER IF EXISTS leases_end_in_order ON leases_lease;
DROP TRIGGER IF EXISTS leases_event_in_order ON leases_leaseevent;
DROP FUNCTION IF EXISTS leases_end_in_order();
DROP FUNCTION IF EXISTS leases_event_in_order();
"""


class Migration(migrations.Migration):
    """When a lease took its last step; its events run forward and it never ends after its end."""

    dependencies = [("leases", "0011_lease_by_holder")]

    operations = [
        migrations.AddField(
            model_name="lease", name="moved_at", field=models.DateTimeField(blank=True, null=True)
        ),
        migrations.RunSQL(LIVE_ROWS, migrations.RunSQL.noop),
        migrations.RunSQL(GUARDS, NO_GUARDS),
    ]
