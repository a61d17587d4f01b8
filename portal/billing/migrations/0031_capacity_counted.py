"""Where the capacity of a large month went when it was last counted, so that pages need not go through all usage."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0030_electricity_counted")]
    operations = [
        migrations.CreateModel(
            name="CapacityCount",
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
                ("devices", models.JSONField()),
            ],
        ),
    ]
