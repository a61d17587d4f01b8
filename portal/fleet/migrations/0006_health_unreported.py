from __future__ import annotations

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("fleet", "0005_agents_on_hardware")]

    operations = [
        migrations.AddField("healthevent", "unreported_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddIndex(
            "healthevent",
            models.Index(fields=["node"], name="health_event_open", condition=Q(cleared_at=None)),
        ),
    ]
