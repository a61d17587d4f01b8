from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("policies", "0006_duration_trees"),
    ]

    operations = [
        migrations.AddField(
            model_name="demandtable",
            name="used_milli",
            field=models.PositiveSmallIntegerField(default=0),
        ),
    ]
