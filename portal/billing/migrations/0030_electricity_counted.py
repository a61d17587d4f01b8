"""What a month's electricity came to when it was last counted, so that pages need not count it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0029_energy_sums")]
    operations = [
        migrations.CreateModel(
            name="ElectricityCount",
            fields=[
                (
                    "period",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="billing.billingperiod",
                    ),
                ),
                ("counted_at", models.DateTimeField()),
                ("digest", models.CharField(blank=True, max_length=64)),
                ("source", models.CharField(max_length=64)),
                ("by_team", models.JSONField()),
            ],
        ),
        migrations.AddConstraint(
            "electricitycount",
            models.CheckConstraint(
                condition=models.Q(("source", ""), _negated=True), name="electricity_count_says_of_what"
            ),
        ),
    ]
