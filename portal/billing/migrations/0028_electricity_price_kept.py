"""What a kWh of a line of electricity costs on average, by its exact cost; rows of before have none."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0027_electricity")]
    operations = [
        migrations.AddField("externalusage", "micro_per_kwh", models.BigIntegerField(null=True)),
        migrations.AddConstraint(
            "externalusage",
            models.CheckConstraint(
                condition=models.Q(micro_per_kwh=None) | models.Q(micro_per_kwh__gte=0, energy_mj__gt=0),
                name="external_usage_price_of_energy",
            ),
        ),
    ]
