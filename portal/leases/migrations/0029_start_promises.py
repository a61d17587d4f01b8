"""Starts that Berth stands behind; what was promised never changes, and what came of it is said once."""

import django.db.models.deletion
from django.db import migrations, models

GUARD = """
CREATE FUNCTION leases_startpromise_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF (NEW.id, NEW.request_id, NEW.queued_at, NEW.made_at, NEW.promised_at, NEW.policy_version)
       IS NOT DISTINCT FROM (OLD.id, OLD.request_id, OLD.queued_at, OLD.made_at, OLD.promised_at, OLD.policy_version)
       AND (OLD.started_at IS NULL OR NEW.started_at = OLD.started_at)
       AND (OLD.outcome = 'open' OR (NEW.outcome, NEW.why) = (OLD.outcome, OLD.why))
       AND (NEW.outcome <> 'excused' OR OLD.outcome = 'excused' OR NEW.started_at IS NULL) THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'a promised start never changes: what came of it is said once'
    USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER leases_startpromise_stays BEFORE UPDATE OR DELETE ON leases_startpromise
  FOR EACH ROW EXECUTE FUNCTION leases_startpromise_stays();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("leases", "0028_scratch_full"),
    ]

    operations = [
        migrations.CreateModel(
            name="StartPromise",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queued_at", models.DateTimeField()),
                ("made_at", models.DateTimeField()),
                ("promised_at", models.DateTimeField()),
                ("policy_version", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField(blank=True, null=True)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("open", "Open"),
                            ("kept", "Kept"),
                            ("missed", "Missed"),
                            ("excused", "Held up by own limits"),
                            ("withdrawn", "Wait ended before"),
                        ],
                        default="open",
                        max_length=9,
                    ),
                ),
                ("why", models.CharField(blank=True, max_length=30)),
                (
                    "request",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="promises",
                        to="leases.leaserequest",
                    ),
                ),
            ],
            options={
                "ordering": ["-promised_at", "-id"],
                "indexes": [
                    models.Index(fields=["-promised_at"], name="promise_by_time"),
                    models.Index(
                        condition=models.Q(("started_at", None)),
                        fields=["made_at"],
                        name="promise_not_started",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("request", "queued_at"), name="promise_once_per_wait"),
                    models.CheckConstraint(
                        condition=models.Q(("promised_at__gt", models.F("made_at"))),
                        name="promise_lies_ahead",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("outcome__in", ["open", "kept", "missed", "excused", "withdrawn"])
                        ),
                        name="promise_outcome_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("outcome", "kept"),
                                ("started_at__isnull", False),
                                ("started_at__lte", models.F("promised_at")),
                            ),
                            models.Q(("outcome", "kept"), _negated=True),
                            _connector="OR",
                        ),
                        name="promise_kept_by_a_start",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("outcome", "excused"), models.Q(("why", ""), _negated=True)),
                            models.Q(models.Q(("outcome", "excused"), _negated=True), ("why", "")),
                            _connector="OR",
                        ),
                        name="promise_excused_says_why",
                    ),
                ],
            },
        ),
        migrations.RunSQL(GUARD, "DROP FUNCTION leases_startpromise_stays() CASCADE"),
    ]
