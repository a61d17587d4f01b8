from django.db import migrations, models

from portal.common.states import guard_sql
from portal.leases.holds import DROP_SQL, HOLD_SQL
from portal.leases.states import REQUEST_NEXT


class Migration(migrations.Migration):
    dependencies = [("leases", "0006_queue_and_time")]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="wanted_until",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="lease",
            name="end_reason",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "Not ended"),
                    ("released", "Released early"),
                    ("expired", "Time was up"),
                    ("preempted", "Preempted"),
                    ("idle", "Idle"),
                    ("fault", "Device or node fault"),
                    ("maintenance", "Maintenance"),
                    ("replanned", "Planned anew"),
                ],
                default="",
                max_length=12,
            ),
        ),
        migrations.RunSQL(guard_sql("leases_leaserequest", REQUEST_NEXT), migrations.RunSQL.noop),
        migrations.RunSQL(HOLD_SQL, DROP_SQL),
    ]
