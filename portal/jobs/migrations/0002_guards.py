from django.db import migrations

JOB_STATES = """
CREATE OR REPLACE FUNCTION jobs_job_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'waiting' AND NEW.state IN
        ('starting', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state = 'starting' AND NEW.state IN
        ('running', 'waiting', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state = 'running' AND NEW.state IN
        ('waiting', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state IN ('failed', 'cancelled', 'timed_out', 'lost') AND NEW.state = 'waiting')) THEN
    RAISE EXCEPTION 'jobs_job %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_job_state_guard BEFORE UPDATE OF state ON jobs_job
  FOR EACH ROW EXECUTE FUNCTION jobs_job_state_guard();
"""

ATTEMPT_STATES = """
CREATE OR REPLACE FUNCTION jobs_attempt_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'starting' AND NEW.state IN
        ('running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state = 'running' AND NEW.state IN
        ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))) THEN
    RAISE EXCEPTION 'jobs_jobattempt %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  IF OLD.lease_id <> NEW.lease_id OR OLD.job_id <> NEW.job_id OR OLD.number <> NEW.number THEN
    RAISE EXCEPTION 'jobs_jobattempt %: an attempt stays in its job and lease', OLD.id
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_attempt_state_guard BEFORE UPDATE ON jobs_jobattempt
  FOR EACH ROW EXECUTE FUNCTION jobs_attempt_state_guard();
"""


class Migration(migrations.Migration):
    """What may follow what, and that no lease ever runs two attempts."""

    dependencies = [("jobs", "0001_initial")]
    operations = [
        migrations.RunSQL(JOB_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(ATTEMPT_STATES, migrations.RunSQL.noop),
    ]
