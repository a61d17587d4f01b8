from django.db import migrations, models

REQUEST_STATES = """
CREATE OR REPLACE FUNCTION leases_leaserequest_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'draft' AND NEW.state IN ('submitted', 'withdrawn'))
      OR (OLD.state = 'submitted' AND NEW.state IN ('awaiting_approval', 'impossible', 'queued', 'rejected'))
      OR (OLD.state = 'awaiting_approval' AND NEW.state IN ('expired', 'queued', 'rejected', 'withdrawn'))
      OR (OLD.state = 'queued' AND NEW.state IN ('expired', 'granted', 'impossible', 'withdrawn'))
      OR (OLD.state = 'granted' AND NEW.state IN ('fulfilled', 'impossible', 'queued', 'withdrawn'))) THEN
    RAISE EXCEPTION 'leases_leaserequest %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS leases_leaserequest_state_guard ON leases_leaserequest;
CREATE TRIGGER leases_leaserequest_state_guard BEFORE UPDATE OF state ON leases_leaserequest
  FOR EACH ROW EXECUTE FUNCTION leases_leaserequest_state_guard();
"""

# Returns the earliest end that the placements have got: less than was wished where something comes behind.
# A share is no part of the constraint: it reaches as far as its host, which reaches as far as it can.
HOLD = """
CREATE OR REPLACE FUNCTION leases_next_start(placement leases_placement) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
  SELECT min(lower(b.period)) FROM leases_placement b
   WHERE b.is_live AND b.host_id IS NULL AND b.device_id = placement.device_id AND b.id <> placement.id
     AND b.slots && placement.slots AND lower(b.period) > lower(placement.period)
$$;
CREATE OR REPLACE FUNCTION leases_hold_until(leases bigint[], until timestamptz) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
  tries integer := 0;
  reached timestamptz;
BEGIN
  LOOP
    BEGIN
      UPDATE leases_placement p SET period = tstzrange(lower(p.period),
             greatest(least(until, leases_next_start(p)), lower(p.period) + interval '1 microsecond'))
       WHERE p.lease_id = ANY(leases) AND p.is_live AND p.host_id IS NULL;
      UPDATE leases_placement h SET period = tstzrange(lower(h.period),
             greatest(least(until, leases_next_start(h)), upper(h.period)))
       WHERE h.is_live AND upper(h.period) < until AND h.id IN
             (SELECT s.host_id FROM leases_placement s WHERE s.lease_id = ANY(leases) AND s.is_live);
      UPDATE leases_placement p SET period = tstzrange(lower(p.period),
             greatest(least(until, upper(h.period)), lower(p.period) + interval '1 microsecond'))
        FROM leases_placement h
       WHERE p.lease_id = ANY(leases) AND p.is_live AND h.id = p.host_id;
      SELECT min(upper(p.period)) INTO reached FROM leases_placement p
       WHERE p.lease_id = ANY(leases) AND p.is_live;
      RETURN reached;
    EXCEPTION WHEN exclusion_violation THEN
      tries := tries + 1;
      IF tries >= 5 THEN RAISE; END IF;
    END;
  END LOOP;
END $$;
"""

DROP_HOLD = """
DROP FUNCTION IF EXISTS leases_hold_until(bigint[], timestamptz);
DROP FUNCTION IF EXISTS leases_next_start(leases_placement);
"""


class Migration(migrations.Migration):
    dependencies = [("leases", "0006_queue_and_time")]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="wanted_until",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="lease",
            name="end_reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "Not ended"),
                    ("released", "Released early"),
                    ("expired", "Time was up"),
                    ("preempted", "Preempted"),
                    ("idle", "Idle"),
                    ("fault", "Device or node fault"),
                    ("maintenance", "Maintenance"),
                    ("replanned", "Planned anew"),
                ],
                default="",
                max_length=12,
            ),
        ),
        migrations.RunSQL(REQUEST_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(HOLD, DROP_HOLD),
    ]
