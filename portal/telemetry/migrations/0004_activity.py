from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("telemetry", "0003_hours_by_lease"),
    ]

    operations = [
        migrations.AddField(
            model_name="minuterollup",
            name="bandwidth_mean",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="minuterollup",
            name="power_mean_w",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="minuterollup",
            name="sm_mean",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="minuterollup",
            name="tensor_mean",
            field=models.FloatField(null=True),
        ),
    ]
