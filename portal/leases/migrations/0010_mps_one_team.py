"""Under MPS a fault of one program ends those of all: the database lets one team at a time onto a device.

Only the active policy can open it to several teams (``share_across_teams`` and ``mps_across_teams``, docs/policies.md);
with none stored it stays closed. The rule is asked when a share comes to a device or reaches further in time, never
later: shares that met while it was open may stay and be held longer where they are. Each share that met another team
carries ``met_teams``, which tells an old permission from a mistake.
"""

from django.db import migrations, models

# Until now ``share_across_teams`` alone let teams meet: what met by then was allowed to.
MARK = """
UPDATE leases_placement a SET met_teams = true
 WHERE a.is_live AND a.mode = 'mps' AND a.host_id IS NOT NULL AND EXISTS (
   SELECT 1 FROM leases_placement b WHERE b.is_live AND b.mode = 'mps' AND b.host_id IS NOT NULL
      AND b.device_id = a.device_id AND b.team_id <> a.team_id AND b.period && a.period)
"""

# Where a share stays inside the time of its host, which excludes all other hosts, it can meet nobody new. The lock
# lets two that come at once see each other: the second waits for the first one's transaction, then looks.
ONE_TEAM = """
CREATE OR REPLACE FUNCTION leases_mps_one_team() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  is_same boolean := false;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    is_same := OLD.is_live AND OLD.mode = 'mps' AND OLD.team_id = NEW.team_id
      AND OLD.device_id = NEW.device_id AND OLD.host_id IS NOT DISTINCT FROM NEW.host_id;
    IF is_same AND (NEW.period <@ OLD.period OR NEW.period <@
        (SELECT h.period FROM leases_placement h WHERE h.id = NEW.host_id AND h.is_live)) THEN
      RETURN NEW;
    END IF;
  END IF;
  PERFORM pg_advisory_xact_lock(hashtextextended('leases_mps_one_team', NEW.device_id));
  IF NOT EXISTS (
    SELECT 1 FROM leases_placement o
     WHERE o.device_id = NEW.device_id AND o.is_live AND o.mode = 'mps' AND o.host_id IS NOT NULL
       AND o.id <> NEW.id AND o.team_id <> NEW.team_id
       AND (o.period && NEW.period OR o.host_id = NEW.host_id)
       AND NOT (is_same AND (o.period && OLD.period OR o.host_id = OLD.host_id))) THEN
    RETURN NEW;
  END IF;
  IF EXISTS (SELECT 1 FROM policies_policy p WHERE p.is_active
              AND p.body -> 'share_across_teams' = 'true' AND p.body -> 'mps_across_teams' = 'true') THEN
    NEW.met_teams := true;
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'device % serves MPS for another team at that time', NEW.device_id
    USING ERRCODE = 'exclusion_violation', CONSTRAINT = 'mps_device_of_one_team',
          HINT = 'Wait until that team''s shares have ended, or allow mps_across_teams in the policy.';
END $$;
DROP TRIGGER IF EXISTS leases_mps_one_team ON leases_placement;
CREATE TRIGGER leases_mps_one_team
  BEFORE INSERT OR UPDATE OF device_id, team_id, host_id, mode, period, is_live ON leases_placement
  FOR EACH ROW WHEN (NEW.mode = 'mps' AND NEW.is_live AND NEW.host_id IS NOT NULL)
  EXECUTE FUNCTION leases_mps_one_team();
"""

DROP_ONE_TEAM = """
DROP TRIGGER IF EXISTS leases_mps_one_team ON leases_placement;
DROP FUNCTION IF EXISTS leases_mps_one_team();
"""


class Migration(migrations.Migration):
    dependencies = [("leases", "0009_preempting"), ("policies", "0006_duration_trees")]

    operations = [
        migrations.AddField(
            model_name="placement",
            name="met_teams",
            field=models.BooleanField(default=False),
        ),
        migrations.RunSQL(MARK, migrations.RunSQL.noop),
        migrations.RunSQL(ONE_TEAM, DROP_ONE_TEAM),
    ]
