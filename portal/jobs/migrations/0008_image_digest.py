from django.db import migrations, models

# What a job was handed in with is what it runs in: once known, the image is never another one.
ONCE = """
CREATE FUNCTION jobs_job_image_guard() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'jobs_job %: the digest of its image is known and stays', OLD.id USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER jobs_job_image_guard BEFORE UPDATE OF image_digest ON jobs_job FOR EACH ROW
  WHEN (OLD.image_digest <> '' AND NEW.image_digest IS DISTINCT FROM OLD.image_digest)
  EXECUTE FUNCTION jobs_job_image_guard();
"""
NOT_ONCE = "DROP FUNCTION IF EXISTS jobs_job_image_guard() CASCADE;"


class Migration(migrations.Migration):
    """Jobs know what their image's tag meant when they were handed in."""

    dependencies = [
        ("jobs", "0007_following"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="image_asked_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="job",
            name="image_digest",
            field=models.CharField(blank=True, default="", max_length=80),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("image_digest", ""), ("image_digest__regex", "^sha256:[0-9a-f]{64}$"), _connector="OR"
                ),
                name="job_image_is_a_digest",
            ),
        ),
        migrations.RunSQL(ONCE, NOT_ONCE),
    ]
