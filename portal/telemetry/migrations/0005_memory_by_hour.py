"""Hours of leases keep the most memory that was seen in them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0004_activity"),
    ]

    operations = [
        migrations.AddField(
            model_name="hourrollup",
            name="memory_max_mib",
            field=models.PositiveIntegerField(null=True),
        ),
    ]
