from django.db import migrations, models


class Migration(migrations.Migration):
    """A lease may end because its scratch folder holds more than the node gives."""

    dependencies = [
        ("leases", "0027_decided_for"),
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
                    ("scratch_full", "Too much in its scratch folder"),
                ],
                default="",
                max_length=12,
            ),
        ),
    ]
