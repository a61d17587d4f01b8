from __future__ import annotations

import django.contrib.postgres.fields
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("fleet", "0009_offered_and_chosen")]

    operations = [
        migrations.AddField(
            "healthevent",
            "starts",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.PositiveSmallIntegerField(), blank=True, null=True, size=None
            ),
        ),
        migrations.AddIndex(
            "healthevent",
            models.Index(fields=["cleared_at"], name="health_event_over", condition=~Q(cleared_at=None)),
        ),
    ]
