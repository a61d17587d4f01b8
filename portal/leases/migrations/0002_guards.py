from django.db import migrations

from portal.common.states import append_only_sql, guard_sql
from portal.leases.states import LEASE_NEXT, REQUEST_NEXT


class Migration(migrations.Migration):
    dependencies = [("leases", "0001_initial")]
    operations = [
        migrations.RunSQL(guard_sql("leases_lease", LEASE_NEXT), migrations.RunSQL.noop),
        migrations.RunSQL(guard_sql("leases_leaserequest", REQUEST_NEXT), migrations.RunSQL.noop),
        migrations.RunSQL(append_only_sql("leases_leaseevent"), migrations.RunSQL.noop),
        migrations.RunSQL(append_only_sql("leases_requestevent"), migrations.RunSQL.noop),
    ]
