from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_node_life")]

    operations = [
        migrations.AddField("healthevent", "is_cleared_by_hand", models.BooleanField(default=False)),
        migrations.AddField(
            "healthevent", "cleared_boot", models.CharField(blank=True, default="", max_length=64)
        ),
        migrations.RunSQL(
            "UPDATE fleet_healthevent SET is_cleared_by_hand = true WHERE cleared_by NOT IN ('', 'agent')",
            migrations.RunSQL.noop,
        ),
    ]
