"""A rule may give back for a start that came later than promised; the database looks whether it did."""

from django.conf import settings
from django.db import migrations, models

LATE = """
CREATE FUNCTION billing_late_starts_are_late() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM added a JOIN billing_refundrule f ON f.id = a.refund_id AND f.cause = 'late_start'
             JOIN leases_lease l ON l.id = a.lease_id
             WHERE NOT EXISTS (SELECT FROM leases_startpromise p WHERE p.request_id = l.request_id
               AND p.queued_at <= l.starts_at AND p.promised_at < l.starts_at AND p.outcome IN ('open', 'missed'))) THEN
    RAISE EXCEPTION 'a late start is refunded where a promise of it was missed'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'books';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER billing_late_starts_are_late AFTER INSERT ON billing_usagerecord
  REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_late_starts_are_late();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0023_minimum_charge"),
        ("leases", "0029_start_promises"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="refundrule",
            name="refund_cause_known",
        ),
        migrations.AlterField(
            model_name="refundrule",
            name="cause",
            field=models.CharField(
                choices=[
                    ("node_lost", "Node lost"),
                    ("device_fault", "Device fault"),
                    ("failed_start", "Failed soon after its start"),
                    ("maintenance", "Maintenance"),
                    ("preempted", "Preempted"),
                    ("early_release", "Released early"),
                    ("late_start", "Started later than promised"),
                ],
                max_length=13,
            ),
        ),
        migrations.AddConstraint(
            model_name="refundrule",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "cause__in",
                        [
                            "node_lost",
                            "device_fault",
                            "failed_start",
                            "maintenance",
                            "preempted",
                            "early_release",
                            "late_start",
                        ],
                    )
                ),
                name="refund_cause_known",
            ),
        ),
        migrations.RunSQL(LATE, "DROP FUNCTION billing_late_starts_are_late() CASCADE"),
    ]
