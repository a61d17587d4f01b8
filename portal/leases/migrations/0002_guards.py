from django.db import migrations

LEASE_STATES = """
CREATE OR REPLACE FUNCTION leases_lease_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'booked' AND NEW.state IN ('ended', 'preparing'))
      OR (OLD.state = 'preparing' AND NEW.state IN ('active', 'cleaning', 'failed'))
      OR (OLD.state = 'active' AND NEW.state IN ('ending', 'failed', 'interrupted'))
      OR (OLD.state = 'interrupted' AND NEW.state IN ('active', 'cleaning', 'failed'))
      OR (OLD.state = 'ending' AND NEW.state IN ('cleaning'))
      OR (OLD.state = 'cleaning' AND NEW.state IN ('ended'))
      OR (OLD.state = 'failed' AND NEW.state IN ('cleaning'))) THEN
    RAISE EXCEPTION 'leases_lease %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS leases_lease_state_guard ON leases_lease;
CREATE TRIGGER leases_lease_state_guard BEFORE UPDATE OF state ON leases_lease
  FOR EACH ROW EXECUTE FUNCTION leases_lease_state_guard();
"""

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

LEASE_EVENTS_APPEND_ONLY = """
CREATE OR REPLACE FUNCTION leases_leaseevent_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'leases_leaseevent is append-only' USING ERRCODE = 'check_violation';
END $$;
DROP TRIGGER IF EXISTS leases_leaseevent_append_only ON leases_leaseevent;
CREATE TRIGGER leases_leaseevent_append_only BEFORE UPDATE OR DELETE ON leases_leaseevent
  FOR EACH ROW EXECUTE FUNCTION leases_leaseevent_append_only();
"""

REQUEST_EVENTS_APPEND_ONLY = """
CREATE OR REPLACE FUNCTION leases_requestevent_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'leases_requestevent is append-only' USING ERRCODE = 'check_violation';
END $$;
DROP TRIGGER IF EXISTS leases_requestevent_append_only ON leases_requestevent;
CREATE TRIGGER leases_requestevent_append_only BEFORE UPDATE OR DELETE ON leases_requestevent
  FOR EACH ROW EXECUTE FUNCTION leases_requestevent_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("leases", "0001_initial")]
    operations = [
        migrations.RunSQL(LEASE_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(REQUEST_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(LEASE_EVENTS_APPEND_ONLY, migrations.RunSQL.noop),
        migrations.RunSQL(REQUEST_EVENTS_APPEND_ONLY, migrations.RunSQL.noop),
    ]
