from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("policies", "0005_activated_at")]

    operations = [
        migrations.AddField(
            model_name="durationmodel",
            name="trees",
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
