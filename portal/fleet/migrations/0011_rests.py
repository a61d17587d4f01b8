from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("fleet", "0010_health_of_slices")]

    operations = [
        migrations.AddField("healthevent", "until", models.DateTimeField(blank=True, null=True)),
    ]
