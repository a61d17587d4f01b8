"""Finds the hours of a month and the factor of an hour without reading all of them."""

import django.contrib.postgres.indexes
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0021_external_usage_guarded"),
        ("leases", "0028_scratch_full"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddIndex(
            model_name="energyfactor",
            index=models.Index(
                models.F("kind"),
                models.F("site"),
                models.Func(models.F("valid"), function="lower"),
                name="energy_factor_at",
            ),
        ),
        migrations.AddIndex(
            model_name="leaseenergy",
            index=django.contrib.postgres.indexes.BrinIndex(
                autosummarize=True, fields=["begins"], name="energy_by_hour"
            ),
        ),
    ]
