from django.db import migrations

from portal.common.states import append_only_sql


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunSQL(append_only_sql("audit_auditentry"), migrations.RunSQL.noop)]
