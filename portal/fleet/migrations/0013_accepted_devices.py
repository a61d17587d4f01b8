from __future__ import annotations

import django.contrib.postgres.fields
from django.db import migrations, models

# What serves already goes on serving; its next hello says as what.
SERVES_ALREADY = "UPDATE fleet_device SET accepted = '{}'::jsonb, is_accepted = true"


class Migration(migrations.Migration):
    dependencies = [("fleet", "0012_never_back")]

    operations = [
        migrations.AddField("node", "ahead_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField(
            "node",
            "unknown_leases",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=64), blank=True, default=list, size=None
            ),
        ),
        migrations.AddField("device", "said", models.JSONField(blank=True, default=dict)),
        migrations.AddField("device", "accepted", models.JSONField(blank=True, null=True)),
        migrations.AddField("device", "is_accepted", models.BooleanField(default=False)),
        migrations.RunSQL(SERVES_ALREADY, migrations.RunSQL.noop),
        migrations.AddConstraint(
            "device",
            models.CheckConstraint(
                condition=models.Q(("is_accepted", False), ("accepted__isnull", False), _connector="OR"),
                name="device_accepted_as_something",
            ),
        ),
    ]
