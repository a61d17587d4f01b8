"""A count of a month's electricity names the hours that have energy and no price."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0031_capacity_counted")]
    operations = [
        migrations.AddField("electricitycount", "unpriced", models.JSONField(db_default={}, default=dict)),
        # What was counted before says nothing of them: the next step counts anew.
        migrations.RunSQL("DELETE FROM billing_electricitycount", migrations.RunSQL.noop),
    ]
