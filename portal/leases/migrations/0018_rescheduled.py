from django.db import migrations, models


class Migration(migrations.Migration):
    """The reason “replanned” reads “Rescheduled”; rows stay as they are."""

    dependencies = [
        ("leases", "0017_drop_metered_until"),
    ]

    operations = [
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
                    ("replanned", "Rescheduled"),
                ],
                default="",
                max_length=12,
            ),
        ),
    ]
