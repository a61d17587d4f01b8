import django.db.models.deletion
from django.db import migrations, models

ATTEMPT_STATES = """
CREATE OR REPLACE FUNCTION jobs_attempt_state_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state IS DISTINCT FROM NEW.state AND NOT (
      (OLD.state = 'waiting' AND NEW.state IN
        ('starting', 'running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state = 'starting' AND NEW.state IN
        ('running', 'succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))
      OR (OLD.state = 'running' AND NEW.state IN
        ('succeeded', 'failed', 'cancelled', 'timed_out', 'lost'))) THEN
    RAISE EXCEPTION 'jobs_jobattempt %: state % cannot follow %', OLD.id, NEW.state, OLD.state
      USING ERRCODE = 'check_violation';
  END IF;
  IF OLD.lease_id <> NEW.lease_id OR OLD.job_id <> NEW.job_id OR OLD.number <> NEW.number
      OR OLD.ordinal <> NEW.ordinal THEN
    RAISE EXCEPTION 'jobs_jobattempt %: an attempt stays in its job and lease', OLD.id
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
"""

# One that follows another belongs to the same person, team and array: nobody's job ever runs in a lease of others.
FOLLOWS = """
CREATE FUNCTION jobs_attempt_follows_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.ordinal > 1 AND NOT EXISTS (
      SELECT 1 FROM jobs_jobattempt f JOIN jobs_job a ON a.id = f.job_id JOIN jobs_job b ON b.id = NEW.job_id
      WHERE f.lease_id = NEW.lease_id AND f.ordinal = 1 AND a.array_id = b.array_id
        AND a.user_id = b.user_id AND a.team_id = b.team_id AND a.flavor_id = b.flavor_id
        AND a.count = b.count AND a.time_s = b.time_s) THEN
    RAISE EXCEPTION 'jobs_jobattempt: only jobs of one array follow each other in a lease'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER jobs_attempt_follows_guard BEFORE INSERT ON jobs_jobattempt
  FOR EACH ROW EXECUTE FUNCTION jobs_attempt_follows_guard();
"""


class Migration(migrations.Migration):
    """Jobs of one array may follow each other in a lease, one at a time."""

    dependencies = [("jobs", "0006_checked_artifacts"), ("leases", "0022_needs_containers")]
    operations = [
        migrations.RemoveConstraint(
            model_name="jobattempt",
            name="one_open_attempt_per_job",
        ),
        migrations.RemoveConstraint(
            model_name="jobattempt",
            name="attempt_state_known",
        ),
        migrations.RemoveIndex(
            model_name="jobattempt",
            name="attempt_open",
        ),
        migrations.AddField(
            model_name="jobattempt",
            name="ordinal",
            field=models.PositiveIntegerField(default=1),
        ),
        migrations.AlterField(
            model_name="job",
            name="request",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="leases.leaserequest",
            ),
        ),
        migrations.AlterField(
            model_name="jobattempt",
            name="lease",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="tries",
                to="leases.lease",
            ),
        ),
        migrations.AddIndex(
            model_name="jobattempt",
            index=models.Index(
                condition=models.Q(("state__in", ("waiting", "starting", "running"))),
                fields=["id"],
                name="attempt_open",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", ("starting", "running"))),
                fields=("request",),
                name="one_running_job_per_request",
            ),
        ),
        migrations.AddConstraint(
            model_name="jobattempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", ("waiting", "starting", "running"))),
                fields=("job",),
                name="one_open_attempt_per_job",
            ),
        ),
        migrations.AddConstraint(
            model_name="jobattempt",
            constraint=models.UniqueConstraint(fields=("lease", "ordinal"), name="attempt_ordinal_once"),
        ),
        migrations.AddConstraint(
            model_name="jobattempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", ("starting", "running"))),
                fields=("lease",),
                name="one_open_attempt_per_lease",
            ),
        ),
        migrations.AddConstraint(
            model_name="jobattempt",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "waiting")), fields=("lease",), name="one_next_attempt_per_lease"
            ),
        ),
        migrations.AddConstraint(
            model_name="jobattempt",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "state__in",
                        [
                            "waiting",
                            "starting",
                            "running",
                            "succeeded",
                            "failed",
                            "cancelled",
                            "timed_out",
                            "lost",
                        ],
                    )
                ),
                name="attempt_state_known",
            ),
        ),
        migrations.RunSQL(ATTEMPT_STATES, migrations.RunSQL.noop),
        migrations.RunSQL(FOLLOWS, migrations.RunSQL.noop),
    ]
