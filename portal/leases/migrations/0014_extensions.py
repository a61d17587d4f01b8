import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q

STATES = ["awaiting_approval", "approved", "rejected", "withdrawn", "lapsed"]
DECIDED_ONCE = """
CREATE OR REPLACE FUNCTION leases_extension_decided_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state <> 'awaiting_approval' OR NEW.extra_s <> OLD.extra_s OR NEW.lease_id <> OLD.lease_id THEN
    RAISE EXCEPTION 'extension % is decided and never changes', OLD.id USING ERRCODE = 'check_violation';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER leases_extension_decided_once BEFORE UPDATE ON leases_leaseextension
  FOR EACH ROW EXECUTE FUNCTION leases_extension_decided_once();
"""


class Migration(migrations.Migration):
    """Extensions that need an approval, decided once."""

    dependencies = [
        ("leases", "0013_lost_grants"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="LeaseExtension",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("extra_s", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("awaiting_approval", "Awaiting approval"),
                            ("approved", "Approved"),
                            ("rejected", "Rejected"),
                            ("withdrawn", "Withdrawn"),
                            ("lapsed", "Lapsed"),
                        ],
                        default="awaiting_approval",
                        max_length=20,
                    ),
                ),
                ("asked_at", models.DateTimeField()),
                ("decided_at", models.DateTimeField(blank=True, null=True)),
                ("decision_note", models.CharField(blank=True, max_length=300)),
                (
                    "asked_by",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "decided_by",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "lease",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="extensions",
                        to="leases.lease",
                    ),
                ),
            ],
            options={
                "ordering": ["asked_at", "id"],
                "constraints": [
                    models.UniqueConstraint(
                        condition=Q(("state", "awaiting_approval")),
                        fields=("lease",),
                        name="one_extension_waits_per_lease",
                    ),
                    models.CheckConstraint(condition=Q(("extra_s__gte", 1)), name="extension_asks_for_time"),
                    models.CheckConstraint(condition=Q(("state__in", STATES)), name="extension_state_known"),
                    models.CheckConstraint(
                        condition=Q(
                            Q(("state__in", ("approved", "rejected")), _negated=True),
                            Q(("decided_by__isnull", False), Q(("decided_by", F("asked_by")), _negated=True)),
                            _connector="OR",
                        ),
                        name="extension_decided_by_another",
                    ),
                ],
            },
        ),
        migrations.RunSQL(DECIDED_ONCE, "DROP FUNCTION IF EXISTS leases_extension_decided_once() CASCADE;"),
    ]
