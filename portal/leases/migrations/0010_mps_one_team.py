from django.db import migrations, models

from portal.leases.strangers import DROP_SQL, MARK_SQL, ONE_TEAM_SQL


class Migration(migrations.Migration):
    """One team at a time on a device that serves MPS."""

    dependencies = [("leases", "0009_preempting"), ("policies", "0006_duration_trees")]

    operations = [
        migrations.AddField(
            model_name="placement",
            name="met_teams",
            field=models.BooleanField(default=False),
        ),
        migrations.RunSQL(MARK_SQL, migrations.RunSQL.noop),
        migrations.RunSQL(ONE_TEAM_SQL, DROP_SQL),
    ]
