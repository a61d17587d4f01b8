from django.db import migrations

APPEND_ONLY = """
CREATE OR REPLACE FUNCTION audit_auditentry_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'audit_auditentry is append-only' USING ERRCODE = 'check_violation';
END $$;
DROP TRIGGER IF EXISTS audit_auditentry_append_only ON audit_auditentry;
CREATE TRIGGER audit_auditentry_append_only BEFORE UPDATE OR DELETE ON audit_auditentry
  FOR EACH ROW EXECUTE FUNCTION audit_auditentry_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunSQL(APPEND_ONLY, migrations.RunSQL.noop)]
