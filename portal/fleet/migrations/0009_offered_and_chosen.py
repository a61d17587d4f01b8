from __future__ import annotations

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0008_cleared_by_hand")]

    operations = [
        migrations.AddField(
            "device",
            "offered",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=12), blank=True, default=list, size=None
            ),
        ),
    ]
