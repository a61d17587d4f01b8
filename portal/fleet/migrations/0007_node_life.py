from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("fleet", "0006_health_unreported")]

    operations = [
        migrations.AddField("node", "drained_at", models.DateTimeField(blank=True, null=True)),
        migrations.AddField(
            "node",
            "features",
            ArrayField(models.CharField(max_length=40), blank=True, default=list),
        ),
        migrations.AddIndex(
            "node",
            models.Index(condition=~Q(drain_by=None), fields=["id"], name="node_draining"),
        ),
    ]
